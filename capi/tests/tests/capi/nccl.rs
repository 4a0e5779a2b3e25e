//! `libnccl.so.2` as NCCL's programs see it: the programs of `tests/c/nccl`, written against a header of NCCL's ABI, on
//! the host tier, over stand-ins of NVIDIA's libraries, and over those of other vendors.

use crate::drop_in::{
    ASAN, FLAGCX, NCCL, grouped, has_sanitizer, nccl_that_calls_itself, on_host, over, plain,
    valgrind,
};
use flagos_comm_capi_tests::{
    have, library, release, root, run, scratch, stdout, without_comments,
};
use flagos_comm_testkit::{CallLog, Standins};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The host side of NCCL's device API, which no header of ours declares.
const DEVICE_SIDE: [&str; 11] = [
    "ncclDevCommCreate",
    "ncclDevCommDestroy",
    "ncclGinBarrierCreateRequirement",
    "ncclLLA2ACalcSlots",
    "ncclLLA2ACreateRequirement",
    "ncclLsaBarrierCreateRequirement",
    "ncclTeamLsa",
    "ncclTeamRail",
    "ncclTeamRankToLsa",
    "ncclTeamRankToWorld",
    "ncclTeamWorld",
];

/// What the header declares and NCCL 2.28.9 does not have.
const NEWER: [&str; 18] = [
    "ncclAllGatherConfig",
    "ncclAllReduceConfig",
    "ncclAlltoAllConfig",
    "ncclBroadcastConfig",
    "ncclCommGetUniqueId",
    "ncclCommGrow",
    "ncclCommMemStats",
    "ncclCommResume",
    "ncclCommSuspend",
    "ncclGatherConfig",
    "ncclPutSignal",
    "ncclReduceConfig",
    "ncclReduceScatterConfig",
    "ncclScatterConfig",
    "ncclSetEncryption",
    "ncclSignal",
    "ncclWaitSignal",
    "ncclWinGetUserPtr",
];

/// The functions of NCCL 2.28.9 under their first names, sorted.
fn functions() -> Vec<String> {
    let header = root().join("tests/fakevendor/abi/nccl.h");
    let header = std::fs::read_to_string(header).expect("the header");
    let mut names: Vec<String> = without_comments(&header)
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '('))
        .filter_map(|word| word.split_once('('))
        .map(|(name, _)| name.to_owned())
        .filter(|name| name.starts_with("nccl") && !NEWER.contains(&name.as_str()))
        .collect();
    assert_eq!(names.len(), 41, "the header was not understood: {names:?}");
    names.extend(DEVICE_SIDE.map(str::to_owned));
    names.sort();
    names
}

/// Under both of their names, and what NCCL exports by accident.
fn all_names() -> Vec<String> {
    let mut names = functions();
    names.extend(functions().into_iter().map(|name| format!("p{name}")));
    names.push("ncclResetDebugInitInternal".to_owned());
    names
}

fn exports() -> PathBuf {
    root().join("capi/nccl/exports.txt")
}

#[test]
fn exports_are_nccl_s() {
    let list = std::fs::read_to_string(exports()).expect("the list");
    let mut names = all_names();
    names.push("flagos_comm_instance".to_owned());
    names.sort();
    assert_eq!(list.lines().collect::<Vec<_>>(), names);
}

#[test]
fn a_consumer_records_nccl_s_soname() {
    let dir = NCCL.folder("nccl-needed");
    let exe = NCCL.program("ranks", &[], &dir);
    let needed = stdout(Command::new("readelf").arg("-dW").arg(exe));
    assert!(
        needed
            .lines()
            .any(|l| l.contains("(NEEDED)") && l.contains("[libnccl.so.2]")),
        "{needed}"
    );
}

#[test]
fn every_function_of_nccl_s_is_misused() {
    let code = std::fs::read_to_string(NCCL.source("misuse.c")).expect("the program");
    for name in functions() {
        assert!(
            ["FUNCTION(NAME,", ", NAME(", "(NAME(", "    NAME("]
                .iter()
                .any(|way| code.contains(&way.replace("NAME", &name))),
            "tests/c/nccl/misuse.c does not misuse {name}"
        );
    }
}

#[test]
fn nccl_misuse() {
    let dir = NCCL.folder("nccl-misuse");
    let exe = NCCL.program("misuse", &[], &dir);
    run(&mut NCCL.misuse(&exe, &dir, plain()));
}

