//! The arguments of `perf`, and what they resolve to.
#![forbid(unsafe_code)]

use super::operation::{Operation, Reduction};
use crate::cli::{bytes, seconds};
use clap::{Args, ValueEnum};
use flagos_comm::{DataType, RedOp};
use std::path::PathBuf;

/// Which of the two ways to pass the operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum InPlace {
    /// Separate send and receive buffers
    Out,
    /// One buffer (operations that have no in-place form are left out)
    In,
    /// Both
    Both,
}

/// Where the operands lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Memory {
    /// The library's memory on a vendor's tier, ordinary memory on the host tier
    Auto,
    /// Ordinary memory of the process
    Host,
    /// The library's memory (flagosMemAlloc)
    Lib,
}

/// Measure the operations, and with --check compare every element with a reference
///
/// Ranks: started by the tool itself (--ranks), unless torchrun, mpirun, srun or `flagos-comm
/// launch` has started this process as one of several (RANK and WORLD_SIZE,
/// OMPI_COMM_WORLD_RANK and _SIZE, PMI_RANK and PMI_SIZE, SLURM_PROCID in a step); then the ranks
/// find each other at MASTER_ADDR:MASTER_PORT (port + 1 if torchrun's agent listens on it or it is
/// taken; whoever reaches that port while the ranks start can take a rank's place, so use it on
/// networks that you trust), or, on one machine without MASTER_ADDR, at an abstract socket named
/// by user and job.
/// --ranks, --threads and --single-thread make the tool start its own ranks in any case.
///
/// The vendor's library is used if every rank has a GPU of its own, else the host tier.
///
/// Time is that of the slowest rank, the median of --blocks blocks, each begun with a barrier.
/// Bandwidth is in GB/s (10^9 bytes per second) by the formulas of nccl-tests; sizes are bytes,
/// for operations with a block per rank of all blocks together.
///
/// Exit code: 0; 1 if --check found wrong values; 2 for bad arguments; 3 for errors; 124 if a
/// step took longer than --timeout; 128 + n if a rank died of signal n.
#[derive(Args, Clone, Debug)]
pub struct PerfArgs {
    /// Operations to run [default: all]
    #[arg(value_enum, value_name = "OPERATION")]
    pub operations: Vec<Operation>,

