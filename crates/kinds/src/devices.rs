//! CEL selectors of dynamic resource allocation, and the devices that they match. Source of the rules:
//! k8s.io/dynamic-resource-allocation/cel.
//!
//! An expression is compiled once ([`Selector`]) and a device is converted once ([`Device`]); then any selector can be matched against
//! any device.
//!
//! ```
//! use mullion_kinds::devices::{Attribute, Device, Selector};
//!
//! let selector = Selector::compile(
//!     r#"device.attributes["gpu.example.com"].model == "a100" && device.capacity["gpu.example.com"].memory.compareTo(quantity("40Gi")) >= 0"#,
//! )?;
//! let device = Device::new(
//!     "gpu.example.com",
//!     false,
//!     [("model", Attribute::Text("a100"))],
//!     [("memory", "80Gi")],
//! )?;
//! assert_eq!(selector.matches(&device), Ok(true));
//! # Ok::<(), String>(())
//! ```

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use mullion_cel::{
    Budget, Environment, Object, Program, Refusal, Shape, Type, Value, map_of, quantity, total_map,
    type_name, version,
};

/// The most attributes and capacities of a device.
const MOST_ENTRIES: u64 = 32;
/// The most characters of a driver's name and of an attribute's domain.
const DOMAIN: u64 = 63;
/// The most characters of an attribute's name within its domain.
const ID: u64 = 32;
/// The most characters of an attribute's value.
const VALUE: u64 = 64;

/// The variable `device` and its type.
static ENVIRONMENT: LazyLock<Environment> = LazyLock::new(|| {
    let by_name = |value| Type::map(Type::String, Type::map(Type::String, value));
    let fields = [
        ("driver", Type::String),
        ("attributes", by_name(Type::Dyn)),
        ("capacity", by_name(Type::Opaque("kubernetes.Quantity"))),
        ("allowMultipleAllocations", Type::Bool),
    ];
    let device = Object {
        name: "kubernetes.DRADevice".to_owned(),
        fields: fields.map(|(name, kind)| (name.to_owned(), kind)).into(),
        open: false,
    };
    Environment::default()
        .with("device", Type::Object(Arc::new(device)))
        .with_bind()
});

/// The largest size of the variable, for cost estimates.
static SHAPE: LazyLock<Shape> = LazyLock::new(|| {
    let text = |most| Shape {
        most,
        ..Shape::default()
    };
    let map = |key, items: Shape| Shape {
        most: MOST_ENTRIES,
        keys: Some(Box::new(text(key))),
        items: Some(Box::new(items)),
        ..Shape::default()
    };
    let attributes = Shape {
        // An attribute costs the same whether it is selected as a field or looked up as a key.
        others: Some(Box::new(text(VALUE))),
        ..map(ID, text(VALUE))
    };
    let fields = [
        ("driver", text(DOMAIN)),
        ("attributes", map(DOMAIN, attributes)),
        ("capacity", map(DOMAIN, map(ID, text(0)))),
    ];
    Shape {
        fields: fields.map(|(name, shape)| (name.to_owned(), shape)).into(),
        ..Shape::default()
    }
});

/// A checked expression.
#[derive(Debug)]
pub struct Selector(Program);

impl Selector {
    /// Parses and checks an expression.
    ///
    /// # Errors
    /// The problem and its position, with kube-apiserver's message.
    pub fn compile(expression: &str) -> Result<Self, String> {
        Selector::ready(expression).map_err(|refusal| refusal.to_string())
    }

    /// Does the same as [`Selector::compile`], but returns the kind of the error as well.
    pub(crate) fn ready(expression: &str) -> Result<Self, Refusal> {
        let program = Program::compile(expression, &ENVIRONMENT)
            .map_err(|issues| Refusal::Invalid(format!("compilation failed: {issues}")))?;
        match program.result() {
            // A value whose type is known only at evaluation may still be a bool.
            Type::Bool | Type::Dyn => program.ready().map(Self),
            other => Err(Refusal::Invalid(format!(
                "must evaluate to bool or the unknown type, not {}",
                other.own_name()
            ))),
        }
    }

    /// Returns whether the expression selects the device.
    ///
    /// # Errors
    /// kube-scheduler's message if the expression looks up what the device lacks, takes more than 1,000,000 steps, or returns something
    /// else than a bool.
    pub fn matches(&self, device: &Device) -> Result<bool, String> {
        let variables = [("device", device.0.clone())];
        match self.0.evaluate(&variables, &mut Budget::default()) {
            Ok(Value::Bool(truth)) => Ok(truth),
            Ok(other) => Err(not_bool(&other)),
            Err(failure) => Err(failure.to_string()),
        }
    }

    /// Returns an upper bound of the cost of an evaluation, in kube-apiserver's units.
    pub(crate) fn most_cost(&self) -> u64 {
        self.0.most_cost(&ENVIRONMENT, &SHAPE)
    }
}

