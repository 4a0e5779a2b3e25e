//! Finds and opens vendors' libraries. What was decided for a process stays decided.

pub(crate) mod discover;
pub(crate) mod elf;
pub(crate) mod numbers;
pub(crate) mod open;
mod rebind;
pub(crate) mod report;
pub(crate) mod symbols;

#[cfg(test)]
mod invented;
#[cfg(test)]
mod page;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::config::{self, HostEngine, OverrideOf};
use crate::device::Driver;
use crate::host::net::{mpi, ucc, ucx};
use crate::sys::per_process::PerProcess;
use crate::vendor::Library;
use crate::vendor::{self, Ccl, Root, Vendor};
use crate::{Error, Result};
pub(crate) use discover::Env;
use discover::{Choice, Evidence, Facts, Spec};
use numbers::Numbers;
use open::Search;
use report::{LoadReport, Outcome, Section, Survey};

/// The vendor of this process and its driver.
#[derive(Debug)]
pub(crate) struct ProcessVendor {
    /// The vendor; `None` means that only the host tier is there.
    pub(crate) vendor: Option<&'static Vendor>,
    /// Whether the user named it.
    pub(crate) named: bool,
    /// Its driver, or why there is none.
    pub(crate) driver: std::result::Result<Driver, Error>,
    /// How it was chosen, in words.
    pub(crate) how: String,
}

impl ProcessVendor {
    /// The driver, if there is one.
    pub(crate) fn driver(&self) -> Option<&Driver> {
        self.driver.as_ref().ok()
    }
}

struct Decision {
    result: Result<ProcessVendor>,
    gems_vendor: Option<OsString>,
    env: Env,
    sections: Vec<Section>,
}

static DECISION: PerProcess<Decision> = PerProcess::new();
static LIBRARY: PerProcess<(Result<Library>, Vec<Section>)> = PerProcess::new();
static FLAGCX: PerProcess<(Result<Library>, Vec<Section>)> = PerProcess::new();
static UCX: PerProcess<(Result<ucx::Api>, Vec<Section>)> = PerProcess::new();
static MPI: PerProcess<(Result<mpi::Api>, Vec<Section>)> = PerProcess::new();
static UCC: PerProcess<(Result<ucc::Api>, Vec<Section>)> = PerProcess::new();

/// The keys for which variables of one vendor are read, with their other names.
pub(crate) fn vendor_names() -> Vec<config::VendorNames> {
    let vendors = vendor::VENDORS
        .iter()
        .map(|vendor| (vendor.key, vendor.aliases));
    let flagcx: config::VendorNames = (vendor::FLAGCX.key, &[]);
    vendors.chain([flagcx]).collect()
}

/// The vendor of this process. The first call decides: it looks at the environment and asks the
/// driver for devices. The decision, an error too, stays for the process. A forked child decides
/// anew.
pub(crate) fn process_vendor() -> Result<&'static ProcessVendor> {
    let decision = DECISION.get_or_init(decide);
    let now = config::foreign("GEMS_VENDOR");
    if now != decision.gems_vendor {
        static SAID: AtomicBool = AtomicBool::new(false);
        if !SAID.swap(true, Ordering::Relaxed) {
            log::warn!(
                "GEMS_VENDOR changed from {} to {} after the vendor was chosen; the choice stays",
                shown(decision.gems_vendor.as_ref()),
                shown(now.as_ref())
            );
        }
    }
    decision.result.as_ref().map_err(Error::clone)
}

fn shown(value: Option<&OsString>) -> String {
    value.map_or_else(
        || "unset".to_string(),
        |v| format!("{:?}", v.to_string_lossy()),
    )
}

