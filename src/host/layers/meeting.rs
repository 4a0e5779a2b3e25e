//! How every collective begins: the headers of all ranks come to all ranks, with their data if that is small.
//!
//! The ranks of each machine show theirs to each other, the leaders send each other what their machines' ranks have
//! shown, and each leader shows all of it to its machine. Then all ranks compare: they have read the same headers and
//! so come to the same verdict, and a disagreement is found before data moves.

use super::{Layers, Topology};
use crate::error::{Error, Result};
use crate::host::check::{Fingerprint, mismatch};
use crate::host::kernels::Scale;
use crate::host::net::exchange::{Carried, HEADER, Parts, Table, inline_of};
use crate::host::net::run::{Run, Topic};
use crate::host::shm::layer::SHOWN;
use std::ops::Range;

/// What all ranks' headers and small data together may come to: every leader's board has room for it.
const BOARD: usize = 128 << 10;
/// Up to so many leaders each sends to each; above, what was gathered is passed on in ever larger steps.
const DIRECT: usize = 8;

/// Puts the entries of some ranks one after the other; their bytes.
///
/// # Safety
/// `to` is writable for `room` bytes, and nobody else uses them.
unsafe fn pack(
    table: &mut Table,
    ranks: impl Iterator<Item = usize>,
    to: *mut u8,
    room: usize,
) -> Result<usize> {
    let mut at = 0;
    for rank in ranks {
        let bytes = table.bytes(rank)?;
        if at + bytes > room {
            return Err(Error::internal("small data has no room"));
        }
        // SAFETY: an entry has its bytes, and the caller promised `room` of them at `to`.
        unsafe { std::ptr::copy_nonoverlapping(table.entry(rank), to.add(at), bytes) };
        at += bytes;
    }
    Ok(at)
}

/// The reverse of [`pack`], for entries that begin at `at`; where they end.
///
/// # Safety
/// `from` is readable for `room` bytes, and nobody writes them.
unsafe fn unpack(
    table: &mut Table,
    ranks: impl Iterator<Item = usize>,
    from: *const u8,
    Range {
        start: mut at,
        end: room,
    }: Range<usize>,
) -> Result<usize> {
    for rank in ranks {
        let short = || Error::internal("a rank's header can't be read");
        if at + HEADER > room {
            return Err(short());
        }
        let entry = table.entry(rank);
        // SAFETY: an entry has room for a header, and the caller promised what is before `room`.
        unsafe { std::ptr::copy_nonoverlapping(from.add(at), entry, HEADER) };
        let bytes = table.bytes(rank)?;
        if at + bytes > room {
            return Err(short());
        }
        // SAFETY: as above; `bytes` refuses more than an entry holds.
        unsafe { std::ptr::copy_nonoverlapping(from.add(at), entry, bytes) };
        at += bytes;
    }
    Ok(at)
}

/// The most entries that a leader sends another at once.
pub(super) fn most_together(topology: &Topology) -> usize {
    let machines = topology.machines();
    let several = match machines <= DIRECT {
        true => 1,
        false => machines / 2,
    };
    let entries = |first: usize| -> usize {
        let machines = (first..first + several).map(|machine| machine % machines);
        machines
            .map(|machine| topology.machine(machine).len())
            .sum()
    };
    (0..machines).map(entries).max().unwrap_or(1)
}

impl Layers<'_, '_> {
    /// The most that a rank's data may be to travel with its header.
    pub(super) fn inline(&self) -> usize {
        let ranks = self.engine.topology.ranks();
        let (table, certain) = {
            let table = &self.run.borrow().state.table;
            (table.inline(), table.certain)
        };
        let board = (BOARD / ranks).saturating_sub(HEADER);
        let together = inline_of(self.engine.most_together, certain);
        table.min(SHOWN - HEADER).min(board).min(together) / 8 * 8
    }

    /// Gathers the headers of all ranks and compares them; this rank's data was put into the table.
    pub(super) fn gather(
        &self,
        sequence: u64,
        print: Fingerprint,
        scale: Scale,
        carried: Carried,
    ) -> Result<()> {
        let engine = self.engine;
        let (near, topology) = (&engine.near, &engine.topology);
        let (rank, ranks, here) = (engine.rank, topology.ranks(), engine.here());
        let leads = engine.place == 0;
        {
            let table = &mut self.run.borrow_mut().state.table;
            table.set(rank, print, scale, carried);
            // SAFETY: the place has [`SHOWN`] bytes, which this rank alone uses before the meeting.
            unsafe { pack(table, [rank].into_iter(), near.to_show(), SHOWN)? };
        }
        if here.len() > 1 {
            near.meet(self)?;
        }
        if leads {
            let table = &mut self.run.borrow_mut().state.table;
            for (place, rank) in here.iter().enumerate().skip(1) {
                // SAFETY: the rank has shown an entry of at most [`SHOWN`] bytes.
                unsafe { unpack(table, [*rank].into_iter(), near.shown_by(place), 0..SHOWN)? };
            }
        }
        if leads {
            self.far
                .with_leaders(|| self.gather_from_leaders(sequence))?;
            self.run.borrow_mut().turn_to_all();
        }
        if here.len() > 1 {
            let (board, room) = near.board_of(0);
            if leads {
                let table = &mut self.run.borrow_mut().state.table;
                // SAFETY: this is the leader's board, which nobody else uses before the next meeting.
                unsafe { pack(table, 0..ranks, board, room)? };
            }
            near.meet(self)?;
            if !leads {
                let table = &mut self.run.borrow_mut().state.table;
                // SAFETY: the leader has shown all entries, and leaves them until the next meeting.
                unsafe { unpack(table, 0..ranks, board, 0..room)? };
            }
        }
        let table = &mut self.run.borrow_mut().state.table;
        let first = table.print(0);
        match (1..ranks).all(|other| table.print(other) == first) {
            true => Ok(()),
            false => Err(mismatch(sequence, (0..ranks).map(|rank| table.print(rank)))),
        }
    }

