//! One driver for every vendor: a runtime of CUDA's shape, or one behind adapters.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr;

use super::Guard;
use super::adapter;
use super::functions::{Below, Common, PointerAttributes, Runtime, Spare, SpareBelow, Tables};
use super::owners::{Owners, Thing};
use super::rows::{
    COPY_NAMES, DriverRow, Enums, Kinds, LowRow, Memory, NotReady, Pointers, VersionCode,
};
use crate::load::numbers::Numbers;
use crate::load::open::{Accepted, Lib, Refusal};
use crate::load::symbols::{Declaration, Layout, Resolver};
use crate::{Code, Error, Result, config};

/// A pointer that came from the user. Making one carries the user's promise that it is what the
/// function that takes it documents, for as long as the operation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UserPtr(*mut c_void);

// SAFETY: an address; what it points to is never touched through this type.
unsafe impl Send for UserPtr {}
// SAFETY: as above.
unsafe impl Sync for UserPtr {}

impl UserPtr {
    /// The pointer.
    pub(crate) const fn get(self) -> *mut c_void {
        self.0
    }
}

macro_rules! handle {
    ($name:ident, $owned:ident, $thing:ident, $what:literal) => {
        #[doc = concat!("The driver's handle of a ", $what, ".")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct $name(*mut c_void);

        // SAFETY: an opaque handle of the driver, which may be used from any thread.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl $name {
            /// The driver's handle.
            pub(crate) const fn raw(self) -> *mut c_void {
                self.0
            }

            fn thing(self) -> Thing {
                Thing::$thing(self.0.addr())
            }
        }

        #[doc = concat!("Our own ", $what, ". Dropping it leaves it to the end of the process:")]
        /// no driver call runs from a destructor.
        #[derive(Debug)]
        pub(crate) struct $owned($name);

        impl $owned {
            #[allow(dead_code)]
            #[doc = concat!("The handle, good as long as this ", $what, " is not destroyed.")]
            pub(crate) const fn handle(&self) -> $name {
                self.0
            }

            #[doc = concat!("Gives the ", $what, " to a caller, who destroys it through us.")]
            pub(crate) const fn into_raw(self) -> *mut c_void {
                self.0.0
            }

            #[doc = concat!("Takes a ", $what, " back that a caller got by `into_raw`.")]
            pub(crate) const fn from_handle(handle: $name) -> $owned {
                $owned(handle)
            }
        }
    };
}

handle!(RawStream, OwnedStream, Stream, "stream");
handle!(RawEvent, OwnedEvent, Event, "event");

/// The pointer that a caller passed. Every entry that takes one says what it must be, and for how
/// long.
pub(crate) fn user_ptr(pointer: *mut c_void) -> UserPtr {
    UserPtr(pointer)
}

/// The stream that a caller passed. Every entry that takes one asks for a live stream of the
/// machine's driver, or NULL for the default stream.
pub(crate) fn stream_of(stream: *mut c_void) -> RawStream {
    RawStream(stream)
}

/// The event that a caller passed, as [`stream_of`].
pub(crate) fn event_of(event: *mut c_void) -> RawEvent {
    RawEvent(event)
}

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum CopyKind {
    /// From host to device.
    HostToDevice,
    /// From device to host.
    DeviceToHost,
    /// From device to device.
    DeviceToDevice,
    /// The driver finds out from the addresses.
    Default,
}

impl std::fmt::Display for CopyKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            CopyKind::HostToDevice => "from host to device",
            CopyKind::DeviceToHost => "from device to host",
            CopyKind::DeviceToDevice => "from device to device",
            CopyKind::Default => "whose direction the addresses tell",
        })
    }
}

/// Whose memory a pointer points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PointerOwner {
    /// Ordinary host memory, or memory that the driver doesn't know.
    Unregistered,
    /// Host memory that the driver has pinned.
    HostPinned,
    /// Memory of this device.
    Device(i32),
    /// Memory that moves between the host and this device.
    Managed(i32),
}

/// The last number whose name is looked at.
const LAST_NAMED: c_int = 1000;
const POINTER_MEMORY_TYPE: c_int = 2;
const POINTER_IS_MANAGED: c_int = 8;
const POINTER_DEVICE_ORDINAL: c_int = 9;
const LOW_MEMORY_HOST: c_uint = 1;
const LOW_MEMORY_DEVICE: c_uint = 2;
/// A priority above every device's highest; smaller numbers are higher.
const HIGHEST: c_int = -100;

/// The driver below a runtime.
struct Low {
    row: &'static LowRow,
    lib: Lib,
    below: Below,
    spare: SpareBelow,
}

/// What the current device was, to put it back.
#[derive(Clone, Copy, Debug)]
pub(super) enum Saved {
    /// A device.
    Device(i32),
    /// A context of the driver below, as an address; 0 is none.
    Context(usize),
    /// There was none, and the driver has no call to have none again.
    Nothing,
}

/// A vendor's driver: its runtime, the driver below it, or both.
pub(crate) struct Driver {
    row: &'static DriverRow,
    lib: Lib,
    common: Common,
    runtime: Option<Runtime>,
    spare: Spare,
    low: Option<Low>,
    /// The numbers of what answers: the row's, the user's, and what was found out.
    enums: Enums,
    /// Numbers of kinds of memory, if the runtime's answer can be read.
    kinds: Option<Kinds>,
    /// The variable in which the user gives numbers.
    variable: String,
    /// Of a device-scoped runtime.
    owners: Option<Owners>,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("title", &self.title())
            .field("path", &self.path())
            .field("below", &self.low.as_ref().map(|low| low.lib.path()))
            .finish()
    }
}

fn renamed(renames: &[(&str, &str)], prefix: &str, suffix: &str) -> String {
    match renames.iter().find(|(s, _)| *s == suffix) {
        Some((_, name)) => name.to_string(),
        None => format!("{prefix}{suffix}"),
    }
}

impl Driver {
    /// Takes an open library for a runtime, or says why not. Numbers that the user gave go before
    /// the row's.
    pub(crate) fn accept_runtime(
        row: &'static DriverRow,
        numbers: &Numbers,
        lib: &Lib,
    ) -> std::result::Result<Accepted<Driver>, Refusal> {
        let mut resolver = Resolver::new(lib, &[]);
        let tables = match row.odd {
            Some(odd) => (odd.resolve)(&mut resolver),
            None => Tables {
                common: Common::resolve(&|suffix| usual(row, suffix), &mut resolver),
                runtime: Runtime::resolve(&|suffix| usual(row, suffix), &mut resolver),
                spare: Spare::resolve(&|suffix| spare(row, suffix), &mut resolver),
            },
        };
        let needed = ["GetDevice", "SetDevice", "GetDeviceCount"];
        let needed = needed.map(|suffix| renamed(row.renames, row.prefix, suffix));
        accept(row.title, &needed, &resolver)?;
        let driver = Driver::of_tables(row, numbers, lib, tables)
            .map_err(|error| Refusal::new(error.text()))?;
        let version = tables.runtime.version.and_then(ask_version);
        Ok(Accepted {
            value: driver,
            version: version.map(|code| row.version.text(code)),
            coverage: Some(resolver.coverage()),
        })
    }

