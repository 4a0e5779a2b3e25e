//! Drivers: which device is current now on this thread, streams, events, memory.
//!
//! Nothing here remembers the current device. Every question goes to the driver.

mod acl;
mod adapter;
mod cnrt;
mod driver;
mod functions;
mod guard;
mod owners;
mod rows;
#[cfg(test)]
pub(crate) mod tests;
mod tx;

pub(crate) use driver::{
    CopyKind, DeviceWord, Driver, OwnedEvent, OwnedStream, PointerOwner, RawStream, UserPtr,
    event_of, stream_of, user_ptr,
};
pub(crate) use guard::Guard;
#[cfg(test)]
pub(crate) use rows::INVENTED;
pub(crate) use rows::{CUDA, DriverRow};
#[allow(unused_imports, reason = "for the vendors' rows and for tests")]
pub(crate) use {
    driver::{declarations, layouts},
    rows::{
        ACL, CNRT, DU_CUDA, GALAXYHIP, HIP, ILUVATAR_CUDA, KUNLUNXIN_CUDA, MACA, MUSA, TANG,
        THEAD_CUDA, TOPS, TX,
    },
};

use crate::Result;

/// What one thread had as its device, on the way to a helper thread that is to work for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadDevice(Option<(&'static Driver, i32)>);

/// The calling thread's device as the driver says now, if the process has a driver and the thread a
/// device. Never makes the process choose a vendor.
pub(crate) fn of_thread() -> ThreadDevice {
    let driver = crate::load::chosen_driver();
    ThreadDevice(driver.and_then(|driver| Some((driver, driver.current().ok()?))))
}

impl ThreadDevice {
    /// Prepares the calling thread, a helper, to work with it.
    pub(crate) fn apply(self) -> Result<()> {
        match self.0 {
            Some((driver, device)) => driver.prepare_thread(device),
            None => Ok(()),
        }
    }
}
