//! Operations: what a caller asks for, what is wrong with it, and the table through which a
//! communicator's tier answers.

use crate::differing::{Field, Shape};
use crate::error::{Code, Error, Result, last};
use crate::host::port::HostPort;
use crate::types::{DataType, FIRST_CUSTOM_REDOP, OpKind, RedOp};
use crate::words::counted;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The arguments of one operation, as they were passed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub kind: OpKind,
    pub send: *const c_void,
    pub recv: *mut c_void,
    pub count: usize,
    pub dtype: i32,
    pub op: i32,
    /// Root or peer.
    pub root: i32,
    /// AlltoAllv: send counts, send displacements, receive counts, receive displacements.
    pub vector: [*const usize; 4],
    pub stream: *mut c_void,
}

// SAFETY: addresses and numbers; whoever uses the addresses makes the caller's promise about them.
unsafe impl Send for Call {}

impl Call {
    /// The operator of a call whose text is to leave it out.
    const NOT_NOTED: i32 = i32::MIN;

    pub(crate) fn new(kind: OpKind) -> Call {
        Call {
            kind,
            send: std::ptr::null(),
            recv: std::ptr::null_mut(),
            count: 0,
            dtype: 0,
            op: 0,
            root: 0,
            vector: [std::ptr::null(); 4],
            stream: std::ptr::null_mut(),
        }
    }

    /// "AllReduce(count 5, float32, sum)".
    pub(crate) fn text(&self) -> String {
        self.shape().text()
    }

    /// What has to be the same on all ranks, as far as it goes for this kind.
    pub(crate) fn shape(&self) -> Shape {
        let mut shape = Shape::new(self.kind.name());
        if !matches!(self.kind, OpKind::AllToAllv | OpKind::Barrier) {
            shape = shape.with(Field::Count, self.count);
        }
        if self.kind != OpKind::Barrier {
            let dtype = DataType::from_raw(self.dtype)
                .map_or_else(|| self.dtype.to_string(), |d| d.name().into());
            shape = shape.with(Field::DataType, dtype);
        }
        if self.reduces() && self.op != Call::NOT_NOTED {
            let op = RedOp::from_raw(self.op)
                .map_or_else(|| format!("redop {}", self.op), |o| o.name().into());
            shape = shape.with(Field::Operator, op);
        }
        match self.kind {
            OpKind::Send | OpKind::Recv => shape.with(Field::Peer, self.root),
            _ if self.rooted() => shape.with(Field::Root, self.root),
            _ => shape,
        }
    }

    pub(crate) fn reduces(&self) -> bool {
        matches!(
            self.kind,
            OpKind::AllReduce | OpKind::Reduce | OpKind::ReduceScatter
        )
    }

    pub(crate) fn rooted(&self) -> bool {
        matches!(
            self.kind,
            OpKind::Broadcast
                | OpKind::Reduce
                | OpKind::Gather
                | OpKind::Scatter
                | OpKind::Send
                | OpKind::Recv
        )
    }

    /// Blocks of `count` elements that this rank reads and writes.
    fn blocks(&self, rank: u32, nranks: u32) -> (usize, usize) {
        let n = nranks as usize;
        let at_root = |blocks| if self.root == rank as i32 { blocks } else { 0 };
        match self.kind {
            OpKind::AllReduce => (1, 1),
            OpKind::Broadcast => (at_root(1), 1),
            OpKind::Reduce => (1, at_root(1)),
            OpKind::AllGather => (1, n),
            OpKind::ReduceScatter => (n, 1),
            OpKind::Gather => (1, at_root(n)),
            OpKind::Scatter => (at_root(n), 1),
            OpKind::AllToAll => (n, n),
            OpKind::Send => (1, 0),
            OpKind::Recv => (0, 1),
            OpKind::AllToAllv | OpKind::Barrier => (0, 0),
        }
    }

    /// Whether root or peer is a rank of the communicator.
    fn check_root(&self, nranks: u32) -> Result<()> {
        if self.rooted() && !(0..nranks as i32).contains(&self.root) {
            let what = if matches!(self.kind, OpKind::Send | OpKind::Recv) {
                "peer"
            } else {
                "root"
            };
            return Err(Error::invalid_argument(format!(
                "{what} {} but the communicator has {} (ranks are \
                 communicator-local, from 0)",
                self.root,
                counted(nranks, "rank")
            )));
        }
        Ok(())
    }

