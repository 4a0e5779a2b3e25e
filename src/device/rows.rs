//! The drivers' rows: names and numbers.
//!
//! A runtime of CUDA's shape is a row and nothing else. Numbers are those of the runtimes' own
//! headers; one that no header known to us tells is [`None`] or 0 and can be given by the user.
#![forbid(unsafe_code)]

use super::adapter::{NOT_READY, Odd};
use super::{acl, cnrt, tx};
use crate::load::numbers::Numbers;
use crate::vendor::Root;
use crate::{Error, Result};

/// The result that means "not yet".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotReady {
    /// This number.
    Is(i32),
    /// The number whose name the runtime gives with `ErrorNotReady` at its end.
    Named,
    /// Nobody knows: queries are refused.
    Unknown,
}

/// What it means that the runtime can't say which device is current.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unbound {
    /// These results mean that there is none; others are failures.
    Codes(&'static [i32]),
    /// Every failure means that there is none.
    Any,
}

/// What kind of memory a pointer points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Memory that the runtime doesn't know.
    Unregistered,
    /// Pinned host memory.
    Host,
    /// A device's.
    Device,
    /// Memory that moves between the host and a device.
    Managed,
}

/// Numbers of kinds of memory.
pub(crate) type Kinds = &'static [(i32, Memory)];

/// How a runtime says whose memory a pointer is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pointers {
    /// The kind and the device are the first two numbers of its answer.
    Kinds(Kinds),
    /// As above, with other numbers before a major version.
    SinceMajor(i32, Kinds, Kinds),
    /// Nobody knows what its answer looks like.
    Unknown,
}

/// How a runtime's version number is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VersionCode {
    /// 1000 × major + 10 × minor.
    Cuda,
    /// 10 000 000 × major + 100 000 × minor + patch.
    Hip,
}

impl Unbound {
    /// Whether a result of asking for the current device means that there is none.
    pub(crate) fn means(self, code: i32) -> bool {
        match self {
            Unbound::Codes(codes) => codes.contains(&code),
            Unbound::Any => code != 0,
        }
    }
}

impl VersionCode {
    /// The major version.
    pub(crate) const fn major(self, code: i32) -> i32 {
        match self {
            VersionCode::Cuda => code / 1000,
            VersionCode::Hip => code / 10_000_000,
        }
    }

    /// Major and minor version as text.
    pub(crate) fn text(self, code: i32) -> String {
        let minor = match self {
            VersionCode::Cuda => code % 1000 / 10,
            VersionCode::Hip => code % 10_000_000 / 100_000,
        };
        format!("{}.{minor}", self.major(code))
    }
}

/// Numbers of a runtime's enumerations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Enums {
    /// The result that means "not yet".
    pub(crate) not_ready: NotReady,
    /// An older result that means "not yet".
    pub(crate) busy: Option<i32>,
    /// Results of asking for the current device that mean "there is none".
    pub(crate) unbound: Unbound,
    /// The result that means that the machine has no device.
    pub(crate) no_device: Option<i32>,
    /// The result of asking whose memory an address is that means "unknown to me".
    pub(crate) unknown_pointer: Option<i32>,
    /// Result of asking about a stream while another one captures implicitly.
    pub(crate) capture_implicit: Option<i32>,
    /// The capture mode in which this thread's calls don't end another thread's capture.
    pub(crate) capture_relaxed: i32,
    /// The flag of a stream that doesn't synchronise with the null stream.
    pub(crate) stream_non_blocking: u32,
    /// The flag of an event with time.
    pub(crate) event_timing: u32,
    /// The flag of an event without time.
    pub(crate) event_no_timing: u32,
    /// Copy kinds: host to device, device to host, device to device, find out.
    pub(crate) copy: [Option<i32>; 4],
}

/// Names by which a user gives numbers of copy kinds, in the order of [`Enums::copy`].
pub(crate) const COPY_NAMES: [&str; 4] = [
    "copy_host_to_device",
    "copy_device_to_host",
    "copy_device_to_device",
    "copy_default",
];

