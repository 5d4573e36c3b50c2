//! The vocabulary of Mullion: the custom resources it serves and reads, the names it shares with
//! Kubernetes, Karpenter and EKS, and the eksctl file a cluster is described in.
//!
//! Invariant: this crate holds words, not behaviour. It knows no clock, no client and no engine.
//! Start at [`labels`] for names, [`karpenter`] for resources, [`eksctl`] for `--config` files and
//! [`crds`] for the manifests the API server installs.

// An `expect` says which invariant holds; tests may do without.
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
