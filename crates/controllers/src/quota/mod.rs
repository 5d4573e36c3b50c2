//! The quota controller: writes the limits and the usage of a namespace's ResourceQuotas to their status
//! (kube-controller-manager: resourcequota-controller). The API server admits objects by that status and adds to
//! it; this controller counts again, so that the usage of deleted objects is released.
//!
//! Invariant: the quota is read before the objects are counted, and written with the resource version that was
//! read, so a count never undoes an admission in between.

mod extended;
mod usage;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::{
    api::{
        core::v1::{PersistentVolumeClaim, Pod, ResourceQuota, ResourceQuotaStatus, Service},
        resource::v1::ResourceClaim,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{
    Api,
    api::{DynamicObject, ListParams, PostParams},
    core::{ApiResource, GroupVersionKind},
    discovery::{self, Scope},
};

use self::{
    extended::Extended,
    usage::{LimitedObjects, Usage},
};
use crate::{Change, Context, Informer, Key, Queue, api_error, pods};

const WORKERS: usize = 5;
/// The interval between counts for quotas of objects that no informer watches.
const RECOUNT: Duration = Duration::from_secs(5);
/// The interval between counts for all other quotas.
const RESYNC: Duration = Duration::from_secs(300);
/// The number of objects listed per request.
const PAGE: u32 = 500;

/// Starts the controller.
pub fn start(context: &Context) {
    let queue: Queue<Key> = Queue::new("resourcequota");
    let quotas: Informer<ResourceQuota> = Informer::new(
        Api::all(context.client.clone()),
        &[],
        context.tasks.clone(),
        context.shutdown.clone(),
    );
    quotas.on_change({
        let queue = queue.clone();
        move |change| {
            let quota = change.object();
            let same = change.previous().is_some_and(|old| {
                // Every admission writes the status; recounting for each would undo the saving of counting
                // there.
                old.spec == quota.spec && (old.status == quota.status || quota.status.is_some())
            });
            if !change.is_deleted() && !same {
                queue.add(Key::of(&**quota));
            }
        }
    });
    let wake = {
        let (queue, quotas) = (queue.clone(), quotas.clone());
        move |namespace: Option<&str>| {
            for quota in quotas.in_namespace(namespace.unwrap_or_default()) {
                queue.add(Key::of(&*quota));
            }
        }
    };
    context.informers.pods.on_change({
        let wake = wake.clone();
        move |change| {
            let ended = match change {
                // New objects are added to the status by admission; only what ends has to be counted here.
                Change::Added(_) => false,
                Change::Updated { old, new } => !pods::is_finished(old) && pods::is_finished(new),
                Change::Deleted(_) => true,
            };
            if ended {
                wake(change.object().metadata.namespace.as_deref());
            }
        }
    });
    context.informers.services.on_change({
        let wake = wake.clone();
        move |change| {
            if change.is_deleted() || change.previous().is_some() {
                wake(change.object().metadata.namespace.as_deref());
            }
        }
    });
    context.informers.claims.on_change(move |change| {
        if change.is_deleted() {
            wake(change.object().metadata.namespace.as_deref());
        }
    });
    let controller = Arc::new(Controller {
        context: context.clone(),
        queue: queue.clone(),
    });
    context.tasks.spawn(async move {
        let context = controller.context.clone();
        if quotas.synced().await {
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
    async fn sync(&self, key: &Key) -> kube::Result<()> {
        let api: Api<ResourceQuota> = Api::namespaced(self.context.client.clone(), key.namespace());
        let Some(mut quota) = api.get_opt(key.name()).await? else {
            return Ok(());
        };
        let hard = quota.spec.as_ref().and_then(|spec| spec.hard.clone());
        let hard = hard.unwrap_or_default();
        let (used, counts_others) = self.count(key.namespace(), &quota, &hard).await?;
        let again = if counts_others { RECOUNT } else { RESYNC };
        // Scheduled before the write, so that a conflict does not end the series.
        self.queue.add_after(key.clone(), again);
        let status = ResourceQuotaStatus {
            hard: Some(hard),
            used: Some(used),
        };
        if quota.status.as_ref() == Some(&status) {
            return Ok(());
        }
        quota.status = Some(status);
        let written = api
            .replace_status(key.name(), &PostParams::default(), &quota)
            .await;
        api_error::ignore_not_found(written).map(drop)
    }

    /// Returns the usage of each limit, and whether kinds without a watch were counted.
    async fn count(
        &self,
        namespace: &str,
        quota: &ResourceQuota,
        hard: &BTreeMap<String, Quantity>,
    ) -> kube::Result<(BTreeMap<String, Quantity>, bool)> {
        let mut used = Usage::default();
        let mut others = false;
        let names: Vec<&str> = hard.keys().map(String::as_str).collect();
        let now = self.context.clock.now();
        if names
            .iter()
            .any(|name| LimitedObjects::of(name) == LimitedObjects::Pods)
        {
            for pod in self.list::<Pod>(namespace).await? {
                if usage::in_scopes(quota, &pod) {
                    used.pod(&pod, now);
                }
            }
        }
        if names
            .iter()
            .any(|name| LimitedObjects::of(name) == LimitedObjects::Claims)
        {
            for claim in self.list::<PersistentVolumeClaim>(namespace).await? {
                if !usage::has_scopes(quota) {
                    used.claim(&claim);
                }
            }
        }
        if names
            .iter()
            .any(|name| LimitedObjects::of(name) == LimitedObjects::Services)
        {
            for service in self.list::<Service>(namespace).await? {
                if !usage::has_scopes(quota) {
                    used.service(&service);
                }
            }
        }
        let extended = Extended::of(&self.context.informers.device_classes.list());
        let is_of_devices = |name: &&str| {
            LimitedObjects::of(name) == LimitedObjects::DeviceClaims
                || extended.is_from_device_class(name)
        };
        if names.iter().any(is_of_devices) {
            // No informer watches ResourceClaims here, so the quota must be recounted.
            others = true;
            let claims = self.list::<ResourceClaim>(namespace).await?;
            for claim in claims.iter().filter(|_| !usage::has_scopes(quota)) {
                used.device_claim(claim);
                let pod = |name: &str| self.context.informers.pods.get(namespace, name);
                extended.add(&mut used, claim, &claims, pod, now);
            }
        }
        let mut amounts = BTreeMap::new();
        for name in names {
            let amount = match LimitedObjects::of(name) {
                LimitedObjects::Kind { group, plural } => {
                    others = true;
                    if usage::has_scopes(quota) {
                        0
                    } else {
                        self.number(namespace, group, plural).await?
                    }
                }
                LimitedObjects::Pods
                | LimitedObjects::Claims
                | LimitedObjects::DeviceClaims
                | LimitedObjects::Services => used.of(name),
                LimitedObjects::Uncounted => 0,
            };
            amounts.insert(name.to_owned(), usage::quantity(name, amount));
        }
        Ok((amounts, others))
    }

    async fn list<K>(&self, namespace: &str) -> kube::Result<Vec<K>>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + serde::de::DeserializeOwned
            + std::fmt::Debug,
    {
        let api: Api<K> = Api::namespaced(self.context.client.clone(), namespace);
        Ok(api.list(&ListParams::default()).await?.items)
    }

    /// Returns the number of objects of a kind in a namespace; zero for a kind that is not served.
    async fn number(&self, namespace: &str, group: &str, plural: &str) -> kube::Result<i64> {
        let client = &self.context.client;
        let Some(resource) = find(client, group, plural).await? else {
            return Ok(0);
        };
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        let mut params = ListParams::default().limit(PAGE);
        let mut number = 0;
        loop {
            let page = api.list_metadata(&params).await?;
            number += i64::try_from(page.items.len()).unwrap_or(i64::MAX);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(number),
            }
        }
    }
}

/// Returns the resource with a plural name, in the group's preferred version.
async fn find(
    client: &kube::Client,
    group: &str,
    plural: &str,
) -> kube::Result<Option<ApiResource>> {
    let group = match discovery::group(client, group).await {
        Ok(group) => group,
        Err(kube::Error::Discovery(_)) => return Ok(None),
        Err(error) if api_error::is_not_found(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let found = group
        .recommended_resources()
        .into_iter()
        .find(|(resource, capabilities)| {
            resource.plural == plural && capabilities.scope == Scope::Namespaced
        });
    Ok(found.map(|(resource, _)| {
        let kind = GroupVersionKind::gvk(&resource.group, &resource.version, &resource.kind);
        ApiResource::from_gvk_with_plural(&kind, &resource.plural)
    }))
}
