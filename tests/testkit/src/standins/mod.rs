//! Builds the stand-in vendor libraries of `tests/fakevendor` with the C compiler, and reads their call log.

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsString;
use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::cargo;

mod log;
mod table;

pub use log::{Call, CallLog};
use table::{FLAGCX, File, INVENTED, ROWS, Role, Row, UCC};

const NVIDIA: &str = "nvidia";

/// Whether a source is no part of any library.
fn is_program(name: &str) -> bool {
    name.starts_with("selftest") || name == "flavours.c"
}

/// Which file to put in place of a working collective library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// A text file.
    Text,
    /// A library that needs `libfoo.so.9`, which does not exist.
    MissingDependency,
    /// The first bytes of a real library.
    Truncated,
    /// A library with the right name and no symbol of the real one.
    Empty,
}

/// NCCL's version code in one scale: 2.4.2 is 2402, 2.11.4 is 21104.
fn comparable(code: i32) -> i32 {
    if code < 10000 {
        code / 1000 * 10000 + code % 1000
    } else {
        code
    }
}

/// A folder of stand-in libraries of one vendor.
#[derive(Clone, Debug)]
pub struct Standins {
    /// The folder. It is shared with other tests and must not be changed.
    pub dir: PathBuf,
    files: Vec<&'static File>,
    row: &'static Row,
    major: u32,
    defines: Vec<String>,
}

/// Says what the stand-ins shall be like.
#[derive(Clone, Debug)]
pub struct Builder {
    row: &'static Row,
    omit: Vec<String>,
    without: Vec<String>,
    defines: Vec<String>,
    version: i32,
    major: u32,
    bare: bool,
    broken: Option<Broken>,
    flagcx: bool,
}

impl Builder {
    /// Leaves a symbol out, in whichever library it is.
    pub fn omit(mut self, symbol: &str) -> Self {
        self.omit.push(symbol.to_owned());
        self
    }

    /// Leaves a whole file out, for example `libcuda.so.1`: a machine without a driver.
    pub fn without(mut self, file: &str) -> Self {
        self.without.push(file.to_owned());
        self
    }

    /// Compiles everything with `-D`: a quirk, or a set of functions that is left out else (see
    /// `tests/fakevendor/README.md`).
    pub fn define(mut self, define: &str) -> Self {
        self.defines.push(define.to_owned());
        self
    }

    /// The version that the collective library reports (21803 is 2.18.3); functions that are newer are left out.
    pub fn version(mut self, code: i32) -> Self {
        self.version = code;
        self
    }

    /// The same as [`Builder::version`], for NVIDIA's.
    pub fn nccl_version(self, code: i32) -> Self {
        self.version(code)
    }

    /// The runtime's major version: CUDA's 12 or 13 (which is also the default), HIP's 5 or 6.
    pub fn runtime_major(mut self, major: u32) -> Self {
        self.major = major;
        self
    }

    /// The same as [`Builder::runtime_major`], for NVIDIA's.
    pub fn cudart_major(self, major: u32) -> Self {
        self.runtime_major(major)
    }

    /// Puts FlagCX (`libflagcx.so`) into the folder too.
    pub fn flagcx(mut self) -> Self {
        self.flagcx = true;
        self
    }

    /// A collective library whose collectives return 0 and do nothing: for counting instructions.
    pub fn bare(mut self) -> Self {
        self.bare = true;
        self
    }

    /// A file of the collective library that can't be used.
    pub fn broken(mut self, how: Broken) -> Self {
        self.broken = Some(how);
        self
    }

    /// The same as [`Builder::broken`], for NVIDIA's.
    pub fn broken_nccl(self, how: Broken) -> Self {
        self.broken(how)
    }

    /// Compiles the libraries, or finds them compiled by an earlier call or another process.
    ///
    /// # Panics
    /// If the C compiler (`$CC`, else `gcc`) is missing or fails.
    pub fn build(mut self) -> Standins {
        self.omit.sort();
        self.omit.dedup();
        self.without.sort();
        let base = cargo::target_dir().join("standins");
        let common = sources_hash();
        let mut hash = DefaultHasher::new();
        hash.write(format!("{self:?} {common}").as_bytes());
        let dir = base.join(format!("{:016x}", hash.finish()));
        if !dir.is_dir() {
            let tmp = fresh_folder(&base);
            for file in self.files() {
                self.put(file, &base, common, &tmp);
            }
            keep(&tmp, &dir);
        }
        Standins {
            dir,
            files: self.files(),
            row: self.row,
            major: self.major,
            defines: self.defines,
        }
    }

