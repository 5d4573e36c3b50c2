//! The ResourceClaim controller (kube-controller-manager: resourceclaim-controller): creates claims from templates,
//! and releases them.
//!
//! [`create`] creates the claims that pods request by templates and reports them in the pods' status. [`release`]
//! removes consumers that are gone from a claim, deallocates a claim without consumers, and deletes the claims of
//! finished pods. [`pod_claims`] determines which claims a pod uses. The scheduler allocates devices to claims.
//!
//! Invariant: a claim is written only with the resource version that was read, so that a concurrent reservation by
//! the scheduler is never lost.

mod create;
pub mod pod_claims;
mod release;

use std::sync::Arc;

use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{ResourceClaim, ResourceClaimTemplate},
};
use kube::Api;
use thiserror::Error;

use self::{create::Created, pod_claims::Unknown};
use crate::{
    Context, Informer, Key, Queue, Recorder, api_error,
    informers::{BY_RESOURCE_CLAIM, BY_RESOURCE_CLAIM_TEMPLATE},
    pods,
};

/// The finalizer that keeps an allocated claim from being deleted.
pub(crate) const PROTECTION: &str = "resource.kubernetes.io/delete-protection";

/// The annotation of a claim that provides the extended resources of the pod that owns it.
pub(crate) const EXTENDED: &str = "resource.kubernetes.io/extended-resource-claim";
/// The prefix that turns the name of a DeviceClass into the extended resource that the class always provides.
pub(crate) const CLASS_PREFIX: &str = "deviceclass.resource.kubernetes.io/";

const WORKERS: usize = 10;

/// Starts the controller.
pub fn start(context: &Context) {
    let controller = Arc::new(Controller {
        context: context.clone(),
        recorder: context.recorder("resource_claim"),
        templates: Informer::new(
            Api::all(context.client.clone()),
            &[],
            context.tasks.clone(),
            context.shutdown.clone(),
        ),
        created: Created::default(),
        queue: Queue::new("resource_claim"),
    });
    let informers = &context.informers;
    // The references are weak, so that informers do not keep themselves alive through their own handlers.
    informers.pods.on_change({
        let controller = Arc::downgrade(&controller);
        move |change| {
            if let Some(controller) = controller.upgrade() {
                controller.pod_changed(change.object(), change.is_deleted());
            }
        }
    });
    informers.resource_claims.on_change({
        let controller = Arc::downgrade(&controller);
        move |change| {
            if let Some(controller) = controller.upgrade() {
                controller.claim_changed(change.object(), change.is_deleted());
            }
        }
    });
    controller.templates.on_change({
        let controller = Arc::downgrade(&controller);
        move |change| {
            if let Some(controller) = controller.upgrade()
                && !change.is_deleted()
            {
                controller.template_changed(change.object());
            }
        }
    });
    context.clone().tasks.spawn(async move {
        let informers = &controller.context.informers;
        if informers.pods.synced().await
            && informers.resource_claims.synced().await
            && controller.templates.synced().await
        {
            let (queue, context) = (controller.queue.clone(), controller.context.clone());
            queue.run(&context, WORKERS, move |work| {
                let controller = Arc::clone(&controller);
                async move { controller.work(work).await }
            });
        }
    });
}

struct Controller {
    context: Context,
    recorder: Recorder,
    templates: Informer<ResourceClaimTemplate>,
    created: Created,
    queue: Queue<Work>,
}

/// An item of the work queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Work {
    /// Creates or reserves the claims of a pod.
    Pod(Key),
    /// Releases a claim whose consumers may be gone.
    Claim(Key),
}

/// The reasons for which work fails. It is retried.
#[derive(Debug, Error)]
enum Failure {
    #[error("checking for claim before creating it: {0}")]
    Unclear(Unknown),
    #[error("resource claim template {0:?}: resourceclaimtemplate.resource.k8s.io {0:?} not found")]
    NoTemplate(String),
    /// kube-controller-manager prints the claim's name before the colon, which is still empty at this point.
    #[error("create ResourceClaim : {0}")]
    NotMade(String),
    #[error("{}", api_error::message(.0))]
    Api(#[from] kube::Error),
}

impl Controller {
    async fn work(&self, work: Work) -> Result<(), Failure> {
        match work {
            Work::Pod(key) => self.provide(&key).await,
            Work::Claim(key) => self.release(&key).await.map_err(Failure::from),
        }
    }

    fn pod_changed(&self, pod: &Pod, gone: bool) {
        let extended = pod_claims::extended(pod);
        if pod_claims::entries(pod).next().is_none() && extended.is_none() {
            return;
        }
        if gone {
            self.created.forget_pod(pod);
        }
        // The claims' consumers are checked one by one, since a claim may be shared with pods that still run.
        if gone || release::is_done(pod) {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let claimed = pod_claims::entries(pod).filter_map(|entry| {
                let claimed = pod_claims::claimed(pod, entry).ok()?;
                claimed.name()
            });
            for name in claimed.chain(extended) {
                self.queue.add(Work::Claim(Key::new(namespace, name)));
            }
        } else if self.wants_work(pod) {
            self.queue.add(Work::Pod(Key::of(pod)));
        }
    }

    /// Returns whether a claim must be created for a pod that may still run, or reserved for a pod that has a node.
    fn wants_work(&self, pod: &Pod) -> bool {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let claims = &self.context.informers.resource_claims;
        !pods::is_deleting(pod)
            && pod_claims::entries(pod).any(|entry| {
                let Ok(claimed) = pod_claims::claimed(pod, entry) else {
                    return true;
                };
                let Some(name) = claimed.name() else {
                    return false;
                };
                match claims.get(namespace, name) {
                    None => entry.resource_claim_template_name.is_some(),
                    Some(claim) => create::must_reserve(pod, claimed, &claim),
                }
            })
    }

    fn claim_changed(&self, claim: &ResourceClaim, gone: bool) {
        self.created.forget(claim);
        let key = Key::of(claim);
        let users = &self.context.informers.pods;
        for pod in users.by_index(BY_RESOURCE_CLAIM, key.as_str()) {
            self.pod_changed(&pod, false);
        }
        if !gone {
            self.queue.add(Work::Claim(key));
        }
    }

    fn template_changed(&self, template: &ResourceClaimTemplate) {
        let users = &self.context.informers.pods;
        for pod in users.by_index(BY_RESOURCE_CLAIM_TEMPLATE, Key::of(template).as_str()) {
            self.pod_changed(&pod, false);
        }
    }
}
