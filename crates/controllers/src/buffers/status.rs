//! Computes the status of a CapacityBuffer. Pure.
//!
//! Invariant: two controllers write the status, each its own condition: the one that resolves the chunks, and the
//! provisioner, which knows where they are placed.

use jiff::Timestamp;
use mullion_api::capacity_buffer::{
    CapacityBuffer, CapacityBufferStatus, LocalObjectRef, condition,
};

use super::{
    origin::{Origin, Unresolved},
    size,
};
use crate::{
    nodepool::ignored_fields,
    provisioner::conditions::{Conditions, Status},
};

/// The reason of the condition `ReadyForProvisioning` while the gate is closed.
pub(super) const GATE_CLOSED: &str = "FeatureGateClosed";

/// The places that a plan has for the chunks of a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChunkPlacement {
    /// On nodes that are there or on their way.
    pub(crate) existing: usize,
    /// On nodes that are bought for them.
    pub(crate) bought: usize,
    /// Nowhere.
    pub(crate) unplaced: usize,
}

/// Returns the status after the origin of a buffer's chunks was resolved, with its result. No origin: the gate is
/// closed.
pub(super) fn resolved(
    buffer: &CapacityBuffer,
    origin: Option<&Result<Origin, Unresolved>>,
    now: Timestamp,
) -> CapacityBufferStatus {
    let (kind, spec) = (condition::READY_FOR_PROVISIONING, &buffer.spec);
    let mut status = buffer.status.clone().unwrap_or_default();
    let mut conditions = Conditions::new(&mut status.conditions, now, buffer.metadata.generation);
    let Some(origin) = origin else {
        let ignored = ignored_fields::of_capacity_buffer();
        let why = ignored.to_string();
        ignored_fields::set_condition(&mut conditions, &[ignored]);
        conditions.set(kind, Status::False, GATE_CLOSED, &why);
        conditions.clear(condition::PROVISIONING);
        (status.replicas, status.pod_template_ref) = (None, None);
        status.pod_template_generation = None;
        return status;
    };
    ignored_fields::set_condition(&mut conditions, &[]);
    match origin {
        Err(why) => {
            conditions.set(kind, Status::False, why.reason(), &why.to_string());
        }
        Ok(origin) => {
            let chunks = origin.count(buffer);
            let mut message = "Pod template resolved successfully".to_owned();
            if chunks > size::MOST {
                message += &format!("; of {chunks} chunks only {} are kept", size::MOST);
            }
            conditions.set(kind, Status::True, "Resolved", &message);
            status.replicas = Some(size::bounded(chunks));
            let template = origin.pod_template.as_ref();
            status.pod_template_ref =
                template.map(|(name, _)| LocalObjectRef { name: name.clone() });
            status.pod_template_generation = template.and_then(|(_, generation)| *generation);
        }
    }
    status
        .provisioning_strategy
        .clone_from(&spec.provisioning_strategy);
    status
}

