//! Reduction operators of the caller's own.

use crate::boundary::{Out, entry, handle, not_null};
use crate::types::*;
use engine::internal;
use std::ffi::c_void;

/// Makes an operator that multiplies this rank's contribution by a scalar before it is summed. It
/// belongs to comm and works with this datatype only.
///
/// @param op         receives the operator; 0 on failure. Not NULL.
/// @param scalar     one element of datatype. Not NULL. With flagosScalarHostImmediate it lies in host
///                   memory and is copied by the call; with flagosScalarDevice it lies in device memory
///                   and must stay until the last operation with op is complete.
/// @param datatype   type of the scalar and of the operations with op.
/// @param residence  a flagosScalarResidenceCode.
/// @param comm       the communicator.
///
/// Threads: not while another call runs on comm, flagosCommAbort excepted.
///
/// @return flagosSuccess; flagosInvalidArgument (a NULL, datatype or residence out of range, no live
/// communicator); flagosInvalidUsage (comm has failed); flagosNotSupported (the tier can't);
/// flagosUnhandledCclError, flagosInternalError.
///
/// Semantics: NCCL's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosRedOpCreatePreMulSum(
    op: *mut flagosRedOp_t,
    scalar: *const c_void,
    datatype: flagosDataType_t,
    residence: flagosScalarResidence_t,
    comm: flagosComm_t,
) -> flagosResult_t {
    entry("flagosRedOpCreatePreMulSum", comm, || {
        // SAFETY: the header's contract.
        unsafe {
            let out = Out::new(op, "op", 0)?;
            not_null(scalar, "scalar")?;
            out.set(internal::redop_create_pre_mul_sum(
                handle(comm),
                scalar,
                datatype,
                residence,
            )?);
        }
        Ok(())
    })
}

/// Frees an operator. Operations with it that are enqueued stay valid.
///
/// @param op    the operator of flagosRedOpCreatePreMulSum.
/// @param comm  the communicator that it was made for.
///
/// Threads: not while another call runs on comm, flagosCommAbort excepted.
///
/// @return flagosSuccess; flagosInvalidArgument (no live communicator, one of the built-in operators,
/// no operator of comm); flagosUnhandledCclError, flagosInternalError.
///
/// Semantics: NCCL's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosRedOpDestroy(
    op: flagosRedOp_t,
    comm: flagosComm_t,
) -> flagosResult_t {
    entry("flagosRedOpDestroy", comm, || {
        internal::redop_destroy(handle(comm), op)
    })
}
