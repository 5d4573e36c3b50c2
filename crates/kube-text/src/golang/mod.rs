//! Ports of parsers from Go's standard library, with their error messages, both of which clients can observe.

pub mod address;
pub mod csv;
pub mod duration;
pub mod integer;
pub mod number;
mod quoting;
pub mod regexp;
pub mod semver;
pub mod url;
pub mod zone;

pub use quoting::{is_printable, quote, quote_all};
