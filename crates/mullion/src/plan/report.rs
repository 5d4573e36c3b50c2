//! Turns a plan into data: which nodes are bought, which pods go where, what it costs, which pods get no place and why. [`super::table`]
//! prints it for people.

use std::collections::{BTreeMap, BTreeSet};

use mullion_api::labels;
use mullion_engine::{
    Cluster, ModelError,
    model::{PodSpec, Quantity, ResourceMap},
    provision::{InstanceType, Plan, PlannedNode},
};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use super::{
    price::{a_month, dollars},
    question::Question,
    quotas::RefusedPods,
};
use crate::why::outlook::{self, PoolReason};

/// Everything that is reported about one plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    pub(super) pods: Pods,
    /// The nodes to buy, by pool, the most expensive first.
    pub(super) nodes: Vec<NewNode>,
    /// The pods placed on existing nodes or nodes on their way, by the node's name.
    pub(super) existing: BTreeMap<String, Vec<String>>,
    /// The pods without a place, grouped by reason.
    pub(super) unplaced: Vec<UnplacedPods>,
    /// The pods that quotas refuse, grouped by reason: they are not created, so nothing is bought for them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) refused: Vec<RefusedPods>,
    /// The pools that cannot buy anything at all, each with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) closed_pools: Vec<PoolReason>,
    /// The pools of `--add-pool` that buy nothing in this plan though they could, each with the reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) idle_pools: Vec<PoolReason>,
    pub(super) price: Price,
    /// The nodes that the plan removes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) removed: Vec<String>,
    /// Remarks for the user about how the plan was made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) remarks: Vec<String>,
    /// The number of pools that can buy nodes.
    #[serde(skip)]
    pub(super) open_pools: usize,
    /// The pods that do not exist yet.
    #[serde(skip)]
    pub(super) coming: BTreeSet<String>,
    /// The chunks of CapacityBuffers among the pods.
    #[serde(skip)]
    pub(super) chunks: BTreeSet<String>,
}

/// The numbers of pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Pods {
    pub(super) asked: usize,
    /// How many of the pods asked about are chunks of CapacityBuffers, which are planned for and never created.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) chunks: usize,
    pub(super) on_existing_nodes: usize,
    pub(super) on_new_nodes: usize,
    pub(super) unplaced: usize,
    /// How many of the pods asked about quotas refuse.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) refused: usize,
}

/// A node to buy.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NewNode {
    pub(super) node_pool: String,
    /// The operating system: `linux` or `windows`, the latter with its build.
    pub(super) os: String,
    /// The cheapest instance type that holds the node's pods.
    pub(super) instance_type: String,
    /// The other instance types that hold them, cheapest first.
    pub(super) alternatives: Vec<String>,
    /// The zone of the cheapest offering; the next field has all possible zones.
    pub(super) zone: String,
    pub(super) zones: Vec<String>,
    pub(super) capacity_type: String,
    /// The IDs of the capacity reservations that the node may use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) capacity_reservations: Vec<String>,
    pub(super) usd_per_hour: f64,
    /// For each resource: what the node's pods and DaemonSets request, what is allocatable, and the capacity of the instance type.
    pub(super) resources: BTreeMap<String, Amount>,
    pub(super) pods: Vec<String>,
}

/// How much of a resource a node has, and how much of it is requested.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Amount {
    pub(super) requested: Quantity,
    pub(super) daemon_sets: Quantity,
    pub(super) allocatable: Quantity,
    pub(super) capacity: Quantity,
}

impl Serialize for Amount {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut fields = serializer.serialize_struct("Amount", 4)?;
        fields.serialize_field("requested", &self.requested.to_string())?;
        fields.serialize_field("daemonSets", &self.daemon_sets.to_string())?;
        fields.serialize_field("allocatable", &self.allocatable.to_string())?;
        fields.serialize_field("capacity", &self.capacity.to_string())?;
        fields.end()
    }
}

/// Pods that have no place for the same reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct UnplacedPods {
    pub(super) pods: Vec<String>,
    /// What is invalid about the pods themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) invalid: Option<String>,
    /// For each pool, why it buys no node for them.
    pub(super) pools: Vec<PoolReason>,
}

