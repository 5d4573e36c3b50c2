//! Extended resources that DeviceClasses provide: on a node without the resource itself, a pod's request for it becomes a
//! request for devices.

use super::object::{Alternative, Class, Request, UsableNodes};
use super::search::UnallocatedClaim;
use super::{Devices, Key, Verdict};
use crate::class::{ExtendedResource, PodClass, RequestUse};
use crate::intern::{Interner, Symbol};
use crate::model::{DeviceRequest, ExactRequest, ExtendedUse};
use crate::reason::Reason;
use crate::resources::Amounts;
use crate::selector::Site;

/// A placeholder for the name of the claim that is not created yet. It is not a valid object name.
const CLAIM_TO_BE: &str = "<extended-resources>";

/// The extended resources of a pod, split by whether a DeviceClass provides them. Empty if no class provides any.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExtendedResources {
    /// The resources that classes provide, by name.
    backed: Vec<BackedResource>,
    /// The pod's other extended resources.
    plain: Vec<Symbol>,
    /// A leftover claim from an earlier attempt to place the pod.
    pub(crate) left: Option<Symbol>,
    /// The key of the claim while it is not created yet.
    claim: Option<Key>,
}

/// A resource that a DeviceClass provides.
#[derive(Clone, Debug)]
pub(crate) struct BackedResource {
    resource: Symbol,
    class: Symbol,
    requests: Vec<Request>,
    uses: Box<[RequestUse]>,
}

impl ExtendedResources {
    pub(super) fn of(pod: &PodClass, devices: &Devices, names: &mut Interner) -> Self {
        let mut resources = ExtendedResources::default();
        for own in &pod.extended {
            match devices.class_for(own.name, names) {
                Some(class) => resources.backed.push(BackedResource::of(own, class, names)),
                None => resources.plain.push(own.name),
            }
        }
        // Without a class, NodeResourcesFit decides about all of them.
        if resources.backed.is_empty() {
            return ExtendedResources::default();
        }
        resources.claim = Some((pod.namespace, names.intern(CLAIM_TO_BE)));
        let left = pod.devices.as_ref().and_then(|claims| claims.left);
        resources.left = left.filter(|left| devices.claim((pod.namespace, *left)).is_some());
        resources
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.backed.is_empty()
    }

    /// Returns the class that provides a resource of the pod.
    pub(crate) fn class_for(&self, resource: Symbol) -> Option<Symbol> {
        let mut backed = self.backed.iter();
        backed
            .find(|own| own.resource == resource)
            .map(|own| own.class)
    }

    /// Returns the classes that provide resources of the pod.
    pub(super) fn classes<'a>(&self, devices: &'a Devices) -> impl Iterator<Item = &'a Class> {
        let backed = self.backed.iter();
        backed.filter_map(|own| devices.class(own.class))
    }

    /// Returns the resources for which the node needs devices, because it does not have the resources themselves.
    ///
    /// # Errors
    /// Returns an error if the node lacks a resource that no class provides.
    pub(crate) fn on(&self, node: &Amounts) -> Result<NodeExtendedResources<'_>, Reason> {
        if let Some(resource) = self.plain.iter().find(|name| !node.knows(**name)) {
            let resource = *resource;
            return Err(Reason::ResourceMissing { resource });
        }
        // A node that offers the resource itself provides it through its device plugin, even if a class exists.
        let missing = |own: &&BackedResource| node.scalar(own.resource) == 0;
        Ok(NodeExtendedResources {
            claim: self.claim,
            backed: self.backed.iter().filter(missing).collect(),
        })
    }
}

impl BackedResource {
    fn of(own: &ExtendedResource, class: Symbol, names: &Interner) -> Self {
        let request = |name: &str, count| Request {
            name: name.into(),
            is_list: false,
            alternatives: Box::from([Alternative {
                name: Box::default(),
                class,
                selectors: Box::default(),
                exact: ExactRequest {
                    device_class: names.text(class).to_owned(),
                    count: Some(count),
                    ..ExactRequest::default()
                },
            }]),
        };
        let requests = own.requests.iter();
        BackedResource {
            resource: own.name,
            class,
            requests: requests.map(|own| request(&own.name, own.count)).collect(),
            uses: own.uses.clone(),
        }
    }
}

