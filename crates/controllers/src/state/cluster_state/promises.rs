//! The places that the last plan has for waiting pods ("promises").
//!
//! A plan decides about all pods together, while the scheduler decides about one pod at a time and uses whichever node is
//! ready first. Without promises it would fill that node with pods that were planned elsewhere. So room on a bought node is
//! held for the pods that it was bought for, and a pod with a place is not bound to another node of this plan or of one
//! before it. A promise ends when its pod is bound, when its node is deleted, [`WINDOW`] after the node is ready, or after [`LONGEST`]; from then on
//! the scheduler is free to place the pod anywhere.
//!
//! Invariant: promises are only hints. Without them the scheduler decides as kube-scheduler does.

use std::{sync::Arc, time::Duration};

use mullion_engine::{NodeId, PodClassId, model::PodSpec};
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use super::{ClusterState, report};

/// How long a promise holds after its node is ready: as long as Karpenter keeps a nomination.
const WINDOW: Duration = Duration::from_secs(20);
/// How long a promise holds at most: Karpenter deletes a claim whose node does not register within 15 minutes.
const LONGEST: Duration = Duration::from_secs(15 * 60);

/// A change of a place, which is a NodeClaim, a node without one, or an order that is still to become a NodeClaim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlaceChange {
    /// The claim of an order was created.
    Ordered {
        /// The order's name in the plan.
        order: String,
        /// The claim.
        place: PlannedPlace,
    },
    /// The node of the claim is known.
    Named {
        /// The claim.
        place: String,
        /// The name of its node.
        node: String,
    },
    /// The node is ready for pods.
    Ready(String),
    /// The claim is deleted or being deleted, or could not be created.
    Gone(String),
}

/// A pod and its place in the plan.
#[derive(Clone, Debug)]
pub struct Promise {
    /// The pod, which is not bound.
    pub pod: PodSpec,
    /// The name of a NodeClaim, of a node without a claim, or of an order.
    pub place: String,
}

/// A place that a plan can assign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedPlace {
    /// The name of a NodeClaim, of a node without a claim, or of an order.
    pub name: String,
    /// The name of its node, if known.
    pub node: Option<String>,
    /// Whether the node is ready for pods.
    pub is_ready: bool,
}

#[derive(Debug)]
struct Place {
    node: Option<Arc<str>>,
    /// When its promises end.
    until: Instant,
    is_ready: bool,
}

/// The promises of the last plan.
#[derive(Debug, Default)]
pub(super) struct Promises {
    /// Places by name, also those of earlier plans. They are kept while there are promises, so that the plans' nodes are known.
    places: FxHashMap<String, Place>,
    by_pod: FxHashMap<String, Promise>,
    /// Pods to try again: they lost a promise and may go anywhere, or have a place on a node that is ready.
    released: Vec<String>,
}

impl Promises {
    /// Returns the node that a pod is promised, if it is known.
    pub(super) fn node_of(&self, key: &str) -> Option<&Arc<str>> {
        let place = &self.by_pod.get(key)?.place;
        self.places.get(place)?.node.as_ref()
    }

    /// Drops the promise of a pod that was bound or deleted.
    pub(super) fn forget(&mut self, key: &str) {
        if self.by_pod.remove(key).is_some() && self.by_pod.is_empty() {
            self.places.clear();
        }
    }

    fn is_planned(&self, node: &str) -> bool {
        let mut places = self.places.values();
        places.any(|place| place.node.as_deref() == Some(node))
    }
}

impl ClusterState {
    /// Replaces the promises by those of a new plan. `places` are the claims and nodes that the plan can assign.
    pub fn promise(
        &mut self,
        promises: Vec<Promise>,
        places: impl Iterator<Item = PlannedPlace>,
        now: Instant,
    ) {
        let mut wanted: FxHashMap<String, Promise> = FxHashMap::default();
        for promise in promises {
            wanted.insert(promise.pod.key(), promise);
        }
        let before = self.promises.by_pod.iter();
        let lost: Vec<String> = before
            .filter(|(key, old)| wanted.get(*key).is_none_or(|new| new.place != old.place))
            .map(|(key, _)| key.clone())
            .collect();
        // All room is released before any is held: a pod could otherwise find its new place taken by a
        // promise that ends.
        lost.iter().for_each(|key| self.release(key));
        self.promises.by_pod.clear();
        let mut known = std::mem::take(&mut self.promises.places);
        for planned in places {
            let old = known.remove(&planned.name);
            // A new plan does not prolong the wait for a node that is not ready, or a node that never
            // registers would hold its pods for as long as plans are made.
            let longest = old.as_ref().map_or(now + LONGEST, |old| old.until);
            let place = Place {
                node: planned.node.map(Arc::from).or(old.and_then(|old| old.node)),
                until: if planned.is_ready {
                    now + WINDOW
                } else {
                    longest
                },
                is_ready: planned.is_ready,
            };
            self.promises.places.insert(planned.name, place);
        }
        // A node that is ready by now may be no place of this plan, but the pods that this plan puts elsewhere stay away from
        // it all the same: their nodes would be bought in vain.
        self.promises.places.extend(known);
        for (key, promise) in wanted {
            // The pod may have been bound while the plan was computed.
            let waits = self.cluster.node_of_pod(&key).is_none();
            let Some(place) = self.promises.places.get(&promise.place).filter(|_| waits) else {
                continue;
            };
            if place.is_ready {
                self.promises.released.push(key.clone());
            }
            self.promises.by_pod.insert(key, promise);
        }
        let keys: Vec<String> = self.promises.by_pod.keys().cloned().collect();
        keys.iter().for_each(|key| self.hold_promised(key));
    }

