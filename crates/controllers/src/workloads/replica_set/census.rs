//! Counts the pods of each controller as they change.
//!
//! A sync of a ReplicaSet with ten thousand pods need not visit any of them: pods of one template have the same
//! labels, so the selector is applied once to a [`Tally`] per set of labels. Pods are listed only when one must be
//! chosen, adopted or released.
//!
//! Invariant: the tallies are those of the pods that the informer has reported, each counted as last reported.

use std::{
    collections::BTreeMap,
    ops::{AddAssign, SubAssign},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use k8s_openapi::api::{apps::v1::ReplicaSet, core::v1::Pod};
use kube::{
    Resource, ResourceExt,
    core::{Selector, SelectorExt},
};
use rustc_hash::FxHashMap;

use crate::{
    Change, Key,
    informers::{controller_uid, orphans_of},
    pods,
};

type Labels = BTreeMap<String, String>;

/// The counts of one owner's pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// All pods.
    pub(super) pods: usize,
    /// Pods that are neither finished nor being deleted.
    pub(super) active: usize,
    /// Pods that are being deleted.
    pub(super) terminating: usize,
    /// Pods that are active and ready.
    pub(super) ready: usize,
    /// Pods that are active and have the current template's labels.
    pub(super) labeled: usize,
}

impl Tally {
    fn of(pod: &Pod) -> Self {
        let active = pods::is_active(pod);
        Self {
            pods: 1,
            active: active.into(),
            terminating: pods::is_terminating(pod).into(),
            ready: (active && pods::is_ready(pod)).into(),
            labeled: 0,
        }
    }

    /// Counts the pods of `set` one by one.
    pub(super) fn of_all<'a>(set: &ReplicaSet, pods: impl IntoIterator<Item = &'a Pod>) -> Self {
        let mut sum = Self::default();
        for pod in pods {
            sum += Self::of(pod).labeled_for(set, pod.labels());
        }
        sum
    }

    /// Returns the tally with `labeled` filled in; all counted pods have these labels.
    fn labeled_for(self, set: &ReplicaSet, labels: &Labels) -> Self {
        let template = set.spec.as_ref().and_then(|spec| spec.template.as_ref());
        let wanted = template.and_then(|template| template.metadata.as_ref()?.labels.as_ref());
        let mut wanted = wanted.into_iter().flatten();
        let labeled = wanted.all(|(key, value)| labels.get(key) == Some(value));
        Self {
            labeled: if labeled { self.active } else { 0 },
            ..self
        }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.pods += other.pods;
        self.active += other.active;
        self.terminating += other.terminating;
        self.ready += other.ready;
        self.labeled += other.labeled;
    }
}

impl SubAssign for Tally {
    fn sub_assign(&mut self, other: Self) {
        self.pods -= other.pods;
        self.active -= other.active;
        self.terminating -= other.terminating;
        self.ready -= other.ready;
        self.labeled -= other.labeled;
    }
}

/// The counts of all pods by controller, and of orphans by namespace.
#[derive(Debug, Default)]
pub(super) struct Census {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The pods in the version in which they were counted; the report of a deletion may show another version.
    counted: FxHashMap<Key, Arc<Pod>>,
    /// Tallies by controller, under the key of [`controller_uid`], then by labels. An owner's pods have very few
    /// different sets of labels.
    tallies: FxHashMap<Box<str>, Vec<(Labels, Tally)>>,
}

impl Census {
    /// Processes a change. A watcher that acts on the same change must be registered after the census.
    pub(super) fn observe(&self, change: &Change<'_, Pod>) {
        let key = Key::of(&**change.object());
        let mut state = self.state();
        let before = if change.is_deleted() {
            state.counted.remove(&key)
        } else {
            // Counted before the old version is discounted: the entry of labels that stay the same is then
            // not dropped and made anew.
            state.count(change.object());
            state.counted.insert(key, Arc::clone(change.object()))
        };
        if let Some(before) = before {
            state.discount(&before);
        }
    }

