//! ResourceClaims, DeviceClasses and ResourceSlices, compiled: names that are compared often are interned, node
//! selectors are parsed.

use super::capacity::Portions;
use super::pool::PoolId;
use crate::class::{CLASS_PREFIX, is_extended};
use crate::intern::{Interner, Symbol};
use crate::labels::LabelSet;
use crate::model::{
    AllocatedDevice, ClaimAllocation, CounterSet, DeviceClassSpec, DeviceConstraint, DeviceNodes,
    DeviceSpec, ExactRequest, NodeSelector, ResourceClaimSpec, ResourceSliceSpec,
};
use crate::selector::NodeTerm;

/// A device, by the names of its driver, its pool and the device in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DeviceId {
    pub(crate) driver: Symbol,
    pub(crate) pool: Symbol,
    pub(crate) device: Symbol,
}

impl DeviceId {
    pub(crate) fn text(self, names: &Interner) -> String {
        let (driver, pool) = (names.text(self.driver), names.text(self.pool));
        format!("{driver}/{pool}/{}", names.text(self.device))
    }
}

/// A ResourceClaim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The UID of the controlling owner: the pod, if the claim was made for one.
    pub(crate) owner: Option<Symbol>,
    /// Whether the claim was created for extended resources of its owner.
    pub(crate) is_extended: bool,
    /// Whether the claim is being deleted, so that no pod can be placed with it.
    pub(crate) deleting: bool,
    pub(crate) requests: Box<[Request]>,
    pub(crate) constraints: Box<[DeviceConstraint]>,
    /// The UIDs of the pods that use the claim.
    pub(crate) reserved_for: Box<[Symbol]>,
    pub(crate) allocation: Option<Allocation>,
    /// Whether the allocation is decided but not written yet.
    pub(crate) pending: bool,
    /// Whether the allocated devices failed to become ready, or took too long.
    pub(crate) unready: bool,
}

/// A device request with its alternatives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) name: Box<str>,
    /// Whether the request is a list of alternatives, each with its own name.
    pub(crate) is_list: bool,
    pub(crate) alternatives: Box<[Alternative]>,
}

/// One alternative of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Alternative {
    /// The name of the alternative; empty if the request is no list.
    pub(crate) name: Box<str>,
    pub(crate) class: Symbol,
    pub(crate) selectors: Box<[Symbol]>,
    pub(crate) exact: ExactRequest,
}

/// The allocation of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) terms: Option<Box<[NodeTerm]>>,
    pub(crate) devices: Box<[DeviceAllocation]>,
}

/// One device of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceAllocation {
    pub(crate) id: DeviceId,
    pub(crate) admin_access: bool,
    /// The amounts taken from the device if it is shared; `None` if it is allocated as a whole.
    pub(crate) portions: Option<Portions>,
}

impl Claim {
    pub(crate) fn compile(spec: &ResourceClaimSpec, names: &mut Interner) -> Self {
        let mut alternative = |name: &str, exact: &ExactRequest| Alternative {
            name: name.into(),
            class: names.intern(&exact.device_class),
            selectors: exact
                .selectors
                .iter()
                .map(|own| names.intern(own))
                .collect(),
            exact: exact.clone(),
        };
        let requests = spec.requests.iter().map(|request| Request {
            name: request.name.as_str().into(),
            is_list: request.exactly.is_none(),
            alternatives: match &request.exactly {
                Some(exact) => Box::from([alternative("", exact)]),
                None => {
                    let list = request.first_available.iter();
                    list.map(|own| alternative(&own.name, &own.exactly))
                        .collect()
                }
            },
        });
        let requests = requests.collect();
        Claim {
            owner: spec.owner_uid.as_deref().map(|uid| names.intern(uid)),
            is_extended: spec.is_extended,
            deleting: spec.deleting,
            requests,
            constraints: spec.constraints.as_slice().into(),
            reserved_for: spec
                .reserved_for
                .iter()
                .map(|uid| names.intern(uid))
                .collect(),
            allocation: spec
                .allocation
                .as_ref()
                .map(|own| Allocation::compile(own, names)),
            pending: spec.pending,
            unready: spec.unready,
        }
    }
}

impl Allocation {
    fn compile(spec: &ClaimAllocation, names: &mut Interner) -> Self {
        let terms = spec
            .node_selector
            .as_ref()
            .map(|selector| terms(selector, names));
        let device_allocation = |device: &AllocatedDevice| DeviceAllocation {
            id: DeviceId {
                driver: names.intern(&device.driver),
                pool: names.intern(&device.pool),
                device: names.intern(&device.device),
            },
            admin_access: device.admin_access.unwrap_or_default(),
            portions: match &device.consumed_capacity {
                Some(parts) => Some(Portions::of(parts)),
                // A share without counted capacity is shown only by its ID.
                None => device.share_id.as_ref().map(|_| Portions::default()),
            },
        };
        Allocation {
            terms,
            devices: spec.devices.iter().map(device_allocation).collect(),
        }
    }
}

