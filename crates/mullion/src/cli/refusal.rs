//! The words about a wrong command line: one line, and a hint.

use std::ffi::OsString;

use clap::{
    CommandFactory,
    error::{ContextKind, ContextValue, ErrorKind},
};

use super::{Cli, negative, values::duration};
use crate::failure::Failure;

/// Returns the failure for an error of the parser.
pub(super) fn refusal(error: &clap::Error, args: &[OsString]) -> Failure {
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    let mut message = first.trim_start_matches("error: ").to_owned();
    match (
        error.get(ContextKind::ValidValue),
        error.get(ContextKind::InvalidArg),
    ) {
        (Some(ContextValue::Strings(allowed)), _) if !allowed.is_empty() => {
            message += &format!(": it must be one of {}", allowed.join(", "));
        }
        (_, Some(ContextValue::Strings(missing))) => message += &format!(" {}", missing.join(", ")),
        // clap prints the conflicting flags on the following lines.
        _ if message.ends_with(':') => message += &after(first, &text),
        _ => {}
    }
    let suggested = [
        ContextKind::SuggestedArg,
        ContextKind::SuggestedSubcommand,
        ContextKind::SuggestedValue,
    ];
    let suggested = suggested.iter().find_map(|kind| match error.get(*kind)? {
        ContextValue::String(name) => Some(name.clone()),
        ContextValue::Strings(names) => names.first().cloned(),
        _ => None,
    });
    let help = help_command(args);
    let suggested = suggested.or_else(|| match error.get(ContextKind::InvalidArg)? {
        ContextValue::String(word) if error.kind() == ErrorKind::UnknownArgument => {
            misplaced(word, args)
        }
        _ => None,
    });
    let hint = match (suggested, error.kind()) {
        (Some(name), _) => format!("did you mean {name}? `{help}` lists what there is"),
        (None, ErrorKind::ArgumentConflict) if message.ends_with("multiple times") => {
            "give it once".to_owned()
        }
        (None, _) => format!("`{help}` says what can be given"),
    };
    Failure::input(message).hint(hint)
}

/// Joins the indented lines that follow the line `first` in a text.
fn after(first: &str, text: &str) -> String {
    let lines = text.lines().skip_while(|line| *line != first).skip(1);
    let lines = lines.take_while(|line| line.starts_with("  "));
    let names: Vec<_> = lines.map(str::trim).collect();
    format!(" {}", names.join(", "))
}

/// Returns the flag that a stray word of `up` was probably meant for: the time of `--wait`, or else the name of a cluster.
fn misplaced(word: &str, args: &[OsString]) -> Option<String> {
    if args.get(1)? != "up" || word.starts_with('-') {
        return None;
    }
    let place = args.iter().position(|own| own == word)?;
    if args[place - 1] == "--wait" && duration(word).is_ok() {
        Some(format!("--wait={word}"))
    } else {
        Some(format!("--name {word}"))
    }
}

/// Returns the help command for these arguments.
fn help_command(args: &[OsString]) -> String {
    let known = Cli::command();
    let (_, path) = negative::command_of(&known, args);
    format!("{} --help", path.join(" "))
}
