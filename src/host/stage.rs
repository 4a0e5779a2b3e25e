//! Device buffers on the host tier: what moves their bytes, and the thread that runs operations for
//! streams that wait for them.
//!
//! Copies go on two streams of our own, one for each way. From and to memory that the driver has pinned
//! they overlap with everything else; other memory goes through a small pinned buffer, piece by piece,
//! and where the driver has no pinned memory either, directly.
//!
//! Where the driver can make a stream wait for a value in memory, and write one, an operation returns at
//! once. All its copies are put on our streams then, each behind a gate: a number in memory that it waits
//! for, and that a thread of ours raises when its turn has come. Every copy writes a number when it is
//! done. The caller's streams wait for the last by events. So the driver knows every order but that of the
//! host's part, has all copies of an operation before whatever the caller queues behind it, and is not
//! called while the host's part goes on: a call of the program's may have its locks and wait for our stream.

use super::op::{CopySpan, HostOp, Mover, OnDevice, SLOTS, Way};
use super::shm::Plan;
use crate::device::{CopyKind, Driver, Guard, OwnedEvent, OwnedStream, RawStream};
use crate::error::{Code, Error, Result};
use crate::ops::lock;
use crate::sys::handoff::{Sender, queue};
use crate::sys::per_process::PerProcess;
use crate::types::OpKind;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of the pinned buffer for copies from and to memory that isn't pinned.
const BOUNCE: usize = 256 << 10;

/// Notes which buffers of an operation only the device can use. Host, pinned and managed memory stays as
/// it is. `true`: all that it uses are on the device.
pub(crate) fn locate(driver: &Driver, op: &mut HostOp, rank: u32) -> Result<bool> {
    let (reads, writes) = op.uses(rank);
    op.on_device = OnDevice {
        send: reads && driver.on_device(op.send.cast())?,
        recv: writes && driver.on_device(op.recv.cast())?,
    };
    Ok((!reads || op.on_device.send) && (!writes || op.on_device.recv))
}

/// Bytes from the start of an operation's buffers to the end of what it reads and writes.
fn extents(op: &HostOp, rank: u32, nranks: u32) -> (usize, usize) {
    let (sends, receives) = op.blocks(rank, nranks);
    let block = op.count * op.dtype.size();
    (block * sends, block * receives)
}

/// The operations with all buffers in a place of ours, and the copies from and to the device; `None` if there is
/// no place for them now. An AlltoAllv has gaps, of which nothing may be written.
pub(crate) fn in_place_of_ours(
    mover: &DeviceMover,
    ops: &[HostOp],
    rank: u32,
    nranks: u32,
) -> Option<(Vec<HostOp>, Plan)> {
    if ops.iter().any(|op| op.kind == OpKind::AllToAllv) {
        return None;
    }
    // Each buffer starts in lines of its own.
    let room = |bytes: usize| bytes.next_multiple_of(64);
    let needs = ops.iter().map(|op| {
        let (send, recv) = extents(op, rank, nranks);
        room(send).saturating_add(room(recv))
    });
    let needs = needs.fold(0usize, usize::saturating_add);
    let mut at = mover.place(needs)?;
    let (mut inward, mut outward) = (Vec::new(), Vec::new());
    let mut placed = Vec::with_capacity(ops.len());
    for op in ops {
        let (send, recv) = extents(op, rank, nranks);
        let mut own = HostOp {
            on_device: OnDevice::default(),
            ..op.clone()
        };
        if send > 0 {
            own.send = at;
            inward.push(CopySpan {
                to: at,
                from: op.send,
                bytes: send,
            });
            at = at.wrapping_add(room(send));
        }
        if recv > 0 {
            own.recv = at;
            outward.push(CopySpan {
                to: op.recv,
                from: at,
                bytes: recv,
            });
            at = at.wrapping_add(room(recv));
        }
        placed.push(own);
    }
    let plan = Plan {
        slots: 1,
        own: None,
        inward: vec![inward],
        outward: vec![outward],
    };
    Some((placed, plan))
}

