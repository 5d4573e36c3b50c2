//! Converts claims of devices to the engine's model: those that a pod names, and whether allocated devices are
//! ready.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::Pod,
        resource::v1::{AllocatedDeviceStatus, DeviceRequestAllocationResult, ResourceClaim},
    },
    apimachinery::pkg::apis::meta::v1::Condition,
};
use mullion_engine::model::{PodClaim, PodClaims, ResourceClaimSpec};

use super::volumes::spec_of;
use crate::resource_claims::pod_claims::{self, Claimed};

/// How long devices may take to become ready (`bindingTimeout` of DynamicResourcesArgs).
pub const BINDING_PATIENCE: Duration = Duration::from_secs(600);

/// Returns the claims of a pod; `None` if it has none.
pub fn of_pod(pod: &Pod) -> Option<Box<PodClaims>> {
    let named = |claim: Option<&str>, generated| PodClaim {
        claim: claim.map(str::to_owned),
        generated,
    };
    let claims: Vec<PodClaim> = pod_claims::entries(pod)
        .filter_map(|entry| match pod_claims::claimed(pod, entry) {
            Ok(Claimed::Named(name)) => Some(named(Some(name), false)),
            Ok(Claimed::Made(name)) => Some(named(Some(name), true)),
            Ok(Claimed::Nothing) => None,
            // A claim that does not exist yet counts too, so that the pod waits instead of being placed
            // without it.
            Err(_) => Some(named(None, true)),
        })
        .collect();
    (!claims.is_empty()).then(|| {
        Box::new(PodClaims {
            pod: pod.metadata.name.clone().unwrap_or_default(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            claims,
            left: None,
        })
    })
}

/// Converts a claim; `None` if it cannot be parsed, which the API server rules out.
pub fn claim(claim: &ResourceClaim, now: Timestamp) -> Option<ResourceClaimSpec> {
    let mut spec: ResourceClaimSpec = spec_of(claim)?;
    spec.unready = match readiness(claim) {
        Readiness::Ready => false,
        Readiness::Failed(_) => true,
        Readiness::Waits => is_overdue(claim, now),
    };
    Some(spec)
}

/// Whether the devices of a claim are ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// All devices are ready.
    Ready,
    /// The drivers have not reported all devices as ready yet.
    Waits,
    /// A device will not become ready; the text is the scheduler's message.
    Failed(String),
}

/// Returns whether the allocated devices of a claim are ready (kube-scheduler: DynamicResources'
/// `isClaimReadyForBinding`).
pub fn readiness(claim: &ResourceClaim) -> Readiness {
    for given in given(claim) {
        let wanted = given.binding_conditions.iter().flatten();
        let wanted: Vec<_> = wanted.collect();
        if wanted.is_empty() {
            continue;
        }
        // A driver that has not reported anything yet may still do so.
        let Some(status) = status_of(claim, given) else {
            return Readiness::Waits;
        };
        let condition = |name: &String| {
            let mut conditions = status.conditions.iter().flatten();
            conditions.find(|own| own.type_ == *name && own.status == "True")
        };
        let failing = given.binding_failure_conditions.iter().flatten();
        // A failure condition counts even if all binding conditions are true.
        if let Some(Condition {
            reason, message, ..
        }) = failing.into_iter().find_map(condition)
        {
            let name = claim.metadata.name.as_deref().unwrap_or_default();
            return Readiness::Failed(format!(
                "claim {name} binding failed: reason={reason}, message={message:?}"
            ));
        }
        if !wanted.into_iter().all(|name| condition(name).is_some()) {
            return Readiness::Waits;
        }
    }
    Readiness::Ready
}

/// Returns whether any of a claim's devices has binding conditions.
pub fn has_conditions(claim: &ResourceClaim) -> bool {
    given(claim).any(|given| {
        given
            .binding_conditions
            .as_ref()
            .is_some_and(|all| !all.is_empty())
    })
}

/// Returns whether the time in which a claim's devices must become ready has passed.
pub fn is_overdue(claim: &ResourceClaim, now: Timestamp) -> bool {
    let allocation = claim
        .status
        .as_ref()
        .and_then(|status| status.allocation.as_ref());
    let since = allocation.and_then(|allocation| allocation.allocation_timestamp.as_ref());
    has_conditions(claim)
        // Devices without binding conditions are ready at once and cannot be late.
        && since.is_some_and(|since| {
            since
                .0
                .saturating_add(BINDING_PATIENCE)
                .is_ok_and(|until| until < now)
        })
}

