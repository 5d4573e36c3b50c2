//! Plans replacements for nodes that consolidation removes; the pools are compiled once for many such plans. Only for pods that
//! ask for combinations of open labels beyond those of one plan, the pools are compiled again for each plan.

use rustc_hash::FxHashMap;

use super::PlanRequest;
use super::catalog::Catalog;
use super::numbers::{Numbers, NumbersConfig};
use super::open_labels::RequestedLabels;
use super::other_labels::may_help;
use super::plan::{PlannedNode, Unplaceable};
use super::preferences::Preferences;
use super::solve::{Pending, Solver, compile, put_in_order};
use crate::class::PodClassId;
use crate::cluster::Cluster;
use crate::error::ModelError;
use crate::model::ResourceMap;

/// The effort of each plan (see [`PlanRequest::effort`]); small, because consolidation asks for many plans at a time.
const EFFORT: u64 = 100_000;

/// The value of a pod of each class: its share of the cheapest machines for all pods, in micro-dollars per hour.
pub(crate) type Values = FxHashMap<PodClassId, f64>;

/// The compiled pools, for many plans.
pub(crate) struct Pools<'a> {
    request: &'a PlanRequest,
    requested: RequestedLabels,
    /// The catalogs for the labels that the pods ask for, or for the first of them. Limits and reservations are those
    /// of the moment.
    catalogs: Vec<Catalog>,
    preferences: Preferences,
    seed: u64,
}

/// New places for the pods of removed nodes.
#[derive(Debug, Default)]
pub(crate) struct Replacement {
    /// Pods on existing nodes: pod key and node name.
    pub(crate) existing: Vec<(String, String)>,
    /// Nodes to buy.
    pub(crate) nodes: Vec<PlannedNode>,
    /// The price of the nodes to buy, each with its cheapest option, in micro-dollars per hour.
    pub(crate) price: u64,
}

/// Why there is no replacement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoReplacement {
    /// A pod has no place at any price.
    NoPlace,
    /// A pod has no place with the combinations of open labels that were tried, and accepts more.
    MoreCombinations {
        /// The pod's key.
        pod: String,
        /// The number of combinations that were tried.
        tried: usize,
    },
    /// The nodes would cost more than the ceiling.
    TooDear,
}

impl<'a> Pools<'a> {
    /// Compiles what can be bought for pods of the classes `moved`.
    ///
    /// # Errors
    /// Returns an error if a pool offers a negative amount.
    pub(crate) fn compile(
        request: &'a PlanRequest,
        moved: &[PodClassId],
        cluster: &mut Cluster,
    ) -> Result<Self, ModelError> {
        let templates = &request.templates;
        let requested = RequestedLabels::of(moved.iter().copied(), templates, cluster);
        Ok(Pools {
            catalogs: compile(request, templates, &requested.first(), cluster)?,
            request,
            requested,
            preferences: Preferences::of(request),
            seed: request.seed,
        })
    }

    /// Returns the capacity of a removed node to its pool's limits.
    pub(crate) fn give_back(&mut self, pool: &str, capacity: &ResourceMap) {
        for own in self.of(pool) {
            own.limits.give_back(capacity);
        }
    }

    /// Undoes [`Pools::give_back`].
    pub(crate) fn take(&mut self, pool: &str, capacity: &ResourceMap) {
        for own in self.of(pool) {
            own.limits.take(capacity);
        }
    }

    /// Counts a node to be bought against its pool's limits, as the largest type that it may become, and against the
    /// reservations that it may run in.
    pub(crate) fn buy(&mut self, node: &PlannedNode, cluster: &Cluster) {
        for own in self.of(&node.pool) {
            let listed = |name: &str| node.options.iter().any(|option| option.name == name);
            let types = own.types.iter().filter(|spec| listed(&spec.name));
            let largest = own.limits.largest(types.map(|spec| &spec.capacity));
            own.limits.take(&largest);
        }
        for id in node
            .reservations
            .iter()
            .filter_map(|id| cluster.names().find(id))
        {
            let own = self.catalogs.iter_mut();
            for left in own.filter_map(|own| own.reservations.get_mut(&id)) {
                *left = left.saturating_sub(1);
            }
        }
    }

