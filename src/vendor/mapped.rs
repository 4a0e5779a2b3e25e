//! The short path of libraries whose numbers are not ours, or that broadcast in place only: between
//! `ops` and the library's functions stands one table look-up. What the table refuses takes the way
//! that can say why.

use super::Library;
use super::port::CLOSELY;
use super::symbols::{CommPtr, StreamPtr};
use crate::ops::{Fill, TOLD, Target};
use crate::types::{DataType, OpKind, RedOp};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

const DTYPES: usize = DataType::ALL.len();
const REDOPS: usize = RedOp::ALL.len();
/// The row of operations that don't reduce.
const MOVES: usize = REDOPS;

type Buf = *const c_void;
type BufMut = *mut c_void;

/// One communicator's table and functions. It is never freed, and used again by the next communicator
/// at its place.
#[repr(C)]
pub(crate) struct Mapped {
    comm: AtomicPtr<c_void>,
    target: AtomicPtr<Target>,
    functions: [AtomicPtr<c_void>; 10],
    redops: [AtomicI32; REDOPS],
    /// By operator and data type: the vendor's data type, negative where it is refused.
    dtypes: [[AtomicI32; DTYPES]; REDOPS + 1],
}

/// Places in [`Mapped::functions`].
#[derive(Clone, Copy)]
enum Place {
    AllReduce,
    ReduceScatter,
    Reduce,
    AllGather,
    Broadcast,
    Send,
    Recv,
    Gather,
    Scatter,
    AllToAll,
}

impl Mapped {
    pub(crate) const fn new() -> Mapped {
        Mapped {
            comm: AtomicPtr::new(std::ptr::null_mut()),
            target: AtomicPtr::new(std::ptr::null_mut()),
            functions: [const { AtomicPtr::new(std::ptr::null_mut()) }; 10],
            redops: [const { AtomicI32::new(0) }; REDOPS],
            dtypes: [const { [const { AtomicI32::new(0) }; DTYPES] }; REDOPS + 1],
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
        self.comm.store(comm, Ordering::Relaxed);
        self.target
            .store(std::ptr::from_ref(target).cast_mut(), Ordering::Relaxed);
        let put = |place: Place, function: *mut c_void| {
            self.functions[place as usize].store(function, Ordering::Relaxed);
        };
        put(Place::AllReduce, calls.all_reduce as *mut c_void);
        put(Place::ReduceScatter, calls.reduce_scatter as *mut c_void);
        put(Place::Reduce, calls.reduce as *mut c_void);
        put(Place::AllGather, calls.all_gather as *mut c_void);
        put(Place::Send, calls.send as *mut c_void);
        put(Place::Recv, calls.recv as *mut c_void);
        let null = std::ptr::null_mut();
        let in_place = symbols.broadcast.is_none();
        put(
            Place::Broadcast,
            match (symbols.broadcast, symbols.bcast) {
                (Some(f), _) => f as *mut c_void,
                (None, Some(f)) => f as *mut c_void,
                (None, None) => null,
            },
        );
        let working = |f: Option<*mut c_void>| f.filter(|_| !library.row.quirks.broken_gather);
        let gathers = working(symbols.gather.map(|f| f as *mut c_void));
        let scatters = working(symbols.scatter.map(|f| f as *mut c_void));
        let exchanges = symbols.all_to_all.map(|f| f as *mut c_void);
        put(Place::Gather, gathers.unwrap_or(null));
        put(Place::Scatter, scatters.unwrap_or(null));
        put(Place::AllToAll, exchanges.unwrap_or(null));
        for op in RedOp::ALL {
            let number = library.redop(op, target.nranks()).unwrap_or(-1);
            self.redops[op as usize].store(number, Ordering::Relaxed);
            for dtype in DataType::ALL {
                let fine = number >= 0
                    && library
                        .within_limits(OpKind::AllReduce, dtype, Some(op))
                        .is_ok();
                let number = if fine {
                    library.dtypes[dtype as usize]
                } else {
                    -1
                };
                self.dtypes[op as usize][dtype as usize].store(number, Ordering::Relaxed);
            }
        }
        for dtype in DataType::ALL {
            let number = library.dtypes[dtype as usize];
            self.dtypes[MOVES][dtype as usize].store(number, Ordering::Relaxed);
        }
        Fill {
            comm: std::ptr::from_ref(self).cast_mut().cast(),
            dtypes: DTYPES as u32,
            all_reduce,
            broadcast: if in_place {
                broadcast_in_place
            } else {
                broadcast
            },
            reduce,
            all_gather,
            reduce_scatter,
            send,
            recv,
            // A function that the library lacks is NULL here, and the call takes the other way.
            gather: Some(gather),
            scatter: Some(scatter),
            all_to_all: Some(all_to_all),
        }
    }

    fn comm(&self) -> CommPtr {
        self.comm.load(Ordering::Relaxed)
    }

    fn target(&self) -> &'static Target {
        // SAFETY: stored by `fill` from a `&'static Target` before the short path was opened.
        unsafe { &*self.target.load(Ordering::Relaxed) }
    }