fn given(claim: &ResourceClaim) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    let allocation = claim
        .status
        .as_ref()
        .and_then(|status| status.allocation.as_ref());
    let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
    devices
        .into_iter()
        .flat_map(|devices| devices.results.iter().flatten())
}

fn status_of<'a>(
    claim: &'a ResourceClaim,
    given: &DeviceRequestAllocationResult,
) -> Option<&'a AllocatedDeviceStatus> {
    let mut statuses = claim.status.as_ref()?.devices.iter().flatten();
    statuses.find(|own| {
        (&own.driver, &own.pool, &own.device) == (&given.driver, &given.pool, &given.device)
    })
}

#[cfg(test)]
mod tests {
    use mullion_engine::model::PodSpec;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_typed_pod_and_its_json_have_the_same_claims() {
        let pod = json!({
            "metadata": { "name": "p", "namespace": "ns", "uid": "u" },
            "spec": { "containers": [], "resourceClaims": [
                { "name": "shared", "resourceClaimName": "gpus" },
                { "name": "own", "resourceClaimTemplateName": "gpu" },
                { "name": "needless", "resourceClaimTemplateName": "gpu" },
                { "name": "coming", "resourceClaimTemplateName": "gpu" },
            ] },
            "status": { "resourceClaimStatuses": [
                { "name": "own", "resourceClaimName": "p-own-x7k2p" },
                { "name": "needless" },
            ] },
        });
        let read: PodSpec = serde_json::from_value(pod.clone()).expect("a pod");
        let typed: Pod = serde_json::from_value(pod).expect("a pod");
        let claims = of_pod(&typed);
        assert_eq!(claims, read.template.claims);
        let names = claims.iter().flat_map(|own| &own.claims);
        let names: Vec<_> = names
            .map(|own| (own.claim.as_deref(), own.generated))
            .collect();
        assert_eq!(
            names,
            [
                (Some("gpus"), false),
                (Some("p-own-x7k2p"), true),
                (None, true)
            ]
        );
    }

    fn with_conditions(conditions: Value) -> ResourceClaim {
        let device = json!({ "driver": "d", "pool": "p", "device": "x" });
        let mut given = device.clone();
        given["request"] = json!("r");
        given["bindingConditions"] = json!(["Attached"]);
        given["bindingFailureConditions"] = json!(["Broken"]);
        let mut status = device;
        status["conditions"] = conditions;
        serde_json::from_value(json!({
            "metadata": { "name": "c", "namespace": "ns" },
            "spec": {},
            "status": {
                "allocation": { "allocationTimestamp": "2026-01-01T00:00:00Z", "devices": { "results": [given] } },
                "devices": [status],
            },
        }))
        .expect("a claim")
    }

    fn condition(name: &str, status: &str) -> Value {
        json!({ "type": name, "status": status, "reason": "Cable", "message": "it \"broke\"", "lastTransitionTime": "2026-01-01T00:00:00Z" })
    }

    #[test]
    fn devices_are_ready_once_all_they_wait_for_is_true_and_nothing_failed() {
        let now: Timestamp = "2026-01-01T00:05:00Z".parse().expect("a time");
        let later: Timestamp = "2026-01-01T00:10:01Z".parse().expect("a time");
        let waits = with_conditions(json!([condition("Attached", "False")]));
        assert_eq!(readiness(&waits), Readiness::Waits);
        assert!(!claim(&waits, now).expect("readable").unready);
        assert!(claim(&waits, later).expect("readable").unready);
        let ready = with_conditions(json!([condition("Attached", "True")]));
        assert_eq!(readiness(&ready), Readiness::Ready);
        assert!(!claim(&ready, later).expect("readable").unready);
        let failed = with_conditions(json!([
            condition("Attached", "True"),
            condition("Broken", "True")
        ]));
        let why = r#"claim c binding failed: reason=Cable, message="it \"broke\"""#;
        assert_eq!(readiness(&failed), Readiness::Failed(why.to_owned()));
    }
}
