//! Sends and receives.
//!
//! Every ordered pair of ranks has a channel: a ring of a few slots, through which messages pass in
//! pieces. The first piece tells the message's count and data type; the receiver compares them with
//! its own and takes the message, or refuses it, and then drops what is left of it. A send is
//! complete when its last piece was taken, so that both sides learn of a mismatch.
//!
//! A long message whose buffer the receiver can reach stays where it is: its one piece tells where that is,
//! and the receiver reads it from there. A receiver that can't declines, and the message goes in pieces.
//!
//! One exception keeps ranks from blocking each other: a send outside a group whose message lies in
//! the channel completely is done as soon as some peer has a message for this rank that it has not
//! received, as that peer may be waiting for it. Such a send can't learn of a mismatch; the
//! receiver's error names it.

use super::ShmEngine;
use super::layout::CHANNEL_DEPTH;
use super::wait::Waiter;
use crate::error::{Error, Result};
use crate::host::kernels::copy;
use crate::host::local::{dtype_name, message_mismatch, own_transfers};
use crate::host::op::{HostOp, WaitPolicy};
use crate::types::{DataType, OpKind};
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// One send or receive with another rank that is under way.
struct Transfer {
    sends: bool,
    peer: usize,
    buffer: *mut u8,
    /// Set if the buffer is in a device's memory.
    window: Option<Window>,
    count: usize,
    dtype: DataType,
    bytes: usize,
    /// Bytes that passed through the channel on this side.
    done: usize,
    /// The number of the message, once its first piece was posted or taken.
    message: Option<u64>,
    /// The channel's count of pieces at which a send is complete, once all are posted.
    last: Option<u64>,
    /// Where a message lies that the receiver is to read whole; 0 if it goes in pieces.
    whole: u64,
}

/// Sends and receives with other ranks that are under way together.
pub(in crate::host) struct Transfers {
    all: Vec<Transfer>,
    /// Of each peer, whether one that receives and one that sends is under way.
    busy: Vec<[bool; 2]>,
    result: Result<()>,
}

impl Transfers {
    pub(in crate::host) fn new(engine: &ShmEngine, ops: &[&HostOp]) -> Transfers {
        let transfer = |op: &&HostOp| Transfer::new(engine, op, ops.len());
        Transfers {
            all: ops.iter().map(transfer).collect(),
            busy: vec![[false; 2]; engine.ranks],
            result: Ok(()),
        }
    }

    /// Whether each is complete or was refused.
    pub(in crate::host) fn are_over(&self) -> bool {
        self.all.is_empty()
    }

    /// The ranks that are waited for.
    pub(in crate::host) fn peers(&self) -> Vec<u32> {
        let mut peers: Vec<u32> = self.all.iter().map(|one| one.peer as u32).collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// What came of them: the first error.
    pub(in crate::host) fn take_result(&mut self) -> Result<()> {
        std::mem::replace(&mut self.result, Ok(()))
    }
}

/// Bytes that are copied from or to a device at once, and of all transfers of one call together.
const WINDOW: usize = 256 << 10;
const WINDOWS: usize = 8 << 20;

/// A part of a message to or from a device, in host memory: whole pieces.
struct Window {
    memory: Vec<MaybeUninit<u8>>,
    /// Where in the message it begins, and how much of it is here.
    start: usize,
    len: usize,
}

/// What came of one look at a transfer.
enum Outcome {
    Idle,
    Progress,
    Complete,
    Failed(Error),
}

impl Transfer {
    /// One of `together` transfers.
    fn new(engine: &ShmEngine, op: &HostOp, together: usize) -> Transfer {
        let sends = op.kind == OpKind::Send;
        let on_device = if sends {
            op.on_device.send
        } else {
            op.on_device.recv
        };
        let bytes = op.count * op.dtype.size();
        let piece = engine.map.piece_bytes();
        let pieces =
            (WINDOW.min(WINDOWS / together) / piece).clamp(1, bytes.div_ceil(piece).max(1));
        // What fits into the channel may be complete before the receiver comes.
        let fits = bytes <= piece * CHANNEL_DEPTH as usize;
        Transfer {
            whole: if sends && !fits && !on_device {
                engine.offer(op.root as usize, op.send, bytes)
            } else {
                0
            },
            sends,
            peer: op.root as usize,
            buffer: if sends { op.send.cast_mut() } else { op.recv },
            window: on_device.then(|| Window {
                memory: vec![MaybeUninit::uninit(); pieces * piece],
                start: 0,
                len: 0,
            }),
            count: op.count,
            dtype: op.dtype,
            bytes,
            done: 0,
            message: None,
            last: None,
        }
    }
}

impl ShmEngine {
    /// A send or receive outside a group.
    ///
    /// # Safety
    /// As [`Engine::run`](crate::host::engine::Engine::run).
    pub(super) unsafe fn transfer_alone(&self, op: &HostOp, wait: &dyn WaitPolicy) -> Result<()> {
        let mut transfers = Transfers::new(self, &[op]);
        // SAFETY: handed down from the caller.
        unsafe { self.transfer_all(&mut transfers, true, wait) }
    }

