//! The options of a vendor's communicator, as NCCL's config struct holds them.

use std::ffi::{CString, c_char, c_int, c_uint};
use std::mem::{offset_of, size_of};
use std::ptr;

use super::{Ccl, Version};
use crate::load::symbols::Layout;
use crate::{Error, Result};

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
    assert!(size_of::<Config>() == 120 && align_of::<Config>() == 8);
    assert!(offset_of!(Config, net_name) == 32 && offset_of!(Config, comm_name) == 48);
    assert!(offset_of!(Config, nvls_host_mode) == 112);
};

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

/// The config struct and the fields that are written, for the check against the C declaration.
pub(super) fn layout(library: &'static str) -> Layout {
    let numbers = KNOBS.iter().map(|knob| (knob.name, knob.offset));
    Layout {
        library,
        name: "ncclConfig_t",
        size: size_of::<Config>(),
        exact: true,
        fields: numbers
            .chain([
                ("size", offset_of!(Config, size)),
                ("magic", offset_of!(Config, magic)),
                ("version", offset_of!(Config, version)),
                ("netName", offset_of!(Config, net_name)),
                ("commName", offset_of!(Config, comm_name)),
            ])
            .collect(),
    }
}

/// Every layout that the config struct has had: its size and the version that it came with.
static LAYOUTS: &[(usize, Version)] = &[
    (24, Version::new(2, 14, 0)),
    (40, Version::new(2, 17, 0)),
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
/// Every library of this version or newer understands its layout.
const SURE: Version = Version::new(2, 18, 0);
const NET_NAME_SINCE: Version = Version::new(2, 17, 0);
const COMM_NAME_SINCE: Version = Version::new(2, 27, 3);
/// Far more than any layout has, so that a library that writes beyond ours hits spare bytes.
const CONFIG_BYTES: usize = 256;

/// What the caller wants of the vendor's communicator. What is not set is not passed.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommOptions {
    knobs: Vec<(Knob, i32)>,
    net_name: Option<CString>,
    comm_name: Option<CString>,
    hints: bool,
}

/// A config struct as it is passed, and the strings that it points to.
#[repr(C, align(8))]
pub(super) struct ConfigBuffer {
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

    /// What the library lacks is left out instead of refused.
    pub(crate) fn set_hints(&mut self) {
        self.hints = true;
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

    /// The options without those that the library has no place for: the communicator's name, which is for
    /// people and ours in the first place, and what was only a hint.
    pub(super) fn without_useless(&self, row: &Ccl, library: Option<Version>) -> CommOptions {
        let mut options = self.clone();
        if self.hints {
            let has = |since: Version| row.config && library.is_some_and(|have| have >= since);
            let mut left_out = Vec::new();
            options.knobs.retain(|(knob, _)| {
                let known = KNOBS.iter().find(|info| info.knob == *knob);
                let keep = known.is_some_and(|info| has(info.since));
                if !keep {
                    left_out.push(known.map_or("?", |info| info.name));
                }
                keep
            });
            if options.net_name.is_some() && !has(NET_NAME_SINCE) {
                left_out.push("netName");
                options.net_name = None;
            }
            if !left_out.is_empty() {
                log::info!(
                    "{} does not have the options {}, which are left out",
                    row.title,
                    left_out.join(", ")
                );
            }
        }
        if !row.config || library.is_none_or(|have| have < COMM_NAME_SINCE) {
            options.comm_name = None;
        }
        options
    }

    /// The smallest layout that holds everything that is set. What the library is too old for is
    /// refused: it would be ignored silently.
    pub(super) fn buffer(&self, row: &Ccl, library: Option<Version>) -> Result<ConfigBuffer> {
        let title = row.title;
        if let (false, Some((knob, _))) = (row.config, self.knobs.first()) {
            let known = KNOBS.iter().find(|info| info.knob == *knob);
            return Err(Error::not_supported(format!(
                "the option {}: {title} takes no options",
                known.map_or("of the vendor's", |info| info.name)
            )));
        }
        if !row.config && self.net_name.is_some() {
            return Err(Error::not_supported(format!(
                "the option netName: {title} takes no options"
            )));
        }
        // The smallest layout that the library surely understands.
        let oldest = library.unwrap_or(row.min_version).min(SURE);
        let floor = LAYOUTS.iter().rfind(|(_, version)| *version <= oldest);
        let mut newest = floor.map_or(LAYOUTS[0].1, |(_, version)| *version);
        let mut need = |name: &str, since: Version| {
            let before = newest;
            newest = newest.max(since);
            match library {
                Some(have) if have < since => Err(Error::not_supported(format!(
                    "the option {name} needs {title} {since} or newer; the loaded one is {have}"
                ))),
                None if since > before => Err(Error::not_supported(format!(
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
        if buffer.comm_name.is_some() {
            newest = newest.max(COMM_NAME_SINCE);
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
