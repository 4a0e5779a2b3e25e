//! The functions of a collective library, in NCCL's shape.
//!
//! Every function of the public host API of NCCL 2.18 to 2.32 has a typed slot, and so have the few
//! that other libraries of this shape have beside it. A library of another shape fills the slots with
//! adapters.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::{Ccl, Version};
use crate::load::symbols::{Declaration, Layout};

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
    pub(crate) size: usize,
    pub(crate) magic: c_uint,
    pub(crate) version: c_uint,
    pub(crate) estimated_time: f32,
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

const _: () = {
    assert!(size_of::<Id128>() == 128 && align_of::<Id128>() == 1);
    assert!(size_of::<SimInfo>() == 24);
};

pub(super) fn sim_info_layout(library: &'static str) -> Layout {
    Layout {
        library,
        name: "ncclSimInfo_t",
        size: size_of::<SimInfo>(),
        exact: true,
        fields: vec![
            ("size", offset_of!(SimInfo, size)),
            ("magic", offset_of!(SimInfo, magic)),
            ("version", offset_of!(SimInfo, version)),
            ("estimatedTime", offset_of!(SimInfo, estimated_time)),
        ],
    }
}

pub(super) fn wait_signal_layout(library: &'static str) -> Layout {
    Layout {
        library,
        name: "ncclWaitSignalDesc_t",
        size: size_of::<WaitSignalDesc>(),
        exact: true,
        fields: vec![
            ("opCnt", offset_of!(WaitSignalDesc, op_count)),
            ("peer", offset_of!(WaitSignalDesc, peer)),
            ("sigIdx", offset_of!(WaitSignalDesc, signal)),
            ("ctx", offset_of!(WaitSignalDesc, context)),
        ],
    }
}

/// One function of an ABI: its name, or what follows the prefix; the version that brought it; and
/// its signature as it is declared here, for the check against the vendor's C declarations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SymbolInfo {
    /// The name, or what follows the prefix.
    pub(crate) suffix: &'static str,
    /// The first version that has it.
    pub(crate) since: Version,
    /// Types of the arguments.
    pub(crate) arguments: &'static [&'static str],
    /// Type of the result.
    pub(crate) result: &'static str,
}

/// Where a table's functions are looked up; the name is as in the table.
pub(crate) type Find<'a> = dyn FnMut(&str) -> Option<NonNull<c_void>> + 'a;

macro_rules! slot {
    (required, $f:ty) => { $f };
    (optional, $f:ty) => { Option<$f> };
}
pub(super) use slot;

macro_rules! is_required {
    (required) => {
        true
    };
    (optional) => {
        false
    };
}
pub(super) use is_required;

macro_rules! fill {
    (required, $address:expr, $f:ty, $missing:expr) => {
        match $address {
            // SAFETY: the address is that of the vendor's function with this name, whose C
            // signature is the one given; function pointers have the size of data pointers here.
            Some(address) => unsafe {
                std::mem::transmute::<*mut std::ffi::c_void, $f>(address.as_ptr())
            },
            None => return Err($missing),
        }
    };
    (optional, $address:expr, $f:ty, $missing:expr) => {
        // SAFETY: as for required functions.
        $address.map(|address| unsafe {
            std::mem::transmute::<*mut std::ffi::c_void, $f>(std::ptr::NonNull::as_ptr(address))
        })
    };
}
pub(super) use fill;

/// A table of functions of one library. Each entry: whether a library without it is refused, field,
/// name, the version that brought it, signature.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident {
        $($need:ident $field:ident $suffix:literal [$major:literal $minor:literal $patch:literal]
            ($($arg:ty),* $(,)?) -> $ret:ty;)*
    }) => {
        $(#[$doc])*
        #[allow(dead_code, reason = "what nothing calls yet is looked up for the load report")]
        pub(crate) struct $table {
            $(
                #[doc = concat!("`", $suffix, "`")]
                pub(crate) $field: $crate::vendor::symbols::slot!(
                    $need, unsafe extern "C" fn($($arg),*) -> $ret
                ),
            )*
        }

        impl $table {
            /// Every function that is looked up.
            pub(crate) const SYMBOLS: &'static [$crate::vendor::symbols::SymbolInfo] = &[
                $($crate::vendor::symbols::SymbolInfo {
                    suffix: $suffix,
                    since: $crate::vendor::Version::new($major, $minor, $patch),
                    arguments: &[$(stringify!($arg)),*],
                    result: stringify!($ret),
                },)*
            ];

            /// Looks every function up. On failure: the required ones that are missing, as the
            /// table names them.
            pub(crate) fn resolve(
                find: &mut $crate::vendor::symbols::Find<'_>,
            ) -> std::result::Result<$table, Vec<&'static str>> {
                #[allow(unused_mut)]
                let mut missing: Vec<&'static str> = Vec::new();
                $(
                    let $field = find($suffix);
                    if $crate::vendor::symbols::is_required!($need) && $field.is_none() {
                        missing.push($suffix);
                    }
                )*
                if !missing.is_empty() {
                    return Err(missing);
                }
                Ok($table {
                    $($field: $crate::vendor::symbols::fill!(
                        $need, $field, unsafe extern "C" fn($($arg),*) -> $ret, missing
                    ),)*
                })
            }
        }
    };
}
pub(super) use functions;

