//! The collectives, once the ranks have met.
//!
//! Small ones are over then. In larger ones data goes as seldom as it can between the machines, and over all places
//! of a machine at once:
//!
//! * a reduction in blocks: the ranks of each machine reduce a block, each the share of its rail; on every rail the
//!   machines reduce that share, each a part of it; then the ranks of each machine hand each other their shares. While a
//!   block is between the machines, the next is reduced on each;
//! * a reduce-scatter: on every machine a carrier reduces the block of each rank and sends it there;
//! * an all-gather: a rank's block goes to one carrier of every other machine, which hands it to its neighbours;
//! * a broadcast: the ranks of the root's machine send a share each to their rails;
//! * gather, scatter and the all-to-alls, where nothing can be saved: straight, between machines by messages, inside
//!   them through shared memory.
//!
//! Averages of integers go the flat way: sums of a machine's values don't fit into their type.

use super::Layers;
use crate::error::{Error, Result};
use crate::host::check::Fingerprint;
use crate::host::kernels::{Target, copy};
use crate::host::local::{Reducer, Sources, move_own, offset};
use crate::host::net::collectives::{FIRST, Opening, RESULTS};
use crate::host::net::exchange::Carried;
use crate::host::net::run::Topic;
use crate::host::net::staged::Steps;
use crate::host::op::{HostOp, VectorCounts};
use crate::types::{DataType, OpKind, RedOp, Reduction};

/// How vectors are cut: into blocks, these into a share for each rail, these into parts.
#[derive(Clone, Copy, Debug)]
struct Cut {
    bytes: usize,
    rails: usize,
    block: usize,
    share: usize,
    part: usize,
}

/// Bytes from one place on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    start: usize,
    len: usize,
}

impl Span {
    /// What of `len` bytes from `start` on is before `end`.
    fn before(end: usize, start: usize, len: usize) -> Span {
        let start = start.min(end);
        Span {
            start,
            len: len.min(end - start),
        }
    }

    fn end(self) -> usize {
        self.start + self.len
    }
}

/// Bytes of equal pieces of at most `largest`, cut at multiples of 64.
fn equal_pieces(bytes: usize, largest: usize) -> usize {
    let pieces = bytes.div_ceil(largest.max(64));
    bytes.div_ceil(pieces.max(1)).next_multiple_of(64)
}

impl Cut {
    fn new(bytes: usize, block: usize, rails: usize, parts: usize) -> Cut {
        let block = equal_pieces(bytes, block).next_multiple_of(64 * rails);
        let share = block / rails;
        Cut {
            bytes,
            rails,
            block,
            share,
            part: share.div_ceil(parts).next_multiple_of(64),
        }
    }

    fn blocks(&self) -> usize {
        self.bytes.div_ceil(self.block)
    }

    fn block(&self, block: usize) -> Span {
        Span::before(self.bytes, block * self.block, self.block)
    }

    fn share(&self, block: usize, rail: usize) -> Span {
        let whole = self.block(block);
        Span::before(whole.end(), whole.start + rail * self.share, self.share)
    }

    fn part(&self, block: usize, rail: usize, part: usize) -> Span {
        let share = self.share(block, rail);
        Span::before(share.end(), share.start + part * self.part, self.part)
    }
}

/// How a reduction is done in two levels, `None`: it can't be. A sum is scaled on the way up and divided at its end; but
/// sums of binary16, which has little range, are divided before they are rounded.
fn levels(op: &HostOp) -> Option<(Reduction, Reduction)> {
    const SUM: Reduction = Reduction::Builtin(RedOp::Sum);
    match op.reduction {
        Reduction::Builtin(RedOp::Avg) => match op.dtype {
            DataType::Float16 => Some((op.reduction, SUM)),
            DataType::Bfloat16 | DataType::Float32 | DataType::Float64 => Some((SUM, op.reduction)),
            _ => None,
        },
        Reduction::Builtin(_) => Some((op.reduction, op.reduction)),
        Reduction::PreMulSum(_) => Some((op.reduction, SUM)),
    }
}

/// What is waited for of a block: what is to be combined, or passed on, and what comes of it.
fn key(block: usize, results: bool) -> u64 {
    block as u64 * 2 + u64::from(results)
}

/// A reduction of blocks on rails under way on this rank.
struct Reduced<'o> {
    op: &'o HostOp,
    cut: Cut,
    sequence: u64,
    /// The reductions of the two levels.
    near: Reducer,
    far: Reducer,
    /// Whether contributions are sent from where the caller has them: this rank is alone on its machine.
    plain: bool,
    /// The machine that gets results, if not all do.
    root: Option<usize>,
    /// Whether this rank gets them.
    receives: bool,
    area: *mut u8,
}

