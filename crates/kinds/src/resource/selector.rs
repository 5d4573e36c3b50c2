//! Validates the CEL expressions that select devices. Source: k8s.io/dynamic-resource-allocation/cel.

use mullion_kube_text::field::{Errors, Path};
use mullion_schema::tree::Tree;
use serde_json::Value;

use crate::devices::Selector;

const MAX_SELECTORS: usize = 32;
const MAX_EXPRESSION: usize = 10 * 1024;
/// The largest cost of a CEL expression.
const MAX_COST: u64 = 1_000_000;

/// Validates the CEL expressions that select devices.
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
        // Compiling costs time in proportion to the length, so a long expression is not even parsed.
        if text.len() > MAX_EXPRESSION {
            errors.too_long(&at, MAX_EXPRESSION);
            continue;
        }
        match Selector::ready(text) {
            Err(refusal) => refusal.record(text, &at, errors),
            Ok(selector) if selector.most_cost() > MAX_COST => {
                errors.forbidden(&at, "too complex, exceeds cost limit");
            }
            Ok(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_that_cannot_be_made_ready_to_run_is_refused() {
        for (expression, told) in [
            (
                "device.driver == string(b'\\xff')",
                "Internal error: program instantiation failed: invalid UTF-8 in bytes, cannot convert to string",
            ),
            (
                "cel.bind(x, int('x'), x == 1)",
                "Internal error: program instantiation failed: type conversion error from 'string' to 'int'",
            ),
            (
                "device.driver",
                r#"Invalid value: "device.driver": must evaluate to bool or the unknown type, not string"#,
            ),
        ] {
            let mut errors = Errors::default();
            let selector = serde_json::json!({ "cel": { "expression": expression } });
            selectors(&[selector], &Path::new("selectors"), &mut errors);
            let told = format!("selectors[0].cel.expression: {told}");
            assert_eq!(errors.aggregate(), told, "{expression}");
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
