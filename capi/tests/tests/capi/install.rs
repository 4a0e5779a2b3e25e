//! The installed tree, as its users have it: in another place than it was installed to, without the sources.

use flagos_comm_capi_tests::{cargo, have, root, run, scratch, stdout, target_dir};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const MAJOR: &str = env!("CARGO_PKG_VERSION_MAJOR");
const PREFIX: &str = "/opt/flagos";
const MANIFEST: &str = "lib/flagos-comm/manifest.txt";

/// `cargo run -p xtask -- CHORE --prefix PREFIX ...`
fn xtask(chore: &str, prefix: &str, arguments: &[&str]) -> Command {
    let mut cargo = cargo();
    cargo
        .args(["run", "--quiet", "--locked", "-p", "xtask", "--"])
        .args([chore, "--prefix", prefix])
        .args(arguments)
        .env_remove("DESTDIR");
    cargo
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the target directory is UTF-8")
}

/// A tree that was installed below a DESTDIR and then moved, in a scratch folder of this name.
fn moved(name: &str) -> PathBuf {
    let dir = scratch(name);
    let stage = dir.join("stage");
    run(&mut xtask("install", PREFIX, &["--destdir", text(&stage)]));
    let tree = dir.join("moved").join("here");
    fs::create_dir(dir.join("moved")).expect("scratch");
    fs::rename(stage.join("opt/flagos"), &tree).expect("the tree was installed below the DESTDIR");
    fs::remove_dir_all(stage).expect("scratch");
    tree
}

/// What is in a tree that is no folder: paths below it.
fn files(tree: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![tree.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let entry = entry.expect("an entry");
            if entry.file_type().expect("a type").is_dir() {
                folders.push(entry.path());
            } else {
                let path = entry.path();
                let inside = path.strip_prefix(tree).expect("below the tree");
                found.insert(text(inside).to_owned());
            }
        }
    }
    found
}

fn wanted() -> BTreeSet<String> {
    [
        "bin/flagos-comm",
        "include/flagos_comm.h",
        "include/flagos_comm.hpp",
        "lib/cmake/FlagosComm/FlagosCommConfig.cmake",
        "lib/cmake/FlagosComm/FlagosCommConfigVersion.cmake",
        "lib/libflagos_comm.a",
        "lib/libflagos_comm.so",
        MANIFEST,
        "lib/pkgconfig/flagos-comm.pc",
    ]
    .map(str::to_owned)
    .into_iter()
    .chain([
        format!("lib/libflagos_comm.so.{MAJOR}"),
        format!("lib/libflagos_comm.so.{VERSION}"),
    ])
    .collect()
}

/// The lines of the list of files.
fn manifest(tree: &Path) -> BTreeSet<String> {
    let list = fs::read_to_string(tree.join(MANIFEST)).expect("a list of files");
    list.lines().map(str::to_owned).collect()
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        .permissions()
        .mode()
        & 0o7777
}

#[test]
fn the_installed_tree() {
    let tree = moved("tree");
    assert_eq!(files(&tree), wanted());
    assert_eq!(manifest(&tree), wanted());

    let lib = tree.join("lib");
    let full = format!("libflagos_comm.so.{VERSION}");
    let soname = format!("libflagos_comm.so.{MAJOR}");
    for (link, to) in [
        (soname.as_str(), full.as_str()),
        ("libflagos_comm.so", soname.as_str()),
    ] {
        let place = lib.join(link);
        assert_eq!(fs::read_link(&place).expect("a link"), Path::new(to));
    }
    // What a program that was linked with it looks for is there.
    let dynamic = stdout(Command::new("readelf").arg("-dW").arg(lib.join(&full)));
    assert!(dynamic.contains(&format!("[{soname}]")), "{dynamic}");

    for path in wanted() {
        let place = tree.join(&path);
        if place.is_symlink() {
            continue;
        }
        let program = path.starts_with("bin/") || path.ends_with(&full);
        let right = if program { 0o755 } else { 0o644 };
        assert_eq!(mode(&place), right, "the permissions of {path}");
        for folder in place.ancestors().skip(1).take_while(|dir| *dir != tree) {
            assert_eq!(
                mode(folder),
                0o755,
                "the permissions of {}",
                folder.display()
            );
        }
        if program || path.ends_with(".a") {
            continue;
        }
        let content = fs::read_to_string(&place).expect("a text");
        for (what, place) in [
            ("source", root()),
            ("target", target_dir()),
            ("prefix", PREFIX.into()),
        ] {
            assert!(
                !content.contains(text(&place)),
                "{path} names the {what} folder"
            );
        }
    }

    let said = stdout(clean(&tree.join("bin/flagos-comm")).arg("--version"));
    assert!(said.contains(VERSION), "{said}");
}

