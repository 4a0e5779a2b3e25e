//! Installs the library, what is built against it, and the tool; and removes them again.
//!
//! Whatever is written is found relative to itself, so an installed tree can be moved.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

pub const USAGE: &str =
    "usage: cargo run -p xtask -- install [--prefix DIR] [--destdir DIR] [--drop-ins] [--from DIR]
       cargo run -p xtask -- uninstall [--prefix DIR] [--destdir DIR]
  --prefix DIR   the absolute place of the tree (default /usr/local)
  --destdir DIR  stands before the prefix, for packagers (default: the variable DESTDIR, else none)
  --drop-ins     also libflagcx.so and libnccl.so.2, each in a folder of its own
  --from DIR     takes the libraries and the tool from this folder instead of building them";

const VERSION: &str = env!("CARGO_PKG_VERSION");
const MAJOR: &str = env!("CARGO_PKG_VERSION_MAJOR");

/// What the static library is linked with: `rustc --print native-static-libs`, which a test compares.
const STATIC_LIBRARIES: &str = "-ldl -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc";

/// What was installed, one path a line, relative to the prefix. It is a file of itself.
const MANIFEST: &str = "lib/flagos-comm/manifest.txt";

/// Folders that are ours alone, and go when they are empty; those inside others first.
const FOLDERS: [&str; 4] = [
    "lib/flagos-comm/flagcx",
    "lib/flagos-comm/nccl",
    "lib/flagos-comm",
    "lib/cmake/FlagosComm",
];

enum Entry {
    Copy(PathBuf, u32),
    Text(String),
    Link(String),
}

#[derive(Default)]
struct Options {
    prefix: Option<PathBuf>,
    destdir: Option<PathBuf>,
    from: Option<PathBuf>,
    drop_ins: bool,
}

impl Options {
    fn parse(arguments: &[&str], installing: bool) -> Result<Self, String> {
        let mut options = Self::default();
        let mut rest = arguments.iter();
        while let Some(&argument) = rest.next() {
            let (name, mut value) = match argument.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (argument, None),
            };
            if installing && name == "--drop-ins" && value.is_none() {
                options.drop_ins = true;
                continue;
            }
            let place = match name {
                "--prefix" => &mut options.prefix,
                "--destdir" => &mut options.destdir,
                "--from" if installing => &mut options.from,
                _ => return Err(format!("{argument} is not known\n{USAGE}")),
            };
            if value.is_none() {
                value = rest.next().copied();
            }
            match value {
                Some(value) if !value.is_empty() => *place = Some(value.into()),
                _ => return Err(format!("{name} needs a folder\n{USAGE}")),
            }
        }
        if options.destdir.is_none() {
            options.destdir = std::env::var_os("DESTDIR")
                .filter(|dir| !dir.is_empty())
                .map(PathBuf::from);
        }
        Ok(options)
    }

    /// Where the tree is written.
    fn root(&self) -> Result<PathBuf, String> {
        let prefix = self.prefix.as_deref().unwrap_or(Path::new("/usr/local"));
        let inside = prefix
            .strip_prefix("/")
            .map_err(|_| format!("the prefix {} is not absolute", prefix.display()))?;
        if inside.components().any(|part| part == Component::ParentDir) {
            return Err(format!("the prefix {} has a .. in it", prefix.display()));
        }
        let root = match &self.destdir {
            Some(dir) => dir.join(inside),
            None => prefix.to_path_buf(),
        };
        std::path::absolute(&root).map_err(|error| format!("{}: {error}", root.display()))
    }
}

pub fn install(arguments: &[&str]) -> Result<(), String> {
    let options = Options::parse(arguments, true)?;
    let root = options.root()?;
    let built = match &options.from {
        Some(dir) => dir.clone(),
        None => build(options.drop_ins)?,
    };
    let entries = entries(&built, options.drop_ins)?;

    let before = listed(&root)?;
    for (path, entry) in &entries {
        put(&root, path, entry)?;
    }
    // What an older version left, and this one doesn't have.
    for path in before.iter().filter(|path| !entries.contains_key(*path)) {
        remove(&root.join(path))?;
    }
    remove_folders(&root)?;

    println!("installed {} files into {}", entries.len(), root.display());
    if options.destdir.is_none() {
        println!(
            "if the dynamic linker's cache covers {}/lib, run ldconfig",
            root.display()
        );
    }
    Ok(())
}

