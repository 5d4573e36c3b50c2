//! What a pod's claims of devices need before the pod is bound: kube-scheduler's DynamicResources, PreBind, Unreserve and PostFilter.
//!
//! The engine has chosen devices for the claims that had none; the model counts them as taken. Here that is written to the claims, the pod is
//! entered as their consumer, and devices that have to be made ready first are waited for.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    api::{
        core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod},
        resource::v1::{
            AllocationResult, Device, DeviceAllocationConfiguration, DeviceAllocationResult,
            DeviceRequest, DeviceRequestAllocationResult, DeviceToleration, ResourceClaim,
            ResourceClaimConsumerReference,
        },
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time},
};
use kube::{
    Api, Error, Resource, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use mullion_engine::model::{self, AllocatedDevice, ClaimAllocation, Operator};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    Context, EventType, Recorder, api_error,
    resource_claims::{PROTECTION, of_pod::is_reserved_for},
    state::devices::{self, BINDING_PATIENCE, Readiness},
};

/// How often a write is tried that meets a newer version, and the pause between.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(10);
/// How often the wait for devices looks.
const LOOK: Duration = Duration::from_secs(5);

/// Devices by name of the claim that gets them, in the pod's namespace.
pub(super) type DeviceChoices = Vec<(String, ClaimAllocation)>;

/// Writes the choices to the claims, enters the pod as their consumer, and waits until their devices are ready; `wrote` is told of each claim as it is then.
///
/// # Errors
/// With the scheduler's message, if a write is refused, a device fails, or it takes too long.
pub(super) async fn pre_bind(
    context: &Context,
    recorder: Option<&Recorder>,
    pod: &Pod,
    node: &str,
    choices: &DeviceChoices,
    wrote: impl Fn(&ResourceClaim),
) -> Result<(), String> {
    let outcome = async {
        let mut waits = false;
        for name in claims_of(pod) {
            let choice = choices.iter().find(|(own, _)| *own == name);
            let allocation = choice.map(|(_, allocation)| allocation);
            let claim = reserve(context, pod, &name, allocation).await?;
            wrote(&claim);
            waits |= devices::has_conditions(&claim);
        }
        match waits {
            true => wait(context, recorder, pod, node).await,
            false => Ok(()),
        }
    };
    outcome
        .await
        .map_err(|error| format!("running PreBind plugin \"DynamicResources\": {error}"))
}

/// Names of the claims that a pod uses and that are there.
fn claims_of(pod: &Pod) -> Vec<String> {
    let claims = devices::of_pod(pod).into_iter();
    let claims = claims.flat_map(|own| own.claims);
    claims.filter_map(|own| own.claim).collect()
}

/// Writes what a claim was given, if it is new, and that the pod uses it (upstream: `bindClaim`).
async fn reserve(
    context: &Context,
    pod: &Pod,
    name: &str,
    allocation: Option<&ClaimAllocation>,
) -> Result<ResourceClaim, String> {
    let namespace = pod.namespace().unwrap_or_default();
    let text = format!("{namespace}/{name}");
    let api: Api<ResourceClaim> = Api::namespaced(context.client.clone(), &namespace);
    let known = context.informers.resource_claims.get(&namespace, name);
    let mut claim = match known {
        Some(known) => ResourceClaim::clone(&known),
        None => return Err(format!("could not find ResourceClaim {text:?}")),
    };
    let mut tries = 1;
    loop {
        if is_reserved_for(&claim, pod) {
            return Ok(claim);
        }
        match reserve_once(context, &api, pod, claim, allocation, &text).await {
            Ok(claim) => return Ok(claim),
            Err(Refused { conflict: true, .. }) if tries < TRIES => {}
            Err(refused) => return Err(refused.message),
        }
        tries += 1;
        tokio::time::sleep(PAUSE).await;
        claim = api.get(name).await.map_err(|error| {
            let why = api_error::message(&error);
            format!("get updated claim {text} after conflict: {why}")
        })?;
    }
}

/// Why a claim was not written.
struct Refused {
    /// It has a newer version.
    conflict: bool,
    message: String,
}

