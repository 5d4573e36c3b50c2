//! CEL expressions about a request: what `matchConditions` ask, evaluated by the `cel` crate with Kubernetes' functions.
//!
//! Expressions see `object`, `oldObject`, `request`, `namespaceObject` and `authorizer` (upstream: apiserver/pkg/admission/plugin/cel).
//! They are parsed and their names are looked up when a configuration is written; types are found out when they are evaluated.

mod authorizer;

use std::{
    collections::{BTreeSet, HashMap},
    fmt::Write,
    sync::{Arc, LazyLock},
};

use kube_cel::{
    KubeCelExt,
    cel::{
        Context, ExecutionError, IdedExpr, Value as Cel,
        common::ast::{EntryExpr, Expr},
        objects::{Key, Map},
        parser::Parser,
    },
};
use serde_json::Value;

pub(crate) use authorizer::{Asker, Parts};

/// The variable that upstream declares under a name with a dot in it.
const REQUEST_RESOURCE: &str = "authorizer.requestResource";
/// What every expression may name.
const VARIABLES: &[&str] = &[
    "authorizer",
    "namespaceObject",
    "object",
    "oldObject",
    "request",
];
/// What CEL itself declares: the types.
const TYPES: &[&str] = &[
    "bool",
    "bytes",
    "double",
    "dyn",
    "int",
    "list",
    "map",
    "null_type",
    "string",
    "type",
    "uint",
];

/// All functions, shared by every evaluation.
static FUNCTIONS: LazyLock<Context<'static>> = LazyLock::new(|| {
    let mut functions = Context::default().with_all();
    authorizer::register(&mut functions);
    functions
});

/// What an expression may name beside what all may.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    names: BTreeSet<&'static str>,
}

/// Why a text is no expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("compilation failed: {0}")]
pub(crate) struct CompileError(String);

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expression '{expression}' resulted in error: {why}")]
pub(crate) struct EvaluationError {
    expression: String,
    why: String,
}

/// A parsed expression.
pub(crate) struct Expression {
    text: String,
    tree: IdedExpr,
}

impl Expression {
    /// Parses an expression.
    pub(crate) fn compile(text: &str, scope: &Scope) -> Result<Self, CompileError> {
        // The parser's snippets lack the space that upstream's begin with.
        let parsed = Parser::default().parse(text);
        let mut tree =
            parsed.map_err(|errors| CompileError(errors.to_string().replace("\n| ", "\n | ")))?;
        let mut names = Names {
            scope,
            bound: Vec::new(),
            undeclared: None,
        };
        names.visit(&mut tree);
        match names.undeclared {
            Some(name) => Err(CompileError(undeclared(text, &name))),
            None => Ok(Expression {
                text: text.to_owned(),
                tree,
            }),
        }
    }

    /// The expression's value, if it is true or false.
    pub(crate) fn is_true(&self, variables: &Variables) -> Result<bool, EvaluationError> {
        let fail = |why: String| EvaluationError {
            expression: self.text.clone(),
            why,
        };
        match Cel::resolve(&self.tree, &variables.context) {
            Ok(Cel::Bool(value)) => Ok(value),
            Ok(_) => Err(fail("must evaluate to bool".to_owned())),
            Err(error) => Err(fail(reason(&error))),
        }
    }
}

/// An error in upstream's words where it has some.
fn reason(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        ExecutionError::NoSuchOverload => "no such overload".to_owned(),
        ExecutionError::FunctionError { message, .. } => message.clone(),
        ExecutionError::DivisionByZero(_) => "division by zero".to_owned(),
        ExecutionError::RemainderByZero(_) => "modulus by zero".to_owned(),
        ExecutionError::IndexOutOfBounds(_) => "index out of bounds".to_owned(),
        other => {
            let text = other.to_string();
            let mut chars = text.chars();
            chars.next().map_or_else(String::new, |first| {
                first.to_lowercase().chain(chars).collect()
            })
        }
    }
}

/// The refusal of a name that nothing declares, as upstream's compiler prints it. The tree has no positions: the name's first place counts.
fn undeclared(text: &str, name: &str) -> String {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    let stands_alone = |at: usize| {
        !text[..at].ends_with(is_part)
            && !text[at + name.len()..].starts_with(|c| is_part(c) && c != '.')
    };
    let mut places = text.match_indices(name).map(|(at, _)| at);
    let at = places.find(|at| stands_alone(*at)).unwrap_or(0);
    let before = &text[..at];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let (row, column) = (
        before.matches('\n').count() + 1,
        before[line_start..].chars().count(),
    );
    let line = text[line_start..].lines().next().unwrap_or_default();
    let mut out = format!(
        "ERROR: <input>:{row}:{}: undeclared reference to '{name}' (in container '')\n | {line}\n | ",
        column + 1
    );
    let _ = write!(out, "{}^", ".".repeat(column));
    out
}

