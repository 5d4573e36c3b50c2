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
    let text = match std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
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
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}
