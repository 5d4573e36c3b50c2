//! What a driver may offer: devices of one pool, with attributes, capacities, counters and taints, and where they are.

use serde_json::Value;

use super::{driver_name, pool_name, set};
use crate::{
    field::{ErrorType, Errors, Path},
    kinds::{
        podspec::{affinity, internal},
        tree::Tree,
    },
    validation::{check, metadata, names},
};

const MAX_DEVICES: usize = 128;
const MAX_SPECIAL_DEVICES: usize = 64;
const MAX_COUNTER_SETS: usize = 8;
const MAX_COUNTERS: usize = 32;
const MAX_CONSUMPTIONS: usize = 2;
const MAX_PROPERTIES: usize = 32;
const MAX_TAINTS: usize = 16;
const MAX_ID: usize = 32;
const MAX_ATTRIBUTE: usize = 64;

/// Where devices may be said to be.
const PLACES: [&str; 4] = [
    "nodeName",
    "nodeSelector",
    "allNodes",
    "perDeviceNodeSelection",
];

/// Records what is wrong with the spec.
pub(super) fn spec(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    driver_name(spec.text("driver"), &path.child("driver"), errors);
    let (pool, at) = (&spec["pool"], path.child("pool"));
    pool_name(pool.text("name"), &at.child("name"), errors);
    let slices = pool.integer("resourceSliceCount").unwrap_or(0);
    if slices <= 0 {
        let at = at.child("resourceSliceCount");
        errors.invalid(&at, slices, "must be greater than zero");
    }
    let generation = pool.integer("generation").unwrap_or(0);
    if generation < 0 {
        let at = at.child("generation");
        errors.invalid(&at, generation, "must be greater than or equal to zero");
    }
    place(spec, path, errors);
    let (devices, counters) = (spec.items("devices"), spec.items("sharedCounters"));
    if spec.has("devices") && spec.has("sharedCounters") {
        let why = "only one of `sharedCounters` or `devices` is allowed";
        errors.invalid(path, "", why);
    }
    let has = |field: &str| devices.iter().any(|device| !device.items(field).is_empty());
    let most = if has("taints") || has("consumesCounters") {
        MAX_SPECIAL_DEVICES
    } else {
        MAX_DEVICES
    };
    let per_device = spec.flag("perDeviceNodeSelection");
    set(
        devices,
        most,
        &path.child("devices"),
        errors,
        |item| item.text("name"),
        |item, at, errors| {
            device(item, per_device, at, errors);
        },
    );
    let at = path.child("sharedCounters");
    set(
        counters,
        MAX_COUNTER_SETS,
        &at,
        errors,
        |item| item.text("name"),
        |item, at, errors| {
            counter_set(item, "name", at, errors);
        },
    );
}

fn place(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
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
                    errors.invalid(&at.child("nodeSelectorTerms"), terms.to_vec(), why);
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

fn device(device: &Value, per_device: bool, path: &Path<'_>, errors: &mut Errors) {
    let name = device.text("name");
    check(errors, &path.child("name"), name, names::dns_label(name));
    let properties = device.entries("attributes").count() + device.entries("capacity").count();
    if properties > MAX_PROPERTIES {
        let why = format!(
            "the total number of attributes and capacities must not exceed {MAX_PROPERTIES}"
        );
        errors.invalid(path, properties, why);
    }
    let at = path.child("attributes");
    for (key, value) in device.entries("attributes") {
        qualified(key, &at.key(key), errors);
        attribute(value, &at.key(key), errors);
    }
    let at = path.child("capacity");
    for (key, value) in device.entries("capacity") {
        let at = at.key(key);
        qualified(key, &at, errors);
        if value.has("requestPolicy") && !device.flag("allowMultipleAllocations") {
            let why = "allowMultipleAllocations must be true";
            errors.forbidden(&at.child("requestPolicy"), why);
        }
    }
    let (taints, at) = (device.items("taints"), path.child("taints"));
    if taints.len() > MAX_TAINTS {
        errors.too_many(&at, taints.len(), MAX_TAINTS);
    } else {
        for (index, item) in taints.iter().enumerate() {
            taint(item, &at.index(index), errors);
        }
    }
    let consumed = device.items("consumesCounters");
    let at = path.child("consumesCounters");
    set(
        consumed,
        MAX_CONSUMPTIONS,
        &at,
        errors,
        |item| item.text("counterSet"),
        |item, at, errors| {
            counter_set(item, "counterSet", at, errors);
        },
    );
    device_place(device, per_device, path, errors);
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

fn counter_set(set: &Value, key: &str, path: &Path<'_>, errors: &mut Errors) {
    let (name, at) = (set.text(key), path.child(key));
    if name.is_empty() {
        errors.required(&at, "");
    } else {
        check(errors, &at, name, names::dns_label(name));
    }
    let at = path.child("counters");
    match set.entries("counters").count() {
        0 => errors.required(&at, ""),
        count if count > MAX_COUNTERS => errors.too_many(&at, count, MAX_COUNTERS),
        _ => {
            for (name, _) in set.entries("counters") {
                check(errors, &at.key(name), name, names::dns_label(name));
            }
        }
    }
}

fn attribute(attribute: &Value, path: &Path<'_>, errors: &mut Errors) {
    let kinds = ["bool", "int", "string", "version"];
    let count = kinds.iter().filter(|kind| attribute.has(kind)).count();
    for kind in ["string", "version"] {
        let (text, at) = (attribute.text(kind), path.child(kind));
        if kind == "version" && attribute.has(kind) && !is_semantic_version(text) {
            let why = "must be a string compatible with semver.org spec 2.0.0";
            errors.invalid(&at, text, why);
        }
        if text.len() > MAX_ATTRIBUTE {
            errors.too_long(&at, MAX_ATTRIBUTE);
        }
    }
    match count {
        0 => errors.invalid(path, "", "exactly one value must be specified"),
        1 => {}
        _ => {
            let text = internal::compact("DeviceAttribute", attribute);
            let why = "exactly one value must be specified";
            errors.with_text(ErrorType::Invalid, path, text, why);
        }
    }
}

/// `1.2.3`, with a pre-release behind a dash and a build behind a plus.
fn is_semantic_version(text: &str) -> bool {
    let (rest, build) = match text.split_once('+') {
        Some((rest, build)) => (rest, Some(build)),
        None => (text, None),
    };
    let (core, release) = match rest.split_once('-') {
        Some((core, release)) => (core, Some(release)),
        None => (rest, None),
    };
    let is_number = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_digit())
            && (part == "0" || !part.starts_with('0'))
    };
    let is_word = |part: &str| {
        let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !part.is_empty() && part.bytes().all(letter)
    };
    let digits_only = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let numbers: Vec<&str> = core.split('.').collect();
    numbers.len() == 3
        && numbers.into_iter().all(is_number)
        && release.is_none_or(|text| {
            let mut parts = text.split('.');
            parts.all(|part| is_word(part) && (!digits_only(part) || is_number(part)))
        })
        && build.is_none_or(|text| text.split('.').all(is_word))
}

