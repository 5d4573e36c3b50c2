//! Decides which changes of claims, classes and slices may help a pod that waits for devices: the queueing hints of
//! kube-scheduler's DynamicResources.
//!
//! The consequences of a change are computed once, when the change is seen; for each pod it remains to check
//! whether a claim is its own. kube-scheduler's hint also checks that all claims of the pod exist; here that is
//! checked when the pod is tried. [`super::wake`] calls this module.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::{
    core::v1::{Pod, PodResourceClaimStatus},
    resource::v1::{DeviceClass, ResourceClaim, ResourceClaimStatus},
};
use kube::ResourceExt;
use mullion_engine::Plugin;

use super::wake::Plugins;
use crate::{
    Change, Context, Informer,
    resource_claims::{CLASS_PREFIX, EXTENDED, pod_claims::extended},
    state::requests::pod_requests,
};

/// A change of an object that device allocation depends on.
#[derive(Clone, Debug)]
pub enum DeviceEvent {
    /// A claim appeared, or its status changed.
    Claim(Arc<ResourceClaim>),
    /// A claim was deallocated, or deleted together with its allocation.
    Freed,
    /// A DeviceClass appeared or changed; the names are the extended resources that it newly provides.
    Class(Vec<String>),
    /// A ResourceSlice appeared or changed.
    Slice,
}

impl DeviceEvent {
    /// Returns whether `other` can be dropped because this event wakes the same pods.
    pub(super) fn makes_redundant(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Claim(_), _) | (_, Self::Claim(_)) => false,
            (Self::Class(own), Self::Class(other)) => other.iter().all(|name| own.contains(name)),
            (_, Self::Class(names)) => names.is_empty(),
            // All of these events wake every pod that waits for devices.
            _ => true,
        }
    }
}

/// Reports every change that may help a pod waiting for devices.
pub(super) fn watch(
    context: &Context,
    report: impl Fn(DeviceEvent) + Clone + Send + Sync + 'static,
) {
    let informers = &context.informers;
    informers.resource_claims.on_change({
        let report = report.clone();
        move |change| claim_event(change).into_iter().for_each(&report)
    });
    informers.device_classes.on_change({
        let report = report.clone();
        move |change| {
            if !change.is_deleted() {
                report(DeviceEvent::Class(newly_provided_resources(change)));
            }
        }
    });
    informers.resource_slices.on_change(move |change| {
        if !change.is_deleted() {
            report(DeviceEvent::Slice);
        }
    });
}

/// Returns the event for a change of a claim, or `None` if the change helps no pod. kube-scheduler 1.36 ignores
/// deleted claims, because a claim is deallocated before its deletion, unless a client removed the finalizer.
fn claim_event(change: &Change<'_, ResourceClaim>) -> Option<DeviceEvent> {
    let allocated = |claim: &ResourceClaim| {
        let status = claim.status.as_ref();
        status.is_some_and(|status| status.allocation.is_some())
    };
    match change {
        Change::Added(new) => Some(DeviceEvent::Claim(Arc::clone(new))),
        // If an attempt to schedule a pod left its claim for extended resources behind, the pod waits until it is
        // deleted.
        Change::Deleted(old) => {
            let is_extended = old.annotations().contains_key(EXTENDED);
            (is_extended || allocated(old)).then_some(DeviceEvent::Freed)
        }
        Change::Updated { old, new } if allocated(old) && !allocated(new) => {
            Some(DeviceEvent::Freed)
        }
        // Drivers and controllers also change labels, owners and finalizers, which help no pod.
        Change::Updated { old, new } => {
            let none = ResourceClaimStatus::default();
            let before = old.status.as_ref().unwrap_or(&none);
            let after = new.status.as_ref().unwrap_or(&none);
            (before != after).then(|| DeviceEvent::Claim(Arc::clone(new)))
        }
    }
}

/// Returns the extended resources that a class provides and did not provide before.
fn newly_provided_resources(change: &Change<'_, DeviceClass>) -> Vec<String> {
    let explicit = |class: &DeviceClass| class.spec.extended_resource_name.clone();
    match change {
        Change::Added(class) => {
            let implicit = format!("{CLASS_PREFIX}{}", class.name_any());
            explicit(class).into_iter().chain([implicit]).collect()
        }
        Change::Updated { old, new } => {
            if explicit(old) == explicit(new) {
                Vec::new()
            } else {
                explicit(new).into_iter().collect()
            }
        }
        Change::Deleted(_) => Vec::new(),
    }
}

