//! What the engine declares of vendors' libraries, against their C declarations in
//! `tests/fakevendor/abi`, and of UCX and UCC, against their headers where those are installed: run by `cargo run -p xtask -- abi`.
//!
//! The C side is read with libclang, so that nothing of it is said twice.

mod class;
mod header;
mod tables;

use class::{Class, compare};
use flagos_comm::internal;
use header::Header;
use std::collections::BTreeMap;
use tables::{ABSENT, HEADERS, NARROW};

/// Whether libclang is there; if not, says that the test is skipped.
fn has_libclang() -> bool {
    let loaded = clang_sys::load();
    if let Err(why) = &loaded {
        println!("SKIPPED: the check of declarations needs libclang (Debian: libclang-dev): {why}");
    }
    loaded.is_ok()
}

/// Every header of the table, read once.
fn headers() -> BTreeMap<&'static str, Header> {
    let mut read = BTreeMap::new();
    for row in HEADERS {
        if Header::is_there(row.header) {
            read.entry(row.header)
                .or_insert_with(|| Header::read(row.header));
        } else {
            println!(
                "SKIPPED: the check of declarations of {} needs {} (Debian: lib{}-dev, or CPATH)",
                row.library, row.header, row.library
            );
        }
    }
    read
}

#[test]
fn declarations_match_the_headers() {
    if !has_libclang() {
        return;
    }
    let headers = headers();
    let mut wrong = Vec::new();
    // By the place of the row.
    let mut compared = vec![0; HEADERS.len()];
    let mut absent = vec![Vec::new(); HEADERS.len()];
    let mut used = vec![false; ABSENT.len()];
    for (library, name, arguments, result) in internal::declarations() {
        let rows = HEADERS.iter().enumerate();
        let mut rows = rows.filter(|(_, row)| row.library == library).peekable();
        if rows.peek().is_none() {
            wrong.push(format!(
                "{library} has no header in the table of xtask/tests/abi"
            ));
        }
        for (at, row) in rows {
            let Some(header) = headers.get(row.header) else {
                continue;
            };
            let Some(function) = header.function(&name) else {
                absent[at].push(name.clone());
                let excuse = ABSENT
                    .iter()
                    .position(|a| a.library == library && a.names.contains(&name.as_str()));
                match excuse {
                    Some(at) => used[at] = true,
                    None if row.nccl_shaped => {}
                    None => wrong.push(format!("{library}: {} has no {name}", row.header)),
                }
                continue;
            };
            compared[at] += 1;
            match compare(&arguments, result, function, &|argument| {
                NARROW.contains(&(name.as_str(), argument))
            }) {
                Ok(()) => {}
                Err(why) => wrong.push(format!("{library}: {name} ({}): {why}", row.header)),
            }
        }
    }
    for ((row, count), missing) in HEADERS.iter().zip(compared).zip(absent) {
        if !headers.contains_key(row.header) {
            continue;
        }
        println!(
            "{:12} {:14} {count:3} functions compared, {} not in the header{}{}",
            row.library,
            row.header,
            missing.len(),
            if missing.is_empty() { "" } else { ": " },
            missing.join(", ")
        );
        if count < row.at_least {
            wrong.push(format!(
                "{}: {count} functions compared, at least {} are expected",
                row.library, row.at_least
            ));
        }
    }
    for (excuse, used) in ABSENT.iter().zip(used) {
        if !used {
            wrong.push(format!(
                "{}: {:?} need no excuse ({})",
                excuse.library, excuse.names, excuse.why
            ));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn structs_match_the_headers() {
    if !has_libclang() {
        return;
    }
    let headers = headers();
    let mut wrong = Vec::new();
    let mut fields_compared = 0;
    let layouts = internal::layouts();
    for (library, name, size, exact, fields) in &layouts {
        let mut rows = HEADERS
            .iter()
            .filter(|row| row.library == *library)
            .peekable();
        assert!(rows.peek().is_some(), "{library} has no header");
        for row in rows {
            let Some(header) = headers.get(row.header) else {
                continue;
            };
            let Some(theirs) = header.size(name) else {
                wrong.push(format!("{library}: {} has no {name}", row.header));
                continue;
            };
            if theirs > *size || (*exact && theirs != *size) {
                wrong.push(format!(
                    "{library}: {name} has {theirs} bytes in {}, and {size} here",
                    row.header
                ));
            }
            for (field, offset) in fields {
                fields_compared += 1;
                let theirs = header.offset(name, field);
                if theirs != Some(*offset) {
                    wrong.push(format!(
                        "{library}: {name}.{field} is at {theirs:?} in {}, and at {offset} here",
                        row.header
                    ));
                }
            }
        }
    }
    println!(
        "{} structs, {fields_compared} fields compared",
        layouts.len()
    );
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The id that is passed by value is as large as the comparison of functions takes it to be.
#[test]
fn the_id_has_its_size() {
    let size = internal::layouts()
        .into_iter()
        .find(|(_, name, ..)| *name == "ncclUniqueId")
        .map(|(_, _, size, ..)| size);
    assert_eq!(Some(class::here("Id128").unwrap()), size.map(Class::Struct));
}

/// Wrong declarations of a known function are found, each in words.
#[test]
fn wrong_declarations_are_found() {
    if !has_libclang() {
        return;
    }
    let header = Header::read("nccl.h");
    let check = |name: &str, arguments: &[&'static str], result: &str| {
        let function = header.function(name).expect("the header has it");
        compare(arguments, result, function, &|_| false)
    };
    let init = ["* mut CommPtr", "c_int", "Id128", "c_int"];
    assert_eq!(check("ncclCommInitRank", &init, "RawResult"), Ok(()));
    for (arguments, result, words) in [
        // The id by pointer.
        (
            ["* mut CommPtr", "c_int", "* const Id128", "c_int"].as_slice(),
            "RawResult",
            "argument 3",
        ),
        // Of the size that another vendor's has.
        (
            &["* mut CommPtr", "c_int", "[u8; 136]", "c_int"],
            "RawResult",
            "argument 3",
        ),
        // Swapped.
        (
            &["c_int", "* mut CommPtr", "Id128", "c_int"],
            "RawResult",
            "argument 1",
        ),
        // One is missing.
        (
            &["* mut CommPtr", "c_int", "Id128"],
            "RawResult",
            "3 arguments",
        ),
        // A wide number.
        (
            &["* mut CommPtr", "usize", "Id128", "c_int"],
            "RawResult",
            "argument 2",
        ),
        // Another result.
        (&init, "()", "result"),
        (&init, "* const c_char", "result"),
        (&init, "u64", "result"),
        // A type that nobody has explained.
        (
            &["* mut CommPtr", "Rank", "Id128", "c_int"],
            "RawResult",
            "Rank",
        ),
    ] {
        let error = check("ncclCommInitRank", arguments, result).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    // What a pointer points to: a count of 8 bytes where the function writes 4, and the other way.
    let error = check("ncclCommCount", &["CommPtr", "* mut usize"], "c_int").unwrap_err();
    assert!(error.contains("argument 2"), "{error}");
    let error = check(
        "ncclCommMemStats",
        &["CommPtr", "c_int", "* mut u32"],
        "c_int",
    );
    assert!(error.unwrap_err().contains("argument 3"));
    // A function pointer is a pointer.
    let host = Header::read("cuda.h");
    let function = host.function("cudaLaunchHostFunc").expect("it is there");
    let call = ["* mut c_void", "* mut c_void", "* mut c_void"];
    assert_eq!(compare(&call, "c_int", function, &|_| false), Ok(()));
    // A number of one byte is not one of four, unless that is said.
    let driver = Header::read("cuda_driver.h");
    let function = driver.function("cuMemsetD8Async").expect("it is there");
    let set = ["* mut c_void", "c_int", "usize", "* mut c_void"];
    assert!(compare(&set, "c_int", function, &|_| false).is_err());
    assert_eq!(compare(&set, "c_int", function, &|n| n == 2), Ok(()));
}
