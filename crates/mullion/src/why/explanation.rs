//! What is said about one pod: its state, the nodes grouped by their reason, the pools, and the smallest change that helps.
//!
//! Data only; [`super::text`] prints it for people and `-o json` as it is.

use mullion_engine::{
    Cluster, Conflict, ModelError, Outcome, Reason,
    images::ImageTable,
    model::{PodSpec, PodTemplate},
    remedy::{Facts, Place, Remedy},
};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use super::{
    addresses,
    answer::{self, Asked, Record},
    daemon::{self, Daemon},
    groups::{Group, grouped},
    images::ImageWord,
    outlook::{Costs, Outlook, PoolWord, Purchase, costs, outlook, purchase},
    pools::Pools,
};

/// Remedies shown.
const MOST: usize = 3;
/// Templates of which is said what their pods pay for: the first that are asked about.
const MOST_PRICED: usize = 20;

/// Everything about one pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Explanation {
    /// `pod shop/iis`, or what it would be a pod of.
    pub(super) pod: String,
    /// The node it is bound to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bound_to: Option<String>,
    /// Why it does not have the resources there that it asks for since it was resized.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) resize: Option<String>,
    /// What its images run on, where that matters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) images: Vec<ImageWord>,
    /// Values that it asks for of labels and that no machine can have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) wrong_values: Vec<String>,
    /// Why it gets no address as a Windows pod, so that no sandbox is made for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) no_address: Option<String>,
    /// Why the scheduler does not look at it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) passed_over: Option<String>,
    /// The name of its scheduler, if the cluster has none of that name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unserved: Option<Unserved>,
    /// On which nodes it runs, as one of a DaemonSet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) daemon: Option<Daemon>,
    /// Pods that were asked about with it and make room for themselves before it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) after: Vec<String>,
    /// What has to be there, or gone, before any change to the pod helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prerequisite: Option<String>,
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
    /// What pods like it pay for, where something is bought for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) costs: Option<Costs>,
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
    /// Nothing yet about a pod.
    pub(super) fn of(pod: String) -> Self {
        Explanation {
            pod,
            bound_to: None,
            resize: None,
            images: Vec::new(),
            wrong_values: Vec::new(),
            no_address: None,
            passed_over: None,
            unserved: None,
            daemon: None,
            after: Vec::new(),
            prerequisite: None,
            nominated: None,
            waits_for_victims: false,
            answer: Record::default(),
            event: None,
            refusals: Vec::new(),
            awaits: None,
            buys: None,
            costs: None,
            pools: Vec::new(),
            changes: Vec::new(),
            gates: Vec::new(),
        }
    }

    /// Whether the same is to be said of another pod that waits.
    pub(super) fn says_as(&self, other: &Explanation) -> bool {
        let waits = |own: &Self| own.bound_to.is_none() && own.passed_over.is_none();
        let waits = waits(self) && waits(other);
        waits
            && (&self.answer, &self.event, &self.refusals)
                == (&other.answer, &other.event, &other.refusals)
            && (
                &self.unserved,
                &self.daemon,
                &self.after,
                &self.prerequisite,
            ) == (
                &other.unserved,
                &other.daemon,
                &other.after,
                &other.prerequisite,
            )
            && (&self.nominated, self.waits_for_victims)
                == (&other.nominated, other.waits_for_victims)
            && (&self.images, &self.wrong_values) == (&other.images, &other.wrong_values)
            && (&self.no_address, &self.awaits, &self.buys, &self.costs)
                == (&other.no_address, &other.awaits, &other.buys, &other.costs)
            && (&self.pools, &self.changes, &self.gates)
                == (&other.pools, &other.changes, &other.gates)
    }

    /// Whether the pod has a place, gets one without anybody's help, or needs none any more.
    pub(super) fn is_placed(&self) -> bool {
        let free = self.gates.is_empty();
        if let Some(daemon) = &self.daemon {
            return free && daemon.waits_on.is_empty();
        }
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
    /// What the names of images say.
    table: &'a ImageTable,
    outlook: Outlook,
    known: FxHashMap<PodTemplate, Known>,
    /// Pods that do not exist yet.
    planned: Vec<PodSpec>,
    /// What pods of templates that were asked about pay for.
    costs: FxHashMap<PodTemplate, Option<Costs>>,
    /// Pods that have made room for themselves in the cluster that is asked.
    made_room: Vec<String>,
}