#[test]
fn nccl_misuse_with_address_sanitizer() {
    let dir = NCCL.folder("nccl-misuse-asan");
    let exe = NCCL.program("misuse", &ASAN, &dir);
    has_sanitizer(&exe);
    let mut command = NCCL.misuse(&exe, &dir, plain());
    // A size that no memory can hold is asked for.
    run(command.env("ASAN_OPTIONS", "allocator_may_return_null=1"));
}

#[test]
fn nccl_misuse_under_valgrind() {
    if !have("valgrind") {
        return;
    }
    let dir = NCCL.folder("nccl-misuse-valgrind");
    let exe = NCCL.program("misuse", &[], &dir);
    run(&mut NCCL.misuse(&exe, &dir, valgrind()));
}

#[test]
fn nccl_misuse_over_a_vendor() {
    let dir = NCCL.folder("nccl-misuse-vendor");
    let exe = NCCL.program("misuse", &[], &dir);
    let standins = Standins::builder().build();
    run(&mut over(Command::new(exe), &dir, &standins));
}

/// A panic in any entry is an error with a text, and the next call works.
#[test]
fn nccl_panics_stop_at_the_boundary() {
    // Those without a result say so by other values.
    let silent = ["Team", "LLA2ACalcSlots", "ResetDebugInit"];
    let names: Vec<String> = all_names()
        .into_iter()
        .filter(|name| !silent.iter().any(|word| name.contains(word)))
        .filter(|name| !name.starts_with('p'))
        .collect();
    assert!(names.len() > 40);
    NCCL.panics(&names);
}

/// Ranks as threads, and all ranks in one thread.
const WAYS: [[&str; 2]; 6] = [
    ["threads", "1"],
    ["threads", "2"],
    ["threads", "4"],
    ["single", "1"],
    ["single", "2"],
    ["single", "4"],
];

#[test]
fn nccl_ranks_as_threads_and_in_one_thread() {
    let dir = NCCL.folder("nccl-threads");
    let exe = NCCL.program("ranks", &[], &dir);
    for way in WAYS {
        run(on_host(Command::new(&exe), &dir).args(way));
    }
}

#[test]
fn nccl_ranks_with_address_sanitizer() {
    let dir = NCCL.folder("nccl-threads-asan");
    let exe = NCCL.program("ranks", &ASAN, &dir);
    for way in [["threads", "2"], ["single", "2"]] {
        run(on_host(Command::new(&exe), &dir).args(way));
    }
}

#[test]
fn nccl_ranks_under_valgrind() {
    if !have("valgrind") {
        return;
    }
    let dir = NCCL.folder("nccl-threads-valgrind");
    let exe = NCCL.program("ranks", &[], &dir);
    let mut command = valgrind();
    command.arg(exe).args(["threads", "2"]);
    run(&mut on_host(command, &dir));
}

#[test]
fn nccl_ranks_as_processes() {
    let dir = NCCL.folder("nccl-processes");
    NCCL.processes(&dir, &[], |command| on_host(command, &dir));
}

const CUDA: [&str; 2] = ["cuda", "libcudart.so.13"];

#[test]
fn nccl_ranks_over_nvidia() {
    let standins = Standins::builder().build();
    let dir = NCCL.folder("nccl-vendor-threads");
    let exe = NCCL.program("ranks", &[], &dir);
    for way in WAYS {
        let _ = std::fs::remove_file(dir.join("log"));
        let mut command = over(Command::new(&exe), &dir, &standins);
        run(command.args(way).args(CUDA).env("FAKE_DEVICES", "4"));
        let of_one_rank = 2;
        grouped(&CallLog::read(&dir.join("log")), of_one_rank);
    }
    let dir = NCCL.folder("nccl-vendor-processes");
    NCCL.processes(&dir, &CUDA, |command| over(command, &dir, &standins));
    let log = CallLog::read(&dir.join("log"));
    grouped(&log, 8);
    let blocking = log.iter().filter(|c| c.name == "ncclCommInitRankConfig");
    assert!(blocking.count() >= 4, "no config came through");
}

