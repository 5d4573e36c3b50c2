//! Formats the findings for programs: JSON, SARIF 2.1.0, and GitHub's workflow commands.

use serde_json::{Value, json};

use super::{
    session::{Outcome, Report},
    table::{self, Severity},
    text,
};

/// Returns one JSON object with all findings.
pub(super) fn json(outcome: &Outcome) -> String {
    let findings: Vec<Value> = outcome.reports.iter().map(of_report).collect();
    let mut answer = json!({"objects": outcome.objects, "findings": findings});
    if !outcome.unknown.is_empty() {
        let unknown = outcome.unknown.iter().map(|own| {
            json!({"apiVersion": own.api_version, "kind": own.kind, "objects": own.objects, "remark": own.remark()})
        });
        answer["unknownKinds"] = unknown.collect();
    }
    if !outcome.unread.is_empty() {
        answer["unread"] = json!(outcome.unread);
    }
    answer.to_string()
}

fn of_report(report: &Report) -> Value {
    let finding = &report.finding;
    let fix = finding
        .fix
        .as_ref()
        .map(|fix| json!({"safe": fix.safe, "text": text::edits(&fix.edits)}));
    json!({
        "id": finding.rule.id,
        "severity": finding.severity.label(),
        "object": report.object,
        "file": report.file,
        "source": report.origin,
        "line": report.line,
        "column": report.column,
        "path": finding.at.to_string(),
        "message": finding.problem.text(&finding.at),
        "help": finding.problem.advice(),
        "fix": fix,
    })
}

/// Returns a SARIF log with one run.
pub(super) fn sarif(outcome: &Outcome) -> String {
    let level = |severity: Severity| match severity {
        Severity::Error => "error",
        Severity::Warn => "warning",
        Severity::Info => "note",
    };
    let rules: Vec<Value> = table::all()
        .map(|rule| {
            json!({
                "id": rule.id,
                "shortDescription": {"text": rule.title},
                "fullDescription": {"text": rule.explanation},
                "helpUri": rule.source,
                "defaultConfiguration": {"level": level(rule.severity)},
            })
        })
        .collect();
    let results: Vec<Value> = outcome
        .reports
        .iter()
        .map(|report| {
            let finding = &report.finding;
            let index = table::all().position(|rule| rule.id == finding.rule.id);
            json!({
                "ruleId": finding.rule.id,
                "ruleIndex": index,
                "level": level(finding.severity),
                "message": {"text": format!("{}: {}", report.object, finding.problem.text(&finding.at))},
                "locations": [{
                    "physicalLocation": {
                        "artifactLocation": {"uri": file(report)},
                        "region": {"startLine": report.line.max(1), "startColumn": report.column.max(1)},
                    },
                    "logicalLocations": [{"fullyQualifiedName": format!("{}:{}", report.object, finding.at)}],
                }],
            })
        })
        .collect();
    let log = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {"name": "mullion check", "version": env!("CARGO_PKG_VERSION"), "rules": rules}},
            "results": results,
        }],
    });
    log.to_string()
}

/// Returns a workflow command for each finding, with which GitHub shows it at its place in the file.
pub(super) fn github(outcome: &Outcome) -> String {
    let lines = outcome.reports.iter().map(|report| {
        let finding = &report.finding;
        let command = match finding.severity {
            Severity::Error => "error",
            Severity::Warn => "warning",
            Severity::Info => "notice",
        };
        let place = match report.line {
            0 => String::new(),
            line => format!(
                "file={},line={line},col={},",
                property(file(report)),
                report.column
            ),
        };
        let message = format!("{}: {}", report.object, finding.problem.text(&finding.at));
        format!(
            "::{command} {place}title={}::{}",
            finding.rule.id,
            data(&message)
        )
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn file(report: &Report) -> &str {
    report
        .origin
        .as_deref()
        .filter(|_| report.file == "stdin")
        .unwrap_or(&report.file)
}

/// Escapes the text of a workflow command (actions/toolkit, core/command: escapeData).
fn data(text: &str) -> String {
    text.replace('%', "%25")
        .replace('\r', "%0D")
        .replace('\n', "%0A")
}

/// Escapes a property of a workflow command (actions/toolkit, core/command: escapeProperty).
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}
