//! The host tier: shared memory for the ranks of one machine, an engine over messages for several, or both in
//! layers.

use super::tiers::{init_vote, vote_code, vote_texts};
use crate::bootstrap::local::Visitors;
use crate::bootstrap::unique_id::Secret;
use crate::comm::agree::{self, RankInfo};
use crate::comm::{Backend, Comm};
use crate::config;
use crate::control::channel::Channel;
use crate::control::gathered::Gathered;
use crate::control::patience::{Impatience, Patience};
use crate::control::wire::{Reader, Writer, remote_code};
use crate::error::{Code, Error, Result};
use crate::host::layers::LayeredEngine;
use crate::host::net::choice::{self, Chosen, Library, Offer, Plan, Wish};
use crate::host::net::mpi::{self, Place, Use};
use crate::host::net::staged::Stage;
use crate::host::net::ucc::{self, Meeting, Step};
use crate::host::net::ucx::{self, Ucx};
use crate::host::net::{NetEngine, Transport};
use crate::host::op::WaitPolicy;
use crate::host::shm::{ShmEngine, pool_bytes};
use crate::load;
use crate::sys::handoff::{Nothing, Receiver, queue};
use crate::sys::memory::Segment;
use crate::sys::{cpu, process, unix};
use crate::words::ranks_named;
use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) fn host(
    comm: &Comm,
    secret: &Secret,
    channel: &mut Channel,
    infos: &[RankInfo],
    patience: &Patience,
    code: &mut Code,
) -> Result<std::result::Result<Backend, String>> {
    match choice::plan(infos) {
        Plan::SharedMemory => {
            let here: Vec<usize> = (0..infos.len()).collect();
            let made = shared_memory(comm, secret, channel, infos, &here, patience, code)?;
            Ok(made.map(|engine| Backend::Host(Arc::new(engine))))
        }
        Plan::Messages(wish) => {
            let far = match over_messages(comm, channel, infos, wish, patience, code)? {
                Ok(far) => far,
                Err(reason) => return Ok(Err(reason)),
            };
            let Some(topology) = choice::layers(infos) else {
                return Ok(Ok(Backend::Host(Arc::new(far))));
            };
            let (machine, _) = topology.of(comm.rank() as usize);
            let here = topology.machine(machine);
            let near = shared_memory(comm, secret, channel, infos, here, patience, code)?;
            match near {
                Ok(near) => {
                    let engine = LayeredEngine::new(near, far, topology)?;
                    Ok(Ok(Backend::Host(Arc::new(engine))))
                }
                Err(reason) => Ok(Err(reason)),
            }
        }
        Plan::Refused(reason) => Ok(Err(reason)),
    }
}

