//! The control channel of one communicator: a star around rank 0, open as long as the communicator.
//!
//! Every exchange is an all-gather of small payloads. A rank that fails still takes part, with a
//! payload that says so; a rank that is gone, late or aborted ends the exchange on all ranks with
//! the same error.
#![forbid(unsafe_code)]

use super::patience::{AbortFlag, Impatience, Patience};
use super::strangers::Strangers;
use super::wire::{Connection, Frame, Kind, Reader, WireError, Writer, decode_error, encode_error};
use crate::bootstrap::rendezvous::{Listener, ranks_text, same_secret};
use crate::bootstrap::unique_id::Secret;
use crate::error::{Code, Error, Result};
use crate::sys::net::{PollEntry, poll};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// How much longer a rank waits for the hub's verdict after its own deadline.
const GRACE: Duration = Duration::from_millis(400);
/// Time for a frame that is only a courtesy.
const COURTESY: Duration = Duration::from_millis(300);

/// How a rank stands to this one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Peer {
    #[default]
    Here,
    /// Destroyed its communicator in order.
    Left,
    /// Ended without goodbye; the text says how we know.
    Dead(String),
}

#[derive(Debug)]
enum Role {
    /// Rank 0: one connection per other rank; `None` after it is gone.
    Hub(Vec<Option<Connection>>),
    /// Every other rank: the connection to rank 0.
    Spoke(Option<Connection>),
}

/// One rank's end of the channel.
#[derive(Debug)]
pub(crate) struct Channel {
    rank: u32,
    nranks: u32,
    role: Role,
    tag: u32,
    peers: Vec<Peer>,
    /// "host, pid" of each rank, once they are known.
    names: Vec<String>,
    /// The first failure; every later exchange returns it.
    failed: Option<Error>,
    /// Parts of the running or a later exchange that came early, per rank.
    early: Vec<Option<Frame>>,
}

/// One rank's payload in an exchange that ended early may be missing.
pub(crate) type Gathered = Vec<Option<Vec<u8>>>;

fn impatience(end: Impatience, phase: &str) -> Error {
    match end {
        Impatience::Aborted => Error::new(Code::Aborted, format!("aborted during {phase}")),
        Impatience::Expired => Error::new(Code::Timeout, format!("timed out during {phase}")),
    }
}

impl Channel {
    fn new(rank: u32, nranks: u32, role: Role) -> Channel {
        let n = nranks as usize;
        Channel {
            rank,
            nranks,
            role,
            tag: 0,
            peers: vec![Peer::Here; n],
            names: vec![String::new(); n],
            failed: None,
            early: vec![None; n],
        }
    }

    /// Rank 0: waits for every other rank to connect.
    pub(crate) fn accept(
        listener: &Listener,
        secret: &Secret,
        nranks: u32,
        patience: &Patience,
    ) -> Result<Channel> {
        let phase = "the connecting of all ranks to rank 0";
        let mut links: Vec<Option<Connection>> = (0..nranks).map(|_| None).collect();
        let mut strangers = Strangers::default();
        listener
            .listener
            .set_nonblocking(true)
            .map_err(|e| Error::system("the hub's socket can't be made non-blocking", e))?;
        while links.iter().skip(1).any(Option::is_none) {
            let slice = match patience.slice() {
                Ok(slice) => slice,
                Err(end) => {
                    let missing = (1..nranks)
                        .filter(|r| links[*r as usize].is_none())
                        .collect::<Vec<_>>();
                    let error = impatience(end, phase);
                    let error = Error::new(
                        error.code(),
                        format!(
                            "{}; missing: rank {} of {nranks}",
                            error.text(),
                            ranks_text(missing)
                        ),
                    );
                    // Those that are here wait for the first exchange.
                    Channel::new(0, nranks, Role::Hub(links)).tell_failure(&error);
                    return Err(error);
                }
            };
            let mut entries = vec![PollEntry::read(listener.listener.as_raw_fd())];
            entries.extend(strangers.poll_entries());
            poll(&mut entries, slice);
            strangers.accept(&listener.listener);
            for (frame, mut connection) in strangers.hear() {
                let mut reader = Reader(&frame.body);
                let known = frame.kind == Kind::Join
                    && reader.fixed().is_some_and(|s| same_secret(&s, secret));
                match reader.u32() {
                    Some(rank) if known && (1..nranks).contains(&rank) => {
                        connection.trust();
                        links[rank as usize] = Some(connection);
                    }
                    _ => log::debug!("a connection without our secret was closed"),
                }
            }
        }
        Ok(Channel::new(0, nranks, Role::Hub(links)))
    }

