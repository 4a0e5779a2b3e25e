//! The engine with threads and with processes as ranks.

use super::direct::{Trial, Ways};
use super::layout::{CHANNEL_DEPTH, Fact, SLOT, TIMED, TIMED_RUNNING, WIDE_SLOT};
use super::p2p::Timing;
use super::*;
use crate::config::SingleCopy;
use crate::error::Code;
use crate::host::heap;
use crate::host::op::VectorCounts;
use crate::host::tests;
use crate::host::tests::{
    Buffer, COUNTS, IN_HEAP, Until, any_buffers, disagreeing_messages, engine_tests, group,
    groups_of_messages, lone_messages, matrix_of, op, pattern, run, run_with, stress, transfer,
};
use crate::ops::lock;
use crate::sys::{cpu, unix};
use crate::types::{DataType, OpKind, RedOp, Reduction};
use std::cell::Cell;
use std::os::fd::AsFd;
use std::process::{Child, Command};
use std::sync::Barrier;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::time::{Duration, Instant};

pub(crate) mod staged;

const PATIENCE: Duration = Duration::from_secs(10);

/// How the ranks of a test get at each other's buffers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Through {
    /// As threads of one process do, from the sizes on that are meant.
    Default,
    /// As threads of one process do, whatever the size.
    Pointers,
    /// Not at all: everything passes through the segment.
    Segment,
    /// By copies that the kernel makes, as ranks of other processes.
    Kernel,
    /// By the heap, as ranks of other processes.
    Heap,
    /// Ranks of other processes, every other one with buffers in the heap.
    Mixed,
}

impl Through {
    fn tuning(self, rank: u32) -> Tuning {
        let tuning = Tuning::of_process().unwrap();
        let single_copy = match self {
            Through::Default => return tuning,
            Through::Pointers | Through::Segment | Through::Heap => SingleCopy::Off,
            Through::Kernel | Through::Mixed => SingleCopy::On,
        };
        Tuning {
            one_exchange: 0,
            single_copy_from: 0,
            whole_message_from: 0,
            single_copy,
            process: match self {
                Through::Pointers => tuning.process,
                _ => tuning.process.wrapping_add(u64::from(rank) << 8),
            },
        }
    }

    /// Which ranks have their buffers in the heap.
    fn in_heap(self) -> fn(usize) -> bool {
        match self {
            Through::Heap => |_| true,
            Through::Mixed => |rank| rank.is_multiple_of(2),
            _ => |_| false,
        }
    }
}

/// Engines of all ranks in this process.
struct World(Vec<Arc<ShmEngine>>, Through);

impl World {
    fn new(ranks: u32) -> World {
        World::through(Through::Default, ranks)
    }

    fn through(through: Through, ranks: u32) -> World {
        World::tuned(through, ranks, |rank| through.tuning(rank))
    }

    fn tuned(through: Through, ranks: u32, tuning: impl Fn(u32) -> Tuning) -> World {
        let bytes = ShmEngine::segment_bytes(ranks).unwrap();
        let (segment, _fd) = Segment::create(bytes).unwrap();
        let segment = Arc::new(segment);
        let attach = |rank| {
            let segment = Arc::clone(&segment);
            Arc::new(ShmEngine::attach_tuned(segment, rank, ranks, tuning(rank)).unwrap())
        };
        World((0..ranks).map(attach).collect(), through)
    }

    /// How many operations of each rank went which way.
    fn ways(&self) -> Vec<Ways> {
        self.0.iter().map(|engine| ways(engine)).collect()
    }

    /// The same for tests of any engine.
    fn any(&self) -> tests::World {
        let engines = self.0.iter().map(|engine| Arc::clone(engine) as _);
        tests::World(engines.collect(), self.1.in_heap())
    }

    /// Runs something on every rank, each on a thread of its own.
    fn each<T: Send>(&self, body: impl Fn(&ShmEngine) -> T + Sync) -> Vec<T> {
        self.any()
            .each(|engine| body(engine.shared_memory().unwrap()))
    }
}

fn world(ranks: u32) -> tests::World {
    World::new(ranks).any()
}

engine_tests! {
    world;
    matrix_of_1_and_2_ranks
    matrix_of_3_and_4_ranks
    matrix_of_5_to_8_ranks
    disagreements_are_errors_on_every_rank_and_leave_the_engine_usable
    wrong_arguments_are_found_before_anything_is_published
    large_messages_that_block_each_other_end_at_the_deadline
    a_group_may_mix_collectives_and_messages_in_any_order
    random_operations_with_threads
}

/// The operation that a tiny one is on the long way.
fn long_way(tiny: &Tiny) -> HostOp {
    HostOp {
        send: tiny.send,
        recv: tiny.recv,
        reduction: Reduction::Builtin(tiny.op),
        root: tiny.root as u32,
        ..op(tiny.kind, tiny.count, tiny.dtype)
    }
}

/// One rank's result of a tiny collective, made by the short way or by the long one, in place or not.
fn tiny_result(engine: &ShmEngine, tiny: Tiny, short: bool, in_place: bool) -> Vec<u8> {
    let (rank, ranks, bytes) = (engine.rank, engine.ranks, tiny.count * tiny.dtype.size());
    let blocks = |many: bool| if many { ranks * bytes } else { bytes };
    let sent = blocks(matches!(
        tiny.kind,
        OpKind::ReduceScatter | OpKind::AllToAll
    ));
    let got = blocks(matches!(tiny.kind, OpKind::AllGather | OpKind::AllToAll));
    let content = pattern(rank, 0, 0, sent);
    let (mut send, mut recv) = (Buffer::of(&content), Buffer::new(got));
    let mut both = Buffer::new(sent.max(got));
    let mut at = 0;
    let tiny = match (in_place, tiny.kind) {
        (false, _) => Tiny {
            send: send.ptr(),
            recv: recv.ptr(),
            ..tiny
        },
        // As it is done in place: a block of the larger buffer is the smaller one.
        (true, kind) => {
            let own = both.ptr().wrapping_add(rank * bytes);
            let (from, to) = match kind {
                OpKind::ReduceScatter => (both.ptr(), own),
                OpKind::AllGather => (own, both.ptr()),
                _ => (both.ptr(), both.ptr()),
            };
            at = to.addr() - both.ptr().addr();
            // SAFETY: inside the larger buffer, which nobody else knows yet.
            unsafe { from.copy_from(content.as_ptr(), sent) };
            Tiny {
                send: from,
                recv: to,
                ..tiny
            }
        }
    };
    if short {
        let folding = engine.takes_tiny(&tiny).unwrap();
        // SAFETY: buffers as the kind has them, and one operation at a time.
        unsafe { engine.run_tiny(&tiny, folding, &Until::long()).unwrap() };
    } else {
        run(engine, &long_way(&tiny)).unwrap();
    }
    match in_place {
        true => both.get()[at..at + got].to_vec(),
        false => recv.get().to_vec(),
    }
}

#[test]
fn the_shortest_ways_of_collectives_meet_the_long_ones() {
    let kinds = [
        OpKind::AllReduce,
        OpKind::ReduceScatter,
        OpKind::AllGather,
        OpKind::AllToAll,
        OpKind::Broadcast,
    ];
    for ranks in [2, 3] {
        let world = World::new(ranks);
        world.each(|engine| {
            let operations = kinds.into_iter().flat_map(|kind| {
                let reduces = matches!(kind, OpKind::AllReduce | OpKind::ReduceScatter);
                let ops = if reduces {
                    &RedOp::ALL[..]
                } else {
                    &RedOp::ALL[..1]
                };
                let dtypes = DataType::ALL.into_iter();
                let usual = dtypes.filter(move |dtype| !(reduces && dtype.is_float8()));
                usual.flat_map(move |dtype| ops.iter().map(move |&op| (kind, dtype, op)))
            });
            for (kind, dtype, op) in operations {
                let blocks = match kind {
                    OpKind::ReduceScatter | OpKind::AllToAll => ranks as usize,
                    _ => 1,
                };
                let most = MOST_TINY / dtype.size() / blocks;
                for count in (1..=most).step_by(5) {
                    for (root, in_place) in [(0, false), (1, true)] {
                        let tiny = Tiny {
                            kind,
                            send: std::ptr::null(),
                            recv: std::ptr::null_mut(),
                            count,
                            dtype,
                            op,
                            root,
                        };
                        // Both orders of who takes which way, all by the short one, and all by the long one.
                        let results = [0b01, 0b10, 0b111, 0].map(|short: u32| {
                            let short = short >> engine.rank & 1 == 1;
                            tiny_result(engine, tiny, short, in_place)
                        });
                        assert!(
                            results.iter().all(|result| *result == results[3]),
                            "{kind:?}: {count} of {dtype:?}, {op:?}: {results:?}"
                        );
                    }
                }
                let wide = Tiny {
                    kind,
                    send: std::ptr::null(),
                    recv: std::ptr::null_mut(),
                    count: most + 1,
                    dtype,
                    op,
                    root: 0,
                };
                assert!(engine.takes_tiny(&wide).is_none());
                let count = 1;
                let root = ranks as usize;
                assert!(
                    engine
                        .takes_tiny(&Tiny {
                            count,
                            root,
                            ..wide
                        })
                        .is_none()
                );
            }
        });
        // What differs is found on this way, too, and a failure ends it.
        let all_know = Barrier::new(ranks as usize);
        let errors = world.each(|engine| {
            let (send, mut recv) = ([1i32; 2], [0i32; 2]);
            let tiny = Tiny {
                kind: OpKind::AllReduce,
                send: send.as_ptr().cast(),
                recv: recv.as_mut_ptr().cast(),
                count: 1 + engine.rank % 2,
                dtype: DataType::Int32,
                op: RedOp::Sum,
                root: 0,
            };
            let folding = engine.takes_tiny(&tiny).unwrap();
            // SAFETY: as above.
            let call = || unsafe { engine.run_tiny(&tiny, folding, &Until::long()) };
            let differs = call().unwrap_err();
            all_know.wait();
            engine.poison(&Error::internal("the end"));
            let ended = call().unwrap_err();
            assert_eq!(recv, [0; 2]);
            (differs, ended)
        });
        for (differs, ended) in errors {
            assert!(differs.text().contains("ranks disagree"), "{differs}");
            assert!(ended.text().contains("the end"), "{ended}");
        }
    }
}

/// Sends or receives by the short way if it takes the message, else by the long one.
fn short_or_long(engine: &ShmEngine, kind: OpKind, buffer: &mut Buffer) -> Result<()> {
    let short = Short {
        buffer: buffer.ptr(),
        count: buffer.get().len(),
        dtype: DataType::Uint8,
        peer: 1 - engine.rank,
    };
    let wait = Until::after(Duration::from_secs(20));
    // SAFETY: the buffer has as many bytes, and one operation goes on at a time.
    let done = unsafe {
        match kind {
            OpKind::Send => engine.send_short(&short, || (), &wait),
            _ => engine.receive_short(&short).map(Ok),
        }
    };
    done.unwrap_or_else(|| run_with(engine, &transfer(kind, short.peer, buffer), &wait))
}

