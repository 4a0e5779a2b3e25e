//! Registrations and windows by the handles that a program has, for the drop-in libraries: what is no live
//! one is refused, never followed.

use engine::internal::{self, Handle, PerProcess, first_number};
use engine::{Error, Result};
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::without_provenance_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A buffer that was registered. Registering the same again counts.
struct Registration {
    /// The communicator, 0 for none.
    comm: Handle,
    buffer: usize,
    size: usize,
    /// The engine's registration, if it was asked.
    engine: Option<*mut c_void>,
    uses: usize,
}

/// Registrations and windows of this process.
#[derive(Default)]
pub(crate) struct Registry {
    last: usize,
    registrations: HashMap<usize, Registration>,
    /// The communicator and the engine's window.
    windows: HashMap<usize, (Handle, *mut c_void)>,
}

// SAFETY: the pointers are the engine's handles, which any thread may pass.
unsafe impl Send for Registry {}

static REGISTRY: PerProcess<Mutex<Registry>> = PerProcess::new();

pub(crate) fn registry() -> MutexGuard<'static, Registry> {
    let registry = REGISTRY.get_or_init(Mutex::default);
    registry.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    /// A number that no address of an object is and that another copy of this library does not have.
    fn next(&mut self) -> usize {
        if self.last == 0 {
            self.last = first_number();
        }
        self.last += 1;
        self.last << 4 | 9
    }

    /// Registers a buffer, or counts that it was registered again. `engine` is asked the first time.
    pub(crate) fn register(
        &mut self,
        comm: Handle,
        buffer: *mut c_void,
        size: usize,
        engine: impl FnOnce() -> Result<Option<*mut c_void>>,
    ) -> Result<*mut c_void> {
        let again = self
            .registrations
            .iter_mut()
            .find(|(_, r)| (r.comm, r.buffer, r.size) == (comm, buffer.addr(), size));
        if let Some((number, registration)) = again {
            registration.uses += 1;
            return Ok(without_provenance_mut(*number));
        }
        let registration = Registration {
            comm,
            buffer: buffer.addr(),
            size,
            engine: engine()?,
            uses: 1,
        };
        let number = self.next();
        self.registrations.insert(number, registration);
        Ok(without_provenance_mut(number))
    }

    /// Takes one registration back.
    pub(crate) fn deregister(&mut self, comm: Handle, number: *mut c_void) -> Result<()> {
        let registration = self
            .registrations
            .get_mut(&number.addr())
            .filter(|r| r.comm == comm)
            .ok_or_else(|| {
                Error::invalid_argument(format!(
                    "{number:p} is no live registration of this communicator"
                ))
            })?;
        registration.uses -= 1;
        if registration.uses > 0 {
            return Ok(());
        }
        let engine = registration.engine;
        self.registrations.remove(&number.addr());
        match engine {
            Some(engine) => internal::comm_deregister(comm, engine),
            None => Ok(()),
        }
    }

    /// Keeps a window under a number of ours.
    pub(crate) fn add_window(&mut self, comm: Handle, engine: *mut c_void) -> *mut c_void {
        let number = self.next();
        self.windows.insert(number, (comm, engine));
        without_provenance_mut(number)
    }

    /// Keeps a window under the engine's own handle, which is the vendor's and goes into kernels.
    pub(crate) fn add_window_as_it_is(&mut self, comm: Handle, engine: *mut c_void) {
        self.windows.insert(engine.addr(), (comm, engine));
    }

    /// The engine's window, which is no live one any more.
    pub(crate) fn take_window(&mut self, comm: Handle, window: *mut c_void) -> Result<*mut c_void> {
        let found = self.windows.get(&window.addr()).copied();
        let (_, engine) = found.filter(|(of, _)| *of == comm).ok_or_else(|| {
            Error::invalid_argument(format!("{window:p} is no live window of this communicator"))
        })?;
        self.windows.remove(&window.addr());
        Ok(engine)
    }

    /// Forgets what belonged to a communicator that is gone.
    pub(crate) fn forget(&mut self, comm: Handle) {
        self.registrations.retain(|_, r| r.comm != comm);
        self.windows.retain(|_, (of, _)| *of != comm);
    }
}
