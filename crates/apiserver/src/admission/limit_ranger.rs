//! LimitRanger: gives containers the namespace's default amounts, and refuses pods and claims that ask for too much or too little.

use std::collections::BTreeSet;

use mullion_kinds::{
    podspec::totals::{self, Totals},
    request::Ctx,
};
use mullion_kube_text::{quantity::Quantity, status::Status};
use mullion_schema::tree::{Tree, object_at};
use serde_json::{Map, Value};

use super::{Action, Operation, Plugin, Request};

/// kube-apiserver: LimitRanger.
pub(super) struct LimitRanger;

const ANNOTATION: &str = "kubernetes.io/limit-ranger";
/// The greatest value whose thousandths still fit.
const MAX_MILLI: i64 = i64::MAX / 1000;

impl Plugin for LimitRanger {
    fn name(&self) -> &'static str {
        "LimitRanger"
    }

    fn handles(&self, action: &Action<'_>) -> bool {
        match action.subresource {
            Some("resize") => action.operation == Operation::Update && action.is("", "pods"),
            _ => action.creates("", "pods") || action.writes("", "persistentvolumeclaims"),
        }
    }

    fn mutate(&self, ctx: &Ctx<'_>, request: &mut Request<'_>) -> Result<(), Status> {
        // Defaults are for new pods alone: a resize must not set amounts that the pod runs without.
        if request.action.resource.plural == "pods" && request.old.is_none() {
            for range in ctx.lookup.list("", "limitranges", request.namespace) {
                default_pod(request.object, &range);
            }
        }
        Ok(())
    }

    fn validate(&self, ctx: &Ctx<'_>, request: &Request<'_>) -> Result<(), Status> {
        if request
            .old
            // kube-apiserver ignores objects that are being deleted: an update that removes a finalizer must not fail on a new limit.
            .is_some_and(|old| old["metadata"].has("deletionTimestamp"))
        {
            return Ok(());
        }
        for range in ctx.lookup.list("", "limitranges", request.namespace) {
            let mut found = Vec::new();
            for limit in range["spec"].items("limits") {
                check(request, limit, &mut found);
            }
            match each_once(found).as_slice() {
                [] => {}
                [one] => return Err(request.forbidden(one)),
                several => return Err(request.forbidden(&format!("[{}]", several.join(", ")))),
            }
        }
        Ok(())
    }
}

/// Removes repeated messages, which several containers with the same violation cause.
fn each_once(mut found: Vec<String>) -> Vec<String> {
    let mut told = BTreeSet::new();
    found.retain(|text| told.insert(text.clone()));
    found
}

fn check(request: &Request<'_>, limit: &Value, found: &mut Vec<String>) {
    let kind = limit.text("type");
    match (&*request.action.resource.plural, kind) {
        ("pods", "Container") => {
            for list in ["containers", "initContainers"] {
                for container in request.object["spec"].items(list) {
                    let resources = &container["resources"];
                    let (requests, limits) = (
                        totals::list(&resources["requests"]),
                        totals::list(&resources["limits"]),
                    );
                    bounds(limit, &requests, &limits, found);
                }
            }
        }
        ("pods", "Pod") => {
            let spec = &request.object["spec"];
            bounds(
                limit,
                &totals::pod_requests(spec),
                &totals::pod_limits(spec),
                found,
            );
        }
        ("persistentvolumeclaims", "PersistentVolumeClaim") => {
            claim(limit, &request.object["spec"]["resources"], found);
        }
        _ => {}
    }
}

fn default_pod(pod: &mut Value, range: &Value) {
    let (mut limits, mut requests) = (Map::new(), Map::new());
    for item in range["spec"].items("limits") {
        if item.text("type") == "Container" {
            let copy = |from: &str, to: &mut Map<String, Value>| {
                to.extend(
                    item.entries(from)
                        .map(|(name, amount)| (name.to_owned(), amount.clone())),
                );
            };
            copy("default", &mut limits);
            copy("defaultRequest", &mut requests);
        }
    }
    let mut said = Vec::new();
    for (list, what) in [
        ("containers", "container"),
        ("initContainers", "init container"),
    ] {
        let containers = pod
            .get_mut("spec")
            .and_then(|spec| spec.get_mut(list))
            .and_then(Value::as_array_mut);
        for container in containers
            .into_iter()
            .flatten()
            .filter_map(Value::as_object_mut)
        {
            let name = container
                .get("name")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned();
            for (list, amounts, word) in [
                ("limits", &limits, "limit"),
                ("requests", &requests, "request"),
            ]
            .into_iter()
            .rev()
            {
                let set = fill(container, list, amounts);
                if !set.is_empty() {
                    said.push(format!("{} {word} for {what} {name}", set.join(", ")));
                }
            }
        }
    }
    if !said.is_empty() {
        pod["metadata"]["annotations"][ANNOTATION] =
            format!("LimitRanger plugin set: {}", said.join("; ")).into();
    }
}

/// Adds the amounts that a container does not name itself, and returns their sorted names.
fn fill(
    container: &mut Map<String, Value>,
    list: &str,
    amounts: &Map<String, Value>,
) -> Vec<String> {
    let mut set = Vec::new();
    for (name, amount) in amounts {
        let given = object_at(object_at(container, "resources"), list);
        if !given.contains_key(name) {
            given.insert(name.clone(), amount.clone());
            set.push(name.clone());
        }
    }
    set.sort();
    set
}

