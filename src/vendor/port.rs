//! The way of an operation into a vendor's library: from the uniform table to the vendor's function.

use super::Meaning;
use super::nccl::Library;
use crate::device::{Driver, Guard, stream_of};
use crate::error::{Code, Error, Result};
use crate::ops::{Call, Ops, Target};
use crate::types::{DataType, FIRST_CUSTOM_REDOP, OpKind, RedOp};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, AtomicU32, Ordering};

/// What the operations of one communicator need of its vendor. Part of reserved memory that is
/// never freed. The first fields are all that the short path reads.
#[repr(C)]
pub(crate) struct NativePort {
    comm: AtomicPtr<c_void>,
    /// Data types below this number have the vendor's number for theirs and are there.
    dtypes: AtomicU32,
    /// The same for operators.
    redops: AtomicU32,
    /// Data types of the functions that came late; 0 where one of them is missing.
    late_dtypes: AtomicU32,
    policy: AtomicU8,
    device: AtomicI32,
    functions: Functions,
    library: AtomicPtr<Library>,
    driver: AtomicPtr<Driver>,
}

macro_rules! functions {
    ($($field:ident: ($($arg:ty),*);)*) => {
        /// The vendor's functions of the short path, copied to where it finds them at once.
        #[repr(C)]
        struct Functions {
            $($field: AtomicPtr<c_void>,)*
        }

        impl Functions {
            const fn none() -> Functions {
                Functions {
                    $($field: AtomicPtr::new(std::ptr::null_mut()),)*
                }
            }

            $(
                #[inline(always)]
                fn $field(&self) -> unsafe extern "C" fn($($arg),*) -> c_int {
                    let function = self.$field.load(Ordering::Relaxed);
                    // SAFETY: the short path's table is installed only after `attach` has stored
                    // functions of this type here.
                    unsafe { std::mem::transmute::<*mut c_void, _>(function) }
                }
            )*
        }
    };
}

type Ptr = *mut c_void;
type Const = *const c_void;

functions! {
    all_reduce: (Const, Ptr, usize, c_int, c_int, Ptr, Ptr);
    broadcast: (Const, Ptr, usize, c_int, c_int, Ptr, Ptr);
    reduce: (Const, Ptr, usize, c_int, c_int, c_int, Ptr, Ptr);
    all_gather: (Const, Ptr, usize, c_int, Ptr, Ptr);
    reduce_scatter: (Const, Ptr, usize, c_int, c_int, Ptr, Ptr);
    send: (Const, usize, c_int, c_int, Ptr, Ptr);
    recv: (Ptr, usize, c_int, c_int, Ptr, Ptr);
    gather: (Const, Ptr, usize, c_int, c_int, Ptr, Ptr);
    scatter: (Const, Ptr, usize, c_int, c_int, Ptr, Ptr);
    all_to_all: (Const, Ptr, usize, c_int, Ptr, Ptr);
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
            dtypes: AtomicU32::new(0),
            redops: AtomicU32::new(0),
            late_dtypes: AtomicU32::new(0),
            policy: AtomicU8::new(DevicePolicy::Trust as u8),
            device: AtomicI32::new(0),
            functions: Functions::none(),
            library: AtomicPtr::new(std::ptr::null_mut()),
            driver: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Puts a vendor's communicator behind the table, and gives the table.
    pub(crate) fn attach(
        &self,
        library: &'static Library,
        comm: *mut c_void,
        driver: &'static Driver,
        policy: DevicePolicy,
        device: i32,
    ) -> &'static Ops {
        let symbols = &library.symbols;
        let dtypes = identity_prefix(&library.dtypes);
        let late =
            symbols.gather.is_some() && symbols.scatter.is_some() && symbols.all_to_all.is_some();
        self.dtypes.store(dtypes, Ordering::Relaxed);
        self.redops
            .store(identity_prefix(&library.redops), Ordering::Relaxed);
        self.late_dtypes
            .store(if late { dtypes } else { 0 }, Ordering::Relaxed);
        let f = &self.functions;
        for (place, function) in [
            (&f.all_reduce, symbols.all_reduce as *mut c_void),
            (&f.broadcast, symbols.broadcast as *mut c_void),
            (&f.reduce, symbols.reduce as *mut c_void),
            (&f.all_gather, symbols.all_gather as *mut c_void),
            (&f.reduce_scatter, symbols.reduce_scatter as *mut c_void),
            (&f.send, symbols.send as *mut c_void),
            (&f.recv, symbols.recv as *mut c_void),
            (
                &f.gather,
                symbols
                    .gather
                    .map_or(std::ptr::null_mut(), |f| f as *mut c_void),
            ),
            (
                &f.scatter,
                symbols
                    .scatter
                    .map_or(std::ptr::null_mut(), |f| f as *mut c_void),
            ),
            (
                &f.all_to_all,
                symbols
                    .all_to_all
                    .map_or(std::ptr::null_mut(), |f| f as *mut c_void),
            ),
        ] {
            place.store(function, Ordering::Relaxed);
        }
        self.library
            .store(std::ptr::from_ref(library).cast_mut(), Ordering::Relaxed);
        self.driver
            .store(std::ptr::from_ref(driver).cast_mut(), Ordering::Relaxed);
        self.policy.store(policy as u8, Ordering::Relaxed);
        self.device.store(device, Ordering::Relaxed);
        self.comm.store(comm, Ordering::Release);
        if policy == DevicePolicy::Trust {
            &NATIVE
        } else {
            &NATIVE_CLOSELY
        }
    }

    /// Takes it away again.
    pub(crate) fn detach(&self) {
        self.comm.store(std::ptr::null_mut(), Ordering::Release);
    }

    #[inline(always)]
    fn library(&self) -> &'static Library {
        // SAFETY: the native tables are installed only after `attach`, and libraries live for ever.
        unsafe { &*self.library.load(Ordering::Relaxed) }
    }

    /// The library whose communicator is attached, if one is.
    pub(crate) fn attached(&self) -> Option<&'static Library> {
        (!self.comm().is_null()).then(|| self.library())
    }

    #[inline(always)]
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

