//! Values whose methods the host program implements, such as the authorizer in admission policies.

use std::{fmt, sync::Arc};

use kube_cel::cel::{Value, objects::Opaque};

/// A value with methods of its own.
pub trait Host: fmt::Debug + Send + Sync {
    /// Returns the type's name in the table of functions.
    fn type_name(&self) -> &'static str;

    /// Calls a method. Returns `None` if there is no such method for these arguments, and an error if their values are invalid.
    fn call(&self, function: &str, arguments: &[Value]) -> Option<Result<Value, &'static str>>;
}

/// Wraps a host as a value.
pub fn host(host: impl Host + 'static) -> Value {
    Value::Opaque(Arc::new(Hosted(Arc::new(host))))
}

/// Returns the host that a value wraps, if it does.
pub(super) fn of(value: &Value) -> Option<&dyn Host> {
    match value {
        Value::Opaque(opaque) => opaque.downcast_ref::<Hosted>().map(|hosted| &*hosted.0),
        _ => None,
    }
}

#[derive(Debug)]
struct Hosted(Arc<dyn Host>);

// A host has no value of its own, so it equals itself only.
impl PartialEq for Hosted {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Hosted {}

impl Opaque for Hosted {
    fn runtime_type_name(&self) -> &str {
        self.0.type_name()
    }
}
