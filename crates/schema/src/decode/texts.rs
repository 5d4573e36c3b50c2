//! Replaces invalid Unicode in strings by the replacement character, as Go's JSON decoder does.

use std::borrow::Cow;

const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

/// Returns the body with all strings made valid, or `None` if they are valid already.
pub(super) fn mended(body: &[u8]) -> Option<Vec<u8>> {
    let text = String::from_utf8_lossy(body);
    let surrogates = without_lone_surrogates(text.as_bytes());
    match (text, surrogates) {
        (_, Some(mended)) => Some(mended),
        (Cow::Owned(text), None) => Some(text.into_bytes()),
        (Cow::Borrowed(_), None) => None,
    }
}

/// Returns the value of an escape `\uXXXX` at the start of `bytes`.
fn escaped(bytes: &[u8]) -> Option<u32> {
    let digits = bytes.strip_prefix(b"\\u")?.get(..4)?;
    let digits = std::str::from_utf8(digits).ok()?;
    u32::from_str_radix(digits, 16).ok()
}

fn without_lone_surrogates(body: &[u8]) -> Option<Vec<u8>> {
    let (mut out, mut copied, mut at) = (Vec::new(), 0, 0);
    while at < body.len() {
        let Some(unit) = escaped(&body[at..]) else {
            // Skip the character after a backslash along with it.
            at += if body[at] == b'\\' { 2 } else { 1 };
            continue;
        };
        let next = body.get(at + 6..).and_then(escaped);
        match (unit, next) {
            (0xd800..0xdc00, Some(0xdc00..0xe000)) => at += 12,
            (0xd800..0xe000, _) => {
                out.extend_from_slice(&body[copied..at]);
                out.extend_from_slice(REPLACEMENT);
                at += 6;
                copied = at;
            }
            _ => at += 6,
        }
    }
    if copied == 0 {
        return None;
    }
    out.extend_from_slice(&body[copied..]);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_character_is_replaced() {
        let mended = |body: &[u8]| mended(body).map(|body| String::from_utf8(body).unwrap());
        for good in [r#""\ud83d\ude00\\ud800\u0041""#, "", "\\", r#""\u12"#] {
            assert_eq!(mended(good.as_bytes()), None, "{good}");
        }
        for (wrong, right) in [
            (&br#""\ud800x""#[..], "\"\u{fffd}x\""),
            (
                br#""\ude00\ud83d\ud83d\ude00""#,
                "\"\u{fffd}\u{fffd}\\ud83d\\ude00\"",
            ),
            (b"\"a\xffb\"", "\"a\u{fffd}b\""),
        ] {
            assert_eq!(mended(wrong).as_deref(), Some(right));
        }
    }
}