/// What is to be said of every pod of a template that waits.
#[derive(Clone)]
pub(super) struct Known {
    prerequisite: Option<String>,
    /// The node on which it makes room, and the keys of those it evicts there.
    room: Option<(String, Vec<String>)>,
    nominated: Option<String>,
    waits_for_victims: bool,
    pub(super) answer: Record,
    pub(super) event: Option<String>,
    pub(super) refusals: Vec<Group>,
    wrong_values: Vec<String>,
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
        table: &'a ImageTable,
        pods: impl Iterator<Item = &'p PodSpec>,
    ) -> Result<Self, ModelError> {
        let known: FxHashSet<String> = pools.waiting.iter().map(PodSpec::key).collect();
        let planned = pods.filter(|pod| {
            let waits = pod.node_name.is_none() && answer::passed_over(pod).is_none();
            let waits = waits && answer::unserved(cluster, pod).is_none();
            waits && !known.contains(&pod.key())
        });
        let planned: Vec<PodSpec> = planned.cloned().collect();
        let waiting = pools.waiting.iter().chain(&planned).cloned().collect();
        Ok(Explainer {
            outlook: outlook(cluster, pools, waiting)?,
            cluster,
            pools,
            table,
            known: FxHashMap::default(),
            planned,
            costs: FxHashMap::default(),
            made_room: Vec::new(),
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
            bound_to: pod.node_name.clone(),
            passed_over: answer::passed_over(pod),
            ..Explanation::of(named)
        };
        if explanation.passed_over.is_some() {
            return Ok(explanation);
        }
        explanation.no_address = addresses::missing(pod, self.cluster, self.pools);
        explanation.unserved = self.unserved(pod);
        if explanation.unserved.is_some() {
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
        // What is promised to a pod is its own.
        let shares = pod.nominated_node_name.is_none();
        let known = self.known.get(&pod.template).filter(|_| shares).cloned();
        let mut known = match known {
            Some(known) => known,
            None => self.say(pod, name_of)?,
        };
        let key = pod.key();
        explanation.after.clone_from(&self.made_room);
        explanation.prerequisite.clone_from(&known.prerequisite);
        explanation.gates.clone_from(&pod.template.scheduling_gates);
        explanation.answer.clone_from(&known.answer);
        explanation.event.clone_from(&known.event);
        explanation.refusals.clone_from(&known.refusals);
        explanation.nominated.clone_from(&known.nominated);
        explanation.waits_for_victims = known.waits_for_victims;
        explanation.wrong_values.clone_from(&known.wrong_values);
        let gated = !explanation.gates.is_empty();
        let evicts = explanation.evicts() || known.waits_for_victims && !gated;
        if known.answer.best.is_none() && !evicts {
            explanation.awaits = self.outlook.awaits.get(&key).cloned();
            explanation.buys = self.outlook.buys.get(&key).cloned();
            if explanation.buys.is_some() {
                explanation.costs = self.costs(&pod.template)?;
            }
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
        match known.room.take().filter(|_| explanation.evicts()) {
            Some((node, victims)) => {
                for victim in &victims {
                    self.cluster.remove_pod(victim)?;
                }
                self.cluster.nominate(pod, &node)?;
                self.made_room.push(explanation.pod.clone());
                // What was said before is about another cluster.
                self.known.clear();
            }
            None if shares => drop(self.known.insert(pod.template.clone(), known)),
            None => {}
        }
        Ok(explanation)
    }

    /// [`Explainer::explain`] of a pod of a DaemonSet, of which there is one on each node, in place of those with these keys.
    ///
    /// # Errors
    /// The pod names an amount that cannot be true.
    pub(super) fn explain_daemon(
        &mut self,
        pod: &PodSpec,
        named: String,
        replaced: &[String],
        name_of: impl Fn(&str) -> String,
    ) -> Result<Explanation, ModelError> {
        let mut explanation = Explanation {
            after: self.made_room.clone(),
            gates: pod.template.scheduling_gates.clone(),
            unserved: self.unserved(pod),
            ..Explanation::of(named)
        };
        if explanation.unserved.is_some() {
            return Ok(explanation);
        }
        let checkpoint = self.cluster.checkpoint();
        for key in replaced {
            // One that waits has no place.
            let _ = self.cluster.remove_pod(key);
        }
        let daemon = self.daemon(&mut explanation, pod, name_of);
        self.cluster.rollback(checkpoint);
        explanation.daemon = Some(daemon?);
        Ok(explanation)
    }

    fn daemon(
        &mut self,
        explanation: &mut Explanation,
        pod: &PodSpec,
        name_of: impl Fn(&str) -> String,
    ) -> Result<Daemon, ModelError> {
        let known = self.say(pod, name_of)?;
        let mut daemon = Daemon::of(&known.answer);
        explanation.prerequisite = known.prerequisite;
        explanation.answer = known.answer;
        explanation.refusals = known.refusals;
        let mut told = false;
        for node in daemon.ask_some() {
            let own = daemon::on(pod, &node);
            let asked = answer::ask(self.cluster, &own, true)?;
            if asked.room().is_some() {
                daemon.make_room(&node);
            } else if !told {
                told = true;
                explanation.event = answer::event(self.cluster, &asked);
                let mut changes = self.changes(&own)?;
                changes.retain(|set| set.node.as_ref() == Some(&node));
                explanation.changes = changes;
            }
        }
        Ok(daemon)
    }

    fn unserved(&self, pod: &PodSpec) -> Option<Unserved> {
        let scheduler_name = answer::unserved(self.cluster, pod)?;
        let known = self.cluster.scheduler_names().map(str::to_owned);
        Some(Unserved {
            scheduler_name,
            known: known.collect(),
        })
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
        let fits = !asked.answer.best.is_empty();
        let wrong_values = match fits {
            true => Vec::new(),
            false => self
                .cluster
                .wrong_values(&pod.template, &self.pools.templates)?,
        };
        let promised = asked.promised.map(|node| self.cluster.node_name(node));
        Ok(Known {
            prerequisite: prerequisite(self.cluster, &asked),
            room: asked.room().map(|(node, victims)| {
                let node = self.cluster.node_name(node).to_owned();
                (node, victims.to_vec())
            }),
            nominated: promised.map(str::to_owned),
            waits_for_victims: asked.waits_for_victims(),
            refusals: grouped(self.cluster, refused),
            answer: answer::record(self.cluster, &asked, name_of),
            event: answer::event(self.cluster, &asked),
            wrong_values,
            changes: None,
        })
    }

    fn changes(&mut self, pod: &PodSpec) -> Result<Vec<ChangeSet>, ModelError> {
        let pools = &self.pools.templates;
        let facts = Facts {
            images: self.table,
            prefixes: &self.pools.prefixes,
        };
        let remedies = self.cluster.remedies(pod, pools, facts, MOST)?;
        let sets = remedies.into_iter();
        Ok(sets
            .map(|remedy| change_set(self.cluster, self.pools, remedy))
            .collect())
    }

    /// What all pods of a template pay for that machines are bought for; none for a template behind the first [`MOST_PRICED`].
    fn costs(&mut self, template: &PodTemplate) -> Result<Option<Costs>, ModelError> {
        if let Some(known) = self.costs.get(template) {
            return Ok(known.clone());
        }
        if self.costs.len() == MOST_PRICED {
            return Ok(None);
        }
        let all = self.pools.waiting.iter().chain(&self.planned);
        let alike = all.filter(|pod| pod.template == *template);
        let bought = alike.filter(|pod| self.outlook.buys.contains_key(&pod.key()));
        let costs = costs(self.cluster, self.pools, bought.cloned().collect())?;
        self.costs.insert(template.clone(), costs.clone());
        Ok(costs)
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

/// What other object stands in the way of any node.
fn prerequisite(cluster: &Cluster, asked: &Asked) -> Option<String> {
    if let Some(veto) = asked.answer.conflict {
        return cluster.prerequisite(veto.conflict);
    }
    let refused = asked.answer.nodes.iter().map(|node| match &node.outcome {
        Outcome::Refused(refusal) => refusal.reasons().find_map(|reason| match reason {
            Reason::Conflict(conflict) => Some(conflict),
            Reason::ClaimNotCounted { claim, .. } => Some(Conflict::ClaimNotFound { claim }),
            _ => None,
        }),
        Outcome::Fits { .. } => None,
    });
    // Only what every node says is in the way everywhere.
    let all: Option<Vec<_>> = refused.collect();
    cluster.prerequisite(*all?.first()?)
}

fn change_set(cluster: &Cluster, pools: &Pools, remedy: Remedy) -> ChangeSet {
    let changes = remedy.changes.iter();
    let changes = changes.map(|change| change.words(|pool| pools.owner(pool)));
    let changes = changes.collect();
    let (node, buys) = match remedy.place {
        Place::Node(node) => (Some(cluster.node_name(node).to_owned()), None),
        Place::Bought {
            pool,
            instance_type,
            price_micro_usd,
            addresses,
        } => {
            let bought = Purchase {
                addresses,
                ..purchase(&pool, &instance_type, price_micro_usd)
            };
            (None, Some(bought))
        }
    };
    ChangeSet {
        changes,
        node,
        buys,
    }
}
