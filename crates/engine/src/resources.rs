//! Resource vectors: the amounts that pods request and nodes offer.
//!
//! Invariant: amounts have the scheduler's units (millicores, bytes, pieces), and amounts from callers are never
//! negative. Sums wrap instead of saturating, so that subtracting a pod restores exactly the earlier sum.

use crate::error::ModelError;
use crate::intern::{Interner, Symbol};
use crate::model::{Quantity, ResourceMap};

/// Amounts of the native resources, and of all others by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Amounts {
    /// CPU in thousandths of a core.
    pub(crate) cpu_milli: i64,
    /// Memory in bytes.
    pub(crate) memory_bytes: i64,
    /// Local storage in bytes.
    pub(crate) ephemeral_bytes: i64,
    /// Number of pods; always 0 in a request.
    pub(crate) pods: i64,
    /// Extended resources, huge pages and attachable volumes, sorted by symbol.
    pub(crate) scalars: Vec<(Symbol, i64)>,
}

impl Amounts {
    /// Reads a resource map. Resources that the scheduler does not count are left out.
    ///
    /// # Errors
    /// [`ModelError::NegativeQuantity`] if an amount is negative.
    pub(crate) fn read(
        map: &ResourceMap,
        owner: &str,
        names: &mut Interner,
    ) -> Result<Self, ModelError> {
        // A negative amount would make room on a node where there is none.
        Self::refuse_negative(map, owner)?;
        let mut amounts = Amounts::default();
        for (name, quantity) in map {
            match name.as_str() {
                // All are rounded up, so that a fraction never counts as nothing.
                "cpu" => amounts.cpu_milli = quantity.milli_value(),
                "memory" => amounts.memory_bytes = quantity.value(),
                "ephemeral-storage" => amounts.ephemeral_bytes = quantity.value(),
                "pods" => amounts.pods = quantity.value(),
                name if is_scalar(name) => {
                    amounts.scalars.push((names.intern(name), quantity.value()))
                }
                _ => {}
            }
        }
        amounts.scalars.sort_unstable_by_key(|scalar| scalar.0);
        Ok(amounts)
    }

    /// Checks that no amount is negative.
    ///
    /// # Errors
    /// [`ModelError::NegativeQuantity`] if one is.
    pub(crate) fn refuse_negative(map: &ResourceMap, owner: &str) -> Result<(), ModelError> {
        match map.iter().find(|(_, quantity)| quantity.is_negative()) {
            None => Ok(()),
            Some((name, quantity)) => Err(ModelError::NegativeQuantity {
                owner: owner.to_owned(),
                resource: name.clone(),
                quantity: *quantity,
            }),
        }
    }

    /// Adds the other amounts to these.
    pub(crate) fn add(&mut self, other: &Amounts) {
        self.combine(other, i64::wrapping_add);
    }

    /// Subtracts the other amounts from these.
    pub(crate) fn subtract(&mut self, other: &Amounts) {
        self.combine(other, i64::wrapping_sub);
    }

    /// Sets each amount to the larger of the two.
    pub(crate) fn maximize(&mut self, other: &Amounts) {
        self.combine(other, i64::max);
    }

    /// Sets each amount to the smaller of the two.
    pub(crate) fn minimize(&mut self, other: &Amounts) {
        self.cpu_milli = self.cpu_milli.min(other.cpu_milli);
        self.memory_bytes = self.memory_bytes.min(other.memory_bytes);
        self.ephemeral_bytes = self.ephemeral_bytes.min(other.ephemeral_bytes);
        self.pods = self.pods.min(other.pods);
        // A resource that the other lacks counts as 0 there; one that is only in the other is 0 here already.
        for (name, amount) in &mut self.scalars {
            *amount = (*amount).min(other.scalar(*name));
        }
    }

