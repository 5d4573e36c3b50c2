//! Explains in detail why a pool cannot buy a node for a pod: which demands no machine of the pool meets, and the nearest
//! values that exist.
//!
//! The plan keeps only the first machine's refusal, which may be about something else than what the pool lacks. Here every
//! demand is compared with every machine, which is too slow for the provisioner but right for a user who asks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::values::{self, noun};
use crate::amounts::{at_least, at_most};
use crate::cluster::Cluster;
use crate::error::ModelError;
use crate::intern::Symbol;
use crate::model::{PodTemplate, label};
use crate::provision::{Machine, NodeTemplate, PoolReason, machines, options};
use crate::reason::Reason;
use crate::remedy::{Demand, Demands, is_misspelt, known_values, nearest};

/// The maximum number of values that are listed.
const SHOWN: usize = 4;

impl Cluster {
    /// Returns Mullion's detailed text for why `pool` cannot buy a node for a pod; `reason` is the plan's.
    ///
    /// # Errors
    /// Returns an error if the pod or the pool has an invalid amount.
    pub fn pool_refusal(
        &mut self,
        pod: &PodTemplate,
        pool: &NodeTemplate,
        reason: &PoolReason,
    ) -> Result<String, ModelError> {
        let words = match reason {
            PoolReason::Incompatible {
                reason: Reason::NodeAffinity { .. },
                ..
            } => self.unmet_by(pod, pool)?,
            PoolReason::TooLarge { .. } => self.most_of(pod, pool)?,
            PoolReason::NoOffering => self.refused_zones(pod, pool)?,
            PoolReason::NoInstanceTypes => {
                let sold = machines(pool, self)?;
                values::unmet_requirements(pool, &sold, self)
            }
            _ => None,
        };
        Ok(words.unwrap_or_else(|| self.pool_reason_text(reason)))
    }

    /// Describes the pod's demands on labels that no machine of the pool meets.
    fn unmet_by(
        &mut self,
        pod: &PodTemplate,
        pool: &NodeTemplate,
    ) -> Result<Option<String>, ModelError> {
        let own = options(pool, self)?;
        let sold = machines(pool, self)?;
        let demands = Demands::of(pod, self.names_mut());
        if own.is_empty() {
            return Ok(None);
        }
        let met = |demand: &Demand, machine: &Machine| demand.is_met(&machine.labels, self.names());
        let never = demands.all();
        let never = never.filter(|demand| !own.iter().any(|machine| met(demand, machine)));
        let never: Vec<&Demand> = never.collect();
        // With several terms a machine may fail each of them by another demand, so no single demand is to blame.
        if demands.has_choice() {
            let words = "no machine meets any of the terms of the pod's required node affinity";
            return Ok(Some(words.to_owned()));
        }
        let market = PoolMachines {
            own: &own,
            sold: &sold,
            cluster: &*self,
        };
        let mut words: Vec<String> = never.iter().map(|demand| market.about(demand)).collect();
        words.dedup();
        // Each demand is met by some machine, so two of them exclude each other; the first such pair is named.
        if words.is_empty() {
            let all: Vec<&Demand> = demands.all().collect();
            let both = |a: &Demand, b: &Demand| {
                let mut own = own.iter();
                own.any(|machine| met(a, machine) && met(b, machine))
            };
            let pairs = all.iter().enumerate();
            let mut pairs = pairs.flat_map(|(at, a)| all[at + 1..].iter().map(move |b| (a, b)));
            let apart = pairs.find(|(a, b)| !both(a, b));
            let of = |demand: &Demand| format!("{}{}", demand.key, demand.text());
            return Ok(apart.map(|(a, b)| format!("no machine has both {} and {}", of(a), of(b))));
        }
        Ok(Some(words.join("; ")))
    }

    /// Names the zones that the pod may go to if none of them sells any type of the pool's class now: then a zone is out rather than the types.
    fn refused_zones(
        &mut self,
        pod: &PodTemplate,
        pool: &NodeTemplate,
    ) -> Result<Option<String>, ModelError> {
        let mut sells: BTreeMap<&str, bool> = BTreeMap::new();
        for offering in pool.for_sale().iter().flat_map(|own| &own.offerings) {
            *sells.entry(&offering.zone).or_default() |= offering.available;
        }
        let zones = self.zones_for(pod, pool)?;
        let sells_some = |zone: &String| sells.get(zone.as_str()) == Some(&true);
        let is_out = !zones.is_empty() && !zones.iter().any(sells_some);
        Ok(is_out.then(|| {
            let zones: Vec<String> = zones.into_iter().collect();
            format!(
                "no type of the pool can be bought in {} now, as while a zone is out",
                zones.join(", ")
            )
        }))
    }

    /// Returns the zones in which the labels of the pool's machines are those that the pod demands, whether or not they can be bought there now.
    ///
    /// # Errors
    /// Returns an error if the pool has an invalid amount.
    pub fn zones_for(
        &mut self,
        pod: &PodTemplate,
        pool: &NodeTemplate,
    ) -> Result<BTreeSet<String>, ModelError> {
        let mut open = pool.clone();
        for kind in &mut open.instance_types {
            let offerings = Arc::make_mut(kind).offerings.iter_mut();
            offerings.for_each(|offering| offering.available = true);
        }
        let all = options(&open, self)?;
        let demands = Demands::of(pod, self.names_mut());
        let mut zones = BTreeSet::new();
        let Some(key) = self.names().find(label::ZONE) else {
            return Ok(zones);
        };
        for machine in &all {
            let unmet = demands.unmet(&machine.labels, self.names());
            if let Some(zone) = machine.labels.value(key)
                && unmet.is_some_and(|unmet| unmet.is_empty())
            {
                zones.insert(self.text(zone).to_owned());
            }
        }
        Ok(zones)
    }

