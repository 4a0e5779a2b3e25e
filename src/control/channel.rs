//! The control channel of one communicator: a tree of connections with rank 0 at its top (a star, up
//! to some number of ranks), open as long as the communicator.
//!
//! Every exchange is an all-gather of small payloads: they go up to rank 0, and all of them come down.
//! A rank that fails still takes part, with a payload that says so; a rank that is gone, late or
//! aborted ends the exchange on all ranks with the same error. So that it is the same one, trouble is
//! reported upwards like a payload, and what rank 0 says is the verdict.
#![forbid(unsafe_code)]

use super::gathered::Gathered;
use super::patience::{AbortFlag, Impatience, Patience};
use super::tree::{Place, Tree};
use super::wire::{
    Connection, Frame, Kind, Reader, WireError, Writer, decode_error, encode_error, encode_frame,
};
use crate::error::{Code, Error, Result};
use crate::sys::net::{PollEntry, poll};
use crate::words::ranks_named;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How much longer a rank waits for the verdict after its own deadline, for each hop to rank 0: whoever
/// is nearer knows more about who is missing, and gives up first.
pub(crate) const GRACE: Duration = Duration::from_millis(400);
/// How long a rank that has reported trouble waits for the verdict before it takes its own report for
/// it: rank 0 may not be there.
const VERDICT: Duration = Duration::from_secs(1);
/// Time for a frame that is only a courtesy.
pub(crate) const COURTESY: Duration = Duration::from_millis(300);
/// While its own payload is not ready, an exchange looks this often whether it is.
const OWN_PENDING: Duration = Duration::from_millis(1);
/// Payloads wait at most so long for those of the other ranks below, so that rank 0 can say who is
/// missing.
const LINGER: Duration = Duration::from_millis(50);

/// How a rank stands to this one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Peer {
    #[default]
    Here,
    /// Destroyed its communicator in order, after so many collectives if that was told.
    Left(Option<u64>),
    /// Ended without goodbye; the text says how we know.
    Dead(String),
}

/// A connection to a neighbour in the tree.
#[derive(Debug)]
pub(crate) struct Link {
    pub connection: Connection,
    /// Frames of a later exchange that came early.
    pub early: VecDeque<Frame>,
}

impl Link {
    pub(crate) fn new(connection: Connection) -> Link {
        Link {
            connection,
            early: VecDeque::new(),
        }
    }

    fn next(&mut self) -> std::result::Result<Option<Frame>, WireError> {
        match self.early.pop_front() {
            Some(frame) => Ok(Some(frame)),
            None => self.connection.try_receive(),
        }
    }

    fn may_have_frames(&self) -> bool {
        !self.early.is_empty() || self.connection.has_frame()
    }
}

/// One of the neighbours in the tree: the parent, or a child by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Up,
    Down(usize),
}

/// What a rank is called in error texts, beside its number.
type Names = Arc<dyn Fn(u32) -> String + Send + Sync>;

/// One rank's end of the channel.
pub(crate) struct Channel {
    rank: u32,
    nranks: u32,
    tree: Tree,
    place: Place,
    /// The connections to the parent and to the children; `None` after they are gone.
    up: Option<Link>,
    down: Vec<Option<Link>>,
    tag: u32,
    /// The ranks that are not here any more, as far as the channel has told.
    gone: BTreeMap<u32, Peer>,
    names: Option<Names>,
    /// The first failure; every later exchange returns it.
    failed: Option<Error>,
    /// What another rank has done that ended the communicator's operations, while the channel goes on.
    ended: Option<Error>,
    /// The ranks show each other that they are alive.
    beats: Option<Beats>,
}

/// See [`Channel::start_beats`].
#[derive(Debug)]
struct Beats {
    limit: Duration,
    last: Instant,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Channel(rank {} of {})", self.rank, self.nranks)
    }
}

pub(crate) fn impatience(end: Impatience, phase: &str) -> Error {
    match end {
        Impatience::Aborted => Error::new(Code::Aborted, format!("aborted {phase}")),
        Impatience::Expired => Error::new(Code::Timeout, format!("timed out {phase}")),
    }
}

/// The state of one exchange on one rank.
struct Exchange<'a> {
    phase: &'a str,
    parts: Gathered,
    /// The ranks from here down whose payloads the parent has.
    sent: Vec<bool>,
    /// How many payloads each child still owes.
    owed: Vec<usize>,
    /// Children that have closed their connection after they had given everything: found later.
    quiet: Vec<bool>,
    /// A payload is fatal: the exchange ends although others are missing.
    ends: bool,
    /// Since when a payload waits to be sent up.
    waits: Option<Instant>,
    /// What was reported to the parent, and when.
    trouble: Option<(Instant, Error)>,
}

impl Channel {
    /// One rank's end, over connections that are there: one to the parent, unless this is rank 0, and
    /// one per child of its place in the tree.
    pub(crate) fn new(tree: Tree, rank: u32, up: Option<Link>, down: Vec<Link>) -> Channel {
        Channel {
            rank,
            nranks: tree.nranks,
            tree,
            place: tree.place(rank),
            up,
            down: down.into_iter().map(Some).collect(),
            tag: 0,
            gone: BTreeMap::new(),
            names: None,
            failed: None,
            ended: None,
            beats: None,
        }
    }

    /// The address by which this rank has reached the others.
    pub(crate) fn own_address(&self) -> Option<SocketAddr> {
        let mut links = self.up.iter().chain(self.down.iter().flatten());
        links.find_map(|link| link.connection.local_address())
    }

    /// Learns how to call the ranks in error texts ("host h, pid 7").
    pub(crate) fn set_names(&mut self, names: impl Fn(u32) -> String + Send + Sync + 'static) {
        self.names = Some(Arc::new(names));
    }

    /// "rank 3 (host h, pid 7)".
    pub(crate) fn who(&self, rank: u32) -> String {
        match &self.names {
            Some(names) => format!("rank {rank} ({})", names(rank)),
            None => format!("rank {rank}"),
        }
    }

    /// How a rank stands, as far as the channel has told.
    pub(crate) fn peer(&self, rank: u32) -> &Peer {
        self.gone.get(&rank).unwrap_or(&Peer::Here)
    }

    /// Every rank's payload.
    pub(crate) fn allgather(
        &mut self,
        phase: &str,
        payload: &[u8],
        patience: &Patience,
    ) -> Result<Gathered> {
        let mut own = Some(payload.to_vec());
        self.allgather_when(phase, &mut || own.take(), &|_| false, patience)
    }

