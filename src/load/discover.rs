//! Which vendor, and which files may be its library: pure functions of the environment, of facts
//! about the process and the machine, and of a vendor's row.
//!
//! The rules are in `docs/discovery.md`; the numbers in comments are theirs.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::report::Source;
use crate::config::{self, OverrideOf};
use crate::vendor::{self, Named, Root, Vendor};
use crate::{Error, Result};

/// The variables that discovery looks at, as they were at one instant. Blank ones and paths that
/// must not be trusted are not in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Env {
    vars: BTreeMap<String, OsString>,
}

impl Env {
    /// The environment of the process now.
    pub(crate) fn of_process() -> Env {
        let mut env = Env::default();
        for var in config::FOREIGN {
            if let Some(value) = config::foreign(var.name) {
                env.vars.insert(var.name.to_string(), value);
            }
        }
        for vendor in vendor::VENDORS {
            for of in [OverrideOf::Library, OverrideOf::Driver] {
                if let Some(path) = config::override_path(vendor.key, of) {
                    env.vars
                        .insert(config::override_name(vendor.key, of), path.into_os_string());
                }
            }
        }
        env
    }

    /// An environment with these variables, trimmed; blank ones are unset.
    #[cfg(test)]
    pub(crate) fn of(pairs: &[(&str, &str)]) -> Env {
        let vars = pairs
            .iter()
            .filter(|(_, value)| !value.trim().is_empty())
            .map(|(name, value)| (name.to_string(), OsString::from(value.trim())))
            .collect();
        Env { vars }
    }

    /// The value of a variable that is set.
    pub(crate) fn get(&self, name: &str) -> Option<&OsStr> {
        self.vars.get(name).map(OsString::as_os_str)
    }
}

/// What is known about the process and the machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// Files that are mapped into the process and look like shared libraries.
    pub(crate) mapped: Vec<PathBuf>,
    /// Device nodes of the vendors' rows that exist.
    pub(crate) nodes: Vec<PathBuf>,
}

/// What a library is looked for by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    /// Key of the vendor.
    pub(crate) key: &'static str,
    /// Which of its libraries.
    pub(crate) of: OverrideOf,
    /// File names, versioned ones first.
    pub(crate) sonames: &'static [&'static str],
    /// Folders below a Python environment's `site-packages`.
    pub(crate) wheels: &'static [&'static str],
    /// Further folders.
    pub(crate) roots: &'static [Root],
}

/// A name for the loader, or a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A name that the loader searches for.
    Name(String),
    /// A file.
    File(PathBuf),
}

/// One thing to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Where it comes from.
    pub(crate) source: Source,
    /// What to open.
    pub(crate) target: Target,
    /// Why.
    pub(crate) why: String,
}

impl Candidate {
    fn name(source: Source, name: &str, why: impl Into<String>) -> Candidate {
        Candidate {
            source,
            target: Target::Name(name.to_string()),
            why: why.into(),
        }
    }

    fn file(source: Source, path: PathBuf, why: impl Into<String>) -> Candidate {
        Candidate {
            source,
            target: Target::File(path),
            why: why.into(),
        }
    }
}

/// The candidates for a library, in the order in which they are tried (rules 10 to 16).
pub(crate) fn candidates(env: &Env, facts: &Facts, spec: &Spec) -> Vec<Candidate> {
    let variable = config::override_name(spec.key, spec.of);
    if let Some(value) = env.get(&variable) {
        // Rule 10: verbatim, and nothing else.
        let why = format!("named by {variable}");
        let target = match value.to_str() {
            Some(name) if !name.contains('/') => Target::Name(name.to_string()),
            _ => Target::File(PathBuf::from(value)),
        };
        return vec![Candidate {
            source: Source::Override,
            target,
            why,
        }];
    }
    let mut list = Vec::new();
    // Rule 11.
    for soname in spec.sonames {
        list.push(Candidate::name(
            Source::AlreadyLoaded,
            soname,
            "a copy that the process has",
        ));
    }
    // Rule 12.
    for path in mapped_copies(facts, spec.sonames) {
        list.push(Candidate::file(
            Source::Mapped,
            path,
            "a copy that the process has",
        ));
    }
    // Rule 13.
    for soname in spec.sonames {
        list.push(Candidate::name(
            Source::Soname,
            soname,
            "the loader's own search",
        ));
    }
    list.extend(by_folder(env, facts, spec));
    dedup(list)
}

