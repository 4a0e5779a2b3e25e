//! `perf`: measures the operations and checks their results.

pub mod args;
mod buffer;
mod local;
mod numbers;
pub mod operation;
mod output;
mod participant;
mod plot;
mod reference;
mod report;
mod run;
mod watch;

use crate::children::{Family, Patience, describe};
use crate::library;
use crate::ranks::coord::{Coord, Link};
use crate::ranks::join;
use crate::{FAILED, USAGE};
use args::PerfArgs;
use participant::{Participant, device_count, participate};
use std::os::fd::AsRawFd;
use std::sync::mpsc;
use std::time::Duration;

/// Roots are below this while the number of ranks is not known.
const MOST_RANKS: usize = 1024;

/// An exit code and the text for stderr.
type Failure = (u8, String);

fn usage(text: String) -> Failure {
    (USAGE, text)
}

fn failed(text: String) -> Failure {
    (FAILED, text)
}

/// Runs the command; the result is this process's exit code.
///
/// # Errors
/// An exit code and the text that explains it.
pub fn run(args: &PerfArgs) -> Result<u8, Failure> {
    if let (Some(rank), Some(ranks)) = (args.as_rank, args.as_ranks) {
        return child(args, rank, ranks);
    }
    // Everything that does not depend on the number of ranks is refused before there are any.
    args.work(args.ranks.map_or(MOST_RANKS, |n| n as usize))
        .map_err(usage)?;
    check_files(args).map_err(usage)?;
    let own_ranks = args.ranks.is_some() || args.threads || args.single_thread;
    let launched = join::detect(&|name| std::env::var(name).ok()).map_err(usage)?;
    match launched {
        Some(launched) if !own_ranks => joined(args, &launched),
        _ if args.threads => threads(args),
        _ if args.single_thread => single_thread(args),
        _ => processes(args),
    }
}

fn check_files(args: &PerfArgs) -> Result<(), String> {
    for (option, path) in [("--json", &args.json), ("--plot", &args.plot)] {
        let Some(path) = path else { continue };
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        if parent.is_some_and(|parent| !parent.is_dir()) {
            return Err(format!("{option} {}: no such directory", path.display()));
        }
    }
    if let Some(path) = &args.lib
        && !path.is_file()
    {
        return Err(format!("--lib {}: no such file", path.display()));
    }
    Ok(())
}

fn open(args: &PerfArgs) -> Result<std::sync::Arc<dyn library::Library>, Failure> {
    library::open(args.lib.as_deref()).map_err(|error| failed(error.text().to_owned()))
}

/// The number of ranks that the tool starts.
fn rank_count(args: &PerfArgs, library: &dyn library::Library) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    match (args.ranks, device_count(library)) {
        (Some(ranks), _) => ranks as usize,
        (None, devices) if devices >= 2 => devices,
        (None, _) => cores.clamp(2, 4),
    }
}

/// Ranks as processes: starts them, and ends when they end.
fn processes(args: &PerfArgs) -> Result<u8, Failure> {
    let system = |error: std::io::Error| failed(format!("starting the ranks: {error}"));
    // Before the library, which may start threads.
    let mut family = Family::new(Patience {
        settle: Duration::from_secs(1),
        term: Duration::from_secs(1),
    })
    .map_err(system)?;
    let ranks = match args.ranks {
        Some(ranks) => ranks as usize,
        None => rank_count(args, open(args)?.as_ref()),
    };
    args.work(ranks).map_err(usage)?;
    let (hub, others) = Coord::pairs(ranks).map_err(system)?;
    let program = std::env::current_exe().map_err(system)?;
    for rank in 0..ranks {
        let links: Vec<i32> = match rank {
            0 => hub.iter().map(AsRawFd::as_raw_fd).collect(),
            _ => vec![others[rank - 1].as_raw_fd()],
        };
        let list: Vec<String> = links.iter().map(i32::to_string).collect();
        let mut command = std::process::Command::new(&program);
        command.args(["perf", "--as-rank", &rank.to_string()]);
        command.args(["--as-ranks", &ranks.to_string()]);
        if !list.is_empty() {
            command.args(["--as-links", &list.join(",")]);
        }
        command.args(crate::arguments().skip(2));
        command.stdin(std::process::Stdio::null());
        family
            .spawn(rank, &mut command, false, &links)
            .map_err(system)?;
    }
    // A rank that ends must be the last holder of its connections.
    drop((hub, others));
    let outcome = family.run(&mut |_, _, _| {}).map_err(system)?;
    if outcome.signal.is_none()
        && let Some((rank, status)) = &outcome.first_failure
        && status.code().is_none()
    {
        return Err((outcome.code(), format!("rank {rank} {}", describe(*status))));
    }
    Ok(outcome.code())
}

