//! Groups, per thread: calls inside are launched together at the outermost end.
//!
//! The vendor's own group is opened when the first call inside needs it. Operations of the host
//! tier, and of vendors that have no groups of everything, are queued; inits and splits are recorded. A call that is refused inside makes the end fail
//! and launch nothing.

use super::init::{self, Pending};
use super::rare;
use super::table::Handle;
use crate::error::{Code, Error, Result};
use crate::host::op::HostOp;
use crate::host::port::{self, Batch};
use crate::ops::{Call, Target, dispatch};
use crate::types::OpKind;
use crate::vendor::Library;
use crate::vendor::library::Progress;
use crate::vendor::port as native;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

/// What one thread's open group holds.
#[derive(Default)]
struct Group {
    depth: u32,
    error: Option<Error>,
    /// Vendors whose group is open, with a communicator of theirs for poisoning.
    opened: Vec<(&'static Library, &'static Target)>,
    poisoned: bool,
    queued: Vec<(Handle, &'static Target, HostOp, Call)>,
    /// Calls on vendors whose groups are kept here.
    kept: Vec<(Handle, &'static Target, Call)>,
    pending: Vec<Pending>,
    /// Calls on vendor communicators, for call checking at the end.
    checked: Vec<(Handle, Call)>,
    /// Counts and displacements of the calls in `kept` and `checked`: the caller's are there during its
    /// call only.
    arrays: Vec<[Box<[usize]>; 4]>,
}

// Constant and without a destructor: a thread that ends with an open group leaks it.
thread_local! {
    static OPEN: Cell<*mut Group> = const { Cell::new(std::ptr::null_mut()) };
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

    fn fail(&mut self, error: &Error) {
        self.error.get_or_insert_with(|| error.clone());
        if !self.poisoned && !self.opened.is_empty() {
            self.poisoned = true;
            for (_, target) in &self.opened {
                target.native.poison_group(target.nranks());
            }
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

/// A call inside a group.
///
/// # Safety
/// The call's pointers must be what the C header asks for, until the outermost end.
pub(crate) unsafe fn add(handle: Handle, target: &'static Target, call: Call) -> i32 {
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
            let op = unsafe { port::prepare(target, &call)? };
            group.queued.push((handle, target, op, call));
            return Ok(0);
        };
        let keeps = target.native.keeps_groups();
        if keeps {
            native::check(target, &call)?;
        }
        if keeps || rare::checking() {
            // SAFETY: the caller's promise.
            let own = unsafe { group.keep_arrays(&call, target.nranks()) };
            if rare::checking() {
                group.checked.push((handle, own));
            }
            if keeps {
                group.kept.push((handle, target, own));
                return Ok(0);
            }
        }
        group.open_vendor(library, target)?;
        // SAFETY: the caller's promise.
        Ok(unsafe { dispatch(target, &call) })
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
            let code = target.fail_call(&call, error);
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
        && let Err(error) = check_calls(&group.checked)
    {
        group.fail(&error);
    }
    let mut first = group.error.take();
    let mut pending = false;
    for (library, _) in &group.opened {
        match library.group_end() {
            Ok(Progress::Done) => {}
            Ok(Progress::Pending) => pending = true,
            Err(error) => {
                first.get_or_insert(error);
            }
        }
    }
    if let Some(error) = first {
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
            // SAFETY: as above.
            let sent = unsafe { native::send_messages(target, &together) };
            failed(sent.unwrap_or_else(|error| target.fail_call(&first, error)))?;
            together.iter().for_each(|_| target.count_operation());
        }
        Ok(())
    })?;
    Ok(pending.into_inner())
}

fn check_calls(checked: &[(Handle, Call)]) -> Result<()> {
    let mut rest: Vec<(Handle, Call)> = checked.to_vec();
    while let Some((handle, _)) = rest.first().copied() {
        let calls: Vec<Call> = rest
            .iter()
            .filter(|(h, _)| *h == handle)
            .map(|(_, call)| *call)
            .collect();
        rest.retain(|(h, _)| *h != handle);
        super::end::compare_calls(&*super::table::get(handle)?, &calls)?;
    }
    Ok(())
}

/// One communicator's operations in a group.
type Launch = (Handle, &'static Target, Batch);

/// Launches the host tier's operations: those of one communicator together, the communicators
/// beside each other, since one thread may own several ranks of one.
fn launch(queued: Vec<(Handle, &'static Target, HostOp, Call)>) -> Result<()> {
    let mut batches: Vec<Launch> = Vec::new();
    for (handle, target, op, call) in queued {
        let at = batches
            .iter()
            .position(|(h, ..)| *h == handle)
            .unwrap_or_else(|| {
                batches.push((
                    handle,
                    target,
                    Batch {
                        ops: Vec::new(),
                        texts: Vec::new(),
                    },
                ));
                batches.len() - 1
            });
        batches[at].2.ops.push(op);
        batches[at].2.texts.push(call);
    }
    let run = |(handle, target, batch): Launch| {
        super::table::get(handle)?;
        let (first, count) = (batch.texts[0], batch.texts.len());
        // SAFETY: the promise of the callers of `add`, until the end returns or the streams have
        // passed the operations.
        unsafe { port::submit(target, batch) }.map_err(|error| {
            let code = target.fail_call(&first, error);
            Error::new(
                Code::from_raw(code).unwrap_or(Code::InternalError),
                target.last_error(),
            )
        })?;
        (0..count).for_each(|_| target.count_operation());
        Ok(())
    };
    beside_each_other(batches, run)
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
    init::cancel(group.pending);
    let mut longest = 0f32;
    let mut first = group.error;
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
