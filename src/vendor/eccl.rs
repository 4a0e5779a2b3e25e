//! Enflame ECCL. It has NCCL's shape but for all-to-all, whose counts and types are said for each side.

use std::ffi::{c_int, c_void};

use super::Ccl;
use super::library::{Adapted, in_shape};
use super::symbols::{
    CommPtr, RawResult, Shared, StreamPtr, declare_own, declare_shape, functions,
};
use crate::load::symbols::{Declaration, Resolver};

functions! {
    /// What has no place in NCCL's shape. Newer libraries have it.
    Eccl {
        optional all_to_all "ecclAlltoall" [0 0 0]
            (*const c_void, usize, c_int, *mut c_void, usize, c_int, CommPtr, StreamPtr) -> RawResult;
        optional all_to_allv "ecclAlltoAllv" [0 0 0]
            (*mut c_void, *mut usize, *mut usize, c_int, *mut c_void, *mut usize, *mut usize, c_int,
            CommPtr, StreamPtr) -> RawResult;
    }
}

static LIBRARY: Shared<Eccl> = Shared::new();

/// ECCL's number of an argument that is wrong.
const INVALID_ARGUMENT: RawResult = 4;

/// What is looked up, for the check against the C declarations.
pub(super) fn declarations(row: &'static Ccl) -> Vec<Declaration> {
    let mut all = declare_shape(row, &|_| true);
    all.extend(declare_own(row, Eccl::SYMBOLS));
    all
}

pub(super) fn adapt(
    row: &'static Ccl,
    resolver: &mut Resolver<'_>,
) -> Result<Adapted, Vec<String>> {
    let mut adapted = in_shape(row, resolver)?;
    if let Ok(own) = Eccl::resolve(&mut |name| resolver.find(name)) {
        adapted.symbols.all_to_all = own.all_to_all.map(|_| all_to_all as _);
        adapted.symbols.all_to_allv = own.all_to_allv.map(|_| all_to_allv as _);
        LIBRARY.set(own);
    }
    Ok(adapted)
}

unsafe extern "C" fn all_to_all(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    comm: CommPtr,
    stream: StreamPtr,
) -> RawResult {
    match LIBRARY.get().all_to_all {
        // SAFETY: the caller's buffers and communicator; counts are per peer, as NCCL's.
        Some(call) => unsafe { call(send, count, dtype, recv, count, dtype, comm, stream) },
        None => INVALID_ARGUMENT,
    }
}

#[allow(clippy::too_many_arguments)]
unsafe extern "C" fn all_to_allv(
    send: *const c_void,
    send_counts: *const usize,
    send_displs: *const usize,
    recv: *mut c_void,
    recv_counts: *const usize,
    recv_displs: *const usize,
    dtype: c_int,
    comm: CommPtr,
    stream: StreamPtr,
) -> RawResult {
    let Some(call) = LIBRARY.get().all_to_allv else {
        return INVALID_ARGUMENT;
    };
    // SAFETY: the caller's buffers and arrays, which the library only reads although it doesn't say
    // so.
    unsafe {
        call(
            send.cast_mut(),
            send_counts.cast_mut(),
            send_displs.cast_mut(),
            dtype,
            recv,
            recv_counts.cast_mut(),
            recv_displs.cast_mut(),
            dtype,
            comm,
            stream,
        )
    }
}
