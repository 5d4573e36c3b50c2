//! Sets the defaults of resource requirements: rounds to thousandths, copies limits to requests, and computes pod-level resources.

use mullion_kube_text::{quantity::canonical_milli, validation::resources::is_huge_page};
use mullion_schema::tree::Tree;
use serde_json::{Map, Value};

use super::{resources, totals};

/// Rounds every quantity of a list up to thousandths.
pub(super) fn round_up(list: &mut Value) {
    let Some(list) = list.as_object_mut() else {
        return;
    };
    for value in list.values_mut() {
        // Only these forms can be finer than thousandths; most quantities have another one, and are not parsed.
        if let Some(text) = value
            .as_str()
            .filter(|text| text.ends_with(['n', 'u']) || text.contains(['e', 'E', '.']))
            && let Ok(rounded) = canonical_milli(text)
            && rounded != text
        {
            *value = rounded.into();
        }
    }
}

/// Rounds limits and requests like [`round_up`].
pub(super) fn round_up_requirements(requirements: &mut Value) {
    for list in ["limits", "requests"] {
        if let Some(list) = requirements.get_mut(list) {
            round_up(list);
        }
    }
}

/// Sets each missing request of a container to its limit.
pub(super) fn requests_from_limits(container: &mut Map<String, Value>) {
    let Some(resources) = container
        .get_mut("resources")
        .and_then(Value::as_object_mut)
    else {
        return;
    };
    let given = |list: &str| resources.get(list).and_then(Value::as_object);
    let requested = given("requests");
    let missing: Vec<(String, Value)> = given("limits")
        .into_iter()
        .flatten()
        .filter(|(name, _)| requested.is_none_or(|requests| !requests.contains_key(*name)))
        .map(|(name, limit)| (name.clone(), limit.clone()))
        .collect();
    if missing.is_empty() {
        return;
    }
    let requests = resources
        .entry("requests")
        .or_insert_with(|| Value::Object(Map::new()));
    if requests.is_null() {
        *requests = Value::Object(Map::new());
    }
    let Some(requests) = requests.as_object_mut() else {
        return;
    };
    requests.extend(missing);
}

/// Completes `spec.resources` if the author set a part of it. Runs after the defaults of containers.
pub(super) fn pod_level(spec: &mut Map<String, Value>) {
    if !spec.get("resources").is_some_and(Value::is_object) {
        return;
    }
    let mut whole = Value::Object(std::mem::take(spec));
    huge_page_limits(&mut whole);
    requests(&mut whole);
    limits(&mut whole);
    if let Value::Object(completed) = whole {
        *spec = completed;
    }
}

fn listed(spec: &Value, list: &str) -> Map<String, Value> {
    spec["resources"]
        .get(list)
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default()
}

fn store(spec: &mut Value, list: &str, quantities: Map<String, Value>) {
    if !quantities.is_empty() {
        spec["resources"][list] = Value::Object(quantities);
    }
}

/// Sets the pod's huge page limits from those of its containers, unless the pod requests huge pages itself.
fn huge_page_limits(spec: &mut Value) {
    let (mut limits, requests) = (listed(spec, "limits"), listed(spec, "requests"));
    if limits.is_empty() && requests.is_empty() {
        return;
    }
    for (name, total) in totals::container_limits(spec) {
        if is_huge_page(name) && !requests.contains_key(name) && !limits.contains_key(name) {
            limits.insert(name.to_owned(), total.to_string().into());
        }
    }
    store(spec, "limits", limits);
}

/// Defaults the requests of a pod that has pod-level limits: from the containers' requests, or from the pod's limits for resources that no
/// container requests.
fn requests(spec: &mut Value) {
    let limits = listed(spec, "limits");
    if limits.is_empty() {
        return;
    }
    let mut requests = listed(spec, "requests");
    for (name, total) in totals::container_requests(spec) {
        if resources::is_pod_level(name)
            && resources::is_overcommit_allowed(name)
            && !requests.contains_key(name)
        {
            requests.insert(name.to_owned(), total.to_string().into());
        }
    }
    for (name, limit) in limits {
        // This sets the requests of huge pages too, which must equal their limits.
        if resources::is_pod_level(&name) {
            requests.entry(name).or_insert(limit);
        }
    }
    store(spec, "requests", requests);
}

/// Defaults the limits of a pod that has pod-level requests but no limits: a resource that every container limits gets the sum.
fn limits(spec: &mut Value) {
    if !listed(spec, "limits").is_empty() || listed(spec, "requests").is_empty() {
        return;
    }
    let limited = |container: &Value, name: &str| container["resources"]["limits"].has(name);
    let mut limits = Map::new();
    for (name, total) in totals::container_limits(spec) {
        let everywhere = ["containers", "initContainers"]
            .into_iter()
            .flat_map(|list| spec.items(list))
            .all(|container| limited(container, name));
        if resources::is_pod_level(name) && resources::is_overcommit_allowed(name) && everywhere {
            limits.insert(name.to_owned(), total.to_string().into());
        }
    }
    store(spec, "limits", limits);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_are_filled_from_limits_per_resource() {
        let mut container = json!({"resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "100m"}}});
        requests_from_limits(container.as_object_mut().unwrap());
        assert_eq!(
            container["resources"]["requests"],
            json!({"cpu": "100m", "memory": "1Gi"})
        );
    }

    #[test]
    fn pod_level_requests_come_from_containers_then_from_limits() {
        let mut spec = json!({
            "resources": {"limits": {"cpu": "2", "memory": "2Gi"}},
            "containers": [{"resources": {"requests": {"cpu": "100m"}}}, {"resources": {}}],
        });
        pod_level(spec.as_object_mut().unwrap());
        assert_eq!(
            spec["resources"]["requests"],
            json!({"cpu": "100m", "memory": "2Gi"})
        );
    }

    #[test]
    fn quantities_below_thousandths_round_up() {
        let mut list = json!({"cpu": "500u", "memory": "1Gi"});
        round_up(&mut list);
        assert_eq!(list, json!({"cpu": "1m", "memory": "1Gi"}));
    }
}
