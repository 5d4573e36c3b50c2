//! Maps that have a value for every key. Size, `in` and iteration see only the real entries. Source: the mapper of
//! k8s.io/dynamic-resource-allocation/cel/compile.go.

use std::sync::Arc;

use kube_cel::cel::{Value, objects::Opaque};

/// A map with a default value.
#[derive(Debug, PartialEq)]
pub(super) struct Total {
    /// The real entries, as a plain map.
    pub(super) map: Value,
    /// The value of all other keys.
    pub(super) otherwise: Value,
}

// Maps are compared with [`super::values::equal`] only.
impl Eq for Total {}

impl Opaque for Total {
    fn runtime_type_name(&self) -> &str {
        "map"
    }
}

/// Returns a map in which every absent key has the value `otherwise`.
pub fn total_map(map: Value, otherwise: Value) -> Value {
    Value::Opaque(Arc::new(Total { map, otherwise }))
}

/// Returns the total map that a value is, if it is one.
pub(super) fn total(value: &Value) -> Option<&Total> {
    match value {
        Value::Opaque(opaque) => opaque.downcast_ref(),
        _ => None,
    }
}
