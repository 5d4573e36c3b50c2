//! Changes of a pod, a node or a pool that could let the pod be placed.
//!
//! A change is data: it can be applied to a template, and its cost compared to others; [`crate::explain`] renders it as
//! text.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::demand;
use super::near::{are_swapped, distance_up_to, is_misspelt};
use super::prefixes::{PrefixAddresses, PrefixGain};
use crate::model::{
    Container, LabelSelector, NodeSelectorRequirement, Operator, PodAffinity, PodAffinityTerm,
    PodTemplate, Quantity, ResourceMap, TaintEffect, Toleration, TolerationOperator,
    WhenUnsatisfiable, label,
};
use crate::provision::NodeTemplate;

/// One change. The first variants change the pod, the next one a node, the last ones a pool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    /// Tolerate a taint.
    Tolerate {
        /// Taint key.
        key: String,
        /// Taint value.
        value: String,
        /// Taint effect.
        effect: TaintEffect,
    },
    /// Request another value of a node label, or drop the demand for it.
    Select {
        /// Label key.
        key: String,
        /// The value demanded today; empty if none is.
        wanted: String,
        /// The value to demand instead; `None` drops the demand.
        instead: Option<String>,
    },
    /// Replace a demand on a node label that is not for one single value, or drop it.
    Demand {
        /// Label key.
        key: String,
        /// The demand as text after the key: ` in (a, b)`, ` > 4`.
        wanted: String,
        /// The value to ask for instead; `None` drops the demand.
        instead: Option<String>,
    },
    /// Drop the required node affinity.
    DropNodeAffinity,
    /// Request less of a resource.
    Request {
        /// The resource.
        resource: String,
        /// The present request, in millicores for `cpu`, in whole units for others.
        from: i64,
        /// The request to make instead.
        to: i64,
    },
    /// Give up a host port.
    DropHostPort {
        /// The port.
        port: i32,
    },
    /// Raise `maxSkew` of a spread constraint.
    RaiseSkew {
        /// Its topology key.
        key: String,
        /// The new `maxSkew`.
        to: i64,
    },
    /// Make a spread constraint soft (`ScheduleAnyway`).
    SpreadAnyway {
        /// Its topology key.
        key: String,
    },
    /// Drop required affinity to other pods.
    DropAffinity {
        /// The term to drop, as text that identifies it; `None` if there is only one.
        term: Option<String>,
    },
    /// Drop required anti-affinity to other pods.
    DropAntiAffinity {
        /// The term to drop, as text that identifies it; `None` if there is only one.
        term: Option<String>,
    },
    /// Remove the pod's scheduling gates.
    Ungate {
        /// The names of the gates.
        gates: Vec<String>,
    },
    /// Let pods onto a node again.
    Uncordon {
        /// The node's name.
        node: String,
    },
    /// Raise a pool's limit.
    RaiseLimit {
        /// The pool's name.
        pool: String,
        /// The limited resource.
        resource: String,
        /// The least amount to raise it by, in the resource's units; `None` until an instance type is chosen.
        by: Option<Quantity>,
    },
    /// Enable prefix delegation for Windows nodes, and replace those that are older.
    DelegatePrefixes {
        /// The effect on the machine that the pod then gets; `None` until one is chosen.
        on: Option<PrefixGain>,
    },
    /// Let a pool's requirements allow another value of a label that depends on the instance type or offering.
    Allow {
        /// The pool's name.
        pool: String,
        /// Label key.
        key: String,
        /// The value.
        value: String,
        /// The value that is probably a misspelling of `value`, because no machine has it.
        instead_of: Option<String>,
    },
    /// Add a label to the nodes of a pool.
    Label {
        /// The pool's name.
        pool: String,
        /// Label key.
        key: String,
        /// Label value.
        value: String,
    },
}

