//! What the peers' programs print, one line of JSON each.

use serde_json::{Value, json};
use std::str::FromStr;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// float32, sum, out of place.
    AllReduce,
    /// Sizes are those of the receive buffer.
    AllGather,
    /// float32, sum; sizes are those of the send buffer.
    ReduceScatter,
    /// Sizes are those of each buffer.
    AllToAll,
    /// In place, from each rank in turn.
    Broadcast,
    /// Half the round trip of a message.
    Latency,
    /// A message out of a window of them.
    Stream,
}

/// All of them.
pub const OPERATIONS: [Operation; 7] = [
    Operation::AllReduce,
    Operation::AllGather,
    Operation::ReduceScatter,
    Operation::AllToAll,
    Operation::Broadcast,
    Operation::Latency,
    Operation::Stream,
];

impl Operation {
    /// As the programs, the options and the files have it.
    pub fn name(self) -> &'static str {
        match self {
            Operation::AllReduce => "all-reduce",
            Operation::AllGather => "all-gather",
            Operation::ReduceScatter => "reduce-scatter",
            Operation::AllToAll => "all-to-all",
            Operation::Broadcast => "broadcast",
            Operation::Latency => "latency",
            Operation::Stream => "stream",
        }
    }

    /// As a heading, with what the sizes and times are.
    pub fn title(self) -> &'static str {
        match self {
            Operation::AllReduce => "All-reduce",
            Operation::AllGather => "All-gather (size: all that a rank receives)",
            Operation::ReduceScatter => "Reduce-scatter (size: all that a rank gives)",
            Operation::AllToAll => "All-to-all (size: all that a rank sends)",
            Operation::Broadcast => "Broadcast (each rank in turn is the root)",
            Operation::Latency => "Send and receive, latency (half a round trip)",
            Operation::Stream => {
                "Send and receive, bandwidth (a message of a window of up to 64 and 4 MiB)"
            }
        }
    }
}

impl FromStr for Operation {
    type Err = String;

    fn from_str(name: &str) -> Result<Operation, String> {
        let names = || OPERATIONS.map(Operation::name).join(", ");
        OPERATIONS
            .into_iter()
            .find(|o| o.name() == name)
            .ok_or_else(|| format!("there is no operation {name}; there are {}", names()))
    }
}

/// Where a distribution lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantiles {
    /// A tenth is below.
    pub p10: f64,
    /// A quarter is below.
    pub p25: f64,
    /// The middle.
    pub median: f64,
    /// A tenth is above.
    pub p90: f64,
}

impl Quantiles {
    fn of(data: &Value, key: &str) -> Result<Quantiles, String> {
        let number = |name: &str| {
            data[key][name]
                .as_f64()
                .ok_or_else(|| format!("no number {key}.{name} in {data}"))
        };
        Ok(Quantiles {
            p10: number("p10")?,
            p25: number("p25")?,
            median: number("median")?,
            p90: number("p90")?,
        })
    }

    /// The median is below that much, or no number.
    pub fn below(&self, least: f64) -> bool {
        self.median.partial_cmp(&least).is_none_or(|o| o.is_lt())
    }

    /// Whether the median is at least that much, and three quarters are, too. What is no number reaches nothing.
    pub fn reaches(&self, least: f64) -> bool {
        self.p25 >= least && self.median >= least
    }
}

/// One operation of one size against one peer.
#[derive(Clone, Debug)]
pub struct Row {
    /// Key of the peer.
    pub peer: &'static str,
    /// What was compared.
    pub operation: Operation,
    /// The size that was asked for.
    pub bytes: u64,
    /// Microseconds of a call of ours.
    pub ours_us: Quantiles,
    /// Microseconds of a call of the peer's.
    pub peer_us: Quantiles,
    /// The peer's time over ours, of neighbouring blocks.
    pub ratio: Quantiles,
    /// Nanoseconds of a hop of a cache line between ranks 0 and 1, before and after; `None` where ranks share cores.
    pub line_ns: Option<(f64, f64)>,
    data: Value,
}

impl Row {
    /// The line of the program, complete.
    pub fn json(&self) -> Value {
        json!({"peer": self.peer, "result": self.data})
    }

    /// The two ranks that were asked were close to each other: on one core, or below one last-level cache.
    pub fn near(&self) -> bool {
        const NEAR_NS: f64 = 120.0;
        self.line_ns
            .is_some_and(|(before, after)| (before + after) / 2.0 <= NEAR_NS)
    }
}

/// All of one peer.
#[derive(Debug, Default)]
pub struct Measured {
    /// What the peer calls itself.
    pub name: String,
    /// The results.
    pub rows: Vec<Row>,
    /// What it has not.
    pub absent: Vec<Operation>,
}

