//! Devices of dynamic resource allocation: what drivers offer (ResourceSlices), what pods claim (ResourceClaims,
//! DeviceClasses), and what is allocated.
//!
//! CEL expressions stay text here: the caller evaluates them ([`DeviceJudge`]), since the engine has no CEL interpreter.

use std::collections::BTreeMap;
use std::fmt;

use super::{NodeSelector, Quantity};

/// Evaluates the CEL selectors of devices.
pub trait DeviceJudge: fmt::Debug + Send + Sync {
    /// Returns for each of a driver's devices whether the expression selects it, or the evaluation error.
    ///
    /// # Errors
    /// Returns CEL's message if the expression does not compile.
    fn judge(
        &self,
        expression: &str,
        driver: &str,
        devices: &[DeviceSpec],
    ) -> Result<Vec<Result<bool, String>>, String>;
}

/// The claims of a pod (`spec.resourceClaims`). Claims refer to their users by UID, so pods with claims do not share a
/// template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodClaims {
    /// The pod's name.
    pub pod: String,
    /// The pod's UID.
    pub uid: String,
    /// The claims in the pod's order, without those for which a template turned out not to be needed.
    pub claims: Vec<PodClaim>,
    /// A leftover claim for extended resources from an earlier attempt to place the pod.
    pub left: Option<String>,
}

/// The ResourceClaim to be created for a pod's extended resources that a DeviceClass provides on the chosen node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtendedClaim {
    /// `spec.devices.requests`, each for a number of devices of one class.
    pub requests: Vec<DeviceRequest>,
    /// Which containers get the devices of which requests.
    pub uses: Vec<ExtendedUse>,
    /// The allocated devices.
    pub allocation: ClaimAllocation,
}

/// A request that provides a container's extended resource, entirely or in part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtendedUse {
    /// The container's index among the pod's init containers followed by its containers.
    pub container: usize,
    /// The extended resource.
    pub resource: String,
    /// The name of the request in the claim.
    pub request: String,
}

/// The devices chosen for the claims and extended resources of a pod on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceChoices {
    /// The allocation of each claim that had none, by claim name.
    pub claims: Vec<(String, ClaimAllocation)>,
    /// The claim for the pod's extended resources, if one must be created.
    pub extended: Option<ExtendedClaim>,
}

/// One claim of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodClaim {
    /// The claim's name in the pod's namespace; `None` while a claim from a template is not created yet.
    pub claim: Option<String>,
    /// Whether the claim is created from a template for this pod alone.
    pub generated: bool,
}

/// The fields of a ResourceClaim that affect placement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(from = "super::device_wire::Claim")
)]
pub struct ResourceClaimSpec {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// UID of the controlling owner.
    pub owner_uid: Option<String>,
    /// Whether it is the claim for extended resources of the pod that owns it.
    pub is_extended: bool,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// `spec.devices.requests`.
    pub requests: Vec<DeviceRequest>,
    /// `spec.devices.constraints`.
    pub constraints: Vec<DeviceConstraint>,
    /// UIDs in `status.reservedFor`.
    pub reserved_for: Vec<String>,
    /// `status.allocation`.
    pub allocation: Option<ClaimAllocation>,
    /// Whether the allocation is decided but not written yet.
    pub pending: bool,
    /// Whether the allocated devices failed to become ready, or took too long.
    pub unready: bool,
}

/// The allocation of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(from = "super::device_wire::Allocation")
)]
pub struct ClaimAllocation {
    /// The nodes from which the devices can be used; `None` for all.
    pub node_selector: Option<NodeSelector>,
    /// The devices, in the order in which they were found.
    pub devices: Vec<AllocatedDevice>,
}

/// One device of an allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct AllocatedDevice {
    /// The request, or `request/subrequest`.
    pub request: String,
    /// The device's driver.
    pub driver: String,
    /// The device's pool.
    pub pool: String,
    /// The device's name in the pool.
    pub device: String,
    /// Whether it is used with administrative access, which does not make it unavailable to others.
    #[cfg_attr(feature = "serde", serde(rename = "adminAccess"))]
    pub admin_access: Option<bool>,
    /// The consumed amount of each capacity by name, if the device is shared.
    pub consumed_capacity: Option<BTreeMap<String, Quantity>>,
    /// The ID that distinguishes this share, if the device is shared, even if no capacity is counted.
    #[cfg_attr(feature = "serde", serde(rename = "shareID"))]
    pub share_id: Option<String>,
}

/// One request of a claim. With alternatives, the first that can be satisfied is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct DeviceRequest {
    /// The name, unique in the claim.
    pub name: String,
    /// The request, if it has no alternatives.
    pub exactly: Option<ExactRequest>,
    /// Alternatives, the most preferred first.
    pub first_available: Vec<SubRequest>,
}

/// A named alternative.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
pub struct SubRequest {
    /// The name, unique in its request.
    pub name: String,
    /// The request; never with administrative access.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub exactly: ExactRequest,
}

/// A number of devices of one class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(from = "super::device_wire::Exact")
)]
pub struct ExactRequest {
    /// The name of the DeviceClass.
    pub device_class: String,
    /// CEL expressions that must all select a device.
    pub selectors: Vec<String>,
    /// The number of devices; `None` for all matching ones.
    pub count: Option<i64>,
    /// Whether to get administrative access to devices that others may use.
    pub admin_access: bool,
    /// Tolerated taints of devices.
    pub tolerations: Vec<DeviceToleration>,
    /// Requested capacity of devices that can be shared.
    pub capacity: BTreeMap<String, Quantity>,
}

