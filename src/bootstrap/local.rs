//! How the survivors of a communicator find each other again on one machine: an abstract unix name
//! that follows from the old secret and who is left out.
#![forbid(unsafe_code)]

use super::unique_id::Secret;
use crate::control::channel::{COURTESY, GRACE};
use crate::control::patience::{Impatience, Patience};
use crate::control::wire::{Reader, Writer, decode_error, encode_error};
use crate::error::{Code, Error, Result};
use crate::sys::unix;
use crate::types::UNIQUE_ID_BYTES;
use crate::words::ranks_text;
use std::io::{ErrorKind, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// What names the communicator to be.
pub(super) type Id = [u8; UNIQUE_ID_BYTES];

/// How long one step may last before the patience is asked again.
const STEP: Duration = Duration::from_millis(20);

/// A number that follows from the old secret and who is left out.
pub(super) fn token(secret: &Secret, excluded: &[u32]) -> u64 {
    // FNV-1a over secret and ranks: it must not show the secret, as others can read it in the list of
    // sockets; the secret itself is the proof.
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let ranks = excluded.iter().flat_map(|r| r.to_le_bytes());
    for byte in secret.iter().copied().chain(ranks) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash
}

fn name(secret: &Secret, excluded: &[u32]) -> Vec<u8> {
    format!("flagos-comm-shrink-{:016x}", token(secret, excluded)).into_bytes()
}

/// Connections at an abstract name that have not proved that they belong here. Anybody on this machine
/// may make one: none of them holds up the others.
#[derive(Debug, Default)]
pub(crate) struct Visitors {
    waiting: Vec<Visitor>,
}

#[derive(Debug)]
struct Visitor {
    stream: UnixStream,
    since: Instant,
    proof: Secret,
    filled: usize,
}

/// A visitor who has not shown the secret after this long is sent away, and so many are waited for.
const PROOF_LIMIT: Duration = Duration::from_secs(5);
const MOST_VISITORS: usize = 64;

impl Visitor {
    /// `Some(false)`: the stream has ended, or said something else.
    fn proves(&mut self, secret: &Secret) -> Option<bool> {
        loop {
            match (&self.stream).read(&mut self.proof[self.filled..]) {
                Ok(0) => return Some(false),
                Ok(got) => self.filled += got,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return None,
                Err(_) => return Some(false),
            }
            if self.filled == self.proof.len() {
                return Some(super::rendezvous::same_secret(&self.proof, secret));
            }
        }
    }
}

impl Visitors {
    /// Lets in who waits at the listening socket, until the deadline at most if nobody does, and gives
    /// those that have proved themselves.
    pub(crate) fn admit(
        &mut self,
        listener: &UnixListener,
        secret: &Secret,
        until: Instant,
    ) -> Result<Vec<UnixStream>> {
        // Whoever is here may speak at any moment.
        let mut until = match self.waiting.is_empty() {
            true => until,
            false => until.min(Instant::now() + Duration::from_millis(1)),
        };
        // Each look at the socket ends, however fast others connect.
        for _ in 0..MOST_VISITORS {
            match unix::accept(listener, until) {
                Ok(stream) => {
                    let waits = stream.set_nonblocking(true);
                    waits.map_err(|e| Error::system("a unix socket can't be set up", e))?;
                    self.waiting.push(Visitor {
                        stream,
                        since: Instant::now(),
                        proof: Secret::default(),
                        filled: 0,
                    });
                    until = Instant::now();
                }
                Err(e) if e.code() == Code::Timeout => break,
                Err(e) => return Err(e),
            }
        }
        let mut admitted = Vec::new();
        for mut visitor in std::mem::take(&mut self.waiting) {
            match visitor.proves(secret) {
                Some(true) => admitted.push(visitor.stream),
                None if visitor.since.elapsed() < PROOF_LIMIT => self.waiting.push(visitor),
                _ => log::debug!("a local connection without our secret was closed"),
            }
        }
        // The longest silent ones make room.
        let many = self.waiting.len().saturating_sub(MOST_VISITORS);
        self.waiting.drain(..many);
        Ok(admitted)
    }
}

/// So many missing ranks are named; of others only how many they are.
const NAMED: usize = 8;

/// The ranks that remain after a shrink, numbered anew, and this one among them. When all are there, the first
/// of them makes an id, which it gives to the others: one that nobody comes to would be served for long.
pub(crate) struct Survivors<'a> {
    pub secret: &'a Secret,
    /// In rising order.
    pub excluded: &'a [u32],
    pub rank: u32,
    pub nranks: u32,
    /// What the old communicator calls each: "rank 3 (host h, pid 7)".
    pub name: &'a dyn Fn(u32) -> String,
}

