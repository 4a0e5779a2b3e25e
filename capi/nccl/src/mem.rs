//! Memory and its registration.

use crate::boundary::{Out, handle, not_null};
use crate::registry::registry;
use crate::skin::{entry, live};
use crate::types::*;
use engine::{Code, Error, Result, internal};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

fn buffer(pointer: *mut c_void, size: usize) -> Result<()> {
    not_null(pointer, "buff")?;
    if size == 0 {
        return Err(Error::invalid_argument("size is 0"));
    }
    Ok(())
}

/// Allocates memory that operations can use best: the vendor library's, else the device's, else the host's.
///
/// # Safety
/// `ptr` must be NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclMemAlloc(ptr: *mut *mut c_void, size: usize) -> ncclResult_t {
    entry("ncclMemAlloc", null_mut(), || {
        // SAFETY: this function's contract.
        let out = unsafe { Out::new(ptr, "ptr", null_mut()) }?;
        out.set(internal::mem_alloc(size)?);
        Ok(())
    })
}

/// Frees it. NULL is nothing to do.
///
/// # Safety
/// Nobody may be using the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclMemFree(ptr: *mut c_void) -> ncclResult_t {
    entry("ncclMemFree", null_mut(), || internal::mem_free(ptr))
}

/// Registers a buffer. The same buffer again gives the same handle, which is then to be given back as
/// often.
///
/// # Safety
/// `handle` must be NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommRegister(
    comm: ncclComm_t,
    buff: *mut c_void,
    size: usize,
    handle: *mut *mut c_void,
) -> ncclResult_t {
    entry("ncclCommRegister", comm, || {
        // SAFETY: this function's contract.
        let out = unsafe { Out::new(handle, "handle", null_mut()) }?;
        buffer(buff, size)?;
        live(comm)?;
        let engine = || internal::comm_register(comm.addr(), buff, size).map(Some);
        out.set(registry().register(comm.addr(), buff, size, engine)?);
        Ok(())
    })
}

/// Ends a registration. NULL is nothing to do.
///
/// # Safety
/// Nothing that uses the buffer may be under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommDeregister(comm: ncclComm_t, handle: *mut c_void) -> ncclResult_t {
    entry("ncclCommDeregister", comm, || {
        live(comm)?;
        if handle.is_null() {
            return Ok(());
        }
        registry().deregister(comm.addr(), handle)
    })
}

/// Registers a window; collective. Where the vendor has none this succeeds without one: `*win` is NULL, as
/// in NCCL on a machine that can't.
///
/// # Safety
/// `win` must be NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommWindowRegister(
    comm: ncclComm_t,
    buff: *mut c_void,
    size: usize,
    win: *mut ncclWindow_t,
    winFlags: c_int,
) -> ncclResult_t {
    entry("ncclCommWindowRegister", comm, || {
        // SAFETY: this function's contract.
        let out = unsafe { Out::new(win, "win", null_mut()) }?;
        live(comm)?;
        match internal::comm_window_register(handle(comm), buff, size, winFlags) {
            Ok(window) => {
                if !window.is_null() {
                    registry().add_window_as_it_is(handle(comm), window);
                }
                out.set(window);
                Ok(())
            }
            Err(error) if error.code() == Code::NotSupported => {
                log::warn!("ncclCommWindowRegister: {error}; there is no window");
                Ok(())
            }
            Err(error) => Err(error),
        }
    })
}

/// Ends a window. NULL is nothing to do.
///
/// # Safety
/// Nothing that uses the window may be under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommWindowDeregister(
    comm: ncclComm_t,
    win: ncclWindow_t,
) -> ncclResult_t {
    entry("ncclCommWindowDeregister", comm, || {
        live(comm)?;
        if win.is_null() {
            return Ok(());
        }
        let window = registry().take_window(handle(comm), win)?;
        internal::comm_window_deregister(handle(comm), window)
    })
}
