//! Memory that several processes of one host share, without a name that could be left behind.

use crate::error::{Code, Error, Result};
use crate::sys::net::above_standard;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::ptr::NonNull;

/// Whether this process can read the byte at an address. Any address may be asked for: the kernel
/// reads it, into a pipe, and says so if it can't.
pub(crate) fn readable(address: *const std::ffi::c_void) -> Result<bool> {
    let fail = |error| Error::system("asking whether memory can be read", error);
    let mut ends = [-1; 2];
    // SAFETY: the two descriptors go to a live local.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
        return Err(fail(io::Error::last_os_error()));
    }
    // SAFETY: pipe2 has just returned these descriptors, and nobody else owns them.
    let [_reader, writer] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    // Nobody's stderr: another thread may write to that.
    let writer = above_standard(writer).map_err(fail)?;
    loop {
        // SAFETY: the kernel checks the address itself: what can't be read is an error.
        let written = unsafe { libc::write(writer.as_raw_fd(), address, 1) };
        if written == 1 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EFAULT) => return Ok(false),
            Some(libc::EINTR) => {}
            _ => return Err(fail(error)),
        }
    }
}

/// The rights of memory that is in use.
const USABLE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// A mapping of shared memory. It starts as zeros and is unmapped on drop; the memory itself lives
/// until the last mapping and the last descriptor are gone.
#[derive(Debug)]
pub(crate) struct Segment {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a Segment is only an address range that stays mapped as long as the value lives. It hands
// out raw pointers; whoever dereferences them answers for synchronisation.
unsafe impl Send for Segment {}
// SAFETY: as above; no method changes the value through a shared reference.
unsafe impl Sync for Segment {}

impl Segment {
    /// Makes `len` bytes of shared memory. Every page is allocated now, so that too little memory is
    /// an error here and not a SIGBUS later, and the size is sealed, so that no holder of the
    /// descriptor can take the pages away again.
    pub(crate) fn create(len: usize) -> Result<(Segment, OwnedFd)> {
        let fail = |what: &str, error: io::Error| {
            Error::system(format_args!("{what} {len} bytes of shared memory"), error)
        };
        let fd = memfd().map_err(|error| fail("creating", error))?;
        within_file_limit(len)?;
        let size = libc::off_t::try_from(len).map_err(|_| {
            Error::invalid_argument(format!("{len} bytes of shared memory are too many"))
        })?;
        loop {
            // SAFETY: the descriptor is open; the call touches no memory of ours.
            match unsafe { libc::posix_fallocate(fd.as_raw_fd(), 0, size) } {
                0 => break,
                libc::EINTR => continue,
                code => return Err(fail("allocating", io::Error::from_raw_os_error(code))),
            }
        }
        seal(fd.as_fd()).map_err(|error| fail("sealing", error))?;
        let segment = Segment::map(fd.as_fd(), len, USABLE)?;
        Ok((segment, fd))
    }

    /// Makes a range of shared memory in which nothing is there yet: [`allocate`] gives it pages, a part
    /// at a time, and [`release`] takes them away. The size is sealed. It costs addresses only, which
    /// no core dump holds until they are allocated, and which nobody can touch before
    /// [`Segment::make_usable`]: a tool that looks through all readable memory would fill it with pages.
    pub(crate) fn create_sparse(len: usize) -> Result<(Segment, OwnedFd)> {
        let fail = |error: io::Error| {
            Error::system(
                format_args!("making a range of {len} bytes of shared memory"),
                error,
            )
        };
        within_file_limit(len)?;
        let fd = memfd().map_err(fail)?;
        let size = libc::off_t::try_from(len).map_err(|_| {
            Error::invalid_argument(format!("{len} bytes of shared memory are too many"))
        })?;
        // SAFETY: the descriptor is open; the call touches no memory of ours.
        if unsafe { libc::ftruncate(fd.as_raw_fd(), size) } != 0 {
            return Err(fail(io::Error::last_os_error()));
        }
        seal(fd.as_fd()).map_err(fail)?;
        let segment = Segment::map(fd.as_fd(), len, libc::PROT_NONE)?;
        // A dump of a page that is not there would make it.
        segment.advise(0, len, libc::MADV_DONTDUMP);
        Ok((segment, fd))
    }

