//! A planned node: the options that remain for it, the pods on it, and its virtual node in the cluster.
//!
//! Invariant: every remaining option passes all filters for all pods so far. The virtual node has the labels of the cheapest
//! option, and all options agree with it on the labels by which the pods on it are spread, kept apart or counted.

use std::collections::BTreeMap;
use std::sync::Arc;

use fixedbitset::FixedBitSet;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::class::PodClassId;
use crate::cluster::{Cluster, NodeId};
use crate::filter;
use crate::intern::Symbol;
use crate::model::{Operator, ResourceMap, label};
use crate::reason::{Plugin, Refusal};
use crate::resources::Amounts;

use super::catalog::Catalog;
use super::parts::{crowd, prefer, shuffle, split};
use super::solve::Pending;
use super::units;
use super::{InstanceTypeOption, PlannedNode, PoolReason, Requirement};

/// The lists of planned nodes by catalog and remaining options, so that nodes with equal options share one.
pub(super) type Lists = FxHashMap<(usize, FixedBitSet), Listed>;

/// The part of a planned node that follows from the options that remain for it.
pub(super) struct Listed {
    options: Arc<[InstanceTypeOption]>,
    requirements: Arc<[Requirement]>,
    reservations: Arc<[String]>,
    /// Whether it lists fewer values of a label than the pool's `minValues`.
    has_too_few_values: bool,
}

impl Listed {
    fn of(options: &FixedBitSet, catalog: &Catalog, cluster: &Cluster) -> Self {
        let listed = catalog.listed(&catalog.of_one_value(options.clone()), cluster);
        Listed {
            options: described(&listed, catalog).into(),
            requirements: requirements(&listed, catalog, cluster).into(),
            reservations: catalog.ids_of(&listed, cluster),
            has_too_few_values: catalog.missing_values(&listed, cluster).is_some(),
        }
    }
}

pub(super) struct Claim {
    pub(super) catalog: usize,
    pub(super) options: FixedBitSet,
    pub(super) node: NodeId,
    /// The option whose labels the virtual node has.
    shown: usize,
    /// The pods on it, by their index in the request.
    pub(super) pods: Vec<u32>,
    /// The sum of its pods' requests, without those of DaemonSets.
    requests: Amounts,
    /// The room that every remaining option has at least; `None` until it is asked for, because few claims of a packing
    /// get further pods.
    room: Option<Amounts>,
    /// The amount of the pool's limits that is reserved for it.
    pub(super) reserved: ResourceMap,
    /// The capacity reservations in each of which it holds one instance.
    pub(super) held: Vec<Symbol>,
}

/// How the topology rules of a class restrict a planned node.
#[derive(Clone, Debug, Default)]
pub(super) struct Topology {
    /// Labels, other than the hostname, on which all remaining options must agree once a pod of the class is planned.
    pub(super) keys: Vec<Symbol>,
    /// Whether declared soft spread constraints count as hard ones.
    pub(super) strict: bool,
    /// The choice among several places with equally few of its pods: 0 for the one with the cheapest option, other
    /// numbers for arbitrary ones.
    pub(super) variant: u64,
    /// The zone that goes before the others among these.
    pub(super) zone: Option<Symbol>,
    /// Whether the node may stay in all places that admit the pod, because nobody counts the pod by its place.
    pub(super) keeps_places: bool,
}

impl Claim {
    /// Returns the options that have room for these requests beside those of the pods that are planned already.
    pub(super) fn options_for(&self, requests: &Amounts, catalog: &Catalog) -> FixedBitSet {
        units::with_room(&self.options, &self.requests, requests, catalog)
    }

    /// Creates a planned node without pods; `None` if `options` is empty.
    pub(super) fn open(
        catalog: (usize, &Catalog),
        options: FixedBitSet,
        name: &str,
        cluster: &mut Cluster,
    ) -> Option<Self> {
        let (index, catalog) = catalog;
        // Options are numbered by price, so the first one is the cheapest.
        let shown = options.minimum()?;
        let allocatable = catalog.room_of(shown).free.clone();
        let node = cluster.add_virtual(
            name,
            &catalog.options[shown].labels,
            &catalog.taints,
            allocatable,
        );
        Some(Claim {
            catalog: index,
            room: None,
            options,
            node,
            shown,
            pods: Vec::new(),
            requests: Amounts::default(),
            reserved: ResourceMap::new(),
            held: Vec::new(),
        })
    }

