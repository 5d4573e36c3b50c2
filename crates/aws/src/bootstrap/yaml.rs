//! Writes JSON values as block-style YAML with sorted keys.

use serde_json::Value;

/// Formats an object or a list, with one entry per line.
pub(super) fn write(value: &Value) -> String {
    let mut text = String::new();
    block(value, 0, &mut text);
    text
}

fn block(value: &Value, indent: usize, text: &mut String) {
    let pad = " ".repeat(indent);
    match value {
        Value::Object(map) => {
            let mut keys: Vec<_> = map.keys().collect();
            keys.sort_unstable();
            for key in keys {
                text.push_str(&format!("{pad}{}:", scalar(&Value::String(key.clone()))));
                // Lists have the indentation of their key, as in the output of Go's encoders.
                let deeper = indent + if map[key].is_array() { 0 } else { 2 };
                entry(&map[key], deeper, text);
            }
        }
        Value::Array(list) => {
            for one in list {
                text.push_str(&format!("{pad}-"));
                if is_block(one) {
                    let mut inner = String::new();
                    block(one, indent + 2, &mut inner);
                    text.push_str(&format!(" {}", inner.trim_start_matches(' ')));
                } else {
                    text.push_str(&format!(" {}\n", scalar(one)))
                }
            }
        }
        other => text.push_str(&format!("{pad}{}\n", scalar(other))),
    }
}

fn entry(value: &Value, indent: usize, text: &mut String) {
    if is_block(value) {
        text.push('\n');
        block(value, indent, text);
    } else {
        text.push_str(&format!(" {}\n", scalar(value)))
    }
}

fn is_block(value: &Value) -> bool {
    match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(list) => !list.is_empty(),
        _ => false,
    }
}

/// Formats a scalar. A string has no quotes if every YAML parser reads it as the same string.
fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) if is_plain(text) => text.clone(),
        other => other.to_string(),
    }
}

fn is_plain(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || "-_./=\",:".contains(c);
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '-');
    // `a: b` and `a:` would be mappings, and numbers and YAML's keywords would have other types.
    let is_mapping = text.ends_with(':') || text.contains(": ");
    let is_reserved = matches!(
        text.to_ascii_lowercase().as_str(),
        "true" | "false" | "yes" | "no" | "on" | "off" | "y" | "n" | "null" | "-" | "---"
    );
    let is_number = text.parse::<f64>().is_ok();
    is_word && text.chars().all(inner) && !is_mapping && !is_reserved && !is_number
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_written_is_read_as_the_same_value() {
        let value = json!({
            "plain": "https://a.b/c", "odd": "a: b", "empty": "", "number": "12", "hard": "12%",
            "yes": "yes", "real": 3, "off": false, "none": null, "flag": "--node-labels=\"a=b,c=d\"",
            "ipv6": "fd00::a", "address": "10.0.0.10", "hash": "a #b", "dash": "-",
            "list": [1, "two", { "key": "a", "value": { "deep": [] } }, [3, [4]]],
            "memory.available": { "x": {} },
        });
        let text = write(&value);
        let read: Value = serde_saphyr::from_str(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(read, value, "{text}");
    }
}