    /// A driver with these functions of an open library.
    pub(super) fn of_tables(
        row: &'static DriverRow,
        numbers: &Numbers,
        lib: &Lib,
        tables: Tables,
    ) -> Result<Driver> {
        let mut enums = row.enums.with(numbers)?;
        if enums.not_ready == NotReady::Named {
            enums.not_ready = tables
                .spare
                .error_name
                .and_then(find_not_ready)
                .map_or(NotReady::Unknown, NotReady::Is);
        }
        let kinds = match row.pointers {
            Pointers::Kinds(kinds) => Some(kinds),
            Pointers::SinceMajor(since, before, after) => {
                let version = tables.runtime.version.and_then(ask_version);
                version.map(|code| match row.version.major(code) < since {
                    true => before,
                    false => after,
                })
            }
            Pointers::Unknown => None,
        };
        Ok(Driver {
            row,
            lib: lib.clone(),
            common: tables.common,
            runtime: Some(tables.runtime),
            spare: tables.spare,
            low: None,
            enums,
            kinds,
            variable: numbers.variable(),
            owners: (row.device_scoped || row.completion_needs_sync).then(Owners::default),
        })
    }

    /// Takes an open library for the driver below a runtime, to serve without the runtime.
    pub(crate) fn accept_low(
        row: &'static DriverRow,
        numbers: &Numbers,
        low: &'static LowRow,
        lib: &Lib,
    ) -> std::result::Result<Accepted<Driver>, Refusal> {
        let name = |suffix: &str| Some(renamed(low.renames, low.prefix, suffix));
        let plain = |suffix: &str| format!("{}{suffix}", low.prefix);
        let mut resolver = Resolver::new(lib, &[]);
        let common = Common::resolve(&name, &mut resolver);
        let below = Below::resolve(&|suffix| Some(plain(suffix)), &mut resolver);
        let spare = SpareBelow::resolve(&|suffix| spare_below(low, suffix), &mut resolver);
        let needed = ["Init", "CtxGetDevice", "DeviceGetCount"].map(plain);
        accept(low.title, &needed, &resolver)?;
        let version = below.version.and_then(ask_version);
        let driver = Driver {
            row,
            lib: lib.clone(),
            common,
            runtime: None,
            spare: Spare::default(),
            low: Some(Low {
                row: low,
                lib: lib.clone(),
                below,
                spare,
            }),
            enums: low.enums,
            kinds: None,
            variable: numbers.variable(),
            owners: None,
        };
        Ok(Accepted {
            value: driver,
            version: version.map(|code| VersionCode::Cuda.text(code)),
            coverage: Some(resolver.coverage()),
        })
    }

    /// Gives a runtime the driver below it.
    pub(crate) fn with_low(mut self, other: Driver) -> Driver {
        self.low = other.low;
        self
    }

