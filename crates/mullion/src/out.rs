//! The only module that writes to the terminal. A closed stdout (`mullion up | head -1`) is not an error.

use std::io::{IsTerminal, Write};

use crate::failure::Failure;

/// Prints a line of data.
pub(crate) fn line(text: &str) {
    // An error means that the reader has closed the output and wants no more lines.
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Prints data as it is.
pub(crate) fn whole(text: &str) {
    // An error means that the reader has closed the output and wants no more of it.
    let _ = write!(std::io::stdout(), "{text}");
}

/// Prints a line that is not data.
pub(crate) fn aside(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Prints the reason why the program ends, in red on a terminal.
pub(crate) fn error(failure: &Failure) {
    let text = failure.to_string();
    let text = if colours_on(&std::io::stderr()) {
        text.replacen("error:", "\x1b[1;31merror:\x1b[0m", 1)
            .replacen("\nhint:", "\n\x1b[1;36mhint:\x1b[0m", 1)
    } else {
        text
    };
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Prints a note that is not data.
pub(crate) fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "note:  {text}");
}

/// Returns whether stdout may have colours.
pub(crate) fn colours() -> bool {
    colours_on(&std::io::stdout())
}

/// Returns whether a stream is a terminal and the user has not asked for plain text.
pub(crate) fn colours_on(stream: &impl IsTerminal) -> bool {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    stream.is_terminal() && !plain
}

/// Returns the number of columns of the terminal at stdout; `None` if it is not a terminal.
pub(crate) fn width() -> Option<usize> {
    width_of(&std::io::stdout())
}

/// Returns the number of columns of the terminal at stderr.
pub(crate) fn stderr_width() -> Option<usize> {
    width_of(&std::io::stderr())
}

fn width_of(stream: &(impl IsTerminal + Terminal)) -> Option<usize> {
    if !stream.is_terminal() {
        return None;
    }
    let told = std::env::var("COLUMNS").ok();
    let told = told.and_then(|columns| columns.parse().ok());
    told.or_else(|| window(stream))
        .filter(|columns| *columns > 0)
}

#[cfg(unix)]
use std::os::fd::AsFd as Terminal;

#[cfg(not(unix))]
use std::io::Write as Terminal;

#[cfg(unix)]
fn window(terminal: &impl Terminal) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(terminal).ok()?;
    Some(size.ws_col.into())
}

#[cfg(not(unix))]
fn window(_terminal: &impl Terminal) -> Option<usize> {
    None
}