/// Returns the amounts of a list of a limit by resource.
fn enforced<'a>(limit: &'a Value, list: &str) -> Vec<(&'a str, Quantity)> {
    totals::list(&limit[list]).into_iter().collect()
}

fn bounds(limit: &Value, requests: &Totals<'_>, limits: &Totals<'_>, found: &mut Vec<String>) {
    let kind = limit.text("type");
    for (name, bound) in enforced(limit, "min") {
        found.extend(below(
            kind,
            name,
            &bound,
            requests.get(name),
            limits.get(name),
        ));
    }
    for (name, bound) in enforced(limit, "max") {
        let (request, limit) = (requests.get(name), limits.get(name));
        let head = format!("maximum {name} usage per {kind} is {bound}");
        match (request, limit) {
            // kube-apiserver's maxConstraint demands a limit where there is a maximum, even if the request is below it.
            (_, None) => found.push(format!("{head}.  No limit is specified")),
            (_, Some(limit)) if *limit > bound => {
                found.push(format!("{head}, but limit is {limit}"));
            }
            (Some(request), _) if *request > bound => {
                found.push(format!("{head}, but request is {request}"));
            }
            _ => {}
        }
    }
    for (name, most) in enforced(limit, "maxLimitRequestRatio") {
        let head = format!("{name} max limit to request ratio per {kind} is {most}");
        let positive = |amount: Option<&Quantity>| amount.filter(|a| !a.is_zero()).cloned();
        let (request, limit) = (positive(requests.get(name)), positive(limits.get(name)));
        match (request, limit) {
            (None, _) => found.push(format!(
                "{head}, but no request is specified or request is 0"
            )),
            (_, None) => found.push(format!("{head}, but no limit is specified or limit is 0")),
            (Some(request), Some(limit)) => {
                let ratio = ratio(&request, &limit);
                if ratio > most.milli_value() as f64 / 1000.0 {
                    found.push(format!("{head}, but provided ratio is {ratio:.6}"));
                }
            }
        }
    }
}

/// Returns the limit divided by the request, computed in thousandths if both fit.
fn ratio(request: &Quantity, limit: &Quantity) -> f64 {
    if request.value() <= MAX_MILLI && limit.value() <= MAX_MILLI {
        limit.milli_value() as f64 / request.milli_value() as f64
    } else {
        limit.value() as f64 / request.value() as f64
    }
}

fn below(
    kind: &str,
    name: &str,
    bound: &Quantity,
    request: Option<&Quantity>,
    limit: Option<&Quantity>,
) -> Option<String> {
    let head = format!("minimum {name} usage per {kind} is {bound}");
    match (request, limit) {
        (None, _) => Some(format!("{head}.  No request is specified")),
        (Some(request), _) if request < bound => Some(format!("{head}, but request is {request}")),
        (_, Some(limit)) if limit < bound => Some(format!("{head}, but limit is {limit}")),
        _ => None,
    }
}

/// Checks the requests of a PersistentVolumeClaim, which has no limits.
fn claim(limit: &Value, resources: &Value, found: &mut Vec<String>) {
    let kind = limit.text("type");
    let requests = totals::list(&resources["requests"]);
    for (name, bound) in enforced(limit, "min") {
        found.extend(below(kind, name, &bound, requests.get(name), None));
    }
    for (name, bound) in enforced(limit, "max") {
        let head = format!("maximum {name} usage per {kind} is {bound}");
        match requests.get(name) {
            None => found.push(format!("{head}.  No request is specified")),
            Some(request) if *request > bound => {
                found.push(format!("{head}, but request is {request}"));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn containers_get_what_they_do_not_name_and_the_pod_says_so() {
        let range = json!({"spec": {"limits": [{"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "100m", "memory": "1Gi"}}]}});
        let mut pod = json!({"metadata": {}, "spec": {"containers": [{"name": "a", "resources": {"limits": {"cpu": "2"}}}]}});
        default_pod(&mut pod, &range);
        assert_eq!(
            pod["spec"]["containers"][0]["resources"],
            json!({"limits": {"cpu": "2"}, "requests": {"cpu": "100m", "memory": "1Gi"}})
        );
        assert_eq!(
            pod["metadata"]["annotations"][ANNOTATION],
            "LimitRanger plugin set: cpu, memory request for container a"
        );
    }

    #[test]
    fn what_several_containers_do_wrong_alike_is_said_once() {
        let limit = json!({"type": "Container", "max": {"cpu": "1"}});
        let amounts = json!({"cpu": "2"});
        let amounts = totals::list(&amounts);
        let mut found = Vec::new();
        bounds(&limit, &amounts, &amounts, &mut found);
        bounds(&limit, &amounts, &amounts, &mut found);
        assert_eq!(
            each_once(found),
            ["maximum cpu usage per Container is 1, but limit is 2"]
        );
    }

    #[test]
    fn a_bound_without_an_amount_to_compare_is_broken() {
        let limit = json!({"type": "Pod", "min": {"cpu": "1"}, "max": {"cpu": "2"}});
        let mut found = Vec::new();
        bounds(&limit, &Totals::new(), &Totals::new(), &mut found);
        assert_eq!(
            found,
            [
                "minimum cpu usage per Pod is 1.  No request is specified",
                "maximum cpu usage per Pod is 2.  No limit is specified"
            ]
        );
    }
}
