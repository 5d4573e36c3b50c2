//! Decides which changes of a Service concern its load balancer, and which events are recorded about them. Pure
//! (cloud-provider: `Controller.needsUpdate`).

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};

use super::wants_one;

/// The consequence of a Service's change for its load balancer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Update {
    /// Nothing is done.
    None,
    /// The load balancer is ensured again.
    Silent,
    /// The load balancer is ensured again, and an event with this reason and message is recorded.
    Recorded(&'static str, String),
}

/// Compares two versions of a Service and returns what the load balancer controller does about the difference.
pub(super) fn between(old: &Service, new: &Service) -> Update {
    let (wanted, wants) = (wants_one(old), wants_one(new));
    let (Some(was), Some(is)) = (&old.spec, &new.spec) else {
        return Update::None;
    };
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    // The order is cloud-provider's, because only the first difference is reported.
    if wanted != wants {
        return Update::Recorded("Type", transition(text(&was.type_), text(&is.type_)));
    }
    if !wants {
        return Update::None;
    }
    let ranges = |spec: &ServiceSpec| spec.load_balancer_source_ranges.clone().unwrap_or_default();
    if ranges(was) != ranges(is) {
        let list = |spec| format!("[{}]", ranges(spec).join(" "));
        return Update::Recorded("LoadBalancerSourceRanges", transition(list(was), list(is)));
    }
    if !ports(was).eq(ports(is))
        || was.session_affinity != is.session_affinity
        || was.session_affinity_config != is.session_affinity_config
    {
        return Update::Silent;
    }
    if text(&was.load_balancer_ip) != text(&is.load_balancer_ip) {
        let message = transition(text(&was.load_balancer_ip), text(&is.load_balancer_ip));
        return Update::Recorded("LoadbalancerIP", message);
    }
    let ips = |spec: &ServiceSpec| spec.external_ips.clone().unwrap_or_default();
    let (had, has) = (ips(was), ips(is));
    if had.len() != has.len() {
        let message = format!("Count: {} -> {}", had.len(), has.len());
        return Update::Recorded("ExternalIP", message);
    }
    if let Some((_, added)) = had.iter().zip(&has).find(|(had, has)| had != has) {
        return Update::Recorded("ExternalIP", format!("Added: {added}"));
    }
    // Clouds read settings from annotations, which no event can describe.
    if old.metadata.annotations != new.metadata.annotations {
        return Update::Silent;
    }
    if old.metadata.uid != new.metadata.uid {
        return Update::Recorded(
            "UID",
            transition(text(&old.metadata.uid), text(&new.metadata.uid)),
        );
    }
    let policy = |spec: &ServiceSpec| text(&spec.external_traffic_policy);
    if policy(was) != policy(is) {
        return Update::Recorded("ExternalTrafficPolicy", transition(policy(was), policy(is)));
    }
    let health = |spec: &ServiceSpec| spec.health_check_node_port.unwrap_or_default().to_string();
    if health(was) != health(is) {
        return Update::Recorded("HealthCheckNodePort", transition(health(was), health(is)));
    }
    Update::None
}

fn transition(was: String, is: String) -> String {
    format!("{was} -> {is}")
}

/// Returns the ports with only the fields that concern a load balancer: all but `appProtocol`.
fn ports(spec: &ServiceSpec) -> impl Iterator<Item = ServicePort> + '_ {
    spec.ports.iter().flatten().map(|port| ServicePort {
        app_protocol: None,
        ..port.clone()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(change: serde_json::Value) -> Service {
        let mut service = json!({
            "metadata": {"name": "web", "uid": "1"},
            "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "nodePort": 30080}]},
        });
        json_patch(&mut service, &change);
        serde_json::from_value(service).expect("a Service")
    }

    fn json_patch(target: &mut serde_json::Value, change: &serde_json::Value) {
        match (target, change) {
            (serde_json::Value::Object(target), serde_json::Value::Object(change)) => {
                for (key, value) in change {
                    json_patch(target.entry(key).or_insert(json!({})), value);
                }
            }
            (target, value) => *target = value.clone(),
        }
    }

    #[test]
    fn changes_are_told_in_upstreams_words() {
        let recorded = |reason, message: &str| Update::Recorded(reason, message.to_owned());
        let cases = [
            (json!({}), Update::None),
            (json!({"metadata": {"labels": {"a": "b"}}}), Update::None),
            (
                json!({"metadata": {"annotations": {"a": "b"}}}),
                Update::Silent,
            ),
            (
                json!({"spec": {"ports": [{"port": 81, "nodePort": 30080}]}}),
                Update::Silent,
            ),
            (
                json!({"spec": {"type": "ClusterIP"}}),
                recorded("Type", "LoadBalancer -> ClusterIP"),
            ),
            (
                json!({"spec": {"loadBalancerSourceRanges": ["10.0.0.0/8", "172.16.0.0/12"]}}),
                recorded(
                    "LoadBalancerSourceRanges",
                    "[] -> [10.0.0.0/8 172.16.0.0/12]",
                ),
            ),
            (
                json!({"spec": {"loadBalancerIP": "1.2.3.4"}}),
                recorded("LoadbalancerIP", " -> 1.2.3.4"),
            ),
            (
                json!({"spec": {"externalIPs": ["1.2.3.4"]}}),
                recorded("ExternalIP", "Count: 0 -> 1"),
            ),
            (
                json!({"spec": {"externalTrafficPolicy": "Local"}}),
                recorded("ExternalTrafficPolicy", " -> Local"),
            ),
            (
                json!({"spec": {"healthCheckNodePort": 31000}}),
                recorded("HealthCheckNodePort", "0 -> 31000"),
            ),
        ];
        for (change, expected) in cases {
            assert_eq!(
                between(&service(json!({})), &service(change.clone())),
                expected,
                "{change}"
            );
        }
    }
}
