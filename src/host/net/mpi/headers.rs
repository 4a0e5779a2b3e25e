//! The declarations and constants of MPI against the implementations' headers, where those are installed.

use super::abi::{
    Calls, Constants, Handle, OF_MPICH, OF_OPEN_MPI, OF_STANDARD, OPEN_MPI_OBJECTS, Plain,
};
use crate::load::symbols::Declaration;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The header below any of a system's folders for an architecture.
fn of_the_system(folder: &str, below: &str) -> Option<PathBuf> {
    let each = std::fs::read_dir(folder).ok()?.flatten();
    each.map(|entry| entry.path().join(below))
        .find(|path| path.exists())
}

/// Where `tests/run` puts an MPI with the standard interface.
fn of_the_target_folder() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let path = own
        .ancestors()
        .nth(3)?
        .join("mpi-standard/include/mpi_abi.h");
    path.exists().then_some(path)
}

/// A type in C, from its words here.
fn in_c(rust: &str) -> String {
    let rust: String = rust.split_whitespace().collect();
    if let Some(to) = rust.strip_prefix("*mut") {
        return format!("{} *", in_c(to));
    }
    if let Some(to) = rust.strip_prefix("*const") {
        return format!("const {} *", in_c(to));
    }
    match rust.as_str() {
        "c_int" => "int".into(),
        "c_char" => "char".into(),
        "c_void" => "void".into(),
        "Status" => "MPI_Status".into(),
        "CopyAttr<H>" => "MPI_Comm_copy_attr_function *".into(),
        "DeleteAttr<H>" => "MPI_Comm_delete_attr_function *".into(),
        handle => format!(
            "MPI_{}",
            handle.strip_suffix("<H>").expect("a type of the tables")
        ),
    }
}

/// A program that compiles only if all declarations are the header's, and says its constants. What it does
/// not call need not be there.
fn program(
    header: &Path,
    declarations: &[Declaration],
    constants: &[&str],
    handle_bytes: usize,
) -> String {
    let mut text = format!(
        "#include <stdio.h>\n#include \"{}\"\n#define TEXT(x) #x\n#define EXPANDED(x) TEXT(x)\n",
        header.display()
    );
    let mut check = |condition: String| {
        text += &format!("_Static_assert({condition}, \"is another in the header\");\n");
    };
    for one in declarations {
        let arguments: Vec<String> = one.arguments.iter().map(|a| in_c(a)).collect();
        let arguments = match arguments.is_empty() {
            true => "void".into(),
            false => arguments.join(", "),
        };
        check(format!(
            "__builtin_types_compatible_p(__typeof__({}), {} ({arguments}))",
            one.name,
            in_c(one.result)
        ));
    }
    for handle in ["Comm", "Group", "Datatype", "Errhandler", "Request"] {
        check(format!("sizeof(MPI_{handle}) == {handle_bytes}"));
    }
    let callbacks = [
        ("copy", "int (MPI_Comm, int, void *, void *, void *, int *)"),
        ("delete", "int (MPI_Comm, int, void *, void *)"),
    ];
    for (which, signature) in callbacks {
        check(format!(
            "__builtin_types_compatible_p(MPI_Comm_{which}_attr_function, {signature})"
        ));
    }
    text += "int main(void) {\n";
    for name in constants {
        text += &format!("  printf(\"{name} %lld\\n\", (long long)({name}));\n");
    }
    for name in HANDLES {
        text += &format!("  puts(EXPANDED({name}));\n");
    }
    text + "  return 0;\n}\n"
}

/// The handles among the constants, in the order of Open MPI's objects.
const HANDLES: [&str; 4] = [
    "MPI_COMM_WORLD",
    "MPI_COMM_SELF",
    "MPI_BYTE",
    "MPI_ERRORS_RETURN",
];

/// The constants that are numbers in every interface.
fn numbers<H>(of: &Constants<H>) -> Vec<(&'static str, i64)> {
    vec![
        ("MPI_ANY_SOURCE", of.any_source.into()),
        ("MPI_ANY_TAG", of.any_tag.into()),
        ("MPI_TAG_UB", of.tag_ub.into()),
        ("MPI_STATUS_IGNORE", of.status_ignore as i64),
        ("MPI_THREAD_MULTIPLE", of.thread_multiple.into()),
        ("MPI_SUCCESS", 0),
    ]
}

