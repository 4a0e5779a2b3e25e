//! What was tried to find a library, and what came of it.
//!
//! One line per candidate, kept for the process, so that nobody needs a debug variable to learn
//! why a library was not used.
#![forbid(unsafe_code)]

use std::fmt::{self, Write};

/// Where a candidate came from. The order of the variants is the order in which they are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The user named it.
    Override,
    /// Already loaded by the process, found by its soname.
    AlreadyLoaded,
    /// Mapped by the process under another file name.
    Mapped,
    /// The loader's own search for a soname.
    Soname,
    /// The search path recorded in a mapped object that needs the library.
    Runpath,
    /// A folder of `LD_LIBRARY_PATH`.
    LibraryPath,
    /// The loader's cache.
    LoaderCache,
    /// Where the vendor's Python wheel puts it.
    Wheel,
    /// A root of the vendor's row.
    Root,
}

impl Source {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Source::Override => "override",
            Source::AlreadyLoaded => "already-loaded",
            Source::Mapped => "mapped",
            Source::Soname => "soname",
            Source::Runpath => "runpath",
            Source::LibraryPath => "ld-library-path",
            Source::LoaderCache => "ld-so-cache",
            Source::Wheel => "wheel",
            Source::Root => "root",
        }
    }
}

/// What came of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was in the process already and is used.
    AlreadyLoaded,
    /// It was loaded and is used.
    Loaded,
    /// There is something, and it can't be used.
    Refused,
    /// There is nothing.
    Absent,
}

impl Outcome {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Outcome::AlreadyLoaded => "already-loaded",
            Outcome::Loaded => "loaded",
            Outcome::Refused => "refused",
            Outcome::Absent => "absent",
        }
    }
}

/// How many of the functions that the library can use are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coverage {
    /// Functions found.
    pub found: usize,
    /// Functions looked for.
    pub total: usize,
    /// Names that are missing.
    pub missing: Vec<String>,
}

/// One candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Where it came from.
    pub source: Source,
    /// The name or path as it was tried.
    pub name: String,
    /// Why it was a candidate.
    pub why: String,
    /// What came of it.
    pub outcome: Outcome,
    /// The loader's words, or ours.
    pub detail: Option<String>,
    /// The file that it resolved to.
    pub path: Option<String>,
    /// The version that the library reports.
    pub version: Option<String>,
    /// Functions found and missing.
    pub coverage: Option<Coverage>,
}

/// The candidates for one library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// What was looked for, for example `NVIDIA NCCL`.
    pub title: String,
    /// Key of the vendor.
    pub vendor: String,
    /// Candidates in the order in which they were tried.
    pub attempts: Vec<Attempt>,
    /// Remarks, for example that there are two copies in the process.
    pub notes: Vec<String>,
}

/// Everything that this process tried to load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// How the vendor was chosen.
    pub choice: String,
    /// One section per library.
    pub sections: Vec<Section>,
}

/// What one vendor's libraries are like here, whether or not the process uses them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Key of the vendor.
    pub vendor: String,
    /// Its other names.
    pub aliases: Vec<String>,
    /// It is used only if `GEMS_VENDOR` names it.
    pub only_named: bool,
    /// File names that are searched: the driver's, the collective library's.
    pub names: [Vec<String>; 2],
    /// Number of devices, or why the driver can't be used; nothing if it has no driver of its own.
    pub devices: Option<std::result::Result<i32, String>>,
    /// Why the collective library can't be used.
    pub library: Option<String>,
    /// One section per library.
    pub sections: Vec<Section>,
}

