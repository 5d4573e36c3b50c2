//! Bindings of admission policies: the objects that a policy applies to, its parameters, and the actions on a violation.

use std::collections::HashSet;

use jiff::Timestamp;
use mullion_kube_text::{
    field::{Errors, Path},
    names,
    validation::{check, one_of, selector},
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::policies::{MATCH_RESOURCES, default_resources, only_changeable};
use crate::{
    Check, Column, Kind, Printing,
    fields::{self, Code, Field, Fields, Format, OneOf, required, set},
    print,
    request::Ctx,
};

/// ValidatingAdmissionPolicyBinding, or MutatingAdmissionPolicyBinding.
pub(crate) struct Bindings {
    changes: bool,
}

/// admissionregistration.k8s.io/v1 MutatingAdmissionPolicyBinding.
pub(crate) const MUTATING_BINDING: Bindings = Bindings { changes: true };
/// admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding.
pub(crate) const VALIDATING_BINDING: Bindings = Bindings { changes: false };

const SPEC: &[Field] = &[
    required("policyName", Format(names::dns_subdomain)),
    set("paramRef", Code(param_ref)),
    set("matchResources", Fields(MATCH_RESOURCES)),
];
const PARAM_REF: &[Field] = &[required(
    "parameterNotFoundAction",
    OneOf(&["Deny", "Allow"]),
)];
const BINDING_COLUMNS: [Column; 4] = [
    print::NAME,
    print::column("PolicyName"),
    print::column("ParamRef"),
    print::AGE,
];

impl Kind for Bindings {
    fn update_checks(&self, _: &str) -> &'static [Check] {
        Check::WHOLE
    }

    fn default(&self, object: &mut Value) {
        if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
            default_resources(spec, "matchResources");
        }
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let (spec, path) = (&object["spec"], Path::new("spec"));
        fields::validate(SPEC, spec, &path, errors);
        if self.changes {
            let rules = spec["matchResources"].items("resourceRules");
            let at = path.child("matchResources");
            only_changeable(rules, &at.child("resourceRules"), errors);
        }
        if !self.changes {
            actions(
                spec.items("validationActions"),
                &path.child("validationActions"),
                errors,
            );
        }
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for Bindings {
    fn columns(&self) -> &[Column] {
        &BINDING_COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        vec![
            print::name(object),
            spec.text("policyName").into(),
            param_cell(&spec["paramRef"]).into(),
            print::age(object, now),
        ]
    }
}

fn param_ref(reference: &Value, path: &Path<'_>, errors: &mut Errors) {
    // kube-apiserver reports this at both fields.
    const EXCLUSIVE: &str = "name and selector are mutually exclusive";
    let (name, given) = (reference.text("name"), reference.field("selector"));
    if !name.is_empty() {
        let at = path.child("name");
        check(errors, &at, name, names::path_segment(name));
        if given.is_some() {
            errors.forbidden(&at, EXCLUSIVE);
        }
    }
    if let Some(given) = given {
        let at = path.child("selector");
        selector::label_selector(errors, &at, given);
        if !name.is_empty() {
            errors.forbidden(&at, EXCLUSIVE);
        }
    } else if name.is_empty() {
        errors.required(path, "one of name or selector must be specified");
    }
    fields::validate(PARAM_REF, reference, path, errors);
}

fn actions(list: &[Value], path: &Path<'_>, errors: &mut Errors) {
    let texts: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
    let mut seen = HashSet::new();
    for (index, action) in texts.iter().enumerate() {
        let at = path.index(index);
        one_of(errors, &at, action, &["Audit", "Deny", "Warn"]);
        if !seen.insert(action) {
            errors.duplicate(&at, *action);
        }
    }
    if texts.contains(&"Deny") && texts.contains(&"Warn") {
        let why = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
        errors.invalid(path, list.to_vec(), why);
    }
    if texts.is_empty() {
        errors.required(path, "at least one validation action is required");
    }
}

fn param_cell(reference: &Value) -> String {
    match (reference.text("namespace"), reference.text("name")) {
        // A selector is printed without its namespace.
        (_, "") => match reference.field("selector") {
            Some(given) => go_selector(given),
            None => "<unset>".to_owned(),
        },
        // The text cannot say whether the parameter has a namespace.
        ("", name) => format!("*/{name}"),
        (namespace, name) => format!("{namespace}/{name}"),
    }
}

/// Formats a label selector like the generated `String` method of its Go type.
fn go_selector(selector: &Value) -> String {
    let labels: String = selector
        .entries("matchLabels")
        .map(|(key, value)| format!("{key}: {},", value.as_str().unwrap_or_default()))
        .collect();
    let requirement = |expression: &Value| {
        let values: Vec<&str> = expression
            .items("values")
            .iter()
            .filter_map(Value::as_str)
            .collect();
        format!(
            "LabelSelectorRequirement{{Key:{},Operator:{},Values:[{}],}},",
            expression.text("key"),
            expression.text("operator"),
            values.join(" ")
        )
    };
    let expressions: String = selector
        .items("matchExpressions")
        .iter()
        .map(requirement)
        .collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}

#[cfg(test)]
mod tests {
    use mullion_kube_text::field::causes;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_cell_of_parameters_says_where_they_are_or_what_selects_them() {
        assert_eq!(param_cell(&json!(null)), "<unset>");
        assert_eq!(param_cell(&json!({"name": "a"})), "*/a");
        assert_eq!(param_cell(&json!({"name": "a", "namespace": "b"})), "b/a");
        assert_eq!(
            param_cell(&json!({"namespace": "n", "selector": {}})),
            "&LabelSelector{MatchLabels:map[string]string{},MatchExpressions:[]LabelSelectorRequirement{},}"
        );
        let selector = json!({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "k", "operator": "In", "values": ["v", "w"]}]});
        assert_eq!(
            param_cell(&json!({"selector": selector})),
            "&LabelSelector{MatchLabels:map[string]string{a: b,},MatchExpressions:[]LabelSelectorRequirement{LabelSelectorRequirement{Key:k,Operator:In,Values:[v w],},},}"
        );
    }

    #[test]
    fn references_to_parameters_name_one_or_select_some() {
        let found = |given: Value| causes(|errors| param_ref(&given, &Path::new("p"), errors));
        assert_eq!(
            found(json!({})),
            [
                "p: Required value: one of name or selector must be specified",
                "p.parameterNotFoundAction: Required value"
            ]
        );
        assert_eq!(
            found(json!({"name": "a", "selector": {}, "parameterNotFoundAction": "Maybe"})),
            [
                "p.name: Forbidden: name and selector are mutually exclusive",
                "p.selector: Forbidden: name and selector are mutually exclusive",
                r#"p.parameterNotFoundAction: Unsupported value: "Maybe": supported values: "Deny", "Allow""#,
            ]
        );
    }

    #[test]
    fn actions_exclude_each_other() {
        let found = |given: Value| {
            let list = given.as_array().unwrap().clone();
            causes(|errors| actions(&list, &Path::new("a"), errors))
        };
        assert_eq!(
            found(json!([])),
            ["a: Required value: at least one validation action is required"]
        );
        assert_eq!(
            found(json!(["Deny", "Deny", "Shout"])),
            [
                r#"a[1]: Duplicate value: "Deny""#,
                r#"a[2]: Unsupported value: "Shout": supported values: "Audit", "Deny", "Warn""#
            ]
        );
    }
}
