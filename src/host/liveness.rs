//! What a rank of the host tier asks while it waits: was it aborted, is the peer still there, is
//! the time over?
#![forbid(unsafe_code)]

use super::op::WaitPolicy;
use crate::control::channel::{Channel, Peer};
use crate::control::patience::AbortFlag;
use crate::error::{Code, Error, Result};
use crate::sys::process::{ProcessWatch, has_gone};
use crate::words::ranks_named;
use std::cell::RefCell;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How often the control channel is looked at, and how often the peers' processes.
const CHANNEL_EVERY: Duration = Duration::from_millis(5);
const PROCESSES_EVERY: Duration = Duration::from_millis(15);
/// A peer that has gone may have done its part before; its part is looked for this long.
const LAST_LOOK: Duration = Duration::from_millis(40);
/// So long if it has left in order and is on another machine: then all of its part is on its way.
const FAR_LOOK: Duration = Duration::from_secs(1);
/// How long the telling of a failure waits for whoever is on the channel.
const TELL: Duration = Duration::from_millis(50);
/// A wait that lasts this long is told to the log, then every so often.
const FIRST_NEWS: Duration = Duration::from_secs(10);
const NEWS_EVERY: Duration = Duration::from_secs(60);

/// A rank's process, as far as it can be watched from here.
#[derive(Clone, Debug)]
pub(crate) struct PeerProcess {
    pub pid: u32,
    pub start_time: u64,
    /// In this pid namespace, and not this process itself.
    pub watchable: bool,
}

#[derive(Default)]
struct Seen {
    watches: Vec<Option<Option<ProcessWatch>>>,
    /// When each rank was first seen to be gone, and how.
    gone: Vec<Option<Gone>>,
}

struct Gone {
    since: Instant,
    in_order: bool,
    how: String,
}

/// The ranks of one communicator, watched from one of them.
pub(crate) struct Liveness {
    channel: Arc<Mutex<Channel>>,
    abort: AbortFlag,
    processes: Vec<PeerProcess>,
    limit: Option<Duration>,
    /// Between machines data takes its time.
    far: bool,
    seen: RefCell<Seen>,
}

impl Liveness {
    pub(crate) fn new(
        channel: Arc<Mutex<Channel>>,
        abort: AbortFlag,
        processes: Vec<PeerProcess>,
        limit: Option<Duration>,
        far: bool,
    ) -> Liveness {
        let n = processes.len();
        let mut seen = Seen::default();
        seen.watches.resize_with(n, || None);
        seen.gone.resize_with(n, || None);
        Liveness {
            channel,
            abort,
            processes,
            limit,
            far,
            seen: RefCell::new(seen),
        }
    }

    /// The policy of the waits of one operation.
    pub(crate) fn of<'a>(&'a self, what: &'a dyn Fn() -> String) -> OperationWait<'a> {
        let times = Times {
            started: None,
            channel: None,
            processes: None,
            news: FIRST_NEWS,
        };
        OperationWait {
            liveness: self,
            what,
            times: RefCell::new(times),
        }
    }

