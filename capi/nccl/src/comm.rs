//! A communicator's life.

use crate::boundary::{Out, copy_array, handle, out_comm};
use crate::config;
use crate::registry::registry;
use crate::skin::{entry, entry_with_state, result};
use crate::types::*;
use engine::internal;
use engine::{Error, Result};
use std::ffi::c_int;
use std::ptr::null_mut;

/// Bytes of the engine's id; all its meaning is in the first 128.
const WHOLE: usize = 256;

/// More ids than this are no number of ids.
const MOST_IDS: usize = 1 << 16;

fn whole(id: ncclUniqueId) -> [u8; WHOLE] {
    let mut whole = [0; WHOLE];
    whole[..NCCL_UNIQUE_ID_BYTES].copy_from_slice(&id.internal);
    whole
}

/// Makes the id of one communicator, and listens for its ranks in this process.
///
/// # Safety
/// An id that is not NULL must have 128 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(uniqueId: *mut ncclUniqueId) -> ncclResult_t {
    entry("ncclGetUniqueId", null_mut(), || {
        let empty = ncclUniqueId {
            internal: [0; NCCL_UNIQUE_ID_BYTES],
        };
        // SAFETY: this function's contract.
        let out = unsafe { Out::new(uniqueId, "uniqueId", empty) }?;
        let whole = internal::get_unique_id()?;
        let (meaning, rest) = whole.split_at(NCCL_UNIQUE_ID_BYTES);
        if rest.iter().any(|byte| *byte != 0) {
            return Err(Error::internal("an id has a meaning beyond 128 bytes"));
        }
        let mut id = empty;
        id.internal.copy_from_slice(meaning);
        out.set(id);
        Ok(())
    })
}

/// Makes a communicator. Inside a group it is made at the outermost end.
///
/// # Safety
/// The pointers must be NULL or valid; inside a group `comm` until its outermost end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRank(
    comm: *mut ncclComm_t,
    nranks: c_int,
    commId: ncclUniqueId,
    rank: c_int,
) -> ncclResult_t {
    entry_with_state("ncclCommInitRank", null_mut(), || {
        // SAFETY: this function's contract.
        unsafe {
            let out = out_comm(comm, "comm")?;
            let options = config::default();
            internal::comm_init_rank(out, nranks, &[whole(commId)], rank, &options)
        }
    })
}

/// As [`ncclCommInitRank`] with options; NULL is none.
///
/// # Safety
/// As [`ncclCommInitRank`]; the config is one of some header of NCCL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    comm: *mut ncclComm_t,
    nranks: c_int,
    commId: ncclUniqueId,
    rank: c_int,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    entry_with_state("ncclCommInitRankConfig", null_mut(), || {
        // SAFETY: this function's contract.
        unsafe {
            let out = out_comm(comm, "comm")?;
            let options = config::optional(config)?.unwrap_or_else(config::default);
            internal::comm_init_rank(out, nranks, &[whole(commId)], rank, &options)
        }
    })
}

/// As [`ncclCommInitRankConfig`] with several ids, each of which serves a part of the ranks.
///
/// # Safety
/// As [`ncclCommInitRankConfig`]; `commIds` has `nId` ids.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankScalable(
    newcomm: *mut ncclComm_t,
    nranks: c_int,
    myrank: c_int,
    nId: c_int,
    commIds: *mut ncclUniqueId,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    entry_with_state("ncclCommInitRankScalable", null_mut(), || {
        // SAFETY: this function's contract.
        unsafe {
            let out = out_comm(newcomm, "newcomm")?;
            let options = config::optional(config)?.unwrap_or_else(config::default);
            let ids = copy_array(commIds, "commIds", nId, "nId", MOST_IDS)?;
            let ids: Vec<[u8; WHOLE]> = ids.into_iter().map(whole).collect();
            internal::comm_init_rank(out, nranks, &ids, myrank, &options)
        }
    })
}

/// Makes all ranks of a communicator in this process, on the first devices or on those of `devlist`.
///
/// # Safety
/// `comm` must be NULL or have room for `ndev` handles, `devlist` be NULL or have `ndev` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitAll(
    comm: *mut ncclComm_t,
    ndev: c_int,
    devlist: *const c_int,
) -> ncclResult_t {
    entry("ncclCommInitAll", null_mut(), || {
        let count = usize::try_from(ndev)
            .ok()
            .filter(|count| (1..=MOST_IDS).contains(count))
            .ok_or_else(|| {
                Error::invalid_argument(format!("ndev is {ndev}, outside 1..={MOST_IDS}"))
            })?;
        // SAFETY: this function's contract.
        unsafe {
            for i in 0..count {
                out_comm(comm.wrapping_add(i), "comm")?;
            }
            let devices = match devlist.is_null() {
                true => None,
                false => Some(copy_array(devlist, "devlist", ndev, "ndev", count)?),
            };
            internal::comm_init_all(comm.cast(), ndev, devices.as_deref(), &config::default())
        }
    })
}

