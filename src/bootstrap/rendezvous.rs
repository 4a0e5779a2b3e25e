//! The rendezvous: a thread of the process that made the id tells each rank that comes where its
//! parent in the control channel's tree listens.
//!
//! A rank stays until its parent is there and it has connected to it, so that of every rank that waits
//! either its parent or the rendezvous knows; where too many wait, it comes again. Rank 0 stays until
//! all have come. With several ids, each serves the children of a part of the ranks, and the first of
//! those stays. One id serves one communicator. The thread ends when it has served, or when nobody came.
#![forbid(unsafe_code)]

use super::interface::{self, Family, Filter};
use super::unique_id::{self, IdContent, MAX_ADDRESSES, PROTOCOL, Secret};
use crate::control::patience::{AbortFlag, Patience};
use crate::control::strangers::{self, HELLO_LIMIT, Strangers};
use crate::control::tree::{MAX_FAN_OUT, Tree};
use crate::control::wire::{Connection, Kind, Reader, Writer, decode_error, encode_error};
use crate::error::{Code, Error, Result};
use crate::sys::net::{PollEntry, poll};
use crate::sys::process;
use crate::types::MAX_RANKS;
use crate::words::ranks_text;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// When more ranks than this wait for their parents, the others come again.
const MAX_GUESTS: usize = 192;
/// When they do.
const LATER: Duration = Duration::from_millis(50);
/// How long a rendezvous that finds no free descriptor waits for one.
const STARVING: Duration = Duration::from_secs(2);
/// How long a rendezvous that failed goes on telling latecomers why, unless all have heard it.
const AFTERGLOW: Duration = Duration::from_secs(30);
/// How many of them may do that at once, the latest ones: each costs a thread and a socket, and a latecomer
/// that finds nobody learns only that the id is spent.
const MAX_AFTERGLOWS: u64 = 8;
/// Rendezvous of this process that have failed.
static FAILURES: AtomicU64 = AtomicU64::new(0);

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
    let listener = crate::sys::net::listen(SocketAddr::new(bind, 0))
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

/// How the ranks of a communicator are spread over unique ids: the children of rank `r` come to the id
/// that `r` belongs to, and so does `r`, to say where it listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub tree: Tree,
    /// Number of ids.
    pub ids: u32,
}

impl Plan {
    /// The id to which a rank tells where it listens, and to which its children come.
    pub(crate) fn id_of(self, parent: u32) -> u32 {
        (u64::from(parent) * u64::from(self.ids) / u64::from(self.tree.nranks)) as u32
    }

    /// The ranks of an id that listen, in order. Rank 0 always does.
    fn parents(self, id: u32) -> impl Iterator<Item = u32> {
        (0..self.tree.nranks)
            .skip_while(move |rank| self.id_of(*rank) < id)
            .take_while(move |rank| self.id_of(*rank) == id)
            .filter(move |rank| self.listens(*rank))
    }

    /// Whether a rank tells where it listens.
    pub(crate) fn listens(self, rank: u32) -> bool {
        rank == 0 || self.tree.has_children(rank)
    }

    /// The rank that stays at an id until all have come. `None`: nobody comes to it.
    pub(crate) fn stays(self, id: u32) -> Option<u32> {
        self.parents(id).next()
    }
}

/// What a rank says when it arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub plan: Plan,
    /// Which of the ids this is.
    pub id: u32,
    pub rank: u32,
    pub pid: u32,
    pub host: String,
    /// The same whenever this rank comes, and another one's never.
    pub visitor: u64,
    /// It asks where its parent listens.
    pub asks: bool,
    /// Where it listens itself, for its children.
    pub listens: Vec<SocketAddr>,
}

fn put_addresses(writer: &mut Writer, addresses: &[SocketAddr]) {
    writer.u32(addresses.len() as u32);
    for address in addresses {
        writer.bytes(address.to_string().as_bytes());
    }
}

