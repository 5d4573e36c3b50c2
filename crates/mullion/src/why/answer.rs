//! Defines the full answer as data, in the form in which kube-scheduler's answers were recorded: for each node a refusal or its scores,
//! then the best nodes, the message, and the victims of preemption.

use std::collections::BTreeMap;

use mullion_engine::{
    Answer, Cluster, Decision, ModelError, NodeId, Outcome, Plugin, Unschedulable,
    model::PodSpec,
    preempt::{Eviction, Preemption},
    profile::DEFAULT_SCHEDULER,
};
use serde::Serialize;

/// The seed for choosing among equally good nodes; the choice affects no refusal.
const SEED: u64 = 0;

/// The answer for one pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Record {
    pub(crate) nodes: Vec<NodeRecord>,
    /// The nodes with the highest total score; `None` if the pod fits on no node.
    pub(super) best: Option<Vec<String>>,
    /// The message of the FailedScheduling event, without the part about preemption.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) preemption: Option<Vec<EvictionRecord>>,
}

/// What the scheduler says about one node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct NodeRecord {
    pub(crate) name: String,
    pub(crate) fits: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) scores: Option<BTreeMap<&'static str, i64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reasons: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) plugin: Option<&'static str>,
    pub(super) total: i64,
}

/// One possible preemption, or the reason why none is possible.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct EvictionRecord {
    pub(super) node: String,
    pub(super) victims: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<String>,
}

/// Returns why kube-scheduler ignores a pod: the pod has finished, or it is being deleted before it was bound to a node.
pub(crate) fn passed_over(pod: &PodSpec) -> Option<String> {
    let name = format!("{}/{}", pod.template.namespace, pod.name);
    if pod.finished {
        return Some(format!("skip finished pod: {name}"));
    }
    let deleted = pod.terminating && pod.node_name.is_none();
    deleted.then(|| format!("skip schedule deleting pod: {name}"))
}

/// Returns the name of the pod's scheduler if no scheduler profile has that name, so that the pod is never scheduled.
pub(crate) fn unserved(cluster: &Cluster, pod: &PodSpec) -> Option<String> {
    let name = match pod.template.scheduler_name.as_str() {
        "" => DEFAULT_SCHEDULER,
        name => name,
    };
    let served = cluster.scheduler_names().any(|own| own == name);
    (!served).then(|| name.to_owned())
}

/// Returns why kube-scheduler never decides about a pod, whatever nodes there are.
pub(super) fn undecided(cluster: &Cluster, pod: &PodSpec) -> Option<String> {
    if let Some(why) = passed_over(pod) {
        return Some(why);
    }
    if let Some(node) = &pod.node_name {
        let name = format!("{}/{}", pod.template.namespace, pod.name);
        return Some(format!("skip assigned pod: {name} is on node {node}"));
    }
    if let Some(name) = unserved(cluster, pod) {
        return Some(format!("profile not found for scheduler name {name:?}"));
    }
    let gated = !pod.template.scheduling_gates.is_empty();
    gated.then(|| "Scheduling is blocked due to non-empty scheduling gates".to_owned())
}

/// The engine's answers about a pod, before they become a [`Record`].
pub(crate) struct EngineAnswers {
    pub(super) answer: Answer,
    pub(super) refused: Option<Unschedulable>,
    /// All equally good preemptions, or why none is possible. `None` if preemption was not asked about, as for cases without priorities.
    evictions: Option<Result<Vec<Eviction>, Preemption>>,
    /// The node on which the pod made room earlier.
    pub(super) promised: Option<NodeId>,
}

impl EngineAnswers {
    /// Returns a node on which the pod can make room by preemption, and the keys of the victims there.
    pub(super) fn room(&self) -> Option<(NodeId, &[String])> {
        let equals = self.evictions.as_ref()?.as_ref().ok()?;
        let first = equals.iter().find(|way| !way.victims.is_empty())?;
        Some((first.node, &first.victims))
    }

    /// Returns whether the pod has already evicted others and waits until they are gone.
    pub(super) fn waits_for_victims(&self) -> bool {
        let evictions = self.evictions.as_ref();
        let why = evictions.and_then(|evictions| evictions.as_ref().err());
        why.is_some_and(Preemption::waits_for_victims)
    }
}

impl Record {
    /// Returns all equally good preemptions; none if preemption does not help.
    pub(super) fn ways_to_evict(&self) -> impl Iterator<Item = &EvictionRecord> {
        let all = self.preemption.iter().flatten();
        all.filter(|eviction| !eviction.victims.is_empty())
    }
}

