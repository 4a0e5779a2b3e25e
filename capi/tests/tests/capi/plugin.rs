//! The adaptor plugins of `libflagos_comm.so` as FlagCX uses them. What stands in for FlagCX takes them by its rules
//! (`tests/c/flagcx/mini_flagcx.c`); the programs are those of the drop-in, and one that misuses every field.

use flagos_comm_capi_tests::cost::at_most_twelve_more;
use flagos_comm_capi_tests::{debug, have, library, root, run, scratch, stdout};
use flagos_comm_testkit::{Call, CallLog, Standins, ranks};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const VARIABLES: [&str; 2] = ["FLAGCX_CCL_ADAPTOR_PLUGIN", "FLAGCX_DEVICE_ADAPTOR_PLUGIN"];

/// What TCCL's header says in the stand-in.
const TSINGMICRO: &str = "int8=100,uint8=101,int32=102,uint32=103,int64=104,uint64=105,float16=106,float32=107,\
    float64=108,bfloat16=109,sum=100,prod=101,max=102,min=103,avg=104,not_ready=73,copy_host_to_device=1,\
    copy_device_to_host=2,copy_device_to_device=3";

fn source(name: &str) -> PathBuf {
    root().join("tests/c/flagcx").join(name)
}

fn compile(sources: &[&str], flags: &[&str], exe: &Path) {
    run(Command::new("gcc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .args(["-g", "-O1"])
        .arg(format!(
            "-I{}",
            root().join("tests/fakevendor/abi").display()
        ))
        .args(flags)
        .args(sources.iter().map(|name| source(name)))
        .arg("-o")
        .arg(exe)
        .args(["-pthread", "-ldl"]));
}

/// The ranks of FlagCX's program, over FlagCX's stand-in.
fn ranks_program(flags: &[&str], dir: &Path) -> PathBuf {
    let exe = dir.join("ranks");
    let flags = [&["-DMINI_FLAGCX"], flags].concat();
    compile(&["ranks.c", "mini_flagcx.c"], &flags, &exe);
    exe
}

fn misuse_program(flags: &[&str], dir: &Path) -> PathBuf {
    let exe = dir.join("plugin_misuse");
    compile(&["plugin_misuse.c"], flags, &exe);
    exe
}

/// With both plugins.
fn plugged(mut command: Command) -> Command {
    for variable in VARIABLES {
        command.env(variable, library());
    }
    command
}

/// With both plugins, on the host tier, which has to be asked for.
fn on_host(command: Command) -> Command {
    let mut command = plugged(command);
    command
        .env("FLAGOSCOMM_TIERS", "host")
        .env("EXPECTED_VENDOR", "HOST");
    command
}

/// With both plugins, over stand-ins whose calls are logged. The tiers are those of nobody's choice.
fn over(command: Command, dir: &Path, standins: &Standins) -> Command {
    let mut command = plugged(command);
    command
        .env("LD_LIBRARY_PATH", &standins.dir)
        .env("FAKE_LOG", dir.join("log"))
        .env_remove("FLAGOSCOMM_TIERS");
    command
}

fn threads(mut command: Command, ranks: &str) {
    run(command.args(["threads", ranks]));
}

/// Two ranks as processes.
fn processes(exe: &Path, dir: &Path, command: impl Fn(Command) -> Command) {
    let id = dir.join("id");
    ranks::run_ok(
        2,
        |rank| {
            let mut command = command(Command::new(exe));
            command.args([&rank.to_string(), "2"]).arg(&id);
            command
        },
        Duration::from_secs(60),
    );
}

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

const ASAN: [&str; 2] = ["-fsanitize=address", "-fno-omit-frame-pointer"];

/// Every collective, by the plugin's own count, on the host tier; also where FlagCX has room for 256 bytes of an id.
#[test]
fn plugin_ranks_as_threads() {
    let dir = scratch("plugin-threads");
    let exe = ranks_program(&[], &dir);
    for ranks in ["1", "2", "4"] {
        threads(on_host(Command::new(&exe)), ranks);
    }
    let mut command = on_host(Command::new(&exe));
    command.env("MINI_FLAGCX_ID_BYTES", "256");
    threads(command, "2");
}

#[test]
fn plugin_ranks_with_address_sanitizer() {
    let dir = scratch("plugin-threads-asan");
    threads(on_host(Command::new(ranks_program(&ASAN, &dir))), "2");
}

#[test]
fn plugin_ranks_under_valgrind() {
    if !have("valgrind") {
        return;
    }
    let dir = scratch("plugin-threads-valgrind");
    let mut command = valgrind();
    command.arg(ranks_program(&[], &dir));
    threads(on_host(command), "2");
}

fn joined(log: &[Call]) -> usize {
    let is = |call: &&Call| call.name.starts_with("ncclCommInitRank");
    log.iter().filter(is).count()
}

#[test]
fn plugin_ranks_over_a_vendor() {
    let standins = Standins::builder().build();
    let dir = scratch("plugin-vendor");
    let exe = ranks_program(&[], &dir);
    let nvidia = |command| {
        let mut command = over(command, &dir, &standins);
        command.env("EXPECTED_VENDOR", "NVIDIA");
        command
    };
    threads(nvidia(Command::new(&exe)), "2");
    assert_eq!(joined(&CallLog::read(&dir.join("log"))), 2);
    processes(&exe, &dir, nvidia);
    assert_eq!(joined(&CallLog::read(&dir.join("log"))), 4);
}

/// A vendor with other numbers for data types and operators than FlagCX's.
#[test]
fn plugin_ranks_over_a_vendor_with_other_numbers() {
    let standins = Standins::of("tsingmicro").define("FAKE_SHIFTED_NUMBERS");
    let standins = standins.build();
    let dir = scratch("plugin-vendor-numbers");
    let exe = ranks_program(&[], &dir);
    processes(&exe, &dir, |command| {
        let mut command = over(command, &dir, &standins);
        command
            .env("GEMS_VENDOR", "tsingmicro")
            .env("FLAGOSCOMM_TSINGMICRO_NUMBERS", TSINGMICRO)
            .env("EXPECTED_VENDOR", "TSMICRO")
            .env("NOT_EVERYTHING", "1");
        command
    });
    let log = CallLog::read(&dir.join("log"));
    assert!(log.iter().any(|c| c.name == "tcclAllReduce"));
}

/// FlagCX never leads back to FlagCX, whatever order of tiers is asked for.
#[test]
fn the_plugin_never_uses_the_flagcx_tier() {
    let standins = Standins::builder().flagcx().build();
    let dir = scratch("plugin-no-tier");
    let exe = ranks_program(&[], &dir);
    let with_flagcx = |command: Command, tiers: &str| {
        let mut command = over(command, &dir, &standins);
        command
            .env("FLAGOSCOMM_TIERS", tiers)
            .env("FLAGOSCOMM_FLAGCX_LIBRARY", standins.flagcx());
        command
    };
    processes(&exe, &dir, |c| with_flagcx(c, "flagcx,native"));
    let log = CallLog::read(&dir.join("log"));
    assert_eq!(joined(&log), 2);
    assert_eq!(log.iter().find(|c| c.name.starts_with("flagcx")), None);

    let mut alone = with_flagcx(Command::new(&exe), "flagcx");
    let output = alone.args(["threads", "1"]).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("a call that came from FlagCX"), "{said}");
    assert_eq!(joined(&CallLog::read(&dir.join("log"))), 2);
}