/// The engine of the ranks that are `here`, this one among them. All ranks of the communicator do this at once, those
/// of each machine for themselves: they fail together.
fn shared_memory(
    comm: &Comm,
    secret: &Secret,
    channel: &mut Channel,
    infos: &[RankInfo],
    here: &[usize],
    patience: &Patience,
    code: &mut Code,
) -> Result<std::result::Result<ShmEngine, String>> {
    // The most that any machine has, so that all come to the same end.
    if let Err(error) = ShmEngine::segment_bytes(comm.nranks()) {
        *code = error.code();
        return Ok(Err(error.text().to_owned()));
    }
    let leader = here.first().copied().unwrap_or(0);
    let leads = comm.rank() as usize == leader;
    let bytes = match ShmEngine::segment_bytes(here.len() as u32) {
        Ok(bytes) => bytes,
        Err(error) => {
            *code = error.code();
            return Ok(Err(error.text().to_owned()));
        }
    };
    // The first rank makes the segment and says under which name it can be had.
    let mut made = None;
    let mut attached: Option<ShmEngine> = None;
    let mut offer: Result<Vec<u8>> = Ok(Vec::new());
    if leads {
        offer = (|| {
            let token: [u8; 16] = process::random()
                .map_err(|e| Error::system("the kernel gave no random bytes", e))?;
            let name = [&b"flagos-comm-"[..], &token].concat();
            let (segment, fd) = Segment::create(bytes)?;
            let listener = unix::listen(&name)?;
            let pool = staging_pool(infos, here);
            let pool_fd = match &pool {
                Some((_, fd)) => Some(
                    fd.try_clone()
                        .map_err(|e| Error::system("a second descriptor of shared memory", e))?,
                ),
                None => None,
            };
            attached = Some(attach(comm, here, segment, pool)?);
            made = Some((fd, pool_fd, listener));
            Ok(name)
        })();
    }
    let mut writer = Writer::default();
    match &offer {
        Ok(name) => writer
            .u32(0)
            .bytes(name)
            .u64(attached.as_ref().map_or(0, ShmEngine::pool_len) as u64),
        Err(error) => writer
            .u32(error.code() as u32)
            .bytes(error.text().as_bytes()),
    };
    let offers = channel.allgather("the offer of shared memory", &writer.0, patience)?;
    if let Some(reasons) = refused_offers(infos, &offers, code) {
        return Ok(Err(reasons));
    }
    let mut reader = Reader(offers.of(leader));
    reader.u32();
    let name = reader.bytes().unwrap_or_default().to_vec();
    let pool_len = reader.u64().unwrap_or(0) as usize;

    let mut served = 1;
    let mut visitors = Visitors::default();
    let mut ready = || {
        let result: Result<()> = (|| match &made {
            Some((fd, pool_fd, listener)) => {
                for stream in visitors.admit(listener, secret, Instant::now())? {
                    let until = Instant::now() + HAND_OVER_LIMIT;
                    unix::send_fd(stream.as_fd(), fd.as_fd(), until)?;
                    if let Some(fd) = pool_fd {
                        unix::send_fd(stream.as_fd(), fd.as_fd(), until)?;
                    }
                    served += 1;
                }
                if served < here.len() {
                    return Err(Error::new(Code::InProgress, ""));
                }
                Ok(())
            }
            None => {
                let (segment, pool) = fetch(leader, &name, secret, bytes, pool_len, patience)?;
                attached = Some(attach(comm, here, segment, pool)?);
                Ok(())
            }
        })();
        match &result {
            // An abort or the deadline ends the exchange itself, on all ranks alike.
            Err(e) if matches!(e.code(), Code::InProgress | Code::Aborted | Code::Timeout) => None,
            _ => Some(init_vote(&result)),
        }
    };
    let votes = channel.allgather_when(
        "the sharing of memory",
        &mut ready,
        &|v| vote_code(v) != 0,
        patience,
    )?;
    if let Some(reasons) = refusals(infos, &votes, code) {
        return Ok(Err(reasons));
    }
    let engine = attached.ok_or_else(|| Error::internal("no shared memory after a good vote"))?;
    // All have attached: where each may run is known before the first collective.
    engine.choose_wait();
    Ok(Ok(engine))
}

/// The reasons of the first ranks that have no memory to offer, and the code of the first of them.
fn refused_offers(infos: &[RankInfo], offers: &Gathered, code: &mut Code) -> Option<String> {
    let refused: Vec<(u32, String)> = offers
        .all()
        .map(|offer| {
            let mut reader = Reader(offer);
            let code = reader.u32().unwrap_or(Code::InternalError as u32);
            match code {
                0 => (0, String::new()),
                _ => (code, reader.text().unwrap_or_default()),
            }
        })
        .collect();
    let (first, _) = refused.iter().find(|(code, _)| *code != 0)?;
    *code = remote_code(*first);
    agree::reasons(infos, refused.iter().map(|(_, text)| text.as_str()))
}

/// Shared memory and its descriptor.
type Shared = (Segment, OwnedFd);

/// The memory for staging, if any rank has a device whose buffers may have to be staged. Too little of it
/// is no reason to fail: there is always a way without.
fn staging_pool(infos: &[RankInfo], here: &[usize]) -> Option<Shared> {
    let none = infos.iter().all(|i| i.vendor.is_empty() && i.device < 0);
    let bytes = pool_bytes(config::get().staging_memory, here.len() as u32);
    // Between machines each rank stages in memory of its own.
    if none || bytes == 0 || here.len() < infos.len() {
        return None;
    }
    let made = Segment::create_usable_sparse(bytes);
    made.inspect_err(|error| log::warn!("no memory for staging of its own: {error}"))
        .ok()
}

