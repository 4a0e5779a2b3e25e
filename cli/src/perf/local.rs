//! The ranks of this participant: their buffers, and the calls on them.

use super::buffer::{Buffer, Place, room};
use super::operation::{Layout, Operation, Reduction, recv_layout, send_layout};
use super::reference::{Case, Mismatches, poison};
use crate::library::{Call, Comm, Function, Library};
use flagos_comm::Result;
use std::ffi::c_void;
use std::sync::Arc;

/// The largest offset of data in a buffer that a case asks for, in bytes.
pub const LARGEST_OFFSET: usize = 64;

/// One rank.
pub struct Local {
    /// Its rank.
    rank: usize,
    comm: Box<dyn Comm>,
    stream: *mut c_void,
    /// Its device, if there are devices.
    device: Option<i32>,
    send: Buffer,
    recv: Buffer,
}

/// How a case passes its operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Passing {
    /// In place.
    pub in_place: bool,
    /// NULL for the operands that a rank's role does not use.
    pub null_unused: bool,
    /// Elements by which the data is off the buffer's alignment.
    pub shift: usize,
}

/// Operands of one rank, set up for a case.
struct Operands {
    send: *const c_void,
    recv: *mut c_void,
    redop: i32,
    layouts: Option<(Layout, Layout)>,
    /// Contents of the two buffers before the call.
    send_before: Vec<u8>,
    recv_before: Vec<u8>,
    alias: Alias,
}

/// Where the two operands of a call lie.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Alias {
    /// Apart.
    None,
    /// The send operand this many bytes into the receive buffer.
    SendInRecv(usize),
    /// The receive operand this many bytes into the send buffer.
    RecvInSend(usize),
}

/// The ranks of this participant.
pub struct Locals {
    library: Arc<dyn Library>,
    ranks: Vec<Local>,
    corrupt: Option<usize>,
}

/// A case that is set up on every rank and can be run many times.
pub struct Ready {
    case: Case,
    passing: Passing,
    operands: Vec<Operands>,
}

/// What a rank is made of, beside its buffers.
pub struct Parts {
    /// Its rank.
    pub rank: usize,
    /// Its communicator.
    pub comm: Box<dyn Comm>,
    /// Its stream.
    pub stream: *mut c_void,
    /// Its device, if there are devices.
    pub device: Option<i32>,
}

impl Local {
    /// A rank with buffers for `bytes` of data.
    ///
    /// # Errors
    /// What the library says about the memory.
    pub fn new(
        library: &Arc<dyn Library>,
        parts: Parts,
        place: Place,
        bytes: usize,
    ) -> Result<Local> {
        let stream = parts.stream;
        Ok(Local {
            rank: parts.rank,
            comm: parts.comm,
            stream,
            device: parts.device,
            send: Buffer::new(library, place, stream, bytes, LARGEST_OFFSET)?,
            recv: Buffer::new(library, place, stream, bytes, LARGEST_OFFSET)?,
        })
    }
}

impl Locals {
    /// These ranks; `corrupt` is the rank whose results are falsified.
    pub fn new(library: Arc<dyn Library>, ranks: Vec<Local>, corrupt: Option<usize>) -> Locals {
        Locals {
            library,
            ranks,
            corrupt,
        }
    }

    /// Whether one thread runs several ranks.
    pub fn several(&self) -> bool {
        self.ranks.len() > 1
    }

    fn select(&self, index: usize) -> Result<()> {
        match self.ranks[index].device {
            Some(device) if self.several() => self.library.set_device(device),
            _ => Ok(()),
        }
    }

    /// Fills the buffers for a case.
    ///
    /// # Errors
    /// What the library says about copies and the operator.
    pub fn prepare(&mut self, case: Case, passing: Passing) -> Result<Ready> {
        let mut ready = Ready {
            case,
            passing,
            operands: Vec::new(),
        };
        for index in 0..self.ranks.len() {
            let prepared = self
                .select(index)
                .and_then(|()| self.ranks[index].prepare(&case, passing));
            match prepared {
                Ok(operands) => ready.operands.push(operands),
                Err(error) => {
                    self.release(ready);
                    return Err(error);
                }
            }
        }
        Ok(ready)
    }

    /// Gives back what the case needed beside the buffers.
    pub fn release(&self, ready: Ready) {
        for (local, operands) in self.ranks.iter().zip(&ready.operands) {
            if operands.redop >= flagos_comm::FIRST_CUSTOM_REDOP {
                let _ = local.comm.redop_destroy(operands.redop);
            }
        }
    }

