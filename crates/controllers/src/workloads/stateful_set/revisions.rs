//! The ControllerRevisions of StatefulSets: every template the set has had, as a patch that brings it back.
//!
//! `kubectl rollout history` and `undo` read them. Invariant: the revision of the present template has the highest
//! number, and revisions are told apart by their data, never by their hash, which may collide.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::{
    api::{
        apps::v1::{ControllerRevision, StatefulSet},
        core::v1::{Pod, PodTemplateSpec},
    },
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, runtime::RawExtension},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, PostParams},
    core::Selector,
};
use serde_json::{Value, json};

use super::identity;
use crate::{
    Context, Informer, api_error,
    informer::IndexFn,
    informers::{BY_CONTROLLER, controller_uid, orphans_of},
    ownership::{self, Claimer},
    workloads::template_hash,
};

/// The label with a revision's hash.
const HASH: &str = "controller.kubernetes.io/hash";
/// Old revisions kept if the set does not say.
const DEFAULT_LIMIT: i32 = 10;

/// The revisions that pods are made from.
#[derive(Debug)]
pub(super) struct Revisions {
    /// The one that pods had before the update under way; the same as `update` if there is none.
    pub(super) current: Arc<ControllerRevision>,
    /// That of the present template.
    pub(super) update: Arc<ControllerRevision>,
    /// How often a hash was taken already.
    pub(super) collisions: i32,
    all: Vec<Arc<ControllerRevision>>,
}

/// Keeps the revisions in the API.
pub(super) struct Keeper {
    client: Client,
    informer: Informer<ControllerRevision>,
}

impl Keeper {
    pub(super) fn new(context: &Context) -> Self {
        let informer = Informer::new(
            Api::all(context.client.clone()),
            &[(BY_CONTROLLER, controller_uid as IndexFn<ControllerRevision>)],
            context.tasks.clone(),
            context.shutdown.clone(),
        );
        Self {
            client: context.client.clone(),
            informer,
        }
    }

    pub(super) async fn synced(&self) -> bool {
        self.informer.synced().await
    }

    /// The revisions of a set, that of its present template made or raised if need be.
    pub(super) async fn update(
        &self,
        set: &StatefulSet,
        selector: &Selector,
    ) -> kube::Result<Revisions> {
        let namespace = set.namespace().unwrap_or_default();
        let uid = set.metadata.uid.as_deref().unwrap_or_default();
        let mut candidates = self.informer.by_index(BY_CONTROLLER, uid);
        candidates.extend(
            self.informer
                .by_index(BY_CONTROLLER, &orphans_of(&namespace)),
        );
        let claimer = Claimer {
            owner: set,
            selector,
            owners: Api::namespaced(self.client.clone(), &namespace),
            objects: self.api(&namespace),
        };
        let mut all = claimer.claim_all(candidates).await?;
        all.sort_by_key(|revision| {
            (
                revision.revision,
                revision.creation_timestamp(),
                revision.name_any(),
            )
        });
        let data = data_of(set);
        let number = all.last().map_or(1, |last| last.revision + 1);
        let status = set.status.as_ref();
        let mut collisions = status
            .and_then(|status| status.collision_count)
            .unwrap_or(0);
        let equal = all.iter().rev().find(|revision| holds(revision, &data));
        let update = match equal {
            Some(equal) if all.last().is_some_and(|last| Arc::ptr_eq(last, equal)) => {
                Arc::clone(equal)
            }
            Some(equal) => {
                let raised = ControllerRevision {
                    revision: number,
                    ..(**equal).clone()
                };
                let api = self.api(&namespace);
                Arc::new(
                    api.replace(&raised.name_any(), &PostParams::default(), &raised)
                        .await?,
                )
            }
            None => Arc::new(self.create(set, &data, number, &mut collisions).await?),
        };
        let named = status.and_then(|status| status.current_revision.as_deref());
        let current = all
            .iter()
            .find(|revision| revision.metadata.name.as_deref() == named);
        Ok(Revisions {
            current: current.cloned().unwrap_or_else(|| Arc::clone(&update)),
            update,
            collisions,
            all,
        })
    }

