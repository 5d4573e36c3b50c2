//! The annotations in which Deployments and their ReplicaSets store revisions and sizes. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use kube::ResourceExt;

use super::rolling::Limits;

/// The revision of a template: on each ReplicaSet, and on the Deployment the current one.
pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
/// The former revisions of a ReplicaSet whose template was used again, comma-separated.
pub(super) const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// `spec.replicas` of the Deployment when the ReplicaSet was last sized.
pub(super) const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
/// `spec.replicas` of the Deployment plus the surge when the ReplicaSet was last sized.
pub(super) const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";
/// The annotation that requests a rollback to a revision (`spec.rollbackTo` in extensions/v1beta1).
pub(super) const ROLLBACK_TO: &str = "deprecated.deployment.rollback.to";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The greatest length of the revision history, in characters.
const HISTORY_LIMIT: usize = 2000;

/// The annotations that are not copied from the Deployment to its ReplicaSets.
const NOT_COPIED: [&str; 6] = [
    LAST_APPLIED,
    REVISION,
    REVISION_HISTORY,
    DESIRED_REPLICAS,
    MAX_REPLICAS,
    ROLLBACK_TO,
];

/// Returns the revision of a ReplicaSet; 0 if it has none.
pub(super) fn revision(set: &ReplicaSet) -> i64 {
    set.annotations()
        .get(REVISION)
        .and_then(|revision| revision.parse().ok())
        .unwrap_or_default()
}

/// Returns the number of pods in an annotation; `None` if it is missing, negative or not a number.
pub(super) fn number(set: &ReplicaSet, annotation: &str) -> Option<i32> {
    let number = set.annotations().get(annotation)?.parse().ok();
    number.filter(|&number| number >= 0)
}

/// Returns the revision to which a rollback is requested, where 0 means the one before the current. A value that is
/// not a number requests nothing.
pub(super) fn rollback_to(deployment: &Deployment) -> Option<i64> {
    deployment.annotations().get(ROLLBACK_TO)?.parse().ok()
}

/// Returns the second highest revision: the one to which `undo` goes back.
pub(super) fn last_revision<'a>(sets: impl IntoIterator<Item = &'a ReplicaSet>) -> i64 {
    let (mut highest, mut second) = (0, 0);
    for revision in sets.into_iter().map(revision) {
        // Equal revisions count twice, as in kube-controller-manager: undo then goes back to the same number.
        if revision >= highest {
            (second, highest) = (highest, revision);
        } else if revision > second {
            second = revision;
        }
    }
    second
}

/// Copies the Deployment's annotations to its new ReplicaSet and raises the set's revision. Returns whether the set
/// must be written. A set whose revision annotation is not a number is left as it is.
pub(super) fn annotate_new_set(
    deployment: &Deployment,
    set: &mut ReplicaSet,
    revision: i64,
) -> bool {
    let annotations = set.annotations_mut();
    let mut changed = copy_annotations(deployment.annotations(), annotations);
    let former = annotations.get(REVISION).cloned();
    let former_number = match &former {
        None => 0,
        Some(text) if text.is_empty() => 0,
        Some(text) => match text.parse::<i64>() {
            Ok(number) => number,
            // kube-controller-manager also leaves such a set alone.
            Err(_) => return false,
        },
    };
    if former_number < revision {
        annotations.insert(REVISION.to_owned(), revision.to_string());
        changed = true;
        if let Some(former) = former {
            let history = annotations
                .get(REVISION_HISTORY)
                .map(String::as_str)
                .unwrap_or_default();
            let history = extend_history(history, &former);
            annotations.insert(REVISION_HISTORY.to_owned(), history);
        }
    }
    changed
}

fn copy_annotations(from: &BTreeMap<String, String>, to: &mut BTreeMap<String, String>) -> bool {
    let mut changed = false;
    for (key, value) in from {
        if !NOT_COPIED.contains(&key.as_str()) && to.get(key) != Some(value) {
            to.insert(key.clone(), value.clone());
            changed = true;
        }
    }
    changed
}

/// Appends `revision` to `history`, dropping as many of the oldest entries as needed to stay within the limit.
fn extend_history(history: &str, revision: &str) -> String {
    let mut kept = history;
    // Annotations of an object are limited in size; the oldest revisions are the least likely to be asked
    // for.
    while !kept.is_empty() && kept.len() + 1 + revision.len() > HISTORY_LIMIT {
        kept = kept.split_once(',').map_or("", |(_, rest)| rest);
    }
    if kept.is_empty() {
        revision.to_owned()
    } else {
        format!("{kept},{revision}")
    }
}

/// Annotates the ReplicaSet with the sizes it was scaled for. Returns whether an annotation changed.
pub(super) fn annotate_sizes(set: &mut ReplicaSet, limits: Limits) -> bool {
    let noted = [
        (DESIRED_REPLICAS, limits.desired.to_string()),
        (MAX_REPLICAS, limits.most().to_string()),
    ];
    let annotations = set.annotations_mut();
    let is_new = noted
        .iter()
        .any(|(annotation, value)| annotations.get(*annotation) != Some(value));
    annotations.extend(noted.map(|(annotation, value)| (annotation.to_owned(), value)));
    is_new
}

