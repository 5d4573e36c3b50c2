//! Carries a packing out: its machines become planned nodes, its pods are placed on them with the scheduler's own filters.

use fixedbitset::FixedBitSet;
use indexmap::IndexMap;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};

use super::PreferencePolicy;
use super::claim::{self, Claim};
use super::numbers::{Numbers, NumbersConfig, Part};
use super::one_by_one::{largest_of, reserve};
use super::pack::Bin;
use super::solve::{PLANNED, Pending, Solver};
use crate::class::PodClassId;
use crate::cluster::NodeId;
use crate::intern::Symbol;
use crate::model::ResourceMap;
use crate::resources::Amounts;

/// The node on which a pod of the packing is placed.
#[derive(Clone, Copy)]
enum Place {
    /// A claim, and the offer that its machine is.
    Planned {
        claim: usize,
        offer: usize,
    },
    There(NodeId),
}

/// The options of machines that hold the same pods, kept because many machines of a packing are alike.
struct Choice {
    /// The options that the pool could buy when `options` was computed; if they have changed, so has the answer.
    available: FixedBitSet,
    options: FixedBitSet,
    /// The most that any of these takes of the pool's limits.
    largest: ResourceMap,
}

impl Solver<'_> {
    /// Places the pods whose rules can be expressed in numbers on the cheapest machines that hold them together.
    /// Returns the other pods, in their order, and, if `wants_bound` is set, a lower bound for the price of nodes for
    /// all of them in micro-dollars per hour.
    pub(super) fn pack(
        &mut self,
        pending: &[Pending],
        nodes: &[NodeId],
        existing: &mut Vec<(String, String)>,
    ) -> (Vec<Pending>, Option<u64>) {
        let mut classes: IndexMap<PodClassId, Vec<u32>, FxBuildHasher> = IndexMap::default();
        for pod in pending {
            classes.entry(pod.class).or_default().push(pod.index);
        }
        let counts: Vec<(PodClassId, u32)> = classes
            .iter()
            .map(|(class, pods)| (*class, pods.len() as u32))
            .collect();
        let config = NumbersConfig {
            bound: self.wants_bound && nodes.is_empty(),
            preferences: self.preferences.policy != PreferencePolicy::Ignore,
        };
        let catalogs = &mut self.catalogs;
        let numbers = Numbers::of(&counts, nodes, catalogs, self.cluster, config);
        let packed = numbers.problem.pack(self.effort);
        let packing = &packed.packing;
        let mut slots = Vec::new();
        let mut choices = FxHashMap::default();
        for bin in &packing.bins {
            // A bin is either a node that exists or a machine to buy; a machine whose pool refuses it drops out, and
            // its pods are placed one by one later.
            let there = numbers.node(bin).map(Place::There);
            let place = there.or_else(|| {
                let claim = self.open_packed(&numbers, bin, &mut choices)?;
                let offer = bin.offer;
                Some(Place::Planned { claim, offer })
            });
            let Some(place) = place else { continue };
            for (item, count) in &bin.pods {
                let pods = count * numbers.items[*item].pods;
                slots.extend((0..pods).map(|_| (place, *item)));
            }
        }
        // Zones of a class, or of a group of classes, take turns, so that no zone is ahead of the others on the way.
        let mut ranks: FxHashMap<(Option<usize>, Option<Symbol>, usize), u32> =
            FxHashMap::default();
        let mut ordered: Vec<(u32, Place, usize)> = Vec::with_capacity(slots.len());
        for (place, item) in slots {
            let Part { zone, group, .. } = numbers.items[item];
            let own = group.map_or(item, |_| 0);
            let rank = ranks.entry((group, zone, own)).or_default();
            let is_shared = zone.is_some();
            ordered.push((if is_shared { *rank } else { 0 }, place, item));
            *rank += 1;
        }
        ordered.sort_by_key(|slot| slot.0);
        // Pods are taken from the end of these lists, so the list is turned to hand them out in the queue's order.
        classes.values_mut().for_each(|pods| pods.reverse());
        let own: FxHashMap<u32, PodClassId> =
            pending.iter().map(|pod| (pod.index, pod.own)).collect();
        let bound: Vec<bool> = numbers
            .items
            .iter()
            .map(|part| self.is_bound(part.class))
            .collect();
        // Again while pods find a place: a pod that must be near another is refused until that one is there.
        let mut some_came = true;
        let mut placed: FxHashSet<u32> = FxHashSet::default();
        while some_came && !ordered.is_empty() {
            let before = ordered.len();
            ordered.retain(|(_, place, item)| {
                let class = numbers.items[*item].class;
                let Some(pods) = classes.get_mut(&class) else {
                    return false;
                };
                let Some(index) = pods.last().copied() else {
                    return false;
                };
                let own = own.get(&index).copied().unwrap_or(class);
                // Any pod of the class may fill any slot of its item; the packing speaks of numbers of pods, not of
                // pods.
                let pod = Pending { index, class, own };
                let loaded = match *place {
                    // Pods that only join others wait until one is there that the machine is bought for.
                    Place::Planned { claim, offer }
                        if self.claims[claim].pods.is_empty()
                            && !numbers.problem.offers[offer].opens.contains(*item) =>
                    {
                        false
                    }
                    Place::Planned { claim, .. } => {
                        self.claims[claim].load(pod, bound[*item], self.cluster)
                    }
                    Place::There(node) => self.load_on(node, pod, bound[*item]),
                };
                if !loaded {
                    return true;
                }
                if let Place::There(node) = *place {
                    let node = self.cluster.node_name(node).to_owned();
                    existing.push((self.keys[index as usize].clone(), node));
                }
                pods.pop();
                placed.insert(index);
                false
            });
            some_came = ordered.len() < before;
        }
        self.close_empty();
        let rest = pending
            .iter()
            .filter(|pod| !placed.contains(&pod.index))
            .copied()
            .collect();
        let bound = config.bound.then(|| numbers.bound(&packed));
        (rest, bound)
    }

    /// Packs the pods that found no room within the limits of the pools of the highest weight, on what other pools sell.
    pub(super) fn pack_beyond_limits(&mut self, mut rest: Vec<Pending>) -> Vec<Pending> {
        if !self.is_limited() {
            return rest;
        }
        // The packer buys only from the pools of the highest weight that could take a pod, so each turn that uses up
        // a limit opens the next pools.
        while !rest.is_empty() {
            let before = rest.len();
            rest = self.pack(&rest, &[], &mut Vec::new()).0;
            if rest.len() == before {
                break;
            }
        }
        rest
    }

    /// Takes back machines whose pods the scheduler's filters all refused.
    fn close_empty(&mut self) {
        for claim in self.claims.iter_mut().filter(|claim| claim.pods.is_empty()) {
            let catalog = &mut self.catalogs[claim.catalog];
            claim.close(catalog, self.cluster);
            self.reservations.release(claim, catalog);
        }
    }

    /// Puts a pod on a node that is there and has room for it, if the pods that are placed already let it.
    fn load_on(&mut self, node: NodeId, pod: Pending, is_bound: bool) -> bool {
        if is_bound && claim::check(&pod, node, false, self.cluster).is_some() {
            return false;
        }
        self.cluster.load_logged(pod.own, node);
        true
    }

    /// Opens a node for a packed machine: every option of its pool that holds and admits the same. None where the pool's demands are not met.
    fn open_packed<'a>(
        &mut self,
        numbers: &Numbers,
        bin: &'a Bin,
        choices: &mut FxHashMap<&'a Bin, Choice>,
    ) -> Option<usize> {
        let (index, chosen) = numbers.offers[bin.offer];
        let available = &self.catalogs[index].available;
        let known = choices.get(bin);
        // Limits and offerings that ran out since then make another list of options.
        if known.is_none_or(|choice| choice.available != *available) {
            let available = available.clone();
            let options = self.choice(numbers, bin);
            let choice = Choice {
                available,
                largest: largest_of(&options, &self.catalogs[index]),
                options,
            };
            choices.insert(bin, choice);
        }
        let choice = &choices[bin];
        let mut options = choice.options.clone();
        let catalog = &mut self.catalogs[index];
        // Only with `minValues` may `choice` list types that take more of the limits than the one chosen, so only
        // then limits are checked again.
        if catalog.wants_choice() && !catalog.limits.is_unlimited() {
            let is_within = |option: &usize| {
                let own = &catalog.type_of(*option).capacity;
                catalog.limits.broken_by(own).is_none()
            };
            options = options.ones().filter(is_within).collect();
        }
        if options.is_clear() || catalog.too_few_values(&options, self.cluster).is_some() {
            return None;
        }
        let held = self.reservations.choose(&mut options, chosen, catalog)?;
        let name = format!("{PLANNED}{}", self.claims.len());
        let mut claim = Claim::open((index, catalog), options, &name, self.cluster)?;
        self.reservations.take(held, &mut claim);
        if claim.options == choice.options {
            claim.reserve(choice.largest.clone(), catalog)
        } else {
            reserve(&mut claim, catalog)
        }
        self.claims.push(claim);
        Some(self.claims.len() - 1)
    }

    /// Returns the options of a machine's pool that hold and admit the same pods.
    fn choice(&mut self, numbers: &Numbers, bin: &Bin) -> FixedBitSet {
        let (index, chosen) = numbers.offers[bin.offer];
        let catalog = &mut self.catalogs[index];
        let mut options = catalog.available.clone();
        let mut requests = Amounts::default();
        let mut keys = Vec::new();
        for (item, count) in &bin.pods {
            let Part {
                class, zone, pods, ..
            } = numbers.items[*item];
            options.intersect_with(&catalog.verdicts(class, self.cluster).fits);
            let real = &self.cluster.class(class).shape.requests.real;
            let count = count * pods;
            (0..count).for_each(|_| requests.add(real));
            // `requests.add` sums resources only; each pod also takes one of the node's places for pods.
            requests.pods += i64::from(count);
            // The packing counted on the chosen option's values of these labels (its zone, for example), so
            // alternatives must share them.
            keys.extend(self.cluster.sensitive_keys(class));
            keys.extend(zone.map(|_| Symbol::ZONE));
        }
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            let value = catalog.options[chosen].labels.value(key);
            options.intersect_with(catalog.with_value(key, value));
        }
        let no_larger = |option: &usize| {
            catalog.limits.is_unlimited() || {
                let (own, most) = (catalog.type_of(*option), catalog.type_of(chosen));
                catalog.limits.takes_no_more(&own.capacity, &most.capacity)
            }
        };
        let all = catalog.holding(&options, &requests);
        let own = catalog.candidates_that(&all, |option| no_larger(&option), self.cluster);
        if catalog.too_few_values(&own, self.cluster).is_none() {
            return own;
        }
        // The pool's `minValues` may need types that take more of its limits.
        catalog.with_values(own, &all, self.cluster)
    }

    /// Returns whether other pods matter to where pods of a class go, beyond the room that they take. The class must
    /// have been prepared to be packed.
    fn is_bound(&self, class: PodClassId) -> bool {
        let own = self.cluster.class(class);
        let view = self.cluster.view(class);
        !own.shape.host_ports.is_empty() || !view.is_filtered_by_room_only(own)
    }
}
