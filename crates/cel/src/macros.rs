//! Parses method calls and the macros among them.

use super::{
    Problem,
    expr::{Expr, Fold, FoldKind, Node},
    lists,
    syntax::Parsed,
};

/// Builds a call with a target, which is a macro or a method. `cel.bind` is a macro only if `binds` is true.
pub(super) fn method(
    at: usize,
    target: Expr,
    name: String,
    mut arguments: Vec<Expr>,
    binds: bool,
) -> Parsed {
    let is_cel = binds && matches!(&target.node, Node::Name(name) if name == "cel");
    let expanded = match (name.as_str(), arguments.len()) {
        ("bind", 3) if is_cel => {
            let body = Box::new(arguments.remove(2));
            let value = Box::new(arguments.remove(1));
            let variable = named(
                &arguments[0],
                "cel.bind() variable names must be simple identifiers",
            )?;
            Node::Bind {
                variable,
                value,
                body,
            }
        }
        ("optMap" | "optFlatMap", 2) => Node::OptionalMap {
            variable: named(
                &arguments[0],
                &format!("{name}() variable name must be a simple identifier"),
            )?,
            body: Box::new(arguments.remove(1)),
            target: Box::new(target),
            flat: name == "optFlatMap",
        },
        ("sortBy", 2) => {
            let body = arguments.remove(1);
            lists::sort_by(at, target, iterator("map", &arguments[0])?, body)?
        }
        // A macro's name with another number of arguments is an ordinary method.
        _ => match fold_of(&name, arguments.len()) {
            Some((kind, variables, filtered)) => {
                let mut rest = arguments.split_off(variables);
                let body = rest.pop().expect("every macro has a body");
                let (variable, second) = iterators(&name, &arguments)?;
                Node::Fold(Box::new(Fold {
                    kind,
                    range: target,
                    variable,
                    second,
                    filter: if filtered { rest.pop() } else { None },
                    body,
                }))
            }
            None => Node::Call {
                function: name,
                target: Some(Box::new(target)),
                arguments,
            },
        },
    };
    Ok(Expr { at, node: expanded })
}

/// Returns the macro of that name and number of arguments: its kind, its number of variables, and whether it has a filter.
fn fold_of(name: &str, arguments: usize) -> Option<(FoldKind, usize, bool)> {
    Some(match (name, arguments) {
        ("all", 2 | 3) => (FoldKind::All, arguments - 1, false),
        ("exists", 2 | 3) => (FoldKind::Exists, arguments - 1, false),
        ("exists_one" | "existsOne", 2 | 3) => (FoldKind::ExistsOne, arguments - 1, false),
        ("filter", 2) => (FoldKind::Filter, 1, false),
        ("map", 2 | 3) => (FoldKind::Map, 1, arguments == 3),
        ("transformList", 3 | 4) => (FoldKind::Map, 2, arguments == 4),
        ("transformMap", 3 | 4) => (FoldKind::TransformMap, 2, arguments == 4),
        ("transformMapEntry", 3 | 4) => (FoldKind::TransformEntries, 2, arguments == 4),
        _ => return None,
    })
}

/// Returns the variables of a macro over a list or map.
fn iterators(name: &str, arguments: &[Expr]) -> Parsed<(String, Option<String>)> {
    let [first, second] = arguments else {
        return Ok((iterator(name, &arguments[0])?, None));
    };
    let place = named(first, SIMPLE)?;
    let item = named(second, SIMPLE)?;
    if place == item {
        return wrong(second, &format!("duplicate variable name: {place}"));
    }
    not_reserved(first, &place)?;
    not_reserved(second, &item)?;
    Ok((place, Some(item)))
}

/// Returns the variable of a one-variable macro.
fn iterator(name: &str, argument: &Expr) -> Parsed<String> {
    // cel-go's macros have different messages for the same mistake.
    let message = match name {
        "map" | "filter" => "argument is not an identifier",
        _ => SIMPLE,
    };
    let variable = named(argument, message)?;
    not_reserved(argument, &variable)?;
    Ok(variable)
}

/// The message of most macros for an argument that should be a variable's name.
pub(super) const SIMPLE: &str = "argument must be a simple name";

/// Checks that a variable does not have the name of cel-go's accumulator.
fn not_reserved(argument: &Expr, variable: &str) -> Parsed<()> {
    match variable {
        "__result__" => wrong(
            argument,
            "iteration variable overwrites accumulator variable",
        ),
        _ => Ok(()),
    }
}

fn named(argument: &Expr, otherwise: &str) -> Parsed<String> {
    match &argument.node {
        Node::Name(name) => Ok(name.clone()),
        _ => wrong(argument, otherwise),
    }
}

fn wrong<T>(argument: &Expr, message: &str) -> Parsed<T> {
    Err(Problem {
        at: argument.at,
        message: message.to_owned(),
    })
}
