//! Reads a caller's `ncclConfig_t`, whatever header it was compiled with.

use crate::boundary::null;
use crate::types::*;
use engine::{Error, Options, Result, VendorKnobs};
use std::ffi::{CString, c_char, c_int};
use std::mem::offset_of;

/// Size of the struct in the first header that had it, 2.14.
const FIRST_SIZE: usize = 24;
/// More than this is no size but garbage.
const LARGEST_SIZE: usize = 4096;
const FIRST_VERSION: u32 = 21400;
/// A name is no longer than this.
const LONGEST_NAME: usize = 4096;

/// The options of an init without a config.
pub(crate) fn default() -> Options {
    Options {
        blocking: Some(true),
        // FlagCX would use the NCCL that we were put in place of: this library.
        caller: engine::Caller::NcclProgram,
        // A program written for NCCL sets what NCCL has. What another vendor's library lacks of it costs
        // speed and nothing else.
        knobs_are_hints: true,
        ..Options::default()
    }
}

/// `None` if `config` is NULL.
///
/// # Safety
/// A pointer that is not NULL must point to a `ncclConfig_t` of some header, with its size and with
/// texts that are NULL or zero-terminated.
pub(crate) unsafe fn optional(config: *const ncclConfig_t) -> Result<Option<Options>> {
    if config.is_null() {
        return Ok(None);
    }
    // SAFETY: as this function's.
    unsafe { read(config) }.map(Some)
}

/// A field that is a number, and the version of the header that brought it.
struct Field {
    name: &'static str,
    offset: usize,
    since: u32,
}

macro_rules! fields {
    ($($field:ident $since:literal;)*) => {
        [$(Field {
            name: stringify!($field),
            offset: offset_of!(ncclConfig_t, $field),
            since: $since,
        },)*]
    };
}

/// Those that can be handed on to a vendor's library.
const KNOWN: [Field; 15] = fields! {
    blocking 21400;
    cgaClusterSize 21700;
    minCTAs 21700;
    maxCTAs 21700;
    splitShare 21800;
    trafficClass 22602;
    collnetEnable 22703;
    CTAPolicy 22703;
    shrinkShare 22703;
    nvlsCTAs 22703;
    nChannelsPerNetPeer 22803;
    nvlinkCentricSched 22803;
    graphUsageMode 22902;
    numRmaCtx 22902;
    maxP2pPeers 23003;
};
const NET_NAME_SINCE: u32 = 21700;
const COMM_NAME_SINCE: u32 = 22703;

/// Those that are newer than this library.
const NEWER: [Field; 6] = fields! {
    graphStreamOrdering 23007;
    launchOrderImplicit 23102;
    numRmaSig 23102;
    rmaEagerInit 23102;
    hostCftMode 23102;
    nvlsHostMode 23203;
};

/// A caller's struct, which has what its size and its version say.
struct Given {
    bytes: [u8; size_of::<ncclConfig_t>()],
    size: usize,
    version: u32,
}

impl Given {
    fn has(&self, offset: usize, bytes: usize, since: u32) -> bool {
        offset + bytes <= self.size && self.version >= since
    }

    fn number(&self, field: &Field) -> Option<c_int> {
        if !self.has(field.offset, size_of::<c_int>(), field.since) {
            return None;
        }
        let bytes = self.bytes[field.offset..].first_chunk()?;
        Some(c_int::from_ne_bytes(*bytes)).filter(|value| *value != NCCL_CONFIG_UNDEF_INT)
    }
}

