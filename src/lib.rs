//! Collective communication on any accelerator, without being built for a vendor.

mod api;
mod bootstrap;
mod comm;
mod config;
mod control;
mod device;
mod differing;
mod error;
#[cfg(test)]
mod fuzz;
mod host;
#[doc(hidden)]
pub mod internal;
mod load;
mod log;
mod ops;
mod sys;
mod types;
mod vendor;
mod words;

pub use api::*;
pub use comm::options::{Caller, Limit, Options, VendorKnobs};
pub use error::{Code, Error, Result};
pub use types::*;
