//! Work in the others' buffers, where they are.
//!
//! A buffer of another rank can be reached in three ways: if the ranks are threads of one process, by its
//! address; if it lies in the heap of its process, in this process' mapping of that heap; else by asking
//! the kernel for a copy (process_vm_readv), through a scratch area that stays in the cache where the data is
//! reduced. The first two are always better than passing the data through the shared segment. The third
//! depends on where the ranks run, so both ways are tried on the caller's own operations and timed, again
//! every so often.
//!
//! All ranks choose the same way without asking each other: every rank announces with its header where its
//! buffers are and what the last timed operation cost it, and the choice follows from what all have
//! announced. Only what a rank must try out is asked, once: whether it can map a heap, and whether it may read
//! the others.
//!
//! A rank that is at work in the others' buffers shows it. One whose operation fails gives its buffers back to
//! its caller only when no other rank is in them any more.
//!
//! That can't be waited for where a rank is a process that was stopped. What it reads does no harm: its
//! operation fails as soon as it looks. But of an all-reduce in the heap, ranks write their parts of the
//! result into the others' buffers, and such a rank may go on with that at any time. So
//!
//! * others write only whole pages of a buffer: no byte beside it, which the program may use meanwhile;
//!   each rank fetches the edges itself;
//! * a rank counts as lending its buffer from before it announces it until the operation has ended on it
//!   without a failure ([`Loan`]), which is when all others have left;
//! * whoever is to write first shows that it is there, and then looks whether there was a failure; who
//!   has failed first publishes that, and then looks who is there (both with a fence between). So of each
//!   rank that might still write, a rank that gives up sees that it is there;
//! * if such a rank does not leave and its process has not ended, the rank that gives up takes the pages
//!   out of its heap before it returns ([`heap::Heap::withdraw`]). What comes later goes to memory that no
//!   program sees, and that is used for nothing else.

use super::ShmEngine;
use super::collectives::STREAM_FROM;
use super::layout::{Fact, Side};
use super::protocol::{self, Counter, Peers};
use crate::config::{self, SingleCopy};
use crate::error::{Code, Error, Result};
use crate::host::check::{Fingerprint, Staging};
use crate::host::heap::{self, Facts, PeerHeap};
use crate::host::kernels::{Target, copy, fence};
use crate::host::local::{Sources, move_own, offset};
use crate::host::op::{HostOp, WaitPolicy};
use crate::sys::memory::read_process;
use crate::sys::per_process::PerProcess;
use crate::sys::process::{self, ProcessWatch};
use crate::sys::stopwatch::Stopwatch;
use crate::types::OpKind;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::time::{Duration, Instant};

/// In an announced address: it lies in the heap of the rank's process.
const IN_HEAP: u64 = 1 << 63;

/// What is copied between two looks for a failure.
const BETWEEN_LOOKS: usize = 1 << 20;
/// What the kernel is asked for at once: it stays in the cache until it is used.
const COPY_CHUNK: usize = 128 << 10;
/// The same where it is only copied: each call costs as much as some KiB.
const COPY_AT_ONCE: usize = 2 << 20;
/// What the scratch area may hold of all ranks together, and of one at least.
const SCRATCH: usize = 512 << 10;
const LEAST_CHUNK: usize = 16 << 10;
/// What is reduced at once before it is written to the results of more than two ranks.
const RESULT_CHUNK: usize = 32 << 10;

/// Operations before the first choice between two ways, which take turns of two. Only the second of a turn is timed:
/// the first also pays for what the other way has left in the caches. Neither is the first turn of each.
const TRIALS: u32 = 12;
/// The same for later choices, where the first turns are timed.
const LATER_TRIALS: u32 = 8;
/// Operations after which the choice is made anew; many more if the other way took twice as long, as trying
/// it costs.
const RECHECK: u32 = 400;
const RECHECK_OF_FAR: u32 = 4 * RECHECK;

/// How long a rank whose operation has failed waits for ranks of other processes that are still at work in
/// its buffers.
const DEPARTURE: Duration = Duration::from_millis(500);

/// How long it may take until a process whose memory is gone is known to be dead.
const GRACE: Duration = Duration::from_secs(1);

/// From which sizes on what is done; other values are for tests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    /// Larger operations are not done in one exchange.
    pub one_exchange: usize,
    /// Where the kernel would have to copy: smaller ones go through the segment.
    pub single_copy_from: usize,
    /// Messages from this size on are left where they are.
    pub whole_message_from: usize,
    pub single_copy: SingleCopy,
    /// Tells processes apart; ranks that have the same are threads of one.
    pub process: u64,
}

impl Tuning {
    /// What this process wants.
    pub(crate) fn of_process() -> Result<Tuning> {
        Ok(Tuning {
            one_exchange: usize::MAX,
            single_copy_from: 32 << 10,
            whole_message_from: 16 << 10,
            single_copy: config::get().single_copy,
            process: own_number()?,
        })
    }
}

/// A random number that this process alone has, at an address that stays.
fn own_probe() -> Result<&'static u64> {
    static PROBE: PerProcess<std::result::Result<u64, i32>> = PerProcess::new();
    let probe = PROBE.get_or_init(|| {
        let random = process::random().map(|bytes| u64::from_ne_bytes(bytes) | 1);
        random.map_err(|error| error.raw_os_error().unwrap_or(0))
    });
    probe.as_ref().map_err(|code| {
        Error::system(
            "the kernel gave no random bytes",
            io::Error::from_raw_os_error(*code),
        )
    })
}

fn own_number() -> Result<u64> {
    own_probe().copied()
}

/// How this rank gets at a buffer.
#[derive(Clone, Copy, Debug)]
enum Reach {
    /// It can load and store at this address.
    Here(*mut u8),
    /// The kernel can copy it, from this address of that process.
    Elsewhere(u32, u64),
    /// Nothing is announced, or nothing helps.
    Not,
}

/// One kind and size of operations that can be done in two ways.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Trial {
    /// Operations since the last choice began.
    count: u32,
    /// The least cost of each way in this round; 0 for none.
    least: [u64; 2],
    chosen: bool,
    /// A choice was made before, and when the next begins.
    again: bool,
    until: u32,
}

impl Trial {
    /// Which way the next operation goes, and whether it is timed.
    pub(super) fn next(&mut self) -> (bool, bool) {
        let trials = |again| if again { LATER_TRIALS } else { TRIALS };
        if self.count == trials(self.again) {
            let [pieces, copies] = self.least;
            self.chosen = copies != 0 && copies < pieces;
            let far = pieces.max(copies) / 2 > pieces.min(copies);
            self.until = if far { RECHECK_OF_FAR } else { RECHECK };
        } else if self.count == self.until && self.until != 0 {
            *self = Trial {
                chosen: self.chosen,
                again: true,
                ..Trial::default()
            };
        }
        let count = self.count;
        self.count += 1;
        if count < trials(self.again) {
            (count % 4 >= 2, count % 2 == 1 && (self.again || count >= 4))
        } else {
            (self.chosen, false)
        }
    }

