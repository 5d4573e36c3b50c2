//! A plan as data: what is bought, which pods go where, what it costs, who gets no place and why. [`super::table`] prints it for people.

use std::collections::{BTreeMap, BTreeSet};

use mullion_api::labels;
use mullion_engine::{
    Cluster, ModelError,
    model::{PodSpec, Quantity, ResourceMap},
    provision::{InstanceType, Plan, PlannedNode, Unplaceable},
};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use super::{
    price::{a_month, dollars},
    question::Question,
};
use crate::why::outlook::{self, PoolWord};

/// Everything about one plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    pub(super) pods: Pods,
    /// Nodes to buy, pool by pool, the dearest first.
    pub(super) nodes: Vec<Bought>,
    /// Which pods go to a node that is there or on its way.
    pub(super) existing: BTreeMap<String, Vec<String>>,
    /// Pods without a place, those of one reason together.
    pub(super) unplaced: Vec<Refused>,
    /// Pools that buy nothing at all, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) closed_pools: Vec<PoolWord>,
    pub(super) price: Price,
    /// Nodes that the plan takes out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) removed: Vec<String>,
    /// What a reader should know about the making of the plan.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) remarks: Vec<String>,
    /// How many pools can buy.
    #[serde(skip)]
    pub(super) open_pools: usize,
    /// The pods that do not exist yet.
    #[serde(skip)]
    pub(super) coming: BTreeSet<String>,
}

/// How many pods there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Pods {
    pub(super) asked: usize,
    pub(super) on_existing_nodes: usize,
    pub(super) on_new_nodes: usize,
    pub(super) unplaced: usize,
}

/// A node to buy.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Bought {
    pub(super) node_pool: String,
    /// `linux` or `windows`, with the build.
    pub(super) os: String,
    /// The cheapest type that holds its pods.
    pub(super) instance_type: String,
    /// The others that do, cheapest first.
    pub(super) alternatives: Vec<String>,
    /// Where the cheapest offering is, and where else it may be.
    pub(super) zone: String,
    pub(super) zones: Vec<String>,
    pub(super) capacity_type: String,
    /// Ids of the capacity reservations that it may run in.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) capacity_reservations: Vec<String>,
    pub(super) usd_per_hour: f64,
    /// By resource: what its pods and DaemonSets ask for, what they can have, and what the machine has.
    pub(super) resources: BTreeMap<String, Amount>,
    pub(super) pods: Vec<String>,
}

/// How much of a resource a node has and who takes it.
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

/// Pods without a place.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Refused {
    pub(super) pods: Vec<String>,
    /// What is wrong with the pods themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) invalid: Option<String>,
    /// Why each pool buys nothing for them.
    pub(super) pools: Vec<PoolWord>,
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
    /// However the pods on new nodes are packed, nodes for them cost no less than this; absent where it is not known, because pods of the plan
    /// have no place or share nodes that are there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bound_usd_per_hour: Option<f64>,
    /// How much dearer than the bound the new nodes are, in percent of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gap_percent: Option<f64>,
    /// Nodes that are there and of which nobody knows what they cost.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) unpriced_nodes: Vec<String>,
}

