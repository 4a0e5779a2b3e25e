//! MPI as a transport, opened at run time: whichever of its binary interfaces a library has.
//!
//! * `abi`: functions and constants of the interfaces,
//! * `life`: who initialises MPI in this process, and who finalises it.
//!
//! A communicator of MPI's is made of the processes of the ranks, in their order, so that nothing of ours
//! meets messages of the program's. MPI moves only when it is called, as UCX does, but tells of nobody's death:
//! the control channel does, and mostly the launcher ends the whole job.

mod abi;
#[cfg(test)]
mod headers;
mod life;
#[cfg(test)]
mod tests;

pub(crate) use abi::{Api, FINGERPRINT, SONAMES, SONAMES_PMI, WHEELS};
pub(crate) use life::{Use, launcher_is_not_open_mpis, unusable};

use super::run::narrow_tag;
use super::short_tags::Expected;
use super::{Ticket, Transport};
use crate::config::HostEngine;
use crate::control::wire::{Reader, Writer};
use crate::error::{Code, Error, Result};
use abi::{Handle, Handles, Table};
use life::FINALISED;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Counts of MPI's functions have 31 bits. Longer messages go in pieces, which also shows that data moves.
const PIECE: usize = 32 << 20;
/// How long the end of a transport waits for what is under way.
const END: Duration = Duration::from_millis(500);

/// Where a rank is in MPI's world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its number there.
    pub rank: u32,
    /// How many there are.
    pub size: u32,
    /// The largest tag.
    pub largest_tag: u32,
    /// How many communicators this process has begun to make before.
    pub before: u32,
}

impl Place {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u32(self.rank).u32(self.size);
        writer.u32(self.largest_tag).u32(self.before);
        writer.0
    }

    pub(crate) fn decode(body: &[u8]) -> Option<Place> {
        let mut reader = Reader(body);
        Some(Place {
            rank: reader.u32()?,
            size: reader.u32()?,
            largest_tag: reader.u32()?,
            before: reader.u32()?,
        })
    }

    /// This process's place, for one more communicator.
    pub(crate) fn of_process(api: &Api, _up: &Use) -> Result<Place> {
        match &api.handles {
            Handles::Wide(table) => table.place(api),
            Handles::Narrow(table) => table.place(api),
        }
    }
}

/// Makes the communicator of these processes of MPI's world, in this order, which waits for all of them: for a
/// thread that may wait. `tag` keeps communicators apart that are made at once.
pub(crate) fn connect(
    api: &'static Api,
    up: Use,
    ranks: &[c_int],
    tag: c_int,
    largest_tag: u32,
) -> Result<Box<dyn Transport>> {
    Ok(match &api.handles {
        Handles::Wide(table) => Box::new(Mpi::new(api, table, up, ranks, tag, largest_tag)?),
        Handles::Narrow(table) => Box::new(Mpi::new(api, table, up, ranks, tag, largest_tag)?),
    })
}

impl Api {
    fn failed(&self, what: &str, code: c_int) -> Error {
        Error::new(
            Code::SystemError,
            format!("{what} of {} failed: {}", self.about(), self.words(code)),
        )
    }

    /// An answer of a function as a result.
    fn checked(&self, what: &str, code: c_int) -> Result<()> {
        match code {
            0 => Ok(()),
            code => Err(self.failed(what, code)),
        }
    }
}

