//! DV-6: the host tier of a machine with a driver. The stand-ins' device memory can't be read or written at the caller's
//! address, so that a right result proves that only the driver touched it.

use crate::kit::{Outcome, scenario, scratch};
use flagos_comm_testkit::Standins;
use flagos_comm_testkit::scenario::Scenario;

/// A scenario on the host tier.
fn staged(name: &'static str) -> Scenario {
    scenario("staged", name).env("FLAGOSCOMM_TIERS", "host")
}

/// Whether the loader finds a library; asked in a process of its own.
fn can_be_loaded(name: &str) -> bool {
    let program = format!("import ctypes; ctypes.CDLL({name:?})");
    let mut python = std::process::Command::new("python3");
    python
        .args(["-c", &program])
        .stderr(std::process::Stdio::null());
    python.status().is_ok_and(|status| status.success())
}

/// A variable that makes calls wait, so that the calling thread does everything itself.
const CALL_WAITS: (&str, &str) = ("FLAGOSCOMM_STAGING_WAIT", "call");

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
    staged("every_collective").ok();
    let outcome = staged("every_collective")
        .env(CALL_WAITS.0, CALL_WAITS.1)
        .ok();
    copies_what_it_reads_and_writes(&outcome);
}

/// The same with the engine over messages, which goes in steps of its own.
#[test]
fn an_engine_over_messages_copies_what_it_reads_and_writes() {
    if !can_be_loaded("libucp.so.0") {
        println!("SKIPPED: the host tier's engine over UCX needs it (Debian: libucx0)");
        return;
    }
    let over_ucx = |name| {
        staged(name)
            .env("FLAGOSCOMM_HOST_ENGINE", "ucx")
            .env("UCX_TLS", "tcp,self")
    };
    copies_what_it_reads_and_writes(&over_ucx("every_collective").ok());
    let in_steps = |memory| {
        let outcome = over_ucx("in_steps").env("FLAGOSCOMM_STAGING_MEMORY", memory);
        let outcome = outcome.ok();
        let of = |name| calls(&outcome, name);
        (of("cudaHostRegister"), of("cudaHostUnregister"))
    };
    // Each of three ranks pins memory of its own once, and gives it back.
    assert_eq!(in_steps("1M"), ((3, 0), (3, 0)));
    assert_eq!(in_steps("0"), ((0, 0), (0, 0)));
}

fn copies_what_it_reads_and_writes(outcome: &Outcome) {
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
        let got = copied(outcome, &format!("{operation} {rank}"));
        assert_eq!(got, expected, "{operation} on rank {rank}");
    }
}

/// What the stream holds before the call is waited for, and what follows sees the result.
#[test]
fn queued_work_comes_first() {
    staged("queued_work").ok();
    staged("queued_work").env(CALL_WAITS.0, CALL_WAITS.1).ok();
}

/// NULL is the default stream of the communicator's device, and the caller's device stays.
#[test]
fn another_device_may_be_current() {
    staged("other_device").ok();
}

/// Calls of a function, and how many of them failed.
fn calls(outcome: &Outcome, name: &str) -> (usize, usize) {
    let calls = outcome.calls(name);
    (
        calls.len(),
        calls.iter().filter(|c| c.result != Some(0)).count(),
    )
}

/// Bytes of the largest range that was pinned.
fn pinned(outcome: &Outcome) -> usize {
    let bytes = |args: &str| args.split(", ").nth(1).unwrap().parse::<usize>().unwrap();
    let all = outcome.calls("cudaHostRegister");
    all.iter().map(|c| bytes(&c.args)).max().unwrap_or(0)
}

/// Every collective in many steps, and every step back: each gives the same results.
#[test]
fn every_step_back_gives_the_same_results() {
    let outcome = staged("in_steps").ok();
    assert_eq!(calls(&outcome, "cudaHostRegister"), (3, 0));
    assert!(calls(&outcome, "cuStreamWaitValue32_v2").0 > 100);
    assert_eq!(
        pinned(&outcome) / (1 << 20),
        63,
        "64 MiB in whole slots of 3 ranks"
    );

    let outcome = staged("in_steps")
        .env("FLAGOSCOMM_STAGING_MEMORY", "3M")
        .env("FLAGOSCOMM_STAGING_THREADS", "2")
        .ok();
    assert!(pinned(&outcome) <= 3 << 20);

    let outcome = staged("in_steps")
        .env("FLAGOSCOMM_STAGING_MEMORY", "0")
        .ok();
    assert_eq!(calls(&outcome, "cudaHostRegister"), (0, 0));

    let without_pinning = Standins::builder().omit("cudaHostRegister").build();
    staged("in_steps").over(&without_pinning.dir).ok();

    let outcome = staged("in_steps")
        .env("FAKE_FAIL", "cudaHostRegister:304,cudaHostAlloc:2")
        .ok();
    assert_eq!(calls(&outcome, "cudaHostRegister"), (3, 3));
    assert_eq!(calls(&outcome, "cuStreamWaitValue32_v2").0, 0);
}

