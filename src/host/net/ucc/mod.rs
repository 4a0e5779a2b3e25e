//! UCC (libucc) as a transport. UCC has collectives only, but its broadcast among two ranks (an active set) is a
//! message from one to the other, with a tag of 16 bits, in which nobody else takes part.
//!
//! * `abi`: functions and structs,
//! * `meeting`: how the ranks' ends are made.
//!
//! The algorithms are ours, as over every other library. UCC's own reductions combine the ranks' contributions in
//! other orders, not always the same on all ranks, and round 16-bit types at every step. And UCC says that an operation
//! is done, and well, when the connection has broken in the middle of it: a receiver has then part of the data and no
//! error. So a message that may come in part is sealed by a second one, which its sender sends when the first is done:
//! through a broken connection it doesn't come, and the wait goes on until the control channel tells what has happened.
//! Nor does UCC say who has died.

mod abi;
mod meeting;
#[cfg(test)]
mod tests;

pub(crate) use abi::{
    Api, COMPANIONS, ENVIRONMENT, FINGERPRINT, SEGMENT_SIZES, SONAMES, declarations, layouts,
};
pub(crate) use meeting::{Meeting, Step};

use super::run::{Crowd, LEAST_TAG_BITS, agreed_size, narrow_tag};
use super::short_tags::Expected;
use super::{Ticket, Transport};
use crate::config::HostEngine;
use crate::sys::per_process::PerProcess;
use abi::{CollArgs, IN_PROGRESS, OK};
use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::AtomicU8;
use std::time::{Duration, Instant};

/// Long messages go in pieces, which show that data moves.
const PIECE: usize = 8 << 20;
/// A message of up to so many bytes goes as a whole with the libraries below: it comes, or it doesn't.
const CERTAIN: usize = (8 << 10) + super::exchange::HEADER;
const _: () = assert!(super::p2p::LONGEST_HEADER <= CERTAIN);
/// Bits of the tag of a message; above them is the mark of a seal.
const TAG_BITS: u32 = LEAST_TAG_BITS;
const SEAL: u16 = 1 << TAG_BITS;
/// How long the end of a transport waits for what is under way, and for UCC's own end.
const END: Duration = Duration::from_millis(500);
/// How long a thread goes on with UCC's end, and how it passes the time.
const LONG_END: Duration = Duration::from_secs(60);
const LONG_NAP: Duration = Duration::from_millis(1);
/// UCC has nothing that would wake a sleeper. So waits look on for a while, if something has moved not long ago and
/// nobody else wants the core, in so many rounds of so many calls, and give way to others in between.
const ROUNDS: u32 = 64;
const LOOKS: usize = 16;
/// Then they sleep for so long, and after that make more than one call: what has come meanwhile is more than one takes.
const NAP: Duration = Duration::from_micros(50);
const BURST: usize = 64;

/// What UCC calls sent may be with its UCX: for so long after a send it is moved on between operations.
const LINGER: Duration = Duration::from_millis(200);

/// What seals carry, and where they go: nobody looks at it.
static SEALED: AtomicU8 = AtomicU8::new(0);

/// Starts and ends of the library count what they have in common without a lock.
static STARTS: PerProcess<Mutex<()>> = PerProcess::new();

fn starts() -> &'static Mutex<()> {
    STARTS.get_or_init(|| Mutex::new(()))
}

/// UCC's own objects for one communicator.
struct Handles {
    api: &'static Api,
    lib: *mut c_void,
    context: *mut c_void,
    /// NULL if it was not made.
    team: *mut c_void,
    /// The team is not known to be made.
    in_the_making: bool,
}

// SAFETY: the library is started for calls from any thread, and the pointers belong to this value alone.
unsafe impl Send for Handles {}

/// How far UCC's own end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// Nothing of it is left.
    Wholly,
    /// A thread goes on with it.
    NotYet,
    /// Something is left for good.
    Never,
}

