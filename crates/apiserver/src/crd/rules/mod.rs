//! CEL rules of custom resources (`x-kubernetes-validations`): compiled with a schema, run on every write.
//!
//! Rules run only on objects that their schema accepts; a failed rule becomes a field error with the rule's path, reason and message. Rules
//! that do not look at the old value are forgiven where a write changes nothing ([`Correlation`]); the client is warned then. Source:
//! k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel.

pub(super) mod field_path;
pub(super) mod shapes;
pub(super) mod types;
mod values;

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::{
    correlation::{Correlation, is_granular, item_before},
    structural::Schema,
};
use crate::{
    cel::{Budget, Environment, Failure, Program, Type, Value, none, some},
    field::{BadValue, ErrorType, Errors, FieldError, Path},
};

/// Longer texts of a messageExpression are not shown.
const MAX_MESSAGE_BYTES: usize = 5 * 1024;

/// The compiled rules of one version.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    /// `None` when there are none.
    root: Option<Node>,
}

/// The rules of a schema and of those below it.
#[derive(Debug, Default)]
struct Node {
    rules: Vec<Rule>,
    properties: BTreeMap<String, Node>,
    items: Option<Box<Node>>,
    additional: Option<Box<Node>>,
}

/// What a rule is made of, as compiled.
#[derive(Debug)]
pub(super) struct Rule {
    source: String,
    message: String,
    reason: Option<String>,
    /// Where errors are told, below the rule's own place: `.spec.a`.
    field_path: Option<String>,
    /// `None` when there is no rule.
    pub(super) program: Option<Result<Program, String>>,
    pub(super) message_program: Option<Result<Program, String>>,
    pub(super) uses_old: bool,
    optional_old: bool,
}

impl Rule {
    /// Compiles one rule of a schema whose values have a type.
    pub(super) fn compile(schema: &Schema, kind: &Type, given: &Json) -> Rule {
        let text = |field: &str| given[field].as_str().unwrap_or_default();
        let optional_old = is_old_optional(given);
        let environment = environment(kind, given);
        let compiled = |field: &str, wanted: Type, prefix: &str, otherwise: &str| {
            let source = text(field);
            (!source.trim().is_empty()).then(|| {
                let program = Program::compile(source, &environment)
                    .map_err(|issues| format!("{prefix}compilation failed: {issues}"))?;
                if *program.result() == wanted {
                    Ok(program)
                } else {
                    Err(otherwise.to_owned())
                }
            })
        };
        let program = compiled(
            "rule",
            Type::Bool,
            "",
            "cel expression must evaluate to a bool",
        );
        let message_program = compiled(
            "messageExpression",
            Type::String,
            "messageExpression ",
            "messageExpression must evaluate to a string",
        );
        let field_path = Some(text("fieldPath"))
            .filter(|path| !path.is_empty())
            .and_then(|path| field_path::normal(path, schema).ok())
            .map(|found| found.text);
        Rule {
            source: text("rule").trim().to_owned(),
            message: text("message").trim().to_owned(),
            reason: given["reason"].as_str().map(str::to_owned),
            field_path,
            uses_old: matches!(&program, Some(Ok(program)) if program.mentions("oldSelf")),
            program,
            message_program,
            optional_old,
        }
    }

    /// What stands for the rule in messages.
    fn name(&self) -> &str {
        if self.message.is_empty() {
            &self.source
        } else {
            &self.message
        }
    }
}

/// The names that a rule about values of a type may use.
pub(super) fn environment(kind: &Type, given: &Json) -> Environment {
    let old = if is_old_optional(given) {
        Type::optional(kind.clone())
    } else {
        kind.clone()
    };
    Environment::default()
        .with("self", kind.clone())
        .with("oldSelf", old)
}

fn is_old_optional(rule: &Json) -> bool {
    rule["optionalOldSelf"] == true
}

/// One value on the way down.
#[derive(Clone, Copy)]
struct Place<'v> {
    schema: &'v Schema,
    value: &'v Json,
    /// What `oldSelf` is.
    old: Option<&'v Json>,
    correlation: Option<Correlation<'v>>,
    is_resource: bool,
}

impl Rules {
    /// Compiles the rules in the schema as it was sent.
    pub(crate) fn compile(schema: &Schema, source: &Json) -> Rules {
        let kind = schema
            .has_rules
            .then(|| types::of_schema(schema, true, "selfType"));
        Rules {
            root: kind
                .flatten()
                .map(|kind| Node::compile(schema, source, &kind)),
        }
    }

