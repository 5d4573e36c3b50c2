//! Knows the free addresses of subnets: how many nodes can be launched in each zone, and how many of their pods get an address.
//!
//! The simulated AWS account says them. A real cluster's are not known here: its EC2NodeClasses name their subnets without free addresses.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use mullion_api::{
    account::{SimulatedAccount, SubnetFacts},
    karpenter::{EC2NodeClass, NodeClaim, NodePool, SubnetStatus},
    labels,
};
use mullion_cloud::{WindowsAddresses, subnet_for_launch};
use mullion_controllers::provisioner::{in_flight::is_in_flight, requirements::admits};
use mullion_engine::{
    model::PodSpec,
    provision::{Plan, PlannedNode, SubnetAddresses},
};
use rustc_hash::FxHashMap;

/// What can be done where no subnet has an address for a further node.
pub(super) const ADVICE: &str = "nodes or pods that go give some back, and `mullion up --fresh` with another --subnet-size starts with larger subnets";

/// The subnets of the account, and which of them the nodes of each pool may be in.
#[derive(Default)]
pub(crate) struct Subnets {
    known: BTreeMap<String, SubnetFacts>,
    /// The free addresses in the engine's form.
    pub(crate) addresses: SubnetAddresses,
    /// The zones in which no subnet of a class has a free address, by class.
    full: BTreeMap<String, BTreeSet<String>>,
}

impl Subnets {
    /// Reads the subnets of accounts, and which of them nodes of these pools and claims may be in. The classes must have a status.
    pub(super) fn of(
        accounts: &[SimulatedAccount],
        classes: &[EC2NodeClass],
        pools: &[NodePool],
        claims: &[NodeClaim],
    ) -> Self {
        let known = known(accounts);
        let mut subnets = Subnets::default();
        if known.is_empty() {
            return subnets;
        }
        let by_zone: BTreeMap<String, BTreeMap<String, Vec<String>>> = classes
            .iter()
            .map(|class| (class.name_any(), zones(class, &known)))
            .collect();
        for (class, zones) in &by_zone {
            let full = zones.iter().filter(|(_, ids)| {
                let own = ids.iter().map(|id| known[id].free_addresses);
                subnet_for_launch(own, |free| *free).is_some_and(|free| free == 0)
            });
            let full = full.map(|(zone, _)| zone.clone()).collect();
            subnets.full.insert(class.clone(), full);
        }
        let of_pools = pools.iter().map(|pool| {
            let class = &pool.spec.template.spec.node_class_ref.name;
            (pool.name_any(), class)
        });
        // A claim whose pool is gone is launched all the same.
        let of_claims = claims.iter().map(|claim| {
            let pool = claim.node_pool().unwrap_or_default();
            (pool.to_owned(), &claim.spec.node_class_ref.name)
        });
        for (pool, class) in of_claims.chain(of_pools) {
            for (zone, ids) in by_zone.get(class).into_iter().flatten() {
                let place = (pool.clone(), zone.clone());
                subnets.addresses.subnets.insert(place, ids.clone());
            }
        }
        let free = known.iter();
        let free = free.map(|(id, own)| (id.clone(), own.free_addresses));
        subnets.addresses.free = free.collect();
        let ordered = claims.iter().filter(|claim| awaits_launch(claim));
        let ordered = ordered.map(|claim| {
            let pool = claim.node_pool().unwrap_or_default();
            let of_class = by_zone.get(&claim.spec.node_class_ref.name);
            let zones = of_class.into_iter().flat_map(BTreeMap::keys);
            let zones = zones.filter(|zone| may_be_in(claim, zone)).cloned();
            (pool.to_owned(), zones.collect())
        });
        subnets.addresses.ordered = ordered.collect();
        subnets.known = known;
        subnets
    }

    /// Returns the zones in which no node of a class can be launched, because its subnets there have no free address.
    pub(super) fn full_zones(&self, class: &str) -> Option<&BTreeSet<String>> {
        self.full.get(class).filter(|zones| !zones.is_empty())
    }

    /// Returns the sentence about subnets that are full, without a full stop.
    pub(super) fn remark(&self) -> Option<String> {
        let places = self.addresses.subnets.keys();
        self.full_remark(places.filter(|(pool, zone)| self.are_full(self.ids(pool, zone))))
    }

