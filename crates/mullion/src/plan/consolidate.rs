//! Answers `mullion plan --consolidate`: which nodes should be removed, what each move saves and disturbs, and why the other nodes stay.
//! [`text`] prints the answer.

mod text;

use std::collections::BTreeMap;

use jiff::Timestamp;
use mullion_controllers::disruption::consolidation;
use mullion_engine::{
    Unschedulable,
    disrupt::{Consolidation, Move, Moves},
};
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::{
    candidates::{ConsolidationInput, Objects},
    price::dollars,
    question::{self, Question},
    refusals::some_of,
    report::CurrentPrice,
};
use crate::{failure::Failure, why::state::State};

/// Why a node stays that the budgets of its pool hold.
const NO_BUDGET: &str = "the disruption budgets of its NodePool let no more nodes go now";

/// The result of consolidation.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Answer {
    /// The changes of the what-if flags, as sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    what_if: Vec<String>,
    /// The number of nodes in the cluster.
    nodes: usize,
    /// The nodes among them that are being removed already, which no price counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    leaving_nodes: Vec<String>,
    before_usd_per_hour: f64,
    after_usd_per_hour: f64,
    /// A lower bound for the price of the nodes that the pods of all candidates need.
    bound_usd_per_hour: f64,
    /// The moves; all of them can be made together.
    moves: Vec<ConsolidationMove>,
    /// The nodes that stay, grouped by reason.
    stays: Vec<StayingNodes>,
    /// Remarks for the user about CapacityBuffers and faults of the simulated cloud.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    remarks: Vec<String>,
}

/// One move of consolidation: nodes to remove, and where their pods go.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ConsolidationMove {
    nodes: Vec<NodeToRemove>,
    /// The pods that move to existing nodes, by the node's name.
    existing: BTreeMap<String, Vec<String>>,
    /// The nodes to buy before the others are removed.
    replacements: Vec<Replacement>,
    saving_usd_per_hour: f64,
    /// The disruption cost: 1 for each node, plus up to 10 for each pod that moves, by its priority and deletion cost.
    disruption: f64,
    /// The one-time price in US dollars of running old and new nodes together while the new ones boot.
    paid_twice_usd: f64,
}

/// A node to remove.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeToRemove {
    node: String,
    node_pool: String,
    usd_per_hour: f64,
}

/// A node to buy in place of others.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Replacement {
    node_pool: String,
    instance_type: String,
    alternatives: usize,
    zone: String,
    capacity_type: String,
    usd_per_hour: f64,
    pods: Vec<String>,
}

/// Nodes that stay for the same reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct StayingNodes {
    reason: String,
    nodes: Vec<String>,
}

/// Computes what consolidation would do at this moment.
///
/// # Errors
/// An object is malformed or contradicts itself.
pub(super) async fn ask(
    state: &mut State,
    what_if: Vec<String>,
    now: Timestamp,
) -> Result<Answer, Failure> {
    let question = Question::of(state, &[]).await?;
    let hosts = question.hosts_of_chunks(&mut state.cluster);
    let hosts = hosts.map_err(Failure::input)?;
    let objects = Objects::of(state, now)?;
    let ConsolidationInput {
        candidates,
        terms,
        closed,
        stays,
    } = objects.find(&question.pools.markets, &hosts);
    let marked = objects.leaving();
    let goes = |node: &String| marked.contains(node) || question.goes(node);
    let leaving = state
        .nodes()
        .map(|node| &node.name)
        .filter(|node| goes(node));
    let leaving_nodes: Vec<String> = leaving.cloned().collect();
    let staying_nodes = state.nodes().filter(|node| !goes(&node.name));
    let before = CurrentPrice::of(staying_nodes, &question);
    let asked = Consolidation {
        candidates,
        pools: terms,
        reshaped: question.pools.reshaped.clone(),
        leaving: question.pools.leaving.clone(),
        // With the pending pods in it: room that they will take is not offered to moved ones.
        market: question.request,
        closed,
        // As in Karpenter, whose feature gate SpotToSpotConsolidation is off by default.
        spot_to_spot: false,
    };
    let moves = state.cluster.consolidate(&asked).map_err(Failure::input)?;
    let names = state
        .pods
        .iter()
        .map(|pod| (pod.key(), question::name(pod)));
    let names: FxHashMap<String, String> = names.collect();
    let made: Vec<ConsolidationMove> = moves
        .moves
        .iter()
        .map(|made| describe(made, &asked, &names))
        .collect();
    let saving: u64 = moves.moves.iter().map(|made| made.saving_micro_usd).sum();
    Ok(Answer {
        what_if,
        nodes: state.cluster.node_count(),
        leaving_nodes,
        before_usd_per_hour: dollars(before.micro_usd()),
        after_usd_per_hour: dollars(before.micro_usd().saturating_sub(saving)),
        bound_usd_per_hour: dollars(moves.bound_micro_usd),
        moves: made,
        stays: staying(stays, &moves, &names, state),
        remarks: question.pools.remarks,
    })
}

