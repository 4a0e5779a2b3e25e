//! The command line: subcommands, and the values that several of them parse.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};

/// Collective communication on any accelerator: measure it, check it, find out what it runs on
#[derive(Parser, Debug)]
#[command(name = "flagos-comm", version, max_term_width = 100)]
pub struct Cli {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    Perf(Box<crate::perf::args::PerfArgs>),
    Launch(crate::launch::LaunchArgs),
    Doctor(crate::doctor::DoctorArgs),
}

/// A size in bytes with an optional suffix K, M or G (powers of 1024).
///
/// # Errors
/// What is wrong with the text.
pub fn bytes(text: &str) -> Result<usize, String> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        other => return Err(format!("'{other}' is no suffix; K, M and G are")),
    };
    digits
        .parse::<usize>()
        .map_err(|e| e.to_string())?
        .checked_mul(1 << shift)
        .ok_or_else(|| "too large".to_owned())
}

/// A positive number of seconds.
///
/// # Errors
/// What is wrong with the text.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= 1e7 => Ok(value),
        Ok(_) => Err("not a positive number of seconds".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_suffixes() {
        assert_eq!(bytes("8"), Ok(8));
        assert_eq!(bytes("4K"), Ok(4096));
        assert_eq!(bytes("4m"), Ok(4 << 20));
        assert_eq!(bytes("1GiB"), Ok(1 << 30));
        assert!(bytes("").is_err());
        assert!(bytes("-1").is_err());
        assert!(bytes("3T").unwrap_err().contains("suffix"));
        assert!(bytes("99999999999999999G").is_err());
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