impl Enums {
    /// With the numbers that the user gave. Names of other tables are left alone.
    pub(crate) fn with(mut self, numbers: &Numbers) -> Result<Enums> {
        for (name, value) in numbers.iter() {
            let refused = || {
                Error::invalid_argument(format!(
                    "{}: {name}={value} has more than 32 bits",
                    numbers.variable()
                ))
            };
            let signed = || i32::try_from(value).map_err(|_| refused());
            let flags = || u32::try_from(value).map_err(|_| refused());
            match name {
                "not_ready" => self.not_ready = NotReady::Is(signed()?),
                "busy" => self.busy = Some(signed()?),
                "stream_non_blocking" => self.stream_non_blocking = flags()?,
                "event_timing" => self.event_timing = flags()?,
                "event_no_timing" => self.event_no_timing = flags()?,
                name => {
                    if let Some(at) = COPY_NAMES.iter().position(|n| *n == name) {
                        self.copy[at] = Some(signed()?);
                    }
                }
            }
        }
        Ok(self)
    }
}

/// A runtime library. Those of CUDA's shape have its function names with another prefix.
#[derive(Debug)]
pub(crate) struct DriverRow {
    /// Its name for people.
    pub(crate) title: &'static str,
    /// Its name in lists of declarations.
    #[allow(dead_code, reason = "for tests of declarations")]
    pub(crate) library: &'static str,
    /// What every function's name starts with.
    pub(crate) prefix: &'static str,
    /// Functions whose name is not the prefix and CUDA's suffix: suffix, full name. Of a runtime
    /// that doesn't have CUDA's shape, the function that an adapter calls.
    pub(crate) renames: &'static [(&'static str, &'static str)],
    /// Functions, by suffix, that it doesn't have or that nobody has described: never looked up.
    pub(crate) without: &'static [&'static str],
    /// Functions beyond the usual ones, by suffix, that are looked up.
    pub(crate) with: &'static [&'static str],
    /// Set if it doesn't have CUDA's shape.
    pub(crate) odd: Option<&'static Odd>,
    /// File names, newest first.
    pub(crate) sonames: &'static [&'static str],
    /// Folders below `site-packages` in which wheels put it.
    pub(crate) wheels: &'static [&'static str],
    /// Further folders.
    pub(crate) roots: &'static [Root],
    /// Whether the folders come before the loader's search, because another vendor's library has
    /// the same name.
    #[allow(dead_code, reason = "for the search")]
    pub(crate) own_roots_first: bool,
    /// Its numbers.
    pub(crate) enums: Enums,
    /// Names of the numbers that a user may give.
    pub(crate) overridable: &'static [&'static str],
    /// How it says whose memory a pointer is.
    pub(crate) pointers: Pointers,
    /// How its version number is made.
    pub(crate) version: VersionCode,
    /// Whether a failed call leaves an error behind that a later, unrelated check would find.
    pub(crate) leaves_last_error: bool,
    /// Whether NULL is a stream.
    pub(crate) null_stream: bool,
    /// Whether streams, events and memory can be used only while their device is current.
    pub(crate) device_scoped: bool,
    /// Whether the host sees what a finished stream has written only after it synchronised it.
    pub(crate) completion_needs_sync: bool,
    /// The variable that says which devices a process sees, for a driver that can't tell which
    /// device of the machine an index means.
    pub(crate) visibility: Option<&'static str>,
    /// The driver below the runtime, if programs may use it without the runtime.
    pub(crate) low: Option<&'static LowRow>,
}

/// The driver below a runtime: one per process, also where programs have their own runtime.
#[derive(Debug)]
pub(crate) struct LowRow {
    /// Its name for people.
    pub(crate) title: &'static str,
    /// Its name in lists of declarations.
    #[allow(dead_code, reason = "for tests of declarations")]
    pub(crate) library: &'static str,
    /// What every function's name starts with.
    pub(crate) prefix: &'static str,
    /// The function that has the role of the runtime's function with this suffix.
    pub(crate) renames: &'static [(&'static str, &'static str)],
    /// Functions beyond the usual ones, by suffix, that are looked up.
    pub(crate) with: &'static [&'static str],
    /// File names.
    pub(crate) sonames: &'static [&'static str],
    /// Its numbers.
    pub(crate) enums: Enums,
}

