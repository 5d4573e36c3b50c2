//! Kubernetes quantities ("100m", "6012Mi", "1e3"), stored exactly.
//!
//! Invariant: a [`Quantity`] is a whole number of nano-units, so equal amounts in different notations are equal and have
//! equal hashes. The scheduler uses [`Quantity::value`] (whole units) and [`Quantity::milli_value`]; both round up, as
//! `resource.Quantity` does.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

const NANOS: i128 = 1_000_000_000;
/// The largest quantity in units; apimachinery caps quantities at it.
const MAX_UNITS: i128 = i64::MAX as i128;

/// An amount of a resource, parsed from and printed in Kubernetes' notation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantity {
    nanos: i128,
}

/// The error for a text that is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`{text}` is not a quantity: expected digits and an optional suffix such as m, k, M, G, Ki, Mi, Gi or e3"
)]
pub struct QuantityError {
    /// The text.
    pub text: String,
}

impl Quantity {
    /// Creates a quantity of whole units: bytes, pods, devices, cores.
    pub const fn from_units(units: i64) -> Self {
        Quantity {
            nanos: units as i128 * NANOS,
        }
    }

    /// Creates a quantity of thousandths of a unit, such as millicores.
    pub const fn from_milli(milli: i64) -> Self {
        Quantity {
            nanos: milli as i128 * 1_000_000,
        }
    }

    /// Returns the amount in whole units, rounded up.
    pub fn value(self) -> i64 {
        round_up(self.nanos, 1_000_000_000)
    }

    /// Returns the amount in thousandths of a unit, rounded up.
    pub fn milli_value(self) -> i64 {
        round_up(self.nanos, 1_000_000)
    }

    /// Returns whether the amount is negative, which no request or capacity may be.
    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// Returns whether the amount is zero.
    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// Returns the sum, at most the largest quantity.
    pub fn saturating_add(self, other: Self) -> Self {
        Quantity {
            nanos: cap(self.nanos.saturating_add(other.nanos)),
        }
    }

    /// Returns the difference, which may be negative.
    pub fn saturating_sub(self, other: Self) -> Self {
        Quantity {
            nanos: cap(self.nanos.saturating_sub(other.nanos)),
        }
    }
}

/// Divides nanos by `unit` and rounds up. It uses 64 bits where they suffice, because a 128-bit division takes many times as
/// long. Without the common factors of two, binary amounts of up to 9 TB fit into 64 bits.
fn round_up(nanos: i128, unit: i64) -> i64 {
    // Dividing both by the same power of two changes nothing but the size of the numbers.
    let twos = unit.trailing_zeros();
    let (nanos, unit) = if nanos.trailing_zeros() >= twos {
        (nanos >> twos, unit >> twos)
    } else {
        (nanos, unit)
    };
    match i64::try_from(nanos) {
        Ok(nanos) => nanos.div_euclid(unit) + i64::from(nanos.rem_euclid(unit) != 0),
        Err(_) => clamp(div_ceil(nanos, i128::from(unit))),
    }
}

fn div_ceil(a: i128, b: i128) -> i128 {
    let quotient = a.div_euclid(b);
    if a.rem_euclid(b) == 0 {
        quotient
    } else {
        quotient + 1
    }
}

fn clamp(value: i128) -> i64 {
    value.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

fn cap(nanos: i128) -> i128 {
    nanos.clamp(-MAX_UNITS * NANOS, MAX_UNITS * NANOS)
}

/// Returns the multiplier of a suffix as numerator and denominator in units.
fn multiplier(suffix: &str) -> Option<(i128, i128)> {
    let scale = match suffix {
        "n" => (1, 1_000_000_000),
        "u" => (1, 1_000_000),
        "m" => (1, 1000),
        "" => (1, 1),
        "k" => (1000, 1),
        "M" => (1_000_000, 1),
        "G" => (1_000_000_000, 1),
        "T" => (1_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            // A larger exponent makes any amount exceed the cap, or round up to one nano-unit, all the same.
            let power = 10_i128
                .checked_pow(exponent.unsigned_abs().min(27))
                .unwrap_or(i128::MAX);
            if exponent < 0 { (1, power) } else { (power, 1) }
        }
    };
    Some(scale)
}

/// Returns the nanos of one unit with this suffix, for the most frequent suffixes.
fn whole_nanos(suffix: &str) -> Option<i128> {
    Some(match suffix {
        "" => NANOS,
        "m" => 1_000_000,
        "Ki" => NANOS << 10,
        "Mi" => NANOS << 20,
        "Gi" => NANOS << 30,
        "Ti" => NANOS << 40,
        "k" => 1000 * NANOS,
        "M" => 1_000_000 * NANOS,
        "G" => 1_000_000_000 * NANOS,
        _ => return None,
    })
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| QuantityError {
            text: text.to_owned(),
        })
    }
}

