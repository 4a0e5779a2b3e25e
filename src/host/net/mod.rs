//! The engine for ranks of several machines: algorithms of ours over messages of a library that the
//! machines have.
//!
//! * `choice`: which library, from what all ranks say,
//! * `ucx`: UCX as a [`Transport`],
//! * `run`: one operation under way: requests, waiting, failures,
//! * `exchange`: how every collective begins: all ranks' calls are compared,
//! * `collectives`, `p2p`: the algorithms.
//!
//! All ranks are peers, wherever they are: between ranks of one machine it is the library's business to
//! use shared memory.

pub(crate) mod choice;
mod collectives;
mod exchange;
mod p2p;
mod run;
pub(crate) mod ucx;

use super::engine::Engine;
use super::op::{HostOp, WaitPolicy};
use crate::error::{Code, Error, Result};
use crate::ops::lock;
use crate::types::OpKind;
use exchange::Table;
use run::{Area, Run};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Something that was begun: a number that means something to its transport only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(pub usize);

/// What a library does for the engine: messages between ranks, matched by sender and tag, those of one
/// sender and tag in their order. One thread at a time calls it.
pub(crate) trait Transport: Send {
    /// What it is, for logs.
    fn about(&self) -> String;

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

    /// Begins to see to it that what was sent to a rank gets there even if this rank makes no call for
    /// a long time; `None`: that is so already.
    fn flush(&mut self, to: usize) -> std::result::Result<Option<Ticket>, String>;

    /// Moves on what it can; whether it moved something.
    fn progress(&mut self) -> bool;

    /// How a ticket stands: `None` while it goes on. A ticket is asked for no more after it is done.
    fn done(&mut self, ticket: Ticket) -> Option<std::result::Result<(), String>>;

    /// Why nothing will come from a rank any more, if that is known.
    fn lost(&self, rank: usize) -> Option<String>;

    /// Ends everything: afterwards nothing of the tickets' memory is touched any more. How many tickets
    /// could not be ended. Nothing else is asked of the transport from then on.
    fn give_up(&mut self, tickets: &[Ticket]) -> usize;
}

/// What one operation at a time uses.
pub(super) struct State {
    transport: Box<dyn Transport>,
    /// Collectives that this rank has begun.
    sequence: u64,
    /// The headers of the present collective.
    table: Table,
    /// Pieces of other ranks' data.
    pieces: Area,
    /// Messages that this rank has sent and received, by the other rank.
    sent: Vec<u64>,
    received: Vec<u64>,
}

/// One rank's end of an engine over messages.
pub(crate) struct NetEngine {
    rank: usize,
    ranks: usize,
    /// Whether waits spin: every rank of this machine can have a core of its own.
    spins: bool,
    about: String,
    state: Mutex<State>,
    /// Whether there is a failure or an abort, without a lock.
    ended: AtomicBool,
    aborted: AtomicBool,
    failure: Mutex<Option<Error>>,
}

impl NetEngine {
    /// One rank's engine over a transport that reaches all ranks.
    pub(crate) fn new(
        transport: Box<dyn Transport>,
        rank: usize,
        ranks: usize,
        spins: bool,
    ) -> Result<NetEngine> {
        Ok(NetEngine {
            rank,
            ranks,
            spins,
            about: transport.about(),
            state: Mutex::new(State {
                transport,
                sequence: 0,
                table: Table::new(ranks)?,
                pieces: Area::default(),
                sent: vec![0; ranks],
                received: vec![0; ranks],
            }),
            ended: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
            failure: Mutex::new(None),
        })
    }

    /// Proves that all ranks reach each other.
    pub(crate) fn prove(&self, wait: &dyn WaitPolicy) -> Result<()> {
        let barrier = HostOp {
            kind: OpKind::Barrier,
            send: std::ptr::null(),
            recv: std::ptr::null_mut(),
            count: 0,
            dtype: crate::types::DataType::Uint8,
            reduction: crate::types::Reduction::Builtin(crate::types::RedOp::Sum),
            root: 0,
            vector: None,
        };
        // SAFETY: a barrier has no buffers, and nobody has the engine yet.
        unsafe { self.run(&barrier, wait) }
    }
}

impl Engine for NetEngine {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn messaging_ranks(&self) -> usize {
        usize::MAX
    }

    fn about(&self) -> String {
        self.about.clone()
    }

    unsafe fn collective(&self, op: &HostOp, wait: &dyn WaitPolicy) -> Result<()> {
        let mut state = lock(&self.state);
        let mut run = Run::new(self, &mut state, wait);
        // SAFETY: handed down from the caller.
        let result = unsafe { run.collective(op) };
        run.finish(result)
    }

    unsafe fn lone_transfer(&self, op: &HostOp, wait: &dyn WaitPolicy) -> Result<()> {
        let mut state = lock(&self.state);
        let mut run = Run::new(self, &mut state, wait);
        // SAFETY: handed down from the caller.
        let result = unsafe { run.transfer_all(&[op]) };
        run.finish(result)
    }

    unsafe fn grouped_transfers(&self, ops: &[&HostOp], wait: &dyn WaitPolicy) -> Result<()> {
        let mut state = lock(&self.state);
        let mut run = Run::new(self, &mut state, wait);
        // SAFETY: handed down from the caller.
        let result = unsafe { run.transfers(ops) };
        run.finish(result)
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

    fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
        self.ended.store(true, Ordering::Release);
    }
}
