//! The thread that watches the ranks of communicators on vendors' libraries, and of the host tier across
//! machines, if FLAGOSCOMM_LIVENESS asks for it: a rank inside a kernel of the vendor's waits for a dead one
//! for ever, and no call of ours is made that would notice; and a network that is cut says nothing.
//!
//! There is one for all communicators of a process, and none when there is nothing to watch.
#![forbid(unsafe_code)]

use super::end::{self, abort_vendor, is_end_of_all};
use super::table::{Handle, place};
use super::{Backend, Comm, Parts};
use crate::config;
use crate::error::Error;
use crate::ops::{CLOSED, lock};
use crate::sys::per_process::PerProcess;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// How often the channels are looked at.
const EVERY: Duration = Duration::from_millis(20);

/// One communicator. What is watched goes when its owner destroys it.
struct Watched {
    handle: Handle,
    comm: Weak<Comm>,
    parts: Weak<Parts>,
}

#[derive(Default)]
struct Watch {
    all: Vec<Watched>,
    runs: bool,
}

fn watch() -> &'static Mutex<Watch> {
    static WATCH: PerProcess<Mutex<Watch>> = PerProcess::new();
    WATCH.get_or_init(Mutex::default)
}

/// The limit in milliseconds that this rank asks for, as the ranks compare it; 0 is none.
pub(crate) fn agreed_ms() -> u32 {
    let limit = config::get().liveness;
    limit.map_or(0, |limit| {
        u32::try_from(limit.as_millis()).unwrap_or(u32::MAX)
    })
}

/// Watches a communicator, if the ranks have agreed to be watched.
pub(crate) fn start(handle: Handle, comm: &Arc<Comm>, parts: &Arc<Parts>) {
    let limit = parts.infos[comm.rank() as usize].liveness_ms;
    // On one machine the kernel tells of every death.
    let near = matches!(&parts.backend, Backend::Host(engine) if !engine.is_far());
    if limit == 0 || near {
        return;
    }
    lock(&parts.channel).start_beats(Duration::from_millis(limit.into()));
    let mut watch = lock(watch());
    watch.all.push(Watched {
        handle,
        comm: Arc::downgrade(comm),
        parts: Arc::downgrade(parts),
    });
    if !watch.runs {
        let spawned = std::thread::Builder::new()
            .name("flagos-watch".into())
            .stack_size(256 << 10)
            .spawn(run);
        match spawned {
            Ok(_) => watch.runs = true,
            Err(e) => log::warn!("no thread to watch the ranks (FLAGOSCOMM_LIVENESS): {e}"),
        }
    }
}

fn run() {
    loop {
        let now: Vec<(Handle, Arc<Comm>, Arc<Parts>)> = {
            let mut watch = lock(watch());
            watch
                .all
                .retain(|w| place(w.handle).is_own(w.handle) && w.parts.strong_count() > 0);
            if watch.all.is_empty() {
                watch.runs = false;
                return;
            }
            let alive = |w: &Watched| Some((w.handle, w.comm.upgrade()?, w.parts.upgrade()?));
            watch.all.iter().filter_map(alive).collect()
        };
        for (handle, comm, parts) in now {
            if let Err(error) = look(handle, &parts) {
                lock(watch()).all.retain(|w| w.handle != handle);
                give_up(handle, &comm, &parts, &error);
            }
        }
        std::thread::sleep(EVERY);
    }
}

fn look(handle: Handle, parts: &Parts) -> Result<(), Error> {
    // Whoever is on the channel now looks for us, and shows that this rank is alive.
    let Ok(mut channel) = parts.channel.try_lock() else {
        return Ok(());
    };
    channel.beat();
    end::look(handle, parts, &mut channel)
}

fn give_up(handle: Handle, comm: &Comm, parts: &Parts, error: &Error) {
    // A call of this rank may have failed first, by a deadline or because the ranks disagree: that is
    // no reason to end the vendor's work.
    if !is_end_of_all(error) {
        return;
    }
    log::warn!("{}: {error}; its work is aborted", comm.label());
    parts.record_failure(error);
    if let Backend::Host(engine) = &parts.backend {
        // Every wait looks there.
        engine.poison(error);
        return;
    }
    place(handle).target.end(error.clone());
    place(handle).target.set_ops(&CLOSED);
    if let Some(native) = parts.native() {
        abort_vendor(handle, comm, native);
    }
}