const CUDA_ENUMS: Enums = Enums {
    not_ready: NotReady::Is(600),
    busy: None,
    unbound: Unbound::Codes(&[]),
    no_device: Some(100),
    unknown_pointer: Some(1),
    capture_implicit: Some(906),
    capture_relaxed: 2,
    stream_non_blocking: 1,
    event_timing: 0,
    event_no_timing: 2,
    copy: [Some(1), Some(2), Some(3), Some(4)],
};

/// What runtimes that copied CUDA may have changed: results have names to be found by, and flags
/// that nobody has described are left out, which costs speed and nothing else.
const UNTOLD_ENUMS: Enums = Enums {
    not_ready: NotReady::Named,
    no_device: None,
    unknown_pointer: None,
    capture_implicit: None,
    stream_non_blocking: 0,
    event_no_timing: 0,
    ..CUDA_ENUMS
};

const CUDA_KINDS: Kinds = &[
    (0, Memory::Unregistered),
    (1, Memory::Host),
    (2, Memory::Device),
    (3, Memory::Managed),
];

const FLAGS: &[&str] = &["not_ready", "stream_non_blocking", "event_no_timing"];

const CAPTURE: [&str; 2] = ["StreamIsCapturing", "ThreadExchangeStreamCaptureMode"];

/// CUDA's runtime.
pub(crate) static CUDA: DriverRow = DriverRow {
    low: Some(&CUDA_LOW),
    with: &["HostRegister", "HostUnregister", "StreamCreateWithPriority"],
    sonames: &[
        "libcudart.so.13",
        "libcudart.so.12",
        "libcudart.so.11.0",
        "libcudart.so",
    ],
    wheels: &["nvidia/cu13/lib", "nvidia/cuda_runtime/lib"],
    roots: &[
        Root::Env("CUDA_HOME", "lib64"),
        Root::Env("CUDA_PATH", "lib64"),
        Root::Env("CONDA_PREFIX", "lib"),
        Root::Folder("/usr/local/cuda/lib64"),
        #[cfg(target_arch = "x86_64")]
        Root::Folder("/usr/lib/x86_64-linux-gnu"),
        #[cfg(target_arch = "aarch64")]
        Root::Folder("/usr/lib/aarch64-linux-gnu"),
        Root::Folder("/usr/lib64"),
    ],
    ..CUDA_SHAPE
};

/// What a runtime of CUDA's shape has unless its row says otherwise.
const CUDA_SHAPE: DriverRow = DriverRow {
    title: "CUDA runtime",
    library: "cuda",
    prefix: "cuda",
    renames: &[],
    without: &[],
    with: &[],
    odd: None,
    sonames: &[],
    wheels: &[],
    roots: &[],
    own_roots_first: false,
    enums: CUDA_ENUMS,
    overridable: &[],
    pointers: Pointers::Kinds(CUDA_KINDS),
    version: VersionCode::Cuda,
    leaves_last_error: true,
    null_stream: true,
    device_scoped: false,
    completion_needs_sync: false,
    visibility: None,
    low: None,
};

/// CUDA's driver. 201 is "no context", 3 is "not initialised", 4 is "being unloaded": in all of
/// them this thread has no current device.
static CUDA_LOW: LowRow = LowRow {
    sonames: &["libcuda.so.1"],
    with: &["StreamWaitValue32_v2", "StreamWriteValue32_v2"],
    ..CUDA_LOW_SHAPE
};

const CUDA_LOW_SHAPE: LowRow = LowRow {
    title: "CUDA driver",
    library: "cuda driver",
    prefix: "cu",
    renames: &[
        ("GetDevice", "cuCtxGetDevice"),
        ("GetDeviceCount", "cuDeviceGetCount"),
        ("StreamCreateWithFlags", "cuStreamCreate"),
        ("StreamDestroy", "cuStreamDestroy_v2"),
        ("EventCreateWithFlags", "cuEventCreate"),
        ("EventDestroy", "cuEventDestroy_v2"),
        ("Malloc", "cuMemAlloc_v2"),
        ("Free", "cuMemFree_v2"),
        ("HostAlloc", "cuMemHostAlloc"),
        ("FreeHost", "cuMemFreeHost"),
        ("MallocManaged", "cuMemAllocManaged"),
        ("HostRegister", "cuMemHostRegister_v2"),
        ("HostUnregister", "cuMemHostUnregister"),
        ("MemsetAsync", "cuMemsetD8Async"),
    ],
    with: &[],
    sonames: &[],
    enums: Enums {
        unbound: Unbound::Codes(&[3, 4, 201]),
        ..CUDA_ENUMS
    },
};

