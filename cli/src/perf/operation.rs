//! The operations that can be measured, how many elements each moves, and their bandwidths.
#![forbid(unsafe_code)]

use clap::ValueEnum;
use flagos_comm::RedOp;

/// An operation of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Operation {
    /// Reduce to every rank
    #[value(alias = "allreduce")]
    AllReduce,
    /// Concatenate every rank's block on every rank
    #[value(alias = "allgather")]
    AllGather,
    /// Reduce, then each rank keeps its block
    #[value(alias = "reducescatter")]
    ReduceScatter,
    /// Copy from the root to every rank
    Broadcast,
    /// Reduce to the root
    Reduce,
    /// Concatenate every rank's block on the root
    Gather,
    /// Give each rank its block of the root's buffer
    Scatter,
    /// Every rank sends one block to every rank
    #[value(name = "alltoall", alias = "all_to_all")]
    AllToAll,
    /// Every rank sends a block of its own size to every rank
    #[value(name = "alltoallv", alias = "all_to_allv")]
    AllToAllv,
    /// Every rank sends to the next and receives from the one before, in one group
    #[value(name = "sendrecv", alias = "send_recv")]
    SendRecv,
    /// No data; returns when every rank has entered
    Barrier,
}

impl Operation {
    /// Every operation, in the order of the table.
    pub const ALL: [Operation; 11] = [
        Operation::AllReduce,
        Operation::AllGather,
        Operation::ReduceScatter,
        Operation::Broadcast,
        Operation::Reduce,
        Operation::Gather,
        Operation::Scatter,
        Operation::AllToAll,
        Operation::AllToAllv,
        Operation::SendRecv,
        Operation::Barrier,
    ];

    /// The name on the command line and in every output.
    pub fn name(self) -> &'static str {
        match self {
            Operation::AllReduce => "all_reduce",
            Operation::AllGather => "all_gather",
            Operation::ReduceScatter => "reduce_scatter",
            Operation::Broadcast => "broadcast",
            Operation::Reduce => "reduce",
            Operation::Gather => "gather",
            Operation::Scatter => "scatter",
            Operation::AllToAll => "alltoall",
            Operation::AllToAllv => "alltoallv",
            Operation::SendRecv => "sendrecv",
            Operation::Barrier => "barrier",
        }
    }

    /// Whether it computes, so that it has a reduction operator.
    pub fn reduces(self) -> bool {
        matches!(
            self,
            Operation::AllReduce | Operation::ReduceScatter | Operation::Reduce
        )
    }

    /// Whether one rank is special.
    pub fn rooted(self) -> bool {
        matches!(
            self,
            Operation::Broadcast | Operation::Reduce | Operation::Gather | Operation::Scatter
        )
    }

    /// Whether the C header defines it with overlapping operands.
    pub fn in_place(self) -> bool {
        !matches!(
            self,
            Operation::AllToAll | Operation::AllToAllv | Operation::SendRecv | Operation::Barrier
        )
    }

    /// Whether the size of the row is cut into one block per rank.
    pub fn blocked(self) -> bool {
        matches!(
            self,
            Operation::AllGather
                | Operation::ReduceScatter
                | Operation::Gather
                | Operation::Scatter
                | Operation::AllToAll
                | Operation::AllToAllv
        )
    }

    /// The count to pass for a row of about `elements` elements in all: blocked operations get
    /// an equal part of it, and at least one element unless nothing was asked for.
    pub fn count(self, elements: usize, ranks: usize) -> usize {
        if self == Operation::Barrier {
            0
        } else if self.blocked() {
            (elements / ranks).max(usize::from(elements > 0))
        } else {
            elements
        }
    }

    /// Elements in the send buffer of `rank`.
    pub fn send_elements(self, count: usize, ranks: usize, rank: usize) -> usize {
        match self {
            Operation::Barrier => 0,
            Operation::ReduceScatter | Operation::Scatter | Operation::AllToAll => count * ranks,
            Operation::AllToAllv => send_layout(count, ranks, rank).end(),
            _ => count,
        }
    }

    /// Elements in the receive buffer of `rank`.
    pub fn recv_elements(self, count: usize, ranks: usize, rank: usize) -> usize {
        match self {
            Operation::Barrier => 0,
            Operation::AllGather | Operation::Gather | Operation::AllToAll => count * ranks,
            Operation::AllToAllv => recv_layout(count, ranks, rank).end(),
            _ => count,
        }
    }

    /// The number of elements that the row's size stands for.
    pub fn row_elements(self, count: usize, ranks: usize) -> usize {
        match self {
            Operation::AllToAllv => (0..ranks)
                .map(|rank| (0..ranks).map(|to| vector_count(count, rank, to)).sum())
                .max()
                .unwrap_or(0),
            _ if self.blocked() => count * ranks,
            _ => count,
        }
    }

    /// Algorithm and bus bandwidth in GB/s (10^9 bytes), after the formulas that nccl-tests
    /// documents. For AlltoAllv the busiest rank counts: all that it sends, and what of it
    /// leaves the rank; with equal blocks that is AlltoAll's formula.
    pub fn bandwidth(self, count: usize, size: usize, ranks: usize, seconds: f64) -> (f64, f64) {
        if self == Operation::Barrier || seconds <= 0.0 {
            return (0.0, 0.0);
        }
        let n = ranks as f64;
        let algorithm = (self.row_elements(count, ranks) * size) as f64 / seconds / 1e9;
        let bus = match self {
            Operation::AllReduce => algorithm * 2.0 * (n - 1.0) / n,
            Operation::AllToAllv => {
                let leaving = (0..ranks)
                    .map(|rank| {
                        let others = (0..ranks).filter(|to| *to != rank);
                        others
                            .map(|to| vector_count(count, rank, to))
                            .sum::<usize>()
                    })
                    .max()
                    .unwrap_or(0);
                (leaving * size) as f64 / seconds / 1e9
            }
            _ if self.blocked() => algorithm * (n - 1.0) / n,
            _ => algorithm,
        };
        (algorithm, bus)
    }
}

