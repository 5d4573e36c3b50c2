//! Maps that have a value for whatever is looked up in them. Only what they really have is counted, found by `in` and gone through.
//! Source: the mapper of k8s.io/dynamic-resource-allocation/cel/compile.go.

use std::sync::Arc;

use kube_cel::cel::{Value, objects::Opaque};

/// Such a map.
#[derive(Debug, PartialEq)]
pub(super) struct Total {
    /// What it really has, as a plain map.
    pub(super) map: Value,
    /// What any other key has.
    pub(super) otherwise: Value,
}

// Nothing compares maps but [`super::values::equal`].
impl Eq for Total {}

impl Opaque for Total {
    fn runtime_type_name(&self) -> &str {
        "map"
    }
}

/// A map in which every key that it lacks has one and the same value.
pub(crate) fn total_map(map: Value, otherwise: Value) -> Value {
    Value::Opaque(Arc::new(Total { map, otherwise }))
}

/// The map that a value is, if it lacks nothing.
pub(super) fn total(value: &Value) -> Option<&Total> {
    match value {
        Value::Opaque(opaque) => opaque.downcast_ref(),
        _ => None,
    }
}