impl Survey {
    /// The survey for programs.
    pub fn as_json(&self) -> String {
        let names = |json: &mut String, names: &[String]| {
            list(json, names, |json, name| string(json, name));
        };
        let mut json = String::from("{\"vendor\":");
        string(&mut json, &self.vendor);
        json.push_str(",\"aliases\":");
        names(&mut json, &self.aliases);
        let _ = write!(json, ",\"only_named\":{}", self.only_named);
        json.push_str(",\"driver_names\":");
        names(&mut json, &self.names[0]);
        json.push_str(",\"library_names\":");
        names(&mut json, &self.names[1]);
        json.push_str(",\"devices\":");
        match &self.devices {
            Some(Ok(devices)) => {
                let _ = write!(json, "{devices}");
            }
            _ => json.push_str("null"),
        }
        let driver_error = match &self.devices {
            Some(Err(error)) => Some(error),
            _ => None,
        };
        for (key, error) in [
            ("driver_error", driver_error),
            ("library_error", self.library.as_ref()),
        ] {
            let _ = write!(json, ",\"{key}\":");
            match error {
                Some(error) => string(&mut json, error),
                None => json.push_str("null"),
            }
        }
        json.push_str(",\"sections\":");
        list(&mut json, &self.sections, section);
        json.push('}');
        json
    }
}

impl Section {
    /// A section without attempts.
    pub fn new(title: impl Into<String>, vendor: impl Into<String>) -> Section {
        Section {
            title: title.into(),
            vendor: vendor.into(),
            attempts: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Every candidate in one line, for error texts: those that are there, and what the user named, each
    /// with what is wrong; names of which nothing is there, and places without any of them, once each.
    pub fn tried(&self) -> String {
        let (mut names, mut folders, mut searched) = (Vec::new(), Vec::new(), false);
        for attempt in self.attempts.iter().filter(|a| !a.is_told_apart()) {
            let name = match attempt.name.rsplit_once('/') {
                Some((folder, name)) => {
                    if !folders.contains(&folder) {
                        folders.push(folder);
                    }
                    name
                }
                None => {
                    searched |= attempt.source != Source::AlreadyLoaded;
                    attempt.name.as_str()
                }
            };
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let place = match (searched, folders.is_empty()) {
            (true, true) => String::from("not found by the loader"),
            (true, false) => format!("not found by the loader, nor in {}", folders.join(", ")),
            (false, true) => String::from("not loaded by the process"),
            (false, false) => format!("not in {}", folders.join(", ")),
        };
        let absent = (!names.is_empty()).then(|| format!("{}: {place}", names.join(", ")));
        let apart = Section::told(self.attempts.iter().filter(|a| a.is_told_apart()));
        let told = [apart, absent].into_iter().flatten();
        let text = told.collect::<Vec<_>>().join("; ");
        match text.is_empty() {
            true => String::from("nothing was tried"),
            false => text,
        }
    }

    /// Those that are there and can't be used, and what the user named, in one line.
    pub fn refused(&self) -> Option<String> {
        Section::told(
            self.attempts
                .iter()
                .filter(|a| a.outcome == Outcome::Refused || a.source == Source::Override),
        )
    }

    fn told<'a>(attempts: impl Iterator<Item = &'a Attempt>) -> Option<String> {
        let mut text = String::new();
        for attempt in attempts {
            if !text.is_empty() {
                text.push_str("; ");
            }
            text.push_str(&attempt.name);
            match (&attempt.detail, &attempt.path) {
                (Some(detail), Some(path)) if *path != attempt.name => {
                    let _ = write!(text, " ({path}): {detail}");
                }
                (Some(detail), _) => {
                    let _ = write!(text, ": {detail}");
                }
                (None, _) => {
                    let _ = write!(text, ": {}", attempt.outcome.name());
                }
            }
        }
        (!text.is_empty()).then_some(text)
    }
}

impl Attempt {
    fn is_told_apart(&self) -> bool {
        self.outcome != Outcome::Absent || self.source == Source::Override
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} [{}] {}",
            self.name,
            self.source.name(),
            self.outcome.name()
        )?;
        if let Some(path) = &self.path {
            write!(f, " from {path}")?;
        }
        if let Some(version) = &self.version {
            write!(f, ", version {version}")?;
        }
        if let Some(coverage) = &self.coverage {
            write!(f, ", {} of {} functions", coverage.found, coverage.total)?;
            if !coverage.missing.is_empty() {
                write!(f, " (without {})", coverage.missing.join(", "))?;
            }
        }
        if let Some(detail) = &self.detail {
            write!(f, ": {detail}")?;
        }
        write!(f, " ({})", self.why)
    }
}

