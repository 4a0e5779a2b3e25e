//! Reads a caller's `flagosConfig_t`, whatever header it was compiled with.

use crate::boundary::null;
use crate::types::{FLAGOS_CONFIG_MAGIC, FLAGOS_MAX_TEXT_BYTES, flagosConfig_t};
use engine::internal;
use engine::{Caller, Code, Error, Limit, Options, Result, VendorKnobs};
use std::ffi::{CString, c_char};
use std::time::Duration;

/// `FLAGOS_CONFIG_UNDEF`.
pub(crate) const UNDEF: i32 = i32::MIN;

/// Size of the struct in the first published header.
const FIRST_SIZE: usize = 144;
/// More than this is no size but garbage.
const LARGEST_SIZE: usize = 4096;

/// `None` if `config` is NULL.
///
/// # Safety
/// A pointer that is not NULL must point to a `flagosConfig_t` of some header, with its size and
/// with texts that are NULL or zero-terminated.
pub(crate) unsafe fn optional(config: *const flagosConfig_t) -> Result<Option<Options>> {
    if config.is_null() {
        return Ok(None);
    }
    // SAFETY: as this function's.
    unsafe { read(config) }.map(Some)
}

/// # Safety
/// As [`optional`].
unsafe fn read(pointer: *const flagosConfig_t) -> Result<Options> {
    // SAFETY: the first 16 bytes are the same in every header.
    let (size, magic, version) = unsafe {
        (
            (&raw const (*pointer).size).read_unaligned(),
            (&raw const (*pointer).magic).read_unaligned(),
            (&raw const (*pointer).version).read_unaligned(),
        )
    };
    if magic != FLAGOS_CONFIG_MAGIC {
        return Err(Error::invalid_argument(
            "config->magic is wrong: start from FLAGOS_CONFIG_INITIALIZER",
        ));
    }
    if version == 0 || !(FIRST_SIZE..=LARGEST_SIZE).contains(&size) {
        return Err(Error::invalid_argument(format!(
            "config says version {version} and {size} bytes, which no header has: start from \
             FLAGOS_CONFIG_INITIALIZER"
        )));
    }
    let known = size_of::<flagosConfig_t>();
    for at in known..size {
        // SAFETY: within the size that the caller gave.
        if unsafe { pointer.cast::<u8>().add(at).read() } != 0 {
            return Err(Error::not_supported(format!(
                "config is of a newer header (version {version}, {size} bytes) and sets an option \
                 at byte {at} that this library (version {}, {known} bytes) does not have",
                internal::version_code()
            )));
        }
    }
    let mut config = UNDEFINED;
    // SAFETY: both are at least this long; every bit pattern is a valid field.
    unsafe {
        std::ptr::copy_nonoverlapping(
            pointer.cast::<u8>(),
            (&raw mut config).cast::<u8>(),
            size.min(known),
        );
    }
    if config.reserved != UNDEF {
        return Err(Error::invalid_argument(
            "config->reserved is set: start from FLAGOS_CONFIG_INITIALIZER",
        ));
    }
    // SAFETY: the texts are NULL or zero-terminated by this function's contract.
    let (name, description, tiers, net_name) = unsafe {
        (
            text(config.name, "config->name")?,
            text(config.description, "config->description")?,
            text(config.tiers, "config->tiers")?,
            text(config.netName, "config->netName")?,
        )
    };
    Ok(Options {
        blocking: flag(config.blocking, "config->blocking")?,
        vendor_nonblocking: flag(config.vendorNonblocking, "config->vendorNonblocking")?
            .unwrap_or(false),
        init_timeout: limit(config.initTimeoutMs, "config->initTimeoutMs")?,
        collective_timeout: limit(config.collectiveTimeoutMs, "config->collectiveTimeoutMs")?,
        destroy_timeout: limit(config.destroyTimeoutMs, "config->destroyTimeoutMs")?,
        name: words(name, "config->name")?,
        description: words(description, "config->description")?,
        device: match config.device {
            UNDEF => None,
            device if device >= 0 => Some(device),
            device => {
                return Err(Error::invalid_argument(format!(
                    "config->device is {device}: a device index is not negative"
                )));
            }
        },
        tiers: words(tiers, "config->tiers")?,
        caller: Caller::Program,
        knobs_are_hints: false,
        vendor: VendorKnobs {
            cga_cluster_size: number(config.cgaClusterSize),
            min_ctas: number(config.minCTAs),
            max_ctas: number(config.maxCTAs),
            net_name,
            split_share: number(config.splitShare),
            traffic_class: number(config.trafficClass),
            collnet_enable: number(config.collnetEnable),
            cta_policy: number(config.CTAPolicy),
            shrink_share: number(config.shrinkShare),
            nvls_ctas: number(config.nvlsCTAs),
            n_channels_per_net_peer: number(config.nChannelsPerNetPeer),
            nvlink_centric_sched: number(config.nvlinkCentricSched),
            graph_usage_mode: number(config.graphUsageMode),
            num_rma_ctx: number(config.numRmaCtx),
            max_p2p_peers: number(config.maxP2pPeers),
        },
    })
}

