//! `libflagcx.so` as FlagCX's programs see it: the programs of `tests/c/flagcx`, written against a header of
//! FlagCX's ABI, on the host tier and over stand-ins of NVIDIA's libraries.

use flagos_comm_capi_tests::cost::{OPERATIONS, at_most_twelve_more};
use flagos_comm_capi_tests::{
    debug, have, library, release, root, run, scratch, stdout, without_comments,
};
use flagos_comm_testkit::{Call, CallLog, Standins, ranks};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

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

/// `FLAGOSCOMM_TEST_FLAGCX_SKIN` if set, else the release build.
fn skin() -> PathBuf {
    match std::env::var_os("FLAGOSCOMM_TEST_FLAGCX_SKIN") {
        Some(path) => path.into(),
        None => release().join("libflagcx.so"),
    }
}

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

fn source(name: &str) -> PathBuf {
    root().join("tests/c/flagcx").join(name)
}

/// A folder with the library under the name that FlagCX's has.
fn folder(name: &str) -> PathBuf {
    let dir = scratch(name);
    std::os::unix::fs::symlink(skin(), dir.join("libflagcx.so")).expect("a link");
    dir
}

/// Compiles a program and links it as FlagCX's are.
fn program(name: &str, flags: &[&str], dir: &Path) -> PathBuf {
    let exe = dir.join(name);
    run(Command::new("gcc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .args(["-g", "-O1"])
        .arg(format!(
            "-I{}",
            root().join("tests/fakevendor/abi").display()
        ))
        .arg(source(&format!("{name}.c")))
        .arg("-o")
        .arg(&exe)
        .args(flags)
        .arg(format!("-L{}", dir.display()))
        .arg("-lflagcx")
        .args(["-pthread", "-ldl"]));
    exe
}

/// A program in the folder of its library, on the host tier, whatever the machine has.
fn on_host(mut command: Command, dir: &Path) -> Command {
    command
        .env("LD_LIBRARY_PATH", dir)
        .env("FLAGOSCOMM_TIERS", "host")
        .env("EXPECTED_VENDOR", "HOST");
    command
}

/// The same over stand-ins, whose calls are logged.
fn over(mut command: Command, dir: &Path, standins: &Standins) -> Command {
    let path = format!("{}:{}", dir.display(), standins.dir.display());
    command
        .env("LD_LIBRARY_PATH", path)
        .env("FAKE_LOG", dir.join("log"))
        .env("EXPECTED_VENDOR", "NVIDIA");
    command
}

/// The misuse with handles of the native library and of another copy of the skin.
fn misuse(exe: &Path, dir: &Path, mut command: Command) -> Command {
    let copy = dir.join("libtwin.so");
    std::fs::copy(skin(), &copy).expect("the target directory can be written");
    command.arg(exe).arg(library()).arg(copy);
    on_host(command, dir)
}

/// Under valgrind.
fn valgrind() -> Command {
    let mut command = Command::new("valgrind");
    command.args([
        "--quiet",
        "--error-exitcode=99",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite",
        "--fair-sched=try",
    ]);
    command
}

/// A command to put a program behind.
fn plain() -> Command {
    Command::new("env")
}

const ASAN: [&str; 2] = ["-fsanitize=address", "-fno-omit-frame-pointer"];

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
    let dir = folder("flagcx-needed");
    let exe = program("ranks", &[], &dir);
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
    let code = std::fs::read_to_string(source("misuse.c")).expect("the program");
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
    let dir = folder("flagcx-misuse");
    let exe = program("misuse", &[], &dir);
    run(&mut misuse(&exe, &dir, plain()));
}

#[test]
fn flagcx_misuse_with_address_sanitizer() {
    let dir = folder("flagcx-misuse-asan");
    let exe = program("misuse", &ASAN, &dir);
    let symbols = stdout(Command::new("nm").arg("-D").arg(&exe));
    assert!(symbols.contains("__asan_init"), "no sanitizer in it");
    run(&mut misuse(&exe, &dir, plain()));
}

#[test]
fn flagcx_misuse_under_valgrind() {
    if !have("valgrind") {
        return;
    }
    let dir = folder("flagcx-misuse-valgrind");
    let exe = program("misuse", &[], &dir);
    run(&mut misuse(&exe, &dir, valgrind()));
}

#[test]
fn flagcx_misuse_over_a_vendor() {
    let dir = folder("flagcx-misuse-vendor");
    let exe = program("misuse", &[], &dir);
    run(&mut over(
        Command::new(exe),
        &dir,
        &Standins::builder().build(),
    ));
}

