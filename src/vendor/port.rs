//! The way into a vendor's library of the operations that the short path of `ops` does not take.

use super::library::{Library, Message};
use super::mapped::Mapped;
use super::{Groups, Meaning};
use crate::device::{CopyKind, Driver, Guard, stream_of};
use crate::error::{Code, Error, Result};
use crate::ops::{Call, Fill, Ops, Target};
use crate::types::{DataType, FIRST_CUSTOM_REDOP, OpKind, RedOp};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

/// What the operations of one communicator need of its vendor beside the slots of the short path.
/// Part of reserved memory that is never freed.
pub(crate) struct NativePort {
    comm: AtomicPtr<c_void>,
    library: AtomicPtr<Library>,
    driver: AtomicPtr<Driver>,
    /// One word of device memory, for barriers.
    word: AtomicPtr<c_void>,
    policy: AtomicU8,
    /// NULL until a library needs one.
    mapped: AtomicPtr<Mapped>,
}

/// What is done about the calling thread's current device around a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum DevicePolicy {
    /// Nothing: the library switches by itself.
    Trust = 0,
    /// Set the communicator's device, call, restore.
    Guard = 1,
    /// Refuse the call if another device is current.
    Error = 2,
}

/// How many numbers from 0 on a map leaves as they are.
fn identity_prefix<const N: usize>(map: &[c_int; N]) -> u32 {
    let same = map
        .iter()
        .enumerate()
        .take_while(|(n, value)| **value == *n as c_int);
    same.count() as u32
}

impl NativePort {
    pub(crate) const fn new() -> NativePort {
        NativePort {
            comm: AtomicPtr::new(std::ptr::null_mut()),
            library: AtomicPtr::new(std::ptr::null_mut()),
            driver: AtomicPtr::new(std::ptr::null_mut()),
            word: AtomicPtr::new(std::ptr::null_mut()),
            policy: AtomicU8::new(DevicePolicy::Trust as u8),
            mapped: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Puts a vendor's communicator behind the target: its table, and if nothing has to be done
    /// around a call, the slots of the short path.
    pub(crate) fn attach(
        target: &'static Target,
        library: &'static Library,
        comm: *mut c_void,
        driver: &'static Driver,
        word: *mut c_void,
        policy: DevicePolicy,
        device: i32,
    ) {
        let port = &target.native;
        port.library
            .store(std::ptr::from_ref(library).cast_mut(), Ordering::Relaxed);
        port.driver
            .store(std::ptr::from_ref(driver).cast_mut(), Ordering::Relaxed);
        port.word.store(word, Ordering::Relaxed);
        port.policy.store(policy as u8, Ordering::Relaxed);
        target.device.store(device, Ordering::Relaxed);
        port.comm.store(comm, Ordering::Release);
        if policy == DevicePolicy::Trust {
            target.slots.fill(port.fill(target, library, comm));
        }
        target.set_ops(&CLOSELY);
    }

    /// What the short path is filled with: the library's functions, or ours that map numbers first.
    fn fill(&'static self, target: &'static Target, library: &Library, comm: *mut c_void) -> Fill {
        let (calls, symbols, row) = (&library.calls, &library.symbols, library.row);
        let all = identity_prefix(&library.redops) as usize == RedOp::ALL.len();
        match symbols.broadcast {
            Some(broadcast) if all && row.limits.is_empty() && !row.quirks.broken_gather => Fill {
                comm,
                dtypes: identity_prefix(&library.dtypes),
                all_reduce: calls.all_reduce,
                broadcast,
                reduce: calls.reduce,
                all_gather: calls.all_gather,
                reduce_scatter: calls.reduce_scatter,
                send: calls.send,
                recv: calls.recv,
                gather: symbols.gather,
                scatter: symbols.scatter,
                all_to_all: symbols.all_to_all,
            },
            _ => self.mapped().fill(target, library, comm),
        }
    }

    fn mapped(&self) -> &'static Mapped {
        let mut mapped = self.mapped.load(Ordering::Relaxed);
        if mapped.is_null() {
            mapped = Box::leak(Box::new(Mapped::new()));
            self.mapped.store(mapped, Ordering::Relaxed);
        }
        // SAFETY: a leaked box, stored above now or at an earlier communicator of this place.
        unsafe { &*mapped }
    }

    /// The error of a call that the vendor refused; `None` if it only goes on.
    pub(crate) fn explain(&self, kind: OpKind, result: c_int) -> Option<Error> {
        let library = self.library();
        match library.row.meaning(result) {
            Meaning::Code(Code::InProgress) => None,
            _ if self.comm().is_null() => Some(Error::new(
                Code::Aborted,
                "the communicator was aborted during the call",
            )),
            _ => Some(library.failed(kind.name(), result, self.comm())),
        }
    }

    /// Takes it away again.
    pub(crate) fn detach(&self) {
        self.comm.store(std::ptr::null_mut(), Ordering::Release);
    }

    fn library(&self) -> &'static Library {
        // SAFETY: the native tables are installed only after `attach`, and libraries live for ever.
        unsafe { &*self.library.load(Ordering::Relaxed) }
    }

