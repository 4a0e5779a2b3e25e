//! Where things are built, and the libraries under test (`cargo test` does not build sibling cdylibs).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The top folder of the workspace.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("tests/testkit lies two folders below the top")
        .to_path_buf()
}

/// The folder that cargo builds into: where the running test was built, else `CARGO_TARGET_DIR`, else `target`.
pub fn target_dir() -> PathBuf {
    if let Ok(exe) = std::env::current_exe()
        && let Some(dir) = exe.ancestors().find(|d| d.join("CACHEDIR.TAG").is_file())
    {
        return dir.to_path_buf();
    }
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => workspace().join(dir),
        None => workspace().join("target"),
    }
}

/// Builds the package in release mode (once per process and package is enough: cargo does nothing the second time) and
/// returns the path of `file` in the release folder.
///
/// # Panics
/// If the build fails or makes no such file.
pub fn release(package: &str, file: &str) -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = target_dir();
    let out = Command::new(cargo)
        .args(["build", "--quiet", "--release", "-p", package])
        .arg("--target-dir")
        .arg(&target)
        .current_dir(workspace())
        .output()
        .expect("cargo can be started");
    assert!(
        out.status.success(),
        "cargo build -p {package} failed:\n{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let path = target.join("release").join(file);
    assert!(
        path.is_file(),
        "cargo build -p {package} made no {}",
        path.display()
    );
    path
}

/// `libflagos_comm.so`, built in release mode once per process.
///
/// # Panics
/// If the build fails.
pub fn libflagos() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| release("flagos-comm-capi-flagos", "libflagos_comm.so"))
        .clone()
}
