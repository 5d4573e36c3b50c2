//! Whether an answer of ours equals a recorded one: the recording's placeholders (`<uid>`, `<rv>`, `<time>` ...) stand for anything of
//! their form, causes that upstream takes from a map are compared as a set, and managed fields and the plain list of groups in one order.

use regex::Regex;
use serde_json::Value;

/// The differences between the recorded answer and ours, one line each: `path: expected X, got Y`. Empty when they agree.
pub(crate) fn differences(expected: &Value, actual: &Value) -> Vec<String> {
    let mut expected = expected.clone();
    let mut actual = actual.clone();
    for tree in [&mut expected, &mut actual] {
        arrange(tree);
    }
    drop_recorder_volume(&mut expected);
    drop_recorder_rule(&mut expected);
    drop_old_runtime_class(&mut actual);
    let mut out = Vec::new();
    walk("", &expected, &actual, &mut out);
    out
}

/// Whether a recorded string with placeholders stands for ours.
pub(crate) fn matches_text(expected: &str, actual: &str) -> bool {
    if expected == actual {
        return true;
    }
    if !expected.contains('<') {
        return false;
    }
    let mut pattern = String::from("(?s)^");
    let mut rest = expected;
    while let Some(start) = rest.find('<') {
        pattern.push_str(&regex::escape(&rest[..start]));
        let tail = &rest[start..];
        let known = PLACEHOLDERS.iter().find(|(name, _)| tail.starts_with(name));
        match known {
            Some((name, form)) => {
                pattern.push_str(form);
                rest = &tail[name.len()..];
            }
            None => {
                pattern.push('<');
                rest = &tail[1..];
            }
        }
    }
    pattern.push_str(&regex::escape(rest));
    pattern.push('$');
    Regex::new(&pattern).is_ok_and(|pattern| pattern.is_match(actual))
}

const PLACEHOLDERS: &[(&str, &str)] = &[
    ("<uid>", "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    ("<rv>", "[1-9][0-9]*"),
    ("<time>", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"),
    ("<gen>", "[bcdfghjklmnpqrstvwxz2456789]{4,10}"),
    ("<ip>", r"\d+\.\d+\.\d+\.\d+"),
    ("<port>", r"\d+"),
    ("<addr>", r"[^\s]+"),
    ("<token>", r"[A-Za-z0-9_.-]+"),
    ("<continue>", "[A-Za-z0-9_-]+"),
    (
        "<age>",
        r"([0-9]+[smhdy])+|<invalid>|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ",
    ),
];

/// The recording server grants everybody one rule more than a plain one.
fn drop_recorder_rule(value: &mut Value) {
    if let Some(rules) = value
        .pointer_mut("/status/nonResourceRules")
        .and_then(Value::as_array_mut)
    {
        rules.retain(|rule| rule["nonResourceURLs"][0] != "/.well-known");
    }
}

/// The old version of RuntimeClass, which is served on purpose, in the lists of groups.
fn drop_old_runtime_class(value: &mut Value) {
    for list in ["groups", "items"] {
        let groups = value.get_mut(list).and_then(Value::as_array_mut);
        let is_it = |group: &&mut Value| {
            let name = group
                .get("name")
                .or_else(|| group.pointer("/metadata/name"));
            name.is_some_and(|name| name == "node.k8s.io")
        };
        for group in groups.into_iter().flatten().filter(is_it) {
            if let Some(versions) = group["versions"].as_array_mut() {
                versions.retain(|own| own["version"] != "v1beta1");
            }
        }
    }
}

fn walk(path: &str, expected: &Value, actual: &Value, out: &mut Vec<String>) {
    match (expected, actual) {
        (Value::Object(want), Value::Object(have)) => {
            for (key, value) in want {
                match have.get(key).or_else(|| {
                    have.iter()
                        .find(|(k, _)| matches_text(key, k))
                        .map(|(_, v)| v)
                }) {
                    Some(other) => walk(&format!("{path}.{key}"), value, other, out),
                    None => out.push(format!("{path}.{key}: expected {value}, got nothing")),
                }
            }
            for (key, value) in have {
                if !want.contains_key(key) && !want.keys().any(|k| matches_text(k, key)) {
                    out.push(format!("{path}.{key}: expected nothing, got {value}"));
                }
            }
        }
        (Value::Array(want), Value::Array(have)) => {
            if want.len() != have.len() {
                out.push(format!(
                    "{path}: expected {} items, got {}: {expected} / {actual}",
                    want.len(),
                    have.len()
                ));
                return;
            }
            for (index, (value, other)) in want.iter().zip(have).enumerate() {
                walk(&format!("{path}[{index}]"), value, other, out);
            }
        }
        (Value::String(want), Value::String(have))
            if matches_text(want, have) || matches_text(&without_recorder_lines(want), have) => {}
        (Value::String(want), Value::Number(have))
            if want.starts_with('<') && matches_text(want, &have.to_string()) => {}
        (Value::Number(want), Value::Number(have)) if want.as_f64() == have.as_f64() => {}
        (want, have) if want == have => {}
        (want, have) => out.push(format!("{path}: expected {want}, got {have}")),
    }
}

/// Puts what has no order of its own into one order: managed fields, and the causes (with the message's parts) of a Status.
fn arrange(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if let Some(Value::Array(entries)) = map.get_mut("managedFields") {
                entries.sort_by_key(|entry| {
                    ["operation", "manager", "apiVersion", "subresource"]
                        .map(|key| entry[key].as_str().unwrap_or_default().to_owned())
                });
            }
            if map.get("kind").and_then(Value::as_str) == Some("Status") {
                arrange_status(map);
            }
            // The recording has the plain list of groups by name.
            if let Some(Value::Array(groups)) = map.get_mut("groups")
                && groups.iter().all(Value::is_object)
            {
                groups.sort_by_key(|group| group["name"].as_str().unwrap_or_default().to_owned());
            }
            for field in ["resourceRules", "nonResourceRules"] {
                if let Some(Value::Array(rules)) = map.get_mut(field) {
                    rules.sort_by_key(Value::to_string);
                }
            }
            map.values_mut().for_each(arrange);
        }
        Value::Array(items) => items.iter_mut().for_each(arrange),
        _ => {}
    }
}