/// Without a vendor's library FlagCX is told so: it has ways of its own, and the host tier is not one of them.
#[test]
fn the_plugin_is_native_only_unless_asked() {
    let dir = scratch("plugin-native-only");
    let exe = ranks_program(&[], &dir);
    let mut command = plugged(Command::new(&exe));
    let output = command
        .args(["threads", "1"])
        .env("GEMS_VENDOR", "arm")
        .env_remove("FLAGOSCOMM_TIERS")
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    // FlagCX drops the words, so they are in the log too.
    assert!(
        said.contains("WARN FlagCX's rank 0 of 1 was not joined: ")
            && said.contains("flagcxCommInitRank(")
            && said.contains("returned 9, not 0"),
        "{said}"
    );
}

/// FlagCX goes on with its own adaptors if it can't take the plugin, and says nothing. The plugin's counters show it.
#[test]
fn a_plugin_that_was_refused_is_seen_in_the_counters() {
    let dir = scratch("plugin-refused");
    let exe = ranks_program(&[], &dir);
    let incomplete = dir.join("incomplete.so");
    std::fs::write(
        dir.join("incomplete.c"),
        "#include \"flagcx_adaptor.h\"\nstruct flagcxCCLAdaptor_v1 flagcxCCLAdaptorPlugin_v1 = { .name = \"x\" };\n",
    )
    .expect("scratch");
    run(Command::new("gcc")
        .args(["-shared", "-fPIC"])
        .arg(format!(
            "-I{}",
            root().join("tests/fakevendor/abi").display()
        ))
        .arg(dir.join("incomplete.c"))
        .arg("-o")
        .arg(&incomplete));
    for refused in [Path::new("none"), Path::new("/nowhere.so"), &incomplete] {
        let mut command = on_host(Command::new(&exe));
        let output = command
            .args(["threads", "1"])
            .env(VARIABLES[0], refused)
            .output()
            .expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("no plugin was taken"), "{said}");
    }
}