pub fn uninstall(arguments: &[&str]) -> Result<(), String> {
    let options = Options::parse(arguments, false)?;
    let root = options.root()?;
    let files = listed(&root)?;
    if files.is_empty() {
        return Err(format!(
            "{} is not there: nothing is installed",
            root.join(MANIFEST).display()
        ));
    }
    // The list goes last, so that an interrupted removal can be repeated.
    for path in files.iter().filter(|path| *path != MANIFEST) {
        remove(&root.join(path))?;
    }
    remove(&root.join(MANIFEST))?;
    remove_folders(&root)?;
    println!("removed {} files from {}", files.len(), root.display());
    Ok(())
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the workspace")
        .to_path_buf()
}

/// Where cargo builds: where this program was built, as far as that can be seen.
fn target_dir() -> Result<PathBuf, String> {
    let exe = std::env::current_exe().map_err(|error| format!("where am I: {error}"))?;
    if let Some(dir) = exe
        .ancestors()
        .find(|dir| dir.join("CACHEDIR.TAG").is_file())
    {
        return Ok(dir.to_path_buf());
    }
    let dir = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace().join("target"), PathBuf::from);
    std::path::absolute(&dir).map_err(|error| format!("{}: {error}", dir.display()))
}

/// Builds what is installed; the folder where it lies.
fn build(drop_ins: bool) -> Result<PathBuf, String> {
    let target = target_dir()?;
    // Together with the tool, as `cargo build --release` does: of the libraries alone cargo would choose other features of
    // what they need, and build them a second time.
    let mut packages = vec!["flagos-comm-cli", "flagos-comm-capi-flagos"];
    if drop_ins {
        packages.extend(["flagos-comm-capi-flagcx", "flagos-comm-capi-nccl"]);
    }
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(workspace())
        .args(["build", "--release", "--locked", "--target-dir"])
        .arg(&target)
        .args(packages.iter().flat_map(|package| ["-p", package]))
        .status();
    match status {
        Ok(status) if status.success() => Ok(target.join("release")),
        Ok(status) => Err(format!("the build failed: {status}")),
        Err(error) => Err(format!("cargo can't be run: {error}")),
    }
}

