//! Sends and receives over messages.
//!
//! A message starts with a header that tells its count and data type; the receiver compares them with its
//! own. A small message travels with its header, and the send is complete when the transport has it, also in a
//! group: of a mismatch the receiver's error tells. A large one waits until the receiver has answered that it expects
//! just that, or refused it, so that both sides learn of a mismatch and no data comes before there is a place
//! for it.

use super::run::{Area, NUMBERS, Run, Topic};
use crate::error::Result;
use crate::host::kernels::copy;
use crate::host::local::{dtype_name, message_mismatch, move_own, own_transfers};
use crate::host::op::HostOp;
use crate::types::{DataType, OpKind};
use std::collections::VecDeque;

/// Largest message that travels with its header.
const SMALL: usize = 8 << 10;
/// Count, data type, and whether data follows later or, in an answer, is welcome; 8 bytes each.
const HEADER: usize = 24;
/// The longest message whose size only its sender knows.
pub(super) const LONGEST_HEADER: usize = HEADER + SMALL;

/// What a side of a message says.
#[derive(Clone, Copy)]
struct Said {
    count: u64,
    dtype: u64,
    /// In a header: the data waits for an answer. In an answer: it may come.
    flag: u64,
}

impl Said {
    /// # Safety
    /// There are [`HEADER`] bytes at `to`, aligned for words.
    unsafe fn write(self, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe {
            to.cast::<[u64; 3]>()
                .write([self.count, self.dtype, self.flag])
        }
    }

    /// # Safety
    /// There are [`HEADER`] bytes at `from`, aligned for words.
    unsafe fn read(from: *const u8) -> Said {
        // SAFETY: the caller's promise.
        let [count, dtype, flag] = unsafe { from.cast::<[u64; 3]>().read() };
        Said { count, dtype, flag }
    }
}

/// What a transfer waits for: a request.
#[derive(Clone, Copy)]
enum Step {
    /// A receiver for the header.
    Header(usize),
    /// A sender for the answer.
    Answer(usize),
    /// The data.
    Data(usize),
    Over,
}

struct Transfer {
    peer: usize,
    sends: bool,
    buffer: *mut u8,
    count: usize,
    dtype: DataType,
    bytes: usize,
    /// The number of the message from its sender to its receiver.
    number: u64,
    /// Where the header or the answer comes to.
    heard: *mut u8,
    step: Step,
}

/// Sends to, or receives from, one rank that wait for earlier ones to end: what is under way at once must differ in the
/// last digits of its number, which is what the shortest tags keep of it.
struct Queue<'o> {
    peer: usize,
    sends: bool,
    ops: VecDeque<&'o HostOp>,
}

/// Transfers that are under way together.
pub(in crate::host) struct Transfers<'o> {
    all: Vec<Transfer>,
    queues: Vec<Queue<'o>>,
    result: Result<()>,
}

impl Transfers<'_> {
    /// Whether none waits for an answer or data.
    pub(in crate::host) fn are_over(&self) -> bool {
        self.all.is_empty()
    }
}

