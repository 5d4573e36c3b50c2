//! Preferred node affinity: the terms that count, or the mistakes that end an attempt to place the pod.
//!
//! kube-apiserver lets two mistakes through (one with a warning): a bound that is no integer and a value that no label can have. A term
//! that cannot match for another reason never gets here, and matches nothing.

use crate::intern::{Interner, Symbol};
use crate::model::{NodeSelectorRequirement, Operator, PreferredSchedulingTerm};
use crate::selector::{MAX_LABEL_VALUE, NodeTerm, has_label_form, is_label_value};

const NO_INTEGER: &str = "for 'Gt', 'Lt' operators, the value must be an integer";
const NO_LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end \
     with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

/// Weights and terms; terms that weigh nothing do not count.
pub(super) fn compile<'a>(
    wanted: impl Iterator<Item = &'a PreferredSchedulingTerm>,
    names: &mut Interner,
) -> Vec<(i64, NodeTerm)> {
    let wanted = wanted.filter(|term| term.weight != 0);
    let compiled = wanted.filter_map(|term| {
        let preference = NodeTerm::compile(&term.preference, names)?;
        Some((i64::from(term.weight), preference))
    });
    compiled.collect()
}

/// What upstream says about terms that do not parse (component-helpers: `NewPreferredSchedulingTerms`), if there are any.
pub(super) fn error(terms: &[PreferredSchedulingTerm], names: &mut Interner) -> Option<Symbol> {
    let terms = terms.iter().enumerate();
    let counting = terms.filter(|(_, term)| term.weight != 0);
    let requirements = counting.flat_map(|(index, term)| {
        let own = term.preference.match_expressions.iter().enumerate();
        own.map(move |(own, requirement)| {
            (format!("[{index}].matchExpressions[{own}]"), requirement)
        })
    });
    let mistakes: Vec<_> = requirements
        .flat_map(|(path, requirement)| mistakes(&path, requirement))
        .collect();
    let all = mistakes.join(", ");
    match mistakes.len() {
        0 => None,
        1 => Some(names.intern(&all)),
        _ => Some(names.intern(&format!("[{all}]"))),
    }
}

/// apimachinery: `labels.NewRequirement`.
fn mistakes(path: &str, requirement: &NodeSelectorRequirement) -> Vec<String> {
    let values = || requirement.values.iter().enumerate();
    let compares = matches!(requirement.operator, Operator::Gt | Operator::Lt);
    let no_integers = values().filter(|(_, value)| compares && value.parse::<i64>().is_err());
    let no_integers = no_integers.map(|(index, value)| {
        format!("{path}.values[{index}]: Invalid value: {value:?}: {NO_INTEGER}")
    });
    let no_values = values().filter(|(_, value)| !is_label_value(value));
    let no_values = no_values.map(|(index, value)| {
        let key = &requirement.key;
        let why = why_no_label_value(value);
        format!("{path}.values[{index}][{key}]: Invalid value: {value:?}: {why}")
    });
    no_integers.chain(no_values).collect()
}

/// apimachinery: `IsLabelValue`.
fn why_no_label_value(value: &str) -> String {
    let too_long = (value.len() > MAX_LABEL_VALUE)
        .then(|| format!("must be no more than {MAX_LABEL_VALUE} bytes"));
    let malformed = (!has_label_form(value)).then(|| NO_LABEL_VALUE.to_owned());
    let all: Vec<_> = too_long.into_iter().chain(malformed).collect();
    all.join("; ")
}
