//! The model of a cluster: nodes, pods and the objects that matter to placement, updated by deltas.
//!
//! The model is never rebuilt. [`Cluster::checkpoint`] and [`Cluster::rollback`] ([`undo`]) allow what-if questions on
//! the model itself. Invariant: everything derived (classes, verdicts, views) equals what a new cluster with the same
//! nodes and pods would have, so the order of insertion never affects an answer. Deltas are in [`delta`], questions in
//! [`crate::schedule`].

mod board;
mod classes;
mod delta;
mod device;
mod node;
mod nominated;
mod object;
mod pod;
mod shared_views;
mod storage;
mod table;
mod thought;
mod trial;
mod undo;
mod views;

use std::collections::BTreeSet;

use indexmap::IndexSet;
use rustc_hash::{FxBuildHasher, FxHashMap};

pub use node::NodeId;
pub use storage::VolumeChoices;
pub use undo::Checkpoint;

pub(crate) use board::{BoardDecision, hold};
pub(crate) use node::{ImageHolders, Node, NodeFixed};
pub(crate) use pod::{Pod, PodId};
pub(crate) use trial::Trial;
pub(crate) use views::Question;

use crate::class::{
    Namespaces, NodeClass, PodClass, PodClassId, Shape, ShapeVerdicts, StaticRules,
};
use crate::devices::{self, Devices};
use crate::intern::{Interner, Symbol};
use crate::model::PodTemplate;
use crate::profile::{DEFAULT_SCHEDULER, Profile, ProfileId, Rules};
use crate::selector::Site;
use crate::storage::{Plan, Storage};
use crate::topology::Effect;
use board::Boards;
use classes::Uses;
use object::Objects;
use pod::Pods;
use shared_views::{SharedViews, ViewId};
use table::Table;
use undo::Undo;

/// Options of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether `spec.os.name` counts as a requirement on the node's operating system. kube-scheduler ignores it.
    pub os_filter: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { os_filter: true }
    }
}

/// The effects that a pod of one class has on one view.
#[derive(Clone, Debug)]
struct ViewEffects {
    view: ViewId,
    effects: Box<[Effect]>,
}

/// The model of one Kubernetes cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    options: Options,
    /// The rules of each profile by scheduler name; the first also decides pods whose scheduler name has no profile.
    profiles: Vec<(Box<str>, Rules)>,
    names: Interner,
    /// The nodes by id; `None` where a node was removed.
    nodes: Vec<Option<Node>>,
    /// The ids of removed nodes, which are used again.
    free_nodes: Vec<NodeId>,
    node_by_name: FxHashMap<Symbol, NodeId>,
    node_classes: IndexSet<NodeClass, FxBuildHasher>,
    images: FxHashMap<Symbol, ImageHolders>,
    pods: Pods,
    /// Pods bound to a node that does not exist (yet, or any more).
    orphans: FxHashMap<Symbol, Vec<PodId>>,
    /// Pods that are nominated to a node, by node name.
    nominated: FxHashMap<Symbol, Vec<(Box<str>, PodClassId)>>,
    /// The nominated node of each pod, by the pod's key.
    nominated_at: FxHashMap<Box<str>, Symbol>,
    classes: Table<PodTemplate, PodClass>,
    shapes: Table<Shape, ()>,
    uses: Uses,
    /// The static verdicts of each shape.
    verdicts: Vec<ShapeVerdicts>,
    boards: Boards,
    views: SharedViews,
    /// Classes with affinity terms about other pods, which may affect any view.
    termed: BTreeSet<usize>,
    /// The effects that the pods of each class have on views.
    affects: Vec<Vec<ViewEffects>>,
    namespaces: Namespaces,
    objects: Objects,
    storage: Storage,
    /// The volume plan of each class with volumes, and the storage version for which it was made.
    volume_plans: FxHashMap<PodClassId, (u64, Plan)>,
    devices: Devices,
    /// The device plan of each class with ResourceClaims, and the devices version for which it was made.
    device_plans: FxHashMap<PodClassId, (u64, devices::Plan)>,
    /// Set while pods are added and removed in a trial.
    trial: Option<Trial>,
    /// How to undo each change since the first open checkpoint; empty without one.
    log: Vec<Undo>,
    /// The number of open checkpoints.
    checkpoints: u32,
}

