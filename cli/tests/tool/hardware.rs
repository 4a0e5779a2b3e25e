//! The suite for real devices, `tests/hardware/run`, on the stand-ins. They are not hardware: this
//! shows that the suite works and that it notices faults, not that a vendor's library or a device
//! does anything. What was run on devices stands in docs/hardware.md.

use crate::{Ran, scratch};
use flagos_comm_testkit::Standins;
use flagos_comm_testkit::cargo::{libflagos, release, workspace};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

struct Suite {
    log: PathBuf,
    command: Command,
}

impl Drop for Suite {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.log);
    }
}

fn suite(name: &str, devices: &str, only: &str) -> Suite {
    let log = scratch(&format!("hardware-{name}"));
    let mut command = Command::new(workspace().join("tests/hardware/run"));
    command
        .arg(&log)
        .arg(env!("CARGO_BIN_EXE_flagos-comm"))
        .arg(libflagos());
    Standins::builder().build().env(&mut command);
    for name in ["RANK", "WORLD_SIZE", "GEMS_VENDOR", "HW_NCCL", "HW_CUDART"] {
        command.env_remove(name);
    }
    command
        .env("FAKE_DEVICES", devices)
        .env("HW_FLAGCX", release("libflagcx.so"))
        .env("HW_QUICK", "1")
        .env("HW_ONLY", only)
        .env("HW_DROP_IN", release("libnccl.so"));
    Suite { log, command }
}

impl Suite {
    fn run(&mut self) -> Ran {
        self.command.output().expect("bash starts").into()
    }
}

fn lines<'a>(ran: &'a Ran, word: &str) -> Vec<&'a str> {
    let word = format!("{word}  ");
    ran.out.lines().filter(|l| l.starts_with(&word)).collect()
}

fn json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).expect("the file was written");
    serde_json::from_str(&text).expect("valid JSON")
}

#[test]
fn everything_passes() {
    let mut suite = suite("all", "2", "");
    let ran = suite.command.env("HW_SYMMETRIC", "1").output();
    let ran = Ran::from(ran.expect("bash starts"));
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("# STAND-INS, NOT HARDWARE"), "{}", ran.out);
    for check in [
        "doctor-json-valid",
        "perf-processes",
        "perf-threads",
        "perf-single-thread",
        "host.processes.device_memory",
        "host.machines.device_memory",
        "staging.machines.ms",
        "graph.processes.global.all_reduce",
        "graph.processes.global.send_recv",
        "graph.processes.relaxed.barrier",
        "graph.threads.relaxed.all_reduce",
        "device.follow.set_outside",
        "device.threads.other_current",
        "device.one_thread.init_all",
        "copies.already_loaded.used",
        "copies.explicit.wins",
        "errors.group.refused_type",
        "errors.same_device.refused",
        "errors.memory.window_symmetric",
        "errors.abort.other_thread",
        "errors.killed.survivor",
        "cost.same_library",
        "cost.one_call",
        "cost.bandwidth",
        "flagcx-processes",
        "flagcx-threads",
        "flagcx-misuse",
        "plugin-processes",
        "plugin-threads",
        "plugin-misuse",
        "flagcx_cost.plugin_one_call",
        "flagcx_cost.libflagcx_one_call",
        "nccl.single.init_in_group",
        "nccl.single.end",
        "nccl.processes.operations",
        "nccl.processes.memory",
        "nccl.nonblocking.split",
        "drop_in.same_library",
        "drop_in.bandwidth",
    ] {
        let wanted = format!("PASS  {check}  ");
        assert!(
            ran.out.lines().any(|l| l.starts_with(&wanted)),
            "no {check}:\n{}",
            ran.out
        );
    }
    let skipped = lines(&ran, "SKIP");
    assert_eq!(
        skipped,
        ["SKIP  torch  stand-ins", "SKIP  torch_nccl  stand-ins"],
        "{}",
        ran.out
    );
    let cost = json(&suite.log.join("cost.json"));
    assert_eq!(cost["standin"], 1);
    assert!(cost["bandwidth"].as_array().is_some_and(|r| r.len() > 3));
    let svg = std::fs::read_to_string(suite.log.join("cost.svg")).expect("it was drawn");
    assert!(
        svg.starts_with("<svg") && svg.contains("stand-in, not hardware"),
        "{svg}"
    );
    let report = json(&suite.log.join("load-report.already-loaded.json"));
    assert!(report.to_string().contains("already-loaded"), "{report}");
}

#[test]
fn a_fault_of_the_vendors_library_is_noticed() {
    let mut suite = suite("fault", "2", "graph cost flagcx plugin nccl");
    suite
        .command
        .env("FAKE_FAIL", "ncclAllReduce:3@2+")
        .env("HW_PATIENCE", "10");
    let ran = suite.run();
    assert_eq!(ran.code, Some(1), "{}{}", ran.out, ran.err);
    for name in [
        "graph.processes.global",
        "graph.threads.relaxed",
        "cost",
        "flagcx-processes",
        "plugin-processes",
        "flagcx_cost",
        "nccl.single",
        "nccl.processes",
        "drop_in",
    ] {
        assert!(
            lines(&ran, "FAIL").iter().any(|l| l.contains(name)),
            "no failure of {name}:\n{}",
            ran.out
        );
    }
}

#[test]
fn one_device_skips_what_needs_two() {
    let mut suite = suite("one", "1", "doctor perf host graph device copies");
    let ran = suite.run();
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    assert!(
        lines(&ran, "SKIP")
            .iter()
            .any(|l| l.contains("graph.processes.global")),
        "{}",
        ran.out
    );
    assert!(
        lines(&ran, "PASS")
            .iter()
            .any(|l| l.contains("host.shared_device")),
        "{}",
        ran.out
    );
}

#[test]
fn no_device_is_a_failure() {
    let mut suite = suite("none", "0", "graph");
    let ran = suite.run();
    assert_eq!(ran.code, Some(1), "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("FAIL  machine  "), "{}", ran.out);
}