    /// The library whose communicator is attached, if one is.
    pub(crate) fn attached(&self) -> Option<&'static Library> {
        (!self.comm().is_null()).then(|| self.library())
    }

    fn comm(&self) -> *mut c_void {
        self.comm.load(Ordering::Relaxed)
    }

    fn driver(&self) -> &'static Driver {
        // SAFETY: as `library`: set by `attach`, and drivers live for ever.
        unsafe { &*self.driver.load(Ordering::Relaxed) }
    }

    fn device_policy(&self) -> DevicePolicy {
        match self.policy.load(Ordering::Relaxed) {
            1 => DevicePolicy::Guard,
            2 => DevicePolicy::Error,
            _ => DevicePolicy::Trust,
        }
    }

    /// Makes the vendor's open group fail, so that its end launches nothing: a call that every
    /// library of this shape refuses after it has recognised the communicator.
    pub(crate) fn poison_group(&self, nranks: u32) {
        let comm = self.comm();
        let Some(broadcast) = self.library().symbols.broadcast.filter(|_| !comm.is_null()) else {
            return;
        };
        // SAFETY: a live communicator, no element to touch, and a root that does not exist.
        let refused = unsafe {
            broadcast(
                std::ptr::null(),
                std::ptr::null_mut(),
                0,
                self.library().dtypes[DataType::Int32 as usize],
                nranks as c_int,
                comm,
                std::ptr::null_mut(),
            )
        };
        log::debug!("the vendor's group was poisoned ({refused})");
    }

    /// Whether the calls of a group are kept until its end.
    pub(crate) fn keeps_groups(&self) -> bool {
        self.attached()
            .is_some_and(|library| library.row.quirks.groups == Groups::Kept)
    }
}

/// Everything that can be said against a call before the vendor's library is asked.
pub(crate) fn check(target: &'static Target, call: &Call) -> Result<DataType> {
    let library = target.native.library();
    let dtype = call.check(target.rank(), target.nranks())?;
    if call.kind == OpKind::Barrier {
        return Ok(dtype);
    }
    library.dtype(dtype)?;
    let op = RedOp::from_raw(call.op).filter(|_| call.reduces());
    if let Some(op) = op {
        library.redop(op, target.nranks())?;
    }
    library.within_limits(call.kind, dtype, op)?;
    if call.stream.is_null() && !target.native.driver().has_null_stream() {
        return Err(Error::invalid_argument(format!(
            "the stream is NULL, and {} has no default stream: pass one of flagosStreamCreate or of \
             the driver's",
            library.row.title
        )));
    }
    if matches!(call.kind, OpKind::AllToAll | OpKind::AllToAllv)
        && std::ptr::eq(call.send, call.recv)
        && !call.send.is_null()
        && target.nranks() > 1
    {
        return Err(Error::not_supported(
            "sendbuff and recvbuff are the same: the vendor would read what it has already \
             overwritten. Use two buffers",
        ));
    }
    Ok(dtype)
}

unsafe fn closely(target: &'static Target, call: &Call) -> i32 {
    target.count_operation(call.kind);
    // SAFETY: the caller's promise about the buffers, passed on.
    match unsafe { call_checked(target, call) } {
        Ok(code) => code,
        Err(error) => target.refuse(call, error),
    }
}

/// The table of a vendor: of the calls that the short path does not take.
pub(super) static CLOSELY: Ops = crate::ops::collecting_ops!(closely);

/// Checks everything, then calls: the way of calls that the short path does not take.
/// `Ok` is 0, or InProgress of a non-blocking communicator.
unsafe fn call_checked(target: &'static Target, call: &Call) -> Result<i32> {
    let dtype = check(target, call)?;
    // SAFETY: checked; the buffers are the caller's promise.
    with_device(target, || unsafe { call_on_device(target, call, dtype) })
}

