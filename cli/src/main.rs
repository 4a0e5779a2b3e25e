//! The flagos-comm tool.

mod children;
mod cli;
mod doctor;
mod launch;
mod library;
mod perf;
mod ranks;
mod survey;
mod sys;
mod words;

use clap::Parser;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

/// Exit code for bad arguments.
const USAGE: u8 = 2;
/// Exit code for everything else that went wrong.
const FAILED: u8 = 3;

/// The process's arguments; `-c 1` of nccl-tests becomes `-c=1`, so that an operation can follow
/// a bare `--check`.
fn arguments() -> impl Iterator<Item = OsString> {
    let mut rest = std::env::args_os().peekable();
    std::iter::from_fn(move || {
        let argument = rest.next()?;
        if (argument == "-c" || argument == "--check")
            && let Some(value) = rest.next_if(|next| next == "0" || next == "1")
        {
            let mut joined = argument;
            joined.push("=");
            joined.push(value);
            return Some(joined);
        }
        Some(argument)
    })
}

fn main() -> ExitCode {
    // The engine's warnings go to stderr as they do from the C library (FLAGOSCOMM_LOG).
    flagos_comm::internal::install_log_sink();
    let result = match cli::Cli::parse_from(arguments()).command {
        cli::Command::Perf(args) => perf::run(&args),
        cli::Command::Launch(args) => launch::run(&args).map_err(|text| (FAILED, text)),
        cli::Command::Doctor(args) => doctor::run(&args).map_err(|text| (FAILED, text)),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err((code, text)) => {
            // In one piece: others write beside it, and what ends the ranks comes soon after the first failure.
            let line = format!("flagos-comm: {text}\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            ExitCode::from(code)
        }
    }
}
