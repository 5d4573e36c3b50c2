//! Parses durations like Go's `time.ParseDuration`: signed decimal numbers with units, at most 292 years. Errors have Go's messages.

/// The largest magnitude; only a negative duration may have it.
const MOST: u64 = 1 << 63;

/// Returns the nanoseconds of a text such as `-1h30m` or `.5s`; `None` if Go refuses the text.
pub fn parse(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    let mut total: u64 = 0;
    loop {
        let (whole, after) = digits(rest);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => digits(after),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let end = after.find(|c: char| c == '.' || c.is_ascii_digit());
        let (unit, after) = after.split_at(end.unwrap_or(after.len()));
        let unit = nanoseconds(unit)?;
        let mut part = whole_number(whole)?.checked_mul(unit)?;
        let (fraction, scale) = fraction_of(fraction);
        // Go computes the fraction in floating point, so the same is done here to get the same nanoseconds.
        part = part.checked_add((fraction as f64 * (unit as f64 / scale)) as u64)?;
        total = total.checked_add(part).filter(|total| *total <= MOST)?;
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    if negative {
        // For 2^63 the cast wraps to the smallest `i64`, which is its negation.
        Some((total as i64).wrapping_neg())
    } else {
        i64::try_from(total).ok()
    }
}

fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit());
    text.split_at(end.unwrap_or(text.len()))
}

fn whole_number(digits: &str) -> Option<u64> {
    match digits {
        "" => Some(0),
        digits => digits.parse().ok().filter(|number| *number <= MOST),
    }
}

/// Returns the digits after a decimal point as a number, and the divisor for it. Digits beyond Go's precision are ignored.
fn fraction_of(digits: &str) -> (u64, f64) {
    let (mut number, mut scale) = (0u64, 1.0);
    for digit in digits.bytes().map(|byte| u64::from(byte - b'0')) {
        if number > (MOST - 1) / 10 || number * 10 + digit > MOST {
            break;
        }
        number = number * 10 + digit;
        scale *= 10.0;
    }
    (number, scale)
}

fn nanoseconds(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        // The micro sign and the Greek letter mu.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// Returns the error that Go's `time.ParseDuration` gives for `text`, or `None` if it parses.
pub fn fault(text: &str) -> Option<String> {
    let quoted = || format!("{text:?}");
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    if rest == "0" {
        return None;
    }
    if rest.is_empty() {
        return Some(format!("time: invalid duration {}", quoted()));
    }
    while !rest.is_empty() {
        let unit = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let number = &rest[..unit];
        let well_formed = number.bytes().any(|byte| byte.is_ascii_digit())
            && number.bytes().filter(|byte| *byte == b'.').count() <= 1;
        if !well_formed {
            return Some(format!("time: invalid duration {}", quoted()));
        }
        rest = &rest[unit..];
        let end = rest
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(rest.len());
        let unit = &rest[..end];
        if unit.is_empty() {
            return Some(format!("time: missing unit in duration {}", quoted()));
        }
        if nanoseconds(unit).is_none() {
            return Some(format!(
                "time: unknown unit {unit:?} in duration {}",
                quoted()
            ));
        }
        rest = &rest[end..];
    }
    // The form is right, so the duration is too long for Go.
    let is_too_long = parse(text).is_none();
    is_too_long.then(|| format!("time: invalid duration {}", quoted()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_refused_as_go_does() {
        const SECOND: i64 = 1_000_000_000;
        for (text, nanos) in [
            ("0", 0),
            ("-0", 0),
            ("0s", 0),
            ("5s", 5 * SECOND),
            ("+5s", 5 * SECOND),
            ("-5.5s", -5 * SECOND - SECOND / 2),
            (".5s", SECOND / 2),
            ("5.s", 5 * SECOND),
            ("1h0.25m", 3615 * SECOND),
            ("3h30m", 12_600 * SECOND),
            ("10\u{b5}s5\u{3bc}s", 15_000),
            ("1.9ns", 1),
            ("0.100000000000000000000h", 360 * SECOND),
            ("0.9223372036854775807h", 3_320_413_933_267),
            ("9223372036854775807ns", i64::MAX),
            ("-9223372036854775808ns", i64::MIN),
            ("-2562047h47m16.854775808s", i64::MIN),
        ] {
            assert_eq!(parse(text), Some(nanos), "{text}");
            assert_eq!(fault(text), None, "{text}");
        }
        for text in [
            "",
            "3",
            "-",
            "s",
            ".",
            "-.",
            ".s",
            "+.s",
            "1d",
            "1h ",
            " 1h",
            "1e3s",
            "infs",
            "--1s",
            "9223372036854775808ns",
            "2562048h",
            "9223372036854775809ns",
            "-9223372036854775809ns",
            "3000000h",
        ] {
            assert_eq!(parse(text), None, "{text}");
            assert!(fault(text).is_some(), "{text}");
        }
    }
}