    /// Evaluates the rules, unless the object has other errors. Those that are forgiven if they fail are left to [`Rules::warnings`].
    pub(crate) fn check(
        &self,
        schema: &Schema,
        object: &Json,
        old: Option<&Json>,
        errors: &mut Errors,
    ) {
        let Some(root) = &self.root else {
            return;
        };
        if errors.0.iter().any(|error| is_blocking(error.error_type)) {
            let detail = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
            errors.invalid(&Path::new("<nil>"), Json::Null, detail);
            return;
        }
        self.run(root, schema, object, old, false, errors);
    }

    /// What rules say of values that the write does not change.
    pub(crate) fn warnings(&self, schema: &Schema, object: &Json, old: &Json) -> Vec<String> {
        let mut found = Errors::default();
        if let Some(root) = &self.root {
            self.run(root, schema, object, Some(old), true, &mut found);
        }
        let texts = found.0.iter();
        texts
            .map(|error| format!("{}: {}", error.field, error.body()))
            .collect()
    }

    fn run(
        &self,
        root: &Node,
        schema: &Schema,
        object: &Json,
        old: Option<&Json>,
        forgiven: bool,
        errors: &mut Errors,
    ) {
        let mut run = Run {
            budget: Budget::default(),
            forgiven,
            errors,
        };
        let place = Place {
            schema,
            value: object,
            old,
            correlation: old.map(|old| Correlation::new(object, old)),
            is_resource: true,
        };
        // An error is what stops all further rules; it has been told.
        let _ = run.node(root, place, "");
    }
}

impl Node {
    fn compile(schema: &Schema, source: &Json, kind: &Type) -> Node {
        let given = source["x-kubernetes-validations"].as_array();
        let rules = given.into_iter().flatten();
        let below = |schema: &Schema, source: &Json, name: &str| {
            let kind = schema
                .has_rules
                .then(|| types::of_schema(schema, schema.embedded, name))
                .flatten()?;
            Some(Node::compile(schema, source, &kind))
        };
        let properties = schema.properties.iter().filter_map(|(name, schema)| {
            let node = below(
                schema,
                &source["properties"][name],
                &format!("{kind}.{name}"),
            )?;
            Some((name.clone(), node))
        });
        Node {
            rules: rules
                .map(|rule| Rule::compile(schema, kind, rule))
                .collect(),
            properties: properties.collect(),
            items: schema
                .items
                .as_deref()
                .and_then(|schema| below(schema, &source["items"], &format!("{kind}.@items")))
                .map(Box::new),
            additional: schema
                .additional_schema()
                .and_then(|schema| {
                    let source = &source["additionalProperties"];
                    below(schema, source, &format!("{kind}.@values"))
                })
                .map(Box::new),
        }
    }
}

/// No further rule is run.
struct Stop;

struct Run<'e> {
    budget: Budget,
    /// Rules are run whose errors are forgiven, instead of the others.
    forgiven: bool,
    errors: &'e mut Errors,
}

