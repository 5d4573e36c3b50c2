//! Checks that the rules of a schema compile, and that they use `oldSelf` only where values have a stored counterpart.

use mullion_kube_text::field::{ErrorType, Errors, Path, go_struct};
use mullion_schema::structural::Schema;
use serde_json::{Value, json};

use super::{RelaxedRules, below, costs::Costs, entries, items, openapi::SoundSchemas, text};
use crate::crd::rules::{Rule, environment, shapes, types};

/// Compiles the rules of every schema that is sound.
pub(super) fn check(
    schema: &Value,
    sound: &SoundSchemas,
    relaxed: RelaxedRules,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let mut walk = Walk {
        sound,
        costs: Costs::new(relaxed.dear_expressions),
        errors,
    };
    let context = SchemaContext {
        is_resource: true,
        uncorrelatable: None,
        times: Some(1),
    };
    walk.schema(schema, context, path);
    walk.costs.check_total(path, walk.errors);
}

struct Walk<'w> {
    sound: &'w SoundSchemas,
    costs: Costs,
    errors: &'w mut Errors,
}

/// The facts about the surrounding schemas that a schema's checks need.
#[derive(Clone, Copy)]
struct SchemaContext<'a> {
    is_resource: bool,
    /// The outermost enclosing schema whose values have no stored counterpart.
    uncorrelatable: Option<&'a Path<'a>>,
    /// The largest number of values with this schema in one object, or `None` if it is unbounded.
    times: Option<u64>,
}

impl Walk<'_> {
    fn schema(&mut self, source: &Value, context: SchemaContext<'_>, path: &Path<'_>) {
        let times = context.times.zip(items_of_each(source));
        let below_here = |schema: &Value| SchemaContext {
            is_resource: super::flag(schema, "x-kubernetes-embedded-resource"),
            times: times.map(|(times, each)| times.saturating_mul(each)),
            ..context
        };
        if let Some(values) = below(source, "additionalProperties") {
            let path = path.child("additionalProperties");
            self.schema(values, below_here(values), &path);
        }
        let properties = path.child("properties");
        for (name, property) in entries(source, "properties") {
            self.schema(property, below_here(property), &properties.key(name));
        }
        if let Some(items) = below(source, "items") {
            let keyed = text(source, "x-kubernetes-list-type") == "map";
            let context = SchemaContext {
                // The outermost list counts: below it no value has a stored counterpart, whatever the inner lists are.
                uncorrelatable: context.uncorrelatable.or((!keyed).then_some(path)),
                ..below_here(items)
            };
            self.schema(items, context, &path.child("items"));
        }
        if items(source, "x-kubernetes-validations").next().is_some() && self.sound.has(path) {
            self.rules(source, context, &path.child("x-kubernetes-validations"));
        }
    }

    fn rules(&mut self, source: &Value, context: SchemaContext<'_>, at: &Path<'_>) {
        let schema = Schema::parse(source);
        let kind = types::of_schema(&schema, context.is_resource, "selfType");
        let shape = shapes::of_schema(&schema, context.is_resource);
        let Some((kind, shape)) = kind.zip(shape) else {
            self.errors.internal(
                at,
                "internal error: failed to retrieve type information for x-kubernetes-validations",
            );
            return;
        };
        // A value whose number is not limited can occur as often as its smallest JSON fits into a request.
        let times = context
            .times
            .unwrap_or(shapes::REQUEST_BYTES / (shape.least_bytes + 1));
        for (index, given) in items(source, "x-kubernetes-validations").enumerate() {
            let at = at.index(index);
            let rule = Rule::compile(&schema, &kind, given);
            for (field, program, times, what) in [
                ("rule", &rule.program, times, "estimated rule cost"),
                (
                    "messageExpression",
                    &rule.message_program,
                    1,
                    "estimated messageExpression cost",
                ),
            ] {
                let at = at.child(field);
                match program {
                    Some(Err(why)) => self.errors.with_text(
                        ErrorType::Invalid,
                        &at,
                        shown(given),
                        why.to_string(),
                    ),
                    Some(Ok(program)) => {
                        let once = program.most_cost(&environment(&kind, given), &shape);
                        // Saturating, because the bounds of nested lists multiply beyond 64 bits.
                        let cost = once.saturating_mul(times);
                        self.costs.add(cost, what, &at, self.errors);
                    }
                    None => {}
                }
            }
            match (
                rule.uses_old,
                context.uncorrelatable,
                given.get("optionalOldSelf"),
            ) {
                (true, Some(within), _) => {
                    let why = format!(
                        "oldSelf cannot be used on the uncorrelatable portion of the schema within {within}"
                    );
                    self.errors
                        .invalid(&at.child("rule"), text(given, "rule"), why);
                }
                (false, _, Some(Value::Bool(optional))) => {
                    let why = "may not be set if oldSelf is not used in rule";
                    self.errors
                        .invalid(&at.child("optionalOldSelf"), *optional, why);
                }
                _ => {}
            }
        }
    }
}

/// Returns the largest number of values of each schema below in one value of this schema, or `None` if it is unbounded.
fn items_of_each(schema: &Value) -> Option<u64> {
    let limit = |field: &str| schema.get(field).and_then(Value::as_u64);
    match text(schema, "type") {
        "object" if schema.get("additionalProperties").is_some() => limit("maxProperties"),
        "array" => limit("maxItems"),
        _ => Some(1),
    }
}

/// Formats a rule as Go prints the struct of kube-apiserver's internal type.
fn shown(rule: &Value) -> String {
    let or_empty = |field: &str| json!(text(rule, field));
    let or_null = |field: &str| rule.get(field).cloned().unwrap_or_default();
    go_struct(&[
        ("Rule", or_empty("rule")),
        ("Message", or_empty("message")),
        ("MessageExpression", or_empty("messageExpression")),
        ("Reason", or_null("reason")),
        ("FieldPath", or_empty("fieldPath")),
        ("OptionalOldSelf", or_null("optionalOldSelf")),
    ])
}
