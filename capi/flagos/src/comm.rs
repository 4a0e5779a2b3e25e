//! A communicator's life.

use crate::boundary::{
    Out, SizedOut, copy_array, entry, entry_with_state, handle, null, out_comm, text_out,
    write_text,
};
use crate::config;
use crate::types::*;
use engine::internal;
use engine::{Error, Result};
use std::ffi::{CStr, c_char, c_int};
use std::mem::offset_of;
use std::ptr::null_mut;

/// The bytes of an id that the caller points to.
///
/// # Safety
/// A pointer that is not NULL must be valid for reading an id.
unsafe fn read_id(id: *const flagosUniqueId) -> Result<[u8; FLAGOS_UNIQUE_ID_BYTES]> {
    if id.is_null() {
        return Err(null("id"));
    }
    // SAFETY: not NULL, so valid by this function's contract; bytes have no alignment.
    Ok(unsafe { id.cast::<[u8; FLAGOS_UNIQUE_ID_BYTES]>().read() })
}

/// A number of ranks that a communicator can have.
fn ranks(number: c_int, parameter: &str) -> Result<usize> {
    usize::try_from(number)
        .ok()
        .filter(|number| (1..=FLAGOS_MAX_RANKS).contains(number))
        .ok_or_else(|| {
            Error::invalid_argument(format!(
                "{parameter} is {number}, outside 1..={FLAGOS_MAX_RANKS}"
            ))
        })
}

/// Makes an id that names one communicator to be, and serves its rendezvous from the calling
/// process. Call it on one rank and give the id to all ranks by any means.
///
/// The process must live until all ranks have joined. The id serves one communicator. It touches
/// neither a driver nor a vendor's library. It costs one descriptor and one small thread until the
/// communicator is made; an id that nobody uses is given up after ten times the init deadline.
///
/// @param id  receives 256 bytes; all zero on failure. Not NULL.
///
/// Threads: any, at any time. Not affected by an open group.
///
/// @return flagosSuccess; flagosInvalidArgument if id is NULL; flagosSystemError if no socket can be
/// opened or no network interface fits FLAGOSCOMM_SOCKET_IFNAME; flagosInternalError.
///
/// Semantics: NCCL's, with FlagCX's size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosGetUniqueId(id: *mut flagosUniqueId) -> flagosResult_t {
    entry("flagosGetUniqueId", null_mut(), || {
        // SAFETY: the header's contract. Bytes have no alignment.
        let out = unsafe {
            Out::new(
                id.cast::<[u8; FLAGOS_UNIQUE_ID_BYTES]>(),
                "id",
                [0; FLAGOS_UNIQUE_ID_BYTES],
            )
        }?;
        out.set(internal::get_unique_id()?);
        Ok(())
    })
}

/// Joins the communicator that an id names, as one of its ranks. All nranks ranks must call it. They
/// agree on one tier (the vendor's library, FlagCX, or the embedded host tier), or all get the same
/// error.
///
/// The communicator is bound to the device that the driver says is current on the calling thread.
/// Destroy it with flagosCommDestroy.
///
/// In a group the call only records: *comm is NULL until the outermost flagosGroupEnd writes it, so
/// comm must stay valid until then. One thread can own several ranks this way.
///
/// @param comm    receives the communicator; NULL on failure. Not NULL.
/// @param nranks  number of ranks, 1 to FLAGOS_MAX_RANKS, the same on all of them.
/// @param id      the id of flagosGetUniqueId. Not NULL. Only its first 128 bytes matter.
/// @param rank    this rank, 0 to nranks-1, each once.
///
/// Threads: any; several inits may run at once.
///
/// @return flagosSuccess; flagosInvalidArgument (a NULL, nranks or rank out of range, an id that is not
/// one); flagosInvalidUsage (the ranks disagree: nranks, versions, a rank twice; the text names the odd
/// rank. Or nobody serves the id any more: it was used before, or the process that made it has ended);
/// flagosTimeout (the text names the missing ranks); flagosRemoteError (another rank failed);
/// flagosNotSupported (no tier that is allowed works; the text says why for each);
/// flagosUnhandledDeviceError, flagosUnboundDevice, flagosUnhandledCclError, flagosSystemError,
/// flagosInternalError.
///
/// Semantics: NCCL's; the agreement is this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosCommInitRank(
    comm: *mut flagosComm_t,
    nranks: c_int,
    id: *const flagosUniqueId,
    rank: c_int,
) -> flagosResult_t {
    entry_with_state("flagosCommInitRank", null_mut(), || {
        // SAFETY: the header's contract.
        unsafe {
            let out = out_comm(comm, "comm")?;
            let ids = [read_id(id)?];
            internal::comm_init_rank(out, nranks, &ids, rank, &Default::default())
        }
    })
}

