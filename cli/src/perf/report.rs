//! What a run found: rows and checks, as a table and as JSON.
#![forbid(unsafe_code)]

use super::operation::{Operation, Reduction};
use crate::words::plural;
use flagos_comm::{CommInfo, DataType};
use serde_json::{Value, json};

/// One timing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measure {
    /// Seconds of one call.
    pub seconds: f64,
    /// Wrong values of all ranks, if they were looked at.
    pub wrong: Option<u64>,
}

/// One row of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// The operation.
    pub operation: Operation,
    /// Count as its function takes it.
    pub count: usize,
    /// Element type.
    pub dtype: DataType,
    /// Operator, of a reduction.
    pub reduction: Option<Reduction>,
    /// Root, of a rooted operation.
    pub root: Option<usize>,
    /// Separate buffers.
    pub out_of_place: Option<Measure>,
    /// One buffer.
    pub in_place: Option<Measure>,
    /// Why the tier can't do it.
    pub unsupported: Option<String>,
}

/// The cases that --check added for one operation.
#[derive(Clone, Debug)]
pub struct CheckLine {
    /// The operation.
    pub operation: Operation,
    /// How many cases were compared.
    pub cases: u64,
    /// Wrong values.
    pub wrong: u64,
    /// Cases that the tier can't do.
    pub unsupported: u64,
}

/// What the run is about.
#[derive(Clone, Debug)]
pub struct Header {
    /// Version of the library under test.
    pub version: String,
    /// Where it comes from.
    pub origin: String,
    /// What the communicator runs on.
    pub info: CommInfo,
    /// Number of ranks.
    pub ranks: usize,
    /// How the ranks were started.
    pub mode: String,
    /// Names of the machines, each once.
    pub hosts: Vec<String>,
    /// Cores of rank 0's machine.
    pub cores: usize,
    /// Why this tier.
    pub choice: String,
    /// Where the operands lie.
    pub memory: String,
    /// Which stream.
    pub stream: String,
    /// Whether results are compared.
    pub check: bool,
}

/// Everything.
#[derive(Clone, Debug)]
pub struct Report {
    /// What the run is about.
    pub header: Header,
    /// The table.
    pub rows: Vec<Row>,
    /// What --check added.
    pub checks: Vec<CheckLine>,
    /// Descriptions of the first wrong values.
    pub details: Vec<String>,
    /// Wall-clock seconds.
    pub seconds: f64,
}

/// The name of a tier's number.
pub fn tier_name(tier: i32) -> &'static str {
    match tier {
        1 => "native",
        2 => "flagcx",
        3 => "host",
        _ => "unknown",
    }
}

impl Header {
    /// The vendor's library and its version, as the vendor encodes it.
    pub fn vendor_library(&self) -> String {
        let info = &self.info;
        if info.library_path.is_empty() {
            "none".to_owned()
        } else {
            format!("{} version {}", info.library_path, info.library_version)
        }
    }

    /// How many ranks there are, and as what.
    pub fn ranks_text(&self) -> String {
        let mode = match self.ranks {
            1 => self
                .mode
                .replacen("processes", "a process", 1)
                .replacen("threads", "a thread", 1),
            _ => self.mode.clone(),
        };
        format!("{} rank{} as {mode}", self.ranks, plural(self.ranks))
    }

    /// The lines above the table.
    pub fn lines(&self) -> Vec<String> {
        let vendor = match self.info.vendor.as_str() {
            "" => "none",
            vendor => vendor,
        };
        let mut lines = vec![
            format!("# flagos-comm {} ({})", self.version, self.origin),
            format!(
                "# tier {}, vendor {vendor}, vendor library: {}",
                tier_name(self.info.tier),
                self.vendor_library()
            ),
            format!("# {}", self.choice),
            format!(
                "# {}, host{} {} ({} core{})",
                self.ranks_text(),
                plural(self.hosts.len()),
                self.hosts.join(", "),
                self.cores,
                plural(self.cores)
            ),
            format!("# operands in {}, {}", self.memory, self.stream),
        ];
        // A library that is loaded may be too old to say it.
        if !self.info.host_engine_text.is_empty() {
            // MPICH calls its number "MPICH Version: 4.0.2".
            let engine = self.info.host_engine_text.replace(" Version: ", " ");
            let line = format!("# data moves over {engine}");
            lines.insert(2, line);
        }
        lines
    }
}

