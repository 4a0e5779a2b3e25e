//! Device buffers on the host tier: what moves their bytes, and the thread that runs operations for
//! streams that wait for them.
//!
//! Copies go on two streams of our own, one for each way. From and to memory that the driver has pinned
//! they overlap with everything else; other memory goes through a small pinned buffer, piece by piece,
//! and where the driver has no pinned memory either, directly.
//!
//! Where the driver can make a stream wait for a value in memory, an operation returns at once: the
//! stream waits until a word has the operation's number, which is written when the operation is done.

use super::op::{CopySpan, HostOp, Mover, OnDevice, SLOTS, Way};
use crate::device::{CopyKind, Driver, Guard, OwnedEvent, OwnedStream, RawStream};
use crate::error::{Error, Result};
use crate::ops::lock;
use crate::sys::handoff::{Sender, queue};
use crate::sys::per_process::PerProcess;
use crate::types::OpKind;
use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of the pinned buffer for copies from and to memory that isn't pinned.
const BOUNCE: usize = 256 << 10;

/// Whether an operation reads its send buffer and writes its receive buffer on this rank.
fn uses(op: &HostOp, rank: u32) -> (bool, bool) {
    let at_root = op.root == rank;
    let (reads, writes) = match op.kind {
        OpKind::Broadcast | OpKind::Scatter => (at_root, true),
        OpKind::Reduce | OpKind::Gather => (true, at_root),
        OpKind::Send => (true, false),
        OpKind::Recv => (false, true),
        OpKind::Barrier => (false, false),
        OpKind::AllToAllv => {
            let any = |counts: &[usize]| counts.iter().any(|count| *count > 0);
            return op.vector.as_ref().map_or((false, false), |v| {
                (any(&v.send_counts), any(&v.recv_counts))
            });
        }
        _ => (true, true),
    };
    (reads && op.count > 0, writes && op.count > 0)
}

/// Notes which buffers of an operation only the device can use. Host, pinned and managed memory stays as
/// it is. `true`: all that it uses are on the device.
pub(crate) fn locate(driver: &Driver, op: &mut HostOp, rank: u32) -> Result<bool> {
    let (reads, writes) = uses(op, rank);
    op.on_device = OnDevice {
        send: reads && driver.on_device(op.send.cast())?,
        recv: writes && driver.on_device(op.recv.cast())?,
    };
    Ok((!reads || op.on_device.send) && (!writes || op.on_device.recv))
}

/// The way to one device's memory.
pub(crate) struct DeviceMover {
    driver: &'static Driver,
    device: i32,
    /// By [`Way`].
    lanes: [Lane; 2],
    /// Whether the driver tells when an event has happened; else every copy is waited for.
    asks: bool,
    bounce: Mutex<Bounce>,
    /// Start and bytes of what is pinned.
    pinned: Mutex<Option<(usize, usize)>>,
    /// Copies were begun that nobody has waited for.
    begun: AtomicBool,
    /// The word for which streams wait, where the driver can do that.
    word: Option<Word>,
}

struct Lane {
    stream: OwnedStream,
    /// By slot.
    events: Vec<OwnedEvent>,
}

struct Bounce {
    /// NULL: there is no pinned memory.
    memory: *mut u8,
    made: bool,
}

// SAFETY: an address of memory that only its holder uses, under the mutex around it.
unsafe impl Send for Bounce {}

impl DeviceMover {
    /// Streams and events of the current device, which is `device`.
    pub(crate) fn new(driver: &'static Driver, device: i32) -> Result<DeviceMover> {
        let asks = driver.answers_events();
        let lane = || -> Result<Lane> {
            let mut lane = Lane {
                stream: driver.stream_create_first()?,
                events: Vec::with_capacity(SLOTS),
            };
            for _ in 0..if asks { SLOTS } else { 0 } {
                match driver.event_create(false) {
                    Ok(event) => lane.events.push(event),
                    Err(error) => {
                        lane.end(driver);
                        return Err(error);
                    }
                }
            }
            Ok(lane)
        };
        let first = lane()?;
        let lanes = match lane() {
            Ok(second) => [first, second],
            Err(error) => {
                first.end(driver);
                return Err(error);
            }
        };
        let word = Some(()).filter(|()| asks).and_then(|()| {
            let word = Word::take(driver)?;
            let stream = lanes[Way::In as usize].stream.handle();
            // The value that it has: the stream passes, if the driver can do it at all.
            // SAFETY: words are never freed.
            match unsafe { driver.stream_wait_value(stream, word.at(), word.value()) } {
                Ok(()) => Some(word),
                Err(error) => {
                    log::debug!("operations wait for their end: {error}");
                    None
                }
            }
        });
        Ok(DeviceMover {
            driver,
            device,
            lanes,
            asks,
            bounce: Mutex::new(Bounce {
                memory: std::ptr::null_mut(),
                made: false,
            }),
            pinned: Mutex::new(None),
            begun: AtomicBool::new(false),
            word,
        })
    }

