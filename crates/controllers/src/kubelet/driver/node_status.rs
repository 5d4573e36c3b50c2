//! Computes the part of a node's status that a kubelet writes: the fields that differ from what it knows, whoever
//! wrote them (kubelet: the setters in pkg/kubelet/nodestatus, and `nodeStatusHasChanged`).
//!
//! Invariant: fields of other clients are not touched (conditions of other types, capacity of other resources, attached
//! volumes), and a different heartbeat time alone is not a difference.

use k8s_openapi::api::core::v1::{NodeCondition, NodeStatus};
use mullion_engine::model::Quantity;
use serde_json::{Map, Value, json};

/// The fields that only the kubelet writes. Conditions and resources are not among them.
const OWN: [&str; 7] = [
    "addresses",
    "daemonEndpoints",
    "declaredFeatures",
    "features",
    "images",
    "nodeInfo",
    "runtimeHandlers",
];
const TIME: &str = "lastHeartbeatTime";

/// Returns the strategic merge patch that turns `stored` into `wanted`, without conditions that differ only by
/// their heartbeat time.
pub(super) fn difference(stored: &NodeStatus, wanted: &NodeStatus) -> Map<String, Value> {
    let conditions = [stored, wanted].map(|status| status.conditions.as_deref().unwrap_or(&[]));
    let [stored, mut wanted] = [stored, wanted].map(|status| {
        // A status is plain data, which JSON can always express.
        let mut value = serde_json::to_value(status).unwrap_or_default();
        prune(&mut value);
        value
    });
    // Device plugins and the VPC resource controller write extended resources, which the kubelet must not
    // remove.
    adopt_resources(&stored, &mut wanted);
    let mut patch = Map::new();
    for field in OWN {
        if stored[field] == wanted[field] {
            continue;
        }
        let mut value = wanted[field].take();
        match &mut value {
            // Addresses are merged by type, but one type may occur twice, so the list is replaced.
            Value::Array(items) if field == "addresses" => {
                items.insert(0, json!({"$patch": "replace"}));
            }
            Value::Object(fields) => {
                let gone = stored[field].as_object().into_iter().flatten();
                for (name, _) in gone {
                    fields.entry(name.as_str()).or_insert(Value::Null);
                }
            }
            _ => {}
        }
        patch.insert(field.to_owned(), value);
    }
    for field in ["capacity", "allocatable"] {
        let amounts = differing_amounts(&stored[field], &wanted[field], field == "allocatable");
        if !amounts.is_empty() {
            patch.insert(field.to_owned(), Value::Object(amounts));
        }
    }
    let [stored, wanted] = conditions;
    if wanted
        .iter()
        // All conditions are sent when one turned: their heartbeats are renewed with the same write.
        .any(|condition| turned(stored, condition, is_same))
    {
        patch.insert("conditions".to_owned(), json!(wanted));
    }
    patch
}

/// Returns the conditions whose status differs from the stored one.
pub(super) fn turns<'a>(
    stored: &NodeStatus,
    wanted: &'a NodeStatus,
) -> impl Iterator<Item = &'a NodeCondition> {
    let stored = stored.conditions.clone().unwrap_or_default();
    let same_status = |one: &NodeCondition, other: &NodeCondition| one.status == other.status;
    let wanted = wanted.conditions.iter().flatten();
    wanted.filter(move |condition| turned(&stored, condition, same_status))
}

fn turned(
    stored: &[NodeCondition],
    wanted: &NodeCondition,
    is_same: impl Fn(&NodeCondition, &NodeCondition) -> bool,
) -> bool {
    let mut stored = stored.iter();
    let stored = stored.find(|condition| condition.type_ == wanted.type_);
    !stored.is_some_and(|stored| is_same(stored, wanted))
}

fn is_same(stored: &NodeCondition, wanted: &NodeCondition) -> bool {
    let without_times = |condition: &NodeCondition| {
        let mut value = serde_json::to_value(condition).unwrap_or_default();
        value.as_object_mut().and_then(|fields| fields.remove(TIME));
        prune(&mut value);
        value
    };
    without_times(stored) == without_times(wanted)
}

/// Adds resources that other clients added to the capacity to the allocatable ones.
fn adopt_resources(stored: &Value, wanted: &mut Value) {
    let own = wanted["capacity"].clone();
    let added = stored["capacity"].as_object().into_iter().flatten();
    for (name, amount) in added.filter(|(name, _)| own.get(name).is_none()) {
        wanted["capacity"][name] = amount.clone();
        wanted["allocatable"][name] = amount.clone();
    }
}

/// Returns the amounts that differ, and null for extended resources that are not wanted any more if `is_bounded` by
/// a capacity without them.
fn differing_amounts(stored: &Value, wanted: &Value, is_bounded: bool) -> Map<String, Value> {
    let mut differing = Map::new();
    for (name, amount) in wanted.as_object().into_iter().flatten() {
        if !is_same_amount(&stored[name], amount) {
            differing.insert(name.clone(), amount.clone());
        }
    }
    let stale = stored.as_object().into_iter().flatten();
    let stale = stale.filter(|(name, _)| wanted.get(name).is_none() && name.contains('/'));
    if is_bounded {
        differing.extend(stale.map(|(name, _)| (name.clone(), Value::Null)));
    }
    differing
}

fn is_same_amount(one: &Value, other: &Value) -> bool {
    let amount = |value: &Value| value.as_str()?.parse::<Quantity>().ok();
    // `1Gi` and `1024Mi` are one amount; compared as texts they would be written again every ten seconds.
    one == other || matches!((amount(one), amount(other)), (Some(one), Some(other)) if one == other)
}

/// Removes null, empty texts, lists and objects, which Go omits from this JSON.
fn prune(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(prune);
            fields.retain(|_, value| match value {
                Value::Null => false,
                Value::String(text) => !text.is_empty(),
                Value::Array(items) => !items.is_empty(),
                Value::Object(fields) => !fields.is_empty(),
                _ => true,
            });
        }
        Value::Array(items) => items.iter_mut().for_each(prune),
        _ => {}
    }
}
