//! How the survivors of a communicator find each other again across machines: the first of them listens on the address that
//! it had in the old control channel, at a port that follows from the old secret and who is left out. Somebody else may
//! have that port, so there are several, which all try in the same order.
#![forbid(unsafe_code)]

use super::local::{step, token};
use super::rendezvous::same_secret;
use super::unique_id::{self, Secret};
use crate::control::patience::Patience;
use crate::control::strangers::Strangers;
use crate::control::wire::{Connection, Kind, Reader, Writer, decode_error, encode_error};
use crate::error::{Code, Error, Result};
use crate::sys::net::{listen, poll};
use crate::types::UNIQUE_ID_BYTES;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

/// So many ports are tried, below those that the kernel gives to whoever wants any.
const PORTS: u64 = 16;
const FIRST_PORT: u64 = 10_240;
const LAST_PORT: u64 = 32_767;
/// How long one connection, and an answer on it, may take before the next port is tried.
const ATTEMPT: Duration = Duration::from_millis(500);

/// The survivors, and this rank among them.
pub(crate) struct Survivors<'a> {
    pub secret: &'a Secret,
    /// In rising order.
    pub excluded: &'a [u32],
    pub rank: u32,
    pub nranks: u32,
    /// Where the first of them is, and the interface by which this rank reaches link-local addresses.
    pub first: IpAddr,
    pub scope: u32,
}

