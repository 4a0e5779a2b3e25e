//! What all functions of the skin share: NCCL's result codes.

use crate::boundary;
use crate::types::*;
use engine::{Code, Result, internal};

/// NCCL's code for one of ours: its set ends at 7, and programs don't know more. There is no default,
/// so that a new code of ours has to be given a place here.
const fn of_code(code: Code) -> ncclResult_t {
    match code {
        Code::UnhandledDeviceError | Code::UnboundDevice => ncclUnhandledCudaError,
        Code::SystemError => ncclSystemError,
        // Another vendor's library has failed in a way that NCCL has no number for.
        Code::InternalError | Code::UnhandledCclError => ncclInternalError,
        Code::InvalidArgument => ncclInvalidArgument,
        // What NCCL gives for what it doesn't have.
        Code::InvalidUsage | Code::NotSupported => ncclInvalidUsage,
        // The caller, or another rank, has ended the communicator.
        Code::Aborted => ncclInvalidUsage,
        // Somebody did not come.
        Code::RemoteError | Code::Timeout => ncclRemoteError,
        Code::InProgress => ncclInProgress,
    }
}

/// NCCL's code for a result of the engine.
#[cold]
pub(crate) fn result(ours: i32) -> ncclResult_t {
    match Code::from_raw(ours) {
        Some(code) => of_code(code),
        None if ours == 0 => ncclSuccess,
        None => ncclInternalError,
    }
}

/// An entry that is not an operation.
#[inline(always)]
pub(crate) fn entry(
    name: &'static str,
    comm: ncclComm_t,
    body: impl FnOnce() -> Result<()>,
) -> ncclResult_t {
    result(boundary::entry(name, comm, body))
}

/// As [`entry`]; `Ok(false)` is in progress.
#[inline(always)]
pub(crate) fn entry_with_state(
    name: &'static str,
    comm: ncclComm_t,
    body: impl FnOnce() -> Result<bool>,
) -> ncclResult_t {
    result(boundary::entry_with_state(name, comm, body))
}

/// An operation. All its numbers are the engine's, so it goes on as it is.
#[inline(always)]
pub(crate) fn operation(
    name: &'static str,
    comm: ncclComm_t,
    call: impl FnOnce() -> i32,
) -> ncclResult_t {
    boundary::operation(name, comm, || match call() {
        0 => ncclSuccess,
        other => result(other),
    })
}

/// Refuses a handle that is no live communicator.
pub(crate) fn live(comm: ncclComm_t) -> Result<()> {
    internal::comm_count(boundary::handle(comm)).map(drop)
}
