//! Frames over a TCP connection: bounded, non-blocking underneath, tolerant of anything a foreign
//! or broken peer may send.
#![forbid(unsafe_code)]

use super::patience::{Impatience, Patience};
use crate::sys::fork;
use crate::sys::net::{PollEntry, above_standard, keep_alive, poll, poll_one, start_connect};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// No frame of ours is longer; a length beyond it ends the connection.
pub(crate) const MAX_BODY: usize = 64 << 20;
/// Nor is the first one of a connection, before we know whose it is.
pub(crate) const MAX_FIRST_BODY: usize = 4 << 10;
const HEADER: usize = 12;

/// What a frame is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// First frame of a rank to a rendezvous.
    Hello = 1,
    /// Rendezvous to a rank: where its parent listens; or, without addresses, that all are here.
    Table = 2,
    /// A fault that concerns the receiver: code and text.
    Fail = 3,
    /// Rank to rendezvous: who is missing?
    Query = 4,
    /// Rendezvous to rank: the missing ranks, as text.
    Missing = 5,
    /// First frame of a rank to its parent; to the rendezvous: it is connected to its parent.
    Join = 6,
    /// Payloads of an exchange, on their way to rank 0.
    Part = 7,
    /// The result of an exchange, on its way from rank 0.
    Whole = 8,
    /// The communicator was aborted.
    Abort = 9,
    /// An orderly goodbye: of the sender, or of another rank that it names; and how many collectives that
    /// rank has made, if it was counted.
    Bye = 10,
    /// A rank died: rank and text.
    Dead = 11,
    /// To a rendezvous that is not needed.
    Cancel = 12,
    /// Rendezvous to rank: it is counted.
    Welcome = 13,
    /// Rendezvous to rank: too many wait here; come again after so many milliseconds.
    Later = 14,
    /// Sent now and then by ranks that watch each other: it is alive.
    Beat = 15,
    /// A rank has ended the communicator's operations, not this channel: what others are told of it.
    Ended = 16,
}

impl Kind {
    fn from_raw(raw: u8) -> Option<Kind> {
        use Kind::*;
        [
            Hello, Table, Fail, Query, Missing, Join, Part, Whole, Abort, Bye, Dead, Cancel,
            Welcome, Later, Beat, Ended,
        ]
        .into_iter()
        .find(|k| *k as u8 == raw)
    }
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub kind: Kind,
    pub tag: u32,
    pub body: Vec<u8>,
}

/// Why a connection can't be used any more.
#[derive(Debug)]
pub(crate) enum WireError {
    /// The other side closed it.
    Closed,
    /// The operating system's words.
    Io(std::io::Error),
    /// What came is no frame of this protocol.
    Garbage,
    /// The wait ended first.
    Impatient(Impatience),
}

/// A connection that carries frames.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
    /// The longest body that the other side may send.
    limit: usize,
    /// Frames that the other side has not taken yet, and how much of the first it has.
    unsent: VecDeque<Arc<[u8]>>,
    taken: usize,
    /// When something came last.
    heard: Instant,
    /// Set when the other side has closed; frames received before still count.
    closed: bool,
    fork_generation: u32,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A forked child may hold the descriptor too, and the other side must not wait for its end.
        if self.fork_generation == fork::generation() {
            let _ = self.stream.shutdown(Shutdown::Both);
        }
    }
}

impl Connection {
    /// Takes over a connected stream.
    pub(crate) fn new(stream: TcpStream) -> std::io::Result<Connection> {
        let stream = TcpStream::from(above_standard(stream.into())?);
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        keep_alive(&stream);
        Ok(Connection {
            stream,
            received: Vec::new(),
            limit: MAX_BODY,
            unsent: VecDeque::new(),
            taken: 0,
            heard: Instant::now(),
            closed: false,
            fork_generation: fork::generation(),
        })
    }

    /// Connects within the limit and the patience; an abort ends the wait too.
    pub(crate) fn connect(
        address: &SocketAddr,
        limit: Duration,
        patience: &Patience,
    ) -> std::io::Result<Connection> {
        let until = Instant::now() + limit;
        let stream = start_connect(address)?;
        // Whoever is there at once is told even of an abort.
        let mut slice = Duration::ZERO;
        while !poll_one(stream.as_raw_fd(), libc::POLLOUT, slice) {
            let left = until.saturating_duration_since(Instant::now());
            slice = patience.slice().unwrap_or_default().min(left);
            if slice.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
        }
        match stream.take_error()? {
            Some(error) => Err(error),
            None => Connection::new(stream),
        }
    }

    /// As [`Connection::new`], for one that anybody may have made: until [`Connection::trust`] it may
    /// send little.
    pub(crate) fn of_stranger(stream: TcpStream) -> std::io::Result<Connection> {
        let mut connection = Connection::new(stream)?;
        connection.limit = MAX_FIRST_BODY;
        Ok(connection)
    }

