//! Runs the built tool.

mod arguments;
mod doctor;
mod hardware;
mod launch;
mod native;
mod perf;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The tool, with none of the variables that would make it a rank of something.
fn tool() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flagos-comm"));
    for name in [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "OMPI_COMM_WORLD_RANK",
        "PMI_RANK",
        "SLURM_PROCID",
        "GEMS_VENDOR",
        "FLAGOSCOMM_TIERS",
    ] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        Ran {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).expect("stdout is UTF-8"),
            err: String::from_utf8(output.stderr).expect("stderr is UTF-8"),
        }
    }
}

fn run(arguments: &[&str]) -> Ran {
    tool()
        .args(arguments)
        .output()
        .expect("the tool starts")
        .into()
}

/// A path for a file of this test process.
fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("flagos-comm-tool-{}-{name}", std::process::id()))
}

/// Variable by which a test finds the processes that it has started, and theirs.
const MARK: &str = "TOOL_TEST_MARK";

/// Processes of this machine that have the mark in their environment.
fn marked(mark: &str) -> Vec<u32> {
    let wanted = format!("{MARK}={mark}");
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment
            .split(|byte| *byte == 0)
            .any(|one| one == wanted.as_bytes())
        {
            found.push(pid);
        }
    }
    found
}

/// Waits until the condition holds.
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "still not: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn signal(pid: u32, signal: i32) {
    // SAFETY: a plain system call on a process of this test.
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
}
