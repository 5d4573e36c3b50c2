//! Creates the objects that every namespace has: the ServiceAccount `default` and the ConfigMap `kube-root-ca.crt`.
//!
//! Both are created again when they are deleted; a changed certificate is also restored.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use kube::{
    Api, Resource, ResourceExt,
    api::{ObjectMeta, PostParams},
    runtime::watcher,
};

use crate::{Context, Informer, Queue, api_error};

const WORKERS: usize = 5;
const DEFAULT: &str = "default";
const ROOT_CA: &str = "kube-root-ca.crt";
const ROOT_CA_DESCRIPTION: (&str, &str) = (
    "kubernetes.io/description",
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the \
     internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes \
     clusters.",
);

/// Starts both controllers; without `root_ca` (PEM) only the one for ServiceAccounts.
pub fn start(context: &Context, root_ca: Option<Arc<str>>) {
    start_accounts(context);
    if let Some(root_ca) = root_ca {
        start_root_ca(context, root_ca);
    }
}

fn start_accounts(context: &Context) {
    let queue = Queue::new("serviceaccount");
    let informers = &context.informers;
    feed_namespaces(context, &queue);
    informers.service_accounts.on_change({
        let queue = queue.clone();
        move |change| {
            let account = change.object();
            if change.is_deleted() && account.name_any() == DEFAULT {
                queue.add(account.namespace().unwrap_or_default());
            }
        }
    });
    let context = context.clone();
    context.clone().tasks.spawn(async move {
        if context.informers.namespaces.synced().await
            && context.informers.service_accounts.synced().await
        {
            let workers = context.clone();
            queue.run(&workers, WORKERS, move |namespace| {
                let context = context.clone();
                async move { ensure_account(&context, &namespace).await }
            });
        }
    });
}

async fn ensure_account(context: &Context, namespace: &str) -> kube::Result<()> {
    let informers = &context.informers;
    if !is_active(&informers.namespaces, namespace)
        // Nothing can be created in a terminating namespace, and what is missing there is being deleted on
        // purpose.
        || informers.service_accounts.get(namespace, DEFAULT).is_some()
    {
        return Ok(());
    }
    let account = ServiceAccount {
        metadata: named(namespace, DEFAULT),
        ..ServiceAccount::default()
    };
    create(context, namespace, &account).await
}

fn start_root_ca(context: &Context, root_ca: Arc<str>) {
    let queue = Queue::new("root-ca-cert-publisher");
    // The other ConfigMaps of the cluster, which may be many and large, are never read.
    let only_ours = watcher::Config::default().fields(&format!("metadata.name={ROOT_CA}"));
    let maps: Informer<ConfigMap> = Informer::with_config(
        Api::<ConfigMap>::all(context.client.clone()),
        only_ours,
        |_| {},
        &[],
        context.tasks.clone(),
        context.shutdown.clone(),
    );
    feed_namespaces(context, &queue);
    maps.on_change({
        let queue = queue.clone();
        move |change| queue.add(change.object().namespace().unwrap_or_default())
    });
    let context = context.clone();
    context.clone().tasks.spawn(async move {
        if context.informers.namespaces.synced().await && maps.synced().await {
            let workers = context.clone();
            queue.run(&workers, WORKERS, move |namespace| {
                let (context, maps, root_ca) =
                    (context.clone(), maps.clone(), Arc::clone(&root_ca));
                async move { ensure_root_ca(&context, &maps, &root_ca, &namespace).await }
            });
        }
    });
}

async fn ensure_root_ca(
    context: &Context,
    maps: &Informer<ConfigMap>,
    root_ca: &str,
    namespace: &str,
) -> kube::Result<()> {
    if !is_active(&context.informers.namespaces, namespace) {
        return Ok(());
    }
    let data = BTreeMap::from([("ca.crt".to_owned(), root_ca.to_owned())]);
    let (annotation, description) = ROOT_CA_DESCRIPTION;
    match maps.get(namespace, ROOT_CA) {
        None => {
            let mut map = ConfigMap {
                metadata: named(namespace, ROOT_CA),
                data: Some(data),
                ..ConfigMap::default()
            };
            map.annotations_mut()
                .insert(annotation.to_owned(), description.to_owned());
            create(context, namespace, &map).await
        }
        Some(current) => {
            let described = current
                .annotations()
                .get(annotation)
                .is_some_and(|text| text == description);
            if current.data.as_ref() == Some(&data) && described {
                return Ok(());
            }
            let mut map = ConfigMap {
                data: Some(data),
                ..ConfigMap::clone(&current)
            };
            map.annotations_mut()
                .insert(annotation.to_owned(), description.to_owned());
            let api: Api<ConfigMap> = Api::namespaced(context.client.clone(), namespace);
            let replaced = api.replace(ROOT_CA, &PostParams::default(), &map).await;
            api_error::ignore_not_found(replaced).map(drop)
        }
    }
}

fn feed_namespaces(context: &Context, queue: &Queue<String>) {
    let queue = queue.clone();
    context.informers.namespaces.on_change(move |change| {
        if !change.is_deleted() {
            queue.add(change.object().name_any());
        }
    });
}

fn is_active(namespaces: &Informer<Namespace>, name: &str) -> bool {
    let namespace = namespaces.get("", name);
    namespace.is_some_and(|namespace| {
        let phase = namespace
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        phase != Some("Terminating") && namespace.metadata.deletion_timestamp.is_none()
    })
}

fn named(namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()),
        ..ObjectMeta::default()
    }
}

/// Creates an object. That it already exists, or that the namespace is terminating, is not an error.
async fn create<K>(context: &Context, namespace: &str, object: &K) -> kube::Result<()>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::Serialize
        + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(context.client.clone(), namespace);
    match api.create(&PostParams::default(), object).await {
        Err(error)
            if api_error::is_already_exists(&error)
                || api_error::is_namespace_terminating(&error)
                // The namespace itself may be gone by now.
                || api_error::is_not_found(&error) =>
        {
            Ok(())
        }
        outcome => outcome.map(drop),
    }
}