impl Survivors<'_> {
    /// Until when the next step of the meeting may last; `missing` are the ranks that keep it from its end.
    pub(super) fn step(
        &self,
        patience: &Patience,
        missing: impl Fn() -> Vec<u32>,
    ) -> Result<Instant> {
        match patience.slice() {
            Ok(slice) => Ok(Instant::now() + slice.min(STEP)),
            Err(Impatience::Expired) => Err(self.incomplete(&missing())),
            Err(Impatience::Aborted) => Err(Error::new(Code::Aborted, "aborted during a shrink")),
        }
    }

    /// Some ranks have not come in time.
    pub(super) fn incomplete(&self, missing: &[u32]) -> Error {
        let named = missing.iter().take(NAMED).map(|rank| (self.name)(*rank));
        let mut names = named.collect::<Vec<_>>().join(", ");
        if missing.len() > NAMED {
            names += &format!(" and {} more", missing.len() - NAMED);
        }
        Error::new(
            Code::Timeout,
            format!(
                "timed out while the remaining ranks met for a shrink; missing: {names}, by the numbers of the old \
                 communicator. All that stay must call flagosCommShrink with the same excluded ranks (here {}); who is gone \
                 has to be excluded. The limit: FLAGOSCOMM_INIT_TIMEOUT, or the configuration's",
                ranks_text(self.excluded.iter().copied())
            ),
        )
    }

    /// What the first says to those that are there: an id, or why there is none.
    pub(super) fn answer(&self, made: &Result<Id>) -> Result<Id> {
        made.clone().map_err(|error| match error.code() {
            Code::Aborted => Error::new(
                Code::RemoteError,
                format!("{} was aborted during a shrink", (self.name)(self.rank)),
            ),
            _ => error,
        })
    }

    /// Waits until the first has `answered`. Whoever runs out of patience asks it who is missing.
    pub(super) fn await_answer(
        &self,
        patience: &Patience,
        mut answered: impl FnMut(Instant) -> Result<bool>,
        ask: impl FnOnce(),
    ) -> Result<()> {
        let late = patience.with_grace(GRACE);
        let mut ask = Some(ask);
        while !answered(self.step(&late, || vec![0])?)? {
            if patience.slice() == Err(Impatience::Expired)
                && let Some(ask) = ask.take()
            {
                ask();
            }
        }
        Ok(())
    }

    /// The meeting on one machine; every rank returns the id.
    pub(crate) fn meet_here(
        &self,
        make: impl FnOnce() -> Result<Id>,
        patience: &Patience,
    ) -> Result<Id> {
        let name = name(self.secret, self.excluded);
        if self.rank > 0 {
            return self.ask_here(&name, patience);
        }
        let listener = unix::listen(&name)?;
        let mut here: Vec<Option<UnixStream>> = (1..self.nranks).map(|_| None).collect();
        let all = self.gather_here(&listener, &mut here, patience);
        let made = all.and_then(|()| make());
        let answer = words(&self.answer(&made));
        for stream in here.into_iter().flatten() {
            let _ = unix::write_all(&stream, &answer, Instant::now() + COURTESY);
        }
        made
    }

    fn gather_here(
        &self,
        listener: &UnixListener,
        here: &mut [Option<UnixStream>],
        patience: &Patience,
    ) -> Result<()> {
        let mut visitors = Visitors::default();
        while here.iter().any(Option::is_none) {
            let until = self.step(patience, || absent(here))?;
            for stream in visitors.admit(listener, self.secret, until)? {
                let mut rank = [0; 4];
                let said = unix::read_exact(&stream, &mut rank, Instant::now() + COURTESY);
                let place = (u32::from_le_bytes(rank) as usize).checked_sub(1);
                if said.is_ok()
                    && let Some(place) = place.and_then(|place| here.get_mut(place))
                {
                    *place = Some(stream);
                }
            }
            for place in 0..here.len() {
                // Who speaks again is late, or gone.
                let mut byte = [0];
                match here[place]
                    .as_ref()
                    .map(|mut stream| stream.read(&mut byte))
                {
                    None | Some(Err(_)) => continue,
                    Some(Ok(_)) => {}
                }
                let stream = here[place].take();
                let missing: Vec<u32> = absent(here)
                    .into_iter()
                    .filter(|rank| *rank as usize != place + 1)
                    .collect();
                if let (Some(stream), [1]) = (stream, byte) {
                    let words = words(&Err(self.incomplete(&missing)));
                    let _ = unix::write_all(&stream, &words, Instant::now() + COURTESY);
                }
            }
        }
        Ok(())
    }

    fn ask_here(&self, name: &[u8], patience: &Patience) -> Result<Id> {
        let stream = loop {
            match unix::connect(name, self.step(patience, || vec![0])?) {
                Ok(stream) => break stream,
                Err(e) if e.code() == Code::Timeout => {}
                Err(e) => return Err(e),
            }
        };
        let limit = || Instant::now() + COURTESY;
        let hello = [&self.secret[..], &self.rank.to_le_bytes()].concat();
        unix::write_all(&stream, &hello, limit())?;
        let ask = || drop(unix::write_all(&stream, &[1], limit()));
        self.await_answer(patience, |until| unix::readable(&stream, until), ask)?;
        let mut length = [0; 4];
        let read = unix::read_exact(&stream, &mut length, limit()).and_then(|()| {
            let mut words = vec![0; u32::from_le_bytes(length).min(MOST_WORDS) as usize];
            unix::read_exact(&stream, &mut words, limit()).map(|()| words)
        });
        let gone = || Error::new(Code::RemoteError, format!("{} {LOST}", (self.name)(0)));
        let words = read.map_err(|_| gone())?;
        match Reader(&words).u32() {
            Some(0) => words[4..].try_into().map_err(|_| gone()),
            _ => Err(decode_error(&words)),
        }
    }
}

