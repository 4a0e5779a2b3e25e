//! Unix sockets with abstract names, and file descriptors passed over them.
//!
//! An abstract name belongs to a network namespace and vanishes with its last socket: two processes
//! that can meet under one can share memory, and nothing is left behind when they are killed.

use crate::error::{Code, Error, Result};
use crate::sys::net::above_standard;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// Room for the one control message that carries descriptors, aligned as the kernel wants it. It is
/// larger than one descriptor needs, so that superfluous ones are seen and closed.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Listens under an abstract name.
pub(crate) fn listen(name: &[u8]) -> Result<UnixListener> {
    let listener = SocketAddr::from_abstract_name(name)
        .and_then(|address| UnixListener::bind_addr(&address))
        .and_then(|listener| above_standard(listener.into()))
        .map(UnixListener::from)
        .map_err(|error| Error::system("listening on an abstract unix socket", error))?;
    listener
        .set_nonblocking(true)
        .map_err(|error| Error::system("making a unix socket non-blocking", error))?;
    Ok(listener)
}

/// Accepts one connection before the deadline.
pub(crate) fn accept(listener: &UnixListener, deadline: Instant) -> Result<UnixStream> {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                return above_standard(stream.into())
                    .map(UnixStream::from)
                    .map_err(|error| Error::system("accepting a unix connection", error));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll(
                    listener.as_fd(),
                    libc::POLLIN,
                    deadline,
                    "accepting a unix connection",
                )?;
            }
            Err(error) => return Err(Error::system("accepting a unix connection", error)),
        }
    }
}

/// One attempt. A full queue of the listener's is an error at once: a socket that blocks would wait for room in it, however
/// long.
fn connect_once(name: &[u8]) -> io::Result<UnixStream> {
    // SAFETY: the call takes integers and returns a new descriptor or -1.
    let fd = unsafe {
        libc::socket(
            libc::AF_UNIX,
            libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
            0,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, and nobody else owns it.
    let fd = above_standard(unsafe { OwnedFd::from_raw_fd(fd) })?;
    // SAFETY: zeros are a valid value of this struct of numbers.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // An abstract name begins with a zero and has no end mark.
    let room = address.sun_path.get_mut(1..=name.len());
    let room = room.ok_or_else(|| io::Error::from_raw_os_error(libc::ENAMETOOLONG))?;
    for (to, from) in room.iter_mut().zip(name) {
        *to = from.cast_signed() as libc::c_char;
    }
    let length = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    // SAFETY: the address is as long as `length` says.
    let connected = unsafe {
        libc::connect(
            fd.as_raw_fd(),
            (&raw const address).cast(),
            length as libc::socklen_t,
        )
    };
    if connected != 0 {
        return Err(io::Error::last_os_error());
    }
    let stream = UnixStream::from(fd);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Connects to an abstract name; while nobody listens there, tries again until
/// the deadline.
pub(crate) fn connect(name: &[u8], deadline: Instant) -> Result<UnixStream> {
    const WHAT: &str = "connecting to an abstract unix socket";
    loop {
        match connect_once(name) {
            Ok(stream) => return Ok(stream),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::Interrupted
                        | io::ErrorKind::ConnectionRefused
                        | io::ErrorKind::WouldBlock
                ) =>
            {
                if Instant::now() >= deadline {
                    return Err(Error::new(
                        Code::Timeout,
                        format!("{WHAT}: {error} until the deadline"),
                    ));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(Error::system(WHAT, error)),
        }
    }
}

/// Sends a duplicate of a descriptor, with one byte to carry it.
pub(crate) fn send_fd(socket: BorrowedFd<'_>, fd: BorrowedFd<'_>, deadline: Instant) -> Result<()> {
    const WHAT: &str = "sending a descriptor";
    let mut byte = [0u8];
    let mut part = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let mut control = Control([0; 64]);
    let mut message = empty_message(&mut part, &mut control);
    // SAFETY: CMSG_SPACE and CMSG_LEN only compute; CMSG_FIRSTHDR points into `control`, which has
    // room for a header and one descriptor and is aligned for the header.
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(size_of::<libc::c_int>() as u32) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<libc::c_int>() as u32) as _;
        libc::CMSG_DATA(header)
            .cast::<libc::c_int>()
            .write_unaligned(fd.as_raw_fd());
    }
    loop {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the message points at the byte, the vector and the control block above, all alive.
        if unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) } == 1 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted => {}
            io::ErrorKind::WouldBlock => poll(socket, libc::POLLOUT, deadline, WHAT)?,
            _ => return Err(Error::system(WHAT, error)),
        }
    }
}