/// flagosCommInitRank with options. All ranks should pass the same ones; where they must agree and
/// do not, all get flagosInvalidUsage.
///
/// With blocking = 0 it returns flagosInProgress at once and *comm is valid: poll
/// flagosCommGetAsyncError until it says flagosSuccess; until then only that call and
/// flagosCommAbort are legal.
///
/// @param comm    receives the communicator; NULL on failure. Not NULL.
/// @param nranks  number of ranks, 1 to FLAGOS_MAX_RANKS.
/// @param id      the id of flagosGetUniqueId. Not NULL.
/// @param rank    this rank, 0 to nranks-1.
/// @param config  the options; NULL is none. Copied by the call.
///
/// Threads and groups: as flagosCommInitRank.
///
/// @return what flagosCommInitRank returns; flagosInProgress (see above); flagosInvalidArgument also
/// for a config that is not initialised or a field out of range; flagosNotSupported also for a config
/// of a newer header that sets what this library does not have.
///
/// Semantics: NCCL's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosCommInitRankConfig(
    comm: *mut flagosComm_t,
    nranks: c_int,
    id: *const flagosUniqueId,
    rank: c_int,
    config: *const flagosConfig_t,
) -> flagosResult_t {
    entry_with_state("flagosCommInitRankConfig", null_mut(), || {
        // SAFETY: the header's contract.
        unsafe {
            let out = out_comm(comm, "comm")?;
            let ids = [read_id(id)?];
            let options = config::optional(config)?.unwrap_or_default();
            internal::comm_init_rank(out, nranks, &ids, rank, &options)
        }
    })
}

/// flagosCommInitRankConfig with several ids, whose processes share the work of the rendezvous. For
/// jobs of thousands of ranks. All ranks pass the same ids in the same order.
///
/// @param comm    receives the communicator; NULL on failure. Not NULL.
/// @param nranks  number of ranks, 1 to FLAGOS_MAX_RANKS.
/// @param myrank  this rank, 0 to nranks-1.
/// @param nId     number of ids, 1 to nranks.
/// @param ids     nId ids. Not NULL. Read during the call only.
/// @param config  the options; NULL is none.
///
/// Threads and groups: as flagosCommInitRank.
///
/// @return what flagosCommInitRankConfig returns; flagosInvalidArgument also if nId is out of range.
///
/// Semantics: NCCL's ncclCommInitRankScalable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosCommInitRankScalable(
    comm: *mut flagosComm_t,
    nranks: c_int,
    myrank: c_int,
    nId: c_int,
    ids: *const flagosUniqueId,
    config: *const flagosConfig_t,
) -> flagosResult_t {
    entry_with_state("flagosCommInitRankScalable", null_mut(), || {
        // SAFETY: the header's contract.
        unsafe {
            let out = out_comm(comm, "comm")?;
            let limit = ranks(nranks, "nranks")?;
            if nId < 1 {
                return Err(Error::invalid_argument(format!(
                    "nId is {nId}: at least one id is needed"
                )));
            }
            let ids = ids.cast::<[u8; FLAGOS_UNIQUE_ID_BYTES]>();
            let ids = copy_array(ids, "ids", nId, "nId", limit)?;
            let options = config::optional(config)?.unwrap_or_default();
            internal::comm_init_rank(out, nranks, &ids, myrank, &options)
        }
    })
}

