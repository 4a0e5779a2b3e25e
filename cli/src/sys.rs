//! The few system facts that std has no safe call for.

use std::os::fd::AsRawFd;

/// Whether the process at the other end belongs to this process's user.
pub fn same_user(stream: &std::os::unix::net::UnixStream) -> bool {
    let mut peer = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: 0,
    };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the struct is as long as said; the descriptor is open.
    let code = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &mut size,
        )
    };
    code == 0 && peer.uid == user_id()
}

/// The effective user id.
pub fn user_id() -> u32 {
    // SAFETY: no arguments, can't fail.
    unsafe { libc::geteuid() }
}

/// The machine's name.
pub fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}

/// What the user says tells this machine from others, for the library.
pub fn said_machine() -> String {
    std::env::var("FLAGOSCOMM_HOSTID").unwrap_or_default()
}

/// What tells this machine's running kernel and network namespace from any other.
pub fn host_identity() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let net = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    format!("{} {} {}", host_name(), boot.trim(), net.display())
}

/// Whether the loader runs this process in secure mode (set-user-id and the like).
pub fn secure_mode() -> bool {
    // SAFETY: reads the auxiliary vector.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Nanoseconds of the clock that all processes of a machine share.
pub fn shared_clock() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the local.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Size in bytes and free bytes of the file system at a path.
pub fn file_system(path: &std::ffi::CStr) -> Option<(u64, u64)> {
    // SAFETY: zero is a valid statvfs, and the call writes it.
    unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(path.as_ptr(), &mut stat) == 0).then(|| {
            let unit = stat.f_frsize as u64;
            (stat.f_blocks as u64 * unit, stat.f_bavail as u64 * unit)
        })
    }
}

/// A network interface and one of its addresses.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// The address.
    pub address: std::net::IpAddr,
    /// Whether it is up.
    pub up: bool,
}

/// The interfaces that have an address.
pub fn interfaces() -> Vec<Interface> {
    let mut found = Vec::new();
    // SAFETY: getifaddrs gives a list that is valid until freeifaddrs; addresses are read as the
    // type that their family says.
    unsafe {
        let mut list = std::ptr::null_mut();
        if libc::getifaddrs(&mut list) != 0 {
            return found;
        }
        let mut next = list;
        while let Some(entry) = next.as_ref() {
            next = entry.ifa_next;
            let Some(address) = entry.ifa_addr.as_ref() else {
                continue;
            };
            let address = match i32::from(address.sa_family) {
                libc::AF_INET => {
                    let v4 = entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned();
                    std::net::IpAddr::from(v4.sin_addr.s_addr.to_ne_bytes())
                }
                libc::AF_INET6 => {
                    let v6 = entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned();
                    std::net::IpAddr::from(v6.sin6_addr.s6_addr)
                }
                _ => continue,
            };
            found.push(Interface {
                name: std::ffi::CStr::from_ptr(entry.ifa_name)
                    .to_string_lossy()
                    .into_owned(),
                address,
                up: entry.ifa_flags & libc::IFF_UP as u32 != 0,
            });
        }
        libc::freeifaddrs(list);
    }
    found
}

/// Ends the process at once, without running destructors that may wait for other threads.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: always allowed.
    unsafe { libc::_exit(code) }
}

/// The connection that the process which started this one left open at a descriptor.
///
/// # Errors
/// If there is no such descriptor.
pub fn inherited_stream(fd: i32) -> std::io::Result<std::os::unix::net::UnixStream> {
    use std::os::fd::FromRawFd;
    // SAFETY: fcntl only looks at the number; the descriptor is this function's alone, because
    // nothing else reads the hidden option that names it.
    unsafe {
        if fd < 3 || libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) < 0 {
            return Err(std::io::Error::from_raw_os_error(libc::EBADF));
        }
        Ok(std::os::unix::net::UnixStream::from_raw_fd(fd))
    }
}

/// Processors of the machine that are on line.
pub fn processors() -> usize {
    // SAFETY: no pointers.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(1)
}

/// Binds the calling thread, and what it starts from now on, to its share of the processors that
/// it may use: the `index`th of `shares` equal parts. Says whether it did; there must be at least
/// one processor for each.
pub fn bind(index: usize, shares: usize) -> bool {
    // SAFETY: zero is an empty cpu_set_t, and all calls get its true size.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut allowed) != 0 {
            return false;
        }
        let most = libc::CPU_SETSIZE as usize;
        let list: Vec<usize> = (0..most)
            .filter(|cpu| libc::CPU_ISSET(*cpu, &allowed))
            .collect();
        if list.len() < shares || index >= shares {
            return false;
        }
        let (from, to) = (
            index * list.len() / shares,
            (index + 1) * list.len() / shares,
        );
        let mut own: libc::cpu_set_t = std::mem::zeroed();
        for cpu in &list[from..to] {
            libc::CPU_SET(*cpu, &mut own);
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &own) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_the_processors_do_not_overlap() {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let bound = |index, shares| {
            std::thread::spawn(move || {
                let done = bind(index, shares);
                // SAFETY: as in the function under test.
                unsafe {
                    let mut own: libc::cpu_set_t = std::mem::zeroed();
                    libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut own);
                    (done, libc::CPU_COUNT(&own) as usize)
                }
            })
            .join()
            .expect("thread")
        };
        assert!(bound(0, 1).0);
        assert!(!bound(0, 1 << 20).0);
        if processors >= 2 {
            let (first, second) = (bound(0, 2), bound(1, 2));
            assert!(first.0 && second.0);
            assert!(first.1 + second.1 <= bound(0, 1).1);
        }
    }
}
