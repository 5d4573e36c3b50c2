//! Resources that are not stored: their objects come from an [`ObjectSource`] at each request.

use std::collections::BTreeMap;

use serde_json::Value;

/// The labels of an object.
pub type Labels = BTreeMap<String, String>;

/// The source of the objects of a resource that is not stored.
pub trait ObjectSource: Send + Sync {
    /// Returns the requested objects, sorted by namespace and name, without `apiVersion` and `kind`.
    fn list(&self, wanted: &ObjectQuery<'_>) -> Vec<Value>;

    /// Returns the cells of an object's row, one per column.
    fn cells(&self, object: &Value) -> Vec<Value>;
}

/// Returns whether a request's selectors select an object by its namespace, name and labels.
type Selects<'a> = dyn Fn(&str, &str, Option<&Labels>) -> bool + 'a;

/// The objects that a request asks for.
pub struct ObjectQuery<'a> {
    namespace: Option<&'a str>,
    name: Option<&'a str>,
    selects: &'a Selects<'a>,
}

impl<'a> ObjectQuery<'a> {
    /// Creates a query for the objects of a namespace (`None`: of all) and name (`None`: any) that the selectors of a request select.
    pub fn new(
        namespace: Option<&'a str>,
        name: Option<&'a str>,
        selects: &'a Selects<'a>,
    ) -> Self {
        ObjectQuery {
            namespace,
            name,
            selects,
        }
    }

    /// Returns the requested namespace; `None` for all namespaces, or for a cluster-scoped resource.
    pub fn namespace(&self) -> Option<&'a str> {
        self.namespace
    }

    /// Returns the requested name; `None` for all names.
    pub fn name(&self) -> Option<&'a str> {
        self.name
    }

    /// Returns whether the request asks for an object; `namespace` is empty for a cluster-scoped one.
    pub fn takes(&self, namespace: &str, name: &str, labels: Option<&Labels>) -> bool {
        self.namespace.is_none_or(|wanted| wanted == namespace)
            && self.name.is_none_or(|wanted| wanted == name)
            && (self.selects)(namespace, name, labels)
    }
}
