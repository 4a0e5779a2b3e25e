//! The tiers with a collective library, a vendor's or FlagCX: the vote on the library, then its init
//! under our deadline.
#![forbid(unsafe_code)]

use super::tiers::{init_vote, vote_code, vote_texts};
use super::turn::Turn;
use super::{Spec, VendorParent};
use crate::comm::agree::{self, ProbeVote, RankInfo, Verdict};
use crate::comm::options::Options;
use crate::comm::{Backend, Comm, End, Native, table};
use crate::control::channel::Channel;
use crate::control::patience::Patience;
use crate::control::wire::{Reader, Writer, remote_code};
use crate::device::DeviceWord;
use crate::error::{Code, Error, Result};
use crate::load;
use crate::sys::handoff::{Nothing, Receiver, queue};
use crate::vendor::comm::VendorComm;
use crate::vendor::library::Progress;
use crate::vendor::options::{CommOptions, Knob};
use crate::vendor::{self, FLAGCX, Library, Named};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The options as the vendor's config takes them.
pub(crate) fn vendor_options(options: &Options) -> Result<CommOptions> {
    let knobs = &options.vendor;
    let mut out = CommOptions::default();
    if options.knobs_are_hints {
        out.set_hints();
    }
    if options.vendor_nonblocking {
        out.set(Knob::Blocking, 0);
    }
    for (knob, value) in [
        (Knob::CgaClusterSize, knobs.cga_cluster_size),
        (Knob::MinCtas, knobs.min_ctas),
        (Knob::MaxCtas, knobs.max_ctas),
        (Knob::SplitShare, knobs.split_share),
        (Knob::TrafficClass, knobs.traffic_class),
        (Knob::CollnetEnable, knobs.collnet_enable),
        (Knob::CtaPolicy, knobs.cta_policy),
        (Knob::ShrinkShare, knobs.shrink_share),
        (Knob::NvlsCtas, knobs.nvls_ctas),
        (Knob::NChannelsPerNetPeer, knobs.n_channels_per_net_peer),
        (Knob::NvlinkCentricSched, knobs.nvlink_centric_sched),
        (Knob::GraphUsageMode, knobs.graph_usage_mode),
        (Knob::NumRmaCtx, knobs.num_rma_ctx),
        (Knob::MaxP2pPeers, knobs.max_p2p_peers),
    ] {
        if let Some(value) = value {
            out.set(knob, value);
        }
    }
    if let Some(name) = &knobs.net_name {
        out.set_net_name(name.clone());
    }
    if let Some(name) = &options.name {
        let name = std::ffi::CString::new(name.as_str())
            .map_err(|_| Error::invalid_argument("the communicator's name holds a NUL"))?;
        out.set_comm_name(name);
    }
    Ok(out)
}

