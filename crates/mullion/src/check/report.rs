//! Formats the findings for people: grouped by object, one line each, with advice below.

use super::{
    session::{Outcome, Report},
    table::Severity,
    text,
};

/// The column at which the text of a finding starts, after line, severity and ID.
const INDENT: usize = 22;

/// Returns the page. `width` is the number of columns of the terminal; without it, lines are not wrapped.
pub(super) fn page(outcome: &Outcome, colours: bool, width: Option<usize>) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut last = None;
    for report in &outcome.reports {
        if last != Some(report.finding.object) {
            if last.is_some() {
                lines.push(String::new());
            }
            last = Some(report.finding.object);
            lines.push(head(report, colours));
        }
        finding(report, colours, width, &mut lines);
    }
    lines.join("\n")
}

fn head(report: &Report, colours: bool) -> String {
    let place = match (&report.origin, report.file.as_str()) {
        (Some(origin), "stdin") => origin.clone(),
        (Some(origin), file) => format!("{file} ({origin})"),
        (None, file) => file.to_owned(),
    };
    format!(
        "{}  {}",
        painted(&report.object, "1", colours),
        painted(&place, "2", colours)
    )
}

fn finding(report: &Report, colours: bool, width: Option<usize>, lines: &mut Vec<String>) {
    let finding = &report.finding;
    let colour = match finding.severity {
        Severity::Error => "31",
        Severity::Warn => "33",
        Severity::Info => "36",
    };
    let line = match report.line {
        0 => String::new(),
        line => line.to_string(),
    };
    let severity = painted(&format!("{:<5}", finding.severity.label()), colour, colours);
    let front = format!("{line:>5}  {severity}  {}  ", finding.rule.id);
    broken(
        &front,
        INDENT,
        &finding.problem.text(&finding.at),
        width,
        lines,
    );
    let (label, help) = match &finding.fix {
        Some(fix) if fix.safe => ("fix", text::edits(&fix.edits)),
        Some(fix) => ("unsafe", text::edits(&fix.edits)),
        None => match finding.problem.advice() {
            Some(advice) => ("help", advice),
            None => return,
        },
    };
    let front = format!(
        "{:14}{}  ",
        "",
        painted(&format!("{label:<6}"), "2", colours)
    );
    broken(&front, INDENT, &help, width, lines);
}

/// Adds `front` and a text after it, wrapped to `width`; all lines but the first are indented.
pub(crate) fn broken(
    front: &str,
    indent: usize,
    text: &str,
    width: Option<usize>,
    lines: &mut Vec<String>,
) {
    // However narrow the terminal is, text gets 30 columns.
    let room = width.map_or(usize::MAX, |width| width.saturating_sub(indent).max(30));
    let mut line = front.to_owned();
    let mut used = 0;
    for word in text.split(' ') {
        let count = word.chars().count();
        if used > 0 && used + 1 + count > room {
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
            used = 0;
        }
        if used > 0 {
            line.push(' ');
            used += 1;
        }
        line += word;
        used += count;
    }
    lines.push(line);
}

/// Returns the last line: the number of findings, and the next command.
pub(super) fn summary(outcome: &Outcome, asked: &str) -> String {
    let objects = counted(outcome.objects, "object", "objects");
    if outcome.reports.is_empty() {
        return format!("{objects}, no findings.");
    }
    let count = |severity| {
        outcome
            .reports
            .iter()
            .filter(|report| report.finding.severity == severity)
            .count()
    };
    let kinds = [
        (count(Severity::Error), "error", "errors"),
        (count(Severity::Warn), "warning", "warnings"),
        (count(Severity::Info), "remark", "remarks"),
    ];
    let kinds: Vec<_> = kinds
        .iter()
        .filter(|(count, ..)| *count > 0)
        .map(|(count, one, many)| counted(*count, one, many))
        .collect();
    let fixes = match (outcome.fixable(false), outcome.fixable(true)) {
        _ if asked.is_empty() => String::new(),
        (0, 0) => String::new(),
        (0, all) => format!(" `mullion check --fix --unsafe {asked}` writes {all}."),
        (safe, _) => format!(" `mullion check --fix {asked}` writes {safe}."),
    };
    format!("{} in {objects}.{fixes}", kinds.join(", "))
}

pub(crate) fn counted(count: usize, one: &str, many: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    }
}

pub(crate) fn painted(text: &str, code: &str, colours: bool) -> String {
    if colours {
        format!("\x1b[{code}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}
