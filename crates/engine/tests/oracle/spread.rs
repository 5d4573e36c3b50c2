//! PodTopologySpread: the filter's skew and the score's sums, counted anew for every question.

use std::collections::{BTreeMap, BTreeSet};

use mullion_engine::model::InclusionPolicy;
use mullion_engine::profile::DefaultSpread;

use crate::filters::Refusal;
use crate::objects::{Node, Pod, Requirement, Selector, Spread, World};
use crate::selectors::{is_empty, pod_selects_node, selects, untolerated};

const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";
const PLUGIN: &str = "PodTopologySpread";

/// A constraint with the selector it really has.
struct Rule {
    key: String,
    max_skew: i64,
    min_domains: i64,
    selector: Option<Selector>,
    honor_affinity: bool,
    honor_taints: bool,
}

fn rule(own: &Spread, pod: &Pod) -> Rule {
    let more: Vec<Requirement> = own
        .match_label_keys
        .iter()
        .filter_map(|key| {
            let value = pod.metadata.labels.get(key)?;
            Some(Requirement {
                key: key.clone(),
                operator: "In".into(),
                values: vec![value.clone()],
            })
        })
        .collect();
    let selector = match (own.label_selector.clone(), more.is_empty()) {
        (selector, true) => selector,
        // A selector that is absent is replaced by the labels alone.
        (selector, false) => {
            let mut selector = selector.unwrap_or_default();
            selector.match_expressions.extend(more);
            Some(selector)
        }
    };
    Rule {
        key: own.topology_key.clone(),
        max_skew: own.max_skew,
        min_domains: own.min_domains.unwrap_or(1),
        selector,
        honor_affinity: own.node_affinity_policy.as_deref() != Some("Ignore"),
        honor_taints: own.node_taints_policy.as_deref() == Some("Honor"),
    }
}

/// Those that the pod declares, or else the defaults.
fn rules(world: &World, pod: &Pod, when: &str) -> Vec<Rule> {
    if pod.spec.topology_spread_constraints.is_empty() {
        return default_rules(world, pod, when);
    }
    let own = pod.spec.topology_spread_constraints.iter();
    own.filter(|own| own.when_unsatisfiable == when)
        .map(|own| rule(own, pod))
        .collect()
}

/// What services and the owner of a pod select, for the defaults.
fn default_rules(world: &World, pod: &Pod, when: &str) -> Vec<Rule> {
    let mut merged = Selector::default();
    for service in &world.services {
        if service.metadata.namespace != pod.metadata.namespace {
            continue;
        }
        let Some(labels) = &service.spec.selector else {
            continue;
        };
        if labels
            .iter()
            .all(|(key, value)| pod.metadata.labels.get(key) == Some(value))
        {
            merged.match_labels.extend(labels.clone());
        }
    }
    if let Some(owner) = pod
        .metadata
        .owner_references
        .iter()
        .find(|owner| owner.controller)
    {
        let owning = world.workloads.iter().find(|workload| {
            owner.api_version == "apps/v1"
                && workload.kind == owner.kind
                && workload.metadata.name == owner.name
                && workload.metadata.namespace == pod.metadata.namespace
        });
        if let Some(workload) = owning {
            let own = &workload.spec.selector;
            for (key, value) in &own.match_labels {
                merged.match_expressions.push(Requirement {
                    key: key.clone(),
                    operator: "In".into(),
                    values: vec![value.clone()],
                });
            }
            merged
                .match_expressions
                .extend(own.match_expressions.clone());
        }
    }
    if is_empty(&merged) {
        return Vec::new();
    }
    let default = |key: &str, max_skew| Rule {
        key: key.to_owned(),
        max_skew,
        min_domains: 1,
        selector: Some(merged.clone()),
        honor_affinity: true,
        honor_taints: false,
    };
    match &world.profile.default_spread {
        DefaultSpread::System if when == "ScheduleAnyway" => {
            vec![default(HOSTNAME, 3), default(ZONE, 5)]
        }
        DefaultSpread::System => Vec::new(),
        DefaultSpread::List(list) => list
            .iter()
            .filter(|own| format!("{:?}", own.when_unsatisfiable) == when)
            .map(|own| Rule {
                honor_taints: own.node_taints_policy == Some(InclusionPolicy::Honor),
                ..default(&own.topology_key, i64::from(own.max_skew))
            })
            .collect(),
    }
}

