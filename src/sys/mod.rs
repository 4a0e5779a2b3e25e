//! The few system calls that the standard library does not wrap.

pub(crate) mod fork;
pub(crate) mod net;
pub(crate) mod process;