functions! {
    /// What every library has, of whatever shape.
    Calls {
    required comm_destroy "CommDestroy" [2 0 0] (CommPtr) -> RawResult;
    required reduce "Reduce" [2 0 0]
        (*const c_void, *mut c_void, usize, c_int, c_int, c_int, CommPtr, StreamPtr) -> RawResult;
    required all_reduce "AllReduce" [2 0 0]
        (*const c_void, *mut c_void, usize, c_int, c_int, CommPtr, StreamPtr) -> RawResult;
    required reduce_scatter "ReduceScatter" [2 0 0]
        (*const c_void, *mut c_void, usize, c_int, c_int, CommPtr, StreamPtr) -> RawResult;
    required all_gather "AllGather" [2 0 0]
        (*const c_void, *mut c_void, usize, c_int, CommPtr, StreamPtr) -> RawResult;
    required send "Send" [2 7 3]
        (*const c_void, usize, c_int, c_int, CommPtr, StreamPtr) -> RawResult;
    required recv "Recv" [2 7 3]
        (*mut c_void, usize, c_int, c_int, CommPtr, StreamPtr) -> RawResult;
    }
}

functions! {
    /// What a library may lack.
    #[derive(Default)]
    Symbols {
    optional get_version "GetVersion" [2 0 0] (*mut c_int) -> RawResult;
    optional get_unique_id "GetUniqueId" [2 0 0] (*mut Id128) -> RawResult;
    optional comm_init_rank "CommInitRank" [2 0 0] (*mut CommPtr, c_int, Id128, c_int) -> RawResult;
    optional comm_init_all "CommInitAll" [2 0 0] (*mut CommPtr, c_int, *const c_int) -> RawResult;
    optional get_error_string "GetErrorString" [2 0 0] (RawResult) -> *const c_char;
    optional comm_count "CommCount" [2 0 0] (CommPtr, *mut c_int) -> RawResult;
    optional comm_device "CommCuDevice" [2 0 0] (CommPtr, *mut c_int) -> RawResult;
    optional comm_user_rank "CommUserRank" [2 0 0] (CommPtr, *mut c_int) -> RawResult;
    optional bcast "Bcast" [2 0 0]
        (*mut c_void, usize, c_int, c_int, CommPtr, StreamPtr) -> RawResult;
    optional broadcast "Broadcast" [2 2 12]
        (*const c_void, *mut c_void, usize, c_int, c_int, CommPtr, StreamPtr) -> RawResult;
    optional group_start "GroupStart" [2 0 0] () -> RawResult;
    optional group_end "GroupEnd" [2 0 0] () -> RawResult;
    optional comm_abort "CommAbort" [2 4 2] (CommPtr) -> RawResult;
    optional comm_get_async_error "CommGetAsyncError" [2 4 2] (CommPtr, *mut RawResult) -> RawResult;
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
    optional all_to_allv "AlltoAllv" [0 0 0]
        (*const c_void, *const usize, *const usize, *mut c_void, *const usize, *const usize, c_int, CommPtr, StreamPtr)
        -> RawResult;
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
}

/// Of [`Symbols`], what a library of NCCL's shape must have.
pub(crate) const NEEDED: &[&str] = &[
    "GetUniqueId",
    "CommInitRank",
    "Broadcast",
    "GroupStart",
    "GroupEnd",
];

/// The names that a function may have at a vendor, the usual one first.
pub(crate) fn function_names(row: &Ccl, suffix: &str) -> Vec<String> {
    match row.renames.iter().find(|(s, _)| *s == suffix) {
        Some((_, names)) => names.iter().map(|name| name.to_string()).collect(),
        None => vec![format!("{}{suffix}", row.prefix)],
    }
}

/// The usual name of a function at a vendor.
pub(crate) fn function_name(row: &Ccl, suffix: &str) -> String {
    let mut names = function_names(row, suffix);
    match names.is_empty() {
        // The library has no such function: what it is made of has failed.
        true => format!("{}{suffix}", row.prefix),
        false => names.swap_remove(0),
    }
}

/// What the entries of a table are at a vendor, for the check against its C declarations. Entries
/// that `names` gives no name are left out.
pub(super) fn declare(
    row: &Ccl,
    table: &[SymbolInfo],
    names: &dyn Fn(&str) -> Vec<String>,
) -> Vec<Declaration> {
    let each = table.iter().flat_map(|info| {
        names(info.suffix).into_iter().map(|name| Declaration {
            library: row.key,
            name,
            arguments: info.arguments.to_vec(),
            result: info.result,
        })
    });
    each.collect()
}

/// The entries of NCCL's tables that are looked up directly at a vendor.
pub(super) fn declare_shape(row: &Ccl, direct: &dyn Fn(&str) -> bool) -> Vec<Declaration> {
    let names = |suffix: &str| match direct(suffix) {
        true => function_names(row, suffix),
        false => Vec::new(),
    };
    let mut all = declare(row, Calls::SYMBOLS, &names);
    all.extend(declare(row, Symbols::SYMBOLS, &names));
    all
}

/// The entries of a table whose names are whole.
pub(super) fn declare_own(row: &Ccl, table: &[SymbolInfo]) -> Vec<Declaration> {
    declare(row, table, &|name| vec![name.to_string()])
}

/// A library's own table behind adapters, which are plain C functions and have no other way to it.
/// A process drives one library of a kind.
pub(crate) struct Shared<T: 'static>(AtomicPtr<T>);

impl<T: Sync> Shared<T> {
    pub(crate) const fn new() -> Shared<T> {
        Shared(AtomicPtr::new(ptr::null_mut()))
    }

    /// Puts a table in place for good.
    pub(crate) fn set(&self, table: T) {
        self.0.store(Box::leak(Box::new(table)), Ordering::Release);
    }

    /// The table that was put in place last.
    ///
    /// # Panics
    /// If there is none: adapters are handed out only after `set`.
    pub(crate) fn get(&self) -> &'static T {
        // SAFETY: null, or a leaked box of `set`.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }.expect("adapters without their library")
    }
}