/// Makes all ranks of a communicator in the calling process, one per device: comms[i] is rank i on
/// devlist[i]. Nobody else takes part, and no id is needed.
///
/// One thread that owns several ranks must put the calls of one operation into a group.
///
/// @param comms    receives ndev communicators; all NULL on failure. Not NULL.
/// @param ndev     number of ranks, 1 to FLAGOS_MAX_RANKS.
/// @param devlist  ndev device indices; NULL is 0, 1, ..., ndev-1. On a machine without a driver the
///                 indices only count.
///
/// Threads: any. In a group it is refused with flagosInvalidUsage: it is a group of its own.
///
/// @return flagosSuccess; flagosInvalidArgument (a NULL, ndev out of range, a device that does not
/// exist); flagosInvalidUsage (inside a group; a device twice on a vendor that takes each once);
/// flagosNotSupported, flagosTimeout, flagosUnhandledDeviceError, flagosUnhandledCclError,
/// flagosSystemError, flagosInternalError as in flagosCommInitRank.
///
/// Semantics: NCCL's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosCommInitAll(
    comms: *mut flagosComm_t,
    ndev: c_int,
    devlist: *const c_int,
) -> flagosResult_t {
    entry("flagosCommInitAll", null_mut(), || {
        // SAFETY: the header's contract; nothing behind the first handle is touched before `ndev`
        // is known to be sane.
        unsafe {
            let out = out_comm(comms, "comms")?;
            let count = ranks(ndev, "ndev")?;
            for i in 0..count {
                out.add(i).write_unaligned(0);
            }
            let devices = if devlist.is_null() {
                None
            } else {
                Some(copy_array(devlist, "devlist", ndev, "ndev", count)?)
            };
            internal::comm_init_all(out, ndev, devices.as_deref(), &Default::default())
        }
    })
}

/// Splits a communicator: the ranks that pass the same colour form a new one, in the order of key and
/// then of their old rank. All ranks of comm must call it, also those that pass no colour. The new
/// communicator does not depend on the life of the old one.
///
/// @param comm     the communicator to split. It stays usable.
/// @param color    the colour, not negative; FLAGOS_SPLIT_NOCOLOR to take part in none, which makes
///                 *newcomm NULL and the call succeed.
/// @param key      orders the ranks of a colour.
/// @param newcomm  receives the communicator; NULL on failure. Not NULL.
/// @param config   the options; NULL takes those of comm.
///
/// Threads: not while another call runs on comm, flagosCommAbort excepted. In a group *newcomm is
/// written by the outermost flagosGroupEnd.
///
/// @return what flagosCommInitRankConfig returns; flagosInvalidArgument also if comm is no live
/// communicator; flagosInvalidUsage also if another split of comm is under way or comm has failed;
/// flagosAborted.
///
/// Semantics: NCCL's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosCommSplit(
    comm: flagosComm_t,
    color: c_int,
    key: c_int,
    newcomm: *mut flagosComm_t,
    config: *const flagosConfig_t,
) -> flagosResult_t {
    entry_with_state("flagosCommSplit", comm, || {
        // SAFETY: the header's contract.
        unsafe {
            let out = out_comm(newcomm, "newcomm")?;
            let options = config::optional(config)?;
            internal::comm_split(handle(comm), color, key, out, options.as_ref())
        }
    })
}

