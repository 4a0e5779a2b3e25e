//! `flagcxCCLAdaptorPlugin_v1`: FlagCX's homogeneous communicators. The communicator, which FlagCX passes on without
//! looking at it, is one of this library's handles.

use super::Table;
use crate::boundary::{Out, handle, not_null, null, out_comm, value};
use crate::flagcx_abi::handles::lock;
use crate::flagcx_abi::operations::operations;
use crate::flagcx_abi::skin::{
    Checked, SUSPEND_MEMORY, entry, entry_with_state, live, operation, read_id, state, words,
};
use crate::flagcx_abi::types::*;
use engine::internal::{Handle, PerProcess};
use engine::{Caller, Error, Options, internal};
use std::collections::{HashMap, HashSet};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

type R = flagcxResult_t;
type Comm = flagcxComm_t;
type Stream = flagcxStream_t;
type DataType = flagcxDataType_t;
type RedOp = flagcxRedOp_t;

/// FlagCX's table. Every field has to be there.
#[repr(C)]
pub struct flagcxCCLAdaptor_v1 {
    name: *const c_char,
    getVersion: unsafe extern "C" fn(*mut c_int) -> R,
    getUniqueId: unsafe extern "C" fn(*mut *mut flagcxUniqueId) -> R,
    getErrorString: unsafe extern "C" fn(R) -> *const c_char,
    getLastError: unsafe extern "C" fn(Comm) -> *const c_char,
    getStagedBuffer: unsafe extern "C" fn(Comm, *mut *mut c_void, usize, c_int) -> R,
    commInitRank:
        unsafe extern "C" fn(*mut Comm, c_int, *const flagcxUniqueId, c_int, *mut c_void) -> R,
    commFinalize: unsafe extern "C" fn(Comm) -> R,
    commDestroy: unsafe extern "C" fn(Comm) -> R,
    commAbort: unsafe extern "C" fn(Comm) -> R,
    commResume: unsafe extern "C" fn(Comm) -> R,
    commSuspend: unsafe extern "C" fn(Comm) -> R,
    commCount: unsafe extern "C" fn(Comm, *mut c_int) -> R,
    commGetDeviceNumber: unsafe extern "C" fn(Comm, *mut c_int) -> R,
    commUserRank: unsafe extern "C" fn(Comm, *mut c_int) -> R,
    commGetAsyncError: unsafe extern "C" fn(Comm, *mut R) -> R,
    memAlloc: unsafe extern "C" fn(*mut *mut c_void, usize) -> R,
    memFree: unsafe extern "C" fn(*mut c_void) -> R,
    commRegister: unsafe extern "C" fn(Comm, *mut c_void, usize, *mut *mut c_void) -> R,
    commDeregister: unsafe extern "C" fn(Comm, *mut c_void) -> R,
    commWindowRegister:
        unsafe extern "C" fn(Comm, *mut c_void, usize, *mut *mut c_void, c_int) -> R,
    commWindowDeregister: unsafe extern "C" fn(Comm, *mut c_void) -> R,
    reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        DataType,
        RedOp,
        c_int,
        Comm,
        Stream,
    ) -> R,
    gather: Rooted,
    scatter: Rooted,
    broadcast: Rooted,
    allReduce: Reducing,
    reduceScatter: Reducing,
    allGather: Moving,
    alltoAll: Moving,
    alltoAllv: unsafe extern "C" fn(
        *const c_void,
        *mut usize,
        *mut usize,
        *mut c_void,
        *mut usize,
        *mut usize,
        DataType,
        Comm,
        Stream,
    ) -> R,
    send: unsafe extern "C" fn(*const c_void, usize, DataType, c_int, Comm, Stream) -> R,
    recv: unsafe extern "C" fn(*mut c_void, usize, DataType, c_int, Comm, Stream) -> R,
    groupStart: unsafe extern "C" fn() -> R,
    groupEnd: unsafe extern "C" fn() -> R,
}
type Rooted =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, DataType, c_int, Comm, Stream) -> R;
type Reducing =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, DataType, RedOp, Comm, Stream) -> R;
type Moving = unsafe extern "C" fn(*const c_void, *mut c_void, usize, DataType, Comm, Stream) -> R;
const _: () = assert!(size_of::<flagcxCCLAdaptor_v1>() == 35 * size_of::<usize>());

