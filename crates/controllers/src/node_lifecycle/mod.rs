//! The node lifecycle: what becomes of nodes whose kubelet is silent, whose conditions are bad, or whose instance is gone.
//!
//! [`health`] (is it alive?), [`marks`] (which taints and labels does that call for?), [`zones`] (how fast may pods be
//! evicted?) and [`eviction`] (when does a NoExecute taint make a pod go?) are pure. `driver` connects the first three to
//! the API and `evictor` the last; `watch` brings what they look at, `writer` writes, `instances` asks the cloud.
//! It is kube-controller-manager's node-lifecycle and taint-eviction controllers and the cloud's node lifecycle in one.

mod driver;
pub mod eviction;
mod evictor;
pub mod health;
mod instances;
pub mod marks;
mod watch;
mod writer;
pub mod zones;

pub use driver::start;
