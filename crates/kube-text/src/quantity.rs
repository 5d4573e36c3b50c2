//! Resource quantities (`100m`, `1.5Gi`, `1e3`): parsing, arithmetic and the canonical text, as in
//! `k8s.io/apimachinery/pkg/api/resource`.
//!
//! A [`Quantity`] counts units of 10^-9, Kubernetes' smallest, in 128 bits, so that sums and comparisons are exact integer operations;
//! values beyond about 10^29 saturate. Decoding stores [`canonical`] texts, so equal quantities of one suffix family have equal texts.

use std::{cmp::Ordering, fmt};

use serde_json::{Map, Value};

const NANO: i128 = 1_000_000_000;
const MILLI_IN_NANO: i128 = 1_000_000;
/// The most digits that Go parses without a big decimal; such texts are kept as written if they look canonical.
const MAX_FAST_DIGITS: usize = 18;

/// The reason why a text is not a quantity; the messages are apimachinery's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// A character that is neither sign, digit nor suffix.
    #[error(
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    )]
    Format,
    /// An unknown suffix.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// The suffix family of a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `1e3`.
    DecimalExponent,
    /// `n u m k M G T P E`.
    DecimalSi,
    /// `Ki Mi Gi Ti Pi Ei`.
    BinarySi,
}

/// A fixed-point number with a suffix family.
#[derive(Clone, Debug)]
pub struct Quantity {
    nano: i128,
    format: Format,
    /// The text as parsed, if apimachinery would print it again.
    text: Option<QuantityText>,
}

/// A text as parsed; short ones need no allocation.
#[derive(Clone, Debug)]
enum QuantityText {
    Short { length: u8, bytes: [u8; 22] },
    Long(Box<str>),
}

impl QuantityText {
    fn new(text: &str) -> Self {
        let mut bytes = [0; 22];
        match (bytes.get_mut(..text.len()), u8::try_from(text.len())) {
            (Some(start), Ok(length)) => {
                start.copy_from_slice(text.as_bytes());
                QuantityText::Short { length, bytes }
            }
            _ => QuantityText::Long(text.into()),
        }
    }

    fn as_str(&self) -> &str {
        match self {
            QuantityText::Short { length, bytes } => {
                std::str::from_utf8(&bytes[..usize::from(*length)]).unwrap_or_default()
            }
            QuantityText::Long(text) => text,
        }
    }
}

/// Returns the canonical form of a quantity's text.
///
/// # Errors
/// The text is not a quantity.
pub fn canonical(text: &str) -> Result<String, QuantityError> {
    Quantity::parse(text).map(|quantity| quantity.to_string())
}

/// Returns the canonical form after rounding up to thousandths, as kube-apiserver's defaulting does for every resource list.
///
/// # Errors
/// The text is not a quantity.
pub fn canonical_milli(text: &str) -> Result<String, QuantityError> {
    Quantity::parse(text).map(|quantity| quantity.rounded_up_to_milli().to_string())
}

/// Applies [`canonical_milli`] to all amounts of a resource list (`capacity`, `requests`); invalid quantities stay unchanged.
pub fn round_list(list: &mut Value) {
    for amount in list.as_object_mut().into_iter().flat_map(Map::values_mut) {
        if let Some(Ok(rounded)) = amount.as_str().map(canonical_milli) {
            *amount = rounded.into();
        }
    }
}

/// The parts of a quantity's text.
struct QuantityParts<'a> {
    negative: bool,
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
}

fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

fn scan(text: &str) -> Result<QuantityParts<'_>, QuantityError> {
    let negative = text.starts_with('-');
    let rest = text
        .strip_prefix(['-', '+'])
        .unwrap_or(text)
        .trim_start_matches('0');
    let (whole, rest) = rest.split_at(digits(rest));
    let (fraction, suffix) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(digits(rest)),
        None => ("", rest),
    };
    let letters = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
    let exponent = if letters.is_empty() {
        letters
    } else {
        letters.strip_prefix(['-', '+']).unwrap_or(letters)
    };
    if digits(exponent) != exponent.len() {
        return Err(QuantityError::Format);
    }
    Ok(QuantityParts {
        negative,
        whole,
        fraction,
        suffix,
    })
}

/// Returns a suffix's family and its exponent, of 10 or (binary) of 2.
fn interpret(suffix: &str) -> Result<(Format, i32), QuantityError> {
    let decimal = |exponent| Ok((Format::DecimalSi, exponent));
    let binary = |exponent| Ok((Format::BinarySi, exponent));
    match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent = suffix
                .strip_prefix(['e', 'E'])
                .ok_or(QuantityError::Suffix)?;
            let exponent: i32 = exponent.parse().map_err(|_| QuantityError::Suffix)?;
            Ok((Format::DecimalExponent, exponent))
        }
    }
}

