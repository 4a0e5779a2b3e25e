//! What all ranks decide alike: pure functions of what all ranks said.
#![forbid(unsafe_code)]

use crate::bootstrap::rendezvous::ranks_text;
use crate::config::Tier;
use crate::control::wire::{Reader, Writer};
use crate::error::{Code, Error, Result};

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
    pub library_version: u32,
    pub nranks: u32,
    /// Vendor key; empty if this rank has none.
    pub vendor: String,
    /// Why this rank can't use a vendor's library, as far as it knows without loading one.
    pub no_native: String,
    /// Device index, -1 for none.
    pub device: i32,
    pub uuid: Option<[u8; 16]>,
    /// The same for all processes that share memory: boot, or what FLAGOSCOMM_HOSTID says.
    pub machine: String,
    pub host: String,
    pub pid: u32,
    pub pid_namespace: u64,
    pub start_time: u64,
    pub tiers: Vec<Tier>,
    /// Calls are compared across ranks also on vendor tiers.
    pub checking: bool,
    /// A failure of this rank that ends the init on all ranks.
    pub fatal: Option<(u32, String)>,
}

impl RankInfo {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u32(self.library_version).u32(self.nranks);
        w.bytes(self.vendor.as_bytes())
            .bytes(self.no_native.as_bytes());
        w.u32(self.device as u32)
            .bytes(self.uuid.as_ref().map_or(&[][..], |u| &u[..]));
        w.bytes(self.machine.as_bytes()).bytes(self.host.as_bytes());
        w.u32(self.pid).u64(self.pid_namespace).u64(self.start_time);
        w.bytes(&self.tiers.iter().map(|t| *t as u8).collect::<Vec<_>>());
        w.u32(u32::from(self.checking));
        match &self.fatal {
            None => w.u32(0),
            Some((code, text)) => w.u32(1).u32(*code).bytes(text.as_bytes()),
        };
        w.0
    }

    pub(crate) fn decode(body: &[u8]) -> Option<RankInfo> {
        let mut r = Reader(body);
        Some(RankInfo {
            library_version: r.u32()?,
            nranks: r.u32()?,
            vendor: r.text()?,
            no_native: r.text()?,
            device: r.u32()? as i32,
            uuid: match r.bytes()? {
                [] => None,
                bytes => Some(bytes.try_into().ok()?),
            },
            machine: r.text()?,
            host: r.text()?,
            pid: r.u32()?,
            pid_namespace: r.u64()?,
            start_time: r.u64()?,
            tiers: r
                .bytes()?
                .iter()
                .map(|t| Tier::from_raw(*t))
                .collect::<Option<_>>()?,
            checking: r.u32()? != 0,
            fatal: match r.u32()? {
                0 => None,
                _ => Some((r.u32()?, r.text()?)),
            },
        })
    }

    /// "host h, pid 7".
    pub(crate) fn place(&self) -> String {
        format!("host {}, pid {}", self.host, self.pid)
    }
}

fn who(infos: &[RankInfo], rank: usize) -> String {
    format!("rank {rank} ({})", infos[rank].place())
}

/// The ranks whose value differs from that of most, and both values in words.
fn odd_ones<T: PartialEq>(
    infos: &[RankInfo],
    value: impl Fn(&RankInfo) -> T,
    show: impl Fn(&T) -> String,
) -> Option<String> {
    let values: Vec<T> = infos.iter().map(value).collect();
    let votes = |v: &T| values.iter().filter(|w| *w == v).count();
    let mut usual = &values[0];
    for candidate in &values {
        if votes(candidate) > votes(usual) {
            usual = candidate;
        }
    }
    let odd: Vec<String> = values
        .iter()
        .enumerate()
        .filter(|(_, v)| *v != usual)
        .take(8)
        .map(|(rank, v)| format!("{} has {}", who(infos, rank), show(v)))
        .collect();
    (!odd.is_empty()).then(|| format!("{} but the others have {}", odd.join(", "), show(usual)))
}

