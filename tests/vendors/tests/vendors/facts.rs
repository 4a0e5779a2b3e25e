//! What each vendor's library can do, written from the vendors' headers (`facts/vendor-abi.md`, sections 0.4 to 0.6) and
//! not from the rows of the library under test.

use flagos_comm_testkit::Standins;
use flagos_comm_testkit::scenario::{self, Scenario};
use flagos_comm_testkit::standins::Builder;

/// Data types in the order of their public numbers.
pub const DTYPES: [&str; 12] = [
    "int8",
    "uint8",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "float8e4m3",
    "float8e5m2",
];

/// Operators in the order of their public numbers.
pub const REDOPS: [&str; 5] = ["sum", "prod", "max", "min", "avg"];

/// "-": there is no such thing.
const NONE: i32 = -1;

// Public results.
const DEVICE: i32 = 1;
const SYSTEM: i32 = 2;
const INTERNAL: i32 = 3;
const ARGUMENT: i32 = 4;
const USAGE: i32 = 5;
const REMOTE: i32 = 6;
const PROGRESS: i32 = 7;
const CCL: i32 = 8;
const UNSUPPORTED: i32 = 9;
const TIMEOUT: i32 = 100;

/// One vendor.
#[derive(Clone, Copy, Debug)]
pub struct Fact {
    pub key: &'static str,
    /// Its functions for AllReduce, Reduce, ReduceScatter, Broadcast, AllGather.
    pub five: [&'static str; 5],
    /// All functions that do work, with the places of data types among the logged arguments.
    pub functions: &'static [(&'static str, &'static [usize])],
    pub dtypes: [i32; 12],
    pub redops: [i32; 5],
    /// Data types that Broadcast and AllGather alone have.
    pub wide_only: &'static [usize],
    /// Data types that it moves and doesn't reduce.
    pub unreduced: &'static [usize],
    /// Pairs that it doesn't reduce.
    pub not_reduced: &'static [(usize, usize)],
    /// Its documented codes other than 0 with ours.
    pub results: &'static [(i32, i32)],
    /// `FLAGOSCOMM_…_NUMBERS`, where its headers are not published.
    pub numbers: Option<(&'static str, &'static str)>,
    pub null_stream: bool,
    /// A collective needs the communicator's device to be current.
    pub needs_device: bool,
    /// The function that makes a communicator, and the one that gives its id.
    pub init: [&'static str; 2],
    /// The function that asks for the current device, and the one that sets it.
    pub device: [&'static str; 2],
    /// The driver's or runtime's soname candidates and the collective library's, of which a message must name each.
    pub files: &'static [&'static str],
    pub aliases: &'static [&'static str],
}

const LIKE_NCCL: [i32; 12] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, NONE, NONE];
const WITH_FP8: [i32; 12] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];
const ALL_OPS: [i32; 5] = [0, 1, 2, 3, 4];
const NO_AVG: [i32; 5] = [0, 1, 2, 3, NONE];

const OF_NCCL: &[(i32, i32)] = &[
    (1, DEVICE),
    (2, SYSTEM),
    (3, INTERNAL),
    (4, ARGUMENT),
    (5, USAGE),
    (6, REMOTE),
    (7, PROGRESS),
    (77, CCL),
];
/// 8 came with NCCL 2.30.3 and is not FlagCX's 8.
const OF_NEW_NCCL: &[(i32, i32)] = &[
    (1, DEVICE),
    (2, SYSTEM),
    (3, INTERNAL),
    (4, ARGUMENT),
    (5, USAGE),
    (6, REMOTE),
    (7, PROGRESS),
    (8, TIMEOUT),
    (77, CCL),
];

macro_rules! shape {
    ($p:literal) => {
        &[
            (concat!($p, "AllReduce"), &[3]),
            (concat!($p, "Reduce"), &[3]),
            (concat!($p, "ReduceScatter"), &[3]),
            (concat!($p, "Broadcast"), &[3]),
            (concat!($p, "AllGather"), &[3]),
            (concat!($p, "Gather"), &[3]),
            (concat!($p, "Scatter"), &[3]),
            (concat!($p, "AlltoAll"), &[3]),
            (concat!($p, "AllToAll"), &[3]),
            (concat!($p, "AlltoAllv"), &[2]),
            (concat!($p, "AllToAllv"), &[2]),
            (concat!($p, "Send"), &[2]),
            (concat!($p, "Recv"), &[2]),
        ]
    };
}

macro_rules! five {
    ($p:literal) => {
        [
            concat!($p, "AllReduce"),
            concat!($p, "Reduce"),
            concat!($p, "ReduceScatter"),
            concat!($p, "Broadcast"),
            concat!($p, "AllGather"),
        ]
    };
}