/// Returns the extended resources of a pod's requests that a DeviceClass provides.
pub(super) fn device_class_resources(
    pod: &Pod,
    classes: &Informer<DeviceClass>,
) -> BTreeSet<String> {
    let mut asked = requests_of(pod);
    // Only extended resources have a domain, and most pods ask for none; the classes are then not listed.
    asked.retain(|name| name.contains('/'));
    if asked.is_empty() {
        return asked;
    }
    let classes = classes.list();
    asked.retain(|name| {
        let is_it = |class: &Arc<DeviceClass>| {
            let named = class.metadata.name.as_deref();
            class.spec.extended_resource_name.as_ref() == Some(name)
                || name
                    .strip_prefix(CLASS_PREFIX)
                    .is_some_and(|own| named == Some(own))
        };
        classes.iter().any(is_it)
    });
    asked
}

fn requests_of(pod: &Pod) -> BTreeSet<String> {
    let requests = pod.spec.as_ref().map(pod_requests).unwrap_or_default();
    requests.into_keys().collect()
}

/// The plugins with hints for devices.
pub(super) const PLUGINS: [Plugin; 2] = [Plugin::DynamicResources, Plugin::NodeResourcesFit];

/// Returns whether the event may help a pod that `rejectors` refused.
pub(super) fn wakes(pod: &Pod, rejectors: Plugins, event: &DeviceEvent) -> bool {
    let for_devices = rejectors.contains(Plugin::DynamicResources);
    let for_room = rejectors.contains(Plugin::NodeResourcesFit);
    match event {
        DeviceEvent::Claim(claim) => for_devices && uses(pod, claim),
        DeviceEvent::Freed | DeviceEvent::Slice => for_devices,
        // A node that does not have the extended resource itself may now provide it through devices.
        DeviceEvent::Class(names) => {
            let asks = || {
                let asked = requests_of(pod);
                names.iter().any(|name| asked.contains(name))
            };
            for_devices || (for_room && !names.is_empty() && asks())
        }
    }
}

/// Returns whether a claim is used by the pod. A claim that is being deleted cannot help it.
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

/// Returns the claims that were created for the pod from templates.
fn made_for(pod: &Pod) -> &[PodResourceClaimStatus] {
    let status = pod.status.as_ref();
    let made = status.and_then(|status| status.resource_claim_statuses.as_deref());
    made.unwrap_or_default()
}

/// Returns whether claims were created for the pod by this change (kube-scheduler: DynamicResources).
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

    /// Returns a pod that names the claim `shared`, and for which the claims in `made` were created.
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
        let class = |names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned());
            DeviceEvent::Class(names.collect())
        };
        for event in [
            DeviceEvent::Freed,
            class(&[]),
            class(&["d.com/a"]),
            DeviceEvent::Slice,
        ] {
            assert!(wakes(&pod, refused_by(Plugin::DynamicResources), &event));
            assert!(!wakes(&pod, refused_by(Plugin::NodeResourcesFit), &event));
            assert!(event.makes_redundant(&DeviceEvent::Freed));
            let claim = DeviceEvent::Claim(claim("ns", "shared", json!({})));
            assert!(
                !event.makes_redundant(&claim)
                    && !claim.makes_redundant(&event)
                    && !claim.makes_redundant(&claim)
            );
        }
    }

    #[test]
    fn a_class_that_stands_for_what_a_pod_asks_for_helps_it_to_room() {
        let class = |name: &str, resource: Value| -> Arc<DeviceClass> {
            of(
                json!({ "metadata": { "name": name }, "spec": { "extendedResourceName": resource } }),
            )
        };
        let (none, one) = (class("c", Value::Null), class("c", json!("d.com/a")));
        let stood_for = |old: &Arc<DeviceClass>, new: &Arc<DeviceClass>| {
            newly_provided_resources(&Change::Updated { old, new })
        };
        let implicit = "deviceclass.resource.kubernetes.io/c";
        assert_eq!(
            newly_provided_resources(&Change::Added(&one)),
            ["d.com/a", implicit]
        );
        assert_eq!(stood_for(&none, &one), ["d.com/a"]);
        assert!(stood_for(&one, &one).is_empty() && stood_for(&one, &none).is_empty());
        let asking = |resource: &str| -> Arc<Pod> {
            let requests = json!({ "requests": { resource: "1" } });
            let containers = json!([{ "name": "c", "resources": requests }]);
            of(json!({ "metadata": { "name": "p" }, "spec": { "containers": containers } }))
        };
        let wakes = |resource: &str, change: &Change<'_, DeviceClass>| {
            let event = DeviceEvent::Class(newly_provided_resources(change));
            super::wakes(
                &asking(resource),
                refused_by(Plugin::NodeResourcesFit),
                &event,
            )
        };
        assert!(wakes("d.com/a", &Change::Added(&one)) && wakes(implicit, &Change::Added(&one)));
        assert!(!wakes("d.com/b", &Change::Added(&one)) && !wakes("cpu", &Change::Added(&one)));
        let (old, new) = (&none, &one);
        assert!(
            !wakes(implicit, &Change::Updated { old, new }),
            "it did before"
        );
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
        // A missing status equals an empty one.
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