    /// Returns the limit of the pool that excludes a type which would also hold the pod; `None` if no such type exists.
    pub(super) fn limit_in_the_way(
        &self,
        options: &FixedBitSet,
        class: PodClassId,
        catalog: &Catalog,
        cluster: &Cluster,
    ) -> Option<PoolReason> {
        let mut requests = self.requests.clone();
        requests.add(&cluster.class(class).shape.requests.real);
        requests.pods += 1;
        let holding = catalog.holding(options, &requests);
        // Only types that would hold the pod matter: a limit that excludes smaller ones is not what keeps the pod
        // waiting.
        let mut types = holding
            .ones()
            .map(|option| &catalog.type_of(option).capacity);
        types.find_map(|capacity| catalog.limits.broken_by(capacity))
    }

    /// Places a pod for which every remaining option has room, unless topology filters refuse it; they run if `is_bound`. On
    /// the node the pod counts as its own class.
    pub(super) fn load(&mut self, pod: Pending, is_bound: bool, cluster: &mut Cluster) -> bool {
        if is_bound && check(&pod, self.node, false, cluster).is_some() {
            return false;
        }
        let Pending { index, class, own } = pod;
        self.requests.add(&cluster.class(class).shape.requests.real);
        self.requests.pods += 1;
        self.pods.push(index);
        cluster.load_logged(own, self.node);
        true
    }

    /// Reserves these amounts of the pool's limits.
    pub(super) fn reserve(&mut self, amounts: ResourceMap, catalog: &mut Catalog) {
        if catalog.limits.is_unlimited() {
            return;
        }
        catalog.limits.take(&amounts);
        self.reserved = amounts;
    }

    /// Closes a planned node without pods: it has no options left, so no pod can join it, and its virtual node has no room.
    pub(super) fn close(&mut self, catalog: &mut Catalog, cluster: &mut Cluster) {
        catalog.limits.give_back(&self.reserved);
        self.reserved.clear();
        self.options.clear();
        let labels = &catalog.options[self.shown].labels;
        // Reshaped and not removed: names and indices of claims count on every claim staying where it is.
        cluster.reshape_virtual(self.node, labels, Amounts::default());
    }

    /// Returns the price of the cheapest option, in micro-dollars per hour.
    pub(super) fn price(&self, catalog: &Catalog) -> u64 {
        let cheapest = self.options.minimum();
        cheapest.map_or(0, |option| catalog.price_of(option))
    }

    /// Places a pod on the planned node if an option remains for all of its pods. Otherwise the claim is unchanged.
    pub(super) fn add(
        &mut self,
        pod: Pending,
        catalog: &mut Catalog,
        topology: &Topology,
        cluster: &mut Cluster,
    ) -> Result<(), PoolReason> {
        let Pending { index, class, own } = pod;
        let mut requests = self.requests.clone();
        requests.add(&cluster.class(class).shape.requests.real);
        requests.pods += 1;
        let verdicts = catalog.verdicts(class, cluster);
        let mut options = self.options.clone();
        options.intersect_with(&verdicts.fits);
        if options.is_clear() {
            return Err(match verdicts.refusal {
                Some((plugin, reason)) => PoolReason::Incompatible { plugin, reason },
                None => PoolReason::NoInstanceTypes,
            });
        }
        // Per class and not per kind like the verdicts: which volumes a pod has is no part of its shape.
        let options = catalog.reaching(class, options, cluster)?;
        // `room` is what every option has, so most pods are accepted without a look at each type.
        let room = self
            .room
            .get_or_insert_with(|| catalog.least(&self.options));
        let holding = if requests.exceeds(room).is_none() {
            options
        } else {
            let holding = catalog.holding(&options, &requests);
            if holding.is_clear() {
                return Err(PoolReason::TooLarge {
                    resource: lacking(catalog, &options, &requests, cluster),
                });
            }
            holding
        };
        // `place` tries domains by giving the virtual node their labels; a refusal puts the former ones back.
        let before = self.shown;
        let chosen = self
            .place(&pod, catalog, holding, topology, cluster)
            .and_then(|options| match catalog.too_few_values(&options, cluster) {
                Some(reason) => Err(reason),
                None => Ok(options),
            })
            .and_then(|options| {
                if self.loses_reserved(&options, catalog) {
                    Err(PoolReason::ReservationHeld)
                } else {
                    Ok(options)
                }
            });
        match chosen {
            Ok(options) => {
                if options != self.options {
                    self.room = None;
                    self.options = options;
                }
                // `class` decides where the pod may go, `own` is what it counts as for others: its preferences keep
                // nobody away.
                self.requests = requests;
                self.pods.push(index);
                cluster.load_logged(own, self.node);
                Ok(())
            }
            Err(reason) => {
                self.show(before, catalog, cluster);
                Err(reason)
            }
        }
    }

