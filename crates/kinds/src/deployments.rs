//! Deployments: defaults, validation, table (`pkg/apis/apps`, `pkg/registry/apps/deployment`).

use jiff::Timestamp;
use mullion_kube_text::field::{ErrorType, Errors, Path};
use mullion_schema::tree::{Tree, object_at, set_default, set_zero};
use serde_json::{Map, Value};

use super::{
    Column,
    podspec::internal,
    print,
    workloads::{self, OF_DEPLOYMENT, Workload},
};
use crate::fields::{self, Code, Field, NOT_NEGATIVE, always, set};

/// The behaviour of apps/v1 deployments.
pub(super) struct Deployments;

const SPEC: &[Field] = &[
    set("minReadySeconds", NOT_NEGATIVE),
    set("revisionHistoryLimit", NOT_NEGATIVE),
    set("progressDeadlineSeconds", NOT_NEGATIVE),
];
const ROLLING_UPDATE: &[Field] = &[
    always("maxUnavailable", Code(workloads::int_or_percent)),
    always("maxSurge", Code(workloads::int_or_percent)),
];
const COLUMNS: [Column; 8] = [
    print::NAME,
    print::column("Ready"),
    print::column("Up-to-date"),
    print::column("Available"),
    print::AGE,
    print::wide("Containers"),
    print::wide("Images"),
    print::wide("Selector"),
];

impl Workload for Deployments {
    fn default_spec(&self, spec: &mut Map<String, Value>) {
        set_default(spec, "replicas", 1);
        let strategy = object_at(spec, "strategy");
        set_zero(strategy, "type", "RollingUpdate");
        if strategy["type"] == "RollingUpdate" {
            let rolling = object_at(strategy, "rollingUpdate");
            set_default(rolling, "maxUnavailable", "25%");
            set_default(rolling, "maxSurge", "25%");
        }
        set_default(spec, "revisionHistoryLimit", 10);
        set_default(spec, "progressDeadlineSeconds", 600);
    }

    fn validate_spec(&self, spec: &Value, path: &Path<'_>, errors: &mut Errors) {
        workloads::counts(spec, &["replicas"], path, errors);
        workloads::selector_and_template(spec, &OF_DEPLOYMENT, path, errors);
        strategy(&spec["strategy"], &path.child("strategy"), errors);
        fields::validate(SPEC, spec, path, errors);
        if let Some(deadline) = spec.integer("progressDeadlineSeconds")
            // A new pod becomes available after minReadySeconds, so no rollout could progress within a shorter deadline.
            && deadline <= spec.integer("minReadySeconds").unwrap_or(0)
        {
            errors.invalid(
                &path.child("progressDeadlineSeconds"),
                deadline,
                "must be greater than minReadySeconds",
            );
        }
    }

    fn validate_status(&self, object: &Value, old: &Value, errors: &mut Errors) {
        let (status, path) = (&object["status"], Path::new("status"));
        let counts = [
            "observedGeneration",
            "replicas",
            "updatedReplicas",
            "readyReplicas",
            "availableReplicas",
            "unavailableReplicas",
            "terminatingReplicas",
            "collisionCount",
        ];
        workloads::counts(status, &counts, &path, errors);
        let parts = ["updatedReplicas", "readyReplicas", "availableReplicas"];
        workloads::parts_of_replicas(status, &parts, "readyReplicas", errors);
        workloads::not_decremented(object, old, "collisionCount", errors);
    }

    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let (spec, status) = (&object["spec"], &object["status"]);
        let count = |field: &str| status.integer(field).unwrap_or(0);
        let ready = format!(
            "{}/{}",
            count("readyReplicas"),
            spec.integer("replicas").unwrap_or(0)
        );
        vec![
            print::name(object),
            ready.into(),
            count("updatedReplicas").into(),
            count("availableReplicas").into(),
            print::age(object, now),
        ]
    }
}

fn strategy(strategy: &Value, path: &Path<'_>, errors: &mut Errors) {
    let rolling_path = path.child("rollingUpdate");
    let rolling = strategy.field("rollingUpdate");
    match (strategy.text("type"), rolling) {
        ("Recreate", Some(_)) => {
            errors.forbidden(
                &rolling_path,
                "may not be specified when strategy `type` is 'Recreate'",
            );
        }
        ("Recreate", None) => {}
        ("RollingUpdate", Some(rolling)) => rolling_update(rolling, &rolling_path, errors),
        ("RollingUpdate", None) => {
            errors.required(&rolling_path, "this should be defaulted and never be nil")
        }
        _ => {
            let text = internal::compact("DeploymentStrategy", strategy);
            errors.with_text(
                ErrorType::NotSupported,
                path,
                text,
                r#"supported values: "Recreate", "RollingUpdate""#,
            );
        }
    }
}

fn rolling_update(rolling: &Value, path: &Path<'_>, errors: &mut Errors) {
    let (unavailable, surge) = (&rolling["maxUnavailable"], &rolling["maxSurge"]);
    let at = path.child("maxUnavailable");
    fields::validate(ROLLING_UPDATE, rolling, path, errors);
    // Such a rollout could neither remove an old pod nor add a new one.
    if workloads::number(unavailable) == 0 && workloads::number(surge) == 0 {
        errors.invalid(
            &at,
            unavailable.clone(),
            "may not be 0 when `maxSurge` is 0",
        );
    }
    workloads::at_most_all(unavailable, &at, errors);
}
