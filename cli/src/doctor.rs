//! `doctor`: what is on this machine, what would be used, and why.
#![forbid(unsafe_code)]

use crate::library::{Library as _, Linked, sum, version_text};
use crate::survey::{self, Surveyed};
use crate::sys;
use crate::words::{amount, plural};
use clap::Args;
use flagos_comm::{Communicator, Limit, Options, Stream, UniqueId, internal};
use serde_json::{Value, json};
use std::fmt::Write;
use std::sync::mpsc;
use std::time::Duration;

/// Say what the library finds on this machine, what it would use, and what to do
///
/// Prints the version, facts about the machine, the environment variables that matter, the network
/// interfaces, what is there of every vendor's driver and collective library, the devices, and the
/// result of an all-reduce between two ranks of this process on the host tier. The exit code
/// is 0 on any machine where the library works, also where there is nothing but the host tier; 1 if
/// the test fails, or if FLAGOSCOMM_TIERS leaves nothing that could run.
#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Show every place where a library was looked for
    #[arg(long)]
    details: bool,
    /// Seconds after which a driver or library that doesn't answer is given up
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = crate::cli::seconds)]
    patience: f64,
    /// Look at one vendor's libraries, for the process that asks: it opens all of them
    #[arg(long, value_name = "VENDOR", hide = true)]
    survey: Option<String>,
}

/// Variables of others that the library does not read itself, and that change what it finds.
const BESIDE: [&str; 16] = [
    "LD_PRELOAD",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "MUSA_VISIBLE_DEVICES",
    "CNRT_VISIBLE_DEVICES",
    "MLU_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "NCCL_DEBUG",
    "NCCL_COMM_ID",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_PROCID",
];

/// Prints the report; the result is this process's exit code.
///
/// # Errors
/// If stdout can't take it.
pub fn run(args: &DoctorArgs) -> Result<u8, String> {
    if let Some(vendor) = &args.survey {
        let patience = Duration::from_secs_f64(args.patience);
        return survey::one(vendor, |stage| itself(patience, stage));
    }
    let findings = Findings::gather(Duration::from_secs_f64(args.patience));
    let text = if args.json {
        serde_json::to_string_pretty(&findings.json()).map_err(|e| e.to_string())? + "\n"
    } else {
        findings.text(args.details)
    };
    use std::io::Write as _;
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            return Err(format!("can't write the report: {error}"));
        }
        _ => {}
    }
    let good = findings.self_test.is_ok() && findings.something_runs();
    Ok(u8::from(!good))
}

struct Device {
    index: usize,
    /// What the driver calls it, in the form of GPU-….
    uuid: Option<String>,
}

fn uuid(index: usize) -> Option<String> {
    let bytes = internal::device_uuid(i32::try_from(index).ok()?).ok()??;
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    let parts = [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ];
    Some(parts.join("-"))
}

/// A library that was looked for.
struct Library {
    title: String,
    vendor: String,
    /// File and version of the copy in use.
    used: Option<String>,
}

struct Findings {
    version: String,
    host: String,
    cores: usize,
    huge_pages: Vec<(String, String)>,
    shared_memory: Option<(u64, u64)>,
    secure: bool,
    environment: Vec<(String, String)>,
    interfaces: Vec<sys::Interface>,
    surveyed: Vec<Surveyed>,
    /// What the library loaded and chose.
    load_report: Value,
    vendor: Result<String, String>,
    devices: Result<Vec<Device>, String>,
    /// The tiers that may be used, and what the host tier is to move data with.
    tiers: Vec<String>,
    host_engine: String,
    /// Milliseconds, and what the data moved over.
    self_test: Result<(f64, String), String>,
}

