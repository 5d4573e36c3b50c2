//! What a DaemonSet remembers of its templates: which ControllerRevision is current, what a new one looks like, which
//! ones are let go. Pure.
//!
//! Carried out by [`revisions`](super::revisions).

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet},
    core::v1::Pod,
};
use kube::ResourceExt;
use serde_json::Value;

use super::plan::HASH_LABEL;
use crate::workloads::revision;

/// The patch that brings the DaemonSet's present template back.
pub(super) fn data_of(set: &DaemonSet) -> Value {
    revision::data_of(set.spec.as_ref().map(|spec| &spec.template))
}

/// The revisions of one DaemonSet, by whether they hold its present template.
#[derive(Debug, Default, PartialEq)]
pub(super) struct History {
    /// Holding the present template; more than one only after an adoption.
    pub(super) current: Vec<Arc<ControllerRevision>>,
    /// Holding others.
    pub(super) old: Vec<Arc<ControllerRevision>>,
}

impl History {
    pub(super) fn new(revisions: Vec<Arc<ControllerRevision>>, data: &Value) -> Self {
        let is_current = |held: &Arc<ControllerRevision>| revision::holds(held, data);
        let (current, old) = revisions.into_iter().partition(is_current);
        Self { current, old }
    }

    /// The number the current revision must have at least: one more than any old one.
    pub(super) fn number(&self) -> i64 {
        let highest = self.old.iter().map(|revision| revision.revision).max();
        highest.unwrap_or_default().max(0) + 1
    }

    /// The current revision that stays, if there are several.
    pub(super) fn kept(&self) -> Option<&Arc<ControllerRevision>> {
        self.current.iter().max_by_key(|revision| revision.revision)
    }
}

/// What pods of the revision are labelled with.
pub(super) fn hash_of(revision: &ControllerRevision) -> &str {
    revision
        .labels()
        .get(HASH_LABEL)
        .map(String::as_str)
        .unwrap_or_default()
}

/// A revision of the DaemonSet's present template.
pub(super) fn new_revision(set: &DaemonSet, number: i64) -> ControllerRevision {
    let template = set.spec.as_ref().map(|spec| &spec.template);
    let collisions = set
        .status
        .as_ref()
        .and_then(|status| status.collision_count);
    revision::new_revision(set, template, HASH_LABEL, number, collisions)
}

/// The old revisions beyond the DaemonSet's limit, oldest first; those that `pods` still are of stay.
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
