//! Expressions that choose devices. Source of the rules: k8s.io/dynamic-resource-allocation/cel.

use std::sync::{Arc, LazyLock};

use serde_json::Value;

use crate::{
    cel::{Environment, Object, Program, Shape, Type},
    field::{Errors, Path},
    kinds::tree::Tree,
};

const MAX_SELECTORS: usize = 32;
const MAX_EXPRESSION: usize = 10 * 1024;
/// What an expression may cost at most.
const MAX_COST: u64 = 1_000_000;
/// Attributes and capacities of a device.
const MOST_ENTRIES: u64 = 32;
/// Characters of a driver's name and of the domain of an attribute.
const DOMAIN: u64 = 63;
/// Characters of an attribute's name within its domain.
const ID: u64 = 32;
/// Characters of an attribute's value.
const VALUE: u64 = 64;

/// What the expressions that choose devices speak of.
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
    Environment::default().with("device", Type::Object(Arc::new(device)))
});

/// How big what they speak of can be.
static DEVICE: LazyLock<Shape> = LazyLock::new(|| {
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
        // An attribute is as long whether it is selected or looked up.
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

/// Expressions that choose devices.
pub(super) fn selectors(selectors: &[Value], path: &Path<'_>, errors: &mut Errors) {
    if selectors.len() > MAX_SELECTORS {
        return errors.too_many(path, selectors.len(), MAX_SELECTORS);
    }
    for (index, selector) in selectors.iter().enumerate() {
        let at = path.index(index);
        let at = at.child("cel");
        let Some(cel) = selector.field("cel") else {
            errors.required(&at, "");
            continue;
        };
        let (text, at) = (cel.text("expression"), at.child("expression"));
        if text.len() > MAX_EXPRESSION {
            errors.too_long(&at, MAX_EXPRESSION);
            continue;
        }
        match Program::compile(text, &ENVIRONMENT) {
            Err(issues) => errors.invalid(&at, text, format!("compilation failed: {issues}")),
            Ok(program) if matches!(program.result(), Type::Bool | Type::Dyn) => {
                if program.most_cost(&ENVIRONMENT, &DEVICE) > MAX_COST {
                    errors.forbidden(&at, "too complex, exceeds cost limit");
                }
            }
            Ok(program) => {
                let found = program.result().own_name();
                let why = format!("must evaluate to bool or the unknown type, not {found}");
                errors.invalid(&at, text, why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_expression_costs_follows_from_what_a_device_may_have() {
        let expressions = [
            (r#"device.driver == "dra.example.com""#, 4),
            (r#""a.com" in device.attributes"#, 3),
            (r#"device.attributes["a.com"].name"#, 4),
            (r#"device.attributes["a.com"]["name"] > 0"#, 5),
            (r#"cel.bind(dra, device.attributes["a.com"], dra.name)"#, 15),
            // A condition and a step for each of 64 items.
            (
                r#"device.attributes["a.com"].names.exists(x, x > 0)"#,
                5 + 6 * 64,
            ),
        ];
        for (expression, cost) in expressions {
            let program = Program::compile(expression, &ENVIRONMENT).expect(expression);
            assert_eq!(
                program.most_cost(&ENVIRONMENT, &DEVICE),
                cost,
                "{expression}"
            );
        }
    }

    #[test]
    fn an_expression_that_may_take_too_long_is_refused() {
        let all = |depth: u32| {
            let items = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]";
            let start = "true".to_owned();
            (0..depth).fold(start, |inner, at| format!("{items}.all(x{at}, {inner})"))
        };
        for (depth, refused) in [(3, false), (6, true)] {
            let mut errors = Errors::default();
            let selector = serde_json::json!({ "cel": { "expression": all(depth) } });
            selectors(&[selector], &Path::new("selectors"), &mut errors);
            let told = "selectors[0].cel.expression: Forbidden: too complex, exceeds cost limit";
            assert_eq!(errors.is_empty(), !refused, "{depth}");
            assert!(!refused || errors.aggregate() == told, "{errors:?}");
        }
    }
}
