//! Finds functions in an open library and proves that they are that library's.
#![forbid(unsafe_code)]

use std::ffi::{CString, c_void};
use std::path::Path;
use std::ptr::NonNull;

use super::open::{Lib, object_of};
use super::report::Coverage;

/// A function of another library as it is declared here, types in Rust's words. Tests compare it
/// with the library's C header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Declaration {
    /// Which library, by a short name.
    pub(crate) library: &'static str,
    /// The function's whole name.
    pub(crate) name: String,
    /// Its arguments' types.
    pub(crate) arguments: Vec<&'static str>,
    /// Its result's type.
    pub(crate) result: &'static str,
}

/// A struct of another library as it is laid out here. Tests compare it with the library's C header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Which library, by the name that its declarations have.
    pub(crate) library: &'static str,
    /// The struct's name in C.
    pub(crate) name: &'static str,
    /// Its size here.
    pub(crate) size: usize,
    /// Whether the library's must be as large; else it must not be larger, because the library fills
    /// it and we have room for later versions.
    pub(crate) exact: bool,
    /// Names in C, and offsets, of fields.
    pub(crate) fields: Vec<(&'static str, usize)>,
}

/// Looks functions up and counts them.
pub(crate) struct Resolver<'a> {
    lib: &'a Lib,
    companions: &'a [&'a str],
    found: usize,
    missing: Vec<String>,
    strays: Vec<String>,
}

impl<'a> Resolver<'a> {
    /// A resolver for a library. Symbols may also lie in objects whose file name starts with one
    /// of `companions`.
    pub(crate) fn new(lib: &'a Lib, companions: &'a [&'a str]) -> Resolver<'a> {
        Resolver {
            lib,
            companions,
            found: 0,
            missing: Vec::new(),
            strays: Vec::new(),
        }
    }

    /// The address of a function, if the library has it. One that another library answers for is
    /// as good as missing: calls would be split between two libraries.
    pub(crate) fn find(&mut self, name: &str) -> Option<NonNull<c_void>> {
        let address = CString::new(name)
            .ok()
            .and_then(|name| self.lib.raw_symbol(&name));
        match address {
            Some(address) if self.belongs(name, address) => {
                self.found += 1;
                Some(address)
            }
            _ => {
                self.missing.push(name.to_string());
                None
            }
        }
    }

    /// The first of several names that the library has; missing under the first name if none.
    pub(crate) fn find_any(&mut self, names: &[String]) -> Option<NonNull<c_void>> {
        for name in names {
            let before = self.missing.len();
            if let Some(address) = self.find(name) {
                return Some(address);
            }
            self.missing.truncate(before);
        }
        if let Some(name) = names.first() {
            self.missing.push(name.clone());
        }
        None
    }

    /// Whether a function lies in an object of this file name, or of that name with a version.
    pub(crate) fn lies_in(&mut self, name: &str, file: &str) -> bool {
        let Some(address) = self.find(name) else {
            return false;
        };
        let object = object_of(address);
        let object = object.as_deref().and_then(Path::file_name);
        object
            .and_then(|o| o.to_str())
            .is_some_and(|o| o.starts_with(file))
    }

    fn belongs(&mut self, name: &str, address: NonNull<c_void>) -> bool {
        let Some(object) = object_of(address) else {
            self.strays
                .push(format!("{name} lies in no object that the loader knows"));
            return false;
        };
        let file = object
            .file_name()
            .and_then(|f| f.to_str())
            .unwrap_or_default();
        if object == self.lib.path() || self.companions.iter().any(|c| file.starts_with(c)) {
            return true;
        }
        self.strays.push(stray(name, &object, self.lib.path()));
        false
    }

    /// Names that were looked up and are not there.
    pub(crate) fn missing(&self) -> &[String] {
        &self.missing
    }

    /// Symbols that another object answered for, in words.
    pub(crate) fn strays(&self) -> &[String] {
        &self.strays
    }

    /// The counts so far.
    pub(crate) fn coverage(&self) -> Coverage {
        Coverage {
            found: self.found,
            total: self.found + self.missing.len(),
            missing: self.missing.clone(),
        }
    }
}

fn stray(name: &str, object: &Path, wanted: &Path) -> String {
    format!(
        "{name} lies in {}, not in {}",
        object.display(),
        wanted.display()
    )
}