/// Larger counts are looked at closely.
const PLAIN_COUNT: usize = 1 << 56;

/// What an error text needs of a call that the vendor refused. It is written to the stack before
/// the vendor's call, by volatile writes: kept in registers over the call, it would cost as many
/// pushes and pops on every call that succeeds.
#[repr(C)]
struct Noted {
    target: *const Target,
    count: usize,
    dtype: i32,
    op: i32,
    root: i32,
}

#[cold]
#[inline(never)]
fn failed(noted: &Noted, kind: OpKind, result: c_int) -> i32 {
    // SAFETY: written from a `&'static Target` by the short path.
    let target: &'static Target = unsafe { &*noted.target };
    crate::ops::guarded(target, || {
        let library = target.native.library();
        if library.vendor.meaning(result) == Meaning::Code(Code::InProgress) {
            return Code::InProgress as i32;
        }
        let mut call = Call::new(kind);
        (call.count, call.dtype, call.op, call.root) =
            (noted.count, noted.dtype, noted.op, noted.root);
        let error = library.failed(kind.name(), result, target.native.comm());
        target.fail_call(&call, error)
    })
}

#[cold]
#[inline(never)]
unsafe fn closely(target: &'static Target, call: Call) -> i32 {
    crate::ops::guarded(target, || {
        // SAFETY: the caller's promise about the buffers, passed on.
        match unsafe { call_checked(target, &call) } {
            Ok(code) => code,
            Err(error) => target.fail_call(&call, error),
        }
    })
}

/// One function of the short path: arguments that are beyond doubt go straight to the vendor, and
/// everything else is looked at closely. `limit`: the field of [`NativePort`] that the data type
/// must be below. `fine`: what else must hold.
macro_rules! short {
    (
        $name:ident, $kind:ident, $limit:ident,
        ($($arg:ident: $ty:ty => $field:ident),*),
        ($($passed:ident),*),
        |$port:ident, $target:ident| $fine:expr
    ) => {
        #[allow(clippy::too_many_arguments)]
        unsafe extern "C" fn $name(
            $($arg: $ty,)*
            $target: &'static Target,
            stream: *mut c_void,
        ) -> i32 {
            let $port = &$target.native;
            $target.count_operation();
            let mut call = Call::new(OpKind::$kind);
            $(call.$field = $arg;)*
            call.stream = stream;
            let known = (call.dtype as u32) < $port.$limit.load(Ordering::Relaxed);
            if known && call.count < PLAIN_COUNT && $fine {
                let mut noted = MaybeUninit::<Noted>::uninit();
                let at = noted.as_mut_ptr();
                // SAFETY: each write goes to a field of the local above.
                unsafe {
                    (&raw mut (*at).target).write_volatile($target);
                    (&raw mut (*at).count).write_volatile(call.count);
                    (&raw mut (*at).dtype).write_volatile(call.dtype);
                    (&raw mut (*at).op).write_volatile(call.op);
                    (&raw mut (*at).root).write_volatile(call.root);
                }
                // SAFETY: the vendor's function with its ABI; the buffers are the caller's promise.
                let result = unsafe { ($port.functions.$name())($($passed,)* $port.comm(), stream) };
                if result == 0 {
                    return 0;
                }
                // SAFETY: every field was written above.
                return failed(unsafe { noted.assume_init_ref() }, OpKind::$kind, result);
            }
            // SAFETY: the caller's promise, passed on.
            unsafe { closely($target, call) }
        }
    };
}

