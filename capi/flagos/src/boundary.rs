//! Where C meets Rust: panics stop here, errors become codes, out-parameters are checked.

use crate::types::{flagosComm_t, flagosResult_t};
use engine::internal::{self, Handle};
use engine::{Code, Error, Result};
use std::any::Any;
use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub(crate) const SUCCESS: flagosResult_t = 0;
pub(crate) const IN_PROGRESS: flagosResult_t = Code::InProgress as flagosResult_t;

/// The engine's name for a communicator. The pointer is a number here, never followed.
#[inline(always)]
pub(crate) fn handle(comm: flagosComm_t) -> Handle {
    comm.addr()
}

/// An entry on the path of every operation: the engine returns the code, has kept the text, and
/// lets no panic out, so that a release build needs no frame here and jumps on.
#[inline(always)]
pub(crate) fn operation(
    name: &'static str,
    comm: flagosComm_t,
    body: impl FnOnce() -> flagosResult_t,
) -> flagosResult_t {
    if cfg!(any(debug_assertions, feature = "test-hooks")) {
        guard(name, handle(comm), body)
    } else {
        body()
    }
}

/// Any other entry: an error is recorded for the communicator (NULL: for this thread only).
#[inline(always)]
pub(crate) fn entry(
    name: &'static str,
    comm: flagosComm_t,
    body: impl FnOnce() -> Result<()>,
) -> flagosResult_t {
    entry_with_state(name, comm, || body().map(|()| true))
}

/// As [`entry`]; `Ok(false)` is in progress.
#[inline(always)]
pub(crate) fn entry_with_state(
    name: &'static str,
    comm: flagosComm_t,
    body: impl FnOnce() -> Result<bool>,
) -> flagosResult_t {
    let comm = handle(comm);
    guard(name, comm, || {
        internal::install_log_sink();
        match body() {
            Ok(true) => SUCCESS,
            Ok(false) => IN_PROGRESS,
            Err(error) if error.text().starts_with(name) => internal::fail(comm, error),
            Err(error) => internal::fail(comm, error.context(name)),
        }
    })
}

/// An entry that returns no result code and can't fail but by a panic.
#[inline(always)]
pub(crate) fn value<T>(name: &'static str, on_panic: T, body: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(|| {
        hook(name);
        body()
    })) {
        Ok(value) => value,
        Err(payload) => {
            panicked(name, 0, payload);
            on_panic
        }
    }
}

#[inline(always)]
fn guard(
    name: &'static str,
    comm: Handle,
    body: impl FnOnce() -> flagosResult_t,
) -> flagosResult_t {
    match catch_unwind(AssertUnwindSafe(|| {
        hook(name);
        body()
    })) {
        Ok(code) => code,
        Err(payload) => panicked(name, comm, payload),
    }
}

/// Turns a panic into `InternalError` with its text.
#[cold]
#[inline(never)]
fn panicked(name: &'static str, comm: Handle, payload: Box<dyn Any + Send>) -> flagosResult_t {
    let recorded = catch_unwind(AssertUnwindSafe(|| {
        let text = payload
            .downcast_ref::<&'static str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("a panic without a text");
        let error = Error::internal(format!(
            "{name} panicked: {text}. This is a fault of flagos-comm, please report it"
        ));
        internal::fail(comm, error)
    }));
    // A payload may panic when it is dropped, and there is no further boundary to stop that.
    std::mem::forget(payload);
    match recorded {
        Ok(code) => code,
        Err(second) => {
            std::mem::forget(second);
            Code::InternalError as flagosResult_t
        }
    }
}

/// Panics in the entry that `FLAGOSCOMM_TEST_PANIC` names. Not in release builds.
#[cfg(any(debug_assertions, feature = "test-hooks"))]
fn hook(name: &'static str) {
    if std::env::var_os("FLAGOSCOMM_TEST_PANIC").is_some_and(|wanted| wanted == name) {
        panic!("FLAGOSCOMM_TEST_PANIC asked for a panic in {name}");
    }
}

#[cfg(not(any(debug_assertions, feature = "test-hooks")))]
#[inline(always)]
fn hook(_name: &'static str) {}

/// An out-parameter that is known not to be NULL and holds its empty value.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Refuses NULL in words, else writes the empty value.
    ///
    /// # Safety
    /// A pointer that is not NULL must be valid for writing a `T`.
    pub(crate) unsafe fn new(pointer: *mut T, parameter: &str, empty: T) -> Result<Out<T>> {
        if pointer.is_null() {
            return Err(null(parameter));
        }
        // SAFETY: not NULL, so valid by this function's contract.
        unsafe { pointer.write_unaligned(empty) };
        Ok(Out(pointer))
    }

    /// Writes the result.
    pub(crate) fn set(self, value: T) {
        // SAFETY: `new` was promised a valid pointer.
        unsafe { self.0.write_unaligned(value) }
    }

    /// The pointer, for an engine function that writes through it, now or at the end of a group.
    pub(crate) fn pointer(self) -> *mut T {
        self.0
    }
}

/// A handle that the engine will write.
///
/// # Safety
/// As [`Out::new`], and inside a group until its outermost end.
pub(crate) unsafe fn out_comm(pointer: *mut flagosComm_t, parameter: &str) -> Result<*mut Handle> {
    // SAFETY: this function's contract.
    let out = unsafe { Out::new(pointer, parameter, std::ptr::null_mut()) }?;
    // A handle is a pointer to C and a number of the same size and alignment to the engine.
    Ok(out.pointer().cast())
}

