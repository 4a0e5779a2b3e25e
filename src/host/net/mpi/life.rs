//! MPI in this process: whether it is up, who has brought it up, and how it ends.
//!
//! A program that has initialised MPI finalises it, too. If it hasn't and the process was started by an MPI
//! launcher, MPI is initialised here when a communicator needs it, and finalised with the last that uses it,
//! since launchers take a process that ends without that for one that has crashed. Nobody can initialise it
//! again then. One thread does both, as MPI asks for.

use super::abi::{Api, Handle, Handles, Table};
use crate::config;
use crate::error::{Code, Error, Result};
use crate::sys::per_process::PerProcess;
use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, TryLockError};
use std::time::{Duration, Instant};

/// Variables that launchers set: Open MPI's, others over PMIx, and those over PMI.
const LAUNCHERS: [&str; 3] = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"];

/// How long a finalize of the program's waits for calls of ours that are inside MPI.
const LEAVE: Duration = Duration::from_secs(1);

/// The variable that shows that the process was started by an MPI launcher.
pub(crate) fn launcher() -> Option<&'static str> {
    let set = |name: &&str| config::foreign(name).is_some();
    LAUNCHERS.into_iter().find(set)
}

/// Whether the launcher speaks PMI and not PMIx, which Open MPI needs.
pub(crate) fn launcher_is_not_open_mpis() -> bool {
    launcher() == Some(LAUNCHERS[2])
}

/// How far MPI's life in this process has come, as far as it is our doing.
enum State {
    /// Nothing was done here: the program may have initialised it.
    Untouched,
    /// A thread of ours is inside its init.
    Starts,
    /// Initialised here.
    Up,
    /// The thread is to finalise it, or does.
    Ends,
    /// It can't be used any more, for this reason.
    Over(String),
}

struct Life {
    state: State,
    /// Communicators that use it.
    users: usize,
    /// One of them has failed, and may have left messages behind.
    failed: bool,
    /// It tells us when it ends.
    hooked: bool,
}

struct Shared {
    life: Mutex<Life>,
    changed: Condvar,
    /// The program has begun to finalise it.
    closed: AtomicBool,
    /// Held for reading by those who are inside.
    inside: RwLock<()>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: State) {
        self.lock().state = state;
        self.changed.notify_all();
    }
}

static LIFE: PerProcess<Shared> = PerProcess::new();

fn shared() -> &'static Shared {
    LIFE.get_or_init(|| Shared {
        life: Mutex::new(Life {
            state: State::Untouched,
            users: 0,
            failed: false,
            hooked: false,
        }),
        changed: Condvar::new(),
        closed: AtomicBool::new(false),
        inside: RwLock::new(()),
    })
}

/// Why no communicator can begin to use MPI any more.
const OVER: &str = "MPI was finalised in this process, and can't be used after that";
/// What a call says once MPI is finalised.
pub(super) const FINALISED: &str =
    "the program has finalised MPI, over which this communicator still ran";

/// Why MPI can't be used by a communicator of this process, without any call that waits for others.
pub(crate) fn unusable(api: &Api) -> Option<String> {
    if let State::Over(why) = &shared().lock().state {
        return Some(why.clone());
    }
    if api.is_up() {
        return api.too_few_threads();
    }
    unusable_untouched(api)
}

/// As [`unusable`], where MPI is not up and was not brought up here.
fn unusable_untouched(api: &Api) -> Option<String> {
    if api.is_over() {
        return Some(String::from(OVER));
    }
    launcher().is_none().then(|| {
        format!(
            "MPI is not initialised in this process, and no MPI launcher has started it (none of {} is set): \
             processes that were started one by one can't be joined to one MPI job. Start them with mpirun, \
             mpiexec or srun",
            LAUNCHERS.join(", ")
        )
    })
}

impl Api {
    fn too_few_threads(&self) -> Option<String> {
        (!self.serves_threads()).then(|| {
            String::from(
                "MPI was initialised for fewer threads than MPI_THREAD_MULTIPLE, and the host tier calls it \
                 from the caller's threads and from one of its own: initialise it with MPI_Init_thread and \
                 MPI_THREAD_MULTIPLE",
            )
        })
    }
}