    /// The sends and receives of a group, all together.
    ///
    /// # Safety
    /// As [`Engine::run`](crate::host::engine::Engine::run).
    pub(super) unsafe fn transfer_together(
        &self,
        ops: &[&HostOp],
        wait: &dyn WaitPolicy,
    ) -> Result<()> {
        let (own, others): (Vec<&HostOp>, Vec<&HostOp>) =
            ops.iter().partition(|op| op.root as usize == self.rank);
        let own = own_transfers(self.rank, &own, |on_device, to, from, bytes| {
            // SAFETY: handed down from the caller.
            unsafe { self.keep_own(on_device, to, from, bytes) }
        });
        let mut transfers = Transfers::new(self, &others);
        // SAFETY: handed down from the caller.
        let others = unsafe { self.transfer_all(&mut transfers, false, wait) };
        own.and(others)
    }

    /// Moves all transfers until each is complete or refused.
    ///
    /// # Safety
    /// As [`Engine::run`](crate::host::engine::Engine::run).
    unsafe fn transfer_all(
        &self,
        transfers: &mut Transfers,
        lone: bool,
        wait: &dyn WaitPolicy,
    ) -> Result<()> {
        let mut waiter = Waiter::new(self, wait);
        while !transfers.are_over() {
            // SAFETY: handed down from the caller.
            if unsafe { self.advance(transfers, lone) } {
                waiter.progressed();
            } else {
                let ready = || transfers.all.iter().any(|transfer| self.can_move(transfer));
                waiter.pause(&ready, &|| transfers.peers())?;
            }
        }
        transfers.take_result()
    }

    /// Moves transfers as far as they go now; whether any moved. Those with the same peer and direction go in the
    /// order in which they stand.
    ///
    /// # Safety
    /// As [`Engine::run`](crate::host::engine::Engine::run), for all of them.
    pub(in crate::host) unsafe fn advance(&self, transfers: &mut Transfers, lone: bool) -> bool {
        let Transfers { all, busy, result } = transfers;
        let mut moved = false;
        busy.fill([false; 2]);
        all.retain_mut(|transfer| {
            let busy = &mut busy[transfer.peer][usize::from(transfer.sends)];
            if *busy {
                return true;
            }
            // SAFETY: handed down from the caller.
            let outcome = unsafe {
                if transfer.sends {
                    self.push(transfer, lone)
                } else {
                    self.pull(transfer)
                }
            };
            moved |= !matches!(outcome, Outcome::Idle);
            match outcome {
                Outcome::Idle | Outcome::Progress => {
                    *busy = true;
                    true
                }
                Outcome::Complete => false,
                Outcome::Failed(error) => {
                    if result.is_ok() {
                        *result = Err(error);
                    }
                    false
                }
            }
        });
        if moved {
            self.ring();
        }
        moved
    }

    /// Whether a look at the transfer may find something to do: a hint for spinning.
    fn can_move(&self, transfer: &Transfer) -> bool {
        if !transfer.sends {
            let channel = self.map.channel(transfer.peer, self.rank);
            return channel.posted.load(Acquire) != channel.consumed.load(Relaxed);
        }
        let channel = self.map.channel(self.rank, transfer.peer);
        let consumed = channel.consumed.load(Acquire);
        let room = channel.posted.load(Relaxed) - consumed < CHANNEL_DEPTH;
        transfer.last.map_or(room, |last| consumed >= last)
            || transfer.message == Some(channel.rejected.load(Acquire))
    }

