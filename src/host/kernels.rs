//! Reduction and copy kernels.
//!
//! A fold reads the contributions of all ranks, combines them in the order in which they are given
//! and writes the result. 16-bit floats are widened to `f32`, combined there and rounded once;
//! integer averages are summed in a wider type and truncated toward zero. All loops work on blocks
//! that are loaded completely before anything of them is stored: the target may therefore be one of
//! the sources. Pointers need no alignment, and no reference to a buffer is ever formed.
//!
//! The same generic source is compiled twice: for the baseline of the architecture, and on x86-64
//! for AVX2 (with F16C for binary16), chosen when the fold is looked up. AVX-512 was tried and does not pay.

use crate::host::check::MAX_ENGINE_RANKS;
use crate::types::{DataType, RedOp, Reduction};
use std::marker::PhantomData;

/// A scalar of PreMulSum: its first bytes are a value of the operation's data type.
pub(crate) type Scale = [u8; 8];

/// Where a fold writes its result.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    /// Gets the result.
    pub first: *mut u8,
    /// Gets the result as well, unless null.
    pub second: *mut u8,
    /// Write `first` past the caches: it is too big to be found there later. Whoever sets this calls
    /// [`fence`] before others are told that the result is there.
    pub stream: bool,
    /// The same for `second`.
    pub stream_second: bool,
}

impl Target {
    /// One place for the result.
    pub(crate) fn one(first: *mut u8, stream: bool) -> Target {
        Target {
            first,
            second: std::ptr::null_mut(),
            stream,
            stream_second: false,
        }
    }
}

/// Combines `count` elements of every source, in order, into the target. `scales` has one entry per
/// source for PreMulSum and is not looked at otherwise; an average is the sum divided by `ranks`, which may be
/// more than there are sources, where these are sums themselves.
///
/// # Safety
/// There is at least one source; every source is readable and every target writable for `count`
/// elements of the data type for which the fold was looked up; a target either is exactly a source
/// or overlaps none, and the two targets do not overlap; nobody else writes any of it meanwhile.
pub(crate) type Fold =
    unsafe fn(to: Target, sources: &[*const u8], scales: &[Scale], ranks: usize, count: usize);

/// The same for two sources, a few elements, and reductions without scalars.
///
/// # Safety
/// As [`Fold`].
pub(crate) type FoldPair =
    unsafe fn(to: *mut u8, first: *const u8, second: *const u8, count: usize);

/// The functions of one data type and reduction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Folding {
    pub fold: Fold,
    pub pair: FoldPair,
}

/// The fold for a data type and a reduction; `None` for fp8, which the host tier only moves.
pub(crate) fn fold_for(dtype: DataType, reduction: Reduction) -> Option<Fold> {
    folding_for(dtype, reduction).map(|folding| folding.fold)
}

fn folding_for(dtype: DataType, reduction: Reduction) -> Option<Folding> {
    let half_in_hardware = half_in_hardware();
    Some(match dtype {
        DataType::Int8 => integer::<i8>(reduction),
        DataType::Uint8 => integer::<u8>(reduction),
        DataType::Int32 => integer::<i32>(reduction),
        DataType::Uint32 => integer::<u32>(reduction),
        DataType::Int64 => integer::<i64>(reduction),
        DataType::Uint64 => integer::<u64>(reduction),
        #[cfg(target_arch = "x86_64")]
        DataType::Float16 if half_in_hardware => float::<x86::HardwareHalf>(reduction),
        DataType::Float16 => {
            debug_assert!(!half_in_hardware);
            float::<Half>(reduction)
        }
        DataType::Float32 => float::<Single>(reduction),
        DataType::Float64 => float::<Double>(reduction),
        #[cfg(target_arch = "x86_64")]
        DataType::Bfloat16 if half_in_hardware => float::<x86::WideBrain>(reduction),
        DataType::Bfloat16 => float::<Brain>(reduction),
        DataType::Float8e4m3 | DataType::Float8e5m2 => return None,
    })
}

