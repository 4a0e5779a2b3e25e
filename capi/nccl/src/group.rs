//! Groups. They are the calling thread's.

use crate::boundary::{SizedOut, not_null};
use crate::skin::{entry, entry_with_state};
use crate::types::*;
use engine::{Error, internal};
use std::mem::offset_of;
use std::ptr::null_mut;

/// Opens a group on the calling thread.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupStart() -> ncclResult_t {
    entry("ncclGroupStart", null_mut(), internal::group_start)
}

/// Closes it; the outermost end launches what is inside.
///
/// # Safety
/// Buffers of the operations inside must still be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupEnd() -> ncclResult_t {
    entry_with_state("ncclGroupEnd", null_mut(), internal::group_end)
}

/// Closes it without launching anything, and estimates how long it would have taken.
///
/// # Safety
/// `simInfo` must be NULL or start with its size, and be as large.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupSimulateEnd(simInfo: *mut ncclSimInfo_t) -> ncclResult_t {
    entry("ncclGroupSimulateEnd", null_mut(), || {
        not_null(simInfo, "simInfo")?;
        // SAFETY: not NULL; every header's struct has these.
        let (size, magic, version) = unsafe {
            (
                (&raw const (*simInfo).size).read_unaligned(),
                (&raw const (*simInfo).magic).read_unaligned(),
                (&raw const (*simInfo).version).read_unaligned(),
            )
        };
        if magic != NCCL_SIM_INFO_MAGIC {
            return Err(Error::invalid_argument(
                "simInfo->magic is wrong: start from NCCL_SIM_INFO_INITIALIZER",
            ));
        }
        // SAFETY: this function's contract.
        let out = unsafe {
            SizedOut::new(
                simInfo,
                "simInfo",
                "NCCL_SIM_INFO_INITIALIZER",
                offset_of!(ncclSimInfo_t, estimatedTime) + size_of::<f32>(),
            )
        }?;
        let time = internal::group_simulate_end();
        // The header survives a failure: the caller may use the struct again.
        out.set(&ncclSimInfo_t {
            size,
            magic,
            version,
            estimatedTime: *time.as_ref().unwrap_or(&0.0),
        });
        time.map(drop)
    })
}
