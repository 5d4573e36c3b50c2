//! Computes how much of a quota objects use (`pkg/quota/v1/evaluator/core`): pods their resources until they
//! finish, PersistentVolumeClaims their storage, ResourceClaims their devices by class, and Services their ports
//! and load balancers. Pure.
//!
//! Amounts are plain numbers: millicores, bytes, objects.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        core::v1::{
            PersistentVolumeClaim, Pod, PodSpec, ResourceQuota, ScopedResourceSelectorRequirement,
            Service,
        },
        resource::v1::ResourceClaim,
    },
    apimachinery::pkg::api::resource::Quantity,
};

use crate::{
    pods,
    state::requests::{pod_limits, pod_requests},
    volumes::matching,
};

const BY_CLASS: &str = ".storageclass.storage.k8s.io/";
pub(super) const DEVICES: &str = ".deviceclass.resource.k8s.io/devices";
/// The number of devices that a request for all devices counts for (resource.k8s.io/v1: AllocationResultsMaxSize).
const MOST_DEVICES: i64 = 32;
/// Kinds of the core group that have a limit of their own name in addition to `count/...`.
const SHORT: [&str; 4] = [
    "configmaps",
    "resourcequotas",
    "replicationcontrollers",
    "secrets",
];

/// The objects whose amount a limit restricts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimitedObjects<'a> {
    Pods,
    Claims,
    /// ResourceClaims.
    DeviceClaims,
    Services,
    /// The number of objects of a kind.
    Kind {
        group: &'a str,
        plural: &'a str,
    },
    /// Nothing counts towards the limit.
    Uncounted,
}

impl<'a> LimitedObjects<'a> {
    pub(super) fn of(limit: &'a str) -> Self {
        if let Some(kind) = limit.strip_prefix("count/") {
            let (plural, group) = kind.split_once('.').unwrap_or((kind, ""));
            return Self::Kind { group, plural };
        }
        if limit.contains(BY_CLASS) {
            return Self::Claims;
        }
        if limit.ends_with(DEVICES) {
            return Self::DeviceClaims;
        }
        match limit {
            "persistentvolumeclaims" | "requests.storage" => Self::Claims,
            "services" | "services.nodeports" | "services.loadbalancers" => Self::Services,
            "pods" | "cpu" | "memory" | "ephemeral-storage" => Self::Pods,
            short if SHORT.contains(&short) => Self::Kind {
                group: "",
                plural: short,
            },
            other if other.starts_with("requests.") || other.starts_with("limits.") => Self::Pods,
            other if other.starts_with("hugepages-") => Self::Pods,
            _ => Self::Uncounted,
        }
    }
}

/// Amounts by the names of limits.
#[derive(Debug, Default)]
pub(super) struct Usage(BTreeMap<String, i64>);

impl Usage {
    /// Returns the amount for a limit.
    pub(super) fn of(&self, limit: &str) -> i64 {
        self.0.get(limit).copied().unwrap_or(0)
    }

    pub(super) fn add(&mut self, limit: &str, amount: i64) {
        let sum = self.0.entry(limit.to_owned()).or_default();
        *sum = sum.saturating_add(amount);
    }

    /// Counts a pod unless it has finished or its grace period has passed.
    pub(super) fn pod(&mut self, pod: &Pod, now: Timestamp) {
        let Some(spec) = pod.spec.as_ref().filter(|_| runs(pod, now)) else {
            return;
        };
        self.add("pods", 1);
        for (name, amount) in pod_requests(spec) {
            let plain = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage");
            if plain || name.starts_with("hugepages-") {
                self.add(&name, amount);
            }
            self.add(&format!("requests.{name}"), amount);
        }
        for (name, amount) in pod_limits(spec) {
            self.add(&format!("limits.{name}"), amount);
        }
    }

    /// Counts a PersistentVolumeClaim.
    pub(super) fn claim(&mut self, claim: &PersistentVolumeClaim) {
        let status = claim.status.as_ref();
        let allocated = status.and_then(|status| status.allocated_resources.as_ref());
        let allocated = matching::quantity(allocated.and_then(|all| all.get("storage")));
        // A claim that is being reduced to a smaller size still uses what was allocated.
        let storage = matching::requested(claim).max(allocated).value();
        let class = matching::claim_class(claim).unwrap_or_default();
        let mut prefixes = vec![String::new()];
        if !class.is_empty() {
            prefixes.push(format!("{class}{BY_CLASS}"));
        }
        for prefix in prefixes {
            self.add(&format!("{prefix}persistentvolumeclaims"), 1);
            self.add(&format!("{prefix}requests.storage"), storage);
        }
    }