fn describe(
    made: &Move,
    asked: &Consolidation,
    names: &FxHashMap<String, String>,
) -> ConsolidationMove {
    let name = |key: &String| names.get(key).unwrap_or(key).clone();
    let own = |node: &String| asked.candidates.iter().find(|own| own.node == *node);
    let candidates: Vec<_> = made.nodes.iter().filter_map(own).collect();
    let mut existing: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (pod, node) in &made.existing {
        existing.entry(node.clone()).or_default().push(name(pod));
    }
    let mut replacements = Vec::new();
    let mut twice = 0.0;
    for node in &made.replacements {
        let Some((option, others)) = node.options.split_first() else {
            continue;
        };
        let seconds = asked
            .pools
            .get(&node.pool)
            .map_or(0, |terms| terms.boot_seconds);
        let price = dollars(node.price_micro_usd());
        // The old nodes run until the new ones have booted, so both are paid for during that time.
        twice += price * f64::from(seconds) / 3600.0;
        let offering = option.offerings.first();
        replacements.push(Replacement {
            node_pool: node.pool.clone(),
            instance_type: option.name.clone(),
            alternatives: others.len(),
            zone: offering.map_or_else(String::new, |own| own.0.clone()),
            capacity_type: offering.map_or_else(String::new, |own| own.1.clone()),
            usd_per_hour: price,
            pods: node.pods.iter().map(name).collect(),
        });
    }
    let disruption: u64 = candidates.iter().map(|own| own.disruption_milli).sum();
    ConsolidationMove {
        nodes: candidates
            .iter()
            .map(|own| NodeToRemove {
                node: own.node.clone(),
                node_pool: own.pool.clone(),
                usd_per_hour: dollars(own.price_micro_usd),
            })
            .collect(),
        existing,
        replacements,
        saving_usd_per_hour: dollars(made.saving_micro_usd),
        disruption: disruption as f64 / 1000.0,
        paid_twice_usd: (twice * 1e6).round() / 1e6,
    }
}

/// Groups the nodes that stay by reason; the reason with most nodes comes first.
fn staying(
    judged: Vec<(String, String)>,
    moves: &Moves,
    names: &FxHashMap<String, String>,
    state: &State,
) -> Vec<StayingNodes> {
    let by_engine = moves.stays.iter().map(|(node, stays)| {
        let text = |why: &Unschedulable| state.cluster.message(why);
        let why = consolidation::message(stays, text).unwrap_or_else(|| NO_BUDGET.to_owned());
        (node.clone(), with_names(why, names))
    });
    let mut groups: Vec<StayingNodes> = Vec::new();
    for (node, reason) in by_engine.chain(judged) {
        match groups.iter_mut().find(|group| group.reason == reason) {
            Some(group) => group.nodes.push(node),
            None => groups.push(StayingNodes {
                reason,
                nodes: vec![node],
            }),
        }
    }
    groups.iter_mut().for_each(|group| group.nodes.sort());
    groups.sort_by(|a, b| {
        b.nodes
            .len()
            .cmp(&a.nodes.len())
            .then(a.nodes.cmp(&b.nodes))
    });
    groups
}

