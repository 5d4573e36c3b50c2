//! rbac.authorization.k8s.io/v1: Role and ClusterRole have rules, RoleBinding and ClusterRoleBinding grant a role to subjects.
//!
//! Two checks limit a writer: validation checks that the object makes sense, and [`Kind::permit`] that no user grants more rights than the
//! user has ([`escalation`]). The messages are those of pkg/apis/rbac/validation.

mod escalation;
pub mod rule;

use jiff::Timestamp;
use mullion_kube_text::{
    field::{ErrorType, Errors, Path, go_struct},
    names,
    status::Status,
    validation::selector::{self, Selector},
};
use mullion_schema::tree::{Tree, object_at, set_zero};
use serde_json::Value;

use super::{
    Check, Column, Kind,
    print::{AGE, NAME, age, column, wide},
};
use crate::{
    Printing,
    fields::{self, Anything, Field, Format, OneOf, always, filled, required},
    request::Ctx,
};

/// The API group of all four kinds.
pub const GROUP: &str = "rbac.authorization.k8s.io";

/// The scope of a role or binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The rules hold in one namespace.
    Namespace,
    /// The rules hold in the whole cluster.
    Cluster,
}

const RULE: &[Field] =
    &[required("verbs", Anything).because("verbs must contain at least one value")];
const RESOURCE_RULE: &[Field] = &[
    required("apiGroups", Anything).because("resource rules must supply at least one api group"),
    required("resources", Anything).because("resource rules must supply at least one resource"),
];
const OWN_GROUP: &[Field] = &[always("apiGroup", OneOf(&[GROUP]))];
/// Names of roles may have characters that other names do not, as in `system:node`.
const ROLE_NAME: &[Field] = &[required("name", Format(names::path_segment))];
const SUBJECT: &[Field] = &[required("name", Anything)];
const SERVICE_ACCOUNT: &[Field] = &[
    filled("name", Format(names::dns_subdomain)),
    filled("apiGroup", OneOf(&[""])),
];

/// Role and ClusterRole.
pub(crate) struct Roles(pub(crate) Scope);

impl Kind for Roles {
    fn update_checks(&self, _: &str) -> &'static [Check] {
        Check::CHANGE_AND_WHOLE
    }

    fn permit(
        &self,
        ctx: &Ctx<'_>,
        name: &str,
        object: &Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        escalation::check_role(ctx, self.0, name, object, old)
    }

    fn validate(&self, _ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let path = Path::new("rules");
        for (index, rule) in object.items("rules").iter().enumerate() {
            policy_rule(errors, &path.index(index), rule, self.0);
        }
        if let Some(aggregation) = object.field("aggregationRule") {
            aggregation_rule(errors, aggregation);
        }
    }
}

fn policy_rule(errors: &mut Errors, path: &Path<'_>, rule: &Value, scope: Scope) {
    let has = |field: &str| !rule.items(field).is_empty();
    fields::validate(RULE, rule, path, errors);
    if has("nonResourceURLs") {
        let path = path.child("nonResourceURLs");
        if scope == Scope::Namespace {
            let why = "namespaced rules cannot apply to non-resource URLs";
            errors.invalid(&path, rule["nonResourceURLs"].clone(), why);
        }
        if has("apiGroups") || has("resources") || has("resourceNames") {
            let why = "rules cannot apply to both regular resources and non-resource URLs";
            errors.invalid(&path, rule["nonResourceURLs"].clone(), why);
        }
        // Such a rule needs no groups and resources, which the rest requires.
        return;
    }
    fields::validate(RESOURCE_RULE, rule, path, errors);
}

fn aggregation_rule(errors: &mut Errors, aggregation: &Value) {
    let path = Path::new("aggregationRule");
    let path = path.child("clusterRoleSelectors");
    let selectors = aggregation.items("clusterRoleSelectors");
    if selectors.is_empty() {
        let why = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        errors.required(&path, why);
    }
    for (index, wanted) in selectors.iter().enumerate() {
        let at = path.index(index);
        selector::label_selector(errors, &at, wanted);
        // kube-apiserver also converts the selector, so a wrong one gets two errors.
        if Selector::from_label_selector(wanted).is_err() {
            errors.invalid(&at, Value::Null, "invalid label selector.");
        }
    }
}

