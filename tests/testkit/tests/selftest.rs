//! The stand-ins do what the real libraries do, as far as one machine without hardware can tell.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use flagos_comm_testkit::standins::{Broken, CallLog, Standins};
use flagos_comm_testkit::{cargo, ranks};

const DEADLINE: Duration = Duration::from_secs(60);

fn program(name: &str, standins: &Standins) -> PathBuf {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    standins.compile_program(
        &cargo::workspace().join("tests/fakevendor/selftest.c"),
        &out,
    );
    out
}

fn selftest(exe: &Path, standins: &Standins, what: &str) -> Command {
    let mut c = Command::new(exe);
    c.arg(what);
    standins.env(&mut c);
    c
}

fn exports(file: &Path) -> Vec<String> {
    let out = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(file)
        .output()
        .expect("nm runs");
    String::from_utf8_lossy(&out.stdout)
        .lines()
        .filter_map(|l| l.split_whitespace().nth(2))
        .map(|s| s.split('@').next().unwrap_or(s).to_owned())
        .collect()
}

#[test]
fn processes_threads_memory_streams_and_graphs() {
    for major in [13, 12] {
        let s = Standins::builder().cudart_major(major).build();
        let exe = program(&format!("all{major}"), &s);
        ranks::run_ok(1, |_| selftest(&exe, &s, "all"), DEADLINE);
        let _ = std::fs::remove_file(exe);
    }
}

#[test]
fn calls_fail_on_request_and_are_logged() {
    let s = Standins::builder().build();
    let exe = program("fail", &s);
    let log = exe.with_extension("log");
    let _ = std::fs::remove_file(&log);
    ranks::run_ok(
        1,
        |_| {
            let mut c = selftest(&exe, &s, "fail");
            c.env("FAKE_FAIL", "ncclCommCount:3@2,cudaMalloc:2")
                .env("FAKE_LOG", &log);
            c
        },
        DEADLINE,
    );
    let calls = CallLog::read(&log);
    let counts: Vec<_> = calls
        .iter()
        .filter(|c| c.name == "ncclCommCount")
        .map(|c| (c.device, c.result))
        .collect();
    assert_eq!(
        counts,
        [(Some(0), Some(0)), (Some(0), Some(3)), (Some(0), Some(0))]
    );
    assert!(
        calls
            .iter()
            .any(|c| c.name == "cudaMalloc" && c.args.ends_with(", 1") && c.result == Some(2))
    );
    let _ = std::fs::remove_file(log);
    let _ = std::fs::remove_file(exe);
}

#[test]
fn calls_after_the_drivers_end_are_caught() {
    let s = Standins::builder().build();
    let exe = program("late", &s);
    for (check, ok) in [("0", true), ("1", false)] {
        let out = ranks::run(
            1,
            |_| {
                let mut c = selftest(&exe, &s, "late");
                c.env("FAKE_EXIT_CHECK", check);
                c
            },
            DEADLINE,
        );
        assert_eq!(out[0].ok(), ok, "{}", ranks::report(&out));
        assert_eq!(
            out[0].stderr.contains("after the driver was torn down"),
            !ok
        );
    }
    let _ = std::fs::remove_file(exe);
}

#[test]
fn symbols_can_be_left_out() {
    let full = exports(&Standins::builder().build().nccl());
    assert!(
        full.iter().any(|s| s == "ncclCommAbort") && full.iter().all(|s| s.starts_with("nccl"))
    );
    let some = Standins::builder()
        .omit("ncclCommAbort")
        .omit("cudaStreamGetDevice")
        .build();
    let names = exports(&some.nccl());
    assert_eq!(names.len(), full.len() - 1);
    assert!(!names.iter().any(|s| s == "ncclCommAbort"));
    assert!(
        !exports(&some.cudart())
            .iter()
            .any(|s| s == "cudaStreamGetDevice")
    );
    let old = exports(&Standins::builder().nccl_version(21803).build().nccl());
    assert!(old.iter().any(|s| s == "ncclCommSplit") && !old.iter().any(|s| s == "ncclMemAlloc"));
    let bare = Standins::builder().bare().build();
    let mut names = exports(&bare.nccl());
    let mut all = full.clone();
    names.sort();
    all.sort();
    assert_eq!(names, all);
}

#[test]
fn broken_files_and_missing_drivers() {
    for how in [
        Broken::Text,
        Broken::MissingDependency,
        Broken::Truncated,
        Broken::Empty,
    ] {
        let s = Standins::builder().broken_nccl(how).build();
        assert!(s.nccl().is_file() && !s.dir.join("libfoo.so.9").exists());
    }
    let none = Standins::builder().without("libcuda.so.1").build();
    assert!(!none.cuda().exists() && none.cudart().is_file());
}

#[test]
fn ranks_are_killed_at_the_deadline() {
    let out = ranks::run(
        2,
        |rank| {
            let mut c = Command::new("sh");
            c.args([
                "-c",
                if rank == 0 {
                    "echo here; exit 3"
                } else {
                    "echo stuck; sleep 100"
                },
            ]);
            c
        },
        Duration::from_millis(300),
    );
    assert_eq!(
        (
            out[0].status.code(),
            out[0].timed_out,
            out[0].stdout.as_str()
        ),
        (Some(3), false, "here\n")
    );
    assert!(out[1].timed_out && out[1].stdout == "stuck\n" && !out[1].ok());
}
