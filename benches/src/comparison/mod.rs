//! Ours against other libraries on one host: every operation, paired in the same processes.
#![forbid(unsafe_code)]

mod document;
mod peer;
mod plot;
mod result;
mod table;
mod target;

pub use peer::PEERS;
pub use result::{OPERATIONS, Operation, Row};
pub use target::Verdict;

use crate::{Probe, commit, cores, date, processor, scratch, size_name};
use flagos_comm_testkit::cargo::workspace;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use peer::Peer;
use result::Measured;
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

/// What is compared, and how.
pub struct Settings {
    /// The `libflagos_comm.so` to measure.
    pub lib: PathBuf,
    /// Keys of [`PEERS`]; empty for all but those that have to be named.
    pub peers: Vec<String>,
    /// Operations by name; empty for all.
    pub operations: Vec<String>,
    /// Ranks, all on this host.
    pub ranks: u32,
    /// Bytes.
    pub sizes: Vec<u64>,
    /// Pairs of blocks for each size, fewer where they take long.
    pub pairs: u32,
    /// Seconds of a block.
    pub block: f64,
}

/// What came out, of all peers.
pub struct Report {
    ranks: u32,
    cores: usize,
    date: String,
    commit: String,
    processor: String,
    probes: Vec<Probe>,
    /// Peers that were there: key and what they call themselves.
    names: Vec<(&'static str, String)>,
    /// Operations that a peer has not.
    absent: Vec<(&'static str, Operation)>,
    /// Why a peer could not be compared with.
    pub missing: Vec<String>,
    /// The results.
    pub rows: Vec<Row>,
    /// What the results mean for the project's targets.
    pub verdicts: Vec<Verdict>,
}

/// The bar on stderr, if that is a terminal; else a line for each peer.
struct Progress(Option<ProgressBar>);

impl Progress {
    fn new(steps: usize) -> Progress {
        if !std::io::stderr().is_terminal() {
            return Progress(None);
        }
        let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
        if let Ok(style) =
            ProgressStyle::with_template("{bar:30} {pos}/{len}, {eta} left, {wide_msg}")
        {
            bar.set_style(style);
        }
        Progress(Some(bar))
    }

    fn at(&self, what: &str) {
        match &self.0 {
            Some(bar) => bar.set_message(what.to_owned()),
            None => eprintln!("comparing with {what} ..."),
        }
    }

    fn step(&self, steps: usize) {
        if let Some(bar) = &self.0 {
            bar.inc(steps as u64);
        }
    }

    fn done(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// Builds the peers' programs and runs them, one peer after the other.
///
/// # Errors
/// If a comparison fails: a peer that can't be built is only missing.
pub fn run(settings: &Settings) -> Result<Report, String> {
    let wanted = |name: &str, list: &[String]| list.is_empty() || list.iter().any(|l| l == name);
    let peers: Vec<&Peer> = PEERS
        .iter()
        .filter(|p| wanted(p.key, &settings.peers))
        .filter(|p| !(p.only_if_named && settings.peers.is_empty()))
        .collect();
    let operations: Vec<Operation> = OPERATIONS
        .into_iter()
        .filter(|o| wanted(o.name(), &settings.operations))
        .collect();
    let dir = scratch("peers");
    let each = operations.len() * settings.sizes.len();
    let progress = Progress::new(peers.len() * each);
    let mut report = Report {
        ranks: settings.ranks,
        cores: cores(),
        date: date(),
        commit: commit(),
        processor: processor(),
        probes: vec![Probe::take()],
        names: Vec::new(),
        absent: Vec::new(),
        missing: Vec::new(),
        rows: Vec::new(),
        verdicts: Vec::new(),
    };
    for peer in peers {
        progress.at(peer.key);
        let mut steps = 0;
        let measured = peer.build(&dir).map(|program| {
            peer.measure(&program, settings, &operations, &dir, &mut || {
                steps += 1;
                progress.step(1);
            })
        });
        match measured {
            Err(why) => report.missing.push(format!(
                "MISSING PEER: {} can't be compared with: {}\n  on Debian: {}",
                peer.key,
                why.trim(),
                peer.install
            )),
            Ok(Err(why)) => {
                progress.done();
                return Err(format!("{}: {why}", peer.key));
            }
            Ok(Ok(Measured { name, rows, absent })) => {
                report.names.push((peer.key, name));
                report.rows.extend(rows);
                report
                    .absent
                    .extend(absent.into_iter().map(|a| (peer.key, a)));
            }
        }
        progress.step(each.saturating_sub(steps));
        report.probes.push(Probe::take());
    }
    progress.done();
    report.verdicts = target::judge(&report.rows, report.ranks, report.cores);
    Ok(report)
}

impl Report {
    /// The results as Markdown.
    pub fn markdown(&self) -> String {
        table::markdown(self)
    }

    /// Everything.
    pub fn json(&self) -> Value {
        json!({
            "what": "flagos-comm on the host tier against others, paired blocks; ratio is peer / ours",
            "machines": 1,
            "ranks": self.ranks,
            "date": self.date,
            "commit": self.commit,
            "processor": self.processor,
            "cores": self.cores,
            "probes": self.probes.iter().map(|p| p.json()).collect::<Vec<_>>(),
            "peers": self.names.iter().map(|(key, name)| json!({"key": key, "name": name})).collect::<Vec<_>>(),
            "missing": self.missing,
            "absent": self.absent.iter().map(|(peer, operation)| json!({"peer": peer, "operation": operation.name()})).collect::<Vec<_>>(),
            "rows": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
            "targets": self.verdicts.iter().map(Verdict::json).collect::<Vec<_>>(),
        })
    }

    /// The name of the files without their ending.
    fn stem(&self) -> String {
        match self.ranks {
            2 => "peers".into(),
            n => format!("peers-{n}"),
        }
    }

    /// Writes the JSON file and the plot, and returns their paths.
    ///
    /// # Errors
    /// In words, with the file.
    pub fn write(&self, folder: &Path) -> Result<Vec<PathBuf>, String> {
        let failed =
            |file: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
        std::fs::create_dir_all(folder).map_err(|e| failed(folder, &e))?;
        let json = folder.join(format!("{}.json", self.stem()));
        std::fs::write(&json, format!("{:#}\n", self.json())).map_err(|e| failed(&json, &e))?;
        let mut written = vec![json];
        if !self.rows.is_empty() {
            let svg = folder.join(format!("{}.svg", self.stem()));
            plot::ratios(&svg, self).map_err(|e| failed(&svg, &e))?;
            written.push(svg);
        }
        Ok(written)
    }

    /// Renews the files and the table in `docs/`, and returns their paths.
    ///
    /// # Errors
    /// In words, with the file.
    pub fn write_docs(&self) -> Result<Vec<PathBuf>, String> {
        let docs = workspace().join("docs");
        let mut written = self.write(&docs.join("performance"))?;
        let page = docs.join("performance.md");
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", page.display());
        let text = std::fs::read_to_string(&page).map_err(|e| failed(&e))?;
        let name = format!("peers of {} ranks", self.ranks);
        let new = document::replace(&text, &name, &self.markdown()).map_err(|e| failed(&e))?;
        std::fs::write(&page, new).map_err(|e| failed(&e))?;
        written.push(page);
        Ok(written)
    }

    /// A sentence for every result that is slower than a peer, and for every target of those that must be met and is not.
    pub fn behind(&self) -> Vec<String> {
        let slower = self.rows.iter().filter(|r| r.ratio.below(1.0)).map(|r| {
            format!(
                "SLOWER: {} of {} than {}, ratio {:.2} (a quarter below {:.2})",
                r.operation.name(),
                size_name(r.bytes),
                r.peer,
                r.ratio.median,
                r.ratio.p25
            )
        });
        let missed = self
            .verdicts
            .iter()
            .filter(|v| !v.must_met())
            .map(|v| format!("NOT MET: {v}"));
        slower.chain(missed).collect()
    }
}