impl LoadReport {
    /// The report for people: one line per candidate.
    pub fn as_text(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "choice: {}", self.choice);
        for section in &self.sections {
            let _ = writeln!(text, "{} ({}):", section.title, section.vendor);
            for attempt in &section.attempts {
                let _ = writeln!(text, "  {attempt}");
            }
            for note in &section.notes {
                let _ = writeln!(text, "  note: {note}");
            }
        }
        text
    }

    /// The report for programs.
    pub fn as_json(&self) -> String {
        let mut json = String::from("{\"choice\":");
        string(&mut json, &self.choice);
        json.push_str(",\"sections\":");
        list(&mut json, &self.sections, section);
        json.push('}');
        json
    }
}

fn section(json: &mut String, section: &Section) {
    json.push_str("{\"title\":");
    string(json, &section.title);
    json.push_str(",\"vendor\":");
    string(json, &section.vendor);
    json.push_str(",\"attempts\":");
    list(json, &section.attempts, attempt);
    json.push_str(",\"notes\":");
    list(json, &section.notes, |json, note| string(json, note));
    json.push('}');
}

fn attempt(json: &mut String, attempt: &Attempt) {
    json.push_str("{\"source\":");
    string(json, attempt.source.name());
    json.push_str(",\"name\":");
    string(json, &attempt.name);
    json.push_str(",\"why\":");
    string(json, &attempt.why);
    json.push_str(",\"outcome\":");
    string(json, attempt.outcome.name());
    for (key, value) in [
        ("detail", &attempt.detail),
        ("path", &attempt.path),
        ("version", &attempt.version),
    ] {
        let _ = write!(json, ",\"{key}\":");
        match value {
            Some(value) => string(json, value),
            None => json.push_str("null"),
        }
    }
    json.push_str(",\"coverage\":");
    match &attempt.coverage {
        Some(coverage) => {
            let _ = write!(
                json,
                "{{\"found\":{},\"total\":{},\"missing\":",
                coverage.found, coverage.total
            );
            list(json, &coverage.missing, |json, name| string(json, name));
            json.push('}');
        }
        None => json.push_str("null"),
    }
    json.push('}');
}

fn list<T>(json: &mut String, items: &[T], mut item: impl FnMut(&mut String, &T)) {
    json.push('[');
    for (i, one) in items.iter().enumerate() {
        if i > 0 {
            json.push(',');
        }
        item(json, one);
    }
    json.push(']');
}