/// What FlagCX looks up.
#[unsafe(no_mangle)]
pub static flagcxCCLAdaptorPlugin_v1: Table<flagcxCCLAdaptor_v1> = Table(flagcxCCLAdaptor_v1 {
    name: c"FLAGOS".as_ptr(),
    getVersion,
    getUniqueId,
    getErrorString,
    getLastError,
    getStagedBuffer,
    commInitRank,
    commFinalize,
    commDestroy,
    commAbort,
    commResume,
    commSuspend,
    commCount,
    commGetDeviceNumber,
    commUserRank,
    commGetAsyncError,
    memAlloc,
    memFree,
    commRegister,
    commDeregister,
    commWindowRegister,
    commWindowDeregister,
    reduce,
    gather,
    scatter,
    broadcast,
    allReduce,
    reduceScatter,
    allGather,
    alltoAll,
    alltoAllv,
    send,
    recv,
    groupStart,
    groupEnd,
});

/// A function's name in errors.
macro_rules! named {
    ($field:ident) => {
        concat!("flagcxCCLAdaptorPlugin_v1.", stringify!($field))
    };
}

/// The version of this library, not the vendor's.
unsafe extern "C" fn getVersion(version: *mut c_int) -> R {
    entry(named!(getVersion), null_mut(), || {
        // SAFETY: FlagCX's promise.
        let out = unsafe { Out::new(version, "version", 0) }?;
        out.set(internal::version_code());
        Ok(())
    })
}

/// Called on the first rank only; FlagCX takes the id to the others. It has room for 256 bytes in every version of
/// FlagCX, for 4120 in newer ones.
unsafe extern "C" fn getUniqueId(uniqueId: *mut *mut flagcxUniqueId) -> R {
    entry(named!(getUniqueId), null_mut(), || {
        if uniqueId.is_null() {
            return Err(null("uniqueId"));
        }
        // SAFETY: FlagCX's promise, about the place and about what it holds. Bytes have no alignment.
        let out = unsafe {
            Out::new(
                uniqueId
                    .read_unaligned()
                    .cast::<[u8; FLAGCX_UNIQUE_ID_BYTES]>(),
                "*uniqueId",
                [0; FLAGCX_UNIQUE_ID_BYTES],
            )
        }?;
        out.set(internal::get_unique_id()?);
        Ok(())
    })
}

unsafe extern "C" fn getErrorString(result: R) -> *const c_char {
    value(named!(getErrorString), c"internal error".as_ptr(), || {
        words(result).as_ptr()
    })
}

unsafe extern "C" fn getLastError(comm: Comm) -> *const c_char {
    value(named!(getLastError), c"internal error".as_ptr(), || {
        internal::last_error(handle(comm))
    })
}

/// Buffers of FlagCX's host-side adaptors, which it asks no device-side adaptor for.
unsafe extern "C" fn getStagedBuffer(
    comm: Comm,
    buff: *mut *mut c_void,
    _size: usize,
    _isRecv: c_int,
) -> R {
    entry(named!(getStagedBuffer), comm, || {
        // SAFETY: FlagCX's promise.
        unsafe { Out::new(buff, "buff", null_mut()) }?;
        live(comm)?;
        Err(Error::not_supported(
            "there are no staging buffers to hand out: device buffers are passed to the vendor's library",
        ))
    })
}

/// Inits that FlagCX has made here, or put into a group.
pub(crate) fn communicators() -> &'static AtomicU64 {
    static COUNT: PerProcess<AtomicU64> = PerProcess::new();
    COUNT.get_or_init(AtomicU64::default)
}

