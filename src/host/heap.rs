//! Memory of this process that other processes of the machine can use in place.
//!
//! A process has one heap: a range of shared memory as long as the machine has memory, in which only
//! what was allocated has pages. Others find it by the facts that [`Heap::facts`] tells, and map it once,
//! whatever the number of communicators. A freed part loses its pages at once, also where others have
//! the heap mapped; its addresses may be given again. Beyond the furthest part that was ever allocated no
//! process can read it: a tool that looks for pointers everywhere would fill the machine's memory.
//!
//! Others may write into a buffer while an operation has it for its results. A process that was stopped
//! in the middle can go on to do so when the operation has long failed here. Then the pages of the buffer
//! are withdrawn ([`Heap::withdraw`]): private memory takes their place in this process, and what is
//! written to the shared ones is seen by nobody. They are never shared nor given again, and whoever asks
//! hears that they are no part of the heap.

use crate::error::{Code, Error, Result};
use crate::ops::lock;
use crate::sys::memory::{self, Segment};
use crate::sys::per_process::PerProcess;
use crate::sys::process;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range as Span;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

const PAGE: usize = 4096;

/// Large parts start at a multiple of this, so that they can have huge pages.
const HUGE: usize = 2 << 20;

/// The smallest range that is worth having.
const LEAST: usize = 64 << 20;

/// Free parts of a heap, by offset.
#[derive(Debug)]
struct Free(BTreeMap<usize, usize>);

impl Free {
    /// Takes `len` bytes at a multiple of `align`.
    fn take(&mut self, len: usize, align: usize) -> Option<usize> {
        let fits = |(&at, &free): (&usize, &usize)| {
            let start = at.next_multiple_of(align);
            (start + len <= at + free).then_some((at, free, start))
        };
        let (at, free, start) = self.0.iter().find_map(fits)?;
        self.0.remove(&at);
        if start > at {
            self.0.insert(at, start - at);
        }
        if start + len < at + free {
            self.0.insert(start + len, at + free - (start + len));
        }
        Some(start)
    }

    fn give(&mut self, mut at: usize, mut len: usize) {
        if let Some((&before, &free)) = self.0.range(..at).next_back()
            && before + free == at
        {
            self.0.remove(&before);
            (at, len) = (before, free + len);
        }
        if let Some(after) = self.0.remove(&(at + len)) {
            len += after;
        }
        self.0.insert(at, len);
    }
}

/// What stands at the start of a heap.
#[repr(C)]
struct Start {
    secret: u64,
    /// How far the heap has been in use, in bytes.
    end: AtomicU64,
}

/// A mapping of a heap, and how far this process can use it.
#[derive(Debug)]
struct Range {
    memory: Segment,
    usable: Mutex<usize>,
}

impl Range {
    /// `memory`, whose first page has been allocated.
    fn new(memory: Segment) -> Result<Range> {
        let range = Range {
            memory,
            usable: Mutex::new(0),
        };
        range.use_up_to(PAGE)?;
        Ok(range)
    }

    /// Makes it usable as far as `end`.
    fn use_up_to(&self, end: usize) -> Result<()> {
        let mut usable = lock(&self.usable);
        if end > *usable {
            let end = end.next_multiple_of(PAGE);
            let made = self.memory.make_usable(*usable..end);
            made.map_err(|e| Error::system("making shared memory usable", e))?;
            *usable = end;
        }
        Ok(())
    }

    fn start(&self) -> *mut Start {
        self.memory.base().cast()
    }

    /// How far the owner has used the heap.
    fn end(&self) -> &AtomicU64 {
        // SAFETY: the first page has been allocated and is usable; it stays as long as the range, and every
        // process touches this word as an atomic only.
        unsafe { &(*self.start()).end }
    }
}

/// What another process must know to map a heap, once it knows the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Where it lies in the memory of its process.
    pub base: u64,
    /// Its descriptor there, and its length.
    pub fd: u64,
    pub bytes: u64,
    /// What stands at its start.
    pub secret: u64,
}

