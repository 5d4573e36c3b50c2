//! The namespace controller: deletes the content of a namespace that is being deleted, then removes its finalizer.
//!
//! Pods are deleted first, and nothing else while any remain, so that objects which they need until their end
//! (NetworkPolicies, Secrets) outlive them. Then every other kind that the API serves follows. [`conditions`]
//! reports the progress.

mod conditions;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::{DynamicObject, ObjectMeta, PartialObjectMeta},
    discovery::verbs,
};
use serde_json::json;

use self::conditions::Progress;
use crate::{
    Context, Key, Queue, api_error,
    discovery::{Kind, Kinds},
    pods,
};

const WORKERS: usize = 10;
/// How long other watchers of the namespace have to notice its deletion before its content is deleted.
const GRACE: Duration = Duration::from_secs(5);
/// The estimated time until objects with finalizers are gone.
const FINALIZER_ESTIMATE: Duration = Duration::from_secs(15);
/// The finalizer in `spec.finalizers` that this controller is responsible for.
const KUBERNETES: &str = "kubernetes";

/// The reasons for which a namespace is not gone yet.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("{0} kinds could not be deleted")]
    Content(usize),
}

/// Starts the controller.
pub fn start(context: &Context) {
    let queue = Queue::new("namespace");
    context.informers.namespaces.on_change({
        let queue = queue.clone();
        move |change| {
            let namespace = change.object();
            if namespace.metadata.deletion_timestamp.is_some() && !change.is_deleted() {
                queue.add_after(Key::of(&**namespace), GRACE);
            }
        }
    });
    let controller = Arc::new(Controller {
        context: context.clone(),
        queue: queue.clone(),
    });
    context.tasks.spawn(async move {
        let context = controller.context.clone();
        if context.informers.namespaces.synced().await {
            queue.run(&context, WORKERS, move |key| {
                let controller = Arc::clone(&controller);
                async move { controller.sync(&key).await }
            });
        }
    });
}

struct Controller {
    context: Context,
    queue: Queue<Key>,
}

impl Controller {
    async fn sync(&self, key: &Key) -> Result<(), Error> {
        let api: Api<Namespace> = Api::all(self.context.client.clone());
        let Some(mut namespace) = api.get_opt(key.name()).await? else {
            return Ok(());
        };
        if namespace.metadata.deletion_timestamp.is_none() {
            return Ok(());
        }
        let phase = namespace
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        if phase != Some("Terminating") {
            let patch = json!({"status": {"phase": "Terminating"}});
            let patched = api
                .patch_status(key.name(), &PatchParams::default(), &Patch::Merge(patch))
                .await;
            let Some(patched) = api_error::ignore_not_found(patched)? else {
                return Ok(());
            };
            namespace = patched;
        }
        if !has_finalizer(&namespace) {
            return Ok(());
        }
        let progress = self.delete_content(&namespace).await;
        let updated = conditions::apply(&namespace, &progress, self.context.now());
        if updated.status != namespace.status {
            let written = api
                .replace_status(key.name(), &PostParams::default(), &updated)
                .await;
            let Some(written) = api_error::ignore_not_found(written)? else {
                return Ok(());
            };
            namespace = written;
        }
        // The conditions were written first, because users look there for what holds the namespace.
        if !progress.failures.is_empty() || progress.discovery_failure.is_some() {
            return Err(Error::Content(progress.failures.len()));
        }
        if let Some(estimate) = progress.estimate {
            // The next sync comes after half the estimated time, in case the content is gone sooner.
            let again = Duration::from_secs(estimate.as_secs() / 2 + 1);
            self.queue.add_after(key.clone(), again);
            return Ok(());
        }
        // Only an empty namespace reaches this line; without the finalizer its objects would be orphaned.
        self.finalize(&namespace).await
    }

    async fn delete_content(&self, namespace: &Namespace) -> Progress {
        let mut progress = Progress::default();
        let kinds = match Kinds::discover(&self.context.client).await {
            Ok(kinds) => kinds,
            Err(error) => {
                progress.discovery_failure = Some(api_error::message(&error));
                return progress;
            }
        };
        let deletable = kinds
            .preferred()
            .filter(|kind| kind.namespaced && kind.supports(verbs::DELETE));
        let (pods, others): (Vec<_>, Vec<_>) = deletable
            .partition(|kind| kind.resource.group.is_empty() && kind.resource.plural == "pods");
        for kind in pods {
            self.delete_kind(namespace, kind, &mut progress).await;
        }
        if progress.remaining.is_empty() {
            for kind in others {
                self.delete_kind(namespace, kind, &mut progress).await;
            }
        }
        progress
    }

    async fn delete_kind(&self, namespace: &Namespace, kind: &Kind, progress: &mut Progress) {
        if let Err(error) = self.try_delete_kind(namespace, kind, progress).await {
            progress.failures.push(api_error::message(&error));
        }
    }