    /// Counts a ResourceClaim by device class. Of alternatives, the largest number of each class counts.
    pub(super) fn device_claim(&mut self, claim: &ResourceClaim) {
        let number = |mode: Option<&str>, count: Option<i64>| match mode {
            Some("ExactCount") => count.unwrap_or(0),
            Some("All") => MOST_DEVICES,
            _ => 0,
        };
        let devices = claim.spec.devices.as_ref();
        let requests = devices.and_then(|devices| devices.requests.as_deref());
        for request in requests.unwrap_or_default() {
            let exactly = request.exactly.iter().map(|exact| {
                let number = number(exact.allocation_mode.as_deref(), exact.count);
                (exact.device_class_name.as_str(), number)
            });
            let alternatives = request.first_available.iter().flatten().map(|wanted| {
                let number = number(wanted.allocation_mode.as_deref(), wanted.count);
                (wanted.device_class_name.as_str(), number)
            });
            let mut most: BTreeMap<&str, i64> = BTreeMap::new();
            for (class, number) in exactly.chain(alternatives) {
                let known = most.entry(class).or_default();
                *known = number.max(*known);
            }
            for (class, number) in most {
                self.add(&format!("{class}{DEVICES}"), number);
            }
        }
    }

    /// Iterates the numbers of devices by class.
    pub(super) fn devices(&self) -> impl Iterator<Item = (&str, i64)> {
        let amounts = self.0.iter();
        amounts.filter_map(|(name, amount)| Some((name.strip_suffix(DEVICES)?, *amount)))
    }

    /// Counts a Service.
    pub(super) fn service(&mut self, service: &Service) {
        let spec = service.spec.as_ref();
        let ports = spec
            .and_then(|spec| spec.ports.as_deref())
            .unwrap_or_default();
        let kind = spec.and_then(|spec| spec.type_.as_deref());
        let allocates = spec.and_then(|spec| spec.allocate_load_balancer_node_ports) != Some(false);
        let node_ports = match kind {
            Some("NodePort") => ports.len(),
            // Counted by what the API server will allocate, so that a quota cannot be passed by leaving ports
            // unset.
            Some("LoadBalancer") if allocates => ports.len(),
            Some("LoadBalancer") => {
                let set = |port: Option<i32>| port.is_some_and(|port| port != 0);
                ports.iter().filter(|port| set(port.node_port)).count()
            }
            _ => 0,
        };
        self.add("services", 1);
        self.add(
            "services.nodeports",
            i64::try_from(node_ports).unwrap_or(i64::MAX),
        );
        self.add(
            "services.loadbalancers",
            i64::from(kind == Some("LoadBalancer")),
        );
    }
}

/// Returns whether a pod still uses resources.
fn runs(pod: &Pod, now: Timestamp) -> bool {
    let deleted = pod.metadata.deletion_timestamp.as_ref();
    let grace = pod.metadata.deletion_grace_period_seconds;
    // A pod that is stuck on a lost node must not hold its quota for ever.
    let past = deleted.zip(grace).is_some_and(|(deleted, grace)| {
        now.duration_since(deleted.0) > SignedDuration::from_secs(grace)
    });
    !pods::is_finished(pod) && !past
}

/// Returns whether the quota has scopes, so that it counts only some objects.
pub(super) fn has_scopes(quota: &ResourceQuota) -> bool {
    let Some(spec) = &quota.spec else {
        return false;
    };
    let selector = spec.scope_selector.as_ref();
    let selected = selector.and_then(|selector| selector.match_expressions.as_ref());
    spec.scopes.iter().flatten().next().is_some() || selected.is_some_and(|all| !all.is_empty())
}

/// Returns whether a pod is in all scopes of a quota.
pub(super) fn in_scopes(quota: &ResourceQuota, pod: &Pod) -> bool {
    let (Some(spec), Some(own)) = (&quota.spec, &pod.spec) else {
        return false;
    };
    let exists = |scope: &String| ScopedResourceSelectorRequirement {
        operator: "Exists".to_owned(),
        scope_name: scope.clone(),
        values: None,
    };
    let named = spec.scopes.iter().flatten().map(exists);
    let selector = spec.scope_selector.iter();
    let selected =
        selector.flat_map(|selector| selector.match_expressions.iter().flatten().cloned());
    named.chain(selected).all(|scope| is_in(&scope, pod, own))
}

