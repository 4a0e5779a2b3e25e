//! Collective libraries of NCCL's shape: types, functions, and safe calls for everything that is
//! not on the hot path.
//!
//! Every function of the public host API of NCCL 2.18 to 2.32 has a typed slot. A few must be
//! there; the others may be missing, and a call that needs a missing one says so and names the
//! version that brings it.

use std::cell::UnsafeCell;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use super::{Mapped, Meaning, Vendor, Version};
use crate::device::UserPtr;
use crate::load::open::{Accepted, Lib, Refusal};
use crate::load::report::Coverage;
use crate::load::symbols::Resolver;
use crate::{Code, DataType, Error, RedOp, Result};

/// A vendor's communicator.
pub(crate) type CommPtr = *mut c_void;
/// A vendor's stream.
pub(crate) type StreamPtr = *mut c_void;
/// A vendor's window.
pub(crate) type WindowPtr = *mut c_void;
/// A vendor's result. Not an enum: newer libraries have numbers that we don't know.
pub(crate) type RawResult = c_int;

/// A unique id as it is passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Id128(pub(crate) [u8; 128]);

/// What `ncclGroupSimulateEnd` fills.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct SimInfo {
    size: usize,
    magic: c_uint,
    version: c_uint,
    estimated_time: f32,
}

/// What `ncclWaitSignal` waits for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitSignalDesc {
    pub(crate) op_count: c_int,
    pub(crate) peer: c_int,
    pub(crate) signal: c_int,
    pub(crate) context: c_int,
}

/// `ncclConfig_t` of 2.32.3. Only its offsets are used: what is passed is the smallest older
/// layout that holds the fields which were set, see [`CommOptions`].
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    traffic_class: c_int,
    comm_name: *const c_char,
    collnet_enable: c_int,
    cta_policy: c_int,
    shrink_share: c_int,
    nvls_ctas: c_int,
    n_channels_per_net_peer: c_int,
    nvlink_centric_sched: c_int,
    graph_usage_mode: c_int,
    num_rma_ctx: c_int,
    max_p2p_peers: c_int,
    graph_stream_ordering: c_int,
    launch_order_implicit: c_int,
    num_rma_sig: c_int,
    rma_eager_init: c_int,
    host_cft_mode: c_int,
    nvls_host_mode: c_int,
}

const _: () = {
    assert!(size_of::<Id128>() == 128 && align_of::<Id128>() == 1);
    assert!(size_of::<Config>() == 120 && align_of::<Config>() == 8);
    assert!(size_of::<SimInfo>() == 24);
    assert!(offset_of!(Config, net_name) == 32 && offset_of!(Config, comm_name) == 48);
    assert!(offset_of!(Config, nvls_host_mode) == 112);
};

/// One function of the ABI: its name after the prefix, whether a library without it is refused,
/// and the version that brought it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SymbolInfo {
    /// The name after the prefix.
    pub(crate) suffix: &'static str,
    /// Whether a library without it is refused.
    pub(crate) required: bool,
    /// The first version that has it.
    pub(crate) since: Version,
}

macro_rules! slot {
    (required, $f:ty) => { $f };
    (optional, $f:ty) => { Option<$f> };
}

macro_rules! is_required {
    (required) => {
        true
    };
    (optional) => {
        false
    };
}

macro_rules! fill {
    (required, $address:expr, $f:ty, $missing:expr) => {
        match $address {
            // SAFETY: the address is that of the vendor's function with this name, whose C
            // signature is the one given; function pointers have the size of data pointers here.
            Some(address) => unsafe { std::mem::transmute::<*mut c_void, $f>(address.as_ptr()) },
            None => return Err($missing),
        }
    };
    (optional, $address:expr, $f:ty, $missing:expr) => {
        // SAFETY: as for required functions.
        $address.map(|address| unsafe {
            std::mem::transmute::<*mut c_void, $f>(NonNull::as_ptr(address))
        })
    };
}

macro_rules! symbols {
    ($($need:ident $field:ident $suffix:literal [$major:literal $minor:literal $patch:literal]
        ($($arg:ty),* $(,)?) -> $ret:ty;)*) => {
        /// The functions of a loaded library.
        pub(crate) struct Symbols {
            $(
                #[doc = concat!("`nccl", $suffix, "`")]
                pub(crate) $field: slot!($need, unsafe extern "C" fn($($arg),*) -> $ret),
            )*
        }

        /// Every function that is looked up.
        pub(crate) static SYMBOLS: &[SymbolInfo] = &[
            $(SymbolInfo {
                suffix: $suffix,
                required: is_required!($need),
                since: Version::new($major, $minor, $patch),
            },)*
        ];

        impl Symbols {
            /// Looks every function up. On failure: the required ones that are missing.
            fn resolve(
                vendor: &Vendor,
                resolver: &mut Resolver<'_>,
            ) -> std::result::Result<Symbols, Vec<String>> {
                let mut missing: Vec<String> = Vec::new();
                $(
                    let $field = resolver.find(&function_name(vendor, $suffix));
                    if is_required!($need) && $field.is_none() {
                        missing.push(function_name(vendor, $suffix));
                    }
                )*
                if !missing.is_empty() {
                    return Err(missing);
                }
                Ok(Symbols {
                    $($field: fill!(
                        $need, $field, unsafe extern "C" fn($($arg),*) -> $ret, missing
                    ),)*
                })
            }
        }
    };
}

