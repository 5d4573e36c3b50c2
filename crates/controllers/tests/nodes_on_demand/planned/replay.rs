//! Judges nodes that were bought again under a scheduler that knows no plans: puts the pods back where they and their plans were at a moment, and asks
//! the scheduler's filters who could have gone where.
//!
//! A further node is excused only for pods of which both hold: with all pods where they were when the node was bought, no older node takes them; and when
//! a plan last gave them another place, that place would have taken them if the pods still to be bound had kept theirs.
//!
//! A plan spreads pods over all zones in which a pool can buy, as Karpenter's does, where the scheduler counts zones that have nodes. So an older node only
//! takes a pod if it does so beside an empty node in each zone as well.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use mullion_controllers::{Change, pods::node_name, state::convert};
use mullion_engine::{
    Cluster, Options,
    model::{NodeSpec, PodSpec},
};

use super::{ONE_PLAN, Told};
use crate::whole::Whole;

const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";
/// The zones in which the pools of the clusters can buy.
const ZONES: [&str; 3] = ["us-west-2a", "us-west-2b", "us-west-2c"];

/// Returns a moment after everything that happens.
fn end() -> Timestamp {
    Timestamp::MAX - ONE_PLAN
}

/// When each pod was bound and each claim created.
#[derive(Clone, Default)]
pub(super) struct Moments {
    bound: Arc<Mutex<BTreeMap<String, Timestamp>>>,
    created: Arc<Mutex<BTreeMap<String, Timestamp>>>,
}

impl Moments {
    /// Records from now on.
    pub(super) fn of(whole: &Whole) -> Self {
        let moments = Self::default();
        let (bound, clock) = (moments.bound.clone(), whole.context.clock.clone());
        whole.context.informers.pods.on_change(move |change| {
            let pod = change.object();
            if !node_name(pod).is_empty() {
                let mut bound = bound.lock().expect("no handler panics");
                bound.entry(pod.name_any()).or_insert_with(|| clock.now());
            }
        });
        let (created, clock) = (moments.created.clone(), whole.context.clock.clone());
        whole.karpenter.claims.on_change(move |change| {
            if let Change::Added(claim) = change {
                let mut created = created.lock().expect("no handler panics");
                created.insert(claim.name_any(), clock.now());
            }
        });
        moments
    }

    fn of_claim(&self, claim: &str) -> Timestamp {
        self.created.lock().expect("no handler panics")[claim]
    }

    fn of_pod(&self, pod: &str) -> Option<Timestamp> {
        let bound = self.bound.lock().expect("no handler panics");
        bound.get(pod).copied()
    }
}

/// A pod of the cluster that is judged.
struct Actor {
    spec: PodSpec,
    /// When it was bound, and to which node.
    bound: Option<(Timestamp, String)>,
    told: Told,
}

impl Actor {
    /// Returns the node on which the pod was, or else was to be, at a moment.
    fn node_at<'a>(
        &'a self,
        moment: Timestamp,
        nodes: &'a BTreeMap<String, String>,
    ) -> Option<&'a str> {
        match &self.bound {
            Some((at, node)) if *at <= moment => Some(node),
            _ => {
                let claim = self.told.place_at(moment + ONE_PLAN)?;
                nodes.get(claim).map(String::as_str)
            }
        }
    }
}

/// All nodes as they are once they are ready, with their daemons, and the pods that may be put on them.
pub(super) struct Replay {
    cluster: Cluster,
    actors: Vec<Actor>,
    /// The node of each claim.
    nodes: BTreeMap<String, String>,
    specs: Vec<NodeSpec>,
    moments: Moments,
}

impl Replay {
    /// Takes the cluster as it is in the end, and what its pods were told.
    pub(super) fn of(whole: &Whole, moments: Moments, told: &BTreeMap<String, Told>) -> Self {
        let mut cluster = Cluster::new(Options::default());
        let specs: Vec<NodeSpec> = whole
            .nodes()
            .iter()
            .map(|node| convert::node(node))
            .collect();
        for spec in &specs {
            cluster.set_node(spec).expect("a node of the API server's");
        }
        let mut actors = Vec::new();
        for pod in whole.context.informers.pods.list() {
            let spec = convert::pod(&pod);
            if !super::is_web(&pod) {
                // Daemons come with their nodes.
                if spec.node_name.is_some() {
                    cluster.add_pod(&spec).expect("a pod of the API server's");
                }
                continue;
            }
            let name = pod.name_any();
            let bound = moments.of_pod(&name);
            actors.push(Actor {
                bound: bound.map(|at| (at, node_name(&pod).to_owned())),
                told: told.get(&name).cloned().unwrap_or_default(),
                spec,
            });
        }
        let claims = whole.claims();
        let nodes = claims
            .iter()
            .filter_map(|claim| Some((claim.name_any(), claim.node_name()?.to_owned())));
        Self {
            cluster,
            actors,
            nodes: nodes.collect(),
            specs,
            moments,
        }
    }

