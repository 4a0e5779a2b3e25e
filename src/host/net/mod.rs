//! The engine for ranks of several machines: algorithms of ours over messages of a library that the
//! machines have.
//!
//! * `choice`: which library, from what all ranks say,
//! * `ucx`, `mpi`, `ucc`: UCX, MPI and UCC, each as a [`Transport`]; `versioned` and `short_tags` are what two of them have in common,
//! * `run`: one operation under way: requests, waiting, failures,
//! * `exchange`: how every collective begins: all ranks' calls are compared,
//! * `collectives`, `trees`, `p2p`: the algorithms,
//! * `staged`: collectives whose buffers are in a device's memory.
//!
//! All ranks are peers, wherever they are: between ranks of one machine it is the library's business to
//! use shared memory.

pub(crate) mod choice;
pub(super) mod collectives;
pub(super) mod exchange;
pub(crate) mod mpi;
pub(super) mod p2p;
pub(super) mod run;
mod short_tags;
pub(crate) mod staged;
#[cfg(test)]
pub(super) mod tests;
mod trees;
pub(crate) mod ucc;
pub(crate) mod ucx;
mod versioned;

use super::check::MAX_ENGINE_RANKS;
use super::engine::Engine;
use super::op::{HostOp, Mover, WaitPolicy};
use crate::error::{Code, Error, Result};
use crate::ops::lock;
use exchange::Table;
use run::{Area, Crowd, Run};
use staged::{Room, Stage};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Something that was begun: a number that means something to its transport only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(pub usize);

/// What a library does for the engine: messages between ranks, matched by sender and tag, those of one
/// sender and tag in their order. One thread at a time calls it.
pub(crate) trait Transport: Send {
    /// What it is, for people.
    fn about(&self) -> String;

    /// What stands for it in `FLAGOSCOMM_HOST_ENGINE`.
    fn key(&self) -> &'static str;

    /// The longest message that comes as a whole or not at all, whatever becomes of its sender. What may be longer, or
    /// is expected in a place that is longer, has to be of a topic of which both sides know the size.
    fn certain(&self) -> usize {
        usize::MAX
    }

    /// Begins to send; `None`: it is done already.
    ///
    /// # Safety
    /// The bytes are readable and stay as they are until the ticket is done or given up.
    unsafe fn send(
        &mut self,
        to: usize,
        tag: u64,
        from: *const u8,
        bytes: usize,
    ) -> std::result::Result<Option<Ticket>, String>;

    /// Begins to receive a message of at most so many bytes; `None`: it is done already.
    ///
    /// # Safety
    /// The bytes are writable, and nobody else touches them until the ticket is done or given up.
    unsafe fn recv(
        &mut self,
        from: usize,
        tag: u64,
        to: *mut u8,
        bytes: usize,
    ) -> std::result::Result<Option<Ticket>, String>;

    /// Whether all that was sent gets to the others even if this rank makes no call for a long time. If not,
    /// `progress` has to be called until it does.
    fn has_left(&mut self) -> bool {
        true
    }

    /// Moves on what it can; whether it moved something.
    fn progress(&mut self) -> bool;

    /// Passes time until something may have come, at most so long.
    fn sleep(&mut self, limit: Duration) {
        std::thread::sleep(limit.min(Duration::from_micros(100)));
    }

    /// How a ticket stands: `None` while it goes on. A ticket is asked for no more after it is done.
    fn done(&mut self, ticket: Ticket) -> Option<std::result::Result<(), String>>;

    /// Why nothing will come from a rank any more, if that is known.
    fn lost(&self, rank: usize) -> Option<String>;

    /// Ends everything: afterwards nothing of the messages' memory is touched any more, those included that have
    /// failed. How many messages could not be ended. Nothing else is asked of the transport from then on.
    fn give_up(&mut self, tickets: &[Ticket]) -> usize;

    /// The engine goes, in order or after a failure: nothing is asked of the transport but that it goes, too.
    /// Whether its own end sees to it that nothing of the tickets' memory is touched any more.
    fn end(&mut self, _in_order: bool) -> bool {
        true
    }
}

/// Ranks of a communicator that work together over its transport. What they tell each other is told apart by the
/// group's number from what they tell each other in other groups.
pub(crate) struct Group {
    id: u64,
    /// The ranks, in the order that is theirs in the group's operations.
    members: Vec<usize>,
    /// This rank's place among them.
    place: usize,
}

/// Numbers of groups; a tag has two bits for them, and ten for the sender.
const GROUPS: u64 = 4;
const _: () = assert!(MAX_ENGINE_RANKS <= 1 << 10);
/// The group of all ranks.
const ALL: u64 = 0;

impl Group {
    /// A group of some ranks, with a number that none of its members has for another of its groups.
    pub(in crate::host) fn new(id: u64, members: Vec<usize>, rank: usize) -> Result<Group> {
        let place = members.iter().position(|member| *member == rank);
        match place {
            Some(place) if id < GROUPS => Ok(Group { id, members, place }),
            _ => Err(Error::internal(format!(
                "rank {rank} has no place in group {id}"
            ))),
        }
    }
}

