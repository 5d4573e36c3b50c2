//! Computes the taints and labels that a node should have.
//!
//! Pure. NoSchedule taints follow the conditions at once. NoExecute taints, which evict pods, are added only when
//! [`super::zones`] allows it; this module only exchanges and removes them otherwise.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, Taint},
    apimachinery::pkg::apis::meta::v1::Time,
};
use mullion_api::labels;

use super::health::{Ready, condition};

/// Conditions that taint a node while they are True.
const PRESSURES: [(&str, &str); 4] = [
    ("MemoryPressure", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "node.kubernetes.io/pid-pressure"),
    (
        "NetworkUnavailable",
        "node.kubernetes.io/network-unavailable",
    ),
];

/// Whether taints that evict pods may be set on a node now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionTaints {
    /// The taints may be set.
    Now,
    /// No taint may be added yet; existing ones stay.
    NotYet,
    /// No taint may be set and existing ones are removed: if all nodes are silent, the fault is more likely on this
    /// side.
    Never,
}

/// Returns the taint key for the reason why a node is not ready.
fn not_ready_key(node: &Node) -> Option<&'static str> {
    match Ready::of(node) {
        Ready::True => None,
        Ready::False => Some(labels::NOT_READY_TAINT),
        Ready::Unknown => Some(labels::UNREACHABLE_TAINT),
    }
}

/// Returns whether the node is not ready and does not have the taint yet that evicts its pods.
pub fn awaits_eviction(node: &Node) -> bool {
    let Some(_) = not_ready_key(node) else {
        return false;
    };
    !taints(node)
        .iter()
        .any(|taint| taint.effect == "NoExecute" && is_readiness(&taint.key))
}

/// Returns the taints that the node should have, or `None` if it has them.
pub fn wanted_taints(node: &Node, evict: EvictionTaints, now: Timestamp) -> Option<Vec<Taint>> {
    let reason = not_ready_key(node);
    let pressures = PRESSURES
        .iter()
        .filter(|(name, _)| condition(node, name).is_some_and(|c| c.status == "True"));
    let cordoned = node
        .spec
        .as_ref()
        .is_some_and(|spec| spec.unschedulable == Some(true));
    let mut no_schedule: Vec<&str> = reason
        .into_iter()
        .chain(pressures.map(|(_, key)| *key))
        .collect();
    no_schedule.extend(cordoned.then_some(labels::UNSCHEDULABLE_TAINT));

    let present = taints(node);
    let evicting = present
        .iter()
        .find(|taint| taint.effect == "NoExecute" && is_readiness(&taint.key));
    let no_execute = match (reason, evict, evicting) {
        // A ready node loses the taint at once; a node that waits for its turn keeps what it has.
        (None, _, _) | (_, EvictionTaints::Never, _) | (_, EvictionTaints::NotYet, None) => None,
        // The existing taint keeps its time.
        (Some(key), _, Some(there)) if there.key == key => Some(there.clone()),
        // Either the node's turn has come, or the reason changed between not-ready and unreachable.
        (Some(key), _, _) => Some(taint(key, "NoExecute", now)),
    };
    let ours = |taint: &Taint| match taint.effect.as_str() {
        "NoSchedule" => is_readiness(&taint.key) || is_ours_without_readiness(&taint.key),
        "NoExecute" => is_readiness(&taint.key),
        _ => false,
    };
    let mut wanted: Vec<_> = present
        .iter()
        .filter(|taint| {
            !ours(taint)
                || (taint.effect == "NoSchedule" && no_schedule.contains(&taint.key.as_str()))
                || no_execute.as_ref() == Some(*taint)
        })
        .cloned()
        .collect();
    for key in no_schedule {
        if !wanted
            .iter()
            .any(|taint| taint.key == key && taint.effect == "NoSchedule")
        {
            wanted.push(taint(key, "NoSchedule", now));
        }
    }
    // Appended, so that existing taints keep their order and an unchanged list is not written.
    wanted.extend(no_execute.filter(|taint| !wanted.contains(taint)));
    (wanted != present).then_some(wanted)
}

/// Returns the beta labels that should equal the current ones and do not.
pub fn missing_labels(node: &Node) -> Option<BTreeMap<String, String>> {
    let present = node.metadata.labels.as_ref()?;
    let pairs = [
        (labels::OS, labels::BETA_OS),
        (labels::ARCH, labels::BETA_ARCH),
    ];
    let missing = pairs.iter().filter_map(|(new, old)| {
        let value = present.get(*new)?;
        (present.get(*old) != Some(value)).then(|| ((*old).to_owned(), value.clone()))
    });
    let missing: BTreeMap<_, _> = missing.collect();
    (!missing.is_empty()).then_some(missing)
}

/// Returns the node's taints.
pub fn taints(node: &Node) -> &[Taint] {
    node.spec
        .as_ref()
        .and_then(|spec| spec.taints.as_deref())
        .unwrap_or_default()
}

fn is_readiness(key: &str) -> bool {
    key == labels::NOT_READY_TAINT || key == labels::UNREACHABLE_TAINT
}

fn is_ours_without_readiness(key: &str) -> bool {
    key == labels::UNSCHEDULABLE_TAINT || PRESSURES.iter().any(|(_, taint)| *taint == key)
}

