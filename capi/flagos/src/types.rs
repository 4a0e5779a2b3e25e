//! The C types. Numbers cross the boundary as 32-bit integers and are checked by who uses them.

use engine::internal;
use std::ffi::{c_char, c_void};

/// Result of a call: a `flagosResultCode`.
pub type flagosResult_t = i32;

/// Type of an element: a `flagosDataTypeCode`.
pub type flagosDataType_t = i32;

/// Reduction operator: a `flagosRedOpCode`, or one of flagosRedOpCreatePreMulSum.
pub type flagosRedOp_t = i32;

/// Where a scalar lies: a `flagosScalarResidenceCode`.
pub type flagosScalarResidence_t = i32;

/// Direction of a copy: a `flagosMemcpyCode`.
pub type flagosMemcpyType_t = i32;

/// What lies behind a flagosComm_t.
pub struct flagosComm {
    _opaque: [u8; 0],
}

/// A communicator: one rank's membership in a group of ranks. The library never follows this
/// pointer but looks it up; a handle that was destroyed, aborted or made up is an error, not a crash.
pub type flagosComm_t = *mut flagosComm;

/// What lies behind a flagosStream_t.
pub struct flagosStream {
    _opaque: [u8; 0],
}

/// A stream: the vendor's own handle (cudaStream_t, aclrtStream, ...) cast to this type, or one of
/// flagosStreamCreate. NULL is the vendor's default stream; on a machine without an accelerator's
/// driver NULL makes the call blocking.
pub type flagosStream_t = *mut flagosStream;

/// What lies behind a flagosEvent_t.
pub struct flagosEvent {
    _opaque: [u8; 0],
}

/// An event: the vendor's own handle cast to this type, or one of flagosEventCreate.
pub type flagosEvent_t = *mut flagosEvent;

/// What lies behind a flagosWindow_t.
pub struct flagosWindow {
    _opaque: [u8; 0],
}

/// A memory window of flagosCommWindowRegister.
pub type flagosWindow_t = *mut flagosWindow;

/// Bytes of a flagosUniqueId.
pub const FLAGOS_UNIQUE_ID_BYTES: usize = 256;

/// The most ranks that a communicator can have.
pub const FLAGOS_MAX_RANKS: usize = 1048576;

/// The most bytes, with the terminating zero, that a text in a flagosConfig_t can have.
pub const FLAGOS_MAX_TEXT_BYTES: usize = 1024;

/// Bytes of flagosCommInfo_t's vendor.
pub const FLAGOS_MAX_VENDOR_BYTES: usize = 32;

/// Bytes of flagosCommInfo_t's libraryPath and hostEngineText.
pub const FLAGOS_MAX_PATH_BYTES: usize = 1024;

/// Bytes of flagosCommInfo_t's hostEngine.
pub const FLAGOS_MAX_ENGINE_BYTES: usize = 32;

/// The first number that an operator of flagosRedOpCreatePreMulSum can have.
pub const FLAGOS_FIRST_CUSTOM_REDOP: i32 = 1000;

/// The first word of every flagosConfig_t and flagosSimInfo_t behind its size.
pub const FLAGOS_CONFIG_MAGIC: u32 = 0xf1a605c0;

/// The colour of a rank that takes no part in what flagosCommSplit makes.
pub const FLAGOS_SPLIT_NOCOLOR: i32 = -1;

/// flagosCommShrink: the communicator is healthy, its operations are finished first.
pub const FLAGOS_SHRINK_DEFAULT: i32 = 0;

/// flagosCommShrink: the excluded ranks are gone, operations under way are aborted.
pub const FLAGOS_SHRINK_ABORT: i32 = 1;

/// flagosCommRevoke: the only flags there are.
pub const FLAGOS_REVOKE_DEFAULT: i32 = 0;

/// flagosCommSuspend: release memory that can be had again at resume.
pub const FLAGOS_SUSPEND_MEM: i32 = 1;

/// flagosCommWindowRegister: an ordinary window.
pub const FLAGOS_WIN_DEFAULT: i32 = 0;

/// flagosCommWindowRegister: every rank's buffer has the same offset in its allocation.
pub const FLAGOS_WIN_COLL_SYMMETRIC: i32 = 1;

/// flagosEventCreate: an event that can be timed.
pub const FLAGOS_EVENT_DEFAULT: i32 = 0;

