//! The syntax tree of expressions; macros have nodes of their own.

/// A node, and its position as the number of characters before it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expr {
    pub(crate) at: usize,
    pub(crate) node: Node,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
    Literal(Literal),
    Name(String),
    /// `operand.field`; `test` is the macro `has`.
    Select {
        operand: Box<Expr>,
        field: String,
        test: bool,
    },
    /// `operand.?field`.
    OptionalSelect {
        operand: Box<Expr>,
        field: String,
    },
    /// A call of a function or operator, with cel-go's name (`_+_`).
    Call {
        function: String,
        target: Option<Box<Expr>>,
        arguments: Vec<Expr>,
    },
    /// List items; `true` marks those after a question mark.
    List(Vec<(bool, Expr)>),
    /// Map keys and values; `true` marks those after a question mark.
    Map(Vec<(bool, Expr, Expr)>),
    /// `name{field: value}`.
    Message {
        name: String,
        fields: Vec<Field>,
    },
    Fold(Box<Fold>),
    /// `target.optMap(variable, body)`, or `optFlatMap`.
    OptionalMap {
        target: Box<Expr>,
        variable: String,
        body: Box<Expr>,
        flat: bool,
    },
    /// `cel.bind(variable, value, body)`.
    Bind {
        variable: String,
        value: Box<Expr>,
        body: Box<Expr>,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(String),
    Bytes(Vec<u8>),
}

/// A field of a message literal.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Field {
    /// The position of the field's colon.
    pub(crate) at: usize,
    pub(crate) name: String,
    /// Whether a question mark precedes the field, so that its value is an optional.
    pub(crate) optional: bool,
    pub(crate) value: Expr,
}

/// A macro over a list or map.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fold {
    pub(crate) kind: FoldKind,
    pub(crate) range: Expr,
    pub(crate) variable: String,
    /// The second variable of a two-variable form, in which the first variable is the index or key.
    pub(crate) second: Option<String>,
    /// The condition for an item to take part, as in `map` with three arguments.
    pub(crate) filter: Option<Expr>,
    pub(crate) body: Expr,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum FoldKind {
    All,
    Exists,
    ExistsOne,
    Filter,
    /// A list with the body's value for each item.
    Map,
    /// A map with the body's value for each key.
    TransformMap,
    /// A map with the entries that the body returns.
    TransformEntries,
}

impl Expr {
    /// Returns whether the name occurs free in the expression, that is, not bound by a macro inside it.
    pub(crate) fn mentions(&self, variable: &str) -> bool {
        let free = |bound: &str, body: &Expr| bound != variable && body.mentions(variable);
        match &self.node {
            Node::Literal(_) => false,
            Node::Name(name) => name == variable,
            Node::Select { operand, .. } | Node::OptionalSelect { operand, .. } => {
                operand.mentions(variable)
            }
            Node::Call {
                target, arguments, ..
            } => target
                .iter()
                .map(|target| &**target)
                .chain(arguments)
                .any(|part| part.mentions(variable)),
            Node::List(items) => items.iter().any(|(_, item)| item.mentions(variable)),
            Node::Map(entries) => entries
                .iter()
                .any(|(_, key, value)| key.mentions(variable) || value.mentions(variable)),
            Node::Message { fields, .. } => {
                fields.iter().any(|field| field.value.mentions(variable))
            }
            Node::Fold(fold) => {
                let bound = fold.variable == variable || fold.second.as_deref() == Some(variable);
                let mut inside = fold.filter.iter().chain([&fold.body]);
                // The range is evaluated outside the macro, so it may mean an outer variable of the same name.
                fold.range.mentions(variable)
                    || (!bound && inside.any(|part| part.mentions(variable)))
            }
            Node::OptionalMap {
                target,
                variable: bound,
                body,
                ..
            } => target.mentions(variable) || free(bound, body),
            Node::Bind {
                variable: bound,
                value,
                body,
            } => value.mentions(variable) || free(bound, body),
        }
    }

    /// Returns the nesting depth of selections, indexes, method calls, ternaries, comparisons and sums. Negations, logical operators,
    /// lists, maps and calls of global functions do not count (cel-go: parser.Visit).
    pub(super) fn depth(&self) -> usize {
        let deepest = |parts: &mut dyn Iterator<Item = &Expr>| parts.map(Expr::depth).max();
        let (own, below) = match &self.node {
            Node::Literal(_) | Node::Name(_) => (0, None),
            Node::Select { operand, .. } | Node::OptionalSelect { operand, .. } => {
                (1, Some(operand.depth()))
            }
            Node::Call {
                function,
                target,
                arguments,
            } => {
                const UNCOUNTED: [&str; 4] = ["!_", "-_", "_&&_", "_||_"];
                let is_operator =
                    function.contains('_') && !function.contains(char::is_alphanumeric);
                let counts = target.is_some()
                    || function == "@in"
                    || (is_operator && !UNCOUNTED.contains(&function.as_str()));
                let mut parts = target.iter().map(|target| &**target).chain(arguments);
                (usize::from(counts), deepest(&mut parts))
            }
            Node::List(items) => (0, deepest(&mut items.iter().map(|(_, item)| item))),
            Node::Map(entries) => {
                let mut parts = entries.iter().flat_map(|(_, key, value)| [key, value]);
                (0, deepest(&mut parts))
            }
            Node::Message { fields, .. } => {
                (0, deepest(&mut fields.iter().map(|field| &field.value)))
            }
            Node::Fold(fold) => {
                let inside = [&fold.range, &fold.body];
                let mut parts = inside.into_iter().chain(&fold.filter);
                (1, deepest(&mut parts))
            }
            Node::OptionalMap { target, body, .. } => {
                (1, deepest(&mut [&**target, &**body].into_iter()))
            }
            Node::Bind { value, body, .. } => (1, deepest(&mut [&**value, &**body].into_iter())),
        };
        own + below.unwrap_or(0)
    }
}

/// Returns the first name of a chain of selections, for example `google` in `google.protobuf.Timestamp`.
pub(super) fn root(expression: &Expr) -> Option<&str> {
    match &expression.node {
        Node::Name(name) => Some(name),
        Node::Select {
            operand,
            test: false,
            ..
        } => root(operand),
        _ => None,
    }
}

/// Returns whether a chain of selections spells a name.
pub(super) fn spells(expression: &Expr, name: &str) -> bool {
    match &expression.node {
        Node::Name(own) => own == name,
        Node::Select {
            operand,
            field,
            test: false,
        } => name
            .strip_suffix(field.as_str())
            .and_then(|rest| rest.strip_suffix('.'))
            .is_some_and(|rest| spells(operand, rest)),
        _ => false,
    }
}

/// Returns the name that a chain of selections spells, for example `sets` or `google.protobuf.Timestamp`.
pub(super) fn qualified(expression: &Expr) -> Option<String> {
    match &expression.node {
        Node::Name(name) => Some(name.clone()),
        Node::Select {
            operand,
            field,
            test: false,
        } => Some(format!("{}.{field}", qualified(operand)?)),
        _ => None,
    }
}