    /// Frees everything. No copy goes on, and the memory that it has pinned is still there.
    pub(crate) fn close(&self) -> Result<()> {
        let end = || {
            let mut ended = Ok(());
            if let Some((base, _)) = lock(&self.pinned).take() {
                let base = std::ptr::with_exposed_provenance_mut::<c_void>(base);
                // SAFETY: pinned by `will_use`, taken out so that it is unpinned once.
                ended = ended.and(unsafe { self.driver.host_unregister(base) });
            }
            let bounce = std::mem::replace(&mut lock(&self.bounce).memory, std::ptr::null_mut());
            if !bounce.is_null() {
                // SAFETY: made by `through_bounce`, taken out so that it is freed once.
                ended = ended.and(unsafe { self.driver.free_host(bounce.cast()) });
            }
            for lane in &self.lanes {
                lane.end(self.driver);
            }
            ended
        };
        match self.device {
            device @ 0.. => Guard::with(self.driver, device, end),
            _ => end(),
        }
    }

    /// Whether streams can wait for operations.
    pub(crate) fn word(&self) -> Option<&Word> {
        self.word.as_ref()
    }

    fn stream(&self, way: Way) -> RawStream {
        self.lanes[way as usize].stream.handle()
    }

    fn is_pinned(&self, span: &CopySpan, way: Way) -> bool {
        let host = match way {
            Way::In => span.to.addr(),
            Way::Out => span.from.addr(),
        };
        lock(&self.pinned)
            .is_some_and(|(base, bytes)| host >= base && host + span.bytes <= base + bytes)
    }

    /// Puts a copy on the stream of its way.
    ///
    /// # Safety
    /// As [`Mover::copy`], until the stream has done it.
    unsafe fn enqueue(&self, way: Way, span: &CopySpan) -> Result<()> {
        let kind = match way {
            Way::In => CopyKind::DeviceToHost,
            Way::Out => CopyKind::HostToDevice,
        };
        self.begun.store(true, Release);
        let (to, from) = (span.to.cast(), span.from.cast());
        // SAFETY: handed down from the caller.
        unsafe {
            self.driver
                .memcpy_async(to, from, span.bytes, kind, self.stream(way))
        }
    }

    /// Copies through the pinned buffer, piece by piece; directly, if there is none.
    ///
    /// # Safety
    /// As [`Mover::copy`].
    unsafe fn through_bounce(&self, way: Way, span: CopySpan) -> Result<()> {
        let mut bounce = lock(&self.bounce);
        if !bounce.made {
            bounce.made = true;
            match self.driver.malloc_host(BOUNCE) {
                Ok(memory) => bounce.memory = memory.cast(),
                Err(error) => log::debug!("copies go from and to ordinary memory: {error}"),
            }
        }
        let stream = self.stream(way);
        if bounce.memory.is_null() {
            // SAFETY: handed down from the caller; waited for here.
            unsafe { self.enqueue(way, &span)? };
            return self.driver.stream_synchronize(stream);
        }
        let mut at = 0;
        while at < span.bytes {
            let bytes = BOUNCE.min(span.bytes - at);
            let (to, from) = (span.to.wrapping_add(at), span.from.wrapping_add(at));
            // SAFETY: handed down from the caller; the buffer has room, and each copy is waited for
            // before the next uses it.
            unsafe {
                match way {
                    Way::In => {
                        let to = bounce.memory;
                        self.enqueue(way, &CopySpan { to, from, bytes })?;
                        self.driver.stream_synchronize(stream)?;
                        std::ptr::copy_nonoverlapping(
                            bounce.memory,
                            span.to.wrapping_add(at),
                            bytes,
                        );
                    }
                    Way::Out => {
                        std::ptr::copy_nonoverlapping(from, bounce.memory, bytes);
                        let from = bounce.memory.cast_const();
                        self.enqueue(way, &CopySpan { to, from, bytes })?;
                        self.driver.stream_synchronize(stream)?;
                    }
                }
            }
            at += bytes;
        }
        Ok(())
    }
}

impl Lane {
    /// Destroys what it has.
    fn end(&self, driver: &Driver) {
        for event in &self.events {
            let event = OwnedEvent::from_handle(event.handle());
            if let Err(error) = driver.event_destroy(event) {
                log::warn!("an event for staging can't be destroyed: {error}");
            }
        }
        let stream = OwnedStream::from_handle(self.stream.handle());
        if let Err(error) = driver.stream_destroy(stream) {
            log::warn!("a stream for staging can't be destroyed: {error}");
        }
    }
}

