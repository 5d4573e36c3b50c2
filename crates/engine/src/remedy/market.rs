//! Proposes changes that would let a pool buy a node for a pod: for each machine that the pool's class offers, everything
//! that stands in the way, on the pod's side or the pool's.
//!
//! All changes for one machine are proposed together, because only together do they help; the search then tries them.

use std::collections::{BTreeMap, BTreeSet};

use super::Change;
use super::near::{is_misspelt, known_values};
use super::propose::{RefusedPod, Size, size};
use crate::class::{NodeTaint, PodClassId};
use crate::cluster::Cluster;
use crate::error::ModelError;
use crate::intern::Symbol;
use crate::labels::LabelSet;
use crate::model::{Operator, Quantity, TaintEffect, label};
use crate::provision::{Machine, NodeTemplate, Requirement, machines, reachable};

/// The maximum number of proposals per pool; the smallest are kept.
const MOST: usize = 12;
/// The limit on the number of nodes.
const NODES: &str = "nodes";
/// Label domains in which a pool must not add labels of its own.
const RESERVED: [&str; 4] = [
    "kubernetes.io",
    "k8s.io",
    "karpenter.sh",
    "karpenter.k8s.aws",
];

/// The machines of each pool's class by pool name, computed once per search.
#[derive(Default)]
pub(super) struct Market {
    machines: BTreeMap<String, Vec<Machine>>,
}

impl Market {
    /// Returns the smallest sets of changes with which the pool could buy some machine for the pod, ignoring other pods.
    ///
    /// # Errors
    /// Returns an error if a type or DaemonSet has a negative amount.
    pub(super) fn about_pool(
        &mut self,
        refused: &RefusedPod<'_>,
        class: PodClassId,
        pool: &NodeTemplate,
        cluster: &mut Cluster,
    ) -> Result<Vec<Vec<Change>>, ModelError> {
        // Changes of requirements do not change what the class sells, so one list serves the whole search.
        if !self.machines.contains_key(&pool.pool) {
            let found = machines(pool, cluster)?;
            self.machines.insert(pool.pool.clone(), found);
        }
        let machines = &self.machines[&pool.pool];
        let taints: Vec<NodeTaint> = {
            let names = cluster.names_mut();
            let taints = pool.taints.iter();
            taints
                .map(|taint| NodeTaint::intern(taint, names))
                .collect()
        };
        let labels = machines.iter().map(|machine| &machine.labels);
        let reached = reachable(class, labels, cluster);
        let Some(tolerate) = tolerations(&taints, class, cluster) else {
            return Ok(Vec::new());
        };
        let keys = refused.demands.all().map(|demand| demand.key.as_str());
        let buyer = PoolPurchase {
            refused,
            class,
            pool,
            decided: pool.decided().collect(),
            addable_labels: keys.filter(|key| can_add_label(pool, key)).collect(),
            tolerate,
            sold: machines,
            cluster,
        };
        // Many machines need the same changes; the first one, which is the cheapest, stands for them.
        let mut found: BTreeMap<Vec<Change>, (Size, usize)> = BTreeMap::new();
        for (index, machine) in machines.iter().enumerate() {
            if !reached[index] {
                continue;
            }
            for mut changes in buyer.change_sets(machine) {
                changes.sort();
                let own = (size(&changes), index);
                // No change needed: what keeps the pod away are other pods, about which this module says nothing.
                if own.0.0 > 0 {
                    found.entry(changes).or_insert(own);
                }
            }
        }
        let mut found: Vec<_> = found.into_iter().collect();
        // By size, then by the machine's price.
        found.sort_by_key(|(_, order)| *order);
        found.truncate(MOST);
        Ok(found.into_iter().map(|(changes, _)| changes).collect())
    }
}

impl Market {
    /// Returns changes of the pool's requirements that allow further values of topology keys, such as zones.
    pub(super) fn about_places(
        &self,
        pool: &NodeTemplate,
        keys: &[String],
        cluster: &Cluster,
    ) -> Vec<Change> {
        let names = cluster.names();
        let mut values: BTreeSet<(&String, &str)> = BTreeSet::new();
        for machine in self.machines.get(&pool.pool).into_iter().flatten() {
            let of = |key: &String| Some(names.text(machine.labels.value(names.find(key)?)?));
            for key in keys {
                values.extend(of(key).map(|value| (key, value)));
            }
        }
        let wrong = values.into_iter().filter(|(key, value)| {
            let own = pool.requirements.iter().filter(|own| own.key == **key);
            // A pool without a requirement on the key allows all values already.
            own.clone().count() > 0
                && !own
                    .clone()
                    .all(|own| own.is_met_by(Some(&(*value).to_owned())))
        });
        let changes = wrong.map(|(key, value)| Change::Allow {
            pool: pool.pool.clone(),
            key: key.clone(),
            value: value.to_owned(),
            instead_of: None,
        });
        changes.take(MOST).collect()
    }
}

/// Returns the tolerations that the pod would need; `None` if a taint is not meant to be tolerated.
fn tolerations(taints: &[NodeTaint], class: PodClassId, cluster: &Cluster) -> Option<Vec<Change>> {
    let shape = &cluster.class(class).shape;
    let hard = taints
        .iter()
        .filter(|taint| taint.effect != TaintEffect::PreferNoSchedule);
    let wrong = hard.filter(|taint| !shape.tolerates(**taint));
    wrong
        .map(|taint| super::propose::tolerate(cluster, taint.key, taint.value, taint.effect))
        .collect()
}

