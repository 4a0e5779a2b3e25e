//! What the three libraries are to the dynamic linker.

use flagos_comm_capi_tests::{header_functions, release, root, stdout};
use std::path::PathBuf;
use std::process::Command;

/// File, list of exports, SONAME, prefix of its names.
const LIBRARIES: [(&str, &str, Option<&str>, &str); 3] = [
    (
        "libflagos_comm.so",
        "capi/exports.txt",
        Some("libflagos_comm.so.0"),
        "flagos",
    ),
    ("libflagcx.so", "capi/flagcx/exports.txt", None, "flagcx"),
    (
        "libnccl.so",
        "capi/nccl/exports.txt",
        Some("libnccl.so.2"),
        "nccl",
    ),
];

const MARKER: &str = "flagos_comm_instance";

/// The tables that FlagCX looks up, which no header of ours declares.
const PLUGINS: [&str; 2] = ["flagcxCCLAdaptorPlugin_v1", "flagcxDeviceAdaptorPlugin_v1"];

fn library(file: &str) -> PathBuf {
    release().join(file)
}

fn listed(list: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join(list)).expect("a list of exports");
    text.lines().map(str::to_owned).collect()
}

fn exported(file: &str) -> Vec<String> {
    let table = stdout(
        Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(library(file)),
    );
    let mut names: Vec<String> = table
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .map(str::to_owned)
        .collect();
    names.sort();
    names
}

fn dynamic(file: &str) -> String {
    stdout(Command::new("readelf").arg("-dW").arg(library(file)))
}

/// The texts in brackets of the dynamic section's lines with this tag.
fn tagged(dynamic: &str, tag: &str) -> Vec<String> {
    dynamic
        .lines()
        .filter(|line| line.contains(tag))
        .filter_map(|line| {
            let (_, rest) = line.split_once('[')?;
            Some(rest.split_once(']')?.0.to_owned())
        })
        .collect()
}

#[test]
fn exports_are_listed() {
    for (file, list, _, prefix) in LIBRARIES {
        let listed = listed(list);
        assert_eq!(
            exported(file),
            listed,
            "the exports of {file} (left) are not those of {list} (right)"
        );
        for name in listed {
            assert!(
                name.starts_with(prefix)
                    || name.starts_with("pnccl") && prefix == "nccl"
                    || name == MARKER
                    || name == "getFlagcxDataTypeSize"
                    || file == "libflagos_comm.so" && PLUGINS.contains(&name.as_str()),
                "{list} has {name}, which does not start with {prefix}"
            );
        }
    }
}

#[test]
fn exports_are_the_header() {
    let mut names = header_functions();
    assert!(names.len() > 60, "the header was not understood: {names:?}");
    names.extend([MARKER, PLUGINS[0], PLUGINS[1]].map(str::to_owned));
    names.sort();
    assert_eq!(
        names,
        listed("capi/exports.txt"),
        "the header's functions (left) are not the list of exports (right)"
    );
}

#[test]
fn soname_and_flags() {
    for (file, _, soname, _) in LIBRARIES {
        let dynamic = dynamic(file);
        let wanted: Vec<String> = soname.into_iter().map(str::to_owned).collect();
        assert_eq!(tagged(&dynamic, "(SONAME)"), wanted, "{file}");
        let has = |tag: &str, flag: &str| {
            dynamic
                .lines()
                .any(|line| line.contains(tag) && line.split_whitespace().any(|word| word == flag))
        };
        assert!(has("(FLAGS_1)", "NODELETE"), "{file}:\n{dynamic}");
        assert!(has("(FLAGS_1)", "NOW"), "{file}:\n{dynamic}");
        assert!(has("(FLAGS)", "SYMBOLIC"), "{file}:\n{dynamic}");
        for unwanted in ["TEXTREL", "(RPATH)", "(RUNPATH)"] {
            assert!(!dynamic.contains(unwanted), "{file}:\n{dynamic}");
        }
    }
}

#[test]
fn needs_the_c_library_only() {
    for (file, ..) in LIBRARIES {
        for needed in tagged(&dynamic(file), "(NEEDED)") {
            let stem = needed.split(".so").next().unwrap_or_default();
            assert!(
                // Before glibc 2.34 threads and dlopen lie in libraries of their own.
                ["libc", "libm", "libgcc_s", "libdl", "libpthread"].contains(&stem)
                    || stem.starts_with("ld-linux"),
                "{file} needs {needed}"
            );
        }
    }
}

/// The oldest glibc that a release has to run on.
const GLIBC_FLOOR: [u32; 2] = [2, 28];

