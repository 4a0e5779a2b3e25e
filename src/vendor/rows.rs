//! The rows: everything that differs between vendors and can be said as data.
#![forbid(unsafe_code)]

use super::library::Hint;
use super::{
    Ccl, Groups, Limit, Meaning, Number, Quirks, Root, Shape, Vendor, Version, VersionOf, bkcl,
    cncl, eccl, flagcx, hccl, pccl,
};
use crate::Code;
use crate::device;
use crate::types::{DataType, OpKind, RedOp};

use DataType::{Float64, Int64, Uint8, Uint32, Uint64};
use Number::{Absent, Is, Unknown};
use OpKind::{AllReduce, Reduce, ReduceScatter};

/// A number that every version has.
const fn is(value: i32) -> Number {
    Is(value, Version::new(0, 0, 0))
}

/// A number and the version that brought it.
const fn since(value: i32, major: u16, minor: u16, patch: u16) -> Number {
    Is(value, Version::new(major, minor, patch))
}

const fn fails(code: Code) -> Meaning {
    Meaning::Code(code)
}

const ANY: Version = Version::new(0, 0, 0);
const NEVER: Version = Version::new(u16::MAX, 0, 0);

/// NCCL's numbers are ours. fp8 came late, and some have none.
const fn like_nccl(e4m3: Number, e5m2: Number) -> [Number; 12] {
    [
        is(0),
        is(1),
        is(2),
        is(3),
        is(4),
        is(5),
        is(6),
        is(7),
        is(8),
        is(9),
        e4m3,
        e5m2,
    ]
}

const FIVE_REDOPS: [Number; 5] = [is(0), is(1), is(2), is(3), is(4)];
const NO_AVG: [Number; 5] = [is(0), is(1), is(2), is(3), Absent];

/// The first results of NCCL and of those who copied it.
const NCCL_RESULTS: &[(i32, Meaning)] = &[
    (0, Meaning::Success),
    (1, fails(Code::UnhandledDeviceError)),
    (2, fails(Code::SystemError)),
    (3, fails(Code::InternalError)),
    (4, fails(Code::InvalidArgument)),
    (5, fails(Code::InvalidUsage)),
    (6, fails(Code::RemoteError)),
    (7, fails(Code::InProgress)),
];
/// With NCCL's 8 since 2.30, and not ours, which is a failure without a better name.
const NEW_NCCL_RESULTS: &[(i32, Meaning)] = &[
    (0, Meaning::Success),
    (1, fails(Code::UnhandledDeviceError)),
    (2, fails(Code::SystemError)),
    (3, fails(Code::InternalError)),
    (4, fails(Code::InvalidArgument)),
    (5, fails(Code::InvalidUsage)),
    (6, fails(Code::RemoteError)),
    (7, fails(Code::InProgress)),
    (8, fails(Code::Timeout)),
];

/// NCCL, and the start of the rows of those who copied it.
const NCCL: Ccl = Ccl {
    key: "nvidia",
    title: "NVIDIA NCCL",
    sonames: &["libnccl.so.2", "libnccl.so"],
    wheels: &["nvidia/nccl/lib"],
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
    roots_first: false,
    companions: &[],
    prefix: "nccl",
    renames: &[("AlltoAllv", &[])],
    fingerprint: "ncclCommCuDevice",
    strangers: &[
        ("ncclAllToAllv", "AMD's RCCL"),
        ("tcclCommGetDeviceNumber", "Tsingmicro's TCCL"),
    ],
    stranger_needs: &[],
    version: VersionOf::Code(Version::from_nccl),
    min_version: Version::new(2, 18, 0),
    end_version: Version::new(3, 0, 0),
    nccl_versions: true,
    id_bytes: 128,
    config: true,
    dtypes: [
        since(0, 2, 0, 0),
        since(1, 2, 0, 0),
        since(2, 2, 0, 0),
        since(3, 2, 0, 0),
        since(4, 2, 0, 0),
        since(5, 2, 0, 0),
        since(6, 2, 0, 0),
        since(7, 2, 0, 0),
        since(8, 2, 0, 0),
        since(9, 2, 10, 3),
        since(10, 2, 24, 3),
        since(11, 2, 24, 3),
    ],
    redops: [
        since(0, 2, 0, 0),
        since(1, 2, 0, 0),
        since(2, 2, 0, 0),
        since(3, 2, 0, 0),
        since(4, 2, 10, 3),
    ],
    results: NEW_NCCL_RESULTS,
    limits: &[],
    refusal: None,
    hints: &[],
    shape: Shape::Nccl,
    quirks: Quirks::NONE,
};