const NVIDIA: Fact = Fact {
    key: "nvidia",
    five: five!("nccl"),
    functions: shape!("nccl"),
    dtypes: WITH_FP8,
    redops: ALL_OPS,
    wide_only: &[],
    unreduced: &[],
    not_reduced: &[],
    results: OF_NEW_NCCL,
    numbers: None,
    null_stream: true,
    needs_device: false,
    init: ["ncclCommInitRank", "ncclGetUniqueId"],
    device: ["cudaGetDevice", "cudaSetDevice"],
    files: &["libnccl.so.2", "libnccl.so"],
    aliases: &["cuda"],
};

/// A copy of an older NCCL.
const CLONE: Fact = Fact {
    dtypes: LIKE_NCCL,
    ..NVIDIA
};

/// Every vendor.
pub const FACTS: &[Fact] = &[
    NVIDIA,
    Fact {
        key: "amd",
        device: ["hipGetDevice", "hipSetDevice"],
        files: &["librccl.so.1", "librccl.so"],
        aliases: &["rocm"],
        ..NVIDIA
    },
    Fact {
        key: "hygon",
        device: ["hipGetDevice", "hipSetDevice"],
        files: &["librccl.so.1", "librccl.so"],
        aliases: &["dcu"],
        ..NVIDIA
    },
    Fact {
        key: "iluvatar",
        files: &["libnccl.so.2", "libnccl.so", "libixccl.so"],
        aliases: &["corex", "iluvatar_corex"],
        ..CLONE
    },
    Fact {
        key: "du",
        aliases: &[],
        ..CLONE
    },
    Fact {
        key: "thead",
        aliases: &["ppu"],
        ..CLONE
    },
    Fact {
        key: "metax",
        five: five!("mccl"),
        functions: shape!("mccl"),
        dtypes: LIKE_NCCL,
        results: OF_NCCL,
        init: ["mcclCommInitRank", "mcclGetUniqueId"],
        device: ["mcGetDevice", "mcSetDevice"],
        files: &["libmccl.so"],
        aliases: &["maca"],
        ..NVIDIA
    },
    Fact {
        key: "mthreads",
        five: five!("mccl"),
        functions: shape!("mccl"),
        dtypes: LIKE_NCCL,
        results: OF_NCCL,
        init: ["mcclCommInitRank", "mcclGetUniqueId"],
        device: ["musaGetDevice", "musaSetDevice"],
        files: &["libmccl.so.2", "libmccl.so"],
        aliases: &["musa"],
        ..NVIDIA
    },
    Fact {
        key: "enflame",
        five: five!("eccl"),
        functions: shape!("eccl"),
        dtypes: LIKE_NCCL,
        wide_only: &[4, 5, 8],
        results: OF_NCCL,
        needs_device: true,
        init: ["ecclCommInitRank", "ecclGetUniqueId"],
        device: ["topsGetDevice", "topsSetDevice"],
        files: &["libeccl.so"],
        aliases: &["gcu", "tops"],
        ..NVIDIA
    },
    Fact {
        key: "sunrise",
        five: five!("pccl"),
        functions: shape!("pccl"),
        dtypes: [0, 1, 2, 3, 4, 5, 6, 7, NONE, 8, NONE, NONE],
        // 8 is an invalid device index.
        results: &[
            (1, DEVICE),
            (2, SYSTEM),
            (3, INTERNAL),
            (4, ARGUMENT),
            (5, USAGE),
            (6, REMOTE),
            (7, PROGRESS),
            (8, ARGUMENT),
            (77, CCL),
        ],
        needs_device: true,
        init: ["pcclCommInitRank", "pcclGetUniqueId"],
        device: ["tangGetDevice", "tangSetDevice"],
        files: &["libpccl.so"],
        aliases: &["ptpu"],
        ..NVIDIA
    },
    Fact {
        key: "tsingmicro",
        five: five!("tccl"),
        functions: shape!("tccl"),
        dtypes: [100, 101, 102, 103, 104, 105, 106, 107, 108, 109, NONE, NONE],
        redops: [100, 101, 102, 103, 104],
        // Only 0 is documented; anything else is a failure without a better name.
        results: &[(1, CCL), (4, CCL), (9, CCL), (77, CCL)],
        numbers: Some((
            "FLAGOSCOMM_TSINGMICRO_NUMBERS",
            "int8=100,uint8=101,int32=102,uint32=103,int64=104,uint64=105,float16=106,float32=107,float64=108,\
             bfloat16=109,sum=100,prod=101,max=102,min=103,avg=104,not_ready=73,copy_host_to_device=1,\
             copy_device_to_host=2,copy_device_to_device=3",
        )),
        init: ["tcclCommInitRank", "tcclGetUniqueId"],
        device: ["txGetDevice", "txSetDevice"],
        files: &["libtccl.so"],
        aliases: &["tsm", "txda"],
        ..NVIDIA
    },
    Fact {
        key: "ascend",
        five: five!("Hccl"),
        functions: &[
            ("HcclAllReduce", &[3]),
            ("HcclReduce", &[3]),
            ("HcclReduceScatter", &[3]),
            ("HcclBroadcast", &[2]),
            ("HcclAllGather", &[3]),
            ("HcclScatter", &[3]),
            ("HcclAlltoAll", &[2, 5]),
            ("HcclAlltoAllV", &[3, 7]),
            ("HcclSend", &[2]),
            ("HcclRecv", &[2]),
            ("HcclBatchSendRecv", &[]),
        ],
        dtypes: [0, 7, 2, 9, 5, 6, 3, 4, 10, 11, 15, 16],
        redops: NO_AVG,
        unreduced: &[1, 3, 5, 8, 10, 11],
        not_reduced: &[(9, 1)],
        results: &[
            (1, ARGUMENT),
            (2, ARGUMENT),
            (3, SYSTEM),
            (4, INTERNAL),
            (5, UNSUPPORTED),
            (6, CCL),
            (7, CCL),
            (8, SYSTEM),
            (9, REMOTE),
            (10, SYSTEM),
            (11, REMOTE),
            (12, REMOTE),
            (13, REMOTE),
            (14, REMOTE),
            (15, DEVICE),
            (16, DEVICE),
            (17, DEVICE),
            (18, DEVICE),
            (19, REMOTE),
            (20, CCL),
            (21, REMOTE),
            (22, CCL),
            (23, CCL),
            (24, SYSTEM),
            (1041, CCL),
            (77, CCL),
        ],
        null_stream: false,
        init: ["HcclCommInitRootInfo", "HcclGetRootInfo"],
        device: ["aclrtGetDevice", "aclrtSetDevice"],
        files: &["libhccl.so"],
        aliases: &["npu", "cann"],
        ..NVIDIA
    },
    Fact {
        key: "cambricon",
        five: five!("cncl"),
        functions: &[
            ("cnclAllReduce", &[3]),
            ("cnclReduce", &[3]),
            ("cnclReduceScatter", &[3]),
            ("cnclBroadcast", &[3]),
            ("cnclBcast", &[2]),
            ("cnclAllGather", &[3]),
            ("cnclAlltoAll", &[3]),
            ("cnclAlltoAllv", &[]),
            ("cnclSend", &[2]),
            ("cnclRecv", &[2]),
        ],
        dtypes: [
            0x20, 0x30, 0x22, 0x32, 0x23, 0x33, 0x10, 0x12, NONE, 0x11, NONE, NONE,
        ],
        redops: NO_AVG,
        results: &[
            (0x01, CCL),
            (0x11, UNSUPPORTED),
            (0x21, ARGUMENT),
            (0x31, CCL),
            (0x41, CCL),
            (0x51, CCL),
            (0x61, CCL),
            (0x71, CCL),
            (0x81, CCL),
            (0x91, CCL),
            (0x02, SYSTEM),
            (0x12, SYSTEM),
            (0x22, SYSTEM),
            (0x32, SYSTEM),
            (0x03, DEVICE),
            (0x13, DEVICE),
            (0x23, DEVICE),
            (0x33, DEVICE),
            (0x04, DEVICE),
            (0x14, DEVICE),
            (0x24, DEVICE),
            (0x05, CCL),
            (0x15, CCL),
            (0x25, CCL),
            (0x35, CCL),
            (0x06, PROGRESS),
            (0x16, CCL),
            (0x26, CCL),
            (0x07, ARGUMENT),
            (0x08, CCL),
            (0x18, CCL),
            (0x09, CCL),
            (0x7777, CCL),
        ],
        init: ["cnclInitComms", "cnclGetCliqueId"],
        device: ["cnrtGetDevice", "cnrtSetDevice"],
        files: &["libcncl.so"],
        aliases: &["mlu"],
        ..NVIDIA
    },
    Fact {
        key: "kunlunxin",
        five: [
            "bkcl_all_reduce",
            "bkcl_reduce",
            "bkcl_reduce_scatter",
            "bkcl_broadcast",
            "bkcl_all_gather",
        ],
        functions: &[
            ("bkcl_all_reduce", &[4]),
            ("bkcl_reduce", &[4]),
            ("bkcl_reduce_scatter", &[4]),
            ("bkcl_broadcast", &[4]),
            ("bkcl_all_gather", &[4]),
            ("bkcl_all_to_all", &[4]),
            ("bkcl_send", &[4]),
            ("bkcl_recv", &[4]),
        ],
        // The stand-in's; the real ones are not published.
        dtypes: [NONE, 3, 5, NONE, 8, NONE, 13, 21, 34, 55, NONE, NONE],
        redops: [4, 9, 2, 7, 6],
        results: &[(1, CCL), (4, CCL), (77, CCL)],
        numbers: Some((
            "FLAGOSCOMM_KUNLUNXIN_NUMBERS",
            "uint8=3,int32=5,int64=8,float16=13,float32=21,float64=34,bfloat16=55,sum=4,prod=9,max=2,min=7,avg=6,\
             id_bytes=1024",
        )),
        init: ["bkcl_init_rank", "bkcl_get_unique_id"],
        files: &["libbkcl.so"],
        aliases: &["klx", "kunlun"],
        ..NVIDIA
    },
];

