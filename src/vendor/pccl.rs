//! Sunrise PCCL. It has NCCL's shape, but messages go only over communicators of two ranks, and never
//! inside a group. So a communicator of more ranks has one of two for each peer that it exchanges
//! messages with, made when the first message goes there; the ids for them were exchanged at init.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use super::Ccl;
use super::library::{Adapted, Message, in_shape};
use super::symbols::{CommPtr, Id128, RawResult, Shared, StreamPtr, declare_shape};
use crate::error::{Error, Result};
use crate::load::symbols::{Declaration, Resolver};
use crate::ops::lock;

type Init = unsafe extern "C" fn(*mut CommPtr, c_int, Id128, c_int) -> RawResult;
type End = unsafe extern "C" fn(CommPtr) -> RawResult;

/// PCCL's functions that are behind ours.
struct Pccl {
    init: Init,
    destroy: End,
    abort: Option<End>,
    send: unsafe extern "C" fn(*const c_void, usize, c_int, c_int, CommPtr, StreamPtr) -> RawResult,
    recv: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, CommPtr, StreamPtr) -> RawResult,
}

static LIBRARY: Shared<Pccl> = Shared::new();

/// A handle as an address, which may move between threads.
#[derive(Clone, Copy)]
struct Raw(CommPtr);

// SAFETY: an opaque handle of the library, which the holder of the communicator uses from one thread
// at a time.
unsafe impl Send for Raw {}

/// The pairs of one communicator.
struct Pairs {
    rank: c_int,
    /// By peer; `None` for the own rank.
    ids: Vec<Option<Id128>>,
    /// By peer, once made.
    comms: Vec<Option<Raw>>,
}

/// The pairs of communicators of more than two ranks, by the communicator's address.
fn pairs() -> &'static Mutex<HashMap<usize, Pairs>> {
    static PAIRS: crate::sys::per_process::PerProcess<Mutex<HashMap<usize, Pairs>>> =
        crate::sys::per_process::PerProcess::new();
    PAIRS.get_or_init(Mutex::default)
}

/// PCCL's number for a fault inside.
const INTERNAL_ERROR: RawResult = 3;

/// What is looked up, for the check against the C declarations.
pub(super) fn declarations(row: &'static Ccl) -> Vec<Declaration> {
    declare_shape(row, &|_| true)
}

pub(super) fn adapt(
    row: &'static Ccl,
    resolver: &mut Resolver<'_>,
) -> std::result::Result<Adapted, Vec<String>> {
    let mut adapted = in_shape(row, resolver)?;
    let Some(init) = adapted.symbols.comm_init_rank else {
        return Err(vec![format!("{}CommInitRank", row.prefix)]);
    };
    LIBRARY.set(Pccl {
        init,
        destroy: adapted.calls.comm_destroy,
        abort: adapted.symbols.comm_abort,
        send: adapted.calls.send,
        recv: adapted.calls.recv,
    });
    adapted.calls.send = send;
    adapted.calls.recv = recv;
    adapted.calls.comm_destroy = comm_destroy;
    adapted.symbols.comm_abort = adapted.symbols.comm_abort.map(|_| comm_abort as _);
    adapted.messages = Some(send_recv);
    Ok(adapted)
}

/// Gives a communicator the ids of its pairs, by peer.
pub(crate) fn set_pairs(comm: CommPtr, rank: i32, ids: &[Vec<u8>]) -> Result<()> {
    let ids = ids.iter().enumerate().map(|(peer, id)| {
        if peer as i32 == rank {
            return Ok(None);
        }
        let id: [u8; 128] = id
            .as_slice()
            .try_into()
            .map_err(|_| Error::internal("the id of a pair of ranks has a wrong length"))?;
        Ok(Some(Id128(id)))
    });
    let ids: Vec<Option<Id128>> = ids.collect::<Result<_>>()?;
    let comms = vec![None; ids.len()];
    lock(pairs()).insert(comm.addr(), Pairs { rank, ids, comms });
    Ok(())
}

