//! Which device the things belong to that a device-scoped runtime has made for us.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A map for runtimes whose streams, events and memory work only while their device is current.
/// What others have made is not in it.
#[derive(Debug, Default)]
pub(super) struct Owners(Mutex<Maps>);

#[derive(Debug, Default)]
struct Maps {
    /// Streams.
    streams: HashMap<usize, i32>,
    /// Events.
    events: HashMap<usize, i32>,
    /// Pinned host memory.
    host: HashMap<usize, i32>,
    /// Device memory: start to size and device.
    memory: BTreeMap<usize, (usize, i32)>,
    /// The stream that an event was last recorded on.
    records: HashMap<usize, usize>,
}

/// What an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thing {
    Stream(usize),
    Event(usize),
    /// Pinned host memory, by its start.
    Host(usize),
    /// Device memory, any address in it.
    Memory(usize),
}

impl Owners {
    fn maps(&self) -> MutexGuard<'_, Maps> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a thing; of device memory the size too.
    pub(super) fn add(&self, thing: Thing, bytes: usize, device: i32) {
        let mut maps = self.maps();
        match thing {
            Thing::Stream(at) => drop(maps.streams.insert(at, device)),
            Thing::Event(at) => drop(maps.events.insert(at, device)),
            Thing::Host(at) => drop(maps.host.insert(at, device)),
            Thing::Memory(at) => drop(maps.memory.insert(at, (bytes, device))),
        }
    }

    /// Forgets a thing, before it is destroyed: afterwards its address may be another's. Gives what
    /// `add` takes, for the case that it isn't destroyed after all.
    pub(super) fn take(&self, thing: Thing) -> Option<(usize, i32)> {
        let mut maps = self.maps();
        match thing {
            Thing::Stream(at) => {
                maps.records.retain(|_, stream| *stream != at);
                maps.streams.remove(&at).map(|device| (0, device))
            }
            Thing::Event(at) => {
                maps.records.remove(&at);
                maps.events.remove(&at).map(|device| (0, device))
            }
            Thing::Host(at) => maps.host.remove(&at).map(|device| (0, device)),
            Thing::Memory(at) => maps.memory.remove(&at),
        }
    }

    /// The device of a thing that was made for us.
    pub(super) fn device_of(&self, thing: Thing) -> Option<i32> {
        let maps = self.maps();
        match thing {
            Thing::Stream(at) => maps.streams.get(&at).copied(),
            Thing::Event(at) => maps.events.get(&at).copied(),
            Thing::Host(at) => maps.host.get(&at).copied(),
            Thing::Memory(at) => {
                let (start, (bytes, device)) = maps.memory.range(..=at).next_back()?;
                (at == *start || at - start < *bytes).then_some(*device)
            }
        }
    }

    /// Notes that an event was recorded on a stream. Only a stream of ours is kept: another's may
    /// be gone when the event is asked for.
    pub(super) fn recorded(&self, event: usize, stream: usize) {
        let mut maps = self.maps();
        if maps.streams.contains_key(&stream) {
            maps.records.insert(event, stream);
        } else {
            maps.records.remove(&event);
        }
    }

    /// The stream of ours that an event was last recorded on.
    pub(super) fn stream_of(&self, event: usize) -> Option<usize> {
        self.maps().records.get(&event).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_found_by_any_address_in_it() {
        let owners = Owners::default();
        owners.add(Thing::Memory(100), 10, 3);
        owners.add(Thing::Memory(200), 0, 4);
        for (at, device) in [
            (99, None),
            (100, Some(3)),
            (109, Some(3)),
            (110, None),
            (200, Some(4)),
        ] {
            assert_eq!(owners.device_of(Thing::Memory(at)), device, "{at}");
        }
        assert_eq!(owners.take(Thing::Memory(100)), Some((10, 3)));
        assert_eq!(owners.device_of(Thing::Memory(100)), None);
        assert_eq!(owners.device_of(Thing::Stream(200)), None);
    }

    #[test]
    fn records_on_streams_of_ours() {
        let owners = Owners::default();
        owners.add(Thing::Stream(1), 0, 0);
        owners.recorded(7, 1);
        assert_eq!(owners.stream_of(7), Some(1));
        owners.recorded(7, 2);
        assert_eq!(owners.stream_of(7), None);
        owners.recorded(7, 1);
        assert_eq!(owners.take(Thing::Stream(1)), Some((0, 0)));
        assert_eq!(owners.stream_of(7), None);
    }
}