pub(super) fn take_addresses(reader: &mut Reader<'_>) -> Option<Vec<SocketAddr>> {
    let count = reader.u32()?;
    if count as usize > MAX_ADDRESSES {
        return None;
    }
    (0..count).map(|_| reader.text()?.parse().ok()).collect()
}

impl Hello {
    pub(crate) fn encode(&self, secret: &Secret) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.fixed(secret).u32(u32::from(PROTOCOL));
        writer
            .u32(self.plan.tree.nranks)
            .u32(self.plan.tree.fan_out)
            .u32(self.plan.ids)
            .u32(self.id);
        writer.u32(self.rank).u32(self.pid);
        writer.bytes(self.host.as_bytes());
        writer.u64(self.visitor).u32(u32::from(self.asks));
        put_addresses(&mut writer, &self.listens);
        writer.0
    }

    /// `None`: not one of ours.
    pub(crate) fn decode(body: &[u8], secret: &Secret) -> Option<(u32, Hello)> {
        let mut reader = Reader(body);
        if !same_secret(&reader.fixed()?, secret) {
            return None;
        }
        let protocol = reader.u32()?;
        let tree = Tree {
            nranks: reader.u32()?,
            fan_out: reader.u32()?,
        };
        let hello = Hello {
            plan: Plan {
                tree,
                ids: reader.u32()?,
            },
            id: reader.u32()?,
            rank: reader.u32()?,
            pid: reader.u32()?,
            host: reader.text()?,
            visitor: reader.u64()?,
            asks: reader.u32()? != 0,
            listens: take_addresses(&mut reader)?,
        };
        let fits = hello.rank < tree.nranks
            && tree.nranks <= MAX_RANKS as u32
            && (1..=MAX_FAN_OUT).contains(&tree.fan_out)
            && hello.id < hello.plan.ids
            && hello.plan.ids <= MAX_RANKS as u32;
        fits.then_some((protocol, hello))
    }

    pub(super) fn who(&self) -> String {
        format!("rank {} (host {}, pid {})", self.rank, self.host, self.pid)
    }
}

