//! The scheduling engine: chooses nodes for pods, plans which nodes to buy and which to remove, and explains its
//! decisions. It is pure: values in, values out.
//!
//! ```
//! use mullion_engine::{Cluster, Decision, Options};
//! use mullion_engine::model::{NodeSpec, PodSpec, PodTemplate, Quantity};
//!
//! let mut cluster = Cluster::new(Options::default());
//! let mut node = NodeSpec::named("n1");
//! node.allocatable.insert("pods".into(), Quantity::from_units(110));
//! let id = cluster.add_node(&node)?;
//! let class = cluster.pod_class(&PodTemplate::default())?;
//! assert_eq!(cluster.schedule(class, 0), Decision::Node(id));
//! cluster.bind(&PodSpec { name: "web".into(), ..PodSpec::default() }, "n1")?;
//! # Ok::<(), mullion_engine::ModelError>(())
//! ```
//!
//! The map:
//! - [`model`]: the input types. [`Quantity`](model::Quantity) is exact.
//! - [`Cluster`]: the one mutable model. `add_node`, `set_pod`, `bind`, `remove_pod`, ... are its deltas; with
//!   `checkpoint` and `rollback` a what-if question costs only what it changes.
//! - [`schedule`]: [`Cluster::schedule`] returns a [`Decision`], [`Cluster::answer`] the verdict of every node.
//! - [`preempt`]: [`Cluster::preempt`] finds pods to evict for a pod that fits nowhere.
//! - [`Reason`], [`Plugin`], [`Refusal`]: closed enums; [`Cluster::message`] and the other functions of [`explain`]
//!   turn them into text.
//! - [`provision`]: [`Cluster::plan`] decides what to buy for pods that fit nowhere.
//! - [`profile`]: which filters and scorers are on, by scheduler name.
//! - [`disrupt`]: whether a node can be removed.
//! - [`remedy`]: [`Cluster::remedies`] finds the smallest change that would place a pod.
//! - [`scenario`]: the workloads that benchmarks use.
//! - [`ip`]: the addresses of a Windows node's network interface.
//! - [`images`]: names of container images and the platforms that they run on.
//! - [`windows`]: Windows builds, and which image build runs on which host build.
//!
//! Architecture invariant: the engine has no clock, I/O, async, threads or randomness of its own. Its maps have no
//! random seeds, and decisions do not depend on the order in which nodes and pods were added.

// In production code an `expect` states the invariant that makes it safe; tests may use `unwrap`.
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod amounts;
mod class;
mod cluster;
mod devices;
pub mod disrupt;
mod error;
pub mod explain;
mod filter;
pub mod images;
mod intern;
pub mod ip;
mod labels;
pub mod model;
pub mod preempt;
pub mod profile;
pub mod provision;
mod quantity;
mod reason;
pub mod remedy;
mod resources;
pub mod scenario;
pub mod schedule;
mod score;
mod selector;
mod storage;
mod tie;
mod topology;
pub mod windows;

pub use class::PodClassId;
pub use cluster::{Checkpoint, Cluster, NodeId, Options, VolumeChoices};
pub use devices::ClaimConflict;
pub use error::ModelError;
pub use intern::Symbol;
pub use profile::Profile;
pub use reason::{Conflict, LabelMismatch, Plugin, Reason, Refusal, Tally, Veto};
pub use schedule::{Answer, Claims, Decision, NodeAnswer, Outcome, Unschedulable};
