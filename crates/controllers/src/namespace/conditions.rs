//! Computes the conditions of a terminating namespace, with kube-controller-manager's messages. Pure.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    api::core::v1::{Namespace, NamespaceCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};

/// The progress in deleting a namespace's content.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The error in discovering the served kinds.
    pub(super) discovery_failure: Option<String>,
    /// The error messages of kinds that could not be deleted.
    pub(super) failures: Vec<String>,
    /// The number of remaining objects by `resource.group`.
    pub(super) remaining: Vec<(String, usize)>,
    /// The number of remaining objects by finalizer.
    pub(super) finalizers: BTreeMap<String, usize>,
    /// The estimated time until the remaining objects are gone.
    pub(super) estimate: Option<Duration>,
}

/// Returns the namespace with updated conditions.
pub(super) fn apply(namespace: &Namespace, progress: &Progress, now: Time) -> Namespace {
    let mut updated = namespace.clone();
    let status = updated.status.get_or_insert_default();
    let conditions = status.conditions.get_or_insert_default();
    for (kind, is_true, reason, message) in states(progress) {
        let state = if is_true { "True" } else { "False" };
        match conditions
            .iter_mut()
            .find(|condition| condition.type_ == kind)
        {
            None => conditions.push(NamespaceCondition {
                type_: kind.to_owned(),
                status: state.to_owned(),
                last_transition_time: Some(now.clone()),
                reason: Some(reason.to_owned()),
                message: Some(message),
            }),
            Some(condition) => {
                // Reason and message change with every object that goes; the time belongs to the status.
                if condition.status != state {
                    condition.last_transition_time = Some(now.clone());
                }
                condition.status = state.to_owned();
                condition.reason = Some(reason.to_owned());
                condition.message = Some(message);
            }
        }
    }
    updated
}

fn states(progress: &Progress) -> [(&'static str, bool, &'static str, String); 5] {
    let discovery = match &progress.discovery_failure {
        Some(error) => (
            true,
            "DiscoveryFailed",
            format!("Discovery failed for some groups, 1 failing: {error}"),
        ),
        None => (
            false,
            "ResourcesDiscovered",
            "All resources successfully discovered".to_owned(),
        ),
    };
    let content = if progress.failures.is_empty() {
        (
            false,
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization".to_owned(),
        )
    } else {
        let mut failures = progress.failures.clone();
        // The order of failures varies; sorting keeps equal failures from changing the message.
        failures.sort_unstable();
        let message = format!(
            "Failed to delete all resource types, {} remaining: {}",
            failures.len(),
            failures.join(", ")
        );
        (true, "ContentDeletionFailed", message)
    };
    let remaining = if progress.remaining.is_empty() {
        (
            false,
            "ContentRemoved",
            "All content successfully removed".to_owned(),
        )
    } else {
        let mut parts: Vec<_> = progress
            .remaining
            .iter()
            .map(|(kind, count)| format!("{kind} has {count} resource instances"))
            .collect();
        parts.sort_unstable();
        (
            true,
            "SomeResourcesRemain",
            format!("Some resources are remaining: {}", parts.join(", ")),
        )
    };
    let finalizers = if progress.finalizers.is_empty() {
        (
            false,
            "ContentHasNoFinalizers",
            "All content-preserving finalizers finished".to_owned(),
        )
    } else {
        let parts: Vec<_> = progress
            .finalizers
            .iter()
            .map(|(finalizer, count)| format!("{finalizer} in {count} resource instances"))
            .collect();
        let message = format!(
            "Some content in the namespace has finalizers remaining: {}",
            parts.join(", ")
        );
        (true, "SomeFinalizersRemain", message)
    };
    // Discovery returns parsed group versions, so parsing cannot fail here.
    let parsing = (
        false,
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed".to_owned(),
    );
    [
        ("NamespaceDeletionDiscoveryFailure", discovery),
        ("NamespaceDeletionGroupVersionParsingFailure", parsing),
        ("NamespaceDeletionContentFailure", content),
        ("NamespaceContentRemaining", remaining),
        ("NamespaceFinalizersRemaining", finalizers),
    ]
    .map(|(kind, (is_true, reason, message))| (kind, is_true, reason, message))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).expect("a small number of seconds"))
    }

    fn lines(namespace: &Namespace) -> Vec<String> {
        let conditions = namespace
            .status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten());
        conditions
            .map(|c| {
                let text = |text: &Option<String>| text.clone().unwrap_or_default();
                format!(
                    "{}={} {}: {}",
                    c.type_,
                    c.status,
                    text(&c.reason),
                    text(&c.message)
                )
            })
            .collect()
    }

    #[test]
    fn remaining_pods_are_named_with_their_finalizers() {
        let progress = Progress {
            remaining: vec![("pods.".to_owned(), 2), ("deployments.apps".to_owned(), 1)],
            finalizers: [("example.com/hold".to_owned(), 1)].into(),
            ..Progress::default()
        };
        let updated = apply(&Namespace::default(), &progress, at(1));
        assert_eq!(
            lines(&updated),
            [
                "NamespaceDeletionDiscoveryFailure=False ResourcesDiscovered: All resources successfully discovered",
                "NamespaceDeletionGroupVersionParsingFailure=False ParsedGroupVersions: All legacy kube types successfully parsed",
                "NamespaceDeletionContentFailure=False ContentDeleted: All content successfully deleted, may be waiting on finalization",
                "NamespaceContentRemaining=True SomeResourcesRemain: Some resources are remaining: deployments.apps has 1 resource instances, pods. has 2 resource instances",
                "NamespaceFinalizersRemaining=True SomeFinalizersRemain: Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances",
            ]
        );
    }

    #[test]
    fn transition_times_move_with_the_status_only() {
        let with = |count| Progress {
            remaining: vec![("pods.".to_owned(), count)],
            ..Progress::default()
        };
        let first = apply(&Namespace::default(), &with(2), at(1));
        let second = apply(&first, &with(1), at(2));
        let third = apply(&second, &Progress::default(), at(3));
        let time = |namespace: &Namespace| {
            let conditions = namespace
                .status
                .as_ref()
                .and_then(|status| status.conditions.clone())
                .expect("conditions");
            conditions[3].last_transition_time.clone()
        };
        assert_eq!(
            (time(&first), time(&second), time(&third)),
            (Some(at(1)), Some(at(1)), Some(at(3)))
        );
    }

    #[test]
    fn failures_are_counted_and_listed() {
        let progress = Progress {
            failures: vec!["b".to_owned(), "a".to_owned()],
            ..Progress::default()
        };
        let updated = apply(&Namespace::default(), &progress, at(1));
        assert_eq!(
            lines(&updated)[2],
            "NamespaceDeletionContentFailure=True ContentDeletionFailed: Failed to delete all resource types, 2 remaining: a, b"
        );
    }
}
