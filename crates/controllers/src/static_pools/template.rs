//! Builds the NodeClaim of a static pool from the pool's template alone, without pods.

use kube::ResourceExt;
use mullion_api::{
    karpenter::{NodePool, Operator, Requirement},
    labels,
};
use mullion_cloud::LaunchOption;
use mullion_engine::{model::ResourceMap, provision::PlannedNode};

use crate::provisioner::{KarpenterContext, requirements::to_engine};

/// Returns a planned node of a static pool. It names no instance types: the launch takes the cheapest that meets the
/// requirements.
pub(crate) fn planned(pool: &NodePool) -> PlannedNode {
    let requirements = requirements(pool);
    PlannedNode {
        pool: pool.name_any(),
        options: [].into(),
        requirements: requirements.iter().map(to_engine).collect(),
        pods: Vec::new(),
        requests: ResourceMap::new(),
        daemons: ResourceMap::new(),
        node_price_micro_usd: 0,
        min_values_relaxed: false,
        reservations: [].into(),
    }
}

/// Returns the pool's requirements, and its labels as requirements, sorted by key.
fn requirements(pool: &NodePool) -> Vec<Requirement> {
    let spec = &pool.spec.template.spec;
    let mut labels = pool.spec.template.metadata.labels.clone();
    labels.insert(labels::NODEPOOL.to_owned(), pool.name_any());
    labels.extend([spec.node_class_ref.label()]);
    let fixed = labels
        .iter()
        .map(|(key, value)| Requirement::is(key, value.as_str()));
    let mut all: Vec<Requirement> = spec
        .requirements
        .iter()
        // A label of the template decides its key, so a requirement on the same key could only contradict it.
        .filter(|own| !labels.contains_key(&own.key))
        .cloned()
        .map(decided)
        .chain(fixed)
        .collect();
    all.sort_by(|a, b| a.key.cmp(&b.key));
    all
}

/// Returns the requirement with its first value only if its label is a custom one, which no instance type determines.
fn decided(mut requirement: Requirement) -> Requirement {
    let key = labels::normalized(&requirement.key);
    if requirement.operator == Operator::In && !labels::WELL_KNOWN.contains(&key) {
        // Sorted before the first value is chosen, so that every claim of the pool gets the same one.
        requirement.values.sort();
        requirement.values.truncate(1);
    }
    requirement
}

/// What can be bought for a pool now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Supply {
    /// Nothing: every offering was refused lately or is not sold.
    None,
    /// Only offerings that were refused lately and may be tried again, with a single launch at first.
    OnTrial,
    /// At least one offering that is not on trial.
    Some,
}

/// Returns what can be bought for the pool now. If the class is unknown or the cloud does not answer, the result is `Some`,
/// so that the launch reports the error.
pub(super) async fn supply(karpenter: &KarpenterContext, pool: &NodePool) -> Supply {
    let name = &pool.spec.template.spec.node_class_ref.name;
    let Some(class) = karpenter.classes.get("", name) else {
        return Supply::Some;
    };
    let Ok(market) = karpenter.market(&class).await else {
        return Supply::Some;
    };
    let options = market.launch_options(&requirements(pool), &ResourceMap::new());
    let is_on_trial = |own: &LaunchOption| {
        market.is_on_trial(&own.instance_type, &own.zone, own.capacity_type.as_str())
    };
    if options.is_empty() {
        Supply::None
    } else if options.iter().all(is_on_trial) {
        Supply::OnTrial
    } else {
        Supply::Some
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_has_the_pools_requirements_and_its_labels_and_one_value_of_each_label_of_the_users_own()
     {
        let pool: NodePool = serde_json::from_value(json!({
            "metadata": { "name": "p" },
            "spec": { "replicas": 1, "template": {
                "metadata": { "labels": { "team": "web" } },
                "spec": {
                    "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "n" },
                    "requirements": [
                        { "key": "team", "operator": "Exists" },
                        { "key": "stage", "operator": "In", "values": ["two", "one"] },
                        { "key": "topology.kubernetes.io/zone", "operator": "In", "values": ["b", "a"] },
                    ]
                }
            }}
        }))
        .expect("a pool");
        let texts: Vec<_> = requirements(&pool)
            .iter()
            .map(|own| format!("{} {:?} {}", own.key, own.operator, own.values.join(",")))
            .collect();
        let expected = [
            "karpenter.k8s.aws/ec2nodeclass In n",
            "karpenter.sh/nodepool In p",
            "stage In one",
            "team In web",
            "topology.kubernetes.io/zone In b,a",
        ];
        assert_eq!(texts, expected);
    }
}
