//! Answers `mullion why node` (why a node stays, or how it could be removed) and `mullion why nodepool` (what a pool buys, or why it buys
//! nothing).

use std::path::PathBuf;

use jiff::Timestamp;
use kube::ResourceExt;
use mullion_api::{karpenter::NodeClaim, labels::UNSCHEDULABLE_TAINT};
use mullion_controllers::provisioner::in_flight::is_in_flight;
use mullion_engine::{
    Cluster,
    model::{NodeSpec, PodSpec, ResourceMap, Taint, TaintEffect},
    provision::NodeTemplate,
};
use serde::Serialize;

use super::{
    candidates::Objects,
    consolidate::{self, NodeOutcome},
    count,
    drain::Drain,
    price::dollars,
    question::{self, Question},
    report::{self, CurrentPrice},
};
use crate::{
    cli::Output,
    failure::Failure,
    out,
    why::{
        outlook::PoolReason,
        page::{Page, Row},
        rules::RuleFlags,
        source,
        state::{Keeps, State},
    },
};

/// The kind of object that is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Node,
    NodePool,
}

impl Kind {
    /// Returns the kind that kubectl knows by this name.
    pub(crate) fn named(word: &str) -> Option<Self> {
        match word {
            "node" | "nodes" | "no" => Some(Kind::Node),
            "nodepool" | "nodepools" => Some(Kind::NodePool),
            _ => None,
        }
    }
}

/// The names of the objects asked about, all of one kind, and where to look for them.
pub(crate) struct StandingQuery {
    pub(crate) kind: Kind,
    pub(crate) names: Vec<String>,
    pub(crate) state: Option<PathBuf>,
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) context: Option<String>,
    pub(crate) rules: RuleFlags,
    pub(crate) output: Output,
}

/// Prints the answer. Returns true if consolidation would remove none of the nodes asked about, or if every pool asked about can buy nodes.
///
/// # Errors
/// The cluster cannot be read, or has no such object.
pub(crate) async fn run(asked: StandingQuery) -> Result<bool, Failure> {
    // Whether a node may go depends on annotations and conditions, which an abridged state does not keep.
    let keeps = Keeps {
        whole: true,
        ..Keeps::default()
    };
    let mut state = match &asked.state {
        Some(path) => {
            let empty = State::new(asked.rules.empty_cluster()?).keeping(keeps);
            source::file(path, empty).await?.state
        }
        None => {
            let (kubeconfig, context) = (asked.kubeconfig.clone(), asked.context.clone());
            source::live(kubeconfig, context, &asked.rules, keeps)
                .await?
                .state
        }
    };
    match asked.kind {
        Kind::Node => nodes(&mut state, &asked).await,
        Kind::NodePool => pools(&mut state, &asked).await,
    }
}

/// The answer about a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeStanding {
    node: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_pool: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instance_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usd_per_hour: Option<f64>,
    /// The number of pods that would need another place.
    pods: usize,
    /// Whether the node is cordoned.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    unschedulable: bool,
    /// The taints that keep pods off the node which do not tolerate them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    taints: Vec<String>,
    #[serde(flatten)]
    outcome: NodeOutcome,
    #[serde(flatten)]
    drain: Drain,
}

async fn nodes(state: &mut State, asked: &StandingQuery) -> Result<bool, Failure> {
    let known: Vec<String> = state.nodes().map(|node| node.name.clone()).collect();
    let names = node_names(&asked.names, &known)?;
    check("node", &names, &known)?;
    let question = Question::of(state, &[]).await?;
    note(&question);
    let now = Timestamp::now();
    let objects = Objects::of(state, now)?;
    let answer = consolidate::ask(state, Vec::new(), now).await?;
    let mut stay = true;
    for (index, name) in names.iter().enumerate() {
        let Some(node) = state.nodes().find(|node| node.name == *name) else {
            continue;
        };
        let label = |key: &str| node.labels.get(key).cloned();
        let on_it = |pod: &&PodSpec| pod.node_name.as_deref() == Some(name) && question::moves(pod);
        let drain = objects.drain(name);
        let pool = label(mullion_api::labels::NODEPOOL);
        let standing = NodeStanding {
            node: name.clone(),
            node_pool: pool.clone(),
            instance_type: label(mullion_api::labels::INSTANCE_TYPE),
            usd_per_hour: question.price_of(node).map(dollars),
            pods: state.pods.iter().filter(on_it).count(),
            unschedulable: node.unschedulable,
            taints: node.taints.iter().filter_map(hard).collect(),
            outcome: if drain.is_leaving {
                NodeOutcome::Leaves {
                    waiting: drain.waiting,
                    deadline: drain.deadline.clone(),
                }
            } else {
                answer.node_outcome(name, pool.as_deref())
            },
            drain,
        };
        stay &= !matches!(standing.outcome, NodeOutcome::Goes { .. });
        print(&standing, asked.output, index, |page| standing.print(page))?;
    }
    Ok(stay)
}

