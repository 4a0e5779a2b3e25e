//! Every program under examples/ is built as the README says and run.

use flagos_comm_test_examples::{
    Link, NATIVE_STATIC_LIBS, command, compile, program, run, scratch,
};
use flagos_comm_testkit::cargo::{libflagos, target_dir, workspace};
use flagos_comm_testkit::ranks::{Output, report};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

fn expect_ok(out: &Output) {
    assert!(out.ok(), "{}", report(std::slice::from_ref(out)));
}

fn expect_sums(program: &Path) {
    for ranks in [1, 2, 4] {
        let out = run(|| command(program, &[&ranks.to_string()]));
        expect_ok(&out);
        for rank in 0..ranks {
            let line = format!("rank {rank} of {ranks}: all 1000 sums are right");
            assert!(out.stdout.contains(&line), "no {line:?} in {}", out.stdout);
        }
    }
}

#[test]
fn c_allreduce_dynamic_and_static() {
    let flags = ["-std=gnu99", "-O2", "-Wall", "-Wextra", "-Werror"];
    for (link, name) in [
        (Link::Shared, "allreduce-c"),
        (Link::Static, "allreduce-c-static"),
    ] {
        expect_sums(&compile("cc", &flags, "examples/c/allreduce.c", link, name));
    }
}

#[test]
fn cpp_allreduce() {
    let flags = [
        "-std=c++17",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pthread",
    ];
    expect_sums(&compile(
        "c++",
        &flags,
        "examples/cpp/allreduce.cpp",
        Link::Shared,
        "allreduce-cpp",
    ));
}

#[test]
fn rust_allreduce() {
    let example = program(
        &["-p", "flagos-comm", "--example", "allreduce"],
        "examples/allreduce",
    );
    expect_sums(&example);
    let out = run(|| command(&example, &["0"]));
    assert!(!out.ok(), "{}", out.stdout);
}

fn readme() -> String {
    std::fs::read_to_string(workspace().join("README.md")).expect("README.md is there")
}

/// The C program of the README is compiled and run as it stands there.
#[test]
fn readme_c_example() {
    let readme = readme();
    let source = readme
        .split_once("```c\n")
        .and_then(|(_, rest)| rest.split_once("```"))
        .expect("the README has a C block")
        .0;
    assert!(
        source.lines().count() <= 25,
        "the example is meant to be short"
    );
    let file = scratch("examples-test").join("readme.c");
    std::fs::write(&file, source).expect("a file under target can be written");
    let example = compile(
        "cc",
        &["-std=c11", "-Wall", "-Wextra", "-Werror"],
        file.to_str().expect("the path is UTF-8"),
        Link::Static,
        "readme-c",
    );
    let out = run(|| {
        let mut command = Command::new(&example);
        command.env("FLAGOSCOMM_TIERS", "host");
        command
    });
    expect_ok(&out);
    assert_eq!(out.stdout, "3 3 3 3\n");
}

/// The line that the README gives for a static link is the one that rustc prints.
#[test]
fn readme_static_link_line() {
    assert!(
        readme().contains(NATIVE_STATIC_LIBS),
        "the README lacks `{NATIVE_STATIC_LIBS}`"
    );
    let out = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(workspace())
        .args(["rustc", "-p", "flagos-comm-capi-flagos", "--lib"])
        .args(["--crate-type", "staticlib", "--target-dir"])
        .arg(target_dir())
        .args(["--", "--print", "native-static-libs"])
        .output()
        .expect("cargo can be started");
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{stderr}");
    // cargo shows it again if the archive is fresh.
    let Some((_, printed)) = stderr.split_once("native-static-libs: ") else {
        panic!("rustc printed no libraries: {stderr}");
    };
    assert_eq!(
        printed.lines().next().unwrap_or_default().trim(),
        NATIVE_STATIC_LIBS,
        "README.md and NATIVE_STATIC_LIBS must follow"
    );
}

fn imports(python: &Path) -> bool {
    Command::new(python)
        .args(["-c", "import numpy, sklearn.datasets"])
        .output()
        .is_ok_and(|out| out.status.success())
}

