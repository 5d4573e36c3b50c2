//! What DaemonSets will take of a node that does not exist yet.
//!
//! Invariant: a DaemonSet counts only if its pods would run on the node: selector, required affinity and operating
//! system are asked of the labels the node will have, tolerations of its lasting taints. A label that is still open
//! counts as possible, so the overhead is never too small. A Windows DaemonSet therefore costs Linux nodes nothing.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration},
};
use mullion_api::{
    karpenter::{Operator, Requirement},
    labels,
};
use mullion_engine::model::{Quantity, ResourceMap};

use super::requirements::admits;
use crate::state::{convert, taints::tolerates};

/// What is known of the nodes to be: labels that are decided, requirements on those that are not, taints.
#[derive(Clone, Debug, Default)]
pub struct Prospect {
    /// Decided labels.
    pub labels: BTreeMap<String, String>,
    /// Requirements on open labels.
    pub requirements: Vec<Requirement>,
    /// Taints that stay.
    pub taints: Vec<Taint>,
}

/// The sum of what one pod of each DaemonSet that would run there asks for.
pub fn of<'a>(sets: impl IntoIterator<Item = &'a DaemonSet>, prospect: &Prospect) -> ResourceMap {
    let mut sum = ResourceMap::new();
    for set in sets {
        let template = set.spec.as_ref().map(|spec| &spec.template);
        let Some(spec) = template.and_then(|template| template.spec.as_ref()) else {
            continue;
        };
        if !runs_on(spec, prospect) {
            continue;
        }
        for (name, amount) in requests(spec) {
            let total = sum.entry(name).or_default();
            *total = total.saturating_add(amount);
        }
        let pods = sum.entry(labels::PODS.to_owned()).or_default();
        *pods = pods.saturating_add(Quantity::from_units(1));
    }
    sum
}

pub(super) fn requests(spec: &PodSpec) -> ResourceMap {
    let template = convert::template(&Default::default(), spec);
    let mut sum = ResourceMap::new();
    let mut add = |map: &ResourceMap| {
        for (name, amount) in map {
            let total = sum.entry(name.clone()).or_default();
            *total = total.saturating_add(*amount);
        }
    };
    for container in &template.containers {
        add(&container.resources.requests);
    }
    for sidecar in template.init_containers.iter().filter(|c| c.is_sidecar()) {
        add(&sidecar.resources.requests);
    }
    add(&template.overhead);
    // A plain init container runs alone, but its request is held for the pod's whole life.
    for init in template.init_containers.iter().filter(|c| !c.is_sidecar()) {
        for (name, amount) in &init.resources.requests {
            let held = sum.entry(name.clone()).or_default();
            *held = (*held).max(*amount);
        }
    }
    sum
}

/// Whether a pod of this DaemonSet template would run on the node.
pub fn runs_on(spec: &PodSpec, prospect: &Prospect) -> bool {
    prospect.meets_selector(spec)
        && prospect.meets_os(spec)
        && prospect.meets_affinity(spec)
        && prospect.taints.iter().all(|taint| {
            taint.effect == "PreferNoSchedule"
                || spec
                    .tolerations
                    .iter()
                    .flatten()
                    .any(|t: &Toleration| tolerates(t, taint))
        })
}

impl Prospect {
    fn meets_selector(&self, spec: &PodSpec) -> bool {
        let mut selector = spec.node_selector.iter().flatten();
        selector.all(|(key, value)| self.may_be(&Requirement::is(key, value)))
    }

    fn meets_os(&self, spec: &PodSpec) -> bool {
        let os = spec.os.as_ref();
        os.is_none_or(|os| self.may_be(&Requirement::is(labels::OS, &os.name)))
    }

    fn meets_affinity(&self, spec: &PodSpec) -> bool {
        let required = spec
            .affinity
            .as_ref()
            .and_then(|affinity| affinity.node_affinity.as_ref())
            .and_then(|node| {
                node.required_during_scheduling_ignored_during_execution
                    .as_ref()
            });
        required.is_none_or(|required| {
            required
                .node_selector_terms
                .iter()
                .any(|term| self.meets_term(term))
        })
    }

    /// A term on fields names existing nodes; one without anything matches nothing.
    fn meets_term(&self, term: &NodeSelectorTerm) -> bool {
        let expressions = term.match_expressions.as_deref().unwrap_or_default();
        let fields = term.match_fields.as_deref().unwrap_or_default();
        fields.is_empty()
            && !expressions.is_empty()
            && expressions.iter().all(|one| match requirement(one) {
                Some(requirement) => self.may_be(&requirement),
                None => false,
            })
    }

