//! What can be changed about a pod, a node or a pool so that the pod is placed.
//!
//! A change is data: it can be applied to a template and priced against others; [`crate::explain`] says it in words.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::demand;
use super::near::{are_swapped, distance, is_misspelt};
use super::prefixes::{Delegated, PrefixAddresses};
use crate::model::{
    Container, LabelSelector, NodeSelectorRequirement, Operator, PodAffinity, PodAffinityTerm,
    PodTemplate, Quantity, ResourceMap, TaintEffect, Toleration, TolerationOperator,
    WhenUnsatisfiable, label,
};
use crate::provision::NodeTemplate;

/// One change. Changes of the first kinds are to the pod, then comes one to a node; the last are to a pool.
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
    /// Ask for another value of a node label, or for none.
    Select {
        /// Label key.
        key: String,
        /// What is asked for today; empty if nothing is.
        wanted: String,
        /// What to ask for instead; `None` drops the demand.
        instead: Option<String>,
    },
    /// Ask for something else of a node label than today, where that is not one value, or for nothing.
    Demand {
        /// Label key.
        key: String,
        /// What is asked for today, as it is said after the key: ` in (a, b)`, ` > 4`.
        wanted: String,
        /// The value to ask for instead; `None` drops the demand.
        instead: Option<String>,
    },
    /// Drop the required node affinity.
    DropNodeAffinity,
    /// Ask for less of a resource.
    Request {
        /// Which.
        resource: String,
        /// What is asked for today, in milli-cores for `cpu`, else in whole units.
        from: i64,
        /// What to ask for instead.
        to: i64,
    },
    /// Give up a host port.
    DropHostPort {
        /// Which.
        port: i32,
    },
    /// Let a spread constraint be more uneven.
    RaiseSkew {
        /// Its topology key.
        key: String,
        /// The new `maxSkew`.
        to: i64,
    },
    /// Let a spread constraint be a wish (`ScheduleAnyway`).
    SpreadAnyway {
        /// Its topology key.
        key: String,
    },
    /// Drop required affinity to other pods.
    DropAffinity {
        /// Of several terms this one, in words that no other has.
        term: Option<String>,
    },
    /// Drop required anti-affinity to other pods.
    DropAntiAffinity {
        /// Of several terms this one, in words that no other has.
        term: Option<String>,
    },
    /// Remove the gates that hold the pod back.
    Ungate {
        /// Their names.
        gates: Vec<String>,
    },
    /// Let pods onto a node again.
    Uncordon {
        /// Its name.
        node: String,
    },
    /// Let a pool buy more.
    RaiseLimit {
        /// Its name.
        pool: String,
        /// Of which resource.
        resource: String,
        /// By how much at least, in the resource's units; known once a machine is chosen.
        by: Option<Quantity>,
    },
    /// Switch prefix delegation on for Windows nodes.
    DelegatePrefixes {
        /// What it does for the machine that the pod then gets; known once one is chosen.
        on: Option<Delegated>,
    },
    /// Let a pool's requirements allow another value of a label that machines decide.
    Allow {
        /// Its name.
        pool: String,
        /// Label key.
        key: String,
        /// The value.
        value: String,
        /// The wrong value that it most likely was meant to be, which no machine has.
        instead_of: Option<String>,
    },
    /// Let a pool give its nodes a label.
    Label {
        /// Its name.
        pool: String,
        /// Label key.
        key: String,
        /// Label value.
        value: String,
    },
}

impl Change {
    /// How much a user gives up with it, to rank sets of changes: a matter of taste, so kept in one place. What costs
    /// nothing at run time (a toleration, a limit) comes first, what gives up a guarantee last.
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
            // Nodes have to be replaced for it.
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
            // By how much of the request is given up, from next to nothing to all of it.
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

    /// Whether it changes what a pod says of its operating system.
    pub(super) fn is_about_system(&self) -> bool {
        let (Change::Select { key, .. } | Change::Demand { key, .. }) = self else {
            return false;
        };
        matches!(key.as_str(), label::OS | label::WINDOWS_BUILD)
    }

