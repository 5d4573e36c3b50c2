//! The variables in scope of an expression.

use kube_cel::cel::Value;

use crate::expr::{Expr, spells};

/// A linked list of variables, innermost first.
pub(super) enum Scope<'s> {
    Empty,
    Given(&'s [(&'s str, &'s Value)]),
    Inner {
        name: &'s str,
        value: &'s Value,
        outer: &'s Scope<'s>,
    },
}

impl Scope<'_> {
    pub(super) fn find(&self, wanted: &str) -> Option<&Value> {
        match self {
            Scope::Empty => None,
            Scope::Given(all) => {
                let found = all.iter().find(|(name, _)| *name == wanted);
                found.map(|(_, value)| *value)
            }
            Scope::Inner { name, value, .. } if *name == wanted => Some(value),
            Scope::Inner { outer, .. } => outer.find(wanted),
        }
    }

    /// Returns the variable with dots in its name that a chain of selections starting with `root` spells. A macro's variable named `root`
    /// hides it.
    pub(super) fn dotted(&self, chain: &Expr, root: &str) -> Option<&Value> {
        match self {
            Scope::Empty => None,
            Scope::Given(all) => {
                let found = all.iter().find(|(name, _)| spells(chain, name));
                found.map(|(_, value)| *value)
            }
            Scope::Inner { name, .. } if *name == root => None,
            Scope::Inner { outer, .. } => outer.dotted(chain, root),
        }
    }
}

impl<'s> Scope<'s> {
    pub(super) fn with(&'s self, name: &'s str, value: &'s Value) -> Scope<'s> {
        Scope::Inner {
            name,
            value,
            outer: self,
        }
    }

    /// Returns a scope with the same variables.
    pub(super) fn same(&self) -> Scope<'_> {
        match self {
            Scope::Empty => Scope::Empty,
            Scope::Given(all) => Scope::Given(all),
            Scope::Inner { name, value, outer } => Scope::Inner { name, value, outer },
        }
    }
}
