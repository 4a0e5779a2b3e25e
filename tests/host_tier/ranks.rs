//! Ranks, communicators and threads in many shapes.

use super::{all_reduce, on_threads, options, sum, with_ranks};
use flagos_comm::{Code, Communicator, DataType, RedOp, Stream, UniqueId, group, internal};
use std::sync::Barrier;
use std::time::{Duration, Instant};

#[test]
fn all_reduce_on_two_ranks_of_one_thread() {
    let comms = Communicator::init_local(2, &options()).unwrap();
    let mut values = [[1f32; 5], [2.0; 5]];
    group(|| {
        for (comm, values) in comms.iter().zip(&mut values) {
            all_reduce(comm, values, DataType::Float32, RedOp::Sum, Stream::DEFAULT)?;
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(values, [[3.0; 5]; 2]);
    for comm in comms {
        comm.destroy().unwrap();
    }
}

/// 1 to 150 ranks that are threads of one process, which arrive by one id; above 128 in a tree.
#[test]
fn threads_as_ranks() {
    for n in [1, 2, 3, 5, 8, 16, 33, 64, 150] {
        let id = UniqueId::new().unwrap();
        std::thread::scope(|scope| {
            for rank in 0..n {
                let id = &id;
                scope.spawn(move || {
                    let comm = Communicator::init_rank(n, id, rank, &options()).unwrap();
                    assert_eq!((comm.rank().unwrap(), comm.count().unwrap()), (rank, n));
                    for round in 0..3 {
                        let wanted = (0..n).map(|r| (r + round) as f32).sum::<f32>();
                        assert_eq!(sum(&comm, (rank + round) as f32), wanted);
                    }
                    comm.destroy().unwrap();
                });
            }
        });
    }
}

/// Several ids share the load of the rendezvous, whether the ranks are few or many.
#[test]
fn several_unique_ids() {
    for n in [3, 150] {
        let ids: Vec<_> = (0..3).map(|_| internal::get_unique_id().unwrap()).collect();
        std::thread::scope(|scope| {
            for rank in 0..n {
                let ids = &ids;
                scope.spawn(move || {
                    let mut comm = 0;
                    // SAFETY: the handle's place lives through the call, and no group is open.
                    let made =
                        unsafe { internal::comm_init_rank(&mut comm, n, ids, rank, &options()) };
                    assert!(made.unwrap());
                    internal::comm_destroy(comm).unwrap();
                });
            }
        });
    }
}

/// Several communicators with the same ranks, used in turn.
#[test]
fn several_communicators_at_once() {
    let worlds: Vec<Vec<Communicator>> = (0..4)
        .map(|_| Communicator::init_local(3, &options()).unwrap())
        .collect();
    std::thread::scope(|scope| {
        for rank in 0..3 {
            let worlds = &worlds;
            scope.spawn(move || {
                for round in 0..20 {
                    for (w, world) in worlds.iter().enumerate() {
                        let got = sum(&world[rank], (w + round) as f32);
                        assert_eq!(got, 3.0 * (w + round) as f32);
                    }
                }
            });
        }
    });
    worlds
        .into_iter()
        .flatten()
        .for_each(|c| c.destroy().unwrap());
}

/// Communicators are independent: threads of one rank use one each, at the same time and in any order.
#[test]
fn communicators_used_from_several_threads() {
    let worlds: Vec<Vec<Communicator>> = (0..4)
        .map(|_| Communicator::init_local(2, &options()).unwrap())
        .collect();
    std::thread::scope(|scope| {
        for (w, world) in worlds.iter().enumerate() {
            for (rank, comm) in world.iter().enumerate() {
                scope.spawn(move || {
                    for round in 0..50 {
                        let got = sum(comm, (w * 100 + rank + round) as f32);
                        assert_eq!(got, (2 * (w * 100 + round) + 1) as f32);
                    }
                });
            }
        }
    });
    worlds
        .into_iter()
        .flatten()
        .for_each(|c| c.destroy().unwrap());
}

/// Inits of several communicators from several threads at once.
#[test]
fn inits_at_once() {
    let ids: Vec<UniqueId> = (0..6).map(|_| UniqueId::new().unwrap()).collect();
    let gate = Barrier::new(12);
    std::thread::scope(|scope| {
        for id in &ids {
            for rank in 0..2 {
                let gate = &gate;
                scope.spawn(move || {
                    gate.wait();
                    let comm = Communicator::init_rank(2, id, rank, &options()).unwrap();
                    assert_eq!(sum(&comm, 1.0), 2.0);
                    comm.destroy().unwrap();
                });
            }
        }
    });
}

/// Both ranks send and receive in one group, large and small, and on streams.
#[test]
fn symmetric_messages_in_a_group() {
    for count in [1usize, 100, 5_000, 300_000] {
        for on_stream in [false, true] {
            with_ranks(2, |rank, comm| {
                let stream = if on_stream {
                    Stream::create().unwrap()
                } else {
                    Stream::DEFAULT
                };
                let other = 1 - rank;
                for round in 0..4 {
                    let value = (rank * 10 + round) as i32;
                    let (send, mut recv) = (vec![value; count], vec![-1i32; count]);
                    // SAFETY: the vectors live until the stream was waited for.
                    group(|| unsafe {
                        comm.send(send.as_ptr().cast(), count, DataType::Int32, other, stream)?;
                        let to = recv.as_mut_ptr().cast();
                        comm.recv(to, count, DataType::Int32, other, stream)
                    })
                    .unwrap();
                    stream.synchronize().unwrap();
                    assert!(recv.iter().all(|v| *v == (other * 10 + round) as i32));
                }
                if on_stream {
                    stream.destroy().unwrap();
                }
            });
        }
    }
}

/// NU-8: a lone message of a rank to itself can never be met; it is refused at once.
#[test]
fn a_lone_message_to_oneself_is_refused() {
    for n in [1, 2] {
        with_ranks(n, |rank, comm| {
            let mut value = 1i32;
            let at = std::ptr::from_mut(&mut value).cast();
            let begin = Instant::now();
            // SAFETY: one element each.
            let (sent, received) = unsafe {
                (
                    comm.send(at, 1, DataType::Int32, rank, Stream::DEFAULT),
                    comm.recv(at, 1, DataType::Int32, rank, Stream::DEFAULT),
                )
            };
            for result in [sent, received] {
                assert_eq!(result.unwrap_err().code(), Code::InvalidUsage);
            }
            assert!(begin.elapsed() < Duration::from_secs(1));
            assert_eq!(sum(comm, 1.0), n as f32);
        });
    }
}

/// Both ranks send first without a group: a small message is taken or refused in time, never corrupted.
#[test]
fn two_lone_sends_that_face_each_other_end() {
    for count in [1usize, 1 << 20] {
        let mut options = options();
        options.collective_timeout = flagos_comm::Limit::After(Duration::from_millis(400));
        let comms = Communicator::init_local(2, &options).unwrap();
        let results = on_threads(&comms, |rank, comm| {
            let (send, mut recv) = (vec![rank as i32; count], vec![-1i32; count]);
            // SAFETY: both vectors have `count` elements and live until the calls return.
            unsafe {
                let from = send.as_ptr().cast();
                comm.send(from, count, DataType::Int32, 1 - rank, Stream::DEFAULT)?;
                let to = recv.as_mut_ptr().cast();
                comm.recv(to, count, DataType::Int32, 1 - rank, Stream::DEFAULT)?;
            }
            assert!(recv.iter().all(|v| *v == 1 - rank as i32));
            Ok(())
        });
        for result in results {
            if let Err(error) = result {
                let error: flagos_comm::Error = error;
                assert!(
                    matches!(error.code(), Code::Timeout | Code::RemoteError),
                    "{error}"
                );
                assert!(error.text().contains("Send"), "{error}");
            }
        }
        drop(comms);
    }
}

/// NU-7 for messages: the two ends of a message disagree.
#[test]
fn messages_whose_ends_disagree_are_refused_on_both() {
    let comms = Communicator::init_local(2, &options()).unwrap();
    let errors = on_threads(&comms, |rank, comm| {
        let mut values = [0f32; 8];
        let at = values.as_mut_ptr().cast();
        // SAFETY: eight elements are there, and fewer are asked for.
        unsafe {
            match rank {
                0 => comm.send(at, 4, DataType::Float32, 1, Stream::DEFAULT),
                _ => comm.recv(at, 5, DataType::Float32, 0, Stream::DEFAULT),
            }
        }
        .unwrap_err()
    });
    for error in errors {
        assert_eq!(error.code(), Code::InvalidUsage, "{error}");
        assert!(
            error.text().contains('4') && error.text().contains('5'),
            "{error}"
        );
    }
    drop(comms);
}

/// A rank's own bad arguments are its own: nothing was published, and the ranks stay in step.
#[test]
fn a_refused_call_disturbs_nobody() {
    with_ranks(3, |rank, comm| {
        if rank == 1 {
            // SAFETY: the call is refused before anything is touched.
            let result = unsafe {
                comm.broadcast(
                    std::ptr::null(),
                    std::ptr::null_mut(),
                    1,
                    DataType::Int8,
                    7,
                    Stream::DEFAULT,
                )
            };
            let error = result.unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument);
            assert!(
                error.text().contains("root 7 but the communicator has 3"),
                "{error}"
            );
        }
        assert_eq!(sum(comm, 1.0), 3.0);
        // Nor was it counted: the second call of each rank has the same number everywhere.
        let mut values = vec![1f32; 2 + rank];
        let error = all_reduce(
            comm,
            &mut values,
            DataType::Float32,
            RedOp::Sum,
            Stream::DEFAULT,
        )
        .unwrap_err();
        assert_eq!(error.code(), Code::InvalidUsage, "{error}");
        assert!(error.text().contains(" #2 on "), "rank {rank}: {error}");
    });
}

/// Each rank's level and reason are heard by all; a rank that is gone is named.
#[test]
fn ranks_agree_on_a_level() {
    let mut comms = Communicator::init_local(3, &options()).unwrap();
    let answers = on_threads(&comms, |rank, comm| {
        let reason = if rank == 2 { "no room" } else { "" };
        comm.agree(1 - (rank / 2) as i32, reason).unwrap()
    });
    for answer in &answers {
        assert_eq!(
            (answer.lowest, answer.levels.as_slice()),
            (0, &[1, 1, 0][..])
        );
        assert!(answer.text.contains("level 0: rank 2 (host "), "{answer:?}");
        assert!(
            answer.text.ends_with("): no room; level 1: ranks 0, 1"),
            "{answer:?}"
        );
        assert_eq!(answer, &answers[0]);
    }
    comms.pop().unwrap().destroy().unwrap();
    for error in on_threads(&comms, |_, comm| comm.agree(1, "").unwrap_err()) {
        assert_eq!(error.code(), Code::RemoteError);
        assert!(error.text().contains("rank 2 (host "), "{error}");
    }
    comms.into_iter().for_each(|c| c.destroy().unwrap());
}

/// A revoked communicator refuses work, tells the others, and can be shrunk and destroyed.
#[test]
fn revoke_then_shrink() {
    let comms = Communicator::init_local(3, &options()).unwrap();
    internal::comm_revoke(comms[2].as_raw(), 0).unwrap();
    on_threads(&comms[..2], |_, comm| {
        let mut one = [1f32];
        let error = all_reduce(
            comm,
            &mut one,
            DataType::Float32,
            RedOp::Sum,
            Stream::DEFAULT,
        )
        .unwrap_err();
        assert_eq!(error.code(), Code::RemoteError, "{error}");
        assert!(
            error
                .text()
                .contains("rank 2 revoked the communicator (flagosCommRevoke)"),
            "{error}"
        );
    });
    let mut one = [1f32];
    let error = all_reduce(
        &comms[2],
        &mut one,
        DataType::Float32,
        RedOp::Sum,
        Stream::DEFAULT,
    )
    .unwrap_err();
    assert_eq!(error.code(), Code::InvalidUsage, "{error}");
    assert!(
        error.text().contains("this rank revoked the communicator"),
        "{error}"
    );
    let own = internal::comm_async_error(comms[2].as_raw()).unwrap();
    assert_eq!(own, Code::Aborted as i32);
    on_threads(&comms[..2], |rank, comm| {
        let mut child = 0;
        // SAFETY: `child` outlives the call.
        let made = unsafe { internal::comm_shrink(comm.as_raw(), &[2], &raw mut child, None, 0) };
        assert!(made.unwrap());
        assert_eq!(internal::comm_user_rank(child).unwrap(), rank as i32);
        assert_eq!(internal::comm_count(child).unwrap(), 2);
        internal::comm_destroy(child).unwrap();
    });
    comms.into_iter().for_each(|c| c.destroy().unwrap());
}

/// A call that is under way when its rank revokes the communicator says so.
#[test]
fn a_revoke_ends_the_calls_of_its_own_rank() {
    let comms = Communicator::init_local(2, &options()).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let mut one = [1f32];
            let (sum, stream) = (RedOp::Sum, Stream::DEFAULT);
            all_reduce(&comms[0], &mut one, DataType::Float32, sum, stream).unwrap_err()
        });
        std::thread::sleep(Duration::from_millis(50));
        internal::comm_revoke(comms[0].as_raw(), 0).unwrap();
        let error = waits.join().unwrap();
        assert_eq!(error.code(), Code::Aborted, "{error}");
        assert!(
            error.text().contains("this rank revoked the communicator"),
            "{error}"
        );
    });
    comms.into_iter().for_each(|c| c.destroy().unwrap());
}

