//! The vendors: one table, one row for each.
//!
//! A vendor whose collective library has NCCL's shape is a row and nothing else. Names of vendors
//! that have no row yet, and of accelerators that have no collective library, are kept here too,
//! so that one table knows every name.

pub(crate) mod nccl;
pub(crate) mod port;
mod version;

pub(crate) use port::NativePort;
pub(crate) use version::Version;

use crate::device::{Driver, DriverRow};
use crate::{Code, Error, Result};

/// A folder to search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// A folder below the value of a variable, which `config::FOREIGN` lists.
    Env(&'static str, &'static str),
    /// A folder.
    Folder(&'static str),
}

/// How a vendor's unique id is passed to its init function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdPassing {
    /// A struct of 128 bytes with alignment 1, by value.
    ByValue128,
    /// A pointer to this many bytes.
    ByPointer(usize),
}

impl IdPassing {
    /// Size of the id.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            IdPassing::ByValue128 => 128,
            IdPassing::ByPointer(bytes) => bytes,
        }
    }
}

/// A value of a vendor's enumeration and the version that brought it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapped {
    /// The vendor's number.
    pub(crate) value: i32,
    /// The first version that has it.
    pub(crate) since: Version,
}

/// What a vendor's result means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// Done.
    Success,
    /// Failed, or [`Code::InProgress`].
    Code(Code),
}

/// Ways in which a vendor differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quirks {
    /// The calling thread's device must be the communicator's during every call.
    pub(crate) needs_device: bool,
    /// Communicators of one device can't be initialised from several threads at once.
    pub(crate) serial_init: bool,
    /// When a stream is done, the host sees the results without a further call.
    pub(crate) host_visible_completion: bool,
    /// The null stream is a valid stream.
    pub(crate) null_stream: bool,
    /// A group of calls can be opened and closed.
    pub(crate) groups: bool,
}

/// One row.
#[derive(Debug)]
pub(crate) struct Vendor {
    /// The vendor's name, that of FlagGems.
    pub(crate) key: &'static str,
    /// Other names that mean it.
    pub(crate) aliases: &'static [&'static str],
    /// Its collective library's name for people.
    pub(crate) title: &'static str,
    /// File names of the collective library, versioned ones first.
    pub(crate) sonames: &'static [&'static str],
    /// Folders below `site-packages` in which wheels put it.
    pub(crate) wheels: &'static [&'static str],
    /// Further folders.
    pub(crate) roots: &'static [Root],
    /// Starts of the file names of other objects in which its functions may lie.
    pub(crate) companions: &'static [&'static str],
    /// What every function's name starts with.
    pub(crate) prefix: &'static str,
    /// Functions whose name is not the prefix and NCCL's suffix: suffix, full name.
    pub(crate) renames: &'static [(&'static str, &'static str)],
    /// A function that tells this kind of library; it must be there.
    pub(crate) fingerprint: &'static str,
    /// Functions that tell another vendor's library: name, whose it is. They must be absent.
    pub(crate) strangers: &'static [(&'static str, &'static str)],
    /// The oldest version that works.
    pub(crate) min_version: Version,
    /// The first version that is no longer understood.
    pub(crate) end_version: Version,
    /// How the version number is encoded.
    pub(crate) decode_version: fn(i32) -> Option<Version>,
    /// The unique id.
    pub(crate) id: IdPassing,
    /// By `DataType` number; `None` is a type that the vendor doesn't have.
    pub(crate) dtypes: [Option<Mapped>; 12],
    /// By `RedOp` number.
    pub(crate) redops: [Option<Mapped>; 5],
    /// Every result that the vendor documents.
    pub(crate) results: &'static [(i32, Meaning)],
    /// Device nodes that show that the machine has such a device.
    pub(crate) nodes: &'static [&'static str],
    /// Its driver.
    pub(crate) driver: &'static DriverRow,
    /// Ways in which it differs.
    pub(crate) quirks: Quirks,
}

impl Vendor {
    /// What a result of the collective library means. A number that the row doesn't list is a
    /// failure without a better name.
    pub(crate) fn meaning(&self, result: i32) -> Meaning {
        self.results
            .iter()
            .find(|(value, _)| *value == result)
            .map_or(Meaning::Code(Code::UnhandledCclError), |(_, meaning)| {
                *meaning
            })
    }
}

/// The driver that a library's communicators live on.
pub(crate) fn driver_of(library: &nccl::Library) -> Result<&'static Driver> {
    let chosen = crate::load::process_vendor()?;
    match &chosen.driver {
        Ok(driver) if chosen.vendor.is_some_and(|v| v.key == library.vendor.key) => Ok(driver),
        Ok(driver) => Err(Error::internal(format!(
            "{} does not drive {}'s devices",
            driver.title(),
            library.vendor.key
        ))),
        Err(error) => Err(error.clone()),
    }
}

const fn since(value: i32, major: u16, minor: u16, patch: u16) -> Option<Mapped> {
    Some(Mapped {
        value,
        since: Version::new(major, minor, patch),
    })
}

static NVIDIA: Vendor = Vendor {
    key: "nvidia",
    aliases: &["cuda"],
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
    companions: &[],
    prefix: "nccl",
    renames: &[],
    fingerprint: "ncclCommCuDevice",
    strangers: &[("ncclAllToAllv", "AMD's RCCL")],
    min_version: Version::new(2, 18, 0),
    end_version: Version::new(3, 0, 0),
    decode_version: Version::from_nccl,
    id: IdPassing::ByValue128,
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
    results: &[
        (0, Meaning::Success),
        (1, Meaning::Code(Code::UnhandledDeviceError)),
        (2, Meaning::Code(Code::SystemError)),
        (3, Meaning::Code(Code::InternalError)),
        (4, Meaning::Code(Code::InvalidArgument)),
        (5, Meaning::Code(Code::InvalidUsage)),
        (6, Meaning::Code(Code::RemoteError)),
        (7, Meaning::Code(Code::InProgress)),
        // Not 8: that number is ours for a failure without a better name.
        (8, Meaning::Code(Code::Timeout)),
    ],
    nodes: &["/dev/nvidiactl", "/dev/nvidia0"],
    driver: &crate::device::CUDA,
    quirks: Quirks {
        needs_device: false,
        serial_init: false,
        host_visible_completion: true,
        null_stream: true,
        groups: true,
    },
};