    /// The other side has proved that it belongs here.
    pub(crate) fn trust(&mut self) {
        self.limit = MAX_BODY;
    }

    /// This side's address.
    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        self.stream.local_addr().ok()
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// Sends a frame; waits while the other side does not read.
    pub(crate) fn send(
        &mut self,
        kind: Kind,
        tag: u32,
        body: &[u8],
        patience: &Patience,
    ) -> Result<(), WireError> {
        self.post(encode_frame(kind, tag, body))?;
        while !self.flush()? {
            let slice = patience.slice().map_err(WireError::Impatient)?;
            poll(&mut [PollEntry::write(self.fd())], slice);
        }
        Ok(())
    }

    /// Sends a frame of [`encode_frame`] without waiting; what the other side does not take now
    /// goes with [`Connection::flush`].
    pub(crate) fn post(&mut self, frame: Arc<[u8]>) -> Result<(), WireError> {
        self.unsent.push_back(frame);
        self.flush().map(drop)
    }

    /// Sends what was posted, as far as it goes without waiting. `true`: nothing is left.
    pub(crate) fn flush(&mut self) -> Result<bool, WireError> {
        while let Some(frame) = self.unsent.front() {
            match self.stream.write(&frame[self.taken..]) {
                Ok(sent) => {
                    self.taken += sent;
                    if self.taken == frame.len() {
                        self.taken = 0;
                        self.unsent.pop_front();
                    }
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) => {
                    // Nothing can be sent any more.
                    self.unsent.clear();
                    self.taken = 0;
                    return Err(match e.kind() {
                        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => WireError::Closed,
                        _ => WireError::Io(e),
                    });
                }
            }
        }
        Ok(true)
    }

    /// Whether something posted has not been taken yet.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Whether [`Connection::try_receive`] has something to say although nothing new came.
    pub(crate) fn has_frame(&self) -> bool {
        let whole = || {
            let length = u32::from_le_bytes(*self.received.first_chunk()?) as usize;
            Some(length > MAX_BODY || self.received.len() >= HEADER + length)
        };
        self.closed || whole().unwrap_or(false)
    }

    /// The next complete frame, if one is here. Frames that arrived before the other side closed
    /// come first, then [`WireError::Closed`].
    pub(crate) fn try_receive(&mut self) -> Result<Option<Frame>, WireError> {
        loop {
            if let Some(frame) = self.take_frame()? {
                return Ok(Some(frame));
            }
            if self.closed {
                return Err(WireError::Closed);
            }
            if !self.pull()? {
                return Ok(None);
            }
        }
    }

    /// Takes some of what came from the kernel. `false`: nothing did.
    fn pull(&mut self) -> Result<bool, WireError> {
        let mut buffer = [0u8; 16 << 10];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.closed = true,
                Ok(got) => {
                    self.received.extend_from_slice(&buffer[..got]);
                    self.heard = Instant::now();
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == ErrorKind::ConnectionReset => self.closed = true,
                Err(e) => return Err(WireError::Io(e)),
            }
            return Ok(true);
        }
    }

    /// How long nothing has come.
    pub(crate) fn silent_for(&mut self) -> Duration {
        // Something may be here that nobody has looked at. What is wrong is found by who reads.
        if !self.closed && self.received.len() < MAX_FIRST_BODY {
            let _ = self.pull();
        }
        self.heard.elapsed()
    }

    /// Counts the silence from now.
    pub(crate) fn excuse(&mut self) {
        self.heard = Instant::now();
    }

    fn take_frame(&mut self) -> Result<Option<Frame>, WireError> {
        let Some(header) = self.received.first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let tag = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
        let kind = Kind::from_raw(header[4]).filter(|_| header[5..8] == [0, 0, 0]);
        let Some(kind) = kind.filter(|_| length <= self.limit) else {
            return Err(WireError::Garbage);
        };
        if self.received.len() < HEADER + length {
            return Ok(None);
        }
        let body = if self.received.len() == HEADER + length {
            let mut whole = std::mem::take(&mut self.received);
            whole.drain(..HEADER);
            whole
        } else {
            // Not the rest anew for each of many small ones.
            let body = self.received[HEADER..][..length].to_vec();
            self.received.drain(..HEADER + length);
            body
        };
        Ok(Some(Frame { kind, tag, body }))
    }

    /// Waits for the next frame.
    pub(crate) fn receive(&mut self, patience: &Patience) -> Result<Frame, WireError> {
        loop {
            if let Some(frame) = self.try_receive()? {
                return Ok(frame);
            }
            let slice = patience.slice().map_err(WireError::Impatient)?;
            poll(&mut [PollEntry::read(self.fd())], slice);
        }
    }
}

/// A frame as it goes over the wire.
pub(crate) fn encode_frame(kind: Kind, tag: u32, body: &[u8]) -> Arc<[u8]> {
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&[kind as u8, 0, 0, 0]);
    bytes.extend_from_slice(&tag.to_le_bytes());
    bytes.extend_from_slice(body);
    bytes.into()
}

