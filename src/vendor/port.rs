//! The way into a vendor's library of the operations that the short path of `ops` does not take.

use super::Meaning;
use super::nccl::Library;
use crate::device::{Driver, Guard, stream_of};
use crate::error::{Code, Error, Result};
use crate::ops::{Call, Fill, Ops, Target};
use crate::types::{DataType, FIRST_CUSTOM_REDOP, OpKind, RedOp};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, Ordering};

/// What the operations of one communicator need of its vendor beside the slots of the short path.
/// Part of reserved memory that is never freed.
pub(crate) struct NativePort {
    comm: AtomicPtr<c_void>,
    library: AtomicPtr<Library>,
    driver: AtomicPtr<Driver>,
    /// One word of device memory, for barriers.
    word: AtomicPtr<c_void>,
    policy: AtomicU8,
    device: AtomicI32,
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
            device: AtomicI32::new(0),
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
        port.device.store(device, Ordering::Relaxed);
        port.comm.store(comm, Ordering::Release);
        let redops = identity_prefix(&library.redops) as usize;
        if policy == DevicePolicy::Trust && redops == RedOp::ALL.len() {
            let symbols = &library.symbols;
            target.slots.fill(Fill {
                comm,
                dtypes: identity_prefix(&library.dtypes),
                all_reduce: symbols.all_reduce,
                broadcast: symbols.broadcast,
                reduce: symbols.reduce,
                all_gather: symbols.all_gather,
                reduce_scatter: symbols.reduce_scatter,
                send: symbols.send,
                recv: symbols.recv,
                gather: symbols.gather,
                scatter: symbols.scatter,
                all_to_all: symbols.all_to_all,
            });
        }
        target.set_ops(&CLOSELY);
    }

    /// The error of a call that the vendor refused; `None` if it only goes on.
    pub(crate) fn explain(&self, kind: OpKind, result: c_int) -> Option<Error> {
        let library = self.library();
        match library.vendor.meaning(result) {
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
        if comm.is_null() {
            return;
        }
        // SAFETY: a live communicator, no element to touch, and a root that does not exist.
        let refused = unsafe {
            (self.library().symbols.broadcast)(
                std::ptr::null(),
                std::ptr::null_mut(),
                0,
                DataType::Int8 as c_int,
                nranks as c_int,
                comm,
                std::ptr::null_mut(),
            )
        };
        log::debug!("the vendor's group was poisoned ({refused})");
    }
}

unsafe fn closely(target: &'static Target, call: &Call) -> i32 {
    target.count_operation();
    // SAFETY: the caller's promise about the buffers, passed on.
    match unsafe { call_checked(target, call) } {
        Ok(code) => code,
        Err(error) => target.fail_call(call, error),
    }
}

/// The table of a vendor: of the calls that the short path does not take.
static CLOSELY: Ops = crate::ops::collecting_ops!(closely);

/// Checks everything, then calls: the way of calls that the short path does not take.
/// `Ok` is 0, or InProgress of a non-blocking communicator.
unsafe fn call_checked(target: &'static Target, call: &Call) -> Result<i32> {
    let port = &target.native;
    let library = port.library();
    let dtype = call.check(target.rank(), target.nranks())?;
    let device = port.device.load(Ordering::Relaxed);
    let policy = port.device_policy();
    if policy == DevicePolicy::Trust {
        // SAFETY: checked above; the buffers are the caller's promise.
        return unsafe { call_on_device(target, library, call, dtype) };
    }
    let driver = port.driver();
    if policy == DevicePolicy::Error {
        let current = driver.current()?;
        if current != device {
            return Err(Error::invalid_usage(format!(
                "the communicator is bound to device {device} but device {current} is current on \
                 this thread (FLAGOSCOMM_DEVICE=error)"
            )));
        }
        // SAFETY: as above.
        return unsafe { call_on_device(target, library, call, dtype) };
    }
    Guard::with(driver, device, || {
        // SAFETY: as above.
        unsafe { call_on_device(target, library, call, dtype) }
    })
}

