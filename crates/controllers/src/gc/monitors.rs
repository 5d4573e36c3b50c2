//! Feeds the graph from every kind: from the shared informers where they exist, and from metadata-only watches for
//! the others.
//!
//! When CustomResourceDefinitions change, discovery is repeated and new kinds get a watch.

use std::{
    fmt::Debug,
    sync::{Arc, RwLock},
    time::Duration,
};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Resource,
    core::{DynamicObject, PartialObjectMeta},
    discovery::ApiResource,
};
use rustc_hash::FxHashMap;
use serde::de::DeserializeOwned;
use tokio::{sync::Notify, time::sleep};
use tokio_util::sync::CancellationToken;

use super::Shared;
use crate::{Change, Context, Informer, discovery::Kinds};

/// The kinds that the API serves; replaced as a whole when they change.
pub(super) type SharedKinds = Arc<RwLock<Kinds>>;

/// Kinds that are not watched, because their objects are short-lived and own nothing.
const IGNORED: [(&str, &str); 2] = [("", "Event"), ("events.k8s.io", "Event")];
/// How long changes of CustomResourceDefinitions are collected before discovery is repeated.
const SETTLE: Duration = Duration::from_millis(500);
/// The pause before a failed discovery is repeated.
const RETRY: Duration = Duration::from_secs(5);

type Metadata = PartialObjectMeta<DynamicObject>;

struct Monitor {
    informer: Informer<Metadata>,
    stop: CancellationToken,
}

/// Starts watching every kind and returns once all of them are in the graph.
pub(super) async fn start(context: &Context, shared: &Shared) -> SharedKinds {
    // All kinds must be in the graph before the first deletion, or a living owner could look absent.
    watch_shared(context, shared).await;
    let kinds = SharedKinds::default();
    let mut monitors = FxHashMap::default();
    let first = discover(context).await;
    apply(context, shared, &first, &mut monitors);
    replace(&kinds, first);
    for monitor in monitors.values() {
        monitor.informer.synced().await;
    }
    follow_definitions(
        context.clone(),
        shared.clone(),
        Arc::clone(&kinds),
        monitors,
    );
    kinds
}

/// Watches the kinds that other controllers already watch completely.
async fn watch_shared(context: &Context, shared: &Shared) {
    let informers = &context.informers;
    watch_typed(&informers.pods, shared).await;
    watch_typed(&informers.nodes, shared).await;
    watch_typed(&informers.leases, shared).await;
    watch_typed(&informers.namespaces, shared).await;
    watch_typed(&informers.deployments, shared).await;
    watch_typed(&informers.replica_sets, shared).await;
    watch_typed(&informers.daemon_sets, shared).await;
    watch_typed(&informers.services, shared).await;
    watch_typed(&informers.endpoints, shared).await;
    watch_typed(&informers.endpoint_slices, shared).await;
    watch_typed(&informers.service_accounts, shared).await;
    watch_typed(&informers.pod_disruption_budgets, shared).await;
}

const SHARED: [(&str, &str); 12] = [
    ("", "Pod"),
    ("", "Node"),
    ("coordination.k8s.io", "Lease"),
    ("", "Namespace"),
    ("apps", "Deployment"),
    ("apps", "ReplicaSet"),
    ("apps", "DaemonSet"),
    ("", "Service"),
    ("", "Endpoints"),
    ("discovery.k8s.io", "EndpointSlice"),
    ("", "ServiceAccount"),
    ("policy", "PodDisruptionBudget"),
];

async fn watch_typed<K>(informer: &Informer<K>, shared: &Shared)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let shared = shared.clone();
    let (api_version, kind) = (K::api_version(&()), K::kind(&()));
    informer.on_change(move |change| observe(&shared, &api_version, &kind, change));
    informer.synced().await;
}

fn observe<K: Resource>(shared: &Shared, api_version: &str, kind: &str, change: &Change<'_, K>) {
    let meta = change.object().meta();
    if change.is_deleted() {
        shared.update(|graph| graph.remove(meta.uid.as_deref().unwrap_or_default()));
        return;
    }
    // Most updates change nothing that the graph stores.
    if let Some(old) = change.previous().map(|old| old.meta())
        && old.owner_references == meta.owner_references
        && old.finalizers == meta.finalizers
        && old.deletion_timestamp == meta.deletion_timestamp
    {
        return;
    }
    shared.update(|graph| graph.observe(api_version, kind, meta));
}

async fn discover(context: &Context) -> Kinds {
    loop {
        match Kinds::discover(&context.client).await {
            Ok(kinds) => return kinds,
            Err(error) => {
                tracing::warn!(%error, "garbage collector cannot discover the API's kinds, will retry")
            }
        }
        sleep(RETRY).await;
    }
}

/// Starts monitors for kinds that have none, and stops those of kinds that are gone.
fn apply(
    context: &Context,
    shared: &Shared,
    kinds: &Kinds,
    monitors: &mut FxHashMap<ApiResource, Monitor>,
) {
    let is_wanted = |resource: &ApiResource| {
        let name = (resource.group.as_str(), resource.kind.as_str());
        !IGNORED.contains(&name) && !SHARED.contains(&name)
    };
    let wanted: Vec<_> = kinds
        .preferred()
        .filter(|kind| kind.is_manageable() && is_wanted(&kind.resource))
        .map(|kind| kind.resource.clone())
        .collect();
    monitors.retain(|resource, monitor| {
        let keep = wanted.contains(resource);
        if !keep {
            monitor.stop.cancel();
        }
        keep
    });
    for resource in wanted {
        monitors
            .entry(resource)
            .or_insert_with_key(|resource| monitor(context, shared, resource));
    }
}

fn monitor(context: &Context, shared: &Shared, resource: &ApiResource) -> Monitor {
    let api: Api<Metadata> = Api::all_with(context.client.clone(), resource);
    let stop = context.shutdown.child_token();
    let informer = Informer::new(api, &[], context.tasks.clone(), stop.clone());
    let (shared, resource) = (shared.clone(), resource.clone());
    informer
        .on_change(move |change| observe(&shared, &resource.api_version, &resource.kind, change));
    Monitor { informer, stop }
}

fn follow_definitions(
    context: Context,
    shared: Shared,
    kinds: SharedKinds,
    mut monitors: FxHashMap<ApiResource, Monitor>,
) {
    let changed = Arc::new(Notify::new());
    let api: Api<PartialObjectMeta<CustomResourceDefinition>> = Api::all(context.client.clone());
    let definitions = Informer::new(api, &[], context.tasks.clone(), context.shutdown.clone());
    definitions.on_change({
        let changed = Arc::clone(&changed);
        move |_| changed.notify_one()
    });
    let shutdown = context.shutdown.clone();
    context.tasks.clone().spawn(async move {
        let follow = async {
            loop {
                changed.notified().await;
                // An operator installs many definitions at once; one discovery serves them all.
                sleep(SETTLE).await;
                let found = discover(&context).await;
                apply(&context, &shared, &found, &mut monitors);
                replace(&kinds, found);
            }
        };
        shutdown.run_until_cancelled(follow).await;
        drop(definitions);
    });
}

fn replace(kinds: &SharedKinds, found: Kinds) {
    *kinds
        .write()
        .unwrap_or_else(std::sync::PoisonError::into_inner) = found;
}
