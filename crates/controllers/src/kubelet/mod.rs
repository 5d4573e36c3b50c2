//! Simulated kubelets for all nodes of the embedded cluster.
//!
//! The pure part consists of small state machines: [`pod`] (the life of one pod), [`host`] (one node), and [`node`]
//! (the reported node status). They use [`images`], [`pulls`], [`addresses`], [`pace`], [`annotations`] (by which a
//! pod controls its simulation) and [`config`] (ConfigMaps and Secrets). [`driver`] connects them to the API with
//! one task, one timer queue and one shared pod informer, however many nodes there are. [`machines`] reports the
//! cloud's instances to it. [`logs`] answers `kubectl logs`, with the variables from [`environment`], and [`usage`]
//! answers `kubectl top`.

pub mod addresses;
pub mod admit;
pub mod annotations;
pub mod config;
mod container;
pub mod driver;
mod environment;
pub mod host;
mod identity;
mod ids;
pub mod images;
pub mod logs;
pub mod machines;
mod memory;
pub mod node;
pub mod pace;
pub mod pod;
mod probes;
pub mod pulls;
mod restart;
mod status;
pub mod usage;
mod writer;

#[cfg(test)]
mod tests;
