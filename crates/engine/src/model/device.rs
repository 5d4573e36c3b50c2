//! Devices as the scheduler sees them: what drivers offer (ResourceSlices), what pods claim (ResourceClaims, DeviceClasses), and what they were given.
//!
//! Expressions stay text here: who evaluates them is the caller's ([`DeviceJudge`]), since the engine has no language of its own.

use std::collections::BTreeMap;
use std::fmt;

use super::{NodeSelector, Quantity};

/// Says which devices an expression chooses.
pub trait DeviceJudge: fmt::Debug + Send + Sync {
    /// What an expression says about each of a driver's devices: whether it chooses it, or why it cannot be evaluated.
    ///
    /// # Errors
    /// The expression does not compile, in the words of its language.
    fn judge(
        &self,
        expression: &str,
        driver: &str,
        devices: &[DeviceSpec],
    ) -> Result<Vec<Result<bool, String>>, String>;
}

/// The claims of a pod (`spec.resourceClaims`). Claims know their users by UID, so pods with claims are no siblings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodClaims {
    /// The pod's name.
    pub pod: String,
    /// The pod's UID.
    pub uid: String,
    /// In the pod's order, without those for which a template turned out not to be needed.
    pub claims: Vec<PodClaim>,
    /// The claim for extended resources that an attempt to place the pod has left behind.
    pub left: Option<String>,
}

/// What stands for the extended resources of a pod on the node that it goes to, if a DeviceClass stands for some there: the claim to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtendedClaim {
    /// `spec.devices.requests`, each for a number of devices of a class.
    pub requests: Vec<DeviceRequest>,
    /// Which containers get the devices of which requests.
    pub uses: Vec<ExtendedUse>,
    /// The devices.
    pub allocation: ClaimAllocation,
}

/// A container of a pod, a resource it asks for, and a request that stands for it or for some of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtendedUse {
    /// The container's place among the pod's init containers and, after them, its containers.
    pub container: usize,
    /// The resource.
    pub resource: String,
    /// The request in the claim.
    pub request: String,
}

/// Devices that are found for a pod on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceChoices {
    /// By name of the claim that had none.
    pub claims: Vec<(String, ClaimAllocation)>,
    /// For its extended resources.
    pub extended: Option<ExtendedClaim>,
}

/// One claim of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodClaim {
    /// The claim's name, in the pod's namespace; none while one that is made from a template is not there yet.
    pub claim: Option<String>,
    /// It is made from a template for this pod alone.
    pub generated: bool,
}

/// What of a ResourceClaim matters to placement.
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
    /// It stands for extended resources of the pod that owns it.
    pub is_extended: bool,
    /// `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// `spec.devices.requests`.
    pub requests: Vec<DeviceRequest>,
    /// `spec.devices.constraints`.
    pub constraints: Vec<DeviceConstraint>,
    /// UIDs in `status.reservedFor`.
    pub reserved_for: Vec<String>,
    /// `status.allocation`.
    pub allocation: Option<ClaimAllocation>,
    /// The allocation is decided but not written yet.
    pub pending: bool,
    /// The devices it was given failed to become ready, or took too long.
    pub unready: bool,
}

/// What a claim was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(from = "super::device_wire::Allocation")
)]
pub struct ClaimAllocation {
    /// From where the devices can be used; `None` for everywhere.
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
    /// Its driver.
    pub driver: String,
    /// Its pool.
    pub pool: String,
    /// Its name in the pool.
    pub device: String,
    /// Used beside others: it is not taken.
    #[cfg_attr(feature = "serde", serde(rename = "adminAccess"))]
    pub admin_access: Option<bool>,
    /// It is shared: what part of it, by name of the capacity.
    pub consumed_capacity: Option<BTreeMap<String, Quantity>>,
    /// It is shared, even if nothing of it is counted: what tells this part from others.
    #[cfg_attr(feature = "serde", serde(rename = "shareID"))]
    pub share_id: Option<String>,
}

/// One request of a claim: for one of several alternatives, the first that can be had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct DeviceRequest {
    /// Unique in the claim.
    pub name: String,
    /// The only alternative.
    pub exactly: Option<ExactRequest>,
    /// Alternatives, the most wanted first.
    pub first_available: Vec<SubRequest>,
}

/// A named alternative.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
pub struct SubRequest {
    /// Unique in its request.
    pub name: String,
    /// What it asks for; never administrative access.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub exactly: ExactRequest,
}

/// So many devices of a class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(from = "super::device_wire::Exact")
)]
pub struct ExactRequest {
    /// The DeviceClass.
    pub device_class: String,
    /// CEL expressions that must all choose a device.
    pub selectors: Vec<String>,
    /// How many; `None` for all there are.
    pub count: Option<i64>,
    /// To watch over devices that others use.
    pub admin_access: bool,
    /// Taints of devices that do not matter.
    pub tolerations: Vec<DeviceToleration>,
    /// Parts of devices that can be shared.
    pub capacity: BTreeMap<String, Quantity>,
}