/// One range of a buffer, in bytes from its start.
type Range = std::ops::Range<usize>;

/// What of its buffers an operation reads and writes.
fn ranges(op: &HostOp, rank: u32, nranks: u32) -> [Vec<Range>; 2] {
    let size = op.dtype.size();
    if let Some(v) = &op.vector {
        let blocks = |counts: &[usize], displs: &[usize]| {
            let blocks = counts.iter().zip(displs);
            blocks.map(|(c, d)| d * size..(d + c) * size).collect()
        };
        return [
            blocks(&v.send_counts, &v.send_displs),
            blocks(&v.recv_counts, &v.recv_displs),
        ];
    }
    let (send, recv) = extents(op, rank, nranks);
    [send, recv].map(|end| std::iter::once(0..end).collect())
}

/// What has to go back to a device, and where it is until then.
pub(crate) struct Results {
    spans: Vec<CopySpan>,
    /// All copies on the host; only the spans point to them.
    memory: Vec<Vec<MaybeUninit<u8>>>,
}

impl Results {
    /// Copies them to the device.
    ///
    /// # Safety
    /// The buffers of the operations are as the caller of [`to_host`] promised; all of the results that the
    /// spans mean have been written.
    pub(crate) unsafe fn deliver(self, mover: &dyn Mover) -> Result<()> {
        for span in self.spans {
            // SAFETY: handed down from the caller; the memory is still there.
            unsafe { mover.copy(Way::Out, span)? };
        }
        drop(self.memory);
        Ok(())
    }
}