/// Every vendor that the library drives, in the order in which they are detected.
pub(crate) static VENDORS: &[&Vendor] = &[&NVIDIA];

/// Vendors that are known by name and not driven yet: key, other names. A new row of [`VENDORS`]
/// takes its names from here.
static NOT_BUILT: &[(&str, &[&str])] = &[
    ("amd", &["rocm"]),
    ("hygon", &["du", "dcu"]),
    ("ascend", &["npu", "cann"]),
    ("metax", &["maca"]),
    ("mthreads", &["musa"]),
    ("enflame", &["gcu", "tops"]),
    ("iluvatar", &["corex", "iluvatar_corex"]),
    ("cambricon", &["mlu"]),
    ("kunlunxin", &["klx", "kunlun"]),
    ("thead", &["ppu"]),
    ("tsingmicro", &["tsm", "txda"]),
    ("sunrise", &["ptpu"]),
];

/// Accelerators that FlagGems knows and that have no collective library: the host tier serves them.
static NO_COLLECTIVES: &[&str] = &["arm", "spacemit", "aipu", "bpu"];

/// What a name stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Named {
    /// A vendor with a row.
    Row(&'static Vendor),
    /// A vendor that is not driven yet.
    NotBuilt(&'static str),
    /// An accelerator without a collective library.
    NoCollectives(&'static str),
}

/// What a lower-case name stands for.
pub(crate) fn by_name(name: &str) -> Option<Named> {
    if let Some(vendor) = VENDORS
        .iter()
        .find(|v| v.key == name || v.aliases.contains(&name))
    {
        return Some(Named::Row(vendor));
    }
    if let Some((key, _)) = NOT_BUILT
        .iter()
        .find(|(k, a)| *k == name || a.contains(&name))
    {
        return Some(Named::NotBuilt(key));
    }
    NO_COLLECTIVES
        .iter()
        .find(|key| **key == name)
        .map(|key| Named::NoCollectives(key))
}

/// Every key with its other names.
pub(crate) fn all_names() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    let rows = VENDORS.iter().map(|v| (v.key, v.aliases));
    let host = NO_COLLECTIVES.iter().map(|key| (*key, &[] as &[&str]));
    rows.chain(NOT_BUILT.iter().copied()).chain(host)
}

/// Every name in one line, the other names in parentheses.
pub(crate) fn names_text() -> String {
    all_names()
        .map(|(key, aliases)| match aliases.is_empty() {
            true => key.to_string(),
            false => format!("{key} ({})", aliases.join(", ")),
        })
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataType, RedOp};

    #[test]
    fn every_name_means_one_thing() {
        let names: Vec<&str> = all_names()
            .flat_map(|(key, aliases)| std::iter::once(key).chain(aliases.iter().copied()))
            .collect();
        for (i, name) in names.iter().enumerate() {
            assert!(!names[..i].contains(name), "{name} is there twice");
            assert_eq!(*name, name.to_lowercase());
            assert!(by_name(name).is_some(), "{name}");
            assert!(names_text().contains(name), "{name}");
        }
    }

    #[test]
    fn names_of_torch_fl_and_flaggems_are_known() {
        for name in [
            "nvidia",
            "metax",
            "iluvatar",
            "kunlunxin",
            "du",
            "thead",
            "hygon",
            "ascend",
            "enflame",
            "musa",
            "mthreads",
            "cambricon",
            "tsingmicro",
            "cuda",
            "amd",
            "aipu",
            "sunrise",
            "spacemit",
            "arm",
            "ppu",
            "klx",
            "kunlun",
            "maca",
            "npu",
            "gcu",
            "tops",
            "dcu",
            "tsm",
            "txda",
            "mlu",
            "corex",
            "iluvatar_corex",
            "ptpu",
            "rocm",
            "bpu",
            "cann",
        ] {
            assert!(by_name(name).is_some(), "{name}");
        }
        assert!(by_name("nvidai").is_none());
    }

    #[test]
    fn rows_are_sound() {
        for vendor in VENDORS {
            assert!(!vendor.sonames.is_empty());
            assert_eq!(vendor.meaning(0), Meaning::Success);
            assert_eq!(vendor.meaning(7777), Meaning::Code(Code::UnhandledCclError));
            assert!(vendor.min_version < vendor.end_version);
            for root in vendor.roots.iter().chain(vendor.driver.roots) {
                if let Root::Env(name, _) = root {
                    assert!(
                        crate::config::FOREIGN.iter().any(|v| v.name == *name),
                        "{name}"
                    );
                }
            }
        }
        assert_eq!(VENDORS[0].meaning(8), Meaning::Code(Code::Timeout));
    }

    #[test]
    fn nvidia_numbers_are_ours() {
        for dtype in DataType::ALL {
            assert_eq!(
                NVIDIA.dtypes[dtype as usize].map(|m| m.value),
                Some(dtype as i32)
            );
        }
        for op in RedOp::ALL {
            assert_eq!(NVIDIA.redops[op as usize].map(|m| m.value), Some(op as i32));
        }
    }
}
