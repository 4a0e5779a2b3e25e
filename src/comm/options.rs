//! What a caller can ask of a communicator when it is made.
#![forbid(unsafe_code)]

use std::time::Duration;

/// A time limit as the configuration gives it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Limit {
    /// Not given: the environment, then the default decides.
    #[default]
    Unset,
    /// No limit.
    None,
    /// This long.
    After(Duration),
}

/// One of the vendor's own settings, passed through to its configuration struct.
/// The names are NCCL's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VendorKnobs {
    /// `cgaClusterSize`
    pub cga_cluster_size: Option<i32>,
    /// `minCTAs`
    pub min_ctas: Option<i32>,
    /// `maxCTAs`
    pub max_ctas: Option<i32>,
    /// `netName`
    pub net_name: Option<std::ffi::CString>,
    /// `splitShare`
    pub split_share: Option<i32>,
    /// `trafficClass`
    pub traffic_class: Option<i32>,
    /// `collnetEnable`
    pub collnet_enable: Option<i32>,
    /// `CTAPolicy`
    pub cta_policy: Option<i32>,
    /// `shrinkShare`
    pub shrink_share: Option<i32>,
    /// `nvlsCTAs`
    pub nvls_ctas: Option<i32>,
    /// `nChannelsPerNetPeer`
    pub n_channels_per_net_peer: Option<i32>,
    /// `nvlinkCentricSched`
    pub nvlink_centric_sched: Option<i32>,
    /// `graphUsageMode`
    pub graph_usage_mode: Option<i32>,
    /// `numRmaCtx`
    pub num_rma_ctx: Option<i32>,
    /// `maxP2pPeers`
    pub max_p2p_peers: Option<i32>,
}

/// Who makes a communicator. Beside a program that knows this library, the tier `flagcx` is not used: it would
/// lead back to the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Caller {
    /// A program that knows this library.
    #[default]
    Program,
    /// A program that takes this library for NCCL, as FlagCX does itself.
    NcclProgram,
    /// A program that takes this library for FlagCX.
    FlagcxProgram,
    /// FlagCX itself, through its adaptor plugin. It has a way of its own for ranks without a vendor's library,
    /// so the tier `native` is the only one if nothing else is asked for.
    FlagcxPlugin,
}

/// Options of a communicator. `Options::default()` is what a call without configuration uses.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// `Some(false)`: init returns at once and [`crate::Communicator::async_error`] completes it.
    pub blocking: Option<bool>,
    /// Use the vendor's own non-blocking mode, which stays for the communicator's life.
    pub vendor_nonblocking: bool,
    /// Limit of init and of everything on the control channel.
    pub init_timeout: Limit,
    /// Limit of one collective of the host tier.
    pub collective_timeout: Limit,
    /// Limit of destroy and of the vendor's abort.
    pub destroy_timeout: Limit,
    /// Name, shown in error texts and passed to the vendor where it takes one.
    pub name: Option<String>,
    /// Free text for people, shown in dumps.
    pub description: Option<String>,
    /// Device to bind to; `None` asks the driver on the calling thread.
    pub device: Option<i32>,
    /// Tiers to try in this order (`native`, `flagcx`, `host`), comma-separated; `None` is the default order.
    pub tiers: Option<String>,
    /// Who makes the communicator.
    pub caller: Caller,
    /// What of the vendor's settings (non-blocking mode too) its library lacks is left out and logged. Else
    /// it is an error.
    pub knobs_are_hints: bool,
    /// Settings of the vendor's library.
    pub vendor: VendorKnobs,
}
