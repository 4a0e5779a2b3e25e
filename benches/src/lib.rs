//! What the benchmarks share: facts about the machine that stand beside every figure, and the comparison with other
//! libraries.

pub mod comparison;

use flagos_comm_testkit::cargo::{target_dir, workspace};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Cost of moving a cache line between two threads and speed of copying memory, at one moment.
///
/// Taken before and after a measurement: if they differ much, the machine changed under it.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// Nanoseconds for one hop of a cache line between two threads.
    pub line_ns: f64,
    /// Gigabytes per second that one thread copies (bytes copied, not moved over the bus).
    pub memcpy_gbs: f64,
}

impl Probe {
    /// Measures for about a fifth of a second.
    pub fn take() -> Probe {
        Probe {
            line_ns: ping_pong(),
            memcpy_gbs: copy_speed(),
        }
    }

    /// As the JSON reports have it.
    pub fn json(self) -> Value {
        json!({ "line_ns": self.line_ns, "memcpy_gbs": self.memcpy_gbs })
    }
}

#[repr(align(128))]
struct Line(AtomicU32);

fn wait_for(line: &Line, value: u32) {
    let mut spins = 0u32;
    while line.0.load(Ordering::Acquire) != value {
        spins += 1;
        if spins > 10_000 {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

/// The median of some rounds: where others run at the same time, a few of them are slow a thousandfold.
fn ping_pong() -> f64 {
    const ROUNDS: usize = 50;
    const HOPS: u32 = 4000;
    let mut rounds: Vec<f64> = Vec::new();
    let start = Instant::now();
    while rounds.len() < ROUNDS && start.elapsed() < Duration::from_millis(200) {
        rounds.push(ping_pong_round(HOPS));
    }
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

fn ping_pong_round(hops: u32) -> f64 {
    let line = Line(AtomicU32::new(0));
    let mut time = Duration::ZERO;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..hops / 2 {
                wait_for(&line, 2 * i + 1);
                line.0.store(2 * i + 2, Ordering::Release);
            }
        });
        // From the first hop that came back: until then the other thread was being started.
        let mut start = Instant::now();
        for i in 0..hops / 2 {
            line.0.store(2 * i + 1, Ordering::Release);
            wait_for(&line, 2 * i + 2);
            if i == 0 {
                start = Instant::now();
            }
        }
        time = start.elapsed();
    });
    time.as_nanos() as f64 / f64::from(hops - 2)
}

fn copy_speed() -> f64 {
    const BYTES: usize = 64 << 20;
    let from = vec![1u8; BYTES];
    let mut to = vec![2u8; BYTES];
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
        best = best.min(start.elapsed());
    }
    BYTES as f64 / best.as_secs_f64() / 1e9
}

/// Number of cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Name of the processor, as the kernel tells it.
pub fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    info.lines()
        .find(|line| line.starts_with("model name") || line.starts_with("CPU part"))
        .and_then(|line| line.split_once(':'))
        .map_or_else(|| "unknown".into(), |(_, name)| name.trim().into())
}

/// Date and time in UTC, for the head of a report.
pub fn date() -> String {
    first_line(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]))
        .unwrap_or_else(|| "unknown date".into())
}

/// The commit that the working tree stands on, with a `+` if it was changed.
pub fn commit() -> String {
    first_line(Command::new("git").current_dir(workspace()).args([
        "describe",
        "--always",
        "--dirty=+",
        "--exclude=*",
    ]))
    .unwrap_or_else(|| "unknown".into())
}

fn first_line(command: &mut Command) -> Option<String> {
    let out = command.output().ok()?;
    let text = String::from_utf8(out.stdout).ok()?;
    let line = text.lines().next()?.to_string();
    (out.status.success() && !line.is_empty()).then_some(line)
}

/// A program on `PATH`, if it is there.
pub fn find_program(name: &str) -> Option<PathBuf> {
    std::env::var_os("PATH").and_then(|path| {
        std::env::split_paths(&path)
            .map(|dir| dir.join(name))
            .find(|file| file.is_file())
    })
}

/// A folder for what a benchmark builds, under the target folder.
///
/// # Panics
/// If it can't be made.
pub fn scratch(name: &str) -> PathBuf {
    let dir = target_dir().join(name);
    std::fs::create_dir_all(&dir).expect("a folder under target can be made");
    dir
}

/// `8 B`, `64 KiB`, `16 MiB`.
pub fn size_name(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_names() {
        assert_eq!(size_name(8), "8 B");
        assert_eq!(size_name(1024), "1 KiB");
        assert_eq!(size_name(1500), "1500 B");
        assert_eq!(size_name(16 << 20), "16 MiB");
    }

    #[test]
    fn probes_are_plausible() {
        let probe = Probe::take();
        assert!(
            probe.line_ns > 0.1 && probe.memcpy_gbs > 0.01,
            "{}",
            probe.json()
        );
        assert!(cores() >= 1);
    }
}
