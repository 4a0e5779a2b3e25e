//! Host streams: the order of issue, events, errors, and the end of a communicator with work queued.
//! On a machine with an accelerator's driver streams are the driver's, and there is nothing to see here.

use super::{all_reduce, on_threads, options, with_ranks};
use flagos_comm::{Code, Communicator, DataType, Limit, RedOp, Stream, internal};
use std::time::{Duration, Instant};

fn host_streams() -> bool {
    let host = internal::vendor().is_ok_and(|v| v == "host");
    if !host {
        eprintln!("SKIPPED: this machine's streams are its driver's");
    }
    host
}

fn add(comm: &Communicator, values: &mut [i64], on: Stream) {
    all_reduce(comm, values, DataType::Int64, RedOp::Sum, on).unwrap();
}

/// Operations on two streams of one communicator keep the order of issue, on every rank: they are
/// different calls, so that any other order would be refused or give other numbers.
#[test]
fn two_streams_keep_the_order_of_issue() {
    if !host_streams() {
        return;
    }
    with_ranks(3, |rank, comm| {
        let streams = [Stream::create().unwrap(), Stream::create().unwrap()];
        let mut buffers: Vec<Vec<i64>> = (0..40).map(|n| vec![n; 1 + n as usize * 7]).collect();
        for (n, buffer) in buffers.iter_mut().enumerate() {
            // Each rank spreads them over its streams in its own way.
            add(comm, buffer, streams[(n * (rank + 1) / 2) % 2]);
        }
        for stream in streams {
            stream.synchronize().unwrap();
            stream.destroy().unwrap();
        }
        for (n, buffer) in buffers.iter().enumerate() {
            assert!(buffer.iter().all(|v| *v == 3 * n as i64), "operation {n}");
        }
    });
}

/// A call on the NULL stream blocks, and comes after what was issued to a stream before.
#[test]
fn the_null_stream_blocks_and_keeps_the_order() {
    if !host_streams() {
        return;
    }
    with_ranks(2, |rank, comm| {
        let stream = Stream::create().unwrap();
        let (mut first, mut second) = (vec![1i64; 50_000], vec![2i64; 3]);
        if rank == 1 {
            std::thread::sleep(Duration::from_millis(50));
        }
        add(comm, &mut first, stream);
        add(comm, &mut second, Stream::DEFAULT);
        assert_eq!(second, [4; 3]);
        stream.synchronize().unwrap();
        assert!(first.iter().all(|v| *v == 2));
        stream.destroy().unwrap();
    });
}

/// A call on a stream returns before the other ranks have come.
#[test]
fn a_call_on_a_stream_returns_at_once() {
    if !host_streams() {
        return;
    }
    with_ranks(2, |rank, comm| {
        let stream = Stream::create().unwrap();
        let mut values = vec![1i64; 1000];
        if rank == 1 {
            std::thread::sleep(Duration::from_millis(300));
        }
        let begin = Instant::now();
        add(comm, &mut values, stream);
        assert!(begin.elapsed() < Duration::from_millis(250));
        if rank == 0 {
            assert!(!internal::stream_query(stream.0).unwrap());
        }
        stream.synchronize().unwrap();
        assert!(internal::stream_query(stream.0).unwrap());
        assert!(values.iter().all(|v| *v == 2));
        stream.destroy().unwrap();
    });
}

/// An event orders an operation after another stream's copy.
#[test]
fn events_order_streams() {
    if !host_streams() {
        return;
    }
    with_ranks(2, |rank, comm| {
        let (copies, work) = (Stream::create().unwrap(), Stream::create().unwrap());
        let event = internal::event_create(false).unwrap();
        let source = vec![rank as i64 + 1; 200_000];
        let mut values = vec![0i64; 200_000];
        let bytes = source.len() * 8;
        // SAFETY: both vectors live until the streams were waited for.
        unsafe {
            let (to, from) = (values.as_mut_ptr().cast(), source.as_ptr().cast());
            internal::memcpy_async(to, from, bytes, 3, copies.0).unwrap();
        }
        internal::event_record(event, copies.0).unwrap();
        internal::stream_wait_event(work.0, event).unwrap();
        add(comm, &mut values, work);
        work.synchronize().unwrap();
        assert!(values.iter().all(|v| *v == 3));
        internal::event_destroy(event).unwrap();
        for stream in [copies, work] {
            stream.destroy().unwrap();
        }
    });
}