impl Layers<'_, '_> {
    /// # Safety
    /// As `Engine::run`.
    pub(super) unsafe fn collective(&self, op: &HostOp) -> Result<()> {
        let limit = self.inline();
        let print = Fingerprint::of(op);
        if op.kind == OpKind::AllToAllv {
            let (vector, row, carried) = self.run.borrow_mut().put_row(op, limit)?;
            let sequence = self.run.borrow_mut().begin();
            self.gather(sequence, print, [0; 8], Carried::data(carried))?;
            let rows = self.run.borrow_mut().all_rows(&row, carried, sequence)?;
            rows.compare(sequence, op.dtype)?;
            let size = op.dtype.size();
            let length = |from, to| rows.sent(from, to) as usize * size;
            // SAFETY: handed down from the caller; the counts were found equal.
            return unsafe { self.all_to_all(op, vector, &length, sequence) };
        }
        // SAFETY: handed down from the caller.
        let Opening {
            bytes,
            small,
            carried,
            scale,
        } = unsafe { self.run.borrow_mut().open(op, limit)? };
        let sequence = self.run.borrow_mut().begin();
        self.gather(sequence, print, scale, carried)?;
        if bytes == 0 {
            return Ok(());
        }
        let staged = self.run.borrow_mut().state.table.staged();
        // SAFETY: handed down from the caller.
        unsafe {
            match (small, staged) {
                (true, _) => self.run.borrow_mut().take_from_table(op, bytes),
                (false, None) => self.at_length(op, bytes, sequence),
                (false, Some(step)) => {
                    let steps = Steps::new(&mut self.run.borrow_mut(), op, step)?;
                    steps.run(
                        &mut &*self,
                        |layers: &mut &Self| {
                            let run = &mut layers.run.borrow_mut();
                            run.progress();
                            run.look_up()
                        },
                        |layers, part, bytes| layers.at_length(part, bytes, sequence),
                    )
                }
            }
        }
    }

    /// # Safety
    /// As `Engine::run`; `bytes`, not 0, is what `op.count` means.
    unsafe fn at_length(&self, op: &HostOp, bytes: usize, sequence: u64) -> Result<()> {
        // What is not in two layers is between all ranks.
        let flat = |all: &HostOp| {
            // SAFETY: handed down from the caller.
            unsafe { self.run.borrow_mut().at_length(all, bytes, sequence) }
        };
        let root = op.root as usize;
        // SAFETY: handed down from the caller.
        unsafe {
            match (op.kind, levels(op)) {
                (OpKind::AllReduce | OpKind::Reduce, Some(levels)) => {
                    self.reduce(op, bytes, sequence, levels)
                }
                (OpKind::ReduceScatter, Some(levels)) => {
                    self.reduce_scatter(op, bytes, sequence, levels)
                }
                (OpKind::AllGather, _) => self.all_gather(op, bytes, sequence),
                (OpKind::Broadcast, _) => self.broadcast(op, bytes, sequence),
                (OpKind::Gather, _) => {
                    let length = |_, to| if to == root { bytes } else { 0 };
                    let at = |peer| peer * bytes;
                    self.personal(op.send, (&|_| 0, &at), op.recv, &length, sequence)
                }
                (OpKind::Scatter, _) => {
                    let length = |from, _| if from == root { bytes } else { 0 };
                    let at = |peer| peer * bytes;
                    self.personal(op.send, (&at, &|_| 0), op.recv, &length, sequence)
                }
                (OpKind::AllToAll, _) => {
                    let vector = VectorCounts::equal(op.count, self.engine.topology.ranks());
                    self.all_to_all(op, &vector, &|_, _| bytes, sequence)
                }
                _ => flat(op),
            }
        }
    }

    fn reducer(&self, op: &HostOp, reduction: Reduction) -> Result<Reducer> {
        let here = self.engine.here();
        let table = &mut self.run.borrow_mut().state.table;
        let scales = match reduction {
            Reduction::Builtin(_) => Vec::new(),
            Reduction::PreMulSum(_) => here.iter().map(|rank| table.scale(*rank)).collect(),
        };
        let op = HostOp {
            reduction,
            ..op.clone()
        };
        Reducer::new(&op, scales, self.engine.topology.ranks())
    }

