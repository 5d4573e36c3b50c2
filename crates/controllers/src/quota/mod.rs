//! The quota controller: writes the limits and the usage of a namespace's ResourceQuotas to their status
//! (kube-controller-manager: resourcequota-controller). The API server admits objects by that status and adds to
//! it; this controller counts again, so that the usage of deleted objects is released.
//!
//! Invariant: the quota is read before the objects are counted, and written with the resource version that was
//! read, so a count never undoes an admission in between.

mod listed;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, ResourceQuota, ResourceQuotaStatus},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use kube::{
    Api,
    api::{DynamicObject, ListParams, PostParams},
    core::{ApiResource, GroupVersionKind},
    discovery::{self, Scope},
};
use mullion_kinds::quota::{Amounts, CountedKind, scopes};
use mullion_kube_text::quantity::Quantity;
use serde_json::{Value, json};

use self::listed::Listed;
use crate::{Change, Context, Informer, Key, Queue, api_error, pods};

const WORKERS: usize = 5;
/// The interval between counts for quotas of objects that no informer watches.
const RECOUNT: Duration = Duration::from_secs(5);
/// The interval between counts for all other quotas.
const RESYNC: Duration = Duration::from_secs(300);
/// The number of objects listed per request.
const PAGE: u32 = 500;
/// The paths of the kinds whose objects use amounts, not only a number; `{}` is the namespace.
const MEASURED: [(&str, &str, &str); 4] = [
    ("", "pods", "/api/v1/namespaces/{}/pods"),
    (
        "",
        "persistentvolumeclaims",
        "/api/v1/namespaces/{}/persistentvolumeclaims",
    ),
    ("", "services", "/api/v1/namespaces/{}/services"),
    (
        DEVICES,
        "resourceclaims",
        "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims",
    ),
];
const DEVICES: &str = "resource.k8s.io";

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
        let uses_less = change
            .previous()
            .is_some_and(|old| may_use_less(old, change.object()));
        if change.is_deleted() || uses_less {
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
        let (counted, counts_others) = self.count(key.namespace(), &quota, &hard).await?;
        let again = if counts_others { RECOUNT } else { RESYNC };
        // Scheduled before the write, so that a conflict does not end the series.
        self.queue.add_after(key.clone(), again);
        // What nothing counts stays as somebody else has written it (kube-controller-manager: syncResourceQuota).
        let used = quota.status.as_ref().and_then(|status| status.used.clone());
        let mut used = used.unwrap_or_default();
        used.retain(|name, _| hard.contains_key(name));
        for (name, amount) in counted {
            let same = used.get(&name).is_some_and(|had| parsed(had) == amount);
            if !same {
                used.insert(name, ApiQuantity(amount.to_string()));
            }
        }
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

    /// Returns the usage of each limit that objects of some kind count towards, and whether kinds without a watch were counted.
    async fn count(
        &self,
        namespace: &str,
        quota: &ResourceQuota,
        hard: &BTreeMap<String, ApiQuantity>,
    ) -> kube::Result<(Amounts, bool)> {
        let scopes = json!({ "spec": quota.spec });
        let now = self.context.clock.now();
        let mut listed = Listed::new(&self.context);
        let mut used = Amounts::new();
        let mut counts_others = false;
        for (group, plural, path) in MEASURED {
            let kind = CountedKind::named(group, plural);
            let limits = kind.limits(&listed, hard.keys().map(String::as_str));
            if limits.is_empty() {
                continue;
            }
            let objects = self.list(path, namespace).await?;
            if group == DEVICES {
                // No informer watches claims of devices here, so the quota must be recounted.
                counts_others = true;
                listed.claims.clone_from(&objects);
            }
            for limit in &limits {
                used.entry((*limit).to_owned()).or_insert_with(zero);
            }
            let objects = objects.iter();
            for object in objects.filter(|object| scopes::contain(&scopes, &kind, object)) {
                for (name, amount) in kind.used_by(&listed, object, now) {
                    if let Some(sum) = used.get_mut(&name) {
                        *sum = sum.plus(&amount);
                    }
                }
            }
        }
        for limit in hard.keys() {
            let Some(kind) = CountedKind::counted_by(limit) else {
                continue;
            };
            if used.contains_key(limit) {
                continue;
            }
            // No object of such a kind is in any scope.
            let counts = scopes::contain(&scopes, &kind, &Value::Null);
            if let Some(number) = self.number(namespace, &kind).await? {
                counts_others = true;
                let number = if counts { number } else { 0 };
                used.insert(limit.clone(), Quantity::from_integer(number));
            }
        }
        Ok((used, counts_others))
    }

    /// Returns all objects of a kind in the namespace.
    async fn list(&self, path: &str, namespace: &str) -> kube::Result<Vec<Arc<Value>>> {
        let request = kube::core::Request::new(path.replace("{}", namespace));
        let mut params = ListParams::default().limit(PAGE);
        let mut objects = Vec::new();
        loop {
            let page = request.list(&params).map_err(kube::Error::BuildRequest)?;
            let mut page: Value = self.context.client.request(page).await?;
            if let Some(Value::Array(items)) = page.get_mut("items").map(Value::take) {
                objects.extend(items.into_iter().map(Arc::new));
            }
            match page["metadata"]["continue"].as_str() {
                Some(token) if !token.is_empty() => params = params.continue_token(token),
                _ => return Ok(objects),
            }
        }
    }

    /// Returns the number of objects of a kind in a namespace; `None` for a kind that is not served, and for events, which no quota counts.
    async fn number(&self, namespace: &str, kind: &CountedKind<'_>) -> kube::Result<Option<i64>> {
        let client = &self.context.client;
        if matches!(
            (kind.group(), kind.plural()),
            ("" | "events.k8s.io", "events")
        ) {
            return Ok(None);
        }
        let Some(resource) = find(client, kind.group(), kind.plural()).await? else {
            return Ok(None);
        };
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        let mut params = ListParams::default().limit(PAGE);
        let mut number = 0;
        loop {
            let page = api.list_metadata(&params).await?;
            number += i64::try_from(page.items.len()).unwrap_or(i64::MAX);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(Some(number)),
            }
        }
    }
}

/// Returns whether a change of a claim can make it use less of a quota: other classes of volume attributes, or another size.
fn may_use_less(old: &PersistentVolumeClaim, new: &PersistentVolumeClaim) -> bool {
    let class = |claim: &PersistentVolumeClaim| {
        let spec = claim.spec.as_ref();
        let resources = spec.and_then(|spec| spec.resources.clone());
        let named = spec.and_then(|spec| spec.volume_attributes_class_name.clone());
        (named, resources)
    };
    let status = |claim: &PersistentVolumeClaim| {
        let status = claim.status.clone().unwrap_or_default();
        (
            status.current_volume_attributes_class_name,
            status.modify_volume_status,
            status.allocated_resources,
        )
    };
    class(old) != class(new) || status(old) != status(new)
}

fn zero() -> Quantity {
    Quantity::from_integer(0)
}

/// Parses an amount of a status. One that does not parse, which the API server rules out, is zero.
fn parsed(amount: &ApiQuantity) -> Quantity {
    Quantity::parse(&amount.0).unwrap_or_else(|_| zero())
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
