//! What is said about one pod: its state, the nodes grouped by their reason, the pools, and the smallest change that helps.
//!
//! Data only; [`super::text`] prints it for people and `-o json` as it is.

use mullion_engine::{
    Cluster, ModelError, NodeId, Outcome, Reason, Refusal,
    model::{PodSpec, PodTemplate},
    provision::PlanRequest,
    remedy::{Place, Remedy},
    windows::Builds,
};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use super::{
    answer::{self, Record},
    pools::Pools,
};

/// Remedies shown.
const MOST: usize = 3;

/// Everything about one pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Explanation {
    /// `pod shop/iis`, or what it would be a pod of.
    pub(super) pod: String,
    /// The node it is bound to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bound_to: Option<String>,
    /// Why the scheduler does not look at it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) passed_over: Option<String>,
    /// The name of its scheduler, if the cluster has none of that name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unserved: Option<Unserved>,
    /// The node that is promised to it, since it made room there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) nominated: Option<String>,
    /// It waits until those it evicted there are gone.
    pub(super) waits_for_victims: bool,
    /// Every node's word.
    pub(super) answer: Record,
    /// The whole text of the event FailedScheduling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) event: Option<String>,
    /// Nodes that refuse, by reason; most nodes first.
    pub(super) refusals: Vec<Group>,
    /// The node on its way that it waits for: the name of its claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) awaits: Option<String>,
    /// What a pool would buy for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) buys: Option<Purchase>,
    /// Why each pool buys nothing.
    pub(super) pools: Vec<PoolWord>,
    /// The sets of changes that place it, smallest first.
    pub(super) changes: Vec<ChangeSet>,
    /// What may be missed: names that hold it back by intent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) gates: Vec<String>,
}

/// A scheduler that a pod waits for in vain.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Unserved {
    pub(super) scheduler_name: String,
    /// The names that there are.
    pub(super) known: Vec<String>,
}

/// Nodes that refuse for one reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Group {
    pub(super) plugin: &'static str,
    pub(super) reason: String,
    pub(super) nodes: Vec<String>,
}

/// A machine that would be bought.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Purchase {
    pub(super) pool: String,
    pub(super) instance_type: String,
    pub(super) usd_per_hour: f64,
    /// How many of the waiting pods it is for.
    pub(super) pods: usize,
}

/// One pool's refusal.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct PoolWord {
    pub(super) pool: String,
    pub(super) reason: String,
}

/// Changes that together place the pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ChangeSet {
    pub(super) changes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) buys: Option<Purchase>,
}

impl Explanation {
    /// Whether the same is to be said of another pod that waits.
    pub(super) fn says_as(&self, other: &Explanation) -> bool {
        let waits = |own: &Self| own.bound_to.is_none() && own.passed_over.is_none();
        let waits = waits(self) && waits(other);
        waits
            && (&self.answer, &self.event, &self.refusals)
                == (&other.answer, &other.event, &other.refusals)
            && self.unserved == other.unserved
            && (&self.nominated, self.waits_for_victims)
                == (&other.nominated, other.waits_for_victims)
            && (&self.awaits, &self.buys) == (&other.awaits, &other.buys)
            && (&self.pools, &self.changes, &self.gates)
                == (&other.pools, &other.changes, &other.gates)
    }

    /// Whether the pod has a place, gets one without anybody's help, or needs none any more.
    pub(super) fn is_placed(&self) -> bool {
        let free = self.gates.is_empty();
        self.bound_to.is_some()
            || self.passed_over.is_some()
            || free && (self.answer.best.is_some() || self.buys.is_some() || self.awaits.is_some())
            || self.evicts()
            || free && self.waits_for_victims
    }

    /// Whether it makes room for itself. A pod that is held back does not get to.
    pub(super) fn evicts(&self) -> bool {
        let waits = self.bound_to.is_none() && self.gates.is_empty();
        waits && self.answer.ways_to_evict().next().is_some()
    }
}

/// Explains pods of one state. What is the same for many is worked out once: the plan for all that wait, and the words about a
/// template.
pub(super) struct Explainer<'a> {
    cluster: &'a mut Cluster,
    pools: &'a Pools,
    outlook: Outlook,
    known: FxHashMap<PodTemplate, Known>,
}

/// What one plan has for all pods that wait: they share what is bought for them.
#[derive(Default)]
struct Outlook {
    /// By pod: the node or claim that is on its way.
    awaits: FxHashMap<String, String>,
    buys: FxHashMap<String, Purchase>,
    refusals: FxHashMap<String, Vec<PoolWord>>,
}

/// What is to be said of every pod of a template that waits.
#[derive(Clone)]
struct Known {
    nominated: Option<String>,
    waits_for_victims: bool,
    answer: Record,
    event: Option<String>,
    refusals: Vec<Group>,
    /// None until a pod without a node on its way asks for them.
    changes: Option<Vec<ChangeSet>>,
}

