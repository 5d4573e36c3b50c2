//! Computes a plan: pods are placed one by one, as Karpenter does, or, with `by_cost`, in the cheapest of several ways
//! ([`super::cheapest`]).
//!
//! Pods without a place are tried again as long as others find one, because a pod may need another one near. Invariant: the
//! cluster is unchanged after a plan, whatever its result.

use std::cmp::Reverse;
use std::sync::Arc;

use fixedbitset::FixedBitSet;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::class::PodClassId;
use crate::cluster::{Cluster, NodeId};
use crate::error::ModelError;
use crate::model::PodSpec;
use crate::reason::Plugin;
use crate::resources::Amounts;

use super::catalog::Catalog;
use super::claim::{Claim, Lists, Topology};
use super::first_fit::Choices;
use super::limit::Limits;
use super::open_labels::RequestedLabels;
use super::preferences::Preferences;
use super::reservations::Reservations;
use super::retry::Retries;
use super::rounds::{self, RoundQuestion};
use super::units::Units;
use super::{NodeTemplate, Plan, PlanRequest, PlannedNode, PoolRefusal, Unplaceable};

/// The prefix of the names of virtual nodes; a real node's name has no slash.
pub(super) const PLANNED: &str = "planned/";

impl Cluster {
    /// Plans a place for every pending pod, on an existing or in-flight node or on one to be bought. The cluster is
    /// unchanged when this returns.
    ///
    /// # Errors
    /// Returns an error if a pool or in-flight node offers a negative amount. An invalid pod is reported in the plan
    /// instead.
    pub fn plan(&mut self, request: &PlanRequest) -> Result<Plan, ModelError> {
        let checkpoint = self.checkpoint();
        let plan = solve(self, request);
        self.rollback(checkpoint);
        plan
    }
}

fn solve(cluster: &mut Cluster, request: &PlanRequest) -> Result<Plan, ModelError> {
    // Before the pods' classes are compiled and counted: pods on their way count for affinity and spreading as others
    // do.
    for node in &request.in_flight {
        cluster.set_in_flight(node)?;
    }
    let keys: Vec<String> = request.pods.iter().map(PodSpec::key).collect();
    let mut plan = Plan::default();
    let pending = queue(cluster, &request.pods, &keys, &mut plan);
    let classes = pending.iter().map(|pod| pod.class);
    let requested = RequestedLabels::of(classes, &request.templates, cluster);
    let question = RoundQuestion {
        request,
        keys: &keys,
    };
    if requested.is_one_round() {
        question.solve(&pending, &request.templates, &requested, &mut plan, cluster)?;
    } else {
        rounds::solve(&question, &pending, &requested, &mut plan, cluster)?;
    }
    Ok(plan)
}

/// Compiles the pools, in the order in which they are tried. `requested` has the labels that the pods for which nodes are
/// bought ask for.
///
/// # Errors
/// Returns an error if a pool offers a negative amount.
pub(super) fn compile(
    request: &PlanRequest,
    templates: &[NodeTemplate],
    requested: &RequestedLabels,
    cluster: &mut Cluster,
) -> Result<Vec<Catalog>, ModelError> {
    let mut catalogs = Vec::with_capacity(templates.len());
    for template in templates {
        catalogs.push(Catalog::compile(template, request, requested, cluster)?);
    }
    // The order of `templates` must not decide between pools of one weight, so their names do.
    catalogs.sort_by(|a, b| (Reverse(a.weight), &a.pool).cmp(&(Reverse(b.weight), &b.pool)));
    Ok(catalogs)
}

/// How pending pods are placed.
#[derive(Clone, Copy)]
pub(super) enum PlacementMode<'a> {
    /// One by one on new nodes, as Karpenter does.
    OneByOne,
    /// One by one as Karpenter does, each pod on the first existing node that takes it, or else on a new one.
    OnFirstNode,
    /// Packed by cost, using these existing nodes as well.
    Packed(&'a [NodeId]),
}

