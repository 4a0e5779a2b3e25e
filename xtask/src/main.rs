//! Chores of this repository: `cargo run -p xtask -- <chore>`.
//!
//! A chore that rewrites committed files runs the test that compares them, told to write instead:
//! its tools stay dev-dependencies, and there is one generator.

use std::process::{Command, ExitCode};

const USAGE: &str = "usage: cargo run -p xtask -- header
  header   writes include/flagos_comm.h from capi/flagos";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["header"] => bless("header::is_what_cbindgen_makes"),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Runs one test of the C API's package with leave to write what it compares.
fn bless(test: &str) -> ExitCode {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["test", "--locked", "-p", "flagos-comm-capi-tests"])
        .args(["--test", "capi", "--", "--exact", test])
        .env("FLAGOSCOMM_BLESS", "1")
        .status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cargo can't be run: {error}");
            ExitCode::FAILURE
        }
    }
}
