//! Connections that have not said who they are yet. Anybody may make one, so they are few, short-lived
//! and may send little.
#![forbid(unsafe_code)]

use super::wire::{Connection, Frame};
use crate::sys::net::PollEntry;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// A connection that has not said who it is after this long is closed.
pub(crate) const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// So many are heard at once; more wait in the kernel's queue.
pub(crate) const MOST: usize = 64;
/// Ranks say who they are at once. Where too many connections wait, those that have said nothing for
/// this long make room.
const PATIENT: Duration = Duration::from_secs(1);

/// The connections of one listening socket that have not said who they are.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    waiting: Vec<(Instant, Connection)>,
}

impl Strangers {
    /// What to wait for, with the listening socket unless there are enough already.
    pub(crate) fn poll_entries(&self, listener: &TcpListener) -> impl Iterator<Item = PollEntry> {
        let more = (self.waiting.len() < MOST).then(|| PollEntry::read(listener.as_raw_fd()));
        let here = self.waiting.iter().map(|(_, c)| PollEntry::read(c.fd()));
        more.into_iter().chain(here)
    }

    /// Closes all of them.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Accepts those that wait at a non-blocking listening socket. `Ok(true)`: some came. An error is
    /// one of this process or of the system, never of a connection.
    pub(crate) fn accept(&mut self, listener: &TcpListener) -> std::io::Result<bool> {
        let mut some = false;
        while self.waiting.len() < MOST {
            match listener.accept() {
                Ok((stream, _)) => {
                    some = true;
                    if let Ok(connection) = Connection::of_stranger(stream) {
                        self.waiting.push((Instant::now(), connection));
                    }
                }
                Err(e) => match e.kind() {
                    ErrorKind::WouldBlock => break,
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {}
                    _ => return Err(e),
                },
            }
        }
        Ok(some)
    }

    /// The first frame of each that has sent one whole. Those that sent something else are closed.
    pub(crate) fn hear(&mut self) -> Vec<(Frame, Connection)> {
        let mut heard = Vec::new();
        let mut still = Vec::new();
        for (since, mut connection) in std::mem::take(&mut self.waiting) {
            match connection.try_receive() {
                Ok(None) if since.elapsed() < HELLO_LIMIT => still.push((since, connection)),
                Ok(Some(frame)) => heard.push((frame, connection)),
                _ => {}
            }
        }
        if still.len() >= MOST {
            still.retain(|(since, _)| since.elapsed() < PATIENT);
        }
        self.waiting = still;
        heard
    }
}