/// The result of one mode.
pub(super) struct Attempt {
    pub(super) existing: Vec<(String, String)>,
    pub(super) nodes: Vec<PlannedNode>,
    pub(super) unplaceable: Vec<Unplaceable>,
    /// The price with the cheapest option of each node, in micro-dollars per hour. `u64::MAX` if a pool's `minValues`
    /// prevent the lists from being cut below the ceiling.
    pub(super) price: u64,
    /// The number of pods that were not packed in numbers.
    pub(super) placed_one_by_one: usize,
    /// A lower bound for the price of the nodes for all pods, in micro-dollars per hour.
    pub(super) bound: Option<u64>,
}

impl Attempt {
    /// Returns whether a pod has no place.
    pub(super) fn is_open(&self) -> bool {
        !self.unplaceable.is_empty()
    }

    /// Returns the better of two attempts: this one if it places all pods that the other places, and more or no dearer.
    pub(super) fn or(self, other: Attempt) -> Attempt {
        if self.is_as_good_as(&other) {
            self
        } else {
            other
        }
    }

    /// Returns whether this attempt places all pods that the other places, and more or no dearer.
    pub(super) fn is_as_good_as(&self, other: &Attempt) -> bool {
        // A plan that swaps one pod without a place for another is not better, whatever it costs: sets are compared,
        // not counts.
        self.places_all_of(other) && (self.places_more_than(other) || self.price <= other.price)
    }

    /// Returns the other attempt if it places all pods that this one places, and more or cheaper; otherwise this one.
    pub(super) fn unless_better(self, other: Attempt) -> Attempt {
        if other.is_better_than(&self) {
            other
        } else {
            self
        }
    }

    /// Returns whether this attempt places all pods that the other places, and more or cheaper.
    pub(super) fn is_better_than(&self, other: &Attempt) -> bool {
        self.places_all_of(other) && (self.places_more_than(other) || self.price < other.price)
    }

    /// Returns whether this attempt places pods that the other leaves out, or costs at most one part in `near` more.
    pub(super) fn may_beat(&self, other: &Attempt, near: u64) -> bool {
        !other.places_all_of(self) || self.price <= other.price.saturating_add(other.price / near)
    }

    fn places_all_of(&self, other: &Attempt) -> bool {
        let without = other.unplaceable.iter().map(|pod| pod.pod.as_str());
        let without: FxHashSet<&str> = without.collect();
        let mut unplaceable = self.unplaceable.iter();
        unplaceable.all(|pod| without.contains(pod.pod.as_str()))
    }

    /// Returns whether this attempt leaves fewer pods without a place than the other.
    pub(super) fn places_more_than(&self, other: &Attempt) -> bool {
        self.unplaceable.len() < other.unplaceable.len()
    }
}

/// A pending pod.
#[derive(Clone, Copy)]
pub(super) struct Pending {
    /// Its index in the request.
    pub(super) index: u32,
    /// The class as which it is planned: its own, or a stricter one that requires its preferences.
    pub(super) class: PodClassId,
    /// Its own class.
    pub(super) own: PodClassId,
}

impl Pending {
    /// Creates a pod that is planned as its own class.
    pub(super) fn new(index: u32, own: PodClassId) -> Self {
        Pending {
            index,
            class: own,
            own,
        }
    }
}

/// Compiles the pods and sorts them: see [`put_in_order`].
fn queue(
    cluster: &mut Cluster,
    pods: &[PodSpec],
    keys: &[String],
    plan: &mut Plan,
) -> Vec<Pending> {
    let mut pending = Vec::with_capacity(pods.len());
    for (index, pod) in pods.iter().enumerate() {
        match cluster.pod_class(&pod.template) {
            Ok(class) => pending.push(Pending::new(index as u32, class)),
            Err(invalid) => {
                plan.unplaceable.push(Unplaceable {
                    pod: keys[index].clone(),
                    invalid: Some(invalid),
                    pools: Arc::default(),
                });
            }
        }
    }
    put_in_order(cluster, &mut pending, keys);
    pending
}

/// Sorts pods by size, the largest first: by cpu, then memory, then key.
pub(super) fn put_in_order(cluster: &Cluster, pending: &mut [Pending], keys: &[String]) {
    pending.sort_by_cached_key(|pod| {
        let requests = &cluster.class(pod.class).shape.requests.real;
        let size = Reverse((requests.cpu_milli, requests.memory_bytes));
        (size, numbered(&keys[pod.index as usize]))
    });
}