/// RoleBinding and ClusterRoleBinding.
pub(crate) struct Bindings(pub(crate) Scope);

impl Kind for Bindings {
    fn update_checks(&self, _: &str) -> &'static [Check] {
        Check::CHANGE_AND_WHOLE
    }

    fn default(&self, object: &mut Value) {
        if let Some(root) = object.as_object_mut() {
            set_zero(object_at(root, "roleRef"), "apiGroup", GROUP);
        }
        let subjects = object.get_mut("subjects").and_then(Value::as_array_mut);
        for subject in subjects.into_iter().flatten() {
            if matches!(subject.text("kind"), "User" | "Group")
                && let Some(subject) = subject.as_object_mut()
            {
                set_zero(subject, "apiGroup", GROUP);
            }
        }
    }

    fn permit(
        &self,
        ctx: &Ctx<'_>,
        name: &str,
        object: &Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        escalation::check_binding(ctx, self.0, name, object, old)
    }

    fn validate(&self, _ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        role_ref(errors, &object["roleRef"], self.0);
        let path = Path::new("subjects");
        for (index, one) in object.items("subjects").iter().enumerate() {
            subject(errors, &path.index(index), one, self.0);
        }
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        let role = &object["roleRef"];
        if *role != old["roleRef"] {
            let shown = go_struct(&[
                ("APIGroup", role.text("apiGroup").into()),
                ("Kind", role.text("kind").into()),
                ("Name", role.text("name").into()),
            ]);
            let path = Path::new("roleRef");
            errors.with_text(ErrorType::Invalid, &path, shown, "cannot change roleRef");
        }
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for Bindings {
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[
            NAME,
            column("Role"),
            AGE,
            wide("Users"),
            wide("Groups"),
            wide("ServiceAccounts"),
        ];
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let role = &object["roleRef"];
        let subjects = |kind: &str| {
            let of_kind = object
                .items("subjects")
                .iter()
                .filter(|subject| subject.text("kind") == kind);
            let named: Vec<String> = of_kind
                .map(|subject| match kind {
                    "ServiceAccount" => {
                        format!("{}/{}", subject.text("namespace"), subject.text("name"))
                    }
                    _ => subject.text("name").to_owned(),
                })
                .collect();
            Value::from(named.join(", "))
        };
        vec![
            object["metadata"]["name"].clone(),
            format!("{}/{}", role.text("kind"), role.text("name")).into(),
            age(object, now),
            subjects("User"),
            subjects("Group"),
            subjects("ServiceAccount"),
        ]
    }
}

fn role_ref(errors: &mut Errors, role: &Value, scope: Scope) {
    let path = Path::new("roleRef");
    fields::validate(OWN_GROUP, role, &path, errors);
    let kinds: &[&str] = match scope {
        Scope::Namespace => &["Role", "ClusterRole"],
        Scope::Cluster => &["ClusterRole"],
    };
    if !kinds.contains(&role.text("kind")) {
        errors.not_supported_text(&path.child("kind"), role.text("kind"), kinds);
    }
    fields::validate(ROLE_NAME, role, &path, errors);
}

fn subject(errors: &mut Errors, path: &Path<'_>, subject: &Value, scope: Scope) {
    fields::validate(SUBJECT, subject, path, errors);
    match subject.text("kind") {
        "ServiceAccount" => {
            fields::validate(SERVICE_ACCOUNT, subject, path, errors);
            // In a RoleBinding, a missing namespace is the binding's own.
            if scope == Scope::Cluster && subject.text("namespace").is_empty() {
                errors.required(&path.child("namespace"), "");
            }
        }
        "User" | "Group" => {
            fields::validate(OWN_GROUP, subject, path, errors);
        }
        kind => {
            let known = &["ServiceAccount", "User", "Group"];
            errors.not_supported_text(&path.child("kind"), kind, known);
        }
    }
}