/// The collective library of this process' vendor. The first call opens it; the result, an error
/// too, stays for the process.
pub(crate) fn process_library() -> Result<&'static Library> {
    let chosen = process_vendor()?;
    let (result, _) = LIBRARY.get_or_init(|| {
        let mut sections = Vec::new();
        let result = match chosen.vendor {
            Some(vendor) => {
                let whose = match chosen.named {
                    true => format!("GEMS_VENDOR names {}, but ", vendor.key),
                    false => format!("there is a driver of {}, but ", vendor.key),
                };
                numbers(vendor).and_then(|numbers| {
                    let row = &vendor.ccl;
                    open_library(row, &numbers, &whose, log::Level::Warn, &mut sections)
                })
            }
            None => Err(Error::not_supported(format!(
                "there is no vendor's collective library: {}",
                chosen.how
            ))),
        };
        (result, sections)
    });
    result.as_ref().map_err(Error::clone)
}

/// The version of this process' NCCL, or of the one that would be used: to be asked for it, no driver
/// is touched. `None` if the vendor is another, or nothing shows yet which it is.
pub(crate) fn nccl_version() -> Option<i32> {
    static BEFORE: PerProcess<Option<i32>> = PerProcess::new();
    let of_nccl = |library: &Library| library.row.nccl_versions.then_some(library.version_code);
    if let Some((result, _)) = LIBRARY.get() {
        return result.as_ref().ok().and_then(of_nccl);
    }
    *BEFORE.get_or_init(|| {
        let named = config::foreign("GEMS_VENDOR");
        let named = named.as_ref().map(|name| name.to_string_lossy());
        let vendor = match discover::choose(named.as_deref()).ok()? {
            Choice::Host(_) => None,
            Choice::Vendor(vendor) => Some(vendor),
            Choice::Detect => discover::detect(&facts())
                .into_iter()
                .next()
                .filter(|(_, evidence)| *evidence != Evidence::Soname)
                .map(|(vendor, _)| vendor),
        }?;
        if !vendor.ccl.nccl_versions {
            return None;
        }
        let numbers = numbers(vendor).ok()?;
        let level = log::Level::Debug;
        let library = open_library(&vendor.ccl, &numbers, "", level, &mut Vec::new());
        library.ok().as_ref().and_then(of_nccl)
    })
}

/// FlagCX as a library. The first call opens it; the result, an error too, stays for the process.
pub(crate) fn process_flagcx() -> Result<&'static Library> {
    let (result, _) = FLAGCX.get_or_init(|| {
        let mut sections = Vec::new();
        let row = &vendor::FLAGCX;
        // Nobody has asked for it by name.
        let numbers = Numbers::of_text(row.key, None, &[]);
        let result = numbers
            .and_then(|numbers| open_library(row, &numbers, "", log::Level::Info, &mut sections));
        (result, sections)
    });
    result.as_ref().map_err(Error::clone)
}

/// UCX, for the host tier. The first call opens it; the result, an error too, stays for the process.
pub(crate) fn process_ucx() -> Result<&'static ucx::Api> {
    let (result, _) = UCX.get_or_init(|| {
        let mut sections = Vec::new();
        (open_ucx(&mut sections), sections)
    });
    result.as_ref().map_err(Error::clone)
}

fn open_ucx(sections: &mut Vec<Section>) -> Result<ucx::Api> {
    if crate::sys::secure::at_secure() {
        return Err(Error::not_supported(
            "UCX is not opened in a process that runs with more rights than its caller: UCX believes \
             paths that the environment names (UCX_MODULE_DIR)",
        ));
    }
    let spec = Spec {
        key: discover::UCX_KEY,
        of: OverrideOf::Engine,
        sonames: ucx::SONAMES,
        wheels: ucx::WHEELS,
        roots: &[],
        roots_first: false,
        companions: ucx::COMPANIONS,
    };
    prepare_for_ucx();
    let mut section = Section::new("UCX", spec.key);
    let mut env = Env::of_process();
    if matches!(config::get().host_engine, HostEngine::Mpi | HostEngine::Ucc) {
        env = env.without_engine_path();
    }
    let found = search(
        &env,
        &facts(),
        &spec,
        ucx::FINGERPRINT,
        &mut section,
        &mut |lib| ucx::Api::accept(lib),
    );
    let result = match found {
        Some((lib, api)) => {
            log::info!("UCX {} loaded from {}", api.version, lib.path().display());
            Ok(api)
        }
        None => Err(Error::not_supported(format!(
            "UCX can't be loaded; tried: {}",
            section.tried()
        ))),
    };
    sections.push(section);
    result
}

