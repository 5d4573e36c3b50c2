//! Validation of NodePools beyond their schema, with Karpenter's messages.
//!
//! The rules are Karpenter's `NodePool.RuntimeValidate` and, for labels with few known values, `validateWellKnownValues`;
//! all errors are joined in one message. Rules that the schema's patterns and CEL expressions enforce before an object is
//! stored are not repeated: restricted labels, label values, operators without values.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Taint;
use mullion_api::{
    karpenter::{NodePoolSpec, Operator, Requirement},
    labels,
};

/// Labels whose possible values are all known (Karpenter: `WellKnownValuesForRequirements`).
const KNOWN_VALUES: [(&str, &[&str]); 2] = [
    (labels::CAPACITY_TYPE, &["on-demand", "reserved", "spot"]),
    (labels::INSTANCE_TENANCY, &["dedicated", "default"]),
];

/// Returns what is wrong with a pool, or `None` if it is valid.
pub(super) fn error(spec: &NodePoolSpec) -> Option<String> {
    let template = &spec.template;
    let mut errors = Vec::new();
    for key in template.metadata.labels.keys() {
        errors.extend(
            qualified_name(key)
                .into_iter()
                .map(|error| format!("invalid key name {key:?} in labels, {error:?}")),
        );
    }
    // Taints and startup taints share the set: a node cannot have one key and effect twice.
    let mut seen = BTreeSet::new();
    check_taints(&template.spec.taints, "taints", &mut seen, &mut errors);
    check_taints(
        &template.spec.startup_taints,
        "startupTaints",
        &mut seen,
        &mut errors,
    );
    for requirement in &template.spec.requirements {
        let wrong = requirement_errors(requirement);
        if !wrong.is_empty() {
            let wrong = wrong.join("; ");
            errors.push(format!(
                "invalid value: {wrong} in requirements, restricted"
            ));
        }
    }
    (!errors.is_empty()).then(|| errors.join("; "))
}

/// Returns by label the unknown values in requirements that also have known ones: the pool is valid, but these values have
/// no effect.
pub(super) fn ignored_values(spec: &NodePoolSpec) -> Vec<(&str, Vec<&str>)> {
    let requirements = spec.template.spec.requirements.iter();
    requirements
        .filter_map(|requirement| {
            let (known, unknown) = sorted_out(requirement)?;
            // Without any known value the pool is invalid instead, which `unknown_values` reports.
            (!known.is_empty() && !unknown.is_empty())
                .then_some((requirement.key.as_str(), unknown))
        })
        .collect()
}

fn check_taints<'a>(
    taints: &'a [Taint],
    field: &str,
    seen: &mut BTreeSet<(&'a str, &'a str)>,
    errors: &mut Vec<String>,
) {
    for taint in taints {
        let value = taint.value.as_deref().filter(|value| !value.is_empty());
        let names = [Some(taint.key.as_str()), value].into_iter().flatten();
        errors.extend(
            names
                .flat_map(qualified_name)
                .map(|error| format!("invalid value: {error} in {field}")),
        );
        let (key, effect) = (taint.key.as_str(), taint.effect.as_str());
        if !seen.insert((key, effect)) {
            errors.push(format!("duplicate taint Key/Effect pair {key}={effect}"));
        }
    }
}

/// Returns what is wrong with a requirement's key, and with its values if all values of the label are known.
pub(crate) fn requirement_errors(requirement: &Requirement) -> Vec<String> {
    let key = &requirement.key;
    let mut errors: Vec<_> = unknown_values(requirement).into_iter().collect();
    errors.extend(
        qualified_name(key)
            .into_iter()
            .map(|error| format!("key {key} is not a qualified name, {error}")),
    );
    errors
}

/// Returns an error if none of the values is known, or fewer than `minValues`.
fn unknown_values(requirement: &Requirement) -> Option<String> {
    let (known, unknown) = sorted_out(requirement)?;
    let key = &requirement.key;
    let asked = requirement.values.join(" ");
    let (_, all) = KNOWN_VALUES.iter().find(|(label, _)| label == key)?;
    if known.is_empty() {
        // The message shows a set as Go's `%v` does.
        let set: Vec<_> = all.iter().map(|value| format!("{value}:{{}}")).collect();
        return Some(format!(
            "no valid values found in [{asked}] for {key}, expected one of: map[{}], got: [{}]",
            set.join(" "),
            unknown.join(" ")
        ));
    }
    let least = requirement.min_values? as usize;
    (known.len() < least).then(|| {
        format!(
            "not enough valid values found in [{asked}] for {key}, expected at least {least} valid values from: [{}], got: {}",
            all.join(" "),
            known.len()
        )
    })
}

/// Splits the values of a requirement into known and unknown ones; `None` if not all values of its label are known.
fn sorted_out(requirement: &Requirement) -> Option<(Vec<&str>, Vec<&str>)> {
    let mut labels = KNOWN_VALUES.iter();
    let (_, all) = labels.find(|(label, _)| *label == requirement.key)?;
    let values = requirement.values.iter().map(String::as_str);
    (requirement.operator == Operator::In).then(|| values.partition(|value| all.contains(value)))
}

