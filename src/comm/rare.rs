//! The one word that every call reads: is anything going on that the short path does not handle?
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

/// Some process in our line of descent was forked after the library was used.
pub(crate) const FORKED: u32 = 1 << 31;
/// Calls are compared across ranks also on vendor tiers.
pub(crate) const CHECKING: u32 = 1 << 30;
/// The lower bits count the open groups of all threads.
const GROUPS: u32 = (1 << 24) - 1;

/// 0: nothing rare.
pub(crate) static RARE: AtomicU32 = AtomicU32::new(0);

/// Sets a flag for good.
pub(crate) fn set(flag: u32) {
    RARE.fetch_or(flag, Ordering::Relaxed);
}

/// A thread opened its outermost group.
pub(crate) fn group_opened() {
    RARE.fetch_add(1, Ordering::Relaxed);
}

/// A thread closed its outermost group.
pub(crate) fn group_closed() {
    debug_assert!(RARE.load(Ordering::Relaxed) & GROUPS != 0);
    RARE.fetch_sub(1, Ordering::Relaxed);
}

/// Whether there is nothing rare but open groups.
#[inline(always)]
pub(crate) fn only_groups() -> bool {
    RARE.load(Ordering::Relaxed) & !GROUPS == 0
}

/// Whether calls are compared across ranks also on vendor tiers.
pub(crate) fn checking() -> bool {
    RARE.load(Ordering::Relaxed) & CHECKING != 0
}
