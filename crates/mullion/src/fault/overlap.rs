//! Finds what is still refused or stopped after a fault has ended, because other faults that are in force overlap with it.

use mullion_api::fault::{FaultKind, IN_FORCE, SimulatedFault};
use mullion_cloud::sim::CapacityPattern;

/// A fault in force that overlaps with one that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remaining {
    pub(super) kind: FaultKind,
    pub(super) target: String,
    /// Whether the fault covers everything that the other one was about.
    pub(super) is_whole: bool,
}

/// A fault, with the zone of its instance if it is about one.
pub(super) struct Located<'a> {
    pub(super) fault: &'a SimulatedFault,
    pub(super) zone: Option<String>,
}

impl Located<'_> {
    fn kind(&self) -> Option<FaultKind> {
        self.fault.spec.fault.parse().ok()
    }

    /// Returns the target by the name that the cluster knows it by; a zone or an offering has one such name.
    fn name(&self) -> &str {
        let mut names = self.fault.status.iter().flat_map(|status| &status.names);
        names.next().unwrap_or(&self.fault.spec.target)
    }

    /// Returns the offerings that cannot be bought because of the fault; `None` if it rules out none.
    fn refused(&self) -> Option<CapacityPattern> {
        match self.kind()? {
            FaultKind::ZoneOutage | FaultKind::ZonalShift => Some(CapacityPattern {
                zone: Some(self.name().to_owned()),
                ..CapacityPattern::default()
            }),
            FaultKind::Capacity => self.name().parse().ok(),
            FaultKind::SpotInterruption
            | FaultKind::Rebalance
            | FaultKind::Crash
            | FaultKind::NewImage => None,
        }
    }

    /// Returns whether this fault keeps something refused or stopped that `ended` was about; `Some(true)` if all of it.
    fn keeps(&self, ended: &Located<'_>) -> Option<bool> {
        let (own, other) = (self.kind()?, ended.kind()?);
        match (own, other) {
            // A zone that is down stops all instances in it, and one that crashed alone stays stopped when its zone comes back.
            (FaultKind::ZoneOutage, FaultKind::Crash) => {
                (ended.zone.as_deref() == Some(self.name())).then_some(true)
            }
            (FaultKind::Crash, FaultKind::ZoneOutage) => {
                (self.zone.as_deref() == Some(ended.name())).then_some(false)
            }
            _ => {
                let (own, ended) = (self.refused()?, ended.refused()?);
                own.overlaps(&ended).then(|| own.covers(&ended))
            }
        }
    }
}

/// Returns the faults in force that overlap with one that has ended.
pub(super) fn remaining(ended: &Located<'_>, others: &[Located<'_>]) -> Vec<Remaining> {
    let in_force = others.iter().filter(|own| {
        let status = own.fault.status.as_ref();
        status.is_some_and(|status| status.phase == IN_FORCE)
    });
    let kept = in_force.filter_map(|own| {
        Some(Remaining {
            kind: own.kind()?,
            target: own.name().to_owned(),
            is_whole: own.keeps(ended)?,
        })
    });
    kept.collect()
}

#[cfg(test)]
mod tests {
    use mullion_api::fault::{SimulatedFaultSpec, SimulatedFaultStatus};

    use super::*;

    fn fault(kind: FaultKind, name: &str) -> SimulatedFault {
        let mut fault = SimulatedFault::new(
            "f",
            SimulatedFaultSpec {
                fault: kind.as_str().to_owned(),
                target: name.to_owned(),
            },
        );
        fault.status = Some(SimulatedFaultStatus {
            phase: IN_FORCE.to_owned(),
            names: vec![name.to_owned()],
            ..SimulatedFaultStatus::default()
        });
        fault
    }

    /// What a fault keeps of another that has ended; instances are in zone `a`.
    fn kept(own: (FaultKind, &str), ended: (FaultKind, &str)) -> Option<bool> {
        let [own, ended] = [own, ended].map(|(kind, name)| fault(kind, name));
        let located = |fault| Located {
            fault,
            zone: Some("a".to_owned()),
        };
        let kept = remaining(&located(&ended), &[located(&own)]);
        kept.first().map(|own| own.is_whole)
    }

    #[test]
    fn a_fault_keeps_what_it_refuses_too_of_one_that_has_ended() {
        use FaultKind::{Capacity, Crash, NewImage, ZonalShift, ZoneOutage};
        for (own, ended, expected) in [
            (
                (Capacity, "*/a/*"),
                (Capacity, "m5.large/a/spot"),
                Some(true),
            ),
            (
                (Capacity, "m5.large/a/spot"),
                (Capacity, "*/a/*"),
                Some(false),
            ),
            (
                (Capacity, "m5.large/*/*"),
                (Capacity, "m5.large/*/reserved"),
                None,
            ),
            (
                (Capacity, "m5.large/*/*"),
                (Capacity, "*/a/spot"),
                Some(false),
            ),
            ((Capacity, "m5.large/*/*"), (Capacity, "c5.large/*/*"), None),
            ((Capacity, "*/*/spot"), (ZoneOutage, "a"), Some(false)),
            ((ZonalShift, "a"), (ZoneOutage, "a"), Some(true)),
            ((ZoneOutage, "a"), (ZonalShift, "a"), Some(true)),
            ((ZoneOutage, "b"), (ZonalShift, "a"), None),
            ((ZoneOutage, "a"), (Capacity, "m5.large/*/*"), Some(false)),
            ((ZoneOutage, "a"), (Capacity, "m5.large/a/*"), Some(true)),
            ((ZoneOutage, "a"), (Crash, "i-1"), Some(true)),
            ((ZoneOutage, "b"), (Crash, "i-1"), None),
            ((Crash, "i-1"), (ZoneOutage, "a"), Some(false)),
            ((NewImage, "al2023"), (ZoneOutage, "a"), None),
        ] {
            assert_eq!(kept(own, ended), expected, "{own:?} {ended:?}");
        }
    }
}
