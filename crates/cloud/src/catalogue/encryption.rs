//! The types that encrypt the traffic between instances, by family as EC2's user guide lists them.
//!
//! Invariant: only the Nitro system encrypts. Up to its sixth generation the listed families do, and from the seventh on all of them.

use super::InstanceType;

/// The first generation in which all families encrypt.
const ALL_FROM: u32 = 7;

/// The families of earlier generations that encrypt.
const FAMILIES: &[&str] = &[
    "c5a", "c5ad", "c5n", "c6a", "c6gn", "c6i", "c6id", "c6in", "d3", "d3en", "dl1", "dl2q", "f2",
    "g4ad", "g4dn", "g5", "g6", "g6e", "g6f", "gr6", "gr6f", "hpc6a", "hpc6id", "i3en", "i4g",
    "i4i", "im4gn", "inf1", "inf2", "is4gen", "m5dn", "m5n", "m5zn", "m6a", "m6i", "m6id", "m6idn",
    "m6in", "p3dn", "p4d", "p4de", "p5", "p5e", "p5en", "p6-b200", "p6-b300", "r5dn", "r5n", "r6a",
    "r6i", "r6id", "r6idn", "r6in", "trn1", "trn1n", "trn2", "trn2u", "vt1", "x2idn", "x2iedn",
    "x2iezn",
];

/// Returns whether the hardware encrypts traffic between instances of this type.
pub(super) fn between_instances(instance_type: &InstanceType) -> bool {
    let parts = instance_type.parts();
    let high_memory = parts.family.starts_with("u-") && !instance_type.bare_metal;
    high_memory
        || parts
            .generation
            .is_some_and(|generation| generation >= ALL_FROM)
        || FAMILIES.contains(&parts.family)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue;

    #[test]
    fn a_familys_later_relatives_encrypt() {
        let encrypts = |name: &str| between_instances(catalogue::get(name).unwrap());
        for name in ["c6a.large", "m7g.large", "i3en.large", "u-3tb1.56xlarge"] {
            assert!(encrypts(name), "{name}");
        }
        for name in ["m5.large", "c6g.large", "t3.large", "c4.large", "i3.large"] {
            assert!(!encrypts(name), "{name}");
        }
    }

    #[test]
    fn every_listed_family_is_in_the_table() {
        for family in FAMILIES {
            let known = |row: &str| row.starts_with(&format!("{family}."));
            assert!(catalogue::TABLE.lines().any(known), "{family}");
        }
    }

    #[test]
    fn only_nitro_encrypts() {
        let xen = catalogue::all().iter().filter(|t| t.hypervisor == "xen");
        assert_eq!(xen.filter(|t| between_instances(t)).count(), 0);
    }
}