/// What glibc has had for longer than its newer version of the symbol says: in 2.33 and 2.34 functions of other
/// libraries, and of the static part, moved into libc.so. A build against an older glibc finds them there.
const MOVED: [&str; 5] = ["pthread_", "dl", "stat", "fstat", "lstat"];

#[test]
fn needs_no_function_that_an_older_c_library_lacks() {
    for (file, ..) in LIBRARIES {
        let table = stdout(Command::new("objdump").arg("-T").arg(library(file)));
        let mut seen = 0;
        for line in table.lines().filter(|line| line.contains("*UND*")) {
            let Some((before, after)) = line.split_once("GLIBC_") else {
                continue;
            };
            seen += 1;
            let mut words = after.split([')', ' ']).filter(|word| !word.is_empty());
            let version: Vec<u32> = words
                .next()
                .unwrap_or_default()
                .split('.')
                .map_while(|part| part.parse().ok())
                .collect();
            let name = words.next().unwrap_or_default();
            assert!(
                version.len() >= 2 && !name.is_empty(),
                "not understood: {line}"
            );
            let weak = before.split_whitespace().nth(1) == Some("w");
            assert!(
                version[..2] <= GLIBC_FLOOR[..]
                    || weak
                    || MOVED.iter().any(|moved| name.starts_with(moved)),
                "{file} needs {name}, which glibc {} doesn't have: {line}",
                GLIBC_FLOOR.map(|part| part.to_string()).join(".")
            );
        }
        assert!(seen > 20, "{file}: only {seen} symbols of glibc were found");
    }
}

fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()
}

/// Functions that the dynamic linker runs: the names of the entries of a section.
fn entries(file: &str, section: &str) -> Vec<String> {
    let sections = stdout(Command::new("readelf").arg("-SW").arg(library(file)));
    let Some((_, fields)) = sections
        .lines()
        .find_map(|line| line.split_once(&format!(" {section} ")))
    else {
        return Vec::new();
    };
    // type address offset size ...
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let start = hexadecimal(fields[1]).expect("an address");
    let end = start + hexadecimal(fields[3]).expect("a size");
    let symbols = stdout(Command::new("nm").arg("-C").arg(library(file)));
    let name = |address: u64| {
        symbols
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter(|(at, rest)| hexadecimal(at) == Some(address) && rest.starts_with(['t', 'T']))
            .map(|(_, rest)| rest[2..].to_owned())
            .next()
            .unwrap_or_else(|| format!("{address:#x}"))
    };
    let relocations = stdout(Command::new("readelf").arg("-rW").arg(library(file)));
    let found: Vec<String> = relocations
        .lines()
        .filter(|line| line.contains("_RELATIVE"))
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let place = hexadecimal(fields.first()?)?;
            if !(start..end).contains(&place) {
                return None;
            }
            hexadecimal(fields.last()?)
        })
        .map(name)
        .collect();
    assert_eq!(
        found.len() as u64,
        (end - start) / 8,
        "{file}: the entries of {section} were not all found"
    );
    found
}

#[test]
fn no_constructors_or_destructors_of_ours() {
    for (file, ..) in LIBRARIES {
        for entry in entries(file, ".init_array") {
            assert!(
                // crt's, and the one by which std learns of argv.
                entry == "frame_dummy"
                    || (entry.starts_with("std::sys::args") && entry.contains("ARGV_INIT_ARRAY")),
                "{file} runs {entry} when it is loaded"
            );
        }
        for entry in entries(file, ".fini_array") {
            assert!(
                entry == "__do_global_dtors_aux",
                "{file} runs {entry} when it is unloaded"
            );
        }
    }
}

#[test]
fn no_thread_local_destructors_of_ours() {
    for (file, ..) in LIBRARIES {
        let symbols = stdout(Command::new("nm").arg(library(file)));
        for line in symbols.lines() {
            let name = line.split_whitespace().last().unwrap_or_default();
            if !name.contains("thread_local") || !name.contains("destroy") {
                continue;
            }
            // std's own are compiled with std, whose names are mangled in the new way and end with
            // the crate that has instantiated them. Ours are mangled in the old way, or name a crate
            // of ours.
            let of_std = name.starts_with("_R")
                && !["flagos", "6flagcx", "4nccl"]
                    .iter()
                    .any(|ours| name.contains(ours));
            assert!(
                of_std,
                "{file} has a thread local of ours with a destructor; make its type one that needs \
                 no drop, and its initialiser const: {line}"
            );
        }
    }
}

#[test]
fn lies_where_the_readme_says() {
    for file in ["libflagos_comm.so", "libflagos_comm.a"] {
        assert!(library(file).is_file(), "{}", library(file).display());
    }
}
