//! The objects at which the rules of quotas look beside the one that is counted.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use mullion_kinds::request::Lookup;
use serde_json::{Value, json};

use crate::{Context, Informer};

/// The DeviceClasses, the claims of devices of the namespace that is counted, and pods.
pub(super) struct Listed {
    classes: Vec<Arc<Value>>,
    /// Empty until they are listed.
    pub(super) claims: Vec<Arc<Value>>,
    pods: Informer<Pod>,
}

impl Listed {
    pub(super) fn new(context: &Context) -> Self {
        let classes = context.informers.device_classes.list();
        let classes = classes.iter().map(|class| {
            let name = &class.metadata.name;
            let extended = &class.spec.extended_resource_name;
            json!({ "metadata": { "name": name }, "spec": { "extendedResourceName": extended } })
        });
        Self {
            classes: classes.map(Arc::new).collect(),
            claims: Vec::new(),
            pods: context.informers.pods.clone(),
        }
    }

    fn objects(&self, plural: &str) -> &[Arc<Value>] {
        match plural {
            "deviceclasses" => &self.classes,
            "resourceclaims" => &self.claims,
            _ => &[],
        }
    }
}

impl Lookup for Listed {
    fn find(
        &self,
        _group: &str,
        plural: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Option<Arc<Value>> {
        if plural == "pods" {
            let pod = self.pods.get(namespace.unwrap_or_default(), name)?;
            return serde_json::to_value(&*pod).ok().map(Arc::new);
        }
        let mut objects = self.objects(plural).iter();
        let found = objects.find(|object| object["metadata"]["name"] == name);
        found.map(Arc::clone)
    }

    fn list(&self, _group: &str, plural: &str, _namespace: Option<&str>) -> Vec<Arc<Value>> {
        self.objects(plural).to_vec()
    }
}
