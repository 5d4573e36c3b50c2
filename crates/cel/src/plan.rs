//! Finds the errors that cel-go reports when it plans a checked expression (interpreter: planner.go, decorators.go): it converts
//! constants, compiles constant patterns, and checks constant keys.

use kube_cel::cel::Value;
use mullion_kube_text::golang::regexp;
use std::sync::Arc;

use super::{
    budget::{Budget, Failure},
    check::{Checker, Environment},
    error::EvalError,
    eval::{call, of_type, value_of},
    expr::{Expr, Node, qualified},
    functions::is_type_name,
    maps::Entries,
    types::Type,
    values::go_type,
};

/// Functions of one argument that are evaluated during planning if the argument is constant.
const CONVERSIONS: [&str; 10] = [
    "bool",
    "bytes",
    "double",
    "duration",
    "dyn",
    "int",
    "string",
    "timestamp",
    "type",
    "uint",
];

/// Returns the planning error of an expression, if it has one.
pub(super) fn fault(expression: &Expr, environment: &Environment) -> Option<EvalError> {
    let mut planner = Planner {
        scope: Checker::new(environment),
        budget: Budget::default(),
    };
    planner.known(expression).err()
}

struct Planner<'e> {
    /// The types of names.
    scope: Checker<'e>,
    budget: Budget,
}

impl Planner<'_> {
    /// Returns the value of an expression if it is constant.
    fn known(&mut self, expression: &Expr) -> Result<Option<Value>, EvalError> {
        match &expression.node {
            Node::Literal(literal) => Ok(Some(value_of(literal))),
            Node::Name(name) => {
                let is_type = self.scope.variable(name).is_none() && is_type_name(name);
                Ok(is_type.then(|| of_type(name)))
            }
            // A type name such as `google.protobuf.Duration` is a chain of selections and constant.
            Node::Select { operand, test, .. } => {
                if !test && let Some(value) = self.named(expression) {
                    return Ok(value);
                }
                self.known(operand).map(|_| None)
            }
            Node::OptionalSelect { operand, .. } => self.known(operand).map(|_| None),
            Node::Call {
                function,
                target,
                arguments,
            } => self.call(function, target.as_deref(), arguments),
            Node::List(items) => {
                let mut list = Some(Vec::with_capacity(items.len()));
                for (is_optional, item) in items {
                    // An item after a question mark may be absent, so the list is not constant.
                    let value = self.known(item)?.filter(|_| !is_optional);
                    keep(&mut list, value);
                }
                Ok(list.map(|list| Value::List(Arc::new(list))))
            }
            Node::Map(entries) => {
                let (mut keys, mut values) = (Some(Vec::new()), Some(Vec::new()));
                for (is_optional, key, value) in entries {
                    keep(&mut keys, self.known(key)?);
                    let value = self.known(value)?.filter(|_| !is_optional);
                    keep(&mut values, value);
                }
                let (Some(keys), Some(values)) = (keys, values) else {
                    return Ok(None);
                };
                let mut map = Entries::default();
                for (key, value) in keys.into_iter().zip(values) {
                    map.insert(key, value)?;
                }
                Ok(Some(map.finish()))
            }
            Node::Message { fields, .. } => {
                for field in fields {
                    self.known(&field.value)?;
                }
                Ok(None)
            }
            Node::Fold(fold) => {
                self.known(&fold.range)?;
                let second = fold.second.as_ref();
                let variables: Vec<&str> = second
                    .into_iter()
                    .chain([&fold.variable])
                    .map(String::as_str)
                    .collect();
                // Their constants may be wrong as well, although a macro's result never counts as constant.
                for part in fold.filter.iter().chain([&fold.body]) {
                    self.inside(&variables, part)?;
                }
                Ok(None)
            }
            Node::OptionalMap {
                target: value,
                variable,
                body,
                ..
            }
            | Node::Bind {
                variable,
                value,
                body,
            } => {
                self.known(value)?;
                self.inside(&[variable], body)?;
                Ok(None)
            }
        }
    }

    /// Returns the type that a chain of selections names, or `Some(None)` if it is a variable whose name has dots.
    fn named(&self, chain: &Expr) -> Option<Option<Value>> {
        if self.scope.dotted(chain).is_some() {
            return Some(None);
        }
        let name = qualified(chain)?;
        let root = name.split('.').next()?;
        let is_type = self.scope.variable(root).is_none() && is_type_name(&name);
        is_type.then(|| Some(of_type(&name)))
    }

    fn inside(&mut self, variables: &[&str], body: &Expr) -> Result<(), EvalError> {
        let before = self.scope.locals.len();
        // Only the names matter here: they hide types of the same name.
        let more = variables.iter().map(|name| ((*name).to_owned(), Type::Dyn));
        self.scope.locals.extend(more);
        let known = self.known(body);
        self.scope.locals.truncate(before);
        known.map(|_| ())
    }

    fn call(
        &mut self,
        function: &str,
        target: Option<&Expr>,
        arguments: &[Expr],
    ) -> Result<Option<Value>, EvalError> {
        let namespaced = target.and_then(|target| self.scope.namespaced(target, function));
        let (function, target) = match &namespaced {
            Some(name) => (name.as_str(), None),
            None => (function, target),
        };
        let mut values = Vec::with_capacity(arguments.len() + 1);
        for part in target.into_iter().chain(arguments) {
            values.push(self.known(part)?);
        }
        match (function, target, values.as_slice()) {
            // cel-go makes a qualifier of a constant index, and only these types can be one.
            ("_[_]" | "_[?_]", None, [_, Some(key)]) => match key {
                Value::Bool(_)
                | Value::Float(_)
                | Value::Int(_)
                | Value::String(_)
                | Value::UInt(_) => Ok(None),
                other => Err(EvalError::Qualifier(go_type(other).to_owned())),
            },
            // cel-go replaces membership in an empty list literal by false, so it counts as constant.
            ("@in", None, [_, Some(Value::List(items))]) if items.is_empty() => {
                let is_list = matches!(&arguments[1].node, Node::List(_));
                Ok(is_list.then_some(Value::Bool(false)))
            }
            // Constant patterns are compiled during planning, so an invalid one is an error even where it would never
            // run.
            ("matches" | "find" | "findAll", _, [_, Some(Value::String(pattern)), ..]) => {
                let compiled = regexp::compile(pattern);
                compiled
                    .map(|_| None)
                    .map_err(|why| EvalError::Pattern(Box::new(why)))
            }
            (name, None, [Some(_)]) if CONVERSIONS.contains(&name) => {
                let values = values.into_iter().flatten().collect();
                match call(name, values, &mut self.budget) {
                    Ok(value) => Ok(Some(value)),
                    Err(Failure::Error(why)) => Err(why),
                    // Too much to evaluate now, so it is left to the run.
                    Err(Failure::TooLong | Failure::Exhausted) => Ok(None),
                }
            }
            _ => Ok(None),
        }
    }
}

/// Appends a constant value; a value that is not constant makes the whole list unknown.
fn keep(all: &mut Option<Vec<Value>>, value: Option<Value>) {
    match (value, all.as_mut()) {
        (Some(value), Some(all)) => all.push(value),
        _ => *all = None,
    }
}
