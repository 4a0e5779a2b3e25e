//! Host streams and events, for machines without an accelerator's driver: each stream is a thread
//! that runs its tasks in order. Work that is put on one returns at once.

use crate::error::{Code, Error, Result};
use crate::ops::lock;
use crate::sys::handoff::{Sender, queue};
use crate::sys::per_process::PerProcess;
use crate::sys::process::first_number;
use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

/// One unit of work of a stream.
pub(crate) type Task = Box<dyn FnOnce() -> Result<()> + Send>;

#[derive(Default)]
struct Progress {
    submitted: u64,
    done: u64,
    /// The first error of a task, until somebody asks.
    error: Option<Error>,
}

impl Progress {
    /// Keeps the first error until it is asked for, and says which it is, if it is new. What is behind it mostly fails
    /// for the same reason, thousands of times.
    fn keep(&mut self, error: Error) -> Option<&Error> {
        match self.error {
            Some(_) => None,
            None => Some(self.error.insert(error)),
        }
    }
}

struct Stream {
    tasks: Sender<Task>,
    progress: Arc<(Mutex<Progress>, Condvar)>,
    /// The threads that made it or have put work on it.
    users: Mutex<HashSet<usize>>,
}

/// A name of the calling thread, for [`Stream::users`]. One that is used again by a later thread makes that
/// one wait for more than it must.
fn this_thread() -> usize {
    // SAFETY: takes nothing and always succeeds.
    unsafe { libc::pthread_self() as usize }
}

#[derive(Default)]
struct EventState {
    /// How often it was recorded, and which of these points the streams have reached.
    recorded: u64,
    reached: u64,
    at: Option<Instant>,
}

#[derive(Default)]
struct Event {
    timing: bool,
    state: Mutex<EventState>,
    changed: Condvar,
}

impl Event {
    fn record_point(&self) -> u64 {
        let mut state = lock(&self.state);
        state.recorded += 1;
        state.recorded
    }

    fn reach(&self, point: u64) {
        let mut state = lock(&self.state);
        if point > state.reached {
            state.reached = point;
            state.at = Some(Instant::now());
        }
        self.changed.notify_all();
    }

