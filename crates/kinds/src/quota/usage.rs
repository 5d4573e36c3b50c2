//! Counts what one object uses, by the rules of its kind: a pod its resources while it runs, a claim its storage, a claim of devices these by
//! their class, a Service its ports and load balancers, and every object one of its `count/...`.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use mullion_kube_text::{quantity::Quantity, validation::resources};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{Amounts, extended, extended::CLASS_PREFIX};
use crate::{Resource, persistentvolumeclaims, podspec::totals, request::Lookup};

/// Computing resources that, once limited, every container must name.
const DEMANDED: [&str; 6] = [
    "cpu",
    "memory",
    "requests.cpu",
    "requests.memory",
    "limits.cpu",
    "limits.memory",
];
/// Further names for what pods use.
const OF_PODS: [&str; 4] = [
    "ephemeral-storage",
    "requests.ephemeral-storage",
    "limits.ephemeral-storage",
    "pods",
];
/// Kinds that have a short name beside `count/...`.
const SHORT: [&str; 4] = [
    "configmaps",
    "resourcequotas",
    "replicationcontrollers",
    "secrets",
];
const BY_CLASS: &str = ".storageclass.storage.k8s.io/";
pub(super) const DEVICES: &str = ".deviceclass.resource.k8s.io/devices";
/// A request for all devices may get so many (resource.k8s.io/v1: AllocationResultsMaxSize).
const MOST_DEVICES: i64 = 32;

/// A kind as quotas count it.
#[derive(Clone, Copy, Debug)]
pub struct CountedKind<'a> {
    group: &'a str,
    plural: &'a str,
}

impl<'a> CountedKind<'a> {
    /// Returns the kind of a served resource.
    pub fn of(resource: &'a Resource) -> Self {
        CountedKind::named(&resource.group, &resource.plural)
    }

    /// Returns the kind with this group, which is empty for core kinds, and plural name.
    pub fn named(group: &'a str, plural: &'a str) -> Self {
        CountedKind { group, plural }
    }

    /// Returns the kind whose objects a limit counts one by one, such as `count/deployments.apps` or `configmaps`.
    pub fn counted_by(limit: &'a str) -> Option<Self> {
        let kind = limit.strip_prefix("count/");
        let kind = kind.or_else(|| SHORT.contains(&limit).then_some(limit))?;
        let (plural, group) = kind.split_once('.').unwrap_or((kind, ""));
        Some(CountedKind { group, plural })
    }