static NVIDIA: Vendor = Vendor {
    key: "nvidia",
    aliases: &["cuda"],
    nodes: &["/dev/nvidiactl", "/dev/nvidia0"],
    only_named: false,
    driver: &device::CUDA,
    ccl: NCCL,
};

/// What a copy of NCCL may lack of NCCL is probed; its versions are its own vendor's.
const CLONE: Ccl = Ccl {
    wheels: &[],
    roots_first: true,
    min_version: Version::new(2, 7, 3),
    nccl_versions: false,
    strangers: &[],
    ..NCCL
};

static ILUVATAR: Vendor = Vendor {
    key: "iluvatar",
    aliases: &["corex", "iluvatar_corex"],
    nodes: &[],
    only_named: true,
    driver: &device::ILUVATAR_CUDA,
    ccl: Ccl {
        key: "iluvatar",
        title: "Iluvatar's NCCL (ixccl)",
        sonames: &["libnccl.so", "libnccl.so.2", "libixccl.so"],
        roots: &[
            Root::Folder("/usr/local/corex/lib"),
            Root::Folder("/usr/local/corex/lib64"),
        ],
        ..CLONE
    },
};

static DU: Vendor = Vendor {
    key: "du",
    aliases: &[],
    nodes: &[],
    only_named: true,
    driver: &device::DU_CUDA,
    ccl: Ccl {
        key: "du",
        title: "Hygon's NCCL for CUDA programs",
        roots: &[Root::Env("CUDA_PATH", "lib64")],
        ..CLONE
    },
};

static THEAD: Vendor = Vendor {
    key: "thead",
    aliases: &["ppu"],
    nodes: &[],
    only_named: true,
    driver: &device::THEAD_CUDA,
    ccl: Ccl {
        key: "thead",
        title: "T-Head's NCCL",
        roots: &[
            Root::Env("PPU_SDK", "lib"),
            Root::Env("PPU_SDK", "CUDA_SDK/lib64"),
            Root::Folder("/usr/local/PPU_SDK/lib"),
            Root::Folder("/usr/local/PPU_SDK/CUDA_SDK/lib64"),
        ],
        ..CLONE
    },
};

/// RCCL. Both spellings of all-to-all have the same signature.
const RCCL: Ccl = Ccl {
    key: "amd",
    title: "AMD RCCL",
    sonames: &["librccl.so.1", "librccl.so"],
    wheels: &["torch/lib"],
    roots: &[Root::Env("ROCM_PATH", "lib"), Root::Folder("/opt/rocm/lib")],
    renames: &[
        ("AlltoAll", &["ncclAlltoAll", "ncclAllToAll"]),
        ("AlltoAllv", &["ncclAlltoAllv", "ncclAllToAllv"]),
    ],
    fingerprint: "ncclAllToAllv",
    strangers: &[],
    min_version: Version::new(2, 7, 0),
    nccl_versions: false,
    // fp8 with ROCm 6.2.
    dtypes: like_nccl(since(10, 2, 20, 5), since(11, 2, 20, 5)),
    ..NCCL
};

static AMD: Vendor = Vendor {
    key: "amd",
    aliases: &["rocm"],
    nodes: &[],
    only_named: false,
    driver: &device::HIP,
    ccl: RCCL,
};

static HYGON: Vendor = Vendor {
    key: "hygon",
    aliases: &["dcu"],
    nodes: &[],
    only_named: false,
    driver: &device::GALAXYHIP,
    ccl: Ccl {
        key: "hygon",
        title: "Hygon RCCL",
        roots: &[
            Root::Env("DTK_ROOT", "lib"),
            Root::Env("ROCM_PATH", "lib"),
            Root::Folder("/opt/dtk/lib"),
        ],
        ..RCCL
    },
};

