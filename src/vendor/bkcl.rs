//! Kunlunxin BKCL. Its context comes first and its arguments have an order of their own. The numbers
//! of its enumerations are in no published document: the user gives them (see `Library::gate`).

use std::ffi::{c_int, c_void};

use super::Ccl;
use super::library::{Adapted, Bootstrap};
use super::symbols::{
    Calls, CommPtr, RawResult, Shared, StreamPtr, Symbols, declare_own, functions,
};
use crate::load::symbols::{Declaration, Resolver};

type Buf = *const c_void;
type BufMut = *mut c_void;

functions! {
    /// BKCL's functions.
    Bkcl {
        required get_unique_id "bkcl_get_unique_id" [0 0 0] (*mut u8) -> RawResult;
        required init_rank "bkcl_init_rank" [0 0 0]
            (*mut CommPtr, c_int, c_int, *mut u8) -> RawResult;
        required destroy_context "bkcl_destroy_context" [0 0 0] (CommPtr) -> RawResult;
        required group_start "bkcl_group_start" [0 0 0] () -> RawResult;
        required group_end "bkcl_group_end" [0 0 0] () -> RawResult;
        required broadcast "bkcl_broadcast" [0 0 0]
            (CommPtr, Buf, BufMut, usize, c_int, c_int, StreamPtr) -> RawResult;
        required reduce "bkcl_reduce" [0 0 0]
            (CommPtr, Buf, BufMut, usize, c_int, c_int, c_int, StreamPtr) -> RawResult;
        required all_reduce "bkcl_all_reduce" [0 0 0]
            (CommPtr, Buf, BufMut, usize, c_int, c_int, StreamPtr) -> RawResult;
        required reduce_scatter "bkcl_reduce_scatter" [0 0 0]
            (CommPtr, Buf, BufMut, usize, c_int, c_int, StreamPtr) -> RawResult;
        required all_gather "bkcl_all_gather" [0 0 0]
            (CommPtr, Buf, usize, BufMut, c_int, StreamPtr) -> RawResult;
        required send "bkcl_send" [0 0 0]
            (CommPtr, Buf, usize, c_int, c_int, StreamPtr) -> RawResult;
        required recv "bkcl_recv" [0 0 0]
            (CommPtr, BufMut, usize, c_int, c_int, StreamPtr) -> RawResult;
        optional all_to_all "bkcl_all_to_all" [0 0 0]
            (CommPtr, Buf, usize, BufMut, c_int, StreamPtr) -> RawResult;
        optional comm_abort "bkcl_comm_abort" [0 0 0] (CommPtr) -> RawResult;
        optional comm_count "bkcl_comm_count" [0 0 0] (CommPtr, *mut c_int) -> RawResult;
        optional comm_user_rank "bkcl_comm_user_rank" [0 0 0] (CommPtr, *mut c_int) -> RawResult;
    }
}

static LIBRARY: Shared<Bkcl> = Shared::new();

/// What is looked up, for the check against the C declarations.
pub(super) fn declarations(row: &'static Ccl) -> Vec<Declaration> {
    declare_own(row, Bkcl::SYMBOLS)
}

pub(super) fn adapt(
    _row: &'static Ccl,
    resolver: &mut Resolver<'_>,
) -> Result<Adapted, Vec<String>> {
    let own = Bkcl::resolve(&mut |name| resolver.find(name)).map_err(|missing| {
        missing
            .iter()
            .map(|name| name.to_string())
            .collect::<Vec<_>>()
    })?;
    let adapted = Adapted {
        calls: Calls {
            comm_destroy: own.destroy_context,
            reduce,
            all_reduce,
            reduce_scatter,
            all_gather,
            send,
            recv,
        },
        symbols: Symbols {
            broadcast: Some(broadcast),
            all_to_all: own.all_to_all.map(|_| all_to_all as _),
            group_start: Some(own.group_start),
            group_end: Some(own.group_end),
            comm_abort: own.comm_abort,
            comm_count: own.comm_count,
            comm_user_rank: own.comm_user_rank,
            ..Symbols::default()
        },
        bootstrap: Bootstrap::ByPointer(own.get_unique_id, init_rank),
        messages: None,
    };
    LIBRARY.set(own);
    Ok(adapted)
}

unsafe extern "C" fn init_rank(
    comm: *mut CommPtr,
    nranks: c_int,
    id: *const u8,
    rank: c_int,
) -> RawResult {
    // SAFETY: the caller's pointers, as NCCL's init has them; the id is only read.
    unsafe { (LIBRARY.get().init_rank)(comm, rank, nranks, id.cast_mut()) }
}

unsafe extern "C" fn all_reduce(
    send: Buf,
    recv: BufMut,
    count: usize,
    dtype: c_int,
    op: c_int,
    comm: CommPtr,
    stream: StreamPtr,
) -> RawResult {
    // SAFETY: the caller's buffers and communicator; only the order differs.
    unsafe { (LIBRARY.get().all_reduce)(comm, send, recv, count, dtype, op, stream) }
}

unsafe extern "C" fn reduce_scatter(
    send: Buf,
    recv: BufMut,
    count: usize,
    dtype: c_int,
    op: c_int,
    comm: CommPtr,
    stream: StreamPtr,
) -> RawResult {
    // SAFETY: as above.
    unsafe { (LIBRARY.get().reduce_scatter)(comm, send, recv, count, dtype, op, stream) }
}

#[allow(clippy::too_many_arguments)]
unsafe extern "C" fn reduce(
    send: Buf,
    recv: BufMut,
    count: usize,
    dtype: c_int,
    op: c_int,
    root: c_int,
    comm: CommPtr,
    stream: StreamPtr,
) -> RawResult {
    // SAFETY: as above.
    unsafe { (LIBRARY.get().reduce)(comm, send, recv, count, dtype, op, root, stream) }
}

unsafe extern "C" fn broadcast(
    send: Buf,
    recv: BufMut,
    count: usize,
    dtype: c_int,
    root: c_int,
    comm: CommPtr,
    stream: StreamPtr,
) -> RawResult {
    // SAFETY: as above.
    unsafe { (LIBRARY.get().broadcast)(comm, send, recv, count, dtype, root, stream) }
}

unsafe extern "C" fn all_gather(
    send: Buf,
    recv: BufMut,
    count: usize,
    dtype: c_int,
    comm: CommPtr,
    stream: StreamPtr,
) -> RawResult {
    // SAFETY: as above.
    unsafe { (LIBRARY.get().all_gather)(comm, send, count, recv, dtype, stream) }
}

unsafe extern "C" fn all_to_all(
    send: Buf,
    recv: BufMut,
    count: usize,
    dtype: c_int,
    comm: CommPtr,
    stream: StreamPtr,
) -> RawResult {
    match LIBRARY.get().all_to_all {
        // SAFETY: as above.
        Some(call) => unsafe { call(comm, send, count, recv, dtype, stream) },
        None => -1,
    }
}

unsafe extern "C" fn send(
    buffer: Buf,
    count: usize,
    dtype: c_int,
    peer: c_int,
    comm: CommPtr,
    stream: StreamPtr,
) -> RawResult {
    // SAFETY: as above.
    unsafe { (LIBRARY.get().send)(comm, buffer, count, peer, dtype, stream) }
}

unsafe extern "C" fn recv(
    buffer: BufMut,
    count: usize,
    dtype: c_int,
    peer: c_int,
    comm: CommPtr,
    stream: StreamPtr,
) -> RawResult {
    // SAFETY: as above.
    unsafe { (LIBRARY.get().recv)(comm, buffer, count, peer, dtype, stream) }
}