    /// Returns the API group, which is empty for core kinds.
    pub fn group(&self) -> &'a str {
        self.group
    }

    /// Returns the name of the kind in paths.
    pub fn plural(&self) -> &'a str {
        self.plural
    }

    /// Returns the plural of a core kind, or an empty text for another kind, which has no rules but those about counts and devices.
    pub(super) fn core_plural(&self) -> &str {
        if self.group.is_empty() {
            self.plural
        } else {
            ""
        }
    }

    pub(super) fn is_of_devices(&self) -> bool {
        self.group == "resource.k8s.io" && self.plural == "resourceclaims"
    }

    /// Returns the name under which a quota counts the objects of the kind, such as `count/deployments.apps`.
    fn count(&self) -> String {
        if self.group.is_empty() {
            format!("count/{}", self.plural)
        } else {
            format!("count/{}.{}", self.plural, self.group)
        }
    }

    /// Returns those of the limits towards which objects of the kind count.
    pub fn limits<'l>(
        &self,
        lookup: &dyn Lookup,
        limits: impl IntoIterator<Item = &'l str>,
    ) -> Vec<&'l str> {
        let counts = |name: &&str| {
            self.is_counted_as(name) || self.is_of_devices() && extended::is_stood_for(lookup, name)
        };
        limits.into_iter().filter(counts).collect()
    }

    fn is_counted_as(&self, name: &str) -> bool {
        if name == self.count() || self.is_of_devices() && name.ends_with(DEVICES) {
            return true;
        }
        match self.core_plural() {
            "pods" => {
                let bare = name.strip_prefix("requests.");
                DEMANDED.contains(&name)
                    || OF_PODS.contains(&name)
                    || resources::is_huge_page(bare.unwrap_or(name))
                    || bare.is_some_and(|bare| {
                        !resources::is_native(name) || bare.starts_with(CLASS_PREFIX)
                    })
            }
            "persistentvolumeclaims" => {
                matches!(name, "persistentvolumeclaims" | "requests.storage")
                    || name.split_once(BY_CLASS).is_some_and(|(_, what)| {
                        matches!(what, "persistentvolumeclaims" | "requests.storage")
                    })
            }
            "services" => matches!(
                name,
                "services" | "services.nodeports" | "services.loadbalancers"
            ),
            plural => SHORT.contains(&plural) && name == plural,
        }
    }

    /// Returns the limited resources that a pod's containers must set but do not, as text for the error.
    pub fn missing(&self, limited: &[&str], object: &Value) -> Option<String> {
        let spec = &object["spec"];
        // Amounts for the whole pod cover containers that name none.
        if self.core_plural() != "pods" || totals::has_pod_level(spec) {
            return None;
        }
        let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for list in ["containers", "initContainers"] {
            for container in spec.items(list) {
                let resources = &container["resources"];
                let named = compute(
                    &totals::list(&resources["requests"]),
                    &totals::list(&resources["limits"]),
                );
                for name in limited.iter().filter(|name| DEMANDED.contains(name)) {
                    if !named.contains_key(*name) {
                        missing
                            .entry(*name)
                            .or_default()
                            .insert(container.text("name"));
                    }
                }
            }
        }
        if missing.is_empty() {
            return None;
        }
        let parts: Vec<String> = missing
            .into_iter()
            .map(|(name, containers)| {
                let containers: Vec<&str> = containers.into_iter().collect();
                format!("{name} for: {}", containers.join(","))
            })
            .collect();
        Some(format!("must specify {}", parts.join("; ")))
    }

    /// Returns the amounts that an object uses. For a claim of devices, `lookup` finds their classes and the pod that the claim is for.
    pub fn used_by(&self, lookup: &dyn Lookup, object: &Value, now: Timestamp) -> Amounts {
        let mut used = self.usage(object, now);
        if self.is_of_devices() {
            extended::add(lookup, object, now, &mut used);
        }
        used
    }

    /// Returns the amounts that an object uses, but for the extended resources that its devices stand for.
    pub(super) fn usage(&self, object: &Value, now: Timestamp) -> Amounts {
        let one = || Quantity::from_integer(1);
        let mut used = Amounts::new();
        used.insert(self.count(), one());
        if self.is_of_devices() {
            devices(object, &mut used);
        }
        match self.core_plural() {
            // kube-apiserver (QuotaV1Pod): a pod that has ended counts under `count/pods` until it is deleted, but uses nothing.
            "pods" if runs(object, now) => {
                let spec = &object["spec"];
                used.extend(compute(
                    &totals::charged_requests(spec),
                    &totals::charged_limits(spec),
                ));
                used.insert("pods".into(), one());
            }
            "persistentvolumeclaims" => claim(object, &mut used),
            "services" => service(&object["spec"], &mut used),
            plural if SHORT.contains(&plural) => {
                used.insert(plural.to_owned(), one());
            }
            _ => {}
        }
        used
    }
}

/// Returns requests and limits under the names that quotas have for them.
fn compute(requests: &totals::Totals<'_>, limits: &totals::Totals<'_>) -> Amounts {
    let mut used = Amounts::new();
    for (name, amount) in requests {
        let plain = matches!(*name, "cpu" | "memory" | "ephemeral-storage");
        if plain || resources::is_huge_page(name) {
            used.insert((*name).to_owned(), amount.clone());
        }
        let extended = resources::is_extended(name) || name.starts_with(CLASS_PREFIX);
        if plain || resources::is_huge_page(name) || extended {
            used.insert(format!("requests.{name}"), amount.clone());
        }
    }
    for (name, amount) in limits {
        if matches!(*name, "cpu" | "memory" | "ephemeral-storage") {
            used.insert(format!("limits.{name}"), amount.clone());
        }
    }
    used
}