/// The operations with every buffer that only the device can use replaced by memory of the host, and what has to
/// go back afterwards. Only what an operation reads is brought, only what it writes goes back. Those that the engine
/// `stages` itself stay as they are.
///
/// # Safety
/// The operations' buffers on the device have as many bytes as they need, and nobody uses them.
pub(crate) unsafe fn to_host(
    mover: &dyn Mover,
    ops: &[HostOp],
    (rank, nranks): (u32, u32),
    stages: impl Fn(&HostOp) -> bool,
) -> Result<(Vec<HostOp>, Results)> {
    let (mut spans, mut memory) = (Vec::new(), Vec::new());
    let mut room = |ranges: &[Range]| -> Result<*mut u8> {
        let bytes = ranges.iter().map(|range| range.end).max().unwrap_or(0);
        let mut copy = Vec::new();
        copy.try_reserve_exact(bytes).map_err(|_| {
            let text = format!("no memory for a copy of {bytes} bytes of a device's");
            Error::new(Code::SystemError, text)
        })?;
        copy.resize(bytes, MaybeUninit::uninit());
        let start = copy.as_mut_ptr().cast();
        memory.push(copy);
        Ok(start)
    };
    let mut on_host = Vec::with_capacity(ops.len());
    for op in ops {
        if stages(op) {
            on_host.push(op.clone());
            continue;
        }
        let [read, written] = ranges(op, rank, nranks);
        let mut own = HostOp {
            on_device: OnDevice::default(),
            ..op.clone()
        };
        if op.on_device.send {
            let to = room(&read)?;
            own.send = to;
            for range in read.into_iter().filter(|range| !range.is_empty()) {
                let span = CopySpan {
                    to: to.wrapping_add(range.start),
                    from: op.send.wrapping_add(range.start),
                    bytes: range.len(),
                };
                // SAFETY: handed down from the caller; there is room for all that is read.
                unsafe { mover.copy(Way::In, span)? };
            }
        }
        if op.on_device.recv {
            let from = room(&written)?;
            own.recv = from;
            let written = written.into_iter().filter(|range| !range.is_empty());
            spans.extend(written.map(|range| CopySpan {
                to: op.recv.wrapping_add(range.start),
                from: from.wrapping_add(range.start),
                bytes: range.len(),
            }));
        }
        on_host.push(own);
    }
    Ok((on_host, Results { spans, memory }))
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
    /// What streams and host tell each other, where the driver can do that.
    gates: Option<Gates>,
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
        let gates = match asks {
            true => Gates::new(driver, lanes[Way::In as usize].stream.handle()),
            false => None,
        };
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
            gates,
        })
    }

    /// Frees everything. Nobody begins a copy any more. `false`: copies go on, which wait for something
    /// that is not ours, and what they use must stay; so does everything else.
    pub(crate) fn close(&self) -> Result<bool> {
        let end = || {
            if self.gates.is_some() && !self.is_idle_soon()? {
                return Ok(false);
            }
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
            if let Some(gates) = &self.gates {
                ended = ended.and(gates.end(self.driver));
            }
            for lane in &self.lanes {
                lane.end(self.driver);
            }
            ended.map(|()| true)
        };
        match self.device {
            device @ 0.. => Guard::with(self.driver, device, end),
            _ => end(),
        }
    }

    fn is_idle_soon(&self) -> Result<bool> {
        let since = Instant::now();
        for way in [Way::In, Way::Out] {
            while !self.driver.stream_query(self.stream(way))? {
                if since.elapsed() > LAST_COPIES {
                    return Ok(false);
                }
                std::thread::sleep(NAP);
            }
        }
        Ok(true)
    }

    /// Whether operations can be queued.
    pub(crate) fn queues(&self) -> bool {
        self.gates.is_some()
    }

    /// Whether copies from and to the memory of [`Mover::will_use`] can be queued.
    pub(crate) fn queues_pool(&self) -> bool {
        self.queues() && lock(&self.pinned).is_some()
    }

    /// The numbers of the copies of a plan, which [`Queued::put`] then puts on streams.
    pub(crate) fn reserve(self: &Arc<Self>, plan: &Plan) -> Result<Queued> {
        let gates = self.gates.as_ref();
        let gates = gates.ok_or_else(|| Error::internal("nothing can be queued"))?;
        let count = [plan.inward.len() as u32, plan.outward.len() as u32];
        let from = |way: Way| gates.planned[way as usize].fetch_add(count[way as usize], Relaxed);
        Ok(Queued {
            mover: Arc::clone(self),
            from: [from(Way::In), from(Way::Out)],
            count,
            begun: [const { AtomicU32::new(0) }; 2],
            done: [const { AtomicU32::new(0) }; 2],
            start: gates.starts.fetch_add(1, Relaxed).wrapping_add(1),
        })
    }

    /// See [`Queued::put`].
    ///
    /// # Safety
    /// As there.
    unsafe fn put(
        &self,
        gates: &Gates,
        streams: &[RawStream],
        plan: &Plan,
        queued: &Queued,
    ) -> Result<()> {
        let driver = self.driver;
        let lanes = [self.stream(Way::In), self.stream(Way::Out)];
        let [before, ends @ ..] = &gates.marks;
        for stream in streams {
            driver.event_record(before.handle(), *stream)?;
            for lane in lanes {
                driver.stream_wait_event(lane, before.handle())?;
            }
        }
        let step = |way: Way, at: usize| -> Result<()> {
            let number = queued.number(way, at as u32 + 1);
            let stream = lanes[way as usize];
            let spans = match way {
                Way::In => &plan.inward[at],
                Way::Out => &plan.outward[at],
            };
            // SAFETY: words are never freed.
            unsafe {
                driver.stream_wait_value(stream, gates.open[way as usize].at(), number)?;
            }
            for span in spans.iter().filter(|span| span.bytes > 0) {
                // SAFETY: handed down from the caller.
                unsafe { self.enqueue(way, span)? };
            }
            // SAFETY: as above.
            unsafe { driver.stream_write_value(stream, gates.done[way as usize].at(), number) }
        };
        // SAFETY: as above.
        unsafe { driver.stream_write_value(lanes[0], gates.start.at(), queued.start)? };
        if let Some(own) = &plan.own {
            let (to, from) = (own.to.cast(), own.from.cast());
            // SAFETY: handed down from the caller: both are on the device.
            unsafe {
                driver.memcpy_async(to, from, own.bytes, CopyKind::DeviceToDevice, lanes[1])?;
            }
        }
        // In an order in which one queue of the device could do all.
        let (mut inward, mut outward) = (0, 0);
        while inward < plan.inward.len() || outward < plan.outward.len() {
            let room = outward >= plan.outward.len() || inward < outward + plan.slots;
            if inward < plan.inward.len() && room {
                step(Way::In, inward)?;
                inward += 1;
            } else {
                step(Way::Out, outward)?;
                outward += 1;
            }
        }
        for (end, lane) in ends.iter().zip(lanes) {
            driver.event_record(end.handle(), lane)?;
            for stream in streams {
                driver.stream_wait_event(*stream, end.handle())?;
            }
        }
        Ok(())
    }

    /// A place in pinned memory for an operation's buffers of so many bytes in all; `None` if there is none now.
    pub(crate) fn place(&self, bytes: usize) -> Option<*mut u8> {
        let gates = self.gates.as_ref()?;
        let mut ring = lock(&gates.ring);
        if bytes > PLACE || ring.memory.is_null() {
            return None;
        }
        let at = ring.next;
        let (start, out) = ring.used[at];
        // The operation that had it is over, and its results are on the device.
        let over = reached(gates.over.load(Acquire), start)
            && reached(gates.done[Way::Out as usize].value(), out);
        if !over {
            return None;
        }
        ring.next = (at + 1) % PLACES;
        // What will be queued next has it.
        let start = gates.starts.load(Relaxed).wrapping_add(1);
        let out = gates.planned[Way::Out as usize].load(Relaxed);
        ring.used[at] = (start, out.wrapping_add(1));
        Some(ring.memory.wrapping_add(at * PLACE))
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
            Some(event) => (self.driver).event_record(event.handle(), self.stream(way)),
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

/// A word that host and streams see. It is never freed, as a stream may look at it late; the next user goes on
/// from the value that it has, so that whoever waited for an earlier one has it.
struct Word(usize);

/// Words of a page of pinned memory, each in lines of its own.
const WORD_STRIDE: usize = 128;
const WORD_PAGE: usize = 4096;

/// The words that nobody uses.
fn words() -> &'static Mutex<Vec<usize>> {
    static WORDS: PerProcess<Mutex<Vec<usize>>> = PerProcess::new();
    WORDS.get_or_init(Mutex::default)
}

