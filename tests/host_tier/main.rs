//! The host tier through the Rust API, on ranks that are threads of this process. Debug builds check
//! overflow, so a wrapped sum proves that it wraps on purpose.

mod numbers;
mod ranks;
mod streams;

use flagos_comm::{Communicator, DataType, Op, Options, RedOp, Result, Stream};
use std::ffi::c_void;
use std::time::Duration;

/// Longer than any operation here takes on a busy machine, shorter than a test may hang.
const LIMIT: Duration = Duration::from_secs(30);

/// Options of every communicator here.
fn options() -> Options {
    Options {
        tiers: Some("host".into()),
        init_timeout: flagos_comm::Limit::After(LIMIT),
        collective_timeout: flagos_comm::Limit::After(LIMIT),
        ..Options::default()
    }
}

/// Makes `n` ranks, runs `body` for each on a thread of its own, destroys them; the results by rank.
fn with_ranks<T: Send>(n: usize, body: impl Fn(usize, &Communicator) -> T + Sync) -> Vec<T> {
    let comms = Communicator::init_local(n, &options()).unwrap();
    let results = on_threads(&comms, body);
    for comm in comms {
        comm.destroy().unwrap();
    }
    results
}

/// Runs `body` for each communicator on a thread of its own.
fn on_threads<T: Send>(
    comms: &[Communicator],
    body: impl Fn(usize, &Communicator) -> T + Sync,
) -> Vec<T> {
    std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = comms
            .iter()
            .enumerate()
            .map(|(rank, comm)| scope.spawn(move || body(rank, comm)))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// AllReduce of a slice, in place.
fn all_reduce<T>(
    comm: &Communicator,
    values: &mut [T],
    dtype: DataType,
    op: RedOp,
    on: Stream,
) -> Result<()> {
    let values = std::ptr::from_mut(values);
    // SAFETY: callers leave the slice alone until the stream has passed the operation.
    unsafe {
        comm.all_reduce(
            values.cast::<c_void>(),
            values.cast::<c_void>(),
            values.len(),
            dtype,
            Op::from(op),
            on,
        )
    }
}

/// The sum of one float over the ranks.
fn sum(comm: &Communicator, value: f32) -> f32 {
    let mut values = [value];
    all_reduce(
        comm,
        &mut values,
        DataType::Float32,
        RedOp::Sum,
        Stream::DEFAULT,
    )
    .unwrap();
    values[0]
}
