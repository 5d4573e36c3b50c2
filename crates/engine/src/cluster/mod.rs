//! The one mutable model: nodes, pods and the objects that matter to placing, fed by deltas.
//!
//! Never rebuilt. [`Cluster::checkpoint`] and [`Cluster::rollback`] ([`undo`]) let what-if questions run on the model
//! itself. Invariant: everything derived (classes, verdicts, views) always equals what a fresh cluster with the same
//! nodes and pods would hold, so order of insertion is never visible in an answer.
//! Deltas are in [`delta`], questions in [`crate::schedule`].

mod board;
mod delta;
mod node;
mod nominated;
mod object;
mod pod;
mod thought;
mod undo;
mod views;

use indexmap::{IndexMap, IndexSet};
use rustc_hash::{FxBuildHasher, FxHashMap};

pub use node::NodeId;
pub use undo::Checkpoint;

pub(crate) use node::{ImageHolders, Node, NodeFixed};
pub(crate) use pod::{Pod, PodId};
pub(crate) use views::Question;

use crate::class::{Namespaces, NodeClass, PodClass, PodClassId, Shape, ShapeId, ShapeVerdicts};
use crate::error::ModelError;
use crate::intern::{Interner, Symbol};
use crate::model::PodTemplate;
use crate::topology::{Effect, View};
use board::{Board, Journal};
use object::Objects;
use undo::Undo;

/// Switches of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// `spec.os.name` counts as a requirement on the node's operating system. Upstream ignores it.
    pub os_filter: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { os_filter: true }
    }
}

/// The effects of one pod class on the view of another.
#[derive(Clone, Debug)]
struct Affects {
    view: PodClassId,
    effects: Box<[Effect]>,
}

/// The model of one Kubernetes cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    options: Options,
    names: Interner,
    nodes: Vec<Option<Node>>,
    free_nodes: Vec<NodeId>,
    node_by_name: FxHashMap<Symbol, NodeId>,
    node_classes: IndexSet<NodeClass, FxBuildHasher>,
    images: FxHashMap<Symbol, ImageHolders>,
    pods: Vec<Option<Pod>>,
    free_pods: Vec<PodId>,
    pod_by_key: FxHashMap<Box<str>, PodId>,
    /// Pods bound to a node that is not there (yet, or any more).
    orphans: FxHashMap<Symbol, Vec<PodId>>,
    /// Pods that preemption makes room for, by node name.
    nominated: FxHashMap<Symbol, Vec<(Box<str>, PodClassId)>>,
    classes: IndexMap<PodTemplate, PodClass, FxBuildHasher>,
    shapes: IndexSet<Shape, FxBuildHasher>,
    /// By shape.
    verdicts: Vec<ShapeVerdicts>,
    /// By shape.
    boards: Vec<Option<Box<Board>>>,
    /// By class, of those that are spread.
    spread_boards: Vec<Option<Box<Board>>>,
    journal: Journal,
    views: Vec<Option<Box<View>>>,
    affects: Vec<Vec<Affects>>,
    namespaces: Namespaces,
    objects: Objects,
    log: Vec<Undo>,
    checkpoints: u32,
}

impl Cluster {
    /// A cluster without anything in it.
    pub fn new(options: Options) -> Self {
        Cluster {
            options,
            names: Interner::default(),
            nodes: Vec::new(),
            free_nodes: Vec::new(),
            node_by_name: FxHashMap::default(),
            node_classes: IndexSet::default(),
            images: FxHashMap::default(),
            pods: Vec::new(),
            free_pods: Vec::new(),
            pod_by_key: FxHashMap::default(),
            orphans: FxHashMap::default(),
            nominated: FxHashMap::default(),
            classes: IndexMap::default(),
            shapes: IndexSet::default(),
            verdicts: Vec::new(),
            boards: Vec::new(),
            spread_boards: Vec::new(),
            journal: Journal::default(),
            views: Vec::new(),
            affects: Vec::new(),
            namespaces: Namespaces::default(),
            objects: Objects::default(),
            log: Vec::new(),
            checkpoints: 0,
        }
    }