/// Looks up the names of an expression.
struct Names<'a> {
    scope: &'a Scope,
    /// What the macros around the current place bind.
    bound: Vec<String>,
    undeclared: Option<String>,
}

impl Names<'_> {
    fn visit(&mut self, node: &mut IdedExpr) {
        match &mut node.expr {
            Expr::Ident(name) => {
                let declared = name.starts_with('@')
                    || VARIABLES.contains(&name.as_str())
                    || TYPES.contains(&name.as_str())
                    || self.scope.names.contains(name.as_str())
                    || self.bound.contains(name);
                if !declared && self.undeclared.is_none() {
                    self.undeclared = Some(name.clone());
                }
            }
            Expr::Select(select) => {
                let of_authorizer =
                    matches!(&select.operand.expr, Expr::Ident(name) if name == "authorizer");
                if of_authorizer && select.field == "requestResource" {
                    node.expr = Expr::Ident(REQUEST_RESOURCE.to_owned());
                } else {
                    self.visit(&mut select.operand);
                }
            }
            Expr::Call(call) => {
                // `optional.of` and the like are functions whose names have a dot.
                let target = call.target.as_mut();
                let is_namespace = |target: &IdedExpr| {
                    matches!(&target.expr, Expr::Ident(name)
                        if !VARIABLES.contains(&name.as_str()) && NAMESPACES.contains(&name.as_str()))
                };
                if let Some(target) = target.filter(|target| !is_namespace(target)) {
                    self.visit(target);
                }
                call.args
                    .iter_mut()
                    .for_each(|argument| self.visit(argument));
            }
            Expr::Comprehension(comprehension) => {
                let all = &mut **comprehension;
                self.visit(&mut all.iter_range);
                self.visit(&mut all.accu_init);
                let before = self.bound.len();
                self.bound.push(all.iter_var.clone());
                self.bound.extend(all.iter_var2.clone());
                self.bound.push(all.accu_var.clone());
                for inner in [&mut all.loop_cond, &mut all.loop_step, &mut all.result] {
                    self.visit(inner);
                }
                self.bound.truncate(before);
            }
            Expr::List(list) => list.elements.iter_mut().for_each(|item| self.visit(item)),
            Expr::Map(map) => self.visit_entries(&mut map.entries),
            Expr::Struct(fields) => self.visit_entries(&mut fields.entries),
            Expr::Literal(_) | Expr::Unspecified => {}
        }
    }

    fn visit_entries(&mut self, entries: &mut [kube_cel::cel::common::ast::IdedEntryExpr]) {
        for entry in entries {
            match &mut entry.expr {
                EntryExpr::StructField(field) => self.visit(&mut field.value),
                EntryExpr::MapEntry(entry) => {
                    self.visit(&mut entry.key);
                    self.visit(&mut entry.value);
                }
            }
        }
    }
}

/// The first parts of functions' names.
const NAMESPACES: &[&str] = &[
    "base64",
    "cel",
    "format",
    "ip",
    "jsonpatch",
    "math",
    "optional",
    "sets",
    "strings",
];

/// The values that expressions about one request see.
pub(crate) struct Variables {
    context: Context<'static>,
}

impl Variables {
    /// Nothing but what may be asked of rights.
    pub(crate) fn new(asker: Asker) -> Self {
        let mut variables = Variables {
            context: FUNCTIONS.new_inner_scope(),
        };
        let resource = asker.request_resource();
        variables.put(REQUEST_RESOURCE, resource);
        variables.put("authorizer", asker.into());
        variables
    }

    /// Sets a variable to a JSON value.
    pub(crate) fn set(&mut self, name: &str, value: &Value) {
        self.put(name, of_json(value));
    }

    fn put(&mut self, name: &str, value: Cel) {
        self.context.add_variable_from_value(name, value);
    }
}

/// A JSON value as CEL sees it: whole numbers are ints, keys are as they are.
fn of_json(value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(value) => Cel::Bool(*value),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(int), _) => Cel::Int(int),
            (None, Some(uint)) => Cel::UInt(uint),
            (None, None) => Cel::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => Cel::String(Arc::new(text.clone())),
        Value::Array(items) => Cel::List(Arc::new(items.iter().map(of_json).collect())),
        Value::Object(fields) => {
            let entry = |(key, value): (&String, &Value)| {
                (Key::String(Arc::new(key.clone())), of_json(value))
            };
            let map: HashMap<Key, Cel> = fields.iter().map(entry).collect();
            Cel::Map(Map { map: Arc::new(map) })
        }
    }
}
