//! The engine over messages that stay inside this process, and come late and in any order that a network
//! may give them.

mod devices;

use super::ucx::Ucx;
use super::*;
use crate::host::kernels::tests::Random;
use crate::host::tests::{
    Buffer, Until, World, engine_tests, matrix, matrix_of, op, pattern, reductions_of_size, run,
    run_with, transfer,
};
use crate::types::{DataType, OpKind};
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
    /// How often each rank has moved on what it can.
    pub(in crate::host) progressed: Vec<u64>,
    /// How often each rank has sent.
    sends: Vec<usize>,
    /// What a call of progress takes.
    slowness: Duration,
    /// The longest message that a collective may begin with, if there is one.
    pub(in crate::host) certain: Option<usize>,
    random: u64,
}

// SAFETY: the pointers belong to ranks that leave their memory alone until the tickets are done; the lock
// around the wires orders the copies.
unsafe impl Send for Wires {}

pub(in crate::host) struct InProcess {
    wires: Arc<Mutex<Wires>>,
    rank: usize,
    /// Tags on the wire have so many bits; `None`: all of them.
    tag_bits: Option<u32>,
}

impl InProcess {
    /// What messages from a rank with a tag are matched by.
    fn matched(&self, from: usize, tag: u64) -> u64 {
        match self.tag_bits {
            Some(bits) => (from as u64) << 32 | run::narrow_tag(tag, bits) as u64,
            None => tag,
        }
    }
}

impl Wires {
    fn ticket(&mut self) -> usize {
        self.done.push(None);
        self.done.len() - 1
    }

    /// What only its sender knows the size of is no longer than what comes as a whole.
    fn check_length(&self, tag: u64, bytes: usize) {
        let begins = tag >> 60 == run::Topic::Headers as u64;
        if let Some(certain) = self.certain.filter(|_| begins) {
            assert!(bytes <= certain, "{bytes} bytes, and {certain} are certain");
        }
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
    fn key(&self) -> &'static str {
        "test"
    }

    fn certain(&self) -> usize {
        lock(&self.wires).certain.unwrap_or(usize::MAX)
    }

    unsafe fn send(
        &mut self,
        to: usize,
        tag: u64,
        from: *const u8,
        bytes: usize,
    ) -> std::result::Result<Option<Ticket>, String> {
        lock(&self.wires).check_length(tag, bytes);
        let tag = self.matched(self.rank, tag);
        let mut wires = lock(&self.wires);
        if wires.lost[to] {
            return Err(String::from("the wire is cut"));
        }
        wires.sends[self.rank] += 1;
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
        from: usize,
        tag: u64,
        to: *mut u8,
        bytes: usize,
    ) -> std::result::Result<Option<Ticket>, String> {
        lock(&self.wires).check_length(tag, bytes);
        let tag = self.matched(from, tag);
        let mut wires = lock(&self.wires);
        let ticket = wires.ticket();
        let key = (self.rank, tag);
        let posted = Posted { to, bytes, ticket };
        wires.posted.entry(key).or_default().push_back(posted);
        Ok(Some(Ticket(ticket)))
    }

    fn progress(&mut self) -> bool {
        let slowness = lock(&self.wires).slowness;
        if !slowness.is_zero() {
            std::thread::sleep(slowness);
        }
        let mut wires = lock(&self.wires);
        wires.progressed[self.rank] += 1;
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
        progressed: vec![0; ranks as usize],
        sends: vec![0; ranks as usize],
        random: u64::from(ranks) + 5,
        ..Wires::default()
    }))
}

/// One rank's engine over wires.
pub(in crate::host) fn over_wires(wires: &Arc<Mutex<Wires>>, rank: usize) -> NetEngine {
    over_tagged_wires(wires, rank, None, false)
}

/// The same, with steps of two to this power.
pub(in crate::host) fn over_wires_in_steps(
    wires: &Arc<Mutex<Wires>>,
    rank: usize,
    power: u32,
) -> NetEngine {
    over_wires_with(wires, rank, (None, false), Stage::in_steps_of(power))
}