/// Other vendors' libraries, which have other names, other numbers, and less.
#[test]
fn nccl_ranks_over_other_vendors() {
    for (vendor, prefix, runtime, lacks) in [
        ("metax", "mc", "libmcruntime.so", ""),
        ("mthreads", "musa", "libmusart.so.5", ""),
        ("amd", "hip", "libamdhip64.so.6", ""),
        ("enflame", "tops", "libtopsrt.so", "64bit"),
    ] {
        let standins = Standins::of(vendor).build();
        let dir = NCCL.folder(&format!("nccl-{vendor}"));
        let exe = NCCL.program("ranks", &[], &dir);
        for way in [["threads", "2"], ["single", "2"]] {
            let mut command = over(Command::new(&exe), &dir, &standins);
            command.args(way).args([prefix, runtime]);
            command.env("FAKE_DEVICES", "2").env("GEMS_VENDOR", vendor);
            if !lacks.is_empty() {
                command.env("LACKS", lacks);
            }
            run(command.env("FLAGOSCOMM_TIERS", "native"));
        }
        let log = CallLog::read(&dir.join("log"));
        assert!(
            log.iter().any(|c| c.name.ends_with("AllReduce")),
            "{vendor}"
        );
    }
}

/// The lesser of ours and of the one below, without a driver being touched; ours where nothing is below.
#[test]
fn the_reported_version_is_what_a_program_can_use() {
    let dir = NCCL.folder("nccl-version");
    let version = |standins: Option<&Standins>, vendor: &str| {
        let code = "import ctypes, sys; v = ctypes.c_int(); \
                    assert ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(v)) == 0; print(v.value)";
        let mut command = Command::new("python3");
        command.args(["-c", code]).arg(dir.join("libnccl.so.2"));
        let mut command = match standins {
            Some(standins) => over(command, &dir, standins),
            None => on_host(command, &dir),
        };
        stdout(command.env("GEMS_VENDOR", vendor)).trim().to_owned()
    };
    if !have("python3") {
        return;
    }
    let with = |code| Standins::builder().nccl_version(code).build();
    assert_eq!(version(Some(&with(22105)), "nvidia"), "22105");
    assert_eq!(version(Some(&with(22803)), "nvidia"), "22803");
    assert_eq!(version(Some(&with(23203)), "nvidia"), "22809");
    let log = CallLog::read(&dir.join("log"));
    let driver = log.iter().find(|c| c.name.starts_with("cu"));
    assert_eq!(driver, None, "a driver was touched");
    assert_eq!(
        version(Some(&Standins::of("metax").build()), "metax"),
        "22809"
    );
    assert_eq!(version(None, "arm"), "22809");
}

/// NCCL's own version must come from NCCL: else its call landed in ours.
fn asked_itself(said: &[u8]) {
    asked_itself_in(said, &["constructor", "ncclCommDestroy"]);
}

fn asked_itself_in(said: &[u8], places: &[&str]) {
    let said = String::from_utf8_lossy(said);
    for who in places {
        assert!(said.contains(&format!("{who} asked itself")), "{said}");
    }
}

/// A machine whose NCCL calls itself: the folder of its driver and runtime, and where NCCL is.
struct Machine {
    standins: Standins,
    dir: PathBuf,
    exe: PathBuf,
}

impl Machine {
    fn new(name: &str) -> Machine {
        let dir = NCCL.folder(name);
        Machine {
            standins: Standins::builder().without("libnccl.so.2").build(),
            exe: NCCL.program("ranks", &[], &dir),
            dir,
        }
    }

