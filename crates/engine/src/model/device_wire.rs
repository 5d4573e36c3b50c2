//! The JSON form of ResourceClaims, DeviceClasses and ResourceSlices (resource.k8s.io/v1), from which the flat types of the
//! model are deserialized.
//!
//! As in [`super::wire`], unknown fields are ignored and absent ones get their zero value.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{
    AllocatedDevice, ClaimAllocation, CounterSet, DeviceAttribute, DeviceCapacity, DeviceClassSpec,
    DeviceConstraint, DeviceNodes, DeviceRequest, DeviceSpec, DeviceTaint, DeviceToleration,
    ExactRequest, NodeSelector, PodClaims, Quantity, ResourceClaimSpec, ResourceSliceSpec,
};

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Meta {
    name: String,
    namespace: String,
    creation_timestamp: Option<String>,
    deletion_timestamp: Option<String>,
    owner_references: Vec<Owner>,
    annotations: Option<Annotations>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Annotations {
    #[serde(rename = "resource.kubernetes.io/extended-resource-claim")]
    extended: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Owner {
    uid: String,
    controller: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Claim {
    metadata: Meta,
    spec: ClaimBody,
    status: ClaimStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ClaimBody {
    devices: DeviceClaim,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DeviceClaim {
    requests: Option<Vec<DeviceRequest>>,
    constraints: Option<Vec<DeviceConstraint>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClaimStatus {
    allocation: Option<ClaimAllocation>,
    reserved_for: Vec<Consumer>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Consumer {
    uid: String,
}

impl From<Claim> for ResourceClaimSpec {
    fn from(claim: Claim) -> Self {
        let mut owners = claim.metadata.owner_references.into_iter();
        let reserved_for = claim.status.reserved_for.into_iter();
        ResourceClaimSpec {
            namespace: claim.metadata.namespace,
            name: claim.metadata.name,
            owner_uid: owners.find(|owner| owner.controller).map(|owner| owner.uid),
            is_extended: claim
                .metadata
                .annotations
                .is_some_and(|own| own.extended == "true"),
            deleting: claim.metadata.deletion_timestamp.is_some(),
            requests: claim.spec.devices.requests.unwrap_or_default(),
            constraints: claim.spec.devices.constraints.unwrap_or_default(),
            reserved_for: reserved_for.map(|consumer| consumer.uid).collect(),
            allocation: claim.status.allocation,
            pending: false,
            unready: false,
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Allocation {
    node_selector: Option<NodeSelector>,
    devices: DeviceAllocationResult,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DeviceAllocationResult {
    results: Vec<AllocatedDevice>,
}

impl From<Allocation> for ClaimAllocation {
    fn from(allocation: Allocation) -> Self {
        ClaimAllocation {
            node_selector: allocation.node_selector,
            devices: allocation.devices.results,
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Exact {
    device_class_name: String,
    selectors: Vec<Selector>,
    allocation_mode: String,
    count: Option<i64>,
    admin_access: Option<bool>,
    tolerations: Vec<DeviceToleration>,
    capacity: Option<Portions>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Selector {
    cel: Cel,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Cel {
    expression: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Portions {
    requests: BTreeMap<String, Quantity>,
}

fn expressions(selectors: Vec<Selector>) -> Vec<String> {
    let selectors = selectors.into_iter();
    selectors.map(|selector| selector.cel.expression).collect()
}

impl From<Exact> for ExactRequest {
    fn from(exact: Exact) -> Self {
        ExactRequest {
            device_class: exact.device_class_name,
            selectors: expressions(exact.selectors),
            // The API server's default is one device; "All" has no count.
            count: (exact.allocation_mode != "All").then(|| exact.count.unwrap_or(1)),
            admin_access: exact.admin_access.unwrap_or_default(),
            tolerations: exact.tolerations,
            capacity: exact.capacity.unwrap_or_default().requests,
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Class {
    metadata: Meta,
    spec: ClassBody,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClassBody {
    selectors: Vec<Selector>,
    extended_resource_name: Option<String>,
}

impl From<Class> for DeviceClassSpec {
    fn from(class: Class) -> Self {
        DeviceClassSpec {
            name: class.metadata.name,
            selectors: expressions(class.spec.selectors),
            extended_resource_name: class.spec.extended_resource_name,
            created: class.metadata.creation_timestamp.unwrap_or_default(),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Slice {
    metadata: Meta,
    spec: SliceBody,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SliceBody {
    driver: String,
    pool: Pool,
    #[serde(flatten)]
    nodes: Nodes,
    per_device_node_selection: Option<bool>,
    devices: Vec<DeviceSpec>,
    shared_counters: Vec<CounterSet>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Pool {
    name: String,
    generation: i64,
    resource_slice_count: i64,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Nodes {
    node_name: Option<String>,
    node_selector: Option<NodeSelector>,
    all_nodes: Option<bool>,
}

impl From<Nodes> for DeviceNodes {
    fn from(nodes: Nodes) -> Self {
        match (nodes.node_name, nodes.all_nodes, nodes.node_selector) {
            // Exactly one of the three is set; the order only matters for objects that validation never saw.
            (Some(name), _, _) if !name.is_empty() => DeviceNodes::Node(name),
            (_, Some(true), _) => DeviceNodes::All,
            (_, _, Some(selector)) => DeviceNodes::Selected(selector),
            _ => DeviceNodes::Unknown,
        }
    }
}

impl From<Slice> for ResourceSliceSpec {
    fn from(slice: Slice) -> Self {
        let nodes = match DeviceNodes::from(slice.spec.nodes) {
            DeviceNodes::Unknown if slice.spec.per_device_node_selection == Some(true) => {
                DeviceNodes::PerDevice
            }
            nodes => nodes,
        };
        ResourceSliceSpec {
            name: slice.metadata.name,
            driver: slice.spec.driver,
            pool: slice.spec.pool.name,
            generation: slice.spec.pool.generation,
            slice_count: slice.spec.pool.resource_slice_count,
            nodes,
            devices: slice.spec.devices,
            shared_counters: slice.spec.shared_counters,
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Device {
    name: String,
    attributes: BTreeMap<String, DeviceAttribute>,
    capacity: BTreeMap<String, DeviceCapacity>,
    consumes_counters: Vec<CounterSet>,
    #[serde(flatten)]
    nodes: Nodes,
    taints: Vec<DeviceTaint>,
    binds_to_node: Option<bool>,
    binding_conditions: Vec<String>,
    binding_failure_conditions: Vec<String>,
    allow_multiple_allocations: Option<bool>,
}

impl From<Device> for DeviceSpec {
    fn from(device: Device) -> Self {
        DeviceSpec {
            name: device.name,
            attributes: device.attributes,
            capacity: device.capacity,
            consumes_counters: device.consumes_counters,
            nodes: device.nodes.into(),
            taints: device.taints,
            binds_to_node: device.binds_to_node.unwrap_or_default(),
            binding_conditions: device.binding_conditions,
            binding_failure_conditions: device.binding_failure_conditions,
            allow_multiple_allocations: device.allow_multiple_allocations.unwrap_or_default(),
        }
    }
}

/// A counter set: a pool's sets have a `name`, and those of a device refer to one by `counterSet`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Counters {
    name: String,
    counter_set: String,
    counters: BTreeMap<String, Counter>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Counter {
    value: Quantity,
}

impl From<Counters> for CounterSet {
    fn from(set: Counters) -> Self {
        let counters = set.counters.into_iter();
        CounterSet {
            name: if set.name.is_empty() {
                set.counter_set
            } else {
                set.name
            },
            counters: counters
                .map(|(name, counter)| (name, counter.value))
                .collect(),
        }
    }
}

/// An entry of a pod's `spec.resourceClaims`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodClaim {
    name: String,
    resource_claim_name: Option<String>,
}

/// An entry of a pod's `status.resourceClaimStatuses`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ClaimName {
    name: String,
    resource_claim_name: Option<String>,
}

/// Returns the claims of a pod, given by name and UID; `None` if it has none.
pub(super) fn claims(
    (pod, uid): (&str, &str),
    wanted: Vec<PodClaim>,
    made: &[ClaimName],
) -> Option<Box<PodClaims>> {
    let named = |own: PodClaim| match own.resource_claim_name {
        Some(name) => Some(super::PodClaim {
            claim: Some(name),
            generated: false,
        }),
        None => {
            let made = made.iter().find(|made| made.name == own.name);
            let claim = made.map(|made| made.resource_claim_name.clone());
            // If a template turned out not to be needed, the status has an entry without a claim name.
            (claim != Some(None)).then(|| super::PodClaim {
                claim: claim.flatten(),
                generated: true,
            })
        }
    };
    let claims: Vec<_> = wanted.into_iter().filter_map(named).collect();
    (!claims.is_empty()).then(|| {
        Box::new(PodClaims {
            pod: pod.to_owned(),
            uid: uid.to_owned(),
            claims,
            left: None,
        })
    })
}