    fn wait_for(&self, point: u64) {
        let mut state = lock(&self.state);
        while state.reached < point {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

#[derive(Default)]
struct Registry {
    last: usize,
    streams: HashMap<usize, Arc<Stream>>,
    events: HashMap<usize, Arc<Event>>,
}

impl Registry {
    /// Handles are odd numbers that no allocation has for an address; they are never dereferenced
    /// and never used twice. The first is random, so that another copy of this library in the process
    /// does not take our handles for its own.
    fn next(&mut self) -> usize {
        if self.last == 0 {
            self.last = first_number();
        }
        self.last += 1;
        (self.last << 4) | 7
    }
}

fn registry() -> &'static Mutex<Registry> {
    static REGISTRY: PerProcess<Mutex<Registry>> = PerProcess::new();
    REGISTRY.get_or_init(Mutex::default)
}

fn stream(handle: *mut c_void) -> Result<Arc<Stream>> {
    lock(registry()).streams.get(&(handle as usize)).cloned().ok_or_else(|| {
        Error::invalid_argument(format!(
            "{handle:p} is no live stream: on a machine without an accelerator's driver, streams \
             come from flagosStreamCreate, and NULL makes calls blocking"
        ))
    })
}

fn event(handle: *mut c_void) -> Result<Arc<Event>> {
    lock(registry())
        .events
        .get(&(handle as usize))
        .cloned()
        .ok_or_else(|| Error::invalid_argument(format!("{handle:p} is no live event")))
}

/// A new stream.
pub(crate) fn create() -> Result<*mut c_void> {
    let (tasks, inbox) = queue::<Task>();
    let progress = Arc::new((Mutex::new(Progress::default()), Condvar::new()));
    let shared = Arc::clone(&progress);
    std::thread::Builder::new()
        .name("flagos-stream".into())
        .spawn(move || {
            while let Ok(task) = inbox.take_within(None) {
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(task))
                    .unwrap_or_else(|_| Err(Error::internal("a task of a host stream panicked")));
                let mut progress = lock(&shared.0);
                progress.done += 1;
                if let Err(error) = outcome
                    && let Some(kept) = progress.keep(error)
                {
                    log::warn!("{kept}");
                }
                shared.1.notify_all();
            }
        })
        .map_err(|e| Error::system("no thread for a host stream", e))?;
    let mut registry = lock(registry());
    let handle = registry.next();
    registry.streams.insert(
        handle,
        Arc::new(Stream {
            tasks,
            progress,
            users: Mutex::new(HashSet::from([this_thread()])),
        }),
    );
    Ok(handle as *mut c_void)
}

/// Frees a stream; what is on it still runs.
pub(crate) fn destroy(handle: *mut c_void) -> Result<()> {
    stream(handle)?;
    lock(registry()).streams.remove(&(handle as usize));
    Ok(())
}

/// Puts a task on a stream; on NULL it runs now.
pub(crate) fn enqueue(handle: *mut c_void, task: Task) -> Result<()> {
    if handle.is_null() {
        return task();
    }
    let stream = stream(handle)?;
    lock(&stream.users).insert(this_thread());
    lock(&stream.progress.0).submitted += 1;
    stream
        .tasks
        .send(task)
        .map_err(|_| Error::internal("the thread of a host stream has ended"))
}

/// Whether the handle is a stream, or NULL.
pub(crate) fn check(handle: *mut c_void) -> Result<()> {
    if handle.is_null() {
        Ok(())
    } else {
        stream(handle).map(drop)
    }
}

/// Whether everything on the stream is done; the first error of its tasks.
pub(crate) fn query(handle: *mut c_void) -> Result<bool> {
    if handle.is_null() {
        return Ok(true);
    }
    let stream = stream(handle)?;
    let mut progress = lock(&stream.progress.0);
    match progress.error.take() {
        Some(error) => Err(error),
        None => Ok(progress.done == progress.submitted),
    }
}

/// Waits until everything on the stream is done; the first error of its tasks.
pub(crate) fn synchronize(handle: *mut c_void) -> Result<()> {
    if handle.is_null() {
        return Ok(());
    }
    let stream = stream(handle)?;
    let mut progress = lock(&stream.progress.0);
    let target = progress.submitted;
    while progress.done < target {
        progress = stream
            .progress
            .1
            .wait(progress)
            .unwrap_or_else(std::sync::PoisonError::into_inner);
    }
    progress.error.take().map_or(Ok(()), Err)
}

/// Waits until everything is done on the streams that this thread made or has put work on; the first error of
/// any. Those of other threads are left out: where ranks are threads, this one may be what they wait for.
pub(crate) fn synchronize_all() -> Result<()> {
    let me = this_thread();
    let own: Vec<usize> = lock(registry())
        .streams
        .iter()
        .filter(|(_, stream)| lock(&stream.users).contains(&me))
        .map(|(handle, _)| *handle)
        .collect();
    let mut first = Ok(());
    for handle in own {
        // Another thread may have freed it meanwhile.
        if lock(registry()).streams.contains_key(&handle) {
            first = first.and(synchronize(handle as *mut c_void));
        }
    }
    first
}

/// What is put on the stream from now on waits for the event.
pub(crate) fn wait_event(handle: *mut c_void, of: *mut c_void) -> Result<()> {
    let event = event(of)?;
    let point = lock(&event.state).recorded;
    check(handle)?;
    enqueue(
        handle,
        Box::new(move || {
            event.wait_for(point);
            Ok(())
        }),
    )
}

/// A new event.
pub(crate) fn event_create(timing: bool) -> Result<*mut c_void> {
    let mut registry = lock(registry());
    let handle = registry.next();
    registry.events.insert(
        handle,
        Arc::new(Event {
            timing,
            ..Event::default()
        }),
    );
    Ok(handle as *mut c_void)
}

/// Frees an event; streams that wait for it still do.
pub(crate) fn event_destroy(handle: *mut c_void) -> Result<()> {
    event(handle)?;
    lock(registry()).events.remove(&(handle as usize));
    Ok(())
}

/// Records the event on a stream.
pub(crate) fn event_record(handle: *mut c_void, on: *mut c_void) -> Result<()> {
    let event = event(handle)?;
    check(on)?;
    let point = event.record_point();
    enqueue(
        on,
        Box::new(move || {
            event.reach(point);
            Ok(())
        }),
    )
}

/// Whether the event's last record is reached; an event that was never recorded is.
pub(crate) fn event_query(handle: *mut c_void) -> Result<bool> {
    let event = event(handle)?;
    let state = lock(&event.state);
    Ok(state.reached >= state.recorded)
}

/// Waits until the event's last record is reached.
pub(crate) fn event_synchronize(handle: *mut c_void) -> Result<()> {
    let event = event(handle)?;
    let point = lock(&event.state).recorded;
    event.wait_for(point);
    Ok(())
}

/// Milliseconds between two reached timing events.
pub(crate) fn event_elapsed(start: *mut c_void, end: *mut c_void) -> Result<f32> {
    let (start, end) = (event(start)?, event(end)?);
    if !start.timing || !end.timing {
        return Err(Error::invalid_argument(
            "one of the events was made without timing",
        ));
    }
    let at = |event: &Event| {
        let state = lock(&event.state);
        match state.at.filter(|_| state.reached >= state.recorded) {
            Some(at) => Ok(at),
            None if state.recorded == 0 => Err(Error::invalid_argument(
                "one of the events was never recorded",
            )),
            None => Err(Error::new(
                Code::InProgress,
                "one of the events is not reached yet",
            )),
        }
    };
    let (start, end) = (at(&start)?, at(&end)?);
    let after = end.saturating_duration_since(start).as_secs_f64();
    let before = start.saturating_duration_since(end).as_secs_f64();
    Ok(((after - before) * 1e3) as f32)
}

/// A pointer on its way to a stream's thread.
struct Carried<T>(T);
// SAFETY: the caller of the asynchronous call promised to leave the memory alone until the stream
// has passed it; which thread touches it does not matter.
unsafe impl<T> Send for Carried<T> {}

/// Copies on a stream; the ranges may overlap.
///
/// # Safety
/// Both ranges must be valid until the stream has passed the copy.
pub(crate) unsafe fn copy_async(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    on: *mut c_void,
) -> Result<()> {
    let pair = Carried((dst, src));
    enqueue(
        on,
        Box::new(move || {
            let pair = pair;
            let Carried((dst, src)) = pair;
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy(src.cast::<u8>(), dst.cast::<u8>(), bytes) };
            Ok(())
        }),
    )
}