/// Whether the ranks fit together at all. The error is the same on every rank.
pub(crate) fn consistent(infos: &[RankInfo]) -> Result<()> {
    if let Some((rank, (code, text))) = infos
        .iter()
        .enumerate()
        .find_map(|(r, i)| i.fatal.as_ref().map(|f| (r, f)))
    {
        return Err(Error::new(
            Code::from_raw(*code as i32).unwrap_or(Code::InternalError),
            format!("{}: {text}", who(infos, rank)),
        ));
    }
    let number = |v: &u32| v.to_string();
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
                |i| i.tiers.clone(),
                |t| t.iter().map(|t| t.name()).collect::<Vec<_>>().join(","),
            ),
        ),
        (
            "call checking (FLAGOSCOMM_CHECK)",
            odd_ones(
                infos,
                |i| i.checking,
                |c| String::from(if *c { "on" } else { "off" }),
            ),
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
            let without: Vec<usize> = (0..infos.len())
                .filter(|r| infos[*r].vendor.is_empty())
                .collect();
            if let Some(first) = without.first() {
                let ranks = ranks_text(without.iter().map(|r| *r as u32));
                return Verdict::Decline(format!("rank {ranks}: {}", infos[*first].no_native));
            }
            // FlagCX may have several vendors in one communicator.
            if tier == Tier::Native
                && let Some(odd) = odd_ones(infos, |i| i.vendor.clone(), Clone::clone)
            {
                return Verdict::Decline(format!("the ranks have different vendors: {odd}"));
            }
            let refusing: Vec<usize> = (0..infos.len())
                .filter(|r| !infos[*r].no_native.is_empty())
                .collect();
            if let Some(first) = refusing.first() {
                let ranks = ranks_text(refusing.iter().map(|r| *r as u32));
                return Verdict::Decline(format!("rank {ranks}: {}", infos[*first].no_native));
            }
            for (a, info) in infos.iter().enumerate() {
                let twin = (0..a).find(|b| {
                    let other = &infos[*b];
                    info.machine == other.machine
                        && info.vendor == other.vendor
                        && match (info.uuid, other.uuid) {
                            (Some(x), Some(y)) => x == y,
                            _ => {
                                info.device == other.device
                                    && info.pid_namespace == other.pid_namespace
                            }
                        }
                });
                if let Some(b) = twin {
                    return Verdict::Stop(format!(
                        "{} and {} are on the same device (index {} and {} of {}): set the device \
                         before init, or name it in the configuration; FLAGOSCOMM_TIERS=host allows \
                         ranks to share one",
                        who(infos, b),
                        who(infos, a),
                        infos[b].device,
                        info.device,
                        info.vendor
                    ));
                }
            }
            Verdict::Go
        }
    }
}

/// A rank's vote on a tier's library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProbeVote {
    /// Why the library can't be used; empty if it can.
    pub reason: String,
    pub version: i32,
    pub path: String,
    /// The vendor's unique id, from rank 0.
    pub id: Vec<u8>,
}

impl ProbeVote {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.bytes(self.reason.as_bytes()).u32(self.version as u32);
        w.bytes(self.path.as_bytes()).bytes(&self.id);
        w.0
    }

    pub(crate) fn decode(body: &[u8]) -> Option<ProbeVote> {
        let mut r = Reader(body);
        Some(ProbeVote {
            reason: r.text()?,
            version: r.u32()? as i32,
            path: r.text()?,
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
        let each: Vec<String> = votes
            .iter()
            .enumerate()
            .take(16)
            .map(|(rank, v)| format!("{}: {} ({})", who(infos, rank), v.version, v.path))
            .collect();
        return Verdict::Stop(format!(
            "the ranks have different versions of the collective library: {}. Install the same \
             one everywhere, or name it with FLAGOSCOMM_<VENDOR>_LIBRARY",
            each.join(", ")
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
        .take(8)
        .map(|(reason, ranks)| match ranks[..] {
            [one] => format!("{}: {reason}", who(infos, one as usize)),
            _ => format!("rank {}: {reason}", ranks_text(ranks.iter().copied())),
        });
    let text = texts.collect::<Vec<_>>().join("; ");
    (!groups.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(rank: u32, nranks: u32) -> RankInfo {
        RankInfo {
            library_version: 100,
            nranks,
            vendor: "nvidia".into(),
            no_native: String::new(),
            device: rank as i32,
            uuid: Some([rank as u8; 16]),
            machine: "m".into(),
            host: format!("h{rank}"),
            pid: 100 + rank,
            pid_namespace: 1,
            start_time: 5,
            tiers: Tier::DEFAULT_ORDER.to_vec(),
            checking: false,
            fatal: None,
        }
    }

    fn world(n: u32) -> Vec<RankInfo> {
        (0..n).map(|r| info(r, n)).collect()
    }

    #[test]
    fn rank_info_survives_the_wire_and_short_bodies_are_refused() {
        let mut infos = world(2);
        infos[1].uuid = None;
        infos[1].fatal = Some((4, "no".into()));
        for info in infos {
            let body = info.encode();
            assert_eq!(RankInfo::decode(&body).unwrap(), info);
            for cut in 0..body.len() {
                assert!(RankInfo::decode(&body[..cut]).is_none(), "cut at {cut}");
            }
        }
        let vote = ProbeVote {
            reason: "r".into(),
            version: -1,
            path: "p".into(),
            id: vec![0; 4108],
        };
        assert_eq!(ProbeVote::decode(&vote.encode()).unwrap(), vote);
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
        assert!(consistent(&world(3)).is_ok());
    }

    #[test]
    fn a_fatal_rank_ends_the_init_everywhere() {
        let mut infos = world(3);
        infos[1].fatal = Some((4, "GEMS_VENDOR='nvidai' is unknown".into()));
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
            matches!(worth_probing(Tier::Native, &without), Verdict::Decline(t) if t == "rank 2: no driver")
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
            id: Vec::new(),
        };
        let good = [vote("", 22809), vote("", 22809), vote("", 22809)];
        assert_eq!(after_probe(&infos, &good), Verdict::Go);
        let some = [vote("", 22809), vote("not found", 0), vote("not found", 0)];
        assert_eq!(
            after_probe(&infos, &some),
            Verdict::Decline("rank 1, 2: not found".into())
        );
        let mixed = [vote("", 22809), vote("", 21803), vote("", 22809)];
        let Verdict::Stop(text) = after_probe(&infos, &mixed) else {
            panic!()
        };
        assert!(
            text.contains("rank 1 (host h1, pid 101): 21803 (/lib/21803)"),
            "{text}"
        );
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
