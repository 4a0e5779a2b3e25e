//! Communicators made from communicators: split and shrink.
#![forbid(unsafe_code)]

use super::init::{self, OutHandle, Pending, Shrink, Spec, VendorParent, Work};
use super::options::Options;
use super::table::{self, Handle};
use super::{Comm, Parts};
use crate::bootstrap::local::Survivors;
use crate::bootstrap::regroup::Place;
use crate::bootstrap::unique_id;
use crate::control::channel::Channel;
use crate::control::patience::{Patience, Watch};
use crate::control::wire::{Reader, Writer};
use crate::error::{Code, Error, Result};
use crate::ops::lock;
use crate::types::UNIQUE_ID_BYTES;
use crate::words::counted;
use std::net::SocketAddr;
use std::sync::MutexGuard;

/// The colour of a rank that gets no child.
const NO_COLOR: i32 = -1;

/// What one rank brings to a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// `None`: not a member of any child.
    color: Option<i32>,
    key: i32,
}

impl Part {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer
            .u32(self.color.map_or(u32::MAX, |c| c as u32))
            .u32(self.key as u32);
        writer.0
    }

    pub(crate) fn decode(body: &[u8]) -> Option<Part> {
        let mut reader = Reader(body);
        let color = reader.u32()? as i32;
        Some(Part {
            color: (color >= 0).then_some(color),
            key: reader.u32()? as i32,
        })
    }
}

/// The members of a colour in the order of their new ranks: by key, then by old rank.
fn members(parts: &[Part], color: i32) -> Vec<u32> {
    let mut members: Vec<u32> = (0..parts.len() as u32)
        .filter(|rank| parts[*rank as usize].color == Some(color))
        .collect();
    members.sort_by_key(|rank| (parts[*rank as usize].key, *rank));
    members
}

/// Takes the parent for one collective call; a second at the same time is refused.
pub(crate) fn collective(parts: &Parts) -> Result<MutexGuard<'_, ()>> {
    parts.collective.try_lock().map_err(|_| {
        Error::invalid_usage(
            "another collective call (split, shrink, agree, finalize) on this communicator is going on in \
             this process; they come one at a time, in the same order on all ranks",
        )
    })
}

/// The parent's channel, also while another thread looks at it for a moment.
fn channel(parts: &Parts) -> MutexGuard<'_, Channel> {
    lock(&parts.channel)
}

/// Ends the init of a child as soon as the parent is aborted, here or elsewhere, or has lost a rank: one
/// that will never come to the child's rendezvous.
fn trouble(parent: &Comm, parts: &Parts) -> Watch {
    let abort = parent.abort.clone();
    let channel = std::sync::Arc::clone(&parts.channel);
    Watch::new(move || {
        abort.is_set()
            || channel
                .try_lock()
                .is_ok_and(|mut channel| channel.look().is_err() || !channel.all_here())
    })
}

/// The error of a child's init, with the parent's trouble if that has ended it.
fn with_cause(error: Error, comm: &Comm, parent: &Comm, parts: &Parts) -> Error {
    if error.code() != Code::Aborted || comm.abort.is_set() || parent.abort.is_set() {
        return error;
    }
    let mut channel = channel(parts);
    let cause = channel.look().and_then(|()| channel.first_dead()).err();
    cause.unwrap_or_else(|| Error::new(Code::RemoteError, "a rank has left the parent"))
}

fn child_options(parent: &Comm, options: Option<&Options>) -> Options {
    match options {
        Some(options) => options.clone(),
        None => Options {
            name: None,
            device: None,
            ..parent.options.clone()
        },
    }
}

/// Splits by colour (negative: not a member, `*out` is 0) and key. Collective over the parent.
/// `Ok(false)`: in progress.
pub(crate) fn comm_split(
    handle: Handle,
    color: i32,
    key: i32,
    out: OutHandle,
    options: Option<&Options>,
) -> Result<bool> {
    out.set(0);
    let parent = table::get(handle)?;
    parent.working()?;
    if color < NO_COLOR {
        return Err(Error::invalid_argument(format!(
            "the colour is {color}; colours are 0 or more, and {NO_COLOR} (FLAGOS_SPLIT_NOCOLOR) means none"
        )));
    }
    let options = child_options(&parent, options);
    // Rank and number are known only after the exchange; the handle shows them from then on.
    let (child, comm) = init::new_comm(parent.nranks(), parent.rank(), parent.device, &options)?;
    let work = Work::Split {
        parent: handle,
        color,
        key,
    };
    init::start(Pending {
        handle: child,
        comm,
        out,
        work,
    })
}