    /// The switches it was made with.
    pub fn options(&self) -> Options {
        self.options
    }

    /// The text of a symbol in a [`crate::Reason`].
    pub fn text(&self, symbol: Symbol) -> &str {
        self.names.text(symbol)
    }

    /// How many nodes there are.
    pub fn node_count(&self) -> usize {
        self.node_by_name.len()
    }

    /// How many pods are bound, to nodes that are there or not.
    pub fn pod_count(&self) -> usize {
        self.pod_by_key.len()
    }

    /// The node of a name.
    pub fn node(&self, name: &str) -> Option<NodeId> {
        self.node_by_name.get(&self.names.find(name)?).copied()
    }

    /// The name of a node; empty if it is gone.
    pub fn node_name(&self, id: NodeId) -> &str {
        let node = self.nodes.get(id.index()).and_then(Option::as_ref);
        node.map_or("", |node| self.names.text(node.fixed.name))
    }

    /// All nodes, in an order that means nothing.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.iter().flatten().map(|node| node.fixed.id)
    }

    /// The node a pod is on, by the pod's key ([`crate::model::PodSpec::key`]).
    pub fn node_of_pod(&self, key: &str) -> Option<&str> {
        let pod = self.pod(*self.pod_by_key.get(key)?);
        Some(self.names.text(pod.node_name))
    }

    /// Keys of the pods on a node, sorted.
    pub fn pods_on(&self, id: NodeId) -> Vec<&str> {
        let node = self.nodes.get(id.index()).and_then(Option::as_ref);
        let mut keys: Vec<_> = node
            .iter()
            .flat_map(|node| &node.pods)
            .map(|pod| &*self.pod(*pod).key)
            .collect();
        keys.sort_unstable();
        keys
    }

    /// The class of a template; pods of equal templates share it.
    ///
    /// # Errors
    /// [`ModelError::NegativeQuantity`] where a request is below zero.
    pub fn pod_class(&mut self, template: &PodTemplate) -> Result<PodClassId, ModelError> {
        if let Some(index) = self.classes.get_index_of(template) {
            return Ok(PodClassId(index as u32));
        }
        let mut class = PodClass::compile(template, &mut self.names)?;
        class.shape_id = self.shape(&class.shape);
        let (index, _) = self.classes.insert_full(template.clone(), class);
        let id = PodClassId(
            u32::try_from(index).expect("fewer than four billion templates fit in memory"),
        );
        self.views.push(None);
        self.spread_boards.push(None);
        self.affects.push(Vec::new());
        self.introduce(id);
        Ok(id)
    }

    fn shape(&mut self, shape: &Shape) -> ShapeId {
        if let Some(index) = self.shapes.get_index_of(shape) {
            return ShapeId(index as u32);
        }
        let (index, _) = self.shapes.insert_full(shape.clone());
        self.verdicts.push(ShapeVerdicts::default());
        self.boards.push(None);
        ShapeId(index as u32)
    }

    /// The template of a class.
    pub fn template(&self, id: PodClassId) -> &PodTemplate {
        self.classes
            .get_index(id.index())
            .expect("a class id is of the cluster that gave it")
            .0
    }

    pub(crate) fn class(&self, id: PodClassId) -> &PodClass {
        &self.classes[id.index()]
    }

    /// A node that is known to be there.
    pub(crate) fn at(&self, id: NodeId) -> &Node {
        self.nodes[id.index()]
            .as_ref()
            .expect("ids in use name nodes that are there")
    }

    pub(crate) fn pod(&self, id: PodId) -> &Pod {
        self.pods[id.index()]
            .as_ref()
            .expect("ids in use name pods that are there")
    }

    pub(crate) fn names(&self) -> &Interner {
        &self.names
    }

    pub(crate) fn names_mut(&mut self) -> &mut Interner {
        &mut self.names
    }

    pub(crate) fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Size and number of holders of an image.
    pub(crate) fn image(&self, name: Symbol) -> (i64, u32) {
        self.images
            .get(&name)
            .map_or((0, 0), |image| (image.size_bytes, image.nodes))
    }
}
