//! Formats the results for programs: one JSON object.

use serde_json::{Value, json};

use super::{Row, findings::Problem, snapshot::Snapshot};

/// Returns one JSON object with all results.
pub(super) fn json(snapshot: &Snapshot, rows: &[Row]) -> String {
    object(snapshot, rows).to_string()
}

/// Returns the JSON object itself.
pub(super) fn object(snapshot: &Snapshot, rows: &[Row]) -> Value {
    let checks: Vec<Value> = rows.iter().map(of_row).collect();
    json!({
        "server": snapshot.server,
        "version": snapshot.version,
        "checks": checks,
    })
}

fn of_row(row: &Row) -> Value {
    let problems: Vec<_> = row.found.problems.iter().map(of_problem).collect();
    json!({
        "id": row.check.id,
        "title": row.check.title,
        "result": row.found.outcome().label(),
        "state": row.found.state,
        "needs": row.found.missing,
        "problems": problems,
    })
}

fn of_problem(problem: &Problem) -> Value {
    let commands: Vec<_> = problem
        .changes
        .iter()
        .map(super::change::Change::command)
        .collect();
    json!({
        "severity": if problem.fails { "failed" } else { "warning" },
        "message": problem.text,
        "fix": {
            "automatic": !problem.changes.is_empty(),
            "commands": commands,
            "advice": problem.advice,
        },
    })
}
