//! The stand-ins do what the real libraries do, as far as one machine without hardware can tell.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use flagos_comm_testkit::standins::{Broken, Call, CallLog, Standins};
use flagos_comm_testkit::{cargo, ranks};

const DEADLINE: Duration = Duration::from_secs(60);

fn program(name: &str, standins: &Standins) -> PathBuf {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    standins.compile_program(
        &cargo::workspace().join("tests/fakevendor/selftest.c"),
        &out,
    );
    out
}

fn selftest(exe: &Path, standins: &Standins, what: &str) -> Command {
    let mut c = Command::new(exe);
    c.arg(what);
    standins.env(&mut c);
    c
}

fn exports(file: &Path) -> Vec<String> {
    let out = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(file)
        .output()
        .expect("nm runs");
    String::from_utf8_lossy(&out.stdout)
        .lines()
        .filter_map(|l| l.split_whitespace().nth(2))
        .map(|s| s.split('@').next().unwrap_or(s).to_owned())
        .collect()
}

#[test]
fn processes_threads_memory_streams_and_graphs() {
    for major in [13, 12] {
        let s = Standins::builder().cudart_major(major).build();
        let exe = program(&format!("all{major}"), &s);
        ranks::run_ok(1, |_| selftest(&exe, &s, "all"), DEADLINE);
        let _ = std::fs::remove_file(exe);
    }
}

#[test]
fn calls_fail_on_request_and_are_logged() {
    let s = Standins::builder().build();
    let exe = program("fail", &s);
    let log = exe.with_extension("log");
    let _ = std::fs::remove_file(&log);
    ranks::run_ok(
        1,
        |_| {
            let mut c = selftest(&exe, &s, "fail");
            c.env("FAKE_FAIL", "ncclCommCount:3@2,cudaMalloc:2")
                .env("FAKE_LOG", &log);
            c
        },
        DEADLINE,
    );
    let calls = CallLog::read(&log);
    let counts: Vec<_> = calls
        .iter()
        .filter(|c| c.name == "ncclCommCount")
        .map(|c| (c.device, c.result))
        .collect();
    assert_eq!(
        counts,
        [(Some(0), Some(0)), (Some(0), Some(3)), (Some(0), Some(0))]
    );
    assert!(
        calls
            .iter()
            .any(|c| c.name == "cudaMalloc" && c.args.ends_with(", 1") && c.result == Some(2))
    );
    let _ = std::fs::remove_file(log);
    let _ = std::fs::remove_file(exe);
}

#[test]
fn calls_after_the_drivers_end_are_caught() {
    let s = Standins::builder().build();
    let exe = program("late", &s);
    for (check, ok) in [("0", true), ("1", false)] {
        let out = ranks::run(
            1,
            |_| {
                let mut c = selftest(&exe, &s, "late");
                c.env("FAKE_EXIT_CHECK", check);
                c
            },
            DEADLINE,
        );
        assert_eq!(out[0].ok(), ok, "{}", ranks::report(&out));
        assert_eq!(
            out[0].stderr.contains("after the driver was torn down"),
            !ok
        );
    }
    let _ = std::fs::remove_file(exe);
}

#[test]
fn symbols_can_be_left_out() {
    let full = exports(&Standins::builder().build().nccl());
    assert!(
        full.iter().any(|s| s == "ncclCommAbort") && full.iter().all(|s| s.starts_with("nccl"))
    );
    let some = Standins::builder()
        .omit("ncclCommAbort")
        .omit("cudaStreamGetDevice")
        .build();
    let names = exports(&some.nccl());
    assert_eq!(names.len(), full.len() - 1);
    assert!(!names.iter().any(|s| s == "ncclCommAbort"));
    assert!(
        !exports(&some.cudart())
            .iter()
            .any(|s| s == "cudaStreamGetDevice")
    );
    let old = exports(&Standins::builder().nccl_version(21803).build().nccl());
    assert!(old.iter().any(|s| s == "ncclCommSplit") && !old.iter().any(|s| s == "ncclMemAlloc"));
    let bare = Standins::builder().bare().build();
    let mut names = exports(&bare.nccl());
    let mut all = full.clone();
    names.sort();
    all.sort();
    assert_eq!(names, all);
}

#[test]
fn broken_files_and_missing_drivers() {
    for how in [
        Broken::Text,
        Broken::MissingDependency,
        Broken::Truncated,
        Broken::Empty,
    ] {
        let s = Standins::builder().broken_nccl(how).build();
        assert!(s.nccl().is_file() && !s.dir.join("libfoo.so.9").exists());
    }
    let none = Standins::builder().without("libcuda.so.1").build();
    assert!(!none.cuda().exists() && none.cudart().is_file());
}

