//! The engine with buffers in the memory of devices.

use super::*;
use crate::error::Code;
use crate::host::op::Mover;
use crate::host::tests::devices::LateMover;
use crate::host::tests::{matrix_of, stress};
use std::sync::atomic::Ordering::SeqCst;

/// Engines whose steps are as small as they may be, and the movers of the ranks that have a device. The `fails`-th copy
/// of rank 0 fails.
fn with_devices(
    ranks: usize,
    device: fn(usize) -> bool,
    fails: usize,
) -> (World, Vec<Option<Arc<LateMover>>>) {
    let wires = wires(ranks as u32);
    let mut movers = Vec::new();
    let engines = (0..ranks).map(|rank| {
        let engine = over_wires_in_steps(&wires, rank, 13);
        let mover = device(rank).then(|| {
            let fails = if rank == 0 { fails } else { 0 };
            Arc::new(LateMover::failing(fails))
        });
        if let Some(mover) = &mover {
            engine.set_mover(Arc::clone(mover) as Arc<dyn Mover>);
        }
        movers.push(mover);
        Arc::new(engine) as Arc<dyn Engine>
    });
    (World(engines.collect(), |_| false), movers)
}

#[test]
fn matrix_with_devices_in_steps() {
    for ranks in [2, 3] {
        let (world, movers) = with_devices(ranks, |_| true, 0);
        matrix_of(&world, &[0, 13, 70_001]);
        for mover in movers.into_iter().flatten() {
            assert!(lock(&mover.area).is_some(), "its memory is not pinned");
            assert!(lock(&mover.begun).is_empty(), "copies go on");
        }
    }
}

#[test]
fn matrix_with_devices_and_hosts_in_one_communicator() {
    for (ranks, device) in [
        (2, (|rank| rank == 1) as fn(usize) -> bool),
        (4, |rank| rank % 2 == 0),
    ] {
        let (world, _) = with_devices(ranks, device, 0);
        matrix_of(&world, &[1, 20_001, 70_001]);
    }
}

#[test]
fn random_operations_with_devices() {
    for (ranks, rounds) in [(2, 60), (5, 30)] {
        let (world, _) = with_devices(ranks, |rank| rank % 3 != 2, 0);
        world.each(|engine| stress(engine, 99 + ranks as u64, rounds));
    }
}

/// A failed copy is every rank's error, whenever it comes, and nothing is under way afterwards.
#[test]
fn a_copy_that_fails_ends_the_communicator_on_all_ranks() {
    for (fails, kind, count) in [
        (1, OpKind::AllReduce, 900_000),
        (2, OpKind::AllReduce, 900_000),
        (9, OpKind::AllReduce, 900_000),
        (5, OpKind::AllGather, 300_000),
        (1, OpKind::AllReduce, 100),
        (2, OpKind::AllReduce, 100),
    ] {
        let (world, movers) = with_devices(3, |_| true, fails);
        let errors = world.each(|engine| {
            let mut send = Buffer::new(count);
            let mut recv = Buffer::new(3 * count);
            let mut op = op(kind, count, DataType::Uint8);
            (op.send, op.recv) = (send.ptr(), recv.ptr());
            let wait = told(Duration::from_millis(500));
            let error = run_with(engine, &op, &wait).err();
            let mover = movers[engine.rank()].as_ref().unwrap();
            assert!(lock(&mover.begun).is_empty(), "copies go on");
            assert_eq!(
                error.is_some(),
                !lock(&wait.told).is_empty(),
                "nobody was told"
            );
            error
        });
        let code = |rank: usize| errors[rank].as_ref().map(Error::code);
        assert_eq!(
            code(0),
            Some(Code::UnhandledDeviceError),
            "{kind:?} {fails}"
        );
        // What only rank 0 lacks is its own result, if all had met.
        let all_have_it = (fails, count) == (2, 100);
        for rank in [1, 2] {
            assert_eq!(code(rank).is_none(), all_have_it, "{kind:?} {fails}");
        }
        assert!(movers[0].as_ref().unwrap().settled.load(SeqCst) > 0 || count == 100);
    }
}

/// The deadline and an abort are looked at while a device's copies don't end.
#[test]
fn a_copy_that_does_not_end_does_not_keep_its_rank() {
    for aborts in [false, true] {
        let (world, movers) = with_devices(2, |_| true, 0);
        let stuck = movers[0].as_ref().unwrap();
        stuck.stuck.store(true, SeqCst);
        let limit = Duration::from_millis(if aborts { 3000 } else { 50 });
        let error = crate::host::tests::ends_without(&world, limit, aborts);
        let code = if aborts { Code::Aborted } else { Code::Timeout };
        assert_eq!(error.code(), code, "{error}");
        assert!(lock(&stuck.begun).is_empty(), "copies go on");
    }
}
