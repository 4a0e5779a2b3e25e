//! The rendezvous: a thread of the process that made the id collects one connection per rank and
//! tells all of them where rank 0's control hub listens.
//!
//! One id serves one communicator. The thread ends when it has served, or when nobody came.
#![forbid(unsafe_code)]

use super::interface::{self, Family, Filter};
use super::unique_id::{self, IdContent, MAX_ADDRESSES, PROTOCOL, Secret};
use crate::control::patience::{AbortFlag, Impatience, Patience};
use crate::control::strangers::Strangers;
use crate::control::wire::{
    Connection, Kind, Reader, WireError, Writer, decode_error, encode_error,
};
use crate::error::{Code, Error, Result};
use crate::sys::net::{PollEntry, poll};
use crate::sys::process;
use crate::types::MAX_RANKS;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// An address that does not answer for this long is left for the next.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long a rendezvous that failed goes on telling latecomers why, unless all have heard it.
const AFTERGLOW: Duration = Duration::from_secs(30);
/// How many of them may do that at once: each costs a thread and a socket, and a latecomer that finds
/// nobody learns only that the id is spent.
const MAX_AFTERGLOWS: usize = 8;
static AFTERGLOWS: AtomicUsize = AtomicUsize::new(0);

/// A listening socket and the addresses under which others reach it.
#[derive(Debug)]
pub(crate) struct Listener {
    pub listener: TcpListener,
    pub addresses: Vec<SocketAddr>,
}

/// Listens on the interface that the filter chooses.
pub(crate) fn listen(filter: Option<&Filter>, family: Family) -> Result<Listener> {
    let all = crate::sys::net::interfaces()
        .map_err(|e| Error::system("the network interfaces can't be listed", e))?;
    let mut chosen = interface::choose(&all, filter, family)?;
    // One socket serves one family: that of the best address.
    let v6 = chosen[0].addr.is_ipv6();
    chosen.retain(|i| i.addr.is_ipv6() == v6);
    let any: IpAddr = if v6 {
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        Ipv4Addr::UNSPECIFIED.into()
    };
    // Loopback alone: nobody outside may even connect.
    let bind = if chosen[0].loopback {
        chosen[0].addr
    } else {
        any
    };
    let listener = crate::sys::net::listen(bind)
        .map_err(|e| Error::system(format!("no listening socket on {bind}"), e))?;
    let port = listener
        .local_addr()
        .map_err(|e| Error::system("the listening socket has no address", e))?
        .port();
    let addresses: Vec<SocketAddr> = chosen
        .iter()
        .take(MAX_ADDRESSES)
        .map(|i| unique_id::socket_address(i.addr, i.scope, port))
        .collect();
    log::info!(
        "control address {} on interface {}",
        addresses[0],
        chosen[0].name
    );
    Ok(Listener {
        listener,
        addresses,
    })
}

/// What a rank says when it arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub nranks: u32,
    pub rank: u32,
    pub pid: u32,
    pub host: String,
    /// Where rank 0's hub listens; empty from the other ranks.
    pub hub: Vec<SocketAddr>,
}

fn put_addresses(writer: &mut Writer, addresses: &[SocketAddr]) {
    writer.u32(addresses.len() as u32);
    for address in addresses {
        writer.bytes(address.to_string().as_bytes());
    }
}

fn take_addresses(reader: &mut Reader<'_>) -> Option<Vec<SocketAddr>> {
    let count = reader.u32()?;
    if count as usize > MAX_ADDRESSES {
        return None;
    }
    (0..count).map(|_| reader.text()?.parse().ok()).collect()
}

impl Hello {
    pub(crate) fn encode(&self, secret: &Secret) -> Vec<u8> {
        let mut writer = Writer::default();
        writer
            .fixed(secret)
            .u32(u32::from(PROTOCOL))
            .u32(self.nranks)
            .u32(self.rank)
            .u32(self.pid);
        writer.bytes(self.host.as_bytes());
        put_addresses(&mut writer, &self.hub);
        writer.0
    }

    /// `None`: not one of ours.
    pub(crate) fn decode(body: &[u8], secret: &Secret) -> Option<(u32, Hello)> {
        let mut reader = Reader(body);
        if !same_secret(&reader.fixed()?, secret) {
            return None;
        }
        let protocol = reader.u32()?;
        let hello = Hello {
            nranks: reader.u32()?,
            rank: reader.u32()?,
            pid: reader.u32()?,
            host: reader.text()?,
            hub: take_addresses(&mut reader)?,
        };
        let sound = hello.rank < hello.nranks && hello.nranks <= MAX_RANKS as u32;
        sound.then_some((protocol, hello))
    }