    /// Sends the entries of this machine's ranks to the other leaders, and gets those of all others.
    fn gather_from_leaders(&self, sequence: u64) -> Result<()> {
        let engine = self.engine;
        let Some(leaders) = &engine.leaders else {
            return Err(Error::internal(
                "a rank that leads no machine meets leaders",
            ));
        };
        let inline = self.inline();
        let run = &mut **self.run.borrow_mut();
        let topology = &engine.topology;
        let (own, machines) = (engine.machine, topology.machines());
        let parts = Parts::new(inline, run.state.table.certain);
        // The ranks of the machines from this one on, and where each machine begins among them.
        let mut order = Vec::with_capacity(topology.ranks());
        let mut begins = Vec::with_capacity(machines + 1);
        for distance in 0..machines {
            begins.push(order.len());
            order.extend(topology.machine((own + distance) % machines));
        }
        begins.push(order.len());
        let area = run.state.pieces.reserve(order.len() * parts.stride)?;
        run.turn_to(leaders);
        if machines <= DIRECT {
            let about = (Topic::Headers, sequence << 8);
            for distance in 1..machines {
                let theirs = begins[distance]..begins[distance + 1];
                // SAFETY: the area has room for the entries of all ranks in this order, which nobody else touches.
                unsafe {
                    run.expect_entries((own + distance) % machines, about, theirs, area, parts)
                };
            }
            let ours = &order[..begins[1]];
            for part in parts.of(ours.len()) {
                // SAFETY: as above; the own entries are the first, and stay as they are until they are sent.
                let (from, bytes) = unsafe { run.pack_entries(ours, &part, area, parts)? };
                for distance in 1..machines {
                    // SAFETY: as above.
                    unsafe { run.send((own + distance) % machines, about, from, bytes, 0) };
                }
            }
            run.wait_for_all()?;
            for distance in 1..machines {
                let theirs = begins[distance]..begins[distance + 1];
                // SAFETY: what has come there.
                unsafe { run.take_entries(&order, theirs, area, parts)? };
            }
            return Ok(());
        }
        let mut have = 1;
        let mut step = 0;
        while have < machines {
            let count = have.min(machines - have);
            let about = (Topic::Headers, sequence << 8 | step);
            let (from, to) = ((own + have) % machines, (own + machines - have) % machines);
            let theirs = begins[have]..begins[have + count];
            let ours = &order[..begins[count]];
            // SAFETY: as above; what is sent is before what comes, as it is of no more machines than are there.
            unsafe {
                run.expect_entries(from, about, theirs.clone(), area, parts);
                for part in parts.of(ours.len()) {
                    let (entries, bytes) = run.pack_entries(ours, &part, area, parts)?;
                    run.send(to, about, entries, bytes, 0);
                }
            }
            run.wait_for_all()?;
            // SAFETY: what has come there.
            unsafe { run.take_entries(&order, theirs, area, parts)? };
            have += count;
            step += 1;
        }
        Ok(())
    }
}

/// Entries in an area in which each has room for the longest, by its number; those of one message follow each other
/// from the place of the first on.
impl Run<'_> {
    /// Begins to receive entries with these numbers from a rank.
    ///
    /// # Safety
    /// The area has room for them, and nobody touches it until all requests are done.
    unsafe fn expect_entries(
        &mut self,
        from: usize,
        about: (Topic, u64),
        numbers: Range<usize>,
        area: *mut u8,
        parts: Parts,
    ) {
        for part in parts.of(numbers.len()) {
            let to = area.wrapping_add((numbers.start + part.start) * parts.stride);
            // SAFETY: handed down from the caller.
            unsafe { self.recv(from, about, to, part.len() * parts.stride, 0) };
        }
    }

    /// Puts some of the first entries in the order of these ranks into their place; where they are, and their bytes.
    ///
    /// # Safety
    /// The area has room for them, and nobody else uses it.
    unsafe fn pack_entries(
        &mut self,
        order: &[usize],
        part: &Range<usize>,
        area: *mut u8,
        parts: Parts,
    ) -> Result<(*const u8, usize)> {
        let to = area.wrapping_add(part.start * parts.stride);
        let ranks = order[part.clone()].iter().copied();
        // SAFETY: handed down from the caller.
        let bytes = unsafe { pack(&mut self.state.table, ranks, to, part.len() * parts.stride)? };
        Ok((to, bytes))
    }

    /// Takes the entries with these numbers, in the order of these ranks, which have come.
    ///
    /// # Safety
    /// As [`Run::expect_entries`], and all requests are done.
    unsafe fn take_entries(
        &mut self,
        order: &[usize],
        numbers: Range<usize>,
        area: *mut u8,
        parts: Parts,
    ) -> Result<()> {
        for part in parts.of(numbers.len()) {
            let part = numbers.start + part.start..numbers.start + part.end;
            let ranks = order[part.clone()].iter().copied();
            let place = part.start * parts.stride..part.end * parts.stride;
            // SAFETY: handed down from the caller; `unpack` believes no header that is none.
            unsafe { unpack(&mut self.state.table, ranks, area, place)? };
        }
        Ok(())
    }
}
