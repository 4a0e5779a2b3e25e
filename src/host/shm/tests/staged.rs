//! The engine with buffers in the memory of devices.

use super::*;
use crate::host::op::SLOTS;
use crate::host::shm::protocol::Counter;
use crate::host::tests::devices::LateMover;
use crate::ops::lock;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::SeqCst;

/// How a world is staged.
#[derive(Clone, Copy)]
struct Stage {
    ranks: u32,
    /// Whether a rank has its buffers on a device.
    device: fn(usize) -> bool,
    /// Bytes of the pool; 0 for none.
    pool: usize,
    threads: usize,
    /// The number of the copy that fails on rank 0.
    fails: usize,
    /// A rank that can't have its part of the pool.
    without: Option<u32>,
    /// How those reach each other's buffers that are not on a device.
    through: Through,
}

const EVERY: fn(usize) -> bool = |_| true;

impl Stage {
    fn new(ranks: u32, device: fn(usize) -> bool, pool: usize) -> Stage {
        Stage {
            ranks,
            device,
            pool,
            threads: 1,
            fails: 0,
            without: None,
            through: Through::Default,
        }
    }

    /// The engines, and the movers of those that have one.
    fn world(self) -> (World, Vec<Option<Arc<LateMover>>>) {
        let pool = pool_bytes(self.pool, self.ranks);
        let pool = (pool > 0).then(|| Segment::create_usable_sparse(pool).unwrap());
        let pool = pool.map(|(segment, fd)| (Arc::new(segment), fd));
        let mut movers = Vec::new();
        let World(engines, through) = World::through(self.through, self.ranks);
        let engines = engines.into_iter().map(|engine| {
            let mut engine = Arc::into_inner(engine).unwrap();
            let rank = engine.rank;
            let device = (self.device)(rank);
            if let Some((segment, fd)) = &pool {
                let fd = match self.without == Some(rank as u32) {
                    true => read_only(fd),
                    false => fd.try_clone().unwrap(),
                };
                engine = engine.with_pool(Arc::clone(segment), fd, !device);
            }
            engine = engine.with_threads(self.threads);
            let mover = device.then(|| {
                let fails = if rank == 0 { self.fails } else { 0 };
                Arc::new(LateMover::failing(fails))
            });
            if let Some(mover) = &mover {
                engine.set_mover(Arc::clone(mover) as _);
            }
            movers.push(mover);
            Arc::new(engine)
        });
        let world = World(engines.collect(), through);
        (world, movers)
    }
}

