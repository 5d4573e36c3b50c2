//! Preferred node affinity: compiles the terms, or finds the errors in them that make the scheduler fail the attempt to place the pod.
//!
//! kube-apiserver accepts two errors (one of them with a warning): a bound of `Gt` or `Lt` that is not an integer, and a value that
//! cannot be a label value. A term that cannot match for another reason is already left out and matches nothing.

use crate::intern::{Interner, Symbol};
use crate::model::{NodeSelectorRequirement, Operator, PreferredSchedulingTerm};
use crate::selector::{MAX_LABEL_VALUE, NodeTerm, has_label_form, is_label_value};

const NO_INTEGER: &str = "for 'Gt', 'Lt' operators, the value must be an integer";
const NO_LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end \
     with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

/// Compiles the terms with their weights; terms of weight 0 are left out.
pub(super) fn compile<'a>(
    wanted: impl Iterator<Item = &'a PreferredSchedulingTerm>,
    names: &mut Interner,
) -> Vec<(i64, NodeTerm)> {
    // kube-scheduler skips terms of weight 0 before it parses them, so errors in those do not count either.
    let wanted = wanted.filter(|term| term.weight != 0);
    let compiled = wanted.filter_map(|term| {
        let preference = NodeTerm::compile(&term.preference, names)?;
        Some((i64::from(term.weight), preference))
    });
    compiled.collect()
}

/// Returns the error that kube-scheduler reports for terms that do not parse (component-helpers: `NewPreferredSchedulingTerms`), or
/// `None` if all parse.
pub(super) fn error(terms: &[PreferredSchedulingTerm], names: &mut Interner) -> Option<Symbol> {
    let terms = terms.iter().enumerate();
    let counting = terms.filter(|(_, term)| term.weight != 0);
    let requirements = counting.flat_map(|(index, term)| {
        // Indices are those in the pod's spec, as in kube-scheduler's error.
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

/// Returns the errors of one requirement (apimachinery: `labels.NewRequirement`).
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

/// Returns the message that apimachinery's `IsLabelValue` gives for an invalid label value.
fn why_no_label_value(value: &str) -> String {
    let too_long = (value.len() > MAX_LABEL_VALUE)
        .then(|| format!("must be no more than {MAX_LABEL_VALUE} bytes"));
    let malformed = (!has_label_form(value)).then(|| NO_LABEL_VALUE.to_owned());
    let all: Vec<_> = too_long.into_iter().chain(malformed).collect();
    all.join("; ")
}
