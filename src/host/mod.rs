//! The host tier: collectives on host memory, without any vendor library.

pub(crate) mod crew;
pub(crate) mod heap;
pub(crate) mod kernels;
pub(crate) mod liveness;
pub(crate) mod op;
pub(crate) mod port;
pub(crate) mod shm;
pub(crate) mod stage;
pub(crate) mod stream;
