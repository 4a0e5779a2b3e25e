//! Which vendor, and which files may be its library: pure functions of the environment, of facts
//! about the process and the machine, and of a vendor's row.
//!
//! The rules are in `docs/discovery.md`; the numbers in comments are theirs.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::elf::Dynamic;
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
        let of_vendor = vendor::VENDORS.iter().flat_map(|vendor| {
            [OverrideOf::Library, OverrideOf::Driver].map(|of| (vendor.key, of))
        });
        let others = [
            (vendor::FLAGCX.key, OverrideOf::Library),
            // MPI's and UCC's have the same name.
            (UCX_KEY, OverrideOf::Engine),
        ];
        for (key, of) in of_vendor.chain(others) {
            if let Some(path) = config::override_path(key, of) {
                env.vars
                    .insert(config::override_name(key, of), path.into_os_string());
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

    /// The same without the path of the host tier's library.
    pub(crate) fn without_engine_path(mut self) -> Env {
        self.vars
            .remove(&config::override_name(UCX_KEY, OverrideOf::Engine));
        self
    }

    /// The value of a variable that is set.
    pub(crate) fn get(&self, name: &str) -> Option<&OsStr> {
        self.vars.get(name).map(OsString::as_os_str)
    }
}

/// What the libraries of the host tier's engines are called in reports.
pub(crate) const UCX_KEY: &str = "ucx";
pub(crate) const MPI_KEY: &str = "mpi";
pub(crate) const UCC_KEY: &str = "ucc";

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
    /// The further folders come before the loader's own search.
    pub(crate) roots_first: bool,
    /// Libraries that it needs: where it is opened by path, those beside it are opened first.
    pub(crate) companions: &'static [&'static str],
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
    let names = spec.sonames.iter();
    let names =
        names.map(|soname| Candidate::name(Source::Soname, soname, "the loader's own search"));
    if spec.roots_first {
        list.extend(by_folder(env, facts, spec));
        list.extend(names);
    } else {
        list.extend(names);
        list.extend(by_folder(env, facts, spec));
    }
    dedup(list)
}

