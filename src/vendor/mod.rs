//! The vendors: one table, one row for each.
//!
//! A vendor whose collective library has NCCL's shape is a row of `rows` and nothing else; one of
//! another shape is a row and a file of adapters, which give its library NCCL's shape. Names of
//! accelerators that have no collective library are kept here too, so that one table knows every
//! name. FlagCX, which is a library and no vendor, has the second half of a row.

pub(crate) mod comm;
pub(crate) mod library;
mod mapped;
pub(crate) mod options;
pub(crate) mod port;
mod rows;
pub(crate) mod symbols;
mod version;

mod bkcl;
mod cncl;
mod eccl;
mod flagcx;
mod hccl;
mod pccl;

pub(crate) use library::Library;
pub(crate) use pccl::set_pairs;
pub(crate) use port::NativePort;
pub(crate) use rows::{FLAGCX, VENDORS};
pub(crate) use version::Version;

use crate::Code;
use crate::device::DriverRow;
use crate::load::symbols::{Declaration, Layout, Resolver};
use crate::types::{DataType, OpKind, RedOp};
use library::{Adapted, Hint};

/// A folder to search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// A folder below the value of a variable, which `config::FOREIGN` lists.
    Env(&'static str, &'static str),
    /// A folder.
    Folder(&'static str),
}

/// A number of a vendor's enumeration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    /// This one, from this version on.
    Is(i32, Version),
    /// The vendor has no such thing.
    Absent,
    /// The vendor has it, or may have it, under a number that its published documents don't say. The
    /// user may say it.
    Unknown,
}

/// What a vendor's result means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// Done.
    Success,
    /// Failed, or [`Code::InProgress`].
    Code(Code),
}

/// How a group of calls is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Groups {
    /// The library has groups of everything.
    Library,
    /// The library has none, or not of everything: calls are kept until the end, collectives are made
    /// one after the other then, and messages together.
    Kept,
}

/// Ways in which a collective library differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quirks {
    /// The calling thread's device must be the communicator's during every call.
    pub(crate) needs_device: bool,
    /// Communicators can't be initialised at once, or only in the same order everywhere.
    pub(crate) serial_init: bool,
    /// How groups are made.
    pub(crate) groups: Groups,
    /// Messages go over communicators of two ranks each.
    pub(crate) pair_messages: bool,
    /// Gather and scatter are made of messages although the library has them: they don't work.
    pub(crate) broken_gather: bool,
}

impl Quirks {
    /// A library like NCCL.
    pub(crate) const NONE: Quirks = Quirks {
        needs_device: false,
        serial_init: false,
        groups: Groups::Library,
        pair_messages: false,
        broken_gather: false,
    };
}

/// What a library refuses although it has each part of it, or what it is known to do wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    /// In these operations.
    pub(crate) kinds: &'static [OpKind],
    /// These data types.
    pub(crate) dtypes: &'static [DataType],
    /// With these operators; all of them, and operations that don't reduce, if the list is empty.
    pub(crate) redops: &'static [RedOp],
    /// Why, in words: "64-bit types only in broadcast and all-gather".
    pub(crate) why: &'static str,
}

/// How the version of a library is found.
#[derive(Clone, Copy)]
pub(crate) enum VersionOf {
    /// By `GetVersion`, whose number is decoded so.
    Code(fn(i32) -> Option<Version>),
    /// By `GetVersion`, whose number means nothing known.
    Opaque,
    /// By other means: the number, and the version.
    Other(fn(&mut Resolver<'_>) -> (Option<i32>, Option<Version>)),
}

/// The shape of a library.
#[derive(Clone, Copy)]
pub(crate) enum Shape {
    /// NCCL's.
    Nccl,
    /// Another one; the first function gives it NCCL's, or says which functions are missing. The
    /// second says what it looks up.
    Adapted(
        fn(&'static Ccl, &mut Resolver<'_>) -> Result<Adapted, Vec<String>>,
        fn(&'static Ccl) -> Vec<Declaration>,
    ),
}

/// The half of a row that is about the collective library.
pub(crate) struct Ccl {
    /// The vendor's name, that of FlagGems.
    pub(crate) key: &'static str,
    /// Its name for people.
    pub(crate) title: &'static str,
    /// File names, versioned ones first.
    pub(crate) sonames: &'static [&'static str],
    /// Folders below `site-packages` in which wheels put it.
    pub(crate) wheels: &'static [&'static str],
    /// Further folders.
    pub(crate) roots: &'static [Root],
    /// The roots come before the loader's own search, which may give another vendor's library.
    pub(crate) roots_first: bool,
    /// Starts of the file names of other objects in which its functions may lie.
    pub(crate) companions: &'static [&'static str],
    /// What every function's name starts with.
    pub(crate) prefix: &'static str,
    /// Functions whose name is not the prefix and NCCL's suffix: suffix, the names that are tried. An
    /// empty list: the library has none, or none with NCCL's signature.
    pub(crate) renames: &'static [(&'static str, &'static [&'static str])],
    /// A function that tells this kind of library; it must be there.
    pub(crate) fingerprint: &'static str,
    /// Functions that tell another vendor's library: name, whose it is. They must be absent.
    pub(crate) strangers: &'static [(&'static str, &'static str)],
    /// Libraries that another vendor's library needs: start of the file name, whose it is.
    pub(crate) stranger_needs: &'static [(&'static str, &'static str)],
    /// How its version is found.
    pub(crate) version: VersionOf,
    /// The oldest version that works.
    pub(crate) min_version: Version,
    /// The first version that is no longer understood.
    pub(crate) end_version: Version,
    /// Its versions bring functions as NCCL's do.
    pub(crate) nccl_versions: bool,
    /// Size of its unique id.
    pub(crate) id_bytes: usize,
    /// Its config struct is NCCL's of the library's version; else no config is passed.
    pub(crate) config: bool,
    /// By `DataType` number.
    pub(crate) dtypes: [Number; 12],
    /// By `RedOp` number.
    pub(crate) redops: [Number; 5],
    /// Every result that the vendor documents.
    pub(crate) results: &'static [(i32, Meaning)],
    /// What it refuses.
    pub(crate) limits: &'static [Limit],
    /// Why the library must not be called now, if it is known to end the process then.
    pub(crate) refusal: Option<fn() -> Option<String>>,
    /// Words for the user that go with an error.
    pub(crate) hints: &'static [Hint],
    /// Its shape.
    pub(crate) shape: Shape,
    /// Ways in which it differs.
    pub(crate) quirks: Quirks,
}