impl Cluster {
    /// Creates an empty cluster whose pods are all decided by the default profile.
    pub fn new(options: Options) -> Self {
        Cluster::with_profiles(options, &[])
    }

    /// Creates an empty cluster. The first profile also decides pods whose scheduler name no profile has; without any
    /// profile the default one is used.
    pub fn with_profiles(options: Options, profiles: &[Profile]) -> Self {
        let mut names = Interner::default();
        let default = [Profile::default()];
        let given = if profiles.is_empty() {
            &default
        } else {
            profiles
        };
        let profiles = given.iter().map(|profile| {
            let rules = Rules::compile(profile, &mut names);
            (profile.scheduler_name.as_str().into(), rules)
        });
        Cluster {
            options,
            profiles: profiles.collect(),
            names,
            nodes: Vec::new(),
            free_nodes: Vec::new(),
            node_by_name: FxHashMap::default(),
            node_classes: IndexSet::default(),
            images: FxHashMap::default(),
            pods: Pods::default(),
            orphans: FxHashMap::default(),
            nominated: FxHashMap::default(),
            nominated_at: FxHashMap::default(),
            classes: Table::default(),
            shapes: Table::default(),
            uses: Uses::default(),
            verdicts: Vec::new(),
            boards: Boards::default(),
            views: SharedViews::default(),
            termed: BTreeSet::new(),
            affects: Vec::new(),
            namespaces: Namespaces::default(),
            objects: Objects::default(),
            storage: Storage::default(),
            volume_plans: FxHashMap::default(),
            devices: Devices::default(),
            device_plans: FxHashMap::default(),
            trial: None,
            log: Vec::new(),
            checkpoints: 0,
        }
    }

    /// Returns the profile for a scheduler name.
    fn profile(&self, scheduler_name: &str) -> ProfileId {
        ProfileId(self.find_profile(scheduler_name).unwrap_or(0) as u16)
    }

    /// Returns whether a scheduler name has a profile.
    fn knows_scheduler(&self, name: &str) -> bool {
        self.find_profile(name).is_some()
    }

    /// Returns the index of the profile for a scheduler name; an empty name means the default scheduler.
    fn find_profile(&self, scheduler_name: &str) -> Option<usize> {
        // The API server fills in the default name; specs that never went through it may leave the name out.
        let name = match scheduler_name {
            "" => DEFAULT_SCHEDULER,
            name => name,
        };
        self.profiles.iter().position(|(own, _)| **own == *name)
    }

    /// Returns the scheduler names of the cluster's profiles.
    pub fn scheduler_names(&self) -> impl Iterator<Item = &str> {
        self.profiles.iter().map(|(name, _)| &**name)
    }

    pub(crate) fn rules(&self, id: ProfileId) -> &Rules {
        &self.profiles[id.0 as usize].1
    }

