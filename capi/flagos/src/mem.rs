//! Memory and its registration.

use crate::boundary::{Out, entry, handle, not_null};
use crate::types::*;
use engine::{Error, Result, internal};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// Refuses a buffer that is NULL or empty.
fn buffer(pointer: *mut c_void, parameter: &str, size: usize) -> Result<()> {
    not_null(pointer, parameter)?;
    if size == 0 {
        return Err(Error::invalid_argument("size is 0"));
    }
    Ok(())
}

/// Allocates memory that operations can use best: device memory of the current device fit for the
/// vendor's zero-copy paths, or on a machine without a driver memory that the other processes of the
/// machine can use in place, which makes large operations faster. Aligned to at least 256 bytes. Contents
/// are undefined.
///
/// Without a driver, a child of a fork shares the memory: what one writes the other sees, and only the
/// process that allocated it can free it. That ends for the buffer of an all-reduce that has failed while
/// another rank's process was stopped in it: the child then sees what that rank may still write, and
/// this process does not. Where the kernel refuses such memory, it is ordinary memory.
///
/// @param ptr   receives the memory; NULL on failure. Not NULL.
/// @param size  bytes, at least 1.
///
/// Threads: any.
///
/// @return flagosSuccess; flagosInvalidArgument (ptr is NULL, size is 0); flagosSystemError (no
/// memory); flagosNotSupported; flagosUnboundDevice, flagosUnhandledDeviceError,
/// flagosUnhandledCclError, flagosInternalError.
///
/// Semantics: NCCL's ncclMemAlloc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosMemAlloc(ptr: *mut *mut c_void, size: usize) -> flagosResult_t {
    entry("flagosMemAlloc", null_mut(), || {
        // SAFETY: the header's contract.
        let out = unsafe { Out::new(ptr, "ptr", null_mut()) }?;
        if size == 0 {
            return Err(Error::invalid_argument("size is 0"));
        }
        out.set(internal::mem_alloc(size)?);
        Ok(())
    })
}

/// Frees memory of flagosMemAlloc. Nothing that uses it may be under way. Communicators that used it may
/// live on.
///
/// @param ptr  the memory; NULL does nothing.
///
/// Threads: any.
///
/// @return flagosSuccess; flagosInvalidArgument (not of flagosMemAlloc, or freed before);
/// flagosUnhandledDeviceError, flagosUnhandledCclError, flagosInternalError.
///
/// Semantics: NCCL's ncclMemFree.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosMemFree(ptr: *mut c_void) -> flagosResult_t {
    entry("flagosMemFree", null_mut(), || {
        if ptr.is_null() {
            return Ok(());
        }
        internal::mem_free(ptr)
    })
}

/// Registers a buffer with a communicator, which lets the vendor's library avoid copies. Local. Only
/// a hint on the host tier.
///
/// @param comm    the communicator.
/// @param buff    the buffer. Not NULL. Must outlive the registration.
/// @param size    bytes, at least 1.
/// @param handle  receives the registration; NULL on failure. Not NULL.
///
/// Threads: not while another call runs on comm, flagosCommAbort excepted.
///
/// @return flagosSuccess; flagosInvalidArgument (a NULL, size is 0, no live communicator);
/// flagosInvalidUsage (comm has failed); flagosNotSupported (the tier can't);
/// flagosUnhandledCclError, flagosInternalError.
///
/// Semantics: NCCL's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosCommRegister(
    comm: flagosComm_t,
    buff: *mut c_void,
    size: usize,
    handle: *mut *mut c_void,
) -> flagosResult_t {
    entry("flagosCommRegister", comm, || {
        // SAFETY: the header's contract.
        let out = unsafe { Out::new(handle, "handle", null_mut()) }?;
        buffer(buff, "buff", size)?;
        out.set(internal::comm_register(comm.addr(), buff, size)?);
        Ok(())
    })
}

/// Ends a registration. Nothing that uses the buffer may be under way.
///
/// @param comm    the communicator.
/// @param handle  what flagosCommRegister gave. Not NULL.
///
/// Threads: not while another call runs on comm, flagosCommAbort excepted.
///
/// @return flagosSuccess; flagosInvalidArgument (no live communicator, no registration of it);
/// flagosNotSupported; flagosUnhandledCclError, flagosInternalError.
///
/// Semantics: NCCL's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosCommDeregister(
    comm: flagosComm_t,
    handle: *mut c_void,
) -> flagosResult_t {
    entry("flagosCommDeregister", comm, || {
        not_null(handle, "handle")?;
        internal::comm_deregister(comm.addr(), handle)
    })
}

/// Registers a buffer of every rank as one window. Collective: all ranks call it in the same order,
/// with the same flags, and it succeeds on all or fails on all. On the host tier it changes nothing: memory
/// of flagosMemAlloc is used in place with or without a window.
///
/// @param comm      the communicator.
/// @param buff      this rank's buffer, of flagosMemAlloc. Not NULL. Must outlive the window.
/// @param size      bytes, at least 1.
/// @param win       receives the window; NULL on failure. Not NULL.
/// @param winFlags  FLAGOS_WIN_DEFAULT or FLAGOS_WIN_COLL_SYMMETRIC.
///
/// Threads: not while another call runs on comm, flagosCommAbort excepted.
///
/// @return flagosSuccess; flagosInvalidArgument (a NULL, size is 0, unknown flags, no live
/// communicator); flagosInvalidUsage (comm has failed, the ranks disagree); flagosNotSupported (the
/// tier can't); flagosTimeout, flagosRemoteError, flagosUnhandledCclError, flagosInternalError.
///
/// Semantics: NCCL's; the vote is this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosCommWindowRegister(
    comm: flagosComm_t,
    buff: *mut c_void,
    size: usize,
    win: *mut flagosWindow_t,
    winFlags: c_int,
) -> flagosResult_t {
    entry("flagosCommWindowRegister", comm, || {
        // SAFETY: the header's contract.
        let out = unsafe { Out::new(win, "win", null_mut()) }?;
        // The engine looks at the buffer: the other ranks have to be told of a bad one.
        let window = internal::comm_window_register(handle(comm), buff, size, winFlags)?;
        out.set(window.cast());
        Ok(())
    })
}

/// Ends a window. Collective. Nothing that uses it may be under way.
///
/// @param comm  the communicator.
/// @param win   what flagosCommWindowRegister gave. Not NULL.
///
/// Threads: not while another call runs on comm, flagosCommAbort excepted.
///
/// @return flagosSuccess; flagosInvalidArgument (no live communicator, no window of it);
/// flagosNotSupported; flagosUnhandledCclError, flagosInternalError.
///
/// Semantics: NCCL's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosCommWindowDeregister(
    comm: flagosComm_t,
    win: flagosWindow_t,
) -> flagosResult_t {
    entry("flagosCommWindowDeregister", comm, || {
        not_null(win, "win")?;
        internal::comm_window_deregister(handle(comm), win.cast())
    })
}
