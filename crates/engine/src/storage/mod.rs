//! Claims, volumes, storage classes and attach limits, compiled, and their meaning for one pod ([`Plan`]).
//!
//! Invariant: every change increments [`Storage::version`], so a plan is valid for one version. The uses of claims change with
//! every pod, so they are counted outside of the version.

mod migration;
mod object;
mod plan;

use rustc_hash::FxHashMap;

use crate::class::{Attach, Handle, PodClass, Volume as PodVolume};
use crate::intern::Symbol;

pub(crate) use migration::Migration;
pub(crate) use object::{
    Attachment, Capacity, Claim, Class, CsiNode, PLACES, Volume, ZoneDemand, reaches,
};
pub(crate) use plan::{Bound, Candidate, Plan, Provision, Unbound};

/// A namespace and a name.
pub(crate) type Key = (Symbol, Symbol);

/// All storage objects by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Storage {
    version: u64,
    claims: FxHashMap<Key, Claim>,
    volumes: FxHashMap<Symbol, Volume>,
    /// The names of the volumes of each class, in an unspecified order.
    volumes_of: FxHashMap<Symbol, Vec<Symbol>>,
    classes: FxHashMap<Symbol, Class>,
    nodes: FxHashMap<Symbol, CsiNode>,
    /// The drivers, each with whether its new volumes need a published storage capacity.
    drivers: FxHashMap<Symbol, bool>,
    capacities: FxHashMap<Key, Capacity>,
    attachments: FxHashMap<Symbol, Attachment>,
    /// The names of the attachments of each node, in an unspecified order.
    attachments_of: FxHashMap<Symbol, Vec<Symbol>>,
    /// The number of placed pods that use each claim, without ephemeral volumes.
    uses: FxHashMap<Key, u32>,
    /// The lowest limit that any node has ever had.
    least_limit: Option<i64>,
    /// The largest number of attachments that any node has ever had.
    most_attached: usize,
    /// The largest number of volumes that the pods of one node have ever had.
    most_held: usize,
}

/// The new state of one object; `None` if it was deleted.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Claim(Key, Option<Box<Claim>>),
    Volume(Symbol, Option<Box<Volume>>),
    Class(Symbol, Option<Box<Class>>),
    Node(Symbol, Option<Box<CsiNode>>),
    Driver(Symbol, Option<bool>),
    Capacity(Key, Option<Box<Capacity>>),
    Attachment(Symbol, Option<Attachment>),
}

impl Storage {
    /// Applies a change and returns its inverse; `None` if nothing changed.
    pub(crate) fn exchange(&mut self, change: Change) -> Option<Change> {
        let inverse = match change {
            Change::Claim(key, claim) => Change::Claim(
                key,
                swap(&mut self.claims, key, claim.map(|own| *own))?.map(Box::new),
            ),
            Change::Volume(name, volume) => {
                let class = volume.as_ref().map(|volume| volume.class);
                let before = swap(&mut self.volumes, name, volume.map(|own| *own))?;
                file(
                    &mut self.volumes_of,
                    name,
                    before.as_ref().map(|volume| volume.class),
                    class,
                );
                Change::Volume(name, before.map(Box::new))
            }
            Change::Class(name, class) => Change::Class(
                name,
                swap(&mut self.classes, name, class.map(|own| *own))?.map(Box::new),
            ),
            Change::Node(name, node) => {
                // Never raised again when a node goes: the bound may be too low, never too high.
                let limit = node.as_ref().and_then(|node| node.least_limit());
                self.least_limit = [self.least_limit, limit].into_iter().flatten().min();
                let before = swap(&mut self.nodes, name, node.map(|own| *own))?;
                Change::Node(name, before.map(Box::new))
            }
            Change::Driver(name, driver) => {
                Change::Driver(name, swap(&mut self.drivers, name, driver)?)
            }
            Change::Capacity(key, capacity) => {
                let before = swap(&mut self.capacities, key, capacity.map(|own| *own))?;
                Change::Capacity(key, before.map(Box::new))
            }
            Change::Attachment(name, attachment) => {
                let node = attachment.map(|attachment| attachment.node);
                let before = swap(&mut self.attachments, name, attachment)?;
                file(
                    &mut self.attachments_of,
                    name,
                    before.map(|attachment| attachment.node),
                    node,
                );
                let there = node.and_then(|node| self.attachments_of.get(&node));
                self.most_attached = self.most_attached.max(there.map_or(0, Vec::len));
                Change::Attachment(name, before)
            }
        };
        self.version += 1;
        Some(inverse)
    }

