//! Computes sums of resource lists: the requests and limits of all containers of a pod.
//!
//! As in `k8s.io/component-helpers/resource`, containers add up, init containers run one after another, so that only the largest counts,
//! and sidecars (restartable init containers) add to all containers that start after them.

use std::collections::BTreeMap;

use mullion_kube_text::quantity::Quantity;
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::defaults::is_restartable_init;

/// A resource list with parsed quantities.
pub type Totals<'a> = BTreeMap<&'a str, Quantity>;

/// Parses the quantity of a stored value. An invalid one, which decoding refuses, counts as zero.
pub fn quantity(value: &Value) -> Quantity {
    match value {
        Value::String(text) => Quantity::parse(text).unwrap_or_else(|_| Quantity::from_integer(0)),
        value => Quantity::from_integer(value.as_i64().unwrap_or(0)),
    }
}

/// Returns the sum of all containers' requests.
pub(super) fn container_requests(spec: &Value) -> Totals<'_> {
    containers(spec, "requests")
}

/// Returns the sum of all containers' limits.
pub(super) fn container_limits(spec: &Value) -> Totals<'_> {
    containers(spec, "limits")
}

/// Parses a resource list.
pub fn list(list: &Value) -> Totals<'_> {
    let amounts = list.as_object().into_iter().flatten();
    amounts
        .map(|(name, amount)| (name.as_str(), quantity(amount)))
        .collect()
}

/// Returns whether the pod sets pod-level resources.
pub fn has_pod_level(spec: &Value) -> bool {
    ["requests", "limits"]
        .iter()
        .any(|list| spec["resources"].entries(list).next().is_some())
}

/// Returns a pod's requests: pod-level ones, and the sum of the containers' for all other resources.
pub fn pod_requests(spec: &Value) -> Totals<'_> {
    let mut totals = container_requests(spec);
    totals.extend(list(&spec["resources"]["requests"]));
    totals
}

/// Returns a pod's limits: pod-level ones, and the sum of the containers' for all other resources.
pub fn pod_limits(spec: &Value) -> Totals<'_> {
    let mut totals = container_limits(spec);
    totals.extend(list(&spec["resources"]["limits"]));
    totals
}

/// Returns a pod's requests including its overhead.
pub fn charged_requests(spec: &Value) -> Totals<'_> {
    let mut totals = pod_requests(spec);
    add(&mut totals, list(&spec["overhead"]).into_iter());
    totals
}

/// Returns a pod's limits, plus its overhead for the resources that have a limit.
pub fn charged_limits(spec: &Value) -> Totals<'_> {
    let mut totals = pod_limits(spec);
    let overhead = list(&spec["overhead"])
        .into_iter()
        // The overhead alone must not limit a resource that the containers may use without limit.
        .filter(|(name, _)| totals.contains_key(name))
        .collect::<Vec<_>>();
    add(&mut totals, overhead.into_iter());
    totals
}

fn containers<'a>(spec: &'a Value, list: &str) -> Totals<'a> {
    let mut running = Totals::new();
    for container in spec.items("containers") {
        add(&mut running, listed(container, list));
    }
    let mut sidecars = Totals::new();
    let mut starting = Totals::new();
    for container in spec.items("initContainers") {
        let mut step = sidecars.clone();
        add(&mut step, listed(container, list));
        if is_restartable_init(container) {
            add(&mut running, listed(container, list));
            sidecars.clone_from(&step);
        }
        raise(&mut starting, step);
    }
    raise(&mut running, starting);
    running
}

fn listed<'a>(container: &'a Value, list: &str) -> impl Iterator<Item = (&'a str, Quantity)> {
    let list = container
        .get("resources")
        .and_then(|resources| resources.get(list))
        .and_then(Value::as_object);
    list.into_iter()
        .flatten()
        .map(|(name, value)| (name.as_str(), quantity(value)))
}

fn add<'a>(totals: &mut Totals<'a>, list: impl Iterator<Item = (&'a str, Quantity)>) {
    for (name, amount) in list {
        let sum = match totals.get(name) {
            Some(total) => total.plus(&amount),
            None => amount,
        };
        totals.insert(name, sum);
    }
}

fn raise<'a>(totals: &mut Totals<'a>, list: Totals<'a>) {
    for (name, amount) in list {
        if totals.get(name).is_none_or(|total| *total < amount) {
            totals.insert(name, amount);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sidecars_add_up_and_init_containers_count_by_the_largest() {
        let container = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}}});
        let mut sidecar = container("100m");
        sidecar["restartPolicy"] = "Always".into();
        let spec = json!({"containers": [container("1"), container("500m")], "initContainers": [sidecar, container("2")]});
        assert_eq!(container_requests(&spec)["cpu"].to_string(), "2100m");
        assert!(container_limits(&spec).is_empty());
    }
}
