//! Collective communication on any accelerator, without being built for a vendor.

mod api;
mod bootstrap;
mod comm;
#[cfg_attr(not(test), expect(dead_code, reason = "the communicator will use it"))]
mod config;
mod control;
#[expect(dead_code, reason = "the communicator will use it")]
mod device;
mod error;
mod host;
#[doc(hidden)]
pub mod internal;
#[expect(dead_code, reason = "the communicator will use it")]
mod load;
#[cfg_attr(not(test), expect(dead_code, reason = "the C libraries will use it"))]
mod log;
mod sys;
mod types;
#[expect(dead_code, reason = "the communicator will use it")]
mod vendor;

pub use api::*;
pub use comm::options::{Limit, Options, VendorKnobs};
pub use error::{Code, Error, Result};
pub use types::*;