impl<H: Handle> Table<H> {
    fn place(&self, api: &Api) -> Result<Place> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let Table { calls, constants } = self;
        let world = constants.world;
        let (mut rank, mut size, mut found) = (0, 0, 0);
        let mut largest: *mut c_int = null_mut();
        // SAFETY: MPI is up; each function writes one number, the last one an address and a number.
        unsafe {
            api.checked("MPI_Comm_rank", (calls.comm_rank)(world, &mut rank))?;
            api.checked("MPI_Comm_size", (calls.comm_size)(world, &mut size))?;
            let to = (&raw mut largest).cast();
            let code = (calls.comm_get_attr)(world, constants.tag_ub, to, &mut found);
            api.checked("MPI_Comm_get_attr", code)?;
        }
        let largest_tag = match found != 0 && !largest.is_null() {
            // SAFETY: the attribute is the address of a number that stays as long as MPI.
            true => unsafe { largest.read() },
            // As much as MPI promises.
            false => 32767,
        };
        Ok(Place {
            rank: rank as u32,
            size: size as u32,
            largest_tag: largest_tag as u32,
            before: MADE.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// The communicator of these ranks of the world.
    fn communicator(&self, api: &Api, ranks: &[c_int], tag: c_int) -> Result<H> {
        let Table { calls, constants } = self;
        let (mut all, mut some, mut comm) = (H::default(), H::default(), H::default());
        // SAFETY: MPI is up; the ranks are read during the call, and each function writes one handle.
        unsafe {
            let code = (calls.comm_group)(constants.world, &mut all);
            api.checked("MPI_Comm_group", code)?;
            let code = (calls.group_incl)(all, ranks.len() as c_int, ranks.as_ptr(), &mut some);
            let made = api.checked("MPI_Group_incl", code).and_then(|()| {
                let code = (calls.comm_create_group)(constants.world, some, tag, &mut comm);
                (calls.group_free)(&mut some);
                api.checked("MPI_Comm_create_group", code)
            });
            (calls.group_free)(&mut all);
            made?;
        }
        api.checked("MPI_Comm_set_errhandler", self.errors_return(comm))?;
        Ok(comm)
    }
}

/// A message that was begun.
struct Message<H> {
    /// What is not known to be done of its pieces, the first one last.
    pieces: Vec<H>,
    /// Of a receive: from whom, and the tag on the wire.
    expected: Option<(usize, c_int)>,
}

/// One rank's end of a communicator of MPI's.
struct Mpi<H: Handle> {
    api: &'static Api,
    table: &'static Table<H>,
    comm: H,
    /// A tag on the wire has so many bits.
    tag_bits: u32,
    /// By ticket.
    messages: Vec<Message<H>>,
    /// Tickets that mean nothing at present.
    unused: Vec<usize>,
    /// Messages of which something is under way.
    active: usize,
    expected: Expected,
    /// Something came to its end since it was last asked.
    moved: bool,
    /// Whether messages were left behind.
    failed: bool,
    /// The last field: MPI may end with it.
    up: Use,
}

impl<H: Handle> Mpi<H> {
    fn new(
        api: &'static Api,
        table: &'static Table<H>,
        up: Use,
        ranks: &[c_int],
        tag: c_int,
        largest_tag: u32,
    ) -> Result<Mpi<H>> {
        Ok(Mpi {
            comm: table.communicator(api, ranks, tag)?,
            api,
            table,
            tag_bits: (largest_tag.saturating_add(1)).ilog2(),
            messages: Vec::new(),
            unused: Vec::new(),
            active: 0,
            expected: Expected::default(),
            moved: false,
            failed: false,
            up,
        })
    }

    /// Begins each piece of a message.
    fn begin(
        &mut self,
        bytes: usize,
        expected: Option<(usize, c_int)>,
        piece: impl Fn(usize, c_int, *mut H) -> c_int,
    ) -> std::result::Result<Option<Ticket>, String> {
        let at = self.unused.pop().unwrap_or_else(|| {
            self.messages.push(Message {
                pieces: Vec::new(),
                expected: None,
            });
            self.messages.len() - 1
        });
        let message = &mut self.messages[at];
        message.expected = expected;
        self.active += 1;
        let mut start = 0;
        loop {
            let length = (bytes - start).min(PIECE);
            let mut request = H::default();
            let code = piece(start, length as c_int, &mut request);
            if code != 0 {
                // What was begun of it stays among those under way until all is given up.
                return Err(self.api.words(code));
            }
            message.pieces.push(request);
            start += length;
            if start == bytes {
                break;
            }
        }
        message.pieces.reverse();
        Ok(Some(Ticket(at)))
    }

    /// Whether a message is done; what is left of it is tried in order.
    fn test(&mut self, at: usize) -> Option<std::result::Result<(), String>> {
        let message = &mut self.messages[at];
        while let Some(request) = message.pieces.last_mut() {
            let mut flag = 0;
            let no_status = self.table.constants.no_status();
            // SAFETY: MPI is up, and the request is one of ours that is not known to be done.
            let code = unsafe { (self.table.calls.test)(request, &mut flag, no_status) };
            if code != 0 {
                return Some(Err(self.api.words(code)));
            }
            if flag == 0 {
                return None;
            }
            self.moved = true;
            message.pieces.pop();
        }
        if let Some(key) = message.expected.take() {
            self.expected.end(key);
        }
        self.unused.push(at);
        self.active -= 1;
        Some(Ok(()))
    }

    /// Moves on until all messages are done, for some time; how many are not.
    fn settle(&mut self) -> usize {
        let until = Instant::now() + END;
        while self.active > 0 {
            let Some(_inside) = self.up.enter() else {
                break;
            };
            let mut unused = vec![false; self.messages.len()];
            self.unused.iter().for_each(|at| unused[*at] = true);
            for (at, _) in unused.iter().enumerate().filter(|(_, unused)| !**unused) {
                let _ = self.test(at);
            }
            if Instant::now() >= until {
                break;
            }
            crate::sys::futex::yield_now();
        }
        self.active
    }
}

impl<H: Handle> Transport for Mpi<H> {
    fn about(&self) -> String {
        self.api.about()
    }

    fn key(&self) -> &'static str {
        HostEngine::Mpi.name()
    }

    unsafe fn send(
        &mut self,
        to: usize,
        tag: u64,
        from: *const u8,
        bytes: usize,
    ) -> std::result::Result<Option<Ticket>, String> {
        let _inside = self.up.enter().ok_or(FINALISED)?;
        let Table { calls, constants } = self.table;
        let (comm, tag) = (self.comm, narrow_tag(tag, self.tag_bits));
        self.begin(bytes, None, |start, length, request| {
            let from: *const c_void = from.wrapping_add(start).cast();
            let (byte, to) = (constants.byte, to as c_int);
            // SAFETY: MPI is up and the communicator ours; the bytes are the caller's promise.
            unsafe { (calls.isend)(from, length, byte, to, tag, comm, request) }
        })
    }

    unsafe fn recv(
        &mut self,
        from: usize,
        tag: u64,
        to: *mut u8,
        bytes: usize,
    ) -> std::result::Result<Option<Ticket>, String> {
        let _inside = self.up.enter().ok_or(FINALISED)?;
        let Table { calls, constants } = self.table;
        let (comm, short) = (self.comm, narrow_tag(tag, self.tag_bits));
        self.expected.begin((from, short), tag).map_err(|_| {
            format!(
                "too many messages are under way at once from one rank to another: {} can't tell them apart by \
                 tags of {} bits",
                self.api.about(),
                self.tag_bits
            )
        })?;
        self.begin(bytes, Some((from, short)), |start, length, request| {
            let to: *mut c_void = to.wrapping_add(start).cast();
            let (byte, from) = (constants.byte, from as c_int);
            // SAFETY: as above.
            unsafe { (calls.irecv)(to, length, byte, from, short, comm, request) }
        })
    }

    fn progress(&mut self) -> bool {
        // Where messages are under way, asking for them moves them.
        if self.active == 0
            && let Some(_inside) = self.up.enter()
        {
            let Table { calls, constants } = self.table;
            let (source, tag) = (constants.any_source, constants.any_tag);
            let mut flag = 0;
            // SAFETY: MPI is up and the communicator ours; whether there is a message doesn't matter.
            unsafe { (calls.iprobe)(source, tag, self.comm, &mut flag, constants.no_status()) };
        }
        std::mem::take(&mut self.moved)
    }

    fn done(&mut self, ticket: Ticket) -> Option<std::result::Result<(), String>> {
        match self.up.enter() {
            Some(_inside) => self.test(ticket.0),
            None => Some(Err(String::from(FINALISED))),
        }
    }

    fn lost(&self, _rank: usize) -> Option<String> {
        None
    }

    fn give_up(&mut self, _tickets: &[Ticket]) -> usize {
        self.failed = true;
        if let Some(_inside) = self.up.enter() {
            for message in &mut self.messages {
                // What is sent can't be taken back in general, and MPI frowns on the attempt.
                for request in message
                    .pieces
                    .iter_mut()
                    .filter(|_| message.expected.is_some())
                {
                    // SAFETY: MPI is up, and the request is one of ours that is not known to be done.
                    unsafe { (self.table.calls.cancel)(request) };
                }
            }
        }
        self.settle()
    }

    fn end(&mut self, in_order: bool) -> bool {
        self.failed |= !in_order;
        let left = self.settle();
        self.failed |= left > 0;
        left == 0
    }
}

impl<H: Handle> Drop for Mpi<H> {
    fn drop(&mut self) {
        if self.failed {
            self.up.has_failed();
            return;
        }
        if let Some(_inside) = self.up.enter() {
            // SAFETY: MPI is up, and nothing is under way on the communicator, which is ours.
            unsafe { (self.table.calls.comm_free)(&mut self.comm) };
        }
    }
}