    /// The files that the version asked for has.
    fn files(&self) -> Vec<&'static File> {
        let has = |f: &&File| (f.versions.0..f.versions.1).contains(&self.version);
        let more = self.flagcx.then_some(&FLAGCX);
        self.row.files.iter().filter(has).chain(more).collect()
    }

    /// The symbols that are not exported from `file`.
    fn hidden(&self, file: &File) -> Vec<&str> {
        let newer = file
            .since
            .iter()
            .filter(|(since, _)| comparable(self.version) < comparable(*since))
            .flat_map(|(_, names)| *names);
        let optional = file
            .optional
            .iter()
            .filter(|(define, _)| !self.defines.iter().any(|d| d == define))
            .flat_map(|(_, names)| *names);
        self.omit
            .iter()
            .map(String::as_str)
            .chain(newer.copied())
            .chain(optional.copied())
            .collect()
    }

    /// What the compiler is told about `file`.
    fn defines(&self, file: &File) -> Vec<String> {
        let row = self.row;
        let mut out: Vec<String> = file
            .defines
            .iter()
            .map(|d| major_in(d, self.major))
            .chain(self.defines.iter().cloned())
            .collect();
        if matches!(file.role, Role::Ccl | Role::Companion) {
            out.push(format!("FAKE_NCCL_VERSION_DEFAULT={}", self.version));
            if self.bare {
                out.push("FAKE_BARE".to_owned());
            }
        }
        if file.role != Role::Machine {
            let machine = row.files.iter().find(|f| f.role == Role::Machine);
            if let Some(machine) = machine {
                out.push(format!("FAKE_MACHINE=\"{}\"", machine.name));
            }
            if row.key != NVIDIA {
                out.push(format!("FAKE_VENDOR=\"{}\"", row.key));
            }
        }
        out
    }

    /// Puts one library into the folder that is being made.
    fn put(&self, file: &File, base: &Path, common: u64, dir: &Path) {
        let name = major_in(file.name, self.major);
        if self.without.contains(&name) {
            return;
        }
        let out = dir.join(&name);
        match self.broken.filter(|_| file.role == Role::Ccl) {
            Some(Broken::Text) => {
                std::fs::write(&out, "this is no library\n").expect("the folder can be written");
            }
            Some(how @ (Broken::Empty | Broken::MissingDependency)) => empty(dir, &out, &name, how),
            how => {
                let mut bytes = std::fs::read(self.compiled(file, &name, base, common))
                    .expect("a library that was built can be read");
                if how == Some(Broken::Truncated) {
                    bytes.truncate(4096);
                }
                std::fs::write(&out, bytes).expect("the folder can be written");
            }
        }
        for link in file.links {
            std::os::unix::fs::symlink(&name, dir.join(link)).expect("the folder can be written");
        }
    }

    /// The library, compiled now or by an earlier call: most folders share most of their files.
    fn compiled(&self, file: &File, name: &str, base: &Path, common: u64) -> PathBuf {
        let defines = self.defines(file);
        let local: String = self.hidden(file).iter().map(|s| format!(" {s};")).collect();
        let script = format!(
            "{} {{ global: {} fake_vendor_name; local:{local} *; }};\n",
            if file.versioned { name } else { "" },
            file.exported
        );
        let mut hash = DefaultHasher::new();
        let needed = file.needs.map(|needed| {
            let other = self.files().into_iter().find(|f| f.name == needed);
            self.compiled(other.expect("it is in the row"), needed, base, common)
        });
        let source = file.bare.filter(|_| self.bare).unwrap_or(file.source);
        let what = format!(
            "{name} {source} {defines:?} {} {script} {common} {needed:?}",
            self.bare
        );
        hash.write(what.as_bytes());
        let dir = base.join(format!("file-{:016x}", hash.finish()));
        if !dir.is_dir() {
            let tmp = fresh_folder(base);
            let map = tmp.join("exported.map");
            std::fs::write(&map, script).expect("the folder can be written");
            shared(name, &tmp.join(name), |c| {
                c.args(self.bare.then_some("-O2")) // its instructions are counted
                    .args(defines.iter().map(|d| format!("-D{d}")))
                    .arg(sources().join(source))
                    .arg(format!("-Wl,--version-script={}", map.display()))
                    .arg("-lm")
                    .args(
                        needed
                            .iter()
                            .flat_map(|n| [Path::new("-Wl,--no-as-needed"), n]),
                    );
            });
            keep(&tmp, &dir);
        }
        dir.join(name)
    }
}

