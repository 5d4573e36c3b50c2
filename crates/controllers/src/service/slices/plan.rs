//! Fits the endpoints that a Service should have into slices, changing as few of them as possible. Pure.
//!
//! Invariant: after a [`Plan`] is carried out, the Service's slices together hold each wanted endpoint once, none
//! holds more than [`MAX_ENDPOINTS`], all endpoints of a slice share its ports, and there is at least one slice. An
//! endpoint stays in its slice as long as it is wanted (endpointslice: `Reconciler`).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::{
    api::{
        core::v1::Service,
        discovery::v1::{Endpoint, EndpointPort, EndpointSlice},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::ResourceExt;

use crate::{ownership, service::backend};

/// The most endpoints per slice.
pub(super) const MAX_ENDPOINTS: usize = 100;
pub(super) const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
pub(super) const MANAGED_BY_LABEL: &str = "endpointslice.kubernetes.io/managed-by";
pub(super) const MANAGER: &str = "endpointslice-controller.k8s.io";

/// Endpoints grouped by the ports on which they serve.
pub(super) type EndpointsByPorts = BTreeMap<PortKey, (Vec<EndpointPort>, Vec<Endpoint>)>;

/// Ports in a form that can be compared: name, number, protocol, application protocol.
pub(super) type PortKey = Vec<(String, i32, String, String)>;

/// The slices to create, update and delete. `update` holds complete new versions.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) create: Vec<EndpointSlice>,
    pub(super) update: Vec<EndpointSlice>,
    pub(super) delete: Vec<Arc<EndpointSlice>>,
}

impl Plan {
    /// Iterates the slices that the plan writes, so that the caller can change them further.
    pub(super) fn written(&mut self) -> impl Iterator<Item = &mut EndpointSlice> {
        self.create.iter_mut().chain(&mut self.update)
    }

    /// Returns whether the plan neither updates nor deletes `slice`.
    pub(super) fn keeps_unchanged(&self, slice: &EndpointSlice) -> bool {
        let name = &slice.metadata.name;
        !self.update.iter().any(|other| other.metadata.name == *name)
            && !self.delete.iter().any(|other| other.metadata.name == *name)
    }
}

/// Returns the key by which endpoints with these ports are grouped; it does not depend on the order of the ports.
pub(super) fn port_key(ports: &[EndpointPort]) -> PortKey {
    let mut key: Vec<_> = ports
        .iter()
        .map(|port| {
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            (
                text(&port.name),
                port.port.unwrap_or_default(),
                text(&port.protocol),
                text(&port.app_protocol),
            )
        })
        .collect();
    key.sort_unstable();
    key
}

/// Returns the changes that turn `existing` into slices that hold `wanted`.
pub(super) fn plan(
    service: &Service,
    existing: &[Arc<EndpointSlice>],
    wanted: EndpointsByPorts,
    address_type: &str,
) -> Plan {
    let mut plan = Plan::default();
    let mut by_ports: BTreeMap<PortKey, Vec<&Arc<EndpointSlice>>> = BTreeMap::new();
    for slice in existing {
        let key = port_key(slice.ports.as_deref().unwrap_or_default());
        if slice.address_type == address_type
            && is_owned(slice, service)
            && wanted.contains_key(&key)
        {
            by_ports.entry(key).or_default().push(slice);
        } else {
            plan.delete.push(Arc::clone(slice));
        }
    }
    for (key, (ports, targets)) in wanted {
        let slices = by_ports.remove(&key).unwrap_or_default();
        fit(
            &mut plan,
            &slices,
            targets,
            || new_slice(service, ports.clone(), address_type),
            service,
        );
    }
    keep_a_placeholder(&mut plan, service, existing.len(), address_type);
    recycle(&mut plan, service);
    if service.metadata.deletion_timestamp.is_some() {
        // The garbage collector deletes the slices of a Service that is being deleted, so new ones would only race
        // with it.
        plan.create.clear();
    }
    plan
}

/// Returns whether this Service owns the slice. A deleted Service of the same name may have left slices behind.
fn is_owned(slice: &EndpointSlice, service: &Service) -> bool {
    let owners = slice.owner_references();
    owners.iter().any(|owner| {
        Some(&owner.uid) == service.metadata.uid.as_ref()
            && owner.kind == "Service"
            && owner.api_version == "v1"
    })
}

/// Fits endpoints with the same ports into the slices with those ports.
fn fit(
    plan: &mut Plan,
    slices: &[&Arc<EndpointSlice>],
    targets: Vec<Endpoint>,
    new: impl Fn() -> EndpointSlice,
    service: &Service,
) {
    let mut missing: BTreeMap<Identity, Endpoint> = targets
        .into_iter()
        .map(|endpoint| (identity(&endpoint), endpoint))
        .collect();
    let mut changed = Vec::new();
    let mut unchanged = Vec::new();
    for &slice in slices {
        // Endpoints keep the slice's order, so that a slice whose endpoints did not change compares equal and
        // is not written.
        let kept: Vec<_> = endpoints(slice)
            .iter()
            .filter_map(|endpoint| missing.remove(&identity(endpoint)))
            .collect();
        let labels = labels_of(service);
        // A slice that was empty before may be the placeholder, which takes the first endpoints.
        if kept.is_empty() && !endpoints(slice).is_empty() {
            plan.delete.push(Arc::clone(slice));
        } else if !is_same(&kept, endpoints(slice))
            || slice.metadata.labels.as_ref() != Some(&labels)
        {
            let mut updated = EndpointSlice {
                endpoints: Some(kept),
                ..EndpointSlice::clone(slice)
            };
            updated.metadata.labels = Some(labels);
            changed.push(updated);
        } else {
            unchanged.push(slice);
        }
    }
    let mut missing = missing.into_values();

    // Slices that are written anyway are filled first, the fullest before the others.
    changed.sort_by_key(|slice| std::cmp::Reverse(endpoints(slice).len()));
    for slice in &mut changed {
        top_up(slice, &mut missing);
    }
    // Every slice that is written goes to all nodes, so filling the fewest slices matters more than full
    // slices.
    while missing.len() > 0 {
        // The remaining endpoints go together into the fullest other slice that can hold all of them, or else into
        // new slices.
        let rest = missing.len();
        let roomy = (0..unchanged.len())
            .filter(|&i| endpoints(unchanged[i]).len() + rest <= MAX_ENDPOINTS)
            .max_by_key(|&i| endpoints(unchanged[i]).len());
        match roomy {
            Some(index) => {
                let mut slice = EndpointSlice::clone(unchanged.swap_remove(index));
                top_up(&mut slice, &mut missing);
                changed.push(slice);
            }
            None => {
                let mut slice = new();
                top_up(&mut slice, &mut missing);
                plan.create.push(slice);
            }
        }
    }
    plan.update.append(&mut changed);
}