    /// The same, all of which is usable at once.
    pub(crate) fn create_usable_sparse(len: usize) -> Result<(Segment, OwnedFd)> {
        let (segment, fd) = Segment::create_sparse(len)?;
        let usable = segment.make_usable(0..len);
        usable.map_err(|e| Error::system("making shared memory usable", e))?;
        Ok((segment, fd))
    }

    /// Says something about a part of the mapping to a kernel that may not want to know.
    pub(crate) fn advise(&self, at: usize, len: usize, what: libc::c_int) {
        debug_assert!(at + len <= self.len);
        debug_assert!(what != libc::MADV_REMOVE && what != libc::MADV_DONTNEED);
        // SAFETY: the range is inside this mapping, and the advice changes no content.
        unsafe { libc::madvise(self.base.as_ptr().add(at).cast(), len, what) };
    }

    /// Gives the memory behind a part of the mapping back to the system, for all who share it: zeros are there then.
    ///
    /// # Safety
    /// Nobody reads or writes the part, here or where else it is mapped.
    pub(crate) unsafe fn discard(&self, at: usize, len: usize) {
        debug_assert!(at + len <= self.len);
        // SAFETY: the range is inside this mapping; the caller's promise.
        unsafe { libc::madvise(self.base.as_ptr().add(at).cast(), len, libc::MADV_REMOVE) };
    }

