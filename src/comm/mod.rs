//! A communicator's life.

pub mod options;