    /// Smallest size in bytes; suffixes K, M, G
    #[arg(short = 'b', long = "minbytes", value_name = "BYTES", default_value = "8",
          value_parser = bytes, help_heading = "Sizes")]
    pub min_bytes: usize,
    /// Largest size in bytes; suffixes K, M, G
    #[arg(short = 'e', long = "maxbytes", value_name = "BYTES", default_value = "4M",
          value_parser = bytes, help_heading = "Sizes")]
    pub max_bytes: usize,
    /// Each size is the one before times this [default: 8]
    #[arg(short = 'f', long = "stepfactor", value_name = "FACTOR",
          value_parser = crate::cli::factor, conflicts_with = "step_bytes",
          help_heading = "Sizes")]
    pub step_factor: Option<u64>,
    /// Each size is the one before plus this many bytes; suffixes K, M, G
    #[arg(short = 'i', long = "stepbytes", value_name = "BYTES", value_parser = bytes,
          help_heading = "Sizes")]
    pub step_bytes: Option<usize>,

    /// Timed calls of a row, all blocks together [default: as many as take about 50 ms, 5 to 5000]
    #[arg(short = 'n', long = "iters", value_name = "CALLS",
          value_parser = clap::value_parser!(u32).range(1..), help_heading = "Timing")]
    pub iters: Option<u32>,
    /// Calls before the clock starts
    #[arg(
        short = 'w',
        long = "warmup_iters",
        value_name = "CALLS",
        default_value_t = 5,
        help_heading = "Timing"
    )]
    pub warmup: u32,
    /// Blocks that the timed calls are divided into; the time is the median of the blocks
    #[arg(long, value_name = "BLOCKS", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = "Timing")]
    pub blocks: u32,
    /// Use the NULL stream: the vendor's default stream; without a driver each call returns when
    /// it is complete [default: a stream of its own for each rank]
    #[arg(long, conflicts_with = "single_thread", help_heading = "Timing")]
    pub blocking_stream: bool,

    /// Data type: int8 uint8 int32 uint32 int64 uint64 half float double bfloat16 float8e4m3
    /// float8e5m2 (or float16 float32 float64), or `all` [default: float32; for the cases that
    /// --check adds: all]
    #[arg(
        short = 'd',
        long = "datatype",
        value_name = "TYPE",
        help_heading = "Data"
    )]
    pub dtype: Option<String>,
    /// Reduction: sum prod max min avg mulsum (each rank's own factor), or `all` [default: sum;
    /// for the cases that --check adds: all]
    #[arg(short = 'o', long = "op", value_name = "OP", help_heading = "Data")]
    pub op: Option<String>,
    /// Root rank, or `all` [default: 0; for the cases that --check adds: the first and the last]
    #[arg(short = 'r', long = "root", value_name = "RANK", help_heading = "Data")]
    pub root: Option<String>,
    /// Operands in place or not
    #[arg(
        long,
        value_enum,
        value_name = "WHICH",
        default_value = "both",
        help_heading = "Data"
    )]
    pub in_place: InPlace,
    /// Where the operands lie
    #[arg(
        long,
        value_enum,
        value_name = "WHERE",
        default_value = "auto",
        help_heading = "Data"
    )]
    pub memory: Memory,

    /// Compare every element of every rank, and the bytes around the buffers, with a reference
    /// that does not use the library; also run every type, operator and root at --check-counts
    #[arg(short = 'c', long, num_args = 0..=1, require_equals = true, default_missing_value = "1",
          value_parser = clap::value_parser!(u8).range(0..=1), value_name = "0|1",
          help_heading = "Checking")]
    pub check: Option<u8>,
    /// Element counts (per rank) of the cases that --check adds
    #[arg(
        long,
        value_name = "COUNTS",
        value_delimiter = ',',
        requires = "check",
        default_value = "0,1,7,1027,20011",
        help_heading = "Checking"
    )]
    pub check_counts: Vec<usize>,
    /// Change one byte of each result of this rank before it is compared (tests the check itself)
    #[arg(long, value_name = "RANK", hide = true)]
    pub corrupt: Option<usize>,

    /// Number of ranks [default: the number of GPUs if that is 2 or more, else the number of
    /// cores, but from 2 to 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024),
          help_heading = "Ranks")]
    pub ranks: Option<u32>,
    /// The ranks are threads of one process
    #[arg(long, conflicts_with = "single_thread", help_heading = "Ranks")]
    pub threads: bool,
    /// One thread owns all ranks: CommInitAll, and every round of calls in a group
    #[arg(long, help_heading = "Ranks")]
    pub single_thread: bool,
    /// Let the kernel place the ranks [default: if there are enough cores, each rank that the tool
    /// starts is bound to its own, as mpirun does]
    #[arg(long, help_heading = "Ranks")]
    pub no_bind: bool,
    /// Tiers to try in this order, comma-separated: native, flagcx, host [default:
    /// FLAGOSCOMM_TIERS, else the library's order if every rank has a GPU, else host]
    #[arg(long, value_name = "TIERS", help_heading = "Ranks")]
    pub tiers: Option<String>,
    /// Longest time in seconds for init, and for any one collective
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = seconds,
          help_heading = "Ranks")]
    pub timeout: f64,
    /// Run this libflagos_comm.so through its C functions [default: the engine in this tool]
    #[arg(long, value_name = "PATH", help_heading = "Ranks")]
    pub lib: Option<PathBuf>,

    /// Write the results to this file as JSON
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub json: Option<PathBuf>,
    /// Draw bus bandwidth and time against size into this SVG file
    #[arg(long, value_name = "FILE.svg", help_heading = "Output")]
    pub plot: Option<PathBuf>,

    /// Set by the tool for the ranks that it starts
    #[arg(long, value_name = "RANK", hide = true, requires = "as_ranks")]
    pub as_rank: Option<usize>,
    /// Number of those ranks
    #[arg(long, value_name = "N", hide = true)]
    pub as_ranks: Option<usize>,
    /// Descriptors of the connections to the other ranks
    #[arg(long, value_name = "FDS", hide = true, value_delimiter = ',')]
    pub as_links: Vec<i32>,
}

/// What the arguments say about the work, checked.
#[derive(Clone, Debug)]
pub struct Work {
    /// Operations.
    pub operations: Vec<Operation>,
    /// Sizes of the rows in bytes.
    pub sizes: Vec<usize>,
    /// Types of the rows.
    pub dtypes: Vec<DataType>,
    /// Operators of the rows.
    pub reductions: Vec<Reduction>,
    /// Roots of the rows.
    pub roots: Vec<usize>,
    /// Types of the cases that --check adds.
    pub check_dtypes: Vec<DataType>,
    /// Operators of those.
    pub check_reductions: Vec<Reduction>,
    /// Roots of those.
    pub check_roots: Vec<usize>,
}