symbols! {
    optional get_version "GetVersion" [2 0 0] (*mut c_int) -> RawResult;
    required get_unique_id "GetUniqueId" [2 0 0] (*mut Id128) -> RawResult;
    required comm_init_rank "CommInitRank" [2 0 0] (*mut CommPtr, c_int, Id128, c_int) -> RawResult;
    optional comm_init_all "CommInitAll" [2 0 0] (*mut CommPtr, c_int, *const c_int) -> RawResult;
    required comm_destroy "CommDestroy" [2 0 0] (CommPtr) -> RawResult;
    required get_error_string "GetErrorString" [2 0 0] (RawResult) -> *const c_char;
    optional comm_count "CommCount" [2 0 0] (CommPtr, *mut c_int) -> RawResult;
    optional comm_device "CommCuDevice" [2 0 0] (CommPtr, *mut c_int) -> RawResult;
    optional comm_user_rank "CommUserRank" [2 0 0] (CommPtr, *mut c_int) -> RawResult;
    required reduce "Reduce" [2 0 0]
        (*const c_void, *mut c_void, usize, c_int, c_int, c_int, CommPtr, StreamPtr) -> RawResult;
    optional bcast "Bcast" [2 0 0]
        (*mut c_void, usize, c_int, c_int, CommPtr, StreamPtr) -> RawResult;
    required broadcast "Broadcast" [2 2 12]
        (*const c_void, *mut c_void, usize, c_int, c_int, CommPtr, StreamPtr) -> RawResult;
    required all_reduce "AllReduce" [2 0 0]
        (*const c_void, *mut c_void, usize, c_int, c_int, CommPtr, StreamPtr) -> RawResult;
    required reduce_scatter "ReduceScatter" [2 0 0]
        (*const c_void, *mut c_void, usize, c_int, c_int, CommPtr, StreamPtr) -> RawResult;
    required all_gather "AllGather" [2 0 0]
        (*const c_void, *mut c_void, usize, c_int, CommPtr, StreamPtr) -> RawResult;
    required group_start "GroupStart" [2 0 0] () -> RawResult;
    required group_end "GroupEnd" [2 0 0] () -> RawResult;
    optional comm_abort "CommAbort" [2 4 2] (CommPtr) -> RawResult;
    optional comm_get_async_error "CommGetAsyncError" [2 4 2] (CommPtr, *mut RawResult) -> RawResult;
    required send "Send" [2 7 3]
        (*const c_void, usize, c_int, c_int, CommPtr, StreamPtr) -> RawResult;
    required recv "Recv" [2 7 3]
        (*mut c_void, usize, c_int, c_int, CommPtr, StreamPtr) -> RawResult;
    optional red_op_create_pre_mul_sum "RedOpCreatePreMulSum" [2 11 4]
        (*mut c_int, *mut c_void, c_int, c_int, CommPtr) -> RawResult;
    optional red_op_destroy "RedOpDestroy" [2 11 4] (c_int, CommPtr) -> RawResult;
    optional get_last_error "GetLastError" [2 13 4] (CommPtr) -> *const c_char;
    optional comm_init_rank_config "CommInitRankConfig" [2 14 3]
        (*mut CommPtr, c_int, Id128, c_int, *mut c_void) -> RawResult;
    optional comm_finalize "CommFinalize" [2 14 3] (CommPtr) -> RawResult;
    optional comm_split "CommSplit" [2 18 1]
        (CommPtr, c_int, c_int, *mut CommPtr, *mut c_void) -> RawResult;
    optional mem_alloc "MemAlloc" [2 19 1] (*mut *mut c_void, usize) -> RawResult;
    optional mem_free "MemFree" [2 19 1] (*mut c_void) -> RawResult;
    optional comm_register "CommRegister" [2 19 1]
        (CommPtr, *mut c_void, usize, *mut *mut c_void) -> RawResult;
    optional comm_deregister "CommDeregister" [2 19 1] (CommPtr, *mut c_void) -> RawResult;
    optional group_simulate_end "GroupSimulateEnd" [2 22 3] (*mut SimInfo) -> RawResult;
    optional comm_init_rank_scalable "CommInitRankScalable" [2 23 4]
        (*mut CommPtr, c_int, c_int, c_int, *mut Id128, *mut c_void) -> RawResult;
    optional reset_debug_init "ResetDebugInit" [2 24 3] () -> ();
    optional comm_shrink "CommShrink" [2 27 3]
        (CommPtr, *mut c_int, c_int, *mut CommPtr, *mut c_void, c_int) -> RawResult;
    optional comm_window_register "CommWindowRegister" [2 27 3]
        (CommPtr, *mut c_void, usize, *mut WindowPtr, c_int) -> RawResult;
    optional comm_window_deregister "CommWindowDeregister" [2 27 3]
        (CommPtr, WindowPtr) -> RawResult;
    optional all_to_all "AlltoAll" [2 28 3]
        (*const c_void, *mut c_void, usize, c_int, CommPtr, StreamPtr) -> RawResult;
    optional gather "Gather" [2 28 3]
        (*const c_void, *mut c_void, usize, c_int, c_int, CommPtr, StreamPtr) -> RawResult;
    optional scatter "Scatter" [2 28 3]
        (*const c_void, *mut c_void, usize, c_int, c_int, CommPtr, StreamPtr) -> RawResult;
    optional comm_revoke "CommRevoke" [2 28 7] (CommPtr, c_int) -> RawResult;
    optional comm_get_unique_id "CommGetUniqueId" [2 29 2] (CommPtr, *mut Id128) -> RawResult;
    optional comm_grow "CommGrow" [2 29 2]
        (CommPtr, c_int, *const Id128, c_int, *mut CommPtr, *mut c_void) -> RawResult;
    optional win_get_user_ptr "WinGetUserPtr" [2 29 2]
        (CommPtr, WindowPtr, *mut *mut c_void) -> RawResult;
    optional put_signal "PutSignal" [2 29 2]
        (*const c_void, usize, c_int, c_int, WindowPtr, usize, c_int, c_int, c_uint, CommPtr, StreamPtr)
        -> RawResult;
    optional signal "Signal" [2 29 2]
        (c_int, c_int, c_int, c_uint, CommPtr, StreamPtr) -> RawResult;
    optional wait_signal "WaitSignal" [2 29 2]
        (c_int, *mut WaitSignalDesc, CommPtr, StreamPtr) -> RawResult;
    optional comm_suspend "CommSuspend" [2 29 7] (CommPtr, c_int) -> RawResult;
    optional comm_resume "CommResume" [2 29 7] (CommPtr) -> RawResult;
    optional comm_mem_stats "CommMemStats" [2 29 7] (CommPtr, c_int, *mut u64) -> RawResult;
    optional all_reduce_config "AllReduceConfig" [2 31 2]
        (*const c_void, *mut c_void, usize, c_int, c_int, CommPtr, StreamPtr, *const c_void)
        -> RawResult;
    optional broadcast_config "BroadcastConfig" [2 31 2]
        (*const c_void, *mut c_void, usize, c_int, c_int, CommPtr, StreamPtr, *const c_void)
        -> RawResult;
    optional reduce_config "ReduceConfig" [2 31 2]
        (*const c_void, *mut c_void, usize, c_int, c_int, c_int, CommPtr, StreamPtr, *const c_void)
        -> RawResult;
    optional all_gather_config "AllGatherConfig" [2 31 2]
        (*const c_void, *mut c_void, usize, c_int, CommPtr, StreamPtr, *const c_void) -> RawResult;
    optional reduce_scatter_config "ReduceScatterConfig" [2 31 2]
        (*const c_void, *mut c_void, usize, c_int, c_int, CommPtr, StreamPtr, *const c_void)
        -> RawResult;
    optional all_to_all_config "AlltoAllConfig" [2 31 2]
        (*const c_void, *mut c_void, usize, c_int, CommPtr, StreamPtr, *const c_void) -> RawResult;
    optional gather_config "GatherConfig" [2 31 2]
        (*const c_void, *mut c_void, usize, c_int, c_int, CommPtr, StreamPtr, *const c_void)
        -> RawResult;
    optional scatter_config "ScatterConfig" [2 31 2]
        (*const c_void, *mut c_void, usize, c_int, c_int, CommPtr, StreamPtr, *const c_void)
        -> RawResult;
    optional set_encryption "SetEncryption" [2 32 3] (*const c_void) -> RawResult;
}