impl Fact {
    /// The fact of a vendor.
    pub fn of(key: &str) -> &'static Fact {
        FACTS
            .iter()
            .find(|f| f.key == key)
            .unwrap_or_else(|| panic!("no vendor {key}"))
    }

    /// Its stand-ins, as they are described here.
    pub fn builder(&self) -> Builder {
        let builder = Standins::of(self.key);
        match self.key {
            "tsingmicro" => builder.define("FAKE_SHIFTED_NUMBERS"),
            _ => builder,
        }
    }

    pub fn standins(&self) -> Standins {
        self.builder().build()
    }

    pub fn moves(&self, dtype: usize, widely: bool) -> bool {
        self.dtypes[dtype] != NONE && (widely || !self.wide_only.contains(&dtype))
    }

    pub fn reduces(&self, dtype: usize, op: usize) -> bool {
        self.moves(dtype, false)
            && self.redops[op] != NONE
            && !self.unreduced.contains(&dtype)
            && !self.not_reduced.contains(&(dtype, op))
    }

    /// What the C programs of `tests/c/vendors` and the library are told.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let digits = |yes: &dyn Fn(usize) -> bool, n| -> String {
            (0..n).map(|i| if yes(i) { '1' } else { '0' }).collect()
        };
        let machine = self.standins().machine();
        let machine = machine.file_name().expect("a file").to_str().expect("text");
        let reduces: Vec<String> = (0..12)
            .map(|dtype| digits(&|op| self.reduces(dtype, op), 5))
            .collect();
        let names: Vec<&str> = self.functions.iter().map(|(name, _)| *name).collect();
        let mut all = vec![
            ("MACHINE", machine.to_owned()),
            ("VENDOR", self.key.to_owned()),
            ("TIER", "1".to_owned()),
            ("MOVES", digits(&|d| self.moves(d, false), 12)),
            ("WIDE", digits(&|d| self.moves(d, true), 12)),
            ("REDUCES", reduces.join(" ")),
            ("VENDOR_CALLS", names.join(",")),
            (
                "NULL_STREAM",
                if self.null_stream { "1" } else { "0" }.to_owned(),
            ),
            ("GEMS_VENDOR", self.key.to_owned()),
        ];
        if let Some((name, value)) = self.numbers {
            all.push((name, value.to_owned()));
        }
        all
    }

    /// A scenario of a program of `tests/c/vendors` over this vendor's stand-ins.
    pub fn scenario(&self, program: &'static str, name: &'static str) -> Scenario {
        self.over(&self.standins(), program, name)
    }

    /// The same over others.
    pub fn over(&self, standins: &Standins, program: &'static str, name: &'static str) -> Scenario {
        let scenario = scenario::scenario("vendors", program, name).over(&standins.dir);
        self.variables()
            .into_iter()
            .fold(scenario, |s, (name, value)| s.env(name, value))
    }
}

/// Does it for every vendor; all failures are told, not the first alone. `FLAGOSCOMM_TEST_ROWS=metax,amd` leaves the others
/// out, for a look at one.
pub fn on_every_row(which: impl Fn(&Fact) -> bool, body: impl Fn(&Fact)) {
    let mut failed = Vec::new();
    let only = std::env::var("FLAGOSCOMM_TEST_ROWS").unwrap_or_default();
    let wanted = |f: &&Fact| only.is_empty() || only.split(',').any(|key| key == f.key);
    for fact in FACTS.iter().filter(wanted).filter(|f| which(f)) {
        let run = std::panic::AssertUnwindSafe(|| body(fact));
        if std::panic::catch_unwind(run).is_err() {
            failed.push(fact.key);
        }
    }
    assert!(failed.is_empty(), "failed on {failed:?}; see above");
}