/// The part of a split that talks. `None`: this rank has no colour, took part and gets nothing.
pub(crate) fn make(comm: &Comm, parent: Handle, color: i32, key: i32) -> Result<Option<Parts>> {
    let parent_comm = table::get(parent)?;
    let parts = parent_comm.working()?;
    let _one = collective(&parts)?;
    let patience = comm
        .init_patience()
        .also_ended_by(trouble(&parent_comm, &parts));
    let own = Part {
        color: (color >= 0).then_some(color),
        key,
    };
    let all = channel(&parts).allgather("a split", &own.encode(), &patience)?;
    let all: Option<Vec<Part>> = all.all().map(Part::decode).collect();
    let all = all.ok_or_else(|| Error::internal("a rank's part of a split can't be read"))?;
    let members = own.color.map(|c| members(&all, c)).unwrap_or_default();
    let new_rank = members.iter().position(|r| *r == parent_comm.rank());

    // The first member of each colour serves its rendezvous.
    let mut id = Ok(Vec::new());
    if new_rank == Some(0) {
        id = init::get_unique_id().map(|id| id.to_vec());
    }
    let mut writer = Writer::default();
    match &id {
        Ok(id) => writer.u32(0).bytes(id),
        Err(error) => writer
            .u32(error.code() as u32)
            .bytes(error.text().as_bytes()),
    };
    let ids = channel(&parts).allgather("a split's rendezvous", &writer.0, &patience)?;
    let mut made = Err(Error::internal("not made"));
    if let (Some(new_rank), Some(first)) = (new_rank, members.first()) {
        made = (|| {
            let mut reader = Reader(ids.of(*first as usize));
            let code = reader.u32();
            let body = reader.bytes().unwrap_or_default();
            if code != Some(0) {
                return Err(Error::new(Code::RemoteError, String::from_utf8_lossy(body)));
            }
            let id: [u8; UNIQUE_ID_BYTES] = body
                .try_into()
                .map_err(|_| Error::internal("a split's id has a wrong length"))?;
            let native = parts.native();
            let vendor_split = native.is_some_and(|n| n.library().symbols.comm_split.is_some());
            child(
                comm,
                &parts,
                &parent_comm,
                new_rank as u32,
                members.len() as u32,
                id,
                vendor_split.then_some(VendorParent::Split {
                    parent,
                    color: own.color.unwrap_or(0),
                    key,
                }),
                &patience,
            )
        })();
    } else if let Some(native) = parts.native()
        && native.library().symbols.comm_split.is_some()
    {
        // The vendor's split is collective: a rank without a colour takes part in it too.
        let options = init::vendor_options(&comm.options)?;
        let outcome = native.split(None, key, &options);
        if let Err(error) = outcome {
            made = Err(error);
        }
    }
    let made = made.map_err(|error| with_cause(error, comm, &parent_comm, &parts));
    let mine = match (&made, new_rank) {
        (Err(error), Some(_)) => error.text().to_owned(),
        _ => String::new(),
    };
    let votes = channel(&parts).allgather("the vote on a split", mine.as_bytes(), &patience);
    let votes = match votes {
        Ok(votes) => votes,
        Err(error) => {
            if let Ok(parts) = &made {
                let _ = super::end::take_down(comm, parts, super::end::End::Abort);
            }
            return Err(error);
        }
    };
    let texts: Vec<_> = votes.all().map(String::from_utf8_lossy).collect();
    let failed = super::agree::reasons(&parts.infos, texts.iter().map(AsRef::as_ref));
    if let Some(failed) = failed {
        if let Ok(parts) = &made {
            let _ = super::end::take_down(comm, parts, super::end::End::Abort);
        }
        let code = made.err().map_or(Code::RemoteError, |e| e.code());
        return Err(Error::new(code, format!("the split failed: {failed}")));
    }
    match new_rank {
        Some(_) => made.map(Some),
        None => Ok(None),
    }
}

/// Joins a child's own rendezvous, on the parent's tier.
#[allow(clippy::too_many_arguments)]
fn child(
    comm: &Comm,
    parts: &Parts,
    parent: &Comm,
    rank: u32,
    nranks: u32,
    id: [u8; UNIQUE_ID_BYTES],
    vendor: Option<VendorParent>,
    patience: &Patience,
) -> Result<Parts> {
    let mut info = parts.infos[parent.rank() as usize].clone();
    info.nranks = nranks;
    info.tiers = vec![parts.tier];
    comm.become_rank(rank, nranks);
    let spec = Spec {
        ids: vec![unique_id::decode(&id)?],
        info,
        parent: vendor,
    };
    init::make(comm, &spec, patience)
}

