//! Claims of devices count towards limits of the extended resources that their classes stand for, too, but for what the pod counts for already
//! whose extended resources a claim is made for (`pkg/quota/v1/evaluator/core/resource_claims.go`).

use std::sync::Arc;

use jiff::Timestamp;
use mullion_kube_text::quantity::Quantity;
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{Amounts, CountedKind, usage::DEVICES};
use crate::request::Lookup;

const GROUP: &str = "resource.k8s.io";
/// Before the name of a class it makes the name of a resource that the class always stands for.
pub(super) const CLASS_PREFIX: &str = "deviceclass.resource.kubernetes.io/";
/// The annotation of a claim that stands for the extended resources of the pod that owns it.
const EXTENDED: &str = "resource.kubernetes.io/extended-resource-claim";

/// Returns whether a limit is on an extended resource that a DeviceClass provides.
pub(super) fn is_stood_for(lookup: &dyn Lookup, limit: &str) -> bool {
    let resource = limit.strip_prefix("requests.");
    let Some(resource) = resource.filter(|resource| resource.contains('/')) else {
        return false;
    };
    match resource.strip_prefix(CLASS_PREFIX) {
        Some(class) => class_named(lookup, class).is_some(),
        None => {
            let classes = lookup.list(GROUP, "deviceclasses", None);
            classes.iter().any(|class| explicit(class) == resource)
        }
    }
}

/// Adds the extended resources that the devices of a claim stand for.
pub(super) fn add(lookup: &dyn Lookup, claim: &Value, now: Timestamp, used: &mut Amounts) {
    let mut extended = Amounts::new();
    for (name, amount) in &*used {
        let Some(class) = name.strip_suffix(DEVICES).filter(|own| !own.is_empty()) else {
            continue;
        };
        extended.insert(format!("requests.{CLASS_PREFIX}{class}"), amount.clone());
        let known = class_named(lookup, class);
        let resource = known.as_deref().map(explicit).unwrap_or_default();
        if !resource.is_empty() {
            extended.insert(format!("requests.{resource}"), amount.clone());
        }
    }
    if extended.is_empty() {
        return;
    }
    let of_pod = pod_of(lookup, claim).map(|pod| CountedKind::named("", "pods").usage(&pod, now));
    let zero = Quantity::from_integer(0);
    for (name, amount) in extended {
        let counted = of_pod.as_ref().and_then(|of_pod| of_pod.get(&name));
        let left = amount.minus(counted.unwrap_or(&zero));
        if left > zero {
            used.insert(name, left);
        }
    }
}

fn class_named(lookup: &dyn Lookup, name: &str) -> Option<Arc<Value>> {
    lookup.find(GROUP, "deviceclasses", None, name)
}

fn explicit(class: &Value) -> &str {
    class["spec"].text("extendedResourceName")
}

/// Returns the UID and the name of the pod whose extended resources the claim is for.
fn owner(claim: &Value) -> Option<(&str, &str)> {
    let metadata = &claim["metadata"];
    if metadata["annotations"].text(EXTENDED) != "true" {
        return None;
    }
    let mut owners = metadata.items("ownerReferences").iter();
    let owner = owners.find(|own| own["controller"] == true)?;
    let is_pod = owner.text("kind") == "Pod" && owner.text("apiVersion") == "v1";
    is_pod.then(|| (owner.text("uid"), owner.text("name")))
}

