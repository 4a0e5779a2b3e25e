//! The host tier: collectives on host memory, without any vendor library.

pub(crate) mod kernels;
pub(crate) mod op;
pub(crate) mod shm;