    /// Applies a change of a place.
    pub fn change_place(&mut self, change: &PlaceChange, now: Instant) {
        match change {
            PlaceChange::Ordered { order, place } => {
                let Some(own) = self.promises.places.remove(order) else {
                    return;
                };
                self.promises.places.insert(place.name.clone(), own);
                let promises = self.promises.by_pod.values_mut();
                for promise in promises.filter(|promise| promise.place == *order) {
                    promise.place.clone_from(&place.name);
                }
                if let Some(node) = &place.node {
                    self.name_node(&place.name, node);
                }
                if place.is_ready {
                    self.note_ready(&place.name, now);
                }
            }
            PlaceChange::Named { place, node } => self.name_node(place, node),
            PlaceChange::Ready(place) => self.note_ready(place, now),
            PlaceChange::Gone(place) => {
                for key in self.promised_at(place) {
                    self.break_promise(&key);
                }
                self.promises.places.remove(place);
            }
        }
    }

    /// Notes the node of a claim and holds the room that its pods were promised.
    fn name_node(&mut self, place: &str, node: &str) {
        if let Some(own) = self.promises.places.get_mut(place) {
            own.node = Some(Arc::from(node));
            for key in self.promised_at(place) {
                self.hold_promised(&key);
            }
        }
    }

    /// Lets the promises of a place end soon, because its node is ready.
    fn note_ready(&mut self, place: &str, now: Instant) {
        if let Some(own) = self.promises.places.get_mut(place)
            // Only the first report counts; repeated ones would extend the window.
            && !own.is_ready
        {
            own.is_ready = true;
            own.until = now + WINDOW;
        }
    }

    /// Ends the promises that have expired.
    pub(in crate::state) fn end_promises(&mut self, now: Instant) {
        if self.promises.by_pod.is_empty() {
            return;
        }
        let due = |promise: &Promise| {
            let place = self.promises.places.get(&promise.place);
            place.is_none_or(|place| place.until <= now)
        };
        let all = self.promises.by_pod.iter();
        let ended: Vec<String> = all
            .filter(|(_, promise)| due(promise))
            .map(|(key, _)| key.clone())
            .collect();
        ended.iter().for_each(|key| self.break_promise(key));
    }

    /// Returns the place of a pod if the pod must not be bound to `node`, because its place is elsewhere and `node` was
    /// bought for other pods.
    pub fn place_elsewhere(&self, key: &str, node: &str) -> Option<&str> {
        let promise = self.promises.by_pod.get(key)?;
        let own = self.promises.node_of(key);
        // Nodes that no plan bought are free for every pod.
        let is_own = own.is_some_and(|own| **own == *node);
        (!is_own && self.promises.is_planned(node)).then_some(&promise.place)
    }

    /// Returns the place of each pod that has one: the name of a NodeClaim, or of a node without a claim.
    pub fn places(&self) -> impl Iterator<Item = (&str, &str)> {
        let promises = self.promises.by_pod.iter();
        promises.map(|(key, promise)| (key.as_str(), promise.place.as_str()))
    }

    /// Returns whether a pod has a place on a node that is known.
    pub fn has_place(&self, key: &str) -> bool {
        self.promises.node_of(key).is_some()
    }

    /// Returns the node that a pod is promised, if it can take the pod now. Room held there for other promises is ignored:
    /// the plan has room for all of them, and two pods that are spread by zones would wait for each other.
    pub fn place_that_takes(&mut self, key: &str, class: PodClassId) -> Option<NodeId> {
        let node = self.cluster.node(self.promises.node_of(key)?)?;
        let is_own = {
            let mut held = self.cluster.nominated_on(node);
            held.all(|pod| self.promises.by_pod.contains_key(pod))
        };
        (is_own && self.cluster.takes_now(class, node)).then_some(node)
    }

    /// Returns the pods to try again since the last call.
    pub fn take_released(&mut self) -> Vec<String> {
        std::mem::take(&mut self.promises.released)
    }