    fn who(&self) -> String {
        format!("rank {} (host {}, pid {})", self.rank, self.host, self.pid)
    }
}

/// Compares in a time that does not depend on where the secrets differ.
pub(crate) fn same_secret(a: &Secret, b: &Secret) -> bool {
    a.iter().zip(b).fold(0, |acc, (x, y)| acc | (x ^ y)) == 0
}

/// Ranks as people write them: `1, 3-5`.
pub(crate) fn ranks_text(ranks: impl IntoIterator<Item = u32>) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => parts.push((rank, rank)),
        }
    }
    let shown = parts.iter().take(16).map(|(a, b)| match b - a {
        0 => a.to_string(),
        1 => format!("{a}, {b}"),
        _ => format!("{a}-{b}"),
    });
    let mut text = shown.collect::<Vec<_>>().join(", ");
    if parts.len() > 16 {
        text.push_str(", …");
    }
    text
}

// ---- the serving side

/// Makes a unique id and serves it from a thread of this process.
pub(crate) fn start(
    filter: Option<&Filter>,
    family: Family,
    unused_limit: Option<Duration>,
) -> Result<[u8; crate::types::UNIQUE_ID_BYTES]> {
    let Listener {
        listener,
        addresses,
    } = listen(filter, family)?;
    listener
        .set_nonblocking(true)
        .map_err(|e| Error::system("the listening socket can't be made non-blocking", e))?;
    let secret: Secret =
        process::random().map_err(|e| Error::system("the kernel gave no random bytes", e))?;
    let id = unique_id::encode(&IdContent { addresses, secret });
    std::thread::Builder::new()
        .name("flagos-id".into())
        .stack_size(256 << 10)
        .spawn(move || Server::new(listener, secret, unused_limit).serve())
        .map_err(|e| Error::system("no thread for the rendezvous", e))?;
    Ok(id)
}

struct Server {
    listener: TcpListener,
    secret: Secret,
    unused_limit: Option<Duration>,
    strangers: Strangers,
    members: BTreeMap<u32, (Hello, Connection)>,
    nranks: u32,
    failed: Option<(Instant, Error)>,
    /// The ranks that have heard of the failure.
    told: BTreeSet<u32>,
    /// There are enough others of its kind.
    too_many: bool,
}

