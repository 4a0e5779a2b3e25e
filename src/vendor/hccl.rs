//! Huawei HCCL. Most of its functions have NCCL's signatures. Others: the id of 4108 bytes is passed by
//! pointer and the communicator comes last at init, all-to-all says count and type twice, there is no
//! version call, and messages are made together by one call with a list.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;

use super::library::{Adapted, Bootstrap, Message};
use super::symbols::{
    Calls, CommPtr, RawResult, Shared, StreamPtr, Symbols, declare_own, declare_shape,
    function_name, function_names, functions,
};
use super::{Ccl, Version};
use crate::load::symbols::{Declaration, Layout, Resolver};
use crate::{Error, Result};

/// Size of a root info.
pub(super) const ROOT_INFO_BYTES: usize = 4108;

/// One message of a list.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct SendRecvItem {
    /// 0 to send, 1 to receive.
    kind: c_int,
    buffer: *mut c_void,
    count: u64,
    dtype: c_int,
    remote: u32,
}

const _: () = assert!(size_of::<SendRecvItem>() == 32);

pub(super) fn item_layout(library: &'static str) -> Layout {
    Layout {
        library,
        name: "HcclSendRecvItem",
        size: size_of::<SendRecvItem>(),
        exact: true,
        fields: vec![
            ("sendRecvType", offset_of!(SendRecvItem, kind)),
            ("buf", offset_of!(SendRecvItem, buffer)),
            ("count", offset_of!(SendRecvItem, count)),
            ("dataType", offset_of!(SendRecvItem, dtype)),
            ("remoteRank", offset_of!(SendRecvItem, remote)),
        ],
    }
}

functions! {
    /// What has no place in NCCL's shape.
    Hccl {
        required get_root_info "HcclGetRootInfo" [0 0 0] (*mut u8) -> RawResult;
        required comm_init_root_info "HcclCommInitRootInfo" [0 0 0]
            (u32, *const u8, u32, *mut CommPtr) -> RawResult;
        optional batch_send_recv "HcclBatchSendRecv" [8 0 0]
            (*mut SendRecvItem, u32, CommPtr, StreamPtr) -> RawResult;
        optional all_to_all "HcclAlltoAll" [7 0 0]
            (*const c_void, u64, c_int, *const c_void, u64, c_int, CommPtr, StreamPtr) -> RawResult;
        optional all_to_allv "HcclAlltoAllV" [7 0 0]
            (*const c_void, *const c_void, *const c_void, c_int, *const c_void, *const c_void,
            *const c_void, c_int, CommPtr, StreamPtr) -> RawResult;
    }
}

static LIBRARY: Shared<Hccl> = Shared::new();

/// The functions of HCCL that have NCCL's signatures.
const DIRECT: &[&str] = &[
    "Bcast",
    "Scatter",
    "CommCount",
    "CommUserRank",
    "CommGetAsyncError",
    "GetErrorString",
];

/// There is no version call; which functions there are tells the oldest version that it may be.
pub(super) fn version(resolver: &mut Resolver<'_>) -> (Option<i32>, Option<Version>) {
    const SINCE: &[(&str, Version)] = &[
        ("HcclCommSymWinRegister", Version::new(9, 0, 0)),
        ("HcclCommWorkingDevNicSet", Version::new(8, 2, 0)),
        ("HcclAllGatherV", Version::new(8, 1, 0)),
        ("HcclBatchSendRecv", Version::new(8, 0, 0)),
        ("HcclAlltoAll", Version::new(7, 0, 0)),
    ];
    let mut newest = SINCE
        .iter()
        .filter(|(name, _)| resolver.find(name).is_some());
    let found = newest.next().map(|(_, version)| *version);
    // From 8.5 on a library of its own has what is about communicators.
    let split = resolver.lies_in("HcclGetRootInfo", "libhcomm.so");
    let version = match (found, split) {
        (Some(version), true) => Some(version.max(Version::new(8, 5, 0))),
        (version, _) => version,
    };
    (None, version)
}

