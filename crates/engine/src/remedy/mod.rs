//! Searches the smallest set of changes that would place a pod.
//!
//! Every refusal proposes changes that would remove it: `propose` for nodes and other pods, `market` for pools. The search
//! applies the smallest set of proposals not tried yet, runs the same filters and the same planner again, and stops at sets
//! that place the pod. So every reported set has been tried on the model.
//!
//! The smallest set has the fewest changes (giving up most of a request counts as two), and among those the lowest cost for
//! the user ([`Change`] has the order). Sets of two changes are tried only if no single change places the pod, and so on.
//! Invariant: the cluster is unchanged after the search.

mod change;
mod demand;
mod dominance;
mod images;
mod market;
mod near;
mod prefixes;
mod price;
mod propose;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use crate::cluster::{Cluster, NodeId};
use crate::error::ModelError;
use crate::images::{ImageTable, Runs};
use crate::model::{PodSpec, PodTemplate, label};
use crate::provision::{NodeTemplate, PlanRequest, PoolReason};

pub use change::Change;
pub(crate) use change::units;
pub(crate) use demand::{Demand, Demands, demand_text};
pub use near::{distance, distance_within};
pub(crate) use near::{is_misspelt, known_values, nearest};
pub use prefixes::{PrefixAddresses, PrefixGain};
pub use price::{PodDemand, Prices};

use market::Market;
use propose::{RefusedPod, Size, size};

/// The maximum number of sets that are tried. Each try costs a full answer, and one more run of the filters for each group
/// of resources that nodes lack.
const TRIES: usize = 160;
/// Sets that cost more than this many times the smallest are not reported.
const WORTH: u32 = 2;

/// Facts from outside the cluster and the pools.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Platforms guessed from image names, and which Windows build runs on which.
    pub images: &'a ImageTable,
    /// The numbers of addresses that nodes would have with prefix delegation.
    pub prefixes: &'a PrefixAddresses,
    /// The platforms on which all images of the pod run, if more than their names says so: a registry, or the user.
    pub recorded: Option<&'a Runs>,
}

/// A set of changes that together place the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// The changes, all of which are needed.
    pub changes: Vec<Change>,
    /// The place that the pod then gets.
    pub place: ChangedPlace,
}

/// The place of a changed pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangedPlace {
    /// An existing node.
    Node(NodeId),
    /// A node that a pool would buy.
    Bought {
        /// The pool.
        pool: String,
        /// The cheapest type that holds the pod.
        instance_type: String,
        /// The node's price with that type, in micro-dollars per hour.
        price_micro_usd: u64,
        /// The number of addresses for pods, if the pod requests one.
        addresses: Option<i64>,
    },
}

/// The result of trying one set of changes.
enum TrialResult {
    Placed(ChangedPlace, Vec<Change>),
    Refused(BTreeSet<Vec<Change>>),
}

type Set = BTreeSet<Change>;

impl Cluster {
    /// Returns the smallest sets of changes that place a pod on an existing node or one that a pool can buy: at most `most`,
    /// smallest first, without sets that a smaller one beats in every respect. Empty if no change helps, or if none is
    /// needed.
    ///
    /// # Errors
    /// Returns an error if the pod or a pool has an invalid amount.
    pub fn remedies(
        &mut self,
        pod: &PodSpec,
        pools: &[NodeTemplate],
        facts: Facts<'_>,
        most: usize,
    ) -> Result<Vec<Remedy>, ModelError> {
        let mut found = self.remedies_after(&[], pod, pools, facts, most)?;
        found.retain(|remedy| !remedy.changes.is_empty());
        Ok(found)
    }