short!(
    all_reduce, AllReduce, dtypes,
    (send: Const => send, recv: Ptr => recv, count: usize => count, dtype: i32 => dtype, op: i32 => op),
    (send, recv, count, dtype, op),
    |port, target| (op as u32) < port.redops.load(Ordering::Relaxed)
        && !send.is_null() && !recv.is_null()
);
short!(
    reduce_scatter, ReduceScatter, dtypes,
    (send: Const => send, recv: Ptr => recv, count: usize => count, dtype: i32 => dtype, op: i32 => op),
    (send, recv, count, dtype, op),
    |port, target| (op as u32) < port.redops.load(Ordering::Relaxed)
        && !send.is_null() && !recv.is_null()
);
short!(
    reduce, Reduce, dtypes,
    (send: Const => send, recv: Ptr => recv, count: usize => count, dtype: i32 => dtype, op: i32 => op, root: i32 => root),
    (send, recv, count, dtype, op, root),
    |port, target| (op as u32) < port.redops.load(Ordering::Relaxed)
        && (root as u32) < target.nranks()
        && !send.is_null() && !recv.is_null()
);
short!(
    all_gather, AllGather, dtypes,
    (send: Const => send, recv: Ptr => recv, count: usize => count, dtype: i32 => dtype),
    (send, recv, count, dtype),
    |port, target| !send.is_null() && !recv.is_null()
);
short!(
    broadcast, Broadcast, dtypes,
    (send: Const => send, recv: Ptr => recv, count: usize => count, dtype: i32 => dtype, root: i32 => root),
    (send, recv, count, dtype, root),
    |port, target| (root as u32) < target.nranks() && !send.is_null() && !recv.is_null()
);
short!(
    gather, Gather, late_dtypes,
    (send: Const => send, recv: Ptr => recv, count: usize => count, dtype: i32 => dtype, root: i32 => root),
    (send, recv, count, dtype, root),
    |port, target| (root as u32) < target.nranks() && !send.is_null() && !recv.is_null()
);
short!(
    scatter, Scatter, late_dtypes,
    (send: Const => send, recv: Ptr => recv, count: usize => count, dtype: i32 => dtype, root: i32 => root),
    (send, recv, count, dtype, root),
    |port, target| (root as u32) < target.nranks() && !send.is_null() && !recv.is_null()
);
short!(
    all_to_all, AllToAll, late_dtypes,
    (send: Const => send, recv: Ptr => recv, count: usize => count, dtype: i32 => dtype),
    (send, recv, count, dtype),
    |port, target| !send.is_null() && !recv.is_null() && !std::ptr::eq(send, recv)
);
short!(
    send, Send, dtypes,
    (send: Const => send, count: usize => count, dtype: i32 => dtype, peer: i32 => root),
    (send, count, dtype, peer),
    |port, target| (peer as u32) < target.nranks() && !send.is_null()
);
short!(
    recv, Recv, dtypes,
    (recv: Ptr => recv, count: usize => count, dtype: i32 => dtype, peer: i32 => root),
    (recv, count, dtype, peer),
    |port, target| (peer as u32) < target.nranks() && !recv.is_null()
);

unsafe fn counted(target: &'static Target, call: &Call) -> i32 {
    target.count_operation();
    // SAFETY: the caller's promise about the buffers, passed on.
    unsafe { closely(target, *call) }
}

/// The table of a vendor whose numbers are ours and whose library switches devices by itself.
static NATIVE: Ops = Ops {
    all_reduce,
    broadcast,
    reduce,
    all_gather,
    reduce_scatter,
    gather,
    scatter,
    all_to_all,
    send,
    recv,
    ..crate::ops::collecting_ops!(counted)
};

/// The table of a communicator whose device is looked after around every call.
static NATIVE_CLOSELY: Ops = crate::ops::collecting_ops!(counted);

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

/// One element through an all-reduce, then the host waits for the stream.
fn barrier(target: &'static Target, library: &'static Library, stream: *mut c_void) -> Result<i32> {
    let driver = target.native.driver();
    let raw = stream_of(stream);
    if driver.is_capturing(raw)? {
        return Err(Error::not_supported(
            "Barrier waits on the host, which a stream that is being captured can't",
        ));
    }
    let comm = target.native.comm();
    Guard::with(driver, target.native.device.load(Ordering::Relaxed), || {
        let word = driver.malloc(8)?;
        let d = library.dtype(DataType::Int8)?;
        let o = library.redop(RedOp::Max)?;
        // SAFETY: the word is ours, on the communicator's device, until the stream is synchronised.
        let result = unsafe { (library.symbols.all_reduce)(word, word, 1, d, o, comm, stream) };
        let code = outcome(library, "AllReduce of a barrier", result, comm);
        let waited = driver.stream_synchronize(raw);
        // SAFETY: allocated above, and the stream has passed the only work that used it (or is
        // broken, and uses it no more).
        unsafe { driver.free(word)? };
        let code = code?;
        waited?;
        Ok(code)
    })
}