/// # Safety
/// As [`optional`].
unsafe fn read(pointer: *const ncclConfig_t) -> Result<Options> {
    // SAFETY: the first 16 bytes are the same in every header.
    let (size, magic, version) = unsafe {
        (
            (&raw const (*pointer).size).read_unaligned(),
            (&raw const (*pointer).magic).read_unaligned(),
            (&raw const (*pointer).version).read_unaligned(),
        )
    };
    if magic != NCCL_CONFIG_MAGIC {
        return Err(Error::invalid_argument(
            "config->magic is wrong: start from NCCL_CONFIG_INITIALIZER",
        ));
    }
    if version < FIRST_VERSION || !(FIRST_SIZE..=LARGEST_SIZE).contains(&size) {
        return Err(Error::invalid_argument(format!(
            "config says version {version} and {size} bytes, which no header of NCCL has: start from \
             NCCL_CONFIG_INITIALIZER"
        )));
    }
    let mut given = Given {
        bytes: [0; size_of::<ncclConfig_t>()],
        size,
        version,
    };
    // SAFETY: both are at least this long.
    unsafe {
        std::ptr::copy_nonoverlapping(
            pointer.cast::<u8>(),
            given.bytes.as_mut_ptr(),
            size.min(given.bytes.len()),
        );
    }
    let newer = |name: &str| {
        Error::not_supported(format!(
            "config->{name} is set, which is newer than this library (the config is of version \
             {version}, {size} bytes; the options of 2.28.9 are known here)"
        ))
    };
    if let Some(field) = NEWER.iter().find(|field| given.number(field).is_some()) {
        return Err(newer(field.name));
    }
    for at in (size_of::<ncclConfig_t>()..size.saturating_sub(3)).step_by(size_of::<c_int>()) {
        // SAFETY: within the size that the caller gave.
        let word = unsafe {
            pointer
                .cast::<u8>()
                .add(at)
                .cast::<c_int>()
                .read_unaligned()
        };
        // NULL for a text, undefined for a number, or padding.
        if word != 0 && word != NCCL_CONFIG_UNDEF_INT {
            return Err(newer(&format!("(the field at byte {at})")));
        }
    }
    let number = |name: &str| {
        let field = KNOWN.iter().find(|field| field.name == name);
        field.and_then(|field| given.number(field))
    };
    let text = |name: &str, offset: usize, since: u32| {
        let bytes = given.bytes[offset..].first_chunk();
        let address = bytes.map_or(0, |bytes| usize::from_ne_bytes(*bytes));
        let there = given.has(offset, size_of::<usize>(), since);
        let pointer: *const c_char = std::ptr::with_exposed_provenance(address);
        // SAFETY: NULL or zero-terminated by this function's contract.
        there.then(|| unsafe { words(pointer, name) }).transpose()
    };
    let blocking = match number("blocking") {
        None | Some(1) => true,
        Some(0) => false,
        Some(other) => {
            return Err(Error::invalid_argument(format!(
                "config->blocking is {other}, not 0, 1 or NCCL_CONFIG_UNDEF_INT"
            )));
        }
    };
    let comm_name = text(
        "commName",
        offset_of!(ncclConfig_t, commName),
        COMM_NAME_SINCE,
    )?;
    let net_name = text("netName", offset_of!(ncclConfig_t, netName), NET_NAME_SINCE)?;
    Ok(Options {
        blocking: Some(blocking),
        vendor_nonblocking: !blocking,
        name: comm_name
            .flatten()
            .map(|name| name.to_string_lossy().into_owned()),
        vendor: VendorKnobs {
            cga_cluster_size: number("cgaClusterSize"),
            min_ctas: number("minCTAs"),
            max_ctas: number("maxCTAs"),
            net_name: net_name.flatten(),
            split_share: number("splitShare"),
            traffic_class: number("trafficClass"),
            collnet_enable: number("collnetEnable"),
            cta_policy: number("CTAPolicy"),
            shrink_share: number("shrinkShare"),
            nvls_ctas: number("nvlsCTAs"),
            n_channels_per_net_peer: number("nChannelsPerNetPeer"),
            nvlink_centric_sched: number("nvlinkCentricSched"),
            graph_usage_mode: number("graphUsageMode"),
            num_rma_ctx: number("numRmaCtx"),
            max_p2p_peers: number("maxP2pPeers"),
        },
        ..default()
    })
}

/// # Safety
/// `pointer` must be NULL or a text that ends with a zero.
unsafe fn words(pointer: *const c_char, field: &str) -> Result<Option<CString>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: reads up to the terminating zero, and not beyond the limit.
    let length = unsafe { libc::strnlen(pointer, LONGEST_NAME) };
    if length == LONGEST_NAME {
        return Err(Error::invalid_argument(format!(
            "config->{field} has no end within {LONGEST_NAME} bytes"
        )));
    }
    let mut bytes = Vec::with_capacity(length);
    for at in 0..length {
        // SAFETY: `strnlen` has read this byte.
        bytes.push(unsafe { pointer.cast::<u8>().add(at).read() });
    }
    CString::new(bytes).map(Some).map_err(|_| null(field))
}