/// Returns whether a pod still uses resources: it has not ended, and its grace period is not over.
fn runs(pod: &Value, now: Timestamp) -> bool {
    if matches!(pod["status"].text("phase"), "Failed" | "Succeeded") {
        return false;
    }
    let metadata = &pod["metadata"];
    let deleted = metadata.text("deletionTimestamp").parse::<Timestamp>();
    let grace = metadata.integer("deletionGracePeriodSeconds");
    match (deleted, grace) {
        (Ok(deleted), Some(seconds)) => now <= deleted + SignedDuration::from_secs(seconds),
        _ => true,
    }
}

/// Adds the devices of a claim by their class; of alternatives, the largest number counts.
fn devices(claim: &Value, used: &mut Amounts) {
    let number = |request: &Value| match request.text("allocationMode") {
        "ExactCount" => request.integer("count").unwrap_or(0),
        // How many there are is not known before the allocation, so the most that a claim may get is charged.
        "All" => MOST_DEVICES,
        _ => 0,
    };
    for request in claim["spec"]["devices"].items("requests") {
        let mut most: BTreeMap<&str, i64> = BTreeMap::new();
        for wanted in request
            .field("exactly")
            .into_iter()
            .chain(request.items("firstAvailable"))
        {
            let known = most.entry(wanted.text("deviceClassName")).or_default();
            *known = number(wanted).max(*known);
        }
        for (class, number) in most {
            let amount = used
                .entry(format!("{class}{DEVICES}"))
                .or_insert_with(|| Quantity::from_integer(0));
            *amount = amount.plus(&Quantity::from_integer(number));
        }
    }
}

fn claim(claim: &Value, used: &mut Amounts) {
    let one = Quantity::from_integer(1);
    let class = persistentvolumeclaims::class(claim);
    used.insert("persistentvolumeclaims".into(), one.clone());
    if !class.is_empty() {
        used.insert(format!("{class}{BY_CLASS}persistentvolumeclaims"), one);
    }
    let amount = |list: &Value| list.field("storage").map(totals::quantity);
    let requested = amount(&claim["spec"]["resources"]["requests"]);
    let allocated = amount(&claim["status"]["allocatedResources"]);
    // A claim whose request was reduced again still holds what was allocated to it.
    let Some(storage) = requested.max(allocated) else {
        return;
    };
    // kube-apiserver (RoundUp) counts whole bytes.
    let storage = if storage.is_integer() {
        storage
    } else {
        Quantity::from_integer(storage.value())
    };
    if !class.is_empty() {
        used.insert(
            format!("{class}{BY_CLASS}requests.storage"),
            storage.clone(),
        );
    }
    used.insert("requests.storage".into(), storage);
}