    /// Returns why a claim that was bought when all pods had a place was not needed, or `None` if it is excused.
    pub(super) fn fault_of_claim(&mut self, claim: &str) -> Option<String> {
        let moment = self.moments.of_claim(claim);
        let is_for = |actor: &Actor| {
            let plan = moment - ONE_PLAN..=moment + ONE_PLAN;
            let told = actor.told.nominated.iter();
            told.clone()
                .any(|(at, place)| place == claim && plan.contains(at))
        };
        let mut wanted: Vec<usize> = (0..self.actors.len()).collect();
        wanted.retain(|actor| is_for(&self.actors[*actor]));
        if wanted.is_empty() {
            return Some(format!("{claim} was bought for no pod"));
        }
        // Claims of the same plan are no older ones.
        let is_older = |other: &str| self.moments.of_claim(other) < moment - ONE_PLAN;
        let older = self.nodes.iter().filter(|(other, _)| is_older(other));
        let older: Vec<String> = older.map(|(_, node)| node.clone()).collect();
        // What these pods were told last is this claim, even where they were bound elsewhere just then.
        let mut places = self.places(moment);
        // Pods that never run had no place in this plan any more: where an earlier plan had them, nobody follows them.
        places.retain(|other, _| self.actors[*other].bound.is_some());
        let own = self.nodes.get(claim).cloned().unwrap_or_default();
        let mut stuck = Vec::new();
        for actor in wanted {
            places.remove(&actor);
            let better = older
                .iter()
                .find(|node| {
                    self.takes(actor, node, &places)
                        && self.takes_beside_every_zone(actor, node, &places)
                })
                .cloned();
            if better.is_none() {
                stuck.push(actor);
            }
            places.insert(actor, better.unwrap_or_else(|| own.clone()));
        }
        if stuck.is_empty() {
            return Some(format!(
                "{claim} was bought though older nodes have room for all its pods"
            ));
        }
        let faults = stuck
            .into_iter()
            .filter_map(|actor| self.fault_of_plan(actor, moment, Some(claim)));
        let faults: Vec<String> = faults.collect();
        (!faults.is_empty()).then(|| format!("{claim} was bought, but {}", faults.join("; ")))
    }

    /// Returns whether a pod cannot run since the scheduler put the pods with which it must be where there was room for them and not for it, before
    /// any plan had a place for one of them: kube-scheduler does so, too, as it looks at one pod at a time.
    pub(super) fn is_cut_off(&mut self, pod: &str) -> bool {
        let actor = self.index_of(pod);
        let mut places = self.places(end());
        places.retain(|other, _| self.actors[*other].bound.is_some());
        let app = |own: &Actor| own.spec.template.labels.get("app").cloned();
        let mates = self.actors.iter().enumerate();
        let mates = mates.filter(|(_, other)| app(other) == app(&self.actors[actor]));
        let mates: Vec<usize> = mates.map(|(index, _)| index).collect();
        let is_planned = |mate: &usize| !self.actors[*mate].told.nominated.is_empty();
        if mates.iter().any(is_planned) || self.place_now(actor, &places).is_some() {
            return false;
        }
        mates.iter().for_each(|mate| drop(places.remove(mate)));
        self.place_now(actor, &places).is_some()
    }

    /// Returns why a pod that does not run should, or `None` if it is excused: nothing could be bought for it since the pods with which it must be are
    /// where others have taken its room.
    pub(super) fn fault_of_unplaced(&mut self, pod: &str) -> Option<String> {
        let actor = self.index_of(pod);
        let mut places = self.places(end());
        places.retain(|other, _| self.actors[*other].bound.is_some());
        match self.place_now(actor, &places) {
            Some(node) => Some(format!("{pod} would fit on {node}")),
            None => self.fault_of_plan(actor, end(), None),
        }
    }

    fn index_of(&self, pod: &str) -> usize {
        let mut actors = self.actors.iter();
        let index = actors.position(|own| own.spec.name == pod);
        index.expect("a pod of the cluster")
    }

