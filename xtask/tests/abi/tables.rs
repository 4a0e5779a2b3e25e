//! What the comparison is told: which header belongs to which library, and what may differ.

use crate::class::Class;

/// A library and its header.
pub struct Row {
    /// Its name in the engine's declarations.
    pub library: &'static str,
    /// File in `tests/fakevendor/abi`.
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
    ccl("nvidia", "nccl.h", 1),
    ccl("iluvatar", "nccl.h", 1),
    ccl("du", "nccl.h", 1),
    ccl("thead", "nccl.h", 1),
    ccl("amd", "rccl.h", 1),
    ccl("hygon", "rccl.h", 1),
    ccl("metax", "mccl_metax.h", 1),
    ccl("mthreads", "mccl_musa.h", 1),
    ccl("enflame", "eccl.h", 1),
    ccl("tsingmicro", "tccl.h", 1),
    ccl("sunrise", "pccl.h", 1),
    other("ascend", "hccl.h", 1),
    other("cambricon", "cncl.h", 1),
    other("kunlunxin", "bkcl.h", 1),
    other("flagcx", "flagcx.h", 1),
    other("cuda", "cuda.h", 1),
    other("cuda driver", "cuda_driver.h", 1),
    other("hip", "hip.h", 1),
    other("acl", "acl.h", 1),
    other("maca", "mc.h", 1),
    other("musa", "musa.h", 1),
    other("tops", "tops.h", 1),
    other("cnrt", "cnrt.h", 1),
    other("tx", "tx.h", 1),
    other("tang", "tang.h", 1),
];

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
    ("CountsMut", || Class::Pointer(Some(Box::new(Class::Int(8))))),
    ("RawResult", || Class::Int(4)),
    ("Id128", || Class::Struct(128)),
];
