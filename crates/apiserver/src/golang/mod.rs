//! Ports of parsers from Go's standard library, with their error messages, both of which clients can observe.

pub(crate) mod address;
pub(crate) mod csv;
pub(crate) mod duration;
pub(crate) mod number;
pub(crate) mod regexp;
pub(crate) mod semver;
pub(crate) mod url;
pub(crate) mod zone;