fn is_in(scope: &ScopedResourceSelectorRequirement, pod: &Pod, spec: &PodSpec) -> bool {
    let ends = spec
        .active_deadline_seconds
        .is_some_and(|seconds| seconds >= 0);
    let status = pod.status.as_ref();
    let class = status.and_then(|status| status.qos_class.as_deref());
    let best_effort = class == Some("BestEffort");
    match scope.scope_name.as_str() {
        "Terminating" => ends,
        "NotTerminating" => !ends,
        "BestEffort" => best_effort,
        "NotBestEffort" => !best_effort,
        "PriorityClass" => {
            let class = spec.priority_class_name.as_deref().unwrap_or_default();
            let mut values = scope.values.iter().flatten();
            let listed = values.any(|value| value == class);
            match scope.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => !class.is_empty(),
                "DoesNotExist" => class.is_empty(),
                _ => false,
            }
        }
        "CrossNamespacePodAffinity" => reaches_out(spec),
        _ => false,
    }
}

/// Returns whether a term of the pod's affinity refers to pods of other namespaces.
fn reaches_out(spec: &PodSpec) -> bool {
    let Some(affinity) = &spec.affinity else {
        return false;
    };
    let near = affinity.pod_affinity.iter().flat_map(|side| {
        let preferred = side
            .preferred_during_scheduling_ignored_during_execution
            .iter()
            .flatten();
        let required = side
            .required_during_scheduling_ignored_during_execution
            .iter()
            .flatten();
        required.chain(preferred.map(|weighted| &weighted.pod_affinity_term))
    });
    let far = affinity.pod_anti_affinity.iter().flat_map(|side| {
        let preferred = side
            .preferred_during_scheduling_ignored_during_execution
            .iter()
            .flatten();
        let required = side
            .required_during_scheduling_ignored_during_execution
            .iter()
            .flatten();
        required.chain(preferred.map(|weighted| &weighted.pod_affinity_term))
    });
    near.chain(far).any(|term| {
        term.namespaces.iter().flatten().next().is_some() || term.namespace_selector.is_some()
    })
}

/// Formats an amount as the API does: CPU in cores or millicores, bytes with the largest binary suffix without a
/// remainder.
pub(super) fn quantity(limit: &str, amount: i64) -> Quantity {
    let is_cpu = matches!(limit, "cpu" | "requests.cpu" | "limits.cpu");
    if is_cpu {
        return Quantity(match amount % 1000 {
            0 => (amount / 1000).to_string(),
            _ => format!("{amount}m"),
        });
    }
    let scaled = |base: i64, suffixes: &[&'static str]| {
        let (mut rest, mut suffix) = (amount, "");
        for next in suffixes {
            if rest == 0 || rest % base != 0 {
                break;
            }
            (rest, suffix) = (rest / base, next);
        }
        format!("{rest}{suffix}")
    };
    let is_bytes = ["memory", "storage", "hugepages-"];
    Quantity(
        if !is_bytes.iter().any(|part| limit.contains(part))
            || limit.ends_with("persistentvolumeclaims")
        {
            amount.to_string()
        } else if amount % 1024 == 0 {
            scaled(1024, &["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"])
        } else {
            scaled(1000, &["k", "M", "G", "T", "P", "E"])
        },
    )
}