    fn of<'b>(&'b mut self, pool: &'b str) -> impl Iterator<Item = &'b mut Catalog> {
        self.catalogs.iter_mut().filter(move |own| own.pool == pool)
    }

    /// Returns the value of a pod of each class if machines are bought for all these pods, and a lower bound for the price
    /// of all machines. Classes whose constraints have no numeric form are left out, and those whose labels the compiled pools do
    /// not have: nothing could be bought for them, so they would seem to be worth more than any machine.
    pub(crate) fn values(
        &mut self,
        classes: &[(PodClassId, u32)],
        cluster: &mut Cluster,
    ) -> (Values, u64) {
        let config = NumbersConfig {
            bound: false,
            preferences: true,
        };
        let has_all = |(class, _): &&(PodClassId, u32)| self.requested.first_has_all_of(*class);
        let classes: Vec<_> = classes.iter().filter(has_all).copied().collect();
        let numbers = Numbers::of(&classes, &[], &mut self.catalogs, cluster, config);
        let mut values = Values::default();
        let (of_items, bound) = numbers.problem.values();
        for (part, value) in numbers.items.iter().zip(of_items) {
            let value = value / f64::from(part.pods.max(1));
            // A class that is spread over zones has an item for each; the lowest value is the price at which some
            // zone takes the pod.
            let least = values.entry(part.class).or_insert(value);
            *least = least.min(value);
        }
        (values, bound)
    }

    /// Finds places for pods whose nodes were removed, on existing nodes and on new ones. The new nodes together cost at
    /// most `ceiling`, if there is one, whichever of their options they become. The cluster is unchanged when this returns.
    pub(crate) fn replace(
        &mut self,
        pods: &[(String, PodClassId)],
        ceiling: Option<u64>,
        values: &Values,
        cluster: &mut Cluster,
    ) -> Result<Replacement, NoReplacement> {
        let keys: Vec<String> = pods.iter().map(|(key, _)| key.clone()).collect();
        let mut pending: Vec<Pending> = pods
            .iter()
            .enumerate()
            .map(|(index, (_, class))| Pending::new(index as u32, *class))
            .collect();
        put_in_order(cluster, &mut pending, &keys);
        let mut classes = pods.iter().map(|(_, class)| *class);
        if classes.all(|class| self.requested.first_has_all_of(class)) {
            let catalogs = std::mem::take(&mut self.catalogs);
            let (replacement, catalogs) =
                self.replace_with(catalogs, &keys, &pending, ceiling, values, cluster);
            self.catalogs = catalogs;
            return replacement.map_err(|why| match why {
                NotBought::NoPlace(_) => NoReplacement::NoPlace,
                NotBought::TooDear => NoReplacement::TooDear,
            });
        }
        let turns = self.requested.turns(pods.iter().map(|(_, class)| class));
        // "Too dear" is the stronger answer: it says that there is a place at a higher price.
        let mut is_too_dear = false;
        let mut stuck = None;
        for requested in &turns {
            let checkpoint = cluster.checkpoint();
            let replacement = match self.catalogs_for(requested, cluster) {
                // The same pools were compiled before, so this does not fail.
                Err(_) => Err(NotBought::NoPlace(None)),
                Ok(catalogs) => {
                    self.replace_with(catalogs, &keys, &pending, ceiling, values, cluster)
                        .0
                }
            };
            cluster.rollback(checkpoint);
            match replacement {
                Ok(replacement) => return Ok(replacement),
                Err(NotBought::TooDear) => is_too_dear = true,
                Err(NotBought::NoPlace(pod)) => {
                    stuck = pod;
                    if stuck.is_none() {
                        break;
                    }
                }
            }
        }
        let more = stuck.and_then(|pod| {
            let (key, class) = &pods[pod as usize];
            let tried = self.requested.tried(*class, &turns)?;
            Some((key.clone(), tried))
        });
        Err(match more {
            _ if is_too_dear => NoReplacement::TooDear,
            Some((pod, tried)) => NoReplacement::MoreCombinations { pod, tried },
            None => NoReplacement::NoPlace,
        })
    }

