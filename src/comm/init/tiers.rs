//! From the first connection to the tier that all ranks agreed on.
#![forbid(unsafe_code)]

use super::ids::{family, filter_for};
use super::{Spec, host, native};
use crate::bootstrap::rendezvous::{self, Hello};
use crate::comm::agree::{self, RankInfo, Verdict};
use crate::comm::{Backend, Comm, FirstFailure, Parts};
use crate::config::Tier;
use crate::control::channel::Channel;
use crate::control::patience::Patience;
use crate::control::wire::{Reader, Writer};
use crate::error::{Code, Error, Result};
use crate::load;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

/// From the first connection to a tier that all ranks agreed on.
pub(crate) fn make(comm: &Comm, spec: &Spec, patience: &Patience) -> Result<Parts> {
    let id = &spec.ids[0];
    let (rank, nranks) = (comm.rank(), comm.nranks());
    // Several ids are for vendors that want several roots; one rendezvous is enough for us.
    if rank == 0 {
        spec.ids[1..]
            .iter()
            .for_each(|id| rendezvous::cancel(id, patience));
    }
    let hub = match rank {
        0 => Some(rendezvous::listen(filter_for(id).as_ref(), family())?),
        _ => None,
    };
    let hello = Hello {
        nranks,
        rank,
        pid: spec.info.pid,
        host: spec.info.host.clone(),
        hub: hub
            .as_ref()
            .map(|h| h.addresses.clone())
            .unwrap_or_default(),
    };
    let addresses = rendezvous::arrive(id, &hello, patience)?;
    let mut channel = match &hub {
        Some(hub) => Channel::accept(hub, &id.secret, nranks, patience)?,
        None => Channel::join(&addresses, &id.secret, rank, nranks, patience)?,
    };
    drop(hub);
    let infos = channel.allgather("the exchange of facts", &spec.info.encode(), patience)?;
    let infos: Option<Vec<RankInfo>> = infos.iter().map(|i| RankInfo::decode(i)).collect();
    let infos = infos.ok_or_else(|| Error::internal("a rank's facts can't be read"))?;
    channel.set_names(infos.iter().map(RankInfo::place).collect());
    agree::consistent(&infos)?;

    let mut declined: Vec<(Tier, String)> = Vec::new();
    let mut code = Code::NotSupported;
    for tier in &spec.tiers {
        let outcome = match agree::worth_probing(*tier, &infos) {
            Verdict::Go => match tier {
                Tier::Native | Tier::Flagcx => {
                    let opened = match tier {
                        Tier::Flagcx => load::process_flagcx(),
                        _ => load::process_library(),
                    };
                    native::native(
                        comm,
                        spec,
                        &mut channel,
                        &infos,
                        patience,
                        &mut code,
                        opened,
                    )?
                }
                Tier::Host => {
                    host::host(comm, &id.secret, &mut channel, &infos, patience, &mut code)?
                }
            },
            Verdict::Decline(reason) => Err(reason),
            Verdict::Stop(text) => return Err(Error::invalid_usage(text)),
        };
        match outcome {
            Ok(backend) => {
                say(comm, *tier, &declined, &infos, &backend);
                return Ok(Parts {
                    tier: *tier,
                    channel: Arc::new(Mutex::new(channel)),
                    backend,
                    infos,
                    failed: FirstFailure::default(),
                    finalized: AtomicBool::new(false),
                    collective: Mutex::new(()),
                    secret: id.secret,
                });
            }
            Err(reason) => declined.push((*tier, reason)),
        }
    }
    Err(Error::new(
        code,
        format!("no tier can be used: {}", declined_text(&declined)),
    ))
}

fn declined_text(declined: &[(Tier, String)]) -> String {
    let each: Vec<String> = declined
        .iter()
        .map(|(tier, reason)| format!("{}: {reason}", tier.name()))
        .collect();
    each.join("; ")
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
        Backend::Host(_) => String::from("host memory"),
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

pub(super) fn vote_code(vote: &[u8]) -> u32 {
    Reader(vote).u32().unwrap_or(Code::InternalError as u32)
}

/// The texts of the ranks that failed; empty where a rank did not, or was not heard.
pub(super) fn vote_texts(votes: &[Option<Vec<u8>>]) -> Vec<String> {
    let text = |vote: &Option<Vec<u8>>| {
        let mut reader = Reader(vote.as_deref().unwrap_or_default());
        reader.u32().filter(|code| *code != 0)?;
        reader.text()
    };
    votes
        .iter()
        .map(|vote| text(vote).unwrap_or_default())
        .collect()
}
