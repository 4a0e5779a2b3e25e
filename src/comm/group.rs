//! Groups, per thread: calls inside are launched together at the outermost end.
//!
//! The vendor's own group is opened when the first call inside needs it. Operations of the host
//! tier, and of vendors that have no groups of everything, are queued; inits and splits are recorded. A call that is refused inside makes the end fail
//! and launch nothing.

use super::init::{self, Pending};
use super::rare;
use super::table::{Handle, Place};
use crate::error::{Code, Error, Result};
use crate::host::op::HostOp;
use crate::host::port::{self, Batch};
use crate::ops::{Call, Issued, Target, breaks, dispatch};
use crate::types::OpKind;
use crate::vendor::Library;
use crate::vendor::library::Progress;
use crate::vendor::port as native;
use std::cell::Cell;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};

/// Operations of a communicator for which a group has room at first: as many as the one before had, within these.
const ROOM: RangeInclusive<usize> = 16..=256;

/// What one thread's open group holds.
#[derive(Default)]
struct Group {
    depth: u32,
    error: Option<Error>,
    /// Vendors whose group is open, with a communicator of theirs for poisoning.
    opened: Vec<(&'static Library, &'static Target)>,
    /// The communicators in those groups.
    members: Vec<Member>,
    poisoned: bool,
    /// The host tier's operations, by communicator.
    queued: Vec<Launch>,
    /// Calls on vendors whose groups are kept here.
    kept: Vec<(Handle, &'static Target, Call)>,
    pending: Vec<Pending>,
    /// Calls on vendor communicators, for call checking at the end.
    checked: Vec<(Handle, Call)>,
    /// Counts and displacements of the calls in `kept` and `checked`: the caller's are there during its
    /// call only.
    arrays: Vec<[Box<[usize]>; 4]>,
}

/// A communicator that has calls in a vendor's open group.
struct Member {
    library: &'static Library,
    target: &'static Target,
    /// What it had counted before the group.
    before: Issued,
    /// How many calls it has in the group, and the last one.
    calls: usize,
    last: Call,
}

impl Member {
    /// What the group was for it.
    fn text(&self) -> String {
        let last = self.target.call_text(&self.last);
        match self.calls {
            1 => format!("the group of {last}"),
            calls => format!("the group of {calls} operations, the last of them {last}"),
        }
    }
}

// Constant and without a destructor: a thread that ends with an open group leaks it.
thread_local! {
    static OPEN: Cell<*mut Group> = const { Cell::new(std::ptr::null_mut()) };
    static ROOM_BEFORE: Cell<usize> = const { Cell::new(*ROOM.start()) };
}

fn with<R>(body: impl FnOnce(&mut Group) -> R) -> Option<R> {
    let group = OPEN.get();
    if group.is_null() {
        return None;
    }
    // SAFETY: only this thread reaches the pointer, which comes from a box that lives until
    // `take`; `body` never calls back into this module (it gets the group instead).
    Some(body(unsafe { &mut *group }))
}

/// Whether this thread has an open group.
pub(crate) fn is_open() -> bool {
    !OPEN.get().is_null()
}

/// Opens a group, or a nested one.
pub fn start() -> Result<()> {
    if with(|group| group.depth += 1).is_none() {
        OPEN.set(Box::into_raw(Box::new(Group {
            depth: 1,
            ..Group::default()
        })));
        rare::group_opened();
    }
    Ok(())
}

/// Remembers an error of a call inside, which the end returns.
pub(crate) fn note_error(error: &Error) {
    with(|group| group.fail(error));
}

impl Group {
    /// The call with arrays that live as long as the group.
    ///
    /// # Safety
    /// The call's arrays that are not NULL have an entry for each rank.
    unsafe fn keep_arrays(&mut self, call: &Call, nranks: u32) -> Call {
        if call.kind != OpKind::AllToAllv || call.vector.iter().any(|array| array.is_null()) {
            return *call;
        }
        let copies = call.vector.map(|array| {
            let entries = 0..nranks as usize;
            // SAFETY: the caller's promise; nothing is known about the alignment.
            entries
                .map(|at| unsafe { array.add(at).read_unaligned() })
                .collect::<Box<[usize]>>()
        });
        let vector = copies.each_ref().map(|copy| copy.as_ptr());
        self.arrays.push(copies);
        Call { vector, ..*call }
    }

    /// Adds an operation of the host tier to those of its communicator.
    fn queue(&mut self, handle: Handle, target: &'static Target, op: HostOp, call: &Call) {
        let of_it = |(h, ..): &&mut Launch| *h == handle;
        match self.queued.iter_mut().rev().find(of_it) {
            Some((.., batch)) => batch.push(op, call.stream),
            None => {
                let batch = Batch::new(op, call, ROOM_BEFORE.get());
                self.queued.push((handle, target, batch));
            }
        }
    }

