//! The graph of owner references between objects, as seen by watches. Pure: changes go in, work items come out.
//!
//! A node is an object. An object that is known only from references to it is *virtual* until a watch confirms it.
//! Invariant: the `dependents` of a node are exactly the nodes with a reference to its uid.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use rustc_hash::FxHashMap;

use super::{FOREGROUND, ORPHAN};

/// The uid of an object.
pub(super) type Uid = Arc<str>;

/// A work item for the collector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Work {
    /// Check whether the object can be deleted, or, if it waits for dependents, whether its deletion can complete.
    Delete(Uid),
    /// Remove the object's reference from its dependents.
    Orphan(Uid),
}

/// The kind, namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) api_version: Arc<str>,
    pub(super) kind: Arc<str>,
    pub(super) namespace: Arc<str>,
    pub(super) name: Arc<str>,
}

/// An object of the graph.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) identity: Identity,
    pub(super) owners: Vec<OwnerReference>,
    pub(super) dependents: BTreeSet<Uid>,
    /// Whether the object has a deletion timestamp.
    pub(super) deleting: bool,
    /// Whether the object is in foreground deletion.
    pub(super) waits_for_dependents: bool,
    orphans_dependents: bool,
    /// Whether the object is known only from references.
    pub(super) is_virtual: bool,
}

/// All objects by uid.
#[derive(Debug, Default)]
pub(super) struct Graph {
    nodes: FxHashMap<Uid, Node>,
}

impl Graph {
    pub(super) fn node(&self, uid: &str) -> Option<&Node> {
        self.nodes.get(uid)
    }

    /// Returns the dependents of `uid` that block its foreground deletion.
    pub(super) fn blocking_dependents(&self, uid: &str) -> Vec<Uid> {
        let Some(node) = self.nodes.get(uid) else {
            return Vec::new();
        };
        let blocks = |dependent: &&Uid| {
            let owners = self
                .nodes
                .get(&***dependent)
                .map(|dependent| dependent.owners.as_slice())
                .unwrap_or_default();
            owners
                .iter()
                .any(|owner| owner.uid == uid && owner.block_owner_deletion == Some(true))
        };
        node.dependents.iter().filter(blocks).cloned().collect()
    }

    /// Adds or updates an object; returns the work that follows.
    pub(super) fn observe(
        &mut self,
        api_version: &str,
        kind: &str,
        meta: &ObjectMeta,
    ) -> Vec<Work> {
        let Some(uid) = meta.uid.as_deref() else {
            return Vec::new();
        };
        let has = |finalizer: &str| meta.finalizers.iter().flatten().any(|own| own == finalizer);
        let deleting = meta.deletion_timestamp.is_some();
        let owners = meta.owner_references.clone().unwrap_or_default();
        let mut work = Vec::new();
        let uid: Uid = uid.into();

        let (former_owners, was_waiting, was_orphaning) = match self.nodes.get_mut(&uid) {
            Some(node) => {
                node.is_virtual = false;
                node.deleting = deleting;
                let former = std::mem::replace(&mut node.owners, owners.clone());
                (former, node.waits_for_dependents, node.orphans_dependents)
            }
            None => {
                let node = Node {
                    identity: identity(api_version, kind, meta),
                    owners: owners.clone(),
                    dependents: BTreeSet::new(),
                    deleting,
                    waits_for_dependents: false,
                    orphans_dependents: false,
                    is_virtual: false,
                };
                self.nodes.insert(Uid::clone(&uid), node);
                (Vec::new(), false, false)
            }
        };
        // Linked before the flags are set: links made in this change must be judged by the old state of the
        // owner.
        self.relink(&uid, &former_owners, &owners, &mut work);

        let (waiting, orphaning) = (deleting && has(FOREGROUND), deleting && has(ORPHAN));
        let Some(node) = self.nodes.get_mut(&uid) else {
            return work;
        };
        node.waits_for_dependents = waiting;
        node.orphans_dependents = orphaning;
        if orphaning && !was_orphaning {
            work.push(Work::Orphan(Uid::clone(&uid)));
        }
        if waiting && !was_waiting {
            // The owner is queued too: if no dependent blocks it, its deletion can complete at once.
            work.extend(node.dependents.iter().cloned().map(Work::Delete));
            work.push(Work::Delete(uid));
        }
        work
    }