/// flagosEventCreate: an event that can't be timed and is cheaper to record.
pub const FLAGOS_EVENT_DISABLE_TIMING: i32 = 1;

/// Names a communicator to be. Opaque bytes, zeros included: copy it whole, never as a string.
/// The first 128 bytes carry all of its meaning.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct flagosUniqueId {
    /// Opaque.
    pub internal: [c_char; FLAGOS_UNIQUE_ID_BYTES],
}

/// Options of a communicator. Start from FLAGOS_CONFIG_INITIALIZER and set what you need; a number
/// that is FLAGOS_CONFIG_UNDEF and a text that is NULL leave the choice to the environment and then
/// to the default. The call copies everything; nothing needs to outlive it.
///
/// The struct grows at its end only. The library accepts the struct of an older header. It accepts
/// that of a newer header if what this library does not know is all zero, which is how every later
/// field says "undefined"; else it returns flagosNotSupported and a text with both versions.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct flagosConfig_t {
    /// sizeof(flagosConfig_t) of the caller's header.
    pub size: usize,
    /// FLAGOS_CONFIG_MAGIC.
    pub magic: u32,
    /// FLAGOS_COMM_VERSION_CODE of the caller's header.
    pub version: u32,
    /// 1 (default): the call returns when the communicator is ready. 0: it returns flagosInProgress
    /// with a valid handle at once, and flagosCommGetAsyncError says when it is ready.
    pub blocking: i32,
    /// 1: put the vendor's own communicator in its non-blocking mode, which lasts for its life and
    /// makes every operation return flagosInProgress until it is enqueued. 0 (default): do not.
    pub vendorNonblocking: i32,
    /// Limit in milliseconds for init and for everything that the ranks agree on; 0 is no limit.
    /// Default 120000.
    pub initTimeoutMs: i64,
    /// Limit in milliseconds for one collective of the host tier; 0 is no limit. Default 1800000.
    pub collectiveTimeoutMs: i64,
    /// Limit in milliseconds for destroy, and for the vendor's abort; 0 is no limit. Default 10000.
    pub destroyTimeoutMs: i64,
    /// Name of the communicator for error texts, and for the vendor where it takes one.
    pub name: *const c_char,
    /// Free text for people, shown in dumps.
    pub description: *const c_char,
    /// Tiers to try, in this order, comma-separated: native, flagcx, host.
    pub tiers: *const c_char,
    /// Vendor: name of the network module (NCCL's netName).
    pub netName: *const c_char,
    /// Device to bind to. Default: what the driver says is current on the calling thread.
    pub device: i32,
    /// Vendor: NCCL's cgaClusterSize.
    pub cgaClusterSize: i32,
    /// Vendor: NCCL's minCTAs.
    pub minCTAs: i32,
    /// Vendor: NCCL's maxCTAs.
    pub maxCTAs: i32,
    /// Vendor: NCCL's splitShare.
    pub splitShare: i32,
    /// Vendor: NCCL's trafficClass.
    pub trafficClass: i32,
    /// Vendor: NCCL's collnetEnable.
    pub collnetEnable: i32,
    /// Vendor: NCCL's CTAPolicy.
    pub CTAPolicy: i32,
    /// Vendor: NCCL's shrinkShare.
    pub shrinkShare: i32,
    /// Vendor: NCCL's nvlsCTAs.
    pub nvlsCTAs: i32,
    /// Vendor: NCCL's nChannelsPerNetPeer.
    pub nChannelsPerNetPeer: i32,
    /// Vendor: NCCL's nvlinkCentricSched.
    pub nvlinkCentricSched: i32,
    /// Vendor: NCCL's graphUsageMode.
    pub graphUsageMode: i32,
    /// Vendor: NCCL's numRmaCtx.
    pub numRmaCtx: i32,
    /// Vendor: NCCL's maxP2pPeers.
    pub maxP2pPeers: i32,
    /// Must be FLAGOS_CONFIG_UNDEF.
    pub reserved: i32,
}

