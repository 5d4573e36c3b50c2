//! Puts a finished plan into the cluster, so that what is asked afterwards counts the planned pods and nodes.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::addresses::close;
use super::limit::Limits;
use super::{InFlightNode, NodeTemplate, Plan, PlanRequest, PlannedNode};
use crate::cluster::Cluster;
use crate::error::ModelError;
use crate::model::{NodeSpec, Operator, PodSpec, Quantity, label};

/// The resource that counts pods.
const PODS: &str = "pods";

/// The room that a planned node has once its pods are on it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// None: no further pod can join.
    None,
    /// What its cheapest machine has left beside the pods of DaemonSets.
    OfCheapest,
}

impl Plan {
    /// Returns the name of the node in the cluster that stands for a node to buy, by its index in [`Plan::nodes`], after
    /// [`Cluster::carry_out`].
    pub fn node_name(index: usize) -> String {
        // No real node has such a name, because names of nodes contain no slash; the virtual nodes of a plan in the making have
        // another prefix.
        format!("bought/{index}")
    }

    /// Returns the node to buy for which a node of the cluster stands after [`Cluster::carry_out`]; `None` for all other nodes.
    pub fn node_named(&self, name: &str) -> Option<&PlannedNode> {
        let index = name.strip_prefix("bought/")?;
        self.nodes.get(index.parse::<usize>().ok()?)
    }
}

impl Cluster {
    /// Puts the pods of a plan where it places them, and the nodes that it buys and those in flight into the cluster. Each node
    /// to buy becomes its cheapest machine, with the room that this has left, and is named by [`Plan::node_name`]. Returns the
    /// pools of the request with what their limits and reservations have left, without offerings in zones whose subnets the plan fills. Pods
    /// that the request does not have are left out.
    ///
    /// # Errors
    /// Returns an error if a node offers a negative amount, or one of the pods has a negative request.
    pub fn carry_out(
        &mut self,
        plan: &Plan,
        request: &PlanRequest,
    ) -> Result<Vec<NodeTemplate>, ModelError> {
        let mut templates = request.templates.clone();
        for node in &request.in_flight {
            self.set_in_flight(node)?;
        }
        let specs = request.pods.iter().map(|pod| (pod.key(), pod));
        let specs: FxHashMap<String, &PodSpec> = specs.collect();
        let spec_of = |key: &str| specs.get(key).copied();
        let node = (&Plan::node_name as NodeNames<'_>, Room::OfCheapest);
        carry_out(plan, node, spec_of, &templates, self)?;
        for node in &plan.nodes {
            count(node, &mut templates);
        }
        close(&mut templates, &plan.full);
        Ok(templates)
    }
}

/// Gives the name of a planned node by its index in the plan.
pub(super) type NodeNames<'a> = &'a dyn Fn(usize) -> String;

/// Puts the pods of a plan where it places them, and the nodes that it buys into the cluster. `spec_of` gives the pod of a key;
/// pods for which it gives none are left out.
pub(super) fn carry_out<'p>(
    plan: &Plan,
    (node_name, room): (NodeNames<'_>, Room),
    spec_of: impl Fn(&str) -> Option<&'p PodSpec>,
    templates: &[NodeTemplate],
    cluster: &mut Cluster,
) -> Result<(), ModelError> {
    for (key, node) in &plan.existing {
        let Some(pod) = spec_of(key) else { continue };
        match cluster.bind(pod, node) {
            Ok(()) | Err(ModelError::DuplicatePod(_)) => {}
            Err(error) => return Err(error),
        }
    }
    for (index, planned) in plan.nodes.iter().enumerate() {
        let template = templates.iter().find(|own| own.pool == planned.pool);
        let pods = planned.pods.iter().filter_map(|key| spec_of(key).cloned());
        cluster.set_in_flight(&InFlightNode {
            node: cheapest_node(node_name(index), planned, template, room),
            pods: pods.collect(),
        })?;
    }
    Ok(())
}

/// Returns a planned node as its cheapest option.
fn cheapest_node(
    name: String,
    planned: &PlannedNode,
    template: Option<&NodeTemplate>,
    room: Room,
) -> NodeSpec {
    let mut node = NodeSpec::named(&name);
    let cheapest = planned.options.first();
    let types = template.into_iter().flat_map(|own| &own.instance_types);
    let machine = types
        .into_iter()
        .find(|own| cheapest.is_some_and(|one| one.name == own.name));
    // Other pods may be attracted or repelled by this node's domains, so it needs the labels that one possible machine would
    // have.
    if let Some(template) = template {
        node.taints = template.taints.clone();
        node.labels = template.labels.clone();
        let labels = machine.into_iter().flat_map(|own| own.labels.clone());
        node.labels.extend(labels);
    }
    let mut set = |key: &str, value: &str| node.labels.insert(key.to_owned(), value.to_owned());
    set(label::NODE_POOL, &planned.pool);
    if let Some(cheapest) = cheapest {
        set(label::INSTANCE_TYPE, &cheapest.name);
        if let Some((zone, capacity_type, _)) = cheapest.offerings.first() {
            set(label::ZONE, zone);
            set(label::CAPACITY_TYPE, capacity_type);
        }
    }
    for requirement in planned.requirements.iter() {
        if let (Operator::In, [value]) = (requirement.operator, &requirement.values[..]) {
            set(&requirement.key, value);
        }
    }
    node.allocatable = match machine {
        Some(machine) if room == Room::OfCheapest => machine.allocatable.clone(),
        _ => planned.requests.clone(),
    };
    for (name, amount) in &mut node.allocatable {
        let daemons = planned.daemons.get(name).copied().unwrap_or_default();
        // DaemonSets count in the requests and take of the room, but their pods are not in the model.
        *amount = amount.saturating_sub(daemons);
    }
    if room == Room::None {
        let count = Quantity::from_units(planned.pods.len() as i64);
        // As many places as pods, so that even a pod that asks for nothing cannot join.
        node.allocatable.insert(PODS.to_owned(), count);
    }
    node
}

/// Subtracts a planned node from its pool's limits, as the largest type that it may become, and from the reservations
/// that it may run in.
pub(super) fn count(node: &PlannedNode, templates: &mut [NodeTemplate]) {
    for template in templates.iter_mut().filter(|own| own.pool == node.pool) {
        let is_listed = |name: &str| node.options.iter().any(|option| option.name == name);
        let mut limits = Limits::new(&template.limits_remaining);
        let types = template.instance_types.iter();
        let listed = types.filter(|spec| is_listed(&spec.name));
        let largest = limits.largest(listed.map(|spec| &spec.capacity));
        limits.take(&largest);
        template.limits_remaining = limits.into_remaining();
    }
    if node.reservations.is_empty() {
        return;
    }
    for spec in templates.iter_mut().flat_map(|own| &mut own.instance_types) {
        let offerings = spec.offerings.iter();
        let mut reserved = offerings.filter_map(|own| own.reservation.as_ref());
        if reserved.any(|own| node.reservations.contains(&own.id)) {
            // Types are shared with the caller's request, so only those that have the reservation are copied.
            let offerings = Arc::make_mut(spec).offerings.iter_mut();
            for own in offerings.filter_map(|own| own.reservation.as_mut()) {
                if node.reservations.contains(&own.id) {
                    own.left = own.left.saturating_sub(1);
                }
            }
        }
    }
}