/// Through which nothing can be allocated.
fn read_only(fd: &OwnedFd) -> OwnedFd {
    use std::os::fd::AsRawFd;
    let file = std::fs::File::open(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
    file.into()
}

/// A pool whose slots are as small as they may be, so that every collective takes many steps.
fn smallest(ranks: usize) -> usize {
    ranks * (SLOTS * ranks * (8 << 10)).next_multiple_of(4096)
}

#[test]
fn matrix_with_devices_through_a_pool() {
    for ranks in [1, 2, 3, 4] {
        let (world, movers) = Stage::new(ranks, EVERY, smallest(ranks as usize)).world();
        matrix_of(&world.any(), &COUNTS);
        for mover in movers.into_iter().flatten() {
            let area = lock(&mover.area).map(|(_, bytes)| bytes);
            let expected = (ranks > 1).then(|| pool_bytes(smallest(ranks as usize), ranks));
            assert_eq!(area, expected);
        }
    }
}

#[test]
fn matrix_with_devices_and_hosts_in_one_communicator() {
    for (ranks, device, through) in [
        (2, (|rank| rank == 1) as fn(usize) -> bool, Through::Default),
        (3, |rank| rank != 1, Through::Kernel),
        (3, |rank| rank == 0, Through::Mixed),
        (5, |rank| rank % 2 == 0, Through::Default),
    ] {
        let stage = Stage {
            through,
            ..Stage::new(ranks, device, smallest(ranks as usize))
        };
        let (world, _) = stage.world();
        matrix_of(&world.any(), &[1, 1000, 20_001]);
        let used = |of: Ways| of.loads + of.pushes + of.copies;
        for ways in world.ways() {
            assert_eq!(
                used(ways),
                0,
                "what is on a device can't be reached: {ways:?}"
            );
        }
    }
}

#[test]
fn matrix_with_devices_without_a_pool() {
    for ranks in [2, 4] {
        let (world, movers) = Stage::new(ranks, EVERY, 0).world();
        matrix_of(&world.any(), &[13, 70_001]);
        for mover in movers.into_iter().flatten() {
            assert_eq!(*lock(&mover.area), None);
        }
    }
}

#[test]
fn matrix_with_devices_and_threads_that_reduce() {
    let stage = Stage {
        threads: 2,
        ..Stage::new(2, EVERY, 64 << 20)
    };
    let (world, _) = stage.world();
    matrix_of(&world.any(), &[70_001]);
    world.each(|engine| {
        assert!(lock(&engine.helpers).crew.is_some());
        engine.retire();
        assert!(lock(&engine.helpers).crew.is_none());
    });
}

#[test]
fn a_rank_without_its_part_of_the_pool_takes_all_the_other_way() {
    let stage = Stage {
        without: Some(1),
        ..Stage::new(3, EVERY, 64 << 20)
    };
    let (world, movers) = stage.world();
    matrix_of(&world.any(), &[20_001]);
    let told: Vec<bool> = movers
        .iter()
        .map(|mover| lock(&mover.as_ref().unwrap().area).is_some())
        .collect();
    assert_eq!(told, [true, false, true]);
}

#[test]
fn messages_of_devices_arrive() {
    for (ranks, through) in [
        (2, Through::Default),
        (2, Through::Kernel),
        (3, Through::Pointers),
        (3, Through::Mixed),
    ] {
        let stage = Stage {
            through,
            ..Stage::new(ranks, |rank| rank != 1, 0)
        };
        let (world, _) = stage.world();
        groups_of_messages(&world.any());
        let ways = world.ways();
        assert_eq!(
            ways.iter().map(|of| of.declined).sum::<u32>(),
            0,
            "{ways:?}"
        );
        if through != Through::Default {
            // Rank 1 alone has its messages where others can read them, piece by piece.
            let whole: Vec<bool> = ways.iter().map(|of| of.messages > 0).collect();
            let expected: Vec<bool> = (0..ranks).map(|rank| rank != 1).collect();
            assert_eq!(whole, expected, "{ways:?}");
        }
    }
}

#[test]
fn random_operations_with_devices() {
    for (ranks, rounds) in [(2, 60), (4, 30)] {
        let stage = Stage::new(ranks, |rank| rank % 3 != 2, smallest(ranks as usize));
        stage
            .world()
            .0
            .each(|engine| stress(engine, 777 + u64::from(ranks), rounds));
    }
}

/// A failed copy is every rank's error, whenever it comes, and nothing is under way afterwards.
#[test]
fn a_copy_that_fails_ends_the_communicator_on_all_ranks() {
    for (fails, kind) in [
        (1, OpKind::AllReduce),
        (2, OpKind::AllReduce),
        (9, OpKind::AllReduce),
        (5, OpKind::AllGather),
        (3, OpKind::Broadcast),
    ] {
        let stage = Stage {
            fails,
            ..Stage::new(3, EVERY, smallest(3))
        };
        let (world, movers) = stage.world();
        let errors = world.each(|engine| {
            let mut send = Buffer::new(900_000);
            let mut recv = Buffer::new(2_700_000);
            let mut op = op(kind, 900_000, DataType::Uint8);
            any_buffers(&mut op, &mut send, &mut recv);
            let error = run(engine, &op).unwrap_err();
            if let Some(mover) = &movers[engine.rank] {
                assert!(lock(&mover.begun).is_empty(), "copies go on");
                assert!(fails == 1 || mover.settled.load(SeqCst) > 0);
            }
            error
        });
        assert_eq!(errors[0].code(), Code::UnhandledDeviceError);
        for error in &errors[1..] {
            assert_eq!(error.code(), Code::RemoteError, "{error}");
            let text = "rank 0 failed: the device fell off the bus";
            assert!(error.text().contains(text), "{error}");
        }
    }
}

/// A rank that waits in the middle of a collective is freed by an abort, and by a rank that gives up.
#[test]
fn an_abort_ends_staging() {
    let (world, movers) = Stage::new(2, EVERY, smallest(2)).world();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            world.0[0].abort();
        });
        let mut send = Buffer::new(4 << 20);
        let mut recv = Buffer::new(4 << 20);
        let mut op = op(OpKind::AllReduce, 4 << 20, DataType::Uint8);
        any_buffers(&mut op, &mut send, &mut recv);
        // The other comes as far as the exchange: its copies never end.
        let print = crate::host::check::Fingerprint::of(&op);
        let other = &world.0[1];
        let says = crate::host::check::Staging::ON_DEVICE;
        other
            .map
            .header_fingerprint(1, 1)
            .store(print.with(says), SeqCst);
        other.map.counter(Counter::Header(1), 1).store(1, SeqCst);
        let error = run(&*world.0[0], &op).unwrap_err();
        assert_eq!(error.code(), Code::Aborted, "{error}");
        assert!(lock(&movers[0].as_ref().unwrap().begun).is_empty());
    });
}
