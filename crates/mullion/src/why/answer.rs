//! The full answer as data, in the form that recorded answers of kube-scheduler have: per node a refusal or scores, the best nodes, the
//! message, the victims of preemption.

use std::collections::BTreeMap;

use mullion_engine::{
    Answer, Cluster, Decision, ModelError, NodeId, Outcome, Plugin, Unschedulable,
    model::PodSpec,
    preempt::{Eviction, Preemption},
    profile::DEFAULT_SCHEDULER,
};
use serde::Serialize;

/// Picks among equals, which matters to no refusal.
const SEED: u64 = 0;

/// The answer for one pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Record {
    pub(crate) nodes: Vec<NodeRecord>,
    /// The nodes with the highest total, none if the pod fits nowhere.
    pub(super) best: Option<Vec<String>>,
    /// FailedScheduling's text, without the part about preemption.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) preemption: Option<Vec<EvictionRecord>>,
}

/// One node's word.
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

/// A way to make room, or why there is none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct EvictionRecord {
    pub(super) node: String,
    pub(super) victims: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<String>,
}

/// Why kube-scheduler does not look at a pod at all: it has finished, or is being deleted before it had a node.
pub(crate) fn passed_over(pod: &PodSpec) -> Option<String> {
    let name = format!("{}/{}", pod.template.namespace, pod.name);
    if pod.finished {
        return Some(format!("skip finished pod: {name}"));
    }
    let deleted = pod.terminating && pod.node_name.is_none();
    deleted.then(|| format!("skip schedule deleting pod: {name}"))
}

/// Why kube-scheduler does not decide about a pod: no profile has the name of its scheduler, which is this.
pub(crate) fn unserved(cluster: &Cluster, pod: &PodSpec) -> Option<String> {
    let name = match pod.template.scheduler_name.as_str() {
        "" => DEFAULT_SCHEDULER,
        name => name,
    };
    let served = cluster.scheduler_names().any(|own| own == name);
    (!served).then(|| name.to_owned())
}

/// Why kube-scheduler never gets to decide about a pod, whatever else there is.
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

/// What the engine says about a pod, before it is written down.
pub(crate) struct Asked {
    pub(super) answer: Answer,
    pub(super) refused: Option<Unschedulable>,
    /// All evictions that are as good as there is one, or why there is none. Asked for only where priorities are in play.
    evictions: Option<Result<Vec<Eviction>, Preemption>>,
    /// The node that the pod made room on before.
    pub(super) promised: Option<NodeId>,
}

impl Asked {
    /// A node on which the pod makes room for itself, and the keys of those it evicts there.
    pub(super) fn room(&self) -> Option<(NodeId, &[String])> {
        let equals = self.evictions.as_ref()?.as_ref().ok()?;
        let first = equals.iter().find(|way| !way.victims.is_empty())?;
        Some((first.node, &first.victims))
    }

    /// Whether the pod has made room already and waits until those it evicted are gone.
    pub(super) fn waits_for_victims(&self) -> bool {
        let evictions = self.evictions.as_ref();
        let why = evictions.and_then(|evictions| evictions.as_ref().err());
        why.is_some_and(Preemption::waits_for_victims)
    }
}

impl Record {
    /// The ways to make room by evicting others that are as good as there is one; none where eviction does not help.
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
) -> Result<Asked, ModelError> {
    let class = cluster.pod_class(&pod.template)?;
    let key = pod.key();
    // Room that is held for the pod is its own.
    let checkpoint = cluster.checkpoint();
    cluster.denominate(&key);
    let mut answer = cluster.answer(class);
    cluster.rollback(checkpoint);
    let promised = promised(cluster, pod);
    if let Some(node) = promised
        && !answer.best.is_empty()
        && cluster.schedule_pod(pod, SEED)? == Decision::Node(node)
    {
        answer.best = vec![node];
    }
    let refused = cluster.unschedulable(&answer);
    let evictions = match &refused {
        Some(refused) if with_preemption => {
            // What its status says it was promised decides whether it has made room already.
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
    Ok(Asked {
        answer,
        refused,
        evictions,
        promised,
    })
}

/// The node that is promised to a pod: it is asked first, and if it takes the pod, no other is.
fn promised(cluster: &Cluster, pod: &PodSpec) -> Option<NodeId> {
    match &pod.nominated_node_name {
        Some(name) => cluster.node(name),
        None => cluster.nominated_node(&pod.key()),
    }
}

/// The whole text of the event FailedScheduling, preemption included.
pub(super) fn event(cluster: &Cluster, asked: &Asked) -> Option<String> {
    let refused = asked.refused.as_ref()?;
    Some(match &asked.evictions {
        Some(Err(why)) => cluster.message_with_preemption(refused, why),
        _ => cluster.message(refused),
    })
}

/// Writes an answer down. `name_of` gives the name of a victim by its key.
pub(crate) fn record(cluster: &Cluster, asked: &Asked, name_of: impl Fn(&str) -> String) -> Record {
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
                // Left out before any filter ran: upstream has no words for it.
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