/// Iluvatar's runtime and driver, which have the names of CUDA's.
pub(crate) static ILUVATAR_CUDA: DriverRow = DriverRow {
    title: "CoreX runtime",
    sonames: &["libcudart.so"],
    roots: &[
        Root::Folder("/usr/local/corex/lib"),
        Root::Folder("/usr/local/corex/lib64"),
    ],
    own_roots_first: true,
    low: Some(&CLONE_LOW),
    ..CUDA_SHAPE
};

/// The runtime that Hygon's DTK offers under CUDA's names.
pub(crate) static DU_CUDA: DriverRow = DriverRow {
    title: "DTK's CUDA runtime",
    sonames: &["libcudart.so"],
    roots: &[Root::Env("CUDA_PATH", "lib64")],
    own_roots_first: true,
    low: Some(&CLONE_LOW),
    ..CUDA_SHAPE
};

/// T-Head's runtime and driver, which have the names of CUDA's.
pub(crate) static THEAD_CUDA: DriverRow = DriverRow {
    title: "PPU runtime",
    sonames: &["libcudart.so"],
    roots: &[
        Root::Env("PPU_SDK", "lib"),
        Root::Env("PPU_SDK", "CUDA_SDK/lib64"),
        Root::Folder("/usr/local/PPU_SDK/lib"),
        Root::Folder("/usr/local/PPU_SDK/CUDA_SDK/lib64"),
    ],
    own_roots_first: true,
    low: Some(&CLONE_LOW),
    ..CUDA_SHAPE
};

/// The runtime that Kunlunxin offers under CUDA's names. There is no driver below it.
pub(crate) static KUNLUNXIN_CUDA: DriverRow = DriverRow {
    title: "XPU's CUDA runtime",
    sonames: &["libcudart.so", "libcudart.so.12"],
    wheels: &["torch_xmlir", "paddle/libs"],
    roots: &[
        Root::Folder("/usr/local/xccl/so"),
        Root::Folder("/usr/local/xpu/so"),
        Root::Folder("/usr/local/xpu/lib64"),
        Root::Folder("/usr/local/xpu/lib"),
        Root::Folder("/opt/kunlun/lib"),
    ],
    own_roots_first: true,
    ..CUDA_SHAPE
};

/// The driver of those whose driver has the name of CUDA's.
static CLONE_LOW: LowRow = LowRow {
    title: "driver with CUDA's name",
    sonames: &["libcuda.so.1", "libcuda.so"],
    ..CUDA_LOW_SHAPE
};

const HIP_SHAPE: DriverRow = DriverRow {
    title: "HIP runtime",
    library: "hip",
    prefix: "hip",
    renames: &[("HostAlloc", "hipHostMalloc"), ("FreeHost", "hipHostFree")],
    with: &["HostRegister", "HostUnregister", "StreamCreateWithPriority"],
    pointers: Pointers::SinceMajor(
        6,
        &[
            (0, Memory::Host),
            (1, Memory::Device),
            (2, Memory::Device),
            (3, Memory::Managed),
        ],
        &[
            (0, Memory::Unregistered),
            (1, Memory::Host),
            (2, Memory::Device),
            (3, Memory::Managed),
            (10, Memory::Device),
            (11, Memory::Managed),
        ],
    ),
    version: VersionCode::Hip,
    ..CUDA_SHAPE
};

/// AMD's HIP.
pub(crate) static HIP: DriverRow = DriverRow {
    sonames: &[
        "libamdhip64.so.7",
        "libamdhip64.so.6",
        "libamdhip64.so.5",
        "libamdhip64.so",
    ],
    wheels: &["torch/lib"],
    roots: &[Root::Env("ROCM_PATH", "lib"), Root::Folder("/opt/rocm/lib")],
    ..HIP_SHAPE
};

