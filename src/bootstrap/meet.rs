//! How one rank gets to its place in the control channel's tree: it asks the rendezvous where its
//! parent listens, connects to it, and takes in its own children.
//!
//! Whatever goes wrong is told to every neighbour that is there, and to the rendezvous, which tells
//! those that wait: all of them end with the same error.
#![forbid(unsafe_code)]

use super::rendezvous::{Hello, Listener, Plan, same_secret, take_addresses};
use super::unique_id::{IdContent, Secret};
use crate::control::channel::{COURTESY, Channel, GRACE, Link, impatience};
use crate::control::patience::{AbortFlag, Impatience, Patience};
use crate::control::strangers::{HELLO_LIMIT, Strangers};
use crate::control::tree::Place;
use crate::control::wire::{
    Connection, Frame, Kind, Reader, WireError, Writer, decode_error, encode_error,
};
use crate::error::{Code, Error, Result};
use crate::sys::net::{PollEntry, out_of_descriptors, poll};
use crate::sys::process;
use crate::words::{listed_named, ranks_text};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const PHASE: &str = "while waiting for all ranks to arrive";
/// How long a rank that comes again waits at most.
const LONGEST_AWAY: Duration = Duration::from_secs(1);

/// One rank on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traveller<'a> {
    pub ids: &'a [IdContent],
    pub plan: Plan,
    pub rank: u32,
    pub pid: u32,
    pub host: &'a str,
}

/// A connection to the first address that takes it.
fn connect(
    addresses: &[SocketAddr],
    patience: &Patience,
) -> std::result::Result<Connection, Failed> {
    let mut failed = Failed::default();
    for address in addresses {
        let limit = patience.left().unwrap_or(HELLO_LIMIT).min(HELLO_LIMIT);
        if limit.is_zero() {
            break;
        }
        match Connection::connect(address, limit, patience) {
            Ok(connection) => return Ok(connection),
            Err(e) => {
                failed.refused += usize::from(e.kind() == ErrorKind::ConnectionRefused);
                failed.tried.push(format!("{address}: {e}"));
                if out_of_descriptors(&e).is_some() {
                    failed.descriptors = Some(e);
                    break;
                }
            }
        }
    }
    Err(failed)
}

/// Why none of the addresses could be reached.
#[derive(Default)]
struct Failed {
    tried: Vec<String>,
    refused: usize,
    descriptors: Option<std::io::Error>,
}

impl Failed {
    fn all_refused(&self) -> bool {
        self.refused > 0 && self.refused == self.tried.len()
    }

    fn error(self, who: &str, code: Code, needs: &str, patience: &Patience) -> Error {
        if let Some(e) = self.descriptors {
            return Error::system(format!("no socket to reach {who}{needs}"), e);
        }
        if patience.slice() == Err(Impatience::Aborted) {
            return Error::new(Code::Aborted, format!("aborted while connecting to {who}"));
        }
        let (mut text, code) = match patience.left() {
            Some(left) if left.is_zero() => (
                format!("timed out before {who} could be asked"),
                Code::Timeout,
            ),
            _ => (format!("{who} can't be reached"), code),
        };
        if !self.tried.is_empty() {
            text += &format!(" ({})", self.tried.join("; "));
        }
        Error::new(code, text)
    }
}

/// Connects to the process that serves an id. `needs`: what to say if there is no descriptor for it.
pub(super) fn connect_any(
    content: &IdContent,
    needs: &str,
    patience: &Patience,
) -> Result<Connection> {
    connect(&content.addresses, patience).map_err(|failed| {
        if failed.all_refused() {
            return Error::invalid_usage(format!(
                "nobody serves this unique id any more ({}): it was already used, or the process \
                 that made it has gone. Call flagosGetUniqueId once per communicator and keep that \
                 process alive until all ranks have joined",
                failed.tried.join("; ")
            ));
        }
        let who = "the process that made the unique id";
        failed.error(who, Code::SystemError, needs, patience)
    })
}

/// What this rank does at one id.
struct Visit {
    hello: Hello,
    connection: Option<Connection>,
    /// When it comes again.
    again: Option<Instant>,
    away: Duration,
    /// It is counted there.
    welcome: bool,
    /// It stays until all have come.
    stays: bool,
    done: bool,
}