/// Returns whether the endpoints are equal apart from hints, which are decided later, when the changed slices are
/// known.
fn is_same(wanted: &[Endpoint], present: &[Endpoint]) -> bool {
    let without_hints = |endpoint: &Endpoint| Endpoint {
        hints: None,
        ..endpoint.clone()
    };
    wanted.len() == present.len()
        && wanted
            .iter()
            .zip(present)
            .all(|(wanted, present)| *wanted == without_hints(present))
}

fn top_up(slice: &mut EndpointSlice, missing: &mut impl Iterator<Item = Endpoint>) {
    let room = MAX_ENDPOINTS.saturating_sub(endpoints(slice).len());
    slice
        .endpoints
        .get_or_insert_default()
        .extend(missing.take(room));
}

/// Keeps one empty slice for a Service without endpoints, so that clients can distinguish it from a Service that no
/// controller has processed yet.
fn keep_a_placeholder(plan: &mut Plan, service: &Service, existing: usize, address_type: &str) {
    if plan.delete.len() < existing || !plan.create.is_empty() {
        return;
    }
    let placeholder = new_slice(service, Vec::new(), address_type);
    let is_placeholder = |slice: &Arc<EndpointSlice>| {
        endpoints(slice).is_empty()
            && slice.ports.iter().flatten().next().is_none()
            && slice.address_type == address_type
            && slice.metadata.labels == placeholder.metadata.labels
            && is_owned(slice, service)
    };
    match plan.delete.as_slice() {
        [only] if is_placeholder(only) => plan.delete.clear(),
        _ => plan.create.push(placeholder),
    }
}

/// Turns pairs of a created and a deleted slice into updates, which saves a write for each pair.
fn recycle(plan: &mut Plan, service: &Service) {
    let mut deleted = Vec::new();
    for old in std::mem::take(&mut plan.delete) {
        match plan
            .create
            .pop_if(|new| new.address_type == old.address_type && is_owned(&old, service))
        {
            Some(mut new) => {
                new.metadata.name.clone_from(&old.metadata.name);
                // With the old version the update fails if someone else changed the slice, and the sync
                // starts again.
                new.metadata.uid.clone_from(&old.metadata.uid);
                new.metadata
                    .resource_version
                    .clone_from(&old.metadata.resource_version);
                plan.update.push(new);
            }
            None => deleted.push(old),
        }
    }
    plan.delete = deleted;
}

fn endpoints(slice: &EndpointSlice) -> &[Endpoint] {
    slice.endpoints.as_deref().unwrap_or_default()
}

fn new_slice(service: &Service, ports: Vec<EndpointPort>, address_type: &str) -> EndpointSlice {
    EndpointSlice {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", service.name_any())),
            namespace: service.namespace(),
            labels: Some(labels_of(service)),
            owner_references: Some(vec![ownership::controller_reference(service)]),
            ..ObjectMeta::default()
        },
        address_type: address_type.to_owned(),
        endpoints: Some(Vec::new()),
        ports: Some(ports),
    }
}

/// Returns the labels of a slice: those of the Service and those by which the Service's slices are found.
fn labels_of(service: &Service) -> BTreeMap<String, String> {
    let reserved: BTreeSet<_> = [
        SERVICE_NAME_LABEL,
        MANAGED_BY_LABEL,
        backend::HEADLESS_LABEL,
    ]
    .into();
    let inherited = service
        .labels()
        .iter()
        .filter(|(key, _)| !reserved.contains(key.as_str()));
    let mut labels: BTreeMap<_, _> = inherited
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    if backend::is_headless(service) {
        labels.insert(backend::HEADLESS_LABEL.to_owned(), String::new());
    }
    labels.insert(SERVICE_NAME_LABEL.to_owned(), service.name_any());
    labels.insert(MANAGED_BY_LABEL.to_owned(), MANAGER.to_owned());
    labels
}

/// The fields that identify an endpoint while its conditions change.
type Identity = (Vec<String>, Option<String>, Option<String>, Option<String>);

fn identity(endpoint: &Endpoint) -> Identity {
    let target = endpoint.target_ref.as_ref();
    let mut addresses = endpoint.addresses.clone();
    addresses.sort_unstable();
    (
        addresses,
        endpoint.hostname.clone(),
        target.and_then(|target| target.name.clone()),
        target.and_then(|target| target.uid.clone()),
    )
}

#[cfg(test)]
pub(super) mod tests;