fn taint(taint: &Value, path: &Path<'_>, errors: &mut Errors) {
    metadata::label_name(errors, &path.child("key"), taint.text("key"));
    let (value, given) = (taint.text("value"), taint.text("effect"));
    if !value.is_empty() {
        check(
            errors,
            &path.child("value"),
            value,
            names::label_value(value),
        );
    }
    if given.is_empty() {
        errors.required(&path.child("effect"), "");
    } else {
        effect(given, &path.child("effect"), errors);
    }
}

/// What a taint does.
pub(super) fn effect(effect: &str, path: &Path<'_>, errors: &mut Errors) {
    crate::validation::one_of(errors, path, effect, &["NoExecute", "NoSchedule", "None"]);
}

/// The name of an attribute or capacity, perhaps with a domain.
fn qualified(name: &str, path: &Path<'_>, errors: &mut Errors) {
    let parts: Vec<&str> = name.split('/').collect();
    match parts.as_slice() {
        [id] => identifier(id, path, errors),
        [domain, id] => {
            if domain.is_empty() {
                errors.invalid(path, "", "the domain must not be empty");
            } else {
                driver_name(domain, path, errors);
            }
            if id.is_empty() {
                errors.invalid(path, "", "the name must not be empty");
            } else {
                identifier(id, path, errors);
            }
        }
        // Upstream lets more slashes pass.
        _ => {}
    }
}

/// The name of an attribute with its domain.
pub(super) fn fully_qualified(name: &str, path: &Path<'_>, errors: &mut Errors) {
    qualified(name, path, errors);
    if !name.contains('/') {
        let why = "a fully qualified name must be a domain and a name separated by a slash";
        errors.invalid(path, name, why);
    }
}

fn identifier(id: &str, path: &Path<'_>, errors: &mut Errors) {
    if id.len() > MAX_ID {
        errors.too_long(path, MAX_ID);
    }
    check(errors, path, id, names::c_identifier(id));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::field;

    fn causes(given: Value) -> Vec<String> {
        field::causes(|errors| spec(&given, &Path::new("spec"), errors))
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
                r#"spec.devices[0].attributes[two]: Invalid value: {"IntValue":1,"BoolValue":true,"StringValue":null,"VersionValue":null}: exactly one value must be specified"#,
                r#"spec.devices[0].attributes[v].version: Invalid value: "1.2": must be a string compatible with semver.org spec 2.0.0"#,
                "spec.devices[0].taints[0].effect: Required value",
                "spec.devices[0]: Invalid value: null: `nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec",
            ]
        );
    }

    #[test]
    fn versions_are_semantic() {
        for good in ["1.2.3", "0.0.0-alpha.1", "1.0.0-a-b+5.x"] {
            assert!(is_semantic_version(good), "{good}");
        }
        for bad in ["1.2", "01.2.3", "1.2.3-01", "1.2.3+", "v1.2.3", ""] {
            assert!(!is_semantic_version(bad), "{bad}");
        }
    }
}
