//! What the project wants to reach against whom, and whether it did. Nothing here is a gate: figures of a busy
//! machine say little.

use super::result::{Operation, Quantiles, Row};
use crate::size_name;
use serde_json::{Value, json};
use std::fmt;

/// A target that applies to a result.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The operation.
    pub operation: Operation,
    /// Its size.
    pub bytes: u64,
    /// Key of the peer that was the best of those meant.
    pub peer: &'static str,
    measured: Measure,
    must: f64,
    aim: Option<f64>,
    near: bool,
}

/// What is held against a target.
#[derive(Clone, Copy, Debug)]
enum Measure {
    /// The peer's time over ours: at least.
    Ratio(Quantiles),
    /// Our own microseconds: at most.
    Ours(f64),
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The libraries among which the best counts.
const MPI: [&str; 2] = ["openmpi", "mpich"];

/// Must and aim against the best of the MPIs, where each rank has a core: two ranks.
fn against_mpi(bytes: u64, near: bool) -> (f64, f64) {
    let by_place = |near_aim: f64, far_aim: f64| if near { near_aim } else { far_aim };
    match bytes {
        b if b < KIB => (1.5, by_place(5.0, 2.3)),
        b if b <= 64 * KIB => (1.3, by_place(2.3, 1.5)),
        b if b <= 16 * MIB => (1.0, by_place(2.3, 1.1)),
        _ => (2.0, 2.5),
    }
}

/// Must and aim against gloo on one host.
fn against_gloo(bytes: u64) -> (f64, f64) {
    match bytes {
        b if b <= 64 * KIB => (50.0, 100.0),
        _ => (2.5, 4.0),
    }
}

/// All targets that apply to the rows.
pub fn judge(rows: &[Row], ranks: u32, cores: usize) -> Vec<Verdict> {
    let crowded = ranks as usize > cores;
    let mut cases: Vec<(Operation, u64)> = rows.iter().map(|r| (r.operation, r.bytes)).collect();
    cases.sort_unstable();
    cases.dedup();
    let mut verdicts = Vec::new();
    for (operation, bytes) in cases {
        let best = |among: &[&str]| {
            rows.iter()
                .filter(|r| r.operation == operation && r.bytes == bytes)
                .filter(|r| among.contains(&r.peer))
                .min_by(|a, b| a.ratio.median.total_cmp(&b.ratio.median))
        };
        let mut held = |row: Option<&Row>, (must, aim): (f64, f64), near: bool| {
            if let Some(row) = row {
                verdicts.push(Verdict {
                    operation,
                    bytes,
                    peer: row.peer,
                    measured: Measure::Ratio(row.ratio),
                    must,
                    aim: Some(aim),
                    near,
                });
            }
        };
        if crowded && bytes <= 16 * MIB {
            held(best(&MPI[..1]), (1.0, 1.8), false);
        } else if !crowded && ranks == 2 {
            let row = best(&MPI);
            let near = row.is_some_and(Row::near);
            held(row, against_mpi(bytes, near), near);
        }
        held(best(&["gloo"]), against_gloo(bytes), false);
        if crowded
            && bytes < KIB
            && let Some(row) = best(&MPI[..1])
        {
            verdicts.push(Verdict {
                operation,
                bytes,
                peer: row.peer,
                measured: Measure::Ours(row.ours_us.median),
                must: 10.0,
                aim: None,
                near: false,
            });
        }
    }
    verdicts
}

impl Verdict {
    fn met(&self, wanted: f64) -> bool {
        match self.measured {
            Measure::Ratio(ratio) => ratio.reaches(wanted),
            Measure::Ours(us) => us <= wanted,
        }
    }

    /// What has to be is.
    pub fn must_met(&self) -> bool {
        self.met(self.must)
    }

    /// What is hoped for is; `None` if nothing is.
    pub fn aim_met(&self) -> Option<bool> {
        self.aim.map(|aim| self.met(aim))
    }

    /// Whether this is about the MPIs' ratio, which has a column of its own.
    pub fn of_mpi(&self) -> bool {
        matches!(self.measured, Measure::Ratio(_)) && MPI.contains(&self.peer)
    }

    /// Whether this is about gloo's ratio.
    pub fn of_gloo(&self) -> bool {
        matches!(self.measured, Measure::Ratio(_)) && self.peer == "gloo"
    }

    /// `1.5 met, 5 (near) not`.
    pub fn short(&self) -> String {
        let word = |met: bool| if met { "met" } else { "**not**" };
        let mut text = format!("{} {}", self.must, word(self.must_met()));
        if let (Some(aim), Some(met)) = (self.aim, self.aim_met()) {
            let place = match self.of_mpi() {
                true if self.near => " (near)",
                _ => "",
            };
            // Only what must be stands out.
            text.push_str(&format!(
                ", {aim}{place} {}",
                if met { "met" } else { "not" }
            ));
        }
        text
    }

