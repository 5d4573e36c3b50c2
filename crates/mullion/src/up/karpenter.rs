//! The provisioner of an embedded cluster.

use std::sync::Arc;

use mullion_cloud::sim::SimulatedEc2;
use mullion_controllers::{
    Context,
    provisioner::{self, DecisionLog, Options, decision_log::DEFAULT_LINES},
    state::SharedState,
};

use super::plan::Plan;

/// Starts the controllers of nodes-on-demand over the simulated cloud; what they decide is in the returned log.
pub(super) fn start(
    context: &Context,
    state: &SharedState,
    ec2: &SimulatedEc2,
    plan: &Plan,
) -> DecisionLog {
    let log = DecisionLog::new(context.clock.clone(), DEFAULT_LINES);
    let options = Options {
        cluster: plan.spec.name.clone(),
        version: plan.spec.version,
        seed: 0,
        gates: plan.gates,
    };
    provisioner::start(context, state, Arc::new(ec2.clone()), log.clone(), options);
    log
}
