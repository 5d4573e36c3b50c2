//! Groups the nodes that refuse a pod by their reason.

use mullion_engine::{Cluster, NodeId, Reason, Refusal};
use serde::Serialize;

/// Nodes that refuse a pod for the same reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Group {
    pub(super) plugin: &'static str,
    pub(super) reason: String,
    pub(super) nodes: Vec<String>,
}

/// Groups nodes by reason; the largest group first. If only the missing amount or the skew differs, the nodes share a group, whose text is
/// about the node that lacks the least.
pub(super) fn grouped<'a>(
    cluster: &Cluster,
    refused: impl Iterator<Item = (NodeId, &'a Refusal)>,
) -> Vec<Group> {
    struct Open {
        kind: Vec<String>,
        plugin: &'static str,
        missing: i64,
        /// Whether the missing amounts in the group differ.
        differ: bool,
        reason: String,
        nodes: Vec<String>,
    }
    let mut groups: Vec<Open> = Vec::new();
    for (node, refusal) in refused {
        let kind: Vec<_> = refusal
            .reasons()
            .map(|reason| kind(cluster, reason))
            .collect();
        let missing: i64 = refusal.reasons().map(missing).sum();
        let name = cluster.node_name(node).to_owned();
        let words = || {
            let details = refusal
                .reasons()
                .map(|reason| cluster.reason_detail(reason));
            details.collect::<Vec<_>>().join("; ")
        };
        match groups.iter_mut().find(|group| group.kind == kind) {
            Some(group) => {
                group.differ |= missing != group.missing;
                // The nearest node decides the text of the group, and is named first.
                if missing < group.missing {
                    (group.missing, group.reason) = (missing, words());
                    group.nodes.insert(0, name);
                } else {
                    group.nodes.push(name);
                }
            }
            None => groups.push(Open {
                kind,
                plugin: refusal.plugin.name(),
                missing,
                differ: false,
                reason: words(),
                nodes: vec![name],
            }),
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.nodes.len()));
    let closed = groups.into_iter().map(|group| Group {
        plugin: group.plugin,
        reason: if group.differ {
            format!("{} (the nearest of them)", group.reason)
        } else {
            group.reason
        },
        nodes: group.nodes,
    });
    closed.collect()
}

/// Returns what two reasons must have in common to share a group.
fn kind(cluster: &Cluster, reason: Reason) -> String {
    match reason {
        Reason::Insufficient { resource, .. } => cluster.text(resource).to_owned(),
        Reason::Spread { key, .. } => format!("spread {}", cluster.text(key)),
        Reason::TooManyPods { .. } => "pods".to_owned(),
        other => cluster.reason_detail(other),
    }
}

/// Returns how much a node lacks to admit the pod; it selects the nearest node of a group.
fn missing(reason: Reason) -> i64 {
    match reason {
        Reason::Insufficient {
            requested, free, ..
        } => requested.saturating_sub(free),
        Reason::Spread { skew, max_skew, .. } => skew.saturating_sub(max_skew),
        _ => 0,
    }
}
