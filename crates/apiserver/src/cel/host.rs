//! Values whose methods are answered by the program around the language: what an expression may ask of rights.

use std::{fmt, sync::Arc};

use kube_cel::cel::{Value, objects::Opaque};

/// A value with methods of its own.
pub(crate) trait Host: fmt::Debug + Send + Sync {
    /// Its type, as the table of functions names it.
    fn type_name(&self) -> &'static str;

    /// Calls a method; `None` if it has none of that name for these arguments, an error where their values will not do.
    fn call(&self, function: &str, arguments: &[Value]) -> Option<Result<Value, &'static str>>;
}

/// A host as a value.
pub(crate) fn host(host: impl Host + 'static) -> Value {
    Value::Opaque(Arc::new(Hosted(Arc::new(host))))
}

/// The host that a value is.
pub(super) fn of(value: &Value) -> Option<&dyn Host> {
    match value {
        Value::Opaque(opaque) => opaque.downcast_ref::<Hosted>().map(|hosted| &*hosted.0),
        _ => None,
    }
}

#[derive(Debug)]
struct Hosted(Arc<dyn Host>);

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