/// What one operation at a time uses.
pub(in crate::host) struct State {
    transport: Box<dyn Transport>,
    /// The transport was given up: its connections are closed.
    given_up: bool,
    /// Collectives that this rank has begun.
    sequence: u64,
    /// The headers of the present collective.
    pub(in crate::host) table: Table,
    /// Pieces of other ranks' data.
    pub(in crate::host) pieces: Area,
    /// Parts of buffers in devices' memory.
    room: Room,
    /// Small messages that are on their way although their sends are over.
    letters: Letters,
    /// Messages that this rank has sent and received, by the other rank.
    sent: Vec<u64>,
    received: Vec<u64>,
    /// Whether others want this rank's core.
    crowd: Crowd,
}

/// See [`State`]. The first that failed is kept.
#[derive(Default)]
struct Letters {
    under_way: Vec<(Ticket, usize, Area)>,
    /// To which rank it was, and why.
    failed: Option<(usize, String)>,
}

impl State {
    /// Moves on what can be moved between operations; whether all has left that this rank has sent.
    fn serve(&mut self) -> bool {
        for _ in 0..MOVES {
            if !self.transport.progress() {
                break;
            }
        }
        self.sort_letters();
        self.transport.has_left()
    }

    /// Looks which letters have left.
    fn sort_letters(&mut self) {
        let State {
            transport, letters, ..
        } = self;
        let Letters { under_way, failed } = letters;
        under_way.retain(|(ticket, to, _)| match transport.done(*ticket) {
            None => true,
            Some(outcome) => {
                if let Err(text) = outcome {
                    failed.get_or_insert((*to, text));
                }
                false
            }
        });
    }
}

/// One rank's end of an engine over messages.
pub(crate) struct NetEngine {
    shared: Arc<Shared>,
    idler: Option<JoinHandle<()>>,
}

/// What the engine and the thread have in common that serves the transport between operations.
pub(in crate::host) struct Shared {
    rank: usize,
    ranks: usize,
    all: Arc<Group>,
    /// Whether waits spin: every rank of this machine can have a core of its own.
    spins: bool,
    stage: Stage,
    about: String,
    key: &'static str,
    state: Mutex<State>,
    /// Operations that have begun.
    operations: AtomicU64,
    /// The engine goes.
    leaves: AtomicBool,
    /// Whether there is a failure or an abort, without a lock.
    ended: AtomicBool,
    aborted: AtomicBool,
    /// Messages could not be taken back: what they use may still be used.
    left_behind: AtomicBool,
    failure: Mutex<Option<Error>>,
}

/// Between two looks at a transport, soon and long after an operation, and while there is one.
const SOON: Duration = Duration::from_millis(1);
const LATE: Duration = Duration::from_millis(50);
const BUSY: Duration = Duration::from_millis(2);
/// Calls of progress at one look, while there is something to do.
const MOVES: usize = 32;

/// Serves the transport while no operation does: other ranks may need an answer of its library's, to
/// connect for example, when this one has all that it waited for. An operation is over here when all that
/// this rank sends is with the library; what is left of it there goes on its way from here, as to wait for
/// that would cost every operation a round trip.
fn serve(shared: &Shared) {
    let (mut seen, mut since) = (0, Instant::now());
    while !shared.leaves.load(Ordering::Acquire) {
        let operations = shared.operations.load(Ordering::Relaxed);
        if operations != seen {
            (seen, since) = (operations, Instant::now());
        }
        let mut pause = BUSY;
        if let Ok(mut state) = shared.state.try_lock() {
            // In this order: an operation that fails gives the transport up before it leaves the state.
            if !shared.ended.load(Ordering::Acquire) && !state.serve() {
                since = Instant::now();
            }
            pause = (since.elapsed() / 8).clamp(SOON, LATE);
        }
        std::thread::park_timeout(pause);
    }
}

impl NetEngine {
    /// One rank's engine over a transport that reaches all ranks, without memory for device buffers.
    #[cfg(test)]
    pub(crate) fn new(
        transport: Box<dyn Transport>,
        rank: usize,
        ranks: usize,
        spins: bool,
    ) -> Result<NetEngine> {
        NetEngine::with_stage(transport, rank, ranks, spins, Stage::new(0))
    }

