//! The short path of libraries whose numbers are not ours, or that broadcast in place only: between
//! `ops` and the library's functions stands one table look-up. An entry says which function is called
//! with what; for what the library does not have that is our way of saying why.

use super::Library;
use super::port::CLOSELY;
use super::symbols::{CommPtr, StreamPtr};
use crate::ops::{Fill, TOLD, Target};
use crate::types::{DataType, OpKind, RedOp};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

/// Places for data types: a power of two, so that one is found by a shift.
const DTYPES: usize = 16;
const PAIRS: usize = RedOp::ALL.len() * DTYPES;
const _: () = assert!(DataType::ALL.len() <= DTYPES);

type Buf = *const c_void;
type BufMut = *mut c_void;

type Reducing = unsafe extern "C" fn(Buf, BufMut, usize, c_int, c_int, CommPtr, StreamPtr) -> c_int;
type RootedReducing =
    unsafe extern "C" fn(Buf, BufMut, usize, c_int, c_int, c_int, CommPtr, StreamPtr) -> c_int;
type Rooted = unsafe extern "C" fn(Buf, BufMut, usize, c_int, c_int, CommPtr, StreamPtr) -> c_int;
type InPlace = unsafe extern "C" fn(BufMut, usize, c_int, c_int, CommPtr, StreamPtr) -> c_int;
type Plain = unsafe extern "C" fn(Buf, BufMut, usize, c_int, CommPtr, StreamPtr) -> c_int;
type Sending = unsafe extern "C" fn(Buf, usize, c_int, c_int, CommPtr, StreamPtr) -> c_int;
type Receiving = unsafe extern "C" fn(BufMut, usize, c_int, c_int, CommPtr, StreamPtr) -> c_int;

/// What becomes of a data type, and of an operator with it.
#[repr(C, align(32))]
struct Entry {
    function: AtomicPtr<c_void>,
    comm: AtomicPtr<c_void>,
    dtype: AtomicI32,
    op: AtomicI32,
}

impl Entry {
    const fn new() -> Entry {
        Entry {
            function: AtomicPtr::new(std::ptr::null_mut()),
            comm: AtomicPtr::new(std::ptr::null_mut()),
            dtype: AtomicI32::new(0),
            op: AtomicI32::new(0),
        }
    }

    fn set(&self, function: *mut c_void, comm: BufMut, dtype: c_int, op: c_int) {
        self.function.store(function, Ordering::Relaxed);
        self.comm.store(comm, Ordering::Relaxed);
        self.dtype.store(dtype, Ordering::Relaxed);
        self.op.store(op, Ordering::Relaxed);
    }

    fn function(&self) -> *mut c_void {
        self.function.load(Ordering::Relaxed)
    }

    fn comm(&self) -> CommPtr {
        self.comm.load(Ordering::Relaxed)
    }

    fn dtype(&self) -> c_int {
        self.dtype.load(Ordering::Relaxed)
    }

    fn op(&self) -> c_int {
        self.op.load(Ordering::Relaxed)
    }
}

/// One communicator's table. It is never freed, and used again by the next communicator at its place.
#[repr(C)]
pub(crate) struct Mapped {
    target: AtomicPtr<Target>,
    /// The in-place broadcast, where there is no other.
    bcast: Entries<DTYPES>,
    all_reduce: Entries<PAIRS>,
    reduce_scatter: Entries<PAIRS>,
    reduce: Entries<PAIRS>,
    all_gather: Entries<DTYPES>,
    broadcast: Entries<DTYPES>,
    gather: Entries<DTYPES>,
    scatter: Entries<DTYPES>,
    all_to_all: Entries<DTYPES>,
    send: Entries<DTYPES>,
    recv: Entries<DTYPES>,
}

struct Entries<const N: usize>([Entry; N]);

impl<const N: usize> Entries<N> {
    const fn new() -> Entries<N> {
        Entries([const { Entry::new() }; N])
    }
}

