//! The engine over messages that stay inside this process, and come late and in any order that a network
//! may give them.

use super::ucx::Ucx;
use super::*;
use crate::host::kernels::tests::Random;
use crate::host::tests::{Buffer, Until, World, engine_tests, matrix, op, run, run_with, transfer};
use std::collections::{HashMap, VecDeque};

/// A send that was begun.
struct Sent {
    from: *const u8,
    bytes: usize,
    ticket: usize,
    sender: usize,
    /// Small ones are copied at once, and done.
    copied: Option<Vec<u8>>,
    /// Large ones go when their sender looks after them.
    leaves: bool,
}

/// A receive that was begun.
pub(in crate::host) struct Posted {
    to: *mut u8,
    bytes: usize,
    ticket: usize,
}

/// What all ranks have in common.
#[derive(Default)]
pub(in crate::host) struct Wires {
    /// By receiver and tag, in order.
    sent: HashMap<(usize, u64), VecDeque<Sent>>,
    pub(in crate::host) posted: HashMap<(usize, u64), VecDeque<Posted>>,
    done: Vec<Option<std::result::Result<(), String>>>,
    pub(in crate::host) lost: Vec<bool>,
    random: u64,
}

// SAFETY: the pointers belong to ranks that leave their memory alone until the tickets are done; the lock
// around the wires orders the copies.
unsafe impl Send for Wires {}

pub(in crate::host) struct InProcess {
    wires: Arc<Mutex<Wires>>,
    rank: usize,
}

impl Wires {
    fn ticket(&mut self) -> usize {
        self.done.push(None);
        self.done.len() - 1
    }

    /// Whether something that could happen does so now.
    fn happens(&mut self) -> bool {
        self.random = Random::new(self.random).next();
        !self.random.is_multiple_of(3)
    }
}

/// A message of up to so many bytes is done when it is sent.
const EAGER: usize = 500;

impl Transport for InProcess {
    fn about(&self) -> String {
        String::from("this process")
    }

    unsafe fn send(
        &mut self,
        to: usize,
        tag: u64,
        from: *const u8,
        bytes: usize,
    ) -> std::result::Result<Option<Ticket>, String> {
        let mut wires = lock(&self.wires);
        if wires.lost[to] {
            return Err(String::from("the wire is cut"));
        }
        let ticket = wires.ticket();
        let mut copied = (bytes <= EAGER).then(|| vec![0; bytes]);
        if let Some(copied) = copied.as_mut().filter(|_| bytes > 0) {
            // SAFETY: the caller promised the bytes, and the copy has as many.
            unsafe { std::ptr::copy_nonoverlapping(from, copied.as_mut_ptr(), bytes) };
        }
        let done = copied.is_some();
        wires.sent.entry((to, tag)).or_default().push_back(Sent {
            from,
            bytes,
            ticket,
            sender: self.rank,
            copied,
            leaves: done,
        });
        Ok((!done).then_some(Ticket(ticket)))
    }

    unsafe fn recv(
        &mut self,
        _from: usize,
        tag: u64,
        to: *mut u8,
        bytes: usize,
    ) -> std::result::Result<Option<Ticket>, String> {
        let mut wires = lock(&self.wires);
        let ticket = wires.ticket();
        let key = (self.rank, tag);
        let posted = Posted { to, bytes, ticket };
        wires.posted.entry(key).or_default().push_back(posted);
        Ok(Some(Ticket(ticket)))
    }

    fn flush(&mut self, _to: usize) -> std::result::Result<Option<Ticket>, String> {
        Ok(None)
    }

    fn progress(&mut self) -> bool {
        let mut wires = lock(&self.wires);
        for sent in wires.sent.values_mut().flatten() {
            sent.leaves |= sent.sender == self.rank;
        }
        let own: Vec<(usize, u64)> = wires
            .posted
            .keys()
            .filter(|k| k.0 == self.rank)
            .copied()
            .collect();
        let mut moved = false;
        for key in own {
            let first = wires.sent.get(&key).and_then(VecDeque::front);
            let ready = first.is_some_and(|sent| sent.leaves);
            if !ready || !wires.happens() {
                continue;
            }
            let sent = wires
                .sent
                .get_mut(&key)
                .and_then(VecDeque::pop_front)
                .unwrap();
            let posted = wires
                .posted
                .get_mut(&key)
                .and_then(VecDeque::pop_front)
                .unwrap();
            if wires.posted[&key].is_empty() {
                wires.posted.remove(&key);
            }
            if wires.sent[&key].is_empty() {
                wires.sent.remove(&key);
            }
            moved = true;
            assert!(
                sent.bytes <= posted.bytes,
                "a message is longer than its place"
            );
            let from = sent
                .copied
                .as_ref()
                .map_or(sent.from, |copied| copied.as_ptr());
            // SAFETY: both sides promised their bytes until their tickets are done.
            unsafe { std::ptr::copy(from, posted.to, sent.bytes) };
            wires.done[sent.ticket] = Some(Ok(()));
            wires.done[posted.ticket] = Some(Ok(()));
        }
        moved
    }