/// What the library does in a process that uses it, which is this one. Any of it may hang.
fn itself(patience: Duration, stage: &mut dyn FnMut(&str)) -> Value {
    let words = |error: flagos_comm::Error| error.text().to_owned();
    fn result<T: Into<Value>>(result: Result<T, String>) -> Value {
        match result {
            Ok(value) => json!({ "ok": value.into() }),
            Err(error) => json!({ "error": error }),
        }
    }
    stage("the vendor is chosen and its libraries are opened");
    let load_report = internal::load_report_json();
    let vendor = internal::vendor().map(str::to_owned).map_err(words);
    stage("the driver is asked for devices");
    let devices = Linked.device_count().map_err(words).map(|count| {
        let count = usize::try_from(count).unwrap_or(0);
        (0..count).map(uuid).collect::<Vec<_>>()
    });
    stage("two ranks meet on the host tier");
    // Ends a little before this process is given up.
    let limit = patience.mul_f64(0.8);
    let self_test =
        self_test(limit).map(|(time, engine)| json!([time.as_secs_f64() * 1e3, engine]));
    json!({
        "load_report": serde_json::from_str::<Value>(&load_report).unwrap_or_default(),
        "vendor": result(vendor),
        "devices": result(devices),
        "self_test": result(self_test),
    })
}

/// What `itself` wrote of one question.
fn answer(of: &Value) -> Result<&Value, String> {
    match (of.get("ok"), of["error"].as_str()) {
        (Some(value), _) => Ok(value),
        (None, error) => Err(error.unwrap_or("no answer").to_owned()),
    }
}