    /// Any other rank: connects to rank 0.
    pub(crate) fn join(
        hub: &[SocketAddr],
        secret: &Secret,
        rank: u32,
        nranks: u32,
        patience: &Patience,
    ) -> Result<Channel> {
        let mut tried = Vec::new();
        for address in hub {
            let limit = patience.left().unwrap_or(Duration::from_secs(10));
            if limit.is_zero() {
                break;
            }
            match Connection::connect(address, limit, patience) {
                Ok(mut connection) => {
                    let mut writer = Writer::default();
                    writer.fixed(secret).u32(rank);
                    match connection.send(Kind::Join, 0, &writer.0, patience) {
                        Ok(()) => {
                            let role = Role::Spoke(Some(connection));
                            return Ok(Channel::new(rank, nranks, role));
                        }
                        Err(e) => tried.push(format!("{address}: {e:?}")),
                    }
                }
                Err(e) => tried.push(format!("{address}: {e}")),
            }
        }
        if patience.slice() == Err(Impatience::Aborted) {
            let text = "aborted while connecting to rank 0";
            return Err(Error::new(Code::Aborted, text));
        }
        if patience.left().is_some_and(|left| left.is_zero()) {
            let mut text =
                String::from("timed out before rank 0 could be asked for a control connection");
            if !tried.is_empty() {
                text += &format!(" ({})", tried.join("; "));
            }
            return Err(Error::new(Code::Timeout, text));
        }
        Err(Error::new(
            Code::RemoteError,
            format!(
                "rank 0 can't be reached on the control channel ({})",
                tried.join("; ")
            ),
        ))
    }

    /// Learns how to call the ranks in error texts ("host h, pid 7").
    pub(crate) fn set_names(&mut self, names: Vec<String>) {
        self.names = names;
    }

    /// "rank 3 (host h, pid 7)".
    pub(crate) fn who(&self, rank: u32) -> String {
        match self.names.get(rank as usize).filter(|n| !n.is_empty()) {
            Some(name) => format!("rank {rank} ({name})"),
            None => format!("rank {rank}"),
        }
    }

    /// How a rank stands, as far as the channel has told.
    pub(crate) fn peer(&self, rank: u32) -> &Peer {
        &self.peers[rank as usize]
    }

    /// Every rank's payload, in rank order.
    pub(crate) fn allgather(
        &mut self,
        phase: &str,
        payload: &[u8],
        patience: &Patience,
    ) -> Result<Vec<Vec<u8>>> {
        let mut own = Some(payload.to_vec());
        let all = self.allgather_when(phase, &mut || own.take(), &|_| false, patience)?;
        Ok(all.into_iter().map(Option::unwrap_or_default).collect())
    }