fn flavours(name: &str, standins: &Standins) -> PathBuf {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("flavours-{name}-{}", std::process::id()));
    standins.compile_program(
        &cargo::workspace().join("tests/fakevendor/flavours.c"),
        &out,
    );
    out
}

/// Runs one case of `flavours.c` with these stand-ins and variables, and expects it to succeed.
fn flavour_case(exe: &Path, s: &Standins, case: &str, env: &[(&str, &str)]) {
    ranks::run_ok(
        1,
        |_| {
            let mut c = selftest(exe, s, case);
            c.envs(env.iter().copied());
            c
        },
        DEADLINE,
    );
}

#[test]
fn every_vendor_reduces_right_and_says_whose_it_is() {
    for vendor in Standins::all() {
        if ["ascend", "cambricon"].contains(&vendor) {
            continue; // with tests of their own
        }
        let s = Standins::of(vendor).build();
        let exe = flavours(vendor, &s);
        if vendor != "kunlunxin" {
            flavour_case(&exe, &s, "basic", &[("WANT_VENDOR", vendor)]);
        }
        if vendor != "tsingmicro" {
            flavour_case(&exe, &s, "runtime", &[("WANT_VENDOR", vendor)]);
        }
        let has_cuda = ["nvidia", "iluvatar", "du", "thead"].contains(&vendor);
        assert_eq!(s.dir.join("libcuda.so.1").exists(), has_cuda, "{vendor}");
        assert_eq!(s.machine().ends_with("libfakemachine.so"), !has_cuda);
        assert!(
            exports(&s.machine())
                .iter()
                .all(|f| f.starts_with("fake_") || has_cuda)
        );
        std::fs::remove_file(exe).expect("it was just built");
    }
}

/// The functions that a header declares.
fn declared(header: &str) -> Vec<String> {
    let path = cargo::workspace().join("tests/fakevendor/abi").join(header);
    std::fs::read_to_string(path)
        .expect("a header can be read")
        .lines()
        .skip_while(|l| !l.contains("visibility push"))
        .filter(|l| !l.starts_with('#') && l.contains('('))
        .map(|l| {
            let name = l.split('(').next().unwrap_or(l);
            name.rsplit([' ', '*']).next().unwrap_or(name).to_owned()
        })
        .collect()
}

#[test]
fn libraries_export_what_their_headers_declare() {
    let none: &[&str] = &[];
    for (vendor, version, defines, ccl, runtime) in [
        ("amd", 22800, none, "rccl.h", "hip.h"),
        (
            "metax",
            23004,
            &["FAKE_POINTER_ATTRIBUTES"],
            "mccl_metax.h",
            "mc.h",
        ),
        (
            "mthreads",
            21100,
            &["FAKE_MUSA_NEW"],
            "mccl_musa.h",
            "musa.h",
        ),
        (
            "enflame",
            30100,
            &["FAKE_ECCL_ALLTOALL"],
            "eccl.h",
            "tops.h",
        ),
        ("sunrise", 20000, none, "pccl.h", "tang.h"),
        ("tsingmicro", 10000, none, "tccl.h", ""),
    ] {
        let mut b = Standins::of(vendor).version(version);
        for d in defines {
            b = b.define(d);
        }
        let s = b.build();
        let mut pairs = vec![(s.ccl(), ccl)];
        if !runtime.is_empty() {
            pairs.push((s.runtime(), runtime));
        }
        for (file, header) in pairs {
            let mut want = declared(header);
            want.push("fake_vendor_name".to_owned());
            let mut got = exports(&file);
            got.retain(|f| vendor != "tsingmicro" || !f.starts_with("nccl"));
            want.sort();
            got.sort();
            assert_eq!(got, want, "{vendor} {header}");
        }
    }
    let tccl = exports(&Standins::of("tsingmicro").build().ccl());
    assert_eq!(
        tccl.iter().filter(|f| f.starts_with("tccl")).count(),
        tccl.iter().filter(|f| f.starts_with("nccl")).count()
    );
}

