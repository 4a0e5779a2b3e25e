//! Versions of vendors' libraries.
#![forbid(unsafe_code)]

use std::fmt;

/// A version in three numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Version {
    /// Major.
    pub(crate) major: u16,
    /// Minor.
    pub(crate) minor: u16,
    /// Patch.
    pub(crate) patch: u16,
}

impl Version {
    /// A version.
    pub(crate) const fn new(major: u16, minor: u16, patch: u16) -> Version {
        Version {
            major,
            minor,
            patch,
        }
    }

    /// What `ncclGetVersion` means by a number. Up to 2.8 it is major * 1000 + minor * 100 + patch,
    /// from 2.9 major * 10000 + minor * 100 + patch. `None` where the number means nothing.
    pub(crate) fn from_nccl(code: i32) -> Option<Version> {
        let (major, rest) = match code {
            1000..=9999 => (code / 1000, code % 1000),
            10000..=999_999 => (code / 10000, code % 10000),
            _ => return None,
        };
        Some(Version::new(
            major as u16,
            (rest / 100) as u16,
            (rest % 100) as u16,
        ))
    }

    /// The number that a library of NCCL's shape of this version (2.9 or newer) declares.
    pub(crate) const fn nccl_code(self) -> u32 {
        self.major as u32 * 10000 + self.minor as u32 * 100 + self.patch as u32
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_encodings() {
        let decode = |code| Version::from_nccl(code).map(|v| v.to_string());
        assert_eq!(decode(2803).as_deref(), Some("2.8.3"));
        assert_eq!(decode(2408).as_deref(), Some("2.4.8"));
        assert_eq!(decode(20908).as_deref(), Some("2.9.8"));
        assert_eq!(decode(21003).as_deref(), Some("2.10.3"));
        assert_eq!(decode(21803).as_deref(), Some("2.18.3"));
        assert_eq!(decode(23007).as_deref(), Some("2.30.7"));
        for nonsense in [0, -1, 7, 999, i32::MAX, i32::MIN] {
            assert_eq!(decode(nonsense), None, "{nonsense}");
        }
        assert_eq!(Version::new(2, 18, 0).nccl_code(), 21800);
    }

    #[test]
    fn order() {
        assert!(Version::new(2, 9, 8) < Version::new(2, 18, 0));
        assert!(Version::new(2, 30, 7) < Version::new(3, 0, 0));
    }
}