    /// As [`Channel::allgather`], for a payload that becomes ready during the wait (`ready` is
    /// asked until it gives one). Ends as soon as one payload is `fatal`; those that are not in by
    /// then are `None` on all ranks.
    pub(crate) fn allgather_when(
        &mut self,
        phase: &str,
        ready: &mut dyn FnMut() -> Option<Vec<u8>>,
        fatal: &dyn Fn(&[u8]) -> bool,
        patience: &Patience,
    ) -> Result<Gathered> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.tag = self.tag.wrapping_add(1);
        let result = match self.role {
            Role::Hub(_) => self.gather_as_hub(phase, ready, fatal, patience),
            Role::Spoke(_) => self.gather_as_spoke(phase, ready, patience),
        };
        if let Err(error) = &result {
            self.failed = Some(error.clone());
        }
        result
    }

    fn links(&mut self) -> &mut [Option<Connection>] {
        match &mut self.role {
            Role::Hub(links) => links,
            Role::Spoke(link) => std::slice::from_mut(link),
        }
    }

    fn gather_as_hub(
        &mut self,
        phase: &str,
        ready: &mut dyn FnMut() -> Option<Vec<u8>>,
        fatal: &dyn Fn(&[u8]) -> bool,
        patience: &Patience,
    ) -> Result<Gathered> {
        let n = self.nranks as usize;
        let mut parts: Gathered = vec![None; n];
        let mut slice;
        loop {
            if parts[0].is_none() {
                parts[0] = ready();
            }
            let own_pending = parts[0].is_none();
            for (rank, part) in parts.iter_mut().enumerate().skip(1) {
                if part.is_some() {
                    continue;
                }
                let early = self.early[rank].take();
                let frame = match &mut self.role {
                    _ if early.is_some() => Ok(early),
                    Role::Hub(links) => match &mut links[rank] {
                        Some(link) => link.try_receive(),
                        None => Err(WireError::Closed),
                    },
                    Role::Spoke(_) => return Err(Error::internal("hub without links")),
                };
                match frame {
                    Ok(Some(frame)) if frame.kind == Kind::Part && frame.tag == self.tag => {
                        let mut reader = Reader(&frame.body);
                        let theirs = reader.text().unwrap_or_default();
                        if theirs != phase {
                            let error = Error::invalid_usage(format!(
                                "the ranks make different calls: {} is at {theirs}, but {} is at \
                                 {phase}",
                                self.who(rank as u32),
                                self.who(0)
                            ));
                            self.tell_failure(&error);
                            return Err(error);
                        }
                        *part = Some(reader.0.to_vec());
                    }
                    Ok(Some(frame)) if frame.kind == Kind::Abort => {
                        let error = decode_error(&frame.body);
                        self.tell_failure(&error);
                        return Err(error);
                    }
                    Ok(Some(frame)) if frame.kind == Kind::Bye => {
                        self.peers[rank] = Peer::Left;
                        self.links()[rank] = None;
                        let error = Error::new(
                            Code::RemoteError,
                            format!(
                                "{} left (destroyed its communicator) during {phase}",
                                self.who(rank as u32)
                            ),
                        );
                        self.tell_failure(&error);
                        return Err(error);
                    }
                    // A part of an exchange that ended early.
                    Ok(_) => {}
                    Err(_) => {
                        let who = self.who(rank as u32);
                        let text = match &self.peers[rank] {
                            Peer::Left => {
                                format!(
                                    "{who} has left (destroyed its communicator) before {phase}"
                                )
                            }
                            Peer::Dead(text) => text.clone(),
                            Peer::Here => format!(
                                "{who} closed its control connection during {phase}: it exited or \
                                 was killed"
                            ),
                        };
                        self.peers[rank] = Peer::Dead(text.clone());
                        self.links()[rank] = None;
                        let error = Error::new(Code::RemoteError, text);
                        self.tell_failure(&error);
                        return Err(error);
                    }
                }
            }
            let ends = parts.iter().flatten().any(|part| fatal(part));
            if ends || parts.iter().all(Option::is_some) {
                break;
            }
            match patience.slice() {
                Ok(limit) => {
                    slice = if own_pending {
                        limit.min(OWN_PENDING)
                    } else {
                        limit
                    }
                }
                Err(end) => {
                    let missing =
                        ranks_text((0..self.nranks).filter(|r| parts[*r as usize].is_none()));
                    let code = impatience(end, phase).code();
                    let what = if end == Impatience::Expired {
                        "timed out"
                    } else {
                        "aborted"
                    };
                    let error = Error::new(
                        code,
                        format!("{what} during {phase}; missing: rank {missing} of {n}"),
                    );
                    self.tell_failure(&error);
                    return Err(error);
                }
            }
            let mut entries: Vec<PollEntry> = match &self.role {
                Role::Hub(links) => links
                    .iter()
                    .zip(&parts)
                    .filter(|(_, p)| p.is_none())
                    .filter_map(|(l, _)| l.as_ref())
                    .map(|l| PollEntry::read(l.fd()))
                    .collect(),
                Role::Spoke(_) => Vec::new(),
            };
            poll(&mut entries, slice);
        }
        let mut writer = Writer::default();
        for part in &parts {
            match part {
                Some(bytes) => writer.u32(1).bytes(bytes),
                None => writer.u32(0),
            };
        }
        let tag = self.tag;
        let send = patience.with_grace(COURTESY);
        for link in self.links().iter_mut().flatten() {
            // A rank that is gone by now is found by the next exchange.
            let _ = link.send(Kind::Whole, tag, &writer.0, &send);
        }
        Ok(parts)
    }

    fn gather_as_spoke(
        &mut self,
        phase: &str,
        ready: &mut dyn FnMut() -> Option<Vec<u8>>,
        patience: &Patience,
    ) -> Result<Gathered> {
        // The hub names who is missing; its word is worth a little more waiting.
        let waiting = patience.with_grace(GRACE);
        let tag = self.tag;
        let hub = self.who(0);
        let mut sent = false;
        loop {
            let mut limit = match waiting.slice() {
                Ok(limit) => limit,
                Err(end) => {
                    let error = impatience(end, phase);
                    if end == Impatience::Aborted {
                        self.tell_failure(&error);
                    }
                    return Err(Error::new(
                        error.code(),
                        format!("{}; {hub} did not answer", error.text()),
                    ));
                }
            };
            let Role::Spoke(Some(link)) = &mut self.role else {
                return Err(Error::new(
                    Code::RemoteError,
                    format!("the control connection to {hub} is gone"),
                ));
            };
            let gone = |phase: &str| {
                Error::new(
                    Code::RemoteError,
                    format!(
                        "{hub} closed its control connection during {phase}: it exited, was \
                         killed or gave up"
                    ),
                )
            };
            if !sent {
                if let Some(own) = ready() {
                    let mut writer = Writer::default();
                    writer.bytes(phase.as_bytes()).fixed(&own);
                    match link.send(Kind::Part, tag, &writer.0, patience) {
                        // What the hub had to say may still be waiting to be read.
                        Ok(()) | Err(WireError::Closed) => sent = true,
                        Err(WireError::Impatient(end)) => return Err(impatience(end, phase)),
                        Err(_) => return Err(gone(phase)),
                    }
                } else {
                    limit = limit.min(OWN_PENDING);
                }
            }
            match link.try_receive() {
                Ok(Some(frame)) => match frame.kind {
                    Kind::Whole if frame.tag == tag => {
                        return decode_whole(&frame.body, self.nranks)
                            .ok_or_else(|| Error::internal("the hub's answer can't be read"));
                    }
                    Kind::Fail | Kind::Abort => return Err(decode_error(&frame.body)),
                    Kind::Bye | Kind::Dead => self.note(&frame),
                    _ => {}
                },
                Ok(None) => poll(&mut [PollEntry::read(link.fd())], limit),
                Err(_) => {
                    let error = gone(phase);
                    self.peers[0] = Peer::Dead(error.text().to_owned());
                    return Err(error);
                }
            }
        }
    }

    /// Takes note of what the hub says about another rank.
    fn note(&mut self, frame: &Frame) {
        let mut reader = Reader(&frame.body);
        let Some(rank) = reader
            .u32()
            .map(|r| r as usize)
            .filter(|r| *r < self.peers.len())
        else {
            return;
        };
        self.peers[rank] = match frame.kind {
            Kind::Dead => Peer::Dead(reader.text().unwrap_or_default()),
            _ => Peer::Left,
        };
    }

    fn tell_failure(&mut self, error: &Error) {
        let quick = Patience::starting_now(Some(COURTESY), &AbortFlag::default());
        let body = encode_error(error);
        let kind = if matches!(self.role, Role::Hub(_)) {
            Kind::Fail
        } else {
            Kind::Abort
        };
        for link in self.links().iter_mut().flatten() {
            let _ = link.send(kind, 0, &body, &quick);
        }
    }

    /// Looks, without waiting, at what came: news of other ranks, an abort, a closed connection.
    /// The error is the first failure that concerns the whole communicator.
    pub(crate) fn look(&mut self) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let is_hub = matches!(self.role, Role::Hub(_));
        for rank in 0..self.nranks {
            let index = if is_hub { rank as usize } else { 0 };
            let heard = match self.links().get_mut(index).and_then(Option::as_mut) {
                Some(link) => link.try_receive(),
                None => Ok(None),
            };
            match heard {
                Ok(None) => {}
                Ok(Some(frame)) => self.heard(if is_hub { rank } else { 0 }, frame)?,
                Err(_) if !is_hub && self.peers[0] == Peer::Left => self.links()[0] = None,
                Err(_) => {
                    let gone = if is_hub { rank } else { 0 };
                    self.links()[index] = None;
                    let text = format!(
                        "{} closed its control connection without saying goodbye: it exited or was killed",
                        self.who(gone)
                    );
                    log::warn!("{text}");
                    self.peers[gone as usize] = Peer::Dead(text.clone());
                    self.relay(Kind::Dead, gone, &text);
                }
            }
            if !is_hub {
                break;
            }
        }
        Ok(())
    }

    /// Whether no rank is known to have left or died.
    pub(crate) fn all_here(&self) -> bool {
        self.peers.iter().all(|peer| *peer == Peer::Here)
    }

    /// The first rank that is known to have died, as an error.
    pub(crate) fn first_dead(&self) -> Result<()> {
        match self.peers.iter().find_map(|p| {
            if let Peer::Dead(text) = p {
                Some(text)
            } else {
                None
            }
        }) {
            Some(text) => Err(Error::new(Code::RemoteError, text.clone())),
            None => Ok(()),
        }
    }

    fn heard(&mut self, from: u32, frame: Frame) -> Result<()> {
        match frame.kind {
            Kind::Bye if frame.body.is_empty() => {
                self.peers[from as usize] = Peer::Left;
                if matches!(self.role, Role::Hub(_)) {
                    self.links()[from as usize] = None;
                    self.relay(Kind::Bye, from, "");
                }
            }
            Kind::Bye | Kind::Dead => self.note(&frame),
            Kind::Part => self.early[from as usize] = Some(frame),
            Kind::Abort | Kind::Fail => {
                let error = decode_error(&frame.body);
                if matches!(self.role, Role::Hub(_)) {
                    self.tell_failure(&error);
                }
                self.failed = Some(error.clone());
                return Err(error);
            }
            _ => {}
        }
        Ok(())
    }

    fn relay(&mut self, kind: Kind, about: u32, text: &str) {
        if !matches!(self.role, Role::Hub(_)) {
            return;
        }
        let quick = Patience::starting_now(Some(COURTESY), &AbortFlag::default());
        let mut writer = Writer::default();
        writer.u32(about).bytes(text.as_bytes());
        for link in self.links().iter_mut().flatten() {
            let _ = link.send(kind, 0, &writer.0, &quick);
        }
    }

    /// Tells the others that this rank's communicator was aborted.
    pub(crate) fn announce_abort(&mut self, text: &str) {
        let error = Error::new(
            Code::RemoteError,
            format!("{} aborted the communicator{text}", self.who(self.rank)),
        );
        let quick = Patience::starting_now(Some(COURTESY), &AbortFlag::default());
        let body = encode_error(&error);
        for link in self.links().iter_mut().flatten() {
            let _ = link.send(Kind::Abort, 0, &body, &quick);
        }
    }

    /// Says goodbye in order and closes the connections.
    pub(crate) fn leave(&mut self) {
        let quick = Patience::starting_now(Some(COURTESY), &AbortFlag::default());
        for link in self.links().iter_mut().flatten() {
            let _ = link.send(Kind::Bye, 0, &[], &quick);
        }
        self.links().fill_with(|| None);
    }
}