/// What nodes cost, in US dollars.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Price {
    pub(super) before_usd_per_hour: f64,
    pub(super) bought_usd_per_hour: f64,
    pub(super) removed_usd_per_hour: f64,
    pub(super) after_usd_per_hour: f64,
    pub(super) before_usd_per_month: f64,
    pub(super) after_usd_per_month: f64,
    /// A lower bound for the price of the new nodes, however the pods on them are packed; absent if it is not known, because some of the
    /// plan's pods have no place or share existing nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bound_usd_per_hour: Option<f64>,
    /// How much more the new nodes cost than the bound, in percent of the bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gap_percent: Option<f64>,
    /// Existing nodes whose price is not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) unpriced_nodes: Vec<String>,
    /// The nodes that are being removed already, which no price counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) leaving_nodes: Vec<String>,
}

/// Returns whether a number says nothing, so that it can be left out.
pub(super) fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl Report {
    /// Returns the pods without a place that are no chunks of CapacityBuffers.
    pub(super) fn unplaced_pods(&self) -> impl Iterator<Item = &String> {
        let pods = self.unplaced.iter().flat_map(|group| &group.pods);
        pods.filter(|pod| !self.chunks.contains(*pod))
    }

    /// Returns whether every pod gets a place. Chunks of CapacityBuffers need none.
    pub(super) fn all_placed(&self) -> bool {
        self.refused.is_empty() && self.unplaced_pods().next().is_none()
    }

    /// Returns the number of nodes to buy by pool, instance type and capacity type.
    pub(super) fn kinds(&self) -> BTreeMap<(&str, &str, &str), usize> {
        let mut kinds = BTreeMap::new();
        for node in &self.nodes {
            let NewNode {
                node_pool,
                instance_type,
                capacity_type,
                ..
            } = node;
            let kind = (
                node_pool.as_str(),
                instance_type.as_str(),
                capacity_type.as_str(),
            );
            *kinds.entry(kind).or_default() += 1;
        }
        kinds
    }
}

/// Builds the report of a plan. The cluster must be in the state that the plan was made for.
///
/// # Errors
/// A pool has an impossible amount of a resource, such as a negative one.
pub(super) fn of(
    plan: &Plan,
    question: &Question,
    cluster: &mut Cluster,
    before: &CurrentPrice,
) -> Result<Report, ModelError> {
    let named = |key: &String| question.names.get(key).unwrap_or(key).clone();
    let mut nodes: Vec<NewNode> = plan
        .nodes
        .iter()
        .filter_map(|node| bought(node, question))
        .collect();
    nodes.sort_by(|a, b| {
        let by_pool = a.node_pool.cmp(&b.node_pool);
        let by_price = b.usd_per_hour.total_cmp(&a.usd_per_hour);
        let by_kind = (&a.instance_type, &a.zone).cmp(&(&b.instance_type, &b.zone));
        by_pool
            .then(by_price)
            .then(by_kind)
            .then_with(|| a.pods.cmp(&b.pods))
    });
    let mut existing: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (pod, node) in &plan.existing {
        existing.entry(node.clone()).or_default().push(named(pod));
    }
    let unplaced = without_place(plan, question, cluster)?;
    let price = plan.price_micro_usd();
    let after = before.micro_usd + price - before.removed_micro_usd;
    // A bound of 0 says nothing about the price.
    let bound = plan.bound_micro_usd.filter(|bound| *bound > 0);
    let pools = question.pools.unready.iter();
    let refused: usize = question.refused.iter().map(|group| group.pods.len()).sum();
    Ok(Report {
        pods: Pods {
            asked: question.request.pods.len() + refused,
            chunks: question.chunks.len(),
            on_existing_nodes: plan.existing.len(),
            on_new_nodes: plan.nodes.iter().map(|node| node.pods.len()).sum(),
            unplaced: plan.unplaceable.len(),
            refused,
        },
        nodes,
        existing,
        unplaced,
        refused: question.refused.clone(),
        closed_pools: pools
            .map(|(pool, reason)| PoolReason {
                pool: pool.clone(),
                reason: reason.clone(),
            })
            .collect(),
        idle_pools: Vec::new(),
        price: Price {
            before_usd_per_hour: dollars(before.micro_usd),
            bought_usd_per_hour: dollars(price),
            removed_usd_per_hour: dollars(before.removed_micro_usd),
            after_usd_per_hour: dollars(after),
            before_usd_per_month: a_month(dollars(before.micro_usd)),
            after_usd_per_month: a_month(dollars(after)),
            bound_usd_per_hour: bound.map(dollars),
            gap_percent: bound.map(|bound| gap(price, bound)),
            unpriced_nodes: before.unpriced.clone(),
            leaving_nodes: before.leaving.clone(),
        },
        removed: question.removed.clone(),
        remarks: question
            .remarks
            .iter()
            .cloned()
            .chain(left_out(plan, question))
            .chain(question.pools.subnets.remarks_on(
                plan,
                &question.request.pods,
                question.pools.windows,
            ))
            .collect(),
        open_pools: question.pools.templates.len(),
        coming: question.coming.clone(),
        chunks: question.chunks.clone(),
    })
}

