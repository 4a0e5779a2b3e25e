//! Reduction operators of the caller's own.

use crate::boundary::{Out, handle, not_null};
use crate::skin::entry;
use crate::types::*;
use engine::internal;
use std::ffi::c_void;

/// Makes an operator that multiplies this rank's contribution by a scalar before the sum.
///
/// # Safety
/// `op` must be NULL or valid, `scalar` NULL or one element, on the device if `residence` says so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclRedOpCreatePreMulSum(
    op: *mut ncclRedOp_t,
    scalar: *mut c_void,
    datatype: ncclDataType_t,
    residence: ncclScalarResidence_t,
    comm: ncclComm_t,
) -> ncclResult_t {
    entry("ncclRedOpCreatePreMulSum", comm, || {
        // SAFETY: this function's contract.
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

/// Frees an operator.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclRedOpDestroy(op: ncclRedOp_t, comm: ncclComm_t) -> ncclResult_t {
    entry("ncclRedOpDestroy", comm, || {
        internal::redop_destroy(handle(comm), op)
    })
}
