//! Formats the results for people: problems in full with their remedies, and one line for every other check.

use super::{
    Row,
    findings::{Findings, Outcome, Problem},
    snapshot::{Snapshot, name_of},
};
use crate::check::report::{broken, painted};

pub(super) use crate::check::report::counted;

/// The column at which the text of a row starts, after its result and ID.
const INDENT: usize = 20;

/// Returns the page. `width` is the number of columns of the terminal; without it, lines are not wrapped. `names_fix` is whether the last
/// line mentions `--fix`.
pub(super) fn page(
    snapshot: &Snapshot,
    rows: &[Row],
    names_fix: bool,
    colours: bool,
    width: Option<usize>,
) -> String {
    let mut lines = vec![head(snapshot, colours), String::new()];
    for row in rows {
        add(row, colours, width, &mut lines);
    }
    if lines.last().is_some_and(|line| !line.is_empty()) {
        lines.push(String::new());
    }
    lines.push(summary(rows, names_fix));
    if super::rows::is_simulated(snapshot) && rows.iter().any(names_aws) {
        let note = "The AWS account of this cluster is simulated: `--fix` or `kubectl edit simulatedaccount aws` changes it, the program aws would change a real one.";
        broken("", 0, note, width, &mut lines);
    }
    lines.join("\n")
}

/// Returns whether a row shows an `aws` command.
fn names_aws(row: &Row) -> bool {
    let problems = row.found.problems.iter();
    let is_aws = |text: &str| text.starts_with("aws ");
    problems.into_iter().any(|own| {
        own.changes.iter().any(|change| is_aws(&change.command()))
            || own.advice.iter().any(|text| is_aws(text.trim_start()))
    })
}

/// Returns the first line, which describes the cluster.
fn head(snapshot: &Snapshot, colours: bool) -> String {
    let mut parts = vec![painted(&snapshot.server, "1", colours)];
    parts.extend(
        snapshot
            .version
            .as_ref()
            .map(|version| format!("Kubernetes {version}")),
    );
    if let Ok(nodes) = snapshot.all("Node") {
        let windows = nodes.iter().filter(|node| super::rows::is_windows(node));
        let windows = windows.count();
        parts.push(format!(
            "{}, {windows} of them Windows",
            counted(nodes.len(), "node", "nodes")
        ));
    }
    parts.join("  ")
}

fn add(row: &Row, colours: bool, width: Option<usize>, lines: &mut Vec<String>) {
    let outcome = row.found.outcome();
    let colour = match outcome {
        Outcome::Ok => "32",
        Outcome::Failed => "31",
        Outcome::Warning => "33",
        Outcome::Unknown => "36",
        Outcome::NotNeeded => "2",
    };
    let word = painted(&format!("{:<10}", outcome.label()), colour, colours);
    let front = format!("{word}  {}  ", row.check.id);
    let is_bad = matches!(outcome, Outcome::Failed | Outcome::Warning);
    if !is_bad {
        broken(&front, INDENT, &calm(row, outcome), width, lines);
        return;
    }
    // Problems are surrounded by empty lines, because they are what the user must read.
    if lines.last().is_some_and(|line| !line.is_empty()) {
        lines.push(String::new());
    }
    lines.push(front + &painted(row.check.title, "1", colours));
    for problem in &row.found.problems {
        add_problem(problem, colours, width, lines);
    }
    if !row.found.missing.is_empty() {
        let front = " ".repeat(INDENT);
        let text = format!("The rest of the check {}.", missing(&row.found));
        broken(&front, INDENT, &text, width, lines);
    }
    lines.push(String::new());
}

/// Returns the line for a check without problems.
fn calm(row: &Row, outcome: Outcome) -> String {
    let (title, state) = (row.check.title, &row.found.state);
    match (outcome, state.as_str()) {
        (Outcome::Unknown, _) => format!("{title}: {}", missing(&row.found)),
        (_, "") => title.to_owned(),
        (_, state) => format!("{title}: {state}"),
    }
}

fn missing(found: &Findings) -> String {
    format!("needs {}", found.missing.join("; "))
}

fn add_problem(problem: &Problem, colours: bool, width: Option<usize>, lines: &mut Vec<String>) {
    let space = " ".repeat(INDENT);
    broken(&space, INDENT, &problem.text, width, lines);
    let mut label = "fix";
    let mut front = |lines: &mut Vec<String>, text: &str, whole: bool| {
        let front = format!(
            "{:12}{}  ",
            "",
            painted(&format!("{label:<6}"), "2", colours)
        );
        label = "";
        if whole {
            // Commands are not wrapped, so that they can be copied.
            lines.push(front + text)
        } else {
            broken(&front, INDENT, text, width, lines)
        }
    };
    for change in &problem.changes {
        front(lines, &change.command(), true);
    }
    for advice in &problem.advice {
        match advice.strip_prefix("  ") {
            Some(command) => front(lines, command, true),
            None => front(lines, advice, false),
        }
    }
}

/// Returns the last line: the number of results of each kind, and the next command.
fn summary(rows: &[Row], names_fix: bool) -> String {
    let count = |wanted| {
        let with = rows.iter().filter(|row| row.found.outcome() == wanted);
        with.count()
    };
    let kinds = [
        (count(Outcome::Failed), "failed", "failed"),
        (count(Outcome::Warning), "warning", "warnings"),
        (count(Outcome::Ok), "ok", "ok"),
        (count(Outcome::Unknown), "unknown", "unknown"),
        (count(Outcome::NotNeeded), "not needed", "not needed"),
    ];
    let kinds: Vec<_> = kinds
        .iter()
        .filter(|(count, ..)| *count > 0)
        .map(|(count, one, many)| counted(*count, one, many))
        .collect();
    let problems = rows.iter().flat_map(|row| &row.found.problems);
    let mendable = problems.filter(|own| !own.changes.is_empty()).count();
    let fix = match mendable {
        0 => String::new(),
        _ if !names_fix => String::new(),
        count => format!(" `mullion doctor --fix` mends {count}."),
    };
    format!("{}.{fix}", kinds.join(", "))
}

/// Returns the names of objects for a sentence: at most three, then how many more there are.
pub(super) fn names<'a>(objects: impl IntoIterator<Item = &'a serde_json::Value>) -> String {
    few(objects.into_iter().map(|object| name_of(object).to_owned()))
}

/// Returns words for a sentence: at most three, then how many more there are.
pub(super) fn few(words: impl IntoIterator<Item = String>) -> String {
    const SHOWN: usize = 3;
    let words: Vec<_> = words.into_iter().collect();
    match words.len().saturating_sub(SHOWN) {
        0 => words.join(", "),
        more => format!("{} and {more} more", words[..SHOWN].join(", ")),
    }
}
