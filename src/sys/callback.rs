//! Calls back into the program.

use std::ffi::{CStr, c_char, c_int, c_void};

/// A log callback of the C API.
pub type LogCallback =
    unsafe extern "C" fn(level: c_int, message: *const c_char, user: *mut c_void);

/// Gives a line to the program's callback.
pub(crate) fn log(function: LogCallback, level: c_int, message: &CStr, user: *mut c_void) {
    // SAFETY: the program registered the function together with the pointer, and promised that it
    // can be called with it from any thread; the message lives until the call returns.
    unsafe { function(level, message.as_ptr(), user) };
}