/// The full name of a function at a vendor.
pub(crate) fn function_name(vendor: &Vendor, suffix: &str) -> String {
    match vendor.renames.iter().find(|(s, _)| *s == suffix) {
        Some((_, name)) => name.to_string(),
        None => format!("{}{suffix}", vendor.prefix),
    }
}

/// A knob of the vendor's communicator that is a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Knob {
    Blocking,
    CgaClusterSize,
    MinCtas,
    MaxCtas,
    SplitShare,
    TrafficClass,
    CollnetEnable,
    CtaPolicy,
    ShrinkShare,
    NvlsCtas,
    NChannelsPerNetPeer,
    NvlinkCentricSched,
    GraphUsageMode,
    NumRmaCtx,
    MaxP2pPeers,
    GraphStreamOrdering,
    LaunchOrderImplicit,
    NumRmaSig,
    RmaEagerInit,
    HostCftMode,
    NvlsHostMode,
}

struct KnobInfo {
    knob: Knob,
    name: &'static str,
    offset: usize,
    since: Version,
}

macro_rules! knobs {
    ($($knob:ident $field:ident $name:literal [$major:literal $minor:literal $patch:literal];)*) => {
        &[$(KnobInfo {
            knob: Knob::$knob,
            name: $name,
            offset: offset_of!(Config, $field),
            since: Version::new($major, $minor, $patch),
        },)*]
    };
}

static KNOBS: &[KnobInfo] = knobs! {
    Blocking blocking "blocking" [2 14 3];
    CgaClusterSize cga_cluster_size "cgaClusterSize" [2 17 0];
    MinCtas min_ctas "minCTAs" [2 17 0];
    MaxCtas max_ctas "maxCTAs" [2 17 0];
    SplitShare split_share "splitShare" [2 18 0];
    TrafficClass traffic_class "trafficClass" [2 26 2];
    CollnetEnable collnet_enable "collnetEnable" [2 27 3];
    CtaPolicy cta_policy "CTAPolicy" [2 27 3];
    ShrinkShare shrink_share "shrinkShare" [2 27 3];
    NvlsCtas nvls_ctas "nvlsCTAs" [2 27 3];
    NChannelsPerNetPeer n_channels_per_net_peer "nChannelsPerNetPeer" [2 28 3];
    NvlinkCentricSched nvlink_centric_sched "nvlinkCentricSched" [2 28 3];
    GraphUsageMode graph_usage_mode "graphUsageMode" [2 29 2];
    NumRmaCtx num_rma_ctx "numRmaCtx" [2 29 2];
    MaxP2pPeers max_p2p_peers "maxP2pPeers" [2 30 3];
    GraphStreamOrdering graph_stream_ordering "graphStreamOrdering" [2 30 7];
    LaunchOrderImplicit launch_order_implicit "launchOrderImplicit" [2 31 2];
    NumRmaSig num_rma_sig "numRmaSig" [2 31 2];
    RmaEagerInit rma_eager_init "rmaEagerInit" [2 31 2];
    HostCftMode host_cft_mode "hostCftMode" [2 31 2];
    NvlsHostMode nvls_host_mode "nvlsHostMode" [2 32 3];
};

/// Every layout that the config struct has had from the oldest version that works: its size and
/// the version that it came with. The first is understood by every such library.
static LAYOUTS: &[(usize, Version)] = &[
    (48, Version::new(2, 18, 0)),
    (48, Version::new(2, 26, 2)),
    (72, Version::new(2, 27, 3)),
    (80, Version::new(2, 28, 3)),
    (88, Version::new(2, 29, 2)),
    (96, Version::new(2, 30, 3)),
    (96, Version::new(2, 30, 7)),
    (112, Version::new(2, 31, 2)),
    (120, Version::new(2, 32, 3)),
];

const CONFIG_MAGIC: u32 = 0xcafe_beef;
const UNDEFINED: c_int = c_int::MIN;
const COMM_NAME_SINCE: Version = Version::new(2, 27, 3);
/// Far more than any layout has, so that a library that writes beyond ours hits spare bytes.
const CONFIG_BYTES: usize = 256;

/// What the caller wants of the vendor's communicator. What is not set is not passed.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommOptions {
    knobs: Vec<(Knob, i32)>,
    net_name: Option<CString>,
    comm_name: Option<CString>,
}

/// A config struct as it is passed, and the strings that it points to.
#[repr(C, align(8))]
struct ConfigBuffer {
    bytes: [u8; CONFIG_BYTES],
    net_name: Option<CString>,
    comm_name: Option<CString>,
}

impl CommOptions {
    /// Sets a number.
    pub(crate) fn set(&mut self, knob: Knob, value: i32) {
        self.knobs.retain(|(k, _)| *k != knob);
        self.knobs.push((knob, value));
    }

    /// Sets the network plugin's name.
    pub(crate) fn set_net_name(&mut self, name: CString) {
        self.net_name = Some(name);
    }

    /// Sets the communicator's name.
    pub(crate) fn set_comm_name(&mut self, name: CString) {
        self.comm_name = Some(name);
    }

    /// Whether nothing is set, so that no config need be passed.
    pub(crate) fn is_empty(&self) -> bool {
        self.knobs.is_empty() && self.net_name.is_none() && self.comm_name.is_none()
    }

