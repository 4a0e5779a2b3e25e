//! Bad arguments are exit code 2 and a text that names them.

use crate::{run, scratch};

#[test]
fn nonsense_is_refused_in_words() {
    for (arguments, wanted) in [
        (vec![], "Usage"),
        (vec!["dance"], "dance"),
        (vec!["perf", "dance"], "all_reduce"),
        (vec!["perf", "-d", "int7"], "the types are int8"),
        (vec!["perf", "-o", "xor"], "the operators are sum"),
        (vec!["perf", "-b", "1T"], "suffix"),
        (
            vec!["perf", "-b", "4K", "-e", "8"],
            "-b 4096 is larger than -e 8",
        ),
        (
            vec!["perf", "-b", "1.5K"],
            "not a whole number, with K, M or G",
        ),
        (vec!["perf", "-f", "1"], "must be 2 or more"),
        (vec!["perf", "-f", "2", "-i", "8"], "cannot be used"),
        (vec!["perf", "-n", "0"], "0"),
        (vec!["perf", "--ranks", "0"], "0"),
        (vec!["perf", "--ranks", "2", "-r", "2"], "ranks 0 to 1"),
        (
            vec!["perf", "--ranks", "2", "--corrupt", "5"],
            "ranks 0 to 1",
        ),
        (
            vec!["perf", "--threads", "--single-thread"],
            "cannot be used",
        ),
        (vec!["perf", "--timeout", "-1"], "-1"),
        (vec!["perf", "--timeout", "x"], "not a number of seconds"),
        (
            vec!["perf", "--timeout", "1e30"],
            "must be above 0 and at most 10000000 seconds",
        ),
        (vec!["perf", "--check-counts", "1"], "--check"),
        (
            vec!["perf", "all_reduce", "-d", "float8e4m3"],
            "moved but not reduced",
        ),
        (
            vec!["perf", "sendrecv", "barrier", "--in-place", "in"],
            "sendrecv, barrier has no in-place form",
        ),
        (vec!["perf", "--lib", "/nowhere/lib.so"], "no such file"),
        (
            vec!["perf", "--json", "/nowhere/x.json"],
            "no such directory",
        ),
        (vec!["launch", "-n", "2"], "CMD"),
        (
            vec!["launch", "-n", "1", "--port", "0", "--", "true"],
            "--port",
        ),
        (vec!["launch", "--", "true"], "--ranks <N>"),
        (vec!["doctor", "--loud"], "--loud"),
    ] {
        let ran = run(&arguments);
        assert_eq!(ran.code, Some(2), "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(wanted), "{arguments:?}: {}", ran.err);
        assert_eq!(ran.out, "", "{arguments:?}");
    }
}

#[test]
fn a_library_that_is_not_ours_is_refused_by_what_it_lacks() {
    let path = scratch("not-a-library.so");
    std::fs::write(&path, "text").expect("writable");
    let ran = run(&[
        "perf",
        "--ranks",
        "2",
        "--lib",
        path.to_str().expect("UTF-8"),
    ]);
    std::fs::remove_file(&path).expect("removable");
    assert_eq!(ran.code, Some(3), "{}", ran.err);
    assert!(ran.err.contains("--lib"), "{}", ran.err);
}

#[test]
fn a_launcher_that_makes_no_sense_is_named() {
    let output = crate::tool()
        .args(["perf", "barrier"])
        .envs([("RANK", "3"), ("WORLD_SIZE", "2")])
        .output()
        .expect("the tool starts");
    let ran = crate::Ran::from(output);
    assert_eq!(ran.code, Some(2));
    assert!(
        ran.err.contains("RANK=3 is not below WORLD_SIZE=2"),
        "{}",
        ran.err
    );
}

#[test]
fn help_names_units_and_defaults() {
    let help = run(&["perf", "--help"]);
    assert_eq!(help.code, Some(0));
    for wanted in [
        "--minbytes",
        "--maxbytes",
        "--stepfactor",
        "--stepbytes",
        "--iters",
        "--warmup_iters",
        "--datatype",
        "--op",
        "--root",
        "--check",
        "--ranks",
        "--threads",
        "--single-thread",
        "--in-place",
        "--json",
        "--plot",
        "--lib",
        "--tiers",
        "--timeout",
        "--blocking-stream",
        "seconds",
        "bytes",
        "[default: 4M]",
        "[default: 60]",
        "alltoallv",
    ] {
        assert!(help.out.contains(wanted), "{wanted}");
    }
    assert!(!help.out.contains("--corrupt") && !help.out.contains("--as-rank"));
    for command in ["launch", "doctor"] {
        assert_eq!(run(&[command, "--help"]).code, Some(0));
    }
    assert!(run(&["--version"]).out.starts_with("flagos-comm "));
}