impl Run<'_> {
    fn node(&mut self, node: &Node, place: Place<'_>, path: &str) -> Result<(), Stop> {
        if place.value.is_null() {
            return Ok(());
        }
        self.rules(&node.rules, &place, path)?;
        match place.value {
            Json::Array(items) => {
                let (Some(node), Some(schema)) = (&node.items, place.schema.items.as_deref())
                else {
                    return Ok(());
                };
                for (index, value) in items.iter().enumerate() {
                    let below = Place {
                        schema,
                        value,
                        old: place
                            .old
                            .and_then(|old| item_before(place.schema, value, old)),
                        correlation: place
                            .correlation
                            .map(|correlation| correlation.index(place.schema, index)),
                        is_resource: schema.embedded,
                    };
                    self.node(node, below, &format!("{path}[{index}]"))?;
                }
            }
            Json::Object(map) => {
                for (name, value) in map {
                    let property = node.properties.get(name);
                    let (node, schema, path) = match property.zip(place.schema.properties.get(name))
                    {
                        Some((node, schema)) => (node, schema, child(path, name)),
                        None => match node
                            .additional
                            .as_deref()
                            .zip(place.schema.additional_schema())
                        {
                            Some((node, schema)) => (node, schema, format!("{path}[{name}]")),
                            None => continue,
                        },
                    };
                    let below = Place {
                        schema,
                        value,
                        old: place
                            .old
                            .filter(|_| is_granular(place.schema))
                            .and_then(|old| old.get(name)),
                        correlation: place
                            .correlation
                            .map(|correlation| correlation.key(place.schema, name)),
                        is_resource: schema.embedded,
                    };
                    self.node(node, below, &path)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn rules(&mut self, rules: &[Rule], place: &Place<'_>, path: &str) -> Result<(), Stop> {
        let unchanged = place
            .correlation
            .is_some_and(|correlation| correlation.is_unchanged());
        let forgiven = self.forgiven;
        let mut wanted = rules.iter().filter(|rule| {
            let runs = !rule.uses_old || place.old.is_some() || rule.optional_old;
            runs && (unchanged && !rule.uses_old) == forgiven
        });
        let Some(first) = wanted.next() else {
            return Ok(());
        };
        let value = |value| values::of_json(place.schema, value, place.is_resource);
        let (me, old) = (value(place.value), place.old.map(value));
        for rule in [first].into_iter().chain(wanted) {
            let mut variables = vec![("self", me.clone())];
            match (&old, rule.optional_old) {
                (Some(old), true) => variables.push(("oldSelf", some(old.clone()))),
                (None, true) => variables.push(("oldSelf", none())),
                (Some(old), false) => variables.push(("oldSelf", old.clone())),
                (None, false) => {}
            }
            self.rule(rule, &variables, place, path)?;
        }
        Ok(())
    }

    fn rule(
        &mut self,
        rule: &Rule,
        variables: &[(&str, Value)],
        place: &Place<'_>,
        path: &str,
    ) -> Result<(), Stop> {
        let kind = &place.schema.kind;
        let program = match &rule.program {
            None => return Ok(()),
            Some(Ok(program)) => program,
            Some(Err(message)) => {
                self.refuse(path, kind, format!("rule compile error: {message}"));
                return Ok(());
            }
        };
        let name = rule.name();
        match program.evaluate(variables, &mut self.budget) {
            Ok(Value::Bool(true)) => return Ok(()),
            Ok(_) => {}
            Err(Failure::Error(message)) if message.starts_with("no such overload") => {
                let detail = format!(
                    "'{message}': call arguments did not match a supported operator, function or macro signature for rule: {name}"
                );
                self.refuse(path, kind, detail);
                return Ok(());
            }
            Err(Failure::Error(message)) => {
                self.refuse(path, kind, format!("{message} evaluating rule: {name}"));
                return Ok(());
            }
            Err(failure @ Failure::TooLong) => {
                let detail = format!(
                    "'{failure}': no further validation rules will be run due to call cost exceeds limit for rule: {name}"
                );
                self.refuse(path, kind, detail);
                return Err(Stop);
            }
            Err(Failure::Exhausted) => {
                let detail = "validation failed due to running out of cost budget, no further validation rules will be run";
                self.refuse(path, kind, detail.to_owned());
                return Err(Stop);
            }
        }
        let detail = self
            .message(rule, variables)
            .unwrap_or_else(|| match rule.message.as_str() {
                "" => format!("failed rule: {name}"),
                message => message.to_owned(),
            });
        let error_type = match rule.reason.as_deref() {
            Some("FieldValueRequired") => ErrorType::Required,
            Some("FieldValueForbidden") => ErrorType::Forbidden,
            Some("FieldValueDuplicate") => ErrorType::Duplicate,
            _ => ErrorType::Invalid,
        };
        let shows_value = matches!(error_type, ErrorType::Invalid | ErrorType::Duplicate)
            && !matches!(kind.as_str(), "object" | "array");
        let field = match &rule.field_path {
            Some(below) => child(path, below),
            None => path.to_owned(),
        };
        self.errors.0.push(FieldError {
            error_type,
            field: at_root(field),
            bad_value: shows_value.then(|| BadValue::Json(place.value.clone())),
            detail: if error_type == ErrorType::Duplicate {
                String::new()
            } else {
                detail
            },
        });
        Ok(())
    }

    /// What the messageExpression says, if that can be shown.
    fn message(&mut self, rule: &Rule, variables: &[(&str, Value)]) -> Option<String> {
        let program = rule.message_program.as_ref()?.as_ref().ok()?;
        let Ok(Value::String(text)) = program.evaluate(variables, &mut self.budget) else {
            return None;
        };
        let text = text.trim();
        let is_shown = !text.is_empty() && text.len() <= MAX_MESSAGE_BYTES && !text.contains('\n');
        is_shown.then(|| text.to_owned())
    }

    fn refuse(&mut self, path: &str, kind: &str, detail: String) {
        self.errors.0.push(FieldError {
            error_type: ErrorType::Invalid,
            field: at_root(path.to_owned()),
            bad_value: Some(BadValue::Json(kind.into())),
            detail,
        });
    }
}

fn child(path: &str, name: &str) -> String {
    match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    }
}

/// The whole object has no path.
fn at_root(path: String) -> String {
    match path.as_str() {
        "" => "<nil>".to_owned(),
        _ => path,
    }
}

/// Errors that make evaluating rules pointless.
fn is_blocking(error_type: ErrorType) -> bool {
    matches!(
        error_type,
        ErrorType::Required
            | ErrorType::TooLong
            | ErrorType::TooMany
            | ErrorType::TypeInvalid
            | ErrorType::NotSupported
            | ErrorType::Duplicate
    )
}