fn arrange_status(status: &mut serde_json::Map<String, Value>) {
    let several = match status
        .get_mut("details")
        .and_then(|details| details.get_mut("causes"))
    {
        Some(Value::Array(causes)) if causes.len() > 1 => {
            causes.sort_by_key(Value::to_string);
            true
        }
        _ => false,
    };
    if let (true, Some(Value::String(message))) = (several, status.get_mut("message"))
        && let Some(start) = message.find('[')
    {
        let inner = message[start + 1..].trim_end_matches(']').to_owned();
        let mut parts: Vec<&str> = inner.split(", ").collect();
        parts.sort_unstable();
        *message = format!("{}[{}]", &message[..start], parts.join(", "));
    }
}

/// The lines that the source of [`drop_recorder_volume`] takes where a difference shows a whole pod spec.
const RECORDER_LINES: usize = 18;

/// A refusal of a pod's update as it would be without those lines, which come before what is different.
fn without_recorder_lines(message: &str) -> String {
    if !message.contains("pod updates may not change fields") {
        return message.to_owned();
    }
    let hunk = Regex::new(r"(?m)^@@ -(\d+),(\d+) \+(\d+),(\d+) @@$").expect("the pattern is valid");
    let earlier = |line: &str| {
        line.parse::<usize>()
            .unwrap_or_default()
            .saturating_sub(RECORDER_LINES)
    };
    let shifted = hunk.replace_all(message, |found: &regex::Captures<'_>| {
        format!(
            "@@ -{},{} +{},{} @@",
            earlier(&found[1]),
            &found[2],
            earlier(&found[3]),
            &found[4]
        )
    });
    shifted.into_owned()
}

/// The recording server was built with one more source in the token volume of pods; a plain kube-apiserver has none.
fn drop_recorder_volume(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if let Some(Value::Array(sources)) = map.get_mut("sources") {
                sources.retain(|source| source["configMap"]["name"] != "openshift-service-ca.crt");
            }
            map.values_mut().for_each(drop_recorder_volume);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_recorder_volume),
        _ => {}
    }
}

#[test]
fn a_placeholder_matches_its_form_and_nothing_else() {
    assert!(matches_text(
        "kube-api-access-<gen>",
        "kube-api-access-x7k2p"
    ));
    assert!(!matches_text("<rv>", "0"));
    assert!(!matches_text("a <uid>", "a 12"));
    assert!(matches_text("ports <none>", "ports <none>"));
}
