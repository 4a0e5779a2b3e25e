//! Runs a scenario of a C program of `tests/c` as one or several processes.

use crate::ranks::{self, Output};
use crate::{Call, CallLog, Standins, cargo};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// The library under test: `FLAGOSCOMM_TEST_LIBRARY` if set, else the release build.
pub fn library() -> PathBuf {
    match std::env::var_os("FLAGOSCOMM_TEST_LIBRARY") {
        Some(path) => path.into(),
        None => cargo::libflagos(),
    }
}

/// Starts of the names of variables that no scenario inherits.
const OURS: &[&str] = &[
    "FLAGOSCOMM_",
    "FAKE_",
    "CUDA_",
    "NCCL_",
    "GEMS_",
    "HCCL_",
    "FLAGCX_",
];

/// A folder that is new for every call.
///
/// # Panics
/// If the target folder can't be written.
pub fn scratch() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!(
        "{}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    );
    let dir = cargo::target_dir().join("tmp/scenarios").join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("the target folder can be written");
    dir
}

/// Compiles a program of a folder of `tests/c` against a library, once per process.
fn program(folder: &str, name: &str, library: &Path) -> PathBuf {
    type Built = Mutex<HashMap<(String, PathBuf), PathBuf>>;
    static BUILT: OnceLock<Built> = OnceLock::new();
    let built = BUILT.get_or_init(Mutex::default);
    let mut built = built.lock().unwrap_or_else(PoisonError::into_inner);
    let source = format!("tests/c/{folder}/{name}.c");
    let key = (source.clone(), library.to_owned());
    built
        .entry(key)
        .or_insert_with(|| {
            let (top, dir) = (cargo::workspace(), scratch());
            let soname = dir.join("libflagos_comm.so.0");
            std::os::unix::fs::symlink(library, &soname).expect("the folder can be written");
            let exe = dir.join(name);
            let out = Command::new("gcc")
                .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g"])
                .arg(format!("-I{}", top.join("include").display()))
                .arg(format!("-I{}", top.join("tests/fakevendor").display()))
                .arg(top.join(&source))
                .arg("-o")
                .arg(&exe)
                .arg(&soname)
                .arg(format!("-Wl,-rpath,{}", dir.display()))
                .args(["-pthread", "-ldl"])
                .output()
                .expect("gcc can be started");
            assert!(
                out.status.success(),
                "{}",
                String::from_utf8_lossy(&out.stderr)
            );
            exe
        })
        .clone()
}

/// A scenario, and how it is to be run.
#[derive(Clone, Debug)]
pub struct Scenario {
    folder: &'static str,
    program: &'static str,
    name: &'static str,
    library: PathBuf,
    ranks: usize,
    /// For one rank, or for all.
    env: Vec<(Option<usize>, String, String)>,
    /// Folders with the vendor's libraries, by rank; one is for all ranks.
    libraries: Vec<PathBuf>,
    seconds: u64,
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// What each rank did.
    pub outputs: Vec<Output>,
    /// The call log of all ranks.
    pub log: Vec<Call>,
}

/// A scenario of a program of a folder of `tests/c`, as one process over NVIDIA's complete stand-ins.
pub fn scenario(folder: &'static str, program: &'static str, name: &'static str) -> Scenario {
    Scenario {
        folder,
        program,
        name,
        library: library(),
        ranks: 1,
        env: Vec::new(),
        libraries: Vec::new(),
        seconds: 90,
    }
}

impl Scenario {
    /// Another library under test.
    pub fn library(mut self, library: &Path) -> Self {
        library.clone_into(&mut self.library);
        self
    }

    /// The number of processes.
    pub fn ranks(mut self, ranks: usize) -> Self {
        self.ranks = ranks;
        self
    }

    /// After so many seconds all processes are killed.
    pub fn limit(mut self, seconds: u64) -> Self {
        self.seconds = seconds;
        self
    }

    /// A variable of all ranks.
    ///
    /// # Panics
    /// If the value is no text.
    pub fn env(mut self, name: &str, value: impl AsRef<Path>) -> Self {
        let value = value.as_ref().to_str().expect("text").to_owned();
        self.env.push((None, name.to_owned(), value));
        self
    }

    /// A variable of one rank.
    pub fn env_of(mut self, rank: usize, name: &str, value: &str) -> Self {
        self.env
            .push((Some(rank), name.to_owned(), value.to_owned()));
        self
    }