/// What the devices of some requests must have in common, or may not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct DeviceConstraint {
    /// Names of requests or `request/subrequest`; none means all.
    pub requests: Vec<String>,
    /// The attribute must be the same.
    pub match_attribute: Option<String>,
    /// The attribute must differ.
    pub distinct_attribute: Option<String>,
}

/// What of a DeviceClass matters to placement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(from = "super::device_wire::Class")
)]
pub struct DeviceClassSpec {
    /// `metadata.name`.
    pub name: String,
    /// CEL expressions that must all choose a device.
    pub selectors: Vec<String>,
    /// `spec.extendedResourceName`: the resource that it stands for, beside the one that is named after it.
    pub extended_resource_name: Option<String>,
    /// `metadata.creationTimestamp` as it is written; of several classes for one resource the youngest counts.
    pub created: String,
}

/// What of a ResourceSlice matters to placement: some devices of a driver's pool.
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
    /// `spec.pool.generation`: slices of older ones do not count.
    pub generation: i64,
    /// `spec.pool.resourceSliceCount`: how many slices the generation has.
    pub slice_count: i64,
    /// From where the devices can be used.
    pub nodes: DeviceNodes,
    /// `spec.devices`.
    pub devices: Vec<DeviceSpec>,
    /// `spec.sharedCounters`.
    pub shared_counters: Vec<CounterSet>,
}

/// From where devices can be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceNodes {
    /// Not told.
    #[default]
    Unknown,
    /// From the node of this name.
    Node(String),
    /// From every node.
    All,
    /// From the nodes that are selected.
    Selected(NodeSelector),
    /// Each device of the slice tells for itself.
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
    /// Unique in its pool.
    pub name: String,
    /// By name, with a domain or in the driver's.
    pub attributes: BTreeMap<String, DeviceAttribute>,
    /// By name, with a domain or in the driver's.
    pub capacity: BTreeMap<String, DeviceCapacity>,
    /// What it takes of the pool's counters.
    pub consumes_counters: Vec<CounterSet>,
    /// From where it can be used, where its slice leaves that to it.
    pub nodes: DeviceNodes,
    /// What requests must tolerate.
    pub taints: Vec<DeviceTaint>,
    /// Whoever gets it can only use it from the node it was given on.
    pub binds_to_node: bool,
    /// Conditions to wait for before a pod is bound.
    pub binding_conditions: Vec<String>,
    /// Conditions that say that it will not become ready.
    pub binding_failure_conditions: Vec<String>,
    /// Several claims may have parts of it.
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
    /// A text.
    #[cfg_attr(feature = "serde", serde(rename = "string"))]
    Text(String),
    /// A semantic version.
    #[cfg_attr(feature = "serde", serde(rename = "version"))]
    Version(String),
}

/// How much of something a device has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct DeviceCapacity {
    /// In all.
    pub value: Quantity,
    /// In what portions, where it can be shared.
    pub request_policy: Option<RequestPolicy>,
}

/// What parts of a capacity there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct RequestPolicy {
    /// For those who ask for none.
    pub default: Option<Quantity>,
    /// One of these, in ascending order.
    pub valid_values: Vec<Quantity>,
    /// Something between.
    pub valid_range: Option<ValidRange>,
}

/// Amounts from the least to the most, in steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
pub struct ValidRange {
    /// The least.
    pub min: Option<Quantity>,
    /// The most.
    pub max: Option<Quantity>,
    /// Multiples of this above the least.
    pub step: Option<Quantity>,
}

/// Counters of a pool by name: how much there is, or how much a device takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(from = "super::device_wire::Counters")
)]
pub struct CounterSet {
    /// Unique in the pool.
    pub name: String,
    /// By name.
    pub counters: BTreeMap<String, Quantity>,
}

/// A taint of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
pub struct DeviceTaint {
    /// Key.
    pub key: String,
    /// Value.
    pub value: String,
    /// `NoSchedule` and `NoExecute` keep requests away, others do not.
    pub effect: String,
}

/// Lets a request have devices with a taint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
pub struct DeviceToleration {
    /// Empty for every key.
    pub key: String,
    /// `Exists`, or `Equal` (also when empty).
    pub operator: String,
    /// With what `Equal` compares.
    pub value: String,
    /// Empty for every effect.
    pub effect: String,
}

impl DeviceToleration {
    /// Whether it makes a taint not matter (dynamic-resource-allocation: `resourceclaim.ToleratesTaint`).
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