    /// The smallest layout that holds everything that is set. What the library is too old for is
    /// refused: it would be ignored silently.
    fn buffer(&self, library: Option<Version>, title: &str) -> Result<ConfigBuffer> {
        let mut newest = LAYOUTS[0].1;
        let mut need = |name: &str, since: Version| {
            newest = newest.max(since);
            match library {
                Some(have) if have < since => Err(Error::not_supported(format!(
                    "the option {name} needs {title} {since} or newer; the loaded one is {have}"
                ))),
                None if since > LAYOUTS[0].1 => Err(Error::not_supported(format!(
                    "the option {name} needs {title} {since} or newer; the loaded one doesn't say \
                     its version"
                ))),
                _ => Ok(()),
            }
        };
        let mut buffer = ConfigBuffer {
            bytes: [0; CONFIG_BYTES],
            net_name: self.net_name.clone(),
            comm_name: self.comm_name.clone(),
        };
        for info in KNOBS {
            let value = self.knobs.iter().find(|(knob, _)| *knob == info.knob);
            if value.is_some() {
                need(info.name, info.since)?;
            }
            buffer.put(
                info.offset,
                &value.map_or(UNDEFINED, |(_, v)| *v).to_ne_bytes(),
            );
        }
        if self.comm_name.is_some() {
            need("commName", COMM_NAME_SINCE)?;
        }
        let layout = LAYOUTS.iter().find(|(_, version)| *version >= newest);
        let (size, version) = *layout.unwrap_or(&LAYOUTS[LAYOUTS.len() - 1]);
        // Nothing beyond the declared size is the library's business.
        buffer.bytes[size..].fill(0);
        let pointer = |name: &Option<CString>| name.as_ref().map_or(ptr::null(), |n| n.as_ptr());
        let net_name = pointer(&buffer.net_name).expose_provenance();
        let comm_name = pointer(&buffer.comm_name).expose_provenance();
        buffer.put(offset_of!(Config, size), &size.to_ne_bytes());
        buffer.put(offset_of!(Config, magic), &CONFIG_MAGIC.to_ne_bytes());
        buffer.put(
            offset_of!(Config, version),
            &version.nccl_code().to_ne_bytes(),
        );
        buffer.put(offset_of!(Config, net_name), &net_name.to_ne_bytes());
        if size > offset_of!(Config, comm_name) {
            buffer.put(offset_of!(Config, comm_name), &comm_name.to_ne_bytes());
        }
        Ok(buffer)
    }
}

impl ConfigBuffer {
    fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
}

/// Whether a call is finished. Only communicators that were asked to be non-blocking give
/// `Pending`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Progress {
    /// Finished.
    Done,
    /// The library goes on with it; ask [`VendorComm::async_error`].
    Pending,
}

/// A loaded collective library of NCCL's shape. It lives as long as the process.
pub(crate) struct Library {
    /// Its row.
    pub(crate) vendor: &'static Vendor,
    /// Its functions.
    pub(crate) symbols: Symbols,
    /// The version that it reports; `None` where the number means nothing or it has none.
    pub(crate) version: Option<Version>,
    /// The vendor's numbers of our data types; [`Library::UNSUPPORTED`] where there is none.
    pub(crate) dtypes: [c_int; 12],
    /// The vendor's numbers of our operators; [`Library::UNSUPPORTED`] where there is none.
    pub(crate) redops: [c_int; 5],
    lib: Lib,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Library")
            .field("vendor", &self.vendor.key)
            .field("version", &self.version)
            .field("lib", &self.lib)
            .finish()
    }
}

fn numbers<const N: usize>(
    table: &[Option<Mapped>; N],
    version: Option<Version>,
    min: Version,
) -> [c_int; N] {
    // A library that doesn't say its version is taken for the oldest that works.
    let version = version.unwrap_or(min);
    table.map(|entry| match entry {
        Some(mapped) if mapped.since <= version => mapped.value,
        _ => Library::UNSUPPORTED,
    })
}

impl Library {
    /// The number in [`Library::dtypes`] and [`Library::redops`] of what the library doesn't have.
    pub(crate) const UNSUPPORTED: c_int = -1;

    /// Takes an open library for a vendor's, or says why not: whose it is, then its version, then
    /// its functions.
    pub(crate) fn accept(
        vendor: &'static Vendor,
        lib: &Lib,
    ) -> std::result::Result<Accepted<Library>, Refusal> {
        let mut probe = Resolver::new(lib, vendor.companions);
        if probe.find(vendor.fingerprint).is_none() {
            return Err(Refusal::new(match probe.strays().first() {
                Some(stray) => format!("it is not {}: {stray}", vendor.title),
                None => format!(
                    "it is not {}: it has no {}",
                    vendor.title, vendor.fingerprint
                ),
            }));
        }
        for (name, whose) in vendor.strangers {
            if probe.find(name).is_some() {
                return Err(Refusal::new(format!(
                    "it is {whose}, not {}: it has {name}",
                    vendor.title
                )));
            }
        }
        let mut resolver = Resolver::new(lib, vendor.companions);
        let (code, version) = raw_version(vendor, lib);
        let version_text = match (code, version) {
            (_, Some(version)) => Some(version.to_string()),
            (Some(code), None) => Some(format!("unknown ({code})")),
            (None, None) => None,
        };
        if let Some(version) = version
            && (version < vendor.min_version || version >= vendor.end_version)
        {
            return Err(Refusal {
                reason: format!(
                    "{} version is {version}, but >= {} and < {} is required",
                    vendor.title, vendor.min_version, vendor.end_version
                ),
                version: version_text,
                coverage: None,
            });
        }
        let symbols = Symbols::resolve(vendor, &mut resolver);
        let coverage: Coverage = resolver.coverage();
        let symbols = match symbols {
            Ok(symbols) => symbols,
            Err(missing) => {
                let mut reason = format!("it lacks {}", missing.join(", "));
                for stray in resolver.strays() {
                    reason.push_str("; ");
                    reason.push_str(stray);
                }
                return Err(Refusal {
                    reason,
                    version: version_text,
                    coverage: Some(coverage),
                });
            }
        };
        for stray in resolver.strays() {
            log::warn!("{}: {stray}; it is not used", vendor.title);
        }
        if version.is_none() {
            log::warn!(
                "{}: {} reports {}; it is taken for {}",
                vendor.title,
                lib.path().display(),
                version_text.as_deref().unwrap_or("no version"),
                vendor.min_version
            );
        }
        let library = Library {
            vendor,
            symbols,
            version,
            dtypes: numbers(&vendor.dtypes, version, vendor.min_version),
            redops: numbers(&vendor.redops, version, vendor.min_version),
            lib: lib.clone(),
        };
        Ok(Accepted {
            value: library,
            version: version_text,
            coverage: Some(coverage),
        })
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        self.lib.path()
    }