fn misuse(command: Command, exe: &Path) -> Command {
    let mut command = command;
    command
        .arg(exe)
        .arg(library())
        .env("FLAGOSCOMM_TIERS", "host")
        .env("FLAGOSCOMM_LOG", "error");
    command
}

#[test]
fn plugin_misuse() {
    let exe = misuse_program(&[], &scratch("plugin-misuse"));
    run(&mut misuse(Command::new("env"), &exe));
}

#[test]
fn plugin_misuse_with_address_sanitizer() {
    let exe = misuse_program(&ASAN, &scratch("plugin-misuse-asan"));
    let symbols = stdout(Command::new("nm").arg("-D").arg(&exe));
    assert!(symbols.contains("__asan_init"), "no sanitizer in it");
    run(&mut misuse(Command::new("env"), &exe));
}

#[test]
fn plugin_misuse_under_valgrind() {
    if !have("valgrind") {
        return;
    }
    let exe = misuse_program(&[], &scratch("plugin-misuse-valgrind"));
    run(&mut misuse(valgrind(), &exe));
}

#[test]
fn plugin_misuse_over_a_vendor() {
    let dir = scratch("plugin-misuse-vendor");
    let exe = misuse_program(&[], &dir);
    let mut command = over(Command::new(exe), &dir, &Standins::builder().build());
    run(command.arg(library()).env("FLAGOSCOMM_LOG", "error"));
}

/// A panic in any function is an error with a text, and the next call works.
#[test]
fn plugin_panics_stop_at_the_boundary() {
    let exe = misuse_program(&[], &scratch("plugin-panics"));
    run(Command::new(exe)
        .arg(debug().join("libflagos_comm.so"))
        .arg("panics")
        .env("FLAGOSCOMM_LOG", "off")
        .env("RUST_BACKTRACE", "0"));
}

/// What a call costs over the native library's: 12 instructions at most.
#[test]
fn the_plugin_adds_twelve_instructions_at_most() {
    if !have("valgrind") {
        return;
    }
    // One of each shape: the code is the drop-in's, all of whose operations are counted.
    let dir = scratch("plugin-cost");
    let standins = Standins::builder().bare().build();
    let exe = dir.join("cost");
    compile(&["cost.c"], &["-DPLUGIN"], &exe);
    at_most_twelve_more(
        &["AllReduce", "Reduce", "AllGather", "Send"],
        &source("cost.c"),
        &dir,
        &standins.dir,
        |op| {
            let mut command = Command::new(&exe);
            command.arg(op).arg(library());
            let field = op[..1].to_lowercase() + &op[1..];
            (command, format!("*plugin::ccl::{field}*"))
        },
    );
}
