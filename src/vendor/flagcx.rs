//! FlagCX itself as a collective library. Its streams are pointers to a struct that holds the vendor's
//! stream, its id has 256 bytes and is passed by pointer, and its groups belong to a communicator.
//!
//! FlagCX looks at a stream's struct during the call; some of its adaptors look at it again at the end
//! of a group. So the struct is on the stack outside of groups and stays for good inside.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Mutex;

use super::library::{Adapted, Bootstrap};
use super::symbols::{
    Calls, CommPtr, RawResult, Shared, StreamPtr, Symbols, declare_own, functions,
};
use super::{Ccl, Version};
use crate::config;
use crate::load::symbols::{Declaration, Resolver};
use crate::ops::lock;
use crate::sys::per_process::PerProcess;

/// Size of a unique id.
pub(super) const ID_BYTES: usize = 256;

/// What a stream of FlagCX points to.
#[repr(C)]
struct Wrapped {
    base: StreamPtr,
}

// SAFETY: an opaque handle of the driver, which may be used from any thread; the struct is never
// written after it was made.
unsafe impl Send for Wrapped {}
// SAFETY: as above.
unsafe impl Sync for Wrapped {}

type Buf = *const c_void;
type BufMut = *mut c_void;
type Counts = *const usize;
type CountsMut = *mut usize;
type FcxStream = *const c_void;

functions! {
    /// FlagCX's functions.
    Flagcx {
        required get_unique_id "flagcxGetUniqueId" [0 0 0] (*mut u8) -> RawResult;
        required comm_init_rank "flagcxCommInitRank" [0 0 0]
            (*mut CommPtr, c_int, *const u8, c_int) -> RawResult;
        required comm_destroy "flagcxCommDestroy" [0 0 0] (CommPtr) -> RawResult;
        required group_start "flagcxGroupStart" [0 0 0] (CommPtr) -> RawResult;
        required group_end "flagcxGroupEnd" [0 0 0] (CommPtr) -> RawResult;
        required reduce "flagcxReduce" [0 0 0]
            (Buf, BufMut, usize, c_int, c_int, c_int, CommPtr, FcxStream) -> RawResult;
        required broadcast "flagcxBroadcast" [0 0 0]
            (Buf, BufMut, usize, c_int, c_int, CommPtr, FcxStream) -> RawResult;
        required all_reduce "flagcxAllReduce" [0 0 0]
            (Buf, BufMut, usize, c_int, c_int, CommPtr, FcxStream) -> RawResult;
        required reduce_scatter "flagcxReduceScatter" [0 0 0]
            (Buf, BufMut, usize, c_int, c_int, CommPtr, FcxStream) -> RawResult;
        required all_gather "flagcxAllGather" [0 0 0]
            (Buf, BufMut, usize, c_int, CommPtr, FcxStream) -> RawResult;
        required send "flagcxSend" [0 0 0]
            (Buf, usize, c_int, c_int, CommPtr, FcxStream) -> RawResult;
        required recv "flagcxRecv" [0 0 0]
            (BufMut, usize, c_int, c_int, CommPtr, FcxStream) -> RawResult;
        optional gather "flagcxGather" [0 0 0]
            (Buf, BufMut, usize, c_int, c_int, CommPtr, FcxStream) -> RawResult;
        optional scatter "flagcxScatter" [0 0 0]
            (Buf, BufMut, usize, c_int, c_int, CommPtr, FcxStream) -> RawResult;
        optional all_to_all "flagcxAlltoAll" [0 0 0]
            (Buf, BufMut, usize, c_int, CommPtr, FcxStream) -> RawResult;
        optional all_to_allv "flagcxAlltoAllv" [0 0 0]
            (Buf, CountsMut, CountsMut, BufMut, CountsMut, CountsMut, c_int, CommPtr, FcxStream)
            -> RawResult;
        optional comm_abort "flagcxCommAbort" [0 0 0] (CommPtr) -> RawResult;
        optional comm_count "flagcxCommCount" [0 0 0] (CommPtr, *mut c_int) -> RawResult;
        optional comm_user_rank "flagcxCommUserRank" [0 0 0] (CommPtr, *mut c_int) -> RawResult;
        optional comm_get_async_error "flagcxCommGetAsyncError" [0 0 0]
            (CommPtr, *mut RawResult) -> RawResult;
        optional get_last_error "flagcxGetLastError" [0 0 0] (CommPtr) -> *const c_char;
    }
}

functions! {
    /// The version call.
    VersionCall {
        optional get_version "flagcxGetVersion" [0 0 0] (*mut c_int) -> RawResult;
    }
}

static LIBRARY: Shared<Flagcx> = Shared::new();

/// FlagCX's number for what is not supported.
const NOT_SUPPORTED: RawResult = 9;
/// FlagCX's number for a fault inside.
const INTERNAL_ERROR: RawResult = 3;

