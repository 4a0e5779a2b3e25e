//! Groups on the native tier (design 17).

use crate::kit::scenario;

/// GR-2: an end without a start, nested groups, nothing before the outermost end.
#[test]
fn ends_are_counted() {
    scenario("groups", "balance").ok();
}

/// GR-2: an error inside is the end's error, nothing is launched, the thread is clean afterwards. The vendor's own group
/// is made to fail: its log shows the end's error and no mark of a launch.
#[test]
fn a_refused_call_poisons_the_group() {
    let outcome = scenario("groups", "error_inside").ok();
    for calls in outcome.between("group") {
        let ends: Vec<_> = calls.iter().filter(|c| c.name == "ncclGroupEnd").collect();
        assert_eq!(ends.len(), 1, "{calls:?}");
        assert!(ends[0].result.is_some_and(|r| r != 0), "{ends:?}");
    }
}

/// GR-2.
#[test]
fn inits_and_operations_do_not_mix() {
    scenario("groups", "mixed_with_init").ok();
}

/// GR-4, on the vendor's tier and on the host's.
#[test]
fn one_thread_owns_two_ranks_and_a_failing_member_frees_the_others() {
    scenario("groups", "two_ranks").ok();
    scenario("groups", "two_ranks")
        .env("FLAGOSCOMM_TIERS", "host")
        .env("TIER", "3")
        .ok();
}

/// To others and to itself, over two communicators and two streams.
#[test]
fn messages_and_two_communicators_in_one_group() {
    scenario("groups", "messages").ok();
}

#[test]
fn host_and_native_communicators_in_one_group() {
    scenario("groups", "tiers_mixed").ok();
}

#[test]
fn splits_and_simulation_in_a_group() {
    scenario("groups", "split_in_group").ok();
}
