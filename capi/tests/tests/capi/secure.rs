//! A real set-user-id program, started by somebody with fewer rights: no path in its environment is believed.

use flagos_comm_capi_tests::{compiler, have, library, root, run};
use flagos_comm_testkit::Standins;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder that everybody can reach, with the program; it goes with this value.
struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn open_to_all(path: &Path, mode: u32) {
    let permissions = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(path, permissions).expect("a file of ours");
}

fn copy(from: &Path, to: PathBuf) -> PathBuf {
    std::fs::copy(from, &to).expect("a file can be copied");
    open_to_all(&to, 0o755);
    to
}

/// The program as user 65534, with the same variables each time.
fn started(exe: &Path, dir: &Path) -> Output {
    Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(exe)
        .env("GEMS_VENDOR", "nvidia")
        .env("FLAGOSCOMM_NVIDIA_LIBRARY", dir.join("planted-nccl.so"))
        .env("FLAGOSCOMM_NVIDIA_DRIVER", dir.join("planted-cudart.so"))
        .env("FLAGOSCOMM_LOG_FILE", dir.join("log"))
        .env("FLAGOSCOMM_LOG", "info")
        .env("CUDA_HOME", dir)
        .env("VIRTUAL_ENV", dir)
        .output()
        .expect("setpriv can be started")
}

#[test]
fn a_set_user_id_program_believes_no_path() {
    // SAFETY: a question without arguments.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED: a set-user-id program of root can only be made by root");
        return;
    }
    if !have("gcc") || !have("setpriv") {
        return;
    }
    let place = Place(std::env::temp_dir().join(format!("flagos-secure-{}", std::process::id())));
    let dir = &place.0;
    std::fs::create_dir_all(dir).expect("a temporary folder");
    // Its user may write there: the log file is not kept out by the folder's rights.
    open_to_all(dir, 0o777);
    copy(&library(), dir.join("libflagos_comm.so.0"));
    let standins = Standins::builder().build();
    copy(&standins.nccl(), dir.join("planted-nccl.so"));
    copy(&standins.cudart(), dir.join("planted-cudart.so"));
    let build = |name: &str, flags: &[&str]| {
        let exe = dir.join(name);
        run(compiler("gcc", "gnu11")
            .args(flags)
            .arg(root().join("tests/c/secure.c"))
            .arg("-o")
            .arg(&exe)
            .arg(dir.join("libflagos_comm.so.0"))
            .arg(format!("-Wl,-rpath,{}", dir.display())));
        exe
    };
    let exe = build("secure", &[]);

    // In an ordinary program the variables do something.
    let plain = build("plain", &["-DNOT_SECURE"]);
    open_to_all(&plain, 0o755);
    let output = started(&plain, dir);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("done") && said.contains("mapped: "),
        "{output:?}"
    );
    assert!(dir.join("log").exists(), "{output:?}");
    std::fs::remove_file(dir.join("log")).expect("the log");

    open_to_all(&exe, 0o4755);
    let output = started(&exe, dir);
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    if said.contains("not secure") {
        eprintln!(
            "SKIPPED: the kernel does not honour the set-user-id bit in {}",
            dir.display()
        );
        return;
    }
    assert!(
        output.status.success() && said.contains("done"),
        "{said}\n{errors}"
    );
    assert!(said.contains("uid 65534 euid 0"), "{said}");
    assert!(!said.contains("mapped:"), "{said}");
    assert!(!dir.join("log").exists(), "a log file was written");
    for name in [
        "FLAGOSCOMM_NVIDIA_LIBRARY",
        "FLAGOSCOMM_NVIDIA_DRIVER",
        "FLAGOSCOMM_LOG_FILE",
    ] {
        let told = |line: &str| {
            line.contains("WARN") && line.contains(name) && line.contains("is ignored")
        };
        assert!(errors.lines().any(told), "{name}\n{said}\n{errors}");
    }
}