/// Splits a communicator by colour; a rank without one gets NULL.
///
/// # Safety
/// The pointers must be NULL or valid; inside a group `newcomm` until its outermost end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommSplit(
    comm: ncclComm_t,
    color: c_int,
    key: c_int,
    newcomm: *mut ncclComm_t,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    entry_with_state("ncclCommSplit", comm, || {
        // SAFETY: this function's contract.
        unsafe {
            let out = out_comm(newcomm, "newcomm")?;
            let options = config::optional(config)?;
            internal::comm_split(handle(comm), color, key, out, options.as_ref())
        }
    })
}

/// Makes a communicator without some of the ranks.
///
/// # Safety
/// The pointers must be NULL or valid, the list with as many numbers as are said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommShrink(
    comm: ncclComm_t,
    excludeRanksList: *mut c_int,
    excludeRanksCount: c_int,
    newcomm: *mut ncclComm_t,
    config: *mut ncclConfig_t,
    shrinkFlags: c_int,
) -> ncclResult_t {
    entry_with_state("ncclCommShrink", comm, || {
        // SAFETY: this function's contract. The number of ranks bounds what is read of the list.
        unsafe {
            let out = out_comm(newcomm, "newcomm")?;
            let options = config::optional(config)?;
            let ranks = usize::try_from(internal::comm_count(handle(comm))?).unwrap_or(0);
            let exclude = copy_array(
                excludeRanksList,
                "excludeRanksList",
                excludeRanksCount,
                "excludeRanksCount",
                ranks.saturating_sub(1),
            )?;
            internal::comm_shrink(handle(comm), &exclude, out, options.as_ref(), shrinkFlags)
        }
    })
}

/// Finishes what is under way. NULL is nothing to do.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommFinalize(comm: ncclComm_t) -> ncclResult_t {
    ended("ncclCommFinalize", comm, internal::comm_finalize)
}

/// Frees a communicator. NULL is nothing to do.
///
/// # Safety
/// No other thread may be using it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommDestroy(comm: ncclComm_t) -> ncclResult_t {
    let destroy = |comm| internal::comm_destroy(comm).map(|()| true);
    ended("ncclCommDestroy", comm, destroy)
}

/// Stops what is under way and frees the communicator. NULL is nothing to do.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommAbort(comm: ncclComm_t) -> ncclResult_t {
    let abort = |comm| internal::comm_abort(comm).map(|()| true);
    ended("ncclCommAbort", comm, abort)
}

/// One of the functions that end a communicator, which takes its registrations with it.
fn ended(
    name: &'static str,
    comm: ncclComm_t,
    end: impl FnOnce(internal::Handle) -> Result<bool>,
) -> ncclResult_t {
    entry_with_state(name, comm, || {
        if comm.is_null() {
            return Ok(true);
        }
        let ended = end(handle(comm));
        if !internal::is_live(handle(comm)) {
            registry().forget(handle(comm));
        }
        ended
    })
}

/// Stops what is under way and keeps the communicator for a shrink and its end.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommRevoke(comm: ncclComm_t, revokeFlags: c_int) -> ncclResult_t {
    entry("ncclCommRevoke", comm, || {
        internal::comm_revoke(handle(comm), revokeFlags)
    })
}

/// How the communicator is: well, in progress, or the error that broke it.
///
/// # Safety
/// `asyncError` must be NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(
    comm: ncclComm_t,
    asyncError: *mut ncclResult_t,
) -> ncclResult_t {
    entry("ncclCommGetAsyncError", comm, || {
        // SAFETY: this function's contract.
        let out = unsafe { Out::new(asyncError, "asyncError", ncclSuccess) }?;
        out.set(result(internal::comm_async_error(handle(comm))?));
        Ok(())
    })
}

/// Writes a number that a communicator has.
///
/// # Safety
/// `out` must be NULL or valid.
unsafe fn number(
    name: &'static str,
    comm: ncclComm_t,
    out: *mut c_int,
    parameter: &str,
    ask: impl FnOnce(internal::Handle) -> Result<i32>,
) -> ncclResult_t {
    entry(name, comm, || {
        // SAFETY: this function's contract.
        let out = unsafe { Out::new(out, parameter, 0) }?;
        out.set(ask(handle(comm))?);
        Ok(())
    })
}

/// Number of ranks.
///
/// # Safety
/// `count` must be NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommCount(comm: ncclComm_t, count: *mut c_int) -> ncclResult_t {
    // SAFETY: this function's contract.
    unsafe { number("ncclCommCount", comm, count, "count", internal::comm_count) }
}

/// The device; 0, the only one, on a machine without a driver.
///
/// # Safety
/// `device` must be NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommCuDevice(comm: ncclComm_t, device: *mut c_int) -> ncclResult_t {
    let ask = |comm| internal::comm_device(comm).map(|device| device.max(0));
    // SAFETY: this function's contract.
    unsafe { number("ncclCommCuDevice", comm, device, "device", ask) }
}

/// This rank.
///
/// # Safety
/// `rank` must be NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommUserRank(comm: ncclComm_t, rank: *mut c_int) -> ncclResult_t {
    // SAFETY: this function's contract.
    unsafe {
        number(
            "ncclCommUserRank",
            comm,
            rank,
            "rank",
            internal::comm_user_rank,
        )
    }
}
