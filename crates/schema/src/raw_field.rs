//! Which part of an object a write neither changes nor parses as a whole: kinds declare it, the store acts on it.

/// The parts of a raw field that are parsed: all scalar fields, and the fields named here.
#[derive(Debug)]
pub struct ParsedParts {
    /// Structured fields that are parsed as a whole.
    pub whole: &'static [&'static str],
    /// Lists of objects that are parsed in part, each with the parts of its items.
    pub lists: &'static [(&'static str, &'static ParsedParts)],
}

/// The field of a kind's objects that status writes and similar writes neither change nor parse as a whole.
#[derive(Debug)]
pub struct RawField {
    /// The name of the field.
    pub field: &'static str,
    /// The parts of the field that are parsed.
    pub parts: ParsedParts,
}
