//! Processes work items of the graph: reads the object from the API server, and deletes, releases or
//! unblocks it.

use std::sync::PoisonError;

use k8s_openapi::{
    api::core::v1::ObjectReference,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, Preconditions, PropagationPolicy},
    core::{DynamicObject, PartialObjectMeta},
};
use serde_json::json;

use super::{
    FOREGROUND, ORPHAN, Shared,
    graph::{Identity, Node, Uid, Work},
    monitors::SharedKinds,
    references::{Owner, Propagation, Verdict, judge},
};
use crate::{Context, EventType, Recorder, api_error, discovery::Kind};

type Metadata = PartialObjectMeta<DynamicObject>;

/// Why a work item has to be retried.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("the API serves no kind {kind} in {api_version}")]
    UnknownKind { api_version: String, kind: String },
    #[error("{0} has not been observed yet")]
    Unobserved(Uid),
}

pub(super) struct Collector {
    context: Context,
    shared: Shared,
    kinds: SharedKinds,
    recorder: Recorder,
}

impl Collector {
    pub(super) fn new(context: &Context, shared: Shared, kinds: SharedKinds) -> Self {
        Self {
            context: context.clone(),
            shared,
            kinds,
            recorder: context.recorder("garbage-collector-controller"),
        }
    }

    pub(super) async fn process(&self, work: Work) -> Result<(), Error> {
        match work {
            Work::Delete(uid) => self.attempt_to_delete(&uid).await,
            Work::Orphan(uid) => self.orphan_dependents(&uid).await,
        }
    }

    async fn attempt_to_delete(&self, uid: &Uid) -> Result<(), Error> {
        let Some(node) = self.shared.graph().node(uid).cloned() else {
            return Ok(());
        };
        // The object is on its way out by another finalizer, which this controller has nothing to do with.
        if node.deleting && !node.waits_for_dependents {
            return Ok(());
        }
        let kind = self.kind(&node.identity.api_version, &node.identity.kind)?;
        let api = self.api(&kind, &node.identity.namespace);
        let live = api
            .get_opt(&node.identity.name)
            .await?
            // An object recreated under the name is another one, with owners of its own.
            .filter(|live| live.metadata.uid.as_deref() == Some(&**uid));
        let Some(live) = live else {
            // The object was deleted unseen; its dependents are processed as if the watch had reported
            // it.
            self.shared.update(|graph| graph.remove(uid));
            return Ok(());
        };
        if node.waits_for_dependents {
            return self.release_when_unblocked(uid, &api, &live.metadata).await;
        }
        let references = live.metadata.owner_references.clone().unwrap_or_default();
        let mut owners = Vec::with_capacity(references.len());
        for reference in references {
            let owner = self.look_at_owner(&reference, uid, &node).await?;
            owners.push((reference, owner));
        }
        // Taken from the graph after the owners were read, since reading them takes time.
        let (dependents, dependent_waits) = self.dependents_of(uid);
        match judge(&live.metadata, &owners, dependents, dependent_waits) {
            Verdict::Keep => {}
            Verdict::KeepReferences(references) => {
                self.patch_owners(&api, &live.metadata, &references).await?
            }
            Verdict::Delete(propagation) => self.delete(&api, &live.metadata, propagation).await?,
            Verdict::UnblockAndDelete(references) => {
                self.patch_owners(&api, &live.metadata, &references).await?;
                // The patch changed the resourceVersion, so the deletion's precondition would fail; the
                // retry deletes.
                return Err(Error::Unobserved(Uid::clone(uid)));
            }
        }
        // A virtual node is retried until its kind's watch has confirmed or removed it.
        if node.is_virtual {
            Err(Error::Unobserved(Uid::clone(uid)))
        } else {
            Ok(())
        }
    }

