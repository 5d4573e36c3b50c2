//! Ports of parsers from Go's standard library, with their error messages, both of which clients can observe.

pub(crate) mod address;
pub(crate) mod csv;
pub(crate) mod duration;
pub(crate) mod integer;
pub(crate) mod number;
mod quoting;
pub(crate) mod regexp;
pub(crate) mod semver;
pub(crate) mod url;
pub(crate) mod zone;

pub(crate) use quoting::{is_printable, quote};