/// The error for a NULL argument.
#[cold]
pub(crate) fn null(parameter: &str) -> Error {
    Error::invalid_argument(format!("{parameter} is NULL"))
}

/// Refuses a NULL argument in words.
pub(crate) fn not_null<T>(pointer: *const T, parameter: &str) -> Result<()> {
    if pointer.is_null() {
        Err(null(parameter))
    } else {
        Ok(())
    }
}

/// Copies a caller's array, which need not be aligned. `count` is checked: 0 to `limit`; NULL is
/// fine with 0.
///
/// # Safety
/// A pointer that is not NULL must be valid for reading `count` elements.
pub(crate) unsafe fn copy_array<T: Copy>(
    pointer: *const T,
    parameter: &str,
    count: i32,
    count_parameter: &str,
    limit: usize,
) -> Result<Vec<T>> {
    let length = usize::try_from(count)
        .ok()
        .filter(|length| *length <= limit)
        .ok_or_else(|| {
            Error::invalid_argument(format!("{count_parameter} is {count}, outside 0..={limit}"))
        })?;
    if length == 0 {
        return Ok(Vec::new());
    }
    not_null(pointer, parameter)?;
    Ok((0..length)
        // SAFETY: within the `count` elements that the caller promised.
        .map(|i| unsafe { pointer.add(i).read_unaligned() })
        .collect())
}

/// Hands out a text as `snprintf` does: `needed` is set to the bytes of the whole text with its
/// terminating zero, and as much as fits is written, always terminated.
///
/// # Safety
/// A buffer that is not NULL must be valid for writing `size` bytes, `needed` for a `usize`.
pub(crate) unsafe fn text_out(
    buffer: *mut c_char,
    size: usize,
    needed: *mut usize,
    text: impl FnOnce() -> Result<String>,
) -> Result<()> {
    let needed = if needed.is_null() {
        None
    } else {
        // SAFETY: not NULL, so valid by this function's contract.
        Some(unsafe { Out::new(needed, "needed", 0) }?)
    };
    if buffer.is_null() {
        if size > 0 {
            return Err(Error::invalid_argument(format!(
                "buffer is NULL but size is {size}"
            )));
        }
        if needed.is_none() {
            return Err(Error::invalid_argument("buffer and needed are both NULL"));
        }
    } else if size > 0 {
        // SAFETY: the buffer has at least one byte.
        unsafe { buffer.write(0) };
    }
    let text = text()?;
    let text = text.split('\0').next().unwrap_or_default();
    if let Some(needed) = needed {
        needed.set(text.len() + 1);
    }
    if !buffer.is_null() && size > 0 {
        // SAFETY: the buffer has `size` bytes by this function's contract.
        unsafe { write_text(buffer, size, text) };
    }
    Ok(())
}

/// Writes as many whole characters as fit, and a terminating zero.
///
/// # Safety
/// `buffer` must be valid for writing `size` bytes, at least one.
pub(crate) unsafe fn write_text(buffer: *mut c_char, size: usize, text: &str) {
    let mut length = text.len().min(size - 1);
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    // SAFETY: `length` is at most `size - 1`.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast::<c_char>(), buffer, length);
        buffer.add(length).write(0);
    }
}

/// The largest size that a size-prefixed struct of a newer header can have.
const LARGEST_STRUCT: usize = 1 << 16;

/// A size-prefixed struct that the library fills: as much of it as the caller's header knows, the
/// rest of the caller's zeroed.
pub(crate) struct SizedOut<T> {
    pointer: *mut T,
    size: usize,
}

impl<T: Copy> SizedOut<T> {
    /// Reads and checks the size, and zeroes all behind it.
    ///
    /// # Safety
    /// A pointer that is not NULL must be valid for reading a `size_t` and, if that is not more
    /// than the limit, for writing that many bytes.
    pub(crate) unsafe fn new(
        pointer: *mut T,
        parameter: &str,
        initializer: &str,
        smallest: usize,
    ) -> Result<SizedOut<T>> {
        not_null(pointer, parameter)?;
        // SAFETY: the struct starts with its size.
        let size = unsafe { pointer.cast::<usize>().read_unaligned() };
        if !(smallest..=LARGEST_STRUCT).contains(&size) {
            return Err(Error::invalid_argument(format!(
                "{parameter}->size is {size}, outside {smallest}..={LARGEST_STRUCT}: initialise \
                 the struct with {initializer}"
            )));
        }
        let prefix = size_of::<usize>();
        // SAFETY: the caller says that the struct has `size` bytes.
        unsafe {
            pointer
                .cast::<u8>()
                .add(prefix)
                .write_bytes(0, size - prefix);
        }
        Ok(SizedOut { pointer, size })
    }

    /// Writes what the caller's struct has room for. `value` must hold the size that is to be kept.
    pub(crate) fn set(self, value: &T) {
        let length = self.size.min(size_of::<T>());
        // SAFETY: `new` was promised `size` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(
                std::ptr::from_ref(value).cast::<u8>(),
                self.pointer.cast::<u8>(),
                length,
            );
        }
    }

    /// The size that the caller gave.
    pub(crate) fn size(&self) -> usize {
        self.size
    }
}