/// Whether the process has a library already.
fn is_loaded(sonames: &[&str]) -> bool {
    sonames.iter().any(|s| open::loaded(s.as_ref()).is_some())
}

/// Sets what UCX reads when it is loaded, by itself or by an MPI or UCC that needs it.
fn prepare_for_ucx() {
    if is_loaded(ucx::SONAMES) {
        return;
    }
    set_where_unset(&ucx::ENVIRONMENT);
}

fn set_where_unset(variables: &[(&str, &str)]) {
    for (name, value) in variables {
        if config::foreign_as_is(name).is_none() {
            open::set_environment(name, value);
        }
    }
}

/// UCC, for the host tier. The first call opens it; the result, an error too, stays for the process.
pub(crate) fn process_ucc() -> Result<&'static ucc::Api> {
    let (result, _) = UCC.get_or_init(|| {
        let mut sections = Vec::new();
        (open_ucc(&mut sections), sections)
    });
    result.as_ref().map_err(Error::clone)
}

fn open_ucc(sections: &mut Vec<Section>) -> Result<ucc::Api> {
    let mut env = Env::of_process();
    if config::get().host_engine != HostEngine::Ucc {
        env = env.without_engine_path();
    }
    open_ucc_of(&env, sections)
}

/// UCC as it is found with this environment.
pub(crate) fn open_ucc_of(env: &Env, sections: &mut Vec<Section>) -> Result<ucc::Api> {
    if crate::sys::secure::at_secure() {
        return Err(Error::not_supported(
            "UCC is not opened in a process that runs with more rights than its caller: UCC and its UCX believe \
             paths that the environment names (UCC_COMPONENT_PATH, UCX_MODULE_DIR)",
        ));
    }
    let spec = Spec {
        key: discover::UCC_KEY,
        of: OverrideOf::Engine,
        sonames: ucc::SONAMES,
        wheels: &[],
        roots: &[],
        roots_first: false,
        companions: ucc::COMPANIONS,
    };
    prepare_for_ucx();
    if !is_loaded(ucc::SONAMES) {
        if ucc::SEGMENT_SIZES
            .iter()
            .all(|(name, _)| config::foreign_as_is(name).is_none())
        {
            set_where_unset(&ucc::SEGMENT_SIZES);
        }
        set_where_unset(&ucc::ENVIRONMENT);
    }
    let mut section = Section::new("UCC", spec.key);
    let found = search(
        env,
        &facts(),
        &spec,
        ucc::FINGERPRINT,
        &mut section,
        &mut |lib| ucc::Api::accept(lib),
    );
    let result = match found {
        Some((lib, api)) => {
            log::info!("UCC {} loaded from {}", api.version, lib.path().display());
            Ok(api)
        }
        None => Err(Error::not_supported(format!(
            "UCC can't be loaded; tried: {}",
            section.tried()
        ))),
    };
    sections.push(section);
    result
}

/// MPI, for the host tier. The first call opens it; the result, an error too, stays for the process.
pub(crate) fn process_mpi() -> Result<&'static mpi::Api> {
    let (result, _) = MPI.get_or_init(|| {
        let mut sections = Vec::new();
        (open_mpi(&mut sections), sections)
    });
    result.as_ref().map_err(Error::clone)
}

/// The name of an MPI that the process has and that is initialised.
fn initialised_mpi() -> Option<&'static [&'static str]> {
    let up = |name: &&str| {
        let lib = open::loaded(name.as_ref())?;
        let accepted = mpi::Api::accept(&lib).ok()?;
        accepted.value.is_up().then_some(())
    };
    let at = mpi::SONAMES.iter().position(|name| up(name).is_some())?;
    mpi::SONAMES.get(at..=at)
}

/// MPI, if the program has initialised it. Opens nothing new.
pub(crate) fn initialised_process_mpi() -> Option<Result<&'static mpi::Api>> {
    initialised_mpi().map(|_| process_mpi())
}