#[test]
fn the_shortest_ways_of_messages_meet_the_long_ones() {
    for spins in [true, false] {
        let world = World::new(2);
        for engine in &world.0 {
            engine.spins.store(spins, Relaxed);
        }
        world.each(|engine| {
            for round in 0..400 {
                let len = [1, 7, 8, 24, 25, 64, 112, 113, 512, 513, 1025][round % 11];
                let sends = (engine.rank == 0) == (round % 3 != 0);
                let kind = if sends { OpKind::Send } else { OpKind::Recv };
                // Each side takes the short way in three of four rounds, and comes late now and then.
                let short = round / (1 + engine.rank) % 4 != 0;
                if round % (29 + engine.rank) == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let content = pattern(0, 1, round, len);
                let mut buffer = match sends {
                    true => Buffer::of(&content),
                    false => Buffer::new(len),
                };
                match short {
                    true => short_or_long(engine, kind, &mut buffer).unwrap(),
                    false => run(engine, &transfer(kind, 1 - engine.rank, &mut buffer)).unwrap(),
                }
                assert!(buffer.get() == content, "message {round} of {len} bytes");
            }
        });
    }
}

#[test]
fn the_shortest_way_of_a_message_is_not_taken_where_it_is_not_one() {
    let world = World::new(2);
    let engine = &*world.0[0];
    let mut buffer = Buffer::new(2000);
    let usual = Short {
        buffer: buffer.ptr(),
        count: 8,
        dtype: DataType::Uint8,
        peer: 1,
    };
    let wait = Until::after(Duration::from_millis(20));
    let refused = |short: Short| {
        // SAFETY: the buffer has as many bytes.
        let sent = unsafe { engine.send_short(&short, || panic!("it begins"), &wait) };
        // SAFETY: as above.
        sent.is_none() && unsafe { engine.receive_short(&short) }.is_none()
    };
    assert!(refused(Short { peer: 0, ..usual }) && refused(Short { peer: 2, ..usual }));
    assert!(refused(Short {
        count: 1025,
        ..usual
    }));
    // What may be offered where it lies.
    let offers = World::tuned(Through::Default, 2, |_| Tuning {
        whole_message_from: 8,
        ..Tuning::of_process().unwrap()
    });
    // SAFETY: as above.
    assert!(unsafe { offers.0[0].send_short(&usual, || panic!("it begins"), &wait) }.is_none());
    let mut few = Buffer::new(8);
    let eight = transfer(OpKind::Send, 1, &mut few);
    assert!(!offers.0[0].is_short_run(&[&eight]) && engine.is_short_run(&[&eight]));
    // Where the channel is full.
    engine.posted[1].store(engine.map.notes(), Relaxed);
    assert!(refused(usual));
    engine.posted[1].store(0, Relaxed);
    // Nobody takes it: the deadline ends the communicator, and nothing begins any more.
    // SAFETY: as above.
    let late = unsafe { engine.send_short(&usual, || (), &wait) };
    assert_eq!(late.unwrap().unwrap_err().code(), Code::Timeout);
    assert!(refused(usual));
}

#[test]
fn short_messages_that_disagree_are_errors_on_both_sides() {
    let world = World::new(2);
    for round in 0..20 {
        let errors = world.each(|engine| {
            let sends = engine.rank == 0;
            let kind = if sends { OpKind::Send } else { OpKind::Recv };
            let mut odd = Buffer::new(if sends { 3 } else { 4 });
            let error = short_or_long(engine, kind, &mut odd).unwrap_err();
            let mut usual = Buffer::of(&pattern(engine.rank, 0, round, 9));
            short_or_long(engine, kind, &mut usual).unwrap();
            assert_eq!(usual.get(), pattern(0, 0, round, 9));
            error.text().to_owned()
        });
        assert!(errors[0].contains("Send(count 3"), "{}", errors[0]);
        assert_eq!(errors[0], errors[1]);
    }
}

/// Two ranks' AlltoAllv of `count` bytes from each to each; `in_place` from the buffer that it goes to.
fn exchange_all(
    engine: &dyn Engine,
    count: usize,
    in_place: bool,
    wait: &dyn WaitPolicy,
) -> Result<()> {
    let mut exchange = op(OpKind::AllToAllv, 0, DataType::Uint8);
    let content = [
        vec![10 * engine.rank() as u8 + 1; count],
        vec![10 * engine.rank() as u8 + 2; count],
    ]
    .concat();
    let (mut send, mut recv) = (Buffer::of(&content), Buffer::of(&content));
    any_buffers(&mut exchange, &mut send, &mut recv);
    if in_place {
        exchange.send = exchange.recv;
    }
    let (counts, displs) = (vec![count; 2], vec![0, count]);
    exchange.vector = Some(Box::new(VectorCounts {
        send_counts: counts.clone(),
        send_displs: displs.clone(),
        recv_counts: counts,
        recv_displs: displs,
    }));
    run_with(engine, &exchange, wait)?;
    let got = recv.get();
    let from = |rank: usize| 10 * rank as u8 + 1 + engine.rank() as u8;
    assert!(
        got[..count].iter().all(|b| *b == from(0)) && got[count..].iter().all(|b| *b == from(1))
    );
    Ok(())
}

/// The data of small operations lies where others look for a receive buffer, which an AlltoAllv has not announced.
#[test]
fn an_alltoallv_takes_no_data_of_small_operations_for_an_address() {
    for through in [Through::Pointers, Through::Kernel, Through::Heap] {
        // Nothing is small there, unless it is made so.
        let world = World::tuned(through, 2, |rank| Tuning {
            one_exchange: 4096,
            ..through.tuning(rank)
        });
        world.any().each(|engine| {
            // -0.0, and other values whose first bit is set.
            for last in [-0.0f64, -1.5, f64::from_bits(u64::MAX >> 1), 0.0] {
                for _ in 0..2 {
                    let values: Vec<u8> = [last; 14].iter().flat_map(|v| v.to_ne_bytes()).collect();
                    let mut largest = op(OpKind::AllReduce, 14, DataType::Float64);
                    largest.reduction = Reduction::Builtin(RedOp::Max);
                    let (mut send, mut recv) = (Buffer::of(&values), Buffer::new(values.len()));
                    any_buffers(&mut largest, &mut send, &mut recv);
                    run(engine, &largest).unwrap();
                }
                exchange_all(engine, 300_000, false, &Until::long()).unwrap();
            }
        });
        let ways = world.ways();
        assert!(ways.iter().all(|w| w.pieces == 0), "{through:?} {ways:?}");
    }
}

/// What it reads from is a copy of the engine's, whose memory goes back to the system with the call.
#[test]
fn an_alltoallv_in_place_does_not_give_its_copy_back_while_a_rank_reads_from_it() {
    const COUNT: usize = 8 << 20;
    let world = World::through(Through::Pointers, 2);
    let reader = &world.0[1];
    reader.rests.store(1, SeqCst);
    world.any().each(|engine| {
        if engine.rank() == 1 {
            let error = exchange_all(engine, COUNT, true, &Until::long()).unwrap_err();
            assert_eq!(error.code(), Code::RemoteError, "{error}");
            return;
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while reader.rests.load(SeqCst) != 2 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                engine.abort();
                std::thread::sleep(Duration::from_millis(50));
                reader.rests.store(0, SeqCst);
            });
            let error = exchange_all(engine, COUNT, true, &Until::long()).unwrap_err();
            assert_eq!(error.code(), Code::Aborted, "{error}");
        });
    });
}

/// The limit of one exchange is lower with more ranks: nobody may take the shortest way with what others do in steps.
#[test]
fn what_is_done_in_steps_is_not_tiny_for_any_number_of_ranks() {
    for ranks in [2, 100, 585, 586, 1000, 1024] {
        let (segment, _fd) =
            Segment::create_usable_sparse(ShmEngine::segment_bytes(ranks).unwrap()).unwrap();
        let tuning = Tuning::of_process().unwrap();
        let engine = ShmEngine::attach_tuned(Arc::new(segment), 0, ranks, tuning).unwrap();
        for kind in [OpKind::AllReduce, OpKind::AllGather, OpKind::Broadcast] {
            for count in 1..=20 {
                let tiny = Tiny {
                    kind,
                    send: std::ptr::null(),
                    recv: std::ptr::null_mut(),
                    count,
                    dtype: DataType::Float64,
                    op: RedOp::Sum,
                    root: 0,
                };
                let in_steps = engine.goes_in_steps(&op(kind, count, DataType::Float64));
                let takes = engine.takes_tiny(&tiny).is_some();
                assert!(!(takes && in_steps), "{ranks} ranks, {kind:?} of {count}");
                assert_eq!(
                    takes,
                    !in_steps && count <= 14,
                    "{ranks} ranks, {kind:?} of {count}"
                );
            }
        }
    }
}

fn ways(engine: &ShmEngine) -> Ways {
    lock(&engine.direct).ways
}

/// The matrix with ranks that get at each other's buffers in some way, and the proof that they did.
fn matrix_through(through: Through, ranks: u32) {
    let world = World::through(through, ranks);
    let counts = [1, 7, 1000, 30_011];
    matrix_of(&world.any(), &counts);
    let all = world.ways();
    assert!(all.iter().all(|ways| *ways == all[0]), "{all:?}");
    let Ways {
        pieces,
        loads,
        pushes,
        copies,
        ..
    } = all[0];
    // One AlltoAll of each case is in place, and an AlltoAllv in place sends from a copy, which is not in
    // the heap.
    let cases = (counts.len() * DataType::ALL.len()) as u32;
    match through {
        Through::Default => {}
        Through::Segment => assert!(loads + pushes + copies == 0 && pieces > 0, "{all:?}"),
        Through::Pointers => {
            assert!(pieces == cases && copies == 0, "{all:?}");
            assert!(loads > 0 && pushes > 0, "{all:?}");
        }
        Through::Kernel => {
            assert!(pieces == cases && loads + pushes == 0, "{all:?}");
            assert!(copies > 0, "{all:?}");
        }
        Through::Heap => {
            assert!(pieces <= 2 * cases && copies == 0, "{all:?}");
            assert!(loads > pushes && pushes > 0, "{all:?}");
        }
        Through::Mixed => {
            assert!(pieces == cases && copies > 0 && loads > 0, "{all:?}");
        }
    }
}

#[test]
fn matrix_with_pointers() {
    for ranks in [2, 3, 8] {
        matrix_through(Through::Pointers, ranks);
    }
}

#[test]
fn matrix_through_the_segment() {
    for ranks in [2, 4] {
        matrix_through(Through::Segment, ranks);
    }
}

#[test]
fn matrix_with_copies_of_the_kernel() {
    for ranks in [2, 3, 5] {
        matrix_through(Through::Kernel, ranks);
    }
}

