//! The Common Expression Language (CEL) as Kubernetes uses it: expressions are type-checked before they run.
//!
//! [`Program::compile`] parses ([`syntax`]) and infers types with the overloads in `functions.txt` ([`check`]), [`Program::most_cost`]
//! estimates the worst case ([`cost`]), and [`Program::evaluate`] runs the expression within a [`Budget`] ([`eval`]). Extension functions
//! (strings, addresses ...) come from the kube-cel crate ([`library`]), except for [`quantities`], [`versions`] and [`formats`]. The
//! language itself is implemented here, because errors must name positions and types as cel-go does, and because budgets, optionals and
//! type values are part of it.
//!
//! ```
//! use mullion_cel::{Budget, Environment, Program, Type, Value};
//!
//! let environment = Environment::default().with("replicas", Type::Int);
//! let program = Program::compile("replicas * 2 <= 10", &environment).expect("the expression has a type");
//! let result = program.evaluate(&[("replicas", Value::Int(5))], &mut Budget::default());
//! assert_eq!(result, Ok(Value::Bool(true)));
//! ```
//!
//! Layer: above `mullion-kube-text`, which is the only crate of Mullion that it imports. What expressions are about (custom resources,
//! requests, devices) is known to those who compile them.
//!
//! Architecture invariant: no clock, environment, files, network or threads. A result depends on the expression and its variables alone.

// Each `expect` names the invariant that holds; tests may use `unwrap`.
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod budget;
mod check;
mod complaints;
mod conversions;
mod cost;
mod error;
mod eval;
mod expr;
mod formats;
mod functions;
mod host;
mod interpolation;
mod keyed;
mod lexer;
mod library;
mod lists;
mod macros;
mod maps;
mod messages;
mod plan;
mod quantities;
mod syntax;
mod texts;
mod times;
mod total;
mod types;
mod urls;
mod values;
mod versions;

#[cfg(test)]
mod tests;

use std::fmt;

use mullion_kube_text::field::{Errors, Path};

pub use self::host::{Host, host};
pub use self::keyed::{list_by, set_of};
pub use self::messages::{JSON_PATCH, Message, OBJECT, WrongNames, message};
pub use self::quantities::quantity;
pub use self::total::total_map;
pub use self::values::{JsonError, broken, map_of, none, of_json, some, to_json, type_name};
pub use self::versions::version;
pub use self::{
    budget::{Budget, Failure},
    check::Environment,
    cost::Shape,
    error::{EvalError, SliceError},
    interpolation::{ClauseError, FormatError},
    types::{Object, Type},
};
pub use kube_cel::cel::{
    Value,
    objects::{Key, Map},
};

/// The reserved names of CEL.
pub const RESERVED: &[&str] = &[
    "as",
    "break",
    "const",
    "continue",
    "else",
    "false",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "namespace",
    "null",
    "package",
    "return",
    "true",
    "var",
    "void",
    "while",
];

/// Returns whether a name is valid for a variable.
pub fn is_identifier(name: &str) -> bool {
    let mut letters = name.chars();
    let may_begin = |c: char| c.is_ascii_alphabetic() || c == '_';
    letters.next().is_some_and(may_begin)
        && letters.all(|c| may_begin(c) || c.is_ascii_digit())
        && !RESERVED.contains(&name)
}

/// Calls a library function, for example `timestamp`.
///
/// # Errors
/// The function's error for its arguments.
pub fn call(function: &str, arguments: Vec<Value>) -> Result<Value, EvalError> {
    library::call(function, None, arguments)
}

/// A parsed and checked expression.
#[derive(Debug)]
pub struct Program {
    expression: expr::Expr,
    /// The depth of the expression.
    depth: usize,
    result: Type,
    fault: Option<EvalError>,
}

/// Expressions up to this depth run on the caller's stack.
const SHALLOW: usize = 64;
/// The most stack that one level needs, in bytes.
const LEVEL_BYTES: usize = 64 << 10;

/// Runs `work` with enough stack for an expression of that depth.
fn with_stack<T>(depth: usize, work: impl FnOnce() -> T) -> T {
    if depth <= SHALLOW {
        work()
    } else {
        stacker::grow(depth * LEVEL_BYTES, work)
    }
}

impl Program {
    /// Parses and checks an expression.
    ///
    /// # Errors
    /// The errors and their positions as cel-go prints them: lines that begin with `ERROR: <input>:line:column`.
    pub fn compile(source: &str, environment: &Environment) -> Result<Program, Issues> {
        let (expression, depth) = syntax::parse(source, environment.binds())?;
        let result = with_stack(depth, || check::check(&expression, environment))
            .map_err(|problems| Issues::new(source, problems))?;
        let fault = with_stack(depth, || plan::fault(&expression, environment));
        Ok(Program {
            expression,
            depth,
            result,
            fault,
        })
    }