    /// Waits for messages of a block.
    fn wait_for(&self, key: u64) -> Result<()> {
        self.run.borrow_mut().wait_for_key(key)
    }

    fn wait_for_all(&self) -> Result<()> {
        self.run.borrow_mut().wait_for_all()
    }

    /// The machines other than this rank's, from the next on.
    fn other_machines(&self) -> impl Iterator<Item = usize> + use<> {
        let (own, machines) = (self.engine.machine, self.engine.topology.machines());
        (1..machines).map(move |distance| (own + distance) % machines)
    }

    /// AllReduce and Reduce.
    ///
    /// # Safety
    /// As `Engine::run`; `bytes`, not 0, is what `op.count` means.
    unsafe fn reduce(
        &self,
        op: &HostOp,
        bytes: usize,
        sequence: u64,
        levels: (Reduction, Reduction),
    ) -> Result<()> {
        let engine = self.engine;
        let topology = &engine.topology;
        let machines = topology.machines();
        let cut = Cut::new(bytes, engine.block, topology.rails(), machines);
        let rooted = op.kind == OpKind::Reduce;
        let scaled = matches!(
            levels.0,
            Reduction::PreMulSum(_) | Reduction::Builtin(RedOp::Avg)
        );
        let area = match &engine.rail {
            // Of two blocks: this machine's share, the parts of the others, the results.
            Some(_) => {
                let room = 2 * (2 * cut.share + machines * cut.part);
                self.run.borrow_mut().state.pieces.reserve(room)?
            }
            None => std::ptr::null_mut(),
        };
        let work = Reduced {
            op,
            cut,
            sequence,
            near: self.reducer(op, levels.0)?,
            far: self.reducer(op, levels.1)?,
            plain: engine.here().len() == 1 && !scaled,
            root: rooted.then(|| topology.of(op.root as usize).0),
            receives: !rooted || op.root as usize == engine.rank,
            area,
        };
        let blocks = cut.blocks();
        for step in 0..blocks + 2 {
            // SAFETY: handed down from the caller.
            unsafe {
                if step < blocks {
                    self.reduce_near(&work, step)?;
                    self.begin_far(&work, step);
                }
                if (1..=blocks).contains(&step) {
                    self.reduce_far(&work, step - 1)?;
                }
                if step >= 2 {
                    self.end_far(&work, step - 2)?;
                }
            }
        }
        self.wait_for_all()
    }

    /// This machine's share of a block on this rank's rail.
    fn contribution(&self, work: &Reduced<'_>, block: usize) -> *mut u8 {
        let start = work.cut.share(block, self.engine.place).start;
        match work.plain {
            true => work.op.send.cast_mut().wrapping_add(start),
            false => offset(work.area, (block & 1) * work.cut.share),
        }
    }

    /// Where the part of this rank comes to from a machine.
    fn slot(&self, work: &Reduced<'_>, block: usize, machine: usize) -> *mut u8 {
        let machines = self.engine.topology.machines();
        let at = (block & 1) * machines + machine;
        offset(work.area, 2 * work.cut.share + at * work.cut.part)
    }

    /// Where the share of this rank's rail becomes the result.
    fn result(&self, work: &Reduced<'_>, block: usize) -> *mut u8 {
        let start = work.cut.share(block, self.engine.place).start;
        let machines = self.engine.topology.machines();
        match work.receives {
            true => offset(work.op.recv, start),
            false => {
                let before = 2 * (work.cut.share + machines * work.cut.part);
                offset(work.area, before + (block & 1) * work.cut.share)
            }
        }
    }

    /// The ranks of this machine reduce a block, each the share of its rail.
    ///
    /// # Safety
    /// As `Engine::run`.
    unsafe fn reduce_near(&self, work: &Reduced<'_>, block: usize) -> Result<()> {
        let engine = self.engine;
        let (near, place, count) = (&engine.near, engine.place, engine.here().len());
        let Reduced { op, cut, .. } = work;
        if work.plain {
            return Ok(());
        }
        let on_rail = engine.rail.is_some();
        let piece = (near.step_bytes() / cut.rails / 64 * 64).min(cut.share);
        let span = |step: usize, rail: usize| {
            let share = cut.share(block, rail);
            Span::before(share.end(), share.start + step * piece, piece)
        };
        let put = |step: usize, to: *mut u8| {
            for rail in (0..cut.rails).filter(|rail| *rail != place) {
                let Span { start, len } = span(step, rail);
                // SAFETY: the span lies in what the caller promised at `send`; there is room for a piece of
                // every rail.
                unsafe {
                    copy(
                        offset(to, rail * piece),
                        op.send.wrapping_add(start),
                        len,
                        false,
                    )
                };
            }
        };
        let take = |step: usize, place_of: &dyn Fn(usize) -> *mut u8| {
            let Span { start, len } = span(step, place);
            if !on_rail || len == 0 {
                return;
            }
            let sources = Sources::new(count, |peer| match peer == place {
                true => op.send.wrapping_add(start),
                false => offset(place_of(peer), place * piece),
            });
            let to = offset(self.contribution(work, block), step * piece);
            // SAFETY: all have put their pieces, and leave them until the next step; the share has room.
            unsafe { work.near.fold(Target::one(to, false), &sources, len) };
        };
        let steps = cut.share(block, 0).len.div_ceil(piece);
        if count == 1 {
            (0..steps).for_each(|step| take(step, &|_| std::ptr::null_mut()));
            return Ok(());
        }
        near.hand_over(steps, self, put, take)
    }