/// What is said of the first rank when it has closed its connection.
const LOST: &str = "was lost, or gave up, while the remaining ranks met for a shrink";
/// No answer is longer.
const MOST_WORDS: u32 = 64 << 10;

/// An answer of the first rank to the others, its length first.
fn words(answer: &Result<Id>) -> Vec<u8> {
    let mut writer = Writer::default();
    match answer {
        Ok(id) => writer.bytes(&[&[0; 4][..], id].concat()),
        Err(error) => writer.bytes(&encode_error(error)),
    };
    writer.0
}

/// The new ranks that have no connection to the first.
pub(super) fn absent<C>(here: &[Option<C>]) -> Vec<u32> {
    let all = (1..).zip(here);
    all.filter(|(_, connection)| connection.is_none())
        .map(|(rank, _)| rank)
        .collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::bootstrap::interface::{Family, Filter};
    use crate::bootstrap::{rendezvous, unique_id};
    use crate::control::patience::AbortFlag;
    use std::io::Write;
    use std::net::TcpStream;

    /// The first one's part of a meeting to which nobody else comes: whatever id it has made, nobody serves it then.
    pub(crate) fn unserved_after(
        meet: impl FnOnce(&mut dyn FnMut() -> Result<Id>, &Patience) -> Result<Id>,
    ) {
        let mut made = Vec::new();
        let mut make = || {
            let loopback = Filter::parse("loopback", "=lo");
            let id = rendezvous::start(Some(&loopback), Family::Any, None)?;
            made.push(id);
            Ok(id)
        };
        let limit = Some(Duration::from_millis(50));
        let patience = Patience::starting_now(limit, &AbortFlag::default());
        let error = meet(&mut make, &patience).unwrap_err();
        assert_eq!(error.code(), Code::Timeout, "{error}");
        for id in made {
            for address in unique_id::decode(&id).unwrap().addresses {
                assert!(TcpStream::connect(address).is_err(), "{address} is served");
            }
        }
    }

    fn survivors(secret: &Secret, rank: u32) -> Survivors<'_> {
        Survivors {
            secret,
            excluded: &[3],
            rank,
            nranks: 3,
            name: &|rank| format!("rank {rank} (pid {rank})"),
        }
    }

    #[test]
    fn silent_and_foreign_visitors_hold_up_nobody() {
        let secret: Secret = crate::sys::process::random().unwrap();
        let name = name(&secret, &[3]);
        let patience = Patience::starting_now(Some(Duration::from_secs(20)), &AbortFlag::default());
        let started = Instant::now();
        let never = || Err(Error::internal("only the first makes an id"));
        let ids = std::thread::scope(|scope| {
            let meet = |rank| survivors(&secret, rank).meet_here(|| Ok([9; 256]), &patience);
            let zero = scope.spawn(move || meet(0));
            let until = Instant::now() + Duration::from_secs(10);
            let mut visitors = Vec::new();
            for number in 0..100 {
                let visitor = unix::connect(&name, until).unwrap();
                // None, too little, something else.
                let words = &[0; 16][..[0, 7, 16][number % 3]];
                (&visitor).write_all(words).unwrap();
                visitors.push(visitor);
            }
            let one = scope.spawn(|| survivors(&secret, 1).meet_here(never, &patience));
            let two = survivors(&secret, 2).meet_here(never, &patience);
            [zero.join().unwrap(), one.join().unwrap(), two]
        });
        assert_eq!(ids.map(Result::unwrap), [[9; 256]; 3]);
        assert!(started.elapsed() < Duration::from_secs(4));
    }

    /// Whoever runs out of time first, also long before the one that knows.
    #[test]
    fn all_that_came_name_the_rank_that_did_not() {
        for (limits, missing) in [([150, 150, 0], 2), ([2000, 150, 0], 2), ([0, 150, 150], 0)] {
            let secret: Secret = crate::sys::process::random().unwrap();
            let come = |rank: u32| {
                let limit = Duration::from_millis(limits[rank as usize]);
                let patience = Patience::starting_now(Some(limit), &AbortFlag::default());
                let secret = &secret;
                move || survivors(secret, rank).meet_here(|| Ok([9; 256]), &patience)
            };
            let errors: Vec<Error> = std::thread::scope(|scope| {
                let came = (0..3).filter(|rank| *rank != missing);
                let threads: Vec<_> = came.map(|rank| scope.spawn(come(rank))).collect();
                let ends = threads.into_iter().map(|t| t.join().unwrap().unwrap_err());
                ends.collect()
            });
            for error in &errors {
                assert_eq!(error.code(), Code::Timeout, "{error}");
                assert!(error.text().contains("excluded ranks (here 3)"), "{error}");
            }
            let words = format!("missing: rank {missing} (pid {missing}), by");
            // The first one's time is over after rank 1 has given up.
            let told = errors.iter().filter(|error| error.text().contains(&words));
            assert_eq!(
                told.count(),
                if limits[0] == 2000 { 1 } else { 2 },
                "{limits:?} {errors:?}"
            );
        }
    }

    /// No rendezvous, with its thread and socket, stays behind a meeting to which not all have come.
    #[test]
    fn an_id_is_not_served_behind_a_meeting_that_failed() {
        let secret: Secret = crate::sys::process::random().unwrap();
        unserved_after(|make, patience| survivors(&secret, 0).meet_here(make, patience));
    }

    #[test]
    fn who_never_says_anything_makes_room_for_others() {
        let secret: Secret = crate::sys::process::random().unwrap();
        let name = name(&secret, &[3]);
        let listener = unix::listen(&name).unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        let silent: Vec<UnixStream> = (0..MOST_VISITORS + 6)
            .map(|_| {
                let stream = unix::connect(&name, until).unwrap();
                stream.set_nonblocking(true).unwrap();
                stream
            })
            .collect();
        let closed = || {
            let ended = |mut stream: &UnixStream| matches!(stream.read(&mut [0]), Ok(0));
            silent.iter().filter(|stream| ended(stream)).count()
        };
        let mut visitors = Visitors::default();
        // Each look takes so many at most, so that it ends.
        for (waiting, gone) in [(MOST_VISITORS, 0), (MOST_VISITORS, 6)] {
            let soon = Instant::now() + Duration::from_millis(1);
            let admitted = visitors.admit(&listener, &secret, soon).unwrap();
            assert!(admitted.is_empty());
            assert_eq!((visitors.waiting.len(), closed()), (waiting, gone));
        }
    }

    #[test]
    fn an_id_that_cannot_be_made_is_an_error_of_all() {
        let secret: Secret = crate::sys::process::random().unwrap();
        let patience = Patience::starting_now(Some(Duration::from_secs(5)), &AbortFlag::default());
        let make = || Err(Error::new(Code::SystemError, "no descriptor is left"));
        let errors = std::thread::scope(|scope| {
            let meet = |rank| survivors(&secret, rank).meet_here(make, &patience);
            let ranks = [0, 1, 2].map(|rank| scope.spawn(move || meet(rank)));
            ranks.map(|rank| rank.join().unwrap().unwrap_err())
        });
        for error in errors {
            assert!(error.text().contains("no descriptor is left"), "{error}");
        }
    }

    #[test]
    fn of_many_missing_ranks_the_first_are_named() {
        let secret = Secret::default();
        let text = |missing: &[u32]| survivors(&secret, 0).incomplete(missing).text().to_owned();
        let all: Vec<u32> = (1..=10).collect();
        assert!(text(&all[..8]).contains("rank 8 (pid 8), by the numbers"));
        let long = text(&all);
        assert!(
            long.contains("rank 8 (pid 8) and 2 more, by the numbers"),
            "{long}"
        );
    }

    #[test]
    fn an_abort_of_the_first_is_told_to_the_others() {
        let secret: Secret = crate::sys::process::random().unwrap();
        let abort = AbortFlag::default();
        let limit = Some(Duration::from_secs(20));
        std::thread::scope(|scope| {
            let place = |rank| survivors(&secret, rank);
            let patience = Patience::starting_now(limit, &abort);
            let zero = scope.spawn(move || place(0).meet_here(|| Ok([9; 256]), &patience));
            let patience = Patience::starting_now(limit, &AbortFlag::default());
            let one = scope.spawn(move || place(1).meet_here(|| Ok([9; 256]), &patience));
            std::thread::sleep(Duration::from_millis(100));
            abort.set();
            assert_eq!(zero.join().unwrap().unwrap_err().code(), Code::Aborted);
            let error = one.join().unwrap().unwrap_err();
            assert_eq!(error.code(), Code::RemoteError);
            assert!(
                error.text().contains("rank 0 (pid 0) was aborted"),
                "{error}"
            );
        });
    }
}
