//! Mullion's cloud on the AWS SDK for Rust: implements the traits of `mullion-cloud` with calls of EC2, SSM, SQS, Pricing, IAM and EKS.
//!
//! The modules that need no SDK are always compiled: [`bootstrap`] writes user data, [`events`] parses the interruption queue's messages,
//! [`prices`] stores prices, [`image_names`] finds images, [`codes`] interprets error codes, and [`batch`] and [`limits`] reduce the number
//! of calls. `Aws`, which makes the calls, needs the feature `sdk`, because the SDK's EC2 crate takes minutes to compile.
//!
//! Invariant: nothing here uses Kubernetes' API; callers pass the facts about the cluster that machines need ([`bootstrap::ClusterFacts`]).

// An `expect` names the invariant that holds; tests may use `unwrap`.
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
