//! Simulated kubelets: every node of the embedded cluster, in one structure.
//!
//! The pure part is small machines that can be read one by one: [`pod`] (one pod's life), [`host`] (one node), [`node`]
//! (what a node reports), with what they rest on: [`images`], [`pulls`], [`addresses`], [`pace`], [`annotations`] (what
//! a pod may ask of its simulation), [`config`] (what it takes from ConfigMaps and Secrets). [`driver`] connects them to the API: one task, one timer queue, one shared pod
//! informer, however many nodes there are. [`machines`] brings it the cloud's instances; [`logs`]
//! answers `kubectl logs` (with the variables of [`environment`]), [`usage`] `kubectl top`.

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
