//! Formats the output of `mullion fault`.

use jiff::Timestamp;
use mullion_api::fault::{FaultKind, REFUSED, SimulatedFault, SimulatedFaultStatus};
use serde_json::{Value, json};

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

/// Describes the effect of ending a fault.
pub(super) fn healed(kind: FaultKind, target: &str) -> String {
    match kind {
        FaultKind::SpotInterruption => format!(
            "EC2 does not take {target} back. A NodeClaim that is being deleted already stays so."
        ),
        FaultKind::Rebalance => format!("{target} is no longer at risk."),
        FaultKind::Crash => {
            format!("{target} starts again; `kubectl get nodes` shows when it is ready.")
        }
        FaultKind::ZoneOutage => {
            format!("{target} is back: its instances start again, and others can be bought there.")
        }
        FaultKind::ZonalShift => format!(
            "The cluster is no longer shifted away from {target}: within half a minute nodes can be bought there again."
        ),
        FaultKind::Capacity => format!("EC2 has capacity for {target} again."),
        FaultKind::NewImage => format!(
            "The image before is the newest of {target} again. Nodes of the newer one drift within a minute."
        ),
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
}