/// The number of a collective is the same wherever a text tells it, whatever was refused before.
#[test]
fn a_collective_has_one_number() {
    let comms = Communicator::init_local(2, &options()).unwrap();
    let differ = |count: usize, comm: &Communicator| {
        let mut all = vec![1f32; count];
        let (sum, stream) = (RedOp::Sum, Stream::DEFAULT);
        all_reduce(comm, &mut all, DataType::Float32, sum, stream).unwrap_err()
    };
    on_threads(&comms, |rank, comm| {
        let number = |error: flagos_comm::Error, number: u32| {
            for words in [
                format!(" #{number} on"),
                format!("collective number {number} of"),
            ] {
                assert!(error.text().contains(&words), "{words}: {error}");
            }
        };
        number(differ(4 + rank, comm), 1);
        let mut one = [1u8];
        let (sum, stream) = (RedOp::Sum, Stream::DEFAULT);
        let refused = all_reduce(comm, &mut one, DataType::Float8e4m3, sum, stream);
        assert_eq!(refused.unwrap_err().code(), Code::NotSupported);
        number(differ(4 + rank, comm), 2);
        internal::group_start().unwrap();
        let mut all = [1f32; 5];
        all_reduce(comm, &mut all[..4 + rank], DataType::Float32, sum, stream).unwrap();
        number(internal::group_end().unwrap_err(), 3);
        number(differ(4 + rank, comm), 4);
    });
    comms.into_iter().for_each(|c| c.destroy().unwrap());
}

