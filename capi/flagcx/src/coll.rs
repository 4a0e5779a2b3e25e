//! Operations. Each is one call of the engine inside the boundary.

use crate::flagcx_abi::operations::operations;
use crate::flagcx_abi::skin::{Checked, entry, operation, raw_stream};
use crate::types::*;
use engine::internal;
use std::ffi::{c_int, c_void};

macro_rules! export {
    (
        $(#[$doc:meta])*
        $name:ident $field:ident, $checked:expr, $engine:ident($($arg:ident: $ty:ty),*)
    ) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// Buffers and arrays as in FlagCX; a stream that is not NULL must point to a pointer.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($arg: $ty,)*
            comm: flagcxComm_t,
            stream: flagcxStream_t,
        ) -> flagcxResult_t {
            operation!(stringify!($name), $checked, $engine($($arg: $ty),*), comm, stream)
        }
    };
}
operations!(export);

/// Waits, host included, until every rank is here.
///
/// # Safety
/// A stream that is not NULL must point to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxBarrier(
    comm: flagcxComm_t,
    stream: flagcxStream_t,
) -> flagcxResult_t {
    let result = operation!("flagcxBarrier", Checked::dtype(0), barrier(), comm, stream);
    if result != flagcxSuccess {
        return result;
    }
    // FlagCX's programs rely on the host having waited too.
    entry("flagcxBarrier", comm, || {
        // SAFETY: this function's contract.
        internal::stream_synchronize(unsafe { raw_stream(stream) }?)
    })
}
