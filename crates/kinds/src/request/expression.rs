//! CEL expressions about a request: what `matchConditions` ask, and what admission policies are made of.
//!
//! Expressions see `object`, `oldObject`, `request`, `namespaceObject` and `authorizer` (upstream: apiserver/pkg/admission/plugin/cel); the
//! language is [`mullion_cel`]'s. They are checked when a configuration is written; objects can be anything until then.

mod authorizer;

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use mullion_cel::{
    self as cel, Budget, Environment, Failure, Issues, Object, Program, Refusal, Type, Value,
};

pub use authorizer::{AccessQuery, Parts};

/// The thing a request is about, as `authorizer.requestResource`.
const REQUEST_RESOURCE: &str = "authorizer.requestResource";

static ENVIRONMENT: LazyLock<Environment> = LazyLock::new(|| Scope::default().environment());

/// The reason why an expression has no value.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ExpressionError {
    /// The expression was refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The evaluation fails.
    #[error("expression '{text}' resulted in error: {why}")]
    Failed {
        /// The expression.
        text: String,
        /// What is wrong.
        why: Failure,
    },
    /// This expression has a value that is not a bool.
    #[error("expression '{0}' resulted in error: must evaluate to bool")]
    NotABool(String),
    /// The expressions for an object together take too many steps.
    #[error(
        "validation failed due to running out of cost budget, no further validation rules will be run"
    )]
    Exhausted,
}

/// The variables and types that an expression may use, in addition to the request and its objects.
#[derive(Clone, Debug)]
pub struct Scope {
    /// The type of `object` and `oldObject`.
    object: Type,
    /// The type of `params`, or `None` if the policy has no parameters.
    params: Option<Type>,
    authorizer: bool,
    /// True if `authorizer.requestResource` is declared.
    asks_of_request: bool,
    /// True if expressions may construct patches.
    patches: bool,
    /// True if `variables` is declared, with or without fields.
    composed: bool,
    /// The type of `variables`: a field for each value that the policy has given a name.
    variables: Arc<Object>,
}

impl Default for Scope {
    fn default() -> Self {
        Scope {
            object: Type::Dyn,
            params: None,
            authorizer: true,
            asks_of_request: true,
            patches: false,
            composed: false,
            variables: Arc::new(Object {
                name: "kubernetes.variables".to_owned(),
                ..Object::default()
            }),
        }
    }
}

impl Scope {
    /// Returns the scope of a policy's expressions, with or without parameters.
    pub fn of_policy(params: bool) -> Scope {
        Scope {
            params: params.then_some(Type::Dyn),
            ..Scope::default()
        }
    }

    /// Returns the scope of a policy whose objects and parameters have known types. kube-apiserver's type checker does not declare
    /// `authorizer.requestResource`, so neither does this scope.
    pub fn typed(object: Type, params: Option<Type>) -> Scope {
        Scope {
            object,
            params,
            asks_of_request: false,
            ..Scope::default()
        }
    }

    /// Lets expressions speak of `variables`, which may have no names yet. The conditions of a policy may not.
    pub fn compose(&mut self) {
        self.composed = true;
    }

    /// Declares a variable of the policy, which later expressions may use as `variables.<name>`.
    pub fn declare(&mut self, name: &str, kind: &Type) {
        self.compose();
        // Shared with nothing by now, so that a policy of many variables is not copied for each.
        let variables = Arc::make_mut(&mut self.variables);
        variables.fields.insert(name.to_owned(), remembered(kind));
    }

    /// The same for expressions that may not ask who may do what (messages).
    pub fn without_authorizer(&self) -> Scope {
        Scope {
            authorizer: false,
            ..self.clone()
        }
    }

    /// The same for expressions that make patches.
    pub fn with_patches(&self) -> Scope {
        Scope {
            patches: true,
            ..self.clone()
        }
    }

    fn environment(&self) -> Environment {
        let mut environment = Environment::default()
            .with("object", self.object.clone())
            .with("oldObject", self.object.clone())
            .with("namespaceObject", namespace())
            .with("request", request());
        if self.authorizer {
            environment = environment.with("authorizer", Type::Opaque(authorizer::AUTHORIZER));
        }
        if self.authorizer && self.asks_of_request {
            let check = Type::Opaque(authorizer::RESOURCE_CHECK);
            environment = environment.with(REQUEST_RESOURCE, check);
        }
        if let Some(params) = &self.params {
            environment = environment.with("params", params.clone());
        }
        if self.composed {
            environment = environment.with("variables", Type::Object(self.variables.clone()));
        }
        if self.patches {
            environment.with_patches()
        } else {
            environment
        }
    }
}

/// Returns the declared type of a variable with this type: objects, opaque values and optionals become dynamic (upstream:
/// convertCelTypeToDeclType).
fn remembered(kind: &Type) -> Type {
    match kind {
        Type::List(item) => Type::list(remembered(item)),
        Type::Map(key, value) => Type::map(remembered(key), remembered(value)),
        Type::Object(_) | Type::Opaque(_) | Type::Optional(_) | Type::Meta(_) => Type::Dyn,
        plain => plain.clone(),
    }
}

/// The type that an expression must evaluate to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedType {
    /// A bool.
    Bool,
    /// A string.
    Text,
    /// A string or null.
    TextOrNull,
    /// An object that is merged into the object of the request.
    Object,
    /// The operations of a JSON patch.
    Operations,
    /// Any type.
    Anything,
}

