//! CEL rules of custom resources (`x-kubernetes-validations`), which are compiled with a schema and run on every write.
//!
//! Rules run only on objects that their schema accepts. A failed rule becomes a field error with the rule's path, reason and message. An
//! error of a rule that does not use `oldSelf` is forgiven where a write changes nothing ([`Correlation`]); the client gets a warning
//! instead. Source: k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel.

pub(super) mod field_path;
mod run;
pub(super) mod shapes;
pub(crate) mod types;
mod values;

use std::collections::BTreeMap;

use mullion_cel::{Environment, EvalError, Issues, Program, Type};
use mullion_kube_text::field::{ErrorType, Errors, Path};
use mullion_schema::structural::Schema;
use serde_json::Value as Json;

use self::run::Place;
use super::correlation::Correlation;

/// The compiled rules of one version.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    is_resource: bool,
    /// The rules at the root; `None` if the schema has no rules.
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

/// The reason why a rule or its `messageExpression` does not compile. The field `prefix` precedes kube-apiserver's message, and `what` is
/// the name of the expression in it.
#[derive(Debug, thiserror::Error)]
pub(super) enum RuleError {
    /// The expression is invalid.
    #[error("{prefix}compilation failed: {issues}")]
    Compilation {
        prefix: &'static str,
        issues: Issues,
    },
    /// The rule has another type.
    #[error("cel expression must evaluate to a bool")]
    NotABool,
    /// The `messageExpression` has another type.
    #[error("messageExpression must evaluate to a string")]
    NotAText,
    /// The expression cannot be planned.
    #[error("{what} instantiation failed: {why}")]
    Plan { what: &'static str, why: EvalError },
}

/// A compiled validation rule.
#[derive(Debug)]
pub(super) struct Rule {
    source: String,
    message: String,
    message_source: String,
    reason: Option<String>,
    /// The path of the field that errors name, relative to the value that the rule is about: `.spec.a`.
    field_path: Option<String>,
    /// The compiled rule, or the reason why it does not compile; `None` if the rule is empty.
    pub(super) program: Option<Result<Program, RuleError>>,
    pub(super) message_program: Option<Result<Program, RuleError>>,
    pub(super) uses_old: bool,
    optional_old: bool,
}

impl Rule {
    /// Compiles one rule of a schema whose values have a type.
    pub(super) fn compile(schema: &Schema, kind: &Type, given: &Json) -> Rule {
        let text = |field: &str| given[field].as_str().unwrap_or_default();
        let optional_old = is_old_optional(given);
        let environment = environment(kind, given);
        let compiled = |field: &str, wanted: Type, [prefix, what]: [&'static str; 2], otherwise| {
            let source = text(field);
            (!source.trim().is_empty()).then(|| {
                let program = Program::compile(source, &environment)
                    .map_err(|issues| RuleError::Compilation { prefix, issues })?;
                match program.fault().cloned() {
                    _ if *program.result() != wanted => Err(otherwise),
                    Some(why) => Err(RuleError::Plan { what, why }),
                    None => Ok(program),
                }
            })
        };
        let program = compiled("rule", Type::Bool, ["", "program"], RuleError::NotABool);
        let message_program = matches!(program, Some(Ok(_))).then(|| {
            compiled(
                "messageExpression",
                Type::String,
                ["messageExpression ", "messageExpression"],
                RuleError::NotAText,
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

    /// Returns the text that names the rule in error messages.
    fn name(&self) -> &str {
        if self.message.is_empty() {
            &self.source
        } else {
            &self.message
        }
    }
}

/// Returns the variables of a rule about values of this type.
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

impl Rules {
    /// Compiles the rules in `source`, the schema as the client sent it. At the root of a resource, rules also see `apiVersion`, `kind` and
    /// `metadata`.
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

    /// Evaluates the rules, unless the object has other errors.
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
        // Rules are compiled for valid values: one that is too long or of another type would break the estimates of their cost.
        if errors.0.iter().any(|error| is_blocking(error.error_type)) {
            let detail = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
            errors.invalid(&Path::new("<nil>"), Json::Null, detail);
            return;
        }
        let place = Place {
            correlation: old.map(|old| Correlation::new(schema, object, old)),
            ..self.place(schema, object, old)
        };
        run::run(root, place, "", errors);
    }

    /// Evaluates the rules on a default twice: as an unchanged value, and as a new one.
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
        // A default appears in new objects and stays in stored ones, so rules with `oldSelf` must hold for it too.
        for old in [Some(default), None] {
            let place = self.place(schema, default, old);
            run::run(root, place, path, errors);
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

/// Returns whether rules are not evaluated after an error of this type.
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
