//! Plans that give a node only to those for whom a subnet has a free address.
//!
//! A node may be in one of several zones until it is launched, so nodes are not counted by zone: an assignment of nodes to subnets is kept, and a new
//! node moves others to subnets where they may be as well. What finds no address is planned for again without the subnets that
//! are full. The provisioner does not use this: it learns from refusals which subnets are full.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::carried::{NodeNames, Room, carry_out, count};
use super::{NodeTemplate, Plan, PlanRequest, PlannedNode};
use crate::cluster::Cluster;
use crate::error::ModelError;
use crate::model::PodSpec;

/// The free addresses of the subnets that new nodes are launched in. A new node takes one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubnetAddresses {
    /// The number of free addresses by subnet.
    pub free: BTreeMap<String, usize>,
    /// The subnets that nodes of a pool may be in, by pool and zone. A zone without subnets is not limited.
    pub subnets: BTreeMap<(String, String), Vec<String>>,
    /// The pools and zones of the nodes that will be launched before those of a plan.
    pub ordered: Vec<(String, BTreeSet<String>)>,
}

impl SubnetAddresses {
    /// Returns how many of the addresses that nodes of a plan want beside their own find no place in the subnets of those nodes, at least.
    /// `wants` returns the number of a node.
    pub fn lacking(&self, plan: &Plan, wants: impl Fn(&PlannedNode) -> usize) -> usize {
        let wanted = plan.nodes.iter().map(|node| (node, wants(node)));
        let wanted: Vec<_> = wanted.collect();
        let all = plan.nodes.len() + wanted.iter().map(|(_, own)| own).sum::<usize>();
        // Most subnets have plenty.
        if self
            .free
            .values()
            .all(|free| *free >= all + self.ordered.len())
        {
            return 0;
        }
        let mut assignment = Assignment::new(self);
        let mut lacks = |node: &PlannedNode, count: usize| {
            let Some(subnets) = self.of_node(&node.pool, zones(node)) else {
                return 0;
            };
            // Once one finds no address, neither do the others.
            let found = std::iter::repeat_n(subnets, count)
                .take_while(|own| assignment.take(own.clone()).is_ok());
            count - found.count()
        };
        plan.nodes.iter().for_each(|node| {
            lacks(node, 1);
        });
        wanted.iter().map(|(node, count)| lacks(node, *count)).sum()
    }

    /// Returns the subnets that a node of a pool may be in; `None` if it may be in a zone that is not limited.
    fn of_node<'z>(
        &self,
        pool: &str,
        zones: impl Iterator<Item = &'z String>,
    ) -> Option<BTreeSet<&str>> {
        let mut found = BTreeSet::new();
        for zone in zones {
            let own = self.subnets.get(&(pool.to_owned(), zone.clone()))?;
            found.extend(own.iter().map(String::as_str));
        }
        (!found.is_empty()).then_some(found)
    }
}

/// Nodes that may be in the same subnets, and how many of them each subnet has an address for.
struct Alike<'a> {
    subnets: BTreeSet<&'a str>,
    in_subnet: BTreeMap<&'a str, usize>,
}

/// An assignment of nodes to subnets.
struct Assignment<'a> {
    left: BTreeMap<&'a str, usize>,
    nodes: Vec<Alike<'a>>,
}

impl<'a> Assignment<'a> {
    fn new(addresses: &'a SubnetAddresses) -> Self {
        let left = addresses.free.iter();
        let mut assignment = Assignment {
            left: left.map(|(id, free)| (id.as_str(), *free)).collect(),
            nodes: Vec::new(),
        };
        for (pool, zones) in &addresses.ordered {
            if let Some(subnets) = addresses.of_node(pool, zones.iter()) {
                // One without an address gets none: EC2 refuses it, as it does the nodes of the plan.
                let _ = assignment.take(subnets);
            }
        }
        assignment
    }

    /// Assigns a node to one of these subnets; other nodes move to other subnets of theirs if that is needed.
    ///
    /// # Errors
    /// Returns the subnets that are full for this node and all that may be in them only.
    fn take(&mut self, subnets: BTreeSet<&'a str>) -> Result<(), BTreeSet<&'a str>> {
        let known = self.nodes.iter().position(|own| own.subnets == subnets);
        let group = known.unwrap_or_else(|| {
            self.nodes.push(Alike {
                subnets: subnets.clone(),
                in_subnet: BTreeMap::new(),
            });
            self.nodes.len() - 1
        });
        // A breadth-first search for a subnet with an address left: from each full one to the subnets that one of its nodes
        // could move to. `came_from` has the group of that node, and the full subnet.
        let mut came_from: BTreeMap<&str, Option<(usize, &str)>> =
            subnets.iter().map(|id| (*id, None)).collect();
        let mut open: VecDeque<&str> = subnets.into_iter().collect();
        while let Some(id) = open.pop_front() {
            let left = self.left.get_mut(id).filter(|left| **left > 0);
            let Some(left) = left else {
                for (index, own) in self.nodes.iter().enumerate() {
                    if own.in_subnet.get(id).is_none_or(|count| *count == 0) {
                        continue;
                    }
                    for other in &own.subnets {
                        came_from.entry(other).or_insert_with(|| {
                            open.push_back(other);
                            Some((index, id))
                        });
                    }
                }
                continue;
            };
            *left -= 1;
            let mut to = id;
            while let Some(Some((moved, from))) = came_from.get(to).copied() {
                let in_subnet = &mut self.nodes[moved].in_subnet;
                *in_subnet.entry(to).or_default() += 1;
                in_subnet.entry(from).and_modify(|count| *count -= 1);
                to = from;
            }
            *self.nodes[group].in_subnet.entry(to).or_default() += 1;
            return Ok(());
        }
        Err(came_from.into_keys().collect())
    }
}

/// Returns the zones that a planned node may be in.
fn zones(node: &PlannedNode) -> impl Iterator<Item = &String> {
    let options = node.options.iter();
    options.flat_map(|option| option.offerings.iter().map(|(zone, ..)| zone))
}

impl Cluster {
    /// Returns what [`Cluster::plan`] does, without nodes for which no subnet has a free address: their pods get other places, or none.
    /// [`Plan::full`] has the pools and zones in which no further node gets an address. The cluster is unchanged when this returns.
    ///
    /// # Errors
    /// Returns the errors of [`Cluster::plan`].
    pub fn plan_with_addresses(
        &mut self,
        request: &PlanRequest,
        addresses: &SubnetAddresses,
    ) -> Result<Plan, ModelError> {
        let checkpoint = self.checkpoint();
        let plan = self.plan_in_parts(request, addresses);
        self.rollback(checkpoint);
        plan
    }