    /// Tells the other ranks of a failure, unless somebody is on the channel who does not give way.
    fn tell(&self, error: &Error) {
        // This rank's own abort tells them itself.
        if self.abort.is_set() {
            return;
        }
        let until = Instant::now() + TELL;
        loop {
            match self.channel.try_lock() {
                // Who has ended the operations has told all ranks.
                Ok(channel) if channel.ended().is_err() => return,
                // The channel is to go on. What that rank says there, others may hear through this one only.
                Ok(mut channel) if error.is_announced() => {
                    if channel.look().is_err() || channel.ended().is_err() {
                        return;
                    }
                }
                Ok(mut channel) => return channel.announce_failure(error),
                Err(_) => {}
            }
            if Instant::now() >= until {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn look_at_channel(&self) -> Result<()> {
        // Somebody else is on the channel: it looks for us.
        let Ok(mut channel) = self.channel.try_lock() else {
            return Ok(());
        };
        channel.look()?;
        channel.beat();
        channel.ended()
    }

    /// How a rank has gone, if the control channel tells it within a moment.
    fn told_of(&self, rank: u32) -> Option<String> {
        let until = Instant::now() + TELL;
        loop {
            if let Ok(channel) = self.channel.try_lock() {
                return how_gone(channel.peer(rank), || channel.who(rank));
            }
            if Instant::now() >= until {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn gone(&self, waiting_for: &[u32]) -> Option<String> {
        let seen = &mut *self.seen.borrow_mut();
        if waiting_for.is_empty() {
            // Data moves: the last looks begin anew.
            seen.gone.fill_with(|| None);
        }
        for rank in waiting_for {
            let index = *rank as usize;
            let Some(process) = self.processes.get(index) else {
                continue;
            };
            if seen.gone[index].is_none() {
                // Never wait for the channel: whoever is on it (a split, say) may wait for this very
                // operation on another rank.
                let (peer, who) = match self.channel.try_lock() {
                    Ok(channel) => (channel.peer(*rank).clone(), channel.who(*rank)),
                    Err(_) => (Peer::Here, format!("rank {rank}")),
                };
                let in_order = matches!(peer, Peer::Left(_));
                let how = match peer {
                    Peer::Here if process.watchable => {
                        let watch = seen.watches[index].get_or_insert_with(|| {
                            ProcessWatch::open(process.pid, process.start_time)
                        });
                        let ended = match watch {
                            Some(watch) => watch.ended(),
                            None => has_gone(process.pid, process.start_time),
                        };
                        ended.then(|| format!("{who} has died"))
                    }
                    peer => how_gone(&peer, || who),
                };
                seen.gone[index] = how.map(|how| Gone {
                    since: Instant::now(),
                    in_order,
                    how,
                });
            }
            if let Some(gone) = &seen.gone[index] {
                let look = match self.far && gone.in_order {
                    true => FAR_LOOK,
                    false => LAST_LOOK,
                };
                if gone.since.elapsed() > look {
                    return Some(gone.how.clone());
                }
            }
        }
        None
    }
}

/// What the control channel tells of a rank that has gone.
fn how_gone(peer: &Peer, who: impl FnOnce() -> String) -> Option<String> {
    match peer {
        Peer::Left(_) => Some(format!("{} has left (destroyed its communicator)", who())),
        Peer::Dead(text) => Some(text.clone()),
        Peer::Here => None,
    }
}

struct Times {
    started: Option<Instant>,
    channel: Option<Instant>,
    processes: Option<Instant>,
    news: Duration,
}

/// See [`Liveness::of`].
pub(crate) struct OperationWait<'a> {
    liveness: &'a Liveness,
    what: &'a dyn Fn() -> String,
    times: RefCell<Times>,
}

fn due(last: &mut Option<Instant>, now: Instant, every: Duration) -> bool {
    let due = last.is_some_and(|last| now.duration_since(last) >= every);
    if due || last.is_none() {
        *last = Some(now);
    }
    due
}

impl WaitPolicy for OperationWait<'_> {
    fn gone(&self, rank: u32) -> Option<String> {
        let told = self.liveness.told_of(rank)?;
        Some(format!("{told} during {}", (self.what)()))
    }

    fn failed(&self, error: &Error) {
        self.liveness.tell(error);
    }

    fn check(&self, waiting_for: &dyn Fn() -> Vec<u32>) -> Result<()> {
        let liveness = self.liveness;
        let what = self.what;
        if liveness.abort.is_set() {
            return Err(Error::new(Code::Aborted, format!("{} was aborted", what())));
        }
        let now = Instant::now();
        let mut times = self.times.borrow_mut();
        let started = *times.started.get_or_insert(now);
        if due(&mut times.channel, now, CHANNEL_EVERY) {
            liveness.look_at_channel()?;
        }
        if due(&mut times.processes, now, PROCESSES_EVERY)
            && let Some(how) = liveness.gone(&waiting_for())
        {
            return Err(Error::new(
                Code::RemoteError,
                format!("{how} during {}", what()),
            ));
        }
        let waited = now.duration_since(started);
        if liveness.limit.is_some_and(|limit| waited >= limit) {
            let missing = match waiting_for() {
                none if none.is_empty() => String::from("data still moved"),
                ranks => format!("missing: {}", ranks_named(ranks)),
            };
            return Err(Error::new(
                Code::Timeout,
                format!(
                    "timed out after {:.3} s in {}; {missing} (the limit: \
                     FLAGOSCOMM_COLLECTIVE_TIMEOUT, or the configuration's)",
                    waited.as_secs_f64(),
                    what(),
                ),
            ));
        }
        if waited >= times.news && !waiting_for().is_empty() {
            times.news = waited + NEWS_EVERY;
            log::warn!(
                "{} has waited {:.0} s for {}",
                what(),
                waited.as_secs_f64(),
                ranks_named(waiting_for())
            );
        }
        Ok(())
    }
}
