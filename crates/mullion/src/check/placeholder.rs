//! Recognizes texts in which another program puts a value before the object is applied: `${NAME}` and `$NAME` as for envsubst, `{{ name }}`
//! as in templates. Nothing is known of that value, so no rule judges it.

use serde_json::Value;

/// Returns whether a text has a placeholder. `$(NAME)` is none: the kubelet replaces it, and `$` before anything else ends a regular
/// expression.
pub(super) fn is_placeholder(text: &str) -> bool {
    let begins_name = |c: char| c == '{' || c == '_' || c.is_ascii_alphabetic();
    let mut after_dollars = text.split('$').skip(1);
    text.contains("{{") || after_dollars.any(|after| after.starts_with(begins_name))
}

/// Returns whether a value is a text with a placeholder.
pub(super) fn is_filled_in_later(value: &Value) -> bool {
    value.as_str().is_some_and(is_placeholder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_those_of_envsubst_and_of_templates() {
        for text in ["${NAME}", "a-${NAME:-b}", "$NAME", "a/$name", "{{ .name }}"] {
            assert!(is_placeholder(text), "{text}");
        }
        for text in ["", "name", "$(NAME)", "5$", "^[a-z]+$|^$", "{name}", "$1"] {
            assert!(!is_placeholder(text), "{text}");
        }
    }
}