    /// Returns what [`Cluster::remedies`] does for a pod that is changed by `first` in any case: the changes that it needs besides.
    /// Unlike there, a remedy without changes says where the pod goes if it needs no more.
    ///
    /// # Errors
    /// Returns an error if the pod or a pool has an invalid amount.
    pub fn remedies_after(
        &mut self,
        first: &[Change],
        pod: &PodSpec,
        pools: &[NodeTemplate],
        facts: Facts<'_>,
        most: usize,
    ) -> Result<Vec<Remedy>, ModelError> {
        // A best-first search: the heap gives the smallest set, the given one first, which also tells whether any more
        // change is needed.
        let start: Set = first.iter().cloned().collect();
        let mut open = BinaryHeap::from([(Reverse(Size::default()), Reverse(start.clone()))]);
        let mut seen = BTreeSet::from([start.clone()]);
        let mut found: Vec<(Size, Set, Remedy)> = Vec::new();
        let mut dominated: Vec<Set> = Vec::new();
        let mut market = Market::default();
        for _ in 0..TRIES {
            let Some((Reverse(own), Reverse(set))) = open.pop() else {
                break;
            };
            // Sets come in ascending size, so after one that is too large all others are too.
            let dear = |(smallest, _, _): &(Size, Set, Remedy)| {
                own.0 > smallest.0 || own.1 > WORTH * smallest.1
            };
            if found.len() >= most || found.first().is_some_and(dear) {
                break;
            }
            let mut placed = found.iter().map(|(_, set, _)| set).chain(&dominated);
            // A set that contains a working one has changes that are not needed.
            if placed.any(|smaller| smaller.is_subset(&set)) {
                continue;
            }
            match self.try_changes(pod, (pools, &mut market), facts, &set)? {
                TrialResult::Placed(place, refined) => {
                    let better = |(_, smaller, remedy): &(Size, Set, Remedy)| {
                        dominance::dominates((smaller, &remedy.place), (&set, &place))
                    };
                    if found.iter().any(better) {
                        // Remembered, so that sets that contain it are not tried either.
                        dominated.push(set);
                        continue;
                    }
                    let besides = refined.into_iter().filter(|own| !start.contains(own));
                    let displayed = besides.map(|own| own.displayed_for(&pod.template));
                    let changes = displayed.collect();
                    found.push((own, set, Remedy { changes, place }));
                }
                TrialResult::Refused(proposals) => {
                    for proposal in proposals {
                        let mut next = set.clone();
                        next.extend(proposal);
                        let consistent = Change::are_consistent(&next);
                        if consistent && next.len() > set.len() && seen.insert(next.clone()) {
                            let changes: Vec<Change> = next.iter().cloned().collect();
                            open.push((Reverse(size(&changes)), Reverse(next)));
                        }
                    }
                }
            }
        }
        Ok(found.into_iter().map(|(_, _, remedy)| remedy).collect())
    }

    fn try_changes(
        &mut self,
        pod: &PodSpec,
        (pools, market): (&[NodeTemplate], &mut Market),
        facts: Facts<'_>,
        set: &Set,
    ) -> Result<TrialResult, ModelError> {
        // A place or a promise that the pod has today must not decide where the changed pod goes.
        let mut changed = PodSpec {
            node_name: None,
            nominated_node_name: None,
            ..pod.clone()
        };
        let today = pools;
        let mut pools = pools.to_vec();
        for change in set {
            change.apply(&mut changed.template);
            let pools = pools.iter_mut();
            pools.for_each(|pool| change.apply_to_pool(pool, facts.prefixes));
        }
        // A pod that names Linux after all does not need the Windows address that admission added for it.
        if set.iter().any(Change::is_about_system) {
            propose::take_for_linux(&mut changed.template);
        }
        let checkpoint = self.checkpoint();
        // Room that is held for the pod by its own nomination must not count against it.
        self.denominate(&pod.key());
        for change in set {
            if let Change::Uncordon { node } = change
                && let Some(id) = self.node(node)
            {
                self.uncordon(id);
            }
        }
        let delegates = |change: &Change| matches!(change, Change::DelegatePrefixes { .. });
        if set.iter().any(delegates) {
            self.delegate_prefixes(facts.prefixes);
        }
        let tried = self.ask(&changed, (&pools, market), facts, set);
        // Before the result is read: the addresses in it are relative to the settings of today.
        self.rollback(checkpoint);
        Ok(match tried? {
            TrialResult::Placed(place, changes) => {
                let on = match &place {
                    ChangedPlace::Node(node) => self.delegated(*node, facts.prefixes),
                    ChangedPlace::Bought {
                        pool,
                        instance_type,
                        ..
                    } => facts.prefixes.of_machine(today, pool, instance_type),
                };
                let changes = changes.into_iter();
                let changes = changes.map(|change| {
                    let change = change.beyond_what_is_left(today);
                    change.with_addresses(on.clone())
                });
                TrialResult::Placed(place, changes.collect())
            }
            refused => refused,
        })
    }

    /// Returns the operating system in a node's labels.
    pub fn os_of(&self, node: NodeId) -> Option<&str> {
        let key = self.names().find(label::OS)?;
        Some(self.text(self.at(node).fixed.labels.value(key)?))
    }

    /// Returns the changes for the first of these nodes that then takes the pod. The nodes are filtered once, with the
    /// lowest of their requests, instead of once per node.
    fn nearest_that_takes(
        &mut self,
        template: &PodTemplate,
        lacking: propose::Lacking,
    ) -> Result<Option<Vec<Change>>, ModelError> {
        let mut lowest: BTreeMap<&str, &Change> = BTreeMap::new();
        for change in lacking.iter().flat_map(|(_, changes)| changes) {
            if let Change::Request { resource, .. } = change {
                let known = lowest.entry(resource).or_insert(change);
                if change.given_up() > known.given_up() {
                    *known = change;
                }
            }
        }
        // A node that takes the pod with its own reduction also takes it with the largest one, so one pass finds all
        // that may.
        let mut least = template.clone();
        lowest.values().for_each(|change| change.apply(&mut least));
        let class = self.pod_class(&least)?;
        let nodes: Vec<_> = lacking.iter().map(|(node, _)| *node).collect();
        let takes: BTreeSet<NodeId> = self
            .filter_among(&nodes, class, "")
            .feasible
            .into_iter()
            .collect();
        let mut near = lacking.into_iter();
        let found = near.find(|(node, _)| takes.contains(node));
        Ok(found.map(|(_, changes)| changes))
    }