/// Returns whether apimachinery stores a quantity as an integer, without a big decimal or a fraction.
pub fn is_kept_whole(text: &str) -> bool {
    let Ok(scanned) = scan(text) else {
        return false;
    };
    let Ok((format, exponent)) = interpret(scanned.suffix) else {
        return false;
    };
    let (exponent, places) = (i64::from(exponent), scanned.fraction.len());
    let whole = scanned.whole.len().max(1);
    match format {
        // A factor of 2^10 counts as three digits.
        Format::BinarySi => {
            places == 0 && i64::try_from(whole).is_ok_and(|n| n + exponent * 3 / 10 < 15)
        }
        _ => {
            // No decimal place may be left once the suffix is applied.
            whole + places <= MAX_FAST_DIGITS
                && i64::try_from(places).is_ok_and(|places| exponent >= places)
        }
    }
}

/// Returns `mantissa * 10^exponent` in units of 10^-9, rounded away from zero, saturating.
fn scaled(mantissa: i128, exponent: i32) -> i128 {
    let exponent = exponent.saturating_add(9);
    if mantissa == 0 {
        return 0;
    }
    match 10i128.checked_pow(exponent.unsigned_abs()) {
        Some(factor) if exponent >= 0 => mantissa.checked_mul(factor).unwrap_or(i128::MAX),
        Some(divisor) => (mantissa - 1) / divisor + 1,
        None if exponent >= 0 => i128::MAX,
        None => 1,
    }
}

impl Quantity {
    /// Parses a quantity.
    ///
    /// # Errors
    /// The text is not a quantity.
    pub fn parse(text: &str) -> Result<Quantity, QuantityError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(QuantityError::Format);
        }
        let scanned = scan(text)?;
        let (mut format, exponent) = interpret(scanned.suffix)?;
        let digits = || scanned.whole.bytes().chain(scanned.fraction.bytes());
        let places = i32::try_from(scanned.fraction.len()).unwrap_or(i32::MAX);
        let mantissa = digits()
            .try_fold(0i128, |sum, digit| {
                sum.checked_mul(10)?.checked_add(i128::from(digit - b'0'))
            })
            .unwrap_or(i128::MAX);
        let magnitude = if format == Format::BinarySi {
            // A binary quantity is at most the largest `int64`, and one below 1 is printed with decimal suffixes, as no binary suffix
            // is small enough.
            let cap = i128::from(i64::MAX) * NANO;
            let bytes = mantissa.checked_mul(1i128 << exponent).unwrap_or(i128::MAX);
            let nano = scaled(bytes, -places).min(cap);
            if nano > 0 && nano < NANO {
                format = Format::DecimalSi;
            }
            nano
        } else {
            scaled(mantissa, exponent.saturating_sub(places))
        };
        let scale = exponent.saturating_sub(places);
        // apimachinery judges from the form alone, without formatting the number, that a text is canonical, and prints such a text as
        // it was written.
        let looks_canonical = !scanned.whole.is_empty()
            && scanned.whole.len() + scanned.fraction.len() <= MAX_FAST_DIGITS
            && if format == Format::BinarySi {
                places == 0 && exponent % 10 == 0 && mantissa & 7 != 0
            } else {
                scale >= -9 && scale % 3 == 0 && !digits().rev().take(3).all(|digit| digit == b'0')
            };
        let nano = if scanned.negative {
            -magnitude
        } else {
            magnitude
        };
        Ok(Quantity {
            nano,
            format,
            text: looks_canonical.then(|| QuantityText::new(text)),
        })
    }

    /// Returns an integer as a quantity in plain decimal notation.
    pub fn from_integer(value: i64) -> Quantity {
        Quantity {
            nano: i128::from(value) * NANO,
            format: Format::DecimalSi,
            text: None,
        }
    }

    /// Returns the value in units of 10^-9.
    pub fn nano(&self) -> i128 {
        self.nano
    }

    /// Returns the value rounded up to an integer, clamped to the range of `i64`.
    pub fn value(&self) -> i64 {
        ceil(self.nano, NANO)
    }

    /// Returns the value in thousandths, rounded up, clamped to the range of `i64`.
    pub fn milli_value(&self) -> i64 {
        ceil(self.nano, MILLI_IN_NANO)
    }

    /// Returns whether the value is an integer. One that has saturated counts as an integer, as in Kubernetes, whose thousandths of it
    /// overflow to 0.
    pub fn is_integer(&self) -> bool {
        self.is_beyond_reach() || self.nano % NANO == 0
    }

    /// Returns whether the value is zero.
    pub fn is_zero(&self) -> bool {
        self.nano == 0
    }

    /// Returns whether the value is negative.
    pub fn is_negative(&self) -> bool {
        self.nano < 0
    }

    /// Returns whether the value has saturated; only its text is exact then.
    pub fn is_beyond_reach(&self) -> bool {
        self.nano.unsigned_abs() >= i128::MAX.unsigned_abs()
    }

    /// Returns the value rounded away from zero to thousandths.
    pub fn rounded_up_to_milli(self) -> Quantity {
        let rest = self.nano % MILLI_IN_NANO;
        // Of a value that has saturated only the text is exact, and rounding would lose it.
        if rest == 0 || self.is_beyond_reach() {
            return self;
        }
        let nano = (self.nano - rest).saturating_add(MILLI_IN_NANO * rest.signum());
        Quantity {
            nano,
            format: self.format,
            text: None,
        }
    }

    /// Returns the sum; if this quantity is zero, the sum has the other's suffix family.
    pub fn plus(&self, other: &Quantity) -> Quantity {
        let format = if self.is_zero() {
            other.format
        } else {
            self.format
        };
        Quantity {
            nano: self.nano.saturating_add(other.nano),
            format,
            text: None,
        }
    }

    /// Returns the difference; if this quantity is zero, the difference has the other's suffix family.
    pub fn minus(&self, other: &Quantity) -> Quantity {
        let format = if self.is_zero() {
            other.format
        } else {
            self.format
        };
        Quantity {
            nano: self.nano.saturating_sub(other.nano),
            format,
            text: None,
        }
    }
}

