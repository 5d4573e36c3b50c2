//! Explains checks for `--explain ID` and for the tables of docs/doctor.md.

use super::table;
use crate::{check::explain::filled, failure::Failure};

/// Returns the explanation of a check.
///
/// # Errors
/// There is no such check.
pub(super) fn check(id: &str) -> Result<String, Failure> {
    let check = table::check(id).ok_or_else(|| {
        Failure::input(format!("there is no check {id}"))
            .hint("ids are such as DOC01; docs/doctor.md lists them all")
    })?;
    let topic = table::GROUPS
        .iter()
        .find(|group| group.checks.iter().any(|own| own.id == check.id))
        .map_or("", |group| group.title);
    Ok(format!(
        "{}  {}\n\n{}\n\ntopic   {topic}\nasks    {}\nfix     {}\nsource  {}",
        check.id,
        check.title,
        filled(check.explanation),
        check.asks,
        check.fix.description(),
        check.source
    ))
}

/// Returns the tables of all checks in Markdown.
#[cfg(test)]
pub(super) fn tables() -> String {
    let mut text = String::new();
    for group in &table::GROUPS {
        text += &format!(
            "## {}\n\n| id | checks | why | asks | fix |\n| --- | --- | --- | --- | --- |\n",
            group.title
        );
        for check in group.checks {
            text += &format!(
                "| {} | {} | {} [Source]({}) | {} | {} |\n",
                check.id,
                check.title,
                check.explanation,
                check.source,
                check.asks,
                check.fix.description()
            );
        }
        text.push('\n');
    }
    text.trim_end().to_owned() + "\n"
}