    /// Posts what there is room for.
    ///
    /// # Safety
    /// The buffer has `bytes` readable bytes.
    unsafe fn push(&self, transfer: &mut Transfer, lone: bool) -> Outcome {
        let channel = self.map.channel(self.rank, transfer.peer);
        let mut moved = false;
        // Loaded before `rejected`: a receiver refuses a message before it consumes any of it.
        let consumed = channel.consumed.load(Acquire);
        if let Some(message) = transfer.message
            && channel.rejected.load(Acquire) == message
        {
            let expected = channel.rejected_count.load(Relaxed);
            let expected_dtype = dtype_name(channel.rejected_dtype.load(Relaxed));
            return Outcome::Failed(message_mismatch(
                (
                    self.own_name(),
                    transfer.count as u64,
                    transfer.dtype.name(),
                ),
                (self.name(transfer.peer), expected, expected_dtype),
            ));
        }
        if transfer.whole != 0 && transfer.last.is_some_and(|last| consumed >= last) {
            if transfer.message != Some(channel.declined.load(Acquire)) {
                return Outcome::Complete;
            }
            self.declined[transfer.peer].store(true, Relaxed);
            (transfer.whole, transfer.last) = (0, None);
        }
        let mut posted = channel.posted.load(Relaxed);
        while transfer.last.is_none() && posted - consumed < CHANNEL_DEPTH {
            let message = *transfer.message.get_or_insert_with(|| {
                // Only this rank sends on this channel, one call at a time.
                let message = self.messages[transfer.peer].load(Relaxed) + 1;
                self.messages[transfer.peer].store(message, Relaxed);
                message
            });
            let piece = self.map.piece(self.rank, transfer.peer, posted);
            piece.message.store(message, Relaxed);
            piece.count.store(transfer.count as u64, Relaxed);
            piece.dtype.store(transfer.dtype as u64, Relaxed);
            piece.whole.store(transfer.whole, Relaxed);
            if transfer.whole != 0 {
                posted += 1;
                channel.posted.store(posted, Release);
                moved = true;
                transfer.last = Some(posted);
                break;
            }
            let len = self.map.piece_bytes().min(transfer.bytes - transfer.done);
            // SAFETY: handed down from the caller; done + len <= bytes.
            let from = match unsafe { self.outgoing(transfer) } {
                Ok(from) => from,
                Err(error) => return Outcome::Failed(error),
            };
            // SAFETY: at least `len` bytes are at `from`; the slot has room for a piece, and the receiver has
            // consumed what was in it.
            unsafe { copy(piece.payload, from, len, false) };
            transfer.done += len;
            posted += 1;
            channel.posted.store(posted, Release);
            moved = true;
            if transfer.done == transfer.bytes {
                transfer.last = Some(posted);
            }
        }
        match transfer.last {
            Some(last) if consumed >= last => Outcome::Complete,
            // It lies in the channel, not in the caller's buffer.
            Some(_) if lone && !moved && transfer.whole == 0 && self.has_unreceived() => {
                Outcome::Complete
            }
            _ if moved => Outcome::Progress,
            _ => Outcome::Idle,
        }
    }

    /// Where the next piece of a message is, in host memory.
    ///
    /// # Safety
    /// As [`ShmEngine::push`].
    unsafe fn outgoing(&self, transfer: &mut Transfer) -> Result<*const u8> {
        let at = transfer.buffer.wrapping_add(transfer.done);
        let Some(window) = &mut transfer.window else {
            return Ok(at);
        };
        if transfer.done >= window.start + window.len {
            let bytes = window.memory.len().min(transfer.bytes - transfer.done);
            let to = window.memory.as_mut_ptr().cast();
            // SAFETY: the caller's promise for a part of the buffer; the window has room for it.
            unsafe { self.bring(true, to, at, bytes)? };
            (window.start, window.len) = (transfer.done, bytes);
        }
        let offset = transfer.done - window.start;
        Ok(window.memory[offset.min(window.memory.len())..]
            .as_ptr()
            .cast())
    }

    /// Takes what has arrived to the device, once the window is full or the message has ended.
    ///
    /// # Safety
    /// As [`ShmEngine::pull`].
    unsafe fn incoming(&self, transfer: &mut Transfer) -> Result<()> {
        let Some(window) = &mut transfer.window else {
            return Ok(());
        };
        let here = transfer.done - window.start;
        if here == window.memory.len() || transfer.done == transfer.bytes {
            let to = transfer.buffer.wrapping_add(window.start);
            // SAFETY: the caller's promise for a part of the buffer; so many bytes of the window were written.
            unsafe { self.deliver(true, to, window.memory.as_ptr().cast(), here)? };
            window.start = transfer.done;
        }
        Ok(())
    }

