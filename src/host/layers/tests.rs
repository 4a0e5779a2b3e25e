//! The layers with threads as ranks: "machines" that share a segment each, and messages that come late and in any
//! order between them.

use super::transfers::Then;
use super::wait::NearWait;
use super::*;
use crate::error::Code;
use crate::host::kernels::tests::{Random, scales_of};
use crate::host::net::tests::{
    Wires, has_ucx, over_tagged_wires, over_ucx, over_wires, told, wires,
};
use crate::host::tests::{
    Buffer, Until, World, disagreeing_messages, engine_tests, group, matrix_of, op, pattern, run,
    run_with, stress, transfer,
};
use crate::ops::lock;
use crate::sys::memory::Segment;
use crate::types::{DataType, OpKind, RedOp, Reduction};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A block that small vectors have several of.
const SMALL_BLOCK: usize = 16 << 10;

/// The engines of ranks that are on these machines, over these of all ranks.
fn over(machine_of: &[usize], fars: Vec<NetEngine>, block: usize) -> Vec<Arc<LayeredEngine>> {
    let topology = Topology::new(machine_of);
    let segment = |machine: usize| {
        let ranks = topology.machine(machine).len() as u32;
        let bytes = ShmEngine::segment_bytes(ranks).unwrap();
        Arc::new(Segment::create(bytes).unwrap().0)
    };
    let segments: Vec<Arc<Segment>> = (0..topology.machines()).map(segment).collect();
    let engine = |(rank, far)| {
        let (machine, place) = topology.of(rank);
        let here = topology.machine(machine);
        let segment = Arc::clone(&segments[machine]);
        let near = ShmEngine::attach(segment, place as u32, here.len() as u32).unwrap();
        near.choose_wait();
        let near = near.with_names(here.iter().map(|rank| *rank as u32).collect());
        let mut engine = LayeredEngine::new(near, far, topology.clone()).unwrap();
        engine.block = block;
        Arc::new(engine)
    };
    fars.into_iter().enumerate().map(engine).collect()
}

/// Containers of one machine share no memory but its cores: there are enough for each alone, and not for all.
#[test]
fn waits_inside_a_machine_spin_only_if_all_have_cores() {
    for cores in [true, false] {
        let wires = wires(2);
        let far = |rank| over_tagged_wires(&wires, rank, None, cores);
        for engine in over(&[0, 1], (0..2).map(far).collect(), SMALL_BLOCK) {
            // One rank has a core for itself.
            assert_eq!(engine.near.waits_spin(), cores);
            // The first operation looks again.
            engine.near.choose_wait();
            assert_eq!(engine.near.waits_spin(), cores);
        }
    }
}

fn layered(machine_of: &[usize], block: usize) -> (World, Arc<Mutex<Wires>>) {
    let wires = wires(machine_of.len() as u32);
    (layered_over(machine_of, &wires, block), wires)
}

fn layered_over(machine_of: &[usize], wires: &Arc<Mutex<Wires>>, block: usize) -> World {
    let ranks = 0..machine_of.len();
    let fars = ranks.map(|rank| over_wires(wires, rank)).collect();
    let engines = over(machine_of, fars, block);
    let engines = engines.into_iter().map(|engine| engine as Arc<dyn Engine>);
    World(engines.collect(), |_| false)
}

/// Ranks on machines of several sizes, neighbours or not.
fn world(ranks: u32) -> World {
    let machine_of: &[usize] = match ranks {
        1 => &[0],
        2 => &[0, 1],
        3 => &[0, 1, 0],
        4 => &[0, 0, 1, 1],
        5 => &[0, 1, 1, 0, 2],
        _ => &[0, 0, 0, 1, 1, 2, 0],
    };
    assert_eq!(machine_of.len(), ranks as usize);
    layered(machine_of, SMALL_BLOCK).0
}

engine_tests! {
    world;
    disagreements_are_errors_on_every_rank_and_leave_the_engine_usable
    wrong_arguments_are_found_before_anything_is_published
    lone_messages_arrive
    groups_of_messages_are_matched_in_order
    a_group_may_mix_collectives_and_messages_in_any_order
    large_messages_that_block_each_other_end_at_the_deadline
    random_operations_with_threads
}