#[test]
fn versions_and_options_decide_what_is_there() {
    let has = |s: &Standins, name: &str| exports(&s.ccl()).iter().any(|f| f == name);
    let amd = Standins::of("amd").build();
    assert!(has(&amd, "ncclAllToAll") && has(&amd, "ncclAllToAllv") && has(&amd, "ncclGather"));
    assert!(
        has(&amd, "ncclMemAlloc") && !has(&amd, "ncclAlltoAll") && !has(&amd, "ncclCommShrink")
    );
    assert!(amd.dir.join("libamdhip64.so.6").is_file() && amd.dir.join("librccl.so").is_file());
    let hygon = Standins::of("hygon").build();
    assert!(hygon.dir.join("libgalaxyhip.so.5").is_file());
    let metax = Standins::of("metax").build();
    assert!(has(&metax, "mcclCommMcDevice") && has(&metax, "mcclAllToAlld"));
    assert!(!has(&metax, "mcclCommSplit") && !has(&metax, "mcclMemAlloc"));
    assert!(
        !exports(&metax.runtime())
            .iter()
            .any(|f| f == "mcPointerGetAttributes")
    );
    let musa = Standins::of("mthreads").build();
    assert!(has(&musa, "mcclCommMuDevice") && !has(&musa, "mcclCommMcDevice"));
    assert!(!has(&musa, "mcclGetLastError") && !has(&musa, "mcclCommFinalize"));
    assert!(
        !exports(&musa.runtime())
            .iter()
            .any(|f| f == "musaMallocAsync")
    );
    assert!(musa.dir.join("libmccl.so").is_file());
    let eccl = Standins::of("enflame").build();
    assert!(
        has(&eccl, "ecclCommDevice") && !has(&eccl, "ecclAlltoall") && !has(&eccl, "ecclBcast")
    );
    let old = Standins::of("iluvatar").build();
    assert!(has(&old, "ncclCommSplit") && !has(&old, "ncclMemAlloc") && !has(&old, "ncclAllToAll"));
    assert!(old.dir.join("libnccl.so").is_file() && old.dir.join("libcudart.so").is_file());
    let some = Standins::of("sunrise")
        .omit("pcclGetLastError")
        .omit("tangGetErrorName")
        .build();
    assert!(!has(&some, "pcclGetLastError") && has(&some, "pcclAllReduce"));
    assert!(
        !exports(&some.runtime())
            .iter()
            .any(|f| f == "tangGetErrorName")
    );
    let text = Standins::of("metax")
        .broken(Broken::Text)
        .without("libmcruntime.so")
        .build();
    assert!(text.ccl().is_file() && !text.runtime().exists());
}

#[test]
fn exchanges_of_every_spelling() {
    for (vendor, version, defines) in [
        ("amd", 22105, vec![]),
        ("amd", 22800, vec!["NEWEST_RCCL"]),
        ("metax", 21605, vec![]),
        ("mthreads", 21100, vec!["FAKE_MUSA_NEW"]),
        ("enflame", 30100, vec!["FAKE_ECCL_ALLTOALL"]),
        ("tsingmicro", 10000, vec![]),
    ] {
        let mut b = Standins::of(vendor).version(version);
        for d in &defines {
            b = b.define(d);
        }
        let s = b.build();
        let exe = flavours(&format!("exchange-{vendor}-{version}"), &s);
        flavour_case(&exe, &s, "exchange", &[]);
        std::fs::remove_file(exe).expect("it was just built");
    }
}

#[test]
fn quirks_bite() {
    for (vendor, cases) in [
        (
            "enflame",
            &["types", "kinds", "stale", "silent", "scope"][..],
        ),
        ("sunrise", &["pairs", "crash", "device"]),
        ("metax", &["metax", "fp8"]),
        ("mthreads", &["fp8"]),
        ("iluvatar", &["fp8"]),
        ("tsingmicro", &["tccl"]),
    ] {
        let s = Standins::of(vendor).build();
        let exe = flavours(&format!("quirks-{vendor}"), &s);
        for case in cases {
            flavour_case(&exe, &s, case, &[]);
        }
        std::fs::remove_file(exe).expect("it was just built");
    }
    let amd = Standins::of("amd").build();
    let exe = flavours("quirks-amd", &amd);
    flavour_case(&exe, &amd, "fp8", &[("WANT", "0")]);
    flavour_case(&exe, &amd, "fp8", &[("FAKE_CCL_VERSION", "21803")]);
    std::fs::remove_file(exe).expect("it was just built");
    let shifted = Standins::of("tsingmicro")
        .define("FAKE_SHIFTED_NUMBERS")
        .build();
    let exe = flavours("shifted", &shifted);
    flavour_case(&exe, &shifted, "basic", &[]);
    flavour_case(&exe, &shifted, "tccl", &[]);
    std::fs::remove_file(exe).expect("it was just built");
    let hip5 = Standins::of("amd").runtime_major(5).build();
    assert!(hip5.dir.join("libamdhip64.so.5").is_file());
    let exe = flavours("hip5", &hip5);
    flavour_case(&exe, &hip5, "runtime", &[]);
    std::fs::remove_file(exe).expect("it was just built");
    let attributes = Standins::of("metax")
        .define("FAKE_POINTER_ATTRIBUTES")
        .build();
    let exe = flavours("attributes", &attributes);
    flavour_case(&exe, &attributes, "runtime", &[]);
    std::fs::remove_file(exe).expect("it was just built");
}