/// The heap of this process.
#[derive(Debug)]
pub(crate) struct Heap {
    range: Range,
    fd: OwnedFd,
    secret: u64,
    free: Mutex<Free>,
    /// What private memory has taken the place of, by offset: where it ends. The parts are apart.
    withdrawn: Mutex<BTreeMap<usize, usize>>,
    /// There is any.
    withdraws: AtomicBool,
}

/// The whole pages of `bytes` bytes at an address, as offsets from there; none: an empty range at 0.
///
/// What others may write of a buffer: an edge of it may share its page with something else of the program's.
pub(crate) fn whole_pages(address: u64, bytes: usize) -> Span<usize> {
    let before = (address as usize).wrapping_neg() % PAGE;
    let behind = (address as usize).wrapping_add(bytes) % PAGE;
    match before + behind < bytes {
        true => before..bytes - behind,
        false => 0..0,
    }
}

/// Whether this process can take pages of a heap out of it.
pub(crate) fn can_withdraw() -> bool {
    memory::page_bytes() == PAGE
}

impl Heap {
    fn new() -> Result<Heap> {
        let machine = memory::machine_bytes();
        let mut len = machine.max(1 << 30).next_multiple_of(HUGE);
        // A limit on addresses may allow less.
        let (range, fd) = loop {
            match Segment::create_sparse(len) {
                Ok(made) => break made,
                Err(error) if len / 2 < LEAST => return Err(error),
                Err(_) => len = (len / 2).next_multiple_of(HUGE),
            }
        };
        range.advise(0, len, libc::MADV_HUGEPAGE);
        let secret = process::random().map(u64::from_ne_bytes);
        let secret = secret.map_err(|e| Error::system("the kernel gave no random bytes", e))?;
        let page = memory::allocate(fd.as_fd(), 0, PAGE);
        page.map_err(|e| Error::system("allocating shared memory", e))?;
        let range = Range::new(range)?;
        // SAFETY: the first bytes of the range, which has just got its first page.
        unsafe { (&raw mut (*range.start()).secret).write(secret) };
        let free = Free(BTreeMap::from([(PAGE, len - PAGE)]));
        Ok(Heap {
            range,
            fd,
            secret,
            free: Mutex::new(free),
            withdrawn: Mutex::default(),
            withdraws: AtomicBool::new(false),
        })
    }

    /// What others must know.
    pub(crate) fn facts(&self) -> Facts {
        Facts {
            base: self.range.memory.base().addr() as u64,
            fd: self.fd.as_raw_fd() as u64,
            bytes: self.range.memory.len() as u64,
            secret: self.secret,
        }
    }

    /// Whether a range of addresses lies in the heap, and so is what others see there.
    pub(crate) fn holds(&self, start: *const u8, bytes: usize) -> bool {
        let at = start.addr().wrapping_sub(self.range.memory.base().addr());
        self.spans(start, bytes)
            && !(self.withdraws.load(Ordering::Acquire) && self.lacks(at..at + bytes))
    }

    /// Whether a range of addresses is the heap's, whatever has become of it.
    pub(crate) fn spans(&self, start: *const u8, bytes: usize) -> bool {
        let at = start.addr().wrapping_sub(self.range.memory.base().addr());
        at < self.range.memory.len() && bytes <= self.range.memory.len() - at
    }

    /// Whether any of a part was withdrawn.
    fn lacks(&self, part: Span<usize>) -> bool {
        let withdrawn = lock(&self.withdrawn);
        let before = withdrawn.range(..part.end).next_back();
        before.is_some_and(|(_, &end)| end > part.start)
    }