    /// Compiles what can be bought with these labels under the limits and reservations of the moment.
    fn catalogs_for(
        &self,
        requested: &RequestedLabels,
        cluster: &mut Cluster,
    ) -> Result<Vec<Catalog>, ModelError> {
        let mut catalogs = compile(self.request, &self.request.templates, requested, cluster)?;
        // `compile` sorts both alike, so the pools are in the same order.
        for (own, known) in catalogs.iter_mut().zip(&self.catalogs) {
            own.limits = known.limits.clone();
            own.reservations = known.reservations.clone();
        }
        Ok(catalogs)
    }

    /// Finds places as [`Pools::replace`] does, on new nodes of these catalogs, and returns them.
    fn replace_with(
        &mut self,
        catalogs: Vec<Catalog>,
        keys: &[String],
        pending: &[Pending],
        ceiling: Option<u64>,
        values: &Values,
        cluster: &mut Cluster,
    ) -> (Result<Replacement, NotBought>, Vec<Catalog>) {
        let checkpoint = cluster.checkpoint();
        let mut solver = Solver::new(cluster, catalogs, keys, self.seed);
        solver.effort = EFFORT;
        solver.ceiling = ceiling;
        // Steps and prices of preferences were worked out for earlier plans and hold for these pools.
        solver.preferences = std::mem::take(&mut self.preferences);
        let pending = solver.with_preferences(pending);
        let replacement = buy(&mut solver, &pending, ceiling, values);
        let catalogs = solver.catalogs;
        self.preferences = solver.preferences;
        cluster.rollback(checkpoint);
        (replacement, catalogs)
    }
}

/// Why one plan finds no replacement.
enum NotBought {
    /// Some pods have no place at any price: if each of them might have one on a node with other open labels, the index of the first
    /// one.
    NoPlace(Option<u32>),
    /// The nodes would cost more than the ceiling.
    TooDear,
}

fn buy(
    solver: &mut Solver<'_>,
    pending: &[Pending],
    ceiling: Option<u64>,
    values: &Values,
) -> Result<Replacement, NotBought> {
    solver.add_hosts(pending);
    solver.count_units(pending);
    let mut existing = Vec::new();
    solver.add_places(pending);
    let rest = solver.place_on_nodes(pending, &mut existing);
    if rest.is_empty() {
        return Ok(Replacement {
            existing,
            ..Replacement::default()
        });
    }
    // The pods' values are a lower bound for what buying for them costs, so a plan that cannot stay below the ceiling
    // is not made.
    let worth: f64 = rest.iter().filter_map(|pod| values.get(&pod.own)).sum();
    let is_beyond = |price: f64| ceiling.is_some_and(|ceiling| price > ceiling as f64);
    if is_beyond(worth) {
        return Err(NotBought::TooDear);
    }
    let bought = solver.buy(&rest, &[]);
    if bought.is_open() {
        return Err(NotBought::NoPlace(waiting_for_labels(
            solver,
            &rest,
            &bought.unplaceable,
        )));
    }
    if is_beyond(bought.price as f64) {
        return Err(NotBought::TooDear);
    }
    existing.extend(bought.existing);
    Ok(Replacement {
        existing,
        nodes: bought.nodes,
        price: bought.price,
    })
}

/// Returns the index of the first pod without a place, if each of them might have one on a node with other open labels.
fn waiting_for_labels(
    solver: &Solver<'_>,
    pending: &[Pending],
    unplaceable: &[Unplaceable],
) -> Option<u32> {
    let by_key = pending.iter().map(|pod| {
        let key = solver.keys[pod.index as usize].as_str();
        (key, *pod)
    });
    let by_key: FxHashMap<&str, Pending> = by_key.collect();
    let mut first = None;
    for refused in unplaceable {
        let pod = by_key.get(refused.pod.as_str())?;
        if !may_help(
            pod.own,
            refused.pools.iter(),
            &solver.catalogs,
            solver.cluster,
        ) {
            return None;
        }
        first = first.or(Some(pod.index));
    }
    first
}