/// The candidates for a library whose name a drop-in of ours has taken, so that only paths can
/// reach the vendor's (rule 17). `dynamic` reads the dynamic section
/// of a mapped object; `cached` gives the loader cache's paths for a soname.
pub(crate) fn candidates_by_path(
    env: &Env,
    facts: &Facts,
    spec: &Spec,
    dynamic: &dyn Fn(&Path) -> Dynamic,
    cached: &dyn Fn(&str) -> Vec<PathBuf>,
) -> Vec<Candidate> {
    let mut list = Vec::new();
    for object in &facts.mapped {
        let Dynamic {
            needed, runpath, ..
        } = dynamic(object);
        for soname in spec
            .sonames
            .iter()
            .filter(|s| needed.iter().any(|n| n == *s))
        {
            for folder in &runpath {
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
    let seen = || vendor::VENDORS.iter().filter(|v| !v.only_named);
    for vendor in seen() {
        let low = vendor.driver.low.map_or(&[] as &[&str], |low| low.sonames);
        let mapped = mapped_copies(facts, vendor.driver.sonames)
            .into_iter()
            .chain(mapped_copies(facts, low))
            .next();
        if let Some(path) = mapped {
            list.push((vendor, Evidence::Mapped(path)));
        }
    }
    for vendor in seen() {
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
    for vendor in seen() {
        if list.iter().all(|(v, _)| v.key != vendor.key) {
            list.push((vendor, Evidence::Soname));
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    const SPEC: Spec = Spec {
        key: "nvidia",
        of: OverrideOf::Library,
        sonames: &["libnccl.so.2", "libnccl.so"],
        wheels: &["nvidia/nccl/lib"],
        roots: &[Root::Env("CUDA_HOME", "lib64"), Root::Folder("/roots/lib")],
        roots_first: false,
        companions: &[],
    };

    fn facts(mapped: &[&str]) -> Facts {
        Facts {
            mapped: mapped.iter().map(PathBuf::from).collect(),
            nodes: Vec::new(),
        }
    }

    fn shown(list: &[Candidate]) -> Vec<String> {
        list.iter()
            .map(|c| {
                let target = match &c.target {
                    Target::Name(name) => name.clone(),
                    Target::File(path) => path.display().to_string(),
                };
                format!("{} {target}", c.source.name())
            })
            .collect()
    }

    #[test]
    fn rule_1_spaces_case_and_blank() {
        for text in [" NVIDIA ", "nvidia", "Cuda\t", "cuda"] {
            assert!(
                matches!(choose(Some(text)), Ok(Choice::Vendor(v)) if v.key == "nvidia"),
                "{text:?}"
            );
        }
        for text in [None, Some(""), Some("   ")] {
            assert!(matches!(choose(text), Ok(Choice::Detect)), "{text:?}");
        }
    }

    #[test]
    fn rule_2_every_name_of_the_page() {
        let page = include_str!("../../docs/discovery.md");
        let exist = vendor::all_names().filter(|(key, _)| *key != crate::load::invented::KEY);
        for (key, aliases) in exist {
            let row = page.lines().find(|line| {
                line.trim_start().starts_with("| ")
                    && line
                        .split('|')
                        .nth(1)
                        .is_some_and(|cell| cell.split(',').any(|name| name.trim() == key))
            });
            let row = row.unwrap_or_else(|| panic!("docs/discovery.md lacks {key}"));
            for alias in aliases {
                assert!(row.contains(alias), "docs/discovery.md lacks {alias}");
            }
            let state = match vendor::by_name(key) {
                Some(Named::Row(_)) => "driven",
                Some(Named::NoCollectives(_)) => "host tier",
                None => panic!("{key}"),
            };
            assert!(row.contains(state), "docs/discovery.md: {key} is {state}");
        }
    }

    #[test]
    fn rule_3_accelerators_without_a_collective_library() {
        for key in ["arm", "spacemit", "aipu", "bpu"] {
            assert!(matches!(choose(Some(key)), Ok(Choice::Host(k)) if k == key));
        }
    }

    #[test]
    fn rule_4_unknown() {
        let error = choose(Some("nvidai")).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        for word in [
            "nvidai", "nvidia", "cuda", "mthreads", "musa", "ascend", "npu",
        ] {
            assert!(error.text().contains(word), "{error}");
        }
    }

    #[test]
    fn rule_5_order_of_evidence() {
        let mut facts = facts(&["/lib/libc.so.6"]);
        assert_eq!(detect(&facts)[0].1, Evidence::Soname);
        facts.nodes.push(PathBuf::from("/dev/nvidiactl"));
        assert_eq!(
            detect(&facts)[0].1,
            Evidence::Node(PathBuf::from("/dev/nvidiactl"))
        );
        for driver in [
            "/x/libcuda.so.1",
            "/x/libcudart.so.12",
            "/x/libcudart-d0da41ae.so.11.0",
            "/x/libcuda.so.1.550",
        ] {
            facts.mapped = vec![PathBuf::from(driver)];
            assert_eq!(detect(&facts)[0].1, Evidence::Mapped(PathBuf::from(driver)));
        }
        facts.mapped = vec![
            PathBuf::from("/x/libcudadevrt.so"),
            PathBuf::from("/x/libcuda-x.so"),
        ];
        assert!(matches!(detect(&facts)[0].1, Evidence::Node(_)));
    }

    #[test]
    fn rule_10_override_alone_and_verbatim() {
        let env = Env::of(&[
            ("FLAGOSCOMM_NVIDIA_LIBRARY", "./my nccl"),
            ("CUDA_HOME", "/c"),
        ]);
        let list = candidates(&env, &facts(&["/x/libnccl.so.2"]), &SPEC);
        assert_eq!(shown(&list), ["override ./my nccl"]);
        assert!(list[0].why.contains("FLAGOSCOMM_NVIDIA_LIBRARY"));
        let env = Env::of(&[("FLAGOSCOMM_NVIDIA_LIBRARY", "libother.so.2")]);
        let list = candidates(&env, &facts(&[]), &SPEC);
        assert_eq!(list[0].target, Target::Name("libother.so.2".to_string()));
        // The driver's variable is not the library's.
        let env = Env::of(&[("FLAGOSCOMM_NVIDIA_DRIVER", "/d")]);
        assert!(candidates(&env, &facts(&[]), &SPEC).len() > 1);
    }

    #[test]
    fn rules_11_to_15_order() {
        let env = Env::of(&[("CUDA_HOME", "/c")]);
        let list = candidates(&env, &facts(&["/w/libnccl-0a1b2c3d.so.2"]), &SPEC);
        assert_eq!(
            shown(&list),
            [
                "already-loaded libnccl.so.2",
                "already-loaded libnccl.so",
                "mapped /w/libnccl-0a1b2c3d.so.2",
                "soname libnccl.so.2",
                "soname libnccl.so",
                "root /c/lib64/libnccl.so.2",
                "root /c/lib64/libnccl.so",
                "root /roots/lib/libnccl.so.2",
                "root /roots/lib/libnccl.so",
            ]
        );
    }

    #[test]
    fn rule_12_names_of_copies() {
        for (file, copy) in [
            ("libnccl.so.2", true),
            ("libnccl.so.2.18.3", true),
            ("libnccl-0a1b2c3d.so.2", true),
            ("libnccl.so", true),
            ("libnccl-net.so", false),
            ("libnccl-0a1b2c3d.so.3", false),
            ("libnccl.so.20", false),
            ("libncclx.so.2", false),
            ("libnccl-profiler.so.2", false),
        ] {
            let one = facts(&[&format!("/x/{file}")]);
            let found = !mapped_copies(&one, &["libnccl.so.2"]).is_empty();
            let exact = file == "libnccl.so";
            assert_eq!(found, copy && !exact, "{file}");
        }
        assert_eq!(
            mapped_copies(&facts(&["/x/libnccl.so"]), &["libnccl.so"]).len(),
            1
        );
    }

    #[test]
    fn rule_14_wheels() {
        let env = Env::of(&[("VIRTUAL_ENV", "/venv"), ("CONDA_PREFIX", "/conda")]);
        let facts = facts(&[
            "/usr/lib/python3.11/lib-dynload/_ctypes.so",
            "/opt/site-packages/torch/lib/libtorch.so",
            "/opt/site-packages/other/x.so",
        ]);
        let list = candidates(&env, &facts, &SPEC);
        let wheels: Vec<String> = shown(&list)
            .into_iter()
            .filter(|line| line.starts_with("wheel"))
            .collect();
        assert_eq!(
            wheels,
            [
                "wheel /venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2",
                "wheel /venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so",
                "wheel /conda/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2",
                "wheel /conda/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so",
                "wheel /usr/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2",
                "wheel /usr/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so",
                "wheel /opt/site-packages/nvidia/nccl/lib/libnccl.so.2",
                "wheel /opt/site-packages/nvidia/nccl/lib/libnccl.so",
            ]
        );
    }

    #[test]
    fn rule_15_the_page_lists_the_rows() {
        let page = include_str!("../../docs/discovery.md");
        for vendor in crate::load::page::vendors() {
            let ccl = &vendor.ccl;
            for name in ccl
                .sonames
                .iter()
                .chain(ccl.wheels)
                .chain(vendor.driver.wheels)
            {
                assert!(page.contains(name), "docs/discovery.md lacks {name}");
            }
            for root in ccl.roots.iter().chain(vendor.driver.roots) {
                match root {
                    Root::Env(name, below) => {
                        assert!(
                            page.contains(&format!("`{name}`/{below}")),
                            "{name}/{below}"
                        );
                    }
                    Root::Folder(folder) if folder.contains("linux-gnu") => {}
                    Root::Folder(folder) => assert!(page.contains(folder), "{folder}"),
                }
            }
        }
    }

    #[test]
    fn rule_17_by_path() {
        let env = Env::of(&[("LD_LIBRARY_PATH", "/l1::/l2"), ("CUDA_HOME", "/c")]);
        let facts = facts(&["/t/libtorch.so", "/t/libother.so"]);
        let dynamic = |path: &Path| {
            let (needed, runpath) = match path.ends_with("libtorch.so") {
                true => ("libnccl.so.2", "/t/../nccl"),
                false => ("libc.so.6", "/never"),
            };
            let (needed, runpath) = (vec![needed.to_string()], vec![PathBuf::from(runpath)]);
            Dynamic {
                soname: None,
                needed,
                runpath,
            }
        };
        let cached = |soname: &str| match soname {
            "libnccl.so.2" => vec![PathBuf::from("/cache/libnccl.so.2")],
            _ => Vec::new(),
        };
        let list = candidates_by_path(&env, &facts, &SPEC, &dynamic, &cached);
        assert_eq!(
            shown(&list),
            [
                "runpath /t/../nccl/libnccl.so.2",
                "ld-library-path /l1/libnccl.so.2",
                "ld-library-path /l1/libnccl.so",
                "ld-library-path /l2/libnccl.so.2",
                "ld-library-path /l2/libnccl.so",
                "ld-so-cache /cache/libnccl.so.2",
                "root /c/lib64/libnccl.so.2",
                "root /c/lib64/libnccl.so",
                "root /roots/lib/libnccl.so.2",
                "root /roots/lib/libnccl.so",
            ]
        );
    }
}
