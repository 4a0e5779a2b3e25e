//! The engine with threads and with processes as ranks.

use super::*;
use crate::error::Code;
use crate::host::kernels::tests::{Random, reducible, reductions, reference, same, scales_of};
use crate::host::op::VectorCounts;
use crate::sys::unix;
use crate::types::{DataType, RedOp, Reduction};
use std::os::fd::AsFd;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SUM: Reduction = Reduction::Builtin(RedOp::Sum);

/// Gives up after some time, naming who is missing.
struct Until(Instant);

impl Until {
    fn after(time: Duration) -> Until {
        Until(Instant::now() + time)
    }

    fn long() -> Until {
        Until::after(Duration::from_secs(50))
    }
}

impl WaitPolicy for Until {
    fn check(&self, waiting_for: &dyn Fn() -> Vec<u32>) -> Result<()> {
        if Instant::now() < self.0 {
            return Ok(());
        }
        Err(Error::new(
            Code::Timeout,
            format!("waiting for ranks {:?}", waiting_for()),
        ))
    }
}

/// Engines of all ranks in this process.
struct World(Vec<ShmEngine>);

impl World {
    fn new(ranks: u32) -> World {
        let bytes = ShmEngine::segment_bytes(ranks).unwrap();
        let (segment, _fd) = Segment::create(bytes).unwrap();
        let segment = Arc::new(segment);
        World(
            (0..ranks)
                .map(|rank| ShmEngine::attach(Arc::clone(&segment), rank, ranks).unwrap())
                .collect(),
        )
    }

    /// Runs something on every rank, each on a thread of its own.
    fn each<T: Send>(&self, body: impl Fn(&ShmEngine) -> T + Sync) -> Vec<T> {
        std::thread::scope(|scope| {
            let body = &body;
            let threads: Vec<_> = self
                .0
                .iter()
                .map(|engine| scope.spawn(move || body(engine)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        })
    }
}

/// A buffer at an odd address, with guards on both sides.
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

const GUARD: u8 = 0xa5;

impl Buffer {
    fn new(len: usize) -> Buffer {
        let bytes = vec![GUARD; len + 192];
        // Odd for every element type, and another remainder for every length.
        let start = bytes.as_ptr().align_offset(64) + 2 * (len % 13) + 1;
        Buffer { bytes, start, len }
    }

    fn of(content: &[u8]) -> Buffer {
        let mut buffer = Buffer::new(content.len());
        buffer.write(0, content);
        buffer
    }

    fn write(&mut self, at: usize, content: &[u8]) {
        self.bytes[self.start + at..][..content.len()].copy_from_slice(content);
    }

    fn ptr(&mut self) -> *mut u8 {
        self.bytes[self.start..].as_mut_ptr()
    }

    fn get(&self) -> &[u8] {
        let guards = self.bytes[..self.start]
            .iter()
            .chain(&self.bytes[self.start + self.len..]);
        assert!(
            guards.copied().all(|b| b == GUARD),
            "written outside the buffer"
        );
        &self.bytes[self.start..][..self.len]
    }
}

fn op(kind: OpKind, count: usize, dtype: DataType) -> HostOp {
    HostOp {
        kind,
        send: std::ptr::null(),
        recv: std::ptr::null_mut(),
        count,
        dtype,
        reduction: SUM,
        root: 0,
        vector: None,
    }
}

fn run_with(engine: &ShmEngine, op: &HostOp, wait: &dyn WaitPolicy) -> Result<()> {
    // SAFETY: the tests pass live buffers of the right sizes, and one thread runs an engine.
    unsafe { engine.run(op, wait) }
}

fn run(engine: &ShmEngine, op: &HostOp) -> Result<()> {
    run_with(engine, op, &Until::long())
}

fn group(engine: &ShmEngine, ops: &[HostOp]) -> Result<()> {
    // SAFETY: as in `run_with`.
    unsafe { engine.run_group(ops, &Until::long()) }
}

/// Inputs of all ranks and what comes of them, shared by the ranks of a case.
struct Case<'a> {
    dtype: DataType,
    count: usize,
    root: usize,
    /// A block of `ranks * count` elements of every rank.
    inputs: &'a [Vec<u8>],
}

impl Case<'_> {
    fn bytes(&self) -> usize {
        self.count * self.dtype.size()
    }

    fn op(&self, kind: OpKind) -> HostOp {
        let mut op = op(kind, self.count, self.dtype);
        op.root = self.root as u32;
        op
    }

    fn name(&self, engine: &ShmEngine, what: &str, in_place: bool) -> String {
        format!(
            "{what} rank {} of {}, {} x {}, root {}, in place {in_place}",
            engine.rank,
            engine.ranks,
            self.count,
            self.dtype.name(),
            self.root
        )
    }

