//! Sets a device and puts the caller's back.
#![forbid(unsafe_code)]

use std::marker::PhantomData;

use super::driver::{Driver, Saved};
use crate::Result;

/// While it lives, a device is the thread's current one; then the caller's is again, on every path.
#[must_use]
pub(crate) struct Guard<'a> {
    driver: &'a Driver,
    saved: Option<Saved>,
    /// The device belongs to the thread.
    _thread: PhantomData<*const ()>,
}

impl<'a> Guard<'a> {
    /// Makes a device current if it isn't.
    pub(crate) fn enter(driver: &'a Driver, device: i32) -> Result<Guard<'a>> {
        let saved = driver.save()?;
        let already = match saved {
            Saved::Device(current) => current == device,
            Saved::Context(_) => driver.current().is_ok_and(|current| current == device),
            Saved::Nothing => false,
        };
        let mut guard = Guard {
            driver,
            saved: None,
            _thread: PhantomData,
        };
        if !already {
            // Before the call: a driver that fails half way may have moved the device.
            guard.saved = Some(saved);
            driver.set(device)?;
        }
        Ok(guard)
    }

    /// Puts the caller's device back and says if that failed.
    pub(crate) fn leave(mut self) -> Result<()> {
        match self.saved.take() {
            Some(saved) => self
                .driver
                .restore(saved)
                .map_err(|error| error.context("putting the calling thread's device back")),
            None => Ok(()),
        }
    }

    /// Runs a function with a device current. The function's error comes first; a restore that
    /// fails after success is an error too.
    pub(crate) fn with<T>(
        driver: &'a Driver,
        device: i32,
        function: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let guard = Guard::enter(driver, device)?;
        let value = function();
        match (value, guard.leave()) {
            (Ok(value), Ok(())) => Ok(value),
            (Ok(_), Err(restore)) => Err(restore),
            (Err(error), Ok(())) => Err(error),
            (Err(error), Err(restore)) => {
                log::warn!("{restore}");
                Err(error)
            }
        }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if let Some(saved) = self.saved.take()
            && let Err(error) = self.driver.restore(saved)
        {
            log::warn!("putting the calling thread's device back: {error}");
        }
    }
}