/// This rank's engine.
fn attach(
    comm: &Comm,
    here: &[usize],
    segment: Segment,
    pool: Option<Shared>,
) -> Result<ShmEngine> {
    let place = here.iter().position(|rank| *rank == comm.rank() as usize);
    let place = place.ok_or_else(|| Error::internal("a rank is not where it is"))?;
    let names = here.iter().map(|rank| *rank as u32).collect();
    let engine = ShmEngine::attach(Arc::new(segment), place as u32, here.len() as u32)?;
    let mut engine = engine.with_names(names);
    if let Some((pool, fd)) = pool {
        let always = load::process_driver()?.is_none();
        engine = engine.with_pool(Arc::new(pool), fd, always);
    }
    Ok(match config::get().staging_threads {
        Some(threads) => engine.with_threads(threads),
        None => engine,
    })
}

/// How long the ranks may need to reach each other once each has said where it is.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Why a library was not looked for.
const UNASKED: &str = "it is not asked for";

/// What came of an attempt that is voted on: a declined tier has its reason.
type Outcome<T> = Result<std::result::Result<T, String>>;

fn over_messages(
    comm: &Comm,
    channel: &mut Channel,
    infos: &[RankInfo],
    wish: Wish,
    patience: &Patience,
    code: &mut Code,
) -> Outcome<NetEngine> {
    let ucx = match wish {
        Wish::Mpi | Wish::Ucc => Err(Error::not_supported(UNASKED)),
        Wish::Any | Wish::Ucx => load::process_ucx(),
    };
    let mpi = match wish {
        Wish::Ucx | Wish::Ucc => Err(Error::not_supported(UNASKED)),
        Wish::Mpi => load::process_mpi(),
        Wish::Any => load::initialised_process_mpi().unwrap_or_else(|| {
            Err(Error::not_supported(
                "MPI is not initialised in this process",
            ))
        }),
    };
    let ucc = match wish {
        Wish::Ucc => load::process_ucc(),
        Wish::Any | Wish::Ucx | Wish::Mpi => Err(Error::not_supported(UNASKED)),
    };
    let offer = Offer {
        ucc: match &ucc {
            Ok(api) => Library {
                reason: String::new(),
                version: api.version.clone(),
                path: api.path.display().to_string(),
            },
            Err(error) => Library::lacking(error.text()),
        },
        ucx: match &ucx {
            Ok(api) => Library {
                reason: String::new(),
                version: api.version.clone(),
                path: api.path.display().to_string(),
            },
            Err(error) => Library::lacking(error.text()),
        },
        mpi: match &mpi {
            Ok(api) => Library {
                reason: mpi::unusable(api).unwrap_or_default(),
                version: api.version.clone(),
                path: api.path.display().to_string(),
            },
            Err(error) => Library::lacking(error.text()),
        },
    };
    let offers = channel.allgather(
        "the choice of the host tier's engine",
        &offer.encode(),
        patience,
    )?;
    let offers: Option<Vec<Offer>> = offers.all().map(Offer::decode).collect();
    let offers = offers.ok_or_else(|| Error::internal("a rank's engine can't be read"))?;
    let chosen = match choice::verdict(infos, wish, &offers) {
        Ok(chosen) => chosen,
        Err(reason) => return Ok(Err(reason)),
    };
    let made = match chosen {
        Chosen::Ucx => ucx_workers(comm, channel, infos, ucx, patience, code),
        Chosen::Mpi => mpi_communicator(channel, infos, mpi, patience, code),
        Chosen::Ucc => ucc_team(comm, channel, infos, ucc, patience, code),
    };
    let made = match made? {
        Ok(made) => made,
        Err(reason) => return Ok(Err(reason)),
    };
    let (rank, ranks) = (comm.rank() as usize, comm.nranks() as usize);
    let connected = made.and_then(|transport| {
        let stage = Stage::new(config::get().staging_memory / ranks_beside(infos, rank));
        let spins = enough_cores(infos, rank);
        let engine = NetEngine::with_stage(transport, rank, ranks, spins, stage)?;
        engine.prove(&Connecting {
            until: connect_limit(patience),
            patience,
            channel: RefCell::new(channel),
            chosen,
        })?;
        Ok(engine)
    });
    // An abort ends the vote itself, on all ranks alike.
    let votes = channel.allgather(
        "the connections of the host tier's engine",
        &init_vote(&connected.as_ref().map(drop).map_err(Error::clone)),
        patience,
    )?;
    if let Some(reasons) = refusals(infos, &votes, code) {
        return Ok(Err(reasons));
    }
    Ok(Ok(connected?))
}

