//! `launch`: N copies of a command, with the environment that torchrun would give them.
#![forbid(unsafe_code)]

use crate::children::{Family, Patience, Source, describe};
use clap::Args;
use std::collections::HashMap;
use std::io::{IsTerminal, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Start N copies of a command on this machine
///
/// Each copy gets RANK, LOCAL_RANK (0 to N-1), WORLD_SIZE, LOCAL_WORLD_SIZE (both N), MASTER_ADDR
/// (127.0.0.1) and MASTER_PORT, as from torchrun, and leads a process group of its own. Lines of
/// output come out whole, with `[rank] ` before each. The first copy that fails ends all others
/// (SIGTERM, and SIGKILL after --grace); its exit code (128 + n for signal n) is the tool's.
/// Signals are passed on; SIGINT, SIGTERM, SIGHUP and SIGQUIT end the run. Nothing that a copy
/// started in its process group outlives the run, not even if the tool itself is killed.
///
/// The tool's own exit codes: 2 for bad arguments; 3 if a copy can't be started.
#[derive(Args, Clone, Debug)]
pub struct LaunchArgs {
    /// Number of copies
    #[arg(short = 'n', long = "ranks", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: u32,
    /// Do not put `[rank] ` before each line of output
    #[arg(long)]
    no_prefix: bool,
    /// MASTER_PORT for the copies [default: a free port; it is not held, so another program can
    /// take it in between]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Seconds between SIGTERM and SIGKILL when the run is ended
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = crate::cli::seconds)]
    grace: f64,
    /// The command and its arguments, after `--`
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<std::ffi::OsString>,
}

fn free_port() -> std::io::Result<u16> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?
        .local_addr()?
        .port())
}

/// Runs the command; the result is this process's exit code.
pub fn run(args: &LaunchArgs) -> Result<u8, String> {
    let patience = Patience {
        settle: Duration::ZERO,
        term: Duration::from_secs_f64(args.grace),
    };
    let mut family = Family::new(patience).map_err(|e| format!("launch: {e}"))?;
    let port = match args.port {
        Some(port) => port,
        None => free_port().map_err(|e| format!("launch: no free port: {e}"))?,
    };
    let terminal = std::io::stdin().is_terminal();
    for rank in 0..args.ranks as usize {
        let mut command = Command::new(&args.command[0]);
        command.args(&args.command[1..]);
        for (name, value) in [("RANK", rank), ("LOCAL_RANK", rank)] {
            command.env(name, value.to_string());
        }
        for name in ["WORLD_SIZE", "LOCAL_WORLD_SIZE"] {
            command.env(name, args.ranks.to_string());
        }
        command.env("MASTER_ADDR", "127.0.0.1");
        command.env("MASTER_PORT", port.to_string());
        // A process group in the background of a terminal would be stopped on reading from it.
        if rank > 0 || terminal {
            command.stdin(Stdio::null());
        }
        family
            .spawn(rank, &mut command, !args.no_prefix, &[])
            .map_err(|error| format!("launch: {}: {error}", args.command[0].to_string_lossy()))?;
    }
    let mut lines = Lines::default();
    let outcome = family
        .run(&mut |rank, source, bytes| lines.add(rank, source, bytes))
        .map_err(|e| format!("launch: {e}"))?;
    lines.finish();
    if outcome.signal.is_none()
        && let Some((rank, status)) = &outcome.first_failure
    {
        eprintln!("flagos-comm: launch: rank {rank} {}", describe(*status));
    }
    Ok(outcome.code())
}

/// Puts the rank before every line, and holds back a line until it is whole.
#[derive(Default)]
struct Lines {
    partial: HashMap<(usize, bool), Vec<u8>>,
}

/// A line longer than this is written in parts.
const LONGEST: usize = 1 << 16;

impl Lines {
    fn add(&mut self, rank: usize, source: Source, bytes: &[u8]) {
        let held = self
            .partial
            .entry((rank, source == Source::Err))
            .or_default();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            held.extend_from_slice(piece);
            if piece.ends_with(b"\n") || held.len() > LONGEST {
                write_line(rank, source, held);
                held.clear();
            }
        }
    }

    fn finish(&mut self) {
        let mut rest: Vec<_> = self
            .partial
            .drain()
            .filter(|(_, held)| !held.is_empty())
            .collect();
        rest.sort();
        for ((rank, err), held) in rest {
            write_line(rank, if err { Source::Err } else { Source::Out }, &held);
        }
    }
}

fn write_line(rank: usize, source: Source, line: &[u8]) {
    let mut text = format!("[{rank}] ").into_bytes();
    text.extend_from_slice(line);
    if !text.ends_with(b"\n") {
        text.push(b'\n');
    }
    // A reader that went away is no reason to end the ranks.
    let _ = match source {
        Source::Out => std::io::stdout().write_all(&text),
        Source::Err => std::io::stderr().write_all(&text),
    };
}
