//! The environment: one table of every variable that the library reads.
//!
//! Variables are read lazily, on the first use of a value, once, and ours are never written. A value that
//! can't be understood gives one warning that names the variable, the value and the default that
//! is used instead. `docs/environment.md` is generated from the table.
#![forbid(unsafe_code)]

use crate::sys::per_process::PerProcess;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What a variable may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// 1, true, on, yes or 0, false, off, no.
    Bool,
    /// Seconds, fractions allowed; 0 means no deadline.
    Seconds,
    /// A number of bytes; K, M or G behind it are 1024 to the first, second and third power.
    Bytes,
    /// A whole number from 1 on.
    Count,
    /// One of these words.
    Word(&'static [&'static str]),
    /// Some of these words, separated by commas, each at most once.
    Words(&'static [&'static str]),
    /// Any text.
    Text,
    /// A path, ignored where the environment is not to be trusted.
    Path,
}

/// What a variable holds, once understood.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Bool(bool),
    Seconds(Option<Duration>),
    Number(usize),
    Word(&'static str),
    Words(Vec<&'static str>),
    Text(String),
    Path(PathBuf),
}

/// One row of the table.
#[derive(Debug)]
pub(crate) struct Var {
    /// Its name; `<VENDOR>` stands for a vendor's key in upper case.
    pub(crate) name: &'static str,
    /// What it may hold.
    pub(crate) kind: Kind,
    /// What holds when it is unset, in words.
    pub(crate) default: &'static str,
    /// What it does, in one sentence.
    pub(crate) meaning: &'static str,
}

const LOG: Var = Var {
    name: "FLAGOSCOMM_LOG",
    kind: Kind::Word(&["off", "error", "warn", "info", "debug", "trace"]),
    default: "warn",
    meaning: "How much the C libraries say; trace is the same as debug so far. A Rust program's own logger is not touched.",
};
const LOG_FILE: Var = Var {
    name: "FLAGOSCOMM_LOG_FILE",
    kind: Kind::Path,
    default: "stderr",
    meaning: "File that log lines are appended to.",
};
const TIERS: Var = Var {
    name: "FLAGOSCOMM_TIERS",
    kind: Kind::Words(&["native", "flagcx", "host"]),
    default: "native,flagcx,host",
    meaning: "Which tiers may be used, in the order in which they are tried.",
};
const TIMEOUT: Var = Var {
    name: "FLAGOSCOMM_TIMEOUT",
    kind: Kind::Seconds,
    default: "the finer variables' defaults",
    meaning: "Sets every deadline that has no finer variable set.",
};
const INIT_TIMEOUT: Var = Var {
    name: "FLAGOSCOMM_INIT_TIMEOUT",
    kind: Kind::Seconds,
    default: "120",
    meaning: "Deadline of rendezvous, agreement, vendor initialisation and every control exchange.",
};
const COLLECTIVE_TIMEOUT: Var = Var {
    name: "FLAGOSCOMM_COLLECTIVE_TIMEOUT",
    kind: Kind::Seconds,
    default: "1800",
    meaning: "Deadline of one collective on the host tier.",
};
const DESTROY_TIMEOUT: Var = Var {
    name: "FLAGOSCOMM_DESTROY_TIMEOUT",
    kind: Kind::Seconds,
    default: "10",
    meaning: "How long Destroy waits before it leaves the rest behind.",
};
const DEVICE: Var = Var {
    name: "FLAGOSCOMM_DEVICE",
    kind: Kind::Word(&["guard", "error", "trust"]),
    default: "guard for vendors that need the device set, trust for the others",
    meaning: "What a call does about the calling thread's current device: set and restore it, \
              refuse a wrong one, or leave it to the vendor's library.",
};
const CHECK: Var = Var {
    name: "FLAGOSCOMM_CHECK",
    kind: Kind::Bool,
    default: "0 (the host tier always checks)",
    meaning: "Compare every rank's call before it is handed to the vendor's library.",
};
const LIVENESS: Var = Var {
    name: "FLAGOSCOMM_LIVENESS",
    kind: Kind::Seconds,
    default: "0 (only calls look)",
    meaning: "Starts a thread that watches the other ranks of communicators on vendors' libraries and of the host tier \
              across machines. One that has died, from which nothing was heard for so long, whose library has failed, or \
              that has left although this rank waits for it, is reported, and the vendor's communicator is aborted, \
              which frees what waits on the device, or the host tier's waits are ended. The same on all ranks.",
};
const STAGING_MEMORY: Var = Var {
    name: "FLAGOSCOMM_STAGING_MEMORY",
    kind: Kind::Bytes,
    default: "64M",
    meaning: "The most memory that one communicator of the host tier uses on a machine, on all ranks together, to \
              stage buffers in devices' memory; 0 for none that the driver pins, which is slower. Rank 0's value \
              holds for all that share memory; between machines the smallest does, but a rank has never less than 256 KiB \
              and 16 KiB for every rank of the communicator, whichever is more.",
};
const STAGING_THREADS: Var = Var {
    name: "FLAGOSCOMM_STAGING_THREADS",
    kind: Kind::Count,
    default: "a rank's share of the processors less one, up to 4",
    meaning: "How many threads of a rank reduce what is staged; 1: the one that moves the data does it, too.",
};
const STAGING_WAIT: Var = Var {
    name: "FLAGOSCOMM_STAGING_WAIT",
    kind: Kind::Word(&["stream", "call"]),
    default: "stream where the driver can do it",
    meaning: "Who waits for a staged operation: the stream, so that the call returns at once, or the call. Between machines it is always the call.",
};
const SOCKET_IFNAME: Var = Var {
    name: "FLAGOSCOMM_SOCKET_IFNAME",
    kind: Kind::Text,
    default: "the vendor's own variable, else the best interface that is up",
    meaning: "Network interface of the control channel: `=name` exactly, `name` as a prefix, `^name` not this one.",
};
const SOCKET_FAMILY: Var = Var {
    name: "FLAGOSCOMM_SOCKET_FAMILY",
    kind: Kind::Word(&["ipv4", "ipv6"]),
    default: "either",
    meaning: "Address family of the control channel.",
};
const HOSTID: Var = Var {
    name: "FLAGOSCOMM_HOSTID",
    kind: Kind::Text,
    default: "the kernel's boot id",
    meaning: "What tells this machine from others; ranks with the same one share memory. Ranks of one machine that are \
              given several know of no more cores than if each were all there is.",
};
const SINGLE_COPY: Var = Var {
    name: "FLAGOSCOMM_SINGLE_COPY",
    kind: Kind::Word(&["auto", "on", "off"]),
    default: "auto (measured while large operations run)",
    meaning: "Whether the host tier's large operations read ordinary memory of other processes where it is \
              (process_vm_readv) instead of passing it through shared memory: `on` wherever the kernel \
              allows it, `off` never. If a rank says off, all of its communicator do; else on, if a rank says on.",
};
const HOST_ENGINE: Var = Var {
    name: "FLAGOSCOMM_HOST_ENGINE",
    kind: Kind::Word(&["auto", "shm", "ucx", "mpi", "ucc"]),
    default: "auto: shared memory for ranks of one machine, for several UCX, or MPI if a rank has no UCX and all \
              programs have initialised MPI",
    meaning: "What the host tier moves data with. The same on all ranks. `mpi` needs processes that an MPI launcher \
              has started, one for each rank; `ucc` is used only if it is asked for.",
};
const HOST_HIERARCHY: Var = Var {
    name: "FLAGOSCOMM_HOST_HIERARCHY",
    kind: Kind::Bool,
    default: "on",
    meaning: "Whether the host tier on several machines moves data in two layers: shared memory inside each machine, \
              messages of UCX, MPI or UCC between machines. Off: messages between all ranks. The same on all ranks.",
};
const ENGINE_PATH: Var = Var {
    name: "FLAGOSCOMM_ENGINE_PATH",
    kind: Kind::Path,
    default: "searched, see discovery.md",
    meaning: "The library that the host tier uses between machines, used verbatim: MPI's with \
              FLAGOSCOMM_HOST_ENGINE=mpi, UCC's (libucc.so.1) with FLAGOSCOMM_HOST_ENGINE=ucc, else UCX's (libucp.so.0).",
};
const DLOPEN: Var = Var {
    name: "FLAGOSCOMM_DLOPEN",
    kind: Kind::Word(&["default", "deepbind", "global"]),
    default: "default (RTLD_NOW | RTLD_LOCAL)",
    meaning: "How vendor libraries are opened: `deepbind` makes a library prefer its own symbols, \
              `global` offers its symbols to libraries opened later.",
};
const VENDOR_LIBRARY: Var = Var {
    name: "FLAGOSCOMM_<VENDOR>_LIBRARY",
    kind: Kind::Path,
    default: "searched, see discovery.md",
    meaning: "The vendor's collective library, used verbatim, for example FLAGOSCOMM_NVIDIA_LIBRARY.",
};
const VENDOR_DRIVER: Var = Var {
    name: "FLAGOSCOMM_<VENDOR>_DRIVER",
    kind: Kind::Path,
    default: "searched, see discovery.md",
    meaning: "The vendor's runtime library, used verbatim, for example FLAGOSCOMM_NVIDIA_DRIVER.",
};
const VENDOR_NUMBERS: Var = Var {
    name: "FLAGOSCOMM_<VENDOR>_NUMBERS",
    kind: Kind::Text,
    default: "the numbers that flagos-comm knows",
    meaning: "Numbers of the vendor's enumerations that no document known to flagos-comm tells, as `name=number` with \
              commas between, for example FLAGOSCOMM_MTHREADS_NUMBERS=not_ready=600. A call that \
              lacks one names it; a name that the vendor doesn't take is an error that lists those it takes (a warning \
              where the vendor isn't used).",
};

/// Every variable of ours.
pub(crate) static VARS: &[&Var] = &[
    &LOG,
    &LOG_FILE,
    &TIERS,
    &TIMEOUT,
    &INIT_TIMEOUT,
    &COLLECTIVE_TIMEOUT,
    &DESTROY_TIMEOUT,
    &DEVICE,
    &CHECK,
    &LIVENESS,
    &STAGING_MEMORY,
    &STAGING_THREADS,
    &STAGING_WAIT,
    &SOCKET_IFNAME,
    &SOCKET_FAMILY,
    &HOSTID,
    &SINGLE_COPY,
    &HOST_ENGINE,
    &HOST_HIERARCHY,
    &ENGINE_PATH,
    &DLOPEN,
    &VENDOR_LIBRARY,
    &VENDOR_DRIVER,
    &VENDOR_NUMBERS,
];

const GEMS_VENDOR: Var = Var {
    name: "GEMS_VENDOR",
    kind: Kind::Text,
    default: "detected",
    meaning: "The accelerator's vendor, by the name that FlagGems and torch_fl use. A name that nothing knows is an error.",
};
const LD_LIBRARY_PATH: Var = Var {
    name: "LD_LIBRARY_PATH",
    kind: Kind::Path,
    default: "unset",
    meaning: "Read only when a drop-in of ours has taken the name of the vendor's library.",
};
const VIRTUAL_ENV: Var = Var {
    name: "VIRTUAL_ENV",
    kind: Kind::Path,
    default: "unset",
    meaning: "Where a Python environment keeps the vendor's wheels.",
};
const CONDA_PREFIX: Var = Var {
    name: "CONDA_PREFIX",
    kind: Kind::Path,
    default: "unset",
    meaning: "Where a conda environment keeps the vendor's wheels and libraries.",
};
const CUDA_HOME: Var = Var {
    name: "CUDA_HOME",
    kind: Kind::Path,
    default: "unset",
    meaning: "A root that NVIDIA's libraries are searched in.",
};
const CUDA_PATH: Var = Var {
    name: "CUDA_PATH",
    kind: Kind::Path,
    default: "unset",
    meaning: "A root that NVIDIA's libraries are searched in.",
};
const ROCM_PATH: Var = Var {
    name: "ROCM_PATH",
    kind: Kind::Path,
    default: "unset",
    meaning: "A root that AMD's and Hygon's libraries are searched in.",
};
const DTK_ROOT: Var = Var {
    name: "DTK_ROOT",
    kind: Kind::Path,
    default: "unset",
    meaning: "A root that Hygon's libraries are searched in.",
};
const ASCEND_HOME_PATH: Var = Var {
    name: "ASCEND_HOME_PATH",
    kind: Kind::Path,
    default: "unset",
    meaning: "A root that Huawei's libraries are searched in.",
};
const ASCEND_TOOLKIT_HOME: Var = Var {
    name: "ASCEND_TOOLKIT_HOME",
    kind: Kind::Path,
    default: "unset",
    meaning: "A root that Huawei's libraries are searched in.",
};
const MACA_PATH: Var = Var {
    name: "MACA_PATH",
    kind: Kind::Path,
    default: "unset",
    meaning: "A root that MetaX' libraries are searched in.",
};
const MUSA_HOME: Var = Var {
    name: "MUSA_HOME",
    kind: Kind::Path,
    default: "unset",
    meaning: "A root that Moore Threads' libraries are searched in.",
};
const NEUWARE_HOME: Var = Var {
    name: "NEUWARE_HOME",
    kind: Kind::Path,
    default: "unset",
    meaning: "A root that Cambricon's libraries are searched in.",
};
const PPU_SDK: Var = Var {
    name: "PPU_SDK",
    kind: Kind::Path,
    default: "unset",
    meaning: "A root that T-Head's libraries are searched in.",
};
const ASCEND_RT_VISIBLE_DEVICES: Var = Var {
    name: "ASCEND_RT_VISIBLE_DEVICES",
    kind: Kind::Text,
    default: "unset",
    meaning: "Which of Huawei's devices a process sees; tells whether two ranks use the same one.",
};
const TXDA_VISIBLE_DEVICES: Var = Var {
    name: "TXDA_VISIBLE_DEVICES",
    kind: Kind::Text,
    default: "unset",
    meaning: "Which of Tsingmicro's devices a process sees; tells whether two ranks use the same one.",
};
const NCCL_SOCKET_IFNAME: Var = Var {
    name: "NCCL_SOCKET_IFNAME",
    kind: Kind::Text,
    default: "unset",
    meaning: "Guides the choice of interface if ours is unset.",
};
const GLOO_SOCKET_IFNAME: Var = Var {
    name: "GLOO_SOCKET_IFNAME",
    kind: Kind::Text,
    default: "unset",
    meaning: "Guides the choice of interface if ours is unset.",
};
const FLAGCX_SOCKET_IFNAME: Var = Var {
    name: "FLAGCX_SOCKET_IFNAME",
    kind: Kind::Text,
    default: "unset",
    meaning: "Guides the choice of interface if ours is unset.",
};
const HCCL_IF_IP: Var = Var {
    name: "HCCL_IF_IP",
    kind: Kind::Text,
    default: "unset",
    meaning: "Guides the choice of interface if ours is unset.",
};

const FLAGCX_PATH: Var = Var {
    name: "FLAGCX_PATH",
    kind: Kind::Path,
    default: "unset",
    meaning: "Where FlagCX is installed or built: its library is in `lib` or `build/lib` below.",
};
const HCCL_CONNECT_TIMEOUT: Var = Var {
    name: "HCCL_CONNECT_TIMEOUT",
    kind: Kind::Text,
    default: "unset",
    meaning: "Never set by flagos-comm. Shown beside our own limit when HCCL says that it timed out.",
};
const FLAGCX_USE_HETERO_COMM: Var = Var {
    name: "FLAGCX_USE_HETERO_COMM",
    kind: Kind::Text,
    default: "unset",
    meaning: "FlagCX ends the process if it is no number; so FlagCX is not called then.",
};
const FLAGCX_USE_HOST_COMM: Var = Var {
    name: "FLAGCX_USE_HOST_COMM",
    kind: Kind::Text,
    default: "unset",
    meaning: "FlagCX ends the process if it is no number; so FlagCX is not called then.",
};
const UCX_DEBUG_SIGNO: Var = Var {
    name: "UCX_DEBUG_SIGNO",
    kind: Kind::Text,
    default: "set to 0",
    meaning: "Set before UCX is loaded, if it is unset, so that SIGHUP stays the program's.",
};
const UCX_ERROR_SIGNALS: Var = Var {
    name: "UCX_ERROR_SIGNALS",
    kind: Kind::Text,
    default: "set to nothing",
    meaning: "Set before UCX is loaded, if it is unset, so that UCX takes no signals of the program's.",
};
const UCX_LOG_FILE: Var = Var {
    name: "UCX_LOG_FILE",
    kind: Kind::Text,
    default: "set to stderr",
    meaning: "Set before UCX is loaded, if it is unset, so that UCX writes nothing to standard output.",
};
const UCX_WARN_UNUSED_ENV_VARS: Var = Var {
    name: "UCX_WARN_UNUSED_ENV_VARS",
    kind: Kind::Text,
    default: "set to n",
    meaning: "Set before UCX is loaded, if it is unset. All other variables of UCX's are UCX's own business.",
};
const UCX_NET_DEVICES: Var = Var {
    name: "UCX_NET_DEVICES",
    kind: Kind::Text,
    default: "unset",
    meaning: "UCX's own, which names the network devices that it uses, such as `eth0` or `mlx5_0:1`. Shown in errors when \
              ranks don't reach each other.",
};
const UCX_TLS: Var = Var {
    name: "UCX_TLS",
    kind: Kind::Text,
    default: "unset",
    meaning: "UCX's own, which names the ways that it takes, such as `tcp,self`. Shown in errors when ranks don't reach each \
              other.",
};
const UCX_TCP_TX_SEG_SIZE: Var = Var {
    name: "UCX_TCP_TX_SEG_SIZE",
    kind: Kind::Text,
    default: "unset",
    meaning: "What UCX sends over TCP at once. If neither this nor UCX_TCP_RX_SEG_SIZE is set, both are 260 KiB \
              for the host tier, less for more than 32 ranks; UCX's own choice makes collectives slower. Where UCX doesn't use TCP, it warns \
              of 'invalid configurations'; this is harmless.",
};
const UCX_TCP_RX_SEG_SIZE: Var = Var {
    name: "UCX_TCP_RX_SEG_SIZE",
    kind: Kind::Text,
    default: "unset",
    meaning: "What UCX receives over TCP at once; see UCX_TCP_TX_SEG_SIZE. The same on all ranks. Both are set in the \
              environment before UCC is loaded, whose UCX knows no other way.",
};
const UCC_LOG_FILE: Var = Var {
    name: "UCC_LOG_FILE",
    kind: Kind::Text,
    default: "set to stderr",
    meaning: "Set before UCC is loaded, if it is unset, so that UCC writes nothing to standard output.",
};
const UCC_TL_UCP_LOG_LEVEL: Var = Var {
    name: "UCC_TL_UCP_LOG_LEVEL",
    kind: Kind::Text,
    default: "set to fatal",
    meaning: "Set before UCC is loaded, if it is unset: UCC writes an error for every connection that the other rank closes \
              first, as one of two always does.",
};
const OMPI_COMM_WORLD_RANK: Var = Var {
    name: "OMPI_COMM_WORLD_RANK",
    kind: Kind::Text,
    default: "unset",
    meaning: "Set by Open MPI's launcher: the host tier may initialise MPI if it is to use it.",
};
const PMIX_RANK: Var = Var {
    name: "PMIX_RANK",
    kind: Kind::Text,
    default: "unset",
    meaning: "As OMPI_COMM_WORLD_RANK, set by launchers that speak PMIx.",
};
const PMI_RANK: Var = Var {
    name: "PMI_RANK",
    kind: Kind::Text,
    default: "unset",
    meaning: "As OMPI_COMM_WORLD_RANK, set by launchers that speak PMI, as MPICH's does: with it alone, MPICH's libraries are \
              tried before Open MPI's.",
};

/// Every variable of others that is read.
pub(crate) static FOREIGN: &[&Var] = &[
    &GEMS_VENDOR,
    &LD_LIBRARY_PATH,
    &VIRTUAL_ENV,
    &CONDA_PREFIX,
    &CUDA_HOME,
    &CUDA_PATH,
    &ROCM_PATH,
    &DTK_ROOT,
    &ASCEND_HOME_PATH,
    &ASCEND_TOOLKIT_HOME,
    &MACA_PATH,
    &MUSA_HOME,
    &NEUWARE_HOME,
    &PPU_SDK,
    &ASCEND_RT_VISIBLE_DEVICES,
    &TXDA_VISIBLE_DEVICES,
    &NCCL_SOCKET_IFNAME,
    &GLOO_SOCKET_IFNAME,
    &FLAGCX_SOCKET_IFNAME,
    &HCCL_IF_IP,
    &FLAGCX_PATH,
    &HCCL_CONNECT_TIMEOUT,
    &FLAGCX_USE_HETERO_COMM,
    &FLAGCX_USE_HOST_COMM,
    &UCX_DEBUG_SIGNO,
    &UCX_ERROR_SIGNALS,
    &UCX_LOG_FILE,
    &UCX_WARN_UNUSED_ENV_VARS,
    &UCX_NET_DEVICES,
    &UCX_TLS,
    &UCX_TCP_TX_SEG_SIZE,
    &UCX_TCP_RX_SEG_SIZE,
    &UCC_LOG_FILE,
    &UCC_TL_UCP_LOG_LEVEL,
    &OMPI_COMM_WORLD_RANK,
    &PMIX_RANK,
    &PMI_RANK,
];

/// Where a communicator's operations run. The numbers are those of the C ABI and the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Tier {
    /// The vendor's own collective library.
    Native = 1,
    /// FlagCX, loaded as a library.
    Flagcx = 2,
    /// Host memory, no vendor library.
    Host = 3,
}

