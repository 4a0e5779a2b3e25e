//! The device index (designs 18 and 19). What is asked for is a parameter of each check, so that the last test can show
//! that these checks find a library that remembers the current device.

use crate::kit::{Outcome, has, library, scenario, variant};
use flagos_comm_testkit::{Call, Standins};
use std::path::Path;

/// Names of the calls with the device that each of them sets.
fn sets_and_calls(calls: &[&Call]) -> Vec<String> {
    calls
        .iter()
        .filter(|c| c.name == "cudaSetDevice" || c.name.starts_with("nccl"))
        .filter(|c| c.name != "ncclGetLastError")
        .map(|c| match c.name.as_str() {
            "cudaSetDevice" => format!("set({})", c.args),
            name => format!("{name} on {}", c.device.map_or(-1, |d| d as i32)),
        })
        .collect()
}

fn moved(library: &Path) {
    scenario("device", "moved").library(library).ok();
}

fn bound(library: &Path) {
    let outcome = scenario("device", "bound").library(library).ok();
    // The word of its barriers was allocated at init, on its device.
    assert_eq!(outcome.calls("cudaMalloc")[0].device, Some(2));
    for calls in outcome.between("barrier") {
        let names: Vec<&str> = calls.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["cudaStreamIsCapturing", "ncclAllReduce"]);
    }
    // The library switches by itself: no driver call of ours stands before or after it.
    for calls in outcome.between("reduce") {
        let names: Vec<&str> = calls.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["ncclAllReduce"]);
    }
}

fn barrier_first(library: &Path) {
    let outcome = scenario("device", "barrier_first")
        .library(library)
        .ranks(3)
        .ok();
    let barriers = outcome.between("barrier");
    assert_eq!(barriers.len(), 6);
    for calls in &barriers {
        let names: Vec<&str> = calls.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["cudaStreamIsCapturing", "ncclAllReduce"]);
    }
    // The words of the barriers, of each rank and of its child, are on the bound devices.
    let words = outcome.calls("cudaMalloc");
    let mut devices: Vec<u32> = words.iter().filter_map(|c| c.device).collect();
    devices.sort_unstable();
    assert_eq!(devices, [1, 1, 2, 2, 3, 3]);
}

fn guard(library: &Path) {
    let outcome = scenario("device", "guard")
        .library(library)
        .env("FLAGOSCOMM_DEVICE", "guard")
        .ok();
    for place in ["first", "second"] {
        let calls = sets_and_calls(&outcome.between(place)[0]);
        assert_eq!(
            calls,
            ["set(1)", "ncclAllReduce on 1", "set(0)"],
            "{place} thread"
        );
    }
    assert_eq!(
        sets_and_calls(&outcome.between("same")[0]),
        ["ncclAllReduce on 1"]
    );
}

fn failing(library: &Path, fail: &str) -> Outcome {
    scenario("device", "guard_fails")
        .library(library)
        .env("FLAGOSCOMM_DEVICE", "guard")
        .env("FAKE_FAIL", fail)
        .ok()
}

fn restore(library: &Path) {
    let before: u32 = failing(library, "none:0")
        .said("sets before")
        .parse()
        .expect("a number");
    // One that ends the communicator, and one that doesn't.
    for code in ["3", "4"] {
        let outcome = failing(library, &format!("ncclAllReduce:{code}@1"));
        assert_eq!(
            (outcome.said("result"), outcome.said("current")),
            (code, "2")
        );
        let words = format!("ncclAllReduce failed with {code}");
        has(outcome.said("text"), &[&words]);
    }

    let outcome = failing(library, &format!("cudaSetDevice:101@{}", before + 1));
    assert_eq!(
        (outcome.said("result"), outcome.said("current")),
        ("1", "2")
    );
    has(
        outcome.said("text"),
        &[
            "making device 1 current",
            "cudaSetDevice failed with 101",
            "libcudart",
        ],
    );
    // Nothing was launched on the wrong device, nor after it.
    assert!(outcome.calls("ncclAllReduce").is_empty());

    let outcome = failing(library, &format!("cudaSetDevice:101@{}", before + 2));
    assert_eq!(outcome.said("result"), "1");
    has(
        outcome.said("text"),
        &["putting the calling thread's device back", "101"],
    );
}

fn refuse(library: &Path) {
    scenario("device", "refuse")
        .library(library)
        .env("FLAGOSCOMM_DEVICE", "error")
        .ok();
}

/// Another hand moves the device between two calls: the answer is the new one, always.
#[test]
fn get_device_always_asks() {
    moved(&library());
}

/// The communicator's device is that of its init, whatever is current later, and the caller's stays what it was.
#[test]
fn communicators_stay_on_the_device_of_their_init() {
    bound(&library());
}

#[test]
fn a_thread_that_was_never_bound_stays_so() {
    scenario("device", "unbound_thread").ok();
}

/// DV-2.
#[test]
fn barrier_first_uses_the_bound_device_also_in_a_child() {
    barrier_first(&library());
}

/// DV-3.
#[test]
fn guard_sets_calls_and_restores_on_every_thread() {
    guard(&library());
}

/// DV-3: the vendor's call, the set and the restore fail.
#[test]
fn the_callers_device_survives_injected_failures() {
    restore(&library());
}

