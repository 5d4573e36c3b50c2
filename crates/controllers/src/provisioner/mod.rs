//! Nodes on demand: buys nodes for pods that fit nowhere, with Karpenter's API, words and timers.
//!
//! [`start`] runs the whole family of controllers over one [`KarpenterContext`]: the provisioner here, the life of a
//! bought node in [`crate::nodeclaim`], pools and classes in [`crate::nodepool`], removal in [`crate::disruption`],
//! the v1alpha5 kinds in [`crate::legacy`]. What to buy is the engine's decision ([`mullion_engine::provision`]);
//! what can be bought is the [`market`]'s.
//!
//! Invariant: level-triggered. Everything that must survive a restart is in NodeClaims and the cloud's tags.

pub mod batcher;
pub mod claim;
pub(crate) mod coming_pod;
pub mod conditions;
mod context;
pub mod decision_log;
pub(crate) mod demand;
pub mod discovered;
mod displaced;
mod full_subnets;
pub mod gates;
pub mod in_flight;
pub mod market;
pub mod markets;
pub mod metrics;
pub mod nominations;
mod order;
pub mod overhead;
pub mod pending;
mod pools;
mod refusal;
pub mod requirements;
pub(crate) mod reserved;
pub mod risk;
mod run;
mod settings;
pub mod template;
mod traced;
mod trials;
mod wake;

use std::sync::Arc;

use mullion_cloud::CloudProvider;

pub use batcher::Batcher;
pub use context::{BY_CLASS, BY_INSTANCE, BY_POOL, KarpenterContext, Options, is_managed};
pub use decision_log::DecisionLog;
pub use demand::{Answer, answer};
pub use gates::FeatureGates;
pub(crate) use order::{PROVISIONED, order};
pub use settings::Settings;

use crate::{
    Context, buffers, disruption, interruption, legacy, nodeclaim, nodepool, overlays,
    reservations, state::SharedState, static_pools, zonal_shift,
};

/// Starts all controllers of nodes-on-demand; they end with `context`. `state` is the scheduler's, so that what it has
/// decided counts before the API server shows it.
///
/// # Assumptions
/// The custom resources of [`mullion_api::crds`] are installed, or will be soon: watches are retried until they are.
pub fn start(
    context: &Context,
    state: &SharedState,
    cloud: Arc<dyn CloudProvider>,
    log: DecisionLog,
    options: Options,
) -> KarpenterContext {
    start_work(context, state, cloud, log, options, Work::ALL)
}

/// The parts of nodes-on-demand that a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Buys nodes and ends them, and keeps pools, classes and claims up to date.
    pub provisioning: bool,
    /// Decides which nodes are given back or replaced.
    pub disruption: bool,
}

impl Work {
    /// All of it.
    pub const ALL: Work = Work {
        provisioning: true,
        disruption: true,
    };
}

/// Starts only the controllers of `work`, as [`start`] starts all. Other processes may run the rest.
pub fn start_work(
    context: &Context,
    state: &SharedState,
    cloud: Arc<dyn CloudProvider>,
    log: DecisionLog,
    options: Options,
    work: Work,
) -> KarpenterContext {
    let karpenter = KarpenterContext::new(context, state, cloud, log, options);
    zonal_shift::start(&karpenter, work.provisioning);
    if work.disruption {
        disruption::start(&karpenter);
    }
    if !work.provisioning {
        // Decisions about nodes wait for both: what nodes turned out to have, and which overlays count.
        discovered::start(&karpenter);
        overlays::start(&karpenter);
        return karpenter;
    }
    discovered::start(&karpenter);
    metrics::watch(&karpenter);
    run::start(&karpenter);
    nodeclaim::start(&karpenter);
    overlays::start(&karpenter);
    buffers::start(&karpenter);
    nodepool::start(&karpenter);
    static_pools::start(&karpenter);
    interruption::start(&karpenter);
    reservations::start(&karpenter);
    legacy::start(&karpenter);
    karpenter
}