/// Where the driver can make streams wait, a call never waits for its stream; where it can't, it does.
#[test]
fn streams_wait_where_the_driver_can_do_it() {
    let waits = |outcome: &Outcome| {
        let between = outcome.between("call");
        let synchronised = |c: &&&flagos_comm_testkit::Call| c.name == "cudaStreamSynchronize";
        let count = between[0].iter().filter(synchronised).count();
        (outcome.said("waited").to_owned(), count > 0)
    };
    let outcome = staged("returns_at_once").ok();
    assert_eq!(waits(&outcome), ("0".to_owned(), false));
    // No blocking function of the host completes device work: the only ones are the program's.
    assert_eq!(calls(&outcome, "cudaLaunchHostFunc").0, 2);

    let without = Standins::builder().omit("cuStreamWaitValue32_v2").build();
    let outcome = staged("returns_at_once").over(&without.dir).ok();
    assert_eq!(waits(&outcome), ("1".to_owned(), true));

    let outcome = staged("returns_at_once")
        .env("FAKE_FAIL", "cuStreamWaitValue32_v2:801")
        .ok();
    assert_eq!(waits(&outcome), ("1".to_owned(), true));
}

/// A driver that fails in the middle of an operation's copies: an error on every rank, streams that go on, and nothing
/// left.
#[test]
fn copies_that_cannot_be_queued_are_an_error() {
    for fails in [
        "cuStreamWaitValue32_v2:801@9",
        "cuStreamWriteValue32_v2:801@9",
        "cudaStreamWaitEvent:400@9",
        "cudaMemcpyAsync:700@9",
    ] {
        staged("queue_fails").env("FAKE_FAIL", fails).ok();
    }
}

/// Operations on many streams that a device may have in one queue: none stands behind what waits for it.
#[test]
fn many_streams_may_share_the_queues_of_a_device() {
    let outcome = staged("many_streams").env("FAKE_COPY_QUEUES", "1").ok();
    assert!(calls(&outcome, "cuStreamWriteValue32_v2").0 > 3 * 3 * 6);
    staged("in_steps").env("FAKE_COPY_QUEUES", "1").ok();
}

/// Ranks that are threads of one process on one device: their calls wait, since their copies could be in one queue.
#[test]
fn ranks_on_one_device_of_a_process_wait() {
    let outcome = staged("one_device").env("FAKE_COPY_QUEUES", "1").ok();
    assert_eq!(outcome.said("queued"), "0");
}

/// A captured stream is refused, and its capture goes on.
#[test]
fn a_captured_stream_is_refused() {
    staged("captured").ok();
}

/// Destroy frees all that staging made: threads, descriptors, streams, events, pinned memory.
#[test]
fn nothing_is_left_after_destroy() {
    let outcome = staged("nothing_left")
        .env("FLAGOSCOMM_STAGING_THREADS", "2")
        .ok();
    assert_eq!(outcome.said("pinned"), "1");
}

/// A rank that dies while others stage: their streams go on, they learn of it, and nothing is left.
#[test]
fn a_rank_dies_while_others_stage() {
    staged("peer_dies").ranks(3).ok();
    let outcome = staged("peer_dies")
        .ranks(3)
        .env(CALL_WAITS.0, CALL_WAITS.1)
        .ok();
    assert_eq!(outcome.said("called"), "6", "flagosRemoteError");
}

/// Copies of what a device has stay where messages that can't be taken back may still read and write them, and only
/// there.
#[test]
fn copies_stay_for_what_cannot_be_taken_back() {
    let over_ucc = staged("copies_after_a_failure")
        .ranks(2)
        .env("FLAGOSCOMM_HOST_ENGINE", "ucc")
        .env("FLAGOSCOMM_ENGINE_PATH", Standins::ucc().build().ccl())
        .env("FLAGOSCOMM_COLLECTIVE_TIMEOUT", "0.4");
    let ended = over_ucc.clone().ok();
    assert_eq!(ended.said_by(0, "kept"), "0");
    let hangs = over_ucc.env("FAKE_HANG", "ucc_context_destroy").ok();
    assert_eq!(hangs.said_by(0, "kept"), "1");
    let text = hangs.stderr();
    assert!(text.contains("can't be taken back by UCC 1.9.0"), "{text}");
}

/// A stream that waits for a rank that doesn't come goes on after an abort.
#[test]
fn an_abort_frees_the_stream() {
    staged("aborted").ok();
    staged("aborted").env(CALL_WAITS.0, CALL_WAITS.1).ok();
}

/// One communicator over two vendors' devices and a rank that has none.
#[test]
fn ranks_of_different_vendors_and_of_none() {
    let nvidia = Standins::builder().build();
    let ascend = Standins::of("ascend").build();
    let outcome = staged("mixed")
        .ranks(3)
        .over(&nvidia.dir)
        .over(&ascend.dir)
        .over(&scratch())
        .ok();
    let vendors: Vec<&str> = (0..3).map(|r| outcome.said_by(r, "vendor")).collect();
    assert_eq!(vendors, ["nvidia", "ascend", ""]);
    assert_eq!(calls(&outcome, "cudaHostRegister"), (1, 0));
    assert!(calls(&outcome, "aclrtMemcpyAsync").0 > 100);
}
