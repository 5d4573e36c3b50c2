//! Amounts of resources that nodes report.
//!
//! Invariant: amounts are whole numbers (milli-cores, bytes, pieces). They are formatted once, in Kubernetes' canonical form, so that
//! written values equal those that the API server stores.

use std::collections::BTreeMap;

use mullion_api::{karpenter::ResourceList, labels};
use serde::{Deserialize, Serialize};

/// The capacity of a node, or its allocatable amounts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Thousandths of a vCPU.
    pub cpu_milli: u64,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Ephemeral storage in bytes.
    pub ephemeral_bytes: u64,
    /// Pod slots.
    pub pods: u64,
    /// Extended resources by name.
    pub extended: BTreeMap<String, u64>,
}

impl Resources {
    /// Returns the number of Windows pod addresses.
    pub fn private_ipv4(&self) -> u64 {
        self.extended
            .get(labels::PRIVATE_IPV4)
            .copied()
            .unwrap_or_default()
    }

    /// Returns the amounts as Kubernetes quantities.
    pub fn to_list(&self) -> ResourceList {
        let basics = [
            (labels::CPU, format_milli(self.cpu_milli)),
            (labels::MEMORY, format_bytes(self.memory_bytes)),
            (
                labels::EPHEMERAL_STORAGE,
                format_bytes(self.ephemeral_bytes),
            ),
            (labels::PODS, self.pods.to_string()),
        ];
        basics
            .into_iter()
            .map(|(name, text)| (name.to_owned(), text))
            .chain(
                self.extended
                    .iter()
                    .map(|(name, count)| (name.clone(), count.to_string())),
            )
            .collect()
    }
}

/// Formats milli-units in canonical form: `3920m`, `4`.
pub fn format_milli(milli: u64) -> String {
    match milli % 1000 {
        0 => (milli / 1000).to_string(),
        _ => format!("{milli}m"),
    }
}

/// Formats bytes in canonical form, with the largest binary unit that divides them (`6012Mi`, `44Gi`).
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let mut number = bytes;
    let mut unit = 0;
    while number != 0 && number.is_multiple_of(1024) && unit + 1 < UNITS.len() {
        number /= 1024;
        unit += 1;
    }
    format!("{number}{}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_canonical() {
        assert_eq!(format_milli(3920), "3920m");
        assert_eq!(format_milli(4000), "4");
        assert_eq!(format_bytes(0), "0");
        assert_eq!(format_bytes(44 << 30), "44Gi");
        assert_eq!(format_bytes(6012 << 20), "6012Mi");
        assert_eq!(format_bytes(1500), "1500");
    }
}