impl Entries<PAIRS> {
    /// # Safety
    /// Both numbers are below the limits of the short path.
    #[inline(always)]
    unsafe fn of(&self, op: c_int, dtype: c_int) -> &Entry {
        let at = op as u32 * DTYPES as u32 + dtype as u32;
        // SAFETY: the caller's promise: within the table.
        unsafe { self.0.get_unchecked(at as usize) }
    }
}

impl Entries<DTYPES> {
    /// # Safety
    /// The number is below the limit of the short path.
    #[inline(always)]
    unsafe fn of(&self, dtype: c_int) -> &Entry {
        // SAFETY: the caller's promise: within the table.
        unsafe { self.0.get_unchecked(dtype as u32 as usize) }
    }
}

impl Mapped {
    pub(crate) const fn new() -> Mapped {
        Mapped {
            target: AtomicPtr::new(std::ptr::null_mut()),
            bcast: Entries::new(),
            all_reduce: Entries::new(),
            reduce_scatter: Entries::new(),
            reduce: Entries::new(),
            all_gather: Entries::new(),
            broadcast: Entries::new(),
            gather: Entries::new(),
            scatter: Entries::new(),
            all_to_all: Entries::new(),
            send: Entries::new(),
            recv: Entries::new(),
        }
    }

    /// Fills it for a communicator; what the short path is to be filled with.
    pub(crate) fn fill(
        &'static self,
        target: &'static Target,
        library: &Library,
        comm: CommPtr,
    ) -> Fill {
        let (calls, symbols) = (&library.calls, &library.symbols);
        let own: BufMut = std::ptr::from_ref(self).cast_mut().cast();
        self.target
            .store(std::ptr::from_ref(target).cast_mut(), Ordering::Relaxed);
        let pairs = |entries: &Entries<PAIRS>, kind, function, closely| {
            for op in RedOp::ALL {
                let redop = library.redop(op, target.nranks());
                for dtype in DataType::ALL {
                    let entry = &entries.0[op as usize * DTYPES + dtype as usize];
                    let limited = library.within_limits(kind, dtype, Some(op));
                    match (&redop, library.dtype(dtype), limited) {
                        (Ok(redop), Ok(number), Ok(())) => {
                            entry.set(function, comm, number, *redop)
                        }
                        _ => entry.set(closely, own, dtype as c_int, op as c_int),
                    }
                }
            }
        };
        let moves = |entries: &Entries<DTYPES>, kind, function: Option<_>, closely| {
            for dtype in DataType::ALL {
                let entry = &entries.0[dtype as usize];
                let limited = library.within_limits(kind, dtype, None);
                match (function, library.dtype(dtype), limited) {
                    (Some(function), Ok(number), Ok(())) => entry.set(function, comm, number, 0),
                    _ => entry.set(closely, own, dtype as c_int, 0),
                }
            }
        };
        let working = |f: Option<Rooted>| f.filter(|_| !library.row.quirks.broken_gather);
        pairs(
            &self.all_reduce,
            OpKind::AllReduce,
            calls.all_reduce as BufMut,
            closely::all_reduce as BufMut,
        );
        pairs(
            &self.reduce_scatter,
            OpKind::ReduceScatter,
            calls.reduce_scatter as BufMut,
            closely::reduce_scatter as BufMut,
        );
        pairs(
            &self.reduce,
            OpKind::Reduce,
            calls.reduce as BufMut,
            closely::reduce as BufMut,
        );
        moves(
            &self.all_gather,
            OpKind::AllGather,
            Some(calls.all_gather as BufMut),
            closely::all_gather as BufMut,
        );
        let refused = closely::broadcast as BufMut;
        match symbols.broadcast {
            Some(f) => moves(
                &self.broadcast,
                OpKind::Broadcast,
                Some(f as BufMut),
                refused,
            ),
            None => {
                // Which data types there are, says the table of the in-place function.
                for dtype in DataType::ALL {
                    let entry = &self.broadcast.0[dtype as usize];
                    entry.set(broadcast_in_place as BufMut, own, dtype as c_int, 0);
                }
                let in_place = symbols.bcast.map(|f| f as BufMut);
                moves(
                    &self.bcast,
                    OpKind::Broadcast,
                    in_place,
                    std::ptr::null_mut(),
                );
            }
        }
        moves(
            &self.gather,
            OpKind::Gather,
            working(symbols.gather).map(|f| f as BufMut),
            closely::gather as BufMut,
        );
        moves(
            &self.scatter,
            OpKind::Scatter,
            working(symbols.scatter).map(|f| f as BufMut),
            closely::scatter as BufMut,
        );
        moves(
            &self.all_to_all,
            OpKind::AllToAll,
            symbols.all_to_all.map(|f| f as BufMut),
            closely::all_to_all as BufMut,
        );
        moves(
            &self.send,
            OpKind::Send,
            Some(calls.send as BufMut),
            closely::send as BufMut,
        );
        moves(
            &self.recv,
            OpKind::Recv,
            Some(calls.recv as BufMut),
            closely::recv as BufMut,
        );
        Fill {
            comm: own,
            dtypes: DataType::ALL.len() as u32,
            all_reduce,
            broadcast,
            reduce,
            all_gather,
            reduce_scatter,
            send,
            recv,
            gather: Some(gather),
            scatter: Some(scatter),
            all_to_all: Some(all_to_all),
        }
    }

