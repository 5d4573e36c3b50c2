//! Compiled selectors over labels (apimachinery's `labels.Selector`) and over nodes (`nodeaffinity`).
//!
//! Invariant: an invalid selector matches nothing, as in kube-scheduler. An absent selector matches nothing and an
//! empty one matches everything, except that an empty node selector term matches nothing.

use crate::intern::{Interner, Symbol};
use crate::labels::LabelSet;
use crate::model::{
    LabelSelector, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Operator, StringMap,
};
use crate::reason::LabelMismatch;

/// The only field that node selector terms may use.
const NAME_FIELD: &str = "metadata.name";

/// The properties of a node that selectors read.
#[derive(Clone, Copy)]
pub(crate) struct Site<'a> {
    pub(crate) name: Symbol,
    pub(crate) labels: &'a LabelSet,
    pub(crate) names: &'a Interner,
}

/// One compiled requirement on a label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Requirement {
    key: Symbol,
    test: ValueTest,
}

/// The condition on the value of a label, by the operators of node selectors.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ValueTest {
    In(Box<[Symbol]>),
    NotIn(Box<[Symbol]>),
    Exists,
    Absent,
    Above(i64),
    Below(i64),
}

impl Requirement {
    /// Returns the label key of the requirement.
    pub(crate) fn key(&self) -> Symbol {
        self.key
    }

    /// Returns how labels differ from a requirement of a single value; `None` for other requirements.
    fn mismatch(&self, labels: &LabelSet) -> Option<LabelMismatch> {
        let ValueTest::In(values) = &self.test else {
            return None;
        };
        let [wanted] = **values else { return None };
        Some(LabelMismatch {
            key: self.key,
            wanted,
            found: labels.value(self.key),
        })
    }

    pub(crate) fn compile(
        key: &str,
        operator: Operator,
        values: &[String],
        names: &mut Interner,
    ) -> Option<Self> {
        // The API server accepts some of these in node affinity; kube-scheduler then drops the whole term.
        if !is_label_key(key) || !values.iter().all(|value| is_label_value(value)) {
            return None;
        }
        let mut set = |values: &[String]| -> Option<Box<[Symbol]>> {
            let valid = !values.is_empty();
            valid.then(|| values.iter().map(|value| names.intern(value)).collect())
        };
        let number = || match values {
            [value] => value.parse::<i64>().ok(),
            _ => None,
        };
        let test = match operator {
            Operator::In => ValueTest::In(set(values)?),
            Operator::NotIn => ValueTest::NotIn(set(values)?),
            Operator::Exists if values.is_empty() => ValueTest::Exists,
            Operator::DoesNotExist if values.is_empty() => ValueTest::Absent,
            Operator::Exists | Operator::DoesNotExist => return None,
            Operator::Gt => ValueTest::Above(number()?),
            Operator::Lt => ValueTest::Below(number()?),
            // Values are integers, so `>= n` is `> n - 1`.
            Operator::Gte => ValueTest::Above(number()?.checked_sub(1)?),
            Operator::Lte => ValueTest::Below(number()?.checked_add(1)?),
        };
        Some(Requirement {
            key: names.intern(key),
            test,
        })
    }

    /// Returns the requirement `key = value`.
    pub(crate) fn equals(key: Symbol, value: Symbol) -> Self {
        Requirement {
            key,
            test: ValueTest::In(Box::from([value])),
        }
    }

    /// Returns the requirement `key in (values)`; `None` if that is invalid.
    pub(crate) fn one_of(key: &str, values: &[String], names: &mut Interner) -> Option<Self> {
        Requirement::compile(key, Operator::In, values, names)
    }

