//! Timestamps in the form of `metav1.Time` and `metav1.MicroTime`: any RFC 3339 time is parsed; the output is in UTC with seconds or
//! microseconds.

use jiff::{Timestamp, tz::TimeZone};

/// The reason why a text is not a time, with the message of Go's `time.Parse`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    /// An element of the layout is missing.
    #[error("parsing time {text:?} as {layout:?}: cannot parse {rest:?} as {element:?}")]
    Element {
        /// The text.
        text: String,
        /// The form that a time has.
        layout: &'static str,
        /// The text from where the element should be.
        rest: String,
        /// The element.
        element: &'static str,
    },
    /// Something follows the time.
    #[error("parsing time {text:?}: extra text: {extra:?}")]
    ExtraText {
        /// The text.
        text: String,
        /// What follows.
        extra: String,
    },
    /// A number is too large or too small.
    #[error("parsing time {text:?}: {part} out of range")]
    OutOfRange {
        /// The text.
        text: String,
        /// What the number counts, for example `month`.
        part: &'static str,
    },
}

const SECONDS: &str = "2006-01-02T15:04:05Z07:00";
const MICROS: &str = "2006-01-02T15:04:05.000000Z07:00";

/// Returns the canonical text of a `metav1.Time`.
///
/// # Errors
/// The text is not an RFC 3339 time.
pub fn seconds(text: &str) -> Result<String, TimeError> {
    // Most times are canonical already, and parsing them would cost more than this check.
    if is_canonical(text.as_bytes()) {
        return Ok(text.to_owned());
    }
    read(text, SECONDS).map(|time| format_seconds(&time))
}

/// Parses a `metav1.Time`.
///
/// # Errors
/// The errors of [`seconds`].
pub fn read_seconds(text: &str) -> Result<Timestamp, TimeError> {
    read(text, SECONDS)
}

/// Returns the canonical text of a `metav1.MicroTime`.
///
/// # Errors
/// The text is not an RFC 3339 time with exactly six decimals.
pub fn micros(text: &str) -> Result<String, TimeError> {
    read(text, MICROS).map(|time| format_micros(&time))
}

/// Returns whether a text is certainly canonical. False for some canonical texts, which then take the slow path.
fn is_canonical(text: &[u8]) -> bool {
    let number = |at: std::ops::Range<usize>| {
        let digits = &text[at];
        let value = digits.iter().fold(0_u32, |value, digit| {
            value * 10 + u32::from(digit.wrapping_sub(b'0'))
        });
        digits.iter().all(u8::is_ascii_digit).then_some(value)
    };
    // Days up to 28 are valid in every month; later ones, and the years 0 and 1, take the slow path.
    let within = |at, least, most| number(at).is_some_and(|value| (least..=most).contains(&value));
    text.len() == 20
        && (text[4], text[7], text[10], text[13]) == (b'-', b'-', b'T', b':')
        && (text[16], text[19]) == (b':', b'Z')
        && within(0..4, 2, 9999)
        && within(5..7, 1, 12)
        && within(8..10, 1, 28)
        && within(11..13, 0, 23)
        && within(14..16, 0, 59)
        && within(17..19, 0, 59)
}

/// Formats a time as `2006-01-02T15:04:05Z`.
pub fn format_seconds(time: &Timestamp) -> String {
    let time = TimeZone::UTC.to_datetime(*time);
    let mut text = *b"0000-00-00T00:00:00Z";
    // Times in the API have no negative years.
    let year = time.year().unsigned_abs();
    let parts = [
        (0, (year / 100) as u8),
        (2, (year % 100) as u8),
        (5, time.month().unsigned_abs()),
        (8, time.day().unsigned_abs()),
        (11, time.hour().unsigned_abs()),
        (14, time.minute().unsigned_abs()),
        (17, time.second().unsigned_abs()),
    ];
    for (at, part) in parts {
        text[at] += part / 10;
        text[at + 1] += part % 10;
    }
    text.iter().map(|&byte| byte as char).collect()
}

/// Formats a time as `2006-01-02T15:04:05.000000Z`.
pub fn format_micros(time: &Timestamp) -> String {
    let micros = TimeZone::UTC.to_datetime(*time).subsec_nanosecond() / 1000;
    let mut text = format_seconds(time);
    text.pop();
    format!("{text}.{micros:06}Z")
}

