//! What a call of another library's ABI costs over the native library's, in instructions.

use crate::{library, root, run};
use std::path::{Path, PathBuf};
use std::process::Command;

/// All that have a short path.
pub const OPERATIONS: [&str; 10] = [
    "AllReduce",
    "Reduce",
    "ReduceScatter",
    "AllGather",
    "Broadcast",
    "Gather",
    "Scatter",
    "AlltoAll",
    "Send",
    "Recv",
];

/// The program that makes the calls of the native library.
fn native(source: &Path, dir: &Path) -> PathBuf {
    let native = dir.join("native");
    let soname = dir.join("libflagos_comm.so.0");
    std::os::unix::fs::symlink(library(), &soname).expect("a link");
    run(Command::new("gcc")
        .args(["-g", "-O1", "-DNATIVE"])
        .arg(format!("-I{}", root().join("include").display()))
        .arg(source)
        .arg("-o")
        .arg(&native)
        .arg(&soname));
    native
}

/// Instructions between entering and leaving a function, in the whole run of a program, on these tiers.
pub fn count(program: &Command, function: &str, path: &str, tiers: &str) -> i64 {
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--toggle-collect={function}"))
        .arg(program.get_program())
        .args(program.get_args())
        .env("LD_LIBRARY_PATH", path)
        .env("FLAGOSCOMM_TIERS", tiers);
    let out = run(&mut command);
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    let collected = text
        .lines()
        .find_map(|line| line.split_once("Collected : "))
        .unwrap_or_else(|| panic!("no count: {text}"));
    collected.1.trim().parse().expect("a number")
}

/// Counts 1000 calls of each operation over a vendor's library that does nothing. `source` makes those of the
/// native library if `NATIVE` is defined; `ours` gives the program that makes them,
/// and the function of the library that it calls.
pub fn at_most_twelve_more(
    operations: &[&str],
    source: &Path,
    dir: &Path,
    standins: &Path,
    ours: impl Fn(&str) -> (Command, String),
) {
    let path = format!("{}:{}", dir.display(), standins.display());
    let native = native(source, dir);
    for op in operations {
        let (program, function) = ours(op);
        let mut bare = Command::new(&native);
        bare.arg(op);
        let ours = count(&program, &function, &path, "native");
        let over = ours - count(&bare, &format!("flagos{op}"), &path, "native");
        assert!(ours >= 20_000, "{op}: {ours} instructions were counted");
        println!("{op}: +{} instructions", over as f64 / 1000.0);
        assert!(over <= 12_000, "{op}: {over} instructions in 1000 calls");
    }
}
