//! The kernels against a naive reference that shares no code with them.

use super::*;

/// One element as a number: exact for every type.
#[derive(Clone, Copy, Debug)]
enum Number {
    Integer(i128),
    Single(f32),
    Double(f64),
}

fn decode(dtype: DataType, bytes: &[u8]) -> Number {
    match dtype {
        DataType::Int8 => Number::Integer(i8::from_ne_bytes([bytes[0]]).into()),
        DataType::Uint8 => Number::Integer(bytes[0].into()),
        DataType::Int32 => Number::Integer(i32::from_ne_bytes(bytes.try_into().unwrap()).into()),
        DataType::Uint32 => Number::Integer(u32::from_ne_bytes(bytes.try_into().unwrap()).into()),
        DataType::Int64 => Number::Integer(i64::from_ne_bytes(bytes.try_into().unwrap()).into()),
        DataType::Uint64 => Number::Integer(u64::from_ne_bytes(bytes.try_into().unwrap()).into()),
        DataType::Float16 => {
            Number::Single(half::f16::from_ne_bytes(bytes.try_into().unwrap()).to_f32())
        }
        DataType::Bfloat16 => {
            Number::Single(half::bf16::from_ne_bytes(bytes.try_into().unwrap()).to_f32())
        }
        DataType::Float32 => Number::Single(f32::from_ne_bytes(bytes.try_into().unwrap())),
        DataType::Float64 => Number::Double(f64::from_ne_bytes(bytes.try_into().unwrap())),
        DataType::Float8e4m3 | DataType::Float8e5m2 => panic!("fp8 is not reduced"),
    }
}

fn encode(dtype: DataType, number: Number, out: &mut Vec<u8>) {
    match (dtype, number) {
        (DataType::Float16, Number::Single(x)) => {
            out.extend(half::f16::from_f32(x).to_ne_bytes());
        }
        (DataType::Bfloat16, Number::Single(x)) => {
            out.extend(half::bf16::from_f32(x).to_ne_bytes());
        }
        (DataType::Float32, Number::Single(x)) => out.extend(x.to_ne_bytes()),
        (DataType::Float64, Number::Double(x)) => out.extend(x.to_ne_bytes()),
        // The low bytes are what wrapping arithmetic leaves.
        (_, Number::Integer(x)) => out.extend(&x.to_le_bytes()[..dtype.size()]),
        other => panic!("{other:?}"),
    }
}

fn pairwise(op: RedOp, a: Number, b: Number) -> Number {
    fn float<T: PartialOrd + Copy>(op: RedOp, a: T, b: T, sum: T, prod: T, nan: Option<T>) -> T {
        match op {
            RedOp::Sum | RedOp::Avg => sum,
            RedOp::Prod => prod,
            RedOp::Max => nan.unwrap_or(if a > b { a } else { b }),
            RedOp::Min => nan.unwrap_or(if a < b { a } else { b }),
        }
    }
    match (a, b) {
        (Number::Integer(a), Number::Integer(b)) => Number::Integer(match op {
            RedOp::Sum | RedOp::Avg => a + b,
            RedOp::Prod => a.wrapping_mul(b),
            RedOp::Max => a.max(b),
            RedOp::Min => a.min(b),
        }),
        (Number::Single(a), Number::Single(b)) => {
            let nan = (a.is_nan() || b.is_nan()).then_some(f32::NAN);
            Number::Single(float(op, a, b, a + b, a * b, nan))
        }
        (Number::Double(a), Number::Double(b)) => {
            let nan = (a.is_nan() || b.is_nan()).then_some(f64::NAN);
            Number::Double(float(op, a, b, a + b, a * b, nan))
        }
        other => panic!("{other:?}"),
    }
}

/// What the reduction of these contributions is, element by element.
pub(crate) fn reference(
    dtype: DataType,
    reduction: Reduction,
    contributions: &[Vec<u8>],
    scales: &[Scale],
) -> Vec<u8> {
    let size = dtype.size();
    let op = match reduction {
        Reduction::Builtin(op) => op,
        Reduction::PreMulSum(_) => RedOp::Sum,
    };
    let mut out = Vec::with_capacity(contributions[0].len());
    for at in (0..contributions[0].len()).step_by(size) {
        let fetch = |source: usize| {
            let number = decode(dtype, &contributions[source][at..at + size]);
            match reduction {
                Reduction::Builtin(_) => number,
                Reduction::PreMulSum(_) => {
                    pairwise(RedOp::Prod, number, decode(dtype, &scales[source][..size]))
                }
            }
        };
        let n = contributions.len();
        let mut acc = fetch(0);
        for source in 1..n {
            let next = fetch(source);
            // Sums of products of 64-bit integers could leave even 128 bits: wrap them first.
            acc = match (reduction, acc, next) {
                (Reduction::PreMulSum(_), Number::Integer(a), Number::Integer(b)) => {
                    Number::Integer(a.wrapping_add(b))
                }
                _ => pairwise(op, acc, next),
            };
        }
        if op == RedOp::Avg {
            acc = match acc {
                Number::Integer(x) => Number::Integer(x / n as i128),
                Number::Single(x) => Number::Single(x / n as f32),
                Number::Double(x) => Number::Double(x / n as f64),
            };
        }
        encode(dtype, acc, &mut out);
    }
    out
}

