//! Validates the devices that a driver offers in a ResourceSlice: attributes, capacities, counters, taints, and nodes.

mod attribute;
mod capacity;

use mullion_kube_text::{
    field::{ErrorType, Errors, Path},
    names,
    validation::{check, metadata},
};
use mullion_schema::tree::Tree;
use serde_json::Value;

pub(super) use self::attribute::fully_qualified;
use super::{binding_conditions, driver_name, pool_name, unique_items};
use crate::{
    fields::{
        self, AtLeast, Code, Each, Field, Fields, Format, OneOf, Rule, Text, UpTo, always, filled,
        required,
    },
    podspec::{affinity, internal},
};

const MAX_DEVICES: usize = 128;
const MAX_SPECIAL_DEVICES: usize = 64;
const MAX_COUNTER_SETS: usize = 8;
const MAX_COUNTERS: usize = 32;
const MAX_CONSUMPTIONS: usize = 2;
const MAX_PROPERTIES: usize = 32;

const SPEC: &[Field] = &[
    required("driver", Text(driver_name)),
    always("pool", Fields(POOL)),
];
const POOL: &[Field] = &[
    required("name", Text(pool_name)),
    always(
        "resourceSliceCount",
        AtLeast(1, "must be greater than zero"),
    ),
    always(
        "generation",
        AtLeast(0, "must be greater than or equal to zero"),
    ),
];
const DEVICE_NAME: &[Field] = &[always("name", Format(names::dns_label))];
const TAINTS: &[Field] = &[always("taints", UpTo(16, &Each(TAINT)))];
const TAINT: &[Field] = &[
    always("key", Text(metadata::label_name)),
    filled("value", Format(names::label_value)),
    required("effect", EFFECT),
];
/// The effect of a taint.
pub(super) const EFFECT: Rule = OneOf(&["NoExecute", "NoSchedule", "None"]);
const COUNTER_SET: &[Field] = &[
    required("name", Format(names::dns_label)),
    required("counters", Code(counters)),
];
const CONSUMPTION: &[Field] = &[
    required("counterSet", Format(names::dns_label)),
    required("counters", Code(counters)),
];

/// The fields that say where a device is available.
const PLACES: [&str; 4] = [
    "nodeName",
    "nodeSelector",
    "allNodes",
    "perDeviceNodeSelection",
];

/// Records the errors of the spec; `old` is the stored one.
pub(super) fn spec(spec: &Value, old: Option<&Value>, path: &Path<'_>, errors: &mut Errors) {
    fields::validate(SPEC, spec, path, errors);
    if let Some(old) = old {
        let (pool, at) = (&spec["pool"], path.child("pool"));
        fields::immutable(&["name"], pool, &old["pool"], &at, errors);
        fields::immutable(&["driver", "nodeName"], spec, old, path, errors);
    }
    place(spec, path, errors);
    let (devices, counters) = (spec.items("devices"), spec.items("sharedCounters"));
    let is_sent =
        |field: &str, errors: &Errors| spec.has(field) || errors.emptied().has(&path.child(field));
    if is_sent("devices", errors) && is_sent("sharedCounters", errors) {
        let why = "only one of `sharedCounters` or `devices` is allowed";
        errors.invalid(path, "", why);
    }
    let has = |field: &str| devices.iter().any(|device| !device.items(field).is_empty());
    // Taints and counters make devices larger, so a slice may have fewer of them.
    let most = if has("taints") || has("consumesCounters") {
        MAX_SPECIAL_DEVICES
    } else {
        MAX_DEVICES
    };
    let per_device = spec.flag("perDeviceNodeSelection");
    unique_items(
        devices,
        most,
        &path.child("devices"),
        errors,
        |item| item.text("name"),
        |item, at, errors| {
            let before = old.map_or(&[][..], |old| old.items("devices"));
            let before = before
                .iter()
                .find(|old| old.text("name") == item.text("name"));
            device(item, before, per_device, at, errors);
        },
    );
    let at = path.child("sharedCounters");
    unique_items(
        counters,
        MAX_COUNTER_SETS,
        &at,
        errors,
        |item| item.text("name"),
        |item, at, errors| fields::validate(COUNTER_SET, item, at, errors),
    );
}

