//! A communicator's life: the table of handles, agreement, init, groups, split, finalize, abort,
//! destroy.

pub(crate) mod agree;
pub(crate) mod call;
pub(crate) mod end;
pub(crate) mod group;
pub(crate) mod init;
pub(crate) mod memory;
pub mod options;
pub(crate) mod rare;
pub(crate) mod split;
pub(crate) mod table;

use crate::control::channel::Channel;
use crate::control::patience::AbortFlag;
use crate::error::{Code, Error, Result};
use crate::host::shm::ShmEngine;
use crate::ops::lock;
use crate::vendor::nccl::VendorComm;
use agree::{RankInfo, Tier};
use options::Options;
use std::sync::{Arc, Mutex};

/// Everything about one rank of one communicator but what its operations need.
pub(crate) struct Comm {
    pub rank: u32,
    pub nranks: u32,
    pub name: String,
    pub options: Options,
    /// The device it is bound to, -1 for none.
    pub device: i32,
    pub abort: AbortFlag,
    /// The fork generation it was made in.
    pub fork_generation: u32,
    /// What it became, once its init is over.
    pub made: Mutex<Made>,
}

/// How far a communicator has come.
pub(crate) enum Made {
    /// Init goes on.
    Pending,
    /// Init has failed for good.
    Failed(Error),
    /// It works, or worked until something happened to it.
    Ready(Arc<Parts>),
}

/// What init has made.
pub(crate) struct Parts {
    pub tier: Tier,
    pub channel: Arc<Mutex<Channel>>,
    pub backend: Backend,
    pub infos: Vec<RankInfo>,
    /// The first failure that ended it.
    pub failed: Mutex<Option<Error>>,
    /// Splits and other collective calls on the control channel come one at a time.
    pub collective: Mutex<()>,
    /// Identity of the communicator, the same on all ranks.
    pub secret: crate::bootstrap::unique_id::Secret,
}

/// What its operations run on.
pub(crate) enum Backend {
    Native(VendorComm),
    Host(Arc<ShmEngine>),
}

impl Comm {
    /// "communicator 'name', rank 1 of 4".
    pub(crate) fn label(&self) -> String {
        let name = if self.name.is_empty() { String::new() } else { format!(" '{}'", self.name) };
        format!("communicator{name}, rank {} of {}", self.rank, self.nranks)
    }

    /// A communicator of before a fork is not the child's.
    pub(crate) fn check_fork(&self) -> Result<()> {
        if self.fork_generation == crate::sys::fork::generation() {
            return Ok(());
        }
        Err(Error::invalid_usage(format!(
            "{} was made before this process was forked: it belongs to the parent. Make \
             communicators after the fork",
            self.label()
        )))
    }

    /// What init has made, or why there is nothing.
    pub(crate) fn parts(&self) -> Result<Arc<Parts>> {
        match &*lock(&self.made) {
            Made::Ready(parts) => Ok(Arc::clone(parts)),
            Made::Failed(error) => Err(error.clone()),
            Made::Pending => Err(Error::invalid_usage(format!(
                "{} is still being initialised: wait until flagosCommGetAsyncError no longer says \
                 InProgress, or until the outermost flagosGroupEnd has returned",
                self.label()
            ))),
        }
    }
}

impl Parts {
    /// The vendor's communicator, on the native tier.
    pub(crate) fn native(&self) -> Option<&VendorComm> {
        match &self.backend {
            Backend::Native(comm) => Some(comm),
            Backend::Host(_) => None,
        }
    }

    /// Records the first failure.
    pub(crate) fn record_failure(&self, error: &Error) {
        lock(&self.failed).get_or_insert_with(|| error.clone());
    }
}

/// The error of a call that the tier can't do.
pub(crate) fn not_on(tier: Tier, what: &str) -> Error {
    Error::new(Code::NotSupported, format!("{what} is not there on the {} tier", tier.name()))
}