    /// Everything that can be said against the arguments without asking a tier.
    pub(crate) fn check(&self, rank: u32, nranks: u32) -> Result<DataType> {
        if self.kind == OpKind::Barrier {
            return Ok(DataType::Int8);
        }
        let dtype = DataType::from_raw(self.dtype).ok_or_else(|| {
            Error::invalid_argument(format!(
                "{} is no data type (0 to {} are)",
                self.dtype,
                DataType::ALL.len() - 1
            ))
        })?;
        if self.reduces() && self.op < FIRST_CUSTOM_REDOP && RedOp::from_raw(self.op).is_none() {
            return Err(Error::invalid_argument(format!(
                "{} is no reduction operator (0 to {} are, and what \
                 flagosRedOpCreatePreMulSum gives)",
                self.op,
                RedOp::ALL.len() - 1
            )));
        }
        self.check_root(nranks)?;
        let n = nranks as usize;
        let largest = isize::MAX as usize / dtype.size();
        if self.kind == OpKind::AllToAllv {
            let names = ["sendcounts", "sdispls", "recvcounts", "rdispls"];
            if let Some(missing) = self.vector.iter().position(|p| p.is_null()) {
                return Err(Error::invalid_argument(format!(
                    "{} is NULL",
                    names[missing]
                )));
            }
            let sides = [
                (self.send.is_null(), "sendbuff", 0),
                (self.recv.is_null(), "recvbuff", 2),
            ];
            for (null, buffer, at) in sides {
                for peer in 0..n {
                    // SAFETY: not NULL, and the caller promised one entry per rank.
                    let (count, displ) = unsafe {
                        (
                            self.vector[at].add(peer).read_unaligned(),
                            self.vector[at + 1].add(peer).read_unaligned(),
                        )
                    };
                    if null && count > 0 {
                        return Err(Error::invalid_argument(format!(
                            "{buffer} is NULL but the count for rank {peer} is {count}"
                        )));
                    }
                    if count.checked_add(displ).is_none_or(|end| end > largest) {
                        return Err(Error::invalid_argument(format!(
                            "count {count} and displacement {displ} for rank {peer} are \
                             more than memory can hold"
                        )));
                    }
                }
            }
            return Ok(dtype);
        }
        let (read, written) = self.blocks(rank, nranks);
        if self.count.checked_mul(n).is_none_or(|all| all > largest) {
            return Err(Error::invalid_argument(format!(
                "a count of {} elements of {} bytes on {} is more than memory can hold",
                self.count,
                dtype.size(),
                counted(nranks, "rank")
            )));
        }
        if self.count > 0 {
            for (blocks, null, buffer) in [
                (read, self.send.is_null(), "sendbuff"),
                (written, self.recv.is_null(), "recvbuff"),
            ] {
                if blocks > 0 && null {
                    return Err(Error::invalid_argument(format!(
                        "{buffer} is NULL but the count is {}",
                        self.count
                    )));
                }
            }
        }
        Ok(dtype)
    }
}

pub(crate) type Buf = *const c_void;
pub(crate) type BufMut = *mut c_void;
type Counts = *const usize;