impl ExpectedType {
    fn is(self, kind: &Type) -> bool {
        match (self, kind) {
            (ExpectedType::Anything, _) => true,
            (ExpectedType::Bool, kind) => *kind == Type::Bool,
            (ExpectedType::Text, kind) => *kind == Type::String,
            (ExpectedType::TextOrNull, kind) => matches!(kind, Type::String | Type::Null),
            (ExpectedType::Object, Type::Object(object)) => object.name == cel::OBJECT,
            (ExpectedType::Operations, Type::List(item)) => {
                matches!(&**item, Type::Object(object) if object.name == cel::JSON_PATCH)
            }
            (ExpectedType::Object | ExpectedType::Operations, _) => false,
        }
    }

    fn name(self) -> &'static str {
        match self {
            ExpectedType::Bool => "bool",
            ExpectedType::Text => "string",
            ExpectedType::TextOrNull => "one of [string null_type]",
            ExpectedType::Object => cel::OBJECT,
            ExpectedType::Operations => "list(JSONPatch)",
            ExpectedType::Anything => "any",
        }
    }
}

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

/// The type of `namespaceObject`: not everything that a namespace has.
fn namespace() -> Type {
    let words = || Type::list(Type::String);
    let pairs = || Type::map(Type::String, Type::String);
    let mut metadata = texts(&[
        "name",
        "generateName",
        "namespace",
        "UID",
        "resourceVersion",
    ]);
    metadata.extend([
        ("labels", pairs()),
        ("annotations", pairs()),
        ("creationTimestamp", Type::Timestamp),
        ("deletionGracePeriodSeconds", Type::Int),
        ("deletionTimestamp", Type::Timestamp),
        ("generation", Type::Int),
        ("finalizers", words()),
    ]);
    let mut condition = texts(&["status", "type", "message", "reason"]);
    condition.push(("lastTransitionTime", Type::Timestamp));
    let condition = object("kubernetes.NamespaceCondition", &condition);
    let status = [
        ("conditions", Type::list(condition)),
        ("phase", Type::String),
    ];
    let parts = [
        (
            "metadata",
            object("kubernetes.NamespaceMetadata", &metadata),
        ),
        (
            "spec",
            object("kubernetes.NamespaceSpec", &[("finalizers", words())]),
        ),
        ("status", object("kubernetes.NamespaceStatus", &status)),
    ];
    object("kubernetes.Namespace", &parts)
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
        open: false,
    }))
}

/// An expression about a request.
#[derive(Debug)]
pub struct Expression {
    text: String,
    program: Program,
}

impl Expression {
    /// Parses and checks a match condition of a webhook.
    ///
    /// # Errors
    /// The expression does not compile; the message is that of kube-apiserver's compiler.
    pub fn compile(text: &str) -> Result<Self, Refusal> {
        Expression::checked(text, &ENVIRONMENT, ExpectedType::Bool)
    }

    /// Parses and checks an expression that may use what is in scope.
    ///
    /// # Errors
    /// As [`Expression::compile`].
    pub fn compile_for(text: &str, scope: &Scope, wanted: ExpectedType) -> Result<Self, Refusal> {
        Expression::checked(text, &scope.environment(), wanted)
    }

    fn checked(
        text: &str,
        environment: &Environment,
        wanted: ExpectedType,
    ) -> Result<Self, Refusal> {
        let program = Program::compile(text, environment);
        let program =
            program.map_err(|issues| Refusal::Invalid(format!("compilation failed: {issues}")))?;
        if !wanted.is(program.result()) {
            return Err(Refusal::Invalid(format!(
                "must evaluate to {} but got {}",
                wanted.name(),
                program.result().own_name()
            )));
        }
        Ok(Expression {
            text: text.to_owned(),
            program: program.ready()?,
        })
    }

    /// The type of its value.
    pub fn result(&self) -> &Type {
        self.program.result()
    }

    /// Returns whether the expression refers to a variable of that name.
    pub fn mentions(&self, variable: &str) -> bool {
        self.program.mentions(variable)
    }

    /// The expression's value.
    ///
    /// # Errors
    /// It has none.
    pub fn is_true(
        &self,
        variables: &[(&str, Value)],
        budget: &mut Budget,
    ) -> Result<bool, ExpressionError> {
        match self.value(variables, budget)? {
            Value::Bool(value) => Ok(value),
            _ => Err(ExpressionError::NotABool(self.text.clone())),
        }
    }

    /// Evaluates the expression.
    ///
    /// # Errors
    /// As [`Expression::is_true`].
    pub fn value(
        &self,
        variables: &[(&str, Value)],
        budget: &mut Budget,
    ) -> Result<Value, ExpressionError> {
        self.program
            .evaluate(variables, budget)
            .map_err(|failure| match failure {
                Failure::Exhausted => ExpressionError::Exhausted,
                why => ExpressionError::Failed {
                    text: self.text.clone(),
                    why,
                },
            })
    }

    /// Evaluates the expression as the variable `name` of a policy. A failure becomes a value that raises the error where the variable is
    /// used.
    pub fn named(&self, name: &str, variables: &[(&str, Value)], budget: &mut Budget) -> Value {
        let value = self.program.evaluate(variables, budget);
        value.unwrap_or_else(|failure| {
            cel::broken(format!(
                "composited variable \"{name}\" fails to evaluate: {failure}"
            ))
        })
    }
}

/// The type of what an expression evaluates to, whatever is wanted.
///
/// # Errors
/// What is wrong and where, as cel-go prints it.
pub fn result_of(text: &str, scope: &Scope) -> Result<Type, Issues> {
    let program = Program::compile(text, &scope.environment())?;
    Ok(program.result().clone())
}

/// The variables of who asks.
pub fn of_asker(asker: AccessQuery) -> [(&'static str, Value); 2] {
    [
        (REQUEST_RESOURCE, asker.request_resource()),
        ("authorizer", asker.into()),
    ]
}