/// Returns a sentence for each group of pools that do not buy a cheaper instance type, though it would hold the pods, because it is too
/// small for Windows.
fn left_out(plan: &Plan, question: &Question) -> Vec<String> {
    let mut by_pool: BTreeMap<&str, String> = BTreeMap::new();
    for node in &plan.nodes {
        if let Some(small) = question.pools.left_out_for(node) {
            by_pool
                .entry(&node.pool)
                .or_insert_with(|| small.to_string());
        }
    }
    let mut by_reason: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (pool, why) in by_pool {
        by_reason.entry(why).or_default().push(pool);
    }
    let sentences = by_reason.into_iter().map(|(why, pools)| {
        let verb = if pools.len() == 1 { "buys" } else { "buy" };
        format!("{} {verb} nothing cheaper: {why}", pools.join(", "))
    });
    sentences.collect()
}

/// Returns by how much a price exceeds a bound, in percent of the bound, rounded to a tenth.
fn gap(price: u64, bound: u64) -> f64 {
    let above = price.saturating_sub(bound) as f64 / bound as f64;
    (above * 1000.0).round() / 10.0
}

/// The price of the existing nodes and of those on their way, without nodes that are already being removed.
#[derive(Clone, Debug, Default)]
pub(super) struct CurrentPrice {
    micro_usd: u64,
    /// The part of the price that belongs to nodes which the plan removes.
    removed_micro_usd: u64,
    unpriced: Vec<String>,
    /// The nodes that are being removed already.
    leaving: Vec<String>,
}

impl CurrentPrice {
    pub(super) fn of<'a>(
        nodes: impl Iterator<Item = &'a mullion_engine::model::NodeSpec>,
        question: &'a Question,
    ) -> Self {
        let mut before = CurrentPrice::default();
        let coming = question.request.in_flight.iter().map(|coming| &coming.node);
        let leaving = &question.pools.leaving;
        for node in nodes.chain(coming) {
            let is_removed = question.removed.contains(&node.name);
            // Nodes that are being removed anyway do not count, but those that only the plan removes do.
            if leaving.contains(&node.name) && !is_removed {
                before.leaving.push(node.name.clone());
                continue;
            }
            match question.price_of(node) {
                Some(price) => {
                    before.micro_usd += price;
                    before.removed_micro_usd += if is_removed { price } else { 0 };
                }
                None => before.unpriced.push(node.name.clone()),
            }
        }
        before
    }

    /// Returns the price in micro-dollars an hour.
    pub(super) fn micro_usd(&self) -> u64 {
        self.micro_usd
    }
}