    fn done(&mut self, ticket: Ticket) -> Option<std::result::Result<(), String>> {
        lock(&self.wires).done[ticket.0].clone()
    }

    fn lost(&self, rank: usize) -> Option<String> {
        lock(&self.wires).lost[rank].then(|| String::from("the wire is cut"))
    }

    fn give_up(&mut self, tickets: &[Ticket]) -> usize {
        let mut wires = lock(&self.wires);
        let rank = self.rank;
        for sent in wires.sent.values_mut() {
            sent.retain(|one| one.sender != rank || one.copied.is_some());
        }
        wires.posted.retain(|key, _| key.0 != rank);
        let Wires { sent, posted, .. } = &*wires;
        let left = |ticket: &&Ticket| {
            sent.values()
                .flatten()
                .any(|one| one.copied.is_none() && one.ticket == ticket.0)
                || posted.values().flatten().any(|one| one.ticket == ticket.0)
        };
        tickets.iter().filter(left).count()
    }
}

/// What connects so many ranks.
pub(in crate::host) fn wires(ranks: u32) -> Arc<Mutex<Wires>> {
    Arc::new(Mutex::new(Wires {
        lost: vec![false; ranks as usize],
        random: u64::from(ranks) + 5,
        ..Wires::default()
    }))
}

/// One rank's engine over wires.
pub(in crate::host) fn over_wires(wires: &Arc<Mutex<Wires>>, rank: usize) -> NetEngine {
    let ranks = lock(wires).lost.len();
    let transport = Box::new(InProcess {
        wires: Arc::clone(wires),
        rank,
    });
    NetEngine::new(transport, rank, ranks, false).unwrap()
}

fn with_wires(ranks: u32) -> (World, Arc<Mutex<Wires>>) {
    let wires = wires(ranks);
    let engine = |rank| over_wires(&wires, rank);
    let engines = (0..ranks as usize).map(|rank| Arc::new(engine(rank)) as Arc<dyn Engine>);
    (World(engines.collect(), |_| false), wires)
}

fn world(ranks: u32) -> World {
    with_wires(ranks).0
}

engine_tests! {
    world;
    matrix_of_1_and_2_ranks
    matrix_of_3_and_4_ranks
    disagreements_are_errors_on_every_rank_and_leave_the_engine_usable
    wrong_arguments_are_found_before_anything_is_published
    lone_messages_arrive
    large_messages_that_block_each_other_end_at_the_deadline
    groups_of_messages_are_matched_in_order
    a_group_may_mix_collectives_and_messages_in_any_order
    random_operations_with_threads
}

/// Up to 8 ranks send to each other; more pass on what they gathered.
#[test]
fn matrix_of_7_to_17_ranks() {
    for ranks in [7, 8, 9, 17] {
        matrix(world, ranks, &[0, 1, 13, 3001]);
    }
}

#[test]
fn messages_that_disagree_are_errors_and_are_dropped() {
    crate::host::tests::disagreeing_messages(&world(2), Some(8 << 10));
}

/// An abort ends the waits of this rank; the control channel tells the others.
#[test]
fn an_abort_ends_the_waits_of_its_rank() {
    for kind in [OpKind::Barrier, OpKind::Recv, OpKind::Send] {
        let world = world(2);
        let start = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                world.0[0].abort();
                world.0[0].abort();
            });
            scope.spawn(|| {
                let mut buffer = Buffer::new(100_000);
                let op = match kind {
                    OpKind::Barrier => op(kind, 0, DataType::Int8),
                    _ => transfer(kind, 1, &mut buffer),
                };
                let error = run(&*world.0[0], &op).unwrap_err();
                assert_eq!(error.code(), Code::Aborted, "{error}");
            });
        });
        assert!(start.elapsed() < Duration::from_secs(10));
        let again = run(&*world.0[0], &op(OpKind::Barrier, 0, DataType::Int8)).unwrap_err();
        assert_eq!(again.code(), Code::Aborted);
    }
}

/// A policy that gives up after some time and counts what it is told.
pub(in crate::host) struct Told {
    until: Until,
    pub(in crate::host) told: Mutex<Vec<String>>,
}

impl WaitPolicy for Told {
    fn check(&self, waiting_for: &dyn Fn() -> Vec<u32>) -> Result<()> {
        self.until.check(waiting_for)
    }

    fn failed(&self, error: &Error) {
        lock(&self.told).push(error.text().to_owned());
    }
}

