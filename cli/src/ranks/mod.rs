//! Which ranks this process is, and the channel over which the tool's own ranks talk.

pub mod coord;
pub mod join;
