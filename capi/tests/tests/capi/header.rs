//! The committed header is what the generator makes, and its numbers are the engine's.

use flagos_comm_capi_tests::{root, scratch};
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