/// Makes a communicator without some ranks of an old one, for example those that died. The ranks that
/// stay call it, all with the same list; the excluded ones do not. Ranks keep their order.
///
/// @param comm                the old communicator.
/// @param excludeRanksList    excludeRanksCount ranks of comm, each once. Not NULL.
/// @param excludeRanksCount   1 to the number of ranks less one. For the same ranks again there is
///                            flagosCommSplit.
/// @param newcomm             receives the communicator; NULL on failure. Not NULL.
/// @param config              the options; NULL takes those of comm.
/// @param shrinkFlags         FLAGOS_SHRINK_DEFAULT: comm is healthy and stays usable.
///                            FLAGOS_SHRINK_ABORT: what runs on comm is aborted first; afterwards comm
///                            is only good for flagosCommDestroy and flagosCommAbort.
///
/// Those that stay meet without the others: on one machine through a name of its network namespace, between
/// machines over TCP, at the address by which the first of them had reached the others, on one of 16 ports between
/// 10240 and 32767.
///
/// Threads: not while another call runs on comm, flagosCommAbort excepted. In a group *newcomm is
/// written by the outermost flagosGroupEnd.
///
/// @return what flagosCommSplit returns; flagosInvalidArgument also for an empty list, for one that names a
/// rank that does not exist, a rank twice or the caller, and for unknown flags; flagosTimeout (after the
/// init deadline; the text names the ranks that have not called it, by their numbers in comm).
///
/// Semantics: NCCL's ncclCommShrink.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosCommShrink(
    comm: flagosComm_t,
    excludeRanksList: *const c_int,
    excludeRanksCount: c_int,
    newcomm: *mut flagosComm_t,
    config: *const flagosConfig_t,
    shrinkFlags: c_int,
) -> flagosResult_t {
    entry_with_state("flagosCommShrink", comm, || {
        // SAFETY: the header's contract. The number of ranks bounds what is read of the list.
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

/// Lets all ranks of a communicator agree on something of the caller's, for example whether each of them
/// can go a faster way: every rank gives a level and a reason, and all get the same answer, the lowest
/// level, each rank's, and a text with the ranks and their reasons. Collective, over the control
/// connections: it touches neither devices nor the vendor's library, and works while streams are captured.
///
/// A usual scale is 1 for yes, 0 for not now and -1 for never: then the answer is yes only if all ranks
/// say so. What a rank wants to stop asking for has to be agreed on first: it may leave a later call out
/// only because of an answer, since all ranks have that one.
///
/// @param comm    the communicator. It stays usable.
/// @param level   this rank's level, any number.
/// @param reason  why, in words, for the text; what is beyond 1023 bytes is cut. NULL is none.
/// @param lowest  receives the lowest level of all ranks; 0 on failure. Not NULL.
/// @param levels  receives each rank's level, by rank: as many as comm has ranks; untouched on failure. NULL
///                is allowed.
/// @param text    receives which ranks gave which level and why, the lowest level first, cut to fit and
///                always terminated; empty if all gave the same level and none a reason. The same on all
///                ranks. NULL only with size 0.
/// @param size    bytes of text.
/// @param needed  receives the bytes of the whole text with its zero; 0 on failure. NULL is allowed.
///
/// A text that is not empty and differs from the last one is also logged, at INFO on rank 0.
///
/// Threads: not while another call runs on comm, flagosCommAbort excepted. In a group it is refused.
///
/// @return flagosSuccess; flagosInvalidArgument (lowest is NULL, text is NULL with a size, no live
/// communicator; the other ranks are not told); flagosInvalidUsage (in a group; init is not finished; comm
/// is finalized; another call over the control connections, a split say, is under way on comm here or on another rank;
/// an operation there is not seen, and ends this call by its deadline);
/// flagosTimeout (after the init deadline; the text names the missing ranks); flagosRemoteError (a rank
/// died or left); flagosAborted; what comm has failed with before; flagosInternalError. After
/// flagosTimeout, flagosRemoteError and different calls comm can't agree or split any more.
///
/// Semantics: this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosCommAgree(
    comm: flagosComm_t,
    level: c_int,
    reason: *const c_char,
    lowest: *mut c_int,
    levels: *mut c_int,
    text: *mut c_char,
    size: usize,
    needed: *mut usize,
) -> flagosResult_t {
    entry("flagosCommAgree", comm, || {
        // SAFETY: the header's contract; a communicator has as many ranks as it has levels, which are
        // written as bytes since nothing is known about the alignment.
        unsafe {
            let out = Out::new(lowest, "lowest", 0);
            let agree = || {
                let out = out?;
                // Nothing is followed before the communicator is known to be one.
                internal::comm_count(handle(comm))?;
                let reason = match reason.is_null() {
                    true => String::new(),
                    false => CStr::from_ptr(reason).to_string_lossy().into_owned(),
                };
                let agreement = internal::comm_agree(handle(comm), level, &reason)?;
                out.set(agreement.lowest);
                if !levels.is_null() {
                    for (rank, level) in agreement.levels.iter().enumerate() {
                        levels.add(rank).write_unaligned(*level);
                    }
                }
                Ok(agreement.text)
            };
            if text.is_null() && size == 0 && needed.is_null() {
                agree().map(drop)
            } else {
                text_out(text, size, needed, agree)
            }
        }
    })
}

/// Finishes what is under way on a communicator, on all ranks. Collective. Afterwards only queries,
/// flagosCommDestroy and flagosCommAbort are legal on it. Needed only where ranks end at very
/// different times; flagosCommDestroy alone is enough otherwise. With blocking = 0 it goes on in the
/// background, and flagosCommGetAsyncError tells when it is over.
///
/// @param comm  the communicator.
///
/// Threads: not while another call runs on comm, flagosCommAbort excepted. Not in a group.
///
/// @return flagosSuccess; flagosInProgress (blocking = 0); flagosInvalidArgument (no live
/// communicator); flagosInvalidUsage (in a group; called twice); flagosTimeout, flagosRemoteError,
/// flagosAborted, flagosUnhandledDeviceError, flagosUnhandledCclError, flagosInternalError.
///
/// Semantics: NCCL's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosCommFinalize(comm: flagosComm_t) -> flagosResult_t {
    entry_with_state("flagosCommFinalize", comm, || {
        internal::comm_finalize(handle(comm))
    })
}

/// Frees a communicator. Local: it waits for this rank's work, no longer than the destroy limit, and
/// not for other ranks. The handle is invalid afterwards, whatever the result; a second call is
/// flagosInvalidArgument. A vendor's destroy that waits for that of the other ranks (Cambricon's) ends at the
/// limit too, with flagosTimeout.
///
/// The ranks may call it at any time after the same number of collectives. One that makes more waits in
/// vain, and its flagosCommGetAsyncError says so. A collective in a graph counts when it is captured and not
/// when it is replayed, so where some ranks replay what others call, all should have finished before one
/// leaves.
///
/// @param comm  the communicator.
///
/// Threads: not while another call runs on comm. Not in a group that has used comm.
///
/// @return flagosSuccess; flagosInvalidArgument (NULL or no live communicator); flagosInvalidUsage (in
/// a group that has used it); flagosTimeout (freed by force); flagosUnhandledDeviceError,
/// flagosUnhandledCclError, flagosInternalError.
///
/// Semantics: NCCL's, but NULL is refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosCommDestroy(comm: flagosComm_t) -> flagosResult_t {
    entry("flagosCommDestroy", comm, || {
        internal::comm_destroy(handle(comm))
    })
}