    /// Issues the case's calls on every rank, once.
    ///
    /// # Errors
    /// The library's.
    pub fn issue(&self, ready: &Ready) -> Result<()> {
        let operation = ready.case.operation;
        let mut pairs = self.ranks.iter().zip(&ready.operands);
        if operation == Operation::Barrier {
            // A barrier may not be in a group.
            return pairs.try_for_each(|(local, operands)| local.issue(&ready.case, operands));
        }
        if !self.several() && operation != Operation::SendRecv {
            return self.ranks[0].issue(&ready.case, &ready.operands[0]);
        }
        self.library.group_start()?;
        let result = pairs.try_for_each(|(local, operands)| local.issue(&ready.case, operands));
        let end = self.library.group_end();
        result.and(end)
    }

    /// Waits until everything that was issued is done.
    ///
    /// # Errors
    /// The first error of an operation on a stream.
    pub fn synchronize(&self) -> Result<()> {
        for (index, local) in self.ranks.iter().enumerate() {
            self.select(index)?;
            self.library.stream_synchronize(local.stream)?;
        }
        Ok(())
    }

    /// Lines up with the other participants through the library.
    ///
    /// # Errors
    /// The library's.
    pub fn barrier(&self) -> Result<()> {
        if self.several() {
            return Ok(());
        }
        let local = &self.ranks[0];
        let call = empty(Function::Collective(Operation::Barrier), local.stream);
        // SAFETY: a barrier has no buffers.
        unsafe { local.comm.call(&call) }?;
        self.library.stream_synchronize(local.stream)
    }

    /// Compares what the ranks hold with the reference. The case must have been issued once and
    /// be done. The numbers are a digest of each rank's result.
    ///
    /// # Errors
    /// The library's about copies; differences are no errors here but counted in `found`.
    pub fn verify(&self, ready: &Ready, found: &mut Mismatches) -> Result<Vec<u64>> {
        let mut digests = Vec::new();
        for (index, operands) in ready.operands.iter().enumerate() {
            self.select(index)?;
            let local = &self.ranks[index];
            let corrupt = self.corrupt == Some(local.rank);
            digests.push(local.verify(ready, operands, corrupt, found)?);
        }
        Ok(digests)
    }

    /// Frees everything in order.
    ///
    /// # Errors
    /// The library's.
    pub fn destroy(self, own_streams: bool) -> Result<()> {
        for local in self.ranks {
            if let Some(device) = local.device {
                self.library.set_device(device)?;
            }
            drop((local.send, local.recv));
            local.comm.destroy()?;
            if own_streams {
                self.library.stream_destroy(local.stream)?;
            }
        }
        Ok(())
    }
}

fn empty(function: Function, stream: *mut c_void) -> Call<'static> {
    Call {
        function,
        send: std::ptr::null(),
        recv: std::ptr::null_mut(),
        count: 0,
        dtype: flagos_comm::DataType::Uint8,
        redop: 0,
        root: 0,
        layouts: None,
        stream,
    }
}

/// Where the operands lie if they are passed in place.
fn alias(case: &Case, rank: usize) -> Alias {
    let block = rank * case.count * case.dtype.size();
    let is_root = rank == case.root;
    match case.operation {
        Operation::AllReduce | Operation::Broadcast | Operation::Reduce => Alias::SendInRecv(0),
        Operation::AllGather => Alias::SendInRecv(block),
        Operation::Gather if is_root => Alias::SendInRecv(block),
        Operation::ReduceScatter => Alias::RecvInSend(block),
        Operation::Scatter if is_root => Alias::RecvInSend(block),
        _ => Alias::None,
    }
}