    /// Sends every machine its part of the share of this rank's rail, and gets this one's.
    ///
    /// # Safety
    /// As `Engine::run`.
    unsafe fn begin_far(&self, work: &Reduced<'_>, block: usize) {
        let engine = self.engine;
        let Some(rail) = &engine.rail else { return };
        let run = &mut **self.run.borrow_mut();
        run.turn_to(rail);
        let about = (Topic::Data, work.sequence << 8 | FIRST);
        let part = |machine| work.cut.part(block, engine.place, machine);
        let share = work.cut.share(block, engine.place);
        for machine in self.other_machines() {
            let own = part(engine.machine);
            if own.len > 0 {
                let to = self.slot(work, block, machine);
                // SAFETY: a slot of this block's parity, which has been used two blocks ago.
                unsafe { run.recv(machine, about, to, own.len, key(block, false)) };
            }
            let theirs = part(machine);
            if theirs.len > 0 {
                let from = self.contribution(work, block);
                let from = from.wrapping_add(theirs.start - share.start);
                // SAFETY: this machine's contribution stays until the messages of the block are done.
                unsafe { run.send(machine, about, from, theirs.len, key(block, false)) };
            }
        }
    }

    /// Reduces this rank's part of the share, and sends it to those who want it.
    ///
    /// # Safety
    /// As `Engine::run`.
    unsafe fn reduce_far(&self, work: &Reduced<'_>, block: usize) -> Result<()> {
        let engine = self.engine;
        let Some(rail) = &engine.rail else {
            return Ok(());
        };
        self.wait_for(key(block, false))?;
        let share = work.cut.share(block, engine.place);
        let part = |machine| work.cut.part(block, engine.place, machine);
        let own = part(engine.machine);
        let result = self.result(work, block);
        let to = offset(result, own.start - share.start);
        if own.len > 0 {
            let sources = Sources::new(engine.topology.machines(), |machine| {
                match machine == engine.machine {
                    true => offset(self.contribution(work, block), own.start - share.start),
                    false => self.slot(work, block, machine),
                }
            });
            // SAFETY: all machines' parts have come; the result is the caller's, where this rank receives, or
            // a share of the area. In place its contribution is exactly where it goes.
            unsafe { work.far.fold(Target::one(to, false), &sources, own.len) };
        }
        let wanted = |machine| work.root.is_none_or(|root| root == machine);
        let run = &mut **self.run.borrow_mut();
        run.turn_to(rail);
        let about = (Topic::Data, work.sequence << 8 | RESULTS);
        for machine in self.other_machines() {
            if wanted(machine) && own.len > 0 {
                // SAFETY: the result stays until the messages of the block are done.
                unsafe { run.send(machine, about, to, own.len, key(block, true)) };
            }
            let theirs = part(machine);
            if wanted(engine.machine) && theirs.len > 0 {
                let to = offset(result, theirs.start - share.start);
                // SAFETY: as above; nothing else is written there, and what this rank has contributed there has
                // been read.
                unsafe { run.recv(machine, about, to, theirs.len, key(block, true)) };
            }
        }
        Ok(())
    }

    /// Waits for the share's results, and hands them to the ranks of this machine.
    ///
    /// # Safety
    /// As `Engine::run`.
    unsafe fn end_far(&self, work: &Reduced<'_>, block: usize) -> Result<()> {
        self.wait_for(key(block, true))?;
        if work.root.is_some_and(|root| root != self.engine.machine) {
            return Ok(());
        }
        let to = work.receives.then_some(work.op.recv);
        // SAFETY: the share is complete, and the caller promised room at `recv`.
        unsafe { self.hand_out_shares(&work.cut, block, self.result(work, block), to) }
    }