    fn fail(&mut self, error: &Error) {
        self.error.get_or_insert_with(|| error.clone());
        if !self.poisoned && !self.opened.is_empty() {
            self.poisoned = true;
            for (_, target) in &self.opened {
                target.native.poison_group(target.nranks());
            }
        }
    }

    /// Compares the calls of each communicator with those of its other ranks.
    fn check_calls(&self) -> Result<()> {
        let mut rest: Vec<(Handle, Call)> = self.checked.clone();
        while let Some((handle, _)) = rest.first().copied() {
            let calls: Vec<Call> = rest
                .iter()
                .filter(|(h, _)| *h == handle)
                .map(|(_, call)| *call)
                .collect();
            rest.retain(|(h, _)| *h != handle);
            // Those in the vendor's group are counted already.
            let target = &super::table::place(handle).target;
            let member = self.members.iter().find(|m| std::ptr::eq(m.target, target));
            let before = member.map_or_else(|| target.counts(), |m| m.before);
            let comm = super::table::get(handle)?;
            super::end::compare_calls(&comm, &calls, before.collectives + 1)?;
        }
        Ok(())
    }

    /// Notes a call that goes into a vendor's open group.
    fn note(&mut self, library: &'static Library, target: &'static Target, call: &Call) {
        let known = self
            .members
            .iter()
            .rposition(|m| std::ptr::eq(m.target, target));
        match known {
            Some(at) => {
                self.members[at].calls += 1;
                self.members[at].last = *call;
            }
            None => self.members.push(Member {
                library,
                target,
                before: target.counts(),
                calls: 1,
                last: *call,
            }),
        }
    }

    /// A vendor's group was not launched: what its communicators have to know.
    fn blame(&self, library: &'static Library, error: Error) -> Error {
        let of_it = |m: &&Member| std::ptr::eq(m.library, library);
        let mut members = self.members.iter().filter(of_it);
        if breaks(error.code()) {
            members.for_each(|m| m.target.keep_break(&error.clone().context(m.text())));
            return error;
        }
        match members.next() {
            Some(member) => member.target.untold(error),
            None => error,
        }
    }

