//! Builds and finds the C libraries, and compiles C against them.

pub mod cost;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

pub use flagos_comm_testkit::cargo::{target_dir, workspace as root};

/// A folder for what a test makes, emptied.
pub fn scratch(name: &str) -> PathBuf {
    let dir = target_dir().join("tmp").join("capi").join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("the target directory can be written");
    dir
}

/// cargo, at the top of the repository, into the target directory of the running test.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(root())
        .env("CARGO_TARGET_DIR", target_dir());
    cargo
}

/// The folder with the release libraries; built on first use.
pub fn release() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let mut file = flagos_comm_testkit::cargo::libflagos();
        file.pop();
        file
    })
}

/// The folder with the debug libraries, which have the test hooks; built on first use.
pub fn debug() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let libraries = ["flagos", "flagcx", "nccl"].map(|name| format!("flagos-comm-capi-{name}"));
        let packages = libraries.iter().flat_map(|name| ["-p", name]);
        run(cargo().args(["build", "--locked"]).args(packages));
        target_dir().join("debug")
    })
}

/// The library under test: `FLAGOSCOMM_TEST_LIBRARY` if set, else the release build.
pub fn library() -> PathBuf {
    match std::env::var_os("FLAGOSCOMM_TEST_LIBRARY") {
        Some(path) => path.into(),
        None => release().join("libflagos_comm.so"),
    }
}

/// Runs a command; panics with all its output if it fails.
pub fn run(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n--- stdout\n{}\n--- stderr\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Runs a command; its stdout, if it succeeds.
pub fn stdout(command: &mut Command) -> String {
    String::from_utf8(run(command).stdout).expect("the output is text")
}

/// Whether a program can be started. Says so loudly if not.
pub fn have(program: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok();
    if !there {
        eprintln!("SKIPPED: {program} is not installed");
    }
    there
}

/// A C compiler with the strictest warnings, given the header.
pub fn compiler(program: &str, standard: &str) -> Command {
    let mut compiler = Command::new(program);
    compiler
        .arg(format!("-std={standard}"))
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g"])
        .arg(format!("-I{}", root().join("include").display()));
    compiler
}

/// Compiles a C program against the library under test into a folder; the program finds the
/// library by its SONAME there.
pub fn c_program(source: &Path, flags: &[&str], dir: &Path) -> PathBuf {
    let library = library();
    let soname = dir.join("libflagos_comm.so.0");
    let _ = std::fs::remove_file(&soname);
    std::os::unix::fs::symlink(&library, &soname).expect("the target directory can be written");
    let exe = dir.join(source.file_stem().expect("a file has a name"));
    run(compiler("gcc", "gnu11")
        .arg(source)
        .arg("-o")
        .arg(&exe)
        .args(flags)
        .arg(&soname)
        .arg(format!("-Wl,-rpath,{}", dir.display()))
        .args(["-pthread", "-ldl"]));
    exe
}

/// The functions that the header declares, sorted.
pub fn header_functions() -> Vec<String> {
    let header = std::fs::read_to_string(root().join("include/flagos_comm.h"))
        .expect("include/flagos_comm.h");
    let code = without_comments(&header);
    let mut names: Vec<String> = code
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '('))
        .filter_map(|word| word.split_once('('))
        .map(|(name, _)| name)
        .filter(|name| {
            name.strip_prefix("flagos")
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
        })
        .map(str::to_owned)
        .collect();
    names.sort();
    names.dedup();
    names
}

/// C code without its comments and preprocessor lines.
pub fn without_comments(code: &str) -> String {
    let mut result = String::new();
    let mut rest = code;
    while let Some((before, after)) = rest.split_once("/*") {
        result.push_str(before);
        rest = after.split_once("*/").map_or("", |(_, after)| after);
    }
    result.push_str(rest);
    let mut continued = false;
    result
        .lines()
        .filter(|line| {
            let drop = continued || line.trim_start().starts_with('#');
            continued = drop && line.ends_with('\\');
            !drop
        })
        .fold(String::new(), |text, line| text + line + "\n")
}