    fn plan_in_parts(
        &mut self,
        request: &PlanRequest,
        addresses: &SubnetAddresses,
    ) -> Result<Plan, ModelError> {
        let mut whole = self.plan(request)?;
        if addresses.free.is_empty() {
            return Ok(whole);
        }
        let mut assignment = Assignment::new(addresses);
        let mut left = without_address(&mut whole, addresses, &mut assignment);
        if left.is_empty() {
            return Ok(whole);
        }
        let mut request = request.clone();
        for node in std::mem::take(&mut request.in_flight) {
            self.set_in_flight(&node)?;
        }
        let specs = request.pods.iter().map(|pod| (pod.key(), pod.clone()));
        let specs: FxHashMap<String, PodSpec> = specs.collect();
        // A bound for the nodes of all pods says nothing about those that get one.
        whole.bound_micro_usd = None;
        let mut carried = whole.clone();
        // The pools sell nothing in full zones, so each turn finds at least one more zone of a pool full, and the loop ends.
        while !left.is_empty() {
            let before = whole.nodes.len() - carried.nodes.len();
            // No real node has such a name, because names of nodes contain no slash.
            let name = |index: usize| format!("launched/{}", before + index);
            // Nodes without free room: what else they hold would make them other nodes than those that were chosen.
            let node = (&name as NodeNames<'_>, Room::None);
            let spec_of = |key: &str| specs.get(key);
            carry_out(&carried, node, spec_of, &request.templates, self)?;
            for node in &carried.nodes {
                count(node, &mut request.templates);
            }
            close(&mut request.templates, &whole.full);
            let pods = left.iter().flat_map(|node| &node.pods);
            request.pods = pods.filter_map(|key| specs.get(key).cloned()).collect();
            carried = self.plan(&request)?;
            carried.full.clone_from(&whole.full);
            left = without_address(&mut carried, addresses, &mut assignment);
            add(&mut whole, &carried);
        }
        Ok(whole)
    }
}

/// Removes the nodes from a plan for which no subnet has an address, and returns them. The pools and zones that are full are added to the plan.
fn without_address<'a>(
    plan: &mut Plan,
    addresses: &'a SubnetAddresses,
    assignment: &mut Assignment<'a>,
) -> Vec<PlannedNode> {
    let mut full: BTreeSet<&str> = BTreeSet::new();
    let nodes = std::mem::take(&mut plan.nodes).into_iter();
    let (with, without) = nodes.partition(|node| {
        let Some(subnets) = addresses.of_node(&node.pool, zones(node)) else {
            return true;
        };
        let taken = assignment.take(subnets);
        taken.map_err(|found| full.extend(found)).is_ok()
    });
    plan.nodes = with;
    let closed = addresses.subnets.iter().filter(|(_, subnets)| {
        let mut subnets = subnets.iter();
        !full.is_empty() && subnets.all(|id| full.contains(id.as_str()))
    });
    plan.full.extend(closed.map(|(place, _)| place.clone()));
    without
}

/// Makes the offerings of pools in zones unavailable.
pub(super) fn close(templates: &mut [NodeTemplate], full: &BTreeSet<(String, String)>) {
    for template in templates {
        let zones = full.iter().filter(|(pool, _)| *pool == template.pool);
        let zones: BTreeSet<&str> = zones.map(|(_, zone)| zone.as_str()).collect();
        if zones.is_empty() {
            continue;
        }
        let kinds = template.instance_types.iter_mut();
        for kind in kinds.chain(&mut template.for_sale) {
            let is_closed = |zone: &String| zones.contains(zone.as_str());
            // Types are shared between pools, so only those that change are copied.
            if kind.offerings.iter().any(|own| is_closed(&own.zone)) {
                let offerings = Arc::make_mut(kind).offerings.iter_mut();
                for own in offerings.filter(|own| is_closed(&own.zone)) {
                    own.available = false;
                }
            }
        }
    }
}

/// Adds a part to a plan.
fn add(whole: &mut Plan, part: &Plan) {
    whole.existing.extend(part.existing.iter().cloned());
    whole.nodes.extend(part.nodes.iter().cloned());
    whole.unplaceable.extend(part.unplaceable.iter().cloned());
    let daemons = part.daemons.iter();
    let daemons = daemons.map(|(pool, amounts)| (pool.clone(), amounts.clone()));
    whole.daemons.extend(daemons);
    whole.full.extend(part.full.iter().cloned());
}