    /// Each rank on a rail hands its share of a block, at `share`, to the others of this machine; those that
    /// receive, take them to their places in the vector.
    ///
    /// # Safety
    /// The share is there, and the vector writable up to the block's end.
    unsafe fn hand_out_shares(
        &self,
        cut: &Cut,
        block: usize,
        share: *const u8,
        vector: Option<*mut u8>,
    ) -> Result<()> {
        let engine = self.engine;
        let (near, place) = (&engine.near, engine.place);
        if engine.here().len() == 1 {
            return Ok(());
        }
        let piece = near.step_bytes().min(cut.share);
        let span = |step: usize, rail: usize| {
            let whole = cut.share(block, rail);
            Span::before(whole.end(), whole.start + step * piece, piece)
        };
        let put = |step: usize, to: *mut u8| {
            if place < cut.rails {
                let from = share.wrapping_add(step * piece);
                // SAFETY: the share, up to its end.
                unsafe { copy(to, from, span(step, place).len, false) };
            }
        };
        let take = |step: usize, place_of: &dyn Fn(usize) -> *mut u8| {
            let Some(vector) = vector else { return };
            for rail in (0..cut.rails).filter(|rail| *rail != place) {
                let Span { start, len } = span(step, rail);
                // SAFETY: the rank of that rail has put its piece, and leaves it until the next step; the
                // caller's promise.
                unsafe { copy(offset(vector, start), place_of(rail), len, false) };
            }
        };
        let steps = cut.share(block, 0).len.div_ceil(piece);
        near.hand_over(steps, self, put, take)
    }

    /// # Safety
    /// As `Engine::run`; `bytes`, not 0, is what `op.count` means.
    unsafe fn broadcast(&self, op: &HostOp, bytes: usize, sequence: u64) -> Result<()> {
        let engine = self.engine;
        let (near, topology, place) = (&engine.near, &engine.topology, engine.place);
        let root = op.root as usize;
        let (home, root_place) = topology.of(root);
        let at_home = engine.machine == home;
        let machines = topology.machines();
        let cut = Cut::new(bytes, engine.block, topology.rails(), machines - 1);
        if engine.rank == root {
            // SAFETY: the caller promised `bytes` bytes at both on the root.
            unsafe { move_own(op.recv, op.send, bytes) };
        }
        // Which part a machine gets first, and passes on; not the root's.
        let part_of = |machine: usize| machine - usize::from(machine > home);
        let first = (Topic::Data, sequence << 8 | FIRST);
        let passed = (Topic::Data, sequence << 8 | RESULTS);
        let prepare = |block: usize| -> Result<()> {
            if !at_home || engine.here().len() == 1 {
                return Ok(());
            }
            let piece = near.step_bytes().min(cut.block);
            let whole = cut.block(block);
            let span = |step| Span::before(whole.end(), whole.start + step * piece, piece);
            let put = |step, to| {
                if engine.rank == root {
                    let Span { start, len } = span(step);
                    // SAFETY: the caller promised `bytes` bytes at `send` on the root.
                    unsafe { copy(to, op.send.wrapping_add(start), len, false) };
                }
            };
            let take = |step, place_of: &dyn Fn(usize) -> *mut u8| {
                if engine.rank != root {
                    let Span { start, len } = span(step);
                    // SAFETY: the root has put its piece; the caller promised `bytes` bytes at `recv`.
                    unsafe { copy(offset(op.recv, start), place_of(root_place), len, false) };
                }
            };
            near.hand_over(whole.len.div_ceil(piece), self, put, take)
        };
        let blocks = cut.blocks();
        for step in 0..blocks + 2 {
            if step < blocks {
                prepare(step)?;
            }
            if let Some(rail) = &engine.rail {
                let run = &mut **self.run.borrow_mut();
                run.turn_to(rail);
                for machine in self.other_machines().filter(|_| step < blocks) {
                    let part = cut.part(step, place, part_of(machine));
                    let to = offset(op.recv, part.start);
                    // SAFETY: the part lies in what the caller promised at `recv`, where at home the data is.
                    unsafe {
                        if at_home && part.len > 0 {
                            run.send(machine, first, to, part.len, key(step, false));
                        } else if machine == home {
                            let own = cut.part(step, place, part_of(engine.machine));
                            let to = offset(op.recv, own.start);
                            if own.len > 0 {
                                run.recv(home, first, to, own.len, key(step, false));
                            }
                        } else if part.len > 0 {
                            run.recv(machine, passed, to, part.len, key(step, true));
                        }
                    }
                }
                if let Some(block) = step.checked_sub(1).filter(|block| *block < blocks) {
                    run.wait_for_key(key(block, false))?;
                    let others = self.other_machines().filter(|machine| *machine != home);
                    for machine in others.filter(|_| !at_home) {
                        let own = cut.part(block, place, part_of(engine.machine));
                        if own.len > 0 {
                            let from = offset(op.recv, own.start);
                            // SAFETY: the part has come, and nothing is written there any more.
                            unsafe { run.send(machine, passed, from, own.len, key(block, true)) };
                        }
                    }
                }
            }
            if let Some(block) = step.checked_sub(2) {
                self.wait_for(key(block, true))?;
                if !at_home {
                    let share = offset(op.recv, cut.share(block, place.min(cut.rails - 1)).start);
                    // SAFETY: this rank's share is there; the caller promised `bytes` bytes at `recv`.
                    unsafe { self.hand_out_shares(&cut, block, share, Some(op.recv))? };
                }
            }
        }
        self.wait_for_all()
    }

