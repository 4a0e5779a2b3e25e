//! Which libraries a vendor's folder holds, and how each is made of the sources in `tests/fakevendor`.

/// The vendor that does not exist.
pub(super) const INVENTED: &str = "invented";

/// A version and the functions that came with it.
pub(super) type Since = (i32, &'static [&'static str]);

/// What a library is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The collective library.
    Ccl,
    /// Another library that belongs to the collective one.
    Companion,
    /// The device runtime.
    Runtime,
    /// The one that holds the state of the machine. Its name is given to the others as `FAKE_MACHINE`.
    Machine,
}

/// One library.
#[derive(Clone, Copy, Debug)]
pub(super) struct File {
    /// Its name and SONAME; `{major}` stands for the runtime's major version, also in `defines`.
    pub name: &'static str,
    /// Other names, made as symbolic links.
    pub links: &'static [&'static str],
    pub role: Role,
    pub source: &'static str,
    /// The source of a library that does nothing, if `source` always does its work.
    pub bare: Option<&'static str>,
    pub defines: &'static [&'static str],
    /// The linker's patterns of exported symbols.
    pub exported: &'static str,
    /// Whether the symbols carry the file's name as their version.
    pub versioned: bool,
    /// Functions that versions older than these lack.
    pub since: &'static [Since],
    /// From which version of the collective library on there is this file, and up to which.
    pub versions: (i32, i32),
    /// A file of the same folder that this one has to be linked against.
    pub needs: Option<&'static str>,
    /// Functions that are left out unless the builder was given this define.
    pub optional: &'static [(&'static str, &'static [&'static str])],
}

/// A vendor's folder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// The name by which FlagGems knows the vendor.
    pub key: &'static str,
    /// The version of the collective library, if the builder is not told another.
    pub version: i32,
    /// The major version of the runtime, likewise.
    pub major: u32,
    pub files: &'static [File],
    /// Given to programs that are written in the names of `abi/nccl.h` and `abi/cuda.h`: the headers that rename them.
    pub program: &'static [&'static str],
}

const NONE: File = File {
    name: "",
    links: &[],
    role: Role::Ccl,
    source: "nccl.c",
    bare: None,
    defines: &[],
    exported: "",
    versioned: false,
    since: &[],
    versions: (0, i32::MAX),
    needs: None,
    optional: &[],
};

const NCCL: File = File {
    name: "libnccl.so.2",
    exported: "nccl*;",
    since: NCCL_SINCE,
    ..NONE
};

/// The copies of NCCL have the unversioned name too.
const NCCL_CLONE: File = File {
    links: &["libnccl.so"],
    ..NCCL
};

const RCCL: File = File {
    name: "librccl.so.1",
    links: &["librccl.so"],
    defines: &["FAKE_FLAVOUR=\"flavour/rccl.h\""],
    exported: "nccl*;",
    since: RCCL_SINCE,
    ..NONE
};

const CUDART: File = File {
    name: "libcudart.so",
    role: Role::Runtime,
    source: "cuda_runtime.c",
    defines: &["FAKE_CUDART_MAJOR={major}"],
    exported: "cuda*;",
    ..NONE
};

const HIP: File = File {
    name: "libamdhip64.so.{major}",
    role: Role::Runtime,
    source: "cuda_runtime.c",
    defines: &[
        "FAKE_RUNTIME=\"flavour/hip_runtime.h\"",
        "FAKE_HIP_MAJOR={major}",
    ],
    exported: "hip*;",
    ..NONE
};

const DRIVER: File = File {
    name: "libcuda.so.1",
    role: Role::Machine,
    source: "cuda_driver.c",
    exported: "cu*; fake_*;",
    ..NONE
};

/// The machine of the vendors that have no libcuda: whoever finds one would take them for NVIDIA.
const MACHINE: File = File {
    name: "libfakemachine.so",
    role: Role::Machine,
    source: "cuda_driver.c",
    exported: "fake_*;",
    ..NONE
};

/// FlagCX, which a builder can put into any vendor's folder.
pub(super) const FLAGCX: File = File {
    name: "libflagcx.so",
    role: Role::Companion,
    source: "flagcx.c",
    exported: "flagcx*; getFlagcx*;",
    ..NONE
};