unsafe extern "C" fn commInitRank(
    comm: *mut Comm,
    nranks: c_int,
    commId: *const flagcxUniqueId,
    rank: c_int,
    // FlagCX's own channel between the ranks. It passes NULL here, and what is behind it is no interface.
    _bootstrap: *mut c_void,
) -> R {
    entry_with_state(named!(commInitRank), null_mut(), || {
        let options = Options {
            blocking: Some(true),
            caller: Caller::FlagcxPlugin,
            ..Options::default()
        };
        // SAFETY: FlagCX's promise.
        let made = unsafe {
            let out = out_comm(comm, "comm")?;
            let ids = [read_id(commId)?];
            internal::comm_init_rank(out, nranks, &ids, rank, &options)
        };
        match &made {
            Ok(_) => {
                communicators().fetch_add(1, Ordering::Relaxed);
                log::info!("FlagCX has joined rank {rank} of {nranks} through its plugin");
            }
            // FlagCX passes the number on and drops the words.
            Err(error) => log::warn!("FlagCX's rank {rank} of {nranks} was not joined: {error}"),
        }
        made
    })
}

unsafe extern "C" fn commFinalize(comm: Comm) -> R {
    entry(named!(commFinalize), comm, || {
        internal::comm_finalize(handle(comm)).map(drop)
    })
}

/// What FlagCX still has in its hands.
#[derive(Default)]
struct Kept {
    /// Communicators that it has aborted and not destroyed yet.
    aborted: HashSet<Handle>,
    /// Registrations of its communicators, and how often each was given out.
    registrations: HashMap<(Handle, usize), usize>,
}

fn kept() -> MutexGuard<'static, Kept> {
    static KEPT: PerProcess<Mutex<Kept>> = PerProcess::new();
    lock(KEPT.get_or_init(Mutex::default))
}

impl Kept {
    /// Takes a registration back, if it is a live one.
    fn deregister(&mut self, comm: Handle, registration: *mut c_void) -> bool {
        let key = (comm, registration.addr());
        let Some(uses) = self.registrations.get_mut(&key) else {
            return false;
        };
        *uses -= 1;
        if *uses == 0 {
            self.registrations.remove(&key);
        }
        true
    }

    /// A communicator that is gone takes its registrations with it.
    fn forget(&mut self, comm: Handle) {
        self.registrations.retain(|(of, _), _| *of != comm);
    }
}

/// After an abort there is nothing left to free, but FlagCX frees its own part only behind a destroy that succeeds.
unsafe extern "C" fn commDestroy(comm: Comm) -> R {
    entry(named!(commDestroy), comm, || {
        let comm = handle(comm);
        if kept().aborted.remove(&comm) {
            return Ok(());
        }
        let was_live = internal::is_live(comm);
        let ended = internal::comm_destroy(comm);
        if was_live && !internal::is_live(comm) {
            kept().forget(comm);
        }
        ended
    })
}

unsafe extern "C" fn commAbort(comm: Comm) -> R {
    entry(named!(commAbort), comm, || {
        let comm = handle(comm);
        let was_live = internal::is_live(comm);
        let ended = internal::comm_abort(comm);
        if was_live && !internal::is_live(comm) {
            let mut kept = kept();
            kept.forget(comm);
            kept.aborted.insert(comm);
        }
        ended
    })
}

unsafe extern "C" fn commResume(comm: Comm) -> R {
    entry(named!(commResume), comm, || {
        internal::comm_resume(handle(comm))
    })
}

unsafe extern "C" fn commSuspend(comm: Comm) -> R {
    entry(named!(commSuspend), comm, || {
        internal::comm_suspend(handle(comm), SUSPEND_MEMORY)
    })
}

unsafe extern "C" fn commCount(comm: Comm, count: *mut c_int) -> R {
    entry(named!(commCount), comm, || {
        // SAFETY: FlagCX's promise.
        let out = unsafe { Out::new(count, "count", 0) }?;
        out.set(internal::comm_count(handle(comm))?);
        Ok(())
    })
}

unsafe extern "C" fn commGetDeviceNumber(comm: Comm, device: *mut c_int) -> R {
    entry(named!(commGetDeviceNumber), comm, || {
        // SAFETY: FlagCX's promise.
        let out = unsafe { Out::new(device, "device", 0) }?;
        out.set(internal::comm_device(handle(comm))?.max(0));
        Ok(())
    })
}

unsafe extern "C" fn commUserRank(comm: Comm, rank: *mut c_int) -> R {
    entry(named!(commUserRank), comm, || {
        // SAFETY: FlagCX's promise.
        let out = unsafe { Out::new(rank, "rank", 0) }?;
        out.set(internal::comm_user_rank(handle(comm))?);
        Ok(())
    })
}

