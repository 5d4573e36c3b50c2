//! Checks literals that a function will parse at run time (cel-go: ASTValidators).

use std::sync::Arc;

use kube_cel::cel::Value;
use mullion_kube_text::golang::regexp;

use super::Checker;
use crate::{
    Problem,
    expr::{Expr, Literal, Node},
    interpolation, times,
    types::Type,
};

impl Checker<'_> {
    /// Checks a literal argument that has a syntax of its own (cel-go: ASTValidators).
    pub(super) fn read_literal(&mut self, function: &str, arguments: &[Expr]) {
        // Only the last argument: that is where these functions take their text.
        let Some(Expr {
            at,
            node: Node::Literal(Literal::Text(text)),
        }) = arguments.last()
        else {
            return;
        };
        let is_read = match (function, arguments.len()) {
            ("matches", _) => regexp::compile(text).is_ok(),
            ("duration" | "timestamp", 1) => {
                let text = Value::String(Arc::new(text.clone()));
                times::made(function, &text).is_none_or(|made| made.is_ok())
            }
            _ => true,
        };
        if !is_read {
            let message = format!("invalid {function} argument");
            self.unreadable.push(Problem { at: *at, message });
        }
    }

    /// Checks a format string and its arguments, if both are literals.
    pub(super) fn read_format(
        &mut self,
        at: usize,
        function: &str,
        target: Option<&Expr>,
        arguments: &[Expr],
    ) {
        let Some(noted) = self.noted.as_ref().filter(|_| function == "format") else {
            return;
        };
        if let (Some(Node::Literal(Literal::Text(format))), [Node::List(values)]) = (
            target.map(|target| &target.node),
            arguments
                .iter()
                .map(|argument| &argument.node)
                .collect::<Vec<_>>()
                .as_slice(),
        ) {
            let type_of = |part: &Expr| {
                noted
                    .get(&std::ptr::from_ref(part))
                    .cloned()
                    .unwrap_or(Type::Dyn)
            };
            self.unreadable
                .extend(interpolation::check(at, format, values, type_of));
        }
    }
}
