//! The vocabulary that every room shares: data types, reduction operators, limits.
//!
//! The numbers are part of the C ABI. Data types 0..=9 and operators 0..=4 have the values of
//! FlagCX and NCCL; fp8 is 10 and 11 as in NCCL.
#![forbid(unsafe_code)]

/// Size in bytes of a [`crate::UniqueId`].
pub const UNIQUE_ID_BYTES: usize = 256;

/// The largest number of ranks of one communicator.
pub const MAX_RANKS: usize = 1 << 20;

/// Element type of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(i32)]
pub enum DataType {
    /// Signed 8-bit integer.
    Int8 = 0,
    /// Unsigned 8-bit integer.
    Uint8 = 1,
    /// Signed 32-bit integer.
    Int32 = 2,
    /// Unsigned 32-bit integer.
    Uint32 = 3,
    /// Signed 64-bit integer.
    Int64 = 4,
    /// Unsigned 64-bit integer.
    Uint64 = 5,
    /// IEEE 754 binary16.
    Float16 = 6,
    /// IEEE 754 binary32.
    Float32 = 7,
    /// IEEE 754 binary64.
    Float64 = 8,
    /// bfloat16: the upper half of a binary32.
    Bfloat16 = 9,
    /// 8-bit float, 4 exponent and 3 mantissa bits. The host tier moves it; a vendor does what it can.
    Float8e4m3 = 10,
    /// 8-bit float, 5 exponent and 2 mantissa bits. The host tier moves it; a vendor does what it can.
    Float8e5m2 = 11,
}

impl DataType {
    /// Every data type, in the order of the ABI's numbers.
    pub const ALL: [DataType; 12] = [
        DataType::Int8,
        DataType::Uint8,
        DataType::Int32,
        DataType::Uint32,
        DataType::Int64,
        DataType::Uint64,
        DataType::Float16,
        DataType::Float32,
        DataType::Float64,
        DataType::Bfloat16,
        DataType::Float8e4m3,
        DataType::Float8e5m2,
    ];

    /// The data type with this ABI number, if there is one.
    #[inline]
    pub const fn from_raw(raw: i32) -> Option<DataType> {
        if raw >= 0 && (raw as usize) < Self::ALL.len() {
            Some(Self::ALL[raw as usize])
        } else {
            None
        }
    }

    /// Size of one element in bytes.
    #[inline]
    pub const fn size(self) -> usize {
        match self {
            DataType::Int8 | DataType::Uint8 | DataType::Float8e4m3 | DataType::Float8e5m2 => 1,
            DataType::Float16 | DataType::Bfloat16 => 2,
            DataType::Int32 | DataType::Uint32 | DataType::Float32 => 4,
            DataType::Int64 | DataType::Uint64 | DataType::Float64 => 8,
        }
    }

    /// The lower-case name used by tools, logs and error texts.
    pub const fn name(self) -> &'static str {
        match self {
            DataType::Int8 => "int8",
            DataType::Uint8 => "uint8",
            DataType::Int32 => "int32",
            DataType::Uint32 => "uint32",
            DataType::Int64 => "int64",
            DataType::Uint64 => "uint64",
            DataType::Float16 => "float16",
            DataType::Float32 => "float32",
            DataType::Float64 => "float64",
            DataType::Bfloat16 => "bfloat16",
            DataType::Float8e4m3 => "float8e4m3",
            DataType::Float8e5m2 => "float8e5m2",
        }
    }

    /// Whether the type is one of the fp8 formats, which the host tier moves but does not reduce.
    pub const fn is_float8(self) -> bool {
        matches!(self, DataType::Float8e4m3 | DataType::Float8e5m2)
    }
}

