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
    correlation::{Correlation, item_before},
    structural::Schema,
};
use crate::{
    cel::{Budget, Environment, Failure, Program, Type, Value, none, some},
    field::{BadValue, ErrorType, Errors, FieldError, Path, quote},
};

/// Longer texts of a messageExpression are not shown.
const MAX_MESSAGE_BYTES: usize = 5 * 1024;

/// The compiled rules of one version.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    is_resource: bool,
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
    message_source: String,
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
        let message_program = matches!(program, Some(Ok(_))).then(|| {
            compiled(
                "messageExpression",
                Type::String,
                "messageExpression ",
                "messageExpression must evaluate to a string",
            )
        });
        let field_path = Some(text("fieldPath"))
            .filter(|path| !path.is_empty())
            .and_then(|path| field_path::normal(path, schema).ok())
            .map(|found| found.text);
        Rule {
            source: text("rule").trim().to_owned(),
            message: text("message").trim().to_owned(),
            message_source: text("messageExpression").to_owned(),
            reason: given["reason"].as_str().map(str::to_owned),
            field_path,
            uses_old: matches!(&program, Some(Ok(program)) if program.mentions("oldSelf")),
            program,
            message_program: message_program.flatten(),
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

impl Place<'_> {
    /// Whether the write leaves the value alone.
    fn is_unchanged(&self) -> bool {
        let correlation = self.correlation;
        correlation.is_some_and(|correlation| correlation.is_unchanged())
    }
}

impl Rules {
    /// Compiles the rules in the schema as it was sent; at the root of a resource they see its type and name.
    pub(crate) fn compile(schema: &Schema, source: &Json, is_resource: bool) -> Rules {
        let kind = schema
            .has_rules
            .then(|| types::of_schema(schema, is_resource, "selfType"));
        Rules {
            is_resource,
            root: kind
                .flatten()
                .map(|kind| Node::compile(schema, source, &kind)),
        }
    }

