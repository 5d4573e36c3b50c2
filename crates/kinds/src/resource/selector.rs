//! Validates the CEL expressions that select devices. Source: k8s.io/dynamic-resource-allocation/cel.

use mullion_kube_text::field::{Errors, Path};

use crate::{
    devices::Selector,
    fields::{Each, Field, Fields, Rule, Text, UpTo, always, present},
};

const MAX_EXPRESSION: usize = 10 * 1024;
/// The largest cost of a CEL expression.
const MAX_COST: u64 = 1_000_000;

/// The CEL expressions that select devices.
pub(super) const SELECTORS: Rule = UpTo(32, &Each(SELECTOR));
const SELECTOR: &[Field] = &[present("cel", Fields(CEL))];
const CEL: &[Field] = &[always("expression", Text(expression))];

fn expression(errors: &mut Errors, path: &Path<'_>, text: &str) {
    // Compiling costs time in proportion to the length, so a long expression is not even parsed.
    if text.len() > MAX_EXPRESSION {
        return errors.too_long(path, MAX_EXPRESSION);
    }
    match Selector::compile(text) {
        Err(refusal) => refusal.record(text, path, errors),
        Ok(selector) if selector.most_cost() > MAX_COST => {
            errors.forbidden(path, "too complex, exceeds cost limit");
        }
        Ok(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields;

    fn validated(expression: &str) -> Errors {
        let mut errors = Errors::default();
        let class = serde_json::json!({"selectors": [{"cel": {"expression": expression}}]});
        let table = &[always("selectors", SELECTORS)];
        fields::validate(table, &class, Path::ROOT, &mut errors);
        errors
    }

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
            let errors = validated(expression);
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
            let errors = validated(&all(depth));
            let told = "selectors[0].cel.expression: Forbidden: too complex, exceeds cost limit";
            assert_eq!(errors.is_empty(), !refused, "{depth}");
            assert!(!refused || errors.aggregate() == told, "{errors:?}");
        }
    }
}