pub(in crate::host) fn told(limit: Duration) -> Told {
    Told {
        until: Until::after(limit),
        told: Mutex::default(),
    }
}

/// A wait that ends without success ends the engine, the others are told once, and no memory is touched
/// afterwards.
#[test]
fn a_failed_wait_is_told_and_final() {
    let (world, wires) = with_wires(3);
    let mut sum = op(OpKind::AllReduce, 50_000, DataType::Float32);
    let (mut send, mut recv) = (Buffer::new(200_000), Buffer::new(200_000));
    (sum.send, sum.recv) = (send.ptr(), recv.ptr());
    let policy = told(Duration::from_millis(20));
    let error = run_with(&*world.0[0], &sum, &policy).unwrap_err();
    assert_eq!(error.code(), Code::Timeout);
    assert_eq!(error.text(), "waiting for ranks [1, 2]");
    assert_eq!(*lock(&policy.told), ["waiting for ranks [1, 2]"]);
    let again = run_with(&*world.0[0], &sum, &policy).unwrap_err();
    assert_eq!(again.text(), error.text());
    assert_eq!(lock(&policy.told).len(), 1);
    assert!(!lock(&wires).posted.keys().any(|key| key.0 == 0));
    world.0[1].poison(&Error::internal("its thread that watches says so"));
    let other = run(&*world.0[1], &sum).unwrap_err();
    assert_eq!(other.text(), "its thread that watches says so");
}

/// Nothing comes from a rank whose connection is gone: who waits for it is told so, with the rank, and
/// whether it waits to receive or to send.
#[test]
fn a_lost_connection_ends_the_wait() {
    for kind in [OpKind::Barrier, OpKind::Recv, OpKind::Send] {
        let (world, wires) = with_wires(3);
        if kind != OpKind::Send {
            lock(&wires).lost[2] = true;
        }
        let start = Instant::now();
        let mut buffer = Buffer::new(100_000);
        let op = match kind {
            OpKind::Barrier => op(kind, 0, DataType::Int8),
            _ => transfer(kind, 2, &mut buffer),
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(10));
                lock(&wires).lost[2] = true;
            });
            let policy = told(Duration::from_secs(20));
            let error = run_with(&*world.0[0], &op, &policy).unwrap_err();
            assert_eq!(error.code(), Code::RemoteError, "{kind:?}: {error}");
            let text = "the connection to rank 2 has failed: the wire is cut";
            assert_eq!(error.text(), text);
            assert_eq!(*lock(&policy.told), [text]);
        });
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}

/// Nobody is called missing while data moves, whether or not its sender is still there.
#[test]
fn who_is_gone_is_not_missed_while_data_moves() {
    struct Trickles {
        last: Instant,
        moves: usize,
    }
    impl Transport for Trickles {
        fn about(&self) -> String {
            String::new()
        }
        unsafe fn send(
            &mut self,
            _: usize,
            _: u64,
            _: *const u8,
            _: usize,
        ) -> std::result::Result<Option<Ticket>, String> {
            Ok(None)
        }
        unsafe fn recv(
            &mut self,
            _: usize,
            _: u64,
            _: *mut u8,
            _: usize,
        ) -> std::result::Result<Option<Ticket>, String> {
            Ok(Some(Ticket(0)))
        }
        fn flush(&mut self, _: usize) -> std::result::Result<Option<Ticket>, String> {
            Ok(None)
        }
        fn progress(&mut self) -> bool {
            let moved = self.last.elapsed() > Duration::from_millis(3);
            if moved {
                (self.last, self.moves) = (Instant::now(), self.moves + 1);
            }
            moved
        }
        fn done(&mut self, _: Ticket) -> Option<std::result::Result<(), String>> {
            (self.moves > 30).then_some(Ok(()))
        }
        fn lost(&self, _: usize) -> Option<String> {
            None
        }
        fn give_up(&mut self, _: &[Ticket]) -> usize {
            0
        }
    }
    /// Whoever is waited for is gone.
    struct Gone(Mutex<usize>);
    impl WaitPolicy for Gone {
        fn check(&self, waiting_for: &dyn Fn() -> Vec<u32>) -> Result<()> {
            *lock(&self.0) += 1;
            match waiting_for()[..] {
                [] => Ok(()),
                [rank, ..] => Err(Error::internal(format!("rank {rank} is gone"))),
            }
        }
    }
    let trickles = |moves| Trickles {
        last: Instant::now(),
        moves,
    };
    let mut buffer = Buffer::new(0);
    let recv = transfer(OpKind::Recv, 1, &mut buffer);
    // Its header is zeros, for no elements of the first type.
    let recv = HostOp {
        dtype: DataType::Int8,
        ..recv
    };
    let engine = NetEngine::new(Box::new(trickles(0)), 0, 2, false).unwrap();
    let policy = Gone(Mutex::default());
    run_with(&engine, &recv, &policy).unwrap();
    assert!(*lock(&policy.0) > 10, "an abort is not looked for");
    // Nothing moves.
    let mut still = trickles(0);
    still.last += Duration::from_secs(3600);
    let engine = NetEngine::new(Box::new(still), 0, 2, false).unwrap();
    let error = run_with(&engine, &recv, &Gone(Mutex::default())).unwrap_err();
    assert_eq!(error.text(), "rank 1 is gone");
}

