//! Which changes of claims, classes and slices may help a pod that waits for devices: the queueing hints of kube-scheduler's DynamicResources.
//!
//! What a change means to everybody is found out once, when it is seen; what is left to ask of a pod is whether a claim is one of its own. That
//! all claims of the pod are there, which upstream's hint asks too, is seen when the pod is tried. [`super::wake`] asks here.

use std::sync::Arc;

use k8s_openapi::api::{
    core::v1::{Pod, PodResourceClaimStatus},
    resource::v1::{ResourceClaim, ResourceClaimStatus},
};
use mullion_engine::Plugin;

use super::wake::Plugins;
use crate::{Change, Context};

/// Something that happened to what devices are allocated by.
#[derive(Clone, Debug)]
pub enum DeviceEvent {
    /// A claim appeared, or its status changed.
    Claim(Arc<ResourceClaim>),
    /// A claim gave its devices back, or is gone with them.
    Freed,
    /// A DeviceClass appeared or changed.
    Class,
    /// A ResourceSlice appeared or changed.
    Slice,
}

impl DeviceEvent {
    /// Whether another event says nothing that this one does not.
    pub(super) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Claim(_), _) | (_, Self::Claim(_)) => false,
            // All of these wake whoever waits for devices.
            _ => true,
        }
    }
}

/// Passes every change on that a pod which waits for devices may care about.
pub(super) fn watch(context: &Context, tell: impl Fn(DeviceEvent) + Clone + Send + Sync + 'static) {
    let informers = &context.informers;
    informers.resource_claims.on_change({
        let tell = tell.clone();
        move |change| claim_event(change).into_iter().for_each(&tell)
    });
    informers.device_classes.on_change({
        let tell = tell.clone();
        move |change| {
            if !change.is_deleted() {
                tell(DeviceEvent::Class);
            }
        }
    });
    informers.resource_slices.on_change(move |change| {
        if !change.is_deleted() {
            tell(DeviceEvent::Slice);
        }
    });
}

/// What a change of a claim means, if anything. (kube-scheduler 1.36 does not look at claims that are gone: those have given their devices back
/// before, unless somebody took the finalizer away.)
fn claim_event(change: &Change<'_, ResourceClaim>) -> Option<DeviceEvent> {
    let allocated = |claim: &ResourceClaim| {
        let status = claim.status.as_ref();
        status.is_some_and(|status| status.allocation.is_some())
    };
    match change {
        Change::Added(new) => Some(DeviceEvent::Claim(Arc::clone(new))),
        Change::Deleted(old) => allocated(old).then_some(DeviceEvent::Freed),
        Change::Updated { old, new } if allocated(old) && !allocated(new) => {
            Some(DeviceEvent::Freed)
        }
        // Drivers and controllers change labels, owners and finalizers too.
        Change::Updated { old, new } => {
            let none = ResourceClaimStatus::default();
            let before = old.status.as_ref().unwrap_or(&none);
            let after = new.status.as_ref().unwrap_or(&none);
            (before != after).then(|| DeviceEvent::Claim(Arc::clone(new)))
        }
    }
}

/// The plugins that care about devices.
pub(super) const PLUGINS: [Plugin; 1] = [Plugin::DynamicResources];

/// Whether the event may help a pod that `rejectors` refused.
pub(super) fn wakes(pod: &Pod, rejectors: Plugins, event: &DeviceEvent) -> bool {
    rejectors.contains(Plugin::DynamicResources)
        && match event {
            DeviceEvent::Claim(claim) => uses(pod, claim),
            DeviceEvent::Freed | DeviceEvent::Class | DeviceEvent::Slice => true,
        }
}

/// Whether a claim is one of the pod's. One that is on its way out helps nobody.
fn uses(pod: &Pod, claim: &ResourceClaim) -> bool {
    let is_it = |name: &Option<String>| *name == claim.metadata.name;
    let spec = pod.spec.iter();
    let mut entries = spec.flat_map(|spec| spec.resource_claims.iter().flatten());
    claim.metadata.deletion_timestamp.is_none()
        && claim.metadata.namespace == pod.metadata.namespace
        && (entries.any(|entry| is_it(&entry.resource_claim_name))
            || made_for(pod)
                .iter()
                .any(|made| is_it(&made.resource_claim_name))
            || extended(pod) == claim.metadata.name.as_deref())
}

/// What the pod's claims are called that were made from templates.
fn made_for(pod: &Pod) -> &[PodResourceClaimStatus] {
    let status = pod.status.as_ref();
    let made = status.and_then(|status| status.resource_claim_statuses.as_deref());
    made.unwrap_or_default()
}

/// What the claim is called that stands for the pod's extended resources.
fn extended(pod: &Pod) -> Option<&str> {
    let status = pod.status.as_ref()?.extended_resource_claim_status.as_ref();
    status.map(|status| status.resource_claim_name.as_str())
}