impl Change {
    /// Returns how much a user gives up with the change, to rank sets of changes. The numbers are a judgement, so they are
    /// all here. Changes without an effect at run time (a toleration, a limit) cost least, those that give up a guarantee
    /// most.
    pub(super) fn cost(&self) -> u32 {
        match self {
            Change::Ungate { .. } => 5_000,
            Change::Uncordon { .. } | Change::RaiseLimit { .. } => 8_000,
            Change::Tolerate { .. } => 10_000,
            Change::Allow {
                value,
                instead_of: Some(wrong),
                ..
            } => misspelling_cost(wrong, value),
            Change::Allow { .. } => 12_000,
            // The change helps only after existing nodes have been replaced.
            Change::DelegatePrefixes { .. } => 14_000,
            Change::Select {
                key,
                wanted,
                instead: Some(instead),
            } => instead_cost(key, wanted, instead),
            Change::Demand {
                instead: Some(_), ..
            } => 20_000,
            Change::Label { .. } => 22_000,
            Change::Select { instead: None, .. } | Change::Demand { instead: None, .. } => 25_000,
            // The cost grows with the share of the request that is given up.
            Change::Request { from, to, .. } => {
                let share = (from - to).max(0) as f64 / (*from).max(1) as f64;
                10_000 + (share * 40_000.0) as u32
            }
            Change::RaiseSkew { .. } => 15_000,
            Change::SpreadAnyway { .. } => 20_000,
            Change::DropHostPort { .. } | Change::DropNodeAffinity => 30_000,
            Change::DropAffinity { .. } | Change::DropAntiAffinity { .. } => 35_000,
        }
    }

    /// Returns whether it changes the operating system that the pod demands.
    pub(super) fn is_about_system(&self) -> bool {
        let (Change::Select { key, .. } | Change::Demand { key, .. }) = self else {
            return false;
        };
        matches!(key.as_str(), label::OS | label::WINDOWS_BUILD)
    }

    /// Returns the change for display: a term that is the pod's only one is not described.
    pub(super) fn displayed_for(self, pod: &PodTemplate) -> Change {
        let alone = |affinity: &Option<PodAffinity>| {
            let terms = affinity.as_ref().map_or(0, |own| own.required.len());
            terms == 1
        };
        match self {
            Change::DropAffinity { .. } if alone(&pod.affinity.pod_affinity) => {
                Change::DropAffinity { term: None }
            }
            Change::DropAntiAffinity { .. } if alone(&pod.affinity.pod_anti_affinity) => {
                Change::DropAntiAffinity { term: None }
            }
            other => other,
        }
    }

    /// Returns how many changes it counts as: two if it gives up most of a request, otherwise one.
    pub(super) fn weight(&self) -> usize {
        match self {
            Change::Request { from, to, .. } if *to < from / 2 => 2,
            _ => 1,
        }
    }

    /// Returns how much of a request is given up, in the resource's units.
    pub(super) fn given_up(&self) -> i64 {
        match self {
            Change::Request { from, to, .. } => from.saturating_sub(*to),
            _ => 0,
        }
    }

    /// Returns whether no two changes of a set are about the same subject.
    pub(super) fn are_consistent(set: &BTreeSet<Change>) -> bool {
        let mut subjects: Vec<_> = set.iter().map(Change::subject).collect();
        let all = subjects.len();
        subjects.sort_unstable();
        subjects.dedup();
        subjects.len() == all
    }

    /// Returns the subject of a change, by which contradicting changes are found.
    fn subject(&self) -> (u8, &str, &str, i32) {
        let (kind, subject, detail) = match self {
            Change::Tolerate { key, value, .. } => (0, key.as_str(), value.as_str()),
            Change::Select { key, .. } => (1, key.as_str(), ""),
            // A pod may have several demands on one label (`> 4` and `< 16`), so the demand itself is part of the
            // subject.
            Change::Demand { key, wanted, .. } => (12, key.as_str(), wanted.as_str()),
            Change::DropNodeAffinity => (2, "", ""),
            Change::Request { resource, .. } => (3, resource.as_str(), ""),
            Change::DropHostPort { port } => return (4, "", "", *port),
            Change::RaiseSkew { key, .. } | Change::SpreadAnyway { key } => (5, key.as_str(), ""),
            Change::DropAffinity { term } => (6, term.as_deref().unwrap_or_default(), ""),
            Change::DropAntiAffinity { term } => (7, term.as_deref().unwrap_or_default(), ""),
            Change::Ungate { .. } => (8, "", ""),
            Change::Uncordon { .. } => (9, "", ""),
            Change::RaiseLimit { pool, resource, .. } => (10, pool.as_str(), resource.as_str()),
            Change::DelegatePrefixes { .. } => (13, "", ""),
            Change::Allow { pool, key, .. } | Change::Label { pool, key, .. } => {
                (11, pool.as_str(), key.as_str())
            }
        };
        (kind, subject, detail, 0)
    }

