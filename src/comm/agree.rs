//! What all ranks decide alike: pure functions of what all ranks said.
#![forbid(unsafe_code)]

use crate::bootstrap::unique_id::socket_address;
use crate::config::{HostEngine, Tier};
use crate::control::wire::{Reader, Writer, remote_code};
use crate::error::{Code, Error, Result};
use crate::words::{counted, ranks_named};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Parses a comma-separated order of tiers.
pub(crate) fn parse_order(text: &str) -> Result<Vec<Tier>> {
    let mut order = Vec::new();
    for name in text.split(',').map(str::trim).filter(|n| !n.is_empty()) {
        let tier = Tier::from_name(name).ok_or_else(|| {
            Error::invalid_argument(format!(
                "'{name}' is no tier; the tiers are native, flagcx and host"
            ))
        })?;
        if !order.contains(&tier) {
            order.push(tier);
        }
    }
    if order.is_empty() {
        return Err(Error::invalid_argument(
            "the list of tiers is empty; the tiers are native, flagcx and host",
        ));
    }
    Ok(order)
}

/// What a rank says about itself before anything is decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RankInfo {
    common: Arc<Common>,
    /// Device index, -1 for none.
    pub device: i32,
    pub uuid: Option<[u8; 16]>,
    pub pid: u32,
    pub start_time: u64,
    /// A failure of this rank that ends the init on all ranks.
    pub fatal: Option<Box<(u32, String)>>,
}

/// What many ranks say alike: those of a machine, say. It is kept once for neighbours, and stands first
/// on the wire, where what neighbours have in common costs nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Common {
    pub library_version: u32,
    pub nranks: u32,
    /// Vendor key; empty if this rank has none.
    pub vendor: String,
    /// Why this rank can't use a vendor's library, as far as it knows without loading one.
    pub no_native: String,
    /// The same for all processes that share memory: boot, or what FLAGOSCOMM_HOSTID says.
    pub machine: String,
    pub host: String,
    pub pid_namespace: u64,
    /// The network namespace, in which names of sockets mean something.
    pub network: u64,
    /// What the host tier is asked to use.
    pub engine: HostEngine,
    /// Between several machines it may work in layers.
    pub hierarchy: bool,
    pub tiers: Vec<Tier>,
    /// Calls are compared across ranks also on vendor tiers.
    pub checking: bool,
    /// Ranks of vendor tiers show each other that they are alive, within so many milliseconds; 0: no.
    pub liveness_ms: u32,
    /// By which the other ranks can reach it; its port means nothing. `None`: there are no others.
    pub address: Option<SocketAddr>,
}

impl std::ops::Deref for RankInfo {
    type Target = Common;
    fn deref(&self) -> &Common {
        &self.common
    }
}

impl std::ops::DerefMut for RankInfo {
    fn deref_mut(&mut self) -> &mut Common {
        Arc::make_mut(&mut self.common)
    }
}

impl Common {
    fn encode(&self, w: &mut Writer) {
        w.u32(self.library_version).u32(self.nranks);
        w.bytes(self.vendor.as_bytes())
            .bytes(self.no_native.as_bytes());
        w.bytes(self.machine.as_bytes()).bytes(self.host.as_bytes());
        w.u64(self.pid_namespace).u64(self.network);
        w.u32(self.engine as u32).u32(u32::from(self.hierarchy));
        w.bytes(&self.tiers.iter().map(|t| *t as u8).collect::<Vec<_>>());
        w.u32(u32::from(self.checking)).u32(self.liveness_ms);
        let (ip, scope) = match self.address {
            None => (Vec::new(), 0),
            Some(SocketAddr::V4(v4)) => (v4.ip().octets().to_vec(), 0),
            Some(SocketAddr::V6(v6)) => (v6.ip().octets().to_vec(), v6.scope_id()),
        };
        w.bytes(&ip).u32(scope);
    }