    /// Puts private memory in the place of the whole pages of a buffer, into which another process may
    /// still write: nothing of that reaches the program from here on. The buffer keeps its content, as far
    /// as there is memory for it; of a part that is private already, nothing changes.
    ///
    /// Only the one that has the buffer may ask for it, as what another thread writes meanwhile may be lost.
    pub(crate) fn withdraw(&self, start: *const u8, bytes: usize) -> Result<()> {
        let pages = whole_pages(start.addr() as u64, bytes);
        let at = start.addr() - self.range.memory.base().addr();
        let part = at + pages.start..at + pages.end;
        if part.is_empty() {
            return Ok(());
        }
        let memory = &self.range.memory;
        // Under the lock: who asks meanwhile whether it is shared waits for the answer.
        let mut withdrawn = lock(&self.withdrawn);
        self.withdraws.store(true, Ordering::Release);
        for part in without(&withdrawn, part) {
            memory
                .make_private(part.clone(), true)
                .or_else(|_| memory.make_private(part.clone(), false))
                .map_err(|e| Error::system("replacing shared memory by private memory", e))?;
            withdrawn.insert(part.start, part.end);
        }
        Ok(())
    }

    fn alloc(&self, bytes: usize) -> Result<Option<*mut u8>> {
        let Some(len) = bytes.checked_next_multiple_of(PAGE) else {
            return Ok(None);
        };
        let align = if len >= HUGE { HUGE } else { PAGE };
        if len > self.range.memory.len() {
            return Ok(None);
        }
        let Some(at) = lock(&self.free).take(len, align) else {
            return Ok(None);
        };
        // Somebody may have written to it after it was freed: it has to be zeros.
        let made = memory::release(self.fd.as_fd(), at, len)
            .and_then(|()| memory::allocate(self.fd.as_fd(), at, len));
        let lost = made.as_ref().is_err_and(is_lost);
        let made = made
            .map_err(|e| Error::system(format_args!("{bytes} bytes of memory can't be had"), e))
            .and_then(|()| self.range.use_up_to(at + len));
        if let Err(error) = made {
            let _ = memory::release(self.fd.as_fd(), at, len);
            lock(&self.free).give(at, len);
            if lost {
                log::warn!(
                    "the program has closed a descriptor of flagos-comm's: {error}; ordinary memory instead"
                );
                return Ok(None);
            }
            return Err(error);
        }
        // Others learn of it before they hear of anything in it.
        let end = (at + len) as u64;
        self.range.end().fetch_max(end, Ordering::AcqRel);
        self.range.memory.advise(at, len, libc::MADV_DODUMP);
        Ok(Some(self.range.memory.base().wrapping_add(at)))
    }

    fn free(&self, memory: *mut u8, bytes: usize) -> Result<()> {
        let at = memory.addr() - self.range.memory.base().addr();
        let all = at..at + bytes.next_multiple_of(PAGE);
        let shared = {
            let withdrawn = lock(&self.withdrawn);
            without(&withdrawn, all.clone())
        };
        let mut released = Ok(());
        for part in &shared {
            released = released.and(self.free_shared(part.start, part.len()));
        }
        // What lies between them was withdrawn: its addresses are not given again.
        let starts = std::iter::once(all.start).chain(shared.iter().map(|part| part.end));
        let ends = shared.iter().map(|part| part.start).chain([all.end]);
        for (start, end) in starts.zip(ends).filter(|(start, end)| start < end) {
            // What was written to the shared pages, which nobody needs.
            let _ = memory::release(self.fd.as_fd(), start, end - start);
            released = released.and(self.range.memory.drop_private(start..end));
        }
        released.map_err(|e| Error::system("giving shared memory back", e))
    }

    fn free_shared(&self, at: usize, len: usize) -> std::io::Result<()> {
        self.range.memory.advise(at, len, libc::MADV_DONTDUMP);
        let released = memory::release(self.fd.as_fd(), at, len).or_else(|error| {
            if is_lost(&error) {
                // The mapping is still the heap's.
                // SAFETY: the part is being freed, which its user did as its last use, and others read in it only
                // during an operation on it.
                unsafe { self.range.memory.discard(at, len) };
                return Ok(());
            }
            Err(error)
        });
        lock(&self.free).give(at, len);
        released
    }
}