/// The error of an operation on a stream is reported by StreamSynchronize and by CommGetAsyncError.
#[test]
fn errors_on_a_stream_are_reported() {
    if !host_streams() {
        return;
    }
    let comms = Communicator::init_local(2, &options()).unwrap();
    on_threads(&comms, |rank, comm| {
        let stream = Stream::create().unwrap();
        let mut values = [1i64; 10];
        // The ranks disagree on the count.
        add(comm, &mut values[..5 + rank], stream);
        let error = stream.synchronize().unwrap_err();
        assert_eq!(error.code(), Code::InvalidUsage, "{error}");
        assert!(
            error.text().contains("count 5") && error.text().contains("count 6"),
            "{error}"
        );
        // Told once; the communicator remembers.
        stream.synchronize().unwrap();
        let state = comm.async_error().unwrap_err();
        assert!(
            matches!(state.code(), Code::InvalidUsage | Code::RemoteError),
            "{state}"
        );
        stream.destroy().unwrap();
    });
    drop(comms);
}

/// Destroy waits for what is queued, if the other rank comes.
#[test]
fn destroy_finishes_what_is_queued() {
    if !host_streams() {
        return;
    }
    let comms = Communicator::init_local(2, &options()).unwrap();
    std::thread::scope(|scope| {
        for (rank, comm) in comms.into_iter().enumerate() {
            scope.spawn(move || {
                let stream = Stream::create().unwrap();
                let mut buffers = vec![vec![1i64; 10_000]; 10];
                if rank == 1 {
                    std::thread::sleep(Duration::from_millis(100));
                }
                for buffer in &mut buffers {
                    add(&comm, buffer, stream);
                }
                comm.destroy().unwrap();
                stream.synchronize().unwrap();
                assert!(buffers.iter().flatten().all(|v| *v == 2));
                stream.destroy().unwrap();
            });
        }
    });
}

/// Destroy gives up on what can never run, within its limit.
#[test]
fn destroy_with_work_that_nobody_joins_is_bounded() {
    if !host_streams() {
        return;
    }
    let mut options = options();
    options.destroy_timeout = Limit::After(Duration::from_millis(200));
    let mut comms = Communicator::init_local(2, &options).unwrap();
    let other = comms.pop().unwrap();
    let comm = comms.pop().unwrap();
    let stream = Stream::create().unwrap();
    let mut buffers = vec![vec![1i64; 100_000]; 3];
    for buffer in &mut buffers {
        add(&comm, buffer, stream);
    }
    let begin = Instant::now();
    let _ = comm.destroy();
    let took = begin.elapsed();
    assert!(
        took >= Duration::from_millis(150) && took < Duration::from_secs(3),
        "{took:?}"
    );
    let error = stream.synchronize().unwrap_err();
    assert!(
        matches!(
            error.code(),
            Code::Aborted | Code::InvalidUsage | Code::RemoteError
        ),
        "{error}"
    );
    stream.destroy().unwrap();
    drop(other);
}