impl NodeStanding {
    fn print(&self, page: &mut Page) {
        let name = &self.node;
        let (bold, end) = (page.colours.bold, page.colours.end);
        match &self.outcome {
            NodeOutcome::Stays { reason } => {
                page.paragraph(&format!("{bold}node {name}{end} stays: {reason}."));
            }
            NodeOutcome::Leaves { .. } => {
                let progress = self.drain.progress();
                page.paragraph(&format!("{bold}node {name}{end} {progress}."));
            }
            NodeOutcome::Goes { made, after } => {
                let first = match after.as_slice() {
                    [] => String::new(),
                    [one] => format!(" after {one}"),
                    several => format!(" after {}", super::refusals::some_of(several)),
                };
                page.paragraph(&format!(
                    "{bold}node {name}{end} could go{first}, by consolidation:"
                ));
                made.print(page);
            }
        }
        let mut facts = Vec::new();
        facts.extend(
            self.node_pool
                .as_ref()
                .map(|pool| format!("NodePool {pool}")),
        );
        facts.extend(self.instance_type.clone());
        facts.extend(self.usd_per_hour.map(|usd| format!("{usd:.3} USD/h")));
        facts.push(format!("{} to move", count(self.pods, "pod")));
        page.dimmed(&format!("  {}", facts.join(", ")));
        if self.unschedulable {
            page.paragraph(&format!(
                "The node is cordoned (spec.unschedulable): no pod is placed there until `kubectl uncordon {name}`, except pods that tolerate {UNSCHEDULABLE_TAINT}."
            ));
        }
        match self.taints.as_slice() {
            [] => {}
            [one] => page.paragraph(&format!(
                "Taint {one} keeps pods off that do not tolerate it."
            )),
            several => page.paragraph(&format!(
                "Taints keep pods off that do not tolerate all of them: {}.",
                several.join(", ")
            )),
        }
        self.drain.print(page);
    }
}

/// Returns a taint as `key=value:Effect` if it keeps pods off its node. That of a cordoned node is left out, which is said by the cordon.
fn hard(taint: &Taint) -> Option<String> {
    let Taint { key, value, effect } = taint;
    let value = if value.is_empty() {
        String::new()
    } else {
        format!("={value}")
    };
    let is_hard = *effect != TaintEffect::PreferNoSchedule;
    (is_hard && key != UNSCHEDULABLE_TAINT).then(|| format!("{key}{value}:{}", effect.as_str()))
}

/// Returns the whole names of nodes. A node may be named by a prefix of its name: its host name before the first dot, or as much as is enough
/// to tell it from the others. Names that begin no node's name are returned as they are.
///
/// # Errors
/// A name is the prefix of several nodes' names.
fn node_names(names: &[String], known: &[String]) -> Result<Vec<String>, Failure> {
    let whole = |name: &String| {
        let host = format!("{name}.");
        let begins = |begin: &str| -> Vec<String> {
            let own = known.iter().filter(|known| known.starts_with(begin));
            own.cloned().collect()
        };
        if known.contains(name) || name.is_empty() {
            return Ok(name.clone());
        }
        let mut found = begins(&host);
        if found.is_empty() {
            found = begins(name);
        }
        match found.as_slice() {
            [] => Ok(name.clone()),
            [one] => Ok(one.clone()),
            several => Err(Failure::input(format!(
                "there is no node {name}, and the names of {} begin with that",
                count(several.len(), "node")
            ))
            .hint(format!(
                "name one of them: {}",
                super::refusals::some_of(several)
            ))),
        }
    };
    names.iter().map(whole).collect()
}