impl Mover for DeviceMover {
    fn will_use(&self, base: *mut u8, bytes: usize) {
        let mut pinned = lock(&self.pinned);
        if pinned.is_some() {
            return;
        }
        // SAFETY: the caller keeps the range until `close`, which unpins it.
        match unsafe { self.driver.host_register(base.cast(), bytes) } {
            Ok(()) => *pinned = Some((base.expose_provenance(), bytes)),
            Err(error) => log::info!("memory for staging isn't pinned, which is slower: {error}"),
        }
    }

    unsafe fn copy(&self, way: Way, span: CopySpan) -> Result<()> {
        if !self.is_pinned(&span, way) {
            // SAFETY: handed down from the caller.
            return unsafe { self.through_bounce(way, span) };
        }
        // SAFETY: as above; waited for here.
        unsafe { self.enqueue(way, &span)? };
        self.driver.stream_synchronize(self.stream(way))
    }

    unsafe fn copy_own(&self, span: CopySpan) -> Result<()> {
        let on_device = (
            self.driver.on_device(span.to.cast())?,
            self.driver.on_device(span.from.cast())?,
        );
        let stream = self.stream(Way::In);
        match on_device {
            (true, true) => {
                let (to, from) = (span.to.cast(), span.from.cast());
                let kind = CopyKind::DeviceToDevice;
                self.begun.store(true, Release);
                // SAFETY: handed down from the caller; waited for here.
                unsafe {
                    self.driver
                        .memcpy_async(to, from, span.bytes, kind, stream)?;
                }
                self.driver.stream_synchronize(stream)
            }
            // SAFETY: as above.
            (true, false) => unsafe { self.copy(Way::Out, span) },
            // SAFETY: as above.
            (false, true) => unsafe { self.copy(Way::In, span) },
            (false, false) => {
                // SAFETY: as above; both are the host's.
                unsafe { std::ptr::copy(span.from, span.to, span.bytes) };
                Ok(())
            }
        }
    }

    unsafe fn begin(&self, way: Way, slot: usize, spans: &[CopySpan]) -> Result<()> {
        for span in spans.iter().filter(|span| span.bytes > 0) {
            // SAFETY: handed down from the caller.
            unsafe {
                match self.asks && self.is_pinned(span, way) {
                    true => self.enqueue(way, span)?,
                    false => self.copy(way, *span)?,
                }
            }
        }
        match self.lanes[way as usize].events.get(slot) {
            Some(event) => self.driver.event_record(event.handle(), self.stream(way)),
            None => Ok(()),
        }
    }

    fn is_done(&self, way: Way, slot: usize) -> Result<bool> {
        match self.lanes[way as usize].events.get(slot) {
            Some(event) => self.driver.event_query(event.handle()),
            None => Ok(true),
        }
    }

    fn settle(&self) {
        if !self.begun.load(Acquire) {
            return;
        }
        for way in [Way::In, Way::Out] {
            if let Err(error) = self.driver.stream_synchronize(self.stream(way)) {
                log::warn!("a stream for staging: {error}");
            }
        }
    }
}

/// A word for which streams wait. It is never freed, as a stream may look at it late; the next user goes on
/// from the value that it has, so that whoever waited for an earlier one has it.
pub(crate) struct Word {
    address: usize,
    /// The last number that was drawn.
    drawn: AtomicU32,
}

/// Words of a page of pinned memory, each in lines of its own.
const WORD_STRIDE: usize = 128;
const WORD_PAGE: usize = 4096;

/// The words that nobody uses.
fn words() -> &'static Mutex<Vec<usize>> {
    static WORDS: PerProcess<Mutex<Vec<usize>>> = PerProcess::new();
    WORDS.get_or_init(Mutex::default)
}

impl Word {
    /// One that nobody uses; none, if the driver has no pinned memory for it.
    fn take(driver: &Driver) -> Option<Word> {
        let mut words = lock(words());
        if words.is_empty() {
            let page = driver.malloc_host(WORD_PAGE).ok()?.cast::<u8>();
            // SAFETY: a page that was just made.
            unsafe { std::ptr::write_bytes(page, 0, WORD_PAGE) };
            let page = page.expose_provenance();
            words.extend((0..WORD_PAGE / WORD_STRIDE).map(|at| page + at * WORD_STRIDE));
        }
        let word = Word {
            address: words.pop()?,
            drawn: AtomicU32::new(0),
        };
        word.drawn.store(word.value(), Relaxed);
        Some(word)
    }

