//! A Kubernetes API server as a tower service.
//!
//! It serves the built-in kinds of [`kinds`] and any custom resource definition through one set of generic handlers, keeps objects in one
//! revisioned in-memory [`store`], and knows nothing of Mullion: no other crate of ours is imported here.
//!
//! A write goes `http` -> decode ([`schema`]) -> default ([`kinds`]) -> [`admission`] -> validate ([`kinds`]) -> store -> watchers.

pub mod admission;
pub mod field;
pub mod kinds;
pub mod quantity;
pub mod schema;
pub mod status;
pub mod validation;
