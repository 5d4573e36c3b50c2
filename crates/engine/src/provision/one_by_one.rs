//! Plans one pod after the other on planned nodes, as Karpenter does: on the one with the fewest pods that takes it, or else on a
//! new node of the first pool that can buy one.

use std::cmp::Reverse;

use fixedbitset::FixedBitSet;

use super::catalog::Catalog;
use super::claim::{Claim, Topology};
use super::solve::{PLANNED, Pending, Solver};
use super::{PoolReason, PoolRefusal, PreferencePolicy, units};
use crate::class::PodClassId;
use crate::intern::Symbol;
use crate::model::{Quantity, ResourceMap};
use crate::reason::Reason;
use crate::resources::Amounts;

impl Solver<'_> {
    /// Places a pod on a planned node. Soft spread constraints count as hard ones at first, because a new node can be in any
    /// domain.
    pub(super) fn place_on_planned(&mut self, pod: &Pending) -> bool {
        let topology = Topology {
            variant: self.choices.variant_at(self.claims.len()),
            zone: self.choices.zones.get(&pod.class).copied(),
            ..self.topology(pod.class)
        };
        let relaxed = Topology {
            strict: false,
            ..topology.clone()
        };
        let prefers = topology.strict && self.preferences.policy != PreferencePolicy::Ignore;
        // A reservation may have been released since this class was last tried.
        self.reservations.waiting.remove(&pod.class);
        if prefers && self.place_with(pod, &topology) {
            return true;
        }
        // A pod that waits for reserved capacity is not relaxed, as in Karpenter: it would be bought elsewhere only
        // because the machine is taken at this moment.
        !self.reservations.waiting.contains_key(&pod.class) && self.place_with(pod, &relaxed)
    }

    fn place_with(&mut self, pod: &Pending, topology: &Topology) -> bool {
        self.line_up_new();
        let closed = self.closed.get(&pod.class);
        let open = |claim: &usize| closed.is_none_or(|closed| !closed.contains(*claim));
        let mut order: Vec<_> = self.fewest_first.iter().copied().filter(open).collect();
        // The first pod of a unit decides for all, so it starts only where all of them have room.
        if let Some(all) = self.whole_unit(pod.own) {
            order.retain(|claim| {
                let claim = &self.claims[*claim];
                !claim
                    .options_for(&all, &self.catalogs[claim.catalog])
                    .is_clear()
            });
        }
        for index in order {
            let claim = &mut self.claims[index];
            let catalog = &mut self.catalogs[claim.catalog];
            match claim.add(*pod, catalog, topology, self.cluster) {
                Ok(()) => {
                    self.line_up_again(index);
                    self.release(index);
                    return true;
                }
                // Not closed: which domains are allowed changes with every pod that is placed.
                Err(PoolReason::Topology { .. }) => {}
                // Any other refusal lasts, because a claim only loses options and room.
                Err(_) => self
                    .closed
                    .entry(pod.class)
                    .or_default()
                    .grow_and_insert(index),
            }
        }
        let mut limited = Vec::new();
        for catalog in self.pools_for(pod.class) {
            match self.try_open(catalog, pod, topology) {
                Ok(()) => return true,
                // As in Karpenter, pools of lower weight are not tried then.
                Err(PoolReason::ReservationHeld) => {
                    self.reservations.waiting.insert(pod.class, catalog);
                    return false;
                }
                Err(PoolReason::LimitReached { .. }) => limited.push(catalog),
                Err(_) => {}
            }
        }
        // Planned nodes that may no longer become large types leave more of the limits, but room for fewer pods.
        let may_tighten = self.tightens;
        limited
            .into_iter()
            .filter(|_| may_tighten)
            .any(|catalog| self.tighten(catalog) && self.try_open(catalog, pod, topology).is_ok())
    }

    /// Returns the pools in the order in which a new node for a pod is tried.
    fn pools_for(&mut self, class: PodClassId) -> Vec<usize> {
        let mut order = self.opening_order.clone();
        if self.choices.cheapest_pool_first {
            order.sort_by_cached_key(|index| {
                let catalog = &mut self.catalogs[*index];
                let mut fits = catalog.verdicts(class, self.cluster).fits.clone();
                fits.intersect_with(&catalog.available);
                let price = fits
                    .minimum()
                    .map(|cheapest| catalog.options[cheapest].price_micro_usd);
                // Pools of one weight alone change places, as the weight is the user's order.
                (Reverse(catalog.weight), price.unwrap_or(u64::MAX))
            });
        }
        order
    }

    /// Puts planned nodes that are new into `fewest_first`, behind those with as many pods.
    fn line_up_new(&mut self) {
        let claims = &self.claims;
        // Packed machines come with pods, so a new node does not always belong at the front.
        for new in self.fewest_first.len()..claims.len() {
            let count = claims[new].pods.len();
            let line = &self.fewest_first;
            let place = line.partition_point(|claim| claims[*claim].pods.len() <= count);
            self.fewest_first.insert(place, new);
        }
    }

    /// Moves a planned node that got a pod behind those in `fewest_first` that have fewer now. As in Karpenter, it stays before
    /// those with as many that were behind it.
    fn line_up_again(&mut self, claim: usize) {
        let claims = &self.claims;
        let count = claims[claim].pods.len();
        let Some(place) = self.fewest_first.iter().position(|one| *one == claim) else {
            return;
        };
        let behind = &mut self.fewest_first[place..];
        let others = behind[1..].iter();
        let fewer = others.take_while(|one| claims[**one].pods.len() < count);
        let moved = fewer.count();
        behind[..=moved].rotate_left(1);
    }

    pub(super) fn topology(&mut self, class: PodClassId) -> Topology {
        if let Some(topology) = self.topologies.get(&class) {
            return topology.clone();
        }
        // `keys` are the labels whose value must be fixed when a pod of the class joins, because other pods are
        // counted by them.
        let mut topology = Topology {
            keys: self.cluster.sensitive_keys(class),
            ..Topology::default()
        };
        let view = self.cluster.question(class).view;
        // Every new node is a new host, so a soft spread over hosts decides nothing.
        for counts in view
            .soft
            .iter()
            .filter(|counts| view.soft_declared && counts.rule.key != Symbol::HOSTNAME)
        {
            topology.strict = true;
            topology.keys.push(counts.rule.key);
        }
        topology.keys.sort_unstable();
        topology.keys.dedup();
        // Where prices depend on what else joins the node, the first pod need not decide for one of the places.
        topology.keeps_places = !topology.strict && self.cluster.is_at_home_in_many(class);
        self.topologies.insert(class, topology.clone());
        topology
    }

    /// Plans a new node of a pool for a pod.
    fn try_open(
        &mut self,
        index: usize,
        pod: &Pending,
        topology: &Topology,
    ) -> Result<(), PoolReason> {
        let unit = self.whole_unit(pod.own);
        let catalog = &mut self.catalogs[index];
        if catalog.options.is_empty() {
            return Err(PoolReason::NoInstanceTypes);
        }
        let verdicts = catalog.verdicts(pod.class, self.cluster).clone();
        // Asked before limits, so that a pod which no type admits gets that reason and not a limit that is reached.
        if let (true, Some((plugin, reason))) = (verdicts.fits.is_clear(), verdicts.refusal) {
            return Err(PoolReason::Incompatible { plugin, reason });
        }
        let fits = verdicts.fits.clone();
        let within = within_limits(catalog, verdicts.fits)?;
        let mut options = within.clone();
        // Separate from the limits, because "sold out" and "limit reached" are different answers.
        options.intersect_with(&catalog.available);
        self.reservations.leave_out(&mut options, catalog);
        if let Some(all) = unit {
            options = units::with_room(&options, &Amounts::default(), &all, catalog);
            if options.is_clear() {
                return Err(PoolReason::NoInstanceTypes);
            }
        }
        let name = format!("{PLANNED}{}", self.claims.len());
        // If nothing can be bought, this finds out whether that is the only obstacle.
        let sold_out = options.is_clear();
        let from = if sold_out { within } else { options };
        let checkpoint = self.cluster.checkpoint();
        let claim = Claim::open((index, catalog), from, &name, self.cluster);
        let mut claim = claim.ok_or(PoolReason::NoInstanceTypes)?;
        let added = claim.add(*pod, catalog, topology, self.cluster);
        let added = if sold_out {
            added.and(Err(PoolReason::NoOffering))
        } else {
            added.and_then(|()| self.reservations.hold(&mut claim, catalog, self.cluster))
        };
        if let Err(mut reason) = added {
            // Types that are large enough may have been left out by limits, and then those are what the user can
            // change.
            if let PoolReason::TooLarge { .. } = reason {
                let limit = claim.limit_in_the_way(&fits, pod.class, catalog, self.cluster);
                reason = limit.unwrap_or(reason);
            }
            self.cluster.rollback(checkpoint);
            return Err(reason);
        }
        self.cluster.commit(checkpoint);
        reserve(&mut claim, catalog);
        // The pod is on the claim already, so its place in `fewest_first` is found by its count of pods
        // (`line_up_new`).
        self.claims.push(claim);
        Ok(())
    }

    /// Reduces the options of a pool's planned nodes to those no larger than the cheapest, to free the limits that they
    /// reserve. Returns `false` if no pod was planned since the last time.
    fn tighten(&mut self, index: usize) -> bool {
        let planned = self.claims.iter().map(|claim| claim.pods.len()).sum();
        if self.tightened.insert(index, planned) == Some(planned) {
            return false;
        }
        let catalog = &mut self.catalogs[index];
        for claim in self
            .claims
            .iter_mut()
            .filter(|claim| claim.catalog == index)
        {
            claim.tighten(catalog, self.cluster);
            // Give back first: the claim's own reservation must not stand in its way when the smaller one is taken.
            catalog.limits.give_back(&claim.reserved);
            reserve(claim, catalog);
            self.reservations.release(claim, catalog);
        }
        planned > 0
    }

    /// Returns why each pool cannot buy a node for a pod.
    pub(super) fn refusals(&mut self, pod: &Pending) -> Vec<PoolRefusal> {
        let topology = Topology {
            strict: false,
            ..self.topology(pod.class)
        };
        let mut refusals = Vec::with_capacity(self.catalogs.len());
        for index in 0..self.catalogs.len() {
            if let Err(mut reason) = self.try_open(index, pod, &topology) {
                if let PoolReason::Topology {
                    reason:
                        Reason::Spread {
                            key,
                            max_skew,
                            fewest,
                            ..
                        },
                    ..
                } = &mut reason
                {
                    *fewest = self.cluster.emptiest_domain(pod.class, (*key, *max_skew));
                }
                if let PoolReason::LimitReached {
                    resource, others, ..
                } = &mut reason
                {
                    *others = self.limits_in_the_way(index, pod);
                    others.retain(|(name, _)| name != resource);
                }
                refusals.push(PoolRefusal {
                    pool: self.catalogs[index].pool.clone(),
                    reason,
                });
            }
        }
        refusals
    }

    /// Returns the limits of a pool that exclude every type which would hold a pod.
    fn limits_in_the_way(&mut self, index: usize, pod: &Pending) -> Vec<(String, Quantity)> {
        let catalog = &mut self.catalogs[index];
        let fits = catalog.verdicts(pod.class, self.cluster).fits.clone();
        let mut requests = self.cluster.class(pod.class).shape.requests.real.clone();
        requests.pods += 1;
        let holding = catalog.holding(&fits, &requests);
        let types = holding.ones().map(|option| catalog.type_of(option));
        let capacities: Vec<&ResourceMap> = types.map(|own| &own.capacity).collect();
        if capacities.is_empty() {
            return Vec::new();
        }
        catalog.limits.broken_by_all(&capacities)
    }
}