impl Measured {
    /// Takes a line of the program, and says whether it was a result.
    pub fn take(&mut self, peer: &'static str, line: &str) -> Result<bool, String> {
        // A launcher may print lines of its own.
        let Ok(mut data) = serde_json::from_str::<Value>(line) else {
            return Ok(false);
        };
        if let Some(name) = data["peer"].as_str() {
            // MPICH says "MPICH Version: 4.0.2".
            self.name = name.replace(" Version:", "");
            return Ok(false);
        }
        let operation: Operation = data["operation"].as_str().unwrap_or_default().parse()?;
        if data["absent"] == true {
            self.absent.push(operation);
            return Ok(false);
        }
        if let Some(after) = data["line_ns_after"].as_f64() {
            let row = self.rows.last_mut().ok_or("a line after no result")?;
            row.line_ns = row
                .line_ns
                .filter(|(before, _)| *before > 0.0)
                .map(|(before, _)| (before, after));
            row.data["line_ns"] = json!(row.line_ns.map(|l| l.0));
            row.data["line_ns_after"] = json!(row.line_ns.map(|l| l.1));
            return Ok(false);
        }
        let line_ns = data["line_ns"].as_f64();
        if let Some(object) = data.as_object_mut() {
            object.insert("operation".into(), json!(operation.name()));
        }
        self.rows.push(Row {
            peer,
            operation,
            bytes: data["bytes"].as_u64().ok_or("a result without a size")?,
            ours_us: Quantiles::of(&data, "ours_us")?,
            peer_us: Quantiles::of(&data, "peer_us")?,
            ratio: Quantiles::of(&data, "ratio")?,
            line_ns: line_ns.map(|before| (before, before)),
            data,
        });
        Ok(true)
    }
}

/// A row for tests.
#[cfg(test)]
pub fn example(peer: &'static str, operation: Operation, bytes: u64, ratio: f64, line: f64) -> Row {
    let around = |middle: f64| Quantiles {
        p10: middle * 0.9,
        p25: middle * 0.95,
        median: middle,
        p90: middle * 1.1,
    };
    Row {
        peer,
        operation,
        bytes,
        ours_us: around(2.0),
        peer_us: around(2.0 * ratio),
        ratio: around(ratio),
        line_ns: (line > 0.0).then_some((line, line)),
        data: json!({}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"operation":"all-reduce","bytes":8,"line_ns":30.0,"ranks":2,"pairs":21,
        "ours_us":{"p10":1,"p25":2,"median":3,"p75":4,"p90":5},"peer_us":{"p10":2,"p25":4,"median":6,"p75":8,"p90":10},
        "ratio":{"p10":1.5,"p25":1.8,"median":2,"p75":2.2,"p90":2.5},"foreign_cpu_percent":1.0}"#;

    #[test]
    fn lines_of_a_program_become_rows() {
        let mut measured = Measured::default();
        for line in [
            "[host] some line of a launcher",
            r#"{"peer":"Open MPI v4"}"#,
        ] {
            assert_eq!(measured.take("openmpi", line), Ok(false), "{line}");
        }
        assert_eq!(measured.take("openmpi", LINE), Ok(true));
        let after = r#"{"operation":"all-reduce","bytes":8,"line_ns_after":300.0}"#;
        assert_eq!(measured.take("openmpi", after), Ok(false));
        let absent = r#"{"operation":"reduce-scatter","absent":true}"#;
        assert_eq!(measured.take("openmpi", absent), Ok(false));
        assert_eq!(measured.name, "Open MPI v4");
        let mpich = r#"{"peer":"MPICH Version: 4.0.2"}"#;
        assert_eq!(measured.take("mpich", mpich), Ok(false));
        assert_eq!(measured.name, "MPICH 4.0.2");
        assert_eq!(measured.absent, [Operation::ReduceScatter]);
        let row = &measured.rows[0];
        assert_eq!((row.operation, row.bytes), (Operation::AllReduce, 8));
        assert_eq!((row.ours_us.median, row.peer_us.median), (3.0, 6.0));
        assert_eq!(row.line_ns, Some((30.0, 300.0)));
        assert!(!row.near(), "165 ns on average is far");
        assert!(
            row.ratio.reaches(1.8) && !row.ratio.reaches(1.9),
            "the quarter counts, too"
        );
    }

    #[test]
    fn a_result_that_lacks_something_is_refused() {
        for broken in [
            LINE.replace("\"median\":2", "\"middle\":2"),
            LINE.replace("all-reduce", "all-reduct"),
            LINE.replace("\"bytes\":8", "\"bytes\":-8"),
        ] {
            let told = Measured::default().take("gloo", &broken);
            assert!(told.is_err(), "{broken}: {told:?}");
        }
    }

    #[test]
    fn ranks_that_share_cores_have_no_distance() {
        let mut measured = Measured::default();
        let line = LINE.replace("30.0", "0.0");
        assert_eq!(measured.take("gloo", &line), Ok(true));
        let after = r#"{"operation":"all-reduce","bytes":8,"line_ns_after":0.0}"#;
        assert_eq!(measured.take("gloo", after), Ok(false));
        assert_eq!(measured.rows[0].line_ns, None);
        assert!(!measured.rows[0].near());
    }
}
