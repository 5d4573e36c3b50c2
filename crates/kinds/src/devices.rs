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
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

pub use mullion_cel::Refusal;
use mullion_cel::{
    Budget, Environment, EvalError, Failure, Object, Program, Shape, Type, Value, map_of, quantity,
    total_map, type_name, version,
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

/// The reason why a device has no attribute or capacity of that name.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DeviceError {
    /// The version that the attribute has is invalid.
    #[error("attribute {name}: parse semantic version: {why}")]
    Version {
        /// The name of the attribute.
        name: String,
        /// What is wrong with the version.
        why: EvalError,
    },
    /// The quantity of the capacity is invalid.
    #[error("capacity {name}: {why}")]
    Quantity {
        /// The name of the capacity.
        name: String,
        /// What is wrong with the quantity.
        why: EvalError,
    },
}

/// The reason why an expression neither selects a device nor leaves it out, with kube-scheduler's message.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MatchError {
    /// The expression has no value.
    #[error(transparent)]
    Failure(#[from] Failure),
    /// The value is of another type.
    #[error("CEL result of type {kind} could not be converted to bool: {}", unconverted(.kind))]
    NotABool {
        /// The name of the type.
        kind: String,
    },
}

/// A checked expression.
#[derive(Debug)]
pub struct Selector(Program);

impl Selector {
    /// Parses and checks an expression.
    ///
    /// # Errors
    /// The problem and its position, with kube-apiserver's message.
    pub fn compile(expression: &str) -> Result<Self, Refusal> {
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
    pub fn matches(&self, device: &Device) -> Result<bool, MatchError> {
        let variables = [("device", device.0.clone())];
        match self.0.evaluate(&variables, &mut Budget::default()) {
            Ok(Value::Bool(truth)) => Ok(truth),
            Ok(other) => Err(MatchError::NotABool {
                kind: type_name(&other).to_owned(),
            }),
            Err(failure) => Err(failure.into()),
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
    fn value(self) -> Result<Value, EvalError> {
        Ok(match self {
            Attribute::Int(number) => Value::Int(number),
            Attribute::Bool(truth) => Value::Bool(truth),
            Attribute::Text(text) => Value::String(Arc::new(text.to_owned())),
            Attribute::Version(text) => version(text)?,
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
    ) -> Result<Self, DeviceError> {
        let attributes = attributes.into_iter().map(|(name, attribute)| {
            let value = attribute.value().map_err(|why| DeviceError::Version {
                name: name.to_owned(),
                why,
            })?;
            Ok((name, value))
        });
        let capacity = capacity.into_iter().map(|(name, text)| {
            let value = quantity(text).map_err(|why| DeviceError::Quantity {
                name: name.to_owned(),
                why,
            })?;
            Ok((name, value))
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
    entries: impl Iterator<Item = Result<(&'a str, Value), DeviceError>>,
) -> Result<Value, DeviceError> {
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

/// Returns cel-go's error for a value of that type which becomes a bool.
fn unconverted(kind: &str) -> String {
    let from = match kind {
        "int" | "uint" => return format!("unsupported type conversion from '{kind}' to bool"),
        "string" => return "unsupported native conversion from string to 'bool'".to_owned(),
        "type" => return "type conversion not supported for 'type'".to_owned(),
        "double" => "Double",
        "bytes" => "Bytes",
        "google.protobuf.Duration" => "'Duration'",
        "google.protobuf.Timestamp" => "'Timestamp'",
        "list" | "map" => kind,
        kind => {
            let short = kind.strip_prefix("kubernetes.").unwrap_or(kind);
            return format!("type conversion error from '{short}' to 'bool'");
        }
    };
    format!("type conversion error from {from} to 'bool'")
}

#[cfg(test)]
mod tests;
