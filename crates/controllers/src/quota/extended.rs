//! Counts claims of devices towards quotas of the extended resources that their DeviceClasses provide. A claim that
//! was created for a pod's extended resources counts only for the excess over the pod's own count
//! (`pkg/quota/v1/evaluator/core/resource_claims.go`). Pure.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{DeviceClass, ResourceClaim},
};

use super::usage::Usage;
use crate::resource_claims::{CLASS_PREFIX, EXTENDED, pod_claims};

/// The extended resources that DeviceClasses provide.
pub(super) struct Extended {
    /// By class, the explicit extended resource in addition to the implicit one named after the class.
    explicit: BTreeMap<String, Option<String>>,
}

impl Extended {
    pub(super) fn of(classes: &[Arc<DeviceClass>]) -> Self {
        let classes = classes.iter().filter_map(|class| {
            let name = class.metadata.name.clone()?;
            Some((name, class.spec.extended_resource_name.clone()))
        });
        Self {
            explicit: classes.collect(),
        }
    }

    /// Returns whether a quota limits a resource that a class provides.
    pub(super) fn is_from_device_class(&self, limit: &str) -> bool {
        let Some(resource) = limit.strip_prefix("requests.") else {
            return false;
        };
        match resource.strip_prefix(CLASS_PREFIX) {
            Some(class) => self.explicit.contains_key(class),
            None => {
                let mut explicit = self.explicit.values().flatten();
                explicit.any(|own| own == resource)
            }
        }
    }

    /// Counts a claim. `claims` are all claims of the namespace, and `pod` finds a pod by name.
    pub(super) fn add(
        &self,
        used: &mut Usage,
        claim: &ResourceClaim,
        claims: &[ResourceClaim],
        pod: impl Fn(&str) -> Option<Arc<Pod>>,
        now: Timestamp,
    ) {
        let mut own = Usage::default();
        own.device_claim(claim);
        let mut extended: BTreeMap<String, i64> = BTreeMap::new();
        for (class, amount) in own.devices().filter(|(class, _)| !class.is_empty()) {
            extended.insert(format!("requests.{CLASS_PREFIX}{class}"), amount);
            if let Some(Some(resource)) = self.explicit.get(class) {
                extended.insert(format!("requests.{resource}"), amount);
            }
        }
        let mut counted = Usage::default();
        if let Some(pod) = pod_of(claim, claims, pod) {
            counted.pod(&pod, now);
        }
        for (name, amount) in extended {
            // The pod was counted with the same resource already; only what the claim adds to it is new.
            let left = amount.saturating_sub(counted.of(&name));
            if left > 0 {
                used.add(&name, left);
            }
        }
    }
}

/// Returns UID and name of the pod for whose extended resources a claim was created, according to its annotation.
fn owner(claim: &ResourceClaim) -> Option<(&str, &str)> {
    let annotations = claim.metadata.annotations.as_ref()?;
    if annotations.get(EXTENDED).is_none_or(|own| own != "true") {
        return None;
    }
    let mut owners = claim.metadata.owner_references.iter().flatten();
    let owner = owners.find(|own| own.controller == Some(true))?;
    let is_pod = owner.kind == "Pod" && owner.api_version == "v1";
    is_pod.then_some((&owner.uid, &owner.name))
}

/// Returns the pod for whose extended resources a claim was created. If the pod's status does not name its claim,
/// only the oldest one counts.
fn pod_of(
    claim: &ResourceClaim,
    claims: &[ResourceClaim],
    pod: impl Fn(&str) -> Option<Arc<Pod>>,
) -> Option<Arc<Pod>> {
    let (uid, name) = owner(claim)?;
    let pod = pod(name)?;
    if pod.metadata.uid.as_deref() != Some(uid) {
        return None;
    }
    let is_first = match pod_claims::extended(&pod) {
        Some(name) => claim.metadata.name.as_deref() == Some(name),
        None => {
            let age = |claim: &ResourceClaim| {
                let created = claim.metadata.creation_timestamp.as_ref();
                (created.map(|at| at.0), claim.metadata.name.clone())
            };
            let mut own = claims
                .iter()
                .filter(|other| owner(other).is_some_and(|own| own.0 == uid));
            own.all(|other| age(other) >= age(claim))
        }
    };
    is_first.then_some(pod)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(name: &str, count: i64, pod: Option<&str>) -> ResourceClaim {
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
        serde_json::from_value(claim).expect("a claim")
    }

    fn pod(status: Value) -> Arc<Pod> {
        let requests = json!({ "requests": { "d.com/gpu": "2" } });
        let pod = json!({
            "metadata": { "name": "p", "uid": "p" },
            "spec": { "containers": [{ "name": "c", "resources": requests }] },
            "status": status,
        });
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    #[test]
    fn a_claim_counts_for_what_its_class_stands_for_unless_its_pod_does() {
        let class = json!({ "metadata": { "name": "gpu" }, "spec": { "extendedResourceName": "d.com/gpu" } });
        let class = serde_json::from_value(class).expect("a class");
        let extended = Extended::of(&[Arc::new(class)]);
        let implicit = "requests.deviceclass.resource.kubernetes.io/gpu";
        assert!(
            extended.is_from_device_class(implicit)
                && extended.is_from_device_class("requests.d.com/gpu")
        );
        assert!(!extended.is_from_device_class("requests.d.com/other"));
        let claims = [
            claim("plain", 3, None),
            claim("a", 2, Some("p")),
            claim("b", 2, Some("p")),
        ];
        let counted = |index: usize, pod: Option<Arc<Pod>>| {
            let mut used = Usage::default();
            let pod = |_: &str| pod.clone();
            extended.add(
                &mut used,
                &claims[index],
                &claims,
                pod,
                Timestamp::UNIX_EPOCH,
            );
            (used.of("requests.d.com/gpu"), used.of(implicit))
        };
        assert_eq!(counted(0, None), (3, 3));
        assert_eq!(counted(1, None), (2, 2), "there is no such pod");
        let fresh = pod(json!({}));
        assert_eq!(
            counted(1, Some(Arc::clone(&fresh))),
            (0, 2),
            "the first of the two"
        );
        assert_eq!(counted(2, Some(fresh)), (2, 2));
        let told = json!({ "extendedResourceClaimStatus": { "resourceClaimName": "b", "requestMappings": [] } });
        assert_eq!(counted(1, Some(pod(told.clone()))), (2, 2));
        assert_eq!(counted(2, Some(pod(told))), (0, 2));
    }
}