impl Handles {
    /// Ends them; whether that came to its end. UCC waits for connections to close, without a limit: a team that has
    /// not ended after so long stays, and so does the context that it needs.
    fn end(self, patience: Duration) -> bool {
        let api = self.api;
        let start = Instant::now();
        let in_progress = |what: unsafe extern "C" fn(*mut c_void) -> c_int| loop {
            // SAFETY: the team is this value's, and nobody uses it any more.
            let status = unsafe { what(self.team) };
            if status != IN_PROGRESS || start.elapsed() >= patience {
                return status;
            }
            // SAFETY: as above, of the context that the team needs.
            unsafe { (api.context_progress)(self.context) };
            match start.elapsed() < END {
                true => crate::sys::futex::yield_now(),
                false => std::thread::sleep(LONG_NAP),
            }
        };
        if !self.team.is_null() {
            // One in the making can't be destroyed before UCC has heard that it won't be made.
            let heard = !self.in_the_making || in_progress(api.team_create_test) != IN_PROGRESS;
            if !heard || in_progress(api.team_destroy) != OK {
                return false;
            }
        }
        // SAFETY: the handles are this value's and nobody uses them any more; each is ended once, in the order in
        // which UCC asks for it.
        unsafe {
            if !self.context.is_null() && (api.context_destroy)(self.context) != OK {
                return false;
            }
            let _one_at_a_time = crate::ops::lock(starts());
            (api.finalize)(self.lib);
        }
        true
    }

    /// Ends them on a thread that has some patience, and is waited for for a shorter time.
    fn end_within(self, limit: Duration, patience: Duration) -> Ended {
        let until = Instant::now() + limit;
        let about = self.api.about();
        let thread = std::thread::Builder::new().name("flagos-ucc-end".into());
        let thread = thread.spawn({
            let about = about.clone();
            move || {
                let ended = self.end(patience);
                if !ended {
                    log::warn!(
                        "{about} does not end; what a communicator had of it stays until the program ends"
                    );
                }
                ended
            }
        });
        let Ok(thread) = thread else {
            log::warn!(
                "no thread for the end of {about}; what a communicator had of it stays until the program ends"
            );
            return Ended::Never;
        };
        while !thread.is_finished() {
            if Instant::now() >= until {
                log::debug!("the end of {about} takes longer, and goes on behind the program");
                return Ended::NotYet;
            }
            std::thread::sleep(NAP);
        }
        match thread.join() {
            Ok(true) => Ended::Wholly,
            _ => Ended::Never,
        }
    }
}

/// A message that was begun.
struct Message {
    /// UCC's requests that are not known to be done, the first one last.
    requests: Vec<*mut c_void>,
    /// Of a receive: from whom, and the tag on the wire.
    expected: Option<(usize, c_int)>,
    /// Of a send that has to be sealed: to whom, and the tag of the seal.
    seal: Option<(usize, u16)>,
}

/// One rank's end of a team.
pub(crate) struct Ucc {
    api: &'static Api,
    rank: usize,
    /// `None` once it was given up.
    handles: Option<Handles>,
    /// By ticket.
    messages: Vec<Message>,
    /// Tickets that mean nothing at present.
    unused: Vec<usize>,
    /// Messages of which something is under way.
    active: usize,
    expected: Expected,
    /// Sends that are to be sealed, by receiver and tag: in this order, whichever is done first.
    to_seal: HashMap<(usize, u16), VecDeque<usize>>,
    /// Something came to its end since it was last asked.
    moved: bool,
    /// When something was sent that may not have left.
    sent: Option<Instant>,
    /// Rounds of waiting since something has moved.
    rounds: u32,
    /// The last wait has slept.
    slept: bool,
    /// Whether others want this rank's core.
    crowd: Crowd,
    /// UCC's own words for the end of everything.
    broken: Option<String>,
}

// SAFETY: as `Handles`; the requests are this value's, too, and one thread at a time uses it.
unsafe impl Send for Ucc {}

impl Ucc {
    fn new(handles: Handles, rank: usize) -> Ucc {
        Ucc {
            api: handles.api,
            rank,
            handles: Some(handles),
            messages: Vec::new(),
            unused: Vec::new(),
            active: 0,
            expected: Expected::default(),
            to_seal: HashMap::new(),
            moved: false,
            sent: None,
            rounds: 0,
            slept: false,
            crowd: Crowd::default(),
            broken: None,
        }
    }

    /// Begins one of UCC's broadcasts.
    ///
    /// # Safety
    /// The bytes are readable, or writable, and stay so until the request is done or everything was given up.
    unsafe fn post(
        &self,
        (from, to): (usize, usize),
        tag: u16,
        buffer: *mut c_void,
        bytes: usize,
    ) -> Result<*mut c_void, String> {
        let Some(handles) = &self.handles else {
            return Err(String::from("it is closed"));
        };
        let mut args = CollArgs::message(from, to, tag, buffer, bytes);
        let mut request = null_mut();
        // SAFETY: the team is made; the arguments are read during the call, and the bytes are the caller's promise.
        let mut status = unsafe {
            (self.api.collective_init)((&raw mut args).cast(), &mut request, handles.team)
        };
        if status == OK {
            // SAFETY: the request was just made.
            status = unsafe { (self.api.collective_post)(request) };
        }
        match status {
            OK | IN_PROGRESS => Ok(request),
            status => Err(self.api.words(status)),
        }
    }