    fn decode(r: &mut Reader<'_>) -> Option<Common> {
        Some(Common {
            library_version: r.u32()?,
            nranks: r.u32()?,
            vendor: r.text()?,
            no_native: r.text()?,
            machine: r.text()?,
            host: r.text()?,
            pid_namespace: r.u64()?,
            network: r.u64()?,
            engine: HostEngine::from_raw(r.u32()?)?,
            hierarchy: r.u32()? != 0,
            tiers: r
                .bytes()?
                .iter()
                .map(|t| Tier::from_raw(*t))
                .collect::<Option<_>>()?,
            checking: r.u32()? != 0,
            liveness_ms: r.u32()?,
            address: {
                let ip = r.bytes()?;
                let scope = r.u32()?;
                let ip: Option<IpAddr> = match ip.len() {
                    0 => None,
                    4 => Some(<[u8; 4]>::try_from(ip).ok()?.into()),
                    _ => Some(<[u8; 16]>::try_from(ip).ok()?.into()),
                };
                ip.map(|ip| socket_address(ip, scope, 0))
            },
        })
    }
}

impl RankInfo {
    /// The rank's process, the same for all ranks that are in it.
    pub(crate) fn process(&self) -> (&str, u64, u32) {
        (&self.machine, self.pid_namespace, self.pid)
    }

    /// A rank without a device.
    pub(crate) fn new(common: Common, pid: u32, start_time: u64) -> RankInfo {
        RankInfo {
            common: Arc::new(common),
            device: -1,
            uuid: None,
            pid,
            start_time,
            fatal: None,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        self.common.encode(&mut w);
        // Mostly the same for neighbours come first.
        w.bytes(self.uuid.as_ref().map_or(&[][..], |u| &u[..]));
        w.u32(self.device as u32);
        match self.fatal.as_deref() {
            None => w.u32(0),
            Some((code, text)) => w.u32(1).u32(*code).bytes(text.as_bytes()),
        };
        w.u64(self.start_time).u32(self.pid);
        w.0
    }

    /// Reads what all ranks have said. `None`: a rank said something else.
    pub(crate) fn decode_all<'a>(
        bodies: impl Iterator<Item = &'a [u8]>,
    ) -> Option<Arc<[RankInfo]>> {
        let mut last: Option<(&[u8], RankInfo)> = None;
        let mut infos = Vec::new();
        for body in bodies {
            let info = match &last {
                Some((same, info)) if *same == body => info.clone(),
                Some((_, info)) => RankInfo::decode(body, Some(&info.common))?,
                None => RankInfo::decode(body, None)?,
            };
            last = Some((body, info.clone()));
            infos.push(info);
        }
        Some(infos.into())
    }

    /// Reads one rank's; what it has in common with its neighbour is kept once.
    fn decode(body: &[u8], neighbour: Option<&Arc<Common>>) -> Option<RankInfo> {
        let mut r = Reader(body);
        let common = Common::decode(&mut r)?;
        let common = match neighbour {
            Some(shared) if **shared == common => Arc::clone(shared),
            _ => Arc::new(common),
        };
        let uuid = match r.bytes()? {
            [] => None,
            bytes => Some(bytes.try_into().ok()?),
        };
        Some(RankInfo {
            common,
            uuid,
            device: r.u32()? as i32,
            fatal: match r.u32()? {
                0 => None,
                _ => Some(Box::new((r.u32()?, r.text()?))),
            },
            start_time: r.u64()?,
            pid: r.u32()?,
        })
    }

    /// Whether the two can have memory in common: it is handed over on one machine, through a name that
    /// means something in one network namespace.
    pub(crate) fn shares_memory_with(&self, other: &RankInfo) -> bool {
        self.machine == other.machine && self.network == other.network
    }

    /// "host h, pid 7".
    pub(crate) fn place(&self) -> String {
        format!("host {}, pid {}", self.host, self.pid)
    }
}

/// So many ranks or reasons are told in full; of the others only the numbers.
const SHOWN: usize = 8;

fn who(infos: &[RankInfo], rank: usize) -> String {
    format!("rank {rank} ({})", infos[rank].place())
}

/// Differing values that are told apart; what is beyond counts as odd.
const MAX_VALUES: usize = 64;