/// Ends everything on a communicator and frees it. Calls that other threads have under way on it
/// return flagosAborted; other ranks get flagosRemoteError or flagosAborted. The handle is invalid
/// afterwards, whatever the result.
///
/// @param comm  the communicator.
///
/// Threads: any, at any time, also while other calls run on comm, init included.
///
/// @return flagosSuccess; flagosInvalidArgument (NULL or no live communicator); flagosTimeout (the
/// vendor's abort did not return; what it holds is leaked); flagosUnhandledCclError,
/// flagosInternalError.
///
/// Semantics: NCCL's, but NULL is refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosCommAbort(comm: flagosComm_t) -> flagosResult_t {
    entry("flagosCommAbort", comm, || {
        internal::comm_abort(handle(comm))
    })
}

/// Ends everything on a communicator but keeps it for flagosCommShrink, flagosCommSplit,
/// flagosCommDestroy and flagosCommAbort. Local: on the host tier the calls of other ranks that wait for this one end
/// with flagosRemoteError and a text that names it, between machines once the ranks that pass it on are in a call, too
/// (with FLAGOSCOMM_LIVENESS at once); on a vendor's library the others find out by their own failure or by their own
/// call. Calls that this rank has under way return flagosAborted, later ones flagosInvalidUsage.
///
/// @param comm         the communicator.
/// @param revokeFlags  FLAGOS_REVOKE_DEFAULT.
///
/// Threads: any, also while operations run on comm.
///
/// @return flagosSuccess; flagosInProgress (blocking = 0); flagosInvalidArgument (no live
/// communicator, unknown flags); flagosNotSupported (the tier can't); flagosUnhandledCclError,
/// flagosInternalError.
///
/// Semantics: NCCL's ncclCommRevoke.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosCommRevoke(
    comm: flagosComm_t,
    revokeFlags: c_int,
) -> flagosResult_t {
    entry("flagosCommRevoke", comm, || {
        internal::comm_revoke(handle(comm), revokeFlags)
    })
}