fn step(program: &Path, args: &[&str]) -> Result<(), String> {
    match Command::new(program).args(args).output() {
        Ok(out) if out.status.success() => Ok(()),
        Ok(out) => Err(format!(
            "{} {}: {}",
            program.display(),
            args.join(" "),
            String::from_utf8_lossy(&out.stderr).trim()
        )),
        Err(e) => Err(format!("{}: {e}", program.display())),
    }
}

/// A Python with numpy and scikit-learn: the system's, or one under target that pip fills.
fn python() -> Option<&'static Path> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let system = PathBuf::from("python3");
        if imports(&system) {
            return Ok(system);
        }
        let dir = scratch("pyenv");
        let own = dir.join("bin/python");
        if imports(&own) {
            return Ok(own);
        }
        let dir = dir
            .to_str()
            .ok_or("the target folder's name is not UTF-8")?;
        step(&system, &["-m", "venv", "--clear", dir])?;
        step(
            &own,
            &["-m", "pip", "install", "--quiet", "numpy", "scikit-learn"],
        )?;
        if imports(&own) {
            Ok(own)
        } else {
            Err("numpy and scikit-learn were installed but can't be imported".into())
        }
    });
    match found {
        Ok(python) => Some(python),
        Err(why) => {
            println!("SKIPPED: training of digits in Python: no numpy and scikit-learn: {why}");
            None
        }
    }
}

/// The training example as a command line, without what a launcher around this test may have set.
fn digits(python: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(python);
    command
        .arg(workspace().join("examples/python/train_digits.py"))
        .arg("--lib")
        .arg(libflagos())
        .args(args)
        .env_remove("RANK")
        .env_remove("WORLD_SIZE");
    command
}

fn train(python: &Path, ranks: &str, name: &str) -> serde_json::Value {
    let file = scratch("examples-test").join(name);
    let _ = std::fs::remove_file(&file);
    let path = file.to_str().expect("the path is UTF-8");
    expect_ok(&run(|| {
        digits(python, &["--ranks", ranks, "--compare", "--json", path])
    }));
    let text = std::fs::read(&file).expect("--json wrote the file");
    serde_json::from_slice(&text).expect("--json wrote JSON")
}

#[test]
fn python_train_digits() {
    let Some(python) = python() else { return };
    for ranks in ["1", "2", "4"] {
        let result = train(python, ranks, &format!("digits-{ranks}.json"));
        let epochs = result["epochs"].as_array().expect("there are epochs");
        let number = |line: &serde_json::Value, key: &str| line[key].as_f64().expect("a number");
        assert!(number(&epochs[epochs.len() - 1], "loss") < number(&epochs[0], "loss") / 2.0);
        assert!(number(&epochs[epochs.len() - 1], "accuracy") > 0.9);
        // The same run again gives the same bits.
        let again = train(python, ranks, &format!("digits-{ranks}-again.json"));
        assert_eq!(again["weights_sha256"], result["weights_sha256"]);
    }
}

/// The check that ranks are in step bites: one flipped bit on one rank ends the run.
#[test]
fn python_train_digits_sees_a_flipped_bit() {
    let Some(python) = python() else { return };
    let out = run(|| digits(python, &["--ranks", "3", "--epochs", "2", "--corrupt", "1"]));
    assert!(!out.ok() && !out.timed_out, "{}", out.stdout);
    assert!(
        out.stderr
            .contains("the weights of rank 1 differ from those of rank 0"),
        "{}",
        out.stderr
    );
}

/// The example joins ranks that the tool's launcher started.
#[test]
fn python_train_digits_under_the_launcher() {
    let Some(python) = python() else { return };
    let tool = program(
        &["-p", "flagos-comm-cli", "--bin", "flagos-comm"],
        "flagos-comm",
    );
    let out = run(|| {
        let inner = digits(python, &["--epochs", "2"]);
        let mut command = command(&tool, &["launch", "-n", "2", "--"]);
        command.arg(inner.get_program()).args(inner.get_args());
        command
    });
    expect_ok(&out);
    for part in ["2 ranks", "bit-identical"] {
        assert!(out.stdout.contains(part), "no {part:?} in {}", out.stdout);
    }
}
