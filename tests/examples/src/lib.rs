//! Building what the tests and benchmarks run: the C library and programs against it.
//!
//! `cargo test` builds no cdylib of a sibling package, so the library comes from a nested
//! `cargo build`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Top of the repository.
pub fn root() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(2)
            .expect("the package lies two folders below the top")
            .to_path_buf()
    })
}

fn cargo_artifacts(args: &[&str]) -> Vec<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let out = Command::new(cargo)
        .current_dir(root())
        .args(args)
        .args(["--message-format=json-render-diagnostics"])
        .stderr(std::process::Stdio::inherit())
        .output()
        .expect("cargo can be started");
    assert!(out.status.success(), "`cargo {}` failed", args.join(" "));
    let mut files = Vec::new();
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else {
            continue;
        };
        if message["reason"] == "compiler-artifact" {
            files.extend(
                message["filenames"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .chain(Some(&message["executable"]))
                    .filter_map(|f| f.as_str())
                    .map(PathBuf::from),
            );
        }
    }
    files
}

/// The files of the C library.
#[derive(Debug)]
pub struct CLibrary {
    /// `libflagos_comm.so`
    pub shared: PathBuf,
    /// `libflagos_comm.a`
    pub archive: PathBuf,
    /// The folder of the two, usually `target/release`.
    pub dir: PathBuf,
}

/// Builds `libflagos_comm.so` and `.a` in the release profile, once per process.
pub fn c_library() -> &'static CLibrary {
    static BUILT: OnceLock<CLibrary> = OnceLock::new();
    BUILT.get_or_init(|| {
        let files = cargo_artifacts(&["build", "--release", "-p", "flagos-comm-capi-flagos"]);
        let find = |name: &str| {
            files
                .iter()
                .find(|f| f.file_name().is_some_and(|n| n == name))
                .unwrap_or_else(|| panic!("cargo built no {name}"))
                .clone()
        };
        let shared = find("libflagos_comm.so");
        CLibrary {
            archive: find("libflagos_comm.a"),
            dir: shared.parent().expect("a file has a folder").to_path_buf(),
            shared,
        }
    })
}

/// Builds an example of the root package and returns the program.
pub fn rust_example(name: &str) -> PathBuf {
    let files = cargo_artifacts(&["build", "-p", "flagos-comm", "--example", name]);
    files
        .into_iter()
        .rfind(|f| f.file_name().is_some_and(|n| n == name))
        .unwrap_or_else(|| panic!("cargo built no example {name}"))
}

/// Builds the `flagos-comm` tool and returns the program.
pub fn tool() -> PathBuf {
    let files = cargo_artifacts(&["build", "-p", "flagos-comm-cli", "--bin", "flagos-comm"]);
    files
        .into_iter()
        .rfind(|f| f.file_name().is_some_and(|n| n == "flagos-comm"))
        .expect("cargo built no flagos-comm")
}

/// A folder for build products of the tests, under the target folder.
pub fn scratch(name: &str) -> PathBuf {
    let target = c_library().dir.parent().expect("release lies in target");
    let dir = target.join(name);
    std::fs::create_dir_all(&dir).expect("a folder under target can be made");
    dir
}

/// What a static link needs beside the archive: README's line, which a test compares with
/// `rustc --print native-static-libs`.
pub const NATIVE_STATIC_LIBS: &str = "-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc";

/// How a program is linked with the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// With `libflagos_comm.so`, found at run time by a run path.
    Shared,
    /// With `libflagos_comm.a`.
    Static,
}

/// Compiles one source file under the repository against the header and the library.
pub fn compile(compiler: &str, flags: &[&str], source: &str, link: Link, name: &str) -> PathBuf {
    let dir = scratch("examples-test");
    let program = dir.join(name);
    let library = c_library();
    let mut command = Command::new(compiler);
    command
        .args(flags)
        .arg("-I")
        .arg(root().join("include"))
        .arg(root().join(source))
        .arg("-o")
        .arg(&program);
    match link {
        Link::Static => {
            command.arg(&library.archive);
            command.args(NATIVE_STATIC_LIBS.split(' '));
        }
        Link::Shared => {
            // Programs ask for the SONAME, a name that an installation provides.
            let soname = dir.join("libflagos_comm.so.0");
            let _ = std::fs::remove_file(&soname);
            std::os::unix::fs::symlink(&library.shared, &soname).expect("a link can be made");
            command
                .arg(&soname)
                .arg(format!("-Wl,-rpath,{}", dir.display()));
        }
    }
    let out = command
        .output()
        .unwrap_or_else(|e| panic!("{compiler} can't be started: {e}"));
    assert!(
        out.status.success(),
        "{compiler} failed on {source}:\n{}",
        String::from_utf8_lossy(&out.stderr)
    );
    program
}

/// Runs a command and returns its output; a command that hangs is killed and is a failure.
pub fn run(command: &mut Command, limit: Duration) -> Output {
    use std::process::Stdio;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{command:?} can't be started: {e}"));
    let deadline = Instant::now() + limit;
    let read = |from: Option<Box<dyn std::io::Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut from) = from {
                let _ = from.read_to_end(&mut bytes);
            }
            bytes
        })
    };
    let stdout = read(child.stdout.take().map(|s| Box::new(s) as _));
    let stderr = read(child.stderr.take().map(|s| Box::new(s) as _));
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            break status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{command:?} was still running after {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    Output {
        status,
        stdout: stdout.join().expect("the reader does not panic"),
        stderr: stderr.join().expect("the reader does not panic"),
    }
}

/// Both streams of a finished command, for an assertion's text.
pub fn text(out: &Output) -> String {
    format!(
        "{}\n{}{}",
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    )
}