    /// Returns the program if planning finds no error.
    ///
    /// # Errors
    /// The planning error, as kube-apiserver reports it.
    pub fn ready(self) -> Result<Program, Refusal> {
        match &self.fault {
            Some(why) => Err(Refusal::Internal(format!(
                "program instantiation failed: {why}"
            ))),
            None => Ok(self),
        }
    }

    /// Returns the type of the expression's result.
    pub fn result(&self) -> &Type {
        &self.result
    }

    /// Returns the planning error: an invalid constant pattern, a constant that cannot be converted, or one that is not a valid key.
    /// cel-go finds such errors when it creates a program (`env.Program`), so they are refused where programs are kept, and not where
    /// only types are checked.
    pub fn fault(&self) -> Option<&EvalError> {
        self.fault.as_ref()
    }

    /// Returns whether the expression refers to a variable.
    pub fn mentions(&self, variable: &str) -> bool {
        with_stack(self.depth, || self.expression.mentions(variable))
    }

    /// Returns an upper bound of the evaluation's cost in kube-apiserver's units, if its variables together have that shape.
    pub fn most_cost(&self, environment: &Environment, shape: &Shape) -> u64 {
        with_stack(self.depth, || {
            cost::most(&self.expression, environment, shape)
        })
    }

    /// Evaluates the program with values for its variables.
    ///
    /// # Errors
    /// The evaluation error, with cel-go's message.
    pub fn evaluate(
        &self,
        variables: &[(&str, Value)],
        budget: &mut Budget,
    ) -> Result<Value, Failure> {
        with_stack(self.depth, || {
            eval::evaluate(&self.expression, variables, budget)
        })
    }
}

/// The reason why an expression is refused.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// The expression does not compile, or has the wrong type.
    Invalid(String),
    /// The expression compiles, but cannot be planned ([`Program::fault`]).
    Internal(String),
}

impl Refusal {
    /// Records the refusal of the expression in a field.
    pub fn record(self, expression: &str, at: &Path<'_>, errors: &mut Errors) {
        match self {
            Refusal::Invalid(why) => errors.invalid(at, expression, why),
            Refusal::Internal(why) => errors.internal(at, why),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Invalid(why) | Refusal::Internal(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Refusal {}

impl From<Refusal> for String {
    fn from(refusal: Refusal) -> Self {
        refusal.to_string()
    }
}

/// An error at a position of an expression.
#[derive(Clone, Debug, PartialEq)]
struct Problem {
    /// The number of characters before the position.
    at: usize,
    message: String,
}

/// All errors of an expression, as text.
#[derive(Clone, Debug, PartialEq)]
pub struct Issues(String);

impl Issues {
    /// Creates an error about the expression as a whole.
    fn of_all(message: String) -> Self {
        Issues(format!("ERROR: <input>:-1:0: {message}"))
    }

    fn new(source: &str, mut problems: Vec<Problem>) -> Self {
        let more = problems.len().saturating_sub(MOST_PROBLEMS);
        // cel-go keeps the first errors that it finds, and sorts only those.
        problems.truncate(MOST_PROBLEMS);
        problems.sort_by_key(|problem| problem.at);
        let mut texts: Vec<String> = problems
            .iter()
            .map(|problem| display(source, problem))
            .collect();
        if more > 0 {
            texts.push(format!("{more} more errors were truncated"));
        }
        Issues(texts.join("\n"))
    }
}

impl fmt::Display for Issues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Issues {}

/// The most errors that are printed; cel-go only counts the others (common/errors.go).
const MOST_PROBLEMS: usize = 100;
/// The longest line that is printed, as in cel-go (common/error.go).
const LONGEST_LINE: usize = 16_384;

/// Formats an error with its line and a marker below it.
fn display(source: &str, problem: &Problem) -> String {
    // An empty expression has no line to show.
    if source.is_empty() {
        return format!("ERROR: <input>:1:0: {}", problem.message);
    }
    let (mut row, mut column) = (0, problem.at);
    let mut line = "";
    for (index, text) in source.split('\n').enumerate() {
        (row, line) = (index, text);
        let length = text.chars().count();
        if column <= length {
            break;
        }
        column -= length + 1;
    }
    let told = format!(
        "ERROR: <input>:{}:{}: {}",
        row + 1,
        column + 1,
        problem.message
    );
    if line.len() > LONGEST_LINE {
        return told;
    }
    // cel-go marks the place of a character of several bytes with characters of double width.
    let is_wide = |c: char| c.len_utf8() > 1;
    let dots: String = line
        .chars()
        .take(column)
        .map(|c| if is_wide(c) { '\u{ff0e}' } else { '.' })
        .collect();
    let marker = match line.chars().nth(column) {
        Some(c) if is_wide(c) => '\u{ff3e}',
        _ => '^',
    };
    format!("{told}\n | {line}\n | {dots}{marker}")
}