pub(super) fn native(
    comm: &Comm,
    spec: &Spec,
    channel: &mut Channel,
    infos: &[RankInfo],
    patience: &Patience,
    code: &mut Code,
    opened: Result<&'static Library>,
) -> Result<std::result::Result<Backend, String>> {
    // A failure of this rank alone is a vote too: the others wait for one.
    let vote = probe(comm, spec, &opened).unwrap_or_else(|error| {
        given(ProbeVote {
            reason: error.text().to_owned(),
            version: 0,
            path: String::new(),
            numbers: String::new(),
            id: Vec::new(),
        })
    });
    let mut ready = || match vote.try_take() {
        Ok(vote) => Some(vote.encode()),
        Err(Nothing::Late) => None,
        Err(Nothing::Gone) => Some(Vec::new()),
    };
    let phase = "the vote on the vendor's library";
    let votes = channel.allgather_when(phase, &mut ready, &|_| false, patience)?;
    let votes: Option<Vec<ProbeVote>> = votes.iter().map(|v| ProbeVote::decode(v?)).collect();
    let votes = votes.ok_or_else(|| Error::internal("a rank's vote can't be read"))?;
    match agree::after_probe(infos, &votes) {
        Verdict::Go => {}
        Verdict::Decline(reason) => return Ok(Err(reason)),
        Verdict::Stop(text) => return Err(Error::invalid_usage(text)),
    }
    let library = opened?;
    let phase = format!("the initialisation of {}", library.row.title);
    let ids = votes
        .into_iter()
        .take(roots(spec, library))
        .map(|vote| vote.id)
        .collect();
    let turn = match serial_init(library, infos) {
        true => Some(Turn::wait(&spec.ids[0].secret, channel, patience)?),
        false => None,
    };
    let mut helper =
        VendorInit::start(comm, spec, library, infos, ids).unwrap_or_else(|error| VendorInit {
            result: given(Err(error)),
            unwanted: Arc::default(),
            title: library.row.title,
            received: false,
        });
    let mut own: Option<Result<Native>> = None;
    let mut ready = || {
        let result = helper.poll()?;
        let vote = init_vote(&result.as_ref().map(drop).map_err(Error::clone));
        own = Some(result);
        Some(vote)
    };
    let gathered = channel.allgather_when(&phase, &mut ready, &|v| vote_code(v) != 0, patience);
    let votes = match gathered {
        Ok(votes) => votes,
        Err(error) => {
            helper.give_up(own);
            return Err(error);
        }
    };
    let failed = votes.iter().flatten().map(vote_code).find(|c| *c != 0);
    if let Some(first) = failed {
        *code = remote_code(first);
        let texts = vote_texts(&votes);
        helper.give_up(own);
        let reasons = agree::reasons(infos, texts.iter().map(String::as_str));
        return Ok(Err(
            reasons.unwrap_or_else(|| String::from("its initialisation failed"))
        ));
    }
    drop(turn);
    match own {
        Some(Ok(native)) => {
            let native = Arc::new(native);
            if library.row.quirks.pair_messages
                && let Err(error) = make_pairs(comm, &native, channel, patience)
            {
                crate::comm::end::abort_in_background(native);
                return Err(error);
            }
            Ok(Ok(Backend::Native(native)))
        }
        _ => Err(Error::internal(
            "the vendor's communicator is not there after a good vote",
        )),
    }
}

/// A result that is there already.
fn given<T>(value: T) -> Receiver<T> {
    let (sender, receiver) = queue();
    let _ = sender.send(value);
    receiver
}

/// Whether inits of this library have to take turns: the same answer on all ranks. FlagCX does what
/// each rank's vendor's library does.
fn serial_init(library: &Library, infos: &[RankInfo]) -> bool {
    let serial = |info: &RankInfo| match vendor::by_name(&info.vendor) {
        Some(Named::Row(vendor)) => vendor.ccl.quirks.serial_init,
        _ => false,
    };
    library.row.quirks.serial_init || library.row.key == FLAGCX.key && infos.iter().any(serial)
}

/// An exchange of ids of pairs is at most so large, on all ranks together.
const ROUND_BYTES: usize = 16 << 20;

/// How many peers a round of that exchange is about.
fn peers_of_round(nranks: usize, id_bytes: usize) -> usize {
    (ROUND_BYTES / (nranks * (id_bytes + size_of::<u32>()))).max(1)
}

/// The peers of a round for which a rank makes the ids: the lower rank of a pair makes it.
fn own_of_round(rank: usize, round: &Range<usize>) -> Range<usize> {
    round.start.max(rank + 1)..round.end.max(rank + 1)
}

