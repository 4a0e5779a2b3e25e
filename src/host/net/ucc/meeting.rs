//! How the ranks' ends of UCC meet: UCC gathers a few times what all say of themselves, which here goes over the
//! control channel.

use super::abi::{Api, ERR_NO_MESSAGE, IN_PROGRESS, OK, OobColl};
use super::{END, Ended, Handles, LONG_END, Ucc, starts};
use crate::error::{Error, Result};
use crate::ops::lock;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;

/// One gathering of what all ranks say.
#[derive(Default)]
enum Gathering {
    #[default]
    None,
    /// UCC has said this, and wants what all say at the address.
    Begun {
        said: Vec<u8>,
        to: usize,
    },
    /// As before, and the others hear it.
    Said {
        bytes: usize,
        to: usize,
    },
    Done,
    /// There will be none any more.
    Over,
}

/// What UCC's callbacks are given.
#[derive(Default)]
struct Exchange(Mutex<Gathering>);

/// What comes next.
pub(crate) enum Step {
    /// Nothing yet.
    Wait,
    /// The others have to hear this, and [`Meeting::heard`] what all said.
    Say(Vec<u8>),
    /// The team is made.
    Made,
}

/// A team in the making.
pub(crate) struct Meeting {
    handles: Option<Handles>,
    exchange: Box<Exchange>,
    rank: usize,
    ranks: usize,
}

/// Takes what UCC says to all.
unsafe extern "C" fn gather(
    from: *mut c_void,
    to: *mut c_void,
    bytes: usize,
    info: *mut c_void,
    request: *mut *mut c_void,
) -> c_int {
    // SAFETY: the argument that `begin` gave: the exchange of a meeting, which outlives its callbacks.
    let exchange = unsafe { &*info.cast::<Exchange>() };
    let mut gathering = lock(&exchange.0);
    if !matches!(*gathering, Gathering::None) {
        return ERR_NO_MESSAGE;
    }
    // SAFETY: UCC gives so many bytes to be read during the call, and a place for the request.
    let said = unsafe {
        request.write(info);
        std::slice::from_raw_parts(from.cast::<u8>(), bytes)
    };
    *gathering = Gathering::Begun {
        said: said.to_vec(),
        to: to.expose_provenance(),
    };
    OK
}

unsafe extern "C" fn is_gathered(request: *mut c_void) -> c_int {
    // SAFETY: the request that `gather` gave.
    let exchange = unsafe { &*request.cast::<Exchange>() };
    match *lock(&exchange.0) {
        Gathering::Done => OK,
        Gathering::Over => ERR_NO_MESSAGE,
        _ => IN_PROGRESS,
    }
}

unsafe extern "C" fn forget(request: *mut c_void) -> c_int {
    // SAFETY: as above.
    let exchange = unsafe { &*request.cast::<Exchange>() };
    let mut gathering = lock(&exchange.0);
    if !matches!(*gathering, Gathering::Over) {
        *gathering = Gathering::None;
    }
    OK
}

impl Meeting {
    pub(crate) fn begin(api: &'static Api, rank: usize, ranks: usize) -> Result<Meeting> {
        let mut meeting = Meeting {
            handles: None,
            exchange: Box::default(),
            rank,
            ranks,
        };
        let oob = OobColl {
            allgather: gather,
            req_test: is_gathered,
            req_free: forget,
            coll_info: std::ptr::from_ref(&*meeting.exchange).cast_mut().cast(),
            n_oob_eps: ranks as u32,
            oob_ep: rank as u32,
        };
        let one_at_a_time = lock(starts());
        let lib = api.start()?;
        let mut handles = Handles {
            api,
            lib,
            context: null_mut(),
            team: null_mut(),
            in_the_making: true,
        };
        // SAFETY: the library was just started.
        let context = unsafe { api.context(lib) };
        drop(one_at_a_time);
        // From here on the end of the meeting is theirs, too.
        handles.context = *context.as_ref().unwrap_or(&null_mut());
        let handles = meeting.handles.insert(handles);
        let context = context?;
        // SAFETY: the context was just made; the exchange stays as long as the meeting, or for ever.
        handles.team = unsafe { api.team(context, oob)? };
        Ok(meeting)
    }

    /// Moves on.
    pub(crate) fn advance(&mut self) -> Result<Step> {
        let Some(Handles {
            api, context, team, ..
        }) = self.handles
        else {
            return Err(Error::internal("a team was made already"));
        };
        // SAFETY: the team is in the making, and its context there.
        let status = unsafe {
            (api.context_progress)(context);
            (api.team_create_test)(team)
        };
        if status < OK {
            return Err(api.failed("ucc_team_create_test", status));
        }
        if status == OK {
            return Ok(Step::Made);
        }
        let mut gathering = lock(&self.exchange.0);
        match std::mem::take(&mut *gathering) {
            Gathering::Begun { said, to } => {
                let bytes = said.len();
                *gathering = Gathering::Said { bytes, to };
                Ok(Step::Say(said))
            }
            other => {
                *gathering = other;
                Ok(Step::Wait)
            }
        }
    }

    /// What all ranks have said, in their order.
    pub(crate) fn heard<'b>(&mut self, all: impl Iterator<Item = &'b [u8]>) -> Result<()> {
        let all: Vec<&[u8]> = all.collect();
        let mut gathering = lock(&self.exchange.0);
        let Gathering::Said { bytes, to } = *gathering else {
            return Err(Error::internal("UCC has asked the ranks nothing"));
        };
        if all.len() != self.ranks || all.iter().any(|said| said.len() != bytes) {
            return Err(Error::internal(
                "the ranks' ends of UCC don't say the same things",
            ));
        }
        let all = all.concat();
        let to = std::ptr::with_exposed_provenance_mut::<u8>(to);
        // SAFETY: UCC gave a place for as many bytes of every rank.
        unsafe { std::ptr::copy_nonoverlapping(all.as_ptr(), to, all.len()) };
        *gathering = Gathering::Done;
        Ok(())
    }

    /// This rank's end of the team that is made.
    pub(crate) fn finish(mut self) -> Result<Ucc> {
        let handles = self.handles.take();
        let handles = handles.ok_or_else(|| Error::internal("a team was made already"))?;
        let handles = Handles {
            in_the_making: false,
            ..handles
        };
        // UCC keeps the callbacks, and has nothing more to ask.
        *lock(&self.exchange.0) = Gathering::Over;
        Box::leak(std::mem::take(&mut self.exchange));
        Ok(Ucc::new(handles, self.rank))
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        let Some(handles) = self.handles.take() else {
            return;
        };
        *lock(&self.exchange.0) = Gathering::Over;
        if handles.end_within(END, LONG_END) != Ended::Wholly {
            // UCC may still ask.
            Box::leak(std::mem::take(&mut self.exchange));
        }
    }
}
