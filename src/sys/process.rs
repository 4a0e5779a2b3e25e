//! Facts about processes and this machine: who is alive, where we run.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// A handle on another process that tells when it ends, immune to the reuse of its number.
#[derive(Debug)]
pub(crate) struct ProcessWatch(OwnedFd);

impl ProcessWatch {
    /// Watches `pid`, if it is the process that started at `start_time` (see [`start_time`]).
    /// `None`: that process is gone, or the kernel can't watch it; `gone` tells which.
    pub(crate) fn open(pid: u32, started: u64) -> Option<ProcessWatch> {
        // SAFETY: pidfd_open takes two integers and returns a new descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
        // SAFETY: the kernel has just given us this descriptor (close-on-exec by definition).
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let watch = ProcessWatch(super::net::above_standard(fd).ok()?);
        (start_time(pid) == Some(started)).then_some(watch)
    }

    /// Whether the process has ended (a zombie has).
    pub(crate) fn ended(&self) -> bool {
        super::net::poll_one(self.0.as_raw_fd(), libc::POLLIN, Duration::ZERO)
    }
}

/// Writes to stderr, past the standard library's lock: a forked child may have inherited that in the
/// hands of a thread that it does not have. A closed stderr is nobody's error.
pub(crate) fn write_to_stderr(mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: the pointer and the length are those of a live slice.
        let sent = unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
        match usize::try_from(sent) {
            Ok(sent) => bytes = &bytes[sent.min(bytes.len())..],
            Err(_) if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {
            }
            Err(_) => return,
        }
    }
}

/// When the process started, in clock ticks since boot; `None` if there is no such process.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the command in parentheses and may hold spaces.
    let rest = &stat[stat.rfind(')')? + 1..];
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Identity of this machine's boot, the same in all its containers.
pub(crate) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|s| s.trim().to_owned())
        .unwrap_or_default()
}

/// Identity of a namespace of this process (`pid`, `net`), 0 if unknown.
pub(crate) fn namespace(kind: &str) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(format!("/proc/self/ns/{kind}"))
        .map(|m| m.ino())
        .unwrap_or(0)
}

/// Name of this host.
pub(crate) fn host_name() -> String {
    let mut buffer = [0u8; 256];
    // SAFETY: the buffer is writable for its length, and one byte is kept for the terminator.
    let status = unsafe { libc::gethostname(buffer.as_mut_ptr().cast(), buffer.len() - 1) };
    if status != 0 {
        return String::from("unknown-host");
    }
    let end = buffer.iter().position(|b| *b == 0).unwrap_or(0);
    String::from_utf8_lossy(&buffer[..end]).into_owned()
}

/// Where the numbers of a table of handles start. Random, so that those of another copy of this library
/// in the process, or of another skin, are not taken for ours; small enough to be shifted and to count on.
pub fn first_number() -> usize {
    // Without the kernel's random bytes an address and the clock must do.
    let seed = random().unwrap_or_else(|_| {
        let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        (now.as_nanos() as u64 ^ (&raw const now).addr() as u64).to_le_bytes()
    });
    (u64::from_le_bytes(seed) >> 24) as usize | 1
}

/// Random bytes from the kernel.
pub(crate) fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0u8; N];
    let mut filled = 0;
    while filled < N {
        // SAFETY: the range from `filled` to the end of the array is writable.
        let got = unsafe { libc::getrandom(bytes[filled..].as_mut_ptr().cast(), N - filled, 0) };
        if got < 0 {
            let error = std::io::Error::last_os_error();
            if error.kind() != std::io::ErrorKind::Interrupted {
                return Err(error);
            }
        } else {
            filled += got as usize;
        }
    }
    Ok(bytes)
}