static METAX: Vendor = Vendor {
    key: "metax",
    aliases: &["maca"],
    nodes: &["/dev/mxcd"],
    only_named: false,
    driver: &device::MACA,
    ccl: Ccl {
        key: "metax",
        title: "MetaX MCCL",
        sonames: &["libmccl.so"],
        wheels: &[],
        roots: &[
            Root::Env("MACA_PATH", "lib"),
            Root::Folder("/opt/maca/lib"),
            Root::Folder("/opt/maca/lib64"),
            Root::Folder("/opt/maca-3.3.0/lib"),
        ],
        // The loader's own search may give Moore Threads' file of the same name.
        roots_first: true,
        prefix: "mccl",
        renames: &[
            ("CommCuDevice", &["mcclCommMcDevice"]),
            ("AlltoAll", &["mcclAllToAll", "mcclAlltoAll"]),
            ("AlltoAllv", &["mcclAllToAllv", "mcclAlltoAllv"]),
        ],
        fingerprint: "mcclCommMcDevice",
        strangers: &[("mcclCommMuDevice", "Moore Threads' MCCL")],
        stranger_needs: &[("libmusa", "Moore Threads' MCCL")],
        min_version: Version::new(2, 0, 0),
        nccl_versions: false,
        dtypes: like_nccl(Absent, Absent),
        redops: FIVE_REDOPS,
        results: NCCL_RESULTS,
        ..NCCL
    },
};

static MTHREADS: Vendor = Vendor {
    key: "mthreads",
    aliases: &["musa"],
    nodes: &[],
    only_named: false,
    driver: &device::MUSA,
    ccl: Ccl {
        key: "mthreads",
        title: "Moore Threads MCCL",
        sonames: &["libmccl.so.2", "libmccl.so"],
        wheels: &[],
        roots: &[
            Root::Env("MUSA_HOME", "lib"),
            Root::Folder("/usr/local/musa/lib"),
        ],
        roots_first: true,
        prefix: "mccl",
        renames: &[
            ("CommCuDevice", &["mcclCommMuDevice"]),
            ("AlltoAllv", &["mcclAllToAllv"]),
        ],
        fingerprint: "mcclCommMuDevice",
        strangers: &[("mcclCommMcDevice", "MetaX's MCCL")],
        stranger_needs: &[("libmcruntime", "MetaX's MCCL")],
        // How its number is made is not known, so it is shown as it is.
        version: VersionOf::Opaque,
        min_version: ANY,
        end_version: NEVER,
        nccl_versions: false,
        // The layout of its config struct is not known.
        config: false,
        dtypes: like_nccl(Unknown, Unknown),
        redops: FIVE_REDOPS,
        results: NCCL_RESULTS,
        ..NCCL
    },
};

static ENFLAME: Vendor = Vendor {
    key: "enflame",
    aliases: &["gcu", "tops"],
    nodes: &[],
    only_named: false,
    driver: &device::TOPS,
    ccl: Ccl {
        key: "enflame",
        title: "Enflame ECCL",
        sonames: &["libeccl.so"],
        wheels: &[],
        roots: &[Root::Folder("/usr/lib"), Root::Folder("/opt/tops/lib")],
        prefix: "eccl",
        renames: &[
            ("CommCuDevice", &["ecclCommDevice"]),
            // Other signatures, behind adapters.
            ("AlltoAll", &[]),
            ("AlltoAllv", &[]),
        ],
        fingerprint: "ecclCommDevice",
        strangers: &[],
        min_version: ANY,
        end_version: NEVER,
        nccl_versions: false,
        config: false,
        dtypes: like_nccl(Absent, Absent),
        redops: FIVE_REDOPS,
        results: NCCL_RESULTS,
        limits: &[Limit {
            kinds: &[
                AllReduce,
                Reduce,
                ReduceScatter,
                OpKind::Gather,
                OpKind::Scatter,
                OpKind::AllToAll,
                OpKind::AllToAllv,
                OpKind::Send,
                OpKind::Recv,
            ],
            dtypes: &[Int64, Uint64, Float64],
            redops: &[],
            why: "it has types of 64 bits in broadcast and all-gather only",
        }],
        shape: Shape::Adapted(eccl::adapt, eccl::declarations),
        quirks: Quirks {
            needs_device: true,
            groups: Groups::Kept,
            broken_gather: true,
            ..Quirks::NONE
        },
        ..NCCL
    },
};

