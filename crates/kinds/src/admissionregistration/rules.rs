//! Validates the rules and match conditions of webhooks and policies.

use std::collections::HashSet;

use mullion_kube_text::{
    field::{Errors, Path},
    names,
    validation::{check, one_of},
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use crate::{
    fields::{self, Field, OneOf, set},
    request::expression::{ExpectedType, Expression, Scope},
};

/// The operations of rules, sorted as errors print them.
const OPERATIONS: &[&str] = &["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const RULE: &[Field] = &[set("scope", OneOf(&["*", "Cluster", "Namespaced"]))];
const MAX_CONDITIONS: usize = 64;

fn texts<'a>(object: &'a Value, field: &str) -> Vec<&'a str> {
    let items = object.items(field).iter();
    items.filter_map(Value::as_str).collect()
}

fn has_wildcard(texts: &[&str]) -> bool {
    texts.contains(&"*")
}

/// Records the errors of a `NamedRuleWithOperations`.
pub(super) fn named_rule(given: &Value, path: &Path<'_>, errors: &mut Errors) {
    let (named, at) = (texts(given, "resourceNames"), path.child("resourceNames"));
    let mut seen = HashSet::new();
    for (index, name) in named.iter().enumerate() {
        let at = at.index(index);
        check(errors, &at, name, names::path_segment(name));
        if !seen.insert(name) {
            errors.duplicate(&at, *name);
        }
    }
    rule(given, path, errors);
}

/// Records the errors of a `RuleWithOperations`.
pub(super) fn rule(rule: &Value, path: &Path<'_>, errors: &mut Errors) {
    let operations = texts(rule, "operations");
    let at = path.child("operations");
    if operations.is_empty() {
        errors.required(&at, "");
    }
    if operations.len() > 1 && has_wildcard(&operations) {
        let why = "if '*' is present, must not specify other operations";
        errors.invalid(&at, operations.clone(), why);
    }
    for (index, operation) in operations.into_iter().enumerate() {
        one_of(errors, &at.index(index), operation, OPERATIONS);
    }
    for (field, what) in [("apiGroups", "groups"), ("apiVersions", "versions")] {
        let (values, at) = (texts(rule, field), path.child(field));
        if values.is_empty() {
            errors.required(&at, "");
        }
        if values.len() > 1 && has_wildcard(&values) {
            let why = format!("if '*' is present, must not specify other API {what}");
            errors.invalid(&at, values.clone(), why);
        }
        // The core group has an empty name, but every version has a name.
        for (index, _) in values.iter().enumerate().filter(|(_, v)| v.is_empty()) {
            if field == "apiVersions" {
                errors.required(&at.index(index), "");
            }
        }
    }
    resources(&texts(rule, "resources"), &path.child("resources"), errors);
    fields::validate(RULE, rule, path, errors);
}

fn resources(resources: &[&str], path: &Path<'_>, errors: &mut Errors) {
    if resources.is_empty() {
        errors.required(path, "");
    }
    let mut with_all_subresources: HashSet<&str> = HashSet::new();
    let mut of_all_resources: HashSet<&str> = HashSet::new();
    let mut alone = false;
    for (index, name) in resources.iter().enumerate() {
        let at = path.index(index);
        if name.is_empty() {
            errors.required(&at, "");
            continue;
        }
        let Some((resource, subresource)) = name.split_once('/') else {
            // kube-apiserver remembers only the last such resource.
            alone = *name != "*";
            continue;
        };
        if with_all_subresources.contains(resource) {
            let why = format!("if '{resource}/*' is present, must not specify {name}");
            errors.invalid(&at, *name, why);
        }
        if of_all_resources.contains(subresource) {
            let why = format!("if '*/{subresource}' is present, must not specify {name}");
            errors.invalid(&at, *name, why);
        }
        if subresource == "*" {
            with_all_subresources.insert(resource);
        }
        if resource == "*" {
            of_all_resources.insert(subresource);
        }
    }
    if resources.len() > 1 && resources.contains(&"*/*") {
        let why = "if '*/*' is present, must not specify other resources";
        errors.invalid(path, resources.to_vec(), why);
    }
    if has_wildcard(resources) && alone {
        let why = "if '*' is present, must not specify other resources without subresources";
        errors.invalid(path, resources.to_vec(), why);
    }
}

/// Records the errors of `matchConditions`.
pub(super) fn conditions(
    conditions: &[Value],
    scope: &Scope,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    if conditions.len() > MAX_CONDITIONS {
        errors.too_many(path, conditions.len(), MAX_CONDITIONS);
    }
    let mut seen = HashSet::new();
    for (index, condition) in conditions.iter().enumerate() {
        let at = path.index(index);
        let text = condition.text("expression").trim();
        if text.is_empty() {
            errors.required(&at.child("expression"), "");
        } else if let Err(refusal) = Expression::compile_for(text, scope, ExpectedType::Bool) {
            refusal.record(text, &at.child("expression"), errors);
        }
        let name = condition.text("name");
        let at_name = at.child("name");
        if name.is_empty() {
            errors.required(&at_name, "");
        } else {
            check(errors, &at_name, name, names::qualified_name(name));
            if !seen.insert(name) {
                errors.duplicate(&at_name, name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(given: Value) -> Vec<String> {
        let mut errors = Errors::default();
        rule(&given, &Path::new("rules").index(0), &mut errors);
        let text = |error: &mullion_kube_text::field::FieldError| {
            format!("{}: {}", error.field, error.body())
        };
        errors.0.iter().map(text).collect()
    }

    #[test]
    fn an_empty_rule_lacks_everything() {
        assert_eq!(
            found(json!({})),
            [
                "rules[0].operations: Required value",
                "rules[0].apiGroups: Required value",
                "rules[0].apiVersions: Required value",
                "rules[0].resources: Required value"
            ]
        );
    }

    #[test]
    fn wildcards_stand_alone() {
        let given = json!({"operations": ["*", "CREATE", "GET"], "apiGroups": ["", "*"], "apiVersions": ["*", ""],
                           "resources": ["*/*", "a", "*"], "scope": "Both"});
        assert_eq!(
            found(given),
            [
                r#"rules[0].operations: Invalid value: ["*","CREATE","GET"]: if '*' is present, must not specify other operations"#,
                r#"rules[0].operations[2]: Unsupported value: "GET": supported values: "*", "CONNECT", "CREATE", "DELETE", "UPDATE""#,
                r#"rules[0].apiGroups: Invalid value: ["","*"]: if '*' is present, must not specify other API groups"#,
                r#"rules[0].apiVersions: Invalid value: ["*",""]: if '*' is present, must not specify other API versions"#,
                "rules[0].apiVersions[1]: Required value",
                r#"rules[0].resources: Invalid value: ["*/*","a","*"]: if '*/*' is present, must not specify other resources"#,
                r#"rules[0].scope: Unsupported value: "Both": supported values: "*", "Cluster", "Namespaced""#,
            ]
        );
        let given = json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["pods/*", "pods/exec", "*", "pods"]});
        assert_eq!(
            found(given),
            [
                r#"rules[0].resources[1]: Invalid value: "pods/exec": if 'pods/*' is present, must not specify pods/exec"#,
                r#"rules[0].resources: Invalid value: ["pods/*","pods/exec","*","pods"]: if '*' is present, must not specify other resources without subresources"#,
            ]
        );
    }
}