/// Of no vendor: what the host tier may use between machines.
pub(super) const UCC: Row = Row {
    key: "ucc",
    version: 10900,
    major: 0,
    files: &[File {
        name: "libucc.so.1",
        source: "ucc.c",
        exported: "ucc_*;",
        ..NONE
    }],
    program: &[],
};

pub(super) const ROWS: &[Row] = &[
    Row {
        key: "nvidia",
        version: 23203,
        major: 13,
        files: &[
            DRIVER,
            File {
                name: "libcudart.so.{major}",
                versioned: true,
                ..CUDART
            },
            NCCL,
        ],
        program: &["FAKE_CUDART_MAJOR={major}"],
    },
    Row {
        key: "amd",
        version: 22105,
        major: 6,
        files: &[MACHINE, HIP, RCCL],
        program: &[
            "FAKE_FLAVOUR=\"flavour/rccl.h\"",
            "FAKE_RUNTIME=\"flavour/hip_runtime.h\"",
            "FAKE_HIP_MAJOR={major}",
        ],
    },
    Row {
        key: "hygon",
        version: 22203,
        major: 5,
        files: &[
            MACHINE,
            File {
                name: "libgalaxyhip.so.{major}",
                ..HIP
            },
            RCCL,
        ],
        program: &[
            "FAKE_FLAVOUR=\"flavour/rccl.h\"",
            "FAKE_RUNTIME=\"flavour/hip_runtime.h\"",
            "FAKE_HIP_MAJOR={major}",
        ],
    },
    Row {
        key: "metax",
        version: 21605,
        major: 3,
        files: &[
            MACHINE,
            File {
                name: "libmcruntime.so",
                role: Role::Runtime,
                source: "cuda_runtime.c",
                defines: &["FAKE_RUNTIME=\"flavour/mc_runtime.h\""],
                exported: "mc*;",
                optional: &[("FAKE_POINTER_ATTRIBUTES", &["mcPointerGetAttributes"])],
                ..NONE
            },
            File {
                name: "libmccl.so",
                defines: &["FAKE_FLAVOUR=\"flavour/metax.h\""],
                exported: "mccl*;",
                since: METAX_SINCE,
                ..NONE
            },
        ],
        program: &[
            "FAKE_FLAVOUR=\"flavour/metax.h\"",
            "FAKE_RUNTIME=\"flavour/mc_runtime.h\"",
        ],
    },
    Row {
        key: "mthreads",
        version: 21100,
        major: 5,
        files: &[
            MACHINE,
            File {
                name: "libmusart.so.{major}",
                links: &["libmusart.so"],
                role: Role::Runtime,
                source: "cuda_runtime.c",
                defines: &["FAKE_RUNTIME=\"flavour/musa_runtime.h\""],
                exported: "musa*;",
                ..NONE
            },
            File {
                name: "libmccl.so.2",
                links: &["libmccl.so"],
                defines: &["FAKE_FLAVOUR=\"flavour/musa.h\""],
                exported: "mccl*;",
                optional: &[(
                    "FAKE_MUSA_NEW",
                    &[
                        "mcclGetLastError",
                        "mcclCommFinalize",
                        "mcclCommInitRankConfig",
                        "mcclCommSplit",
                        "mcclCommRegister",
                        "mcclCommDeregister",
                        "mcclCommWindowRegister",
                        "mcclCommWindowDeregister",
                        "mcclAllToAllv",
                    ],
                )],
                ..NONE
            },
        ],
        program: &[
            "FAKE_FLAVOUR=\"flavour/musa.h\"",
            "FAKE_RUNTIME=\"flavour/musa_runtime.h\"",
        ],
    },
    Row {
        key: "enflame",
        version: 30100,
        major: 1,
        files: &[
            MACHINE,
            File {
                name: "libtopsrt.so",
                role: Role::Runtime,
                source: "cuda_runtime.c",
                defines: &["FAKE_RUNTIME=\"flavour/tops_runtime.h\""],
                exported: "tops*;",
                ..NONE
            },
            File {
                name: "libeccl.so",
                defines: &["FAKE_FLAVOUR=\"flavour/eccl.h\""],
                exported: "eccl*;",
                optional: &[("FAKE_ECCL_ALLTOALL", &["ecclAlltoall", "ecclAlltoAllv"])],
                ..NONE
            },
        ],
        program: &[
            "FAKE_FLAVOUR=\"flavour/eccl.h\"",
            "FAKE_RUNTIME=\"flavour/tops_runtime.h\"",
        ],
    },
    Row {
        key: "sunrise",
        version: 20000,
        major: 1,
        files: &[
            MACHINE,
            File {
                name: "libtangrt_shared.so",
                role: Role::Runtime,
                source: "cuda_runtime.c",
                defines: &["FAKE_RUNTIME=\"flavour/tang_runtime.h\""],
                exported: "tang*;",
                ..NONE
            },
            File {
                name: "libpccl.so",
                defines: &["FAKE_FLAVOUR=\"flavour/pccl.h\""],
                exported: "pccl*;",
                ..NONE
            },
        ],
        program: &[
            "FAKE_FLAVOUR=\"flavour/pccl.h\"",
            "FAKE_RUNTIME=\"flavour/tang_runtime.h\"",
        ],
    },
    Row {
        key: "tsingmicro",
        version: 10000,
        major: 1,
        files: &[
            MACHINE,
            File {
                name: "libhpgr.so",
                role: Role::Runtime,
                source: "tx.c",
                exported: "tx*;",
                ..NONE
            },
            File {
                name: "libtccl.so",
                links: &["libnccl.so"],
                defines: &["FAKE_FLAVOUR=\"flavour/tccl.h\""],
                exported: "tccl*; nccl*;",
                ..NONE
            },
        ],
        program: &["FAKE_FLAVOUR=\"flavour/tccl.h\""],
    },
    clone("iluvatar", 21803),
    clone("du", 21903),
    clone("thead", 21903),
    Row {
        key: "kunlunxin",
        version: 10000,
        major: 11,
        files: &[
            MACHINE,
            CUDART,
            File {
                name: "libbkcl.so",
                source: "bkcl.c",
                exported: "bkcl_*;",
                ..NONE
            },
        ],
        program: &["FAKE_CUDART_MAJOR={major}", "FAKE_ONLY_RUNTIME"],
    },
    Row {
        key: "ascend",
        version: 90000,
        major: 1,
        files: &[
            MACHINE,
            File {
                name: "libascendcl.so",
                role: Role::Runtime,
                source: "acl.c",
                exported: "acl*;",
                ..NONE
            },
            File {
                name: "libhccl.so",
                source: "hccl.c",
                bare: Some("bare_odd.c"),
                exported: "Hccl*;",
                since: HCCL_SINCE,
                versions: (0, HCCL_SPLIT),
                ..NONE
            },
            File {
                name: "libhccl.so",
                source: "hccl_ops.c",
                exported: "Hccl*;",
                since: HCCL_SINCE,
                versions: (HCCL_SPLIT, i32::MAX),
                needs: Some("libhcomm.so"),
                ..NONE
            },
            File {
                name: "libhcomm.so",
                role: Role::Companion,
                source: "hccl.c",
                defines: &["FAKE_HCOMM"],
                exported: "HcclGetRootInfo; HcclComm*; HcclGetRank*; HcclGetComm*; HcclBarrier; \
                           HcclGetErrorString; HcclGroup*; fake_hccl_ops;",
                since: HCCL_SINCE,
                versions: (HCCL_SPLIT, i32::MAX),
                ..NONE
            },
        ],
        program: &[],
    },
    Row {
        key: "cambricon",
        version: 12500,
        major: 1,
        files: &[
            MACHINE,
            File {
                name: "libcnrt.so",
                role: Role::Runtime,
                source: "cnrt.c",
                exported: "cnrt*;",
                ..NONE
            },
            File {
                name: "libcncl.so",
                source: "cncl.c",
                bare: Some("bare_odd.c"),
                defines: &["FAKE_CNCL"],
                exported: "cncl*;",
                ..NONE
            },
        ],
        program: &[],
    },
    Row {
        key: INVENTED,
        version: 21803,
        major: 1,
        files: &[
            MACHINE,
            File {
                name: "libzrt.so.1",
                role: Role::Runtime,
                source: "cuda_runtime.c",
                defines: &["FAKE_RUNTIME=\"flavour/invented_runtime.h\""],
                exported: "zrt*;",
                ..NONE
            },
            File {
                name: "libzccl.so.1",
                defines: &["FAKE_FLAVOUR=\"flavour/invented.h\""],
                exported: "zccl*;",
                ..NONE
            },
        ],
        program: &[
            "FAKE_FLAVOUR=\"flavour/invented.h\"",
            "FAKE_RUNTIME=\"flavour/invented_runtime.h\"",
        ],
    },
];