const UNDEFINED: flagosConfig_t = flagosConfig_t {
    size: size_of::<flagosConfig_t>(),
    magic: FLAGOS_CONFIG_MAGIC,
    version: 0,
    blocking: UNDEF,
    vendorNonblocking: UNDEF,
    initTimeoutMs: UNDEF as i64,
    collectiveTimeoutMs: UNDEF as i64,
    destroyTimeoutMs: UNDEF as i64,
    name: std::ptr::null(),
    description: std::ptr::null(),
    tiers: std::ptr::null(),
    netName: std::ptr::null(),
    device: UNDEF,
    cgaClusterSize: UNDEF,
    minCTAs: UNDEF,
    maxCTAs: UNDEF,
    splitShare: UNDEF,
    trafficClass: UNDEF,
    collnetEnable: UNDEF,
    CTAPolicy: UNDEF,
    shrinkShare: UNDEF,
    nvlsCTAs: UNDEF,
    nChannelsPerNetPeer: UNDEF,
    nvlinkCentricSched: UNDEF,
    graphUsageMode: UNDEF,
    numRmaCtx: UNDEF,
    maxP2pPeers: UNDEF,
    reserved: UNDEF,
};

fn number(value: i32) -> Option<i32> {
    (value != UNDEF).then_some(value)
}

fn flag(value: i32, field: &str) -> Result<Option<bool>> {
    match value {
        UNDEF => Ok(None),
        0 => Ok(Some(false)),
        1 => Ok(Some(true)),
        other => Err(Error::invalid_argument(format!(
            "{field} is {other}, not 0, 1 or FLAGOS_CONFIG_UNDEF"
        ))),
    }
}

fn limit(milliseconds: i64, field: &str) -> Result<Limit> {
    match milliseconds {
        0 => Ok(Limit::None),
        value if value == i64::from(UNDEF) => Ok(Limit::Unset),
        value => match u64::try_from(value) {
            Ok(value) => Ok(Limit::After(Duration::from_millis(value))),
            Err(_) => Err(Error::invalid_argument(format!(
                "{field} is {value}: milliseconds, 0 for no limit, or FLAGOS_CONFIG_UNDEF"
            ))),
        },
    }
}

/// # Safety
/// `pointer` must be NULL or a text that ends with a zero.
unsafe fn text(pointer: *const c_char, field: &str) -> Result<Option<CString>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: reads up to the terminating zero, and not beyond the limit.
    let length = unsafe { libc::strnlen(pointer, FLAGOS_MAX_TEXT_BYTES) };
    if length == FLAGOS_MAX_TEXT_BYTES {
        return Err(Error::invalid_argument(format!(
            "{field} has no end within {FLAGOS_MAX_TEXT_BYTES} bytes"
        )));
    }
    let mut bytes = Vec::with_capacity(length);
    for at in 0..length {
        // SAFETY: `strnlen` has read this byte.
        bytes.push(unsafe { pointer.cast::<u8>().add(at).read() });
    }
    CString::new(bytes).map(Some).map_err(|_| null(field))
}

fn words(text: Option<CString>, field: &str) -> Result<Option<String>> {
    text.map(CString::into_string)
        .transpose()
        .map_err(|_| Error::new(Code::InvalidArgument, format!("{field} is not valid UTF-8")))
}