    fn target(&self) -> &'static Target {
        // SAFETY: stored by `fill` from a `&'static Target` before the short path was opened.
        unsafe { &*self.target.load(Ordering::Relaxed) }
    }
}

/// The table behind the pointer that the short path passes.
///
/// # Safety
/// It is what [`Mapped::fill`] gave to the short path.
#[inline(always)]
unsafe fn table(mapped: BufMut) -> &'static Mapped {
    // SAFETY: the caller's promise; the memory is never freed.
    unsafe { &*mapped.cast::<Mapped>() }
}

unsafe extern "C" fn all_reduce(
    send: Buf,
    recv: BufMut,
    count: usize,
    dtype: c_int,
    op: c_int,
    mapped: BufMut,
    stream: StreamPtr,
) -> c_int {
    // SAFETY: the short path passes what `fill` gave to it, and only numbers below its limits; `fill`
    // has stored a function of this type in the entry; the buffers are the caller's promise.
    unsafe {
        let entry = table(mapped).all_reduce.of(op, dtype);
        let function = std::mem::transmute::<BufMut, Reducing>(entry.function());
        function(
            send,
            recv,
            count,
            entry.dtype(),
            entry.op(),
            entry.comm(),
            stream,
        )
    }
}

unsafe extern "C" fn reduce_scatter(
    send: Buf,
    recv: BufMut,
    count: usize,
    dtype: c_int,
    op: c_int,
    mapped: BufMut,
    stream: StreamPtr,
) -> c_int {
    // SAFETY: the short path passes what `fill` gave to it, and only numbers below its limits; `fill`
    // has stored a function of this type in the entry; the buffers are the caller's promise.
    unsafe {
        let entry = table(mapped).reduce_scatter.of(op, dtype);
        let function = std::mem::transmute::<BufMut, Reducing>(entry.function());
        function(
            send,
            recv,
            count,
            entry.dtype(),
            entry.op(),
            entry.comm(),
            stream,
        )
    }
}

#[allow(clippy::too_many_arguments)]
unsafe extern "C" fn reduce(
    send: Buf,
    recv: BufMut,
    count: usize,
    dtype: c_int,
    op: c_int,
    root: c_int,
    mapped: BufMut,
    stream: StreamPtr,
) -> c_int {
    // SAFETY: the short path passes what `fill` gave to it, and only numbers below its limits; `fill`
    // has stored a function of this type in the entry; the buffers are the caller's promise.
    unsafe {
        let entry = table(mapped).reduce.of(op, dtype);
        let function = std::mem::transmute::<BufMut, RootedReducing>(entry.function());
        function(
            send,
            recv,
            count,
            entry.dtype(),
            entry.op(),
            root,
            entry.comm(),
            stream,
        )
    }
}

