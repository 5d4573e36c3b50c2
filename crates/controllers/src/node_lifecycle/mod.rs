//! The node lifecycle controllers: handle nodes whose kubelet is silent, whose conditions are bad, or whose
//! instance is gone. They combine kube-controller-manager's node-lifecycle and taint-eviction controllers and the
//! cloud-controller-manager's node lifecycle controller.
//!
//! Pure are [`health`] (is the kubelet alive?), [`marks`] (which taints and labels follow?), [`zones`] (how fast
//! may pods be evicted?) and [`eviction`] (when does a NoExecute taint evict a pod?). `driver` connects the first
//! three to the API and `evictor` the last. `watch` provides the inputs, `writer` sends the writes, and `instances`
//! asks the cloud.

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