    /// AllReduce, Reduce and ReduceScatter; `expected` is the reduction of the whole inputs.
    fn reduce(&self, engine: &ShmEngine, reductions: &[Reduction], expected: &[u8]) {
        let reduction = reductions[engine.rank];
        let (rank, bytes) = (engine.rank, self.bytes());
        let input = &self.inputs[rank];
        for in_place in [false, true] {
            let mut send = Buffer::of(&input[..bytes]);
            let mut recv = Buffer::new(bytes);
            let mut all = self.op(OpKind::AllReduce);
            all.reduction = reduction;
            (all.send, all.recv) = (send.ptr(), if in_place { send.ptr() } else { recv.ptr() });
            let name = self.name(engine, &format!("AllReduce {reduction:?}"), in_place);
            run(engine, &all).unwrap_or_else(|error| panic!("{name}: {error}"));
            let got = if in_place { &send } else { &recv };
            assert!(same(self.dtype, got.get(), &expected[..bytes]), "{name}");
            if !in_place {
                assert_eq!(send.get(), &input[..bytes], "{name}: input changed");
            }

            let mut send = Buffer::of(&input[..bytes]);
            let mut recv = Buffer::new(bytes);
            let mut to_root = self.op(OpKind::Reduce);
            to_root.reduction = reduction;
            to_root.send = send.ptr();
            if rank == self.root {
                to_root.recv = if in_place { send.ptr() } else { recv.ptr() };
            }
            let name = self.name(engine, &format!("Reduce {reduction:?}"), in_place);
            run(engine, &to_root).unwrap_or_else(|error| panic!("{name}: {error}"));
            if rank == self.root {
                let got = if in_place { &send } else { &recv };
                assert!(same(self.dtype, got.get(), &expected[..bytes]), "{name}");
            }

            let mut send = Buffer::of(input);
            let mut recv = Buffer::new(bytes);
            let mut scatter = self.op(OpKind::ReduceScatter);
            scatter.reduction = reduction;
            scatter.send = send.ptr();
            scatter.recv = if in_place {
                send.ptr().wrapping_add(rank * bytes)
            } else {
                recv.ptr()
            };
            let name = self.name(engine, &format!("ReduceScatter {reduction:?}"), in_place);
            run(engine, &scatter).unwrap_or_else(|error| panic!("{name}: {error}"));
            let got = if in_place {
                &send.get()[rank * bytes..][..bytes]
            } else {
                recv.get()
            };
            assert!(
                same(self.dtype, got, &expected[rank * bytes..][..bytes]),
                "{name}"
            );
        }
    }

    /// Everything that only moves data.
    fn movement(&self, engine: &ShmEngine) {
        let (rank, ranks, bytes) = (engine.rank, engine.ranks, self.bytes());
        let own = &self.inputs[rank][..bytes];
        let gathered: Vec<u8> = self
            .inputs
            .iter()
            .flat_map(|input| &input[..bytes])
            .copied()
            .collect();
        let at_root = rank == self.root;
        run(engine, &op(OpKind::Barrier, 0, DataType::Int8)).unwrap();
        for in_place in [false, true] {
            let check = |what: &str, op: &HostOp| {
                let name = self.name(engine, what, in_place);
                run(engine, op).unwrap_or_else(|error| panic!("{name}: {error}"));
                name
            };
            let mut send = Buffer::of(own);
            let mut recv = Buffer::new(ranks * bytes);
            let mut gather = self.op(OpKind::AllGather);
            gather.recv = recv.ptr();
            gather.send = send.ptr();
            if in_place {
                recv.write(rank * bytes, own);
                gather.send = gather.recv.wrapping_add(rank * bytes);
            }
            let name = check("AllGather", &gather);
            assert!(recv.get() == gathered, "{name}");

            let mut send = Buffer::of(own);
            let mut recv = Buffer::new(ranks * bytes);
            let mut gather = self.op(OpKind::Gather);
            gather.send = send.ptr();
            if at_root {
                gather.recv = recv.ptr();
                if in_place {
                    recv.write(rank * bytes, own);
                    gather.send = gather.recv.wrapping_add(rank * bytes);
                }
            }
            let name = check("Gather", &gather);
            assert!(!at_root || recv.get() == gathered, "{name}");

            let mut send = Buffer::of(&self.inputs[self.root]);
            let mut recv = Buffer::new(bytes);
            let mut scatter = self.op(OpKind::Scatter);
            scatter.recv = recv.ptr();
            if at_root {
                scatter.send = send.ptr();
                if in_place {
                    scatter.recv = send.ptr().wrapping_add(rank * bytes);
                }
            }
            let name = check("Scatter", &scatter);
            if !(at_root && in_place) {
                assert!(
                    recv.get() == &self.inputs[self.root][rank * bytes..][..bytes],
                    "{name}"
                );
            }
            assert!(
                send.get() == self.inputs[self.root],
                "{name}: input changed"
            );

            let mut send = Buffer::of(own);
            let mut recv = Buffer::new(bytes);
            let mut broadcast = self.op(OpKind::Broadcast);
            broadcast.recv = if in_place { send.ptr() } else { recv.ptr() };
            if at_root {
                broadcast.send = send.ptr();
            }
            let name = check("Broadcast", &broadcast);
            let got = if in_place { &send } else { &recv };
            assert!(got.get() == &self.inputs[self.root][..bytes], "{name}");

            let mut send = Buffer::of(&self.inputs[rank]);
            let mut recv = Buffer::new(ranks * bytes);
            let mut exchange = self.op(OpKind::AllToAll);
            exchange.send = send.ptr();
            exchange.recv = if in_place { send.ptr() } else { recv.ptr() };
            let name = check("AlltoAll", &exchange);
            let expected: Vec<u8> = self
                .inputs
                .iter()
                .flat_map(|input| &input[rank * bytes..][..bytes])
                .copied()
                .collect();
            let got = if in_place { &send } else { &recv };
            assert!(got.get() == expected, "{name}");

            self.vector(engine, in_place);
        }
    }

