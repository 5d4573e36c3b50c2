//! The errors of Go's `strconv` for texts that are no integers.

use super::quote;

/// Returns Go's error for a text that is not a 64-bit integer; `function` is `ParseInt`, `Atoi`, or `ParseUint`, which takes no sign.
pub fn fault(function: &str, text: &str) -> String {
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
    format!("strconv.{function}: parsing {}: {why}", quote(text))
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
            assert_eq!(fault(function, text), why);
        }
    }
}
