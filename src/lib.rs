//! Collective communication on any accelerator, without being built for a vendor.

#[cfg_attr(not(test), expect(dead_code, reason = "the communicator will use it"))]
mod config;
#[cfg_attr(
    not(test),
    expect(dead_code, unused_imports, reason = "the communicator will use it")
)]
mod device;
mod error;
mod host;
#[cfg_attr(not(test), expect(dead_code, reason = "the communicator will use it"))]
mod load;
#[cfg_attr(not(test), expect(dead_code, reason = "the C libraries will use it"))]
mod log;
mod sys;
mod types;
#[cfg_attr(not(test), expect(dead_code, reason = "the communicator will use it"))]
mod vendor;

pub use error::{Code, Error, Result};
pub use types::*;
