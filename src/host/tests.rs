//! What must hold on every engine of the host tier, with threads as ranks.

pub(in crate::host) mod devices;

use super::engine::Engine;
use super::heap;
use super::kernels::tests::{Random, close, reductions, reference, same, scales_of};
use super::op::{HostOp, OnDevice, VectorCounts, WaitPolicy};
use crate::error::{Code, Error, Result};
use crate::ops::lock;
use crate::types::{DataType, OpKind, RedOp, Reduction};
use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Runs the named tests on an engine.
macro_rules! engine_tests {
    ($make:expr; $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $crate::host::tests::$name($make);
            }
        )*
    };
}
pub(crate) use engine_tests;

pub(crate) const SUM: Reduction = Reduction::Builtin(RedOp::Sum);

/// Gives up after some time, naming who is missing.
pub(crate) struct Until(Instant);

impl Until {
    pub(crate) fn after(time: Duration) -> Until {
        Until(Instant::now() + time)
    }

    pub(crate) fn long() -> Until {
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

thread_local! {
    /// Whether the buffers of the rank on this thread are in the heap.
    pub(crate) static IN_HEAP: Cell<bool> = const { Cell::new(false) };
}

/// Engines of all ranks in this process.
/// Engines of all ranks in this process, and which of the ranks have their buffers in the heap.
pub(crate) struct World(
    pub(crate) Vec<Arc<dyn Engine>>,
    pub(crate) fn(usize) -> bool,
);

/// Makes the engines of so many ranks.
pub(crate) type Make = fn(u32) -> World;

impl World {
    /// Runs something on every rank, each on a thread of its own.
    pub(crate) fn each<T: Send>(&self, body: impl Fn(&dyn Engine) -> T + Sync) -> Vec<T> {
        std::thread::scope(|scope| {
            let body = &body;
            let threads: Vec<_> = self
                .0
                .iter()
                .map(|engine| {
                    scope.spawn(move || {
                        IN_HEAP.set(self.1(engine.rank()));
                        body(&**engine)
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        })
    }
}

/// Memory of the kind that the rank on this thread uses.
struct Memory {
    start: *mut u8,
    len: usize,
    /// Where it is if it is not in the heap.
    own: Vec<u8>,
}

impl Memory {
    fn new(value: u8, len: usize) -> Memory {
        if !IN_HEAP.get() {
            let mut own = vec![value; len];
            let start = own.as_mut_ptr();
            return Memory { start, len, own };
        }
        let start = heap::alloc(len).unwrap().unwrap();
        // SAFETY: just allocated.
        unsafe { start.write_bytes(value, len) };
        Memory {
            start,
            len,
            own: Vec::new(),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.own.is_empty() {
            heap::free(self.start, self.len).unwrap();
        }
    }
}

impl std::ops::Deref for Memory {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: allocated in `new` with this length; the tests look only when no operation is going on.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl std::ops::DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

/// A buffer at an odd address, with guards on both sides.
pub(crate) struct Buffer {
    bytes: Memory,
    start: usize,
    len: usize,
}

const GUARD: u8 = 0xa5;

impl Buffer {
    pub(crate) fn new(len: usize) -> Buffer {
        let bytes = Memory::new(GUARD, len + 192);
        // Odd for every element type, and another remainder for every length.
        let start = bytes.as_ptr().align_offset(64) + 2 * (len % 13) + 1;
        Buffer { bytes, start, len }
    }

    pub(crate) fn of(content: &[u8]) -> Buffer {
        let mut buffer = Buffer::new(content.len());
        buffer.write(0, content);
        buffer
    }

    pub(crate) fn write(&mut self, at: usize, content: &[u8]) {
        self.bytes[self.start + at..][..content.len()].copy_from_slice(content);
    }

    pub(crate) fn ptr(&mut self) -> *mut u8 {
        self.bytes[self.start..].as_mut_ptr()
    }

    pub(crate) fn get(&self) -> &[u8] {
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

pub(crate) fn op(kind: OpKind, count: usize, dtype: DataType) -> HostOp {
    HostOp {
        kind,
        send: std::ptr::null(),
        recv: std::ptr::null_mut(),
        count,
        dtype,
        reduction: SUM,
        root: 0,
        vector: None,
        on_device: OnDevice::default(),
    }
}

/// The operation as the engine gets it: with its buffers on a device that it can reach, if there is one.
fn given(engine: &dyn Engine, op: &HostOp) -> HostOp {
    match engine.has_mover() && engine.stages(op) {
        true => devices::disguised(op),
        false => op.clone(),
    }
}

pub(crate) fn run_with(engine: &dyn Engine, op: &HostOp, wait: &dyn WaitPolicy) -> Result<()> {
    // SAFETY: the tests pass live buffers of the right sizes, and one thread runs an engine.
    unsafe { engine.run(&given(engine, op), wait) }
}

pub(crate) fn run(engine: &dyn Engine, op: &HostOp) -> Result<()> {
    run_with(engine, op, &Until::long())
}

pub(crate) fn group(engine: &dyn Engine, ops: &[HostOp]) -> Result<()> {
    let ops: Vec<HostOp> = ops.iter().map(|op| given(engine, op)).collect();
    // SAFETY: as in `run_with`.
    unsafe { engine.run_group(&ops, &Until::long()) }
}

/// Inputs of all ranks and what comes of them, shared by the ranks of a case.
struct Case<'a> {
    dtype: DataType,
    count: usize,
    root: usize,
    /// A block of `ranks * count` elements of every rank.
    inputs: &'a [Vec<u8>],
    /// What the first rank has got from a reduction for all, which the others must get bit by bit.
    agreed: Mutex<Option<Vec<u8>>>,
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

    fn name(&self, engine: &dyn Engine, what: &str, in_place: bool) -> String {
        format!(
            "{what} rank {} of {}, {} x {}, root {}, in place {in_place}",
            engine.rank(),
            engine.ranks(),
            self.count,
            self.dtype.name(),
            self.root
        )
    }

    /// Whether a part of a reduction is right, which begins at byte `at` of the inputs.
    fn is_right(
        &self,
        engine: &dyn Engine,
        reduction: Reduction,
        got: &[u8],
        (expected, at): (&[u8], usize),
    ) -> bool {
        let expected = &expected[at..at + got.len()];
        if same(self.dtype, got, expected) {
            return true;
        }
        let part = |input: &Vec<u8>| input[at..at + got.len()].to_vec();
        let inputs: Vec<Vec<u8>> = self.inputs.iter().map(part).collect();
        let scales = scales_of(self.dtype, engine.ranks());
        engine.rounds_on_the_way() && close(self.dtype, reduction, got, &inputs, &scales)
    }

    /// AllReduce, Reduce and ReduceScatter; `expected` is the reduction of the whole inputs.
    fn reduce(&self, engine: &dyn Engine, reductions: &[Reduction], expected: &[u8]) {
        let reduction = reductions[engine.rank()];
        let (rank, bytes) = (engine.rank(), self.bytes());
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
            let right = self.is_right(engine, reduction, got.get(), (expected, 0));
            assert!(right, "{name}");
            let agrees = lock(&self.agreed).get_or_insert_with(|| got.get().to_vec()) == got.get();
            assert!(agrees, "{name}: not the same bits as on other ranks");
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
                let right = self.is_right(engine, reduction, got.get(), (expected, 0));
                assert!(right, "{name}");
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
            let right = self.is_right(engine, reduction, got, (expected, rank * bytes));
            assert!(right, "{name}");
        }
    }

    /// Everything that only moves data.
    fn movement(&self, engine: &dyn Engine) {
        let (rank, ranks, bytes) = (engine.rank(), engine.ranks(), self.bytes());
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
    fn vector(&self, engine: &dyn Engine, in_place: bool) {
        let (rank, ranks, size) = (engine.rank(), engine.ranks(), self.dtype.size());
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
pub(crate) fn matrix(make: Make, ranks: u32, counts: &[usize]) {
    matrix_of(&make(ranks), counts);
}

pub(crate) fn matrix_of(world: &World, counts: &[usize]) {
    let n = world.0.len();
    let mut random = Random::new(n as u64);
    for &count in counts {
        for dtype in DataType::ALL {
            let inputs: Vec<Vec<u8>> = (0..n).map(|_| random.elements(dtype, count * n)).collect();
            let case = Case {
                dtype,
                count,
                root: random.below(n),
                inputs: &inputs,
                agreed: Mutex::default(),
            };
            world.each(|engine| case.movement(engine));
            if dtype.is_float8() {
                continue;
            }
            let scales = scales_of(dtype, n);
            for index in 0..reductions(dtype, 0).len() {
                // Large ones take the time: beyond 4 ranks each number of ranks does a third of them.
                if count > 10_000 && n > 4 && index % 3 != n % 3 {
                    continue;
                }
                let of_ranks: Vec<Reduction> =
                    (0..n).map(|rank| reductions(dtype, rank)[index]).collect();
                let expected = reference(dtype, of_ranks[0], &inputs, &scales);
                *lock(&case.agreed) = None;
                world.each(|engine| case.reduce(engine, &of_ranks, &expected));
            }
        }
    }
}

/// Reductions of somewhat more than so many bytes, of a type that is folded as it is, one that is widened and
/// one of 8 bytes.
pub(crate) fn reductions_of_size(world: &World, bytes: usize) {
    let n = world.0.len();
    let mut random = Random::new(bytes as u64);
    for (index, dtype) in [DataType::Float32, DataType::Bfloat16, DataType::Int64]
        .into_iter()
        .enumerate()
    {
        let count = bytes / dtype.size() + 1;
        let inputs: Vec<Vec<u8>> = (0..n).map(|_| random.elements(dtype, count * n)).collect();
        let case = Case {
            dtype,
            count,
            root: n - 1,
            inputs: &inputs,
            agreed: Mutex::default(),
        };
        let of_ranks: Vec<Reduction> = (0..n)
            .map(|rank| {
                let all = reductions(dtype, rank);
                all[(all.len() - index) % all.len()]
            })
            .collect();
        let expected = reference(dtype, of_ranks[0], &inputs, &scales_of(dtype, n));
        world.each(|engine| case.reduce(engine, &of_ranks, &expected));
    }
}

/// A buffer that serves any call of the tests of errors.
pub(crate) fn any_buffers(op: &mut HostOp, send: &mut Buffer, recv: &mut Buffer) {
    (op.send, op.recv) = (send.ptr(), recv.ptr());
}

pub(crate) fn disagreements_are_errors_on_every_rank_and_leave_the_engine_usable(make: Make) {
    let all = |count, dtype, reduction| {
        let mut op = op(OpKind::AllReduce, count, dtype);
        op.reduction = reduction;
        op
    };
    let rooted = |kind, root| {
        let mut op = op(kind, 50, DataType::Float32);
        op.root = root;
        op
    };
    let float = DataType::Float32;
    let max = Reduction::Builtin(RedOp::Max);
    let cases = [
        (
            all(100, float, SUM),
            all(200, float, SUM),
            "count 200, float32, sum",
            "count",
        ),
        (
            all(1, float, SUM),
            all(2, float, SUM),
            "count 2, float32, sum",
            "count",
        ),
        (all(0, float, SUM), all(7, float, SUM), "count 7", "count"),
        (
            all(5, float, SUM),
            all(70_001, float, SUM),
            "count 70001",
            "count",
        ),
        (
            all(100, float, SUM),
            all(200, DataType::Bfloat16, SUM),
            "count 200, bfloat16",
            "count and data type",
        ),
        (
            all(100, float, SUM),
            all(100, float, max),
            "count 100, float32, max",
            "operator",
        ),
        (
            all(100, float, SUM),
            rooted(OpKind::Broadcast, 0),
            "Broadcast(count 50, float32, root 0)",
            "operation and count",
        ),
        (
            rooted(OpKind::Broadcast, 0),
            rooted(OpKind::Broadcast, 1),
            "float32, root 1)",
            "root",
        ),
        (
            all(9, float, SUM),
            op(OpKind::Barrier, 0, float),
            "called Barrier",
            "operation",
        ),
        (
            op(OpKind::AllGather, 9, float),
            op(OpKind::AllToAll, 9, float),
            "AlltoAll(count 9",
            "operation",
        ),
        (
            all(9, float, SUM),
            all(9, float, Reduction::PreMulSum(1f64.to_ne_bytes())),
            "count 9, float32, premulsum",
            "operator",
        ),
    ];
    for ranks in [2, 3] {
        let world = make(ranks);
        for (common, odd, text, fields) in &cases {
            for odd_rank in 0..ranks as usize {
                let texts = world.each(|engine| {
                    let mut send = Buffer::new(1 << 20);
                    let mut recv = Buffer::new(1 << 20);
                    let mut op = if engine.rank() == odd_rank {
                        odd.clone()
                    } else {
                        common.clone()
                    };
                    any_buffers(&mut op, &mut send, &mut recv);
                    let error = run(engine, &op).unwrap_err();
                    assert_eq!(error.code(), Code::InvalidUsage, "{error}");
                    assert!(recv.get().iter().all(|&b| b == GUARD), "data was moved");
                    error.text().to_owned()
                });
                assert!(texts[0].contains(text), "{} lacks {text}", texts[0]);
                // Those that differ from most come last, the fields first.
                let others: Vec<String> = (0..ranks as usize)
                    .filter(|rank| ranks > 2 && *rank != odd_rank || ranks == 2 && *rank == 0)
                    .map(|rank| rank.to_string())
                    .collect();
                let odd = if ranks == 2 { 1 } else { odd_rank };
                let several = if others.len() > 1 { "ranks" } else { "rank" };
                for part in [
                    &format!("communicator, in {fields}: {several} "),
                    &format!("{several} {} called ", others.join(", ")),
                    &format!(" but rank {odd} called "),
                ] {
                    assert!(
                        texts[0].contains(part.as_str()),
                        "{} lacks {part}",
                        texts[0]
                    );
                }
                assert!(texts.iter().all(|other| *other == texts[0]));
                let inputs = vec![vec![1; 8 * ranks as usize]; ranks as usize];
                let case = Case {
                    dtype: DataType::Int64,
                    count: 1,
                    root: 0,
                    inputs: &inputs,
                    agreed: Mutex::default(),
                };
                world.each(|engine| case.movement(engine));
            }
        }
        // Pairwise counts of an AlltoAllv.
        let errors = world.each(|engine| {
            let ranks = engine.ranks();
            let mut counts = vec![2; ranks];
            let mut expects = vec![2; ranks];
            if engine.rank() == 1 {
                expects[0] = 3;
            }
            counts[engine.rank()] = 0;
            expects[engine.rank()] = 0;
            let displs = vec![0, 10, 20][..ranks].to_vec();
            let mut op = op(OpKind::AllToAllv, 0, DataType::Int32);
            let (mut send, mut recv) = (Buffer::new(200), Buffer::new(200));
            any_buffers(&mut op, &mut send, &mut recv);
            op.vector = Some(Box::new(VectorCounts {
                send_counts: counts,
                send_displs: displs.clone(),
                recv_counts: expects,
                recv_displs: displs,
            }));
            run(engine, &op).unwrap_err()
        });
        for error in errors {
            assert_eq!(error.code(), Code::InvalidUsage);
            let text = "rank 0 sends count 2 to rank 1, but rank 1 expects count 3 from rank 0";
            assert!(error.text().contains(text), "{error}");
        }
        world.each(|engine| run(engine, &op(OpKind::Barrier, 0, DataType::Int8)).unwrap());
    }
}

pub(crate) fn wrong_arguments_are_found_before_anything_is_published(make: Make) {
    let world = make(2);
    let engine = &*world.0[0];
    let refused = |op: &HostOp, code: Code, text: &str| {
        let error = run(engine, op).unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert!(error.text().contains(text), "{error}");
        let error = group(engine, std::slice::from_ref(op)).unwrap_err();
        assert_eq!(error.code(), code, "{error}");
    };
    let mut buffer = [0u8; 64];
    let address = buffer.as_mut_ptr();
    let filled = |kind, count| {
        let mut op = op(kind, count, DataType::Float32);
        (op.send, op.recv) = (address, address);
        op
    };
    for kind in [
        OpKind::Broadcast,
        OpKind::Reduce,
        OpKind::Gather,
        OpKind::Scatter,
        OpKind::Send,
    ] {
        let mut bad = filled(kind, 1);
        bad.root = 2;
        refused(
            &bad,
            Code::InvalidArgument,
            "2 but the communicator has 2 ranks",
        );
        bad.root = u32::MAX;
        refused(&bad, Code::InvalidArgument, "ranks are communicator-local");
    }
    refused(
        &op(OpKind::AllReduce, 1, DataType::Float32),
        Code::InvalidArgument,
        "send buffer is NULL",
    );
    let mut no_recv = filled(OpKind::AllGather, 1);
    no_recv.recv = std::ptr::null_mut();
    refused(&no_recv, Code::InvalidArgument, "receive buffer is NULL");
    refused(
        &filled(OpKind::AllReduce, usize::MAX),
        Code::InvalidArgument,
        "than memory can hold",
    );
    let mut fp8 = filled(OpKind::ReduceScatter, 0);
    fp8.dtype = DataType::Float8e4m3;
    refused(
        &fp8,
        Code::NotSupported,
        "moves float8e4m3 but does not reduce it",
    );
    refused(
        &op(OpKind::AllToAllv, 0, DataType::Int8),
        Code::InvalidArgument,
        "no counts",
    );
    let mut short = op(OpKind::AllToAllv, 0, DataType::Int8);
    short.vector = Some(Box::default());
    refused(
        &short,
        Code::InvalidArgument,
        "0 send counts and 0 displacements for 2 ranks",
    );
    let mut myself = filled(OpKind::Send, 1);
    myself.root = 0;
    refused(&myself, Code::InvalidUsage, "itself");
    myself.kind = OpKind::Recv;
    refused(&myself, Code::InvalidUsage, "itself");
    world.each(|engine| run(engine, &op(OpKind::Barrier, 0, DataType::Int8)).unwrap());
}

pub(crate) fn transfer(kind: OpKind, peer: usize, buffer: &mut Buffer) -> HostOp {
    let mut op = op(kind, buffer.len, DataType::Uint8);
    op.root = peer as u32;
    if kind == OpKind::Send {
        op.send = buffer.ptr();
    } else {
        op.recv = buffer.ptr();
    }
    op
}

pub(crate) fn pattern(from: usize, to: usize, message: usize, len: usize) -> Vec<u8> {
    Random::new((from * 1000 + to * 100 + message) as u64).elements(DataType::Uint8, len)
}

pub(crate) fn lone_messages_arrive(make: Make) {
    lone_messages(&make(3));
}

pub(crate) fn lone_messages(world: &World) {
    for len in [0, 1, 47, 5000, 600_000] {
        world.each(|engine| {
            let (next, before) = ((engine.rank() + 1) % 3, (engine.rank() + 2) % 3);
            let mut send = Buffer::of(&pattern(engine.rank(), next, 0, len));
            let mut recv = Buffer::new(len);
            let send_op = transfer(OpKind::Send, next, &mut send);
            let recv_op = transfer(OpKind::Recv, before, &mut recv);
            // Small ones may all be sent before any is received.
            let order = if engine.rank() == 0 && len > 5000 {
                [recv_op, send_op]
            } else {
                [send_op, recv_op]
            };
            for op in &order {
                run(engine, op).unwrap();
            }
            assert_eq!(
                recv.get(),
                pattern(before, engine.rank(), 0, len),
                "{len} bytes"
            );
        });
    }
}

pub(crate) fn large_messages_that_block_each_other_end_at_the_deadline(make: Make) {
    let world = make(2);
    let errors = world.each(|engine| {
        let mut send = Buffer::new(4 << 20);
        let op = transfer(OpKind::Send, 1 - engine.rank(), &mut send);
        run_with(engine, &op, &Until::after(Duration::from_millis(50))).unwrap_err()
    });
    assert!(errors.iter().any(|error| error.code() == Code::Timeout));
}

pub(crate) fn groups_of_messages_are_matched_in_order(make: Make) {
    for ranks in [1, 2, 3, 5] {
        groups_of_messages(&make(ranks));
    }
}

pub(crate) fn groups_of_messages(world: &World) {
    {
        world.each(|engine| {
            let (rank, ranks) = (engine.rank(), engine.ranks());
            let mut random = Random::new(rank as u64 + 77);
            for round in 0..6 {
                // Lengths that both sides know; the largest need several pieces.
                let len = |from: usize, to: usize, message: usize| {
                    [0, 1, 300, 70_000, 700_000][(from + 2 * to + 3 * message + round) % 5]
                };
                let mut buffers = Vec::new();
                for peer in 0..ranks {
                    for message in 0..3 {
                        let content = pattern(rank, peer, message, len(rank, peer, message));
                        buffers.push((OpKind::Send, peer, message, Buffer::of(&content)));
                        let room = Buffer::new(len(peer, rank, message));
                        buffers.push((OpKind::Recv, peer, message, room));
                    }
                }
                // Any order in which those of one peer and direction stay in theirs.
                let mut ops: Vec<HostOp> = Vec::new();
                let mut next = vec![[0; 2]; ranks];
                while ops.len() < buffers.len() {
                    let (peer, receives) = (random.below(ranks), random.below(2));
                    let at = &mut next[peer][receives];
                    if *at < 3 {
                        let (kind, _, _, buffer) = &mut buffers[peer * 6 + *at * 2 + receives];
                        ops.push(transfer(*kind, peer, buffer));
                        *at += 1;
                    }
                }
                group(engine, &ops).unwrap();
                for (kind, peer, message, buffer) in &buffers {
                    if *kind == OpKind::Recv {
                        let expected = pattern(*peer, rank, *message, buffer.len);
                        assert!(buffer.get() == expected, "message {message} from {peer}");
                    }
                }
            }
        });
    }
}

/// `small` is the largest message whose sender goes on without an answer.
pub(crate) fn disagreeing_messages(world: &World, small: Option<usize>) {
    for (sent, expected) in [(100, 200), (200, 100), (700_000, 5), (5, 700_000)] {
        let texts = world.each(|engine| {
            let sends = engine.rank() == 0;
            let mut buffer = Buffer::new(if sends { sent } else { expected });
            let kind = if sends { OpKind::Send } else { OpKind::Recv };
            let result = run(engine, &transfer(kind, 1 - engine.rank(), &mut buffer));
            assert!(buffer.get().iter().all(|&b| b == GUARD));
            if sends && small.is_some_and(|small| sent <= small) {
                assert!(result.is_ok(), "{result:?}");
                return None;
            }
            let error = result.unwrap_err();
            assert_eq!(error.code(), Code::InvalidUsage);
            Some(error.text().to_owned())
        });
        let learnt = |rank: usize| texts[rank].as_ref().or(texts[1].as_ref()).unwrap();
        let texts = [learnt(0), learnt(1)];
        assert_eq!(texts[0], texts[1]);
        assert!(texts[0].contains(&format!(
            "rank 0 called Send(count {sent}, uint8) to rank 1"
        )));
        assert!(texts[0].contains(&format!(
            "rank 1 called Recv(count {expected}, uint8) from rank 0"
        )));
        // What follows is not disturbed, and in a group the others arrive.
        let results = world.each(|engine| {
            let content = pattern(0, 1, 9, 1000);
            let (mut good, mut bad) = if engine.rank() == 0 {
                (Buffer::of(&content), Buffer::new(3))
            } else {
                (Buffer::new(1000), Buffer::new(4))
            };
            let kind = if engine.rank() == 0 {
                OpKind::Send
            } else {
                OpKind::Recv
            };
            let peer = 1 - engine.rank();
            let ops = [
                transfer(kind, peer, &mut bad),
                transfer(kind, peer, &mut good),
            ];
            let result = group(engine, &ops);
            assert_eq!(good.get(), content);
            result
        });
        for (rank, result) in results.iter().enumerate() {
            // What rank 0 sends here is small.
            match small {
                Some(_) if rank == 0 => assert!(result.is_ok()),
                _ => assert_eq!(result.as_ref().unwrap_err().code(), Code::InvalidUsage),
            }
        }
    }
    // To oneself.
    let (mut a, mut b) = (Buffer::new(3), Buffer::new(4));
    let rank = &*world.0[0];
    let pair = [
        transfer(OpKind::Send, 0, &mut a),
        transfer(OpKind::Recv, 0, &mut b),
    ];
    assert_eq!(group(rank, &pair).unwrap_err().code(), Code::InvalidUsage);
    let error = group(rank, &pair[..1]).unwrap_err();
    assert!(
        error
            .text()
            .contains("Send to itself 1 time but Recv from itself 0 times"),
        "{error}"
    );
}

pub(crate) fn a_group_may_mix_collectives_and_messages_in_any_order(make: Make) {
    let world = make(3);
    world.each(|engine| {
        let (next, before) = ((engine.rank() + 1) % 3, (engine.rank() + 2) % 3);
        for len in [10, 300_000] {
            let mut send = Buffer::of(&pattern(engine.rank(), next, 0, len));
            let mut recv = Buffer::new(len);
            let mut ops = vec![
                transfer(OpKind::Send, next, &mut send),
                transfer(OpKind::Recv, before, &mut recv),
            ];
            let (values, mut sums) = ([engine.rank() as i64 + 1; 3], [0i64; 3]);
            for index in 0..3 {
                let mut sum = op(OpKind::AllReduce, 1, DataType::Int64);
                sum.send = values[index..].as_ptr().cast();
                sum.recv = sums[index..].as_mut_ptr().cast();
                ops.insert((engine.rank() + index) % (ops.len() + 1), sum);
            }
            group(engine, &ops).unwrap();
            assert_eq!(sums, [6; 3]);
            assert_eq!(recv.get(), pattern(before, engine.rank(), 0, len));
        }
    });
}

/// Random operations that all ranks draw from the same seed.
pub(crate) fn stress(engine: &dyn Engine, seed: u64, rounds: usize) {
    let mut random = Random::new(seed);
    let ranks = engine.ranks();
    for _ in 0..rounds {
        let dtype = DataType::ALL[random.below(DataType::ALL.len())];
        let count = match random.below(8) {
            0 => 0,
            1..4 => random.below(20),
            4..7 => random.below(3000),
            _ => random.below(40_000),
        };
        let root = random.below(ranks);
        let what = random.below(3);
        let seed = random.next();
        let inputs: Vec<Vec<u8>> = (0..ranks)
            .map(|rank| Random::new(seed ^ rank as u64).elements(dtype, count * ranks))
            .collect();
        let case = Case {
            dtype,
            count,
            root,
            inputs: &inputs,
            agreed: Mutex::default(),
        };
        // Some ranks are late.
        if random.below(40) == engine.rank() {
            std::thread::sleep(Duration::from_millis(4));
        }
        match what {
            0 if !dtype.is_float8() => {
                let index = random.below(6);
                let of_ranks: Vec<Reduction> = (0..ranks)
                    .map(|rank| reductions(dtype, rank)[index])
                    .collect();
                let expected = reference(dtype, of_ranks[0], &inputs, &scales_of(dtype, ranks));
                case.reduce(engine, &of_ranks, &expected);
            }
            _ => case.movement(engine),
        }
    }
}

pub(crate) const COUNTS: [usize; 6] = [0, 1, 7, 13, 1000, 70_001];

pub(crate) fn matrix_of_1_and_2_ranks(make: Make) {
    matrix(make, 1, &COUNTS);
    matrix(make, 2, &COUNTS);
}

pub(crate) fn matrix_of_3_and_4_ranks(make: Make) {
    matrix(make, 3, &COUNTS);
    matrix(make, 4, &COUNTS);
}

pub(crate) fn matrix_of_5_to_8_ranks(make: Make) {
    for ranks in 5..=8 {
        matrix(make, ranks, &COUNTS);
    }
}

pub(crate) fn random_operations_with_threads(make: Make) {
    for (ranks, rounds) in [(2, 120), (4, 60), (7, 30)] {
        make(ranks).each(|engine| stress(engine, 4242 + u64::from(ranks), rounds));
    }
}

/// An operation that goes in steps on a device of rank 0, which ends no copy, and on the others: rank 0's error, after
/// its policy's limit or an abort, which must come soon.
pub(crate) fn ends_without(world: &World, limit: Duration, aborts: bool) -> Error {
    let start = Instant::now();
    let errors = std::thread::scope(|scope| {
        if aborts {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                world.0[0].abort();
            });
        }
        world.each(|engine| {
            let (mut send, mut recv) = (Buffer::new(900_000), Buffer::new(900_000));
            let mut sum = op(OpKind::AllReduce, 900_000, DataType::Uint8);
            (sum.send, sum.recv) = (send.ptr(), recv.ptr());
            run_with(engine, &sum, &Until::after(limit)).unwrap_err()
        })
    });
    assert!(start.elapsed() < Duration::from_secs(10));
    errors[0].clone()
}