static TSINGMICRO: Vendor = Vendor {
    key: "tsingmicro",
    aliases: &["tsm", "txda"],
    nodes: &[],
    only_named: false,
    driver: &device::TX,
    ccl: Ccl {
        key: "tsingmicro",
        title: "Tsingmicro TCCL",
        sonames: &["libtccl.so"],
        wheels: &[],
        roots: &[Root::Folder("/usr/local/kuiper/lib")],
        prefix: "tccl",
        renames: &[
            ("CommCuDevice", &["tcclCommGetDeviceNumber"]),
            // Without NCCL's flags.
            ("CommSuspend", &[]),
        ],
        fingerprint: "tcclCommGetDeviceNumber",
        strangers: &[],
        version: VersionOf::Opaque,
        min_version: ANY,
        end_version: NEVER,
        nccl_versions: false,
        config: false,
        // Not in a published document; likely FlagCX's.
        dtypes: [Unknown; 12],
        redops: [Unknown; 5],
        results: &[(0, Meaning::Success)],
        ..NCCL
    },
};

static SUNRISE: Vendor = Vendor {
    key: "sunrise",
    aliases: &["ptpu"],
    nodes: &[],
    only_named: false,
    driver: &device::TANG,
    ccl: Ccl {
        key: "sunrise",
        title: "Sunrise PCCL",
        sonames: &["libpccl.so"],
        wheels: &[],
        roots: &[Root::Folder("/usr/local/pccl/lib/linux-x86_64")],
        prefix: "pccl",
        renames: &[],
        fingerprint: "pcclCommCuDevice",
        strangers: &[("pcclCommInitRankConfig", "T-Head's PCCL")],
        stranger_needs: &[("libhggc", "T-Head's PCCL")],
        version: VersionOf::Opaque,
        min_version: ANY,
        end_version: NEVER,
        nccl_versions: false,
        config: false,
        dtypes: [
            is(0),
            is(1),
            is(2),
            is(3),
            is(4),
            is(5),
            is(6),
            is(7),
            Absent,
            is(8),
            Absent,
            Absent,
        ],
        redops: FIVE_REDOPS,
        results: &[
            (0, Meaning::Success),
            (1, fails(Code::UnhandledDeviceError)),
            (2, fails(Code::SystemError)),
            (3, fails(Code::InternalError)),
            (4, fails(Code::InvalidArgument)),
            (5, fails(Code::InvalidUsage)),
            (6, fails(Code::RemoteError)),
            (7, fails(Code::InProgress)),
            (8, fails(Code::InvalidArgument)),
        ],
        shape: Shape::Adapted(pccl::adapt, pccl::declarations),
        quirks: Quirks {
            needs_device: true,
            groups: Groups::Kept,
            pair_messages: true,
            ..Quirks::NONE
        },
        ..NCCL
    },
};

