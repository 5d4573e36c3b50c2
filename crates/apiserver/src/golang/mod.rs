//! Texts as Go's standard library reads them, with its words for what it refuses: clients see both.

pub(crate) mod address;
pub(crate) mod csv;
pub(crate) mod duration;
pub(crate) mod number;
pub(crate) mod regexp;
pub(crate) mod semver;
pub(crate) mod url;
pub(crate) mod zone;
