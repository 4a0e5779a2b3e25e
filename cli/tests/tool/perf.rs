//! Runs over the engine, on the host tier.

use crate::{MARK, Ran, eventually, marked, run, scratch, signal, tool};
use serde_json::Value;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A short check of everything.
const SHORT: [&str; 12] = [
    "--check",
    "--tiers",
    "host",
    "-e",
    "512",
    "-n",
    "2",
    "-w",
    "1",
    "--check-counts",
    "0,1,7",
    "--timeout=60",
];

/// More than an address space holds, so that no system promises it.
#[test]
fn buffers_that_cannot_be_had_are_an_error_in_words() {
    let size = ["-b", "200000G", "-e", "200000G"];
    let ran = run(&[
        &["perf", "all_reduce", "--ranks", "2", "--tiers", "host"],
        &size[..],
    ]
    .concat());
    assert_eq!(ran.code, Some(3), "{}{}", ran.out, ran.err);
    let words = "can't have two buffers of 200000.0 GiB; take a smaller -e: the system has no";
    assert!(ran.err.contains(words), "{}", ran.err);
    assert!(!ran.err.contains("panicked"), "{}", ran.err);
}

fn check(arguments: &[&str]) {
    let ran = run(&[&["perf"], arguments, &SHORT].concat());
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("wrong values 0"), "{}", ran.out);
    assert!(ran.out.contains("# tier host"), "{}", ran.out);
    let engine = "\n# data moves over shared memory\n";
    assert!(ran.out.contains(engine), "{}", ran.out);
    for operation in [
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
        "alltoall",
        "alltoallv",
        "sendrecv",
        "barrier",
    ] {
        assert!(
            ran.out.contains(&format!("\n  {operation} ")),
            "{operation}: {}",
            ran.out
        );
    }
    assert!(!ran.out.contains("not supported"), "{}", ran.out);
    assert_eq!(ran.err, "", "no progress where there is no terminal");
}

#[test]
fn ranks_as_processes() {
    check(&["--ranks", "3"]);
}

#[test]
fn ranks_as_threads() {
    check(&["--ranks", "2", "--threads"]);
}

#[test]
fn all_ranks_in_one_thread() {
    check(&["--ranks", "3", "--single-thread"]);
}

#[test]
fn blocking_calls() {
    check(&["--ranks", "2", "--blocking-stream"]);
}

#[test]
fn one_rank() {
    check(&["--ranks", "1"]);
    let ran = run(&[
        "perf", "barrier", "--ranks", "1", "--tiers", "host", "-n", "1",
    ]);
    assert!(
        ran.out.contains("# 1 rank as a process, host "),
        "{}{}",
        ran.out,
        ran.err
    );
}

#[test]
fn any_library_by_its_c_functions() {
    let library = flagos_comm_testkit::cargo::libflagos();
    let path = library.to_str().expect("UTF-8");
    check(&["--ranks", "2", "--lib", path]);
    check(&["--ranks", "2", "--threads", "--lib", path]);
    check(&["--ranks", "2", "--single-thread", "--lib", path]);
}

#[test]
fn the_check_sees_one_wrong_element() {
    for (ranks, operation) in [("2", "all_reduce"), ("3", "alltoallv"), ("2", "broadcast")] {
        let ran = run(&[
            &[
                "perf",
                operation,
                "--ranks",
                ranks,
                "--corrupt",
                "1",
                "-d",
                "float16",
            ],
            SHORT.as_slice(),
        ]
        .concat());
        assert_eq!(ran.code, Some(1), "{}{}", ran.out, ran.err);
        let line = ran
            .err
            .lines()
            .find(|line| line.contains("expected"))
            .expect(&ran.err);
        for wanted in [
            operation, "float16", "bytes", "rank 1", "index", "expected", "got",
        ] {
            assert!(line.contains(wanted), "{wanted}: {line}");
        }
        assert!(!ran.out.contains("wrong values 0"), "{}", ran.out);
    }
}

