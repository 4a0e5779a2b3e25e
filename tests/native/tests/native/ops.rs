//! What is not an ordinary collective.

use crate::kit::scenario;
use flagos_comm_testkit::Standins;

/// Design 13: InProgress, then asked until it is done; use before is refused in words.
#[test]
fn a_non_blocking_init_and_split() {
    scenario("ops", "nonblocking").ok();
}

#[test]
fn a_non_blocking_init_that_fails_says_so() {
    scenario("ops", "nonblocking_fails")
        .env("FLAGOSCOMM_TIERS", "native")
        .env("FAKE_FAIL", "ncclCommInitRank:2")
        .ok();
}

/// Design 13: the vendor's own mode; calls that need their result wait for it.
#[test]
fn the_vendors_non_blocking_mode() {
    scenario("ops", "vendor_nonblocking").ok();
}

/// Design 27: before any call of the vendor's, on all ranks, with both calls in the text.
#[test]
fn call_checking_names_both_calls() {
    scenario("ops", "checking")
        .env("FLAGOSCOMM_CHECK", "1")
        .ok();
}

/// Design 8.
#[test]
fn graphs_are_captured_and_replayed() {
    scenario("ops", "graphs").ok();
}

/// Design 28.
#[test]
fn pre_multiplied_sums_with_host_and_device_scalars() {
    scenario("ops", "operators").ok();
}

/// Design 10. If one rank's call fails, here or at the vendor, nobody gets a window.
#[test]
fn windows_are_voted_on_and_memory_has_an_owner() {
    scenario("ops", "windows").ok();
}

/// Design 15: by colour and key, with a rank that is no member; a second one at once is refused; children outlive parents.
#[test]
fn splits() {
    let outcome = scenario("ops", "split").ok();
    assert!(outcome.calls("ncclCommSplit").len() >= 8);
    // A library without it: the children are made anew.
    let old = Standins::builder().omit("ncclCommSplit").build();
    scenario("ops", "split").over(&old.dir).ok();
}

/// Without rank 0 too, with an abort, after a revoke, and with a library that has no shrink.
#[test]
fn shrinks() {
    for exclude in ["0", "2"] {
        scenario("ops", "shrink").env("EXCLUDE", exclude).ok();
    }
    scenario("ops", "shrink")
        .env("EXCLUDE", "1")
        .env("ABORT", "1")
        .ok();
    scenario("ops", "shrink")
        .env("EXCLUDE", "0")
        .env("REVOKE", "1")
        .ok();
    let old = Standins::builder().omit("ncclCommShrink").build();
    scenario("ops", "shrink").over(&old.dir).ok();
}

#[test]
fn finalize_ends_the_work() {
    scenario("ops", "finalize").ok();
}

#[test]
fn an_asynchronous_error_is_seen_and_stays() {
    scenario("ops", "async_error").ok();
}

/// Design 24.
#[test]
fn the_text_of_an_error_says_all_that_is_known() {
    scenario("ops", "error_text")
        .env("FAKE_FAIL", "ncclAllReduce:2@3")
        .ok();
}

/// AlltoAll, Gather and Scatter came with NCCL 2.28.
#[test]
fn collectives_that_the_library_lacks_are_made_of_messages() {
    let old = Standins::builder().nccl_version(22707).build();
    let outcome = scenario("ops", "emulated").over(&old.dir).ok();
    assert!(outcome.calls("ncclAlltoAll").is_empty());
    assert!(!outcome.calls("ncclSend").is_empty());
    let outcome = scenario("ops", "emulated").ok();
    assert!(!outcome.calls("ncclAlltoAll").is_empty());
}