/// A communicator's leave to use MPI.
pub(crate) struct Use {
    shared: &'static Shared,
}

impl Use {
    /// Brings MPI up, if it isn't, which takes all processes of the job: for a thread that may wait.
    pub(crate) fn begin(api: &'static Api) -> Result<Use> {
        let shared = shared();
        let mut life = shared.lock();
        loop {
            match &life.state {
                State::Over(why) => return Err(Error::not_supported(why.clone())),
                State::Starts | State::Ends => {
                    let changed = shared.changed.wait(life);
                    life = changed.unwrap_or_else(PoisonError::into_inner);
                }
                State::Untouched if !api.is_up() => {
                    if let Some(why) = unusable_untouched(api) {
                        return Err(Error::not_supported(why));
                    }
                    std::thread::Builder::new()
                        .name("flagos-mpi".into())
                        .spawn(move || keep(api, shared))
                        .map_err(|e| Error::system("no thread for MPI", e))?;
                    life.state = State::Starts;
                }
                State::Untouched | State::Up => break,
            }
        }
        let hooked = std::mem::replace(&mut life.hooked, true);
        life.users += 1;
        drop(life);
        // From here on its end is the end of MPI, if that was initialised here.
        let up = Use { shared };
        if shared.closed.load(Ordering::Acquire) || !api.is_up() {
            return Err(Error::not_supported(OVER));
        }
        if let Some(why) = api.too_few_threads() {
            return Err(Error::not_supported(why));
        }
        if !hooked {
            hook(api)?;
        }
        Ok(up)
    }

