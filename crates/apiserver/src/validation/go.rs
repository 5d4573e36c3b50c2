//! The errors of Go's parsers of numbers and durations.

/// Returns the error that Go's `time.ParseDuration` gives for `text`, or `None` if it parses.
pub(crate) fn duration(text: &str) -> Option<String> {
    const UNITS: [&str; 7] = ["ns", "us", "µs", "ms", "s", "m", "h"];
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
        if !UNITS.contains(&unit) {
            return Some(format!(
                "time: unknown unit {unit:?} in duration {}",
                quoted()
            ));
        }
        rest = &rest[end..];
    }
    None
}

/// Returns Go's error for a text that is not a 64-bit integer; `function` is `ParseInt`, `Atoi`, or `ParseUint`, which takes no sign.
pub(crate) fn whole(function: &str, text: &str) -> String {
    let unsigned = function == "ParseUint";
    let digits = match text.strip_prefix(['+', '-']) {
        Some(digits) if !unsigned => digits,
        _ => text,
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let why = if is_number {
        "value out of range"
    } else {
        "invalid syntax"
    };
    format!("strconv.{function}: parsing {text:?}: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_refused_in_gos_words() {
        for (function, text, why) in [
            (
                "ParseInt",
                "",
                r#"strconv.ParseInt: parsing "": invalid syntax"#,
            ),
            (
                "ParseInt",
                "1x",
                r#"strconv.ParseInt: parsing "1x": invalid syntax"#,
            ),
            (
                "ParseInt",
                "-99999999999999999999",
                r#"strconv.ParseInt: parsing "-99999999999999999999": value out of range"#,
            ),
            (
                "ParseUint",
                "-1",
                r#"strconv.ParseUint: parsing "-1": invalid syntax"#,
            ),
        ] {
            assert_eq!(whole(function, text), why);
        }
    }
}