impl Tier {
    /// The order in which tiers are tried unless something else is said.
    pub(crate) const DEFAULT_ORDER: [Tier; 3] = [Tier::Native, Tier::Flagcx, Tier::Host];

    /// The name that variables, logs and tools use.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Tier::Native => "native",
            Tier::Flagcx => "flagcx",
            Tier::Host => "host",
        }
    }

    pub(crate) fn from_raw(raw: u8) -> Option<Tier> {
        Tier::DEFAULT_ORDER.into_iter().find(|t| *t as u8 == raw)
    }

    pub(crate) fn from_name(name: &str) -> Option<Tier> {
        Tier::DEFAULT_ORDER
            .into_iter()
            .find(|t| t.name().eq_ignore_ascii_case(name))
    }
}

/// What calls do about the calling thread's current device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceMode {
    /// Set the communicator's device, restore the caller's.
    Guard,
    /// Refuse a call from a thread whose device is another one.
    Error,
    /// Leave it to the vendor's library.
    Trust,
}

/// What the host tier is asked to move data with. The numbers are those of the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum HostEngine {
    /// Shared memory on one machine, else whatever there is.
    #[default]
    Auto = 0,
    /// Shared memory only.
    Shm = 1,
    /// UCX, on one machine too.
    Ucx = 2,
    /// MPI, on one machine too.
    Mpi = 3,
    /// UCC, on one machine too.
    Ucc = 4,
}