    /// Bytes of every rank's block that are under way at once.
    fn chunk(&self, bytes: usize) -> usize {
        equal_pieces(
            bytes,
            self.engine.block / self.engine.topology.ranks() / 64 * 64,
        )
    }

    /// # Safety
    /// As `Engine::run`; `bytes`, not 0, is what `op.count` means.
    unsafe fn reduce_scatter(
        &self,
        op: &HostOp,
        bytes: usize,
        sequence: u64,
        levels: (Reduction, Reduction),
    ) -> Result<()> {
        let engine = self.engine;
        let (near, topology) = (&engine.near, &engine.topology);
        let (rank, machine, place) = (engine.rank, engine.machine, engine.place);
        let (ranks, machines, count) = (topology.ranks(), topology.machines(), engine.here().len());
        let (below, above) = (self.reducer(op, levels.0)?, self.reducer(op, levels.1)?);
        let carried = topology.carried(machine, place);
        let chunk = self.chunk(bytes);
        let span = |block: usize| Span::before(bytes, block * chunk, chunk);
        // Of two blocks: what this rank carries, and what comes for it from the other machines.
        let room = (carried.len() + machines) * chunk;
        let area = self.run.borrow_mut().state.pieces.reserve(2 * room)?;
        let carries = |block: usize, index: usize| offset(area, (block & 1) * room + index * chunk);
        let slot = |block: usize, from: usize| carries(block, carried.len() + from);
        let piece = (near.step_bytes() / ranks / 64 * 64).min(chunk);
        let about = (Topic::Data, sequence << 8 | FIRST);
        let prepare = |block: usize| -> Result<()> {
            let whole = span(block);
            let part = |step| Span::before(whole.end(), whole.start + step * piece, piece);
            let put = |step, to: *mut u8| {
                let Span { start, len } = part(step);
                for of in (0..ranks).filter(|of| topology.carrier(machine, *of) != place) {
                    let from = op.send.wrapping_add(of * bytes + start);
                    // SAFETY: the caller promised a block of every rank at `send`; there is room for a piece
                    // of each.
                    unsafe { copy(offset(to, of * piece), from, len, false) };
                }
            };
            let take = |step, place_of: &dyn Fn(usize) -> *mut u8| {
                let Span { start, len } = part(step);
                for (index, of) in carried.iter().enumerate() {
                    let sources = Sources::new(count, |peer| match peer == place {
                        true => op.send.wrapping_add(of * bytes + start),
                        false => offset(place_of(peer), of * piece),
                    });
                    let to = offset(carries(block, index), start - whole.start);
                    // SAFETY: all have put their pieces, and leave them until the next step; the area has
                    // room for a chunk of each that this rank carries.
                    unsafe { below.fold(Target::one(to, false), &sources, len) };
                }
            };
            let steps = whole.len.div_ceil(piece);
            if count == 1 {
                (0..steps).for_each(|step| take(step, &|_| std::ptr::null_mut()));
                return Ok(());
            }
            near.hand_over(steps, self, put, take)
        };
        let blocks = bytes.div_ceil(chunk);
        for step in 0..=blocks {
            if step < blocks {
                prepare(step)?;
                let len = span(step).len;
                let run = &mut **self.run.borrow_mut();
                run.turn_to_all();
                for from in self.other_machines() {
                    let carrier = topology.machine(from)[topology.carrier(from, rank)];
                    // SAFETY: a slot of this block's parity, which has been used two blocks ago.
                    unsafe { run.recv(carrier, about, slot(step, from), len, key(step, false)) };
                }
                for (index, of) in carried.iter().enumerate() {
                    if topology.of(*of).0 != machine {
                        let from = carries(step, index);
                        // SAFETY: it stays until the messages of the block are done.
                        unsafe { run.send(*of, about, from, len, key(step, false)) };
                    }
                }
            }
            let Some(block) = step.checked_sub(1) else {
                continue;
            };
            self.wait_for(key(block, false))?;
            let own = carried.iter().position(|of| *of == rank);
            let own = own.ok_or_else(|| Error::internal("a rank does not carry its own block"))?;
            let sources = Sources::new(machines, |from| match from == machine {
                true => carries(block, own),
                false => slot(block, from),
            });
            let Span { start, len } = span(block);
            // SAFETY: all machines' sums have come; the caller promised `bytes` bytes at `recv`, and in place
            // what was there has been read.
            unsafe { above.fold(Target::one(offset(op.recv, start), false), &sources, len) };
        }
        self.wait_for_all()
    }