#[test]
fn matrix_of_two_and_two() {
    matrix_of(
        &layered(&[0, 0, 1, 1], SMALL_BLOCK).0,
        &[0, 1, 13, 1000, 20_011],
    );
}

#[test]
fn matrix_of_two_and_two_in_turn() {
    matrix_of(&layered(&[0, 1, 0, 1], SMALL_BLOCK).0, &[1, 1000, 20_011]);
}

#[test]
fn matrix_of_three_and_one() {
    matrix_of(
        &layered(&[0, 0, 0, 1], SMALL_BLOCK).0,
        &[0, 7, 3001, 20_011],
    );
    matrix_of(&layered(&[0, 1, 1], SMALL_BLOCK).0, &[0, 7, 3001, 20_011]);
}

#[test]
fn matrix_of_one_two_and_three() {
    matrix_of(
        &layered(&[0, 1, 1, 2, 2, 2], SMALL_BLOCK).0,
        &[0, 1, 1000, 12_011],
    );
    matrix_of(&layered(&[2, 1, 2, 0, 1, 2], SMALL_BLOCK).0, &[13, 12_011]);
}

#[test]
fn matrix_of_four_and_four() {
    matrix_of(
        &layered(&[0, 0, 0, 0, 1, 1, 1, 1], SMALL_BLOCK).0,
        &[0, 1, 1000, 12_011],
    );
}

/// Up to 8 leaders send to each other; more pass on what they gathered.
#[test]
fn matrix_of_nine_to_eleven_machines() {
    for machines in 9..12 {
        let machine_of: Vec<usize> = (0..machines + 3).map(|rank| rank % machines).collect();
        matrix_of(&layered(&machine_of, SMALL_BLOCK).0, &[0, 1, 301]);
    }
}

/// What a leader sends of its machine is no longer than what comes as a whole, and neither is what several machines' are.
#[test]
fn headers_of_machines_are_no_longer_than_what_comes_as_a_whole() {
    let eleven: Vec<usize> = (0..15).map(|rank| rank % 11).collect();
    for (machine_of, certain) in [
        (&[0, 0, 1, 1][..], 8216),
        (&[0, 0, 0, 1, 1], 60),
        (&[0, 1, 0, 0, 0], 24),
        (&eleven, 1000),
        (&eleven, 60),
    ] {
        let wires = wires(machine_of.len() as u32);
        lock(&wires).certain = Some(certain);
        let world = layered_over(machine_of, &wires, SMALL_BLOCK);
        matrix_of(&world, &[0, 1, 1021]);
    }
}

/// The blocks of real use, whatever the machines.
#[test]
fn vectors_of_several_large_blocks() {
    for machine_of in [&[0, 0, 1, 1][..], &[0, 1, 0, 0, 1]] {
        let (world, _) = layered(machine_of, BLOCK);
        let count = 2_500_003;
        let ranks = machine_of.len();
        world.each(|engine| {
            let own = engine.rank() as i32;
            let send: Vec<i32> = (0..count).map(|at| at * (own + 1)).collect();
            let mut recv = vec![0i32; count as usize];
            let mut sum = op(OpKind::AllReduce, count as usize, DataType::Int32);
            (sum.send, sum.recv) = (send.as_ptr().cast(), recv.as_mut_ptr().cast());
            run(engine, &sum).unwrap();
            let ranks = ranks as i32;
            let factor = ranks * (ranks + 1) / 2;
            let right = |(at, value): (usize, &i32)| *value == (at as i32).wrapping_mul(factor);
            assert!(recv.iter().enumerate().all(right));
            let mut cast = op(OpKind::Broadcast, count as usize, DataType::Int32);
            cast.root = 1;
            (cast.send, cast.recv) = (send.as_ptr().cast(), recv.as_mut_ptr().cast());
            run(engine, &cast).unwrap();
            assert!(
                recv.iter()
                    .enumerate()
                    .all(|(at, value)| *value == at as i32 * 2)
            );
        });
    }
}