/// Returns whether a pool may add this label to its nodes: no machine decides it, the pool does not set it yet, and its
/// domain is not reserved.
fn can_add_label(pool: &NodeTemplate, key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let is_of = |own: &str| domain == own || domain.ends_with(&format!(".{own}"));
    !RESERVED.into_iter().any(is_of) && !pool.labels.contains_key(key) && !pool.is_decided(key)
}

/// The purchase of a node by a pool for a refused pod.
struct PoolPurchase<'a> {
    refused: &'a RefusedPod<'a>,
    class: PodClassId,
    pool: &'a NodeTemplate,
    /// The pool's requirements on labels that machines decide.
    decided: Vec<&'a Requirement>,
    /// Labels that the pod demands and the pool could add to its nodes.
    addable_labels: BTreeSet<&'a str>,
    tolerate: Vec<Change>,
    /// The machines of the pool's class.
    sold: &'a [Machine],
    cluster: &'a Cluster,
}

impl PoolPurchase<'_> {
    /// Returns the sets of changes that would let the pod have a machine: by changing its demands, or by labels that the
    /// pool adds.
    fn change_sets(&self, machine: &Machine) -> Vec<Vec<Change>> {
        let names = self.cluster.names();
        let value = |key: &str| {
            let value = machine.labels.value(names.find(key)?)?;
            Some(names.text(value))
        };
        if !self.refused.is_for(value(label::OS)) {
            return Vec::new();
        }
        let labels = &machine.labels;
        let (Some(pool), Some(less)) = (self.about_pool(machine), self.about_room(machine)) else {
            return Vec::new();
        };
        // Once with all demands changed on the pod, once with labels that the pool adds, because who may change which
        // is not known.
        let ways = [
            self.about_labels(labels, false),
            self.about_labels(labels, true),
        ];
        let ways = ways.into_iter().flatten().map(|of_labels| {
            let all = of_labels.iter().chain(&pool).chain(&less);
            let all = all.chain(&self.tolerate);
            all.cloned().collect()
        });
        ways.collect()
    }

    /// Returns the changes that satisfy the pod's demands on labels; if `by_pool`, the pool adds the labels that it can.
    fn about_labels(&self, labels: &LabelSet, by_pool: bool) -> Option<Vec<Change>> {
        let unmet = self.refused.demands.unmet(labels, self.cluster.names())?;
        let mut changes = Vec::new();
        let mut gives = false;
        for demand in unmet {
            let given = demand.only_value();
            let given =
                given.filter(|_| by_pool && self.addable_labels.contains(demand.key.as_str()));
            gives |= given.is_some();
            changes.push(match given {
                Some(value) => Change::Label {
                    pool: self.pool.pool.clone(),
                    key: demand.key.clone(),
                    value: value.to_owned(),
                },
                None => self.refused.about_demand(self.cluster, demand, labels)?,
            });
        }
        // Without a label that the pool can add, both ways are the same and one of them is enough.
        (gives == by_pool).then_some(changes)
    }

    /// Returns the changes of the pool's requirements and limits that allow the machine.
    fn about_pool(&self, machine: &Machine) -> Option<Vec<Change>> {
        let pool = &self.pool.pool;
        let mut changes = Vec::new();
        let names = self.cluster.names();
        for demand in &self.decided {
            let value = names.find(&demand.key);
            let value = value.and_then(|key| machine.labels.value(key));
            let value = value.map(|value| names.text(value).to_owned());
            if demand.is_met_by(value.as_ref()) {
                continue;
            }
            // A requirement on a label that the machine lacks cannot be met by allowing a value.
            let change = Change::Allow {
                pool: pool.clone(),
                key: demand.key.clone(),
                instead_of: self.misspelt(demand, value.as_deref()),
                value: value?,
            };
            if !changes.contains(&change) {
                changes.push(change);
            }
        }
        // Limits count the machine's whole capacity, so they are checked for each machine and not for the pod.
        for (resource, left) in &self.pool.limits_remaining {
            let needed = match resource.as_str() {
                NODES => Quantity::from_units(1),
                _ => {
                    let has = machine.spec.capacity.get(resource).copied();
                    has.unwrap_or_default()
                }
            };
            if needed > *left {
                changes.push(Change::RaiseLimit {
                    pool: pool.clone(),
                    resource: resource.clone(),
                    by: None,
                });
            }
        }
        Some(changes)
    }

    /// Returns the value of a requirement that is probably a misspelling of `right`: one that no machine has.
    fn misspelt(&self, demand: &Requirement, right: Option<&str>) -> Option<String> {
        let names = self.cluster.names();
        let key = names.find(&demand.key)?;
        let is_sold = |value: &str| {
            let mut sold = self.sold.iter();
            sold.any(|machine| {
                let found = machine.labels.value(key);
                found.is_some_and(|found| names.text(found) == value)
            })
        };
        let mut wrong = demand.values.iter().filter(|value| {
            demand.operator == Operator::In
                && is_misspelt(value, right.unwrap_or_default())
                && !known_values(&demand.key).contains(&value.as_str())
        });
        wrong.find(|value| !is_sold(value)).cloned()
    }

    /// Returns the reductions of the pod's requests after which it fits the machine.
    fn about_room(&self, machine: &Machine) -> Option<Vec<Change>> {
        let requests = &self.cluster.class(self.class).shape.requests.real;
        let lacking = requests
            .iter()
            .filter(|(name, amount)| *name != Symbol::PODS && *amount > machine.room.amount(*name));
        lacking
            .filter(|(name, _)| self.refused.needs(self.cluster.text(*name)))
            .map(|(name, requested)| {
                let resource = self.cluster.text(name);
                let room = machine.room.amount(name);
                self.refused.about_amount(resource, requested, room)
            })
            .collect()
    }
}
