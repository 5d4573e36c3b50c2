//! Sums the requests of a pod as kube-scheduler's NodeResourcesFit does, in plain numbers.
//!
//! CPU is in millicores, everything else in whole units, both rounded up.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Pod, PodSpec, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use mullion_engine::model::Quantity;

use super::convert::status_resources::StatusResources;

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, i64>;

/// Returns `quantity` of the resource `name` as a number; zero if it does not parse, which the API server rules
/// out.
pub fn amount(name: &str, quantity: &ApiQuantity) -> i64 {
    let Ok(quantity) = quantity.0.parse::<Quantity>() else {
        return 0;
    };
    if name == "cpu" {
        quantity.milli_value()
    } else {
        quantity.value()
    }
}

/// Converts a resource map to plain numbers.
pub fn amounts(map: Option<&BTreeMap<String, ApiQuantity>>) -> Amounts {
    map.into_iter()
        .flatten()
        .map(|(name, quantity)| (name.clone(), amount(name, quantity)))
        .collect()
}

/// Returns the requests of a pod that its node must reserve: the larger of the sum of its app containers and each
/// init container (with the sidecars started before it), replaced by the pod's own requests where set, plus its
/// overhead.
pub fn pod_requests(spec: &PodSpec) -> Amounts {
    total(spec, |resources| resources.requests.as_ref())
}

/// Returns [`pod_requests`] of a pod that may be in a resize: per resource the largest of its requested, actual and
/// allocated amounts.
pub fn held_requests(pod: &Pod) -> Amounts {
    let Some(spec) = &pod.spec else {
        return Amounts::new();
    };
    let Some(held) = StatusResources::of(pod) else {
        return pod_requests(spec);
    };
    let hold = |wanted: Option<&ResourceRequirements>, amounts_held: Option<[Option<_>; 2]>| {
        let wanted = amounts(wanted.and_then(|wanted| wanted.requests.as_ref()));
        // The node cannot grant an infeasible resize, so only what the container holds is taken from the
        // node.
        let mut sum = if amounts_held.is_some() && held.infeasible {
            Amounts::new()
        } else {
            wanted
        };
        for held in amounts_held.into_iter().flatten() {
            maximize(&mut sum, &amounts(held));
        }
        sum
    };
    let of = |container: &Container| {
        let held = held.of_container(&container.name);
        hold(container.resources.as_ref(), held)
    };
    let asked = amounts(
        spec.resources
            .as_ref()
            .and_then(|own| own.requests.as_ref()),
    );
    let mut own = hold(spec.resources.as_ref(), held.of_pod());
    // Of the amounts for the whole pod, only resources that its spec requests count, even if the actual amount is
    // zero.
    own.retain(|name, _| asked.contains_key(name));
    for name in asked.keys() {
        own.entry(name.clone()).or_default();
    }
    total_of(spec, of, own)
}

/// Returns whether a pod's actual resources differ from those it requests.
pub fn is_resized(pod: &Pod) -> bool {
    StatusResources::of(pod).is_some()
}

/// Returns the limits of a pod, summed as in [`pod_requests`].
pub fn pod_limits(spec: &PodSpec) -> Amounts {
    total(spec, |resources| resources.limits.as_ref())
}

fn total(
    spec: &PodSpec,
    side: fn(&ResourceRequirements) -> Option<&BTreeMap<String, ApiQuantity>>,
) -> Amounts {
    let of = |container: &Container| amounts(container.resources.as_ref().and_then(side));
    total_of(spec, of, amounts(spec.resources.as_ref().and_then(side)))
}

fn total_of(spec: &PodSpec, of: impl Fn(&Container) -> Amounts, own: Amounts) -> Amounts {
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for container in spec.init_containers.iter().flatten() {
        let mut step = of(container);
        if container.restart_policy.as_deref() == Some("Always") {
            // A sidecar keeps running, so it counts with every init container after it and with the app
            // containers.
            add(&mut sidecars, &step);
            step = sidecars.clone();
        } else {
            add(&mut step, &sidecars);
        }
        maximize(&mut peak, &step);
    }
    let mut total = sidecars;
    for container in &spec.containers {
        add(&mut total, &of(container));
    }
    maximize(&mut total, &peak);
    // The pod-level requests replace the sums of the containers, resource by resource.
    total.extend(own);
    // The overhead is the runtime's, so it comes on top of pod-level requests too.
    add(&mut total, &amounts(spec.overhead.as_ref()));
    total
}

/// Adds `other` to `sum`.
pub fn add(sum: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let entry = sum.entry(name.clone()).or_default();
        *entry = entry.saturating_add(*amount);
    }
}

fn maximize(sum: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let entry = sum.entry(name.clone()).or_default();
        *entry = (*entry).max(*amount);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn requests(spec: serde_json::Value) -> Amounts {
        pod_requests(&serde_json::from_value(spec).expect("a pod spec"))
    }

    fn container(cpu: &str) -> serde_json::Value {
        json!({ "name": "c", "resources": { "requests": { "cpu": cpu } } })
    }

    fn sidecar(cpu: &str) -> serde_json::Value {
        json!({ "name": "s", "restartPolicy": "Always", "resources": { "requests": { "cpu": cpu } } })
    }

    #[test]
    fn init_containers_count_by_their_largest_and_sidecars_add_to_what_follows() {
        let cases = [
            (
                json!({ "containers": [container("1"), container("500m")] }),
                1_500,
            ),
            (
                json!({ "initContainers": [container("8"), container("3")], "containers": [container("1")] }),
                8_000,
            ),
            (
                json!({ "initContainers": [sidecar("4")], "containers": [container("5")] }),
                9_000,
            ),
            (
                json!({ "initContainers": [sidecar("1"), container("6"), sidecar("2")], "containers": [container("1")] }),
                7_000,
            ),
            (
                json!({ "containers": [container("1")], "overhead": { "cpu": "250m" } }),
                1_250,
            ),
            (
                json!({ "containers": [container("1")], "resources": { "requests": { "cpu": "3" } } }),
                3_000,
            ),
        ];
        for (spec, cpu) in cases {
            assert_eq!(requests(spec.clone()).get("cpu"), Some(&cpu), "{spec}");
        }
    }
}