static ASCEND: Vendor = Vendor {
    key: "ascend",
    aliases: &["npu", "cann"],
    nodes: &["/dev/davinci_manager", "/dev/davinci0"],
    only_named: false,
    driver: &device::ACL,
    ccl: Ccl {
        key: "ascend",
        title: "Huawei HCCL",
        sonames: &["libhccl.so"],
        wheels: &[],
        roots: &[
            Root::Env("ASCEND_HOME_PATH", "lib64"),
            Root::Env("ASCEND_TOOLKIT_HOME", "lib64"),
            Root::Folder("/usr/local/Ascend/ascend-toolkit/latest/lib64"),
            Root::Folder("/usr/local/Ascend/cann/lib64"),
        ],
        roots_first: false,
        companions: &["libhcomm.so"],
        prefix: "Hccl",
        renames: &[
            ("GetUniqueId", &["HcclGetRootInfo"]),
            ("CommInitRank", &["HcclCommInitRootInfo"]),
            ("CommCount", &["HcclGetRankSize"]),
            ("CommUserRank", &["HcclGetRankId"]),
            ("CommGetAsyncError", &["HcclGetCommAsyncError"]),
            ("Bcast", &["HcclBroadcast"]),
            ("AlltoAllv", &["HcclAlltoAllV"]),
        ],
        fingerprint: "HcclAllReduce",
        strangers: &[],
        stranger_needs: &[],
        version: VersionOf::Other(hccl::version),
        min_version: ANY,
        end_version: NEVER,
        nccl_versions: false,
        id_bytes: hccl::ROOT_INFO_BYTES,
        config: false,
        dtypes: [
            is(0),
            is(7),
            is(2),
            is(9),
            is(5),
            is(6),
            is(3),
            is(4),
            is(10),
            is(11),
            since(15, 8, 5, 0),
            since(16, 8, 5, 0),
        ],
        redops: NO_AVG,
        results: &[
            (0, Meaning::Success),
            (1, fails(Code::InvalidArgument)),
            (2, fails(Code::InvalidArgument)),
            (3, fails(Code::SystemError)),
            (4, fails(Code::InternalError)),
            (5, fails(Code::NotSupported)),
            (6, fails(Code::UnhandledCclError)),
            (7, fails(Code::UnhandledCclError)),
            (8, fails(Code::SystemError)),
            (9, fails(Code::RemoteError)),
            (10, fails(Code::SystemError)),
            (11, fails(Code::RemoteError)),
            (12, fails(Code::RemoteError)),
            (13, fails(Code::RemoteError)),
            (14, fails(Code::RemoteError)),
            (15, fails(Code::UnhandledDeviceError)),
            (16, fails(Code::UnhandledDeviceError)),
            (17, fails(Code::UnhandledDeviceError)),
            (18, fails(Code::UnhandledDeviceError)),
            (19, fails(Code::RemoteError)),
            (20, fails(Code::UnhandledCclError)),
            (21, fails(Code::RemoteError)),
            (22, fails(Code::UnhandledCclError)),
            (23, fails(Code::UnhandledCclError)),
            (24, fails(Code::SystemError)),
            (1041, fails(Code::UnhandledCclError)),
        ],
        limits: &[
            Limit {
                kinds: &[AllReduce, Reduce, ReduceScatter],
                dtypes: &[
                    Uint8,
                    Uint32,
                    Uint64,
                    Float64,
                    DataType::Float8e4m3,
                    DataType::Float8e5m2,
                ],
                redops: &[],
                why: "it reduces int8, int16, int32, int64, float16, float32 and bfloat16 only",
            },
            Limit {
                kinds: &[AllReduce, Reduce, ReduceScatter],
                dtypes: &[DataType::Bfloat16],
                redops: &[RedOp::Prod],
                why: "it has no product of bfloat16",
            },
        ],
        refusal: None,
        hints: &[
            Hint {
                result: 9,
                words: "HCCL's own limit for connecting is shorter than, or not the same as, \
                        flagos-comm's",
                variable: Some("HCCL_CONNECT_TIMEOUT"),
            },
            Hint {
                result: 15,
                words: "every thread that calls HCCL must have set its device (aclrtSetDevice)",
                variable: None,
            },
            Hint {
                result: 2,
                words: "a buffer or the stream is NULL; HCCL has no default stream",
                variable: None,
            },
        ],
        shape: Shape::Adapted(hccl::adapt, hccl::declarations),
        quirks: Quirks {
            serial_init: true,
            groups: Groups::Kept,
            ..Quirks::NONE
        },
    },
};

