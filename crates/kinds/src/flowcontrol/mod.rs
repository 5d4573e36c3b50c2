//! flowcontrol.apiserver.k8s.io/v1: FlowSchema and PriorityLevelConfiguration (`pkg/apis/flowcontrol`).
//!
//! They are stored for tools that list and write them, with the defaults that every cluster has ([`defaults`]). They have no effect: this
//! server has a single queue for requests.

mod defaults;
mod levels;

use std::collections::HashSet;

use jiff::Timestamp;
use mullion_kube_text::{
    field::{ErrorType, Errors, Path},
    names,
};
use mullion_schema::tree::{Tree, object_at, set_zero};
use serde_json::Value;

pub use self::defaults::{levels, schemas};
pub(super) use self::levels::PriorityLevelConfiguration;
use super::{Check, Column, Kind, podspec::internal, print};
use crate::{
    Printing,
    fields::{self, All, AtLeast, AtMost, Code, Field, Fields, Format, Items, always, required},
    request::Ctx,
};

/// The API group.
pub const GROUP: &str = "flowcontrol.apiserver.k8s.io";
/// The field manager of the default objects that every cluster has (upstream: ConfigProducerAsFieldManager).
pub const MANAGER: &str = "api-priority-and-fairness-config-producer-v1";

/// flowcontrol.apiserver.k8s.io/v1 FlowSchema.
pub(super) struct FlowSchema;

const DEFAULT_PRECEDENCE: i64 = 1000;
const PRECEDENCE: &[Field] = &[always(
    "matchingPrecedence",
    All(&[
        AtLeast(1, "must be a positive value"),
        AtMost(10_000, "must not be greater than 10000"),
    ]),
)];
const LEVEL: &[Field] = &[always(
    "priorityLevelConfiguration",
    Fields(LEVEL_REFERENCE),
)];
const LEVEL_REFERENCE: &[Field] =
    &[required("name", Format(names::dns_subdomain)).because("must reference a priority level")];
const RULE: &[Field] =
    &[required("subjects", Items(&Code(subject)))
        .because("subjects must contain at least one value")];
const ACCOUNT_NAME: &[Field] = &[required("name", Format(names::dns_subdomain))];
const ACCOUNT_NAMESPACE: &[Field] = &[required("namespace", Format(names::dns_label))
    .because("must specify namespace for service account")];
const VERBS: [&str; 9] = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "proxy",
    "update",
    "watch",
];
const COLUMNS: [Column; 6] = [
    print::NAME,
    print::column("PriorityLevel"),
    print::column("MatchingPrecedence"),
    print::column("DistinguisherMethod"),
    print::AGE,
    print::column("MissingPL"),
];

impl Kind for FlowSchema {
    fn update_checks(&self, _: &str) -> &'static [Check] {
        Check::WHOLE
    }

    fn default(&self, object: &mut Value) {
        if let Some(root) = object.as_object_mut() {
            set_zero(
                object_at(root, "spec"),
                "matchingPrecedence",
                DEFAULT_PRECEDENCE,
            );
        }
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let name = object["metadata"].text("name");
        let (spec, path) = (&object["spec"], Path::new("spec"));
        schema(name, spec, &path, errors);
        // kube-apiserver relies on the mandatory schemas: with them every request matches one.
        let mut fixed = schemas().filter(defaults::is_mandatory);
        let fixed = fixed.find(|schema| schema["metadata"]["name"] == name);
        if fixed.is_some_and(|fixed| fixed["spec"] != *spec) {
            errors.with_text(
                ErrorType::Invalid,
                &path,
                internal::compact("FlowSchemaSpec", spec),
                format!("spec of '{name}' must equal the fixed value"),
            );
        }
        conditions(&object["status"], errors);
    }

    fn validate_status(&self, _: &Ctx<'_>, object: &Value, _: &Value, errors: &mut Errors) {
        conditions(&object["status"], errors);
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for FlowSchema {
    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        let mut conditions = object["status"].items("conditions").iter();
        let dangling = conditions.find(|condition| condition.text("type") == "Dangling");
        vec![
            print::name(object),
            spec["priorityLevelConfiguration"].text("name").into(),
            spec.integer("matchingPrecedence").unwrap_or(0).into(),
            print::or_none(spec["distinguisherMethod"].text("type")).into(),
            print::age(object, now),
            dangling
                .map_or("?", |condition| condition.text("status"))
                .into(),
        ]
    }
}

/// Validates `status.conditions` of both kinds.
fn conditions(status: &Value, errors: &mut Errors) {
    let path = Path::new("status");
    let path = path.child("conditions");
    let conditions = status.items("conditions");
    let mut seen = HashSet::new();
    for (index, condition) in conditions.iter().enumerate() {
        let (kind, at) = (condition.text("type"), path.index(index));
        if !seen.insert(kind) {
            errors.duplicate(&at.child("type"), kind);
        }
        if kind.is_empty() {
            errors.required(&at.child("type"), "");
        }
    }
}