/// The ranks whose value differs from that of most, and both values in words.
fn odd_ones<'a, T: PartialEq>(
    infos: &'a [RankInfo],
    value: impl Fn(&'a RankInfo) -> T,
    show: impl Fn(&T) -> String,
) -> Option<String> {
    let mut votes: Vec<(T, usize)> = Vec::new();
    for value in infos.iter().map(&value) {
        match votes.iter().position(|(v, _)| *v == value) {
            Some(at) => votes[at].1 += 1,
            None if votes.len() < MAX_VALUES => votes.push((value, 1)),
            None => {}
        }
    }
    let most = votes.iter().map(|(_, count)| *count).max()?;
    let usual = &votes.iter().find(|(_, count)| *count == most)?.0;
    let odd: Vec<usize> = infos
        .iter()
        .enumerate()
        .filter(|(_, info)| value(info) != *usual)
        .map(|(rank, _)| rank)
        .collect();
    let mut each: Vec<String> = odd
        .iter()
        .take(SHOWN)
        .map(|rank| format!("{} has {}", who(infos, *rank), show(&value(&infos[*rank]))))
        .collect();
    if odd.len() > SHOWN {
        let more = odd.len() - SHOWN;
        let rest = ranks_named(odd[SHOWN..].iter().map(|r| *r as u32));
        each.push(match more {
            1 => format!("{rest} has another, too"),
            _ => format!("{more} more ({rest}) have others, too"),
        });
    }
    (!odd.is_empty()).then(|| format!("{} but the others have {}", each.join(", "), show(usual)))
}

/// Whether the ranks fit together at all. The error is the same on every rank.
pub(crate) fn consistent(infos: &[RankInfo]) -> Result<()> {
    if let Some((rank, (code, text))) = infos
        .iter()
        .enumerate()
        .find_map(|(r, i)| i.fatal.as_deref().map(|f| (r, f)))
    {
        return Err(Error::new(
            remote_code(*code),
            format!("{}: {text}", who(infos, rank)),
        ));
    }
    let number = |v: &u32| v.to_string();
    let on_or_off = |on: &bool| String::from(if *on { "on" } else { "off" });
    let version = |v: &u32| format!("{}.{}.{}", v / 10_000, v / 100 % 100, v % 100);
    let faults = [
        ("number of ranks", odd_ones(infos, |i| i.nranks, number)),
        (
            "flagos-comm version",
            odd_ones(infos, |i| i.library_version, version),
        ),
        (
            "order of tiers (FLAGOSCOMM_TIERS or the configuration)",
            odd_ones(
                infos,
                |i| i.tiers.as_slice(),
                |t| t.iter().map(|t| t.name()).collect::<Vec<_>>().join(","),
            ),
        ),
        (
            "host tier's engine (FLAGOSCOMM_HOST_ENGINE)",
            odd_ones(infos, |i| i.engine, |e| String::from(e.name())),
        ),
        (
            "layers of the host tier (FLAGOSCOMM_HOST_HIERARCHY)",
            odd_ones(infos, |i| i.hierarchy, on_or_off),
        ),
        (
            "call checking (FLAGOSCOMM_CHECK)",
            odd_ones(infos, |i| i.checking, on_or_off),
        ),
        (
            "watching of each other (FLAGOSCOMM_LIVENESS, in ms)",
            odd_ones(infos, |i| i.liveness_ms, number),
        ),
    ];
    match faults
        .into_iter()
        .find_map(|(what, odd)| odd.map(|odd| (what, odd)))
    {
        None => Ok(()),
        Some((what, odd)) => Err(Error::invalid_usage(format!(
            "the ranks disagree on the {what}: {odd}"
        ))),
    }
}

/// What becomes of a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Go on with it.
    Go,
    /// Not this one, for this reason; try the next.
    Decline(String),
    /// Stop; the error is the same on every rank.
    Stop(String),
}

/// Whether a tier is worth probing, from what the ranks said about themselves.
pub(crate) fn worth_probing(tier: Tier, infos: &[RankInfo]) -> Verdict {
    match tier {
        Tier::Host => Verdict::Go,
        Tier::Native | Tier::Flagcx => {
            // Each rank's own reason: several may have different ones.
            let refusals = infos.iter().map(|info| match info.no_native.as_str() {
                "" if info.vendor.is_empty() => "no accelerator was found",
                reason => reason,
            });
            if let Some(text) = reasons(infos, refusals) {
                return Verdict::Decline(text);
            }
            // FlagCX may have several vendors in one communicator.
            if tier == Tier::Native
                && let Some(odd) = odd_ones(infos, |i| i.vendor.as_str(), |v| String::from(*v))
            {
                return Verdict::Decline(format!("the ranks have different vendors: {odd}"));
            }
            if let Some((b, a)) = twins(infos) {
                return Verdict::Stop(format!(
                    "{} and {} are on the same device (index {} and {} of {}): set the device \
                     before init, or name it in the configuration; FLAGOSCOMM_TIERS=host allows \
                     ranks to share one",
                    who(infos, b),
                    who(infos, a),
                    infos[b].device,
                    infos[a].device,
                    infos[a].vendor
                ));
            }
            Verdict::Go
        }
    }
}

