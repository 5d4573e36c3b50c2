//! Syntax errors with cel-go's messages, which come from the grammar of the cel crate.

use kube_cel::cel::{ParseErrors, parser::Parser};

use crate::{Issues, Problem, macros::SIMPLE};

/// Parses an expression with the grammar of the cel crate. `plain` is the expression in which literals are replaced that the
/// grammar would misread.
///
/// # Errors
/// The syntax errors, with their positions in `source`.
pub(super) fn accept(source: &str, plain: &str, most_depth: u16) -> Result<(), Issues> {
    let parser = Parser::new().enable_optional_syntax(true);
    match parser.max_recursion_depth(most_depth).parse(plain) {
        Ok(_) => Ok(()),
        Err(mut errors) => {
            // Macros are checked by this module's parser, which also reports their errors.
            errors.errors.retain(|error| error.msg != SIMPLE);
            // cel-go says nothing of an expression that a syntax error has left without a part.
            let is_left = |message: &str| message.starts_with("Incomplete `");
            if !errors.errors.iter().all(|error| is_left(&error.msg)) {
                errors.errors.retain(|error| !is_left(&error.msg));
            }
            if errors.errors.is_empty() {
                Ok(())
            } else {
                Err(syntax_errors(source, &errors))
            }
        }
    }
}

fn syntax_errors(source: &str, errors: &ParseErrors) -> Issues {
    let lines: Vec<&str> = source.split('\n').collect();
    let problems = errors.errors.iter().map(|error| {
        let row = usize::try_from(error.pos.0 - 1).unwrap_or(0);
        let before: usize = lines
            .iter()
            .take(row)
            .map(|line| line.chars().count() + 1)
            .sum();
        let at = before + usize::try_from(error.pos.1 - 1).unwrap_or(0);
        let message = match error.msg.split_once(" expecting ") {
            Some((found, expected)) if found.contains("mismatched input") => {
                match ending(source, at, expected) {
                    Some(end) => format!("{found} expecting {end}"),
                    None => error.msg.clone(),
                }
            }
            _ => error.msg.clone(),
        };
        Problem { at, message }
    });
    Issues::new(source, problems.collect())
}

/// What stands between the two alternatives of a condition.
const OTHERWISE: &str = "':'";

/// Returns the only token that cel-go expects at a position behind a complete expression, where the cel crate's parser also lists all that
/// could continue the expression: the end, the bracket that closes a group, the arguments of a call or an index, or
/// the colon of a condition.
fn ending(source: &str, at: usize, expected: &str) -> Option<&'static str> {
    // Only a complete expression can be compared with another one.
    if !expected.starts_with('{') || !expected.contains("'=='") {
        return None;
    }
    let mut open = Vec::new();
    let mut quote = None;
    // Whether what stands before ends a value, so that a `[` after it is an index.
    let mut is_value = false;
    let (mut before, mut is_raw) = (' ', false);
    let mut characters = source.chars().take(at).peekable();
    while let Some(character) = characters.next() {
        match (quote, character) {
            (Some(_), '\\') if !is_raw => {
                characters.next();
            }
            (Some(mark), character) => {
                if mark == character {
                    quote = None;
                }
            }
            (None, '"' | '\'') => {
                quote = Some(character);
                // An `r` before the quote: r"\d", br"\d".
                is_raw = matches!(before, 'r' | 'R');
                is_value = true;
            }
            (None, '/') if characters.peek() == Some(&'/') => {
                while characters.next().is_some_and(|next| next != '\n') {}
                continue;
            }
            (None, '(') => open.push(Some("')'")),
            (None, '[') => open.push(is_value.then_some("']'")),
            (None, '{') => open.push(None),
            // Not the mark of an optional field, index or entry.
            (None, '?') if !".[{,".contains(before) => open.push(Some(OTHERWISE)),
            (None, ':') if open.last() == Some(&Some(OTHERWISE)) => {
                open.pop();
            }
            (None, ')' | ']' | '}') => while open.pop() == Some(Some(OTHERWISE)) {},
            (None, _) => {}
        }
        if quote.is_none() && !character.is_whitespace() {
            is_value = character.is_alphanumeric() || "_)]}\"'`".contains(character);
            before = character;
        }
    }
    match open.last() {
        None => Some("<EOF>"),
        Some(close) => *close,
    }
}
