//! CEL expressions about a request: what `matchConditions` ask.
//!
//! Expressions see `object`, `oldObject`, `request`, `namespaceObject` and `authorizer` (upstream: apiserver/pkg/admission/plugin/cel); the
//! language is [`crate::cel`]'s. They are checked when a configuration is written; objects can be anything until then.

mod authorizer;

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use crate::cel::{Budget, Environment, Failure, Object, Program, Type, Value};

pub(crate) use authorizer::{Asker, Parts};

/// The thing a request is about, as `authorizer.requestResource`.
const REQUEST_RESOURCE: &str = "authorizer.requestResource";

static ENVIRONMENT: LazyLock<Environment> = LazyLock::new(|| {
    Environment::default()
        .with("object", Type::Dyn)
        .with("oldObject", Type::Dyn)
        .with("namespaceObject", Type::Dyn)
        .with("request", request())
        .with("authorizer", Type::Opaque(authorizer::AUTHORIZER))
        .with(REQUEST_RESOURCE, Type::Opaque(authorizer::RESOURCE_CHECK))
});

/// The type of `request`.
fn request() -> Type {
    let kind = object(
        "kubernetes.GroupVersionKind",
        &texts(&["group", "version", "kind"]),
    );
    let resource = object(
        "kubernetes.GroupVersionResource",
        &texts(&["group", "version", "resource"]),
    );
    let groups = Type::list(Type::String);
    let mut user = texts(&["username", "uid"]);
    user.push(("groups", groups.clone()));
    user.push(("extra", Type::map(Type::String, groups)));
    let mut fields = texts(&[
        "subResource",
        "requestSubResource",
        "name",
        "namespace",
        "operation",
    ]);
    fields.extend([
        ("kind", kind.clone()),
        ("requestKind", kind),
        ("resource", resource.clone()),
        ("requestResource", resource),
        ("userInfo", object("kubernetes.UserInfo", &user)),
        ("dryRun", Type::Bool),
        ("options", Type::Dyn),
    ]);
    object("kubernetes.AdmissionRequest", &fields)
}

fn texts(names: &[&'static str]) -> Vec<(&'static str, Type)> {
    names.iter().map(|name| (*name, Type::String)).collect()
}

fn object(name: &str, fields: &[(&'static str, Type)]) -> Type {
    let fields = fields.iter();
    let fields: BTreeMap<String, Type> = fields
        .map(|(name, kind)| ((*name).to_owned(), kind.clone()))
        .collect();
    Type::Object(Arc::new(Object {
        name: name.to_owned(),
        fields,
    }))
}

/// An expression that is true or false of a request.
#[derive(Debug)]
pub(crate) struct Expression {
    text: String,
    program: Program,
}

impl Expression {
    /// Parses and checks an expression.
    ///
    /// # Errors
    /// What is wrong with it, in the words of upstream's compiler.
    pub(crate) fn compile(text: &str) -> Result<Self, String> {
        let program = Program::compile(text, &ENVIRONMENT);
        let program = program.map_err(|issues| format!("compilation failed: {issues}"))?;
        match program.result() {
            Type::Bool | Type::Dyn => Ok(Expression {
                text: text.to_owned(),
                program,
            }),
            _ => Err("must evaluate to bool".to_owned()),
        }
    }

    /// Whether it refers to a variable of that name.
    pub(crate) fn mentions(&self, variable: &str) -> bool {
        self.program.mentions(variable)
    }

    /// The expression's value.
    ///
    /// # Errors
    /// It has none; the sentence names the expression.
    pub(crate) fn is_true(
        &self,
        variables: &[(&str, Value)],
        budget: &mut Budget,
    ) -> Result<bool, String> {
        let why = match self.program.evaluate(variables, budget) {
            Ok(Value::Bool(value)) => return Ok(value),
            Ok(_) => "must evaluate to bool".to_owned(),
            Err(Failure::Exhausted) => {
                return Err(
                    "validation failed due to running out of cost budget, no further validation rules will be run"
                        .to_owned(),
                );
            }
            Err(failure) => failure.to_string(),
        };
        let text = &self.text;
        Err(format!("expression '{text}' resulted in error: {why}"))
    }
}

/// The variables of who asks.
pub(crate) fn of_asker(asker: Asker) -> [(&'static str, Value); 2] {
    [
        (REQUEST_RESOURCE, asker.request_resource()),
        ("authorizer", asker.into()),
    ]
}