unsafe fn call_on_device(
    target: &'static Target,
    library: &'static Library,
    call: &Call,
    dtype: DataType,
) -> Result<i32> {
    let comm = target.native.comm();
    let symbols = &library.symbols;
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
        (true, Some(op)) => library.redop(op)?,
        (true, None) if call.op >= FIRST_CUSTOM_REDOP => target.redop(call.op, dtype)?.vendor,
        (true, None) => return Err(Error::internal("an operator passed its check")),
    };
    if matches!(call.kind, OpKind::AllToAll | OpKind::AllToAllv)
        && std::ptr::eq(send, recv)
        && !send.is_null()
        && target.nranks() > 1
    {
        return Err(Error::not_supported(
            "sendbuff and recvbuff are the same: the vendor would read what it has already \
             overwritten. Use two buffers",
        ));
    }
    // SAFETY: the vendor's functions with their ABI; arguments are checked, the buffers are the
    // caller's promise.
    let result = unsafe {
        match call.kind {
            OpKind::AllReduce => (symbols.all_reduce)(send, recv, count, d, o, comm, stream),
            OpKind::Broadcast => (symbols.broadcast)(send, recv, count, d, root, comm, stream),
            OpKind::Reduce => (symbols.reduce)(send, recv, count, d, o, root, comm, stream),
            OpKind::AllGather => (symbols.all_gather)(send, recv, count, d, comm, stream),
            OpKind::ReduceScatter => {
                (symbols.reduce_scatter)(send, recv, count, d, o, comm, stream)
            }
            OpKind::Send => (symbols.send)(send, count, d, root, comm, stream),
            OpKind::Recv => (symbols.recv)(recv, count, d, root, comm, stream),
            OpKind::Gather => match symbols.gather {
                Some(gather) => gather(send, recv, count, d, root, comm, stream),
                None => return by_messages(target, library, call, dtype, d),
            },
            OpKind::Scatter => match symbols.scatter {
                Some(scatter) => scatter(send, recv, count, d, root, comm, stream),
                None => return by_messages(target, library, call, dtype, d),
            },
            OpKind::AllToAll => match symbols.all_to_all {
                Some(all_to_all) => all_to_all(send, recv, count, d, comm, stream),
                None => return by_messages(target, library, call, dtype, d),
            },
            OpKind::AllToAllv => return by_messages(target, library, call, dtype, d),
            OpKind::Barrier => 0,
        }
    };
    outcome(library, call.kind.name(), result, comm)
}

fn outcome(library: &Library, what: &str, result: c_int, comm: *mut c_void) -> Result<i32> {
    match library.vendor.meaning(result) {
        Meaning::Success => Ok(0),
        Meaning::Code(Code::InProgress) => Ok(Code::InProgress as i32),
        Meaning::Code(_) => Err(library.failed(what, result, comm)),
    }
}

/// A collective that the library lacks, as sends and receives in one group of the vendor's.
unsafe fn by_messages(
    target: &'static Target,
    library: &'static Library,
    call: &Call,
    dtype: DataType,
    d: c_int,
) -> Result<i32> {
    let comm = target.native.comm();
    let symbols = &library.symbols;
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
    // SAFETY: the vendor's function with its ABI.
    let mut result = unsafe { (symbols.group_start)() };
    if result == 0 {
        for peer in 0..nranks {
            let (outgoing, incoming) = messages(peer);
            if let Some((offset, count)) = outgoing {
                // SAFETY: within the caller's buffer by the C header's terms.
                result = unsafe {
                    let from = call.send.cast::<u8>().add(offset * size).cast();
                    (symbols.send)(from, count, d, peer as c_int, comm, call.stream)
                };
            }
            if let (0, Some((offset, count))) = (result, incoming) {
                // SAFETY: as above.
                result = unsafe {
                    let to = call.recv.cast::<u8>().add(offset * size).cast();
                    (symbols.recv)(to, count, d, peer as c_int, comm, call.stream)
                };
            }
            if result != 0 {
                break;
            }
        }
        // SAFETY: closes what was opened above, also after an error.
        let end = unsafe { (symbols.group_end)() };
        if result == 0 {
            result = end;
        }
    }
    outcome(library, call.kind.name(), result, comm)
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
    let d = library.dtype(DataType::Uint8)?;
    let o = library.redop(RedOp::Max)?;
    // SAFETY: the word is on the communicator's device and stays until the communicator ends; what
    // is in it does not matter.
    let result = unsafe { (library.symbols.all_reduce)(word, word, 1, d, o, comm, stream) };
    outcome(library, "AllReduce of a barrier", result, comm)
}
