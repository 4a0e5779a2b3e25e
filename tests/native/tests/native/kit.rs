//! Runs a scenario of a C program as one or several processes.

use flagos_comm_testkit::ranks::{self, Output};
use flagos_comm_testkit::{Call, CallLog, Standins, cargo};
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

/// A variant of the library, built without optimisation into a folder of its own.
pub fn variant(name: &str, arguments: &[&str], env: &[(&str, &str)]) -> PathBuf {
    let dir = cargo::target_dir().join(name);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let out = Command::new(cargo)
        .args(["build", "--quiet", "-p", "flagos-comm-capi-flagos"])
        .args(arguments)
        .envs(env.iter().copied())
        .arg("--target-dir")
        .arg(&dir)
        .current_dir(cargo::workspace())
        .output()
        .expect("cargo can be started");
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    dir.join("debug/libflagos_comm.so")
}

/// A folder that is new for every call.
pub fn scratch() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!(
        "{}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    );
    let dir = cargo::target_dir().join("tmp/native").join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("the target folder can be written");
    dir
}

/// Compiles a program of `tests/c/native` against a library, once per process.
fn program(name: &str, library: &Path) -> PathBuf {
    type Built = Mutex<HashMap<(String, PathBuf), PathBuf>>;
    static BUILT: OnceLock<Built> = OnceLock::new();
    let built = BUILT.get_or_init(Mutex::default);
    let mut built = built.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (name.to_owned(), library.to_owned());
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
                .arg(top.join("tests/c/native").join(format!("{name}.c")))
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
pub struct Scenario {
    program: &'static str,
    name: &'static str,
    library: PathBuf,
    ranks: usize,
    /// For one rank, or for all.
    env: Vec<(Option<usize>, String, String)>,
    /// Folders with the vendor's libraries, by rank; one is for all ranks.
    libraries: Vec<PathBuf>,
}

/// What came of it.
pub struct Outcome {
    pub outputs: Vec<Output>,
    pub log: Vec<Call>,
}

/// A scenario of a program, as one process over complete stand-ins.
pub fn scenario(program: &'static str, name: &'static str) -> Scenario {
    Scenario {
        program,
        name,
        library: library(),
        ranks: 1,
        env: Vec::new(),
        libraries: Vec::new(),
    }
}

impl Scenario {
    pub fn library(mut self, library: &Path) -> Self {
        library.clone_into(&mut self.library);
        self
    }

    pub fn ranks(mut self, ranks: usize) -> Self {
        self.ranks = ranks;
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<Path>) -> Self {
        let value = value.as_ref().to_str().expect("text").to_owned();
        self.env.push((None, name.to_owned(), value));
        self
    }

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

    pub fn run(mut self) -> Outcome {
        let exe = program(self.program, &self.library);
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
                if ["FLAGOSCOMM_", "FAKE_", "CUDA_", "NCCL_", "GEMS_"]
                    .iter()
                    .any(|p| name.starts_with(p))
                {
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
        let outputs = ranks::run(self.ranks, command, Duration::from_secs(90));
        let log = CallLog::read(&log);
        Outcome { outputs, log }
    }

    /// Runs it; every process must end well.
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
    pub fn report(&self) -> String {
        ranks::report(&self.outputs)
    }

    /// What rank 0 printed after `name: `.
    pub fn said(&self, name: &str) -> &str {
        self.said_by(0, name)
    }

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

    pub fn stderr(&self) -> String {
        self.outputs.iter().map(|o| o.stderr.as_str()).collect()
    }

    pub fn calls(&self, name: &str) -> Vec<&Call> {
        self.log.iter().filter(|c| c.name == name).collect()
    }

    /// The calls of the marking thread between each `mark(what)` and its `mark(end)`.
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
#[track_caller]
pub fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no '{part}' in: {text}");
    }
}
