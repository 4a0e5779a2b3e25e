//! The tool's own arithmetic on element types.
//!
//! Written apart from the engine on purpose: a reference that shares the engine's conversions
//! would agree with its mistakes.
#![forbid(unsafe_code)]

use flagos_comm::DataType;

/// How the bits of an element are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Two's complement or plain binary of this many bits.
    Int {
        /// Width.
        bits: u32,
        /// Whether the top bit is a sign.
        signed: bool,
    },
    /// IEEE 754 layout with these field widths.
    Float {
        /// Width of the exponent.
        exponent: u32,
        /// Width of the stored part of the significand.
        mantissa: u32,
    },
    /// Only moved, never computed with.
    Opaque,
}

/// The format of a data type.
pub fn format(dtype: DataType) -> Format {
    let int = |bits, signed| Format::Int { bits, signed };
    let float = |exponent, mantissa| Format::Float { exponent, mantissa };
    match dtype {
        DataType::Int8 => int(8, true),
        DataType::Uint8 => int(8, false),
        DataType::Int32 => int(32, true),
        DataType::Uint32 => int(32, false),
        DataType::Int64 => int(64, true),
        DataType::Uint64 => int(64, false),
        DataType::Float16 => float(5, 10),
        DataType::Bfloat16 => float(8, 7),
        DataType::Float32 => float(8, 23),
        DataType::Float64 => float(11, 52),
        DataType::Float8e4m3 | DataType::Float8e5m2 => Format::Opaque,
    }
}

/// The bits of `value` in a binary format, rounded once, to nearest, ties to even.
/// Too large becomes infinity; NaN becomes the quiet NaN.
pub fn encode_float(value: f64, exponent: u32, mantissa: u32) -> u64 {
    if mantissa == 52 {
        return value.to_bits();
    }
    let bits = value.to_bits();
    let sign = (bits >> 63) << (exponent + mantissa);
    let infinity = ((1u64 << exponent) - 1) << mantissa;
    if value.is_nan() {
        return sign | infinity | (1 << (mantissa - 1));
    }
    if value.is_infinite() {
        return sign | infinity;
    }
    let biased = ((bits >> 52) & 0x7ff) as i32;
    if biased == 0 {
        // Zero, or so small that every narrower format rounds it to zero.
        return sign;
    }
    let exp = biased - 1023;
    let significand = (bits & ((1 << 52) - 1)) | (1 << 52);
    let bias = (1i32 << (exponent - 1)) - 1;
    let smallest = 1 - bias;
    let shift = 52 - mantissa as i32 + (smallest - exp).max(0);
    if shift > 54 {
        return sign;
    }
    let kept = significand >> shift;
    let rest = significand & ((1u64 << shift) - 1);
    let half = 1u64 << (shift - 1);
    let rounded = kept + u64::from(rest > half || (rest == half && kept & 1 == 1));
    // A carry out of the significand lands in the exponent field, where it belongs.
    let magnitude = if exp >= smallest {
        (((exp + bias) as u64) << mantissa) + rounded - (1 << mantissa)
    } else {
        rounded
    };
    sign | magnitude.min(infinity)
}

/// The value of bits in a binary format. Exact: every narrower format fits in a binary64.
pub fn decode_float(bits: u64, exponent: u32, mantissa: u32) -> f64 {
    if mantissa == 52 {
        return f64::from_bits(bits);
    }
    let negative = (bits >> (exponent + mantissa)) & 1 == 1;
    let field = (bits >> mantissa) & ((1 << exponent) - 1);
    let fraction = bits & ((1 << mantissa) - 1);
    let bias = (1i32 << (exponent - 1)) - 1;
    let magnitude = if field == (1 << exponent) - 1 {
        if fraction == 0 {
            f64::INFINITY
        } else {
            f64::NAN
        }
    } else if field == 0 {
        fraction as f64 * power_of_two(1 - bias - mantissa as i32)
    } else {
        (fraction | (1 << mantissa)) as f64 * power_of_two(field as i32 - bias - mantissa as i32)
    };
    if negative { -magnitude } else { magnitude }
}

/// 2 to the power `e`, for `e` in the range of normal binary64 numbers.
pub fn power_of_two(e: i32) -> f64 {
    f64::from_bits(((e + 1023) as u64) << 52)
}

/// The value of the lowest `bits` bits of `wide`, as an integer of that width holds it.
pub fn wrap(wide: i128, bits: u32, signed: bool) -> i128 {
    let low = wide & ((1i128 << bits) - 1);
    if signed && (low >> (bits - 1)) & 1 == 1 {
        low - (1i128 << bits)
    } else {
        low
    }
}

/// The bits of element `index` of `bytes`.
pub fn load(bytes: &[u8], index: usize, size: usize) -> u64 {
    let mut word = [0; 8];
    word[..size].copy_from_slice(&bytes[index * size..(index + 1) * size]);
    u64::from_le_bytes(word)
}

