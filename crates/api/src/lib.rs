//! The vocabulary of Mullion: the custom resources that it serves and reads, the names that it shares with Kubernetes, Karpenter and EKS,
//! and eksctl's configuration file for a cluster.
//!
//! Invariant: this crate has types and names but no behaviour; it uses no clock, client or engine. Start at [`labels`] for names,
//! [`karpenter`] for resources, [`eksctl`] for `--config` files and [`crds`] for the manifests that the API server installs.

// An `expect` names the invariant that holds; tests may use `unwrap`.
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

pub mod account;
pub mod ami;
pub mod capacity_buffer;
pub mod crds;
pub mod eksctl;
pub mod fault;
pub mod karpenter;
pub mod labels;
pub mod vpc_resources;