    /// Removes an object that was deleted or never existed; returns the work that follows.
    pub(super) fn remove(&mut self, uid: &str) -> Vec<Work> {
        let Some(node) = self.nodes.remove(uid) else {
            return Vec::new();
        };
        let mut work: Vec<_> = node.dependents.iter().cloned().map(Work::Delete).collect();
        for owner in &node.owners {
            if let Some(owner_node) = self.nodes.get_mut(owner.uid.as_str()) {
                owner_node.dependents.remove(uid);
                if owner_node.waits_for_dependents {
                    work.push(Work::Delete(owner.uid.as_str().into()));
                }
            }
        }
        work
    }

    fn relink(
        &mut self,
        uid: &Uid,
        former: &[OwnerReference],
        now: &[OwnerReference],
        work: &mut Vec<Work>,
    ) {
        for owner in former {
            let kept = now.iter().find(|other| other.uid == owner.uid);
            let unblocked = owner.block_owner_deletion == Some(true)
                && kept.is_none_or(|kept| kept.block_owner_deletion != Some(true));
            if let Some(node) = self.nodes.get_mut(owner.uid.as_str()) {
                // A reference that merely stopped blocking still makes the object a dependent.
                if kept.is_none() {
                    node.dependents.remove(uid);
                }
                if unblocked && node.waits_for_dependents {
                    work.push(Work::Delete(owner.uid.as_str().into()));
                }
            }
        }
        let namespace = self
            .nodes
            .get(uid)
            .map(|node| Arc::clone(&node.identity.namespace))
            .unwrap_or_default();
        for owner in now {
            match self.nodes.get_mut(owner.uid.as_str()) {
                Some(node) => {
                    let is_new = node.dependents.insert(Uid::clone(uid));
                    // The dependent was created after its owner's foreground deletion began, or its reference does not
                    // match the owner.
                    if is_new && (node.waits_for_dependents || !refers_to(owner, &namespace, node))
                    {
                        work.push(Work::Delete(Uid::clone(uid)));
                    }
                }
                None => {
                    let owner_uid: Uid = owner.uid.as_str().into();
                    self.nodes.insert(
                        Uid::clone(&owner_uid),
                        virtual_owner(owner, &namespace, uid),
                    );
                    // The owner must be looked up: if it does not exist, no watch event would ever collect the
                    // dependent.
                    work.push(Work::Delete(owner_uid));
                }
            }
        }
    }
}

/// Returns whether a reference from `namespace` matches the node's kind, name and namespace; only then does the owner
/// keep the dependent.
fn refers_to(reference: &OwnerReference, namespace: &str, node: &Node) -> bool {
    let Identity {
        api_version,
        kind,
        namespace: place,
        name,
    } = &node.identity;
    (place.is_empty() || **place == *namespace)
        && **api_version == *reference.api_version
        && **kind == *reference.kind
        && **name == *reference.name
}

fn identity(api_version: &str, kind: &str, meta: &ObjectMeta) -> Identity {
    Identity {
        api_version: api_version.into(),
        kind: kind.into(),
        namespace: meta.namespace.as_deref().unwrap_or_default().into(),
        name: meta.name.as_deref().unwrap_or_default().into(),
    }
}

