//! The engine: which node for this pod, which node to buy, can this node go, and why. Pure: values in, values out.
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
//! - [`model`]: what callers say. [`Quantity`](model::Quantity) is exact.
//! - [`Cluster`]: the one mutable model. `add_node`, `set_pod`, `bind`, `remove_pod`, ... are its deltas;
//!   `checkpoint` and `rollback` make what-ifs cost what they change.
//! - [`schedule`]: [`Cluster::schedule`] gives a [`Decision`], [`Cluster::answer`] every node's word.
//! - [`preempt`]: [`Cluster::preempt`], what to evict for a pod that fits nowhere.
//! - [`Reason`], [`Plugin`], [`Refusal`]: closed enums; text by [`Cluster::message`] and its siblings in [`explain`].
//! - [`provision`]: [`Cluster::plan`], what to buy for pods that fit nowhere.
//! - [`profile`]: which filters and scorers are on, by scheduler name.
//! - [`disrupt`]: whether a node can go.
//! - [`remedy`]: [`Cluster::remedies`], the smallest change that would place a pod.
//! - [`scenario`]: the loads it is measured under.
//! - [`ip`]: the addresses of a Windows node's network interface.
//! - [`images`]: names of container images, and what they run on.
//! - [`windows`]: builds, and which image build runs on which host build.
//!
//! Architecture invariant: no clock, IO, async, threads or randomness of its own; maps are never seeded at random;
//! decisions do not depend on the order in which nodes and pods arrived.

// An `expect` says which invariant holds; tests may do without.
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