unsafe extern "C" fn commGetAsyncError(comm: Comm, asyncError: *mut R) -> R {
    entry(named!(commGetAsyncError), comm, || {
        // SAFETY: FlagCX's promise.
        let out = unsafe { Out::new(asyncError, "asyncError", flagcxSuccess) }?;
        out.set(state(internal::comm_async_error(handle(comm))?));
        Ok(())
    })
}

unsafe extern "C" fn memAlloc(ptr: *mut *mut c_void, size: usize) -> R {
    entry(named!(memAlloc), null_mut(), || {
        // SAFETY: FlagCX's promise.
        let out = unsafe { Out::new(ptr, "ptr", null_mut()) }?;
        out.set(internal::mem_alloc(size)?);
        Ok(())
    })
}

unsafe extern "C" fn memFree(ptr: *mut c_void) -> R {
    entry(named!(memFree), null_mut(), || internal::mem_free(ptr))
}

unsafe extern "C" fn commRegister(
    comm: Comm,
    buff: *mut c_void,
    size: usize,
    registration: *mut *mut c_void,
) -> R {
    entry(named!(commRegister), comm, || {
        // SAFETY: FlagCX's promise.
        let out = unsafe { Out::new(registration, "handle", null_mut()) }?;
        let comm = handle(comm);
        let made = internal::comm_register(comm, buff, size)?;
        *kept().registrations.entry((comm, made.addr())).or_default() += 1;
        out.set(made);
        Ok(())
    })
}

/// NULL is nothing to do.
unsafe extern "C" fn commDeregister(comm: Comm, registration: *mut c_void) -> R {
    entry(named!(commDeregister), comm, || {
        live(comm)?;
        if registration.is_null() {
            return Ok(());
        }
        // The vendor's library would follow any.
        let comm = handle(comm);
        if !kept().deregister(comm, registration) {
            return Err(Error::invalid_argument(format!(
                "{registration:p} is no live registration of this communicator"
            )));
        }
        internal::comm_deregister(comm, registration)
    })
}

/// FlagCX hands what is in a window to device code of its own, which knows NCCL's. It does without on NotSupported.
unsafe extern "C" fn commWindowRegister(
    comm: Comm,
    buff: *mut c_void,
    size: usize,
    win: *mut *mut c_void,
    _winFlags: c_int,
) -> R {
    entry(named!(commWindowRegister), comm, || {
        // SAFETY: FlagCX's promise.
        unsafe { Out::new(win, "win", null_mut()) }?;
        live(comm)?;
        not_null(buff, "buff")?;
        if size == 0 {
            return Err(Error::invalid_argument("size is 0"));
        }
        Err(Error::not_supported(
            "windows of FlagCX are for its own device code, which does not know this library's; the buffer works \
             without one",
        ))
    })
}

/// There is none: NULL is nothing to do.
unsafe extern "C" fn commWindowDeregister(comm: Comm, win: *mut c_void) -> R {
    entry(named!(commWindowDeregister), comm, || {
        live(comm)?;
        match win.is_null() {
            true => Ok(()),
            false => Err(Error::invalid_argument(format!(
                "{win:p} is no window of this library, which gives FlagCX none"
            ))),
        }
    })
}

macro_rules! define {
    (
        $(#[$doc:meta])*
        $api:ident $field:ident, $checked:expr, $engine:ident($($arg:ident: $ty:ty),*)
    ) => {
        unsafe extern "C" fn $field(
            $($arg: $ty,)*
            comm: flagcxComm_t,
            stream: flagcxStream_t,
        ) -> flagcxResult_t {
            operation!(named!($field), $checked, $engine($($arg: $ty),*), comm, stream)
        }
    };
}
operations!(define);

/// Groups are the calling thread's.
unsafe extern "C" fn groupStart() -> R {
    entry(named!(groupStart), null_mut(), internal::group_start)
}

unsafe extern "C" fn groupEnd() -> R {
    entry_with_state(named!(groupEnd), null_mut(), internal::group_end)
}