    /// The vendor's data type for an operator's row, or [`MOVES`].
    ///
    /// # Safety
    /// Both numbers are below the limits of the short path.
    #[inline(always)]
    unsafe fn dtype(&self, row: usize, dtype: c_int) -> c_int {
        // SAFETY: the caller's promise: within the table.
        let number = unsafe { self.dtypes.get_unchecked(row).get_unchecked(dtype as usize) };
        number.load(Ordering::Relaxed)
    }

    /// # Safety
    /// As [`Mapped::dtype`].
    #[inline(always)]
    unsafe fn redop(&self, op: c_int) -> c_int {
        // SAFETY: the caller's promise: within the table.
        unsafe { self.redops.get_unchecked(op as usize) }.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn function(&self, place: Place) -> *mut c_void {
        self.functions[place as usize].load(Ordering::Relaxed)
    }
}

/// What the short path makes of the result of a call that took the other way.
#[inline(always)]
fn told(code: i32) -> i32 {
    if code == 0 { 0 } else { TOLD + code }
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

type Reducing = unsafe extern "C" fn(Buf, BufMut, usize, c_int, c_int, CommPtr, StreamPtr) -> c_int;
type RootedReducing =
    unsafe extern "C" fn(Buf, BufMut, usize, c_int, c_int, c_int, CommPtr, StreamPtr) -> c_int;
type Rooted = unsafe extern "C" fn(Buf, BufMut, usize, c_int, c_int, CommPtr, StreamPtr) -> c_int;
type InPlace = unsafe extern "C" fn(BufMut, usize, c_int, c_int, CommPtr, StreamPtr) -> c_int;
type Plain = unsafe extern "C" fn(Buf, BufMut, usize, c_int, CommPtr, StreamPtr) -> c_int;
type Sending = unsafe extern "C" fn(Buf, usize, c_int, c_int, CommPtr, StreamPtr) -> c_int;
type Receiving = unsafe extern "C" fn(BufMut, usize, c_int, c_int, CommPtr, StreamPtr) -> c_int;

unsafe extern "C" fn all_reduce(
    send: Buf,
    recv: BufMut,
    count: usize,
    dtype: c_int,
    op: c_int,
    mapped: BufMut,
    stream: StreamPtr,
) -> c_int {
    // SAFETY: the short path passes what `fill` gave to it, and only numbers below its limits.
    let (m, number) = unsafe {
        let m = table(mapped);
        (m, m.dtype(op as usize, dtype))
    };
    let function = m.function(Place::AllReduce);
    if number < 0 {
        let target = m.target();
        // SAFETY: the caller's promise about the buffers, passed on.
        return told(unsafe { (CLOSELY.all_reduce)(send, recv, count, dtype, op, target, stream) });
    }
    // SAFETY: `fill` has stored a function of this type at this place; the buffers are the caller's
    // promise.
    unsafe {
        let function = std::mem::transmute::<*mut c_void, Reducing>(function);
        function(send, recv, count, number, m.redop(op), m.comm(), stream)
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
    // SAFETY: the short path passes what `fill` gave to it, and only numbers below its limits.
    let (m, number) = unsafe {
        let m = table(mapped);
        (m, m.dtype(op as usize, dtype))
    };
    let function = m.function(Place::ReduceScatter);
    if number < 0 {
        let target = m.target();
        // SAFETY: the caller's promise about the buffers, passed on.
        return told(unsafe {
            (CLOSELY.reduce_scatter)(send, recv, count, dtype, op, target, stream)
        });
    }
    // SAFETY: `fill` has stored a function of this type at this place; the buffers are the caller's
    // promise.
    unsafe {
        let function = std::mem::transmute::<*mut c_void, Reducing>(function);
        function(send, recv, count, number, m.redop(op), m.comm(), stream)
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
    // SAFETY: the short path passes what `fill` gave to it, and only numbers below its limits.
    let (m, number) = unsafe {
        let m = table(mapped);
        (m, m.dtype(op as usize, dtype))
    };
    let function = m.function(Place::Reduce);
    if number < 0 {
        let target = m.target();
        // SAFETY: the caller's promise about the buffers, passed on.
        return told(unsafe {
            (CLOSELY.reduce)(send, recv, count, dtype, op, root, target, stream)
        });
    }
    // SAFETY: `fill` has stored a function of this type at this place; the buffers are the caller's
    // promise.
    unsafe {
        let function = std::mem::transmute::<*mut c_void, RootedReducing>(function);
        function(
            send,
            recv,
            count,
            number,
            m.redop(op),
            root,
            m.comm(),
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
    // SAFETY: the short path passes what `fill` gave to it, and only numbers below its limits.
    let (m, number) = unsafe {
        let m = table(mapped);
        (m, m.dtype(MOVES, dtype))
    };
    let function = m.function(Place::AllGather);
    if number < 0 {
        let target = m.target();
        // SAFETY: the caller's promise about the buffers, passed on.
        return told(unsafe { (CLOSELY.all_gather)(send, recv, count, dtype, target, stream) });
    }
    // SAFETY: `fill` has stored a function of this type at this place; the buffers are the caller's
    // promise.
    unsafe {
        let function = std::mem::transmute::<*mut c_void, Plain>(function);
        function(send, recv, count, number, m.comm(), stream)
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
    // SAFETY: the short path passes what `fill` gave to it, and only numbers below its limits.
    let (m, number) = unsafe {
        let m = table(mapped);
        (m, m.dtype(MOVES, dtype))
    };
    let function = m.function(Place::Broadcast);
    if number < 0 {
        let target = m.target();
        // SAFETY: the caller's promise about the buffers, passed on.
        return told(unsafe {
            (CLOSELY.broadcast)(send, recv, count, dtype, root, target, stream)
        });
    }
    // SAFETY: `fill` has stored a function of this type at this place; the buffers are the caller's
    // promise.
    unsafe {
        let function = std::mem::transmute::<*mut c_void, Rooted>(function);
        function(send, recv, count, number, root, m.comm(), stream)
    }
}

unsafe extern "C" fn broadcast_in_place(
    send: Buf,
    recv: BufMut,
    count: usize,
    dtype: c_int,
    root: c_int,
    mapped: BufMut,
    stream: StreamPtr,
) -> c_int {
    // SAFETY: the short path passes what `fill` gave to it, and only numbers below its limits.
    let (m, number) = unsafe {
        let m = table(mapped);
        (m, m.dtype(MOVES, dtype))
    };
    let function = m.function(Place::Broadcast);
    // Out of place, the root has to copy first.
    let copies = !std::ptr::eq(send, recv) && m.target().rank() as c_int == root;
    if number < 0 || copies {
        let target = m.target();
        // SAFETY: the caller's promise about the buffers, passed on.
        return told(unsafe {
            (CLOSELY.broadcast)(send, recv, count, dtype, root, target, stream)
        });
    }
    // SAFETY: `fill` has stored a function of this type at this place; the buffers are the caller's
    // promise.
    unsafe {
        let function = std::mem::transmute::<*mut c_void, InPlace>(function);
        function(recv, count, number, root, m.comm(), stream)
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
    // SAFETY: the short path passes what `fill` gave to it, and only numbers below its limits.
    let (m, number) = unsafe {
        let m = table(mapped);
        (m, m.dtype(MOVES, dtype))
    };
    let function = m.function(Place::Gather);
    if number < 0 || function.is_null() {
        let target = m.target();
        // SAFETY: the caller's promise about the buffers, passed on.
        return told(unsafe { (CLOSELY.gather)(send, recv, count, dtype, root, target, stream) });
    }
    // SAFETY: `fill` has stored a function of this type at this place; the buffers are the caller's
    // promise.
    unsafe {
        let function = std::mem::transmute::<*mut c_void, Rooted>(function);
        function(send, recv, count, number, root, m.comm(), stream)
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
    // SAFETY: the short path passes what `fill` gave to it, and only numbers below its limits.
    let (m, number) = unsafe {
        let m = table(mapped);
        (m, m.dtype(MOVES, dtype))
    };
    let function = m.function(Place::Scatter);
    if number < 0 || function.is_null() {
        let target = m.target();
        // SAFETY: the caller's promise about the buffers, passed on.
        return told(unsafe { (CLOSELY.scatter)(send, recv, count, dtype, root, target, stream) });
    }
    // SAFETY: `fill` has stored a function of this type at this place; the buffers are the caller's
    // promise.
    unsafe {
        let function = std::mem::transmute::<*mut c_void, Rooted>(function);
        function(send, recv, count, number, root, m.comm(), stream)
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
    // SAFETY: the short path passes what `fill` gave to it, and only numbers below its limits.
    let (m, number) = unsafe {
        let m = table(mapped);
        (m, m.dtype(MOVES, dtype))
    };
    let function = m.function(Place::AllToAll);
    if number < 0 || function.is_null() {
        let target = m.target();
        // SAFETY: the caller's promise about the buffers, passed on.
        return told(unsafe { (CLOSELY.all_to_all)(send, recv, count, dtype, target, stream) });
    }
    // SAFETY: `fill` has stored a function of this type at this place; the buffers are the caller's
    // promise.
    unsafe {
        let function = std::mem::transmute::<*mut c_void, Plain>(function);
        function(send, recv, count, number, m.comm(), stream)
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
    // SAFETY: the short path passes what `fill` gave to it, and only numbers below its limits.
    let (m, number) = unsafe {
        let m = table(mapped);
        (m, m.dtype(MOVES, dtype))
    };
    let function = m.function(Place::Send);
    if number < 0 {
        let target = m.target();
        // SAFETY: the caller's promise about the buffers, passed on.
        return told(unsafe { (CLOSELY.send)(buffer, count, dtype, peer, target, stream) });
    }
    // SAFETY: `fill` has stored a function of this type at this place; the buffers are the caller's
    // promise.
    unsafe {
        let function = std::mem::transmute::<*mut c_void, Sending>(function);
        function(buffer, count, number, peer, m.comm(), stream)
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
    // SAFETY: the short path passes what `fill` gave to it, and only numbers below its limits.
    let (m, number) = unsafe {
        let m = table(mapped);
        (m, m.dtype(MOVES, dtype))
    };
    let function = m.function(Place::Recv);
    if number < 0 {
        let target = m.target();
        // SAFETY: the caller's promise about the buffers, passed on.
        return told(unsafe { (CLOSELY.recv)(buffer, count, dtype, peer, target, stream) });
    }
    // SAFETY: `fill` has stored a function of this type at this place; the buffers are the caller's
    // promise.
    unsafe {
        let function = std::mem::transmute::<*mut c_void, Receiving>(function);
        function(buffer, count, number, peer, m.comm(), stream)
    }
}
