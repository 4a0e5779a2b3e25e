//! What every vendor's libraries are like on this machine.
//!
//! Each vendor is looked at by a process of its own, this tool again: a library that hangs or ends its
//! process takes nothing else with it, and nothing is opened that this process doesn't use.
#![forbid(unsafe_code)]

use crate::sys;
use flagos_comm::internal;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Starts of the lines that a vendor's process writes, as its libraries may write to stdout, too.
const STAGE: &str = "flagos-comm survey, stage: ";
const REPORT: &str = "flagos-comm survey, report: ";
/// So many missing functions are named.
const NAMED: usize = 6;

/// What a vendor's process found, or why it didn't say.
pub struct Surveyed {
    vendor: String,
    found: Result<Value, String>,
}

/// What is asked for beside the vendors: what the library does in a process that uses it.
pub const ITSELF: &str = "itself";

/// The process that looks at one vendor, or at the library itself by `itself`.
///
/// # Errors
/// If there is no such vendor.
pub fn one(vendor: &str, itself: impl FnOnce(&mut dyn FnMut(&str)) -> Value) -> Result<u8, String> {
    let say = |line: String| {
        // Nobody is there to hear about a closed pipe.
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    };
    let mut stage = |stage: &str| say(format!("{STAGE}{stage}"));
    let report = match vendor {
        ITSELF => itself(&mut stage).to_string(),
        vendor => internal::survey(vendor, &mut stage)
            .ok_or_else(|| format!("there is no vendor {vendor:?}"))?,
    };
    say(format!("{REPORT}{report}"));
    // The libraries' own destructors are not what is surveyed.
    sys::exit_now(0)
}

/// Looks at every vendor, all at once, for no longer than the limit at each step.
pub fn all(limit: Duration) -> Vec<Surveyed> {
    let threads: Vec<_> = internal::surveyed()
        .map(|vendor| (vendor, std::thread::spawn(move || ask(vendor, limit))))
        .collect();
    threads
        .into_iter()
        .map(|(vendor, thread)| Surveyed {
            vendor: vendor.to_owned(),
            found: thread
                .join()
                .unwrap_or_else(|_| Err("the thread that asked ended".to_owned())),
        })
        .collect()
}

fn start(vendor: &str, limit: Duration) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["doctor", "--survey", vendor, "--patience"])
        .arg(limit.as_secs_f64().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    // What the library warns of in use is worth reading.
    if vendor != ITSELF {
        command.env("FLAGOSCOMM_LOG", "off").stderr(Stdio::null());
    } else if internal::host_engine() == "mpi" {
        // MPI takes no two ranks of one process.
        command.env_remove("FLAGOSCOMM_HOST_ENGINE");
    }
    command.spawn()
}