/// Whether two results are the same bytes; any NaN is as good as any other.
pub(crate) fn same(dtype: DataType, a: &[u8], b: &[u8]) -> bool {
    if a == b {
        return true;
    }
    a.len() == b.len()
        && a.chunks_exact(dtype.size())
            .zip(b.chunks_exact(dtype.size()))
            .all(|(a, b)| {
                let nan = |number| match number {
                    Number::Integer(_) => false,
                    Number::Single(x) => x.is_nan(),
                    Number::Double(x) => x.is_nan(),
                };
                a == b || (nan(decode(dtype, a)) && nan(decode(dtype, b)))
            })
}

/// Whether floats are what a reduction of these contributions comes to, but for what sums and products lose that are
/// rounded on the way. Where a part of it may leave the type's range, anything is.
pub(crate) fn close(
    dtype: DataType,
    reduction: Reduction,
    got: &[u8],
    contributions: &[Vec<u8>],
    scales: &[Scale],
) -> bool {
    let float = |bytes: &[u8]| match decode(dtype, bytes) {
        Number::Single(x) => Some(f64::from(x)),
        Number::Double(x) => Some(x),
        Number::Integer(_) => None,
    };
    let (epsilon, largest, smallest) = match dtype {
        DataType::Float16 => (f64::from(half::f16::EPSILON), 65504.0, 6.2e-5),
        DataType::Bfloat16 => (f64::from(half::bf16::EPSILON), 3e38, 2e-38),
        DataType::Float32 => (f64::from(f32::EPSILON), f64::from(f32::MAX), 2e-38),
        DataType::Float64 => (f64::EPSILON, f64::MAX, 3e-308),
        _ => return false,
    };
    let op = match reduction {
        Reduction::Builtin(op @ (RedOp::Sum | RedOp::Avg | RedOp::Prod)) => op,
        Reduction::PreMulSum(_) => RedOp::Sum,
        // Nothing is lost.
        Reduction::Builtin(_) => return same_as_reference(dtype, reduction, got, contributions),
    };
    let n = contributions.len() as f64;
    let size = dtype.size();
    (0..got.len()).step_by(size).all(|at| {
        let scaled = |(source, all): (usize, &Vec<u8>)| {
            let value = float(&all[at..at + size]).unwrap();
            match reduction {
                Reduction::PreMulSum(_) => value * float(&scales[source][..size]).unwrap(),
                Reduction::Builtin(_) => value,
            }
        };
        let values: Vec<f64> = contributions.iter().enumerate().map(scaled).collect();
        let got = float(&got[at..at + size]).unwrap();
        if values.iter().any(|value| value.is_nan()) {
            return got.is_nan();
        }
        if op == RedOp::Prod {
            let high: f64 = values.iter().map(|value| value.abs().max(1.0)).product();
            let low: f64 = values.iter().map(|value| value.abs().min(1.0)).product();
            let exact: f64 = values.iter().product();
            let beyond = high.is_nan() || high > largest / 2.0 || low < smallest;
            return beyond || (got - exact).abs() <= exact.abs() * epsilon * n;
        }
        let parts = if op == RedOp::Avg { n } else { 1.0 };
        // Half of the range, so that nothing overflows on the way; less than a sum of all of it.
        let magnitude: f64 = values.iter().map(|value| value.abs() / 2.0).sum::<f64>() * 2.0;
        let exact = values.iter().map(|value| value / parts).sum::<f64>();
        let limit = if dtype == DataType::Float16 {
            parts
        } else {
            1.0
        };
        let beyond = !magnitude.is_finite() || magnitude / limit > largest / 2.0;
        beyond || (got - exact).abs() <= magnitude / parts * epsilon * n + smallest * epsilon * n
    })
}