/// Exchanges the ids of the communicators of two ranks each, over which messages go.
fn make_pairs(
    comm: &Comm,
    native: &Arc<Native>,
    channel: &mut Channel,
    patience: &Patience,
) -> Result<()> {
    let (rank, nranks) = (comm.rank() as usize, comm.nranks() as usize);
    // Two ranks are a pair already.
    if nranks <= 2 {
        return Ok(());
    }
    let mut ids: Vec<Vec<u8>> = vec![Vec::new(); nranks];
    let peers = peers_of_round(nranks, native.library().id_bytes);
    for first in (1..nranks).step_by(peers) {
        let round = first..nranks.min(first + peers);
        let own = own_of_round(rank, &round);
        let made =
            crate::comm::end::bounded(comm, native, "ids of pairs", patience, move |native| {
                let ids = own.map(|_| native.library().unique_id());
                ids.collect::<Result<Vec<Vec<u8>>>>()
            });
        let said = say_round(&made);
        let all = channel.allgather("the exchange of ids of pairs", &said, patience)?;
        hear_round(all.all(), &round, rank, &mut ids)?;
    }
    crate::vendor::set_pairs(native.raw(), rank as i32, &ids)
}

/// What a rank says in a round: its ids, or why it has none.
fn say_round(made: &Result<Vec<Vec<u8>>>) -> Vec<u8> {
    let mut writer = Writer::default();
    match made {
        Ok(ids) => {
            writer.u32(0);
            for id in ids {
                writer.bytes(id);
            }
        }
        Err(error) => {
            writer
                .u32(error.code() as u32)
                .bytes(error.text().as_bytes());
        }
    }
    writer.0
}

/// Takes the ids of a rank's own pairs out of what all ranks said in a round.
fn hear_round<'a>(
    all: impl Iterator<Item = &'a [u8]>,
    round: &Range<usize>,
    rank: usize,
    ids: &mut [Vec<u8>],
) -> Result<()> {
    for (other, body) in all.enumerate() {
        let mut reader = Reader(body);
        let code = reader.u32();
        if code != Some(0) {
            let text = reader.text().unwrap_or_default();
            return Err(Error::new(
                Code::RemoteError,
                format!("rank {other}: {text}"),
            ));
        }
        for peer in own_of_round(other, round) {
            let id = reader
                .bytes()
                .ok_or_else(|| Error::internal("a rank's ids of pairs can't be read"))?;
            if other == rank {
                ids[peer] = id.to_vec();
            } else if peer == rank {
                ids[other] = id.to_vec();
            }
        }
    }
    Ok(())
}

/// This rank's vote on the vendor's library. The vendor's id is made on a thread of its own, since
/// no call of the vendor's may hold up our deadline.
fn probe(
    comm: &Comm,
    spec: &Spec,
    opened: &Result<&'static Library>,
) -> Result<Receiver<ProbeVote>> {
    let (sender, vote) = queue();
    let mut own = ProbeVote {
        reason: String::new(),
        version: 0,
        path: String::new(),
        numbers: String::new(),
        id: Vec::new(),
    };
    match opened {
        Err(error) => own.reason = error.text().to_owned(),
        Ok(library) => {
            own.version = library.version_code;
            own.path = library.path().display().to_string();
            own.numbers = library.numbers_text();
            // Several ids of ours mean several roots of the vendor's, one on each of the first ranks.
            if (comm.rank() as usize) < roots(spec, library) {
                let library: &'static Library = library;
                let device = comm.device;
                let work = move || {
                    // Some make the id on the device.
                    let made = (|| {
                        if let Some(driver) = load::process_driver()? {
                            driver.prepare_thread(device)?;
                        }
                        library.unique_id()
                    })();
                    match made {
                        Ok(id) => own.id = id,
                        Err(error) => own.reason = error.text().to_owned(),
                    }
                    let _ = sender.send(own);
                };
                std::thread::Builder::new()
                    .name("flagos-vendor".into())
                    .spawn(work)
                    .map_err(|e| Error::system("no thread for the vendor's id", e))?;
                return Ok(vote);
            }
        }
    }
    let _ = sender.send(own);
    Ok(vote)
}

/// How many of the vendor's roots an init has.
fn roots(spec: &Spec, library: &Library) -> usize {
    match library.symbols.comm_init_rank_scalable {
        Some(_) => spec.ids.len().min(spec.info.nranks as usize),
        None => 1,
    }
}