/// The folds of all data types and of the library's own reductions, looked up once.
#[derive(Debug)]
pub(crate) struct Folds([[Option<Folding>; RedOp::ALL.len()]; DataType::ALL.len()]);

impl Folds {
    pub(crate) fn new() -> Folds {
        let of = |dtype| RedOp::ALL.map(|op| folding_for(dtype, Reduction::Builtin(op)));
        Folds(DataType::ALL.map(of))
    }

    /// What is known for a data type and a reduction.
    #[inline(always)]
    pub(crate) fn get(&self, dtype: DataType, op: RedOp) -> Option<Folding> {
        self.0[dtype as usize][op as usize]
    }
}

fn integer<I: Integer>(reduction: Reduction) -> Folding {
    match reduction {
        Reduction::Builtin(RedOp::Sum) => select::<IntegerSum<I>>(),
        Reduction::Builtin(RedOp::Prod) => select::<IntegerProd<I>>(),
        Reduction::Builtin(RedOp::Max) => select::<IntegerMax<I>>(),
        Reduction::Builtin(RedOp::Min) => select::<IntegerMin<I>>(),
        Reduction::Builtin(RedOp::Avg) => select::<IntegerAvg<I>>(),
        Reduction::PreMulSum(_) => select::<IntegerPreMulSum<I>>(),
    }
}

fn float<F: Float>(reduction: Reduction) -> Folding {
    match reduction {
        Reduction::Builtin(RedOp::Sum) => select::<FloatSum<F>>(),
        Reduction::Builtin(RedOp::Prod) => select::<FloatProd<F>>(),
        Reduction::Builtin(RedOp::Max) => select::<FloatMax<F>>(),
        Reduction::Builtin(RedOp::Min) => select::<FloatMin<F>>(),
        Reduction::Builtin(RedOp::Avg) => select::<FloatAvg<F>>(),
        Reduction::PreMulSum(_) => select::<FloatPreMulSum<F>>(),
    }
}

fn select<K: Kernel>() -> Folding {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("f16c") {
        return Folding {
            fold: x86::fold_avx2::<K>,
            pair: x86::pair_avx2::<K>,
        };
    }
    Folding {
        fold: fold_baseline::<K>,
        pair: pair_baseline::<K>,
    }
}

fn half_in_hardware() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("f16c")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// Elements per block: at most 256 bytes of accumulators in the common types, so that they stay in
/// registers.
const BLOCK: usize = 32;

/// One reduction of one data type.
trait Kernel {
    /// An element as it lies in memory.
    type Raw: Copy;
    /// What contributions are combined in.
    type Acc: Copy;
    /// Whether every source is multiplied by its own scalar.
    const SCALED: bool;

