//! Infers the types of expressions before they run, with cel-go's error messages.

mod written;

use std::{collections::HashMap, sync::Arc};

use super::{
    Problem,
    expr::{Expr, Field, Fold, FoldKind, Literal, Node, qualified},
    functions::{FUNCTIONS, is_type_name, named_type, namespaced, resolve},
    messages,
    types::{Bindings, Type, more_general},
};

/// The variables and features that an expression may use.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    variables: HashMap<String, Type>,
    /// Whether the types of patches are available.
    patches: bool,
    /// Whether `cel.bind` is available.
    binds: bool,
}

impl Environment {
    /// Adds a variable.
    pub fn with(mut self, name: &str, kind: Type) -> Self {
        self.variables.insert(name.to_owned(), kind);
        self
    }

    /// Adds `cel.bind`, which is available only to device selectors.
    pub fn with_bind(self) -> Self {
        Environment {
            binds: true,
            ..self
        }
    }

    pub(super) fn binds(&self) -> bool {
        self.binds
    }

    /// Adds the types and functions for patches.
    pub fn with_patches(self) -> Self {
        Environment {
            patches: true,
            ..self
        }
    }
}

/// Returns the type of an expression's result.
///
/// # Errors
/// All errors in the expression.
pub(super) fn check(expression: &Expr, environment: &Environment) -> Result<Type, Vec<Problem>> {
    let mut checker = Checker::new(environment);
    let result = checker.of(expression);
    for problems in [checker.problems, checker.unreadable] {
        if !problems.is_empty() {
            return Err(problems);
        }
    }
    Ok(result.closed())
}

pub(super) struct Checker<'e> {
    environment: &'e Environment,
    /// The variables of the enclosing macros, innermost last.
    pub(super) locals: Vec<(String, Type)>,
    problems: Vec<Problem>,
    /// Literals that a function cannot parse, reported only if there are no other errors.
    unreadable: Vec<Problem>,
    /// Whether the next expression may be a list or map of mixed types, as the arguments of `format` may.
    mixed: bool,
    /// The types of all expressions in the arguments of `format`.
    noted: Option<HashMap<*const Expr, Type>>,
}

impl<'e> Checker<'e> {
    pub(super) fn new(environment: &'e Environment) -> Self {
        Checker {
            environment,
            locals: Vec::new(),
            problems: Vec::new(),
            unreadable: Vec::new(),
            mixed: false,
            noted: None,
        }
    }

    /// Applies [`namespaced`] with the variables that are in scope.
    pub(super) fn namespaced(&self, target: &Expr, function: &str) -> Option<String> {
        let found = namespaced(target, function, |name| self.variable(name).is_some());
        found.filter(|name| self.environment.patches || !name.starts_with("jsonpatch."))
    }

    /// Records an error and returns the error type, which fits everywhere.
    fn wrong(&mut self, at: usize, message: String) -> Type {
        self.problems.push(Problem { at, message });
        Type::Error
    }

    pub(super) fn variable(&self, name: &str) -> Option<Type> {
        let local = self.locals.iter().rev().find(|(local, _)| local == name);
        local
            .map(|(_, kind)| kind)
            .or_else(|| self.environment.variables.get(name))
            .cloned()
    }

    /// Returns the type of a variable whose name contains a dot.
    pub(super) fn dotted(&self, expression: &Expr) -> Option<Type> {
        let name = qualified(expression)?;
        let first = name.split('.').next().unwrap_or_default();
        let is_local = self.locals.iter().any(|(local, _)| local == first);
        // A macro's variable hides everything that begins with its name.
        let variable = self.environment.variables.get(&name);
        variable.filter(|_| !is_local).cloned()
    }

    /// Returns the type of an expression inside the enclosing macros.
    pub(super) fn of(&mut self, expression: &Expr) -> Type {
        // The flag holds for this expression alone; a list or map sets it again for its items.
        let mixed = std::mem::take(&mut self.mixed);
        let kind = self.found(expression, mixed);
        if let Some(noted) = &mut self.noted {
            noted.insert(std::ptr::from_ref(expression), kind.clone());
        }
        kind
    }