    /// Completes a foreground deletion if no dependent blocks it; otherwise queues the blocking
    /// dependents.
    async fn release_when_unblocked(
        &self,
        uid: &Uid,
        api: &Api<Metadata>,
        live: &ObjectMeta,
    ) -> Result<(), Error> {
        let blocking = self.shared.graph().blocking_dependents(uid);
        if blocking.is_empty() {
            return self.remove_finalizer(api, live, FOREGROUND).await;
        }
        for dependent in blocking {
            let waits = self
                .shared
                .graph()
                .node(&dependent)
                .is_some_and(|node| node.waits_for_dependents);
            if !waits {
                self.shared.queue.add(Work::Delete(dependent));
            }
        }
        Ok(())
    }

    async fn look_at_owner(
        &self,
        reference: &OwnerReference,
        uid: &Uid,
        node: &Node,
    ) -> Result<Owner, Error> {
        let kind = self.kind(&reference.api_version, &reference.kind)?;
        let identity = &node.identity;
        if kind.namespaced && identity.namespace.is_empty() {
            // The reference is invalid (a cluster-scoped object with a namespaced owner); it never
            // causes a deletion.
            self.warn_about_other_namespace(reference, uid, identity);
            return Ok(Owner::Solid);
        }
        let live = self
            .api(&kind, &identity.namespace)
            .get_opt(&reference.name)
            .await?;
        match live {
            Some(live) if live.metadata.uid.as_deref() == Some(reference.uid.as_str()) => {
                let waits = live.metadata.deletion_timestamp.is_some()
                    && live
                        .metadata
                        .finalizers
                        .iter()
                        .flatten()
                        .any(|finalizer| finalizer == FOREGROUND);
                Ok(if waits {
                    Owner::WaitsForDependents
                } else {
                    Owner::Solid
                })
            }
            _ => {
                self.warn_about_other_namespace(reference, uid, identity);
                Ok(Owner::Absent)
            }
        }
    }

    /// Records an event if an owner exists only in another namespace, which makes the reference
    /// invalid.
    fn warn_about_other_namespace(
        &self,
        reference: &OwnerReference,
        uid: &Uid,
        dependent: &Identity,
    ) {
        let elsewhere = self
            .shared
            .graph()
            .node(&reference.uid)
            .is_some_and(|owner| {
                !owner.is_virtual
                    && !owner.identity.namespace.is_empty()
                    && owner.identity.namespace != dependent.namespace
            });
        if elsewhere {
            let message = format!(
                "ownerRef [{}/{}, namespace: {}, name: {}, uid: {}] does not exist in namespace \"{}\"",
                reference.api_version,
                reference.kind,
                dependent.namespace,
                reference.name,
                reference.uid,
                dependent.namespace,
            );
            self.recorder.record(
                involved(uid, dependent),
                EventType::Warning,
                "OwnerRefInvalidNamespace",
                message,
            );
        }
    }

    /// Returns the number of an object's dependents, and whether one of them is in foreground deletion.
    fn dependents_of(&self, uid: &Uid) -> (usize, bool) {
        let graph = self.shared.graph();
        let Some(node) = graph.node(uid) else {
            return (0, false);
        };
        let mut dependents = node
            .dependents
            .iter()
            .filter_map(|dependent| graph.node(dependent));
        (
            node.dependents.len(),
            dependents.any(|dependent| dependent.waits_for_dependents),
        )
    }

    async fn orphan_dependents(&self, uid: &Uid) -> Result<(), Error> {
        let Some(node) = self.shared.graph().node(uid).cloned() else {
            return Ok(());
        };
        for dependent in &node.dependents {
            let Some(dependent) = self.shared.graph().node(dependent).cloned() else {
                continue;
            };
            let kind = self.kind(&dependent.identity.api_version, &dependent.identity.kind)?;
            let api = self.api(&kind, &dependent.identity.namespace);
            let Some(live) = api.get_opt(&dependent.identity.name).await? else {
                continue;
            };
            let mut others = live.metadata.owner_references.clone().unwrap_or_default();
            others.retain(|owner| owner.uid != **uid);
            if Some(others.len()) != live.metadata.owner_references.as_ref().map(Vec::len) {
                self.patch_owners(&api, &live.metadata, &others).await?;
            }
        }
        let kind = self.kind(&node.identity.api_version, &node.identity.kind)?;
        let api = self.api(&kind, &node.identity.namespace);
        // The finalizer goes last: after an interruption the owner is still there and its dependents are done
        // again.
        match api.get_opt(&node.identity.name).await? {
            Some(live) if live.metadata.uid.as_deref() == Some(&**uid) => {
                self.remove_finalizer(&api, &live.metadata, ORPHAN).await
            }
            _ => Ok(()),
        }
    }

