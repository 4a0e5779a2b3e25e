//! A communicator's life.

pub mod options;
pub(crate) mod rare;
