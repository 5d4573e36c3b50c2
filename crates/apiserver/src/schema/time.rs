//! Timestamps as `metav1.Time` and `metav1.MicroTime` read and write them: RFC 3339 in, UTC out, seconds or microseconds.
//!
//! A text that Go's `time.Parse` would refuse is refused with its sentence.

use jiff::{Timestamp, tz::TimeZone};

const SECONDS: &str = "2006-01-02T15:04:05Z07:00";
const MICROS: &str = "2006-01-02T15:04:05.000000Z07:00";

/// The canonical text of a `metav1.Time`.
///
/// # Errors
/// Go's sentence when the text is no RFC 3339 time.
pub fn seconds(text: &str) -> Result<String, String> {
    read(text, SECONDS).map(|time| format_seconds(&time))
}

/// The canonical text of a `metav1.MicroTime`.
///
/// # Errors
/// Go's sentence when the text is no RFC 3339 time with exactly six decimals.
pub fn micros(text: &str) -> Result<String, String> {
    read(text, MICROS).map(|time| format_micros(&time))
}

/// `2006-01-02T15:04:05Z`.
pub fn format_seconds(time: &Timestamp) -> String {
    time.to_zoned(TimeZone::UTC)
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string()
}

/// `2006-01-02T15:04:05.000000Z`.
pub fn format_micros(time: &Timestamp) -> String {
    let micros = time.subsec_microsecond() + i32::from(time.subsec_microsecond() < 0) * 1_000_000;
    let whole = time
        .to_zoned(TimeZone::UTC)
        .strftime("%Y-%m-%dT%H:%M:%S")
        .to_string();
    format!("{whole}.{micros:06}Z")
}

/// Walks the layout element by element, so that the error names the element that did not fit.
fn read(text: &str, layout: &str) -> Result<Timestamp, String> {
    let fail = |rest: &str, element: &str| {
        format!("parsing time {text:?} as {layout:?}: cannot parse {rest:?} as {element:?}")
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
    let decimals = rest.strip_prefix(['.', ',']).map_or(0, |after| {
        after.bytes().take_while(u8::is_ascii_digit).count()
    });
    if layout == MICROS && decimals != 6 {
        return Err(fail(rest, ".000000"));
    }
    if decimals > 0 {
        rest = &rest[1 + decimals..];
    }
    let zone = rest.as_bytes();
    let is_offset = zone.len() == 6 && matches!(zone[0], b'+' | b'-') && zone[3] == b':';
    if rest != "Z" && !is_offset {
        let extra = rest.strip_prefix('Z').filter(|extra| !extra.is_empty());
        return Err(extra.map_or_else(
            || fail(rest, "Z07:00"),
            |extra| format!("parsing time {text:?}: extra text: {extra:?}"),
        ));
    }
    text.parse()
        .map_err(|_| format!("parsing time {text:?}: {} out of range", out_of_range(text)))
}

fn out_of_range(text: &str) -> &'static str {
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
    fn a_text_that_is_no_time_is_refused_in_gos_words() {
        assert_eq!(
            seconds("yesterday"),
            Err(r#"parsing time "yesterday" as "2006-01-02T15:04:05Z07:00": cannot parse "yesterday" as "2006""#.to_owned())
        );
        assert_eq!(
            seconds("2024-13-01T00:00:00Z"),
            Err(r#"parsing time "2024-13-01T00:00:00Z": month out of range"#.to_owned())
        );
        assert_eq!(
            micros("2024-05-01T12:00:00Z"),
            Err(r#"parsing time "2024-05-01T12:00:00Z" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "Z" as ".000000""#.to_owned())
        );
    }
}
