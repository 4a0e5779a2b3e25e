//! Collectives whose buffers are in a device's memory, on any rank.
//!
//! Small data is brought to the headers, with which it travels. A large collective goes in steps, on all ranks alike:
//! of every block the same part in each, which is a smaller collective of the same kind on memory of ours that the
//! driver has pinned. While one step is between the ranks, the next comes from the device and the results of the one
//! before go back to it.
//!
//! How large a step is follows from what all ranks say with their headers, so that ranks with and without a device,
//! and with more or less memory for this, go together.

use super::exchange::Carried;
use super::run::{Area, Run};
use crate::error::{Code, Error, Result};
use crate::host::kernels::copy;
use crate::host::op::{CopySpan, HostOp, Mover, OnDevice, SLOTS, Way};
use crate::ops::lock;
use crate::sys::futex;
use crate::types::OpKind;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex};

/// The largest and the smallest step, as powers of two: what a layered engine has two blocks of, and what a message
/// between machines should have.
const LARGEST: u32 = 23;
const SMALLEST: u32 = 16;
/// Steps whose data is here at once: one is on its way, one comes or goes.
const DEPTH: usize = 2;
const _: () = assert!(DEPTH <= SLOTS);
/// The least of a block that is in a step, where ranks are many.
const LEAST: usize = 4096;

/// What a rank stages with.
pub(crate) struct Stage {
    mover: Mutex<Option<Arc<dyn Mover>>>,
    /// The largest step: two to this power.
    step: u32,
    /// Whether there may be memory of our own that the driver pins.
    pins: bool,
}

impl Stage {
    /// With at most so much memory for one rank.
    pub(crate) fn new(memory: usize) -> Stage {
        // What comes in and what goes out.
        let step = (memory / (2 * DEPTH)).checked_ilog2().unwrap_or(0);
        Stage {
            step: step.clamp(SMALLEST, LARGEST),
            pins: memory > 0,
            ..Stage::in_steps_of(SMALLEST)
        }
    }

    pub(in crate::host) fn in_steps_of(power: u32) -> Stage {
        Stage {
            mover: Mutex::new(None),
            step: power,
            pins: true,
        }
    }

    /// Bytes that the largest operation among so many ranks needs.
    fn room(&self, ranks: usize) -> usize {
        2 * DEPTH * ((1usize << self.step).max(ranks * LEAST) + PAGE)
    }

    /// Gives it the way to the device's memory.
    pub(in crate::host) fn set_mover(&self, mover: Arc<dyn Mover>) {
        *lock(&self.mover) = Some(mover);
    }

    #[cfg(test)]
    pub(in crate::host) fn has_mover(&self) -> bool {
        lock(&self.mover).is_some()
    }

    fn mover(&self) -> Result<Arc<dyn Mover>> {
        let mover = lock(&self.mover).clone();
        mover.ok_or_else(|| Error::internal("nothing can reach the device's memory"))
    }
}

/// Whether collectives of a kind take buffers in devices' memory as they are.
pub(in crate::host) fn stages(kind: OpKind) -> bool {
    !matches!(
        kind,
        OpKind::AllToAllv | OpKind::Send | OpKind::Recv | OpKind::Barrier
    )
}

impl Run<'_> {
    /// What this rank says with its header.
    pub(in crate::host) fn carried(&self, op: &HostOp, bytes: usize) -> Carried {
        Carried {
            bytes,
            on_device: op.on_device.any(),
            step: self.engine.stage.step,
        }
    }

    /// Copies the start of an operation's send buffer to the host.
    ///
    /// # Safety
    /// The buffer has as many bytes, and there is room for them.
    pub(in crate::host) unsafe fn bring(
        &self,
        to: *mut u8,
        op: &HostOp,
        bytes: usize,
    ) -> Result<()> {
        // SAFETY: handed down from the caller.
        unsafe {
            if !op.on_device.send || bytes == 0 {
                copy(to, op.send, bytes, false);
                return Ok(());
            }
            let from = op.send;
            (self.engine.stage.mover()?).copy(Way::In, CopySpan { to, from, bytes })
        }
    }

    /// Lets `take` write results to the host, of which each block has so many bytes, and brings them to where the
    /// operation wants them.
    ///
    /// # Safety
    /// As `Engine::run`.
    pub(in crate::host) unsafe fn deliver(
        &mut self,
        op: &HostOp,
        bytes: usize,
        take: impl FnOnce(&mut Self, &HostOp) -> Result<()>,
    ) -> Result<()> {
        let (_, blocks) = op.blocks(self.rank() as u32, self.ranks() as u32);
        if !op.on_device.recv || blocks == 0 {
            return take(self, op);
        }
        let mut area = Area::default();
        let recv = area.reserve(blocks * bytes)?;
        let on_host = HostOp {
            recv,
            on_device: OnDevice::default(),
            ..op.clone()
        };
        take(self, &on_host)?;
        let span = CopySpan {
            to: op.recv,
            from: recv,
            bytes: blocks * bytes,
        };
        // SAFETY: the caller promised the buffer; the area has as many bytes.
        unsafe { self.engine.stage.mover()?.copy(Way::Out, span) }
    }
}