/// The answer about a NodePool.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct PoolStanding {
    node_pool: String,
    /// Why the pool buys nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    buys_nothing: Option<String>,
    /// The number of instance types that the pool can buy; the next fields describe the cheapest.
    types: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    cheapest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cheapest_usd_per_hour: Option<f64>,
    /// The number of nodes of the pool that take pods; the next field is what they cost.
    nodes: usize,
    usd_per_hour: f64,
    /// The number of NodeClaims of the pool whose node is not there yet or not ready for pods; the next field is what those cost that
    /// have been launched.
    on_their_way: usize,
    on_their_way_usd_per_hour: f64,
    /// What is left of the pool's limits.
    limits_left: std::collections::BTreeMap<String, String>,
    /// Pending pods for which the pool buys nothing, grouped by reason.
    refuses: Vec<PoolRefusal>,
}

/// Pods for which a pool buys nothing for the same reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct PoolRefusal {
    reason: String,
    pods: Vec<String>,
}

async fn pools(state: &mut State, asked: &StandingQuery) -> Result<bool, Failure> {
    let known: Vec<String> = state.names_of("NodePool").map(str::to_owned).collect();
    check("NodePool", &asked.names, &known)?;
    let claims: Vec<NodeClaim> = state.kept("NodeClaim").map_err(Failure::input)?;
    let question = Question::of(state, &[]).await?;
    note(&question);
    let before = CurrentPrice::of(state.nodes(), &question);
    let report = question
        .ask(&mut state.cluster, |plan, cluster| {
            report::of(plan, &question, cluster, &before)
        })
        .map_err(Failure::input)?;
    let mut buy = true;
    for (index, name) in asked.names.iter().enumerate() {
        let mut own = PoolStanding {
            node_pool: name.clone(),
            ..PoolStanding::default()
        };
        let is_own =
            |node: &&NodeSpec| node.labels.get(mullion_api::labels::NODEPOOL) == Some(name);
        let coming = claims.iter().filter(|claim| is_in_flight(claim));
        let coming: Vec<_> = coming
            .filter(|claim| claim.node_pool() == Some(name.as_str()))
            .collect();
        for claim in &coming {
            // Without an instance type among the labels, nothing has been launched yet.
            let node = NodeSpec {
                labels: claim.labels().clone(),
                ..NodeSpec::named(claim.name_any())
            };
            own.on_their_way += 1;
            own.on_their_way_usd_per_hour += question.price_of(&node).map_or(0.0, dollars);
        }
        let comes = |node: &NodeSpec| {
            let mut names = coming.iter().filter_map(|claim| claim.node_name());
            names.any(|name| *name == *node.name)
        };
        for node in state.nodes().filter(is_own).filter(|node| !comes(node)) {
            own.nodes += 1;
            own.usd_per_hour += question.price_of(node).map_or(0.0, dollars);
        }
        let mut closed = question.pools.unready.iter();
        own.buys_nothing = closed
            .find(|(pool, _)| pool == name)
            .map(|(_, why)| why.clone());
        let mut templates = question.request.templates.iter();
        if let Some(template) = templates.find(|template| template.pool == *name) {
            own.describe(template, &state.cluster);
        }
        for group in &report.unplaced {
            let said = |word: &&PoolReason| word.pool == *name;
            if let Some(word) = group.pools.iter().find(said) {
                own.refuses.push(PoolRefusal {
                    reason: word.reason.clone(),
                    pods: group.pods.clone(),
                });
            }
        }
        buy &= own.buys_nothing.is_none();
        print(&own, asked.output, index, |page| own.print(page))?;
    }
    Ok(buy)
}