/// Living pods of the pod's namespace on a node that the rule means, less the leaving ones that are tried away. An empty selector
/// counts those only that come and go in thought.
fn matching(world: &World, pod: &Pod, node: &Node, rule: &Rule) -> i64 {
    let means = |other: &&Pod| {
        other.metadata.namespace == pod.metadata.namespace
            && selects(rule.selector.as_ref(), &other.metadata.labels)
    };
    let living = |other: &&Pod| other.metadata.deletion_timestamp.is_none();
    let here = |other: &&Pod| other.spec.node_name == node.metadata.name;
    let tried = |pods: &[Pod], leaving_only: bool| {
        let pods = pods.iter().filter(|own| !(leaving_only && living(own)));
        pods.filter(here).filter(means).count() as i64
    };
    let trial = world.trial.as_ref();
    if rule.selector.as_ref().is_none_or(is_empty) {
        return trial.map_or(0, |own| tried(&own.on, false) - tried(&own.away, false));
    }
    let counted = world.on(node).filter(living).filter(means).count() as i64;
    counted - trial.map_or(0, |own| tried(&own.away, true))
}

fn counts_node(rule: &Rule, pod: &Pod, node: &Node, os: bool) -> bool {
    (!rule.honor_affinity || pod_selects_node(pod, node, os))
        && (!rule.honor_taints || untolerated(pod, node).is_none())
}

fn value<'a>(node: &'a Node, rule: &Rule) -> Option<&'a String> {
    node.metadata.labels.get(&rule.key)
}

pub(crate) fn refusal(world: &World, pod: &Pod, node: &Node, os: bool) -> Option<Refusal> {
    let hard = rules(world, pod, "DoNotSchedule");
    for rule in &hard {
        let Some(place) = value(node, rule) else {
            let reason =
                "node(s) didn't match pod topology spread constraints (missing required label)";
            return Some((PLUGIN, vec![reason.to_owned()]));
        };
        let mut places: BTreeMap<&String, i64> = BTreeMap::new();
        for other in &world.nodes {
            let has_all = hard.iter().all(|rule| value(other, rule).is_some());
            if let Some(place) = value(other, rule)
                && has_all
                && counts_node(rule, pod, other, os)
            {
                *places.entry(place).or_insert(0) += matching(world, pod, other, rule);
            }
        }
        let fewest = if (places.len() as i64) < rule.min_domains {
            0
        } else {
            places.values().copied().min().unwrap_or(0)
        };
        let own = i64::from(selects(rule.selector.as_ref(), &pod.metadata.labels));
        let here = places.get(place).copied().unwrap_or(0);
        if here + own - fewest > rule.max_skew {
            let reason = "node(s) didn't match pod topology spread constraints";
            return Some((PLUGIN, vec![reason.to_owned()]));
        }
    }
    None
}

/// The scores of the feasible nodes, 0..=100; `None` where the pod is not spread.
pub(crate) fn scores(world: &World, pod: &Pod, feasible: &[&Node], os: bool) -> Option<Vec<i64>> {
    // Nodes without a key are left out, but for the system's defaults.
    let declared = !pod.spec.topology_spread_constraints.is_empty()
        || world.profile.default_spread != DefaultSpread::System;
    let soft = rules(world, pod, "ScheduleAnyway");
    if soft.is_empty() {
        return None;
    }
    let has_all = |node: &Node| soft.iter().all(|rule| value(node, rule).is_some());
    let ignored = |node: &Node| declared && !has_all(node);
    let scored: Vec<&Node> = feasible
        .iter()
        .copied()
        .filter(|node| !ignored(node))
        .collect();
    let raw = |node: &Node| {
        let mut sum = 0.0_f64;
        for rule in &soft {
            let Some(place) = value(node, rule) else {
                continue;
            };
            let by_host = rule.key == HOSTNAME;
            let size = if by_host {
                scored.len()
            } else {
                scored
                    .iter()
                    .map(|node| value(node, rule).map_or("", String::as_str))
                    .collect::<BTreeSet<_>>()
                    .len()
            };
            let count = if by_host {
                matching(world, pod, node, rule)
            } else {
                world
                    .nodes
                    .iter()
                    .filter(|other| value(other, rule) == Some(place))
                    .filter(|other| !declared || has_all(other))
                    .filter(|other| counts_node(rule, pod, other, os))
                    .map(|other| matching(world, pod, other, rule))
                    .sum()
            };
            sum += count as f64 * (size as f64 + 2.0).ln() + (rule.max_skew - 1) as f64;
        }
        sum.round() as i64
    };
    let raws: Vec<Option<i64>> = feasible
        .iter()
        .map(|node| (!ignored(node)).then(|| raw(node)))
        .collect();
    let min = raws.iter().flatten().copied().min().unwrap_or(0);
    let max = raws.iter().flatten().copied().max().unwrap_or(0);
    let scores = raws.into_iter().map(|raw| match raw {
        None => 0,
        Some(_) if max == 0 => 100,
        Some(raw) => 100 * (max + min - raw) / max,
    });
    Some(scores.collect())
}
