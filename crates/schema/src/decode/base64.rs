//! Base64 as Go's standard decoder reads it: line breaks are skipped, and an error has the index of the byte.

use base64::{DecodeError, Engine, engine::general_purpose::STANDARD};

/// Returns the canonical encoding of the same bytes, or the index of the byte that Go reports.
pub fn canonical(text: &str) -> Result<String, usize> {
    let compact: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    match STANDARD.decode(&compact) {
        Ok(bytes) => Ok(STANDARD.encode(bytes)),
        Err(
            DecodeError::InvalidByte(at, _) | DecodeError::InvalidLastSymbol { offset: at, .. },
        ) => Err(at),
        // Go reports the start of the last, incomplete group of four characters.
        Err(DecodeError::InvalidLength(_) | DecodeError::InvalidPadding) => {
            Err(compact.len() / 4 * 4)
        }
    }
}