/// How a tier answers. The argument orders are those of the C functions, so that an entry that has
/// found the communicator can jump on; every function returns a C result code and has recorded the
/// text of an error.
#[derive(Debug)]
#[allow(clippy::type_complexity)]
pub(crate) struct Ops {
    pub all_reduce:
        unsafe extern "C" fn(Buf, BufMut, usize, i32, i32, &'static Target, BufMut) -> i32,
    pub broadcast:
        unsafe extern "C" fn(Buf, BufMut, usize, i32, i32, &'static Target, BufMut) -> i32,
    pub reduce:
        unsafe extern "C" fn(Buf, BufMut, usize, i32, i32, i32, &'static Target, BufMut) -> i32,
    pub all_gather: unsafe extern "C" fn(Buf, BufMut, usize, i32, &'static Target, BufMut) -> i32,
    pub reduce_scatter:
        unsafe extern "C" fn(Buf, BufMut, usize, i32, i32, &'static Target, BufMut) -> i32,
    pub gather: unsafe extern "C" fn(Buf, BufMut, usize, i32, i32, &'static Target, BufMut) -> i32,
    pub scatter: unsafe extern "C" fn(Buf, BufMut, usize, i32, i32, &'static Target, BufMut) -> i32,
    pub all_to_all: unsafe extern "C" fn(Buf, BufMut, usize, i32, &'static Target, BufMut) -> i32,
    pub all_to_allv: unsafe extern "C" fn(
        Buf,
        Counts,
        Counts,
        BufMut,
        Counts,
        Counts,
        i32,
        &'static Target,
        BufMut,
    ) -> i32,
    pub send: unsafe extern "C" fn(Buf, usize, i32, i32, &'static Target, BufMut) -> i32,
    pub recv: unsafe extern "C" fn(BufMut, usize, i32, i32, &'static Target, BufMut) -> i32,
    pub barrier: unsafe extern "C" fn(&'static Target, BufMut) -> i32,
}

/// The short path is open only for libraries that have all operators under our numbers.
const REDOPS: u32 = RedOp::ALL.len() as u32;

/// Whether buffers and count are beyond doubt: neither buffer is NULL and the count is below 2^56.
/// A buffer with a tag in its address is looked at closely too, which costs time and nothing else.
#[inline(always)]
fn plain(send: Buf, recv: Buf, count: usize) -> bool {
    let doubtful = send.addr().wrapping_sub(1) | recv.addr().wrapping_sub(1) | count;
    (doubtful as u64) >> 56 == 0
}

macro_rules! slots {
    ($($field:ident: $need:ident ($($arg:ty),*);)*) => {
        /// The short path: a library's functions with the uniform signatures, copied to where an
        /// entry finds them at once, and the limits within which arguments are beyond doubt. All
        /// limits are 0 while there is no such library: then every call goes through the table.
        #[repr(C)]
        pub(crate) struct Slots {
            comm: AtomicPtr<c_void>,
            /// Data types below this number have the library's number for theirs and are there.
            dtypes: AtomicU32,
            /// Data types of the functions that came late; 0 where one of them is missing.
            late_dtypes: AtomicU32,
            $($field: AtomicPtr<c_void>,)*
        }

        /// What fills the slots.
        pub(crate) struct Fill {
            pub comm: *mut c_void,
            pub dtypes: u32,
            $(pub $field: slot_type!($need, unsafe extern "C" fn($($arg),*) -> i32),)*
        }

        impl Slots {
            const fn empty() -> Slots {
                Slots {
                    comm: AtomicPtr::new(std::ptr::null_mut()),
                    dtypes: AtomicU32::new(0),
                    late_dtypes: AtomicU32::new(0),
                    $($field: AtomicPtr::new(std::ptr::null_mut()),)*
                }
            }

            /// Opens the short path.
            pub(crate) fn fill(&self, fill: Fill) {
                let late = fill.gather.is_some()
                    && fill.scatter.is_some()
                    && fill.all_to_all.is_some();
                self.comm.store(fill.comm, Ordering::Relaxed);
                $(self.$field.store(slot_address!($need, fill.$field), Ordering::Relaxed);)*
                self.late_dtypes.store(if late { fill.dtypes } else { 0 }, Ordering::Relaxed);
                self.dtypes.store(fill.dtypes, Ordering::Release);
            }

            /// Closes it.
            fn close(&self) {
                self.dtypes.store(0, Ordering::Release);
                self.late_dtypes.store(0, Ordering::Release);
            }

            $(
                #[inline(always)]
                fn $field(&self) -> unsafe extern "C" fn($($arg),*) -> i32 {
                    let function = self.$field.load(Ordering::Relaxed);
                    // SAFETY: the limits let a call through only after `fill` has stored functions
                    // of this type here.
                    unsafe { std::mem::transmute::<*mut c_void, _>(function) }
                }
            )*
        }
    };
}

macro_rules! slot_type {
    (early, $f:ty) => { $f };
    (late, $f:ty) => { Option<$f> };
}

macro_rules! slot_address {
    (early, $f:expr) => {
        $f as *mut c_void
    };
    (late, $f:expr) => {
        $f.map_or(std::ptr::null_mut(), |f| f as *mut c_void)
    };
}

slots! {
    all_reduce: early (Buf, BufMut, usize, i32, i32, BufMut, BufMut);
    broadcast: early (Buf, BufMut, usize, i32, i32, BufMut, BufMut);
    reduce: early (Buf, BufMut, usize, i32, i32, i32, BufMut, BufMut);
    all_gather: early (Buf, BufMut, usize, i32, BufMut, BufMut);
    reduce_scatter: early (Buf, BufMut, usize, i32, i32, BufMut, BufMut);
    send: early (Buf, usize, i32, i32, BufMut, BufMut);
    recv: early (BufMut, usize, i32, i32, BufMut, BufMut);
    gather: late (Buf, BufMut, usize, i32, i32, BufMut, BufMut);
    scatter: late (Buf, BufMut, usize, i32, i32, BufMut, BufMut);
    all_to_all: late (Buf, BufMut, usize, i32, BufMut, BufMut);
}

/// What an error text needs of a call that the vendor refused. It is written to the stack before
/// the vendor's call, by volatile writes: kept in registers over the call, it would cost as many
/// pushes and pops on every call that succeeds.
#[repr(C)]
struct Noted {
    target: *const Target,
    count: usize,
    dtype: i32,
    /// The root or peer, else the operator.
    detail: i32,
}

/// Added to the code of a call whose error is recorded already. No vendor has results so large.
pub(crate) const TOLD: i32 = 0x4000_0000;

#[cold]
#[inline(never)]
extern "C" fn failed(noted: &Noted, kind: OpKind, result: i32) -> i32 {
    if result >= TOLD {
        return result - TOLD;
    }
    // SAFETY: written from a `&'static Target` by the short path.
    let target: &'static Target = unsafe { &*noted.target };
    guarded(target, || match target.native.explain(kind, result) {
        // The vendor's number for it need not be ours.
        None => Code::InProgress as i32,
        Some(error) => {
            let mut call = Call::new(kind);
            (call.count, call.dtype, call.op, call.root) =
                (noted.count, noted.dtype, noted.detail, noted.detail);
            if kind == OpKind::Reduce {
                call.op = Call::NOT_NOTED;
            }
            // The library checks roots by itself; the words for a bad one are ours.
            let refused = call.check_root(target.nranks()).err();
            target.refuse(&call, refused.unwrap_or(error))
        }
    })
}

/// One operation: arguments that are beyond doubt go straight to the library, everything else
/// through the tier's table. Roots of collectives are left to the library, which checks them.
/// `limit`: the field of [`Slots`] that the data type must be below.
/// `fine`: what else must hold.
macro_rules! short {
    (
        $name:ident, $kind:ident, $limit:ident, $detail:ident,
        ($($arg:ident: $ty:ty),*),
        |$port:ident, $target:ident, $count:ident, $dtype:ident| $fine:expr
    ) => {
        #[doc = concat!("[`OpKind::", stringify!($kind), "`].")]
        ///
        /// # Safety
        /// The buffers must be what the C header asks for.
        #[inline(always)]
        #[allow(clippy::too_many_arguments)]
        pub(crate) unsafe fn $name(
            $($arg: $ty,)*
            $target: &'static Target,
            stream: *mut c_void,
        ) -> i32 {
            let $port = &$target.slots;
            if ($dtype as u32) >= $port.$limit.load(Ordering::Relaxed)
                || !$fine
            {
                // SAFETY: the caller's promise, passed on.
                return unsafe { ($target.ops().$name)($($arg,)* $target, stream) };
            }
            $target.count_operation(OpKind::$kind);
            let mut noted = MaybeUninit::<Noted>::uninit();
            let at = noted.as_mut_ptr();
            // SAFETY: each write goes to a field of the local above.
            unsafe {
                (&raw mut (*at).target).write_volatile($target);
                (&raw mut (*at).count).write_volatile($count);
                (&raw mut (*at).dtype).write_volatile($dtype);
                (&raw mut (*at).detail).write_volatile($detail);
            }
            // SAFETY: the vendor's function with its ABI; the buffers are the caller's promise.
            let result = unsafe { ($port.$name())($($arg,)* $port.comm.load(Ordering::Relaxed), stream) };
            if result != 0 {
                // SAFETY: every field was written above.
                return failed(unsafe { noted.assume_init_ref() }, OpKind::$kind, result);
            }
            result
        }
    };
}

short!(
    all_reduce, AllReduce, dtypes, op,
    (send: Buf, recv: BufMut, count: usize, dtype: i32, op: i32),
    |port, target, count, dtype| ((op as u32) < REDOPS && plain(send, recv, count))
);
short!(
    reduce_scatter, ReduceScatter, dtypes, op,
    (send: Buf, recv: BufMut, count: usize, dtype: i32, op: i32),
    |port, target, count, dtype| ((op as u32) < REDOPS && plain(send, recv, count))
);
short!(
    reduce, Reduce, dtypes, root,
    (send: Buf, recv: BufMut, count: usize, dtype: i32, op: i32, root: i32),
    |port, target, count, dtype| ((op as u32) < REDOPS
        && plain(send, recv, count))
);
short!(
    all_gather, AllGather, dtypes, dtype,
    (send: Buf, recv: BufMut, count: usize, dtype: i32),
    |port, target, count, dtype| (plain(send, recv, count))
);
short!(
    broadcast, Broadcast, dtypes, root,
    (send: Buf, recv: BufMut, count: usize, dtype: i32, root: i32),
    |port, target, count, dtype| plain(send, recv, count)
);
short!(
    gather, Gather, late_dtypes, root,
    (send: Buf, recv: BufMut, count: usize, dtype: i32, root: i32),
    |port, target, count, dtype| plain(send, recv, count)
);
short!(
    scatter, Scatter, late_dtypes, root,
    (send: Buf, recv: BufMut, count: usize, dtype: i32, root: i32),
    |port, target, count, dtype| plain(send, recv, count)
);
short!(
    all_to_all, AllToAll, late_dtypes, dtype,
    (send: Buf, recv: BufMut, count: usize, dtype: i32),
    |port, target, count, dtype| (plain(send, recv, count) && !std::ptr::eq(send, recv))
);
short!(
    send, Send, dtypes, peer,
    (send: Buf, count: usize, dtype: i32, peer: i32),
    |port, target, count, dtype| ((peer as u32) < target.nranks() && plain(send, send, count))
);
short!(
    recv, Recv, dtypes, peer,
    (recv: BufMut, count: usize, dtype: i32, peer: i32),
    |port, target, count, dtype| ((peer as u32) < target.nranks() && plain(recv, recv, count))
);

/// [`OpKind::Barrier`].
///
/// # Safety
/// `stream` must be a stream of the communicator.
#[inline(always)]
pub(crate) unsafe fn barrier(target: &'static Target, stream: *mut c_void) -> i32 {
    // SAFETY: the caller's promise, passed on.
    unsafe { (target.ops().barrier)(target, stream) }
}

/// A custom reduction operator of one communicator.
#[derive(Clone, Debug)]
pub(crate) struct CustomRedOp {
    pub dtype: DataType,
    pub scalar: [u8; 8],
    /// The vendor's number for it, on a vendor's tier.
    pub vendor: i32,
}

/// What an operation needs of its communicator: the tier's table and what its functions read.
/// Lives in reserved memory that is never freed, so that a late call finds a closed table and
/// never a dangling pointer. Its initial state is all zero bytes, which cost nothing in the file.
#[repr(C)]
pub(crate) struct Target {
    ops: AtomicPtr<Ops>,
    pub slots: Slots,
    /// Collectives so far: the same number on all ranks, as each takes part in all of them.
    collectives: AtomicU64,
    pub rank: AtomicU32,
    pub nranks: AtomicU32,
    /// Messages so far; for error texts.
    messages: AtomicU32,
    /// The communicator's device, -1 for none.
    pub device: AtomicI32,
    /// The vendor's functions and its communicator, on the native tier.
    pub native: crate::vendor::NativePort,
    /// The host tier's runner.
    pub host: HostPort,
    cold: Mutex<Option<Box<Cold>>>,
}

/// What only errors and custom operators need.
#[derive(Default)]
struct Cold {
    /// "communicator 'name', rank 1 of 4".
    label: String,
    last_error: String,
    redops: Vec<Option<CustomRedOp>>,
    /// Why the library itself has ended the communicator's work, if it has.
    ended: Option<Error>,
    /// See [`Target::on_break`].
    on_break: Option<OnBreak>,
    /// See [`Target::keep_break`].
    kept_break: Option<Error>,
}

/// See [`Target::on_break`].
type OnBreak = Arc<dyn Fn(&Error) + Send + Sync>;

/// How many operations a rank has made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Issued {
    pub collectives: u64,
    pub messages: u32,
}

impl Issued {
    /// Operations of every kind.
    pub(crate) fn all(self) -> u64 {
        self.collectives + u64::from(self.messages)
    }

    /// The number of the last operation of a kind.
    pub(crate) fn of(self, kind: OpKind) -> u64 {
        match kind {
            OpKind::Send | OpKind::Recv => self.messages.into(),
            _ => self.collectives,
        }
    }
}

/// What is said with an error that leaves the communicator usable.
const UNTOLD: &str = "the other ranks were not told, since such a call is mostly wrong on all of them: \
                      those that have made it wait for this rank until the communicator is aborted \
                      (flagosCommAbort)";

/// Whether an error of a vendor's library means that its communicator is of no use any more. The others
/// are about the call.
pub(crate) fn breaks(code: Code) -> bool {
    match code {
        Code::UnhandledDeviceError
        | Code::SystemError
        | Code::InternalError
        | Code::RemoteError
        | Code::UnhandledCclError
        | Code::Timeout => true,
        Code::InvalidArgument
        | Code::InvalidUsage
        | Code::NotSupported
        | Code::InProgress
        | Code::Aborted
        | Code::UnboundDevice => false,
    }
}

impl Target {
    pub(crate) const fn new() -> Target {
        Target {
            ops: AtomicPtr::new(std::ptr::null_mut()),
            slots: Slots::empty(),
            native: crate::vendor::NativePort::new(),
            host: HostPort::new(),
            rank: AtomicU32::new(0),
            nranks: AtomicU32::new(0),
            collectives: AtomicU64::new(0),
            messages: AtomicU32::new(0),
            device: AtomicI32::new(0),
            cold: Mutex::new(None),
        }
    }

    /// The table in force; that of NULL for a place that was never used.
    #[inline(always)]
    pub(crate) fn ops(&self) -> &'static Ops {
        // SAFETY: null, or a table that `set_ops` has stored; tables live for ever.
        unsafe { self.ops.load(Ordering::Acquire).as_ref() }.unwrap_or(&NULL)
    }

    /// Puts a table in force; the closed one closes the short path too.
    pub(crate) fn set_ops(&self, ops: &'static Ops) {
        if std::ptr::eq(ops, &CLOSED) || std::ptr::eq(ops, &FINALIZED) {
            self.slots.close();
        }
        self.ops
            .store(std::ptr::from_ref(ops).cast_mut(), Ordering::Release);
    }

    /// Makes the target ready for a new communicator.
    pub(crate) fn reset(&self, label: String, rank: u32, nranks: u32) {
        self.rank.store(rank, Ordering::Relaxed);
        self.nranks.store(nranks, Ordering::Relaxed);
        self.set_counts(Issued::default());
        *lock(&self.cold) = Some(Box::new(Cold {
            label,
            ..Cold::default()
        }));
    }

    fn with_cold<R>(&self, body: impl FnOnce(&mut Cold) -> R) -> R {
        body(lock(&self.cold).get_or_insert_default())
    }

    pub(crate) fn rank(&self) -> u32 {
        self.rank.load(Ordering::Relaxed)
    }

    pub(crate) fn nranks(&self) -> u32 {
        self.nranks.load(Ordering::Relaxed)
    }

    /// Counts an operation; one thread at a time issues operations of a communicator.
    #[inline(always)]
    pub(crate) fn count_operation(&self, kind: OpKind) {
        self.count(kind, 1);
    }

    /// Takes back the count of a call that has launched nothing here, so that numbers stay the same on all
    /// ranks, and a rank that leaves says how far it has really come.
    pub(crate) fn uncount_operation(&self, kind: OpKind) {
        self.count(kind, -1);
    }

    /// Counts so many collectives and messages.
    pub(crate) fn count_launched(&self, collectives: usize, messages: usize) {
        let now = self.counts();
        self.set_counts(Issued {
            collectives: now.collectives.wrapping_add(collectives as u64),
            messages: now.messages.wrapping_add(messages as u32),
        });
    }

    #[inline(always)]
    fn count(&self, kind: OpKind, by: i32) {
        match kind {
            OpKind::Send | OpKind::Recv => {
                let n = self.messages.load(Ordering::Relaxed);
                self.messages
                    .store(n.wrapping_add_signed(by), Ordering::Relaxed);
            }
            _ => {
                let n = self.collectives.load(Ordering::Relaxed);
                self.collectives
                    .store(n.wrapping_add_signed(by.into()), Ordering::Relaxed);
            }
        }
    }

    /// What was counted so far.
    pub(crate) fn counts(&self) -> Issued {
        Issued {
            collectives: self.collectives.load(Ordering::Relaxed),
            messages: self.messages.load(Ordering::Relaxed),
        }
    }

    /// Goes back to what was counted before calls that were not launched.
    pub(crate) fn set_counts(&self, counts: Issued) {
        self.collectives
            .store(counts.collectives, Ordering::Relaxed);
        self.messages.store(counts.messages, Ordering::Relaxed);
    }

    /// "AllReduce(count 5, float32, sum) #3 on communicator 'name', rank 1 of 4".
    pub(crate) fn call_text(&self, call: &Call) -> String {
        format!(
            "{} #{} on {}",
            call.text(),
            self.counts().of(call.kind),
            self.with_cold(|cold| cold.label.clone())
        )
    }

    /// Records an error for this thread and the communicator, with what it was about.
    #[cold]
    pub(crate) fn fail_call(&self, call: &Call, error: Error) -> i32 {
        let text = self.call_text(call);
        // That it was aborted is not the whole story if the library did it.
        let ended = match error.code() {
            Code::Aborted => self.with_cold(|cold| cold.ended.clone()),
            _ => None,
        };
        // A program that revokes knows that.
        let ended = ended.filter(|ended| ended.code() != Code::InvalidUsage);
        self.fail(ended.unwrap_or(error).context(text))
    }

    /// As [`Target::fail_call`], for a call on a vendor's tier that has launched nothing here, while the
    /// other ranks may have launched their parts and wait for this one: they are told if that ends the
    /// communicator, and else it is not counted.
    #[cold]
    pub(crate) fn refuse(&self, call: &Call, error: Error) -> i32 {
        if breaks(error.code()) {
            let error = error.context(self.call_text(call));
            self.broke(&error);
            return self.fail(error);
        }
        let code = self.fail_call(call, self.untold(error));
        self.uncount_operation(call.kind);
        code
    }

    /// The error of something that this rank alone may have been refused, with what that means for the
    /// others.
    pub(crate) fn untold(&self, error: Error) -> Error {
        match error.code() {
            Code::InvalidArgument | Code::InvalidUsage | Code::NotSupported
                if self.nranks() > 1 =>
            {
                let text = format!("{}; {UNTOLD}", error.text());
                Error::new(error.code(), text)
            }
            _ => error,
        }
    }

    /// Installs what is to be done when the vendor's communicator has become unusable.
    pub(crate) fn on_break(&self, act: impl Fn(&Error) + Send + Sync + 'static) {
        self.with_cold(|cold| cold.on_break = Some(Arc::new(act)));
    }

    /// The vendor's communicator has become unusable, which the other ranks have to know.
    pub(crate) fn broke(&self, error: &Error) {
        if let Some(act) = self.with_cold(|cold| cold.on_break.clone()) {
            act(error);
        }
    }

    /// Records why the library itself ends the communicator's work: calls under way and later ones say so.
    pub(crate) fn end(&self, error: Error) {
        self.with_cold(|cold| {
            error.text().clone_into(&mut cold.last_error);
            cold.ended.get_or_insert(error);
        });
    }

    /// Keeps for later what has made the vendor's communicator unusable.
    pub(crate) fn keep_break(&self, error: &Error) {
        self.with_cold(|cold| cold.kept_break = cold.kept_break.take().or(Some(error.clone())));
    }

    /// Acts on what was kept.
    pub(crate) fn act_on_kept_break(&self) {
        if let Some(error) = self.with_cold(|cold| cold.kept_break.take()) {
            self.broke(&error);
        }
    }

    /// Records an error for this thread and the communicator.
    #[cold]
    pub(crate) fn fail(&self, error: Error) -> i32 {
        log::info!("{error}");
        last::record(&error);
        self.with_cold(|cold| error.text().clone_into(&mut cold.last_error));
        error.code() as i32
    }

    pub(crate) fn last_error(&self) -> String {
        self.with_cold(|cold| cold.last_error.clone())
    }

    /// Adds a custom operator and gives its number.
    pub(crate) fn add_redop(&self, redop: CustomRedOp) -> i32 {
        self.with_cold(|cold| {
            cold.redops.push(Some(redop));
            FIRST_CUSTOM_REDOP + (cold.redops.len() - 1) as i32
        })
    }

    /// Takes a custom operator out; its number is not used again.
    pub(crate) fn remove_redop(&self, op: i32) -> Option<CustomRedOp> {
        let index = usize::try_from(op.checked_sub(FIRST_CUSTOM_REDOP)?).ok()?;
        self.with_cold(|cold| cold.redops.get_mut(index)?.take())
    }

    /// The custom operator with this number, if its data type is the call's.
    pub(crate) fn redop(&self, op: i32, dtype: DataType) -> Result<CustomRedOp> {
        let index = usize::try_from(op - FIRST_CUSTOM_REDOP).ok();
        let found =
            index.and_then(|i| self.with_cold(|cold| cold.redops.get(i).cloned().flatten()));
        let redop = found.ok_or_else(|| {
            Error::invalid_argument(format!(
                "{op} is no live reduction operator of this communicator"
            ))
        })?;
        if redop.dtype != dtype {
            return Err(Error::invalid_argument(format!(
                "the reduction operator was made for {} but the call has {}",
                redop.dtype.name(),
                dtype.name()
            )));
        }
        Ok(redop)
    }
}

/// Locks; a panic of another thread while it held the lock has not broken these values.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Sends a collected call through a table.
///
/// # Safety
/// The call's pointers must be what the C header asks for.
pub(crate) unsafe fn dispatch(target: &'static Target, call: &Call) -> i32 {
    let ops = target.ops();
    let Call {
        send,
        recv,
        count,
        dtype,
        op,
        root,
        stream,
        ..
    } = *call;
    // SAFETY: the caller's promise about the pointers, passed on.
    unsafe {
        match call.kind {
            OpKind::AllReduce => (ops.all_reduce)(send, recv, count, dtype, op, target, stream),
            OpKind::Broadcast => (ops.broadcast)(send, recv, count, dtype, root, target, stream),
            OpKind::Reduce => (ops.reduce)(send, recv, count, dtype, op, root, target, stream),
            OpKind::AllGather => (ops.all_gather)(send, recv, count, dtype, target, stream),
            OpKind::ReduceScatter => {
                (ops.reduce_scatter)(send, recv, count, dtype, op, target, stream)
            }
            OpKind::Gather => (ops.gather)(send, recv, count, dtype, root, target, stream),
            OpKind::Scatter => (ops.scatter)(send, recv, count, dtype, root, target, stream),
            OpKind::AllToAll => (ops.all_to_all)(send, recv, count, dtype, target, stream),
            OpKind::AllToAllv => {
                let [sc, sd, rc, rd] = call.vector;
                (ops.all_to_allv)(send, sc, sd, recv, rc, rd, dtype, target, stream)
            }
            OpKind::Send => (ops.send)(send, count, dtype, root, target, stream),
            OpKind::Recv => (ops.recv)(recv, count, dtype, root, target, stream),
            OpKind::Barrier => (ops.barrier)(target, stream),
        }
    }
}

/// One function of such a table: see [`collecting_ops`].
macro_rules! collect {
    ($handler:path, $kind:ident $(, $arg:ident: $ty:ty => $field:ident)*) => {{
        #[allow(clippy::too_many_arguments)]
        unsafe extern "C" fn f(
            $($arg: $ty,)*
            target: &'static $crate::ops::Target,
            stream: *mut std::ffi::c_void,
        ) -> i32 {
            let mut call = $crate::ops::Call::new($crate::types::OpKind::$kind);
            $(call.$field = $arg;)*
            call.stream = stream;
            // SAFETY: the caller's promise about the buffers, passed on.
            $crate::ops::guarded(target, || unsafe { $handler(target, &call) })
        }
        f
    }};
}
pub(crate) use collect;

/// Makes a table whose functions collect their arguments into a [`Call`] and hand it to one
/// function of the tier.
macro_rules! collecting_ops {
    ($handler:path) => {{
        use $crate::ops::{Buf, BufMut};
        $crate::ops::Ops {
            all_reduce: $crate::ops::collect!($handler, AllReduce, s: Buf => send, r: BufMut => recv,
                n: usize => count, d: i32 => dtype, o: i32 => op),
            broadcast: $crate::ops::collect!($handler, Broadcast, s: Buf => send, r: BufMut => recv,
                n: usize => count, d: i32 => dtype, p: i32 => root),
            reduce: $crate::ops::collect!($handler, Reduce, s: Buf => send, r: BufMut => recv,
                n: usize => count, d: i32 => dtype, o: i32 => op, p: i32 => root),
            all_gather: $crate::ops::collect!($handler, AllGather, s: Buf => send, r: BufMut => recv,
                n: usize => count, d: i32 => dtype),
            reduce_scatter: $crate::ops::collect!($handler, ReduceScatter, s: Buf => send, r: BufMut => recv,
                n: usize => count, d: i32 => dtype, o: i32 => op),
            gather: $crate::ops::collect!($handler, Gather, s: Buf => send, r: BufMut => recv,
                n: usize => count, d: i32 => dtype, p: i32 => root),
            scatter: $crate::ops::collect!($handler, Scatter, s: Buf => send, r: BufMut => recv,
                n: usize => count, d: i32 => dtype, p: i32 => root),
            all_to_all: $crate::ops::collect!($handler, AllToAll, s: Buf => send, r: BufMut => recv,
                n: usize => count, d: i32 => dtype),
            all_to_allv: {
                #[allow(clippy::too_many_arguments)]
                unsafe extern "C" fn f(
                    send: Buf,
                    send_counts: *const usize,
                    send_displs: *const usize,
                    recv: BufMut,
                    recv_counts: *const usize,
                    recv_displs: *const usize,
                    dtype: i32,
                    target: &'static $crate::ops::Target,
                    stream: BufMut,
                ) -> i32 {
                    let mut call = $crate::ops::Call::new($crate::types::OpKind::AllToAllv);
                    (call.send, call.recv, call.dtype, call.stream) = (send, recv, dtype, stream);
                    call.vector = [send_counts, send_displs, recv_counts, recv_displs];
                    // SAFETY: the caller's promise about the buffers, passed on.
                    $crate::ops::guarded(target, || unsafe { $handler(target, &call) })
                }
                f
            },
            send: $crate::ops::collect!($handler, Send, s: Buf => send, n: usize => count, d: i32 => dtype,
                p: i32 => root),
            recv: $crate::ops::collect!($handler, Recv, r: BufMut => recv, n: usize => count, d: i32 => dtype,
                p: i32 => root),
            barrier: $crate::ops::collect!($handler, Barrier),
        }
    }};
}
pub(crate) use collecting_ops;

/// Runs what may panic; a panic becomes `InternalError` with its text. The functions of the tables
/// are C functions, which nothing may unwind out of.
#[inline(always)]
pub(crate) fn guarded(target: &'static Target, body: impl FnOnce() -> i32) -> i32 {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
        Ok(code) => code,
        Err(payload) => panicked(target, payload.as_ref()),
    }
}

#[cold]
#[inline(never)]
fn panicked(target: &'static Target, payload: &(dyn std::any::Any + Send)) -> i32 {
    let text = payload
        .downcast_ref::<&'static str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no text");
    target.fail(Error::internal(format!(
        "panicked: {text}. This is a fault of flagos-comm, please report it"
    )))
}

unsafe fn null(target: &'static Target, call: &Call) -> i32 {
    let error = Error::invalid_argument("the communicator is NULL").context(call.kind.name());
    let _ = target;
    last::record(&error);
    error.code() as i32
}

unsafe fn closed(target: &'static Target, call: &Call) -> i32 {
    let closed = "the communicator is being closed, was aborted or revoked";
    let ended = target.with_cold(|cold| cold.ended.clone());
    // Its own number, although it is not counted.
    target.count_operation(call.kind);
    let ended = ended.map(|error| match error.code() {
        // What this rank has done itself.
        Code::InvalidUsage => error,
        _ => error.context("the communicator has failed"),
    });
    let code = target.fail_call(call, ended.unwrap_or_else(|| Error::invalid_usage(closed)));
    target.uncount_operation(call.kind);
    code
}

unsafe fn finalized(target: &'static Target, call: &Call) -> i32 {
    target.fail_call(
        call,
        Error::invalid_usage("the communicator was finalized: it can only be destroyed"),
    )
}

unsafe fn initialising(target: &'static Target, call: &Call) -> i32 {
    target.fail_call(
        call,
        Error::invalid_usage(
            "the communicator is still being initialised: wait until flagosCommGetAsyncError no \
             longer says InProgress, or until the outermost flagosGroupEnd has returned",
        ),
    )
}

unsafe fn on_host(target: &'static Target, call: &Call) -> i32 {
    target.count_operation(call.kind);
    // SAFETY: the caller's promise about the buffers, passed on.
    match unsafe { crate::host::port::run(target, call) } {
        Ok(()) => 0,
        Err(error) => {
            let code = target.fail_call(call, error);
            let wrong = call.check(target.rank(), target.nranks()).is_err();
            if wrong || Code::from_raw(code).is_some_and(refused_on_host) {
                target.uncount_operation(call.kind);
            }
            code
        }
    }
}

/// Whether an error of the host tier with this code means that nothing was begun: the engine has not counted the
/// call then, and the numbers in texts of either are to be the same.
pub(crate) fn refused_on_host(code: Code) -> bool {
    matches!(code, Code::InvalidArgument | Code::NotSupported)
}

/// A function of the host tier's table for which there is a shorter way: of a few bytes an operation is so short that
/// collecting arguments would be half of it.
macro_rules! short_on_host {
    ($port:path, $kind:ident $(, $arg:ident: $ty:ty => $field:ident)*) => {{
        #[allow(clippy::too_many_arguments)]
        unsafe extern "C" fn f(
            $($arg: $ty,)*
            target: &'static Target,
            stream: BufMut,
        ) -> i32 {
            guarded(target, || {
                let call = || {
                    let mut call = Call::new(OpKind::$kind);
                    $(call.$field = $arg;)*
                    call.stream = stream;
                    call
                };
                // SAFETY: the caller's promise about the buffers, passed on.
                unsafe {
                    match $port(target, &call(), call) {
                        Some(Ok(())) => 0,
                        Some(Err(error)) => target.fail_call(&call(), error),
                        None => on_host(target, &call()),
                    }
                }
            })
        }
        f
    }};
}

/// The table of no communicator.
static NULL: Ops = collecting_ops!(null);
/// The table of a communicator that is no longer, or not any more, in use.
pub(crate) static CLOSED: Ops = collecting_ops!(closed);
/// The table of a communicator after its finalize.
pub(crate) static FINALIZED: Ops = collecting_ops!(finalized);
/// The table of a communicator whose init goes on.
pub(crate) static INITIALISING: Ops = collecting_ops!(initialising);
/// The host tier's table.
pub(crate) static HOST: Ops = {
    use crate::host::port::{short, tiny};
    Ops {
        all_reduce: short_on_host!(tiny, AllReduce, s: Buf => send, r: BufMut => recv, n: usize => count,
            d: i32 => dtype, o: i32 => op),
        broadcast: short_on_host!(tiny, Broadcast, s: Buf => send, r: BufMut => recv, n: usize => count,
            d: i32 => dtype, p: i32 => root),
        all_gather: short_on_host!(tiny, AllGather, s: Buf => send, r: BufMut => recv, n: usize => count,
            d: i32 => dtype),
        reduce_scatter: short_on_host!(tiny, ReduceScatter, s: Buf => send, r: BufMut => recv, n: usize => count,
            d: i32 => dtype, o: i32 => op),
        all_to_all: short_on_host!(tiny, AllToAll, s: Buf => send, r: BufMut => recv, n: usize => count,
            d: i32 => dtype),
        send: short_on_host!(short, Send, s: Buf => send, n: usize => count, d: i32 => dtype, p: i32 => root),
        recv: short_on_host!(short, Recv, r: BufMut => recv, n: usize => count, d: i32 => dtype, p: i32 => root),
        ..collecting_ops!(on_host)
    }
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    fn call(kind: OpKind) -> Call {
        let mut call = Call::new(kind);
        (call.send, call.recv) = (8 as Buf, 8 as BufMut);
        call.count = 4;
        call.dtype = 7;
        call
    }

    fn refused(call: &Call) -> String {
        let error = call.check(1, 4).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        error.text().to_owned()
    }

    #[test]
    fn numbers_outside_the_enums_are_refused_and_named() {
        for raw in [-1, 12, 99, i32::MAX, i32::MIN] {
            let mut c = call(OpKind::AllReduce);
            c.dtype = raw;
            assert!(refused(&c).contains(&format!("{raw} is no data type")));
        }
        for raw in [-1, 5, 99, 999, i32::MIN] {
            let mut c = call(OpKind::AllReduce);
            c.op = raw;
            assert!(refused(&c).contains(&format!("{raw} is no reduction operator")));
        }
    }

    #[test]
    fn roots_and_peers_are_communicator_local() {
        for kind in [
            OpKind::Broadcast,
            OpKind::Reduce,
            OpKind::Gather,
            OpKind::Scatter,
        ] {
            for root in [-1, 4, i32::MAX] {
                let mut c = call(kind);
                c.root = root;
                assert!(refused(&c).contains(&format!("root {root} but the communicator has 4")));
            }
        }
        let mut c = call(OpKind::Send);
        c.root = 5;
        assert!(refused(&c).contains("peer 5 but the communicator has 4 ranks"));
    }

    #[test]
    fn null_is_allowed_where_a_rank_uses_no_buffer_and_with_count_zero() {
        for kind in [OpKind::Reduce, OpKind::Gather] {
            let mut c = call(kind);
            c.recv = std::ptr::null_mut();
            assert!(c.check(1, 4).is_ok());
            assert!(c.check(0, 4).is_err());
        }
        for kind in [OpKind::Scatter, OpKind::Broadcast] {
            let mut c = call(kind);
            c.send = std::ptr::null();
            assert!(c.check(1, 4).is_ok());
            assert!(c.check(0, 4).is_err());
        }
        let mut c = call(OpKind::AllReduce);
        c.recv = std::ptr::null_mut();
        assert!(refused(&c).contains("recvbuff is NULL but the count is 4"));
        c.count = 0;
        assert!(c.check(1, 4).is_ok());
    }

    #[test]
    fn sizes_beyond_memory_are_refused_without_overflow() {
        for count in [1 << 62, usize::MAX, isize::MAX as usize] {
            for kind in [OpKind::AllReduce, OpKind::AllGather, OpKind::AllToAll] {
                let mut c = call(kind);
                c.count = count;
                assert!(refused(&c).contains("more than memory can hold"));
            }
        }
    }
}