/// Until when the ranks must have reached each other, so that the others can still hear that they haven't.
fn connect_limit(patience: &Patience) -> Instant {
    let left = patience.left().map(|left| left / 2);
    Instant::now() + left.map_or(CONNECT_LIMIT, |left| left.min(CONNECT_LIMIT))
}

/// UCX's workers, which know each other's addresses.
fn ucx_workers(
    comm: &Comm,
    channel: &mut Channel,
    infos: &[RankInfo],
    api: Result<&'static ucx::Api>,
    patience: &Patience,
    code: &mut Code,
) -> Outcome<Result<Box<dyn Transport>>> {
    let worker = api.and_then(|api| Ucx::new(api, comm.nranks() as usize));
    let mut writer = Writer::default();
    match &worker {
        Ok((_, address)) => writer.u32(0).bytes(address),
        Err(error) => writer
            .u32(error.code() as u32)
            .bytes(error.text().as_bytes()),
    };
    let addresses = channel.allgather(
        "the addresses of the host tier's engine",
        &writer.0,
        patience,
    )?;
    if let Some(reasons) = refusals(infos, &addresses, code) {
        return Ok(Err(reasons));
    }
    Ok(Ok((|| {
        let read = |body| {
            let mut reader = Reader(body);
            reader.u32()?;
            reader.bytes()
        };
        let all: Option<Vec<&[u8]>> = addresses.all().map(read).collect();
        let all = all.ok_or_else(|| Error::internal("a rank's address can't be read"))?;
        let (mut ucx, _) = worker?;
        ucx.connect(comm.rank() as usize, &all)?;
        Ok(Box::new(ucx) as Box<dyn Transport>)
    })()))
}

/// The ranks' ends of UCC. Whatever UCC wants to exchange goes from round to round over the control channel, and in the
/// last one all say that they are done.
fn ucc_team(
    comm: &Comm,
    channel: &mut Channel,
    infos: &[RankInfo],
    api: Result<&'static ucc::Api>,
    patience: &Patience,
    code: &mut Code,
) -> Outcome<Result<Box<dyn Transport>>> {
    let until = connect_limit(patience);
    let (rank, ranks) = (comm.rank() as usize, comm.nranks() as usize);
    let mut meeting = api.and_then(|api| Meeting::begin(api, rank, ranks));
    loop {
        let mut step = || {
            let moved = match &mut meeting {
                Ok(meeting) => meeting.advance(),
                Err(error) => Err(error.clone()),
            };
            let late = Instant::now() >= until;
            let said = match moved {
                Ok(Step::Wait) if late => Err(Error::new(
                    Code::SystemError,
                    "UCC did not make the team of the ranks in time",
                )),
                Ok(Step::Wait) => return None,
                Ok(Step::Say(said)) => Ok(Some(said)),
                Ok(Step::Made) => Ok(None),
                Err(error) => Err(error),
            };
            let mut vote = init_vote(&said.as_ref().map(drop).map_err(Error::clone));
            if let Ok(said) = &said {
                vote.push(u8::from(said.is_some()));
                vote.extend(said.iter().flatten());
            }
            Some(vote)
        };
        let what = "the making of UCC's team";
        let votes = channel.allgather_when(what, &mut step, &|v| vote_code(v) != 0, patience)?;
        if let Some(reasons) = refusals(infos, &votes, code) {
            return Ok(Err(reasons));
        }
        let unread = || Error::internal("a rank's end of UCC can't be read");
        let said: Option<Vec<(&u8, &[u8])>> = votes
            .all()
            .map(|vote| vote.get(4..)?.split_first())
            .collect();
        let said = said.ok_or_else(unread)?;
        let mut made = meeting?;
        match said.iter().filter(|(more, _)| **more != 0).count() {
            0 => {
                let transport = made.finish();
                return Ok(Ok(transport.map(|ucc| Box::new(ucc) as Box<dyn Transport>)));
            }
            all if all == ranks => made.heard(said.into_iter().map(|(_, said)| said))?,
            _ => return Err(unread()),
        }
        meeting = Ok(made);
    }
}

