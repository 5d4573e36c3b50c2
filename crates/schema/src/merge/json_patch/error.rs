//! The reasons why a JSON patch cannot be applied, with the messages of `gopkg.in/evanphx/json-patch.v4`.

use mullion_kube_text::golang::integer;

use super::{MAX_COPIED_BYTES, MAX_OPERATIONS};
use crate::decode::DecodeError;

/// The reason why a JSON patch cannot be applied.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum JsonPatchError {
    /// The patch has too many operations.
    #[error("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {0}")]
    TooMany(usize),
    /// An operation cannot be applied.
    #[error(transparent)]
    Inapplicable(#[from] Inapplicable),
    /// A `test` operation failed.
    #[error("testing value {0} failed: test failed")]
    TestFailed(String),
}

/// The reason why an operation cannot be applied.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Inapplicable {
    /// The operation is unknown.
    #[error("Unexpected kind: {0}")]
    Operation(String),
    /// A member of the operation is missing or has the wrong type.
    #[error("{operation} operation failed to decode {member}: {why}")]
    Member {
        /// The operation.
        operation: &'static str,
        /// The member.
        member: &'static str,
        /// What is wrong with the member.
        why: MemberError,
    },
    /// Nothing is where a path leads.
    #[error("{operation} operation does not apply: {absent}: {path}: missing value")]
    Absent {
        /// The operation.
        operation: &'static str,
        /// What is missing, in the library's words.
        absent: &'static str,
        /// The path, within quotes where the library sets them.
        path: String,
    },
    /// The last segment of a path does not suit its container.
    #[error("error in {operation} for {member}: '{path}': {why}")]
    Element {
        /// The operation.
        operation: &'static str,
        /// The member that has the path.
        member: &'static str,
        /// The path.
        path: String,
        /// What is wrong with the segment.
        why: ElementError,
    },
    /// The last segment of a path to copy to does not suit its container.
    #[error("error while adding value during copy: {0}")]
    CopiedElement(ElementError),
    /// The whole document would become a scalar.
    #[error("replace operation value must be object or array: %!w(<nil>)")]
    Scalar,
    /// Copies add too much, namely so many bytes.
    #[error(
        "Unable to complete the copy, the accumulated size increase of copy is {0}, exceeding the limit {MAX_COPIED_BYTES}"
    )]
    CopiesTooMuch(usize),
    /// The result is nested too deeply.
    #[error(transparent)]
    TooDeep(DecodeError),
}

/// What is wrong with a member of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberError {
    /// The member is missing or has the wrong type.
    #[error("missing value")]
    Unusable,
    /// There is no path.
    #[error("operation missing path field: missing value")]
    NoPath,
    /// There is no path to move or copy from.
    #[error("operation, missing from field: missing value")]
    NoSource,
    /// The member is not a string, but of this JSON type.
    #[error("json: cannot unmarshal {0} into Go value of type string")]
    NotAString(&'static str),
}

/// What is wrong with the last segment of a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ElementError {
    /// The segment is not an index.
    #[error("{}", integer::fault("Atoi", .0))]
    NotAnIndex(String),
    /// The segment is not an index where a value is added.
    #[error("value was not a proper array index: '{segment}': {}", integer::fault("Atoi", .segment))]
    NotAPlace {
        /// The segment.
        segment: String,
    },
    /// The list has no such index.
    #[error("Unable to access invalid index: {0}: invalid index referenced")]
    NoSuchIndex(i64),
    /// The object has no such member.
    #[error("Unable to remove nonexistent key: {0}: missing value")]
    NoSuchKey(String),
}