    fn load(raw: Self::Raw) -> Self::Acc;
    /// Only called if `SCALED`.
    #[inline(always)]
    fn scale(value: Self::Acc, _by: Self::Acc) -> Self::Acc {
        value
    }
    fn combine(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn finish(acc: Self::Acc, ranks: usize) -> Self::Raw;

    /// `load` of a whole block.
    #[inline(always)]
    fn load_block(raw: [Self::Raw; BLOCK]) -> [Self::Acc; BLOCK] {
        raw.map(Self::load)
    }

    /// `finish` of a whole block.
    #[inline(always)]
    fn finish_block(acc: [Self::Acc; BLOCK], ranks: usize) -> [Self::Raw; BLOCK] {
        acc.map(
            #[inline(always)]
            |value| Self::finish(value, ranks),
        )
    }
}

/// # Safety
/// As [`Fold`].
#[inline(always)]
unsafe fn fold_body<K: Kernel>(
    to: Target,
    sources: &[*const u8],
    scales: &[Scale],
    ranks: usize,
    count: usize,
) {
    let size = size_of::<K::Raw>();
    let scale = |source: usize| {
        // SAFETY: a Scale has eight bytes, no element type has more, and every bit pattern of them
        // is a value of Raw (an integer or a float).
        K::load(unsafe { scales[source].as_ptr().cast::<K::Raw>().read_unaligned() })
    };
    let one = |index: usize| {
        let fetch = |source: usize| {
            // SAFETY: index < count, and the caller promised `count` readable elements.
            let raw = unsafe { sources[source].cast::<K::Raw>().add(index).read_unaligned() };
            let value = K::load(raw);
            if K::SCALED {
                K::scale(value, scale(source))
            } else {
                value
            }
        };
        let mut acc = fetch(0);
        for source in 1..sources.len() {
            acc = K::combine(acc, fetch(source));
        }
        let result = K::finish(acc, ranks);
        // SAFETY: index < count, and the caller promised `count` writable elements.
        unsafe {
            to.first.cast::<K::Raw>().add(index).write_unaligned(result);
            if !to.second.is_null() {
                to.second
                    .cast::<K::Raw>()
                    .add(index)
                    .write_unaligned(result);
            }
        }
    };
    let mut index = 0;
    let mut stream = to.stream;
    // Aligned where the first target is.
    let apart = to.first.addr().wrapping_sub(to.second.addr());
    let stream_second = to.stream_second && apart.is_multiple_of(16);
    if stream {
        // Streaming stores want 16-byte alignment: whole elements up to there, one by one.
        let gap = to.first.align_offset(16);
        stream = gap.is_multiple_of(size);
        if stream {
            while index < (gap / size).min(count) {
                one(index);
                index += 1;
            }
        }
    }
    while index + BLOCK <= count {
        let fetch = |source: usize| {
            // SAFETY: index + BLOCK <= count, and the caller promised `count` readable elements.
            let raw = unsafe {
                sources[source]
                    .cast::<K::Raw>()
                    .add(index)
                    .cast::<[K::Raw; BLOCK]>()
                    .read_unaligned()
            };
            let mut block = K::load_block(raw);
            if K::SCALED {
                let by = scale(source);
                for value in &mut block {
                    *value = K::scale(*value, by);
                }
            }
            block
        };
        let mut acc = fetch(0);
        let mut source = 1;
        while source < sources.len() {
            let block = fetch(source);
            for lane in 0..BLOCK {
                acc[lane] = K::combine(acc[lane], block[lane]);
            }
            source += 1;
        }
        let result = K::finish_block(acc, ranks);
        // SAFETY: index + BLOCK <= count, and the caller promised `count` writable elements; `stream`
        // is only still set if `first + index` is aligned to 16, which whole blocks preserve, as a
        // block is a multiple of 16 bytes; `stream_second` if `second` is as far from that as `first`.
        unsafe {
            let first = to.first.cast::<K::Raw>().add(index);
            if stream {
                stream_block(
                    first.cast(),
                    (&raw const result).cast(),
                    size_of_val(&result),
                );
            } else {
                first.cast::<[K::Raw; BLOCK]>().write_unaligned(result);
            }
            if !to.second.is_null() {
                let second = to.second.cast::<K::Raw>().add(index);
                if stream && stream_second {
                    stream_block(
                        second.cast(),
                        (&raw const result).cast(),
                        size_of_val(&result),
                    );
                } else {
                    second.cast::<[K::Raw; BLOCK]>().write_unaligned(result);
                }
            }
        }
        index += BLOCK;
    }
    while index < count {
        one(index);
        index += 1;
    }
}

/// # Safety
/// As [`Fold`].
unsafe fn fold_baseline<K: Kernel>(
    to: Target,
    sources: &[*const u8],
    scales: &[Scale],
    ranks: usize,
    count: usize,
) {
    // SAFETY: the caller's promises are those of `fold_body`.
    unsafe { fold_body::<K>(to, sources, scales, ranks, count) }
}

/// # Safety
/// As [`FoldPair`].
#[inline(always)]
unsafe fn pair_body<K: Kernel>(to: *mut u8, first: *const u8, second: *const u8, count: usize) {
    for index in 0..count {
        // SAFETY: index < count, and the caller promised as many elements everywhere.
        unsafe {
            let load = |from: *const u8| K::load(from.cast::<K::Raw>().add(index).read_unaligned());
            let result = K::finish(K::combine(load(first), load(second)), 2);
            to.cast::<K::Raw>().add(index).write_unaligned(result);
        }
    }
}

/// # Safety
/// As [`FoldPair`].
unsafe fn pair_baseline<K: Kernel>(to: *mut u8, first: *const u8, second: *const u8, count: usize) {
    // SAFETY: the caller's promises are those of `pair_body`.
    unsafe { pair_body::<K>(to, first, second, count) }
}

/// Copies a whole number of 16-byte units past the caches where the architecture can.
///
/// # Safety
/// `to` is aligned to 16 and writable, `from` readable, for `bytes` bytes, a multiple of 16.
#[inline(always)]
unsafe fn stream_block(to: *mut u8, from: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
        let mut at = 0;
        while at < bytes {
            // SAFETY: SSE2 is part of x86-64; at + 16 <= bytes, and `to` is aligned.
            unsafe {
                _mm_stream_si128(
                    to.add(at).cast::<__m128i>(),
                    _mm_loadu_si128(from.add(at).cast::<__m128i>()),
                );
            }
            at += 16;
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller promised both ranges, and a block on the stack or in a slot overlaps no
    // target.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, bytes);
    }
}

/// Copies bytes, past the caches if `stream`; then [`fence`] comes before others are told.
///
/// # Safety
/// `from` is readable and `to` writable for `bytes` bytes, and they do not overlap. Either may be
/// null if `bytes` is 0.
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize, stream: bool) {
    if bytes == 0 {
        return;
    }
    let mut done = 0;
    if stream && cfg!(target_arch = "x86_64") {
        done = to.align_offset(16).min(bytes);
        let units = (bytes - done) / 64 * 64;
        // SAFETY: `done` bytes are inside both ranges; after them `to` is aligned to 16 (or
        // nothing is left), and `units` is a multiple of 16 not above what is left.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, done);
            stream_block(to.add(done), from.add(done), units);
        }
        done += units;
    }
    // SAFETY: the rest of the two ranges that the caller promised.
    unsafe { std::ptr::copy_nonoverlapping(from.add(done), to.add(done), bytes - done) }
}

