//! A vendor's communicator: safe calls for everything that is not on the hot path.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use super::library::{Library, Progress};
use super::options::{CommOptions, ConfigBuffer};
use super::symbols::{CommPtr, RawResult, WindowPtr, function_name};
use crate::device::{Driver, Guard, UserPtr};
use crate::{DataType, Error, Result};

/// What a call to make a communicator reads and writes, also after it has returned: inside a group
/// and in non-blocking mode libraries write the handle when the work is done. So it has a fixed
/// place, which is reached through pointers only, and which is left behind unless the library has
/// said that the communicator is gone.
#[derive(Clone, Copy)]
pub(super) struct Slot(NonNull<SlotData>);

struct SlotData {
    raw: AtomicPtr<c_void>,
    config: UnsafeCell<ConfigBuffer>,
    excluded: UnsafeCell<Vec<c_int>>,
}

// SAFETY: after the call that makes the communicator only the atomic handle is used, from any
// thread.
unsafe impl Send for Slot {}
// SAFETY: as above.
unsafe impl Sync for Slot {}

impl Slot {
    pub(super) fn new(config: ConfigBuffer, excluded: &[c_int]) -> Slot {
        let data = SlotData {
            raw: AtomicPtr::new(ptr::null_mut()),
            config: UnsafeCell::new(config),
            excluded: UnsafeCell::new(excluded.to_vec()),
        };
        Slot(NonNull::from(Box::leak(Box::new(data))))
    }

    fn data(&self) -> &SlotData {
        // SAFETY: made by `new`, and freed only by the drop of the one `VendorComm` that has it;
        // what the library may write lies in an atomic and in cells.
        unsafe { self.0.as_ref() }
    }

    pub(super) fn out(&self) -> *mut CommPtr {
        self.data().raw.as_ptr()
    }

    pub(super) fn config(&self) -> *mut c_void {
        self.data().config.get().cast()
    }

    fn excluded(&self) -> *mut c_int {
        // SAFETY: nothing else refers to the list now: the library has not been given it yet.
        unsafe { (*self.data().excluded.get()).as_mut_ptr() }
    }
}

/// A communicator of the vendor. It is not destroyed on drop: what is not destroyed or aborted
/// by a call is left to the end of the process.
pub(crate) struct VendorComm {
    library: &'static Library,
    slot: Slot,
    closed: AtomicBool,
    gone: AtomicBool,
    /// The device that has to be current during its calls, if the library is so.
    scope: OnceLock<(&'static Driver, i32)>,
}

impl std::fmt::Debug for VendorComm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VendorComm")
            .field("library", &self.library.path())
            .field("closed", &self.closed)
            .finish()
    }
}

impl Drop for VendorComm {
    fn drop(&mut self) {
        if *self.gone.get_mut() {
            // SAFETY: made by `Box::leak` in `Slot::new`, freed once, here; the library has said
            // that the communicator is gone, so it has no pointer to the slot any more.
            drop(unsafe { Box::from_raw(self.slot.0.as_ptr()) });
        }
    }
}

impl VendorComm {
    pub(super) fn new(library: &'static Library, slot: Slot) -> VendorComm {
        VendorComm {
            library,
            slot,
            closed: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            scope: OnceLock::new(),
        }
    }

    /// Makes every call set the device first, if the library needs that.
    pub(crate) fn bind(&self, driver: &'static Driver, device: i32) {
        if self.library.row.quirks.needs_device {
            let _ = self.scope.set((driver, device));
        }
    }