/// A constraint on an attribute of the devices of several requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct DeviceConstraint {
    /// Names of requests or `request/subrequest`; empty means all.
    pub requests: Vec<String>,
    /// An attribute whose value must be the same on all devices.
    pub match_attribute: Option<String>,
    /// An attribute whose value must differ on all devices.
    pub distinct_attribute: Option<String>,
}

/// The fields of a DeviceClass that matter to placement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(from = "super::device_wire::Class")
)]
pub struct DeviceClassSpec {
    /// `metadata.name`.
    pub name: String,
    /// CEL expressions that must all select a device.
    pub selectors: Vec<String>,
    /// `spec.extendedResourceName`: an extended resource that the class provides, in addition to the one named after the
    /// class.
    pub extended_resource_name: Option<String>,
    /// `metadata.creationTimestamp` as text; of several classes for one resource the youngest is used.
    pub created: String,
}

/// The fields of a ResourceSlice that matter to placement: some devices of a driver's pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(from = "super::device_wire::Slice")
)]
pub struct ResourceSliceSpec {
    /// `metadata.name`.
    pub name: String,
    /// `spec.driver`.
    pub driver: String,
    /// `spec.pool.name`.
    pub pool: String,
    /// `spec.pool.generation`: slices of older generations are ignored.
    pub generation: i64,
    /// `spec.pool.resourceSliceCount`: the number of slices of the generation.
    pub slice_count: i64,
    /// The nodes from which the devices can be used.
    pub nodes: DeviceNodes,
    /// `spec.devices`.
    pub devices: Vec<DeviceSpec>,
    /// `spec.sharedCounters`.
    pub shared_counters: Vec<CounterSet>,
}

/// The nodes from which devices can be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceNodes {
    /// The slice does not say.
    #[default]
    Unknown,
    /// The node of this name.
    Node(String),
    /// All nodes.
    All,
    /// The selected nodes.
    Selected(NodeSelector),
    /// Each device of the slice has its own selection.
    PerDevice,
}

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(from = "super::device_wire::Device")
)]
pub struct DeviceSpec {
    /// The name, unique in its pool.
    pub name: String,
    /// Attributes by name, with a domain or in the driver's own.
    pub attributes: BTreeMap<String, DeviceAttribute>,
    /// Capacities by name, with a domain or in the driver's own.
    pub capacity: BTreeMap<String, DeviceCapacity>,
    /// The amounts that it consumes of the pool's counters.
    pub consumes_counters: Vec<CounterSet>,
    /// The nodes from which it can be used, if its slice says [`DeviceNodes::PerDevice`].
    pub nodes: DeviceNodes,
    /// Taints that requests must tolerate.
    pub taints: Vec<DeviceTaint>,
    /// Whether an allocation of the device can only be used from the node for which it was made.
    pub binds_to_node: bool,
    /// Conditions that must be true before a pod is bound.
    pub binding_conditions: Vec<String>,
    /// Conditions that mean that the device will not become ready.
    pub binding_failure_conditions: Vec<String>,
    /// Whether several claims may have shares of it.
    pub allow_multiple_allocations: bool,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
pub enum DeviceAttribute {
    /// An integer.
    #[cfg_attr(feature = "serde", serde(rename = "int"))]
    Int(i64),
    /// True or false.
    #[cfg_attr(feature = "serde", serde(rename = "bool"))]
    Bool(bool),
    /// A string.
    #[cfg_attr(feature = "serde", serde(rename = "string"))]
    Text(String),
    /// A semantic version.
    #[cfg_attr(feature = "serde", serde(rename = "version"))]
    Version(String),
}

/// One capacity of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct DeviceCapacity {
    /// The total amount.
    pub value: Quantity,
    /// How it can be divided, if the device is shared.
    pub request_policy: Option<RequestPolicy>,
}

/// The shares of a capacity that can be requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct RequestPolicy {
    /// The share that a request without an amount gets.
    pub default: Option<Quantity>,
    /// The allowed shares in ascending order.
    pub valid_values: Vec<Quantity>,
    /// A range of allowed shares.
    pub valid_range: Option<ValidRange>,
}

/// The allowed shares between a minimum and a maximum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
pub struct ValidRange {
    /// The minimum.
    pub min: Option<Quantity>,
    /// The maximum.
    pub max: Option<Quantity>,
    /// The allowed distance of a share from the minimum is a multiple of this.
    pub step: Option<Quantity>,
}

/// Counters of a pool by name: the available amounts, or the amounts that a device consumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(from = "super::device_wire::Counters")
)]
pub struct CounterSet {
    /// The name, unique in the pool.
    pub name: String,
    /// Amounts by counter name.
    pub counters: BTreeMap<String, Quantity>,
}

/// A taint of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
pub struct DeviceTaint {
    /// The taint's key.
    pub key: String,
    /// The taint's value.
    pub value: String,
    /// `NoSchedule` and `NoExecute` exclude the device, other effects do not.
    pub effect: String,
}

/// Allows a request to get devices with a taint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
pub struct DeviceToleration {
    /// The taint key that is tolerated; empty for every key.
    pub key: String,
    /// `Exists`, or `Equal` (also when empty).
    pub operator: String,
    /// The value that `Equal` compares with.
    pub value: String,
    /// The effect that is tolerated; empty for every effect.
    pub effect: String,
}

impl DeviceToleration {
    /// Returns whether the taint is tolerated (dynamic-resource-allocation: `resourceclaim.ToleratesTaint`).
    pub fn tolerates(&self, taint: &DeviceTaint) -> bool {
        let same = |own: &str, other: &str| own.is_empty() || own == other;
        let value = match self.operator.as_str() {
            "" | "Equal" => self.value == taint.value,
            "Exists" => true,
            _ => false,
        };
        same(&self.effect, &taint.effect) && same(&self.key, &taint.key) && value
    }
}