    async fn delete(
        &self,
        api: &Api<Metadata>,
        live: &ObjectMeta,
        propagation: Propagation,
    ) -> Result<(), Error> {
        let policy = match propagation {
            Propagation::Background => PropagationPolicy::Background,
            Propagation::Foreground => PropagationPolicy::Foreground,
            Propagation::Orphan => PropagationPolicy::Orphan,
        };
        let preconditions = Preconditions {
            uid: live.uid.clone(),
            // If an owner was added since the read, the deletion fails and the object is judged again.
            resource_version: live.resource_version.clone(),
        };
        let params = DeleteParams {
            propagation_policy: Some(policy),
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        let deleted = api
            .delete(live.name.as_deref().unwrap_or_default(), &params)
            .await;
        api_error::ignore_not_found(deleted)?;
        Ok(())
    }

    async fn patch_owners(
        &self,
        api: &Api<Metadata>,
        live: &ObjectMeta,
        references: &[OwnerReference],
    ) -> Result<(), Error> {
        let list = (!references.is_empty()).then_some(references);
        self.patch(api, live, json!({"ownerReferences": list}))
            .await
    }

    async fn remove_finalizer(
        &self,
        api: &Api<Metadata>,
        live: &ObjectMeta,
        finalizer: &str,
    ) -> Result<(), Error> {
        let present = live.finalizers.iter().flatten();
        let others: Vec<_> = present.filter(|other| *other != finalizer).collect();
        if others.len() == live.finalizers.as_ref().map_or(0, Vec::len) {
            return Ok(());
        }
        self.patch(
            api,
            live,
            json!({"finalizers": (!others.is_empty()).then_some(others)}),
        )
        .await
    }

    /// Patches `metadata`, with uid and resourceVersion as preconditions.
    async fn patch(
        &self,
        api: &Api<Metadata>,
        live: &ObjectMeta,
        mut metadata: serde_json::Value,
    ) -> Result<(), Error> {
        metadata["resourceVersion"] = json!(live.resource_version);
        metadata["uid"] = json!(live.uid);
        let patch = Patch::Merge(json!({"metadata": metadata}));
        let patched = api
            .patch(
                live.name.as_deref().unwrap_or_default(),
                &PatchParams::default(),
                &patch,
            )
            .await;
        api_error::ignore_not_found(patched)?;
        Ok(())
    }

    fn kind(&self, api_version: &str, kind: &str) -> Result<Kind, Error> {
        let kinds = self.kinds.read().unwrap_or_else(PoisonError::into_inner);
        kinds
            .find(api_version, kind)
            .cloned()
            .ok_or_else(|| Error::UnknownKind {
                api_version: api_version.to_owned(),
                kind: kind.to_owned(),
            })
    }

    fn api(&self, kind: &Kind, namespace: &str) -> Api<Metadata> {
        if kind.namespaced {
            Api::namespaced_with(self.context.client.clone(), namespace, &kind.resource)
        } else {
            Api::all_with(self.context.client.clone(), &kind.resource)
        }
    }
}

fn involved(uid: &Uid, identity: &Identity) -> ObjectReference {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    ObjectReference {
        api_version: some(&identity.api_version),
        kind: some(&identity.kind),
        namespace: some(&identity.namespace),
        name: some(&identity.name),
        uid: Some(uid.to_string()),
        ..ObjectReference::default()
    }
}