/// Compares in a time that does not depend on where the secrets differ.
pub(crate) fn same_secret(a: &Secret, b: &Secret) -> bool {
    a.iter().zip(b).fold(0, |acc, (x, y)| acc | (x ^ y)) == 0
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

/// A rank that is here.
struct Guest {
    hello: Hello,
    connection: Connection,
    /// It knows where its parent listens, and is on its way there.
    answered: bool,
}

/// Who has to come to this id.
struct Roster {
    plan: Plan,
    /// Ranks that ask for their parents, and ranks that are asked for.
    children: BTreeSet<u32>,
    parents: BTreeSet<u32>,
    /// The one that stays.
    stays: Option<u32>,
}

impl Roster {
    fn new(plan: Plan, id: u32) -> Roster {
        let parents: BTreeSet<u32> = plan.parents(id).collect();
        let children = parents
            .iter()
            .flat_map(|parent| plan.tree.place(*parent).children)
            .map(|range| range.start)
            .collect();
        Roster {
            plan,
            children,
            stays: parents.first().copied(),
            parents,
        }
    }

    fn len(&self) -> usize {
        self.children.union(&self.parents).count()
    }
}

struct Server {
    listener: TcpListener,
    secret: Secret,
    unused_limit: Option<Duration>,
    strangers: Strangers,
    /// Since when there has been no free descriptor.
    starving: Option<Instant>,
    /// Known from the first rank on.
    roster: Option<Roster>,
    /// The ranks that have come, as they have said it.
    seen: BTreeMap<u32, Hello>,
    guests: BTreeMap<u32, Guest>,
    /// Children that were told where their parents listen.
    answered: BTreeSet<u32>,
    /// Children that were told to come again.
    away: BTreeMap<u32, Instant>,
    failed: Option<(Instant, Error)>,
    /// The ranks that have heard of the failure.
    told: BTreeSet<u32>,
    /// Which of the process' failed rendezvous this is.
    number: u64,
}

impl Drop for Server {
    fn drop(&mut self) {
        // A forked child may hold the socket too: whoever connects would wait for ever.
        crate::sys::net::stop_listening(&self.listener);
    }
}

impl Server {
    fn new(listener: TcpListener, secret: Secret, unused_limit: Option<Duration>) -> Server {
        Server {
            listener,
            secret,
            unused_limit,
            strangers: Strangers::default(),
            starving: None,
            roster: None,
            seen: BTreeMap::new(),
            guests: BTreeMap::new(),
            answered: BTreeSet::new(),
            away: BTreeMap::new(),
            failed: None,
            told: BTreeSet::new(),
            number: 0,
        }
    }

    fn serve(mut self) {
        let started = Instant::now();
        loop {
            if let Some((when, _)) = &self.failed {
                let expected = self.roster.as_ref().map_or(0, Roster::len);
                let all_told = self.told.len() >= expected;
                let later = FAILURES.load(Ordering::Relaxed) - self.number;
                if all_told || when.elapsed() > AFTERGLOW || later >= MAX_AFTERGLOWS {
                    return;
                }
            } else if self.seen.is_empty()
                && self
                    .unused_limit
                    .is_some_and(|limit| started.elapsed() > limit)
            {
                log::debug!("a unique id was never used; its rendezvous closes");
                return;
            }
            let mut entries: Vec<PollEntry> = self.strangers.poll_entries(&self.listener).collect();
            let first_guest = entries.len();
            let guests: Vec<u32> = self.guests.keys().copied().collect();
            entries.extend(
                self.guests
                    .values()
                    .map(|g| PollEntry::read(g.connection.fd())),
            );
            poll(&mut entries, Duration::from_millis(500));
            let others = &entries[first_guest..];
            for (rank, _) in guests.iter().zip(others).filter(|(_, e)| e.readable) {
                self.hear_guest(*rank);
            }
            if self.hear_strangers() {
                return;
            }
            self.accept();
            self.miss_those_away();
            if self.is_complete() {
                self.dismiss();
                return;
            }
        }
    }

    fn accept(&mut self) {
        match self.strangers.accept(&self.listener) {
            Ok(true) => self.starving = None,
            Ok(false) => {}
            Err(e) => {
                // Out of descriptors, say: those that are here can still be served, and with each
                // that goes one is free.
                let since = *self.starving.get_or_insert_with(Instant::now);
                if since.elapsed() > STARVING && self.failed.is_none() {
                    let what = format!(
                        "the process that made the unique id can't accept a connection of \
                         another rank; besides what it has open, it needs up to {} for a moment",
                        MAX_GUESTS + strangers::MOST
                    );
                    self.fail(Error::system(what, e));
                    self.strangers.clear();
                    self.starving = None;
                    return;
                }
                std::thread::sleep(Duration::from_millis(20));
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

    /// What is wrong with a rank that comes.
    fn fault(&self, protocol: u32, hello: &Hello) -> Option<String> {
        if protocol != u32::from(PROTOCOL) {
            return Some(format!(
                "{} speaks protocol {protocol} but the process that made the id speaks \
                 {PROTOCOL}: use the same flagos-comm on all ranks",
                hello.who()
            ));
        }
        if let Some(twin) = self.seen.get(&hello.rank)
            && twin.visitor != hello.visitor
        {
            return Some(format!(
                "rank {} came twice: {} and {}",
                hello.rank,
                twin.who(),
                hello.who()
            ));
        }
        let other = self.seen.values().next()?;
        let (mine, theirs) = (hello.plan, other.plan);
        if mine.tree != theirs.tree {
            return Some(format!(
                "the ranks disagree on their number: {} says {} but {} says {}",
                other.who(),
                theirs.tree.nranks,
                hello.who(),
                mine.tree.nranks
            ));
        }
        (mine.ids != theirs.ids || hello.id != other.id).then(|| {
            format!(
                "the ranks disagree on the unique ids: for {} this is number {} of {} but for {} \
                 number {} of {}; all ranks must give the same ids in the same order",
                other.who(),
                other.id,
                theirs.ids,
                hello.who(),
                hello.id,
                mine.ids
            )
        })
    }

    fn admit(&mut self, protocol: u32, hello: Hello, mut connection: Connection) {
        let quick = self.quick();
        if let Some((_, error)) = &self.failed {
            let _ = connection.send(Kind::Fail, 0, &encode_error(error), &quick);
            self.told.insert(hello.rank);
            return;
        }
        if let Some(text) = self.fault(protocol, &hello) {
            let error = Error::invalid_usage(text);
            let _ = connection.send(Kind::Fail, 0, &encode_error(&error), &quick);
            self.told.insert(hello.rank);
            self.fail(error);
            return;
        }
        let roster = self
            .roster
            .get_or_insert_with(|| Roster::new(hello.plan, hello.id));
        let (rank, asks) = (hello.rank, hello.asks);
        let stays = roster.stays == Some(rank);
        let parent = roster.plan.tree.parent(rank);
        // A rank that is gone again is found when its connection is heard.
        let _ = connection.send(Kind::Welcome, 0, &[], &quick);
        let (listens, who) = (hello.listens.clone(), hello.who());
        self.seen.insert(rank, hello.clone());
        self.away.remove(&rank);
        let of_parent = parent.and_then(|parent| self.seen.get(&parent));
        let known = of_parent.filter(|parent| !parent.listens.is_empty());
        let mut guest = Guest {
            hello,
            connection,
            answered: false,
        };
        let room = self.guests.len() < MAX_GUESTS;
        if asks && let Some(parent) = known {
            guest.answer(&parent.listens, &parent.who(), &quick);
            self.answered.insert(rank);
            if room || stays {
                self.guests.insert(rank, guest);
            }
        } else if stays || asks && room {
            self.guests.insert(rank, guest);
        } else if asks {
            let mut writer = Writer::default();
            writer.u32(LATER.as_millis() as u32);
            let _ = guest.connection.send(Kind::Later, 0, &writer.0, &quick);
            self.away.insert(rank, Instant::now());
        }
        if !listens.is_empty() {
            let children = self
                .roster
                .iter()
                .flat_map(|r| r.plan.tree.place(rank).children);
            for child in children.map(|range| range.start) {
                if let Some(guest) = self.guests.get_mut(&child)
                    && !guest.answered
                {
                    guest.answer(&listens, &who, &quick);
                    self.answered.insert(child);
                }
            }
        }
    }

    fn fail(&mut self, error: Error) {
        let quick = self.quick();
        for guest in self.guests.values_mut() {
            let body = encode_error(&error);
            let _ = guest.connection.send(Kind::Fail, 0, &body, &quick);
        }
        // Those that have gone to their parents hear it from them.
        self.told.extend(self.guests.keys());
        self.told.extend(&self.answered);
        self.guests.clear();
        self.failed = Some((Instant::now(), error));
        self.number = FAILURES.fetch_add(1, Ordering::Relaxed) + 1;
    }

    fn missing(&self) -> String {
        let Some(roster) = &self.roster else {
            return String::new();
        };
        let said = |rank: &u32| self.seen.get(rank);
        let missing = roster.children.union(&roster.parents).filter(|rank| {
            let (child, parent) = (
                roster.children.contains(rank),
                roster.parents.contains(rank),
            );
            !said(rank).is_some_and(|h| (!child || h.asks) && (!parent || !h.listens.is_empty()))
        });
        ranks_text(missing.copied())
    }

    fn hear_guest(&mut self, rank: u32) {
        let quick = self.quick();
        let Some(guest) = self.guests.get_mut(&rank) else {
            return;
        };
        let error = match guest.connection.try_receive() {
            Ok(None) => return,
            Ok(Some(frame)) => match frame.kind {
                Kind::Query => {
                    let missing = self.missing();
                    if let Some(guest) = self.guests.get_mut(&rank) {
                        let body = missing.as_bytes();
                        let _ = guest.connection.send(Kind::Missing, 0, body, &quick);
                    }
                    return;
                }
                // It is with its parent now.
                Kind::Join => {
                    self.guests.remove(&rank);
                    return;
                }
                Kind::Abort => decode_error(&frame.body),
                _ => return,
            },
            Err(_) => Error::new(
                Code::RemoteError,
                format!(
                    "{} was here but its connection closed before all ranks had come: it exited or \
                     was killed",
                    guest.hello.who()
                ),
            ),
        };
        self.guests.remove(&rank);
        self.told.insert(rank);
        self.fail(error);
    }

    fn miss_those_away(&mut self) {
        let lost = self
            .away
            .iter()
            .find(|(_, since)| since.elapsed() > HELLO_LIMIT);
        if let Some((rank, _)) = lost
            && self.failed.is_none()
        {
            let who = self.seen.get(rank).map(Hello::who).unwrap_or_default();
            self.fail(Error::new(
                Code::RemoteError,
                format!("{who} was here but did not come back: it exited or was killed"),
            ));
        }
    }

    /// Whether every rank has come and is on its way to its parent.
    fn is_complete(&self) -> bool {
        let Some(roster) = &self.roster else {
            return false;
        };
        self.failed.is_none()
            && self.answered.len() == roster.children.len()
            && self.guests.keys().all(|rank| roster.stays == Some(*rank))
            && self.away.is_empty()
            && self.missing().is_empty()
    }

    fn dismiss(&mut self) {
        let quick = self.quick();
        for guest in self.guests.values_mut() {
            guest.answer(&[], "", &quick);
        }
    }
}

impl Guest {
    /// Where its parent listens, and who that is; without addresses, that all are here.
    fn answer(&mut self, addresses: &[SocketAddr], who: &str, patience: &Patience) {
        let mut writer = Writer::default();
        put_addresses(&mut writer, addresses);
        writer.bytes(who.as_bytes());
        self.answered = true;
        if self
            .connection
            .send(Kind::Table, 0, &writer.0, patience)
            .is_err()
        {
            log::debug!("{} left before it was answered", self.hello.who());
        }
    }
}

/// Tells a rendezvous that nobody will come.
pub(crate) fn cancel(content: &IdContent, patience: &Patience) {
    if let Ok(mut connection) = super::meet::connect_any(content, "", patience) {
        let _ = connection.send(Kind::Cancel, 0, &content.secret, patience);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_comes_to_the_ids_of_its_plan() {
        for (nranks, fan_out, ids) in [(1, 128, 1), (1000, 32, 1), (1000, 32, 7), (50, 2, 50)] {
            let tree = Tree { nranks, fan_out };
            let plan = Plan { tree, ids };
            let mut children = 0;
            for id in 0..ids {
                let roster = Roster::new(plan, id);
                assert_eq!(roster.stays, plan.stays(id));
                for child in &roster.children {
                    assert_eq!(plan.id_of(tree.parent(*child).unwrap()), id);
                }
                children += roster.children.len();
            }
            assert_eq!(children + 1, nranks as usize);
            assert_eq!(plan.stays(0), Some(0));
        }
    }

    #[test]
    fn a_hello_survives_the_wire_and_another_secret_does_not_read_it() {
        let tree = Tree {
            nranks: 9,
            fan_out: 2,
        };
        let hello = Hello {
            plan: Plan { tree, ids: 3 },
            id: 2,
            rank: 8,
            pid: 7,
            host: "h".into(),
            visitor: u64::MAX,
            asks: true,
            listens: vec!["127.0.0.1:9".parse().unwrap()],
        };
        let body = hello.encode(&[5; 16]);
        assert_eq!(
            Hello::decode(&body, &[5; 16]),
            Some((u32::from(PROTOCOL), hello.clone()))
        );
        assert_eq!(Hello::decode(&body, &[6; 16]), None);
        for cut in 0..body.len() {
            assert_eq!(Hello::decode(&body[..cut], &[5; 16]), None, "cut at {cut}");
        }
        let strange = Hello { rank: 9, ..hello };
        assert_eq!(Hello::decode(&strange.encode(&[5; 16]), &[5; 16]), None);
    }
}
