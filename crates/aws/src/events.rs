//! Parses EventBridge events about instances from the interruption queue (AWS provider: `pkg/controllers/interruption/messages`).

use jiff::Timestamp;
use mullion_cloud::{InstanceId, MessageKind};
use serde::Deserialize;

/// An event about instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The kind of the event.
    pub kind: MessageKind,
    /// The instances that it is about.
    pub instances: Vec<InstanceId>,
    /// The time of the event.
    pub at: Option<Timestamp>,
}

#[derive(Deserialize)]
struct Envelope {
    #[serde(default)]
    version: String,
    #[serde(default)]
    source: String,
    #[serde(rename = "detail-type", default)]
    detail_type: String,
    #[serde(default)]
    time: Option<Timestamp>,
    #[serde(default)]
    detail: Detail,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Detail {
    #[serde(rename = "instance-id")]
    instance_id: String,
    state: String,
    service: String,
    #[serde(rename = "eventTypeCategory")]
    category: String,
    #[serde(rename = "affectedEntities")]
    affected: Vec<Entity>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entity {
    #[serde(rename = "entityValue")]
    value: String,
}

/// Parses the body of a message. Returns `None` for events that need no action.
pub fn read(body: &str) -> Option<Event> {
    let Envelope {
        version,
        source,
        detail_type,
        time,
        detail,
    } = serde_json::from_str(body).ok()?;
    // Other versions may mean something else by the same fields.
    if version != "0" {
        return None;
    }
    let kind = match (source.as_str(), detail_type.as_str()) {
        ("aws.ec2", "EC2 Spot Instance Interruption Warning") => MessageKind::SpotInterruption,
        ("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning") => {
            MessageKind::ReservationInterruption
        }
        ("aws.ec2", "EC2 Instance Rebalance Recommendation") => {
            MessageKind::RebalanceRecommendation
        }
        ("aws.ec2", "EC2 Instance State-change Notification") => {
            match detail.state.to_ascii_lowercase().as_str() {
                "stopping" | "stopped" => MessageKind::InstanceStopped,
                "shutting-down" | "terminated" => MessageKind::InstanceTerminated,
                _ => return None,
            }
        }
        ("aws.health", "AWS Health Event")
            if detail.service == "EC2" && detail.category == "scheduledChange" =>
        {
            MessageKind::ScheduledChange
        }
        _ => return None,
    };
    let ids: Vec<String> = match kind {
        MessageKind::ScheduledChange => detail.affected.into_iter().map(|own| own.value).collect(),
        _ => vec![detail.instance_id],
    };
    let instances: Vec<_> = ids
        .into_iter()
        // Health events may be about volumes and other resources as well.
        .filter(|id| id.starts_with("i-"))
        .map(|id| InstanceId(id.into()))
        .collect();
    (!instances.is_empty()).then_some(Event {
        kind,
        instances,
        at: time,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kind(source: &str, detail_type: &str, detail: serde_json::Value) -> Option<MessageKind> {
        let body = json!({
            "version": "0", "source": source, "detail-type": detail_type, "time": "2026-01-01T00:00:00Z",
            "account": "111122223333", "region": "us-west-2", "resources": [], "detail": detail,
        });
        read(&body.to_string()).map(|event| event.kind)
    }

    #[test]
    fn events_about_instances_are_read() {
        let id = || json!({ "instance-id": "i-1", "instance-action": "terminate" });
        let spot = kind("aws.ec2", "EC2 Spot Instance Interruption Warning", id());
        assert_eq!(spot, Some(MessageKind::SpotInterruption));
        let reserved = "EC2 Capacity Reservation Instance Interruption Warning";
        let reserved = kind("aws.ec2", reserved, id());
        assert_eq!(reserved, Some(MessageKind::ReservationInterruption));
        let rebalance = kind("aws.ec2", "EC2 Instance Rebalance Recommendation", id());
        assert_eq!(rebalance, Some(MessageKind::RebalanceRecommendation));
        let state = |state: &str| {
            let detail = json!({ "instance-id": "i-1", "state": state });
            kind("aws.ec2", "EC2 Instance State-change Notification", detail)
        };
        assert_eq!(state("stopping"), Some(MessageKind::InstanceStopped));
        assert_eq!(state("terminated"), Some(MessageKind::InstanceTerminated));
        assert_eq!(state("running"), None);
    }

    #[test]
    fn maintenance_may_be_ahead_of_several_instances() {
        let health = |service: &str| {
            let detail = json!({
                "service": service, "eventTypeCategory": "scheduledChange",
                "affectedEntities": [{ "entityValue": "i-1" }, { "entityValue": "i-2" }],
            });
            let body = json!({
                "version": "0", "source": "aws.health", "detail-type": "AWS Health Event", "detail": detail,
            });
            read(&body.to_string())
        };
        let event = health("EC2").expect("maintenance");
        assert_eq!(event.kind, MessageKind::ScheduledChange);
        assert_eq!(event.instances.len(), 2);
        assert_eq!(health("RDS"), None);
    }

    #[test]
    fn what_nobody_acts_on_is_nothing() {
        assert_eq!(read("hello"), None);
        assert_eq!(read("{}"), None);
        let detail = json!({ "instance-id": "i-1" });
        assert_eq!(kind("aws.s3", "Object Created", detail), None);
    }
}