/// Returns the pod whose extended resources a claim is for. A pod whose status does not name its claim has at most one, the oldest.
fn pod_of(lookup: &dyn Lookup, claim: &Value) -> Option<Arc<Value>> {
    let (uid, name) = owner(claim)?;
    let metadata = &claim["metadata"];
    let namespace = Some(metadata.text("namespace"));
    let pod = lookup.find("", "pods", namespace, name)?;
    // Another pod of the same name, made after the owner was deleted.
    if pod["metadata"].text("uid") != uid {
        return None;
    }
    let is_first = match pod["status"].field("extendedResourceClaimStatus") {
        Some(status) => status.text("resourceClaimName") == metadata.text("name"),
        None => {
            let age = |own: &Value| {
                let (created, name) = (own.text("creationTimestamp"), own.text("name"));
                (created.to_owned(), name.to_owned())
            };
            let claims = lookup.list(GROUP, "resourceclaims", namespace);
            let mut own = claims
                .iter()
                .filter(|other| owner(other).is_some_and(|own| own.0 == uid));
            own.all(|other| age(&other["metadata"]) >= age(metadata))
        }
    };
    is_first.then_some(pod)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The DeviceClass `gpu`, some claims, and a pod or none.
    struct World {
        class: Arc<Value>,
        claims: Vec<Arc<Value>>,
        pod: Option<Arc<Value>>,
    }

    impl Lookup for World {
        fn find(&self, _: &str, plural: &str, _: Option<&str>, name: &str) -> Option<Arc<Value>> {
            match plural {
                "deviceclasses" => (name == "gpu").then(|| Arc::clone(&self.class)),
                _ => self.pod.clone(),
            }
        }

        fn list(&self, _: &str, plural: &str, _: Option<&str>) -> Vec<Arc<Value>> {
            match plural {
                "deviceclasses" => vec![Arc::clone(&self.class)],
                _ => self.claims.clone(),
            }
        }
    }

    fn claim(name: &str, count: i64, pod: Option<&str>) -> Arc<Value> {
        let exactly =
            json!({ "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count });
        let mut claim = json!({
            "metadata": { "name": name, "namespace": "ns", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "devices": { "requests": [{ "name": "r", "exactly": exactly }] } },
        });
        if let Some(pod) = pod {
            claim["metadata"]["annotations"] = json!({ EXTENDED: "true" });
            let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": pod, "uid": pod, "controller": true });
            claim["metadata"]["ownerReferences"] = json!([owner]);
        }
        Arc::new(claim)
    }

    fn pod(status: Value) -> Option<Arc<Value>> {
        let requests = json!({ "requests": { "d.com/gpu": "2" } });
        Some(Arc::new(json!({
            "metadata": { "name": "p", "uid": "p" },
            "spec": { "containers": [{ "name": "c", "resources": requests }] },
            "status": status,
        })))
    }

    #[test]
    fn a_claim_counts_for_what_its_class_stands_for_unless_its_pod_does() {
        let class = json!({ "metadata": { "name": "gpu" }, "spec": { "extendedResourceName": "d.com/gpu" } });
        let mut world = World {
            class: Arc::new(class),
            claims: vec![
                claim("plain", 3, None),
                claim("a", 2, Some("p")),
                claim("b", 2, Some("p")),
            ],
            pod: None,
        };
        let implicit = "requests.deviceclass.resource.kubernetes.io/gpu";
        assert!(is_stood_for(&world, implicit) && is_stood_for(&world, "requests.d.com/gpu"));
        assert!(!is_stood_for(&world, "requests.d.com/other"));
        let counted = |world: &World, index: usize| {
            let kind = CountedKind::named(GROUP, "resourceclaims");
            let used = kind.used_by(world, &world.claims[index], Timestamp::UNIX_EPOCH);
            let of = |name: &str| used.get(name).map_or(0, Quantity::value);
            (of("requests.d.com/gpu"), of(implicit))
        };
        assert_eq!(counted(&world, 0), (3, 3));
        assert_eq!(counted(&world, 1), (2, 2), "there is no such pod");
        world.pod = pod(json!({}));
        assert_eq!(counted(&world, 1), (0, 2), "the first of the two");
        assert_eq!(counted(&world, 2), (2, 2));
        world.pod = pod(
            json!({ "extendedResourceClaimStatus": { "resourceClaimName": "b", "requestMappings": [] } }),
        );
        assert_eq!(counted(&world, 1), (2, 2));
        assert_eq!(counted(&world, 2), (0, 2));
    }
}