/// A vendor that ships a copy of an older NCCL and of the CUDA runtime.
const fn clone(key: &'static str, version: i32) -> Row {
    Row {
        key,
        version,
        major: 11,
        files: &[DRIVER, CUDART, NCCL_CLONE],
        program: &["FAKE_CUDART_MAJOR={major}"],
    }
}

/// The version of CANN from which on HCCL's communicators are in a library of their own.
const HCCL_SPLIT: i32 = 80500;

/// By the version of CANN.
const HCCL_SINCE: &[Since] = &[
    (
        70000,
        &[
            "HcclAlltoAll",
            "HcclAlltoAllV",
            "HcclGetCommAsyncError",
            "HcclGetCommName",
        ],
    ),
    (80000, &["HcclBatchSendRecv", "HcclScatter"]),
    (80100, &["HcclAllGatherV", "HcclReduceScatterV"]),
    (90000, &["HcclGroupStart", "HcclGroupEnd"]),
];

const NCCL_SINCE: &[Since] = &[
    (2402, &["ncclCommAbort", "ncclCommGetAsyncError"]),
    (2703, &["ncclSend", "ncclRecv"]),
    (21104, &["ncclRedOpCreatePreMulSum", "ncclRedOpDestroy"]),
    (21304, &["ncclGetLastError"]),
    (21403, &["ncclCommInitRankConfig", "ncclCommFinalize"]),
    (21801, &["ncclCommSplit"]),
    (
        21901,
        &[
            "ncclMemAlloc",
            "ncclMemFree",
            "ncclCommRegister",
            "ncclCommDeregister",
        ],
    ),
    (22203, &["ncclGroupSimulateEnd"]),
    (22304, &["ncclCommInitRankScalable"]),
    (22403, &["ncclResetDebugInit"]),
    (
        22703,
        &[
            "ncclCommShrink",
            "ncclCommWindowRegister",
            "ncclCommWindowDeregister",
        ],
    ),
    (22803, &["ncclAlltoAll", "ncclGather", "ncclScatter"]),
    (22807, &["ncclCommRevoke"]),
    (
        22902,
        &[
            "ncclCommGetUniqueId",
            "ncclCommGrow",
            "ncclWinGetUserPtr",
            "ncclPutSignal",
            "ncclSignal",
            "ncclWaitSignal",
        ],
    ),
    (
        22907,
        &["ncclCommSuspend", "ncclCommResume", "ncclCommMemStats"],
    ),
    (
        23102,
        &[
            "ncclAllReduceConfig",
            "ncclBroadcastConfig",
            "ncclReduceConfig",
            "ncclAllGatherConfig",
            "ncclReduceScatterConfig",
            "ncclAlltoAllConfig",
            "ncclGatherConfig",
            "ncclScatterConfig",
        ],
    ),
    (23203, &["ncclSetEncryption"]),
];