    /// As [`Channel::allgather`], for a payload that becomes ready during the wait (`ready` is
    /// asked until it gives one). Ends as soon as one payload is `fatal`; those that are not in by
    /// then are missing on all ranks.
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
        let result = self.exchange(phase, ready, fatal, patience);
        if let Err(error) = &result {
            self.failed = Some(error.clone());
        }
        result
    }

    fn sides(&self) -> impl Iterator<Item = Side> + use<> {
        let up = self.place.parent.map(|_| Side::Up);
        up.into_iter()
            .chain((0..self.place.children.len()).map(Side::Down))
    }

    fn link(&mut self, side: Side) -> &mut Option<Link> {
        match side {
            Side::Up => &mut self.up,
            Side::Down(child) => &mut self.down[child],
        }
    }

    fn rank_at(&self, side: Side) -> u32 {
        match side {
            Side::Up => self.place.parent.unwrap_or(0),
            Side::Down(child) => self.place.children[child].start,
        }
    }

    fn next_frame(&mut self, side: Side) -> std::result::Result<Option<Frame>, WireError> {
        match self.link(side) {
            Some(link) => link.next(),
            None => Err(WireError::Closed),
        }
    }

    /// Waits until one of the neighbours that are `wanted` has something to say, or takes what was
    /// posted. Those that may have something to say.
    fn wait(&mut self, wanted: &dyn Fn(Side) -> bool, limit: Duration) -> Vec<Side> {
        let mut heard = Vec::new();
        let mut asked = Vec::new();
        let mut entries = Vec::new();
        for side in self.sides() {
            let Some(link) = self.peek(side) else {
                continue;
            };
            let mut entry = PollEntry::read(link.connection.fd());
            entry.want_read = wanted(side);
            entry.want_write = link.connection.has_unsent();
            if entry.want_read && link.may_have_frames() {
                heard.push(side);
                entry.want_read = false;
            }
            if entry.want_read || entry.want_write {
                entries.push(entry);
                asked.push(side);
            }
        }
        let limit = if heard.is_empty() {
            limit
        } else {
            Duration::ZERO
        };
        poll(&mut entries, limit);
        for (entry, side) in entries.iter().zip(asked) {
            if entry.writable
                && let Some(link) = self.link(side)
            {
                // That nothing can be sent is found by reading.
                let _ = link.connection.flush();
            }
            if entry.want_read && entry.readable {
                heard.push(side);
            }
        }
        heard
    }

    /// The link to a neighbour, if it is there.
    fn peek(&self, side: Side) -> Option<&Link> {
        match side {
            Side::Up => self.up.as_ref(),
            Side::Down(child) => self.down[child].as_ref(),
        }
    }

    /// Sends a frame to every neighbour for which there is one, and waits a little for those that do not read.
    fn spread(&mut self, frame: &dyn Fn(Side) -> Option<Arc<[u8]>>, patience: &Patience) {
        for side in self.sides() {
            if let Some(frame) = frame(side)
                && let Some(link) = self.link(side)
            {
                // A rank that is gone by now is found when it is heard.
                let _ = link.connection.post(frame);
            }
        }
        loop {
            let waits = self
                .sides()
                .any(|side| self.peek(side).is_some_and(|l| l.connection.has_unsent()));
            match patience.slice() {
                Ok(slice) if waits => drop(self.wait(&|_| false, slice)),
                _ => return,
            }
        }
    }

    /// Tells a failure to every neighbour but the one that it came from.
    fn tell_failure(&mut self, error: &Error, from: Option<Side>) {
        let body = encode_error(error);
        let up = encode_frame(Kind::Abort, 0, &body);
        let down = encode_frame(Kind::Fail, 0, &body);
        let frame = |side| match side {
            side if Some(side) == from => None,
            Side::Up => Some(Arc::clone(&up)),
            Side::Down(_) => Some(Arc::clone(&down)),
        };
        self.spread(&frame, &courtesy());
    }

    /// The text about a rank that has closed its connection; the same on whoever finds it.
    fn closed(&self, rank: u32, when: &str) -> String {
        let who = self.who(rank);
        let mut text =
            format!("{who} closed its control connection {when}: it exited or was killed");
        // Without rank 0 nobody hears of others; without one in between, those below it.
        let range = self.tree.range(rank);
        if range.len() > 1 && rank != 0 {
            let below = ranks_named(range.start + 1..range.end);
            text += &format!(" ({below} reached the others through it)");
        }
        text
    }

    /// Takes note of a rank that is not here any more. `false`: that was known.
    fn note(&mut self, rank: u32, how: Peer) -> bool {
        let new = rank < self.nranks && *self.peer(rank) == Peer::Here;
        if new {
            self.gone.insert(rank, how);
        }
        new
    }

    /// Takes note, and tells all neighbours but the one that said it.
    fn spread_news(&mut self, rank: u32, how: Peer, from: Side) {
        if !self.note(rank, how.clone()) {
            return;
        }
        let mut writer = Writer::default();
        let kind = match &how {
            Peer::Dead(text) => {
                writer.u32(rank).bytes(text.as_bytes());
                Kind::Dead
            }
            Peer::Left(collectives) => {
                farewell(&mut writer, rank, *collectives);
                Kind::Bye
            }
            Peer::Here => return,
        };
        let frame = encode_frame(kind, 0, &writer.0);
        self.spread(
            &|side| (side != from).then(|| Arc::clone(&frame)),
            &courtesy(),
        );
    }

    /// What a neighbour says of a rank that has ended the communicator's operations.
    fn hear_end(&mut self, side: Side, body: &[u8]) {
        if self.ended.is_none() {
            self.ended = Some(decode_error(body).announced());
            let frame = encode_frame(Kind::Ended, 0, body);
            let others = |to| (to != side).then(|| Arc::clone(&frame));
            self.spread(&others, &courtesy());
        }
    }

    /// What a neighbour says about itself or another rank that is not here any more.
    fn hear_news(&mut self, side: Side, frame: &Frame) {
        let mut reader = Reader(&frame.body);
        let neighbour = self.rank_at(side);
        let about = reader.u32().unwrap_or(neighbour);
        let how = match frame.kind {
            Kind::Dead => Peer::Dead(reader.text().unwrap_or_default()),
            _ => Peer::Left(reader.u64()),
        };
        if about == neighbour {
            *self.link(side) = None;
        }
        self.spread_news(about, how, side);
    }

    /// The error about a rank that can't take part.
    fn absent(&self, rank: u32, phase: &str) -> Error {
        let text = match self.peer(rank) {
            Peer::Dead(text) => text.clone(),
            Peer::Left(_) => format!(
                "{} has left (destroyed its communicator) before the end of {phase}",
                self.who(rank)
            ),
            Peer::Here => self.closed(rank, &format!("during {phase}")),
        };
        Error::new(Code::RemoteError, text)
    }

    fn exchange(
        &mut self,
        phase: &str,
        ready: &mut dyn FnMut() -> Option<Vec<u8>>,
        fatal: &dyn Fn(&[u8]) -> bool,
        patience: &Patience,
    ) -> Result<Gathered> {
        let own = self.place.range.clone();
        let mut exchange = Exchange {
            phase,
            parts: Gathered::new(self.nranks),
            sent: vec![false; own.len()],
            owed: self.place.children.iter().map(Range::len).collect(),
            quiet: vec![false; self.down.len()],
            ends: false,
            waits: None,
            trouble: None,
        };
        // Rank 0 names who is missing; its word is worth a little more waiting.
        let waiting = match self.place.parent {
            None => patience.clone(),
            Some(_) => patience.with_grace(GRACE * self.place.depth),
        };
        let mut heard: Vec<Side> = self.sides().collect();
        loop {
            self.beat();
            let mut pending = exchange.parts.get(self.rank as usize).is_none();
            if pending
                && exchange.trouble.is_none()
                && let Some(payload) = ready()
            {
                exchange.take(self.rank..self.rank + 1, &payload, fatal);
                pending = false;
            }
            for side in heard {
                match side {
                    Side::Down(child) if exchange.trouble.is_none() => {
                        if let Err(error) = self.hear_child(child, &mut exchange, fatal) {
                            self.report(&mut exchange, error)?;
                        }
                    }
                    Side::Down(_) => {}
                    Side::Up => {
                        if let Some(whole) = self.hear_parent(&mut exchange, patience)? {
                            return Ok(whole);
                        }
                    }
                }
            }
            if exchange.trouble.is_none() {
                let absent = self.gone.range(own.clone()).map(|(rank, _)| *rank);
                let absent = absent
                    .filter(|rank| exchange.parts.get(*rank as usize).is_none())
                    .min();
                if let Some(rank) = absent {
                    let error = self.absent(rank, phase);
                    self.report(&mut exchange, error)?;
                }
            }
            let all = exchange.parts.present() == own.len();
            if self.place.parent.is_none() {
                if all || exchange.ends {
                    let mut body = Vec::new();
                    exchange.parts.pack(own, |_| true, &mut body);
                    self.hand_down(&body, patience);
                    return Ok(exchange.parts);
                }
            } else if exchange
                .waits
                .is_some_and(|since| all || exchange.ends || since.elapsed() >= LINGER)
            {
                self.hand_up(&mut exchange);
            }
            let slice = waiting.slice().map_err(|end| {
                // Its word may come while this rank gives up.
                self.give_up(&exchange, end)
            })?;
            if let Some((since, error)) = &exchange.trouble
                && since.elapsed() >= VERDICT
            {
                let error = error.clone();
                self.tell_failure(&error, Some(Side::Up));
                return Err(error);
            }
            let mut limit = slice;
            if pending {
                limit = limit.min(OWN_PENDING);
            }
            if let Some(since) = exchange.waits {
                limit = limit.min(LINGER.saturating_sub(since.elapsed()));
            }
            let (quiet, reported) = (&exchange.quiet, exchange.trouble.is_some());
            let wanted = |side| match side {
                Side::Up => true,
                Side::Down(child) => !reported && !quiet[child],
            };
            heard = self.wait(&wanted, limit);
        }
    }

    /// Trouble below, or here: on rank 0 the verdict, else a report to the parent.
    fn report(&mut self, exchange: &mut Exchange<'_>, error: Error) -> Result<()> {
        if self.place.parent.is_none() {
            // A rank whose time is over first knows less than this one.
            let error = match error.code() {
                Code::Timeout => Error::new(
                    Code::Timeout,
                    format!(
                        "{}; missing: {}",
                        error.text(),
                        self.missing(&exchange.parts)
                    ),
                ),
                _ => error,
            };
            self.tell_failure(&error, None);
            return Err(error);
        }
        let frame = encode_frame(Kind::Abort, 0, &encode_error(&error));
        if let Some(link) = &mut self.up {
            let _ = link.connection.post(frame);
        }
        exchange.trouble = Some((Instant::now(), error));
        Ok(())
    }

    /// Takes in what a child has sent. An error ends the exchange.
    fn hear_child(
        &mut self,
        child: usize,
        exchange: &mut Exchange<'_>,
        fatal: &dyn Fn(&[u8]) -> bool,
    ) -> Result<()> {
        let side = Side::Down(child);
        let rank = self.rank_at(side);
        loop {
            let frame = match self.next_frame(side) {
                Ok(None) => return Ok(()),
                Ok(Some(frame)) => frame,
                Err(_) if exchange.owed[child] == 0 => {
                    // It has taken part; the next exchange, or a look, finds that it is gone.
                    exchange.quiet[child] = true;
                    return Ok(());
                }
                Err(_) => {
                    let error = self.absent(rank, exchange.phase);
                    *self.link(side) = None;
                    self.note(rank, Peer::Dead(error.text().to_owned()));
                    return Err(error);
                }
            };
            match frame.kind {
                Kind::Part if frame.tag == self.tag => {
                    let mut reader = Reader(&frame.body);
                    let theirs = reader.text().unwrap_or_default();
                    if theirs != exchange.phase {
                        return Err(Error::invalid_usage(format!(
                            "the ranks make different calls: {} is at {theirs}, but {} is at {}",
                            self.who(rank),
                            self.who(self.rank),
                            exchange.phase
                        )));
                    }
                    let range = self.place.children[child].clone();
                    exchange
                        .take_all(child, range, reader.0, fatal)
                        .ok_or_else(|| {
                            Error::internal(format!("what {} sent can't be read", self.who(rank)))
                        })?;
                }
                // Of an exchange that ended early.
                Kind::Part => {}
                Kind::Abort | Kind::Fail => return Err(decode_error(&frame.body)),
                Kind::Bye | Kind::Dead => {
                    let owed = exchange.owed[child] > 0;
                    self.hear_news(side, &frame);
                    if self.link(side).is_none() {
                        exchange.quiet[child] = true;
                        return match owed {
                            true => Err(self.absent(rank, exchange.phase)),
                            false => Ok(()),
                        };
                    }
                }
                Kind::Ended => self.hear_end(side, &frame.body),
                _ => {}
            }
        }
    }

    /// Takes in what the parent has sent: the result, or an error, which goes on to the children.
    fn hear_parent(
        &mut self,
        exchange: &mut Exchange<'_>,
        patience: &Patience,
    ) -> Result<Option<Gathered>> {
        let rank = self.rank_at(Side::Up);
        loop {
            let error = match self.next_frame(Side::Up) {
                Ok(None) => return Ok(None),
                Ok(Some(frame)) => match frame.kind {
                    Kind::Whole if frame.tag == self.tag => {
                        self.hand_down(&frame.body, patience);
                        // Rank 0 had not heard of it; it will before the next exchange.
                        self.failed = exchange.trouble.take().map(|(_, error)| error);
                        let mut whole = Gathered::new(self.nranks);
                        let read = whole.unpack(0..self.nranks, &frame.body, |_, _| ());
                        return match read {
                            Some(()) => Ok(Some(whole)),
                            None => Err(Error::internal("rank 0's answer can't be read")),
                        };
                    }
                    Kind::Abort | Kind::Fail => decode_error(&frame.body),
                    Kind::Bye | Kind::Dead => {
                        self.hear_news(Side::Up, &frame);
                        match self.up {
                            Some(_) => continue,
                            None => self.absent(rank, exchange.phase),
                        }
                    }
                    Kind::Ended => {
                        self.hear_end(Side::Up, &frame.body);
                        continue;
                    }
                    _ => continue,
                },
                Err(_) => {
                    let error = self.absent(rank, exchange.phase);
                    self.up = None;
                    self.note(rank, Peer::Dead(error.text().to_owned()));
                    match exchange.trouble.take() {
                        Some((_, trouble)) => trouble,
                        None => error,
                    }
                }
            };
            self.tell_failure(&error, Some(Side::Up));
            return Err(error);
        }
    }

    /// Sends the result to the children.
    fn hand_down(&mut self, body: &[u8], patience: &Patience) {
        if self.down.is_empty() {
            return;
        }
        let frame = encode_frame(Kind::Whole, self.tag, body);
        let down = |side| (side != Side::Up).then(|| Arc::clone(&frame));
        self.spread(&down, &patience.with_grace(COURTESY));
    }

    /// Sends the parent what it does not have yet.
    fn hand_up(&mut self, exchange: &mut Exchange<'_>) {
        let own = self.place.range.clone();
        let at = |rank: u32| (rank - own.start) as usize;
        let mut writer = Writer::default();
        writer.bytes(exchange.phase.as_bytes());
        let sent = &exchange.sent;
        exchange
            .parts
            .pack(own.clone(), |rank| !sent[at(rank)], &mut writer.0);
        for rank in own.clone() {
            exchange.sent[at(rank)] |= exchange.parts.get(rank as usize).is_some();
        }
        exchange.waits = None;
        if let Some(link) = &mut self.up {
            // What the parent had to say may still be waiting to be read.
            let _ = link
                .connection
                .post(encode_frame(Kind::Part, self.tag, &writer.0));
        }
    }

    /// The own deadline has passed, or this rank was aborted: tells the others.
    fn give_up(&mut self, exchange: &Exchange<'_>, end: Impatience) -> Error {
        let phase = exchange.phase;
        let own = impatience(end, &format!("during {phase}"));
        let Some(parent) = self.place.parent else {
            let missing = self.missing(&exchange.parts);
            let error = Error::new(own.code(), format!("{}; missing: {missing}", own.text()));
            let told = match end {
                Impatience::Aborted => self.aborted(phase),
                Impatience::Expired => error.clone(),
            };
            self.tell_failure(&told, None);
            return error;
        };
        if let Some((_, trouble)) = &exchange.trouble
            && end == Impatience::Expired
        {
            let trouble = trouble.clone();
            self.tell_failure(&trouble, Some(Side::Up));
            return trouble;
        }
        let error = Error::new(
            own.code(),
            format!("{}; {} did not answer", own.text(), self.who(parent)),
        );
        let told = match end {
            Impatience::Aborted => self.aborted(phase),
            Impatience::Expired => error.clone().context(self.who(self.rank)),
        };
        self.tell_failure(&told, None);
        error
    }

    /// What the others hear of an abort here.
    fn aborted(&self, phase: &str) -> Error {
        Error::new(
            Code::RemoteError,
            format!("{} was aborted during {phase}", self.who(self.rank)),
        )
    }

    /// The ranks whose payloads rank 0 misses, in words.
    fn missing(&self, parts: &Gathered) -> String {
        let absent = |rank: &u32| parts.get(*rank as usize).is_none();
        // Those below a rank that is missing can't be heard, here or not.
        let unheard = |rank: &u32| {
            let above = std::iter::successors(self.tree.parent(*rank), |r| self.tree.parent(*r));
            above.filter(|one| *one != 0).any(|one| absent(&one))
        };
        let (below, missing): (Vec<u32>, Vec<u32>) =
            (0..self.nranks).filter(absent).partition(unheard);
        let mut text = format!("{} of {}", ranks_named(missing), self.nranks);
        if !below.is_empty() {
            let below = ranks_named(below);
            text += &format!(" ({below} would be heard through it)");
        }
        text
    }

    /// Looks, without waiting, at what came: news of other ranks, an abort, a closed connection.
    /// The error is the first failure that concerns the whole communicator.
    pub(crate) fn look(&mut self) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        // What came early is for the next exchange.
        let mut early: Vec<(Side, VecDeque<Frame>)> = Vec::new();
        for side in self.sides() {
            if let Some(link) = self.link(side)
                && !link.early.is_empty()
            {
                early.push((side, std::mem::take(&mut link.early)));
            }
        }
        let heard = self.wait(&|_| true, Duration::ZERO);
        let result = heard.into_iter().try_for_each(|side| self.look_at(side));
        for (side, mut frames) in early {
            if let Some(link) = self.link(side) {
                frames.append(&mut link.early);
                link.early = frames;
            }
        }
        result
    }

    fn look_at(&mut self, side: Side) -> Result<()> {
        let mut early = VecDeque::new();
        let result = loop {
            match self.next_frame(side) {
                Ok(None) => break Ok(()),
                Ok(Some(frame)) => match frame.kind {
                    Kind::Bye | Kind::Dead => {
                        self.hear_news(side, &frame);
                        if self.link(side).is_none() {
                            break Ok(());
                        }
                    }
                    Kind::Part | Kind::Whole => early.push_back(frame),
                    Kind::Ended => self.hear_end(side, &frame.body),
                    Kind::Abort | Kind::Fail => {
                        let error = decode_error(&frame.body);
                        self.tell_failure(&error, Some(side));
                        self.failed = Some(error.clone());
                        break Err(error);
                    }
                    _ => {}
                },
                Err(_) => {
                    let rank = self.rank_at(side);
                    *self.link(side) = None;
                    let text = self.closed(rank, "without saying goodbye");
                    log::warn!("{text}");
                    self.spread_news(rank, Peer::Dead(text), side);
                    break Ok(());
                }
            }
        };
        if let Some(link) = self.link(side) {
            link.early.append(&mut early);
        }
        result
    }

    /// From now on every rank shows its neighbours that it is alive, and one that has not done so for
    /// as long as the limit counts as dead. All ranks have to do this.
    pub(crate) fn start_beats(&mut self, limit: Duration) {
        for side in self.sides() {
            if let Some(link) = self.link(side) {
                link.connection.excuse();
            }
        }
        self.beats = Some(Beats {
            limit,
            last: Instant::now(),
        });
        self.send_beats();
    }

    /// To be called several times within the limit.
    pub(crate) fn beat(&mut self) {
        let Some(beats) = &mut self.beats else {
            return;
        };
        let limit = beats.limit;
        let since = beats.last.elapsed();
        if since < limit / 4 {
            return;
        }
        beats.last = Instant::now();
        for side in self.sides() {
            let Some(link) = self.link(side) else {
                continue;
            };
            if since > limit / 2 {
                // This process itself stood still, perhaps with the others.
                link.connection.excuse();
            }
            if link.connection.silent_for() > limit {
                let rank = self.rank_at(side);
                *self.link(side) = None;
                let text = format!(
                    "{} has not been heard of for {:.1} s: it was stopped, or the network to it is \
                     cut (the limit: FLAGOSCOMM_LIVENESS)",
                    self.who(rank),
                    limit.as_secs_f64()
                );
                log::warn!("{text}");
                self.spread_news(rank, Peer::Dead(text), side);
            }
        }
        self.send_beats();
    }

    fn send_beats(&mut self) {
        let frame = encode_frame(Kind::Beat, 0, &[]);
        for side in self.sides() {
            if let Some(link) = self.link(side)
                && !link.connection.has_unsent()
            {
                // That it is gone is found by reading.
                let _ = link.connection.post(Arc::clone(&frame));
            }
        }
    }

    /// Whether no rank is known to have left or died.
    pub(crate) fn all_here(&self) -> bool {
        self.gone.is_empty()
    }

    /// The first rank that is known to have died, as an error.
    pub(crate) fn first_dead(&self) -> Result<()> {
        match self.gone.values().find_map(|p| match p {
            Peer::Dead(text) => Some(text),
            _ => None,
        }) {
            Some(text) => Err(Error::new(Code::RemoteError, text.clone())),
            None => Ok(()),
        }
    }

    /// Whether a rank has left before it had made as many collectives as this one, which waits for it then.
    pub(crate) fn left_early(&self, own: u64) -> Result<()> {
        let early = |(rank, peer): (&u32, &Peer)| match peer {
            Peer::Left(Some(theirs)) if *theirs < own => Some((*rank, *theirs)),
            _ => None,
        };
        match self.gone.iter().find_map(early) {
            None => Ok(()),
            Some((rank, theirs)) => Err(Error::new(
                Code::RemoteError,
                format!(
                    "{} destroyed its communicator after collective #{theirs}; this rank is at #{own}, \
                     which can't complete",
                    self.who(rank)
                ),
            )),
        }
    }

    /// Tells the others that this rank can't go on, and why, unless they have told it of a failure.
    pub(crate) fn announce_failure(&mut self, error: &Error) {
        if self.failed.is_some() {
            return;
        }
        let text = format!("{} can't go on: {}", self.who(self.rank), error.text());
        self.failed = Some(error.clone());
        self.tell_failure(&Error::new(Code::RemoteError, text), None);
    }

    /// Whether another rank has ended the communicator's operations, as far as the channel has told.
    pub(crate) fn ended(&self) -> Result<()> {
        self.ended.clone().map_or(Ok(()), Err)
    }

    /// Tells the others what this rank has done that ended the communicator's operations. The channel goes on.
    pub(crate) fn announce_end(&mut self, deed: &str) {
        let text = format!("{} {deed}", self.who(self.rank));
        let error = Error::new(Code::RemoteError, text);
        let frame = encode_frame(Kind::Ended, 0, &encode_error(&error));
        self.spread(&|_| Some(Arc::clone(&frame)), &courtesy());
    }

    /// Tells the others that this rank's communicator was aborted.
    pub(crate) fn announce_abort(&mut self, text: &str) {
        let error = Error::new(
            Code::RemoteError,
            format!("{} aborted the communicator{text}", self.who(self.rank)),
        );
        self.tell_failure(&error, None);
    }

    /// Says goodbye in order, with the number of collectives that this rank has made, and closes the
    /// connections.
    pub(crate) fn leave(&mut self, collectives: Option<u64>) {
        // What has come is passed on before nobody can: the ranks below hear the others through this one.
        let _ = self.look();
        let mut writer = Writer::default();
        farewell(&mut writer, self.rank, collectives);
        let frame = encode_frame(Kind::Bye, 0, &writer.0);
        self.spread(&|_| Some(Arc::clone(&frame)), &courtesy());
        self.up = None;
        self.down.fill_with(|| None);
    }
}

