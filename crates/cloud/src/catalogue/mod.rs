//! EC2's instance types: their properties, their prices, and the resources of their nodes.
//!
//! Invariant: the only source is the table `data/ec2-instance-types.csv`, which is embedded and parsed once. An empty field means unknown,
//! not zero: a type without a price for an operating system is not sold with it. Continue with [`InstanceType`], [`allocatable`] and
//! [`price`].

pub mod allocatable;
pub(crate) mod by_name;
mod encryption;
mod instance_type;
mod name;
pub mod price;
mod unlisted;

use std::sync::{Arc, LazyLock};

use mullion_api::eksctl::KubernetesVersion;

pub use instance_type::{Arch, Gpu, InstanceType, NeuronDevice};
pub use name::TypeName;
pub use price::Price;
pub use unlisted::TypeLabel;

static TABLE: &str = include_str!("../../data/ec2-instance-types.csv");

static ALL: LazyLock<Vec<Arc<InstanceType>>> = LazyLock::new(|| {
    let mut types: Vec<_> = TABLE
        .lines()
        .skip(1)
        .filter_map(InstanceType::from_row)
        .map(Arc::new)
        .collect();
    types.sort_by(|a, b| a.name.cmp(&b.name));
    types
});

/// Returns all instance types that are fully described, sorted by name.
pub fn all() -> &'static [Arc<InstanceType>] {
    &ALL
}

/// Returns the instance type with this name.
pub fn get(name: &str) -> Option<&'static Arc<InstanceType>> {
    let index = ALL
        .binary_search_by(|instance_type| (*instance_type.name).cmp(name))
        .ok()?;
    ALL.get(index)
}

/// Returns the names of the same family, for error messages.
pub fn similar(name: &str) -> Vec<&'static str> {
    let family = name.split('.').next().unwrap_or_default();
    ALL.iter()
        .filter(|candidate| candidate.family() == family)
        .map(|candidate| &*candidate.name)
        .collect()
}

/// Returns the newest generation that images of a Kubernetes version support.
///
/// The images of an EKS release, and its VPC resource controller, know the instance types of their time. A cluster with an older version is
/// therefore offered older hardware: generation 8 (C8i, M8a, ...) from 1.34 on.
pub fn newest_generation(version: KubernetesVersion) -> u32 {
    match version.minor() {
        ..=33 => 7,
        _ => u32::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_completely() {
        // 1,408 rows, 8 of them without vCPUs and 9 Macs.
        assert_eq!(TABLE.lines().count() - 1, 1408);
        assert_eq!(all().len(), 1408 - 8 - 9);
        assert!(all().windows(2).all(|pair| pair[0].name < pair[1].name));
    }

    #[test]
    fn types_are_found_by_name() {
        let c6a = get("c6a.xlarge").unwrap();
        assert_eq!((c6a.vcpus, c6a.memory_mib, c6a.ipv4_per_eni), (4, 8192, 15));
        assert!(get("c6a.huge").is_none());
        assert!(similar("c6a.huge").contains(&"c6a.xlarge"));
    }
}
