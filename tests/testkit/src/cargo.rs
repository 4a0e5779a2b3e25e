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

/// Builds the libraries and the tool in release mode, once per process; where `file` of theirs is.
///
/// All of them, as the README's `cargo build --release` does: for one package alone cargo would choose other features of
/// what they need, and build everything a second time.
///
/// # Panics
/// If the build fails or makes no such file.
pub fn release(file: &str) -> PathBuf {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    let dir = DIR.get_or_init(|| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let target = target_dir();
        let out = Command::new(cargo)
            .args(["build", "--quiet", "--locked", "--release", "--target-dir"])
            .arg(&target)
            .current_dir(workspace())
            .output()
            .expect("cargo can be started");
        assert!(
            out.status.success(),
            "cargo build --release failed:\n{}",
            String::from_utf8_lossy(&out.stderr)
        );
        target.join("release")
    });
    let path = dir.join(file);
    assert!(path.is_file(), "cargo built no {}", path.display());
    path
}

/// `libflagos_comm.so`, built in release mode.
///
/// # Panics
/// If the build fails.
pub fn libflagos() -> PathBuf {
    release("libflagos_comm.so")
}