unsafe extern "C" fn all_gather(
    send: Buf,
    recv: BufMut,
    count: usize,
    dtype: c_int,
    mapped: BufMut,
    stream: StreamPtr,
) -> c_int {
    // SAFETY: the short path passes what `fill` gave to it, and only numbers below its limits; `fill`
    // has stored a function of this type in the entry; the buffers are the caller's promise.
    unsafe {
        let entry = table(mapped).all_gather.of(dtype);
        let function = std::mem::transmute::<BufMut, Plain>(entry.function());
        function(send, recv, count, entry.dtype(), entry.comm(), stream)
    }
}

unsafe extern "C" fn broadcast(
    send: Buf,
    recv: BufMut,
    count: usize,
    dtype: c_int,
    root: c_int,
    mapped: BufMut,
    stream: StreamPtr,
) -> c_int {
    // SAFETY: the short path passes what `fill` gave to it, and only numbers below its limits; `fill`
    // has stored a function of this type in the entry; the buffers are the caller's promise.
    unsafe {
        let entry = table(mapped).broadcast.of(dtype);
        let function = std::mem::transmute::<BufMut, Rooted>(entry.function());
        function(send, recv, count, entry.dtype(), root, entry.comm(), stream)
    }
}

unsafe extern "C" fn gather(
    send: Buf,
    recv: BufMut,
    count: usize,
    dtype: c_int,
    root: c_int,
    mapped: BufMut,
    stream: StreamPtr,
) -> c_int {
    // SAFETY: the short path passes what `fill` gave to it, and only numbers below its limits; `fill`
    // has stored a function of this type in the entry; the buffers are the caller's promise.
    unsafe {
        let entry = table(mapped).gather.of(dtype);
        let function = std::mem::transmute::<BufMut, Rooted>(entry.function());
        function(send, recv, count, entry.dtype(), root, entry.comm(), stream)
    }
}

unsafe extern "C" fn scatter(
    send: Buf,
    recv: BufMut,
    count: usize,
    dtype: c_int,
    root: c_int,
    mapped: BufMut,
    stream: StreamPtr,
) -> c_int {
    // SAFETY: the short path passes what `fill` gave to it, and only numbers below its limits; `fill`
    // has stored a function of this type in the entry; the buffers are the caller's promise.
    unsafe {
        let entry = table(mapped).scatter.of(dtype);
        let function = std::mem::transmute::<BufMut, Rooted>(entry.function());
        function(send, recv, count, entry.dtype(), root, entry.comm(), stream)
    }
}

unsafe extern "C" fn all_to_all(
    send: Buf,
    recv: BufMut,
    count: usize,
    dtype: c_int,
    mapped: BufMut,
    stream: StreamPtr,
) -> c_int {
    // SAFETY: the short path passes what `fill` gave to it, and only numbers below its limits; `fill`
    // has stored a function of this type in the entry; the buffers are the caller's promise.
    unsafe {
        let entry = table(mapped).all_to_all.of(dtype);
        let function = std::mem::transmute::<BufMut, Plain>(entry.function());
        function(send, recv, count, entry.dtype(), entry.comm(), stream)
    }
}

unsafe extern "C" fn send(
    buffer: Buf,
    count: usize,
    dtype: c_int,
    peer: c_int,
    mapped: BufMut,
    stream: StreamPtr,
) -> c_int {
    // SAFETY: the short path passes what `fill` gave to it, and only numbers below its limits; `fill`
    // has stored a function of this type in the entry; the buffers are the caller's promise.
    unsafe {
        let entry = table(mapped).send.of(dtype);
        let function = std::mem::transmute::<BufMut, Sending>(entry.function());
        function(buffer, count, entry.dtype(), peer, entry.comm(), stream)
    }
}