/// Copies a few bytes, without a call.
///
/// # Safety
/// As [`copy`].
#[inline(always)]
pub(crate) unsafe fn copy_few(to: *mut u8, from: *const u8, bytes: usize) {
    /// # Safety
    /// As [`copy`], for the bytes of a `T`.
    #[inline(always)]
    unsafe fn unit<T: Copy>(to: *mut u8, from: *const u8) {
        // SAFETY: handed down from the caller; neither needs to be aligned.
        unsafe {
            to.cast::<T>()
                .write_unaligned(from.cast::<T>().read_unaligned())
        }
    }
    // SAFETY: every unit ends within `bytes`; the last one may overlap the one before it, which has put
    // the same bytes there, as the ranges do not overlap each other.
    unsafe {
        if bytes >= 16 {
            let last = bytes - 16;
            let mut at = 0;
            while at < last {
                unit::<u128>(to.add(at), from.add(at));
                at += 16;
            }
            unit::<u128>(to.add(last), from.add(last));
        } else if bytes >= 8 {
            unit::<u64>(to, from);
            unit::<u64>(to.add(bytes - 8), from.add(bytes - 8));
        } else if bytes >= 4 {
            unit::<u32>(to, from);
            unit::<u32>(to.add(bytes - 4), from.add(bytes - 4));
        } else {
            for at in 0..bytes {
                unit::<u8>(to.add(at), from.add(at));
            }
        }
    }
}

