//! Finds values of requirements that no instance type of the table has, and what may have been meant.
//!
//! EC2 may have newer types than the table, so an unlisted value is a suspicion and no proof.

use mullion_api::labels;
use mullion_engine::remedy::distance;

use super::{all, get};

/// A label of nodes whose values are listed in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypeLabel {
    /// The name of the instance type, such as `m5.large`.
    Type,
    /// The family, such as `m5`.
    Family,
    /// The size, such as `large`.
    Size,
}

impl TypeLabel {
    /// The largest edit distance of a value that may have been meant.
    const NEAR: usize = 2;
    /// The number of such values.
    const SHOWN: usize = 3;

    /// Returns the label with this key, if the table lists its values.
    pub fn of(key: &str) -> Option<Self> {
        match labels::normalized(key) {
            labels::INSTANCE_TYPE => Some(Self::Type),
            labels::INSTANCE_FAMILY => Some(Self::Family),
            labels::INSTANCE_SIZE => Some(Self::Size),
            _ => None,
        }
    }

    /// Returns what a value of the label is, as in `no instance type m5.lrge`.
    pub fn noun(self) -> &'static str {
        match self {
            Self::Type => "instance type",
            Self::Family => "instance family",
            Self::Size => "instance size",
        }
    }

    /// Returns whether an instance type of the table has the value.
    pub fn lists(self, value: &str) -> bool {
        match self {
            Self::Type => get(value).is_some(),
            _ => self.values().any(|own| own == value),
        }
    }

    /// Returns the listed values that are most like a value: those that differ in few letters, or else types of the same family.
    pub fn nearest(self, value: &str) -> Vec<&'static str> {
        let wanted = value.to_lowercase();
        let near = self.values().map(|own| (distance(&wanted, own), own));
        let mut near: Vec<_> = near.filter(|(letters, _)| *letters <= Self::NEAR).collect();
        near.sort_unstable();
        near.dedup();
        // A value one letter away is rarely meant beside one that differs in its case only.
        let least = near.first().map(|(letters, _)| *letters);
        near.retain(|(letters, _)| Some(*letters) == least);
        let mut names: Vec<_> = near.into_iter().map(|(_, own)| own).collect();
        if names.is_empty() && self == Self::Type {
            names = super::similar(value);
        }
        names.truncate(Self::SHOWN);
        names
    }

    fn values(self) -> impl Iterator<Item = &'static str> {
        all().iter().map(move |kind| match self {
            Self::Type => &*kind.name,
            Self::Family => kind.family(),
            Self::Size => kind.parts().size,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_no_type_has_leads_to_the_nearest_ones() {
        assert_eq!(
            TypeLabel::of("beta.kubernetes.io/instance-type"),
            Some(TypeLabel::Type)
        );
        assert_eq!(TypeLabel::of("karpenter.k8s.aws/instance-cpu"), None);
        assert!(TypeLabel::Type.lists("m5.large") && !TypeLabel::Type.lists("m5.lrge"));
        assert_eq!(TypeLabel::Type.nearest("m5.lrge"), ["m5.large"]);
        assert_eq!(TypeLabel::Type.nearest("M5.Large"), ["m5.large"]);
        assert!(
            TypeLabel::Type
                .nearest("m5.enormous")
                .iter()
                .all(|own| own.starts_with("m5."))
        );
        assert!(TypeLabel::Family.lists("m5") && !TypeLabel::Family.lists("m5.large"));
        assert!(TypeLabel::Size.lists("4xlarge"));
        assert_eq!(TypeLabel::Size.nearest("4xlarg"), ["4xlarge"]);
        assert!(TypeLabel::Type.nearest("nothing-like-it").is_empty());
    }
}