    fn at(&self) -> *mut u32 {
        std::ptr::with_exposed_provenance_mut(self.address)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: an aligned word of a page that is never freed, and that the process touches only as an
        // atomic.
        unsafe { AtomicU32::from_ptr(self.at()) }
    }

    /// The number of the next operation.
    pub(crate) fn draw(&self) -> u32 {
        self.drawn.fetch_add(1, Relaxed).wrapping_add(1)
    }

    /// The number that it has.
    fn value(&self) -> u32 {
        self.word().load(Acquire)
    }

    /// Lets those go on that wait for this number or an earlier one.
    pub(crate) fn reach(&self, number: u32) {
        self.word().store(number, Release);
    }

    /// Makes later work of a stream wait for a number.
    pub(crate) fn make_wait(&self, driver: &Driver, stream: RawStream, number: u32) -> Result<()> {
        // SAFETY: pinned memory of the driver's that is never freed.
        unsafe { driver.stream_wait_value(stream, self.at(), number) }
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        // Numbers that were drawn and never reached would keep the next user's streams from waiting.
        self.reach(self.drawn.load(Relaxed));
        lock(words()).push(self.address);
    }
}

/// Waits for an event of a stream, as long as `patient` says.
pub(crate) fn await_event(
    driver: &Driver,
    event: &OwnedEvent,
    patient: impl Fn() -> Result<()>,
) -> Result<()> {
    const LOOK: Duration = Duration::from_micros(50);
    const NAP: Duration = Duration::from_micros(20);
    const LONG: Duration = Duration::from_millis(2);
    const LONG_NAP: Duration = Duration::from_micros(200);
    let since = Instant::now();
    while !driver.event_query(event.handle())? {
        patient()?;
        let waited = since.elapsed();
        if waited < LOOK {
            std::thread::yield_now();
        } else {
            std::thread::sleep(if waited < LONG { NAP } else { LONG_NAP });
        }
    }
    Ok(())
}

/// One unit of work of a [`Worker`].
pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// A thread that runs the operations of one communicator for which streams wait.
pub(crate) struct Worker {
    work: Sender<Work>,
    thread: JoinHandle<()>,
}

impl Worker {
    pub(crate) fn new(driver: &'static Driver, device: i32) -> Result<Worker> {
        let (work, inbox) = queue::<Work>();
        let thread = std::thread::Builder::new()
            .name("flagos-stage".into())
            .spawn(move || {
                if device >= 0
                    && let Err(error) = driver.prepare_thread(device)
                {
                    log::warn!("the thread that stages device buffers: {error}");
                }
                while let Ok(work) = inbox.take_within(None) {
                    // Whoever waits for the work hears of its end in any case, as it is dropped.
                    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
                }
            })
            .map_err(|e| Error::system("no thread to stage device buffers", e))?;
        Ok(Worker { work, thread })
    }

    pub(crate) fn give(&self, work: Work) -> Result<()> {
        self.work
            .send(work)
            .map_err(|_| Error::internal("the thread that stages device buffers has ended"))
    }

    /// Ends the thread after what it was given.
    pub(crate) fn end(self) {
        drop(self.work);
        // What panicked was caught.
        let _ = self.thread.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::tests::{driver, log, tables, without_owners};
    use crate::device::{MACA, MUSA};
    use crate::types::{DataType, RedOp, Reduction};

    fn located(driver: &Driver, send: *mut c_void) -> (bool, bool) {
        let mut op = HostOp {
            kind: OpKind::Send,
            send: send.cast(),
            recv: std::ptr::null_mut(),
            count: 16,
            dtype: DataType::Uint8,
            reduction: Reduction::Builtin(RedOp::Sum),
            root: 1,
            vector: None,
            on_device: OnDevice::default(),
        };
        let all = locate(driver, &mut op, 0).unwrap();
        assert!(!op.on_device.recv);
        (op.on_device.send, all)
    }

    #[test]
    fn memory_that_the_host_cannot_read_is_staged_where_the_driver_cannot_tell() {
        // The answer of the one can't be read, the other has no function that could be asked.
        for (row, tables) in [(&MACA, tables()), (&MUSA, without_owners())] {
            let driver = driver(row, "not_ready=600", tables);
            log();
            let mut on_host = [0u8; 16];
            let host = on_host.as_mut_ptr().cast();
            assert_eq!(located(&driver, host), (false, false));

            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping of the kernel's choice replaces nothing.
            let page =
                unsafe { libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_NONE, flags, -1, 0) };
            assert_ne!(page, libc::MAP_FAILED);
            assert_eq!(located(&driver, page), (true, true));
            // SAFETY: the mapping made above, which nobody else knows.
            unsafe { libc::munmap(page, 4096) };
        }
    }
}