fn virtual_owner(reference: &OwnerReference, namespace: &Arc<str>, dependent: &Uid) -> Node {
    Node {
        identity: Identity {
            api_version: reference.api_version.as_str().into(),
            kind: reference.kind.as_str().into(),
            namespace: Arc::clone(namespace),
            name: reference.name.as_str().into(),
        },
        owners: Vec::new(),
        dependents: BTreeSet::from([Uid::clone(dependent)]),
        deleting: false,
        waits_for_dependents: false,
        orphans_dependents: false,
        is_virtual: true,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn meta(uid: &str, owners: &[(&str, bool)], finalizer: Option<&str>) -> ObjectMeta {
        let reference = |(owner, blocks): &(&str, bool)| OwnerReference {
            api_version: "v1".to_owned(),
            kind: "ConfigMap".to_owned(),
            name: (*owner).to_owned(),
            uid: (*owner).to_owned(),
            block_owner_deletion: Some(*blocks),
            controller: None,
        };
        ObjectMeta {
            name: Some(uid.to_owned()),
            namespace: Some("ns".to_owned()),
            uid: Some(uid.to_owned()),
            owner_references: Some(owners.iter().map(reference).collect()),
            finalizers: finalizer.map(|finalizer| vec![finalizer.to_owned()]),
            deletion_timestamp: finalizer.map(|_| Time(jiff::Timestamp::UNIX_EPOCH)),
            ..ObjectMeta::default()
        }
    }

    fn observe(
        graph: &mut Graph,
        uid: &str,
        owners: &[(&str, bool)],
        finalizer: Option<&str>,
    ) -> Vec<Work> {
        graph.observe("v1", "ConfigMap", &meta(uid, owners, finalizer))
    }

    fn delete(uid: &str) -> Work {
        Work::Delete(uid.into())
    }

    #[test]
    fn dependents_are_looked_at_when_their_owner_goes() {
        let mut graph = Graph::default();
        assert_eq!(observe(&mut graph, "owner", &[], None), []);
        assert_eq!(observe(&mut graph, "child", &[("owner", true)], None), []);
        assert_eq!(graph.remove("owner"), [delete("child")]);
    }

    #[test]
    fn an_owner_nobody_has_seen_is_verified() {
        let mut graph = Graph::default();
        assert_eq!(
            observe(&mut graph, "child", &[("ghost", true)], None),
            [delete("ghost")]
        );
        assert!(graph.node("ghost").expect("a virtual node").is_virtual);
        assert_eq!(graph.remove("ghost"), [delete("child")]);
        assert_eq!(
            observe(&mut graph, "second", &[("late", true)], None),
            [delete("late")]
        );
        assert_eq!(observe(&mut graph, "late", &[], None), []);
        assert!(!graph.node("late").expect("a node").is_virtual);
        assert!(
            graph
                .node("late")
                .expect("a node")
                .dependents
                .contains("second")
        );
    }

    #[test]
    fn foreground_deletion_looks_at_all_dependents_and_blocking_ones_hold_it_up() {
        let mut graph = Graph::default();
        observe(&mut graph, "owner", &[], None);
        observe(&mut graph, "a", &[("owner", true)], None);
        observe(&mut graph, "b", &[("owner", false)], None);
        let work = observe(&mut graph, "owner", &[], Some(FOREGROUND));
        assert_eq!(work, [delete("a"), delete("b"), delete("owner")]);
        assert_eq!(graph.blocking_dependents("owner"), [Uid::from("a")]);
        assert_eq!(
            observe(&mut graph, "owner", &[], Some(FOREGROUND)),
            [],
            "once is enough"
        );
        assert_eq!(graph.remove("a"), [delete("owner")]);
        assert!(graph.blocking_dependents("owner").is_empty());
    }

    #[test]
    fn a_dependent_that_stops_blocking_wakes_the_owner_that_waits_for_it() {
        let mut graph = Graph::default();
        observe(&mut graph, "owner", &[], None);
        observe(&mut graph, "a", &[("owner", true)], None);
        observe(&mut graph, "b", &[("owner", true)], None);
        observe(&mut graph, "owner", &[], Some(FOREGROUND));
        assert_eq!(
            observe(&mut graph, "a", &[("owner", false)], None),
            [delete("owner")]
        );
        assert_eq!(observe(&mut graph, "b", &[], None), [delete("owner")]);
        assert!(
            !graph
                .node("owner")
                .expect("a node")
                .dependents
                .contains("b")
        );
    }

    #[test]
    fn a_dependent_that_comes_late_is_told_too() {
        let mut graph = Graph::default();
        observe(&mut graph, "owner", &[], Some(FOREGROUND));
        assert_eq!(
            observe(&mut graph, "late", &[("owner", true)], None),
            [delete("late")]
        );
    }

    #[test]
    fn a_reference_that_does_not_name_its_owner_as_it_is_is_looked_at() {
        let mut graph = Graph::default();
        observe(&mut graph, "owner", &[], None);
        let mut elsewhere = meta("child", &[("owner", true)], None);
        elsewhere.namespace = Some("other".to_owned());
        assert_eq!(
            graph.observe("v1", "ConfigMap", &elsewhere),
            [delete("child")]
        );
        let mut misnamed = meta("second", &[("owner", true)], None);
        misnamed.owner_references.as_mut().expect("set by meta")[0].kind = "Secret".to_owned();
        assert_eq!(
            graph.observe("v1", "ConfigMap", &misnamed),
            [delete("second")]
        );
    }

    #[test]
    fn orphaning_is_asked_for_once() {
        let mut graph = Graph::default();
        observe(&mut graph, "owner", &[], None);
        assert_eq!(
            observe(&mut graph, "owner", &[], Some(ORPHAN)),
            [Work::Orphan("owner".into())]
        );
        assert_eq!(observe(&mut graph, "owner", &[], Some(ORPHAN)), []);
    }
}