/// A communicator of MPI's. What takes all processes is done by a thread that is waited for, but not longer
/// than it is good for.
fn mpi_communicator(
    channel: &mut Channel,
    infos: &[RankInfo],
    api: Result<&'static mpi::Api>,
    patience: &Patience,
    code: &mut Code,
) -> Outcome<Result<Box<dyn Transport>>> {
    let api = api?;
    let up = patience.left().map(|left| left / 2);
    let begun = Waiting::on(
        "MPI_Init_thread, which takes all processes of the MPI job,",
        up.map(|left| Instant::now() + left),
        move || {
            let up = Use::begin(api)?;
            Ok((Place::of_process(api, &up)?, up))
        },
    );
    let (begun, said) = voted("the init of MPI", begun, channel, patience, |(place, _)| {
        place.encode()
    })?;
    if let Some(reasons) = refusals(infos, &said, code) {
        return Ok(Err(reasons));
    }
    let places: Option<Vec<Place>> = said
        .all()
        .map(|vote| Place::decode(vote.get(4..)?))
        .collect();
    let places = places.ok_or_else(|| Error::internal("a rank's place in MPI can't be read"))?;
    let (ranks, tag, largest_tag) = match choice::in_the_world(infos, &places) {
        Ok(world) => world,
        Err(reason) => return Ok(Err(reason)),
    };
    let (_, up) = begun?;
    let made = Waiting::on(
        "MPI_Comm_create_group, for which the ranks may be of several MPI jobs,",
        Some(connect_limit(patience)),
        move || mpi::connect(api, up, &ranks, tag, largest_tag),
    );
    let what = "the making of MPI's communicator";
    let (made, votes) = voted(what, made, channel, patience, |_| Vec::new())?;
    Ok(match refusals(infos, &votes, code) {
        Some(reasons) => Err(reasons),
        None => Ok(made),
    })
}

/// Waits for the work of a thread and exchanges what it has come to: a code of 0 and what `say` makes of the
/// result, or an error's code and words. The others are not waited for once a rank has failed.
fn voted<T: Send + 'static>(
    phase: &str,
    begun: Result<Waiting<T>>,
    channel: &mut Channel,
    patience: &Patience,
    say: impl Fn(&T) -> Vec<u8>,
) -> Result<(Result<T>, Gathered)> {
    let mut own = begun.as_ref().err().map(|error| Err(error.clone()));
    let mut said = false;
    let mut ready = || {
        if own.is_none() {
            own = begun.as_ref().ok().and_then(Waiting::poll);
        }
        let result = own.as_ref().filter(|_| !said)?;
        said = true;
        let mut vote = init_vote(&result.as_ref().map(drop).map_err(Error::clone));
        if let Ok(value) = result {
            vote.extend(say(value));
        }
        Some(vote)
    };
    let votes = channel.allgather_when(phase, &mut ready, &|v| vote_code(v) != 0, patience)?;
    let missing = || {
        Err(Error::internal(
            "a rank's own work is not done after a vote",
        ))
    };
    Ok((own.unwrap_or_else(missing), votes))
}

/// Work of a thread that may take for ever. A result that nobody waits for any more is dropped there.
struct Waiting<T> {
    result: Receiver<Result<T>>,
    what: &'static str,
    until: Option<Instant>,
}

impl<T: Send + 'static> Waiting<T> {
    fn on(
        what: &'static str,
        until: Option<Instant>,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<Waiting<T>> {
        let (sender, result) = queue();
        std::thread::Builder::new()
            .name("flagos-mpi-init".into())
            .spawn(move || drop(sender.send(work())))
            .map_err(|e| Error::system("no thread for the init of MPI", e))?;
        Ok(Waiting {
            result,
            what,
            until,
        })
    }

    /// The result, once it is there or has become too late.
    fn poll(&self) -> Option<Result<T>> {
        match self.result.try_take() {
            Ok(result) => Some(result),
            Err(Nothing::Gone) => Some(Err(Error::internal("a thread of MPI's init panicked"))),
            Err(Nothing::Late) if self.until.is_some_and(|until| Instant::now() >= until) => {
                Some(Err(Error::new(
                    Code::SystemError,
                    format!("{} did not return in time", self.what),
                )))
            }
            Err(Nothing::Late) => None,
        }
    }
}

