//! What the tests of the two drop-in libraries share: their programs, in the folder of the library that they
//! are linked with, on the host tier and over stand-ins.

use flagos_comm_capi_tests::cost::at_most_twelve_more;
use flagos_comm_capi_tests::{debug, library, release, root, run, scratch, stdout};
use flagos_comm_testkit::{Call, Standins, ranks};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A library that stands in for another one.
pub struct DropIn {
    /// The folder of its programs, and the prefix of its names.
    pub name: &'static str,
    /// The file that cargo makes.
    pub file: &'static str,
    /// The name that programs find it by.
    pub soname: &'static str,
    /// Another build to test, if it is set.
    pub variable: &'static str,
}

pub const FLAGCX: DropIn = DropIn {
    name: "flagcx",
    file: "libflagcx.so",
    soname: "libflagcx.so",
    variable: "FLAGOSCOMM_TEST_FLAGCX_SKIN",
};

pub const NCCL: DropIn = DropIn {
    name: "nccl",
    file: "libnccl.so",
    soname: "libnccl.so.2",
    variable: "FLAGOSCOMM_TEST_NCCL_SKIN",
};

pub const ASAN: [&str; 2] = ["-fsanitize=address", "-fno-omit-frame-pointer"];

impl DropIn {
    /// The library under test.
    pub fn library(&self) -> PathBuf {
        match std::env::var_os(self.variable) {
            Some(path) => path.into(),
            None => release().join(self.file),
        }
    }

    pub fn source(&self, name: &str) -> PathBuf {
        root().join("tests/c").join(self.name).join(name)
    }

    /// A folder with the library under the name that programs find it by.
    pub fn folder(&self, name: &str) -> PathBuf {
        let dir = scratch(name);
        std::os::unix::fs::symlink(self.library(), dir.join(self.soname)).expect("a link");
        dir
    }

    /// Compiles a program against the header of the library that is stood in for, and links it with ours.
    pub fn program(&self, name: &str, flags: &[&str], dir: &Path) -> PathBuf {
        let exe = dir.join(name);
        run(Command::new("gcc")
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
            .args(["-g", "-O1"])
            .arg(format!(
                "-I{}",
                root().join("tests/fakevendor/abi").display()
            ))
            .arg(self.source(&format!("{name}.c")))
            .arg("-o")
            .arg(&exe)
            .args(flags)
            .arg(format!("-L{}", dir.display()))
            .arg(format!("-l:{}", self.soname))
            .args(["-pthread", "-ldl"]));
        exe
    }

    /// The misuse with handles of the native library and of another copy of this one.
    pub fn misuse(&self, exe: &Path, dir: &Path, mut command: Command) -> Command {
        let copy = dir.join("libtwin.so");
        std::fs::copy(self.library(), &copy).expect("the target directory can be written");
        command.arg(exe).arg(library()).arg(copy);
        on_host(command, dir)
    }

    /// Every entry of a debug build panics once.
    pub fn panics(&self, functions: &[String]) {
        let dir = scratch(&format!("{}-panics", self.name));
        let exe = dir.join("panics");
        run(Command::new("gcc")
            .arg(format!("-I{}", root().join("include").display()))
            .arg(root().join("tests/c/panics.c"))
            .arg("-ldl")
            .arg("-o")
            .arg(&exe));
        run(Command::new(&exe)
            .arg(debug().join(self.file))
            .arg(self.name)
            .args(functions)
            .env("RUST_BACKTRACE", "0"));
    }

    /// The program `ranks`, whose ranks are processes that pass the first 128 bytes of the id.
    pub fn processes(&self, dir: &Path, more: &[&str], command: impl Fn(Command) -> Command) {
        let exe = self.program("ranks", &[], dir);
        let id = dir.join("id");
        ranks::run_ok(
            2,
            |rank| {
                let mut command = command(Command::new(&exe));
                command.args([&rank.to_string(), "2"]).arg(&id).args(more);
                command
            },
            Duration::from_secs(60),
        );
    }

    /// What a call costs over the native library's: 12 instructions at most.
    pub fn adds_twelve_instructions_at_most(&self, operations: &[&str]) {
        let dir = self.folder(&format!("{}-cost", self.name));
        let standins = Standins::builder().bare().build();
        let skin = self.program("cost", &[], &dir);
        let source = self.source("cost.c");
        at_most_twelve_more(operations, &source, &dir, &standins.dir, |op| {
            let mut command = Command::new(&skin);
            command.arg(op);
            (command, format!("{}{op}", self.name))
        });
    }
}

/// A program in the folder of its library, on the host tier, whatever the machine has.
pub fn on_host(mut command: Command, dir: &Path) -> Command {
    command
        .env("LD_LIBRARY_PATH", dir)
        .env("FLAGOSCOMM_TIERS", "host")
        .env("EXPECTED_VENDOR", "HOST");
    command
}

/// The same over stand-ins, whose calls are logged.
pub fn over(mut command: Command, dir: &Path, standins: &Standins) -> Command {
    let path = format!("{}:{}", dir.display(), standins.dir.display());
    command
        .env("LD_LIBRARY_PATH", path)
        .env("FAKE_LOG", dir.join("log"))
        .env("EXPECTED_VENDOR", "NVIDIA");
    command
}

/// Under valgrind.
pub fn valgrind() -> Command {
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
pub fn plain() -> Command {
    Command::new("env")
}

/// Fails unless the sanitizer is in the program.
pub fn has_sanitizer(exe: &Path) {
    let symbols = stdout(Command::new("nm").arg("-D").arg(exe));
    assert!(symbols.contains("__asan_init"), "no sanitizer in it");
}

/// Every message of the program is inside a group of the vendor's, where the program has opened one; there are
/// at least so many.
pub fn grouped(log: &[Call], fewest: usize) {
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
    assert!(messages >= fewest, "{messages} messages were logged");
}

/// A stand-in of NCCL that calls its own public functions and says so (`tests/c/calls_itself.c`), and what else of
/// `tests/c` it is made of; linked with these flags.
pub fn nccl_that_calls_itself(file: &Path, more: &[&str], flags: &[&str]) {
    let fake = root().join("tests/fakevendor");
    let object = file.with_extension("o");
    run(Command::new("gcc")
        .args(["-std=c11", "-O2", "-fPIC", "-pthread"])
        .args(["-fvisibility=hidden", "-c"])
        .arg("-DncclCommDestroy=stand_in_destroy")
        .arg(fake.join("nccl.c"))
        .arg("-o")
        .arg(&object));
    run(Command::new("gcc")
        .args(["-std=c11", "-O2", "-fPIC", "-shared", "-pthread", "-Wall"])
        .arg(format!("-I{}", fake.display()))
        .arg(root().join("tests/c/calls_itself.c"))
        .args(more.iter().map(|name| root().join("tests/c").join(name)))
        .arg(&object)
        .args(flags)
        .args(["-Wl,-soname,libnccl.so.2", "-lm", "-o"])
        .arg(file));
}
