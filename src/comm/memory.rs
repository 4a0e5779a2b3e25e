//! Memory for communication, its registration, and custom reduction operators.

use super::table::{self, Handle, place};
use super::{Backend, not_on};
use crate::device::user_ptr;
use crate::error::{Error, Result};
use crate::host::heap;
use crate::host::port::read_scalar;
use crate::load;
use crate::ops::{CustomRedOp, lock};
use crate::sys::per_process::PerProcess;
use crate::sys::process::first_number;
use crate::types::DataType;
use crate::vendor::comm::Scalar;
use std::alloc::Layout;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, OnceLock};

/// Alignment of host memory that we give: pages, so that it can be shared and pinned.
const HOST_ALIGN: usize = 4096;

#[derive(Clone, Copy)]
enum Owner {
    /// The vendor's collective library.
    Library,
    /// The driver, on this device.
    Driver,
    /// The driver, on the host.
    Pinned,
    /// This process' memory that others can use in place, so many bytes.
    Shared(usize),
    /// This process' own.
    Host(usize),
}

fn owners() -> &'static Mutex<HashMap<usize, Owner>> {
    static OWNERS: PerProcess<Mutex<HashMap<usize, Owner>>> = PerProcess::new();
    OWNERS.get_or_init(Mutex::default)
}

/// Memory that the tier in use can transfer best: the vendor's own kind, else the device's, else
/// the host's that other processes of the machine can use in place.
pub fn mem_alloc(bytes: usize) -> Result<*mut c_void> {
    if bytes == 0 {
        return Err(Error::invalid_argument("0 bytes of memory are asked for"));
    }
    let (memory, owner) = match load::process_driver()? {
        Some(driver) => {
            let by_library = load::process_library()
                .ok()
                .filter(|l| l.symbols.mem_alloc.is_some());
            match by_library.map(|l| l.mem_alloc(bytes)) {
                Some(Ok(memory)) => (memory, Owner::Library),
                Some(Err(error)) => {
                    log::info!("{error}; ordinary device memory instead");
                    (driver.malloc(bytes)?, Owner::Driver)
                }
                None => (driver.malloc(bytes)?, Owner::Driver),
            }
        }
        None => match heap::alloc(bytes)? {
            Some(memory) => (memory.cast(), Owner::Shared(bytes)),
            None => host_memory(bytes)?,
        },
    };
    lock(owners()).insert(memory as usize, owner);
    Ok(memory)
}

fn host_memory(bytes: usize) -> Result<(*mut c_void, Owner)> {
    let layout = Layout::from_size_align(bytes, HOST_ALIGN).map_err(|_| {
        Error::invalid_argument(format!("{bytes} bytes are more than memory can hold"))
    })?;
    // SAFETY: the layout has a size that is not 0.
    let memory = unsafe { std::alloc::alloc_zeroed(layout) };
    if memory.is_null() {
        return Err(Error::new(
            crate::Code::SystemError,
            format!("{bytes} bytes of memory can't be had"),
        ));
    }
    Ok((memory.cast(), Owner::Host(bytes)))
}

/// Ordinary memory of the current device, or of the host that the device can reach; without a driver,
/// both are the host's. [`mem_free`] frees it.
pub fn device_alloc(bytes: usize, on_host: bool) -> Result<*mut c_void> {
    if bytes == 0 {
        return Err(Error::invalid_argument("0 bytes of memory are asked for"));
    }
    let (memory, owner) = match load::process_driver()? {
        Some(driver) if on_host => (driver.malloc_host(bytes)?, Owner::Pinned),
        Some(driver) => (driver.malloc(bytes)?, Owner::Driver),
        None => host_memory(bytes)?,
    };
    lock(owners()).insert(memory as usize, owner);
    Ok(memory)
}

