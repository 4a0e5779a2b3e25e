//! Cambricon CNCL. Its collectives have NCCL's signatures. Others: init takes lists of communicators,
//! devices and ranks and an id of 136 bytes by pointer, what is asked of a communicator is the first
//! argument, and the asynchronous state is what the question returns. An id serves once in a process, so
//! its ranks there are made by one call.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use super::library::{Adapted, Bootstrap};
use super::symbols::{
    Calls, CommPtr, RawResult, Shared, Symbols, declare_own, declare_shape, function_name,
    function_names, functions,
};
use super::{Ccl, Version};
use crate::load::symbols::{Declaration, Resolver};
use crate::ops::lock;
use crate::sys::per_process::PerProcess;

/// Size of a clique id.
pub(super) const CLIQUE_ID_BYTES: usize = 136;

functions! {
    /// What has no place in NCCL's shape.
    Cncl {
        required get_clique_id "cnclGetCliqueId" [0 0 0] (*mut u8) -> RawResult;
        required init_comms "cnclInitComms" [0 0 0]
            (*mut CommPtr, c_int, *const c_int, *const c_int, c_int, *const u8) -> RawResult;
        required destroy_comms "cnclDestroyComms" [0 0 0] (*mut CommPtr, c_int) -> RawResult;
        optional abort_comm "cnclAbortComm" [0 0 0] (CommPtr) -> RawResult;
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
        comm_abort: own.abort_comm.map(|_| comm_abort as _),
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
        bootstrap: Bootstrap::Together(get_clique_id, init_comm),
        messages: None,
    })
}

unsafe extern "C" fn get_clique_id(id: *mut u8) -> RawResult {
    // SAFETY: the caller's memory has the row's number of bytes.
    unsafe { (LIBRARY.get().get_clique_id)(id) }
}

// ---- ranks of one process: one call makes them, and one call ends them

/// A rank of this process that waits for the others.
struct Waiting {
    rank: c_int,
    device: c_int,
    out: Out,
}

/// Where a handle goes.
#[derive(Clone, Copy)]
struct Out(*mut CommPtr);

// SAFETY: written only while the thread that gave it waits for that.
unsafe impl Send for Out {}

/// A handle as an address, which may move between threads.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Raw(CommPtr);

// SAFETY: an opaque handle of the library.
unsafe impl Send for Raw {}

/// The communicators of this process by the id that made them.
#[derive(Default)]
struct Cliques {
    /// Ids that are used now, and the ranks that wait.
    waiting: HashMap<Vec<u8>, Vec<Waiting>>,
    /// What became of an init: its result, and how many have not read it yet.
    results: HashMap<Vec<u8>, (RawResult, usize)>,
    /// Communicators that were made together, and those of them that are to be ended.
    made: Vec<(Vec<Raw>, Vec<Raw>)>,
}

fn cliques() -> &'static (Mutex<Cliques>, Condvar) {
    static CLIQUES: PerProcess<(Mutex<Cliques>, Condvar)> = PerProcess::new();
    CLIQUES.get_or_init(Default::default)
}

/// Longer than any init lasts: a rank whose fellows never came gives up then.
const GIVE_UP: Duration = Duration::from_secs(1800);

unsafe fn init_comm(
    comm: *mut CommPtr,
    nranks: c_int,
    id: *const u8,
    rank: c_int,
    here: usize,
) -> RawResult {
    // The library doesn't ask which device is current, so it is told.
    let Ok(Some(Ok(device))) = crate::load::process_driver().map(|d| d.map(|d| d.current())) else {
        return ARGUMENTS;
    };
    // SAFETY: the row's number of bytes, as the caller's promise.
    let key = unsafe { std::slice::from_raw_parts(id, CLIQUE_ID_BYTES) }.to_vec();
    let (mutex, changed) = cliques();
    let mut all = lock(mutex);
    let waiting = all.waiting.entry(key.clone()).or_default();
    waiting.push(Waiting {
        rank,
        device,
        out: Out(comm),
    });
    if waiting.len() < here {
        let (mut all, late) = changed
            .wait_timeout_while(all, GIVE_UP, |all| !all.results.contains_key(&key))
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if late.timed_out() {
            all.waiting.remove(&key);
            return ARGUMENTS;
        }
        let (result, left) = all.results.get_mut(&key).map_or((ARGUMENTS, 0), |entry| {
            entry.1 -= 1;
            *entry
        });
        if left == 0 {
            all.results.remove(&key);
        }
        return result;
    }
    // The last one makes them all, not under the lock: it waits for other processes.
    let waiting = all.waiting.remove(&key).unwrap_or_default();
    drop(all);
    let devices: Vec<c_int> = waiting.iter().map(|w| w.device).collect();
    let ranks: Vec<c_int> = waiting.iter().map(|w| w.rank).collect();
    let mut made: Vec<CommPtr> = vec![std::ptr::null_mut(); waiting.len()];
    // SAFETY: lists of the same length; the id is the caller's.
    let result = unsafe {
        let (comms, devices, ranks) = (made.as_mut_ptr(), devices.as_ptr(), ranks.as_ptr());
        let count = waiting.len() as c_int;
        (LIBRARY.get().init_comms)(comms, count, devices, ranks, nranks, id)
    };
    let mut all = lock(mutex);
    if result == 0 {
        for (waiting, made) in waiting.iter().zip(&made) {
            // SAFETY: its thread waits for the result; the own place is the caller's.
            unsafe { *waiting.out.0 = *made };
        }
        let made = made.into_iter().map(Raw).collect();
        all.made.push((made, Vec::new()));
    }
    if waiting.len() > 1 {
        all.results.insert(key, (result, waiting.len() - 1));
        changed.notify_all();
    }
    result
}

/// Ends a communicator. The library wants those of a process together, so the last one's end ends
/// them all.
unsafe extern "C" fn comm_destroy(comm: CommPtr) -> RawResult {
    let mut list: Vec<CommPtr> = {
        let mut all = lock(&cliques().0);
        let Some(at) = all
            .made
            .iter()
            .position(|(made, _)| made.contains(&Raw(comm)))
        else {
            return ARGUMENTS;
        };
        let (made, ended) = &mut all.made[at];
        made.retain(|other| other.0 != comm);
        ended.push(Raw(comm));
        if !made.is_empty() {
            return 0;
        }
        let (_, ended) = all.made.swap_remove(at);
        ended.iter().map(|raw| raw.0).collect()
    };
    // SAFETY: communicators of the library that their users have given up, ended once.
    unsafe { (LIBRARY.get().destroy_comms)(list.as_mut_ptr(), list.len() as c_int) }
}

/// Aborts a communicator; the others of the process are no longer ended with it.
unsafe extern "C" fn comm_abort(comm: CommPtr) -> RawResult {
    let left: Vec<Raw> = {
        let mut all = lock(&cliques().0);
        let at = all
            .made
            .iter()
            .position(|(made, _)| made.contains(&Raw(comm)));
        match at {
            None => Vec::new(),
            Some(at) => {
                all.made[at].0.retain(|other| other.0 != comm);
                match all.made[at].0.is_empty() {
                    true => all.made.swap_remove(at).1,
                    false => Vec::new(),
                }
            }
        }
    };
    let Some(abort) = LIBRARY.get().abort_comm else {
        return ARGUMENTS;
    };
    for other in left {
        // SAFETY: its user has given it up, and its end waited for this one.
        let _ = unsafe { abort(other.0) };
    }
    // SAFETY: the caller's communicator, which it gives up.
    unsafe { abort(comm) }
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