impl Local {
    fn prepare(&mut self, case: &Case, passing: Passing) -> Result<Operands> {
        let (rank, size) = (self.rank, case.dtype.size());
        let operation = case.operation;
        let is_root = rank == case.root;
        let offset = passing.shift * size;
        let send_bytes = operation.send_elements(case.count, case.ranks, rank) * size;
        let mut send = room(send_bytes)?;
        send.resize(send_bytes, 0);
        case.fill(&mut send, rank, 0);
        let recv_bytes = operation.recv_elements(case.count, case.ranks, rank) * size;
        let mut recv = room(recv_bytes)?;
        recv.extend((0..recv_bytes).map(poison));
        let alias = if passing.in_place {
            alias(case, rank)
        } else {
            Alias::None
        };
        match alias {
            // What a rank other than the root has in a broadcast's one buffer is no input.
            Alias::SendInRecv(_) if operation == Operation::Broadcast && !is_root => {}
            Alias::SendInRecv(at) => recv[at..at + send.len()].copy_from_slice(&send),
            _ => {}
        }
        if !matches!(alias, Alias::SendInRecv(_)) {
            self.send.put(offset, &send)?;
        }
        if !matches!(alias, Alias::RecvInSend(_)) {
            self.recv.put(offset, &recv)?;
        }
        let (send_data, recv_data) = (self.send.data(offset), self.recv.data(offset));
        let (mut send_at, mut recv_at) = match alias {
            Alias::None => (send_data, recv_data),
            Alias::SendInRecv(at) => (recv_data.wrapping_add(at), recv_data),
            Alias::RecvInSend(at) => (send_data, send_data.wrapping_add(at)),
        };
        if passing.null_unused && !is_root && alias == Alias::None {
            match operation {
                Operation::Reduce | Operation::Gather => recv_at = std::ptr::null_mut(),
                Operation::Broadcast | Operation::Scatter => send_at = std::ptr::null_mut(),
                _ => {}
            }
        }
        let redop = match case.reduction {
            Reduction::MulSum if operation.reduces() => self
                .comm
                .pre_mul_sum(&case.scalar_bytes(rank), case.dtype)?,
            Reduction::Builtin(op) => op as i32,
            Reduction::MulSum => 0,
        };
        let layouts = (operation == Operation::AllToAllv).then(|| {
            let send = send_layout(case.count, case.ranks, rank);
            (send, recv_layout(case.count, case.ranks, rank))
        });
        Ok(Operands {
            send: send_at.cast_const().cast(),
            recv: recv_at.cast(),
            redop,
            layouts,
            send_before: send,
            recv_before: recv,
            alias,
        })
    }

    fn issue(&self, case: &Case, operands: &Operands) -> Result<()> {
        let mut call = Call {
            send: operands.send,
            recv: operands.recv,
            count: case.count,
            dtype: case.dtype,
            redop: operands.redop,
            root: case.root,
            layouts: operands.layouts.as_ref().map(|(send, recv)| (send, recv)),
            ..empty(Function::Collective(case.operation), self.stream)
        };
        if case.operation == Operation::SendRecv {
            call.function = Function::Send;
            call.root = (self.rank + 1) % case.ranks;
            // SAFETY: the buffers live until the stream is synchronised, by Locals.
            unsafe { self.comm.call(&call) }?;
            call.function = Function::Recv;
            call.root = (self.rank + case.ranks - 1) % case.ranks;
        }
        // SAFETY: as above; their sizes are those of the operation.
        unsafe { self.comm.call(&call) }
    }

    fn verify(
        &self,
        ready: &Ready,
        operands: &Operands,
        corrupt: bool,
        found: &mut Mismatches,
    ) -> Result<u64> {
        let (case, passing) = (&ready.case, ready.passing);
        let offset = passing.shift * case.dtype.size();
        let how = if passing.in_place {
            "in place"
        } else {
            "out of place"
        };
        let subject = || format!("{} {how} rank {}", case.describe(), self.rank);
        let guard = |found: &mut Mismatches, buffer: &str, bytes: usize| {
            if bytes > 0 {
                let subject = subject();
                found.add(|| format!("{subject}: {bytes} bytes around the {buffer} were written"));
            }
        };
        let (send_len, recv_len) = (operands.send_before.len(), operands.recv_before.len());
        let mut unchanged = true;
        let (mut result, before): (Vec<u8>, &[u8]) = match operands.alias {
            Alias::None | Alias::SendInRecv(_) => {
                let (data, broken) = self.recv.get(offset, recv_len)?;
                guard(found, "receive buffer", broken);
                if operands.alias == Alias::None {
                    let (data, broken) = self.send.get(offset, send_len)?;
                    guard(found, "send buffer", broken);
                    unchanged = data == operands.send_before;
                }
                (data, &operands.recv_before)
            }
            Alias::RecvInSend(at) => {
                let (mut data, broken) = self.send.get(offset, send_len)?;
                guard(found, "buffer", broken);
                let before = &operands.send_before[at..at + recv_len];
                let result = data[at..at + recv_len].to_vec();
                // What an in-place reduce-scatter leaves in the other blocks is not defined.
                if case.operation == Operation::Scatter {
                    data[at..at + recv_len].copy_from_slice(before);
                    unchanged = data == operands.send_before;
                }
                (result, before)
            }
        };
        if !unchanged {
            found.add(|| format!("{}: the send buffer was changed", subject()));
        }
        if corrupt && let Some(last) = result.last_mut() {
            *last ^= 0x40;
        }
        case.verify(self.rank, how, &result, before, found);
        Ok(digest(&result))
    }
}

/// Tells results apart, for ranks that must all hold the same.
fn digest(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.fold(bytes.len() as u64, |hash, word| {
        (hash ^ word)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
    })
}