/// An average of ordinary numbers stays one, also where their sums don't fit into the type; and it is divided by the number
/// of all ranks, once.
#[test]
fn averages_of_large_numbers_stay_in_range() {
    let (world, _) = layered(&[0, 0, 0, 1, 1], SMALL_BLOCK);
    let average = |dtype, bytes: &[u8]| {
        let all: Vec<u8> = bytes.repeat(40_000);
        let results = world.each(|engine| {
            let (mut send, mut recv) = (Buffer::of(&all), Buffer::new(all.len()));
            let mut mean = op(OpKind::AllReduce, 40_000, dtype);
            mean.reduction = Reduction::Builtin(RedOp::Avg);
            (mean.send, mean.recv) = (send.ptr(), recv.ptr());
            run(engine, &mean).unwrap();
            recv.get()[..bytes.len()].to_vec()
        });
        assert!(results.iter().all(|result| *result == results[0]));
        results[0].clone()
    };
    assert_eq!(average(DataType::Int8, &[100]), [100]);
    let large = i64::MAX - 5;
    assert_eq!(
        average(DataType::Int64, &large.to_ne_bytes()),
        large.to_ne_bytes()
    );
    for exact in [3f32, -1e30, 0.125] {
        let got = average(DataType::Float32, &exact.to_ne_bytes());
        assert_eq!(got, exact.to_ne_bytes(), "{exact}");
    }
    let half = |value: f32| half::f16::from_f32(value).to_ne_bytes();
    let got = average(DataType::Float16, &half(60_000.0));
    let got = half::f16::from_ne_bytes(got.try_into().unwrap()).to_f32();
    assert!((got - 60_000.0).abs() <= 64.0, "{got}");
}

/// Scalars that differ by rank are multiplied once each.
#[test]
fn sums_are_scaled_once() {
    let (world, _) = layered(&[0, 1, 1, 0], SMALL_BLOCK);
    let scales = scales_of(DataType::Float32, 4);
    for count in [3, 30_000] {
        world.each(|engine| {
            let send = vec![2f32; count];
            let mut recv = vec![0f32; count];
            let mut sum = op(OpKind::AllReduce, count, DataType::Float32);
            sum.reduction = Reduction::PreMulSum(scales[engine.rank()]);
            (sum.send, sum.recv) = (send.as_ptr().cast(), recv.as_mut_ptr().cast());
            run(engine, &sum).unwrap();
            // 2 * (0.5 + 1.5 + 2.5 + 3.5)
            assert!(recv.iter().all(|value| *value == 16.0), "{}", recv[0]);
        });
    }
}

/// Messages between machines and inside them in one group, with sizes of every kind, in random orders.
#[test]
fn groups_over_both_layers_end() {
    let (world, _) = layered(&[0, 0, 1, 1], SMALL_BLOCK);
    world.each(|engine| {
        let (rank, ranks) = (engine.rank(), engine.ranks());
        let mut random = Random::new(rank as u64 + 5);
        for round in 0..8 {
            let len =
                |from: usize, to: usize| [1, 9000, 200_000, 900_000][(from * 3 + to + round) % 4];
            let mut buffers = Vec::new();
            for peer in (0..ranks).filter(|peer| *peer != rank) {
                let content = pattern(rank, peer, round, len(rank, peer));
                buffers.push((OpKind::Send, peer, Buffer::of(&content)));
                buffers.push((OpKind::Recv, peer, Buffer::new(len(peer, rank))));
            }
            let mut ops = Vec::new();
            for (kind, peer, buffer) in &mut buffers {
                let at = random.below(ops.len() + 1);
                ops.insert(at, transfer(*kind, *peer, buffer));
            }
            group(engine, &ops).unwrap();
            for (kind, peer, buffer) in &buffers {
                if *kind == OpKind::Recv {
                    assert!(buffer.get() == pattern(*peer, rank, round, len(*peer, rank)));
                }
            }
        }
    });
}

