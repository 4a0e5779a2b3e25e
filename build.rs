//! Link arguments of the three shared libraries, which share this script and differ by package.
//!
//! The root package has no build script: link arguments of a cdylib root would leak into its
//! dependents.

fn main() {
    println!("cargo::rerun-if-changed=../../build.rs");
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    // libflagcx.so has no SONAME upstream; consumers record its file name.
    let soname = match package.as_str() {
        "flagos-comm-capi-flagos" => Some("libflagos_comm.so.0"),
        "flagos-comm-capi-nccl" => Some("libnccl.so.2"),
        "flagos-comm-capi-flagcx" => None,
        other => panic!("build.rs does not know the package {other}"),
    };
    if let Some(soname) = soname {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    }
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
