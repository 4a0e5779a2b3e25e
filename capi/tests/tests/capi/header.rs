//! The committed header is what the generator makes, and its numbers are the engine's.

use flagos_comm::{Code, DataType, RedOp};
use flagos_comm_capi_tests::{header_functions, root, scratch, without_comments};
use std::process::Command;

const FIX: &str = "cargo run -p xtask -- header";

/// In the order in which the header shows them.
const SOURCES: [&str; 9] = [
    "types", "info", "comm", "coll", "p2p", "group", "mem", "redop", "device",
];

fn generate() -> String {
    let capi = root().join("capi");
    let mut config =
        cbindgen::Config::from_file(capi.join("cbindgen.toml")).expect("cbindgen.toml");
    let (major, minor, patch) = version();
    config.after_includes = config.after_includes.map(|text| {
        text.replace("@MAJOR@", &major.to_string())
            .replace("@MINOR@", &minor.to_string())
            .replace("@PATCH@", &patch.to_string())
            .replace("@CODE@", &(major * 10000 + minor * 100 + patch).to_string())
    });
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(capi.join(format!("flagos/src/{source}.rs")));
    }
    let mut bytes = Vec::new();
    builder
        .generate()
        .expect("cbindgen understands the sources")
        .write(&mut bytes);
    String::from_utf8(bytes).expect("the header is text")
}

fn version() -> (u32, u32, u32) {
    let mut parts = env!("CARGO_PKG_VERSION")
        .split('.')
        .map(|part| part.parse());
    let mut next = || parts.next().expect("three parts").expect("a number");
    (next(), next(), next())
}

#[test]
fn is_what_cbindgen_makes() {
    let path = root().join("include/flagos_comm.h");
    let wanted = generate();
    if std::env::var_os("FLAGOSCOMM_BLESS").is_some() {
        std::fs::write(&path, wanted).expect("the header can be written");
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    if found != wanted {
        let new = scratch("header").join("flagos_comm.h");
        std::fs::write(&new, wanted).expect("the target directory can be written");
        let diff = Command::new("diff").arg("-u").arg(&path).arg(&new).output();
        let diff = diff.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        panic!(
            "include/flagos_comm.h is not what capi/flagos makes:\n{}\nThis fixes it: {FIX}",
            diff.unwrap_or_default()
        );
    }
}

fn header() -> String {
    std::fs::read_to_string(root().join("include/flagos_comm.h")).expect("include/flagos_comm.h")
}

/// The value of an enum's constant in the committed header.
fn constant(name: &str) -> i64 {
    without_comments(&header())
        .lines()
        .filter_map(|line| line.trim().trim_end_matches(',').split_once(" = "))
        .find(|(found, _)| *found == name)
        .and_then(|(_, value)| value.parse().ok())
        .unwrap_or_else(|| panic!("the header has no {name}"))
}

/// The value of a macro that is one number in the committed header.
fn define(name: &str) -> i64 {
    header()
        .lines()
        .filter_map(|line| line.strip_prefix("#define ")?.split_once(' '))
        .find(|(found, _)| *found == name)
        .and_then(|(_, value)| value.parse().ok())
        .unwrap_or_else(|| panic!("the header does not define {name} as a number"))
}

fn capitalised(name: &str) -> String {
    let (first, rest) = name.split_at(1);
    first.to_ascii_uppercase() + rest
}

#[test]
fn numbers_are_the_engines() {
    for code in Code::ALL {
        assert_eq!(constant(&format!("flagos{code:?}")), code as i64);
    }
    for dtype in DataType::ALL {
        let name = format!("flagos{}", capitalised(dtype.name()));
        assert_eq!(constant(&name), dtype as i64);
    }
    for op in RedOp::ALL {
        let name = format!("flagos{}", capitalised(op.name()));
        assert_eq!(constant(&name), op as i64);
    }
    assert_eq!(define("FLAGOS_NUM_DATA_TYPES"), DataType::ALL.len() as i64);
    assert_eq!(define("FLAGOS_NUM_RED_OPS"), RedOp::ALL.len() as i64);
}

#[test]
fn version_is_cargos() {
    let (major, minor, patch) = version();
    assert_eq!(define("FLAGOS_COMM_VERSION_MAJOR"), i64::from(major));
    assert_eq!(define("FLAGOS_COMM_VERSION_MINOR"), i64::from(minor));
    assert_eq!(define("FLAGOS_COMM_VERSION_PATCH"), i64::from(patch));
    let code = i64::from(major * 10000 + minor * 100 + patch);
    assert_eq!(define("FLAGOS_COMM_VERSION_CODE"), code);
    assert_eq!(i64::from(flagos_comm::internal::version_code()), code);
}

#[test]
fn documents_every_function() {
    let header = header();
    for name in header_functions() {
        let (before, _) = header
            .split_once(&format!(" {name}("))
            .or_else(|| header.split_once(&format!("*{name}(")))
            .unwrap_or_else(|| panic!("{name} is not declared"));
        let comment = &before[before.rfind("/**").expect("a comment")..];
        for part in ["@return", "Semantics:", "Threads"] {
            assert!(
                comment.contains(part),
                "the documentation of {name} has no {part}:\n{comment}"
            );
        }
        let (_, behind) = comment.split_once("*/").expect("a comment ends");
        assert!(
            !behind.contains(';'),
            "{name} has no documentation of its own:\n{comment}"
        );
    }
}