    /// Begins each piece of a message, and of a receive the seal.
    ///
    /// # Safety
    /// As [`Ucc::post`].
    unsafe fn begin(
        &mut self,
        (from, to): (usize, usize),
        tag: u64,
        buffer: *mut u8,
        bytes: usize,
    ) -> Result<Option<Ticket>, String> {
        if bytes == 0 {
            // UCC sends nothing then; both sides know.
            return Ok(None);
        }
        let short = narrow_tag(tag, TAG_BITS);
        let receives = to == self.rank;
        if receives {
            self.expected.begin((from, short), tag).map_err(|_| {
                format!(
                    "too many messages are under way at once from one rank to another: {} can't tell them apart by \
                     tags of {TAG_BITS} bits",
                    self.api.about()
                )
            })?;
        }
        let (on_wire, sealed) = (short as u16, agreed_size(tag) && bytes > CERTAIN);
        let at = self.unused.pop().unwrap_or_else(|| {
            self.messages.push(Message {
                requests: Vec::new(),
                expected: None,
                seal: None,
            });
            self.messages.len() - 1
        });
        self.active += 1;
        self.messages[at].expected = receives.then_some((from, short));
        for start in (0..bytes).step_by(PIECE) {
            let piece = buffer.wrapping_add(start).cast();
            // SAFETY: handed down from the caller. What was begun of a message that fails here stays among
            // those under way until all is given up.
            let request =
                unsafe { self.post((from, to), on_wire, piece, PIECE.min(bytes - start))? };
            self.messages[at].requests.push(request);
        }
        if sealed && receives {
            let nowhere = SEALED.as_ptr().cast();
            // SAFETY: the byte stays, and nobody looks at it.
            let request = unsafe { self.post((from, to), on_wire | SEAL, nowhere, 1)? };
            self.messages[at].requests.push(request);
        } else if sealed {
            let key = (to, on_wire | SEAL);
            self.messages[at].seal = Some(key);
            self.to_seal.entry(key).or_default().push_back(at);
        }
        self.messages[at].requests.reverse();
        // What is with the libraries below is done, and sealed, at once.
        match self.test(at) {
            None => Ok(Some(Ticket(at))),
            Some(Ok(())) => Ok(None),
            Some(Err(text)) => Err(text),
        }
    }

    /// Whether a message is done; what is left of it is tried in order.
    fn test(&mut self, at: usize) -> Option<Result<(), String>> {
        if self.handles.is_none() {
            return Some(Err(String::from("it is closed")));
        }
        loop {
            let message = &mut self.messages[at];
            if let Some(request) = message.requests.last() {
                // SAFETY: a request of ours that was not finalised, which begins with its status.
                let status = unsafe { request.cast::<c_int>().read_volatile() };
                if status > OK {
                    return self.broken.clone().map(Err);
                }
                // SAFETY: as above, and it is over.
                unsafe { (self.api.collective_finalize)(*request) };
                message.requests.pop();
                self.moved = true;
                if status < OK {
                    return Some(Err(self.api.words(status)));
                }
                continue;
            }
            let Some(key) = message.seal else {
                break;
            };
            let next = self
                .to_seal
                .get_mut(&key)
                .filter(|q| q.front() == Some(&at));
            next?.pop_front();
            message.seal = None;
            let nowhere = SEALED.as_ptr().cast();
            // SAFETY: the byte stays, and nobody writes it in a way that matters.
            match unsafe { self.post((self.rank, key.0), key.1, nowhere, 1) } {
                Ok(request) => self.messages[at].requests.push(request),
                Err(text) => return Some(Err(text)),
            }
        }
        if let Some(key) = self.messages[at].expected.take() {
            self.expected.end(key);
        }
        self.unused.push(at);
        self.active -= 1;
        Some(Ok(()))
    }

    /// One call of UCC's progress.
    fn move_on(&mut self) {
        if let Some(handles) = self.handles.as_ref().filter(|_| self.broken.is_none()) {
            // SAFETY: the context is there, and `&mut self` says that nobody else is in it.
            let status = unsafe { (self.api.context_progress)(handles.context) };
            if status < OK {
                self.broken = Some(self.api.words(status));
            }
        }
    }

