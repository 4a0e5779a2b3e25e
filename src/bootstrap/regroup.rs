//! How the survivors of a communicator find each other again across machines: the first of them listens on the address that
//! it had in the old control channel, at a port that follows from the old secret and who is left out. Somebody else may
//! have that port, so there are several, which all try in the same order.
#![forbid(unsafe_code)]

use super::local::{Id, Survivors, absent, token};
use super::rendezvous::same_secret;
use super::unique_id::{self, Secret};
use crate::control::channel::COURTESY;
use crate::control::patience::{AbortFlag, Patience};
use crate::control::strangers::Strangers;
use crate::control::wire::{
    Connection, Kind, Reader, Writer, decode_error, encode_error, encode_frame,
};
use crate::error::{Code, Error, Result};
use crate::sys::net::{PollEntry, listen, poll};
use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

/// So many ports are tried, below those that the kernel gives to whoever wants any.
const PORTS: u64 = 16;
const FIRST_PORT: u64 = 10_240;
const LAST_PORT: u64 = 32_767;
/// How long one connection, and an answer on it, may take before the next port is tried.
const ATTEMPT: Duration = Duration::from_millis(500);

/// Where the first of the survivors is.
pub(crate) struct Place {
    pub address: IpAddr,
    /// The interface by which this rank reaches link-local addresses.
    pub scope: u32,
}

