//! Evaluates checked expressions. Each step is charged to a budget, so that no expression can stall a request.

mod apply;
mod fold;
mod missing;
mod scope;

use std::{collections::BTreeMap, sync::Arc};

use kube_cel::cel::Value;
use mullion_kube_text::golang::number::whole;

use self::scope::Scope;
use super::{
    budget::{Budget, Failure, STEPS_OF_A_CALL},
    conversions::as_text,
    error::EvalError,
    expr::{Expr, Literal, Node, qualified, root},
    functions::{is_type_name, namespaced},
    keyed::plain,
    maps::{Entries, as_map},
    messages::{Message, message},
    total::total,
    values::{TypeValue, go_type, none, optional, some, text, type_name, why_broken},
};

type Evaluated<T = Value> = Result<T, Failure>;

fn failed<T>(why: EvalError) -> Evaluated<T> {
    Err(Failure::Error(why))
}

fn no_overload<T>() -> Evaluated<T> {
    failed(EvalError::NoOverload(None))
}

/// Evaluates an expression.
pub(super) fn evaluate(
    expression: &Expr,
    variables: &[(&str, Value)],
    budget: &mut Budget,
) -> Evaluated {
    // The limit of one call starts anew; what is left for the object goes on shrinking.
    budget.of_call = STEPS_OF_A_CALL;
    let mut run = Run { budget };
    let mut scope = Scope::Empty;
    let scopes: Vec<(&str, &Value)> = variables.iter().map(|(n, v)| (*n, v)).collect();
    scope = match scopes.as_slice() {
        [] => scope,
        all => Scope::Given(all),
    };
    run.value(expression, &scope)
}

struct Run<'b> {
    budget: &'b mut Budget,
}