fn same_as_reference(
    dtype: DataType,
    reduction: Reduction,
    got: &[u8],
    contributions: &[Vec<u8>],
) -> bool {
    same(dtype, got, &reference(dtype, reduction, contributions, &[]))
}

/// A small generator, so that every run sees the same values.
#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 16) as usize % bound
    }

    /// Elements of a type: arbitrary bits, so infinities, NaNs and denormals among them, and, half
    /// of the floats, ordinary numbers.
    pub(crate) fn elements(&mut self, dtype: DataType, count: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(count * dtype.size());
        for _ in 0..count {
            let bits = self.next();
            let plain = (bits >> 40) as f64 / 65536.0 - 100.0;
            match dtype {
                DataType::Float16 if bits & 1 == 0 => {
                    out.extend(half::f16::from_f64(plain).to_ne_bytes());
                }
                DataType::Bfloat16 if bits & 1 == 0 => {
                    out.extend(half::bf16::from_f64(plain).to_ne_bytes());
                }
                DataType::Float32 if bits & 1 == 0 => out.extend((plain as f32).to_ne_bytes()),
                DataType::Float64 if bits & 1 == 0 => out.extend(plain.to_ne_bytes()),
                _ => out.extend(&(bits >> 1 ^ bits << 33).to_ne_bytes()[..dtype.size()]),
            }
        }
        out
    }
}

/// Every reduction, PreMulSum with a scalar that is an ordinary number of the type.
pub(crate) fn reductions(dtype: DataType, rank: usize) -> Vec<Reduction> {
    let mut scale = [0u8; 8];
    let mut bytes = Vec::new();
    let number = match dtype {
        DataType::Float64 => Number::Double(0.5 + rank as f64),
        DataType::Float16 | DataType::Bfloat16 | DataType::Float32 => {
            Number::Single(0.5 + rank as f32)
        }
        _ => Number::Integer(3 + rank as i128),
    };
    encode(dtype, number, &mut bytes);
    scale[..bytes.len()].copy_from_slice(&bytes);
    let mut all: Vec<Reduction> = RedOp::ALL.into_iter().map(Reduction::Builtin).collect();
    all.push(Reduction::PreMulSum(scale));
    all
}

pub(crate) fn scales_of(dtype: DataType, ranks: usize) -> Vec<Scale> {
    (0..ranks)
        .map(|rank| match reductions(dtype, rank).last() {
            Some(Reduction::PreMulSum(scale)) => *scale,
            other => panic!("{other:?}"),
        })
        .collect()
}

pub(crate) fn reducible() -> impl Iterator<Item = DataType> {
    DataType::ALL.into_iter().filter(|dtype| !dtype.is_float8())
}

/// Runs a fold at a misalignment and gives both targets.
fn run(
    fold: Fold,
    sources: &[Vec<u8>],
    scales: &[Scale],
    size: usize,
    shift: usize,
    stream: bool,
) -> (Vec<u8>, Vec<u8>) {
    let bytes = sources[0].len();
    let shifted: Vec<Vec<u8>> = sources
        .iter()
        .map(|source| [&vec![0; shift][..], source].concat())
        .collect();
    let pointers: Vec<*const u8> = shifted
        .iter()
        .map(|s| s.as_ptr().wrapping_add(shift))
        .collect();
    let mut first = vec![0xa5u8; bytes + shift + 64];
    let mut second = vec![0xa5u8; bytes + 64];
    let to = Target {
        first: first.as_mut_ptr().wrapping_add(shift),
        second: second.as_mut_ptr(),
        stream,
        stream_second: stream,
    };
    // SAFETY: all buffers have `bytes` bytes after the shift and are different ones.
    unsafe { fold(to, &pointers, scales, pointers.len(), bytes / size) };
    fence();
    assert!(
        first[..shift].iter().all(|&b| b == 0xa5),
        "written in front"
    );
    assert!(
        first[shift + bytes..].iter().all(|&b| b == 0xa5),
        "written behind"
    );
    assert!(second[bytes..].iter().all(|&b| b == 0xa5), "written behind");
    (
        first[shift..shift + bytes].to_vec(),
        second[..bytes].to_vec(),
    )
}