impl Findings {
    fn gather(patience: Duration) -> Findings {
        let surveyed = survey::all(patience);
        let itself = survey::ask(survey::ITSELF, patience).unwrap_or_else(|why| {
            let error = json!({ "error": why });
            json!({ "vendor": error, "devices": error, "self_test": error })
        });
        let devices = answer(&itself["devices"]).map(|devices| {
            let devices = devices.as_array().cloned().unwrap_or_default();
            let devices = devices.iter().enumerate().map(|(index, uuid)| Device {
                index,
                uuid: uuid.as_str().map(str::to_owned),
            });
            devices.collect()
        });
        Findings {
            version: version_text(Linked.version_code()),
            host: sys::host_name(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            huge_pages: huge_pages(),
            shared_memory: sys::file_system(c"/dev/shm"),
            secure: sys::secure_mode(),
            environment: environment(),
            interfaces: sys::interfaces(),
            surveyed,
            load_report: itself["load_report"].clone(),
            vendor: answer(&itself["vendor"]).map(|v| v.as_str().unwrap_or_default().to_owned()),
            devices,
            tiers: internal::allowed_tiers()
                .into_iter()
                .map(str::to_owned)
                .collect(),
            host_engine: internal::host_engine().to_owned(),
            self_test: answer(&itself["self_test"]).map(|v| {
                let engine = v[1].as_str().unwrap_or_default().to_owned();
                (v[0].as_f64().unwrap_or_default(), engine)
            }),
        }
    }

    /// What the load report says about each library.
    fn libraries(&self) -> Vec<Library> {
        let report = &self.load_report;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let used = |attempt: &Value| {
            let outcome = text(&attempt["outcome"]);
            ["loaded", "already-loaded"]
                .contains(&outcome.as_str())
                .then(|| {
                    let file = attempt["path"].as_str().or(attempt["name"].as_str());
                    let version = attempt["version"]
                        .as_str()
                        .map(|v| format!(", version {v}"));
                    format!(
                        "{}{}",
                        file.unwrap_or_default(),
                        version.unwrap_or_default()
                    )
                })
        };
        list(&report["sections"])
            .iter()
            .map(|section| Library {
                title: text(&section["title"]),
                vendor: text(&section["vendor"]),
                used: list(&section["attempts"]).iter().find_map(used),
            })
            .collect()
    }

    /// What would be used and why, and what to do about it.
    fn advice(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let set = |name: &str| {
            self.environment
                .iter()
                .find(|(n, _)| n == name)
                .map(|(_, v)| v)
        };
        let devices = self.devices.as_ref().map_or(0, Vec::len);
        let vendor = self.vendor.as_deref().unwrap_or("host");
        let host = self.host_allowed();
        let left_out = format!(
            "FLAGOSCOMM_TIERS={} leaves the host tier out",
            self.tiers.join(",")
        );
        match (vendor, devices) {
            _ if self.vendor.is_err() => {}
            ("" | "host", _) if !host => lines.push(format!(
                "No accelerator was found and {left_out}: nothing can run here."
            )),
            ("" | "host", _) => {
                lines.push(
                    "No accelerator was found: collectives can run on the host tier only, in the memory of the \
                     processes."
                        .to_owned(),
                );
                // One that is named without a driver is chosen all the same; others are served by this tier.
                let named = set("GEMS_VENDOR")
                    .map(|name| name.trim())
                    .filter(|name| !name.is_empty());
                let lacks = self.load_report["choice"].as_str().unwrap_or_default();
                let advice = match named {
                    Some(name) if lacks.ends_with("named by GEMS_VENDOR") => format!(
                        "GEMS_VENDOR names {name}, but its driver was not found, so the host tier is used. Install it, \
                         or name the file with FLAGOSCOMM_<VENDOR>_DRIVER."
                    ),
                    Some(_) => format!("{lacks}."),
                    None => "If this machine has an accelerator: install its driver and collective \
                             library where the lines of \"looked for\" say (--details: every place), or name the files \
                             with FLAGOSCOMM_<VENDOR>_DRIVER and FLAGOSCOMM_<VENDOR>_LIBRARY; GEMS_VENDOR=<vendor> \
                             makes it a warning that it can't be used."
                        .to_owned(),
                };
                lines.push(advice);
            }
            (vendor, 0) => {
                let then = match host {
                    true => "the host tier would be used".to_owned(),
                    false => format!("nothing can run here, as {left_out}"),
                };
                lines.push(format!(
                    "The driver of {vendor} is there but shows no device: {then}. Look at the variables that hide \
                     devices (*_VISIBLE_DEVICES) and at the permissions of the device files."
                ));
            }
            (vendor, n) => {
                let native = self.tiers.iter().any(|tier| tier == "native");
                let more = match host {
                    true => "more ranks than devices use the host tier".to_owned(),
                    false => format!("more ranks than devices fail, as {left_out}"),
                };
                lines.push(match native {
                    true => format!(
                        "{vendor} with {n} device{}: as many ranks use its collective library, if \
                         that was loaded; {more}.",
                        plural(n)
                    ),
                    false => format!(
                        "{vendor} with {n} device{}, but FLAGOSCOMM_TIERS={} leaves its collective library out.",
                        plural(n),
                        self.tiers.join(",")
                    ),
                });
                for library in self
                    .libraries()
                    .iter()
                    .filter(|l| native && l.vendor == vendor)
                {
                    lines.push(match &library.used {
                        Some(used) => format!("{} in use: {used}", library.title),
                        None => format!(
                            "{} was not found or was refused: \"looked for\" says where and why.",
                            library.title
                        ),
                    });
                }
            }
        }
        if host {
            lines.extend(self.advice_on_host_engine());
        }
        if let Err(why) = &self.vendor {
            lines.push(format!("The vendor could not be determined: {why}"));
        }
        let names = self.environment.iter().map(|(name, _)| name.as_str());
        for (name, meant) in internal::unknown_variables(names) {
            let hint = meant.map_or(String::new(), |meant| format!(" Is {meant} meant?"));
            lines.push(format!(
                "{name} is no variable of flagos-comm and does nothing; docs/environment.md lists them.{hint}"
            ));
        }
        let misunderstood = internal::values_not_understood();
        lines.extend(misunderstood.iter().map(|warning| format!("{warning}.")));
        let tiers_misunderstood = misunderstood
            .iter()
            .any(|warning| warning.starts_with("FLAGOSCOMM_TIERS="));
        if set("FLAGOSCOMM_TIERS").is_some() && host && !tiers_misunderstood {
            lines.push(format!(
                "FLAGOSCOMM_TIERS: the tiers that may be used are, in this order, {}.",
                self.tiers.join(", ")
            ));
        }
        if self.secure {
            lines.push(
                "This process runs in secure mode (set-user-id or capabilities): variables that \
                 name paths are ignored."
                    .to_owned(),
            );
        }
        match self.shared_memory {
            Some((size, _)) if size < 64 << 20 => lines.push(format!(
                "/dev/shm holds only {}: harmless here (the host tier does not use it), but \
                 vendors' libraries fail with a bus error when it is full. In a container give \
                 --shm-size=1g.",
                amount(size)
            )),
            None => lines.push("/dev/shm is missing; vendors' libraries need it.".to_owned()),
            _ => {}
        }
        let outside = |i: &&sys::Interface| i.up && !i.address.is_loopback();
        if !self.interfaces.iter().any(|i| outside(&i)) {
            lines.push(
                "There is no network interface but loopback: only ranks on this machine can meet."
                    .to_owned(),
            );
        }
        match &self.self_test {
            Ok((_, engine)) if host && self.host_engine == "mpi" => lines.push(format!(
                "Without MPI the host tier works: the two-rank test passed, over {engine}."
            )),
            Ok((_, engine)) if host => lines.push(format!(
                "The host tier works: the two-rank test passed, over {engine}."
            )),
            Ok(_) => lines.push(
                "The host tier would work, as the two-rank test has passed, if it were not left out.".to_owned(),
            ),
            Err(_) if self.vendor.is_err() => {}
            Err(why) => lines.push(format!("The host tier does not work here: {why}")),
        }
        lines
    }

    fn host_allowed(&self) -> bool {
        self.tiers.iter().any(|tier| tier == "host")
    }

    /// Whether there is a tier on which anything can run.
    fn something_runs(&self) -> bool {
        let devices = self.devices.as_ref().map_or(0, Vec::len);
        self.host_allowed() || self.vendor.is_err() || devices > 0
    }

    /// What the host tier moves data with, as the environment wants it.
    fn advice_on_host_engine(&self) -> Vec<String> {
        let file = |key: &str| self.surveyed.iter().find(|one| one.is(key))?.used();
        let name = self.host_engine.to_uppercase();
        let bring = match self.host_engine.as_str() {
            "mpi" => "an MPI brings it, such as Debian's packages openmpi-bin and mpich",
            "ucc" => "it is Debian's package libucc1, later than Debian 12",
            _ => {
                "Debian's package libucx0, or the Python packages openmpi, mpich or libucx-cu12, bring it"
            }
        };
        let engine = match self.host_engine.as_str() {
            "auto" => "ucx",
            engine => engine,
        };
        let mut surveyed = self.surveyed.iter();
        let refused = surveyed
            .find(|one| one.is(engine))
            .and_then(Surveyed::refused_override);
        let remedy = match refused {
            Some((path, why)) => {
                format!("FLAGOSCOMM_ENGINE_PATH={path} can't be used ({why}): correct or unset it")
            }
            None => bring.to_owned(),
        };
        let asks = format!("FLAGOSCOMM_HOST_ENGINE={}", self.host_engine);
        let mut lines = Vec::new();
        match (self.host_engine.as_str(), file(&self.host_engine)) {
            ("shm", _) => lines.push(format!(
                "{asks}: the ranks of a communicator have to be on one machine."
            )),
            ("auto", _) => {
                lines.push(match file("ucx") {
                    Some(file) => format!("Between machines the host tier uses UCX: {file}"),
                    None => format!(
                        "Ranks on several machines need UCX on the host tier, and it can't be used here: {remedy}."
                    ),
                });
                if let Some(file) = file("mpi") {
                    lines.push(format!(
                        "Ranks that an MPI launcher has started can use MPI instead: FLAGOSCOMM_HOST_ENGINE=mpi, {file}"
                    ));
                }
                if let Some(file) = file("ucc") {
                    lines.push(format!(
                        "Ranks can use UCC instead, if that is asked for: FLAGOSCOMM_HOST_ENGINE=ucc, {file}"
                    ));
                }
            }
            (engine, Some(file)) => {
                lines.push(format!(
                    "{asks}: the host tier uses {name}, on one machine too: {file}"
                ));
                if engine == "mpi" {
                    lines.push(
                        "MPI serves only processes that its launcher has started, one for each rank. The two ranks of \
                         this test are in one process, so the test leaves MPI out. `mpirun -n 2 flagos-comm perf --check` tries MPI itself."
                            .to_owned(),
                    );
                }
            }
            (_, None) => lines.push(format!(
                "{asks} asks for {name}, and it can't be used here, so that the host tier can't: {remedy}. \
                 \"looked for\" says where it was looked for{}.",
                match refused {
                    Some(_) => "",
                    None => "; FLAGOSCOMM_ENGINE_PATH names the file",
                }
            )),
        }
        lines
    }

    fn text(&self, details: bool) -> String {
        let mut out = String::new();
        // Writing to a String can't fail.
        let mut put = |line: String| {
            let _ = writeln!(out, "{line}");
        };
        put(format!("flagos-comm {}", self.version));
        put(String::new());
        put("machine".to_owned());
        put(format!("  name            {}", self.host));
        put(format!("  cores           {}", self.cores));
        for (name, value) in &self.huge_pages {
            put(format!("  {name:<15} {value}"));
        }
        put(match self.shared_memory {
            Some((size, free)) => {
                format!(
                    "  /dev/shm        {} of {} free",
                    amount(free),
                    amount(size)
                )
            }
            None => "  /dev/shm        missing".to_owned(),
        });
        put(format!(
            "  secure mode     {}",
            if self.secure { "yes" } else { "no" }
        ));
        put(String::new());
        put("environment".to_owned());
        if self.environment.is_empty() {
            put("  no variable that matters is set (FLAGOSCOMM_*, GEMS_VENDOR, ...)".to_owned());
        }
        for (name, value) in &self.environment {
            put(format!("  {name}={value}"));
        }
        put(String::new());
        put("network interfaces".to_owned());
        for interface in &self.interfaces {
            let state = if interface.up { "" } else { " (down)" };
            put(format!(
                "  {:<15} {}{state}",
                interface.name, interface.address
            ));
        }
        put(String::new());
        put("looked for".to_owned());
        for line in self.looked_for(details) {
            put(format!("  {line}"));
        }
        put(String::new());
        put("devices".to_owned());
        match &self.devices {
            Ok(devices) if devices.is_empty() => put("  none".to_owned()),
            Ok(devices) => {
                for device in devices {
                    let uuid = device.uuid.as_deref().unwrap_or("");
                    put(format!("  {} {uuid}", device.index).trim_end().to_owned());
                }
            }
            Err(why) => put(format!("  unknown: {why}")),
        }
        put(String::new());
        put("two-rank test on the host tier".to_owned());
        put(match &self.self_test {
            Ok((time, engine)) => format!("  passed in {time:.1} ms, over {engine}"),
            Err(why) => format!("  FAILED: {why}"),
        });
        put(String::new());
        put("verdict".to_owned());
        for line in self.advice() {
            put(format!("  {line}"));
        }
        out
    }

    /// What is there of every vendor, and what this process chose.
    fn looked_for(&self, details: bool) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(choice) = self.load_report["choice"].as_str() {
            let hint = "; `flagos-comm doctor --details` lists every place";
            let choice = match details {
                true => choice.replace(hint, ""),
                false => choice.to_owned(),
            };
            lines.push(format!("chosen: {choice}"));
        }
        for one in &self.surveyed {
            lines.extend(one.lines(details));
        }
        let mut of_vendors = self.surveyed.iter().filter(|one| one.is_of_vendor());
        if !of_vendors.any(Surveyed::is_there) {
            lines.push("Nothing of any vendor was found; --details lists every place.".to_owned());
        }
        lines
    }