fn ceil(nano: i128, unit: i128) -> i64 {
    let whole = nano.div_euclid(unit) + i128::from(nano.rem_euclid(unit) != 0);
    i64::try_from(whole).unwrap_or(if whole < 0 { i64::MIN } else { i64::MAX })
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        // `1Ki` equals `1024`: neither the suffix family nor the text matters.
        self.nano == other.nano
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nano.cmp(&other.nano)
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
        const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        if let Some(text) = &self.text {
            return f.write_str(text.as_str());
        }
        if self.nano == 0 {
            return f.write_str("0");
        }
        // Like apimachinery, print smaller amounts and fractions with decimal suffixes, which need no rounding.
        if self.format == Format::BinarySi
            && self.nano.abs() >= 1024 * NANO
            && self.nano % NANO == 0
        {
            let mut mantissa = self.nano / NANO;
            let mut step = 0;
            while mantissa % 1024 == 0 && step + 1 < BINARY.len() {
                mantissa /= 1024;
                step += 1;
            }
            return write!(f, "{mantissa}{}", BINARY[step]);
        }
        let mut mantissa = self.nano;
        let mut step = 0;
        while mantissa % 1000 == 0
            && (step + 1 < DECIMAL.len() || self.format == Format::DecimalExponent)
        {
            mantissa /= 1000;
            step += 1;
        }
        if self.format == Format::DecimalExponent {
            // `step` counts thousands from 10^-9; an i128 has fewer than 14 of them.
            return match step as i32 * 3 - 9 {
                0 => write!(f, "{mantissa}"),
                exponent => write!(f, "{mantissa}e{exponent}"),
            };
        }
        write!(f, "{mantissa}{}", DECIMAL[step])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_become_canonical_as_upstream_prints_them() {
        let cases = [
            ("1000m", "1"),
            ("1.5", "1500m"),
            ("0.1", "100m"),
            ("1.5Gi", "1536Mi"),
            ("2048Mi", "2Gi"),
            ("1048576Ki", "1Gi"),
            ("1000Ki", "1000Ki"),
            ("1000000u", "1"),
            ("1e3", "1e3"),
            ("1000e3", "1e6"),
            ("10E", "10E"),
            ("0", "0"),
            ("0Gi", "0"),
            ("-1500m", "-1500m"),
            ("512Ki", "512Ki"),
            ("0.5Gi", "512Mi"),
            ("0.5Ki", "512"),
            ("100000", "100k"),
            ("1.0001n", "2n"),
            ("8Ei", "9223372036854775807"),
        ];
        for (text, expected) in cases {
            assert_eq!(canonical(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn resource_lists_round_up_to_thousandths() {
        assert_eq!(canonical_milli("0.0005").as_deref(), Ok("1m"));
        assert_eq!(canonical_milli("500u").as_deref(), Ok("1m"));
        assert_eq!(canonical_milli("100m").as_deref(), Ok("100m"));
    }

    #[test]
    fn what_is_no_quantity_says_why() {
        assert_eq!(canonical(""), Err(QuantityError::Format));
        assert_eq!(canonical("1 Gi"), Err(QuantityError::Format));
        assert_eq!(canonical("abc"), Err(QuantityError::Format));
        assert_eq!(canonical("1mm"), Err(QuantityError::Suffix));
        assert_eq!(canonical("1e"), Err(QuantityError::Suffix));
        assert_eq!(canonical("1GiB"), Err(QuantityError::Format));
    }

    #[test]
    fn values_round_up_and_compare_across_suffixes() {
        let parse = |text| Quantity::parse(text).expect("a quantity");
        assert_eq!(parse("1500m").value(), 2);
        assert_eq!(parse("1.5").milli_value(), 1500);
        assert_eq!(parse("1Gi"), parse("1024Mi"));
        assert!(parse("1G") < parse("1Gi"));
        assert_eq!(parse("1Gi").plus(&parse("512Mi")).to_string(), "1536Mi");
        assert_eq!(parse("0").plus(&parse("1Gi")).to_string(), "1Gi");
    }

    #[test]
    fn values_beyond_reach_count_as_integers() {
        let is_integer = |text| Quantity::parse(text).expect("a quantity").is_integer();
        let whole = ["1", "2Gi", "10E", "1E30", "-1E30"];
        assert_eq!(whole.map(is_integer), [true; 5]);
        assert_eq!(["500m", "1.0001"].map(is_integer), [false; 2]);
    }
}