#[test]
fn drop_ins_on_demand_upgrades_and_removal() {
    let dir = scratch("upgrade");
    let stage = ["--destdir", text(&dir)];
    let tree = dir.join("opt/flagos");
    let nccl = tree.join("lib/flagos-comm/nccl/libnccl.so.2");
    let flagcx = tree.join("lib/flagos-comm/flagcx/libflagcx.so");

    run(&mut xtask(
        "install",
        PREFIX,
        &[stage[0], stage[1], "--drop-ins"],
    ));
    assert!(nccl.is_file() && flagcx.is_file());
    let dynamic = stdout(Command::new("readelf").arg("-dW").arg(&nccl));
    assert!(dynamic.contains("[libnccl.so.2]"), "{dynamic}");
    let link = fs::read_link(nccl.with_file_name("libnccl.so")).expect("the link for -lnccl");
    assert_eq!(link, Path::new("libnccl.so.2"));

    // Somebody's own file stays; a file of an older version that is no more goes; what is in use isn't
    // written into but replaced.
    let own = tree.join("lib/own.txt");
    fs::write(&own, "").expect("scratch");
    let old = tree.join("lib/libflagos_comm.so.0.0.1");
    fs::write(&old, "").expect("scratch");
    let mut list = fs::read_to_string(tree.join(MANIFEST)).expect("a list of files");
    list += "lib/libflagos_comm.so.0.0.1\n";
    fs::write(tree.join(MANIFEST), &list).expect("scratch");
    let library = tree.join(format!("lib/libflagos_comm.so.{VERSION}"));
    let in_use = dir.join("in-use");
    fs::hard_link(&library, &in_use).expect("scratch");
    fs::write(&library, "old").expect("scratch");

    run(&mut xtask("install", PREFIX, &stage));
    assert!(!old.exists() && !nccl.exists() && !flagcx.exists());
    let mut now = wanted();
    assert_eq!(manifest(&tree), now);
    now.insert("lib/own.txt".into());
    assert_eq!(files(&tree), now);
    assert_eq!(fs::read_to_string(&in_use).expect("the old file"), "old");
    assert!(fs::metadata(&library).expect("the new file").len() > 100_000);

    // A list that leads out of the tree removes nothing.
    let list = fs::read_to_string(tree.join(MANIFEST)).expect("a list of files");
    fs::write(tree.join(MANIFEST), format!("{list}../../in-use\n")).expect("scratch");
    let refused = failing(&mut xtask("uninstall", PREFIX, &stage));
    assert!(refused.contains("../../in-use"), "{refused}");
    assert_eq!(files(&tree), now);
    fs::write(tree.join(MANIFEST), list).expect("scratch");

    run(&mut xtask("uninstall", PREFIX, &stage));
    assert_eq!(files(&tree), BTreeSet::from(["lib/own.txt".to_owned()]));
    for folder in ["lib/flagos-comm", "lib/cmake/FlagosComm"] {
        assert!(!tree.join(folder).exists(), "{folder} is left");
    }
    let nothing = failing(&mut xtask("uninstall", PREFIX, &stage));
    assert!(nothing.contains("nothing is installed"), "{nothing}");
}