/// Appends `text` as a JSON string.
pub(crate) fn string(json: &mut String, text: &str) {
    json.push('"');
    for c in text.chars() {
        match c {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\n' => json.push_str("\\n"),
            '\r' => json.push_str("\\r"),
            '\t' => json.push_str("\\t"),
            c if (c as u32) < 0x20 || c == '\u{7f}' => {
                let _ = write!(json, "\\u{:04x}", c as u32);
            }
            c => json.push(c),
        }
    }
    json.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> LoadReport {
        let mut section = Section::new("NVIDIA NCCL", "nvidia");
        section.attempts.push(Attempt {
            source: Source::Override,
            name: "/a \"b\"\\c\n\u{1}.so".to_string(),
            why: "named by the user".to_string(),
            outcome: Outcome::Refused,
            detail: Some("invalid ELF header".to_string()),
            path: None,
            version: None,
            coverage: None,
        });
        section.attempts.push(Attempt {
            source: Source::Soname,
            name: "libnccl.so.2".to_string(),
            why: "soname".to_string(),
            outcome: Outcome::Loaded,
            detail: None,
            path: Some("/lib/libnccl.so.2".to_string()),
            version: Some("2.18.3".to_string()),
            coverage: Some(Coverage {
                found: 1,
                total: 2,
                missing: vec!["ncclX".to_string()],
            }),
        });
        section.notes.push("two copies".to_string());
        LoadReport {
            choice: "nvidia".to_string(),
            sections: vec![section],
        }
    }

    #[test]
    fn text_has_one_line_per_candidate() {
        let text = sample().as_text();
        assert!(
            text.contains("libnccl.so.2 [soname] loaded from /lib/libnccl.so.2, version 2.18.3")
        );
        assert!(text.contains("1 of 2 functions (without ncclX)"));
        assert!(text.contains("refused: invalid ELF header"));
        assert!(text.contains("note: two copies"));
    }

    #[test]
    fn names_and_places_without_a_library_are_told_once() {
        let mut section = sample().sections.swap_remove(0);
        section.attempts.truncate(1);
        section.attempts[0].name = String::from("/mine/a.so");
        for (source, name) in [
            (Source::AlreadyLoaded, "a.so.2"),
            (Source::AlreadyLoaded, "a.so"),
            (Source::Soname, "a.so.2"),
            (Source::Soname, "a.so"),
            (Source::Root, "/x/a.so.2"),
            (Source::Root, "/x/a.so"),
            (Source::Root, "/y/a.so.2"),
            (Source::Root, "/y/a.so"),
        ] {
            let mut attempt = section.attempts[0].clone();
            (attempt.source, attempt.outcome) = (source, Outcome::Absent);
            attempt.name = String::from(name);
            section.attempts.push(attempt);
        }
        assert_eq!(
            section.tried(),
            "/mine/a.so: invalid ELF header; a.so.2, a.so: not found by the loader, nor in /x, /y"
        );
        section.attempts[1].outcome = Outcome::Refused;
        section.attempts.drain(3..);
        section.attempts.remove(0);
        assert_eq!(
            section.tried(),
            "a.so.2: invalid ELF header; a.so: not loaded by the process"
        );
        section.attempts.clear();
        assert_eq!(section.tried(), "nothing was tried");
    }

    #[test]
    fn only_what_is_there_is_told_as_refused() {
        let mut section = sample().sections.swap_remove(0);
        assert_eq!(
            section.refused().unwrap(),
            "/a \"b\"\\c\n\u{1}.so: invalid ELF header"
        );
        section.attempts.remove(0);
        assert_eq!(section.refused(), None);
        section.attempts[0].outcome = Outcome::Absent;
        assert_eq!(section.refused(), None);
        // What the user named is told, too, if it isn't there.
        section.attempts[0].source = Source::Override;
        assert!(section.refused().is_some());
    }

    #[test]
    fn a_survey_as_json() {
        let mut survey = Survey {
            vendor: "amd".to_string(),
            aliases: vec!["rocm".to_string()],
            devices: Some(Ok(3)),
            library: Some("no \"library\"".to_string()),
            sections: sample().sections,
            ..Survey::default()
        };
        let json = survey.as_json();
        for words in [
            r#""vendor":"amd","aliases":["rocm"],"only_named":false"#,
            r#""devices":3,"driver_error":null,"library_error":"no \"library\"""#,
            r#""sections":[{"title":"NVIDIA NCCL""#,
        ] {
            assert!(json.contains(words), "{json}");
        }
        survey.devices = Some(Err("hangs".to_string()));
        let json = survey.as_json();
        assert!(
            json.contains(r#""devices":null,"driver_error":"hangs""#),
            "{json}"
        );
    }

    #[test]
    fn json_is_escaped() {
        let json = sample().as_json();
        assert!(
            json.contains(r#""name":"/a \"b\"\\c\n\u0001.so""#),
            "{json}"
        );
        assert!(json.contains(r#""coverage":{"found":1,"total":2,"missing":["ncclX"]}"#));
        assert!(json.contains(r#""coverage":null"#));
        assert_eq!(json.matches('{').count(), json.matches('}').count());
    }
}