#[test]
fn matrix_in_the_heap() {
    for ranks in [2, 3, 5] {
        matrix_through(Through::Heap, ranks);
    }
}

#[test]
fn matrix_of_heap_and_other_memory() {
    for ranks in [2, 4] {
        matrix_through(Through::Mixed, ranks);
    }
}

#[test]
fn matrix_of_16_and_64_ranks() {
    matrix_of(&world(16), &[1, 3001]);
    matrix_of(&world(64), &[0, 5]);
}

#[test]
fn the_largest_number_of_ranks_works_and_more_is_an_error() {
    let world = World::new(MAX_ENGINE_RANKS as u32);
    world.each(|engine| {
        let (send, mut recv) = ([engine.rank as i32; 600], [0i32; 600]);
        for count in [1, 600] {
            let mut sum = op(OpKind::AllReduce, count, DataType::Int32);
            (sum.send, sum.recv) = (send.as_ptr().cast(), recv.as_mut_ptr().cast());
            run(engine, &sum).unwrap();
            let sum = (MAX_ENGINE_RANKS * (MAX_ENGINE_RANKS - 1) / 2) as i32;
            assert!(recv[..count].iter().all(|&x| x == sum));
        }
        let mut message = op(OpKind::Send, 1, DataType::Int32);
        message.send = send.as_ptr().cast();
        let error = run(engine, &message).unwrap_err();
        assert_eq!(error.code(), Code::NotSupported);
        assert!(error.text().contains("up to 128 ranks"), "{error}");
    });
    let error = ShmEngine::segment_bytes(MAX_ENGINE_RANKS as u32 + 1).unwrap_err();
    assert_eq!(error.code(), Code::NotSupported);
    assert_eq!(
        ShmEngine::segment_bytes(0).unwrap_err().code(),
        Code::InvalidArgument
    );
}

const EVERY_WAY: [Through; 5] = [
    Through::Default,
    Through::Segment,
    Through::Kernel,
    Through::Heap,
    Through::Mixed,
];

/// That long messages were read whole, unless everything passes through the segment.
fn assert_whole_messages(world: &World) {
    for ways in world.ways() {
        let whole = world.1 != Through::Segment;
        assert_eq!(ways.messages > 0, whole, "{:?}: {ways:?}", world.1);
        assert_eq!(ways.declined, 0, "{:?}: {ways:?}", world.1);
    }
}

#[test]
fn lone_messages_arrive() {
    for through in EVERY_WAY {
        let world = World::through(through, 3);
        lone_messages(&world.any());
        assert_whole_messages(&world);
    }
}

#[test]
fn groups_of_messages_are_matched_in_order() {
    for (ranks, through) in [
        (1, Through::Default),
        (2, Through::Kernel),
        (3, Through::Segment),
        (3, Through::Mixed),
        (5, Through::Heap),
        (5, Through::Default),
    ] {
        groups_of_messages(&World::through(through, ranks).any());
    }
}

#[test]
fn messages_that_disagree_are_errors_on_both_sides_and_are_dropped() {
    for through in [Through::Default, Through::Segment, Through::Kernel] {
        disagreeing_messages(&World::through(through, 2).any(), None);
    }
}

/// Waits until rank 0 has posted as many messages to rank 1 as there are notes, none of which is taken.
fn until_all_notes_are_posted(engine: &ShmEngine) {
    let posted =
        || (0..engine.map.notes()).all(|n| engine.map.note(0, 1, n).number.load(Acquire) == n + 1);
    let start = Instant::now();
    while !posted() {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "a send waits for the one before it"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn messages_of_a_group_follow_each_other_without_waiting() {
    let lengths: Vec<usize> = (0..80).map(|n| [8, 0, 1, 24, 25, 1024][n % 6]).collect();
    for one_by_one in [true, false] {
        messages_follow_each_other(&short_messages_world(one_by_one), &lengths);
    }
}

/// Two ranks whose groups of short messages of one direction go one by one, or as groups of all kinds do.
fn short_messages_world(one_by_one: bool) -> World {
    World::tuned(Through::Segment, 2, |rank| Tuning {
        whole_message_from: if one_by_one { usize::MAX } else { 0 },
        ..Through::Segment.tuning(rank)
    })
}

fn messages_follow_each_other(world: &World, lengths: &[usize]) {
    world.each(|engine| {
        let messages = lengths.iter().enumerate();
        let contents: Vec<Vec<u8>> = messages.map(|(n, len)| pattern(0, 1, n, *len)).collect();
        let (kind, peer) = match engine.rank {
            0 => (OpKind::Send, 1),
            _ => (OpKind::Recv, 0),
        };
        let mut buffers: Vec<Buffer> = match kind {
            OpKind::Send => contents.iter().map(|c| Buffer::of(c)).collect(),
            _ => lengths.iter().map(|len| Buffer::new(*len)).collect(),
        };
        let ops: Vec<_> = buffers
            .iter_mut()
            .map(|b| transfer(kind, peer, b))
            .collect();
        if engine.rank == 1 {
            until_all_notes_are_posted(engine);
        }
        group(engine, &ops).unwrap();
        for (buffer, content) in buffers.iter().zip(&contents) {
            assert_eq!(buffer.get(), content);
        }
    });
}

#[test]
fn the_first_refused_message_of_many_under_way_is_the_one_that_its_sender_hears_of() {
    for (refused, one_by_one) in [0, 3, 62, 63, 64, 78]
        .into_iter()
        .flat_map(|refused| [(refused, true), (refused, false)])
    {
        let errors = short_messages_world(one_by_one).each(|engine| {
            let (kind, peer) = match engine.rank {
                0 => (OpKind::Send, 1),
                _ => (OpKind::Recv, 0),
            };
            // All that follow are refused as well, but for the last.
            let len = |n: usize| match n < refused || n == 79 {
                true => 8,
                false => 100 + n + usize::from(kind == OpKind::Recv),
            };
            let mut buffers: Vec<Buffer> = (0..80)
                .map(|n| Buffer::of(&pattern(0, 1, n, len(n))))
                .collect();
            let ops: Vec<_> = buffers
                .iter_mut()
                .map(|b| transfer(kind, peer, b))
                .collect();
            if engine.rank == 1 {
                until_all_notes_are_posted(engine);
            }
            let error = group(engine, &ops).unwrap_err();
            assert_eq!(buffers[79].get(), pattern(0, 1, 79, 8));
            error.text().to_owned()
        });
        let sent = format!("Send(count {}, uint8)", 100 + refused);
        assert!(errors[0].contains(&sent), "{refused}: {}", errors[0]);
        assert_eq!(errors[0], errors[1]);
    }
}

#[test]
fn no_verdict_is_lost_when_its_note_is_used_again() {
    for one_by_one in [true, false] {
        refuse_one_of_many_again_and_again(&short_messages_world(one_by_one));
    }
}

fn refuse_one_of_many_again_and_again(world: &World) {
    world.each(|engine| {
        let sends = engine.rank == 0;
        let (kind, peer) = match sends {
            true => (OpKind::Send, 1),
            false => (OpKind::Recv, 0),
        };
        let mut buffers: Vec<Buffer> = (0..80).map(|_| Buffer::new(8)).collect();
        let mut odd = Buffer::new(if sends { 3 } else { 4 });
        let mut ops: Vec<_> = buffers
            .iter_mut()
            .map(|b| transfer(kind, peer, b))
            .collect();
        for round in 0..1500 {
            let refused = round % 80;
            let usual = std::mem::replace(&mut ops[refused], transfer(kind, peer, &mut odd));
            let result = group(engine, &ops);
            assert!(result.is_err(), "message {refused} of round {round}");
            ops[refused] = usual;
        }
    });
}

#[test]
fn a_message_that_the_receiver_cannot_read_goes_in_pieces() {
    let world = World::through(Through::Kernel, 3);
    // Rank 1 reads something else where rank 0 keeps its number.
    world.0[0].map.fact(0, Fact::ProbeValue).store(1, Relaxed);
    for round in 0..3 {
        world.each(|engine| {
            let (next, before) = ((engine.rank + 1) % 3, (engine.rank + 2) % 3);
            let mut send = Buffer::of(&pattern(engine.rank, next, round, 600_000));
            let mut recv = Buffer::new(600_000);
            let ops = [
                transfer(OpKind::Send, next, &mut send),
                transfer(OpKind::Recv, before, &mut recv),
            ];
            group(engine, &ops).unwrap();
            assert!(recv.get() == pattern(before, engine.rank, round, 600_000));
        });
    }
    // Asked once, declined once: then rank 0 does not offer any more.
    let ways = world.ways();
    let of = |rank: usize| (ways[rank].messages, ways[rank].declined);
    assert_eq!([of(0), of(1), of(2)], [(3, 0), (0, 1), (3, 0)]);
}

/// What lies in a heap is offered by itself, and declined by itself: once.
#[test]
fn a_heap_that_the_receiver_cannot_map_is_offered_once() {
    let world = World::through(Through::Heap, 2);
    // As if rank 0 were in another pid namespace.
    world.0[0].map.fact(0, Fact::PidNamespace).store(1, Relaxed);
    for round in 0..4 {
        world.any().each(|engine| {
            let mut buffer = match engine.rank() {
                0 => Buffer::of(&pattern(0, 1, round, 300_000)),
                _ => Buffer::new(300_000),
            };
            let kind = [OpKind::Send, OpKind::Recv][engine.rank()];
            run(engine, &transfer(kind, 1 - engine.rank(), &mut buffer)).unwrap();
            assert!(buffer.get() == pattern(0, 1, round, 300_000));
        });
    }
    assert_eq!(ways(&world.0[1]).declined, 1);
}

/// Memory of the other kind is offered all the same.
#[test]
fn what_a_receiver_declines_is_one_kind_of_memory() {
    for (through, declined) in [(Through::Kernel, 1 << 63), (Through::Heap, 0)] {
        let world = World::through(through, 2);
        world.0[0].is_declined(1, declined).store(true, Relaxed);
        world.any().each(|engine| {
            let mut buffer = Buffer::of(&pattern(0, 1, 0, 300_000));
            let kind = [OpKind::Send, OpKind::Recv][engine.rank()];
            run(engine, &transfer(kind, 1 - engine.rank(), &mut buffer)).unwrap();
        });
        assert_eq!(ways(&world.0[1]).messages, 1, "{through:?}");
    }
}

/// A sender that can't go on with a message fails, but what it had posted of others may be there already.
#[test]
fn a_message_that_breaks_off_is_not_continued_with_the_next_one() {
    let world = World::through(Through::Segment, 2);
    let piece = world.0[0].map.piece_bytes();
    let sender = &world.0[0];
    for (at, (message, bytes)) in [(1, 2 * piece), (2, piece)].into_iter().enumerate() {
        let note = sender.map.note(0, 1, at as u64);
        note.message.store(message, Relaxed);
        note.count.store(bytes as u64, Relaxed);
        note.dtype.store(DataType::Uint8 as u32, Relaxed);
        note.slot.store(at as u64, Relaxed);
        note.number.store(at as u64 + 1, Release);
    }
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Who is told before it begins takes nothing.
            while sender.map.taken(0, 1).load(Acquire) == 0 {
                std::thread::yield_now();
            }
            sender.publish_failure(&Error::new(
                Code::SystemError,
                "a copy from the device failed",
            ));
        });
        let mut recv = Buffer::new(2 * piece);
        run(&*world.0[1], &transfer(OpKind::Recv, 0, &mut recv)).unwrap_err()
    });
    assert!(
        error.text().contains("a copy from the device failed"),
        "{error}"
    );
}

