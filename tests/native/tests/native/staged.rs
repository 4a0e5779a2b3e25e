//! DV-6: the host tier of a machine with a driver. The stand-ins' device memory can't be read or written at the caller's
//! address, so that a right result proves that only the driver touched it.

use crate::kit::{Outcome, scenario};

/// Bytes copied from and to devices between the marks of one rank's operation.
fn copied(outcome: &Outcome, what: &str) -> (usize, usize) {
    let mut sums = [0; 5];
    for call in &outcome.between(what)[0] {
        if call.name == "cudaMemcpyAsync" {
            let args: Vec<&str> = call.args.split(", ").collect();
            let kind: usize = args[3].parse().expect("a kind");
            sums[kind] += args[2].parse::<usize>().expect("bytes");
        }
    }
    assert_eq!(sums[0] + sums[3] + sums[4], 0, "{what}");
    (sums[2], sums[1])
}

/// Blocks of 16 bytes; AlltoAllv has gaps. Only what an operation reads is fetched, only what it writes is brought back.
#[test]
fn every_collective_copies_what_it_reads_and_writes() {
    let outcome = scenario("staged", "every_collective")
        .env("FLAGOSCOMM_TIERS", "host")
        .ok();
    for (operation, rank, expected) in [
        ("AllReduce", 0, (16, 16)),
        ("AllReduce", 1, (16, 16)),
        ("Reduce", 0, (16, 0)),
        ("Reduce", 1, (16, 16)),
        ("Broadcast", 0, (0, 16)),
        ("Broadcast", 1, (16, 16)),
        ("AllGather", 0, (16, 32)),
        ("ReduceScatter", 1, (32, 16)),
        ("Gather", 0, (16, 32)),
        ("Gather", 1, (16, 0)),
        ("Scatter", 0, (32, 16)),
        ("Scatter", 1, (0, 16)),
        ("AlltoAll", 0, (32, 32)),
        ("AlltoAllv", 0, (12, 8)),
        ("AlltoAllv", 1, (12, 16)),
        ("Send", 0, (16, 0)),
        ("Recv", 1, (0, 16)),
        ("Barrier", 0, (0, 0)),
        ("Nothing", 0, (0, 0)),
        ("Pinned", 0, (0, 0)),
    ] {
        let got = copied(&outcome, &format!("{operation} {rank}"));
        assert_eq!(got, expected, "{operation} on rank {rank}");
    }
}

/// What the stream holds before the call is waited for, and what follows sees the result.
#[test]
fn queued_work_comes_first() {
    scenario("staged", "queued_work")
        .env("FLAGOSCOMM_TIERS", "host")
        .ok();
}

/// NULL is the default stream of the communicator's device, and the caller's device stays.
#[test]
fn another_device_may_be_current() {
    scenario("staged", "other_device")
        .env("FLAGOSCOMM_TIERS", "host")
        .ok();
}
