//! Values that begin with a minus and a digit, such as `-5s`. The parser would take them for flags and say that there is no flag `-5`.

use std::ffi::OsString;

use clap::{Command, CommandFactory};

use super::Cli;

/// Joins each value that begins with a minus and a digit to the flag before it, `--flag=-5s`, so that the flag says what it takes.
pub(super) fn join(args: Vec<OsString>) -> Vec<OsString> {
    if !args.iter().any(is_negative) {
        return args;
    }
    let known = Cli::command();
    let command = command_of(&known, &args).0;
    let mut joined: Vec<OsString> = Vec::new();
    let mut is_open = true;
    for arg in args {
        is_open &= arg != "--";
        match joined.last_mut() {
            Some(flag) if is_open && is_negative(&arg) && takes_a_value(command, flag) => {
                flag.push("=");
                flag.push(arg);
            }
            _ => joined.push(arg),
        }
    }
    joined
}

/// Returns the innermost command that the arguments name, and its path.
pub(super) fn command_of<'c>(known: &'c Command, args: &[OsString]) -> (&'c Command, Vec<&'c str>) {
    let (mut command, mut path) = (known, vec![known.get_name()]);
    for word in args.iter().skip(1) {
        match command.find_subcommand(word) {
            Some(sub) => {
                command = sub;
                path.push(sub.get_name());
            }
            None => break,
        }
    }
    (command, path)
}

fn is_negative(arg: &OsString) -> bool {
    let text = arg.to_str().and_then(|text| text.strip_prefix('-'));
    text.is_some_and(|text| text.starts_with(|first: char| first == '.' || first.is_ascii_digit()))
}

fn takes_a_value(command: &Command, flag: &OsString) -> bool {
    let Some(name) = flag.to_str().and_then(|text| text.strip_prefix("--")) else {
        return false;
    };
    let mut own = command.get_arguments();
    own.any(|own| own.get_long() == Some(name) && own.get_action().takes_values())
}