/// The first two ranks that are on the same device: by its UUID where both have one, else by its
/// index, which means something only among processes that see the same ones.
fn twins(infos: &[RankInfo]) -> Option<(usize, usize)> {
    let mut by_uuid = HashMap::new();
    let mut by_index = HashMap::new();
    let mut without_uuid = HashMap::new();
    for (a, info) in infos.iter().enumerate() {
        let place = (info.machine.as_str(), info.vendor.as_str());
        let index = (place, info.device, info.pid_namespace);
        let twin = match info.uuid {
            Some(uuid) => {
                let same = *by_uuid.entry((place, uuid)).or_insert(a);
                let same = (same != a).then_some(same);
                same.into_iter()
                    .chain(without_uuid.get(&index).copied())
                    .min()
            }
            None => {
                without_uuid.entry(index).or_insert(a);
                by_index.get(&index).copied()
            }
        };
        if let Some(b) = twin {
            return Some((b, a));
        }
        by_index.entry(index).or_insert(a);
    }
    None
}

/// The way from tier to tier until one works. Every rank goes it alike: each step follows from what
/// all ranks said.
#[derive(Debug)]
pub(crate) struct Course<'a> {
    infos: &'a [RankInfo],
    left: std::slice::Iter<'a, Tier>,
    /// The tiers that are not used, and why.
    pub declined: Vec<(Tier, String)>,
    /// The code of the error if no tier is left: that of the last failure that had one.
    pub code: Code,
}

impl<'a> Course<'a> {
    /// An error if the ranks do not fit together.
    pub(crate) fn new(infos: &'a [RankInfo]) -> Result<Course<'a>> {
        consistent(infos)?;
        let first = infos
            .first()
            .ok_or_else(|| Error::internal("an agreement without ranks"))?;
        Ok(Course {
            infos,
            left: first.tiers.iter(),
            declined: Vec::new(),
            code: Code::NotSupported,
        })
    }

    /// The next tier to try, or why there is none.
    pub(crate) fn next(&mut self) -> Result<Tier> {
        while let Some(tier) = self.left.next() {
            match worth_probing(*tier, self.infos) {
                Verdict::Go => return Ok(*tier),
                Verdict::Decline(reason) => self.decline(*tier, reason),
                Verdict::Stop(text) => return Err(Error::invalid_usage(text)),
            }
        }
        let each: Vec<String> = self
            .declined
            .iter()
            .map(|(tier, reason)| format!("{}: {reason}", tier.name()))
            .collect();
        Err(Error::new(
            self.code,
            format!("no tier can be used: {}", each.join("; ")),
        ))
    }

    /// The tier that was tried last did not work.
    pub(crate) fn decline(&mut self, tier: Tier, reason: String) {
        self.declined.push((tier, reason));
    }
}

/// A rank's vote on a tier's library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProbeVote {
    /// Why the library can't be used; empty if it can.
    pub reason: String,
    pub version: i32,
    pub path: String,
    /// The numbers of the library that the user gave.
    pub numbers: String,
    /// The vendor's unique id, from rank 0.
    pub id: Vec<u8>,
}

impl ProbeVote {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.bytes(self.reason.as_bytes()).u32(self.version as u32);
        w.bytes(self.path.as_bytes())
            .bytes(self.numbers.as_bytes())
            .bytes(&self.id);
        w.0
    }

    pub(crate) fn decode(body: &[u8]) -> Option<ProbeVote> {
        let mut r = Reader(body);
        Some(ProbeVote {
            reason: r.text()?,
            version: r.u32()? as i32,
            path: r.text()?,
            numbers: r.text()?,
            id: r.bytes()?.to_vec(),
        })
    }
}

