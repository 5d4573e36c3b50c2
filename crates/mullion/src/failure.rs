//! What a user is told when a command cannot do its work: one line that names the thing and the cause, a hint, an exit code.

use std::{
    fmt::{self, Display},
    io,
};

/// A failure that ends the program.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    hint: Option<String>,
    code: u8,
}

impl Failure {
    /// Wrong input or set-up: exit code 2.
    pub(crate) fn input(message: impl Display) -> Self {
        Failure {
            message: message.to_string(),
            hint: None,
            code: 2,
        }
    }

    /// The answer is no, or the work went wrong on the way: exit code 1.
    pub(crate) fn run(message: impl Display) -> Self {
        Failure {
            message: message.to_string(),
            hint: None,
            code: 1,
        }
    }

    /// Says first what it is about.
    pub(crate) fn about(mut self, what: impl Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// Adds to what is said of it.
    pub(crate) fn add(mut self, more: &str) -> Self {
        self.message += more;
        self
    }

    /// Adds what to do about it.
    pub(crate) fn hint(mut self, hint: impl Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// The process's exit code.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        if let Some(hint) = &self.hint {
            write!(f, "\nhint:  {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

/// What a YAML reader says first; the lines of the file that it shows after that are too many for a sentence.
pub(crate) fn first_line(error: &dyn Display) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.trim_start_matches("error: ").to_owned()
}

/// Words without the system's error number.
pub(crate) fn without_number(error: &dyn Display) -> String {
    let mut text = error.to_string();
    text.truncate(text.find(" (os error").unwrap_or(text.len()));
    text
}

/// Why a file cannot be read or written, in words without the system's error number.
pub(crate) fn file_error(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such file".to_owned(),
        io::ErrorKind::InvalidData => "it is not text".to_owned(),
        io::ErrorKind::IsADirectory => "it is a directory".to_owned(),
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            "a file stands where a directory is needed".to_owned()
        }
        io::ErrorKind::PermissionDenied => "you may not".to_owned(),
        io::ErrorKind::ReadOnlyFilesystem => "the file system is read-only".to_owned(),
        io::ErrorKind::StorageFull => "the file system is full".to_owned(),
        _ => without_number(error),
    }
}
