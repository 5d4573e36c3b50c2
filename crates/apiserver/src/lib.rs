//! A Kubernetes API server as a tower service.
//!
//! It serves the built-in kinds of [`kinds`] and any custom resource definition through one set of generic handlers, keeps objects in one
//! revisioned in-memory [`store`], and knows nothing of Mullion: no other crate of ours is imported here.
//!
//! A write goes `http` -> `auth` -> decode ([`schema`]) -> default ([`kinds`]) -> [`admission`] -> validate ([`kinds`]) -> store -> watchers.

pub mod admission;
mod auth;
mod boot;
mod crd;
pub mod field;
pub mod http;
pub mod kinds;
mod listen;
mod openapi;
pub mod quantity;
pub mod registry;
pub mod schema;
mod server;
pub mod status;
pub mod store;
pub mod validation;

pub use auth::{
    key::{SigningKey, SigningKeyError},
    token_file::{StaticTokens, TokenFileError},
};
pub use listen::{Tls, TlsError};
pub use server::{ApiServer, Clock, Config};
pub use store::StoreError;
