//! Explains pods of one state: asks the engine about each, plans for all pending ones, and searches the smallest changes that help.

mod wrong_node;

use mullion_engine::{
    Cluster, Conflict, ModelError, Outcome, Reason,
    images::{ImageTable, Runs},
    model::{PodSpec, PodTemplate, label},
    remedy::{ChangedPlace, Facts, Remedy},
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    addresses,
    answer::{self, EngineAnswers, Record},
    daemon::{self, Daemon},
    explanation::{ChangeSet, Explanation, Unserved},
    groups::{Group, grouped},
    images::WrongNode,
    outlook::{Costs, Outlook, PoolReason, Purchase, costs, outlook, purchase},
    pools::Pools,
};

/// The largest number of suggested sets of changes.
const MOST: usize = 3;
/// The largest number of pod templates whose costs are computed: the first ones asked about.
const MOST_PRICED: usize = 20;

/// Explains pods of one state. What is the same for several pods is computed once: the plan for all pending pods, and the explanation for a
/// pod template.
pub(super) struct Explainer<'a> {
    cluster: &'a mut Cluster,
    pools: &'a Pools,
    /// The table that tells from its name what an image runs on.
    table: &'a ImageTable,
    /// What the images of pods run on, by the pods' keys, where more than the names of the images says so.
    recorded: FxHashMap<String, Runs>,
    outlook: Outlook,
    /// By pod template, what its images run on, and whether the plan has no place for the pod: it may have one for some pods of a template
    /// only.
    known: FxHashMap<(PodTemplate, Option<Runs>, bool), SharedExplanation>,
    /// The pods that do not exist yet.
    planned: Vec<PodSpec>,
    /// The costs for each pod template that was asked about.
    costs: FxHashMap<PodTemplate, Option<Costs>>,
    /// The completed advice to pods on wrong nodes, by pod template and what the advice was before.
    completed: FxHashMap<(PodTemplate, String), WrongNode>,
    /// The pods that have preempted others in the explainer's copy of the cluster.
    made_room: Vec<String>,
}

/// The parts of an explanation that are the same for all pending pods of a template.
#[derive(Clone)]
pub(super) struct SharedExplanation {
    prerequisite: Option<String>,
    /// The node on which the pod makes room, and the keys of its victims there.
    room: Option<(String, Vec<String>)>,
    nominated: Option<String>,
    waits_for_victims: bool,
    pub(super) answer: Record,
    pub(super) event: Option<String>,
    pub(super) refusals: Vec<Group>,
    wrong_values: Vec<String>,
    /// The suggested changes; `None` until a pod that no coming node will hold needs them.
    changes: Option<Vec<ChangeSet>>,
}

impl<'a> Explainer<'a> {
    /// Prepares explanations for these pods, which are planned for together with all pending ones.
    ///
    /// # Errors
    /// A pod or a pool has an impossible amount of a resource, such as a negative one.
    pub(super) fn new<'p>(
        cluster: &'a mut Cluster,
        pools: &'a Pools,
        (table, recorded): (&'a ImageTable, FxHashMap<String, Runs>),
        pods: impl Iterator<Item = &'p PodSpec>,
    ) -> Result<Self, ModelError> {
        let known: FxHashSet<String> = pools.waiting.iter().map(PodSpec::key).collect();
        let planned = pods.filter(|pod| {
            let waits = pod.node_name.is_none() && answer::passed_over(pod).is_none();
            let waits = waits && answer::unserved(cluster, pod).is_none();
            waits && !known.contains(&pod.key())
        });
        let planned: Vec<PodSpec> = planned.cloned().collect();
        // All of them in one plan, because a node that is bought for one may hold others.
        let mut waiting: Vec<_> = pools.waiting.iter().chain(&planned).cloned().collect();
        // Chunks matter only for what is bought together with pods.
        if !waiting.is_empty() {
            waiting.extend(pools.chunks.iter().cloned());
        }
        Ok(Explainer {
            outlook: outlook(cluster, pools, waiting)?,
            cluster,
            pools,
            table,
            recorded,
            known: FxHashMap::default(),
            planned,
            costs: FxHashMap::default(),
            completed: FxHashMap::default(),
            made_room: Vec::new(),
        })
    }

