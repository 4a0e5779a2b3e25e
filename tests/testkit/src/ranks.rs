//! Ranks as processes, under a deadline.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How one rank ended.
#[derive(Debug)]
pub struct Output {
    /// The rank.
    pub rank: usize,
    /// Its exit status; after the deadline that of the kill.
    pub status: ExitStatus,
    /// It was still running at the deadline.
    pub timed_out: bool,
    /// What it wrote to its standard output.
    pub stdout: String,
    /// What it wrote to its standard error.
    pub stderr: String,
}

impl Output {
    /// The rank ended by itself with exit code 0.
    pub fn ok(&self) -> bool {
        self.status.success() && !self.timed_out
    }
}

fn drain(from: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            let _ = from.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn kill_group(child: &Child) {
    // SAFETY: kill has no memory effects; the group is the one that the child leads.
    unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
}

/// Starts `n` processes made by `command`, each leading a process group of its own, and waits for all of them. At the
/// deadline those still running are killed with everything they started.
///
/// # Panics
/// If a process can't be started.
pub fn run(n: usize, mut command: impl FnMut(usize) -> Command, timeout: Duration) -> Vec<Output> {
    let deadline = Instant::now() + timeout;
    let mut running = Vec::new();
    for rank in 0..n {
        let mut command = command(rank);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        match command.spawn() {
            Ok(mut child) => {
                let (out, err) = (drain(child.stdout.take()), drain(child.stderr.take()));
                running.push((child, None, out, err));
            }
            Err(e) => {
                for (child, ..) in &mut running {
                    kill_group(child);
                    let _ = child.wait();
                }
                panic!("rank {rank}: {command:?}: {e}");
            }
        }
    }
    loop {
        for (child, status, ..) in &mut running {
            if status.is_none() {
                *status = child
                    .try_wait()
                    .expect("a child of ours can be waited for")
                    .map(|s| (s, false));
            }
        }
        if running.iter().all(|r| r.1.is_some()) {
            break;
        }
        if Instant::now() >= deadline {
            for (child, status, ..) in &mut running {
                if status.is_none() {
                    kill_group(child);
                    *status = Some((
                        child
                            .wait()
                            .unwrap_or_else(|_| ExitStatus::from_raw(libc::SIGKILL)),
                        true,
                    ));
                }
            }
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    running
        .into_iter()
        .enumerate()
        .map(|(rank, (_, status, out, err))| {
            let (status, timed_out) = status.expect("every rank has ended");
            Output {
                rank,
                status,
                timed_out,
                stdout: out.join().unwrap_or_default(),
                stderr: err.join().unwrap_or_default(),
            }
        })
        .collect()
}

/// What all ranks did, in words, for the message of a failed assertion.
pub fn report(outputs: &[Output]) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    for o in outputs {
        let _ = writeln!(
            text,
            "--- rank {}: {}{}",
            o.rank,
            o.status,
            if o.timed_out { " (deadline)" } else { "" }
        );
        for (name, what) in [("stdout", &o.stdout), ("stderr", &o.stderr)] {
            if !what.is_empty() {
                let _ = writeln!(text, "{name}:\n{}", what.trim_end());
            }
        }
    }
    text
}

/// Like [`run`], and every rank must end by itself with exit code 0.
///
/// # Panics
/// With the report of all ranks if one of them did not.
pub fn run_ok(n: usize, command: impl FnMut(usize) -> Command, timeout: Duration) -> Vec<Output> {
    let outputs = run(n, command, timeout);
    assert!(outputs.iter().all(Output::ok), "{}", report(&outputs));
    outputs
}