    fn combine(&mut self, other: &Amounts, operation: impl Fn(i64, i64) -> i64) {
        self.cpu_milli = operation(self.cpu_milli, other.cpu_milli);
        self.memory_bytes = operation(self.memory_bytes, other.memory_bytes);
        self.ephemeral_bytes = operation(self.ephemeral_bytes, other.ephemeral_bytes);
        self.pods = operation(self.pods, other.pods);
        for &(name, amount) in &other.scalars {
            match self.scalars.binary_search_by_key(&name, |scalar| scalar.0) {
                Ok(index) => self.scalars[index].1 = operation(self.scalars[index].1, amount),
                Err(index) => self.scalars.insert(index, (name, operation(0, amount))),
            }
        }
    }

    /// Returns the amount of an extended resource, 0 if it is absent.
    pub(crate) fn scalar(&self, name: Symbol) -> i64 {
        self.scalars
            .binary_search_by_key(&name, |scalar| scalar.0)
            .map_or(0, |index| self.scalars[index].1)
    }

    /// Sets the amount of an extended resource.
    pub(crate) fn set_scalar(&mut self, name: Symbol, amount: i64) {
        match self.scalars.binary_search_by_key(&name, |scalar| scalar.0) {
            Ok(index) => self.scalars[index].1 = amount,
            Err(index) => self.scalars.insert(index, (name, amount)),
        }
    }

    /// Returns whether an extended resource is listed, even with the amount 0.
    pub(crate) fn knows(&self, name: Symbol) -> bool {
        let place = self.scalars.binary_search_by_key(&name, |scalar| scalar.0);
        place.is_ok()
    }

    /// Returns the amount of any resource by name.
    pub(crate) fn amount(&self, name: Symbol) -> i64 {
        match name {
            Symbol::CPU => self.cpu_milli,
            Symbol::MEMORY => self.memory_bytes,
            Symbol::EPHEMERAL_STORAGE => self.ephemeral_bytes,
            Symbol::PODS => self.pods,
            name => self.scalar(name),
        }
    }

    /// Returns the first resource of which there is more here than in `bound`.
    pub(crate) fn exceeds(&self, bound: &Amounts) -> Option<Symbol> {
        // Spelled out because plans ask this for every option of every node.
        if self.cpu_milli > bound.cpu_milli {
            return Some(Symbol::CPU);
        }
        if self.memory_bytes > bound.memory_bytes {
            return Some(Symbol::MEMORY);
        }
        if self.ephemeral_bytes > bound.ephemeral_bytes {
            return Some(Symbol::EPHEMERAL_STORAGE);
        }
        if self.pods > bound.pods {
            return Some(Symbol::PODS);
        }
        let mut scalars = self.scalars.iter();
        let exceeding = scalars.find(|(name, amount)| *amount > bound.scalar(*name));
        exceeding.map(|scalar| scalar.0)
    }

    /// Returns whether any amount is negative.
    pub(crate) fn is_overdrawn(&self) -> bool {
        self.iter().any(|(_, amount)| amount < 0)
    }

    /// Returns the non-zero amounts by name, native resources first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Symbol, i64)> + '_ {
        [
            (Symbol::CPU, self.cpu_milli),
            (Symbol::MEMORY, self.memory_bytes),
            (Symbol::EPHEMERAL_STORAGE, self.ephemeral_bytes),
            (Symbol::PODS, self.pods),
        ]
        .into_iter()
        .chain(self.scalars.iter().copied())
        .filter(|(_, amount)| *amount != 0)
    }

    /// Returns the amounts as quantities by resource name.
    pub(crate) fn to_map(&self, names: &Interner) -> ResourceMap {
        let quantity = |name: Symbol, amount: i64| match name {
            Symbol::CPU => Quantity::from_milli(amount),
            _ => Quantity::from_units(amount),
        };
        self.iter()
            .map(|(name, amount)| (names.text(name).to_owned(), quantity(name, amount)))
            .collect()
    }
}

/// Returns whether the scheduler counts a resource that is not native (kube-scheduler: `IsScalarResourceName`).
fn is_scalar(name: &str) -> bool {
    // Anywhere in the name, as Kubernetes looks for it.
    let native = name.contains("kubernetes.io/");
    let qualified = name.contains('/') && !name.starts_with("requests.");
    native || qualified || name.starts_with("hugepages-") || name.starts_with("attachable-volumes-")
}
