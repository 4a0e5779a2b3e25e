//! Sockets beyond the standard library: poll, interfaces, keepalive.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// The same descriptor, or a duplicate above the three standard ones: a program that was started
/// with those closed would else write its output into our sockets.
pub(crate) fn above_standard(fd: OwnedFd) -> std::io::Result<OwnedFd> {
    if fd.as_raw_fd() > libc::STDERR_FILENO {
        return Ok(fd);
    }
    // SAFETY: the descriptor is open; the call takes integers and returns a new one or -1.
    let duplicate = unsafe {
        libc::fcntl(
            fd.as_raw_fd(),
            libc::F_DUPFD_CLOEXEC,
            libc::STDERR_FILENO + 1,
        )
    };
    if duplicate < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(duplicate) })
}

/// Connections that may wait to be accepted: enough for all ranks of a large communicator at once.
const BACKLOG: libc::c_int = 4096;

/// A listening socket with room for many connections at once; port 0 is any.
pub(crate) fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    // SAFETY: an open, bound socket; calling listen again only changes its backlog.
    if unsafe { libc::listen(listener.as_raw_fd(), BACKLOG) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    above_standard(listener.into()).map(TcpListener::from)
}

/// Begins to connect, without waiting. The socket is writable when that has succeeded or failed, and
/// its error says which.
pub(crate) fn start_connect(address: &SocketAddr) -> std::io::Result<TcpStream> {
    let family = match address {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the call takes integers and returns a new descriptor or -1.
    let fd = unsafe { libc::socket(family, kind, 0) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, and nobody else owns it.
    let fd = above_standard(unsafe { OwnedFd::from_raw_fd(fd) })?;
    // SAFETY: zeros are a valid value of this struct of numbers.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let storage_at = &raw mut storage;
    let length = match address {
        SocketAddr::V4(v4) => {
            // SAFETY: a sockaddr_storage has the size and alignment of every address.
            let to = unsafe { &mut *storage_at.cast::<libc::sockaddr_in>() };
            to.sin_family = libc::AF_INET as libc::sa_family_t;
            to.sin_port = v4.port().to_be();
            to.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            // SAFETY: as above.
            let to = unsafe { &mut *storage_at.cast::<libc::sockaddr_in6>() };
            to.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            to.sin6_port = v6.port().to_be();
            to.sin6_addr.s6_addr = v6.ip().octets();
            to.sin6_scope_id = v6.scope_id();
            size_of::<libc::sockaddr_in6>()
        }
    };
    // SAFETY: the address lives in `storage`, and is as long as `length` says.
    let result = unsafe { libc::connect(fd.as_raw_fd(), storage_at.cast(), length as _) };
    let error = std::io::Error::last_os_error();
    if result != 0 && !matches!(error.raw_os_error(), Some(libc::EINPROGRESS | libc::EINTR)) {
        return Err(error);
    }
    Ok(TcpStream::from(fd))
}

/// One descriptor to wait for and what became of it.
pub(crate) struct PollEntry {
    pub fd: RawFd,
    pub want_read: bool,
    pub want_write: bool,
    pub readable: bool,
    pub writable: bool,
}

impl PollEntry {
    /// Waits for input.
    pub(crate) fn read(fd: RawFd) -> PollEntry {
        PollEntry {
            fd,
            want_read: true,
            want_write: false,
            readable: false,
            writable: false,
        }
    }

    /// Waits until something can be written.
    pub(crate) fn write(fd: RawFd) -> PollEntry {
        PollEntry {
            want_read: false,
            want_write: true,
            ..PollEntry::read(fd)
        }
    }
}

/// Waits until one of the descriptors is ready or the time is over. Hang-ups and errors count as
/// readable (and writable), so that the next read or write reports them. A signal ends the wait early.
pub(crate) fn poll(entries: &mut [PollEntry], timeout: Duration) {
    let mut fds: Vec<libc::pollfd> = entries
        .iter()
        .map(|e| libc::pollfd {
            fd: e.fd,
            events: if e.want_read { libc::POLLIN } else { 0 }
                | if e.want_write { libc::POLLOUT } else { 0 },
            revents: 0,
        })
        .collect();
    // Rounded up, so that a wait of less than a millisecond does not become a busy loop.
    let ms = timeout.as_micros().div_ceil(1000).min(i32::MAX as u128) as i32;
    // SAFETY: the array holds as many entries as its length says.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, ms) };
    for (entry, fd) in entries.iter_mut().zip(&fds) {
        let bad = fd.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0;
        entry.readable = ready > 0 && (fd.revents & libc::POLLIN != 0 || bad);
        entry.writable = ready > 0 && (fd.revents & libc::POLLOUT != 0 || bad);
    }
}

/// Whether one descriptor becomes ready for `events` within the time.
pub(crate) fn poll_one(fd: RawFd, events: libc::c_short, timeout: Duration) -> bool {
    let mut entry = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    let ms = timeout.as_micros().div_ceil(1000).min(i32::MAX as u128) as i32;
    // SAFETY: one entry, as the count says.
    unsafe { libc::poll(&mut entry, 1, ms) > 0 }
}

/// What to say when a call has found no free descriptor: which limit that was. `None`: another error.
pub(crate) fn out_of_descriptors(error: &std::io::Error) -> Option<String> {
    match error.raw_os_error() {
        Some(libc::EMFILE) => {
            let mut limit = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            // SAFETY: the out-pointer is a live local.
            unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
            Some(format!(
                "this process may have {} open files at once (ulimit -n; up to {} without more \
                 rights) and has as many",
                limit.rlim_cur, limit.rlim_max
            ))
        }
        Some(libc::ENFILE) => Some(String::from(
            "this machine has as many open files as it may have (sysctl fs.file-max)",
        )),
        _ => None,
    }
}

/// Makes a dead or unreachable host visible on an otherwise silent connection.
pub(crate) fn keep_alive(socket: &impl AsRawFd) {
    let fd = socket.as_raw_fd();
    let set = |level, name, value: libc::c_int| {
        // SAFETY: the option value is an int, as its size says. A refusal only costs detection time.
        unsafe {
            libc::setsockopt(
                fd,
                level,
                name,
                (&raw const value).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            );
        }
    };
    set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 5);
    set(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 2);
    set(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3);
    set(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 10_000);
}

/// One address of one network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InterfaceAddress {
    pub name: String,
    pub addr: IpAddr,
    /// Interface index of a link-local IPv6 address, else 0.
    pub scope: u32,
    pub up: bool,
    pub loopback: bool,
}

