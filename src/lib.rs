//! Collective communication on any accelerator, without being built for a vendor.

mod api;
mod bootstrap;
mod comm;
mod control;
mod error;
mod host;
#[doc(hidden)]
pub mod internal;
mod sys;
mod types;

pub use api::*;
pub use comm::options::{Limit, Options, VendorKnobs};
pub use error::{Code, Error, Result};
pub use types::*;
