//! Admission policies and their bindings: rules in CEL about writes, kept beside the server instead of in a webhook.
//!
//! A policy says what is right ([`Policies`]), a binding where it holds ([`Bindings`]). They are enforced by [`crate::admission::webhook`].

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{
    rules::{self, named_rule},
    webhooks::{default_match, each},
};
use crate::{
    admission::{
        Ctx,
        cel::{Expression, Scope, Wanted},
    },
    cel,
    field::{self, ErrorType, Errors, Path},
    kinds::{
        Column, Kind, print,
        tree::{Tree, set_default},
    },
    validation::{check, metadata, names, one_of, selector},
};

/// ValidatingAdmissionPolicy, or MutatingAdmissionPolicy.
pub(in crate::kinds) struct Policies {
    changes: bool,
}

/// ValidatingAdmissionPolicyBinding, or MutatingAdmissionPolicyBinding.
pub(in crate::kinds) struct Bindings {
    changes: bool,
}

/// admissionregistration.k8s.io/v1 MutatingAdmissionPolicy.
pub(in crate::kinds) const MUTATING_POLICY: Policies = Policies { changes: true };
/// admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy.
pub(in crate::kinds) const VALIDATING_POLICY: Policies = Policies { changes: false };
/// admissionregistration.k8s.io/v1 MutatingAdmissionPolicyBinding.
pub(in crate::kinds) const MUTATING_BINDING: Bindings = Bindings { changes: true };
/// admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding.
pub(in crate::kinds) const VALIDATING_BINDING: Bindings = Bindings { changes: false };

const MAX_AUDIT_ANNOTATIONS: usize = 20;
const MAX_AUDIT_EXPRESSION: usize = 5 * 1024;
const REASONS: &[&str] = &[
    "Forbidden",
    "Invalid",
    "RequestEntityTooLarge",
    "Unauthorized",
];
/// What a policy may change: nothing that is being deleted.
const CHANGEABLE: &[&str] = &["*", "CONNECT", "CREATE", "UPDATE"];
const BOTH_EMPTY: &str = "validations or auditAnnotations must contain at least one item";

const VALIDATING_COLUMNS: [Column; 4] = [
    print::NAME,
    print::typed("Validations", "integer"),
    print::column("ParamKind"),
    print::AGE,
];
const MUTATING_COLUMNS: [Column; 4] = [
    print::NAME,
    print::typed("Mutations", "integer"),
    print::column("ParamKind"),
    print::AGE,
];
const BINDING_COLUMNS: [Column; 4] = [
    print::NAME,
    print::column("PolicyName"),
    print::column("ParamRef"),
    print::AGE,
];

impl Kind for Policies {
    fn default(&self, object: &mut Value) {
        let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else {
            return;
        };
        set_default(spec, "failurePolicy", "Fail");
        default_resources(spec, "matchConstraints");
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let (spec, path) = (&object["spec"], Path::new("spec"));
        match spec.field("failurePolicy").and_then(Value::as_str) {
            None => errors.required(&path.child("failurePolicy"), ""),
            Some(policy) => one_of(
                errors,
                &path.child("failurePolicy"),
                policy,
                &["Fail", "Ignore"],
            ),
        }
        let params = spec.field("paramKind");
        if let Some(kind) = params {
            param_kind(kind, &path.child("paramKind"), errors);
        }
        self.constraints(spec, &path.child("matchConstraints"), errors);
        let mut scope = Scope::of_policy(params.is_some());
        rules::conditions(
            spec.items("matchConditions"),
            &scope,
            &path.child("matchConditions"),
            errors,
        );
        variables(
            spec.items("variables"),
            &mut scope,
            &path.child("variables"),
            errors,
        );
        if self.changes {
            mutations(spec, &scope.with_patches(), &path, errors);
        } else {
            let name = object["metadata"].text("name");
            validations(spec, name, &scope, &path, errors);
        }
    }

    fn validate_status(&self, _: &Ctx<'_>, object: &Value, _: &Value, errors: &mut Errors) {
        let (status, path) = (&object["status"], Path::new("status"));
        let at = path.child("typeChecking");
        let at = at.child("expressionWarnings");
        let warnings = status["typeChecking"].items("expressionWarnings");
        for (index, warning) in warnings.iter().enumerate() {
            let at = at.index(index);
            for field in ["warning", "fieldRef"] {
                if warning.text(field).trim().is_empty() {
                    errors.required(&at.child(field), "");
                }
            }
        }
        let conditions = status.items("conditions");
        metadata::conditions(errors, &path.child("conditions"), conditions);
    }

