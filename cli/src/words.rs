//! Words for people.
#![forbid(unsafe_code)]

/// What stands behind a noun of so many.
pub fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}