    /// Returns the sentence about the subnets of these pools and zones, which are full or filled by nodes of a plan.
    fn full_remark<'p>(
        &self,
        places: impl Iterator<Item = &'p (String, String)>,
    ) -> Option<String> {
        let states = places.map(|(pool, zone)| self.state_of(zone, self.ids(pool, zone)));
        let states: BTreeSet<String> = states.collect();
        let states: Vec<String> = states.into_iter().collect();
        (!states.is_empty()).then(|| {
            format!(
                "{}: no further node gets an address there, so none is planned; {ADVICE}",
                states.join("; ")
            )
        })
    }

    /// Returns why pods on nodes of a zone get no address, as a part of a sentence: all subnets there are full. `None` if one has an address.
    pub(super) fn full_in(&self, zone: &str) -> Option<String> {
        let own = self.known.iter().filter(|(_, facts)| facts.zone == zone);
        let ids: Vec<String> = own.map(|(id, _)| id.clone()).collect();
        self.are_full(&ids)
            .then(|| format!("{}; {ADVICE}", self.state_of(zone, &ids)))
    }

    fn are_full(&self, ids: &[String]) -> bool {
        !ids.is_empty() && ids.iter().all(|id| self.known[id].free_addresses == 0)
    }

    /// Returns what a plan leaves of the addresses in subnets, as sentences without a full stop: subnets that its nodes fill, and pods on new
    /// nodes that find no address.
    pub(crate) fn remarks_on(
        &self,
        plan: &Plan,
        pods: &[PodSpec],
        windows: WindowsAddresses,
    ) -> Vec<String> {
        let filled = plan.full.iter();
        let filled = filled.filter(|(pool, zone)| !self.are_full(self.ids(pool, zone)));
        let mut remarks: Vec<String> = self.full_remark(filled).into_iter().collect();
        remarks.extend(self.pods_without(plan, pods, windows));
        remarks.extend(self.without_block(plan, windows));
        remarks
    }

    /// Returns the sentence about pods on new nodes for which their subnets have no address.
    fn pods_without(
        &self,
        plan: &Plan,
        pods: &[PodSpec],
        windows: WindowsAddresses,
    ) -> Option<String> {
        if self.known.is_empty() {
            return None;
        }
        let specs = pods.iter().map(|pod| (pod.key(), pod));
        let specs: FxHashMap<String, &PodSpec> = specs.collect();
        // A prefix is for many pods, and which of them share one is not known.
        let counts =
            |node: &PlannedNode| windows != WindowsAddresses::Prefixes || !is_windows(node);
        let wants = |node: &PlannedNode| {
            let own = node.pods.iter().filter_map(|key| specs.get(key));
            let own = own.filter(|pod| counts(node) && !pod.template.host_network);
            own.count()
        };
        let lacking = self.addresses.lacking(plan, wants);
        if lacking == 0 {
            return None;
        }
        let zones: BTreeSet<(&str, &str)> = plan
            .nodes
            .iter()
            .flat_map(|node| zones_of(node).map(|zone| (node.pool.as_str(), zone)))
            .collect();
        let states = zones.into_iter().filter_map(|(pool, zone)| {
            let ids = self.ids(pool, zone);
            let free: usize = ids.iter().map(|id| self.known[id].free_addresses).sum();
            (!ids.is_empty()).then(|| format!("{} in {zone} had {free}", ids.join(", ")))
        });
        let states: BTreeSet<String> = states.collect();
        let states: Vec<String> = states.into_iter().collect();
        let (pods, find, wait) = match lacking {
            1 => ("pod", "finds", "waits"),
            _ => ("pods", "find", "wait"),
        };
        Some(format!(
            "{lacking} {pods} on new nodes {find} no address and {wait} there in ContainerCreating ({} before the new nodes); {ADVICE}",
            states.join(", ")
        ))
    }

    /// Returns the sentence about Windows nodes in subnets without a block for a prefix.
    fn without_block(&self, plan: &Plan, windows: WindowsAddresses) -> Option<String> {
        if windows != WindowsAddresses::Prefixes {
            return None;
        }
        let nodes = plan.nodes.iter().filter(|node| is_windows(node));
        let places = nodes.flat_map(|node| zones_of(node).map(|zone| (&node.pool, zone)));
        let mut without: BTreeSet<String> = BTreeSet::new();
        for (pool, zone) in places {
            let own = self.ids(pool, zone).iter().filter(|id| {
                let facts = &self.known[*id];
                facts.free_addresses > 0 && facts.free_prefixes == 0
            });
            without.extend(own.map(|id| format!("{id} in {zone}")));
        }
        if without.is_empty() {
            return None;
        }
        let have = if without.len() == 1 { "has" } else { "have" };
        let without: Vec<String> = without.into_iter().collect();
        Some(format!(
            "{} {have} no free /28 block, so pods on a Windows node that is launched there get no address (InsufficientCidrBlocks): `mullion doctor` says how to mend that (DOC14)",
            without.join(", ")
        ))
    }

    /// Returns why a pool buys no node in a zone for want of addresses, as a part of a sentence; `None` where an address is not what lacks.
    /// `full` has the pools and zones whose subnets a plan fills.
    pub(super) fn why(
        &self,
        pool: &str,
        zone: &str,
        full: &BTreeSet<(String, String)>,
    ) -> Option<String> {
        let ids = self.ids(pool, zone);
        let is_full = full.contains(&(pool.to_owned(), zone.to_owned()));
        (is_full || self.are_full(ids)).then(|| self.state_of(zone, ids))
    }

    fn ids(&self, pool: &str, zone: &str) -> &[String] {
        let place = (pool.to_owned(), zone.to_owned());
        let own = self.addresses.subnets.get(&place);
        own.map_or(&[], Vec::as_slice)
    }

    /// Returns how many addresses the subnets of a zone have, as in `subnet-1 in us-west-2a has 0 free addresses`.
    fn state_of(&self, zone: &str, ids: &[String]) -> String {
        let free: usize = ids.iter().map(|id| self.known[id].free_addresses).sum();
        let have = if ids.len() == 1 { "has" } else { "have" };
        let (addresses, others) = match free {
            0 => ("addresses", ""),
            1 => ("address", ", which another new node takes"),
            _ => ("addresses", ", which other new nodes take"),
        };
        let ids = ids.join(", ");
        format!("{ids} in {zone} {have} {free} free {addresses}{others}")
    }
}

