//! One participant of a run: a process or thread with one rank, or the one thread with all.
#![forbid(unsafe_code)]

use super::args::{Memory, PerfArgs, Work};
use super::buffer::Place;
use super::local::{LARGEST_OFFSET, Local, Locals, Parts};
use super::output::Output;
use super::report::{Header, Report, column_lines};
use super::run::{Run, largest_operand};
use super::watch::Watch;
use crate::library::{Library, Setup, version_text};
use crate::ranks::coord::Coord;
use crate::sys;
use crate::words::amount;
use flagos_comm::{CommInfo, Error};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Who a participant is.
pub struct Participant {
    /// Its ranks, consecutive.
    pub own: std::ops::Range<usize>,
    /// All ranks.
    pub ranks: usize,
    /// The connection to the others.
    pub coord: Coord,
    /// Rank on this machine, if a launcher told.
    pub local_rank: Option<usize>,
    /// How the ranks were started.
    pub mode: String,
}

/// What the participants know about each other's machines.
struct Survey {
    /// Index of the first own rank among the ranks of this machine.
    local_rank: usize,
    /// Names of the machines.
    hosts: Vec<String>,
    /// Whether all ranks share memory, as far as can be told from here.
    share_memory: bool,
    /// Whether every rank can have a device of its own.
    devices_suffice: bool,
    /// A sentence about ranks and devices.
    choice: String,
}

fn explain(what: &str) -> impl Fn(Error) -> String + '_ {
    move |error| format!("{what}: {} ({:?})", error.text(), error.code())
}

/// Asks for the number of devices; no driver is none.
pub fn device_count(library: &dyn Library) -> usize {
    library
        .device_count()
        .map_or(0, |count| usize::try_from(count).unwrap_or(0))
}

fn survey(p: &mut Participant, devices: usize) -> Result<Survey, String> {
    let own = json!({
        "identity": sys::host_identity(),
        "name": sys::host_name(),
        "said": sys::said_machine(),
        "ranks": p.own.len(),
        "devices": devices,
    });
    let all = p.coord.all_gather(own.to_string().into_bytes())?;
    let all: Vec<Value> = all
        .iter()
        .map(|bytes| serde_json::from_slice(bytes).map_err(|e| e.to_string()))
        .collect::<Result<_, _>>()?;
    let share_memory = all.iter().all(|one| {
        ["identity", "said"]
            .iter()
            .all(|name| one[*name] == own[*name])
    });
    let number = |one: &Value, name: &str| one[name].as_u64().unwrap_or(0) as usize;
    let here = |one: &&Value| one["identity"] == own["identity"];
    let before = all.iter().take(p.coord.index()).filter(here);
    let local_rank = before.map(|one| number(one, "ranks")).sum();
    let mut machines: Vec<(&Value, String, usize, usize)> = Vec::new();
    for one in &all {
        let (ranks, devices) = (number(one, "ranks"), number(one, "devices"));
        match machines
            .iter_mut()
            .find(|machine| machine.0 == &one["identity"])
        {
            Some(machine) => {
                machine.2 += ranks;
                machine.3 = machine.3.min(devices);
            }
            None => {
                let name = one["name"].as_str().unwrap_or("unknown").to_owned();
                machines.push((&one["identity"], name, ranks, devices));
            }
        }
    }
    let short = machines.iter().find(|machine| machine.3 < machine.2);
    let choice = match short {
        None => format!("every one of the {} ranks has a device of its own", p.ranks),
        Some((_, _, _, 0)) => "the host tier is used: there is no device".to_owned(),
        Some((_, name, ranks, devices)) => {
            let s = if *devices == 1 { "" } else { "s" };
            format!("the host tier is used: {ranks} ranks but {devices} device{s} on {name}")
        }
    };
    let devices_suffice = short.is_none();
    Ok(Survey {
        local_rank,
        hosts: machines.into_iter().map(|machine| machine.1).collect(),
        share_memory,
        devices_suffice,
        choice,
    })
}