fn all<H: Handle + Into<i64>>(of: &Constants<H>) -> Vec<(&'static str, i64)> {
    let handles = [of.world, of.itself, of.byte, of.errors_return];
    let handles = HANDLES.into_iter().zip(handles.map(Into::into));
    numbers(of).into_iter().chain(handles).collect()
}

/// As [`all`], for handles that are as wide as pointers.
fn all_wide(of: &Constants<usize>) -> Vec<(&'static str, i64)> {
    let handles = [of.world, of.itself, of.byte, of.errors_return];
    let handles = HANDLES.into_iter().zip(handles.map(|handle| handle as i64));
    numbers(of).into_iter().chain(handles).collect()
}

/// Compiles the program for a header and runs it; the lines that it says.
fn said(
    header: &Path,
    declarations: &[Declaration],
    constants: &[(&'static str, i64)],
    bytes: usize,
) -> Vec<String> {
    let folder = std::env::temp_dir().join(format!(
        "flagos-mpi-{}-{bytes}-{}",
        std::process::id(),
        constants.len()
    ));
    std::fs::create_dir_all(&folder).unwrap();
    let names: Vec<&str> = constants.iter().map(|(name, _)| *name).collect();
    let source = folder.join("program.c");
    std::fs::write(&source, program(header, declarations, &names, bytes)).unwrap();
    let own = folder.join("program");
    let built = Command::new("cc")
        .args(["-std=gnu11", "-w", "-I"])
        .arg(header.parent().unwrap())
        .arg("-o")
        .args([&own, &source])
        .output()
        .expect("a C compiler");
    let words = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{}:\n{words}", header.display());
    let ran = Command::new(&own).output().unwrap();
    assert!(ran.status.success());
    std::fs::remove_dir_all(&folder).unwrap();
    let text = String::from_utf8(ran.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// Every function that is called, every constant and every handle, with each interface.
#[test]
fn declarations_and_constants_are_those_of_the_headers() {
    let lines = |constants: &[(&'static str, i64)]| -> Vec<String> {
        constants
            .iter()
            .map(|(name, value)| format!("{name} {value}"))
            .collect()
    };
    let lacks = |whose: &str, from: &str| {
        println!("SKIPPED: the check of {whose}'s declarations needs its header ({from})");
    };
    let wide: Vec<Declaration> = [Plain::declarations(), Calls::<usize>::declarations()].concat();
    let narrow: Vec<Declaration> = [Plain::declarations(), Calls::<i32>::declarations()].concat();
    assert_eq!(wide.len(), 23);
    match of_the_system("/usr/lib", "openmpi/include/mpi.h") {
        Some(header) => {
            let constants = numbers(&OF_OPEN_MPI);
            let said = said(&header, &wide, &constants, 8);
            let (numbers, handles) = said.split_at(constants.len());
            assert_eq!(numbers, lines(&constants));
            assert_eq!(handles.len(), OPEN_MPI_OBJECTS.len());
            for (handle, object) in handles.iter().zip(OPEN_MPI_OBJECTS) {
                let word = |c: char| !c.is_alphanumeric() && c != '_';
                assert!(
                    handle.split(word).any(|part| part == object),
                    "{object}: {handle}"
                );
            }
        }
        None => lacks("Open MPI", "Debian: libopenmpi-dev"),
    }
    match of_the_system("/usr/include", "mpich/mpi.h") {
        Some(header) => {
            let constants = all(&OF_MPICH);
            assert_eq!(
                said(&header, &narrow, &constants, 4)[..constants.len()],
                lines(&constants)
            );
        }
        None => lacks("MPICH", "Debian: libmpich-dev"),
    }
    match of_the_target_folder() {
        Some(header) => {
            let constants = all_wide(&OF_STANDARD);
            assert_eq!(
                said(&header, &wide, &constants, 8)[..constants.len()],
                lines(&constants)
            );
        }
        None => lacks(
            "the standard interface",
            "the Python package mpich, where tests/run puts it",
        ),
    }
}
