//! Files that flags name: `-` is stdin, and is called so in messages.

use std::{io::Read, path::Path};

use crate::failure::{Failure, file_error};

/// Returns how a file is called in messages.
pub(crate) fn named(path: &Path) -> String {
    match is_stdin(path) {
        true => "stdin".to_owned(),
        false => path.display().to_string(),
    }
}

/// Whether a flag names stdin.
pub(crate) fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Reads the text of a file, or of stdin to its end.
///
/// # Errors
/// It cannot be read, or is not text.
pub(crate) fn text_of(path: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let read = match is_stdin(path) {
        true => std::io::stdin().read_to_string(&mut text).map(drop),
        false => std::fs::read_to_string(path).map(|read| text = read),
    };
    let refuse = |error| {
        let why = file_error(&error);
        Failure::input(format!("{} cannot be read: {why}", named(path)))
    };
    read.map(|()| text).map_err(refuse)
}