    fn columns(&self) -> Option<&[Column]> {
        Some(if self.changes {
            &MUTATING_COLUMNS
        } else {
            &VALIDATING_COLUMNS
        })
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        let rules = if self.changes {
            "mutations"
        } else {
            "validations"
        };
        let params = match spec.field("paramKind") {
            Some(kind) => format!("{}/{}", kind.text("apiVersion"), kind.text("kind")),
            None => "<unset>".to_owned(),
        };
        vec![
            print::name(object),
            spec.items(rules).len().into(),
            params.into(),
            print::age(object, now),
        ]
    }
}

impl Policies {
    fn constraints(&self, spec: &Value, path: &Path<'_>, errors: &mut Errors) {
        let Some(constraints) = spec.field("matchConstraints") else {
            return errors.required(path, "");
        };
        match_resources(constraints, path, errors);
        let (rules, at) = (
            constraints.items("resourceRules"),
            path.child("resourceRules"),
        );
        if rules.is_empty() {
            errors.required(&at, "");
        }
        if self.changes {
            only_changeable(rules, &at, errors);
        }
    }
}

impl Kind for Bindings {
    fn default(&self, object: &mut Value) {
        if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
            default_resources(spec, "matchResources");
        }
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let (spec, path) = (&object["spec"], Path::new("spec"));
        let (name, at) = (spec.text("policyName"), path.child("policyName"));
        if name.is_empty() {
            errors.required(&at, "");
        } else {
            check(errors, &at, name, names::dns_subdomain(name));
        }
        if let Some(reference) = spec.field("paramRef") {
            param_ref(reference, &path.child("paramRef"), errors);
        }
        let at = path.child("matchResources");
        if let Some(resources) = spec.field("matchResources") {
            match_resources(resources, &at, errors);
            if self.changes {
                let rules = resources.items("resourceRules");
                only_changeable(rules, &at.child("resourceRules"), errors);
            }
        }
        if !self.changes {
            actions(
                spec.items("validationActions"),
                &path.child("validationActions"),
                errors,
            );
        }
    }

    fn columns(&self) -> Option<&[Column]> {
        Some(&BINDING_COLUMNS)
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

fn default_resources(spec: &mut Map<String, Value>, field: &str) {
    let Some(resources) = spec.get_mut(field).and_then(Value::as_object_mut) else {
        return;
    };
    default_match(resources);
    for list in ["resourceRules", "excludeResourceRules"] {
        for rule in each(resources, list) {
            set_default(rule, "scope", "*");
        }
    }
}

fn param_kind(kind: &Value, path: &Path<'_>, errors: &mut Errors) {
    let (version, at) = (kind.text("apiVersion"), path.child("apiVersion"));
    let (group, number) = match version {
        "/" => ("", ""),
        _ => version.split_once('/').unwrap_or(("", version)),
    };
    if version.is_empty() {
        errors.required(&at, "");
    } else if number.contains('/') {
        let why = format!("unexpected GroupVersion string: {version}");
        errors.invalid(&at, version, why);
    } else {
        let problems = names::dns_subdomain(group);
        if !group.is_empty() && !problems.is_empty() {
            errors.invalid(&at, group, problems.join(","));
        }
        let problems = names::dns1035_label(number);
        if number.is_empty() {
            errors.invalid(&at, version, "version must be specified");
        } else if !problems.is_empty() {
            errors.invalid(&at, number, problems.join(","));
        }
    }
    let (name, at) = (kind.text("kind"), path.child("kind"));
    let problems = names::dns1035_label(&name.to_lowercase());
    if name.is_empty() {
        errors.required(&at, "");
    } else if !problems.is_empty() {
        let why = format!(
            "may have mixed case, but should otherwise match: {}",
            problems.join(",")
        );
        errors.invalid(&at, name, why);
    }
}

fn match_resources(resources: &Value, path: &Path<'_>, errors: &mut Errors) {
    let at = path.child("matchPolicy");
    match resources.field("matchPolicy").and_then(Value::as_str) {
        None => errors.required(&at, ""),
        Some(policy) => one_of(errors, &at, policy, &["Equivalent", "Exact"]),
    }
    for field in ["namespaceSelector", "objectSelector"] {
        let at = path.child(field);
        match resources.field(field) {
            None => errors.required(&at, ""),
            Some(given) => selector::label_selector(errors, &at, given),
        }
    }
    for list in ["resourceRules", "excludeResourceRules"] {
        let at = path.child(list);
        for (index, rule) in resources.items(list).iter().enumerate() {
            named_rule(rule, &at.index(index), errors);
        }
    }
}

fn only_changeable(rules: &[Value], path: &Path<'_>, errors: &mut Errors) {
    let at = path.child("operations");
    let operations = rules.iter().flat_map(|rule| rule.items("operations"));
    for operation in operations.filter_map(Value::as_str) {
        one_of(errors, &at, operation, CHANGEABLE);
    }
}

fn variables(list: &[Value], scope: &mut Scope, path: &Path<'_>, errors: &mut Errors) {
    for (index, variable) in list.iter().enumerate() {
        let at = path.index(index);
        let (name, text) = (variable.text("name"), variable.text("expression"));
        if name.trim().is_empty() {
            errors.required(&at.child("name"), "name is not specified");
        } else if !cel::is_identifier(name) {
            let why = "name is not a valid CEL identifier";
            errors.invalid(&at.child("name"), name, why);
        }
        if text.trim().is_empty() {
            errors.required(&at.child("expression"), "expression is not specified");
            continue;
        }
        match Expression::compile_for(text, scope, Wanted::Anything) {
            Ok(expression) => scope.declare(name, expression.result()),
            Err(why) => errors.invalid(&at.child("expression"), text, why),
        }
    }
}

fn validations(spec: &Value, policy: &str, scope: &Scope, path: &Path<'_>, errors: &mut Errors) {
    let (rules, annotations) = (spec.items("validations"), spec.items("auditAnnotations"));
    let (at, audit) = (path.child("validations"), path.child("auditAnnotations"));
    if rules.is_empty() && annotations.is_empty() {
        errors.required(&at, BOTH_EMPTY);
        return errors.required(&audit, BOTH_EMPTY);
    }
    for (index, rule) in rules.iter().enumerate() {
        validation(rule, scope, &at.index(index), errors);
    }
    if annotations.len() > MAX_AUDIT_ANNOTATIONS {
        let why = format!("must not have more than {MAX_AUDIT_ANNOTATIONS} auditAnnotations");
        let texts: Vec<String> = annotations.iter().map(annotation_text).collect();
        let text = format!("[{}]", texts.join(","));
        errors.with_text(ErrorType::Invalid, &audit, text, why);
    }
    for (index, annotation) in annotations.iter().enumerate() {
        let at = audit.index(index);
        audit_annotation(annotation, policy, scope, &at, errors);
        let key = annotation.text("key");
        let known = |other: &Value| other.text("key") == key;
        if annotations[..index].iter().any(known) {
            errors.duplicate(&at.child("key"), key);
        }
    }
}

/// An annotation as Go's internal type prints it.
fn annotation_text(annotation: &Value) -> String {
    field::go_struct(&[
        ("Key", annotation.text("key").into()),
        ("ValueExpression", annotation.text("valueExpression").into()),
    ])
}

fn validation(rule: &Value, scope: &Scope, path: &Path<'_>, errors: &mut Errors) {
    let (text, at) = (rule.text("expression"), path.child("expression"));
    if text.trim().is_empty() {
        errors.required(&at, "expression is not specified");
    } else if let Err(why) = Expression::compile_for(text, scope, Wanted::Bool) {
        errors.invalid(&at, text, why);
    }
    let (text, at) = (
        rule.text("messageExpression"),
        path.child("messageExpression"),
    );
    if !text.is_empty() {
        if text.trim().is_empty() {
            errors.invalid(&at, text, "must be non-empty if specified");
        } else if let Err(why) =
            Expression::compile_for(text, &scope.without_authorizer(), Wanted::Text)
        {
            errors.invalid(&at, text, why);
        }
    }
    let (text, at) = (rule.text("message"), path.child("message"));
    if !text.is_empty() && text.trim().is_empty() {
        errors.invalid(&at, text, "message must be non-empty if specified");
    } else if text.trim().contains(['\n', '\r']) {
        errors.invalid(&at, text, "message must not contain line breaks");
    }
    if let Some(reason) = rule.field("reason").and_then(Value::as_str) {
        one_of(errors, &path.child("reason"), reason, REASONS);
    }
}

fn audit_annotation(
    annotation: &Value,
    policy: &str,
    scope: &Scope,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let (key, at) = (annotation.text("key"), path.child("key"));
    if policy.is_empty() {
        errors.invalid(&at, key, "requires metadata.name be non-empty");
    } else {
        let full = format!("{policy}/{key}");
        check(errors, &at, &full, names::qualified_name(&full));
    }
    let (text, at) = (
        annotation.text("valueExpression"),
        path.child("valueExpression"),
    );
    let trimmed = text.trim();
    if trimmed.is_empty() {
        errors.required(&at, "valueExpression is not specified");
    } else if trimmed.len() > MAX_AUDIT_EXPRESSION {
        let why = format!("must not exceed {MAX_AUDIT_EXPRESSION} bytes in length");
        errors.required(&at, why);
    } else if let Err(why) = Expression::compile_for(trimmed, scope, Wanted::TextOrNull) {
        errors.invalid(&at, text, why);
    }
}

fn mutations(spec: &Value, scope: &Scope, path: &Path<'_>, errors: &mut Errors) {
    let (list, at) = (spec.items("mutations"), path.child("mutations"));
    if list.is_empty() {
        errors.required(&at, "mutations must contain at least one item");
    }
    for (index, mutation) in list.iter().enumerate() {
        self::mutation(mutation, scope, &at.index(index), errors);
    }
    let (policy, at) = (
        spec.text("reinvocationPolicy"),
        path.child("reinvocationPolicy"),
    );
    if policy.is_empty() {
        errors.required(&at, "");
    } else {
        one_of(errors, &at, policy, &["IfNeeded", "Never"]);
    }
}

fn mutation(mutation: &Value, scope: &Scope, path: &Path<'_>, errors: &mut Errors) {
    const TYPES: &[&str] = &["ApplyConfiguration", "JSONPatch"];
    let kind = mutation.text("patchType");
    let (own, other, wanted) = match kind {
        "" => return errors.required(&path.child("patchType"), ""),
        "JSONPatch" => ("jsonPatch", "applyConfiguration", Wanted::Operations),
        "ApplyConfiguration" => ("applyConfiguration", "jsonPatch", Wanted::Object),
        _ => return errors.not_supported(&path.child("patchType"), kind, TYPES),
    };
    let at = path.child(own);
    match mutation.field(own) {
        None => errors.required(&at, format!("must be specified when patchType is {kind}")),
        Some(patch) => {
            let (text, at) = (patch.text("expression").trim(), at.child("expression"));
            if text.is_empty() {
                errors.required(&at, "");
            } else if let Err(why) = Expression::compile_for(text, scope, wanted) {
                errors.invalid(&at, text, why);
            }
        }
    }
    if mutation.has(other) {
        errors.invalid(
            &path.child(other),
            format!("{{{other}}}"),
            format!("must not be specified when patchType is {kind}"),
        );
    }
}

fn param_ref(reference: &Value, path: &Path<'_>, errors: &mut Errors) {
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
    let (action, at) = (
        reference.text("parameterNotFoundAction"),
        path.child("parameterNotFoundAction"),
    );
    if action.is_empty() {
        errors.required(&at, "");
    } else {
        one_of(errors, &at, action, &["Deny", "Allow"]);
    }
}

fn actions(list: &[Value], path: &Path<'_>, errors: &mut Errors) {
    let texts: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
    for (index, action) in texts.iter().enumerate() {
        let at = path.index(index);
        one_of(errors, &at, action, &["Audit", "Deny", "Warn"]);
        if texts[..index].contains(action) {
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
        ("", "") => match reference.field("selector") {
            Some(given) => go_selector(given),
            None => "<unset>".to_owned(),
        },
        // Whether the parameter lives in a namespace cannot be told from here.
        ("", name) => format!("*/{name}"),
        (namespace, name) => format!("{namespace}/{name}"),
    }
}

/// A label selector as the `String` method that is generated for its Go type prints it.
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
    use serde_json::json;

    use super::*;
    use crate::field::causes;

    #[test]
    fn the_cell_of_parameters_says_where_they_are_or_what_selects_them() {
        assert_eq!(param_cell(&json!(null)), "<unset>");
        assert_eq!(param_cell(&json!({"name": "a"})), "*/a");
        assert_eq!(param_cell(&json!({"name": "a", "namespace": "b"})), "b/a");
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
    fn a_patch_is_of_the_type_it_says() {
        let scope = Scope::of_policy(false).with_patches();
        let found =
            |given: Value| causes(|errors| mutation(&given, &scope, &Path::new("m"), errors));
        assert_eq!(found(json!({})), ["m.patchType: Required value"]);
        assert_eq!(
            found(json!({"patchType": "JSONPatch", "applyConfiguration": {"expression": "x"}})),
            [
                "m.jsonPatch: Required value: must be specified when patchType is JSONPatch",
                r#"m.applyConfiguration: Invalid value: "{applyConfiguration}": must not be specified when patchType is JSONPatch"#,
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

    #[test]
    fn kinds_of_parameters_have_a_group_a_version_and_a_name() {
        let found = |given: Value| causes(|errors| param_kind(&given, &Path::new("k"), errors));
        assert_eq!(
            found(json!({"apiVersion": "a/b/c"})),
            [
                r#"k.apiVersion: Invalid value: "a/b/c": unexpected GroupVersion string: a/b/c"#,
                "k.kind: Required value"
            ]
        );
        assert_eq!(
            found(json!({"apiVersion": "rules.example.com/v1", "kind": "ReplicaLimit"})),
            [""; 0]
        );
    }
}