/// Splits a key into name and trailing number, so that `web-2` comes before `web-10`.
fn numbered(key: &str) -> (&str, u64, &str) {
    let name = key.trim_end_matches(|c: char| c.is_ascii_digit());
    (name, key[name.len()..].parse().unwrap_or(0), key)
}

pub(super) struct Solver<'a> {
    pub(super) cluster: &'a mut Cluster,
    pub(super) catalogs: Vec<Catalog>,
    /// The keys of the request's pods.
    pub(super) keys: &'a [String],
    pub(super) claims: Vec<Claim>,
    /// The claims in the order in which pods are tried on them.
    pub(super) fewest_first: Vec<usize>,
    /// The claims that have no room for a class; a claim only loses options, so this stays true.
    pub(super) closed: FxHashMap<PodClassId, FixedBitSet>,
    pub(super) topologies: FxHashMap<PodClassId, Topology>,
    /// Whether nodes of a pool that has reached its limits are tightened to make room for one more.
    pub(super) tightens: bool,
    /// The number of planned pods when the nodes of a pool were last tightened.
    pub(super) tightened: FxHashMap<usize, usize>,
    /// The pools in the order in which Karpenter opens nodes of them: the highest weight first, then the name that is last in
    /// the alphabet (`OrderByWeight`).
    pub(super) opening_order: Vec<usize>,
    /// The choices with which pods are placed one by one.
    pub(super) choices: Choices,
    seed: u64,
    /// Whether pods that are placed one by one are placed with several choices.
    pub(super) varies: bool,
    /// The number of empty places that were ever added, for their names.
    pub(super) places: usize,
    /// The effort of the search for a cheaper packing.
    pub(super) effort: u64,
    /// Whether the plan needs a lower bound of the price.
    pub(super) wants_bound: bool,
    /// The highest price of all nodes together. If they cost less, each node lists options up to its share of it.
    pub(super) ceiling: Option<u64>,
    pub(super) preferences: Preferences,
    pub(super) reservations: Reservations,
    /// The pods that may have to share a node; empty once there is no node for all of them.
    pub(super) units: Units,
}

impl<'a> Solver<'a> {
    /// Creates a solver without claims; `keys` are those of the pods that it will place.
    pub(super) fn new(
        cluster: &'a mut Cluster,
        catalogs: Vec<Catalog>,
        keys: &'a [String],
        seed: u64,
    ) -> Self {
        let mut opening_order: Vec<usize> = (0..catalogs.len()).collect();
        opening_order.sort_by_key(|index| {
            let catalog = &catalogs[*index];
            (Reverse(catalog.weight), Reverse(&catalog.pool))
        });
        Solver {
            cluster,
            reservations: Reservations::of(&catalogs),
            catalogs,
            keys,
            claims: Vec::new(),
            fewest_first: Vec::new(),
            closed: FxHashMap::default(),
            topologies: FxHashMap::default(),
            tightens: false,
            tightened: FxHashMap::default(),
            opening_order,
            choices: Choices::default(),
            seed,
            varies: false,
            places: 0,
            effort: PlanRequest::EFFORT,
            wants_bound: false,
            ceiling: None,
            preferences: Preferences::default(),
            units: Units::default(),
        }
    }
}