/// The candidates for a library whose name a drop-in of ours has taken, so that only paths can
/// reach the vendor's (rule 17). `needs` gives, for a mapped object, the sonames that it needs and
/// the search path recorded in it; `cached` gives the loader cache's paths for a soname.
pub(crate) fn candidates_by_path(
    env: &Env,
    facts: &Facts,
    spec: &Spec,
    needs: &dyn Fn(&Path) -> (Vec<String>, Vec<PathBuf>),
    cached: &dyn Fn(&str) -> Vec<PathBuf>,
) -> Vec<Candidate> {
    let mut list = Vec::new();
    for object in &facts.mapped {
        let (needed, folders) = needs(object);
        for soname in spec
            .sonames
            .iter()
            .filter(|s| needed.iter().any(|n| n == *s))
        {
            for folder in &folders {
                let why = format!("search path of {}, which needs it", object.display());
                list.push(Candidate::file(Source::Runpath, folder.join(soname), why));
            }
        }
    }
    if let Some(value) = env.get("LD_LIBRARY_PATH") {
        for folder in std::env::split_paths(value).filter(|f| !f.as_os_str().is_empty()) {
            for soname in spec.sonames {
                let path = folder.join(soname);
                list.push(Candidate::file(
                    Source::LibraryPath,
                    path,
                    "a folder of LD_LIBRARY_PATH",
                ));
            }
        }
    }
    for soname in spec.sonames {
        for path in cached(soname) {
            list.push(Candidate::file(
                Source::LoaderCache,
                path,
                "the loader's cache",
            ));
        }
    }
    list.extend(by_folder(env, facts, spec));
    dedup(list)
}

/// Wheels and roots (rules 14 and 15).
fn by_folder(env: &Env, facts: &Facts, spec: &Spec) -> Vec<Candidate> {
    let mut list = Vec::new();
    for site in site_packages(env, facts) {
        for wheel in spec.wheels {
            for soname in spec.sonames {
                let path = site.join(wheel).join(soname);
                list.push(Candidate::file(
                    Source::Wheel,
                    path,
                    "where the vendor's wheel puts it",
                ));
            }
        }
    }
    for root in spec.roots {
        let (folder, why) = match root {
            Root::Env(name, below) => match env.get(name) {
                Some(value) => (Path::new(value).join(below), format!("below {name}")),
                None => continue,
            },
            Root::Folder(folder) => (PathBuf::from(folder), "a root of the vendor".to_string()),
        };
        for soname in spec.sonames {
            list.push(Candidate::file(
                Source::Root,
                folder.join(soname),
                why.clone(),
            ));
        }
    }
    list
}

fn dedup(list: Vec<Candidate>) -> Vec<Candidate> {
    let mut kept: Vec<Candidate> = Vec::with_capacity(list.len());
    for candidate in list {
        let again = kept.iter().any(|k| {
            k.target == candidate.target
                && (k.source == candidate.source || matches!(k.target, Target::File(_)))
        });
        if !again {
            kept.push(candidate);
        }
    }
    kept
}

/// Mapped files that are copies of a library by their name: the soname itself, or the soname with
/// a hash before `.so`, which is how wheels rename bundled libraries.
pub(crate) fn mapped_copies(facts: &Facts, sonames: &[&str]) -> Vec<PathBuf> {
    let mut copies = Vec::new();
    for path in &facts.mapped {
        let Some(file) = path.file_name().and_then(OsStr::to_str) else {
            continue;
        };
        if sonames.iter().any(|soname| is_copy(file, soname)) && !copies.contains(path) {
            copies.push(path.clone());
        }
    }
    copies
}

fn is_copy(file: &str, soname: &str) -> bool {
    let Some((stem, suffix)) = split_so(soname) else {
        return file == soname;
    };
    let Some(rest) = file.strip_prefix(stem) else {
        return false;
    };
    let Some((hash, file_suffix)) = split_so(rest) else {
        return false;
    };
    // A file may carry more of the version than the soname does: libx.so.2 and libx.so.2.18.3.
    let suffix_fits = file_suffix == suffix
        || file_suffix
            .strip_prefix(suffix)
            .is_some_and(|more| more.starts_with('.'));
    let hash_fits = match hash.strip_prefix('-') {
        None => hash.is_empty(),
        Some(hex) => hex.len() >= 6 && hex.bytes().all(|b| b.is_ascii_hexdigit()),
    };
    suffix_fits && hash_fits
}