static CAMBRICON: Vendor = Vendor {
    key: "cambricon",
    aliases: &["mlu"],
    nodes: &[],
    only_named: false,
    driver: &device::CNRT,
    ccl: Ccl {
        key: "cambricon",
        title: "Cambricon CNCL",
        sonames: &["libcncl.so.1", "libcncl.so"],
        wheels: &[],
        roots: &[
            Root::Env("NEUWARE_HOME", "lib64"),
            Root::Folder("/usr/local/neuware/lib64"),
        ],
        roots_first: false,
        companions: &[],
        prefix: "cncl",
        renames: &[
            ("GetUniqueId", &["cnclGetCliqueId"]),
            ("CommInitRank", &["cnclInitComms"]),
            ("CommDestroy", &["cnclDestroyComms"]),
            ("CommAbort", &["cnclAbortComm"]),
            ("CommCount", &["cnclGetCommCount"]),
            ("CommUserRank", &["cnclGetCommRank"]),
            ("CommCuDevice", &["cnclGetCommDevice"]),
            ("CommGetAsyncError", &["cnclGetCommAsyncError"]),
            ("GetErrorString", &["cnclGetErrorStr"]),
        ],
        fingerprint: "cnclInitComms",
        strangers: &[],
        stranger_needs: &[],
        version: VersionOf::Other(cncl::version),
        min_version: ANY,
        end_version: NEVER,
        nccl_versions: false,
        id_bytes: cncl::CLIQUE_ID_BYTES,
        config: false,
        dtypes: [
            is(0x20),
            is(0x30),
            is(0x22),
            is(0x32),
            is(0x23),
            is(0x33),
            is(0x10),
            is(0x12),
            Absent,
            is(0x11),
            Absent,
            Absent,
        ],
        redops: NO_AVG,
        results: &[
            (0x00, Meaning::Success),
            (0x01, fails(Code::UnhandledCclError)),
            (0x11, fails(Code::NotSupported)),
            (0x21, fails(Code::InvalidArgument)),
            (0x31, fails(Code::UnhandledCclError)),
            (0x41, fails(Code::UnhandledCclError)),
            (0x51, fails(Code::UnhandledCclError)),
            (0x61, fails(Code::UnhandledCclError)),
            (0x71, fails(Code::UnhandledCclError)),
            (0x81, fails(Code::UnhandledCclError)),
            (0x91, fails(Code::UnhandledCclError)),
            (0x02, fails(Code::SystemError)),
            (0x12, fails(Code::SystemError)),
            (0x22, fails(Code::SystemError)),
            (0x32, fails(Code::SystemError)),
            (0x03, fails(Code::UnhandledDeviceError)),
            (0x13, fails(Code::UnhandledDeviceError)),
            (0x23, fails(Code::UnhandledDeviceError)),
            (0x33, fails(Code::UnhandledDeviceError)),
            (0x04, fails(Code::UnhandledDeviceError)),
            (0x14, fails(Code::UnhandledDeviceError)),
            (0x24, fails(Code::UnhandledDeviceError)),
            (0x05, fails(Code::UnhandledCclError)),
            (0x15, fails(Code::UnhandledCclError)),
            (0x25, fails(Code::UnhandledCclError)),
            (0x35, fails(Code::UnhandledCclError)),
            (0x06, fails(Code::InProgress)),
            (0x16, fails(Code::UnhandledCclError)),
            (0x26, fails(Code::UnhandledCclError)),
            (0x07, fails(Code::InvalidArgument)),
            (0x08, fails(Code::UnhandledCclError)),
            (0x18, fails(Code::UnhandledCclError)),
            (0x09, fails(Code::UnhandledCclError)),
        ],
        limits: &[],
        refusal: None,
        hints: &[],
        shape: Shape::Adapted(cncl::adapt, cncl::declarations),
        quirks: Quirks {
            serial_init: true,
            ..Quirks::NONE
        },
    },
};

static KUNLUNXIN: Vendor = Vendor {
    key: "kunlunxin",
    aliases: &["klx", "kunlun"],
    nodes: &[],
    only_named: true,
    driver: &device::KUNLUNXIN_CUDA,
    ccl: Ccl {
        key: "kunlunxin",
        title: "Kunlunxin BKCL",
        sonames: &["libbkcl.so"],
        wheels: &["torch_xmlir", "paddle/libs"],
        roots: &[
            Root::Folder("/usr/local/xccl/so"),
            Root::Folder("/usr/local/xpu/so"),
            Root::Folder("/usr/local/xpu/lib64"),
            Root::Folder("/usr/local/xpu/lib"),
            Root::Folder("/opt/kunlun/lib"),
        ],
        roots_first: false,
        companions: &[],
        prefix: "bkcl_",
        renames: &[
            ("GetUniqueId", &["bkcl_get_unique_id"]),
            ("CommInitRank", &["bkcl_init_rank"]),
            ("CommDestroy", &["bkcl_destroy_context"]),
            ("CommAbort", &["bkcl_comm_abort"]),
            ("CommCount", &["bkcl_comm_count"]),
            ("CommUserRank", &["bkcl_comm_user_rank"]),
            ("AllReduce", &["bkcl_all_reduce"]),
            ("Reduce", &["bkcl_reduce"]),
            ("ReduceScatter", &["bkcl_reduce_scatter"]),
            ("AllGather", &["bkcl_all_gather"]),
            ("Broadcast", &["bkcl_broadcast"]),
            ("AlltoAll", &["bkcl_all_to_all"]),
            ("Send", &["bkcl_send"]),
            ("Recv", &["bkcl_recv"]),
            ("GroupStart", &["bkcl_group_start"]),
            ("GroupEnd", &["bkcl_group_end"]),
        ],
        fingerprint: "bkcl_init_rank",
        strangers: &[],
        stranger_needs: &[],
        version: VersionOf::Other(|_| (None, None)),
        min_version: ANY,
        end_version: NEVER,
        nccl_versions: false,
        id_bytes: 0,
        config: false,
        // Its header is not published, so its numbers are not known.
        dtypes: [
            Absent, Unknown, Unknown, Absent, Unknown, Absent, Unknown, Unknown, Unknown, Unknown,
            Absent, Absent,
        ],
        redops: [Unknown; 5],
        results: &[(0, Meaning::Success)],
        limits: &[],
        refusal: None,
        hints: &[],
        shape: Shape::Adapted(bkcl::adapt, bkcl::declarations),
        quirks: Quirks::NONE,
    },
};