    /// Its name for people.
    pub(crate) fn title(&self) -> &'static str {
        match (&self.runtime, &self.low) {
            (None, Some(low)) => low.row.title,
            _ => self.row.title,
        }
    }

    /// Whether things can be used, and are known, only while their device is current.
    pub(crate) fn device_scoped(&self) -> bool {
        self.row.device_scoped
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        self.lib.path()
    }

    fn name(&self, suffix: &str) -> String {
        match (&self.runtime, &self.low) {
            (None, Some(low)) => renamed(low.row.renames, low.row.prefix, suffix),
            _ => renamed(self.row.renames, self.row.prefix, suffix),
        }
    }

    #[cold]
    fn lacks(&self, suffix: &str) -> Error {
        let renamed = self.row.renames.iter().any(|(s, _)| *s == suffix);
        if self.runtime.is_some() && self.row.without.contains(&suffix) && !renamed {
            return Error::not_supported(format!(
                "the {} ({}) has no function that is known to do what CUDA's cuda{suffix} does",
                self.title(),
                self.path().display()
            ));
        }
        Error::not_supported(format!(
            "{} ({}) has no {}",
            self.title(),
            self.path().display(),
            self.name(suffix)
        ))
    }

    #[cold]
    fn lacks_low(&self, low: &Low, suffix: &str) -> Error {
        Error::not_supported(format!(
            "{} ({}) has no {}{suffix}",
            low.row.title,
            low.lib.path().display(),
            low.row.prefix
        ))
    }

    /// The error of a call for which a number would be needed that nobody has told.
    #[cold]
    fn untold(&self, what: &str, name: &str) -> Error {
        Error::not_supported(format!(
            "{what} isn't known of the {} ({}); {}",
            self.title(),
            self.path().display(),
            match self.row.overridable.contains(&name) {
                true => format!("set {}={name}=<number> if you know it", self.variable),
                false => "it has none".to_string(),
            }
        ))
    }

    /// Whether NULL is a stream.
    pub(crate) fn has_null_stream(&self) -> bool {
        self.row.null_stream
    }

    /// Runs work that waits for what it puts on a stream: on this one, or where NULL is no stream of
    /// the runtime's, on one of its own.
    pub(crate) fn on_some_stream<T>(
        &self,
        stream: RawStream,
        work: impl FnOnce(RawStream) -> Result<T>,
    ) -> Result<T> {
        if self.row.null_stream || !stream.raw().is_null() {
            return work(stream);
        }
        let own = self.stream_create()?;
        let result = work(own.handle());
        let destroyed = self.stream_destroy(own);
        result.and_then(|value| destroyed.map(|()| value))
    }

    /// The handle of a stream, if the runtime takes it.
    fn handle(&self, stream: RawStream) -> Result<*mut c_void> {
        if stream.raw().is_null() && !self.row.null_stream {
            return Err(Error::invalid_argument(format!(
                "the stream is NULL, and the {} has no default stream: pass one that was made",
                self.title()
            )));
        }
        Ok(stream.raw())
    }

    /// Runs a call with the device current that the first of these things belongs to which this
    /// driver made for a device-scoped runtime; else, as it is.
    fn at_home<T>(&self, things: &[Thing], call: impl FnOnce() -> Result<T>) -> Result<T> {
        let owners = self.owners.as_ref().filter(|_| self.row.device_scoped);
        match owners.and_then(|owners| things.iter().find_map(|t| owners.device_of(*t))) {
            Some(device) => Guard::with(self, device, call),
            None => call(),
        }
    }

    /// Makes a thing and remembers the device, which is current.
    fn made(
        &self,
        make: impl FnOnce() -> Result<*mut c_void>,
        thing: impl FnOnce(usize) -> Thing,
        bytes: usize,
    ) -> Result<*mut c_void> {
        let Some(owners) = &self.owners else {
            return make();
        };
        let device = self.current()?;
        let made = make()?;
        if !made.is_null() {
            owners.add(thing(made.addr()), bytes, device);
        }
        Ok(made)
    }

    /// Ends a thing with its device current and forgets it.
    fn ended(&self, thing: Thing, end: impl FnOnce() -> Result<()>) -> Result<()> {
        let Some(owners) = &self.owners else {
            return end();
        };
        let Some((bytes, device)) = owners.take(thing) else {
            return end();
        };
        let ended = match self.row.device_scoped {
            true => Guard::with(self, device, end),
            false => end(),
        };
        if ended.is_err() {
            owners.add(thing, bytes, device);
        }
        ended
    }

    /// The driver's words for a number.
    pub(crate) fn error_text(&self, code: i32) -> String {
        if let Some(words) = adapter::words(code) {
            return words.to_string();
        }
        match (&self.runtime, &self.low) {
            (None, Some(low)) => low_error_text(low, code),
            (Some(runtime), _) => {
                // SAFETY: takes any number and returns a string that the runtime keeps.
                let words = runtime.error_string.map(|ask| unsafe { ask(code) });
                words_at(words.unwrap_or(ptr::null()))
            }
            (None, None) => words_at(ptr::null()),
        }
    }

    /// The error of a failed call. An error that our own call left behind is taken away: a later
    /// check of the program's would find it and blame something else.
    #[cold]
    fn failed(&self, name: &str, code: c_int) -> Error {
        let error = Error::new(
            Code::UnhandledDeviceError,
            format!(
                "{name} failed with {code} ({}) [{}, {}]",
                self.error_text(code),
                self.title(),
                self.path().display()
            ),
        );
        self.forget(code);
        error
    }

    #[cold]
    fn failed_low(&self, low: &Low, suffix: &str, code: c_int) -> Error {
        Error::new(
            Code::UnhandledDeviceError,
            format!(
                "{}{suffix} failed with {code} ({}) [{}, {}]",
                low.row.prefix,
                low_error_text(low, code),
                low.row.title,
                low.lib.path().display()
            ),
        )
    }

    /// Takes the last error away if it is `code`.
    fn forget(&self, code: c_int) {
        if !self.row.leaves_last_error {
            return;
        }
        let Some(runtime) = &self.runtime else { return };
        let Some(get) = runtime.get_last_error else {
            return;
        };
        // SAFETY: takes nothing and changes nothing.
        let last = runtime.peek_last_error.map(|peek| unsafe { peek() });
        // Without a look at it, the last error is the one of the last call that failed: ours.
        if last.is_none_or(|last| last == code) {
            // SAFETY: takes nothing; resets this thread's last error.
            unsafe { get() };
        }
    }

    fn check(&self, suffix: &str, code: c_int) -> Result<()> {
        if code == 0 {
            Ok(())
        } else {
            Err(self.failed(&self.name(suffix), code))
        }
    }

    /// `Ok(true)` for success, `Ok(false)` for "not yet".
    fn done(&self, suffix: &str, code: c_int) -> Result<bool> {
        if self.enums.not_ready == NotReady::Is(code) || self.enums.busy == Some(code) {
            self.forget(code);
            return Ok(false);
        }
        self.check(suffix, code).map(|()| true)
    }

    /// Whether a query can be understood. One that can't isn't made: its result would be taken for
    /// a failure.
    fn can_ask(&self, suffix: &str) -> Result<()> {
        if self.enums.not_ready == NotReady::Unknown {
            let what = format!("the result of {} that means \"not yet\"", self.name(suffix));
            return Err(self.untold(&what, "not_ready"));
        }
        Ok(())
    }

    #[cold]
    fn unbound(&self, name: &str, code: c_int, words: &str) -> Error {
        Error::new(
            Code::UnboundDevice,
            format!(
                "the calling thread has no current device: {name} gave {code} ({words}); set the \
                 device before this call, or name it"
            ),
        )
    }

    /// The calling thread's current device, as the driver says at this instant. Asking never makes
    /// a context.
    pub(crate) fn current(&self) -> Result<i32> {
        #[cfg(feature = "test-cached-device")]
        if let Some(device) = wrong::CACHE.get() {
            return Ok(device);
        }
        let device = self.ask_current()?;
        #[cfg(feature = "test-cached-device")]
        wrong::CACHE.set(Some(device));
        Ok(device)
    }

    fn ask_current(&self) -> Result<i32> {
        // A runtime that the program didn't have before can't know what the program told its own
        // copy; the driver below both knows as soon as there is a context.
        let ask_below = self.runtime.is_none() || !self.lib.preloaded();
        if ask_below && let Some(low) = &self.low {
            let suffix = "CtxGetDevice";
            let ask = low
                .below
                .context_device
                .ok_or_else(|| self.lacks_low(low, suffix))?;
            let mut device = -1;
            // SAFETY: the number goes to a live local; the call makes no context.
            let code = unsafe { ask(&mut device) };
            if code == 0 {
                return Ok(device);
            }
            if self.runtime.is_none() {
                return Err(if low.row.enums.unbound.means(code) {
                    let name = format!("{}{suffix}", low.row.prefix);
                    self.unbound(&name, code, &low_error_text(low, code))
                } else {
                    self.failed_low(low, suffix, code)
                });
            }
        }
        let suffix = "GetDevice";
        let ask = self.common.get_device.ok_or_else(|| self.lacks(suffix))?;
        let mut device = -1;
        // SAFETY: the number goes to a live local.
        let code = unsafe { ask(&mut device) };
        if self.enums.unbound.means(code) {
            let error = self.unbound(&self.name(suffix), code, &self.error_text(code));
            self.forget(code);
            return Err(error);
        }
        self.check(suffix, code)?;
        Ok(device)
    }

    /// Makes a device the calling thread's current one.
    pub(crate) fn set(&self, device: i32) -> Result<()> {
        #[cfg(feature = "test-cached-device")]
        wrong::CACHE.set(Some(device));
        if let Some(runtime) = &self.runtime {
            let set_device = runtime.set_device.ok_or_else(|| self.lacks("SetDevice"))?;
            // SAFETY: takes a number, which the driver checks.
            let code = unsafe { set_device(device) };
            return self.check("SetDevice", code).map_err(|error| {
                error.context(format!("making device {device} current on this thread"))
            });
        }
        let low = self.low.as_ref().ok_or_else(|| self.lacks("SetDevice"))?;
        let ordinal = self.low_device(low, device)?;
        let suffix = "DevicePrimaryCtxRetain";
        let retain = low
            .below
            .primary_context
            .ok_or_else(|| self.lacks_low(low, suffix))?;
        let mut context = ptr::null_mut();
        // SAFETY: the device is one that the driver gave; the context goes to a live local. The
        // reference that is taken is kept: giving it back could end the context under others.
        let code = unsafe { retain(&mut context, ordinal) };
        if code != 0 {
            return Err(self.failed_low(low, suffix, code));
        }
        self.set_context(low, context)
    }

    fn set_context(&self, low: &Low, context: *mut c_void) -> Result<()> {
        let suffix = "CtxSetCurrent";
        let set = low
            .below
            .context_set
            .ok_or_else(|| self.lacks_low(low, suffix))?;
        // SAFETY: a context that the driver gave and that is still held, or NULL for none.
        match unsafe { set(context) } {
            0 => Ok(()),
            code => Err(self.failed_low(low, suffix, code)),
        }
    }

    /// What has to be put back later.
    pub(super) fn save(&self) -> Result<Saved> {
        if self.runtime.is_none()
            && let Some(low) = &self.low
            && let Some(get) = low.below.context_get
        {
            let mut context: *mut c_void = ptr::null_mut();
            // SAFETY: the context goes to a live local.
            return match unsafe { get(&mut context) } {
                0 => Ok(Saved::Context(context.expose_provenance())),
                code if low.row.enums.unbound.means(code) => Ok(Saved::Context(0)),
                code => Err(self.failed_low(low, "CtxGetCurrent", code)),
            };
        }
        if let (Some(get), Some(_)) = (self.spare.context_get, self.spare.context_set) {
            // A device has a context of its own and can have others; the very one goes back.
            let mut context: *mut c_void = ptr::null_mut();
            // SAFETY: the context goes to a live local.
            let code = unsafe { get(&mut context) };
            if code == 0 && !context.is_null() {
                return Ok(Saved::Context(context.expose_provenance()));
            }
            self.forget(code);
        }
        match self.current() {
            Ok(device) => Ok(Saved::Device(device)),
            Err(error) if error.code() == Code::UnboundDevice => Ok(Saved::Nothing),
            Err(error) => Err(error),
        }
    }

    /// Puts back what `save` gave on this thread.
    pub(super) fn restore(&self, saved: Saved) -> Result<()> {
        match (saved, &self.low) {
            (Saved::Device(device), _) => self.set(device),
            (Saved::Context(context), Some(low)) => {
                self.set_context(low, ptr::with_exposed_provenance_mut(context))
            }
            (Saved::Context(context), None) => {
                let suffix = "SetCurrentContext";
                let set = self.spare.context_set.ok_or_else(|| self.lacks(suffix))?;
                // SAFETY: the context was current on this thread when it was saved.
                let code = unsafe { set(ptr::with_exposed_provenance_mut(context)) };
                self.check(suffix, code)
            }
            (Saved::Nothing, _) => Ok(()),
        }
    }

    /// Prepares a helper thread: the device is made current, and the thread's calls don't disturb
    /// another thread that captures a graph.
    pub(crate) fn prepare_thread(&self, device: i32) -> Result<()> {
        self.set(device)?;
        if let Some(exchange) = self.common.exchange_capture_mode {
            let mut mode = self.enums.capture_relaxed;
            // SAFETY: reads and writes a live local.
            let code = unsafe { exchange(&mut mode) };
            self.check("ThreadExchangeStreamCaptureMode", code)?;
        }
        Ok(())
    }

    /// Number of devices that this process can use.
    pub(crate) fn count(&self) -> Result<i32> {
        if self.runtime.is_none()
            && let Some(low) = &self.low
            && self.low_init(low)? != 0
        {
            return Ok(0);
        }
        let suffix = "GetDeviceCount";
        let ask = self
            .common
            .get_device_count
            .ok_or_else(|| self.lacks(suffix))?;
        let mut count = 0;
        // SAFETY: the number goes to a live local.
        let code = unsafe { ask(&mut count) };
        if code != 0 && self.enums.no_device == Some(code) {
            self.forget(code);
            return Ok(0);
        }
        self.check(suffix, code)?;
        Ok(count)
    }

    /// 0, or the number that says that there is no device.
    fn low_init(&self, low: &Low) -> Result<c_int> {
        let init = low.below.init.ok_or_else(|| self.lacks_low(low, "Init"))?;
        // SAFETY: takes flags, which must be 0; may be called any number of times.
        match unsafe { init(0) } {
            code if code == 0 || low.row.enums.no_device == Some(code) => Ok(code),
            code => Err(self.failed_low(low, "Init", code)),
        }
    }

    /// The low driver's handle of a device.
    fn low_device(&self, low: &Low, device: i32) -> Result<c_int> {
        self.low_init(low)?;
        let get = low
            .below
            .device_get
            .ok_or_else(|| self.lacks_low(low, "DeviceGet"))?;
        let mut ordinal = -1;
        // SAFETY: the number goes to a live local; the driver checks the index.
        match unsafe { get(&mut ordinal, device) } {
            0 => Ok(ordinal),
            code => Err(self.failed_low(low, "DeviceGet", code)),
        }
    }

    /// What tells a device from every other on its machine: the driver's UUID, else the PCI bus id
    /// as text, padded with zeros, else the index that the device has for a process that sees all.
    pub(crate) fn uuid(&self, device: i32) -> Option<[u8; 16]> {
        if let Some(low) = &self.low
            && let Some(ask) = low.below.uuid_v2.or(low.below.uuid)
            && let Ok(ordinal) = self.low_device(low, device)
        {
            let mut uuid = [0u8; 16];
            // SAFETY: the 16 bytes go to a live local; the device is one that the driver gave.
            if unsafe { ask(&mut uuid, ordinal) } == 0 {
                return Some(uuid);
            }
        }
        if let Ok(bus) = self.pci_bus_id(device) {
            return Some(pad(bus.as_bytes()));
        }
        // Two processes with different lists of visible devices call different devices by the same
        // index, and containers number their devices as they like.
        let visible = config::foreign(self.row.visibility?);
        let visible = visible.as_ref().map(|list| list.to_string_lossy());
        let text = format!(
            "{}:{}:{}",
            self.row.prefix,
            among_all(device, visible.as_deref()),
            crate::sys::process::namespace("pid")
        );
        Some(pad(text.as_bytes()))
    }

    /// A device's address on the PCI bus, lower case.
    pub(crate) fn pci_bus_id(&self, device: i32) -> Result<String> {
        let suffix = "DeviceGetPCIBusId";
        let ask = self.common.pci_bus_id.ok_or_else(|| self.lacks(suffix))?;
        let device = match (&self.runtime, &self.low) {
            (None, Some(low)) => self.low_device(low, device)?,
            _ => device,
        };
        let mut text = [0u8; 64];
        // SAFETY: writes at most the given number of bytes, one less than the buffer has.
        let code = unsafe { ask(text.as_mut_ptr().cast(), text.len() as c_int - 1, device) };
        self.check(suffix, code)?;
        let end = text.iter().position(|b| *b == 0).unwrap_or(text.len());
        Ok(String::from_utf8_lossy(&text[..end]).to_lowercase())
    }

    /// A stream of the current device that doesn't synchronise with the default stream.
    pub(crate) fn stream_create(&self) -> Result<OwnedStream> {
        let suffix = "StreamCreateWithFlags";
        let create = self
            .common
            .stream_create
            .ok_or_else(|| self.lacks(suffix))?;
        let make = || {
            let mut stream = ptr::null_mut();
            // SAFETY: the handle goes to a live local.
            let code = unsafe { create(&mut stream, self.enums.stream_non_blocking) };
            self.check(suffix, code).map(|()| stream)
        };
        let stream = self.made(make, Thing::Stream, 0)?;
        Ok(OwnedStream(RawStream(stream)))
    }

    /// As [`Driver::stream_create`], of the highest priority where the runtime has priorities. Streams of
    /// different priorities share no queue of the device, in which one could stand behind what the
    /// other waits for.
    pub(crate) fn stream_create_first(&self) -> Result<OwnedStream> {
        let Some(create) = self.spare.stream_create_priority else {
            return self.stream_create();
        };
        let make = || {
            let mut stream = ptr::null_mut();
            // SAFETY: the handle goes to a live local; a priority beyond the range means its end.
            let code = unsafe { create(&mut stream, self.enums.stream_non_blocking, HIGHEST) };
            self.check("StreamCreateWithPriority", code)
                .map(|()| stream)
        };
        let stream = self.made(make, Thing::Stream, 0)?;
        Ok(OwnedStream(RawStream(stream)))
    }

    /// Writes a word when a stream has done its work so far, which the host sees before. Drivers without
    /// it give [`Code::NotSupported`].
    ///
    /// # Safety
    ///
    /// The word is pinned memory of this driver and stays until the stream has written it.
    pub(crate) unsafe fn stream_write_value(
        &self,
        stream: RawStream,
        word: *mut u32,
        value: u32,
    ) -> Result<()> {
        let suffix = "StreamWriteValue32_v2";
        let low = self.low.as_ref();
        let write = low.and_then(|low| Some((low, low.spare.write_value?)));
        let Some((low, write)) = write else {
            return Err(Error::not_supported(format!(
                "the {} has no write of a value",
                self.title()
            )));
        };
        let handle = self.handle(stream)?;
        // SAFETY: a live stream, which its type promises; the caller's promise about the word; flags
        // 0 put a barrier before the write.
        match unsafe { write(handle, word.cast(), value, 0) } {
            0 => Ok(()),
            code => Err(self.failed_low(low, suffix, code)),
        }
    }

    /// Makes later work of a stream wait until a word, seen as a number that wraps round, has reached a
    /// value. Drivers without it give [`Code::NotSupported`].
    ///
    /// # Safety
    ///
    /// The word is pinned memory of this driver and stays until the stream has passed the wait.
    pub(crate) unsafe fn stream_wait_value(
        &self,
        stream: RawStream,
        word: *mut u32,
        value: u32,
    ) -> Result<()> {
        let suffix = "StreamWaitValue32_v2";
        let low = self.low.as_ref();
        let wait = low.and_then(|low| Some((low, low.spare.wait_value?)));
        let Some((low, wait)) = wait else {
            return Err(Error::not_supported(format!(
                "the {} has no wait for a value",
                self.title()
            )));
        };
        let handle = self.handle(stream)?;
        // SAFETY: a live stream, which its type promises; the caller's promise about the word; flags
        // 0 compare as numbers that wrap round.
        match unsafe { wait(handle, word.cast(), value, 0) } {
            0 => Ok(()),
            code => Err(self.failed_low(low, suffix, code)),
        }
    }

    /// Destroys a stream of ours.
    pub(crate) fn stream_destroy(&self, stream: OwnedStream) -> Result<()> {
        let suffix = "StreamDestroy";
        let destroy = self
            .common
            .stream_destroy
            .ok_or_else(|| self.lacks(suffix))?;
        self.ended(stream.0.thing(), || {
            // SAFETY: a live stream that this driver made, destroyed once.
            let code = unsafe { destroy(stream.0.raw()) };
            self.check(suffix, code)
        })
    }

    /// Whether all work of a stream is done.
    pub(crate) fn stream_query(&self, stream: RawStream) -> Result<bool> {
        let suffix = "StreamQuery";
        let query = self.common.stream_query.ok_or_else(|| self.lacks(suffix))?;
        let handle = self.handle(stream)?;
        self.can_ask(suffix)?;
        let done = self.at_home(&[stream.thing()], || {
            // SAFETY: a live stream, which its type promises.
            let code = unsafe { query(handle) };
            self.done(suffix, code)
        })?;
        if done && self.row.completion_needs_sync {
            self.stream_synchronize(stream)?;
        }
        Ok(done)
    }

    /// Waits until all work of a stream is done.
    pub(crate) fn stream_synchronize(&self, stream: RawStream) -> Result<()> {
        let suffix = "StreamSynchronize";
        let synchronize = self
            .common
            .stream_synchronize
            .ok_or_else(|| self.lacks(suffix))?;
        let handle = self.handle(stream)?;
        self.at_home(&[stream.thing()], || {
            // SAFETY: a live stream, which its type promises.
            let code = unsafe { synchronize(handle) };
            self.check(suffix, code)
        })
    }

    /// Makes later work of a stream wait for an event.
    pub(crate) fn stream_wait_event(&self, stream: RawStream, event: RawEvent) -> Result<()> {
        let suffix = "StreamWaitEvent";
        let wait = self
            .common
            .stream_wait_event
            .ok_or_else(|| self.lacks(suffix))?;
        let handle = self.handle(stream)?;
        self.at_home(&[stream.thing(), event.thing()], || {
            // SAFETY: a live stream and a live event, which their types promise.
            let code = unsafe { wait(handle, event.raw(), 0) };
            self.check(suffix, code)
        })
    }

    /// Whether a stream is being captured into a graph; for the default stream also whether
    /// another stream's capture forbids its use. A driver without captures says no.
    pub(crate) fn is_capturing(&self, stream: RawStream) -> Result<bool> {
        let Some(ask) = self.common.stream_is_capturing else {
            return Ok(false);
        };
        let mut status = 0;
        // SAFETY: a live stream, which its type promises; the answer goes to a live local.
        let code = unsafe { ask(stream.raw(), &mut status) };
        if code != 0 && self.enums.capture_implicit == Some(code) {
            self.forget(code);
            return Ok(true);
        }
        self.check("StreamIsCapturing", code)?;
        Ok(status != 0)
    }

    /// An event, with or without time.
    pub(crate) fn event_create(&self, timing: bool) -> Result<OwnedEvent> {
        let suffix = "EventCreateWithFlags";
        let create = self.common.event_create.ok_or_else(|| self.lacks(suffix))?;
        let flags = match timing {
            true => self.enums.event_timing,
            false => self.enums.event_no_timing,
        };
        let make = || {
            let mut event = ptr::null_mut();
            // SAFETY: the handle goes to a live local.
            let code = unsafe { create(&mut event, flags) };
            self.check(suffix, code).map(|()| event)
        };
        let event = self.made(make, Thing::Event, 0)?;
        Ok(OwnedEvent(RawEvent(event)))
    }

    /// Destroys an event of ours.
    pub(crate) fn event_destroy(&self, event: OwnedEvent) -> Result<()> {
        let suffix = "EventDestroy";
        let destroy = self
            .common
            .event_destroy
            .ok_or_else(|| self.lacks(suffix))?;
        self.ended(event.0.thing(), || {
            // SAFETY: a live event that this driver made, destroyed once.
            let code = unsafe { destroy(event.0.raw()) };
            self.check(suffix, code)
        })
    }

    /// Puts an event behind the work that a stream has now.
    pub(crate) fn event_record(&self, event: RawEvent, stream: RawStream) -> Result<()> {
        let suffix = "EventRecord";
        let (plain, flagged) = (self.common.event_record, self.spare.event_record_flags);
        let handle = self.handle(stream)?;
        self.at_home(&[stream.thing(), event.thing()], || {
            let code = match (plain, flagged) {
                // SAFETY: a live event and a live stream, which their types promise.
                (Some(record), _) => unsafe { record(event.raw(), handle) },
                // SAFETY: as above; flags 0 is the plain kind.
                (None, Some(record)) => unsafe { record(event.raw(), handle, 0) },
                (None, None) => return Err(self.lacks(suffix)),
            };
            self.check(suffix, code)
        })?;
        if let Some(owners) = &self.owners {
            owners.recorded(event.raw().addr(), handle.addr());
        }
        Ok(())
    }

    /// Whether an event has happened.
    pub(crate) fn event_query(&self, event: RawEvent) -> Result<bool> {
        let suffix = "EventQuery";
        let query = self.common.event_query.ok_or_else(|| self.lacks(suffix))?;
        self.can_ask(suffix)?;
        let done = self.at_home(&[event.thing()], || {
            // SAFETY: a live event, which its type promises.
            let code = unsafe { query(event.raw()) };
            self.done(suffix, code)
        })?;
        if done {
            self.settle(event)?;
        }
        Ok(done)
    }

    /// Waits until an event has happened.
    pub(crate) fn event_synchronize(&self, event: RawEvent) -> Result<()> {
        let suffix = "EventSynchronize";
        let synchronize = self
            .common
            .event_synchronize
            .ok_or_else(|| self.lacks(suffix))?;
        self.at_home(&[event.thing()], || {
            // SAFETY: a live event, which its type promises.
            let code = unsafe { synchronize(event.raw()) };
            self.check(suffix, code)
        })?;
        self.settle(event)
    }

    /// Makes the host see what was done before an event that has happened, where that needs the
    /// stream to be synchronised. Which one that is isn't known of events that others recorded, nor
    /// whether another's stream is still there: then it is the whole device.
    fn settle(&self, event: RawEvent) -> Result<()> {
        let Some(owners) = self
            .owners
            .as_ref()
            .filter(|_| self.row.completion_needs_sync)
        else {
            return Ok(());
        };
        if let Some(stream) = owners.stream_of(event.raw().addr()) {
            return self.stream_synchronize(RawStream(ptr::without_provenance_mut(stream)));
        }
        let suffix = "DeviceSynchronize";
        let synchronize = (self.runtime.as_ref())
            .and_then(|runtime| runtime.device_synchronize)
            .ok_or_else(|| self.lacks(suffix))?;
        self.at_home(&[event.thing()], || {
            // SAFETY: takes nothing; waits for the current device.
            let code = unsafe { synchronize() };
            self.check(suffix, code)
        })
    }

    /// Waits until everything on the thread's current device is done.
    pub(crate) fn device_synchronize(&self) -> Result<()> {
        let suffix = "DeviceSynchronize";
        let synchronize = (self.runtime.as_ref())
            .and_then(|runtime| runtime.device_synchronize)
            .ok_or_else(|| self.lacks(suffix))?;
        // SAFETY: takes nothing; waits for the current device.
        let code = unsafe { synchronize() };
        self.check(suffix, code)
    }

    /// Milliseconds between two events with time that have happened.
    pub(crate) fn event_elapsed_ms(&self, start: RawEvent, end: RawEvent) -> Result<f32> {
        let suffix = "EventElapsedTime";
        let elapsed = self
            .common
            .event_elapsed
            .ok_or_else(|| self.lacks(suffix))?;
        self.at_home(&[start.thing(), end.thing()], || {
            let mut milliseconds = 0.0;
            // SAFETY: live events, which their types promise; the number goes to a live local.
            let code = unsafe { elapsed(&mut milliseconds, start.raw(), end.raw()) };
            self.check(suffix, code).map(|()| milliseconds)
        })
    }

    /// Memory of the current device.
    pub(crate) fn malloc(&self, bytes: usize) -> Result<*mut c_void> {
        let suffix = "Malloc";
        let malloc = self.common.malloc.ok_or_else(|| self.lacks(suffix))?;
        let make = || {
            let mut memory = ptr::null_mut();
            // SAFETY: the address goes to a live local.
            let code = unsafe { malloc(&mut memory, bytes) };
            self.check(suffix, code).map(|()| memory)
        };
        self.made(make, Thing::Memory, bytes)
    }

    /// Frees device memory.
    ///
    /// # Safety
    ///
    /// `memory` came from `malloc` of this driver, is freed once, and no work
    /// uses it any more.
    pub(crate) unsafe fn free(&self, memory: *mut c_void) -> Result<()> {
        let suffix = "Free";
        let free = self.common.free.ok_or_else(|| self.lacks(suffix))?;
        self.ended(Thing::Memory(memory.addr()), || {
            // SAFETY: what this function asks of its caller.
            let code = unsafe { free(memory) };
            self.check(suffix, code)
        })
    }

    /// Frees device memory of ours that a caller gives back.
    pub(crate) fn free_user(&self, memory: UserPtr) -> Result<()> {
        // SAFETY: `UserPtr` carries the caller's promise; the caller of this function has looked
        // up that we gave the memory and that it is not freed yet.
        unsafe { self.free(memory.get()) }
    }

    /// Frees pinned memory of ours that a caller gives back.
    pub(crate) fn free_host_user(&self, memory: UserPtr) -> Result<()> {
        // SAFETY: as in `free_user`.
        unsafe { self.free_host(memory.get()) }
    }

    /// Pinned host memory.
    pub(crate) fn malloc_host(&self, bytes: usize) -> Result<*mut c_void> {
        let suffix = "HostAlloc";
        let (flagged, plain) = (self.common.host_alloc, self.spare.malloc_host);
        let make = || {
            let mut memory = ptr::null_mut();
            let code = match (flagged, plain) {
                // SAFETY: the address goes to a live local; flags 0 is the plain kind.
                (Some(alloc), _) => unsafe { alloc(&mut memory, bytes, 0) },
                // SAFETY: the address goes to a live local.
                (None, Some(alloc)) => unsafe { alloc(&mut memory, bytes) },
                (None, None) => return Err(self.lacks(suffix)),
            };
            self.check(suffix, code).map(|()| memory)
        };
        self.made(make, Thing::Host, bytes)
    }

    /// Frees pinned host memory.
    ///
    /// # Safety
    ///
    /// `memory` came from `malloc_host` of this driver, is freed once, and nobody uses it any more.
    pub(crate) unsafe fn free_host(&self, memory: *mut c_void) -> Result<()> {
        let suffix = "FreeHost";
        let free = self.common.free_host.ok_or_else(|| self.lacks(suffix))?;
        self.ended(Thing::Host(memory.addr()), || {
            // SAFETY: what this function asks of its caller.
            let code = unsafe { free(memory) };
            self.check(suffix, code)
        })
    }

    /// Pins memory of ours, so that the device copies from and to it by itself.
    ///
    /// # Safety
    ///
    /// The range is mapped until it is unpinned.
    pub(crate) unsafe fn host_register(&self, memory: *mut c_void, bytes: usize) -> Result<()> {
        let suffix = "HostRegister";
        let (Some(register), Some(_)) = (self.spare.host_register, self.spare.host_unregister)
        else {
            return Err(Error::not_supported(format!(
                "{} ({}) can't pin memory that it didn't make",
                self.title(),
                self.path().display()
            )));
        };
        // SAFETY: what this function asks of its caller; flags 0 is the plain kind.
        let code = unsafe { register(memory, bytes, 0) };
        self.check(suffix, code)
    }

    /// Takes back what [`Driver::host_register`] did.
    ///
    /// # Safety
    ///
    /// `memory` was pinned by it, is unpinned once, and no copy from or to it is going on.
    pub(crate) unsafe fn host_unregister(&self, memory: *mut c_void) -> Result<()> {
        let suffix = "HostUnregister";
        let unregister = (self.spare.host_unregister).ok_or_else(|| self.lacks(suffix))?;
        // SAFETY: what this function asks of its caller.
        let code = unsafe { unregister(memory) };
        self.check(suffix, code)
    }

    /// Whether [`Driver::event_query`] can be understood.
    pub(crate) fn answers_events(&self) -> bool {
        self.common.event_query.is_some() && self.can_ask("EventQuery").is_ok()
    }

    /// Copies on a stream.
    ///
    /// # Safety
    ///
    /// Both ranges are valid memory of the kinds that `kind` says until the stream has done the
    /// copy, and nobody writes what it reads or touches what it writes meanwhile.
    pub(crate) unsafe fn memcpy_async(
        &self,
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
        kind: CopyKind,
        stream: RawStream,
    ) -> Result<()> {
        let suffix = "MemcpyAsync";
        let handle = self.handle(stream)?;
        let memory = [to.cast_const(), from].map(|address| Thing::Memory(address.addr()));
        let things = [stream.thing(), memory[0], memory[1]];
        if let Some(runtime) = &self.runtime {
            let copy = runtime.memcpy_async.ok_or_else(|| self.lacks(suffix))?;
            let kind = match (kind, self.enums.copy[kind as usize]) {
                // A runtime that can't find it out by itself.
                (CopyKind::Default, None) => match self.direction(to, from)? {
                    Some(kind) => kind,
                    None => {
                        self.stream_synchronize(stream)?;
                        // SAFETY: both are host memory, and what the stream had before is done.
                        unsafe { ptr::copy(from.cast::<u8>(), to.cast::<u8>(), bytes) };
                        return Ok(());
                    }
                },
                (kind, _) => kind,
            };
            let number = self.enums.copy[kind as usize].ok_or_else(|| {
                let what = format!("the number of {} for a copy {kind}", self.name(suffix));
                self.untold(&what, COPY_NAMES[kind as usize])
            })?;
            return self.at_home(&things, || {
                // SAFETY: what this function asks of its caller; the stream's type promises the
                // rest.
                let code = unsafe { copy(to, from, bytes, number, handle) };
                self.check(suffix, code)
            });
        }
        let copy = self.low.as_ref().and_then(|low| low.below.memcpy_async);
        let copy = copy.ok_or_else(|| self.lacks(suffix))?;
        // SAFETY: as above; the driver finds the kind out from the addresses.
        let code = unsafe { copy(to, from, bytes, handle) };
        self.check(suffix, code)
    }

    /// The direction of a copy between two addresses; `None` from host to host.
    fn direction(&self, to: *const c_void, from: *const c_void) -> Result<Option<CopyKind>> {
        Ok(match (self.on_device(to)?, self.on_device(from)?) {
            (true, true) => Some(CopyKind::DeviceToDevice),
            (true, false) => Some(CopyKind::HostToDevice),
            (false, true) => Some(CopyKind::DeviceToHost),
            (false, false) => None,
        })
    }

    /// Whether the host can't use an address by itself. Where the driver can't tell whose memory it
    /// is, the kernel says whether the host can read it.
    pub(crate) fn on_device(&self, pointer: *const c_void) -> Result<bool> {
        let by_kernel = || crate::sys::memory::readable(pointer).map(|readable| !readable);
        match self.pointer_owner(pointer) {
            // It may be known on another device.
            Ok(PointerOwner::Unregistered) if self.device_scoped() => by_kernel(),
            Ok(owner) => Ok(matches!(owner, PointerOwner::Device(_))),
            Err(error) if error.code() == Code::NotSupported => by_kernel(),
            Err(error) => Err(error),
        }
    }

    /// Copies from a device to the host and waits, on a stream of its own, so that no stream of the
    /// program's is waited for or disturbed.
    ///
    /// # Safety
    ///
    /// Both ranges are valid, and nothing writes what is read meanwhile.
    pub(crate) unsafe fn copy_to_host(
        &self,
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
    ) -> Result<()> {
        let stream = self.stream_create()?;
        let kind = CopyKind::DeviceToHost;
        // SAFETY: what this function asks of its caller; the copy is waited for below.
        let copied = unsafe { self.memcpy_async(to, from, bytes, kind, stream.handle()) }
            .and_then(|()| self.stream_synchronize(stream.handle()));
        copied.and(self.stream_destroy(stream))
    }

    /// Fills memory with a byte on a stream.
    ///
    /// # Safety
    ///
    /// The range is valid memory of the device until the stream has filled it, and nobody touches
    /// it meanwhile.
    pub(crate) unsafe fn memset_async(
        &self,
        to: *mut c_void,
        byte: u8,
        bytes: usize,
        stream: RawStream,
    ) -> Result<()> {
        let suffix = "MemsetAsync";
        let set = self.common.memset_async.ok_or_else(|| self.lacks(suffix))?;
        let handle = self.handle(stream)?;
        self.at_home(&[stream.thing(), Thing::Memory(to.addr())], || {
            // SAFETY: what this function asks of its caller; the stream's type promises the rest.
            let code = unsafe { set(to, c_int::from(byte), bytes, handle) };
            self.check(suffix, code)
        })
    }

    /// Whose memory an address is. The memory is not touched; any address may be asked for. A
    /// driver that can't tell gives [`Code::NotSupported`].
    pub(crate) fn pointer_owner(&self, pointer: *const c_void) -> Result<PointerOwner> {
        let owners = self.owners.as_ref();
        if let Some(device) = owners.and_then(|o| o.device_of(Thing::Memory(pointer.addr()))) {
            return Ok(PointerOwner::Device(device));
        }
        match (&self.runtime, &self.low) {
            (Some(runtime), _) => self.pointer_owner_runtime(runtime, pointer),
            (None, Some(low)) => self.pointer_owner_low(low, pointer),
            (None, None) => Err(self.lacks("PointerGetAttributes")),
        }
    }

    fn pointer_owner_runtime(
        &self,
        runtime: &Runtime,
        pointer: *const c_void,
    ) -> Result<PointerOwner> {
        let suffix = "PointerGetAttributes";
        let ask = runtime
            .pointer_attributes
            .ok_or_else(|| self.lacks(suffix))?;
        let kinds = self.kinds.ok_or_else(|| {
            Error::not_supported(format!(
                "the {} ({}) gives answers to {} that can't be read",
                self.title(),
                self.path().display(),
                self.name(suffix)
            ))
        })?;
        // Zeroed, and far larger than any version's struct, which has grown once already.
        let mut attributes = PointerAttributes {
            kind: 0,
            device: 0,
            rest: [0; 31],
        };
        // SAFETY: the driver only looks the address up; the answer goes to a live local that is
        // larger than the struct of any version.
        let code = unsafe { ask(&mut attributes, pointer) };
        let _ = attributes.rest;
        match self.enums.unknown_pointer {
            _ if code == 0 => {}
            Some(unknown) if code == unknown => {
                // How older runtimes say that they don't know the address.
                self.forget(code);
                return Ok(PointerOwner::Unregistered);
            }
            Some(_) => return Err(self.failed(&self.name(suffix), code)),
            // It may be the number for an unknown address, or a failure.
            None => {
                let error = self.failed(&self.name(suffix), code);
                return Err(Error::not_supported(error.text()));
            }
        }
        let memory = kinds.iter().find(|(kind, _)| *kind == attributes.kind);
        match memory.map(|(_, memory)| memory) {
            Some(Memory::Unregistered) => Ok(PointerOwner::Unregistered),
            Some(Memory::Host) => Ok(PointerOwner::HostPinned),
            Some(Memory::Device) => Ok(PointerOwner::Device(attributes.device)),
            Some(Memory::Managed) => Ok(PointerOwner::Managed(attributes.device)),
            None => Err(self.unknown_memory(&self.name(suffix), i64::from(attributes.kind))),
        }
    }

    fn pointer_owner_low(&self, low: &Low, pointer: *const c_void) -> Result<PointerOwner> {
        let suffix = "PointerGetAttribute";
        let ask = low
            .below
            .pointer_attribute
            .ok_or_else(|| self.lacks_low(low, suffix))?;
        let question = |attribute: c_int| -> Result<Option<c_uint>> {
            let mut answer = [0 as c_uint; 4];
            // SAFETY: the driver only looks the address up; each of these attributes is a number
            // of at most 32 bits, which goes to a live local that is larger.
            match unsafe { ask(answer.as_mut_ptr().cast(), attribute, pointer) } {
                0 => Ok(Some(answer[0])),
                code if low.row.enums.unknown_pointer == Some(code) => Ok(None),
                code => Err(self.failed_low(low, suffix, code)),
            }
        };
        let Some(kind) = question(POINTER_MEMORY_TYPE)? else {
            return Ok(PointerOwner::Unregistered);
        };
        let device = question(POINTER_DEVICE_ORDINAL)?.map_or(-1, |d| d as i32);
        if question(POINTER_IS_MANAGED)?.is_some_and(|managed| managed & 0xff != 0) {
            return Ok(PointerOwner::Managed(device));
        }
        match kind {
            LOW_MEMORY_HOST => Ok(PointerOwner::HostPinned),
            LOW_MEMORY_DEVICE => Ok(PointerOwner::Device(device)),
            kind => {
                let name = format!("{}{suffix}", low.row.prefix);
                Err(self.unknown_memory(&name, i64::from(kind)))
            }
        }
    }

    #[cold]
    fn unknown_memory(&self, name: &str, kind: i64) -> Error {
        Error::new(
            Code::UnhandledDeviceError,
            format!("{name} gave the unknown memory type {kind}"),
        )
    }
}

