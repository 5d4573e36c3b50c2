//! Reads the objects that placement and the rule about addresses look up for one pod.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{DynamicObject, ListParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::Value;

use crate::{
    Context, Informer,
    admission::{Access, Known, Permission, ServiceAccount},
    api_error,
};

/// The objects that matter for one pod, as they were when the pod was looked at.
pub(super) struct Objects {
    /// Group, plural, namespace and object.
    found: Vec<(&'static str, &'static str, String, Arc<Value>)>,
    nodes: Informer<Node>,
}

/// Group, version, kind and plural.
type Kind = (&'static str, &'static str, &'static str, &'static str);

const NAMESPACE: Kind = ("", "v1", "Namespace", "namespaces");
const ACCOUNT: Kind = ("", "v1", "ServiceAccount", "serviceaccounts");
const SECRET: Kind = ("", "v1", "Secret", "secrets");
const CONFIG_MAP: Kind = ("", "v1", "ConfigMap", "configmaps");
const DEPLOYMENT: Kind = ("apps", "v1", "Deployment", "deployments");
const RUNTIME_CLASS: Kind = ("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses");
const NODE_POOL: Kind = ("karpenter.sh", "v1", "NodePool", "nodepools");
const NODE_CLASS: Kind = ("karpenter.k8s.aws", "v1", "EC2NodeClass", "ec2nodeclasses");

impl Objects {
    /// Reads the objects that matter for `pod`.
    pub(super) async fn of(context: &Context, pod: &Value, namespace: &str) -> kube::Result<Self> {
        let mut objects = Objects {
            found: Vec::new(),
            nodes: context.informers.nodes.clone(),
        };
        let spec = &pod["spec"];
        let account = spec["serviceAccountName"].as_str().unwrap_or("default");
        let mut wanted = vec![
            (NAMESPACE, "", namespace.to_owned()),
            (ACCOUNT, namespace, account.to_owned()),
            (CONFIG_MAP, "kube-system", "amazon-vpc-cni".to_owned()),
            (
                DEPLOYMENT,
                "kube-system",
                "vpc-resource-controller".to_owned(),
            ),
        ];
        if let Some(class) = spec["runtimeClassName"].as_str() {
            wanted.push((RUNTIME_CLASS, "", class.to_owned()));
        }
        // kube-apiserver's ServiceAccount plugin has written those of the account into the pod.
        let secrets = spec["imagePullSecrets"].as_array().into_iter().flatten();
        let names = secrets.filter_map(|secret| secret["name"].as_str());
        wanted.extend(names.map(|name| (SECRET, namespace, name.to_owned())));
        for (kind, namespace, name) in wanted {
            let object = api(context, kind, namespace).get_opt(&name).await?;
            objects.keep(kind, namespace, object)?;
        }
        for kind in [NODE_POOL, NODE_CLASS] {
            let all = api(context, kind, "").list(&ListParams::default()).await;
            // A cluster without Karpenter does not serve them.
            let all = api_error::ignore_not_found(all)?;
            for object in all.into_iter().flat_map(|list| list.items) {
                objects.keep(kind, "", Some(object))?;
            }
        }
        Ok(objects)
    }

    fn keep(
        &mut self,
        (group, _, _, plural): Kind,
        namespace: &str,
        object: Option<DynamicObject>,
    ) -> kube::Result<()> {
        if let Some(object) = object {
            let object = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
            let namespace = namespace.to_owned();
            self.found
                .push((group, plural, namespace, Arc::new(object)));
        }
        Ok(())
    }

    fn of_kind<'a>(
        &'a self,
        group: &'a str,
        plural: &'a str,
        namespace: Option<&'a str>,
    ) -> impl Iterator<Item = &'a Arc<Value>> {
        let found = self.found.iter().filter(move |(of, kind, within, _)| {
            *of == group && *kind == plural && namespace.is_none_or(|one| one == within)
        });
        found.map(|(.., object)| object)
    }
}

fn api(context: &Context, kind: Kind, namespace: &str) -> Api<DynamicObject> {
    let (group, version, kind, plural) = kind;
    let kind = GroupVersionKind::gvk(group, version, kind);
    let resource = ApiResource::from_gvk_with_plural(&kind, plural);
    match namespace {
        "" => Api::all_with(context.client.clone(), &resource),
        namespace => Api::namespaced_with(context.client.clone(), namespace, &resource),
    }
}

fn as_value(node: &Node) -> Option<Arc<Value>> {
    serde_json::to_value(node).ok().map(Arc::new)
}

impl Known for Objects {
    fn find(
        &self,
        group: &str,
        plural: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Option<Arc<Value>> {
        if (group, plural) == ("", "nodes") {
            return as_value(&*self.nodes.get("", name)?);
        }
        let mut found = self.of_kind(group, plural, namespace);
        found
            .find(|object| object["metadata"]["name"] == name)
            .cloned()
    }

    fn list(&self, group: &str, plural: &str, namespace: Option<&str>) -> Vec<Arc<Value>> {
        if (group, plural) == ("", "nodes") {
            let nodes = self.nodes.list();
            return nodes.iter().filter_map(|node| as_value(node)).collect();
        }
        self.of_kind(group, plural, namespace).cloned().collect()
    }

    /// Placement and addresses ask for no permission.
    fn may(&self, _: &ServiceAccount<'_>, _: &Access<'_>) -> Permission {
        Permission::default()
    }
}