#[test]
fn messages_that_disagree_are_errors_in_either_layer() {
    // Between machines small ones go on without an answer, inside one none does.
    disagreeing_messages(&layered(&[0, 1, 0], SMALL_BLOCK).0.first(2), Some(8 << 10));
    let (world, _) = layered(&[1, 0, 0], SMALL_BLOCK);
    let texts = world.each(|engine| {
        let mut buffer = Buffer::new(500 + engine.rank());
        let (kind, peer) = match engine.rank() {
            0 => return String::new(),
            1 => (OpKind::Send, 2),
            _ => (OpKind::Recv, 1),
        };
        let error = run(engine, &transfer(kind, peer, &mut buffer)).unwrap_err();
        assert_eq!(error.code(), Code::InvalidUsage);
        error.text().to_owned()
    });
    // The true ranks, not their places.
    assert!(
        texts[1].contains("rank 1 called Send(count 501, uint8) to rank 2"),
        "{}",
        texts[1]
    );
    assert_eq!(texts[1], texts[2]);
}

impl World {
    /// The first ranks only, for tests of two that leave the others alone.
    fn first(&self, ranks: usize) -> World {
        World(self.0[..ranks].to_vec(), self.1)
    }
}

/// Runs an operation on all ranks but one, which is silent, and returns what the others say.
fn without(
    world: &World,
    silent: usize,
    limit: Duration,
    count: usize,
) -> Vec<(usize, Error, Duration)> {
    let all = world.each(|engine| {
        if engine.rank() == silent {
            return None;
        }
        let (mut send, mut recv) = (Buffer::new(count * 4), Buffer::new(count * 4));
        let mut sum = op(OpKind::AllReduce, count, DataType::Float32);
        (sum.send, sum.recv) = (send.ptr(), recv.ptr());
        let policy = told(limit);
        let start = Instant::now();
        let error = run_with(engine, &sum, &policy).unwrap_err();
        let after = start.elapsed();
        // The others hear of it over the control channel.
        assert!(
            !lock(&policy.told).is_empty(),
            "rank {}: {error}",
            engine.rank()
        );
        let again = run(engine, &op(OpKind::Barrier, 0, DataType::Int8)).unwrap_err();
        assert_eq!(again.code(), error.code());
        recv.get();
        Some((engine.rank(), error, after))
    });
    all.into_iter().flatten().collect()
}

/// Whoever waits for the missing rank itself says first who it is; nobody says that one is missing who only waits too.
#[test]
fn a_missing_rank_is_named_by_its_machine_first() {
    for (silent, count) in [(3, 1), (2, 1), (3, 50_000), (1, 50_000), (0, 1)] {
        let (world, wires) = layered(&[0, 0, 1, 1], SMALL_BLOCK);
        let limit = Duration::from_millis(60);
        let errors = without(&world, silent, limit, count);
        assert_eq!(errors.len(), 3);
        // Its neighbour waits for it alone, and says so at once; the other machine's leader leaves time for that.
        let of = |rank: usize| errors.iter().find(|(of, ..)| *of == rank).unwrap();
        let (neighbour, leader) = (silent ^ 1, if silent < 2 { 2 } else { 0 });
        let text = format!("ranks [{silent}]");
        assert!(
            of(neighbour).1.text().contains(&text),
            "{:?}",
            of(neighbour)
        );
        assert!(
            of(leader).2 >= limit + Duration::from_millis(150),
            "{:?}",
            of(leader)
        );
        for (rank, error, after) in &errors {
            assert!(*after < limit + Duration::from_secs(5), "{after:?}");
            let text = error.text();
            // Here no channel tells the other machine, which waits for whole machines.
            assert!(text.contains(&silent.to_string()), "rank {rank}: {text}");
        }
        // Nothing is left of what would touch the callers' buffers.
        let posted = lock(&wires).posted.keys().any(|key| key.0 != silent);
        assert!(!posted);
    }
}