/// The reasons of the ranks that vote against, and the code of the first.
fn refusals(infos: &[RankInfo], votes: &Gathered, code: &mut Code) -> Option<String> {
    let failed = votes.iter().flatten().map(vote_code).find(|c| *c != 0);
    if let Some(first) = failed {
        *code = remote_code(first);
    }
    agree::reasons(infos, vote_texts(votes).iter().map(String::as_str))
}

/// How many ranks this rank's machine has.
fn ranks_beside(infos: &[RankInfo], rank: usize) -> usize {
    let here = infos.iter().filter(|i| i.machine == infos[rank].machine);
    here.count()
}

/// Whether every rank of this rank's machine can have a core of its own.
fn enough_cores(infos: &[RankInfo], rank: usize) -> bool {
    let cpus = cpu::allowed();
    let needed = ranks_beside(infos, rank);
    cpu::count(&cpus) >= needed && cpu::quota(&cpus).is_none_or(|quota| quota >= needed)
}

/// What the first exchange over a new engine asks while it waits.
struct Connecting<'a> {
    until: Instant,
    patience: &'a Patience,
    channel: RefCell<&'a mut Channel>,
    chosen: Chosen,
}

impl WaitPolicy for Connecting<'_> {
    fn check(&self, waiting_for: &dyn Fn() -> Vec<u32>) -> Result<()> {
        self.patience.slice().map_err(|end| match end {
            Impatience::Aborted => Error::new(Code::Aborted, "aborted while the ranks connected"),
            Impatience::Expired => Error::new(Code::Timeout, "the ranks did not connect in time"),
        })?;
        let mut channel = self.channel.borrow_mut();
        channel.look()?;
        channel.first_dead()?;
        if Instant::now() < self.until {
            return Ok(());
        }
        Err(Error::new(
            Code::Timeout,
            format!(
                "{} can't be reached with {}, although the control channel is there: {}",
                ranks_named(waiting_for()),
                self.chosen.name(),
                self.chosen.network_hint()
            ),
        ))
    }
}

/// How long the first rank may need to be heard at all, and to pass a descriptor on.
const HAND_OVER_LIMIT: Duration = Duration::from_secs(5);

/// Repeats a wait for another rank until it is over, in steps, so that an abort ends it.
fn in_steps<T>(patience: &Patience, mut wait: impl FnMut(Instant) -> Result<T>) -> Result<T> {
    loop {
        let slice = patience.slice().map_err(|end| match end {
            Impatience::Aborted => Error::new(Code::Aborted, "aborted in the sharing of memory"),
            Impatience::Expired => Error::new(
                Code::Timeout,
                "the first rank of the machine did not hand over the shared memory in time",
            ),
        })?;
        match wait(Instant::now() + slice) {
            Err(error) if error.code() == Code::Timeout => {}
            other => return other,
        }
    }
}

fn fetch(
    leader: usize,
    name: &[u8],
    secret: &Secret,
    bytes: usize,
    pool_len: usize,
    patience: &Patience,
) -> Result<(Segment, Option<Shared>)> {
    let hint = format!(
        "shared memory can't be had from rank {leader}: the ranks may be in different network \
         namespaces (containers)"
    );
    let give_up = Instant::now() + HAND_OVER_LIMIT;
    let stream = in_steps(patience, |until| {
        unix::connect(name, until).map_err(|error| match Instant::now() < give_up {
            true => error,
            false => Error::new(Code::SystemError, error.text()),
        })
    });
    let stream = stream.map_err(|e| e.context(hint))?;
    unix::write_all(&stream, secret, Instant::now() + HAND_OVER_LIMIT)?;
    let fd = in_steps(patience, |until| unix::recv_fd(stream.as_fd(), until))?;
    let segment = Segment::open(fd.as_fd(), bytes)?;
    if pool_len == 0 {
        return Ok((segment, None));
    }
    let fd = in_steps(patience, |until| unix::recv_fd(stream.as_fd(), until))?;
    let pool = Segment::open(fd.as_fd(), pool_len)?;
    Ok((segment, Some((pool, fd))))
}