impl Run<'_> {
    /// The sends and receives of a group, all together.
    ///
    /// # Safety
    /// As `Engine::run_group`.
    pub(in crate::host) unsafe fn transfers(&mut self, ops: &[&HostOp]) -> Result<()> {
        let rank = self.rank();
        let (own, others): (Vec<&HostOp>, Vec<&HostOp>) =
            ops.iter().partition(|op| op.root as usize == rank);
        let own = own_transfers(rank, &own, |_, to, from, bytes| {
            // SAFETY: handed down from the caller.
            unsafe { move_own(to, from, bytes) };
            Ok(())
        });
        // SAFETY: handed down from the caller.
        let others = unsafe { self.transfer_all(&others) };
        own.and(others)
    }

    /// A send or receive outside a group. A small send is over when it is on its way, so that ranks may all
    /// send before any receives.
    ///
    /// # Safety
    /// As `Engine::run`.
    pub(in crate::host) unsafe fn transfer_alone(&mut self, op: &HostOp) -> Result<()> {
        if op.kind == OpKind::Send && op.count * op.dtype.size() <= SMALL {
            // SAFETY: handed down from the caller.
            let begun = unsafe { self.begin_transfer(op) };
            let transfer = begun.map_err(|error| self.fatal(error))?;
            return match transfer.step {
                Step::Data(id) => self.post_letter(id),
                _ => Ok(()),
            };
        }
        // SAFETY: handed down from the caller.
        unsafe { self.transfer_all(&[op]) }
    }

    /// Moves transfers with other ranks until each is complete or refused.
    ///
    /// # Safety
    /// As `Engine::run_group`.
    pub(in crate::host) unsafe fn transfer_all(&mut self, ops: &[&HostOp]) -> Result<()> {
        // SAFETY: handed down from the caller.
        let mut transfers = unsafe { self.begin_transfers(ops)? };
        while !transfers.all.is_empty() {
            // SAFETY: handed down from the caller.
            let moved = unsafe { self.advance_transfers(&mut transfers)? };
            if !moved && !transfers.all.is_empty() && !self.progress() {
                self.pause()?;
            }
        }
        self.end_transfers(transfers)
    }

    /// Begins transfers with other ranks.
    ///
    /// # Safety
    /// As `Engine::run_group`, until the run is over.
    pub(in crate::host) unsafe fn begin_transfers<'o>(
        &mut self,
        ops: &[&'o HostOp],
    ) -> Result<Transfers<'o>> {
        let mut transfers = Transfers {
            all: Vec::with_capacity(ops.len().min(2 * NUMBERS)),
            queues: Vec::new(),
            result: Ok(()),
        };
        let few = ops.len() <= NUMBERS;
        for op in ops {
            if few {
                // SAFETY: handed down from the caller.
                let begun = unsafe { self.begin_transfer(op) };
                transfers
                    .all
                    .push(begun.map_err(|error| self.fatal(error))?);
                continue;
            }
            let (peer, sends) = (op.root as usize, op.kind == OpKind::Send);
            let queues = &mut transfers.queues;
            let known = queues
                .iter()
                .position(|q| (q.peer, q.sends) == (peer, sends));
            let at = known.unwrap_or_else(|| {
                queues.push(Queue {
                    peer,
                    sends,
                    ops: VecDeque::new(),
                });
                queues.len() - 1
            });
            queues[at].ops.push_back(op);
        }
        // SAFETY: handed down from the caller.
        unsafe { self.begin_queued(&mut transfers)? };
        Ok(transfers)
    }

    /// Begins what may be under way beside the others. Both sides of the first message that is not over on either have
    /// begun it, so that there is always one that moves on.
    ///
    /// # Safety
    /// As [`Run::begin_transfers`].
    unsafe fn begin_queued(&mut self, transfers: &mut Transfers<'_>) -> Result<()> {
        let Transfers { all, queues, .. } = transfers;
        for queue in queues.iter_mut() {
            let same = |of: &&Transfer| (of.peer, of.sends) == (queue.peer, queue.sends);
            let first = all.iter().filter(same).map(|of| of.number).min();
            let begun = match queue.sends {
                true => self.state.sent[queue.peer],
                false => self.state.received[queue.peer],
            };
            let first = first.unwrap_or(begun + 1);
            for number in begun + 1..first + NUMBERS as u64 {
                let Some(op) = queue.ops.pop_front() else {
                    break;
                };
                // SAFETY: handed down from the caller.
                let transfer = unsafe { self.begin_transfer(op) };
                all.push(transfer.map_err(|error| self.fatal(error))?);
                debug_assert_eq!(all.last().map(|of| of.number), Some(number));
            }
        }
        queues.retain(|queue| !queue.ops.is_empty());
        Ok(())
    }

    /// Takes the next steps of transfers, where what they wait for has come; whether there were any.
    ///
    /// # Safety
    /// As `Engine::run_group`, for all of them.
    pub(in crate::host) unsafe fn advance_transfers(
        &mut self,
        transfers: &mut Transfers<'_>,
    ) -> Result<bool> {
        let Transfers {
            all,
            queues,
            result,
        } = transfers;
        let mut moved = false;
        for transfer in all.iter_mut() {
            // SAFETY: handed down from the caller.
            while let Some(outcome) = unsafe { self.advance(transfer) } {
                moved = true;
                if result.is_ok() {
                    *result = outcome;
                }
            }
        }
        all.retain(|transfer| !matches!(transfer.step, Step::Over));
        if moved && !queues.is_empty() {
            // SAFETY: handed down from the caller.
            unsafe { self.begin_queued(transfers)? };
        }
        Ok(moved)
    }

    /// Waits for what transfers have sent that wait for nothing any more; the first error of any.
    pub(in crate::host) fn end_transfers(&mut self, transfers: Transfers<'_>) -> Result<()> {
        self.wait_for_all()?;
        transfers.result
    }

    fn buffer(&mut self, bytes: usize) -> Result<*mut u8> {
        let mut area = Area::default();
        let start = area.reserve(bytes)?;
        self.buffers.push(area);
        Ok(start)
    }

    /// # Safety
    /// As `Engine::run_group`.
    unsafe fn begin_transfer(&mut self, op: &HostOp) -> Result<Transfer> {
        let sends = op.kind == OpKind::Send;
        let peer = op.root as usize;
        let bytes = op.count * op.dtype.size();
        let counter = match sends {
            true => &mut self.state.sent[peer],
            false => &mut self.state.received[peer],
        };
        *counter += 1;
        let number = *counter;
        let mut transfer = Transfer {
            peer,
            sends,
            buffer: if sends { op.send.cast_mut() } else { op.recv },
            count: op.count,
            dtype: op.dtype,
            bytes,
            number,
            heard: std::ptr::null_mut(),
            step: Step::Over,
        };
        if !sends {
            transfer.heard = self.buffer(LONGEST_HEADER)?;
            // SAFETY: the buffer is this run's.
            let id = unsafe {
                self.recv(
                    peer,
                    (Topic::Message, number),
                    transfer.heard,
                    LONGEST_HEADER,
                    0,
                )
            };
            transfer.step = Step::Header(id);
            return Ok(transfer);
        }
        let small = bytes <= SMALL;
        let carried = if small { bytes } else { 0 };
        let header = self.buffer(HEADER + carried)?;
        let said = Said {
            count: op.count as u64,
            dtype: op.dtype as u64,
            flag: u64::from(!small),
        };
        // SAFETY: the buffer has room for the header and what the caller promised at `send`; it is this
        // run's.
        let id = unsafe {
            said.write(header);
            copy(header.add(HEADER), op.send, carried, false);
            self.send(peer, (Topic::Message, number), header, HEADER + carried, 0)
        };
        transfer.step = Step::Data(id);
        if !small {
            transfer.heard = self.buffer(HEADER)?;
            // SAFETY: as above.
            let id = unsafe { self.recv(peer, (Topic::Answer, number), transfer.heard, HEADER, 0) };
            transfer.step = Step::Answer(id);
        }
        Ok(transfer)
    }

    /// Takes the next step of a transfer, if what it waits for has come; what came of it.
    ///
    /// # Safety
    /// As `Engine::run_group`.
    unsafe fn advance(&mut self, transfer: &mut Transfer) -> Option<Result<()>> {
        let rank = self.rank();
        let Transfer {
            peer,
            count,
            dtype,
            bytes,
            number,
            ..
        } = *transfer;
        match transfer.step {
            Step::Header(id) if self.is_done(id) => {
                // SAFETY: a header has come there.
                let said = unsafe { Said::read(transfer.heard) };
                let fits = (said.count, said.dtype) == (count as u64, dtype as u64);
                transfer.step = Step::Over;
                let own = Said {
                    count: count as u64,
                    dtype: dtype as u64,
                    flag: u64::from(fits),
                };
                if fits && said.flag == 0 {
                    // SAFETY: as many bytes came behind the header, and the caller promised room for them.
                    unsafe { copy(transfer.buffer, transfer.heard.add(HEADER), bytes, false) };
                    return Some(Ok(()));
                }
                if fits {
                    // SAFETY: the caller promised as many bytes.
                    let id = unsafe {
                        self.recv(peer, (Topic::Payload, number), transfer.buffer, bytes, 0)
                    };
                    transfer.step = Step::Data(id);
                }
                if said.flag != 0 {
                    // SAFETY: the buffer is this run's, and what came is read.
                    unsafe {
                        own.write(transfer.heard);
                        self.send(peer, (Topic::Answer, number), transfer.heard, HEADER, 0);
                    }
                }
                Some(match fits {
                    true => Ok(()),
                    false => Err(message_mismatch(
                        (peer, said.count, dtype_name(said.dtype)),
                        (rank, count as u64, dtype.name()),
                    )),
                })
            }
            Step::Answer(id) if self.is_done(id) => {
                // SAFETY: an answer has come there.
                let said = unsafe { Said::read(transfer.heard) };
                if said.flag == 0 {
                    transfer.step = Step::Over;
                    return Some(Err(message_mismatch(
                        (rank, count as u64, dtype.name()),
                        (peer, said.count, dtype_name(said.dtype)),
                    )));
                }
                // SAFETY: the caller promised as many bytes.
                let id = unsafe {
                    self.send(
                        peer,
                        (Topic::Payload, number),
                        transfer.buffer.cast_const(),
                        bytes,
                        0,
                    )
                };
                transfer.step = Step::Data(id);
                Some(Ok(()))
            }
            Step::Data(id) if self.is_done(id) => {
                transfer.step = Step::Over;
                Some(Ok(()))
            }
            _ => None,
        }
    }
}
