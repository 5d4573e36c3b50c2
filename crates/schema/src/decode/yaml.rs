//! Decodes YAML bodies like Go: only the first document, and the last of duplicate keys wins.

mod complaint;

use mullion_kube_text::golang::number;
use serde_json::Value;
use serde_saphyr::{DuplicateKeyPolicy, Error};

use super::{DecodeError, Problem, depth, duplicates};

/// The number of numbers too large for a float that are read as strings. Each costs another parse of the body, so the next one is
/// an error.
const MOST_OVERFLOWS: usize = 4;

/// Decodes YAML into JSON values and reports duplicate keys, of which the last wins. Whole numbers become integers however they are
/// written, as in Go's conversion of YAML to JSON.
///
/// # Errors
/// The body is not YAML.
pub fn read(body: &[u8]) -> Result<(Value, Vec<Problem>), DecodeError> {
    let (mut value, problems) = as_written(body, MOST_OVERFLOWS)?;
    number::settle(&mut value);
    Ok((value, problems))
}

/// Decodes YAML with numbers as they are written. At most `overflows` numbers may be too large for a float.
fn as_written(body: &[u8], overflows: usize) -> Result<(Value, Vec<Problem>), DecodeError> {
    if let Some(why) = complaint::of_characters(body).or_else(|| complaint::of_escapes(body)) {
        return Err(DecodeError::Yaml(why));
    }
    let parse = |policy| {
        // As in Go's YAML, 0440 is octal: the usual way to write the mode of a file.
        let options = serde_saphyr::options! { duplicate_keys: policy, legacy_octal_numbers: true };
        serde_saphyr::from_slice_with_options::<Value>(body, options)
    };
    // Duplicates are rare, so the body is parsed again only if there are any.
    match parse(DuplicateKeyPolicy::Error) {
        Ok(value) => {
            depth::check(&value)?;
            Ok((value, Vec::new()))
        }
        Err(error) => {
            let first = match error.without_snippet() {
                Error::DuplicateMappingKey { key, location } => {
                    (location.line(), key.clone().unwrap_or_default())
                }
                // Go reads the first document only, so errors in the others do not matter.
                Error::MultipleDocuments { .. } if first_document(body).len() < body.len() => {
                    return as_written(first_document(body), overflows);
                }
                _ if end_of_braces(body) < body.len() => {
                    return as_written(&body[..end_of_braces(body)], overflows);
                }
                other => {
                    let why = other.to_string();
                    let quoted = complaint::quoted_overflow(body, &why);
                    return match (quoted, overflows.checked_sub(1)) {
                        (Some(quoted), Some(overflows)) => as_written(&quoted, overflows),
                        _ => Err(DecodeError::Yaml(complaint::of(body, &why))),
                    };
                }
            };
            let value = parse(DuplicateKeyPolicy::LastWins);
            let value = value.map_err(|error| {
                DecodeError::Yaml(complaint::of(body, &error.without_snippet().to_string()))
            })?;
            depth::check(&value)?;
            let mut keys = duplicates::of(body);
            if keys.is_empty() {
                keys.push(first);
            }
            Ok((value, vec![Problem::YamlDuplicates(keys)]))
        }
    }
}

/// Returns the first document of a body; Go reads no further.
fn first_document(body: &[u8]) -> &[u8] {
    let (mut at, mut has_begun) = (0, false);
    for line in body.split_inclusive(|byte| *byte == b'\n') {
        let marked = |marker: &[u8]| {
            let rest = line.strip_prefix(marker)?;
            let is_marker = rest.first().is_none_or(u8::is_ascii_whitespace);
            is_marker.then(|| rest.trim_ascii())
        };
        if has_begun && (marked(b"---").is_some() || marked(b"...").is_some()) {
            return &body[..at];
        }
        let content = marked(b"---").unwrap_or_else(|| line.trim_ascii());
        has_begun |= !matches!(content.first(), None | Some(b'#' | b'%'));
        at += line.len();
    }
    body
}

/// Returns where the mapping ends that a body in braces consists of, or the body's length if it does not end. Go ignores what follows.
fn end_of_braces(body: &[u8]) -> usize {
    if body.trim_ascii_start().first() != Some(&b'{') {
        return body.len();
    }
    let (mut depth, mut is_text, mut at) = (0_usize, false, 0);
    while at < body.len() {
        match body[at] {
            b'\\' if is_text => at += 1,
            b'"' => is_text = !is_text,
            b'{' | b'[' if !is_text => depth += 1,
            b'}' | b']' if !is_text => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
        at += 1;
    }
    body.len()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_follows_a_mapping_in_braces_is_ignored() {
        for body in [
            r#"{"a": 1},"#,
            r#"{"a": 1}{}"#,
            r#"{"a": 1}]"#,
            r#"{"a": 1} x"#,
        ] {
            let (value, _) = read(body.as_bytes()).expect(body);
            assert_eq!(value, json!({"a": 1}), "{body}");
        }
        assert!(read(br#"{"a": "}}", "#).is_err());
    }

    #[test]
    fn a_number_that_is_too_large_is_a_string() {
        for body in ["a: 1e400\n", "{\"a\": 1e400}", "# one\na: 1e400 # two\n"] {
            let (value, _) = read(body.as_bytes()).expect(body);
            assert_eq!(value, json!({"a": "1e400"}), "{body}");
        }
        let many = read(b"a: -1e999\nb: [1e400, 2]\n").expect("both are strings");
        assert_eq!(many.0, json!({"a": "-1e999", "b": ["1e400", 2]}));
        // Each costs a parse, so a body full of them is refused.
        let all = format!("[{}]", "1e400,".repeat(10_000));
        assert!(read(all.as_bytes()).is_err());
    }

    #[test]
    fn a_whole_number_with_a_leading_zero_is_octal() {
        let (value, _) = read(b"a: 0440\nb: 440\nc: '0440'\nd: 0\n").expect("YAML");
        assert_eq!(value, json!({"a": 288, "b": 440, "c": "0440", "d": 0}));
    }

    #[test]
    fn of_several_documents_the_first_counts() {
        for body in [
            "a: 1\n---\nb: 2\n",
            "# one\n---\na: 1\n--- {b: 2}\n---\nc\n",
            "--- {a: 1}\n...\n---\nb: 2\n",
            "a: 1\n---\n",
        ] {
            let (value, _) = read(body.as_bytes()).expect(body);
            assert_eq!(value, json!({"a": 1}), "{body}");
        }
    }
}