/// What of `part` is in none of `taken`, which are apart.
fn without(taken: &BTreeMap<usize, usize>, part: Span<usize>) -> Vec<Span<usize>> {
    let mut left = Vec::new();
    let mut at = part.start;
    let before = taken.range(..part.start).next_back();
    for (&start, &end) in before.into_iter().chain(taken.range(part.start..part.end)) {
        if start > at {
            left.push(at..start);
        }
        at = at.max(end);
    }
    if at < part.end {
        left.push(at..part.end);
    }
    left
}

/// Whether a call failed because the heap's descriptor is not the heap's any more.
fn is_lost(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBADF)
}

static OWN: PerProcess<Result<Heap>> = PerProcess::new();

/// The heap of this process, if it has allocated from it.
pub(crate) fn own() -> Option<&'static Heap> {
    OWN.get()?.as_ref().ok()
}

/// Memory of zeros from the heap; `None` if the heap can't be had or is too small.
pub(crate) fn alloc(bytes: usize) -> Result<Option<*mut u8>> {
    match OWN.get_or_init(Heap::new) {
        Ok(heap) => heap.alloc(bytes),
        Err(error) => {
            log::info!("no memory that other processes can use in place: {error}");
            Ok(None)
        }
    }
}

/// Frees memory of [`alloc`] of that size.
pub(crate) fn free(memory: *mut u8, bytes: usize) -> Result<()> {
    match own() {
        Some(heap) => heap.free(memory, bytes),
        None => Err(Error::internal("memory of a heap that is not there")),
    }
}

/// The heap of another process, mapped here.
#[derive(Debug)]
pub(crate) struct PeerHeap {
    range: Range,
    base: u64,
}

impl PeerHeap {
    /// Where something that has an address in the other process, and was announced by it, lies here; `None` if
    /// the kernel does not let this process use it.
    pub(crate) fn here(&self, address: u64) -> Option<*mut u8> {
        let end = self.range.end().load(Ordering::Acquire);
        let end = (end as usize).min(self.range.memory.len());
        if let Err(error) = self.range.use_up_to(end) {
            log::warn!("{error}");
            return None;
        }
        let at = address.wrapping_sub(self.base) as usize;
        Some(self.range.memory.base().wrapping_add(at))
    }
}

/// Heaps of others by their secrets.
type Mapped = Mutex<HashMap<u64, Weak<PeerHeap>>>;