    pub(super) fn learn(&mut self, single_copy: bool, cost: u64) {
        let least = &mut self.least[usize::from(single_copy)];
        if *least == 0 || cost < *least {
            *least = cost;
        }
    }
}

/// Sizes that are tried apart, by their upper ends.
const SIZES: [usize; 5] = [48 << 10, 128 << 10, 512 << 10, 4 << 20, 32 << 20];
const CLASSES: usize = SIZES.len() + 1;
/// Those that are done in one exchange otherwise, see [`ShmEngine::may_be_copied`], and what a rank shows in it at least.
const AT_ONCE: usize = CLASSES;
const AT_ONCE_FROM: usize = 8 << 10;
const KINDS: usize = OpKind::Barrier as usize + 1;

/// What is known of messages to one rank, which go in pieces or are read by the receiver: those that go alone and
/// those of groups.
#[derive(Default, Debug)]
struct MessageTrials([[MessageTrial; CLASSES]; 2]);

/// One size of messages to one rank.
#[derive(Clone, Copy, Default, Debug)]
struct MessageTrial {
    trial: Trial,
    /// A timed message is under way.
    under_way: bool,
}

/// A message that is timed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tried {
    pub peer: usize,
    pub lone: bool,
    class: usize,
    /// It is read whole.
    whole: bool,
}

/// What an engine knows about the others' memory. Everything but `messages`, `mapped`, `readable` and `told_heap` is
/// the same on all ranks.
#[derive(Debug)]
pub(super) struct Direct {
    /// Whether all ranks are threads of this process; known after the first large collective.
    one_process: Option<bool>,
    single_copy: SingleCopy,
    /// Whether all ranks can reach the heap of a rank's process.
    heaps: Vec<Option<bool>>,
    /// Whether all ranks may ask the kernel for copies of all others' memory.
    all_readable: Option<bool>,
    trials: Box<[[Trial; CLASSES + 1]; KINDS]>,
    /// By receiver; this rank alone knows of it.
    messages: Vec<Option<Box<MessageTrials>>>,
    /// The timed operation whose cost has not been announced, and what it cost this rank.
    timed: Option<(usize, usize, bool)>,
    cost: u64,
    /// The heaps that are mapped here.
    mapped: Vec<Option<Arc<PeerHeap>>>,
    /// Which processes this one may read.
    readable: Vec<Option<bool>>,
    told_heap: bool,
    scratch: Vec<u8>,
    /// How many operations and messages went which way.
    #[cfg(test)]
    pub(super) ways: Ways,
}

/// For tests: operations that were passed through the segment, that used others' buffers without the
/// kernel's help, that pushed results there, that had the kernel copy; and messages that were read whole, that could not
/// be, and whose offer this rank has taken back.
#[cfg(test)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ways {
    pub pieces: u32,
    pub loads: u32,
    pub pushes: u32,
    pub copies: u32,
    pub messages: u32,
    pub declined: u32,
    pub taken_back: u32,
}

impl Direct {
    pub(super) fn new(ranks: usize) -> Direct {
        Direct {
            one_process: None,
            single_copy: SingleCopy::Auto,
            heaps: vec![None; ranks],
            all_readable: None,
            trials: Box::default(),
            messages: (0..ranks).map(|_| None).collect(),
            timed: None,
            cost: 0,
            mapped: vec![None; ranks],
            readable: vec![None; ranks],
            told_heap: false,
            scratch: Vec::new(),
            #[cfg(test)]
            ways: Ways::default(),
        }
    }

    /// Remembers what a timed operation cost.
    pub(super) fn note(&mut self, way: Way, clock: Option<Stopwatch>, frame: usize) {
        if let (Some(trial), Some(clock)) = (way.trial, clock) {
            self.timed = Some(trial);
            // Picoseconds per byte: sizes of one class differ.
            let cost = clock.nanoseconds().saturating_mul(1000) / frame.max(1) as u64;
            self.cost = cost.max(1);
        }
    }
}

/// The way of one operation, the same on all ranks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Way {
    /// In the others' buffers.
    direct: bool,
    /// Results are written to the others' buffers, not fetched by them.
    push: bool,
    /// The kernel has to copy.
    copies: bool,
    /// Kind, size and way of what is timed.
    trial: Option<(usize, usize, bool)>,
}

impl Way {
    /// Starts the clock of a timed operation of an engine.
    pub(super) fn clock(&self, engine: &ShmEngine) -> Option<Stopwatch> {
        self.trial.is_some().then(|| engine.stopwatch())
    }
}

/// A rank's stay in the others' buffers.
struct Presence<'a>(&'a ShmEngine);

impl<'a> Presence<'a> {
    fn enter(engine: &'a ShmEngine) -> Result<Presence<'a>> {
        engine.map.visiting(engine.rank).store(1, Relaxed);
        let presence = Presence(engine);
        // Either this rank sees a failure now, or a rank that has failed sees this one.
        std::sync::atomic::fence(SeqCst);
        engine.published_failure()?;
        Ok(presence)
    }
}

impl Drop for Presence<'_> {
    fn drop(&mut self) {
        // What was written past the caches may still be under way.
        fence();
        self.0.map.visiting(self.0.rank).store(0, Release);
    }
}

/// The others' buffers in one operation.
pub(super) struct Visit<'a> {
    engine: &'a ShmEngine,
    wait: &'a dyn WaitPolicy,
    way: Way,
    sends: Vec<Reach>,
    recvs: Vec<Reach>,
    scratch: &'a mut Vec<u8>,
    chunk: usize,
    _presence: Presence<'a>,
}