    fn found(&mut self, expression: &Expr, mixed: bool) -> Type {
        let at = expression.at;
        match &expression.node {
            Node::Literal(literal) => of_literal(literal),
            Node::Name(name) => match self.variable(name) {
                Some(kind) => kind,
                None if is_type_name(name) => {
                    let kind = named_type(name).expect("it was just asked for");
                    Type::Meta(Arc::new(kind))
                }
                None => self.wrong(
                    at,
                    format!("undeclared reference to '{name}' (in container '')"),
                ),
            },
            Node::Select {
                operand,
                field,
                test,
            } => {
                // Types of a package are spelled like a selection, unless a variable hides the first part.
                let named = qualified(expression).filter(|name| {
                    name.contains('.')
                        && is_type_name(name)
                        && self
                            .variable(name.split('.').next().unwrap_or_default())
                            .is_none()
                });
                if let Some(kind) = named.and_then(|name| named_type(&name)) {
                    return Type::Meta(Arc::new(kind));
                }
                if let Some(kind) = self.dotted(expression) {
                    return kind;
                }
                let kind = self.of(operand);
                let (inner, optional) = kind.unwrapped();
                let found = self.field(at, inner, field);
                match (test, optional) {
                    (true, _) => Type::Bool,
                    (false, true) => Type::optional(found),
                    (false, false) => found,
                }
            }
            Node::OptionalSelect { operand, field } => {
                let kind = self.of(operand);
                let found = self.field(at, kind.unwrapped().0, field);
                Type::optional(found)
            }
            Node::Call {
                function,
                target,
                arguments,
            } => self.call(at, function, target.as_deref(), arguments),
            Node::List(items) => {
                let mut item_type = None;
                for (optional, item) in items {
                    self.mixed = mixed;
                    let kind = self.entry(*optional, item);
                    item_type = Some(self.same(item.at, item_type, kind, mixed));
                }
                Type::list(item_type.unwrap_or(Type::Open))
            }
            Node::Map(entries) => {
                let (mut key_type, mut value_type) = (None, None);
                for (optional, key, value) in entries {
                    self.mixed = mixed;
                    let kind = self.of(key);
                    key_type = Some(self.same(key.at, key_type, kind, mixed));
                    self.mixed = mixed;
                    let kind = self.entry(*optional, value);
                    value_type = Some(self.same(value.at, value_type, kind, mixed));
                }
                Type::map(
                    key_type.unwrap_or(Type::Open),
                    value_type.unwrap_or(Type::Open),
                )
            }
            Node::Message { name, fields } => self.message(at, name, fields),
            Node::Fold(fold) => self.fold(at, fold),
            Node::OptionalMap {
                target,
                variable,
                body,
                flat,
            } => {
                let kind = self.of(target);
                let inner = match &kind {
                    Type::Optional(inner) => (**inner).clone(),
                    Type::Dyn | Type::Error | Type::Open => Type::Dyn,
                    other => {
                        // The macro expands to calls of both functions, so both are reported.
                        for function in ["hasValue", "value"] {
                            let message = format!(
                                "found no matching overload for '{function}' applied to '{other}.()'"
                            );
                            self.wrong(at, message);
                        }
                        Type::Error
                    }
                };
                let result = self.inside(&[(variable, inner)], body);
                match (flat, &result) {
                    (false, _) => Type::optional(result),
                    (true, Type::Optional(_) | Type::Dyn | Type::Error | Type::Open) => result,
                    (true, other) => {
                        let message = format!(
                            "found no matching overload for '_?_:_' applied to '(bool, {other}, optional_type({other}))'"
                        );
                        self.wrong(at, message)
                    }
                }
            }
            Node::Bind {
                variable,
                value,
                body,
            } => {
                let kind = self.of(value);
                self.inside(&[(variable, kind)], body)
            }
        }
    }

    /// Returns the type of `body` with more variables in scope.
    fn inside(&mut self, variables: &[(&String, Type)], body: &Expr) -> Type {
        let before = self.locals.len();
        let more = variables.iter();
        self.locals
            .extend(more.map(|(name, kind)| ((*name).clone(), kind.clone())));
        let kind = self.of(body);
        self.locals.truncate(before);
        kind
    }

    fn field(&mut self, at: usize, kind: &Type, field: &str) -> Type {
        match kind {
            Type::Dyn | Type::Error | Type::Open => Type::Dyn,
            Type::Map(_, value) => (**value).clone(),
            Type::Object(object) => match object.field(field) {
                Some(kind) => kind,
                None => self.wrong(at, format!("undefined field '{field}'")),
            },
            other => {
                let message = format!("type '{other}' does not support field selection");
                self.wrong(at, message);
                Type::Dyn
            }
        }
    }

    fn message(&mut self, at: usize, name: &str, fields: &[Field]) -> Type {
        let Some(kind) = messages::named(name).filter(|_| self.environment.patches) else {
            // cel-go looks no further into a message of an unknown type.
            let message = format!("undeclared reference to '{name}' (in container '')");
            return self.wrong(at, message);
        };
        for field in fields {
            let found = self.entry(field.optional, &field.value);
            let wanted = self.field(field.at, &kind, &field.name);
            // With bindings of its own: type parameters of one field say nothing about another.
            if !Bindings::default().accept(&found, &wanted) {
                let message = format!(
                    "expected type of field '{}' is '{wanted}' but provided type is '{found}'",
                    field.name
                );
                self.wrong(field.at, message);
            }
        }
        kind
    }

    /// Returns the type of an item of a list or map; after a question mark that is the optional's content.
    fn entry(&mut self, optional: bool, item: &Expr) -> Type {
        let kind = self.of(item);
        match kind {
            Type::Optional(inner) if optional => (*inner).clone(),
            Type::Dyn | Type::Open => Type::Dyn,
            other if optional => {
                let message = format!("expected type 'optional_type({other})' but found '{other}'");
                self.wrong(item.at, message);
                other
            }
            other => other,
        }
    }