/// Whether a probed tier can be initialised.
pub(crate) fn after_probe(infos: &[RankInfo], votes: &[ProbeVote]) -> Verdict {
    let declined = reasons(infos, votes.iter().map(|v| v.reason.as_str()));
    if let Some(declined) = declined {
        return Verdict::Decline(declined);
    }
    if votes.iter().any(|v| v.version != votes[0].version) {
        // The same ones together, so that the odd rank is named in a large world too.
        let libraries: Vec<String> = votes
            .iter()
            .map(|v| format!("{} ({})", v.version, v.path))
            .collect();
        let each = reasons(infos, libraries.iter().map(String::as_str)).unwrap_or_default();
        return Verdict::Stop(format!(
            "the ranks have different versions of the collective library: {each}. Install the same \
             one everywhere, or name it with FLAGOSCOMM_<VENDOR>_LIBRARY"
        ));
    }
    if votes.iter().any(|v| v.numbers != votes[0].numbers) {
        let numbers = votes.iter().map(|v| match v.numbers.as_str() {
            "" => "none",
            numbers => numbers,
        });
        let each = reasons(infos, numbers).unwrap_or_default();
        return Verdict::Stop(format!(
            "the ranks were given different numbers of the collective library: {each}. Set \
             FLAGOSCOMM_<VENDOR>_NUMBERS to the same everywhere"
        ));
    }
    Verdict::Go
}

/// The reasons of the ranks that have one, the same ones together; `None` if no rank has.
pub(crate) fn reasons<'a>(
    infos: &[RankInfo],
    each: impl Iterator<Item = &'a str>,
) -> Option<String> {
    let mut groups: Vec<(&str, Vec<u32>)> = Vec::new();
    for (rank, reason) in each.enumerate().filter(|(_, r)| !r.is_empty()) {
        match groups.iter_mut().find(|(r, _)| *r == reason) {
            Some((_, ranks)) => ranks.push(rank as u32),
            None => groups.push((reason, vec![rank as u32])),
        }
    }
    let texts = groups
        .iter()
        .take(SHOWN)
        .map(|(reason, ranks)| match ranks[..] {
            [one] => format!("{}: {reason}", who(infos, one as usize)),
            _ => format!("{}: {reason}", ranks_named(ranks.iter().copied())),
        });
    let mut texts: Vec<String> = texts.collect();
    let mut rest: Vec<u32> = groups
        .iter()
        .skip(SHOWN)
        .flat_map(|g| g.1.clone())
        .collect();
    if !rest.is_empty() {
        rest.sort_unstable();
        let more = rest.len();
        texts.push(format!(
            "{} ({}): yet other reasons",
            counted(more as u64, "more rank"),
            ranks_named(rest)
        ));
    }
    (!groups.is_empty()).then(|| texts.join("; "))
}

/// Which ranks gave which level, the lowest first, and why; empty if all gave the same and none a reason.
pub(crate) fn levels_text(infos: &[RankInfo], each: &[(i32, String)]) -> String {
    let mut levels: Vec<i32> = each.iter().map(|(level, _)| *level).collect();
    levels.sort_unstable();
    levels.dedup();
    if levels.len() <= 1 && each.iter().all(|(_, reason)| reason.is_empty()) {
        return String::new();
    }
    let of = |level: i32| {
        let silent = each.iter().enumerate();
        let silent = silent.filter(|(_, (own, reason))| *own == level && reason.is_empty());
        let silent: Vec<u32> = silent.map(|(rank, _)| rank as u32).collect();
        let reasons = each.iter().map(|(own, reason)| match *own == level {
            true => reason.as_str(),
            false => "",
        });
        let mut parts: Vec<String> = self::reasons(infos, reasons).into_iter().collect();
        if !silent.is_empty() {
            parts.push(ranks_named(silent));
        }
        format!("level {level}: {}", parts.join("; "))
    };
    let mut texts: Vec<String> = levels.iter().take(SHOWN).map(|level| of(*level)).collect();
    if levels.len() > SHOWN {
        let more = (levels.len() - SHOWN) as u64;
        texts.push(counted(more, "more level"));
    }
    texts.join("; ")
}

