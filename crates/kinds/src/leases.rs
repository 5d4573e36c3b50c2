//! coordination.k8s.io/v1 Lease: the current holder of a lock, and the time until which it holds.

use jiff::Timestamp;
use mullion_kube_text::{
    field::{Errors, Path},
    names,
    validation::check,
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{
    Column, Kind,
    print::{AGE, NAME, age, column, name},
};
use crate::{
    Printing,
    fields::{self, AtLeast, Field, NOT_NEGATIVE, Text, set},
    request::Ctx,
};

/// coordination.k8s.io/v1 Lease.
pub(crate) struct Lease;

/// The fields of coordinated leader election. Its feature gate is off by default, so clients cannot set them.
const COORDINATED: [&str; 2] = ["strategy", "preferredHolder"];

const SPEC: &[Field] = &[
    set("leaseDurationSeconds", AtLeast(1, "must be greater than 0")),
    set("leaseTransitions", NOT_NEGATIVE),
    set("strategy", Text(strategy_name)),
];

impl Kind for Lease {
    fn prepare_create(&self, _: &Ctx<'_>, object: &mut Value) {
        drop_coordination(object, &Value::Null);
    }

    fn prepare_update(&self, _: &Ctx<'_>, object: &mut Value, old: &Value) {
        drop_coordination(object, old);
    }

    fn validate(&self, _ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let spec = &object["spec"];
        let path = Path::new("spec");
        fields::validate(SPEC, spec, &path, errors);
        if spec["preferredHolder"]
            .as_str()
            .is_some_and(|holder| !holder.is_empty())
            && spec.text("strategy").is_empty()
        {
            errors.forbidden(
                &path.child("preferredHolder"),
                "may only be specified if `strategy` is defined",
            );
        }
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for Lease {
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[NAME, column("Holder"), AGE];
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![
            name(object),
            object["spec"].text("holderIdentity").into(),
            age(object, now),
        ]
    }
}

fn drop_coordination(lease: &mut Value, old: &Value) {
    let Some(spec) = lease.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    for field in COORDINATED {
        if !old["spec"].has(field) {
            spec.remove(field);
        }
    }
}

/// Validates the name of a strategy: names with a domain are free, the others are Kubernetes' own.
fn strategy_name(errors: &mut Errors, path: &Path<'_>, strategy: &str) {
    if strategy.contains('/') {
        check(errors, path, strategy, names::qualified_name(strategy));
    } else if strategy != "OldestEmulationVersion" {
        errors.not_supported(path, strategy, &["OldestEmulationVersion"]);
    }
}
