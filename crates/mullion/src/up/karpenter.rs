//! The provisioner of an embedded cluster.

use std::sync::Arc;

use mullion_cloud::sim::SimulatedEc2;
use mullion_controllers::{
    Context,
    provisioner::{
        self, DecisionLog, KarpenterContext, Options, Settings, decision_log::DEFAULT_LINES,
    },
    state::SharedState,
};

use super::plan::Plan;

/// Starts the controllers of nodes-on-demand with the simulated cloud. The returned log has their decisions, and the context their metrics.
pub(super) fn start(
    context: &Context,
    state: &SharedState,
    ec2: &SimulatedEc2,
    plan: &Plan,
) -> (DecisionLog, KarpenterContext) {
    let log = DecisionLog::new(context.clock.clone(), DEFAULT_LINES);
    let options = Options {
        cluster: plan.spec.name.clone(),
        version: plan.spec.version,
        seed: 0,
        gates: plan.gates,
        settings: Settings {
            // Its only shifts are those that a user causes with `mullion fault`.
            zonal_shift: true,
            ..plan.settings
        },
    };
    let cloud = Arc::new(ec2.clone());
    let karpenter = provisioner::start(context, state, cloud, log.clone(), options);
    (log, karpenter)
}