struct Meeting<'a> {
    traveller: Traveller<'a>,
    place: Place,
    listener: Option<&'a Listener>,
    patience: &'a Patience,
    visits: Vec<Visit>,
    up: Option<Link>,
    down: Vec<Option<Link>>,
    /// How to call the neighbours: the parent, then the children.
    names: Vec<String>,
    /// How many descriptors this takes, for an error's text.
    needs: String,
    strangers: Strangers,
}

/// Gets one rank to its place. `listener`: for its children, if the plan says that it listens.
pub(crate) fn meet(
    traveller: Traveller<'_>,
    listener: Option<&Listener>,
    patience: &Patience,
) -> Result<Channel> {
    let place = traveller.plan.tree.place(traveller.rank);
    // Two for rendezvous, one for the parent, one to listen.
    let descriptors = 4 + place.children.len();
    let needs = format!(
        " (rank {} needs up to {descriptors} open files for its control connections, as does each \
         other rank of this process for its own)",
        traveller.rank
    );
    let mut meeting = Meeting {
        traveller,
        listener,
        patience,
        visits: Vec::new(),
        up: None,
        down: place.children.iter().map(|_| None).collect(),
        names: vec![String::new(); 1 + place.children.len()],
        needs,
        strangers: Strangers::default(),
        place,
    };
    let outcome = meeting.plan_visits().and_then(|()| meeting.run());
    if let Err((own, told)) = outcome {
        meeting.tell(&told);
        return Err(own);
    }
    let Meeting { up, down, .. } = meeting;
    let down = down.into_iter().flatten().collect();
    Ok(Channel::new(traveller.plan.tree, traveller.rank, up, down))
}

/// What this rank's error is, and what the others hear.
type Ended = (Error, Error);

fn both(error: Error) -> Ended {
    (error.clone(), error)
}