    /// As the reports have it.
    pub fn json(&self) -> Value {
        let (what, measured) = match self.measured {
            Measure::Ratio(ratio) => (
                "ratio, at least",
                json!({"median": ratio.median, "p25": ratio.p25}),
            ),
            Measure::Ours(us) => ("our microseconds, at most", json!({"median": us})),
        };
        json!({
            "operation": self.operation.name(), "bytes": self.bytes, "peer": self.peer, "what": what, "measured": measured,
            "near": self.near, "must": self.must, "must_met": self.must_met(), "aim": self.aim, "aim_met": self.aim_met(),
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.operation.name(), size_name(self.bytes))?;
        match self.measured {
            Measure::Ratio(ratio) => write!(
                f,
                " against {}: ratio {:.2} (a quarter below {:.2}), must be {}",
                self.peer, ratio.median, ratio.p25, self.must
            ),
            Measure::Ours(us) => {
                write!(f, ": ours takes {us:.1} µs, must be at most {}", self.must)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::result::example;
    use super::*;

    const OP: Operation = Operation::AllReduce;

    #[test]
    fn the_best_of_the_mpis_counts() {
        let rows = [
            example("openmpi", OP, 8, 3.0, 300.0),
            example("mpich", OP, 8, 1.55, 300.0),
            example("ucx", OP, 8, 0.1, 300.0),
        ];
        let verdicts = judge(&rows, 2, 2);
        assert_eq!(
            verdicts.len(),
            1,
            "nothing is asked against UCX: {verdicts:?}"
        );
        assert_eq!(verdicts[0].peer, "mpich");
        // The median of 1.55 would do, the quarter at 1.47 does not.
        assert!(!verdicts[0].must_met());
        assert_eq!(verdicts[0].aim_met(), Some(false));
    }

    #[test]
    fn targets_depend_on_size_and_place() {
        let met = |bytes: u64, ratio: f64, line: f64| {
            let verdict = &judge(&[example("openmpi", OP, bytes, ratio, line)], 2, 2)[0];
            (verdict.must_met(), verdict.aim_met())
        };
        for (bytes, line, must, aim) in [
            (8, 300.0, 1.5, 2.3),
            (8, 30.0, 1.5, 5.0),
            (KIB, 300.0, 1.3, 1.5),
            (64 * KIB, 30.0, 1.3, 2.3),
            (256 * KIB, 300.0, 1.0, 1.1),
            (16 * MIB, 30.0, 1.0, 2.3),
            (256 * MIB, 300.0, 2.0, 2.5),
        ] {
            // The example's quarter is at 0.95 of its median.
            assert_eq!(
                met(bytes, must / 0.94, line),
                (true, Some(false)),
                "{bytes} {line}"
            );
            assert_eq!(
                met(bytes, must / 0.96, line),
                (false, Some(false)),
                "{bytes} {line}"
            );
            assert_eq!(
                met(bytes, aim / 0.94, line),
                (true, Some(true)),
                "{bytes} {line}"
            );
        }
    }

    #[test]
    fn gloo_has_targets_of_its_own() {
        let rows = [
            example("gloo", OP, 64 * KIB, 60.0, 30.0),
            example("gloo", OP, MIB, 2.0, 30.0),
        ];
        let verdicts = judge(&rows, 2, 2);
        let met: Vec<_> = verdicts
            .iter()
            .map(|v| (v.must_met(), v.aim_met()))
            .collect();
        assert_eq!(met, [(true, Some(false)), (false, Some(false))]);
    }

    #[test]
    fn ranks_that_share_cores_are_held_against_open_mpi_and_ten_microseconds() {
        let rows = [
            example("openmpi", OP, 8, 1.2, 0.0),
            example("mpich", OP, 8, 0.5, 0.0),
        ];
        let mut verdicts = judge(&rows, 4, 2);
        assert_eq!(verdicts.len(), 2, "{verdicts:?}");
        assert!(verdicts.iter().all(|v| v.peer == "openmpi" && v.must_met()));
        let mut slow = rows[0].clone();
        slow.ours_us.median = 10.5;
        verdicts = judge(&[slow], 4, 2);
        assert!(verdicts[0].must_met() && !verdicts[1].must_met());
        assert_eq!(
            verdicts[1].to_string(),
            "all-reduce of 8 B: ours takes 10.5 µs, must be at most 10"
        );
        // Nothing is asked of four ranks that have a core each.
        assert!(judge(&rows, 4, 16).is_empty());
    }
}
