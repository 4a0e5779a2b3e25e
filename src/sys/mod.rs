//! The few system calls that std does not cover, each behind a safe function.

pub(crate) mod cpu;
pub(crate) mod futex;
pub(crate) mod memory;
pub(crate) mod unix;
