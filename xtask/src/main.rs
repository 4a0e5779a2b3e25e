//! Chores of this repository: `cargo run -p xtask -- <chore>`.
//!
//! A chore that rewrites committed files runs the test that compares them, told to write instead:
//! its tools stay dev-dependencies, and there is one generator.

mod install;

use std::process::{Command, ExitCode};

const USAGE: &str = "usage: cargo run -p xtask -- CHORE
  header   writes include/flagos_comm.h from capi/flagos
  vendors  writes the tables of docs/discovery.md from the vendors' rows
  env      writes docs/environment.md from the table of variables
  abi      compares what the engine declares of vendors' libraries with their C declarations
  abi-baseline   makes the C interface as it is now the baseline that later ones are compared with (capi/abi)
  install, uninstall   see --help of these";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["header"] => test(
            &["flagos-comm-capi-tests", "--test", "capi"],
            &["--exact", "header::is_what_cbindgen_makes"],
        ),
        ["abi-baseline"] => test(
            &["flagos-comm-capi-tests", "--test", "capi"],
            &["baseline_has", "numbers_of_its_baseline", "--nocapture"],
        ),
        ["vendors"] => test(
            &["flagos-comm", "--lib"],
            &["--exact", "load::page::the_tables_are_current"],
        ),
        ["env"] => test(
            &["flagos-comm", "--lib"],
            &["--exact", "config::tests::the_page_is_current"],
        ),
        ["abi"] => test(
            &["xtask", "--test", "abi"],
            &["--nocapture", "--test-threads=1"],
        ),
        ["install" | "uninstall", "--help" | "-h"] => {
            println!("{}", install::USAGE);
            ExitCode::SUCCESS
        }
        ["install", rest @ ..] => done(install::install(rest)),
        ["uninstall", rest @ ..] => done(install::uninstall(rest)),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn done(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Runs tests of a package, those that compare a file with leave to write it.
fn test(package: &[&str], arguments: &[&str]) -> ExitCode {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["test", "--locked", "-p"])
        .args(package)
        .arg("--")
        .args(arguments)
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