impl Visit<'_> {
    /// How much may be asked of [`Visit::sources`].
    pub(super) fn chunk(&self) -> usize {
        self.chunk
    }

    /// The contributions of `len` bytes at `at` in every rank's send buffer, in the order of ranks. They
    /// stay until the next call.
    ///
    /// # Safety
    /// Every rank's send buffer has these bytes; `len` is at most [`Visit::chunk`].
    pub(super) unsafe fn sources(&mut self, at: usize, len: usize) -> Result<Sources> {
        self.engine.published_failure()?;
        let chunk = self.chunk;
        let place = |scratch: &mut [u8], rank: usize| scratch[rank * chunk..].as_mut_ptr();
        for rank in 0..self.sends.len() {
            if let Reach::Elsewhere(pid, address) = self.sends[rank] {
                let to = place(self.scratch, rank);
                // SAFETY: the scratch area has room for a chunk of every rank.
                let read = unsafe { read_process(pid, address + at as u64, to, len) };
                read.map_err(|error| self.engine.unreadable(rank, error, self.wait))?;
            }
        }
        let scratch = self.scratch.as_ptr();
        Ok(Sources::new(self.sends.len(), |rank| {
            match self.sends[rank] {
                Reach::Here(start) => start.wrapping_add(at).cast_const(),
                _ => scratch.wrapping_add(rank * chunk),
            }
        }))
    }

    /// Copies `len` bytes at `at` of a rank's send buffer.
    ///
    /// # Safety
    /// That buffer has these bytes, and `to` is writable for them.
    pub(super) unsafe fn fetch(
        &self,
        rank: usize,
        at: usize,
        to: *mut u8,
        len: usize,
        stream: bool,
    ) -> Result<()> {
        // SAFETY: handed down from the caller.
        let fetched = unsafe { self.engine.fetch(self.sends[rank], at, to, len, stream)? };
        fetched.map_err(|error| self.engine.unreadable(rank, error, self.wait))
    }

    fn recv(&self, rank: usize, at: usize) -> Result<*mut u8> {
        match self.recvs[rank] {
            Reach::Here(start) => Ok(start.wrapping_add(at)),
            _ => Err(Error::internal(
                "a result is pushed to where it can't be stored",
            )),
        }
    }

    /// What of `bytes` bytes of a rank's receive buffer another may write.
    fn lent(&self, owner: usize, writer: usize, bytes: usize) -> Range<usize> {
        match self.recvs[owner] {
            // Threads of one process wait for each other, however long it takes.
            _ if self.engine.same_process(owner, writer) => 0..bytes,
            // Where a heap is mapped here, pages begin where they do in its process.
            Reach::Here(start) => {
                let pages = heap::whole_pages(start.addr() as u64, bytes);
                // Whole elements of every type, and cache lines of the result.
                let start = pages.start.next_multiple_of(64);
                start..(pages.end / 64 * 64).max(start)
            }
            _ => 0..0,
        }
    }
}

/// This rank's receive buffer, while others may write to it. If it goes before [`Loan::ended`], other ranks
/// may be in the middle of that, and will stop at the next look: then the failure is known to all.
pub(super) struct Loan<'a>(&'a ShmEngine);

impl Loan<'_> {
    /// All others have left the buffer, or will not come.
    pub(super) fn ended(self) {
        self.0.lent_bytes.store(0, Relaxed);
        std::mem::forget(self);
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        if self.0.published_failure().is_ok() {
            let error = Error::internal("an operation has ended before it was done");
            self.0.publish_failure(&error);
        }
        if std::thread::panicking() {
            self.0.await_departure();
        }
    }
}

/// A copy of what this rank sends, from which others may read. It stays until those are gone who have not seen that the
/// operation failed.
pub(super) struct LentCopy<'a> {
    engine: &'a ShmEngine,
    bytes: Vec<MaybeUninit<u8>>,
}

impl LentCopy<'_> {
    pub(super) fn start(&self) -> *const u8 {
        self.bytes.as_ptr().cast()
    }
}

impl Drop for LentCopy<'_> {
    fn drop(&mut self) {
        if self.engine.published_failure().is_err() {
            self.engine.await_departure();
        }
    }
}

