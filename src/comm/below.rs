//! NCCL itself, below a communicator: for functions of NCCL that the engine has no equal of.
#![forbid(unsafe_code)]

use super::not_on;
use super::table::{self, Handle};
use crate::error::{Error, Result};
use crate::load;
use crate::vendor::Library;
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

/// The version of the NCCL that this process uses, or would use; `None` if there is none. Touches no
/// driver.
pub fn nccl_version() -> Option<i32> {
    load::nccl_version()
}

/// A function of the NCCL below a communicator, and NCCL's own handle of it. The handle is good until the
/// communicator ends.
pub fn nccl_function(handle: Handle, name: &CStr) -> Result<(NonNull<c_void>, *mut c_void)> {
    let parts = table::get(handle)?.parts()?;
    let Some(native) = parts.native() else {
        return Err(not_on(parts.tier, &name.to_string_lossy()));
    };
    Ok((find(native.library(), name)?, native.raw()))
}

/// A function of the NCCL of this process that needs no communicator.
pub fn nccl_function_alone(name: &CStr) -> Result<NonNull<c_void>> {
    find(load::process_library()?, name)
}

fn find(library: &Library, name: &CStr) -> Result<NonNull<c_void>> {
    let words = name.to_string_lossy();
    if library.row.prefix != "nccl" {
        return Err(Error::not_supported(format!(
            "{words} is NCCL's alone; the communicator's library is {}",
            library.row.title
        )));
    }
    library.own_symbol(name).ok_or_else(|| {
        Error::not_supported(format!(
            "{} ({} {}) has no {words}",
            library.path().display(),
            library.row.title,
            library.version_text()
        ))
    })
}