    /// Lets this process read and write a part, both ends of which are multiples of a page.
    pub(crate) fn make_usable(&self, part: std::ops::Range<usize>) -> io::Result<()> {
        if part.start > part.end || part.end > self.len {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: the part lies in this mapping, of which nothing but its rights changes.
        let changed = unsafe {
            let start = self.base.as_ptr().add(part.start);
            libc::mprotect(start.cast(), part.len(), USABLE)
        };
        match changed {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Replaces a part by private memory, for this process alone: others that have the memory mapped keep
    /// what was there. `content`: it looks the same afterwards; else it may be zeros. What was written to
    /// the part meanwhile may be lost.
    ///
    /// No thread finds a hole there: the kernel puts one mapping in the other's place. Both ends are
    /// multiples of a page.
    pub(crate) fn make_private(
        &self,
        part: std::ops::Range<usize>,
        content: bool,
    ) -> io::Result<()> {
        if part.start >= part.end || part.end > self.len {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let len = part.len();
        // SAFETY: the part lies in this mapping.
        let place = unsafe { self.base.as_ptr().add(part.start) };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let mut copy = std::ptr::null_mut();
        if content {
            // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing of ours.
            copy = unsafe { libc::mmap(std::ptr::null_mut(), len, USABLE, flags, -1, 0) };
            if copy == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: both are `len` bytes long and apart. Another process may write to the part at the same
            // time; what is copied of that is any bytes.
            unsafe { std::ptr::copy_nonoverlapping(place.cast_const(), copy.cast(), len) };
        }
        // Not the copy itself with mremap: libraries that follow a program's mappings put a function of theirs in
        // the place of that (UCX's does not know its last argument), and have to hear that these pages go.
        // SAFETY: the part lies in this mapping, which the caller wants replaced; its addresses stay mapped,
        // with the same rights.
        let made = unsafe { libc::mmap(place.cast(), len, USABLE, flags | libc::MAP_FIXED, -1, 0) };
        let done = match made == place.cast() {
            true => Ok(()),
            false => Err(io::Error::last_os_error()),
        };
        if content {
            // SAFETY: the mapping made above, which nobody knows; what is in the part's place is as long.
            unsafe {
                if done.is_ok() {
                    std::ptr::copy_nonoverlapping(copy.cast_const().cast(), place, len);
                }
                libc::munmap(copy, len);
            }
        }
        done
    }

    /// Takes the memory of a part away that [`Segment::make_private`] has replaced; its addresses stay
    /// taken, and nobody can touch them.
    pub(crate) fn drop_private(&self, part: std::ops::Range<usize>) -> io::Result<()> {
        if part.start >= part.end || part.end > self.len {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the part lies in this mapping; the caller gives up what is there.
        let made = unsafe {
            let place = self.base.as_ptr().add(part.start);
            let flags = flags | libc::MAP_FIXED;
            libc::mmap(place.cast(), part.len(), libc::PROT_NONE, flags, -1, 0)
        };
        match made == libc::MAP_FAILED {
            true => Err(io::Error::last_os_error()),
            false => Ok(()),
        }
    }

    /// Maps memory that another rank made with [`Segment::create`] and passed to us. The descriptor
    /// is not needed afterwards.
    pub(crate) fn open(fd: BorrowedFd<'_>, len: usize) -> Result<Segment> {
        // SAFETY: all-zero bytes are a valid stat.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open and the out-pointer is a live stat of ours.
        if unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) } != 0 {
            return Err(Error::system(
                "looking at a shared-memory descriptor",
                io::Error::last_os_error(),
            ));
        }
        if u64::try_from(stat.st_size).ok() != Some(len as u64) {
            return Err(Error::internal(format!(
                "the shared memory has {} bytes instead of {len}: do all ranks run the same version?",
                stat.st_size
            )));
        }
        Segment::map(fd, len, USABLE)
    }

    fn map(fd: BorrowedFd<'_>, len: usize, rights: libc::c_int) -> Result<Segment> {
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing of ours, and
        // the descriptor is open.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                rights,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            let what = format_args!("mapping {len} bytes of shared memory").to_string();
            return Err(Error::system(what, io::Error::last_os_error()));
        }
        let base = NonNull::new(base.cast::<u8>())
            .ok_or_else(|| Error::internal("the kernel mapped shared memory at address 0"))?;
        Ok(Segment { base, len })
    }

    /// Maps the memory of [`Segment::create_sparse`] that another process holds open under a number.
    /// `None` if that number is something else there: nothing else is opened. Nothing of it can be touched
    /// before [`Segment::make_usable`].
    pub(crate) fn open_of_process(pid: u32, number: u64, len: usize) -> Result<Option<Segment>> {
        let path = format!("/proc/{pid}/fd/{number}");
        let fail = |error| Error::system(format_args!("opening {path}"), error);
        let target = std::fs::read_link(&path).map_err(fail)?;
        if !target
            .as_os_str()
            .as_bytes()
            .starts_with(b"/memfd:flagos-comm")
        {
            return Ok(None);
        }
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(&path)
            .map_err(fail)?;
        if file.metadata().map_err(fail)?.len() != len as u64 {
            return Ok(None);
        }
        let segment = Segment::map(file.as_fd(), len, libc::PROT_NONE)?;
        segment.advise(0, len, libc::MADV_DONTDUMP);
        Ok(Some(segment))
    }

    /// The first byte; aligned to a page.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `map` made; pointers into it are used only by those who
        // keep the Segment alive.
        unsafe {
            libc::munmap(self.base.as_ptr().cast(), self.len);
        }
    }
}

fn memfd() -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a NUL-terminated literal.
    let fd = unsafe { libc::memfd_create(c"flagos-comm".as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: memfd_create has just returned this descriptor, and nobody else owns it.
    above_standard(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Nobody changes the size any more.
fn seal(fd: BorrowedFd<'_>) -> io::Result<()> {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: the descriptor is open; the call takes an integer and touches no memory of ours.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives a part of a sparse range its pages, so that too little memory is an error here.
pub(crate) fn allocate(fd: BorrowedFd<'_>, at: usize, len: usize) -> io::Result<()> {
    fallocate(fd, 0, at, len)
}

/// Takes the pages of a part of a sparse range away; it reads as zeros afterwards.
pub(crate) fn release(fd: BorrowedFd<'_>, at: usize, len: usize) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    fallocate(fd, mode, at, len)
}

fn fallocate(fd: BorrowedFd<'_>, mode: libc::c_int, at: usize, len: usize) -> io::Result<()> {
    // The program may have closed the descriptor, and have a file of its own under that number.
    // SAFETY: the call takes an integer and touches no memory of ours.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 || seals & libc::F_SEAL_GROW == 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    let invalid = |_| io::Error::from_raw_os_error(libc::EINVAL);
    let at = libc::off_t::try_from(at).map_err(invalid)?;
    let len = libc::off_t::try_from(len).map_err(invalid)?;
    loop {
        // SAFETY: the descriptor is open; the call touches no memory of ours.
        if unsafe { libc::fallocate(fd.as_raw_fd(), mode, at, len) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Copies memory of another process, from an address there.
///
/// # Safety
/// `to` is writable for `len` bytes.
pub(crate) unsafe fn read_process(pid: u32, from: u64, to: *mut u8, len: usize) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        let local = libc::iovec {
            iov_base: to.wrapping_add(done).cast(),
            iov_len: len - done,
        };
        let remote = libc::iovec {
            iov_base: std::ptr::without_provenance_mut((from as usize).wrapping_add(done)),
            iov_len: len - done,
        };
        // SAFETY: the local range is what is left of the caller's; the kernel checks the remote one.
        let got = unsafe {
            libc::process_vm_readv(
                pid as libc::pid_t,
                &raw const local,
                1,
                &raw const remote,
                1,
                0,
            )
        };
        match usize::try_from(got) {
            // Only a length of 0 would read nothing.
            Ok(0) => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
            Ok(got) => done += got,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

/// Bytes of a page, as the kernel maps them.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: the call takes a number and touches no memory of ours.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(0)
}

/// Bytes of memory that this machine has, swap included; 0 if the kernel does not say.
pub(crate) fn machine_bytes() -> usize {
    // SAFETY: all-zero bytes are a valid sysinfo.
    let mut info: libc::sysinfo = unsafe { std::mem::zeroed() };
    // SAFETY: the out-pointer is a live sysinfo of ours.
    if unsafe { libc::sysinfo(&raw mut info) } != 0 {
        return 0;
    }
    let units = (info.totalram as usize).saturating_add(info.totalswap as usize);
    units.saturating_mul(info.mem_unit as usize)
}

/// A limit on the size of files holds for shared memory too, and exceeding it is a signal that ends
/// the process.
fn within_file_limit(len: usize) -> Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: the answer goes to a live local.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0;
    if known && limit.rlim_cur != libc::RLIM_INFINITY && limit.rlim_cur < len as libc::rlim_t {
        return Err(Error::new(
            Code::SystemError,
            format!(
                "{len} bytes of shared memory are needed, but the limit on the size of files, which \
                 holds for it, is {} bytes (ulimit -f)",
                limit.rlim_cur
            ),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_read_is_readable() {
        let on_stack = 7u8;
        assert!(readable((&raw const on_stack).cast()).unwrap());
        assert!(readable(b"constant".as_ptr().cast()).unwrap());
        assert!(!readable(std::ptr::null()).unwrap());
        assert!(!readable(std::ptr::without_provenance(usize::MAX)).unwrap());
        let page = |rights| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping of the kernel's choice replaces nothing.
            let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, rights, flags, -1, 0) };
            assert_ne!(page, libc::MAP_FAILED);
            page
        };
        for (rights, expected) in [
            (libc::PROT_NONE, false),
            (libc::PROT_READ, true),
            (libc::PROT_READ | libc::PROT_WRITE, true),
        ] {
            let page = page(rights);
            assert_eq!(readable(page).unwrap(), expected);
            // SAFETY: the mapping made above, which nobody else knows.
            unsafe { libc::munmap(page, 4096) };
        }
    }

    #[test]
    fn two_mappings_show_the_same_bytes() {
        let (a, fd) = Segment::create(8192).unwrap();
        let b = Segment::open(fd.as_fd(), 8192).unwrap();
        drop(fd);
        assert_ne!(a.base(), b.base());
        // SAFETY: both mappings are 8192 bytes long and only this thread knows them.
        unsafe {
            assert_eq!(b.base().add(8191).read(), 0);
            a.base().add(8191).write(7);
            assert_eq!(b.base().add(8191).read(), 7);
        }
        drop(a);
        // SAFETY: as above; `b` is still mapped.
        assert_eq!(unsafe { b.base().add(8191).read() }, 7);
    }

    #[test]
    fn the_size_is_checked_and_sealed() {
        let (_segment, fd) = Segment::create(4096).unwrap();
        let error = Segment::open(fd.as_fd(), 8192).unwrap_err();
        assert!(
            error.text().contains("4096 bytes instead of 8192"),
            "{error}"
        );
        // SAFETY: the descriptor is open; the call touches no memory of ours.
        assert_ne!(unsafe { libc::ftruncate(fd.as_raw_fd(), 0) }, 0);
        // SAFETY: as above.
        let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) };
        assert_ne!(flags & libc::FD_CLOEXEC, 0);
    }

    /// Pages that a file really has.
    fn pages(fd: &OwnedFd) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let file = std::fs::File::from(fd.try_clone().unwrap());
        file.metadata().unwrap().blocks() / 8
    }

    #[test]
    fn a_sparse_range_has_the_pages_that_it_was_given() {
        let len = 1 << 30;
        let (range, fd) = Segment::create_sparse(len).unwrap();
        assert_eq!(pages(&fd), 0);
        allocate(fd.as_fd(), 8192, 4 * 4096).unwrap();
        assert_eq!(pages(&fd), 4);
        range.make_usable(8192..16384).unwrap();
        assert!(range.make_usable(0..2 * len).is_err());
        let page = |range: &Segment, at: usize| readable(range.base().wrapping_add(at).cast());
        assert!(page(&range, 8192).unwrap() && !page(&range, 16384).unwrap());
        let at = range.base().wrapping_add(8192);
        // SAFETY: inside the range, which only this thread knows.
        unsafe {
            assert_eq!(at.read(), 0);
            at.write(5);
        }
        let pid = std::process::id();
        let number = fd.as_raw_fd() as u64;
        let twin = Segment::open_of_process(pid, number, len).unwrap().unwrap();
        assert!(!page(&twin, 8192).unwrap());
        twin.make_usable(8192..12288).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { twin.base().add(8192).read() }, 5);
        release(fd.as_fd(), 8192, 4 * 4096).unwrap();
        assert_eq!(pages(&fd), 0);
        // SAFETY: as above.
        assert_eq!(unsafe { twin.base().add(8192).read() }, 0);

        // Another size, another kind of file, no file.
        assert!(
            Segment::open_of_process(pid, number, 4096)
                .unwrap()
                .is_none()
        );
        let null = std::fs::File::open("/dev/null").unwrap();
        let other = Segment::open_of_process(pid, null.as_raw_fd() as u64, len).unwrap();
        assert!(other.is_none());
        let error = Segment::open_of_process(pid, 999_999, len).unwrap_err();
        assert!(error.text().contains("/proc/"), "{error}");
    }

    #[test]
    fn memory_of_a_process_is_read_at_its_address() {
        let from: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        let mut to = vec![0u8; from.len()];
        let pid = std::process::id();
        let address = from.as_ptr().addr() as u64;
        // SAFETY: the vector has that many bytes.
        unsafe { read_process(pid, address, to.as_mut_ptr(), from.len()).unwrap() };
        assert_eq!(from, to);
        // SAFETY: as above.
        let error = unsafe { read_process(pid, 8, to.as_mut_ptr(), 1) }.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    }

    #[test]
    fn impossible_sizes_are_errors() {
        let error = Segment::create(usize::MAX).unwrap_err();
        assert_eq!(error.code(), crate::Code::InvalidArgument, "{error}");
        let error = Segment::create(0).unwrap_err();
        assert_eq!(error.code(), crate::Code::SystemError, "{error}");
    }
}