impl<'a> Explainer<'a> {
    /// For these pods, among all that wait.
    ///
    /// # Errors
    /// A pod or a pool names an amount that cannot be true.
    pub(super) fn new<'p>(
        cluster: &'a mut Cluster,
        pools: &'a Pools,
        pods: impl Iterator<Item = &'p PodSpec>,
    ) -> Result<Self, ModelError> {
        let known: FxHashSet<String> = pools.waiting.iter().map(PodSpec::key).collect();
        let planned = pods.filter(|pod| {
            let waits = pod.node_name.is_none() && answer::passed_over(pod).is_none();
            let waits = waits && answer::unserved(cluster, pod).is_none();
            waits && !known.contains(&pod.key())
        });
        let waiting = pools
            .waiting
            .iter()
            .cloned()
            .chain(planned.cloned())
            .collect();
        Ok(Explainer {
            outlook: outlook(cluster, pools, waiting)?,
            cluster,
            pools,
            known: FxHashMap::default(),
        })
    }

    /// Explains a pod. One that is bound is asked about as if it were not there.
    ///
    /// # Errors
    /// The pod names an amount that cannot be true.
    pub(super) fn explain(
        &mut self,
        pod: &PodSpec,
        named: String,
        name_of: impl Fn(&str) -> String,
    ) -> Result<Explanation, ModelError> {
        let mut explanation = Explanation {
            pod: named,
            bound_to: pod.node_name.clone(),
            passed_over: answer::passed_over(pod),
            unserved: None,
            nominated: None,
            waits_for_victims: false,
            answer: Record::default(),
            event: None,
            refusals: Vec::new(),
            awaits: None,
            buys: None,
            pools: Vec::new(),
            changes: Vec::new(),
            gates: Vec::new(),
        };
        if explanation.passed_over.is_some() {
            return Ok(explanation);
        }
        if pod.node_name.is_some() {
            let checkpoint = self.cluster.checkpoint();
            // A pod on a node that is not in the state is not in the cluster either.
            let _ = self.cluster.remove_pod(&pod.key());
            if !pod.uid.is_empty() {
                self.cluster.remove_extended_claims(&pod.uid);
            }
            let said = self.say(pod, name_of);
            self.cluster.rollback(checkpoint);
            let Known {
                answer,
                event,
                refusals,
                ..
            } = said?;
            return Ok(Explanation {
                answer,
                event,
                refusals,
                ..explanation
            });
        }
        if let Some(scheduler_name) = answer::unserved(self.cluster, pod) {
            let known = self.cluster.scheduler_names().map(str::to_owned);
            explanation.unserved = Some(Unserved {
                scheduler_name,
                known: known.collect(),
            });
            return Ok(explanation);
        }
        // What is promised to a pod is its own.
        let shares = pod.nominated_node_name.is_none();
        let known = self.known.get(&pod.template).filter(|_| shares).cloned();
        let mut known = match known {
            Some(known) => known,
            None => self.say(pod, name_of)?,
        };
        let key = pod.key();
        explanation.gates.clone_from(&pod.template.scheduling_gates);
        explanation.answer.clone_from(&known.answer);
        explanation.event.clone_from(&known.event);
        explanation.refusals.clone_from(&known.refusals);
        explanation.nominated.clone_from(&known.nominated);
        explanation.waits_for_victims = known.waits_for_victims;
        let gated = !explanation.gates.is_empty();
        let evicts = explanation.evicts() || known.waits_for_victims && !gated;
        if known.answer.best.is_none() && !evicts {
            explanation.awaits = self.outlook.awaits.get(&key).cloned();
            explanation.buys = self.outlook.buys.get(&key).cloned();
            explanation.pools = self.pool_words(&key);
        }
        // A pod that has a place may still need a change: the scheduler does not know which Windows build an image needs.
        // One that makes room for itself needs none.
        if explanation.awaits.is_none() && !evicts {
            let changes = match known.changes.take() {
                Some(changes) => changes,
                None => self.changes(pod)?,
            };
            known.changes = Some(changes.clone());
            explanation.changes = changes;
        }
        if shares {
            self.known.insert(pod.template.clone(), known);
        }
        Ok(explanation)
    }

    fn say(
        &mut self,
        pod: &PodSpec,
        name_of: impl Fn(&str) -> String,
    ) -> Result<Known, ModelError> {
        let asked = answer::ask(self.cluster, pod, true)?;
        let nodes = asked.answer.nodes.iter();
        let refused = nodes.filter_map(|node| match &node.outcome {
            Outcome::Refused(refusal) => Some((node.node, refusal)),
            Outcome::Fits { .. } => None,
        });
        let promised = asked.promised.map(|node| self.cluster.node_name(node));
        Ok(Known {
            nominated: promised.map(str::to_owned),
            waits_for_victims: asked.waits_for_victims(),
            refusals: grouped(self.cluster, refused),
            answer: answer::record(self.cluster, &asked, name_of),
            event: answer::event(self.cluster, &asked),
            changes: None,
        })
    }

    fn changes(&mut self, pod: &PodSpec) -> Result<Vec<ChangeSet>, ModelError> {
        let pools = &self.pools.templates;
        let remedies = self
            .cluster
            .remedies(pod, pools, &Builds::default(), MOST)?;
        let sets = remedies.into_iter();
        Ok(sets
            .map(|remedy| change_set(self.cluster, remedy))
            .collect())
    }

    fn pool_words(&self, key: &str) -> Vec<PoolWord> {
        let refused = self.outlook.refusals.get(key).cloned();
        let unready = self.pools.unready.iter().map(|(pool, why)| PoolWord {
            pool: pool.clone(),
            reason: why.clone(),
        });
        refused.into_iter().flatten().chain(unready).collect()
    }
}