fn words_at(words: *const c_char) -> String {
    if words.is_null() {
        return "no text".to_string();
    }
    // SAFETY: not NULL, and a NUL-terminated string that the driver keeps.
    unsafe { CStr::from_ptr(words) }
        .to_string_lossy()
        .into_owned()
}

fn low_error_text(low: &Low, code: c_int) -> String {
    let mut words: *const c_char = ptr::null();
    if let Some(ask) = low.below.error_string {
        // SAFETY: takes any number; a pointer to a string that the driver keeps, or NULL, goes to
        // a live local.
        let result = unsafe { ask(code, &mut words) };
        if result != 0 {
            words = ptr::null();
        }
    }
    words_at(words)
}

fn accept(
    title: &str,
    needed: &[String],
    resolver: &Resolver<'_>,
) -> std::result::Result<(), Refusal> {
    let missing: Vec<&str> = needed
        .iter()
        .filter(|name| resolver.missing().contains(name))
        .map(String::as_str)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut reason = format!("it is not the {title}: it lacks {}", missing.join(", "));
    for stray in resolver.strays() {
        reason.push_str("; ");
        reason.push_str(stray);
    }
    Err(Refusal {
        reason,
        version: None,
        coverage: Some(resolver.coverage()),
    })
}

fn ask_version(ask: unsafe extern "C" fn(*mut c_int) -> c_int) -> Option<c_int> {
    let mut code = 0;
    // SAFETY: the number goes to a live local; the call needs no device.
    let result = unsafe { ask(&mut code) };
    (result == 0 && code > 0).then_some(code)
}