/// Variables whose value FlagCX reads as a number, with an exception that nobody can catch if it is
/// none.
const NUMERIC: &[&str] = &["FLAGCX_USE_HETERO_COMM", "FLAGCX_USE_HOST_COMM"];

/// Why FlagCX must not be called now.
pub(super) fn refusal() -> Option<String> {
    NUMERIC.iter().find_map(|name| {
        // What FlagCX reads itself, so that an empty value counts too.
        let value = config::foreign_as_is(name)?.to_string_lossy().into_owned();
        (!reads_as_number(&value)).then(|| {
            format!(
                "{name} is {value:?}, which is no number: FlagCX would end the process. Set it to 0 \
                 or 1, or unset it"
            )
        })
    })
}

/// Whether C++'s `std::stoi` reads an int from the start of the text.
fn reads_as_number(text: &str) -> bool {
    let text = text.trim_start();
    let (sign, digits) = match text.as_bytes().first() {
        Some(b'-' | b'+') => text.split_at(1),
        _ => ("", text),
    };
    let end = digits.bytes().take_while(u8::is_ascii_digit).count();
    end > 0 && format!("{sign}{}", &digits[..end]).parse::<i32>().is_ok()
}

pub(super) fn version(resolver: &mut Resolver<'_>) -> (Option<i32>, Option<Version>) {
    let call = VersionCall::resolve(&mut |name| resolver.find(name));
    let Some(ask) = call.ok().and_then(|call| call.get_version) else {
        return (None, None);
    };
    let mut code = 0;
    // SAFETY: the number goes to a live local; the call needs no device.
    if unsafe { ask(&mut code) } != 0 {
        return (None, None);
    }
    let parts = [code / 10_000, code / 100 % 100, code % 100].map(u16::try_from);
    let [Ok(major), Ok(minor), Ok(patch)] = parts else {
        return (Some(code), None);
    };
    (Some(code), Some(Version::new(major, minor, patch)))
}

/// What is looked up, for the check against the C declarations.
pub(super) fn declarations(row: &'static Ccl) -> Vec<Declaration> {
    let mut all = declare_own(row, Flagcx::SYMBOLS);
    all.extend(declare_own(row, VersionCall::SYMBOLS));
    all
}

pub(super) fn adapt(
    _row: &'static Ccl,
    resolver: &mut Resolver<'_>,
) -> Result<Adapted, Vec<String>> {
    let own = Flagcx::resolve(&mut |name| resolver.find(name)).map_err(|missing| {
        missing
            .iter()
            .map(|name| name.to_string())
            .collect::<Vec<_>>()
    })?;
    let adapted = Adapted {
        calls: Calls {
            comm_destroy: own.comm_destroy,
            reduce,
            all_reduce,
            reduce_scatter,
            all_gather,
            send,
            recv,
        },
        // Its finalize is left out: with the NCCL adaptor it frees what destroy uses.
        symbols: Symbols {
            broadcast: Some(broadcast),
            gather: own.gather.map(|_| gather as _),
            scatter: own.scatter.map(|_| scatter as _),
            all_to_all: own.all_to_all.map(|_| all_to_all as _),
            all_to_allv: own.all_to_allv.map(|_| all_to_allv as _),
            group_start: Some(group_start),
            group_end: Some(group_end),
            comm_abort: own.comm_abort,
            comm_count: own.comm_count,
            comm_user_rank: own.comm_user_rank,
            comm_get_async_error: own.comm_get_async_error.map(|_| comm_get_async_error as _),
            get_last_error: own.get_last_error,
            ..Symbols::default()
        },
        bootstrap: Bootstrap::ByPointer(own.get_unique_id, own.comm_init_rank),
        messages: None,
    };
    LIBRARY.set(own);
    Ok(adapted)
}

// ---- groups

/// The communicators whose group is open on this thread.
#[derive(Default)]
struct Group {
    depth: u32,
    opened: Vec<CommPtr>,
}

// Constant and without a destructor, as every thread-local of ours.
thread_local! {
    static GROUP: Cell<*mut Group> = const { Cell::new(std::ptr::null_mut()) };
}

unsafe extern "C" fn group_start() -> RawResult {
    let mut group = GROUP.get();
    if group.is_null() {
        group = Box::into_raw(Box::default());
        GROUP.set(group);
    }
    // SAFETY: a box of this thread's, freed only by `group_end`.
    unsafe { (*group).depth += 1 };
    0
}

unsafe extern "C" fn group_end() -> RawResult {
    let group = GROUP.get();
    if group.is_null() {
        return INTERNAL_ERROR;
    }
    // SAFETY: as in `group_start`.
    let done = unsafe {
        (*group).depth -= 1;
        (*group).depth == 0
    };
    if !done {
        return 0;
    }
    GROUP.set(std::ptr::null_mut());
    // SAFETY: from `Box::into_raw` in `group_start`, taken once.
    let group = unsafe { Box::from_raw(group) };
    let mut first = 0;
    for comm in group.opened.iter().rev() {
        // SAFETY: a communicator whose group this thread has opened.
        let result = unsafe { (LIBRARY.get().group_end)(*comm) };
        if first == 0 {
            first = result;
        }
    }
    first
}

