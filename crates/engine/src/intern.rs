//! Interned names: each name that the engine compares has a number.
//!
//! Invariant: within one cluster equal texts have equal [`Symbol`]s, and a symbol is never reused. Symbols are
//! ordered by when their text was first seen, so nothing that a caller can see may be sorted by symbol.

use indexmap::IndexSet;
use rustc_hash::FxBuildHasher;

use crate::model::label;

/// An interned text: a label key or value, a node, namespace, image or resource name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Symbol(u32);

impl Symbol {
    /// The empty text.
    pub const EMPTY: Symbol = Symbol(0);
    /// `kubernetes.io/hostname`.
    pub const HOSTNAME: Symbol = Symbol(1);
    /// `kubernetes.io/os`.
    pub const OS: Symbol = Symbol(2);
    /// `topology.kubernetes.io/zone`.
    pub const ZONE: Symbol = Symbol(3);
    /// `cpu`.
    pub const CPU: Symbol = Symbol(4);
    /// `memory`.
    pub const MEMORY: Symbol = Symbol(5);
    /// `ephemeral-storage`.
    pub const EPHEMERAL_STORAGE: Symbol = Symbol(6);
    /// `pods`.
    pub const PODS: Symbol = Symbol(7);
    /// The taint key of cordoned nodes.
    pub const UNSCHEDULABLE: Symbol = Symbol(8);
    /// `topology.kubernetes.io/region`.
    pub const REGION: Symbol = Symbol(9);
    /// `failure-domain.beta.kubernetes.io/zone`, the former label for the zone.
    pub const BETA_ZONE: Symbol = Symbol(10);
    /// `failure-domain.beta.kubernetes.io/region`, the former label for the region.
    pub const BETA_REGION: Symbol = Symbol(11);
}

/// The texts of the constants of [`Symbol`], in their order.
const KNOWN: [&str; 12] = [
    "",
    label::HOSTNAME,
    label::OS,
    label::ZONE,
    "cpu",
    "memory",
    "ephemeral-storage",
    "pods",
    "node.kubernetes.io/unschedulable",
    label::REGION,
    label::BETA_ZONE,
    label::BETA_REGION,
];

/// The texts of one cluster with their symbols.
#[derive(Clone, Debug)]
pub(crate) struct Interner {
    texts: IndexSet<Box<str>, FxBuildHasher>,
}

impl Default for Interner {
    fn default() -> Self {
        Interner {
            texts: KNOWN.iter().map(|text| Box::from(*text)).collect(),
        }
    }
}

impl Interner {
    /// Returns the symbol of a text, and creates it if needed.
    pub(crate) fn intern(&mut self, text: &str) -> Symbol {
        if let Some(symbol) = self.find(text) {
            return symbol;
        }
        let (index, _) = self.texts.insert_full(Box::from(text));
        Symbol(u32::try_from(index).expect("fewer than four billion distinct names fit in memory"))
    }

    /// Returns the symbol of a text, if the text was ever interned.
    pub(crate) fn find(&self, text: &str) -> Option<Symbol> {
        self.texts
            .get_index_of(text)
            .map(|index| Symbol(index as u32))
    }

    /// Returns the text of a symbol.
    pub(crate) fn text(&self, symbol: Symbol) -> &str {
        self.texts
            .get_index(symbol.0 as usize)
            .map_or("", |text| text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_symbols_stand_for_their_texts() {
        let mut names = Interner::default();
        assert_eq!(names.intern(label::HOSTNAME), Symbol::HOSTNAME);
        assert_eq!(names.intern(label::ZONE), Symbol::ZONE);
        assert_eq!(names.intern("pods"), Symbol::PODS);
        assert_eq!(names.text(Symbol::EMPTY), "");
    }

    #[test]
    fn equal_texts_share_a_symbol() {
        let mut names = Interner::default();
        assert_eq!(names.intern("web"), names.intern("web"));
        assert_ne!(names.intern("web"), names.intern("db"));
        assert_eq!(names.find("nobody said this"), None);
    }
}