/// Gives back device resources of a communicator until flagosCommResume. Call it on all ranks, with
/// nothing under way.
///
/// @param comm          the communicator.
/// @param suspendFlags  FLAGOS_SUSPEND_MEM.
///
/// Threads: not while another call runs on comm, flagosCommAbort excepted.
///
/// @return flagosSuccess; flagosInvalidArgument (no live communicator, unknown flags);
/// flagosInvalidUsage (suspended already); flagosNotSupported (the tier can't);
/// flagosUnhandledCclError, flagosInternalError.
///
/// Semantics: NCCL's ncclCommSuspend.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosCommSuspend(
    comm: flagosComm_t,
    suspendFlags: c_int,
) -> flagosResult_t {
    entry("flagosCommSuspend", comm, || {
        internal::comm_suspend(handle(comm), suspendFlags)
    })
}

/// Takes back what flagosCommSuspend gave away. Call it on all ranks.
///
/// @param comm  the communicator.
///
/// Threads: not while another call runs on comm, flagosCommAbort excepted.
///
/// @return flagosSuccess; flagosInvalidArgument (no live communicator); flagosInvalidUsage (not
/// suspended); flagosNotSupported (the tier can't); flagosUnhandledCclError, flagosInternalError.
///
/// Semantics: NCCL's ncclCommResume.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosCommResume(comm: flagosComm_t) -> flagosResult_t {
    entry("flagosCommResume", comm, || {
        internal::comm_resume(handle(comm))
    })
}

/// Tells how a communicator is, without waiting: flagosSuccess, flagosInProgress while a call that
/// does not block is under way, or the error that broke it: flagosRemoteError when a rank has died or
/// aborted, when the vendor's library has failed on it, or when it has destroyed its communicator after
/// fewer collectives than this rank has made. After an error only queries, flagosCommRevoke, flagosCommShrink, flagosCommDestroy and flagosCommAbort
/// are of use; flagosGetLastError has the text.
///
/// @param comm        the communicator.
/// @param asyncError  receives the state; flagosSuccess on failure of this call. Not NULL.
///
/// Threads: any, also while operations run on comm.
///
/// @return flagosSuccess (look at *asyncError); flagosInvalidArgument (asyncError is NULL, no live
/// communicator); flagosInternalError.
///
/// Semantics: NCCL's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosCommGetAsyncError(
    comm: flagosComm_t,
    asyncError: *mut flagosResult_t,
) -> flagosResult_t {
    entry("flagosCommGetAsyncError", comm, || {
        // SAFETY: the header's contract.
        let out = unsafe { Out::new(asyncError, "asyncError", 0) }?;
        out.set(internal::comm_async_error(handle(comm))?);
        Ok(())
    })
}

/// Number of ranks of a communicator.
///
/// @param comm   the communicator.
/// @param count  receives the number; 0 on failure. Not NULL.
///
/// Threads: any, also while operations run on comm.
///
/// @return flagosSuccess; flagosInvalidArgument (count is NULL, no live communicator);
/// flagosInvalidUsage (init is not finished); flagosInternalError.
///
/// Semantics: NCCL's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosCommCount(comm: flagosComm_t, count: *mut c_int) -> flagosResult_t {
    entry("flagosCommCount", comm, || {
        // SAFETY: the header's contract.
        let out = unsafe { Out::new(count, "count", 0) }?;
        out.set(internal::comm_count(handle(comm))?);
        Ok(())
    })
}

/// Rank of the caller in a communicator.
///
/// @param comm  the communicator.
/// @param rank  receives the rank; 0 on failure. Not NULL.
///
/// Threads: any, also while operations run on comm.
///
/// @return as flagosCommCount.
///
/// Semantics: NCCL's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosCommUserRank(
    comm: flagosComm_t,
    rank: *mut c_int,
) -> flagosResult_t {
    entry("flagosCommUserRank", comm, || {
        // SAFETY: the header's contract.
        let out = unsafe { Out::new(rank, "rank", 0) }?;
        out.set(internal::comm_user_rank(handle(comm))?);
        Ok(())
    })
}

