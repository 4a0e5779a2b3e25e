//! The native tier over the stand-ins of NCCL and CUDA, from C: device index, groups, life and death, agreement, what is
//! not an ordinary collective, and the host tier with device memory.
//!
//! The programs are those of `tests/c/native`; each scenario checks itself, and the tests add what can only be seen from
//! outside: the stand-ins' call log, the exit of the process, what it said. The stand-ins prove dispatch and ABI, not the
//! vendor.

mod agree;
mod device;
mod faults;
mod groups;
mod kit;
mod life;
mod ops;
mod staged;
mod vote;
