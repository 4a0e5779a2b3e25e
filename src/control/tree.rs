//! The shape of the control channel: who is connected to whom. A function of numbers that all ranks
//! know, so that nobody has to be told.
#![forbid(unsafe_code)]

use std::ops::Range;

/// Up to so many ranks, all are connected to rank 0: one hop is faster than two.
const STAR: u32 = 128;
/// Above, no rank has more children than this: 1 + 32 + 32² ranks need two hops, 10⁵ need four.
const FAN_OUT: u32 = 32;
/// What another rank says of the tree is not believed beyond this.
pub(crate) const MAX_FAN_OUT: u32 = 4096;

/// A tree of ranks with rank 0 at its top. The ranks below a rank are those that follow it, so that
/// neighbours, which often are on one machine, are near each other, and a subtree is a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    pub nranks: u32,
    pub fan_out: u32,
}

/// Where one rank stands in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub parent: Option<u32>,
    /// Hops to rank 0.
    pub depth: u32,
    /// The rank itself and all ranks below it.
    pub range: Range<u32>,
    /// The ranges of its children; each starts with the child.
    pub children: Vec<Range<u32>>,
}

impl Tree {
    pub(crate) fn of(nranks: u32) -> Tree {
        let fan_out = if nranks <= STAR { STAR } else { FAN_OUT };
        Tree { nranks, fan_out }
    }

    fn children(self, range: &Range<u32>) -> impl Iterator<Item = Range<u32>> + use<> {
        let first = range.start + 1;
        let below = u64::from(range.end.saturating_sub(first));
        let count = below.min(u64::from(self.fan_out.max(1)));
        let bound = move |child: u64| first + (below * child / count) as u32;
        (0..count).map(move |child| bound(child)..bound(child + 1))
    }

    /// The rank's place, but for its children.
    fn find(self, rank: u32) -> Place {
        let mut place = Place {
            parent: None,
            depth: 0,
            range: 0..self.nranks,
            children: Vec::new(),
        };
        while place.range.start != rank {
            let below = self.children(&place.range);
            match below.into_iter().find(|child| child.contains(&rank)) {
                Some(child) => {
                    place.parent = Some(place.range.start);
                    place.depth += 1;
                    place.range = child;
                }
                None => {
                    // No rank of this tree.
                    place.range = rank..rank;
                    return place;
                }
            }
        }
        place
    }

    pub(crate) fn place(self, rank: u32) -> Place {
        let mut place = self.find(rank);
        place.children = self.children(&place.range).collect();
        place
    }

    pub(crate) fn parent(self, rank: u32) -> Option<u32> {
        self.find(rank).parent
    }

    /// The rank itself and all ranks below it.
    pub(crate) fn range(self, rank: u32) -> Range<u32> {
        self.find(rank).range
    }

    /// Whether others connect to this rank.
    pub(crate) fn has_children(self, rank: u32) -> bool {
        self.range(rank).len() > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_is_below_rank_0_and_no_rank_has_too_many_children() {
        for nranks in [1, 2, 3, 7, 40, 129, 1000, 1024] {
            for fan_out in [1, 2, 3, 32, 2000] {
                let tree = Tree { nranks, fan_out };
                let mut seen = vec![0; nranks as usize];
                for rank in 0..nranks {
                    let place = tree.place(rank);
                    assert_eq!(place.range.start, rank);
                    assert!(place.children.len() <= fan_out as usize);
                    let below: u32 = place.children.iter().map(|c| c.len() as u32).sum();
                    assert_eq!(below + 1, place.range.len() as u32);
                    assert_eq!(tree.has_children(rank), below > 0);
                    for child in place.children {
                        assert_eq!(tree.parent(child.start), Some(rank));
                        assert_eq!(tree.range(child.start), child);
                        seen[child.start as usize] += 1;
                    }
                }
                assert_eq!(seen[0], 0);
                assert!(seen[1..].iter().all(|times| *times == 1));
            }
        }
    }

    #[test]
    fn the_depth_is_what_the_documents_say() {
        for (nranks, deepest) in [(128, 1), (129, 2), (1024, 2), (1057, 2), (100_000, 4)] {
            let depths = (0..nranks).map(|rank| Tree::of(nranks).place(rank).depth);
            assert_eq!(depths.max(), Some(deepest), "{nranks} ranks");
        }
    }
}
