//! Warns of fields of Karpenter's kinds that are accepted and have no effect yet, in `Warning` headers that kubectl prints.
//!
//! Which fields these are is said in [`mullion_controllers::nodepool::inert`]. What a field has by default is not warned
//! of unless `kubectl apply` says that the user wrote it, nor is an update that leaves the spec as it is.

use mullion_apiserver::{
    admission::{Ctx, Plugin, Request, What},
    status::Status,
};
use mullion_controllers::nodepool::inert::{self, Inert};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Where `kubectl apply` keeps what it was given.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The plugin; it stands after the API server's own.
pub(super) struct InertFields;

/// Reads the spec of a kind and returns its fields without effect.
type Reader = fn(&Value) -> Vec<Inert>;

/// Group, plural, and what to look at.
const KINDS: [(&str, &str, Reader); 5] = [
    ("karpenter.sh", "nodepools", |spec| {
        of(spec, inert::of_node_pool)
    }),
    ("karpenter.sh", "nodeclaims", |spec| {
        of(spec, inert::of_node_claim)
    }),
    ("karpenter.k8s.aws", "ec2nodeclasses", |spec| {
        of(spec, inert::of_node_class)
    }),
    ("karpenter.sh", "provisioners", |spec| {
        of(spec, inert::of_provisioner)
    }),
    ("karpenter.k8s.aws", "awsnodetemplates", |spec| {
        of(spec, inert::of_node_template)
    }),
];

/// Returns nothing for a spec that cannot be read: validation says what is wrong with it.
fn of<S: DeserializeOwned>(spec: &Value, fields: fn(&S) -> Vec<Inert>) -> Vec<Inert> {
    S::deserialize(spec)
        .map(|spec| fields(&spec))
        .unwrap_or_default()
}

impl Plugin for InertFields {
    fn name(&self) -> &'static str {
        "InertFields"
    }

    fn handles(&self, what: &What<'_>) -> bool {
        reader(what).is_some()
    }

    fn mutate(&self, _: &Ctx<'_>, request: &mut Request<'_>) -> Result<(), Status> {
        let spec = &request.object["spec"];
        let changes = request.old.is_none_or(|old| old["spec"] != *spec);
        if let (Some(read), true) = (reader(&request.what), changes) {
            let applied = applied(request.object);
            let is_written = |field: &Inert| {
                let is_there = |at: &str| applied.pointer(at).is_some();
                field.by_default.is_none_or(is_there)
            };
            let fields = read(spec).into_iter().filter(is_written);
            request
                .warnings
                .extend(fields.map(|field| field.to_string()));
        }
        Ok(())
    }
}

/// Returns the object as `kubectl apply` was given it; null if another client writes.
fn applied(object: &Value) -> Value {
    let text = object["metadata"]["annotations"][LAST_APPLIED].as_str();
    text.and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default()
}

fn reader(what: &What<'_>) -> Option<Reader> {
    let mut kinds = KINDS.iter();
    let kind = kinds.find(|(group, plural, _)| what.writes(group, plural))?;
    Some(kind.2)
}