/// Claims were made for the pod (kube-scheduler: DynamicResources).
pub(super) fn claims_made(old: &Pod, new: &Pod) -> bool {
    made_for(old) != made_for(new) || extended(old) != extended(new)
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn of<K: DeserializeOwned>(object: Value) -> Arc<K> {
        Arc::new(serde_json::from_value(object).expect("an object"))
    }

    /// A pod that names the claim `shared`, and for which others were made.
    fn pod(made: Value) -> Arc<Pod> {
        let claims = json!([
            { "name": "one", "resourceClaimName": "shared" },
            { "name": "two", "resourceClaimTemplateName": "template" },
        ]);
        of(json!({
            "metadata": { "name": "p", "namespace": "ns" },
            "spec": { "containers": [], "resourceClaims": claims },
            "status": made,
        }))
    }

    fn claim(namespace: &str, name: &str, status: Value) -> Arc<ResourceClaim> {
        of(
            json!({ "metadata": { "name": name, "namespace": namespace }, "spec": {}, "status": status }),
        )
    }

    fn refused_by(plugin: Plugin) -> Plugins {
        [plugin].into_iter().collect()
    }

    #[test]
    fn a_pod_waits_for_the_claims_that_it_names_and_those_that_were_made_for_it() {
        let made = json!({
            "resourceClaimStatuses": [{ "name": "two", "resourceClaimName": "p-two-x" }, { "name": "three" }],
            "extendedResourceClaimStatus": { "resourceClaimName": "p-extended", "requestMappings": [] },
        });
        let (fresh, pod) = (pod(json!({})), pod(made));
        let wakes = |pod: &Pod, namespace: &str, name: &str| {
            let event = DeviceEvent::Claim(claim(namespace, name, json!({})));
            wakes(pod, refused_by(Plugin::DynamicResources), &event)
        };
        for name in ["shared", "p-two-x", "p-extended"] {
            assert!(wakes(&pod, "ns", name), "{name}");
            assert!(!wakes(&pod, "elsewhere", name), "{name}");
            assert_eq!(wakes(&fresh, "ns", name), name == "shared", "{name}");
        }
        assert!(!wakes(&pod, "ns", "template") && !wakes(&pod, "ns", "other"));
        let leaving = of(json!({
            "metadata": { "name": "shared", "namespace": "ns", "deletionTimestamp": "2026-01-01T00:00:00Z" },
            "spec": {},
        }));
        let leaving = DeviceEvent::Claim(leaving);
        assert!(!super::wakes(
            &pod,
            refused_by(Plugin::DynamicResources),
            &leaving
        ));
    }

    #[test]
    fn whoever_waits_for_devices_waits_for_any_class_slice_or_freed_device() {
        let pod = pod(json!({}));
        for event in [DeviceEvent::Freed, DeviceEvent::Class, DeviceEvent::Slice] {
            assert!(wakes(&pod, refused_by(Plugin::DynamicResources), &event));
            assert!(!wakes(&pod, refused_by(Plugin::NodeResourcesFit), &event));
            assert!(event.covers(&DeviceEvent::Freed));
            let claim = DeviceEvent::Claim(claim("ns", "shared", json!({})));
            assert!(!event.covers(&claim) && !claim.covers(&event) && !claim.covers(&claim));
        }
    }

    #[test]
    fn a_claim_says_something_when_it_comes_when_its_status_changes_and_when_it_gives_devices_back()
    {
        let plain = claim("ns", "c", json!({}));
        let unset = of(json!({ "metadata": { "name": "c", "namespace": "ns" }, "spec": {} }));
        let given = json!({ "allocation": { "devices": {} } });
        let allocated = claim("ns", "c", given.clone());
        let mut reserved = given;
        reserved["reservedFor"] = json!([{ "resource": "pods", "name": "p", "uid": "u" }]);
        let reserved = claim("ns", "c", reserved);
        let update = |old, new| claim_event(&Change::Updated { old, new });
        for (event, freed) in [
            (claim_event(&Change::Added(&plain)), false),
            (claim_event(&Change::Added(&allocated)), false),
            (update(&plain, &allocated), false),
            (update(&allocated, &reserved), false),
            (update(&reserved, &allocated), false),
            (update(&allocated, &plain), true),
            (update(&reserved, &unset), true),
            (claim_event(&Change::Deleted(&allocated)), true),
        ] {
            match event {
                Some(DeviceEvent::Freed) => assert!(freed),
                Some(DeviceEvent::Claim(_)) => assert!(!freed),
                other => panic!("{other:?}"),
            }
        }
        // A status that is not there is an empty one.
        for nothing in [
            update(&plain, &plain),
            update(&plain, &unset),
            update(&reserved, &reserved),
            claim_event(&Change::Deleted(&plain)),
        ] {
            assert!(nothing.is_none(), "{nothing:?}");
        }
    }
}