/// Receives the descriptor that the peer sent with [`send_fd`]; it is close-on-exec.
pub(crate) fn recv_fd(socket: BorrowedFd<'_>, deadline: Instant) -> Result<OwnedFd> {
    const WHAT: &str = "receiving a descriptor";
    let mut byte = [0u8];
    let mut part = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let mut control = Control([0; 64]);
    let mut message = empty_message(&mut part, &mut control);
    loop {
        let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
        // SAFETY: the message points at the byte, the vector and the control block above, all alive,
        // with their true sizes.
        let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
        if received == 0 {
            return Err(Error::new(
                Code::RemoteError,
                format!("{WHAT}: the peer closed the connection"),
            ));
        }
        if received > 0 {
            break;
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted => {}
            io::ErrorKind::WouldBlock => poll(socket, libc::POLLIN, deadline, WHAT)?,
            _ => return Err(Error::system(WHAT, error)),
        }
    }
    let mut first = None;
    // SAFETY: recvmsg has filled `control` and its length; the CMSG functions stay inside it.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: a non-null result of CMSG_FIRSTHDR or CMSG_NXTHDR is a complete header in `control`.
        let (level, kind, len) = unsafe {
            (
                (*header).cmsg_level,
                (*header).cmsg_type,
                (*header).cmsg_len as usize,
            )
        };
        if level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS {
            // SAFETY: CMSG_LEN only computes.
            let empty = unsafe { libc::CMSG_LEN(0) } as usize;
            for index in 0..len.saturating_sub(empty) / size_of::<libc::c_int>() {
                // SAFETY: the header says that so many descriptors follow it, and the kernel gave
                // each of them to this process just now, so nobody else owns it.
                let fd = unsafe {
                    let data = libc::CMSG_DATA(header).cast::<libc::c_int>();
                    OwnedFd::from_raw_fd(data.add(index).read_unaligned())
                };
                // Superfluous ones are closed here.
                first.get_or_insert(fd);
            }
        }
        // SAFETY: `header` is a header of `message`.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    let first = first.map(above_standard).transpose();
    let first = first.map_err(|error| Error::system(WHAT, error))?;
    first.ok_or_else(|| {
        let hint = if message.msg_flags & libc::MSG_CTRUNC != 0 {
            "it was cut off: too many open descriptors?"
        } else {
            "the message carried none"
        };
        Error::new(Code::SystemError, format!("{WHAT}: {hint}"))
    })
}

/// Whether something can be read, or the other side has closed, before the deadline.
pub(crate) fn readable(stream: &UnixStream, deadline: Instant) -> Result<bool> {
    match poll(stream.as_fd(), libc::POLLIN, deadline, "a unix socket") {
        Ok(()) => Ok(true),
        Err(error) if error.code() == Code::Timeout => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reads exactly as many bytes as the buffer has.
pub(crate) fn read_exact(stream: &UnixStream, buffer: &mut [u8], deadline: Instant) -> Result<()> {
    const WHAT: &str = "reading from a unix socket";
    let mut filled = 0;
    while filled < buffer.len() {
        poll(stream.as_fd(), libc::POLLIN, deadline, WHAT)?;
        match (&mut &*stream).read(&mut buffer[filled..]) {
            Ok(0) => {
                return Err(Error::new(
                    Code::RemoteError,
                    format!("{WHAT}: the peer closed the connection"),
                ));
            }
            Ok(got) => filled += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::system(WHAT, error)),
        }
    }
    Ok(())
}

/// Writes all bytes; for messages that fit into a socket's buffer.
pub(crate) fn write_all(stream: &UnixStream, bytes: &[u8], deadline: Instant) -> Result<()> {
    const WHAT: &str = "writing to a unix socket";
    let mut sent = 0;
    while sent < bytes.len() {
        poll(stream.as_fd(), libc::POLLOUT, deadline, WHAT)?;
        match (&mut &*stream).write(&bytes[sent..]) {
            Ok(got) => sent += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::system(WHAT, error)),
        }
    }
    Ok(())
}