/// Parses a text element by element, so that the error can name the element that did not match.
fn read(text: &str, layout: &'static str) -> Result<Timestamp, TimeError> {
    let fail = |rest: &str, element: &'static str| TimeError::Element {
        text: text.to_owned(),
        layout,
        rest: rest.to_owned(),
        element,
    };
    let mut rest = text;
    for element in [
        "2006", "-", "01", "-", "02", "T", "15", ":", "04", ":", "05",
    ] {
        let fits = match element {
            "-" | "T" | ":" => rest.starts_with(element),
            digits => {
                rest.len() >= digits.len()
                    && rest
                        .bytes()
                        .take(digits.len())
                        .all(|byte| byte.is_ascii_digit())
            }
        };
        if !fits {
            return Err(fail(rest, element));
        }
        rest = &rest[element.len()..];
    }
    // Go accepts a fraction where the layout has none, also after a comma.
    let decimals = rest.strip_prefix(['.', ',']).map_or(0, |after| {
        after.bytes().take_while(u8::is_ascii_digit).count()
    });
    if layout == MICROS {
        if decimals < 6 {
            return Err(fail(rest, ".000000"));
        }
        // The layout takes six digits, so that further ones stand where the zone belongs.
        rest = &rest[7..];
    } else if decimals > 0 {
        rest = &rest[1 + decimals..];
    }
    let zone = rest.as_bytes();
    let is_offset = zone.len() >= 6 && matches!(zone[0], b'+' | b'-') && zone[3] == b':';
    let zone_bytes = match zone.first() {
        Some(b'Z') => 1,
        _ if is_offset && rest.is_char_boundary(6) => 6,
        _ => return Err(fail(rest, "Z07:00")),
    };
    if rest.len() > zone_bytes {
        return Err(TimeError::ExtraText {
            text: text.to_owned(),
            extra: rest[zone_bytes..].to_owned(),
        });
    }
    text.parse().map_err(|_| TimeError::OutOfRange {
        text: text.to_owned(),
        part: out_of_range(text),
    })
}

fn out_of_range(text: &str) -> &'static str {
    // Go checks the day last, because it depends on the month.
    let number = |at: usize| text[at..at + 2].parse::<u8>().unwrap_or(u8::MAX);
    if !(1..=12).contains(&number(5)) {
        "month"
    } else if number(11) > 23 {
        "hour"
    } else if number(14) > 59 {
        "minute"
    } else if number(17) > 59 {
        "second"
    } else {
        "day"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc_without_fractions() {
        assert_eq!(
            seconds("2024-05-01T12:00:00.75+02:00").as_deref(),
            Ok("2024-05-01T10:00:00Z")
        );
        assert_eq!(
            micros("2024-05-01T12:00:00.000075Z").as_deref(),
            Ok("2024-05-01T12:00:00.000075Z")
        );
    }

    #[test]
    fn a_time_reads_the_same_the_short_and_the_long_way() {
        for text in [
            "2024-05-01T12:00:00Z",
            "9999-12-28T23:59:59Z",
            "0002-01-01T00:00:00Z",
            "1969-12-31T23:59:59Z",
        ] {
            let read: Timestamp = text.parse().expect("it is a time");
            assert_eq!(seconds(text), Ok(format_seconds(&read)));
            assert_eq!(format_seconds(&read), text);
        }
        assert!(!is_canonical(b"2024-02-29T12:00:00Z") && !is_canonical(b"2024-02-2/T12:00:00Z"));
        assert_eq!(
            seconds("2024-02-29T12:00:00Z").as_deref(),
            Ok("2024-02-29T12:00:00Z")
        );
    }

    #[test]
    fn a_text_that_is_no_time_is_refused_in_gos_words() {
        let refused = |read: Result<String, TimeError>| read.map_err(|error| error.to_string());
        assert_eq!(
            refused(seconds("yesterday")),
            Err(r#"parsing time "yesterday" as "2006-01-02T15:04:05Z07:00": cannot parse "yesterday" as "2006""#.to_owned())
        );
        assert_eq!(
            refused(seconds("2024-13-01T00:00:00Z")),
            Err(r#"parsing time "2024-13-01T00:00:00Z": month out of range"#.to_owned())
        );
        assert_eq!(
            refused(micros("2024-05-01T12:00:00.123456789Z")),
            Err(r#"parsing time "2024-05-01T12:00:00.123456789Z" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "789Z" as "Z07:00""#.to_owned())
        );
        assert_eq!(
            refused(seconds("2024-05-01T12:00:00+02:00x")),
            Err(r#"parsing time "2024-05-01T12:00:00+02:00x": extra text: "x""#.to_owned())
        );
        assert_eq!(
            refused(micros("2024-05-01T12:00:00Z")),
            Err(r#"parsing time "2024-05-01T12:00:00Z" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "Z" as ".000000""#.to_owned())
        );
    }
}