    /// Returns the part of the options for which the topology filters accept the pod; the virtual node gets the labels of
    /// its first option.
    fn place(
        &mut self,
        pod: &Pending,
        catalog: &mut Catalog,
        options: FixedBitSet,
        topology: &Topology,
        cluster: &mut Cluster,
    ) -> Result<FixedBitSet, PoolReason> {
        // A node without pods is not bound to the place of an option that may be too small for this pod.
        let near = if self.pods.is_empty() {
            options.minimum().unwrap_or(self.shown)
        } else {
            self.shown
        };
        // Each part agrees on the topology labels, so the virtual node can stand for all of it in the filters.
        let mut places = split(catalog, options, &topology.keys, near);
        if topology.variant > 0 {
            shuffle(&mut places, pod.class, topology, catalog, cluster);
        }
        if let Some(zone) = topology.zone {
            prefer(zone, &mut places, catalog);
        }
        let keeps_places = topology.keeps_places && pod.class == pod.own;
        let mut refusal: Option<Refusal> = None;
        let mut best: Option<(i64, FixedBitSet)> = None;
        for part in places {
            let Some(first) = part.minimum() else {
                continue;
            };
            // Showing another option moves the node in all counts by domain, so it is avoided where the part is shown
            // already.
            let look = if part.contains(self.shown) {
                self.shown
            } else {
                first
            };
            self.show(look, catalog, cluster);
            match check(pod, self.node, topology.strict, cluster) {
                Some(refused) => refusal = refusal.or(Some(refused)),
                None => {
                    // As in Karpenter, a spread pod goes to the domain with the fewest matching pods, not to the
                    // cheapest one.
                    let crowd = crowd(pod.class, self.node, cluster);
                    if keeps_places && let Some((_, places)) = &mut best {
                        places.union_with(&part);
                    } else if best.as_ref().is_none_or(|(least, _)| crowd < *least) {
                        best = Some((crowd, part));
                    }
                }
            }
        }
        let Some((_, part)) = best else {
            return Err(match refusal {
                Some(refusal) => PoolReason::Topology {
                    plugin: refusal.plugin,
                    reason: refusal.reason,
                },
                None => PoolReason::NoInstanceTypes,
            });
        };
        if let Some(first) = part.minimum() {
            self.show(first, catalog, cluster);
        }
        Ok(part)
    }

    fn show(&mut self, option: usize, catalog: &Catalog, cluster: &mut Cluster) {
        if option != self.shown {
            self.shown = option;
            let allocatable = catalog.room_of(option).free.clone();
            cluster.reshape_virtual(self.node, &catalog.options[option].labels, allocatable);
        }
    }

    /// Drops options above this price, and if spot options remain, all others: Karpenter does not let a cheaper node become
    /// an on-demand one because spot was refused. Returns `false` if fewer values remain than the pool's `minValues`.
    pub(super) fn cut(&mut self, most_price: u64, catalog: &Catalog, cluster: &Cluster) -> bool {
        let mut keep = FixedBitSet::with_capacity(self.options.len());
        keep.extend(
            self.options
                .ones()
                .filter(|option| catalog.price_of(*option) <= most_price),
        );
        let spot: FixedBitSet = keep
            .ones()
            .filter(|option| catalog.is_spot(*option))
            .collect();
        // A node that holds a reserved machine has paid for it already, so it does not give way to spot.
        if !spot.is_clear() && self.held.is_empty() {
            keep.intersect_with(&spot);
        }
        let is_enough = catalog.too_few_values(&keep, cluster).is_none();
        if is_enough && !keep.is_clear() {
            self.options = keep;
        }
        is_enough
    }