    /// Returns the common type of a literal's items, which must have one type unless `mixed`.
    fn same(&mut self, at: usize, so_far: Option<Type>, found: Type, mixed: bool) -> Type {
        let Some(so_far) = so_far else {
            return found;
        };
        match more_general(&so_far, &found) {
            Some(general) => general,
            None if mixed => Type::Dyn,
            None => self.wrong(at, format!("expected type '{so_far}' but found '{found}'")),
        }
    }

    fn call(
        &mut self,
        at: usize,
        function: &str,
        target: Option<&Expr>,
        arguments: &[Expr],
    ) -> Type {
        // What looks like a target may spell a namespace, as in `sets.contains(...)`.
        let namespaced = target.and_then(|target| self.namespaced(target, function));
        let (name, target) = match &namespaced {
            Some(name) => (name.as_str(), None),
            None => (function, target),
        };
        let mut types: Vec<Type> = Vec::with_capacity(arguments.len() + 1);
        if let Some(target) = target {
            types.push(self.of(target));
        }
        // A call of `format` inside the arguments of another one must not end the outer one's collection
        // of types.
        let notes = self.noted.is_some();
        if name == "format" && target.is_some() {
            self.noted.get_or_insert_default();
        }
        for argument in arguments {
            self.mixed = name == "format";
            types.push(self.of(argument));
        }
        // Before the overloads are looked up, because a wrong format does not depend on them.
        self.read_format(at, name, target, arguments);
        if !notes {
            self.noted = None;
        }
        self.read_literal(name, arguments);
        let Some(overloads) = FUNCTIONS.get(name) else {
            return self.wrong(
                at,
                format!("undeclared reference to '{name}' (in container '')"),
            );
        };
        match resolve(overloads, target.is_some(), &types) {
            Some(result) => result,
            None => {
                let texts: Vec<String> = types.iter().map(Type::to_string).collect();
                let applied = match (target, texts.split_first()) {
                    (Some(_), Some((first, rest))) => format!("{first}.({})", rest.join(", ")),
                    _ => format!("({})", texts.join(", ")),
                };
                self.wrong(
                    at,
                    format!("found no matching overload for '{name}' applied to '{applied}'"),
                )
            }
        }
    }

    fn fold(&mut self, at: usize, fold: &Fold) -> Type {
        let range = self.of(&fold.range);
        let (key, value) = match &range {
            Type::List(item) => (Type::Int, (**item).clone()),
            Type::Map(key, value) => ((**key).clone(), (**value).clone()),
            Type::Dyn | Type::Error | Type::Open => (Type::Dyn, Type::Dyn),
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.wrong(fold.range.at, message);
                (Type::Error, Type::Error)
            }
        };
        let variables = match (&fold.second, &range) {
            (Some(second), _) => vec![(&fold.variable, key.clone()), (second, value)],
            (None, Type::Map(..)) => vec![(&fold.variable, key.clone())],
            (None, _) => vec![(&fold.variable, value)],
        };
        // `filter` of a map gives a list of keys, so it is the first variable in every case.
        let item = variables[0].1.clone();
        if let Some(filter) = &fold.filter {
            let kind = self.inside(&variables, filter);
            self.must_be_bool(at, "_?_:_", &kind);
        }
        let body = self.inside(&variables, &fold.body);
        // The macros expand to these operators, so the errors name them.
        match fold.kind {
            FoldKind::All => self.must_be_bool(at, "_&&_", &body),
            FoldKind::Exists => self.must_be_bool(at, "_||_", &body),
            FoldKind::ExistsOne | FoldKind::Filter => self.must_be_bool(at, "_?_:_", &body),
            _ => {}
        }
        match fold.kind {
            FoldKind::All | FoldKind::Exists | FoldKind::ExistsOne => Type::Bool,
            FoldKind::Filter => Type::list(item),
            FoldKind::Map => Type::list(body),
            FoldKind::TransformMap => Type::map(key, body),
            FoldKind::TransformEntries => match body {
                map @ Type::Map(..) => map,
                Type::Dyn | Type::Error | Type::Open => Type::map(Type::Open, Type::Open),
                other => {
                    let message = format!(
                        "found no matching overload for 'cel.@mapInsert' applied to '(map(dyn, dyn), {other})'"
                    );
                    self.wrong(at, message)
                }
            },
        }
    }

    /// Checks that a macro's condition is a bool. The error names the operator that the macro expands to.
    fn must_be_bool(&mut self, at: usize, operator: &str, kind: &Type) {
        if matches!(kind, Type::Bool | Type::Dyn | Type::Error | Type::Open) {
            return;
        }
        let applied = match operator {
            "_?_:_" => format!("({kind}, int, int)"),
            _ => format!("(bool, {kind})"),
        };
        self.wrong(
            at,
            format!("found no matching overload for '{operator}' applied to '{applied}'"),
        );
    }
}

fn of_literal(literal: &Literal) -> Type {
    match literal {
        Literal::Null => Type::Null,
        Literal::Bool(_) => Type::Bool,
        Literal::Int(_) => Type::Int,
        Literal::Uint(_) => Type::Uint,
        Literal::Double(_) => Type::Double,
        Literal::Text(_) => Type::String,
        Literal::Bytes(_) => Type::Bytes,
    }
}
