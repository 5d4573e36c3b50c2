//! The options of a deletion (`metav1.DeleteOptions`).

use axum::body::Body;
use mullion_kube_text::{
    field::{Errors, Path},
    status::Status,
};
use mullion_schema::Type;
use serde_json::{Map, Value, json};

use crate::http::{
    body,
    call::{Call, check_dry_run},
};

/// The validated `metav1.DeleteOptions`.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeleteOptions {
    pub grace: Option<i64>,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    pub orphan_dependents: Option<bool>,
    pub policy: Option<String>,
    pub dry_run: bool,
}

impl DeleteOptions {
    /// Parses the options from the body, or from the query if there is no body.
    pub(crate) async fn read(call: &Call, body: Body) -> Result<Self, Status> {
        let bytes = body::read(body).await?;
        let options = if bytes.is_empty() {
            from_query(call)?
        } else {
            from_body(call, &bytes)?
        };
        // The default policy of Jobs keeps their pods. kubectl always sends a policy, so only other clients see the warning.
        if options.policy.is_none() && options.orphan_dependents.is_none() {
            call.warn(call.resource().rules.deletion_warning.unwrap_or_default());
        }
        Ok(options)
    }

    /// Parses the options from the body of a deletion or an eviction.
    pub(crate) fn of(tree: &Value) -> Result<Self, Status> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let preconditions = &tree["preconditions"];
        let options = DeleteOptions {
            grace: tree["gracePeriodSeconds"].as_i64(),
            uid: text(&preconditions["uid"]),
            resource_version: text(&preconditions["resourceVersion"]),
            orphan_dependents: tree["orphanDependents"].as_bool(),
            policy: text(&tree["propagationPolicy"]),
            // Set by `checked` below, together with its validation.
            dry_run: false,
        };
        let dry_run = tree["dryRun"].as_array().into_iter().flatten();
        options.checked(dry_run.filter_map(Value::as_str))
    }

    /// Returns the options as admission webhooks see them.
    pub(crate) fn shown(&self) -> Value {
        let mut shown = json!({"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"});
        let mut preconditions = Map::new();
        for (field, value) in [
            ("uid", &self.uid),
            ("resourceVersion", &self.resource_version),
        ] {
            if let Some(value) = value {
                preconditions.insert(field.into(), value.as_str().into());
            }
        }
        if !preconditions.is_empty() {
            shown["preconditions"] = preconditions.into();
        }
        if let Some(grace) = self.grace {
            shown["gracePeriodSeconds"] = grace.into();
        }
        if let Some(orphan) = self.orphan_dependents {
            shown["orphanDependents"] = orphan.into();
        }
        if let Some(policy) = &self.policy {
            shown["propagationPolicy"] = policy.as_str().into();
        }
        if self.dry_run {
            shown["dryRun"] = json!(["All"]);
        }
        shown
    }

    /// Sets `dry_run` and validates the options; returns all their errors at once.
    fn checked<'a>(mut self, dry_run: impl Iterator<Item = &'a str>) -> Result<Self, Status> {
        let mut errors = Errors::default();
        let path = &Path::new("propagationPolicy");
        if let Some(policy) = &self.policy {
            if self.orphan_dependents.is_some() {
                errors.invalid(
                    path,
                    policy.as_str(),
                    "orphanDependents and deletionPropagation cannot be both set",
                );
            }
            if !matches!(policy.as_str(), "Foreground" | "Background" | "Orphan") {
                errors.not_supported(
                    path,
                    policy.as_str(),
                    &["Foreground", "Background", "Orphan", "nil"],
                );
            }
        }
        self.dry_run = check_dry_run(dry_run, &mut errors);
        if errors.is_empty() {
            Ok(self)
        } else {
            Err(Status::invalid_kind(
                "meta.k8s.io",
                "DeleteOptions",
                "",
                &errors,
            ))
        }
    }
}

fn from_query(call: &Call) -> Result<DeleteOptions, Status> {
    let options = DeleteOptions {
        grace: call.query.integer("gracePeriodSeconds")?,
        uid: None,
        resource_version: None,
        orphan_dependents: call.query.flag("orphanDependents"),
        policy: call.query.get("propagationPolicy").map(str::to_owned),
        dry_run: false,
    };
    options.checked(call.query.all("dryRun"))
}

fn from_body(call: &Call, bytes: &[u8]) -> Result<DeleteOptions, Status> {
    let media = body::media(&call.headers)?;
    let schema = Type::builtin("apimachinery.pkg.apis.meta.v1.DeleteOptions")
        .ok_or_else(|| Status::internal("DeleteOptions are not in the schema table"))?;
    let tree = body::options(&schema, media, bytes)?;
    DeleteOptions::of(&tree)
}
