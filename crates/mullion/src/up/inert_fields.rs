//! Warns about fields of Karpenter's kinds that are accepted but have no effect yet, with `Warning` headers that kubectl prints.
//!
//! [`mullion_controllers::nodepool::ignored_fields`] lists these fields. An update that does not change the spec gives no warnings.

use mullion_apiserver::{
    admission::{Action, Ctx, Plugin, Request},
    status::Status,
};
use mullion_controllers::{
    nodepool::ignored_fields::{self, IgnoredField},
    provisioner::FeatureGates,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The admission plugin that warns about fields without effect. It runs after the API server's own plugins.
pub(super) struct InertFields {
    /// Karpenter's feature gates: some fields have an effect only if their gate is open.
    pub(super) gates: FeatureGates,
}

/// Reads the spec of a kind and returns its fields without effect.
type Reader = fn(&Value, FeatureGates) -> Vec<IgnoredField>;

/// Group, plural, and the function that finds the fields.
const KINDS: [(&str, &str, Reader); 6] = [
    ("karpenter.sh", "nodepools", |spec, gates| {
        of(spec, |spec| ignored_fields::of_node_pool(spec, gates))
    }),
    ("karpenter.sh", "nodeoverlays", |_, gates| {
        if gates.node_overlay {
            Vec::new()
        } else {
            vec![ignored_fields::of_node_overlay()]
        }
    }),
    ("autoscaling.x-k8s.io", "capacitybuffers", |_, gates| {
        if gates.capacity_buffer {
            Vec::new()
        } else {
            vec![ignored_fields::of_capacity_buffer()]
        }
    }),
    ("karpenter.k8s.aws", "ec2nodeclasses", |spec, gates| {
        of(spec, |spec| {
            ignored_fields::of_node_class(spec, false, gates)
        })
    }),
    ("karpenter.sh", "provisioners", |spec, _| {
        of(spec, ignored_fields::of_provisioner)
    }),
    ("karpenter.k8s.aws", "awsnodetemplates", |spec, _| {
        of(spec, ignored_fields::of_node_template)
    }),
];

/// Returns the fields without effect of a spec; none if the spec cannot be parsed, because validation reports that error.
fn of<S: DeserializeOwned>(
    spec: &Value,
    fields: impl Fn(&S) -> Vec<IgnoredField>,
) -> Vec<IgnoredField> {
    S::deserialize(spec)
        .map(|spec| fields(&spec))
        .unwrap_or_default()
}

impl Plugin for InertFields {
    fn name(&self) -> &'static str {
        "InertFields"
    }

    fn handles(&self, action: &Action<'_>) -> bool {
        reader(action).is_some()
    }

    fn mutate(&self, _: &Ctx<'_>, request: &mut Request<'_>) -> Result<(), Status> {
        let spec = &request.object["spec"];
        let changes = request.old.is_none_or(|old| old["spec"] != *spec);
        if let (Some(read), true) = (reader(&request.action), changes) {
            let fields = read(spec, self.gates).into_iter();
            request
                .warnings
                .extend(fields.map(|field| field.to_string()));
        }
        Ok(())
    }
}

fn reader(action: &Action<'_>) -> Option<Reader> {
    let mut kinds = KINDS.iter();
    let kind = kinds.find(|(group, plural, _)| action.writes(group, plural))?;
    Some(kind.2)
}
