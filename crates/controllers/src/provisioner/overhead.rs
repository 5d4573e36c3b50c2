//! What DaemonSets will take of a node that does not exist yet.
//!
//! Of a node to be bought the engine works it out per machine from the DaemonSets' pods. Of a claim's node it is worked out
//! here: a DaemonSet counts only if its pods would run on the node. Selector, required affinity and operating system are
//! compared with the labels that the node will have, tolerations with its lasting taints. A label that is still open counts as
//! possible, so the overhead is never too small.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::DaemonSet,
        core::v1::{self, NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::ResourceExt;
use mullion_api::{
    karpenter::{Operator, Requirement},
    labels,
};
use mullion_cloud::WindowsAddresses;
use mullion_engine::model::{PodSpec, PodTemplate, Quantity, ResourceMap};

use super::{coming_pod, requirements::admits};
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

/// Returns the pod that a DaemonSet will run on a node, as the engine sees it, with all that it will ask for.
pub fn pod_of(set: &DaemonSet, addresses: WindowsAddresses) -> Option<PodTemplate> {
    let template = &set.spec.as_ref()?.template;
    let mut spec = template.spec.clone()?;
    coming_pod::complete(&mut spec, addresses);
    let metadata = ObjectMeta {
        namespace: set.metadata.namespace.clone(),
        ..template.metadata.clone().unwrap_or_default()
    };
    Some(convert::template(&metadata, &spec))
}

/// Returns the pods that DaemonSets will run on a claim's node. `node` is the node's name.
pub fn pods_on<'a>(
    sets: impl Iterator<Item = &'a DaemonSet>,
    prospect: &Prospect,
    node: &str,
    addresses: WindowsAddresses,
) -> Vec<PodSpec> {
    let runs = |set: &&DaemonSet| {
        let template = set.spec.as_ref().map(|spec| &spec.template);
        let spec = template.and_then(|template| template.spec.as_ref());
        spec.is_some_and(|spec| runs_on(spec, prospect))
    };
    let pod = |set: &DaemonSet| {
        Some(PodSpec {
            // No pod of the API has a slash in its name.
            name: format!("{}/{node}", set.name_any()),
            template: pod_of(set, addresses)?,
            ..PodSpec::default()
        })
    };
    sets.filter(runs).filter_map(pod).collect()
}

/// Returns the sum of what one pod of each DaemonSet that would run there requests, with the addresses of those for Windows.
pub fn of<'a>(
    sets: impl IntoIterator<Item = &'a DaemonSet>,
    prospect: &Prospect,
    addresses: WindowsAddresses,
) -> ResourceMap {
    let mut sum = ResourceMap::new();
    for set in sets {
        let template = set.spec.as_ref().map(|spec| &spec.template);
        let Some(spec) = template.and_then(|template| template.spec.as_ref()) else {
            continue;
        };
        if !runs_on(spec, prospect) {
            continue;
        }
        let mut spec = spec.clone();
        coming_pod::complete(&mut spec, addresses);
        for (name, amount) in requests(&spec) {
            let total = sum.entry(name).or_default();
            *total = total.saturating_add(amount);
        }
        let pods = sum.entry(labels::PODS.to_owned()).or_default();
        *pods = pods.saturating_add(Quantity::from_units(1));
    }
    sum
}