/// Formats the amounts in one line.
#[cfg(test)]
fn shown(used: &Usage) -> String {
    let parts = used
        .0
        .iter()
        .map(|(name, amount)| format!("{name}={}", quantity(name, *amount).0));
    parts.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: Value, status: Value) -> Pod {
        serde_json::from_value(
            json!({ "metadata": { "name": "p" }, "spec": spec, "status": status }),
        )
        .expect("a pod")
    }

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().expect("a time")
    }

    #[test]
    fn a_pod_uses_what_it_asks_for_until_it_ends() {
        let container = json!({ "name": "c", "resources": { "requests": { "cpu": "250m", "memory": "1Gi", "example.com/card": "2" }, "limits": { "memory": "1536Mi" } } });
        let spec = json!({ "containers": [container] });
        let mut used = Usage::default();
        used.pod(&pod(spec.clone(), json!({ "phase": "Running" })), now());
        used.pod(&pod(spec.clone(), json!({ "phase": "Pending" })), now());
        used.pod(&pod(spec, json!({ "phase": "Succeeded" })), now());
        assert_eq!(
            shown(&used),
            "cpu=500m limits.memory=3Gi memory=2Gi pods=2 requests.cpu=500m requests.example.com/card=4 requests.memory=2Gi"
        );
    }

    #[test]
    fn devices_are_counted_by_class_with_the_most_of_alternatives() {
        let claim = json!({ "metadata": {}, "spec": { "devices": { "requests": [
            { "name": "a", "exactly": { "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2 } },
            { "name": "b", "exactly": { "deviceClassName": "nic", "allocationMode": "All" } },
            { "name": "c", "firstAvailable": [
                { "name": "x", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1 },
                { "name": "y", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 4 },
            ] },
        ] } } });
        let mut used = Usage::default();
        used.device_claim(&serde_json::from_value(claim).expect("a claim"));
        assert_eq!(used.of("gpu.deviceclass.resource.k8s.io/devices"), 6);
        assert_eq!(used.of("nic.deviceclass.resource.k8s.io/devices"), 32);
        assert_eq!(
            LimitedObjects::of("gpu.deviceclass.resource.k8s.io/devices"),
            LimitedObjects::DeviceClaims
        );
    }

    #[test]
    fn claims_and_services_are_counted_by_class_and_port() {
        let mut used = Usage::default();
        let claim = json!({ "metadata": {}, "spec": { "storageClassName": "gp3", "resources": { "requests": { "storage": "5Gi" } } } });
        used.claim(&serde_json::from_value(claim).expect("a claim"));
        let service = json!({ "metadata": {}, "spec": { "type": "LoadBalancer", "ports": [{ "port": 1 }, { "port": 2 }] } });
        used.service(&serde_json::from_value(service).expect("a Service"));
        assert_eq!(
            shown(&used),
            "gp3.storageclass.storage.k8s.io/persistentvolumeclaims=1 gp3.storageclass.storage.k8s.io/requests.storage=5Gi \
             persistentvolumeclaims=1 requests.storage=5Gi services=1 services.loadbalancers=1 services.nodeports=2"
        );
    }

    #[test]
    fn limits_say_who_is_counted() {
        let kind = |group, plural| LimitedObjects::Kind { group, plural };
        assert_eq!(
            LimitedObjects::of("count/deployments.apps"),
            kind("apps", "deployments")
        );
        assert_eq!(LimitedObjects::of("secrets"), kind("", "secrets"));
        assert_eq!(LimitedObjects::of("count/pods"), kind("", "pods"));
        assert_eq!(
            LimitedObjects::of("requests.nvidia.com/gpu"),
            LimitedObjects::Pods
        );
        assert_eq!(
            LimitedObjects::of("gp3.storageclass.storage.k8s.io/requests.storage"),
            LimitedObjects::Claims
        );
        assert_eq!(LimitedObjects::of("something"), LimitedObjects::Uncounted);
    }

    #[test]
    fn a_quota_with_scopes_counts_only_the_pods_in_all_of_them() {
        let quota: ResourceQuota = serde_json::from_value(json!({
            "metadata": { "name": "q" },
            "spec": { "scopes": ["NotTerminating"], "scopeSelector": { "matchExpressions": [
                { "scopeName": "PriorityClass", "operator": "In", "values": ["high"] },
            ] } },
        }))
        .expect("a quota");
        let of = |class: &str, deadline: Value| {
            let spec = json!({ "containers": [], "priorityClassName": class, "activeDeadlineSeconds": deadline });
            in_scopes(&quota, &pod(spec, json!({})))
        };
        assert!(of("high", Value::Null) && !of("low", Value::Null) && !of("high", json!(5)));
    }

    #[test]
    fn amounts_are_written_as_the_api_writes_them() {
        let text = |limit: &str, amount| quantity(limit, amount).0;
        assert_eq!(text("cpu", 1500), "1500m");
        assert_eq!(text("limits.cpu", 2000), "2");
        assert_eq!(text("memory", 1536 << 20), "1536Mi");
        assert_eq!(text("memory", 100_000_000), "100M");
        assert_eq!(
            (text("memory", 0), text("pods", 2048)),
            ("0".into(), "2048".into())
        );
    }
}
