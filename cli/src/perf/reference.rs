//! The independent reference: what every rank contributes and what every rank must receive.
//!
//! Contributions come from a seeded pattern that each rank computes for all ranks, so nothing
//! but the library under test has moved the data that is compared.
#![forbid(unsafe_code)]

use super::numbers::{
    Format, decode_float, encode_float, format, load, power_of_two, show, store, wrap,
};
use super::operation::{Operation, Reduction, recv_layout, send_layout};
use flagos_comm::{DataType, RedOp};

/// Which values the ranks contribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// Values for which the result is exact in any order of evaluation (integers may wrap).
    Exact,
    /// 16-bit floats whose sum is exact in binary32 but not in their own format, so that the
    /// result shows where it was rounded.
    Rounding,
    /// Random reals: the result depends on the order, within a bound.
    Real,
    /// As `Exact`, with a NaN on one rank now and then.
    Nan,
}

impl Pattern {
    /// The patterns worth checking a reduction with.
    pub fn for_reduction(dtype: DataType, op: Reduction, nan: bool) -> Vec<Pattern> {
        let mut patterns = vec![Pattern::Exact];
        if let Format::Float { mantissa, .. } = format(dtype) {
            match op {
                Reduction::Builtin(RedOp::Sum) if mantissa < 23 => patterns.push(Pattern::Rounding),
                Reduction::Builtin(RedOp::Sum | RedOp::Avg) => patterns.push(Pattern::Real),
                Reduction::Builtin(RedOp::Max | RedOp::Min) if nan => patterns.push(Pattern::Nan),
                _ => {}
            }
        }
        patterns
    }

    /// The name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Exact => "exact",
            Pattern::Rounding => "rounding",
            Pattern::Real => "real",
            Pattern::Nan => "nan",
        }
    }
}

/// One call whose data is known.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The operation.
    pub operation: Operation,
    /// Element type.
    pub dtype: DataType,
    /// Operator of a reduction.
    pub reduction: Reduction,
    /// Root of a rooted operation.
    pub root: usize,
    /// Count as the operation's C function takes it.
    pub count: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Which values.
    pub pattern: Pattern,
    /// Changes the values.
    pub seed: u64,
    /// Whether 16-bit floats are summed in binary32 and rounded once (the host tier promises it).
    pub rounds_once: bool,
}

/// The first mismatches in full, and how many there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mismatches {
    /// How many elements are wrong.
    pub wrong: u64,
    /// A line for each of the first ones.
    pub details: Vec<String>,
}

/// Mismatches that are described; the others are counted.
const DETAILS: usize = 4;

impl Mismatches {
    /// Counts one and describes it if it is among the first.
    pub fn add(&mut self, describe: impl FnOnce() -> String) {
        self.wrong += 1;
        if self.details.len() < DETAILS {
            self.details.push(describe());
        }
    }
}

/// What one element of a result must be.
enum Expected {
    /// These bits (moved, or integer).
    Bits(u64),
    /// This value within this distance; both zeros and all NaNs are alike.
    Value(f64, f64),
}