    /// Returns the version, which every change increments.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn claim(&self, key: Key) -> Option<&Claim> {
        self.claims.get(&key)
    }

    pub(crate) fn volume(&self, name: Symbol) -> Option<&Volume> {
        self.volumes.get(&name)
    }

    pub(crate) fn class(&self, name: Symbol) -> Option<&Class> {
        self.classes.get(&name)
    }

    pub(crate) fn csi_node(&self, name: Symbol) -> Option<&CsiNode> {
        self.nodes.get(&name)
    }

    fn volumes_of(&self, class: Symbol) -> impl Iterator<Item = (Symbol, &Volume)> {
        let names = self.volumes_of.get(&class).into_iter().flatten();
        names.filter_map(|name| Some((*name, self.volumes.get(name)?)))
    }

    /// Counts the claims of a pod that was placed (`delta` 1) or removed (-1).
    pub(crate) fn count(&mut self, pod: &PodClass, delta: i64) {
        for volume in &pod.volumes {
            let PodVolume::Claim {
                name,
                made_for: None,
            } = volume
            else {
                continue;
            };
            let key = (pod.namespace, *name);
            let uses = self.uses.entry(key).or_default();
            *uses = uses.saturating_add_signed(delta as i32);
            if *uses == 0 {
                self.uses.remove(&key);
            }
        }
    }

    /// Records the number of volumes that the pods of a node have.
    pub(crate) fn hold(&mut self, volumes: u32) {
        self.most_held = self.most_held.max(volumes as usize);
    }

    /// Returns whether no node can reach a limit with `more` additional volumes. The maxima over all nodes and times are
    /// compared with the lowest limit, so this never says `true` wrongly.
    pub(crate) fn is_far_from_limits(&self, more: usize) -> bool {
        let most = self.most_held + self.most_attached + more;
        self.least_limit.is_none_or(|limit| most as i64 <= limit)
    }

    /// Returns whether a placed pod uses a claim.
    pub(crate) fn is_used(&self, key: Key) -> bool {
        self.uses.contains_key(&key)
    }

    /// Returns how a pod's volume counts against the attach limits of a node (kube-scheduler: `filterAttachableVolumes`).
    pub(crate) fn attach(&self, pod: &PodClass, volume: &PodVolume) -> Option<Attach> {
        let (name, made_for) = match volume {
            PodVolume::Disk { attach, .. } => return *attach,
            PodVolume::Claim { name, made_for } => (*name, *made_for),
        };
        let key = (pod.namespace, name);
        let claim = self.claim(key)?;
        // kube-scheduler does not count a claim that was not made for the pod; VolumeBinding refuses the pod for it.
        if made_for.is_some_and(|maker| claim.owner != Some(maker.uid)) {
            return None;
        }
        match self.volume(claim.volume) {
            Some(volume) => volume.attach,
            // If the claim is not bound, or its volume does not exist, the volume counts for the driver of the claim's class.
            None => {
                let driver = self.class(claim.class)?.driver?;
                Some(Attach {
                    driver,
                    handle: Handle::Claim(key.0, key.1),
                })
            }
        }
    }

    /// Returns the volumes that the attach-detach controller has attached to a node, with or without pods.
    pub(crate) fn attached_to(&self, node: Symbol) -> impl Iterator<Item = Attach> + '_ {
        let names = self.attachments_of.get(&node).into_iter().flatten();
        names.filter_map(|name| {
            let attachment = self.attachments.get(name)?;
            let volume = self.volume(attachment.volume)?;
            let attach = volume.attach?;
            // In-tree volumes count by the pods that have them; kube-scheduler leaves them out here.
            let counts = volume.is_csi && attachment.driver != Symbol::EMPTY;
            counts.then_some(Attach {
                driver: attachment.driver,
                ..attach
            })
        })
    }
}

/// Replaces a value and returns the old one; `None` if the two are equal.
fn swap<K: Eq + std::hash::Hash, V: PartialEq>(
    map: &mut FxHashMap<K, V>,
    key: K,
    value: Option<V>,
) -> Option<Option<V>> {
    if map.get(&key) == value.as_ref() {
        return None;
    }
    Some(match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    })
}

/// Moves a name from the list of `before` to the list of `after`.
fn file(
    lists: &mut FxHashMap<Symbol, Vec<Symbol>>,
    name: Symbol,
    before: Option<Symbol>,
    after: Option<Symbol>,
) {
    if before == after {
        return;
    }
    if let Some(before) = before
        && let Some(list) = lists.get_mut(&before)
    {
        list.retain(|own| *own != name);
        if list.is_empty() {
            lists.remove(&before);
        }
    }
    if let Some(after) = after {
        lists.entry(after).or_default().push(name);
    }
}