impl HostEngine {
    const ALL: [HostEngine; 5] = [
        HostEngine::Auto,
        HostEngine::Shm,
        HostEngine::Ucx,
        HostEngine::Mpi,
        HostEngine::Ucc,
    ];

    /// The name that the variable uses.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            HostEngine::Auto => "auto",
            HostEngine::Shm => "shm",
            HostEngine::Ucx => "ucx",
            HostEngine::Mpi => "mpi",
            HostEngine::Ucc => "ucc",
        }
    }

    pub(crate) fn from_raw(raw: u32) -> Option<HostEngine> {
        HostEngine::ALL.into_iter().find(|e| *e as u32 == raw)
    }
}

/// How vendor libraries are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenMode {
    /// `RTLD_NOW | RTLD_LOCAL`.
    Local,
    /// With `RTLD_DEEPBIND`.
    DeepBind,
    /// `RTLD_NOW | RTLD_GLOBAL`.
    Global,
}

/// Whether ordinary memory of other processes is read where it is. The numbers are those of the words
/// that ranks share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SingleCopy {
    /// Where it was measured to be faster.
    Auto = 1,
    /// Wherever the kernel allows it.
    On = 2,
    /// Never.
    Off = 3,
}

/// Address family of the control channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketFamily {
    /// IPv4 only.
    Ipv4,
    /// IPv6 only.
    Ipv6,
}