    /// Reads a message where its sender has it. `false`: it can't be reached, and comes in pieces.
    ///
    /// # Safety
    /// As [`ShmEngine::read_whole`], for a message of the transfer's bytes.
    unsafe fn take_whole(&self, transfer: &mut Transfer, whole: u64) -> Result<bool> {
        let (peer, bytes) = (transfer.peer, transfer.bytes);
        while transfer.done < bytes {
            let done = transfer.done;
            let (to, len) = match &mut transfer.window {
                None => (transfer.buffer, bytes),
                Some(window) => {
                    let len = window.memory.len().min(bytes - done);
                    (window.memory.as_mut_ptr().cast(), len)
                }
            };
            // SAFETY: a part of what the sender has announced, and room for it.
            if !unsafe { self.read_whole(peer, whole + done as u64, to, len)? } {
                transfer.done = 0;
                if let Some(window) = &mut transfer.window {
                    window.start = 0;
                }
                return Ok(false);
            }
            transfer.done += len;
            // SAFETY: handed down from the caller.
            unsafe { self.incoming(transfer)? };
        }
        Ok(true)
    }

    /// Whether a peer has posted a message that this rank has not taken.
    fn has_unreceived(&self) -> bool {
        (0..self.ranks)
            .filter(|&peer| peer != self.rank)
            .any(|peer| {
                let channel = self.map.channel(peer, self.rank);
                let (posted, consumed) =
                    (channel.posted.load(Acquire), channel.consumed.load(Relaxed));
                let dropped = self.dropped[peer].load(Relaxed);
                (consumed..posted)
                    .any(|at| self.map.piece(peer, self.rank, at).message.load(Relaxed) > dropped)
            })
    }

    /// Takes what has arrived.
    ///
    /// # Safety
    /// The buffer has `bytes` writable bytes.
    unsafe fn pull(&self, transfer: &mut Transfer) -> Outcome {
        let channel = self.map.channel(transfer.peer, self.rank);
        let dropped = &self.dropped[transfer.peer];
        let posted = channel.posted.load(Acquire);
        let mut consumed = channel.consumed.load(Relaxed);
        let mut moved = false;
        while consumed < posted {
            let piece = self.map.piece(transfer.peer, self.rank, consumed);
            let message = piece.message.load(Relaxed);
            moved = true;
            // What is left of a message that was refused.
            if message <= dropped.load(Relaxed) {
                consumed += 1;
                channel.consumed.store(consumed, Release);
                continue;
            }
            if transfer.message.is_none() {
                transfer.message = Some(message);
                let (sent, sent_dtype) = (piece.count.load(Relaxed), piece.dtype.load(Relaxed));
                if (sent, sent_dtype) != (transfer.count as u64, transfer.dtype as u64) {
                    dropped.store(message, Relaxed);
                    channel.rejected_count.store(transfer.count as u64, Relaxed);
                    channel.rejected_dtype.store(transfer.dtype as u64, Relaxed);
                    channel.rejected.store(message, Release);
                    channel.consumed.store(consumed + 1, Release);
                    return Outcome::Failed(message_mismatch(
                        (self.name(transfer.peer), sent, dtype_name(sent_dtype)),
                        (
                            self.own_name(),
                            transfer.count as u64,
                            transfer.dtype.name(),
                        ),
                    ));
                }
            }
            let whole = piece.whole.load(Relaxed);
            if whole != 0 {
                // SAFETY: the sender has announced a message of as many bytes, and leaves it until the
                // piece is consumed.
                match unsafe { self.take_whole(transfer, whole) } {
                    Ok(true) => {}
                    // The same message comes in pieces.
                    Ok(false) => channel.declined.store(message, Release),
                    // The engine has failed, as the next wait says.
                    Err(_) => return Outcome::Idle,
                }
                consumed += 1;
                channel.consumed.store(consumed, Release);
                if transfer.done == transfer.bytes {
                    return Outcome::Complete;
                }
                continue;
            }
            let len = self.map.piece_bytes().min(transfer.bytes - transfer.done);
            let to = match &mut transfer.window {
                None => transfer.buffer.wrapping_add(transfer.done),
                Some(window) => window.memory[transfer.done - window.start..]
                    .as_mut_ptr()
                    .cast(),
            };
            // SAFETY: done + len <= bytes, or within the window, of whole pieces; the sender has posted a piece
            // of that many bytes, as it cuts a message of the same length in the same way, and leaves it until
            // it is consumed.
            unsafe { copy(to, piece.payload, len, false) };
            transfer.done += len;
            // SAFETY: handed down from the caller.
            if let Err(error) = unsafe { self.incoming(transfer) } {
                return Outcome::Failed(error);
            }
            consumed += 1;
            channel.consumed.store(consumed, Release);
            if transfer.done == transfer.bytes {
                return Outcome::Complete;
            }
        }
        if moved {
            Outcome::Progress
        } else {
            Outcome::Idle
        }
    }
}