/// Calls with the calling thread's device as the communicator's policy wants it.
fn with_device(target: &'static Target, call: impl FnOnce() -> Result<i32>) -> Result<i32> {
    let port = &target.native;
    let device = target.device.load(Ordering::Relaxed);
    match port.device_policy() {
        DevicePolicy::Trust => call(),
        DevicePolicy::Guard => Guard::with(port.driver(), device, call),
        DevicePolicy::Error => {
            let current = port.driver().current()?;
            if current != device {
                return Err(Error::invalid_usage(format!(
                    "the communicator is bound to device {device} but device {current} is current \
                     on this thread (FLAGOSCOMM_DEVICE=error)"
                )));
            }
            call()
        }
    }
}

/// Messages of one communicator on one stream, made together; every call was checked.
///
/// # Safety
/// The buffers are what the C header asks for.
pub(crate) unsafe fn send_messages(target: &'static Target, calls: &[Call]) -> Result<i32> {
    let Some(first) = calls.first() else {
        return Ok(0);
    };
    let mut messages = Vec::with_capacity(calls.len());
    for call in calls.iter().filter(|call| call.count > 0) {
        let dtype = DataType::from_raw(call.dtype)
            .ok_or_else(|| Error::internal("a data type passed its check"))?;
        let out = call.kind == OpKind::Send;
        let buffer = if out { call.send.cast_mut() } else { call.recv };
        messages.push(message(target, call.root, out, buffer, call.count, dtype)?);
    }
    // SAFETY: the caller's promise.
    with_device(target, || unsafe {
        exchange(target, first.kind.name(), &messages, first.stream)
    })
}

fn message(
    target: &'static Target,
    peer: c_int,
    out: bool,
    buffer: *mut c_void,
    count: usize,
    dtype: DataType,
) -> Result<Message> {
    Ok(Message {
        peer,
        out,
        buffer,
        count,
        dtype: target.native.library().dtype(dtype)?,
        bytes: count * dtype.size(),
    })
}

unsafe fn call_on_device(target: &'static Target, call: &Call, dtype: DataType) -> Result<i32> {
    let library = target.native.library();
    let comm = target.native.comm();
    let (calls, symbols) = (&library.calls, &library.symbols);
    let Call {
        send,
        recv,
        count,
        root,
        stream,
        ..
    } = *call;
    if call.kind == OpKind::Barrier {
        return barrier(target, library, stream);
    }
    let d = library.dtype(dtype)?;
    let o = match (call.reduces(), RedOp::from_raw(call.op)) {
        (false, _) => 0,
        (true, Some(op)) => library.redop(op, target.nranks())?,
        (true, None) if call.op >= FIRST_CUSTOM_REDOP => target.redop(call.op, dtype)?.vendor,
        (true, None) => return Err(Error::internal("an operator passed its check")),
    };
    let whole = !library.row.quirks.broken_gather;
    // SAFETY: the vendor's functions with their ABI; arguments are checked, the buffers are the
    // caller's promise.
    let result = unsafe {
        match call.kind {
            OpKind::AllReduce => (calls.all_reduce)(send, recv, count, d, o, comm, stream),
            OpKind::Broadcast => match symbols.broadcast {
                Some(broadcast) => broadcast(send, recv, count, d, root, comm, stream),
                None => broadcast_in_place(target, call, dtype, d)?,
            },
            OpKind::Reduce => (calls.reduce)(send, recv, count, d, o, root, comm, stream),
            OpKind::AllGather => (calls.all_gather)(send, recv, count, d, comm, stream),
            OpKind::ReduceScatter => (calls.reduce_scatter)(send, recv, count, d, o, comm, stream),
            OpKind::Send | OpKind::Recv
                if library.messages.is_some() && root as u32 == target.rank() =>
            {
                return Err(Error::invalid_usage(
                    "a message to the own rank needs its other half in the same group",
                ));
            }
            OpKind::Send => (calls.send)(send, count, d, root, comm, stream),
            OpKind::Recv => (calls.recv)(recv, count, d, root, comm, stream),
            OpKind::Gather => match symbols.gather.filter(|_| whole) {
                Some(gather) => gather(send, recv, count, d, root, comm, stream),
                None => return by_messages(target, call, dtype),
            },
            OpKind::Scatter => match symbols.scatter.filter(|_| whole) {
                Some(scatter) => scatter(send, recv, count, d, root, comm, stream),
                None => return by_messages(target, call, dtype),
            },
            OpKind::AllToAll => match symbols.all_to_all {
                Some(all_to_all) => all_to_all(send, recv, count, d, comm, stream),
                None => return by_messages(target, call, dtype),
            },
            OpKind::AllToAllv => match symbols.all_to_allv {
                Some(all_to_allv) => {
                    let [sc, sd, rc, rd] = call.vector;
                    all_to_allv(send, sc, sd, recv, rc, rd, d, comm, stream)
                }
                None => return by_messages(target, call, dtype),
            },
            OpKind::Barrier => 0,
        }
    };
    outcome(library, call.kind.name(), result, comm)
}

