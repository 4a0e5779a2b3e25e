//! The host tier: collectives on host memory, without any vendor library.

pub(crate) mod op;