async fn reserve_once(
    context: &Context,
    api: &Api<ResourceClaim>,
    pod: &Pod,
    mut claim: ResourceClaim,
    allocation: Option<&ClaimAllocation>,
    text: &str,
) -> Result<ResourceClaim, Refused> {
    let fails = |message: String| Refused {
        conflict: false,
        message,
    };
    let refused = |what: &str, error: Error| Refused {
        conflict: matches!(&error, Error::Api(status) if status.is_conflict()),
        message: format!("{what} to claim {text}: {}", api_error::message(&error)),
    };
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(fails(format!("claim {text} got deleted in the meantime")));
    }
    let name = claim.name_any();
    if let Some(allocation) = allocation {
        let given = claim
            .status
            .as_ref()
            .and_then(|status| status.allocation.as_ref());
        if given.is_some() {
            return Err(fails(format!(
                "claim {text} got allocated elsewhere in the meantime"
            )));
        }
        if !claim.finalizers().iter().any(|own| own == PROTECTION) {
            claim.finalizers_mut().push(PROTECTION.to_owned());
            let written = api.replace(&name, &PostParams::default(), &claim).await;
            claim = written.map_err(|error| refused("add finalizer", error))?;
        }
        let written = allocation_of(context, &claim, allocation);
        claim.status.get_or_insert_default().allocation = Some(written);
    }
    let status = claim.status.get_or_insert_default();
    let consumers = status.reserved_for.get_or_insert_default();
    consumers.push(ResourceClaimConsumerReference {
        api_group: None,
        resource: "pods".to_owned(),
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
    });
    // What somebody else gave it is not ours to change.
    if let Some(given) = status.allocation.as_mut().filter(|_| allocation.is_some()) {
        let now = || Time(context.clock.now());
        given.allocation_timestamp.get_or_insert_with(now);
    }
    let what = match allocation {
        Some(_) => "add allocation and reservation",
        None => "add reservation",
    };
    let written = api
        .replace_status(&name, &PostParams::default(), &claim)
        .await;
    written.map_err(|error| refused(what, error))
}

/// What is written about devices that a claim gets.
fn allocation_of(
    context: &Context,
    claim: &ResourceClaim,
    allocation: &ClaimAllocation,
) -> AllocationResult {
    let results = allocation.devices.iter();
    let results = results
        .map(|given| result_of(context, claim, given))
        .collect();
    let config = config_of(context, claim, allocation);
    AllocationResult {
        allocation_timestamp: None,
        devices: Some(DeviceAllocationResult {
            config: (!config.is_empty()).then_some(config),
            results: Some(results),
        }),
        node_selector: allocation.node_selector.as_ref().map(node_selector),
    }
}

fn requests(claim: &ResourceClaim) -> &[DeviceRequest] {
    let devices = claim.spec.devices.as_ref();
    devices
        .and_then(|devices| devices.requests.as_deref())
        .unwrap_or_default()
}

/// Class and tolerations of what a result was found for, by its name.
fn asked<'a>(
    claim: &'a ResourceClaim,
    name: &str,
) -> Option<(&'a str, Option<&'a Vec<DeviceToleration>>)> {
    let (name, alternative) = match name.split_once('/') {
        Some((name, alternative)) => (name, Some(alternative)),
        None => (name, None),
    };
    let request = requests(claim).iter().find(|own| own.name == name)?;
    match alternative {
        None => {
            let own = request.exactly.as_ref()?;
            Some((&own.device_class_name, own.tolerations.as_ref()))
        }
        Some(alternative) => {
            let mut list = request.first_available.iter().flatten();
            let own = list.find(|own| own.name == alternative)?;
            Some((&own.device_class_name, own.tolerations.as_ref()))
        }
    }
}

fn result_of(
    context: &Context,
    claim: &ResourceClaim,
    given: &AllocatedDevice,
) -> DeviceRequestAllocationResult {
    let device = published(context, given);
    let tolerations = asked(claim, &given.request).and_then(|(_, tolerations)| tolerations);
    let consumed = given.consumed_capacity.as_ref().map(|parts| {
        let parts = parts.iter();
        let parts = parts.map(|(name, amount)| (name.clone(), Quantity(amount.to_string())));
        parts.collect::<BTreeMap<_, _>>()
    });
    DeviceRequestAllocationResult {
        admin_access: given.admin_access,
        binding_conditions: device
            .as_ref()
            .and_then(|own| own.binding_conditions.clone()),
        binding_failure_conditions: device.and_then(|own| own.binding_failure_conditions),
        // Who has a part of a device is told from others by this.
        share_id: consumed.is_some().then(|| uuid::Uuid::new_v4().to_string()),
        consumed_capacity: consumed.filter(|parts| !parts.is_empty()),
        device: given.device.clone(),
        driver: given.driver.clone(),
        pool: given.pool.clone(),
        request: given.request.clone(),
        tolerations: tolerations.cloned(),
    }
}

