//! Interned label sets.
//!
//! Invariant: the pairs are sorted by key symbol, and each key occurs once.

use crate::intern::{Interner, Symbol};
use crate::model::StringMap;

/// The labels of a pod, node or namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct LabelSet {
    pairs: Box<[(Symbol, Symbol)]>,
}

impl LabelSet {
    /// Interns labels.
    pub(crate) fn intern(labels: &StringMap, names: &mut Interner) -> Self {
        let mut pairs: Vec<_> = labels
            .iter()
            .map(|(key, value)| (names.intern(key), names.intern(value)))
            .collect();
        pairs.sort_unstable();
        LabelSet {
            pairs: pairs.into(),
        }
    }

    /// Returns the value of a key.
    pub(crate) fn value(&self, key: Symbol) -> Option<Symbol> {
        self.pairs
            .binary_search_by_key(&key, |pair| pair.0)
            .ok()
            .map(|index| self.pairs[index].1)
    }

    /// Returns all pairs, in an unspecified order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Symbol, Symbol)> + '_ {
        self.pairs.iter().copied()
    }

    /// Returns whether there are no labels.
    pub(crate) fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Returns the labels without one key.
    pub(crate) fn without(&self, key: Symbol) -> Self {
        LabelSet {
            pairs: self.iter().filter(|pair| pair.0 != key).collect(),
        }
    }

    /// Returns the labels with others added; a new value replaces the old one of the same key.
    pub(crate) fn with_all<'a>(
        &self,
        labels: impl Iterator<Item = (&'a String, &'a String)>,
        names: &mut Interner,
    ) -> Self {
        let mut pairs = Vec::with_capacity(self.pairs.len() + 2);
        pairs.extend(self.iter());
        for (key, value) in labels {
            let (key, value) = (names.intern(key), names.intern(value));
            put(&mut pairs, key, value);
        }
        LabelSet {
            pairs: pairs.into(),
        }
    }

    /// Returns the labels with one label added or replaced.
    pub(crate) fn with(&self, key: Symbol, value: Symbol) -> Self {
        let mut pairs = Vec::with_capacity(self.pairs.len() + 1);
        pairs.extend(self.iter());
        put(&mut pairs, key, value);
        LabelSet {
            pairs: pairs.into(),
        }
    }
}

/// Sets the value of a key in sorted pairs.
fn put(pairs: &mut Vec<(Symbol, Symbol)>, key: Symbol, value: Symbol) {
    match pairs.binary_search_by_key(&key, |pair| pair.0) {
        Ok(index) => pairs[index].1 = value,
        Err(index) => pairs.insert(index, (key, value)),
    }
}
