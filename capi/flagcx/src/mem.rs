//! Memory and its registration.

use crate::boundary::{Out, handle, not_null, null};
use crate::flagcx_abi::skin::{entry, live};
use crate::registry::registry;
use crate::types::*;
use engine::{Code, Error, Result, internal};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// Which allocator an argument names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Allocator {
    Ccl,
    Shmem,
}

fn allocator(number: flagcxMemAllocator_t) -> Result<Allocator> {
    match number {
        flagcxMemCCL => Ok(Allocator::Ccl),
        flagcxMemSHMEM => Ok(Allocator::Shmem),
        other => Err(Error::invalid_argument(format!(
            "allocator is {other}, not flagcxMemCCL ({flagcxMemCCL}) or flagcxMemSHMEM \
             ({flagcxMemSHMEM})"
        ))),
    }
}

fn no_shmem() -> Error {
    Error::not_supported(
        "flagcxMemSHMEM needs a FlagCX that was built with SHMEM, which has no equal here; use \
         flagcxMemCCL",
    )
}

fn buffer(pointer: *mut c_void, size: usize) -> Result<()> {
    not_null(pointer, "buff")?;
    if size == 0 {
        return Err(Error::invalid_argument("size is 0"));
    }
    Ok(())
}

/// Allocates memory that operations can use best: the vendor library's, else the device's.
///
/// # Safety
/// `ptr` must be NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxMemAlloc(
    ptr: *mut *mut c_void,
    size: usize,
    allocator: flagcxMemAllocator_t,
) -> flagcxResult_t {
    entry("flagcxMemAlloc", null_mut(), || {
        // SAFETY: this function's contract.
        let out = unsafe { Out::new(ptr, "ptr", null_mut()) }?;
        if size == 0 {
            return Err(Error::invalid_argument("size is 0"));
        }
        match self::allocator(allocator)? {
            Allocator::Ccl => out.set(internal::mem_alloc(size)?),
            Allocator::Shmem => return Err(no_shmem()),
        }
        Ok(())
    })
}

/// Frees it. NULL is nothing to do.
///
/// # Safety
/// Nobody may be using the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxMemFree(
    ptr: *mut c_void,
    allocator: flagcxMemAllocator_t,
) -> flagcxResult_t {
    entry("flagcxMemFree", null_mut(), || {
        match self::allocator(allocator)? {
            _ if ptr.is_null() => Ok(()),
            Allocator::Ccl => internal::mem_free(ptr),
            Allocator::Shmem => Err(no_shmem()),
        }
    })
}

/// Registers a buffer. Without a communicator it is only noted, as in FlagCX. The same buffer again gives
/// the same handle, which is then to be given back as often.
///
/// # Safety
/// `handle` must be NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxCommRegister(
    comm: flagcxComm_t,
    buff: *mut c_void,
    size: usize,
    handle: *mut *mut c_void,
    allocator: flagcxMemAllocator_t,
) -> flagcxResult_t {
    entry("flagcxCommRegister", comm, || {
        // SAFETY: this function's contract.
        let out = unsafe { Out::new(handle, "handle", null_mut()) }?;
        buffer(buff, size)?;
        let allocator = self::allocator(allocator)?;
        if !comm.is_null() {
            live(comm)?;
        }
        let engine = || {
            if comm.is_null() || allocator == Allocator::Shmem {
                return Ok(None);
            }
            internal::comm_register(comm.addr(), buff, size).map(Some)
        };
        out.set(registry().register(comm.addr(), buff, size, engine)?);
        Ok(())
    })
}

/// Ends a registration. NULL is nothing to do.
///
/// # Safety
/// Nothing that uses the buffer may be under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxCommDeregister(
    comm: flagcxComm_t,
    handle: *mut c_void,
    allocator: flagcxMemAllocator_t,
) -> flagcxResult_t {
    entry("flagcxCommDeregister", comm, || {
        self::allocator(allocator)?;
        if !comm.is_null() {
            live(comm)?;
        }
        if handle.is_null() {
            return Ok(());
        }
        registry().deregister(comm.addr(), handle)
    })
}

/// Registers a window; collective. Where the vendor has none this succeeds without one: `*win` stays
/// NULL, as in FlagCX.
///
/// # Safety
/// `win` must be NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxCommWindowRegister(
    comm: flagcxComm_t,
    buff: *mut c_void,
    size: usize,
    win: *mut flagcxWindow_t,
    winFlags: c_int,
    allocator: flagcxMemAllocator_t,
) -> flagcxResult_t {
    entry("flagcxCommWindowRegister", comm, || {
        if win.is_null() {
            return Err(null("win"));
        }
        // SAFETY: not NULL, so valid by this function's contract.
        let before = unsafe { win.read_unaligned() };
        if !before.is_null() {
            // It may be a live window: it is not overwritten.
            return Err(Error::invalid_argument(format!(
                "*win is {before:p} and must be NULL before the call"
            )));
        }
        let allocator = self::allocator(allocator)?;
        live(comm)?;
        if allocator == Allocator::Shmem {
            return Ok(());
        }
        match internal::comm_window_register(handle(comm), buff, size, winFlags) {
            Ok(engine) => {
                let window = registry().add_window(handle(comm), engine);
                // SAFETY: as above.
                unsafe { win.write_unaligned(window) };
                Ok(())
            }
            Err(error) if error.code() == Code::NotSupported => {
                log::warn!("flagcxCommWindowRegister: {error}; there is no window");
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
pub unsafe extern "C" fn flagcxCommWindowDeregister(
    comm: flagcxComm_t,
    win: flagcxWindow_t,
    allocator: flagcxMemAllocator_t,
) -> flagcxResult_t {
    entry("flagcxCommWindowDeregister", comm, || {
        self::allocator(allocator)?;
        if win.is_null() {
            return Ok(());
        }
        live(comm)?;
        let engine = registry().take_window(handle(comm), win)?;
        internal::comm_window_deregister(handle(comm), engine)
    })
}