/// What is looked up, for the check against the C declarations.
pub(super) fn declarations(row: &'static Ccl) -> Vec<Declaration> {
    let calls = |suffix: &str| Calls::SYMBOLS.iter().any(|s| s.suffix == suffix);
    let mut all = declare_shape(row, &|suffix| DIRECT.contains(&suffix) || calls(suffix));
    all.extend(declare_own(row, Hccl::SYMBOLS));
    all
}

pub(super) fn adapt(
    row: &'static Ccl,
    resolver: &mut Resolver<'_>,
) -> std::result::Result<Adapted, Vec<String>> {
    let own = Hccl::resolve(&mut |name| resolver.find(name));
    let mut find = |suffix: &str| resolver.find_any(&function_names(row, suffix));
    let calls = Calls::resolve(&mut find);
    let direct = Symbols::resolve(&mut |suffix| match DIRECT.contains(&suffix) {
        true => find(suffix),
        false => None,
    });
    let (own, calls) = match (own, calls) {
        (Ok(own), Ok(calls)) => (own, calls),
        (own, calls) => {
            let mut missing: Vec<String> = Vec::new();
            missing.extend(own.err().iter().flatten().map(|name| name.to_string()));
            let calls = calls.err();
            let calls = calls.iter().flatten();
            missing.extend(calls.map(|s| function_name(row, s)));
            return Err(missing);
        }
    };
    let symbols = Symbols {
        all_to_all: own.all_to_all.map(|_| all_to_all as _),
        all_to_allv: own.all_to_allv.map(|_| all_to_allv as _),
        ..direct.unwrap_or_default()
    };
    LIBRARY.set(own);
    Ok(Adapted {
        calls,
        symbols,
        bootstrap: Bootstrap::ByPointer(get_root_info, init_root_info),
        messages: Some(send_recv),
    })
}

unsafe extern "C" fn get_root_info(id: *mut u8) -> RawResult {
    // SAFETY: the caller's memory has the row's number of bytes.
    unsafe { (LIBRARY.get().get_root_info)(id) }
}

unsafe extern "C" fn init_root_info(
    comm: *mut CommPtr,
    nranks: c_int,
    id: *const u8,
    rank: c_int,
) -> RawResult {
    // SAFETY: the caller's pointers, as NCCL's init has them.
    unsafe { (LIBRARY.get().comm_init_root_info)(nranks as u32, id, rank as u32, comm) }
}

unsafe extern "C" fn all_to_all(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    comm: CommPtr,
    stream: StreamPtr,
) -> RawResult {
    let Some(call) = LIBRARY.get().all_to_all else {
        return NOT_SUPPORTED;
    };
    let count = count as u64;
    // SAFETY: the caller's buffers and communicator; counts are per peer, as NCCL's.
    unsafe { call(send, count, dtype, recv, count, dtype, comm, stream) }
}

/// HCCL's number for what it doesn't have.
const NOT_SUPPORTED: RawResult = 5;

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
    const { assert!(size_of::<usize>() == size_of::<u64>()) };
    let Some(call) = LIBRARY.get().all_to_allv else {
        return NOT_SUPPORTED;
    };
    // SAFETY: the caller's buffers and arrays; both sides count elements in 64 bits.
    unsafe {
        call(
            send,
            send_counts.cast(),
            send_displs.cast(),
            dtype,
            recv,
            recv_counts.cast(),
            recv_displs.cast(),
            dtype,
            comm,
            stream,
        )
    }
}

unsafe fn send_recv(comm: CommPtr, messages: &[Message], stream: StreamPtr) -> Result<RawResult> {
    let mut items: Vec<SendRecvItem> = messages
        .iter()
        .map(|message| SendRecvItem {
            kind: c_int::from(!message.out),
            buffer: message.buffer,
            count: message.count as u64,
            dtype: message.dtype,
            remote: message.peer as u32,
        })
        .collect();
    let Some(batch) = LIBRARY.get().batch_send_recv else {
        return Err(Error::not_supported(
            "this HCCL has no HcclBatchSendRecv, without which messages can't be made together",
        ));
    };
    // SAFETY: the list is read during the call; the buffers are the caller's promise.
    Ok(unsafe { batch(items.as_mut_ptr(), items.len() as u32, comm, stream) })
}