#[test]
fn results_are_written_as_json_and_as_a_diagram() {
    let (json, svg) = (scratch("perf.json"), scratch("perf.svg"));
    let paths = [json.to_str().expect("UTF-8"), svg.to_str().expect("UTF-8")];
    let ran = run(&[
        "perf",
        "all_reduce",
        "all_gather",
        "--ranks",
        "2",
        "-b",
        "8",
        "-e",
        "4K",
        "-n",
        "2",
        "--json",
        paths[0],
        "--plot",
        paths[1],
    ]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let text = std::fs::read_to_string(&json).expect("written");
    let value: Value = serde_json::from_str(&text).expect("valid JSON");
    assert_eq!(value["format"], "flagos-comm perf 1");
    assert_eq!(value["ranks"], 2);
    assert_eq!(value["checked"], false);
    assert_eq!(value["library"]["tier"], "host");
    assert_eq!(value["library"]["host_engine"], "shm");
    assert_eq!(value["library"]["host_engine_text"], "shared memory");
    let rows = value["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 8, "2 operations at 8, 64, 512 and 4096 bytes");
    assert!(
        rows.iter()
            .all(|row| row["out_of_place"]["time_us"].as_f64() > Some(0.0))
    );
    assert!(rows.iter().all(|row| row["in_place"]["wrong"].is_null()));
    let text = std::fs::read_to_string(&svg).expect("drawn");
    assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
    for wanted in ["all_reduce", "all_gather", "bus bandwidth", "4 KiB"] {
        assert!(text.contains(wanted), "{wanted}");
    }
    for path in [json, svg] {
        std::fs::remove_file(path).expect("removable");
    }
}

#[test]
fn flags_of_nccl_tests_select_the_rows() {
    let ran = run(&[
        "perf",
        "reduce",
        "--ranks",
        "2",
        "-b",
        "16",
        "-e",
        "48",
        "-i",
        "16",
        "-d",
        "int8",
        "-o",
        "max",
        "-r",
        "all",
        "-n",
        "2",
        "-w",
        "0",
        "-c",
        "0",
        "--in-place",
        "out",
    ]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let rows: Vec<&str> = ran
        .out
        .lines()
        .filter(|line| line.starts_with("  reduce "))
        .collect();
    assert_eq!(rows.len(), 6, "3 sizes, 2 roots: {}", ran.out);
    assert!(
        rows.iter()
            .all(|row| row.contains("int8") && row.contains("max"))
    );
    assert!(ran.out.contains("values not checked"));
}

#[test]
fn a_launcher_is_joined() {
    let exe = env!("CARGO_BIN_EXE_flagos-comm");
    let ran = run(&[
        &["launch", "-n", "2", "--no-prefix", "--", exe, "perf"],
        SHORT.as_slice(),
    ]
    .concat());
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    assert_eq!(
        ran.out.matches("wrong values 0").count(),
        1,
        "one table: {}",
        ran.out
    );
}

#[test]
fn ranks_of_mpirun_and_srun_meet_without_an_address() {
    let job = format!("test-{}", std::process::id());
    for names in [
        [
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "PMIX_NAMESPACE",
        ],
        ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID"],
        ["PMI_RANK", "PMI_SIZE", "PMI_JOBID"],
    ] {
        let ranks: Vec<_> = (0..2)
            .map(|rank: usize| {
                tool()
                    .args([
                        "perf",
                        "all_reduce",
                        "-e",
                        "64",
                        "-n",
                        "2",
                        "--tiers",
                        "host",
                    ])
                    .env(names[0], rank.to_string())
                    .env(names[1], "2")
                    .env(names[2], &job)
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn()
                    .expect("the tool starts")
            })
            .collect();
        for (rank, child) in ranks.into_iter().enumerate() {
            let ran = Ran::from(child.wait_with_output().expect("waitable"));
            assert_eq!(ran.code, Some(0), "{}", ran.err);
            assert_eq!(
                ran.out.is_empty(),
                rank != 0,
                "only rank 0 writes: {}",
                ran.out
            );
        }
    }
}

#[test]
fn a_rank_that_is_missing_is_named_in_time() {
    let output = tool()
        .args(["perf", "barrier", "--timeout", "1"])
        .env("OMPI_COMM_WORLD_RANK", "0")
        .env("OMPI_COMM_WORLD_SIZE", "3")
        .env("PMIX_NAMESPACE", format!("missing-{}", std::process::id()))
        .output()
        .expect("the tool starts");
    let ran = Ran::from(output);
    assert_eq!(ran.code, Some(3));
    assert!(
        ran.err.contains("ranks 1, 2 did not come in time"),
        "{}",
        ran.err
    );
}

/// A run that lasts until it is ended; returns when it measures.
fn endless(mark: &str) -> std::process::Child {
    let mut child = tool()
        .args([
            "perf",
            "all_reduce",
            "--ranks",
            "3",
            "-n",
            "4000000000",
            "-e",
            "8",
        ])
        .args(["--tiers", "host"])
        .env(MARK, mark)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the tool starts");
    let mut out = std::io::BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    while !line.contains("(us)") {
        line.clear();
        let n = std::io::BufRead::read_line(&mut out, &mut line).expect("readable");
        assert!(n > 0, "the run ended early");
    }
    // Nothing more is written; the pipe stays open as long as the child.
    child.stdout = Some(out.into_inner());
    child
}

/// The processes of a mark that are ranks, by rank.
fn rank_process(mark: &str, rank: usize) -> Option<u32> {
    let wanted = format!("--as-rank\0{rank}\0");
    marked(mark).into_iter().find(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&wanted)
    })
}

#[test]
fn a_rank_that_dies_ends_the_run() {
    let mark = format!("rank-dies-{}", std::process::id());
    let child = endless(&mark);
    let started = Instant::now();
    signal(rank_process(&mark, 1).expect("rank 1 runs"), libc::SIGKILL);
    let ran = Ran::from(child.wait_with_output().expect("waitable"));
    assert_eq!(ran.code, Some(137), "{}", ran.err);
    assert!(
        ran.err.contains("rank 1 was killed by signal 9"),
        "{}",
        ran.err
    );
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "{:?}",
        started.elapsed()
    );
    eventually("no orphan", || marked(&mark).is_empty());
}

