//! What would let a pool buy for a pod: for each machine that its class could buy, all that stands between it and the pod, whether that is
//! the pod's to change or the pool's.
//!
//! A machine is a whole way out, so its changes are proposed together; the search asks again with all of them made.

use std::collections::{BTreeMap, BTreeSet};

use super::Change;
use super::near::{is_misspelt, known_values};
use super::propose::{Asked, Size, size};
use crate::class::{NodeTaint, PodClassId};
use crate::cluster::Cluster;
use crate::error::ModelError;
use crate::intern::Symbol;
use crate::labels::LabelSet;
use crate::model::{Operator, Quantity, TaintEffect, label};
use crate::provision::{Machine, NodeTemplate, Requirement, machines, reachable};

/// Proposals of one pool: the smallest.
const MOST: usize = 12;
/// The limit that counts machines.
const NODES: &str = "nodes";
/// Domains of labels that no pool may make up.
const RESERVED: [&str; 4] = [
    "kubernetes.io",
    "k8s.io",
    "karpenter.sh",
    "karpenter.k8s.aws",
];

/// The machines of each pool's class by the pool's name, looked up once for a whole search.
#[derive(Default)]
pub(super) struct Market {
    machines: BTreeMap<String, Vec<Machine>>,
}

impl Market {
    /// The smallest sets of changes of which each lets the pool buy some machine for the pod, as far as the pod alone decides.
    ///
    /// # Errors
    /// An amount of a type or of the DaemonSets is below zero.
    pub(super) fn about_pool(
        &mut self,
        asked: &Asked<'_>,
        class: PodClassId,
        pool: &NodeTemplate,
        cluster: &mut Cluster,
    ) -> Result<Vec<Vec<Change>>, ModelError> {
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
        let keys = asked.demands.all().map(|demand| demand.key.as_str());
        let buyer = Buyer {
            asked,
            class,
            pool,
            decided: pool.decided().collect(),
            gives: keys.filter(|key| can_give(pool, key)).collect(),
            tolerate,
            sold: machines,
            cluster,
        };
        let mut found: BTreeMap<Vec<Change>, (Size, usize)> = BTreeMap::new();
        for (index, machine) in machines.iter().enumerate() {
            if !reached[index] {
                continue;
            }
            for mut changes in buyer.ways(machine) {
                changes.sort();
                let own = (size(&changes), index);
                if own.0.0 > 0 {
                    found.entry(changes).or_insert(own);
                }
            }
        }
        let mut found: Vec<_> = found.into_iter().collect();
        found.sort_by_key(|(_, order)| *order);
        found.truncate(MOST);
        Ok(found.into_iter().map(|(changes, _)| changes).collect())
    }
}

impl Market {
    /// What the pool could allow so that its nodes may be in other places, by the labels that tell places apart.
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

/// What the pod would have to tolerate; `None` where a taint is none to be tolerated.
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

/// Whether a pool may give its nodes a label: one that no machine decides, that it does not have yet, and whose domain is nobody's.
fn can_give(pool: &NodeTemplate, key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let is_of = |own: &str| domain == own || domain.ends_with(&format!(".{own}"));
    !RESERVED.into_iter().any(is_of) && !pool.labels.contains_key(key) && !pool.is_decided(key)
}

/// A pod that asks a pool.
struct Buyer<'a> {
    asked: &'a Asked<'a>,
    class: PodClassId,
    pool: &'a NodeTemplate,
    /// Those of its requirements that machines meet or not.
    decided: Vec<&'a Requirement>,
    /// Labels that the pod asks for and the pool could give its nodes.
    gives: BTreeSet<&'a str>,
    tolerate: Vec<Change>,
    /// What the pool's class sells.
    sold: &'a [Machine],
    cluster: &'a Cluster,
}

impl Buyer<'_> {
    /// The sets of changes that would let the pod have a machine: by what it asks for, or by labels that the pool gives its nodes.
    fn ways(&self, machine: &Machine) -> Vec<Vec<Change>> {
        let names = self.cluster.names();
        let value = |key: &str| {
            let value = machine.labels.value(names.find(key)?)?;
            Some(names.text(value))
        };
        if !self.asked.is_for(value(label::OS)) {
            return Vec::new();
        }
        let labels = &machine.labels;
        let (Some(pool), Some(less)) = (self.about_pool(machine), self.about_room(machine)) else {
            return Vec::new();
        };
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

    /// What of the pod's demands has to change for these labels; where `by_pool`, the pool gives its nodes the labels that it can.
    fn about_labels(&self, labels: &LabelSet, by_pool: bool) -> Option<Vec<Change>> {
        let unmet = self.asked.demands.unmet(labels, self.cluster.names())?;
        let mut changes = Vec::new();
        let mut gives = false;
        for demand in unmet {
            let given = demand.only_value();
            let given = given.filter(|_| by_pool && self.gives.contains(demand.key.as_str()));
            gives |= given.is_some();
            changes.push(match given {
                Some(value) => Change::Label {
                    pool: self.pool.pool.clone(),
                    key: demand.key.clone(),
                    value: value.to_owned(),
                },
                None => self.asked.about_demand(self.cluster, demand, labels)?,
            });
        }
        (gives == by_pool).then_some(changes)
    }

    /// What the pool's requirements and limits have to allow.
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
            // A label that the machine lacks cannot be allowed.
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

    /// Returns the value of a requirement that `right` was misspelt as: one that no machine has.
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

    /// What the pod has to ask less of.
    fn about_room(&self, machine: &Machine) -> Option<Vec<Change>> {
        let requests = &self.cluster.class(self.class).shape.requests.real;
        let lacking = requests
            .iter()
            .filter(|(name, amount)| *name != Symbol::PODS && *amount > machine.room.amount(*name));
        lacking
            .filter(|(name, _)| self.asked.needs(self.cluster.text(*name)))
            .map(|(name, requested)| {
                let resource = self.cluster.text(name);
                let room = machine.room.amount(name);
                self.asked.about_amount(resource, requested, room)
            })
            .collect()
    }
}