fn place(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    // An empty name or a false flag is no place, so kube-apiserver also reports that none is given.
    let mut given = Vec::new();
    for field in PLACES {
        let Some(value) = spec.field(field) else {
            continue;
        };
        let at = path.child(field);
        match value {
            Value::String(name) if name.is_empty() => {
                errors.invalid(&at, "", "must be either unset or set to a non-empty string");
                continue;
            }
            Value::String(name) => check(errors, &at, name, names::dns_subdomain(name)),
            Value::Bool(false) => {
                errors.invalid(&at, false, "must be either unset or set to true");
                continue;
            }
            Value::Object(_) => {
                affinity::node_selector(value, &at, errors);
                let terms = value.items("nodeSelectorTerms");
                if terms.len() != 1 {
                    let why = "must have exactly one node selector term";
                    let at = at.child("nodeSelectorTerms");
                    let shown = terms
                        .iter()
                        .map(|term| internal::compact("NodeSelectorTerm", term));
                    let shown = if value.has("nodeSelectorTerms") {
                        format!("[{}]", shown.collect::<Vec<_>>().join(","))
                    } else {
                        "null".to_owned()
                    };
                    errors.with_text(ErrorType::Invalid, &at, shown, why);
                }
            }
            _ => {}
        }
        given.push(format!("`{field}`"));
    }
    const ONE: &str = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    match given.len() {
        0 => errors.required(path, ONE),
        1 => {}
        _ => {
            let shown = format!("{{{}}}", given.join(", "));
            errors.invalid(path, shown, format!("{ONE}, but multiple fields are set"));
        }
    }
}

fn device(
    device: &Value,
    old: Option<&Value>,
    per_device: bool,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    fields::validate(DEVICE_NAME, device, path, errors);
    let properties = device.entries("attributes").count() + device.entries("capacity").count();
    if properties > MAX_PROPERTIES {
        let why = format!(
            "the total number of attributes and capacities must not exceed {MAX_PROPERTIES}"
        );
        errors.invalid(path, properties, why);
    }
    let at = path.child("attributes");
    for (key, value) in device.entries("attributes") {
        attribute::qualified(key, &at, errors);
        attribute::attribute(value, &at.key(key), errors);
    }
    let at = path.child("capacity");
    for (key, value) in device.entries("capacity") {
        attribute::qualified(key, &at, errors);
        let at = at.key(key);
        let Some(policy) = value.field("requestPolicy") else {
            continue;
        };
        let at = at.child("requestPolicy");
        // Only a device that several claims share has capacity to divide.
        if device.flag("allowMultipleAllocations") {
            capacity::request_policy(policy, &capacity::amount(&value["value"]), &at, errors);
        } else {
            errors.forbidden(&at, "allowMultipleAllocations must be true");
        }
    }
    // Unchanged taints are not validated again.
    if !old.is_some_and(|old| old.items("taints") == device.items("taints")) {
        fields::validate(TAINTS, device, path, errors);
    }
    let consumed = device.items("consumesCounters");
    let at = path.child("consumesCounters");
    unique_items(
        consumed,
        MAX_CONSUMPTIONS,
        &at,
        errors,
        |item| item.text("counterSet"),
        |item, at, errors| fields::validate(CONSUMPTION, item, at, errors),
    );
    device_place(device, per_device, path, errors);
    binding_conditions(device, path, errors);
}

fn device_place(device: &Value, per_device: bool, path: &Path<'_>, errors: &mut Errors) {
    const ONE: &str = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
    let given: Vec<&str> = PLACES[..3]
        .iter()
        .copied()
        .filter(|field| device.has(field))
        .collect();
    if !per_device {
        if !given.is_empty() {
            let why = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
            errors.invalid(path, Value::Null, why);
        }
        return;
    }
    let mut good = Vec::new();
    for field in given {
        let at = path.child(field);
        match &device[field] {
            Value::String(name) if name.is_empty() => {
                errors.invalid(&at, "", "must not be empty");
                continue;
            }
            Value::String(name) => check(errors, &at, name, names::dns_subdomain(name)),
            Value::Bool(false) => {
                errors.invalid(&at, false, "must be either unset or set to true");
                continue;
            }
            selector @ Value::Object(_) => affinity::node_selector(selector, &at, errors),
            _ => {}
        }
        good.push(format!("`{field}`"));
    }
    match good.len() {
        0 => errors.required(path, ONE),
        1 => {}
        _ => errors.invalid(path, format!("{{{}}}", good.join(", ")), ONE),
    }
}

fn counters(counters: &Value, path: &Path<'_>, errors: &mut Errors) {
    let names = || counters.as_object().into_iter().flatten();
    match names().count() {
        count if count > MAX_COUNTERS => errors.too_many(path, count, MAX_COUNTERS),
        _ => names().for_each(|(name, _)| check(errors, path, name, names::dns_label(name))),
    }
}

#[cfg(test)]
mod tests {
    use mullion_kube_text::field;
    use serde_json::json;

    use super::*;

    fn causes(given: Value) -> Vec<String> {
        field::causes(|errors| spec(&given, None, &Path::new("spec"), errors))
    }