/// Maps the heap of another process; the one mapping serves all communicators and goes with the last.
pub(crate) fn of_process(pid: u32, facts: Facts) -> Result<Arc<PeerHeap>> {
    static MAPPED: PerProcess<Mapped> = PerProcess::new();
    let mut mapped = lock(MAPPED.get_or_init(Mutex::default));
    if let Some(heap) = mapped.get(&facts.secret).and_then(Weak::upgrade) {
        return Ok(heap);
    }
    let wrong = || {
        Error::new(
            Code::SystemError,
            format!(
                "descriptor {} of process {pid} is not the heap that was announced",
                facts.fd
            ),
        )
    };
    let len = facts.bytes as usize;
    let range = Segment::open_of_process(pid, facts.fd, len)?.ok_or_else(wrong)?;
    let range = Range::new(range)?;
    // SAFETY: the range has a first page; the secret was written before it was announced, and what else
    // lies there is any number.
    let found = unsafe { (&raw const (*range.start()).secret).read_volatile() };
    if found != facts.secret {
        return Err(wrong());
    }
    let heap = Arc::new(PeerHeap {
        range,
        base: facts.base,
    });
    mapped.retain(|_, heap| heap.strong_count() > 0);
    mapped.insert(facts.secret, Arc::downgrade(&heap));
    Ok(heap)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of the heap that have pages.
    fn resident(heap: &Heap) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let file = std::fs::File::from(heap.fd.try_clone().unwrap());
        file.metadata().unwrap().blocks() * 512
    }

    fn bytes(at: *mut u8, len: usize) -> Vec<u8> {
        // SAFETY: callers ask for what they have allocated.
        (0..len).map(|i| unsafe { at.add(i).read() }).collect()
    }

    #[test]
    fn parts_are_found_split_and_joined() {
        let mut free = Free(BTreeMap::from([(PAGE, 100 * PAGE)]));
        assert_eq!(free.take(8 * PAGE, 16 * PAGE), Some(16 * PAGE));
        assert_eq!(free.take(15 * PAGE, PAGE), Some(PAGE));
        assert_eq!(free.take(78 * PAGE, PAGE), None);
        assert_eq!(free.take(77 * PAGE, PAGE), Some(24 * PAGE));
        assert!(free.0.is_empty());
        for (at, len) in [(PAGE, 15), (24 * PAGE, 77), (16 * PAGE, 8)] {
            free.give(at, len * PAGE);
        }
        assert_eq!(free.0, BTreeMap::from([(PAGE, 100 * PAGE)]));
    }

    #[test]
    fn memory_has_pages_while_it_is_allocated_and_is_zeros_when_it_is_given_again() {
        let heap = Heap::new().unwrap();
        let before = resident(&heap);
        let memory = heap.alloc(3 * HUGE + 1).unwrap().unwrap();
        assert!(heap.holds(memory, 3 * HUGE + 1));
        assert!(!heap.holds(memory, usize::MAX));
        assert!(!heap.holds((&raw const heap).cast(), 1));
        assert!(resident(&heap) >= before + 3 * HUGE as u64);
        // SAFETY: allocated above.
        unsafe { memory.write_bytes(7, 3 * HUGE) };
        heap.free(memory, 3 * HUGE + 1).unwrap();
        assert_eq!(resident(&heap), before);
        // A stray write after the end.
        // SAFETY: the range stays mapped, and nobody else has it.
        unsafe { memory.write(9) };
        let again = heap.alloc(HUGE).unwrap().unwrap();
        assert_eq!(again, memory);
        assert_eq!(bytes(again, 64), [0; 64]);
        assert!(heap.alloc(usize::MAX).unwrap().is_none());
        assert!(heap.alloc(heap.range.memory.len()).unwrap().is_none());
    }

    #[test]
    fn a_file_that_got_the_number_of_its_descriptor_is_left_alone() {
        use std::os::unix::fs::FileExt;
        let heap = Heap::new().unwrap();
        let memory = heap.alloc(HUGE).unwrap().unwrap();
        // SAFETY: allocated above.
        unsafe { memory.write(3) };
        let path = std::env::temp_dir().join(format!("flagos-heap-{}", std::process::id()));
        let file = std::fs::File::options()
            .create_new(true)
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        std::fs::remove_file(&path).unwrap();
        let content = [b'V'; 8192];
        file.write_all_at(&content, 0).unwrap();
        // SAFETY: both are open; the heap's number is the file's from here on.
        assert!(unsafe { libc::dup2(file.as_raw_fd(), heap.fd.as_raw_fd()) } >= 0);
        assert!(heap.alloc(HUGE).unwrap().is_none());
        heap.free(memory, HUGE).unwrap();
        // SAFETY: the range stays mapped.
        assert_eq!(unsafe { memory.read() }, 0);
        let mut found = [0; 8192];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_eq!((found, file.metadata().unwrap().len()), (content, 8192));
    }

    #[test]
    fn whole_pages_are_those_that_hold_nothing_else() {
        let page = PAGE as u64;
        assert_eq!(whole_pages(3 * page, 2 * PAGE), 0..2 * PAGE);
        assert_eq!(whole_pages(3 * page + 1, 2 * PAGE), PAGE - 1..2 * PAGE - 1);
        assert_eq!(whole_pages(3 * page - 5, 2 * PAGE + 9), 5..2 * PAGE + 5);
        for (address, bytes) in [
            (page + 1, PAGE),
            (page, PAGE - 1),
            (page + 7, 100),
            (page, 0),
        ] {
            assert!(whole_pages(address, bytes).is_empty());
        }
        let taken = BTreeMap::from([(2, 4), (6, 9)]);
        let left = |start, end| -> Vec<(usize, usize)> {
            let left = without(&taken, start..end);
            left.into_iter()
                .map(|part| (part.start, part.end))
                .collect()
        };
        assert_eq!(left(0, 10), [(0, 2), (4, 6), (9, 10)]);
        assert_eq!(left(3, 7), [(4, 6)]);
        assert_eq!(left(4, 6), [(4, 6)]);
        assert!(left(2, 4).is_empty() && left(7, 8).is_empty());
    }

    #[test]
    fn what_is_withdrawn_is_private_and_is_never_given_again() {
        let heap = Heap::new().unwrap();
        let memory = heap.alloc(10 * PAGE).unwrap().unwrap();
        let others = of_process(std::process::id(), heap.facts()).unwrap();
        let others = others.here(memory.addr() as u64).unwrap();
        let set = |at: *mut u8, value| {
            // SAFETY: allocated above, and the same in another mapping of the heap.
            unsafe { at.write_bytes(value, 10 * PAGE) }
        };
        let pages = |at: *mut u8| -> Vec<u8> {
            // SAFETY: as above.
            (0..10)
                .map(|page| unsafe { at.add(page * PAGE + 200).read_volatile() })
                .collect()
        };
        set(memory, 1);
        // The first and the last page that it touches hold something else, too.
        let buffer = memory.wrapping_add(100);
        heap.withdraw(buffer, 7 * PAGE).unwrap();
        assert_eq!(pages(memory), [1; 10]);
        assert!(heap.holds(memory, PAGE) && heap.holds(memory.wrapping_add(7 * PAGE), 3 * PAGE));
        assert!(!heap.holds(memory, PAGE + 1) && !heap.holds(buffer, 7 * PAGE));
        assert!(heap.spans(buffer, 7 * PAGE));
        set(others, 9);
        assert_eq!(pages(memory), [9, 1, 1, 1, 1, 1, 1, 9, 9, 9]);
        set(memory, 5);
        assert_eq!(pages(others), [5, 9, 9, 9, 9, 9, 9, 5, 5, 5]);
        // Once more, with some that are private already.
        heap.withdraw(memory.wrapping_add(3 * PAGE), 6 * PAGE)
            .unwrap();
        assert_eq!(pages(memory), [5; 10]);
        set(others, 9);
        assert_eq!(pages(memory), [9, 5, 5, 5, 5, 5, 5, 5, 5, 9]);
        heap.free(memory, 10 * PAGE).unwrap();
        let given: Vec<usize> = (0..3)
            .map(|_| heap.alloc(PAGE).unwrap().unwrap().addr() - memory.addr())
            .collect();
        assert_eq!(given, [0, 9 * PAGE, 10 * PAGE]);
        assert!(heap.withdraw(buffer, 10).is_ok());
    }

    #[test]
    fn others_map_it_once_and_only_if_it_is_the_one_announced() {
        let heap = Heap::new().unwrap();
        let memory = heap.alloc(PAGE).unwrap().unwrap();
        // SAFETY: allocated above.
        unsafe { memory.write(3) };
        let (pid, facts) = (std::process::id(), heap.facts());
        let one = of_process(pid, facts).unwrap();
        let two = of_process(pid, facts).unwrap();
        assert!(Arc::ptr_eq(&one, &two));
        let here = one.here(memory.addr() as u64).unwrap();
        let beyond = |at: *mut u8| !memory::readable(at.wrapping_add(64 * PAGE).cast()).unwrap();
        assert!(beyond(memory) && beyond(here));
        assert_ne!(here, memory);
        assert_eq!(bytes(here, 1), [3]);
        // The owner may give the memory back meanwhile.
        heap.free(memory, PAGE).unwrap();
        assert_eq!(bytes(here, 1), [0]);
        let mut wrong = facts;
        wrong.secret += 1;
        let error = of_process(pid, wrong).unwrap_err();
        assert!(error.text().contains("not the heap"), "{error}");
        let gone = Arc::downgrade(&one);
        drop((one, two));
        assert!(gone.upgrade().is_none());
    }
}
