//! Maps of resource quantities in custom resources.
//!
//! Invariant: a quantity that is written as a number (`cpu: 1000`) equals the same text (`"1000"`). The API server canonicalises quantities
//! of built-in types only, so custom resources may have numbers.

use std::{
    collections::BTreeMap,
    ops::{Deref, DerefMut},
};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Deserializer, Serialize};

/// Resource name to quantity (`v1.ResourceList`).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct ResourceList(pub BTreeMap<String, Quantity>);

impl ResourceList {
    /// Returns whether there is no resource.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the text of a resource's quantity, if it is set.
    pub fn text(&self, resource: &str) -> Option<&str> {
        self.0.get(resource).map(|quantity| quantity.0.as_str())
    }
}

impl Deref for ResourceList {
    type Target = BTreeMap<String, Quantity>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for ResourceList {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl From<BTreeMap<String, Quantity>> for ResourceList {
    fn from(map: BTreeMap<String, Quantity>) -> Self {
        Self(map)
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for ResourceList {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(iter: I) -> Self {
        Self(
            iter.into_iter()
                .map(|(name, quantity)| (name.into(), Quantity(quantity.into())))
                .collect(),
        )
    }
}

impl<'de> Deserialize<'de> for ResourceList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The schemas say `x-kubernetes-int-or-string`: whole numbers and texts are the only forms that the API server stores.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum IntOrString {
            Int(i64),
            Text(String),
        }
        // Go programs write a nil map as `null`.
        let raw = Option::<BTreeMap<String, IntOrString>>::deserialize(deserializer)?;
        Ok(raw
            .unwrap_or_default()
            .into_iter()
            .map(|(name, value)| match value {
                IntOrString::Int(number) => (name, number.to_string()),
                IntOrString::Text(text) => (name, text),
            })
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_texts_mean_the_same() {
        let list: ResourceList =
            serde_json::from_str(r#"{"cpu": 1000, "memory": "1000Gi"}"#).unwrap();
        assert_eq!(list.text("cpu"), Some("1000"));
        assert_eq!(list.text("memory"), Some("1000Gi"));
        assert_eq!(list.text("pods"), None);
    }
}