    /// Returns a node that takes a pod with others at their places: one that is there, or one like it that could be bought.
    fn place_now(&mut self, actor: usize, places: &BTreeMap<usize, String>) -> Option<String> {
        let checkpoint = self.cluster.checkpoint();
        let mut nodes: Vec<String> = self.specs.iter().map(|node| node.name.clone()).collect();
        for node in self.specs.iter().filter(|node| is_bought(node)) {
            let twin = twin(node, format!("twin-of-{}", node.name));
            self.cluster.set_node(&twin).expect("a node like another");
            nodes.push(twin.name);
        }
        let found = nodes
            .into_iter()
            .find(|node| self.takes(actor, node, places));
        self.cluster.rollback(checkpoint);
        found
    }

    /// Returns why the place that a pod had in the last plan before it was planned on `claim` was none, even with all pods where that plan knew or wanted
    /// them.
    fn fault_of_plan(
        &mut self,
        actor: usize,
        moment: Timestamp,
        claim: Option<&str>,
    ) -> Option<String> {
        let name = self.actors[actor].spec.name.clone();
        let told = self.actors[actor].told.nominated.iter();
        let mut earlier = told.rev().filter(|(at, place)| {
            *at <= moment + ONE_PLAN && claim.is_none_or(|claim| place != claim)
        });
        let Some((at, place)) = earlier.next().cloned() else {
            return Some(format!("{name} had no place before"));
        };
        let Some(node) = self.nodes.get(&place).cloned() else {
            return Some(format!("{name} was planned on {place}, which has no node"));
        };
        // The API tells seconds; pods may have been bound just before the plan, in its second, or just after it.
        let second = at..=at + ONE_PLAN;
        let bound = self.actors.iter().filter_map(|other| other.bound.as_ref());
        let bound = bound.map(|(moment, _)| *moment);
        let mut moments: Vec<Timestamp> = bound.filter(|bound| second.contains(bound)).collect();
        moments.extend([at, at + ONE_PLAN, at - SignedDuration::from_millis(1)]);
        moments
            .into_iter()
            .all(|at| {
                let mut places = self.places(at);
                places.remove(&actor);
                !self.takes(actor, &node, &places)
            })
            .then(|| format!("{name} never fitted on {place}, where it was planned at {at}"))
    }

    /// Returns where all pods were, or else were to be, at a moment.
    fn places(&self, moment: Timestamp) -> BTreeMap<usize, String> {
        let actors = self.actors.iter().enumerate();
        let places = actors.filter_map(|(index, actor)| {
            let node = actor.node_at(moment, &self.nodes)?;
            Some((index, node.to_owned()))
        });
        places.collect()
    }

    /// Returns whether a node takes a pod with others at their places, if in each zone there is an empty node like each that was bought.
    fn takes_beside_every_zone(
        &mut self,
        actor: usize,
        node: &str,
        places: &BTreeMap<usize, String>,
    ) -> bool {
        let checkpoint = self.cluster.checkpoint();
        for bought in self.specs.iter().filter(|node| is_bought(node)) {
            for zone in ZONES {
                let mut twin = twin(bought, format!("{zone}-like-{}", bought.name));
                twin.labels.insert(ZONE.into(), zone.into());
                self.cluster.set_node(&twin).expect("a node like another");
            }
        }
        let takes = self.takes(actor, node, places);
        self.cluster.rollback(checkpoint);
        takes
    }

    /// Returns whether a node takes a pod with others at their places.
    fn takes(&mut self, actor: usize, node: &str, places: &BTreeMap<usize, String>) -> bool {
        let checkpoint = self.cluster.checkpoint();
        for (other, place) in places {
            let spec = &self.actors[*other].spec;
            self.cluster.bind(spec, place).expect("it has no place yet");
        }
        let template = &self.actors[actor].spec.template;
        let class = self.cluster.pod_class(template).expect("a pod's template");
        let node = self.cluster.node(node).expect("a node of the cluster");
        let takes = self.cluster.takes_now(class, node);
        self.cluster.rollback(checkpoint);
        takes
    }
}

fn is_bought(node: &NodeSpec) -> bool {
    node.labels.contains_key("karpenter.sh/nodepool")
}

/// Returns an empty node like another.
fn twin(node: &NodeSpec, name: String) -> NodeSpec {
    let mut twin = node.clone();
    twin.labels.insert(HOSTNAME.into(), name.clone());
    twin.name = name;
    twin
}