/// Whether the vendor made what was asked for.
fn check_answers(comm: &VendorComm, nranks: i32, rank: i32, device: i32) -> Result<()> {
    let symbols = &comm.library().symbols;
    let answers = [
        (
            "number of ranks",
            symbols.comm_count.is_some().then(|| comm.count()),
            nranks,
        ),
        (
            "rank",
            symbols.comm_user_rank.is_some().then(|| comm.user_rank()),
            rank,
        ),
        (
            "device",
            symbols.comm_device.is_some().then(|| comm.device()),
            device,
        ),
    ];
    for (what, answer, wanted) in answers {
        if let Some(answer) = answer {
            let answer = answer?;
            if answer != wanted {
                let _ = comm.abort();
                return Err(Error::internal(format!(
                    "the vendor's communicator has {what} {answer} instead of {wanted}"
                )));
            }
        }
    }
    Ok(())
}

/// How many ranks are in the process of this one.
fn ranks_here(infos: &[RankInfo], rank: u32) -> usize {
    let own = infos[rank as usize].process();
    infos.iter().filter(|info| info.process() == own).count()
}

/// The vendor's init on a helper thread, with the device set: it may hang, and can't be
/// interrupted by anything but its own abort.
struct VendorInit {
    result: Receiver<Result<Native>>,
    unwanted: Arc<AtomicBool>,
    title: &'static str,
    received: bool,
}

impl VendorInit {
    fn start(
        comm: &Comm,
        spec: &Spec,
        library: &'static Library,
        infos: &[RankInfo],
        ids: Vec<Vec<u8>>,
    ) -> Result<VendorInit> {
        let (sender, result) = queue();
        let unwanted = Arc::new(AtomicBool::new(false));
        let options = vendor_options(&comm.options)?;
        let (nranks, rank, device) = (comm.nranks() as i32, comm.rank() as i32, comm.device);
        let here = ranks_here(infos, comm.rank());
        let parent = spec.parent.clone();
        let abort = comm.abort.clone();
        let flag = Arc::clone(&unwanted);
        let work = move || {
            let made = || -> Result<Native> {
                let driver = load::process_driver()?
                    .ok_or_else(|| Error::internal("a vendor's init without a driver"))?;
                driver.prepare_thread(device)?;
                let word = DeviceWord::new(driver)?;
                let of_parent = |handle| -> Result<Arc<Native>> {
                    let parts = table::get(handle)?.parts()?;
                    let native = parts.native().map(Arc::clone);
                    native.ok_or_else(|| Error::internal("the parent is not native"))
                };
                let splits = matches!(parent, Some(VendorParent::Split { .. }));
                let from = parent.as_ref().map(VendorParent::handle);
                let from = from.map(&of_parent).transpose()?;
                let (comm, mut progress) = match parent {
                    Some(VendorParent::Split { parent, color, key }) => {
                        let (child, progress) =
                            of_parent(parent)?.split(Some(color), key, &options)?;
                        let child = child
                            .ok_or_else(|| Error::internal("a split with a colour gave nothing"))?;
                        (child, progress)
                    }
                    Some(VendorParent::Shrink {
                        parent,
                        excluded,
                        abort,
                    }) => {
                        let excluded: Vec<i32> = excluded.iter().map(|r| *r as i32).collect();
                        of_parent(parent)?.shrink(&excluded, abort, &options)?
                    }
                    None if ids.len() > 1 => {
                        library.init_rank_scalable(nranks, rank, &ids, &options)?
                    }
                    None => library.init_rank(nranks, &ids[0], rank, here, &options)?,
                };
                // A child of one that does not block shows itself when its parent is free again.
                while progress == Progress::Pending || comm.raw().is_null() {
                    if flag.load(Ordering::Acquire) || abort.is_set() {
                        let _ = comm.abort();
                        return Err(Error::new(
                            Code::Aborted,
                            "aborted during the vendor's init",
                        ));
                    }
                    std::thread::sleep(Duration::from_millis(1));
                    progress = match &from {
                        Some(from) if comm.raw().is_null() => {
                            let state = from.async_error();
                            // A shrink is made of what is broken.
                            if splits {
                                let _ = state?;
                            }
                            Progress::Pending
                        }
                        _ => comm.async_error()?,
                    };
                }
                comm.bind(driver, device);
                check_answers(&comm, nranks, rank, device)?;
                Ok(Native {
                    comm,
                    word,
                    end: End::default(),
                })
            };
            let result = made();
            // Nobody waits any more: what came too late goes again.
            if flag.load(Ordering::Acquire) {
                if let Ok(comm) = result {
                    let _ = comm.abort();
                }
            } else {
                let _ = sender.send(result);
            }
        };
        std::thread::Builder::new()
            .name("flagos-vendor".into())
            .spawn(work)
            .map_err(|e| Error::system("no thread for the vendor's init", e))?;
        Ok(VendorInit {
            result,
            unwanted,
            title: library.row.title,
            received: false,
        })
    }

