//! Scenarios of the programs of `tests/c/native`.

use flagos_comm_testkit::cargo;
use flagos_comm_testkit::scenario::{self, Scenario};
use std::path::PathBuf;
use std::process::Command;

pub use flagos_comm_testkit::scenario::{Outcome, has, library, scratch};

/// A scenario of a program, as one process over complete stand-ins.
pub fn scenario(program: &'static str, name: &'static str) -> Scenario {
    scenario::scenario("native", program, name)
}

/// A variant of the library, built without optimisation into a folder of its own.
pub fn variant(name: &str, arguments: &[&str], env: &[(&str, &str)]) -> PathBuf {
    let dir = cargo::target_dir().join(name);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let out = Command::new(cargo)
        .args(["build", "--quiet", "-p", "flagos-comm-capi-flagos"])
        .args(["--config", "profile.dev.package.flagos-comm.opt-level=0"])
        .args(["--config", "profile.dev.debug=0"])
        .args(arguments)
        .envs(env.iter().copied())
        .arg("--target-dir")
        .arg(&dir)
        .current_dir(cargo::workspace())
        .output()
        .expect("cargo can be started");
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    dir.join("debug/libflagos_comm.so")
}
