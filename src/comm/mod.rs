//! A communicator's life: the table of handles, agreement, init, groups, split, finalize, abort,
//! destroy.

pub(crate) mod agree;
pub(crate) mod below;
pub(crate) mod call;
pub(crate) mod end;
pub(crate) mod group;
pub(crate) mod init;
pub(crate) mod local;
pub(crate) mod memory;
pub mod options;
pub(crate) mod rare;
pub(crate) mod split;
pub(crate) mod table;
pub(crate) mod vote;
pub(crate) mod watch;

use crate::config::Tier;
use crate::control::channel::Channel;
use crate::control::patience::AbortFlag;
use crate::device::DeviceWord;
use crate::error::{Code, Error, Result};
use crate::host::engine::Engine;
use crate::ops::lock;
use crate::vendor::comm::VendorComm;
use agree::RankInfo;
use options::Options;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Everything about one rank of one communicator but what its operations need.
pub(crate) struct Comm {
    ranks: Ranks,
    /// The caller's name for it; empty if it has none.
    pub name: String,
    /// The name that it has otherwise, once its init is over: the same on all ranks.
    pub default_name: OnceLock<String>,
    pub options: Options,
    /// The device it is bound to, -1 for none.
    pub device: i32,
    pub abort: AbortFlag,
    /// What it became, once its init is over.
    pub made: Mutex<Made>,
}

/// Its rank and their number. Those of a split's child are known only during its init.
struct Ranks {
    rank: AtomicU32,
    nranks: AtomicU32,
}

impl Ranks {
    fn new(rank: u32, nranks: u32) -> Ranks {
        Ranks {
            rank: AtomicU32::new(rank),
            nranks: AtomicU32::new(nranks),
        }
    }
}

/// How far a communicator has come.
pub(crate) enum Made {
    /// Init goes on.
    Pending,
    /// Init has failed for good.
    Failed(Error),
    /// It was aborted during its init, which has failed since and given its place back.
    Gone,
    /// It works, or worked until something happened to it.
    Ready(Arc<Parts>),
}

/// What init has made.
pub(crate) struct Parts {
    pub tier: Tier,
    pub channel: Arc<Mutex<Channel>>,
    pub backend: Backend,
    pub infos: Arc<[RankInfo]>,
    /// The first failure that ended it.
    pub failed: FirstFailure,
    /// It was finalized.
    pub finalized: AtomicBool,
    /// Splits and other collective calls on the control channel come one at a time.
    pub collective: Mutex<()>,
    /// What was said last of an agreement of the ranks.
    pub agreed: Mutex<String>,
    /// Calls that do not block and go on in the background.
    pub under_way: AtomicU32,
    /// Identity of the communicator, the same on all ranks.
    pub secret: crate::bootstrap::unique_id::Secret,
}

/// The first failure that ended a communicator, shared with what runs on streams.
pub(crate) type FirstFailure = Arc<Mutex<Option<Error>>>;

/// What its operations run on.
pub(crate) enum Backend {
    Native(Arc<Native>),
    Host(Arc<dyn Engine>),
}

/// A vendor's communicator and what belongs to it.
pub(crate) struct Native {
    pub comm: VendorComm,
    /// One word of device memory, for barriers. It goes with the communicator.
    pub word: DeviceWord,
    /// How far its end has come.
    pub end: End,
}

/// The end of a vendor's communicator, which comes once, whoever wants it.
#[derive(Default)]
pub(crate) struct End {
    begun: AtomicBool,
    over: AtomicBool,
}

impl End {
    /// `true`: it is for the caller to end it. `false`: somebody does, or has.
    pub(crate) fn begin(&self) -> bool {
        !self.begun.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn set_over(&self) {
        self.over.store(true, Ordering::Release);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

impl std::ops::Deref for Native {
    type Target = VendorComm;
    fn deref(&self) -> &VendorComm {
        &self.comm
    }
}

impl Comm {
    pub(crate) fn rank(&self) -> u32 {
        self.ranks.rank.load(Ordering::Relaxed)
    }

    pub(crate) fn nranks(&self) -> u32 {
        self.ranks.nranks.load(Ordering::Relaxed)
    }

    /// A split has told which rank of how many it is.
    pub(crate) fn become_rank(&self, rank: u32, nranks: u32) {
        self.ranks.rank.store(rank, Ordering::Relaxed);
        self.ranks.nranks.store(nranks, Ordering::Relaxed);
    }

    /// The caller's name for it, else the one that it has by itself; empty until its init is over.
    pub(crate) fn shown_name(&self) -> &str {
        if self.name.is_empty() {
            self.default_name.get().map_or("", String::as_str)
        } else {
            &self.name
        }
    }

    /// "communicator 'name', rank 1 of 4".
    pub(crate) fn label(&self) -> String {
        let name = self.shown_name();
        let quoted = if name.is_empty() {
            String::new()
        } else {
            format!(" '{name}'")
        };
        format!(
            "communicator{quoted}, rank {} of {}",
            self.rank(),
            self.nranks()
        )
    }

    /// What init has made, if the communicator can still be used for something new.
    pub(crate) fn working(&self) -> Result<Arc<Parts>> {
        let parts = self.parts()?;
        if parts.finalized.load(Ordering::Acquire) {
            return Err(Error::invalid_usage(format!(
                "{} was finalized: it can only be destroyed",
                self.label()
            )));
        }
        Ok(parts)
    }

    /// What init has made, or why there is nothing.
    pub(crate) fn parts(&self) -> Result<Arc<Parts>> {
        match &*lock(&self.made) {
            Made::Ready(parts) => Ok(Arc::clone(parts)),
            Made::Failed(error) => Err(error.clone()),
            Made::Gone => Err(Error::new(Code::Aborted, "aborted during its init")),
            Made::Pending => Err(Error::invalid_usage(format!(
                "{} is still being initialised: wait until flagosCommGetAsyncError no longer says \
                 InProgress, or until the outermost flagosGroupEnd has returned",
                self.label()
            ))),
        }
    }
}

/// A call on a communicator that goes on in the background, until this is dropped.
pub(crate) struct UnderWay(Arc<Parts>);

impl UnderWay {
    pub(crate) fn begin(parts: &Arc<Parts>) -> UnderWay {
        parts.under_way.fetch_add(1, Ordering::AcqRel);
        UnderWay(Arc::clone(parts))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Parts {
    /// Whether a call that does not block goes on in the background.
    pub(crate) fn is_busy(&self) -> bool {
        self.under_way.load(Ordering::Acquire) != 0
    }

    /// Whether some process owns several of the ranks. All ranks give the same answer.
    pub(crate) fn shares_a_process(&self) -> bool {
        let mut seen = HashSet::new();
        !self.infos.iter().all(|info| seen.insert(info.process()))
    }

    /// The vendor's communicator, on the native tier.
    pub(crate) fn native(&self) -> Option<&Arc<Native>> {
        match &self.backend {
            Backend::Native(comm) => Some(comm),
            Backend::Host(_) => None,
        }
    }

    /// A number for people, the same on all ranks. It must not show the secret.
    pub(crate) fn tag(&self) -> u32 {
        // FNV-1a
        self.secret.iter().fold(0x811c_9dc5, |hash: u32, byte| {
            (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
        })
    }

    /// Records the first failure.
    pub(crate) fn record_failure(&self, error: &Error) {
        lock(&self.failed).get_or_insert_with(|| error.clone());
    }
}

/// The error of a call that the tier can't do.
pub(crate) fn not_on(tier: Tier, what: &str) -> Error {
    Error::new(
        Code::NotSupported,
        format!("{what} is not there on the {} tier", tier.name()),
    )
}
