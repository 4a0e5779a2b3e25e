//! Words for people.
#![forbid(unsafe_code)]

/// What stands behind a noun of so many.
pub fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// So many bytes, in the unit that fits.
pub fn amount(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 30 => format!("{:.1} GiB", b as f64 / (1u64 << 30) as f64),
        b => format!("{:.1} MiB", b as f64 / (1u64 << 20) as f64),
    }
}