/// Returns the options that the pool's remaining limits allow; an error that names the first broken limit if there
/// is none. As in Karpenter, a limit is about a type's whole capacity, not about what pods ask for.
fn within_limits(catalog: &Catalog, options: FixedBitSet) -> Result<FixedBitSet, PoolReason> {
    if catalog.limits.is_unlimited() {
        return Ok(options);
    }
    let mut broken = None;
    let mut within = FixedBitSet::with_capacity(options.len());
    for option in options.ones() {
        match catalog.limits.broken_by(&catalog.type_of(option).capacity) {
            None => within.insert(option),
            Some(reason) => broken = broken.or(Some(reason)),
        }
    }
    match broken {
        Some(reason) if within.is_clear() => Err(reason),
        _ => Ok(within),
    }
}

/// Reserves the part of the pool's limits that the largest remaining option needs.
pub(super) fn reserve(claim: &mut Claim, catalog: &mut Catalog) {
    let largest = largest_of(&claim.options, catalog);
    claim.reserve(largest, catalog);
}

/// Returns the most of each limited resource that any of these options takes; the largest, because the cloud may launch any
/// option of a list (Karpenter: `subtractMax`).
pub(super) fn largest_of(options: &FixedBitSet, catalog: &Catalog) -> ResourceMap {
    if catalog.limits.is_unlimited() {
        return ResourceMap::new();
    }
    let options = options.ones();
    let capacities = options.map(|option| &catalog.type_of(option).capacity);
    catalog.limits.largest(capacities)
}