/// Deadlines; `None` is no deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeouts {
    /// Rendezvous, agreement, vendor initialisation, control exchanges.
    pub(crate) init: Option<Duration>,
    /// One collective on the host tier.
    pub(crate) collective: Option<Duration>,
    /// Destroy.
    pub(crate) destroy: Option<Duration>,
}

/// The environment as understood on first use.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Config {
    /// FLAGOSCOMM_LOG.
    pub(crate) log_level: log::LevelFilter,
    /// FLAGOSCOMM_LOG_FILE.
    pub(crate) log_file: Option<PathBuf>,
    /// FLAGOSCOMM_TIERS; `None` is the default order.
    pub(crate) tiers: Option<Vec<Tier>>,
    /// The deadlines.
    pub(crate) timeouts: Timeouts,
    /// FLAGOSCOMM_DEVICE; `None` leaves it to the vendor's row.
    pub(crate) device: Option<DeviceMode>,
    /// FLAGOSCOMM_CHECK.
    pub(crate) check: bool,
    /// FLAGOSCOMM_LIVENESS; `None`: no thread watches.
    pub(crate) liveness: Option<Duration>,
    /// FLAGOSCOMM_STAGING_MEMORY.
    pub(crate) staging_memory: usize,
    /// FLAGOSCOMM_STAGING_THREADS; `None`: as many as cores allow.
    pub(crate) staging_threads: Option<usize>,
    /// FLAGOSCOMM_STAGING_WAIT: streams may wait for staged operations.
    pub(crate) streams_wait: bool,
    /// FLAGOSCOMM_SOCKET_IFNAME.
    pub(crate) socket_ifname: Option<String>,
    /// FLAGOSCOMM_SOCKET_FAMILY.
    pub(crate) socket_family: Option<SocketFamily>,
    /// FLAGOSCOMM_HOSTID.
    pub(crate) hostid: Option<String>,
    /// FLAGOSCOMM_SINGLE_COPY.
    pub(crate) single_copy: SingleCopy,
    /// FLAGOSCOMM_HOST_ENGINE.
    pub(crate) host_engine: HostEngine,
    /// FLAGOSCOMM_HOST_HIERARCHY.
    pub(crate) host_hierarchy: bool,
    /// FLAGOSCOMM_DLOPEN.
    pub(crate) dlopen: OpenMode,
}

/// The configuration of this process. The first call reads the environment.
pub(crate) fn get() -> &'static Config {
    static SAID: AtomicBool = AtomicBool::new(false);
    let (config, warnings) = understood();
    // Outside of the cell: the logger asks for the configuration too.
    if !warnings.is_empty() && !SAID.swap(true, Ordering::Relaxed) {
        for warning in warnings {
            log::warn!("{warning}");
        }
    }
    config
}

/// What is wrong with the values of this process's variables, in words.
pub(crate) fn warnings() -> &'static [String] {
    &understood().1
}

fn understood() -> &'static (Config, Vec<String>) {
    static CONFIG: PerProcess<(Config, Vec<String>)> = PerProcess::new();
    CONFIG.get_or_init(|| {
        let mut warnings = Vec::new();
        let mut reader = Reader {
            lookup: &|name| std::env::var_os(name),
            secure: crate::sys::secure::at_secure(),
            warnings: &mut warnings,
        };
        let config = Config::read(&mut reader);
        (config, warnings)
    })
}