    /// Applies the change to a pod; changes of nodes and pools do nothing here.
    pub fn apply(&self, pod: &mut PodTemplate) {
        match self {
            Change::Tolerate { key, value, effect } => pod.tolerations.push(Toleration {
                key: key.clone(),
                // A taint without a value is matched by `Exists`; `Equal` with an empty value would read as an
                // omission.
                operator: if value.is_empty() {
                    TolerationOperator::Exists
                } else {
                    TolerationOperator::Equal
                },
                value: value.clone(),
                effect: Some(*effect),
                toleration_seconds: None,
            }),
            Change::Select {
                key,
                wanted,
                instead,
            } => select(pod, key, wanted, instead.as_deref()),
            Change::Demand {
                key,
                wanted,
                instead,
            } => {
                let is_it = |demand: &NodeSelectorRequirement| {
                    demand.key == *key
                        && demand::demand_text(demand.operator, &demand.values) == *wanted
                };
                change_terms(pod, is_it, instead.as_deref());
            }
            Change::DropNodeAffinity => {
                if let Some(affinity) = &mut pod.affinity.node_affinity {
                    affinity.required = None;
                }
            }
            Change::Request { resource, from, to } => request_less(pod, resource, *from, *to),
            Change::DropHostPort { port } => {
                let containers = pod.containers.iter_mut().chain(&mut pod.init_containers);
                for container in containers {
                    container.ports.retain(|held| held.host_port != *port);
                }
            }
            Change::RaiseSkew { key, to } => {
                for rule in &mut pod.topology_spread_constraints {
                    if rule.topology_key == *key && i64::from(rule.max_skew) < *to {
                        rule.max_skew = i32::try_from(*to).unwrap_or(i32::MAX);
                    }
                }
            }
            Change::SpreadAnyway { key } => {
                for rule in &mut pod.topology_spread_constraints {
                    if rule.topology_key == *key {
                        // `minDomains` is only valid with `DoNotSchedule`.
                        rule.when_unsatisfiable = WhenUnsatisfiable::ScheduleAnyway;
                        rule.min_domains = None;
                    }
                }
            }
            Change::DropAffinity { term } => drop_term(&mut pod.affinity.pod_affinity, term),
            Change::DropAntiAffinity { term } => {
                drop_term(&mut pod.affinity.pod_anti_affinity, term);
            }
            Change::Ungate { .. } => pod.scheduling_gates.clear(),
            Change::Uncordon { .. }
            | Change::RaiseLimit { .. }
            | Change::DelegatePrefixes { .. }
            | Change::Allow { .. }
            | Change::Label { .. } => {}
        }
    }

    /// Applies the change to a pool; changes of pods and nodes do nothing here.
    pub(super) fn apply_to_pool(&self, template: &mut NodeTemplate, prefixes: &PrefixAddresses) {
        match self {
            Change::DelegatePrefixes { .. } => prefixes.apply_to_pool(template),
            Change::RaiseLimit { pool, resource, .. } if template.pool == *pool => {
                // Removed for the trial: by how much it has to be raised is known once a machine is chosen
                // (`refined`).
                template.limits_remaining.remove(resource);
            }
            Change::Allow {
                pool, key, value, ..
            }
            | Change::Label { pool, key, value }
                if template.pool == *pool =>
            {
                template.allow(key, value);
            }
            _ => {}
        }
    }