/// Abort frees what a stream waits for, at once.
#[test]
fn abort_with_work_queued() {
    if !host_streams() {
        return;
    }
    let mut comms = Communicator::init_local(2, &options()).unwrap();
    let other = comms.pop().unwrap();
    let comm = comms.pop().unwrap();
    let stream = Stream::create().unwrap();
    let mut buffers = vec![vec![1i64; 100_000]; 3];
    for buffer in &mut buffers {
        add(&comm, buffer, stream);
    }
    std::thread::sleep(Duration::from_millis(50));
    let begin = Instant::now();
    comm.abort().unwrap();
    assert_eq!(stream.synchronize().unwrap_err().code(), Code::Aborted);
    assert!(begin.elapsed() < Duration::from_secs(2));
    assert_eq!(other.async_error().unwrap_err().code(), Code::RemoteError);
    stream.destroy().unwrap();
    drop(other);
}

/// Operations of one group on two streams: both streams wait for the group.
#[test]
fn a_group_over_two_streams() {
    if !host_streams() {
        return;
    }
    with_ranks(2, |rank, comm| {
        let streams = [Stream::create().unwrap(), Stream::create().unwrap()];
        let mut buffers = [vec![1i64; 5000], vec![2i64; 70]];
        if rank == 1 {
            std::thread::sleep(Duration::from_millis(30));
        }
        flagos_comm::group(|| {
            for (buffer, stream) in buffers.iter_mut().zip(streams) {
                add(comm, buffer, stream);
            }
            Ok(())
        })
        .unwrap();
        for (stream, wanted, buffer) in [(streams[0], 2, &buffers[0]), (streams[1], 4, &buffers[1])]
        {
            stream.synchronize().unwrap();
            assert!(buffer.iter().all(|v| *v == wanted));
            stream.destroy().unwrap();
        }
    });
}

/// What a group has on the NULL stream is complete when the group has ended, whatever else is in the group.
#[test]
fn a_group_over_a_stream_and_null_blocks() {
    if !host_streams() {
        return;
    }
    with_ranks(2, |rank, comm| {
        let stream = Stream::create().unwrap();
        let (mut first, mut second) = (vec![1i64; 5000], vec![2i64; 70]);
        if rank == 1 {
            std::thread::sleep(Duration::from_millis(50));
        }
        flagos_comm::group(|| {
            add(comm, &mut first, stream);
            add(comm, &mut second, Stream::DEFAULT);
            Ok(())
        })
        .unwrap();
        assert_eq!(second, [4; 70]);
        stream.synchronize().unwrap();
        assert!(first.iter().all(|v| *v == 2));
        stream.destroy().unwrap();
    });
}

/// The operation waits on its stream for an event of another communicator that is stuck: abort and
/// destroy do not wait for it.
#[test]
fn abort_and_destroy_do_not_wait_for_other_streams() {
    if !host_streams() {
        return;
    }
    for destroy in [false, true] {
        let mut options = options();
        options.destroy_timeout = Limit::After(Duration::from_millis(200));
        let mut stuck = Communicator::init_local(2, &options).unwrap();
        let mut comms = Communicator::init_local(2, &options).unwrap();
        let (_other, comm) = (comms.pop().unwrap(), comms.pop().unwrap());
        let (first, second) = (Stream::create().unwrap(), Stream::create().unwrap());
        let event = internal::event_create(false).unwrap();
        let (mut a, mut b) = (vec![1i64; 100_000], vec![1i64; 100_000]);
        add(&stuck[0], &mut a, first);
        internal::event_record(event, first.0).unwrap();
        internal::stream_wait_event(second.0, event).unwrap();
        add(&comm, &mut b, second);
        let begin = Instant::now();
        if destroy {
            let _ = comm.destroy();
        } else {
            comm.abort().unwrap();
        }
        assert!(begin.elapsed() < Duration::from_secs(4));
        stuck.swap_remove(0).abort().unwrap();
        assert_eq!(first.synchronize().unwrap_err().code(), Code::Aborted);
        let error = second.synchronize().unwrap_err();
        assert!(
            matches!(error.code(), Code::Aborted | Code::InvalidUsage),
            "{error}"
        );
        internal::event_destroy(event).unwrap();
        for stream in [first, second] {
            stream.destroy().unwrap();
        }
    }
}