    /// Whether the node can still meet a requirement.
    fn may_be(&self, wanted: &Requirement) -> bool {
        let key = labels::normalized(&wanted.key);
        if let Some(value) = self.labels.get(key) {
            return admits(wanted, Some(value));
        }
        let mut on_key = self
            .requirements
            .iter()
            .filter(|own| own.key == key)
            .peekable();
        match on_key.peek() {
            Some(_) => on_key.all(|own| match own.operator {
                Operator::In => own.values.iter().any(|value| admits(wanted, Some(value))),
                Operator::DoesNotExist => admits(wanted, None),
                _ => true,
            }),
            None if labels::WELL_KNOWN.contains(&key) || key == labels::HOSTNAME => true,
            None => admits(wanted, None),
        }
    }
}

fn requirement(expression: &NodeSelectorRequirement) -> Option<Requirement> {
    let operator = match expression.operator.as_str() {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        "Gt" => Operator::Gt,
        "Lt" => Operator::Lt,
        _ => return None,
    };
    let values = expression.values.iter().flatten().cloned();
    Some(Requirement::new(expression.key.clone(), operator, values))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn set(spec: Value) -> DaemonSet {
        let mut spec = spec;
        spec["containers"] = json!([{
            "name": "c", "resources": { "requests": { "cpu": "100m", "memory": "50Mi" } }
        }]);
        let set = json!({ "spec": { "selector": {}, "template": { "spec": spec } } });
        serde_json::from_value(set).expect("a daemon set")
    }

    fn prospect(os: &str) -> Prospect {
        Prospect {
            labels: BTreeMap::from([(labels::OS.to_owned(), os.to_owned())]),
            ..Prospect::default()
        }
    }

    fn cpu(sets: &[DaemonSet], prospect: &Prospect) -> i64 {
        let sum = of(sets, prospect);
        sum.get("cpu").copied().unwrap_or_default().milli_value()
    }

    #[test]
    fn daemons_of_another_operating_system_cost_nothing() {
        let by_selector = set(json!({ "nodeSelector": { "kubernetes.io/os": "windows" } }));
        let by_old_name = set(json!({ "nodeSelector": { "beta.kubernetes.io/os": "windows" } }));
        let by_field = set(json!({ "os": { "name": "windows" } }));
        let by_affinity = set(json!({ "affinity": { "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [{ "matchExpressions": [
                { "key": "kubernetes.io/os", "operator": "In", "values": ["windows"] }
            ]}]}
        }}}));
        let sets = [by_selector, by_old_name, by_field, by_affinity];
        assert_eq!(cpu(&sets, &prospect("linux")), 0);
        assert_eq!(cpu(&sets, &prospect("windows")), 400);
    }

    #[test]
    fn a_daemon_for_all_systems_counts_everywhere_it_tolerates() {
        let mut windows = prospect("windows");
        windows.taints = vec![Taint {
            key: "os".into(),
            value: Some("windows".into()),
            effect: "NoSchedule".into(),
            time_added: None,
        }];
        let plain = set(json!({}));
        let tolerant = set(json!({ "tolerations": [{ "operator": "Exists" }] }));
        assert_eq!(cpu(&[plain.clone(), tolerant], &windows), 100);
        assert_eq!(cpu(&[plain], &prospect("linux")), 100);
    }

    #[test]
    fn an_open_label_counts_as_possible_within_its_requirements() {
        let set = set(json!({ "nodeSelector": { "topology.kubernetes.io/zone": "us-west-2a" } }));
        let mut open = prospect("linux");
        assert_eq!(cpu(std::slice::from_ref(&set), &open), 100);
        open.requirements = vec![Requirement::is(labels::ZONE, "us-west-2b")];
        assert_eq!(cpu(&[set], &open), 0);
    }

    #[test]
    fn a_label_nobody_gives_the_node_keeps_a_daemon_away() {
        let gpu = set(json!({ "nodeSelector": { "example.com/gpu": "yes" } }));
        assert_eq!(cpu(&[gpu], &prospect("linux")), 0);
    }

    #[test]
    fn init_containers_and_overhead_are_held_too() {
        let set: DaemonSet = serde_json::from_value(json!({ "spec": { "selector": {}, "template": { "spec": {
            "overhead": { "cpu": "10m" },
            "initContainers": [
                { "name": "i", "resources": { "requests": { "cpu": "500m" } } },
                { "name": "s", "restartPolicy": "Always", "resources": { "requests": { "cpu": "20m" } } }
            ],
            "containers": [{ "name": "c", "resources": { "requests": { "cpu": "100m" } } }]
        }}}}))
        .expect("a daemon set");
        let sum = of([&set], &prospect("linux"));
        assert_eq!(sum["cpu"].milli_value(), 500);
        assert_eq!(sum["pods"].value(), 1);
    }
}
