//! The C programs of tests/c, plain, with AddressSanitizer and under valgrind.

use flagos_comm_capi_tests::cost::count;
use flagos_comm_capi_tests::{
    c_program, compiler, debug, have, header_functions, library, release, root, run, scratch,
    stdout,
};
use std::path::{Path, PathBuf};
use std::process::Command;

fn source(name: &str) -> PathBuf {
    root().join("tests/c").join(name)
}

/// A program on the host tier, whatever the machine has.
fn on_host(exe: &Path) -> Command {
    let mut command = Command::new(exe);
    command.env("FLAGOSCOMM_TIERS", "host");
    command
}

fn plain(name: &str) {
    let dir = scratch(&format!("{name}-plain"));
    let exe = c_program(&source(&format!("{name}.c")), &[], &dir);
    run(&mut on_host(&exe));
}

fn with_address_sanitizer(name: &str) {
    let dir = scratch(&format!("{name}-asan"));
    let flags = ["-fsanitize=address", "-fno-omit-frame-pointer"];
    let exe = c_program(&source(&format!("{name}.c")), &flags, &dir);
    let symbols = stdout(Command::new("nm").arg("-D").arg(&exe));
    assert!(
        symbols.contains("__asan_init"),
        "the sanitizer is not in the program"
    );
    run(&mut on_host(&exe));
}

fn under_valgrind(name: &str) {
    if !have("valgrind") {
        return;
    }
    let dir = scratch(&format!("{name}-valgrind"));
    let exe = c_program(&source(&format!("{name}.c")), &["-O1"], &dir);
    run(Command::new("valgrind")
        .args([
            "--quiet",
            "--error-exitcode=99",
            "--leak-check=full",
            "--errors-for-leak-kinds=definite",
            "--fair-sched=try",
        ])
        .arg(&exe)
        .arg("quick")
        .env("FLAGOSCOMM_TIERS", "host"));
}

/// Every one of many messages in a group costs few instructions until its group ends, and few more then.
#[test]
fn a_message_in_a_group_costs_few_instructions() {
    if !have("valgrind") {
        return;
    }
    let dir = scratch("group-cost");
    let program = Command::new(c_program(&source("group_cost.c"), &["-O1"], &dir));
    let path = dir.to_str().expect("the target directory is UTF-8");
    for (function, calls, most) in [
        ("flagosSend", 3200, 190),
        ("flagosRecv", 3200, 175),
        // Of both, with the copies of a rank's own messages.
        ("flagosGroupEnd", 6400, 230),
    ] {
        let each = count(&program, function, path, "host") / calls;
        println!("{function}: {each} instructions for each message");
        assert!(
            (10..=most).contains(&each),
            "{function}: {each} instructions for each message"
        );
    }
}

#[test]
fn api_misuse() {
    plain("api_misuse");
}

#[test]
fn api_misuse_with_address_sanitizer() {
    with_address_sanitizer("api_misuse");
}

#[test]
fn api_misuse_under_valgrind() {
    under_valgrind("api_misuse");
}

#[test]
fn api_misuse_knows_every_function() {
    let code = std::fs::read_to_string(source("api_misuse.c")).expect("tests/c/api_misuse.c");
    for name in header_functions() {
        assert!(
            code.contains(&format!("{name},")) || code.contains(&format!("{name}(")),
            "tests/c/api_misuse.c does not misuse {name}"
        );
    }
}

#[test]
fn host_tier() {
    plain("host_tier");
}

#[test]
fn host_tier_with_address_sanitizer() {
    with_address_sanitizer("host_tier");
}

#[test]
fn host_tier_under_valgrind() {
    under_valgrind("host_tier");
}

/// A panic in any entry is an error with a text, and the next call works.
#[test]
fn panics_stop_at_the_boundary() {
    let dir = scratch("panics");
    let exe = dir.join("panics");
    run(compiler("gcc", "gnu11")
        .arg(source("panics.c"))
        .arg("-ldl")
        .arg("-o")
        .arg(&exe));
    run(Command::new(&exe)
        .arg(debug().join("libflagos_comm.so"))
        .arg("flagos")
        .args(header_functions())
        .env("RUST_BACKTRACE", "0"));
}

/// The release library has no such hook.
#[test]
fn release_has_no_test_hook() {
    for library in ["libflagos_comm.so", "libflagcx.so"] {
        let bytes = std::fs::read(release().join(library)).expect("the library");
        let name = b"FLAGOSCOMM_TEST_PANIC";
        assert!(
            !bytes.windows(name.len()).any(|window| window == name),
            "the release build of {library} knows FLAGOSCOMM_TEST_PANIC"
        );
    }
}

/// Two copies under different names in one process, and 16 threads whose first use is at once.
#[test]
fn two_copies_and_sixteen_threads() {
    let dir = scratch("copies");
    let exe = dir.join("two_copies");
    run(compiler("gcc", "gnu11")
        .arg(source("two_copies.c"))
        .args(["-pthread", "-ldl"])
        .arg("-o")
        .arg(&exe));
    let copies: Vec<PathBuf> = ["libone.so", "libtwo.so"]
        .iter()
        .map(|name| {
            let copy = dir.join(name);
            std::fs::copy(library(), &copy).expect("the target directory can be written");
            copy
        })
        .collect();
    run(on_host(&exe).args(&copies));
}

/// A Rust program with a logger of its own opens the library: neither minds the other.
#[test]
fn rust_program_with_a_logger() {
    type Count = unsafe extern "C" fn(*mut i32) -> i32;
    env_logger::builder()
        .is_test(true)
        .filter_level(log::LevelFilter::Trace)
        .init();
    // SAFETY: the library runs nothing of ours when it is opened.
    let library = unsafe { libloading::Library::new(library()) }.expect("the library opens");
    // SAFETY: the header has these functions with this type.
    let (version, count) = unsafe {
        (
            library
                .get::<Count>(b"flagosGetVersion")
                .expect("an export"),
            library
                .get::<Count>(b"flagosGetDeviceCount")
                .expect("an export"),
        )
    };
    let mut number = 0;
    for _ in 0..100 {
        // SAFETY: `number` is valid for writing.
        assert_eq!(unsafe { version(&raw mut number) }, 0);
        assert_eq!(number, flagos_comm::internal::version_code());
        // The result depends on the machine; that it returns is what counts here.
        // SAFETY: as above.
        let _ = unsafe { count(&raw mut number) };
    }
    log::info!("the program's logger still works");
    assert_eq!(log::max_level(), log::LevelFilter::Trace);
}

/// Each library carries the marker that tells it from a vendor's.
#[test]
fn marker() {
    let dir = scratch("marker");
    let exe = dir.join("marker");
    run(compiler("gcc", "gnu11")
        .arg(source("marker.c"))
        .arg("-ldl")
        .arg("-o")
        .arg(&exe));
    let version = flagos_comm::internal::version_code().to_string();
    for (file, kind) in [
        ("libflagos_comm.so", "flagos_comm"),
        ("libflagcx.so", "flagcx"),
        ("libnccl.so", "nccl"),
    ] {
        run(Command::new(&exe)
            .arg(release().join(file))
            .args([kind, &version]));
    }
}