/// How the ranks are called in the header, after binding this one to its cores.
fn bound_mode(args: &PerfArgs, kind: &str, rank: usize, ranks: usize) -> String {
    if !args.no_bind && ranks > 1 && crate::sys::bind(rank, ranks) {
        format!("{kind} bound to cores")
    } else {
        kind.to_owned()
    }
}

/// A rank that the tool has started.
fn child(args: &PerfArgs, rank: usize, ranks: usize) -> Result<u8, Failure> {
    let work = args.work(ranks).map_err(usage)?;
    let links: Vec<Link> = args
        .as_links
        .iter()
        .map(|fd| crate::sys::inherited_stream(*fd).map(Link::Unix))
        .collect::<Result<_, _>>()
        .map_err(|error| usage(format!("--as-links: {error}")))?;
    if rank >= ranks || links.len() != if rank == 0 { ranks - 1 } else { 1 } {
        return Err(usage("--as-rank is for the tool's own use".to_owned()));
    }
    let participant = Participant {
        own: rank..rank + 1,
        ranks,
        coord: Coord::new(rank, links),
        local_rank: None,
        // Before the library, whose threads inherit it.
        mode: bound_mode(args, "processes", rank, ranks),
    };
    participate(participant, args, &work, open(args)?).map_err(failed)
}

/// A rank that a launcher has started.
fn joined(args: &PerfArgs, launched: &join::Launched) -> Result<u8, Failure> {
    let work = args.work(launched.ranks).map_err(usage)?;
    let limit = Duration::from_secs_f64(args.timeout);
    let participant = Participant {
        own: launched.rank..launched.rank + 1,
        ranks: launched.ranks,
        coord: join::meet(launched, limit).map_err(failed)?,
        local_rank: launched.local_rank,
        mode: format!("processes of {}", launched.launcher),
    };
    participate(participant, args, &work, open(args)?).map_err(failed)
}

/// All ranks in one thread.
fn single_thread(args: &PerfArgs) -> Result<u8, Failure> {
    let library = open(args)?;
    let ranks = rank_count(args, library.as_ref());
    let work = args.work(ranks).map_err(usage)?;
    let participant = Participant {
        own: 0..ranks,
        ranks,
        coord: Coord::new(0, Vec::new()),
        local_rank: None,
        mode: "one thread".to_owned(),
    };
    participate(participant, args, &work, library).map_err(failed)
}

/// Ranks as threads. The first that fails ends the process: the others may be waiting for it.
fn threads(args: &PerfArgs) -> Result<u8, Failure> {
    let library = open(args)?;
    let ranks = rank_count(args, library.as_ref());
    let work = args.work(ranks).map_err(usage)?;
    let (hub, others) =
        Coord::pairs(ranks).map_err(|error| failed(format!("starting the ranks: {error}")))?;
    let hub = Coord::new(0, hub.into_iter().map(Link::Unix).collect());
    let others = others.into_iter().enumerate();
    let others = others.map(|(i, link)| Coord::new(i + 1, vec![Link::Unix(link)]));
    let coords: Vec<Coord> = std::iter::once(hub).chain(others).collect();
    let (sender, results) = mpsc::channel();
    let mut handles = Vec::new();
    for (rank, coord) in coords.into_iter().enumerate() {
        let (args, work) = (args.clone(), work.clone());
        let (library, sender) = (library.clone(), sender.clone());
        handles.push(std::thread::spawn(move || {
            let participant = Participant {
                own: rank..rank + 1,
                ranks,
                coord,
                local_rank: None,
                mode: bound_mode(&args, "threads", rank, ranks),
            };
            let body = || participate(participant, &args, &work, library);
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body))
                .unwrap_or_else(|_| Err(format!("rank {rank} panicked")));
            // Nobody listens any more once the run has failed.
            let _ = sender.send(result);
        }));
    }
    drop(sender);
    let mut code = 0;
    for result in results {
        match result {
            Ok(one) => code = code.max(one),
            Err(text) => {
                eprintln!("flagos-comm: {text}");
                // What the others saw often says more.
                std::thread::sleep(Duration::from_millis(300));
                crate::sys::exit_now(i32::from(FAILED));
            }
        }
    }
    for handle in handles {
        let _ = handle.join();
    }
    Ok(code)
}