    /// The version in words.
    pub(crate) fn version_text(&self) -> String {
        self.version
            .map_or_else(|| "unknown".to_string(), |v| v.to_string())
    }

    /// The vendor's number of a data type, or why there is none.
    pub(crate) fn dtype(&self, dtype: DataType) -> Result<c_int> {
        match self.dtypes[dtype as usize] {
            Library::UNSUPPORTED => {
                Err(self.unsupported(dtype.name(), self.vendor.dtypes[dtype as usize]))
            }
            number => Ok(number),
        }
    }

    /// The vendor's number of an operator, or why there is none.
    pub(crate) fn redop(&self, op: RedOp) -> Result<c_int> {
        match self.redops[op as usize] {
            Library::UNSUPPORTED => {
                Err(self.unsupported(op.name(), self.vendor.redops[op as usize]))
            }
            number => Ok(number),
        }
    }

    fn unsupported(&self, what: &str, mapped: Option<Mapped>) -> Error {
        Error::not_supported(match mapped {
            Some(mapped) => format!(
                "{what} needs {} {} or newer; the loaded one is {} ({})",
                self.vendor.title,
                mapped.since,
                self.version_text(),
                self.path().display()
            ),
            None => format!("{} has no {what}", self.vendor.title),
        })
    }

    /// The error for a function that the library lacks.
    #[cold]
    pub(crate) fn lacks(&self, suffix: &str) -> Error {
        let name = function_name(self.vendor, suffix);
        let since = SYMBOLS.iter().find(|s| s.suffix == suffix).map(|s| s.since);
        let since = since.map(|v| format!("; {} {v} brings it", self.vendor.title));
        Error::not_supported(format!(
            "{} ({} {}) has no {name}{}",
            self.path().display(),
            self.vendor.title,
            self.version_text(),
            since.unwrap_or_default()
        ))
    }

    /// The error for a result other than success: our code, the vendor's number and words, its
    /// last error, the library's path and version.
    #[cold]
    pub(crate) fn failed(&self, suffix: &str, result: RawResult, comm: CommPtr) -> Error {
        let code = match self.vendor.meaning(result) {
            Meaning::Code(code) => code,
            Meaning::Success => Code::InternalError,
        };
        let mut text = format!(
            "{} failed with {result}",
            function_name(self.vendor, suffix)
        );
        // SAFETY: takes a number, any number, and returns a string literal of the library.
        let words = unsafe { (self.symbols.get_error_string)(result) };
        if let Some(words) = text_at(words) {
            text.push_str(&format!(" ({words})"));
        }
        if let Some(get_last_error) = self.symbols.get_last_error {
            // SAFETY: the communicator is NULL, which is allowed, or one that the caller holds.
            let last = unsafe { get_last_error(comm) };
            if let Some(last) = text_at(last) {
                text.push_str(&format!("; its last error: {last}"));
            }
        }
        text.push_str(&format!(
            " [{} {}, {}]",
            self.vendor.title,
            self.version_text(),
            self.path().display()
        ));
        Error::new(code, text)
    }

    fn check(&self, suffix: &str, result: RawResult, comm: CommPtr) -> Result<()> {
        match self.vendor.meaning(result) {
            Meaning::Success => Ok(()),
            Meaning::Code(_) => Err(self.failed(suffix, result, comm)),
        }
    }

    fn progress(&self, suffix: &str, result: RawResult, comm: CommPtr) -> Result<Progress> {
        match self.vendor.meaning(result) {
            Meaning::Success => Ok(Progress::Done),
            Meaning::Code(Code::InProgress) => Ok(Progress::Pending),
            Meaning::Code(_) => Err(self.failed(suffix, result, comm)),
        }
    }

    /// A new unique id of the vendor.
    pub(crate) fn unique_id(&self) -> Result<Vec<u8>> {
        let mut id = Id128([0; 128]);
        // SAFETY: the function fills the 128 bytes of a live local.
        let result = unsafe { (self.symbols.get_unique_id)(&mut id) };
        self.check("GetUniqueId", result, ptr::null_mut())?;
        Ok(id.0.to_vec())
    }

    fn id(&self, bytes: &[u8]) -> Result<Id128> {
        let id: [u8; 128] = bytes.try_into().map_err(|_| {
            Error::internal(format!(
                "a unique id of {} has 128 bytes, not {}",
                self.vendor.title,
                bytes.len()
            ))
        })?;
        Ok(Id128(id))
    }

    fn config(&self, options: &CommOptions) -> Result<ConfigBuffer> {
        options.buffer(self.version, self.vendor.title)
    }

    /// Makes a communicator. The calling thread's device becomes its device.
    pub(crate) fn init_rank(
        &'static self,
        nranks: i32,
        id: &[u8],
        rank: i32,
        options: &CommOptions,
    ) -> Result<(VendorComm, Progress)> {
        let id = self.id(id)?;
        let slot = Slot::new(self.config(options)?, &[]);
        let (suffix, result) = if options.is_empty() {
            // SAFETY: the result goes to a place that lives until the communicator is gone, also
            // if the library writes it later; the id is passed by value.
            let result = unsafe { (self.symbols.comm_init_rank)(slot.out(), nranks, id, rank) };
            ("CommInitRank", result)
        } else {
            let suffix = "CommInitRankConfig";
            let init = self
                .symbols
                .comm_init_rank_config
                .ok_or_else(|| self.lacks(suffix))?;
            // SAFETY: as above; the config has the declared size and lives as long.
            let result = unsafe { init(slot.out(), nranks, id, rank, slot.config()) };
            (suffix, result)
        };
        self.started(suffix, result, slot)
    }

    /// Makes a communicator with several unique ids, for many ranks.
    pub(crate) fn init_rank_scalable(
        &'static self,
        nranks: i32,
        rank: i32,
        ids: &[Vec<u8>],
        options: &CommOptions,
    ) -> Result<(VendorComm, Progress)> {
        let suffix = "CommInitRankScalable";
        let init = self
            .symbols
            .comm_init_rank_scalable
            .ok_or_else(|| self.lacks(suffix))?;
        let mut ids = ids
            .iter()
            .map(|id| self.id(id))
            .collect::<Result<Vec<Id128>>>()?;
        let count = c_int::try_from(ids.len())
            .map_err(|_| Error::invalid_argument("there are too many unique ids"))?;
        let slot = Slot::new(self.config(options)?, &[]);
        // SAFETY: as in `init_rank`; the ids are an array of `count` that the library copies.
        let result = unsafe {
            init(
                slot.out(),
                nranks,
                rank,
                count,
                ids.as_mut_ptr(),
                slot.config(),
            )
        };
        self.started(suffix, result, slot)
    }

