//! What a pod demands of node labels, one demand at a time: its node selector and the terms of its required node affinity.
//!
//! The filters say only that a node is refused; here is said which demands refuse it, so that each can be changed alone. Compiled and compared
//! by the same selectors as the filters'.

use super::near::known_values;
use crate::intern::{Interner, Symbol};
use crate::labels::LabelSet;
use crate::model::{NodeSelectorRequirement, Operator, PodTemplate};
use crate::selector::Requirement;

/// All demands of a pod.
pub(crate) struct Demands {
    selector: Vec<Demand>,
    /// The terms of its required node affinity, of which one must be met; `None` without any affinity.
    terms: Option<Vec<Term>>,
}

/// One demand.
pub(crate) struct Demand {
    pub(crate) key: String,
    operator: Operator,
    values: Vec<String>,
    symbol: Symbol,
    /// `None` where it is not understood: nothing meets it then.
    test: Option<Requirement>,
}

struct Term {
    demands: Vec<Demand>,
    /// It names nodes as well.
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

    /// The fewest demands that would have to go for labels to be let in; `None` where that is not a matter of demands on labels alone.
    pub(crate) fn unmet(&self, labels: &LabelSet, names: &Interner) -> Option<Vec<&Demand>> {
        let mut unmet: Vec<&Demand> = self.selector.iter().collect();
        unmet.retain(|demand| !demand.is_met(labels, names));
        let Some(terms) = &self.terms else {
            return Some(unmet);
        };
        let usable = terms
            .iter()
            .filter(|term| !term.by_name && !term.demands.is_empty());
        let of_term = usable.map(|term| {
            let demands = term.demands.iter();
            let unmet: Vec<_> = demands.filter(|own| !own.is_met(labels, names)).collect();
            unmet
        });
        unmet.extend(of_term.min_by_key(Vec::len)?);
        Some(unmet)
    }

    /// Every demand.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Demand> {
        let terms = self.terms.iter().flatten();
        let of_terms = terms.flat_map(|term| &term.demands);
        self.selector.iter().chain(of_terms)
    }

    /// Whether only one of several terms must be met, so that a demand that nothing meets need not be in the way.
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

    /// The one value that is asked for, if that is what the demand is.
    pub(crate) fn only_value(&self) -> Option<&str> {
        match (&self.values[..], self.operator) {
            ([only], Operator::In) => Some(only),
            _ => None,
        }
    }

    /// The label's value.
    pub(crate) fn found<'n>(&self, labels: &LabelSet, names: &'n Interner) -> Option<&'n str> {
        labels.value(self.symbol).map(|value| names.text(value))
    }

    /// The values that are asked for, if any of them will do.
    pub(crate) fn wanted(&self) -> &[String] {
        match self.operator {
            Operator::In => &self.values,
            _ => &[],
        }
    }

    /// Whether every value that is asked for is one that the label has nowhere.
    pub(super) fn asks_for_unknown(&self) -> bool {
        let known = known_values(&self.key);
        let wanted = self.wanted();
        let is_known = |wanted: &String| known.contains(&wanted.as_str());
        !known.is_empty() && !wanted.is_empty() && !wanted.iter().any(is_known)
    }

    /// What is asked of the label, after its key.
    pub(crate) fn words(&self) -> String {
        words(self.operator, &self.values)
    }
}

/// What is asked of a label, after its key: `=a`, ` in (a, b)`, ` > 4`.
pub(crate) fn words(operator: Operator, values: &[String]) -> String {
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
