//! A Kubernetes API server as a tower service.
//!
//! It serves the built-in kinds of [`mullion_kinds`] and any CustomResourceDefinition through one set of generic handlers, and stores objects in
//! [`mullion_store`]. Of Mullion it imports the layers below it alone.
//!
//! In a Rust program it is a [`kube::Client`](https://docs.rs/kube) without a socket:
//!
//! ```
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use kube::{Api, Client, api::PostParams};
//! use mullion_apiserver::{ApiServer, Config, admission::User};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), kube::Error> {
//! let server = ApiServer::new(Config::default());
//! let client = Client::new(server.router_as(User::administrator()), "default");
//!
//! let maps: Api<ConfigMap> = Api::default_namespaced(client);
//! let map = ConfigMap {
//!     metadata: kube::core::ObjectMeta { name: Some("settings".into()), ..Default::default() },
//!     ..Default::default()
//! };
//! let created = maps.create(&PostParams::default(), &map).await?;
//! assert!(created.metadata.uid.is_some());
//! assert_eq!(maps.list(&Default::default()).await?.items.len(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! This server has no controller that creates service accounts, without which pods are refused. Tests that create pods disable that
//! check, as envtest does:
//!
//! ```
//! # use mullion_apiserver::{ApiServer, Config};
//! let server = ApiServer::new(Config {
//!     disabled_admission: "ServiceAccount".parse()?,
//!     ..Config::default()
//! });
//! # Ok::<(), mullion_apiserver::admission::UnknownPlugin>(())
//! ```
//!
//! [`ApiServer::serve`] serves it on a socket, [`ApiServer::open`] stores it in a directory.
//!
//! A write passes `http`, `auth`, decoding ([`mullion_schema`]), defaulting ([`mullion_kinds`]), [`admission`], validation ([`mullion_kinds`]), the store, and
//! then the watchers.

// Each `expect` names the invariant that holds; tests may use `unwrap`.
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

pub mod admission;
mod aggregation;
mod auth;
mod boot;
mod client_authority;
mod config;
mod connections;
mod crd;
mod definitions;
mod flow_schemas;
mod flows;
#[cfg(test)]
mod growth;
mod http;
mod limits;
mod listen;
pub mod logs;
mod metrics;
mod object;
mod openapi;
mod own;
mod policy_types;
pub mod provided;
pub mod registry;
mod request;
mod server;
mod service_range;
mod state;
mod token_tracking;
pub mod trial;
mod version_order;

pub use auth::{
    key::{SigningKey, SigningKeyError},
    public_key::{KeyFileError, TokenKeys},
    token_file::{StaticTokens, TokenFileError},
};
pub use config::{Clock, Config, MetricsSource};
pub use limits::{ConnectionLimits, Limits};
pub use listen::{Tls, TlsError};
pub use mullion_kinds::{InvalidRange, ServiceRange};
pub use mullion_kube_text::status;
pub use state::ApiServer;