/// The result that a runtime names as "not ready".
fn find_not_ready(name: unsafe extern "C" fn(c_int) -> *const c_char) -> Option<c_int> {
    (1..=LAST_NAMED).find(|code| {
        // SAFETY: takes any number and returns a string that the runtime keeps, or NULL.
        words_at(unsafe { name(*code) }).ends_with("ErrorNotReady")
    })
}

/// The name of a function of a runtime of CUDA's shape, if it is looked up.
fn usual(row: &DriverRow, suffix: &str) -> Option<String> {
    (!row.without.contains(&suffix)).then(|| renamed(row.renames, row.prefix, suffix))
}

/// The name of a function that is looked up only where the row asks for it.
fn spare(row: &DriverRow, suffix: &str) -> Option<String> {
    let asked = row.with.contains(&suffix);
    asked.then(|| renamed(row.renames, row.prefix, suffix))
}

/// The name of a function of a driver below a runtime that is looked up only where its row asks for it.
fn spare_below(low: &LowRow, suffix: &str) -> Option<String> {
    let asked = low.with.contains(&suffix);
    asked.then(|| format!("{}{suffix}", low.prefix))
}

/// The index that a device has for a process that sees all, as far as the list of visible devices
/// tells: its entry, or the whole list where that is not one of numbers.
fn among_all(device: i32, visible: Option<&str>) -> String {
    let Some(list) = visible else {
        return device.to_string();
    };
    let entry = usize::try_from(device)
        .ok()
        .and_then(|at| list.split(',').nth(at))
        .and_then(|entry| entry.trim().parse::<u32>().ok());
    match entry {
        Some(index) => index.to_string(),
        None => format!("{device} of {list}"),
    }
}

