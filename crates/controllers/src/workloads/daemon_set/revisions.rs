//! Stores the ControllerRevisions that [`history`] decides on: one per template, with the highest number for the
//! current one.
//!
//! The informer may lag behind this controller's own writes. A revision that it does not show yet is found when
//! creating the revision again fails, and a number is only raised on the version that was read.

use std::sync::Arc;

use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet},
    core::v1::Pod,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    core::{Selector, SelectorExt},
};
use serde_json::{Value, json};

use super::{
    history::{self, History},
    plan::HASH_LABEL,
};
use crate::{
    Change, Context, Informer, Key, Queue, api_error,
    informer::IndexFn,
    informers::{BY_CONTROLLER, controller_uid},
    ownership,
    workloads::revision,
};

/// The reasons for which a DaemonSet has no current revision yet. All of them disappear when the sync is retried.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("a revision of another template has the name {0}")]
    HashCollision(String),
    #[error("the collision count was changed in the meantime")]
    StaleCollisionCount,
}

/// The result of [`Revisions::update`].
#[derive(Debug)]
pub(super) struct Updated {
    /// The hash with which pods of the current template are labelled.
    pub(super) hash: String,
    /// The revisions of other templates.
    pub(super) old: Vec<Arc<ControllerRevision>>,
}

pub(super) struct Revisions {
    client: Client,
    informer: Informer<ControllerRevision>,
}

impl Revisions {
    /// Creates the store. Changes of revisions by other clients wake their DaemonSets through `queue`.
    pub(super) fn new(context: &Context, queue: &Queue<Key>) -> Self {
        let informer = Informer::new(
            Api::all(context.client.clone()),
            &[(BY_CONTROLLER, controller_uid as IndexFn<ControllerRevision>)],
            context.tasks.clone(),
            context.shutdown.clone(),
        );
        let (sets, queue) = (context.informers.daemon_sets.clone(), queue.clone());
        informer.on_change(move |change| revision_changed(&sets, &queue, change));
        Self {
            client: context.client.clone(),
            informer,
        }
    }

    pub(super) async fn synced(&self) -> bool {
        self.informer.synced().await
    }

    /// Makes the current template's revision the newest one, creating it if needed. `pods` are the DaemonSet's
    /// pods.
    pub(super) async fn update(
        &self,
        set: &DaemonSet,
        selector: &Selector,
        pods: &[Arc<Pod>],
    ) -> Result<Updated, Error> {
        let mut revisions = Vec::new();
        let (client, informer) = (&self.client, &self.informer);
        for revision in ownership::claim_from(client, set, selector, informer, |_| true).await? {
            revisions.push(self.labelled(revision).await?);
        }
        let data = history::data_of(set);
        let history = History::new(revisions, &data);
        let hash = match history.kept() {
            None => {
                let created = self.create(set, &data, history.number()).await?;
                history::hash_of(&created).to_owned()
            }
            Some(kept) => {
                // Twins arise when orphaned revisions are adopted; two hashes for one template would restart
                // pods in vain.
                self.drop_twins(&history.current, kept, pods).await?;
                // After a rollback the current template is an old one, whose revision becomes the newest
                // again.
                self.raise(kept, history.number()).await?;
                history::hash_of(kept).to_owned()
            }
        };
        Ok(Updated {
            hash,
            old: history.old,
        })
    }

    /// Deletes old revisions beyond the DaemonSet's limit.
    pub(super) async fn clean_up(
        &self,
        set: &DaemonSet,
        old: Vec<Arc<ControllerRevision>>,
        pods: &[Arc<Pod>],
    ) -> kube::Result<()> {
        for revision in history::surplus(set, old, pods) {
            self.delete(&revision).await?;
        }
        Ok(())
    }

    /// Returns the revision with a hash label. A revision that another client created without one is labelled with
    /// its name, which cannot collide.
    async fn labelled(
        &self,
        revision: Arc<ControllerRevision>,
    ) -> kube::Result<Arc<ControllerRevision>> {
        if revision.labels().contains_key(HASH_LABEL) {
            return Ok(revision);
        }
        let name = revision.name_any();
        let patch = Patch::Merge(json!({"metadata": {"labels": {HASH_LABEL: name}}}));
        let api = self.api(revision.metadata.namespace.as_deref().unwrap_or_default());
        let patched = api.patch(&name, &PatchParams::default(), &patch).await?;
        Ok(Arc::new(patched))
    }