#[test]
fn one_rank_that_cannot_read_another_keeps_all_from_it() {
    for (odd, fact) in [(0, Fact::ProbeValue), (2, Fact::PidNamespace)] {
        let world = World::through(Through::Kernel, 3);
        world.0[0].map.fact(odd, fact).store(1, Relaxed);
        matrix_of(&world.any(), &[1000]);
        for ways in world.ways() {
            assert!(ways.pieces > 0 && ways.loads + ways.copies == 0, "{ways:?}");
        }
    }
}

#[test]
fn a_heap_that_one_rank_cannot_map_is_used_by_none() {
    for mapped in [true, false] {
        // Rank 0 has its buffers in the heap, rank 1 has not.
        let world = World::tuned(Through::Mixed, 2, |rank| Tuning {
            single_copy: SingleCopy::Off,
            ..Through::Mixed.tuning(rank)
        });
        if !mapped {
            // To rank 1 the number of rank 0's process means nothing.
            world.0[0].map.fact(1, Fact::PidNamespace).store(1, Relaxed);
        }
        matrix_of(&world.any(), &[1000]);
        for ways in world.ways() {
            assert!(ways.pieces > 0 && ways.copies == 0, "{ways:?}");
            assert_eq!(ways.loads > 0, mapped, "{ways:?}");
        }
    }
}

#[test]
fn both_ways_are_tried_and_one_is_chosen_for_a_while() {
    // Costs of the segment and of copies, round by round, and which is chosen for how many operations.
    let rounds = [
        ((40u64, 50u64), false, 400u64),
        ((40, 30), true, 400),
        ((70, 30), true, 1600),
        ((30, 70), false, 1600),
        ((30, 31), false, 400),
    ];
    let mut trial = Trial::default();
    for (number, ((segment, copies), chosen, until)) in rounds.into_iter().enumerate() {
        let trials = if number == 0 { 12 } else { 8 };
        for operation in 0..until {
            let (single_copy, timed) = trial.next();
            if operation < trials {
                // Two of each way in turns, of which the second is timed.
                assert_eq!(single_copy, operation % 4 >= 2, "{number}: {operation}");
                let settled = number > 0 || operation >= 4;
                assert_eq!(
                    timed,
                    settled && operation % 2 == 1,
                    "{number}: {operation}"
                );
                // Only the least of a way counts.
                let least = if single_copy { copies } else { segment };
                if timed {
                    trial.learn(single_copy, least + operation % 4 * 20);
                    trial.learn(single_copy, least);
                }
            } else {
                assert_eq!(
                    (single_copy, timed),
                    (chosen, false),
                    "{number}: {operation}"
                );
            }
        }
    }

    // On real operations, of which all ranks choose the same.
    let world = World::tuned(Through::Kernel, 3, |rank| Tuning {
        single_copy: SingleCopy::Auto,
        ..Through::Kernel.tuning(rank)
    });
    world.each(|engine| {
        for round in 0..30 {
            let mut send = Buffer::of(&[1 + engine.rank as u8; 5000]);
            let mut recv = Buffer::new(5000);
            let mut sum = op(OpKind::AllReduce, 5000, DataType::Uint8);
            (sum.send, sum.recv) = (send.ptr(), recv.ptr());
            run(engine, &sum).unwrap();
            assert!(recv.get().iter().all(|&byte| byte == 6), "round {round}");
        }
    });
    let ways = world.ways();
    assert!(ways.iter().all(|of| *of == ways[0]), "{ways:?}");
    assert_eq!(ways[0].pieces + ways[0].copies, 30);
    assert!(ways[0].pieces >= 6 && ways[0].copies >= 6, "{ways:?}");
    assert!(ways[0].pieces == 6 || ways[0].copies == 6, "{ways:?}");
}

/// Ranks of two processes that choose how their messages go.
fn choosing_world() -> World {
    World::tuned(Through::Kernel, 2, |rank| Tuning {
        single_copy: SingleCopy::Auto,
        ..Through::Kernel.tuning(rank)
    })
}

/// Sends so many messages from rank 0 to rank 1, alone or in groups of so many.
fn send_messages(world: &World, messages: usize, together: usize, bytes: usize) {
    world.each(|engine| {
        let (kind, peer) = match engine.rank {
            0 => (OpKind::Send, 1),
            _ => (OpKind::Recv, 0),
        };
        for round in 0..messages / together {
            let content = |n: usize| pattern(0, 1, round * together + n, bytes);
            let mut buffers: Vec<Buffer> = (0..together)
                .map(|n| match kind {
                    OpKind::Send => Buffer::of(&content(n)),
                    _ => Buffer::new(bytes),
                })
                .collect();
            let ops: Vec<_> = buffers
                .iter_mut()
                .map(|b| transfer(kind, peer, b))
                .collect();
            match &ops[..] {
                [one] => run(engine, one).unwrap(),
                many => group(engine, many).unwrap(),
            }
            for (n, buffer) in buffers.iter().enumerate() {
                assert!(buffer.get() == content(n), "message {n} of round {round}");
            }
        }
    });
}

#[test]
fn a_sender_tries_both_ways_of_its_messages_and_stays_with_one() {
    for bytes in [5000, 200_000] {
        let world = choosing_world();
        send_messages(&world, 40, 1, bytes);
        // Three turns of two messages for each way, of which the first is not timed; then one way for all.
        let whole = ways(&world.0[1]).messages;
        assert!(
            whole == 6 || whole == 6 + 28,
            "{bytes}: {whole} were read whole"
        );
        // Those of groups are tried apart: of a group one at most is timed at a time.
        send_messages(&world, 40 * 20, 20, bytes);
        let more = ways(&world.0[1]).messages - whole;
        assert!(
            (6..=800 - 6).contains(&more),
            "{bytes}: {more} were read whole"
        );
        assert_eq!(ways(&world.0[1]).declined, 0);
    }
}

#[test]
fn a_timed_message_that_is_refused_does_not_end_the_trials() {
    let world = choosing_world();
    // The sixth is the first that is timed.
    send_messages(&world, 5, 1, 5000);
    world.each(|engine| {
        let (kind, peer) = match engine.rank {
            0 => (OpKind::Send, 1),
            _ => (OpKind::Recv, 0),
        };
        let mut odd = Buffer::new(5000 + engine.rank);
        run(engine, &transfer(kind, peer, &mut odd)).unwrap_err();
    });
    send_messages(&world, 34, 1, 5000);
    let whole = ways(&world.0[1]).messages;
    assert!(whole == 6 || whole == 6 + 28, "{whole} were read whole");
}

#[test]
fn what_a_timed_message_has_cost_decides() {
    let world = choosing_world();
    let (engine, buffer) = (&world.0[0], [0u8; 5000]);
    for (lone, whole_is_better) in [(true, true), (false, false)] {
        let offer = || engine.offer(1, buffer.as_ptr(), buffer.len(), lone);
        let mut timed = Vec::new();
        for _ in 0..12 {
            let (word, tried) = offer();
            if let Some(tried) = tried {
                // Until it is known what it has cost, the others aren't tried.
                assert!(offer().1.is_none() && offer().1.is_none());
                let cost = if (word != 0) == whole_is_better {
                    10
                } else {
                    20
                };
                engine.learn_trial(tried, Some(cost));
                timed.push(word != 0);
            }
        }
        assert_eq!(timed, [false, true, false, true]);
        for _ in 0..100 {
            let (word, tried) = offer();
            assert!(tried.is_none());
            assert_eq!(word != 0, whole_is_better);
        }
    }
}

/// Alone, where ranks share cores, a message costs what both threads run; else what passes until it is there. Of many
/// together the slower side counts.
#[test]
fn what_a_message_costs_depends_on_who_shares_cores() {
    // Alone or not, on cores of their own or not, what copying into the channel took; whether a message is rather read
    // whole.
    for (lone, spins, all, whole) in [
        (true, false, 45, true),
        (true, true, 45, false),
        (true, true, 90, false),
        (false, false, 45, false),
        (false, false, 90, true),
        (false, true, 90, true),
    ] {
        let world = choosing_world();
        let (engine, buffer) = (&world.0[0], [0u8; 5000]);
        engine.spins.store(spins, Relaxed);
        for _ in 0..12 {
            let (word, trial) = engine.offer(1, buffer.as_ptr(), buffer.len(), lone);
            let Some(trial) = trial else { continue };
            let (receiver, first, all) = match word {
                0 => (10_000, 1000, all * 1000),
                _ => (50_000, 0, 0),
            };
            engine.learn_message(&Timing { trial, first, all }, receiver, buffer.len());
        }
        let (word, _) = engine.offer(1, buffer.as_ptr(), buffer.len(), lone);
        assert_eq!(word != 0, whole, "{lone} {spins} {all}");
    }
}

#[test]
fn a_lone_message_is_timed_while_threads_run_where_ranks_share_cores() {
    for (spins, together, verdict) in [
        (false, 1, TIMED_RUNNING),
        (true, 1, TIMED),
        (false, 2, TIMED),
    ] {
        let world = choosing_world();
        for engine in &world.0 {
            engine.spins.store(spins, Relaxed);
        }
        // The sixth is the first that is timed.
        send_messages(&world, 6, together, 5000);
        let note = world.0[0].map.note(0, 1, 5);
        assert_eq!(note.verdict.load(Relaxed), verdict, "{spins} {together}");
    }
}

/// Of a message whose second piece comes late, the receiver says how long it took or how long its thread ran.
#[test]
fn a_receiver_says_what_its_sender_wants_to_know() {
    const LATE: Duration = Duration::from_millis(100);
    for (verdict, all) in [(TIMED, true), (TIMED_RUNNING, false)] {
        let world = World::through(Through::Segment, 2);
        let sender = &world.0[0];
        let piece = sender.map.piece_bytes();
        let post = |at: u64| {
            let note = sender.map.note(0, 1, at);
            note.message.store(1, Relaxed);
            note.count.store(2 * piece as u64, Relaxed);
            note.dtype.store(DataType::Uint8 as u32, Relaxed);
            note.verdict.store(verdict, Relaxed);
            note.slot.store(at, Relaxed);
            note.number.store(at + 1, Release);
        };
        post(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while sender.map.taken(0, 1).load(Acquire) == 0 {
                    std::thread::yield_now();
                }
                std::thread::sleep(LATE);
                post(1);
            });
            let mut recv = Buffer::new(2 * piece);
            run(&*world.0[1], &transfer(OpKind::Recv, 0, &mut recv)).unwrap();
        });
        let took = Duration::from_nanos(sender.map.note(0, 1, 1).count.load(Relaxed));
        assert_eq!(took >= LATE, all, "{took:?}");
    }
}