    async fn try_delete_kind(
        &self,
        namespace: &Namespace,
        kind: &Kind,
        progress: &mut Progress,
    ) -> kube::Result<()> {
        let name = namespace.name_any();
        let resource = &kind.resource;
        let api: Api<PartialObjectMeta<DynamicObject>> =
            Api::namespaced_with(self.context.client.clone(), &name, resource);
        let is_pod = resource.group.is_empty() && resource.plural == "pods";
        // Read before the deletion: pods that are gone afterwards no longer tell their grace period.
        let grace = if is_pod {
            self.longest_grace(namespace).await?
        } else {
            Duration::ZERO
        };
        self.delete_all(&name, kind, &api).await?;
        let left = api.list(&ListParams::default()).await?.items;
        if left.is_empty() {
            return Ok(());
        }
        progress.remaining.push((
            format!("{}.{}", resource.plural, resource.group),
            left.len(),
        ));
        for finalizer in left
            .iter()
            .flat_map(|object| object.metadata.finalizers.iter().flatten())
        {
            *progress.finalizers.entry(finalizer.clone()).or_default() += 1;
        }
        let is_held = left.iter().any(|object| {
            object
                .metadata
                .finalizers
                .as_ref()
                .is_some_and(|held| !held.is_empty())
        });
        if grace > Duration::ZERO || is_held {
            let estimate = if grace > Duration::ZERO {
                grace
            } else {
                FINALIZER_ESTIMATE
            };
            progress.estimate = progress.estimate.max(Some(estimate));
        } else {
            // Objects without finalizers should be gone at once.
            progress.failures.push(format!(
                "unexpected items still remain in namespace: {name} for gvr: {}/{}, Resource={}",
                resource.group, resource.version, resource.plural
            ));
        }
        Ok(())
    }

    async fn delete_all(
        &self,
        namespace: &str,
        kind: &Kind,
        api: &Api<PartialObjectMeta<DynamicObject>>,
    ) -> kube::Result<()> {
        let background = DeleteParams::background();
        if kind.supports(verbs::DELETE_COLLECTION) {
            // The response may be a list of complete objects, so it is not decoded.
            let url = <DynamicObject as kube::Resource>::url_path(&kind.resource, Some(namespace));
            let request = kube::core::Request::new(url)
                .delete_collection(&background, &ListParams::default());
            let request = request.map_err(kube::Error::BuildRequest)?;
            self.context
                .client
                .request::<serde::de::IgnoredAny>(request)
                .await?;
            return Ok(());
        }
        for object in api.list(&ListParams::default()).await? {
            api_error::ignore_not_found(api.delete(&object.name_any(), &background).await)?;
        }
        Ok(())
    }

    /// Returns the longest grace period of pods that have not finished, or zero once that time has passed since the
    /// deletion began.
    async fn longest_grace(&self, namespace: &Namespace) -> kube::Result<Duration> {
        let api: Api<Pod> = Api::namespaced(self.context.client.clone(), &namespace.name_any());
        let running = api
            .list(&ListParams::default())
            .await?
            .items
            .into_iter()
            .filter(|pod| !pods::is_finished(pod));
        let graces = running.filter_map(|pod| pod.spec?.termination_grace_period_seconds);
        let grace = graces.filter_map(|grace| u64::try_from(grace).ok()).max();
        let grace = Duration::from_secs(grace.unwrap_or_default());
        let deleted_at = namespace.metadata.deletion_timestamp.as_ref();
        let passed = deleted_at.map(|at| self.context.clock.now().duration_since(at.0));
        let passed = passed.and_then(|passed| Duration::try_from(passed).ok());
        Ok(if passed.is_some_and(|passed| passed >= grace) {
            Duration::ZERO
        } else {
            grace
        })
    }

    async fn finalize(&self, namespace: &Namespace) -> Result<(), Error> {
        let spec = namespace.spec.clone().map(|mut spec| {
            spec.finalizers
                .iter_mut()
                .for_each(|finalizers| finalizers.retain(|finalizer| finalizer != KUBERNETES));
            spec
        });
        let finalized = Namespace {
            metadata: ObjectMeta {
                name: namespace.metadata.name.clone(),
                uid: namespace.metadata.uid.clone(),
                resource_version: namespace.metadata.resource_version.clone(),
                ..namespace.metadata.clone()
            },
            spec,
            status: namespace.status.clone(),
        };
        // Serializing to memory cannot fail: keys are strings and there is no IO.
        let body = serde_json::to_vec(&finalized).expect("a namespace serializes");
        let url = <Namespace as kube::Resource>::url_path(&(), None);
        let request = kube::core::Request::new(url);
        let request = request.replace_subresource(
            "finalize",
            &namespace.name_any(),
            &PostParams::default(),
            body,
        );
        let request = request.map_err(kube::Error::BuildRequest)?;
        let answer = self
            .context
            .client
            .request::<serde::de::IgnoredAny>(request)
            .await;
        api_error::ignore_not_found(answer)?;
        Ok(())
    }
}

fn has_finalizer(namespace: &Namespace) -> bool {
    let spec = namespace.spec.as_ref();
    spec.is_some_and(|spec| {
        spec.finalizers
            .iter()
            .flatten()
            .any(|finalizer| finalizer == KUBERNETES)
    })
}
