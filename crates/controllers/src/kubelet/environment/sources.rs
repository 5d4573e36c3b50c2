//! The objects from which a container's environment is built. They are looked up when a user reads the container's
//! log.
//!
//! Nothing is stored when a container starts, so pods whose logs nobody reads cost nothing. The environment
//! therefore shows later changes of these objects.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
};

use k8s_openapi::{
    NamespaceResourceScope,
    api::core::v1::{ConfigMap, Container, Node, Pod, Secret, Service},
};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::{
    Context,
    kubelet::config::{self, Object},
    pods,
};

/// The objects from which environments are built.
#[derive(Clone, Debug, Default)]
pub(in crate::kubelet) struct Sources {
    /// The data of ConfigMaps in the pod's namespace, by name.
    pub(super) config_maps: BTreeMap<String, BTreeMap<String, String>>,
    /// The keys of Secrets in the pod's namespace, by name.
    pub(super) secret_keys: BTreeMap<String, BTreeSet<String>>,
    /// Services of all namespaces.
    pub(super) services: Vec<Arc<Service>>,
    /// The pod's node.
    pub(super) node: Option<Arc<Node>>,
}

impl Sources {
    /// Looks up the objects that the command of a container of `pod` may refer to, or nothing if the command
    /// contains no variable. An object that cannot be read counts as missing.
    pub(in crate::kubelet) async fn of(
        context: &Context,
        pod: &Pod,
        container: &Container,
    ) -> Self {
        if !refers_to_variables(container) {
            return Self::default();
        }
        let informers = &context.informers;
        let mut sources = Self::default();
        if informers.services.synced().await && informers.nodes.synced().await {
            sources.services = informers.services.list();
            sources.node = informers.nodes.get("", pods::node_name(pod));
        }
        let objects = config::of_container(container).objects();
        for object in objects {
            match object {
                Object::ConfigMap(name) => {
                    if let Some(map) = read::<ConfigMap>(context, pod, &name).await {
                        let data = map.data.unwrap_or_default();
                        sources.config_maps.insert(name, data);
                    }
                }
                Object::Secret(name) => {
                    if let Some(secret) = read::<Secret>(context, pod, &name).await {
                        let keys = secret.data.unwrap_or_default().into_keys();
                        sources.secret_keys.insert(name, keys.collect());
                    }
                }
                Object::Claim(_) | Object::ResourceClaim(_) => {}
            }
        }
        sources
    }
}

fn refers_to_variables(container: &Container) -> bool {
    let lists = [&container.command, &container.args];
    let mut words = lists.into_iter().flatten().flatten();
    words.any(|word| word.contains("$("))
}

async fn read<K>(context: &Context, pod: &Pod, name: &str) -> Option<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Debug,
{
    // Validation accepts a reference without a name, but no object has an empty name.
    if name.is_empty() {
        return None;
    }
    let namespace = pod.namespace().unwrap_or_default();
    let api: Api<K> = Api::namespaced(context.client.clone(), &namespace);
    api.get_opt(name).await.ok().flatten()
}
