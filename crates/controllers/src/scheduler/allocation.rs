//! Builds the allocation that the scheduler writes to a ResourceClaim: the devices that the engine chose, with the
//! configuration and tolerations from the claim, its classes and the slices.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm},
        resource::v1::{
            AllocationResult, Device, DeviceAllocationConfiguration, DeviceAllocationResult,
            DeviceRequest, DeviceRequestAllocationResult, DeviceToleration, ResourceClaim,
        },
    },
    apimachinery::pkg::api::resource::Quantity,
};
use mullion_engine::model::{self, AllocatedDevice, ClaimAllocation, Operator};

use crate::Context;

/// Returns the allocation of a claim for the devices that the engine chose.
pub(super) fn allocation_of(
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

/// Returns the device class and the tolerations of the request or alternative (`request/alternative`) of that name.
fn asked<'a>(
    claim: &'a ResourceClaim,
    name: &str,
) -> Option<(&'a str, Option<&'a Vec<DeviceToleration>>)> {
    // Results of a `firstAvailable` request are named `request/alternative`.
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
        // The share ID distinguishes the consumers of one device.
        share_id: consumed.is_some().then(|| uuid::Uuid::new_v4().to_string()),
        consumed_capacity: consumed.filter(|parts| !parts.is_empty()),
        device: given.device.clone(),
        driver: given.driver.clone(),
        pool: given.pool.clone(),
        request: given.request.clone(),
        tolerations: tolerations.cloned(),
    }
}

/// Returns a device as its driver published it.
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
        // A driver that updates a pool leaves slices of the older generation for a while.
        (has_it, slice.spec.pool.generation)
    })?;
    let mut devices = newest.spec.devices.iter().flatten();
    devices.find(|own| own.name == given.device).cloned()
}

/// Returns the configurations for the drivers: those of the classes, each once, then those of the claim.
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
        // The configuration of a class is listed once, with all requests that use the class.
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
        // kube-scheduler repeats a configuration once for each request that it names.
        let concerned = chosen.iter().filter(|request| {
            let outer = request.split('/').next().unwrap_or_default();
            named.iter().any(|name| name == outer || name == *request)
        });
        config.extend(concerned.map(|_| of_claim.clone()));
    }
    let all = requests(claim).len();
    for own in &mut config {
        // An empty list stands for all requests.
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
        // These operators occur only in NodePools.
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
