//! The ResourceClaim for the extended resources of a pod that a DeviceClass provides: created before the pod is bound, and
//! deleted if the binding fails (kube-scheduler: DynamicResources' `createExtendedResourceClaimInAPI`,
//! `patchPodExtendedResourceClaimStatus` and `deleteClaim`).

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    api::{
        core::v1::{ContainerExtendedResourceRequest, Pod, PodExtendedResourceClaimStatus},
        resource::v1::{
            DeviceClaim, DeviceRequest, ExactDeviceRequest, ResourceClaim, ResourceClaimSpec,
        },
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{
    Api, Error, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use mullion_engine::model::ExtendedClaim;
use serde_json::json;

use super::devices::DevicesError;
use crate::{
    Context,
    resource_claims::{EXTENDED, PROTECTION},
};

/// How many times the removal of a claim's finalizer is retried after conflicts, and the pause between two tries.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(10);

fn claims(context: &Context, pod: &Pod) -> (String, Api<ResourceClaim>) {
    let namespace = pod.namespace().unwrap_or_default();
    let api = Api::namespaced(context.client.clone(), &namespace);
    (namespace, api)
}

/// Creates the claim.
///
/// # Errors
/// The API server refuses the write.
pub(super) async fn make(
    context: &Context,
    pod: &Pod,
    own: &ExtendedClaim,
) -> Result<ResourceClaim, DevicesError> {
    let (namespace, api) = claims(context, pod);
    let requests = own.requests.iter().map(|request| {
        let exactly = request.exactly.as_ref();
        DeviceRequest {
            name: request.name.clone(),
            exactly: exactly.map(|exactly| ExactDeviceRequest {
                device_class_name: exactly.device_class.clone(),
                allocation_mode: Some("ExactCount".to_owned()),
                count: exactly.count,
                ..ExactDeviceRequest::default()
            }),
            first_available: None,
        }
    });
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        // Garbage collection removes the claim with its pod, also if this process ends before the binding.
        controller: Some(true),
        block_owner_deletion: None,
    };
    let claim = ResourceClaim {
        metadata: ObjectMeta {
            namespace: Some(namespace.clone()),
            generate_name: Some(format!("{}-extended-resources-", pod.name_any())),
            annotations: Some(BTreeMap::from([(EXTENDED.to_owned(), "true".to_owned())])),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: ResourceClaimSpec {
            devices: Some(DeviceClaim {
                requests: Some(requests.collect()),
                ..DeviceClaim::default()
            }),
        },
        status: None,
    };
    let made = api.create(&PostParams::default(), &claim).await;
    made.map_err(|error| DevicesError::Create { namespace, error })
}

/// Writes into the pod's status which containers get which requests of the claim.
///
/// # Errors
/// The API server refuses the write.
pub(super) async fn write_status(
    context: &Context,
    pod: &Pod,
    own: &ExtendedClaim,
    claim: &str,
) -> Result<(), DevicesError> {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let spec = pod.spec.iter();
    // The engine numbers init containers before app containers.
    let containers: Vec<_> = spec
        .flat_map(|spec| {
            spec.init_containers
                .iter()
                .flatten()
                .chain(&spec.containers)
        })
        .collect();
    let uses = own.uses.iter().filter_map(|own| {
        let container = containers.get(own.container)?;
        Some(ContainerExtendedResourceRequest {
            container_name: container.name.clone(),
            resource_name: own.resource.clone(),
            request_name: own.request.clone(),
        })
    });
    let status = PodExtendedResourceClaimStatus {
        request_mappings: uses.collect(),
        resource_claim_name: claim.to_owned(),
    };
    let patch = json!({
        "metadata": { "uid": pod.uid() },
        "status": { "extendedResourceClaimStatus": status },
    });
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    let patched = api
        .patch_status(&name, &PatchParams::default(), &Patch::Strategic(patch))
        .await;
    patched.map(drop).map_err(|error| DevicesError::PodStatus {
        pod: format!("{namespace}/{name}"),
        error,
    })
}

/// Removes the claim's finalizer, which it got with its allocation, and deletes the claim.
///
/// # Errors
/// Returns an error if a write fails; a claim that does not exist is no error.
pub(super) async fn delete(context: &Context, pod: &Pod, name: &str) -> Result<(), Error> {
    let (namespace, api) = claims(context, pod);
    let mut tries = 0;
    loop {
        // The informer may show an older version than the one just written, so only the first try uses it.
        let known = context.informers.resource_claims.get(&namespace, name);
        let claim = match known.filter(|_| tries == 0) {
            Some(known) => Some(ResourceClaim::clone(&known)),
            None => api.get_opt(name).await?,
        };
        let Some(mut claim) = claim else {
            return Ok(());
        };
        // The version in the informer may lack a finalizer that was just written, so only a fresh read proves
        // its absence.
        if !claim.finalizers().iter().any(|own| own == PROTECTION) && tries > 0 {
            break;
        }
        claim.finalizers_mut().retain(|own| own != PROTECTION);
        match api.replace(name, &PostParams::default(), &claim).await {
            Ok(_) => break,
            Err(Error::Api(status)) if status.is_not_found() => return Ok(()),
            Err(Error::Api(status)) if status.is_conflict() && tries < TRIES => {}
            Err(error) => return Err(error),
        }
        tries += 1;
        tokio::time::sleep(PAUSE).await;
    }
    match api.delete(name, &DeleteParams::default()).await {
        Err(Error::Api(status)) if status.is_not_found() => Ok(()),
        deleted => deleted.map(drop),
    }
}
