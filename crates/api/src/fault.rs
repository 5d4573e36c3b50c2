//! SimulatedFault (`cloud.mullion.dev/v1alpha1`): something that goes wrong in the simulated EC2 of an embedded cluster.
//!
//! The fault is caused when the object is made, and ends when it is deleted. `mullion fault` and kubectl write it, the simulated EC2 of
//! `mullion up` follows it.

use std::{fmt, str::FromStr};

use kube::CustomResource;
use serde::{Deserialize, Serialize};

/// What goes wrong.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "cloud.mullion.dev",
    version = "v1alpha1",
    kind = "SimulatedFault",
    plural = "simulatedfaults",
    status = "SimulatedFaultStatus",
    schema = "disabled",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", default)]
pub struct SimulatedFaultSpec {
    /// Name of a [`FaultKind`].
    pub fault: String,
    /// To what it happens: a node, instance or NodeClaim, a zone, an offering or an image alias.
    pub target: String,
}

/// What became of a fault.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SimulatedFaultStatus {
    /// One of the phases below.
    pub phase: String,
    /// What is so now, or why it was refused.
    pub message: String,
    /// Everything the target is called.
    pub names: Vec<String>,
    /// Of a refused fault, targets whose names are near to its own.
    pub near: Vec<String>,
}

/// Phase of a fault that was caused.
pub const IN_FORCE: &str = "InForce";
/// Phase of a fault that cannot be caused.
pub const REFUSED: &str = "Refused";

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// EC2 takes a spot instance back in two minutes.
    SpotInterruption,
    /// A spot instance is more likely than others to be taken back.
    Rebalance,
    /// An instance stops without notice.
    Crash,
    /// All instances of a zone stop, and none can be bought there.
    ZoneOutage,
    /// An offering is sold out.
    Capacity,
    /// An image family has a newer image.
    NewImage,
}

impl FaultKind {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::SpotInterruption,
        Self::Rebalance,
        Self::Crash,
        Self::ZoneOutage,
        Self::Capacity,
        Self::NewImage,
    ];

    /// The name of the kind.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SpotInterruption => "spot-interruption",
            Self::Rebalance => "rebalance",
            Self::Crash => "crash",
            Self::ZoneOutage => "zone-outage",
            Self::Capacity => "capacity",
            Self::NewImage => "new-image",
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for FaultKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Self::ALL.into_iter();
        all.find(|kind| kind.as_str() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str).join(", ");
            format!("{text:?} is no fault: it must be one of {names}")
        })
    }
}