    /// Returns the change with details that depend on the chosen machine: by how much a limit must be raised.
    pub(super) fn refined(&self, pools: &[NodeTemplate], bought: &str, machine: &str) -> Change {
        let Change::RaiseLimit { pool, resource, .. } = self else {
            return self.clone();
        };
        let template = pools
            .iter()
            .find(|template| template.pool == *pool && pool == bought);
        let machine =
            template.and_then(|found| found.instance_types.iter().find(|t| t.name == machine));
        let by = match resource.as_str() {
            "nodes" => Some(Quantity::from_units(1)),
            _ => machine.and_then(|machine| machine.capacity.get(resource).copied()),
        };
        Change::RaiseLimit {
            pool: pool.clone(),
            resource: resource.clone(),
            by,
        }
    }
}

impl Change {
    /// Returns the change with what these pools' limits have left already taken off the amount by which a limit must be raised.
    /// A limit that is exceeded has less than nothing left.
    pub(super) fn beyond_what_is_left(self, pools: &[NodeTemplate]) -> Change {
        match self {
            Change::RaiseLimit {
                pool,
                resource,
                by: Some(by),
            } => {
                let template = pools.iter().find(|template| template.pool == pool);
                let left = template.and_then(|found| found.limits_remaining.get(&resource));
                let by = Some(by.saturating_sub(left.copied().unwrap_or_default()));
                Change::RaiseLimit { pool, resource, by }
            }
            other => other,
        }
    }
}

/// Returns the cost of demanding another value: low if the present one looks misspelt, and lower the fewer letters differ.
/// Zones, Windows builds and hosts are never taken for misspellings, because those that differ by a letter are different
/// things.
fn instead_cost(key: &str, wanted: &str, instead: &str) -> u32 {
    let is_name = !matches!(key, label::ZONE | label::WINDOWS_BUILD | label::HOSTNAME);
    if is_name && is_misspelt(wanted, instead) {
        misspelling_cost(wanted, instead)
    } else {
        20_000 + 10 * distance_up_to(wanted, instead, 100) as u32
    }
}

/// Returns the cost of correcting a misspelling. Swapped letters are more likely than a wrong one, so they cost less.
fn misspelling_cost(wrong: &str, right: &str) -> u32 {
    // More than two letters cost what two do.
    match distance_up_to(wrong, right, 3) {
        1 if are_swapped(wrong, right) => 4_000,
        1 => 4_400,
        _ => 9_000,
    }
}

/// Drops the term with this text, or all terms if it is `None`.
fn drop_term(affinity: &mut Option<PodAffinity>, term: &Option<String>) {
    if let Some(affinity) = affinity {
        affinity.required.retain(|own| {
            term.as_ref()
                .is_some_and(|term| describe_term(own) != *term)
        });
    }
}

/// Describes the pods that a term is about, and its topology key.
pub(super) fn describe_term(term: &PodAffinityTerm) -> String {
    let selector = |selector: &LabelSelector| {
        let labels = selector.match_labels.iter();
        let labels = labels.map(|(key, value)| format!("{key}={value}"));
        let demands = selector.match_expressions.iter().map(|demand| {
            let (key, values) = (&demand.key, demand.values.join(", "));
            match demand.operator {
                Operator::In => format!("{key} in ({values})"),
                Operator::NotIn => format!("{key} notin ({values})"),
                Operator::DoesNotExist => format!("!{key}"),
                _ => key.clone(),
            }
        });
        let all: Vec<_> = labels.chain(demands).collect();
        all.join(",")
    };
    let which = match term.label_selector.as_ref().map(selector) {
        None => "no pods".to_owned(),
        Some(all) if all.is_empty() => "all pods".to_owned(),
        Some(which) => format!("pods with {which}"),
    };
    let listed = (!term.namespaces.is_empty()).then(|| term.namespaces.join(", "));
    let labelled = term.namespace_selector.as_ref();
    let labelled = labelled.map(|own| format!("those with {}", selector(own)));
    let homes: Vec<_> = listed.into_iter().chain(labelled).collect();
    let homes = if homes.is_empty() {
        String::new()
    } else {
        format!(" in namespaces {}", homes.join(" and "))
    };
    format!("{which}{homes} by {}", term.topology_key)
}

