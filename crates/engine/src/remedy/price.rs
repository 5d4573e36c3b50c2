//! Explains the price of pods: what the next best pools would cost, and which demand of the pods costs most. Both are found
//! by planning again without the pools, or without the demand.

use std::fmt;

use super::change::describe_term;
use crate::cluster::Cluster;
use crate::error::ModelError;
use crate::model::{PodTemplate, WhenUnsatisfiable, label};
use crate::provision::PlanRequest;

/// The maximum number of pods planned: only prices are compared, and further pods of the template share machines in the same
/// way.
const MOST_PODS: usize = 300;
/// The effort of each plan: see [`PlanRequest::effort`].
const EFFORT: u64 = 100_000;
/// A demand is reported if dropping it saves at least this many per cent.
const LEAST_PERCENT: u64 = 5;

/// A demand of a pod on its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodDemand {
    /// A topology spread constraint over this key.
    Spread(String),
    /// A label of the node selector.
    Label {
        /// Its key.
        key: String,
        /// Its value.
        value: String,
    },
    /// The required node affinity.
    NodeAffinity,
    /// A required term of affinity to other pods, as text.
    Affinity(String),
    /// A required term of anti-affinity to other pods, as text.
    AntiAffinity(String),
}

impl PodDemand {
    /// Returns the pod's demands, except for operating system and Windows build, which its image decides.
    fn all_of(pod: &PodTemplate) -> Vec<Self> {
        let decided = |key: &str| matches!(key, label::OS | label::WINDOWS_BUILD);
        let mut demands = Vec::new();
        for rule in &pod.topology_spread_constraints {
            if rule.when_unsatisfiable == WhenUnsatisfiable::DoNotSchedule {
                demands.push(PodDemand::Spread(rule.topology_key.clone()));
            }
        }
        for (key, value) in pod.node_selector.iter().filter(|label| !decided(label.0)) {
            let (key, value) = (key.clone(), value.clone());
            demands.push(PodDemand::Label { key, value });
        }
        let nodes = pod.affinity.node_affinity.as_ref();
        if let Some(required) = nodes.and_then(|nodes| nodes.required.as_ref()) {
            let mut terms = required.node_selector_terms.iter();
            // Dropping the whole affinity would drop what the image decides as well, so it is not proposed then.
            let is_decided = terms.any(|term| {
                let mut expressions = term.match_expressions.iter();
                expressions.any(|demand| decided(&demand.key))
            });
            if !is_decided {
                demands.push(PodDemand::NodeAffinity);
            }
        }
        let near = pod.affinity.pod_affinity.iter();
        let near = near.flat_map(|affinity| &affinity.required);
        demands.extend(near.map(|term| PodDemand::Affinity(describe_term(term))));
        let away = pod.affinity.pod_anti_affinity.iter();
        let away = away.flat_map(|affinity| &affinity.required);
        demands.extend(away.map(|term| PodDemand::AntiAffinity(describe_term(term))));
        demands.dedup();
        demands
    }

    /// Removes the demand from a pod.
    fn drop_from(&self, pod: &mut PodTemplate) {
        match self {
            PodDemand::Spread(key) => pod
                .topology_spread_constraints
                .retain(|rule| rule.topology_key != *key),
            PodDemand::Label { key, .. } => drop(pod.node_selector.remove(key)),
            PodDemand::NodeAffinity => {
                if let Some(nodes) = &mut pod.affinity.node_affinity {
                    nodes.required = None;
                }
            }
            PodDemand::Affinity(term) => {
                let near = pod.affinity.pod_affinity.iter_mut();
                near.for_each(|affinity| {
                    affinity.required.retain(|own| describe_term(own) != *term)
                });
            }
            PodDemand::AntiAffinity(term) => {
                let away = pod.affinity.pod_anti_affinity.iter_mut();
                away.for_each(|affinity| {
                    affinity.required.retain(|own| describe_term(own) != *term)
                });
            }
        }
    }
}

impl fmt::Display for PodDemand {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PodDemand::Spread(key) => write!(formatter, "its spread over {key}"),
            PodDemand::Label { key, value } => write!(formatter, "its node selector {key}={value}"),
            PodDemand::NodeAffinity => write!(formatter, "its required node affinity"),
            PodDemand::Affinity(term) => write!(formatter, "its affinity to pods {term}"),
            PodDemand::AntiAffinity(term) => write!(formatter, "its anti-affinity to pods {term}"),
        }
    }
}

/// The price of new nodes for pods of one template, and of the alternatives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prices {
    /// The price in micro-dollars per hour.
    pub price: u64,
    /// The pools that are bought from.
    pub pools: Vec<String>,
    /// The pools that would be used without those of `pools`, and their price in micro-dollars per hour; `None` if pods
    /// would then have no place.
    pub next: Option<(Vec<String>, u64)>,
    /// The demand without which the pods would cost least, and that price in micro-dollars per hour; `None` if no demand
    /// saves enough.
    pub dearest: Option<(PodDemand, u64)>,
}

impl Prices {
    /// Returns how much the price falls without the most expensive demand, in whole per cent.
    pub fn saving_percent(&self) -> Option<u64> {
        let (_, without) = self.dearest.as_ref()?;
        Some((self.price - without) * 100 / self.price)
    }
}

impl Cluster {
    /// Returns the price of the request's pods, which must be of one template, by pool and by demand; `None` if no node is
    /// bought or not all pods have a place. The cluster is unchanged when this returns.
    ///
    /// # Errors
    /// Returns an error if a pool or in-flight node offers a negative amount.
    pub fn prices(&mut self, request: &PlanRequest) -> Result<Option<Prices>, ModelError> {
        let mut request = request.clone();
        request.pods.truncate(MOST_PODS);
        request.effort = Some(EFFORT);
        let Some((pools, price)) = self.bought_from(&request)? else {
            return Ok(None);
        };
        if price == 0 {
            return Ok(None);
        }
        let demands = match request.pods.first() {
            Some(pod) => PodDemand::all_of(&pod.template),
            None => Vec::new(),
        };
        let mut dearest: Option<(PodDemand, u64)> = None;
        // One demand at a time: which combination would be cheapest is not what a user can act on.
        for demand in demands {
            let mut without = request.clone();
            for pod in &mut without.pods {
                demand.drop_from(&mut pod.template);
            }
            let Some((_, cheaper)) = self.bought_from(&without)? else {
                continue;
            };
            let is_told = cheaper * 100 <= price * (100 - LEAST_PERCENT);
            if is_told && dearest.as_ref().is_none_or(|best| cheaper < best.1) {
                dearest = Some((demand, cheaper));
            }
        }
        // Without the pools that were bought from; pools that were not chosen stay as alternatives.
        request
            .templates
            .retain(|template| !pools.contains(&template.pool));
        let next = self.bought_from(&request)?;
        Ok(Some(Prices {
            price,
            pools,
            // If the pods would fit on existing nodes, no pool is the next best.
            next: next.filter(|next| !next.0.is_empty()),
            dearest,
        }))
    }

    /// Makes a plan and returns the pools that are used and their price; `None` if a pod has no place.
    fn bought_from(
        &mut self,
        request: &PlanRequest,
    ) -> Result<Option<(Vec<String>, u64)>, ModelError> {
        let plan = self.plan(request)?;
        if !plan.unplaceable.is_empty() {
            return Ok(None);
        }
        let mut pools: Vec<String> = plan.nodes.iter().map(|node| node.pool.clone()).collect();
        pools.sort_unstable();
        pools.dedup();
        Ok(Some((pools, plan.price_micro_usd())))
    }
}
