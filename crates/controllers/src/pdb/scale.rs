//! Looks up how many replicas the controllers of a budget's pods want, once per controller.
//!
//! ReplicaSets and Deployments are read from the informers, other kinds through their scale subresource. A
//! controller without one makes the budget uncomputable, which is an error instead of a guess.

use std::sync::Arc;

use k8s_openapi::{
    api::{core::v1::Pod, policy::v1::PodDisruptionBudget},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api, ResourceExt,
    core::{DynamicObject, GroupVersionKind},
    discovery::pinned_kind,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::budget::{self, Scale};
use crate::{Context, api_error, ownership};

/// The reasons for which the number of expected pods is unknown.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unknown {
    #[error("{}", api_error::message(.0))]
    Api(#[from] kube::Error),
    #[error("{0} does not implement the scale subresource")]
    NoScale(String),
    #[error("found no controllers for pod {0:?}")]
    NoController(String),
}

/// Returns the sum of the scales of all controllers of the pods. Pods without a controller are only counted.
pub(super) async fn expected(
    context: &Context,
    budget: &PodDisruptionBudget,
    members: &[Arc<Pod>],
) -> Result<Scale, Unknown> {
    if !budget::needs_scale(budget) {
        return Ok(Scale::NotNeeded);
    }
    let mut scales: FxHashMap<String, i32> = FxHashMap::default();
    let mut seen: FxHashSet<&str> = FxHashSet::default();
    let mut unmanaged = 0;
    for pod in members {
        let Some(reference) = ownership::controller_of(&**pod) else {
            unmanaged += 1;
            continue;
        };
        // Reading a scale is a request, so each controller is asked once however many pods it has.
        if seen.insert(&reference.uid) {
            let (uid, scale) = scale_of(context, reference, pod).await?;
            // The uid is that of the object with the scale: several ReplicaSets of one Deployment count once.
            scales.insert(uid, scale);
        }
    }
    Ok(Scale::Sum {
        replicas: scales.values().sum(),
        unmanaged,
    })
}

/// Returns the UID and scale of a referenced controller; for a ReplicaSet of a Deployment, those of the Deployment.
async fn scale_of(
    context: &Context,
    reference: &OwnerReference,
    pod: &Pod,
) -> Result<(String, i32), Unknown> {
    if reference.kind == "ReplicaSet" && reference.api_version.starts_with("apps/") {
        return replica_set(context, reference, pod)
            .ok_or_else(|| Unknown::NoController(pod.name_any()));
    }
    let (group, version) = reference
        .api_version
        .split_once('/')
        .unwrap_or(("", &reference.api_version));
    let gvk = GroupVersionKind::gvk(group, version, &reference.kind);
    let (resource, capabilities) = pinned_kind(&context.client, &gvk).await?;
    let has_scale = |name: &str| name == "scale";
    let mut subresources = capabilities.subresources.iter();
    if !subresources.any(|(subresource, _)| has_scale(&subresource.plural)) {
        return Err(Unknown::NoScale(if group.is_empty() {
            resource.plural
        } else {
            format!("{}.{group}", resource.plural)
        }));
    }
    let namespace = pod.namespace().unwrap_or_default();
    let api: Api<DynamicObject> =
        Api::namespaced_with(context.client.clone(), &namespace, &resource);
    let scale = api_error::ignore_not_found(api.get_scale(&reference.name).await)?;
    // Another object may have taken the controller's name.
    match scale.filter(|scale| scale.metadata.uid.as_ref() == Some(&reference.uid)) {
        Some(scale) => {
            let replicas = scale.spec.and_then(|spec| spec.replicas);
            Ok((reference.uid.clone(), replicas.unwrap_or_default()))
        }
        None => Err(Unknown::NoController(pod.name_any())),
    }
}

fn replica_set(context: &Context, reference: &OwnerReference, pod: &Pod) -> Option<(String, i32)> {
    let informers = &context.informers;
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let set = informers.replica_sets.get(namespace, &reference.name)?;
    if set.metadata.uid.as_ref() != Some(&reference.uid) {
        return None;
    }
    let owner = ownership::controller_of(&*set).filter(|owner| owner.kind == "Deployment");
    let deployment = owner.and_then(|owner| {
        let deployment = informers.deployments.get(namespace, &owner.name);
        deployment.filter(|deployment| deployment.metadata.uid.as_ref() == Some(&owner.uid))
    });
    let (uid, replicas) = match deployment {
        Some(deployment) => {
            let replicas = deployment.spec.as_ref().and_then(|spec| spec.replicas);
            (deployment.uid().unwrap_or_default(), replicas)
        }
        None => {
            let replicas = set.spec.as_ref().and_then(|spec| spec.replicas);
            (reference.uid.clone(), replicas)
        }
    };
    Some((uid, replicas.unwrap_or(1)))
}
