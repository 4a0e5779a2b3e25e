//! The report on a machine.

use crate::{Ran, run, scratch, tool};
use flagos_comm_testkit::standins::Standins;
use serde_json::Value;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn the_report_has_every_section_and_passes_here() {
    let ran = run(&["doctor"]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    for section in [
        "machine",
        "environment",
        "network interfaces",
        "looked for",
        "devices",
        "two-rank test on the host tier",
        "verdict",
    ] {
        assert!(
            ran.out.lines().any(|line| line == section),
            "{section}: {}",
            ran.out
        );
    }
    assert!(ran.out.contains("  passed in "), "{}", ran.out);
    assert!(ran.out.contains("The host tier works"), "{}", ran.out);
}

#[test]
fn the_report_says_where_it_looked() {
    let ran = run(&["doctor"]);
    assert!(
        ran.out.contains("nvidia") && ran.out.contains(".so"),
        "{}",
        ran.out
    );
}

/// UCX is there or is not; either is said, and what is not found names the packages.
#[test]
fn the_report_tells_of_the_host_tier_between_machines() {
    let ran = run(&["doctor"]);
    let found = ran
        .out
        .contains("Between machines the host tier uses UCX: ");
    let lacking = ran.out.contains("Ranks on several machines need UCX");
    assert!(found != lacking, "{}", ran.out);
    let listed = ran.out.contains("\n    UCX: /");
    assert_eq!(found, listed, "{}", ran.out);
    let mut command = tool();
    command.arg("doctor");
    command.env("FLAGOSCOMM_ENGINE_PATH", "/nowhere/libucp.so.0");
    let ran = Ran::from(command.output().expect("the tool starts"));
    for words in [
        "/nowhere/libucp.so.0: there is no such file",
        "Ranks on several machines need UCX",
        "FLAGOSCOMM_ENGINE_PATH=/nowhere/libucp.so.0 can't be used (there is no such file): correct or unset it",
    ] {
        assert!(ran.out.contains(words), "{words}: {}", ran.out);
    }
    // What is asked for is at fault, not the packages.
    assert!(!ran.out.contains("libucx0"), "{}", ran.out);
}

/// MPI is there or is not; what it would be for is said, or where it was looked for. Its path is another engine's
/// unless it is asked for.
#[test]
fn the_report_tells_of_mpi() {
    let report = |engine: &str, path: &str| {
        let mut command = tool();
        command.arg("doctor");
        command.env("FLAGOSCOMM_HOST_ENGINE", engine);
        command.env("FLAGOSCOMM_ENGINE_PATH", path);
        Ran::from(command.output().expect("the tool starts")).out
    };
    let out = report("auto", "/nowhere/libucp.so.0");
    let found = out.contains("can use MPI instead: FLAGOSCOMM_HOST_ENGINE=mpi, /");
    assert!(found || out.contains("mpi: no "), "{out}");
    let out = report("mpi", "/nowhere/libmpi.so.40");
    let words = "/nowhere/libmpi.so.40: there is no such file";
    assert!(out.contains(words) && !out.contains("can use MPI"), "{out}");
    assert!(!out.contains("/nowhere/libucp"), "{out}");
    let verdict = "HOST_ENGINE=mpi asks for MPI, and it can't be used here";
    assert!(out.contains(verdict) && !out.contains("uses UCX"), "{out}");
}

/// The settings leave something that contradicts what was found.
#[test]
fn the_verdict_follows_from_what_is_set() {
    let report = |name: &str, value: &str| {
        let mut command = tool();
        command.arg("doctor").env(name, value);
        Ran::from(command.output().expect("the tool starts"))
    };
    let ran = report("FLAGOSCOMM_TIERS", "native");
    assert_eq!(ran.code, Some(1), "{}", ran.out);
    for words in [
        "FLAGOSCOMM_TIERS=native leaves the host tier out: nothing can run here",
        "The host tier would work",
    ] {
        assert!(ran.out.contains(words), "{words}: {}", ran.out);
    }
    for words in ["uses UCX", "need UCX", "The host tier works"] {
        assert!(!ran.out.contains(words), "{words}: {}", ran.out);
    }
    let ran = report("FLAGOSCOMM_TIERS", "hots");
    let words = "FLAGOSCOMM_TIERS=\"hots\" is not understood (expected some of native, flagcx, host, separated by commas); \
                 the default is used: native,flagcx,host.";
    assert!(ran.out.contains(words), "{}", ran.out);
    assert!(
        !ran.out.contains("FLAGOSCOMM_TIERS: the tiers"),
        "{}",
        ran.out
    );
    let ran = report("FLAGOSCOMM_SINGLE_COPY", "maybe");
    let words = "FLAGOSCOMM_SINGLE_COPY=\"maybe\" is not understood";
    assert!(ran.out.contains(&format!("  {words}")), "{}", ran.out);
    let ran = report("FLAGOSCOMM_HOST_ENGINE", "shm");
    assert_eq!(ran.code, Some(0), "{}", ran.out);
    assert!(ran.out.contains("have to be on one machine"), "{}", ran.out);
    assert!(
        ran.out.contains("passed, over shared memory"),
        "{}",
        ran.out
    );
    assert!(!ran.out.contains("Between machines"), "{}", ran.out);
    // MPI takes no two ranks of one process.
    let ran = report("FLAGOSCOMM_HOST_ENGINE", "mpi");
    assert_eq!(ran.code, Some(0), "{}", ran.out);
    let without = "Without MPI the host tier works: the two-rank test passed, over shared memory";
    assert!(ran.out.contains(without), "{}", ran.out);
    let uses = ran
        .out
        .contains("the host tier uses MPI, on one machine too");
    let left_out = ran.out.contains("so the test leaves MPI out");
    assert_eq!(uses, left_out, "{}", ran.out);
    assert!(!ran.out.contains("Between machines"), "{}", ran.out);
}

/// As MPI: what is there, and under whose name its path is.
#[test]
fn the_report_tells_of_ucc() {
    let standin = Standins::ucc().build().ccl();
    let report = |engine: &str, path: &str| {
        let mut command = tool();
        command.arg("doctor");
        command.env("FLAGOSCOMM_HOST_ENGINE", engine);
        command.env("FLAGOSCOMM_ENGINE_PATH", path);
        Ran::from(command.output().expect("the tool starts")).out
    };
    let path = standin.to_str().expect("a path in UTF-8");
    let out = report("ucc", path);
    let words = format!("HOST_ENGINE=ucc: the host tier uses UCC, on one machine too: {path}");
    assert!(out.contains(&words), "{out}");
    assert!(!out.contains("uses UCX"), "{out}");
    assert!(out.contains("1.9.0"), "{out}");
    let out = report("ucc", "/nowhere/libucc.so.1");
    let words = "/nowhere/libucc.so.1: there is no such file";
    assert!(out.contains(words) && !out.contains("can use UCC"), "{out}");
    let out = report("auto", path);
    assert!(!out.contains(&format!("HOST_ENGINE=ucc, {path}")), "{out}");
}

#[test]
fn the_report_is_valid_json_and_shows_the_environment() {
    let output = tool()
        .args(["doctor", "--json"])
        .env("FLAGOSCOMM_TIMEOUT", "20")
        .env("GEMS_VENDOR", "nvidia")
        .env("UCX_TLS", "tcp,self")
        .env("ROCM_PATH", "/opt/rocm")
        .env("FLAGOS_COMM_LOG", "info")
        .env("MUSA_VISIBLE_DEVICES", "0")
        .env("UNRELATED_SECRET", "x")
        .output()
        .expect("the tool starts");
    let ran = Ran::from(output);
    let value: Value = serde_json::from_str(&ran.out).expect("valid JSON");
    assert_eq!(value["format"], "flagos-comm doctor 1");
    assert_eq!(value["environment"]["FLAGOSCOMM_TIMEOUT"], "20");
    assert_eq!(value["environment"]["GEMS_VENDOR"], "nvidia");
    assert_eq!(value["environment"]["UCX_TLS"], "tcp,self");
    assert_eq!(value["environment"]["ROCM_PATH"], "/opt/rocm");
    assert_eq!(value["environment"]["FLAGOS_COMM_LOG"], "info");
    assert_eq!(value["environment"]["MUSA_VISIBLE_DEVICES"], "0");
    assert!(ran.out.contains("Is FLAGOSCOMM_LOG meant?"), "{}", ran.out);
    assert!(!ran.out.contains("UNRELATED_SECRET"));
    assert!(value["load_report"].is_object() || value["load_report"].is_array());
    assert_eq!(value["self_test"]["passed"], true, "{}", ran.out);
}

#[test]
fn a_variable_that_is_none_of_ours_is_named() {
    let mut command = tool();
    command.arg("doctor");
    command.env("FLAGOSCOMM_TIMOUT", "3");
    command.env("FLAGOSCOMM_NVIDIA_LIBRARY", "");
    let ran = Ran::from(command.output().expect("the tool starts"));
    assert!(
        ran.out
            .contains("FLAGOSCOMM_TIMOUT is no variable of flagos-comm"),
        "{}",
        ran.out
    );
    assert!(
        ran.out.contains("Is FLAGOSCOMM_TIMEOUT meant?"),
        "{}",
        ran.out
    );
    // The two ranks of its test are in one process, which warns once.
    let warning = "WARN FLAGOSCOMM_TIMOUT is no variable of flagos-comm and does nothing; is FLAGOSCOMM_TIMEOUT meant?";
    assert_eq!(ran.err.matches(warning).count(), 1, "{}", ran.err);
    assert!(
        !ran.out.contains("FLAGOSCOMM_NVIDIA_LIBRARY is no variable"),
        "{}",
        ran.out
    );
}

/// The machine has every vendor's libraries: each is shown with its files, functions and devices, and
/// so are the numbers that are missing.
#[test]
fn every_vendor_is_shown() {
    let mut command = tool();
    command.arg("doctor");
    let mut expected = Vec::new();
    for key in Standins::all() {
        let standins = Standins::of(key).build();
        let name = |what: &str| format!("FLAGOSCOMM_{}_{what}", key.to_uppercase());
        command.env(name("LIBRARY"), standins.ccl());
        command.env(name("DRIVER"), standins.runtime());
        expected.push((key, standins));
    }
    let text: Ran = command.output().expect("the tool starts").into();
    let json: Ran = command.arg("--json").output().expect("it does").into();
    let json: Value = serde_json::from_str(&json.out).expect("valid JSON");
    let survey = json["survey"].as_array().expect("a list");
    for (key, standins) in &expected {
        let of_vendor: Vec<&str> = text
            .out
            .lines()
            .skip_while(|line| !line.starts_with(&format!("  {key}")))
            .skip(1)
            .take_while(|line| line.starts_with("    "))
            .collect();
        let shown = of_vendor.join("\n");
        for words in [
            standins.ccl().to_str().unwrap(),
            standins.runtime().to_str().unwrap(),
            " functions",
            "devices: 4",
        ] {
            assert!(shown.contains(words), "{key} {words}:\n{}", text.out);
        }
        let one = survey.iter().find(|one| one["vendor"] == *key);
        let one = one.unwrap_or_else(|| panic!("{key} is missing: {json:#}"));
        assert_eq!(one["devices"], 4, "{key}: {one:#}");
        let variable = format!("FLAGOSCOMM_{}_NUMBERS", key.to_uppercase());
        match *key {
            // Whose numbers nobody has published.
            "tsingmicro" | "kunlunxin" => assert!(shown.contains(&variable), "{shown}"),
            _ => {
                assert!(one["library_error"].is_null(), "{key}: {one:#}");
                assert!(
                    shown.contains("the collective library can be used"),
                    "{shown}"
                );
            }
        }
    }
}

/// Also where the driver has no stream for a thread that has set no device.
#[test]
fn the_two_rank_test_passes_beside_every_driver() {
    for key in Standins::all() {
        let standins = Standins::of(key).build();
        let mut command = tool();
        command.args(["doctor", "--json"]).env("GEMS_VENDOR", key);
        let ran: Ran = standins
            .env(&mut command)
            .output()
            .expect("it starts")
            .into();
        let json: Value = serde_json::from_str(&ran.out).expect("valid JSON");
        assert_eq!(json["self_test"]["passed"], true, "{key}: {json:#}");
    }
}

/// Each refusal is said, with its reason, beside the vendor that it is about.
#[test]
fn refusals_are_explained() {
    let other = Standins::of("mthreads").build();
    let text = scratch("no-library.so");
    std::fs::write(
        &text,
        "this is no library, but it is longer than a header of one is\n",
    )
    .unwrap();
    let ran: Ran = tool()
        .arg("doctor")
        .env("FLAGOSCOMM_METAX_LIBRARY", other.ccl())
        .env("FLAGOSCOMM_AMD_DRIVER", &text)
        .env("FLAGOSCOMM_FLAGCX_LIBRARY", "/nowhere/libflagcx.so")
        .env("FLAGOSCOMM_TSINGMICRO_NUMBERS", "nonsense=1")
        .output()
        .expect("the tool starts")
        .into();
    std::fs::remove_file(&text).unwrap();
    for words in [
        "    MetaX MCCL: refused: ",
        "it is Moore Threads' MCCL, not MetaX MCCL",
        &format!("    HIP runtime: refused: {}: ", text.display()),
        "not a shared library but text",
        "    FlagCX: absent: /nowhere/libflagcx.so: there is no such file",
        "nonsense is no number of tsingmicro",
        // Nothing is there of this one.
        "  sunrise (ptpu): no libtangrt_shared.so, libpccl.so",
    ] {
        assert!(ran.out.contains(words), "{words}\n{}", ran.out);
    }
    assert_eq!(ran.code, Some(0), "{}", ran.err);
}

/// Every place is listed on demand, and only then.
#[test]
fn details_list_every_place() {
    let place = "/opt/maca/lib/libmcruntime.so: there is no such file";
    assert!(!run(&["doctor"]).out.contains(place));
    let ran = run(&["doctor", "--details"]);
    assert!(ran.out.contains(place), "{}", ran.out);
    // It is what lists every place, and names each once.
    assert!(!ran.out.contains("--details` lists"), "{}", ran.out);
    for line in ran.out.lines() {
        let words: Vec<&str> = line.split(": ").collect();
        let doubled = words.windows(2).any(|pair| pair[0] == pair[1]);
        assert!(!doubled, "{line}");
    }
}

/// What was named by hand is said to be what is at fault.
#[test]
fn a_named_vendor_without_a_driver_is_said_to_lack_it() {
    if flagos_comm::internal::device_count().is_ok_and(|count| count > 0) {
        println!("SKIPPED: needs a machine without an accelerator");
        return;
    }
    let report = |name: &str| {
        let mut command = tool();
        command.arg("doctor").env("GEMS_VENDOR", name);
        Ran::from(command.output().expect("the tool starts"))
    };
    let ran = report("cuda");
    let words = "GEMS_VENDOR names cuda, but its driver was not found, so the host tier is used.";
    assert!(ran.out.contains(words), "{}", ran.out);
    assert!(!ran.out.contains("GEMS_VENDOR=<vendor>"), "{}", ran.out);
    let ran = report("arm");
    let words = "  GEMS_VENDOR names arm, which has no collective library: host tier.";
    assert!(ran.out.contains(words), "{}", ran.out);
}

#[test]
fn a_driver_that_hangs_is_cut_off_and_named() {
    let standins = Standins::builder().build();
    let started = Instant::now();
    let mut command = tool();
    command
        .args(["doctor", "--patience", "2"])
        .env("FAKE_DELAY", "cudaGetDeviceCount:600000");
    let ran: Ran = standins
        .env(&mut command)
        .output()
        .expect("the tool starts")
        .into();
    assert!(started.elapsed() < Duration::from_secs(60));
    for words in [
        "  nvidia: cut off after 2 s without an answer, while its driver ",
        "  FAILED: cut off after 2 s without an answer, while ",
        "The vendor could not be determined: cut off",
        // The others are looked at all the same.
        "  sunrise (ptpu): no libtangrt_shared.so, libpccl.so",
    ] {
        assert!(ran.out.contains(words), "{words}\n{}", ran.out);
    }
    assert_eq!(ran.code, Some(1), "{}", ran.out);
}

#[test]
fn a_driver_that_crashes_is_named() {
    let (source, library) = (scratch("crash.c"), scratch("crash.so"));
    let code = "__attribute__((constructor)) static void crash(void) { __builtin_trap(); }\n";
    std::fs::write(&source, code).unwrap();
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status();
    assert!(built.is_ok_and(|status| status.success()));
    let ran: Ran = tool()
        .arg("doctor")
        .env("FLAGOSCOMM_AMD_DRIVER", &library)
        .output()
        .expect("the tool starts")
        .into();
    for file in [source, library] {
        std::fs::remove_file(file).unwrap();
    }
    assert!(
        ran.out.contains(
            "  amd: a process that tried it was ended by signal 4, while its driver is opened"
        ),
        "{}",
        ran.out
    );
    assert_eq!(ran.code, Some(1), "{}", ran.out);
}