/// Stores the bits of element `index` of `bytes`.
pub fn store(bytes: &mut [u8], index: usize, size: usize, bits: u64) {
    bytes[index * size..(index + 1) * size].copy_from_slice(&bits.to_le_bytes()[..size]);
}

/// The element as people read it, with its bits.
pub fn show(bits: u64, dtype: DataType) -> String {
    let width = dtype.size() * 2;
    match format(dtype) {
        Format::Int { bits: b, signed } => {
            format!("{} (0x{bits:0width$x})", wrap(i128::from(bits), b, signed))
        }
        Format::Float { exponent, mantissa } => {
            let value = decode_float(bits, exponent, mantissa);
            format!("{value:?} (0x{bits:0width$x})")
        }
        Format::Opaque => format!("0x{bits:0width$x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f16(value: f64) -> u64 {
        encode_float(value, 5, 10)
    }

    fn bf16(value: f64) -> u64 {
        encode_float(value, 8, 7)
    }

    #[test]
    fn binary16_known_values() {
        for (value, bits) in [
            (0.0, 0x0000),
            (-0.0, 0x8000),
            (1.0, 0x3c00),
            (-2.0, 0xc000),
            (65504.0, 0x7bff),
            (65519.99, 0x7bff),
            (65520.0, 0x7c00), // tie to even: infinity
            (f64::INFINITY, 0x7c00),
            (f64::NEG_INFINITY, 0xfc00),
            (0.1, 0x2e66),
            (1.0 / 3.0, 0x3555),
            (6.103515625e-5, 0x0400),        // smallest normal
            (5.960464477539063e-8, 0x0001),  // smallest subnormal
            (2.9802322387695312e-8, 0x0000), // half of it: tie to even
            (2.980232238769532e-8, 0x0001),  // a little more
            (6.097555160522461e-5, 0x03ff),  // largest subnormal
            (6.1005353927612305e-5, 0x0400), // tie between it and the smallest normal
            (1.0 + 1.0 / 2048.0, 0x3c00),    // tie down to even
            (1.0 + 3.0 / 2048.0, 0x3c02),    // tie up to even
            (1.0 + 1.0001 / 2048.0, 0x3c01),
            (2049.0, 0x6800),
            (2051.0, 0x6802),
        ] {
            assert_eq!(f16(value), bits, "{value}");
        }
        assert_eq!(f16(f64::NAN) & 0x7fff, 0x7e00);
    }

    #[test]
    fn bfloat16_known_values() {
        for (value, bits) in [
            (1.0, 0x3f80),
            (-1.0, 0xbf80),
            (3.140625, 0x4049),
            (std::f64::consts::PI, 0x4049),
            (1.0 + 1.0 / 256.0, 0x3f80), // tie down to even
            (1.0 + 3.0 / 256.0, 0x3f82), // tie up to even
            (257.0, 0x4380),
            (259.0, 0x4382),
            (3.3895313892515355e38, 0x7f7f),
            (3.4e38, 0x7f80),
            (0.1, 0x3dcd),
        ] {
            assert_eq!(bf16(value), bits, "{value}");
        }
        assert_eq!(bf16(f64::NAN) & 0x7fff, 0x7fc0);
    }

    #[test]
    fn binary32_rounds_as_the_language_does() {
        let mut state = 1u64;
        for _ in 0..100_000 {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let exp = (state >> 33) % 300;
            let value = f64::from_bits((state & ((1 << 52) - 1)) | ((exp + 870) << 52));
            assert_eq!(
                encode_float(value, 8, 23),
                u64::from((value as f32).to_bits()),
                "{value:e}"
            );
        }
    }

    #[test]
    fn every_16_bit_pattern_survives_a_round_trip() {
        for (exponent, mantissa) in [(5, 10), (8, 7)] {
            for bits in 0..=0xffffu64 {
                let value = decode_float(bits, exponent, mantissa);
                if !value.is_nan() {
                    assert_eq!(encode_float(value, exponent, mantissa), bits);
                }
            }
        }
    }

    #[test]
    fn integers_wrap() {
        assert_eq!(wrap(200, 8, true), -56);
        assert_eq!(wrap(-1, 8, false), 255);
        assert_eq!(wrap(i128::from(u64::MAX) + 2, 64, false), 1);
        assert_eq!(wrap(1 << 63, 64, true), i128::from(i64::MIN));
    }

    #[test]
    fn elements_are_shown_with_value_and_bits() {
        assert_eq!(show(0xff, DataType::Int8), "-1 (0xff)");
        assert_eq!(show(0x3c00, DataType::Float16), "1.0 (0x3c00)");
        assert_eq!(show(0x7f, DataType::Float8e4m3), "0x7f");
    }
}