fn split_so(name: &str) -> Option<(&str, &str)> {
    name.find(".so").map(|at| name.split_at(at))
}

/// The `site-packages` folders that this process can be said to use: the one of any mapped object,
/// the sibling of a mapped Python's `lib-dynload`, and for that Python's version the ones of the
/// virtual and conda environments.
fn site_packages(env: &Env, facts: &Facts) -> Vec<PathBuf> {
    let mut sites: Vec<PathBuf> = Vec::new();
    let mut add = |site: PathBuf| {
        if !sites.contains(&site) {
            sites.push(site);
        }
    };
    for path in &facts.mapped {
        for folder in path.ancestors().skip(1) {
            match folder.file_name().and_then(OsStr::to_str) {
                Some("site-packages" | "dist-packages") => {
                    add(folder.to_path_buf());
                    break;
                }
                Some("lib-dynload") => {
                    let Some(python) = folder.parent() else { break };
                    if let Some(version) = python.file_name() {
                        for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
                            if let Some(root) = env.get(name) {
                                let lib = Path::new(root).join("lib").join(version);
                                add(lib.join("site-packages"));
                            }
                        }
                    }
                    add(python.join("site-packages"));
                    break;
                }
                _ => {}
            }
        }
    }
    sites
}

/// What the name of a vendor means.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Choice {
    /// A vendor with a row.
    Vendor(&'static Vendor),
    /// A name that means the host tier.
    Host(&'static str),
    /// No name: find out.
    Detect,
}

/// What a value of `GEMS_VENDOR` means (rules 1 to 4).
pub(crate) fn choose(value: Option<&str>) -> Result<Choice> {
    let Some(value) = value else {
        return Ok(Choice::Detect);
    };
    let folded = value.trim().to_lowercase();
    if folded.is_empty() {
        return Ok(Choice::Detect);
    }
    match vendor::by_name(&folded) {
        Some(Named::Row(vendor)) => Ok(Choice::Vendor(vendor)),
        Some(Named::NoCollectives(key)) => Ok(Choice::Host(key)),
        Some(Named::NotBuilt(key)) => Err(Error::not_supported(format!(
            "GEMS_VENDOR={value:?} names the vendor {key}, which this build of flagos-comm knows \
             but doesn't drive yet; unset it to detect another vendor"
        ))),
        None => Err(Error::invalid_argument(format!(
            "GEMS_VENDOR={value:?} is not a vendor that flagos-comm knows; known names: {}; \
             unset it to detect the vendor",
            vendor::names_text()
        ))),
    }
}

/// Why a vendor is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// Its driver is in the process.
    Mapped(PathBuf),
    /// Its device node exists.
    Node(PathBuf),
    /// Nothing yet: its driver's name may be found by the loader.
    Soname,
}

impl Evidence {
    /// The evidence in words.
    pub(crate) fn text(&self) -> String {
        match self {
            Evidence::Mapped(path) => format!("its driver {} is loaded", path.display()),
            Evidence::Node(path) => format!("{} exists", path.display()),
            Evidence::Soname => "its driver is found by the loader".to_string(),
        }
    }
}

/// The vendors to look at if none is named, best evidence first (rule 5).
pub(crate) fn detect(facts: &Facts) -> Vec<(&'static Vendor, Evidence)> {
    let mut list: Vec<(&'static Vendor, Evidence)> = Vec::new();
    for vendor in vendor::VENDORS {
        let low = vendor.driver.low.map_or(&[] as &[&str], |low| low.sonames);
        let mapped = mapped_copies(facts, vendor.driver.sonames)
            .into_iter()
            .chain(mapped_copies(facts, low))
            .next();
        if let Some(path) = mapped {
            list.push((vendor, Evidence::Mapped(path)));
        }
    }
    for vendor in vendor::VENDORS {
        if list.iter().all(|(v, _)| v.key != vendor.key) {
            let node = facts
                .nodes
                .iter()
                .find(|n| vendor.nodes.iter().any(|v| n == &Path::new(v)));
            if let Some(node) = node {
                list.push((vendor, Evidence::Node(node.clone())));
            }
        }
    }
    for vendor in vendor::VENDORS {
        if list.iter().all(|(v, _)| v.key != vendor.key) {
            list.push((vendor, Evidence::Soname));
        }
    }
    list
}