/// The same, as if every rank had a core of its own or not.
pub(in crate::host) fn over_tagged_wires(
    wires: &Arc<Mutex<Wires>>,
    rank: usize,
    tag_bits: Option<u32>,
    spins: bool,
) -> NetEngine {
    over_wires_with(wires, rank, (tag_bits, spins), Stage::in_steps_of(16))
}

fn over_wires_with(
    wires: &Arc<Mutex<Wires>>,
    rank: usize,
    (tag_bits, spins): (Option<u32>, bool),
    stage: Stage,
) -> NetEngine {
    let ranks = lock(wires).lost.len();
    let transport = Box::new(InProcess {
        wires: Arc::clone(wires),
        rank,
        tag_bits,
    });
    NetEngine::with_stage(transport, rank, ranks, spins, stage).unwrap()
}

fn with_wires(ranks: u32) -> (World, Arc<Mutex<Wires>>) {
    with_tags(ranks, None)
}

fn with_tags(ranks: u32, tag_bits: Option<u32>) -> (World, Arc<Mutex<Wires>>) {
    let wires = wires(ranks);
    let engine = |rank| over_tagged_wires(&wires, rank, tag_bits, false);
    let engines = (0..ranks as usize).map(|rank| Arc::new(engine(rank)) as Arc<dyn Engine>);
    (World(engines.collect(), |_| false), wires)
}

/// With wires on which no longer messages come as a whole.
fn with_certain(ranks: u32, certain: usize) -> World {
    let wires = wires(ranks);
    lock(&wires).certain = Some(certain);
    let engines = (0..ranks as usize).map(|rank| Arc::new(over_wires(&wires, rank)));
    World(
        engines.map(|engine| engine as Arc<dyn Engine>).collect(),
        |_| false,
    )
}

fn world(ranks: u32) -> World {
    with_wires(ranks).0
}

/// What one rank has for all goes along a tree while it is small: every rank gets it, from every root, out of place and in
/// place, and none sends to all others.
#[test]
fn small_data_of_one_rank_goes_along_a_tree() {
    for ranks in [5, 6, 7, 8, 9, 16, 17] {
        let (world, wires) = with_wires(ranks);
        let ranks = ranks as usize;
        let levels = [(5..=8, 3), (9..=16, 4), (17..=17, 5)];
        let levels = levels.iter().find(|(of, _)| of.contains(&ranks)).unwrap().1;
        let headers = if ranks > 8 { levels } else { ranks - 1 };
        // Too much to travel with the headers.
        for (kind, count) in [(OpKind::Broadcast, 20_001), (OpKind::Scatter, 4_001)] {
            for root in 0..ranks {
                let in_place = root % 2 == 1;
                let before = lock(&wires).sends.clone();
                world.each(|engine| {
                    let rank = engine.rank();
                    let blocks = if kind == OpKind::Scatter { ranks } else { 1 };
                    let content = pattern(root, 0, ranks, count * blocks);
                    let at = if blocks > 1 { rank * count } else { 0 };
                    let own: &[u8] = if rank == root { &content } else { &[] };
                    let mut send = Buffer::of(own);
                    let mut recv = Buffer::new(count);
                    let mut cast = op(kind, count, DataType::Uint8);
                    cast.root = root as u32;
                    (cast.send, cast.recv) = (send.ptr(), recv.ptr());
                    if in_place && rank == root {
                        cast.recv = cast.send.cast_mut().wrapping_add(at);
                    }
                    run(engine, &cast).unwrap();
                    let got = match in_place && rank == root {
                        true => send.get()[at..at + count].to_vec(),
                        false => recv.get().to_vec(),
                    };
                    assert!(got == content[at..at + count], "{kind:?} {ranks} {root}");
                });
                let sends: Vec<usize> = lock(&wires)
                    .sends
                    .iter()
                    .zip(before)
                    .map(|(a, b)| a - b)
                    .collect();
                let most = sends.iter().max().unwrap() - headers;
                assert_eq!(most, levels, "{kind:?} {ranks}: {sends:?}");
                assert_eq!(sends.iter().sum::<usize>(), ranks * headers + ranks - 1);
            }
        }
    }
}