/// Every IPv4 and IPv6 address of this machine, in the kernel's order.
pub(crate) fn interfaces() -> std::io::Result<Vec<InterfaceAddress>> {
    let mut head: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs writes the head of a list that freeifaddrs below frees.
    if unsafe { libc::getifaddrs(&mut head) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = head;
    while !next.is_null() {
        // SAFETY: `next` is a node of the list, which lives until freeifaddrs.
        let node = unsafe { &*next };
        next = node.ifa_next;
        if node.ifa_addr.is_null() || node.ifa_name.is_null() {
            continue;
        }
        // SAFETY: the list holds NUL-terminated names.
        let name = unsafe { std::ffi::CStr::from_ptr(node.ifa_name) }.to_string_lossy();
        // SAFETY: ifa_addr is not NULL; every sockaddr starts with its family.
        let family = i32::from(unsafe { (*node.ifa_addr).sa_family });
        let (addr, scope) = match family {
            libc::AF_INET => {
                // SAFETY: the family says that it is a sockaddr_in.
                let v4 = unsafe { node.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
                (
                    IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr))),
                    0,
                )
            }
            libc::AF_INET6 => {
                // SAFETY: the family says that it is a sockaddr_in6.
                let v6 = unsafe { node.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
                (
                    IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)),
                    v6.sin6_scope_id,
                )
            }
            _ => continue,
        };
        found.push(InterfaceAddress {
            name: name.into_owned(),
            addr,
            scope,
            up: node.ifa_flags & libc::IFF_UP as u32 != 0,
            loopback: node.ifa_flags & libc::IFF_LOOPBACK as u32 != 0,
        });
    }
    // SAFETY: `head` came from getifaddrs and nothing refers to the list any more.
    unsafe { libc::freeifaddrs(head) };
    Ok(found)
}
/// Ends a listening socket also where a forked child holds it.
pub(crate) fn stop_listening(listener: &std::net::TcpListener) {
    // SAFETY: the descriptor is open as long as the listener; the call touches no memory.
    unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR) };
}
