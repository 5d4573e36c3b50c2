//! The key of an object within its kind, in client-go's `namespace/name` form.

use std::{borrow::Borrow, fmt, sync::Arc};

use kube::Resource;

/// `namespace/name`, or `name` for cluster-scoped objects. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// Returns the key of `name` in `namespace`, which is empty for cluster-scoped objects.
    pub fn new(namespace: &str, name: &str) -> Self {
        if namespace.is_empty() {
            Self(name.into())
        } else {
            Self([namespace, "/", name].concat().into())
        }
    }

    /// Returns the key of `object`.
    pub fn of<K: Resource>(object: &K) -> Self {
        let meta = object.meta();
        Self::new(
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default(),
        )
    }

    /// Returns the namespace, or the empty string.
    pub fn namespace(&self) -> &str {
        self.0
            .split_once('/')
            .map_or("", |(namespace, _)| namespace)
    }

    /// Returns the name without its namespace.
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or(&self.0, |(_, name)| name)
    }

    /// Returns the whole key.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}
