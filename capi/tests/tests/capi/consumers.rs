//! Programs that include the header and link the library.

use flagos_comm_capi_tests::{
    c_program, cargo, compiler, header_functions, library, release, root, run, scratch,
};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// Uses every initialiser, and includes the header twice.
const USE: &str = r#"
#include "flagos_comm.h"
#include "flagos_comm.h"
#if FLAGOS_COMM_VERSION_CODE != FLAGOS_COMM_VERSION_MAJOR * 10000 + \
    FLAGOS_COMM_VERSION_MINOR * 100 + FLAGOS_COMM_VERSION_PATCH
#error "the version macros disagree"
#endif
int use_name(void);
int use_name(void)
{
    flagosConfig_t config = FLAGOS_CONFIG_INITIALIZER;
    flagosSimInfo_t sim = FLAGOS_SIM_INFO_INITIALIZER;
    flagosCommInfo_t info = FLAGOS_COMM_INFO_INITIALIZER;
    flagosPointerAttributes_t attributes = FLAGOS_POINTER_ATTRIBUTES_INITIALIZER;
    const int32_t *field = &config.device;
    int wrong = 0;
    while (field <= &config.reserved) {
        wrong += *field++ != FLAGOS_CONFIG_UNDEF;
    }
    wrong += config.size != sizeof config;
    wrong += config.magic != FLAGOS_CONFIG_MAGIC;
    wrong += config.version != FLAGOS_COMM_VERSION_CODE;
    wrong += config.blocking != FLAGOS_CONFIG_UNDEF;
    wrong += config.vendorNonblocking != FLAGOS_CONFIG_UNDEF;
    wrong += config.initTimeoutMs != FLAGOS_CONFIG_UNDEF;
    wrong += config.collectiveTimeoutMs != FLAGOS_CONFIG_UNDEF;
    wrong += config.destroyTimeoutMs != FLAGOS_CONFIG_UNDEF;
    wrong += config.name != NULL;
    wrong += config.description != NULL;
    wrong += config.tiers != NULL;
    wrong += config.netName != NULL;
    wrong += sim.size != sizeof sim || sim.magic != FLAGOS_CONFIG_MAGIC;
    wrong += info.size != sizeof info || info.vendor[0] != 0;
    wrong += attributes.size != sizeof attributes;
    return wrong;
}
"#;

const MAIN: &str = "int use_a(void);
int use_b(void);
int main(void) { return use_a() + use_b(); }
";

fn compile(program: &str, standard: &str, source: &Path, object: &Path) {
    run(compiler(program, standard)
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(object));
}

#[test]
fn header_in_every_standard() {
    let dir = scratch("standards");
    for (program, standard, extension) in [
        ("gcc", "c99", "c"),
        ("gcc", "c11", "c"),
        ("gcc", "c17", "c"),
        ("g++", "c++11", "cc"),
        ("g++", "c++17", "cc"),
    ] {
        let mut objects = Vec::new();
        for unit in ["a", "b"] {
            let source = dir.join(format!("{unit}-{standard}.{extension}"));
            let code = USE.replace("use_name", &format!("use_{unit}"));
            std::fs::write(&source, code).expect("scratch");
            let object = source.with_extension("o");
            compile(program, standard, &source, &object);
            objects.push(object);
        }
        // Two units in one program: nothing is defined twice, and every initialiser is right.
        let main = dir.join(format!("main-{standard}.{extension}"));
        std::fs::write(&main, MAIN).expect("scratch");
        let exe = dir.join(format!("main-{standard}"));
        run(compiler(program, standard)
            .arg(&main)
            .args(&objects)
            .arg("-o")
            .arg(&exe));
        run(&mut Command::new(&exe));
    }
}

/// A C++ program that uses the wrapper, in two units that include it twice.
fn cpp_program(name: &str) -> std::path::PathBuf {
    let dir = scratch(name);
    let other = dir.join("other.cc");
    std::fs::write(
        &other,
        "#include \"flagos_comm.hpp\"\n#include \"flagos_comm.hpp\"\n",
    )
    .expect("scratch");
    let object = dir.join("other.o");
    compile("g++", "c++17", &other, &object);
    let exe = dir.join(name);
    let library = library();
    std::os::unix::fs::symlink(&library, dir.join("libflagos_comm.so.0")).expect("scratch");
    run(compiler("g++", "c++17")
        .arg(root().join("tests/c").join(format!("{name}.cc")))
        .arg(&object)
        .arg(&library)
        .arg(format!("-Wl,-rpath,{}", dir.display()))
        .arg("-pthread")
        .arg("-o")
        .arg(&exe));
    exe
}

#[test]
fn cpp_wrapper_without_a_communicator() {
    let exe = cpp_program("raii_errors");
    run(&mut Command::new(exe));
}

#[test]
fn cpp_wrapper_on_the_host_tier() {
    let exe = cpp_program("raii");
    run(Command::new(exe).env("FLAGOSCOMM_TIERS", "host"));
}

#[test]
fn every_function_can_be_linked() {
    let dir = scratch("addresses");
    let mut source = String::from(
        "#include \"flagos_comm.h\"\n\ntypedef void (*function)(void);\n\
         static const function functions[] = {\n",
    );
    for name in header_functions() {
        writeln!(source, "    (function){name},").expect("a String takes all");
    }
    source += "};\n\nint main(void)\n{\n    unsigned i;\n    \
               for (i = 0; i < sizeof functions / sizeof *functions; i++) {\n        \
               if (functions[i] == 0) return 1;\n    }\n    return 0;\n}\n";
    let file = dir.join("addresses.c");
    std::fs::write(&file, source).expect("scratch");
    let exe = c_program(&file, &["-Wl,-z,now"], &dir);
    run(&mut Command::new(exe));
}

/// What `cargo rustc -- --print native-static-libs` says.
fn native_static_libs() -> String {
    let output = run(cargo().args([
        "rustc",
        "--locked",
        "-p",
        "flagos-comm-capi-flagos",
        "--crate-type",
        "staticlib",
        "--",
        "--print",
        "native-static-libs",
    ]));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.lines()
        .find_map(|line| line.split_once("native-static-libs: "))
        .unwrap_or_else(|| panic!("rustc did not print the libraries:\n{text}"))
        .1
        .trim()
        .to_owned()
}

const STATIC: &str = "#include \"flagos_comm.h\"

int main(void)
{
    int version = 0;
    return flagosGetVersion(&version) != flagosSuccess || version != FLAGOS_COMM_VERSION_CODE;
}
";

#[test]
fn static_library_links_as_documented() {
    let libraries = native_static_libs();
    let readme = std::fs::read_to_string(root().join("capi/README.md")).expect("capi/README.md");
    assert!(
        readme.contains(&format!("libflagos_comm.a {libraries}\n")),
        "capi/README.md does not say that the static library is linked with: {libraries}"
    );
    // From there it comes into the CMake package and the pkg-config file.
    let install = std::fs::read_to_string(root().join("xtask/src/install.rs")).expect("install.rs");
    assert!(
        install.contains(&format!("= \"{libraries}\";")),
        "xtask/src/install.rs does not have STATIC_LIBRARIES = {libraries:?}"
    );
    let dir = scratch("static");
    let file = dir.join("static.c");
    std::fs::write(&file, STATIC).expect("scratch");
    let exe = dir.join("static");
    run(compiler("gcc", "c99")
        .arg(&file)
        .arg(release().join("libflagos_comm.a"))
        .args(libraries.split_whitespace())
        .arg("-o")
        .arg(&exe));
    run(&mut Command::new(&exe));
}