/// Splits at once on two communicators from one thread each, and children of children.
#[test]
fn splits_on_several_communicators_at_once() {
    let worlds: Vec<Vec<Communicator>> = (0..3)
        .map(|_| Communicator::init_local(4, &options()).unwrap())
        .collect();
    std::thread::scope(|scope| {
        for world in &worlds {
            for (rank, comm) in world.iter().enumerate() {
                scope.spawn(move || {
                    let child = comm.split(Some(rank as i32 / 2), 0).unwrap().unwrap();
                    let grand = child.split(Some(0), -(rank as i32)).unwrap().unwrap();
                    assert_eq!(grand.rank().unwrap(), 1 - rank % 2);
                    assert_eq!(sum(&grand, 1.0) + sum(&child, 1.0), 4.0);
                    child.destroy().unwrap();
                    assert_eq!(sum(&grand, 2.0), 4.0);
                    grand.destroy().unwrap();
                    assert!(comm.split(None, 0).unwrap().is_none());
                    assert_eq!(sum(comm, 1.0), 4.0);
                });
            }
        }
    });
    worlds
        .into_iter()
        .flatten()
        .for_each(|c| c.destroy().unwrap());
}

/// Two splits at once on one parent, in one process, are refused on the second.
#[test]
fn a_second_split_at_once_is_refused() {
    let comms = Communicator::init_local(2, &options()).unwrap();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| comms[0].split(Some(0), 0).unwrap());
        std::thread::sleep(Duration::from_millis(100));
        let error = comms[0].split(Some(0), 0).unwrap_err();
        assert_eq!(error.code(), Code::InvalidUsage);
        assert!(error.text().contains("one at a time"), "{error}");
        let second = comms[1].split(Some(0), 0).unwrap();
        drop((first.join().unwrap(), second));
    });
    comms.into_iter().for_each(|c| c.destroy().unwrap());
}

