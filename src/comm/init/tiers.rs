//! From the first connection to the tier that all ranks agreed on.
#![forbid(unsafe_code)]

use super::ids::{family, filter_for};
use super::{Spec, host, native};
use crate::bootstrap::meet::{Traveller, meet};
use crate::bootstrap::rendezvous::{self, Plan};
use crate::comm::agree::{Course, RankInfo};
use crate::comm::{Backend, Comm, FirstFailure, Parts};
use crate::config::Tier;
use crate::control::gathered::Gathered;
use crate::control::patience::Patience;
use crate::control::tree::Tree;
use crate::control::wire::{Reader, Writer};
use crate::error::{Code, Error, Result};
use crate::load;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Where the log says how long the parts of an init took.
const INIT_TIMES: &str = "flagos_comm::init_times";

/// From the first connection to a tier that all ranks agreed on.
pub(crate) fn make(comm: &Comm, spec: &Spec, patience: &Patience) -> Result<Parts> {
    let id = &spec.ids[0];
    let (rank, nranks) = (comm.rank(), comm.nranks());
    let started = Instant::now();
    let plan = Plan {
        tree: Tree::of(nranks),
        ids: spec.ids.len() as u32,
    };
    if rank == 0 {
        // Few ranks need few rendezvous, whatever a vendor does with more ids.
        let unused = (1..plan.ids).filter(|id| plan.stays(*id).is_none());
        unused.for_each(|id| rendezvous::cancel(&spec.ids[id as usize], patience));
    }
    let listener = match plan.listens(rank) {
        true => Some(rendezvous::listen(filter_for(id).as_ref(), family())?),
        false => None,
    };
    let traveller = Traveller {
        ids: &spec.ids,
        plan,
        rank,
        pid: spec.info.pid,
        host: &spec.info.host,
    };
    let mut channel = meet(traveller, listener.as_ref(), patience)?;
    drop(listener);
    let met = started.elapsed();
    let mut info = spec.info.clone();
    info.address = channel.own_address().map(|mut own| {
        // That is the connection's alone.
        own.set_port(0);
        own
    });
    let infos = channel.allgather("the exchange of facts", &info.encode(), patience)?;
    let infos = RankInfo::decode_all(infos.all());
    let infos: Arc<[RankInfo]> =
        infos.ok_or_else(|| Error::internal("a rank's facts can't be read"))?;
    let names = Arc::clone(&infos);
    channel.set_names(move |rank| names[rank as usize].place());
    let mut course = Course::new(&infos)?;
    let agreed = started.elapsed();
    loop {
        let tier = course.next()?;
        let code = &mut course.code;
        let outcome = match tier {
            Tier::Native | Tier::Flagcx => {
                let opened = match tier {
                    Tier::Flagcx => load::process_flagcx(),
                    _ => load::process_library(),
                };
                native::native(comm, spec, &mut channel, &infos, patience, code, opened)?
            }
            Tier::Host => host::host(comm, &id.secret, &mut channel, &infos, patience, code)?,
        };
        match outcome {
            Ok(backend) => {
                say(comm, tier, &course.declined, &infos, &backend);
                log::debug!(
                    target: INIT_TIMES,
                    "rank {rank} of {nranks}: {} us to meet, {} us to agree, {} us for the {} tier",
                    met.as_micros(),
                    (agreed - met).as_micros(),
                    (started.elapsed() - agreed).as_micros(),
                    tier.name()
                );
                return Ok(Parts {
                    tier,
                    channel: Arc::new(Mutex::new(channel)),
                    backend,
                    infos,
                    failed: FirstFailure::default(),
                    finalized: AtomicBool::new(false),
                    collective: Mutex::new(()),
                    agreed: Mutex::default(),
                    under_way: AtomicU32::new(0),
                    secret: id.secret,
                });
            }
            Err(reason) => course.decline(tier, reason),
        }
    }
}

/// Says once, on rank 0, what was agreed and why not something better.
fn say(
    comm: &Comm,
    tier: Tier,
    declined: &[(Tier, String)],
    infos: &[RankInfo],
    backend: &Backend,
) {
    if comm.rank() != 0 {
        return;
    }
    let what = match backend {
        Backend::Native(native) => {
            let library = native.library();
            format!(
                "{} {} ({})",
                library.row.title,
                library.version_text(),
                library.path().display()
            )
        }
        Backend::Host(engine) => engine.about(),
    };
    log::info!("{} runs on the {} tier: {what}", comm.label(), tier.name());
    let native = declined.iter().find(|(tier, _)| *tier == Tier::Native);
    if let Some((_, reason)) = native {
        let text = format!("{} does not use a vendor's library: {reason}", comm.label());
        // A machine without an accelerator is nothing to warn of.
        if infos.iter().any(|i| !i.vendor.is_empty()) {
            log::warn!("{text}");
        } else {
            log::info!("{text}");
        }
    }
}

/// A rank's vote on a tier's init: nothing, or code and text.
pub(super) fn init_vote(result: &Result<()>) -> Vec<u8> {
    let mut writer = Writer::default();
    match result {
        Ok(()) => writer.u32(0),
        Err(error) => writer
            .u32(error.code() as u32)
            .bytes(error.text().as_bytes()),
    };
    writer.0
}

pub(crate) fn vote_code(vote: &[u8]) -> u32 {
    Reader(vote).u32().unwrap_or(Code::InternalError as u32)
}

/// The texts of the ranks that failed; empty where a rank did not, or was not heard.
pub(crate) fn vote_texts(votes: &Gathered) -> Vec<String> {
    let text = |vote: Option<&[u8]>| {
        let mut reader = Reader(vote.unwrap_or_default());
        reader.u32().filter(|code| *code != 0)?;
        reader.text()
    };
    votes
        .iter()
        .map(|vote| text(vote).unwrap_or_default())
        .collect()
}