#[test]
fn the_order_of_inits_matters_on_request() {
    let s = Standins::of("metax").build();
    let exe = flavours("order", &s);
    for (value, ok) in [("0", true), ("1", false)] {
        let out = ranks::run(
            1,
            |_| {
                let mut c = selftest(&exe, &s, "order");
                c.env("FAKE_INIT_ORDER", value);
                c
            },
            Duration::from_secs(if ok { 60 } else { 3 }),
        );
        assert_eq!(out[0].ok(), ok, "{}", ranks::report(&out));
        assert_eq!(out[0].timed_out, !ok);
    }
    std::fs::remove_file(exe).expect("it was just built");
}

#[test]
fn logs_and_knobs_know_the_vendors_names() {
    let s = Standins::of("metax").build();
    let exe = flavours("log", &s);
    let log = exe.with_extension("log");
    let run = |fail: &str| {
        let _ = std::fs::remove_file(&log);
        let out = ranks::run(
            1,
            |_| {
                let mut c = selftest(&exe, &s, "basic");
                c.env("FAKE_LOG", &log).env("FAKE_FAIL", fail);
                c
            },
            DEADLINE,
        );
        (out[0].ok(), CallLog::read(&log))
    };
    let (ok, calls) = run("");
    assert!(ok);
    for name in [
        "mcclAllReduce",
        "mcclCommMcDevice",
        "mcclCommInitRank",
        "mcMemcpy",
        "mcSetDevice",
    ] {
        assert!(
            calls.iter().any(|c| c.name == name && c.result == Some(0)),
            "{name}"
        );
    }
    assert!(
        !calls
            .iter()
            .any(|c| c.name.starts_with("nccl") || c.name.starts_with("cuda"))
    );
    let (ok, calls) = run("mcclAllReduce:3@2");
    assert!(
        !ok && calls
            .iter()
            .any(|c| c.name == "mcclAllReduce" && c.result == Some(3))
    );
    let _ = std::fs::remove_file(log);
    std::fs::remove_file(exe).expect("it was just built");
}

/// Compiles the selftest of a vendor with a shape of its own, and runs it. Its stand-ins' calls are what is returned.
fn own_shape(name: &str, source: &str, s: &Standins) -> Vec<Call> {
    let exe = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let log = exe.with_extension("log");
    let source = cargo::workspace().join("tests/fakevendor").join(source);
    s.compile_program(&source, &exe);
    let _ = std::fs::remove_file(&log);
    ranks::run_ok(
        1,
        |_| {
            let mut c = Command::new(&exe);
            s.env(&mut c).env("FAKE_LOG", &log);
            c
        },
        DEADLINE,
    );
    let calls = CallLog::read(&log);
    let _ = std::fs::remove_file(log);
    std::fs::remove_file(exe).expect("it was just built");
    calls
}

#[test]
fn ascend_in_each_of_its_shapes() {
    for (version, split, groups) in [
        (80300, false, false),
        (80500, true, false),
        (90000, true, true),
    ] {
        let mut b = Standins::of("ascend").version(version);
        if groups {
            b = b.define("FAKE_HCCL_GROUPS");
        }
        let s = b.build();
        let comm = s.dir.join("libhcomm.so");
        assert_eq!(comm.exists(), split);
        let ops = exports(&s.ccl());
        assert!(ops.iter().any(|f| f == "HcclAllReduce"));
        assert_eq!(ops.iter().any(|f| f == "HcclGetRootInfo"), !split);
        assert!(!ops.iter().any(|f| f == "HcclGroupStart"));
        if split {
            let comm = exports(&comm);
            assert!(comm.iter().any(|f| f == "HcclGetRootInfo"));
            assert!(!comm.iter().any(|f| f == "HcclAllReduce"));
            assert_eq!(comm.iter().any(|f| f == "HcclGroupStart"), groups);
        }
        let calls = own_shape(&format!("ascend-{version}"), "selftest_ascend.c", &s);
        let batch = calls.iter().find(|c| c.name == "HcclBatchSendRecv");
        let args = &batch.expect("a batch was sent").args;
        assert!(
            args.contains("{send ") && args.contains(", 1, 5, peer="),
            "{args}"
        );
        assert!(!calls.iter().any(|c| c.name.starts_with("nccl")));
    }
    let old = exports(&Standins::of("ascend").version(60300).build().ccl());
    assert!(old.iter().any(|f| f == "HcclSend") && !old.iter().any(|f| f == "HcclAlltoAll"));
}