/// Makes a communicator without the excluded ranks, which do not call. `Ok(false)`: in progress.
pub(crate) fn comm_shrink(
    handle: Handle,
    exclude: &[i32],
    out: OutHandle,
    options: Option<&Options>,
    flags: i32,
) -> Result<bool> {
    out.set(0);
    let parent = table::get(handle)?;
    let parts = parent.working()?;
    if !(0..=1).contains(&flags) {
        return Err(Error::invalid_argument(format!(
            "the flags of a shrink are 0 (default) or 1 (abort the parent's work), not {flags}"
        )));
    }
    let mut excluded: Vec<u32> = Vec::new();
    for rank in exclude {
        let known = u32::try_from(*rank).ok().filter(|r| *r < parent.nranks());
        match known {
            Some(rank) if excluded.contains(&rank) => {
                return Err(Error::invalid_argument(format!(
                    "rank {rank} is excluded twice"
                )));
            }
            Some(rank) => excluded.push(rank),
            None => {
                return Err(Error::invalid_argument(format!(
                    "rank {rank} is excluded, but the communicator has {}",
                    counted(parent.nranks(), "rank")
                )));
            }
        }
    }
    if excluded.is_empty() {
        return Err(Error::invalid_argument(
            "a shrink excludes at least one rank, and none is given; flagosCommSplit with one colour makes a \
             communicator of the same ranks",
        ));
    }
    if excluded.contains(&parent.rank()) {
        return Err(Error::invalid_argument(format!(
            "rank {} is excluded and must not call flagosCommShrink",
            parent.rank()
        )));
    }
    if super::group::is_open() {
        return Err(Error::invalid_usage(
            "flagosCommShrink can't be inside a group",
        ));
    }
    let survivors: Vec<u32> = (0..parent.nranks())
        .filter(|r| !excluded.contains(r))
        .collect();
    let new_rank = survivors
        .iter()
        .position(|r| *r == parent.rank())
        .unwrap_or(0) as u32;
    let options = child_options(&parent, options);
    let nranks = survivors.len() as u32;
    if flags == 1 {
        super::end::stop_work(handle, &parent, &parts, super::end::Stop::Shrink);
    }
    let (child, comm) = init::new_comm(nranks, new_rank, parent.device, &options)?;
    let shrink = Shrink {
        parent: handle,
        survivors,
        excluded,
        abort: flags == 1,
    };
    let work = Work::Shrink(Box::new(shrink));
    init::start(Pending {
        handle: child,
        comm,
        out,
        work,
    })
}

/// The part of a shrink that talks.
pub(crate) fn make_shrunk(comm: &Comm, shrink: &Shrink) -> Result<Parts> {
    let Shrink {
        survivors,
        excluded,
        ..
    } = shrink;
    let parent = table::get(shrink.parent)?;
    let parts = parent.parts()?;
    let _one = collective(&parts)?;
    let patience = {
        // Not its channel: that has trouble, or there would be no shrink.
        let abort = parent.abort.clone();
        let ended = Watch::new(move || abort.is_set());
        comm.init_patience().also_ended_by(ended)
    };
    let (rank, nranks) = (comm.rank(), comm.nranks());
    let id = meet(&parts, survivors, rank, excluded, &patience)?;
    let native = parts
        .native()
        .filter(|n| n.library().symbols.comm_shrink.is_some())
        // Ranks that are watched may have lost their vendor's communicator by now, and others not yet.
        .filter(|_| parts.infos[parent.rank() as usize].liveness_ms == 0);
    let vendor = native.map(|_| VendorParent::Shrink {
        parent: shrink.parent,
        excluded: excluded.clone(),
        abort: shrink.abort,
    });
    child(comm, &parts, &parent, rank, nranks, id, vendor, &patience)
}

/// How the survivors of a shrink get the id of the new rendezvous: on one machine under a name, between several at a port
/// that follows from what all of them know, without the parent's channel, whose hub may be among the dead.
fn meet(
    parts: &Parts,
    survivors: &[u32],
    new_rank: u32,
    excluded: &[u32],
    patience: &Patience,
) -> Result<[u8; UNIQUE_ID_BYTES]> {
    let info = |new_rank: u32| &parts.infos[survivors[new_rank as usize] as usize];
    let nranks = survivors.len() as u32;
    let together = (0..nranks).all(|other| info(other).shares_memory_with(info(0)));
    let mut sorted = excluded.to_vec();
    sorted.sort_unstable();
    let survivors = Survivors {
        secret: &parts.secret,
        excluded: &sorted,
        rank: new_rank,
        nranks,
        name: &|rank| format!("rank {} ({})", survivors[rank as usize], info(rank).place()),
    };
    if together {
        return survivors.meet_here(init::get_unique_id, patience);
    }
    let (first, own) = (info(0).address, info(new_rank).address);
    let first = first.ok_or_else(|| Error::internal("a rank has no address"))?;
    let first = Place {
        address: first.ip(),
        scope: match own {
            Some(SocketAddr::V6(v6)) => v6.scope_id(),
            _ => 0,
        },
    };
    survivors.meet_across(&first, init::get_unique_id, patience)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_ordered_by_key_then_by_old_rank() {
        let part = |color, key| Part { color, key };
        let parts = [
            part(Some(1), 5),
            part(Some(0), 0),
            part(Some(1), -3),
            part(None, 0),
            part(Some(1), 5),
        ];
        assert_eq!(members(&parts, 1), [2, 0, 4]);
        assert_eq!(members(&parts, 0), [1]);
        assert_eq!(members(&parts, 7), [0u32; 0]);
        for p in parts {
            assert_eq!(Part::decode(&p.encode()), Some(p));
        }
    }
}