fn terms(selector: &NodeSelector, names: &mut Interner) -> Box<[NodeTerm]> {
    let terms = selector.node_selector_terms.iter();
    terms
        .filter_map(|term| NodeTerm::compile(term, names))
        .collect()
}

/// A DeviceClass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Class {
    pub(crate) selectors: Box<[Symbol]>,
    /// The extended resources that the class stands for.
    pub(crate) resources: Box<[Symbol]>,
    /// The creation time as text that sorts by time.
    pub(crate) created: Box<str>,
}

impl Class {
    pub(crate) fn compile(spec: &DeviceClassSpec, names: &mut Interner) -> Self {
        let implicit = format!("{CLASS_PREFIX}{}", spec.name);
        let explicit = spec.extended_resource_name.as_deref();
        // The implicit name always stands for the class, so naming it again adds nothing.
        let explicit = explicit.filter(|own| is_extended(own) && **own != *implicit);
        let resources = explicit.into_iter().chain([implicit.as_str()]);
        Class {
            resources: resources.map(|own| names.intern(own)).collect(),
            selectors: spec.selectors.iter().map(|own| names.intern(own)).collect(),
            created: spec.created.as_str().into(),
        }
    }
}

/// A ResourceSlice: some of the devices of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) name: Box<str>,
    pub(crate) driver: Symbol,
    pub(crate) pool: Symbol,
    pub(crate) generation: i64,
    pub(crate) slice_count: i64,
    pub(crate) reach: UsableNodes,
    pub(crate) devices: Box<[DeviceSpec]>,
    /// The name of each device and the nodes from which it can be used, in the order of `devices`.
    pub(crate) places: Box<[(Symbol, UsableNodes)]>,
    pub(crate) counters: Box<[CounterSet]>,
    /// The selector that `reach` was compiled from.
    pub(crate) nodes: DeviceNodes,
}

/// The nodes from which devices can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UsableNodes {
    Unknown,
    Node(Symbol),
    All,
    Terms(Box<[NodeTerm]>),
    PerDevice,
}

impl UsableNodes {
    fn compile(nodes: &DeviceNodes, names: &mut Interner) -> Self {
        match nodes {
            DeviceNodes::Unknown => UsableNodes::Unknown,
            DeviceNodes::Node(name) => UsableNodes::Node(names.intern(name)),
            DeviceNodes::All => UsableNodes::All,
            DeviceNodes::Selected(selector) => UsableNodes::Terms(terms(selector, names)),
            DeviceNodes::PerDevice => UsableNodes::PerDevice,
        }
    }

    /// Returns whether a node with this name and these labels can use the devices.
    pub(crate) fn includes(&self, name: Symbol, labels: &LabelSet, names: &Interner) -> bool {
        match self {
            UsableNodes::Node(own) => *own == name,
            UsableNodes::All => true,
            UsableNodes::Terms(terms) => terms.iter().any(|term| term.matches(labels, name, names)),
            // Where each device has its own reach, callers ask that one.
            UsableNodes::Unknown | UsableNodes::PerDevice => false,
        }
    }
}

impl Slice {
    pub(crate) fn compile(spec: &ResourceSliceSpec, names: &mut Interner) -> Self {
        let place = |device: &DeviceSpec| {
            let name = names.intern(&device.name);
            (name, UsableNodes::compile(&device.nodes, names))
        };
        let places = spec.devices.iter().map(place).collect();
        Slice {
            name: spec.name.as_str().into(),
            driver: names.intern(&spec.driver),
            pool: names.intern(&spec.pool),
            generation: spec.generation,
            slice_count: spec.slice_count,
            reach: UsableNodes::compile(&spec.nodes, names),
            devices: spec.devices.as_slice().into(),
            places,
            counters: spec.shared_counters.as_slice().into(),
            nodes: spec.nodes.clone(),
        }
    }

    /// Returns the driver and pool of the slice.
    pub(super) fn pool_id(&self) -> PoolId {
        (self.driver, self.pool)
    }

    /// Returns the node that the slice's devices can be used from, if the slice names a single node.
    pub(crate) fn only_node(&self) -> Option<Symbol> {
        match self.reach {
            UsableNodes::Node(node) => Some(node),
            _ => None,
        }
    }

    /// Returns the id of the device at an index of the slice.
    pub(crate) fn id(&self, device: usize) -> DeviceId {
        DeviceId {
            driver: self.driver,
            pool: self.pool,
            device: self.places[device].0,
        }
    }
}