    /// Describes the requests that exceed every suitable machine: each resource with its largest amount, or those that no
    /// machine has together.
    fn most_of(
        &mut self,
        pod: &PodTemplate,
        pool: &NodeTemplate,
    ) -> Result<Option<String>, ModelError> {
        let own = options(pool, self)?;
        let demands = Demands::of(pod, self.names_mut());
        let class = self.pod_class(pod)?;
        let fit = own.iter().filter(|machine| {
            let unmet = demands.unmet(&machine.labels, self.names());
            unmet.is_some_and(|unmet| unmet.is_empty())
        });
        let fit: Vec<&Machine> = fit.collect();
        let requests = &self.class(class).shape.requests.real;
        // The number of pods is left out: a machine that holds none at all is no matter of the pod's request.
        let wanted = requests.iter().filter(|(name, _)| *name != Symbol::PODS);
        let mut never = Vec::new();
        let mut together = Vec::new();
        for (name, requested) in wanted {
            let resource = self.text(name);
            let Some(largest) = fit.iter().max_by_key(|machine| machine.room.amount(name)) else {
                return Ok(None);
            };
            let most = largest.room.amount(name).max(0);
            let needs = at_least(resource, requested);
            // A resource of which every machine has enough is not part of what is missing together.
            if fit
                .iter()
                .any(|machine| requested > machine.room.amount(name))
            {
                together.push(format!("{needs} {resource}"));
            }
            if requested > most {
                never.push(match most {
                    0 => format!("{resource}: no type of the pool has any"),
                    _ => format!(
                        "{resource}: needs {needs}, the most is {} on {} beside its DaemonSets",
                        at_most(resource, most),
                        largest.spec.name
                    ),
                });
            }
        }
        Ok(match (never.is_empty(), together.is_empty()) {
            (false, _) => Some(never.join("; ")),
            (true, false) => Some(format!(
                "no type has {} together beside its DaemonSets",
                together.join(" and ")
            )),
            (true, true) => None,
        })
    }
}

/// The machines that a pool can buy, and all that its node class could buy.
struct PoolMachines<'a> {
    own: &'a [Machine],
    sold: &'a [Machine],
    cluster: &'a Cluster,
}

impl PoolMachines<'_> {
    /// Describes a demand for values that no machine of the pool meets.
    fn about(&self, demand: &Demand) -> String {
        let key = &demand.key;
        let names = self.cluster.names();
        let values = |machines: &'_ [Machine]| -> BTreeSet<String> {
            let found = machines
                .iter()
                .filter_map(|machine| demand.found(&machine.labels, names));
            found.map(str::to_owned).collect()
        };
        let (own, sold) = (values(self.own), values(self.sold));
        let wanted = match (demand.only_value(), demand.wanted()) {
            (Some(only), _) => only.to_owned(),
            (None, [_, ..]) => format!("one of {}", demand.wanted().join(", ")),
            (None, []) => return self.of_range(demand, &own),
        };
        if own.is_empty() {
            return format!("no label {key}, the pod needs {wanted}");
        }
        let first = &demand.wanted()[0];
        let near = nearest(first, sold.iter().map(String::as_str));
        // A pool's name is never a slip of this pool: the pod may mean another one.
        let slip = near
            .filter(|near| near != first && key != label::NODE_POOL && is_misspelt(first, near));
        let exists =
            |value: &String| sold.contains(value) || known_values(key).contains(&value.as_str());
        let noun = match noun(key) {
            Some(noun) if !demand.wanted().iter().any(exists) => noun,
            None if slip.is_some() => "value for this pool",
            _ if own.len() > SHOWN => {
                return format!("{key} is {wanted}: the pool's requirements leave it out");
            }
            _ => return format!("{key} is {}, the pod needs {wanted}", one_of(&own)),
        };
        let words = format!("{key} is {wanted}: no such {noun}");
        match near {
            Some(near) if own.len() > SHOWN || slip.is_some() => format!("{words}; nearest {near}"),
            _ => format!("{words}; there is {}", some_of(&own)),
        }
    }

    /// Describes a demand that does not list values, such as `Gt`.
    fn of_range(&self, demand: &Demand, own: &BTreeSet<String>) -> String {
        let key = &demand.key;
        if own.is_empty() {
            format!("no label {key}, the pod needs {key}{}", demand.text())
        } else {
            format!(
                "{key} is {}, the pod needs {key}{}",
                one_of(own),
                demand.text()
            )
        }
    }
}

/// Formats values as `a`, or `one of a, b`.
fn one_of(values: &BTreeSet<String>) -> String {
    match values.len() {
        1 => some_of(values),
        _ => format!("one of {}", some_of(values)),
    }
}

fn some_of(values: &BTreeSet<String>) -> String {
    let shown: Vec<&str> = values.iter().take(SHOWN).map(String::as_str).collect();
    match values.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