    /// Deletes all but `kept` of several revisions of the same template, and relabels the pods of the others.
    async fn drop_twins(
        &self,
        twins: &[Arc<ControllerRevision>],
        kept: &Arc<ControllerRevision>,
        pods: &[Arc<Pod>],
    ) -> kube::Result<()> {
        let others: Vec<_> = twins
            .iter()
            .filter(|twin| !Arc::ptr_eq(twin, kept))
            .collect();
        let hash = history::hash_of(kept);
        for pod in pods {
            let of = pod.labels().get(HASH_LABEL);
            if others
                .iter()
                .any(|twin| of.is_some_and(|of| of == history::hash_of(twin)))
            {
                let api: Api<Pod> =
                    Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
                let patch = Patch::Merge(json!({"metadata": {"labels": {HASH_LABEL: hash}}}));
                let patched = api
                    .patch(&pod.name_any(), &PatchParams::default(), &patch)
                    .await;
                api_error::ignore_not_found(patched)?;
            }
        }
        // After the pods are relabelled, so that no pod refers to a deleted revision.
        for twin in others {
            self.delete(twin).await?;
        }
        Ok(())
    }

    async fn raise(&self, revision: &ControllerRevision, number: i64) -> kube::Result<()> {
        if revision.revision >= number {
            return Ok(());
        }
        let raised = ControllerRevision {
            revision: number,
            ..revision.clone()
        };
        self.api(revision.metadata.namespace.as_deref().unwrap_or_default())
            .replace(&revision.name_any(), &PostParams::default(), &raised)
            .await
            .map(drop)
    }

    async fn create(
        &self,
        set: &DaemonSet,
        data: &Value,
        number: i64,
    ) -> Result<ControllerRevision, Error> {
        let wanted = history::new_revision(set, number);
        let api = self.api(set.metadata.namespace.as_deref().unwrap_or_default());
        match api.create(&PostParams::default(), &wanted).await {
            Err(error) if api_error::is_already_exists(&error) => {}
            outcome => return Ok(outcome?),
        }
        let name = wanted.name_any();
        let existing = api.get(&name).await?;
        if revision::holds(&existing, data) {
            return Ok(existing);
        }
        // The error makes the queue sync again, then with another hash.
        self.count_collision(set).await?;
        Err(Error::HashCollision(name))
    }

    /// Changes the hash of the current template by raising the collision count. It is raised only once per
    /// collision: the count from which the hash was computed must still be stored.
    async fn count_collision(&self, set: &DaemonSet) -> Result<(), Error> {
        let count = |set: &DaemonSet| set.status.as_ref()?.collision_count;
        let api: Api<DaemonSet> =
            Api::namespaced(self.client.clone(), &set.namespace().unwrap_or_default());
        let mut live = api.get(&set.name_any()).await?;
        if count(&live) != count(set) {
            return Err(Error::StaleCollisionCount);
        }
        let counted = count(&live).unwrap_or_default() + 1;
        live.status.get_or_insert_default().collision_count = Some(counted);
        api.replace_status(&set.name_any(), &PostParams::default(), &live)
            .await?;
        Ok(())
    }

    async fn delete(&self, revision: &ControllerRevision) -> kube::Result<()> {
        let api = self.api(revision.metadata.namespace.as_deref().unwrap_or_default());
        let deleted = api
            .delete(&revision.name_any(), &DeleteParams::default())
            .await;
        api_error::ignore_not_found(deleted).map(drop)
    }

    fn api(&self, namespace: &str) -> Api<ControllerRevision> {
        Api::namespaced(self.client.clone(), namespace)
    }
}

/// Wakes the DaemonSet of a changed revision. A new revision matters only if it is an orphan, since this controller
/// creates the owned ones itself.
fn revision_changed(
    sets: &Informer<DaemonSet>,
    queue: &Queue<Key>,
    change: &Change<'_, ControllerRevision>,
) {
    let revision = change.object();
    let namespace = revision.metadata.namespace.as_deref().unwrap_or_default();
    // Owners are found by name, not UID: a DaemonSet recreated under an old name may be using the old one's
    // revision.
    let owner_of = |revision: &ControllerRevision| {
        let owner = ownership::controller_of(revision).filter(|owner| owner.kind == "DaemonSet")?;
        Some(Key::new(namespace, &owner.name))
    };
    if let Some(owner) = change.previous().and_then(|old| owner_of(old)) {
        queue.add(owner);
    }
    if ownership::controller_of(&**revision).is_some() {
        if !matches!(change, Change::Added(_))
            && let Some(owner) = owner_of(revision)
        {
            queue.add(owner);
        }
    } else if !change.is_deleted() {
        for set in sets.in_namespace(namespace) {
            let selector = ownership::selector(set.spec.as_ref().map(|spec| &spec.selector));
            if selector.is_some_and(|selector| {
                !selector.selects_all() && selector.matches(revision.labels())
            }) {
                queue.add(Key::of(&*set));
            }
        }
    }
}