/// Device that a communicator is bound to.
///
/// @param comm    the communicator.
/// @param device  receives the index, -1 without a driver; 0 on failure. Not NULL.
///
/// Threads: any, also while operations run on comm.
///
/// @return as flagosCommCount.
///
/// Semantics: NCCL's ncclCommCuDevice, FlagCX's flagcxCommGetDeviceNumber.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosCommGetDeviceNumber(
    comm: flagosComm_t,
    device: *mut c_int,
) -> flagosResult_t {
    entry("flagosCommGetDeviceNumber", comm, || {
        // SAFETY: the header's contract.
        let out = unsafe { Out::new(device, "device", 0) }?;
        out.set(internal::comm_device(handle(comm))?);
        Ok(())
    })
}

/// Name of a communicator: that of its config, or one that the library made.
///
/// @param comm    the communicator.
/// @param buffer  receives the name, cut to fit and always terminated. NULL only with size 0.
/// @param size    bytes of buffer.
/// @param needed  receives the bytes of the whole name with its zero; 0 on failure. May be NULL if
///                buffer is not.
///
/// Threads: any, also while operations run on comm.
///
/// @return flagosSuccess, also when it was cut; flagosInvalidArgument (a NULL that is not allowed, no
/// live communicator); flagosInternalError.
///
/// Semantics: this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosCommGetName(
    comm: flagosComm_t,
    buffer: *mut c_char,
    size: usize,
    needed: *mut usize,
) -> flagosResult_t {
    entry("flagosCommGetName", comm, || {
        // SAFETY: the header's contract.
        unsafe { text_out(buffer, size, needed, || internal::comm_name(handle(comm))) }
    })
}

/// Tells what a communicator runs on: tier, vendor, library and its version, whose streams it takes,
/// and when its operations are complete. Fixed from init to the end.
///
/// @param comm  the communicator.
/// @param info  in: its size (FLAGOS_COMM_INFO_INITIALIZER); out: the answer, all zero behind size on
///              failure. Not NULL.
///
/// Threads: any, also while operations run on comm.
///
/// @return flagosSuccess; flagosInvalidArgument (info is NULL or its size is wrong, no live
/// communicator); flagosInvalidUsage (init is not finished); flagosInternalError.
///
/// Semantics: this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosCommGetInfo(
    comm: flagosComm_t,
    info: *mut flagosCommInfo_t,
) -> flagosResult_t {
    entry("flagosCommGetInfo", comm, || {
        // SAFETY: the header's contract.
        let out = unsafe {
            SizedOut::new(
                info,
                "info",
                "FLAGOS_COMM_INFO_INITIALIZER",
                // The first header's struct ended here.
                offset_of!(flagosCommInfo_t, hostEngine),
            )
        }?;
        let found = internal::comm_info(handle(comm))?;
        let mut answer = flagosCommInfo_t {
            size: out.size(),
            tier: found.tier,
            streamKind: found.stream_kind,
            completion: found.completion,
            libraryVersion: found.library_version,
            vendor: [0; FLAGOS_MAX_VENDOR_BYTES],
            libraryPath: [0; FLAGOS_MAX_PATH_BYTES],
            hostEngine: [0; FLAGOS_MAX_ENGINE_BYTES],
            hostEngineText: [0; FLAGOS_MAX_PATH_BYTES],
        };
        let texts: [(&mut [c_char], &str); 4] = [
            (&mut answer.vendor, &found.vendor),
            (&mut answer.libraryPath, &found.library_path),
            (&mut answer.hostEngine, &found.host_engine),
            (&mut answer.hostEngineText, &found.host_engine_text),
        ];
        for (place, text) in texts {
            // SAFETY: the place has the size that is given.
            unsafe { write_text(place.as_mut_ptr(), place.len(), text) };
        }
        out.set(&answer);
        Ok(())
    })
}
