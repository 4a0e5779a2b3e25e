//! What the comparison is told: which header belongs to which library, and what may differ.

use crate::class::Class;

/// A library and its header.
pub struct Row {
    /// Its name in the engine's declarations.
    pub library: &'static str,
    /// File in `tests/fakevendor/abi`, or a header of the system in angle brackets.
    pub header: &'static str,
    /// All names of NCCL are looked up there, so that the vendor's header may lack some.
    pub nccl_shaped: bool,
    /// So many functions are in both; fewer mean that names went wrong.
    pub at_least: usize,
}

const fn ccl(library: &'static str, header: &'static str, at_least: usize) -> Row {
    Row {
        library,
        header,
        nccl_shaped: true,
        at_least,
    }
}

const fn other(library: &'static str, header: &'static str, at_least: usize) -> Row {
    Row {
        library,
        header,
        nccl_shaped: false,
        at_least,
    }
}

/// Every library.
pub const HEADERS: &[Row] = &[
    ccl("nvidia", "nccl.h", 59),
    ccl("iluvatar", "nccl.h", 59),
    ccl("du", "nccl.h", 59),
    ccl("thead", "nccl.h", 59),
    ccl("amd", "rccl.h", 49),
    ccl("hygon", "rccl.h", 49),
    ccl("metax", "mccl_metax.h", 36),
    ccl("mthreads", "mccl_musa.h", 31),
    ccl("enflame", "eccl.h", 27),
    ccl("tsingmicro", "tccl.h", 27),
    ccl("sunrise", "pccl.h", 21),
    other("ascend", "hccl.h", 18),
    other("cambricon", "cncl.h", 21),
    other("kunlunxin", "bkcl.h", 16),
    other("flagcx", "flagcx.h", 22),
    other("cuda", "cuda.h", 28),
    other("cuda driver", "cuda_driver.h", 32),
    other("hip", "hip.h", 28),
    other("acl", "acl.h", 27),
    other("maca", "mc.h", 25),
    other("musa", "musa.h", 26),
    other("tops", "tops.h", 26),
    other("cnrt", "cnrt.h", 24),
    other("tx", "tx.h", 20),
    other("tang", "tang.h", 26),
    other("ucx", UCX, 22),
    other("ucc", "ucc.h", 17),
    other("ucc", UCC, 17),
];

/// The headers of UCX and UCC, which are the system's own.
pub const UCX: &str = "<ucp/api/ucp.h>";
pub const UCC: &str = "<ucc/api/ucc.h>";

/// Functions that are declared here and that no header has.
pub struct Absent {
    pub library: &'static str,
    pub names: &'static [&'static str],
    pub why: &'static str,
}

/// Every such function.
pub const ABSENT: &[Absent] = &[];

/// Function and argument, from 1 on, where C's number is smaller: the calling conventions of x86-64
/// and AArch64 pass both in the same register, and the callee looks at its part.
pub const NARROW: &[(&str, usize)] = &[("cuMemsetD8Async", 2)];

/// Types of headers that are numbers and hold addresses.
pub const ADDRESSES: &[&str] = &["CUdeviceptr"];

/// A maker of a class: boxes can't be made in a constant.
type Make = fn() -> Class;

/// The engine's names of types.
pub const NAMES: &[(&str, Make)] = &[
    ("CommPtr", || Class::Pointer(None)),
    ("StreamPtr", || Class::Pointer(None)),
    ("WindowPtr", || Class::Pointer(None)),
    ("FcxStream", || Class::Pointer(None)),
    ("Buf", || Class::Pointer(None)),
    ("BufMut", || Class::Pointer(None)),
    ("Counts", || Class::Pointer(Some(Box::new(Class::Int(8))))),
    ("CountsMut", || {
        Class::Pointer(Some(Box::new(Class::Int(8))))
    }),
    ("RawResult", || Class::Int(4)),
    ("Id128", || Class::Struct(128)),
];
