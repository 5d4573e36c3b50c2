//! The objects at which the rules of quotas look beside the one that is counted.

use std::sync::Arc;

use k8s_openapi::api::resource::v1::DeviceClass;
use mullion_kinds::request::Lookup;
use serde_json::{Value, json};

/// Objects of one namespace, and the DeviceClasses, by group and plural.
pub(super) struct Listed(Vec<(&'static str, &'static str, Vec<Arc<Value>>)>);

impl Listed {
    pub(super) fn new(classes: &[Arc<DeviceClass>]) -> Self {
        let classes = classes.iter().map(|class| {
            let name = &class.metadata.name;
            let extended = &class.spec.extended_resource_name;
            json!({ "metadata": { "name": name }, "spec": { "extendedResourceName": extended } })
        });
        let classes = classes.map(Arc::new).collect();
        Self(vec![("resource.k8s.io", "deviceclasses", classes)])
    }

    /// Sets the objects of a kind.
    pub(super) fn set(
        &mut self,
        group: &'static str,
        plural: &'static str,
        objects: Vec<Arc<Value>>,
    ) {
        self.0.push((group, plural, objects));
    }

    fn of(&self, group: &str, plural: &str) -> &[Arc<Value>] {
        let mut kinds = self.0.iter();
        let found = kinds.find(|(own, name, _)| *own == group && *name == plural);
        found.map_or(&[], |(.., objects)| objects)
    }
}

impl Lookup for Listed {
    fn find(
        &self,
        group: &str,
        plural: &str,
        _namespace: Option<&str>,
        name: &str,
    ) -> Option<Arc<Value>> {
        let mut objects = self.of(group, plural).iter();
        objects
            .find(|object| object["metadata"]["name"] == name)
            .cloned()
    }

    fn list(&self, group: &str, plural: &str, _namespace: Option<&str>) -> Vec<Arc<Value>> {
        self.of(group, plural).to_vec()
    }
}
