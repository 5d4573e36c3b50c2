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
        Problem {
            at: before + usize::try_from(error.pos.1 - 1).unwrap_or(0),
            message: error.msg.clone(),
        }
    });
    Issues::new(source, problems.collect())
}