    /// Returns the settings that the static filters need besides pod and node.
    pub(crate) fn static_rules(&self, shape: &Shape) -> StaticRules<'_> {
        StaticRules {
            rules: self.rules(shape.profile),
            os_filter: self.options.os_filter,
        }
    }

    /// Returns the options of the cluster.
    pub fn options(&self) -> Options {
        self.options
    }

    /// Returns the text of a symbol in a [`crate::Reason`].
    pub fn text(&self, symbol: Symbol) -> &str {
        self.names.text(symbol)
    }

    /// Returns the number of nodes.
    pub fn node_count(&self) -> usize {
        self.node_by_name.len()
    }

    /// Returns the number of bound pods, including those on nodes that do not exist.
    pub fn pod_count(&self) -> usize {
        self.pods.len()
    }

    /// Returns the node with this name.
    pub fn node(&self, name: &str) -> Option<NodeId> {
        self.node_by_name.get(&self.names.find(name)?).copied()
    }

    /// Returns the node with this interned name.
    pub(crate) fn node_of(&self, name: Symbol) -> Option<NodeId> {
        self.node_by_name.get(&name).copied()
    }

    /// Returns the name of a node; empty if the node was removed.
    pub fn node_name(&self, id: NodeId) -> &str {
        let node = self.nodes.get(id.index()).and_then(Option::as_ref);
        node.map_or("", |node| self.names.text(node.fixed.name))
    }

    /// Returns all nodes in an unspecified order.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.iter().flatten().map(|node| node.fixed.id)
    }

    /// Returns a bound pod by its key.
    pub(crate) fn pod_id(&self, key: &str) -> Option<PodId> {
        self.pods.find(key)
    }

    /// Returns the name of the node that a pod is bound to, by the pod's key ([`crate::model::PodSpec::key`]).
    pub fn node_of_pod(&self, key: &str) -> Option<&str> {
        let pod = self.pod(self.pods.find(key)?);
        Some(self.names.text(pod.node_name))
    }

    /// Returns the name of a bound pod, by the pod's key.
    pub fn pod_name(&self, key: &str) -> Option<&str> {
        Some(self.pod(self.pods.find(key)?).name())
    }

    /// Returns the keys of the pods on a node, sorted.
    pub fn pods_on(&self, id: NodeId) -> Vec<&str> {
        let node = self.nodes.get(id.index()).and_then(Option::as_ref);
        let mut keys: Vec<_> = node
            .iter()
            .flat_map(|node| &node.pods)
            .map(|pod| self.pod(*pod).key())
            .collect();
        keys.sort_unstable();
        keys
    }

    /// Returns the template of a class.
    pub fn template(&self, id: PodClassId) -> &PodTemplate {
        self.classes
            .key(id.index())
            .expect("a class id is of the cluster that gave it")
    }

    pub(crate) fn class(&self, id: PodClassId) -> &PodClass {
        &self.classes[id.index()]
    }

    /// Returns what a node shares with other nodes of its class.
    pub(crate) fn node_class(&self, id: NodeId) -> &NodeClass {
        &self.node_classes[self.at(id).fixed.class.index()]
    }

    /// Returns an existing node.
    pub(crate) fn at(&self, id: NodeId) -> &Node {
        self.nodes[id.index()]
            .as_ref()
            .expect("ids in use name nodes that are there")
    }

    pub(crate) fn pod(&self, id: PodId) -> &Pod {
        self.pods.at(id)
    }

    /// Returns the labels of namespaces.
    pub(crate) fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }

    pub(crate) fn names(&self) -> &Interner {
        &self.names
    }

    pub(crate) fn names_mut(&mut self) -> &mut Interner {
        &mut self.names
    }

    /// Returns a node as selectors see it.
    pub(crate) fn site(&self, id: NodeId) -> Site<'_> {
        let fixed = &self.at(id).fixed;
        Site {
            name: fixed.name,
            labels: &fixed.labels,
            names: &self.names,
        }
    }

    pub(crate) fn storage(&self) -> &Storage {
        &self.storage
    }

    pub(crate) fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Returns the facts that a shape's image score depends on: size and number of holders of each image, and the
    /// number of nodes. Empty if no node has any of the images.
    fn image_facts(&self, shape: &Shape) -> Vec<(i64, u32)> {
        if self.images.is_empty() {
            return Vec::new();
        }
        let mut facts: Vec<_> = shape
            .images
            .iter()
            .map(|image| self.image(*image))
            .collect();
        // Most clusters report no image of a given pod, and then the number of nodes must not make the facts differ.
        if facts.iter().all(|(_, holders)| *holders == 0) {
            facts.clear();
        } else {
            // Scores divide by the number of nodes, so that is a fact as well.
            facts.push((self.node_count() as i64, 0));
        }
        facts
    }

    /// Returns the size of an image and the number of nodes that have it.
    pub(crate) fn image(&self, name: Symbol) -> (i64, u32) {
        self.images
            .get(&name)
            .map_or((0, 0), |image| (image.size_bytes, image.nodes))
    }
}