/// A barrier that the vendor or the driver refuses.
#[test]
fn a_failing_barrier_leaves_the_device_alone() {
    for (fail, mode, text) in [
        ("ncclAllReduce:1@1", "trust", "ncclAllReduce"),
        ("ncclAllReduce:1@1", "guard", "ncclAllReduce"),
        (
            "cudaStreamIsCapturing:700@1",
            "trust",
            "cudaStreamIsCapturing failed with 700",
        ),
        (
            "cudaStreamIsCapturing:700@1",
            "guard",
            "cudaStreamIsCapturing failed with 700",
        ),
    ] {
        let outcome = scenario("device", "barrier_fails")
            .env("FAKE_FAIL", fail)
            .env("FLAGOSCOMM_DEVICE", mode)
            .ok();
        assert_ne!(outcome.said("result"), "0", "{fail}");
        assert_eq!(outcome.said("current"), "2", "{fail}");
        has(outcome.said("text"), &[text]);
    }
}

/// `FLAGOSCOMM_DEVICE=error`: both indices are named and the vendor is not called.
#[test]
fn error_mode_refuses_with_both_indices() {
    refuse(&library());
}

fn no_context_was_made(outcome: &Outcome) {
    for name in [
        "cuDevicePrimaryCtxRetain",
        "cuCtxSetCurrent",
        "cudaSetDevice",
        "cudaMalloc",
    ] {
        assert!(outcome.calls(name).is_empty(), "{name}: {:?}", outcome.log);
    }
}

/// DV-1 as design 18 has it: the program's runtime says 2, so it is 2; on an unbound thread its truth is 0.
#[test]
fn the_runtime_is_believed() {
    let outcome = scenario("device", "which").env("PRELOAD", "1").ok();
    assert_eq!(
        (outcome.said("device"), outcome.said("init")),
        ("0 2", "0 2")
    );
    let outcome = scenario("device", "which").ok();
    assert_eq!(
        (outcome.said("device"), outcome.said("init")),
        ("0 0", "0 0")
    );
    assert_eq!(outcome.said("current"), "-1");
    // A context that the program has by other means, such as a runtime of its own, linked in.
    let below = Standins::builder().without("libcudart.so.13").build();
    for run in [
        scenario("device", "which"),
        scenario("device", "which").over(&below.dir),
    ] {
        let outcome = run.env("CONTEXT", "2").ok();
        assert_eq!(
            (outcome.said("device"), outcome.said("init")),
            ("0 2", "0 2")
        );
        assert_eq!(outcome.said("current"), "2");
    }
}

/// DV-1: only the driver is there. "No context" and "not initialised" are a state of their own, and asking changes nothing.
#[test]
fn without_a_runtime_no_context_is_an_error() {
    let standins = Standins::builder().without("libcudart.so.13").build();
    for fail in ["none:0", "cuCtxGetDevice:3", "cuCtxGetDevice:201"] {
        let outcome = scenario("device", "which")
            .over(&standins.dir)
            .env("FAKE_FAIL", fail)
            .env("FLAGOSCOMM_TIERS", "native")
            .ok();
        assert_eq!(outcome.said("device"), "102 0", "{fail}");
        assert_eq!(outcome.said("init"), "102 -7", "{fail}");
        has(
            &outcome.outputs[0].stdout,
            &["no current device", "cuCtxGetDevice gave", "set the device"],
        );
        no_context_was_made(&outcome);
    }
}

/// DV-5: the same device, by its UUID, under different indices.
#[test]
fn two_ranks_on_one_device_are_refused_on_both() {
    let twins = || {
        scenario("device", "twins")
            .ranks(2)
            .env_of(0, "CUDA_VISIBLE_DEVICES", "3")
            .env_of(1, "CUDA_VISIBLE_DEVICES", "2,3")
            .env("SECOND", "1")
    };
    let outcome = twins().ok();
    for rank in 0..2 {
        assert_eq!(outcome.said_by(rank, "init"), "5");
        has(
            outcome.said_by(rank, "text"),
            &[
                "rank 0",
                "rank 1",
                "index 0 and 1",
                "same device",
                "set the device before init",
                "FLAGOSCOMM_TIERS=host",
            ],
        );
    }
    assert!(outcome.calls("ncclCommInitRank").is_empty());
    let outcome = twins().env("FLAGOSCOMM_TIERS", "host").ok();
    for rank in 0..2 {
        assert_eq!(
            (outcome.said_by(rank, "init"), outcome.said_by(rank, "tier")),
            ("0", "3")
        );
    }
}

/// These tests bite: a library that remembers the current device fails them.
#[test]
fn a_library_that_remembers_the_device_is_found() {
    let broken = variant("cached-device", &["--features", "test-cached-device"], &[]);
    scenario("ops", "finalize").library(&broken).ok();
    type Check = fn(&Path);
    let checks: [(&str, Check); 5] = [
        ("moved", moved),
        ("bound", bound),
        ("guard", guard),
        ("restore", restore),
        ("refuse", refuse),
    ];
    for (name, check) in checks {
        let found = std::panic::catch_unwind(|| check(&broken)).is_err();
        assert!(
            found,
            "{name} passes on a library that remembers the device"
        );
    }
}
