//! Builds the stand-in vendor libraries of `tests/fakevendor` with the C compiler, and reads their call log.

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsString;
use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::cargo;

/// Which NCCL file to put in place of a working one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// A text file.
    Text,
    /// A library that needs `libfoo.so.9`, which does not exist.
    MissingDependency,
    /// The first bytes of a real library.
    Truncated,
    /// A library with the right name and no symbol of NCCL.
    Empty,
}

/// NCCL's functions that came after 2.3, with the version that brought them.
const SINCE: &[(i32, &[&str])] = &[
    (2402, &["ncclCommAbort", "ncclCommGetAsyncError"]),
    (2703, &["ncclSend", "ncclRecv"]),
    (21104, &["ncclRedOpCreatePreMulSum", "ncclRedOpDestroy"]),
    (21304, &["ncclGetLastError"]),
    (21403, &["ncclCommInitRankConfig", "ncclCommFinalize"]),
    (21801, &["ncclCommSplit"]),
    (
        21901,
        &[
            "ncclMemAlloc",
            "ncclMemFree",
            "ncclCommRegister",
            "ncclCommDeregister",
        ],
    ),
    (22203, &["ncclGroupSimulateEnd"]),
    (22304, &["ncclCommInitRankScalable"]),
    (22403, &["ncclResetDebugInit"]),
    (
        22703,
        &[
            "ncclCommShrink",
            "ncclCommWindowRegister",
            "ncclCommWindowDeregister",
        ],
    ),
    (22803, &["ncclAlltoAll", "ncclGather", "ncclScatter"]),
    (22807, &["ncclCommRevoke"]),
    (
        22902,
        &[
            "ncclCommGetUniqueId",
            "ncclCommGrow",
            "ncclWinGetUserPtr",
            "ncclPutSignal",
            "ncclSignal",
            "ncclWaitSignal",
        ],
    ),
    (
        22907,
        &["ncclCommSuspend", "ncclCommResume", "ncclCommMemStats"],
    ),
    (
        23102,
        &[
            "ncclAllReduceConfig",
            "ncclBroadcastConfig",
            "ncclReduceConfig",
            "ncclAllGatherConfig",
            "ncclReduceScatterConfig",
            "ncclAlltoAllConfig",
            "ncclGatherConfig",
            "ncclScatterConfig",
        ],
    ),
    (23203, &["ncclSetEncryption"]),
];

/// NCCL's version code in one scale: 2.4.2 is 2402, 2.11.4 is 21104.
fn comparable(code: i32) -> i32 {
    if code < 10000 {
        code / 1000 * 10000 + code % 1000
    } else {
        code
    }
}

/// A folder of stand-in libraries: `libcuda.so.1`, `libcudart.so.13` (or `.12`), `libnccl.so.2`.
#[derive(Clone, Debug)]
pub struct Standins {
    /// The folder. It is shared with other tests and must not be changed.
    pub dir: PathBuf,
    cudart: String,
}

/// Says what the stand-ins shall be like.
#[derive(Clone, Debug)]
pub struct Builder {
    omit: Vec<String>,
    without: Vec<String>,
    nccl_version: Option<i32>,
    cudart_major: u32,
    bare: bool,
    broken: Option<Broken>,
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

    /// The version that NCCL reports (21803 is 2.18.3); functions that are newer are left out.
    pub fn nccl_version(mut self, code: i32) -> Self {
        self.nccl_version = Some(code);
        self
    }

    /// The CUDA runtime's major version: 12, or 13 (which is also the default).
    pub fn cudart_major(mut self, major: u32) -> Self {
        self.cudart_major = major;
        self
    }

    /// An NCCL whose collectives return 0 and do nothing: for counting instructions.
    pub fn bare(mut self) -> Self {
        self.bare = true;
        self
    }

    /// An NCCL file that can't be used.
    pub fn broken_nccl(mut self, how: Broken) -> Self {
        self.broken = Some(how);
        self
    }

    /// Compiles the libraries, or finds them compiled by an earlier call or another process.
    ///
    /// # Panics
    /// If the C compiler (`$CC`, else `gcc`) is missing or fails.
    pub fn build(mut self) -> Standins {
        if let Some(code) = self.nccl_version {
            for (since, names) in SINCE {
                if comparable(code) < comparable(*since) {
                    self.omit.extend(names.iter().map(|n| (*n).to_owned()));
                }
            }
        }
        self.omit.sort();
        self.omit.dedup();
        self.without.sort();
        let sources = sources();
        let mut hash = DefaultHasher::new();
        hash.write(format!("{self:?} {:?}", compiler()).as_bytes());
        let mut files: Vec<PathBuf> = ["", "abi"]
            .iter()
            .flat_map(|d| std::fs::read_dir(sources.join(d)).expect("the sources"))
            .flatten()
            .map(|e| e.path())
            .collect();
        files.sort();
        for file in files
            .iter()
            .filter(|f| f.extension().is_some_and(|e| e == "c" || e == "h"))
        {
            hash.write(
                file.file_name()
                    .expect("a file has a name")
                    .as_encoded_bytes(),
            );
            hash.write(&std::fs::read(file).expect("a source can be read"));
        }
        let base = cargo::target_dir().join("standins");
        let dir = base.join(format!("{:016x}", hash.finish()));
        let cudart = format!("libcudart.so.{}", self.cudart_major);
        if !dir.is_dir() {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let tmp = base.join(format!(
                ".tmp-{}-{}",
                std::process::id(),
                COUNT.fetch_add(1, Ordering::Relaxed)
            ));
            std::fs::create_dir_all(&tmp).expect("the target folder can be written");
            self.compile_into(&sources, &tmp, &cudart);
            // Renaming fails if another process was faster: then its folder is as good.
            if std::fs::rename(&tmp, &dir).is_err() {
                let _ = std::fs::remove_dir_all(&tmp);
                assert!(dir.is_dir(), "{} can't be made", dir.display());
            }
        }
        Standins { dir, cudart }
    }