    pub(crate) fn matches(&self, labels: &LabelSet, names: &Interner) -> bool {
        let value = labels.value(self.key);
        // Labels are compared as integers; one that is no integer satisfies neither `Gt` nor `Lt`.
        let number = || value.and_then(|value| names.text(value).parse::<i64>().ok());
        match &self.test {
            ValueTest::In(values) => value.is_some_and(|value| values.contains(&value)),
            ValueTest::NotIn(values) => value.is_none_or(|value| !values.contains(&value)),
            ValueTest::Exists => value.is_some(),
            ValueTest::Absent => value.is_none(),
            ValueTest::Above(bound) => number().is_some_and(|number| number > *bound),
            ValueTest::Below(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

/// The maximum length of a label value, and of a label key without its prefix, in bytes.
pub(crate) const MAX_LABEL_VALUE: usize = 63;
/// The maximum length of the prefix of a label key, in bytes.
const MAX_LABEL_PREFIX: usize = 253;

/// Returns whether a text is a valid label key (apimachinery: `IsLabelKey`).
fn is_label_key(key: &str) -> bool {
    let (prefix, name) = match key.rsplit_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let is_part = |part: &str| {
        let byte = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let bytes = part.as_bytes();
        bytes.first().is_some_and(byte)
            && bytes.last().is_some_and(byte)
            && bytes.iter().all(|own| byte(own) || *own == b'-')
    };
    let is_prefix =
        |prefix: &str| prefix.len() <= MAX_LABEL_PREFIX && prefix.split('.').all(is_part);
    !name.is_empty() && is_label_value(name) && prefix.is_none_or(is_prefix)
}

pub(crate) fn is_label_value(value: &str) -> bool {
    value.len() <= MAX_LABEL_VALUE && has_label_form(value)
}

/// Returns whether a text has only characters that a label value may have, whatever its length.
pub(crate) fn has_label_form(value: &str) -> bool {
    let bytes = value.as_bytes();
    let edge = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    edge(bytes.first())
        && edge(bytes.last())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// Returns the mismatch of the first requirement that labels do not satisfy, if it requires a single value.
pub(crate) fn first_mismatch<'a>(
    mut all: impl Iterator<Item = &'a Requirement>,
    labels: &LabelSet,
    names: &Interner,
) -> Option<LabelMismatch> {
    all.find(|requirement| !requirement.matches(labels, names))?
        .mismatch(labels)
}

/// A compiled `metav1.LabelSelector`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LabelQuery {
    /// The selector is absent or invalid.
    Nothing,
    /// All of these requirements must match.
    All(Vec<Requirement>),
}

impl LabelQuery {
    pub(crate) fn compile(selector: Option<&LabelSelector>, names: &mut Interner) -> Self {
        let Some(selector) = selector else {
            return LabelQuery::Nothing;
        };
        let mut all =
            Vec::with_capacity(selector.match_labels.len() + selector.match_expressions.len());
        for (key, value) in &selector.match_labels {
            all.push(Requirement::equals(names.intern(key), names.intern(value)));
        }
        for expression in &selector.match_expressions {
            match Requirement::compile(
                &expression.key,
                expression.operator,
                &expression.values,
                names,
            ) {
                Some(requirement) => all.push(requirement),
                None => return LabelQuery::Nothing,
            }
        }
        LabelQuery::All(all)
    }

    /// Returns a query for labels that have all of the given values.
    pub(crate) fn labels(labels: &StringMap, names: &mut Interner) -> Self {
        let all = labels
            .iter()
            .map(|(key, value)| Requirement::equals(names.intern(key), names.intern(value)));
        LabelQuery::All(all.collect())
    }

    /// Adds requirements to the query; a query that matches nothing is replaced by them (kube-scheduler:
    /// `mergeLabelSetWithSelector`).
    pub(crate) fn and(&mut self, more: Vec<Requirement>) {
        match self {
            LabelQuery::All(all) => all.extend(more),
            LabelQuery::Nothing => *self = LabelQuery::All(more),
        }
    }

    pub(crate) fn matches(&self, labels: &LabelSet, names: &Interner) -> bool {
        match self {
            LabelQuery::Nothing => false,
            LabelQuery::All(all) => all
                .iter()
                .all(|requirement| requirement.matches(labels, names)),
        }
    }

    /// Returns whether the query has no requirements, so that it matches everything.
    pub(crate) fn is_everything(&self) -> bool {
        matches!(self, LabelQuery::All(all) if all.is_empty())
    }
}

/// A compiled node selector term. If [`NodeTerm::compile`] returns `None`, the term matches nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NodeTerm {
    labels: Vec<Requirement>,
    fields: Vec<FieldRequirement>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct FieldRequirement {
    name: Symbol,
    equal: bool,
}

impl NodeTerm {
    pub(crate) fn compile(term: &NodeSelectorTerm, names: &mut Interner) -> Option<Self> {
        if term.match_expressions.is_empty() && term.match_fields.is_empty() {
            return None;
        }
        let mut labels = Vec::with_capacity(term.match_expressions.len());
        for requirement in &term.match_expressions {
            labels.push(Requirement::compile(
                &requirement.key,
                requirement.operator,
                &requirement.values,
                names,
            )?);
        }
        let mut fields = Vec::with_capacity(term.match_fields.len());
        for requirement in &term.match_fields {
            fields.push(FieldRequirement::compile(requirement, names)?);
        }
        Some(NodeTerm { labels, fields })
    }

    /// Returns whether labels satisfy the term's requirements on labels, ignoring those on the name.
    pub(crate) fn matches_labels(&self, labels: &LabelSet, names: &Interner) -> bool {
        self.labels
            .iter()
            .all(|requirement| requirement.matches(labels, names))
    }

    pub(crate) fn matches(&self, labels: &LabelSet, name: Symbol, names: &Interner) -> bool {
        self.matches_labels(labels, names)
            && self
                .fields
                .iter()
                .all(|field| (field.name == name) == field.equal)
    }

    /// Returns the label keys of the term's requirements.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Symbol> {
        self.labels.iter().map(|requirement| requirement.key)
    }

    /// Returns the term's requirements on labels.
    pub(crate) fn demands(&self) -> &[Requirement] {
        &self.labels
    }

    /// Returns whether the term can tell apart two nodes that differ only in their names.
    pub(crate) fn asks_for_name(&self) -> bool {
        !self.fields.is_empty()
            || self
                .labels
                .iter()
                .any(|requirement| requirement.key == Symbol::HOSTNAME)
    }
}

impl FieldRequirement {
    fn compile(requirement: &NodeSelectorRequirement, names: &mut Interner) -> Option<Self> {
        let [value] = requirement.values.as_slice() else {
            return None;
        };
        let equal = match requirement.operator {
            Operator::In => true,
            Operator::NotIn => false,
            _ => return None,
        };
        (requirement.key == NAME_FIELD).then(|| FieldRequirement {
            name: names.intern(value),
            equal,
        })
    }
}

/// The nodes that all terms of a selector name (kube-scheduler: NodeAffinity's PreFilter).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum NamedNodes {
    /// A term names no node, so all nodes must be examined.
    All,
    /// Only these nodes can match.
    Only(Vec<Symbol>),
    /// Every term contradicts itself, so no node can match.
    Conflict,
}

impl NamedNodes {
    pub(crate) fn of(selector: Option<&NodeSelector>, names: &mut Interner) -> Self {
        let terms = selector.map_or(&[][..], |selector| &selector.node_selector_terms);
        if terms.is_empty() {
            return NamedNodes::All;
        }
        let mut union: Vec<Symbol> = Vec::new();
        for term in terms {
            // The fields of a term must all match, so their names are intersected. Terms are alternatives, so
            // theirs are united.
            let mut named: Option<Vec<Symbol>> = None;
            for field in &term.match_fields {
                if field.key != NAME_FIELD || field.operator != Operator::In {
                    // Other operators name no nodes; the filter still checks them.
                    continue;
                }
                let values: Vec<_> = field
                    .values
                    .iter()
                    .map(|value| names.intern(value))
                    .collect();
                named = Some(match named {
                    None => values,
                    Some(earlier) => earlier
                        .into_iter()
                        .filter(|name| values.contains(name))
                        .collect(),
                });
            }
            match named {
                // One alternative without names may match any node.
                None => return NamedNodes::All,
                Some(named) => union.extend(named),
            }
        }
        if union.is_empty() {
            NamedNodes::Conflict
        } else {
            NamedNodes::Only(union)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::LabelSelectorRequirement;

    fn labels(names: &mut Interner, pairs: &[(&str, &str)]) -> LabelSet {
        LabelSet::intern(
            &pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
            names,
        )
    }

    fn expression(operator: Operator, values: &[&str]) -> LabelSelector {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        let expression = LabelSelectorRequirement {
            key: "gen".into(),
            operator,
            values,
        };
        LabelSelector {
            match_expressions: vec![expression],
            ..LabelSelector::default()
        }
    }

    fn matches(operator: Operator, values: &[&str], pairs: &[(&str, &str)]) -> bool {
        let mut names = Interner::default();
        let query = LabelQuery::compile(Some(&expression(operator, values)), &mut names);
        let labels = labels(&mut names, pairs);
        query.matches(&labels, &names)
    }

    #[test]
    fn an_absent_key_satisfies_the_negative_operators_only() {
        assert!(matches(Operator::NotIn, &["1"], &[]));
        assert!(matches(Operator::DoesNotExist, &[], &[]));
        assert!(!matches(Operator::In, &["1"], &[]));
        assert!(!matches(Operator::Exists, &[], &[]));
        assert!(!matches(Operator::Lt, &["7"], &[]));
    }

    #[test]
    fn integers_compare_as_numbers_and_texts_never() {
        assert!(matches(Operator::Gt, &["7"], &[("gen", "12")]));
        assert!(!matches(Operator::Lt, &["7"], &[("gen", "12")]));
        assert!(!matches(Operator::Gt, &["7"], &[("gen", "twelve")]));
    }

    #[test]
    fn a_selector_that_does_not_parse_matches_nothing() {
        assert!(!matches(Operator::NotIn, &[], &[]));
        assert!(!matches(Operator::Gt, &["seven"], &[("gen", "12")]));
        assert!(!matches(Operator::NotIn, &["no spaces"], &[("gen", "12")]));
        assert!(!matches(Operator::DoesNotExist, &["x"], &[]));
        assert!(!matches(Operator::Gt, &["-5"], &[("gen", "12")]));
    }

    #[test]
    fn keys_are_those_of_labels() {
        for key in ["gen", "a.b/gen", "A_b-9", "x.example.com/a.b"] {
            assert!(is_label_key(key), "{key}");
        }
        for key in [
            "",
            "a/",
            "/a",
            "a b",
            "A.b/c",
            "a..b/c",
            "a/b/c",
            "-a",
            &"a".repeat(64),
        ] {
            assert!(!is_label_key(key), "{key}");
        }
    }

    #[test]
    fn absent_matches_nothing_and_empty_matches_everything() {
        let mut names = Interner::default();
        let none = LabelSet::default();
        assert!(!LabelQuery::compile(None, &mut names).matches(&none, &names));
        let empty = LabelQuery::compile(Some(&LabelSelector::default()), &mut names);
        assert!(empty.is_everything() && empty.matches(&none, &names));
        assert_eq!(
            NodeTerm::compile(&NodeSelectorTerm::default(), &mut names),
            None
        );
    }
}
