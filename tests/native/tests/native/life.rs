//! The end of communicators.

use crate::kit::{has, scenario};

/// LC-1: a vendor's destroy, and its abort, that never return.
#[test]
fn a_hanging_vendor_does_not_hold_destroy_or_abort() {
    for (symbol, name) in [
        ("ncclCommDestroy", "destroy_hangs"),
        ("ncclCommAbort", "abort_hangs"),
    ] {
        let outcome = scenario("life", name)
            .env("FAKE_HANG", symbol)
            .env("FLAGOSCOMM_DESTROY_TIMEOUT", "0.5")
            .ok();
        has(&outcome.stderr(), &["WARN", "did not return in time"]);
    }
}

/// LC-1: within the limit it is waited for.
#[test]
fn a_slow_destroy_is_waited_for() {
    scenario("life", "destroy_is_slow")
        .env("FAKE_DELAY", "ncclCommDestroy:300")
        .ok();
}

/// LC-1: destroy is local.
#[test]
fn destroy_does_not_need_the_peers() {
    scenario("life", "peer_is_gone").ranks(2).ok();
}

/// LC-2: the driver's stand-in kills the process if anything calls it after its end.
#[test]
fn a_program_may_end_without_destroy() {
    for name in ["exit_without_destroy", "quick_exit_without_destroy"] {
        scenario("life", name).env("FAKE_EXIT_CHECK", "1").ok();
        scenario("life", name)
            .env("FAKE_EXIT_CHECK", "1")
            .env("FLAGOSCOMM_TIERS", "host")
            .ok();
    }
}

/// LC-2: while another thread is inside a collective.
#[test]
fn a_program_may_end_inside_a_collective() {
    for barrier in ["", "1"] {
        let run = scenario("life", "exit_inside")
            .ranks(2)
            .env("FAKE_EXIT_CHECK", "1");
        if barrier.is_empty() {
            run.ok();
        } else {
            run.env("BARRIER", barrier).ok();
        }
    }
}

/// LC-3: a thread waits for a stream, or inside our barrier, and another one aborts; the peer is told.
#[test]
fn abort_frees_a_waiting_thread() {
    scenario("life", "abort_a_waiter").ranks(2).ok();
    scenario("life", "abort_a_waiter")
        .ranks(2)
        .env("BARRIER", "1")
        .ok();
}

/// LC-3: the vendor's collective hangs inside the call: the call under way says that it was aborted.
#[test]
fn abort_ends_a_collective_inside_the_vendor() {
    for ranks in [1, 2] {
        let outcome = scenario("life", "abort_a_call")
            .ranks(ranks)
            .env("FAKE_HANG", "ncclAllReduce")
            .ok();
        let calls = outcome.calls("ncclAllReduce");
        let inside = calls.iter().filter(|c| c.result.is_none()).count();
        assert_eq!(inside, ranks, "not inside: {calls:?}");
    }
}

fn times_out_on_both_ranks(name: &'static str, hangs: &str) {
    scenario("life", name)
        .ranks(2)
        .env("FLAGOSCOMM_TIMEOUT", "1")
        .env("FAKE_HANG", hangs)
        .ok();
}

/// HG-1: the making of the vendor's id hangs on rank 0: all ranks time out.
#[test]
fn a_vendors_id_that_is_never_made_times_out_everywhere() {
    times_out_on_both_ranks("init_times_out", "ncclGetUniqueId");
}

/// HG-1: the vendor's finalize hangs: all ranks time out.
#[test]
fn a_vendors_finalize_that_hangs_times_out_everywhere() {
    times_out_on_both_ranks("finalize_times_out", "ncclCommFinalize");
}

/// LC-3: the vendor's init hangs, on one rank and on two.
#[test]
fn abort_ends_an_init_inside_the_vendor() {
    let outcome = scenario("life", "abort_an_init")
        .env("FAKE_HANG", "ncclCommInitRank")
        .ok();
    let init = outcome.calls("ncclCommInitRank");
    assert!(
        init.len() == 1 && init[0].result.is_none(),
        "it was not inside: {init:?}"
    );
    let outcome = scenario("life", "abort_frees_the_peer")
        .ranks(2)
        .env("FAKE_HANG", "ncclCommInitRank")
        .ok();
    has(&outcome.outputs[1].stderr, &["left behind"]);
    // The vendor's handle is there already and its init goes on behind it: the vendor's abort ends it.
    let outcome = scenario("life", "abort_frees_the_peer")
        .ranks(2)
        .env("VENDOR_NONBLOCKING", "1")
        .env_of(1, "FAKE_HANG", "ncclCommInitRank")
        .ok();
    assert!(
        outcome
            .calls("ncclCommAbort")
            .iter()
            .any(|c| c.result == Some(0)),
        "{:?}",
        outcome.log
    );
}

/// LC-3, HG-1: abort before the peer has arrived; the deadline names who is missing.
#[test]
fn an_init_alone_can_be_aborted_and_has_a_deadline() {
    scenario("life", "peer_never_arrives").ok();
}