impl Exchange<'_> {
    fn take(&mut self, ranks: Range<u32>, payload: &[u8], fatal: &dyn Fn(&[u8]) -> bool) {
        self.parts.put(ranks, payload);
        self.ends |= fatal(payload);
        self.waits.get_or_insert_with(Instant::now);
    }

    /// Takes in what a child has sent of its range. `None`: it can't be read.
    fn take_all(
        &mut self,
        child: usize,
        range: Range<u32>,
        packed: &[u8],
        fatal: &dyn Fn(&[u8]) -> bool,
    ) -> Option<()> {
        let before = self.parts.present();
        let mut ends = false;
        self.parts
            .unpack(range, packed, |_, payload| ends |= fatal(payload))?;
        self.ends |= ends;
        self.owed[child] = self.owed[child].checked_sub(self.parts.present() - before)?;
        self.waits.get_or_insert_with(Instant::now);
        Some(())
    }
}

/// What is said about a rank that leaves in order.
fn farewell(writer: &mut Writer, rank: u32, collectives: Option<u64>) {
    writer.u32(rank);
    if let Some(collectives) = collectives {
        writer.u64(collectives);
    }
}

fn courtesy() -> Patience {
    Patience::starting_now(Some(COURTESY), &AbortFlag::default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::meet::tests::{arrive, id, patience};
    use std::sync::atomic::AtomicU32;
    use std::sync::atomic::Ordering::Relaxed;

    /// The same for a star and for trees, with deep ones among them.
    const SHAPES: [(u32, u32); 5] = [(3, 128), (7, 2), (5, 1), (14, 3), (40, 3)];

    fn ranks<R: Send>(
        (nranks, fan_out): (u32, u32),
        body: impl Fn(u32, Channel) -> R + Sync,
    ) -> Vec<R> {
        let ids = [id()];
        let (body, ids) = (&body, &ids);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..nranks)
                .map(|rank| {
                    scope.spawn(move || {
                        let tree = Tree { nranks, fan_out };
                        let mut channel = arrive(ids, tree, rank, &patience(20_000)).unwrap();
                        channel.set_names(|rank| format!("pid {rank}"));
                        // No rank dies before all are here.
                        channel
                            .allgather("a start", b"", &patience(20_000))
                            .unwrap();
                        body(rank, channel)
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    /// A star, a chain, and trees whose ranks are a leaf, an inner one and the top.
    fn shapes_and_ranks() -> impl Iterator<Item = ((u32, u32), u32)> {
        SHAPES
            .into_iter()
            .flat_map(|(n, f)| [0, 1, n / 2, n - 1].map(|rank| ((n, f), rank)))
    }

    #[test]
    fn allgather_gives_every_payload_in_rank_order() {
        for shape in [(1, 1), (2, 128), (17, 128), (17, 2), (6, 1), (60, 4)] {
            ranks(shape, |rank, mut channel| {
                for round in 0..20u32 {
                    let own = vec![rank as u8; (rank + round) as usize];
                    let parts = channel
                        .allgather("a test", &own, &patience(20_000))
                        .unwrap();
                    assert_eq!(parts.present(), shape.0 as usize);
                    for (r, part) in parts.all().enumerate() {
                        assert_eq!(part, vec![r as u8; r + round as usize]);
                    }
                }
            });
        }
    }

    #[test]
    fn large_payloads_do_not_block_the_tree() {
        // More than the sockets hold, on the way up and down.
        ranks((7, 2), |rank, mut channel| {
            let own: Vec<u8> = (0..1u32 << 20).map(|i| (i ^ rank) as u8).collect();
            let parts = channel
                .allgather("a test", &own, &patience(60_000))
                .unwrap();
            for (r, part) in parts.all().enumerate() {
                assert!(part.len() == own.len() && part[5] == 5 ^ r as u8);
            }
        });
    }

    /// An exchange to which one rank does not come before all others have given up.
    fn without(shape: (u32, u32), late: u32) -> Vec<Option<Error>> {
        let waiting = AtomicU32::new(shape.0 - 1);
        ranks(shape, |rank, mut channel| {
            if rank == late {
                while waiting.load(Relaxed) > 0 {
                    std::thread::sleep(Duration::from_millis(5));
                }
                return None;
            }
            let end = channel.allgather("the vote", b"x", &patience(200));
            waiting.fetch_sub(1, Relaxed);
            Some(end.unwrap_err())
        })
    }

    #[test]
    fn a_late_rank_is_named_on_all_others() {
        for (shape, late) in shapes_and_ranks() {
            for error in without(shape, late).into_iter().flatten() {
                let text = error.text();
                assert_eq!(error.code(), Code::Timeout, "{shape:?} {late}: {text}");
                let named = format!("during the vote; missing: rank {late} of {}", shape.0);
                // Those below it hear nobody else.
                let unanswered = format!("rank {late} (pid {late}) did not answer");
                assert!(
                    text.contains(&named) || text.contains(&unanswered),
                    "{shape:?} {late}: {text}"
                );
            }
        }
    }

    #[test]
    fn ranks_below_a_late_one_are_not_called_missing() {
        let ends = without((7, 2), 1);
        for rank in [0, 4, 5, 6] {
            let text = ends[rank].as_ref().unwrap().text();
            assert!(
                text.contains("missing: rank 1 of 7 (ranks 2, 3 would be heard through it)"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_dead_rank_ends_the_exchange_on_all_ranks_with_its_name() {
        for (shape, dead) in shapes_and_ranks() {
            let started = Instant::now();
            let ends = ranks(shape, |rank, mut channel| {
                if rank == dead {
                    return None;
                }
                Some(
                    channel
                        .allgather("the vote", b"x", &patience(20_000))
                        .unwrap_err(),
                )
            });
            let texts: Vec<String> = ends.into_iter().flatten().map(|e| e.to_string()).collect();
            for text in &texts {
                assert!(
                    text.contains(&format!("rank {dead} (pid {dead}) closed")),
                    "{shape:?} {dead}: {text}"
                );
            }
            texts.windows(2).for_each(|two| assert_eq!(two[0], two[1]));
            assert!(started.elapsed() < Duration::from_secs(10));
        }
    }

    #[test]
    fn those_cut_off_by_a_dead_rank_are_listed() {
        let ends = ranks((7, 2), |rank, mut channel| {
            (rank != 4).then(|| {
                channel
                    .allgather("the vote", b"x", &patience(20_000))
                    .unwrap_err()
            })
        });
        for error in ends.into_iter().flatten() {
            let text = error.text();
            assert!(
                text.contains("(ranks 5, 6 reached the others through it)"),
                "{text}"
            );
        }
    }

    #[test]
    fn two_dead_ranks_give_one_verdict_where_the_tree_is_whole() {
        // Leaves of different parents: each parent finds another one first.
        let dead = [3, 6];
        let ends = ranks((7, 2), |rank, mut channel| {
            if dead.contains(&rank) {
                return None;
            }
            Some(
                channel
                    .allgather("the vote", b"x", &patience(20_000))
                    .unwrap_err(),
            )
        });
        let texts: Vec<String> = ends.into_iter().flatten().map(|e| e.to_string()).collect();
        assert_eq!(texts.len(), 5);
        texts.windows(2).for_each(|two| assert_eq!(two[0], two[1]));
    }

    #[test]
    fn a_rank_that_makes_another_call_is_the_same_error_everywhere() {
        for (shape, odd) in shapes_and_ranks() {
            let ends = ranks(shape, |rank, mut channel| {
                let phase = if rank == odd { "a split" } else { "a vote" };
                channel
                    .allgather(phase, b"x", &patience(20_000))
                    .unwrap_err()
            });
            let nobody = ends[0].text().to_owned();
            for error in ends {
                assert_eq!(error.code(), Code::InvalidUsage);
                let text = error.text();
                assert!(
                    text.contains("is at a split") && text.contains(&format!("rank {odd} (pid")),
                    "{shape:?} {odd}: {text}"
                );
                assert_eq!(text, nobody);
            }
        }
    }

    #[test]
    fn a_rank_that_has_left_ends_the_next_exchange() {
        for (shape, gone) in shapes_and_ranks() {
            let ends = ranks(shape, |rank, mut channel| {
                if rank == gone {
                    channel.leave(None);
                    return None;
                }
                Some(
                    channel
                        .allgather("the vote", b"x", &patience(20_000))
                        .unwrap_err(),
                )
            });
            for error in ends.into_iter().flatten() {
                assert_eq!(error.code(), Code::RemoteError);
                let text = error.text();
                let who = format!("rank {gone} (pid {gone}) has left");
                assert!(text.contains(&who), "{shape:?} {gone}: {text}");
            }
        }
    }

    #[test]
    fn ranks_that_leave_in_any_order_are_lost_to_nobody() {
        // With more ranks than one can have children, and in a chain, where each is between others.
        for (shape, seed) in [((140, 32), 1u32), ((40, 3), 2), ((40, 3), 3), ((9, 1), 4)] {
            let nranks = shape.0;
            let left = AtomicU32::new(0);
            let known: Vec<usize> = ranks(shape, |rank, mut channel| {
                let order = rank.wrapping_add(seed).wrapping_mul(2_654_435_761) >> 24;
                let leave = Instant::now() + Duration::from_millis(u64::from(order));
                while Instant::now() < leave {
                    channel.look().unwrap();
                    channel.first_dead().unwrap();
                    channel.left_early(7).unwrap();
                    std::thread::sleep(Duration::from_millis(5));
                }
                channel.leave(Some(7));
                left.fetch_add(1, Relaxed);
                channel.gone.len()
            });
            assert_eq!(left.into_inner(), nranks);
            // It is heard of, by those who are still there.
            let heard = known.iter().filter(|known| **known > 0).count();
            assert!(heard * 2 > known.len(), "{shape:?}: {known:?}");
        }
    }

    #[test]
    fn what_has_ended_the_operations_is_told_to_all_and_the_channel_goes_on() {
        for (shape, odd) in shapes_and_ranks() {
            ranks(shape, |rank, mut channel| {
                if rank == odd {
                    channel.announce_end("revoked it");
                }
                let until = Instant::now() + Duration::from_secs(20);
                while rank != odd && channel.ended().is_ok() {
                    assert!(Instant::now() < until, "{shape:?} {odd} {rank}");
                    channel.look().unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                }
                // Those above pass it on while they wait in an exchange, too.
                channel
                    .allgather("a test", b"x", &patience(20_000))
                    .unwrap();
                if rank != odd {
                    let error = channel.ended().unwrap_err();
                    assert_eq!(error.code(), Code::RemoteError);
                    assert_eq!(error.text(), format!("rank {odd} (pid {odd}) revoked it"));
                }
            });
        }
    }

    /// Nobody looks at the channel but in the exchange: what comes before a payload goes on before it.
    #[test]
    fn what_has_ended_the_operations_is_heard_in_an_exchange() {
        for (shape, odd) in shapes_and_ranks() {
            ranks(shape, |rank, mut channel| {
                if rank == odd {
                    channel.announce_end("revoked it");
                }
                channel
                    .allgather("a test", b"x", &patience(20_000))
                    .unwrap();
                if rank != odd {
                    let error = channel.ended().unwrap_err();
                    assert_eq!(error.text(), format!("rank {odd} (pid {odd}) revoked it"));
                }
            });
        }
    }

    #[test]
    fn rank_0_says_who_is_missing_when_another_rank_has_given_up() {
        let given_up = AtomicU32::new(0);
        let ends = ranks((3, 128), |rank, mut channel| {
            if rank == 2 {
                while given_up.load(Relaxed) < 2 {
                    std::thread::sleep(Duration::from_millis(5));
                }
                return None;
            }
            let limit = [20_000, 50][rank as usize];
            let end = channel.allgather("the vote", b"x", &patience(limit));
            given_up.fetch_add(1, Relaxed);
            Some(end.unwrap_err())
        });
        let error = ends[0].as_ref().unwrap();
        assert_eq!(error.code(), Code::Timeout, "{error}");
        let (who, missing) = ("rank 1 (pid 1)", "; missing: rank 2 of 3");
        assert!(
            error.text().contains(who) && error.text().ends_with(missing),
            "{error}"
        );
    }

    #[test]
    fn a_rank_that_leaves_early_is_told_to_all_with_its_number() {
        for (shape, gone) in shapes_and_ranks() {
            let waiting = AtomicU32::new(shape.0 - 1);
            ranks(shape, |rank, mut channel| {
                if rank == gone {
                    return channel.leave(Some(16));
                }
                let until = Instant::now() + Duration::from_secs(20);
                while *channel.peer(gone) == Peer::Here {
                    assert!(Instant::now() < until, "{shape:?} {gone} {rank}");
                    channel.look().unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                }
                channel.left_early(16).unwrap();
                let error = channel.left_early(17).unwrap_err();
                assert_eq!(error.code(), Code::RemoteError);
                let text = format!(
                    "rank {gone} (pid {gone}) destroyed its communicator after collective #16; this rank \
                     is at #17"
                );
                assert!(error.text().contains(&text), "{error}");
                // The others hear of it through this one.
                waiting.fetch_sub(1, Relaxed);
                while waiting.load(Relaxed) > 0 && Instant::now() < until {
                    channel.look().unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
    }

    #[test]
    fn news_that_has_not_been_read_is_passed_on_by_a_rank_that_leaves() {
        // Rank 1 is between rank 2 and rank 0, and has not looked since rank 2 died.
        let dead = AtomicU32::new(0);
        ranks((3, 1), |rank, mut channel| match rank {
            2 => {
                drop(channel);
                dead.store(1, Relaxed);
            }
            1 => {
                while dead.load(Relaxed) == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                std::thread::sleep(Duration::from_millis(50));
                channel.leave(Some(0));
            }
            _ => {
                let until = Instant::now() + Duration::from_secs(20);
                while *channel.peer(1) == Peer::Here && Instant::now() < until {
                    channel.look().unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                }
                assert_eq!(*channel.peer(1), Peer::Left(Some(0)));
                assert!(matches!(channel.peer(2), Peer::Dead(_)));
            }
        });
    }

    #[test]
    fn an_abort_ends_the_exchange_of_all() {
        for (shape, aborting) in shapes_and_ranks() {
            let absent = (aborting + 1) % shape.0;
            let ends = ranks(shape, |rank, mut channel| {
                if rank == absent {
                    // Comes when it is over, and hears it then.
                    std::thread::sleep(Duration::from_millis(300));
                }
                let abort = AbortFlag::default();
                let limit = Patience::starting_now(Some(Duration::from_secs(20)), &abort);
                if rank == aborting {
                    abort.set();
                }
                channel.allgather("the vote", b"x", &limit).unwrap_err()
            });
            let who = format!("rank {aborting} (pid {aborting}) was aborted during the vote");
            for (rank, error) in ends.into_iter().enumerate() {
                let text = error.text();
                if rank == aborting as usize {
                    assert_eq!(error.code(), Code::Aborted);
                } else {
                    assert!(text.contains(&who), "{shape:?} {aborting} {rank}: {text}");
                }
            }
        }
    }

    #[test]
    fn a_fatal_payload_ends_the_exchange_although_others_are_not_ready() {
        for (shape, bad) in shapes_and_ranks() {
            let started = Instant::now();
            ranks(shape, |rank, mut channel| {
                let mut ready = || (rank == bad).then(|| b"bad".to_vec());
                let limit = patience(20_000);
                let parts = channel
                    .allgather_when("the init", &mut ready, &|p| p == b"bad", &limit)
                    .unwrap();
                assert_eq!(parts.present(), 1);
                assert_eq!(parts.get(bad as usize), Some(&b"bad"[..]));
                let next = channel
                    .allgather("the next", &[rank as u8], &limit)
                    .unwrap();
                assert!((0..shape.0 as usize).all(|r| next.of(r) == [r as u8]));
            });
            assert!(started.elapsed() < Duration::from_secs(10));
        }
    }

    #[test]
    fn look_tells_goodbye_from_death_and_hears_an_abort() {
        // In the tree, leaves of different parents, so that each piece of news crosses it.
        for (shape, left, dead, aborting) in [((4, 128), 1, 2, 3), ((14, 3), 3, 7, 12)] {
            let ends = ranks(shape, |rank, mut channel| {
                if rank == left {
                    channel.leave(None);
                    return None;
                }
                if rank == dead {
                    return None;
                }
                let until = Instant::now() + Duration::from_secs(20);
                while *channel.peer(left) == Peer::Here || *channel.peer(dead) == Peer::Here {
                    channel.look().unwrap();
                    assert!(Instant::now() < until);
                    std::thread::sleep(Duration::from_millis(2));
                }
                let found = (channel.peer(left).clone(), channel.peer(dead).clone());
                if rank == aborting {
                    // What one has heard, another may still have to.
                    std::thread::sleep(Duration::from_millis(300));
                    channel.announce_abort("");
                    return Some((found, None));
                }
                loop {
                    match channel.look() {
                        Err(error) => break Some((found, Some(error))),
                        Ok(()) => std::thread::sleep(Duration::from_millis(2)),
                    }
                    assert!(Instant::now() < until);
                }
            });
            let who = format!("rank {dead} (pid {dead})");
            let abort = format!("rank {aborting} (pid {aborting}) aborted");
            for (found, error) in ends.into_iter().flatten() {
                assert_eq!(found.0, Peer::Left(None));
                assert!(matches!(found.1, Peer::Dead(text) if text.contains(&who)));
                assert!(error.is_none_or(|e| e.text().contains(&abort)));
            }
        }
    }

    #[test]
    fn what_comes_while_a_rank_looks_is_kept_for_its_next_exchange() {
        ranks((7, 2), |rank, mut channel| {
            if rank % 2 == 1 {
                for _ in 0..50 {
                    channel.look().unwrap();
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
            let parts = channel
                .allgather("a test", &[rank as u8], &patience(20_000))
                .unwrap();
            assert!((0..7).all(|r| parts.of(r) == [r as u8]));
        });
    }

    #[test]
    fn in_random_trees_all_survivors_end_alike_whatever_one_rank_does() {
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = move |below: u32| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed % u64::from(below)) as u32
        };
        for _ in 0..24 {
            let nranks = 2 + next(30);
            let shape = (nranks, 1 + next(5));
            let (odd, how) = (next(nranks), next(4));
            let ends = ranks(shape, |rank, mut channel| {
                let phase = match (rank == odd, how) {
                    (true, 0) => return None,
                    (true, 1) => {
                        channel.leave(None);
                        return None;
                    }
                    (true, 2) => "another call",
                    (true, _) => {
                        channel.announce_abort("");
                        return None;
                    }
                    (false, _) => "the vote",
                };
                let error = channel
                    .allgather(phase, b"x", &patience(20_000))
                    .unwrap_err();
                // It stays that way.
                let again = channel
                    .allgather("again", b"x", &patience(20_000))
                    .unwrap_err();
                assert_eq!(again.text(), error.text());
                Some(error)
            });
            let name = format!("rank {odd} (pid {odd})");
            for error in ends.into_iter().flatten() {
                assert!(
                    error.text().contains(&name),
                    "{shape:?} {odd} {how}: {error}"
                );
                assert_ne!(error.code(), Code::Timeout);
            }
        }
    }
}
