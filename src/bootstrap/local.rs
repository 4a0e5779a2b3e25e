//! How the survivors of a communicator find each other again on one machine: an abstract unix name
//! that follows from the old secret and who is left out.
#![forbid(unsafe_code)]

use super::unique_id::Secret;
use crate::control::patience::{Impatience, Patience};
use crate::error::{Code, Error, Result};
use crate::sys::unix;
use crate::types::UNIQUE_ID_BYTES;
use std::time::{Duration, Instant};

/// How long one step may last before the patience is asked again.
const STEP: Duration = Duration::from_millis(20);

fn name(secret: &Secret, excluded: &[u32]) -> Vec<u8> {
    // FNV-1a over secret and ranks: the name must not show the secret, which others could read in
    // the list of sockets; the secret itself is the proof.
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let ranks = excluded.iter().flat_map(|r| r.to_le_bytes());
    for byte in secret.iter().copied().chain(ranks) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    format!("flagos-comm-shrink-{hash:016x}").into_bytes()
}

fn step(patience: &Patience) -> Result<Instant> {
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
        while served < nranks {
            let stream = match unix::accept(&listener, step(patience)?) {
                Ok(stream) => stream,
                Err(e) if e.code() == Code::Timeout => continue,
                Err(e) => return Err(e),
            };
            let limit = Instant::now() + Duration::from_secs(1);
            let mut proof = Secret::default();
            if unix::read_exact(&stream, &mut proof, limit).is_ok()
                && super::rendezvous::same_secret(&proof, secret)
                && unix::write_all(&stream, &id, limit).is_ok()
            {
                served += 1;
            }
        }
        return Ok(id);
    }
    loop {
        let until = step(patience)?;
        match unix::connect(&name, until) {
            Ok(stream) => {
                let limit = Instant::now() + patience.left().unwrap_or(Duration::from_secs(120));
                unix::write_all(&stream, secret, limit)?;
                let mut id = [0; UNIQUE_ID_BYTES];
                unix::read_exact(&stream, &mut id, limit)?;
                return Ok(id);
            }
            Err(e) if e.code() == Code::Timeout => {}
            Err(e) => return Err(e),
        }
    }
}