/// Runs a command that must fail; its stderr.
fn failing(command: &mut Command) -> String {
    let Output { status, stderr, .. } = command.output().expect("can be started");
    let stderr = String::from_utf8_lossy(&stderr).into_owned();
    assert!(!status.success(), "{command:?} did not fail:\n{stderr}");
    stderr
}

#[test]
fn wrong_installs_are_refused_before_anything_is_written() {
    let dir = scratch("refused");
    let stage = dir.join("stage");
    let to = ["--destdir", text(&stage)];
    let empty = dir.join("empty");
    fs::create_dir(&empty).expect("scratch");
    for (prefix, more, why) in [
        ("relative", &[][..], "not absolute"),
        ("/opt/../../out", &[], "has a .. in it"),
        (PREFIX, &["--drop-in"], "--drop-in is not known"),
        (PREFIX, &["--from"], "--from needs a folder"),
        (PREFIX, &["--from", text(&empty)], "is not there"),
    ] {
        let arguments: Vec<&str> = to.iter().chain(more).copied().collect();
        let refused = failing(&mut xtask("install", prefix, &arguments));
        assert!(refused.contains(why), "{prefix} {more:?}: {refused}");
        assert!(!stage.exists(), "{prefix} {more:?} wrote something");
    }
}

/// A program whose loader and pkg-config are not helped by this process's environment.
fn clean(program: &Path) -> Command {
    let mut command = Command::new(program);
    for name in ["LD_LIBRARY_PATH", "LD_PRELOAD"] {
        command.env_remove(name);
    }
    command.env("FLAGOSCOMM_TIERS", "host");
    command
}

/// Runs a consumer, and checks whose library it got.
fn consume(exe: &Path, tree: &Path, shared: bool) {
    let said = stdout(&mut clean(exe));
    assert!(said.contains("the sums are right"), "{said}");
    let needs = stdout(Command::new("readelf").arg("-dW").arg(exe));
    let soname = format!("libflagos_comm.so.{MAJOR}");
    assert_eq!(
        needs.contains(&format!("[{soname}]")),
        shared,
        "{}:\n{needs}",
        exe.display()
    );
    if shared {
        let mut loader = Command::new("ldd");
        let found = stdout(loader.arg(exe).env_remove("LD_LIBRARY_PATH"));
        let path = found
            .lines()
            .find_map(|line| line.trim().strip_prefix(&format!("{soname} => ")))
            .and_then(|rest| rest.split(" (").next())
            .unwrap_or_else(|| panic!("{}: {found}", exe.display()));
        let real = |path: &Path| fs::canonicalize(path).expect("a file");
        assert_eq!(
            real(Path::new(path)),
            real(&tree.join("lib").join(&soname)),
            "{found}"
        );
    }
}

fn configure(build: &Path, place: &Path, version: &str) -> Command {
    let mut cmake = Command::new("cmake");
    cmake
        .arg("-S")
        .arg(root().join("cmake/consumer"))
        .arg("-B")
        .arg(build)
        .arg(format!("-DFLAGOS_COMM_DIR={}", place.display()))
        .arg(format!("-DFLAGOS_COMM_VERSION={version}"));
    cmake
}

#[test]
fn cmake_consumers_of_a_moved_tree() {
    if !have("cmake") {
        return;
    }
    let tree = moved("cmake");
    let build = tree.parent().expect("scratch").join("build");
    run(&mut configure(&build, &tree, VERSION));
    run(Command::new("cmake").arg("--build").arg(&build));
    for language in ["c", "cpp"] {
        let exe = build.join(format!("consumer_{language}_flagos_comm"));
        consume(&exe, &tree, true);
        let exe = build.join(format!("consumer_{language}_flagos_comm_static"));
        consume(&exe, &tree, false);
    }
}

