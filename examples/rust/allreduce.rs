//! All-reduce over N processes: this program is rank 0 and starts itself again for the others.
//!
//! `cargo run --release --example allreduce -- 4` runs four ranks (default 2). Exit status 0 if
//! every rank got the right sums.

use flagos_comm::{Communicator, DataType, Op, Options, RedOp, Stream, UNIQUE_ID_BYTES, UniqueId};
use std::io::{Read, Write};
use std::process::{Command, ExitCode, Stdio};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const COUNT: usize = 1000;

fn run(rank: usize, nranks: usize, id: &UniqueId) -> Result<()> {
    // A Vec is host memory, so the host tier is asked for: it needs no accelerator.
    let options = Options {
        tiers: Some("host".into()),
        ..Options::default()
    };
    let comm = Communicator::init_rank(nranks, id, rank, &options)?;

    let mut data: Vec<f32> = (0..COUNT).map(|i| ((rank + 1) * (i % 10)) as f32).collect();
    let buffer = data.as_mut_ptr().cast();
    let sum = Op::Builtin(RedOp::Sum);
    // SAFETY: `data` lives and is untouched until the call returns, which on the default stream of
    // the host tier is when the sums are there.
    unsafe {
        comm.all_reduce(
            buffer,
            buffer,
            COUNT,
            DataType::Float32,
            sum,
            Stream::DEFAULT,
        )?;
    }
    for (i, got) in data.iter().enumerate() {
        let want = (nranks * (nranks + 1) / 2 * (i % 10)) as f32;
        if *got != want {
            return Err(format!("element {i} is {got}, not {want}").into());
        }
    }
    comm.destroy()?;
    println!("rank {rank} of {nranks}: all {COUNT} sums are right");
    Ok(())
}

/// Rank 0: makes the id, starts the others and writes it into their standard input, as it carries
/// the secret that admits a rank.
fn lead(nranks: usize) -> Result<()> {
    let id = UniqueId::new()?;
    let mut others = Vec::new();
    for rank in 1..nranks {
        let mut other = Command::new(std::env::current_exe()?)
            .args([nranks.to_string(), rank.to_string()])
            .stdin(Stdio::piped())
            .spawn()?;
        other
            .stdin
            .take()
            .ok_or("no pipe")?
            .write_all(id.as_bytes())?;
        others.push(other);
    }
    let mine = run(0, nranks, &id);
    for (i, mut other) in others.into_iter().enumerate() {
        if !other.wait()?.success() {
            return Err(format!("rank {} failed", i + 1).into());
        }
    }
    mine
}

/// Any other rank.
fn follow(rank: usize, nranks: usize) -> Result<()> {
    let mut bytes = [0; UNIQUE_ID_BYTES];
    std::io::stdin().read_exact(&mut bytes)?;
    run(rank, nranks, &UniqueId::from_bytes(bytes))
}

fn start() -> Result<()> {
    let args = std::env::args().skip(1).map(|a| a.parse());
    match args.collect::<std::result::Result<Vec<usize>, _>>()?[..] {
        [] => lead(2),
        [nranks @ 1..=64] => lead(nranks),
        [nranks, rank] => follow(rank, nranks),
        _ => Err("usage: allreduce [RANKS], with 1 to 64 ranks".into()),
    }
}

fn main() -> ExitCode {
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