/// Replaces or drops a demand for one value of a node label, in the node selector and in required node affinity.
fn select(pod: &mut PodTemplate, key: &str, wanted: &str, instead: Option<&str>) {
    if let ("", Some(value)) = (wanted, instead) {
        pod.node_selector.insert(key.to_owned(), value.to_owned());
        return;
    }
    if pod.node_selector.get(key).is_some_and(|own| own == wanted) {
        match instead {
            Some(value) => drop(pod.node_selector.insert(key.to_owned(), value.to_owned())),
            None => drop(pod.node_selector.remove(key)),
        }
    }
    let is_it = |demand: &NodeSelectorRequirement| {
        demand.key == key && demand.operator == Operator::In && demand.values == [wanted]
    };
    change_terms(pod, is_it, instead);
}

/// Makes the matching expressions of required node affinity demand one value instead, or drops them.
fn change_terms(
    pod: &mut PodTemplate,
    is_it: impl Fn(&NodeSelectorRequirement) -> bool,
    instead: Option<&str>,
) {
    let required = pod
        .affinity
        .node_affinity
        .as_mut()
        .and_then(|affinity| affinity.required.as_mut());
    let Some(required) = required else { return };
    for term in &mut required.node_selector_terms {
        match instead {
            Some(value) => {
                let demands = term.match_expressions.iter_mut();
                for demand in demands.filter(|demand| is_it(demand)) {
                    demand.operator = Operator::In;
                    demand.values = vec![value.to_owned()];
                }
            }
            None => term.match_expressions.retain(|demand| !is_it(demand)),
        }
    }
    // A term without expressions matches no node, but here it should match all, so the whole affinity is dropped.
    let emptied = |term: &crate::model::NodeSelectorTerm| {
        term.match_expressions.is_empty() && term.match_fields.is_empty()
    };
    if required.node_selector_terms.iter().any(emptied)
        && let Some(affinity) = &mut pod.affinity.node_affinity
    {
        affinity.required = None;
    }
}

/// Takes the difference off the containers with the largest requests; init containers request at most the new sum.
fn request_less(pod: &mut PodTemplate, resource: &str, from: i64, to: i64) {
    // A pod-level request decides alone, whatever the containers ask for.
    if let Some(whole) = pod.resources.requests.get_mut(resource) {
        *whole = amount(resource, to);
        return;
    }
    let mut left = from - to;
    // Sidecars run beside the main containers, so their requests add up with them.
    let mains = pod.containers.iter_mut();
    let sidecars = pod.init_containers.iter_mut().filter(|c| c.is_sidecar());
    let mut requests: Vec<&mut ResourceMap> = mains
        .chain(sidecars)
        .map(|container: &mut Container| &mut container.resources.requests)
        .collect();
    // The largest first: one container that asks for most is usually the one that asks for too much.
    requests.sort_by_key(|map| Reverse(map.get(resource).copied().unwrap_or_default()));
    for map in requests {
        let Some(own) = map.get_mut(resource) else {
            continue;
        };
        let has = units(resource, *own);
        let taken = left.min(has);
        *own = amount(resource, has - taken);
        left -= taken;
    }
    // An init container runs alone, and the pod's request is the larger of the two, so it has to fit as well.
    for init in &mut pod.init_containers {
        if let Some(own) = init.resources.requests.get_mut(resource) {
            *own = amount(resource, units(resource, *own).min(to));
        }
    }
}

/// Returns an amount in the units of requests: thousandths of `cpu`, whole units of others.
pub(crate) fn units(resource: &str, amount: Quantity) -> i64 {
    match resource {
        "cpu" => amount.milli_value(),
        _ => amount.value(),
    }
}

fn amount(resource: &str, units: i64) -> Quantity {
    match resource {
        "cpu" => Quantity::from_milli(units),
        _ => Quantity::from_units(units),
    }
}
