//! Connections that have not said who they are yet. Anybody may make one, so they are few, short-lived
//! and may send little.
#![forbid(unsafe_code)]

use super::wire::{Connection, Frame};
use crate::sys::net::PollEntry;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::time::{Duration, Instant};

/// A connection that has not said who it is after this long is closed.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// So many are heard at once; more wait in the kernel's queue.
const MOST: usize = 256;
/// Ranks say who they are at once. Where too many connections wait, those that have said nothing for
/// this long make room.
const PATIENT: Duration = Duration::from_secs(1);

/// The connections of one listening socket that have not said who they are.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    waiting: Vec<(Instant, Connection)>,
    /// Trouble with accepting was told.
    said: bool,
}

impl Strangers {
    /// What to wait for.
    pub(crate) fn poll_entries(&self) -> impl Iterator<Item = PollEntry> {
        self.waiting.iter().map(|(_, c)| PollEntry::read(c.fd()))
    }

    /// Accepts those that wait at a non-blocking listening socket. Nothing that a connection or the
    /// system's limits do to one of them ends the waiting for the others.
    pub(crate) fn accept(&mut self, listener: &TcpListener) {
        // Each look at the socket ends, however fast others connect.
        for _ in 0..MOST {
            if self.waiting.len() >= MOST {
                // The socket stays readable, so that the caller's poll does not wait.
                std::thread::sleep(Duration::from_millis(1));
                return;
            }
            match listener.accept() {
                Ok((stream, _)) => {
                    if let Ok(connection) = Connection::of_stranger(stream) {
                        self.waiting.push((Instant::now(), connection));
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                    ) => {}
                Err(e) => {
                    // Out of descriptors, say: those that are here can still be served.
                    if !std::mem::replace(&mut self.said, true) {
                        log::warn!("a connection can't be accepted: {e}");
                    }
                    std::thread::sleep(Duration::from_millis(20));
                    return;
                }
            }
        }
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