    /// # Safety
    /// As `Engine::run`; `bytes`, not 0, is what `op.count` means.
    unsafe fn all_gather(&self, op: &HostOp, bytes: usize, sequence: u64) -> Result<()> {
        let engine = self.engine;
        let (near, topology) = (&engine.near, &engine.topology);
        let (rank, machine, place) = (engine.rank, engine.machine, engine.place);
        let count = engine.here().len();
        let carried: Vec<Vec<usize>> = (0..count)
            .map(|place| topology.carried(machine, place))
            .collect();
        let most = carried.iter().map(Vec::len).max().unwrap_or(1);
        let chunk = self.chunk(bytes);
        let span = |block: usize| Span::before(bytes, block * chunk, chunk);
        let piece = (near.step_bytes() / most / 64 * 64).min(chunk);
        let about = (Topic::Data, sequence << 8 | FIRST);
        // SAFETY: the caller promised a block of every rank at `recv`.
        unsafe { move_own(offset(op.recv, rank * bytes), op.send, bytes) };
        let hand_out = |block: usize| -> Result<()> {
            if count == 1 {
                return Ok(());
            }
            let whole = span(block);
            let part = |step| Span::before(whole.end(), whole.start + step * piece, piece);
            let put = |step, to: *mut u8| {
                let Span { start, len } = part(step);
                for (index, of) in carried[place].iter().enumerate() {
                    let from = op.recv.wrapping_add(of * bytes + start);
                    // SAFETY: the blocks that this rank carries have come; there is room for a piece of each.
                    unsafe { copy(offset(to, index * piece), from, len, false) };
                }
            };
            let take = |step, place_of: &dyn Fn(usize) -> *mut u8| {
                let Span { start, len } = part(step);
                for peer in (0..count).filter(|peer| *peer != place) {
                    for (index, of) in carried[peer].iter().enumerate() {
                        let to = offset(op.recv, of * bytes + start);
                        // SAFETY: the peer has put its pieces; the caller promised room for every block.
                        unsafe { copy(to, offset(place_of(peer), index * piece), len, false) };
                    }
                }
            };
            near.hand_over(whole.len.div_ceil(piece), self, put, take)
        };
        let blocks = bytes.div_ceil(chunk);
        for step in 0..=blocks {
            if step < blocks {
                let Span { start, len } = span(step);
                let run = &mut **self.run.borrow_mut();
                run.turn_to_all();
                for of in carried[place]
                    .iter()
                    .filter(|of| topology.of(**of).0 != machine)
                {
                    let to = offset(op.recv, of * bytes + start);
                    // SAFETY: the caller promised room for every block; nothing else is written there.
                    unsafe { run.recv(*of, about, to, len, key(step, false)) };
                }
                for other in self.other_machines() {
                    let carrier = topology.machine(other)[topology.carrier(other, rank)];
                    let from = op.recv.wrapping_add(rank * bytes + start).cast_const();
                    // SAFETY: the own block, which stays.
                    unsafe { run.send(carrier, about, from, len, key(step, false)) };
                }
            }
            if let Some(block) = step.checked_sub(1) {
                self.wait_for(key(block, false))?;
                hand_out(block)?;
            }
        }
        self.wait_for_all()
    }