#[test]
fn a_reader_that_goes_away_ends_the_run_quietly() {
    // More rows than could be measured while the test waits.
    let rows = ["-b", "8", "-e", "64M", "-i", "8K", "-n", "1", "-w", "0"];
    for how in [&["--ranks", "2"][..], &["--ranks", "2", "--threads"]] {
        let mut child = tool()
            .args(["perf", "all_reduce", "--tiers", "host"])
            .args(how)
            .args(rows)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the tool starts");
        let mut out = std::io::BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        std::io::BufRead::read_line(&mut out, &mut line).expect("readable");
        drop(out);
        let started = Instant::now();
        let ran = Ran::from(child.wait_with_output().expect("waitable"));
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{how:?}");
        assert!(started.elapsed() < Duration::from_secs(30), "{how:?}");
    }
}

#[test]
fn no_rank_outlives_the_tool() {
    let mark = format!("tool-dies-{}", std::process::id());
    let mut child = endless(&mark);
    child.kill().expect("killable");
    child.wait().expect("waitable");
    eventually("no orphan", || marked(&mark).is_empty());
    let mark = format!("tool-interrupted-{}", std::process::id());
    let child = endless(&mark);
    signal(child.id(), libc::SIGINT);
    let ran = Ran::from(child.wait_with_output().expect("waitable"));
    assert_eq!(ran.code, Some(130), "{}", ran.err);
    eventually("no orphan", || marked(&mark).is_empty());
}

/// Two machines with two ranks each: what the machines' ranks have added is rounded before it goes between them.
#[test]
fn a_check_between_machines_allows_for_what_is_rounded_on_the_way() {
    let command = format!(
        "FLAGOSCOMM_HOSTID=m$((RANK / 2)) exec {} perf all_reduce --tiers host --check -b 8 -e 8 -n 1 -w 1 --check-counts 20011",
        env!("CARGO_BIN_EXE_flagos-comm")
    );
    let out = tool()
        .env("UCX_TLS", "tcp,self")
        .args(["launch", "-n", "4", "--", "sh", "-c", &command])
        .output()
        .expect("the tool starts");
    let (out, err) = (
        String::from_utf8_lossy(&out.stdout).into_owned(),
        String::from_utf8_lossy(&out.stderr).into_owned(),
    );
    if err.contains("libucx0") {
        eprintln!("SKIPPED: the host tier across machines needs UCX (Debian: libucx0)");
        return;
    }
    assert!(out.contains("wrong values 0"), "{out}{err}");
}

#[test]
fn help_tells_how_ranks_find_each_other() {
    let out = tool()
        .args(["perf", "--help"])
        .output()
        .expect("the tool starts");
    let out = String::from_utf8_lossy(&out.stdout).into_owned();
    for word in ["MASTER_ADDR", "torchrun", "port + 1"] {
        assert!(out.contains(word), "no {word} in:\n{out}");
    }
}