/// Splits inside a group: one thread owns all ranks.
#[test]
fn splits_inside_a_group() {
    let comms = Communicator::init_local(3, &options()).unwrap();
    let mut children = [0usize; 3];
    internal::group_start().unwrap();
    for (rank, comm) in comms.iter().enumerate() {
        let color = if rank == 1 { -1 } else { 4 };
        // SAFETY: the array outlives the group.
        unsafe {
            internal::comm_split(comm.as_raw(), color, 0, &raw mut children[rank], None).unwrap();
        }
    }
    assert!(internal::group_end().unwrap());
    assert_eq!(children[1], 0);
    for (rank, child) in [(0, children[0]), (1, children[2])] {
        assert_eq!(internal::comm_user_rank(child).unwrap(), rank);
        assert_eq!(internal::comm_count(child).unwrap(), 2);
        internal::comm_destroy(child).unwrap();
    }
    comms.into_iter().for_each(|c| c.destroy().unwrap());
}

/// LC-3: one rank aborts at any moment, from another thread, while the ranks work, split and end.
#[test]
fn abort_at_any_moment() {
    for round in 0..60u64 {
        let comms = Communicator::init_local(3, &options()).unwrap();
        let raw = comms[round as usize % 3].as_raw();
        let begin = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_micros(round * 97 % 4000));
                // The rank may have destroyed it by itself.
                let _ = internal::comm_abort(raw);
            });
            for (rank, comm) in comms.iter().enumerate() {
                scope.spawn(move || {
                    for step in 0..200 {
                        let mut values = vec![1f32; 1 + step * 50];
                        let done = all_reduce(
                            comm,
                            &mut values,
                            DataType::Float32,
                            RedOp::Sum,
                            Stream::DEFAULT,
                        );
                        if done.is_err() {
                            return;
                        }
                        if step % 10 == 3 {
                            match comm.split(Some(0), rank as i32) {
                                Ok(Some(child)) => child.destroy().unwrap(),
                                _ => return,
                            }
                        }
                    }
                });
            }
        });
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "round {round}: {:?}",
            begin.elapsed()
        );
        drop(comms);
    }
}

