//! Formats the output of `mullion fault`.

use jiff::Timestamp;
use mullion_api::fault::{FaultKind, REFUSED, SimulatedFault, SimulatedFaultStatus};
use serde_json::{Value, json};

use super::overlap::Remaining;
use crate::clusters::age;

/// Describes the effect of a new fault, and how to end it.
pub(super) fn caused(kind: FaultKind, target: &str, status: &SimulatedFaultStatus) -> String {
    let target = quoted(target);
    match &*status.message {
        "" => format!("{kind} of {target} has come and gone."),
        message => format!("{message}\nEnd it with: mullion fault {kind} {target} --heal"),
    }
}

/// Describes a fault that was already in effect.
pub(super) fn known(kind: FaultKind, target: &str, status: &SimulatedFaultStatus) -> String {
    let target = quoted(target);
    format!(
        "It is in force already. {}\nEnd it with: mullion fault {kind} {target} --heal",
        status.message
    )
}

/// Describes the effect of ending a fault, and what other faults in force still refuse of it.
pub(super) fn healed(kind: FaultKind, target: &str, remaining: &[Remaining]) -> String {
    let effect = effect(kind, target, remaining);
    let Some(effect) = effect.strip_suffix('.').filter(|_| !remaining.is_empty()) else {
        return effect;
    };
    let lines = remaining.iter().map(|own| {
        let (kind, target) = (own.kind, &own.target);
        format!("\n  {kind} {target} is in force: {}", still(kind))
    });
    format!("{effect}:{}", lines.collect::<String>())
}

/// Describes the effect of ending a fault in a sentence.
fn effect(kind: FaultKind, target: &str, remaining: &[Remaining]) -> String {
    let is_whole = remaining.iter().any(|own| own.is_whole);
    let apart = if remaining.is_empty() {
        ""
    } else {
        ", but not all"
    };
    match kind {
        FaultKind::SpotInterruption => format!(
            "EC2 does not take {target} back. A NodeClaim that is being deleted already stays so."
        ),
        FaultKind::Rebalance => format!("{target} is no longer at risk."),
        FaultKind::Crash if is_whole => format!("{target} does not start yet."),
        FaultKind::Crash => {
            format!("{target} starts again; `kubectl get nodes` shows when it is ready.")
        }
        FaultKind::ZoneOutage if is_whole => {
            format!("{target} is back: its instances start again, but no others are bought there.")
        }
        FaultKind::ZoneOutage => format!(
            "{target} is back: its instances start again, and others can be bought there{apart}."
        ),
        FaultKind::ZonalShift if is_whole => format!(
            "The cluster is no longer shifted away from {target}, but no nodes can be bought there."
        ),
        FaultKind::ZonalShift => format!(
            "The cluster is no longer shifted away from {target}: within half a minute nodes can be bought there again{apart}."
        ),
        FaultKind::Capacity if is_whole => {
            format!("The fault has ended, but {target} still cannot be bought.")
        }
        FaultKind::Capacity => format!("EC2 has capacity for {target} again{apart}."),
        FaultKind::NewImage => format!(
            "The image before is the newest of {target} again. Nodes of the newer one drift within a minute."
        ),
    }
}

/// Says what a fault in force keeps refused or stopped.
fn still(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::ZoneOutage => "the zone is down",
        FaultKind::ZonalShift => "nothing is bought in the zone",
        FaultKind::Capacity => "EC2 has no capacity for it",
        FaultKind::Crash => "the instance stays stopped",
        FaultKind::SpotInterruption => "EC2 takes the instance back",
        FaultKind::Rebalance => "the instance is at risk",
        FaultKind::NewImage => "the image is the newest",
    }
}

/// Names targets that a refused fault could have had: all zones and image families, or of the many others those that are most alike.
pub(super) fn names(kind: FaultKind, near: &[String]) -> String {
    let names = near.join(", ");
    match kind {
        FaultKind::ZoneOutage | FaultKind::ZonalShift | FaultKind::NewImage => {
            format!("one of {names}")
        }
        // Of the many instance types, whose names have a dot, or all zones.
        FaultKind::Capacity if near.iter().all(|name| name.contains('.')) => {
            format!("the most alike are {names}")
        }
        FaultKind::Capacity => format!("one of {names}"),
        FaultKind::SpotInterruption | FaultKind::Rebalance | FaultKind::Crash => {
            format!("such as {names}; `kubectl get nodes,nodeclaims` lists all")
        }
    }
}

/// Formats the faults in effect as a table.
pub(super) fn table(all: &[SimulatedFault], now: Timestamp) -> String {
    if all.is_empty() {
        return "No fault is in force. `mullion fault --help` says which can be caused.".to_owned();
    }
    let mut rows = vec![["FAULT", "TARGET", "AGE", "WHAT IS SO"].map(str::to_owned)];
    rows.extend(all.iter().map(|own| {
        let created = own.metadata.creation_timestamp.as_ref();
        let age = created.map_or_else(String::new, |at| age(now.duration_since(at.0)));
        [
            own.spec.fault.clone(),
            own.spec.target.clone(),
            age,
            state(own),
        ]
    }));
    let widths: [usize; 4] = std::array::from_fn(|column| {
        let lengths = rows.iter().map(|row| row[column].len());
        lengths.max().unwrap_or(0)
    });
    let lines = rows.iter().map(|row| {
        let cells = row.iter().zip(widths);
        let cells: Vec<_> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        cells.join("   ").trim_end().to_owned()
    });
    let lines: Vec<_> = lines.collect();
    format!(
        "{}\n\nEnd one with: mullion fault FAULT TARGET --heal",
        lines.join("\n")
    )
}