#[test]
fn cmake_takes_the_versions_that_fit_and_says_what_is_missing() {
    if !have("cmake") {
        return;
    }
    let tree = moved("versions");
    let build = tree.parent().expect("scratch").join("build");
    let package = tree.join("lib/cmake/FlagosComm");

    // One build folder: compilers are looked for once.
    let mut parts = VERSION
        .split('.')
        .map(|part| part.parse().expect("a number"));
    let mut part = || -> u32 { parts.next().expect("three parts") };
    let (major, minor, patch) = (part(), part(), part());
    for (version, fits) in [
        (String::new(), true),
        (format!("{major}"), true),
        (format!("{major}.{minor}"), true),
        (format!("{VERSION};EXACT"), true),
        (format!("{major}.0...{}", major + 1), true),
        (format!("{major}.0...<{VERSION}"), false),
        (format!("{major}.0;EXACT"), false),
        (format!("{major}.{minor}.{}", patch + 1), false),
        (format!("{major}.{}", minor + 1), false),
        (format!("{}", major + 1), false),
    ] {
        let _ = fs::remove_file(build.join("CMakeCache.txt"));
        let mut cmake = configure(&build, &package, &version);
        if fits {
            run(&mut cmake);
        } else {
            let refused = failing(&mut cmake);
            assert!(
                refused.contains("FlagosCommConfig.cmake") && refused.contains(VERSION),
                "{version}: {refused}"
            );
        }
    }

    // Where /lib is a link to /usr/lib, the package is found through the link.
    let other = tree.parent().expect("scratch").join("root");
    fs::create_dir(&other).expect("scratch");
    std::os::unix::fs::symlink(tree.join("lib"), other.join("lib")).expect("scratch");
    let _ = fs::remove_file(build.join("CMakeCache.txt"));
    run(&mut configure(&build, &other, ""));

    let soname = format!("libflagos_comm.so.{MAJOR}");
    fs::remove_file(tree.join("lib").join(&soname)).expect("the library");
    let refused = failing(&mut configure(&build, &tree, ""));
    // CMake breaks lines.
    let refused: Vec<&str> = refused.split_whitespace().collect();
    let refused = refused.join(" ");
    assert!(
        refused.contains(&soname) && refused.contains("is missing"),
        "{refused}"
    );
}

/// What pkg-config says of the tree.
fn pkg_config(tree: &Path, arguments: &[&str]) -> Vec<String> {
    let said = stdout(
        Command::new("pkg-config")
            .args(arguments)
            .arg("flagos-comm")
            .env_remove("PKG_CONFIG_PATH")
            .env_remove("PKG_CONFIG_SYSROOT_DIR")
            .env("PKG_CONFIG_LIBDIR", tree.join("lib/pkgconfig")),
    );
    said.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn pkg_config_consumers_of_a_moved_tree() {
    if !have("pkg-config") {
        return;
    }
    let tree = moved("pkgconfig");
    let dir = tree.parent().expect("scratch");
    assert_eq!(pkg_config(&tree, &["--modversion"]), [VERSION]);
    let cflags = pkg_config(&tree, &["--cflags"]);
    let shared = pkg_config(&tree, &["--libs"]);
    // As capi/README.md has it: the linker prefers the shared library of two with the same name.
    let archived: Vec<String> = pkg_config(&tree, &["--static", "--libs"])
        .iter()
        .map(|word| word.replace("-lflagos_comm", "-l:libflagos_comm.a"))
        .collect();
    let rpath = format!("-Wl,-rpath,{}", tree.join("lib").display());
    for (program, standard, extension) in [("gcc", "c99", "c"), ("g++", "c++17", "cpp")] {
        for (libraries, is_shared) in [(&shared, true), (&archived, false)] {
            let exe = dir.join(format!("{extension}-{is_shared}"));
            run(Command::new(program)
                .arg(format!("-std={standard}"))
                .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror"])
                .args(&cflags)
                .arg(root().join(format!("cmake/consumer/consumer.{extension}")))
                .args(libraries)
                .arg(&rpath)
                .arg("-o")
                .arg(&exe));
            consume(&exe, &tree, is_shared);
        }
    }
}
