//! The host side of NCCL's device API: what it makes is for kernels that are built with NCCL's headers, so
//! the NCCL below the communicator has to make it. Elsewhere it is refused. Programs that never call these
//! need the names too: they bind all symbols at their start.

use crate::boundary::{handle, value};
use crate::skin::{entry, result};
use crate::types::*;
use engine::{Error, Result, internal};
use std::ffi::{CStr, c_int, c_void};
use std::mem::transmute;
use std::ptr::{NonNull, null_mut};

type Pointer = *mut c_void;

fn of(comm: ncclComm_t, name: &CStr) -> Result<(NonNull<c_void>, Pointer)> {
    internal::nccl_function(handle(comm), name)
}

/// NCCL's result of a call that was handed on, which is the program's, as it is.
fn handed_on(name: &str, comm: ncclComm_t, result: ncclResult_t) -> Result<()> {
    match result {
        ncclSuccess => Ok(()),
        other => Err(Error::new(
            engine::Code::from_raw(other)
                .filter(|_| (ncclUnhandledCudaError..=ncclInProgress).contains(&other))
                .unwrap_or(engine::Code::InternalError),
            format!("NCCL's own {name} on {comm:p} failed with {other}"),
        )),
    }
}

/// As [`crate::boundary::value`] for functions without a result code: an error is a text and an empty value.
fn answer<T: Copy>(
    name: &'static str,
    comm: ncclComm_t,
    empty: T,
    body: impl FnOnce() -> Result<T>,
) -> T {
    value(name, empty, || {
        body().unwrap_or_else(|error| {
            result(internal::fail(handle(comm), error.context(name)));
            empty
        })
    })
}

/// Makes a communicator for use inside kernels.
///
/// # Safety
/// As in NCCL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclDevCommCreate(
    comm: ncclComm_t,
    reqs: *const c_void,
    outDevComm: *mut c_void,
) -> ncclResult_t {
    entry("ncclDevCommCreate", comm, || {
        let (function, raw) = of(comm, c"ncclDevCommCreate")?;
        // SAFETY: NCCL's function of this name and its handle; the rest is the caller's promise.
        let result = unsafe {
            let function: unsafe extern "C" fn(Pointer, *const c_void, Pointer) -> i32 =
                transmute(function);
            function(raw, reqs, outDevComm)
        };
        handed_on("ncclDevCommCreate", comm, result)
    })
}

/// Frees it.
///
/// # Safety
/// As in NCCL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclDevCommDestroy(
    comm: ncclComm_t,
    devComm: *const c_void,
) -> ncclResult_t {
    entry("ncclDevCommDestroy", comm, || {
        let (function, raw) = of(comm, c"ncclDevCommDestroy")?;
        // SAFETY: NCCL's function of this name and its handle; the rest is the caller's promise.
        let result = unsafe {
            let function: unsafe extern "C" fn(Pointer, *const c_void) -> i32 = transmute(function);
            function(raw, devComm)
        };
        handed_on("ncclDevCommDestroy", comm, result)
    })
}

fn team(name: &'static str, symbol: &CStr, comm: ncclComm_t) -> ncclTeam_t {
    answer(name, comm, ncclTeam_t::default(), || {
        let (function, raw) = of(comm, symbol)?;
        // SAFETY: NCCL's function of this name, which takes its handle and returns three numbers.
        Ok(unsafe {
            let function: unsafe extern "C" fn(Pointer) -> ncclTeam_t = transmute(function);
            function(raw)
        })
    })
}

/// All ranks. No ranks on failure.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclTeamWorld(comm: ncclComm_t) -> ncclTeam_t {
    team("ncclTeamWorld", c"ncclTeamWorld", comm)
}

/// The ranks that reach each other's memory. No ranks on failure.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclTeamLsa(comm: ncclComm_t) -> ncclTeam_t {
    team("ncclTeamLsa", c"ncclTeamLsa", comm)
}

/// The ranks on one rail. No ranks on failure.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclTeamRail(comm: ncclComm_t) -> ncclTeam_t {
    team("ncclTeamRail", c"ncclTeamRail", comm)
}

