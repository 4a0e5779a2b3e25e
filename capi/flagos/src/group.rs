//! Groups: several calls that start together.

use crate::boundary::{SizedOut, entry, entry_with_state};
use crate::types::*;
use engine::Error;
use engine::internal;
use std::ptr::null_mut;

/// Opens a group on the calling thread. Calls of operations, inits and splits in it only record; the
/// outermost flagosGroupEnd starts them together. Groups nest. Until the outermost end, buffers must
/// stay as they are and the places where inits will write their handle must stay valid.
///
/// Threads: the group belongs to the calling thread.
///
/// @return flagosSuccess; flagosInvalidUsage (nested too deep); flagosInternalError.
///
/// Semantics: NCCL's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosGroupStart() -> flagosResult_t {
    entry("flagosGroupStart", null_mut(), internal::group_start)
}

/// Closes a group of the calling thread. The outermost end starts everything that was recorded, and
/// writes the handles of inits and splits: each is valid, or NULL if the end fails. If a call in the
/// group was refused, nothing is started and the end returns the first error. The thread is outside
/// any group afterwards, whatever the result.
///
/// On the host tier a message that its receiver did not expect makes the end fail on both sides, but for
/// those of which the receiver alone learns; see flagosSend.
///
/// Threads: the one that called flagosGroupStart.
///
/// @return flagosSuccess; flagosInProgress (a member does not block); flagosInvalidUsage (no group is
/// open); else the first error of a member, which can be any that the calls in the group return.
///
/// Semantics: NCCL's; a refused call makes the end fail as a whole.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosGroupEnd() -> flagosResult_t {
    entry_with_state("flagosGroupEnd", null_mut(), internal::group_end)
}

/// Closes a group of the calling thread without starting anything, and estimates how long it would
/// have taken.
///
/// @param simInfo  in: its size, magic and version (FLAGOS_SIM_INFO_INITIALIZER); out: the estimate in
///                 microseconds; 0 on failure. Not NULL; if it is refused, the group stays open.
///
/// Threads: the one that called flagosGroupStart.
///
/// @return flagosSuccess; flagosInvalidArgument (simInfo is NULL or not initialised);
/// flagosInvalidUsage (no group is open); flagosNotSupported (the tier can't); else the first error of
/// a member.
///
/// Semantics: NCCL's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosGroupSimulateEnd(simInfo: *mut flagosSimInfo_t) -> flagosResult_t {
    entry("flagosGroupSimulateEnd", null_mut(), || {
        if !simInfo.is_null() {
            // SAFETY: the header's contract; magic and version lie in every header's struct.
            let magic = unsafe { (&raw const (*simInfo).magic).read_unaligned() };
            if magic != FLAGOS_CONFIG_MAGIC {
                return Err(Error::invalid_argument(
                    "simInfo->magic is wrong: start from FLAGOS_SIM_INFO_INITIALIZER",
                ));
            }
        }
        // SAFETY: the header's contract.
        unsafe {
            let version = if simInfo.is_null() {
                0
            } else {
                (&raw const (*simInfo).version).read_unaligned()
            };
            let out = SizedOut::new(
                simInfo,
                "simInfo",
                "FLAGOS_SIM_INFO_INITIALIZER",
                size_of::<flagosSimInfo_t>(),
            )?;
            let mut answer = flagosSimInfo_t {
                size: out.size(),
                magic: FLAGOS_CONFIG_MAGIC,
                version,
                estimatedTime: 0.0,
                reserved: 0,
            };
            // The header survives a failure: the caller may use the struct again.
            let time = internal::group_simulate_end();
            if let Ok(time) = time {
                answer.estimatedTime = time;
            }
            out.set(&answer);
            time.map(|_| ())
        }
    })
}
