//! What pods, pools and machines of a recorded case say, read from their JSON.

use std::collections::BTreeMap;

use mullion_engine::model::{Quantity, ResourceMap};
use serde_json::Value;

use super::rules::{CAPACITY, POOL, ZONE};

pub(super) type Labels = BTreeMap<String, String>;

pub(super) fn own_labels(pool: &Value) -> Labels {
    let template = &pool["spec"]["template"];
    let mut own = labels(&template["metadata"]["labels"]);
    own.insert(POOL.to_owned(), text(&pool["metadata"]["name"]));
    for requirement in array(&template["spec"]["requirements"]) {
        let values: Vec<String> = array(&requirement["values"]).map(text).collect();
        if let ("In", [one]) = (text(&requirement["operator"]).as_str(), values.as_slice()) {
            own.entry(text(&requirement["key"]))
                .or_insert_with(|| one.clone());
        }
    }
    own
}

pub(super) fn labels_of(own: &Labels, machine: &Value, zone: &str, capacity: &str) -> Labels {
    let mut all = own.clone();
    all.extend(labels(&machine["labels"]));
    all.insert(ZONE.to_owned(), zone.to_owned());
    all.insert(CAPACITY.to_owned(), capacity.to_owned());
    all
}

pub(super) fn requests(spec: &Value) -> ResourceMap {
    let of = |container: &Value| {
        let requests = &container["resources"]["requests"];
        if requests.is_null() {
            ResourceMap::new()
        } else {
            map(requests)
        }
    };
    let mut sum = ResourceMap::new();
    array(&spec["containers"]).for_each(|container| add(&mut sum, &of(container)));
    for init in array(&spec["initContainers"]) {
        for (resource, amount) in of(init) {
            let most = sum.entry(resource).or_default();
            *most = (*most).max(amount);
        }
    }
    add(
        &mut sum,
        &ResourceMap::from([("pods".to_owned(), Quantity::from_units(1))]),
    );
    sum
}

pub(super) fn selects(spec: &Value, labels: &Labels) -> bool {
    let mut selector = spec["nodeSelector"].as_object().into_iter().flatten();
    let terms = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        ["nodeSelectorTerms"];
    let meets = |term: &Value| {
        array(&term["matchExpressions"]).all(|one| admits(one, labels.get(&text(&one["key"]))))
    };
    selector.all(|(key, value)| labels.get(key).is_some_and(|own| value == own))
        && (terms.is_null() || array(terms).any(meets))
}

pub(super) fn admits(requirement: &Value, value: Option<&String>) -> bool {
    let values: Vec<String> = array(&requirement["values"]).map(text).collect();
    let numbers = || {
        Some((
            value?.parse::<i64>().ok()?,
            values.first()?.parse::<i64>().ok()?,
        ))
    };
    match text(&requirement["operator"]).as_str() {
        "In" => value.is_some_and(|value| values.contains(value)),
        "NotIn" => value.is_none_or(|value| !values.contains(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(own, bound)| own > bound),
        "Lt" => numbers().is_some_and(|(own, bound)| own < bound),
        "Gte" => numbers().is_some_and(|(own, bound)| own >= bound),
        "Lte" => numbers().is_some_and(|(own, bound)| own <= bound),
        other => panic!("operator {other}"),
    }
}

pub(super) fn tolerates(spec: &Value, taints: &[Value]) -> bool {
    let one = |toleration: &Value, taint: &Value| {
        let effect = toleration["effect"].as_str().unwrap_or_default();
        let exists = toleration["operator"] == "Exists";
        let value = |from: &Value| from["value"].as_str().unwrap_or_default().to_owned();
        (effect.is_empty() || taint["effect"] == effect)
            && match toleration["key"].as_str() {
                None | Some("") => exists,
                Some(key) => taint["key"] == key && (exists || value(toleration) == value(taint)),
            }
    };
    taints
        .iter()
        .filter(|taint| taint["effect"] != "PreferNoSchedule")
        .all(|taint| array(&spec["tolerations"]).any(|toleration| one(toleration, taint)))
}

pub(super) fn matches(selector: &Value, labels: &Value) -> bool {
    let mut wanted = selector["matchLabels"].as_object().into_iter().flatten();
    wanted.all(|(key, value)| labels.get(key) == Some(value))
}

pub(super) fn exceeds(load: &ResourceMap, room: &ResourceMap) -> Option<String> {
    let over = |(resource, amount): &(&String, &Quantity)| {
        **amount > room.get(*resource).copied().unwrap_or_default()
    };
    load.iter().find(over).map(|(resource, _)| resource.clone())
}

pub(super) fn add(sum: &mut ResourceMap, more: &ResourceMap) {
    for (resource, amount) in more {
        let total = sum.entry(resource.clone()).or_default();
        *total = total.saturating_add(*amount);
    }
}

pub(super) fn map(value: &Value) -> ResourceMap {
    serde_json::from_value(value.clone()).expect("amounts")
}

pub(super) fn labels(value: &Value) -> Labels {
    if value.is_null() {
        Labels::new()
    } else {
        serde_json::from_value(value.clone()).expect("labels")
    }
}

pub(super) fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

pub(super) fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}