    fn json(&self) -> Value {
        let pairs = |pairs: &[(String, String)]| -> Value {
            pairs
                .iter()
                .map(|(name, value)| (name.clone(), json!(value)))
                .collect()
        };
        let interfaces: Vec<Value> = self
            .interfaces
            .iter()
            .map(|i| json!({"name": i.name, "address": i.address.to_string(), "up": i.up}))
            .collect();
        let devices = match &self.devices {
            Ok(devices) => {
                let list = devices
                    .iter()
                    .map(|d| json!({"index": d.index, "uuid": d.uuid}));
                list.collect()
            }
            Err(why) => json!({ "error": why }),
        };
        let survey: Vec<Value> = self.surveyed.iter().map(Surveyed::json).collect();
        json!({
            "format": "flagos-comm doctor 1",
            "version": self.version,
            "machine": {
                "name": self.host,
                "cores": self.cores,
                "huge_pages": pairs(&self.huge_pages),
                "shm_bytes": self.shared_memory.map(|s| s.0),
                "shm_free_bytes": self.shared_memory.map(|s| s.1),
                "secure_mode": self.secure,
            },
            "environment": pairs(&self.environment),
            "interfaces": interfaces,
            "load_report": self.load_report,
            "survey": survey,
            "vendor": self.vendor.as_ref().ok(),
            "vendor_error": self.vendor.as_ref().err(),
            "devices": devices,
            "self_test": {
                "passed": self.self_test.is_ok(),
                "milliseconds": self.self_test.as_ref().ok().map(|(time, _)| time),
                "engine": self.self_test.as_ref().ok().map(|(_, engine)| engine),
                "error": self.self_test.as_ref().err(),
            },
            "verdict": self.advice(),
        })
    }
}

