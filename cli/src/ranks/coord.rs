//! A star of sockets around participant 0, beside the library under test.
//!
//! It carries the unique id, the agreement on what to run, and the results. It must not use the
//! library: that is what is being tested.
#![forbid(unsafe_code)]

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

/// One connection.
#[derive(Debug)]
pub enum Link {
    /// On this machine.
    Unix(UnixStream),
    /// To anywhere.
    Tcp(TcpStream),
}

impl Read for Link {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Link::Unix(stream) => stream.read(buffer),
            Link::Tcp(stream) => stream.read(buffer),
        }
    }
}

impl Write for Link {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Link::Unix(stream) => stream.write(buffer),
            Link::Tcp(stream) => stream.write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Messages are small; more than this is not ours.
const LARGEST: u32 = 1 << 26;

/// Writes one message.
pub fn put(link: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let mut message = Vec::with_capacity(bytes.len() + 4);
    message.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    message.extend_from_slice(bytes);
    link.write_all(&message)
}

/// Reads one message.
pub fn get(link: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut size = [0; 4];
    link.read_exact(&mut size)?;
    let size = u32::from_le_bytes(size);
    if size > LARGEST {
        return Err(io::Error::other(
            "the other end does not speak this protocol",
        ));
    }
    let mut bytes = vec![0; size as usize];
    link.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// This participant's end of the star.
#[derive(Debug)]
pub struct Coord {
    index: usize,
    /// On participant 0 the others in order, elsewhere only participant 0.
    links: Vec<Link>,
}

impl Coord {
    /// Participant 0 gives the links to all others in order, the others the one to it.
    pub fn new(index: usize, links: Vec<Link>) -> Coord {
        Coord { index, links }
    }

    /// Stars within one process or to its children: an end for each of `n` participants.
    ///
    /// # Errors
    /// What the operating system refuses.
    pub fn pairs(n: usize) -> io::Result<(Vec<UnixStream>, Vec<UnixStream>)> {
        let mut hub = Vec::new();
        let mut others = Vec::new();
        for _ in 1..n {
            let (a, b) = UnixStream::pair()?;
            hub.push(a);
            others.push(b);
        }
        Ok((hub, others))
    }

    /// This participant's number.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Whether this is participant 0, which decides and writes.
    pub fn is_hub(&self) -> bool {
        self.index == 0
    }

    /// Collects everybody's message on participant 0, in order; empty elsewhere.
    ///
    /// # Errors
    /// Which participant went away.
    pub fn gather(&mut self, own: Vec<u8>) -> Result<Vec<Vec<u8>>, String> {
        if self.is_hub() {
            let mut all = vec![own];
            for (i, link) in self.links.iter_mut().enumerate() {
                all.push(get(link).map_err(|e| lost(i + 1, &e))?);
            }
            Ok(all)
        } else {
            put(&mut self.links[0], &own).map_err(|e| lost(0, &e))?;
            Ok(Vec::new())
        }
    }

    /// Gives participant 0's message to everybody; what others pass is ignored.
    ///
    /// # Errors
    /// As [`Coord::gather`].
    pub fn broadcast(&mut self, own: Vec<u8>) -> Result<Vec<u8>, String> {
        if self.is_hub() {
            for (i, link) in self.links.iter_mut().enumerate() {
                put(link, &own).map_err(|e| lost(i + 1, &e))?;
            }
            Ok(own)
        } else {
            get(&mut self.links[0]).map_err(|e| lost(0, &e))
        }
    }

    /// Gives everybody's message to everybody, in order.
    ///
    /// # Errors
    /// As [`Coord::gather`].
    pub fn all_gather(&mut self, own: Vec<u8>) -> Result<Vec<Vec<u8>>, String> {
        let all = self.gather(own)?;
        let mut packed = Vec::new();
        for message in &all {
            let _ = put(&mut packed, message);
        }
        let packed = self.broadcast(packed)?;
        let mut rest = packed.as_slice();
        let mut all = Vec::new();
        while !rest.is_empty() {
            all.push(get(&mut rest).map_err(|e| lost(0, &e))?);
        }
        Ok(all)
    }

    /// Returns when everybody has entered.
    ///
    /// # Errors
    /// As [`Coord::gather`].
    pub fn barrier(&mut self) -> Result<(), String> {
        self.gather(Vec::new())?;
        self.broadcast(Vec::new()).map(|_| ())
    }
}

fn lost(index: usize, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset => {
            format!("rank {index} has ended early")
        }
        _ => format!("no connection to rank {index}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn star(n: usize) -> Vec<Coord> {
        let (hub, others) = Coord::pairs(n).expect("socket pairs");
        let hub = Coord::new(0, hub.into_iter().map(Link::Unix).collect());
        let others = others.into_iter().enumerate();
        let others = others.map(|(i, link)| Coord::new(i + 1, vec![Link::Unix(link)]));
        std::iter::once(hub).chain(others).collect()
    }

    #[test]
    fn messages_arrive_in_order() {
        let threads: Vec<_> = star(4)
            .into_iter()
            .map(|mut coord| {
                std::thread::spawn(move || {
                    coord.barrier().expect("barrier");
                    let own = vec![coord.index() as u8; coord.index()];
                    let all = coord.all_gather(own).expect("all_gather");
                    let wanted: Vec<_> = (0..4).map(|i| vec![i as u8; i]).collect();
                    assert_eq!(all, wanted);
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("thread");
        }
    }

    #[test]
    fn a_participant_that_ends_is_named() {
        let mut ends = star(3);
        ends.remove(2);
        let mut one = ends.remove(1);
        let thread = std::thread::spawn(move || one.gather(vec![1]));
        assert_eq!(
            ends[0].gather(vec![]),
            Err("rank 2 has ended early".to_owned())
        );
        thread.join().expect("thread").expect("sent");
    }
}
