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
pub enum ParseGatesError {
    /// A part of the text sets nothing.
    #[error("{0:?} is not of the form NodeRepair=true or NodeRepair=false")]
    Form(String),
    /// There is no gate of this name.
    #[error(
        "{0:?} is not a feature gate: it must be NodeRepair, StaticCapacity, NodeOverlay, CapacityBuffer, ReservedCapacity or, if it is false, SpotToSpotConsolidation"
    )]
    Unknown(String),
    /// Karpenter's gate is on, and this program has nothing behind it.
    #[error(
        "{0:?} is not possible: spot nodes are not replaced by spot nodes, so it must be false"
    )]
    Missing(String),
}

impl FromStr for FeatureGates {
    type Err = ParseGatesError;

    /// Parses gates separated by commas, as in Karpenter's setting `FEATURE_GATES`, which has spaces where it likes and any of Go's texts
    /// of a bool.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut gates = Self::default();
        for term in text.split(',') {
            let form = || ParseGatesError::Form(term.to_owned());
            let (name, value) = term.split_once('=').ok_or_else(form)?;
            let value = match value.trim() {
                "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
                "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
                _ => return Err(form()),
            };
            match name.trim() {
                "NodeRepair" => gates.node_repair = value,
                "StaticCapacity" => gates.static_capacity = value,
                "NodeOverlay" => gates.node_overlay = value,
                "CapacityBuffer" => gates.capacity_buffer = value,
                "ReservedCapacity" => gates.reserved_capacity = value,
                // Karpenter's chart always names it.
                "SpotToSpotConsolidation" if !value => {}
                "SpotToSpotConsolidation" => {
                    return Err(ParseGatesError::Missing(term.to_owned()));
                }
                // An unknown gate is most likely misspelt; ignoring it would leave the feature off
                // without a word.
                name => return Err(ParseGatesError::Unknown(name.to_owned())),
            }
        }
        Ok(gates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gates_of_karpenters_chart_are_read() {
        let usual = "ReservedCapacity=true,SpotToSpotConsolidation=false,NodeRepair=false,NodeOverlay=false,\
                     StaticCapacity=false,CapacityBuffer=false";
        assert_eq!(usual.parse(), Ok(FeatureGates::default()));
        let spaced: FeatureGates = "NodeRepair\t= True , NodeOverlay=1".parse().expect("gates");
        assert!(spaced.node_repair && spaced.node_overlay);
        let unknown = "Foo=true".parse::<FeatureGates>().expect_err("it is none");
        assert_eq!(unknown, ParseGatesError::Unknown("Foo".to_owned()));
    }

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