impl Survivors<'_> {
    fn addresses(&self, first: &Place) -> impl Iterator<Item = SocketAddr> + use<> {
        let seed = token(self.secret, self.excluded);
        let (first, scope) = (first.address, first.scope);
        (0..PORTS).map(move |at| {
            // Steps by an odd number: no port comes twice.
            let port = FIRST_PORT + (seed % 65_521 + at * 1009) % (LAST_PORT - FIRST_PORT + 1);
            unique_id::socket_address(first, scope, port as u16)
        })
    }

    /// The meeting across machines; every rank returns the id.
    pub(crate) fn meet_across(
        &self,
        first: &Place,
        make: impl FnOnce() -> Result<Id>,
        patience: &Patience,
    ) -> Result<Id> {
        if self.rank > 0 {
            return self.ask(first, patience);
        }
        let listener = self.listen(first)?;
        let mut here: Vec<Option<Connection>> = (1..self.nranks).map(|_| None).collect();
        let all = self.gather(&listener, &mut here, patience);
        let made = all.and_then(|()| make());
        for connection in here.iter_mut().flatten() {
            tell(connection, &self.answer(&made));
        }
        made
    }

    fn listen(&self, first: &Place) -> Result<TcpListener> {
        let mut last = None;
        for address in self.addresses(first) {
            match listen(address) {
                Ok(listener) => {
                    let waits = listener.set_nonblocking(true);
                    waits.map_err(|e| Error::system("a listening socket can't be set up", e))?;
                    return Ok(listener);
                }
                Err(e) => last = Some((address, e)),
            }
        }
        let why = last.map(|(address, e)| format!("{address}: {e}"));
        Err(Error::new(
            Code::SystemError,
            format!(
                "the remaining ranks of a shrink can't meet: none of the {PORTS} ports that all of them know can be \
                 had on {} (the last: {}). Make a new communicator from a new id",
                first.address,
                why.unwrap_or_default()
            ),
        ))
    }

    fn gather(
        &self,
        listener: &TcpListener,
        here: &mut [Option<Connection>],
        patience: &Patience,
    ) -> Result<()> {
        let mut strangers = Strangers::default();
        while here.iter().any(Option::is_none) {
            let until = self.step(patience, || absent(here))?;
            let mut entries: Vec<_> = strangers.poll_entries(listener).collect();
            poll(
                &mut entries,
                until.saturating_duration_since(Instant::now()),
            );
            let accepted = strangers.accept(listener);
            accepted.map_err(|e| Error::system("no connection can be accepted", e))?;
            for (frame, mut connection) in strangers.hear() {
                let mut reader = Reader(&frame.body);
                let proof: Option<Secret> = reader.fixed();
                let proved = proof.is_some_and(|proof| same_secret(&proof, self.secret));
                let place = reader.u32().and_then(|rank| rank.checked_sub(1));
                let place = place.and_then(|at| here.get_mut(at as usize));
                match place {
                    Some(place) if proved && frame.kind == Kind::Hello => {
                        // It may come again, by another port.
                        let counted = connection.post(encode_frame(Kind::Welcome, 0, &[]));
                        *place = counted.ok().map(|()| connection);
                    }
                    _ => log::debug!("a connection without our secret was closed"),
                }
            }
            for place in 0..here.len() {
                let Some(connection) = &mut here[place] else {
                    continue;
                };
                // Who speaks again is late, or gone.
                let spoken = connection.try_receive();
                if matches!(spoken, Ok(None)) {
                    continue;
                }
                let mut left = here[place].take();
                let missing: Vec<u32> = absent(here)
                    .into_iter()
                    .filter(|rank| *rank as usize != place + 1)
                    .collect();
                if let (Ok(Some(_)), Some(connection)) = (spoken, &mut left) {
                    tell(connection, &Err(self.incomplete(&missing)));
                }
            }
        }
        Ok(())
    }

    fn ask(&self, first: &Place, patience: &Patience) -> Result<Id> {
        loop {
            let until = self.step(patience, || vec![0])?;
            for address in self.addresses(first) {
                self.step(patience, || vec![0])?;
                if let Some(id) = self.ask_at(&address, patience)? {
                    return Ok(id);
                }
            }
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
        }
    }

    /// The id from whoever listens there; `None`: nobody does, or somebody else, or it was lost.
    fn ask_at(&self, address: &SocketAddr, patience: &Patience) -> Result<Option<Id>> {
        let Ok(mut connection) = Connection::connect(address, ATTEMPT, patience) else {
            return Ok(None);
        };
        let mut hello = Writer::default();
        hello.fixed(self.secret).u32(self.rank);
        let attempt = patience.within(ATTEMPT);
        let sent = connection.send(Kind::Hello, 0, &hello.0, &attempt);
        let counted = sent.and_then(|()| connection.receive(&attempt));
        if !counted.is_ok_and(|frame| frame.kind == Kind::Welcome) {
            return Ok(None);
        }
        let (connection, mut answer) = (RefCell::new(connection), None);
        let answered = |until: Instant| {
            let mut connection = connection.borrow_mut();
            answer = connection.try_receive().transpose();
            if answer.is_none() {
                let limit = until.saturating_duration_since(Instant::now());
                poll(&mut [PollEntry::read(connection.fd())], limit);
            }
            Ok(answer.is_some())
        };
        let ask = || {
            drop(
                connection
                    .borrow_mut()
                    .post(encode_frame(Kind::Query, 0, &[])),
            )
        };
        self.await_answer(patience, answered, ask)?;
        match answer {
            Some(Ok(frame)) if frame.kind == Kind::Whole => Ok(frame.body.try_into().ok()),
            Some(Ok(frame)) if frame.kind == Kind::Fail => Err(decode_error(&frame.body)),
            _ => Ok(None),
        }
    }
}