/// How an AlltoAllv buffer is cut, in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Elements for each rank.
    pub counts: Vec<usize>,
    /// Where each rank's elements start.
    pub displs: Vec<usize>,
}

impl Layout {
    /// One past the last element.
    pub fn end(&self) -> usize {
        let ends = self.counts.iter().zip(&self.displs).map(|(c, d)| c + d);
        ends.max().unwrap_or(0)
    }
}

/// Elements that `from` sends to `to` in an AlltoAllv row of `count`: nothing, once or twice the
/// count, so that empty blocks and unequal pairs occur.
pub fn vector_count(count: usize, from: usize, to: usize) -> usize {
    count * ((from + 2 * to + 1) % 3)
}

/// The send side: blocks follow each other.
pub fn send_layout(count: usize, ranks: usize, rank: usize) -> Layout {
    layout((0..ranks).map(|to| vector_count(count, rank, to)), 0)
}

/// The receive side: one element that nobody may touch lies between the blocks.
pub fn recv_layout(count: usize, ranks: usize, rank: usize) -> Layout {
    layout((0..ranks).map(|from| vector_count(count, from, rank)), 1)
}

fn layout(counts: impl Iterator<Item = usize>, gap: usize) -> Layout {
    let counts: Vec<usize> = counts.collect();
    let mut next = 0;
    let displs = counts
        .iter()
        .map(|c| {
            let start = next;
            next += c + gap;
            start
        })
        .collect();
    Layout { counts, displs }
}

/// A reduction operator as the command line names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reduction {
    /// One of the library's own.
    Builtin(RedOp),
    /// `mulsum`: a PreMulSum with another scalar on each rank.
    MulSum,
}

impl Reduction {
    /// Every operator.
    pub fn all() -> Vec<Reduction> {
        let own = RedOp::ALL.into_iter().map(Reduction::Builtin);
        own.chain([Reduction::MulSum]).collect()
    }

    /// The name on the command line and in every output.
    pub fn name(self) -> &'static str {
        match self {
            Reduction::Builtin(op) => op.name(),
            Reduction::MulSum => "mulsum",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_follow_the_documented_formulas() {
        let bw = |op: Operation, count| op.bandwidth(count, 4, 4, 1e-3);
        let close = |a: (f64, f64), b: (f64, f64)| {
            assert!(
                (a.0 - b.0).abs() < 1e-12 && (a.1 - b.1).abs() < 1e-12,
                "{a:?} {b:?}"
            );
        };
        close(bw(Operation::AllReduce, 1_000_000), (4.0, 6.0));
        close(bw(Operation::AllGather, 250_000), (4.0, 3.0));
        close(bw(Operation::ReduceScatter, 250_000), (4.0, 3.0));
        close(bw(Operation::Broadcast, 1_000_000), (4.0, 4.0));
        close(bw(Operation::Reduce, 1_000_000), (4.0, 4.0));
        close(bw(Operation::Gather, 250_000), (4.0, 3.0));
        close(bw(Operation::AllToAll, 250_000), (4.0, 3.0));
        close(bw(Operation::SendRecv, 1_000_000), (4.0, 4.0));
        close(bw(Operation::Barrier, 0), (0.0, 0.0));
    }

    #[test]
    fn vector_layouts_of_two_ends_agree() {
        for ranks in 1..9 {
            for a in 0..ranks {
                let recv = recv_layout(5, ranks, a);
                for b in 0..ranks {
                    assert_eq!(recv.counts[b], send_layout(5, ranks, b).counts[a]);
                }
            }
        }
    }

    #[test]
    fn small_rows_of_blocked_operations_still_move_something() {
        assert_eq!(Operation::AllGather.count(2, 4), 1);
        assert_eq!(Operation::AllGather.count(0, 4), 0);
        assert_eq!(Operation::AllReduce.count(2, 4), 2);
    }
}
