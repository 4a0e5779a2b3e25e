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
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("not a whole number, with K, M or G behind it or nothing".to_owned());
    }
    // Digits that are no number are too many.
    let number = digits.parse::<usize>().ok();
    number
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or_else(|| "too large".to_owned())
}

/// A positive number of seconds.
///
/// # Errors
/// What is wrong with the text.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= 1e7 => Ok(value),
        Ok(_) => Err("must be above 0 and at most 10000000 seconds".to_owned()),
        Err(_) => Err("not a number of seconds".to_owned()),
    }
}

/// What a size is multiplied with to get the next.
///
/// # Errors
/// What is wrong with the text.
pub fn factor(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(value @ 2..) => Ok(value),
        Ok(_) => Err("must be 2 or more".to_owned()),
        Err(_) => Err("not a whole number from 2 on".to_owned()),
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
        for text in ["", "K", "-1", "1.5K", "+1"] {
            assert!(bytes(text).unwrap_err().contains("whole number"), "{text}");
        }
        assert!(bytes("3T").unwrap_err().contains("suffix"));
        for text in ["99999999999999999G", "99999999999999999999"] {
            assert_eq!(bytes(text).unwrap_err(), "too large");
        }
    }

    #[test]
    fn seconds_and_factors_say_what_they_may_be() {
        assert_eq!((seconds("0.5"), factor("2")), (Ok(0.5), Ok(2)));
        assert_eq!(seconds("x").unwrap_err(), "not a number of seconds");
        for text in ["0", "-1", "1e30", "nan"] {
            let error = seconds(text).unwrap_err();
            assert_eq!(
                error, "must be above 0 and at most 10000000 seconds",
                "{text}"
            );
        }
        assert_eq!(factor("1").unwrap_err(), "must be 2 or more");
        assert!(factor("1.5").unwrap_err().contains("whole number"));
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
