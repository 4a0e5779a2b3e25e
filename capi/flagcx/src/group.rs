//! Groups. They are the calling thread's: the communicator, which FlagCX uses to pick a runner, is
//! a word that nobody follows. Older programs pass none at all.

use crate::boundary::handle;
use crate::flagcx_abi::skin::{entry, entry_with_state};
use crate::types::*;
use engine::internal;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

/// Says once that somebody passes a word that is no communicator.
fn look_at(name: &str, comm: flagcxComm_t) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if comm.is_null() || internal::is_live(handle(comm)) || SAID.swap(true, Ordering::Relaxed) {
        return;
    }
    log::info!(
        "{name} was given {comm:p}, which is no live communicator. It doesn't matter: groups are the \
         thread's. A program that was built for a FlagCX before 0.13 passes no communicator"
    );
}

/// Opens a group on the calling thread.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxGroupStart(comm: flagcxComm_t) -> flagcxResult_t {
    entry("flagcxGroupStart", null_mut(), || {
        look_at("flagcxGroupStart", comm);
        internal::group_start()
    })
}

/// Closes it; the outermost end launches what is inside.
///
/// # Safety
/// Buffers of the operations inside must still be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxGroupEnd(comm: flagcxComm_t) -> flagcxResult_t {
    entry_with_state("flagcxGroupEnd", null_mut(), || {
        look_at("flagcxGroupEnd", comm);
        internal::group_end()
    })
}