/// While its own payload is not ready, an exchange looks this often whether it is.
const OWN_PENDING: Duration = Duration::from_millis(1);

pub(crate) fn decode_whole(body: &[u8], nranks: u32) -> Option<Gathered> {
    let mut reader = Reader(body);
    (0..nranks)
        .map(|_| match reader.u32()? {
            0 => Some(None),
            _ => Some(Some(reader.bytes()?.to_vec())),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::interface::{Family, Filter};
    use crate::bootstrap::rendezvous::listen;
    use std::time::Instant;

    const SECRET: Secret = [9; 16];

    fn patience(ms: u64) -> Patience {
        Patience::starting_now(Some(Duration::from_millis(ms)), &AbortFlag::default())
    }

    fn ranks<R: Send>(n: u32, body: impl Fn(u32, Channel) -> R + Sync) -> Vec<R> {
        let hub = listen(Some(&Filter::parse("test", "lo")), Family::V4).unwrap();
        let addresses = hub.addresses.clone();
        let (body, hub, addresses) = (&body, &hub, &addresses);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..n)
                .map(|rank| {
                    scope.spawn(move || {
                        let abort = AbortFlag::default();
                        let limit = Patience::starting_now(Some(Duration::from_secs(10)), &abort);
                        let mut channel = if rank == 0 {
                            Channel::accept(hub, &SECRET, n, &limit).unwrap()
                        } else {
                            Channel::join(addresses, &SECRET, rank, n, &limit).unwrap()
                        };
                        channel.set_names((0..n).map(|r| format!("pid {r}")).collect());
                        body(rank, channel)
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    #[test]
    fn allgather_gives_every_payload_in_rank_order() {
        for n in [1, 2, 5, 17] {
            let all = ranks(n, |rank, mut channel| {
                for round in 0..50u32 {
                    let own = vec![rank as u8; (rank + round) as usize];
                    let parts = channel.allgather("a test", &own, &patience(5000)).unwrap();
                    for (r, part) in parts.iter().enumerate() {
                        assert_eq!(*part, vec![r as u8; r + round as usize]);
                    }
                }
                true
            });
            assert_eq!(all.len(), n as usize);
        }
    }

    #[test]
    fn a_late_rank_is_named_on_all_others() {
        let ends = ranks(3, |rank, mut channel| {
            if rank == 2 {
                std::thread::sleep(Duration::from_millis(900));
                return None;
            }
            Some(
                channel
                    .allgather("the vote", b"x", &patience(200))
                    .unwrap_err(),
            )
        });
        for error in ends.into_iter().flatten() {
            assert_eq!(error.code(), Code::Timeout);
            assert!(
                error.text().contains("the vote; missing: rank 2 of 3"),
                "{error}"
            );
        }
    }

    #[test]
    fn ranks_that_have_connected_hear_of_one_that_never_does() {
        let filter = Filter::parse("test", "lo");
        let hub = listen(Some(&filter), Family::Any).unwrap();
        let errors = std::thread::scope(|scope| {
            let near = scope.spawn(|| Channel::accept(&hub, &SECRET, 3, &patience(200)).map(drop));
            let far = scope.spawn(|| {
                let joined = Channel::join(&hub.addresses, &SECRET, 1, 3, &patience(5000));
                let facts = joined.unwrap().allgather("facts", b"x", &patience(5000));
                facts.map(drop)
            });
            [near.join().unwrap(), far.join().unwrap()]
        });
        for error in errors {
            let error = error.unwrap_err();
            assert_eq!(error.code(), Code::Timeout, "{error}");
            assert!(error.text().contains("missing: rank 2 of 3"), "{error}");
        }
    }

    #[test]
    fn a_late_hub_is_named() {
        let ends = ranks(2, |rank, mut channel| {
            if rank == 0 {
                std::thread::sleep(Duration::from_millis(900));
                return None;
            }
            Some(
                channel
                    .allgather("the vote", b"x", &patience(100))
                    .unwrap_err(),
            )
        });
        assert!(
            ends[1]
                .as_ref()
                .unwrap()
                .text()
                .contains("rank 0 (pid 0) did not answer")
        );
    }

    #[test]
    fn a_dead_rank_ends_the_exchange_on_all_ranks_with_its_name() {
        for dead in [1, 2] {
            let ends = ranks(3, |rank, mut channel| {
                if rank == dead {
                    return None;
                }
                Some(
                    channel
                        .allgather("the vote", b"x", &patience(5000))
                        .unwrap_err(),
                )
            });
            for error in ends.into_iter().flatten() {
                assert_eq!(error.code(), Code::RemoteError);
                assert!(
                    error.text().contains(&format!("rank {dead} (pid {dead})")),
                    "{error}"
                );
            }
        }
    }

    #[test]
    fn a_fatal_payload_ends_the_exchange_although_others_are_not_ready() {
        let started = Instant::now();
        let ends = ranks(3, |rank, mut channel| {
            let mut ready = || (rank == 1).then(|| b"bad".to_vec());
            let parts = channel
                .allgather_when("the init", &mut ready, &|p| p == b"bad", &patience(5000))
                .unwrap();
            let next = channel
                .allgather("the next", &[rank as u8], &patience(5000))
                .unwrap();
            assert_eq!(next, vec![vec![0], vec![1], vec![2]]);
            parts
        });
        for parts in ends {
            assert_eq!(parts, vec![None, Some(b"bad".to_vec()), None]);
        }
        assert!(started.elapsed() < Duration::from_secs(3));
    }

    #[test]
    fn look_tells_goodbye_from_death_and_hears_an_abort() {
        let ends = ranks(4, |rank, mut channel| {
            match rank {
                1 => {
                    channel.leave();
                    return None;
                }
                2 => return None,
                _ => {}
            }
            let until = Instant::now() + Duration::from_secs(5);
            while *channel.peer(1) == Peer::Here || *channel.peer(2) == Peer::Here {
                channel.look().unwrap();
                assert!(Instant::now() < until);
                std::thread::sleep(Duration::from_millis(5));
            }
            let found = (channel.peer(1).clone(), channel.peer(2).clone());
            if rank == 3 {
                channel.announce_abort("");
            }
            let error = loop {
                match channel.look() {
                    Err(error) => break Some(error),
                    Ok(()) if rank == 3 => break None,
                    Ok(()) => std::thread::sleep(Duration::from_millis(5)),
                }
            };
            Some((found, error))
        });
        let (found, error) = ends[0].clone().unwrap();
        assert_eq!(found.0, Peer::Left);
        assert!(matches!(found.1, Peer::Dead(text) if text.contains("rank 2 (pid 2)")));
        assert!(error.unwrap().text().contains("rank 3 (pid 3) aborted"));
    }
}
