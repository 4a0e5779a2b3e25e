//! The report on a machine.

use crate::{Ran, run, tool};
use serde_json::Value;

#[test]
fn the_report_has_every_section_and_passes_here() {
    let ran = run(&["doctor"]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    for section in [
        "machine",
        "environment",
        "network interfaces",
        "looked for",
        "devices",
        "two-rank test on the host tier",
        "verdict",
    ] {
        assert!(
            ran.out.lines().any(|line| line == section),
            "{section}: {}",
            ran.out
        );
    }
    assert!(ran.out.contains("  passed in "), "{}", ran.out);
    assert!(ran.out.contains("The host tier works"), "{}", ran.out);
}

#[test]
fn the_report_says_where_it_looked() {
    let ran = run(&["doctor"]);
    assert!(
        ran.out.contains("nvidia") && ran.out.contains(".so"),
        "{}",
        ran.out
    );
}

#[test]
fn the_report_is_valid_json_and_shows_the_environment() {
    let output = tool()
        .args(["doctor", "--json"])
        .env("FLAGOSCOMM_TIMEOUT", "20")
        .env("GEMS_VENDOR", "nvidia")
        .env("UNRELATED_SECRET", "x")
        .output()
        .expect("the tool starts");
    let ran = Ran::from(output);
    let value: Value = serde_json::from_str(&ran.out).expect("valid JSON");
    assert_eq!(value["format"], "flagos-comm doctor 1");
    assert_eq!(value["environment"]["FLAGOSCOMM_TIMEOUT"], "20");
    assert_eq!(value["environment"]["GEMS_VENDOR"], "nvidia");
    assert!(!ran.out.contains("UNRELATED_SECRET"));
    assert!(value["load_report"].is_object() || value["load_report"].is_array());
    assert_eq!(value["self_test"]["passed"], true, "{}", ran.out);
}

#[test]
fn a_variable_that_is_none_of_ours_is_named() {
    let mut command = tool();
    command.arg("doctor");
    command.env("FLAGOSCOMM_TIMOUT", "3");
    command.env("FLAGOSCOMM_NVIDIA_LIBRARY", "");
    let ran = Ran::from(command.output().expect("the tool starts"));
    assert!(
        ran.out
            .contains("FLAGOSCOMM_TIMOUT is no variable of flagos-comm"),
        "{}",
        ran.out
    );
    assert!(
        !ran.out.contains("FLAGOSCOMM_NVIDIA_LIBRARY is no variable"),
        "{}",
        ran.out
    );
}
