//! Every program under examples/ is built as the README says and run.

use flagos_comm_test_examples::{
    Link, NATIVE_STATIC_LIBS, c_library, compile, root, run, rust_example, scratch, text, tool,
};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

fn expect_ranks(out: &Output, ranks: usize) {
    assert!(out.status.success(), "{}", text(out));
    let stdout = String::from_utf8_lossy(&out.stdout);
    for rank in 0..ranks {
        let line = format!("rank {rank} of {ranks}: all 1000 sums are right");
        assert!(stdout.contains(&line), "no {line:?} in {}", text(out));
    }
}

#[test]
fn c_allreduce_dynamic_and_static() {
    let flags = ["-std=gnu99", "-O2", "-Wall", "-Wextra", "-Werror"];
    for (link, name) in [
        (Link::Shared, "allreduce-c"),
        (Link::Static, "allreduce-c-static"),
    ] {
        let program = compile("cc", &flags, "examples/c/allreduce.c", link, name);
        for ranks in [1, 2, 4] {
            expect_ranks(
                &run(Command::new(&program).arg(ranks.to_string()), LIMIT),
                ranks,
            );
        }
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
    let program = compile(
        "c++",
        &flags,
        "examples/cpp/allreduce.cpp",
        Link::Shared,
        "allreduce-cpp",
    );
    for ranks in [1, 2, 4] {
        expect_ranks(
            &run(Command::new(&program).arg(ranks.to_string()), LIMIT),
            ranks,
        );
    }
}

#[test]
fn rust_allreduce() {
    let program = rust_example("allreduce");
    for ranks in [1, 2, 4] {
        expect_ranks(
            &run(Command::new(&program).arg(ranks.to_string()), LIMIT),
            ranks,
        );
    }
    let out = run(Command::new(&program).arg("0"), LIMIT);
    assert!(!out.status.success(), "{}", text(&out));
}

/// The C program of the README is compiled and run as it stands there.
#[test]
fn readme_c_example() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("README.md is there");
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
    let program = compile(
        "cc",
        &["-std=c11", "-Wall", "-Wextra", "-Werror"],
        file.to_str().expect("the path is UTF-8"),
        Link::Static,
        "readme-c",
    );
    let out = run(Command::new(program).env("FLAGOSCOMM_TIERS", "host"), LIMIT);
    assert!(out.status.success(), "{}", text(&out));
    let stdout = String::from_utf8_lossy(&out.stdout);
    assert!(stdout.contains("3 3 3 3"), "{}", text(&out));
}

/// The line that the README gives for a static link is the one that rustc prints.
#[test]
fn readme_static_link_line() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("README.md is there");
    assert!(
        readme.contains(NATIVE_STATIC_LIBS),
        "the README lacks `{NATIVE_STATIC_LIBS}`"
    );
    let target = scratch("native-static-libs");
    let out = run(
        Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .current_dir(root())
            .env("CARGO_TARGET_DIR", &target)
            .args(["rustc", "-p", "flagos-comm-capi-flagos", "--lib"])
            .args(["--crate-type", "staticlib"])
            .args(["--", "--print", "native-static-libs"]),
        Duration::from_secs(600),
    );
    assert!(out.status.success(), "{}", text(&out));
    let stderr = String::from_utf8_lossy(&out.stderr);
    // cargo shows it again if the archive is fresh.
    let Some((_, printed)) = stderr.split_once("native-static-libs: ") else {
        panic!("rustc printed no libraries: {}", text(&out));
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

/// A Python with numpy and scikit-learn: the system's, or one under target that pip fills.
fn python() -> Result<&'static Path, &'static str> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    FOUND
        .get_or_init(|| {
            let system = PathBuf::from("python3");
            if imports(&system) {
                return Ok(system);
            }
            let dir = scratch("pyenv");
            let own = dir.join("bin/python");
            if imports(&own) {
                return Ok(own);
            }
            let step =
                |program: &Path, args: &[&str]| match Command::new(program).args(args).output() {
                    Ok(out) if out.status.success() => Ok(()),
                    Ok(out) => Err(format!(
                        "{} {}: {}",
                        program.display(),
                        args.join(" "),
                        text(&out)
                    )),
                    Err(e) => Err(format!("{}: {e}", program.display())),
                };
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
        })
        .as_deref()
        .map_err(String::as_str)
}

fn train(python: &Path, args: &[&str]) -> Output {
    run(
        Command::new(python)
            .arg(root().join("examples/python/train_digits.py"))
            .arg("--lib")
            .arg(&c_library().shared)
            .args(args)
            .env_remove("RANK")
            .env_remove("WORLD_SIZE"),
        LIMIT,
    )
}

#[test]
fn python_train_digits() {
    let python = match python() {
        Ok(python) => python,
        Err(why) => {
            println!("SKIPPED: python_train_digits: no numpy and scikit-learn: {why}");
            return;
        }
    };
    let mut hashes = Vec::new();
    for ranks in ["1", "2", "4"] {
        let file = scratch("examples-test").join(format!("digits-{ranks}.json"));
        let name = file.to_str().expect("the path is UTF-8");
        let out = train(python, &["--ranks", ranks, "--compare", "--json", name]);
        assert!(out.status.success(), "{}", text(&out));
        let result: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&file).expect("--json wrote the file"))
                .expect("--json wrote JSON");
        let epochs = result["epochs"].as_array().expect("there are epochs");
        let number = |line: &serde_json::Value, key: &str| line[key].as_f64().expect("a number");
        assert!(number(&epochs[epochs.len() - 1], "loss") < number(&epochs[0], "loss") / 2.0);
        assert!(number(&epochs[epochs.len() - 1], "accuracy") > 0.9);
        hashes.push(result["weights_sha256"].clone());
    }
    // The same run again gives the same bits.
    let file = scratch("examples-test").join("digits-again.json");
    let name = file.to_str().expect("the path is UTF-8");
    let out = train(python, &["--ranks", "4", "--json", name]);
    assert!(out.status.success(), "{}", text(&out));
    let again: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&file).expect("--json wrote the file"))
            .expect("--json wrote JSON");
    assert_eq!(again["weights_sha256"], hashes[2]);
}

/// The check that ranks are in step bites: one flipped bit on one rank ends the run.
#[test]
fn python_train_digits_sees_a_flipped_bit() {
    let Ok(python) = python() else {
        println!("SKIPPED: python_train_digits_sees_a_flipped_bit: no numpy and scikit-learn");
        return;
    };
    let out = train(python, &["--ranks", "3", "--epochs", "2", "--corrupt", "1"]);
    assert!(!out.status.success(), "{}", text(&out));
    assert!(
        text(&out).contains("weights of rank 1 differ"),
        "{}",
        text(&out)
    );
}

/// The example joins ranks that the tool's launcher started.
#[test]
fn python_train_digits_under_the_launcher() {
    let Ok(python) = python() else {
        println!("SKIPPED: python_train_digits_under_the_launcher: no numpy and scikit-learn");
        return;
    };
    let out = run(
        Command::new(tool())
            .args(["launch", "-n", "2", "--"])
            .arg(python)
            .arg(root().join("examples/python/train_digits.py"))
            .arg("--lib")
            .arg(&c_library().shared)
            .args(["--epochs", "2"]),
        LIMIT,
    );
    assert!(out.status.success(), "{}", text(&out));
    assert!(
        text(&out).contains("2 ranks") && text(&out).contains("bit-identical"),
        "{}",
        text(&out)
    );
}
