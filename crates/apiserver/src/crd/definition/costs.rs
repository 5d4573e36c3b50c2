//! Checks the estimated cost of a definition's rules: of each expression, and of all rules of one schema together.
//!
//! The limits and sentences are kube-apiserver's (k8s.io/apiextensions-apiserver: StaticEstimatedCostLimit and its neighbours).

use crate::field::{Errors, Path};

const OF_EXPRESSION: u64 = 10_000_000;
const OF_SCHEMA: u64 = 100_000_000;
/// So many of the dearest are named when all together cost too much, if they are at least a hundredth of the limit.
const NAMED: usize = 4;

/// The costs that were found so far.
#[derive(Debug, Default)]
pub(super) struct Costs {
    /// True if no expression may be refused for its own cost, but only for the sum.
    only_together: bool,
    total: u64,
    dearest: Vec<(u64, String)>,
}

impl Costs {
    /// None yet; whether expressions are refused only for what all cost together.
    pub(super) fn new(only_together: bool) -> Self {
        Costs {
            only_together,
            ..Costs::default()
        }
    }

    /// Counts an expression; refuses one that is too expensive alone.
    pub(super) fn add(&mut self, cost: u64, what: &str, at: &Path<'_>, errors: &mut Errors) {
        if cost > OF_EXPRESSION && !self.only_together {
            errors.forbidden(at, exceeds(what, cost, OF_EXPRESSION));
        }
        self.total = self.total.saturating_add(cost);
        if cost >= OF_SCHEMA / 100 {
            self.dearest.push((cost, at.to_string()));
            self.dearest
                .sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
            self.dearest.truncate(NAMED);
        }
    }

    /// Refuses a schema whose rules cost too much together.
    pub(super) fn check_total(&self, schema: &Path<'_>, errors: &mut Errors) {
        if self.total <= OF_SCHEMA {
            return;
        }
        for (_, at) in &self.dearest {
            let why = "contributed to estimated rule & messageExpression cost total exceeding cost limit for entire OpenAPIv3 schema";
            errors.forbidden(&Path::new(at), why);
        }
        let what = "x-kubernetes-validations estimated rule & messageExpression cost total for entire OpenAPIv3 schema";
        errors.forbidden(schema, exceeds(what, self.total, OF_SCHEMA));
    }
}

fn exceeds(what: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        // One digit would say 1.0x of what is a little too much.
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}