    fn started(
        &'static self,
        suffix: &str,
        result: RawResult,
        slot: Slot,
    ) -> Result<(VendorComm, Progress)> {
        // A failed init that goes on inside may still write to the slot, which is left behind.
        let progress = self.progress(suffix, result, ptr::null_mut())?;
        Ok((VendorComm::new(self, slot), progress))
    }

    /// Opens a group on this thread.
    pub(crate) fn group_start(&self) -> Result<()> {
        // SAFETY: takes nothing.
        let result = unsafe { (self.symbols.group_start)() };
        self.check("GroupStart", result, ptr::null_mut())
    }

    /// Closes a group on this thread.
    pub(crate) fn group_end(&self) -> Result<Progress> {
        // SAFETY: takes nothing.
        let result = unsafe { (self.symbols.group_end)() };
        self.progress("GroupEnd", result, ptr::null_mut())
    }

    /// Closes a group on this thread without running it; the library's estimate in seconds of how
    /// long it would take.
    pub(crate) fn group_simulate_end(&self) -> Result<f32> {
        let suffix = "GroupSimulateEnd";
        let simulate = self
            .symbols
            .group_simulate_end
            .ok_or_else(|| self.lacks(suffix))?;
        // Spare bytes behind the struct, in case a library writes a longer one.
        #[repr(C)]
        struct Padded {
            info: SimInfo,
            spare: [u64; 16],
        }
        let mut padded = Padded {
            info: SimInfo {
                size: size_of::<SimInfo>(),
                magic: 0x7468_5283,
                version: Version::new(2, 22, 3).nccl_code(),
                estimated_time: -1.0,
            },
            spare: [0; 16],
        };
        // SAFETY: a live local with the size that it declares, and spare bytes behind it.
        let result = unsafe { simulate((&raw mut padded).cast::<SimInfo>()) };
        let _ = padded.spare;
        self.check(suffix, result, ptr::null_mut())?;
        Ok(padded.info.estimated_time)
    }

    /// Memory of the library's own kind on the calling thread's device.
    pub(crate) fn mem_alloc(&self, bytes: usize) -> Result<*mut c_void> {
        let suffix = "MemAlloc";
        let alloc = self.symbols.mem_alloc.ok_or_else(|| self.lacks(suffix))?;
        let mut memory = ptr::null_mut();
        // SAFETY: the result goes to a live local.
        let result = unsafe { alloc(&mut memory, bytes) };
        self.check(suffix, result, ptr::null_mut())?;
        Ok(memory)
    }

    /// Gives back what `mem_alloc` gave.
    pub(crate) fn mem_free(&self, memory: UserPtr) -> Result<()> {
        let suffix = "MemFree";
        let free = self.symbols.mem_free.ok_or_else(|| self.lacks(suffix))?;
        // SAFETY: `UserPtr` carries the promise that the memory is what the caller says.
        let result = unsafe { free(memory.get()) };
        self.check(suffix, result, ptr::null_mut())
    }
}

fn raw_version(vendor: &Vendor, lib: &Lib) -> (Option<i32>, Option<Version>) {
    let mut resolver = Resolver::new(lib, vendor.companions);
    let Some(address) = resolver.find(&function_name(vendor, "GetVersion")) else {
        return (None, None);
    };
    // SAFETY: the address is that of the vendor's version function, which has this signature in
    // every version.
    let get_version = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> RawResult>(
            address.as_ptr(),
        )
    };
    let mut code = 0;
    // SAFETY: the number goes to a live local; the function needs no device and no other state.
    let result = unsafe { get_version(&mut code) };
    if result != 0 {
        return (None, None);
    }
    (Some(code), (vendor.decode_version)(code))
}

fn text_at(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not NULL, and by the library's contract a NUL-terminated string that outlives the
    // call; it is copied at once.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_string())
}

/// What a call to make a communicator reads and writes, also after it has returned: inside a group
/// and in non-blocking mode libraries write the handle when the work is done. So it has a fixed
/// place, which is reached through pointers only, and which is left behind unless the library has
/// said that the communicator is gone.
#[derive(Clone, Copy)]
struct Slot(NonNull<SlotData>);

struct SlotData {
    raw: AtomicPtr<c_void>,
    config: UnsafeCell<ConfigBuffer>,
    excluded: UnsafeCell<Vec<c_int>>,
}

// SAFETY: after the call that makes the communicator only the atomic handle is used, from any
// thread.
unsafe impl Send for Slot {}
// SAFETY: as above.
unsafe impl Sync for Slot {}

impl Slot {
    fn new(config: ConfigBuffer, excluded: &[c_int]) -> Slot {
        let data = SlotData {
            raw: AtomicPtr::new(ptr::null_mut()),
            config: UnsafeCell::new(config),
            excluded: UnsafeCell::new(excluded.to_vec()),
        };
        Slot(NonNull::from(Box::leak(Box::new(data))))
    }

    fn data(&self) -> &SlotData {
        // SAFETY: made by `new`, and freed only by the drop of the one `VendorComm` that has it;
        // what the library may write lies in an atomic and in cells.
        unsafe { self.0.as_ref() }
    }

    fn out(&self) -> *mut CommPtr {
        self.data().raw.as_ptr()
    }

    fn config(&self) -> *mut c_void {
        self.data().config.get().cast()
    }

    fn excluded(&self) -> *mut c_int {
        // SAFETY: nothing else refers to the list now: the library has not been given it yet.
        unsafe { (*self.data().excluded.get()).as_mut_ptr() }
    }
}

/// A communicator of the vendor. It is not destroyed on drop: what is not destroyed or aborted
/// by a call is left to the end of the process.
pub(crate) struct VendorComm {
    library: &'static Library,
    slot: Slot,
    closed: AtomicBool,
    gone: AtomicBool,
}

impl std::fmt::Debug for VendorComm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VendorComm")
            .field("library", &self.library.path())
            .field("closed", &self.closed)
            .finish()
    }
}

impl Drop for VendorComm {
    fn drop(&mut self) {
        if *self.gone.get_mut() {
            // SAFETY: made by `Box::leak` in `Slot::new`, freed once, here; the library has said
            // that the communicator is gone, so it has no pointer to the slot any more.
            drop(unsafe { Box::from_raw(self.slot.0.as_ptr()) });
        }
    }
}

