//! The host tier: shared memory for the ranks of one machine.

use super::tiers::{init_vote, vote_code, vote_texts};
use crate::bootstrap::rendezvous;
use crate::bootstrap::unique_id::Secret;
use crate::comm::agree::{self, RankInfo};
use crate::comm::{Backend, Comm};
use crate::control::channel::Channel;
use crate::control::patience::Patience;
use crate::control::wire::{Reader, Writer};
use crate::error::{Code, Error, Result};
use crate::host::shm::ShmEngine;
use crate::sys::memory::Segment;
use crate::sys::{process, unix};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) fn host(
    comm: &Comm,
    secret: &Secret,
    channel: &mut Channel,
    infos: &[RankInfo],
    patience: &Patience,
    code: &mut Code,
) -> Result<std::result::Result<Backend, String>> {
    let elsewhere: Vec<u32> = (0..comm.nranks())
        .filter(|r| infos[*r as usize].machine != infos[0].machine)
        .collect();
    if !elsewhere.is_empty() {
        return Ok(Err(format!(
            "the ranks are on several machines (rank {} is not where rank 0 is), and this version's \
             host tier serves one",
            rendezvous::ranks_text(elsewhere)
        )));
    }
    let bytes = match ShmEngine::segment_bytes(comm.nranks()) {
        Ok(bytes) => bytes,
        Err(error) => {
            *code = error.code();
            return Ok(Err(error.text().to_owned()));
        }
    };
    // Rank 0 makes the segment and says under which name it can be had.
    let mut made = None;
    let mut attached: Option<ShmEngine> = None;
    let mut offer: Result<Vec<u8>> = Ok(Vec::new());
    if comm.rank() == 0 {
        offer = (|| {
            let token: [u8; 16] = process::random()
                .map_err(|e| Error::system("the kernel gave no random bytes", e))?;
            let name = [&b"flagos-comm-"[..], &token].concat();
            let (segment, fd) = Segment::create(bytes)?;
            let listener = unix::listen(&name)?;
            attached = Some(ShmEngine::attach(Arc::new(segment), 0, comm.nranks())?);
            made = Some((fd, listener));
            Ok(name)
        })();
    }
    let mut writer = Writer::default();
    match &offer {
        Ok(name) => writer.u32(0).bytes(name),
        Err(error) => writer
            .u32(error.code() as u32)
            .bytes(error.text().as_bytes()),
    };
    let offers = channel.allgather("the offer of shared memory", &writer.0, patience)?;
    let mut reader = Reader(offers.of(0));
    let offer_code = reader.u32().unwrap_or(Code::InternalError as u32);
    let name = reader.bytes().unwrap_or_default().to_vec();
    if offer_code != 0 {
        *code = Code::from_raw(offer_code as i32).unwrap_or(Code::InternalError);
        return Ok(Err(format!("rank 0: {}", String::from_utf8_lossy(&name))));
    }

    let mut served = 1;
    let mut ready = || {
        let result: Result<()> = (|| match &made {
            Some((fd, listener)) => {
                while served < comm.nranks() {
                    match unix::accept(listener, Instant::now()) {
                        Ok(stream) => {
                            served += u32::from(hand_over(&stream, fd.as_fd(), secret)?);
                        }
                        Err(e) if e.code() == Code::Timeout => {
                            return Err(Error::new(Code::InProgress, ""));
                        }
                        Err(e) => return Err(e),
                    }
                }
                Ok(())
            }
            None => {
                let limit = patience.left().unwrap_or(Duration::from_secs(120));
                let segment = fetch(&name, secret, bytes, Instant::now() + limit)?;
                attached = Some(ShmEngine::attach(
                    Arc::new(segment),
                    comm.rank(),
                    comm.nranks(),
                )?);
                Ok(())
            }
        })();
        match &result {
            Err(e) if e.code() == Code::InProgress => None,
            _ => Some(init_vote(&result)),
        }
    };
    let votes = channel.allgather_when(
        "the sharing of memory",
        &mut ready,
        &|v| vote_code(v) != 0,
        patience,
    )?;
    let texts = vote_texts(&votes);
    let failed = votes.iter().flatten().map(vote_code).find(|c| *c != 0);
    if let Some(first) = failed {
        *code = Code::from_raw(first as i32).unwrap_or(Code::InternalError);
    }
    if let Some(reasons) = agree::reasons(infos, texts.iter().map(String::as_str)) {
        return Ok(Err(reasons));
    }
    let engine = attached.ok_or_else(|| Error::internal("no shared memory after a good vote"))?;
    // All have attached: where each may run is known before the first collective.
    engine.choose_wait();
    Ok(Ok(Backend::Host(Arc::new(engine))))
}

/// How long a connection to the segment's socket may take to prove that it belongs here.
const PROOF_LIMIT: Duration = Duration::from_secs(5);

/// Gives the segment to a connection that knows the secret; `false`: it does not.
fn hand_over(
    stream: &std::os::unix::net::UnixStream,
    fd: std::os::fd::BorrowedFd<'_>,
    secret: &Secret,
) -> Result<bool> {
    let deadline = Instant::now() + PROOF_LIMIT;
    let mut proof = Secret::default();
    if unix::read_exact(stream, &mut proof, deadline).is_err()
        || !rendezvous::same_secret(&proof, secret)
    {
        log::debug!("a local connection without our secret was closed");
        return Ok(false);
    }
    unix::send_fd(stream.as_fd(), fd, deadline)?;
    Ok(true)
}

fn fetch(name: &[u8], secret: &Secret, bytes: usize, deadline: Instant) -> Result<Segment> {
    let hint = "shared memory can't be had from rank 0: the ranks may be in different network \
                namespaces (containers)";
    let stream = unix::connect(name, deadline.min(Instant::now() + PROOF_LIMIT))
        .map_err(|e| e.context(hint))?;
    unix::write_all(&stream, secret, deadline)?;
    let fd = unix::recv_fd(stream.as_fd(), deadline)?;
    Segment::open(fd.as_fd(), bytes)
}
