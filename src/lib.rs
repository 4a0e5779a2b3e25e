//! Collective communication on any accelerator, without being built for a vendor.

mod error;
mod host;
mod types;

pub use error::{Code, Error, Result};
pub use types::*;