/// A send to a receive that expects another count: both ranks learn, but for a message of up to 128 KiB that is sent alone
/// while another waits for its sender.
#[test]
fn who_learns_of_a_message_that_was_not_expected() {
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Sent {
        Lone,
        AloneInItsGroup,
        WithAnother,
    }
    let usage = |code: Option<Code>| code == Some(Code::InvalidUsage);
    for sent in [Sent::Lone, Sent::AloneInItsGroup, Sent::WithAnother] {
        for (bytes, waits) in [
            (600, false),
            (600, true),
            (131_072, true),
            (131_072, false),
            (140_000, true),
        ] {
            let late = Duration::from_millis(20);
            let codes = with_ranks(2, |rank, comm| {
                let (mut odd, mut usual) = (vec![0u8; bytes + 1], [0u8; 8]);
                let (odd, usual) = (odd.as_mut_ptr(), usual.as_mut_ptr());
                let odd: *mut std::ffi::c_void = odd.cast();
                let usual: *mut std::ffi::c_void = usual.cast();
                let (u8s, stream) = (DataType::Uint8, Stream::DEFAULT);
                // SAFETY: the buffers have as many bytes and live until the calls have returned.
                let send =
                    |buffer, count| unsafe { comm.send(buffer, count, u8s, 1 - rank, stream) };
                // SAFETY: as above.
                let recv =
                    |buffer, count| unsafe { comm.recv(buffer, count, u8s, 1 - rank, stream) };
                let (odd_sent, usual_sent) = (odd.cast_const(), usual.cast_const());
                if rank == 1 {
                    if waits {
                        // It returns when rank 0's is there, which then is complete before it is received.
                        send(usual_sent, 8).unwrap();
                        std::thread::sleep(late);
                    }
                    let result = match sent {
                        Sent::WithAnother => group(|| recv(odd, bytes + 1).and(recv(usual, 8))),
                        _ => recv(odd, bytes + 1),
                    };
                    return result.err().map(|error| error.code());
                }
                let result = match sent {
                    Sent::Lone => send(odd_sent, bytes),
                    Sent::AloneInItsGroup => group(|| send(odd_sent, bytes)),
                    Sent::WithAnother => group(|| send(odd_sent, bytes).and(send(usual_sent, 8))),
                };
                if waits {
                    recv(usual, 8).unwrap();
                }
                result.err().map(|error| error.code())
            });
            let learns = !waits || bytes > 131_072 || sent == Sent::WithAnother;
            assert!(usage(codes[1]), "{sent:?} {bytes} {waits}: {codes:?}");
            assert_eq!(
                usage(codes[0]),
                learns,
                "{sent:?} {bytes} {waits}: {codes:?}"
            );
        }
    }
}