/// What a collective that is tried has cost is what the thread ran, where ranks share cores.
#[test]
fn a_collective_is_timed_while_threads_run_where_ranks_share_cores() {
    let world = World::new(2);
    let engine = &world.0[0];
    for spins in [true, false] {
        engine.spins.store(spins, Relaxed);
        let clock = engine.stopwatch();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(clock.nanoseconds() >= 50_000_000, spins);
    }
}

#[test]
fn cores_are_few_where_there_are_fewer_than_ranks() {
    let world = World::new(3);
    let engine = &world.0[0];
    for (cpus, few) in [(0b11, true), (0b1011, false)] {
        for word in 0..CPU_WORDS {
            let bits = if word == 1 { cpus } else { 0 };
            engine.map.cpus(word).store(bits, Relaxed);
        }
        engine.choose_wait();
        assert_eq!(engine.few_cores.load(Relaxed), few);
        let enough = !few && engine.quota.is_none_or(|cores| cores >= 3);
        assert_eq!(engine.spins.load(Relaxed), enough);
    }
}

#[test]
fn two_ranks_that_send_before_they_receive_do_not_block_each_other() {
    let piece = World::new(2).0[0].map.piece_bytes();
    for through in [
        Through::Kernel,
        Through::Segment,
        Through::Heap,
        Through::Pointers,
    ] {
        let world = World::through(through, 2);
        for bytes in [
            1,
            24,
            25,
            1024,
            5000,
            3 * piece + 1,
            CHANNEL_DEPTH as usize * piece,
        ] {
            world.each(|engine| {
                let peer = 1 - engine.rank;
                for round in 0..3 {
                    let content = |from: usize, to: usize| pattern(from, to, round, bytes);
                    let mut send = Buffer::of(&content(engine.rank, peer));
                    let mut recv = Buffer::new(bytes);
                    let wait = Until::after(Duration::from_secs(20));
                    run_with(engine, &transfer(OpKind::Send, peer, &mut send), &wait).unwrap();
                    // It was taken out of the caller's buffer.
                    send = Buffer::new(bytes);
                    run_with(engine, &transfer(OpKind::Recv, peer, &mut recv), &wait).unwrap();
                    assert!(
                        recv.get() == content(peer, engine.rank),
                        "{through:?}: {bytes}"
                    );
                    drop(send);
                }
            });
        }
    }
}

/// Rank 0 sends messages of so many bytes alone, one after the other, while rank 1 waits for it with one of its own; then
/// rank 1 takes them all. How many of rank 0's offers were taken back.
fn sent_alone_before_they_are_received(world: &World, sizes: &[usize], limit: Duration) -> u32 {
    let all_sent = AtomicBool::new(false);
    world.each(|engine| {
        let (rank, peer) = (engine.rank, 1 - engine.rank);
        let wait = Until::after(Duration::from_secs(20));
        let send = |bytes: usize, round: usize| {
            let mut send = Buffer::of(&pattern(rank, peer, round, bytes));
            run_with(engine, &transfer(OpKind::Send, peer, &mut send), &wait).unwrap();
            // It is the caller's again.
            send.write(0, &vec![0xEE; bytes]);
        };
        let receive = |bytes: usize, round: usize| {
            let mut recv = Buffer::new(bytes);
            run_with(engine, &transfer(OpKind::Recv, peer, &mut recv), &wait).unwrap();
            let expected = pattern(peer, rank, round, bytes);
            assert!(
                recv.get() == expected,
                "{:?}: {round} of {sizes:?}",
                world.1
            );
        };
        if rank == 1 {
            // It returns as soon as there is something for rank 1.
            send(24, 0);
            let since = Instant::now();
            while !all_sent.load(SeqCst) && since.elapsed() < limit {
                std::thread::sleep(Duration::from_millis(1));
            }
            (0..sizes.len()).for_each(|round| receive(sizes[round], round));
        } else {
            while !engine.has_unreceived() {
                std::thread::yield_now();
            }
            (0..sizes.len()).for_each(|round| send(sizes[round], round));
            all_sent.store(true, SeqCst);
            receive(24, 0);
        }
    });
    ways(&world.0[0]).taken_back
}

/// Pieces of a message whose offer is taken back lie beside those of messages that were sent before, which the receiver
/// has not taken.
#[test]
fn a_message_that_is_taken_back_leaves_earlier_ones_alone() {
    let piece = World::new(2).0[0].map.piece_bytes();
    for through in [Through::Kernel, Through::Heap, Through::Pointers] {
        for sizes in [
            &[4096, 2 * piece + 1][..],
            &[4096, 3 * piece],
            &[4096, 4096, 2 * piece],
            &[2893, 41, 13, 32_000],
            &[2 * piece, 17, 2 * piece],
            &[20_000, 20_000, 20_000],
            // More than there is room for: the last has to wait.
            &[4096, 4 * piece],
            &[4096, 4096, 3 * piece],
            &[2 * piece, 17, 3 * piece],
        ] {
            // Some messages are to go in pieces at once, as the sizes of a process have it.
            for from in [0, Tuning::of_process().unwrap().whole_message_from] {
                let world = World::tuned(through, 2, |rank| Tuning {
                    whole_message_from: from,
                    ..through.tuning(rank)
                });
                let pieces: usize = sizes.iter().map(|bytes| bytes.div_ceil(piece)).sum();
                let fit = pieces <= CHANNEL_DEPTH as usize;
                // All that fit are sent, however long it takes.
                let limit = Duration::from_millis(if fit { 10_000 } else { 30 });
                let taken_back = sent_alone_before_they_are_received(&world, sizes, limit);
                assert!(taken_back > 0 || !fit, "{through:?}: {sizes:?}");
            }
        }
    }
}

/// Messages that lie in the channel together need no more room if they were offered where they are first: neither of two
/// ranks that send several before they receive blocks the other.
#[test]
fn two_ranks_that_send_several_messages_before_they_receive_do_not_block_each_other() {
    // With many ranks a channel has as few notes as slots.
    for (ranks, through) in [
        (2, Through::Kernel),
        (2, Through::Segment),
        (2, Through::Heap),
        (2, Through::Pointers),
        (9, Through::Kernel),
        (16, Through::Pointers),
    ] {
        let piece = World::new(ranks).0[0].map.piece_bytes();
        for from in [0, Tuning::of_process().unwrap().whole_message_from] {
            let world = World::tuned(through, ranks, |rank| Tuning {
                whole_message_from: from,
                ..through.tuning(rank)
            });
            for sizes in [
                &[2 * piece, 2 * piece][..],
                &[4096, 3 * piece],
                &[3 * piece, piece],
                &[piece, piece - 100, piece, piece - 1],
                &[CHANNEL_DEPTH as usize * piece],
            ] {
                world.each(|engine| {
                    let (rank, peer) = (engine.rank, engine.rank ^ 1);
                    let wait = Until::after(Duration::from_secs(20));
                    let all = || sizes.iter().enumerate().map(|(n, bytes)| (n, *bytes));
                    for (round, bytes) in all().filter(|_| rank < 2) {
                        let mut send = Buffer::of(&pattern(rank, peer, round, bytes));
                        let op = transfer(OpKind::Send, peer, &mut send);
                        run_with(engine, &op, &wait).unwrap();
                    }
                    for (round, bytes) in all().filter(|_| rank < 2) {
                        let mut recv = Buffer::new(bytes);
                        let op = transfer(OpKind::Recv, peer, &mut recv);
                        run_with(engine, &op, &wait).unwrap();
                        let expected = pattern(peer, rank, round, bytes);
                        assert!(recv.get() == expected, "{through:?}: {round} of {sizes:?}");
                    }
                });
            }
        }
    }
}

/// What two ranks refuse of each other's long messages leaves the room to the next ones, although neither receives before
/// both have sent them.
#[test]
fn what_is_left_of_a_refused_message_takes_no_room() {
    for (ranks, through) in [
        (2, Through::Kernel),
        (2, Through::Segment),
        (9, Through::Segment),
        (9, Through::Pointers),
    ] {
        let world = World::through(through, ranks);
        let bytes = CHANNEL_DEPTH as usize * world.0[0].map.piece_bytes();
        world.each(|engine| {
            let (rank, peer) = (engine.rank, engine.rank ^ 1);
            let wait = Until::after(Duration::from_secs(20));
            let move_one =
                |kind, buffer: &mut Buffer| run_with(engine, &transfer(kind, peer, buffer), &wait);
            for round in 0..if rank < 2 { 20 } else { 0 } {
                let mut send = Buffer::of(&pattern(rank, peer, round, bytes));
                let mut recv = Buffer::new(bytes - round % 2);
                // Every other one is refused, of which its sender does not learn if it lies in the channel.
                let sent = move_one(OpKind::Send, &mut send);
                assert!(sent.is_ok() || round % 2 == 1, "{sent:?}");
                let received = move_one(OpKind::Recv, &mut recv);
                assert_eq!(received.is_err(), round % 2 == 1, "{received:?}");
                let expected = pattern(peer, rank, round, bytes);
                assert!(received.is_err() || recv.get() == expected);
            }
        });
    }
}

/// Whoever refuses a message drops what has come of it, also if it never waits in a send or receive again.
#[test]
fn what_has_come_of_a_refused_message_is_dropped_at_once() {
    let world = World::through(Through::Segment, 2);
    let all_sent = AtomicBool::new(false);
    world.each(|engine| {
        let peer = 1 - engine.rank;
        let mut usual = Buffer::new(8);
        let mut odd = Buffer::new(100_000 + engine.rank);
        if engine.rank == 1 {
            // Rank 0's message is done once it lies in the channel, as this one is there.
            run(engine, &transfer(OpKind::Send, peer, &mut usual)).unwrap();
            while !all_sent.load(SeqCst) {
                std::thread::yield_now();
            }
            run(engine, &transfer(OpKind::Recv, peer, &mut odd)).unwrap_err();
            assert_eq!(engine.map.taken(0, 1).load(Relaxed), 4);
        } else {
            while !engine.has_unreceived() {
                std::thread::yield_now();
            }
            run(engine, &transfer(OpKind::Send, peer, &mut odd)).unwrap();
            all_sent.store(true, SeqCst);
            run(engine, &transfer(OpKind::Recv, peer, &mut usual)).unwrap();
        }
    });
}