/// Hygon's HIP.
pub(crate) static GALAXYHIP: DriverRow = DriverRow {
    title: "Hygon's HIP runtime",
    sonames: &["libgalaxyhip.so.5", "libgalaxyhip.so"],
    roots: &[
        Root::Env("DTK_ROOT", "lib"),
        Root::Env("ROCM_PATH", "lib"),
        Root::Folder("/opt/dtk/lib"),
    ],
    ..HIP_SHAPE
};

/// Huawei's ACL. Its results for "no context" aren't told, so every failure to say the current
/// device is taken for that. Events for ordering have the flag for it; events with time have the
/// flag for time.
pub(crate) static ACL: DriverRow = DriverRow {
    title: "ACL runtime",
    library: "acl",
    prefix: "aclrt",
    renames: &[
        ("StreamCreateWithFlags", "aclrtCreateStream"),
        ("StreamDestroy", "aclrtDestroyStream"),
        ("StreamSynchronize", "aclrtSynchronizeStream"),
        ("EventCreateWithFlags", "aclrtCreateEventWithFlag"),
        ("EventDestroy", "aclrtDestroyEvent"),
        ("EventRecord", "aclrtRecordEvent"),
        ("EventQuery", "aclrtQueryEventStatus"),
        ("EventSynchronize", "aclrtSynchronizeEvent"),
        ("HostAlloc", "aclrtMallocHost"),
        ("DeviceSynchronize", "aclrtSynchronizeDevice"),
    ],
    without: &[
        "DeviceGetPCIBusId",
        "StreamIsCapturing",
        "ThreadExchangeStreamCaptureMode",
        "GetErrorString",
        "RuntimeGetVersion",
    ],
    odd: Some(&acl::ODD),
    sonames: &["libascendcl.so", "libacl_rt.so"],
    roots: &[
        Root::Env("ASCEND_HOME_PATH", "lib64"),
        Root::Env("ASCEND_TOOLKIT_HOME", "lib64"),
        Root::Folder("/usr/local/Ascend/ascend-toolkit/latest/lib64"),
        Root::Folder("/usr/local/Ascend/cann/lib64"),
    ],
    enums: Enums {
        not_ready: NotReady::Is(NOT_READY),
        unbound: Unbound::Any,
        event_timing: 8,
        event_no_timing: 1,
        ..UNTOLD_ENUMS
    },
    overridable: &["event_timing", "event_no_timing"],
    pointers: Pointers::Kinds(&[
        (0, Memory::Host),
        (1, Memory::Device),
        (2, Memory::Unregistered),
    ]),
    null_stream: false,
    visibility: Some("ASCEND_RT_VISIBLE_DEVICES"),
    ..CUDA_SHAPE
};

/// MetaX' MACA.
pub(crate) static MACA: DriverRow = DriverRow {
    title: "MACA runtime",
    library: "maca",
    prefix: "mc",
    renames: &[("HostAlloc", "mcMallocHost")],
    without: &[
        CAPTURE[0],
        CAPTURE[1],
        "HostAlloc",
        "PointerGetAttributes",
        "RuntimeGetVersion",
    ],
    with: &["MallocHost", "GetErrorName"],
    sonames: &["libmcruntime.so"],
    roots: &[
        Root::Env("MACA_PATH", "lib"),
        Root::Folder("/opt/maca/lib"),
        Root::Folder("/opt/maca/lib64"),
        Root::Folder("/opt/maca-3.3.0/lib"),
    ],
    enums: UNTOLD_ENUMS,
    overridable: FLAGS,
    pointers: Pointers::Unknown,
    ..CUDA_SHAPE
};

/// Moore Threads' MUSA.
pub(crate) static MUSA: DriverRow = DriverRow {
    title: "MUSA runtime",
    library: "musa",
    prefix: "musa",
    renames: &[("HostAlloc", "musaMallocHost")],
    without: &[CAPTURE[0], CAPTURE[1], "HostAlloc", "RuntimeGetVersion"],
    with: &["MallocHost", "GetErrorName"],
    sonames: &["libmusart.so.5", "libmusart.so.4", "libmusart.so"],
    roots: &[
        Root::Env("MUSA_HOME", "lib"),
        Root::Folder("/usr/local/musa/lib"),
    ],
    enums: UNTOLD_ENUMS,
    overridable: FLAGS,
    ..CUDA_SHAPE
};