#[cfg(test)]
mod properties;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::gathered::Gathered;

    fn info(rank: u32, nranks: u32) -> RankInfo {
        let common = Common {
            library_version: 100,
            nranks,
            vendor: "nvidia".into(),
            no_native: String::new(),
            machine: "m".into(),
            host: format!("h{rank}"),
            pid_namespace: 1,
            network: 1,
            engine: HostEngine::Auto,
            hierarchy: true,
            tiers: Tier::DEFAULT_ORDER.to_vec(),
            checking: false,
            liveness_ms: 0,
            address: Some(socket_address(std::net::Ipv6Addr::LOCALHOST.into(), 3, 0)),
        };
        let mut info = RankInfo::new(common, 100 + rank, 5);
        info.device = rank as i32;
        info.uuid = Some([rank as u8; 16]);
        info
    }

    fn world(n: u32) -> Vec<RankInfo> {
        (0..n).map(|r| info(r, n)).collect()
    }

    #[test]
    fn rank_info_survives_the_wire_and_short_bodies_are_refused() {
        let mut infos = world(2);
        infos[1].uuid = None;
        infos[1].fatal = Some(Box::new((4, "no".into())));
        for info in infos {
            let body = info.encode();
            assert_eq!(RankInfo::decode(&body, None).unwrap(), info);
            for cut in 0..body.len() {
                assert!(
                    RankInfo::decode(&body[..cut], None).is_none(),
                    "cut at {cut}"
                );
            }
        }
        let vote = ProbeVote {
            reason: "r".into(),
            version: -1,
            path: "p".into(),
            numbers: "x=1".into(),
            id: vec![0; 4108],
        };
        assert_eq!(ProbeVote::decode(&vote.encode()).unwrap(), vote);
    }

    #[test]
    fn the_facts_of_many_ranks_are_as_small_as_the_documents_say() {
        let packed = |own: &dyn Fn(u32) -> RankInfo| {
            let mut gathered = Gathered::new(1024);
            for rank in 0..1024 {
                gathered.put(rank..rank + 1, &own(rank).encode());
            }
            let mut bytes = Vec::new();
            gathered.pack(0..1024, |_| true, &mut bytes);
            bytes.len()
        };
        let common = info(0, 1024);
        let of_8_processes = |rank: u32| {
            let mut info = common.clone();
            (info.uuid, info.device) = (None, -1);
            (info.pid, info.start_time) = (5000 + rank / 128, 777_000 + u64::from(rank / 128));
            info
        };
        assert!(packed(&of_8_processes) < 400);
        let each_with_a_device = |rank: u32| {
            let mut info = common.clone();
            let scrambled =
                u128::from(rank + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
            info.uuid = Some(scrambled.to_le_bytes());
            (info.pid, info.start_time) = (5000 + rank, 777_000 + u64::from(rank));
            info
        };
        assert!(packed(&each_with_a_device) < 1024 * 41 + 400);
        let vote = |_| {
            let mut gathered = Gathered::new(1024);
            gathered.put(0..1024, &[0; 4]);
            let mut bytes = Vec::new();
            gathered.pack(0..1024, |_| true, &mut bytes);
            bytes.len()
        };
        assert!(vote(()) < 10);
    }

    #[test]
    fn the_odd_rank_is_named() {
        let mut infos = world(4);
        infos[2].nranks = 5;
        let text = consistent(&infos).unwrap_err().text().to_owned();
        assert!(
            text.contains("rank 2 (host h2, pid 102) has 5 but the others have 4"),
            "{text}"
        );
        let mut infos = world(4);
        infos[0].tiers = vec![Tier::Host];
        let text = consistent(&infos).unwrap_err().text().to_owned();
        assert!(
            text.contains("rank 0 (host h0, pid 100) has host but"),
            "{text}"
        );
        let mut infos = world(4);
        infos[3].engine = HostEngine::Ucx;
        let text = consistent(&infos).unwrap_err().text().to_owned();
        assert!(
            text.contains("rank 3 (host h3, pid 103) has ucx but the others have auto"),
            "{text}"
        );
        let mut infos = world(4);
        infos[1].hierarchy = false;
        let text = consistent(&infos).unwrap_err().text().to_owned();
        assert!(
            text.contains("(FLAGOSCOMM_HOST_HIERARCHY): rank 1 (host h1, pid 101) has off but"),
            "{text}"
        );
        assert!(consistent(&world(3)).is_ok());
    }

    #[test]
    fn a_fatal_rank_ends_the_init_everywhere() {
        let mut infos = world(3);
        infos[1].fatal = Some(Box::new((4, "GEMS_VENDOR='nvidai' is unknown".into())));
        let error = consistent(&infos).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.text().contains("rank 1"), "{error}");
    }

    #[test]
    fn native_needs_one_vendor_and_a_device_for_each_rank() {
        assert_eq!(worth_probing(Tier::Native, &world(3)), Verdict::Go);
        let mut mixed = world(3);
        mixed[1].vendor = "ascend".into();
        assert!(
            matches!(worth_probing(Tier::Native, &mixed), Verdict::Decline(t) if t.contains("rank 1"))
        );
        let mut without = world(3);
        without[2].vendor = String::new();
        without[2].no_native = "no driver".into();
        assert!(
            matches!(worth_probing(Tier::Native, &without), Verdict::Decline(t) if t == "rank 2 (host h2, pid 102): no driver")
        );
        let mut twins = world(3);
        twins[2].uuid = twins[0].uuid;
        let Verdict::Stop(text) = worth_probing(Tier::Native, &twins) else {
            panic!()
        };
        assert!(
            text.contains("rank 0")
                && text.contains("rank 2")
                && text.contains("set the device before init")
        );
        twins[2].machine = "other".into();
        assert_eq!(worth_probing(Tier::Native, &twins), Verdict::Go);
        assert_eq!(worth_probing(Tier::Host, &twins), Verdict::Go);
    }

    #[test]
    fn probe_votes_fall_back_together_and_versions_must_be_equal() {
        let infos = world(3);
        let vote = |reason: &str, version| ProbeVote {
            reason: reason.into(),
            version,
            path: format!("/lib/{version}"),
            numbers: String::new(),
            id: Vec::new(),
        };
        let good = [vote("", 22809), vote("", 22809), vote("", 22809)];
        assert_eq!(after_probe(&infos, &good), Verdict::Go);
        let some = [vote("", 22809), vote("not found", 0), vote("not found", 0)];
        assert_eq!(
            after_probe(&infos, &some),
            Verdict::Decline("ranks 1, 2: not found".into())
        );
        let mixed = [vote("", 22809), vote("", 21803), vote("", 22809)];
        let Verdict::Stop(text) = after_probe(&infos, &mixed) else {
            panic!()
        };
        assert!(
            text.contains("rank 1 (host h1, pid 101): 21803 (/lib/21803)"),
            "{text}"
        );
        let mut odd = good;
        odd[2].numbers = "float32=4".into();
        let Verdict::Stop(text) = after_probe(&infos, &odd) else {
            panic!()
        };
        assert!(
            text.contains("rank 2 (host h2, pid 102): float32=4"),
            "{text}"
        );
    }

    #[test]
    fn levels_are_told_with_their_ranks_and_reasons() {
        let infos: Vec<RankInfo> = (0..6).map(|rank| info(rank, 6)).collect();
        let said = |each: [(i32, &str); 6]| {
            levels_text(
                &infos,
                &each.map(|(level, reason)| (level, reason.to_owned())),
            )
        };
        assert_eq!(said([(1, ""); 6]), "");
        assert_eq!(
            said([
                (1, ""),
                (0, "no peer access"),
                (1, ""),
                (-1, ""),
                (0, "busy"),
                (0, "busy")
            ]),
            "level -1: rank 3; level 0: rank 1 (host h1, pid 101): no peer access; ranks 4, 5: busy; \
             level 1: ranks 0, 2"
        );
        assert_eq!(said([(0, "off"); 6]), "level 0: ranks 0-5: off");
        let many: Vec<(i32, String)> = (0..200).map(|n| (n, format!("because {n}"))).collect();
        let infos: Vec<RankInfo> = (0..200).map(|rank| info(rank, 200)).collect();
        let text = levels_text(&infos, &many);
        assert!(text.ends_with("; 192 more levels"), "{text}");
    }

    #[test]
    fn tier_orders_are_parsed() {
        assert_eq!(
            parse_order(" Host , native,host").unwrap(),
            [Tier::Host, Tier::Native]
        );
        assert!(
            parse_order("gpu")
                .unwrap_err()
                .text()
                .contains("native, flagcx and host")
        );
        assert!(parse_order(" , ").is_err());
    }
}