/// Replaces the keys of pods in a sentence by their names.
fn with_names(why: String, names: &FxHashMap<String, String>) -> String {
    let word = |word: &str| names.get(word).cloned().unwrap_or_else(|| word.to_owned());
    why.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// The outcome of consolidation for a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum NodeOutcome {
    /// The node stays.
    Stays {
        /// The reason why the node stays.
        reason: String,
    },
    /// The node is being removed already.
    Leaves {
        /// The number of pods that the node waits for.
        waiting: usize,
        /// When the pods that are still on the node are deleted.
        #[serde(skip_serializing_if = "Option::is_none")]
        deadline: Option<String>,
    },
    /// The node could be removed now.
    Goes {
        /// The move that removes the node.
        made: Box<ConsolidationMove>,
        /// The nodes of the moves before it, without which it may be another one.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        after: Vec<String>,
    },
}

impl Answer {
    /// Returns the outcome of consolidation for the node of a pool.
    pub(super) fn node_outcome(&self, node: &str, pool: Option<&str>) -> NodeOutcome {
        let is_it = |made: &ConsolidationMove| made.nodes.iter().any(|own| own.node == node);
        if let Some(at) = self.moves.iter().position(is_it) {
            let (before, from) = self.moves.split_at(at);
            let before = before.iter().flat_map(|made| &made.nodes);
            return NodeOutcome::Goes {
                made: Box::new(from[0].clone()),
                after: before.map(|own| own.node.clone()).collect(),
            };
        }
        let is_it = |group: &&StayingNodes| group.nodes.iter().any(|own| own == node);
        let why = self.stays.iter().find(is_it).map(|group| &group.reason);
        // Consolidation did not judge the node: pods of another move would come to it, or the time was up.
        let reason = why.cloned().unwrap_or_else(|| {
            "pods of nodes that could go would come to it, so it is not looked at before they have"
                .to_owned()
        });
        let reason = if reason == NO_BUDGET {
            self.with_those_that_go(reason, pool)
        } else {
            reason
        };
        NodeOutcome::Stays { reason }
    }

    /// Adds the nodes of a pool that use up its budgets, if consolidation removes some, to the sentence that says so.
    fn with_those_that_go(&self, reason: String, pool: Option<&str>) -> String {
        let nodes = self.moves.iter().flat_map(|made| &made.nodes);
        let own = nodes.filter(|own| Some(own.node_pool.as_str()) == pool);
        let own: Vec<String> = own.map(|own| own.node.clone()).collect();
        match own.as_slice() {
            [] => reason,
            [one] => format!("{reason}: {one} goes first"),
            several => format!("{reason}: {} go first", some_of(several)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn removal(node: &str, pool: &str) -> ConsolidationMove {
        ConsolidationMove {
            nodes: vec![NodeToRemove {
                node: node.to_owned(),
                node_pool: pool.to_owned(),
                usd_per_hour: 0.1,
            }],
            existing: BTreeMap::new(),
            replacements: Vec::new(),
            saving_usd_per_hour: 0.1,
            disruption: 1.0,
            paid_twice_usd: 0.0,
        }
    }

    #[test]
    fn a_node_is_told_which_nodes_go_before_it_or_use_up_its_budget() {
        let answer = Answer {
            what_if: Vec::new(),
            nodes: 4,
            leaving_nodes: Vec::new(),
            before_usd_per_hour: 0.4,
            after_usd_per_hour: 0.1,
            bound_usd_per_hour: 0.0,
            moves: vec![
                removal("a", "linux"),
                removal("b", "other"),
                removal("c", "linux"),
            ],
            stays: vec![StayingNodes {
                reason: NO_BUDGET.to_owned(),
                nodes: vec!["d".to_owned()],
            }],
            remarks: Vec::new(),
        };
        let after = |node: &str| match answer.node_outcome(node, Some("linux")) {
            NodeOutcome::Goes { after, .. } => after,
            other => panic!("{other:?}"),
        };
        assert!(after("a").is_empty());
        assert_eq!(after("c"), ["a", "b"]);
        let reason = format!("{NO_BUDGET}: a, c go first");
        let stays = answer.node_outcome("d", Some("linux"));
        assert_eq!(stays, NodeOutcome::Stays { reason });
    }
}
