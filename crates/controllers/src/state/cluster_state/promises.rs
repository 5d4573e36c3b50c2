//! Places that the last plan has for waiting pods.
//!
//! A plan decides for all pods together; the scheduler sees one pod at a time, and whichever node is ready first. Left alone it would fill that node
//! with pods that were planned elsewhere. So room is held on a bought node for the pods it was bought for, and a pod that has a place does not go to
//! another node of the plan. A promise ends when its pod is bound, when its node goes, [`WINDOW`] after the node is ready, or after [`LONGEST`]: then
//! the pod goes wherever the scheduler wants.
//!
//! Invariant: only hints. Whoever loses them schedules as kube-scheduler does.

use std::{sync::Arc, time::Duration};

use mullion_engine::{NodeId, PodClassId, model::PodSpec};
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use super::{ClusterState, report};

/// How long a promise holds once its node is ready for pods: as long as Karpenter keeps a nominated node.
const WINDOW: Duration = Duration::from_secs(20);
/// How long a promise holds at most: Karpenter gives up on a node that does not register within 15 minutes.
const LONGEST: Duration = Duration::from_secs(15 * 60);

/// What happened to a NodeClaim, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlaceChange {
    /// Its node is known.
    Named {
        /// The claim.
        place: String,
        /// The name of its node.
        node: String,
    },
    /// Its node takes pods.
    Ready(String),
    /// It goes, or is gone.
    Gone(String),
}

/// A pod and the place that the plan has for it.
#[derive(Clone, Debug)]
pub struct Promise {
    /// The pod, which has no node.
    pub pod: PodSpec,
    /// The name of a NodeClaim, or of a node that has none.
    pub place: String,
}

/// A place that a plan may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedPlace {
    /// The name of its NodeClaim, or of a node that has none.
    pub name: String,
    /// The name of its node, if that is known.
    pub node: Option<String>,
    /// Whether the node takes pods.
    pub is_ready: bool,
}

#[derive(Debug)]
struct Place {
    node: Option<Arc<str>>,
    /// Its promises end then.
    until: Instant,
    is_ready: bool,
}

/// The promises of the last plan.
#[derive(Debug, Default)]
pub(super) struct Promises {
    /// By name. Places stay as long as there are promises, so that it is known which nodes are the plan's.
    places: FxHashMap<String, Place>,
    by_pod: FxHashMap<String, Promise>,
    /// Pods to try again: they lost a promise and may go anywhere, or have a place on a node that is ready.
    released: Vec<String>,
}

impl Promises {
    /// The node that is promised to a pod, if it has a name.
    pub(super) fn node_of(&self, key: &str) -> Option<&Arc<str>> {
        let place = &self.by_pod.get(key)?.place;
        self.places.get(place)?.node.as_ref()
    }

    /// The pod was bound or is gone.
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
    /// Remembers where the last plan puts pods, in place of what earlier plans said. `places` are the claims and nodes that it may name.
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
        lost.iter().for_each(|key| self.release(key));
        self.promises.by_pod.clear();
        let mut known = std::mem::take(&mut self.promises.places);
        for planned in places {
            let old = known.remove(&planned.name);
            let longest = old.as_ref().map_or(now + LONGEST, |old| old.until);
            let place = Place {
                node: planned.node.map(Arc::from).or(old.and_then(|old| old.node)),
                until: match planned.is_ready {
                    true => now + WINDOW,
                    false => longest,
                },
                is_ready: planned.is_ready,
            };
            self.promises.places.insert(planned.name, place);
        }
        for (key, promise) in wanted {
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

    /// Counts what happened to a place.
    pub fn change_place(&mut self, change: &PlaceChange, now: Instant) {
        match change {
            PlaceChange::Named { place, node } => {
                if let Some(own) = self.promises.places.get_mut(place) {
                    own.node = Some(Arc::from(node.as_str()));
                    for key in self.promised_at(place) {
                        self.hold_promised(&key);
                    }
                }
            }
            PlaceChange::Ready(place) => {
                if let Some(own) = self.promises.places.get_mut(place)
                    && !own.is_ready
                {
                    own.is_ready = true;
                    own.until = now + WINDOW;
                }
            }
            PlaceChange::Gone(place) => {
                for key in self.promised_at(place) {
                    self.break_promise(&key);
                }
                self.promises.places.remove(place);
            }
        }
    }

    /// Ends promises whose time has come.
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

    /// The claim that a pod waits for, if it is not to go to this node: it has a place elsewhere, and this node was bought for others.
    pub fn place_elsewhere(&self, key: &str, node: &str) -> Option<&str> {
        let promise = self.promises.by_pod.get(key)?;
        let own = self.promises.node_of(key);
        let is_own = own.is_some_and(|own| **own == *node);
        (!is_own && self.promises.is_planned(node)).then_some(&promise.place)
    }

    /// Whether a node with a name is promised to a pod.
    pub fn has_place(&self, key: &str) -> bool {
        self.promises.node_of(key).is_some()
    }

    /// Returns the node that is promised to a pod if it takes the pod now. Others with a place there do not stand in the way: the plan has room for
    /// all of them, and two that are spread by zones would wait for each other.
    pub fn place_that_takes(&mut self, key: &str, class: PodClassId) -> Option<NodeId> {
        let node = self.cluster.node(self.promises.node_of(key)?)?;
        let is_own = {
            let mut held = self.cluster.nominated_on(node);
            held.all(|pod| self.promises.by_pod.contains_key(pod))
        };
        (is_own && self.cluster.takes_now(class, node)).then_some(node)
    }

    /// Returns the pods to try again since this was asked last.
    pub fn take_released(&mut self) -> Vec<String> {
        std::mem::take(&mut self.promises.released)
    }

    /// Forgets, for the time of a plan, what earlier plans promised: the cluster's checkpoint brings it back.
    pub fn lift_promises(&mut self) {
        for key in self.promises.by_pod.keys() {
            self.cluster.denominate(key);
        }
    }

    /// Gives up the room that preemption held for a pod; what a plan promised to it stays.
    pub fn release_room(&mut self, key: &str) {
        self.cluster.denominate(key);
        self.hold_promised(key);
    }

    /// Holds room for a pod on the node that is promised to it, if that has a name.
    pub(super) fn hold_promised(&mut self, key: &str) {
        let Some(node) = self.promises.node_of(key).cloned() else {
            return;
        };
        let promise = &self.promises.by_pod[key];
        // What preemption promised, or where it is put already, counts for more.
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

    /// Gives up the room that was held for a pod because of a promise.
    fn release(&mut self, key: &str) {
        let promised = self.promises.node_of(key);
        let held = self.cluster.nominated_node(key);
        let held = held.map(|node| self.cluster.node_name(node));
        // It may have made room for itself elsewhere since.
        if held.is_none() || held == promised.map(|node| &**node) {
            self.cluster.denominate(key);
        }
        self.promises.released.push(key.to_owned());
    }
}
