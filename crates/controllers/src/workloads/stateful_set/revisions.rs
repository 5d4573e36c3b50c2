//! Stores the ControllerRevisions of StatefulSets: every template that the set has had, as a patch that restores
//! it.
//!
//! `kubectl rollout history` and `undo` read them. Invariant: the revision of the current template has the highest
//! number, and revisions are compared by their data, never by their hash, which may collide.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::{
    apps::v1::{ControllerRevision, StatefulSet},
    core::v1::Pod,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, PostParams},
    core::Selector,
};
use serde_json::Value;

use super::identity;
use crate::{
    Context, Informer, api_error,
    informer::IndexFn,
    informers::{BY_CONTROLLER, controller_uid},
    ownership,
    workloads::revision,
};

/// The label with a revision's hash.
const HASH: &str = "controller.kubernetes.io/hash";

/// The revisions from which pods are created.
#[derive(Debug)]
pub(super) struct Revisions {
    /// The revision that pods had before the update in progress; the same as `update` if there is none.
    pub(super) current: Arc<ControllerRevision>,
    /// The revision of the current template.
    pub(super) update: Arc<ControllerRevision>,
    /// How many times a hash was already taken.
    pub(super) collisions: i32,
    all: Vec<Arc<ControllerRevision>>,
}

/// Reads and writes the revisions in the API.
pub(super) struct RevisionStore {
    client: Client,
    informer: Informer<ControllerRevision>,
}

impl RevisionStore {
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

    /// Returns the revisions of a set. The revision of its current template is created, or its number raised, if
    /// needed.
    pub(super) async fn update(
        &self,
        set: &StatefulSet,
        selector: &Selector,
    ) -> kube::Result<Revisions> {
        let namespace = set.namespace().unwrap_or_default();
        let (client, informer) = (&self.client, &self.informer);
        let mut all = ownership::claim_from(client, set, selector, informer, |_| true).await?;
        all.sort_by_key(|revision| {
            (
                revision.revision,
                revision.creation_timestamp(),
                revision.name_any(),
            )
        });
        let data = revision::data_of(set.spec.as_ref().map(|spec| &spec.template));
        let number = all.last().map_or(1, |last| last.revision + 1);
        let status = set.status.as_ref();
        let mut collisions = status
            .and_then(|status| status.collision_count)
            .unwrap_or(0);
        let equal = all
            .iter()
            // Equal revisions can exist after an adoption; the newest is the one to keep using.
            .rev()
            .find(|revision| revision::holds(revision, &data));
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
            let template = set.spec.as_ref().map(|spec| &spec.template);
            let counted = (*collisions > 0).then_some(*collisions);
            let wanted = revision::new_revision(set, template, HASH, number, counted);
            match api.create(&PostParams::default(), &wanted).await {
                Err(error) if api_error::is_already_exists(&error) => {}
                outcome => return outcome,
            }
            let existing = api.get(&wanted.name_any()).await?;
            if revision::holds(&existing, data) {
                return Ok(existing);
            }
            // The count is part of the hash, so the next attempt has another name.
            *collisions += 1;
        }
    }

    /// Deletes the oldest unused revisions beyond the set's limit.
    pub(super) async fn clean_up(
        &self,
        set: &StatefulSet,
        revisions: &Revisions,
        pods: &[Arc<Pod>],
    ) -> kube::Result<()> {
        let spec = set.spec.as_ref();
        let limit = spec.and_then(|spec| spec.revision_history_limit);
        let Ok(limit) = usize::try_from(limit.unwrap_or(revision::DEFAULT_LIMIT)) else {
            return Ok(());
        };
        let mut live: BTreeSet<String> = pods
            .iter()
            .map(|pod| identity::revision(pod).to_owned())
            .collect();
        // A revision in use is kept beyond the limit, or its pods could not be recreated.
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