fn rank_to(
    name: &'static str,
    symbol: &CStr,
    comm: ncclComm_t,
    team: ncclTeam_t,
    rank: c_int,
) -> c_int {
    answer(name, comm, -1, || {
        let (function, raw) = of(comm, symbol)?;
        // SAFETY: NCCL's function of this name, which takes its handle and numbers.
        Ok(unsafe {
            let function: unsafe extern "C" fn(Pointer, ncclTeam_t, c_int) -> c_int =
                transmute(function);
            function(raw, team, rank)
        })
    })
}

/// A team's rank among all ranks; -1 on failure.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclTeamRankToWorld(
    comm: ncclComm_t,
    team: ncclTeam_t,
    rank: c_int,
) -> c_int {
    rank_to(
        "ncclTeamRankToWorld",
        c"ncclTeamRankToWorld",
        comm,
        team,
        rank,
    )
}

/// A team's rank among those that reach each other's memory; -1 on failure.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclTeamRankToLsa(
    comm: ncclComm_t,
    team: ncclTeam_t,
    rank: c_int,
) -> c_int {
    rank_to("ncclTeamRankToLsa", c"ncclTeamRankToLsa", comm, team, rank)
}

/// What a barrier between ranks that reach each other's memory needs.
///
/// # Safety
/// As in NCCL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclLsaBarrierCreateRequirement(
    team: ncclTeam_t,
    nBarriers: c_int,
    outHandle: *mut c_void,
    outReq: *mut c_void,
) -> ncclResult_t {
    const NAME: &str = "ncclLsaBarrierCreateRequirement";
    entry(NAME, null_mut(), || {
        let function = internal::nccl_function_alone(c"ncclLsaBarrierCreateRequirement")?;
        // SAFETY: NCCL's function of this name; the rest is the caller's promise.
        let result = unsafe {
            let function: unsafe extern "C" fn(ncclTeam_t, c_int, Pointer, Pointer) -> i32 =
                transmute(function);
            function(team, nBarriers, outHandle, outReq)
        };
        handed_on(NAME, null_mut(), result)
    })
}

/// What a barrier over the network needs.
///
/// # Safety
/// As in NCCL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGinBarrierCreateRequirement(
    comm: ncclComm_t,
    team: ncclTeam_t,
    nBarriers: c_int,
    outHandle: *mut c_void,
    outReq: *mut c_void,
) -> ncclResult_t {
    const NAME: &str = "ncclGinBarrierCreateRequirement";
    entry(NAME, comm, || {
        let (function, raw) = of(comm, c"ncclGinBarrierCreateRequirement")?;
        // SAFETY: NCCL's function of this name and its handle; the rest is the caller's promise.
        let result = unsafe {
            let function: unsafe extern "C" fn(
                Pointer,
                ncclTeam_t,
                c_int,
                Pointer,
                Pointer,
            ) -> i32 = transmute(function);
            function(raw, team, nBarriers, outHandle, outReq)
        };
        handed_on(NAME, comm, result)
    })
}

/// Slots that an all-to-all of so many elements needs; 0 on failure.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclLLA2ACalcSlots(maxElts: c_int, maxEltSize: c_int) -> c_int {
    answer("ncclLLA2ACalcSlots", null_mut(), 0, || {
        let function = internal::nccl_function_alone(c"ncclLLA2ACalcSlots")?;
        // SAFETY: NCCL's function of this name, which takes numbers.
        Ok(unsafe {
            let function: unsafe extern "C" fn(c_int, c_int) -> c_int = transmute(function);
            function(maxElts, maxEltSize)
        })
    })
}

/// What an all-to-all inside kernels needs.
///
/// # Safety
/// As in NCCL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclLLA2ACreateRequirement(
    nBlocks: c_int,
    nSlots: c_int,
    outHandle: *mut c_void,
    outReq: *mut c_void,
) -> ncclResult_t {
    const NAME: &str = "ncclLLA2ACreateRequirement";
    entry(NAME, null_mut(), || {
        let function = internal::nccl_function_alone(c"ncclLLA2ACreateRequirement")?;
        // SAFETY: NCCL's function of this name; the rest is the caller's promise.
        let result = unsafe {
            let function: unsafe extern "C" fn(c_int, c_int, Pointer, Pointer) -> i32 =
                transmute(function);
            function(nBlocks, nSlots, outHandle, outReq)
        };
        handed_on(NAME, null_mut(), result)
    })
}
