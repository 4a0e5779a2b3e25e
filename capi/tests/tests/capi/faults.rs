//! Programs that meet what went wrong elsewhere: a preloaded library, a host that aborts on panics, Ctrl-C.

use crate::drop_in::nccl_that_calls_itself;
use flagos_comm_capi_tests::{c_program, cargo, compiler, have, library, root, run, scratch};
use flagos_comm_testkit::cargo::target_dir;
use flagos_comm_testkit::standins::Standins;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// LD-7: our names in front of everything do not change what a vendor's library calls inside itself.
#[test]
fn a_preloaded_library_does_not_come_between_a_vendor_and_itself() {
    if !have("gcc") {
        return;
    }
    let standins = Standins::builder().build();
    let dir = scratch("preload");
    let nccl = dir.join("libnccl.so.2");
    nccl_that_calls_itself(&nccl, &[], &[]);
    let exe = dir.join("preloaded");
    run(compiler("gcc", "gnu11")
        .arg(root().join("tests/c/preloaded.c"))
        .args(["-ldl", "-o"])
        .arg(&exe));
    let output = run(standins
        .env(&mut Command::new(&exe))
        .env("LD_PRELOAD", library())
        .env("FLAGOSCOMM_NVIDIA_LIBRARY", &nccl)
        .env("FLAGOSCOMM_TIERS", "native"));
    let said = String::from_utf8_lossy(&output.stderr);
    for who in ["constructor", "ncclCommDestroy"] {
        assert!(said.contains(&format!("{who} asked itself")), "{said}");
    }
}

/// LD-4: with panics that abort, a machine without a driver is still normal data.
#[test]
fn a_program_that_aborts_on_panics_works_without_a_driver() {
    run(cargo().args([
        "build",
        "--quiet",
        "--locked",
        "--profile",
        "panic-abort",
        "-p",
        "flagos-comm",
        "--example",
        "allreduce",
    ]));
    let output = run(
        Command::new(target_dir().join("panic-abort/examples/allreduce"))
            .arg("2")
            .env("LD_LIBRARY_PATH", "")
            .env_remove("GEMS_VENDOR"),
    );
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("panicked"), "{said}");
}

/// HG-1: a C program that waits for a rank is ended by Ctrl-C.
#[test]
fn ctrl_c_ends_a_waiting_c_program() {
    let dir = scratch("waits");
    let exe = c_program(&root().join("tests/c/waits.c"), &[], &dir);
    // A shell's background jobs ignore the signal, and so would what they start.
    let mut child = Command::new("env")
        .arg("--default-signal=INT")
        .arg(&exe)
        .env("FLAGOSCOMM_TIERS", "host")
        .env("FLAGOSCOMM_TIMEOUT", "60")
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe"))
        .read_line(&mut line)
        .expect("a line");
    assert_eq!(line, "waiting\n");
    std::thread::sleep(Duration::from_millis(200));
    run(Command::new("kill").args(["-INT", &child.id().to_string()]));
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child of ours") {
            break status;
        }
        if begin.elapsed() > Duration::from_secs(10) {
            let _ = child.kill();
            let _ = child.wait();
            panic!("SIGINT did not end the program");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(status.signal(), Some(2), "{status}");
}

/// docs/bug-reports.md names tests that exist. (It calls the files of `tests/native` by name only.)
#[test]
fn the_page_of_bug_reports_names_tests_that_exist() {
    let page = std::fs::read_to_string(root().join("docs/bug-reports.md")).expect("the page");
    let mut code = String::new();
    let mut folders = ["src", "capi", "tests", "cli"]
        .map(|d| root().join(d))
        .to_vec();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                code.push_str(&std::fs::read_to_string(path).expect("a source"));
            }
        }
    }
    let mut names = 0;
    for name in page.split('`').skip(1).step_by(2) {
        let is_name = name.contains('_')
            && name
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        if is_name {
            names += 1;
            let known = [format!("fn {name}("), format!("\n    {name}\n")];
            assert!(known.iter().any(|k| code.contains(k)), "no test {name}");
        }
    }
    assert!(names > 100, "only {names} tests are named");
}