/// A broadcast of a library that has it in place only: the root copies on the stream first.
unsafe fn broadcast_in_place(
    target: &'static Target,
    call: &Call,
    dtype: DataType,
    d: c_int,
) -> Result<c_int> {
    let library = target.native.library();
    let bcast = library
        .symbols
        .bcast
        .ok_or_else(|| library.lacks("Broadcast"))?;
    let copies = call.root as u32 == target.rank() && !std::ptr::eq(call.send, call.recv);
    if copies && call.count > 0 {
        let bytes = call.count * dtype.size();
        let stream = stream_of(call.stream);
        let kind = CopyKind::DeviceToDevice;
        // SAFETY: both buffers have so many bytes and stay until the stream is done: the caller's
        // promise.
        unsafe {
            let driver = target.native.driver();
            driver.memcpy_async(call.recv, call.send, bytes, kind, stream)?;
        }
    }
    let comm = target.native.comm();
    // SAFETY: the vendor's function with its ABI; the buffer is the caller's promise.
    Ok(unsafe { bcast(call.recv, call.count, d, call.root, comm, call.stream) })
}

fn outcome(library: &Library, what: &str, result: c_int, comm: *mut c_void) -> Result<i32> {
    match library.row.meaning(result) {
        Meaning::Success => Ok(0),
        Meaning::Code(Code::InProgress) => Ok(Code::InProgress as i32),
        Meaning::Code(_) => Err(library.failed(what, result, comm)),
    }
}

/// A collective that the library lacks, as sends and receives in one group of the vendor's.
unsafe fn by_messages(target: &'static Target, call: &Call, dtype: DataType) -> Result<i32> {
    let (rank, nranks) = (target.rank() as usize, target.nranks() as usize);
    let root = call.root as usize;
    let size = dtype.size();
    // (element offset, count) of what goes to and what comes from a peer; `None`: nothing.
    let messages = |peer: usize| {
        let block = |n: usize| Some((n * call.count, call.count)).filter(|(_, c)| *c > 0);
        match call.kind {
            OpKind::Gather => (
                block(0).filter(|_| peer == root),
                block(peer).filter(|_| rank == root),
            ),
            OpKind::Scatter => (
                block(peer).filter(|_| rank == root),
                block(0).filter(|_| peer == root),
            ),
            OpKind::AllToAll => (block(peer), block(peer)),
            _ => {
                let at = |side: usize| {
                    // SAFETY: `check` has found the arrays not NULL; one entry per rank is the
                    // caller's promise.
                    let (count, displ) = unsafe {
                        (
                            call.vector[side].add(peer).read_unaligned(),
                            call.vector[side + 1].add(peer).read_unaligned(),
                        )
                    };
                    Some((displ, count)).filter(|(_, c)| *c > 0)
                };
                (at(0), at(2))
            }
        }
    };
    let mut list = Vec::with_capacity(2 * nranks);
    for peer in 0..nranks {
        let (outgoing, incoming) = messages(peer);
        if let Some((offset, count)) = outgoing {
            // SAFETY: within the caller's buffer by the C header's terms.
            let from = unsafe { call.send.cast::<u8>().add(offset * size) };
            let from = from.cast_mut().cast();
            list.push(message(target, peer as c_int, true, from, count, dtype)?);
        }
        if let Some((offset, count)) = incoming {
            // SAFETY: as above.
            let to = unsafe { call.recv.cast::<u8>().add(offset * size) };
            list.push(message(
                target,
                peer as c_int,
                false,
                to.cast(),
                count,
                dtype,
            )?);
        }
    }
    // SAFETY: the caller's promise about the buffers.
    unsafe { exchange(target, call.kind.name(), &list, call.stream) }
}