    /// Explains a pod. A bound pod is explained as if it were not in the cluster.
    ///
    /// # Errors
    /// The pod has an impossible amount of a resource, such as a negative one.
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
            // This fails if the pod's node is not in the state; the pod is not in the cluster then.
            let _ = self.cluster.remove_pod(&pod.key());
            if !pod.uid.is_empty() {
                self.cluster.remove_extended_claims(&pod.uid);
            }
            let said = self.say(pod, name_of);
            self.cluster.rollback(checkpoint);
            let SharedExplanation {
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
        // A pod with a nominated node has room reserved, so its answer differs from that of other pods of its template.
        let shares = pod.nominated_node_name.is_none();
        let key = pod.key();
        let refused = self.outlook.refuses(&key);
        let alike = (
            pod.template.clone(),
            self.recorded.get(&key).cloned(),
            refused,
        );
        let known = self.known.get(&alike).filter(|_| shares).cloned();
        let mut known = match known {
            Some(known) => known,
            None => self.say(pod, name_of)?,
        };
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
            explanation.pools = self.pool_reasons(&key);
            explanation.broken_pools = self.broken_pools(&pod.template);
        }
        // A pod that has a place may still need a change: the scheduler does not know which Windows build an image needs. A pod that makes
        // room by preemption needs none.
        if explanation.awaits.is_none() && !evicts {
            let changes = match known.changes.take() {
                Some(changes) => changes,
                // A pod that today's nodes have room for is not asked about beside the planned ones.
                None => self.changes(pod, refused && known.answer.best.is_none())?,
            };
            known.changes = Some(changes.clone());
            explanation.changes = changes;
        }
        if let Some(node) = daemon::node_of(pod) {
            explanation.keep_only(node);
        }
        match known.room.take().filter(|_| explanation.evicts()) {
            Some((node, victims)) => {
                for victim in &victims {
                    self.cluster.remove_pod(victim)?;
                }
                self.cluster.nominate(pod, &node)?;
                self.outlook.forget(&key);
                self.made_room.push(explanation.pod.clone());
                // The earlier answers were about the cluster without this pod.
                self.known.clear();
            }
            None if shares => drop(self.known.insert(alike, known)),
            None => {}
        }
        Ok(explanation)
    }

    /// Explains a pod of a DaemonSet, as [`Explainer::explain`] does for others. The DaemonSet has one pod for each node; they replace the
    /// pods whose keys are `replaced`.
    ///
    /// # Errors
    /// The pod has an impossible amount of a resource, such as a negative one.
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
            // This fails for a pending pod, which is on no node.
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
                let mut changes = self.changes(&own, false)?;
                // The pod is tied to this node, so a change that helps elsewhere is no answer.
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
    ) -> Result<SharedExplanation, ModelError> {
        let asked = answer::ask(self.cluster, pod, true)?;
        let nodes = asked.answer.nodes.iter();
        let refused = nodes.filter_map(|node| match &node.outcome {
            Outcome::Refused(refusal) => Some((node.node, refusal)),
            Outcome::Fits { .. } => None,
        });
        let fits = !asked.answer.best.is_empty();
        let wrong_values = if fits {
            Vec::new()
        } else {
            self.cluster
                .wrong_values(&pod.template, &self.pools.templates)?
        };
        let promised = asked.promised.map(|node| self.cluster.node_name(node));
        Ok(SharedExplanation {
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

    /// Returns the smallest changes that place the pod. With `beside_others`, the other pending pods have their planned places: alone, the
    /// pod might have one that they leave it none of.
    fn changes(
        &mut self,
        pod: &PodSpec,
        beside_others: bool,
    ) -> Result<Vec<ChangeSet>, ModelError> {
        let checkpoint = self.cluster.checkpoint();
        let changes = self.changes_beside(pod, beside_others);
        self.cluster.rollback(checkpoint);
        changes
    }

    fn changes_beside(
        &mut self,
        pod: &PodSpec,
        beside_others: bool,
    ) -> Result<Vec<ChangeSet>, ModelError> {
        let carried = beside_others
            .then(|| self.outlook.carry_out(self.cluster, self.pools))
            .transpose()?;
        let pools = carried.as_ref().unwrap_or(&self.pools.templates);
        let facts = Facts {
            images: self.table,
            prefixes: &self.pools.prefixes,
            recorded: self.recorded.get(&pod.key()),
        };
        let remedies = self.cluster.remedies(pod, pools, facts, MOST)?;
        let sets = remedies.into_iter();
        Ok(sets.map(|remedy| self.change_set(remedy)).collect())
    }

    fn change_set(&self, remedy: Remedy) -> ChangeSet {
        let changes = remedy.changes.iter();
        let changes = changes.map(|change| change.text(|pool| self.pools.owner(pool)));
        let changes = changes.collect();
        let (node, buys) = match remedy.place {
            ChangedPlace::Node(node) => {
                let name = self.cluster.node_name(node);
                match self.outlook.purchase_of(name) {
                    Some(shared) => (None, Some(shared)),
                    None => (Some(name.to_owned()), None),
                }
            }
            ChangedPlace::Bought {
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

    /// Returns what the nodes cost that are bought for all pods of a template; `None` after the first [`MOST_PRICED`] templates.
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

    /// Returns the pools that might buy a node for the pod if they were ready.
    fn broken_pools(&self, pod: &PodTemplate) -> Vec<String> {
        let selector = |key: &str| pod.node_selector.get(key).map(String::as_str);
        let named = pod.os.as_deref().or_else(|| selector(label::OS));
        let is_for_windows = named == Some("windows") || selector(label::WINDOWS_BUILD).is_some();
        let broken = self.pools.broken.iter();
        let own = broken.filter(|(_, is_windows)| *is_windows == is_for_windows);
        own.map(|(pool, _)| self.pools.owner(pool)).collect()
    }

    fn pool_reasons(&self, key: &str) -> Vec<PoolReason> {
        let refused = self.outlook.refusals.get(key).cloned();
        let unready = self.pools.unready.iter().map(|(pool, why)| PoolReason {
            pool: pool.clone(),
            reason: why.clone(),
        });
        refused.into_iter().flatten().chain(unready).collect()
    }
}

/// Returns what must exist before any node can take the pod; `None` if the nodes refuse it for other reasons.
fn prerequisite(cluster: &Cluster, asked: &EngineAnswers) -> Option<String> {
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
    // Something is a prerequisite only if every node refuses the pod because of it.
    let all: Option<Vec<_>> = refused.collect();
    cluster.prerequisite(*all?.first()?)
}