    fn ask(
        &mut self,
        pod: &PodSpec,
        (pools, market): (&[NodeTemplate], &mut Market),
        facts: Facts<'_>,
        set: &Set,
    ) -> Result<TrialResult, ModelError> {
        let refused = RefusedPod::new(pod, facts, self.names_mut());
        let mut proposals = BTreeSet::new();
        // kube-scheduler does not look at a gated pod at all, so nothing else can be found out before the gates are
        // gone.
        if !pod.template.scheduling_gates.is_empty() {
            proposals.insert(vec![Change::Ungate {
                gates: pod.template.scheduling_gates.clone(),
            }]);
            return Ok(TrialResult::Refused(proposals));
        }
        let class = self.pod_class(&pod.template)?;
        let answer = self.answer(class);
        let key = self.names().find(label::WINDOWS_BUILD);
        let build = |node: &NodeId| {
            let build = self.at(*node).fixed.labels.value(key?)?;
            Some(self.text(build))
        };
        // Without any change, the decision is the scheduler's alone.
        let is_for = |node: NodeId| set.is_empty() || refused.is_for(self.os_of(node));
        let runs = |node: &&NodeId| refused.about_build(build(node)).is_none() && is_for(**node);
        // Existing nodes first: a place there costs nothing.
        if let Some(node) = answer.best.iter().find(runs) {
            let changes = set.iter().cloned().collect();
            return Ok(TrialResult::Placed(ChangedPlace::Node(*node), changes));
        }
        proposals.extend(
            answer
                .best
                .first()
                .and_then(|node| refused.about_build(build(node)))
                .map(|change| vec![change]),
        );
        for group in refused.about_nodes(self, &answer, &mut proposals) {
            proposals.extend(self.nearest_that_takes(&pod.template, group)?);
        }
        if pools.is_empty() {
            return Ok(TrialResult::Refused(proposals));
        }
        let is_for_pool = |name: &str| {
            let mut own = pools.iter().filter(|pool| pool.pool == name);
            own.all(|pool| refused.is_for(propose::os_of_pool(pool)))
        };
        let plan = self.plan(&PlanRequest {
            pods: vec![pod.clone()],
            templates: pools.to_vec(),
            ..PlanRequest::default()
        })?;
        if let Some(bought) = plan.nodes.first()
            && let Some(cheapest) = bought.options.first()
        {
            let own = pools.iter().filter(|pool| pool.pool == bought.pool);
            let mut machines = own.flat_map(|pool| &pool.instance_types);
            let machine = machines.find(|machine| machine.name == cheapest.name);
            let build = machine.and_then(|machine| machine.labels.get(label::WINDOWS_BUILD));
            let amount = |resource: &str| Some(machine?.allocatable.get(resource)?.value());
            let addresses = amount(prefixes::ADDRESSES);
            let addresses = addresses.map(|own| own.min(amount("pods").unwrap_or(i64::MAX)));
            if let Some(change) = refused.about_build(build.map(String::as_str)) {
                proposals.insert(vec![change]);
                return Ok(TrialResult::Refused(proposals));
            }
            if !is_for_pool(&bought.pool) {
                return Ok(TrialResult::Refused(proposals));
            }
            let place = ChangedPlace::Bought {
                pool: bought.pool.clone(),
                instance_type: cheapest.name.clone(),
                price_micro_usd: bought.price_micro_usd(),
                addresses: addresses.filter(|_| refused.asks_for(prefixes::ADDRESSES)),
            };
            let refine = |change: &Change| change.refined(pools, &bought.pool, &cheapest.name);
            return Ok(TrialResult::Placed(place, set.iter().map(refine).collect()));
        }
        let refusals = plan.unplaceable.iter().flat_map(|pod| pod.pools.iter());
        // Pools whose nodes run another operating system than the pod is for are no remedy, however few changes they
        // need.
        for refusal in refusals.filter(|refusal| is_for_pool(&refusal.pool)) {
            if let PoolReason::LimitReached { resource, .. } = &refusal.reason {
                proposals.insert(vec![Change::RaiseLimit {
                    pool: refusal.pool.clone(),
                    resource: resource.clone(),
                    by: None,
                }]);
            } else {
                refused.about_pool(self, &refusal.reason, &mut proposals);
            }
            let mut own = pools.iter().filter(|pool| pool.pool == refusal.pool);
            let Some(pool) = own.next() else { continue };
            proposals.extend(market.about_pool(&refused, class, pool, self)?);
            // Only other pods are in the way, so a zone that the pool does not use yet may have a place.
            if let PoolReason::Topology { .. } = refusal.reason {
                let places = market.about_places(pool, &refused.places(), self);
                proposals.extend(places.into_iter().map(|change| vec![change]));
            }
        }
        Ok(TrialResult::Refused(proposals))
    }
}
