//! The channel that lives with a communicator: votes, liveness, abort, deadlines.

pub(crate) mod channel;
pub(crate) mod gathered;
pub(crate) mod patience;
pub(crate) mod strangers;
pub(crate) mod tree;
pub(crate) mod wire;