/// One side of a collective that goes in steps.
struct Side {
    way: Way,
    on_device: bool,
    /// Where the caller has it.
    start: *mut u8,
    blocks: usize,
    /// Where the parts of a step are on the host, by the parity of the step; `None`: where the caller has them.
    areas: Option<[*mut u8; DEPTH]>,
}

/// A collective that goes in steps.
pub(in crate::host) struct Steps<'o> {
    op: &'o HostOp,
    mover: Option<Arc<dyn Mover>>,
    send: Side,
    recv: Side,
    /// Bytes of a block, and what of them is in a step.
    block: usize,
    part: usize,
}

impl<'o> Steps<'o> {
    /// The steps of an operation, of so many bytes at most on the larger side of any rank.
    pub(in crate::host) fn new(run: &mut Run<'_>, op: &'o HostOp, step: usize) -> Result<Self> {
        let (rank, ranks) = (run.rank(), run.ranks());
        let widest = match op.kind {
            OpKind::AllReduce | OpKind::Reduce | OpKind::Broadcast => 1,
            _ => ranks,
        };
        let block = op.count * op.dtype.size();
        let part = (step / widest / 64 * 64).max(LEAST).min(block);
        let (sends, receives) = op.blocks(rank as u32, ranks as u32);
        let mover = match op.on_device.any() {
            true => Some(run.engine.stage.mover()?),
            false => None,
        };
        let side = |way, on_device, start, blocks| Side {
            way,
            on_device,
            start,
            blocks,
            // One block's parts can stay where they are.
            areas: (on_device || blocks > 1).then_some([std::ptr::null_mut(); DEPTH]),
        };
        let mut steps = Steps {
            op,
            send: side(Way::In, op.on_device.send, op.send.cast_mut(), sends),
            recv: side(Way::Out, op.on_device.recv, op.recv, receives),
            mover,
            block,
            part,
        };
        steps.find_room(run)?;
        Ok(steps)
    }

    /// Finds memory for the parts that don't stay where they are.
    fn find_room(&mut self, run: &mut Run<'_>) -> Result<()> {
        let part = self.part;
        let room = |side: &Side| match side.areas {
            Some(_) => (side.blocks * part).next_multiple_of(PAGE),
            None => 0,
        };
        let rooms = [room(&self.send), room(&self.recv)];
        let bytes = DEPTH * (rooms[0] + rooms[1]);
        let mut at = run.staging_room(bytes, self.mover.as_deref())?;
        for (side, room) in [&mut self.send, &mut self.recv].into_iter().zip(rooms) {
            for area in side.areas.iter_mut().flatten() {
                *area = at;
                at = at.wrapping_add(room);
            }
        }
        Ok(())
    }

    /// Bytes of each block that are in a step.
    fn len(&self, step: usize) -> usize {
        self.part.min(self.block - step * self.part)
    }

    /// Where a step's part of a side is for the ranks.
    fn place(&self, side: &Side, step: usize) -> *mut u8 {
        match side.areas {
            Some(areas) => areas[step % DEPTH],
            None => side.start.wrapping_add(step * self.part),
        }
    }

    /// Begins to bring a step's parts, or to take them where the caller wants them.
    ///
    /// # Safety
    /// As `Engine::run`; nobody else uses the step's place.
    unsafe fn begin(&self, side: &Side, step: usize) -> Result<()> {
        if side.areas.is_none() {
            return Ok(());
        }
        let (place, len) = (self.place(side, step), self.len(step));
        let spans: Vec<CopySpan> = (0..side.blocks)
            .map(|block| {
                let there = (side.start).wrapping_add(block * self.block + step * self.part);
                let here = place.wrapping_add(block * len);
                let (to, from) = match side.way {
                    Way::In => (here, there),
                    Way::Out => (there, here),
                };
                CopySpan {
                    to,
                    from,
                    bytes: len,
                }
            })
            .collect();
        match &self.mover {
            // SAFETY: handed down from the caller; the slot's last copies are waited for before.
            Some(mover) if side.on_device => unsafe { mover.begin(side.way, step % DEPTH, &spans) },
            _ => {
                for span in spans {
                    // SAFETY: as above; both are the host's, and apart.
                    unsafe { copy(span.to, span.from, span.bytes, false) };
                }
                Ok(())
            }
        }
    }