fn parse(text: &str) -> Option<Quantity> {
    let (sign, unsigned) = match text.as_bytes().first()? {
        b'-' => (-1, &text[1..]),
        b'+' => (1, &text[1..]),
        _ => (1, text),
    };
    let end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    // The fast path for what nearly every quantity looks like: whole digits and a common suffix.
    if let (Ok(digits), Some(each)) = (number.parse::<u64>(), whole_nanos(suffix)) {
        let nanos = i128::from(digits).checked_mul(each);
        return Some(Quantity {
            nanos: sign * nanos.map_or(MAX_UNITS * NANOS, cap),
        });
    }
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let (numerator, denominator) = multiplier(suffix)?;
    // Below the cap, digits after the 18th of a fraction can change the result only by rounding it up.
    let kept = &fraction[..fraction.len().min(18)];
    let lost = fraction[kept.len()..].bytes().any(|digit| digit != b'0');
    let scale = 10_i128.pow(kept.len() as u32);
    let digits = whole
        .bytes()
        .chain(kept.bytes())
        .try_fold(0_i128, |sum, digit| {
            sum.checked_mul(10)?.checked_add(i128::from(digit - b'0'))
        });
    // Too many digits are not an error: apimachinery caps the amount.
    let nanos = digits
        .and_then(|digits| reduce(digits, NANOS * numerator, scale.checked_mul(denominator)?))
        .map_or(MAX_UNITS * NANOS, |nanos| nanos + i128::from(lost));
    Some(Quantity {
        nanos: sign * cap(nanos),
    })
}

/// Returns `a * numerator / denominator` rounded up; `None` if the result exceeds 128 bits.
fn reduce(a: i128, numerator: i128, denominator: i128) -> Option<i128> {
    let common = gcd(numerator, denominator);
    let (numerator, denominator) = (numerator / common, denominator / common);
    Some(div_ceil(a.checked_mul(numerator)?, denominator))
}

fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos % NANOS != 0 {
            // The largest unit in which the amount is whole, so that nothing is lost in print.
            let (amount, suffix) = match self.nanos {
                n if n % 1_000_000 == 0 => (n / 1_000_000, "m"),
                n if n % 1000 == 0 => (n / 1000, "u"),
                n => (n, "n"),
            };
            return write!(f, "{amount}{suffix}");
        }
        let units = self.nanos / NANOS;
        let binary = [
            (60, "Ei"),
            (50, "Pi"),
            (40, "Ti"),
            (30, "Gi"),
            (20, "Mi"),
            (10, "Ki"),
        ];
        match binary
            .iter()
            .find(|(shift, _)| units != 0 && units % (1 << shift) == 0)
        {
            Some((shift, suffix)) => write!(f, "{}{suffix}", units >> shift),
            None => write!(f, "{units}"),
        }
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Quantity {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Quantity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity as text or number")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Quantity, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_i64<E>(self, units: i64) -> Result<Quantity, E> {
                Ok(Quantity::from_units(units))
            }

            fn visit_u64<E>(self, units: u64) -> Result<Quantity, E> {
                Ok(Quantity::from_units(
                    i64::try_from(units).unwrap_or(i64::MAX),
                ))
            }

            fn visit_f64<E: serde::de::Error>(self, units: f64) -> Result<Quantity, E> {
                units.to_string().parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Quantity {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn q(text: &str) -> Quantity {
        text.parse().expect(text)
    }

    #[test]
    fn suffixes_scale_decimally_binarily_and_by_exponent() {
        assert_eq!(q("1k").value(), 1000);
        assert_eq!(q("1Ki").value(), 1024);
        assert_eq!(q("333M").value(), 333_000_000);
        assert_eq!(q("6012Mi").value(), 6012 << 20);
        assert_eq!(q("1e3"), q("1k"));
        assert_eq!(q("1E"), q("1e18"));
        assert_eq!(q("5e-1").milli_value(), 500);
        assert_eq!(q(".5").milli_value(), 500);
        assert_eq!(q("1.").value(), 1);
    }

    #[test]
    fn fractions_round_up_to_the_unit_asked_for() {
        assert_eq!(q("100u").milli_value(), 1);
        assert_eq!(q("1500m").value(), 2);
        assert_eq!(q("0.1Ki").value(), 103);
        assert_eq!(q("0.0000000001").milli_value(), 1);
        assert_eq!(q("-1500m").value(), -1);
    }

    #[test]
    fn the_same_amount_is_equal_however_it_is_written() {
        assert_eq!(q("1"), q("1000m"));
        assert_eq!(q("1Gi"), q("1024Mi"));
        assert_eq!(q("0.5"), q("500m"));
    }

    #[test]
    fn amounts_past_the_largest_are_capped() {
        assert_eq!(
            q("9999999999999999999999999999999999999999999").value(),
            i64::MAX
        );
        assert_eq!(q("16Ei").value(), i64::MAX);
        assert_eq!(q("-16Ei").value(), -i64::MAX);
    }

    #[test]
    fn what_is_not_a_quantity_is_refused() {
        for text in [
            "", "-", "1.2.3", "1KiB", "abc", "1 Gi", "1m5", ".", "1e", "ü",
        ] {
            assert!(text.parse::<Quantity>().is_err(), "{text}");
        }
    }

    #[test]
    fn printing_gives_a_text_that_reads_back() {
        for text in ["100m", "6012Mi", "1Gi", "0", "3", "1500m", "-2", "7n"] {
            assert_eq!(q(text).to_string(), text);
        }
        assert_eq!(q("1024Mi").to_string(), "1Gi");
    }
}
