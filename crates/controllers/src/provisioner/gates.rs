//! Karpenter's feature gates, with its names and defaults.

use std::str::FromStr;

/// The feature gates and whether each is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureGates {
    /// `NodeRepair`, off by default: nodes that are unhealthy for too long are replaced.
    pub node_repair: bool,
    /// `StaticCapacity`, off by default: NodePools with `spec.replicas` keep that many nodes.
    pub static_capacity: bool,
    /// `NodeOverlay`, off by default: NodeOverlays change prices and capacity of instance types.
    pub node_overlay: bool,
    /// `CapacityBuffer`, off by default: CapacityBuffers keep room free for pods.
    pub capacity_buffer: bool,
    /// `ReservedCapacity`, on by default: capacity reservations that node classes select are used first.
    pub reserved_capacity: bool,
}

impl Default for FeatureGates {
    fn default() -> Self {
        Self {
            node_repair: false,
            static_capacity: false,
            node_overlay: false,
            capacity_buffer: false,
            reserved_capacity: true,
        }
    }
}

/// The text is not a list of feature gates.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not of the form NodeRepair=true; the gates so far are NodeRepair, StaticCapacity, NodeOverlay, CapacityBuffer and ReservedCapacity"
)]
pub struct ParseGatesError(String);

impl FromStr for FeatureGates {
    type Err = ParseGatesError;

    /// Parses gates separated by commas, as in Karpenter's setting `FEATURE_GATES`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut gates = Self::default();
        for term in text.split(',') {
            let error = || ParseGatesError(term.to_owned());
            let (name, value) = term.split_once('=').ok_or_else(error)?;
            let value = value.parse().map_err(|_| error())?;
            match name {
                "NodeRepair" => gates.node_repair = value,
                "StaticCapacity" => gates.static_capacity = value,
                "NodeOverlay" => gates.node_overlay = value,
                "CapacityBuffer" => gates.capacity_buffer = value,
                "ReservedCapacity" => gates.reserved_capacity = value,
                // An unknown gate is most likely misspelt; ignoring it would leave the feature off
                // without a word.
                _ => return Err(error()),
            }
        }
        Ok(gates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_read_and_unknown_ones_refused() {
        let read = |text: &str| text.parse::<FeatureGates>();
        assert!(read("NodeRepair=true").expect("a gate").node_repair);
        assert!(!read("NodeRepair=false").expect("a gate").node_repair);
        let all = read("StaticCapacity=true,NodeRepair=true,NodeOverlay=true,CapacityBuffer=true");
        let all = all.expect("gates");
        assert!(all.node_repair && all.static_capacity);
        assert!(all.node_overlay && all.capacity_buffer);
        assert!(all.reserved_capacity, "it is on by itself");
        let off = read("ReservedCapacity=false").expect("a gate");
        assert!(!off.reserved_capacity);
        for wrong in [
            "",
            "NodeRepair",
            "NodeRepair=maybe",
            "SpotToSpotConsolidation=true",
        ] {
            let error = read(wrong).expect_err("it is none").to_string();
            assert!(error.starts_with(&format!("{wrong:?} is not")), "{error}");
        }
    }
}
