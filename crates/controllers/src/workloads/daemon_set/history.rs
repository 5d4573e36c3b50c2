//! Decides about the revision history of a DaemonSet: which ControllerRevision is current, what a new one contains,
//! and which old ones are deleted. Pure.
//!
//! [`revisions`](super::revisions) carries the decisions out.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet},
    core::v1::Pod,
};
use kube::ResourceExt;
use serde_json::Value;

use super::plan::HASH_LABEL;
use crate::workloads::revision;

/// Returns the patch that restores the DaemonSet's current template.
pub(super) fn data_of(set: &DaemonSet) -> Value {
    revision::data_of(set.spec.as_ref().map(|spec| &spec.template))
}

/// The revisions of one DaemonSet, divided by whether they hold its current template.
#[derive(Debug, Default, PartialEq)]
pub(super) struct History {
    /// Revisions that hold the current template; more than one only after an adoption.
    pub(super) current: Vec<Arc<ControllerRevision>>,
    /// Revisions that hold other templates.
    pub(super) old: Vec<Arc<ControllerRevision>>,
}

impl History {
    pub(super) fn new(revisions: Vec<Arc<ControllerRevision>>, data: &Value) -> Self {
        let is_current = |held: &Arc<ControllerRevision>| revision::holds(held, data);
        let (current, old) = revisions.into_iter().partition(is_current);
        Self { current, old }
    }

    /// Returns the lowest number that the current revision may have: one more than that of any old revision.
    pub(super) fn number(&self) -> i64 {
        let highest = self.old.iter().map(|revision| revision.revision).max();
        highest.unwrap_or_default().max(0) + 1
    }

    /// Returns the current revision that is kept if there are several: the one with the highest number.
    pub(super) fn kept(&self) -> Option<&Arc<ControllerRevision>> {
        self.current.iter().max_by_key(|revision| revision.revision)
    }
}

/// Returns the hash with which pods of the revision are labelled.
pub(super) fn hash_of(revision: &ControllerRevision) -> &str {
    revision
        .labels()
        .get(HASH_LABEL)
        .map(String::as_str)
        .unwrap_or_default()
}

/// Returns a new revision for the DaemonSet's current template.
pub(super) fn new_revision(set: &DaemonSet, number: i64) -> ControllerRevision {
    let template = set.spec.as_ref().map(|spec| &spec.template);
    let collisions = set
        .status
        .as_ref()
        .and_then(|status| status.collision_count);
    revision::new_revision(set, template, HASH_LABEL, number, collisions)
}

/// Returns the old revisions beyond the DaemonSet's limit, oldest first. Revisions of existing `pods` are kept.
pub(super) fn surplus(
    set: &DaemonSet,
    mut old: Vec<Arc<ControllerRevision>>,
    pods: &[Arc<Pod>],
) -> Vec<Arc<ControllerRevision>> {
    let limit = set
        .spec
        .as_ref()
        .and_then(|spec| spec.revision_history_limit)
        .unwrap_or(revision::DEFAULT_LIMIT);
    // Counted before live revisions are set aside: those count towards the limit, but are not deleted.
    let excess = old
        .len()
        .saturating_sub(usize::try_from(limit).unwrap_or_default());
    let live: BTreeSet<_> = pods
        .iter()
        .filter_map(|pod| pod.labels().get(HASH_LABEL))
        .map(String::as_str)
        .collect();
    old.retain(|revision| !live.contains(hash_of(revision)));
    old.sort_by_key(|revision| revision.revision);
    old.truncate(excess);
    old
}

#[cfg(test)]
mod tests;