impl VendorComm {
    fn new(library: &'static Library, slot: Slot) -> VendorComm {
        VendorComm {
            library,
            slot,
            closed: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        }
    }

    /// The library.
    pub(crate) fn library(&self) -> &'static Library {
        self.library
    }

    /// The vendor's handle; NULL before the group that makes it has ended. It is good until
    /// destroy or abort is called, which the holder of this struct has to order.
    pub(crate) fn raw(&self) -> CommPtr {
        self.slot.data().raw.load(Ordering::Acquire)
    }

    fn open(&self, suffix: &str) -> Result<CommPtr> {
        let raw = self.raw();
        if raw.is_null() || self.closed.load(Ordering::Acquire) {
            let state = if raw.is_null() {
                "not made yet"
            } else {
                "closed"
            };
            return Err(Error::invalid_usage(format!(
                "{} on a communicator of {} that is {state}",
                function_name(self.library.vendor, suffix),
                self.library.vendor.title
            )));
        }
        Ok(raw)
    }

    fn close(&self, suffix: &str) -> Result<CommPtr> {
        let raw = self.open(suffix)?;
        if self.closed.swap(true, Ordering::AcqRel) {
            return Err(Error::invalid_usage(format!(
                "{} on a communicator that another thread closes",
                function_name(self.library.vendor, suffix)
            )));
        }
        Ok(raw)
    }

    /// Waits for the work of all ranks; collective.
    pub(crate) fn finalize(&self) -> Result<Progress> {
        let suffix = "CommFinalize";
        let finalize = self
            .library
            .symbols
            .comm_finalize
            .ok_or_else(|| self.library.lacks(suffix))?;
        let raw = self.open(suffix)?;
        // SAFETY: an open communicator of this library.
        let result = unsafe { finalize(raw) };
        self.library.progress(suffix, result, raw)
    }

    /// Destroys it. Afterwards every call is refused.
    pub(crate) fn destroy(&self) -> Result<Progress> {
        let suffix = "CommDestroy";
        let raw = self.close(suffix)?;
        // SAFETY: an open communicator of this library, closed exactly once.
        let result = unsafe { (self.library.symbols.comm_destroy)(raw) };
        // The handle is no longer good, so the library's last error is asked without it.
        let progress = self.library.progress(suffix, result, ptr::null_mut())?;
        self.gone
            .store(progress == Progress::Done, Ordering::Release);
        Ok(progress)
    }

    /// Stops its work and destroys it. May run beside other calls on it, whose callers have to
    /// have left before this struct goes.
    pub(crate) fn abort(&self) -> Result<Progress> {
        let suffix = "CommAbort";
        let abort = self
            .library
            .symbols
            .comm_abort
            .ok_or_else(|| self.library.lacks(suffix))?;
        let raw = self.close(suffix)?;
        // SAFETY: as in `destroy`; the vendor allows abort beside other calls.
        let result = unsafe { abort(raw) };
        let progress = self.library.progress(suffix, result, ptr::null_mut())?;
        self.gone
            .store(progress == Progress::Done, Ordering::Release);
        Ok(progress)
    }

    /// Stops its work and keeps it for a shrink.
    pub(crate) fn revoke(&self, flags: i32) -> Result<Progress> {
        let suffix = "CommRevoke";
        let revoke = self
            .library
            .symbols
            .comm_revoke
            .ok_or_else(|| self.library.lacks(suffix))?;
        let raw = self.open(suffix)?;
        // SAFETY: an open communicator of this library.
        let result = unsafe { revoke(raw, flags) };
        self.library.progress(suffix, result, raw)
    }

    /// Gives its resources back for a while.
    pub(crate) fn suspend(&self, flags: i32) -> Result<Progress> {
        let suffix = "CommSuspend";
        let suspend = self
            .library
            .symbols
            .comm_suspend
            .ok_or_else(|| self.library.lacks(suffix))?;
        let raw = self.open(suffix)?;
        // SAFETY: an open communicator of this library.
        let result = unsafe { suspend(raw, flags) };
        self.library.progress(suffix, result, raw)
    }

    /// Takes its resources again.
    pub(crate) fn resume(&self) -> Result<Progress> {
        let suffix = "CommResume";
        let resume = self
            .library
            .symbols
            .comm_resume
            .ok_or_else(|| self.library.lacks(suffix))?;
        let raw = self.open(suffix)?;
        // SAFETY: an open communicator of this library.
        let result = unsafe { resume(raw) };
        self.library.progress(suffix, result, raw)
    }

    /// What the library knows about it: fine, still at work, or what went wrong.
    pub(crate) fn async_error(&self) -> Result<Progress> {
        let suffix = "CommGetAsyncError";
        let ask = self
            .library
            .symbols
            .comm_get_async_error
            .ok_or_else(|| self.library.lacks(suffix))?;
        let raw = self.open(suffix)?;
        let mut state = 0;
        // SAFETY: an open communicator of this library; the answer goes to a live local.
        let result = unsafe { ask(raw, &mut state) };
        self.library.check(suffix, result, raw)?;
        self.library
            .progress(suffix, state, raw)
            .map_err(|error| error.context("the communicator failed"))
    }

    fn number(
        &self,
        suffix: &str,
        ask: Option<unsafe extern "C" fn(CommPtr, *mut c_int) -> RawResult>,
    ) -> Result<i32> {
        let ask = ask.ok_or_else(|| self.library.lacks(suffix))?;
        let raw = self.open(suffix)?;
        let mut number = -1;
        // SAFETY: an open communicator of this library; the answer goes to a live local.
        let result = unsafe { ask(raw, &mut number) };
        self.library.check(suffix, result, raw)?;
        Ok(number)
    }

    /// Number of ranks.
    pub(crate) fn count(&self) -> Result<i32> {
        self.number("CommCount", self.library.symbols.comm_count)
    }

    /// Its rank.
    pub(crate) fn user_rank(&self) -> Result<i32> {
        self.number("CommUserRank", self.library.symbols.comm_user_rank)
    }

    /// Its device.
    pub(crate) fn device(&self) -> Result<i32> {
        self.number("CommCuDevice", self.library.symbols.comm_device)
    }

    /// Splits it; collective. `None` as color takes part and gets no communicator. In a group the
    /// result is there when the group has ended.
    pub(crate) fn split(
        &self,
        color: Option<i32>,
        key: i32,
        options: &CommOptions,
    ) -> Result<(Option<VendorComm>, Progress)> {
        let suffix = "CommSplit";
        let split = self
            .library
            .symbols
            .comm_split
            .ok_or_else(|| self.library.lacks(suffix))?;
        let raw = self.open(suffix)?;
        let slot = Slot::new(self.library.config(options)?, &[]);
        let config = if options.is_empty() {
            ptr::null_mut()
        } else {
            slot.config()
        };
        // SAFETY: an open communicator; result and config live until the new one is gone.
        let result = unsafe { split(raw, color.unwrap_or(-1), key, slot.out(), config) };
        let (comm, progress) = self.library.started(suffix, result, slot)?;
        Ok((color.map(|_| comm), progress))
    }

    /// The communicator of the ranks that are not in `excluded`. `abort` stops the parent's work.
    pub(crate) fn shrink(
        &self,
        excluded: &[i32],
        abort: bool,
        options: &CommOptions,
    ) -> Result<(VendorComm, Progress)> {
        let suffix = "CommShrink";
        let shrink = self
            .library
            .symbols
            .comm_shrink
            .ok_or_else(|| self.library.lacks(suffix))?;
        let raw = self.open(suffix)?;
        let slot = Slot::new(self.library.config(options)?, excluded);
        let count = c_int::try_from(excluded.len())
            .map_err(|_| Error::invalid_argument("too many ranks are excluded"))?;
        let config = if options.is_empty() {
            ptr::null_mut()
        } else {
            slot.config()
        };
        let list = slot.excluded();
        // SAFETY: as in `split`; the list of excluded ranks lives as long.
        let result = unsafe { shrink(raw, list, count, slot.out(), config, c_int::from(abort)) };
        self.library.started(suffix, result, slot)
    }

    /// Registers memory; local.
    pub(crate) fn register(&self, memory: UserPtr, bytes: usize) -> Result<*mut c_void> {
        let suffix = "CommRegister";
        let register = self
            .library
            .symbols
            .comm_register
            .ok_or_else(|| self.library.lacks(suffix))?;
        let raw = self.open(suffix)?;
        let mut handle = ptr::null_mut();
        // SAFETY: an open communicator; `UserPtr` carries the promise about the memory; the handle
        // goes to a live local.
        let result = unsafe { register(raw, memory.get(), bytes, &mut handle) };
        self.library.check(suffix, result, raw)?;
        Ok(handle)
    }

    /// Takes a registration back.
    pub(crate) fn deregister(&self, handle: UserPtr) -> Result<()> {
        let suffix = "CommDeregister";
        let deregister = self
            .library
            .symbols
            .comm_deregister
            .ok_or_else(|| self.library.lacks(suffix))?;
        let raw = self.open(suffix)?;
        // SAFETY: an open communicator; `UserPtr` carries the promise that the handle is one that
        // `register` gave.
        let result = unsafe { deregister(raw, handle.get()) };
        self.library.check(suffix, result, raw)
    }

    /// Makes a window; collective. The library writes the handle before it returns, or before the
    /// group ends.
    pub(crate) fn window_register(
        &self,
        memory: UserPtr,
        bytes: usize,
        flags: i32,
    ) -> Result<(Window, Progress)> {
        let suffix = "CommWindowRegister";
        let register = self
            .library
            .symbols
            .comm_window_register
            .ok_or_else(|| self.library.lacks(suffix))?;
        let raw = self.open(suffix)?;
        // In a group the handle is written at its end, so its place is never freed.
        let place: &'static AtomicPtr<c_void> =
            Box::leak(Box::new(AtomicPtr::new(ptr::null_mut())));
        // SAFETY: as in `register`; the handle goes to a place that lives for the process.
        let result = unsafe { register(raw, memory.get(), bytes, place.as_ptr(), flags) };
        let progress = self.library.progress(suffix, result, raw)?;
        Ok((Window { place }, progress))
    }

    /// Takes a window back.
    pub(crate) fn window_deregister(&self, window: UserPtr) -> Result<()> {
        let suffix = "CommWindowDeregister";
        let deregister = self
            .library
            .symbols
            .comm_window_deregister
            .ok_or_else(|| self.library.lacks(suffix))?;
        let raw = self.open(suffix)?;
        // SAFETY: an open communicator; `UserPtr` carries the promise that the handle is one that
        // the library wrote.
        let result = unsafe { deregister(raw, window.get()) };
        self.library.check(suffix, result, raw)
    }

    /// An operator that multiplies this rank's contribution by a scalar of type `dtype`.
    pub(crate) fn create_pre_mul_sum(&self, scalar: Scalar, dtype: DataType) -> Result<c_int> {
        let suffix = "RedOpCreatePreMulSum";
        let create = self
            .library
            .symbols
            .red_op_create_pre_mul_sum
            .ok_or_else(|| self.library.lacks(suffix))?;
        let dtype = self.library.dtype(dtype)?;
        let raw = self.open(suffix)?;
        let mut op = 0;
        let (mut bytes, residence, device) = match scalar {
            Scalar::Host(bytes) => (bytes, 1, None),
            Scalar::Device(pointer) => ([0; 8], 0, Some(pointer)),
        };
        let pointer = device.map_or(bytes.as_mut_ptr().cast(), UserPtr::get);
        // SAFETY: an open communicator; a host scalar is read during the call from a live local of
        // eight bytes, a device scalar is what `UserPtr` promises; the number goes to a local.
        let result = unsafe { create(&mut op, pointer, dtype, residence, raw) };
        self.library.check(suffix, result, raw)?;
        Ok(op)
    }

    /// Takes an operator back.
    pub(crate) fn destroy_redop(&self, op: c_int) -> Result<()> {
        let suffix = "RedOpDestroy";
        let destroy = self
            .library
            .symbols
            .red_op_destroy
            .ok_or_else(|| self.library.lacks(suffix))?;
        let raw = self.open(suffix)?;
        // SAFETY: an open communicator; the library checks the number.
        let result = unsafe { destroy(op, raw) };
        self.library.check(suffix, result, raw)
    }
}

/// A window of a communicator.
#[derive(Debug)]
pub(crate) struct Window {
    place: &'static AtomicPtr<c_void>,
}

impl Window {
    /// The vendor's handle; NULL before the group that makes it has ended.
    pub(crate) fn raw(&self) -> WindowPtr {
        self.place.load(Ordering::Acquire)
    }
}

/// Where the scalar of an operator is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scalar {
    /// Here, in native byte order.
    Host([u8; 8]),
    /// In device memory.
    Device(UserPtr),
}