/// Returns the Deployment's annotations after a rollback to `set`: those of the set, and of the Deployment those
/// that are never copied.
pub(super) fn annotations_after_rollback(
    deployment: &Deployment,
    set: &ReplicaSet,
) -> BTreeMap<String, String> {
    let kept = |key: &str| NOT_COPIED.contains(&key);
    let own = deployment.annotations().iter().filter(|(key, _)| kept(key));
    let sets = set.annotations().iter().filter(|(key, _)| !kept(key));
    own.chain(sets)
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotated(pairs: &[(&str, &str)]) -> ReplicaSet {
        let mut set = ReplicaSet::default();
        *set.annotations_mut() = pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        set
    }

    fn deployment(pairs: &[(&str, &str)]) -> Deployment {
        let mut deployment = Deployment::default();
        *deployment.annotations_mut() = pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        deployment
    }

    #[test]
    fn a_set_used_again_remembers_its_former_revisions() {
        let mut set = annotated(&[(REVISION, "1")]);
        assert!(annotate_new_set(&Deployment::default(), &mut set, 3));
        assert!(annotate_new_set(&Deployment::default(), &mut set, 5));
        assert!(!annotate_new_set(&Deployment::default(), &mut set, 5));
        assert_eq!(set.annotations()[REVISION], "5");
        assert_eq!(set.annotations()[REVISION_HISTORY], "1,3");
    }

    #[test]
    fn a_first_revision_leaves_no_history() {
        let mut set = ReplicaSet::default();
        assert!(annotate_new_set(&Deployment::default(), &mut set, 1));
        assert_eq!(set.annotations().get(REVISION_HISTORY), None);
    }

    #[test]
    fn annotations_are_copied_but_not_those_with_a_meaning_of_their_own() {
        let from = deployment(&[
            ("kubernetes.io/change-cause", "upgrade"),
            (LAST_APPLIED, "{}"),
            (REVISION, "7"),
        ]);
        let mut set = ReplicaSet::default();
        annotate_new_set(&from, &mut set, 1);
        let keys: Vec<_> = set.annotations().keys().map(String::as_str).collect();
        assert_eq!(keys, [REVISION, "kubernetes.io/change-cause"]);
        assert_eq!(set.annotations()[REVISION], "1");
    }

    #[test]
    fn history_forgets_its_oldest_entries_to_stay_within_its_limit() {
        let long = vec!["12345"; HISTORY_LIMIT / 6].join(",");
        let extended = extend_history(&long, "67890");
        assert!(extended.len() <= HISTORY_LIMIT && extended.ends_with(",67890"));
        assert!(
            extended.len() + "12345,".len() > HISTORY_LIMIT,
            "no more than needed"
        );
        assert_eq!(extend_history("", "2"), "2");
        assert_eq!(extend_history(&"9".repeat(HISTORY_LIMIT), "2"), "2");
    }

    #[test]
    fn a_set_with_an_unreadable_revision_is_left_as_it_is() {
        let from = deployment(&[("kubernetes.io/change-cause", "upgrade")]);
        let mut set = annotated(&[(REVISION, "first")]);
        assert!(!annotate_new_set(&from, &mut set, 2));
        assert_eq!(set.annotations()[REVISION], "first");
    }

    #[test]
    fn sizes_that_are_no_number_of_pods_count_as_unknown() {
        let set = |text| annotated(&[(MAX_REPLICAS, text)]);
        let number = |text| number(&set(text), MAX_REPLICAS);
        assert_eq!((number("13"), number("0")), (Some(13), Some(0)));
        assert_eq!(
            [number("-1"), number("many"), number("2147483648")],
            [None; 3]
        );
    }

    #[test]
    fn a_rollback_is_asked_for_by_number_only() {
        let asked = |text| rollback_to(&deployment(&[(ROLLBACK_TO, text)]));
        assert_eq!((asked("0"), asked("7")), (Some(0), Some(7)));
        assert_eq!((asked(""), asked("last")), (None, None));
        assert_eq!(rollback_to(&Deployment::default()), None);
    }

    #[test]
    fn the_last_revision_is_the_one_before_the_current() {
        let sets = ["3", "7", "5"].map(|revision| annotated(&[(REVISION, revision)]));
        assert_eq!(last_revision(&sets), 5);
        assert_eq!(last_revision(&sets[..1]), 0);
    }

    #[test]
    fn a_rollback_takes_the_annotations_of_the_set_it_goes_back_to() {
        let current = deployment(&[("note", "new"), ("only-new", "x"), (REVISION, "2")]);
        let set = annotated(&[("note", "old"), (REVISION, "1"), (DESIRED_REPLICAS, "3")]);
        let after = annotations_after_rollback(&current, &set);
        let pairs: Vec<_> = after
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect();
        assert_eq!(pairs, [(REVISION, "2"), ("note", "old")]);
    }
}