/// Returns why a text is not a valid label or taint key (apimachinery: `IsQualifiedName`).
fn qualified_name(text: &str) -> Vec<String> {
    const NAME: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    let (prefix, name) = match text.split_once('/') {
        None => (None, text),
        Some((_, rest)) if rest.contains('/') => {
            return vec![format!(
                "a valid label key {NAME} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
        Some((prefix, name)) => (Some(prefix), name),
    };
    let mut errors = Vec::new();
    match prefix {
        Some("") => errors.push("prefix part must be non-empty".to_owned()),
        Some(prefix) => {
            if prefix.len() > 253 {
                errors.push("prefix part must be no more than 253 characters".to_owned());
            }
            if !prefix.split('.').all(is_dns_label) {
                errors.push(format!("prefix part {SUBDOMAIN}"));
            }
        }
        None => {}
    }
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        errors.push("name part must be no more than 63 bytes".to_owned());
    }
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    if !is_bounded(name, u8::is_ascii_alphanumeric, inner) {
        errors.push(format!("name part {NAME}"));
    }
    errors
}

/// Returns why a text is not a valid label value (apimachinery: `IsValidLabelValue`).
pub(crate) fn label_value_error(text: &str) -> Option<String> {
    const VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
    if text.len() > 63 {
        return Some("must be no more than 63 bytes".to_owned());
    }
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    let is_value = text.is_empty() || is_bounded(text, u8::is_ascii_alphanumeric, inner);
    (!is_value).then(|| VALUE.to_owned())
}

fn is_dns_label(text: &str) -> bool {
    let end = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    is_bounded(text, end, |byte| end(byte) || *byte == b'-')
}

/// Returns whether the first and last byte of a text satisfy `end`, and all bytes `inner`.
fn is_bounded(text: &str, end: impl Fn(&u8) -> bool, inner: impl Fn(&u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    ends.iter().all(|byte| byte.is_some_and(&end)) && bytes.iter().all(inner)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(template: Value) -> NodePoolSpec {
        let mut spec = json!({ "template": template });
        spec["template"]["spec"]["nodeClassRef"] =
            json!({ "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "c" });
        serde_json::from_value(spec).expect("a spec")
    }

    fn requiring(requirement: Value) -> NodePoolSpec {
        spec(json!({ "spec": { "requirements": [requirement] } }))
    }

    #[test]
    fn a_capacity_type_that_nobody_sells_is_refused_in_karpenters_words() {
        let capacity = |operator: &str, values: &[&str]| {
            requiring(
                json!({ "key": "karpenter.sh/capacity-type", "operator": operator, "values": values }),
            )
        };
        assert_eq!(
            error(&capacity("In", &["spott"])).as_deref(),
            Some(
                "invalid value: no valid values found in [spott] for karpenter.sh/capacity-type, expected one of: \
                 map[on-demand:{} reserved:{} spot:{}], got: [spott] in requirements, restricted"
            )
        );
        let partly = capacity("In", &["spot", "spott"]);
        assert_eq!(error(&partly), None);
        let expected = [("karpenter.sh/capacity-type", vec!["spott"])];
        assert_eq!(ignored_values(&partly), expected);
        for fine in [
            capacity("In", &["spot", "on-demand"]),
            capacity("NotIn", &["spott"]),
        ] {
            assert_eq!(error(&fine), None);
            assert_eq!(ignored_values(&fine), []);
        }
    }

    #[test]
    fn least_numbers_count_known_values_only() {
        let few = requiring(json!({
            "key": "karpenter.k8s.aws/instance-tenancy", "operator": "In", "values": ["default", "host"], "minValues": 2
        }));
        assert_eq!(
            error(&few).as_deref(),
            Some(
                "invalid value: not enough valid values found in [default host] for karpenter.k8s.aws/instance-tenancy, \
                 expected at least 2 valid values from: [dedicated default], got: 1 in requirements, restricted"
            )
        );
    }

    #[test]
    fn a_taint_may_be_named_once() {
        let taint = json!({ "key": "os", "value": "windows", "effect": "NoSchedule" });
        let twice = spec(json!({ "spec": { "taints": [taint], "startupTaints": [taint] } }));
        let message = "duplicate taint Key/Effect pair os=NoSchedule";
        assert_eq!(error(&twice).as_deref(), Some(message));
    }

    #[test]
    fn keys_of_labels_are_qualified_names() {
        let long = "x".repeat(64);
        let labels = json!({ "metadata": { "labels": { "fine/one": "1", (long.clone()): "2", "a/": "3" } }, "spec": {} });
        let expected = format!(
            "invalid key name \"a/\" in labels, \"name part must be non-empty\"; \
             invalid key name \"a/\" in labels, {:?}; \
             invalid key name {long:?} in labels, \"name part must be no more than 63 bytes\"",
            qualified_name("").last().expect("it is refused")
        );
        assert_eq!(error(&spec(labels)), Some(expected));
        assert_eq!(qualified_name("Big.Example/x").len(), 1);
        assert_eq!(qualified_name("a/b/c").len(), 1);
    }
}