impl Run<'_> {
    fn value(&mut self, expression: &Expr, scope: &Scope<'_>) -> Evaluated {
        // Before the step is done, so that a run ends as soon as its budget does.
        self.budget.take(1)?;
        match &expression.node {
            Node::Literal(literal) => Ok(value_of(literal)),
            Node::Name(name) => match scope.find(name) {
                Some(value) => Ok(value.clone()),
                None if is_type_name(name) => Ok(of_type(name)),
                None => failed(EvalError::NoAttribute(name.clone())),
            },
            Node::Select {
                operand,
                field,
                test,
            } => {
                // A chain such as `a.b.c` may be the name of a variable or a type, which takes precedence over selecting fields.
                if let Some(root) = root(expression) {
                    if let Some(value) = scope.dotted(expression, root) {
                        return Ok(value.clone());
                    }
                    let named = match scope.find(root) {
                        Some(_) => None,
                        None => qualified(expression).filter(|name| is_type_name(name)),
                    };
                    if let Some(name) = named {
                        return Ok(of_type(&name));
                    }
                }
                let operand = self.value(operand, scope)?;
                match (optional(&operand), test) {
                    (None, false) => member(&operand, field),
                    (None, true) => Ok(Value::Bool(has(&operand, field)?)),
                    (Some(inner), true) => {
                        let inner = inner.map(|inner| has(inner, field));
                        Ok(Value::Bool(inner.transpose()?.unwrap_or(false)))
                    }
                    (Some(inner), false) => {
                        let found = inner.map(|inner| named(inner, field)).transpose()?;
                        Ok(found.flatten().map_or_else(none, some))
                    }
                }
            }
            Node::OptionalSelect { operand, field } => {
                let operand = self.value(operand, scope)?;
                let inner = match optional(&operand) {
                    Some(None) => return Ok(none()),
                    Some(Some(inner)) => inner,
                    None => &operand,
                };
                Ok(named(inner, field)?.map_or_else(none, some))
            }
            Node::Call {
                function,
                target,
                arguments,
            } => self.call(function, target.as_deref(), arguments, scope),
            Node::List(items) => {
                let mut list = Vec::with_capacity(items.len());
                for (is_optional, item) in items {
                    let value = self.value(item, scope)?;
                    list.extend(held(*is_optional, value, || "list element".to_owned())?);
                }
                Ok(Value::List(Arc::new(list)))
            }
            Node::Map(entries) => {
                let mut map = Entries::default();
                for (is_optional, key, value) in entries {
                    let key = self.value(key, scope)?;
                    let value = self.value(value, scope)?;
                    match held(*is_optional, value, || named_entry(&key))? {
                        Some(value) => map.insert(key, value).map_err(Failure::Error)?,
                        // As in cel-go, an optional entry without a value removes an earlier entry with the same key.
                        None => map.remove(&key),
                    }
                }
                Ok(map.finish())
            }
            Node::Message { name, fields } => {
                let mut made = BTreeMap::new();
                for field in fields {
                    let value = self.value(&field.value, scope)?;
                    let value = held(field.optional, value, || named_entry(&text(&field.name)))?;
                    if let Some(value) = value {
                        made.insert(field.name.clone(), value);
                    }
                }
                Ok(Value::Opaque(Arc::new(Message {
                    name: name.clone(),
                    fields: made,
                })))
            }
            Node::Fold(fold) => self.fold(fold, scope),
            Node::OptionalMap {
                target,
                variable,
                body,
                flat,
            } => {
                let target = self.value(target, scope)?;
                match optional(&target) {
                    None => failed(missing::message("hasValue", Some(&target), &[])),
                    Some(None) => Ok(none()),
                    Some(Some(inner)) => {
                        let result = self.value(body, &scope.with(variable, inner))?;
                        Ok(if *flat { result } else { some(result) })
                    }
                }
            }
            Node::Bind {
                variable,
                value,
                body,
            } => {
                let value = self.value(value, scope)?;
                self.value(body, &scope.with(variable, &value))
            }
        }
    }

    fn truth(&mut self, expression: &Expr, scope: &Scope<'_>) -> Evaluated<bool> {
        match self.value(expression, scope)? {
            Value::Bool(truth) => Ok(truth),
            _ => no_overload(),
        }
    }

    /// Evaluates `&&` and `||`: one operand may decide the result although the other failed.
    fn logic(&mut self, arguments: &[Expr], scope: &Scope<'_>, decisive: bool) -> Evaluated {
        let mut failure = None;
        for argument in arguments {
            match self.truth(argument, scope) {
                // Also after a failure of the other operand: in CEL, an error or true is true.
                Ok(truth) if truth == decisive => return Ok(Value::Bool(decisive)),
                Ok(_) => {}
                Err(Failure::Error(why)) => failure = failure.or(Some(why)),
                // No other operand can make up for an exhausted budget.
                Err(over) => return Err(over),
            }
        }
        failure.map_or(Ok(Value::Bool(!decisive)), failed)
    }

    fn call(
        &mut self,
        function: &str,
        target: Option<&Expr>,
        arguments: &[Expr],
        scope: &Scope<'_>,
    ) -> Evaluated {
        match (function, arguments) {
            ("_&&_", sides) => return self.logic(sides, scope, false),
            ("_||_", sides) => return self.logic(sides, scope, true),
            // Before arguments are evaluated, because only the chosen branch may run.
            ("_?_:_", [condition, then, otherwise]) => {
                let chosen = if self.truth(condition, scope)? {
                    then
                } else {
                    otherwise
                };
                return self.value(chosen, scope);
            }
            _ => {}
        }
        let is_variable = |name: &str| scope.find(name).is_some();
        let namespaced = target.and_then(|target| namespaced(target, function, is_variable));
        let (function, target) = match &namespaced {
            Some(name) => (name.as_str(), None),
            None => (function, target),
        };
        let target = match target {
            Some(target) => Some(self.value(target, scope)?),
            None => None,
        };
        let mut values = Vec::with_capacity(arguments.len());
        for argument in arguments {
            values.push(self.value(argument, scope)?);
        }
        self.apply(function, target, values)
    }
}

/// Returns an item of a list or map, or the content of an optional; `place` describes the position for errors.
fn held(
    is_optional: bool,
    value: Value,
    place: impl FnOnce() -> String,
) -> Evaluated<Option<Value>> {
    match (is_optional, optional(&value)) {
        (false, _) => Ok(Some(value)),
        (true, Some(inner)) => Ok(inner.cloned()),
        (true, None) => {
            let parts = Box::new((place(), shown(&value)));
            failed(EvalError::Initializer(parts))
        }
    }
}

