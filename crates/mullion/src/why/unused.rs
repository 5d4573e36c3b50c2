//! Collects the objects of a list that nothing is taken from: those of kinds that do not decide where pods go, or that nobody knows, and
//! workloads that no controller has made pods of.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::pod_owner::PodOwner;

/// The objects of a list of objects that nothing is taken from.
#[derive(Default)]
pub(super) struct Unused {
    /// The objects of kinds that do not count, as in `Secret shop/key`, by kind.
    kinds: BTreeMap<String, Vec<String>>,
    /// Workloads that no controller has seen.
    unseen: Vec<PodOwner>,
}

/// What is read of an object that nothing is taken from.
#[derive(Deserialize)]
struct Stub {
    #[serde(default)]
    metadata: Value,
}

impl Unused {
    /// Reads the remaining fields of an object of a kind that does not count.
    pub(super) fn add<'de, D: Deserializer<'de>>(
        &mut self,
        kind: &str,
        rest: D,
    ) -> Result<(), D::Error> {
        let (home, name) = named(rest)?;
        let named = if home.is_empty() {
            format!("{kind} {name}")
        } else {
            format!("{kind} {home}/{name}")
        };
        self.kinds.entry(kind.to_owned()).or_default().push(named);
        Ok(())
    }

    /// Reads the remaining fields of a workload of which only the pods count.
    pub(super) fn add_workload<'de, D: Deserializer<'de>>(
        &mut self,
        kind: &str,
        rest: D,
    ) -> Result<(), D::Error> {
        let (namespace, name) = named(rest)?;
        self.add_owner(kind, &namespace, &name);
        Ok(())
    }

    /// Adds a workload, which [`Unused::forget_workloads`] removes again if a controller has seen it.
    pub(super) fn add_owner(&mut self, kind: &str, namespace: &str, name: &str) {
        self.unseen.push(PodOwner {
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        });
    }

    /// Returns how many workloads there are.
    pub(super) fn workloads(&self) -> usize {
        self.unseen.len()
    }

    /// Removes the workloads that were added last: all but the first `there`.
    pub(super) fn forget_workloads(&mut self, there: usize) {
        self.unseen.truncate(there);
    }

    /// Returns the objects of kinds that do not count, as in `Secret shop/key`, by kind.
    pub(super) fn kinds(&self) -> &BTreeMap<String, Vec<String>> {
        &self.kinds
    }

    /// Returns the workloads that no controller has seen.
    pub(super) fn unseen(&self) -> &[PodOwner] {
        &self.unseen
    }
}

/// Returns the namespace and the name of an object.
fn named<'de, D: Deserializer<'de>>(rest: D) -> Result<(String, String), D::Error> {
    let Stub { metadata } = Stub::deserialize(rest)?;
    let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
    Ok((text("namespace"), text("name")))
}