    /// Evaluates the rules, unless the object has other errors. What fails of those that are forgiven is left to [`Rules::warnings`].
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
        let place = Place {
            correlation: old.map(|old| Correlation::new(object, old)),
            ..self.place(schema, object, old)
        };
        self.run(root, place, Telling::Errors, "", errors);
    }

    /// What rules say of values that the write does not change.
    pub(crate) fn warnings(&self, schema: &Schema, object: &Json, old: &Json) -> Vec<String> {
        let mut found = Errors::default();
        if let Some(root) = &self.root {
            let place = Place {
                correlation: Some(Correlation::new(object, old)),
                ..self.place(schema, object, Some(old))
            };
            self.run(root, place, Telling::Warnings, "", &mut found);
        }
        let texts = found.0.iter();
        texts
            .map(|error| format!("{}: {}", error.field, error.body()))
            .collect()
    }

    /// Evaluates the rules on a default, as a value that stays as it is and then as one that is new.
    pub(crate) fn check_default(
        &self,
        schema: &Schema,
        default: &Json,
        path: &str,
        errors: &mut Errors,
    ) {
        let Some(root) = &self.root else {
            return;
        };
        let before = errors.0.len();
        for old in [Some(default), None] {
            let place = self.place(schema, default, old);
            self.run(root, place, Telling::Errors, path, errors);
            if errors.0.len() > before {
                return;
            }
        }
    }

    fn place<'v>(&self, schema: &'v Schema, value: &'v Json, old: Option<&'v Json>) -> Place<'v> {
        Place {
            schema,
            value,
            old,
            correlation: None,
            is_resource: self.is_resource,
        }
    }

    fn run(
        &self,
        root: &Node,
        place: Place<'_>,
        telling: Telling,
        path: &str,
        errors: &mut Errors,
    ) {
        let mut run = Run {
            budget: Budget::default(),
            telling,
            errors,
        };
        // An error is what stops all further rules; it has been told.
        let _ = run.node(root, place, path);
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

/// Which failures are told. Only failed rules can be forgiven: a rule that cannot be evaluated is an error always.
#[derive(Clone, Copy, PartialEq)]
enum Telling {
    /// All but those that are forgiven.
    Errors,
    /// Those that are forgiven.
    Warnings,
}

struct Run<'e> {
    budget: Budget,
    telling: Telling,
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
                        old: place.old.and_then(|old| old.get(name)),
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
        let telling = self.telling;
        if rules.is_empty() || (telling == Telling::Warnings && !place.is_unchanged()) {
            return Ok(());
        }
        let mut wanted = rules.iter().filter(|rule| {
            let runs = !rule.uses_old || place.old.is_some() || rule.optional_old;
            runs && (telling == Telling::Errors || !rule.uses_old)
        });
        let Some(first) = wanted.next() else {
            return Ok(());
        };
        let value = |value| values::of_json(place.schema, value, place.is_resource);
        // The stored value is there if any rule beside this one asks for it.
        let old = place.old.filter(|_| rules.iter().any(|rule| rule.uses_old));
        let subject = Subject {
            place,
            path,
            me: value(place.value),
            old: old.map(value),
        };
        for rule in [first].into_iter().chain(wanted) {
            self.rule(rule, &subject)?;
        }
        Ok(())
    }

    fn rule(&mut self, rule: &Rule, subject: &Subject<'_>) -> Result<(), Stop> {
        let program = match &rule.program {
            None => return Ok(()),
            Some(Ok(program)) => program,
            Some(Err(message)) => {
                self.refuse(subject, format!("rule compile error: {message}"));
                return Ok(());
            }
        };
        let name = rule.name();
        let variables = subject.variables(rule.optional_old);
        match program.evaluate(&variables, &mut self.budget) {
            Ok(Value::Bool(true)) => return Ok(()),
            Ok(_) => {}
            Err(Failure::Error(message)) if message.starts_with("no such overload") => {
                let detail = format!(
                    "'{message}': call arguments did not match a supported operator, function or macro signature for rule: {name}"
                );
                self.refuse(subject, detail);
                return Ok(());
            }
            Err(Failure::Error(message)) => {
                self.refuse(subject, format!("{message} evaluating rule: {name}"));
                return Ok(());
            }
            Err(failure @ Failure::TooLong) => {
                let detail = format!(
                    "'{failure}': no further validation rules will be run due to call cost exceeds limit for rule: {name}"
                );
                self.refuse(subject, detail);
                return Err(Stop);
            }
            Err(Failure::Exhausted) => {
                let detail = "validation failed due to running out of cost budget, no further validation rules will be run";
                self.refuse(subject, detail.to_owned());
                return Err(Stop);
            }
        }
        // Only now, as comparing can be more work than the rule.
        let is_forgiven = || !rule.uses_old && subject.place.is_unchanged();
        let is_told = self.telling == Telling::Warnings || !is_forgiven();
        let (schema, path) = (subject.place.schema, subject.path);
        let at = match &rule.field_path {
            Some(below) => child(path, below),
            None => path.to_owned(),
        };
        let detail = match self.message(rule, subject) {
            Ok(Some(text)) => text,
            Ok(None) => match rule.message.as_str() {
                "" => format!("failed rule: {name}"),
                message => message.to_owned(),
            },
            Err(why) => {
                if is_told {
                    self.errors
                        .invalid(&Path::new(&at_root(at)), schema.kind.as_str(), why);
                }
                return Err(Stop);
            }
        };
        if !is_told {
            return Ok(());
        }
        let error_type = match rule.reason.as_deref() {
            Some("FieldValueRequired") => ErrorType::Required,
            Some("FieldValueForbidden") => ErrorType::Forbidden,
            Some("FieldValueDuplicate") => ErrorType::Duplicate,
            _ => ErrorType::Invalid,
        };
        let shows_value = matches!(error_type, ErrorType::Invalid | ErrorType::Duplicate)
            && !matches!(schema.kind.as_str(), "object" | "array");
        self.errors.0.push(FieldError {
            error_type,
            field: at_root(at),
            bad_value: shows_value.then(|| BadValue::Json(subject.place.value.clone())),
            detail: if error_type == ErrorType::Duplicate {
                String::new()
            } else {
                detail
            },
        });
        Ok(())
    }

    /// What the messageExpression says, if that can be shown. It sees a stored value as it is, also where the rule sees an optional one.
    ///
    /// # Errors
    /// Why no further rule is run.
    fn message(&mut self, rule: &Rule, subject: &Subject<'_>) -> Result<Option<String>, String> {
        let Some(Ok(program)) = &rule.message_program else {
            return Ok(None);
        };
        let text = match program.evaluate(&subject.variables(false), &mut self.budget) {
            Ok(Value::String(text)) => text,
            Ok(_) | Err(Failure::Error(_)) => return Ok(None),
            Err(Failure::TooLong) => {
                return Err(format!(
                    "no further validation rules will be run due to call cost exceeds limit for messageExpression: {}",
                    quote(&rule.message_source)
                ));
            }
            Err(Failure::Exhausted) => {
                return Err(
                    "messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run"
                        .to_owned(),
                );
            }
        };
        let text = text.trim();
        let is_shown = !text.is_empty() && text.len() <= MAX_MESSAGE_BYTES && !text.contains('\n');
        Ok(is_shown.then(|| text.to_owned()))
    }

    /// Tells why a rule could not be evaluated.
    fn refuse(&mut self, subject: &Subject<'_>, detail: String) {
        if self.telling == Telling::Warnings {
            return;
        }
        let kind = &subject.place.schema.kind;
        self.errors.0.push(FieldError {
            error_type: ErrorType::Invalid,
            field: at_root(subject.path.to_owned()),
            bad_value: Some(BadValue::Json(kind.as_str().into())),
            detail,
        });
    }
}

/// What rules are about.
struct Subject<'s> {
    place: &'s Place<'s>,
    path: &'s str,
    me: Value,
    old: Option<Value>,
}

impl Subject<'_> {
    fn variables(&self, optional_old: bool) -> Vec<(&'static str, Value)> {
        let mut variables = vec![("self", self.me.clone())];
        match (&self.old, optional_old) {
            (Some(old), true) => variables.push(("oldSelf", some(old.clone()))),
            (None, true) => variables.push(("oldSelf", none())),
            (Some(old), false) => variables.push(("oldSelf", old.clone())),
            (None, false) => {}
        }
        variables
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
    )
}
