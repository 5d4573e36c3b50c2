//! The functions of Kubernetes' libraries and of CEL's extensions, from the kube-cel crate.
//!
//! They can be called only through that crate's interpreter, so each call becomes a small expression with named arguments.

use std::sync::LazyLock;

use kube_cel::{
    KubeCelExt,
    cel::{
        Context, ExecutionError, IdedExpr, Value,
        common::ast::{CallExpr, Expr},
    },
};

use super::error::EvalError;

/// The names of the arguments; no function has more.
const ARGUMENTS: [&str; 4] = ["a0", "a1", "a2", "a3"];

static FUNCTIONS: LazyLock<Context<'static>> = LazyLock::new(|| Context::default().with_all());

/// Calls a function, or a method on `target`.
pub(super) fn call(
    function: &str,
    target: Option<Value>,
    arguments: Vec<Value>,
) -> Result<Value, EvalError> {
    // The cel crate's functions can only be called from an expression, so the values become variables of one.
    let mut scope = FUNCTIONS.new_inner_scope();
    let name = |name: &str| IdedExpr {
        id: 0,
        expr: Expr::Ident(name.to_owned()),
    };
    let (namespace, function) = match function.rsplit_once('.') {
        Some((namespace, function)) => (Some(name(namespace)), function),
        None => (None, function),
    };
    let target = match target {
        Some(value) => {
            scope.add_variable_from_value("target", value);
            Some(name("target"))
        }
        None => namespace,
    };
    let mut args = Vec::with_capacity(arguments.len());
    for (value, argument) in arguments.into_iter().zip(ARGUMENTS) {
        scope.add_variable_from_value(argument, value);
        args.push(name(argument));
    }
    let call = IdedExpr {
        id: 0,
        expr: Expr::Call(CallExpr {
            func_name: function.to_owned(),
            target: target.map(Box::new),
            args,
        }),
    };
    Value::resolve(&call, &scope).map_err(|error| match error {
        ExecutionError::FunctionError { message, .. } => EvalError::Library(message),
        // To cel-go all of these are a missing overload.
        ExecutionError::NoSuchOverload
        | ExecutionError::UndeclaredReference(_)
        | ExecutionError::UnsupportedTargetType { .. }
        | ExecutionError::UnexpectedType { .. }
        | ExecutionError::NotSupportedAsMethod { .. } => EvalError::NoOverload(None),
        other => {
            // The crate's messages begin with a capital letter, unlike cel-go's.
            let text = other.to_string();
            let mut letters = text.chars();
            let first = letters.next().map(|first| first.to_ascii_lowercase());
            EvalError::Library(first.into_iter().chain(letters).collect())
        }
    })
}
