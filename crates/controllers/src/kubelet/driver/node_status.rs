//! What a kubelet writes of its node's status: what differs from what it knows, whoever wrote it (upstream: the setters of
//! pkg/kubelet/nodestatus and nodeStatusHasChanged).
//!
//! Invariant: what others add is theirs (conditions of other types, capacity of other resources, attached volumes), and only the time of a
//! heartbeat is no difference.

use k8s_openapi::api::core::v1::{NodeCondition, NodeStatus};
use mullion_engine::model::Quantity;
use serde_json::{Map, Value, json};

/// The kubelet's own fields beside conditions and resources, which others write to as well.
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

/// The fields of a strategic merge patch that makes `stored` say what `wanted` says, without heartbeats that are merely newer.
pub(super) fn difference(stored: &NodeStatus, wanted: &NodeStatus) -> Map<String, Value> {
    let conditions = [stored, wanted].map(|status| status.conditions.as_deref().unwrap_or(&[]));
    let [stored, mut wanted] = [stored, wanted].map(|status| {
        // A status is plain data, which JSON can always express.
        let mut value = serde_json::to_value(status).unwrap_or_default();
        prune(&mut value);
        value
    });
    adopt_resources(&stored, &mut wanted);
    let mut patch = Map::new();
    for field in OWN {
        if stored[field] == wanted[field] {
            continue;
        }
        let mut value = wanted[field].take();
        match &mut value {
            // Merged by type, where one type may be there twice.
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
        .any(|condition| turned(stored, condition, is_same))
    {
        patch.insert("conditions".to_owned(), json!(wanted));
    }
    patch
}

/// The conditions whose status is another one than what is stored.
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

/// Resources that others have added to the capacity are there for pods, too.
fn adopt_resources(stored: &Value, wanted: &mut Value) {
    let own = wanted["capacity"].clone();
    let added = stored["capacity"].as_object().into_iter().flatten();
    for (name, amount) in added.filter(|(name, _)| own.get(name).is_none()) {
        wanted["capacity"][name] = amount.clone();
        wanted["allocatable"][name] = amount.clone();
    }
}

/// The amounts that are not as wanted; null for extended resources that `is_bounded` by a capacity that has none of them.
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
    one == other || matches!((amount(one), amount(other)), (Some(one), Some(other)) if one == other)
}

/// Takes away what says nothing: JSON of Go's has neither empty texts nor empty lists here.
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
