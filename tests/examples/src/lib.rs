//! Compiling programs against the C library, as a user would, and running them under a deadline.

use flagos_comm_testkit::cargo::{libflagos, release, target_dir, workspace};
use flagos_comm_testkit::ranks::{self, Output};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Builds a program of the workspace in the debug profile: `cargo build` with these arguments leaves `file` in
/// `target/debug`.
///
/// # Panics
/// If the build fails or makes no such file.
pub fn program(args: &[&str], file: &str) -> PathBuf {
    let target = target_dir();
    let out = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(workspace())
        .args(["build", "--quiet", "--target-dir"])
        .arg(&target)
        .args(args)
        .output()
        .expect("cargo can be started");
    assert!(
        out.status.success(),
        "cargo build {}:\n{}",
        args.join(" "),
        String::from_utf8_lossy(&out.stderr)
    );
    let path = target.join("debug").join(file);
    assert!(path.is_file(), "cargo built no {}", path.display());
    path
}

/// A folder for what the tests build, under the target folder.
///
/// # Panics
/// If it can't be made.
pub fn scratch(name: &str) -> PathBuf {
    let dir = target_dir().join(name);
    std::fs::create_dir_all(&dir).expect("a folder under target can be made");
    dir
}

/// What a static link needs beside the archive: the README's line. A test compares it with
/// `rustc --print native-static-libs`.
pub const NATIVE_STATIC_LIBS: &str = "-ldl -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc";

/// How a program is linked with the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// With `libflagos_comm.so`, found at run time by a run path.
    Shared,
    /// With `libflagos_comm.a`.
    Static,
}

/// Compiles one source file of the repository against the header and the library.
///
/// # Panics
/// If that fails.
pub fn compile(compiler: &str, flags: &[&str], source: &str, link: Link, name: &str) -> PathBuf {
    let dir = scratch("examples-test");
    let program = dir.join(name);
    let mut command = Command::new(compiler);
    command
        .args(flags)
        .arg("-I")
        .arg(workspace().join("include"))
        .arg(workspace().join(source))
        .arg("-o")
        .arg(&program);
    match link {
        Link::Static => {
            command.arg(release("libflagos_comm.a"));
            command.args(NATIVE_STATIC_LIBS.split(' '));
        }
        Link::Shared => {
            // Programs ask for the SONAME, a name that an installation provides. A folder of its own,
            // so that two tests do not make the link at once.
            let dir = scratch(&format!("examples-test/{name}.lib"));
            let soname = dir.join("libflagos_comm.so.0");
            let _ = std::fs::remove_file(&soname);
            std::os::unix::fs::symlink(libflagos(), &soname).expect("a link can be made");
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

/// Runs a program; after two minutes it is killed with everything that it started.
///
/// # Panics
/// If it can't be started.
pub fn run(command: impl Fn() -> Command) -> Output {
    ranks::run(1, |_| command(), Duration::from_secs(120))
        .pop()
        .expect("one process gives one result")
}

/// A command with arguments, for [`run`].
pub fn command(program: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}
