//! The Endpoints controller. Endpoints are the older form of the EndpointSlices that [`super::slices`] writes,
//! limited to 1,000 addresses.

mod subsets;

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::core::v1::{EndpointSubset, Endpoints, Service},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
};

use super::{
    backend,
    trigger::{self, TriggerTimes},
    watch,
    writes::Writes,
};
use crate::{Context, Key, Queue, Recorder, api_error};

const WORKERS: usize = 5;
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
const MANAGED_BY_LABEL: &str = "endpoints.kubernetes.io/managed-by";
const MANAGER: &str = "endpoint-controller";

/// The reasons for which a sync ends early and is retried.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("the informer has not seen the last write yet")]
    Stale,
}

/// Starts the controller.
pub fn start(context: &Context) {
    let queue = Queue::new("endpoint");
    watch::feed(context, &queue);
    context.informers.endpoints.on_change({
        let queue = queue.clone();
        // An Endpoints object that another client deleted is written again.
        move |change| {
            if change.is_deleted() {
                queue.add(Key::of(&**change.object()));
            }
        }
    });
    let recorder = context.recorder("endpoint-controller");
    let controller = Arc::new(Controller {
        context: context.clone(),
        recorder,
        writes: Writes::default(),
        triggers: TriggerTimes::default(),
    });
    context.tasks.spawn(async move {
        let context = controller.context.clone();
        let informers = &context.informers;
        if informers.services.synced().await
            && informers.pods.synced().await
            && informers.endpoints.synced().await
        {
            queue.run(&context, WORKERS, move |key| {
                let controller = Arc::clone(&controller);
                async move { controller.sync(&key).await }
            });
        }
    });
}

struct Controller {
    context: Context,
    recorder: Recorder,
    writes: Writes,
    triggers: TriggerTimes,
}

impl Controller {
    async fn sync(&self, key: &Key) -> Result<(), Error> {
        let informers = &self.context.informers;
        let api: Api<Endpoints> = Api::namespaced(self.context.client.clone(), key.namespace());
        let Some(service) = informers.services.get_key(key) else {
            self.writes.forget(key);
            self.triggers.forget(key);
            // Endpoints have no owner reference, so the garbage collector does not delete them.
            let deleted = api.delete(key.name(), &DeleteParams::default()).await;
            api_error::ignore_not_found(deleted)?;
            return Ok(());
        };
        // Endpoints of a Service without selector are a user's own.
        if backend::selects(&service).is_none() {
            return Ok(());
        }
        let current = informers.endpoints.get_key(key);
        if self.writes.are_unseen(key, current.as_slice()) {
            return Err(Error::Stale);
        }
        let mut members = informers.pods.in_namespace(key.namespace());
        members.retain(|pod| backend::matches(&service, pod));
        let triggered_at = self.triggers.observe(key, &service, &members);
        let mut subsets = subsets::subsets(&service, members.iter().map(|pod| &**pod));
        let cut = subsets::truncate(&mut subsets);
        let mut wanted = endpoints(&service, current.as_deref(), subsets, cut);
        trigger::annotate(&mut wanted.metadata.annotations, triggered_at);
        let (outcome, reason, what) = match current.as_deref() {
            // Compared without the trigger time, or every change of a pod would write the object.
            Some(current) if is_same(current, &wanted) => return Ok(()),
            Some(_) => {
                let outcome = api
                    .replace(key.name(), &PostParams::default(), &wanted)
                    .await;
                (outcome, "FailedToUpdateEndpoint", "update endpoint")
            }
            None => {
                let outcome = api.create(&PostParams::default(), &wanted).await;
                (
                    outcome,
                    "FailedToCreateEndpoint",
                    "create endpoint for service",
                )
            }
        };
        match outcome {
            Ok(written) => {
                self.writes.note(key, &written);
                Ok(())
            }
            Err(error) if api_error::is_namespace_terminating(&error) => Ok(()),
            Err(error) => {
                let message = format!("Failed to {what} {key}: {}", api_error::message(&error));
                self.recorder.warning(&wanted, reason, message);
                Err(error.into())
            }
        }
    }
}

fn endpoints(
    service: &Service,
    current: Option<&Endpoints>,
    subsets: Vec<EndpointSubset>,
    cut: bool,
) -> Endpoints {
    let mut labels: BTreeMap<_, _> = service.labels().clone();
    labels.insert(MANAGED_BY_LABEL.to_owned(), MANAGER.to_owned());
    if backend::is_headless(service) {
        labels.insert(backend::HEADLESS_LABEL.to_owned(), String::new());
    } else {
        labels.remove(backend::HEADLESS_LABEL);
    }
    let mut metadata = match current {
        Some(current) => current.metadata.clone(),
        None => ObjectMeta {
            name: Some(service.name_any()),
            namespace: service.namespace(),
            ..ObjectMeta::default()
        },
    };
    metadata.labels = Some(labels);
    let annotations = metadata.annotations.get_or_insert_default();
    if cut {
        annotations.insert(OVER_CAPACITY.to_owned(), "truncated".to_owned());
    } else {
        annotations.remove(OVER_CAPACITY);
    }
    Endpoints {
        metadata,
        subsets: (!subsets.is_empty()).then_some(subsets),
    }
}

/// Returns whether two Endpoints are equal in the fields that this controller writes.
fn is_same(current: &Endpoints, wanted: &Endpoints) -> bool {
    let subsets = |endpoints: &Endpoints| endpoints.subsets.clone().unwrap_or_default();
    let over_capacity = |endpoints: &Endpoints| endpoints.annotations().get(OVER_CAPACITY).cloned();
    subsets(current) == subsets(wanted)
        && current.labels() == wanted.labels()
        && over_capacity(current) == over_capacity(wanted)
}