fn service(spec: &Value, used: &mut Amounts) {
    let ports = spec.items("ports");
    let balanced = spec.text("type") == "LoadBalancer";
    let node_ports = match spec.text("type") {
        "NodePort" => ports.len(),
        "LoadBalancer" if spec["allocateLoadBalancerNodePorts"] == false => ports
            .iter()
            .filter(|port| port.integer("nodePort").unwrap_or(0) != 0)
            .count(),
        "LoadBalancer" => ports.len(),
        _ => 0,
    };
    let node_ports = i64::try_from(node_ports).unwrap_or(i64::MAX);
    for (name, count) in [
        ("services", 1),
        ("services.nodeports", node_ports),
        ("services.loadbalancers", i64::from(balanced)),
    ] {
        used.insert(name.to_owned(), Quantity::from_integer(count));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(counted: &CountedKind<'_>, object: &Value) -> String {
        let parts: Vec<String> = counted
            .usage(object, Timestamp::UNIX_EPOCH)
            .iter()
            .map(|(name, amount)| format!("{name}={amount}"))
            .collect();
        parts.join(" ")
    }

    #[test]
    fn every_kind_is_counted_by_its_own_rules() {
        let service =
            json!({"spec": {"type": "LoadBalancer", "ports": [{"port": 1}, {"port": 2}]}});
        assert_eq!(
            shown(&CountedKind::named("", "services"), &service),
            "count/services=1 services=1 services.loadbalancers=1 services.nodeports=2"
        );
        let claim = json!({"spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}}});
        assert_eq!(
            shown(&CountedKind::named("", "persistentvolumeclaims"), &claim),
            "count/persistentvolumeclaims=1 fast.storageclass.storage.k8s.io/persistentvolumeclaims=1 \
             fast.storageclass.storage.k8s.io/requests.storage=1Gi persistentvolumeclaims=1 requests.storage=1Gi"
        );
        assert_eq!(
            shown(&CountedKind::named("apps", "deployments"), &json!({})),
            "count/deployments.apps=1"
        );
        let ended = json!({"spec": {}, "status": {"phase": "Failed"}});
        assert_eq!(
            shown(&CountedKind::named("", "pods"), &ended),
            "count/pods=1"
        );
    }

    #[test]
    fn a_pod_uses_what_it_asks_for_while_it_runs() {
        let resources = json!({
            "requests": { "cpu": "250m", "memory": "128M", "example.com/card": "2", "hugepages-2Mi": "4Mi" },
            "limits": { "memory": "1536Mi", "example.com/card": "2" },
        });
        let mut pod = json!({ "metadata": {}, "spec": { "containers": [{ "name": "c", "resources": resources }] } });
        let pods = CountedKind::named("", "pods");
        let all = "count/pods=1 cpu=250m hugepages-2Mi=4Mi limits.memory=1536Mi memory=128M pods=1 requests.cpu=250m \
                   requests.example.com/card=2 requests.hugepages-2Mi=4Mi requests.memory=128M";
        assert_eq!(shown(&pods, &pod), all);
        pod["metadata"] =
            json!({ "deletionTimestamp": "1970-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0 });
        assert_eq!(shown(&pods, &pod), all, "its grace period ends now");
        pod["metadata"]["deletionTimestamp"] = json!("1969-12-31T23:59:59Z");
        assert_eq!(shown(&pods, &pod), "count/pods=1");
    }

    #[test]
    fn devices_are_counted_by_class_with_the_most_of_alternatives() {
        let exact = |class: &str, count: i64| json!({ "deviceClassName": class, "allocationMode": "ExactCount", "count": count });
        let claim = json!({ "spec": { "devices": { "requests": [
            { "name": "a", "exactly": exact("gpu", 2) },
            { "name": "b", "exactly": { "deviceClassName": "nic", "allocationMode": "All" } },
            { "name": "c", "firstAvailable": [exact("gpu", 1), exact("gpu", 4)] },
        ] } } });
        assert_eq!(
            shown(
                &CountedKind::named("resource.k8s.io", "resourceclaims"),
                &claim
            ),
            "count/resourceclaims.resource.k8s.io=1 gpu.deviceclass.resource.k8s.io/devices=6 nic.deviceclass.resource.k8s.io/devices=32"
        );
    }

    #[test]
    fn a_limit_says_whose_objects_count() {
        let counts = |group: &str, plural: &str, limit: &str| {
            CountedKind::named(group, plural).is_counted_as(limit)
        };
        assert!(counts("", "pods", "requests.nvidia.com/gpu"));
        assert!(counts("", "pods", "requests.hugepages-2Mi"));
        // Only requests of extended resources have limits: they cannot be overcommitted.
        assert!(!counts("", "pods", "limits.nvidia.com/gpu"));
        assert!(counts(
            "",
            "persistentvolumeclaims",
            "gp3.storageclass.storage.k8s.io/requests.storage"
        ));
        assert!(!counts("", "pods", "something"));
        let kind = |limit: &'static str| {
            CountedKind::counted_by(limit).map(|kind| (kind.group, kind.plural))
        };
        assert_eq!(
            kind("count/deployments.apps"),
            Some(("apps", "deployments"))
        );
        assert_eq!(kind("secrets"), Some(("", "secrets")));
        assert_eq!(kind("pods"), None);
    }

    #[test]
    fn containers_must_name_what_is_limited() {
        let pod = json!({"spec": {"containers": [{"name": "a"}, {"name": "b", "resources": {"requests": {"cpu": "1"}}}]}});
        assert_eq!(
            CountedKind::named("", "pods")
                .missing(&["pods", "cpu", "limits.memory"], &pod)
                .as_deref(),
            Some("must specify cpu for: a; limits.memory for: a,b")
        );
    }
}
