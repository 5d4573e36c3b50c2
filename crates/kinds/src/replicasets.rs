//! ReplicaSets: defaults, validation, table (`pkg/apis/apps`, `pkg/registry/apps/replicaset`).

use jiff::Timestamp;
use mullion_kube_text::field::{Errors, Path};
use mullion_schema::tree::{Tree, set_default};
use serde_json::{Map, Value};

use super::{
    Column, print,
    workloads::{self, OF_DEPLOYMENT, Workload},
};

/// The behaviour of apps/v1 replicasets.
pub(super) struct ReplicaSets;

const COLUMNS: [Column; 8] = [
    print::NAME,
    print::typed("Desired", "integer"),
    print::typed("Current", "integer"),
    print::typed("Ready", "integer"),
    print::AGE,
    print::wide("Containers"),
    print::wide("Images"),
    print::wide("Selector"),
];

impl Workload for ReplicaSets {
    fn default_spec(&self, spec: &mut Map<String, Value>) {
        set_default(spec, "replicas", 1);
    }

    fn validate_spec(&self, spec: &Value, path: &Path<'_>, errors: &mut Errors) {
        workloads::counts(spec, &["replicas", "minReadySeconds"], path, errors);
        workloads::selector_and_template(spec, &OF_DEPLOYMENT, path, errors);
    }

    fn validate_status(&self, object: &Value, _: &Value, errors: &mut Errors) {
        let (status, path) = (&object["status"], Path::new("status"));
        let counts = [
            "replicas",
            "fullyLabeledReplicas",
            "readyReplicas",
            "availableReplicas",
            "observedGeneration",
            "terminatingReplicas",
        ];
        workloads::counts(status, &counts, &path, errors);
        let parts = ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"];
        workloads::parts_of_replicas(status, &parts, "readyReplicas", errors);
    }

    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let (spec, status) = (&object["spec"], &object["status"]);
        vec![
            print::name(object),
            spec.integer("replicas").unwrap_or(0).into(),
            status.integer("replicas").unwrap_or(0).into(),
            status.integer("readyReplicas").unwrap_or(0).into(),
            print::age(object, now),
        ]
    }
}
