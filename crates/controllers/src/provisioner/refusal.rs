//! Why no pool buys for a pod, in the words of Karpenter's FailedScheduling event. Pure.
//!
//! Invariant: what upstream has words for is said in them; where its words would need what a plan does not keep (all
//! requirements of the node that was tried), the engine's own are used. `mullion why` tells more.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mullion_engine::{
    Cluster, LabelMismatch, Reason,
    model::{Operator, ResourceMap},
    provision::{NodeTemplate, PoolReason, PoolRefusal, Unplaceable},
};
use rustc_hash::FxHashMap;
use serde_json::json;

use super::market::resource_list;

/// Returns all that keeps each pod without a node, by its key. Pods that were refused together share the text. `overheads` is
/// the most that DaemonSets take of each pool's nodes.
pub(super) fn texts(
    cluster: &Cluster,
    unplaceable: &[Unplaceable],
    overheads: &BTreeMap<String, ResourceMap>,
    pools: &[NodeTemplate],
) -> BTreeMap<String, Arc<str>> {
    let mut known: FxHashMap<*const PoolRefusal, Arc<str>> = FxHashMap::default();
    let text = |unplaceable: &Unplaceable| -> Arc<str> {
        // Pods refused together share one list, whose address finds the text again. An invalid pod
        // has a text of its own, and an empty list need not have an address of its own.
        if unplaceable.invalid.is_some() || unplaceable.pools.is_empty() {
            return message(cluster, unplaceable, overheads, pools).into();
        }
        let text = known
            .entry(unplaceable.pools.as_ptr())
            .or_insert_with(|| message(cluster, unplaceable, overheads, pools).into());
        Arc::clone(text)
    };
    let keys = unplaceable.iter().map(|pod| pod.pod.clone());
    keys.zip(unplaceable.iter().map(text)).collect()
}

/// Returns all that keeps a pod without a node, pool by pool.
fn message(
    cluster: &Cluster,
    unplaceable: &Unplaceable,
    overheads: &BTreeMap<String, ResourceMap>,
    pools: &[NodeTemplate],
) -> String {
    if let Some(invalid) = &unplaceable.invalid {
        return invalid.to_string();
    }
    let of_pool = |refusal: &PoolRefusal| {
        let overhead = overheads.get(&refusal.pool).map(resource_list);
        of_pool(
            cluster,
            refusal,
            pools.iter().find(|own| own.pool == refusal.pool),
            &json!(overhead.unwrap_or_default()).to_string(),
        )
    };
    let reasons: Vec<_> = unplaceable.pools.iter().map(of_pool).collect();
    if reasons.is_empty() {
        "no nodepools found".to_owned()
    } else {
        reasons.join("; ")
    }
}

fn of_pool(
    cluster: &Cluster,
    refusal: &PoolRefusal,
    template: Option<&NodeTemplate>,
    overhead: &str,
) -> String {
    let pool = &refusal.pool;
    let why = match &refusal.reason {
        // These three are returned at once: upstream's texts for them have no prefix with the pool
        // and its overhead.
        PoolReason::LimitReached { resource, .. } if resource == "nodes" => {
            return format!("node limits have been exhausted for nodepool (NodePool={pool})");
        }
        PoolReason::LimitReached { .. } => {
            return format!(
                "all available instance types exceed limits for nodepool (NodePool={pool})"
            );
        }
        PoolReason::NoInstanceTypes => {
            "nodepool requirements filtered out all available instance types".to_owned()
        }
        PoolReason::TooLarge { .. } => "no instance type has enough resources".to_owned(),
        PoolReason::NoOffering => "no instance type has the required offering".to_owned(),
        PoolReason::ReservationHeld => {
            return "one or more instance types with compatible reserved offerings are available, but could not be reserved"
                .to_owned();
        }
        reason @ PoolReason::MoreCombinations { .. } => cluster.pool_reason_text(reason),
        PoolReason::MinValues { key, .. } => {
            format!("minValues requirement is not met for label(s) (label(s)=[{key}])")
        }
        PoolReason::Incompatible { reason, .. } | PoolReason::Topology { reason, .. } => {
            of_reason(cluster, *reason, template)
        }
    };
    format!("incompatible with nodepool {pool:?}, daemonset overhead={overhead}, {why}")
}

fn of_reason(cluster: &Cluster, reason: Reason, pool: Option<&NodeTemplate>) -> String {
    match reason {
        Reason::UntoleratedTaint { key, value, effect } => {
            let effect = effect.as_str();
            // Kubernetes writes a taint without a value as `key:effect`, without the equals sign.
            let (key, value) = (cluster.text(key), cluster.text(value));
            match value {
                "" => format!("did not tolerate taint (taint={key}:{effect})"),
                value => format!("did not tolerate taint (taint={key}={value}:{effect})"),
            }
        }
        Reason::OperatingSystem { wanted, found } => mismatch(
            "kubernetes.io/os",
            cluster.text(wanted),
            found.map(|found| cluster.text(found)),
            pool,
        ),
        Reason::NodeAffinity {
            mismatch: Some(LabelMismatch { key, wanted, found }),
        } => mismatch(
            cluster.text(key),
            cluster.text(wanted),
            found.map(|found| cluster.text(found)),
            pool,
        ),
        other => cluster.reason_detail(other),
    }
}

