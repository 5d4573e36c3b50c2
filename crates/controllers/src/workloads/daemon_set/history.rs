//! What a DaemonSet remembers of its templates: which ControllerRevision is current, what a new one looks like, which
//! ones are let go. Pure.
//!
//! A revision's data is a strategic merge patch that brings its template back, as `kubectl rollout undo` sends it.
//! Templates are told apart by that data, never by their hash, which may collide. Carried out by
//! [`revisions`](super::revisions).

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::{
    api::{
        apps::v1::{ControllerRevision, DaemonSet},
        core::v1::Pod,
    },
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, runtime::RawExtension},
};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::plan::HASH_LABEL;
use crate::{ownership, workloads::template_hash};

/// Old revisions kept if the DaemonSet does not say.
const DEFAULT_LIMIT: i32 = 10;

/// The patch that brings the DaemonSet's present template back.
pub(super) fn data_of(set: &DaemonSet) -> Value {
    let template = set.spec.as_ref().map(|spec| &spec.template);
    // Serializing to memory cannot fail: keys are strings and there is no IO.
    let mut template = serde_json::to_value(template).expect("a pod template serializes");
    // Without it, what the present template has and the former had not would stay.
    template["$patch"] = json!("replace");
    json!({"spec": {"template": template}})
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
        let is_current = |revision: &Arc<ControllerRevision>| holds(revision, data);
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

/// Whether the revision holds the template that `data` is of.
pub(super) fn holds(revision: &ControllerRevision, data: &Value) -> bool {
    revision.data.as_ref().is_some_and(|held| held.0 == *data)
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
///
/// It takes the DaemonSet's annotations along: `kubectl rollout history` shows the change cause from there.
pub(super) fn new_revision(set: &DaemonSet, data: Value, number: i64) -> ControllerRevision {
    let template = set.spec.as_ref().map(|spec| &spec.template);
    let collisions = set
        .status
        .as_ref()
        .and_then(|status| status.collision_count);
    let hash = template
        .map(|template| template_hash(template, collisions))
        .unwrap_or_default();
    let mut labels = template
        .and_then(|template| template.metadata.as_ref()?.labels.clone())
        .unwrap_or_default();
    labels.insert(HASH_LABEL.to_owned(), hash.clone());
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", set.name_any())),
            namespace: set.namespace(),
            labels: Some(labels),
            annotations: set.metadata.annotations.clone(),
            owner_references: Some(vec![ownership::controller_reference(set)]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(data)),
        revision: number,
    }
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
        .unwrap_or(DEFAULT_LIMIT);
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