fn schema(name: &str, spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    const METHODS: [&str; 2] = ["ByNamespace", "ByUser"];
    let (precedence, at) = (
        spec.integer("matchingPrecedence").unwrap_or(0),
        path.child("matchingPrecedence"),
    );
    fields::validate(PRECEDENCE, spec, path, errors);
    // No other schema may come before `exempt`, which lets administrators reach a busy server.
    if precedence == 1 && name != "exempt" {
        let why = "only the schema named 'exempt' may have matchingPrecedence 1";
        errors.invalid(&at, precedence, why);
    }
    if let Some(method) = spec.field("distinguisherMethod")
        && !METHODS.contains(&method.text("type"))
    {
        let at = path.child("distinguisherMethod");
        errors.with_text(
            ErrorType::NotSupported,
            &at.child("type"),
            internal::compact("FlowDistinguisherMethod", method),
            r#"supported values: "ByNamespace", "ByUser""#,
        );
    }
    fields::validate(LEVEL, spec, path, errors);
    let at = path.child("rules");
    for (index, item) in spec.items("rules").iter().enumerate() {
        rule(item, &at.index(index), errors);
    }
}

fn rule(rule: &Value, path: &Path<'_>, errors: &mut Errors) {
    fields::validate(RULE, rule, path, errors);
    let (resources, others) = (rule.items("resourceRules"), rule.items("nonResourceRules"));
    if resources.is_empty() && others.is_empty() {
        let why = "at least one of resourceRules and nonResourceRules has to be non-empty";
        errors.required(path, why);
    }
    let at = path.child("resourceRules");
    for (index, item) in resources.iter().enumerate() {
        resource_rule(item, &at.index(index), errors);
    }
    let at = path.child("nonResourceRules");
    for (index, item) in others.iter().enumerate() {
        path_rule(item, &at.index(index), errors);
    }
}

fn subject(subject: &Value, path: &Path<'_>, errors: &mut Errors) {
    const KINDS: [(&str, &str); 3] = [
        ("Group", "group"),
        ("ServiceAccount", "serviceAccount"),
        ("User", "user"),
    ];
    let kind = subject.text("kind");
    let Some((_, own)) = KINDS.iter().find(|(known, _)| *known == kind) else {
        return errors.not_supported(&path.child("kind"), kind, &KINDS.map(|(known, _)| known));
    };
    let at = path.child(own);
    match subject.field(own) {
        None => errors.required(
            &at,
            format!("{own} is required when subject kind is '{kind}'"),
        ),
        Some(account) if *own == "serviceAccount" => service_account(account, &at, errors),
        Some(named) if named.text("name").is_empty() => errors.required(&at.child("name"), ""),
        Some(_) => {}
    }
    // kube-apiserver checks the fields in another order than it sorts the kinds.
    for (other_kind, field) in [KINDS[1], KINDS[2], KINDS[0]] {
        if field != *own && subject.has(field) {
            let why = format!("{field} is forbidden when subject kind is not '{other_kind}'");
            errors.forbidden(&path.child(field), why);
        }
    }
}

fn service_account(account: &Value, path: &Path<'_>, errors: &mut Errors) {
    // `*` stands for all accounts of the namespace.
    if account.text("name") != "*" {
        fields::validate(ACCOUNT_NAME, account, path, errors);
    }
    fields::validate(ACCOUNT_NAMESPACE, account, path, errors);
}

fn texts<'a>(rule: &'a Value, field: &str) -> Vec<&'a str> {
    let items = rule.items(field).iter();
    items.filter_map(Value::as_str).collect()
}

/// Checks that a list is not empty and has nothing besides a `*`. Returns whether its items must be validated.
fn list(
    rule: &Value,
    field: &str,
    lacking: &str,
    others: &str,
    path: &Path<'_>,
    errors: &mut Errors,
) -> bool {
    let (given, at) = (texts(rule, field), path.child(field));
    let all = given.contains(&"*");
    if given.is_empty() {
        errors.required(&at, lacking);
    } else if all && given.len() > 1 {
        let why = format!("if '*' is present, must not specify other {others}");
        errors.invalid(&at, given.clone(), why);
    }
    !all && !given.is_empty()
}

fn verbs(rule: &Value, path: &Path<'_>, errors: &mut Errors) {
    let lacking = "verbs must contain at least one value";
    if list(rule, "verbs", lacking, "verbs", path, errors) {
        let given = texts(rule, "verbs");
        if !given.iter().all(|verb| VERBS.contains(verb)) {
            // kube-apiserver shows the whole list if one verb is unknown.
            errors.not_supported(&path.child("verbs"), given, &VERBS);
        }
    }
}