fn open_mpi(sections: &mut Vec<Section>) -> Result<mpi::Api> {
    if crate::sys::secure::at_secure() {
        return Err(Error::not_supported(
            "MPI is not opened in a process that runs with more rights than its caller: MPI believes \
             paths that the environment names",
        ));
    }
    let mut section = Section::new("MPI", discover::MPI_KEY);
    let mut env = Env::of_process();
    if config::get().host_engine != HostEngine::Mpi {
        env = env.without_engine_path();
    }
    let mut spec = Spec {
        key: discover::MPI_KEY,
        of: OverrideOf::Engine,
        sonames: match mpi::launcher_is_not_open_mpis() {
            true => mpi::SONAMES_PMI,
            false => mpi::SONAMES,
        },
        wheels: mpi::WHEELS,
        roots: &[],
        roots_first: false,
        companions: &[],
    };
    if let Some(up) = initialised_mpi() {
        // A second one would know nothing of the job.
        if env.get(&config::override_name(spec.key, spec.of)).is_some() {
            let note = format!(
                "the program has initialised MPI ({}), which is used whatever {} says",
                up.concat(),
                config::override_name(spec.key, spec.of)
            );
            log::info!("{note}");
            section.notes.push(note);
        }
        env = env.without_engine_path();
        spec.sonames = up;
    }
    prepare_for_ucx();
    let found = search(
        &env,
        &facts(),
        &spec,
        mpi::FINGERPRINT,
        &mut section,
        &mut |lib| mpi::Api::accept(lib),
    );
    let result = match found {
        Some((_, api)) => {
            log::info!("MPI loaded: {}", api.about());
            Ok(api)
        }
        None => Err(Error::not_supported(format!(
            "MPI can't be loaded; tried: {}",
            section.tried()
        ))),
    };
    sections.push(section);
    result
}

/// The driver of this process; `None` if there is none.
pub(crate) fn process_driver() -> Result<Option<&'static Driver>> {
    Ok(process_vendor()?.driver())
}

/// The driver, if the vendor was chosen already and has one.
pub(crate) fn chosen_driver() -> Option<&'static Driver> {
    DECISION.get()?.result.as_ref().ok()?.driver()
}

/// Everything that was tried so far. Opens nothing.
pub(crate) fn report() -> LoadReport {
    let mut report = LoadReport {
        choice: "nothing was chosen yet".to_string(),
        sections: Vec::new(),
    };
    if let Some(decision) = DECISION.get() {
        report.choice = match &decision.result {
            Ok(chosen) => chosen.how.clone(),
            Err(error) => error.text().to_string(),
        };
        report.sections.extend(decision.sections.iter().cloned());
    }
    for opened in [&LIBRARY, &FLAGCX] {
        if let Some((_, sections)) = opened.get() {
            report.sections.extend(sections.iter().cloned());
        }
    }
    if let Some((_, sections)) = UCX.get() {
        report.sections.extend(sections.iter().cloned());
    }
    if let Some((_, sections)) = MPI.get() {
        report.sections.extend(sections.iter().cloned());
    }
    if let Some((_, sections)) = UCC.get() {
        report.sections.extend(sections.iter().cloned());
    }
    report
}

fn decide() -> Decision {
    let env = Env::of_process();
    let gems_vendor = config::foreign("GEMS_VENDOR");
    let mut sections = Vec::new();
    let result = choose_vendor(&env, gems_vendor.as_ref(), &mut sections);
    if let Ok(chosen) = &result {
        log::info!("vendor: {}", chosen.how);
    }
    Decision {
        result,
        gems_vendor,
        env,
        sections,
    }
}

fn choose_vendor(
    env: &Env,
    value: Option<&OsString>,
    sections: &mut Vec<Section>,
) -> Result<ProcessVendor> {
    let text = value.map(|v| v.to_string_lossy());
    match discover::choose(text.as_deref())? {
        Choice::Host(key) => {
            let how =
                format!("GEMS_VENDOR names {key}, which has no collective library: host tier");
            let driver = Err(Error::not_supported(how.clone()));
            Ok(ProcessVendor {
                vendor: None,
                named: true,
                driver,
                how,
            })
        }
        Choice::Vendor(vendor) => {
            let driver = open_driver(env, &facts(), vendor, sections).and_then(usable);
            if let Err(error) = &driver {
                log::warn!(
                    "GEMS_VENDOR names {}, whose driver can't be used: {error}",
                    vendor.key
                );
            }
            let how = format!("{}, named by GEMS_VENDOR", vendor.key);
            Ok(ProcessVendor {
                vendor: Some(vendor),
                named: true,
                driver,
                how,
            })
        }
        Choice::Detect => Ok(detect_vendor(env, sections)),
    }
}