    #[test]
    fn a_slice_says_whose_devices_are_where() {
        assert_eq!(
            causes(json!({"nodeName": "", "allNodes": true, "perDeviceNodeSelection": true})),
            [
                "spec.driver: Required value",
                "spec.pool.name: Required value",
                "spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero",
                r#"spec.nodeName: Invalid value: "": must be either unset or set to a non-empty string"#,
                r#"spec: Invalid value: "{`allNodes`, `perDeviceNodeSelection`}": exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required, but multiple fields are set"#,
            ]
        );
    }

    #[test]
    fn a_device_has_attributes_of_one_type_each() {
        let device = json!({"name": "a", "attributes": {"v": {"version": "1.2"}, "two": {"int": 1, "bool": true}, "none": {}}, "nodeName": "n",
            "taints": [{"key": "k"}]});
        let given = json!({"driver": "d", "pool": {"name": "p", "resourceSliceCount": 1}, "nodeName": "n", "devices": [device]});
        assert_eq!(
            causes(given),
            [
                r#"spec.devices[0].attributes[none]: Invalid value: "": exactly one value must be specified"#,
                r#"spec.devices[0].attributes[two]: Invalid value: {"IntValue":1,"BoolValue":true,"StringValue":null,"VersionValue":null,"IntValues":null,"BoolValues":null,"StringValues":null,"VersionValues":null}: exactly one value must be specified"#,
                r#"spec.devices[0].attributes[v].version: Invalid value: "1.2": must be a string compatible with semver.org spec 2.0.0"#,
                "spec.devices[0].taints[0].effect: Required value",
                "spec.devices[0]: Invalid value: null: `nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec",
            ]
        );
    }

    #[test]
    fn taints_that_are_stored_are_not_judged_again_and_a_pool_keeps_its_name() {
        let slice = |pool: &str, value: &str| {
            json!({"driver": "d", "pool": {"name": pool, "resourceSliceCount": 1}, "nodeName": "n",
                "devices": [{"name": "a", "taints": [{"key": "k", "value": value}]}]})
        };
        let found = |given: &Value| {
            let old = slice("p", "v");
            field::causes(|errors| spec(given, Some(&old), &Path::new("spec"), errors))
        };
        assert_eq!(found(&slice("p", "v")), [""; 0]);
        assert_eq!(
            found(&slice("q", "w")),
            [
                r#"spec.pool.name: Invalid value: "q": field is immutable"#,
                "spec.devices[0].taints[0].effect: Required value",
            ]
        );
    }

    #[test]
    fn a_capacity_that_is_shared_says_which_amounts_can_be_had() {
        let found = |policy: Value| {
            let policy = json!({"name": "a", "allowMultipleAllocations": true, "capacity": {"m": {"value": "1Gi", "requestPolicy": policy}}});
            causes(
                json!({"driver": "d", "pool": {"name": "p", "resourceSliceCount": 1}, "nodeName": "n", "devices": [policy]}),
            )
            .into_iter()
            .map(|cause| cause.replace("spec.devices[0].capacity[m].requestPolicy", "~"))
            .collect::<Vec<String>>()
        };
        assert_eq!(found(json!({"default": "5Gi"})), [""; 0]);
        assert_eq!(
            found(json!({"validValues": ["1Mi"]})),
            ["~.default: Required value: required when validValues is defined"]
        );
        assert_eq!(
            found(json!({"default": "3Mi", "validValues": ["2Mi", "1Mi", "2Gi", "2Gi"]})),
            [
                r#"~.validValues[1]: Invalid value: "1Mi": values must be sorted in ascending order"#,
                r#"~.validValues[2]: Invalid value: "2Gi": option is larger than capacity value: 1Gi"#,
                r#"~.validValues[3]: Invalid value: "2Gi": option is larger than capacity value: 1Gi"#,
                r#"~.validValues[3]: Duplicate value: "2147483648""#,
                r#"~.validValues: Invalid value: "3Mi": default value is not valid according to the requestPolicy"#,
            ]
        );
        assert_eq!(
            found(
                json!({"default": "1Mi", "validRange": {"min": "2Mi", "max": "2Gi", "step": "2Mi"}})
            ),
            [
                r#"~.validRange.min: Invalid value: "1Mi": default is less than min: 2Mi"#,
                r#"~.validRange.max: Invalid value: "2Gi": max is larger than capacity value: 1Gi"#,
                r#"~.validRange.step: Invalid value: "1Mi": value is not a multiple of a given step (2Mi) from (2Mi)"#,
            ]
        );
        let both = json!({"validValues": ["1Mi"], "validRange": {"min": "1Mi"}});
        assert_eq!(
            found(both),
            [
                r#"~: Forbidden: exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time"#
            ]
        );
    }
}