    async fn create(
        &self,
        set: &StatefulSet,
        data: &Value,
        number: i64,
        collisions: &mut i32,
    ) -> kube::Result<ControllerRevision> {
        let api = self.api(&set.namespace().unwrap_or_default());
        loop {
            let wanted = new_revision(set, data.clone(), number, *collisions);
            match api.create(&PostParams::default(), &wanted).await {
                Err(error) if api_error::is_already_exists(&error) => {}
                outcome => return outcome,
            }
            let existing = api.get(&wanted.name_any()).await?;
            if holds(&existing, data) {
                return Ok(existing);
            }
            *collisions += 1;
        }
    }

    /// Deletes the oldest revisions that nothing needs, beyond the set's limit.
    pub(super) async fn clean_up(
        &self,
        set: &StatefulSet,
        revisions: &Revisions,
        pods: &[Arc<Pod>],
    ) -> kube::Result<()> {
        let spec = set.spec.as_ref();
        let limit = spec.and_then(|spec| spec.revision_history_limit);
        let Ok(limit) = usize::try_from(limit.unwrap_or(DEFAULT_LIMIT)) else {
            return Ok(());
        };
        let mut live: BTreeSet<String> = pods
            .iter()
            .map(|pod| identity::revision(pod).to_owned())
            .collect();
        live.extend([revisions.current.name_any(), revisions.update.name_any()]);
        let old: Vec<_> = revisions
            .all
            .iter()
            .filter(|revision| !live.contains(&revision.name_any()))
            .collect();
        let api = self.api(&set.namespace().unwrap_or_default());
        for revision in old.iter().take(old.len().saturating_sub(limit)) {
            let deleted = api
                .delete(&revision.name_any(), &DeleteParams::default())
                .await;
            api_error::ignore_not_found(deleted)?;
        }
        Ok(())
    }

    fn api(&self, namespace: &str) -> Api<ControllerRevision> {
        Api::namespaced(self.client.clone(), namespace)
    }
}

/// The patch that brings the set's present template back.
fn data_of(set: &StatefulSet) -> Value {
    let template = set.spec.as_ref().map(|spec| &spec.template);
    // Serializing to memory cannot fail: keys are strings and there is no IO.
    let mut template = serde_json::to_value(template).expect("a pod template serializes");
    template["$patch"] = json!("replace");
    json!({ "spec": { "template": template } })
}

fn holds(revision: &ControllerRevision, data: &Value) -> bool {
    revision.data.as_ref().is_some_and(|held| held.0 == *data)
}

/// The template that a revision holds.
pub(super) fn template_of(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let template = revision.data.as_ref()?.0.pointer("/spec/template")?;
    serde_json::from_value(template.clone()).ok()
}

fn new_revision(
    set: &StatefulSet,
    data: Value,
    number: i64,
    collisions: i32,
) -> ControllerRevision {
    let template = set.spec.as_ref().map(|spec| &spec.template);
    let counted = (collisions > 0).then_some(collisions);
    let hash = template.map(|template| template_hash(template, counted));
    let hash = hash.unwrap_or_default();
    let labels = template.and_then(|template| template.metadata.as_ref()?.labels.clone());
    let mut labels = labels.unwrap_or_default();
    labels.insert(HASH.to_owned(), hash.clone());
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", set.name_any())),
            namespace: set.namespace(),
            labels: Some(labels),
            annotations: set.metadata.annotations.clone(),
            owner_references: Some(vec![ownership::controller_reference(set)]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(data)),
        revision: number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_brings_its_template_back() {
        let set: StatefulSet = serde_json::from_value(json!({
            "metadata": { "name": "web", "namespace": "ns" },
            "spec": { "serviceName": "web", "selector": {}, "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "c", "image": "i" }] },
            } },
        }))
        .expect("a StatefulSet");
        let data = data_of(&set);
        let revision = new_revision(&set, data.clone(), 3, 0);
        assert!(holds(&revision, &data));
        assert_eq!(template_of(&revision), set.spec.map(|spec| spec.template));
        assert_eq!(revision.labels()["app"], "web");
    }
}