/// Asks the engine everything about a pod that is not in the cluster.
pub(crate) fn ask(
    cluster: &mut Cluster,
    pod: &PodSpec,
    with_preemption: bool,
) -> Result<EngineAnswers, ModelError> {
    let class = cluster.pod_class(&pod.template)?;
    let key = pod.key();
    // Room that is reserved for the pod must not count against the pod itself.
    let checkpoint = cluster.checkpoint();
    cluster.denominate(&key);
    let mut answer = cluster.answer(class);
    cluster.rollback(checkpoint);
    let promised = promised(cluster, pod);
    if let Some(node) = promised
        && !answer.best.is_empty()
        // kube-scheduler tries the nominated node before all others and takes it if the pod fits, whatever
        // the scores.
        && cluster.schedule_pod(pod, SEED)? == Decision::Node(node)
    {
        answer.best = vec![node];
    }
    let refused = cluster.unschedulable(&answer);
    let evictions = match &refused {
        Some(refused) if with_preemption => {
            // Whether the pod has made room already depends on the nominated node in its status.
            let checkpoint = cluster.checkpoint();
            if let Some(node) = &pod.nominated_node_name {
                cluster.nominate(pod, node)?;
            }
            let evictions = cluster.evictions(class, &key, refused);
            cluster.rollback(checkpoint);
            Some(evictions)
        }
        _ => None,
    };
    Ok(EngineAnswers {
        answer,
        refused,
        evictions,
        promised,
    })
}

/// Returns the pod's nominated node. The scheduler tries it first, and tries no other if the pod fits there.
fn promised(cluster: &Cluster, pod: &PodSpec) -> Option<NodeId> {
    match &pod.nominated_node_name {
        Some(name) => cluster.node(name),
        None => cluster.nominated_node(&pod.key()),
    }
}

/// Returns the whole message of the FailedScheduling event, including the part about preemption.
pub(super) fn event(cluster: &Cluster, asked: &EngineAnswers) -> Option<String> {
    let refused = asked.refused.as_ref()?;
    Some(match &asked.evictions {
        Some(Err(why)) => cluster.message_with_preemption(refused, why),
        _ => cluster.message(refused),
    })
}

/// Turns the engine's answers into a record. `name_of` returns the name of a preemption victim for its key.
pub(crate) fn record(
    cluster: &Cluster,
    asked: &EngineAnswers,
    name_of: impl Fn(&str) -> String,
) -> Record {
    let name = |node| cluster.node_name(node).to_owned();
    let nodes = asked.answer.nodes.iter();
    let best: Vec<_> = asked.answer.best.iter().map(|node| name(*node)).collect();
    let evictions = |evictions: &Result<Vec<Eviction>, Preemption>| match evictions {
        Ok(equals) => equals
            .iter()
            .map(|eviction| {
                let mut victims: Vec<_> = eviction.victims.iter().map(|key| name_of(key)).collect();
                victims.sort();
                EvictionRecord {
                    node: name(eviction.node),
                    victims,
                    message: None,
                }
            })
            .collect(),
        Err(why) => vec![EvictionRecord {
            node: String::new(),
            victims: Vec::new(),
            message: cluster.preemption_message(asked.answer.claims, why),
        }],
    };
    Record {
        nodes: nodes
            .map(|node| node_record(cluster, name(node.node), &node.outcome))
            .collect(),
        best: (!best.is_empty()).then_some(best),
        message: asked
            .refused
            .as_ref()
            .map(|refused| cluster.message(refused)),
        preemption: asked.evictions.as_ref().map(evictions),
    }
}

fn node_record(cluster: &Cluster, name: String, outcome: &Outcome) -> NodeRecord {
    match outcome {
        Outcome::Fits { scores, total } => NodeRecord {
            name,
            fits: true,
            scores: Some(
                scores
                    .iter()
                    .map(|(plugin, score)| (plugin.name(), *score))
                    .collect(),
            ),
            reasons: None,
            plugin: None,
            total: *total,
        },
        Outcome::Refused(refusal) => {
            let mut reasons: Vec<_> = match refusal.plugin {
                // The scheduler excluded the node before any filter ran and gives no reason for that.
                Plugin::PreFilter => vec!["prefilter".to_owned()],
                _ => refusal
                    .reasons()
                    .map(|reason| cluster.reason_text(reason))
                    .collect(),
            };
            reasons.sort();
            NodeRecord {
                name,
                fits: false,
                scores: None,
                reasons: Some(reasons),
                plugin: Some(refusal.plugin.name()),
                total: 0,
            }
        }
    }
}
