//! The entry of every operation: find the communicator, look at the one rare word, jump.

use super::table::{self, Handle, Place, place};
use super::{group, rare};
use crate::error::{Error, last};
use crate::ops::{self, Call, dispatch, guarded};
use crate::types::OpKind;
use std::ffi::c_void;
use std::sync::atomic::Ordering;

#[inline(always)]
fn ready(place: &'static Place, handle: Handle) -> bool {
    place.is_live_or_null(handle) && rare::RARE.load(Ordering::Relaxed) == 0
}

/// The way of calls for which the short one is not enough: a stale handle, a group, a fork,
/// call checking. The call is not copied: what was written a moment ago, in smaller parts, is slow to copy.
#[cold]
#[inline(never)]
unsafe fn rarely(handle: Handle, call: &Call) -> i32 {
    // SAFETY: the caller's promise about the buffers.
    if unsafe { group::add_message(handle, place(handle), call) } {
        return 0;
    }
    guarded(&place(handle).target, || {
        // SAFETY: the caller's promise about the buffers.
        unsafe { rarely_unguarded(handle, call) }
    })
}

unsafe fn rarely_unguarded(handle: Handle, call: &Call) -> i32 {
    let refuse = |error: Error| {
        let error = error.context(call.kind.name());
        // Inside a group the end has to know too.
        group::note_error(&error);
        last::record(&error);
        error.code() as i32
    };
    if let Err(error) = table::check(handle) {
        return refuse(error);
    }
    let target = &place(handle).target;
    if group::is_open() {
        // SAFETY: the caller's promise about the buffers.
        return unsafe { group::add(handle, target, call) };
    }
    if rare::checking() {
        let comm = match table::get(handle) {
            Ok(comm) => comm,
            Err(error) => return refuse(error),
        };
        let calls = std::slice::from_ref(call);
        let number = target.counts().collectives + 1;
        if let Err(error) = super::end::compare_calls(&comm, calls, number) {
            return target.fail_call(call, error);
        }
    }
    // SAFETY: as above.
    unsafe { dispatch(target, call) }
}

macro_rules! entry {
    ($(#[$doc:meta])* $name:ident: $kind:ident($($arg:ident: $ty:ty => $field:ident),*)) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// The buffers must be what the C header asks for.
        #[inline(always)]
        #[allow(clippy::too_many_arguments)]
        pub unsafe fn $name($($arg: $ty,)* comm: Handle, stream: *mut c_void) -> i32 {
            /// The same arguments, for a jump out of the entry without a frame.
            #[cold]
            #[inline(never)]
            #[allow(clippy::too_many_arguments)]
            unsafe extern "C" fn rare($($arg: $ty,)* comm: Handle, stream: *mut c_void) -> i32 {
                let mut call = Call::new(OpKind::$kind);
                $(call.$field = $arg;)*
                call.stream = stream;
                // SAFETY: the caller's promise.
                unsafe { rarely(comm, &call) }
            }
            let place = place(comm);
            if ready(place, comm) {
                // SAFETY: the caller's promise.
                return unsafe { ops::$name($($arg,)* &place.target, stream) };
            }
            // SAFETY: as above.
            unsafe { rare($($arg,)* comm, stream) }
        }
    };
}

entry!(/// AllReduce.
    all_reduce: AllReduce(send: *const c_void => send, recv: *mut c_void => recv, count: usize => count, dtype: i32 => dtype, op: i32 => op));
entry!(/// Broadcast.
    broadcast: Broadcast(send: *const c_void => send, recv: *mut c_void => recv, count: usize => count, dtype: i32 => dtype, root: i32 => root));
entry!(/// Reduce.
    reduce: Reduce(send: *const c_void => send, recv: *mut c_void => recv, count: usize => count, dtype: i32 => dtype, op: i32 => op, root: i32 => root));
entry!(/// AllGather.
    all_gather: AllGather(send: *const c_void => send, recv: *mut c_void => recv, count: usize => count, dtype: i32 => dtype));
entry!(/// ReduceScatter.
    reduce_scatter: ReduceScatter(send: *const c_void => send, recv: *mut c_void => recv, count: usize => count, dtype: i32 => dtype, op: i32 => op));
entry!(/// Gather.
    gather: Gather(send: *const c_void => send, recv: *mut c_void => recv, count: usize => count, dtype: i32 => dtype, root: i32 => root));
entry!(/// Scatter.
    scatter: Scatter(send: *const c_void => send, recv: *mut c_void => recv, count: usize => count, dtype: i32 => dtype, root: i32 => root));
entry!(/// AlltoAll.
    all_to_all: AllToAll(send: *const c_void => send, recv: *mut c_void => recv, count: usize => count, dtype: i32 => dtype));
entry!(/// Send.
    send: Send(send: *const c_void => send, count: usize => count, dtype: i32 => dtype, peer: i32 => root));
entry!(/// Recv.
    recv: Recv(recv: *mut c_void => recv, count: usize => count, dtype: i32 => dtype, peer: i32 => root));
entry!(/// Barrier.
    barrier: Barrier());

/// AlltoAllv.
///
/// # Safety
/// The buffers and the arrays of counts must be what the C header asks for.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub unsafe fn all_to_allv(
    send: *const c_void,
    send_counts: *const usize,
    send_displs: *const usize,
    recv: *mut c_void,
    recv_counts: *const usize,
    recv_displs: *const usize,
    dtype: i32,
    comm: Handle,
    stream: *mut c_void,
) -> i32 {
    let mut call = Call::new(OpKind::AllToAllv);
    (call.send, call.recv, call.dtype, call.stream) = (send, recv, dtype, stream);
    call.vector = [send_counts, send_displs, recv_counts, recv_displs];
    let place = place(comm);
    if ready(place, comm) {
        // SAFETY: the caller's promise.
        return unsafe { dispatch(&place.target, &call) };
    }
    // SAFETY: as above.
    unsafe { rarely(comm, &call) }
}

/// Records an error for this thread, and for the communicator if the handle is live; its C code.
pub fn fail(handle: Handle, error: Error) -> i32 {
    let place = place(handle);
    if place.is_own(handle) {
        place.target.fail(error)
    } else {
        log::info!("{error}");
        last::record(&error);
        error.code() as i32
    }
}