/// A panic in any entry is an error with a text, and the next call works.
#[test]
fn flagcx_panics_stop_at_the_boundary() {
    let dir = scratch("flagcx-panics");
    let exe = dir.join("panics");
    run(Command::new("gcc")
        .arg(format!("-I{}", root().join("include").display()))
        .arg(root().join("tests/c/panics.c"))
        .arg("-ldl")
        .arg("-o")
        .arg(&exe));
    run(Command::new(&exe)
        .arg(debug().join("libflagcx.so"))
        .arg("flagcx")
        .args(functions())
        .env("RUST_BACKTRACE", "0"));
}

#[test]
fn flagcx_ranks_as_threads() {
    let dir = folder("flagcx-threads");
    let exe = program("ranks", &[], &dir);
    for ranks in ["1", "2", "4"] {
        let mut command = on_host(Command::new(&exe), &dir);
        run(command.args(["threads", ranks]));
    }
}

#[test]
fn flagcx_ranks_with_address_sanitizer() {
    let dir = folder("flagcx-threads-asan");
    let exe = program("ranks", &ASAN, &dir);
    run(on_host(Command::new(&exe), &dir).args(["threads", "2"]));
}

#[test]
fn flagcx_ranks_under_valgrind() {
    if !have("valgrind") {
        return;
    }
    let dir = folder("flagcx-threads-valgrind");
    let exe = program("ranks", &[], &dir);
    let mut command = valgrind();
    command.arg(exe).args(["threads", "2"]);
    run(&mut on_host(command, &dir));
}

/// Ranks as processes, which have 128 bytes of the id only.
fn processes(dir: &Path, command: impl Fn(Command) -> Command) {
    let exe = program("ranks", &[], dir);
    let id = dir.join("id");
    ranks::run_ok(
        2,
        |rank| {
            let mut command = command(Command::new(&exe));
            command.args([&rank.to_string(), "2"]).arg(&id);
            command
        },
        Duration::from_secs(60),
    );
}

#[test]
fn flagcx_ranks_as_processes() {
    let dir = folder("flagcx-processes");
    processes(&dir, |command| on_host(command, &dir));
}

/// Every message of the program is inside a group of the vendor's, where the program has opened one.
fn grouped(log: &[Call]) {
    let mut messages = 0;
    let mut depths: std::collections::HashMap<(u32, u32), i32> = Default::default();
    for call in log {
        let depth = depths.entry((call.pid, call.tid)).or_default();
        match call.name.as_str() {
            "ncclGroupStart" => *depth += 1,
            "ncclGroupEnd" => *depth -= 1,
            "ncclSend" | "ncclRecv" => {
                messages += 1;
                assert!(*depth > 0, "{call:?} is in no group");
            }
            _ => {}
        }
    }
    assert!(messages >= 6, "{messages} messages were logged");
}

#[test]
fn flagcx_ranks_over_a_vendor() {
    let standins = Standins::builder().build();
    let dir = folder("flagcx-vendor-threads");
    let exe = program("ranks", &[], &dir);
    for ranks in ["1", "2"] {
        let _ = std::fs::remove_file(dir.join("log"));
        run(over(Command::new(&exe), &dir, &standins).args(["threads", ranks]));
        grouped(&CallLog::read(&dir.join("log")));
    }
    let dir = folder("flagcx-vendor-processes");
    processes(&dir, |command| over(command, &dir, &standins));
    grouped(&CallLog::read(&dir.join("log")));
}

/// FlagCX itself is not used by a program that takes us for it, whatever order of tiers is asked for.
#[test]
fn the_skin_never_uses_the_flagcx_tier() {
    let standins = Standins::builder().flagcx().build();
    let dir = folder("flagcx-no-tier");
    processes(&dir, |command| {
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
    let dir = folder("flagcx-python");
    let script = || {
        let mut command = Command::new("timeout");
        command
            .args(["-k", "5", "60", "python3", "-B"])
            .arg(source("wrapper.py"))
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
    let dir = folder("flagcx-cost");
    let standins = Standins::builder().bare().build();
    let skin = program("cost", &[], &dir);
    at_most_twelve_more(&OPERATIONS, &dir, &standins.dir, |op| {
        let mut command = Command::new(&skin);
        command.arg(op);
        (command, format!("flagcx{op}"))
    });
}