    /// Restricts the options to these; `options` must not be empty.
    pub(super) fn narrow(
        &mut self,
        options: FixedBitSet,
        catalog: &Catalog,
        cluster: &mut Cluster,
    ) {
        if options == self.options {
            return;
        }
        if let Some(first) = options.minimum() {
            self.room = None;
            self.options = options;
            self.show(first, catalog, cluster);
        }
    }

    /// Drops options that take more of the pool's limits than the cheapest type, so that less of them is reserved. As many
    /// stay as the pool's `minValues` need.
    pub(super) fn tighten(&mut self, catalog: &Catalog, cluster: &Cluster) {
        let Some(cheapest) = self.options.minimum() else {
            return;
        };
        // The cheapest and not the smallest type: the plan's price was compared with others at that type.
        let bound = &catalog.type_of(cheapest).capacity;
        let takes_no_more = |option: &usize| {
            let own = &catalog.type_of(*option).capacity;
            catalog.limits.takes_no_more(own, bound)
        };
        let keep: FixedBitSet = self.options.ones().filter(takes_no_more).collect();
        self.options = catalog.with_values(keep, &self.options, cluster);
        self.room = None;
    }

    /// Returns the planned node for the plan. `known` shares the lists between nodes with equal options.
    pub(super) fn describe(
        &self,
        catalog: &Catalog,
        keys: &[String],
        known: &mut Lists,
        cluster: &Cluster,
    ) -> PlannedNode {
        let entry = known.entry((self.catalog, self.to_list(catalog)));
        let listed = entry.or_insert_with_key(|(_, own)| Listed::of(own, catalog, cluster));
        let cheapest = self.options.minimum();
        let daemons = cheapest.map(|option| &catalog.room_of(option).daemons);
        // A NodeClaim's requests include its DaemonSets' pods, as Karpenter's do.
        let mut requests = self.requests.clone();
        if let Some(daemons) = daemons {
            requests.add(daemons);
        }
        PlannedNode {
            pool: catalog.pool.clone(),
            requirements: Arc::clone(&listed.requirements),
            options: Arc::clone(&listed.options),
            pods: self
                .pods
                .iter()
                .map(|pod| keys[*pod as usize].clone())
                .collect(),
            requests: requests.to_map(cluster.names()),
            daemons: daemons.map_or_else(ResourceMap::new, |taken| taken.to_map(cluster.names())),
            node_price_micro_usd: catalog.node_price,
            min_values_relaxed: if self.held.is_empty() {
                listed.has_too_few_values
            } else {
                catalog.missing_values(&self.options, cluster).is_some()
            },
            reservations: Arc::clone(&listed.reservations),
        }
    }
}

/// Returns the options by type, the cheapest type first, each with its offerings, the cheapest first.
fn described(options: &FixedBitSet, catalog: &Catalog) -> Vec<InstanceTypeOption> {
    let mut types: Vec<InstanceTypeOption> = Vec::new();
    let mut by_type: BTreeMap<usize, usize> = BTreeMap::new();
    for option in options.ones() {
        let choice = &catalog.options[option];
        let spec = &catalog.types[choice.type_index];
        let offering = &spec.offerings[choice.offering];
        let sold = (
            offering.zone.clone(),
            offering.capacity_type.clone(),
            offering.price_micro_usd,
        );
        // Options are sorted by price, so the first option of a type has its price.
        let index = *by_type.entry(choice.type_index).or_insert_with(|| {
            types.push(InstanceTypeOption {
                name: spec.name.clone(),
                price_micro_usd: choice.price_micro_usd,
                offerings: Vec::new(),
            });
            types.len() - 1
        });
        if !types[index].offerings.contains(&sold) {
            types[index].offerings.push(sold);
        }
    }
    types
}