impl Solver<'_> {
    /// Places pending pods on existing nodes, as the scheduler would. Returns the pods without a place.
    pub(super) fn place_on_nodes(
        &mut self,
        pending: &[Pending],
        placed: &mut Vec<(String, String)>,
    ) -> Vec<Pending> {
        // The largest free amounts of any node, to skip larger pods quickly.
        let mut most = Amounts::default();
        for node in self.cluster.nodes() {
            let there = self.cluster.at(node);
            let mut free = there.fixed.allocatable.clone();
            free.subtract(&there.used);
            most.maximize(&free);
        }
        // `demands` is what the fit filter looks at, so a pod larger than every free amount is refused without asking
        // each node. Where a profile has switched that filter off, size refuses nobody.
        let place = |solver: &mut Self, pod: &Pending| {
            let shape = &solver.cluster.class(pod.class).shape;
            let wanted = shape.demands();
            let is_large = wanted.cpu_milli > most.cpu_milli.max(0)
                || wanted.memory_bytes > most.memory_bytes.max(0);
            let fits_by_size = solver
                .cluster
                .rules(shape.profile)
                .filters(Plugin::NodeResourcesFit);
            !(is_large && fits_by_size) && solver.place_on_existing(pod, placed)
        };
        // Room may be held for a single pod, so pods of one class are not equal then.
        if self.cluster.holds_room() {
            self.until_settled(pending.to_vec(), place)
        } else {
            self.until_settled_by_class(pending.to_vec(), place)
        }
    }

    /// Places all pending pods in one mode, records the result, and rolls everything back.
    pub(super) fn attempt(&mut self, pending: &[Pending], mode: PlacementMode<'_>) -> Attempt {
        let checkpoint = self.cluster.checkpoint();
        // Limits and reservations live outside the cluster, so its rollback does not restore them.
        let limits: Vec<Limits> = self
            .catalogs
            .iter()
            .map(|catalog| catalog.limits.clone())
            .collect();
        let reservations = self.reservations.clone();
        let mut retries = Retries::of(mode);
        self.add_places(pending);
        let mut existing = Vec::new();
        let (pending, bound) = match mode {
            PlacementMode::OneByOne | PlacementMode::OnFirstNode => (pending.to_vec(), None),
            PlacementMode::Packed(nodes) => {
                let (rest, bound) = self.pack_reserved_first(pending, nodes, &mut existing);
                // The bound is about buying machines for all pods; it says nothing once pods went to nodes that cost
                // nothing.
                let (rest, bound) = if nodes.is_empty() {
                    (rest, bound)
                } else {
                    (self.place_on_nodes(&rest, &mut existing), None)
                };
                (self.pack_beyond_limits(rest), bound)
            }
        };
        let placed_one_by_one = pending.len();
        let mut place = |solver: &mut Self, pod: &Pending| {
            solver.retry_existing(pod, &mut retries, &mut existing) || solver.place_on_planned(pod)
        };
        let mut pending = self.until_settled_by_class(pending, &mut place);
        let mut unplaceable = Vec::with_capacity(pending.len());
        // Pods that wait for reserved capacity keep their preferences.
        self.take_waiting(&mut pending, &mut unplaceable);
        // One preference at a time, as Karpenter's `Preferences.Relax`: what one pod gives up may be what lets others
        // have a place with theirs.
        while self.give_up_one(&mut pending) {
            pending = self.until_settled_by_class(pending, &mut place);
            self.take_waiting(&mut pending, &mut unplaceable);
        }
        // Only now: a node that may become small types alone has no room for pods that would have joined it.
        self.tightens = self.is_limited();
        if self.tightens {
            pending = self.until_settled_by_class(pending, &mut place);
            self.take_waiting(&mut pending, &mut unplaceable);
        }
        // Better some of the pods that must share a node than none.
        let units = std::mem::take(&mut self.units);
        if !units.is_empty() {
            pending = self.until_settled_by_class(pending, &mut place);
        }
        self.tightens = false;
        // Worked out before the rollback: the reasons are about limits and reservations as this plan leaves them.
        let mut refusals: FxHashMap<PodClassId, Arc<[PoolRefusal]>> = FxHashMap::default();
        for pod in pending {
            let known = refusals.entry(pod.class);
            let pools = known.or_insert_with(|| self.refusals(&pod).into());
            unplaceable.push(Unplaceable {
                pod: self.keys[pod.index as usize].clone(),
                invalid: None,
                pools: Arc::clone(pools),
            });
        }
        let mut claims = std::mem::take(&mut self.claims);
        // Machines of a packing whose pods were all refused by the filters are not bought.
        claims.retain(|claim| !claim.pods.is_empty());
        let is_cut = self.cut_lists(&mut claims);
        let mut price = if is_cut { 0 } else { u64::MAX };
        let mut nodes = Vec::with_capacity(claims.len());
        let mut lists = Lists::default();
        for claim in claims {
            let catalog = &self.catalogs[claim.catalog];
            price = price.saturating_add(claim.price(catalog));
            nodes.push(claim.describe(catalog, self.keys, &mut lists, self.cluster));
        }
        self.cluster.rollback(checkpoint);
        for (catalog, limits) in self.catalogs.iter_mut().zip(limits) {
            catalog.limits = limits;
        }
        self.reservations = reservations;
        self.units = units;
        self.fewest_first.clear();
        self.closed.clear();
        self.tightened.clear();
        Attempt {
            existing,
            nodes,
            unplaceable,
            price,
            placed_one_by_one,
            bound,
        }
    }

    /// Returns whether a pool has limits.
    pub(super) fn is_limited(&self) -> bool {
        let mut limits = self.catalogs.iter().map(|catalog| &catalog.limits);
        limits.any(|limits| !limits.is_unlimited())
    }

    /// Drops options of planned nodes above their share of the ceiling. Returns `false` if a pool's `minValues` cannot be
    /// met then.
    fn cut_lists(&self, claims: &mut [Claim]) -> bool {
        let Some(ceiling) = self.ceiling else {
            return true;
        };
        let prices: Vec<u64> = claims
            .iter()
            .map(|claim| claim.price(&self.catalogs[claim.catalog]))
            .collect();
        let sum: u64 = prices.iter().sum();
        // A plan above the ceiling is no saving at any length of its lists, so they stay whole; the caller sees its
        // price.
        if sum == 0 || sum > ceiling {
            return true;
        }
        // In proportion to price: if every node becomes the dearest option it lists, all together still cost no more
        // than the ceiling.
        claims.iter_mut().zip(prices).all(|(claim, price)| {
            let share = u128::from(price) * u128::from(ceiling) / u128::from(sum);
            claim.cut(share as u64, &self.catalogs[claim.catalog], self.cluster)
        })
    }

    /// Works like [`Solver::until_settled`] where pods of a class are equal: after one found no place, the others are
    /// skipped until something else was placed.
    fn until_settled_by_class(
        &mut self,
        pending: Vec<Pending>,
        mut place: impl FnMut(&mut Self, &Pending) -> bool,
    ) -> Vec<Pending> {
        let mut refused = FxHashSet::default();
        self.until_settled(pending, |solver, pod| {
            if refused.contains(&pod.class) {
                return false;
            }
            let placed = place(solver, pod);
            if placed {
                refused.clear();
            } else {
                refused.insert(pod.class);
            }
            placed
        })
    }

    /// Tries all pods repeatedly until no more find a place; returns those without one.
    pub(super) fn until_settled(
        &mut self,
        mut pending: Vec<Pending>,
        mut place: impl FnMut(&mut Self, &Pending) -> bool,
    ) -> Vec<Pending> {
        loop {
            let before = pending.len();
            pending.retain(|pod| !place(self, pod));
            if pending.is_empty() || pending.len() == before {
                return pending;
            }
        }
    }

    /// Places a pod on the existing node that the scheduler would choose.
    fn place_on_existing(&mut self, pod: &Pending, placed: &mut Vec<(String, String)>) -> bool {
        let key = &self.keys[pod.index as usize];
        let found = match self.whole_unit(pod.own) {
            Some(all) => self.existing_for_unit(pod.own, &all),
            None => self.cluster.best_node(pod.own, key, self.seed),
        };
        let Some(node) = found else {
            return false;
        };
        // The scheduler's choice may be a planned node, because planned nodes are nodes of the cluster here.
        if self.claims.iter().any(|claim| claim.node == node) {
            // Virtual nodes are joined by `place_on_planned` only.
            return false;
        }
        // As in Karpenter, nothing more is placed on a node whose room is promised twice.
        let mut free = self.cluster.at(node).fixed.allocatable.clone();
        free.subtract(&self.cluster.at(node).used);
        if free.is_overdrawn() {
            return false;
        }
        self.cluster.load_logged(pod.own, node);
        placed.push((key.clone(), self.cluster.node_name(node).to_owned()));
        true
    }
}