/// Makes messages together, those to the own rank too: by the library's group, or in its own way.
unsafe fn exchange(
    target: &'static Target,
    what: &str,
    messages: &[Message],
    stream: *mut c_void,
) -> Result<i32> {
    let library = target.native.library();
    let comm = target.native.comm();
    let result = match library.messages {
        None => {
            // SAFETY: the vendor's functions with their ABI; the buffers are the caller's promise.
            unsafe { by_group(library, comm, messages, stream) }
        }
        Some(together) => {
            let own = target.rank() as c_int;
            let (own, others): (Vec<Message>, Vec<Message>) =
                messages.iter().partition(|m| m.peer == own);
            // SAFETY: the caller's promise about the buffers.
            unsafe { copy_to_self(target, &own, stream)? };
            match others.is_empty() {
                true => Ok(0),
                // SAFETY: as above; the function has the library's ABI behind it.
                false => unsafe { together(comm, &others, stream) },
            }
        }
    }?;
    outcome(library, what, result, comm)
}

unsafe fn by_group(
    library: &Library,
    comm: *mut c_void,
    messages: &[Message],
    stream: *mut c_void,
) -> Result<c_int> {
    let (start, end) = (library.symbols.group_start, library.symbols.group_end);
    let (Some(start), Some(end)) = (start, end) else {
        return Err(library.lacks("GroupStart"));
    };
    // SAFETY: the vendor's function with its ABI.
    let mut result = unsafe { start() };
    if result != 0 {
        return Ok(result);
    }
    for message in messages {
        let Message {
            peer,
            out,
            buffer,
            count,
            dtype,
            ..
        } = *message;
        // SAFETY: as above; the buffer is the caller's promise.
        result = unsafe {
            match out {
                true => (library.calls.send)(buffer, count, dtype, peer, comm, stream),
                false => (library.calls.recv)(buffer, count, dtype, peer, comm, stream),
            }
        };
        if result != 0 {
            break;
        }
    }
    // SAFETY: closes what was opened above, also after an error.
    let ended = unsafe { end() };
    Ok(if result == 0 { ended } else { result })
}

/// Messages to the own rank, matched in their order, as copies on the stream.
unsafe fn copy_to_self(
    target: &'static Target,
    own: &[Message],
    stream: *mut c_void,
) -> Result<()> {
    let (sent, received): (Vec<&Message>, Vec<&Message>) = own.iter().partition(|m| m.out);
    let fits =
        sent.len() == received.len() && sent.iter().zip(&received).all(|(s, r)| s.bytes == r.bytes);
    if !fits {
        return Err(Error::invalid_usage(
            "a message to the own rank has no other half of the same size in this group",
        ));
    }
    for (from, to) in sent.iter().zip(&received) {
        if std::ptr::eq(from.buffer, to.buffer) {
            continue;
        }
        let kind = CopyKind::DeviceToDevice;
        // SAFETY: both buffers have so many bytes: the caller's promise.
        unsafe {
            let driver = target.native.driver();
            driver.memcpy_async(to.buffer, from.buffer, from.bytes, kind, stream_of(stream))?;
        }
    }
    Ok(())
}

/// One word through an all-reduce on the stream. The word is the communicator's, allocated at init:
/// an allocation here could wait for other ranks' kernels.
fn barrier(target: &'static Target, library: &'static Library, stream: *mut c_void) -> Result<i32> {
    if target.native.driver().is_capturing(stream_of(stream))? {
        return Err(Error::not_supported(
            "the stream is being captured, and a barrier in a graph would synchronise nothing that \
             the graph can see",
        ));
    }
    let comm = target.native.comm();
    let word = target.native.word.load(Ordering::Relaxed);
    // A pair that every library can reduce.
    let d = library.dtype(DataType::Int32)?;
    let o = library.redop(RedOp::Sum, target.nranks())?;
    let driver = target.native.driver();
    driver.on_some_stream(stream_of(stream), |on| {
        // SAFETY: the word is on the communicator's device and stays until the communicator ends;
        // what is in it does not matter.
        let result = unsafe { (library.calls.all_reduce)(word, word, 1, d, o, comm, on.raw()) };
        let code = outcome(library, "AllReduce of a barrier", result, comm)?;
        if on.raw() != stream {
            // Nobody else could wait for a stream of ours.
            driver.stream_synchronize(on)?;
        }
        Ok(code)
    })
}
