//! What the vendors' libraries do with what they are asked.

use crate::facts::{DTYPES, Fact, REDOPS, on_every_row};
use flagos_comm_testkit::Call;
use flagos_comm_testkit::scenario::Outcome;

/// Every operation with every type, operator, root and count, and groups, with one, two and three ranks.
#[test]
fn every_row_computes_what_the_reference_does() {
    on_every_row(
        |_| true,
        |fact| {
            for ranks in 1..=3 {
                fact.scenario("matrix", "matrix").ranks(ranks).ok();
            }
        },
    );
}

/// Data types and operator among the arguments of a call, as the stand-in printed them.
fn numbers(fact: &Fact, call: &Call) -> Option<(Vec<i32>, Option<i32>)> {
    let (_, places) = fact.functions.iter().find(|(name, _)| *name == call.name)?;
    let words: Vec<&str> = call.args.split(", ").collect();
    let number = |text: &str| {
        let hex = text
            .strip_prefix("0x")
            .map(|hex| i32::from_str_radix(hex, 16));
        hex.unwrap_or_else(|| text.parse())
            .unwrap_or_else(|_| panic!("{text:?} in {} {:?}", call.name, call.args))
    };
    let op = words.iter().find_map(|w| w.strip_prefix("op=")).map(number);
    // A list of messages: {send ADDRESS, COUNT, TYPE, peer=N}.
    let listed = call.args.split('{').skip(1);
    let mut dtypes: Vec<i32> = match places {
        [] => listed
            .filter_map(|item| item.split(", ").nth(2))
            .map(number)
            .collect(),
        _ => Vec::new(),
    };
    dtypes.extend(places.iter().map(|at| number(words[*at])));
    assert!(!dtypes.is_empty(), "no type in {call:?}");
    Some((dtypes, op))
}

fn check_maps(fact: &Fact, outcome: &Outcome) {
    let kinds = [
        "AllReduce",
        "Reduce",
        "ReduceScatter",
        "Broadcast",
        "AllGather",
        "Gather",
        "Scatter",
        "AlltoAll",
        "AlltoAllv",
        "Send",
        "Self",
    ];
    for (at, kind) in kinds.iter().enumerate() {
        for dtype in 0..DTYPES.len() {
            for op in 0..if at < 3 { REDOPS.len() } else { 1 } {
                let supported = match *kind {
                    "AllReduce" | "Reduce" | "ReduceScatter" => fact.reduces(dtype, op),
                    _ => fact.moves(dtype, matches!(*kind, "Broadcast" | "AllGather")),
                };
                let what = format!("{kind} {dtype} {op}");
                let spans = outcome.between(&what);
                assert_eq!(spans.len(), 2, "{what}");
                for mut calls in spans {
                    // A group that is open already is made to fail by a call that does nothing.
                    calls.retain(|c| !c.args.contains("(nil), (nil), 0, "));
                    let got: Vec<_> = calls.iter().filter_map(|c| numbers(fact, c)).collect();
                    assert_eq!(got.is_empty(), !supported, "{} {what}: {calls:?}", fact.key);
                    for (dtypes, redop) in got {
                        assert!(
                            dtypes.iter().all(|d| *d == fact.dtypes[dtype]),
                            "{} {what}: types {dtypes:?}, not {}",
                            fact.key,
                            fact.dtypes[dtype]
                        );
                        let wanted = (at < 3).then_some(fact.redops[op]);
                        assert_eq!(redop, wanted, "{} {what}", fact.key);
                    }
                }
            }
        }
    }
}

/// NU-1: the numbers of types and operators that the library got, for all pairs and operations; what it has not is refused
/// before any call.
#[test]
fn every_number_is_the_vendors_own() {
    on_every_row(
        |_| true,
        |fact| check_maps(fact, &fact.scenario("matrix", "maps").ranks(2).ok()),
    );
}

/// Every documented code of every vendor, and one that nobody has documented.
#[test]
fn every_result_is_translated_by_its_meaning() {
    on_every_row(
        |_| true,
        |fact| {
            let kinds = [
                "AllReduce",
                "Reduce",
                "ReduceScatter",
                "Broadcast",
                "AllGather",
            ];
            for codes in fact.results.chunks(5) {
                let fail: Vec<String> = fact
                    .five
                    .iter()
                    .zip(codes)
                    .map(|(name, (code, _))| format!("{name}:{code}"))
                    .collect();
                let run = fact.scenario("matrix", "results");
                let outcome = run.env("FAKE_FAIL", fail.join(",")).ok();
                for (kind, (code, ours)) in kinds.iter().zip(codes) {
                    let said = outcome.said(kind);
                    assert_eq!(
                        said,
                        ours.to_string(),
                        "{} {kind} failed with {code}",
                        fact.key
                    );
                    let text = outcome.said(&format!("text {kind}"));
                    // "In progress" is no error.
                    assert!(
                        *ours == 7 || text.contains(&format!("failed with {code}")),
                        "{}: {text}",
                        fact.key
                    );
                }
            }
        },
    );
}
