//! Devices that don't exist: the addresses of their memory are none that a processor can use, and only the mover
//! knows what is there.

use crate::error::{Code, Error, Result};
use crate::host::op::{CopySpan, HostOp, Mover, OnDevice, SLOTS, Way};
use crate::ops::lock;
use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// Set in every address of a device, and in none of the host's.
const DEVICE: usize = 1 << 60;

fn on_device(address: *const u8) -> bool {
    address.addr() & DEVICE != 0
}

fn undisguised(address: *const u8) -> *const u8 {
    address.map_addr(|address| address & !DEVICE)
}

/// The same operation with its buffers on the device, as far as it uses them.
pub(super) fn disguised(op: &HostOp) -> HostOp {
    let mut op = op.clone();
    op.on_device = OnDevice {
        send: !op.send.is_null(),
        recv: !op.recv.is_null(),
    };
    if op.on_device.send {
        op.send = op.send.map_addr(|address| address | DEVICE);
    }
    if op.on_device.recv {
        op.recv = op.recv.map_addr(|address| address | DEVICE);
    }
    op
}

/// Copies that were begun: their way, their slot, what they are, and how often they were asked for.
pub(in crate::host) type Begun = (Way, usize, Vec<CopySpan>, usize);

/// Copies that were begun are made as late as they may be: when they are asked for.
#[derive(Default)]
pub(in crate::host) struct LateMover {
    pub begun: Mutex<Vec<Begun>>,
    pub settled: AtomicUsize,
    /// None is ever found to be made.
    pub stuck: AtomicBool,
    /// The number of the copy that fails, from 1 on.
    fails: usize,
    copies: AtomicUsize,
    pub area: Mutex<Option<(usize, usize)>>,
}

// SAFETY: the addresses are those of the test's buffers, which outlive the operation.
unsafe impl Send for LateMover {}
// SAFETY: as above.
unsafe impl Sync for LateMover {}

impl LateMover {
    /// Of its copies that of this number fails, from 1 on.
    pub fn failing(number: usize) -> LateMover {
        LateMover {
            fails: number,
            ..LateMover::default()
        }
    }

    fn make(&self, way: Way, span: &CopySpan) {
        let expected = match way {
            Way::In => (true, false),
            Way::Out => (false, true),
        };
        if span.bytes == 0 {
            return;
        }
        assert_eq!(
            (on_device(span.from), on_device(span.to)),
            expected,
            "{way:?}"
        );
        // SAFETY: the test's buffers and the engine's areas.
        unsafe {
            std::ptr::copy_nonoverlapping(
                undisguised(span.from),
                undisguised(span.to).cast_mut(),
                span.bytes,
            );
        }
    }

    fn count(&self) -> Result<()> {
        if self.copies.fetch_add(1, SeqCst) + 1 == self.fails {
            return Err(Error::new(
                Code::UnhandledDeviceError,
                "the device fell off the bus",
            ));
        }
        Ok(())
    }
}

impl Mover for LateMover {
    fn will_use(&self, base: *mut u8, bytes: usize) {
        let before = lock(&self.area).replace((base.addr(), bytes));
        assert_eq!(before, None, "said twice");
    }

    unsafe fn copy(&self, way: Way, span: CopySpan) -> Result<()> {
        self.count()?;
        self.make(way, &span);
        Ok(())
    }

    unsafe fn copy_own(&self, span: CopySpan) -> Result<()> {
        assert!(on_device(span.from) || on_device(span.to));
        // SAFETY: the test's buffers.
        unsafe {
            std::ptr::copy(
                undisguised(span.from),
                undisguised(span.to).cast_mut(),
                span.bytes,
            );
        }
        Ok(())
    }

    unsafe fn begin(&self, way: Way, slot: usize, spans: &[CopySpan]) -> Result<()> {
        self.count()?;
        assert!(slot < SLOTS);
        let mut begun = lock(&self.begun);
        assert!(
            begun.iter().all(|(w, s, ..)| (*w, *s) != (way, slot)),
            "slot {slot} is used while {way:?} goes on"
        );
        begun.push((way, slot, spans.to_vec(), 0));
        Ok(())
    }

    fn is_done(&self, way: Way, slot: usize) -> Result<bool> {
        let mut begun = lock(&self.begun);
        let Some(at) = begun.iter().position(|(w, s, ..)| (*w, *s) == (way, slot)) else {
            return Ok(true);
        };
        if self.stuck.load(SeqCst) {
            return Ok(false);
        }
        begun[at].3 += 1;
        // Copies in take longer: what comes from others may be here before what is to be sent.
        let polls = match way {
            Way::In => 4,
            Way::Out => 1,
        };
        if begun[at].3 < polls {
            return Ok(false);
        }
        for span in begun.remove(at).2 {
            self.make(way, &span);
        }
        Ok(true)
    }

    fn settle(&self) {
        for (way, _, spans, _) in lock(&self.begun).drain(..) {
            for span in &spans {
                self.make(way, span);
            }
        }
        self.settled.fetch_add(1, SeqCst);
    }
}