/// Where messages to a peer go: the communicator, and the peer's rank there.
unsafe fn way(comm: CommPtr, peer: c_int) -> std::result::Result<(CommPtr, c_int), RawResult> {
    let (rank, id) = {
        let all = lock(pairs());
        let Some(own) = all.get(&comm.addr()) else {
            // A communicator of two ranks is a pair by itself.
            return Ok((comm, peer));
        };
        let at = usize::try_from(peer).map_err(|_| INTERNAL_ERROR)?;
        if let Some(Some(made)) = own.comms.get(at) {
            return Ok((made.0, c_int::from(peer > own.rank)));
        }
        let id = own.ids.get(at).copied().flatten().ok_or(INTERNAL_ERROR)?;
        (own.rank, id)
    };
    // Not under the lock: it waits for the peer.
    let mut made: CommPtr = std::ptr::null_mut();
    // SAFETY: the handle goes to a live local; the id is passed by value.
    let result = unsafe { (LIBRARY.get().init)(&mut made, 2, id, c_int::from(peer < rank)) };
    if result != 0 {
        return Err(result);
    }
    if let Some(own) = lock(pairs()).get_mut(&comm.addr()) {
        own.comms[peer as usize] = Some(Raw(made));
    }
    Ok((made, c_int::from(peer > rank)))
}

unsafe extern "C" fn send(
    buffer: *const c_void,
    count: usize,
    dtype: c_int,
    peer: c_int,
    comm: CommPtr,
    stream: StreamPtr,
) -> RawResult {
    // SAFETY: the caller's buffer and communicator.
    match unsafe { way(comm, peer) } {
        // SAFETY: as above.
        Ok((pair, there)) => unsafe {
            (LIBRARY.get().send)(buffer, count, dtype, there, pair, stream)
        },
        Err(result) => result,
    }
}

unsafe extern "C" fn recv(
    buffer: *mut c_void,
    count: usize,
    dtype: c_int,
    peer: c_int,
    comm: CommPtr,
    stream: StreamPtr,
) -> RawResult {
    // SAFETY: the caller's buffer and communicator.
    match unsafe { way(comm, peer) } {
        // SAFETY: as above.
        Ok((pair, there)) => unsafe {
            (LIBRARY.get().recv)(buffer, count, dtype, there, pair, stream)
        },
        Err(result) => result,
    }
}

/// Messages to several peers, in an order in which none waits for one that waits for it: the pairs
/// come in the same order on all ranks, and of a pair the lower rank sends first.
unsafe fn send_recv(comm: CommPtr, messages: &[Message], stream: StreamPtr) -> Result<RawResult> {
    let rank = {
        let all = lock(pairs());
        all.get(&comm.addr()).map(|own| own.rank)
    };
    // Without pairs there is one peer, and its rank tells ours.
    let own = |peer: c_int| rank.unwrap_or(1 - peer);
    let mut ordered: Vec<&Message> = messages.iter().collect();
    ordered.sort_by_key(|m| {
        let (low, high) = (own(m.peer).min(m.peer), own(m.peer).max(m.peer));
        let first = m.out == (own(m.peer) < m.peer);
        (low, high, !first)
    });
    for message in ordered {
        let Message {
            peer,
            out,
            buffer,
            count,
            dtype,
            ..
        } = *message;
        // SAFETY: the caller's promise about the buffers.
        let result = unsafe {
            match out {
                true => send(buffer, count, dtype, peer, comm, stream),
                false => recv(buffer, count, dtype, peer, comm, stream),
            }
        };
        if result != 0 {
            return Ok(result);
        }
    }
    Ok(0)
}

/// Ends the pairs of a communicator.
fn end_pairs(comm: CommPtr, end: End) {
    let own = lock(pairs()).remove(&comm.addr());
    for pair in own.into_iter().flat_map(|own| own.comms).flatten() {
        // SAFETY: a communicator of the library that nobody uses any more, ended once.
        let result = unsafe { end(pair.0) };
        if result != 0 {
            log::warn!("PCCL: the end of a communicator of two ranks gave {result}");
        }
    }
}

unsafe extern "C" fn comm_destroy(comm: CommPtr) -> RawResult {
    let destroy = LIBRARY.get().destroy;
    end_pairs(comm, destroy);
    // SAFETY: the caller's communicator, which it gives up.
    unsafe { destroy(comm) }
}

unsafe extern "C" fn comm_abort(comm: CommPtr) -> RawResult {
    let Some(abort) = LIBRARY.get().abort else {
        return INTERNAL_ERROR;
    };
    end_pairs(comm, abort);
    // SAFETY: as in `comm_destroy`.
    unsafe { abort(comm) }
}