/// The value of a device's attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute<'a> {
    /// An integer.
    Int(i64),
    /// A boolean.
    Bool(bool),
    /// A string.
    Text(&'a str),
    /// A version by semver.org 2.0.0.
    Version(&'a str),
}

impl Attribute<'_> {
    fn value(self) -> Result<Value, String> {
        Ok(match self {
            Attribute::Int(number) => Value::Int(number),
            Attribute::Bool(truth) => Value::Bool(truth),
            Attribute::Text(text) => Value::String(Arc::new(text.to_owned())),
            Attribute::Version(text) => {
                version(text).map_err(|why| format!("parse semantic version: {why}"))?
            }
        })
    }
}

/// A device as expressions see it. Clones share their content.
#[derive(Clone, Debug)]
pub struct Device(Value);

impl Device {
    /// Creates a device of a driver from its attributes and capacities (quantities as text) by name. A name without a domain gets the
    /// driver's; where both forms of a name are given, the one with the domain wins, as when claims compare attributes.
    ///
    /// # Errors
    /// The error of an invalid version or quantity, with its name.
    pub fn new<'a>(
        driver: &'a str,
        allow_multiple_allocations: bool,
        attributes: impl IntoIterator<Item = (&'a str, Attribute<'a>)>,
        capacity: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, String> {
        let attributes = attributes.into_iter().map(|(name, attribute)| {
            let value = attribute.value();
            Ok((
                name,
                value.map_err(|why| format!("attribute {name}: {why}"))?,
            ))
        });
        let capacity = capacity.into_iter().map(|(name, text)| {
            let value = quantity(text);
            Ok((
                name,
                value.map_err(|why| format!("capacity {name}: {why}"))?,
            ))
        });
        let fields = [
            ("driver", Value::String(Arc::new(driver.to_owned()))),
            (
                "allowMultipleAllocations",
                Value::Bool(allow_multiple_allocations),
            ),
            ("attributes", by_domain(driver, attributes)?),
            ("capacity", by_domain(driver, capacity)?),
        ];
        Ok(Self(map_of(
            &fields.map(|(name, value)| (name.to_owned(), value)),
        )))
    }
}

/// Splits the name of an attribute or capacity into domain and identifier; the default domain is the driver's name.
pub fn domain_and_id<'n>(name: &'n str, driver: &'n str) -> (&'n str, &'n str) {
    name.split_once('/').unwrap_or((driver, name))
}

/// Groups values by domain and identifier. Looking up an absent domain gives an empty one.
fn by_domain<'a>(
    driver: &'a str,
    entries: impl Iterator<Item = Result<(&'a str, Value), String>>,
) -> Result<Value, String> {
    /// The values of a domain, each with whether its name came with the domain.
    type Held<'a> = HashMap<&'a str, (bool, Value)>;
    let mut domains: HashMap<&str, Held<'a>> = HashMap::new();
    for entry in entries {
        let (name, value) = entry?;
        let is_qualified = name.contains('/');
        let (domain, id) = domain_and_id(name, driver);
        let held = domains.entry(domain).or_default();
        if is_qualified || held.get(id).is_none_or(|(qualified, _)| !qualified) {
            held.insert(id, (is_qualified, value));
        }
    }
    let plain = |held: Held<'_>| {
        let held = held.into_iter();
        let named = held.map(|(id, (_, value))| (id.to_owned(), value));
        map_of(&named.collect::<Vec<_>>())
    };
    let domains = domains.into_iter();
    let domains = domains.map(|(domain, held)| (domain.to_owned(), plain(held)));
    let domains = map_of(&domains.collect::<Vec<_>>());
    Ok(total_map(domains, map_of(&[])))
}

/// Returns the error for a result that is not a bool.
fn not_bool(result: &Value) -> String {
    let name = type_name(result);
    let why = match result {
        Value::Int(_) | Value::UInt(_) => {
            format!("unsupported type conversion from '{name}' to bool")
        }
        Value::String(_) => "unsupported native conversion from string to 'bool'".to_owned(),
        Value::Float(_) => "type conversion error from Double to 'bool'".to_owned(),
        Value::Bytes(_) => "type conversion error from Bytes to 'bool'".to_owned(),
        Value::Duration(_) => "type conversion error from 'Duration' to 'bool'".to_owned(),
        Value::Timestamp(_) => "type conversion error from 'Timestamp' to 'bool'".to_owned(),
        _ => match name {
            "list" | "map" => format!("type conversion error from {name} to 'bool'"),
            "type" => "type conversion not supported for 'type'".to_owned(),
            name => {
                let short = name.strip_prefix("kubernetes.").unwrap_or(name);
                format!("type conversion error from '{short}' to 'bool'")
            }
        },
    };
    format!("CEL result of type {name} could not be converted to bool: {why}")
}

#[cfg(test)]
mod tests;