    fn on_device(&self) -> Result<Option<Guard<'static>>> {
        let scope = self.scope.get();
        scope
            .map(|(driver, device)| Guard::enter(driver, *device))
            .transpose()
    }

    /// The library.
    pub(crate) fn library(&self) -> &'static Library {
        self.library
    }

    /// The vendor's handle; NULL before the group that makes it has ended. It is good until
    /// destroy or abort is called, which the holder of this struct has to order.
    pub(crate) fn raw(&self) -> CommPtr {
        self.slot.data().raw.load(Ordering::Acquire)
    }

    fn open(&self, suffix: &str) -> Result<(CommPtr, Option<Guard<'static>>)> {
        let raw = self.raw();
        if raw.is_null() || self.closed.load(Ordering::Acquire) {
            let state = if raw.is_null() {
                "not made yet"
            } else {
                "closed"
            };
            return Err(Error::invalid_usage(format!(
                "{} on a communicator of {} that is {state}",
                function_name(self.library.row, suffix),
                self.library.row.title
            )));
        }
        Ok((raw, self.on_device()?))
    }

    fn close(&self, suffix: &str) -> Result<(CommPtr, Option<Guard<'static>>)> {
        let opened = self.open(suffix)?;
        if self.closed.swap(true, Ordering::AcqRel) {
            return Err(Error::invalid_usage(format!(
                "{} on a communicator that another thread closes",
                function_name(self.library.row, suffix)
            )));
        }
        Ok(opened)
    }

    /// Waits for the work of all ranks; collective.
    pub(crate) fn finalize(&self) -> Result<Progress> {
        let suffix = "CommFinalize";
        let finalize = self
            .library
            .symbols
            .comm_finalize
            .ok_or_else(|| self.library.lacks(suffix))?;
        let (raw, _device) = self.open(suffix)?;
        // SAFETY: an open communicator of this library.
        let result = unsafe { finalize(raw) };
        self.library.progress(suffix, result, raw)
    }

    /// Destroys it. Afterwards every call is refused.
    pub(crate) fn destroy(&self) -> Result<Progress> {
        let suffix = "CommDestroy";
        let (raw, _device) = self.close(suffix)?;
        // SAFETY: an open communicator of this library, closed exactly once.
        let result = unsafe { (self.library.calls.comm_destroy)(raw) };
        // The handle is no longer good, so the library's last error is asked without it.
        let progress = self.library.progress(suffix, result, ptr::null_mut())?;
        self.gone
            .store(progress == Progress::Done, Ordering::Release);
        Ok(progress)
    }

    /// Stops its work and destroys it. May run beside other calls on it, whose callers have to
    /// have left before this struct goes.
    pub(crate) fn abort(&self) -> Result<Progress> {
        let suffix = "CommAbort";
        let abort = self
            .library
            .symbols
            .comm_abort
            .ok_or_else(|| self.library.lacks(suffix))?;
        let (raw, _device) = self.close(suffix)?;
        // SAFETY: as in `destroy`; the vendor allows abort beside other calls.
        let result = unsafe { abort(raw) };
        let progress = self.library.progress(suffix, result, ptr::null_mut())?;
        self.gone
            .store(progress == Progress::Done, Ordering::Release);
        Ok(progress)
    }

    /// Stops its work and keeps it for a shrink.
    pub(crate) fn revoke(&self, flags: i32) -> Result<Progress> {
        let suffix = "CommRevoke";
        let revoke = self
            .library
            .symbols
            .comm_revoke
            .ok_or_else(|| self.library.lacks(suffix))?;
        let (raw, _device) = self.open(suffix)?;
        // SAFETY: an open communicator of this library.
        let result = unsafe { revoke(raw, flags) };
        self.library.progress(suffix, result, raw)
    }

    /// Gives its resources back for a while.
    pub(crate) fn suspend(&self, flags: i32) -> Result<Progress> {
        let suffix = "CommSuspend";
        let suspend = self
            .library
            .symbols
            .comm_suspend
            .ok_or_else(|| self.library.lacks(suffix))?;
        let (raw, _device) = self.open(suffix)?;
        // SAFETY: an open communicator of this library.
        let result = unsafe { suspend(raw, flags) };
        self.library.progress(suffix, result, raw)
    }

    /// Takes its resources again.
    pub(crate) fn resume(&self) -> Result<Progress> {
        let suffix = "CommResume";
        let resume = self
            .library
            .symbols
            .comm_resume
            .ok_or_else(|| self.library.lacks(suffix))?;
        let (raw, _device) = self.open(suffix)?;
        // SAFETY: an open communicator of this library.
        let result = unsafe { resume(raw) };
        self.library.progress(suffix, result, raw)
    }

    /// What the library knows about it: fine, still at work, or what went wrong.
    pub(crate) fn async_error(&self) -> Result<Progress> {
        let suffix = "CommGetAsyncError";
        let ask = self
            .library
            .symbols
            .comm_get_async_error
            .ok_or_else(|| self.library.lacks(suffix))?;
        let (raw, _device) = self.open(suffix)?;
        let mut state = 0;
        // SAFETY: an open communicator of this library; the answer goes to a live local.
        let result = unsafe { ask(raw, &mut state) };
        self.library.check(suffix, result, raw)?;
        self.library
            .progress(suffix, state, raw)
            .map_err(|error| error.context("the communicator failed"))
    }

    fn number(
        &self,
        suffix: &str,
        ask: Option<unsafe extern "C" fn(CommPtr, *mut c_int) -> RawResult>,
    ) -> Result<i32> {
        let ask = ask.ok_or_else(|| self.library.lacks(suffix))?;
        let (raw, _device) = self.open(suffix)?;
        let mut number = -1;
        // SAFETY: an open communicator of this library; the answer goes to a live local.
        let result = unsafe { ask(raw, &mut number) };
        self.library.check(suffix, result, raw)?;
        Ok(number)
    }

    /// Number of ranks.
    pub(crate) fn count(&self) -> Result<i32> {
        self.number("CommCount", self.library.symbols.comm_count)
    }

    /// Its rank.
    pub(crate) fn user_rank(&self) -> Result<i32> {
        self.number("CommUserRank", self.library.symbols.comm_user_rank)
    }

    /// Its device.
    pub(crate) fn device(&self) -> Result<i32> {
        self.number("CommCuDevice", self.library.symbols.comm_device)
    }

    /// Splits it; collective. `None` as color takes part and gets no communicator. In a group the
    /// result is there when the group has ended.
    pub(crate) fn split(
        &self,
        color: Option<i32>,
        key: i32,
        options: &CommOptions,
    ) -> Result<(Option<VendorComm>, Progress)> {
        let suffix = "CommSplit";
        let split = self
            .library
            .symbols
            .comm_split
            .ok_or_else(|| self.library.lacks(suffix))?;
        let (raw, _device) = self.open(suffix)?;
        let options = self.library.options(options);
        let slot = Slot::new(self.library.config(&options)?, &[]);
        let config = if options.is_empty() {
            ptr::null_mut()
        } else {
            slot.config()
        };
        // SAFETY: an open communicator; result and config live until the new one is gone.
        let result = unsafe { split(raw, color.unwrap_or(-1), key, slot.out(), config) };
        let (comm, progress) = self.library.started(suffix, result, slot)?;
        Ok((color.map(|_| comm), progress))
    }

    /// The communicator of the ranks that are not in `excluded`. `abort` stops the parent's work.
    pub(crate) fn shrink(
        &self,
        excluded: &[i32],
        abort: bool,
        options: &CommOptions,
    ) -> Result<(VendorComm, Progress)> {
        let suffix = "CommShrink";
        let shrink = self
            .library
            .symbols
            .comm_shrink
            .ok_or_else(|| self.library.lacks(suffix))?;
        let (raw, _device) = self.open(suffix)?;
        let options = self.library.options(options);
        let slot = Slot::new(self.library.config(&options)?, excluded);
        let count = c_int::try_from(excluded.len())
            .map_err(|_| Error::invalid_argument("too many ranks are excluded"))?;
        let config = if options.is_empty() {
            ptr::null_mut()
        } else {
            slot.config()
        };
        let list = slot.excluded();
        // SAFETY: as in `split`; the list of excluded ranks lives as long.
        let result = unsafe { shrink(raw, list, count, slot.out(), config, c_int::from(abort)) };
        self.library.started(suffix, result, slot)
    }

    /// Registers memory; local.
    pub(crate) fn register(&self, memory: UserPtr, bytes: usize) -> Result<*mut c_void> {
        let suffix = "CommRegister";
        let register = self
            .library
            .symbols
            .comm_register
            .ok_or_else(|| self.library.lacks(suffix))?;
        let (raw, _device) = self.open(suffix)?;
        let mut handle = ptr::null_mut();
        // SAFETY: an open communicator; `UserPtr` carries the promise about the memory; the handle
        // goes to a live local.
        let result = unsafe { register(raw, memory.get(), bytes, &mut handle) };
        self.library.check(suffix, result, raw)?;
        Ok(handle)
    }

    /// Takes a registration back.
    pub(crate) fn deregister(&self, handle: UserPtr) -> Result<()> {
        let suffix = "CommDeregister";
        let deregister = self
            .library
            .symbols
            .comm_deregister
            .ok_or_else(|| self.library.lacks(suffix))?;
        let (raw, _device) = self.open(suffix)?;
        // SAFETY: an open communicator; `UserPtr` carries the promise that the handle is one that
        // `register` gave.
        let result = unsafe { deregister(raw, handle.get()) };
        self.library.check(suffix, result, raw)
    }

    /// Makes a window; collective. The library writes the handle before it returns, or before the
    /// group ends.
    pub(crate) fn window_register(
        &self,
        memory: UserPtr,
        bytes: usize,
        flags: i32,
    ) -> Result<(Window, Progress)> {
        let suffix = "CommWindowRegister";
        let register = self
            .library
            .symbols
            .comm_window_register
            .ok_or_else(|| self.library.lacks(suffix))?;
        let (raw, _device) = self.open(suffix)?;
        // In a group the handle is written at its end, so its place is never freed.
        let place: &'static AtomicPtr<c_void> =
            Box::leak(Box::new(AtomicPtr::new(ptr::null_mut())));
        // SAFETY: as in `register`; the handle goes to a place that lives for the process.
        let result = unsafe { register(raw, memory.get(), bytes, place.as_ptr(), flags) };
        let progress = self.library.progress(suffix, result, raw)?;
        Ok((Window { place }, progress))
    }

    /// Takes a window back.
    pub(crate) fn window_deregister(&self, window: UserPtr) -> Result<()> {
        let suffix = "CommWindowDeregister";
        let deregister = self
            .library
            .symbols
            .comm_window_deregister
            .ok_or_else(|| self.library.lacks(suffix))?;
        let (raw, _device) = self.open(suffix)?;
        // SAFETY: an open communicator; `UserPtr` carries the promise that the handle is one that
        // the library wrote.
        let result = unsafe { deregister(raw, window.get()) };
        self.library.check(suffix, result, raw)
    }

    /// An operator that multiplies this rank's contribution by a scalar of type `dtype`.
    pub(crate) fn create_pre_mul_sum(&self, scalar: Scalar, dtype: DataType) -> Result<c_int> {
        let suffix = "RedOpCreatePreMulSum";
        let create = self
            .library
            .symbols
            .red_op_create_pre_mul_sum
            .ok_or_else(|| self.library.lacks(suffix))?;
        let dtype = self.library.dtype(dtype)?;
        let (raw, _device) = self.open(suffix)?;
        let mut op = 0;
        let (mut bytes, residence, device) = match scalar {
            Scalar::Host(bytes) => (bytes, 1, None),
            Scalar::Device(pointer) => ([0; 8], 0, Some(pointer)),
        };
        let pointer = device.map_or(bytes.as_mut_ptr().cast(), UserPtr::get);
        // SAFETY: an open communicator; a host scalar is read during the call from a live local of
        // eight bytes, a device scalar is what `UserPtr` promises; the number goes to a local.
        let result = unsafe { create(&mut op, pointer, dtype, residence, raw) };
        self.library.check(suffix, result, raw)?;
        Ok(op)
    }

    /// Takes an operator back.
    pub(crate) fn destroy_redop(&self, op: c_int) -> Result<()> {
        let suffix = "RedOpDestroy";
        let destroy = self
            .library
            .symbols
            .red_op_destroy
            .ok_or_else(|| self.library.lacks(suffix))?;
        let (raw, _device) = self.open(suffix)?;
        // SAFETY: an open communicator; the library checks the number.
        let result = unsafe { destroy(op, raw) };
        self.library.check(suffix, result, raw)
    }
}

/// A window of a communicator.
#[derive(Debug)]
pub(crate) struct Window {
    place: &'static AtomicPtr<c_void>,
}

impl Window {
    /// The vendor's handle; NULL before the group that makes it has ended.
    pub(crate) fn raw(&self) -> WindowPtr {
        self.place.load(Ordering::Acquire)
    }
}

/// Where the scalar of an operator is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scalar {
    /// Here, in native byte order.
    Host([u8; 8]),
    /// In device memory.
    Device(UserPtr),
}