/// A driver that has at least one device.
fn usable(driver: Driver) -> Result<Driver> {
    if driver.count()? > 0 {
        return Ok(driver);
    }
    Err(Error::not_supported(format!(
        "{} ({}) sees no device",
        driver.title(),
        driver.path().display()
    )))
}

/// Why a vendor can't be used, in one line, or `None` if none of its files is there.
fn why_not(error: &Error, sections: &[Section]) -> Option<String> {
    let found = |outcome| matches!(outcome, Outcome::Loaded | Outcome::AlreadyLoaded);
    let mut attempts = sections.iter().flat_map(|s| &s.attempts);
    if sections.is_empty() || attempts.any(|a| found(a.outcome)) {
        return Some(error.text().to_string());
    }
    let refused: Vec<String> = sections.iter().filter_map(Section::refused).collect();
    (!refused.is_empty()).then(|| refused.join("; "))
}

fn detect_vendor(env: &Env, sections: &mut Vec<Section>) -> ProcessVendor {
    let facts = facts();
    let mut reasons: Vec<(&str, String)> = Vec::new();
    let mut absent: Vec<&str> = Vec::new();
    for (vendor, evidence) in discover::detect(&facts) {
        let before = sections.len();
        match open_driver(env, &facts, vendor, sections).and_then(usable) {
            Ok(driver) => {
                let how = format!("{}, detected: {}", vendor.key, evidence.text());
                return ProcessVendor {
                    vendor: Some(vendor),
                    named: false,
                    driver: Ok(driver),
                    how,
                };
            }
            Err(error) => {
                if let Evidence::Node(node) = &evidence {
                    log::warn!(
                        "{} exists, but the driver of {} can't be used: {error}",
                        node.display(),
                        vendor.key
                    );
                }
                match why_not(&error, &sections[before..]) {
                    Some(why) => reasons.push((vendor.key, why)),
                    None => absent.push(vendor.key),
                }
            }
        }
    }
    for vendor in vendor::VENDORS {
        for of in [OverrideOf::Driver, OverrideOf::Library] {
            let name = config::override_name(vendor.key, of);
            if env.get(&name).is_none_or(|value| value.is_empty()) {
                continue;
            }
            let reason = reasons.iter().find(|(key, _)| *key == vendor.key);
            let why = match reason {
                Some((_, why)) => why.clone(),
                None if vendor.only_named => {
                    format!("it is used only if it is named: GEMS_VENDOR={}", vendor.key)
                }
                None => "no driver of it was found".to_string(),
            };
            log::warn!(
                "{name} is set, but no device of {} can be used: {why}",
                vendor.key
            );
        }
    }
    let mut parts: Vec<String> = reasons
        .iter()
        .map(|(key, why)| format!("{key}: {why}"))
        .collect();
    if !absent.is_empty() {
        parts.push(format!(
            "no driver of {} was found; `flagos-comm doctor --details` lists every place",
            absent.join(", ")
        ));
    }
    let how = format!("no accelerator can be used ({})", parts.join("; "));
    let driver = Err(Error::not_supported(how.clone()));
    ProcessVendor {
        vendor: None,
        named: false,
        driver,
        how,
    }
}

/// The keys that [`survey`] knows, in the order of detection.
pub(crate) fn surveyed() -> impl Iterator<Item = &'static str> {
    let keys = vendor::VENDORS.iter().map(|vendor| vendor.key);
    keys.chain([
        vendor::FLAGCX.key,
        discover::UCX_KEY,
        discover::MPI_KEY,
        discover::UCC_KEY,
    ])
}