/// Returns the subnets of accounts by their ids.
fn known(accounts: &[SimulatedAccount]) -> BTreeMap<String, SubnetFacts> {
    let statuses = accounts.iter().filter_map(|own| own.status.as_ref());
    let subnets = statuses.flat_map(|status| status.subnets.clone());
    subnets.collect()
}

/// Returns the subnets that a class without a status would find, if an account has some: those that its terms name by their ids, else all.
pub(super) fn found_by(class: &EC2NodeClass, accounts: &[SimulatedAccount]) -> Vec<SubnetStatus> {
    let terms = &class.spec.subnet_selector_terms;
    let named: BTreeSet<&String> = terms.iter().filter_map(|term| term.id.as_ref()).collect();
    let all = known(accounts).into_iter();
    // Which tags the subnets have, the account does not say.
    let found = all.filter(|(id, _)| named.is_empty() || named.contains(id));
    found
        .map(|(id, facts)| SubnetStatus {
            id,
            zone: facts.zone,
            ..SubnetStatus::default()
        })
        .collect()
}

/// Returns the subnets of a class by zone, without zones in which one of them is not known.
fn zones(
    class: &EC2NodeClass,
    known: &BTreeMap<String, SubnetFacts>,
) -> BTreeMap<String, Vec<String>> {
    let mut by_zone: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for own in class.status.iter().flat_map(|status| &status.subnets) {
        by_zone
            .entry(own.zone.clone())
            .or_default()
            .push(own.id.clone());
    }
    by_zone.retain(|_, ids| ids.iter().all(|id| known.contains_key(id)));
    by_zone
}

/// Returns whether EC2 has not been asked yet for the node of a claim.
fn awaits_launch(claim: &NodeClaim) -> bool {
    is_in_flight(claim) && claim.provider_id().is_none()
}

/// Returns whether the requirements of a claim let its node be in a zone.
fn may_be_in(claim: &NodeClaim, zone: &str) -> bool {
    let requirements = claim.spec.requirements.iter();
    let mut of_zones = requirements.filter(|own| own.key == labels::ZONE);
    of_zones.all(|own| admits(own, Some(zone)))
}

fn is_windows(node: &PlannedNode) -> bool {
    node.requests.contains_key(labels::PRIVATE_IPV4)
}

/// Returns the zones that a planned node may be in.
fn zones_of(node: &PlannedNode) -> impl Iterator<Item = &str> {
    let options = node.options.iter();
    options.flat_map(|option| option.offerings.iter().map(|(zone, ..)| zone.as_str()))
}