fn mix(seed: u64, rank: usize, index: usize) -> u64 {
    let mut z = seed
        .wrapping_add((rank as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .wrapping_add((index as u64 + 1).wrapping_mul(0xd1b5_4a32_d192_ed03));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Case {
    /// A line that names the case, for messages.
    pub fn describe(&self) -> String {
        if self.operation == Operation::Barrier {
            return "barrier".to_owned();
        }
        let mut text = format!("{} {}", self.operation.name(), self.dtype.name());
        if self.operation.reduces() {
            text += &format!(
                " {} ({} values)",
                self.reduction.name(),
                self.pattern.name()
            );
        }
        if self.operation.rooted() {
            text += &format!(" root {}", self.root);
        }
        let bytes = self.operation.row_elements(self.count, self.ranks) * self.dtype.size();
        text + &format!(" count {} ({bytes} bytes)", self.count)
    }

    /// The largest multiplier `k` so that all partial sums of `k`-sized terms are exact.
    fn amplitude(&self, mantissa: u32, headroom: i64) -> i64 {
        let room = 1i64 << (mantissa + 1).min(40);
        (room / (headroom * self.ranks as i64)).clamp(1, 1 << 10)
    }

    /// PreMulSum's scalar of a rank, as a value.
    fn scalar(&self, rank: usize) -> f64 {
        match format(self.dtype) {
            Format::Int { .. } => (rank % 3 + 1) as f64,
            _ => [0.5, 1.0, 2.0][rank % 3],
        }
    }

    /// PreMulSum's scalar of a rank, as the bytes of one element.
    pub fn scalar_bytes(&self, rank: usize) -> [u8; 8] {
        let value = self.scalar(rank);
        match format(self.dtype) {
            Format::Float { exponent, mantissa } => encode_float(value, exponent, mantissa),
            _ => value as u64,
        }
        .to_le_bytes()
    }

    /// What a rank contributes at an index, as an integer.
    fn int(&self, rank: usize, index: usize, bits: u32, signed: bool) -> i128 {
        let random = mix(self.seed, rank, index);
        match self.reduction {
            // The sum must not wrap here, or "truncates" would not say what the result is.
            Reduction::Builtin(RedOp::Avg) => {
                let max = (1i128 << (bits - u32::from(signed))) - 1;
                let limit = (max / self.ranks as i128).clamp(1, 1 << 20);
                let value = i128::from(random) % (limit + 1);
                if signed && random >> 63 == 1 {
                    -value
                } else {
                    value
                }
            }
            _ => wrap(i128::from(random), bits, signed),
        }
    }

    /// What a rank contributes at an index, as a real number that the format holds exactly.
    fn real(&self, rank: usize, index: usize, exponent: u32, mantissa: u32) -> f64 {
        let random = mix(self.seed, rank, index);
        let sign = if random >> 63 == 1 { -1.0 } else { 1.0 };
        if self.pattern == Pattern::Nan && index % 37 == 5 && index % self.ranks == rank {
            return f64::NAN;
        }
        match (self.reduction, self.pattern) {
            // Signs and, on the first ranks, a factor of two either way: no rounding, no overflow.
            (Reduction::Builtin(RedOp::Prod), _) => {
                let step = if rank < 8 { (random % 3) as i32 - 1 } else { 0 };
                sign * power_of_two(step)
            }
            (_, Pattern::Rounding) => {
                let fraction = (random >> 8) & ((1 << mantissa) - 1);
                let significand = ((1u64 << mantissa) + fraction) as f64;
                sign * significand * power_of_two((random % 5) as i32 - 2 - mantissa as i32)
            }
            (_, Pattern::Real) => {
                let value = (random >> 11) as f64 * power_of_two(-53);
                decode_float(
                    encode_float(sign * value, exponent, mantissa),
                    exponent,
                    mantissa,
                )
            }
            (Reduction::MulSum, _) => {
                let limit = self.amplitude(mantissa, 4);
                sign * (random % (limit as u64 + 1)) as f64
            }
            _ => {
                let limit = self.amplitude(mantissa, 1);
                sign * (random % (limit as u64 + 1)) as f64 * 0.125
            }
        }
    }

    /// The bits that a rank contributes at an index of its send buffer.
    pub fn contribution(&self, rank: usize, index: usize) -> u64 {
        if !self.operation.reduces() {
            return mix(self.seed, rank, index) & (u64::MAX >> (64 - 8 * self.dtype.size() as u32));
        }
        match format(self.dtype) {
            Format::Int { bits, signed } => {
                (self.int(rank, index, bits, signed) as u64) & (u64::MAX >> (64 - bits))
            }
            Format::Float { exponent, mantissa } => encode_float(
                self.real(rank, index, exponent, mantissa),
                exponent,
                mantissa,
            ),
            Format::Opaque => mix(self.seed, rank, index) & 0xff,
        }
    }

    /// Fills `bytes` with what `rank` contributes from `first` on.
    pub fn fill(&self, bytes: &mut [u8], rank: usize, first: usize) {
        let size = self.dtype.size();
        for i in 0..bytes.len() / size {
            store(bytes, i, size, self.contribution(rank, first + i));
        }
    }

    fn reduced(&self, index: usize) -> Expected {
        match format(self.dtype) {
            Format::Int { bits, signed } => {
                let term = |rank| self.int(rank, index, bits, signed);
                let all = 0..self.ranks;
                let value = match self.reduction {
                    Reduction::Builtin(RedOp::Sum) => all.map(term).fold(0, i128::wrapping_add),
                    Reduction::Builtin(RedOp::Prod) => all.map(term).fold(1i128, |product, v| {
                        wrap(product.wrapping_mul(v), bits, signed)
                    }),
                    Reduction::Builtin(RedOp::Max) => all.map(term).max().unwrap_or(0),
                    Reduction::Builtin(RedOp::Min) => all.map(term).min().unwrap_or(0),
                    Reduction::Builtin(RedOp::Avg) => {
                        // Rust's division truncates toward zero.
                        all.map(term).sum::<i128>() / self.ranks as i128
                    }
                    Reduction::MulSum => all
                        .map(|r| term(r) * self.scalar(r) as i128)
                        .fold(0, i128::wrapping_add),
                };
                Expected::Bits((value as u64) & (u64::MAX >> (64 - bits)))
            }
            Format::Float { exponent, mantissa } => self.reduced_float(index, exponent, mantissa),
            Format::Opaque => Expected::Bits(0),
        }
    }

    fn reduced_float(&self, index: usize, exponent: u32, mantissa: u32) -> Expected {
        let n = self.ranks as f64;
        let term = |rank| self.real(rank, index, exponent, mantissa);
        let round = |v| decode_float(encode_float(v, exponent, mantissa), exponent, mantissa);
        let ulp = power_of_two(-(mantissa as i32));
        let (mut sum, mut size) = (0.0, 0.0);
        let mut add = |v: f64| {
            sum += v;
            size += v.abs();
        };
        match self.reduction {
            Reduction::Builtin(RedOp::Prod) => {
                return Expected::Value(round((0..self.ranks).map(term).product()), 0.0);
            }
            Reduction::Builtin(op @ (RedOp::Max | RedOp::Min)) => {
                let pick = |a: f64, b: f64| match op {
                    _ if a.is_nan() || b.is_nan() => f64::NAN,
                    RedOp::Max => a.max(b),
                    _ => a.min(b),
                };
                let value = (0..self.ranks).map(term).reduce(pick).unwrap_or(0.0);
                return Expected::Value(value, 0.0);
            }
            Reduction::MulSum => (0..self.ranks).for_each(|r| add(term(r) * self.scalar(r))),
            Reduction::Builtin(_) => (0..self.ranks).for_each(|r| add(term(r))),
        }
        let average = self.reduction == Reduction::Builtin(RedOp::Avg);
        let divisor = if average { n } else { 1.0 };
        let exact = match self.pattern {
            Pattern::Exact | Pattern::Nan => {
                // Dividing by another number than a power of two may be done by multiplying
                // with a rounded reciprocal.
                let fits = self.ranks as i64
                    * if self.reduction == Reduction::MulSum {
                        4
                    } else {
                        1
                    }
                    <= 1 << (mantissa + 1).min(40);
                fits && (!average || self.ranks.is_power_of_two())
            }
            Pattern::Rounding => self.rounds_once && !average,
            Pattern::Real => false,
        };
        // Below the normal numbers the spacing no longer shrinks with the value.
        let spacing = if mantissa < 52 {
            power_of_two(2 - (1 << (exponent - 1)) - mantissa as i32)
        } else {
            0.0
        };
        let tolerance = if exact {
            0.0
        } else {
            (n + 2.0) * ulp * size / divisor + spacing
        };
        Expected::Value(round(sum / divisor), tolerance)
    }

    /// What element `index` of the receive buffer of `rank` must be; `None` if nobody may have
    /// written it.
    fn expected(&self, rank: usize, index: usize) -> Option<Expected> {
        let n = self.ranks;
        let moved = |from, at| Some(Expected::Bits(self.contribution(from, at)));
        // Only asked for count > 0: with count 0 there is no element.
        match self.operation {
            Operation::AllReduce => Some(self.reduced(index)),
            Operation::Reduce => (rank == self.root).then(|| self.reduced(index)),
            Operation::ReduceScatter => Some(self.reduced(rank * self.count + index)),
            Operation::Broadcast => moved(self.root, index),
            Operation::AllGather => moved(index / self.count, index % self.count),
            Operation::Gather if rank == self.root => moved(index / self.count, index % self.count),
            Operation::Gather => None,
            Operation::Scatter => moved(self.root, rank * self.count + index),
            Operation::AllToAll => {
                moved(index / self.count, rank * self.count + index % self.count)
            }
            Operation::AllToAllv => {
                let layout = recv_layout(self.count, n, rank);
                let from = (0..n).find(|from| {
                    let start = layout.displs[*from];
                    (start..start + layout.counts[*from]).contains(&index)
                })?;
                let at = send_layout(self.count, n, from).displs[rank];
                moved(from, at + index - layout.displs[from])
            }
            Operation::SendRecv => moved((rank + n - 1) % n, index),
            Operation::Barrier => None,
        }
    }

    /// Compares every element of a result with the reference. `before` holds the bytes from
    /// before the call, which untouched elements must still have.
    pub fn verify(
        &self,
        rank: usize,
        how: &str,
        got: &[u8],
        before: &[u8],
        found: &mut Mismatches,
    ) {
        let size = self.dtype.size();
        // Layouts and untouched buffers are the same for all elements; the rest is per element.
        let vector = (self.operation == Operation::AllToAllv).then(|| self.vector_sources(rank));
        for index in 0..got.len() / size {
            let bits = load(got, index, size);
            let expected = match &vector {
                Some(sources) => {
                    sources[index].map(|(from, at)| Expected::Bits(self.contribution(from, at)))
                }
                None => self.expected(rank, index),
            };
            let fine = match &expected {
                None => bits == load(before, index, size),
                Some(Expected::Bits(wanted)) => bits == *wanted,
                Some(Expected::Value(wanted, tolerance)) => self.close(bits, *wanted, *tolerance),
            };
            if !fine {
                found.add(|| {
                    let wanted = match expected {
                        None => format!(
                            "{} as before the call",
                            show(load(before, index, size), self.dtype)
                        ),
                        Some(Expected::Bits(wanted)) => show(wanted, self.dtype),
                        Some(Expected::Value(wanted, 0.0)) => self.show_value(wanted),
                        Some(Expected::Value(wanted, tolerance)) => {
                            format!("{wanted:?} ± {tolerance:e}")
                        }
                    };
                    format!(
                        "{} {how} rank {rank} index {index}: expected {wanted}, got {}",
                        self.describe(),
                        show(bits, self.dtype)
                    )
                });
            }
        }
    }

    /// For each element of an AlltoAllv receive buffer where it comes from.
    fn vector_sources(&self, rank: usize) -> Vec<Option<(usize, usize)>> {
        let layout = recv_layout(self.count, self.ranks, rank);
        let mut sources = vec![None; layout.end()];
        for from in 0..self.ranks {
            let at = send_layout(self.count, self.ranks, from).displs[rank];
            for i in 0..layout.counts[from] {
                sources[layout.displs[from] + i] = Some((from, at + i));
            }
        }
        sources
    }

    fn close(&self, bits: u64, wanted: f64, tolerance: f64) -> bool {
        let Format::Float { exponent, mantissa } = format(self.dtype) else {
            return false;
        };
        let got = decode_float(bits, exponent, mantissa);
        if wanted.is_nan() {
            got.is_nan()
        } else {
            got == wanted || (got - wanted).abs() <= tolerance
        }
    }

    fn show_value(&self, value: f64) -> String {
        match format(self.dtype) {
            Format::Float { exponent, mantissa } => {
                show(encode_float(value, exponent, mantissa), self.dtype)
            }
            _ => format!("{value:?}"),
        }
    }

    /// Whether all ranks must hold the same bits afterwards.
    pub fn same_everywhere(&self) -> bool {
        self.operation == Operation::AllReduce
    }
}

/// The byte that position `index` of a buffer holds before anything is written to it.
pub fn poison(index: usize) -> u8 {
    (index.wrapping_mul(0x9d) >> 3) as u8 ^ 0xa5
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(operation: Operation, dtype: DataType, reduction: Reduction) -> Case {
        Case {
            operation,
            dtype,
            reduction,
            root: 1,
            count: 5,
            ranks: 3,
            pattern: Pattern::Exact,
            seed: 7,
            rounds_once: true,
        }
    }

    /// What the rank must hold, by the definition of the operation, computed here once more.
    fn result(case: &Case, rank: usize) -> Vec<u8> {
        let size = case.dtype.size();
        let elements = case.operation.recv_elements(case.count, case.ranks, rank);
        let mut bytes: Vec<u8> = (0..elements * size).map(poison).collect();
        for index in 0..elements {
            match case.expected(rank, index) {
                None => {}
                Some(Expected::Bits(bits)) => store(&mut bytes, index, size, bits),
                Some(Expected::Value(value, _)) => {
                    let Format::Float { exponent, mantissa } = format(case.dtype) else {
                        unreachable!("values are floats")
                    };
                    store(
                        &mut bytes,
                        index,
                        size,
                        encode_float(value, exponent, mantissa),
                    );
                }
            }
        }
        bytes
    }

    #[test]
    fn the_reference_accepts_itself_and_sees_one_flipped_bit() {
        for operation in Operation::ALL {
            for dtype in DataType::ALL {
                for reduction in Reduction::all() {
                    if operation.reduces() && dtype.is_float8() {
                        continue;
                    }
                    let case = case(operation, dtype, reduction);
                    for rank in 0..3 {
                        let before: Vec<u8> = (0..4096).map(poison).collect();
                        let mut got = result(&case, rank);
                        let mut found = Mismatches::default();
                        case.verify(rank, "out of place", &got, &before, &mut found);
                        assert_eq!(found, Mismatches::default(), "{}", case.describe());
                        if let Some(last) = got.last_mut() {
                            *last ^= 0x40;
                            case.verify(rank, "out of place", &got, &before, &mut found);
                            assert_eq!(found.wrong, 1, "{}", case.describe());
                        }
                    }
                }
            }
        }
    }

    fn sum_of(dtype: DataType, op: RedOp, index: usize) -> (f64, f64) {
        match case(Operation::AllReduce, dtype, Reduction::Builtin(op)).reduced(index) {
            Expected::Value(value, tolerance) => (value, tolerance),
            Expected::Bits(bits) => (bits as f64, 0.0),
        }
    }

    #[test]
    fn float_sums_of_the_exact_pattern_need_no_tolerance() {
        for dtype in [
            DataType::Float16,
            DataType::Bfloat16,
            DataType::Float32,
            DataType::Float64,
        ] {
            for ranks in 1..=64 {
                let case = Case {
                    ranks,
                    ..case(Operation::AllReduce, dtype, Reduction::Builtin(RedOp::Sum))
                };
                let Format::Float { exponent, mantissa } = format(dtype) else {
                    unreachable!("floats only")
                };
                for index in 0..50 {
                    // Summed in the format itself, in two orders, with rounding at every step.
                    let round =
                        |v| decode_float(encode_float(v, exponent, mantissa), exponent, mantissa);
                    let term = |r| case.real(r, index, exponent, mantissa);
                    let up = (0..ranks).map(term).fold(0.0, |a, v| round(a + v));
                    let down = (0..ranks).rev().map(term).fold(0.0, |a, v| round(a + v));
                    assert_eq!(up, down);
                    assert!(matches!(case.reduced(index), Expected::Value(v, 0.0) if v == up));
                }
            }
        }
    }

    #[test]
    fn the_rounding_pattern_tells_one_rounding_from_several() {
        for (dtype, exponent, mantissa) in [(DataType::Float16, 5, 10), (DataType::Bfloat16, 8, 7)]
        {
            let case = Case {
                pattern: Pattern::Rounding,
                ranks: 4,
                ..case(Operation::AllReduce, dtype, Reduction::Builtin(RedOp::Sum))
            };
            let round = |v| decode_float(encode_float(v, exponent, mantissa), exponent, mantissa);
            let mut differs = 0;
            for index in 0..200 {
                let term = |r| case.real(r, index, exponent, mantissa);
                let single: f32 = (0..4).map(|r| term(r) as f32).sum();
                let stepwise = (0..4).map(term).fold(0.0, |a, v| round(a + v));
                let Expected::Value(wanted, tolerance) = case.reduced(index) else {
                    unreachable!("floats only")
                };
                assert_eq!(tolerance, 0.0);
                assert_eq!(round(f64::from(single)), wanted);
                differs += u32::from(stepwise != wanted);
            }
            assert!(differs > 10, "{differs}");
        }
    }

    #[test]
    fn integer_averages_truncate_toward_zero() {
        let case = case(
            Operation::AllReduce,
            DataType::Int32,
            Reduction::Builtin(RedOp::Avg),
        );
        let mut negative = false;
        for index in 0..100 {
            let sum: i128 = (0..3).map(|r| case.int(r, index, 32, true)).sum();
            let Expected::Bits(bits) = case.reduced(index) else {
                unreachable!("integers are bits")
            };
            let got = i128::from(bits as u32 as i32);
            assert!((got * 3 - sum).abs() < 3 && got.abs() * 3 <= sum.abs());
            negative |= sum < 0 && sum % 3 != 0;
        }
        assert!(negative);
    }

    #[test]
    fn a_nan_on_one_rank_is_expected_in_max_and_min() {
        for op in [RedOp::Max, RedOp::Min] {
            let case = Case {
                pattern: Pattern::Nan,
                ..case(
                    Operation::AllReduce,
                    DataType::Bfloat16,
                    Reduction::Builtin(op),
                )
            };
            assert!(matches!(case.reduced(5), Expected::Value(v, _) if v.is_nan()));
            assert!(matches!(case.reduced(6), Expected::Value(v, _) if !v.is_nan()));
        }
        assert!(!sum_of(DataType::Float32, RedOp::Sum, 5).0.is_nan());
    }

    #[test]
    fn products_stay_finite_on_many_ranks() {
        let case = Case {
            ranks: 64,
            ..case(
                Operation::AllReduce,
                DataType::Float16,
                Reduction::Builtin(RedOp::Prod),
            )
        };
        for index in 0..500 {
            let Expected::Value(value, _) = case.reduced(index) else {
                unreachable!("floats only")
            };
            assert!(value != 0.0 && value.is_finite());
        }
    }
}