fn taint(key: &str, effect: &str, now: Timestamp) -> Taint {
    Taint {
        key: key.to_owned(),
        value: None,
        effect: effect.to_owned(),
        time_added: Some(Time(now)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(conditions: &[(&str, &str)], taints: &[&str], unschedulable: bool) -> Node {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|(name, status)| json!({ "type": name, "status": status }))
            .collect();
        let taints: Vec<Value> = taints
            .iter()
            .map(|taint| {
                let (key, effect) = taint.split_once(':').expect("key:Effect");
                json!({ "key": key, "effect": effect })
            })
            .collect();
        serde_json::from_value(json!({
            "metadata": { "name": "n", "labels": { "kubernetes.io/os": "windows", "kubernetes.io/arch": "amd64" } },
            "spec": { "taints": taints, "unschedulable": unschedulable },
            "status": { "conditions": conditions },
        }))
        .expect("a node")
    }

    fn wanted(node: &Node, evict: EvictionTaints) -> Option<Vec<String>> {
        let taints = wanted_taints(node, evict, Timestamp::UNIX_EPOCH)?;
        Some(
            taints
                .into_iter()
                .map(|taint| format!("{}:{}", taint.key, taint.effect))
                .collect(),
        )
    }

    const NOT_READY: &str = "node.kubernetes.io/not-ready:NoSchedule";
    const NOT_READY_EVICT: &str = "node.kubernetes.io/not-ready:NoExecute";
    const UNREACHABLE: &str = "node.kubernetes.io/unreachable:NoSchedule";
    const UNREACHABLE_EVICT: &str = "node.kubernetes.io/unreachable:NoExecute";
    const OWN: &str = "os:NoSchedule";

    #[test]
    fn taints_follow_the_conditions_and_leave_foreign_ones_alone() {
        let ready = &[("Ready", "True")][..];
        let cases: Vec<(Node, EvictionTaints, Option<Vec<&str>>)> = vec![
            (node(ready, &[OWN], false), EvictionTaints::NotYet, None),
            (
                node(ready, &[OWN, NOT_READY, NOT_READY_EVICT], false),
                EvictionTaints::NotYet,
                Some(vec![OWN]),
            ),
            (
                node(&[("Ready", "False")], &[OWN], false),
                EvictionTaints::NotYet,
                Some(vec![OWN, NOT_READY]),
            ),
            (
                node(&[("Ready", "False")], &[OWN, NOT_READY], false),
                EvictionTaints::NotYet,
                None,
            ),
            (
                node(&[("Ready", "False")], &[NOT_READY], false),
                EvictionTaints::Now,
                Some(vec![NOT_READY, NOT_READY_EVICT]),
            ),
            (
                node(
                    &[("Ready", "Unknown")],
                    &[NOT_READY, NOT_READY_EVICT],
                    false,
                ),
                EvictionTaints::NotYet,
                Some(vec![UNREACHABLE, UNREACHABLE_EVICT]),
            ),
            (
                node(
                    &[("Ready", "Unknown")],
                    &[UNREACHABLE, UNREACHABLE_EVICT],
                    false,
                ),
                EvictionTaints::Now,
                None,
            ),
            (
                node(
                    &[("Ready", "Unknown")],
                    &[UNREACHABLE, UNREACHABLE_EVICT],
                    false,
                ),
                EvictionTaints::Never,
                Some(vec![UNREACHABLE]),
            ),
            (
                node(&[], &[], false),
                EvictionTaints::NotYet,
                Some(vec![UNREACHABLE]),
            ),
            (
                node(&[("Ready", "True"), ("DiskPressure", "True")], &[], true),
                EvictionTaints::NotYet,
                Some(vec![
                    "node.kubernetes.io/disk-pressure:NoSchedule",
                    "node.kubernetes.io/unschedulable:NoSchedule",
                ]),
            ),
            (
                node(
                    ready,
                    &["node.kubernetes.io/unschedulable:NoSchedule"],
                    false,
                ),
                EvictionTaints::NotYet,
                Some(vec![]),
            ),
        ];
        for (node, evict, expected) in cases {
            let expected =
                expected.map(|taints| taints.into_iter().map(str::to_owned).collect::<Vec<_>>());
            assert_eq!(wanted(&node, evict), expected, "{:?} {evict:?}", node.spec);
        }
    }

    #[test]
    fn a_node_awaits_eviction_until_it_has_the_evicting_taint() {
        assert!(!awaits_eviction(&node(&[("Ready", "True")], &[], false)));
        assert!(awaits_eviction(&node(
            &[("Ready", "False")],
            &[NOT_READY],
            false
        )));
        assert!(!awaits_eviction(&node(
            &[("Ready", "Unknown")],
            &[NOT_READY_EVICT],
            false
        )));
    }

    #[test]
    fn old_label_spellings_follow_the_new_ones() {
        let missing = missing_labels(&node(&[], &[], false)).expect("both are missing");
        assert_eq!(
            missing.get("beta.kubernetes.io/os").map(String::as_str),
            Some("windows")
        );
        let mut complete = node(&[], &[], false);
        complete
            .metadata
            .labels
            .as_mut()
            .expect("labels")
            .extend(missing);
        assert_eq!(missing_labels(&complete), None);
    }
}
