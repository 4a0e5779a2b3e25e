//! Agreements of the ranks on something of the caller's.
#![forbid(unsafe_code)]

use super::agree::levels_text;
use super::table::{self, Handle};
use crate::control::wire::{Reader, Writer};
use crate::error::{Error, Result};
use crate::ops::lock;

/// Longer reasons are cut.
const LONGEST_REASON: usize = 1023;

/// What the ranks agreed on: the same on all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The lowest level that a rank has given.
    pub lowest: i32,
    /// Each rank's level.
    pub levels: Vec<i32>,
    /// Which ranks gave which level, and why; empty if all gave the same and none a reason.
    pub text: String,
}

pub(crate) fn encode(level: i32, reason: &str) -> Vec<u8> {
    let mut end = reason.len().min(LONGEST_REASON);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let mut writer = Writer::default();
    // The reason first: neighbours have what comes first in common more often.
    writer.bytes(&reason.as_bytes()[..end]).u32(level as u32);
    writer.0
}

pub(crate) fn decode(body: &[u8]) -> Option<(i32, String)> {
    let mut reader = Reader(body);
    let reason = reader.text()?;
    Some((reader.u32()? as i32, reason))
}

/// Tells every rank's level and reason to all; collective.
pub fn comm_agree(handle: Handle, level: i32, reason: &str) -> Result<Agreement> {
    let comm = table::get(handle)?;
    let parts = comm.working()?;
    if super::group::is_open() {
        return Err(Error::invalid_usage(
            "flagosCommAgree waits for the other ranks and can't be inside a group",
        ));
    }
    let failed = lock(&parts.failed).clone();
    if let Some(error) = failed {
        return Err(error.context("the communicator has failed"));
    }
    let _one = super::split::collective(&parts)?;
    let patience = comm.init_patience();
    let said = encode(level, reason);
    let all = lock(&parts.channel).allgather("an agreement", &said, &patience)?;
    let each: Option<Vec<(i32, String)>> = all.all().map(decode).collect();
    let each = each.ok_or_else(|| Error::internal("a rank's level can't be read"))?;
    let levels: Vec<i32> = each.iter().map(|(level, _)| *level).collect();
    let agreement = Agreement {
        lowest: levels.iter().copied().min().unwrap_or(level),
        text: levels_text(&parts.infos, &each),
        levels,
    };
    // Once, and on one rank.
    if comm.rank() == 0 && !agreement.text.is_empty() {
        let mut said = lock(&parts.agreed);
        if *said != agreement.text {
            log::info!(
                "{}: the ranks agree on level {}: {}",
                comm.label(),
                agreement.lowest,
                agreement.text
            );
            said.clone_from(&agreement.text);
        }
    }
    Ok(agreement)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let reason = "é".repeat(600);
        let (level, cut) = decode(&encode(-1, &reason)).unwrap();
        assert_eq!((level, cut.len()), (-1, LONGEST_REASON - 1));
        assert!(reason.starts_with(&cut));
        assert_eq!(decode(&encode(7, "")), Some((7, String::new())));
        assert_eq!(decode(&[1, 0]), None);
    }
}