/// The resources of a pod for which a node needs devices.
pub(crate) struct NodeExtendedResources<'a> {
    claim: Option<Key>,
    backed: Vec<&'a BackedResource>,
}

impl<'a> NodeExtendedResources<'a> {
    /// Returns the requests of the claim to be created; `None` if there are none.
    pub(crate) fn unallocated_claim(&self) -> Option<UnallocatedClaim<'a>> {
        let mut requests: Vec<&Request> = self
            .backed
            .iter()
            .flat_map(|own| own.requests.iter())
            .collect();
        // Sorted by name, so that the claim does not depend on the order of the resources.
        requests.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let key = self.claim?;
        (!requests.is_empty()).then_some(UnallocatedClaim {
            key,
            requests,
            constraints: &[],
        })
    }

    /// Returns which containers get which requests, in kube-scheduler's order.
    pub(crate) fn uses(&self, names: &Interner) -> Vec<ExtendedUse> {
        let uses = self.backed.iter().flat_map(|backed| {
            backed.uses.iter().map(|own| ExtendedUse {
                container: own.container,
                resource: names.text(backed.resource).to_owned(),
                request: own.request.to_string(),
            })
        });
        uses.collect()
    }
}

/// Returns requests in the form in which they are written into a claim.
pub(crate) fn written(claim: &UnallocatedClaim<'_>) -> Vec<DeviceRequest> {
    let requests = claim.requests.iter().map(|own| DeviceRequest {
        name: own.name.to_string(),
        exactly: own.alternatives.first().map(|own| own.exact.clone()),
        first_available: Vec::new(),
    });
    requests.collect()
}

impl Devices {
    /// Returns whether a DeviceClass provides any of a pod's extended resources.
    pub(crate) fn stand_for(&self, pod: &PodClass) -> bool {
        let mut extended = pod.extended.iter();
        extended.any(|own| self.standing.contains_key(&own.name))
    }

    /// Returns the claims that were created for the extended resources of a pod.
    pub(crate) fn extended_claims_of(&self, pod: Symbol) -> Vec<Key> {
        let own = self.claims.iter();
        let own = own.filter(|(_, claim)| claim.is_extended && claim.owner == Some(pod));
        own.map(|(key, _)| *key).collect()
    }

    /// Returns the class that provides a resource: the youngest, then the first by name (dynamic-resource-allocation:
    /// `ExtendedResourceCache`).
    fn class_for(&self, resource: Symbol, names: &Interner) -> Option<Symbol> {
        let classes = self.standing.get(&resource)?.iter().copied();
        classes.max_by(|a, b| {
            let created = |class: &Symbol| self.class(*class).map(|own| &own.created);
            let by_name = names.text(*b).cmp(names.text(*a));
            created(a).cmp(&created(b)).then(by_name)
        })
    }

    /// Returns the number of devices of a class that a node can use, and how many of them are allocated (kube-scheduler:
    /// `calculateDRAResourceTotals`). Both are 0 if a selector cannot be evaluated for a device. The selectors were
    /// evaluated when the plan was made.
    pub(crate) fn stock(&self, class: Symbol, site: Site<'_>) -> (i64, i64) {
        let (mut all, mut taken) = (0, 0);
        let Some(class) = self.class(class) else {
            return (0, 0);
        };
        let includes = |reach: &UsableNodes| reach.includes(site.name, site.labels, site.names);
        for slice in self.slices_for(site) {
            for device in 0..slice.devices.len() {
                let reach = match &slice.reach {
                    UsableNodes::PerDevice => &slice.places[device].1,
                    reach => reach,
                };
                if !includes(reach) {
                    continue;
                }
                let mut verdicts = class.selectors.iter();
                let differs = verdicts.find_map(|expression| {
                    let verdict = self.verdict(*expression, slice, device);
                    (verdict != Ok(&Verdict::Matches)).then_some(verdict)
                });
                match differs {
                    None => {
                        all += 1;
                        taken += i64::from(self.is_allocated(slice.id(device)));
                    }
                    Some(Ok(Verdict::Differs)) => {}
                    Some(_) => return (0, 0),
                }
            }
        }
        (all, taken)
    }
}
