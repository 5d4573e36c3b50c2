//! Quantities in expressions, based on [`mullion_kube_text::quantity`] (source: apiserver/pkg/cel/library/quantity.go).

use std::sync::Arc;

use kube_cel::cel::{Value, objects::Opaque};
use mullion_kube_text::quantity::{self, Quantity, QuantityError};

use super::error::EvalError;

const NANO: i128 = 1_000_000_000;

#[derive(Clone, Debug)]
struct Amount {
    quantity: Quantity,
    /// Whether apimachinery stores the quantity as an integer; `1000m` is not.
    is_whole: bool,
}

impl PartialEq for Amount {
    fn eq(&self, other: &Self) -> bool {
        self.quantity == other.quantity
    }
}

impl Eq for Amount {}

impl Opaque for Amount {
    fn runtime_type_name(&self) -> &str {
        "kubernetes.Quantity"
    }
}

impl From<Amount> for Value {
    fn from(amount: Amount) -> Self {
        Value::Opaque(Arc::new(amount))
    }
}

/// Calls a quantity function; `None` if the function is not one.
pub(super) fn call(
    function: &str,
    target: Option<&Value>,
    arguments: &[Value],
) -> Option<Result<Value, EvalError>> {
    match (function, target, arguments) {
        ("quantity", None, [Value::String(text)]) => Some(quantity(text)),
        ("isQuantity", None, [Value::String(text)]) => {
            Some(Ok(Value::Bool(Amount::read(text).is_ok())))
        }
        // `sign` takes the quantity as an argument; all functions below are methods.
        ("sign", None, [amount]) => {
            let amount = Amount::of(amount)?;
            Some(Ok(Value::Int(amount.quantity.nano().cmp(&0) as i64)))
        }
        (function, Some(target), arguments) => {
            let amount = Amount::of(target)?;
            let other = arguments.first();
            let summand = other.and_then(Amount::or_int);
            let other = other.and_then(Amount::of);
            let value = match (function, arguments, other) {
                ("isInteger", [], _) => Value::Bool(amount.integer().is_some()),
                ("asInteger", [], _) => {
                    let integer = amount.integer().map(Value::Int);
                    return Some(integer.ok_or(EvalError::NotAnInteger));
                }
                ("asApproximateFloat", [], _) => {
                    Value::Float(amount.quantity.nano() as f64 / NANO as f64)
                }
                ("add", [_], _) => {
                    let other = summand?;
                    amount.with(&other, amount.quantity.plus(&other.quantity))
                }
                ("sub", [_], _) => {
                    let other = summand?;
                    amount.with(&other, amount.quantity.minus(&other.quantity))
                }
                ("isLessThan", [_], Some(other)) => Value::Bool(amount.quantity < other.quantity),
                ("isGreaterThan", [_], Some(other)) => {
                    Value::Bool(amount.quantity > other.quantity)
                }
                ("compareTo", [_], Some(other)) => {
                    Value::Int(amount.quantity.cmp(&other.quantity) as i64)
                }
                _ => return None,
            };
            Some(Ok(value))
        }
        _ => None,
    }
}

/// Parses a quantity.
///
/// # Errors
/// apimachinery's message for an invalid quantity.
pub fn quantity(text: &str) -> Result<Value, EvalError> {
    Ok(Amount::read(text).map(Value::from)?)
}

impl Amount {
    fn read(text: &str) -> Result<Amount, QuantityError> {
        // Only JSON may have spaces around a quantity.
        if text.trim() != text {
            return Err(QuantityError::Format);
        }
        Ok(Amount {
            quantity: Quantity::parse(text)?,
            is_whole: quantity::is_kept_whole(text),
        })
    }

    fn of(value: &Value) -> Option<&Amount> {
        match value {
            Value::Opaque(opaque) => opaque.downcast_ref(),
            _ => None,
        }
    }

    /// Returns a value as a quantity; an int is converted.
    fn or_int(value: &Value) -> Option<Amount> {
        match value {
            Value::Int(number) => Some(Amount {
                quantity: Quantity::from_integer(*number),
                is_whole: true,
            }),
            value => Amount::of(value).cloned(),
        }
    }

    fn integer(&self) -> Option<i64> {
        let nano = self.quantity.nano();
        // apimachinery looks at how the number is stored, so `1000m` has no integer.
        if !self.is_whole || nano % NANO != 0 {
            return None;
        }
        i64::try_from(nano / NANO).ok()
    }

    /// Returns the result of an operation on two quantities.
    fn with(&self, other: &Amount, quantity: Quantity) -> Value {
        // Adding zero keeps the other's form; otherwise one decimal makes the result a decimal (apimachinery:
        // `Quantity.Add`).
        let is_whole = match (self.quantity.is_zero(), other.quantity.is_zero()) {
            (_, true) => self.is_whole,
            (true, _) => other.is_whole,
            _ => self.is_whole && other.is_whole,
        };
        Amount { quantity, is_whole }.into()
    }
}
