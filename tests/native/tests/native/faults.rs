//! One rank's failure, or its end, is known to the others, which wait inside the vendor's work.

use crate::kit::{Outcome, has, scenario};

/// All but the last rank were told within a moment, in these words.
fn told_at_once(outcome: &Outcome, parts: &[&str]) {
    let last = outcome.outputs.len() - 1;
    let time = |rank, what| outcome.said_by(rank, what).parse::<f64>().expect("seconds");
    for rank in 0..last {
        let late = time(rank, "told") - time(last, "failed");
        assert!((0.0..0.5).contains(&late), "told after {late} s");
        has(outcome.said_by(rank, "text"), parts);
    }
}

/// HG-7: a call that the vendor fails on one rank ends the communicator on all, in that rank's words; those
/// who wait on the device are freed if the ranks are watched.
#[test]
fn a_call_that_fails_on_one_rank_is_told_to_all() {
    for (vendors, ours, words) in [
        (1, 1, "unhandled cuda error"),
        (2, 2, "unhandled system error"),
        (3, 3, "internal error"),
        (6, 6, "remote process exited"),
    ] {
        for liveness in ["0", "5"] {
            let run = scenario("faults", "a_call_fails")
                .ranks(3)
                .env("CODE", ours.to_string())
                .env_of(2, "FAKE_FAIL", &format!("ncclAllReduce:{vendors}@2"));
            let outcome = match liveness {
                "0" => run.ok(),
                limit => run.env("FLAGOSCOMM_LIVENESS", limit).ok(),
            };
            told_at_once(
                &outcome,
                &[
                    "rank 2 (host ",
                    "can't go on",
                    "AllReduce(count 1000, int32, sum) #2",
                    &format!("ncclAllReduce failed with {vendors} ({words}"),
                    "made to fail",
                ],
            );
        }
    }
}

/// HG-7: the same for the end of a group.
#[test]
fn a_group_that_fails_on_one_rank_is_told_to_all() {
    for (moment, fail, words) in [
        ("end", "ncclGroupEnd:2", "the group of AllReduce(count 1000"),
        ("inside", "ncclAllReduce:2@2", "AllReduce(count 1000"),
    ] {
        let outcome = scenario("faults", "a_call_fails")
            .ranks(2)
            .env("CODE", "2")
            .env("GROUPED", moment)
            .env("FLAGOSCOMM_LIVENESS", "5")
            .env_of(1, "FAKE_FAIL", fail)
            .ok();
        told_at_once(
            &outcome,
            &[
                "rank 1 (host ",
                words,
                "int32, sum) #2 on",
                "failed with 2",
                "made to fail",
            ],
        );
    }
}

/// HG-7: what the vendor finds out later.
#[test]
fn a_communicator_that_fails_on_one_rank_is_told_to_all() {
    let outcome = scenario("faults", "a_communicator_fails").ranks(2).ok();
    told_at_once(&outcome, &["rank 1 (host ", "the communicator failed"]);
}

/// HG-7: a refused argument leaves the communicator usable, and says that nobody was told.
#[test]
fn a_refused_argument_leaves_the_communicator_usable() {
    for ranks in [1, 2] {
        scenario("faults", "a_call_is_refused")
            .ranks(ranks)
            .env("FAKE_FAIL", "ncclAllReduce:4@2,ncclGroupEnd:5@1")
            .ok();
    }
}

/// HG-8: a rank that leaves in order is missed only by those that make more collectives than it has.
#[test]
fn a_rank_that_leaves_early_is_missed() {
    for watched in [false, true] {
        let run = scenario("faults", "a_rank_leaves").ranks(3);
        let outcome = match watched {
            false => run.ok(),
            true => run.env("FLAGOSCOMM_LIVENESS", "5").ok(),
        };
        for rank in [0, 2] {
            has(
                outcome.said_by(rank, "text"),
                &[
                    "rank 1 (host ",
                    "destroyed its communicator after collective #4",
                    "this rank is at #5",
                ],
            );
        }
    }
}