unsafe extern "C" fn recv(
    buffer: BufMut,
    count: usize,
    dtype: c_int,
    peer: c_int,
    mapped: BufMut,
    stream: StreamPtr,
) -> c_int {
    // SAFETY: the short path passes what `fill` gave to it, and only numbers below its limits; `fill`
    // has stored a function of this type in the entry; the buffers are the caller's promise.
    unsafe {
        let entry = table(mapped).recv.of(dtype);
        let function = std::mem::transmute::<BufMut, Receiving>(entry.function());
        function(buffer, count, entry.dtype(), peer, entry.comm(), stream)
    }
}

/// A broadcast of a library that has it in place only. Out of place the root has to copy first.
unsafe extern "C" fn broadcast_in_place(
    send: Buf,
    recv: BufMut,
    count: usize,
    dtype: c_int,
    root: c_int,
    mapped: BufMut,
    stream: StreamPtr,
) -> c_int {
    // SAFETY: as of the others.
    unsafe {
        let m = table(mapped);
        let entry = m.bcast.of(dtype);
        let copies = !std::ptr::eq(send, recv) && m.target().rank() as c_int == root;
        if copies || entry.function().is_null() {
            return closely::broadcast(send, recv, count, dtype, root, mapped, stream);
        }
        let function = std::mem::transmute::<BufMut, InPlace>(entry.function());
        function(recv, count, entry.dtype(), root, entry.comm(), stream)
    }
}

/// The way of what the library does not have, or not by itself. The communicator is our table.
mod closely {
    use super::*;

    fn told(code: i32) -> i32 {
        if code == 0 { 0 } else { TOLD + code }
    }

