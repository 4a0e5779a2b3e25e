//! Numbers and lists in the texts for people.
#![forbid(unsafe_code)]

/// Ranks as people write them: `1, 3-5`.
pub(crate) fn ranks_text(ranks: impl IntoIterator<Item = u32>) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => parts.push((rank, rank)),
        }
    }
    let shown = parts.iter().take(16).map(|(a, b)| match b - a {
        0 => a.to_string(),
        1 => format!("{a}, {b}"),
        _ => format!("{a}-{b}"),
    });
    let mut text = shown.collect::<Vec<_>>().join(", ");
    let more: u32 = parts.iter().skip(16).map(|(a, b)| b - a + 1).sum();
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

/// `rank 3`, or `ranks 1, 3-5`.
pub(crate) fn ranks_named(ranks: impl IntoIterator<Item = u32>) -> String {
    listed_named(&ranks_text(ranks))
}

/// The same of what [`ranks_text`] has written.
pub(crate) fn listed_named(listed: &str) -> String {
    match listed.parse::<u32>() {
        Ok(_) => format!("rank {listed}"),
        Err(_) => format!("ranks {listed}"),
    }
}

/// `1 rank`, or `2 ranks`.
pub(crate) fn counted(count: impl Into<u64>, thing: &str) -> String {
    match count.into() {
        1 => format!("1 {thing}"),
        count => format!("{count} {thing}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_ranks_are_written_as_ranges() {
        assert_eq!(ranks_text([1, 3, 4, 5, 9]), "1, 3-5, 9");
        assert_eq!(ranks_text([7, 8]), "7, 8");
    }

    #[test]
    fn of_long_lists_the_first_are_written_and_the_others_counted() {
        let apart = (0..16).map(|at| 10 * at);
        assert!(ranks_text(apart.clone()).ends_with("140, 150"));
        let text = ranks_text(apart.chain([500, 501, 502, 600]));
        assert!(text.ends_with("140, 150 and 4 more"), "{text}");
    }

    #[test]
    fn one_is_not_named_as_several_are() {
        assert_eq!(ranks_named([3]), "rank 3");
        assert_eq!(ranks_named([3, 4]), "ranks 3, 4");
        assert_eq!(ranks_named([1, 2, 3]), "ranks 1-3");
        assert_eq!(counted(1u32, "rank"), "1 rank");
        assert_eq!(counted(0u32, "rank"), "0 ranks");
        assert_eq!(counted(2u64, "rank"), "2 ranks");
    }
}