/// The lines that name the columns.
pub fn column_lines() -> [String; 3] {
    let group = format!(
        "{:>10} {:>8} {:>8} {:>6}",
        "time", "algbw", "busbw", "#wrong"
    );
    let units = format!("{:>10} {:>8} {:>8} {:>6}", "(us)", "(GB/s)", "(GB/s)", "");
    let left = |a, b, c, d, e, f| format!("# {a:<14} {b:>11} {c:>11} {d:>10} {e:>7} {f:>5}");
    let none = left("", "", "", "", "", "");
    let names = left("operation", "size", "count", "type", "redop", "root");
    let unit_names = left("", "(B)", "(elements)", "", "", "");
    [
        format!("{none}   {:^35}   {:^35}", "out of place", "in place"),
        format!("{names}   {group}   {group}"),
        format!("{unit_names}   {units}   {units}"),
    ]
    .map(|line| line.trim_end().to_owned())
}

impl Row {
    /// Bytes that the row's size column shows.
    pub fn bytes(&self, ranks: usize) -> usize {
        self.operation.row_elements(self.count, ranks) * self.dtype.size()
    }

    /// Algorithm and bus bandwidth of one of its timings.
    pub fn bandwidth(&self, measure: Measure, ranks: usize) -> (f64, f64) {
        let size = self.dtype.size();
        self.operation
            .bandwidth(self.count, size, ranks, measure.seconds)
    }

    /// The line of the table.
    pub fn line(&self, ranks: usize) -> String {
        let barrier = self.operation == Operation::Barrier;
        let dtype = if barrier { "-" } else { self.dtype.name() };
        let redop = self.reduction.map_or("-", Reduction::name);
        let root = self.root.map_or("-".to_owned(), |root| root.to_string());
        let mut line = format!(
            "  {:<14} {:>11} {:>11} {dtype:>10} {redop:>7} {root:>5}",
            self.operation.name(),
            self.bytes(ranks),
            self.count,
        );
        if let Some(why) = &self.unsupported {
            return format!("{line}   not supported: {why}");
        }
        for measure in [self.out_of_place, self.in_place] {
            line += "   ";
            line += &match measure {
                None => format!("{:>10} {:>8} {:>8} {:>6}", "-", "-", "-", "-"),
                Some(measure) => {
                    let (algorithm, bus) = self.bandwidth(measure, ranks);
                    let wrong = measure
                        .wrong
                        .map_or("-".to_owned(), |wrong| wrong.to_string());
                    let time = format!("{:>10.2}", measure.seconds * 1e6);
                    if barrier {
                        format!("{time} {:>8} {:>8} {wrong:>6}", "-", "-")
                    } else {
                        format!("{time} {algorithm:>8.3} {bus:>8.3} {wrong:>6}")
                    }
                }
            };
        }
        line
    }

    fn json(&self, ranks: usize) -> Value {
        let measure = |measure: Option<Measure>| {
            measure.map(|measure| {
                let (algorithm, bus) = self.bandwidth(measure, ranks);
                json!({
                    "time_us": measure.seconds * 1e6,
                    "algbw_gbs": algorithm,
                    "busbw_gbs": bus,
                    "wrong": measure.wrong,
                })
            })
        };
        json!({
            "operation": self.operation.name(),
            "bytes": self.bytes(ranks),
            "count": self.count,
            "datatype": self.dtype.name(),
            "op": self.reduction.map(Reduction::name),
            "root": self.root,
            "out_of_place": measure(self.out_of_place),
            "in_place": measure(self.in_place),
            "unsupported": self.unsupported,
        })
    }
}