impl Drop for Server {
    fn drop(&mut self) {
        // A forked child may hold the socket too: whoever connects would wait for ever.
        crate::sys::net::stop_listening(&self.listener);
        if self.failed.is_some() {
            AFTERGLOWS.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Server {
    fn new(listener: TcpListener, secret: Secret, unused_limit: Option<Duration>) -> Server {
        Server {
            listener,
            secret,
            unused_limit,
            strangers: Strangers::default(),
            members: BTreeMap::new(),
            nranks: 0,
            failed: None,
            told: BTreeSet::new(),
            too_many: false,
        }
    }

    fn serve(mut self) {
        let started = Instant::now();
        loop {
            if let Some((when, _)) = &self.failed {
                let all_told = self.told.len() >= self.nranks as usize;
                if all_told || when.elapsed() > AFTERGLOW || self.too_many {
                    return;
                }
            } else if self.members.is_empty()
                && self
                    .unused_limit
                    .is_some_and(|limit| started.elapsed() > limit)
            {
                log::debug!("a unique id was never used; its rendezvous closes");
                return;
            }
            let mut entries: Vec<PollEntry> = Vec::new();
            entries.push(PollEntry::read(self.listener.as_raw_fd()));
            entries.extend(self.strangers.poll_entries());
            entries.extend(self.members.values().map(|(_, c)| PollEntry::read(c.fd())));
            poll(&mut entries, Duration::from_millis(500));
            self.strangers.accept(&self.listener);
            if self.hear_strangers() {
                return;
            }
            self.hear_members();
            if self.failed.is_none()
                && self.nranks > 0
                && self.members.len() == self.nranks as usize
            {
                self.send_table();
                return;
            }
        }
    }

    /// `true`: the rendezvous was cancelled.
    fn hear_strangers(&mut self) -> bool {
        for (frame, connection) in self.strangers.hear() {
            match frame.kind {
                Kind::Hello => match Hello::decode(&frame.body, &self.secret) {
                    Some((protocol, hello)) => self.admit(protocol, hello, connection),
                    None => log::debug!("a connection without our secret was closed"),
                },
                Kind::Cancel => {
                    let secret = Reader(&frame.body).fixed();
                    if secret.is_some_and(|s| same_secret(&s, &self.secret)) {
                        return true;
                    }
                }
                _ => {}
            }
        }
        false
    }

    fn quick(&self) -> Patience {
        Patience::starting_now(Some(Duration::from_secs(2)), &AbortFlag::default())
    }

    fn admit(&mut self, protocol: u32, hello: Hello, mut connection: Connection) {
        let quick = self.quick();
        if let Some((_, error)) = &self.failed {
            let _ = connection.send(Kind::Fail, 0, &encode_error(error), &quick);
            self.told.insert(hello.rank);
            return;
        }
        let other = self.members.values().next().map(|(h, _)| h);
        let fault = if protocol != u32::from(PROTOCOL) {
            Some(format!(
                "{} speaks protocol {protocol} but the process that made the id speaks \
                 {PROTOCOL}: use the same flagos-comm on all ranks",
                hello.who()
            ))
        } else if let Some(other) = other.filter(|o| o.nranks != hello.nranks) {
            Some(format!(
                "the ranks disagree on their number: {} says {} but {} says {}",
                other.who(),
                other.nranks,
                hello.who(),
                hello.nranks
            ))
        } else if let Some((twin, _)) = self.members.get(&hello.rank) {
            Some(format!(
                "rank {} came twice: {} and {}",
                hello.rank,
                twin.who(),
                hello.who()
            ))
        } else {
            None
        };
        if let Some(text) = fault {
            let error = Error::invalid_usage(text);
            let _ = connection.send(Kind::Fail, 0, &encode_error(&error), &quick);
            self.nranks = self.nranks.max(hello.nranks);
            self.told.insert(hello.rank);
            self.fail(error);
            return;
        }
        self.nranks = hello.nranks;
        // A rank that is gone again is found when its connection is heard.
        let _ = connection.send(Kind::Welcome, 0, &[], &quick);
        self.members.insert(hello.rank, (hello, connection));
    }

    fn fail(&mut self, error: Error) {
        let quick = self.quick();
        for (_, connection) in self.members.values_mut() {
            let _ = connection.send(Kind::Fail, 0, &encode_error(&error), &quick);
        }
        self.told.extend(self.members.keys());
        self.members.clear();
        self.failed = Some((Instant::now(), error));
        self.too_many = AFTERGLOWS.fetch_add(1, Ordering::Relaxed) >= MAX_AFTERGLOWS;
    }

    fn hear_members(&mut self) {
        let quick = self.quick();
        let missing = ranks_text((0..self.nranks).filter(|r| !self.members.contains_key(r)));
        let mut left = None;
        for (hello, connection) in self.members.values_mut() {
            match connection.try_receive() {
                Ok(None) => {}
                Ok(Some(frame)) if frame.kind == Kind::Query => {
                    let _ = connection.send(Kind::Missing, 0, missing.as_bytes(), &quick);
                }
                // Its own deadline passed or it was aborted.
                Ok(Some(frame)) if frame.kind == Kind::Bye => {
                    left = Some((
                        hello.rank,
                        Error::new(
                            Code::RemoteError,
                            format!("{} gave up waiting for the other ranks", hello.who()),
                        ),
                    ));
                }
                _ => {
                    left = Some((
                        hello.rank,
                        Error::new(
                            Code::RemoteError,
                            format!(
                                "{} was here but its connection closed before all ranks had come: \
                                 it exited or was killed",
                                hello.who()
                            ),
                        ),
                    ));
                }
            }
        }
        if let Some((rank, error)) = left {
            self.members.remove(&rank);
            self.told.insert(rank);
            self.fail(error);
        }
    }

    fn send_table(&mut self) {
        let quick = self.quick();
        let mut writer = Writer::default();
        let hub = self
            .members
            .get(&0)
            .map(|(h, _)| h.hub.clone())
            .unwrap_or_default();
        put_addresses(&mut writer, &hub);
        for (hello, connection) in self.members.values_mut() {
            if connection.send(Kind::Table, 0, &writer.0, &quick).is_err() {
                log::warn!(
                    "{} left just before the rendezvous was complete",
                    hello.who()
                );
            }
        }
    }
}

// ---- the arriving side

fn connect_any(content: &IdContent, patience: &Patience) -> Result<Connection> {
    let mut tried = Vec::new();
    let mut refused = 0;
    for address in &content.addresses {
        let limit = patience.left().unwrap_or(CONNECT_LIMIT).min(CONNECT_LIMIT);
        if limit.is_zero() {
            break;
        }
        match Connection::connect(address, limit, patience) {
            Ok(connection) => return Ok(connection),
            Err(e) => {
                refused += usize::from(e.kind() == std::io::ErrorKind::ConnectionRefused);
                tried.push(format!("{address}: {e}"));
            }
        }
    }
    if patience.slice() == Err(Impatience::Aborted) {
        let text = "aborted while connecting to the process that made the unique id";
        return Err(Error::new(Code::Aborted, text));
    }
    if refused > 0 && refused == tried.len() {
        return Err(Error::invalid_usage(format!(
            "nobody serves this unique id any more ({}): it was already used, or the process that \
             made it has gone. Call flagosGetUniqueId once per communicator and keep that process \
             alive until all ranks have joined",
            tried.join("; ")
        )));
    }
    if patience.left().is_some_and(|left| left.is_zero()) {
        let mut text =
            String::from("timed out before the process that made the unique id could be asked");
        if !tried.is_empty() {
            text += &format!(" ({})", tried.join("; "));
        }
        return Err(Error::new(Code::Timeout, text));
    }
    Err(Error::new(
        Code::SystemError,
        format!(
            "the process that made the unique id can't be reached ({})",
            tried.join("; ")
        ),
    ))
}

/// Arrives at the rendezvous and waits for the others. Returns where the hub listens.
pub(crate) fn arrive(
    content: &IdContent,
    hello: &Hello,
    patience: &Patience,
) -> Result<Vec<SocketAddr>> {
    let phase = "while waiting for all ranks to arrive";
    let mut connection = connect_any(content, patience)?;
    let mut counted = false;
    let wire = |error: WireError, counted: bool| match error {
        WireError::Closed if counted => Error::new(
            Code::RemoteError,
            format!(
                "the process that made the unique id ended {phase}: it has to live until all ranks \
                 have joined"
            ),
        ),
        WireError::Closed | WireError::Garbage => Error::invalid_usage(format!(
            "the rendezvous closed the connection {phase}: the unique id was already used for \
             another communicator, or the process that made it has gone. Call flagosGetUniqueId \
             once per communicator"
        )),
        WireError::Io(e) => Error::system(format!("the connection broke {phase}"), e),
        WireError::Impatient(Impatience::Aborted) => {
            Error::new(Code::Aborted, format!("aborted {phase}"))
        }
        WireError::Impatient(Impatience::Expired) => {
            Error::new(Code::Timeout, format!("timed out {phase}"))
        }
    };
    connection
        .send(Kind::Hello, 0, &hello.encode(&content.secret), patience)
        .map_err(|error| wire(error, false))?;
    loop {
        match connection.receive(patience) {
            Ok(frame) => match frame.kind {
                Kind::Table => {
                    return take_addresses(&mut Reader(&frame.body))
                        .filter(|hub| !hub.is_empty())
                        .ok_or_else(|| Error::internal("the rendezvous sent no hub address"));
                }
                Kind::Fail => return Err(decode_error(&frame.body)),
                Kind::Welcome => counted = true,
                _ => {}
            },
            Err(WireError::Impatient(Impatience::Expired)) => {
                return Err(expired(&mut connection, hello));
            }
            Err(WireError::Impatient(Impatience::Aborted)) => {
                let quick =
                    Patience::starting_now(Some(Duration::from_millis(100)), &AbortFlag::default());
                let _ = connection.send(Kind::Bye, 0, &[], &quick);
                return Err(wire(WireError::Impatient(Impatience::Aborted), counted));
            }
            Err(other) => return Err(wire(other, counted)),
        }
    }
}

/// The deadline passed: asks who is missing, to say so.
fn expired(connection: &mut Connection, hello: &Hello) -> Error {
    let quick = Patience::starting_now(Some(Duration::from_millis(500)), &AbortFlag::default());
    let _ = connection.send(Kind::Query, 0, &[], &quick);
    let missing = loop {
        match connection.receive(&quick) {
            Ok(frame) if frame.kind == Kind::Missing => {
                break Some(String::from_utf8_lossy(&frame.body).into_owned());
            }
            Ok(frame) if frame.kind == Kind::Fail => return decode_error(&frame.body),
            Ok(_) => {}
            Err(_) => break None,
        }
    };
    let _ = connection.send(Kind::Bye, 0, &[], &quick);
    let who = match missing {
        Some(ranks) => format!("missing: rank {ranks} of {}", hello.nranks),
        None => String::from("the process that made the unique id does not answer"),
    };
    Error::new(
        Code::Timeout,
        format!(
            "timed out while waiting for all ranks to arrive; {who}. Are they started, and do all \
             of them use this unique id? The limit: FLAGOSCOMM_INIT_TIMEOUT, or the configuration's"
        ),
    )
}

/// Tells a rendezvous that nobody will come.
pub(crate) fn cancel(content: &IdContent, patience: &Patience) {
    if let Ok(mut connection) = connect_any(content, patience) {
        let _ = connection.send(Kind::Cancel, 0, &content.secret, patience);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpStream;

    fn hello(rank: u32, nranks: u32) -> Hello {
        let hub = if rank == 0 {
            vec!["127.0.0.1:9".parse().unwrap()]
        } else {
            Vec::new()
        };
        Hello {
            nranks,
            rank,
            pid: 1000 + rank,
            host: "h".into(),
            hub,
        }
    }

    fn id() -> IdContent {
        let filter = Filter::parse("test", "lo");
        unique_id::decode(&start(Some(&filter), Family::V4, None).unwrap()).unwrap()
    }

    fn patience(ms: u64) -> Patience {
        Patience::starting_now(Some(Duration::from_millis(ms)), &AbortFlag::default())
    }

    fn all(id: &IdContent, hellos: Vec<Hello>, ms: u64) -> Vec<Result<Vec<SocketAddr>>> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = hellos
                .into_iter()
                .map(|h| scope.spawn(move || arrive(id, &h, &patience(ms))))
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    #[test]
    fn all_ranks_learn_where_the_hub_is_and_the_id_is_used_up() {
        let id = id();
        for hub in all(&id, (0..5).map(|r| hello(r, 5)).collect(), 5000) {
            assert_eq!(hub.unwrap(), hello(0, 5).hub);
        }
        std::thread::sleep(Duration::from_millis(50));
        let again = arrive(&id, &hello(0, 5), &patience(3000)).unwrap_err();
        assert_eq!(again.code(), Code::InvalidUsage);
        assert!(again.text().contains("already used"), "{again}");
    }

    #[test]
    fn strangers_and_garbage_disturb_nobody() {
        let id = id();
        for bytes in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            &[0u8; 64][..],
            &[0xff; 64][..],
        ] {
            TcpStream::connect(id.addresses[0])
                .unwrap()
                .write_all(bytes)
                .unwrap();
        }
        let _silent = TcpStream::connect(id.addresses[0]).unwrap();
        let mut wrong = id.clone();
        wrong.secret[3] ^= 1;
        assert!(arrive(&wrong, &hello(0, 2), &patience(2000)).is_err());
        for hub in all(&id, vec![hello(0, 2), hello(1, 2)], 5000) {
            hub.unwrap();
        }
    }

    #[test]
    fn a_deadline_names_the_missing_ranks() {
        let id = id();
        for end in all(&id, vec![hello(0, 5), hello(3, 5)], 300) {
            let error = end.unwrap_err();
            assert!(
                error.code() == Code::Timeout && error.text().contains("rank 1, 2, 4 of 5")
                    || error.text().contains("gave up"),
                "{error}"
            );
        }
    }

    #[test]
    fn disagreement_and_twins_are_the_same_error_everywhere() {
        let id1 = id();
        for end in all(&id1, vec![hello(0, 2), hello(1, 3)], 5000) {
            let error = end.unwrap_err();
            assert_eq!(error.code(), Code::InvalidUsage);
            assert!(
                error.text().contains("says 3") && error.text().contains("says 2"),
                "{error}"
            );
        }
        let id2 = id();
        for end in all(&id2, vec![hello(1, 3), hello(1, 3)], 5000) {
            assert!(end.unwrap_err().text().contains("rank 1 came twice"));
        }
    }

    #[test]
    fn a_rank_that_dies_while_waiting_is_named() {
        let id = id();
        let mut connection = Connection::new(TcpStream::connect(id.addresses[0]).unwrap()).unwrap();
        let body = hello(1, 3).encode(&id.secret);
        connection
            .send(Kind::Hello, 0, &body, &patience(1000))
            .unwrap();
        let dying = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(connection);
        });
        let error = arrive(&id, &hello(0, 3), &patience(5000)).unwrap_err();
        assert_eq!(error.code(), Code::RemoteError);
        assert!(error.text().contains("rank 1"), "{error}");
        dying.join().unwrap();
    }

    #[test]
    fn missing_ranks_are_written_as_ranges() {
        assert_eq!(ranks_text([1, 3, 4, 5, 9]), "1, 3-5, 9");
        assert_eq!(ranks_text([7, 8]), "7, 8");
    }
}
