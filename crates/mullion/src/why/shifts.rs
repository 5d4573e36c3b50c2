//! Finds the zones that the cluster is shifted away from, in which nothing is bought.
//!
//! Shifts are the cloud's, and only those of the simulated EC2 are objects of the cluster (SimulatedFault). The events that report a shift of
//! a real cluster are gone long before the shift ends, so they are not read.

use mullion_api::fault::{FaultKind, REFUSED, SimulatedFault};
use mullion_cloud::sim::SimulatedEc2;

use super::state::State;
use crate::failure::Failure;

/// The kind of the objects that cause shifts.
pub(super) const KIND: &str = "SimulatedFault";

/// Causes the shifts of a state in a simulated cloud. Returns a sentence about each.
///
/// # Errors
/// A fault is malformed.
pub(super) fn cause(state: &State, cloud: &SimulatedEc2) -> Result<Vec<String>, Failure> {
    let faults: Vec<SimulatedFault> = state.kept(KIND).map_err(Failure::input)?;
    let mut remarks = Vec::new();
    for own in faults {
        let is_shift = own.spec.fault == FaultKind::ZonalShift.as_str();
        let status = own.status.unwrap_or_default();
        let is_refused = status.phase == REFUSED;
        if !is_shift || is_refused || own.metadata.deletion_timestamp.is_some() {
            continue;
        }
        // The target may be an id of the zone, which other zones have in the simulated cloud of this process; the status has its name.
        let zone = status.names.first().unwrap_or(&own.spec.target);
        // No node class has a subnet in a zone that is not found, so nothing is bought there anyway.
        if let Ok(shift) = cloud.fault(FaultKind::ZonalShift, zone) {
            cloud.cause(&shift);
            remarks.push(format!(
                "{KIND} {} shifts the cluster away from {zone}: nothing is bought there",
                own.metadata.name.unwrap_or_default()
            ));
        }
    }
    Ok(remarks)
}
