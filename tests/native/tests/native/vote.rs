//! Agreements of the ranks on something of the caller's.

use crate::kit::{Outcome, has, scenario};

/// On either tier.
fn on(tiers: &str, name: &'static str, ranks: usize) -> Outcome {
    scenario("vote", name)
        .ranks(ranks)
        .env("FLAGOSCOMM_TIERS", tiers)
        .env("FLAGOSCOMM_LOG", "info")
        .ok()
}

/// Every rank gets the lowest level, all of them, and the reasons; the log has them once, on one rank.
#[test]
fn ranks_agree_on_the_lowest_level_with_its_reasons() {
    for tiers in ["native", "host"] {
        let outcome = on(tiers, "answers", 3);
        let texts = outcome.texts();
        assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
        let said = |rank: usize, what: &str| outcome.outputs[rank].stderr.matches(what).count();
        for (what, times) in [
            ("the ranks agree on level 0: level 0: rank 1 (host", 1),
            ("the ranks agree on level -2147483648", 1),
            ("the ranks agree on level 1", 0),
        ] {
            assert_eq!(said(0, what), times, "{}", outcome.report());
            assert_eq!(said(1, what) + said(2, what), 0, "{}", outcome.report());
        }
    }
}

/// A refused call was not heard by the others, and an agreement touches no stream.
#[test]
fn an_agreement_that_is_refused_disturbs_nobody() {
    for tiers in ["native", "host"] {
        on(tiers, "misuse", 2);
    }
    on("native", "while_capturing", 2);
}

/// A rank that does not take part is named on all others, in time.
#[test]
fn an_agreement_without_one_rank_names_it() {
    for tiers in ["native", "host"] {
        for (how, code, words) in [
            ("late", "100", "missing: rank 1 of 3"),
            ("dead", "6", "closed its control connection"),
            ("gone", "6", "has left (destroyed its communicator)"),
            ("elsewhere", "5", "is at a split"),
            ("aborted", "6", "aborted the communicator"),
        ] {
            let outcome = scenario("vote", "without_one")
                .ranks(3)
                .env("FLAGOSCOMM_TIERS", tiers)
                .env(
                    "FLAGOSCOMM_INIT_TIMEOUT",
                    if how == "late" { "0.7" } else { "20" },
                )
                .env("HOW", how)
                .ok();
            for rank in [0, 2] {
                assert_eq!(outcome.said_by(rank, "code"), code, "{how}");
                has(outcome.said_by(rank, "text"), &["rank 1", words]);
            }
        }
    }
}