/// Returns the requirements on labels that leave exactly these options open, sorted by key.
fn requirements(options: &FixedBitSet, catalog: &Catalog, cluster: &Cluster) -> Vec<Requirement> {
    let decided = [
        label::INSTANCE_TYPE,
        label::ZONE,
        label::CAPACITY_TYPE,
        label::ARCH,
        label::OS,
        label::NODE_POOL,
    ];
    // These labels are written on every claim, whether the pool says something about them or not.
    let mut keys: BTreeMap<&str, Option<u32>> = decided.iter().map(|key| (*key, None)).collect();
    if !catalog.ids_of(options, cluster).is_empty() {
        keys.insert(label::RESERVATION_ID, None);
    }
    // A launch chooses the partition, unless pods have narrowed the choice.
    if let Some(key) = cluster.names().find(label::PLACEMENT_PARTITION) {
        let left = catalog.values_among(options, key);
        if !left.is_empty() && left != catalog.values(key) {
            keys.insert(label::PLACEMENT_PARTITION, None);
        }
    }
    for requirement in &catalog.requirements {
        let min_values = keys.entry(&requirement.key).or_default();
        *min_values = (*min_values).max(requirement.min_values);
    }
    let mut requirements = Vec::new();
    for (key, min_values) in keys {
        let mut seen = FxHashSet::default();
        let mut values: Vec<String> = Vec::new();
        if let Some(key) = cluster.names().find(key) {
            let options = options.ones();
            let found = options.filter_map(|option| catalog.options[option].labels.value(key));
            let new = found.filter(|value| seen.insert(*value));
            values.extend(new.map(|value| cluster.text(value).to_owned()));
        }
        // No option has the label, so the pool's own requirement (`NotIn`, `DoesNotExist`) is all there is to say.
        if values.is_empty() {
            requirements.extend(
                catalog
                    .requirements
                    .iter()
                    .filter(|open| open.key == key)
                    .cloned(),
            );
        } else {
            // Instance types keep the order of price: a launch that has to shorten the list keeps the first ones.
            if key != label::INSTANCE_TYPE {
                values.sort();
            }
            let found = u32::try_from(values.len()).unwrap_or(u32::MAX);
            requirements.push(Requirement {
                key: key.to_owned(),
                operator: Operator::In,
                values,
                // Where `minValues` is relaxed, the claim must not demand more values than it lists, or no launch
                // could satisfy it.
                min_values: min_values.map(|wanted| wanted.min(found)),
            });
        }
    }
    requirements
}

/// Runs the filters that depend on other pods. Resources are checked per type instead.
///
/// A pod that is planned with its preferences must pass as what it is, too: preferred zones do not narrow the zones over which
/// it is spread.
pub(super) fn check(
    pod: &Pending,
    node: NodeId,
    strict: bool,
    cluster: &mut Cluster,
) -> Option<Refusal> {
    // The stricter class first: it refuses more often.
    let refusal = check_as(pod.class, node, strict, cluster);
    if refusal.is_none() && pod.own != pod.class {
        check_as(pod.own, node, false, cluster)
    } else {
        refusal
    }
}

fn check_as(
    class: PodClassId,
    node: NodeId,
    strict: bool,
    cluster: &mut Cluster,
) -> Option<Refusal> {
    let question = cluster.question(class);
    filter::node_ports::check(&question.class.shape, &question.cluster.at(node).ports)
        .map(|reason| Refusal::new(Plugin::NodePorts, reason))
        .or_else(|| question.check_topology(node))
        .or_else(|| {
            let view = strict.then_some(question.view)?;
            let reason =
                filter::pod_topology_spread::check_preferences(view, question.cluster.at(node))?;
            Some(Refusal::new(Plugin::PodTopologySpread, reason))
        })
}

/// Returns a resource of which even the largest type has too little.
fn lacking(
    catalog: &Catalog,
    options: &FixedBitSet,
    requests: &Amounts,
    cluster: &Cluster,
) -> String {
    let mut largest = Amounts::default();
    options
        .ones()
        .for_each(|option| largest.maximize(&catalog.room_of(option).free));
    let on_any = || {
        options
            .ones()
            .find_map(|option| requests.exceeds(&catalog.room_of(option).free))
    };
    // If each resource fits some type but no type has all of them, the first shortage of any type is named.
    let resource = requests.exceeds(&largest).or_else(on_any);
    cluster.text(resource.unwrap_or(Symbol::CPU)).to_owned()
}
