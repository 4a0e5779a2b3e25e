//! The other libraries: how their programs are built, started and listened to.

use super::Settings;
use super::result::{Measured, Operation};
use crate::find_program;
use flagos_comm_testkit::cargo::workspace;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// One of them.
pub struct Peer {
    /// For options and files.
    pub key: &'static str,
    /// For people.
    pub title: &'static str,
    /// Debian's packages.
    pub install: &'static str,
    source: &'static str,
    /// The first that is there, with the launcher that belongs to it.
    compilers: &'static [(&'static str, &'static str)],
    flags: &'static [&'static str],
    libraries: &'static [&'static str],
    /// What the program's own name for the peer has to begin with: `mpicc` may be of another MPI.
    calls_itself: &'static str,
    /// Compared with only if it is named: Debian 12 hasn't got it.
    pub only_if_named: bool,
}

const C: &[&str] = &["-std=gnu11", "-O2", "-Wall", "-Wextra"];

/// All of them. Where both MPIs are installed, Debian's plain `mpicc` is that of Open MPI.
pub const PEERS: [Peer; 5] = [
    Peer {
        key: "openmpi",
        title: "Open MPI",
        install: "apt-get install libopenmpi-dev openmpi-bin",
        source: "benches/peers/mpi.c",
        compilers: &[("mpicc.openmpi", "mpirun.openmpi"), ("mpicc", "mpirun")],
        flags: C,
        libraries: &["-ldl"],
        calls_itself: "Open MPI",
        only_if_named: false,
    },
    Peer {
        key: "mpich",
        title: "MPICH",
        install: "apt-get install libmpich-dev mpich",
        source: "benches/peers/mpi.c",
        compilers: &[("mpicc.mpich", "mpiexec.mpich"), ("mpicc", "mpiexec")],
        flags: C,
        libraries: &["-ldl"],
        calls_itself: "MPICH",
        only_if_named: false,
    },
    Peer {
        key: "ucx",
        title: "ring over UCX",
        install: "apt-get install libucx-dev",
        source: "benches/peers/ucx.c",
        compilers: &[("cc", "")],
        flags: C,
        libraries: &["-lucp", "-lucs", "-ldl"],
        calls_itself: "ring over UCX",
        only_if_named: false,
    },
    Peer {
        key: "gloo",
        title: "gloo (TCP)",
        install: "apt-get install libgloo-dev g++",
        source: "benches/peers/gloo_operations.cc",
        compilers: &[("c++", "")],
        flags: &["-std=c++17", "-O2", "-Wall", "-Wextra", "-pthread"],
        libraries: &["-lgloo", "-ldl"],
        calls_itself: "gloo",
        only_if_named: false,
    },
    Peer {
        key: "ucc",
        title: "UCC",
        install: "apt-get install libucc-dev (newer than Debian 12)",
        source: "benches/peers/ucc.c",
        compilers: &[("cc", "")],
        flags: C,
        libraries: &["-lucc", "-ldl"],
        calls_itself: "UCC",
        only_if_named: true,
    },
];

/// A program that says nothing for so long hangs: no single result takes more than seconds.
const SILENCE: Duration = Duration::from_secs(300);

/// A program that was built, and what starts it.
pub struct Program {
    path: PathBuf,
    launcher: Option<PathBuf>,
}

impl Peer {
    /// Builds the program into the folder.
    ///
    /// # Errors
    /// What is not there, or what the compiler says.
    pub fn build(&self, dir: &Path) -> Result<Program, String> {
        let names = || {
            let names = self.compilers.iter().map(|(compiler, launcher)| {
                [*compiler, *launcher]
                    .join(" and ")
                    .trim_end_matches(" and ")
                    .to_owned()
            });
            names.collect::<Vec<_>>().join(", nor ")
        };
        let (compiler, launcher) = self
            .compilers
            .iter()
            .find(|(compiler, launcher)| {
                find_program(compiler).is_some()
                    && (launcher.is_empty() || find_program(launcher).is_some())
            })
            .ok_or_else(|| format!("there is no {}", names()))?;
        let path = dir.join(format!("{}-operations", self.key));
        let out = Command::new(compiler)
            .args(self.flags)
            .arg("-I")
            .arg(workspace().join("include"))
            .arg(workspace().join(self.source))
            .arg("-o")
            .arg(&path)
            .args(self.libraries)
            .output()
            .map_err(|e| format!("{compiler}: {e}"))?;
        if !out.status.success() {
            return Err(String::from_utf8_lossy(&out.stderr).into_owned());
        }
        let launcher = find_program(launcher);
        let program = Program { path, launcher };
        self.recognise(&program)?;
        Ok(program)
    }