    /// Drops the room of all promises for the duration of a plan; rolling back the cluster's checkpoint restores it.
    pub fn lift_promises(&mut self) {
        for key in self.promises.by_pod.keys() {
            self.cluster.denominate(key);
        }
    }

    /// Releases the room that preemption held for a pod; the room of its promise is held instead.
    pub fn release_room(&mut self, key: &str) {
        self.cluster.denominate(key);
        self.hold_promised(key);
    }

    /// Holds room for a pod on its promised node, if that is known.
    pub(super) fn hold_promised(&mut self, key: &str) {
        let Some(node) = self.promises.node_of(key).cloned() else {
            return;
        };
        let promise = &self.promises.by_pod[key];
        // A nomination by preemption, or an assumption, takes precedence.
        if !self.cluster.is_nominated(key) && !self.assumed.contains_key(key) {
            report(self.cluster.nominate(&promise.pod, &node));
        }
    }

    fn promised_at(&self, place: &str) -> Vec<String> {
        let all = self.promises.by_pod.iter();
        let own = all.filter(|(_, promise)| promise.place == place);
        own.map(|(key, _)| key.clone()).collect()
    }

    fn break_promise(&mut self, key: &str) {
        self.release(key);
        self.promises.forget(key);
    }

    /// Releases the room that a promise held for a pod.
    fn release(&mut self, key: &str) {
        let promised = self.promises.node_of(key);
        let held = self.cluster.nominated_node(key);
        let held = held.map(|node| self.cluster.node_name(node));
        // Preemption may have nominated the pod to another node since; that nomination stays.
        if held.is_none() || held == promised.map(|node| &**node) {
            self.cluster.denominate(key);
        }
        self.promises.released.push(key.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use mullion_engine::{Options, model::NodeSpec};

    use super::*;

    fn place(name: &str, is_ready: bool) -> PlannedPlace {
        PlannedPlace {
            name: name.to_owned(),
            node: Some(format!("node-{name}")),
            is_ready,
        }
    }

    fn promise(pod: &str, place: &str) -> Promise {
        Promise {
            pod: PodSpec {
                name: pod.to_owned(),
                ..PodSpec::default()
            },
            place: place.to_owned(),
        }
    }

    fn order(name: &str) -> PlannedPlace {
        PlannedPlace {
            name: name.to_owned(),
            node: None,
            is_ready: false,
        }
    }

    fn two_nodes() -> ClusterState {
        let mut state = ClusterState::new(Options::default());
        for name in ["node-a", "node-b"] {
            let node = NodeSpec::named(name);
            state.cluster_mut().set_node(&node).expect("a new node");
        }
        state
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_a_later_plan_puts_elsewhere_stays_away_from_its_first_node_when_that_is_ready()
     {
        let mut state = two_nodes();
        let places = [place("a", false), place("b", false)];
        let now = Instant::now();
        state.promise(vec![promise("web", "a")], places.into_iter(), now);
        state.change_place(&PlaceChange::Ready("a".to_owned()), now);
        let rest = [place("b", false)];
        let second = promise("web", "b");
        let key = second.pod.key();
        state.promise(vec![second], rest.into_iter(), now);
        assert_eq!(state.place_elsewhere(&key, "node-a"), Some("b"));
        assert_eq!(state.place_elsewhere(&key, "node-b"), None);
        assert_eq!(state.place_elsewhere(&key, "another"), None);
        state.change_place(&PlaceChange::Gone("b".to_owned()), now);
        assert_eq!(
            state.place_elsewhere(&key, "node-a"),
            None,
            "it has no place"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_of_an_order_stays_away_from_other_nodes_until_the_claim_is_created_and_then_goes_to_its_node()
     {
        let mut state = two_nodes();
        let now = Instant::now();
        state.promise(
            vec![promise("web", "a")],
            [place("a", true)].into_iter(),
            now,
        );
        // The next plan moves the pod to a node that is still to be ordered.
        let second = promise("web", "order 0");
        let key = second.pod.key();
        state.promise(vec![second], [order("order 0")].into_iter(), now);
        assert_eq!(state.place_elsewhere(&key, "node-a"), Some("order 0"));
        let ordered = PlaceChange::Ordered {
            order: "order 0".to_owned(),
            place: place("b", false),
        };
        state.change_place(&ordered, now);
        assert_eq!(state.place_elsewhere(&key, "node-a"), Some("b"));
        assert_eq!(state.place_elsewhere(&key, "node-b"), None);
        assert!(state.has_place(&key));
        // An order that fails leaves its pods without a place.
        let third = promise("web", "order 1");
        state.promise(vec![third], [order("order 1")].into_iter(), now);
        state.change_place(&PlaceChange::Gone("order 1".to_owned()), now);
        assert_eq!(state.place_elsewhere(&key, "node-a"), None);
    }
}
