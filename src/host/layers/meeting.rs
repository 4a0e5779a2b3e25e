//! How every collective begins: the headers of all ranks come to all ranks, with their data if that is small.
//!
//! The ranks of each machine show theirs to each other, the leaders send each other what their machines' ranks have
//! shown, and each leader shows all of it to its machine. Then all ranks compare: they have read the same headers and
//! so come to the same verdict, and a disagreement is found before data moves.

use super::Layers;
use crate::error::{Error, Result};
use crate::host::check::{Fingerprint, mismatch};
use crate::host::kernels::Scale;
use crate::host::net::exchange::{Carried, HEADER, Table};
use crate::host::net::run::Topic;
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

impl Layers<'_, '_> {
    /// The most that a rank's data may be to travel with its header.
    pub(super) fn inline(&self) -> usize {
        let ranks = self.engine.topology.ranks();
        let table = self.run.borrow().state.table.inline();
        let board = (BOARD / ranks).saturating_sub(HEADER);
        table.min(SHOWN - HEADER).min(board) / 8 * 8
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
        let run = &mut **self.run.borrow_mut();
        let topology = &engine.topology;
        let (own, machines) = (engine.machine, topology.machines());
        let entry = HEADER + run.state.table.inline();
        // What has come of the machines from this one on, one after the other.
        let machine = |distance: usize| topology.machine((own + distance) % machines);
        let room = topology.ranks() * entry;
        let area = run.state.pieces.reserve(room)?;
        // SAFETY: the area has room for the entries of all ranks.
        let mut end =
            unsafe { pack(&mut run.state.table, machine(0).iter().copied(), area, room)? };
        run.turn_to(leaders);
        if machines <= DIRECT {
            let about = (Topic::Headers, sequence << 8);
            let mut places = Vec::with_capacity(machines);
            let mut at = end;
            for distance in 1..machines {
                let bytes = machine(distance).len() * entry;
                places.push(at..at + bytes);
                at += bytes;
            }
            let area = run.state.pieces.reserve(room.max(at))?;
            // SAFETY: as above, again as the area may be another one.
            unsafe { pack(&mut run.state.table, machine(0).iter().copied(), area, room)? };
            for (distance, place) in (1..machines).zip(&places) {
                let from = (own + distance) % machines;
                let to = area.wrapping_add(place.start);
                // SAFETY: a place for the entries of that machine's ranks, of which the area has one for each;
                // the own entries stay as they are.
                unsafe { run.recv(from, about, to, place.len(), 0) };
            }
            for distance in 1..machines {
                let to = (own + distance) % machines;
                // SAFETY: as above.
                unsafe { run.send(to, about, area, end, 0) };
            }
            run.wait_for_all()?;
            for (distance, place) in (1..machines).zip(places) {
                let ranks = machine(distance).iter().copied();
                // SAFETY: what has come there; `unpack` believes no header that is none.
                unsafe { unpack(&mut run.state.table, ranks, area, place)? };
            }
            return Ok(());
        }
        let mut have = 1;
        // Where the entries of each machine end.
        let mut ends = vec![end];
        let mut step = 0;
        while have < machines {
            let count = have.min(machines - have);
            let about = (Topic::Headers, sequence << 8 | step);
            let (from, to) = ((own + have) % machines, (own + machines - have) % machines);
            // SAFETY: what has come stays as it is; the rest of the area has room for the other machines'
            // entries, which nobody else touches.
            unsafe {
                run.recv(from, about, area.add(end), room - end, 0);
                run.send(to, about, area, ends[count - 1], 0);
            }
            run.wait_for_all()?;
            for distance in have..have + count {
                let ranks = machine(distance).iter().copied();
                // SAFETY: as above.
                end = unsafe { unpack(&mut run.state.table, ranks, area, end..room)? };
                ends.push(end);
            }
            have += count;
            step += 1;
        }
        Ok(())
    }
}