/// A piece of a refused message that comes late is dropped by a rank that waits for something else: in a send, in a group of
/// short ones, in a group of short receives from another.
#[test]
fn a_rank_that_waits_drops_what_it_has_refused() {
    for (sends, together) in [(true, 1), (true, 2), (false, 2)] {
        let world = World::tuned(Through::Segment, 3, |rank| Tuning {
            whole_message_from: usize::MAX,
            ..Through::Segment.tuning(rank)
        });
        let kinds = [OpKind::Send, OpKind::Recv];
        let refused = world.each(|engine| {
            let mut odd = Buffer::new(50_000 + engine.rank);
            let other = 1usize.wrapping_sub(engine.rank);
            engine.rank == 2 || run(engine, &transfer(kinds[engine.rank], other, &mut odd)).is_err()
        });
        assert_eq!(refused, [true; 3]);
        // Rank 1 waits for rank 2 until this is dropped.
        let dropped = AtomicBool::new(false);
        world.each(|engine| {
            if engine.rank == 0 {
                // It was about to post a piece when its message was refused.
                let (piece, message) = (&engine.posted[1], engine.messages[1].load(Relaxed));
                let late = piece.fetch_add(1, Relaxed);
                std::thread::sleep(Duration::from_millis(5));
                let note = engine.map.note(0, 1, late);
                note.message.store(message, Relaxed);
                note.number.store(late + 1, Release);
                engine.ring();
                let since = Instant::now();
                while engine.map.taken(0, 1).load(Acquire) <= late {
                    let waited = since.elapsed();
                    assert!(waited < Duration::from_secs(5), "it stays: {together}");
                    std::thread::yield_now();
                }
                dropped.store(true, SeqCst);
                return;
            }
            let since = Instant::now();
            while engine.rank == 2 && !dropped.load(SeqCst) {
                assert!(since.elapsed() < Duration::from_secs(10));
                std::thread::yield_now();
            }
            let kind = kinds[usize::from(sends != (engine.rank == 1))];
            let mut buffers: Vec<Buffer> = (0..together).map(|_| Buffer::new(8)).collect();
            let ops: Vec<_> = buffers
                .iter_mut()
                .map(|buffer| transfer(kind, 3 - engine.rank, buffer))
                .collect();
            match &ops[..] {
                [one] => run(engine, one).unwrap(),
                many => group(engine, many).unwrap(),
            }
        });
    }
}

/// A rank that waits in a collective drops what comes late of what it has refused.
#[test]
fn a_collective_that_waits_drops_what_was_refused() {
    let world = World::through(Through::Segment, 2);
    world.each(|engine| {
        let mut odd = Buffer::new(50_000 + engine.rank);
        let kind = [OpKind::Send, OpKind::Recv][engine.rank];
        run(engine, &transfer(kind, 1 - engine.rank, &mut odd)).unwrap_err();
    });
    world.each(|engine| {
        if engine.rank == 0 {
            let late = engine.posted[1].fetch_add(1, Relaxed);
            std::thread::sleep(Duration::from_millis(5));
            let note = engine.map.note(0, 1, late);
            let message = engine.messages[1].load(Relaxed);
            note.message.store(message, Relaxed);
            note.number.store(late + 1, Release);
            engine.ring();
            let since = Instant::now();
            while engine.map.taken(0, 1).load(Acquire) <= late {
                assert!(since.elapsed() < Duration::from_secs(5), "it stays");
                std::thread::yield_now();
            }
        }
        run(engine, &op(OpKind::Barrier, 0, DataType::Int8)).unwrap();
    });
}

/// Who has refused a message that was offered where it lies shows that the offer is over: its sender can't take it back, as
/// it does with one that nobody has looked at.
#[test]
fn an_offer_that_is_refused_is_over() {
    let world = World::through(Through::Kernel, 2);
    world.each(|engine| {
        let mut odd = Buffer::new(50_000 + engine.rank);
        let kind = [OpKind::Send, OpKind::Recv][engine.rank];
        run(engine, &transfer(kind, 1 - engine.rank, &mut odd)).unwrap_err();
    });
    let note = world.0[0].map.note(0, 1, 0);
    assert!(protocol::look(note.whole) == protocol::Posted::Nothing);
}

/// The sender of a refused message uses its slots again at once.
#[test]
fn slots_of_a_refused_message_are_free() {
    let world = World::through(Through::Segment, 2);
    world.each(|engine| {
        let mut odd = Buffer::new(5000 + engine.rank);
        let kind = [OpKind::Send, OpKind::Recv][engine.rank];
        run(engine, &transfer(kind, 1 - engine.rank, &mut odd)).unwrap_err();
    });
    let engine = &world.0[0];
    assert_eq!(engine.slots[1].load(Relaxed), 1);
    let filled = engine.filled[1].each_ref().map(|f| f.load(Relaxed));
    assert_eq!(filled, [0; 4]);
}

/// Of a refused message nobody reads the slots any more, whenever its notes are dropped; those of others stay.
#[test]
fn a_sender_that_is_refused_has_its_slots_back() {
    let world = World::through(Through::Segment, 2);
    let engine = &world.0[0];
    for (last, freed) in [(None, [0; 4]), (Some(6), [0, 0, 7, 8])] {
        engine.posted[1].store(8, Relaxed);
        for (filled, piece) in engine.filled[1].iter().zip(5..) {
            filled.store(piece, Relaxed);
        }
        engine.take_slots_back(1, 4..last.unwrap_or(8));
        let filled = engine.filled[1].each_ref().map(|f| f.load(Relaxed));
        assert_eq!(filled, freed);
    }
}

#[test]
fn a_failed_operation_returns_only_when_its_buffers_are_left() {
    let world = World::through(Through::Pointers, 2);
    let late = Duration::from_millis(120);
    let barrier = op(OpKind::Barrier, 0, DataType::Int8);
    let start = Instant::now();
    // As if rank 1 were in the middle of a copy.
    let visiting = world.0[0].map.visiting(1);
    visiting.store(1, Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(late);
            visiting.store(0, Release);
        });
        let wait = Until::after(Duration::from_millis(5));
        let error = run_with(&*world.0[0], &barrier, &wait).unwrap_err();
        assert_eq!(error.code(), Code::Timeout);
    });
    assert!(start.elapsed() >= late);
    // A rank of another process is not waited for without end.
    let world = World::through(Through::Kernel, 2);
    world.0[0].map.visiting(1).store(1, Relaxed);
    let start = Instant::now();
    let wait = Until::after(Duration::from_millis(5));
    run_with(&*world.0[0], &barrier, &wait).unwrap_err();
    let took = start.elapsed();
    assert!(
        took >= Duration::from_millis(400) && took < Duration::from_secs(20),
        "{took:?}"
    );
    // One that has died is not waited for at all.
    let world = World::through(Through::Kernel, 2);
    world.0[0].map.visiting(1).store(1, Relaxed);
    world.0[0].map.fact(1, Fact::StartTime).store(1, Relaxed);
    let start = Instant::now();
    run_with(&*world.0[0], &barrier, &wait).unwrap_err();
    assert!(start.elapsed() < Duration::from_millis(400));
}

/// An operation that goes before its loan has ended has failed for all, and leaves its buffer to its caller only when nobody
/// is in it.
#[test]
fn a_loan_that_does_not_end_is_a_failure_of_all() {
    let mut buffer = Buffer::new(LENT);
    let sum = HostOp {
        send: buffer.ptr(),
        recv: buffer.ptr(),
        ..op(OpKind::AllReduce, LENT, DataType::Uint8)
    };
    let lend = |engine: &ShmEngine, ends: bool| {
        let direct = &mut *lock(&engine.direct);
        let loan = engine.announce(direct, &sum, LENT, 0);
        if ends {
            loan.ended();
        }
    };
    let world = World::through(Through::Pointers, 2);
    lend(&world.0[0], true);
    world.0[1].check_failure().unwrap();
    lend(&world.0[0], false);
    let error = world.0[1].check_failure().unwrap_err();
    assert!(error.text().contains("before it was done"), "{error}");
    // What a panic leaves.
    let world = World::through(Through::Pointers, 2);
    let visiting = world.0[0].map.visiting(1);
    visiting.store(1, Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while world.0[1].check_failure().is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(50));
            visiting.store(0, Release);
        });
        let engine = &world.0[0];
        let panics = std::panic::AssertUnwindSafe(|| {
            let direct = &mut *lock(&engine.direct);
            let _loan = engine.announce(direct, &sum, LENT, 0);
            panic!("a test");
        });
        std::panic::catch_unwind(panics).unwrap_err();
        assert_eq!(visiting.load(Acquire), 0, "a rank is still in the buffer");
    });
}

/// Also if whoever met it never gets so far as to say what.
#[test]
fn a_failure_that_is_being_told_counts() {
    let world = World::new(2);
    let state = world.0[0].map.failure().state;
    state.store(super::wait::WRITING, Release);
    let barrier = op(OpKind::Barrier, 0, DataType::Int8);
    let wait = Until::after(Duration::from_secs(2));
    let error = run_with(&*world.0[1], &barrier, &wait).unwrap_err();
    assert_eq!(error.code(), Code::RemoteError, "{error}");
    assert!(error.text().contains("lost before it said why"), "{error}");
}

/// What the kernel copies goes in steps: all of it arrives, and after a failure no further one begins.
#[test]
fn large_copies_of_the_kernel_go_in_steps() {
    const STEP: usize = 2 << 20;
    const BYTES: usize = 5 << 20;
    for fails in [false, true] {
        let world = World::through(Through::Kernel, 2);
        let reader = &world.0[1];
        reader.rests.store(u32::from(fails), SeqCst);
        world.each(|engine| {
            let wait = Until::long();
            if engine.rank == 0 {
                let mut send = Buffer::of(&pattern(0, 1, 0, BYTES));
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        while fails && reader.rests.load(SeqCst) != 2 {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        if fails {
                            engine.abort();
                            reader.rests.store(0, SeqCst);
                        }
                    });
                    let sent = run_with(engine, &transfer(OpKind::Send, 1, &mut send), &wait);
                    assert_eq!(sent.is_err(), fails);
                });
                return;
            }
            let mut recv = Buffer::of(&vec![0; BYTES]);
            let received = run_with(engine, &transfer(OpKind::Recv, 0, &mut recv), &wait);
            assert_eq!(received.is_err(), fails);
            let content = pattern(0, 1, 0, BYTES);
            let (first, rest) = recv.get().split_at(STEP);
            assert!(first == &content[..STEP]);
            match fails {
                true => assert!(rest.iter().all(|byte| *byte == 0)),
                false => assert!(rest == &content[STEP..]),
            }
        });
        assert_eq!(ways(reader).messages, u32::from(!fails));
    }
}

