//! Copies of a command live and die together.

use crate::{MARK, Ran, eventually, marked, run, signal, tool};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

#[test]
fn every_copy_gets_its_place() {
    let script = "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT";
    let ran = run(&[
        "launch", "-n", "3", "--port", "4242", "--", "sh", "-c", script,
    ]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let mut lines: Vec<&str> = ran.out.lines().collect();
    lines.sort_unstable();
    let wanted: Vec<String> = (0..3)
        .map(|r| format!("[{r}] {r} {r} 3 3 127.0.0.1 4242"))
        .collect();
    assert_eq!(lines, wanted);
}

#[test]
fn output_is_prefixed_by_line_and_kept_apart() {
    let script = "printf 'a\\nb'; printf 'x\\n' >&2";
    let ran = run(&["launch", "-n", "1", "--", "sh", "-c", script]);
    assert_eq!(
        (ran.code, ran.out.as_str(), ran.err.as_str()),
        (Some(0), "[0] a\n[0] b\n", "[0] x\n")
    );
    let ran = run(&["launch", "-n", "1", "--no-prefix", "--", "sh", "-c", script]);
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("a\nb", "x\n"));
}

#[test]
fn the_first_failure_ends_all_and_is_the_exit_code() {
    let started = Instant::now();
    let script = "if [ $RANK = 1 ]; then exit 7; fi; sleep 300";
    let ran = run(&["launch", "-n", "3", "--", "sh", "-c", script]);
    assert_eq!(ran.code, Some(7), "{}", ran.err);
    assert!(
        ran.err
            .contains("flagos-comm: launch: rank 1 ended with exit code 7"),
        "{}",
        ran.err
    );
    assert!(started.elapsed() < Duration::from_secs(60));
}

#[test]
fn death_by_a_signal_is_named() {
    let ran = run(&[
        "launch",
        "-n",
        "2",
        "--",
        "sh",
        "-c",
        "[ $RANK = 0 ] && kill -9 $$; sleep 300",
    ]);
    assert_eq!(ran.code, Some(137), "{}", ran.err);
    assert!(
        ran.err.contains("rank 0 was killed by signal 9 (SIGKILL)"),
        "{}",
        ran.err
    );
}

#[test]
fn a_copy_that_ignores_sigterm_is_killed_after_the_grace() {
    let script =
        "if [ $RANK = 1 ]; then sleep 0.3; exit 4; fi; trap '' TERM; sleep 300 & wait; wait";
    let ran = run(&[
        "launch", "-n", "2", "--grace", "0.2", "--", "sh", "-c", script,
    ]);
    assert_eq!(ran.code, Some(4), "{}", ran.err);
}

#[test]
fn a_program_that_does_not_exist_is_said_so() {
    let ran = run(&["launch", "-n", "2", "--", "/nowhere/program"]);
    assert_eq!(ran.code, Some(3));
    assert!(ran.err.contains("/nowhere/program"), "{}", ran.err);
}

/// Two copies, each with a child of its own.
fn with_grandchildren(mark: &str) -> Child {
    let script = "sleep 300 & echo ready; wait";
    let child = tool()
        .args(["launch", "-n", "2", "--", "sh", "-c", script])
        .env(MARK, mark)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the tool starts");
    // The tool, its keeper, two shells, two sleeps.
    eventually("all processes are there", || marked(mark).len() >= 6);
    child
}

#[test]
fn nothing_survives_a_kill_of_the_launcher() {
    let mark = format!("kill-{}", std::process::id());
    let mut child = with_grandchildren(&mark);
    child.kill().expect("killable");
    child.wait().expect("waitable");
    eventually("no orphan", || marked(&mark).is_empty());
}

#[test]
fn an_interrupt_ends_everything() {
    for (number, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143)] {
        let mark = format!("signal-{number}-{}", std::process::id());
        let child = with_grandchildren(&mark);
        signal(child.id(), number);
        let ran = Ran::from(child.wait_with_output().expect("waitable"));
        assert_eq!(ran.code, Some(code), "{}", ran.err);
        eventually("no orphan", || marked(&mark).is_empty());
    }
}

#[test]
fn other_signals_are_passed_on() {
    let mark = format!("usr1-{}", std::process::id());
    let script = "trap 'echo got; exit 0' USR1; echo ready; while :; do sleep 0.05; done";
    let mut child = tool()
        .args(["launch", "-n", "2", "--", "sh", "-c", script])
        .env(MARK, &mark)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the tool starts");
    let mut out = std::io::BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    for _ in 0..2 {
        std::io::BufRead::read_line(&mut out, &mut line).expect("a line");
    }
    signal(child.id(), libc::SIGUSR1);
    std::io::Read::read_to_string(&mut out, &mut line).expect("the rest");
    assert_eq!(child.wait().expect("waitable").code(), Some(0));
    assert_eq!(line.matches("got").count(), 2, "{line}");
}

#[test]
fn what_a_copy_leaves_behind_is_ended() {
    let mark = format!("left-{}", std::process::id());
    let script = "sleep 300 > /dev/null 2>&1 &";
    let output = tool()
        .args(["launch", "-n", "2", "--", "sh", "-c", script])
        .env(MARK, &mark)
        .output()
        .expect("the tool starts");
    assert_eq!(output.status.code(), Some(0));
    eventually("no orphan", || marked(&mark).is_empty());
}