#[test]
fn cambricon_kunlunxin_and_tsingmicro() {
    let calls = own_shape(
        "cambricon",
        "selftest_cambricon.c",
        &Standins::of("cambricon").build(),
    );
    let sum = calls
        .iter()
        .find(|c| c.name == "cnclAllReduce" && c.result == Some(0));
    assert!(
        sum.is_some_and(|c| c.args.contains(", 4, 0x23, op=0")),
        "{sum:?}"
    );
    let odd = Standins::of("cambricon")
        .define("FAKE_CNRT_ODD_NUMBERS")
        .build();
    own_shape("cambricon-odd", "selftest_cambricon.c", &odd);
    let calls = own_shape(
        "kunlunxin",
        "selftest_kunlunxin.c",
        &Standins::of("kunlunxin").build(),
    );
    let sum = calls
        .iter()
        .find(|c| c.name == "bkcl_all_reduce" && c.result == Some(0));
    assert!(
        sum.is_some_and(|c| c.args.contains(", 4, 8, op=4")),
        "{sum:?}"
    );
    own_shape("tx", "selftest_tx.c", &Standins::of("tsingmicro").build());
}

#[test]
fn flagcx_over_either_machine() {
    let nvidia = Standins::of("nvidia").flagcx().build();
    let kunlunxin = Standins::of("kunlunxin").flagcx().build();
    for (name, s) in [("flagcx-nvidia", nvidia), ("flagcx-other", kunlunxin)] {
        assert_eq!(
            exports(&s.flagcx())
                .iter()
                .filter(|f| f.to_lowercase().contains("flagcx"))
                .count(),
            52
        );
        let calls = own_shape(name, "selftest_flagcx.c", &s);
        assert!(
            calls
                .iter()
                .any(|c| c.name == "flagcxAllReduce" && c.result == Some(0))
        );
    }
}

/// The functions with this prefix that a header declares, also on several lines.
fn all_declared(header: &str, prefix: &str) -> Vec<String> {
    let path = cargo::workspace().join("tests/fakevendor/abi").join(header);
    let text = std::fs::read_to_string(path).expect("a header can be read");
    let mut names: Vec<String> = text
        .split(';')
        .filter_map(|d| {
            let (before, _) = d.split_once('(')?;
            let name = before.rsplit([' ', '*', '\n']).next()?;
            name.starts_with(prefix).then(|| name.to_owned())
        })
        .collect();
    names.sort();
    names
}

#[test]
fn own_shapes_export_what_their_headers_declare() {
    for (vendor, header, prefix) in [
        ("ascend", "acl.h", "acl"),
        ("ascend", "hccl.h", "Hccl"),
        ("cambricon", "cnrt.h", "cnrt"),
        ("cambricon", "cncl.h", "cncl"),
        ("kunlunxin", "bkcl.h", "bkcl_"),
        ("tsingmicro", "tx.h", "tx"),
    ] {
        let s = Standins::of(vendor).build();
        let mut got: Vec<String> = [s.ccl(), s.runtime(), s.dir.join("libhcomm.so")]
            .iter()
            .filter(|f| f.exists())
            .flat_map(|f| exports(f))
            .filter(|f| f.starts_with(prefix))
            .collect();
        got.sort();
        assert_eq!(got, all_declared(header, prefix), "{header}");
    }
}

#[test]
fn ranks_are_killed_at_the_deadline() {
    let out = ranks::run(
        2,
        |rank| {
            let mut c = Command::new("sh");
            c.args([
                "-c",
                if rank == 0 {
                    "echo here; exit 3"
                } else {
                    "echo stuck; sleep 100"
                },
            ]);
            c
        },
        Duration::from_millis(300),
    );
    assert_eq!(
        (
            out[0].status.code(),
            out[0].timed_out,
            out[0].stdout.as_str()
        ),
        (Some(3), false, "here\n")
    );
    assert!(out[1].timed_out && out[1].stdout == "stuck\n" && !out[1].ok());
}
