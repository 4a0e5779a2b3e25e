//! How the survivors of a communicator find each other again on one machine: an abstract unix name
//! that follows from the old secret and who is left out.
#![forbid(unsafe_code)]

use super::unique_id::Secret;
use crate::control::patience::{Impatience, Patience};
use crate::error::{Code, Error, Result};
use crate::sys::unix;
use crate::types::UNIQUE_ID_BYTES;
use std::io::{ErrorKind, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

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

/// Until when the next step of a meeting may last.
pub(super) fn step(patience: &Patience) -> Result<Instant> {
    match patience.slice() {
        Ok(slice) => Ok(Instant::now() + slice.min(STEP)),
        Err(Impatience::Expired) => Err(Error::new(
            Code::Timeout,
            "timed out while the remaining ranks met for a shrink: all of them must call \
             flagosCommShrink with the same excluded ranks",
        )),
        Err(Impatience::Aborted) => Err(Error::new(Code::Aborted, "aborted during a shrink")),
    }
}

/// The new rank 0 makes an id and gives it to the others; every rank returns it.
pub(crate) fn exchange(
    secret: &Secret,
    excluded: &[u32],
    nranks: u32,
    rank: u32,
    make: impl FnOnce() -> Result<[u8; UNIQUE_ID_BYTES]>,
    patience: &Patience,
) -> Result<[u8; UNIQUE_ID_BYTES]> {
    let name = name(secret, excluded);
    if rank == 0 {
        let listener = unix::listen(&name)?;
        let id = make()?;
        let mut served = 1;
        let mut visitors = Visitors::default();
        while served < nranks {
            for stream in visitors.admit(&listener, secret, step(patience)?)? {
                let limit = Instant::now() + Duration::from_secs(1);
                if unix::write_all(&stream, &id, limit).is_ok() {
                    served += 1;
                }
            }
        }
        return Ok(id);
    }
    loop {
        let until = step(patience)?;
        match unix::connect(&name, until) {
            Ok(stream) => {
                unix::write_all(&stream, secret, step(patience)?)?;
                // In steps, so that an abort ends it.
                while !unix::readable(&stream, step(patience)?)? {}
                let mut id = [0; UNIQUE_ID_BYTES];
                let limit = Instant::now() + Duration::from_secs(1);
                unix::read_exact(&stream, &mut id, limit)?;
                return Ok(id);
            }
            Err(e) if e.code() == Code::Timeout => {}
            Err(e) => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::patience::AbortFlag;
    use std::io::Write;

    #[test]
    fn silent_and_foreign_visitors_hold_up_nobody() {
        let secret: Secret = crate::sys::process::random().unwrap();
        let name = name(&secret, &[3]);
        let patience = Patience::starting_now(Some(Duration::from_secs(20)), &AbortFlag::default());
        let started = Instant::now();
        let ids = std::thread::scope(|scope| {
            let zero = scope.spawn(|| exchange(&secret, &[3], 2, 0, || Ok([9; 256]), &patience));
            let until = Instant::now() + Duration::from_secs(10);
            let mut visitors = Vec::new();
            for number in 0..100 {
                let visitor = unix::connect(&name, until).unwrap();
                // None, too little, something else.
                let words = &[0; 16][..[0, 7, 16][number % 3]];
                (&visitor).write_all(words).unwrap();
                visitors.push(visitor);
            }
            let never = || Err(Error::internal("rank 1 makes no id"));
            let one = exchange(&secret, &[3], 2, 1, never, &patience);
            [zero.join().unwrap(), one]
        });
        assert_eq!(ids.map(Result::unwrap), [[9; 256]; 2]);
        assert!(started.elapsed() < Duration::from_secs(4));
    }
}