    /// What was not launched doesn't count: everything in vendors' groups but in those of these libraries.
    /// What has broken a communicator is acted on now that the groups are closed.
    fn take_back(&self, launched: &[&'static Library]) {
        for member in &self.members {
            if !launched.iter().any(|l| std::ptr::eq(*l, member.library)) {
                member.target.set_counts(member.before);
            }
            member.target.act_on_kept_break();
        }
    }

    /// Opens the vendor's group if it is not open yet.
    fn open_vendor(&mut self, library: &'static Library, target: &'static Target) -> Result<()> {
        if !self
            .opened
            .iter()
            .any(|(open, _)| std::ptr::eq(*open, library))
        {
            library.group_start()?;
            self.opened.push((library, target));
            if self.error.is_some() {
                self.poisoned = true;
                target.native.poison_group(target.nranks());
            }
        }
        Ok(())
    }
}

/// Adds a message of the host tier to those that its communicator has in the open group, if nothing is special about
/// it. `false`: it was not added, [`add`] takes it.
///
/// # Safety
/// As [`add`].
#[inline(always)]
pub(crate) unsafe fn add_message(handle: Handle, place: &'static Place, call: &Call) -> bool {
    let group = OPEN.get();
    if group.is_null() || !rare::only_groups() || !place.is_live(handle) {
        return false;
    }
    // SAFETY: as in `with`.
    let group = unsafe { &mut *group };
    let Some((of, _, batch)) = group.queued.last_mut() else {
        return false;
    };
    if *of != handle || batch.ops.len() == batch.ops.capacity() {
        return false;
    }
    let Some(op) = port::prepare_message(&place.target, call) else {
        return false;
    };
    batch.push(op, call.stream);
    true
}

/// A call inside a group.
///
/// # Safety
/// The call's pointers must be what the C header asks for, until the outermost end.
pub(crate) unsafe fn add(handle: Handle, target: &'static Target, call: &Call) -> i32 {
    let outcome = with(|group| {
        if call.kind == OpKind::Barrier {
            return Err(Error::invalid_usage(
                "Barrier waits, and inside a group nothing is launched before the end",
            ));
        }
        if !group.pending.is_empty() {
            return Err(Error::invalid_usage(
                "this group holds inits or splits, and operations can't be in the same group: the \
                 communicators exist only after its end",
            ));
        }
        let Some(library) = target.native.attached() else {
            // SAFETY: the caller's promise.
            let op = unsafe { port::prepare(target, call)? };
            group.queue(handle, target, op, call);
            return Ok(0);
        };
        let keeps = target.native.keeps_groups();
        if keeps {
            native::check(target, call)?;
        }
        if keeps || rare::checking() {
            // SAFETY: the caller's promise.
            let own = unsafe { group.keep_arrays(call, target.nranks()) };
            if rare::checking() {
                group.checked.push((handle, own));
            }
            if keeps {
                group.kept.push((handle, target, own));
                return Ok(0);
            }
        }
        group.open_vendor(library, target)?;
        group.note(library, target, call);
        // SAFETY: the caller's promise.
        Ok(unsafe { dispatch(target, call) })
    });
    match outcome {
        None => Code::InternalError as i32,
        Some(Ok(code)) => {
            if code != 0 && code != Code::InProgress as i32 {
                // The text is recorded; the end repeats it.
                let text = target.last_error();
                let code = Code::from_raw(code).unwrap_or(Code::InternalError);
                note_error(&Error::new(code, text));
            }
            code
        }
        Some(Err(error)) => {
            let code = target.fail_call(call, error);
            let kept = Code::from_raw(code).unwrap_or(Code::InternalError);
            note_error(&Error::new(kept, target.last_error()));
            code
        }
    }
}

/// Records an init or split for the end of the open group.
pub(crate) fn defer(pending: Pending) -> Result<()> {
    let recorded = with(|group| {
        if !group.queued.is_empty() || !group.opened.is_empty() || !group.kept.is_empty() {
            let error = Error::invalid_usage(
                "this group holds operations, and inits or splits can't be in the same group",
            );
            group.fail(&error);
            return Err(error);
        }
        group.pending.push(pending);
        Ok(())
    });
    recorded.unwrap_or_else(|| Err(Error::internal("no group is open")))
}

/// Takes the outermost group, or `None` if the end was of a nested one.
fn take() -> Result<Option<Group>> {
    let depth = with(|group| {
        group.depth -= 1;
        group.depth
    });
    match depth {
        None => Err(Error::invalid_usage(
            "flagosGroupEnd without flagosGroupStart: no group is open on this thread (groups are \
             per thread)",
        )),
        Some(0) => {
            let group = OPEN.replace(std::ptr::null_mut());
            rare::group_closed();
            // SAFETY: the pointer came from `Box::into_raw` in `start`, and is taken once.
            Ok(Some(*unsafe { Box::from_raw(group) }))
        }
        Some(_) => Ok(None),
    }
}

/// Closes a group; the outermost end launches everything. `Ok(false)`: a vendor goes on with it.
pub fn end() -> Result<bool> {
    let Some(mut group) = take()? else {
        return Ok(true);
    };
    if group.error.is_none()
        && !group.checked.is_empty()
        && let Err(error) = group.check_calls()
    {
        group.fail(&error);
    }
    let mut first = group.error.take();
    let refused = first.is_some();
    let mut launched = Vec::new();
    let mut pending = false;
    for (library, _) in &group.opened {
        match library.group_end() {
            Ok(progress) => {
                pending |= progress == Progress::Pending;
                if !refused {
                    launched.push(*library);
                }
            }
            // The end of a group that was poisoned fails by that.
            Err(_) if refused => {}
            Err(error) => {
                let error = group.blame(library, error);
                first.get_or_insert(error);
            }
        }
    }
    if let Some(error) = first {
        group.take_back(&launched);
        init::cancel(group.pending);
        return Err(error.context("the group was not launched"));
    }
    if !group.pending.is_empty() {
        pending |= !init::run_all(group.pending)?;
    }
    pending |= run_kept(group.kept)?;
    launch(group.queued)?;
    Ok(!pending)
}

/// Makes the kept calls: of each communicator its collectives in their order, then its messages,
/// those on one stream together. Communicators go beside each other, since one thread may own several
/// ranks of one, and a call may wait for the other ranks'. `Ok(true)`: a vendor goes on with it.
fn run_kept(kept: Vec<(Handle, &'static Target, Call)>) -> Result<bool> {
    let mut each: Vec<(Handle, &'static Target, Vec<Call>)> = Vec::new();
    for (handle, target, call) in kept {
        match each.iter_mut().find(|(h, ..)| *h == handle) {
            Some((.., calls)) => calls.push(call),
            None => each.push((handle, target, vec![call])),
        }
    }
    let pending = AtomicBool::new(false);
    beside_each_other(each, |(handle, target, calls)| {
        super::table::get(handle)?;
        let failed = |code: i32| match Code::from_raw(code) {
            _ if code == 0 => Ok(()),
            Some(Code::InProgress) => {
                pending.store(true, Ordering::Relaxed);
                Ok(())
            }
            code => Err(Error::new(
                code.unwrap_or(Code::InternalError),
                target.last_error(),
            )),
        };
        let is_message = |call: &&Call| matches!(call.kind, OpKind::Send | OpKind::Recv);
        for call in calls.iter().filter(|call| !is_message(call)) {
            // SAFETY: the promise of the callers of `add`, until the end returns.
            failed(unsafe { dispatch(target, call) })?;
        }
        let mut messages: Vec<Call> = calls.iter().filter(is_message).copied().collect();
        while let Some(first) = messages.first().copied() {
            let (together, rest) = messages.iter().partition(|m| m.stream == first.stream);
            messages = rest;
            let before = target.counts();
            together
                .iter()
                .for_each(|m: &Call| target.count_operation(m.kind));
            // SAFETY: as above.
            let sent = unsafe { native::send_messages(target, &together) };
            failed(sent.unwrap_or_else(|error| {
                let code = target.refuse(&first, error);
                target.set_counts(before);
                code
            }))?;
        }
        Ok(())
    })?;
    Ok(pending.into_inner())
}

/// One communicator's operations in a group.
type Launch = (Handle, &'static Target, Batch);

/// Launches the host tier's operations: those of one communicator together, the communicators
/// beside each other, since one thread may own several ranks of one.
fn launch(queued: Vec<Launch>) -> Result<()> {
    let run = |(handle, target, batch): Launch| {
        super::table::get(handle)?;
        let first = batch.first;
        let all = batch.ops.len();
        ROOM_BEFORE.set(all.clamp(*ROOM.start(), *ROOM.end()));
        let is_message = |op: &&HostOp| matches!(op.kind, OpKind::Send | OpKind::Recv);
        let messages = batch.ops.iter().filter(is_message).count();
        let collectives = all - messages;
        // SAFETY: the promise of the callers of `add`, until the end returns or the streams have
        // passed the operations.
        unsafe { port::submit(target, batch) }.map_err(|error| {
            let before = target.counts();
            let launched = !crate::ops::refused_on_host(error.code());
            // The error tells the first one's number, as that of a lone call.
            target.count_operation(first.kind);
            let code = target.fail_call(&first, error);
            target.set_counts(before);
            if launched {
                target.count_launched(collectives, messages);
            }
            Error::new(
                Code::from_raw(code).unwrap_or(Code::InternalError),
                target.last_error(),
            )
        })?;
        target.count_launched(collectives, messages);
        Ok(())
    };
    beside_each_other(queued, run)
}

/// Runs work of several communicators, each on a thread of its own, with the caller's device.
fn beside_each_other<T: Send>(all: Vec<T>, run: impl Fn(T) -> Result<()> + Sync) -> Result<()> {
    if all.len() <= 1 {
        return all.into_iter().try_for_each(run);
    }
    let device = crate::device::of_thread();
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let threads: Vec<_> = all
            .into_iter()
            .map(|one| {
                let run = &run;
                std::thread::Builder::new()
                    .name("flagos-group".into())
                    .spawn_scoped(scope, move || {
                        device.apply()?;
                        run(one)
                    })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| match thread.map(|t| t.join()) {
                Ok(Ok(result)) => result,
                Ok(Err(_)) => Err(Error::internal("a thread of a group panicked")),
                Err(e) => Err(Error::system("no thread for a group", e)),
            })
            .collect()
    });
    results.into_iter().collect()
}

/// Closes the group without launching it; the vendor's estimate in microseconds.
pub fn simulate_end() -> Result<f32> {
    let Some(group) = take()? else {
        return Err(Error::invalid_usage(
            "flagosGroupSimulateEnd closes the outermost group, but this one is nested",
        ));
    };
    let mut longest = 0f32;
    let mut first = group.error.clone();
    for (library, target) in &group.opened {
        match library.group_simulate_end() {
            Ok(time) => longest = longest.max(time),
            Err(error) => {
                // What was recorded must not be launched by a later group.
                if library.symbols.group_simulate_end.is_none() {
                    target.native.poison_group(target.nranks());
                    let _ = library.group_end();
                }
                first.get_or_insert(error);
            }
        }
    }
    group.take_back(&[]);
    init::cancel(group.pending);
    match first {
        Some(error) => Err(error),
        None if !group.kept.is_empty() => Err(Error::not_supported(
            "this vendor's library does not estimate times; the operations in this group were dropped",
        )),
        None if !group.queued.is_empty() => Err(Error::not_supported(
            "the host tier does not estimate times; its operations in this group were dropped",
        )),
        None => Ok(longest),
    }
}