fn outlook(
    cluster: &mut Cluster,
    pools: &Pools,
    waiting: Vec<PodSpec>,
) -> Result<Outlook, ModelError> {
    let checkpoint = cluster.checkpoint();
    let plan = pools
        .reshaped
        .iter()
        .try_for_each(|node| cluster.set_node(node).map(drop))
        .and_then(|()| {
            cluster.plan(&PlanRequest {
                pods: waiting,
                templates: pools.templates.clone(),
                in_flight: pools.in_flight.clone(),
                ..PlanRequest::default()
            })
        });
    cluster.rollback(checkpoint);
    let plan = plan?;
    let mut outlook = Outlook {
        awaits: plan.existing.into_iter().collect(),
        ..Outlook::default()
    };
    for node in &plan.nodes {
        let Some(cheapest) = node.options.first() else {
            continue;
        };
        for pod in &node.pods {
            let purchase = Purchase {
                pods: node.pods.len(),
                ..purchase(&node.pool, &cheapest.name, cheapest.price_micro_usd)
            };
            outlook.buys.insert(pod.clone(), purchase);
        }
    }
    for refused in plan.unplaceable {
        let words = refused.pools.iter().map(|refusal| PoolWord {
            pool: refusal.pool.clone(),
            reason: cluster.pool_reason_text(&refusal.reason),
        });
        outlook.refusals.insert(refused.pod, words.collect());
    }
    Ok(outlook)
}

fn purchase(pool: &str, instance_type: &str, price_micro_usd: u64) -> Purchase {
    Purchase {
        pool: pool.to_owned(),
        instance_type: instance_type.to_owned(),
        usd_per_hour: price_micro_usd as f64 / 1e6,
        pods: 1,
    }
}

fn change_set(cluster: &Cluster, remedy: Remedy) -> ChangeSet {
    let changes = remedy.changes.iter().map(ToString::to_string).collect();
    let (node, buys) = match remedy.place {
        Place::Node(node) => (Some(cluster.node_name(node).to_owned()), None),
        Place::Bought {
            pool,
            instance_type,
            price_micro_usd,
        } => (None, Some(purchase(&pool, &instance_type, price_micro_usd))),
    };
    ChangeSet {
        changes,
        node,
        buys,
    }
}

/// Nodes by reason, most nodes first. Amounts and skews differ from node to node: there the least that is missing speaks for all.
fn grouped<'a>(
    cluster: &Cluster,
    refused: impl Iterator<Item = (NodeId, &'a Refusal)>,
) -> Vec<Group> {
    struct Open {
        kind: Vec<String>,
        plugin: &'static str,
        missing: i64,
        /// The nodes do not all lack the same.
        differ: bool,
        reason: String,
        nodes: Vec<String>,
    }
    let mut groups: Vec<Open> = Vec::new();
    for (node, refusal) in refused {
        let kind: Vec<_> = refusal
            .reasons()
            .map(|reason| kind(cluster, reason))
            .collect();
        let missing: i64 = refusal.reasons().map(missing).sum();
        let name = cluster.node_name(node).to_owned();
        let words = || {
            let details = refusal
                .reasons()
                .map(|reason| cluster.reason_detail(reason));
            details.collect::<Vec<_>>().join("; ")
        };
        match groups.iter_mut().find(|group| group.kind == kind) {
            Some(group) => {
                group.differ |= missing != group.missing;
                if missing < group.missing {
                    (group.missing, group.reason) = (missing, words());
                    group.nodes.insert(0, name);
                } else {
                    group.nodes.push(name);
                }
            }
            None => groups.push(Open {
                kind,
                plugin: refusal.plugin.name(),
                missing,
                differ: false,
                reason: words(),
                nodes: vec![name],
            }),
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.nodes.len()));
    let closed = groups.into_iter().map(|group| Group {
        plugin: group.plugin,
        reason: match group.differ {
            true => format!("{} (the nearest of them)", group.reason),
            false => group.reason,
        },
        nodes: group.nodes,
    });
    closed.collect()
}

/// What makes two reasons one to a reader.
fn kind(cluster: &Cluster, reason: Reason) -> String {
    match reason {
        Reason::Insufficient { resource, .. } => cluster.text(resource).to_owned(),
        Reason::Spread { key, .. } => format!("spread {}", cluster.text(key)),
        Reason::TooManyPods { .. } => "pods".to_owned(),
        other => cluster.reason_detail(other),
    }
}

/// How far a node is from letting the pod in, to find the nearest of those with one reason.
fn missing(reason: Reason) -> i64 {
    match reason {
        Reason::Insufficient {
            requested, free, ..
        } => requested.saturating_sub(free),
        Reason::Spread { skew, max_skew, .. } => skew.saturating_sub(max_skew),
        _ => 0,
    }
}