fn bought(planned: &PlannedNode, question: &Question) -> Option<NewNode> {
    let (cheapest, others) = planned.options.split_first()?;
    let mut templates = question.request.templates.iter();
    let template = templates.find(|template| template.pool == planned.pool)?;
    let mut types = template.instance_types.iter();
    let machine = types.find(|kind| kind.name == cheapest.name)?;
    let (zone, capacity_type, price) = cheapest.offerings.first()?;
    let mut zones: Vec<String> = cheapest
        .offerings
        .iter()
        // A zone at another price is no equal choice: the launch takes the cheapest offering.
        .filter(|(_, kind, own)| kind == capacity_type && own == price)
        .map(|(zone, ..)| zone.clone())
        .collect();
    zones.sort();
    zones.dedup();
    let name = |key: &String| question.names.get(key).unwrap_or(key).clone();
    Some(NewNode {
        node_pool: planned.pool.clone(),
        os: system(machine),
        instance_type: cheapest.name.clone(),
        alternatives: others.iter().map(|option| option.name.clone()).collect(),
        zone: zone.clone(),
        zones,
        capacity_type: capacity_type.clone(),
        capacity_reservations: planned.reservations.to_vec(),
        usd_per_hour: dollars(planned.price_micro_usd()),
        resources: amounts(planned, machine),
        pods: planned.pods.iter().map(name).collect(),
    })
}

fn system(machine: &InstanceType) -> String {
    let label = |key: &str| machine.labels.get(key).map_or("", String::as_str);
    match label(labels::WINDOWS_BUILD) {
        "" => label(labels::OS).to_owned(),
        build => format!("{} {build}", label(labels::OS)),
    }
}

/// Returns the amounts of CPU, memory and pods, and of every other requested resource.
fn amounts(planned: &PlannedNode, machine: &InstanceType) -> BTreeMap<String, Amount> {
    let always = [labels::CPU, labels::MEMORY, labels::PODS];
    let asked = planned
        .requests
        .iter()
        .filter(|(_, amount)| !amount.is_zero());
    let asked = asked.map(|(name, _)| name.as_str());
    let names: BTreeSet<&str> = always.into_iter().chain(asked).collect();
    let of = |map: &ResourceMap, name: &str| map.get(name).copied().unwrap_or_default();
    let amount = |name: &str| Amount {
        requested: of(&planned.requests, name),
        daemon_sets: of(&planned.daemons, name),
        allocatable: of(&machine.allocatable, name),
        capacity: of(&machine.capacity, name),
    };
    let amounts = names
        .into_iter()
        .map(|name| (name.to_owned(), amount(name)));
    amounts.collect()
}

/// Groups the pods without a place by reason; the reason with most pods comes first.
fn without_place(
    plan: &Plan,
    question: &Question,
    cluster: &mut Cluster,
) -> Result<Vec<UnplacedPods>, ModelError> {
    let unplaceable = plan.unplaceable.iter();
    let keys: FxHashSet<&str> = unplaceable.clone().map(|own| own.pod.as_str()).collect();
    let mut specs: FxHashMap<String, &PodSpec> = FxHashMap::default();
    for pod in &question.request.pods {
        let key = pod.key();
        if keys.contains(key.as_str()) {
            specs.insert(key, pod);
        }
    }
    let mut groups: Vec<UnplacedPods> = Vec::new();
    // Pods of equal templates share the refusals of the pools, which are found by their address.
    let mut known: FxHashMap<usize, usize> = FxHashMap::default();
    for own in unplaceable {
        let Some(pod) = specs.get(&own.pod) else {
            continue;
        };
        let name = question.names.get(&own.pod).unwrap_or(&own.pod).clone();
        // Empty lists have no address of their own, so they are compared by content below.
        let shared = (!own.pools.is_empty()).then_some(own.pools.as_ptr() as usize);
        if let Some(group) = shared.and_then(|shared| known.get(&shared)) {
            groups[*group].pods.push(name);
            continue;
        }
        let invalid = own.invalid.as_ref().map(ToString::to_string);
        let pools = outlook::refusal_texts(
            cluster,
            &question.pools,
            &pod.template,
            &own.pools,
            &plan.full,
        )?;
        let like = |group: &UnplacedPods| group.invalid == invalid && group.pools == pools;
        let index = match groups.iter().position(like) {
            Some(index) => index,
            None => {
                groups.push(UnplacedPods {
                    pods: Vec::new(),
                    invalid,
                    pools,
                });
                groups.len() - 1
            }
        };
        known.extend(shared.map(|shared| (shared, index)));
        groups[index].pods.push(name);
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.pods.len()));
    Ok(groups)
}
