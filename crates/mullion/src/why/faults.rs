//! Finds what cannot be bought because of faults of the simulated EC2: offerings without capacity, zones with an outage, and zones that the
//! cluster is shifted away from.
//!
//! Faults are objects of a cluster with a simulated EC2 (SimulatedFault). A real cluster has none: which capacity its cloud lacks is not
//! known here, and events that report a zonal shift are gone long before the shift ends, so they are not read.

use std::collections::BTreeMap;

use mullion_api::fault::{FaultKind, REFUSED, SimulatedFault};
use mullion_cloud::sim::{Fault, SimulatedEc2};

use super::{kinds::FAULT, state::State};
use crate::failure::Failure;

/// The faults that decide what can be bought.
#[derive(Default)]
pub(super) struct KnownFaults {
    /// A sentence about each.
    pub(super) remarks: Vec<String>,
    /// The names of those that let a zone fail, by the zone.
    pub(super) outages: BTreeMap<String, String>,
}

/// Causes those faults of a state in a simulated cloud that decide what can be bought there.
///
/// # Errors
/// A fault is malformed.
pub(super) fn cause(state: &State, cloud: &SimulatedEc2) -> Result<KnownFaults, Failure> {
    let faults: Vec<SimulatedFault> = state.kept(FAULT).map_err(Failure::input)?;
    let mut known = KnownFaults::default();
    let mut effects: Vec<(String, Vec<String>)> = Vec::new();
    for own in faults {
        let status = own.status.unwrap_or_default();
        let decides = |kind: &FaultKind| {
            matches!(
                kind,
                FaultKind::Capacity | FaultKind::ZoneOutage | FaultKind::ZonalShift
            )
        };
        let Some(kind) = own.spec.fault.parse().ok().filter(decides) else {
            continue;
        };
        if status.phase == REFUSED || own.metadata.deletion_timestamp.is_some() {
            continue;
        }
        // The target may be an id of the zone, which other zones have in the simulated cloud of this process; the status has its name.
        let target = status.names.first().unwrap_or(&own.spec.target);
        let name = own.metadata.name.unwrap_or_default();
        let fault = match cloud.fault(kind, target) {
            Ok(fault) => fault,
            Err(error) => {
                // One that a cluster has accepted is of another region: no node class has a subnet in its zone, so nothing is bought there
                // anyway.
                if status.names.is_empty() {
                    let why = format!("{FAULT} {name} refuses nothing: {}", error.message);
                    known.remarks.push(why);
                }
                continue;
            }
        };
        cloud.cause(&fault);
        if let Fault::ZoneOutage(zone) = &fault {
            known.outages.insert(zone.to_string(), name.clone());
        }
        let does = effect(&fault, target);
        match effects.iter_mut().find(|(known, _)| *known == does) {
            Some((_, names)) => names.push(name),
            None => effects.push((does, vec![name])),
        }
    }
    // Several faults may do the same, which is said once.
    known
        .remarks
        .extend(effects.into_iter().map(|(does, names)| {
            let (first, others) = names.split_first().map_or(("", &[][..]), |(a, b)| (a, b));
            match others {
                [] => format!("{FAULT} {first} {does}"),
                others => format!("{FAULT} {first} {does}; so does {}", others.join(", ")),
            }
        }));
    Ok(known)
}

/// Describes what a fault does to purchases.
fn effect(fault: &Fault, target: &str) -> String {
    match fault {
        Fault::Capacity(pattern) => {
            format!("leaves EC2 without capacity for {pattern}: none is bought")
        }
        Fault::ZoneOutage(zone) => format!("lets {zone} fail: nothing can be bought there"),
        _ => format!("shifts the cluster away from {target}: nothing is bought there"),
    }
}
