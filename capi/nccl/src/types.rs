//! NCCL's C types. Numbers cross the boundary as 32-bit integers and are checked by who uses them.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// A result of NCCL's set.
pub type ncclResult_t = i32;
pub type ncclDataType_t = i32;
pub type ncclRedOp_t = i32;
pub type ncclScalarResidence_t = i32;

pub const ncclSuccess: ncclResult_t = 0;
pub const ncclUnhandledCudaError: ncclResult_t = 1;
pub const ncclSystemError: ncclResult_t = 2;
pub const ncclInternalError: ncclResult_t = 3;
pub const ncclInvalidArgument: ncclResult_t = 4;
pub const ncclInvalidUsage: ncclResult_t = 5;
pub const ncclRemoteError: ncclResult_t = 6;
pub const ncclInProgress: ncclResult_t = 7;

pub const NCCL_UNIQUE_ID_BYTES: usize = 128;
pub const NCCL_SPLIT_NOCOLOR: c_int = -1;
pub const NCCL_CONFIG_UNDEF_INT: c_int = c_int::MIN;
pub const NCCL_CONFIG_MAGIC: c_uint = 0xcafe_beef;
pub const NCCL_SIM_INFO_MAGIC: c_uint = 0x7468_5283;

/// Passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclUniqueId {
    pub internal: [u8; NCCL_UNIQUE_ID_BYTES],
}
const _: () = assert!(size_of::<ncclUniqueId>() == 128 && align_of::<ncclUniqueId>() == 1);

/// What a communicator handle points to, which nobody follows.
pub struct ncclComm {
    _opaque: [u8; 0],
}
pub type ncclComm_t = *mut ncclComm;

/// The names under which the boundary, which is the native library's, knows two of the types.
pub type flagosComm_t = ncclComm_t;
pub type flagosResult_t = i32;

/// The vendor's own stream.
pub type cudaStream_t = *mut c_void;
pub type ncclWindow_t = *mut c_void;

/// The config struct of the newest header that is known, 2.32. A caller's is that of its header: its size
/// and version say how much of this it has.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclConfig_t {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub blocking: c_int,
    pub cgaClusterSize: c_int,
    pub minCTAs: c_int,
    pub maxCTAs: c_int,
    pub netName: *const c_char,
    pub splitShare: c_int,
    pub trafficClass: c_int,
    pub commName: *const c_char,
    pub collnetEnable: c_int,
    pub CTAPolicy: c_int,
    pub shrinkShare: c_int,
    pub nvlsCTAs: c_int,
    pub nChannelsPerNetPeer: c_int,
    pub nvlinkCentricSched: c_int,
    pub graphUsageMode: c_int,
    pub numRmaCtx: c_int,
    pub maxP2pPeers: c_int,
    pub graphStreamOrdering: c_int,
    pub launchOrderImplicit: c_int,
    pub numRmaSig: c_int,
    pub rmaEagerInit: c_int,
    pub hostCftMode: c_int,
    pub nvlsHostMode: c_int,
}
const _: () = assert!(size_of::<ncclConfig_t>() == 120);

/// What a simulated end of a group is told into.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclSimInfo_t {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub estimatedTime: f32,
}
const _: () = assert!(size_of::<ncclSimInfo_t>() == 24);

/// Ranks by their number, the first of them and the distance between two. Returned by value.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ncclTeam_t {
    pub nRanks: c_int,
    pub rank: c_int,
    pub stride: c_int,
}
