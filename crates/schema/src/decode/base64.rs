//! Base64 as Go's standard decoder reads it: line breaks are skipped, unused bits may be set, and an error has the index of the byte.

use base64::{
    Engine,
    alphabet::STANDARD as ALPHABET,
    engine::{GeneralPurpose, GeneralPurposeConfig, general_purpose::STANDARD},
};

/// The decoder of texts that [`fault`] has passed.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &ALPHABET,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// Returns the canonical encoding of the same bytes, or the index of the byte that Go reports.
pub fn canonical(text: &str) -> Result<String, usize> {
    if let Some(at) = fault(text.as_bytes()) {
        return Err(at);
    }
    let compact: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    match LENIENT.decode(&compact) {
        Ok(bytes) => Ok(STANDARD.encode(bytes)),
        Err(_) => Err(compact.len()),
    }
}

fn is_break(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}

/// Returns the index that Go's decoder reports, or `None` if the text decodes (encoding/base64: `decodeQuantum`).
fn fault(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    // The digits of the current group of four.
    let mut digits = 0;
    // Go reports an incomplete group so many bytes before the end as it has digits, wherever line breaks stand in it.
    while let Some(&byte) = text.get(at) {
        match byte {
            byte if is_break(byte) => {}
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'+' | b'/' => digits = (digits + 1) % 4,
            b'=' if digits >= 2 => return padding_fault(text, at, digits),
            _ => return Some(at),
        }
        at += 1;
    }
    (digits > 0).then(|| text.len() - digits)
}

/// Returns the index that Go reports from the first `=` on, which stands at `first` after two or three digits of its group.
fn padding_fault(text: &[u8], first: usize, digits: usize) -> Option<usize> {
    let after_breaks = |mut at: usize| {
        while text.get(at).copied().is_some_and(is_break) {
            at += 1;
        }
        at
    };
    let mut at = first + 1;
    if digits == 2 {
        at = after_breaks(at);
        match text.get(at) {
            None => return Some(text.len()),
            Some(b'=') => at += 1,
            Some(_) => return Some(at - 1),
        }
    }
    let rest = after_breaks(at);
    (rest < text.len()).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_decode_and_fail_as_in_go() {
        for (text, canonical_text) in [
            ("YW\n==", "YQ=="),
            ("YW==", "YQ=="),
            ("YWJjYW=\n\n=", "YWJjYQ=="),
            ("", ""),
            ("\n", ""),
        ] {
            assert_eq!(canonical(text).as_deref(), Ok(canonical_text), "{text:?}");
        }
        for (text, at) in [
            ("YQ\n=", 4),
            ("Y\nQ=", 4),
            ("YQ=\n", 4),
            ("YQ==x", 4),
            ("YQ=x", 2),
            ("Y", 0),
            ("YQ", 0),
            ("=", 0),
            ("YWJj\nYQ", 5),
            ("!!", 0),
            ("YWé=", 2),
        ] {
            assert_eq!(canonical(text), Err(at), "{text:?}");
        }
    }
}
