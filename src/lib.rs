//! Collective communication on any accelerator, without being built for a vendor.

mod error;
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "the communicator does not use it yet")
)]
mod host;
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "the communicator does not use it yet")
)]
mod sys;
mod types;

pub use error::{Code, Error, Result};
pub use types::*;