fn environment() -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = std::env::vars_os()
        .map(|(name, value)| {
            let text = |s: std::ffi::OsString| s.to_string_lossy().into_owned();
            (text(name), text(value))
        })
        .filter(|(name, _)| {
            name.starts_with("FLAGOSCOMM_")
                || BESIDE.contains(&name.as_str())
                || internal::foreign_variables().any(|foreign| foreign == name)
                || !internal::unknown_variables([name.as_str()].into_iter()).is_empty()
        })
        .collect();
    found.sort();
    found
}

fn huge_pages() -> Vec<(String, String)> {
    let directory = "/sys/kernel/mm/transparent_hugepage";
    let mut found = Vec::new();
    for (name, file) in [("huge pages", "enabled"), ("shared huge", "shmem_enabled")] {
        if let Ok(text) = std::fs::read_to_string(format!("{directory}/{file}")) {
            // The chosen one is in brackets.
            let chosen = text.split_whitespace().find(|word| word.starts_with('['));
            let chosen = chosen.unwrap_or("unknown").trim_matches(['[', ']']);
            found.push((name.to_owned(), chosen.to_owned()));
        }
    }
    if let Ok(text) = std::fs::read_to_string("/proc/sys/vm/nr_hugepages") {
        found.push(("reserved huge".to_owned(), text.trim().to_owned()));
    }
    found
}