/// Two ranks exchange everything or halves as either of them has found the link, and what they find is what it is.
#[test]
fn two_ranks_agree_on_the_way_of_a_slow_link() {
    let wires = wires(2);
    let engines = [0, 1].map(|rank| Arc::new(over_wires(&wires, rank)));
    let world = World(
        engines
            .iter()
            .map(|e| Arc::clone(e) as Arc<dyn Engine>)
            .collect(),
        |_| false,
    );
    let finds_slow = |rank: usize| lock(&engines[rank].shared.state).table.finds_slow;
    let count = 128_000;
    // In pieces of at most 192 KiB: three of everything, or two halves and their two results, of each rank; every message
    // is a send and a receive, and there are the headers.
    let (whole, halves) = (2 * 3 * 2 + 4, 2 * (2 + 2) * 2 + 4);
    for (says, messages) in [
        ([false, false], whole),
        ([true, false], halves),
        ([false, true], halves),
        ([true, true], halves),
    ] {
        for (engine, says) in engines.iter().zip(says) {
            lock(&engine.shared.state).table.finds_slow = says;
        }
        let before = lock(&wires).done.len();
        world.each(|engine| {
            let send = vec![engine.rank() as f32 + 1.0; count];
            let mut recv = vec![0f32; count];
            let mut sum = op(OpKind::AllReduce, count, DataType::Float32);
            (sum.send, sum.recv) = (send.as_ptr().cast(), recv.as_mut_ptr().cast());
            run(engine, &sum).unwrap();
            assert!(recv.iter().all(|value| *value == 3.0));
        });
        assert_eq!(lock(&wires).done.len() - before, messages, "{says:?}");
    }
    for engine in &engines {
        lock(&engine.shared.state).table.finds_slow = false;
    }
    // Three messages with one tag take three of them.
    lock(&wires).slowness = Duration::from_millis(2);
    world.each(|engine| {
        let (mut send, mut recv) = (Buffer::new(count * 4), Buffer::new(count * 4));
        let mut sum = op(OpKind::AllReduce, count, DataType::Float32);
        (sum.send, sum.recv) = (send.ptr(), recv.ptr());
        run(engine, &sum).unwrap();
        recv.get();
    });
    assert!(finds_slow(0) && finds_slow(1));
    assert!(!collectives::is_slow(count * 4, Duration::from_millis(1)));
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

/// The same with tags as short as MPI may have them, which don't tell one collective from the next.
mod with_short_tags {
    use super::*;

    fn world(ranks: u32) -> World {
        with_tags(ranks, Some(15)).0
    }

    engine_tests! {
        world;
        matrix_of_3_and_4_ranks
        disagreements_are_errors_on_every_rank_and_leave_the_engine_usable
        lone_messages_arrive
        groups_of_messages_are_matched_in_order
        a_group_may_mix_collectives_and_messages_in_any_order
        random_operations_with_threads
    }

    #[test]
    fn matrix_of_9_ranks() {
        matrix(world, 9, &[0, 1, 13, 3001]);
    }
}

/// Whatever tells two messages apart that are under way at once is in a short tag, too.
#[test]
fn a_short_tag_keeps_what_a_message_is_about_and_the_end_of_its_number() {
    let tag = |kind: u64, from: u64, number: u64| kind << 58 | from << 48 | number;
    for (bits, numbers) in [(15, 1 << 10), (20, 1 << 15), (28, 1 << 23), (31, 1 << 26)] {
        let mut seen = std::collections::HashSet::new();
        for kind in 0..32 {
            for number in [0, 1, 255, numbers / 2, numbers - 1] {
                let short = run::narrow_tag(tag(kind, 1023, number), bits);
                assert!(
                    (0..1i64 << bits).contains(&i64::from(short)),
                    "{bits} {short}"
                );
                assert!(seen.insert(short), "{bits} {kind} {number}");
                let again = run::narrow_tag(tag(kind, 0, number + 7 * numbers), bits);
                assert_eq!(short, again);
            }
        }
    }
}

/// Where only short messages come as a whole, less data travels with the headers, and these in several messages where they
/// are many.
#[test]
fn headers_are_no_longer_than_what_comes_as_a_whole() {
    for (ranks, certain) in [(3, 100), (9, 200), (9, 60), (17, 24)] {
        matrix_of(&with_certain(ranks, certain), &[0, 1, 13, 301]);
    }
    crate::host::tests::disagreements_are_errors_on_every_rank_and_leave_the_engine_usable(
        |ranks| with_certain(ranks, 24),
    );
}

/// Up to 8 ranks send to each other; more pass on what they gathered.
#[test]
fn matrix_of_7_to_17_ranks() {
    for ranks in [7, 8, 9, 17] {
        matrix(world, ranks, &[0, 1, 13, 3001]);
    }
}

/// Where two ranks go from data that travels with the headers to an exchange of all, and from that to halves,
/// and reductions whose steps use their memory again.
#[test]
fn reductions_at_the_sizes_at_which_their_way_changes() {
    let world_of_two = world(2);
    for bytes in [65_528, 65_536, 524_280, 524_288, 2_200_000] {
        reductions_of_size(&world_of_two, bytes);
    }
    reductions_of_size(&world(3), 3_000_000);
    reductions_of_size(&world(9), 250_000);
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
        fn key(&self) -> &'static str {
            "test"
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

/// Ranks that wait for another have their deadlines at about the same time. The first to give up closes its
/// connections, and the others still name whom they wait for.
#[test]
fn a_rank_that_gives_up_first_does_not_hide_whom_the_others_wait_for() {
    struct Closes(Instant);
    impl Transport for Closes {
        fn about(&self) -> String {
            String::new()
        }
        fn key(&self) -> &'static str {
            "test"
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
        fn progress(&mut self) -> bool {
            Instant::now() >= self.0
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
    struct Deadline(Instant);
    impl WaitPolicy for Deadline {
        fn check(&self, waiting_for: &dyn Fn() -> Vec<u32>) -> Result<()> {
            if Instant::now() < self.0 {
                return Ok(());
            }
            let text = format!("waiting for ranks {:?}", waiting_for());
            Err(Error::new(Code::Timeout, text))
        }
    }
    let mut buffer = Buffer::new(0);
    let recv = transfer(OpKind::Recv, 2, &mut buffer);
    let start = Instant::now();
    let text = |quiet, deadline| {
        let engine = NetEngine::new(Box::new(Closes(quiet)), 0, 3, false).unwrap();
        let error = run_with(&engine, &recv, &Deadline(deadline)).unwrap_err();
        error.text().to_owned()
    };
    let end = start + Duration::from_millis(150);
    assert_eq!(text(end, end), "waiting for ranks [2]");
    // Where data has moved for a while nobody is missed.
    let now = Instant::now();
    assert_eq!(
        text(now, now + Duration::from_millis(50)),
        "waiting for ranks []"
    );
}

/// Other ranks are served while this one makes no call.
#[test]
fn the_transport_is_served_between_operations() {
    struct Counts(Arc<AtomicU64>);
    impl Transport for Counts {
        fn about(&self) -> String {
            String::new()
        }
        fn key(&self) -> &'static str {
            "test"
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

/// What an operation has left with the library goes on its way between operations, and does not wait until
/// looks have become rare.
#[test]
fn what_an_operation_left_is_moved_on_until_it_has_gone() {
    struct Slow {
        looks: Arc<AtomicU64>,
        /// Looks until all has left.
        until: u64,
    }
    impl Transport for Slow {
        fn about(&self) -> String {
            String::new()
        }
        fn key(&self) -> &'static str {
            "test"
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
        fn progress(&mut self) -> bool {
            self.looks.fetch_add(1, Ordering::Relaxed);
            false
        }
        fn has_left(&mut self) -> bool {
            self.looks.load(Ordering::Relaxed) >= self.until
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
    // At the pace of an engine that has nothing to do it would take 10 s.
    let (looks, until) = (Arc::new(AtomicU64::new(0)), 200);
    let transport = Slow {
        looks: Arc::clone(&looks),
        until,
    };
    let start = Instant::now();
    let engine = NetEngine::new(Box::new(transport), 0, 2, false).unwrap();
    while looks.load(Ordering::Relaxed) < until {
        assert!(start.elapsed() < Duration::from_secs(5), "it is not served");
        std::thread::sleep(Duration::from_millis(1));
    }
    // Then looks become rare.
    std::thread::sleep(Duration::from_millis(600));
    let before = looks.load(Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(300));
    assert!(looks.load(Ordering::Relaxed) - before < 20);
    drop(engine);
}

/// Waits sleep at once for a while after another process has had the core, for longer if that comes back, and
/// for the short while again if it was gone long enough.
#[test]
fn a_crowd_is_remembered_for_a_while() {
    let start = Instant::now();
    let at = |millis| start + Duration::from_millis(millis);
    let mut crowd = Crowd::default();
    assert!(!crowd.is_there(at(0)));
    crowd.gave_way(at(0), at(0) + Duration::from_micros(10));
    assert!(!crowd.is_there(at(0)), "another rank of this machine");
    crowd.gave_way(at(0), at(3));
    assert!(crowd.is_there(at(22)) && !crowd.is_there(at(24)));
    crowd.gave_way(at(24), at(30));
    assert!(crowd.is_there(at(69)) && !crowd.is_there(at(71)));
    for again in 0..10 {
        let now = at(80 + 40 * again);
        crowd.gave_way(now, now + Duration::from_millis(1));
    }
    let last = at(81 + 360);
    assert!(crowd.is_there(last + Duration::from_millis(319)));
    assert!(!crowd.is_there(last + Duration::from_millis(321)));
    crowd.gave_way(at(20_000), at(20_003));
    assert!(crowd.is_there(at(20_022)) && !crowd.is_there(at(20_024)));
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

/// In its environment a child finds what it is to see.
const CHILD: &str = "FLAGOSCOMM_TEST_SEGMENTS";

/// Over TCP a piece of a collective goes out at once, whether or not its receiver is there, unless the
/// environment has sizes of its own.
#[test]
fn pieces_go_out_at_once_over_tcp() {
    if !has_ucx() {
        return;
    }
    for (sizes, seen) in [(None, "large"), (Some("16k"), "given")] {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "host::net::tests::child_with_segments"])
            .env("UCX_TLS", "tcp,self")
            .env_remove("UCX_TCP_RX_SEG_SIZE")
            .env_remove("UCX_TCP_TX_SEG_SIZE")
            .env(CHILD, seen)
            .envs(sizes.map(|size| ("UCX_TCP_TX_SEG_SIZE", size)));
        let out = child.output().unwrap();
        let err = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{seen}: {err}");
        assert!(!err.contains("invalid configuration"), "{seen}: {err}");
    }
}

#[test]
fn child_with_segments() {
    let Ok(seen) = std::env::var(CHILD) else {
        return;
    };
    let api = crate::load::process_ucx().unwrap();
    let large = api.has_own_configuration(2);
    assert_eq!(large, seen == "large");
    if !large {
        return;
    }
    let (mut sender, to_sender) = Ucx::new(api, 2).unwrap();
    let (mut receiver, to_receiver) = Ucx::new(api, 2).unwrap();
    let addresses = [to_sender.as_slice(), to_receiver.as_slice()];
    sender.connect(0, &addresses).unwrap();
    receiver.connect(1, &addresses).unwrap();
    let piece = vec![7u8; 192 << 10];
    // SAFETY: the piece lives until the transport is gone.
    let mut sent = unsafe { sender.send(1, 1, piece.as_ptr(), piece.len()) }.unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    while let Some(ticket) = sent {
        assert!(Instant::now() < until, "it waits for a receiver");
        sender.progress();
        receiver.progress();
        sent = sender.done(ticket).is_none().then_some(ticket);
    }
    // Its end is told to a peer that does not listen, and comes all the same.
    drop(sender);
}

/// The numbers again, over UCX as it is here.
#[test]
fn matrix_over_ucx() {
    if has_ucx() {
        matrix(ucx_world, 2, &[0, 1, 13, 3001, 70_001]);
        matrix(ucx_world, 3, &[0, 7, 5000]);
        matrix(ucx_world, 9, &[1, 100]);
        for (ranks, bytes) in [(2, 2_200_000), (3, 1_200_000)] {
            reductions_of_size(&ucx_world(ranks), bytes);
        }
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