fn state(own: &SimulatedFault) -> String {
    match &own.status {
        None => "not acted on yet".to_owned(),
        Some(status) if status.phase == REFUSED => format!("refused: {}", status.message),
        Some(status) => status.message.clone(),
    }
}

/// Formats the faults in effect as one JSON object.
pub(super) fn json(all: &[SimulatedFault]) -> String {
    let faults = all.iter().map(|own| {
        let status = own.status.clone().unwrap_or_default();
        json!({
            "fault": own.spec.fault, "target": own.spec.target, "phase": status.phase,
            "message": status.message, "since": own.metadata.creation_timestamp,
        })
    });
    let faults: Vec<Value> = faults.collect();
    json!({ "faults": faults }).to_string()
}

/// Quotes a target for a shell.
fn quoted(target: &str) -> String {
    if target.contains('*') {
        format!("'{target}'")
    } else {
        target.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use mullion_api::fault::{IN_FORCE, SimulatedFaultSpec};

    use super::*;

    #[test]
    fn faults_in_force_are_a_table_and_none_is_a_sentence() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().expect("a time");
        let fault = |kind: FaultKind, target: &str, phase: &str, message: &str| {
            let mut object = SimulatedFault::new(
                "f",
                SimulatedFaultSpec {
                    fault: kind.as_str().to_owned(),
                    target: target.to_owned(),
                },
            );
            object.metadata.creation_timestamp =
                serde_json::from_value(json!("2026-01-01T00:50:00Z")).expect("a time");
            object.status = Some(SimulatedFaultStatus {
                phase: phase.to_owned(),
                message: message.to_owned(),
                ..SimulatedFaultStatus::default()
            });
            object
        };
        let all = [
            fault(
                FaultKind::ZoneOutage,
                "us-west-2a",
                IN_FORCE,
                "us-west-2a is down.",
            ),
            fault(FaultKind::Crash, "nobody", REFUSED, "nobody is no node"),
        ];
        let status = all[0].status.clone().expect("it has one");
        let shown = [
            table(&[], now),
            table(&all, now),
            caused(FaultKind::ZoneOutage, "us-west-2a", &status),
            known(FaultKind::Capacity, "*/*/spot", &status),
            json(&all),
        ];
        insta::assert_snapshot!(shown.join("\n\n"));
    }

    #[test]
    fn a_fault_that_ends_says_what_others_still_refuse() {
        let remaining = |kind: FaultKind, target: &str, is_whole: bool| Remaining {
            kind,
            target: target.to_owned(),
            is_whole,
        };
        let sold_out = remaining(FaultKind::Capacity, "m5.large/*/spot", false);
        let shifted = remaining(FaultKind::ZonalShift, "us-west-2a", true);
        let down = remaining(FaultKind::ZoneOutage, "us-west-2a", true);
        let crashed = remaining(FaultKind::Crash, "ip-10-0-0-1", false);
        let zone = "us-west-2a";
        let shown = [
            healed(FaultKind::ZoneOutage, zone, &[]),
            healed(FaultKind::ZoneOutage, zone, &[sold_out.clone(), crashed]),
            healed(FaultKind::ZoneOutage, zone, &[sold_out.clone(), shifted]),
            healed(FaultKind::ZonalShift, zone, std::slice::from_ref(&sold_out)),
            healed(FaultKind::ZonalShift, zone, std::slice::from_ref(&down)),
            healed(
                FaultKind::Capacity,
                "m5.large",
                std::slice::from_ref(&sold_out),
            ),
            healed(
                FaultKind::Capacity,
                "*/us-west-2a",
                std::slice::from_ref(&down),
            ),
            healed(FaultKind::Crash, "i-1", &[down]),
        ];
        assert_eq!(
            shown,
            [
                "us-west-2a is back: its instances start again, and others can be bought there.",
                "us-west-2a is back: its instances start again, and others can be bought there, but not all:\n  \
                 capacity m5.large/*/spot is in force: EC2 has no capacity for it\n  \
                 crash ip-10-0-0-1 is in force: the instance stays stopped",
                "us-west-2a is back: its instances start again, but no others are bought there:\n  \
                 capacity m5.large/*/spot is in force: EC2 has no capacity for it\n  \
                 zonal-shift us-west-2a is in force: nothing is bought in the zone",
                "The cluster is no longer shifted away from us-west-2a: within half a minute nodes can be bought there again, but not all:\n  \
                 capacity m5.large/*/spot is in force: EC2 has no capacity for it",
                "The cluster is no longer shifted away from us-west-2a, but no nodes can be bought there:\n  \
                 zone-outage us-west-2a is in force: the zone is down",
                "EC2 has capacity for m5.large again, but not all:\n  \
                 capacity m5.large/*/spot is in force: EC2 has no capacity for it",
                "The fault has ended, but */us-west-2a still cannot be bought:\n  \
                 zone-outage us-west-2a is in force: the zone is down",
                "i-1 does not start yet:\n  zone-outage us-west-2a is in force: the zone is down",
            ]
        );
    }
}