/// Other ranks are served while this one makes no call.
#[test]
fn the_transport_is_served_between_operations() {
    struct Counts(Arc<AtomicU64>);
    impl Transport for Counts {
        fn about(&self) -> String {
            String::new()
        }
        unsafe fn send(
            &mut self,
            _: usize,
            _: u64,
            _: *const u8,
            _: usize,
        ) -> std::result::Result<Option<Ticket>, String> {
            Ok(None)
        }
        unsafe fn recv(
            &mut self,
            _: usize,
            _: u64,
            _: *mut u8,
            _: usize,
        ) -> std::result::Result<Option<Ticket>, String> {
            Ok(None)
        }
        fn flush(&mut self, _: usize) -> std::result::Result<Option<Ticket>, String> {
            Ok(None)
        }
        fn progress(&mut self) -> bool {
            self.0.fetch_add(1, Ordering::Relaxed);
            false
        }
        fn done(&mut self, _: Ticket) -> Option<std::result::Result<(), String>> {
            None
        }
        fn lost(&self, _: usize) -> Option<String> {
            None
        }
        fn give_up(&mut self, _: &[Ticket]) -> usize {
            0
        }
    }
    let count = Arc::new(AtomicU64::new(0));
    let engine = NetEngine::new(Box::new(Counts(Arc::clone(&count))), 0, 2, false).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while count.load(Ordering::Relaxed) < 5 {
        assert!(Instant::now() < until, "nobody serves the transport");
        std::thread::sleep(Duration::from_millis(1));
    }
    // An engine that has failed leaves its transport alone, and one that goes takes its thread along.
    engine.poison(&Error::internal("x"));
    std::thread::sleep(Duration::from_millis(120));
    let before = count.load(Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(120));
    assert_eq!(count.load(Ordering::Relaxed), before);
    drop(engine);
    assert_eq!(Arc::strong_count(&count), 1);
}

/// Ranks of this process over UCX.
/// The engines of ranks of this process over UCX.
pub(in crate::host) fn over_ucx(ranks: u32) -> Vec<NetEngine> {
    let api = crate::load::process_ucx().unwrap();
    let made = (0..ranks).map(|_| Ucx::new(api, ranks as usize).unwrap());
    let (mut workers, addresses): (Vec<Ucx>, Vec<Vec<u8>>) = made.unzip();
    let addresses: Vec<&[u8]> = addresses.iter().map(Vec::as_slice).collect();
    for (rank, worker) in workers.iter_mut().enumerate() {
        worker.connect(rank, &addresses).unwrap();
    }
    let engine =
        |(rank, worker)| NetEngine::new(Box::new(worker), rank, ranks as usize, false).unwrap();
    workers.into_iter().enumerate().map(engine).collect()
}

fn ucx_world(ranks: u32) -> World {
    let engine = |engine| Arc::new(engine) as Arc<dyn Engine>;
    World(over_ucx(ranks).into_iter().map(engine).collect(), |_| false)
}

/// Whether UCX is there; if not, says that the test is skipped.
pub(in crate::host) fn has_ucx() -> bool {
    let found = crate::load::process_ucx();
    if let Err(why) = &found {
        println!("SKIPPED: the host tier's engine over UCX needs it (Debian: libucx0): {why}");
    }
    found.is_ok()
}

/// The numbers again, over UCX as it is here.
#[test]
fn matrix_over_ucx() {
    if has_ucx() {
        matrix(ucx_world, 2, &[0, 1, 13, 3001, 70_001]);
        matrix(ucx_world, 3, &[0, 7, 5000]);
        matrix(ucx_world, 9, &[1, 100]);
    }
}

#[test]
fn messages_and_disagreements_over_ucx() {
    use crate::host::tests;
    if has_ucx() {
        tests::lone_messages_arrive(ucx_world);
        tests::groups_of_messages_are_matched_in_order(ucx_world);
        tests::a_group_may_mix_collectives_and_messages_in_any_order(ucx_world);
        tests::large_messages_that_block_each_other_end_at_the_deadline(ucx_world);
        tests::disagreeing_messages(&ucx_world(2), Some(8 << 10));
        tests::disagreements_are_errors_on_every_rank_and_leave_the_engine_usable(ucx_world);
    }
}
