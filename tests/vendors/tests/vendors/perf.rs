//! The tool's own check of all operations.

use crate::facts::on_every_row;
use flagos_comm_testkit::{cargo, ranks};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The tool: `FLAGOSCOMM_TEST_TOOL` if set, else the release build.
fn tool() -> PathBuf {
    match std::env::var_os("FLAGOSCOMM_TEST_TOOL") {
        Some(path) => path.into(),
        None => cargo::release("flagos-comm"),
    }
}

#[test]
fn the_tools_check_passes_at_one_two_and_four_ranks() {
    let tool = tool();
    on_every_row(
        |_| true,
        |fact| {
            for n in ["1", "2", "4"] {
                let command = |_| {
                    let mut command = Command::new(&tool);
                    command.args([
                        "perf", "--check", "-b", "64", "-e", "64", "-n", "1", "-w", "0",
                    ]);
                    command.args(["--blocks", "1", "--check-counts", "0,1,7", "--ranks", n]);
                    command.env("LD_LIBRARY_PATH", &fact.standins().dir);
                    command.env("FLAGOSCOMM_TIERS", "native");
                    command.envs(fact.variables());
                    command
                };
                let outputs = ranks::run_ok(1, command, Duration::from_secs(60));
                let out = &outputs[0].stdout;
                let vendor = format!("# tier native, vendor {}", fact.key);
                assert!(out.contains(&vendor), "{n} ranks\n{out}");
                assert!(out.contains("wrong values 0"), "{n} ranks\n{out}");
            }
        },
    );
}
