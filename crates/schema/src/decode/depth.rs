//! A limit on the nesting of values.
//!
//! A stored object must be decodable again: by this server, by controllers that get it inside a list, and with its managedFields, which
//! are nested deeper than the fields. `serde_json` reads 127 levels; Go's decoder stops at 10,000.

use serde_json::Value;

use super::DecodeError;

/// The most levels of objects and lists.
pub(super) const LIMIT: usize = 100;

/// Refuses a value that is nested deeper.
pub(crate) fn check(value: &Value) -> Result<(), DecodeError> {
    if fits(value, LIMIT) {
        Ok(())
    } else {
        Err(DecodeError::Depth)
    }
}

fn fits(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels > 0 && items.iter().all(|item| fits(item, levels - 1)),
        Value::Object(fields) => levels > 0 && fields.values().all(|field| fits(field, levels - 1)),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_fits_up_to_the_limit() {
        let nested = |levels| (0..levels).fold(Value::Null, |inner, _| Value::Array(vec![inner]));
        assert_eq!(check(&nested(LIMIT)), Ok(()));
        assert_eq!(check(&nested(LIMIT + 1)), Err(DecodeError::Depth));
    }
}
