//! Finds values of requirements that no known instance type has, and what may have been meant.
//!
//! Known are the names of the table, described or not, and [`UNDESCRIBED`]. EC2 may have newer types, so an unlisted value is a suspicion and
//! no proof.

use std::sync::LazyLock;

use mullion_api::labels;
use mullion_engine::remedy::distance_within;

use super::{TABLE, TypeName, get};

/// Instance types that have no row in the table because EC2 offers them to few accounts or for special uses (Karpenter:
/// `zz_generated.pricing_*.go` and `zz_generated.bandwidth.go`).
const UNDESCRIBED: [&str; 23] = [
    "cc2.8xlarge",
    "cr1.8xlarge",
    "g2.2xlarge",
    "g2.8xlarge",
    "g3.16xlarge",
    "g3.4xlarge",
    "g3.8xlarge",
    "g3s.xlarge",
    "hs1.8xlarge",
    "i3p.16xlarge",
    "p2.16xlarge",
    "p2.8xlarge",
    "p2.xlarge",
    "p6e-gb200.36xlarge",
    "u-12tb1.112xlarge",
    "u-12tb1.metal",
    "u-18tb1.112xlarge",
    "u-18tb1.metal",
    "u-24tb1.112xlarge",
    "u-24tb1.metal",
    "u-6tb1.metal",
    "u-9tb1.112xlarge",
    "u-9tb1.metal",
];

/// The names of all known types, sorted.
static NAMES: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let rows = TABLE.lines().skip(1);
    let listed = rows.filter_map(|row| row.split(',').next());
    let mut names: Vec<_> = listed.chain(UNDESCRIBED).collect();
    names.sort_unstable();
    names
});

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

    /// Returns whether a known instance type has the value.
    pub fn lists(self, value: &str) -> bool {
        NAMES.iter().any(|name| self.value_of(name) == value)
    }

    /// Returns the listed values that are most like a value: those that differ in few letters. Of types they are of the same family if there is
    /// such a family, and the smallest ones of it if none is like the value.
    pub fn nearest(self, value: &str) -> Vec<&'static str> {
        let wanted = value.to_lowercase();
        let family = TypeName::parse(&wanted).family;
        let is_known = self == Self::Type && Self::Family.lists(family);
        let is_candidate =
            |name: &&'static str| !is_known || TypeName::parse(name).family == family;
        let values = || {
            NAMES
                .iter()
                .copied()
                .filter(is_candidate)
                .map(|name| self.value_of(name))
        };
        let near =
            values().filter_map(|own| Some((distance_within(&wanted, own, Self::NEAR)?, own)));
        let mut near: Vec<_> = near.collect();
        near.sort_unstable();
        near.dedup();
        // A value one letter away is rarely meant beside one that differs in its case only.
        let least = near.first().map(|(letters, _)| *letters);
        near.retain(|(letters, _)| Some(*letters) == least);
        let mut names: Vec<_> = near.into_iter().map(|(_, own)| own).collect();
        if names.is_empty() && is_known {
            names = values().collect();
            // Types that are not described come last.
            names.sort_by_key(|name| get(name).map_or(u64::MAX, |kind| kind.vcpus));
        }
        names.truncate(Self::SHOWN);
        names
    }

    /// Returns the value of the label for a type.
    fn value_of(self, name: &'static str) -> &'static str {
        match self {
            Self::Type => name,
            Self::Family => TypeName::parse(name).family,
            Self::Size => TypeName::parse(name).size,
        }
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
        assert_eq!(
            TypeLabel::Type.nearest("m55.large"),
            ["m5.large", "m5a.large", "m5d.large"]
        );
        assert!(TypeLabel::Family.lists("m5") && !TypeLabel::Family.lists("m5.large"));
        assert!(TypeLabel::Size.lists("4xlarge"));
        assert_eq!(TypeLabel::Size.nearest("4xlarg"), ["4xlarge"]);
        assert!(TypeLabel::Type.nearest("nothing-like-it").is_empty());
        assert!(TypeLabel::Type.nearest(&"large".repeat(100_000)).is_empty());
    }

    #[test]
    fn types_of_the_same_family_are_nearest() {
        assert_eq!(
            TypeLabel::Type.nearest("p3.4xlarge"),
            ["p3.2xlarge", "p3.8xlarge"]
        );
        assert_eq!(
            TypeLabel::Type.nearest("m5.enormous"),
            ["m5.large", "m5.xlarge", "m5.2xlarge"]
        );
    }

    #[test]
    fn types_that_are_not_described_are_known() {
        for name in [
            "p3.2xlarge",
            "i3.metal",
            "mac2-m2pro.metal",
            "g3s.xlarge",
            "p2.16xlarge",
            "u-24tb1.112xlarge",
        ] {
            assert!(get(name).is_none(), "{name}");
            assert!(TypeLabel::Type.lists(name), "{name}");
            let TypeName { family, size, .. } = TypeName::parse(name);
            assert!(TypeLabel::Family.lists(family) && TypeLabel::Size.lists(size));
        }
        assert!(NAMES.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