    /// AlltoAllv with counts that differ by pair, blocks in reverse order and gaps between them.
    fn vector(&self, engine: &ShmEngine, in_place: bool) {
        let (rank, ranks, size) = (engine.rank, engine.ranks, self.dtype.size());
        let count = |from: usize, to: usize| self.count * ((from * 3 + to * 5) % 4) / 3;
        let counts = |of: &dyn Fn(usize) -> usize| (0..ranks).map(of).collect::<Vec<_>>();
        let mut vector = VectorCounts {
            send_counts: counts(&|peer| count(rank, peer)),
            recv_counts: counts(&|peer| count(peer, rank)),
            ..VectorCounts::default()
        };
        let reverse = |counts: &[usize]| {
            let mut displs = vec![0; ranks];
            let mut at = 1;
            for peer in (0..ranks).rev() {
                displs[peer] = at;
                at += counts[peer] + 1;
            }
            (displs, at)
        };
        let (send_displs, send_len) = reverse(&vector.send_counts);
        let (recv_displs, recv_len) = reverse(&vector.recv_counts);
        (vector.send_displs, vector.recv_displs) = (send_displs, recv_displs);
        let mut send = Buffer::new(send_len.max(recv_len) * size);
        let mut recv = Buffer::new(recv_len * size);
        for peer in 0..ranks {
            let bytes = vector.send_counts[peer] * size;
            let content = &self.inputs[rank][peer * self.bytes()..][..bytes];
            send.write(vector.send_displs[peer] * size, content);
        }
        let mut exchange = self.op(OpKind::AllToAllv);
        exchange.root = 0;
        exchange.send = send.ptr();
        exchange.recv = if in_place { send.ptr() } else { recv.ptr() };
        exchange.vector = Some(Box::new(vector.clone()));
        let name = self.name(engine, "AlltoAllv", in_place);
        run(engine, &exchange).unwrap_or_else(|error| panic!("{name}: {error}"));
        let got = if in_place { send.get() } else { recv.get() };
        for from in 0..ranks {
            let bytes = count(from, rank) * size;
            let expected = &self.inputs[from][rank * self.bytes()..][..bytes];
            let got = &got[vector.recv_displs[from] * size..][..bytes];
            assert!(got == expected, "{name}: from {from}");
        }
    }
}

/// The whole matrix at one number of ranks.
fn matrix(ranks: u32, counts: &[usize], reduces_large: bool) {
    let world = World::new(ranks);
    let n = ranks as usize;
    let mut random = Random::new(u64::from(ranks));
    for &count in counts {
        for dtype in DataType::ALL {
            let inputs: Vec<Vec<u8>> = (0..n).map(|_| random.elements(dtype, count * n)).collect();
            let case = Case {
                dtype,
                count,
                root: random.below(n),
                inputs: &inputs,
            };
            world.each(|engine| case.movement(engine));
            if dtype.is_float8() || (count > 10_000 && !reduces_large) {
                continue;
            }
            let scales = scales_of(dtype, n);
            for index in 0..reductions(dtype, 0).len() {
                let of_ranks: Vec<Reduction> =
                    (0..n).map(|rank| reductions(dtype, rank)[index]).collect();
                let expected = reference(dtype, of_ranks[0], &inputs, &scales);
                world.each(|engine| case.reduce(engine, &of_ranks, &expected));
            }
        }
    }
}

const COUNTS: [usize; 6] = [0, 1, 7, 13, 1000, 70_001];

#[test]
fn matrix_of_1_and_2_ranks() {
    matrix(1, &COUNTS, true);
    matrix(2, &COUNTS, true);
}

#[test]
fn matrix_of_3_and_4_ranks() {
    matrix(3, &COUNTS, true);
    matrix(4, &COUNTS, true);
}

#[test]
fn matrix_of_5_to_8_ranks() {
    for ranks in 5..=8 {
        matrix(ranks, &COUNTS, true);
    }
}

#[test]
fn matrix_of_16_and_64_ranks() {
    matrix(16, &[1, 3001], true);
    matrix(64, &[0, 5], true);
}