/// A device as its driver published it.
fn published(context: &Context, given: &AllocatedDevice) -> Option<Device> {
    let slices = context.informers.resource_slices.list();
    let own = slices
        .iter()
        .filter(|slice| slice.spec.driver == given.driver && slice.spec.pool.name == given.pool);
    let newest = own.max_by_key(|slice| {
        let has_it = slice
            .spec
            .devices
            .iter()
            .flatten()
            .any(|own| own.name == given.device);
        (has_it, slice.spec.pool.generation)
    })?;
    let mut devices = newest.spec.devices.iter().flatten();
    devices.find(|own| own.name == given.device).cloned()
}

/// What drivers are told: the configurations of the classes, each once, then those of the claim.
fn config_of(
    context: &Context,
    claim: &ResourceClaim,
    allocation: &ClaimAllocation,
) -> Vec<DeviceAllocationConfiguration> {
    let mut config: Vec<DeviceAllocationConfiguration> = Vec::new();
    let mut classes: BTreeMap<&str, std::ops::Range<usize>> = BTreeMap::new();
    let mut chosen: Vec<&str> = Vec::new();
    for request in requests(claim) {
        let is_of = |given: &&AllocatedDevice| {
            given.request.split('/').next() == Some(request.name.as_str())
        };
        let Some(given) = allocation.devices.iter().find(is_of) else {
            continue;
        };
        chosen.push(&given.request);
        let Some((class, _)) = asked(claim, &given.request) else {
            continue;
        };
        if let Some(range) = classes.get(class) {
            for own in &mut config[range.clone()] {
                own.requests
                    .get_or_insert_default()
                    .push(given.request.clone());
            }
            continue;
        }
        let start = config.len();
        let known = context.informers.device_classes.get("", class);
        let of_class = known
            .iter()
            .flat_map(|class| class.spec.config.iter().flatten());
        config.extend(of_class.map(|own| DeviceAllocationConfiguration {
            opaque: own.opaque.clone(),
            requests: Some(vec![given.request.clone()]),
            source: "FromClass".to_owned(),
        }));
        classes.insert(class, start..config.len());
    }
    let devices = claim.spec.devices.as_ref();
    for own in devices
        .into_iter()
        .flat_map(|devices| devices.config.iter().flatten())
    {
        let named = own.requests.as_deref().unwrap_or_default();
        let of_claim = DeviceAllocationConfiguration {
            opaque: own.opaque.clone(),
            requests: own.requests.clone(),
            source: "FromClaim".to_owned(),
        };
        if named.is_empty() {
            config.push(of_claim);
            continue;
        }
        // Once for each request that it is about.
        let concerned = chosen.iter().filter(|request| {
            let outer = request.split('/').next().unwrap_or_default();
            named.iter().any(|name| name == outer || name == *request)
        });
        config.extend(concerned.map(|_| of_claim.clone()));
    }
    let all = requests(claim).len();
    for own in &mut config {
        // None named means all.
        if own
            .requests
            .as_ref()
            .is_some_and(|named| named.len() == all)
        {
            own.requests = None;
        }
    }
    config
}

fn node_selector(selector: &model::NodeSelector) -> NodeSelector {
    let operator = |operator| match operator {
        Operator::In => "In",
        Operator::NotIn => "NotIn",
        Operator::Exists => "Exists",
        Operator::DoesNotExist => "DoesNotExist",
        Operator::Gt => "Gt",
        Operator::Lt => "Lt",
        // Of node pools only.
        Operator::Gte => "Gte",
        Operator::Lte => "Lte",
    };
    let all = |requirements: &[model::NodeSelectorRequirement]| {
        let requirements = requirements.iter().map(|own| NodeSelectorRequirement {
            key: own.key.clone(),
            operator: operator(own.operator).to_owned(),
            values: (!own.values.is_empty()).then(|| own.values.clone()),
        });
        let requirements: Vec<_> = requirements.collect();
        (!requirements.is_empty()).then_some(requirements)
    };
    let terms = selector
        .node_selector_terms
        .iter()
        .map(|term| NodeSelectorTerm {
            match_expressions: all(&term.match_expressions),
            match_fields: all(&term.match_fields),
        });
    NodeSelector {
        node_selector_terms: terms.collect(),
    }
}