impl PoolStanding {
    fn describe(&mut self, template: &NodeTemplate, cluster: &Cluster) {
        let types = &template.instance_types;
        self.types = types.len();
        let cheapest = types.iter().flat_map(|kind| {
            let offerings = kind.offerings.iter().filter(|own| own.available);
            offerings.map(|own| (own.price_micro_usd, &kind.name))
        });
        if let Some((price, name)) = cheapest.min() {
            self.cheapest = Some(name.clone());
            self.cheapest_usd_per_hour = Some(dollars(price));
        } else {
            let why = if types.is_empty() {
                "no instance type meets its requirements"
            } else {
                "every instance type that meets its requirements is sold out"
            };
            self.buys_nothing = Some(why.to_owned());
        }
        let limits = template.limits_reached();
        if !limits.is_empty() {
            let texts = limits.iter().map(|limit| cluster.pool_reason_text(limit));
            self.buys_nothing = Some(texts.collect::<Vec<_>>().join("; "));
        }
        let left: &ResourceMap = &template.limits_remaining;
        let left = left
            .iter()
            .map(|(name, left)| (name.clone(), left.to_string()));
        self.limits_left = left.collect();
    }

    fn print(&self, page: &mut Page) {
        let (bold, end) = (page.colours.bold, page.colours.end);
        let name = &self.node_pool;
        match (
            &self.buys_nothing,
            &self.cheapest,
            self.cheapest_usd_per_hour,
        ) {
            (None, Some(cheapest), Some(price)) => page.paragraph(&format!(
                "{bold}NodePool {name}{end} can buy {}, from {cheapest} at {price:.3} USD/h.",
                count(self.types, "type")
            )),
            (why, ..) => {
                let why = why.as_deref().unwrap_or("nothing says why");
                page.paragraph(&format!("{bold}NodePool {name}{end} buys nothing: {why}."));
            }
        }
        let mut facts = vec![format!(
            "{}, {:.3} USD/h",
            count(self.nodes, "node"),
            self.usd_per_hour
        )];
        let price = self.on_their_way_usd_per_hour;
        let price = if price > 0.0 {
            format!(", {price:.3} USD/h")
        } else {
            String::new()
        };
        facts.extend(match self.on_their_way {
            0 => None,
            1 => Some(format!("1 on its way{price}")),
            more => Some(format!("{more} on their way{price}")),
        });
        let left = self.limits_left.iter();
        facts.extend(left.map(|(name, left)| format!("{left} {name} left of its limit")));
        page.dimmed(&format!("  {}", facts.join(", ")));
        if !self.refuses.is_empty() {
            page.blank();
            page.title("pods that wait and that it buys nothing for");
            let rows = self.refuses.iter().map(|group| Row {
                lead: format!("    {:>5}  ", group.pods.len()),
                what: group.reason.clone(),
                aside: super::refusals::some_of(&group.pods),
            });
            page.rows(&rows.collect::<Vec<_>>(), 56);
        }
    }
}

/// Says which CapacityBuffers and faults of the simulated cloud count for an answer.
fn note(question: &Question) {
    let remarks = question.pools.remarks.iter();
    remarks.for_each(|remark| out::note(remark));
}

fn check(kind: &str, names: &[String], known: &[String]) -> Result<(), Failure> {
    if names.is_empty() {
        return Err(Failure::input(format!("which {kind}? Its name is missing"))
            .hint(format!("mullion why {} NAME", kind.to_lowercase())));
    }
    match names.iter().find(|name| !known.contains(name)) {
        None => Ok(()),
        Some(name) if known.is_empty() => Err(Failure::input(format!(
            "there is no {kind} {name}: there are none at all"
        ))),
        Some(name) => Err(Failure::input(format!("there is no {kind} {name}"))
            .hint(format!("there are {}", super::refusals::some_of(known)))),
    }
}

fn print(
    answer: &impl Serialize,
    output: Output,
    index: usize,
    fill: impl FnOnce(&mut Page),
) -> Result<(), Failure> {
    match output {
        Output::Json => out::line(&serde_json::to_string(answer).map_err(Failure::run)?),
        Output::Text => {
            if index > 0 {
                out::line("");
            }
            let mut page = Page::new(out::colours(), out::width());
            fill(&mut page);
            out::line(&page.end());
        }
    }
    Ok(())
}