fn dtype(name: &str) -> Option<DataType> {
    let alias = match name {
        "half" => "float16",
        "float" => "float32",
        "double" => "float64",
        "char" => "int8",
        "int" => "int32",
        other => other,
    };
    DataType::ALL
        .into_iter()
        .find(|dtype| dtype.name() == alias)
}

fn reduction(name: &str) -> Option<Reduction> {
    let own = RedOp::ALL.into_iter().find(|op| op.name() == name);
    match name {
        "mulsum" | "premulsum" => Some(Reduction::MulSum),
        _ => own.map(Reduction::Builtin),
    }
}

impl PerfArgs {
    /// Whether results are compared.
    pub fn checks(&self) -> bool {
        self.check == Some(1)
    }

    /// The work for this number of ranks.
    ///
    /// # Errors
    /// Which argument does not make sense.
    pub fn work(&self, ranks: usize) -> Result<Work, String> {
        if self.min_bytes > self.max_bytes {
            return Err(format!(
                "-b {} is larger than -e {}",
                self.min_bytes, self.max_bytes
            ));
        }
        let operations = if self.operations.is_empty() {
            Operation::ALL.to_vec()
        } else {
            self.operations.clone()
        };
        let named = match self.dtype.as_deref() {
            None => None,
            Some("all") => Some(DataType::ALL.to_vec()),
            Some(name) => Some(vec![dtype(name).ok_or_else(|| {
                let names: Vec<_> = DataType::ALL.iter().map(|d| d.name()).collect();
                format!("-d {name}: the types are {} and all", names.join(" "))
            })?]),
        };
        let ops = match self.op.as_deref() {
            None => None,
            Some("all") => Some(Reduction::all()),
            Some(name) => Some(vec![reduction(name).ok_or_else(|| {
                format!("-o {name}: the operators are sum prod max min avg mulsum and all")
            })?]),
        };
        let roots = match self.root.as_deref() {
            None => None,
            Some("all") => Some((0..ranks).collect()),
            Some(text) => match text.parse::<usize>() {
                Ok(root) if root < ranks => Some(vec![root]),
                _ => return Err(format!("-r {text}: there are ranks 0 to {}", ranks - 1)),
            },
        };
        if let Some(rank) = self.corrupt
            && rank >= ranks
        {
            return Err(format!(
                "--corrupt {rank}: there are ranks 0 to {}",
                ranks - 1
            ));
        }
        let mut first_and_last = vec![0, ranks - 1];
        first_and_last.dedup();
        let moves = operations.iter().any(|operation| !operation.reduces());
        let computes = |types: &[DataType]| types.iter().any(|dtype| !dtype.is_float8());
        if !moves && named.as_deref().is_some_and(|types| !computes(types)) {
            return Err(format!(
                "-d {}: 8-bit floats are moved but not reduced, and all operations reduce",
                self.dtype.as_deref().unwrap_or_default()
            ));
        }
        if matches!(self.in_place, InPlace::In) && !operations.iter().any(|op| op.in_place()) {
            let names: Vec<_> = operations.iter().map(|op| op.name()).collect();
            return Err(format!(
                "--in-place in: {} has no in-place form",
                names.join(", ")
            ));
        }
        Ok(Work {
            operations,
            sizes: self.sizes()?,
            check_dtypes: named.clone().unwrap_or_else(|| DataType::ALL.to_vec()),
            dtypes: named.unwrap_or_else(|| vec![DataType::Float32]),
            check_reductions: ops.clone().unwrap_or_else(Reduction::all),
            reductions: ops.unwrap_or_else(|| vec![Reduction::Builtin(RedOp::Sum)]),
            check_roots: roots.clone().unwrap_or(first_and_last),
            roots: roots.unwrap_or_else(|| vec![0]),
        })
    }

    fn sizes(&self) -> Result<Vec<usize>, String> {
        let mut sizes = Vec::new();
        let mut size = self.min_bytes;
        while size <= self.max_bytes {
            sizes.push(size);
            if sizes.len() > 10_000 {
                return Err("more than 10000 sizes: use a larger step".to_owned());
            }
            let next = match (self.step_bytes, self.step_factor) {
                (Some(0), _) => None,
                (Some(step), _) => size.checked_add(step),
                (None, factor) => size.checked_mul(factor.unwrap_or(8) as usize),
            };
            match next {
                // A size of 0 does not grow by a factor.
                Some(0) => size = 8,
                Some(next) => size = next,
                None => break,
            }
        }
        Ok(sizes)
    }
}