/// A library without any symbol of the real one.
fn empty(dir: &Path, out: &Path, name: &str, how: Broken) {
    let c = dir.join("empty.c");
    std::fs::write(&c, "int flagos_comm_stand_in_empty;\n").expect("the folder can be written");
    let missing = dir.join("libfoo.so.9");
    shared("libfoo.so.9", &missing, |cmd| {
        cmd.arg(&c);
    });
    shared(name, out, |cmd| {
        cmd.arg(&c);
        if how == Broken::MissingDependency {
            cmd.arg("-Wl,--no-as-needed").arg(&missing);
        }
    });
    std::fs::remove_file(missing).expect("it was just built");
}

fn major_in(text: &str, major: u32) -> String {
    text.replace("{major}", &major.to_string())
}

fn fresh_folder(base: &Path) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let tmp = base.join(format!(
        ".tmp-{}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    ));
    std::fs::create_dir_all(&tmp).expect("the target folder can be written");
    tmp
}

/// Gives a finished folder its name. That fails if another process was faster: then its folder is as good.
fn keep(tmp: &Path, dir: &Path) {
    if std::fs::rename(tmp, dir).is_err() {
        let _ = std::fs::remove_dir_all(tmp);
        assert!(dir.is_dir(), "{} can't be made", dir.display());
    }
}

/// All sources of the libraries, and the compiler.
fn sources_hash() -> u64 {
    let mut hash = DefaultHasher::new();
    hash.write(compiler().as_encoded_bytes());
    let mut files: Vec<PathBuf> = ["", "abi", "flavour"]
        .iter()
        .flat_map(|d| std::fs::read_dir(sources().join(d)).expect("the sources"))
        .flatten()
        .map(|e| e.path())
        .collect();
    files.sort();
    for file in files.iter().filter(|f| {
        f.extension().is_some_and(|e| e == "c" || e == "h")
            && !f
                .file_name()
                .and_then(|n| n.to_str())
                .is_some_and(is_program)
    }) {
        hash.write(
            file.file_name()
                .expect("a file has a name")
                .as_encoded_bytes(),
        );
        hash.write(&std::fs::read(file).expect("a source can be read"));
    }
    hash.finish()
}

fn sources() -> PathBuf {
    cargo::workspace().join("tests/fakevendor")
}

fn compiler() -> OsString {
    std::env::var_os("CC")
        .filter(|c| !c.is_empty())
        .unwrap_or_else(|| "gcc".into())
}

fn compile(fill: impl FnOnce(&mut Command)) {
    let mut c = Command::new(compiler());
    c.args([
        "-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-pthread",
    ]);
    fill(&mut c);
    let out = c.output().unwrap_or_else(|e| panic!("{c:?}: {e}"));
    assert!(
        out.status.success(),
        "{c:?}:\n{}",
        String::from_utf8_lossy(&out.stderr)
    );
}

fn shared(soname: &str, out: &Path, fill: impl FnOnce(&mut Command)) {
    compile(|c| {
        c.args([
            "-fPIC",
            "-shared",
            "-fvisibility=hidden",
            "-Wl,-rpath,$ORIGIN",
        ])
        .arg(format!("-Wl,-soname,{soname}"))
        .arg("-o")
        .arg(out);
        fill(c);
    });
}

impl Standins {
    /// Starts describing NVIDIA's stand-ins; by default all three libraries, complete and working.
    pub fn builder() -> Builder {
        Self::of(NVIDIA)
    }

    /// Starts describing a vendor's stand-ins, by its key (`metax`); by default all its libraries, complete and working.
    ///
    /// # Panics
    /// If there are none of that vendor.
    pub fn of(vendor: &str) -> Builder {
        let row = ROWS
            .iter()
            .find(|r| r.key == vendor)
            .unwrap_or_else(|| panic!("no stand-ins of {vendor:?}, only of {:?}", Self::all()));
        Self::of_row(row)
    }

    /// Starts describing UCC's stand-in, `libucc.so.1`, which is no vendor's.
    pub fn ucc() -> Builder {
        Self::of_row(&UCC)
    }

    fn of_row(row: &'static Row) -> Builder {
        Builder {
            row,
            omit: vec![],
            without: vec![],
            defines: vec![],
            version: row.version,
            major: row.major,
            bare: false,
            broken: None,
            flagcx: false,
        }
    }

    /// The keys of all vendors that have stand-ins. There is one more, of a vendor that does not exist: `invented`.
    pub fn all() -> Vec<&'static str> {
        let exists = |row: &&Row| row.key != INVENTED;
        ROWS.iter().filter(exists).map(|r| r.key).collect()
    }

    /// Makes the loader of a child process find the stand-ins before anything else.
    pub fn env<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let mut path = self.dir.clone().into_os_string();
        if let Some(more) = std::env::var_os("LD_LIBRARY_PATH").filter(|p| !p.is_empty()) {
            path.push(":");
            path.push(more);
        }
        command.env("LD_LIBRARY_PATH", path)
    }

    fn files_of(&self, role: Role) -> impl Iterator<Item = PathBuf> {
        let files = self.files.iter().filter(move |f| f.role == role);
        files.map(|f| self.dir.join(major_in(f.name, self.major)))
    }

    fn file_of(&self, role: Role) -> Option<PathBuf> {
        self.files_of(role).next()
    }

    /// The path of FlagCX, for those who asked for it.
    pub fn flagcx(&self) -> PathBuf {
        self.dir.join(FLAGCX.name)
    }

    /// The path of the collective library.
    ///
    /// # Panics
    /// If this vendor has none here.
    pub fn ccl(&self) -> PathBuf {
        self.file_of(Role::Ccl)
            .unwrap_or_else(|| panic!("{} has no collective library here", self.row.key))
    }

    /// The path of the runtime.
    ///
    /// # Panics
    /// If this vendor has none here.
    pub fn runtime(&self) -> PathBuf {
        self.file_of(Role::Runtime)
            .unwrap_or_else(|| panic!("{} has no runtime here", self.row.key))
    }

    /// The path of the library with the machine's state (and `fake_*` functions).
    ///
    /// # Panics
    /// If this vendor has none here.
    pub fn machine(&self) -> PathBuf {
        self.file_of(Role::Machine)
            .unwrap_or_else(|| panic!("{} has no machine here", self.row.key))
    }

    /// The path of the NCCL stand-in.
    pub fn nccl(&self) -> PathBuf {
        self.ccl()
    }

    /// The path of the CUDA runtime stand-in.
    pub fn cudart(&self) -> PathBuf {
        self.runtime()
    }

    /// The path of the CUDA driver stand-in.
    pub fn cuda(&self) -> PathBuf {
        self.machine()
    }

    /// Compiles a C program that is linked against the stand-ins (run it with [`Standins::env`]). It may be written in
    /// NCCL's and CUDA's names: see `tests/fakevendor/flavours.c`.
    ///
    /// # Panics
    /// If it does not compile.
    pub fn compile_program(&self, source: &Path, out: &Path) {
        compile(|c| {
            c.args(
                self.row
                    .program
                    .iter()
                    .map(|d| major_in(d, self.major))
                    .chain(self.defines.iter().cloned())
                    .map(|d| format!("-D{d}")),
            )
            .arg("-O0")
            .arg("-I")
            .arg(sources())
            .arg(source)
            .arg("-o")
            .arg(out)
            .args(
                [Role::Ccl, Role::Companion, Role::Runtime, Role::Machine]
                    .into_iter()
                    .flat_map(|r| self.files_of(r)),
            );
        });
    }
}
