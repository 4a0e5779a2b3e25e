//! Drivers: which device is current now on this thread, streams, events, memory.
//!
//! Nothing here remembers the current device. Every question goes to the driver.

mod driver;
mod guard;
mod rows;

pub(crate) use driver::{
    CopyKind, Driver, OwnedEvent, OwnedStream, PointerOwner, RawEvent, RawStream, UserPtr,
};
pub(crate) use guard::Guard;
pub(crate) use rows::{CUDA, DriverRow, LowRow};