/// FlagCX as a library. Its numbers of types, operators and results are ours; fp8 it has not.
pub(crate) static FLAGCX: Ccl = Ccl {
    key: "flagcx",
    title: "FlagCX",
    sonames: &["libflagcx.so"],
    wheels: &[],
    roots: &[
        Root::Env("FLAGCX_PATH", "lib"),
        Root::Env("FLAGCX_PATH", "build/lib"),
    ],
    roots_first: false,
    companions: &[],
    prefix: "flagcx",
    renames: &[
        ("CommCuDevice", &["flagcxCommGetDeviceNumber"]),
        ("AlltoAll", &["flagcxAlltoAll"]),
        ("AlltoAllv", &["flagcxAlltoAllv"]),
    ],
    // Came with the change after which an id is the caller's own memory.
    fingerprint: "flagcxDeviceHandleInit",
    strangers: &[],
    stranger_needs: &[],
    version: VersionOf::Other(flagcx::version),
    min_version: ANY,
    end_version: NEVER,
    nccl_versions: false,
    id_bytes: flagcx::ID_BYTES,
    config: false,
    dtypes: like_nccl(Absent, Absent),
    redops: FIVE_REDOPS,
    results: &[
        (0, Meaning::Success),
        (1, fails(Code::UnhandledDeviceError)),
        (2, fails(Code::SystemError)),
        (3, fails(Code::InternalError)),
        (4, fails(Code::InvalidArgument)),
        (5, fails(Code::InvalidUsage)),
        (6, fails(Code::RemoteError)),
        (7, fails(Code::InProgress)),
        (8, fails(Code::UnhandledCclError)),
        (9, fails(Code::NotSupported)),
    ],
    limits: &[],
    refusal: Some(flagcx::refusal),
    hints: &[],
    shape: Shape::Adapted(flagcx::adapt, flagcx::declarations),
    quirks: Quirks::NONE,
};

/// A vendor that doesn't exist; see `load::invented`.
#[cfg(test)]
static INVENTED: Vendor = Vendor {
    key: "invented",
    aliases: &["made_up"],
    nodes: &[],
    only_named: true,
    driver: &device::INVENTED,
    ccl: Ccl {
        key: "invented",
        title: "Invented ZCCL",
        sonames: &["libzccl.so.1"],
        wheels: &[],
        roots: &[],
        prefix: "zccl",
        renames: &[],
        fingerprint: "zcclCommCuDevice",
        strangers: &[],
        nccl_versions: false,
        config: false,
        dtypes: like_nccl(Absent, Absent),
        redops: FIVE_REDOPS,
        results: NCCL_RESULTS,
        ..NCCL
    },
};

/// Every vendor that the library drives, in the order in which they are detected.
pub(crate) static VENDORS: &[&Vendor] = &[
    &NVIDIA,
    &ILUVATAR,
    &CAMBRICON,
    &METAX,
    &HYGON,
    &DU,
    &KUNLUNXIN,
    &MTHREADS,
    &ASCEND,
    &TSINGMICRO,
    &ENFLAME,
    &AMD,
    &THEAD,
    &SUNRISE,
    #[cfg(test)]
    &INVENTED,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::RedOp;

    #[test]
    fn nvidia_numbers_are_ours() {
        for dtype in DataType::ALL {
            assert!(matches!(NCCL.dtypes[dtype as usize], Is(value, _) if value == dtype as i32));
        }
        for op in RedOp::ALL {
            assert!(matches!(NCCL.redops[op as usize], Is(value, _) if value == op as i32));
        }
    }

    /// The table of the short path has one row of data types for all operations that reduce.
    #[test]
    fn limits_of_rows_without_guard_are_the_same_for_all_reductions() {
        let reducing = [AllReduce, Reduce, ReduceScatter];
        for vendor in VENDORS.iter().filter(|v| !v.ccl.quirks.needs_device) {
            for limit in vendor.ccl.limits {
                assert_eq!(limit.kinds, reducing, "{}", vendor.key);
            }
        }
    }
}