impl Word {
    /// One that nobody uses; an error, if the driver has no pinned memory for it.
    fn take(driver: &Driver) -> Result<Word> {
        if let Some(word) = lock(words()).pop() {
            return Ok(Word(word));
        }
        let page = driver.malloc_host(WORD_PAGE)?.cast::<u8>();
        // SAFETY: a page that was just made.
        unsafe { std::ptr::write_bytes(page, 0, WORD_PAGE) };
        let page = page.expose_provenance();
        let mut rest = (0..WORD_PAGE / WORD_STRIDE).map(|at| page + at * WORD_STRIDE);
        let first = rest.next().unwrap_or(page);
        lock(words()).extend(rest);
        Ok(Word(first))
    }

    fn at(&self) -> *mut u32 {
        std::ptr::with_exposed_provenance_mut(self.0)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: an aligned word of a page that is never freed, and that the process touches only as an
        // atomic.
        unsafe { AtomicU32::from_ptr(self.at()) }
    }

    fn value(&self) -> u32 {
        self.word().load(Acquire)
    }

    fn set(&self, value: u32) {
        self.word().store(value, Release);
    }
}

/// Whether a number that wraps round has come to another.
fn reached(number: u32, other: u32) -> bool {
    number.wrapping_sub(other).cast_signed() >= 0
}

/// Operations that may have their buffers in our pinned memory at once, and bytes of each.
const PLACES: usize = 8;
const PLACE: usize = 128 << 10;

