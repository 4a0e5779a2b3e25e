//! Threads that reduce beside the one that runs an operation. They sleep when there is nothing to do, and
//! end when the crew is dropped.

use super::kernels::{Fold, Scale, Target};
use crate::error::Error;
use crate::ops::lock;
use crate::sys::futex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What one thread does at once: small enough that all have something to do, and for a core's cache.
const PART: usize = 64 << 10;
/// How long a thread looks for the next fold before it sleeps: about what lies between two of one
/// operation. Whoever has threads has cores for them.
const LOOK: Duration = Duration::from_micros(100);
/// How long one sleep may last; a wake ends it.
const SLEEP: Duration = Duration::from_secs(60);

/// One fold, cut into parts.
pub(crate) struct Job {
    pub fold: Fold,
    pub to: *mut u8,
    pub sources: Vec<*const u8>,
    pub scales: Arc<[Scale]>,
    pub bytes: usize,
    /// Bytes of an element.
    pub size: usize,
    next: AtomicUsize,
    done: AtomicUsize,
}

// SAFETY: the pointers are only followed in `Job::work`, as the maker of the job promised.
unsafe impl Send for Job {}
// SAFETY: as above; each part is taken by one thread.
unsafe impl Sync for Job {}

impl Job {
    /// # Safety
    /// As [`Fold`], for `bytes` bytes, until the job is done.
    pub(crate) unsafe fn new(
        fold: Fold,
        to: *mut u8,
        sources: Vec<*const u8>,
        scales: Arc<[Scale]>,
        bytes: usize,
        size: usize,
    ) -> Job {
        Job {
            fold,
            to,
            sources,
            scales,
            bytes,
            size,
            next: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
        }
    }

    fn parts(&self) -> usize {
        self.bytes.div_ceil(PART)
    }

    /// Does parts until none is left.
    pub(crate) fn work(&self) {
        let mut sources = Vec::with_capacity(self.sources.len());
        loop {
            let part = self.next.fetch_add(1, Relaxed);
            if part >= self.parts() {
                return;
            }
            let at = part * PART;
            let bytes = PART.min(self.bytes - at);
            sources.clear();
            sources.extend(self.sources.iter().map(|source| source.wrapping_add(at)));
            let to = Target::one(self.to.wrapping_add(at), false);
            // SAFETY: the promise of the job's maker for the whole, of which this is a part that no other
            // thread takes; a part is a multiple of every element's size.
            unsafe { (self.fold)(to, &sources, &self.scales, sources.len(), bytes / self.size) };
            self.done.fetch_add(1, Release);
        }
    }

    /// Whether every part is done, and the result can be seen.
    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Acquire) == self.parts()
    }
}

struct Shared {
    /// Changes with every job, and at the end.
    bell: AtomicU32,
    job: Mutex<(Option<Arc<Job>>, bool)>,
}

/// The threads.
pub(crate) struct Crew {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Crew {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Crew of {}", self.threads.len())
    }
}

impl Crew {
    /// Up to so many threads; fewer, if there are no more to be had.
    pub(crate) fn new(threads: usize) -> Crew {
        let shared = Arc::new(Shared {
            bell: AtomicU32::new(0),
            job: Mutex::new((None, false)),
        });
        let mut crew = Crew {
            shared,
            threads: Vec::with_capacity(threads),
        };
        for _ in 0..threads {
            let shared = Arc::clone(&crew.shared);
            let thread = std::thread::Builder::new().name("flagos-reduce".into());
            match thread.spawn(move || shared.serve()) {
                Ok(thread) => crew.threads.push(thread),
                Err(e) => {
                    let error = Error::system("no further thread to reduce with", e);
                    log::warn!("{error}");
                    break;
                }
            }
        }
        crew
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.threads.len()
    }

    /// Gives them a job. The one before is done.
    pub(crate) fn give(&self, job: &Arc<Job>) {
        lock(&self.shared.job).0 = Some(Arc::clone(job));
        self.alert();
    }

    /// Wakes them: a job will come.
    pub(crate) fn alert(&self) {
        self.shared.bell.fetch_add(1, Release);
        futex::wake_all(&self.shared.bell);
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        *lock(&self.shared.job) = (None, true);
        self.alert();
        for thread in self.threads.drain(..) {
            // A fold doesn't panic; if it did, whoever waits for the job has the error.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn serve(&self) {
        let mut seen = 0;
        loop {
            let since = Instant::now();
            let mut now = self.bell.load(Acquire);
            while now == seen {
                if since.elapsed() < LOOK {
                    for _ in 0..64 {
                        std::hint::spin_loop();
                    }
                } else {
                    futex::wait(&self.bell, seen, SLEEP);
                }
                now = self.bell.load(Acquire);
            }
            seen = now;
            let (job, over) = {
                let current = lock(&self.job);
                (current.0.clone(), current.1)
            };
            if over {
                return;
            }
            if let Some(job) = job {
                job.work();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::kernels::fold_for;
    use crate::types::{DataType, RedOp, Reduction};

    fn job(a: &mut [u32], b: &[u32]) -> Arc<Job> {
        let fold = fold_for(DataType::Uint32, Reduction::Builtin(RedOp::Sum)).unwrap();
        let to = a.as_mut_ptr().cast::<u8>();
        let sources = vec![to.cast_const(), b.as_ptr().cast()];
        // SAFETY: both live until the job is done, which every test waits for.
        Arc::new(unsafe { Job::new(fold, to, sources, Arc::new([]), size_of_val(b), 4) })
    }

    #[test]
    fn every_part_is_reduced_once_by_any_number_of_threads() {
        let elements = 5 * PART / 4 + 77;
        let b: Vec<u32> = (0..elements as u32).collect();
        for threads in [0, 1, 3] {
            let crew = Crew::new(threads);
            assert_eq!(crew.len(), threads);
            let mut a = vec![1000; elements];
            for round in 1..=20 {
                let job = job(&mut a, &b);
                if threads == 0 {
                    job.work();
                } else {
                    crew.give(&job);
                }
                while !job.is_done() {
                    std::thread::yield_now();
                }
                let wrong = (0..elements).find(|&i| a[i] != 1000 + round * i as u32);
                assert_eq!(wrong, None, "{threads} threads, round {round}");
            }
        }
    }

    #[test]
    fn nothing_to_reduce_is_done() {
        assert!(job(&mut [], &[]).is_done());
    }
}