    /// Returns the counts of the pods of `set`, or `None` if active pods must be adopted or released, for which
    /// they have to be listed. Inactive pods are neither adopted nor released.
    pub(super) fn tally(&self, set: &ReplicaSet, selector: &Selector) -> Option<Tally> {
        let state = self.state();
        let meta = set.meta();
        let orphans = orphans_of(meta.namespace.as_deref().unwrap_or_default());
        let mut orphans = state.tallies.get(&*orphans).into_iter().flatten();
        if orphans.any(|(labels, tally)| tally.active > 0 && selector.matches(labels)) {
            return None;
        }
        let own = state.tallies.get(meta.uid.as_deref().unwrap_or_default());
        let mut sum = Tally::default();
        for (labels, tally) in own.into_iter().flatten() {
            if selector.matches(labels) {
                sum += tally.labeled_for(set, labels);
            } else if tally.active > 0 {
                // An active pod that no longer matches must be released, which needs the pod itself.
                return None;
            }
        }
        Some(sum)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn count(&mut self, pod: &Pod) {
        controller_uid(pod, &mut |owner| {
            let first = || vec![(pod.labels().clone(), Tally::of(pod))];
            let Some(tallies) = self.tallies.get_mut(owner) else {
                self.tallies.insert(owner.into(), first());
                return;
            };
            match tallies
                .iter_mut()
                .find(|(labels, _)| labels == pod.labels())
            {
                Some((_, tally)) => *tally += Tally::of(pod),
                None => tallies.extend(first()),
            }
        });
    }

    fn discount(&mut self, pod: &Pod) {
        controller_uid(pod, &mut |owner| {
            let Some(tallies) = self.tallies.get_mut(owner) else {
                return;
            };
            if let Some((_, tally)) = tallies
                .iter_mut()
                .find(|(labels, _)| labels == pod.labels())
            {
                *tally -= Tally::of(pod);
            }
            // Labels that no pod has any more must go, or a Deployment's every rollout would leave an entry.
            tallies.retain(|(_, tally)| tally.pods > 0);
            if tallies.is_empty() {
                self.tallies.remove(owner);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::ownership;

    fn set() -> ReplicaSet {
        let set = json!({
            "metadata": { "name": "web", "namespace": "ns", "uid": "web-uid" },
            "spec": {
                "selector": { "matchLabels": { "app": "web" } },
                "template": { "metadata": { "labels": { "app": "web", "tier": "front" } }, "spec": { "containers": [] } },
            },
        });
        serde_json::from_value(set).expect("a ReplicaSet")
    }

    fn selector() -> Selector {
        let spec = set().spec.expect("it has one");
        ownership::selector(Some(&spec.selector)).expect("it parses")
    }

    fn pod(name: &str, owned: bool, labels: Value, ready: &str) -> Arc<Pod> {
        let owner = json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web-uid", "controller": true }]);
        let pod = json!({
            "metadata": { "name": name, "namespace": "ns", "labels": labels, "ownerReferences": if owned { owner } else { json!([]) } },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] },
        });
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    fn full() -> Value {
        json!({ "app": "web", "tier": "front" })
    }

    #[test]
    fn pods_count_as_they_were_last_reported() {
        let census = Census::default();
        let (a, b) = (
            pod("a", true, full(), "False"),
            pod("b", true, json!({ "app": "web" }), "True"),
        );
        census.observe(&Change::Added(&a));
        census.observe(&Change::Added(&b));
        let ready = pod("a", true, full(), "True");
        census.observe(&Change::Updated {
            old: &a,
            new: &ready,
        });
        let tally = census.tally(&set(), &selector()).expect("all are its own");
        assert_eq!(tally, Tally::of_all(&set(), [&*ready, &*b]));
        assert_eq!((tally.active, tally.ready, tally.labeled), (2, 2, 1));
        // The report of a deletion shows a version that was never reported before.
        let mut last = Pod::clone(&b);
        last.status = None;
        census.observe(&Change::Deleted(&Arc::new(last)));
        let tally = census.tally(&set(), &selector()).expect("all are its own");
        assert_eq!(tally, Tally::of_all(&set(), [&*ready]));
    }

    #[test]
    fn an_owner_must_look_at_orphans_it_wants_and_at_pods_that_left_its_selector() {
        let census = Census::default();
        let stranger = pod("c", false, json!({ "app": "db" }), "True");
        census.observe(&Change::Added(&stranger));
        assert_eq!(census.tally(&set(), &selector()), Some(Tally::default()));
        let orphan = pod("c", false, full(), "True");
        census.observe(&Change::Updated {
            old: &stranger,
            new: &orphan,
        });
        assert_eq!(census.tally(&set(), &selector()), None);
        let adopted = pod("c", true, full(), "True");
        census.observe(&Change::Updated {
            old: &orphan,
            new: &adopted,
        });
        assert!(census.tally(&set(), &selector()).is_some());
        let relabelled = pod("c", true, json!({ "app": "db" }), "True");
        census.observe(&Change::Updated {
            old: &adopted,
            new: &relabelled,
        });
        assert_eq!(census.tally(&set(), &selector()), None);
    }

    #[test]
    fn pods_that_ended_are_neither_adopted_nor_released() {
        let ended = |mut pod: Arc<Pod>| {
            let status = Arc::make_mut(&mut pod).status.get_or_insert_default();
            status.phase = Some("Failed".to_owned());
            pod
        };
        let census = Census::default();
        census.observe(&Change::Added(&ended(pod("a", false, full(), "False"))));
        let left = json!({ "app": "db" });
        census.observe(&Change::Added(&ended(pod("b", true, left, "False"))));
        assert_eq!(census.tally(&set(), &selector()), Some(Tally::default()));
    }

    #[test]
    fn nothing_is_kept_of_owners_without_pods() {
        let census = Census::default();
        let pod = pod("a", true, full(), "True");
        census.observe(&Change::Added(&pod));
        census.observe(&Change::Deleted(&pod));
        let state = census.state();
        assert!(state.counted.is_empty() && state.tallies.is_empty());
    }
}