/// Writes the parts of a message body.
#[derive(Default)]
pub(crate) struct Writer(pub Vec<u8>);

impl Writer {
    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }
    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }
    pub(crate) fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.u32(value.len() as u32);
        self.0.extend_from_slice(value);
        self
    }
    pub(crate) fn fixed(&mut self, value: &[u8]) -> &mut Self {
        self.0.extend_from_slice(value);
        self
    }
}

/// Reads the parts of a message body; every read past its end is `None`.
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn fixed<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.fixed().map(u32::from_le_bytes)
    }
    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.fixed().map(u64::from_le_bytes)
    }
    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()? as usize;
        if length > self.0.len() {
            return None;
        }
        let (head, rest) = self.0.split_at(length);
        self.0 = rest;
        Some(head)
    }
    pub(crate) fn text(&mut self) -> Option<String> {
        self.bytes()
            .map(|b| String::from_utf8_lossy(b).into_owned())
    }
}

/// An error as a message body, and back.
pub(crate) fn encode_error(error: &crate::Error) -> Vec<u8> {
    let mut writer = Writer::default();
    writer
        .u32(error.code() as u32)
        .bytes(error.text().as_bytes());
    writer.0
}

/// The code that another rank gave its error. "In progress" is no error, and would make a caller wait
/// for nothing.
pub(crate) fn remote_code(raw: u32) -> crate::Code {
    crate::Code::from_raw(raw as i32)
        .filter(|code| *code != crate::Code::InProgress)
        .unwrap_or(crate::Code::RemoteError)
}

/// See [`encode_error`].
pub(crate) fn decode_error(body: &[u8]) -> crate::Error {
    let mut reader = Reader(body);
    let code = reader.u32();
    let text = reader.text();
    crate::Error::new(
        code.map_or(crate::Code::RemoteError, remote_code),
        text.unwrap_or_else(|| String::from("another rank failed without a text")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::patience::AbortFlag;
    use std::net::TcpListener;

    fn pair() -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Connection::new(near).unwrap(), listener.accept().unwrap().0)
    }

    fn patience(ms: u64) -> Patience {
        Patience::starting_now(Some(Duration::from_millis(ms)), &AbortFlag::default())
    }

    #[test]
    fn frames_arrive_whole_and_in_order_even_after_the_sender_closed() {
        let (mut near, far) = pair();
        let mut far = Connection::new(far).unwrap();
        let big = vec![7u8; 3 << 20];
        let sender = std::thread::spawn(move || {
            far.send(Kind::Part, 1, b"one", &patience(5000)).unwrap();
            far.send(Kind::Whole, 2, &big, &patience(5000)).unwrap();
        });
        let one = near.receive(&patience(5000)).unwrap();
        assert_eq!(
            (one.kind, one.tag, &one.body[..]),
            (Kind::Part, 1, &b"one"[..])
        );
        let two = near.receive(&patience(5000)).unwrap();
        assert_eq!(
            (two.kind, two.tag, two.body.len()),
            (Kind::Whole, 2, 3 << 20)
        );
        sender.join().unwrap();
        assert!(matches!(
            near.receive(&patience(5000)),
            Err(WireError::Closed)
        ));
    }

    #[test]
    fn garbage_and_absurd_lengths_end_the_connection_without_memory() {
        for bytes in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            &[0xff; 12][..],
            &[0, 0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0],
        ] {
            let (mut near, mut far) = pair();
            far.write_all(bytes).unwrap();
            assert!(
                matches!(near.receive(&patience(2000)), Err(WireError::Garbage)),
                "{bytes:?}"
            );
        }
    }

    #[test]
    fn a_wait_ends_at_its_deadline_and_on_abort() {
        let (mut near, _far) = pair();
        let started = std::time::Instant::now();
        let end = near.receive(&patience(60));
        assert!(matches!(
            end,
            Err(WireError::Impatient(Impatience::Expired))
        ));
        let abort = AbortFlag::default();
        let forever = Patience::starting_now(None, &abort);
        let flag = abort.clone();
        let setter = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            flag.set();
        });
        let end = near.receive(&forever);
        assert!(matches!(
            end,
            Err(WireError::Impatient(Impatience::Aborted))
        ));
        setter.join().unwrap();
        assert!(started.elapsed() < Duration::from_secs(2));
    }

    #[test]
    fn readers_never_read_past_the_end() {
        let mut writer = Writer::default();
        writer.u32(7).u64(8).bytes(b"text");
        for cut in 0..writer.0.len() {
            let mut reader = Reader(&writer.0[..cut]);
            let all = reader
                .u32()
                .and_then(|_| reader.u64())
                .and_then(|_| reader.text());
            assert!(all.is_none());
        }
        assert!(Reader(&u32::MAX.to_le_bytes()).bytes().is_none());
    }
}
