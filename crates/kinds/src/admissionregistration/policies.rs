//! Admission policies: CEL rules about writes, which the server evaluates itself instead of calling a webhook.
//!
//! A policy has the rules ([`Policies`]), and a [binding](super::bindings) says where they apply. The admission of the server enforces
//! them.

use std::collections::HashSet;

use jiff::Timestamp;
use mullion_cel as cel;
use mullion_kube_text::{
    field::{self, ErrorType, Errors, Path},
    names,
    validation::{check, one_of},
};
use mullion_schema::tree::{Tree, set_default};
use serde_json::{Map, Value};

use super::{
    rules::{self, named_rule},
    webhooks::{default_match, each},
};
use crate::{
    Check, Column, Kind, Printing,
    fields::{
        self, Code, Conditions, Field, Items, OneOf, Selector, always, present, required, set,
    },
    print,
    request::{
        Ctx,
        expression::{ExpectedType, Expression, Scope},
    },
};

/// ValidatingAdmissionPolicy, or MutatingAdmissionPolicy.
pub(crate) struct Policies {
    changes: bool,
}

/// admissionregistration.k8s.io/v1 MutatingAdmissionPolicy.
pub(crate) const MUTATING_POLICY: Policies = Policies { changes: true };
/// admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy.
pub(crate) const VALIDATING_POLICY: Policies = Policies { changes: false };
const MAX_AUDIT_ANNOTATIONS: usize = 20;
const MAX_AUDIT_EXPRESSION: usize = 5 * 1024;
const STATUS: &[Field] = &[always("conditions", Conditions)];
const SPEC: &[Field] = &[
    present("failurePolicy", OneOf(&["Fail", "Ignore"])),
    set("paramKind", Code(param_kind)),
];
/// Which requests a policy or a binding is about.
pub(super) const MATCH_RESOURCES: &[Field] = &[
    present("matchPolicy", OneOf(&["Equivalent", "Exact"])),
    present("namespaceSelector", Selector),
    present("objectSelector", Selector),
    always("resourceRules", Items(&Code(named_rule))),
    always("excludeResourceRules", Items(&Code(named_rule))),
];
const VALIDATION: &[Field] = &[set(
    "reason",
    OneOf(&["Forbidden", "Invalid", "RequestEntityTooLarge"]),
)];
const MUTATING_SPEC: &[Field] = &[required(
    "reinvocationPolicy",
    OneOf(&["IfNeeded", "Never"]),
)];
/// The operations that a mutating policy may match: all but DELETE.
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
impl Kind for Policies {
    fn update_checks(&self, _: &str) -> &'static [Check] {
        Check::WHOLE
    }

    fn default(&self, object: &mut Value) {
        let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else {
            return;
        };
        set_default(spec, "failurePolicy", "Fail");
        default_resources(spec, "matchConstraints");
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let (spec, path) = (&object["spec"], Path::new("spec"));
        fields::validate(SPEC, spec, &path, errors);
        self.constraints(spec, &path.child("matchConstraints"), errors);
        let mut scope = Scope::of_policy(spec.has("paramKind"));
        rules::conditions(
            spec.items("matchConditions"),
            &scope,
            &path.child("matchConditions"),
            errors,
        );
        // Without variables, kube-apiserver compiles the expressions one by one, where `variables` is not declared.
        if !spec.items("variables").is_empty() {
            scope.compose();
        }
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
        fields::validate(STATUS, status, &path, errors);
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for Policies {
    fn columns(&self) -> &[Column] {
        if self.changes {
            &MUTATING_COLUMNS
        } else {
            &VALIDATING_COLUMNS
        }
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
        fields::validate(MATCH_RESOURCES, constraints, path, errors);
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

pub(super) fn default_resources(spec: &mut Map<String, Value>, field: &str) {
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
        // Go's ParseGroupVersion reads a lone slash like an empty text.
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

pub(super) fn only_changeable(rules: &[Value], path: &Path<'_>, errors: &mut Errors) {
    let at = path.child("operations");
    // kube-apiserver leaves the index of the rule out of the path.
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
            let why = "must be a valid CEL identifier";
            errors.invalid(&at.child("name"), name, why);
        }
        if text.trim().is_empty() {
            errors.required(&at.child("expression"), "expression is not specified");
            continue;
        }
        let kind = match Expression::compile_for(text, scope, ExpectedType::Anything) {
            Ok(expression) => expression.result().clone(),
            Err(refusal) => {
                refusal.record(text, &at.child("expression"), errors);
                // The error is reported once: expressions that use the variable may be valid, so its type is dynamic.
                cel::Type::Dyn
            }
        };
        scope.declare(name, &kind);
    }
}

fn validations(spec: &Value, policy: &str, scope: &Scope, path: &Path<'_>, errors: &mut Errors) {
    let (rules, annotations) = (spec.items("validations"), spec.items("auditAnnotations"));
    let (at, audit) = (path.child("validations"), path.child("auditAnnotations"));
    if rules.is_empty() && annotations.is_empty() {
        // kube-apiserver reports this at both fields.
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
    let mut seen = HashSet::new();
    for (index, annotation) in annotations.iter().enumerate() {
        let at = audit.index(index);
        audit_annotation(annotation, policy, scope, &at, errors);
        let key = annotation.text("key");
        if !seen.insert(key) {
            errors.duplicate(&at.child("key"), key);
        }
    }
}

/// Formats an annotation like Go's internal type.
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
    } else if let Err(refusal) = Expression::compile_for(text, scope, ExpectedType::Bool) {
        refusal.record(text, &at, errors);
    }
    let (text, at) = (
        rule.text("messageExpression"),
        path.child("messageExpression"),
    );
    // A message has no `authorizer`: it reports a decision and makes none.
    if !text.is_empty() {
        if text.trim().is_empty() {
            errors.invalid(&at, text, "must be non-empty if specified");
        } else if let Err(refusal) =
            Expression::compile_for(text, &scope.without_authorizer(), ExpectedType::Text)
        {
            refusal.record(text, &at, errors);
        }
    }
    let (text, at) = (rule.text("message"), path.child("message"));
    if !text.is_empty() && text.trim().is_empty() {
        errors.invalid(&at, text, "must be non-empty if specified");
    } else if text.trim().contains(['\n', '\r']) {
        errors.invalid(&at, text, "must not contain line breaks");
    }
    fields::validate(VALIDATION, rule, path, errors);
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
        // This is the key in the audit event, so both parts together must be a valid one.
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
        // kube-apiserver reports this as a missing value.
        errors.required(&at, why);
    } else if let Err(refusal) = Expression::compile_for(trimmed, scope, ExpectedType::TextOrNull) {
        refusal.record(text, &at, errors);
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
    fields::validate(MUTATING_SPEC, spec, path, errors);
}

fn mutation(mutation: &Value, scope: &Scope, path: &Path<'_>, errors: &mut Errors) {
    const TYPES: &[&str] = &["ApplyConfiguration", "JSONPatch"];
    let kind = mutation.text("patchType");
    let (own, other, wanted) = match kind {
        "" => return errors.required(&path.child("patchType"), ""),
        "JSONPatch" => ("jsonPatch", "applyConfiguration", ExpectedType::Operations),
        "ApplyConfiguration" => ("applyConfiguration", "jsonPatch", ExpectedType::Object),
        _ => return errors.not_supported(&path.child("patchType"), kind, TYPES),
    };
    let at = path.child(own);
    match mutation.field(own) {
        None => errors.required(&at, format!("must be specified when patchType is {kind}")),
        Some(patch) => {
            let (text, at) = (patch.text("expression").trim(), at.child("expression"));
            if text.is_empty() {
                errors.required(&at, "");
            } else if let Err(refusal) = Expression::compile_for(text, scope, wanted) {
                refusal.record(text, &at, errors);
            }
        }
    }
    if mutation.has(other) {
        errors.invalid(
            &path.child(other),
            // kube-apiserver shows the name of the field as its value.
            format!("{{{other}}}"),
            format!("must not be specified when patchType is {kind}"),
        );
    }
}

#[cfg(test)]
mod tests {
    use mullion_kube_text::field::causes;
    use serde_json::json;

    use super::*;

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
    fn a_variable_is_unknown_until_its_turn_and_anything_when_it_does_not_compile() {
        let found = |given: Value, text: &str| {
            let mut scope = Scope::of_policy(false);
            scope.compose();
            let named = causes(|errors| {
                variables(
                    given.items("variables"),
                    &mut scope,
                    &Path::new("v"),
                    errors,
                );
            });
            let compiled = Expression::compile_for(text, &scope, ExpectedType::Bool);
            (named.len(), compiled.err().map(String::from))
        };
        let undefined = Some("compilation failed: ERROR: <input>:1:10: undefined field 'x'\n | variables.x == 1\n | .........^".to_owned());
        let text = "variables.x == 1";
        assert_eq!(found(json!({}), text), (0, undefined));
        let of_itself = json!({"variables": [{"name": "x", "expression": "variables.x"}]});
        assert_eq!(found(of_itself, text), (1, None));
        let wrong = json!({"variables": [{"name": "x", "expression": "foo.bar"}]});
        assert_eq!(found(wrong, text), (1, None));
    }

    #[test]
    fn what_cannot_be_made_ready_to_run_is_refused_where_it_is() {
        let spec = json!({
            "matchConditions": [{"name": "a", "expression": "int('x') == 1"}],
            "variables": [{"name": "v", "expression": "uint(-1)"}, {"name": "o", "expression": "request"}],
            "validations": [{
                "expression": "variables.v == 1u && variables.o.nothing && bool('x')",
                "messageExpression": "string(b'\\xff')"
            }],
            "auditAnnotations": [{"key": "k", "valueExpression": "string(int('1.5'))"}],
        });
        let mut scope = Scope::of_policy(false);
        let found = causes(|errors| {
            let at = Path::new("s");
            let conditions = spec.items("matchConditions");
            super::super::rules::conditions(conditions, &scope, &at.child("c"), errors);
            variables(spec.items("variables"), &mut scope, &at.child("v"), errors);
            validations(&spec, "p.example.com", &scope, &at, errors);
        });
        let unread = |kind| format!("type conversion error from 'string' to '{kind}'");
        let told = [
            ("c[0].expression", unread("int")),
            ("v[0].expression", "unsigned integer overflow".to_owned()),
            ("validations[0].expression", unread("bool")),
            (
                "validations[0].messageExpression",
                "invalid UTF-8 in bytes, cannot convert to string".to_owned(),
            ),
            ("auditAnnotations[0].valueExpression", unread("int")),
        ];
        let told = told.map(|(at, why)| {
            format!("s.{at}: Internal error: program instantiation failed: {why}")
        });
        assert_eq!(found, told);
        let scope = scope.with_patches();
        let patch = json!({"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: string(dyn('a')), path: [''][dyn(null)]}]"}});
        assert_eq!(
            causes(|errors| mutation(&patch, &scope, &Path::new("m"), errors)),
            [
                "m.jsonPatch.expression: Internal error: program instantiation failed: invalid qualifier type: types.Null"
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