/// Every function of every driver as it is declared here.
pub(crate) fn declarations() -> Vec<Declaration> {
    let mut list: Vec<Declaration> = Vec::new();
    for row in super::rows::ROWS {
        let mut of_row = match row.odd {
            Some(odd) => (odd.declarations)(),
            None => {
                let library = row.library;
                let mut own = Common::declarations(library, &|suffix| usual(row, suffix));
                own.extend(Runtime::declarations(library, &|suffix| usual(row, suffix)));
                own.extend(Spare::declarations(library, &|suffix| spare(row, suffix)));
                own
            }
        };
        if let Some(low) = row.low {
            let name = |suffix: &str| Some(renamed(low.renames, low.prefix, suffix));
            let plain = |suffix: &str| Some(format!("{}{suffix}", low.prefix));
            of_row.extend(Common::declarations(low.library, &name));
            of_row.extend(Below::declarations(low.library, &plain));
            let spare = |suffix: &str| spare_below(low, suffix);
            of_row.extend(SpareBelow::declarations(low.library, &spare));
        }
        for declaration in of_row {
            let again = list
                .iter()
                .any(|d| d.library == declaration.library && d.name == declaration.name);
            if !again {
                list.push(declaration);
            }
        }
    }
    list
}

/// Every struct of a driver that is laid out here.
pub(crate) fn layouts() -> Vec<Layout> {
    let mut list = vec![super::acl::pointer_layout()];
    // Of the others nobody has described it, or they have no such function.
    for (library, name, kind) in [
        ("cuda", "cudaPointerAttributes", "type"),
        ("hip", "hipPointerAttribute_t", "type"),
        ("musa", "musaPointerAttributes", "type"),
        ("tops", "topsPointerAttribute_t", "memoryType"),
        ("tang", "tangPointerAttributes", "type"),
        ("cnrt", "cnrtPointerAttributes_t", "type"),
    ] {
        list.push(super::functions::pointer_layout(library, name, kind));
    }
    list
}