/// Enflame's runtime.
pub(crate) static TOPS: DriverRow = DriverRow {
    title: "TOPS runtime",
    library: "tops",
    prefix: "tops",
    renames: &[
        ("HostAlloc", "topsHostMalloc"),
        ("FreeHost", "topsHostFree"),
    ],
    without: &[CAPTURE[0], CAPTURE[1], "RuntimeGetVersion"],
    with: &[],
    sonames: &["libtopsrt.so", "libtopsrt.so.1"],
    roots: &[Root::Folder("/opt/tops/lib"), Root::Folder("/usr/lib")],
    enums: Enums {
        no_device: None,
        capture_implicit: None,
        ..CUDA_ENUMS
    },
    pointers: Pointers::Kinds(&[
        (1, Memory::Host),
        (2, Memory::Device),
        (4, Memory::Device),
        (8, Memory::Device),
    ]),
    device_scoped: true,
    completion_needs_sync: true,
    ..CUDA_SHAPE
};

/// Cambricon's CNRT.
pub(crate) static CNRT: DriverRow = DriverRow {
    title: "CNRT",
    library: "cnrt",
    prefix: "cnrt",
    renames: &[
        ("StreamCreateWithFlags", "cnrtQueueCreate"),
        ("StreamDestroy", "cnrtQueueDestroy"),
        ("StreamQuery", "cnrtQueueQuery"),
        ("StreamSynchronize", "cnrtQueueSync"),
        ("StreamWaitEvent", "cnrtQueueWaitNotifier"),
        ("EventCreateWithFlags", "cnrtNotifierCreateWithFlags"),
        ("EventDestroy", "cnrtNotifierDestroy"),
        ("EventRecord", "cnrtPlaceNotifier"),
        ("EventQuery", "cnrtQueryNotifier"),
        ("EventSynchronize", "cnrtWaitNotifier"),
        ("EventElapsedTime", "cnrtNotifierElapsedTime"),
        ("HostAlloc", "cnrtHostMalloc"),
        ("DeviceSynchronize", "cnrtSyncDevice"),
        ("MemcpyAsync", "cnrtMemcpyAsync_V2"),
        ("GetErrorString", "cnrtGetErrorStr"),
    ],
    without: &[
        CAPTURE[0],
        CAPTURE[1],
        "PeekAtLastError",
        "RuntimeGetVersion",
    ],
    odd: Some(&cnrt::ODD),
    sonames: &["libcnrt.so"],
    roots: &[
        Root::Env("NEUWARE_HOME", "lib64"),
        Root::Folder("/usr/local/neuware/lib64"),
    ],
    enums: Enums {
        not_ready: NotReady::Is(1),
        busy: Some(632_014),
        no_device: Some(100_004),
        event_no_timing: 4,
        copy: [Some(0), Some(2), Some(1), None],
        ..UNTOLD_ENUMS
    },
    overridable: &["not_ready", "busy", "event_no_timing", COPY_NAMES[3]],
    pointers: Pointers::Kinds(&[
        (0, Memory::Unregistered),
        (1, Memory::Host),
        (2, Memory::Device),
    ]),
    ..CUDA_SHAPE
};

/// Tsingmicro's runtime, of whose numbers none is told.
pub(crate) static TX: DriverRow = DriverRow {
    title: "TX runtime",
    library: "tx",
    prefix: "tx",
    renames: &[
        ("StreamCreateWithFlags", "txStreamCreate"),
        ("EventCreateWithFlags", "txEventCreate"),
        ("HostAlloc", "txMallocHost"),
    ],
    without: &[
        CAPTURE[0],
        CAPTURE[1],
        "DeviceGetPCIBusId",
        "MemsetAsync",
        "PointerGetAttributes",
        "GetLastError",
        "PeekAtLastError",
        "RuntimeGetVersion",
    ],
    odd: Some(&tx::ODD),
    sonames: &["libhpgr.so"],
    roots: &[Root::Folder("/usr/local/kuiper/lib")],
    enums: Enums {
        not_ready: NotReady::Unknown,
        copy: [None; 4],
        ..UNTOLD_ENUMS
    },
    overridable: &[
        "not_ready",
        COPY_NAMES[0],
        COPY_NAMES[1],
        COPY_NAMES[2],
        COPY_NAMES[3],
    ],
    pointers: Pointers::Unknown,
    leaves_last_error: false,
    visibility: Some("TXDA_VISIBLE_DEVICES"),
    ..CUDA_SHAPE
};