    /// The folder in which the loader finds the vendor's libraries: the first call is for rank 0, and so on.
    pub fn over(mut self, dir: &Path) -> Self {
        self.libraries.push(dir.to_owned());
        self
    }

    /// The same in place of all folders that were named before.
    pub fn over_instead(mut self, dir: &Path) -> Self {
        self.libraries = vec![dir.to_owned()];
        self
    }

    /// Without a variable that was given before.
    pub fn unset(mut self, name: &str) -> Self {
        self.env.retain(|(_, n, _)| n != name);
        self
    }

    /// Runs it, however it ends.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn run(mut self) -> Outcome {
        let exe = program(self.folder, self.program, &self.library);
        let dir = scratch();
        let log = dir.join("log");
        if self.libraries.is_empty() {
            self.libraries.push(Standins::builder().build().dir);
        }
        let command = |rank: usize| {
            let mut command = Command::new(&exe);
            command.arg(self.name);
            if self.ranks > 1 {
                command.args([rank.to_string(), self.ranks.to_string()]);
                command.arg(dir.join("id"));
            }
            for (name, _) in std::env::vars_os() {
                let name = name.to_string_lossy().into_owned();
                if OURS.iter().any(|p| name.starts_with(p)) {
                    command.env_remove(name);
                }
            }
            let libraries = self.libraries.get(rank).unwrap_or(&self.libraries[0]);
            command
                .env("LD_LIBRARY_PATH", libraries)
                .env("FAKE_LOG", &log);
            for (of, name, value) in &self.env {
                if of.is_none_or(|of| of == rank) {
                    command.env(name, value);
                }
            }
            command
        };
        let outputs = ranks::run(self.ranks, command, Duration::from_secs(self.seconds));
        let log = CallLog::read(&log);
        Outcome { outputs, log }
    }

    /// Runs it; every process must end well.
    ///
    /// # Panics
    /// With the report of all ranks if one did not.
    pub fn ok(self) -> Outcome {
        let name = format!("{} {}", self.program, self.name);
        let outcome = self.run();
        assert!(
            outcome.outputs.iter().all(Output::ok),
            "{name}\n{}",
            outcome.report()
        );
        outcome
    }
}

impl Outcome {
    /// What all ranks did, in words.
    pub fn report(&self) -> String {
        ranks::report(&self.outputs)
    }

    /// What rank 0 printed after `name: `.
    pub fn said(&self, name: &str) -> &str {
        self.said_by(0, name)
    }

    /// What a rank printed after `name: `.
    ///
    /// # Panics
    /// If it printed no such thing.
    pub fn said_by(&self, rank: usize, name: &str) -> &str {
        let line = |l| str::strip_prefix(l, name)?.strip_prefix(": ");
        self.outputs[rank]
            .stdout
            .lines()
            .find_map(line)
            .unwrap_or_else(|| panic!("rank {rank} said no {name}\n{}", self.report()))
    }

    /// Every rank's text of an error.
    pub fn texts(&self) -> Vec<&str> {
        (0..self.outputs.len())
            .map(|r| self.said_by(r, "text"))
            .collect()
    }

    /// What all ranks wrote to their standard error.
    pub fn stderr(&self) -> String {
        self.outputs.iter().map(|o| o.stderr.as_str()).collect()
    }

    /// The calls of one function.
    pub fn calls(&self, name: &str) -> Vec<&Call> {
        self.log.iter().filter(|c| c.name == name).collect()
    }

    /// The calls of the marking thread between each `mark(what)` and its `mark(end)`.
    ///
    /// # Panics
    /// If there is no such mark.
    pub fn between(&self, what: &str) -> Vec<Vec<&Call>> {
        let starts = self.log.iter().enumerate();
        let starts = starts.filter(|(_, c)| c.name == "mark" && c.args == what);
        let spans: Vec<Vec<&Call>> = starts
            .map(|(at, mark)| {
                let own = self.log[at + 1..].iter().filter(|c| c.tid == mark.tid);
                own.take_while(|c| c.name != "mark").collect()
            })
            .collect();
        assert!(!spans.is_empty(), "no mark {what} in the log");
        spans
    }
}

/// Asserts that a text has every part.
///
/// # Panics
/// If one is missing.
#[track_caller]
pub fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no '{part}' in: {text}");
    }
}
