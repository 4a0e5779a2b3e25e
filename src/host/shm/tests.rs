//! The engine with threads and with processes as ranks.

use super::*;
use crate::error::Code;
use crate::host::tests::{
    Buffer, Until, World, engine_tests, matrix, op, run, run_with, stress, transfer,
};
use crate::sys::unix;
use crate::types::{DataType, OpKind};
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

/// Engines of all ranks in this process.
fn world(ranks: u32) -> World {
    let bytes = ShmEngine::segment_bytes(ranks).unwrap();
    let (segment, _fd) = Segment::create(bytes).unwrap();
    let segment = Arc::new(segment);
    let attach = |rank| ShmEngine::attach(Arc::clone(&segment), rank, ranks).unwrap();
    World(
        (0..ranks)
            .map(|rank| Box::new(attach(rank)) as Box<dyn Engine>)
            .collect(),
    )
}

engine_tests! {
    world;
    matrix_of_1_and_2_ranks
    matrix_of_3_and_4_ranks
    matrix_of_5_to_8_ranks
    disagreements_are_errors_on_every_rank_and_leave_the_engine_usable
    wrong_arguments_are_found_before_anything_is_published
    lone_messages_arrive
    large_messages_that_block_each_other_end_at_the_deadline
    groups_of_messages_are_matched_in_order
    a_group_may_mix_collectives_and_messages_in_any_order
    random_operations_with_threads
}

#[test]
fn messages_that_disagree_are_errors_on_both_sides_and_are_dropped() {
    crate::host::tests::messages_that_disagree_are_errors_and_are_dropped(world, None);
}

#[test]
fn matrix_of_16_and_64_ranks() {
    matrix(world, 16, &[1, 3001]);
    matrix(world, 64, &[0, 5]);
}

#[test]
fn the_largest_number_of_ranks_works_and_more_is_an_error() {
    let world = world(MAX_ENGINE_RANKS as u32);
    world.each(|engine| {
        let (send, mut recv) = ([engine.rank() as i32; 600], [0i32; 600]);
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

#[test]
fn an_abort_ends_the_waits_of_every_rank() {
    for kind in [OpKind::Barrier, OpKind::Recv] {
        let world = world(3);
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
                    let own = engine.rank() == 0;
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
fn a_failed_wait_is_published_and_final() {
    let world = world(3);
    let barrier = op(OpKind::Barrier, 0, DataType::Int8);
    let errors = world.each(|engine| match engine.rank() {
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
    let world = self::world(2);
    world.0[1].poison(&Error::internal("\u{e4}".repeat(3000)));
    let error = run(&*world.0[0], &barrier).unwrap_err();
    assert!(error.text().starts_with("rank 1 failed: \u{e4}\u{e4}"));
    assert!(error.text().ends_with('\u{e4}'));
}

const CHILD: &str = "FLAGOSCOMM_TEST_SHM_CHILD";

/// One rank of [`random_operations_with_processes`]; does nothing unless it is started by it.
#[test]
fn child_rank() {
    let Ok(arguments) = std::env::var(CHILD) else {
        return;
    };
    let mut fields = arguments.split(' ');
    let name = fields.next().unwrap();
    let [rank, ranks] = [(); 2].map(|()| fields.next().unwrap().parse().unwrap());
    let deadline = Instant::now() + Duration::from_secs(20);
    let socket = unix::connect(name.as_bytes(), deadline).unwrap();
    let fd = unix::recv_fd(socket.as_fd(), deadline).unwrap();
    let bytes = ShmEngine::segment_bytes(ranks).unwrap();
    let segment = Arc::new(Segment::open(fd.as_fd(), bytes).unwrap());
    let engine = ShmEngine::attach(segment, rank, ranks).unwrap();
    stress(&engine, 99, 50);
}

#[test]
fn random_operations_with_processes() {
    for ranks in [2u32, 4] {
        let name = format!("flagos-comm shm test {} {ranks}", std::process::id()).replace(' ', "-");
        let (segment, fd) = Segment::create(ShmEngine::segment_bytes(ranks).unwrap()).unwrap();
        let listener = unix::listen(name.as_bytes()).unwrap();
        let mut children: Vec<_> = (1..ranks)
            .map(|rank| {
                Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", "host::shm::tests::child_rank", "--nocapture"])
                    .env(CHILD, format!("{name} {rank} {ranks}"))
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
        let engine = ShmEngine::attach(Arc::new(segment), 0, ranks).unwrap();
        stress(&engine, 99, 50);
        for child in &mut children {
            assert!(child.wait().unwrap().success());
        }
    }
}
