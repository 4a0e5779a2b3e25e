//! Facts about processes and this machine: who is alive, where we run.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// A handle on another process that tells when it ends, immune to the reuse of its number.
#[derive(Debug)]
pub(crate) struct ProcessWatch(OwnedFd);

impl ProcessWatch {
    /// Watches `pid`, if it is the process that started at `start_time` (see [`start_time`]).
    /// `None`: that process is gone, or the kernel can't watch it; [`has_gone`] tells which.
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

/// Whether the process that started at `started` is known to have gone. Without a descriptor left for a look at
/// it, its number decides, which another process may have got since.
pub(crate) fn has_gone(pid: u32, started: u64) -> bool {
    if let Ok(stat) = std::fs::read_to_string(stat_of(pid)) {
        return start_in(&stat) != Some(started);
    }
    let Ok(pid) = libc::pid_t::try_from(pid) else {
        return false;
    };
    // SAFETY: no signal is sent; the kernel only says whether it could be.
    let answer = unsafe { libc::kill(pid, 0) };
    answer != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

/// When the process started, in clock ticks since boot; `None` if that can't be found out.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    start_in(&std::fs::read_to_string(stat_of(pid)).ok()?)
}

fn stat_of(pid: u32) -> String {
    format!("/proc/{pid}/stat")
}

fn start_in(stat: &str) -> Option<u64> {
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

#[cfg(test)]
mod tests {
    use super::*;

    const CHILD: &str = "FLAGOSCOMM_TEST_NO_DESCRIPTORS";

    fn looks(started: u64) {
        assert!(!has_gone(std::process::id(), started), "this process");
        assert!(has_gone(i32::MAX as u32, started), "nobody");
    }

    /// The process in which no descriptor is left; does nothing unless the test below starts it.
    #[test]
    fn child_without_descriptors() {
        if std::env::var(CHILD).is_err() {
            return;
        }
        let limit = libc::rlimit {
            rlim_cur: 3,
            rlim_max: 3,
        };
        // SAFETY: the struct is read during the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
        let own = std::process::id();
        assert_eq!(start_time(own), None, "there are descriptors");
        assert!(ProcessWatch::open(own, 1).is_none());
        looks(1);
    }

    #[test]
    fn who_can_not_be_looked_at_has_not_gone() {
        looks(start_time(std::process::id()).unwrap());
        let done = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "sys::process::tests::child_without_descriptors",
                "--nocapture",
            ])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
    }
}