/// Waits until the drivers say that the devices of all the pod's claims are ready.
async fn wait(
    context: &Context,
    recorder: Option<&Recorder>,
    pod: &Pod,
    node: &str,
) -> Result<(), String> {
    if let Some(recorder) = recorder {
        let note = format!("waiting for binding conditions for device on node {node}");
        let (object, kind) = (pod.object_ref(&()), EventType::Normal);
        let reason = "BindingConditionsPending";
        recorder.record_action(object, None, kind, reason, "Scheduling", note);
    }
    let namespace = pod.namespace().unwrap_or_default();
    let patience_ends = Instant::now() + BINDING_PATIENCE;
    loop {
        let mut ready = true;
        for name in claims_of(pod) {
            let claim = context.informers.resource_claims.get(&namespace, &name);
            let claim = claim.ok_or_else(|| {
                format!(
                    "could not find ResourceClaim {:?}",
                    format!("{namespace}/{name}")
                )
            })?;
            match devices::readiness(&claim) {
                Readiness::Ready => {}
                Readiness::Failed(why) => return Err(why),
                Readiness::Waits if devices::is_overdue(&claim, context.clock.now()) => {
                    return Err(format!("claim {name} binding timeout"));
                }
                Readiness::Waits => ready = false,
            }
        }
        // What was just written may not have come back yet: then a claim has no devices, and waits.
        if ready && is_seen(context, &namespace, pod) {
            return Ok(());
        }
        if Instant::now() >= patience_ends {
            return Err("device binding timeout".to_owned());
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Whether the watch shows the pod as a consumer of all its claims.
fn is_seen(context: &Context, namespace: &str, pod: &Pod) -> bool {
    let claims = claims_of(pod).into_iter();
    let mut claims = claims.map(|name| context.informers.resource_claims.get(namespace, &name));
    claims.all(|claim| claim.is_some_and(|claim| is_reserved_for(&claim, pod)))
}

/// Takes the pod off the consumers of its claims again, because it was not bound.
pub(super) async fn unreserve(context: &Context, pod: &Pod) {
    let namespace = pod.namespace().unwrap_or_default();
    let api: Api<ResourceClaim> = Api::namespaced(context.client.clone(), &namespace);
    for name in claims_of(pod) {
        let Some(claim) = context.informers.resource_claims.get(&namespace, &name) else {
            continue;
        };
        let patch = json!({
            "metadata": { "uid": claim.uid() },
            "status": { "reservedFor": [{ "$patch": "delete", "uid": pod.uid() }] },
        });
        let patched = api
            .patch_status(&name, &PatchParams::default(), &Patch::Strategic(patch))
            .await;
        if let Err(error) = patched {
            // The next attempt, or the controller of claims, does it again.
            tracing::debug!(%error, claim = %name, "reservation of a claim not taken back");
        }
    }
}

/// Gives the devices of a claim back that only the pod may have reserved, so that it can have others.
pub(super) async fn deallocate(context: &Context, pod: &Pod, name: &str) {
    let namespace = pod.namespace().unwrap_or_default();
    let Some(known) = context.informers.resource_claims.get(&namespace, name) else {
        return;
    };
    let mut claim = ResourceClaim::clone(&known);
    // Another pod may have come first since that was decided.
    let consumers = claim
        .status
        .iter()
        .flat_map(|status| status.reserved_for.iter().flatten());
    let uid = pod.metadata.uid.as_deref();
    if !consumers
        .into_iter()
        .all(|consumer| Some(consumer.uid.as_str()) == uid)
    {
        return;
    }
    if let Some(status) = &mut claim.status {
        status.allocation = None;
        status.reserved_for = None;
        status.devices = None;
    }
    let api: Api<ResourceClaim> = Api::namespaced(context.client.clone(), &namespace);
    let written = api
        .replace_status(name, &PostParams::default(), &claim)
        .await;
    if let Err(error) = written {
        tracing::debug!(%error, claim = %name, "devices of a claim not given back");
    }
}