/// Tells a label that differs. `found` is its value on some node of the pool.
fn mismatch(key: &str, wanted: &str, found: Option<&str>, pool: Option<&NodeTemplate>) -> String {
    match found {
        Some(found) => {
            let has = pool.and_then(|pool| allowed(pool, key));
            let has = has.unwrap_or_else(|| format!("In [{found}]"));
            format!("incompatible requirements, key {key}, {key} In [{wanted}] not in {key} {has}")
        }
        None => format!("incompatible requirements, label {key:?} does not have known values"),
    }
}

/// Returns what a pool's one requirement on a label allows, as Karpenter writes it: the values sorted, and no more than five of them. `None`
/// if no requirement or several are on the label.
fn allowed(pool: &NodeTemplate, key: &str) -> Option<String> {
    const MOST: usize = 5;
    let mut all = pool.requirements.iter().filter(|own| own.key == key);
    let (own, None) = (all.next()?, all.next()) else {
        return None;
    };
    let operator = match own.operator {
        Operator::In => "In",
        Operator::NotIn => "NotIn",
        _ => return None,
    };
    let values: BTreeSet<&str> = own.values.iter().map(String::as_str).collect();
    let mut shown: Vec<&str> = values.iter().copied().take(MOST).collect();
    let others = format!("and {} others", values.len() - shown.len());
    if values.len() > MOST {
        shown.push(&others);
    }
    Some(format!("{operator} [{}]", shown.join(" ")))
}

#[cfg(test)]
mod tests {
    use mullion_engine::{Options, provision::Requirement};

    use super::*;

    fn message_of(reason: PoolReason) -> String {
        let unplaceable = Unplaceable {
            pod: "d/p".into(),
            invalid: None,
            pools: [PoolRefusal {
                pool: "windows2022".into(),
                reason,
            }]
            .into(),
        };
        let overhead: ResourceMap = [
            ("pods".to_owned(), "2".parse().expect("a quantity")),
            ("cpu".to_owned(), "150m".parse().expect("a quantity")),
        ]
        .into();
        let overheads = BTreeMap::from([("windows2022".to_owned(), overhead)]);
        message(
            &Cluster::new(Options::default()),
            &unplaceable,
            &overheads,
            &[],
        )
    }

    #[test]
    fn a_limit_is_told_in_upstreams_words() {
        let reached = |resource: &str| {
            message_of(PoolReason::LimitReached {
                resource: resource.into(),
                remaining: "1".parse().expect("a quantity"),
                others: Vec::new(),
            })
        };
        assert_eq!(
            reached("cpu"),
            "all available instance types exceed limits for nodepool (NodePool=windows2022)"
        );
        assert_eq!(
            reached("nodes"),
            "node limits have been exhausted for nodepool (NodePool=windows2022)"
        );
    }

    #[test]
    fn a_pool_that_does_not_fit_is_named_with_what_its_daemons_take() {
        assert_eq!(
            message_of(PoolReason::TooLarge {
                resource: "cpu".into()
            }),
            "incompatible with nodepool \"windows2022\", daemonset overhead={\"cpu\":\"150m\",\"pods\":\"2\"}, \
             no instance type has enough resources"
        );
    }

    #[test]
    fn a_pod_that_accepts_more_labels_than_are_tried_is_told_how_many_are() {
        assert_eq!(
            message_of(PoolReason::MoreCombinations { tried: 1024 }),
            "incompatible with nodepool \"windows2022\", daemonset overhead={\"cpu\":\"150m\",\"pods\":\"2\"}, \
             no node with one of the first 1024 combinations of labels that the pod accepts has a place for it, and no more are tried"
        );
    }

    #[test]
    fn a_label_that_differs_is_told_as_requirements() {
        assert_eq!(
            mismatch("kubernetes.io/os", "linux", Some("windows"), None),
            "incompatible requirements, key kubernetes.io/os, kubernetes.io/os In [linux] not in kubernetes.io/os In \
             [windows]"
        );
        assert_eq!(
            mismatch("example.com/team", "a", None, None),
            "incompatible requirements, label \"example.com/team\" does not have known values"
        );
    }

    #[test]
    fn a_label_that_the_pool_restricts_is_told_with_all_that_the_pool_allows() {
        let pool = |operator: Operator, values: &[&str]| NodeTemplate {
            requirements: vec![Requirement {
                key: "zone".to_owned(),
                operator,
                values: values.iter().map(|own| (*own).to_owned()).collect(),
                ..Requirement::default()
            }],
            ..NodeTemplate::default()
        };
        let said = |pool: &NodeTemplate| {
            let text = mismatch("zone", "f", Some("a"), Some(pool));
            let (_, said) = text.split_once(" not in zone ").expect("its end");
            said.to_owned()
        };
        assert_eq!(said(&pool(Operator::In, &["b", "a"])), "In [a b]");
        assert_eq!(said(&pool(Operator::NotIn, &["f"])), "NotIn [f]");
        let many = ["g", "f", "e", "d", "c", "b", "a"];
        assert_eq!(
            said(&pool(Operator::In, &many)),
            "In [a b c d e and 2 others]"
        );
        assert_eq!(said(&NodeTemplate::default()), "In [a]");
    }

    #[test]
    fn without_pools_that_is_what_is_said() {
        let unplaceable = Unplaceable {
            pod: "d/p".into(),
            invalid: None,
            pools: Arc::default(),
        };
        let text = message(
            &Cluster::new(Options::default()),
            &unplaceable,
            &BTreeMap::new(),
            &[],
        );
        assert_eq!(text, "no nodepools found");
    }
}