#[test]
fn every_fold_agrees_with_the_reference() {
    let mut random = Random::new(1);
    for dtype in reducible() {
        for sources in [1, 2, 3, 5] {
            for count in [0, 1, 31, 32, 33, 257] {
                let inputs: Vec<Vec<u8>> = (0..sources)
                    .map(|_| random.elements(dtype, count))
                    .collect();
                let scales = scales_of(dtype, sources);
                for reduction in reductions(dtype, 0) {
                    let expected = reference(dtype, reduction, &inputs, &scales);
                    let fold = fold_for(dtype, reduction).unwrap();
                    for (shift, stream) in [(0, false), (1, true), (dtype.size(), true)] {
                        let (a, b) = run(fold, &inputs, &scales, dtype.size(), shift, stream);
                        let case = (dtype, sources, count, reduction, shift, stream);
                        assert!(
                            same(dtype, &a, &expected),
                            "{case:?}: {a:?} not {expected:?}"
                        );
                        assert_eq!(a, b, "{case:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_baseline_agrees_with_what_is_selected() {
    let mut random = Random::new(2);
    let inputs: Vec<Vec<u8>> = (0..3)
        .map(|_| random.elements(DataType::Float16, 3000))
        .collect();
    for (baseline, reduction) in [
        (
            fold_baseline::<FloatSum<Half>> as Fold,
            Reduction::Builtin(RedOp::Sum),
        ),
        (
            fold_baseline::<FloatMax<Half>>,
            Reduction::Builtin(RedOp::Max),
        ),
        (
            fold_baseline::<FloatAvg<Half>>,
            Reduction::Builtin(RedOp::Avg),
        ),
    ] {
        let selected = fold_for(DataType::Float16, reduction).unwrap();
        let (a, _) = run(baseline, &inputs, &[], 2, 0, false);
        let (b, _) = run(selected, &inputs, &[], 2, 0, false);
        assert!(same(DataType::Float16, &a, &b), "{reduction:?}");
    }
}

#[test]
fn every_sixteen_bit_float_survives_and_rounds_once() {
    let every: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
    for dtype in [DataType::Float16, DataType::Bfloat16] {
        let sum = Reduction::Builtin(RedOp::Sum);
        let fold = fold_for(dtype, sum).unwrap();
        let (alone, _) = run(fold, std::slice::from_ref(&every), &[], 2, 0, false);
        assert!(
            same(dtype, &alone, &every),
            "{dtype:?}: widening and narrowing is the identity"
        );
        let mut reversed = every.clone();
        reversed.reverse();
        let both = [every.clone(), reversed];
        let (total, _) = run(fold, &both, &[], 2, 0, false);
        assert!(
            same(dtype, &total, &reference(dtype, sum, &both, &[])),
            "{dtype:?}"
        );
    }
}

#[test]
fn sums_are_kept_wide() {
    fn one<const S: usize>(dtype: DataType, op: RedOp, values: &[[u8; S]]) -> [u8; S] {
        let sources: Vec<Vec<u8>> = values.iter().map(|value| value.to_vec()).collect();
        let fold = fold_for(dtype, Reduction::Builtin(op)).unwrap();
        run(fold, &sources, &[], S, 0, false).0.try_into().unwrap()
    }
    let bf16 = |x: f32| half::bf16::from_f32(x).to_ne_bytes();
    let f16 = |x: f32| half::f16::from_f32(x).to_ne_bytes();
    let bf = [256.0, 1.0, 1.0, 1.0].map(bf16);
    assert_eq!(one(DataType::Bfloat16, RedOp::Sum, &bf), bf16(260.0));
    let half = [60000.0, 10000.0, -10000.0].map(f16);
    assert_eq!(one(DataType::Float16, RedOp::Sum, &half), f16(60000.0));
    let avg = |values: &[i32]| {
        let bytes: Vec<[u8; 4]> = values.iter().map(|v| v.to_ne_bytes()).collect();
        i32::from_ne_bytes(one(DataType::Int32, RedOp::Avg, &bytes))
    };
    assert_eq!(avg(&[1, 2, 4]), 2);
    assert_eq!(avg(&[-1, -2, -4]), -2);
    assert_eq!(avg(&[i32::MAX, i32::MAX, i32::MAX]), i32::MAX);
    let big = [u64::MAX, u64::MAX - 1, u64::MAX - 5].map(u64::to_ne_bytes);
    assert_eq!(
        one(DataType::Uint64, RedOp::Avg, &big),
        (u64::MAX - 2).to_ne_bytes()
    );
    let edge = [(1u64 << 63) + 3, (1 << 63) + 1, (1 << 63) - 1].map(u64::to_ne_bytes);
    assert_eq!(
        one(DataType::Uint64, RedOp::Avg, &edge),
        ((1u64 << 63) + 1).to_ne_bytes()
    );
    let wrap = [120i8, 100].map(i8::to_ne_bytes);
    assert_eq!(
        one(DataType::Int8, RedOp::Sum, &wrap),
        (-36i8).to_ne_bytes()
    );
    let nan = [1.0f32, f32::NAN, 2.0].map(f32::to_ne_bytes);
    for op in [RedOp::Max, RedOp::Min] {
        assert!(f32::from_ne_bytes(one(DataType::Float32, op, &nan)).is_nan());
    }
    let tiny = [f32::from_bits(1), f32::from_bits(2)].map(f32::to_ne_bytes);
    assert_eq!(
        one(DataType::Float32, RedOp::Sum, &tiny),
        f32::from_bits(3).to_ne_bytes()
    );
}

#[test]
fn copies_are_exact_at_every_alignment() {
    let source: Vec<u8> = (0..1000u32).map(|i| (i % 251) as u8).collect();
    for stream in [false, true] {
        for to in 0..18 {
            for len in [0, 1, 15, 16, 63, 64, 65, 200, 777] {
                let mut target = vec![0xa5u8; 1000];
                // SAFETY: 17 + 777 < 1000 - 3, in two different vectors.
                unsafe {
                    copy(
                        target.as_mut_ptr().add(to),
                        source.as_ptr().add(3),
                        len,
                        stream,
                    )
                };
                fence();
                assert_eq!(target[to..to + len], source[3..3 + len]);
                assert!(
                    target[..to]
                        .iter()
                        .chain(&target[to + len..])
                        .all(|&b| b == 0xa5)
                );
            }
        }
    }
    // SAFETY: nothing is copied.
    unsafe { copy(std::ptr::null_mut(), std::ptr::null(), 0, true) };
}

/// Elements of an average.
const AVERAGED: usize = 2 * BLOCK + 1;

/// Averages of integers are computed with floats where they fit: sums as large as they get, and quotients that are just
/// below an integer.
fn averages_are_truncated_exactly<I: Copy + PartialEq + std::fmt::Debug>(
    dtype: DataType,
    extremes: &[I],
    exact: impl Fn(i128, i128) -> I,
) where
    i128: From<I>,
{
    let fold = fold_for(dtype, Reduction::Builtin(RedOp::Avg)).unwrap();
    for ranks in [2, 3, 7, 127, MAX_ENGINE_RANKS] {
        for (at, &large) in extremes.iter().enumerate() {
            for &odd in extremes {
                // All ranks give one value, but for some that give another.
                let others = (at * 31 + ranks / 2) % ranks;
                let values: Vec<I> = (0..ranks)
                    .map(|r| if r < others { odd } else { large })
                    .collect();
                // In whole blocks, and beyond them.
                let each: Vec<[I; AVERAGED]> = values.iter().map(|v| [*v; AVERAGED]).collect();
                let sources: Vec<*const u8> = each.iter().map(|v| v.as_ptr().cast()).collect();
                let mut result = [large; AVERAGED];
                let to = Target::one(result.as_mut_ptr().cast(), false);
                // SAFETY: every source and the target have as many elements.
                unsafe { fold(to, &sources, &[], ranks, AVERAGED) };
                let sum: i128 = values.iter().map(|v| i128::from(*v)).sum();
                assert_eq!(
                    result,
                    [exact(sum, ranks as i128); AVERAGED],
                    "{dtype:?} of {ranks}: {large:?}, {others} times {odd:?}"
                );
            }
        }
    }
}

macro_rules! averages {
    ($($name:ident: $dtype:ident, $int:ty, $extremes:expr;)*) => {$(
        #[test]
        fn $name() {
            averages_are_truncated_exactly::<$int>(DataType::$dtype, &$extremes, |sum, n| (sum / n) as $int);
        }
    )*};
}

averages! {
    averages_of_int8_are_truncated_exactly: Int8, i8, [i8::MIN, -127, -1, 0, 1, 126, i8::MAX];
    averages_of_uint8_are_truncated_exactly: Uint8, u8, [0, 1, 2, 254, u8::MAX];
    averages_of_int32_are_truncated_exactly:
        Int32, i32, [i32::MIN, i32::MIN + 1, -1, 0, 1, i32::MAX - 1, i32::MAX];
    averages_of_uint32_are_truncated_exactly: Uint32, u32, [0, 1, u32::MAX - 1, u32::MAX];
    averages_of_int64_are_truncated_exactly:
        Int64, i64, [i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX - 1, i64::MAX];
    averages_of_uint64_are_truncated_exactly: Uint64, u64, [0, 1, u64::MAX - 1, u64::MAX];
}