    /// The result, once it is there.
    fn poll(&mut self) -> Option<Result<Native>> {
        match self.result.try_take() {
            Ok(result) => {
                self.received = true;
                Some(result)
            }
            Err(Nothing::Late) => None,
            Err(Nothing::Gone) => {
                self.received = true;
                Some(Err(Error::internal(
                    "the thread of the vendor's init panicked",
                )))
            }
        }
    }

    /// The others failed or the deadline passed: what this rank has, or gets later, is aborted.
    fn give_up(&mut self, own: Option<Result<Native>>) {
        self.unwanted.store(true, Ordering::Release);
        let own = own.or_else(|| self.poll());
        if let Some(Ok(comm)) = own {
            crate::comm::end::abort_in_background(Arc::new(comm));
        } else if !self.received {
            log::warn!(
                "{} is still inside its init, which can't be interrupted: its thread and \
                 communicator are left behind",
                self.title
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The id of a pair is what its lower rank has made for it, in however many rounds.
    #[test]
    fn every_pair_gets_its_id_in_rounds() {
        let nranks = 7;
        for peers in [1, 2, 3, 6, 50] {
            let mut ids = vec![vec![Vec::new(); nranks]; nranks];
            for first in (1..nranks).step_by(peers) {
                let round = first..nranks.min(first + peers);
                let said: Vec<Vec<u8>> = (0..nranks)
                    .map(|rank| {
                        let own = own_of_round(rank, &round);
                        say_round(&Ok(own.map(|peer| vec![rank as u8, peer as u8]).collect()))
                    })
                    .collect();
                for (rank, ids) in ids.iter_mut().enumerate() {
                    let all = said.iter().map(Vec::as_slice);
                    hear_round(all, &round, rank, ids).unwrap();
                }
            }
            for (rank, ids) in ids.iter().enumerate() {
                for (peer, id) in ids.iter().enumerate() {
                    let expected = match peer == rank {
                        true => Vec::new(),
                        false => vec![rank.min(peer) as u8, rank.max(peer) as u8],
                    };
                    assert_eq!(*id, expected, "{rank} {peer} in rounds of {peers}");
                }
            }
        }
        let failed = say_round(&Err(Error::internal("no id")));
        let error = hear_round([&failed[..]].into_iter(), &(1..2), 0, &mut []).unwrap_err();
        assert!(error.text().contains("rank 0: no id"), "{error}");
    }

    #[test]
    fn rounds_are_bounded_whatever_the_number_of_ranks() {
        for (nranks, rounds) in [(3, 1), (128, 1), (1024, 9), (10_000, 834)] {
            let peers = peers_of_round(nranks, 128);
            assert!(nranks * peers * 132 <= ROUND_BYTES, "{nranks}");
            assert_eq!((nranks - 1).div_ceil(peers), rounds, "{nranks}");
        }
        assert_eq!(peers_of_round(1 << 20, 4108), 1);
    }
}
