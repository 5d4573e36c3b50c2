//! Looks up what pods take from ConfigMaps and Secrets.
//!
//! Nothing is watched: an object is read when a pod needs it, so a cluster whose pods refer to none pays nothing. Each
//! question is a task of its own, and only so many of them read at once.
//!
//! Invariant: every question is answered once, unless the process stops; a read that fails is repeated.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{
    NamespaceResourceScope,
    api::core::v1::{ConfigMap, Pod, Secret},
};
use kube::{Api, Client, Error, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::inputs::Input;
use crate::{
    Context,
    kubelet::{
        config::{Found, Keys, Object},
        pod::Question,
    },
};

/// Questions that are looked up at once.
const READERS: usize = 16;
/// Pause before a read that failed is repeated.
const RETRY: Duration = Duration::from_millis(500);

pub(super) struct Asker {
    client: Client,
    tasks: TaskTracker,
    shutdown: CancellationToken,
    inputs: mpsc::UnboundedSender<Input>,
    readers: Arc<Semaphore>,
}

impl Asker {
    pub(super) fn new(context: &Context, inputs: mpsc::UnboundedSender<Input>) -> Self {
        Self {
            client: context.client.clone(),
            tasks: context.tasks.clone(),
            shutdown: context.shutdown.clone(),
            inputs,
            readers: Arc::new(Semaphore::new(READERS)),
        }
    }

    /// Looks up what `pod` asks for and sends the answer to the driver.
    pub(super) fn ask(&self, pod: &Arc<Pod>, question: Question) {
        let (pod, client, inputs) = (Arc::clone(pod), self.client.clone(), self.inputs.clone());
        let (readers, shutdown) = (Arc::clone(&self.readers), self.shutdown.clone());
        let answer = async move {
            // Never closed.
            let _permit = readers.acquire().await;
            let found = look_up(&client, &pod, question.objects).await;
            let need = question.need;
            // Closed only when the process stops.
            let _ = inputs.send(Input::Answer { pod, need, found });
        };
        self.tasks.spawn(async move {
            shutdown.run_until_cancelled(answer).await;
        });
    }
}

async fn look_up(client: &Client, pod: &Pod, objects: BTreeSet<Object>) -> Found {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let mut found = Found::new();
    for object in objects {
        let keys = match &object {
            Object::ConfigMap(name) => {
                let map = read::<ConfigMap>(client, namespace, name).await;
                map.map(|map| Keys {
                    values: keys(map.data),
                    binary: keys(map.binary_data),
                })
            }
            Object::Secret(name) => {
                let secret = read::<Secret>(client, namespace, name).await;
                secret.map(|secret| Keys {
                    values: keys(secret.data),
                    binary: BTreeSet::new(),
                })
            }
        };
        if let Some(keys) = keys {
            found.insert(object, keys);
        }
    }
    found
}

fn keys<V>(data: Option<BTreeMap<String, V>>) -> BTreeSet<String> {
    data.unwrap_or_default().into_keys().collect()
}

async fn read<K>(client: &Client, namespace: &str, name: &str) -> Option<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    // Validation lets references without a name pass, and nothing is called so.
    if name.is_empty() {
        return None;
    }
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    loop {
        match api.get_opt(name).await {
            Ok(object) => return object,
            Err(Error::Api(status)) if status.code < 500 && status.code != 429 => {
                tracing::debug!(%status, namespace, name, "kubelet read refused");
                return None;
            }
            Err(error) => {
                tracing::debug!(%error, namespace, name, "kubelet read failed, repeating it");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}