/// Sunrise's runtime. It can't find a copy's kind out, and an event is recorded with flags.
pub(crate) static TANG: DriverRow = DriverRow {
    title: "TANG runtime",
    library: "tang",
    prefix: "tang",
    renames: &[
        ("EventRecord", "tangEventRecordWithFlags"),
        ("HostAlloc", "tangMallocHost"),
    ],
    without: &[
        "EventRecord",
        "HostAlloc",
        "PeekAtLastError",
        "RuntimeGetVersion",
    ],
    with: &["EventRecordWithFlags", "MallocHost"],
    sonames: &["libtangrt_shared.so"],
    roots: &[Root::Folder("/usr/local/tangrt/targets/linux-x86_64/lib")],
    enums: Enums {
        no_device: None,
        unknown_pointer: None,
        capture_implicit: None,
        copy: [Some(1), Some(2), Some(3), None],
        ..CUDA_ENUMS
    },
    ..CUDA_SHAPE
};

/// Of a vendor that doesn't exist; see `load::invented`.
#[cfg(test)]
pub(crate) static INVENTED: DriverRow = DriverRow {
    title: "Invented runtime",
    library: "invented",
    prefix: "zrt",
    without: &[CAPTURE[0], CAPTURE[1], "RuntimeGetVersion"],
    sonames: &["libzrt.so.1"],
    ..CUDA_SHAPE
};

/// Every row.
#[allow(dead_code, reason = "for tests of rows and declarations")]
pub(crate) static ROWS: &[&DriverRow] = &[
    &CUDA,
    &ILUVATAR_CUDA,
    &DU_CUDA,
    &THEAD_CUDA,
    &KUNLUNXIN_CUDA,
    &HIP,
    &GALAXYHIP,
    &ACL,
    &MACA,
    &MUSA,
    &TOPS,
    &CNRT,
    &TX,
    &TANG,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_user() {
        let numbers = |text| Numbers::of_text("tsingmicro", Some(text), TX.overridable);
        let enums = TX
            .enums
            .with(&numbers("not_ready=18,copy_device_to_host=2").unwrap())
            .unwrap();
        assert_eq!(enums.not_ready, NotReady::Is(18));
        assert_eq!(enums.copy, [None, Some(2), None, None]);
        let error = TX.enums.with(&numbers("not_ready=0x100000000").unwrap());
        assert!(error.unwrap_err().text().contains("32 bits"));
        assert!(numbers("stream_non_blocking=1").is_err());
    }

    #[test]
    fn every_name_that_a_row_takes_changes_something() {
        for row in ROWS {
            for name in row.overridable {
                let text = format!("{name}=12345");
                let numbers = Numbers::of_text("x", Some(&text), row.overridable).unwrap();
                let changed = row.enums.with(&numbers).unwrap();
                let (before, after) = (format!("{:?}", row.enums), format!("{changed:?}"));
                assert_ne!(before, after, "{} {name}", row.title);
            }
        }
    }

    #[test]
    fn rows_are_sound() {
        for row in ROWS {
            assert!(!row.sonames.is_empty(), "{}", row.title);
            for suffix in ["GetDevice", "SetDevice", "GetDeviceCount"] {
                assert!(!row.without.contains(&suffix), "{}", row.title);
            }
            let variables = row.roots.iter().filter_map(|root| match root {
                Root::Env(name, _) => Some(*name),
                Root::Folder(_) => None,
            });
            for name in variables.chain(row.visibility) {
                let known = crate::config::FOREIGN.iter().any(|v| v.name == name);
                assert!(known, "{name}");
            }
            assert!(!(row.own_roots_first && row.roots.is_empty()));
        }
    }

    #[test]
    fn versions() {
        assert_eq!(VersionCode::Cuda.text(13050), "13.5");
        assert_eq!(VersionCode::Cuda.text(12090), "12.9");
        assert_eq!(VersionCode::Hip.text(60_443_484), "6.4");
        assert_eq!(VersionCode::Hip.major(50_120_003), 5);
    }
}
