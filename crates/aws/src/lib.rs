//! Mullion's cloud over the AWS SDK for Rust: the traits of `mullion-cloud` as calls of EC2, SSM, SQS, Pricing, IAM and EKS.
//!
//! What is written and read without the SDK is here always: [`bootstrap`] writes user data, [`events`] reads the interruption queue, [`prices`]
//! keeps prices, [`image_names`] knows where images are found, [`codes`] knows what error codes mean, [`batch`] and [`limits`] make calls fewer. `Aws`, which makes the calls, needs the
//! feature `sdk`, because the SDK's EC2 crate takes minutes to compile.
//!
//! Invariant: nothing here speaks to Kubernetes; what machines have to know of their cluster is handed in ([`bootstrap::ClusterFacts`]).

// An `expect` says which invariant holds; tests may do without.
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

pub mod batch;
pub mod bootstrap;
pub mod codes;
pub mod events;
pub mod image_names;
pub mod limits;
pub mod prices;
#[cfg(feature = "sdk")]
mod sdk;

#[cfg(feature = "sdk")]
pub use sdk::{Aws, ConnectError, Settings, sdk_config};