/// What is installed, by its path below the prefix.
fn entries(built: &Path, drop_ins: bool) -> Result<BTreeMap<String, Entry>, String> {
    let soname = format!("libflagos_comm.so.{MAJOR}");
    let full = format!("libflagos_comm.so.{VERSION}");
    let include = workspace().join("include");
    let mut all = BTreeMap::new();
    let mut add = |path: String, entry| {
        all.insert(path, entry);
    };

    add(
        format!("lib/{full}"),
        Entry::Copy(built.join("libflagos_comm.so"), 0o755),
    );
    add(format!("lib/{soname}"), Entry::Link(full));
    add("lib/libflagos_comm.so".into(), Entry::Link(soname.clone()));
    add(
        "lib/libflagos_comm.a".into(),
        Entry::Copy(built.join("libflagos_comm.a"), 0o644),
    );
    for header in ["flagos_comm.h", "flagos_comm.hpp"] {
        add(
            format!("include/{header}"),
            Entry::Copy(include.join(header), 0o644),
        );
    }
    add(
        "bin/flagos-comm".into(),
        Entry::Copy(built.join("flagos-comm"), 0o755),
    );

    let for_cmake: Vec<&str> = STATIC_LIBRARIES
        .split(' ')
        .map(|library| library.trim_start_matches("-l"))
        .collect();
    for (template, place) in [
        ("FlagosCommConfig.cmake", "lib/cmake/FlagosComm"),
        ("FlagosCommConfigVersion.cmake", "lib/cmake/FlagosComm"),
        ("flagos-comm.pc", "lib/pkgconfig"),
    ] {
        let file = workspace().join("cmake").join(format!("{template}.in"));
        let text = fs::read_to_string(&file)
            .map_err(|error| format!("{}: {error}", file.display()))?
            .replace("@VERSION@", VERSION)
            .replace("@MAJOR@", MAJOR)
            .replace("@SONAME@", &soname)
            .replace("@STATIC_LIBRARIES@", STATIC_LIBRARIES)
            .replace("@STATIC_LIBRARIES_CMAKE@", &for_cmake.join(";"));
        if text.contains('@') {
            return Err(format!(
                "{} has a word between @ that is not known",
                file.display()
            ));
        }
        add(format!("{place}/{template}"), Entry::Text(text));
    }

    // In folders of their own: on the ordinary path they would stand before the real ones.
    if drop_ins {
        for (file, place) in [
            ("libflagcx.so", "flagcx/libflagcx.so"),
            ("libnccl.so", "nccl/libnccl.so.2"),
        ] {
            add(
                format!("lib/flagos-comm/{place}"),
                Entry::Copy(built.join(file), 0o755),
            );
        }
        // What a program that is linked with -lnccl is built against.
        add(
            "lib/flagos-comm/nccl/libnccl.so".into(),
            Entry::Link("libnccl.so.2".into()),
        );
    }

    let mut list: Vec<&str> = all.keys().map(String::as_str).chain([MANIFEST]).collect();
    list.sort_unstable();
    let list = list.join("\n") + "\n";
    all.insert(MANIFEST.into(), Entry::Text(list));

    // Before anything is written.
    for entry in all.values() {
        if let Entry::Copy(from, _) = entry
            && !from.is_file()
        {
            return Err(format!("{} is not there", from.display()));
        }
    }
    Ok(all)
}

/// Writes beside the place and renames: a program that runs with the old file keeps it.
fn put(root: &Path, path: &str, entry: &Entry) -> Result<(), String> {
    let place = root.join(path);
    let dir = place.parent().expect("a file lies in a folder");
    let new = place.with_file_name(format!(".flagos-comm-install-{}", std::process::id()));
    let write = || -> io::Result<()> {
        make_folders(dir)?;
        match entry {
            Entry::Copy(from, mode) => {
                fs::copy(from, &new)?;
                fs::set_permissions(&new, fs::Permissions::from_mode(*mode))?;
            }
            Entry::Text(text) => {
                fs::write(&new, text)?;
                fs::set_permissions(&new, fs::Permissions::from_mode(0o644))?;
            }
            Entry::Link(to) => symlink(to, &new)?,
        }
        fs::rename(&new, &place)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&new);
        format!("{}: {error}", place.display())
    })
}

/// Makes a folder and those above it, to be read by all whatever the umask is; those that are there stay as they are.
fn make_folders(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    if let Some(above) = dir.parent() {
        make_folders(above)?;
    }
    fs::create_dir(dir)?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))
}

/// The list of what is installed; empty if there is none.
fn listed(root: &Path) -> Result<Vec<String>, String> {
    let file = root.join(MANIFEST);
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(format!("{}: {error}", file.display())),
    };
    let paths: Vec<String> = text.lines().map(str::to_owned).collect();
    // Nothing outside of the prefix is ever removed.
    for path in &paths {
        if path.is_empty()
            || !Path::new(path)
                .components()
                .all(|part| matches!(part, Component::Normal(_)))
        {
            return Err(format!(
                "{} has the line {path:?}, which is no path below the prefix",
                file.display()
            ));
        }
    }
    Ok(paths)
}

fn remove(path: &Path) -> Result<(), String> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", path.display()))
        }
        _ => Ok(()),
    }
}

fn remove_folders(root: &Path) -> Result<(), String> {
    for folder in FOLDERS {
        match fs::remove_dir(root.join(folder)) {
            Err(error)
                if !matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty
                ) =>
            {
                return Err(format!("{}: {error}", root.join(folder).display()));
            }
            _ => {}
        }
    }
    Ok(())
}