/// Tells one rank what has come of the meeting. One that can't be told finds that out by itself.
fn tell(connection: &mut Connection, answer: &Result<Id>) {
    let limit = Patience::starting_now(Some(COURTESY), &AbortFlag::default());
    let _ = match answer {
        Ok(id) => connection.send(Kind::Whole, 0, id, &limit),
        Err(error) => connection.send(Kind::Fail, 0, &encode_error(error), &limit),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::local::tests::unserved_after;
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpStream};

    fn patience(limit: Duration) -> Patience {
        Patience::starting_now(Some(limit), &AbortFlag::default())
    }

    const HERE: Place = Place {
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        scope: 0,
    };

    fn survivors<'a>(secret: &'a Secret, excluded: &'a [u32], rank: u32) -> Survivors<'a> {
        Survivors {
            secret,
            excluded,
            rank,
            nranks: 3,
            name: &|rank| format!("rank {rank} (pid {rank})"),
        }
    }

    /// Tries again and again until there is something.
    fn within<T>(limit: Duration, mut attempt: impl FnMut() -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            if let Some(found) = attempt() {
                return found;
            }
            assert!(started.elapsed() < limit, "nobody is there");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn ports_are_apart_and_depend_on_who_is_left_out() {
        let ports = |secret: &Secret, excluded: &[u32]| -> Vec<u16> {
            let all = survivors(secret, excluded, 0).addresses(&HERE);
            all.map(|address| address.port()).collect()
        };
        let first = ports(&[7; 16], &[0]);
        let mut sorted = first.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), PORTS as usize);
        assert!(
            sorted
                .iter()
                .all(|p| (FIRST_PORT..=LAST_PORT).contains(&u64::from(*p)))
        );
        assert!(first != ports(&[7; 16], &[1]) && first != ports(&[8; 16], &[0]));
    }

    /// The first port belongs to somebody else, who answers nobody; strangers say nothing, or something else.
    #[test]
    fn survivors_meet_beside_strangers() {
        let secret: Secret = crate::sys::process::random().unwrap();
        let place = |rank| survivors(&secret, &[1, 4], rank);
        let taken = place(0).addresses(&HERE).next().unwrap();
        let taken = TcpListener::bind(taken);
        let limit = Duration::from_secs(20);
        let never = || Err(Error::internal("only the first makes an id"));
        let ids = std::thread::scope(|scope| {
            let zero =
                scope.spawn(|| place(0).meet_across(&HERE, || Ok([9; 256]), &patience(limit)));
            let server = place(0).addresses(&HERE).nth(1).unwrap();
            let strangers: Vec<TcpStream> = (0..20)
                .map(|number| {
                    let stream = within(limit, || TcpStream::connect(server).ok());
                    // None, too little, and all that rank 1 says, with another secret.
                    let body = [&[7; 16][..], &1u32.to_le_bytes()].concat();
                    let frame = crate::control::wire::encode_frame(Kind::Hello, 0, &body);
                    let words = [&[][..], &frame[..7], &frame[..]][number % 3];
                    (&stream).write_all(words).unwrap();
                    stream
                })
                .collect();
            let one = scope.spawn(|| place(1).meet_across(&HERE, never, &patience(limit)));
            let two = place(2).meet_across(&HERE, never, &patience(limit));
            let ids = [zero.join().unwrap(), one.join().unwrap(), two];
            drop(strangers);
            ids
        });
        drop(taken);
        assert_eq!(ids.map(Result::unwrap), [[9; 256]; 3]);
    }

    /// As on one machine.
    #[test]
    fn an_id_is_not_served_behind_a_meeting_that_failed() {
        let secret: Secret = crate::sys::process::random().unwrap();
        let zero = survivors(&secret, &[3], 0);
        unserved_after(|make, patience| zero.meet_across(&HERE, make, patience));
    }

    /// Whoever listens at the first port counts one in, and says no more.
    #[test]
    fn a_connection_that_is_lost_after_a_welcome_is_made_anew() {
        let limit = Duration::from_secs(20);
        // Somebody else may have the port of one or the other.
        let (secret, taken) = within(limit, || {
            let secret: Secret = crate::sys::process::random().unwrap();
            let first = survivors(&secret, &[6], 0).addresses(&HERE).next();
            Some((secret, TcpListener::bind(first?).ok()?))
        });
        let place = |rank| survivors(&secret, &[6], rank);
        let never = || Err(Error::internal("only the first makes an id"));
        std::thread::scope(|scope| {
            let one = scope.spawn(|| place(1).meet_across(&HERE, never, &patience(limit)));
            let (stream, _) = taken.accept().unwrap();
            // What is not read would be answered with a reset, before the welcome is.
            let mut hello = encode_frame(Kind::Hello, 0, &[0; 20]).to_vec();
            (&stream).read_exact(&mut hello).unwrap();
            let welcome = encode_frame(Kind::Welcome, 0, &[]);
            (&stream).write_all(&welcome).unwrap();
            drop(stream);
            drop(taken);
            let zero =
                scope.spawn(|| place(0).meet_across(&HERE, || Ok([9; 256]), &patience(limit)));
            let two = place(2).meet_across(&HERE, never, &patience(limit));
            let ids = [zero.join().unwrap(), one.join().unwrap(), two];
            assert_eq!(ids.map(Result::unwrap), [[9; 256]; 3]);
        });
    }

    /// What it has asked on is closed when the answer comes; it asks again.
    #[test]
    fn a_survivor_that_lost_patience_is_served_when_it_comes_again() {
        let secret: Secret = crate::sys::process::random().unwrap();
        let place = |rank| survivors(&secret, &[2], rank);
        let limit = Duration::from_secs(20);
        let never = || Err(Error::internal("only the first makes an id"));
        std::thread::scope(|scope| {
            let (listens, asked) = std::sync::mpsc::channel();
            let zero = scope.spawn(move || {
                let make = || {
                    // One has asked before this one answers.
                    asked.recv().unwrap();
                    Ok([9; 256])
                };
                place(0).meet_across(&HERE, make, &patience(limit))
            });
            let hello = [&secret[..], &1u32.to_le_bytes()].concat();
            let hello = encode_frame(Kind::Hello, 0, &hello);
            let stream = within(limit, || {
                let mut addresses = place(1).addresses(&HERE);
                addresses.find_map(|a| TcpStream::connect(a).ok())
            });
            (&stream).write_all(&hello).unwrap();
            drop(stream);
            let two = scope.spawn(|| place(2).meet_across(&HERE, never, &patience(limit)));
            std::thread::sleep(Duration::from_millis(30));
            listens.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(30));
            let one = place(1).meet_across(&HERE, never, &patience(limit));
            assert_eq!(one.unwrap(), [9; 256]);
            assert_eq!(two.join().unwrap().unwrap(), [9; 256]);
            assert_eq!(zero.join().unwrap().unwrap(), [9; 256]);
        });
    }

    #[test]
    fn an_id_that_cannot_be_made_is_an_error_of_all() {
        let secret: Secret = crate::sys::process::random().unwrap();
        let limit = Duration::from_secs(20);
        let errors = std::thread::scope(|scope| {
            let ranks = [0, 1, 2].map(|rank| {
                let secret = &secret;
                scope.spawn(move || {
                    let make = || Err(Error::new(Code::SystemError, "no descriptor is left"));
                    survivors(secret, &[5], rank).meet_across(&HERE, make, &patience(limit))
                })
            });
            ranks.map(|rank| rank.join().unwrap().unwrap_err())
        });
        for error in errors {
            assert!(error.text().contains("no descriptor is left"), "{error}");
        }
    }

    /// Whoever runs out of time first, also long before the one that knows.
    #[test]
    fn all_that_came_name_the_rank_that_did_not() {
        for (limits, missing) in [([150, 150, 0], 2), ([2000, 150, 0], 2), ([0, 150, 150], 0)] {
            let secret: Secret = crate::sys::process::random().unwrap();
            let started = Instant::now();
            let come = |rank: u32| {
                let patience = patience(Duration::from_millis(limits[rank as usize]));
                let secret = &secret;
                move || survivors(secret, &[3], rank).meet_across(&HERE, || Ok([9; 256]), &patience)
            };
            let errors: Vec<Error> = std::thread::scope(|scope| {
                let came = (0..3).filter(|rank| *rank != missing);
                let threads: Vec<_> = came.map(|rank| scope.spawn(come(rank))).collect();
                let ends = threads.into_iter().map(|t| t.join().unwrap().unwrap_err());
                ends.collect()
            });
            for error in &errors {
                assert_eq!(error.code(), Code::Timeout, "{error}");
                assert!(error.text().contains("flagosCommShrink"), "{error}");
            }
            let words = format!("missing: rank {missing} (pid {missing}), by");
            // The first one's time is over after rank 1 has given up.
            let told = errors.iter().filter(|error| error.text().contains(&words));
            assert_eq!(
                told.count(),
                if limits[0] == 2000 { 1 } else { 2 },
                "{limits:?} {errors:?}"
            );
            assert!(started.elapsed() < Duration::from_secs(5));
        }
    }
}