fn path_rule(rule: &Value, path: &Path<'_>, errors: &mut Errors) {
    verbs(rule, path, errors);
    let lacking = "nonResourceURLs must contain at least one value";
    if !list(
        rule,
        "nonResourceURLs",
        lacking,
        "non-resource URLs",
        path,
        errors,
    ) {
        return;
    }
    let at = path.child("nonResourceURLs");
    for (index, url) in texts(rule, "nonResourceURLs").into_iter().enumerate() {
        let stars = url.matches('*').count();
        let why = match url {
            "" => "must not be empty",
            "/" => continue,
            _ if !url.starts_with('/') => "must start with slash",
            _ if url.contains(' ') => "must not contain white-space",
            _ if url.contains("//") => "must not contain double slash",
            _ if stars > 1 || (stars == 1 && !url.ends_with("/*")) => {
                "wildcard can only do suffix matching"
            }
            _ => continue,
        };
        errors.invalid(&at.index(index), url, why);
    }
}

fn resource_rule(rule: &Value, path: &Path<'_>, errors: &mut Errors) {
    verbs(rule, path, errors);
    for (field, what, others) in [
        ("apiGroups", "api group", "api groups"),
        ("resources", "resource", "resources"),
    ] {
        let lacking = format!("resource rules must supply at least one {what}");
        list(rule, field, &lacking, others, path, errors);
    }
    if texts(rule, "namespaces").is_empty() && rule.flag("clusterScope") {
        return;
    }
    let lacking = "resource rules that are not cluster scoped must supply at least one namespace";
    if !list(rule, "namespaces", lacking, "namespaces", path, errors) {
        return;
    }
    let at = path.child("namespaces");
    for (index, namespace) in texts(rule, "namespaces").into_iter().enumerate() {
        for sentence in names::dns_label(namespace) {
            let why =
                format!("each member of this list must be '*' or a DNS-1123 label; {sentence}");
            errors.invalid(&at.index(index), namespace, why);
        }
    }
}

#[cfg(test)]
mod tests {
    use mullion_kube_text::field;
    use serde_json::json;

    use super::*;

    fn causes(name: &str, spec: Value) -> Vec<String> {
        field::causes(|errors| schema(name, &spec, &Path::new("spec"), errors))
    }

    #[test]
    fn a_schema_names_a_level_and_whom_it_is_for() {
        let given = json!({"matchingPrecedence": 1, "rules": [{}, {"subjects": [{"kind": "User", "group": {"name": "g"}}, {"kind": "Robot"}],
            "resourceRules": [{"verbs": ["get", "shout"], "apiGroups": ["*", ""], "resources": ["pods"], "namespaces": ["A"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["x", "/a//b", "/a*"]}]}]});
        let label = names::dns_label("A").remove(0);
        assert_eq!(
            causes("mine", given),
            [
                "spec.matchingPrecedence: Invalid value: 1: only the schema named 'exempt' may have matchingPrecedence 1".to_owned(),
                "spec.priorityLevelConfiguration.name: Required value: must reference a priority level".to_owned(),
                "spec.rules[0].subjects: Required value: subjects must contain at least one value".to_owned(),
                "spec.rules[0]: Required value: at least one of resourceRules and nonResourceRules has to be non-empty".to_owned(),
                "spec.rules[1].subjects[0].user: Required value: user is required when subject kind is 'User'".to_owned(),
                "spec.rules[1].subjects[0].group: Forbidden: group is forbidden when subject kind is not 'Group'".to_owned(),
                r#"spec.rules[1].subjects[1].kind: Unsupported value: "Robot": supported values: "Group", "ServiceAccount", "User""#.to_owned(),
                r#"spec.rules[1].resourceRules[0].verbs: Unsupported value: ["get","shout"]: supported values: "create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch""#.to_owned(),
                r#"spec.rules[1].resourceRules[0].apiGroups: Invalid value: ["*",""]: if '*' is present, must not specify other api groups"#.to_owned(),
                format!(r#"spec.rules[1].resourceRules[0].namespaces[0]: Invalid value: "A": each member of this list must be '*' or a DNS-1123 label; {label}"#),
                r#"spec.rules[1].nonResourceRules[0].nonResourceURLs[0]: Invalid value: "x": must start with slash"#.to_owned(),
                r#"spec.rules[1].nonResourceRules[0].nonResourceURLs[1]: Invalid value: "/a//b": must not contain double slash"#.to_owned(),
                r#"spec.rules[1].nonResourceRules[0].nonResourceURLs[2]: Invalid value: "/a*": wildcard can only do suffix matching"#.to_owned(),
            ]
        );
    }

    #[test]
    fn what_every_cluster_has_is_valid() {
        for object in schemas() {
            let name = object["metadata"].text("name").to_owned();
            assert_eq!(causes(&name, object["spec"].clone()), [""; 0], "{name}");
        }
    }
}