fn named_entry(key: &Value) -> String {
    format!("entry '{}'", shown(key))
}

/// Formats a scalar as Go prints it.
fn shown(value: &Value) -> String {
    let text = as_text(value).and_then(Result::ok);
    text.unwrap_or_else(|| type_name(value).to_owned())
}

/// Applies a function to values.
pub(super) fn call(function: &str, values: Vec<Value>, budget: &mut Budget) -> Evaluated {
    budget.of_call = STEPS_OF_A_CALL;
    Run { budget }.apply(function, None, values)
}

/// Returns the value of a literal.
pub(super) fn value_of(literal: &Literal) -> Value {
    match literal {
        Literal::Null => Value::Null,
        Literal::Bool(truth) => Value::Bool(*truth),
        Literal::Int(number) => Value::Int(*number),
        Literal::Uint(number) => Value::UInt(*number),
        Literal::Double(number) => Value::Float(*number),
        Literal::Text(given) => text(given),
        Literal::Bytes(bytes) => Value::Bytes(Arc::new(bytes.clone())),
    }
}

/// Returns a type as a value.
pub(super) fn of_type(name: &str) -> Value {
    Value::Opaque(Arc::new(TypeValue(name.to_owned())))
}

fn count(number: usize) -> Value {
    Value::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

/// Returns whether a value has a member of that name.
fn has(operand: &Value, field: &str) -> Evaluated<bool> {
    if total(operand).is_some() {
        return Ok(true);
    }
    match as_map(operand) {
        Some(map) => Ok(map.named(field).is_some()),
        None => Ok(named(operand, field)?.is_some()),
    }
}

fn member(operand: &Value, field: &str) -> Evaluated {
    match named(operand, field)? {
        Some(value) => Ok(value),
        None => failed(EvalError::NoKey(field.to_owned())),
    }
}

/// Returns the member of that name, or `None` if there is none.
fn named(operand: &Value, field: &str) -> Evaluated<Option<Value>> {
    if let Some(map) = as_map(operand) {
        let otherwise = || total(operand).map(|total| total.otherwise.clone());
        return match map.named(field) {
            Some(value) => match why_broken(value) {
                Some(why) => failed(EvalError::Broken(why.to_owned())),
                None => Ok(Some(value.clone())),
            },
            None => Ok(otherwise()),
        };
    }
    match plain(operand) {
        Value::List(_) => failed(EvalError::IndexType("string".to_owned())),
        // A value without any members gets the same error as one that lacks this member.
        operand => Ok(message(operand).and_then(|message| message.fields.get(field).cloned())),
    }
}

fn index(operand: &Value, at: &Value) -> Evaluated {
    if let Some(value) = found(operand, at)? {
        return Ok(value);
    }
    let at = shown(at);
    match plain(operand) {
        Value::List(_) => failed(EvalError::OutOfBounds(at)),
        _ => failed(EvalError::NoKey(at)),
    }
}

/// Returns the element at an index or key, or `None` if there is none.
fn found(operand: &Value, at: &Value) -> Evaluated<Option<Value>> {
    match at {
        Value::String(name) => return named(operand, name),
        Value::Int(_) | Value::UInt(_) | Value::Float(_) | Value::Bool(_) => {}
        other => return failed(EvalError::Qualifier(go_type(other).to_owned())),
    }
    if let Some(map) = as_map(operand) {
        let otherwise = || total(operand).map(|total| total.otherwise.clone());
        return Ok(map.get(at).cloned().or_else(otherwise));
    }
    let Value::List(items) = plain(operand) else {
        return Ok(None);
    };
    let number = match at {
        Value::Int(number) => Some(*number),
        Value::UInt(number) => i64::try_from(*number).ok(),
        Value::Float(number) => whole(*number),
        other => return failed(EvalError::IndexType(type_name(other).to_owned())),
    };
    let Some(number) = number else {
        return failed(EvalError::IndexValue(shown(at)));
    };
    // A negative index is out of bounds like one that is too large.
    let item = usize::try_from(number).ok();
    Ok(item.and_then(|number| items.get(number)).cloned())
}