/// It names them, too, and leaves that one time to say so first.
#[test]
fn whoever_waits_for_a_rank_that_waits_knows_for_whom() {
    struct Late;
    impl WaitPolicy for Late {
        fn check(&self, waiting_for: &dyn Fn() -> Vec<u32>) -> Result<()> {
            Err(Error::new(Code::Timeout, format!("{:?}", waiting_for())))
        }
    }
    let wires = wires(4);
    let fars = (0..4).map(|rank| over_wires(&wires, rank)).collect();
    let engines = over(&[0, 0, 1, 1], fars, SMALL_BLOCK);
    let places = || vec![0];
    let error = NearWait::new(&engines[3], &Late).check(&places);
    assert_eq!(error.unwrap_err().text(), "[2]");
    engines[2].near.say_awaited(&[0, 1]);
    let wait = NearWait::new(&engines[3], &Late);
    let start = Instant::now();
    wait.check(&places).unwrap();
    let error = loop {
        match wait.check(&places) {
            Err(error) => break error,
            Ok(()) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    assert!(start.elapsed() >= Duration::from_millis(300));
    assert_eq!(error.text(), "[0, 1, 2]");
}

/// A rank that waits for a neighbour in shared memory moves its messages on all the same, as ranks of other machines may
/// wait for them: while one rank is late, its neighbour does, and so does a rank whose leader waits for the other machine.
#[test]
fn waits_for_neighbours_move_messages_on() {
    struct Asked<'a>(&'a AtomicBool);
    impl WaitPolicy for Asked<'_> {
        fn check(&self, _waiting_for: &dyn Fn() -> Vec<u32>) -> Result<()> {
            self.0.store(true, Ordering::Release);
            Ok(())
        }
    }
    let (world, wires) = layered(&[0, 0, 1, 1], SMALL_BLOCK);
    let asked: [AtomicBool; 4] = Default::default();
    let progressed = || lock(&wires).progressed.clone();
    let moved = world.each(|engine| {
        let barrier = op(OpKind::Barrier, 0, DataType::Int8);
        let mut moved = [0; 4];
        if engine.rank() == 1 {
            // All others wait: nobody else has their messages meanwhile.
            let waits = |rank: usize| asked[rank].load(Ordering::Acquire);
            while ![0, 2, 3].into_iter().all(waits) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let before = progressed();
            std::thread::sleep(Duration::from_millis(50));
            let after = progressed();
            moved = std::array::from_fn(|rank| after[rank] - before[rank]);
        }
        run_with(engine, &barrier, &Asked(&asked[engine.rank()])).unwrap();
        moved
    });
    for rank in [0, 3] {
        assert!(moved[1][rank] >= 5, "rank {rank}: {:?}", moved[1]);
    }
}

/// However much moves, it is asked now and then whether the group may go on; and whoever has nothing to do pauses.
#[test]
fn what_moves_all_the_time_is_looked_at_now_and_then() {
    let mut turns = transfers::Turns::default();
    let thens: Vec<Then> = (0..1000).map(|_| turns.after(true, true)).collect();
    let looks = thens.iter().filter(|then| **then == Then::Look).count();
    assert!((20..200).contains(&looks), "{looks}");
    assert!(!thens.contains(&Then::Pause));
    assert_eq!(turns.after(false, false), Then::Pause);
    assert_eq!(turns.after(false, true), Then::Go);
}

/// A connection that is cut between two machines ends the operation on all ranks of both.
#[test]
fn a_lost_connection_ends_the_wait_of_all_ranks_of_a_machine() {
    let (world, wires) = layered(&[0, 0, 1, 1], SMALL_BLOCK);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            lock(&wires).lost[2] = true;
        });
        let world = world.first(2);
        let start = Instant::now();
        let errors =
            world.each(|engine| run(engine, &op(OpKind::Barrier, 0, DataType::Int8)).unwrap_err());
        assert!(start.elapsed() < Duration::from_secs(10));
        for error in errors {
            let text = "the connection to rank 2 has failed: the wire is cut";
            assert!(error.text().contains(text), "{error}");
            assert_eq!(error.code(), Code::RemoteError);
        }
    });
}