pub(super) fn requests(spec: &v1::PodSpec) -> ResourceMap {
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

/// Returns whether a pod of this DaemonSet template would run on the node.
pub fn runs_on(spec: &v1::PodSpec, prospect: &Prospect) -> bool {
    prospect.meets_selector(spec)
        && prospect.meets_os(spec)
        && prospect.meets_affinity(spec)
        && prospect.taints.iter().all(|taint| {
            // The DaemonSet controller ignores this effect when it decides where its pods run.
            taint.effect == "PreferNoSchedule"
                || spec
                    .tolerations
                    .iter()
                    .flatten()
                    .any(|t: &Toleration| tolerates(t, taint))
        })
}

impl Prospect {
    fn meets_selector(&self, spec: &v1::PodSpec) -> bool {
        let mut selector = spec.node_selector.iter().flatten();
        selector.all(|(key, value)| self.may_be(&Requirement::is(key, value)))
    }

    fn meets_os(&self, spec: &v1::PodSpec) -> bool {
        let os = spec.os.as_ref();
        os.is_none_or(|os| self.may_be(&Requirement::is(labels::OS, &os.name)))
    }

    fn meets_affinity(&self, spec: &v1::PodSpec) -> bool {
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

    /// Returns whether the node can meet one term. A term with `matchFields` names an existing
    /// node, and an empty term matches nothing, as in kube-scheduler.
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

    /// Returns whether the node can still meet a requirement.
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
                // Any of the listed values may become the label, so one that is admitted is enough.
                Operator::In => own.values.iter().any(|value| admits(wanted, Some(value))),
                Operator::DoesNotExist => admits(wanted, None),
                _ => true,
            }),
            // The instance will bring these labels; any other label that nobody sets will be
            // absent.
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
        let sum = of(sets, prospect, WindowsAddresses::Off);
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
    fn a_daemon_for_windows_asks_for_the_address_that_a_webhook_will_have_it_ask_for() {
        let asks = |spec: Value, addresses| {
            let pod = pod_of(&set(spec), addresses).expect("a pod");
            let requests = &pod.containers[0].resources.requests;
            requests.contains_key(labels::PRIVATE_IPV4)
        };
        let selector = json!({ "beta.kubernetes.io/os": "windows" });
        let windows = json!({ "nodeSelector": selector });
        assert!(asks(windows.clone(), WindowsAddresses::Single));
        assert!(!asks(windows, WindowsAddresses::Off));
        let sum = of(
            [&set(json!({ "os": { "name": "windows" } }))],
            &prospect("windows"),
            WindowsAddresses::Single,
        );
        assert_eq!(sum[labels::PRIVATE_IPV4].value(), 1);
        let on_host = json!({ "nodeSelector": selector, "hostNetwork": true });
        assert!(!asks(on_host, WindowsAddresses::Single));
        assert!(!asks(json!({}), WindowsAddresses::Single));
    }

    #[test]
    fn a_limit_without_a_request_is_requested_as_the_api_server_will_have_it() {
        let mut limited = set(json!({ "initContainers": [
            { "name": "i", "resources": { "limits": { "cpu": "2" } } }
        ]}));
        let spec = limited
            .spec
            .as_mut()
            .and_then(|spec| spec.template.spec.as_mut());
        let resources =
            json!({ "requests": { "cpu": "1" }, "limits": { "cpu": "3", "memory": "1Gi" } });
        let container = &mut spec.expect("a pod's spec").containers[0];
        container.resources = serde_json::from_value(resources).expect("resources");
        let sum = of([&limited], &prospect("linux"), WindowsAddresses::Off);
        let amounts = ["cpu", "memory"].map(|name| sum[name].value());
        assert_eq!(amounts, [2, 1 << 30]);
        let pod = pod_of(&limited, WindowsAddresses::Off).expect("a pod");
        assert_eq!(
            pod.containers[0].resources.requests["memory"].value(),
            1 << 30
        );
    }

    #[test]
    fn a_claims_node_has_a_pod_of_each_daemon_that_runs_there() {
        let mut sets = [
            set(json!({})),
            set(json!({ "nodeSelector": { "kubernetes.io/os": "windows" } })),
        ];
        for (set, name) in sets.iter_mut().zip(["agent", "win-agent"]) {
            set.metadata.name = Some(name.to_owned());
            set.metadata.namespace = Some("kube-system".to_owned());
        }
        let on = |os: &str| {
            let addresses = WindowsAddresses::Single;
            let pods = pods_on(sets.iter(), &prospect(os), "claim-1", addresses);
            pods.iter().map(PodSpec::key).collect::<Vec<_>>()
        };
        assert_eq!(on("linux"), ["kube-system/agent/claim-1"]);
        let both = ["kube-system/agent/claim-1", "kube-system/win-agent/claim-1"];
        assert_eq!(on("windows"), both);
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
        let sum = of([&set], &prospect("linux"), WindowsAddresses::Off);
        assert_eq!(sum["cpu"].milli_value(), 500);
        assert_eq!(sum["pods"].value(), 1);
    }
}
