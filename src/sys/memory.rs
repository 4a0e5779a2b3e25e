//! Memory that several processes of one host share, without a name that could be left behind.

use crate::error::{Code, Error, Result};
use crate::sys::net::above_standard;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
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
        let fd = Segment::descriptor(len)?;
        allocate(fd.as_fd(), 0, len)?;
        Segment::seal(fd.as_fd(), len)?;
        let segment = Segment::map(fd.as_fd(), len)?;
        Ok((segment, fd))
    }

    /// Makes `len` bytes of shared memory that has no pages yet. Nobody may touch a part before
    /// [`allocate`] gave it pages.
    pub(crate) fn create_empty(len: usize) -> Result<(Segment, OwnedFd)> {
        let fd = Segment::descriptor(len)?;
        let size = size(len)?;
        // SAFETY: the descriptor is open; the call touches no memory of ours.
        if unsafe { libc::ftruncate(fd.as_raw_fd(), size) } != 0 {
            return Err(failed("making", len, io::Error::last_os_error()));
        }
        Segment::seal(fd.as_fd(), len)?;
        let segment = Segment::map(fd.as_fd(), len)?;
        Ok((segment, fd))
    }

    /// A new descriptor for shared memory, without a size.
    fn descriptor(len: usize) -> Result<OwnedFd> {
        // SAFETY: the name is a NUL-terminated literal.
        let fd = unsafe {
            libc::memfd_create(
                c"flagos-comm".as_ptr(),
                libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING,
            )
        };
        if fd < 0 {
            return Err(failed("creating", len, io::Error::last_os_error()));
        }
        // SAFETY: memfd_create has just returned this descriptor, and nobody else owns it.
        let fd = above_standard(unsafe { OwnedFd::from_raw_fd(fd) })
            .map_err(|error| failed("creating", len, error))?;
        within_file_limit(len)?;
        Ok(fd)
    }

    fn seal(fd: BorrowedFd<'_>, len: usize) -> Result<()> {
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: the descriptor is open; the call takes an integer and touches no memory of ours.
        if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(failed("sealing", len, io::Error::last_os_error()));
        }
        Ok(())
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
        Segment::map(fd, len)
    }

    fn map(fd: BorrowedFd<'_>, len: usize) -> Result<Segment> {
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing of ours, and
        // the descriptor is open.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
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

fn failed(what: &str, len: usize, error: io::Error) -> Error {
    Error::system(format_args!("{what} {len} bytes of shared memory"), error)
}

fn size(len: usize) -> Result<libc::off_t> {
    libc::off_t::try_from(len)
        .map_err(|_| Error::invalid_argument(format!("{len} bytes of shared memory are too many")))
}

/// Gives a part of shared memory its pages, so that too little memory is an error here and not a SIGBUS
/// later.
pub(crate) fn allocate(fd: BorrowedFd<'_>, from: usize, len: usize) -> Result<()> {
    let (offset, bytes) = (size(from)?, size(len)?);
    loop {
        // SAFETY: the descriptor is open; the call touches no memory of ours.
        match unsafe { libc::posix_fallocate(fd.as_raw_fd(), offset, bytes) } {
            0 => return Ok(()),
            libc::EINTR => continue,
            code => {
                let error = io::Error::from_raw_os_error(code);
                return Err(failed("allocating", len, error));
            }
        }
    }
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

    #[test]
    fn impossible_sizes_are_errors() {
        let error = Segment::create(usize::MAX).unwrap_err();
        assert_eq!(error.code(), crate::Code::InvalidArgument, "{error}");
        let error = Segment::create(0).unwrap_err();
        assert_eq!(error.code(), crate::Code::SystemError, "{error}");
    }
}
