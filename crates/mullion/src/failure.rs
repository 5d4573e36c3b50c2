//! The failure of a command as users see it: one line that names the object and the cause, a hint, and an exit code.

use std::{
    fmt::{self, Display},
    io,
};

/// The exit code of wrong input.
const REFUSED: u8 = 2;

/// A failure that ends the program.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    hint: Option<String>,
    code: u8,
}

impl Failure {
    /// Creates a failure because of wrong input or set-up, with exit code 2.
    pub(crate) fn input(message: impl Display) -> Self {
        Failure {
            message: message.to_string(),
            hint: None,
            code: REFUSED,
        }
    }

    /// Creates a failure because the answer is no or the work failed, with exit code 1.
    pub(crate) fn run(message: impl Display) -> Self {
        Failure {
            message: message.to_string(),
            hint: None,
            code: 1,
        }
    }

    /// Puts the object of the failure before the message.
    pub(crate) fn about(mut self, what: impl Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// Appends a text to the message.
    pub(crate) fn add(mut self, more: &str) -> Self {
        self.message += more;
        self
    }

    /// Adds a hint about what to do.
    pub(crate) fn hint(mut self, hint: impl Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// Returns one failure for several because of wrong input; `several` follows their number. Returns `None` if there are none.
    pub(crate) fn of_all(all: Vec<Failure>, several: &str) -> Option<Self> {
        let count = all.len();
        let mut all = all.into_iter();
        let first = all.next()?;
        if count == 1 {
            return Some(first);
        }
        let mut hint = first.hint;
        let mut message = format!("{count} {several}\n  {}", first.message);
        for failure in all {
            message += &format!("\n  {}", failure.message);
            hint = hint.or(failure.hint);
        }
        Some(Failure {
            message,
            hint,
            code: REFUSED,
        })
    }

    /// Returns the message without the hint.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Returns the hint about what to do.
    pub(crate) fn hinted(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Returns whether the input is wrong, as opposed to work that failed.
    pub(crate) fn is_of_input(&self) -> bool {
        self.code == REFUSED
    }

    /// Returns the process's exit code.
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

/// Returns the first line of a YAML parser's error. The lines of the file that follow are too many for a sentence.
pub(crate) fn first_line(error: &dyn Display) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.trim_start_matches("error: ").to_owned()
}

/// Returns the first line of the error for a text that must be one YAML document. It names the place in the text, and no function of the
/// parser.
pub(crate) fn document_error(error: &serde_saphyr::Error) -> String {
    match error.without_snippet() {
        serde_saphyr::Error::MultipleDocuments { location, .. } => format!(
            "line {}: another document begins after `---`, but the file must be one",
            location.line()
        ),
        _ => first_line(error),
    }
}

/// Returns an error's text without the system's error number.
pub(crate) fn without_number(error: &dyn Display) -> String {
    let mut text = error.to_string();
    text.truncate(text.find(" (os error").unwrap_or(text.len()));
    text
}

/// Describes why a file cannot be read or written, without the system's error number.
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
