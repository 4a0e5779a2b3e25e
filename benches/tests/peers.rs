//! The comparison with other libraries runs, is right about the results of both sides, and writes what it measured.
//! Its times are not looked at.

use flagos_comm_benches::comparison::{OPERATIONS, PEERS};
use flagos_comm_testkit::cargo::{libflagos, target_dir};
use serde_json::Value;
use std::process::Command;

#[test]
fn the_comparison_with_peers_runs_every_operation_that_they_have() {
    let out = target_dir().join("peers-test");
    let _ = std::fs::remove_dir_all(&out);
    let ran = Command::new(env!("CARGO_BIN_EXE_peers"))
        .args(["--sizes", "1024", "--pairs", "3", "--block", "0.0002"])
        .arg("--lib")
        .arg(libflagos())
        .arg("--out")
        .arg(&out)
        .output()
        .expect("the program was built");
    let told = String::from_utf8_lossy(&ran.stderr);
    let report = match std::fs::read_to_string(out.join("peers.json")) {
        Ok(report) => report,
        Err(error) => panic!("no report: {error}\n{told}"),
    };
    let report: Value = serde_json::from_str(&report).expect("a report is JSON");
    let texts = |key: &str| report[key].as_array().cloned().unwrap_or_default();
    let missing = texts("missing");
    for sentence in &missing {
        println!(
            "SKIPPED: {}",
            sentence
                .as_str()
                .unwrap_or_default()
                .lines()
                .next()
                .unwrap_or_default()
        );
    }
    let asked: Vec<_> = PEERS.into_iter().filter(|p| !p.only_if_named).collect();
    if missing.len() == asked.len() {
        assert!(!ran.status.success(), "nothing was compared: {told}");
        return;
    }
    assert!(ran.status.success(), "{told}");

    for peer in asked {
        if missing.iter().any(|m| {
            m.as_str()
                .is_some_and(|m| m.contains(&format!("PEER: {} ", peer.key)))
        }) {
            continue;
        }
        for operation in OPERATIONS.map(|o| o.name()) {
            let absent = match peer.key {
                "ucx" => ["all-to-all", "broadcast"].contains(&operation),
                "gloo" => operation == "reduce-scatter",
                _ => false,
            };
            let here =
                |row: &&Value| row["peer"] == peer.key && row["result"]["operation"] == operation;
            let rows = texts("rows")
                .iter()
                .filter(here)
                .cloned()
                .collect::<Vec<_>>();
            assert_eq!(
                rows.len(),
                usize::from(!absent),
                "{operation} of {}: {rows:?}",
                peer.key
            );
            let said = texts("absent")
                .iter()
                .any(|a| a["peer"] == peer.key && a["operation"] == operation);
            assert_eq!(said, absent, "{operation} of {}", peer.key);
            if let [row] = &rows[..] {
                let median = row["result"]["ratio"]["median"].as_f64();
                assert!(median.is_some_and(|m| m > 0.0), "{row}");
            }
        }
    }
    let svg = std::fs::read_to_string(out.join("peers.svg")).expect("there is a plot");
    assert!(
        svg.contains("all-reduce") && svg.contains("stream"),
        "panels have names"
    );
}