    /// Moves on until all messages are done, for some time; how many are not.
    fn settle(&mut self) -> usize {
        let until = Instant::now() + END;
        while self.active > 0 && self.broken.is_none() && Instant::now() < until {
            self.progress();
            let mut unused = vec![false; self.messages.len()];
            self.unused.iter().for_each(|at| unused[*at] = true);
            for (at, _) in unused.iter().enumerate().filter(|(_, unused)| !**unused) {
                let _ = self.test(at);
            }
            crate::sys::futex::yield_now();
        }
        self.active
    }

    /// Messages of which UCC may still touch the memory. Some have no ticket: they could not be begun as a whole, or a
    /// part of them has failed.
    fn under_way(&self) -> usize {
        if self.handles.is_none() {
            // The requests have gone with the context.
            return 0;
        }
        let goes_on = |request: &*mut c_void| {
            // SAFETY: a request of ours that was not finalised, which begins with its status.
            unsafe { request.cast::<c_int>().read_volatile() > OK }
        };
        let messages = self.messages.iter();
        messages
            .filter(|message| message.requests.iter().any(goes_on))
            .count()
    }

    /// Ends UCC's own objects.
    fn close(&mut self) -> Ended {
        let (limit, patience) = match self.under_way() {
            0 => (END, LONG_END),
            // The memory is the caller's again when this returns, and UCC writes to it when it is moved on: the thread loses
            // patience before. Only the end of the context, which UCC itself moves on, can't be cut short.
            _ => (2 * END, END),
        };
        let handles = self.handles.take();
        handles.map_or(Ended::Wholly, |handles| handles.end_within(limit, patience))
    }
}

impl Transport for Ucc {
    fn about(&self) -> String {
        self.api.about()
    }

    fn key(&self) -> &'static str {
        HostEngine::Ucc.name()
    }

    fn certain(&self) -> usize {
        CERTAIN
    }

    unsafe fn send(
        &mut self,
        to: usize,
        tag: u64,
        from: *const u8,
        bytes: usize,
    ) -> Result<Option<Ticket>, String> {
        self.sent = Some(Instant::now());
        // SAFETY: handed down from the caller; UCC only reads what the root of a broadcast has.
        unsafe { self.begin((self.rank, to), tag, from.cast_mut(), bytes) }
    }

    unsafe fn recv(
        &mut self,
        from: usize,
        tag: u64,
        to: *mut u8,
        bytes: usize,
    ) -> Result<Option<Ticket>, String> {
        // SAFETY: handed down from the caller.
        unsafe { self.begin((from, self.rank), tag, to, bytes) }
    }

    fn has_left(&mut self) -> bool {
        let lingers = self.sent.is_some_and(|since| since.elapsed() < LINGER);
        if lingers {
            (0..BURST).for_each(|_| self.move_on());
        } else {
            self.sent = None;
        }
        !lingers
    }

    fn progress(&mut self) -> bool {
        let calls = match std::mem::take(&mut self.slept) {
            true => BURST,
            false => 1,
        };
        for _ in 0..calls {
            self.move_on();
        }
        let moved = std::mem::take(&mut self.moved);
        if moved {
            self.rounds = 0;
        }
        moved
    }

    fn sleep(&mut self, limit: Duration) {
        let mut now = Instant::now();
        if self.rounds >= ROUNDS || self.crowd.is_there(now) {
            std::thread::sleep(limit.min(NAP));
            self.slept = true;
            return;
        }
        self.rounds += 1;
        for _ in 0..LOOKS {
            self.move_on();
            crate::sys::futex::yield_now();
            let then = std::mem::replace(&mut now, Instant::now());
            self.crowd.gave_way(then, now);
            if self.crowd.is_there(now) {
                return;
            }
        }
    }

    fn done(&mut self, ticket: Ticket) -> Option<Result<(), String>> {
        self.test(ticket.0)
    }

    fn lost(&self, _rank: usize) -> Option<String> {
        None
    }

    fn give_up(&mut self, _tickets: &[Ticket]) -> usize {
        let under_way = self.under_way();
        // UCC takes no request back, and one that is under way can't be finalised. With its context all end.
        match self.close() {
            Ended::Wholly => 0,
            Ended::NotYet | Ended::Never => under_way,
        }
    }

    fn end(&mut self, in_order: bool) -> bool {
        if in_order {
            self.settle();
        }
        self.close() == Ended::Wholly
    }
}

impl Drop for Ucc {
    fn drop(&mut self) {
        if self.handles.is_some() {
            self.end(false);
        }
    }
}
