//! SimulatedFault (`cloud.mullion.dev/v1alpha1`): an injected fault in the simulated EC2 of an embedded cluster.
//!
//! The fault begins when the object is created, and ends when it is deleted. `mullion fault` and kubectl write it; the simulated EC2 of
//! `mullion up` acts on it.

use std::{fmt, str::FromStr};

use kube::CustomResource;
use serde::{Deserialize, Serialize};

/// The fault and its target.
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
    /// The target: a node, instance or NodeClaim, a zone, an offering or an image alias.
    pub target: String,
}

/// The observed state of a fault.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SimulatedFaultStatus {
    /// One of the phases below.
    pub phase: String,
    /// The effect of the fault, or the reason why it was refused.
    pub message: String,
    /// All names of the target.
    pub names: Vec<String>,
    /// For a refused fault, the targets with similar names.
    pub near: Vec<String>,
}

/// Phase of a fault that is in effect.
pub const IN_FORCE: &str = "InForce";
/// Phase of a fault that cannot be injected.
pub const REFUSED: &str = "Refused";

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// EC2 interrupts a spot instance in two minutes.
    SpotInterruption,
    /// A spot instance has a higher risk of interruption than others.
    Rebalance,
    /// An instance stops without notice.
    Crash,
    /// All instances of a zone stop, and none can be launched there.
    ZoneOutage,
    /// Amazon's Application Recovery Controller shifts the cluster away from a zone.
    ZonalShift,
    /// An offering has no capacity.
    Capacity,
    /// An image family has a newer image.
    NewImage,
}

impl FaultKind {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::SpotInterruption,
        Self::Rebalance,
        Self::Crash,
        Self::ZoneOutage,
        Self::ZonalShift,
        Self::Capacity,
        Self::NewImage,
    ];

    /// Returns the name of the kind.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SpotInterruption => "spot-interruption",
            Self::Rebalance => "rebalance",
            Self::Crash => "crash",
            Self::ZoneOutage => "zone-outage",
            Self::ZonalShift => "zonal-shift",
            Self::Capacity => "capacity",
            Self::NewImage => "new-image",
        }
    }
}

/// A name that no fault has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no fault: it must be one of {names}", names = FaultKind::ALL.map(FaultKind::as_str).join(", "))]
pub struct UnknownFault(String);

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for FaultKind {
    type Err = UnknownFault;

    fn from_str(text: &str) -> Result<Self, UnknownFault> {
        let mut all = Self::ALL.into_iter();
        all.find(|kind| kind.as_str() == text)
            .ok_or_else(|| UnknownFault(text.to_owned()))
    }
}