/// An all-reduce between two ranks that are threads of this process.
fn self_test(limit: Duration) -> Result<(Duration, String), String> {
    let started = std::time::Instant::now();
    let id = UniqueId::new().map_err(|e| e.text().to_owned())?;
    let (sender, results) = mpsc::channel();
    for rank in 0..2 {
        let (id, sender) = (id.clone(), sender.clone());
        std::thread::spawn(move || {
            // Too late if the other end has stopped listening.
            let _ = sender.send(one_rank(&id, rank, limit));
        });
    }
    drop(sender);
    let mut engine = String::new();
    for _ in 0..2 {
        match results.recv_timeout(limit + Duration::from_secs(5)) {
            Ok(result) => engine = result?,
            Err(_) => return Err(format!("no answer in {} s", limit.as_secs() + 5)),
        }
    }
    Ok((started.elapsed(), engine))
}

/// What the data moved over.
fn one_rank(id: &UniqueId, rank: usize, limit: Duration) -> Result<String, String> {
    let options = Options {
        init_timeout: Limit::After(limit),
        collective_timeout: Limit::After(limit),
        tiers: Some("host".to_owned()),
        name: Some("doctor".to_owned()),
        ..Options::default()
    };
    let words = |e: flagos_comm::Error| format!("rank {rank}: {} ({:?})", e.text(), e.code());
    if Linked.device_count().map_err(words)? > 0 {
        // Some drivers have no stream for a thread that has set no device.
        internal::set_device(0).map_err(words)?;
    }
    let comm = Communicator::init_rank(2, id, rank, &options).map_err(words)?;
    let engine = comm.info().map_err(words)?.host_engine_text;
    let stream = Stream::create().map_err(words)?;
    let values: Vec<f32> = (0..1000).map(|i| (i * (rank + 1)) as f32).collect();
    let wanted: Vec<f32> = (0..1000).map(|i| (i * 3) as f32).collect();
    sum(&comm, &values, stream).map_err(words).and_then(|got| {
        stream.destroy().map_err(words)?;
        comm.destroy().map_err(words)?;
        if got == wanted {
            Ok(engine)
        } else {
            Err(format!("rank {rank}: the sum is wrong"))
        }
    })
}