/// Opens the communicator's group if this thread has a group open.
fn join_group(group: *mut Group, comm: CommPtr) -> RawResult {
    // SAFETY: as in `group_start`; nothing else of this thread refers to it now.
    let group = unsafe { &mut *group };
    if group.opened.contains(&comm) {
        return 0;
    }
    // SAFETY: the caller's communicator.
    let result = unsafe { (LIBRARY.get().group_start)(comm) };
    if result == 0 {
        group.opened.push(comm);
    }
    result
}

// ---- streams

/// A struct for a stream that stays for good.
fn kept(stream: StreamPtr) -> FcxStream {
    static KEPT: PerProcess<Mutex<BTreeMap<usize, &'static Wrapped>>> = PerProcess::new();
    let mut all = lock(KEPT.get_or_init(Mutex::default));
    let wrapped: &'static Wrapped = all
        .entry(stream.addr())
        .or_insert_with(|| Box::leak(Box::new(Wrapped { base: stream })));
    std::ptr::from_ref(wrapped).cast()
}

#[inline(always)]
fn with_stream(
    comm: CommPtr,
    stream: StreamPtr,
    call: impl FnOnce(&'static Flagcx, FcxStream) -> RawResult,
) -> RawResult {
    let group = GROUP.get();
    if group.is_null() {
        let wrapped = Wrapped { base: stream };
        return call(LIBRARY.get(), (&raw const wrapped).cast());
    }
    match join_group(group, comm) {
        0 => call(LIBRARY.get(), kept(stream)),
        result => result,
    }
}

// ---- calls

macro_rules! adapter {
    ($name:ident, ($($arg:ident: $ty:ty),*)) => {
        #[allow(clippy::too_many_arguments)]
        unsafe extern "C" fn $name(
            $($arg: $ty,)*
            comm: CommPtr,
            stream: StreamPtr,
        ) -> RawResult {
            with_stream(comm, stream, |library, stream| {
                // SAFETY: the caller's buffers and communicator; only the stream is wrapped.
                unsafe { (library.$name)($($arg,)* comm, stream) }
            })
        }
    };
    (optional $name:ident, ($($arg:ident: $ty:ty $(as $cast:ident)?),*)) => {
        #[allow(clippy::too_many_arguments)]
        unsafe extern "C" fn $name(
            $($arg: $ty,)*
            comm: CommPtr,
            stream: StreamPtr,
        ) -> RawResult {
            with_stream(comm, stream, |library, stream| match library.$name {
                // SAFETY: as of the others.
                Some(call) => unsafe { call($($arg $(.$cast())?,)* comm, stream) },
                None => NOT_SUPPORTED,
            })
        }
    };
}

adapter!(all_reduce, (s: Buf, r: BufMut, n: usize, dtype: c_int, op: c_int));
adapter!(reduce_scatter, (s: Buf, r: BufMut, n: usize, dtype: c_int, op: c_int));
adapter!(reduce, (s: Buf, r: BufMut, n: usize, dtype: c_int, op: c_int, root: c_int));
adapter!(broadcast, (s: Buf, r: BufMut, n: usize, dtype: c_int, root: c_int));
adapter!(all_gather, (s: Buf, r: BufMut, n: usize, dtype: c_int));
adapter!(send, (s: Buf, n: usize, dtype: c_int, peer: c_int));
adapter!(recv, (r: BufMut, n: usize, dtype: c_int, peer: c_int));
adapter!(optional gather, (s: Buf, r: BufMut, n: usize, dtype: c_int, root: c_int));
adapter!(optional scatter, (s: Buf, r: BufMut, n: usize, dtype: c_int, root: c_int));
adapter!(optional all_to_all, (s: Buf, r: BufMut, n: usize, dtype: c_int));
adapter!(optional all_to_allv, (s: Buf, sc: Counts as cast_mut, sd: Counts as cast_mut, r: BufMut, rc: Counts as cast_mut, rd: Counts as cast_mut, dtype: c_int));

/// A communicator of several vendors has no answer, which is no failure.
unsafe extern "C" fn comm_get_async_error(comm: CommPtr, state: *mut RawResult) -> RawResult {
    let Some(ask) = LIBRARY.get().comm_get_async_error else {
        return NOT_SUPPORTED;
    };
    // SAFETY: the caller's communicator and place.
    match unsafe { ask(comm, state) } {
        NOT_SUPPORTED => {
            // SAFETY: as above.
            unsafe { *state = 0 };
            0
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_what_stoi_reads() {
        for text in ["0", "1", " 7", "-3", "+2", "12abc", "1 "] {
            assert!(reads_as_number(text), "{text:?}");
        }
        for text in ["", "yes", "on", "-", "x1", "99999999999"] {
            assert!(!reads_as_number(text), "{text:?}");
        }
    }
}
