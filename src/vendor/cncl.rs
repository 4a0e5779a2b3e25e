//! Cambricon CNCL. Its collectives have NCCL's signatures. Others: init takes lists of communicators,
//! devices and ranks and an id of 136 bytes by pointer, what is asked of a communicator is the first
//! argument, and the asynchronous state is what the question returns.

use std::ffi::c_int;

use super::library::{Adapted, Bootstrap};
use super::symbols::{
    Calls, CommPtr, RawResult, Shared, Symbols, declare_own, declare_shape, function_name,
    function_names, functions,
};
use super::{Ccl, Version};
use crate::load::symbols::{Declaration, Resolver};

/// Size of a clique id.
pub(super) const CLIQUE_ID_BYTES: usize = 136;

functions! {
    /// What has no place in NCCL's shape.
    Cncl {
        required get_clique_id "cnclGetCliqueId" [0 0 0] (*mut u8) -> RawResult;
        required init_comms "cnclInitComms" [0 0 0]
            (*mut CommPtr, c_int, *const c_int, *const c_int, c_int, *const u8) -> RawResult;
        required destroy_comms "cnclDestroyComms" [0 0 0] (*mut CommPtr, c_int) -> RawResult;
        optional get_comm_count "cnclGetCommCount" [0 0 0] (*mut c_int, CommPtr) -> RawResult;
        optional get_comm_rank "cnclGetCommRank" [0 0 0] (*mut c_int, CommPtr) -> RawResult;
        optional get_comm_device "cnclGetCommDevice" [0 0 0] (*mut c_int, CommPtr) -> RawResult;
        optional get_comm_async_error "cnclGetCommAsyncError" [0 0 0] (CommPtr) -> RawResult;
    }
}

functions! {
    /// The version call, which needs no communicator.
    VersionCall {
        optional get_lib_version "cnclGetLibVersion" [0 0 0]
            (*mut c_int, *mut c_int, *mut c_int) -> RawResult;
    }
}

static LIBRARY: Shared<Cncl> = Shared::new();

/// The functions of CNCL that have NCCL's signatures, beside those that every library has.
const DIRECT: &[&str] = &[
    "GetErrorString",
    "CommAbort",
    "Bcast",
    "Broadcast",
    "AlltoAll",
    "GroupStart",
    "GroupEnd",
];

/// CNCL's number of an argument that is wrong.
const ARGUMENTS: RawResult = 7;

pub(super) fn version(resolver: &mut Resolver<'_>) -> (Option<i32>, Option<Version>) {
    let call = VersionCall::resolve(&mut |name| resolver.find(name));
    let Some(ask) = call.ok().and_then(|call| call.get_lib_version) else {
        return (None, None);
    };
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: the numbers go to live locals; the call needs no device.
    let result = unsafe { ask(&mut major, &mut minor, &mut patch) };
    let [Ok(a), Ok(b), Ok(c)] = [major, minor, patch].map(u16::try_from) else {
        return (None, None);
    };
    if result != 0 {
        return (None, None);
    }
    let version = Version::new(a, b, c);
    (Some(version.nccl_code() as i32), Some(version))
}

/// What is looked up, for the check against the C declarations.
pub(super) fn declarations(row: &'static Ccl) -> Vec<Declaration> {
    // Its destroy has another signature.
    let calls =
        |suffix: &str| suffix != "CommDestroy" && Calls::SYMBOLS.iter().any(|s| s.suffix == suffix);
    let mut all = declare_shape(row, &|suffix| DIRECT.contains(&suffix) || calls(suffix));
    all.extend(declare_own(row, Cncl::SYMBOLS));
    all.extend(declare_own(row, VersionCall::SYMBOLS));
    all
}

pub(super) fn adapt(
    row: &'static Ccl,
    resolver: &mut Resolver<'_>,
) -> std::result::Result<Adapted, Vec<String>> {
    let own = Cncl::resolve(&mut |name| resolver.find(name));
    let mut find = |suffix: &str| resolver.find_any(&function_names(row, suffix));
    let calls = Calls::resolve(&mut find);
    let direct = Symbols::resolve(&mut |suffix| match DIRECT.contains(&suffix) {
        true => find(suffix),
        false => None,
    });
    let (own, calls) = match (own, calls) {
        (Ok(own), Ok(calls)) => (own, calls),
        (own, calls) => {
            let mut missing: Vec<String> = Vec::new();
            missing.extend(own.err().iter().flatten().map(|name| name.to_string()));
            let calls = calls.err();
            missing.extend(calls.iter().flatten().map(|s| function_name(row, s)));
            return Err(missing);
        }
    };
    let symbols = Symbols {
        comm_count: own.get_comm_count.map(|_| comm_count as _),
        comm_user_rank: own.get_comm_rank.map(|_| comm_user_rank as _),
        comm_device: own.get_comm_device.map(|_| comm_device as _),
        comm_get_async_error: own.get_comm_async_error.map(|_| comm_get_async_error as _),
        ..direct.unwrap_or_default()
    };
    LIBRARY.set(own);
    Ok(Adapted {
        calls: Calls {
            comm_destroy,
            ..calls
        },
        symbols,
        bootstrap: Bootstrap::ByPointer(get_clique_id, init_comm),
        messages: None,
    })
}

unsafe extern "C" fn get_clique_id(id: *mut u8) -> RawResult {
    // SAFETY: the caller's memory has the row's number of bytes.
    unsafe { (LIBRARY.get().get_clique_id)(id) }
}

unsafe extern "C" fn init_comm(
    comm: *mut CommPtr,
    nranks: c_int,
    id: *const u8,
    rank: c_int,
) -> RawResult {
    // The library doesn't ask which device is current, so it is told.
    let device = match crate::load::process_driver() {
        Ok(Some(driver)) => driver.current(),
        _ => return ARGUMENTS,
    };
    let Ok(device) = device else {
        return ARGUMENTS;
    };
    // SAFETY: lists of one; the caller's pointers, as NCCL's init has them.
    unsafe { (LIBRARY.get().init_comms)(comm, 1, &device, &rank, nranks, id) }
}

unsafe extern "C" fn comm_destroy(comm: CommPtr) -> RawResult {
    let mut list = comm;
    // SAFETY: a list of one communicator, which the caller gives up.
    unsafe { (LIBRARY.get().destroy_comms)(&mut list, 1) }
}

macro_rules! question {
    ($name:ident, $field:ident) => {
        unsafe extern "C" fn $name(comm: CommPtr, out: *mut c_int) -> RawResult {
            match LIBRARY.get().$field {
                // SAFETY: the caller's communicator and place; only their order differs.
                Some(ask) => unsafe { ask(out, comm) },
                None => ARGUMENTS,
            }
        }
    };
}

question!(comm_count, get_comm_count);
question!(comm_user_rank, get_comm_rank);
question!(comm_device, get_comm_device);

unsafe extern "C" fn comm_get_async_error(comm: CommPtr, state: *mut RawResult) -> RawResult {
    let Some(ask) = LIBRARY.get().get_comm_async_error else {
        return ARGUMENTS;
    };
    // SAFETY: the caller's communicator; the answer goes to the caller's place.
    unsafe { *state = ask(comm) };
    0
}