/// What flagosGroupSimulateEnd answers. Start from FLAGOS_SIM_INFO_INITIALIZER.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct flagosSimInfo_t {
    /// sizeof(flagosSimInfo_t) of the caller's header.
    pub size: usize,
    /// FLAGOS_CONFIG_MAGIC.
    pub magic: u32,
    /// FLAGOS_COMM_VERSION_CODE of the caller's header.
    pub version: u32,
    /// Estimated time of the group in microseconds.
    pub estimatedTime: f32,
    /// Zero.
    pub reserved: u32,
}

/// What a communicator runs on. Start from FLAGOS_COMM_INFO_INITIALIZER. The struct grows at its
/// end only; the library fills what both headers know and zeroes the rest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct flagosCommInfo_t {
    /// sizeof(flagosCommInfo_t) of the caller's header.
    pub size: usize,
    /// A flagosTierCode.
    pub tier: i32,
    /// A flagosStreamKindCode: whose streams the communicator's operations take.
    pub streamKind: i32,
    /// A flagosCompletionCode: when an operation is complete.
    pub completion: i32,
    /// Version of the vendor's collective library as that library encodes it, 0 where there is none.
    pub libraryVersion: i32,
    /// Key of the vendor such as "nvidia"; empty on the host tier of a machine without a driver.
    pub vendor: [c_char; FLAGOS_MAX_VENDOR_BYTES],
    /// File of the vendor's collective library, cut to fit; empty on the host tier.
    pub libraryPath: [c_char; FLAGOS_MAX_PATH_BYTES],
    /// What the host tier moves data with: "shm", "ucx", "mpi" or "ucc", as FLAGOSCOMM_HOST_ENGINE names them, or
    /// "shm+ucx" or "shm+mpi", shared memory inside each machine and messages between them; empty on other tiers.
    pub hostEngine: [c_char; FLAGOS_MAX_ENGINE_BYTES],
    /// The same for people, with the version and file of a library, cut to fit; empty on other tiers.
    pub hostEngineText: [c_char; FLAGOS_MAX_PATH_BYTES],
}

/// What the driver knows about a pointer. Start from FLAGOS_POINTER_ATTRIBUTES_INITIALIZER. The
/// struct grows at its end only; the library fills what both headers know and zeroes the rest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct flagosPointerAttributes_t {
    /// sizeof(flagosPointerAttributes_t) of the caller's header.
    pub size: usize,
    /// A flagosMemoryCode.
    pub kind: i32,
    /// Device that owns the memory, -1 for none.
    pub device: i32,
}

/// What FlagCX has done through this library's adaptor plugins. Start from
/// FLAGOS_PLUGIN_COUNTERS_INITIALIZER. The struct grows at its end only; the library fills what both
/// headers know and zeroes the rest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct flagosPluginCounters_t {
    /// sizeof(flagosPluginCounters_t) of the caller's header.
    pub size: usize,
    /// Communicators that were joined through flagcxCCLAdaptorPlugin_v1, also those that are gone.
    pub communicators: u64,
    /// Operations that were started on them.
    pub operations: u64,
    /// Calls of functions of flagcxDeviceAdaptorPlugin_v1.
    pub deviceCalls: u64,
}

/// Receives every line of the log that passes FLAGOSCOMM_LOG: level 1 (error) to 5 (trace), the text
/// (valid during the call) and the pointer given to flagosSetLogCallback. Called from any thread,
/// from several at once; must not call this library.
pub type flagosLogCallback_t =
    Option<unsafe extern "C" fn(level: i32, text: *const c_char, user: *mut c_void)>;

// The header's numbers are the engine's.
const _: () = {
    assert!(FLAGOS_UNIQUE_ID_BYTES == engine::UNIQUE_ID_BYTES);
    assert!(FLAGOS_MAX_RANKS == engine::MAX_RANKS);
    assert!(FLAGOS_FIRST_CUSTOM_REDOP == engine::FIRST_CUSTOM_REDOP);
    assert!(size_of::<flagosComm_t>() == size_of::<internal::Handle>());
    // Layouts that are published. A field goes to the end, and only with a new assertion.
    assert!(size_of::<flagosConfig_t>() == 144);
    assert!(size_of::<flagosSimInfo_t>() == 24);
    assert!(size_of::<flagosCommInfo_t>() == 24 + 32 + 1024 + 32 + 1024);
    assert!(size_of::<flagosPointerAttributes_t>() == 16);
    assert!(size_of::<flagosPluginCounters_t>() == 32);
};
