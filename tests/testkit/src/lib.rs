//! What the tests of flagos-comm share: stand-in vendor libraries ([`standins`]), processes as ranks ([`ranks`]), C
//! programs with scenarios ([`scenario`]) and the libraries that are under test ([`cargo`]).

pub mod cargo;
pub mod ranks;
pub mod scenario;
pub mod standins;

pub use standins::{Broken, Call, CallLog, Standins};