impl std::fmt::Debug for Ccl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ccl").field("key", &self.key).finish()
    }
}

/// One row.
#[derive(Debug)]
pub(crate) struct Vendor {
    /// The vendor's name, that of FlagGems.
    pub(crate) key: &'static str,
    /// Other names that mean it.
    pub(crate) aliases: &'static [&'static str],
    /// Device nodes that show that the machine has such a device.
    pub(crate) nodes: &'static [&'static str],
    /// It is used only if it is named: nothing that can be seen tells it from another vendor.
    pub(crate) only_named: bool,
    /// Its driver.
    pub(crate) driver: &'static DriverRow,
    /// Its collective library.
    pub(crate) ccl: Ccl,
}

impl Vendor {
    /// The names of the numbers that the user can give.
    pub(crate) fn number_names(&self) -> Vec<&'static str> {
        let mut names = self.driver.overridable.to_vec();
        names.extend(library::askable(&self.ccl));
        names
    }
}

impl Ccl {
    /// What a result of the library means. A number that the row doesn't list is a failure without a
    /// better name.
    pub(crate) fn meaning(&self, result: i32) -> Meaning {
        self.results
            .iter()
            .find(|(value, _)| *value == result)
            .map_or(Meaning::Code(Code::UnhandledCclError), |(_, meaning)| {
                *meaning
            })
    }

    /// Whether nothing in the library tells it from NVIDIA's.
    pub(crate) fn has_strangers_names(&self) -> bool {
        self.roots_first && self.prefix == "nccl"
    }

    /// Why the library can't do an operation although it has its parts.
    pub(crate) fn limit(
        &self,
        kind: OpKind,
        dtype: DataType,
        op: Option<RedOp>,
    ) -> Option<&'static str> {
        let hit = self.limits.iter().find(|limit| {
            limit.kinds.contains(&kind)
                && limit.dtypes.contains(&dtype)
                && (limit.redops.is_empty() || op.is_some_and(|op| limit.redops.contains(&op)))
        });
        hit.map(|limit| limit.why)
    }
}

/// Every function of a collective library as it is declared here.
pub(crate) fn declarations() -> Vec<Declaration> {
    let rows = VENDORS.iter().map(|vendor| &vendor.ccl).chain([&FLAGCX]);
    rows.flat_map(|row| match row.shape {
        Shape::Nccl => symbols::declare_shape(row, &|_| true),
        Shape::Adapted(_, declarations) => declarations(row),
    })
    .collect()
}

/// Every struct of a collective library that is laid out here.
pub(crate) fn layouts() -> Vec<Layout> {
    let exact = |library, name, size| Layout {
        library,
        name,
        size,
        exact: true,
        fields: Vec::new(),
    };
    vec![
        options::layout(NVIDIA_KEY),
        symbols::sim_info_layout(NVIDIA_KEY),
        symbols::wait_signal_layout(NVIDIA_KEY),
        exact(NVIDIA_KEY, "ncclUniqueId", size_of::<symbols::Id128>()),
        hccl::item_layout("ascend"),
        exact("ascend", "HcclRootInfo", hccl::ROOT_INFO_BYTES),
        exact("cambricon", "cnclCliqueId", cncl::CLIQUE_ID_BYTES),
        exact("flagcx", "flagcxUniqueId", flagcx::ID_BYTES),
    ]
}

const NVIDIA_KEY: &str = "nvidia";

/// Accelerators that FlagGems knows and that have no collective library: the host tier serves them.
static NO_COLLECTIVES: &[&str] = &["arm", "spacemit", "aipu", "bpu"];

/// What a name stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Named {
    /// A vendor with a row.
    Row(&'static Vendor),
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
    NO_COLLECTIVES
        .iter()
        .find(|key| **key == name)
        .map(|key| Named::NoCollectives(key))
}

/// Every key with its other names.
pub(crate) fn all_names() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    let rows = VENDORS.iter().map(|v| (v.key, v.aliases));
    let host = NO_COLLECTIVES.iter().map(|key| (*key, &[] as &[&str]));
    rows.chain(host)
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
            let ccl = &vendor.ccl;
            assert_eq!(vendor.key, ccl.key);
            assert!(!ccl.sonames.is_empty());
            assert_eq!(ccl.meaning(0), Meaning::Success, "{}", vendor.key);
            assert_eq!(ccl.meaning(7777), Meaning::Code(Code::UnhandledCclError));
            assert!(ccl.min_version < ccl.end_version);
            for root in ccl.roots.iter().chain(vendor.driver.roots) {
                if let Root::Env(name, _) = root {
                    assert!(
                        crate::config::FOREIGN.iter().any(|v| v.name == *name),
                        "{name}"
                    );
                }
            }
        }
        assert_eq!(VENDORS[0].ccl.meaning(8), Meaning::Code(Code::Timeout));
    }
}