struct Ring {
    /// NULL: there is none.
    memory: *mut u8,
    next: usize,
    /// Which operation has each place, and the number of its copy out.
    used: [(u32, u32); PLACES],
}

// SAFETY: an address of memory of which every place has one user at a time.
unsafe impl Send for Ring {}

/// See [`DeviceMover::gates`]. By [`Way`]: a copy waits until `open` has its number, and then writes it to
/// `done`.
struct Gates {
    open: [Word; 2],
    done: [Word; 2],
    /// The number of the last copy that was queued.
    planned: [AtomicU32; 2],
    /// Has the number of the last operation whose streams have come to it.
    start: Word,
    /// The number of the last operation that was queued, and of the last of which the host's part is over.
    starts: AtomicU32,
    over: AtomicU32,
    /// What the caller's streams held before, and the ends of our two.
    marks: [OwnedEvent; 3],
    ring: Mutex<Ring>,
}

impl Gates {
    /// None where the driver can't do it.
    fn new(driver: &Driver, stream: RawStream) -> Option<Gates> {
        let (mut words, mut marks) = (Vec::new(), Vec::new());
        let mut make = || -> Result<()> {
            while words.len() < 5 {
                words.push(Word::take(driver)?);
            }
            let start = &words[4];
            // The value that it has: the stream passes, if the driver can do it at all.
            // SAFETY: words are never freed.
            unsafe {
                driver.stream_wait_value(stream, start.at(), start.value())?;
                driver.stream_write_value(stream, start.at(), start.value())?;
            }
            while marks.len() < 3 {
                marks.push(driver.event_create(false)?);
            }
            Ok(())
        };
        if let Err(error) = make() {
            log::debug!("operations wait for their end: {error}");
            words.iter().for_each(Word::give_back);
            for mark in marks {
                if let Err(error) = driver.event_destroy(mark) {
                    log::debug!("an event stays: {error}");
                }
            }
            return None;
        }
        let [in_open, out_open, in_done, out_done, start]: [Word; 5] = words.try_into().ok()?;
        let (open, done) = ([in_open, out_open], [in_done, out_done]);
        let memory = driver.malloc_host(PLACES * PLACE);
        let values = |words: &[Word; 2]| words.each_ref().map(|w| AtomicU32::new(w.value()));
        let (now, out) = (start.value(), done[Way::Out as usize].value());
        for (open, done) in open.iter().zip(&done) {
            open.set(done.value());
        }
        Some(Gates {
            planned: values(&done),
            starts: AtomicU32::new(now),
            over: AtomicU32::new(now),
            marks: marks.try_into().ok()?,
            ring: Mutex::new(Ring {
                memory: memory.map_or(std::ptr::null_mut(), |memory| memory.cast()),
                next: 0,
                used: [(now, out); PLACES],
            }),
            open,
            done,
            start,
        })
    }

    /// Frees what it has. No copy goes on.
    fn end(&self, driver: &Driver) -> Result<()> {
        let mut ended = Ok(());
        for mark in &self.marks {
            ended = ended.and(driver.event_destroy(OwnedEvent::from_handle(mark.handle())));
        }
        let memory = std::mem::replace(&mut lock(&self.ring).memory, std::ptr::null_mut());
        if !memory.is_null() {
            // SAFETY: made by `new`, taken out so that it is freed once.
            ended = ended.and(unsafe { driver.free_host(memory.cast()) });
        }
        let words = self.open.iter().chain(&self.done).chain([&self.start]);
        words.for_each(Word::give_back);
        ended
    }
}

impl Word {
    /// Lets the next have it. No stream has it to wait for or to write any more.
    fn give_back(&self) {
        lock(words()).push(self.0);
    }
}

/// The copies of one operation that are on our streams, as a mover that opens their gates.
pub(crate) struct Queued {
    mover: Arc<DeviceMover>,
    /// The numbers before those of its copies, and how many it has, by way.
    from: [u32; 2],
    count: [u32; 2],
    begun: [AtomicU32; 2],
    done: [AtomicU32; 2],
    start: u32,
}