impl Survivors<'_> {
    fn addresses(&self) -> impl Iterator<Item = SocketAddr> + use<> {
        let seed = token(self.secret, self.excluded);
        let (first, scope) = (self.first, self.scope);
        (0..PORTS).map(move |at| {
            // Steps by an odd number: no port comes twice.
            let port = FIRST_PORT + (seed % 65_521 + at * 1009) % (LAST_PORT - FIRST_PORT + 1);
            unique_id::socket_address(first, scope, port as u16)
        })
    }

    /// The first makes an id and gives it to the others; every rank returns it.
    pub(crate) fn exchange(
        &self,
        make: impl FnOnce() -> Result<[u8; UNIQUE_ID_BYTES]>,
        patience: &Patience,
    ) -> Result<[u8; UNIQUE_ID_BYTES]> {
        match self.rank {
            0 => self.serve(make, patience),
            _ => self.ask(patience),
        }
    }

    fn listen(&self) -> Result<TcpListener> {
        let mut last = None;
        for address in self.addresses() {
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
                self.first,
                why.unwrap_or_default()
            ),
        ))
    }

    fn serve(
        &self,
        make: impl FnOnce() -> Result<[u8; UNIQUE_ID_BYTES]>,
        patience: &Patience,
    ) -> Result<[u8; UNIQUE_ID_BYTES]> {
        let listener = self.listen()?;
        let made = make();
        let (kind, answer) = match &made {
            Ok(id) => (Kind::Welcome, id.to_vec()),
            Err(error) => (Kind::Fail, encode_error(error)),
        };
        let mut strangers = Strangers::default();
        // Those that have said that they have it. One that has lost patience with an answer has left its connection, and
        // comes again.
        let mut served = vec![false; self.nranks as usize - 1];
        while served.contains(&false) {
            let until = step(patience)?;
            let mut entries: Vec<_> = strangers.poll_entries(&listener).collect();
            poll(
                &mut entries,
                until.saturating_duration_since(Instant::now()),
            );
            let accepted = strangers.accept(&listener);
            accepted.map_err(|e| Error::system("no connection can be accepted", e))?;
            for (frame, mut connection) in strangers.hear() {
                let mut reader = Reader(&frame.body);
                let proof: Option<Secret> = reader.fixed();
                let proved = proof.is_some_and(|proof| same_secret(&proof, self.secret));
                let place = reader.u32().and_then(|rank| rank.checked_sub(1));
                let place = place.and_then(|at| served.get_mut(at as usize));
                match place {
                    Some(place) if proved && frame.kind == Kind::Hello => {
                        let attempt = patience.within(ATTEMPT);
                        let sent = connection.send(kind, 0, &answer, &attempt);
                        let heard = sent.and_then(|()| connection.receive(&attempt));
                        *place |= heard.is_ok_and(|frame| frame.kind == Kind::Join);
                    }
                    _ => log::debug!("a connection without our secret was closed"),
                }
            }
        }
        made
    }

    fn ask(&self, patience: &Patience) -> Result<[u8; UNIQUE_ID_BYTES]> {
        loop {
            let until = step(patience)?;
            for address in self.addresses() {
                step(patience)?;
                if let Some(answer) = self.ask_at(&address, patience) {
                    return answer;
                }
            }
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
        }
    }

    /// What the first answers, if it listens there; `None`: nobody does, or somebody else.
    fn ask_at(
        &self,
        address: &SocketAddr,
        patience: &Patience,
    ) -> Option<Result<[u8; UNIQUE_ID_BYTES]>> {
        let mut connection = Connection::connect(address, ATTEMPT, patience).ok()?;
        let mut hello = Writer::default();
        hello.fixed(self.secret).u32(self.rank);
        let attempt = patience.within(ATTEMPT);
        let sent = connection.send(Kind::Hello, 0, &hello.0, &attempt);
        let frame = sent.and_then(|()| connection.receive(&attempt)).ok()?;
        let answer = match frame.kind {
            Kind::Welcome => Ok(frame.body.try_into().ok()?),
            Kind::Fail => {
                let what = "the first of the remaining ranks can't begin a shrink";
                Err(decode_error(&frame.body).context(what))
            }
            _ => return None,
        };
        // It waits for that, as a rank that has gone meanwhile would come again.
        connection.send(Kind::Join, 0, &[], &attempt).ok()?;
        Some(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::patience::AbortFlag;
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpStream};

    fn patience(limit: Duration) -> Patience {
        Patience::starting_now(Some(limit), &AbortFlag::default())
    }

    fn survivors<'a>(secret: &'a Secret, excluded: &'a [u32], rank: u32) -> Survivors<'a> {
        Survivors {
            secret,
            excluded,
            rank,
            nranks: 3,
            first: Ipv4Addr::LOCALHOST.into(),
            scope: 0,
        }
    }

    #[test]
    fn ports_are_apart_and_depend_on_who_is_left_out() {
        let ports = |secret: &Secret, excluded: &[u32]| -> Vec<u16> {
            let all = survivors(secret, excluded, 0).addresses();
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
        let taken = place(0).addresses().next().unwrap();
        let taken = TcpListener::bind(taken);
        let limit = Duration::from_secs(20);
        let never = || Err(Error::internal("only the first makes an id"));
        let ids = std::thread::scope(|scope| {
            let zero = scope.spawn(|| place(0).exchange(|| Ok([9; 256]), &patience(limit)));
            let server = place(0).addresses().nth(1).unwrap();
            let strangers: Vec<TcpStream> = (0..20)
                .map(|number| {
                    let stream = loop {
                        match TcpStream::connect(server) {
                            Ok(stream) => break stream,
                            Err(_) => std::thread::sleep(Duration::from_millis(2)),
                        }
                    };
                    // None, too little, and all that rank 1 says, with another secret.
                    let body = [&[7; 16][..], &1u32.to_le_bytes()].concat();
                    let frame = crate::control::wire::encode_frame(Kind::Hello, 0, &body);
                    let words = [&[][..], &frame[..7], &frame[..]][number % 3];
                    (&stream).write_all(words).unwrap();
                    stream
                })
                .collect();
            let one = scope.spawn(|| place(1).exchange(never, &patience(limit)));
            let two = place(2).exchange(never, &patience(limit));
            let ids = [zero.join().unwrap(), one.join().unwrap(), two];
            drop(strangers);
            ids
        });
        drop(taken);
        assert_eq!(ids.map(Result::unwrap), [[9; 256]; 3]);
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
                place(0).exchange(make, &patience(limit))
            });
            let hello = [&secret[..], &1u32.to_le_bytes()].concat();
            let hello = crate::control::wire::encode_frame(Kind::Hello, 0, &hello);
            let stream = loop {
                let mut addresses = place(1).addresses();
                if let Some(stream) = addresses.find_map(|a| TcpStream::connect(a).ok()) {
                    break stream;
                }
                std::thread::sleep(Duration::from_millis(2));
            };
            (&stream).write_all(&hello).unwrap();
            drop(stream);
            listens.send(()).unwrap();
            let two = scope.spawn(|| place(2).exchange(never, &patience(limit)));
            assert_eq!(two.join().unwrap().unwrap(), [9; 256]);
            assert_eq!(
                place(1).exchange(never, &patience(limit)).unwrap(),
                [9; 256]
            );
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
                    survivors(secret, &[5], rank).exchange(make, &patience(limit))
                })
            });
            ranks.map(|rank| rank.join().unwrap().unwrap_err())
        });
        let codes = errors.each_ref().map(Error::code);
        assert_eq!(codes, [Code::SystemError; 3]);
        for error in errors {
            assert!(error.text().contains("no descriptor is left"), "{error}");
        }
    }

    #[test]
    fn whoever_does_not_come_is_an_error_at_the_deadline() {
        let secret: Secret = crate::sys::process::random().unwrap();
        let started = Instant::now();
        for rank in 0..2 {
            let limit = patience(Duration::from_millis(150));
            let error = survivors(&secret, &[3], rank).exchange(|| Ok([9; 256]), &limit);
            let error = error.unwrap_err();
            assert_eq!(error.code(), Code::Timeout);
            assert!(error.text().contains("flagosCommShrink"), "{error}");
        }
        assert!(started.elapsed() < Duration::from_secs(5));
    }
}
