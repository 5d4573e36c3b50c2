//! The demands of a pod on node labels, one by one: its node selector and the terms of its required node affinity.
//!
//! The filters report only that a node is refused. This module reports which demands refuse the node, so that each can be changed alone. It
//! uses the same compiled selectors as the filters.

use super::near::known_values;
use crate::intern::{Interner, Symbol};
use crate::labels::LabelSet;
use crate::model::{NodeSelectorRequirement, Operator, PodTemplate};
use crate::selector::Requirement;

/// All demands of a pod on node labels.
pub(crate) struct Demands {
    selector: Vec<Demand>,
    /// The terms of the required node affinity, one of which must match; `None` without affinity.
    terms: Option<Vec<Term>>,
}

/// One demand on a node label.
pub(crate) struct Demand {
    pub(crate) key: String,
    operator: Operator,
    values: Vec<String>,
    symbol: Symbol,
    /// The compiled requirement; `None` if it is invalid, in which case no label satisfies it.
    test: Option<Requirement>,
}

struct Term {
    demands: Vec<Demand>,
    /// Whether the term also selects nodes by name.
    by_name: bool,
}

impl Demands {
    pub(crate) fn of(pod: &PodTemplate, names: &mut Interner) -> Self {
        let selector = pod.node_selector.iter();
        let selector = selector.map(|(key, value)| {
            let values = vec![value.clone()];
            let (symbol, wanted) = (names.intern(key), names.intern(value));
            Demand {
                key: key.clone(),
                operator: Operator::In,
                values,
                symbol,
                test: Some(Requirement::equals(symbol, wanted)),
            }
        });
        let selector = selector.collect();
        let affinity = pod.affinity.node_affinity.as_ref();
        let required = affinity.and_then(|affinity| affinity.required.as_ref());
        let terms = required.map(|required| {
            let terms = required.node_selector_terms.iter();
            let mut term = |term: &crate::model::NodeSelectorTerm| Term {
                demands: term
                    .match_expressions
                    .iter()
                    .map(|own| Demand::of(own, names))
                    .collect(),
                by_name: !term.match_fields.is_empty(),
            };
            terms.map(&mut term).collect()
        });
        Demands { selector, terms }
    }

    /// Returns the smallest set of demands that must be dropped for a node with these labels to match; `None` if dropping demands on labels is
    /// not enough.
    pub(crate) fn unmet(&self, labels: &LabelSet, names: &Interner) -> Option<Vec<&Demand>> {
        let mut unmet: Vec<&Demand> = self.selector.iter().collect();
        unmet.retain(|demand| !demand.is_met(labels, names));
        let Some(terms) = &self.terms else {
            return Some(unmet);
        };
        // A term that names nodes, or an empty one that matches none, cannot be met by changing demands on labels.
        let usable = terms
            .iter()
            .filter(|term| !term.by_name && !term.demands.is_empty());
        let of_term = usable.map(|term| {
            let demands = term.demands.iter();
            let unmet: Vec<_> = demands.filter(|own| !own.is_met(labels, names)).collect();
            unmet
        });
        // Terms are alternatives, so only the one that is nearest to matching has to be mended.
        unmet.extend(of_term.min_by_key(Vec::len)?);
        Some(unmet)
    }

    /// Returns all demands.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Demand> {
        let terms = self.terms.iter().flatten();
        let of_terms = terms.flat_map(|term| &term.demands);
        self.selector.iter().chain(of_terms)
    }

    /// Returns whether there are several terms. One of them must match, so an unsatisfiable demand in another does no harm.
    pub(crate) fn has_choice(&self) -> bool {
        self.terms.as_ref().is_some_and(|terms| terms.len() > 1)
    }
}

impl Demand {
    fn of(own: &NodeSelectorRequirement, names: &mut Interner) -> Self {
        Demand {
            key: own.key.clone(),
            operator: own.operator,
            values: own.values.clone(),
            symbol: names.intern(&own.key),
            test: Requirement::compile(&own.key, own.operator, &own.values, names),
        }
    }

    pub(crate) fn is_met(&self, labels: &LabelSet, names: &Interner) -> bool {
        let test = self.test.as_ref();
        test.is_some_and(|test| test.matches(labels, names))
    }

    /// Returns the required value, if the demand is for a single value.
    pub(crate) fn only_value(&self) -> Option<&str> {
        match (&self.values[..], self.operator) {
            ([only], Operator::In) => Some(only),
            _ => None,
        }
    }

    /// Returns the label's value in `labels`.
    pub(crate) fn found<'n>(&self, labels: &LabelSet, names: &'n Interner) -> Option<&'n str> {
        labels.value(self.symbol).map(|value| names.text(value))
    }

    /// Returns the values of an `In` demand, any of which satisfies it; empty for other demands.
    pub(crate) fn wanted(&self) -> &[String] {
        match self.operator {
            Operator::In => &self.values,
            _ => &[],
        }
    }

    /// Returns whether all required values are ones that this label can never have.
    pub(super) fn asks_for_unknown(&self) -> bool {
        let known = known_values(&self.key);
        let wanted = self.wanted();
        let is_known = |wanted: &String| known.contains(&wanted.as_str());
        !known.is_empty() && !wanted.is_empty() && !wanted.iter().any(is_known)
    }

    /// Returns the text of the demand after the key.
    pub(crate) fn text(&self) -> String {
        demand_text(self.operator, &self.values)
    }
}

/// Returns the text of a demand after the key: `=a`, ` in (a, b)`, ` > 4`.
pub(crate) fn demand_text(operator: Operator, values: &[String]) -> String {
    let list = values.join(", ");
    match operator {
        Operator::In if values.len() == 1 => format!("={list}"),
        Operator::In => format!(" in ({list})"),
        Operator::NotIn if values.len() == 1 => format!(" other than {list}"),
        Operator::NotIn => format!(" not in ({list})"),
        Operator::Exists => " of any value".to_owned(),
        Operator::DoesNotExist => " absent".to_owned(),
        Operator::Gt => format!(" > {list}"),
        Operator::Lt => format!(" < {list}"),
        Operator::Gte => format!(" >= {list}"),
        Operator::Lte => format!(" <= {list}"),
    }
}
