//! The fork generation: how a child knows that what it inherited is not its own.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Called in the child of every fork, before user code runs there. Async-signal-safe.
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    crate::comm::rare::set(crate::comm::rare::FORKED);
}

/// How many forks lie between the process that first asked and this one.
pub(crate) fn generation() -> u32 {
    // Not a `Once`: a child could inherit it half done. Two handlers do no harm.
    if !INSTALLED.load(Ordering::Acquire) {
        // SAFETY: the handler is a plain function that only touches atomics, and the library is
        // linked with -z nodelete, so it stays mapped for the life of the process.
        unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
        }
        INSTALLED.store(true, Ordering::Release);
    }
    GENERATION.load(Ordering::Relaxed)
}