/// Orders streaming stores before what follows.
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64, and sfence only orders stores.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Asks for a cache line that will be written soon. No more than a hint: any address will do.
#[inline(always)]
pub(crate) fn prefetch_for_writing(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch changes nothing that a program could see, and never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_ET0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// The integers of the data types.
trait Integer: Copy + Ord {
    /// Holds the sum of as many values as a communicator can have ranks.
    type Wide: Copy;
    fn wrapping_add(self, other: Self) -> Self;
    fn wrapping_mul(self, other: Self) -> Self;
    fn widen(self) -> Self::Wide;
    fn add_wide(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    /// The quotient, truncated toward zero. It is always in range: the mean of values of a type is.
    fn mean(sum: Self::Wide, sources: usize) -> Self;
}

macro_rules! integers {
    ($($int:ty => $wide:ty, $mean:expr;)*) => {$(
        impl Integer for $int {
            type Wide = $wide;
            #[inline(always)]
            fn wrapping_add(self, other: Self) -> Self {
                <$int>::wrapping_add(self, other)
            }
            #[inline(always)]
            fn wrapping_mul(self, other: Self) -> Self {
                <$int>::wrapping_mul(self, other)
            }
            #[inline(always)]
            fn widen(self) -> $wide {
                self as $wide
            }
            #[inline(always)]
            fn add_wide(a: $wide, b: $wide) -> $wide {
                a + b
            }
            #[inline(always)]
            fn mean(sum: $wide, sources: usize) -> Self {
                ($mean)(sum, sources as $wide) as $int
            }
        }
    )*};
}
/// The low bits of an integer that a float holds, without a conversion of a kind that has no vectors: at so large a
/// number the last bit of a float is worth one.
#[inline(always)]
fn low_bits_of_single(whole: f32) -> u32 {
    (whole + 12_582_912.0).to_bits()
}

/// As [`low_bits_of_single`].
#[inline(always)]
fn low_bits_of_double(whole: f64) -> u64 {
    (whole + 6_755_399_441_055_744.0).to_bits()
}

// Floats divide many times faster, and are exact here: they hold every sum, and a quotient that is no integer is further
// from the next one, by one part in the number of ranks, than it is rounded by.
integers! {
    i8 => f32, |sum: f32, n: f32| low_bits_of_single((sum / n).trunc());
    u8 => f32, |sum: f32, n: f32| low_bits_of_single((sum / n).trunc());
    i32 => f64, |sum: f64, n: f64| low_bits_of_double((sum / n).trunc());
    u32 => f64, |sum: f64, n: f64| low_bits_of_double((sum / n).trunc());
    i64 => i128, |sum: i128, n: i128| match i64::try_from(sum) {
        Ok(sum) => sum / n as i64,
        Err(_) => (sum / n) as i64,
    };
    u64 => u128, |sum: u128, n: u128| match u64::try_from(sum) {
        Ok(sum) => sum / n as u64,
        Err(_) => (sum / n) as u64,
    };
}
const _: () = assert!((u8::MAX as u32 * MAX_ENGINE_RANKS as u32) < 1 << f32::MANTISSA_DIGITS);
const _: () = assert!(u32::MAX as u64 * MAX_ENGINE_RANKS as u64 <= 1 << f64::MANTISSA_DIGITS);

/// The floats of the data types, and how they are computed with.
trait Float {
    type Raw: Copy;
    type Acc: Copy
        + PartialOrd
        + std::ops::Add<Output = Self::Acc>
        + std::ops::Mul<Output = Self::Acc>
        + std::ops::Div<Output = Self::Acc>;
    fn widen(raw: Self::Raw) -> Self::Acc;
    fn narrow(acc: Self::Acc) -> Self::Raw;
    fn from_count(count: usize) -> Self::Acc;

    #[inline(always)]
    fn widen_block(raw: [Self::Raw; BLOCK]) -> [Self::Acc; BLOCK] {
        raw.map(Self::widen)
    }
    #[inline(always)]
    fn narrow_block(acc: [Self::Acc; BLOCK]) -> [Self::Raw; BLOCK] {
        acc.map(Self::narrow)
    }
}

/// IEEE 754 binary32.
struct Single;
impl Float for Single {
    type Raw = f32;
    type Acc = f32;
    #[inline(always)]
    fn widen(raw: f32) -> f32 {
        raw
    }
    #[inline(always)]
    fn narrow(acc: f32) -> f32 {
        acc
    }
    #[inline(always)]
    fn from_count(count: usize) -> f32 {
        count as f32
    }
}

/// IEEE 754 binary64.
struct Double;
impl Float for Double {
    type Raw = f64;
    type Acc = f64;
    #[inline(always)]
    fn widen(raw: f64) -> f64 {
        raw
    }
    #[inline(always)]
    fn narrow(acc: f64) -> f64 {
        acc
    }
    #[inline(always)]
    fn from_count(count: usize) -> f64 {
        count as f64
    }
}

/// bfloat16, computed with in binary32.
struct Brain;
impl Float for Brain {
    type Raw = u16;
    type Acc = f32;
    #[inline(always)]
    fn widen(raw: u16) -> f32 {
        f32::from_bits(u32::from(raw) << 16)
    }
    /// To the nearest, ties to even, without a branch so that it vectorises.
    #[inline(always)]
    fn narrow(acc: f32) -> u16 {
        let bits = acc.to_bits();
        let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
        // Rounding could carry a NaN's payload into infinity; the quiet bit keeps it a NaN.
        let nan = (bits >> 16) as u16 | 0x40;
        if acc.is_nan() { nan } else { rounded }
    }
    #[inline(always)]
    fn from_count(count: usize) -> f32 {
        count as f32
    }
}

/// IEEE 754 binary16, computed with in binary32, converted in software.
struct Half;
impl Float for Half {
    type Raw = u16;
    type Acc = f32;
    #[inline(always)]
    fn widen(raw: u16) -> f32 {
        half::f16::from_bits(raw).to_f32()
    }
    #[inline(always)]
    fn narrow(acc: f32) -> u16 {
        half::f16::from_f32(acc).to_bits()
    }
    #[inline(always)]
    fn from_count(count: usize) -> f32 {
        count as f32
    }
}

macro_rules! integer_kernels {
    ($($name:ident: $combine:expr;)*) => {$(
        struct $name<I>(PhantomData<I>);
        impl<I: Integer> Kernel for $name<I> {
            type Raw = I;
            type Acc = I;
            const SCALED: bool = false;
            #[inline(always)]
            fn load(raw: I) -> I {
                raw
            }
            #[inline(always)]
            fn combine(a: I, b: I) -> I {
                $combine(a, b)
            }
            #[inline(always)]
            fn finish(acc: I, _sources: usize) -> I {
                acc
            }
        }
    )*};
}
integer_kernels! {
    IntegerSum: I::wrapping_add;
    IntegerProd: I::wrapping_mul;
    IntegerMax: I::max;
    IntegerMin: I::min;
}

struct IntegerAvg<I>(PhantomData<I>);
impl<I: Integer> Kernel for IntegerAvg<I> {
    type Raw = I;
    type Acc = I::Wide;
    const SCALED: bool = false;
    #[inline(always)]
    fn load(raw: I) -> I::Wide {
        raw.widen()
    }
    #[inline(always)]
    fn combine(a: I::Wide, b: I::Wide) -> I::Wide {
        I::add_wide(a, b)
    }
    #[inline(always)]
    fn finish(acc: I::Wide, sources: usize) -> I {
        I::mean(acc, sources)
    }
}

struct IntegerPreMulSum<I>(PhantomData<I>);
impl<I: Integer> Kernel for IntegerPreMulSum<I> {
    type Raw = I;
    type Acc = I;
    const SCALED: bool = true;
    #[inline(always)]
    fn load(raw: I) -> I {
        raw
    }
    #[inline(always)]
    fn scale(value: I, by: I) -> I {
        value.wrapping_mul(by)
    }
    #[inline(always)]
    fn combine(a: I, b: I) -> I {
        a.wrapping_add(b)
    }
    #[inline(always)]
    fn finish(acc: I, _sources: usize) -> I {
        acc
    }
}

/// The first if it is greater or a NaN, else the second: a NaN on either side comes through.
#[inline(always)]
#[expect(
    clippy::eq_op,
    reason = "x != x is how a generic float says that it is a NaN"
)]
fn float_max<A: Copy + PartialOrd>(a: A, b: A) -> A {
    if a > b || a != a { a } else { b }
}