    /// The communicator's target; this way counts the operation by itself.
    unsafe fn target(mapped: BufMut, kind: OpKind) -> &'static Target {
        // SAFETY: the entry passes the table.
        let target = unsafe { table(mapped) }.target();
        target.uncount_operation(kind);
        target
    }

    #[cold]
    #[allow(clippy::too_many_arguments)]
    pub(super) unsafe extern "C" fn all_reduce(
        send: Buf,
        recv: BufMut,
        count: usize,
        dtype: c_int,
        op: c_int,
        mapped: BufMut,
        stream: StreamPtr,
    ) -> c_int {
        // SAFETY: the entry passes the table; the buffers are the caller's promise.
        told(unsafe {
            (CLOSELY.all_reduce)(
                send,
                recv,
                count,
                dtype,
                op,
                target(mapped, OpKind::AllReduce),
                stream,
            )
        })
    }

    #[cold]
    #[allow(clippy::too_many_arguments)]
    pub(super) unsafe extern "C" fn reduce_scatter(
        send: Buf,
        recv: BufMut,
        count: usize,
        dtype: c_int,
        op: c_int,
        mapped: BufMut,
        stream: StreamPtr,
    ) -> c_int {
        // SAFETY: the entry passes the table; the buffers are the caller's promise.
        told(unsafe {
            (CLOSELY.reduce_scatter)(
                send,
                recv,
                count,
                dtype,
                op,
                target(mapped, OpKind::ReduceScatter),
                stream,
            )
        })
    }

    #[cold]
    #[allow(clippy::too_many_arguments)]
    pub(super) unsafe extern "C" fn reduce(
        send: Buf,
        recv: BufMut,
        count: usize,
        dtype: c_int,
        op: c_int,
        root: c_int,
        mapped: BufMut,
        stream: StreamPtr,
    ) -> c_int {
        // SAFETY: the entry passes the table; the buffers are the caller's promise.
        told(unsafe {
            (CLOSELY.reduce)(
                send,
                recv,
                count,
                dtype,
                op,
                root,
                target(mapped, OpKind::Reduce),
                stream,
            )
        })
    }

    #[cold]
    #[allow(clippy::too_many_arguments)]
    pub(super) unsafe extern "C" fn all_gather(
        send: Buf,
        recv: BufMut,
        count: usize,
        dtype: c_int,
        mapped: BufMut,
        stream: StreamPtr,
    ) -> c_int {
        // SAFETY: the entry passes the table; the buffers are the caller's promise.
        told(unsafe {
            (CLOSELY.all_gather)(
                send,
                recv,
                count,
                dtype,
                target(mapped, OpKind::AllGather),
                stream,
            )
        })
    }

    #[cold]
    #[allow(clippy::too_many_arguments)]
    pub(super) unsafe extern "C" fn broadcast(
        send: Buf,
        recv: BufMut,
        count: usize,
        dtype: c_int,
        root: c_int,
        mapped: BufMut,
        stream: StreamPtr,
    ) -> c_int {
        // SAFETY: the entry passes the table; the buffers are the caller's promise.
        told(unsafe {
            (CLOSELY.broadcast)(
                send,
                recv,
                count,
                dtype,
                root,
                target(mapped, OpKind::Broadcast),
                stream,
            )
        })
    }

    #[cold]
    #[allow(clippy::too_many_arguments)]
    pub(super) unsafe extern "C" fn gather(
        send: Buf,
        recv: BufMut,
        count: usize,
        dtype: c_int,
        root: c_int,
        mapped: BufMut,
        stream: StreamPtr,
    ) -> c_int {
        // SAFETY: the entry passes the table; the buffers are the caller's promise.
        told(unsafe {
            (CLOSELY.gather)(
                send,
                recv,
                count,
                dtype,
                root,
                target(mapped, OpKind::Gather),
                stream,
            )
        })
    }

    #[cold]
    #[allow(clippy::too_many_arguments)]
    pub(super) unsafe extern "C" fn scatter(
        send: Buf,
        recv: BufMut,
        count: usize,
        dtype: c_int,
        root: c_int,
        mapped: BufMut,
        stream: StreamPtr,
    ) -> c_int {
        // SAFETY: the entry passes the table; the buffers are the caller's promise.
        told(unsafe {
            (CLOSELY.scatter)(
                send,
                recv,
                count,
                dtype,
                root,
                target(mapped, OpKind::Scatter),
                stream,
            )
        })
    }

    #[cold]
    #[allow(clippy::too_many_arguments)]
    pub(super) unsafe extern "C" fn all_to_all(
        send: Buf,
        recv: BufMut,
        count: usize,
        dtype: c_int,
        mapped: BufMut,
        stream: StreamPtr,
    ) -> c_int {
        // SAFETY: the entry passes the table; the buffers are the caller's promise.
        told(unsafe {
            (CLOSELY.all_to_all)(
                send,
                recv,
                count,
                dtype,
                target(mapped, OpKind::AllToAll),
                stream,
            )
        })
    }

    #[cold]
    #[allow(clippy::too_many_arguments)]
    pub(super) unsafe extern "C" fn send(
        buffer: Buf,
        count: usize,
        dtype: c_int,
        peer: c_int,
        mapped: BufMut,
        stream: StreamPtr,
    ) -> c_int {
        // SAFETY: the entry passes the table; the buffers are the caller's promise.
        told(unsafe {
            (CLOSELY.send)(
                buffer,
                count,
                dtype,
                peer,
                target(mapped, OpKind::Send),
                stream,
            )
        })
    }

    #[cold]
    #[allow(clippy::too_many_arguments)]
    pub(super) unsafe extern "C" fn recv(
        buffer: BufMut,
        count: usize,
        dtype: c_int,
        peer: c_int,
        mapped: BufMut,
        stream: StreamPtr,
    ) -> c_int {
        // SAFETY: the entry passes the table; the buffers are the caller's promise.
        told(unsafe {
            (CLOSELY.recv)(
                buffer,
                count,
                dtype,
                peer,
                target(mapped, OpKind::Recv),
                stream,
            )
        })
    }
}