/// Reduction operator that the library defines itself. Operators made by
/// [`crate::Communicator::create_pre_mul_sum`] have numbers from [`FIRST_CUSTOM_REDOP`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(i32)]
pub enum RedOp {
    /// Sum. Integers wrap.
    Sum = 0,
    /// Product. Integers wrap.
    Prod = 1,
    /// Maximum. A NaN on any rank gives NaN.
    Max = 2,
    /// Minimum. A NaN on any rank gives NaN.
    Min = 3,
    /// Sum divided by the number of ranks. Integers truncate toward zero.
    Avg = 4,
}

impl RedOp {
    /// Every operator, in the order of the ABI's numbers.
    pub const ALL: [RedOp; 5] = [RedOp::Sum, RedOp::Prod, RedOp::Max, RedOp::Min, RedOp::Avg];

    /// The operator with this ABI number, if it is one of the library's own.
    #[inline]
    pub const fn from_raw(raw: i32) -> Option<RedOp> {
        if raw >= 0 && (raw as usize) < Self::ALL.len() {
            Some(Self::ALL[raw as usize])
        } else {
            None
        }
    }

    /// The lower-case name used by tools, logs and error texts.
    pub const fn name(self) -> &'static str {
        match self {
            RedOp::Sum => "sum",
            RedOp::Prod => "prod",
            RedOp::Max => "max",
            RedOp::Min => "min",
            RedOp::Avg => "avg",
        }
    }
}

/// The first number that a custom reduction operator can have.
pub const FIRST_CUSTOM_REDOP: i32 = 1000;

/// What a collective reduces with, resolved from the number that the caller passed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Reduction {
    /// One of the library's own operators.
    Builtin(RedOp),
    /// This rank's contribution is multiplied by a scalar of the operation's data type
    /// (its first `size()` bytes, native byte order) before it is summed.
    PreMulSum([u8; 8]),
}

/// The kind of one operation, as fingerprints, logs and error texts name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum OpKind {
    /// Reduce to all ranks.
    AllReduce = 1,
    /// Copy from the root to all ranks.
    Broadcast = 2,
    /// Reduce to the root.
    Reduce = 3,
    /// Concatenate every rank's block on all ranks.
    AllGather = 4,
    /// Reduce, then each rank keeps its block.
    ReduceScatter = 5,
    /// Concatenate every rank's block on the root.
    Gather = 6,
    /// Each rank gets its block of the root's buffer.
    Scatter = 7,
    /// Every rank sends one block to every rank.
    AllToAll = 8,
    /// Every rank sends a block of its own size to every rank.
    AllToAllv = 9,
    /// Send to one peer.
    Send = 10,
    /// Receive from one peer.
    Recv = 11,
    /// No data; returns when every rank has entered.
    Barrier = 12,
}

impl OpKind {
    /// The kind with this number, if there is one.
    pub const fn from_raw(raw: u8) -> Option<OpKind> {
        Some(match raw {
            1 => OpKind::AllReduce,
            2 => OpKind::Broadcast,
            3 => OpKind::Reduce,
            4 => OpKind::AllGather,
            5 => OpKind::ReduceScatter,
            6 => OpKind::Gather,
            7 => OpKind::Scatter,
            8 => OpKind::AllToAll,
            9 => OpKind::AllToAllv,
            10 => OpKind::Send,
            11 => OpKind::Recv,
            12 => OpKind::Barrier,
            _ => return None,
        })
    }

    /// The name used in error texts: that of the C function without its prefix.
    pub const fn name(self) -> &'static str {
        match self {
            OpKind::AllReduce => "AllReduce",
            OpKind::Broadcast => "Broadcast",
            OpKind::Reduce => "Reduce",
            OpKind::AllGather => "AllGather",
            OpKind::ReduceScatter => "ReduceScatter",
            OpKind::Gather => "Gather",
            OpKind::Scatter => "Scatter",
            OpKind::AllToAll => "AlltoAll",
            OpKind::AllToAllv => "AlltoAllv",
            OpKind::Send => "Send",
            OpKind::Recv => "Recv",
            OpKind::Barrier => "Barrier",
        }
    }
}
