//! Explains rules for `--explain ID` and for the tables of docs/check.md.

use super::table::{self, Rule};
use crate::failure::Failure;

/// Returns the explanation of a rule.
///
/// # Errors
/// There is no such rule.
pub(super) fn rule(id: &str) -> Result<String, Failure> {
    let rule = table::rule(id).ok_or_else(|| unknown(id))?;
    let Rule {
        id,
        severity,
        title,
        explanation,
        source,
        fix,
    } = rule;
    let group = table::GROUPS
        .iter()
        .find(|group| group.rules.iter().any(|own| own.id == *id));
    let topic = group.map_or("", |group| group.title);
    Ok(format!(
        "{id}  {severity}  {title}\n\n{}\n\ntopic   {topic}\nfix     {}\nsource  {source}",
        filled(explanation),
        fix.description()
    ))
}

/// Returns the failure for an ID that belongs to no rule.
pub(super) fn unknown(id: &str) -> Failure {
    Failure::input(format!("there is no rule {id}"))
        .hint("ids are such as MUL001; docs/check.md lists them all")
}

/// Wraps a text at 80 columns.
pub(crate) fn filled(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is one");
        match line.is_empty() {
            true => line.push_str(word),
            false if line.len() + 1 + word.len() > 80 => lines.push(word.to_owned()),
            false => {
                line.push(' ');
                line.push_str(word);
            }
        }
    }
    lines.join("\n")
}

/// Returns the tables of all rules in Markdown.
#[cfg(test)]
pub(super) fn tables() -> String {
    let mut text = String::new();
    for group in &table::GROUPS {
        text += &format!(
            "## {}\n\n| id | severity | finds | why | fix |\n| --- | --- | --- | --- | --- |\n",
            group.title
        );
        for rule in group.rules {
            text += &format!(
                "| {} | {} | {} | {} [Source]({}) | {} |\n",
                rule.id,
                rule.severity,
                rule.title,
                rule.explanation,
                rule.source,
                rule.fix.description()
            );
        }
        text.push('\n');
    }
    text.trim_end().to_owned() + "\n"
}