    fn script(&self, dir: &Path, name: &str, node: &str, global: &str) -> PathBuf {
        let path = dir.join(format!("{name}.map"));
        let local: String = self.omit.iter().map(|s| format!(" {s};")).collect();
        std::fs::write(
            &path,
            format!("{node} {{ global: {global} local:{local} *; }};\n"),
        )
        .expect("the folder can be written");
        path
    }

    fn compile_into(&self, sources: &Path, dir: &Path, cudart: &str) {
        let major = self.cudart_major;
        let version = self.nccl_version.unwrap_or(23203);
        let mut nccl_defines = vec![format!("-DFAKE_NCCL_VERSION_DEFAULT={version}")];
        if self.bare {
            nccl_defines.push("-DFAKE_BARE".to_owned());
        }
        let all = [
            ("libcuda.so.1", "cuda_driver.c", vec![], "", "cu*; fake_*;"),
            (
                cudart,
                "cuda_runtime.c",
                vec![format!("-DFAKE_CUDART_MAJOR={major}")],
                cudart,
                "cuda*;",
            ),
            ("libnccl.so.2", "nccl.c", nccl_defines, "", "nccl*;"),
        ];
        for (file, source, defines, node, global) in all {
            if self.without.iter().any(|w| w == file) {
                continue;
            }
            let out = dir.join(file);
            if file == "libnccl.so.2" && self.broken.is_some_and(|b| b != Broken::Truncated) {
                continue;
            }
            let map = self.script(dir, file, node, global);
            shared(file, &out, |c| {
                c.args(defines)
                    .arg(sources.join(source))
                    .arg(format!("-Wl,--version-script={}", map.display()))
                    .arg("-lm");
            });
        }
        let nccl = dir.join("libnccl.so.2");
        match self.broken {
            None => {}
            Some(Broken::Text) => {
                std::fs::write(&nccl, "this is no library\n").expect("the folder can be written")
            }
            Some(Broken::Truncated) => {
                let bytes = std::fs::read(&nccl).expect("it was just built");
                std::fs::write(&nccl, &bytes[..bytes.len().min(4096)])
                    .expect("the folder can be written");
            }
            Some(how) => {
                let c = dir.join("empty.c");
                std::fs::write(&c, "int flagos_comm_stand_in_empty;\n")
                    .expect("the folder can be written");
                let missing = dir.join("libfoo.so.9");
                shared("libfoo.so.9", &missing, |cmd| {
                    cmd.arg(&c);
                });
                shared("libnccl.so.2", &nccl, |cmd| {
                    cmd.arg(&c);
                    if how == Broken::MissingDependency {
                        cmd.arg("-Wl,--no-as-needed").arg(&missing);
                    }
                });
                std::fs::remove_file(missing).expect("it was just built");
            }
        }
    }
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
        "-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-g", "-pthread",
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
    /// Starts describing stand-ins; by default all three libraries, complete and working.
    pub fn builder() -> Builder {
        Builder {
            omit: vec![],
            without: vec![],
            nccl_version: None,
            cudart_major: 13,
            bare: false,
            broken: None,
        }
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

    /// The path of the NCCL stand-in.
    pub fn nccl(&self) -> PathBuf {
        self.dir.join("libnccl.so.2")
    }

    /// The path of the CUDA runtime stand-in.
    pub fn cudart(&self) -> PathBuf {
        self.dir.join(&self.cudart)
    }

    /// The path of the CUDA driver stand-in.
    pub fn cuda(&self) -> PathBuf {
        self.dir.join("libcuda.so.1")
    }

    /// Compiles a C program that is linked against the stand-ins (run it with [`Standins::env`]).
    ///
    /// # Panics
    /// If it does not compile.
    pub fn compile_program(&self, source: &Path, out: &Path) {
        compile(|c| {
            c.arg("-I")
                .arg(sources())
                .arg(source)
                .arg("-o")
                .arg(out)
                .args([self.nccl(), self.cudart(), self.cuda()]);
        });
    }
}

/// One line of the call log that the stand-ins write to `FAKE_LOG`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The thread's current device when the call returned; `None` if it had none.
    pub device: Option<u32>,
    /// The function.
    pub name: String,
    /// Its arguments as the stand-in prints them.
    pub args: String,
    /// What it returned; `None` if it was made to hang.
    pub result: Option<i32>,
}

impl Call {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(4, ' ');
        let pid = words.next()?.parse().ok()?;
        let tid = words.next()?.parse().ok()?;
        let device: i32 = words.next()?.strip_prefix("device=")?.parse().ok()?;
        let (name, rest) = words.next()?.split_once('(')?;
        let (args, result) = rest.rsplit_once(") -> ")?;
        Some(Self {
            pid,
            tid,
            device: u32::try_from(device).ok(),
            name: name.to_owned(),
            args: args.to_owned(),
            result: result.parse().ok(),
        })
    }
}

/// The reader of the call log.
#[derive(Debug)]
pub struct CallLog;

impl CallLog {
    /// All calls in the order of their lines; none if the file does not exist.
    ///
    /// # Panics
    /// If a line can't be understood.
    pub fn read(path: &Path) -> Vec<Call> {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines()
            .map(|l| Call::parse(l).unwrap_or_else(|| panic!("no line of a call log: {l:?}")))
            .collect()
    }
}