/// Makes the communicator and runs the work. The number is the process's exit code.
///
/// # Errors
/// A sentence about what went wrong.
pub fn participate(
    mut p: Participant,
    args: &PerfArgs,
    work: &Work,
    library: Arc<dyn Library>,
) -> Result<u8, String> {
    let started = Instant::now();
    let limit = Duration::from_secs_f64(args.timeout);
    let watch = Watch::start(format!("rank {}", p.own.start), limit);
    let devices = device_count(library.as_ref());
    watch.step("meeting the other ranks");
    let place = survey(&mut p, devices)?;
    let (tiers, choice) = choose(args, &place);

    // The device is made current before anything else is asked of the library.
    let first = p.local_rank.unwrap_or(place.local_rank);
    let device = |i: usize| (devices > 0).then(|| ((first + i) % devices) as i32);
    if let Some(device) = device(0) {
        library
            .set_device(device)
            .map_err(explain(&format!("rank {}: device {device}", p.own.start)))?;
    }

    watch.step("init");
    let setup = Setup {
        tiers,
        timeout: limit,
        device: None,
    };
    let comms = if p.own.len() == p.ranks && p.ranks > 1 {
        let list: Vec<i32> = (0..p.ranks).filter_map(device).collect();
        let list = place.devices_suffice.then_some(list.as_slice());
        library
            .init_all(p.ranks, list, &setup)
            .map_err(explain("init of all ranks in one thread"))?
    } else {
        let id = match p.coord.is_hub() {
            true => library.unique_id().map_err(explain("unique id"))?.to_vec(),
            false => Vec::new(),
        };
        let id: [u8; 256] = p
            .coord
            .broadcast(id)?
            .try_into()
            .map_err(|_| "the unique id came in a wrong size")?;
        let rank = p.own.start;
        let comm = library
            .init_rank(p.ranks, &id, rank, &setup)
            .map_err(explain(&format!("rank {rank}: init")))?;
        vec![comm]
    };
    let info = comms[0].info().map_err(explain("communicator info"))?;
    let host_tier = info.tier == 3;
    let queued_barrier = info.stream_kind == 2;
    let memory = match (args.memory, host_tier, devices) {
        (Memory::Host, ..) | (Memory::Auto, true, _) => Place::Host,
        (_, _, 0) => Place::Shared,
        _ => Place::Device,
    };

    watch.step("buffers");
    let bytes = largest_operand(args, work, p.ranks);
    let mut locals = Vec::new();
    for (i, comm) in comms.into_iter().enumerate() {
        let rank = p.own.start + i;
        let device = device(i);
        if let Some(device) = device.filter(|_| p.own.len() > 1) {
            library.set_device(device).map_err(explain("device"))?;
        }
        let stream = if args.blocking_stream {
            std::ptr::null_mut()
        } else {
            library.stream_create().map_err(explain("stream"))?
        };
        let parts = Parts {
            rank,
            comm,
            stream,
            device,
        };
        let local = Local::new(&library, parts, memory, bytes);
        locals.push(local.map_err(explain(&format!(
            "rank {rank} can't have two buffers of {}; take a smaller -e",
            amount((bytes + LARGEST_OFFSET) as u64)
        )))?);
    }
    let mut locals = Locals::new(library.clone(), locals, args.corrupt);
    let mut output = Output::new(p.coord.is_hub());
    let header = header(&p, args, &place, info, choice, memory, library.as_ref());
    for line in header.lines().iter().chain(&column_lines()) {
        output.line(line)?;
    }
    let mut run = Run {
        args,
        work,
        ranks: p.ranks,
        coord: &mut p.coord,
        locals: &mut locals,
        host_tier,
        queued_barrier,
        one_machine: place.hosts.len() == 1,
        rounds_once: host_tier && place.share_memory,
        watch: &watch,
        output: &mut output,
    };
    let steps = run.steps();
    run.output.progress(steps);
    let rows = run.rows()?;
    let checks = if args.checks() {
        run.checks()?
    } else {
        Vec::new()
    };
    output.finish();

    watch.step("the end");
    p.coord.barrier()?;
    locals
        .destroy(!args.blocking_stream)
        .map_err(explain("destroy"))?;
    p.coord.barrier()?;
    if !p.coord.is_hub() {
        return Ok(0);
    }
    let report = Report {
        header,
        rows,
        checks,
        details: output.details(),
        seconds: started.elapsed().as_secs_f64(),
    };
    output.line(&report.last_line())?;
    write_files(args, &report)?;
    Ok(u8::from(report.wrong() > 0 || report.nothing_checked()))
}

/// The tiers to ask for, and the sentence that says why.
fn choose(args: &PerfArgs, place: &Survey) -> (Option<String>, String) {
    if let Some(tiers) = &args.tiers {
        return (
            Some(tiers.clone()),
            format!("tiers {tiers} as asked for with --tiers"),
        );
    }
    if let Some(tiers) = std::env::var_os("FLAGOSCOMM_TIERS").filter(|tiers| !tiers.is_empty()) {
        let tiers = tiers.to_string_lossy();
        return (None, format!("tiers {tiers} as FLAGOSCOMM_TIERS says"));
    }
    if place.devices_suffice {
        let text = format!("{}: the library chooses the tier", place.choice);
        return (None, text);
    }
    (Some("host".to_owned()), place.choice.clone())
}

fn header(
    p: &Participant,
    args: &PerfArgs,
    place: &Survey,
    info: CommInfo,
    choice: String,
    memory: Place,
    library: &dyn Library,
) -> Header {
    let stream = match (args.blocking_stream, info.stream_kind) {
        (true, 1) => "the vendor's default stream",
        (true, _) => "blocking calls (NULL stream)",
        (false, 1) => "a vendor's stream per rank",
        (false, _) => "a host stream per rank",
    };
    Header {
        version: version_text(library.version_code()),
        origin: library.origin(),
        info,
        ranks: p.ranks,
        mode: p.mode.clone(),
        hosts: place.hosts.clone(),
        cores: sys::processors(),
        choice,
        memory: match memory {
            Place::Host => "ordinary memory",
            Place::Device => "device memory of flagosMemAlloc",
            Place::Shared => "shared memory of flagosMemAlloc",
        }
        .to_owned(),
        stream: stream.to_owned(),
        check: args.checks(),
    }
}

fn write_files(args: &PerfArgs, report: &Report) -> Result<(), String> {
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&report.json()).map_err(|e| e.to_string())?;
        std::fs::write(path, text + "\n")
            .map_err(|error| format!("--json {}: {error}", path.display()))?;
    }
    if let Some(path) = &args.plot {
        super::plot::write(report, path)?;
    }
    Ok(())
}