/// Frees memory of [`mem_alloc`]; NULL is nothing to do.
pub fn mem_free(memory: *mut c_void) -> Result<()> {
    if memory.is_null() {
        return Ok(());
    }
    let owner = lock(owners()).remove(&(memory as usize)).ok_or_else(|| {
        Error::invalid_argument(format!(
            "{memory:p} is no memory of flagosMemAlloc, or was freed"
        ))
    })?;
    match owner {
        Owner::Library => load::process_library()?.mem_free(user_ptr(memory)),
        Owner::Driver => match load::process_driver()? {
            Some(driver) => driver.free_user(user_ptr(memory)),
            None => Err(Error::internal("device memory without a driver")),
        },
        Owner::Pinned => match load::process_driver()? {
            Some(driver) => driver.free_host_user(user_ptr(memory)),
            None => Err(Error::internal("pinned memory without a driver")),
        },
        Owner::Shared(bytes) => heap::free(memory.cast(), bytes),
        Owner::Host(bytes) => {
            if let Ok(layout) = Layout::from_size_align(bytes, HOST_ALIGN) {
                // SAFETY: allocated with this layout and not freed since, as the table says.
                unsafe { std::alloc::dealloc(memory.cast(), layout) };
            }
            Ok(())
        }
    }
}

fn check_buffer(memory: *mut c_void, bytes: usize) -> Result<()> {
    if memory.is_null() || bytes == 0 {
        return Err(Error::invalid_argument(format!(
            "a buffer of {bytes} bytes at {memory:p} can't be registered"
        )));
    }
    Ok(())
}

/// What a registration handle of the host tier stands for: a hint, kept to be checked.
fn hints() -> &'static Mutex<HashMap<usize, Handle>> {
    static HINTS: PerProcess<Mutex<HashMap<usize, Handle>>> = PerProcess::new();
    HINTS.get_or_init(Mutex::default)
}

fn new_hint(handle: Handle) -> *mut c_void {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static FIRST: OnceLock<usize> = OnceLock::new();
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let first = FIRST.get_or_init(first_number);
    let hint = (first + COUNT.fetch_add(1, Ordering::Relaxed)) << 4 | 5;
    lock(hints()).insert(hint, handle);
    hint as *mut c_void
}

fn remove_hint(handle: Handle, hint: *mut c_void, what: &str) -> Result<()> {
    let mut hints = lock(hints());
    match hints.get(&(hint as usize)) {
        Some(owner) if *owner == handle => {
            hints.remove(&(hint as usize));
            Ok(())
        }
        _ => Err(Error::invalid_argument(format!(
            "{hint:p} is no {what} of this communicator"
        ))),
    }
}

/// Registers a buffer; local.
pub fn comm_register(handle: Handle, memory: *mut c_void, bytes: usize) -> Result<*mut c_void> {
    let parts = table::get(handle)?.working()?;
    check_buffer(memory, bytes)?;
    match &parts.backend {
        Backend::Native(native) => native.register(user_ptr(memory), bytes),
        Backend::Host(_) => Ok(new_hint(handle)),
    }
}

/// Undoes it; NULL is nothing to do.
pub fn comm_deregister(handle: Handle, registration: *mut c_void) -> Result<()> {
    let parts = table::get(handle)?.parts()?;
    if registration.is_null() {
        return Ok(());
    }
    match &parts.backend {
        Backend::Native(native) => native.deregister(user_ptr(registration)),
        Backend::Host(_) => remove_hint(handle, registration, "registration"),
    }
}

/// Registers a window; collective, with a vote: all ranks get one, or none.
pub fn comm_window_register(
    handle: Handle,
    memory: *mut c_void,
    bytes: usize,
    flags: i32,
) -> Result<*mut c_void> {
    let comm = table::get(handle)?;
    let parts = comm.working()?;
    if super::group::is_open() {
        return Err(Error::invalid_usage(
            "a window can't be registered inside a group",
        ));
    }
    let _one = parts.collective.try_lock().map_err(|_| {
        Error::invalid_usage("another collective call on this communicator is going on")
    })?;
    let patience = comm.init_patience();
    // A rank that declines must not leave the others inside the vendor's collective call.
    let own = check_buffer(memory, bytes).and_then(|()| match &parts.backend {
        Backend::Native(native) if native.library().symbols.comm_window_register.is_none() => {
            Err(native.library().lacks("CommWindowRegister"))
        }
        _ => Ok(()),
    });
    vote(&parts, "the vote on a window", &own, &patience)?;
    own?;
    match &parts.backend {
        Backend::Native(native) => {
            let buffer = user_ptr(memory);
            let made = move |native: &super::Native| native.window_register(buffer, bytes, flags);
            let window = super::end::bounded(&comm, native, "window registration", &patience, made);
            let verdict = window.as_ref().map(drop).map_err(Error::clone);
            // A window that this rank has and another has not stays until the communicator ends: to
            // give it back is a collective call too, which the others can't join.
            vote(&parts, "the vote on a made window", &verdict, &patience)?;
            Ok(window?.0.raw())
        }
        Backend::Host(_) => Ok(new_hint(handle)),
    }
}