#[test]
fn memory_that_is_gone_is_an_error_that_names_its_rank() {
    let world = World::through(Through::Kernel, 2);
    // Both can read each other; then rank 1's buffer is not there.
    let errors = world.each(|engine| {
        let mut recv = Buffer::new(5000);
        for bad in [false, true] {
            let mut send = Buffer::new(5000);
            let mut copy = op(OpKind::Broadcast, 5000, DataType::Uint8);
            copy.root = 1;
            copy.recv = recv.ptr();
            copy.send = send.ptr();
            if bad && engine.rank == 1 {
                // The root's own copy is in place: it touches nothing.
                copy.send = std::ptr::without_provenance(4096);
                copy.recv = copy.send.cast_mut();
            }
            match run(engine, &copy) {
                Ok(()) => assert!(!bad),
                Err(error) => return error,
            }
        }
        Error::internal("no error")
    });
    assert!(
        errors.iter().all(|e| e.code() == Code::RemoteError),
        "{errors:?}"
    );
    assert!(
        errors[0].text().contains("a buffer of rank 1"),
        "{}",
        errors[0]
    );
    assert!(
        errors[1]
            .text()
            .contains("rank 0 failed: a buffer of rank 1"),
        "{}",
        errors[1]
    );
}

#[test]
fn an_abort_ends_the_waits_of_every_rank() {
    for kind in [OpKind::Barrier, OpKind::Recv] {
        let world = World::new(3);
        let start = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                world.0[0].abort();
                world.0[0].abort();
            });
            // Rank 2 never calls.
            for engine in &world.0[..2] {
                scope.spawn(move || {
                    let mut buffer = Buffer::new(8);
                    let op = match kind {
                        OpKind::Recv => transfer(kind, 2, &mut buffer),
                        _ => op(kind, 0, DataType::Int8),
                    };
                    let error = run(&**engine, &op).unwrap_err();
                    let own = engine.rank == 0;
                    let code = if own {
                        Code::Aborted
                    } else {
                        Code::RemoteError
                    };
                    assert_eq!(error.code(), code, "{error}");
                    assert!(
                        own || error.text() == "rank 0 aborted the communicator",
                        "{error}"
                    );
                });
            }
        });
        assert!(start.elapsed() < Duration::from_secs(10));
        let late = run(&*world.0[2], &op(OpKind::Barrier, 0, DataType::Int8)).unwrap_err();
        assert_eq!(late.code(), Code::RemoteError);
    }
}

#[test]
fn ranks_that_have_fewer_cores_exchange_more_at_once() {
    for ranks in [2, 3] {
        let world = World::new(ranks);
        let barrier = op(OpKind::Barrier, 0, DataType::Int8);
        for few in [true, false] {
            // The first exchange looks how many cores there are.
            world.each(|engine| run(engine, &barrier).unwrap());
            for engine in &world.0 {
                engine.few_cores.store(few, Relaxed);
            }
            let steps_of = |bytes: usize| {
                let before = world.ways();
                world.each(|engine| {
                    let mut buffer = Buffer::of(&pattern(engine.rank, 0, 0, bytes));
                    let broadcast = HostOp {
                        send: buffer.ptr(),
                        recv: buffer.ptr(),
                        root: 1,
                        ..op(OpKind::Broadcast, bytes, DataType::Uint8)
                    };
                    run(engine, &broadcast).unwrap();
                    assert_eq!(buffer.get(), pattern(1, 0, 0, bytes), "{bytes} bytes");
                });
                let after = world.ways();
                after
                    .iter()
                    .zip(&before)
                    .all(|(after, before)| after != before)
            };
            assert!(!steps_of(SLOT));
            assert_eq!(steps_of(SLOT + 1), !few);
            assert_eq!(steps_of(WIDE_SLOT), !few);
            assert!(steps_of(WIDE_SLOT + 1));
            // Blocks of all ranks together are what counts.
            let most = WIDE_SLOT / ranks as usize / 8;
            matrix_of(&world.any(), &[most, most + 1]);
        }
    }
}

#[test]
fn two_ranks_try_whether_the_kernel_copies_faster_what_fits_into_one_exchange() {
    let own = Tuning::of_process().unwrap();
    for single_copy in [SingleCopy::Auto, SingleCopy::On, SingleCopy::Off] {
        let world = World::tuned(Through::Default, 2, |rank| Tuning {
            single_copy,
            process: own.process.wrapping_add(u64::from(rank) << 8),
            ..own
        });
        let barrier = op(OpKind::Barrier, 0, DataType::Int8);
        world.each(|engine| run(engine, &barrier).unwrap());
        for engine in &world.0 {
            engine.few_cores.store(false, Relaxed);
        }
        let gather = |engine: &ShmEngine, round: usize, bytes: usize| {
            let mut send = Buffer::of(&pattern(engine.rank, 0, round, bytes));
            let mut recv = Buffer::new(2 * bytes);
            let mut gather = op(OpKind::AllGather, bytes, DataType::Uint8);
            any_buffers(&mut gather, &mut send, &mut recv);
            let result = run(engine, &gather);
            (result, recv.get().to_vec())
        };
        world.each(|engine| {
            for round in 0..60 {
                // Now and then they disagree, and so have tried nothing.
                let odd = round % 7 == 3;
                let bytes = 12_000 + usize::from(odd && engine.rank == 1);
                if odd && round % 2 == 1 && engine.rank == 1 {
                    let error = run(engine, &barrier).unwrap_err();
                    assert_eq!(error.code(), Code::InvalidUsage);
                    continue;
                }
                let (result, got) = gather(engine, round, bytes);
                if odd {
                    assert_eq!(result.unwrap_err().code(), Code::InvalidUsage);
                    continue;
                }
                result.unwrap();
                let all = [0, 1].map(|from| pattern(from, 0, round, bytes)).concat();
                assert!(got == all, "round {round}");
            }
        });
        let copies = world
            .ways()
            .iter()
            .map(|ways| ways.copies)
            .collect::<Vec<_>>();
        assert_eq!(copies[0], copies[1], "{single_copy:?}");
        match single_copy {
            SingleCopy::Off => assert_eq!(copies[0], 0),
            // All but the first, after which they ask each other whether they can.
            SingleCopy::On => assert_eq!(copies[0], 60 - 9 - 1),
            // Half of the trial, whatever comes of it.
            SingleCopy::Auto => assert!(copies[0] >= 6),
        }
        // Where ranks share cores nothing is tried.
        for engine in &world.0 {
            engine.few_cores.store(true, Relaxed);
        }
        world.each(|engine| (0..20).for_each(|_| gather(engine, 60, 12_000).0.unwrap()));
        assert_eq!(world.ways()[0].copies, copies[0], "{single_copy:?}");
        for engine in &world.0 {
            engine.few_cores.store(false, Relaxed);
        }
        matrix_of(&world.any(), &[1100, 1500, 2000, 2049, 3000]);
        assert_eq!(world.ways()[0].copies, world.ways()[1].copies);
    }
}

#[test]
fn a_rank_looks_on_for_those_on_other_cores_and_gives_way_to_those_on_its_own() {
    let world = World::new(3);
    let engine = &world.0[0];
    engine.spins.store(false, Relaxed);
    // How often a wait looks before it gives way for the first time.
    let looks = |beside: [bool; 2], awaited: &[u32]| loop {
        let here = cpu::current();
        for (rank, beside) in (1..).zip(beside) {
            let cpu = if beside { here } else { here + 1 };
            engine.map.ran_on(rank).store(cpu, Relaxed);
        }
        let looks = Cell::new(0);
        let ready = || {
            looks.set(looks.get() + 1);
            false
        };
        engine.give_way(&ready, &|| awaited.to_vec());
        // Else this thread has moved in between.
        if engine.map.ran_on(0).load(Relaxed) == here {
            return looks.get();
        }
    };
    assert_eq!(looks([true, true], &[2]), 1);
    assert_eq!(looks([true, false], &[1]), 1);
    assert_eq!(looks([true, false], &[1, 2]), 1);
    assert!(looks([true, false], &[2]) > 100);
    assert!(looks([false, false], &[1, 2]) > 100);
}

#[test]
fn what_is_there_counts_although_a_rank_has_ended_the_communicator_since() {
    let end = |engine: &ShmEngine, aborts: bool| match aborts {
        true => engine.abort(),
        false => engine.poison(&Error::internal("found something")),
    };
    // The other rank publishes and ends the communicator between two looks, whichever these are.
    for aborts in [true, false] {
        // Those of a wait that looks on, and those of one that has given way some times.
        for moment in (0..110).chain(2000..2170) {
            let world = World::new(2);
            let looks = Cell::new(0);
            let ready = || {
                looks.set(looks.get() + 1);
                if looks.get() == moment {
                    end(&world.0[1], aborts);
                }
                looks.get() > moment
            };
            let waited = world.0[0].wait_until(&Until::after(PATIENCE), ready, Vec::new);
            waited.unwrap_or_else(|error| panic!("look {moment}: {error}"));
        }
    }
    // An end of its own is the end at once.
    let world = World::new(2);
    let looks = Cell::new(0);
    let ready = || {
        looks.set(looks.get() + 1);
        if looks.get() == 100 {
            world.0[0].abort();
        }
        false
    };
    let error = world.0[0]
        .wait_until(&Until::after(PATIENCE), ready, Vec::new)
        .unwrap_err();
    assert_eq!(error.code(), Code::Aborted);
}

#[test]
fn a_failed_wait_is_published_and_final() {
    let world = World::new(3);
    let barrier = op(OpKind::Barrier, 0, DataType::Int8);
    let errors = world.each(|engine| match engine.rank {
        0 => run_with(engine, &barrier, &Until::after(Duration::from_millis(20))).unwrap_err(),
        1 => run(engine, &barrier).unwrap_err(),
        _ => Error::internal("rank 2 does not call"),
    });
    assert_eq!(errors[0].code(), Code::Timeout);
    assert_eq!(errors[0].text(), "waiting for ranks [2]");
    assert_eq!(errors[1].code(), Code::RemoteError);
    assert_eq!(errors[1].text(), "rank 0 failed: waiting for ranks [2]");
    let again = world.each(|engine| run(engine, &barrier).unwrap_err());
    assert_eq!(again[0].code(), Code::Timeout);
    assert_eq!(again[2].text(), "rank 0 failed: waiting for ranks [2]");
    // A text that does not fit is cut between characters.
    let world = World::new(2);
    world.0[1].poison(&Error::internal("\u{e4}".repeat(3000)));
    let error = run(&*world.0[0], &barrier).unwrap_err();
    assert!(error.text().starts_with("rank 1 failed: \u{e4}\u{e4}"));
    assert!(error.text().ends_with('\u{e4}'));
    // What all are told anyway is not a failure of the rank that has heard of it first, nor of those that hear it from there.
    let world = World::new(3);
    world.0[1].poison(&Error::new(Code::RemoteError, "rank 7 revoked").announced());
    for error in world.each(|engine| run(engine, &barrier).unwrap_err()) {
        assert_eq!(error.code(), Code::RemoteError);
        assert_eq!(error.text(), "rank 7 revoked");
        assert!(error.is_announced());
    }
}

