//! The results as Markdown.

use super::result::{OPERATIONS, Operation, Row};
use super::{PEERS, Report};
use crate::size_name;
use std::fmt::Write;

/// `1.45 (1.42..1.49)`, with as many digits as say something.
fn ratio(row: &Row) -> String {
    let digits = |v: f64| match v {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    };
    let q = row.ratio;
    let median = digits(q.median);
    format!("{median} ({}..{})", digits(q.p10), digits(q.p90))
}

fn microseconds(us: f64) -> String {
    match us {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// Columns: only peers that were there.
fn present(report: &Report) -> Vec<(&'static str, &'static str)> {
    PEERS
        .iter()
        .filter(|p| report.names.iter().any(|(key, _)| *key == p.key))
        .map(|p| (p.key, p.title))
        .collect()
}

fn operation(report: &Report, operation: Operation, out: &mut String) {
    let peers = present(report);
    let rows = || report.rows.iter().filter(|r| r.operation == operation);
    let mut sizes: Vec<u64> = rows().map(|r| r.bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    if sizes.is_empty() {
        return;
    }
    let _ = write!(out, "\n#### {}\n\n| size | ours µs |", operation.title());
    for (_, title) in &peers {
        let _ = write!(out, " {title} |");
    }
    let _ = write!(out, " best MPI: must, aim | gloo: must, aim |\n|---:|---:|");
    let _ = writeln!(out, "{}---|---|", "---:|".repeat(peers.len()));
    for bytes in sizes {
        let of = |peer: &str| rows().find(|r| r.bytes == bytes && r.peer == peer);
        // Each peer has processes of its own, in which ours ran beside it: the first's are shown.
        let first = peers.iter().find_map(|(key, _)| of(key));
        let ours = first.map_or_else(String::new, |r| microseconds(r.ours_us.median));
        let _ = write!(out, "| {} | {ours} |", size_name(bytes));
        for (key, _) in &peers {
            let cell = match of(key) {
                Some(row) => ratio(row),
                None if report.absent.contains(&(*key, operation)) => "has none".into(),
                None => "–".into(),
            };
            let _ = write!(out, " {cell} |");
        }
        let verdicts = || {
            report
                .verdicts
                .iter()
                .filter(|v| v.operation == operation && v.bytes == bytes)
        };
        let mpi: Vec<String> = verdicts()
            .filter(|v| !v.of_gloo())
            .map(|v| match v.of_mpi() {
                true => v.short(),
                false => format!("µs {}", v.short()),
            })
            .collect();
        let gloo: Vec<String> = verdicts()
            .filter(|v| v.of_gloo())
            .map(|v| v.short())
            .collect();
        let _ = writeln!(out, " {} | {} |", mpi.join("; "), gloo.join("; "));
    }
}

/// Head and a table for each operation.
pub fn markdown(report: &Report) -> String {
    let mut out = String::new();
    let names: Vec<&str> = report.names.iter().map(|(_, name)| name.as_str()).collect();
    let _ = writeln!(
        out,
        "{}, commit {}, {} ranks on {} cores of {}; {}.",
        report.date,
        report.commit,
        report.ranks,
        report.cores,
        report.processor,
        names.join(", ")
    );
    let span = |value: fn(&crate::Probe) -> f64| {
        let values = report.probes.iter().map(value);
        values.fold((f64::MAX, 0f64), |(a, b), v| (a.min(v), b.max(v)))
    };
    let (line, copy) = (span(|p| p.line_ns), span(|p| p.memcpy_gbs));
    let _ = writeln!(
        out,
        "Before, between and after: a cache line moved in {:.0} to {:.0} ns, `memcpy` ran at {:.1} to {:.1} GB/s.",
        line.0, line.1, copy.0, copy.1
    );
    let foreign = report
        .rows
        .iter()
        .filter_map(|r| r.json()["result"]["foreign_cpu_percent"].as_f64());
    let mut foreign: Vec<f64> = foreign.collect();
    foreign.sort_by(f64::total_cmp);
    if let (Some(middle), Some(most)) = (foreign.get(foreign.len() / 2), foreign.last()) {
        let _ = writeln!(
            out,
            "Others had {middle:.0}% of the cores in half of the measurements, {most:.0}% at most."
        );
    }
    for sentence in &report.missing {
        let _ = writeln!(out, "\n{}.", sentence.lines().next().unwrap_or_default());
    }
    for each in OPERATIONS {
        operation(report, each, &mut out);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::result::example;
    use super::super::target;
    use super::*;
    use crate::Probe;

    #[test]
    fn a_row_has_every_peer_that_was_there_and_says_what_is_not_met() {
        let rows = vec![
            example("openmpi", Operation::ReduceScatter, 8, 4.0, 300.0),
            example("mpich", Operation::ReduceScatter, 8, 1.2, 300.0),
        ];
        let report = Report {
            ranks: 2,
            cores: 2,
            date: "a day".into(),
            commit: "abc".into(),
            processor: "a processor".into(),
            probes: vec![Probe {
                line_ns: 30.0,
                memcpy_gbs: 6.0,
            }],
            names: vec![
                ("openmpi", "Open MPI v4".into()),
                ("mpich", "MPICH".into()),
                ("gloo", "gloo".into()),
            ],
            absent: vec![("gloo", Operation::ReduceScatter)],
            missing: vec!["MISSING PEER: ucx can't be built".into()],
            verdicts: target::judge(&rows, 2, 2),
            rows,
        };
        let text = markdown(&report);
        let row = text.lines().last().unwrap_or_default();
        assert_eq!(
            row,
            "| 8 B | 2.00 | 4.00 (3.60..4.40) | 1.20 (1.08..1.32) | has none | 1.5 **not**, 2.3 not |  |",
            "{text}"
        );
        for told in [
            "a day, commit abc, 2 ranks",
            "Open MPI v4, MPICH, gloo",
            "MISSING PEER: ucx",
        ] {
            assert!(text.contains(told), "{told}: {text}");
        }
        assert_eq!(report.behind().len(), 1, "{:?}", report.behind());
    }
}