    /// Whether an MPI's program is of the MPI that is meant: it is linked with its library.
    fn recognise(&self, program: &Program) -> Result<(), String> {
        let soname = match self.key {
            "openmpi" => "libmpi.so",
            "mpich" => "libmpich.so",
            _ => return Ok(()),
        };
        let file = std::fs::read(&program.path).map_err(|e| e.to_string())?;
        match file.windows(soname.len()).any(|w| w == soname.as_bytes()) {
            true => Ok(()),
            false => Err(format!(
                "the MPI that is there is another: its program has no {soname}"
            )),
        }
    }

    /// Runs the program; `step` is called for every result.
    ///
    /// # Errors
    /// If it fails, says nothing for minutes, or is of another library than it should be.
    pub fn measure(
        &self,
        program: &Program,
        settings: &Settings,
        operations: &[Operation],
        dir: &Path,
        step: &mut dyn FnMut(),
    ) -> Result<Measured, String> {
        let mut command = self.command(program, settings, operations, dir)?;
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{command:?}: {e}"))?;
        let stdout = child.stdout.take().ok_or("the program has no output")?;
        let (lines, heard) = channel();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if lines.send(line).is_err() {
                    break;
                }
            }
        });
        let mut measured = Measured::default();
        let outcome = loop {
            match heard.recv_timeout(SILENCE) {
                Ok(line) => match measured.take(self.key, &line) {
                    Ok(true) => step(),
                    Ok(false) => {}
                    Err(why) => break Err(why),
                },
                Err(RecvTimeoutError::Disconnected) => break Ok(()),
                Err(RecvTimeoutError::Timeout) => {
                    break Err(format!(
                        "no result for {} s, so the program was ended: {command:?}",
                        SILENCE.as_secs()
                    ));
                }
            }
        };
        if outcome.is_err() {
            let _ = child.kill();
        }
        let status = child.wait().map_err(|e| e.to_string())?;
        outcome?;
        let _ = reader.join();
        if !status.success() {
            return Err(format!("the comparison failed: {status}"));
        }
        match measured.name.starts_with(self.calls_itself) {
            true => Ok(measured),
            false => Err(format!(
                "the program says that it is {:?}, not {}",
                measured.name, self.title
            )),
        }
    }

    fn command(
        &self,
        program: &Program,
        settings: &Settings,
        operations: &[Operation],
        dir: &Path,
    ) -> Result<Command, String> {
        let failed = |file: &Path, e: std::io::Error| format!("{}: {e}", file.display());
        let ranks = settings.ranks.to_string();
        let mut command = match &program.launcher {
            Some(launcher) => Command::new(launcher),
            None => Command::new(&program.path),
        };
        match self.key {
            "openmpi" => {
                command.args([
                    "--allow-run-as-root",
                    "--oversubscribe",
                    "--bind-to",
                    "none",
                ]);
                // It does so by itself where it knows how many cores there are.
                if settings.ranks as usize > crate::cores() {
                    command.args(["--mca", "mpi_yield_when_idle", "1"]);
                }
                command.args(["-n", &ranks]).arg(&program.path);
            }
            "mpich" => {
                command.args(["-n", &ranks]).arg(&program.path);
            }
            _ => {
                command.arg(&ranks);
            }
        }
        let names: Vec<&str> = operations.iter().map(|o| o.name()).collect();
        let sizes: Vec<String> = settings.sizes.iter().map(u64::to_string).collect();
        let line = dir.join("line");
        std::fs::write(&line, [0u8; 4096]).map_err(|e| failed(&line, e))?;
        command
            .arg(&settings.lib)
            .arg(names.join(","))
            .arg(sizes.join(","))
            .arg(settings.pairs.to_string())
            .arg(settings.block.to_string())
            .arg(&line);
        if self.key == "gloo" {
            let store = dir.join("gloo-operations-store");
            let _ = std::fs::remove_dir_all(&store);
            std::fs::create_dir_all(&store).map_err(|e| failed(&store, e))?;
            command.arg(&store);
        }
        Ok(command)
    }
}
