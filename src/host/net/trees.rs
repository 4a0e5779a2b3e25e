//! What goes from one rank to all while the messages, not the bytes, take the time: along a binomial tree, whose root sends
//! as often as the number of ranks has binary digits, instead of once to each of them.
//!
//! There is no such tree for sums: each of its ranks would add what those below have added, which is another order than
//! that of the ranks, and so gives other bits, and rounds 16-bit floats on the way. Small contributions travel with the
//! headers, whose exchange doubles what every rank has in each step; all then add them in the same order.

use super::collectives::{FIRST, SMALL_PIECE};
use super::run::{Run, Topic};
use crate::error::Result;
use crate::host::kernels::copy;
use crate::host::local::offset;
use crate::host::op::HostOp;

/// The largest block of a scatter that takes its way through other ranks: a message of that size costs about as much by
/// itself as its bytes do.
const SCATTERED: usize = 4 << 10;

/// The tree, seen from one of its ranks. Ranks have places in it: their distances from the root. A rank with a place of
/// so many trailing binary zeros has the places after it that differ in these digits only below it.
#[derive(Clone, Copy)]
struct Tree {
    ranks: usize,
    root: usize,
    place: usize,
}

impl Tree {
    fn new(rank: usize, ranks: usize, root: usize) -> Tree {
        Tree {
            ranks,
            root,
            place: (rank + ranks - root) % ranks,
        }
    }

    fn rank(&self, place: usize) -> usize {
        (self.root + place) % self.ranks
    }

    /// The distance to the next place that is not below this one, if all places exist.
    fn reach(place: usize, ranks: usize) -> usize {
        match place {
            0 => ranks.next_power_of_two(),
            _ => place & place.wrapping_neg(),
        }
    }

    /// How many places there are from one on that are it or below it.
    fn size(&self, place: usize) -> usize {
        Tree::reach(place, self.ranks).min(self.ranks - place)
    }

    /// Where this rank gets it from; the root has it.
    fn parent(&self) -> Option<usize> {
        (self.place > 0).then(|| self.rank(self.place & (self.place - 1)))
    }

    /// The places to which this rank sends, those with the most below them first.
    fn children(&self) -> impl Iterator<Item = usize> + use<> {
        let Tree { place, ranks, .. } = *self;
        let below = Tree::reach(place, ranks).trailing_zeros();
        let children = (0..below).rev().map(move |digit| place + (1 << digit));
        children.filter(move |child| *child < ranks)
    }
}

/// How many messages one after the other bring something to so many ranks.
fn levels(ranks: usize) -> usize {
    ranks.next_power_of_two().trailing_zeros() as usize
}

/// Whether a broadcast goes along the tree. Every level sends all bytes again; in pieces the rank that passes on a piece
/// sends it to all others.
pub(super) fn broadcasts(ranks: usize, bytes: usize) -> bool {
    ranks > 2 && bytes * (levels(ranks) - 1) <= (ranks - 2) * SMALL_PIECE
}

/// Whether a scatter of so many bytes for each rank goes along the tree.
pub(super) fn scatters(ranks: usize, bytes: usize) -> bool {
    ranks > 3 && bytes <= SCATTERED
}

impl Run<'_> {
    /// # Safety
    /// As `Engine::run`; `bytes`, not 0, is what `op.count` means.
    pub(super) unsafe fn broadcast_in_tree(
        &mut self,
        op: &HostOp,
        bytes: usize,
        sequence: u64,
    ) -> Result<()> {
        let tree = Tree::new(self.rank(), self.ranks(), op.root as usize);
        let about = (Topic::Data, sequence << 8 | FIRST);
        let from = match tree.parent() {
            None => op.send,
            Some(parent) => {
                // SAFETY: the caller promised `bytes` bytes at `recv`.
                unsafe { self.recv(parent, about, op.recv, bytes, 0) };
                self.wait_for_all()?;
                op.recv.cast_const()
            }
        };
        for child in tree.children() {
            // SAFETY: as above, or at `send` on the root; nothing is written there any more.
            unsafe { self.send(tree.rank(child), about, from, bytes, 0) };
        }
        self.wait_for_all()
    }

    /// # Safety
    /// As `Engine::run`; `bytes`, not 0, is what `op.count` means. The root has its own block.
    pub(super) unsafe fn scatter_in_tree(
        &mut self,
        op: &HostOp,
        bytes: usize,
        sequence: u64,
    ) -> Result<()> {
        let (ranks, root) = (self.ranks(), op.root as usize);
        let tree = Tree::new(self.rank(), ranks, root);
        let about = (Topic::Data, sequence << 8 | FIRST);
        // The blocks of this rank and of those below it, in the order of their places.
        let blocks = self.state.pieces.reserve(tree.size(tree.place) * bytes)?;
        match tree.parent() {
            None => {
                let (first, rest) = ((ranks - root) * bytes, root * bytes);
                // SAFETY: the caller promised a block of every rank at `send`, and the area has room for them.
                unsafe {
                    copy(blocks, op.send.wrapping_add(rest), first, false);
                    copy(offset(blocks, first), op.send, rest, false);
                }
            }
            Some(parent) => {
                let all = tree.size(tree.place) * bytes;
                // SAFETY: the area has room for the blocks; the caller promised one at `recv`.
                unsafe {
                    self.recv(parent, about, blocks, all, 0);
                    self.wait_for_all()?;
                    copy(op.recv, blocks, bytes, false);
                }
            }
        }
        for child in tree.children() {
            let from = offset(blocks, (child - tree.place) * bytes);
            let all = tree.size(child) * bytes;
            // SAFETY: the blocks are there, and stay until this operation is over.
            unsafe { self.send(tree.rank(child), about, from, all, 0) };
        }
        self.wait_for_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every rank gets from its parent exactly what that one sends, once, and the depth is that of a binomial tree.
    #[test]
    fn a_tree_reaches_every_rank_once() {
        for ranks in 1..70 {
            for root in [0, 1, ranks / 2, ranks - 1] {
                let root = root % ranks;
                let mut sources = vec![None; ranks];
                for rank in 0..ranks {
                    let tree = Tree::new(rank, ranks, root);
                    assert!(tree.children().count() <= levels(ranks));
                    let mut below = 1;
                    for child in tree.children() {
                        let source = sources[tree.rank(child)].replace(rank);
                        assert_eq!(source, None, "{ranks} ranks: two parents");
                        // The blocks of a child lie together behind those of the smaller ones.
                        assert_eq!(tree.size(child).min(child - tree.place), tree.size(child));
                        below += tree.size(child);
                    }
                    assert_eq!(below, tree.size(tree.place));
                }
                for (rank, source) in sources.into_iter().enumerate() {
                    assert_eq!(source, Tree::new(rank, ranks, root).parent());
                    let mut at = rank;
                    let mut depth = 0;
                    while let Some(parent) = Tree::new(at, ranks, root).parent() {
                        (at, depth) = (parent, depth + 1);
                    }
                    assert!(at == root && depth <= levels(ranks));
                }
            }
        }
    }

    #[test]
    fn trees_are_for_what_messages_make_slow() {
        for (ranks, bytes, tree) in [
            (2, 1000, false),
            (3, 16 << 10, true),
            (4, 32 << 10, true),
            (4, (32 << 10) + 1, false),
            (16, 72 << 10, true),
            (64, 192 << 10, true),
            (64, 1 << 20, false),
        ] {
            assert_eq!(broadcasts(ranks, bytes), tree, "{ranks} {bytes}");
        }
        assert!(scatters(5, 4096) && !scatters(5, 4097) && !scatters(3, 8));
    }
}
