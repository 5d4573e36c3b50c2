//! The spans of launches.

use jiff::Timestamp;
use mullion_api::karpenter::NodeClaim;
use mullion_cloud::{CloudError, FleetError, Launch};

use crate::{provisioner::KarpenterContext, traces::key};

/// Records an attempt to launch a claim that began at `began`, with as many options: what was bought, or why nothing was.
pub(super) fn launch(
    karpenter: &KarpenterContext,
    claim: &NodeClaim,
    began: Timestamp,
    options: usize,
    launched: &Result<Launch, CloudError>,
) {
    let Some(trace) = karpenter.base.traces.of_claim(claim) else {
        return;
    };
    let span = trace
        .step("launch", began, karpenter.base.clock.now())
        .with("mullion.options", options);
    let refused = |errors: &[FleetError]| -> Vec<String> {
        let option = |error: &FleetError| {
            let option = &error.option;
            format!(
                "{} {} {}: {}",
                option.instance_type,
                option.zone,
                option.capacity_type.as_str(),
                error.shortage.code()
            )
        };
        errors.iter().map(option).collect()
    };
    trace.record(match launched {
        Ok(launch) => {
            let instance = &launch.instance;
            span.with(key::INSTANCE, &*instance.id.0)
                .with(key::INSTANCE_TYPE, &*instance.instance_type.name)
                .with(key::ZONE, &*instance.zone)
                .with(key::CAPACITY_TYPE, instance.capacity_type.as_str())
                .with("mullion.refused", refused(&launch.refused))
        }
        Err(CloudError::InsufficientCapacity(errors)) => span
            .with("mullion.refused", refused(errors))
            .failed("no option has capacity"),
        Err(error) => span.failed(error.to_string()),
    });
}
