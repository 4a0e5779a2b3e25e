//! Runs over the stand-ins of NCCL and CUDA: they prove the path through the tool, not the vendor.

use crate::{Ran, tool};
use flagos_comm_testkit::Standins;
use serde_json::Value;

fn perf(devices: &str, arguments: &[&str]) -> Ran {
    let standins = Standins::builder().build();
    let mut command = tool();
    standins.env(&mut command);
    command.env("FAKE_DEVICES", devices);
    command.args([
        "perf",
        "--check",
        "-e",
        "64",
        "-n",
        "2",
        "-w",
        "1",
        "--check-counts",
        "0,1,7",
    ]);
    command.args(arguments);
    command.output().expect("the tool starts").into()
}

#[test]
fn a_device_for_every_rank_means_the_vendor() {
    for how in [&["--ranks", "2"][..], &["--ranks", "2", "--threads"], &[]] {
        let ran = perf("2", how);
        assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
        assert!(
            ran.out.contains("# tier native, vendor nvidia"),
            "{}",
            ran.out
        );
        assert!(ran.out.contains("libnccl.so.2 version"), "{}", ran.out);
        assert!(
            ran.out.contains("every one of the 2 ranks has a device"),
            "{}",
            ran.out
        );
        assert!(ran.out.contains("device memory"), "{}", ran.out);
        assert!(ran.out.contains("wrong values 0"), "{}", ran.out);
    }
}

/// The whole matrix of operations, types and operators at 1, 2 and 4 ranks, in each of the three ways to own them.
#[test]
fn every_check_passes_however_ranks_are_owned() {
    for ranks in ["1", "2", "4"] {
        for how in [&[][..], &["--threads"], &["--single-thread"]] {
            let ran = perf(ranks, &[&["--ranks", ranks], how].concat());
            assert_eq!(ran.code, Some(0), "{ranks} {how:?}\n{}{}", ran.out, ran.err);
            assert!(ran.out.contains("# tier native"), "{}", ran.out);
            assert!(ran.out.contains("wrong values 0"), "{}", ran.out);
        }
    }
}

/// More ranks than devices in one thread: the host tier waits inside a barrier, which one thread can't do twice.
#[test]
fn one_thread_on_the_host_tier_with_a_driver_ends() {
    let ran = perf("1", &["--single-thread", "--ranks", "2", "--timeout", "20"]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("# tier host"), "{}", ran.out);
}

#[test]
fn one_thread_can_own_all_devices() {
    let ran = perf("3", &["--single-thread"]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("# 3 ranks as one thread"), "{}", ran.out);
    assert!(ran.out.contains("wrong values 0"), "{}", ran.out);
}

#[test]
fn more_ranks_than_devices_means_the_host_tier_in_one_line() {
    let ran = perf("1", &["all_reduce", "--ranks", "2"]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("# tier host"), "{}", ran.out);
    let line = "# the host tier is used: 2 ranks but 1 device on ";
    assert!(ran.out.contains(line), "{}", ran.out);
}

#[test]
fn doctor_lists_devices_and_the_library_in_use() {
    let standins = Standins::builder().build();
    let mut command = tool();
    let output = standins
        .env(&mut command)
        .env("FAKE_DEVICES", "3")
        .args(["doctor", "--json"]);
    let ran = Ran::from(output.output().expect("the tool starts"));
    let value: Value = serde_json::from_str(&ran.out).expect("valid JSON");
    assert_eq!(value["vendor"], "nvidia", "{}", ran.out);
    assert_eq!(
        value["devices"].as_array().map(Vec::len),
        Some(3),
        "{}",
        ran.out
    );
    let verdict = value["verdict"].to_string();
    assert!(verdict.contains("libnccl.so.2"), "{verdict}");
}