    /// One rank's engine over a transport that reaches all ranks.
    pub(crate) fn with_stage(
        transport: Box<dyn Transport>,
        rank: usize,
        ranks: usize,
        spins: bool,
        stage: Stage,
    ) -> Result<NetEngine> {
        let table = Table::new(ranks, transport.certain())?;
        let shared = Arc::new(Shared {
            rank,
            ranks,
            all: Arc::new(Group::new(ALL, (0..ranks).collect(), rank)?),
            spins,
            stage,
            about: transport.about(),
            key: transport.key(),
            state: Mutex::new(State {
                transport,
                given_up: false,
                sequence: 0,
                table,
                pieces: Area::default(),
                room: Room::default(),
                letters: Letters::default(),
                sent: vec![0; ranks],
                received: vec![0; ranks],
                crowd: Crowd::default(),
            }),
            operations: AtomicU64::new(0),
            leaves: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
            left_behind: AtomicBool::new(false),
            failure: Mutex::new(None),
        });
        let served = Arc::clone(&shared);
        let idler = std::thread::Builder::new()
            .name("flagos-net".into())
            .spawn(move || serve(&served))
            .map_err(|e| Error::system("no thread for the host tier's engine", e))?;
        Ok(NetEngine {
            shared,
            idler: Some(idler),
        })
    }

    /// For an engine that stands on this one.
    pub(in crate::host) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Proves that all ranks reach each other.
    pub(crate) fn prove(&self, wait: &dyn WaitPolicy) -> Result<()> {
        self.shared.with_run(wait, |run| run.prove())
    }
}

impl Drop for NetEngine {
    fn drop(&mut self) {
        self.shared.leaves.store(true, Ordering::Release);
        if let Some(idler) = self.idler.take() {
            idler.thread().unpark();
            // It holds the transport otherwise, which has to go here and now.
            let _ = idler.join();
        }
        let mut state = lock(&self.shared.state);
        let in_order = !self.shared.ended.load(Ordering::Acquire);
        if !state.transport.end(in_order) {
            std::mem::take(&mut state.letters.under_way)
                .into_iter()
                .for_each(|(_, _, area)| std::mem::forget(area));
        }
    }
}

impl Shared {
    /// Whether every rank of this machine can have a core of its own.
    pub(in crate::host) fn has_cores(&self) -> bool {
        self.spins
    }

    fn check_failure(&self) -> Result<()> {
        if !self.ended.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.aborted.load(Ordering::Acquire) {
            return Err(Error::new(
                Code::Aborted,
                "the communicator was aborted on this rank",
            ));
        }
        lock(&self.failure).clone().map_or(Ok(()), Err)
    }

    fn poison(&self, error: &Error) {
        lock(&self.failure).get_or_insert_with(|| error.clone());
        self.ended.store(true, Ordering::Release);
    }

    /// Runs something with the transport.
    pub(in crate::host) fn with_run(
        &self,
        wait: &dyn WaitPolicy,
        work: impl FnOnce(&mut Run<'_>) -> Result<()>,
    ) -> Result<()> {
        self.operations.fetch_add(1, Ordering::Relaxed);
        let mut state = lock(&self.state);
        let mut run = Run::new(self, &mut state, wait);
        let result = work(&mut run);
        run.finish(result)
    }
}

impl Engine for NetEngine {
    fn rank(&self) -> usize {
        self.shared.rank
    }

    fn ranks(&self) -> usize {
        self.shared.ranks
    }

    fn messaging_ranks(&self) -> usize {
        usize::MAX
    }

    fn is_far(&self) -> bool {
        true
    }

    fn stages(&self, op: &HostOp) -> bool {
        self.shared.ranks > 1 && staged::stages(op.kind)
    }

    fn set_mover(&self, mover: Arc<dyn Mover>) {
        self.shared.stage.set_mover(mover);
    }

    #[cfg(test)]
    fn has_mover(&self) -> bool {
        self.shared.stage.has_mover()
    }

    fn about(&self) -> String {
        self.shared.about.clone()
    }

    fn key(&self) -> String {
        self.shared.key.to_owned()
    }

    fn has_left_behind(&self) -> bool {
        self.shared.left_behind.load(Ordering::Acquire)
    }

    unsafe fn collective(&self, op: &HostOp, wait: &dyn WaitPolicy) -> Result<()> {
        // SAFETY: handed down from the caller.
        self.shared
            .with_run(wait, |run| unsafe { run.collective(op) })
    }

    unsafe fn lone_transfer(&self, op: &HostOp, wait: &dyn WaitPolicy) -> Result<()> {
        // SAFETY: handed down from the caller.
        self.shared
            .with_run(wait, |run| unsafe { run.transfer_alone(op) })
    }

    unsafe fn grouped_transfers(&self, ops: &[&HostOp], wait: &dyn WaitPolicy) -> Result<()> {
        // SAFETY: handed down from the caller.
        self.shared
            .with_run(wait, |run| unsafe { run.transfers(ops) })
    }

    fn check_failure(&self) -> Result<()> {
        self.shared.check_failure()
    }

    fn poison(&self, error: &Error) {
        self.shared.poison(error);
    }

    fn end_by(&self, deed: &str) {
        self.shared
            .poison(&Error::new(Code::Aborted, format!("this rank {deed}")));
    }

    fn abort(&self) {
        self.shared.aborted.store(true, Ordering::Release);
        self.shared.ended.store(true, Ordering::Release);
    }
}