impl Meeting<'_> {
    fn who(&self) -> String {
        let Traveller {
            rank, pid, host, ..
        } = self.traveller;
        format!("rank {rank} (host {host}, pid {pid})")
    }

    fn plan_visits(&mut self) -> std::result::Result<(), Ended> {
        let Traveller {
            plan, rank, pid, ..
        } = self.traveller;
        let seed: [u8; 8] = process::random()
            .map_err(|e| both(Error::system("the kernel gave no random bytes", e)))?;
        let own = plan.listens(rank).then(|| plan.id_of(rank));
        let parents = self.place.parent.map(|parent| plan.id_of(parent));
        let mut ids: Vec<u32> = own.into_iter().chain(parents).collect();
        ids.dedup();
        for id in ids {
            let listens = match self.listener {
                Some(listener) if own == Some(id) => listener.addresses.clone(),
                _ => Vec::new(),
            };
            self.visits.push(Visit {
                hello: Hello {
                    plan,
                    id,
                    rank,
                    pid,
                    host: self.traveller.host.to_owned(),
                    visitor: u64::from_le_bytes(seed),
                    asks: parents == Some(id),
                    listens,
                },
                connection: None,
                again: Some(Instant::now()),
                away: Duration::ZERO,
                welcome: false,
                stays: own == Some(id) && plan.stays(id) == Some(rank),
                done: false,
            });
        }
        if let Some(listener) = self.listener {
            listener.listener.set_nonblocking(true).map_err(|e| {
                both(Error::system(
                    "the listening socket can't be made non-blocking",
                    e,
                ))
            })?;
        }
        Ok(())
    }

    fn run(&mut self) -> std::result::Result<(), Ended> {
        loop {
            for index in 0..self.visits.len() {
                self.go(index)?;
            }
            if self.is_complete() {
                return Ok(());
            }
            let slice = match self.limits().slice() {
                Ok(slice) => slice,
                Err(end) => return Err(self.give_up(end)),
            };
            self.wait(slice);
            self.accept()?;
            self.hear_strangers();
            self.hear_neighbours()?;
            for index in 0..self.visits.len() {
                self.hear_visit(index)?;
            }
        }
    }

    /// A rank that no rendezvous knows any more hears the verdict from its parent.
    fn limits(&self) -> Patience {
        match self.visits.iter().any(|v| v.connection.is_some()) {
            true => self.patience.clone(),
            false => self.patience.with_grace(GRACE * self.place.depth),
        }
    }

    fn is_complete(&self) -> bool {
        self.visits.iter().all(|visit| visit.done)
            && (self.up.is_some() || self.place.parent.is_none())
            && self.down.iter().all(Option::is_some)
    }

    fn wait(&self, mut slice: Duration) {
        let now = Instant::now();
        for again in self.visits.iter().filter_map(|v| v.again) {
            slice = slice.min(again.saturating_duration_since(now));
        }
        let mut entries: Vec<PollEntry> = Vec::new();
        if let Some(listener) = self.listener {
            entries.extend(self.strangers.poll_entries(&listener.listener));
        }
        let visits = self.visits.iter().filter_map(|v| v.connection.as_ref());
        let links = self.up.iter().chain(self.down.iter().flatten());
        let all = visits.chain(links.map(|link| &link.connection));
        entries.extend(all.map(|c| PollEntry::read(c.fd())));
        poll(&mut entries, slice);
    }

    // ---- the rendezvous

    /// Goes to an id, the first time or again.
    fn go(&mut self, index: usize) -> std::result::Result<(), Ended> {
        let visit = &mut self.visits[index];
        if visit.again.is_none_or(|again| again > Instant::now()) {
            return Ok(());
        }
        visit.again = None;
        let content = &self.traveller.ids[visit.hello.id as usize];
        let mut connection = match connect_any(content, &self.needs, self.patience) {
            Ok(connection) => connection,
            Err(_) if visit.welcome => return Err(both(ended())),
            Err(error) => return Err(both(error)),
        };
        let body = visit.hello.encode(&content.secret);
        let sent = connection.send(Kind::Hello, 0, &body, self.patience);
        let welcome = visit.welcome;
        visit.connection = Some(connection);
        match sent {
            // What it had to say is still to be read.
            Ok(()) | Err(WireError::Closed) => Ok(()),
            Err(error) => Err(self.broken(error, welcome)),
        }
    }

    fn broken(&self, error: WireError, welcome: bool) -> Ended {
        match error {
            WireError::Closed if welcome => both(ended()),
            WireError::Closed | WireError::Garbage => both(Error::invalid_usage(format!(
                "the rendezvous closed the connection {PHASE}: the unique id was already used for \
                 another communicator, or the process that made it has gone. Call \
                 flagosGetUniqueId once per communicator"
            ))),
            WireError::Io(e) => both(Error::system(format!("the connection broke {PHASE}"), e)),
            WireError::Impatient(end) => both(impatience(end, PHASE)),
        }
    }

    fn hear_visit(&mut self, index: usize) -> std::result::Result<(), Ended> {
        loop {
            let visit = &mut self.visits[index];
            let Some(connection) = &mut visit.connection else {
                return Ok(());
            };
            let frame = match connection.try_receive() {
                Ok(None) => return Ok(()),
                Ok(Some(frame)) => frame,
                Err(error) => {
                    let welcome = visit.welcome;
                    visit.connection = None;
                    return Err(self.broken(error, welcome));
                }
            };
            match frame.kind {
                Kind::Fail => {
                    visit.connection = None;
                    return Err(both(decode_error(&frame.body)));
                }
                Kind::Welcome => {
                    visit.welcome = true;
                    if !visit.hello.asks && !visit.stays {
                        visit.done = true;
                        visit.connection = None;
                    }
                }
                Kind::Later => {
                    let ms = Reader(&frame.body).u32().unwrap_or(0);
                    let first = Duration::from_millis(ms.into());
                    visit.away = (visit.away * 2).clamp(first.min(LONGEST_AWAY), LONGEST_AWAY);
                    visit.again = Some(Instant::now() + visit.away);
                    visit.connection = None;
                }
                Kind::Table => {
                    let mut reader = Reader(&frame.body);
                    let addresses = take_addresses(&mut reader)
                        .ok_or_else(|| both(Error::internal("the rendezvous can't be read")))?;
                    if !addresses.is_empty() {
                        self.names[0] = reader.text().unwrap_or_default();
                    }
                    self.answered(index, &addresses)?;
                }
                _ => {}
            }
        }
    }

    /// All are here, or this is where the parent listens.
    fn answered(
        &mut self,
        index: usize,
        addresses: &[SocketAddr],
    ) -> std::result::Result<(), Ended> {
        if self.place.parent.is_some() && !addresses.is_empty() {
            let mut connection = match connect(addresses, self.patience) {
                Ok(connection) => connection,
                Err(failed) => {
                    let own = failed.error(
                        &self.names[0],
                        Code::RemoteError,
                        &self.needs,
                        self.patience,
                    );
                    return Err(self
                        .known_to(index)
                        .map_or_else(|| (own.clone(), own.clone().context(self.who())), both));
                }
            };
            let mut writer = Writer::default();
            writer
                .fixed(&self.traveller.ids[0].secret)
                .u32(self.traveller.rank)
                .bytes(self.who().as_bytes());
            // That it is gone already is found by reading.
            let _ = connection.send(Kind::Join, 0, &writer.0, self.patience);
            self.up = Some(Link::new(connection));
        }
        let visit = &mut self.visits[index];
        if visit.stays && !addresses.is_empty() {
            return Ok(());
        }
        visit.done = true;
        if let Some(mut connection) = visit.connection.take() {
            let _ = connection.send(Kind::Join, 0, &[], &courtesy());
        }
        Ok(())
    }

    /// Why the parent can't be reached, if the rendezvous knows.
    fn known_to(&mut self, index: usize) -> Option<Error> {
        let connection = self.visits[index].connection.as_mut()?;
        loop {
            match connection.receive(&courtesy()) {
                Ok(frame) if frame.kind == Kind::Fail => return Some(decode_error(&frame.body)),
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    }

    // ---- the neighbours

    fn accept(&mut self) -> std::result::Result<(), Ended> {
        let Some(listener) = self.listener else {
            return Ok(());
        };
        let accepted = self.strangers.accept(&listener.listener);
        accepted.map(drop).map_err(|e| {
            let what = "a control connection of another rank can't be accepted";
            let own = Error::system(format!("{what}{}", self.needs), e);
            let told = own.clone().context(self.who());
            (own, told)
        })
    }

    fn hear_strangers(&mut self) {
        let secret: &Secret = &self.traveller.ids[0].secret;
        for (frame, mut connection) in self.strangers.hear() {
            let mut reader = Reader(&frame.body);
            let known =
                frame.kind == Kind::Join && reader.fixed().is_some_and(|s| same_secret(&s, secret));
            let rank = reader.u32().filter(|_| known);
            let mut children = self.place.children.iter();
            match children.position(|c| Some(c.start) == rank) {
                Some(child) => {
                    connection.trust();
                    self.names[1 + child] = reader.text().unwrap_or_default();
                    self.down[child] = Some(Link::new(connection));
                }
                None => log::debug!("a connection without our secret was closed"),
            }
        }
    }

    fn hear_neighbours(&mut self) -> std::result::Result<(), Ended> {
        if let Some(link) = &mut self.up
            && let Err(error) = hear(link, &self.names[0])
        {
            self.up = None;
            return Err(both(error));
        }
        for (child, link) in self.down.iter_mut().enumerate() {
            if let Some(open) = link
                && let Err(error) = hear(open, &self.names[1 + child])
            {
                *link = None;
                return Err(both(error));
            }
        }
        Ok(())
    }

    // ---- the end

    /// Tells everybody who is there why this rank does not go on.
    fn tell(&mut self, error: &Error) {
        // Also to children that have just connected.
        let _ = self.accept();
        self.hear_strangers();
        let body = encode_error(error);
        let patience = courtesy();
        let visits = self.visits.iter_mut().filter_map(|v| v.connection.as_mut());
        let up = self.up.iter_mut().map(|link| &mut link.connection);
        for connection in visits.chain(up) {
            let _ = connection.send(Kind::Abort, 0, &body, &patience);
        }
        for link in self.down.iter_mut().flatten() {
            let _ = link.connection.send(Kind::Fail, 0, &body, &patience);
        }
    }

    /// The deadline has passed, or this rank was aborted.
    fn give_up(&mut self, end: Impatience) -> Ended {
        if end == Impatience::Aborted {
            let gave_up = format!("{} gave up waiting for the other ranks", self.who());
            return (
                impatience(end, PHASE),
                Error::new(Code::RemoteError, gave_up),
            );
        }
        let asked = self.visits.iter_mut().find_map(|visit| {
            let open = visit.connection.as_mut()?;
            Some(who_is_missing(open))
        });
        let absent = self.down.iter().zip(&self.place.children);
        let absent = absent.filter(|(link, _)| link.is_none());
        let absent = ranks_text(absent.map(|(_, range)| range.start));
        let nranks = self.traveller.plan.tree.nranks;
        let who = match asked {
            Some(Err(error)) => return both(error),
            Some(Ok(Some(ranks))) if !ranks.is_empty() => {
                format!("missing: {} of {nranks}", listed_named(&ranks))
            }
            Some(Ok(None)) => String::from("the process that made the unique id does not answer"),
            _ if !absent.is_empty() => format!("missing: {} of {nranks}", listed_named(&absent)),
            _ => match self.place.parent {
                Some(_) if self.up.is_some() => format!("{} did not answer", self.names[0]),
                _ => String::from("the rendezvous did not answer"),
            },
        };
        let own = Error::new(
            Code::Timeout,
            format!(
                "timed out {PHASE}; {who}. Are they started, and do all of them use this unique id? \
                 The limit: FLAGOSCOMM_INIT_TIMEOUT, or the configuration's"
            ),
        );
        let told = own.clone().context(self.who());
        (own, told)
    }
}

fn courtesy() -> Patience {
    Patience::starting_now(Some(COURTESY), &AbortFlag::default())
}

fn ended() -> Error {
    Error::new(
        Code::RemoteError,
        format!(
            "the process that made the unique id ended {PHASE}: it has to live until all ranks have \
             joined"
        ),
    )
}

/// What a neighbour says before all are here: that it does not go on, or what is for later.
fn hear(link: &mut Link, who: &str) -> Result<()> {
    loop {
        match link.connection.try_receive() {
            Ok(None) => return Ok(()),
            Ok(Some(Frame {
                kind: Kind::Abort | Kind::Fail,
                body,
                ..
            })) => return Err(decode_error(&body)),
            Ok(Some(frame)) => link.early.push_back(frame),
            Err(_) => {
                return Err(Error::new(
                    Code::RemoteError,
                    format!(
                        "{who} was here but its connection closed before all ranks had come: it exited \
                         or was killed"
                    ),
                ));
            }
        }
    }
}

/// Asks a rendezvous who is missing, to say so. `None`: it does not answer.
fn who_is_missing(connection: &mut Connection) -> Result<Option<String>> {
    let quick = Patience::starting_now(Some(Duration::from_millis(500)), &AbortFlag::default());
    let _ = connection.send(Kind::Query, 0, &[], &quick);
    loop {
        match connection.receive(&quick) {
            Ok(frame) if frame.kind == Kind::Missing => {
                return Ok(Some(String::from_utf8_lossy(&frame.body).into_owned()));
            }
            Ok(frame) if frame.kind == Kind::Fail => return Err(decode_error(&frame.body)),
            Ok(_) => {}
            Err(_) => return Ok(None),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::bootstrap::interface::{Family, Filter};
    use crate::bootstrap::rendezvous::{listen, start};
    use crate::bootstrap::unique_id;
    use crate::control::tree::Tree;
    use std::io::Write;
    use std::net::TcpStream;

    fn filter() -> Filter {
        Filter::parse("test", "lo")
    }

    pub(crate) fn id() -> IdContent {
        unique_id::decode(&start(Some(&filter()), Family::V4, None).unwrap()).unwrap()
    }

    pub(crate) fn patience(ms: u64) -> Patience {
        Patience::starting_now(Some(Duration::from_millis(ms)), &AbortFlag::default())
    }

    /// One rank's way into the channel.
    pub(crate) fn arrive(
        ids: &[IdContent],
        tree: Tree,
        rank: u32,
        patience: &Patience,
    ) -> Result<Channel> {
        let plan = Plan {
            tree,
            ids: ids.len() as u32,
        };
        let listener = plan
            .listens(rank)
            .then(|| listen(Some(&filter()), Family::V4).unwrap());
        let traveller = Traveller {
            ids,
            plan,
            rank,
            pid: 1000 + rank,
            host: "h",
        };
        meet(traveller, listener.as_ref(), patience)
    }

    /// Some ranks, each on a thread of its own; what became of them.
    fn all<R: Send>(
        ranks: impl IntoIterator<Item = u32>,
        body: impl Fn(u32) -> R + Sync,
    ) -> Vec<R> {
        let body = &body;
        std::thread::scope(|scope| {
            let threads: Vec<_> = ranks
                .into_iter()
                .map(|rank| scope.spawn(move || body(rank)))
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    fn tree(nranks: u32, fan_out: u32) -> Tree {
        Tree { nranks, fan_out }
    }

    /// One rank's way into the channel and its first exchange. A rank whose neighbours are there goes on
    /// to that while others still arrive.
    fn join(ids: &[IdContent], tree: Tree, rank: u32, patience: &Patience) -> Result<Channel> {
        let mut channel = arrive(ids, tree, rank, patience)?;
        channel.allgather("the exchange of facts", b"", patience)?;
        Ok(channel)
    }

    /// That a channel is whole: every rank hears of every other.
    fn works(channel: Result<Channel>, rank: u32, nranks: u32) {
        let own = rank.to_le_bytes();
        let parts = channel
            .unwrap()
            .allgather("a test", &own, &patience(20_000));
        let parts = parts.unwrap();
        assert!((0..nranks).all(|r| parts.of(r as usize) == r.to_le_bytes()));
    }

    #[test]
    fn all_ranks_meet_in_any_tree_and_the_id_is_used_up() {
        for (nranks, fan_out) in [(1, 128), (2, 128), (5, 128), (5, 1), (40, 3), (90, 8)] {
            let ids = [id()];
            let tree = tree(nranks, fan_out);
            all(0..nranks, |rank| {
                // In an order that is none.
                std::thread::sleep(Duration::from_millis(u64::from(rank * 7919 % 23)));
                works(arrive(&ids, tree, rank, &patience(20_000)), rank, nranks);
            });
            let again = arrive(&ids, tree, 0, &patience(3000)).unwrap_err();
            assert_eq!(again.code(), Code::InvalidUsage);
            assert!(again.text().contains("already used"), "{again}");
        }
    }

    #[test]
    fn several_ids_share_the_ranks() {
        for (nranks, fan_out, number) in [(30, 2, 2), (30, 3, 7), (13, 3, 13), (6, 128, 3)] {
            let ids: Vec<IdContent> = (0..number).map(|_| id()).collect();
            let tree = tree(nranks, fan_out);
            all(0..nranks, |rank| {
                works(arrive(&ids, tree, rank, &patience(20_000)), rank, nranks);
            });
            let plan = Plan { tree, ids: number };
            for (index, id) in ids.iter().enumerate() {
                let used = plan.stays(index as u32).is_some();
                let answers = |limit| connect_any(id, "", &patience(limit)).is_ok();
                // Its thread ends a little after the last rank has been answered.
                let right = match used {
                    true => (0..50).any(|_| {
                        std::thread::sleep(Duration::from_millis(20));
                        !answers(100)
                    }),
                    false => answers(5000),
                };
                assert!(right, "id {index} of {number}");
            }
        }
    }

    #[test]
    fn more_ranks_than_may_wait_come_again_when_rank_0_is_late() {
        let (ids, tree) = ([id()], tree(300, 299));
        all(0..300, |rank| {
            if rank == 0 {
                std::thread::sleep(Duration::from_millis(400));
            }
            works(arrive(&ids, tree, rank, &patience(20_000)), rank, 300);
        });
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
        let tree = tree(2, 128);
        assert!(arrive(&[wrong], tree, 0, &patience(2000)).is_err());
        all(0..2, |rank| {
            works(
                arrive(std::slice::from_ref(&id), tree, rank, &patience(5000)),
                rank,
                2,
            );
        });
    }

    #[test]
    fn a_deadline_names_the_missing_ranks_on_all() {
        // Rank 1 is a parent: those below it wait for it at the rendezvous.
        for (fan_out, here, text) in [
            (128, vec![0, 3], "missing: ranks 1, 2, 4 of 5"),
            (2, vec![0, 2, 3, 4], "missing: rank 1 of 5"),
            (1, vec![1, 2, 3, 4], "missing: rank 0 of 5"),
        ] {
            let (ids, tree) = ([id()], tree(5, fan_out));
            for error in all(here, |rank| {
                join(&ids, tree, rank, &patience(1500)).unwrap_err()
            }) {
                assert_eq!(error.code(), Code::Timeout);
                assert!(error.text().contains(text), "{error}");
            }
        }
    }

    #[test]
    fn disagreement_and_twins_are_the_same_error_everywhere() {
        let ids = [id()];
        for error in all(0..2, |rank| {
            join(&ids, tree(2 + rank, 128), rank, &patience(5000)).unwrap_err()
        }) {
            assert_eq!(error.code(), Code::InvalidUsage);
            assert!(
                error.text().contains("says 3") && error.text().contains("says 2"),
                "{error}"
            );
        }
        // With rank 0 and a rank below rank 1 that hear it from where they are.
        let ids = [id()];
        let started = Instant::now();
        for error in all([0, 1, 2, 5, 5], |rank| {
            join(&ids, tree(6, 2), rank, &patience(50_000)).unwrap_err()
        }) {
            assert!(error.text().contains("rank 5 came twice"), "{error}");
        }
        assert!(started.elapsed() < Duration::from_secs(25));
    }

    #[test]
    fn of_many_rendezvous_that_failed_the_latest_tell_latecomers_why() {
        let tree = tree(6, 2);
        let ids: Vec<IdContent> = (0..12)
            .map(|_| {
                let id = id();
                for error in all([5, 5], |rank| {
                    let one = std::slice::from_ref(&id);
                    join(one, tree, rank, &patience(20_000)).unwrap_err()
                }) {
                    assert!(error.text().contains("rank 5 came twice"), "{error}");
                }
                id
            })
            .collect();
        let late = join(&ids[11..], tree, 1, &patience(20_000)).unwrap_err();
        assert!(late.text().contains("rank 5 came twice"), "{late}");
        // The first have gone, each with its thread and its socket.
        let gone = |_| {
            std::thread::sleep(Duration::from_millis(100));
            connect_any(&ids[0], "", &patience(1000)).is_err()
        };
        assert!((0..100).any(gone));
    }

    #[test]
    fn ids_in_another_order_are_found() {
        let ids = [id(), id()];
        let other = [ids[1].clone(), ids[0].clone()];
        let errors = all(0..7, |rank| {
            // It comes first: an id that has all its ranks already would only say that it was used.
            let (mine, late) = if rank == 6 { (&other, 0) } else { (&ids, 100) };
            std::thread::sleep(Duration::from_millis(late));
            join(mine, tree(7, 2), rank, &patience(5000)).unwrap_err()
        });
        assert!(
            errors
                .iter()
                .any(|error| error.text().contains("the same ids in the same order")),
            "{errors:?}"
        );
    }

    #[test]
    fn a_rank_that_dies_while_it_waits_is_named_by_all() {
        // Rank 3 waits for rank 1, which does not come.
        for (fan_out, here) in [(128, [0, 2]), (2, [0, 4])] {
            let (ids, tree) = ([id()], tree(5, fan_out));
            let plan = Plan { tree, ids: 1 };
            let hello = Hello {
                plan,
                id: 0,
                rank: 3,
                pid: 1003,
                host: "h".into(),
                visitor: 1,
                asks: true,
                listens: Vec::new(),
            };
            let mut connection =
                Connection::new(TcpStream::connect(ids[0].addresses[0]).unwrap()).unwrap();
            let body = hello.encode(&ids[0].secret);
            connection
                .send(Kind::Hello, 0, &body, &patience(1000))
                .unwrap();
            let dying = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(200));
                drop(connection);
            });
            for error in all(here, |rank| {
                join(&ids, tree, rank, &patience(20_000)).unwrap_err()
            }) {
                assert_eq!(error.code(), Code::RemoteError);
                assert!(
                    error.text().contains("rank 3 (host h, pid 1003)"),
                    "{error}"
                );
            }
            dying.join().unwrap();
        }
    }

    #[test]
    fn an_abort_while_waiting_ends_the_wait_of_all() {
        let (ids, tree) = ([id()], tree(7, 2));
        let flag = AbortFlag::default();
        let errors = all([0, 1, 2, 3, 5], |rank| {
            let limit = Duration::from_secs(20);
            let other = AbortFlag::default();
            let abort = if rank == 3 { &flag } else { &other };
            if rank == 5 {
                std::thread::sleep(Duration::from_millis(200));
                flag.set();
            }
            join(
                &ids,
                tree,
                rank,
                &Patience::starting_now(Some(limit), abort),
            )
            .unwrap_err()
        });
        for (rank, error) in [0, 1, 2, 3, 5].into_iter().zip(errors) {
            if rank == 3 {
                assert_eq!(error.code(), Code::Aborted);
            } else {
                let text = error.text();
                assert!(
                    text.contains("rank 3 ")
                        && (text.contains("gave up") || text.contains("aborted")),
                    "{text}"
                );
            }
        }
    }
}