impl Report {
    /// The nodes of the plan by what they are, and how many of each there are.
    pub(super) fn kinds(&self) -> BTreeMap<(&str, &str, &str), usize> {
        let mut kinds = BTreeMap::new();
        for node in &self.nodes {
            let Bought {
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

/// The report of a plan. The cluster is as the plan saw it.
///
/// # Errors
/// A pool names an amount that cannot be true.
pub(super) fn of(
    plan: &Plan,
    question: &Question,
    cluster: &mut Cluster,
    before: &Before,
) -> Result<Report, ModelError> {
    let named = |key: &String| question.names.get(key).unwrap_or(key).clone();
    let mut nodes: Vec<Bought> = plan
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
    let unplaced = refused(&plan.unplaceable, question, cluster)?;
    let price = plan.price_micro_usd();
    let after = before.micro_usd + price - before.removed_micro_usd;
    let bound = plan.bound_micro_usd.filter(|bound| *bound > 0);
    let pools = question.pools.unready.iter();
    Ok(Report {
        pods: Pods {
            asked: question.request.pods.len(),
            on_existing_nodes: plan.existing.len(),
            on_new_nodes: plan.nodes.iter().map(|node| node.pods.len()).sum(),
            unplaced: plan.unplaceable.len(),
        },
        nodes,
        existing,
        unplaced,
        closed_pools: pools
            .map(|(pool, reason)| PoolWord {
                pool: pool.clone(),
                reason: reason.clone(),
            })
            .collect(),
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
        },
        removed: question.removed.clone(),
        remarks: question
            .remarks
            .iter()
            .cloned()
            .chain(left_out(plan, question))
            .collect(),
        open_pools: question.pools.templates.len(),
        coming: question.coming.clone(),
    })
}

/// Says which pools leave cheaper types out, which would hold what is bought, because they are too small for Windows.
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

/// Percent of a bound that a price is above it, to a tenth.
fn gap(price: u64, bound: u64) -> f64 {
    let above = price.saturating_sub(bound) as f64 / bound as f64;
    (above * 1000.0).round() / 10.0
}

/// What the nodes cost that are there or on their way, without those that go already.
#[derive(Clone, Debug, Default)]
pub(super) struct Before {
    micro_usd: u64,
    /// What those of them cost that the plan takes out.
    removed_micro_usd: u64,
    unpriced: Vec<String>,
}

impl Before {
    pub(super) fn of<'a>(
        nodes: impl Iterator<Item = &'a mullion_engine::model::NodeSpec>,
        question: &'a Question,
    ) -> Self {
        let mut before = Before::default();
        let coming = question.request.in_flight.iter().map(|coming| &coming.node);
        let leaving = &question.pools.leaving;
        for node in nodes.chain(coming) {
            let is_removed = question.removed.contains(&node.name);
            if leaving.contains(&node.name) && !is_removed {
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

    /// Micro-dollars an hour.
    pub(super) fn micro_usd(&self) -> u64 {
        self.micro_usd
    }
}

fn bought(planned: &PlannedNode, question: &Question) -> Option<Bought> {
    let (cheapest, others) = planned.options.split_first()?;
    let mut templates = question.request.templates.iter();
    let template = templates.find(|template| template.pool == planned.pool)?;
    let mut types = template.instance_types.iter();
    let machine = types.find(|kind| kind.name == cheapest.name)?;
    let (zone, capacity_type, price) = cheapest.offerings.first()?;
    let mut zones: Vec<String> = cheapest
        .offerings
        .iter()
        .filter(|(_, kind, own)| kind == capacity_type && own == price)
        .map(|(zone, ..)| zone.clone())
        .collect();
    zones.sort();
    zones.dedup();
    let name = |key: &String| question.names.get(key).unwrap_or(key).clone();
    Some(Bought {
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

/// Processor, memory and pods, and whatever else is asked for.
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

/// Pods without a place by why, those with most pods first.
fn refused(
    unplaceable: &[Unplaceable],
    question: &Question,
    cluster: &mut Cluster,
) -> Result<Vec<Refused>, ModelError> {
    let keys: FxHashSet<&str> = unplaceable.iter().map(|own| own.pod.as_str()).collect();
    let mut specs: FxHashMap<String, &PodSpec> = FxHashMap::default();
    for pod in &question.request.pods {
        let key = pod.key();
        if keys.contains(key.as_str()) {
            specs.insert(key, pod);
        }
    }
    let mut groups: Vec<Refused> = Vec::new();
    // Pods of equal templates share what each pool says.
    let mut known: FxHashMap<usize, usize> = FxHashMap::default();
    for own in unplaceable {
        let Some(pod) = specs.get(&own.pod) else {
            continue;
        };
        let name = question.names.get(&own.pod).unwrap_or(&own.pod).clone();
        let shared = (!own.pools.is_empty()).then_some(own.pools.as_ptr() as usize);
        if let Some(group) = shared.and_then(|shared| known.get(&shared)) {
            groups[*group].pods.push(name);
            continue;
        }
        let invalid = own.invalid.as_ref().map(ToString::to_string);
        let pools = outlook::words(cluster, &question.pools, &pod.template, &own.pools)?;
        let like = |group: &Refused| group.invalid == invalid && group.pools == pools;
        let index = match groups.iter().position(like) {
            Some(index) => index,
            None => {
                groups.push(Refused {
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