/// What a process of its own says, or why it doesn't.
///
/// # Errors
/// If it takes longer than the limit at one step, or ends.
pub fn ask(vendor: &str, limit: Duration) -> Result<Value, String> {
    let mut deadline = Instant::now() + limit;
    let mut child = start(vendor, limit).map_err(|error| format!("no process for it: {error}"))?;
    let (sender, lines) = mpsc::channel();
    if let Some(out) = child.stdout.take() {
        // Ends with the pipe; if something else holds that open, it is left behind.
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
    }
    let mut stage = "it was started".to_owned();
    let mut report = None;
    let late = loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                if let Some(text) = line.strip_prefix(STAGE) {
                    text.clone_into(&mut stage);
                    deadline = Instant::now() + limit;
                } else if let Some(text) = line.strip_prefix(REPORT) {
                    report = Some(serde_json::from_str(text).map_err(|e| e.to_string()));
                    break false;
                }
            }
            Err(RecvTimeoutError::Timeout) => break true,
            Err(RecvTimeoutError::Disconnected) => break false,
        }
    };
    if late || report.is_some() {
        // It has nothing more to say. Fails if it has ended by itself.
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    if let Some(report) = report {
        return report;
    }
    if late {
        let seconds = limit.as_secs_f64();
        return Err(format!(
            "cut off after {seconds} s without an answer, while {stage}"
        ));
    }
    let how = match status.signal() {
        Some(signal) => format!("was ended by signal {signal}"),
        None => format!("ended with {}", status.code().unwrap_or_default()),
    };
    Err(format!("a process that tried it {how}, while {stage}"))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn joined(value: &Value) -> String {
    list(value).iter().map(text).collect::<Vec<_>>().join(", ")
}

fn is_used(attempt: &Value) -> bool {
    ["loaded", "already-loaded"].contains(&text(&attempt["outcome"]))
}

/// What came of a candidate that is there, or that the user named.
fn told(attempt: &Value, details: bool) -> Option<String> {
    let mut line = String::new();
    match text(&attempt["outcome"]) {
        "absent" if !details && attempt["source"] != "override" => return None,
        outcome if is_used(attempt) => line.push_str(match outcome {
            "loaded" => "",
            _ => "in the process already: ",
        }),
        outcome => line.push_str(&format!("{outcome}: ")),
    }
    let (name, path) = (text(&attempt["name"]), text(&attempt["path"]));
    match path {
        "" => line.push_str(name),
        path if is_used(attempt) || path == name => line.push_str(path),
        path => line.push_str(&format!("{name} ({path})")),
    }
    if let Some(version) = attempt["version"].as_str() {
        line.push_str(&format!(", version {version}"));
    }
    if let Some(coverage) = attempt["coverage"].as_object() {
        line.push_str(&format!(
            ", {} of {} functions",
            coverage["found"], coverage["total"]
        ));
        let missing = list(&coverage["missing"]);
        let shown = if details { missing.len() } else { NAMED };
        let mut names: Vec<String> = missing
            .iter()
            .take(shown)
            .map(|name| text(name).to_owned())
            .collect();
        if missing.len() > shown {
            names.push(format!("{} more", missing.len() - shown));
        }
        if !names.is_empty() {
            line.push_str(&format!(" (without {})", names.join(", ")));
        }
    }
    if let Some(detail) = attempt["detail"].as_str() {
        // The loader begins with the name that it was given.
        let detail = detail.strip_prefix(&format!("{name}: ")).unwrap_or(detail);
        line.push_str(&format!(": {detail}"));
    }
    if details {
        line.push_str(&format!(
            " [{}: {}]",
            text(&attempt["source"]),
            text(&attempt["why"])
        ));
    }
    Some(line)
}

impl Surveyed {
    /// Whether something of the vendor is there.
    pub fn is_there(&self) -> bool {
        let Ok(found) = &self.found else { return true };
        let mut attempts = list(&found["sections"])
            .iter()
            .flat_map(|section| list(&section["attempts"]));
        attempts.any(|attempt| told(attempt, false).is_some())
    }

    /// Whether it is about an accelerator's vendor, or what stands for one, and not about a library that
    /// the host tier uses between machines.
    pub fn is_of_vendor(&self) -> bool {
        !["ucx", "mpi", "ucc"].contains(&self.vendor.as_str())
    }

    /// Whether it is what is known by this key.
    pub fn is(&self, key: &str) -> bool {
        self.vendor == key
    }

    /// The file of the collective library that would be used.
    pub fn used(&self) -> Option<&str> {
        let found = self.found.as_ref().ok()?;
        let section = list(&found["sections"]).last()?;
        let used = list(&section["attempts"]).iter().find(|a| is_used(a))?;
        found["library_error"]
            .is_null()
            .then(|| text(&used["path"]))
    }

    /// The file that the user named for the collective library, if it can't be used, and why.
    pub fn refused_override(&self) -> Option<(&str, &str)> {
        let found = self.found.as_ref().ok()?;
        let section = list(&found["sections"]).last()?;
        let mut attempts = list(&section["attempts"]).iter();
        let named =
            attempts.find(|attempt| attempt["source"] == "override" && !is_used(attempt))?;
        let (name, why) = (text(&named["name"]), text(&named["detail"]));
        Some((name, why.strip_prefix(&format!("{name}: ")).unwrap_or(why)))
    }

    /// For people: one line if nothing is there.
    pub fn lines(&self, details: bool) -> Vec<String> {
        let found = match &self.found {
            Ok(found) => found,
            Err(why) => return vec![format!("{}: {why}", self.vendor)],
        };
        let mut title = self.vendor.clone();
        let aliases = joined(&found["aliases"]);
        if !aliases.is_empty() {
            title.push_str(&format!(" ({aliases})"));
        }
        if found["only_named"] == true {
            title.push_str(", used only if it is named");
        }
        if !details && !self.is_there() && found["sections"] != json!([]) {
            let names = [&found["driver_names"], &found["library_names"]];
            let names: Vec<String> = names
                .map(joined)
                .into_iter()
                .filter(|names| !names.is_empty())
                .collect();
            return vec![format!("{title}: no {}", names.join(", "))];
        }
        let mut lines = vec![title];
        let mut notes = Vec::new();
        let mut library_used = false;
        for section in list(&found["sections"]) {
            let name = text(&section["title"]);
            let attempts = list(&section["attempts"]);
            let before = lines.len();
            for line in attempts.iter().filter_map(|a| told(a, details)) {
                lines.push(format!("  {name}: {line}"));
            }
            if lines.len() == before {
                lines.push(format!("  {name}: not found"));
            }
            for note in list(&section["notes"]) {
                lines.push(format!("  {name}: {}", text(note)));
                notes.push(text(note));
            }
            // The last section is the collective library's.
            library_used = attempts.iter().any(is_used);
        }
        if let Some(devices) = found["devices"].as_i64() {
            lines.push(format!("  devices: {devices}"));
        }
        let opened = |error: &str| !error.contains("tried: ");
        for (whose, error) in [
            ("driver", &found["driver_error"]),
            ("collective library", &found["library_error"]),
        ] {
            // What was not found is said above.
            if let Some(error) = error.as_str()
                && opened(error)
                && !notes.contains(&error)
            {
                lines.push(format!("  {whose}: {error}"));
            }
        }
        if library_used && found["library_error"].is_null() {
            let use_of_it = match self.is_of_vendor() {
                true => "the collective library can be used",
                false => "the host tier can use it between machines",
            };
            lines.push(format!("  {use_of_it}"));
        }
        lines
    }

    /// For programs.
    pub fn json(&self) -> Value {
        match &self.found {
            Ok(found) => found.clone(),
            Err(why) => json!({"vendor": self.vendor, "error": why}),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn surveyed(found: Value) -> Surveyed {
        Surveyed {
            vendor: "amd".to_owned(),
            found: Ok(found),
        }
    }

    fn absent(name: &str, source: &str) -> Value {
        json!({"source": source, "name": name, "why": "w", "outcome": "absent",
               "detail": "there is no such file", "path": null, "version": null, "coverage": null})
    }

    #[test]
    fn what_is_not_there_takes_one_line() {
        let one = surveyed(json!({
            "aliases": ["rocm"], "only_named": false,
            "driver_names": ["liba.so.1", "liba.so"], "library_names": ["libc.so"],
            "driver_error": "no driver of amd can be loaded; tried: liba.so.1",
            "sections": [{"title": "A", "attempts": [absent("liba.so.1", "soname")], "notes": []}],
        }));
        assert!(!one.is_there());
        assert_eq!(
            one.lines(false),
            ["amd (rocm): no liba.so.1, liba.so, libc.so"]
        );
        let lines = one.lines(true);
        assert_eq!(
            lines,
            [
                "amd (rocm)",
                "  A: absent: liba.so.1: there is no such file [soname: w]"
            ]
        );
    }

    #[test]
    fn what_the_user_named_is_told() {
        let one = surveyed(json!({
            "sections": [{"title": "A", "attempts": [absent("/a.so", "override")], "notes": []}],
        }));
        assert!(one.is_there());
        assert!(one.lines(false)[1].contains("/a.so: there is no such file"));
    }

    #[test]
    fn missing_functions_are_named_up_to_a_number() {
        let missing: Vec<String> = (0..10).map(|i| format!("f{i}")).collect();
        let used = json!({"source": "soname", "name": "libc.so", "why": "w", "outcome": "loaded",
            "detail": null, "path": "/x/libc.so", "version": "2.1",
            "coverage": {"found": 5, "total": 15, "missing": missing}});
        let one = surveyed(json!({
            "devices": 2, "library_error": null,
            "sections": [{"title": "C", "attempts": [used], "notes": []}],
        }));
        assert_eq!(
            one.lines(false)[1],
            "  C: /x/libc.so, version 2.1, 5 of 15 functions (without f0, f1, f2, f3, f4, f5, 4 more)"
        );
        assert!(one.lines(true)[1].contains("f9"));
        assert!(one.lines(false).contains(&"  devices: 2".to_owned()));
    }
}