/// Text as 16 bytes: padded with zeros, or hashed if it is longer.
fn pad(text: &[u8]) -> [u8; 16] {
    let mut bytes = [0u8; 16];
    if text.len() <= bytes.len() {
        bytes[..text.len()].copy_from_slice(text);
        return bytes;
    }
    // FNV-1a from both ends, which is all that telling a few devices apart needs.
    let hash = |text: &mut dyn Iterator<Item = &u8>| {
        text.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        })
    };
    bytes[..8].copy_from_slice(&hash(&mut text.iter()).to_ne_bytes());
    bytes[8..].copy_from_slice(&hash(&mut text.iter().rev()).to_ne_bytes());
    bytes
}

/// The fault that the device-index tests must find: a thread's device is remembered, as some frameworks do. Only in the
/// variant of the library that those tests are tried on, never in a build that is used.
#[cfg(feature = "test-cached-device")]
mod wrong {
    use std::cell::Cell;

    thread_local! {
        pub(super) static CACHE: Cell<Option<i32>> = const { Cell::new(None) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_among_all_devices() {
        assert_eq!(among_all(1, None), "1");
        assert_eq!(among_all(1, Some("4, 7")), "7");
        assert_eq!(among_all(0, Some("GPU-a,GPU-b")), "0 of GPU-a,GPU-b");
        assert_ne!(among_all(2, Some("4,7")), among_all(1, Some("4,7")));
        assert_ne!(among_all(-1, Some("4,7")), among_all(0, Some("4,7")));
    }

    #[test]
    fn padding() {
        assert_eq!(&pad(b"0000:1b:00.0")[..12], b"0000:1b:00.0");
        assert_eq!(pad(b"0000:1b:00.0")[12..], [0; 4]);
        assert_ne!(pad(b"00000000:1b:00.0x"), pad(b"00000000:1c:00.0x"));
    }
}

/// One word of device memory. Like everything of a driver's it is freed by a call, not by a drop.
#[derive(Debug)]
pub(crate) struct DeviceWord(UserPtr);

impl DeviceWord {
    /// Allocates it on the current device.
    pub(crate) fn new(driver: &Driver) -> Result<DeviceWord> {
        driver.malloc(8).map(|memory| DeviceWord(UserPtr(memory)))
    }

    /// Its address on the device.
    pub(crate) fn address(&self) -> *mut c_void {
        self.0.get()
    }

    /// Frees it, once nothing uses it any more.
    pub(crate) fn free(&self, driver: &Driver) -> Result<()> {
        driver.free_user(self.0)
    }
}