impl ShmEngine {
    /// Keeps a copy until no other rank can be reading it.
    pub(super) fn lend_copy(&self, bytes: Vec<MaybeUninit<u8>>) -> LentCopy<'_> {
        LentCopy {
            engine: self,
            bytes,
        }
    }

    /// Says about this rank's process what others need to reach its memory.
    pub(super) fn tell_facts(&self) -> Result<()> {
        let probe = own_probe()?;
        let pid = std::process::id();
        let tell = |fact, value| self.map.fact(self.rank, fact).store(value, Relaxed);
        tell(Fact::Pid, u64::from(pid));
        tell(Fact::PidNamespace, process::namespace("pid"));
        tell(Fact::StartTime, process::start_time(pid).unwrap_or(0));
        tell(Fact::ProbeAddress, std::ptr::from_ref(probe).addr() as u64);
        tell(Fact::ProbeValue, *probe);
        tell(Fact::SingleCopy, self.tuning.single_copy as u64);
        self.map
            .fact(self.rank, Fact::Process)
            .store(self.tuning.process, Release);
        Ok(())
    }

    fn fact(&self, rank: usize, fact: Fact) -> u64 {
        self.map.fact(rank, fact).load(Relaxed)
    }

    /// Whether a rank is a thread of this process.
    fn is_here(&self, rank: usize) -> bool {
        self.map.fact(rank, Fact::Process).load(Acquire) == self.tuning.process
    }

    /// Whether two ranks are threads of one process.
    fn same_process(&self, one: usize, other: usize) -> bool {
        self.fact(one, Fact::Process) == self.fact(other, Fact::Process)
    }

    /// The process of a rank, if its number means something here.
    fn pid(&self, rank: usize) -> Option<u32> {
        let namespace = self.fact(rank, Fact::PidNamespace);
        let same = namespace != 0 && namespace == self.fact(self.rank, Fact::PidNamespace);
        let pid = self.fact(rank, Fact::Pid) as u32;
        (same && pid != 0).then_some(pid)
    }

    /// An address as it is announced.
    fn word_of(&self, direct: &mut Direct, start: *const u8, bytes: usize) -> u64 {
        let address = start.addr() as u64;
        if bytes == 0 || address & IN_HEAP != 0 {
            return 0;
        }
        let Some(heap) = heap::own().filter(|heap| heap.holds(start, bytes)) else {
            return address;
        };
        if !direct.told_heap {
            let Facts {
                base,
                fd,
                bytes,
                secret,
            } = heap.facts();
            let tell = |fact, value| self.map.fact(self.rank, fact).store(value, Relaxed);
            tell(Fact::HeapBase, base);
            tell(Fact::HeapFd, fd);
            tell(Fact::HeapBytes, bytes);
            tell(Fact::HeapSecret, secret);
            direct.told_heap = true;
        }
        address | IN_HEAP
    }

    /// Announces one buffer, before the exchange, and what the last timed operation cost.
    pub(super) fn announce_one(
        &self,
        direct: &mut Direct,
        side: Side,
        parity: usize,
        start: *const u8,
        bytes: usize,
    ) {
        let word = self.word_of(direct, start, bytes);
        self.map
            .buffer(self.rank, parity, side)
            .store(word, Relaxed);
        self.map.cost(self.rank, parity).store(direct.cost, Relaxed);
    }

    /// Announces this rank's buffers, before the exchange. Of an all-reduce, others may write to the receive
    /// buffer from then on.
    pub(super) fn announce(
        &self,
        direct: &mut Direct,
        op: &HostOp,
        bytes: usize,
        parity: usize,
    ) -> Loan<'_> {
        let at_root = |blocks: usize| {
            if op.root as usize == self.rank {
                blocks
            } else {
                0
            }
        };
        let n = self.ranks;
        let (send, recv) = match op.kind {
            OpKind::AllReduce => (1, 1),
            OpKind::Reduce => (1, at_root(1)),
            OpKind::Broadcast => (at_root(1), 0),
            OpKind::AllGather => (1, 0),
            OpKind::ReduceScatter => (n, 0),
            OpKind::Gather => (1, at_root(n)),
            OpKind::Scatter => (at_root(n), 0),
            OpKind::AllToAll => (n, n),
            _ => (0, 0),
        };
        self.announce_one(direct, Side::Send, parity, op.send, send * bytes);
        self.announce_one(direct, Side::Recv, parity, op.recv, recv * bytes);
        let lent = if op.kind == OpKind::AllReduce {
            bytes
        } else {
            0
        };
        self.lent_at.store(op.recv, Relaxed);
        self.lent_bytes.store(lent, Relaxed);
        Loan(self)
    }

    /// Asks all ranks something that each must try out; `true` if all say yes.
    fn all_say(&self, yes: bool, wait: &dyn WaitPolicy) -> Result<bool> {
        let number = self.next_leave();
        let parity = (number & 1) as usize;
        self.map
            .answer(self.rank, parity)
            .store(u64::from(yes), Relaxed);
        // Nobody answers the next question but one before all have heard the answers to this.
        protocol::leave(&self.flags(wait), number, Peers::All, || {})?;
        Ok((0..self.ranks).all(|rank| self.map.answer(rank, parity).load(Relaxed) == 1))
    }

    fn next_leave(&self) -> u64 {
        let number = self.left.load(Relaxed) + 1;
        self.left.store(number, Relaxed);
        number
    }

    /// Chooses the way of an operation, after its exchange. `frame` is what the largest buffer of a rank
    /// holds, the same on all ranks.
    pub(super) fn choose(
        &self,
        direct: &mut Direct,
        op: &HostOp,
        frame: usize,
        parity: usize,
        wait: &dyn WaitPolicy,
    ) -> Result<Way> {
        let way = self.choose_way(direct, op, frame, parity, wait)?;
        #[cfg(test)]
        {
            let ways = &mut direct.ways;
            ways.pieces += u32::from(!way.direct);
            ways.loads += u32::from(way.direct && !way.copies);
            ways.pushes += u32::from(way.push);
            ways.copies += u32::from(way.copies);
        }
        Ok(way)
    }

    fn choose_way(
        &self,
        direct: &mut Direct,
        op: &HostOp,
        frame: usize,
        parity: usize,
        wait: &dyn WaitPolicy,
    ) -> Result<Way> {
        let (ranks, root) = (self.ranks, op.root as usize);
        self.learn_cost(direct, parity);
        let one_process = match direct.one_process {
            Some(known) => known,
            None => self.learn_facts(direct),
        };
        let word = |rank, side| self.map.buffer(rank, parity, side).load(Relaxed);
        let in_heap = |rank, side| word(rank, side) & IN_HEAP != 0;
        if !one_process {
            let fresh: Vec<usize> = (0..ranks)
                .filter(|&rank| direct.heaps[rank].is_none())
                .filter(|&rank| in_heap(rank, Side::Send) || in_heap(rank, Side::Recv))
                .collect();
            if !fresh.is_empty() {
                let mapped = |&rank: &usize| self.is_here(rank) || self.map_heap(direct, rank);
                let mapped = fresh.iter().map(mapped).fold(true, |all, one| all & one);
                let agreed = self.all_say(mapped, wait)?;
                fresh
                    .iter()
                    .for_each(|&rank| direct.heaps[rank] = Some(agreed));
            }
        }
        // Nothing is announced where nothing is read.
        let loads = |rank: usize, side| {
            let mapped = in_heap(rank, side) && direct.heaps[rank] == Some(true);
            one_process || mapped || word(rank, side) == 0
        };
        let push = match op.kind {
            OpKind::AllReduce => {
                let lends = |rank| loads(rank, Side::Recv) && word(rank, Side::Recv) != 0;
                (one_process || heap::can_withdraw()) && (0..ranks).all(lends)
            }
            OpKind::Reduce | OpKind::Gather => one_process,
            _ => false,
        };
        // In place a block is sent and overwritten at once.
        let swaps = |rank: usize| {
            let same = word(rank, Side::Send) == word(rank, Side::Recv);
            op.kind == OpKind::AllToAll && same
        };
        if (0..ranks).any(swaps) {
            return Ok(Way::default());
        }
        let loads_sends = match op.kind {
            OpKind::Broadcast | OpKind::Scatter => loads(root, Side::Send),
            OpKind::Gather => (0..ranks).all(|rank| rank == root || loads(rank, Side::Send)),
            _ => (0..ranks).all(|rank| loads(rank, Side::Send)),
        };
        if loads_sends {
            return Ok(Way {
                direct: true,
                push,
                ..Way::default()
            });
        }
        if frame < self.tuning.single_copy_from || !self.may_copy(direct, wait)? {
            return Ok(Way::default());
        }
        let (kind, size) = (op.kind as usize, size_class(frame));
        let (single, timed) = match direct.single_copy {
            SingleCopy::On => (true, false),
            SingleCopy::Off => (false, false),
            SingleCopy::Auto => direct.trials[kind][size].next(),
        };
        Ok(Way {
            direct: single,
            copies: single,
            push: false,
            trial: timed.then_some((kind, size, single)),
        })
    }

    /// Learns, after an exchange, what the last timed operation has cost the slowest rank.
    fn learn_cost(&self, direct: &mut Direct, parity: usize) {
        if let Some((kind, size, single)) = direct.timed.take() {
            let costs = (0..self.ranks).map(|rank| self.map.cost(rank, parity).load(Relaxed));
            let slowest = costs.max().unwrap_or(0);
            direct.trials[kind][size].learn(single, slowest);
        }
    }

    /// Whether a collective that fits into one exchange may be faster where the kernel copies what one of two ranks shows
    /// the other: so on cores that are far from each other, as every line of a slot goes there and back.
    #[inline]
    pub(super) fn may_be_copied(&self, op: &HostOp, frame: usize) -> bool {
        let kind = matches!(
            op.kind,
            OpKind::AllGather | OpKind::AllToAll | OpKind::Broadcast
        );
        kind && frame >= AT_ONCE_FROM && self.ranks == 2 && !self.few_cores.load(Relaxed)
    }

    /// Runs such a collective: in one exchange, or by copies that the kernel makes, whichever was faster. As the way has
    /// to be known before the exchange, what the last timed operation has cost counts from the next one on.
    ///
    /// # Safety
    /// As [`Engine::run`](crate::host::engine::Engine::run); `bytes` is what `op.count` means, `frame` what a rank shows.
    pub(super) unsafe fn at_once_or_copied(
        &self,
        op: &HostOp,
        bytes: usize,
        frame: usize,
        wait: &dyn WaitPolicy,
    ) -> Result<()> {
        let direct = &mut *crate::ops::lock(&self.direct);
        let may_copy = match (direct.one_process, direct.single_copy, direct.all_readable) {
            (Some(true), _, _) | (Some(false), SingleCopy::Off, _) => Some(false),
            (Some(false), _, known) => known,
            (None, ..) => None,
        };
        let Some(true) = may_copy else {
            // SAFETY: handed down from the caller.
            unsafe { self.in_one_exchange(op, bytes, frame, wait)? };
            if may_copy.is_none() && !self.learn_facts(direct) {
                self.may_copy(direct, wait)?;
            }
            return Ok(());
        };
        let kind = op.kind as usize;
        let before = direct.trials[kind][AT_ONCE];
        let (single, timed) = match direct.single_copy {
            SingleCopy::Auto => direct.trials[kind][AT_ONCE].next(),
            _ => (true, false),
        };
        let way = Way {
            direct: single,
            copies: single,
            push: false,
            trial: timed.then_some((kind, AT_ONCE, single)),
        };
        let parity = ((self.sequence.load(Relaxed) + 1) & 1) as usize;
        self.map.cost(self.rank, parity).store(direct.cost, Relaxed);
        let clock = way.clock(self);
        // SAFETY: handed down from the caller.
        let done = unsafe {
            match single {
                true => self.copied(direct, &way, op, (bytes, frame), wait),
                false => self.in_one_exchange(op, bytes, frame, wait),
            }
        };
        if done.is_err() {
            // Other ranks have called something else, and have tried nothing.
            direct.trials[kind][AT_ONCE] = before;
            return done;
        }
        self.learn_cost(direct, parity);
        direct.note(way, clock, frame);
        Ok(())
    }

    /// # Safety
    /// As [`ShmEngine::at_once_or_copied`]; all ranks that have called the same have chosen this way.
    unsafe fn copied(
        &self,
        direct: &mut Direct,
        way: &Way,
        op: &HostOp,
        (bytes, frame): (usize, usize),
        wait: &dyn WaitPolicy,
    ) -> Result<()> {
        let (sequence, parity) = self.begin();
        // Nobody writes to the buffers of these.
        self.announce(direct, op, bytes, parity).ended();
        let says = match op.on_device.any() {
            true => Staging::ON_DEVICE,
            false => Staging::NONE,
        };
        let says = self.exchange(sequence, Fingerprint::of(op), says, wait)?;
        // Not after another exchange: then the costs may be those of what comes next.
        self.learn_cost(direct, parity);
        let word = |rank, side| self.map.buffer(rank, parity, side).load(Relaxed);
        let swaps = op.kind == OpKind::AllToAll
            && (0..self.ranks).any(|rank| word(rank, Side::Send) == word(rank, Side::Recv));
        // SAFETY: handed down from the caller; all ranks have announced their buffers, and see the same words.
        unsafe {
            if swaps || says.says(Staging::ON_DEVICE) {
                return self.in_one_exchange(op, bytes, frame, wait);
            }
            #[cfg(test)]
            {
                direct.ways.copies += 1;
            }
            match self.visit(direct, way, parity, wait)? {
                Some(visit) => self.directly(op, bytes, parity, visit),
                None => Err(Error::internal("a copy without a visit")),
            }
        }
    }

    /// After the first exchange, which all ranks enter with their facts told.
    fn learn_facts(&self, direct: &mut Direct) -> bool {
        let wants = |what: SingleCopy| {
            let what = what as u64;
            (0..self.ranks).any(|rank| self.fact(rank, Fact::SingleCopy) == what)
        };
        direct.single_copy = match (wants(SingleCopy::Off), wants(SingleCopy::On)) {
            (true, _) => SingleCopy::Off,
            (false, true) => SingleCopy::On,
            (false, false) => SingleCopy::Auto,
        };
        let one_process = (0..self.ranks).all(|rank| self.is_here(rank));
        direct.one_process = Some(one_process);
        one_process
    }

    /// Whether all ranks may have the kernel copy from all others.
    fn may_copy(&self, direct: &mut Direct, wait: &dyn WaitPolicy) -> Result<bool> {
        if direct.single_copy == SingleCopy::Off {
            return Ok(false);
        }
        if let Some(known) = direct.all_readable {
            return Ok(known);
        }
        let others = self.others().filter(|&rank| !self.is_here(rank));
        let all = others.fold(true, |all, rank| all & self.can_read(direct, rank));
        let all = self.all_say(all, wait)?;
        if !all {
            log::info!(
                "large operations pass through shared memory: the kernel does not let all ranks read \
                 each other's (process_vm_readv; see kernel.yama.ptrace_scope, seccomp and pid namespaces)"
            );
        }
        direct.all_readable = Some(all);
        Ok(all)
    }

    /// Whether this process may read that of a rank; tried once.
    fn can_read(&self, direct: &mut Direct, rank: usize) -> bool {
        if let Some(known) = direct.readable[rank] {
            return known;
        }
        let mut found = [0u8; 8];
        let read = self.pid(rank).is_some_and(|pid| {
            let address = self.fact(rank, Fact::ProbeAddress);
            // SAFETY: the array has as many bytes.
            let read = unsafe { read_process(pid, address, found.as_mut_ptr(), found.len()) };
            read.is_ok()
        });
        let readable = read && u64::from_ne_bytes(found) == self.fact(rank, Fact::ProbeValue);
        direct.readable[rank] = Some(readable);
        readable
    }

    /// Maps the heap of a rank's process, unless it is mapped. `false`: it can't be had.
    fn map_heap(&self, direct: &mut Direct, rank: usize) -> bool {
        if direct.mapped[rank].is_some() {
            return true;
        }
        let Some(pid) = self.pid(rank) else {
            return false;
        };
        let facts = Facts {
            base: self.fact(rank, Fact::HeapBase),
            fd: self.fact(rank, Fact::HeapFd),
            bytes: self.fact(rank, Fact::HeapBytes),
            secret: self.fact(rank, Fact::HeapSecret),
        };
        match heap::of_process(pid, facts) {
            Ok(heap) => direct.mapped[rank] = Some(heap),
            Err(error) => {
                log::info!(
                    "memory of flagosMemAlloc of rank {} can't be used in place: {error}",
                    self.name(rank)
                );
            }
        }
        direct.mapped[rank].is_some()
    }

    /// How this rank gets at what another has announced.
    fn reach(&self, direct: &Direct, rank: usize, word: u64) -> Reach {
        let address = word & !IN_HEAP;
        if address == 0 {
            return Reach::Not;
        }
        if self.is_here(rank) {
            return Reach::Here(std::ptr::with_exposed_provenance_mut(address as usize));
        }
        if let (true, Some(heap)) = (word & IN_HEAP != 0, &direct.mapped[rank]) {
            return heap.here(address).map_or(Reach::Not, Reach::Here);
        }
        self.pid(rank)
            .map_or(Reach::Not, |pid| Reach::Elsewhere(pid, address))
    }

    /// Begins a visit, if that is the way.
    ///
    /// # Safety
    /// All ranks have announced their buffers of this operation, as their callers promised them, and have
    /// chosen this way.
    pub(super) unsafe fn visit<'a>(
        &'a self,
        direct: &'a mut Direct,
        way: &Way,
        parity: usize,
        wait: &'a dyn WaitPolicy,
    ) -> Result<Option<Visit<'a>>> {
        if !way.direct {
            return Ok(None);
        }
        let all = |side| -> Vec<Reach> {
            (0..self.ranks)
                .map(|rank| {
                    let word = self.map.buffer(rank, parity, side).load(Relaxed);
                    self.reach(direct, rank, word)
                })
                .collect()
        };
        let (sends, recvs) = (all(Side::Send), all(Side::Recv));
        for (side, reached) in [(Side::Send, &sends), (Side::Recv, &recvs)] {
            let lost = |&rank: &usize| {
                let word = self.map.buffer(rank, parity, side).load(Relaxed);
                word != 0 && matches!(reached[rank], Reach::Not)
            };
            if let Some(rank) = (0..self.ranks).find(lost) {
                let error = Error::internal(format!("a buffer of rank {rank} can't be reached"));
                self.publish_failure(&error);
                return Err(error);
            }
        }
        let mut chunk = 4 * COPY_CHUNK;
        if way.copies {
            chunk = (SCRATCH / self.ranks / 64 * 64).clamp(LEAST_CHUNK, COPY_CHUNK);
            let bytes = chunk * self.ranks;
            if direct.scratch.len() < bytes {
                direct.scratch = vec![0; bytes];
            }
        }
        Ok(Some(Visit {
            engine: self,
            wait,
            way: *way,
            sends,
            recvs,
            scratch: &mut direct.scratch,
            chunk,
            _presence: Presence::enter(self)?,
        }))
    }

    /// Ends a visit: this rank leaves the others' buffers, and waits for those who visit its own. What is to be done with
    /// these alone, it does `meanwhile`.
    pub(super) fn leave(
        &self,
        visit: Visit<'_>,
        visitors: Peers,
        meanwhile: impl FnOnce(),
    ) -> Result<()> {
        let wait = visit.wait;
        drop(visit);
        protocol::leave(&self.flags(wait), self.next_leave(), visitors, meanwhile)
    }

    /// Runs an operation in the others' buffers.
    ///
    /// # Safety
    /// As [`Engine::run`](crate::host::engine::Engine::run), on all ranks; `bytes`, not 0, is what `op.count` means.
    pub(super) unsafe fn directly(
        &self,
        op: &HostOp,
        bytes: usize,
        parity: usize,
        mut visit: Visit<'_>,
    ) -> Result<()> {
        let (rank, root) = (self.rank, op.root as usize);
        let (send, recv) = (op.send, op.recv);
        let stream = bytes >= STREAM_FROM;
        let nobody = Peers::Only(rank);
        // Who visits this rank's buffers.
        let visitors = match op.kind {
            OpKind::Broadcast | OpKind::Scatter if rank != root => nobody,
            OpKind::Gather if visit.way.push == (rank != root) => nobody,
            OpKind::Gather if rank != root => Peers::Only(root),
            _ => Peers::All,
        };
        // This rank's block, where it is not read from anybody.
        let mut own = None;
        match op.kind {
            OpKind::AllReduce | OpKind::Reduce if visit.way.push => {
                // SAFETY: handed down from the caller.
                unsafe { self.push_reduced(op, bytes, parity, &mut visit)? };
            }
            OpKind::AllReduce if visit.way.copies => {
                // SAFETY: handed down from the caller.
                unsafe { self.pull_reduced(op, bytes, parity, &mut visit)? };
            }
            OpKind::AllReduce | OpKind::Reduce => {
                let receivers = match op.kind {
                    OpKind::Reduce => Peers::Only(root),
                    _ => Peers::All,
                };
                let wait = visit.wait;
                // SAFETY: handed down from the caller.
                unsafe {
                    self.reduce_pieces(op, bytes, parity, receivers, Some(&mut visit), wait)?;
                }
                fence();
                return Ok(());
            }
            OpKind::ReduceScatter => {
                let reducer = self.reducer(op, parity)?;
                let chunk = visit.chunk;
                for at in (0..bytes).step_by(chunk) {
                    let len = chunk.min(bytes - at);
                    // SAFETY: every rank's buffer has a block of every rank; the own one is read by this
                    // rank alone, and in place is where the result goes.
                    unsafe {
                        let sources = visit.sources(rank * bytes + at, len)?;
                        reducer.fold(Target::one(offset(recv, at), stream), &sources, len);
                    }
                }
            }
            OpKind::AllGather => {
                own = Some((offset(recv, rank * bytes), send));
                for peer in self.others() {
                    // SAFETY: the caller promised a block of every rank at `recv`.
                    unsafe { visit.fetch(peer, 0, offset(recv, peer * bytes), bytes, stream)? };
                }
            }
            OpKind::Gather if visit.way.push => {
                if rank == root {
                    // SAFETY: the caller promised a block of every rank at `recv` on the root.
                    unsafe { move_own(offset(recv, rank * bytes), send, bytes) };
                } else {
                    let own = Reach::Here(send.cast_mut());
                    let to = visit.recv(root, rank * bytes)?;
                    // SAFETY: as above, on the root; nobody else writes this rank's block.
                    let stored = unsafe { self.fetch(own, 0, to, bytes, stream)? };
                    stored.map_err(|_| Error::internal("own memory can't be read"))?;
                }
            }
            OpKind::Gather if rank == root => {
                // SAFETY: as above.
                unsafe {
                    move_own(offset(recv, rank * bytes), send, bytes);
                    for peer in self.others() {
                        visit.fetch(peer, 0, offset(recv, peer * bytes), bytes, stream)?;
                    }
                }
            }
            OpKind::Broadcast | OpKind::Scatter => {
                let at = if op.kind == OpKind::Scatter {
                    rank * bytes
                } else {
                    0
                };
                // SAFETY: the caller promised `bytes` bytes at `recv`, and on the root at `send` those, or
                // a block of every rank.
                unsafe {
                    if rank == root {
                        move_own(recv, send.wrapping_add(at), bytes);
                    } else {
                        visit.fetch(root, at, recv, bytes, stream)?;
                    }
                }
            }
            OpKind::AllToAll => {
                let at = rank * bytes;
                own = Some((offset(recv, at), send.wrapping_add(at)));
                for peer in self.others() {
                    // SAFETY: the caller promised a block of every rank at both, which are apart on all ranks.
                    unsafe { visit.fetch(peer, at, offset(recv, peer * bytes), bytes, stream)? };
                }
            }
            _ => {}
        }
        self.leave(visit, visitors, || {
            if let Some((to, from)) = own {
                // SAFETY: the caller promised a block of every rank at `recv`, and this rank's at `send`; in place it is
                // there, which the others only read.
                unsafe { move_own(to, from, bytes) };
            }
        })
    }

    /// Reduces this rank's part and writes it to the buffers of all who receive it.
    ///
    /// # Safety
    /// As [`ShmEngine::directly`], and those buffers can be stored to.
    unsafe fn push_reduced(
        &self,
        op: &HostOp,
        bytes: usize,
        parity: usize,
        visit: &mut Visit<'_>,
    ) -> Result<()> {
        let reducer = self.reducer(op, parity)?;
        let stream = bytes >= STREAM_FROM;
        let part = bytes.div_ceil(self.ranks).next_multiple_of(64);
        let start = (self.rank * part).min(bytes);
        let end = (start + part).min(bytes);
        let receivers: Vec<usize> = match op.kind {
            OpKind::Reduce => vec![op.root as usize],
            _ => (0..self.ranks).collect(),
        };
        let mut result = Vec::new();
        let mut chunk = visit.chunk;
        if receivers.len() > 2 {
            chunk = chunk.min(RESULT_CHUNK);
            result = vec![0u8; chunk];
        }
        let lent: Vec<Range<usize>> = receivers
            .iter()
            .map(|&rank| visit.lent(rank, self.rank, bytes))
            .collect();
        let mut targets = Vec::with_capacity(receivers.len());
        let mut at = start;
        while at < end {
            // As far as the same ranks get what is reduced.
            let ends = lent.iter().flat_map(|lent| [lent.start, lent.end]);
            let next = ends.filter(|&edge| edge > at).min().unwrap_or(end);
            let len = chunk.min(end - at).min(next - at);
            targets.clear();
            for (&rank, lent) in receivers.iter().zip(&lent) {
                if lent.contains(&at) {
                    targets.push(visit.recv(rank, at)?);
                }
            }
            // SAFETY: every rank's send buffer has these bytes, which only this rank reads; where a rank
            // receives in place, they are its result, which only this rank writes, after it has read. What is
            // written of other processes' buffers is what they lend: whole pages, which they take out
            // of what this process can reach before they use them for anything else.
            unsafe {
                let sources = visit.sources(at, len)?;
                #[cfg(test)]
                self.stop_while_pushing();
                match targets[..] {
                    [one] => reducer.fold(Target::one(one, stream), &sources, len),
                    [one, two] => {
                        let to = Target {
                            first: one,
                            second: two,
                            stream,
                            stream_second: stream,
                        };
                        reducer.fold(to, &sources, len);
                    }
                    _ => {
                        reducer.fold(Target::one(result.as_mut_ptr(), false), &sources, len);
                        for &to in &targets {
                            copy(to, result.as_ptr(), len, stream);
                        }
                    }
                }
            }
            at += len;
        }
        if op.kind != OpKind::AllReduce {
            return Ok(());
        }
        // SAFETY: handed down from the caller.
        unsafe { self.fetch_edges(op, bytes, part, visit) }
    }

    /// Fetches what the others don't write of this rank's result: they have it in their own buffers.
    ///
    /// # Safety
    /// As [`ShmEngine::push_reduced`], of which each rank reduces `part` bytes.
    unsafe fn fetch_edges(
        &self,
        op: &HostOp,
        bytes: usize,
        part: usize,
        visit: &mut Visit<'_>,
    ) -> Result<()> {
        let flags = self.flags(visit.wait);
        let done = self.step.load(Relaxed) + 1;
        self.step.store(done, Relaxed);
        fence();
        protocol::publish(&flags, Counter::Consumed, done);
        for owner in self.others() {
            let lent = visit.lent(self.rank, owner, bytes);
            let start = (owner * part).min(bytes);
            let end = (start + part).min(bytes);
            let edges = [start..end.min(lent.start), start.max(lent.end)..end];
            for edge in edges.into_iter().filter(|edge| !edge.is_empty()) {
                protocol::await_peers(&flags, Counter::Consumed, Peers::Only(owner), done)?;
                let (from, to) = (visit.recvs[owner], offset(op.recv, edge.start));
                // SAFETY: the owner's result, which stays there until all have left; the caller promised the
                // bytes at `recv`.
                let fetched = unsafe { self.fetch(from, edge.start, to, edge.len(), false)? };
                fetched.map_err(|error| self.unreadable(owner, error, visit.wait))?;
            }
        }
        Ok(())
    }

    /// For tests: the process stops where it is about to write into others' buffers.
    #[cfg(test)]
    fn stop_while_pushing(&self) {
        if self.stops.swap(false, Relaxed) {
            // SAFETY: a signal to this process, which somebody else lets go on.
            unsafe { libc::raise(libc::SIGSTOP) };
        }
    }

    /// For tests: this rank rests where it is about to read from others' buffers, once it was asked to, until it is let go.
    #[cfg(test)]
    fn rest_while_fetching(&self) {
        if self.rests.compare_exchange(1, 2, SeqCst, SeqCst).is_ok() {
            while self.rests.load(SeqCst) == 2 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Reduces this rank's part into its own buffer, and fetches the parts of the others from theirs as soon
    /// as they are there: no rank waits for another before it has done its own part.
    ///
    /// # Safety
    /// As [`ShmEngine::directly`].
    unsafe fn pull_reduced(
        &self,
        op: &HostOp,
        bytes: usize,
        parity: usize,
        visit: &mut Visit<'_>,
    ) -> Result<()> {
        let reducer = self.reducer(op, parity)?;
        let flags = self.flags(visit.wait);
        let (chunk, stream) = (visit.chunk, bytes >= STREAM_FROM);
        let part = bytes.div_ceil(self.ranks).next_multiple_of(64);
        let steps = part.div_ceil(chunk) as u64;
        let span = |owner: usize, step: u64| {
            let end = ((owner + 1) * part).min(bytes);
            let start = (owner * part + step as usize * chunk).min(end);
            (start, chunk.min(end - start))
        };
        let base = self.step.load(Relaxed);
        for step in 0..steps {
            let (at, len) = span(self.rank, step);
            if len > 0 {
                // SAFETY: every rank's send buffer has these bytes, which this rank alone reads and, where
                // the others receive in place, which they overwrite only once this step is published.
                unsafe {
                    let sources = visit.sources(at, len)?;
                    reducer.fold(Target::one(offset(op.recv, at), false), &sources, len);
                }
            }
            protocol::publish(&flags, Counter::Consumed, base + step + 1);
        }
        for step in 0..steps {
            for peer in self.others() {
                let peers = Peers::Only(peer);
                protocol::await_peers(&flags, Counter::Consumed, peers, base + step + 1)?;
                let (at, len) = span(peer, step);
                let (from, to) = (visit.recvs[peer], offset(op.recv, at));
                // SAFETY: the peer's result of this step, which it leaves there; the caller promised the
                // bytes at `recv`.
                let fetched = unsafe { self.fetch(from, at, to, len, stream)? };
                fetched.map_err(|error| self.unreadable(peer, error, visit.wait))?;
            }
        }
        self.step.store(base + steps, Relaxed);
        Ok(())
    }

    /// Copies `len` bytes at `at` from where they can be reached. The outer error is a failure of the
    /// engine; the inner one says why they can't be read.
    ///
    /// # Safety
    /// They are there, and `to` is writable for them.
    unsafe fn fetch(
        &self,
        from: Reach,
        at: usize,
        to: *mut u8,
        len: usize,
        stream: bool,
    ) -> Result<io::Result<()>> {
        let step = match from {
            Reach::Here(_) => BETWEEN_LOOKS,
            _ => COPY_AT_ONCE,
        };
        for done in (0..len).step_by(step) {
            self.published_failure()?;
            #[cfg(test)]
            self.rest_while_fetching();
            let (to, len) = (offset(to, done), step.min(len - done));
            let read = match from {
                Reach::Here(start) => {
                    // SAFETY: handed down from the caller; different buffers do not overlap.
                    unsafe { copy(to, start.wrapping_add(at + done), len, stream) };
                    Ok(())
                }
                Reach::Elsewhere(pid, address) => {
                    // SAFETY: handed down from the caller.
                    unsafe { read_process(pid, address + (at + done) as u64, to, len) }
                }
                Reach::Not => Err(io::Error::from_raw_os_error(libc::EFAULT)),
            };
            if read.is_err() {
                return Ok(read);
            }
        }
        Ok(Ok(()))
    }

    /// The error of a rank that finds another's memory gone. A process that dies takes its memory with it,
    /// before anybody is told of its death: that is waited for, as its death says more.
    #[cold]
    fn unreadable(&self, rank: usize, error: io::Error, wait: &dyn WaitPolicy) -> Error {
        let start = Instant::now();
        let waited = self.wait_until(wait, || start.elapsed() >= GRACE, || vec![rank as u32]);
        if let Err(known) = waited {
            return known;
        }
        let pid = self.fact(rank, Fact::Pid);
        let error = Error::new(
            Code::RemoteError,
            format!(
                "a buffer of rank {} (process {pid}) can't be read: {error}",
                self.name(rank)
            ),
        );
        self.publish_failure(&error);
        error
    }

    /// Before this rank gives its buffers back after a failure, which is published: waits until no other rank
    /// is at work in them. A dead one is not. One of another process that does not go may have been stopped,
    /// and could go on later: from then on it can't reach the memory that it may write to.
    #[cold]
    pub(super) fn await_departure(&self) {
        std::sync::atomic::fence(SeqCst);
        let start = Instant::now();
        for rank in self.others() {
            let mut watch = None;
            while self.map.visiting(rank).load(Acquire) != 0 {
                if !self.is_here(rank) {
                    if self.has_ended(rank, &mut watch) {
                        break;
                    }
                    if start.elapsed() >= DEPARTURE && self.withdraw_lent() {
                        break;
                    }
                }
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    /// Takes what this rank has lent out of what others can reach. `false`: the kernel has not done it.
    fn withdraw_lent(&self) -> bool {
        let (at, bytes) = (self.lent_at.load(Relaxed), self.lent_bytes.load(Relaxed));
        let Some(heap) = heap::own().filter(|heap| bytes > 0 && heap.spans(at, bytes)) else {
            return true;
        };
        match heap.withdraw(at, bytes) {
            Ok(()) => true,
            Err(error) => {
                log::warn!("a buffer stays in use until all ranks have left it: {error}");
                false
            }
        }
    }

    /// Whether the process of a rank is known to have ended.
    fn has_ended(&self, rank: usize, watch: &mut Option<Option<ProcessWatch>>) -> bool {
        let Some(pid) = self.pid(rank) else {
            return false;
        };
        let started = self.fact(rank, Fact::StartTime);
        let watch = watch.get_or_insert_with(|| ProcessWatch::open(pid, started));
        match watch {
            Some(watch) => watch.ended(),
            None => process::has_gone(pid, started),
        }
    }

    // ---- messages

    /// For a collective that is tried. Where ranks share cores, the time that another has the core says nothing.
    pub(super) fn stopwatch(&self) -> Stopwatch {
        Stopwatch::start(!self.spins.load(Relaxed))
    }

    /// Whether a receiver has said that it can't reach memory of that kind.
    pub(super) fn is_declined(&self, peer: usize, word: u64) -> &AtomicBool {
        &self.declined[peer][usize::from(word & IN_HEAP != 0)]
    }

    /// Where a message lies, for a receiver that reads it whole; 0 if it goes in pieces; and whether it is timed. This
    /// rank alone decides that, the receiver may decline.
    pub(super) fn offer(
        &self,
        peer: usize,
        buffer: *const u8,
        bytes: usize,
        lone: bool,
    ) -> (u64, Option<Tried>) {
        let direct = &mut *crate::ops::lock(&self.direct);
        let word = self.word_of(direct, buffer, bytes);
        let declined = self.is_declined(peer, word).load(Relaxed);
        if self.is_here(peer) || word & IN_HEAP != 0 && !declined {
            return (word, None);
        }
        let off = SingleCopy::Off as u64;
        let refused = declined
            || self.fact(peer, Fact::SingleCopy) == off
            || self.tuning.single_copy == SingleCopy::Off;
        if refused {
            return (0, None);
        }
        if self.tuning.single_copy == SingleCopy::On {
            return (word, None);
        }
        let class = size_class(bytes);
        let trials = direct.messages[peer].get_or_insert_default();
        let MessageTrial { trial, under_way } = &mut trials.0[usize::from(lone)][class];
        let (whole, timed) = match under_way {
            true => (trial.chosen, false),
            false => trial.next(),
        };
        *under_way |= timed;
        let tried = timed.then_some(Tried {
            peer,
            lone,
            class,
            whole,
        });
        (if whole { word } else { 0 }, tried)
    }

    /// What a timed message has cost; `None`: it was not sent as it was to be.
    pub(super) fn learn_trial(&self, tried: Tried, cost: Option<u64>) {
        let mut direct = crate::ops::lock(&self.direct);
        let trials = direct.messages[tried.peer].get_or_insert_default();
        let known = &mut trials.0[usize::from(tried.lone)][tried.class];
        known.under_way = false;
        if let Some(cost) = cost {
            known.trial.learn(tried.whole, cost);
        }
    }

    /// Reads a message where it is. `false`: it can't be reached.
    ///
    /// # Safety
    /// The sender has announced `bytes` bytes there, and leaves them alone; `to` is writable for them.
    pub(super) unsafe fn read_whole(
        &self,
        peer: usize,
        word: u64,
        to: *mut u8,
        bytes: usize,
    ) -> Result<bool> {
        let direct = &mut *crate::ops::lock(&self.direct);
        if word & IN_HEAP != 0 && !self.is_here(peer) {
            self.map_heap(direct, peer);
        }
        let from = self.reach(direct, peer, word);
        let allowed = match from {
            Reach::Here(_) => true,
            Reach::Elsewhere(..) => {
                self.tuning.single_copy != SingleCopy::Off && self.can_read(direct, peer)
            }
            Reach::Not => false,
        };
        let mut read = allowed;
        if allowed {
            let _presence = Presence::enter(self)?;
            let stream = bytes >= STREAM_FROM;
            // SAFETY: handed down from the caller.
            read = unsafe { self.fetch(from, 0, to, bytes, stream)? }.is_ok();
            fence();
        }
        #[cfg(test)]
        {
            direct.ways.messages += u32::from(read);
            direct.ways.declined += u32::from(!read);
        }
        Ok(read)
    }
}

fn size_class(bytes: usize) -> usize {
    SIZES.iter().take_while(|end| bytes >= **end).count()
}