/// By the version of NCCL that each release of ROCm follows; the last group came later than 6.2, exactly when is not known.
const RCCL_SINCE: &[Since] = &[
    (21104, &["ncclRedOpCreatePreMulSum", "ncclRedOpDestroy"]),
    (21304, &["ncclGetLastError"]),
    (21505, &["ncclCommInitRankConfig", "ncclCommFinalize"]),
    (21803, &["ncclCommSplit"]),
    (
        22005,
        &[
            "ncclMemAlloc",
            "ncclMemFree",
            "ncclCommRegister",
            "ncclCommDeregister",
        ],
    ),
    (
        22800,
        &[
            "ncclAlltoAll",
            "ncclAlltoAllv",
            "ncclCommShrink",
            "ncclCommGetUniqueId",
            "ncclCommGrow",
            "ncclCommRevoke",
            "ncclCommSuspend",
            "ncclCommResume",
            "ncclCommMemStats",
            "ncclCommWindowRegister",
            "ncclCommWindowDeregister",
            "ncclPutSignal",
            "ncclSignal",
            "ncclWaitSignal",
        ],
    ),
];

const METAX_SINCE: &[Since] = &[(
    23004,
    &[
        "mcclMemAlloc",
        "mcclMemFree",
        "mcclCommRegister",
        "mcclCommDeregister",
        "mcclCommWindowRegister",
        "mcclCommWindowDeregister",
    ],
)];
