//! Turns changes of pods into work for the controllers that own them.
//!
//! An owner is not synced for every change of its pods: the more pods it has, the longer changes are collected (50
//! µs per pod, at most half a second) before one sync processes all of them. The change that completes the owner's
//! expectations is passed on at once.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{
    api::{apps::v1::DaemonSet, apps::v1::ReplicaSet, core::v1::Pod},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Resource, ResourceExt,
    core::{Selector, SelectorExt},
};

use super::expectations::Expectations;
use crate::{
    Change, Informer, Key, Queue, informers::BY_CONTROLLER, ownership, pods, queue::collect_for,
};

/// A kind whose controller creates pods.
pub(super) trait PodOwner: Resource<DynamicType = ()> + Send + Sync + 'static {
    /// Returns the selector of the owner's pods; `None` if it selects none.
    fn selector(&self) -> Option<Selector>;
    fn min_ready_seconds(&self) -> i32;
}

impl PodOwner for ReplicaSet {
    fn selector(&self) -> Option<Selector> {
        ownership::selector(self.spec.as_ref().map(|spec| &spec.selector))
    }

    fn min_ready_seconds(&self) -> i32 {
        self.spec
            .as_ref()
            .and_then(|spec| spec.min_ready_seconds)
            .unwrap_or_default()
    }
}

impl PodOwner for DaemonSet {
    fn selector(&self) -> Option<Selector> {
        ownership::selector(self.spec.as_ref().map(|spec| &spec.selector))
    }

    fn min_ready_seconds(&self) -> i32 {
        self.spec
            .as_ref()
            .and_then(|spec| spec.min_ready_seconds)
            .unwrap_or_default()
    }
}

/// The destination of pod changes: the queue and expectations of the owners' controller.
pub(super) struct PodWatch<O> {
    pub(super) owners: Informer<O>,
    pub(super) pods: Informer<Pod>,
    pub(super) expectations: Arc<Expectations>,
    pub(super) queue: Queue<Key>,
}

impl<O: PodOwner> PodWatch<O> {
    pub(super) fn observe(&self, change: &Change<'_, Pod>) {
        match change {
            // After a restart of the watch a terminating pod appears as new; as a creation it would meet an
            // expectation.
            Change::Added(pod) if pods::is_deleting(pod) => self.deleted(pod),
            Change::Added(pod) => self.added(pod),
            Change::Updated { old, new } => self.updated(old, new),
            Change::Deleted(pod) => self.deleted(pod),
        }
    }

    fn added(&self, pod: &Pod) {
        match ownership::controller_of(pod) {
            Some(reference) => {
                if let Some(owner) = self.resolve(pod, reference) {
                    let key = Key::of(&*owner);
                    let complete = self.expectations.created(&key);
                    self.enqueue(&owner, key, complete);
                }
            }
            None => self.enqueue_matching(pod),
        }
    }

    fn updated(&self, old: &Pod, new: &Pod) {
        let labels_changed = old.metadata.labels != new.metadata.labels;
        if pods::is_deleting(new) {
            // A terminating pod counts as deleted, so that its replacement need not wait for the end of the grace
            // period.
            self.deleted(new);
            // The old labels may have belonged to another owner, for whom the pod is gone as well.
            if labels_changed {
                self.deleted(old);
            }
            return;
        }
        let (before, after) = (ownership::controller_of(old), ownership::controller_of(new));
        let controller_changed = before.map(|owner| &owner.uid) != after.map(|owner| &owner.uid);
        if controller_changed
            && let Some(owner) = before.and_then(|reference| self.resolve(old, reference))
        {
            self.enqueue(&owner, Key::of(&*owner), true);
        }
        match after {
            Some(reference) => {
                if let Some(owner) = self.resolve(new, reference) {
                    let key = Key::of(&*owner);
                    if !pods::is_ready(old) && pods::is_ready(new) && owner.min_ready_seconds() > 0
                    {
                        let seconds = u64::try_from(owner.min_ready_seconds()).unwrap_or_default();
                        // One second is added because timestamps are whole seconds and may be early.
                        self.queue
                            .add_after(key.clone(), Duration::from_secs(seconds + 1));
                    }
                    self.enqueue(&owner, key, false);
                }
            }
            None if labels_changed || controller_changed => self.enqueue_matching(new),
            None => {}
        }
    }

    fn deleted(&self, pod: &Pod) {
        let Some(reference) = ownership::controller_of(pod) else {
            return;
        };
        if let Some(owner) = self.resolve(pod, reference) {
            let key = Key::of(&*owner);
            let complete = self.expectations.deleted(&key, &Key::of(pod));
            self.enqueue(&owner, key, complete);
        }
    }

    fn resolve(&self, pod: &Pod, reference: &OwnerReference) -> Option<Arc<O>> {
        if reference.kind != O::kind(&()) {
            return None;
        }
        let owner = self.owners.get(
            pod.metadata.namespace.as_deref().unwrap_or_default(),
            &reference.name,
        )?;
        (owner.meta().uid.as_ref() == Some(&reference.uid)).then_some(owner)
    }

    fn enqueue(&self, owner: &O, key: Key, now: bool) {
        if now {
            return self.queue.add(key);
        }
        let siblings = self.pods.count_by_index(
            BY_CONTROLLER,
            owner.meta().uid.as_deref().unwrap_or_default(),
        );
        self.queue.add_after(key, collect_for(siblings));
    }

    /// Wakes every owner that might adopt `pod`.
    fn enqueue_matching(&self, pod: &Pod) {
        for owner in self
            .owners
            .in_namespace(pod.metadata.namespace.as_deref().unwrap_or_default())
        {
            if owner
                .selector()
                .is_some_and(|selector| !selector.selects_all() && selector.matches(pod.labels()))
            {
                self.queue.add(Key::of(&*owner));
            }
        }
    }
}