#[test]
#[ignore = "long: minutes of random operations"]
fn random_operations_of_2_to_8_ranks_in_every_way() {
    for round in 0..4 {
        for ranks in 2..=8 {
            for through in EVERY_WAY.into_iter().chain([Through::Pointers]) {
                let seed = 7_000_000 + round * 1000 + u64::from(ranks);
                let world = World::through(through, ranks);
                world.each(|engine| stress(engine, seed, 200 / ranks as usize));
            }
        }
    }
}

const CHILD: &str = "FLAGOSCOMM_TEST_SHM_CHILD";

/// One rank of a test whose ranks are processes; does nothing unless it is started by it.
#[test]
fn child_rank() {
    let Ok(arguments) = std::env::var(CHILD) else {
        return;
    };
    let mut fields = arguments.split(' ');
    let name = fields.next().unwrap();
    let [rank, ranks, role] = [(); 3].map(|()| fields.next().unwrap().parse().unwrap());
    let deadline = Instant::now() + Duration::from_secs(20);
    let socket = unix::connect(name.as_bytes(), deadline).unwrap();
    let fd = unix::recv_fd(socket.as_fd(), deadline).unwrap();
    let bytes = ShmEngine::segment_bytes(ranks).unwrap();
    let segment = Arc::new(Segment::open(fd.as_fd(), bytes).unwrap());
    match role {
        STOPS => rank_that_stops(&process_engine(segment, rank, ranks, Through::Heap)),
        IS_STOPPED => {
            let error = reduce_again_and_again(
                &process_engine(segment, rank, ranks, Through::Heap),
                Duration::from_secs(50),
                &mut Memories::default(),
            );
            assert!(error.text().contains("rank 0 failed"), "{error}");
        }
        through => process_rank(segment, rank, ranks, OF_PROCESSES[through as usize]),
    }
}

/// What a child does that isn't one of [`OF_PROCESSES`].
const STOPS: u32 = 10;
const IS_STOPPED: u32 = 11;

/// Starts the other ranks as processes of some role, and gives the segment for rank 0.
fn with_processes(ranks: u32, role: u32) -> (Arc<Segment>, Vec<Child>) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Relaxed);
    let name = format!("flagos-comm-shm-test-{}-{number}", std::process::id());
    let (segment, fd) = Segment::create(ShmEngine::segment_bytes(ranks).unwrap()).unwrap();
    let listener = unix::listen(name.as_bytes()).unwrap();
    let children = (1..ranks)
        .map(|rank| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "host::shm::tests::child_rank", "--nocapture"])
                .env(CHILD, format!("{name} {rank} {ranks} {role}"))
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    let deadline = Instant::now() + Duration::from_secs(20);
    for _ in 1..ranks {
        let socket = unix::accept(&listener, deadline).unwrap();
        unix::send_fd(socket.as_fd(), fd.as_fd(), deadline).unwrap();
    }
    (Arc::new(segment), children)
}

fn process_engine(segment: Arc<Segment>, rank: u32, ranks: u32, through: Through) -> ShmEngine {
    let mut tuning = through.tuning(rank);
    tuning.process = Tuning::of_process().unwrap().process;
    ShmEngine::attach_tuned(segment, rank, ranks, tuning).unwrap()
}

/// How ranks that are processes get at each other's buffers.
const OF_PROCESSES: [Through; 4] = [
    Through::Segment,
    Through::Kernel,
    Through::Heap,
    Through::Mixed,
];

fn process_rank(segment: Arc<Segment>, rank: u32, ranks: u32, through: Through) {
    let engine = process_engine(segment, rank, ranks, through);
    IN_HEAP.set(through.in_heap()(rank as usize));
    stress(&engine, 99, 25);
    IN_HEAP.set(false);
    let ways = ways(&engine);
    assert_eq!(
        ways.copies > 0,
        matches!(through, Through::Kernel | Through::Mixed),
        "{ways:?}"
    );
    // Only where all have their results in the heap, processes write into others' memory.
    assert_eq!(ways.pushes > 0, through == Through::Heap, "{ways:?}");
}

#[test]
fn random_operations_with_processes() {
    for (ranks, through) in [2, 4]
        .into_iter()
        .flat_map(|n| (0..OF_PROCESSES.len()).map(move |t| (n, t)))
    {
        let (segment, mut children) = with_processes(ranks, through as u32);
        process_rank(segment, 0, ranks, OF_PROCESSES[through]);
        for child in &mut children {
            assert!(child.wait().unwrap().success());
        }
    }
}

/// Bytes of an all-reduce in which a rank stops: of rank 1's part, most are whole pages.
const LENT: usize = 300_000;

fn sum_of_bytes(send: &mut Buffer, recv: &mut Buffer, bytes: usize) -> HostOp {
    let mut sum = op(OpKind::AllReduce, bytes, DataType::Uint8);
    (sum.send, sum.recv) = (send.ptr(), recv.ptr());
    sum
}

/// Stops where it is about to write its part of a result into rank 0's buffer.
fn rank_that_stops(engine: &ShmEngine) {
    IN_HEAP.set(true);
    let (mut send, mut recv) = (Buffer::of(&[2; LENT]), Buffer::new(LENT));
    let sum = sum_of_bytes(&mut send, &mut recv, LENT);
    run(engine, &sum).unwrap();
    engine.stops.store(true, Relaxed);
    let error = run(engine, &sum).unwrap_err();
    assert!(error.text().contains("rank 0 failed"), "{error}");
}

fn signal(child: &Child, signal: i32) {
    // SAFETY: a signal to a child that has not been waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

#[test]
fn what_a_stopped_process_writes_later_is_seen_by_nobody() {
    let (segment, mut children) = with_processes(2, STOPS);
    let engine = process_engine(segment, 0, 2, Through::Heap);
    IN_HEAP.set(true);
    let (mut send, mut recv) = (Buffer::of(&[1; LENT]), Buffer::new(LENT));
    let sum = sum_of_bytes(&mut send, &mut recv, LENT);
    run(&engine, &sum).unwrap();
    assert!(recv.get() == [3; LENT]);
    recv.write(0, &[7; LENT]);
    let error = run_with(&engine, &sum, &Until::after(Duration::from_millis(100))).unwrap_err();
    assert_eq!(error.code(), Code::Timeout, "{error}");
    assert_eq!(ways(&engine).pushes, 2);

    // What others see of the heap, as this process has it once more.
    let heap = heap::own().unwrap();
    let others = heap::of_process(std::process::id(), heap.facts()).unwrap();
    let others = others.here(recv.ptr().addr() as u64).unwrap();
    // In the middle of what rank 1 writes.
    let middle = LENT * 3 / 4;
    // SAFETY: a byte of the buffer in another mapping of the heap, to which another process writes.
    let shared = || unsafe { others.add(middle).read_volatile() };
    assert_eq!((shared(), recv.get()[middle]), (7, 7));
    // The program has it for something else.
    recv.write(0, &[5; LENT]);
    signal(&children[0], libc::SIGCONT);
    assert!(children[0].wait().unwrap().success());
    assert_eq!(shared(), 3, "it has not gone on to write");
    let other = |&at: &usize| recv.get()[at] != 5;
    let seen: Vec<usize> = (0..LENT).filter(other).collect();
    assert!(
        seen.is_empty(),
        "{} bytes from {} to {}, of a buffer at {:?}",
        seen.len(),
        seen[0],
        seen[seen.len() - 1],
        recv.ptr()
    );

    // It can be used again, and is no part of the heap any more.
    assert!(!heap.holds(recv.ptr(), LENT) && heap.holds(send.ptr(), LENT));
    let world = World::through(Through::Heap, 2);
    let again = sum_of_bytes(&mut send, &mut recv, LENT);
    world.each(|engine| {
        if engine.rank == 0 {
            run(engine, &again).unwrap();
        } else {
            let (mut send, mut recv) = (Buffer::of(&[2; LENT]), Buffer::new(LENT));
            run(engine, &sum_of_bytes(&mut send, &mut recv, LENT)).unwrap();
        }
        assert_eq!(ways(engine).pushes, 0);
    });
    assert!(recv.get() == [3; LENT]);
    IN_HEAP.set(false);
}

/// Buffers that stay, with what a program has beside them.
#[derive(Default)]
struct Memories(Vec<Buffer>);

/// All-reduces in the heap until one fails.
fn reduce_again_and_again(engine: &ShmEngine, limit: Duration, kept: &mut Memories) -> Error {
    IN_HEAP.set(true);
    run(engine, &op(OpKind::Barrier, 0, DataType::Int8)).unwrap();
    let mut number = 0;
    let error = loop {
        number += 1;
        // In place and not, of a few pages to some chunks.
        let bytes = (number * 377_789) % 3_000_000 + 40_000;
        let (mut send, mut recv) = (Buffer::of(&vec![1; bytes]), Buffer::of(&vec![1; bytes]));
        let mut sum = sum_of_bytes(&mut send, &mut recv, bytes);
        if number % 3 == 0 {
            sum.send = sum.recv;
        }
        let result = run_with(engine, &sum, &Until::after(limit));
        let right = recv.get().iter().all(|&byte| byte == 2);
        assert!(right || result.is_err());
        kept.0.extend([send, recv]);
        if let Err(error) = result {
            break error;
        }
        if kept.0.len() > 8 {
            kept.0.drain(..2);
        }
    };
    IN_HEAP.set(false);
    error
}

fn stop_at_random_moments(rounds: u64) {
    let mut stopped = 0;
    for round in 0..rounds {
        let (segment, mut children) = with_processes(2, IS_STOPPED);
        let engine = process_engine(segment, 0, 2, Through::Heap);
        let mut kept = Memories::default();
        std::thread::scope(|scope| {
            let child = &children[0];
            let attached = &engine;
            scope.spawn(move || {
                while attached.sequence.load(Relaxed) < 3 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                std::thread::sleep(Duration::from_micros(round * 7919 % 9000));
                signal(child, libc::SIGSTOP);
            });
            let limit = Duration::from_millis(150);
            let error = reduce_again_and_again(&engine, limit, &mut kept);
            assert_eq!(error.code(), Code::Timeout, "{error}");
        });
        stopped += u64::from(engine.map.visiting(1).load(Relaxed) != 0);
        for buffer in &mut kept.0 {
            let len = buffer.get().len();
            buffer.write(0, &vec![9; len]);
        }
        signal(&children[0], libc::SIGCONT);
        assert!(children[0].wait().unwrap().success());
        for buffer in &kept.0 {
            assert!(buffer.get().iter().all(|&byte| byte == 9), "round {round}");
        }
    }
    println!("{stopped} of {rounds} times it was stopped in the others' buffers");
}

#[test]
fn a_process_that_is_stopped_at_a_random_moment_writes_to_nothing_that_is_in_use() {
    stop_at_random_moments(2);
}

#[test]
#[ignore = "long: a process is stopped 100 times"]
fn a_process_that_is_stopped_at_many_moments_writes_to_nothing_that_is_in_use() {
    stop_at_random_moments(100);
}