/// Returns the status after a plan (karpenter: `computeProvisioningCondition`). `placed` is `None` if the plan had no
/// chunks of the buffer; the condition then changes only if the buffer is not ready or has no chunks.
pub(super) fn after_plan(
    buffer: &CapacityBuffer,
    placed: Option<&ChunkPlacement>,
    now: Timestamp,
) -> CapacityBufferStatus {
    let mut status = buffer.status.clone().unwrap_or_default();
    let replicas = usize::try_from(status.replicas.unwrap_or(0)).unwrap_or(0);
    let mut conditions = Conditions::new(&mut status.conditions, now, buffer.metadata.generation);
    let (state, reason, message) = if !conditions.is_true(condition::READY_FOR_PROVISIONING) {
        let message = "Buffer is not ReadyForProvisioning".to_owned();
        (Status::False, "NotReadyForProvisioning", message)
    } else if replicas == 0 {
        let message = "Buffer has zero desired replicas".to_owned();
        (Status::False, "BufferEmpty", message)
    } else {
        match placed {
            Some(own) if own.bought + own.unplaced > 0 => {
                let ChunkPlacement {
                    bought, unplaced, ..
                } = own;
                let message = format!(
                    "{bought}/{replicas} virtual pods required new capacity, {unplaced} failed"
                );
                (Status::False, "RequiresNewCapacity", message)
            }
            Some(own) if own.existing == replicas => {
                let message = format!("All {replicas} virtual pods fit on existing capacity");
                (Status::True, "FitsExistingCapacity", message)
            }
            // The plan knew another number of chunks; the next one will know this one.
            _ => return status,
        }
    };
    conditions.set(condition::PROVISIONING, state, reason, &message);
    status
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn buffer(spec: Value, status: CapacityBufferStatus) -> CapacityBuffer {
        let buffer = json!({
            "metadata": { "name": "b", "namespace": "shop", "generation": 4 }, "spec": spec
        });
        let buffer: CapacityBuffer = serde_json::from_value(buffer).expect("a buffer");
        CapacityBuffer {
            status: Some(status),
            ..buffer
        }
    }

    fn conditions(status: &CapacityBufferStatus) -> Vec<String> {
        let conditions = status.conditions.iter().map(|own| {
            format!(
                "{}={} {}: {}",
                own.type_, own.status, own.reason, own.message
            )
        });
        conditions.collect()
    }

    fn origin(replicas: Option<i32>) -> Origin {
        let template = json!({ "spec": { "containers": [
            { "name": "c", "resources": { "requests": { "cpu": "1" } } }
        ]}});
        Origin {
            template: serde_json::from_value(template).expect("a template"),
            pod_template: replicas.is_none().then(|| ("t".to_owned(), Some(3))),
            replicas,
        }
    }

    #[test]
    fn it_is_said_what_a_chunk_is_and_how_many_there_are() {
        let now = Timestamp::UNIX_EPOCH;
        let strategy = "buffer.x-k8s.io/active-capacity";
        let own = buffer(
            json!({ "replicas": 3, "provisioningStrategy": strategy }),
            CapacityBufferStatus::default(),
        );
        let status = resolved(&own, Some(&Ok(origin(None))), now);
        assert_eq!(
            conditions(&status),
            ["ReadyForProvisioning=True Resolved: Pod template resolved successfully"]
        );
        assert_eq!(status.replicas, Some(3));
        assert_eq!(status.provisioning_strategy.as_deref(), Some(strategy));
        let template = status
            .pod_template_ref
            .as_ref()
            .map(|own| own.name.as_str());
        assert_eq!(
            (template, status.pod_template_generation),
            (Some("t"), Some(3))
        );
        // Then by a workload.
        let own = buffer(json!({ "percentage": 50 }), status);
        let status = resolved(&own, Some(&Ok(origin(Some(4)))), now);
        assert_eq!(
            (status.replicas, &status.pod_template_ref),
            (Some(2), &None)
        );
        let lost = Err(Unresolved::NoWorkload {
            kind: "Deployment".to_owned(),
            name: "web".to_owned(),
        });
        let status = resolved(&buffer(json!({}), status), Some(&lost), now);
        assert_eq!(
            conditions(&status),
            ["ReadyForProvisioning=False ScalableRefNotFound: Deployment.apps \"web\" not found"]
        );
        let many = buffer(json!({ "replicas": 20_000 }), status);
        let status = resolved(&many, Some(&Ok(origin(None))), now);
        assert_eq!(status.replicas, Some(10_000));
        assert!(conditions(&status)[0].ends_with("; of 20000 chunks only 10000 are kept"));
        let status = resolved(&many, None, now);
        let why = "spec has no effect: no room is kept free, because the feature gate CapacityBuffer is off";
        assert_eq!(
            conditions(&status),
            [
                format!("FieldsIgnored=True NoEffect: {why}"),
                format!("ReadyForProvisioning=False FeatureGateClosed: {why}")
            ]
        );
        assert_eq!(status.replicas, None);
    }

    #[test]
    fn it_is_said_where_the_chunks_are_in_karpenters_words() {
        let now = Timestamp::UNIX_EPOCH;
        let with = |replicas: i32| {
            let own = buffer(
                json!({ "replicas": replicas }),
                CapacityBufferStatus::default(),
            );
            resolved(&own, Some(&Ok(origin(None))), now)
        };
        let said = |status: CapacityBufferStatus, own: Option<ChunkPlacement>| {
            let status = after_plan(&buffer(json!({}), status), own.as_ref(), now);
            conditions(&status)
                .into_iter()
                .find(|own| own.starts_with("Provisioning="))
        };
        let of = |existing, bought, unplaced| {
            Some(ChunkPlacement {
                existing,
                bought,
                unplaced,
            })
        };
        assert_eq!(
            said(with(3), of(3, 0, 0)).as_deref(),
            Some(
                "Provisioning=True FitsExistingCapacity: All 3 virtual pods fit on existing capacity"
            )
        );
        assert_eq!(
            said(with(3), of(0, 2, 1)).as_deref(),
            Some(
                "Provisioning=False RequiresNewCapacity: 2/3 virtual pods required new capacity, 1 failed"
            )
        );
        assert_eq!(
            said(with(0), None).as_deref(),
            Some("Provisioning=False BufferEmpty: Buffer has zero desired replicas")
        );
        assert_eq!(
            said(CapacityBufferStatus::default(), None).as_deref(),
            Some("Provisioning=False NotReadyForProvisioning: Buffer is not ReadyForProvisioning")
        );
        assert_eq!(said(with(3), None), None);
    }
}
