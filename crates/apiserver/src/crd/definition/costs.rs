//! Checks the estimated cost of a definition's rules: of each expression, and of all rules of one schema together.
//!
//! The limits and messages are those of kube-apiserver (k8s.io/apiextensions-apiserver: StaticEstimatedCostLimit and the constants next to
//! it).

use mullion_kube_text::field::{Errors, Path};

const OF_EXPRESSION: u64 = 10_000_000;
const OF_SCHEMA: u64 = 100_000_000;
/// The number of most expensive expressions that the error about the total names; each costs at least a hundredth of the limit.
const NAMED: usize = 4;

/// The costs found so far.
#[derive(Debug, Default)]
pub(super) struct Costs {
    /// Whether an expression is never refused for its own cost, but only for the total.
    only_together: bool,
    total: u64,
    dearest: Vec<(u64, String)>,
}

impl Costs {
    /// Starts without costs. If `only_together` is true, an expression is refused only for the total cost.
    pub(super) fn new(only_together: bool) -> Self {
        Costs {
            only_together,
            ..Costs::default()
        }
    }

    /// Adds the cost of an expression, and refuses one that exceeds the limit alone.
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

    /// Refuses a schema whose rules together exceed the limit.
    pub(super) fn check_total(&self, schema: &Path<'_>, errors: &mut Errors) {
        if self.total <= OF_SCHEMA {
            return;
        }
        for (_, at) in &self.dearest {
            let why = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            errors.forbidden(&Path::new(at), why);
        }
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        errors.forbidden(schema, exceeds(what, self.total, OF_SCHEMA));
    }
}

fn exceeds(what: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        // With one digit, a total slightly above the limit would print as 1.0x.
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}
