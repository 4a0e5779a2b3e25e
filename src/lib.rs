//! Collective communication on any accelerator, without being built for a vendor.

#[expect(dead_code, reason = "the communicator will use it")]
mod config;
#[expect(dead_code, unused_imports, reason = "the communicator will use it")]
mod device;
mod error;
mod host;
#[expect(dead_code, reason = "the communicator will use it")]
mod load;
#[expect(dead_code, reason = "the C libraries will use it")]
mod log;
mod sys;
mod types;
#[expect(dead_code, reason = "the communicator will use it")]
mod vendor;

pub use error::{Code, Error, Result};
pub use types::*;
