//! kube-scheduler: DynamicResources. A node scores higher if it can satisfy the claims' requests with more preferred alternatives.

use crate::cluster::{NodeId, Question};

/// Returns whether nodes can differ in score: a claim without an allocation has a request with alternatives.
pub(crate) fn applies(question: &Question<'_>) -> bool {
    let devices = question.cluster.devices();
    question
        .devices
        .is_some_and(|plan| plan.has_choice(devices))
}

pub(crate) fn raw(question: &Question<'_>, node: NodeId) -> i64 {
    let Some(plan) = question.devices else {
        return 0;
    };
    let cluster = question.cluster;
    // The node was feasible, so the search succeeds again; it is not kept because a claim of devices is rare.
    let found = cluster.find_devices(plan, node).unwrap_or_default();
    let scores = found.iter().filter_map(|found| {
        let claim = cluster.devices().claim(found.key)?;
        Some(found.score(claim))
    });
    scores.sum()
}
