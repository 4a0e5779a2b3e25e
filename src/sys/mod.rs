//! The few system calls that the standard library does not wrap.

pub(crate) mod callback;
pub(crate) mod cpu;
pub(crate) mod fork;
pub(crate) mod futex;
pub(crate) mod handoff;
pub(crate) mod memory;
pub(crate) mod net;
pub(crate) mod per_process;
pub(crate) mod process;
pub(crate) mod secure;
pub(crate) mod stopwatch;
pub(crate) mod turnstile;
pub(crate) mod unix;