    /// The change as it is told of a pod: a term that is the only one need not be described.
    pub(super) fn told_of(self, pod: &PodTemplate) -> Change {
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

    /// For how many changes it counts: one that gives up most of a request is as much as two.
    pub(super) fn weight(&self) -> usize {
        match self {
            Change::Request { from, to, .. } if *to < from / 2 => 2,
            _ => 1,
        }
    }

    /// What is taken off a request, in the resource's units.
    pub(super) fn given_up(&self) -> i64 {
        match self {
            Change::Request { from, to, .. } => from.saturating_sub(*to),
            _ => 0,
        }
    }

    /// Whether no two of a set speak of the same thing.
    pub(super) fn are_consistent(set: &BTreeSet<Change>) -> bool {
        let mut subjects: Vec<_> = set.iter().map(Change::subject).collect();
        let all = subjects.len();
        subjects.sort_unstable();
        subjects.dedup();
        subjects.len() == all
    }

    /// What a change is about.
    fn subject(&self) -> (u8, &str, &str, i32) {
        let (kind, subject, detail) = match self {
            Change::Tolerate { key, value, .. } => (0, key.as_str(), value.as_str()),
            Change::Select { key, .. } => (1, key.as_str(), ""),
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

    /// Makes a pod's part of the change.
    pub(super) fn apply(&self, pod: &mut PodTemplate) {
        match self {
            Change::Tolerate { key, value, effect } => pod.tolerations.push(Toleration {
                key: key.clone(),
                operator: match value.is_empty() {
                    true => TolerationOperator::Exists,
                    false => TolerationOperator::Equal,
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
                    demand.key == *key && demand::words(demand.operator, &demand.values) == *wanted
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

    /// Makes a pool's part of the change.
    pub(super) fn apply_to_pool(&self, template: &mut NodeTemplate, prefixes: &PrefixAddresses) {
        match self {
            Change::DelegatePrefixes { .. } => prefixes.apply_to_pool(template),
            Change::RaiseLimit { pool, resource, .. } if template.pool == *pool => {
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

    /// The change with what is known once a machine is chosen: how far a limit has to go up.
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

/// What it costs to ask for another value: next to nothing where it was misspelt, and the less the fewer letters differ. Zones, builds and
/// hosts that differ by a letter are other places and systems.
fn instead_cost(key: &str, wanted: &str, instead: &str) -> u32 {
    let is_name = !matches!(key, label::ZONE | label::WINDOWS_BUILD | label::HOSTNAME);
    match is_name && is_misspelt(wanted, instead) {
        true => misspelling_cost(wanted, instead),
        false => 20_000 + 10 * distance(wanted, instead).min(100) as u32,
    }
}

/// What it costs to put a misspelt value right. Letters that were swapped are more likely than a wrong one.
fn misspelling_cost(wrong: &str, right: &str) -> u32 {
    match distance(wrong, right) {
        1 if are_swapped(wrong, right) => 4_000,
        1 => 4_400,
        _ => 9_000,
    }
}

/// The term of those words, or all there are.
fn drop_term(affinity: &mut Option<PodAffinity>, term: &Option<String>) {
    if let Some(affinity) = affinity {
        affinity
            .required
            .retain(|own| term.as_ref().is_some_and(|term| words(own) != *term));
    }
}

/// Which pods a term is about, and in which places.
pub(super) fn words(term: &PodAffinityTerm) -> String {
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
    let homes = match homes.is_empty() {
        true => String::new(),
        false => format!(" in namespaces {}", homes.join(" and ")),
    };
    format!("{which}{homes} by {}", term.topology_key)
}

/// Replaces or drops a demand for one value of a node label, wherever it is made.
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

/// Makes such demands of the required node affinity ask for one value instead, or drops them.
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
    // A term without demands matches nothing, where the user means everything.
    let emptied = |term: &crate::model::NodeSelectorTerm| {
        term.match_expressions.is_empty() && term.match_fields.is_empty()
    };
    if required.node_selector_terms.iter().any(emptied)
        && let Some(affinity) = &mut pod.affinity.node_affinity
    {
        affinity.required = None;
    }
}

/// Takes the difference off the containers that ask for most; init containers never ask for more than the new sum.
fn request_less(pod: &mut PodTemplate, resource: &str, from: i64, to: i64) {
    if let Some(whole) = pod.resources.requests.get_mut(resource) {
        *whole = amount(resource, to);
        return;
    }
    let mut left = from - to;
    let mains = pod.containers.iter_mut();
    let sidecars = pod.init_containers.iter_mut().filter(|c| c.is_sidecar());
    let mut requests: Vec<&mut ResourceMap> = mains
        .chain(sidecars)
        .map(|container: &mut Container| &mut container.resources.requests)
        .collect();
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
    for init in &mut pod.init_containers {
        if let Some(own) = init.resources.requests.get_mut(resource) {
            *own = amount(resource, units(resource, *own).min(to));
        }
    }
}

/// An amount as requests are counted: thousandths of `cpu`, else whole units.
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