impl Queued {
    /// Puts all copies of its plan on our streams, after what the caller's streams hold and before what they
    /// get next. The driver may let the call wait until there is room, so that whoever opens the gates is at
    /// work already. After an error some copies are there.
    ///
    /// # Safety
    /// The plan's spans are as [`Mover::copy`] asks until the caller's streams have passed the operation; its
    /// host memory is pinned.
    pub(crate) unsafe fn put(&self, streams: &[RawStream], plan: &Plan) -> Result<()> {
        let Some(gates) = self.gates() else {
            return Ok(());
        };
        // SAFETY: handed down from the caller.
        unsafe { self.mover.put(gates, streams, plan, self) }
    }

    fn number(&self, way: Way, copies: u32) -> u32 {
        self.from[way as usize].wrapping_add(copies)
    }

    fn gates(&self) -> Option<&Gates> {
        self.mover.gates.as_ref()
    }

    /// Waits until the caller's streams have come to it, as long as `patient` says.
    pub(crate) fn await_start(&self, patient: &dyn Fn() -> Result<()>) -> Result<()> {
        let Some(gates) = self.gates() else {
            return Ok(());
        };
        await_word(&gates.start, self.start, patient)
    }

    /// Lets all copies in go on and waits for them.
    pub(crate) fn bring_all(&self, patient: &dyn Fn() -> Result<()>) -> Result<()> {
        let Some(gates) = self.gates() else {
            return Ok(());
        };
        let number = self.number(Way::In, self.count[Way::In as usize]);
        gates.open[Way::In as usize].set(number);
        await_word(&gates.done[Way::In as usize], number, patient)
    }

    /// The host's part is over, well or not: everything goes on. In the order of the operations.
    pub(crate) fn release(&self) {
        if let Some(gates) = self.gates() {
            for way in [Way::In, Way::Out] {
                gates.open[way as usize].set(self.number(way, self.count[way as usize]));
            }
            gates.over.store(self.start, Release);
        }
    }
}

impl Mover for Queued {
    fn will_use(&self, base: *mut u8, bytes: usize) {
        self.mover.will_use(base, bytes);
    }

    unsafe fn copy(&self, _: Way, _: CopySpan) -> Result<()> {
        Err(Error::internal("a copy that was not planned"))
    }

    unsafe fn copy_own(&self, _: CopySpan) -> Result<()> {
        // It was queued before all others.
        Ok(())
    }

    unsafe fn begin(&self, way: Way, _: usize, _: &[CopySpan]) -> Result<()> {
        let begun = self.begun[way as usize].fetch_add(1, Relaxed) + 1;
        if begun > self.count[way as usize] {
            return Err(Error::internal("more copies than were planned"));
        }
        if let Some(gates) = self.gates() {
            gates.open[way as usize].set(self.number(way, begun));
        }
        Ok(())
    }

    fn is_done(&self, way: Way, _: usize) -> Result<bool> {
        let next = self.done[way as usize].load(Relaxed) + 1;
        let done = self
            .gates()
            .is_none_or(|g| reached(g.done[way as usize].value(), self.number(way, next)));
        if done {
            self.done[way as usize].store(next, Relaxed);
        }
        Ok(done)
    }

    fn settle(&self) {
        // The streams do what is left in their order, and whoever closes the mover waits for them.
        self.release();
    }
}

/// How long the last copies may take before what they use is left behind.
const LAST_COPIES: Duration = Duration::from_secs(2);
const NAP: Duration = Duration::from_micros(20);

fn await_word(word: &Word, number: u32, patient: &dyn Fn() -> Result<()>) -> Result<()> {
    const LOOK: Duration = Duration::from_micros(100);
    const LONG: Duration = Duration::from_millis(2);
    const LONG_NAP: Duration = Duration::from_micros(200);
    let since = Instant::now();
    while !reached(word.value(), number) {
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