    /// An all-to-all whose blocks lie as `vector` says; `length` is what a rank sends to another, in bytes.
    ///
    /// # Safety
    /// As `Engine::run`; every rank expects what the others send.
    unsafe fn all_to_all(
        &self,
        op: &HostOp,
        vector: &VectorCounts,
        length: &dyn Fn(usize, usize) -> usize,
        sequence: u64,
    ) -> Result<()> {
        let size = op.dtype.size();
        let send = self.run.borrow_mut().send_apart(op, vector)?;
        let from = |peer: usize| vector.send_displs[peer].wrapping_mul(size);
        let to = |peer: usize| vector.recv_displs[peer].wrapping_mul(size);
        // SAFETY: handed down from the caller; `send` is the caller's or a copy that the run keeps.
        unsafe { self.personal(send, (&from, &to), op.recv, length, sequence) }
    }

    /// Every rank gets from every other what that one has for it: `length(from, to)` bytes, which lie where `places`
    /// say, for one to whom and for one from whom. What is sent is not written.
    ///
    /// # Safety
    /// The blocks are readable and writable; every rank expects what the others send.
    unsafe fn personal(
        &self,
        send: *const u8,
        (send_at, recv_at): (&dyn Fn(usize) -> usize, &dyn Fn(usize) -> usize),
        recv: *mut u8,
        length: &dyn Fn(usize, usize) -> usize,
        sequence: u64,
    ) -> Result<()> {
        let engine = self.engine;
        let (near, here, place, rank) = (&engine.near, engine.here(), engine.place, engine.rank);
        let is_far = |peer: usize| engine.topology.of(peer).0 != engine.machine;
        {
            let mut run = self.run.borrow_mut();
            run.turn_to_all();
            let about = (Topic::Data, sequence << 8 | FIRST);
            let far = |peer: usize, len: usize| if is_far(peer) { len } else { 0 };
            let outgoing = |to: usize| (send_at(to), far(to, length(rank, to)));
            let incoming = |from: usize| (recv_at(from), far(from, length(from, rank)));
            let to = offset(recv, recv_at(rank));
            // SAFETY: the caller's promise.
            unsafe {
                move_own(to, send.wrapping_add(send_at(rank)), length(rank, rank));
                run.by_distance(about, send, &outgoing, recv, &incoming)?;
            }
        }
        let pairs = || {
            here.iter()
                .flat_map(|from| here.iter().map(move |to| (*from, *to)))
        };
        let longest = pairs()
            .filter(|(from, to)| from != to)
            .map(|(from, to)| length(from, to))
            .max();
        let longest = longest.unwrap_or(0);
        if longest == 0 {
            return Ok(());
        }
        let piece = (near.step_bytes() / here.len() / 64 * 64).min(longest);
        let part = |step: usize, from: usize, to: usize| {
            Span::before(length(from, to), step * piece, piece)
        };
        let put = |step: usize, to: *mut u8| {
            for (peer, of) in here.iter().enumerate().filter(|(peer, _)| *peer != place) {
                let Span { start, len } = part(step, rank, *of);
                let from = send.wrapping_add(send_at(*of).wrapping_add(start));
                // SAFETY: the caller promised the block; there is room for a piece for each rank.
                unsafe { copy(offset(to, peer * piece), from, len, false) };
            }
        };
        let take = |step: usize, place_of: &dyn Fn(usize) -> *mut u8| {
            for (peer, of) in here.iter().enumerate().filter(|(peer, _)| *peer != place) {
                let Span { start, len } = part(step, *of, rank);
                let to = offset(recv, recv_at(*of).wrapping_add(start));
                // SAFETY: the peer has put its piece; the caller promised the block.
                unsafe { copy(to, offset(place_of(peer), place * piece), len, false) };
            }
        };
        near.hand_over(longest.div_ceil(piece), self, put, take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_cut_without_gaps() {
        for bytes in [1, 63, 64, 65, 1000, 70_001, 1 << 20] {
            for (rails, parts) in [(1, 2), (2, 2), (3, 1), (4, 3)] {
                let cut = Cut::new(bytes, 6000, rails, parts);
                let mut at = 0;
                for block in 0..cut.blocks() {
                    assert!(cut.block(block).len > 0 && cut.block <= 6000 + 64 * rails);
                    for rail in 0..rails {
                        for part in 0..parts {
                            let span = cut.part(block, rail, part);
                            assert!(span.len == 0 || span.start == at);
                            assert_eq!(span.start % 64 * span.len, 0);
                            at += span.len;
                        }
                    }
                }
                assert_eq!(at, bytes);
            }
        }
    }
}
