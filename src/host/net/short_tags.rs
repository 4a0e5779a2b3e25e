//! Receives that are under way with a library whose tags are shorter than ours.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_int;

/// By sender and tag on the wire: our tag, and how many.
#[derive(Default)]
pub(super) struct Expected(HashMap<(usize, c_int), (u64, usize)>);

/// A receive that could be mistaken for another that is under way.
#[derive(Debug)]
pub(super) struct Mistakable;

impl Expected {
    /// One more with this tag of ours.
    pub(super) fn begin(&mut self, key: (usize, c_int), tag: u64) -> Result<(), Mistakable> {
        let (other, count) = self.0.entry(key).or_insert((tag, 0));
        if *other != tag {
            return Err(Mistakable);
        }
        *count += 1;
        Ok(())
    }

    /// One fewer.
    pub(super) fn end(&mut self, key: (usize, c_int)) {
        if let Entry::Occupied(mut same) = self.0.entry(key) {
            same.get_mut().1 -= 1;
            if same.get().1 == 0 {
                same.remove();
            }
        }
    }
}