impl CheckLine {
    /// The line below the table.
    pub fn line(&self) -> String {
        let mut line = format!(
            "# check {:<14} {:>6} more cases, {} wrong",
            self.operation.name(),
            self.cases,
            self.wrong
        );
        if self.unsupported > 0 {
            line += &format!(", {} not supported by the tier", self.unsupported);
        }
        line
    }
}

impl Report {
    /// Wrong values of the whole run.
    pub fn wrong(&self) -> u64 {
        let rows = self
            .rows
            .iter()
            .flat_map(|row| [row.out_of_place, row.in_place]);
        let rows: u64 = rows.flatten().filter_map(|measure| measure.wrong).sum();
        rows + self.checks.iter().map(|check| check.wrong).sum::<u64>()
    }

    /// Whether a check was asked for and nothing could be compared, which proves nothing.
    pub fn nothing_checked(&self) -> bool {
        let timed = |row: &Row| row.out_of_place.is_some() || row.in_place.is_some();
        let moved = |row: &&Row| row.operation != Operation::Barrier;
        self.header.check
            && !self.rows.iter().filter(moved).any(timed)
            && self
                .checks
                .iter()
                .all(|check| check.unsupported >= check.cases)
    }

    /// Mean bus bandwidth of all timings that move data.
    pub fn average_bus_bandwidth(&self) -> f64 {
        let ranks = self.header.ranks;
        let all: Vec<f64> = self
            .rows
            .iter()
            .filter(|row| row.operation != Operation::Barrier)
            .flat_map(|row| {
                let timings = [row.out_of_place, row.in_place].into_iter().flatten();
                timings.map(|measure| row.bandwidth(measure, ranks).1)
            })
            .collect();
        all.iter().sum::<f64>() / (all.len().max(1) as f64)
    }

    /// The last line.
    pub fn last_line(&self) -> String {
        let wrong = if self.nothing_checked() {
            "NOTHING WAS CHECKED: the tier can't do any case".to_owned()
        } else if self.header.check {
            format!("wrong values {}", self.wrong())
        } else {
            "values not checked (--check)".to_owned()
        };
        format!(
            "# average bus bandwidth {:.3} GB/s, {wrong}, {:.1} s",
            // No rows give -0, an empty sum.
            self.average_bus_bandwidth().abs(),
            self.seconds
        )
    }

    /// The machine-readable form.
    pub fn json(&self) -> Value {
        let header = &self.header;
        let checks: Vec<Value> = self
            .checks
            .iter()
            .map(|check| {
                json!({
                    "operation": check.operation.name(),
                    "cases": check.cases,
                    "wrong": check.wrong,
                    "unsupported": check.unsupported,
                })
            })
            .collect();
        let rows: Vec<Value> = self.rows.iter().map(|row| row.json(header.ranks)).collect();
        json!({
            "format": "flagos-comm perf 1",
            "library": {
                "version": header.version,
                "origin": header.origin,
                "tier": tier_name(header.info.tier),
                "host_engine": header.info.host_engine,
                "host_engine_text": header.info.host_engine_text,
                "vendor": header.info.vendor,
                "vendor_library": header.info.library_path,
                "vendor_library_version": header.info.library_version,
                "stream_kind": header.info.stream_kind,
                "completion": header.info.completion,
            },
            "choice": header.choice,
            "ranks": header.ranks,
            "mode": header.mode,
            "hosts": header.hosts,
            "cores": header.cores,
            "memory": header.memory,
            "stream": header.stream,
            "checked": header.check,
            "rows": rows,
            "checks": checks,
            "details": self.details,
            "average_busbw_gbs": self.average_bus_bandwidth(),
            "wrong": self.wrong(),
            "seconds": self.seconds,
        })
    }
}