    /// Leave to call MPI now; `None`: the program has finalised it.
    pub(super) fn enter(&self) -> Option<RwLockReadGuard<'static, ()>> {
        let inside = self.shared.inside.read();
        let inside = inside.unwrap_or_else(PoisonError::into_inner);
        (!self.shared.closed.load(Ordering::Acquire)).then_some(inside)
    }

    /// The communicator has not ended in order.
    pub(super) fn has_failed(&self) {
        self.shared.lock().failed = true;
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut life = self.shared.lock();
        life.users -= 1;
        if life.users > 0 || !matches!(life.state, State::Up) {
            return;
        }
        if life.failed {
            // Who has left messages behind may wait for ever in the finalize, or end the process.
            life.state = State::Over(String::from(
                "MPI was initialised by flagos-comm for communicators of which one has failed, and is not \
                 used again",
            ));
            log::warn!(
                "MPI stays as it is, not finalised, since a communicator over it has failed; its launcher \
                 may say so"
            );
            return;
        }
        life.state = State::Ends;
        self.shared.changed.notify_all();
        // The others' finalize may come much later.
        let limit = config::get().timeouts.destroy;
        let started = Instant::now();
        while matches!(life.state, State::Ends) {
            let changed = match limit.map(|limit| limit.saturating_sub(started.elapsed())) {
                None => self.shared.changed.wait(life),
                Some(left) if left.is_zero() => {
                    log::warn!(
                        "MPI's finalize waits for other processes of the job; it goes on behind the program, \
                         which had better not end before it (the limit: FLAGOSCOMM_DESTROY_TIMEOUT)"
                    );
                    return;
                }
                Some(left) => {
                    let changed = self.shared.changed.wait_timeout(life, left);
                    life = changed.unwrap_or_else(PoisonError::into_inner).0;
                    continue;
                }
            };
            life = changed.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The thread that initialises MPI and finalises it when nobody uses it any more.
fn keep(api: &'static Api, shared: &'static Shared) {
    let multiple = match &api.handles {
        Handles::Wide(table) => table.constants.thread_multiple,
        Handles::Narrow(table) => table.constants.thread_multiple,
    };
    let mut level = 0;
    // SAFETY: NULL stands for no arguments; MPI was not initialised, and nobody else does it here: the state
    // says so.
    let code = unsafe { (api.plain.init_thread)(null_mut(), null_mut(), multiple, &mut level) };
    if code != 0 {
        shared.set(State::Over(format!(
            "MPI_Init_thread of {} failed: {}",
            api.about(),
            api.words(code)
        )));
        return;
    }
    match &api.handles {
        Handles::Wide(table) => table.errors_return(table.constants.world),
        Handles::Narrow(table) => table.errors_return(table.constants.world),
    };
    log::info!("{} initialised", api.about());
    let mut life = shared.lock();
    life.state = State::Up;
    shared.changed.notify_all();
    while !matches!(life.state, State::Ends) {
        let changed = shared.changed.wait(life);
        life = changed.unwrap_or_else(PoisonError::into_inner);
        if let State::Over(_) = life.state {
            return;
        }
    }
    drop(life);
    // SAFETY: MPI is up, this thread has initialised it, and no communicator uses it any more.
    let code = unsafe { (api.plain.finalize)() };
    if code != 0 {
        log::warn!("MPI_Finalize of {} failed ({code})", api.about());
    }
    shared.set(State::Over(String::from(
        "flagos-comm has initialised MPI in this process, and finalised it when the last communicator over it \
         was destroyed: MPI can't be initialised again. Let the program initialise MPI itself \
         (MPI_Init_thread with MPI_THREAD_MULTIPLE), or keep a communicator until the end",
    )));
}

impl<H: Handle> Table<H> {
    /// Lets errors on a communicator be answers and not the end of the process.
    pub(super) fn errors_return(&self, comm: H) -> c_int {
        // SAFETY: MPI is up, and the communicator is one of its own or of ours.
        unsafe { (self.calls.comm_set_errhandler)(comm, self.constants.errors_return) }
    }

    /// Asks MPI to say when it is about to end: attributes of `MPI_COMM_SELF` are deleted first of all.
    fn hook(&self) -> c_int {
        let mut key = 0;
        // SAFETY: MPI is up; both functions have the C signature and stay for the life of the process.
        let code = unsafe {
            (self.calls.comm_create_keyval)(not_copied::<H>, on_finalize::<H>, &mut key, null_mut())
        };
        if code != 0 {
            return code;
        }
        // SAFETY: the key was just made; the attribute is no address, and nobody looks at it.
        unsafe { (self.calls.comm_set_attr)(self.constants.itself, key, without_provenance_mut(1)) }
    }
}

fn hook(api: &Api) -> Result<()> {
    let code = match &api.handles {
        Handles::Wide(table) => table.hook(),
        Handles::Narrow(table) => table.hook(),
    };
    match code {
        0 => Ok(()),
        code => Err(Error::new(
            Code::SystemError,
            format!(
                "{} does not take an attribute of MPI_COMM_SELF: {}",
                api.about(),
                api.words(code)
            ),
        )),
    }
}

/// Called by MPI when somebody duplicates `MPI_COMM_SELF`: the copy has no attribute of ours.
unsafe extern "C" fn not_copied<H: Handle>(
    _comm: H,
    _key: c_int,
    _extra: *mut c_void,
    _from: *mut c_void,
    _to: *mut c_void,
    copied: *mut c_int,
) -> c_int {
    // SAFETY: MPI gives a place for the answer.
    unsafe { copied.write(0) };
    0
}

/// Called by MPI at the begin of its finalize: nobody of ours is inside it when this returns, nor later.
unsafe extern "C" fn on_finalize<H: Handle>(
    _comm: H,
    _key: c_int,
    _value: *mut c_void,
    _extra: *mut c_void,
) -> c_int {
    if let Some(shared) = LIFE.get() {
        shared.closed.store(true, Ordering::Release);
        // Nobody stays inside for long, unless MPI itself makes them wait for its finalize.
        let until = Instant::now() + LEAVE;
        while matches!(shared.inside.try_write(), Err(TryLockError::WouldBlock))
            && Instant::now() < until
        {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    0
}