/// What one vendor's libraries are like here. Opens them, whatever the process uses: for a process
/// that does nothing else, as adapters of a library that is opened replace those of another. `stage`
/// is told what is about to be called, as any of it may hang.
pub(crate) fn survey(key: &str, stage: &mut dyn FnMut(&str)) -> Option<Survey> {
    let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
    let mut survey = Survey {
        vendor: key.to_string(),
        ..Survey::default()
    };
    if key == discover::UCX_KEY {
        survey.names[1] = names(ucx::SONAMES);
        stage("UCX is opened");
        survey.library = open_ucx(&mut survey.sections)
            .err()
            .map(|error| error.text().to_string());
        return Some(survey);
    }
    if key == discover::MPI_KEY {
        survey.names[1] = names(mpi::SONAMES);
        stage("MPI is opened");
        survey.library = open_mpi(&mut survey.sections)
            .err()
            .map(|error| error.text().to_string());
        return Some(survey);
    }
    if key == discover::UCC_KEY {
        survey.names[1] = names(ucc::SONAMES);
        stage("UCC is opened");
        survey.library = open_ucc(&mut survey.sections)
            .err()
            .map(|error| error.text().to_string());
        return Some(survey);
    }
    let env = Env::of_process();
    let (row, numbers) = if key == vendor::FLAGCX.key {
        (
            &vendor::FLAGCX,
            Numbers::of_text(vendor::FLAGCX.key, None, &[]),
        )
    } else {
        let vendor = vendor::VENDORS.iter().find(|vendor| vendor.key == key)?;
        survey.aliases = names(vendor.aliases);
        survey.only_named = vendor.only_named;
        let low = vendor.driver.low.map_or(&[] as &[&str], |low| low.sonames);
        survey.names[0] = names(&[vendor.driver.sonames, low].concat());
        stage("its driver is opened");
        let driver = open_driver(&env, &facts(), vendor, &mut survey.sections);
        stage("its driver is asked for devices");
        let devices = driver.and_then(|driver| driver.count());
        survey.devices = Some(devices.map_err(|error| error.text().to_string()));
        (&vendor.ccl, numbers(vendor))
    };
    survey.names[1] = names(row.sonames);
    stage("its collective library is opened");
    let level = log::Level::Debug;
    survey.library = numbers
        .and_then(|numbers| open_library(row, &numbers, "", level, &mut survey.sections))
        .err()
        .map(|error| error.text().to_string());
    Some(survey)
}

fn facts() -> Facts {
    let nodes = vendor::VENDORS.iter().flat_map(|v| v.nodes);
    Facts {
        mapped: open::mapped_files(),
        nodes: nodes
            .map(PathBuf::from)
            .filter(|node| node.exists())
            .collect(),
    }
}

fn search<T>(
    env: &Env,
    facts: &Facts,
    spec: &Spec,
    fingerprint: &str,
    section: &mut Section,
    accept: &mut dyn FnMut(&open::Lib) -> std::result::Result<open::Accepted<T>, open::Refusal>,
) -> Option<(open::Lib, T)> {
    let copies = discover::mapped_copies(facts, spec.sonames);
    let by_path = || {
        let cache = std::fs::read("/etc/ld.so.cache").unwrap_or_default();
        let cached = |soname: &str| elf::cached(&cache, soname);
        discover::candidates_by_path(env, facts, spec, &elf::dynamic, &cached)
    };
    let mode = config::get().dlopen;
    let search = Search {
        spec,
        fingerprint,
        mode,
        by_path: &by_path,
        copies: &copies,
    };
    search.run(discover::candidates(env, facts, spec), section, accept)
}

/// The numbers that the user gave for a vendor.
fn numbers(vendor: &'static Vendor) -> Result<Numbers> {
    Numbers::of_vendor(vendor.key, &vendor.number_names())
}

