//! The host tier: collectives on host memory, without any vendor library.

mod check;
pub(crate) mod crew;
pub(crate) mod engine;
pub(crate) mod heap;
pub(crate) mod kernels;
pub(crate) mod layers;
pub(crate) mod liveness;
mod local;
pub(crate) mod net;
pub(crate) mod op;
pub(crate) mod port;
pub(crate) mod shm;
pub(crate) mod stage;
pub(crate) mod stream;
#[cfg(test)]
pub(crate) mod tests;
