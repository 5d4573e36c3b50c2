//! The only place that writes to the terminal. A closed stdout (`mullion up | head -1`) is not an error worth dying for.

use std::io::{IsTerminal, Write};

use crate::failure::Failure;

/// Prints a line of data.
pub(crate) fn line(text: &str) {
    // A reader that has gone away wants no more lines.
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Prints why the program ends, in red where a person reads it.
pub(crate) fn error(failure: &Failure) {
    let text = failure.to_string();
    let text = match colours_on(&std::io::stderr()) {
        true => text
            .replacen("error:", "\x1b[1;31merror:\x1b[0m", 1)
            .replacen("\nhint:", "\n\x1b[1;36mhint:\x1b[0m", 1),
        false => text,
    };
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Prints a remark that is not data.
pub(crate) fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "note:  {text}");
}

/// Whether stdout takes colours.
pub(crate) fn colours() -> bool {
    colours_on(&std::io::stdout())
}

/// Whether a person reads a stream on a terminal and has not asked for plain text.
pub(crate) fn colours_on(stream: &impl IsTerminal) -> bool {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    stream.is_terminal() && !plain
}