fn open_driver(
    env: &Env,
    facts: &Facts,
    vendor: &'static Vendor,
    sections: &mut Vec<Section>,
) -> Result<Driver> {
    let row = vendor.driver;
    let numbers = numbers(vendor).inspect_err(|error| log::warn!("{error}"))?;
    let spec = Spec {
        key: vendor.key,
        of: OverrideOf::Driver,
        sonames: row.sonames,
        wheels: row.wheels,
        roots: row.roots,
        roots_first: row.own_roots_first,
        companions: &[],
    };
    let mut section = Section::new(row.title, vendor.key);
    let fingerprint = format!("{}GetDevice", row.prefix);
    let runtime = search(env, facts, &spec, &fingerprint, &mut section, &mut |lib| {
        Driver::accept_runtime(row, &numbers, lib)
    });
    let mut tried = section.tried();
    sections.push(section);
    // Who names a runtime doesn't want to be served without one.
    let named = env
        .get(&config::override_name(vendor.key, OverrideOf::Driver))
        .is_some();
    let low = row
        .low
        .filter(|_| runtime.is_some() || !named)
        .and_then(|low| {
            let spec = Spec {
                sonames: low.sonames,
                wheels: &[],
                roots: &[],
                ..spec
            };
            let fingerprint = format!("{}Init", low.prefix);
            let mut section = Section::new(low.title, vendor.key);
            // The variable names the runtime; the driver below it is always the loader's.
            let env = Env::default();
            let found = search(&env, facts, &spec, &fingerprint, &mut section, &mut |lib| {
                Driver::accept_low(row, &numbers, low, lib)
            });
            tried = format!("{tried}; {}", section.tried());
            sections.push(section);
            found
        });
    match (runtime, low) {
        (Some((_, runtime)), Some((_, low))) => Ok(runtime.with_low(low)),
        (Some((_, runtime)), None) => Ok(runtime),
        (None, Some((_, low))) => Ok(low),
        (None, None) => Err(Error::not_supported(format!(
            "no driver of {} can be loaded; tried: {tried}",
            vendor.key
        ))),
    }
}

/// What can't be known of a library that has NVIDIA's names and lies in none of its vendor's folders.
fn doubtful(row: &Ccl, path: &Path) -> Option<String> {
    let own = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let below = |root: &Root| match root {
        Root::Folder(folder) => own.starts_with(folder),
        Root::Env(name, below) => config::foreign(name).is_some_and(|value| {
            let folder = Path::new(&value).join(below);
            folder
                .canonicalize()
                .is_ok_and(|folder| own.starts_with(folder))
        }),
    };
    let certain = !row.has_strangers_names() || row.roots.iter().any(below);
    (!certain).then(|| {
        format!(
            "{}: {} has the names of NVIDIA's NCCL and lies in none of the vendor's folders, so \
             nothing shows that it is not NVIDIA's",
            row.title,
            path.display()
        )
    })
}

fn open_library(
    row: &'static Ccl,
    numbers: &Numbers,
    whose: &str,
    level: log::Level,
    sections: &mut Vec<Section>,
) -> Result<Library> {
    let env = DECISION
        .get()
        .map_or_else(Env::of_process, |decision| decision.env.clone());
    let spec = Spec {
        key: row.key,
        of: OverrideOf::Library,
        sonames: row.sonames,
        wheels: row.wheels,
        roots: row.roots,
        roots_first: row.roots_first,
        companions: &[],
    };
    let mut section = Section::new(row.title, row.key);
    let found = search(
        &env,
        &facts(),
        &spec,
        row.fingerprint,
        &mut section,
        &mut |lib| Library::accept(row, numbers, lib),
    );
    let result = match found {
        Some((lib, library)) => {
            let (title, version) = (row.title, library.version_text());
            log::info!("{title} {version} loaded from {}", lib.path().display());
            if let Some(doubt) = doubtful(row, lib.path()) {
                log::warn!("{doubt}");
                section.notes.push(doubt);
            }
            match library.gate() {
                None => Ok(library),
                Some(error) => {
                    log::warn!("{error}");
                    section.notes.push(error.text().to_string());
                    Err(error)
                }
            }
        }
        None => {
            let text = format!("{} can't be loaded; tried: {}", row.title, section.tried());
            log::log!(level, "{whose}{text}");
            Err(Error::not_supported(text))
        }
    };
    sections.push(section);
    result
}