    /// Puts the real one below this folder.
    fn real(&self, folder: &str) -> PathBuf {
        let folder = self.dir.join(folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        nccl_that_calls_itself(&folder.join("libnccl.so.2"), &[], &[]);
        folder
    }

    /// The program with these folders in front of the driver's.
    fn command(&self, exe: &Path, folders: &[&Path]) -> Command {
        let mut command = Command::new(exe);
        let mut path = std::ffi::OsString::new();
        for folder in folders {
            path.push(folder);
            path.push(":");
        }
        path.push(&self.standins.dir);
        command
            .args(["single", "2", "cuda"])
            .arg(self.standins.cudart())
            .env("LD_LIBRARY_PATH", path)
            .env("FAKE_DEVICES", "2")
            .env("FLAGOSCOMM_TIERS", "native")
            .env_remove("FLAGOSCOMM_NVIDIA_LIBRARY");
        command
    }

    fn skin(&self) -> PathBuf {
        self.dir.join("libnccl.so.2")
    }
}

#[test]
fn the_real_nccl_is_found_behind_ours_in_the_library_path() {
    let machine = Machine::new("nccl-below-path");
    let real = machine.real("real");
    let mut command = machine.command(&machine.exe, &[&machine.dir, &real]);
    asked_itself(&run(&mut command).stderr);
}

#[test]
fn the_real_nccl_is_found_when_ours_is_preloaded() {
    let machine = Machine::new("nccl-below-preload");
    let real = machine.real("real");
    let mut command = machine.command(&machine.exe, &[&real]);
    asked_itself(&run(command.env("LD_PRELOAD", machine.skin())).stderr);
}

/// The runtime's wheel is mapped, and NCCL's lies beside it.
#[test]
fn the_real_nccl_is_found_in_a_wheel() {
    let machine = Machine::new("nccl-below-wheel");
    machine.real("venv/site-packages/nvidia/nccl/lib");
    let runtime = machine
        .dir
        .join("venv/site-packages/nvidia/cu13/lib/libcudart.so.13");
    std::fs::create_dir_all(runtime.parent().expect("a folder")).expect("a folder");
    std::fs::copy(machine.standins.cudart(), &runtime).expect("a copy");
    // The runtime comes from the wheel alone.
    let low = machine.dir.join("low");
    std::fs::create_dir_all(&low).expect("a folder");
    symlink(machine.standins.cuda(), low.join("libcuda.so.1")).expect("a link");
    for preloaded in [false, true] {
        let mut command = Command::new(&machine.exe);
        command
            .args(["single", "2", "cuda"])
            .arg(&runtime)
            .env("FAKE_DEVICES", "2")
            .env("FLAGOSCOMM_TIERS", "native");
        if preloaded {
            command.env("LD_PRELOAD", machine.skin());
            command.env("LD_LIBRARY_PATH", &low);
        } else {
            let path = format!("{}:{}", machine.dir.display(), low.display());
            command.env("LD_LIBRARY_PATH", path);
        }
        asked_itself(&run(&mut command).stderr);
    }
}

/// As PyTorch's library, which needs libnccl.so.2 and says where it lies.
#[test]
fn the_real_nccl_is_found_by_the_search_path_of_who_needs_it() {
    let machine = Machine::new("nccl-below-needed");
    let real = machine.real("real");
    let framework = machine.dir.join("framework/libframework.so");
    std::fs::create_dir_all(framework.parent().expect("a folder")).expect("a folder");
    let code = machine.dir.join("framework.c");
    std::fs::write(
        &code,
        "int ncclGetVersion(int *); int framework(void) { int v; return ncclGetVersion(&v); }",
    )
    .expect("a file");
    run(Command::new("gcc")
        .args(["-fPIC", "-shared", "-o"])
        .arg(&framework)
        .arg(&code)
        .arg(format!("-L{}", real.display()))
        .args(["-l:libnccl.so.2", "-Wl,-rpath,$ORIGIN/../real"])
        .args(["-Wl,--enable-new-dtags", "-Wl,-soname,libframework.so"]));
    let exe = NCCL.program(
        "ranks",
        &[
            "-Wl,--no-as-needed",
            &framework.display().to_string(),
            &format!(
                "-Wl,-rpath,{}",
                framework.parent().expect("a folder").display()
            ),
        ],
        &machine.dir,
    );
    let mut command = machine.command(&exe, &[]);
    asked_itself(&run(command.env("LD_PRELOAD", machine.skin())).stderr);
}

/// Somebody else has opened it, without RTLD_DEEPBIND, behind ours: all it calls of its own are ours then. With lazy
/// jumps, and with such that are read-only from the start.
#[test]
fn the_real_nccl_that_was_opened_behind_ours_calls_itself_again() {
    for (kind, flags) in [
        ("lazy", &["-Wl,-z,lazy", "-Wl,-z,norelro"][..]),
        ("now", &["-Wl,-z,now", "-Wl,-z,relro"]),
    ] {
        let machine = Machine::new(&format!("nccl-below-opened-{kind}"));
        let real = machine.dir.join("libnccl-of-its-own-name.so");
        nccl_that_calls_itself(&real, &[], flags);
        let opener = machine.dir.join("libopener.so");
        let code = machine.dir.join("opener.c");
        std::fs::write(
            &code,
            "#include <dlfcn.h>\n#include <stdlib.h>\n\
             __attribute__((constructor)) static void at_load(void)\n\
             { if (dlopen(getenv(\"REAL\"), RTLD_LAZY) == NULL) abort(); }\n",
        )
        .expect("a file");
        run(Command::new("gcc")
            .args(["-fPIC", "-shared", "-o"])
            .arg(&opener)
            .arg(&code)
            .arg("-ldl"));
        let mut command = machine.command(&machine.exe, &[]);
        let preload = format!("{} {}", machine.skin().display(), opener.display());
        command
            .env("LD_PRELOAD", preload)
            .env("REAL", &real)
            .env("CALLS_ITSELF_LATE", "1")
            .env("FLAGOSCOMM_LOG", "info")
            .env("FLAGOSCOMM_NVIDIA_LIBRARY", &real);
        let said = run(&mut command).stderr;
        asked_itself_in(&said, &["ncclCommDestroy"]);
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains("they lead to itself again"), "{said}");
    }
}

