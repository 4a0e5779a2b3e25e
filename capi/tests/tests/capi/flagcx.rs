//! `libflagcx.so` as FlagCX's programs see it: the programs of `tests/c/flagcx`, written against a header of
//! FlagCX's ABI, on the host tier and over stand-ins of NVIDIA's libraries.

use crate::drop_in::{ASAN, FLAGCX, grouped, has_sanitizer, on_host, over, plain, valgrind};
use flagos_comm_capi_tests::cost::OPERATIONS;
use flagos_comm_capi_tests::{have, root, run, stdout, without_comments};
use flagos_comm_testkit::{CallLog, Standins};
use std::process::Command;

/// The names of flagcx_kernel.h that FlagCX's Python wrapper looks up.
const KERNEL: [&str; 8] = [
    "flagcxDevCommCreate",
    "flagcxDevCommDestroy",
    "flagcxDevCommFreeDevicePtr",
    "flagcxDevCommGetDevicePtr",
    "flagcxDevMemCreate",
    "flagcxDevMemDestroy",
    "flagcxDevMemFreeDevicePtr",
    "flagcxDevMemGetDevicePtr",
];

/// The functions of FlagCX's header and the wrapper's, sorted.
fn functions() -> Vec<String> {
    let header = root().join("tests/fakevendor/abi/flagcx.h");
    let header = std::fs::read_to_string(header).expect("the header");
    let mut names: Vec<String> = without_comments(&header)
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '('))
        .filter_map(|word| word.split_once('('))
        .map(|(name, _)| name.to_owned())
        .filter(|name| name.starts_with("flagcx") || name.starts_with("getFlagcx"))
        .collect();
    assert_eq!(names.len(), 52, "the header was not understood: {names:?}");
    names.extend(KERNEL.map(str::to_owned));
    names.sort();
    names
}

#[test]
fn exports_are_flagcx_s() {
    let list = std::fs::read_to_string(root().join("capi/flagcx/exports.txt")).expect("the list");
    let mut names = functions();
    names.insert(0, "flagos_comm_instance".to_owned());
    names.sort();
    assert_eq!(list.lines().collect::<Vec<_>>(), names);
}

#[test]
fn a_consumer_records_the_file_name() {
    let dir = FLAGCX.folder("flagcx-needed");
    let exe = FLAGCX.program("ranks", &[], &dir);
    let needed = stdout(Command::new("readelf").arg("-dW").arg(exe));
    assert!(
        needed
            .lines()
            .any(|l| l.contains("(NEEDED)") && l.contains("[libflagcx.so]")),
        "{needed}"
    );
}

#[test]
fn every_function_is_misused() {
    let code = std::fs::read_to_string(FLAGCX.source("misuse.c")).expect("the program");
    for name in functions() {
        assert!(
            ["FUNCTION(NAME,", ", NAME(", "(NAME("]
                .iter()
                .any(|way| code.contains(&way.replace("NAME", &name))),
            "tests/c/flagcx/misuse.c does not misuse {name}"
        );
    }
}

#[test]
fn flagcx_misuse() {
    let dir = FLAGCX.folder("flagcx-misuse");
    let exe = FLAGCX.program("misuse", &[], &dir);
    run(&mut FLAGCX.misuse(&exe, &dir, plain()));
}

#[test]
fn flagcx_misuse_with_address_sanitizer() {
    let dir = FLAGCX.folder("flagcx-misuse-asan");
    let exe = FLAGCX.program("misuse", &ASAN, &dir);
    has_sanitizer(&exe);
    run(&mut FLAGCX.misuse(&exe, &dir, plain()));
}

#[test]
fn flagcx_misuse_under_valgrind() {
    if !have("valgrind") {
        return;
    }
    let dir = FLAGCX.folder("flagcx-misuse-valgrind");
    let exe = FLAGCX.program("misuse", &[], &dir);
    run(&mut FLAGCX.misuse(&exe, &dir, valgrind()));
}