/// An abort, and a failure that another part of the library tells of, end the waits in either layer, on all ranks of the
/// machine.
#[test]
fn an_abort_ends_both_layers() {
    for aborts in [true, false] {
        // Rank 0 leads and waits for the other machine, rank 1 waits for rank 0.
        for by in [0, 1] {
            let (world, _) = layered(&[0, 0, 1], SMALL_BLOCK);
            let world = world.first(2);
            let start = Instant::now();
            let errors = std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(30));
                    match aborts {
                        true => world.0[by].abort(),
                        false => world.0[by].poison(&Error::internal("the watch says so")),
                    }
                });
                world.each(|engine| {
                    run(engine, &op(OpKind::Barrier, 0, DataType::Int8)).unwrap_err()
                })
            });
            assert!(start.elapsed() < Duration::from_secs(10));
            let other = errors[1 - by].text();
            match aborts {
                true => {
                    assert_eq!(errors[by].code(), Code::Aborted);
                    assert!(other.contains(&format!("rank {by} aborted")), "{other}");
                }
                false => {
                    assert_eq!(errors[by].text(), "the watch says so");
                    let text = format!("rank {by} failed: the watch says so");
                    assert!(other.contains(&text), "{other}");
                }
            }
        }
    }
}

/// The numbers again, over UCX as it is here.
#[test]
fn matrix_over_ucx() {
    if !has_ucx() {
        return;
    }
    for machine_of in [&[0, 0, 1, 1][..], &[0, 1, 0]] {
        let ranks = machine_of.len() as u32;
        let engines = over(machine_of, over_ucx(ranks), SMALL_BLOCK);
        let engines = engines.into_iter().map(|engine| engine as Arc<dyn Engine>);
        let world = World(engines.collect(), |_| false);
        matrix_of(&world, &[1, 13_001]);
        world.each(|engine| stress(engine, 99, 10));
        world.each(|engine| {
            let until = Until::long();
            run_with(engine, &op(OpKind::Barrier, 0, DataType::Int8), &until).unwrap();
        });
    }
}

mod devices {
    use super::*;
    use crate::host::net::tests::over_wires_in_steps;
    use crate::host::tests::devices::LateMover;

    fn with_devices(machine_of: &[usize], device: fn(usize) -> bool) -> World {
        let ranks = machine_of.len();
        let wires = wires(ranks as u32);
        let fars = (0..ranks).map(|rank| over_wires_in_steps(&wires, rank, 15));
        let engines = over(machine_of, fars.collect(), SMALL_BLOCK).into_iter();
        let engines = engines.map(|engine| {
            if device(engine.rank()) {
                engine.set_mover(Arc::new(LateMover::default()));
            }
            engine as Arc<dyn Engine>
        });
        World(engines.collect(), |_| false)
    }

    #[test]
    fn matrix_with_devices_in_steps() {
        let world = with_devices(&[0, 0, 1, 1], |_| true);
        matrix_of(&world, &[0, 13, 70_001]);
    }

    #[test]
    fn matrix_with_devices_and_hosts_in_one_communicator() {
        let world = with_devices(&[0, 1, 0], |rank| rank != 1);
        matrix_of(&world, &[1, 20_001]);
    }

    /// The deadline and an abort are looked at while a device's copies don't end.
    #[test]
    fn a_copy_that_does_not_end_does_not_keep_its_rank() {
        for aborts in [false, true] {
            let world = with_devices(&[0, 0, 1], |rank| rank != 0);
            let stuck = Arc::new(LateMover::default());
            stuck.stuck.store(true, Ordering::Release);
            world.0[0].set_mover(Arc::clone(&stuck) as Arc<dyn Mover>);
            let limit = Duration::from_millis(if aborts { 3000 } else { 50 });
            let error = crate::host::tests::ends_without(&world, limit, aborts);
            let code = if aborts { Code::Aborted } else { Code::Timeout };
            assert_eq!(error.code(), code, "{error}");
            assert!(lock(&stuck.begun).is_empty(), "copies go on");
        }
    }

    #[test]
    fn random_operations_with_devices() {
        let world = with_devices(&[0, 1, 1, 0, 2], |rank| rank % 3 != 2);
        world.each(|engine| stress(engine, 515, 30));
    }
}