    /// Waits for a step's copies, as long as `idle` lets it.
    fn finish(&self, side: &Side, step: usize, idle: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let Some(mover) = self.mover.as_ref().filter(|_| side.on_device) else {
            return Ok(());
        };
        while !mover.is_done(side.way, step % DEPTH)? {
            idle()?;
            futex::yield_now();
        }
        Ok(())
    }

    /// Runs them all: `each` moves the data of one between the ranks, on memory of the host, and `idle` is done while
    /// the device copies; an error of its ends that.
    ///
    /// # Safety
    /// As `Engine::run`.
    pub(in crate::host) unsafe fn run<T: ?Sized>(
        &self,
        with: &mut T,
        idle: impl Fn(&mut T) -> Result<()>,
        each: impl FnMut(&mut T, &HostOp, usize) -> Result<()>,
    ) -> Result<()> {
        // SAFETY: handed down from the caller.
        let result = unsafe { self.run_all(with, idle, each) };
        if result.is_err()
            && let Some(mover) = &self.mover
        {
            mover.settle();
        }
        result
    }

    /// # Safety
    /// As [`Steps::run`].
    unsafe fn run_all<T: ?Sized>(
        &self,
        with: &mut T,
        idle: impl Fn(&mut T) -> Result<()>,
        mut each: impl FnMut(&mut T, &HostOp, usize) -> Result<()>,
    ) -> Result<()> {
        let steps = self.block.div_ceil(self.part);
        let size = self.op.dtype.size();
        // SAFETY: handed down from the caller; a place is used again when the step before the last is over.
        unsafe {
            self.begin(&self.send, 0)?;
            for step in 0..steps {
                self.finish(&self.send, step, &mut || idle(with))?;
                if step + 1 < steps {
                    self.begin(&self.send, step + 1)?;
                }
                if let Some(before) = step.checked_sub(DEPTH) {
                    self.finish(&self.recv, before, &mut || idle(with))?;
                }
                let len = self.len(step);
                let part = HostOp {
                    send: self.place(&self.send, step),
                    recv: self.place(&self.recv, step),
                    count: len / size,
                    on_device: OnDevice::default(),
                    ..self.op.clone()
                };
                each(with, &part, len)?;
                self.begin(&self.recv, step)?;
            }
        }
        for step in steps.saturating_sub(DEPTH)..steps {
            self.finish(&self.recv, step, &mut || idle(with))?;
        }
        Ok(())
    }
}

impl Run<'_> {
    /// Memory of so many bytes that only the present operation uses, which a mover is told of.
    fn staging_room(&mut self, bytes: usize, mover: Option<&dyn Mover>) -> Result<*mut u8> {
        if bytes == 0 {
            return Ok(std::ptr::null_mut());
        }
        let stage = &self.engine.stage;
        // As much as any operation needs: what a mover was told of stays where it is.
        let start = self.state.room.start(stage.room(self.engine.ranks))?;
        if bytes > self.state.room.bytes() {
            return Err(Error::internal("a step has no room"));
        }
        if let Some(mover) = mover.filter(|_| stage.pins && !self.state.room.told) {
            mover.will_use(start, self.state.room.bytes());
            self.state.room.told = true;
        }
        Ok(start)
    }
}

const PAGE: usize = 4096;

/// Memory for steps, in whole pages. Only raw pointers go to it.
#[derive(Default)]
pub(super) struct Room {
    /// A page more than is used, as it may begin anywhere.
    memory: Vec<MaybeUninit<u8>>,
    /// A mover uses it.
    told: bool,
}

impl Room {
    /// Where it starts; it is made with so many bytes if it is not there yet.
    fn start(&mut self, bytes: usize) -> Result<*mut u8> {
        if self.memory.is_empty() {
            let bytes = bytes.next_multiple_of(PAGE) + PAGE;
            self.memory.try_reserve_exact(bytes).map_err(|_| {
                let text = format!("no memory to stage device buffers: {bytes} bytes");
                Error::new(Code::SystemError, text)
            })?;
            self.memory.resize(bytes, MaybeUninit::uninit());
        }
        let start: *mut u8 = self.memory.as_mut_ptr().cast();
        Ok(start.wrapping_add(start.align_offset(PAGE)))
    }

    fn bytes(&self) -> usize {
        self.memory.len().saturating_sub(PAGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the variable that limits it says.
    #[test]
    fn staging_keeps_to_its_limit_as_far_as_is_said() {
        const ROUNDING: usize = 2 * DEPTH * PAGE;
        for limit in [0, 1 << 20, 3_000_001, 64 << 20, 1 << 40] {
            for ranks in [2, 9, 16, 17, 1024] {
                let least = (256 << 10).max(ranks * (16 << 10));
                let room = Stage::new(limit).room(ranks);
                assert!(
                    room <= limit.max(least) + ROUNDING,
                    "{limit} {ranks}: {room}"
                );
            }
        }
    }
}