/// The same error on all ranks if one has an error.
fn vote(
    parts: &super::Parts,
    phase: &str,
    own: &Result<()>,
    patience: &crate::control::patience::Patience,
) -> Result<()> {
    let text = own
        .as_ref()
        .err()
        .map(|e| e.text().to_owned())
        .unwrap_or_default();
    let votes = lock(&parts.channel).allgather(phase, text.as_bytes(), patience)?;
    let first = votes.all().enumerate().find(|(_, v)| !v.is_empty());
    match (own, first) {
        (Err(error), _) => Err(error.clone()),
        (Ok(()), None) => Ok(()),
        (Ok(()), Some((rank, text))) => Err(Error::new(
            crate::Code::RemoteError,
            format!("rank {rank}: {}", String::from_utf8_lossy(text)),
        )),
    }
}

/// Undoes it; collective on a vendor. NULL is nothing to do.
pub fn comm_window_deregister(handle: Handle, window: *mut c_void) -> Result<()> {
    let parts = table::get(handle)?.parts()?;
    if window.is_null() {
        return Ok(());
    }
    match &parts.backend {
        Backend::Native(native) => native.window_deregister(user_ptr(window)),
        Backend::Host(_) => remove_hint(handle, window, "window"),
    }
}

/// Makes an operator that multiplies this rank's contribution by `*scalar` before the sum.
///
/// # Safety
/// `scalar` must point to one element of `dtype`: on the host if `residence` is 1, on the device
/// if it is 0 (there it must stay until the operator is destroyed).
pub unsafe fn redop_create_pre_mul_sum(
    handle: Handle,
    scalar: *const c_void,
    dtype: i32,
    residence: i32,
) -> Result<i32> {
    let parts = table::get(handle)?.working()?;
    let dtype = DataType::from_raw(dtype)
        .ok_or_else(|| Error::invalid_argument(format!("{dtype} is no data type")))?;
    if scalar.is_null() {
        return Err(Error::invalid_argument("scalar is NULL"));
    }
    if !(0..=1).contains(&residence) {
        return Err(Error::invalid_argument(format!(
            "residence is {residence}, but must be 0 (device) or 1 (host, copied at the call)"
        )));
    }
    let target = &place(handle).target;
    match &parts.backend {
        Backend::Native(native) => {
            let scalar = if residence == 0 {
                Scalar::Device(user_ptr(scalar.cast_mut()))
            } else {
                // SAFETY: the caller's promise: one element on the host.
                Scalar::Host(unsafe { read_scalar(scalar, dtype, false, None)? })
            };
            let vendor = native.create_pre_mul_sum(scalar, dtype)?;
            Ok(target.add_redop(CustomRedOp {
                dtype,
                scalar: [0; 8],
                vendor,
            }))
        }
        Backend::Host(_) => {
            if dtype.is_float8() {
                return Err(not_on(parts.tier, "a reduction of fp8"));
            }
            let driver = load::process_driver()?;
            // SAFETY: the caller's promise about the scalar.
            let scalar = unsafe { read_scalar(scalar, dtype, residence == 0, driver)? };
            Ok(target.add_redop(CustomRedOp {
                dtype,
                scalar,
                vendor: 0,
            }))
        }
    }
}

/// Frees it.
pub fn redop_destroy(handle: Handle, op: i32) -> Result<()> {
    let parts = table::get(handle)?.parts()?;
    let redop = place(handle).target.remove_redop(op).ok_or_else(|| {
        Error::invalid_argument(format!(
            "{op} is no live reduction operator of this communicator"
        ))
    })?;
    match &parts.backend {
        Backend::Native(native) => native.destroy_redop(redop.vendor),
        Backend::Host(_) => Ok(()),
    }
}