#[test]
fn flagcx_misuse_over_a_vendor() {
    let dir = FLAGCX.folder("flagcx-misuse-vendor");
    let exe = FLAGCX.program("misuse", &[], &dir);
    run(&mut over(
        Command::new(exe),
        &dir,
        &Standins::builder().build(),
    ));
}

/// A panic in any entry is an error with a text, and the next call works.
#[test]
fn flagcx_panics_stop_at_the_boundary() {
    FLAGCX.panics(&functions());
}

#[test]
fn flagcx_ranks_as_threads() {
    let dir = FLAGCX.folder("flagcx-threads");
    let exe = FLAGCX.program("ranks", &[], &dir);
    for ranks in ["1", "2", "4"] {
        let mut command = on_host(Command::new(&exe), &dir);
        run(command.args(["threads", ranks]));
    }
}

#[test]
fn flagcx_ranks_with_address_sanitizer() {
    let dir = FLAGCX.folder("flagcx-threads-asan");
    let exe = FLAGCX.program("ranks", &ASAN, &dir);
    run(on_host(Command::new(&exe), &dir).args(["threads", "2"]));
}

#[test]
fn flagcx_ranks_under_valgrind() {
    if !have("valgrind") {
        return;
    }
    let dir = FLAGCX.folder("flagcx-threads-valgrind");
    let exe = FLAGCX.program("ranks", &[], &dir);
    let mut command = valgrind();
    command.arg(exe).args(["threads", "2"]);
    run(&mut on_host(command, &dir));
}

#[test]
fn flagcx_ranks_as_processes() {
    let dir = FLAGCX.folder("flagcx-processes");
    FLAGCX.processes(&dir, &[], |command| on_host(command, &dir));
}

#[test]
fn flagcx_ranks_over_a_vendor() {
    let standins = Standins::builder().build();
    let dir = FLAGCX.folder("flagcx-vendor-threads");
    let exe = FLAGCX.program("ranks", &[], &dir);
    for ranks in ["1", "2"] {
        let _ = std::fs::remove_file(dir.join("log"));
        run(over(Command::new(&exe), &dir, &standins).args(["threads", ranks]));
        grouped(&CallLog::read(&dir.join("log")), 6);
    }
    let dir = FLAGCX.folder("flagcx-vendor-processes");
    FLAGCX.processes(&dir, &[], |command| over(command, &dir, &standins));
    grouped(&CallLog::read(&dir.join("log")), 6);
}

/// FlagCX itself is not used by a program that takes us for it, whatever order of tiers is asked for.
#[test]
fn the_skin_never_uses_the_flagcx_tier() {
    let standins = Standins::builder().flagcx().build();
    let dir = FLAGCX.folder("flagcx-no-tier");
    FLAGCX.processes(&dir, &[], |command| {
        let mut command = over(command, &dir, &standins);
        command.env("FLAGOSCOMM_TIERS", "flagcx,native").env(
            "FLAGOSCOMM_FLAGCX_LIBRARY",
            standins.dir.join("libflagcx.so"),
        );
        command
    });
    let log = CallLog::read(&dir.join("log"));
    assert!(log.iter().any(|c| c.name.starts_with("ncclCommInit")));
    let through = log.iter().find(|c| c.name.starts_with("flagcx"));
    assert_eq!(through, None);
}

/// The wrapper's 41 names, its argument types and its structs.
#[test]
fn flagcx_from_python() {
    if !have("python3") {
        return;
    }
    let dir = FLAGCX.folder("flagcx-python");
    let script = || {
        let mut command = Command::new("timeout");
        command
            .args(["-k", "5", "60", "python3", "-B"])
            .arg(FLAGCX.source("wrapper.py"))
            .arg(dir.join("libflagcx.so"));
        command
    };
    run(&mut on_host(script(), &dir));
    run(&mut over(script(), &dir, &Standins::builder().build()));
}

/// What a call costs over the native library's: 12 instructions at most.
#[test]
fn the_skin_adds_twelve_instructions_at_most() {
    if !have("valgrind") {
        return;
    }
    FLAGCX.adds_twelve_instructions_at_most(&OPERATIONS);
}
