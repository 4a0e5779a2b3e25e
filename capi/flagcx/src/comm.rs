//! A communicator's life.

use crate::boundary::{Out, handle, out_comm};
use crate::flagcx_abi::skin::{SUSPEND_MEMORY, entry, entry_with_state, live, read_id, state};
use crate::registry::registry;
use crate::types::*;
use engine::internal;
use engine::{Caller, Error, Options};
use std::ffi::c_int;
use std::ptr::null_mut;

/// Makes the id of one communicator, and listens for its ranks in this process.
///
/// # Safety
/// An id that is not NULL must have 256 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxGetUniqueId(commId: *mut flagcxUniqueId) -> flagcxResult_t {
    entry("flagcxGetUniqueId", null_mut(), || {
        if commId.is_null() {
            return Err(Error::invalid_argument(
                "commId is NULL: it is memory of the caller's, 256 bytes (a handle group's uniqueId is \
                 NULL since FlagCX 0.13)",
            ));
        }
        // SAFETY: this function's contract. Bytes have no alignment.
        let out = unsafe {
            Out::new(
                commId.cast::<[u8; FLAGCX_UNIQUE_ID_BYTES]>(),
                "commId",
                [0; FLAGCX_UNIQUE_ID_BYTES],
            )
        }?;
        out.set(internal::get_unique_id()?);
        Ok(())
    })
}

/// Makes a communicator. Blocking, collective. Inside a group it is made at the outermost end.
///
/// # Safety
/// The pointers must be NULL or valid; inside a group `comm` until its outermost end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxCommInitRank(
    comm: *mut flagcxComm_t,
    nranks: c_int,
    commId: *const flagcxUniqueId,
    rank: c_int,
) -> flagcxResult_t {
    entry_with_state("flagcxCommInitRank", null_mut(), || {
        // SAFETY: this function's contract.
        unsafe {
            let out = out_comm(comm, "comm")?;
            let ids = [read_id(commId)?];
            let options = Options {
                blocking: Some(true),
                caller: Caller::FlagcxProgram,
                ..Options::default()
            };
            internal::comm_init_rank(out, nranks, &ids, rank, &options)
        }
    })
}

/// Waits for what is under way on all ranks. Destroy is still to be called.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxCommFinalize(comm: flagcxComm_t) -> flagcxResult_t {
    entry("flagcxCommFinalize", comm, || {
        internal::comm_finalize(handle(comm)).map(drop)
    })
}

/// Frees a communicator.
///
/// # Safety
/// No other thread may be using it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxCommDestroy(comm: flagcxComm_t) -> flagcxResult_t {
    entry("flagcxCommDestroy", comm, || {
        let ended = internal::comm_destroy(handle(comm));
        forget(comm);
        ended
    })
}

/// Stops what is under way and frees the communicator.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxCommAbort(comm: flagcxComm_t) -> flagcxResult_t {
    entry("flagcxCommAbort", comm, || {
        let ended = internal::comm_abort(handle(comm));
        forget(comm);
        ended
    })
}

/// A communicator that is gone takes its registrations with it.
fn forget(comm: flagcxComm_t) {
    if !comm.is_null() && !internal::is_live(handle(comm)) {
        registry().forget(handle(comm));
    }
}

/// Releases device memory until resume.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxCommSuspend(comm: flagcxComm_t) -> flagcxResult_t {
    entry("flagcxCommSuspend", comm, || {
        internal::comm_suspend(handle(comm), SUSPEND_MEMORY)
    })
}

/// Takes it back.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxCommResume(comm: flagcxComm_t) -> flagcxResult_t {
    entry("flagcxCommResume", comm, || {
        internal::comm_resume(handle(comm))
    })
}

/// Writes 1: all ranks of a communicator always use the same backend here.
///
/// # Safety
/// `isHomo` must be NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxIsHomoComm(
    comm: flagcxComm_t,
    isHomo: *mut c_int,
) -> flagcxResult_t {
    entry("flagcxIsHomoComm", comm, || {
        // SAFETY: this function's contract.
        let out = unsafe { Out::new(isHomo, "isHomo", 0) }?;
        live(comm)?;
        out.set(1);
        Ok(())
    })
}

/// Number of ranks.
///
/// # Safety
/// `count` must be NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxCommCount(comm: flagcxComm_t, count: *mut c_int) -> flagcxResult_t {
    entry("flagcxCommCount", comm, || {
        // SAFETY: this function's contract.
        let out = unsafe { Out::new(count, "count", 0) }?;
        out.set(internal::comm_count(handle(comm))?);
        Ok(())
    })
}

/// This rank.
///
/// # Safety
/// `rank` must be NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxCommUserRank(
    comm: flagcxComm_t,
    rank: *mut c_int,
) -> flagcxResult_t {
    entry("flagcxCommUserRank", comm, || {
        // SAFETY: this function's contract.
        let out = unsafe { Out::new(rank, "rank", 0) }?;
        out.set(internal::comm_user_rank(handle(comm))?);
        Ok(())
    })
}

/// The device; 0, the only one, on a machine without a driver.
///
/// # Safety
/// `device` must be NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxCommGetDeviceNumber(
    comm: flagcxComm_t,
    device: *mut c_int,
) -> flagcxResult_t {
    entry("flagcxCommGetDeviceNumber", comm, || {
        // SAFETY: this function's contract.
        let out = unsafe { Out::new(device, "device", 0) }?;
        out.set(internal::comm_device(handle(comm))?.max(0));
        Ok(())
    })
}

/// Whether the communicator is still well.
///
/// # Safety
/// `asyncError` must be NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxCommGetAsyncError(
    comm: flagcxComm_t,
    asyncError: *mut flagcxResult_t,
) -> flagcxResult_t {
    entry("flagcxCommGetAsyncError", comm, || {
        // SAFETY: this function's contract.
        let out = unsafe { Out::new(asyncError, "asyncError", flagcxSuccess) }?;
        out.set(state(internal::comm_async_error(handle(comm))?));
        Ok(())
    })
}
