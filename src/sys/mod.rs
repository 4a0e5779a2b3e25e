//! The few system calls and signals that the library needs.

pub(crate) mod per_process;
pub(crate) mod secure;