fn empty_message(part: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: all-zero bytes are a valid msghdr: null pointers with lengths 0.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    message
}

fn poll(fd: BorrowedFd<'_>, events: libc::c_short, deadline: Instant, what: &str) -> Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::new(
                Code::Timeout,
                format!("{what}: the deadline passed"),
            ));
        }
        // Rounded up, so that the last millisecond is slept and not spun.
        let millis = left.as_micros().div_ceil(1000).min(i32::MAX as u128) as libc::c_int;
        let mut entry = libc::pollfd {
            fd: fd.as_raw_fd(),
            events,
            revents: 0,
        };
        // SAFETY: one live pollfd, as the count says.
        let ready = unsafe { libc::poll(&raw mut entry, 1, millis) };
        if ready > 0 {
            return Ok(());
        }
        if ready < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(Error::system(what, error));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::memory::Segment;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn a_descriptor_passes_under_an_abstract_name_with_zero_bytes() {
        let mut name = b"flagos-comm test \0\xff ".to_vec();
        name.extend(std::process::id().to_ne_bytes());
        let (segment, fd) = Segment::create(4096).unwrap();
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                let socket = connect(&name, soon()).unwrap();
                recv_fd(socket.as_fd(), soon()).unwrap()
            });
            // The client has to wait for this listener.
            std::thread::sleep(Duration::from_millis(10));
            let listener = listen(&name).unwrap();
            let socket = accept(&listener, soon()).unwrap();
            send_fd(socket.as_fd(), fd.as_fd(), soon()).unwrap();
            let received = client.join().unwrap();
            // SAFETY: the descriptor is open; the call touches no memory of ours.
            let flags = unsafe { libc::fcntl(received.as_raw_fd(), libc::F_GETFD) };
            assert_ne!(flags & libc::FD_CLOEXEC, 0);
            let twin = Segment::open(received.as_fd(), 4096).unwrap();
            // SAFETY: both mappings are alive and known to this thread only.
            unsafe {
                segment.base().write(9);
                assert_eq!(twin.base().read(), 9);
            }
        });
    }

    #[test]
    fn deadlines_and_hang_ups_are_errors() {
        let (a, b) = UnixStream::pair().unwrap();
        let shortly = Instant::now() + Duration::from_millis(20);
        assert_eq!(
            recv_fd(a.as_fd(), shortly).unwrap_err().code(),
            Code::Timeout
        );
        (&b).write_all(b"x").unwrap();
        let error = recv_fd(a.as_fd(), soon()).unwrap_err();
        assert!(error.text().contains("carried none"), "{error}");
        drop(b);
        assert_eq!(
            recv_fd(a.as_fd(), soon()).unwrap_err().code(),
            Code::RemoteError
        );
        assert_eq!(
            send_fd(a.as_fd(), a.as_fd(), soon()).unwrap_err().code(),
            Code::SystemError
        );

        // A listener that takes nobody, and has no room for more.
        let name = format!("flagos-comm full {}", std::process::id());
        let listener = listen(name.as_bytes()).unwrap();
        // SAFETY: an open listener; the call touches no memory of ours.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let waits = connect(name.as_bytes(), soon()).unwrap();
        // SAFETY: the descriptor is open; the call touches no memory of ours.
        let flags = unsafe { libc::fcntl(waits.as_raw_fd(), libc::F_GETFL) };
        assert_eq!(flags & libc::O_NONBLOCK, 0);
        // On a thread of its own, as it may wait without end.
        let (tells, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let deadline = Instant::now() + Duration::from_millis(20);
            let _ = tells.send(connect(name.as_bytes(), deadline));
        });
        let late = told.recv_timeout(Duration::from_secs(5));
        let error = late.expect("the deadline ends it").unwrap_err();
        assert_eq!(error.code(), Code::Timeout, "{error}");

        let name = format!("flagos-comm nobody {}", std::process::id());
        let shortly = Instant::now() + Duration::from_millis(20);
        assert_eq!(
            connect(name.as_bytes(), shortly).unwrap_err().code(),
            Code::Timeout
        );
        let listener = listen(name.as_bytes()).unwrap();
        let shortly = Instant::now() + Duration::from_millis(20);
        assert_eq!(
            accept(&listener, shortly).unwrap_err().code(),
            Code::Timeout
        );
    }
}