/// Fills on a stream.
///
/// # Safety
/// The range must be valid until the stream has passed the fill.
pub(crate) unsafe fn fill_async(
    dst: *mut c_void,
    value: u8,
    bytes: usize,
    on: *mut c_void,
) -> Result<()> {
    let dst = Carried(dst);
    enqueue(
        on,
        Box::new(move || {
            let dst = dst;
            // SAFETY: the caller's promise.
            unsafe { std::ptr::write_bytes(dst.0.cast::<u8>(), value, bytes) };
            Ok(())
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn tasks_of_a_stream_run_in_order_and_events_tie_streams_together() {
        let (a, b) = (create().unwrap(), create().unwrap());
        let order = Arc::new(Mutex::new(Vec::new()));
        let note = |n: u32, ms: u64| -> Task {
            let order = Arc::clone(&order);
            Box::new(move || {
                std::thread::sleep(Duration::from_millis(ms));
                lock(&order).push(n);
                Ok(())
            })
        };
        let event = event_create(true).unwrap();
        assert!(event_query(event).unwrap());
        enqueue(a, note(1, 50)).unwrap();
        event_record(event, a).unwrap();
        assert!(!event_query(event).unwrap());
        wait_event(b, event).unwrap();
        enqueue(b, note(2, 0)).unwrap();
        synchronize(b).unwrap();
        assert_eq!(*lock(&order), [1, 2]);
        // What follows an event may see it before its own stream knows that the task is over.
        synchronize(a).unwrap();
        assert!(query(a).unwrap() && event_query(event).unwrap());
        let end = event_create(true).unwrap();
        event_record(end, std::ptr::null_mut()).unwrap();
        assert!(event_elapsed(event, end).unwrap() >= 0.0);
        for handle in [a, b] {
            destroy(handle).unwrap();
            assert_eq!(destroy(handle).unwrap_err().code(), Code::InvalidArgument);
        }
        event_destroy(event).unwrap();
        assert!(event_query(event).is_err());
        event_destroy(end).unwrap();
    }

    #[test]
    fn an_error_behind_the_first_is_not_news() {
        let mut progress = Progress::default();
        let text = |kept: Option<&Error>| kept.map(|error| error.text().to_owned());
        let error = || Error::invalid_usage("first");
        assert_eq!(text(progress.keep(error())).as_deref(), Some("first"));
        assert_eq!(text(progress.keep(Error::invalid_usage("second"))), None);
        // As a synchronisation does.
        assert_eq!(
            text(progress.error.take().as_ref()).as_deref(),
            Some("first")
        );
        assert!(progress.keep(error()).is_some());
    }

    #[test]
    fn the_first_error_of_a_task_is_reported_once() {
        let stream = create().unwrap();
        enqueue(stream, Box::new(|| Err(Error::invalid_usage("first")))).unwrap();
        enqueue(stream, Box::new(|| Err(Error::invalid_usage("second")))).unwrap();
        assert_eq!(synchronize(stream).unwrap_err().text(), "first");
        synchronize(stream).unwrap();
        destroy(stream).unwrap();
    }
}