/// As [`float_max`] for the lesser.
#[inline(always)]
#[expect(
    clippy::eq_op,
    reason = "x != x is how a generic float says that it is a NaN"
)]
fn float_min<A: Copy + PartialOrd>(a: A, b: A) -> A {
    if a < b || a != a { a } else { b }
}

macro_rules! float_kernels {
    ($($name:ident: $scaled:literal, $combine:expr, $mean:literal;)*) => {$(
        struct $name<F>(PhantomData<F>);
        impl<F: Float> Kernel for $name<F> {
            type Raw = F::Raw;
            type Acc = F::Acc;
            const SCALED: bool = $scaled;
            #[inline(always)]
            fn load(raw: F::Raw) -> F::Acc {
                F::widen(raw)
            }
            #[inline(always)]
            fn load_block(raw: [F::Raw; BLOCK]) -> [F::Acc; BLOCK] {
                F::widen_block(raw)
            }
            #[inline(always)]
            fn scale(value: F::Acc, by: F::Acc) -> F::Acc {
                value * by
            }
            #[inline(always)]
            fn combine(a: F::Acc, b: F::Acc) -> F::Acc {
                let combine: fn(F::Acc, F::Acc) -> F::Acc = $combine;
                combine(a, b)
            }
            #[inline(always)]
            fn finish(acc: F::Acc, sources: usize) -> F::Raw {
                F::narrow(if $mean { acc / F::from_count(sources) } else { acc })
            }
            #[inline(always)]
            fn finish_block(mut acc: [F::Acc; BLOCK], sources: usize) -> [F::Raw; BLOCK] {
                if $mean {
                    let sources = F::from_count(sources);
                    for value in &mut acc {
                        *value = *value / sources;
                    }
                }
                F::narrow_block(acc)
            }
        }
    )*};
}
float_kernels! {
    FloatSum: false, |a, b| a + b, false;
    FloatProd: false, |a, b| a * b, false;
    FloatMax: false, float_max, false;
    FloatMin: false, float_min, false;
    FloatAvg: false, |a, b| a + b, true;
    FloatPreMulSum: true, |a, b| a + b, false;
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::*;
    use std::arch::x86_64::*;

    /// # Safety
    /// As [`Fold`], and the processor has AVX2 and F16C.
    #[target_feature(enable = "avx2,f16c")]
    pub(super) unsafe fn fold_avx2<K: Kernel>(
        to: Target,
        sources: &[*const u8],
        scales: &[Scale],
        ranks: usize,
        count: usize,
    ) {
        // SAFETY: the caller's promises are those of `fold_body`.
        unsafe { fold_body::<K>(to, sources, scales, ranks, count) }
    }

    /// # Safety
    /// As [`FoldPair`], and the processor has AVX2 and F16C.
    #[target_feature(enable = "avx2,f16c")]
    pub(super) unsafe fn pair_avx2<K: Kernel>(
        to: *mut u8,
        first: *const u8,
        second: *const u8,
        count: usize,
    ) {
        // SAFETY: the caller's promises are those of `pair_body`.
        unsafe { pair_body::<K>(to, first, second, count) }
    }

    /// IEEE 754 binary16, computed with in binary32, blocks converted by F16C. Only `fold_for` names
    /// it, after it has seen that the processor has F16C.
    pub(super) struct HardwareHalf;
    impl Float for HardwareHalf {
        type Raw = u16;
        type Acc = f32;
        #[inline(always)]
        fn widen(raw: u16) -> f32 {
            Half::widen(raw)
        }
        #[inline(always)]
        fn narrow(acc: f32) -> u16 {
            Half::narrow(acc)
        }
        #[inline(always)]
        fn from_count(count: usize) -> f32 {
            count as f32
        }
        #[inline(always)]
        fn widen_block(raw: [u16; BLOCK]) -> [f32; BLOCK] {
            let mut out = [0f32; BLOCK];
            for at in (0..BLOCK).step_by(8) {
                // SAFETY: the processor has F16C, as the type promises; at + 8 <= BLOCK, and the
                // loads and stores are unaligned ones inside the two arrays.
                unsafe {
                    let halves = _mm_loadu_si128(raw.as_ptr().add(at).cast());
                    _mm256_storeu_ps(out.as_mut_ptr().add(at), _mm256_cvtph_ps(halves));
                }
            }
            out
        }
        #[inline(always)]
        fn narrow_block(acc: [f32; BLOCK]) -> [u16; BLOCK] {
            let mut out = [0u16; BLOCK];
            for at in (0..BLOCK).step_by(8) {
                // SAFETY: as in `widen_block`.
                unsafe {
                    let singles = _mm256_loadu_ps(acc.as_ptr().add(at));
                    let halves = _mm256_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT }>(singles);
                    _mm_storeu_si128(out.as_mut_ptr().add(at).cast(), halves);
                }
            }
            out
        }
    }

    /// bfloat16, blocks converted by AVX2: compilers don't find the packing by themselves. Only
    /// `fold_for` names it, after it has seen that the processor has AVX2.
    pub(super) struct WideBrain;
    impl Float for WideBrain {
        type Raw = u16;
        type Acc = f32;
        #[inline(always)]
        fn widen(raw: u16) -> f32 {
            Brain::widen(raw)
        }
        #[inline(always)]
        fn narrow(acc: f32) -> u16 {
            Brain::narrow(acc)
        }
        #[inline(always)]
        fn from_count(count: usize) -> f32 {
            count as f32
        }
        #[inline(always)]
        fn widen_block(raw: [u16; BLOCK]) -> [f32; BLOCK] {
            // SAFETY: the processor has AVX2, as the type promises.
            unsafe { widen_brains(&raw) }
        }
        #[inline(always)]
        fn narrow_block(acc: [f32; BLOCK]) -> [u16; BLOCK] {
            // SAFETY: as above.
            unsafe { narrow_brains(&acc) }
        }
    }

    /// A function that has the feature by itself: where it isn't inlined it is one call, and not one for
    /// every intrinsic.
    #[target_feature(enable = "avx2")]
    fn widen_brains(raw: &[u16; BLOCK]) -> [f32; BLOCK] {
        let mut out = [0f32; BLOCK];
        for at in (0..BLOCK).step_by(8) {
            // SAFETY: at + 8 <= BLOCK, and the loads and stores are unaligned ones inside the two arrays.
            unsafe {
                let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(raw.as_ptr().add(at).cast()));
                let singles = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words));
                _mm256_storeu_ps(out.as_mut_ptr().add(at), singles);
            }
        }
        out
    }

    /// As [`Brain::narrow`], of a block.
    #[target_feature(enable = "avx2")]
    fn narrow_brains(acc: &[f32; BLOCK]) -> [u16; BLOCK] {
        let mut out = [0u16; BLOCK];
        for at in (0..BLOCK).step_by(16) {
            let mut words = [_mm256_setzero_si256(); 2];
            for (half, word) in words.iter_mut().enumerate() {
                // SAFETY: at + 16 <= BLOCK: an unaligned load inside the array.
                let singles = unsafe { _mm256_loadu_ps(acc.as_ptr().add(at + 8 * half)) };
                let bits = _mm256_castps_si256(singles);
                let top = _mm256_srli_epi32::<16>(bits);
                let odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
                let step = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
                let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, step));
                let quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
                let is_nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(singles, singles);
                *word = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(is_nan));
            }
            // Every word is below 2^16, so that packing keeps it. It works in the two halves apart.
            let packed = _mm256_packus_epi32(words[0], words[1]);
            let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
            // SAFETY: as above, a store.
            unsafe { _mm256_storeu_si256(out.as_mut_ptr().add(at).cast(), packed) };
        }
        out
    }
}

#[cfg(test)]
pub(crate) mod tests;