#[test]
fn without_a_real_nccl_the_refusal_says_so() {
    let machine = Machine::new("nccl-below-none");
    for preloaded in [false, true] {
        let mut command = machine.command(&machine.exe, &[&machine.dir]);
        if preloaded {
            command.env("LD_PRELOAD", machine.skin());
        }
        let output = command.output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            said.contains("this is flagos-comm's own drop-in library, not the vendor's"),
            "{said}"
        );
    }
}

#[test]
fn the_host_side_of_the_device_api_goes_to_nccl_itself() {
    let standins = Standins::builder().without("libnccl.so.2").build();
    let dir = NCCL.folder("nccl-device-side");
    let real = dir.join("real");
    std::fs::create_dir_all(&real).expect("a folder");
    nccl_that_calls_itself(&real.join("libnccl.so.2"), &["nccl/device_side.c"], &[]);
    let exe = NCCL.program("device", &[], &dir);
    let mut command = over(Command::new(exe), &dir, &standins);
    let path = format!(
        "{}:{}:{}",
        dir.display(),
        real.display(),
        standins.dir.display()
    );
    command
        .env("LD_LIBRARY_PATH", path)
        .env("FAKE_DEVICES", "2");
    run(&mut command);
}

/// FlagCX's NCCL is this library: it is not used by a program that takes us for NCCL.
#[test]
fn a_program_of_nccl_s_never_gets_the_flagcx_tier() {
    let standins = Standins::builder().flagcx().build();
    let dir = NCCL.folder("nccl-no-flagcx");
    NCCL.processes(&dir, &CUDA, |command| {
        let mut command = over(command, &dir, &standins);
        command.env("FLAGOSCOMM_TIERS", "flagcx,native").env(
            "FLAGOSCOMM_FLAGCX_LIBRARY",
            standins.dir.join("libflagcx.so"),
        );
        command
    });
    let log = CallLog::read(&dir.join("log"));
    assert!(log.iter().any(|c| c.name.starts_with("ncclCommInit")));
    assert_eq!(log.iter().find(|c| c.name.starts_with("flagcx")), None);
}

#[test]
fn nccl_from_python() {
    if !have("python3") {
        return;
    }
    let dir = NCCL.folder("nccl-python");
    let script = || {
        let mut command = Command::new("timeout");
        command
            .args(["-k", "5", "60", "python3", "-B"])
            .arg(NCCL.source("wrapper.py"))
            .arg(dir.join("libnccl.so.2"))
            .arg(exports());
        command
    };
    run(&mut on_host(script(), &dir));
    run(&mut over(script(), &dir, &Standins::builder().build()));
    let mut over_metax = over(script(), &dir, &Standins::of("metax").build());
    run(over_metax.env("GEMS_VENDOR", "metax"));
}

/// What a call costs over the native library's: 12 instructions at most.
#[test]
fn nccl_adds_twelve_instructions_at_most() {
    if !have("valgrind") {
        return;
    }
    // One of each list of arguments: the entries differ by that alone.
    NCCL.adds_twelve_instructions_at_most(&["AllReduce", "Reduce", "AllGather", "Gather", "Send"]);
}

/// The two drop-ins, the native library and a statically linked copy of it.
#[test]
fn four_engines_in_one_process_leave_each_other_alone() {
    let dir = scratch("together");
    let exe = dir.join("together");
    run(Command::new("gcc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-O1"])
        .arg(format!("-I{}", root().join("include").display()))
        .arg(NCCL.source("together.c"))
        .arg("-o")
        .arg(&exe)
        .arg(release().join("libflagos_comm.a"))
        .args([
            "-ldl",
            "-lgcc_s",
            "-lutil",
            "-lrt",
            "-lpthread",
            "-lm",
            "-lc",
        ]));
    run(Command::new(&exe)
        .arg(library())
        .arg(FLAGCX.library())
        .arg(NCCL.library())
        .env("FLAGOSCOMM_TIERS", "host"));
}