/// What tests set for themselves.
const OF_TESTS: [&str; 2] = ["FLAGOSCOMM_TEST_", "FLAGOSCOMM_BLESS"];
/// What all names of ours start with.
const PREFIX: &str = "FLAGOSCOMM_";
/// What is written in its place. Such a name may be somebody else's, unless the rest is like one of ours.
const LIKE_PREFIX: [&str; 2] = ["FLAGOSCOM_", "FLAGOS_COMM_"];

/// A vendor's key and its other names.
pub(crate) type VendorNames = (&'static str, &'static [&'static str]);

/// Names among these that look like ours and are none, each with the known name that is most like it. Variables of
/// one vendor are known for these vendors.
pub(crate) fn unknown<'a>(
    names: impl Iterator<Item = &'a str>,
    vendors: &[VendorNames],
) -> Vec<(&'a str, Option<String>)> {
    let mut found = Vec::new();
    for name in names {
        if let Some(own) = name.strip_prefix(PREFIX) {
            if !is_known(name, vendors) && !OF_TESTS.iter().any(|start| name.starts_with(start)) {
                found.push((name, nearest(own, vendors).or_else(|| longer(own))));
            }
        } else if let Some(own) = LIKE_PREFIX.iter().find_map(|like| name.strip_prefix(like))
            && let Some(meant) = nearest(own, vendors)
        {
            found.push((name, Some(meant)));
        }
    }
    found
}

fn is_known(name: &str, vendors: &[VendorNames]) -> bool {
    VARS.iter().any(|var| match var.name.contains("<VENDOR>") {
        true => vendors.iter().any(|(key, _)| of_vendor(var, key) == name),
        false => var.name == name,
    })
}

/// The variable whose name behind the prefix is `own` but for slips of the pen.
fn nearest(own: &str, vendors: &[VendorNames]) -> Option<String> {
    let slips = |own: &str, meant: &str| {
        let distance = distance(own, meant);
        (distance <= own.len().div_ceil(3)).then_some(distance)
    };
    let mut near = Vec::new();
    for var in VARS {
        let meant = &var.name[PREFIX.len()..];
        let Some(of_vendors) = meant.strip_prefix("<VENDOR>_") else {
            near.extend(slips(own, meant).map(|distance| (distance, var.name.to_string())));
            continue;
        };
        // Each part has to be near: the common one would make any two vendors alike.
        let Some((vendor, part)) = own.rsplit_once('_') else {
            continue;
        };
        for (key, aliases) in vendors {
            for name in aliases.iter().chain([key]) {
                let both = slips(vendor, &name.to_ascii_uppercase()).zip(slips(part, of_vendors));
                near.extend(both.map(|(one, other)| (one + other, of_vendor(var, key))));
            }
        }
    }
    near.into_iter().min().map(|(_, name)| name)
}

/// The first variable whose name behind the prefix has `own` in it.
fn longer(own: &str) -> Option<String> {
    let has = |var: &&&Var| own.len() > 2 && var.name[PREFIX.len()..].contains(own);
    VARS.iter().find(has).map(|var| var.name.to_string())
}

/// How many letters have to be put in, taken out, replaced or swapped with their neighbour to make one text of another.
fn distance(one: &str, other: &str) -> usize {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut rows = vec![(0..=other.len()).collect::<Vec<usize>>()];
    for at in 1..=one.len() {
        let mut row = vec![at];
        for column in 1..=other.len() {
            let above = &rows[at - 1];
            let replaced = above[column - 1] + usize::from(one[at - 1] != other[column - 1]);
            let mut least = replaced.min(above[column] + 1).min(row[column - 1] + 1);
            if at > 1
                && column > 1
                && one[at - 1] == other[column - 2]
                && one[at - 2] == other[column - 1]
            {
                least = least.min(rows[at - 2][column - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

/// Warns, once in a process, of variables that look like ours and do nothing.
pub(crate) fn warn_of_unknown(vendors: &[VendorNames]) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if SAID.swap(true, Ordering::Relaxed) {
        return;
    }
    let names: Vec<String> = std::env::vars_os()
        .map(|(name, _)| name.to_string_lossy().into_owned())
        .collect();
    for (name, meant) in unknown(names.iter().map(String::as_str), vendors) {
        let hint = meant.map_or(String::new(), |meant| format!("; is {meant} meant?"));
        log::warn!("{name} is no variable of flagos-comm and does nothing{hint}");
    }
}

/// The value of a variable of others as whoever reads it by itself will find it: blanks and all.
pub(crate) fn foreign_as_is(name: &str) -> Option<OsString> {
    debug_assert!(
        FOREIGN.iter().any(|v| v.name == name),
        "{name} is missing in config::FOREIGN"
    );
    std::env::var_os(name)
}

/// The trimmed value of a variable of others, `None` if it is unset or blank. Paths are ignored
/// where the environment is not to be trusted. Panics in tests if the table lacks the name.
pub(crate) fn foreign(name: &str) -> Option<OsString> {
    let var = FOREIGN.iter().find(|v| v.name == name);
    debug_assert!(var.is_some(), "{name} is missing in config::FOREIGN");
    let is_path = var.is_some_and(|v| v.kind == Kind::Path);
    let mut warnings = Vec::new();
    let value = Reader {
        lookup: &|name| std::env::var_os(name),
        secure: crate::sys::secure::at_secure(),
        warnings: &mut warnings,
    }
    .raw(name, is_path);
    for warning in warnings {
        log::warn!("{warning}");
    }
    value
}

/// Which library of a vendor an override names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OverrideOf {
    /// The collective library.
    Library,
    /// The runtime.
    Driver,
    /// The library of a host engine.
    Engine,
}

/// The name of the variable that gives numbers of the vendor with this key.
pub(crate) fn numbers_name(key: &str) -> String {
    of_vendor(&VENDOR_NUMBERS, key)
}

/// The numbers that the user gave for the vendor with this key, not yet understood.
pub(crate) fn numbers_text(key: &str) -> Option<String> {
    let value = Reader {
        lookup: &|name| std::env::var_os(name),
        secure: crate::sys::secure::at_secure(),
        warnings: &mut Vec::new(),
    }
    .raw(&numbers_name(key), false)?;
    Some(value.to_string_lossy().into_owned())
}

fn of_vendor(var: &Var, key: &str) -> String {
    var.name.replace("<VENDOR>", &key.to_ascii_uppercase())
}

/// The name of the variable that overrides the path of a library of the vendor with this key.
pub(crate) fn override_name(key: &str, of: OverrideOf) -> String {
    match of {
        OverrideOf::Library => of_vendor(&VENDOR_LIBRARY, key),
        OverrideOf::Driver => of_vendor(&VENDOR_DRIVER, key),
        OverrideOf::Engine => ENGINE_PATH.name.to_string(),
    }
}

/// The path that the user gave for a library of the vendor with this key.
pub(crate) fn override_path(key: &str, of: OverrideOf) -> Option<PathBuf> {
    let mut warnings = Vec::new();
    let value = Reader {
        lookup: &|name| std::env::var_os(name),
        secure: crate::sys::secure::at_secure(),
        warnings: &mut warnings,
    }
    .raw(&override_name(key, of), true);
    for warning in warnings {
        log::warn!("{warning}");
    }
    value.map(PathBuf::from)
}

struct Reader<'a> {
    lookup: &'a dyn Fn(&str) -> Option<OsString>,
    secure: bool,
    warnings: &'a mut Vec<String>,
}

impl Reader<'_> {
    /// The trimmed value; `None` if unset, blank, or a path that must not be trusted.
    fn raw(&mut self, name: &str, is_path: bool) -> Option<OsString> {
        let value = (self.lookup)(name)?;
        let value = match value.into_string() {
            Ok(text) => OsString::from(text.trim()),
            Err(bytes) => bytes,
        };
        if value.is_empty() {
            return None;
        }
        if is_path && self.secure {
            self.warnings.push(format!(
                "{name}={} is ignored: the process runs with more rights than its caller",
                value.display()
            ));
            return None;
        }
        Some(value)
    }

    fn read(&mut self, var: &'static Var) -> Option<Value> {
        let value = self.raw(var.name, var.kind == Kind::Path)?;
        match parse(var.kind, &value) {
            Ok(value) => Some(value),
            Err(expected) => {
                self.warnings.push(format!(
                    "{}={:?} is not understood ({expected}); the default is used: {}",
                    var.name,
                    value.to_string_lossy(),
                    var.default
                ));
                None
            }
        }
    }

    fn boolean(&mut self, var: &'static Var) -> Option<bool> {
        match self.read(var) {
            Some(Value::Bool(value)) => Some(value),
            _ => None,
        }
    }

    fn seconds(&mut self, var: &'static Var) -> Option<Option<Duration>> {
        match self.read(var) {
            Some(Value::Seconds(value)) => Some(value),
            _ => None,
        }
    }

    fn number(&mut self, var: &'static Var) -> Option<usize> {
        match self.read(var) {
            Some(Value::Number(value)) => Some(value),
            _ => None,
        }
    }

    fn word(&mut self, var: &'static Var) -> Option<&'static str> {
        match self.read(var) {
            Some(Value::Word(value)) => Some(value),
            _ => None,
        }
    }

    fn words(&mut self, var: &'static Var) -> Option<Vec<&'static str>> {
        match self.read(var) {
            Some(Value::Words(value)) => Some(value),
            _ => None,
        }
    }

    fn text(&mut self, var: &'static Var) -> Option<String> {
        match self.read(var) {
            Some(Value::Text(value)) => Some(value),
            _ => None,
        }
    }

    fn path(&mut self, var: &'static Var) -> Option<PathBuf> {
        match self.read(var) {
            Some(Value::Path(value)) => Some(value),
            _ => None,
        }
    }
}

const CENTURY: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

fn parse(kind: Kind, value: &OsString) -> std::result::Result<Value, String> {
    if kind == Kind::Path {
        return Ok(Value::Path(PathBuf::from(value)));
    }
    let Some(text) = value.to_str() else {
        return Err("it is not UTF-8".to_string());
    };
    let folded = text.to_lowercase();
    match kind {
        Kind::Path => Ok(Value::Path(PathBuf::from(text))),
        Kind::Text => Ok(Value::Text(text.to_string())),
        Kind::Bool => parse_bool(&folded)
            .map(Value::Bool)
            .ok_or_else(|| "expected 1, true, on, yes or 0, false, off, no".to_string()),
        Kind::Seconds => match text.parse::<f64>().ok().filter(|s| *s >= 0.0) {
            Some(0.0) => Ok(Value::Seconds(None)),
            Some(seconds) => match Duration::try_from_secs_f64(seconds) {
                // A value below the clock's resolution is a deadline, not its absence.
                // Beyond a century it could overflow a clock.
                Ok(duration) => Ok(Value::Seconds(Some(
                    duration.clamp(Duration::from_nanos(1), CENTURY),
                ))),
                Err(_) => Err("expected seconds, 0 for no deadline".to_string()),
            },
            None => Err("expected seconds, 0 for no deadline".to_string()),
        },
        Kind::Bytes => parse_bytes(&folded)
            .map(Value::Number)
            .ok_or_else(|| "expected bytes, as 64M".to_string()),
        Kind::Count => match text.parse() {
            Ok(number @ 1..) => Ok(Value::Number(number)),
            _ => Err("expected a whole number from 1 on".to_string()),
        },
        Kind::Word(words) => words
            .iter()
            .find(|w| **w == folded)
            .map(|w| Value::Word(w))
            .ok_or_else(|| format!("expected one of {}", words.join(", "))),
        Kind::Words(words) => {
            let expected = || format!("expected some of {}, separated by commas", words.join(", "));
            let mut chosen = Vec::new();
            for part in folded.split(',') {
                let Some(word) = words.iter().find(|w| **w == part.trim()) else {
                    return Err(expected());
                };
                if chosen.contains(word) {
                    return Err(expected());
                }
                chosen.push(*word);
            }
            Ok(Value::Words(chosen))
        }
    }
}

fn parse_bytes(folded: &str) -> Option<usize> {
    let shift = match folded.as_bytes().last()? {
        b'k' => 10,
        b'm' => 20,
        b'g' => 30,
        _ => 0,
    };
    let digits = &folded[..folded.len() - usize::from(shift > 0)];
    digits.parse::<usize>().ok()?.checked_mul(1 << shift)
}

fn parse_bool(folded: &str) -> Option<bool> {
    match folded {
        "1" | "true" | "on" | "yes" => Some(true),
        "0" | "false" | "off" | "no" => Some(false),
        _ => None,
    }
}

impl Config {
    fn read(reader: &mut Reader<'_>) -> Config {
        let log_level = match reader.word(&LOG) {
            Some("off") => log::LevelFilter::Off,
            Some("error") => log::LevelFilter::Error,
            Some("info") => log::LevelFilter::Info,
            Some("debug") => log::LevelFilter::Debug,
            Some("trace") => log::LevelFilter::Trace,
            _ => log::LevelFilter::Warn,
        };
        let all = reader.seconds(&TIMEOUT);
        let mut timeout = |var: &'static Var, default: u64| {
            reader
                .seconds(var)
                .or(all)
                .unwrap_or(Some(Duration::from_secs(default)))
        };
        let timeouts = Timeouts {
            init: timeout(&INIT_TIMEOUT, 120),
            collective: timeout(&COLLECTIVE_TIMEOUT, 1800),
            destroy: timeout(&DESTROY_TIMEOUT, 10),
        };
        Config {
            log_level,
            log_file: reader.path(&LOG_FILE),
            tiers: reader
                .words(&TIERS)
                .map(|words| words.into_iter().filter_map(Tier::from_name).collect()),
            timeouts,
            device: match reader.word(&DEVICE) {
                Some("guard") => Some(DeviceMode::Guard),
                Some("error") => Some(DeviceMode::Error),
                Some("trust") => Some(DeviceMode::Trust),
                _ => None,
            },
            check: reader.boolean(&CHECK).unwrap_or(false),
            // Less would take a busy machine for a dead one.
            liveness: reader
                .seconds(&LIVENESS)
                .flatten()
                .map(|limit| limit.max(Duration::from_millis(200))),
            staging_memory: reader.number(&STAGING_MEMORY).unwrap_or(64 << 20),
            staging_threads: reader.number(&STAGING_THREADS),
            streams_wait: reader.word(&STAGING_WAIT) != Some("call"),
            socket_ifname: reader.text(&SOCKET_IFNAME),
            socket_family: match reader.word(&SOCKET_FAMILY) {
                Some("ipv4") => Some(SocketFamily::Ipv4),
                Some("ipv6") => Some(SocketFamily::Ipv6),
                _ => None,
            },
            hostid: reader.text(&HOSTID),
            single_copy: match reader.word(&SINGLE_COPY) {
                Some("on") => SingleCopy::On,
                Some("off") => SingleCopy::Off,
                _ => SingleCopy::Auto,
            },
            host_engine: reader
                .word(&HOST_ENGINE)
                .and_then(|word| HostEngine::ALL.into_iter().find(|e| e.name() == word))
                .unwrap_or_default(),
            host_hierarchy: reader.boolean(&HOST_HIERARCHY).unwrap_or(true),
            dlopen: match reader.word(&DLOPEN) {
                Some("deepbind") => OpenMode::DeepBind,
                Some("global") => OpenMode::Global,
                _ => OpenMode::Local,
            },
        }
    }
}

/// The configuration of an environment with these variables, and the warnings.
#[cfg(test)]
pub(crate) fn of_pairs(pairs: &[(&str, OsString)], secure: bool) -> (Config, Vec<String>) {
    let mut warnings = Vec::new();
    let find = |name: &str| pairs.iter().find(|(n, _)| *n == name);
    let config = Config::read(&mut Reader {
        lookup: &|name| find(name).map(|(_, value)| value.clone()),
        secure,
        warnings: &mut warnings,
    });
    (config, warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)], secure: bool) -> (Config, Vec<String>) {
        let pairs: Vec<(&str, OsString)> = pairs.iter().map(|(n, v)| (*n, v.into())).collect();
        of_pairs(&pairs, secure)
    }

    #[test]
    fn defaults() {
        let (config, warnings) = read(&[], false);
        assert!(warnings.is_empty());
        assert_eq!(config.log_level, log::LevelFilter::Warn);
        assert_eq!(config.timeouts.init, Some(Duration::from_secs(120)));
        assert_eq!(config.timeouts.collective, Some(Duration::from_secs(1800)));
        assert_eq!(config.timeouts.destroy, Some(Duration::from_secs(10)));
        assert_eq!(config.tiers, None);
        assert_eq!(config.device, None);
        assert_eq!(config.dlopen, OpenMode::Local);
        assert!(!config.check);
    }

    #[test]
    fn truth_table() {
        for (text, value) in [
            ("1", true),
            (" TRUE ", true),
            ("on", true),
            ("Yes", true),
            ("0", false),
            ("false", false),
            ("OFF", false),
            ("no", false),
            ("", false),
            ("   ", false),
        ] {
            let (config, warnings) = read(&[("FLAGOSCOMM_CHECK", text)], false);
            assert_eq!(config.check, value, "{text:?}");
            assert!(warnings.is_empty(), "{text:?}");
        }
    }

    #[test]
    fn bad_values_warn_once_and_default() {
        for (name, value) in [
            ("FLAGOSCOMM_CHECK", "maybe"),
            ("FLAGOSCOMM_LOG", "loud"),
            ("FLAGOSCOMM_TIERS", "native,mars"),
            ("FLAGOSCOMM_TIERS", "host,host"),
            ("FLAGOSCOMM_TIMEOUT", "soon"),
            ("FLAGOSCOMM_TIMEOUT", "-1"),
            ("FLAGOSCOMM_TIMEOUT", "nan"),
            ("FLAGOSCOMM_TIMEOUT", "1e30"),
            ("FLAGOSCOMM_DEVICE", "x"),
            ("FLAGOSCOMM_DLOPEN", "lazy"),
            ("FLAGOSCOMM_HOST_ENGINE", "gloo"),
            ("FLAGOSCOMM_SOCKET_FAMILY", "7"),
            ("FLAGOSCOMM_SINGLE_COPY", "2"),
        ] {
            let (config, warnings) = read(&[(name, value)], false);
            assert_eq!(warnings.len(), 1, "{name}={value}");
            assert!(
                warnings[0].contains(name) && warnings[0].contains(value),
                "{warnings:?}"
            );
            assert_eq!(config, read(&[], false).0, "{name}={value}");
        }
    }

    #[test]
    fn timeouts() {
        let (config, _) = read(
            &[
                ("FLAGOSCOMM_TIMEOUT", "2.5"),
                ("FLAGOSCOMM_DESTROY_TIMEOUT", "0"),
            ],
            false,
        );
        assert_eq!(config.timeouts.init, Some(Duration::from_millis(2500)));
        assert_eq!(
            config.timeouts.collective,
            Some(Duration::from_millis(2500))
        );
        assert_eq!(config.timeouts.destroy, None);
    }

    #[test]
    fn liveness() {
        let limit = |value| read(&[("FLAGOSCOMM_LIVENESS", value)], false).0.liveness;
        assert_eq!(limit("3"), Some(Duration::from_secs(3)));
        assert_eq!(limit("0.001"), Some(Duration::from_millis(200)));
        assert_eq!((limit("0"), limit("")), (None, None));
    }

    #[test]
    fn single_copy() {
        let of = |value| {
            read(&[("FLAGOSCOMM_SINGLE_COPY", value)], false)
                .0
                .single_copy
        };
        assert_eq!((of("ON"), of("off")), (SingleCopy::On, SingleCopy::Off));
        assert_eq!((of("auto"), of("")), (SingleCopy::Auto, SingleCopy::Auto));
    }

    #[test]
    fn tiers() {
        let (config, _) = read(&[("FLAGOSCOMM_TIERS", " FlagCX , native,host")], false);
        assert_eq!(
            config.tiers,
            Some(vec![Tier::Flagcx, Tier::Native, Tier::Host])
        );
    }

    #[test]
    fn staging() {
        let of = |vars: &[(&str, &str)]| {
            let (config, warnings) = read(vars, false);
            let staging = (
                config.staging_memory,
                config.staging_threads,
                config.streams_wait,
            );
            (staging, warnings.len())
        };
        assert_eq!(of(&[]), ((64 << 20, None, true), 0));
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("3k", 3 << 10),
            (" 8M ", 8 << 20),
            ("1G", 1 << 30),
        ] {
            let vars = [("FLAGOSCOMM_STAGING_MEMORY", text)];
            assert_eq!(of(&vars), ((bytes, None, true), 0), "{text}");
        }
        for text in [
            "M",
            "-1",
            "1.5M",
            "2T",
            "64 M",
            "99999999999999999999",
            "99999999999G",
        ] {
            let vars = [("FLAGOSCOMM_STAGING_MEMORY", text)];
            assert_eq!(of(&vars), ((64 << 20, None, true), 1), "{text}");
        }
        let vars = [
            ("FLAGOSCOMM_STAGING_THREADS", "3"),
            ("FLAGOSCOMM_STAGING_WAIT", "call"),
        ];
        assert_eq!(of(&vars), ((64 << 20, Some(3), false), 0));
        assert_eq!(of(&[("FLAGOSCOMM_STAGING_THREADS", "0")]).1, 1);
    }

    #[test]
    fn paths_are_ignored_in_secure_processes() {
        let vars = [
            ("FLAGOSCOMM_LOG_FILE", "/some/file"),
            ("FLAGOSCOMM_LOG", "info"),
        ];
        let (config, warnings) = read(&vars, true);
        assert_eq!(config.log_file, None);
        assert_eq!(config.log_level, log::LevelFilter::Info);
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].contains("FLAGOSCOMM_LOG_FILE"));
        assert_eq!(
            read(&vars, false).0.log_file,
            Some(PathBuf::from("/some/file"))
        );
    }

    #[test]
    fn names_that_are_none_of_ours_are_told_with_the_nearest_that_is() {
        let of = |names: &[&'static str]| {
            let vendors: [VendorNames; 3] = [
                ("nvidia", &["cuda"]),
                ("amd", &["rocm"]),
                ("mthreads", &["musa"]),
            ];
            let found = unknown(names.iter().copied(), &vendors);
            found
                .into_iter()
                .map(|(name, meant)| (name, meant.unwrap_or_default()))
                .collect::<Vec<_>>()
        };
        let known = [
            "FLAGOSCOMM_TIMEOUT",
            "FLAGOSCOMM_AMD_DRIVER",
            "FLAGOSCOMM_TEST_LIBRARY",
            "FLAGOSCOMM_BLESS",
            "FLAGOS_TIMOUT",
            "FLAGOS_COMM_DIR",
            "FLAGOS_COMM_LIBRARY",
            "FLAGOSCOM_",
            "flagoscomm_timeout",
            "PATH",
        ];
        assert_eq!(of(&known), []);
        for (name, meant) in [
            ("FLAGOSCOMM_TIMOUT", "FLAGOSCOMM_TIMEOUT"),
            ("FLAGOSCOMM_TIER", "FLAGOSCOMM_TIERS"),
            ("FLAGOSCOMM_ENGINE", "FLAGOSCOMM_HOST_ENGINE"),
            ("FLAGOSCOMM_HOST_HIERACHY", "FLAGOSCOMM_HOST_HIERARCHY"),
            ("FLAGOSCOMM_NVDIA_LIBRARY", "FLAGOSCOMM_NVIDIA_LIBRARY"),
            ("FLAGOSCOMM_SOCKET_IFACE", "FLAGOSCOMM_SOCKET_IFNAME"),
            ("FLAGOSCOMM_LGO", "FLAGOSCOMM_LOG"),
            ("FLAGOSCOM_LOG", "FLAGOSCOMM_LOG"),
            ("FLAGOS_COMM_LOG", "FLAGOSCOMM_LOG"),
            ("FLAGOS_COMM_TIMOUT", "FLAGOSCOMM_TIMEOUT"),
            ("FLAGOSCOMM_CUDA_LIBRARY", "FLAGOSCOMM_NVIDIA_LIBRARY"),
            ("FLAGOSCOMM_ROCM_DRIVER", "FLAGOSCOMM_AMD_DRIVER"),
            ("FLAGOSCOMM_MUSA_NUMBRES", "FLAGOSCOMM_MTHREADS_NUMBERS"),
            ("FLAGOSCOMM_LIBRARY", "FLAGOSCOMM_<VENDOR>_LIBRARY"),
            ("FLAGOSCOMM_CPU_LIBRARY", ""),
            ("FLAGOSCOMM_INTEL_DRIVER", ""),
            ("FLAGOSCOMM_COMM", ""),
            ("FLAGOSCOMM_DEBUG", ""),
            ("FLAGOSCOMM_", ""),
        ] {
            assert_eq!(of(&[name]), [(name, meant.to_string())]);
        }
        for (one, other, expected) in [
            ("", "abc", 3),
            ("abc", "abc", 0),
            ("abc", "acb", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(one, other), expected);
            assert_eq!(distance(other, one), expected);
        }
    }

    #[test]
    fn override_names() {
        assert_eq!(
            override_name("nvidia", OverrideOf::Library),
            "FLAGOSCOMM_NVIDIA_LIBRARY"
        );
        assert_eq!(
            override_name("nvidia", OverrideOf::Driver),
            "FLAGOSCOMM_NVIDIA_DRIVER"
        );
        assert_eq!(
            override_name("ucx", OverrideOf::Engine),
            "FLAGOSCOMM_ENGINE_PATH"
        );
        assert_eq!(numbers_name("mthreads"), "FLAGOSCOMM_MTHREADS_NUMBERS");
    }

    fn page() -> String {
        let mut page = String::from(
            "# Environment variables\n\n\
             This page is generated from the table in `src/config.rs`; a test compares the two.\n\n\
             Variables are read when they are first needed, once per process. Ours are never written. \
             Spaces around a value are ignored, an\nempty value means unset, case doesn't matter in \
             words. A value that is not understood gives one warning and the default.\n\
             Variables that hold a path are ignored, with a warning, in processes that run with \
             more rights than their caller.\n\n\
             `<VENDOR>` is the vendor's key (none of its other names) in capitals, or FLAGCX for the tier flagcx.\n\n\
             ## Ours\n\n",
        );
        let table = |page: &mut String, vars: &[&Var]| {
            page.push_str("| name | values | default | meaning |\n|---|---|---|---|\n");
            for var in vars {
                let values = match var.kind {
                    Kind::Bool => "1, true, on, yes, 0, false, off, no".to_string(),
                    Kind::Seconds => "seconds, fractions allowed, 0 for none".to_string(),
                    Kind::Bytes => "bytes, with K, M or G for their powers of 1024".to_string(),
                    Kind::Count => "1 or more".to_string(),
                    Kind::Word(words) => words.join(", "),
                    Kind::Words(words) => format!("some of {}, with commas", words.join(", ")),
                    Kind::Text => "text".to_string(),
                    Kind::Path => "path".to_string(),
                };
                page.push_str(&format!(
                    "| `{}` | {values} | {} | {} |\n",
                    var.name, var.default, var.meaning
                ));
            }
        };
        table(&mut page, VARS);
        page.push_str("\n## Of others\n\n");
        table(&mut page, FOREIGN);
        page
    }

    #[test]
    fn the_page_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/environment.md");
        let want = page();
        if std::env::var_os("FLAGOSCOMM_BLESS").is_some() {
            std::fs::write(path, &want).unwrap();
        }
        let have = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            have == want,
            "docs/environment.md is stale; refresh it with\n    \
             cargo run -p xtask -- env"
        );
    }

    #[test]
    fn names_are_unique_and_ours_have_the_prefix() {
        for (i, var) in VARS.iter().enumerate() {
            assert!(var.name.starts_with("FLAGOSCOMM_"), "{}", var.name);
            assert!(VARS[..i].iter().all(|v| v.name != var.name), "{}", var.name);
        }
    }
}
