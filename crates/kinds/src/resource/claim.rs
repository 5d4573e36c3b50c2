//! Validates ResourceClaims: requests, attributes that the devices must have in common, and parameters for drivers.

use std::collections::HashSet;

use mullion_kube_text::{
    field::{self, ErrorType, Errors, Path},
    names,
    validation::{IMMUTABLE, check, metadata, net},
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{
    CONFIGURATION, DEVICE, SELECTORS, binding_conditions, parameters,
    slice::{self, EFFECT},
    unique_items,
};
use crate::{
    fields::{
        self, All, Anything, Code, Conditions, Field, Format, Items, MaxBytes, MaxItems, OneOf,
        Text, always, filled, required, set,
    },
    podspec::{affinity, internal},
};

const MAX_REQUESTS: usize = 32;
const MAX_ALTERNATIVES: usize = 8;
const MAX_CONSTRAINTS: usize = 32;
const MAX_CONFIGS: usize = 32;
const MAX_CONSUMERS: usize = 256;
const MAX_RESULTS: usize = 32;
const MAX_ADDRESSES: usize = 16;
const NAME: &[Field] = &[always("name", Format(names::dns_label))];
const REQUEST: &[Field] = &[
    required("deviceClassName", Format(names::dns_subdomain)),
    always("selectors", SELECTORS),
];
const TOLERATIONS: &[Field] = &[always("tolerations", Items(&Code(toleration)))];
const TOLERATION_KEY: &[Field] = &[filled("key", Text(metadata::label_name))];
const TOLERATION_EFFECT: &[Field] = &[filled("effect", EFFECT)];
const CONSUMER: &[Field] = &[
    required("resource", Anything),
    required("name", Anything),
    required("uid", Anything),
];
const SHARE: &[Field] = &[set("shareID", Text(share))];
const DEVICE_STATUS: &[Field] = &[
    always("conditions", All(&[MaxItems(8), Conditions])),
    set("data", Code(parameters)),
];
const NETWORK: &[Field] = &[
    always("interfaceName", MaxBytes(256)),
    always("hardwareAddress", MaxBytes(128)),
];
const SOURCE: &[Field] = &[required("source", OneOf(&["FromClaim", "FromClass"]))];
const NO_REQUEST: &str = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";

/// Records the errors of a `DeviceClaim`.
pub(super) fn devices(claim: &Value, path: &Path<'_>, errors: &mut Errors) {
    let (requests, at) = (claim.items("requests"), path.child("requests"));
    unique_items(
        requests,
        MAX_REQUESTS,
        &at,
        errors,
        |item| item.text("name"),
        request,
    );
    let (constraints, at) = (claim.items("constraints"), path.child("constraints"));
    if constraints.len() > MAX_CONSTRAINTS {
        errors.too_many(&at, constraints.len(), MAX_CONSTRAINTS);
    } else {
        for (index, item) in constraints.iter().enumerate() {
            constraint(item, requests, &at.index(index), errors);
        }
    }
    let (configs, at) = (claim.items("config"), path.child("config"));
    if configs.len() > MAX_CONFIGS {
        return errors.too_many(&at, configs.len(), MAX_CONFIGS);
    }
    for (index, config) in configs.iter().enumerate() {
        let at = at.index(index);
        references(config, requests, &at.child("requests"), errors);
        fields::validate(CONFIGURATION, config, &at, errors);
    }
}

fn label(text: &str, path: &Path<'_>, errors: &mut Errors) {
    check(errors, path, text, names::dns_label(text));
}

fn request(request: &Value, path: &Path<'_>, errors: &mut Errors) {
    fields::validate(NAME, request, path, errors);
    let others = request.items("firstAvailable");
    match (request.field("exactly"), others.is_empty()) {
        (None, true) => errors.required(
            path,
            "exactly one of `exactly` or `firstAvailable` is required",
        ),
        (Some(_), false) => errors.invalid(
            path,
            Value::Null,
            "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set",
        ),
        (Some(exactly), true) => wanted(exactly, &path.child("exactly"), errors),
        (None, false) => unique_items(
            others,
            MAX_ALTERNATIVES,
            &path.child("firstAvailable"),
            errors,
            |item| item.text("name"),
            |item, at, errors| {
                fields::validate(NAME, item, at, errors);
                wanted(item, at, errors);
            },
        ),
    }
}

fn wanted(request: &Value, path: &Path<'_>, errors: &mut Errors) {
    fields::validate(REQUEST, request, path, errors);
    let (count, at) = (request.integer("count").unwrap_or(0), path.child("count"));
    match request.text("allocationMode") {
        "All" if count != 0 => {
            let why = "must not be specified when allocationMode is 'All'";
            errors.invalid(&at, count, why);
        }
        "ExactCount" if count <= 0 => errors.invalid(&at, count, "must be greater than zero"),
        "All" | "ExactCount" => {}
        other => {
            let at = path.child("allocationMode");
            errors.not_supported(&at, other, &["All", "ExactCount"]);
        }
    }
    fields::validate(TOLERATIONS, request, path, errors);
}

fn toleration(toleration: &Value, path: &Path<'_>, errors: &mut Errors) {
    fields::validate(TOLERATION_KEY, toleration, path, errors);
    let value = toleration.text("value");
    let at = path.child("value");
    match toleration.text("operator") {
        "Exists" if !value.is_empty() => {
            errors.invalid(&at, value, "must be empty for operator `Exists`");
        }
        "Exists" => {}
        "Equal" => check(errors, &at, value, names::label_value(value)),
        "" => errors.required(&path.child("operator"), ""),
        other => errors.not_supported(&path.child("operator"), other, &["Equal", "Exists"]),
    }
    fields::validate(TOLERATION_EFFECT, toleration, path, errors);
}

fn constraint(constraint: &Value, requests: &[Value], path: &Path<'_>, errors: &mut Errors) {
    references(constraint, requests, &path.child("requests"), errors);
    let fields = ["matchAttribute", "distinctAttribute"];
    let given = fields.iter().find(|field| constraint.has(field));
    match given {
        Some(field) => {
            slice::fully_qualified(constraint.text(field), &path.child(field), errors);
        }
        None => errors.required(
            path,
            // kube-apiserver's message speaks of multiple fields even if none is set.
            r#"exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set"#,
        ),
    }
}

fn references(owner: &Value, requests: &[Value], path: &Path<'_>, errors: &mut Errors) {
    unique_items(
        owner.items("requests"),
        MAX_REQUESTS,
        path,
        errors,
        |item| item.as_str().unwrap_or_default(),
        |item, at, errors| reference(item.as_str().unwrap_or_default(), requests, at, errors),
    );
}

/// Validates a reference to a request, or to a subrequest after a slash.
fn reference(name: &str, requests: &[Value], path: &Path<'_>, errors: &mut Errors) {
    let parts: Vec<&str> = name.split('/').collect();
    if parts.len() > 2 {
        return errors.invalid(path, name, NO_REQUEST);
    }
    for part in &parts {
        label(part, path, errors);
    }
    let found = requests
        .iter()
        .find(|request| request.text("name") == parts[0]);
    let is_there = found.is_some_and(|request| {
        parts.get(1).is_none_or(|part| {
            let others = request.items("firstAvailable");
            others.iter().any(|other| other.text("name") == *part)
        })
    });
    if !is_there {
        errors.invalid(path, name, NO_REQUEST);
    }
}

/// Records the errors of a status update. The allocation is immutable, and a claim without one cannot be reserved.
pub(super) fn status(object: &Value, old: &Value, path: &Path<'_>, errors: &mut Errors) {
    let (status, before) = (&object["status"], &old["status"]);
    let (consumers, at) = (status.items("reservedFor"), path.child("reservedFor"));
    unique_items(
        consumers,
        MAX_CONSUMERS,
        &at,
        errors,
        |item| item.text("uid"),
        |item, at, errors| fields::validate(CONSUMER, item, at, errors),
    );
    let allocation = status.field("allocation");
    let given: HashSet<String> = allocation
        .map(|allocation| allocation["devices"].items("results"))
        .unwrap_or_default()
        .iter()
        .map(device_id)
        .collect();
    used_devices(
        status.items("devices"),
        &given,
        &path.child("devices"),
        errors,
    );
    if !consumers.is_empty() {
        // A claim that is being deleted waits for its consumers to end, so no new ones may come.
        let known: HashSet<&Value> = before.items("reservedFor").iter().collect();
        if allocation.is_none() {
            errors.forbidden(&at, "may not be specified when `allocated` is not set");
        } else if object["metadata"].has("deletionTimestamp")
            && consumers.iter().any(|consumer| !known.contains(consumer))
        {
            let why = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
            errors.forbidden(&at, why);
        }
    }
    let at = path.child("allocation");
    match (allocation, before.field("allocation")) {
        (Some(now), Some(before)) if now != before => {
            let text = internal::compact("AllocationResult", now);
            errors.with_text(ErrorType::Invalid, &at, text, IMMUTABLE);
        }
        // An allocation never changes after it is set, so it is validated only here.
        (Some(now), None) => {
            let requests = object["spec"]["devices"].items("requests");
            allocated(&now["devices"], requests, &at.child("devices"), errors);
            if let Some(selector) = now.field("nodeSelector") {
                affinity::node_selector(selector, &at.child("nodeSelector"), errors);
            }
        }
        _ => {}
    }
}

/// Drops the device statuses of devices that the write deallocates, so that the client that deallocates them need not know about them.
pub(super) fn forget_taken(object: &mut Value, old: &Value) {
    let given = |object: &Value| -> HashSet<String> {
        let results = object["status"]["allocation"]["devices"].items("results");
        results.iter().map(device_id).collect()
    };
    let (before, now) = (given(old), given(object));
    let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) else {
        return;
    };
    if let Some(devices) = status.get_mut("devices").and_then(Value::as_array_mut) {
        devices.retain(|device| {
            let id = device_id(device);
            now.contains(&id) || !before.contains(&id)
        });
        if devices.is_empty() {
            status.remove("devices");
        }
    }
}

/// Formats the id of a device, or of a share of it, as kube-apiserver's messages do.
fn device_id(device: &Value) -> String {
    let part = |field: &str| Value::from(device.text(field));
    field::go_struct(&[
        ("Driver", part("driver")),
        ("Pool", part("pool")),
        ("Device", part("device")),
        ("ShareID", part("shareID")),
    ])
}

/// Validates the device statuses that drivers report.
fn used_devices(devices: &[Value], given: &HashSet<String>, path: &Path<'_>, errors: &mut Errors) {
    for (index, device) in devices.iter().enumerate() {
        let path = path.index(index);
        fields::validate(DEVICE, device, &path, errors);
        fields::validate(SHARE, device, &path, errors);
        let id = device_id(device);
        if !given.contains(&id) {
            let why = "must be an allocated device in the claim";
            errors.with_text(ErrorType::Invalid, &path, id, why);
        }
        fields::validate(DEVICE_STATUS, device, &path, errors);
        network(&device["networkData"], &path.child("networkData"), errors);
    }
    let mut seen = HashSet::new();
    // Duplicates are reported after all other errors of the devices.
    for (index, id) in devices.iter().map(device_id).enumerate() {
        if seen.contains(&id) {
            errors.with_text(ErrorType::Duplicate, &path.index(index), id, "");
        } else {
            seen.insert(id);
        }
    }
}

fn network(data: &Value, path: &Path<'_>, errors: &mut Errors) {
    fields::validate(NETWORK, data, path, errors);
    unique_items(
        data.items("ips"),
        MAX_ADDRESSES,
        &path.child("ips"),
        errors,
        |item| item.as_str().unwrap_or_default(),
        |item, at, errors| net::interface_address(errors, at, item.as_str().unwrap_or_default()),
    );
}

/// Validates the share id of a device that several claims use, which must be a uid.
fn share(errors: &mut Errors, path: &Path<'_>, id: &str) {
    let refuse = |errors: &mut Errors, why: &str| {
        errors.invalid(path, id, format!("error validating uid: {why}"));
    };
    // The four lengths and the messages are those of `Parse` in the Go package google/uuid.
    let bare = match id.len() {
        32 | 36 => id,
        38 if id.starts_with('{') && id.ends_with('}') => &id[1..37],
        38 => return refuse(errors, "invalid bracketed UUID format"),
        45 => match id.split_at_checked(9) {
            Some((prefix, rest)) if prefix.eq_ignore_ascii_case("urn:uuid:") => rest,
            Some((prefix, _)) => {
                return refuse(errors, &format!("invalid urn prefix: {prefix:?}"));
            }
            None => return refuse(errors, "invalid UUID format"),
        },
        length => return refuse(errors, &format!("invalid UUID length: {length}")),
    };
    let dashes = [8, 13, 18, 23];
    let fits = |(index, byte): (usize, u8)| {
        if bare.len() == 36 && dashes.contains(&index) {
            byte == b'-'
        } else {
            byte.is_ascii_hexdigit()
        }
    };
    if !bare.bytes().enumerate().all(fits) {
        refuse(errors, "invalid UUID format");
    } else if id.len() != 36 || id.bytes().any(|byte| byte.is_ascii_uppercase()) {
        let why = "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal characters";
        errors.invalid(path, id, why);
    }
}

fn allocated(devices: &Value, requests: &[Value], path: &Path<'_>, errors: &mut Errors) {
    let (results, at) = (devices.items("results"), path.child("results"));
    if results.len() > MAX_RESULTS {
        errors.too_many(&at, results.len(), MAX_RESULTS);
    } else {
        for (index, result) in results.iter().enumerate() {
            let at = at.index(index);
            reference(
                result.text("request"),
                requests,
                &at.child("request"),
                errors,
            );
            fields::validate(DEVICE, result, &at, errors);
            binding_conditions(result, &at, errors);
            fields::validate(SHARE, result, &at, errors);
        }
    }
    let (configs, at) = (devices.items("config"), path.child("config"));
    // The allocation has the configurations of the claim and those of its classes.
    if configs.len() > 2 * MAX_CONFIGS {
        return errors.too_many(&at, configs.len(), 2 * MAX_CONFIGS);
    }
    for (index, config) in configs.iter().enumerate() {
        let at = at.index(index);
        fields::validate(SOURCE, config, &at, errors);
        references(config, requests, &at.child("requests"), errors);
        fields::validate(CONFIGURATION, config, &at, errors);
    }
}

#[cfg(test)]
mod tests {
    use mullion_kube_text::field::causes;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_request_names_a_class_and_how_many_devices() {
        let exactly = json!({"deviceClassName": "", "allocationMode": "All", "count": 2, "selectors": [{}, {"cel": {"expression": "device.attributes['d'].fast"}}, {"cel": {"expression": "device.driver"}}, {"cel": {"expression": "device.name == 'x'"}}],
            "tolerations": [{"operator": "Exists", "value": "v", "effect": "Evict"}]});
        let claim = json!({"requests": [{"name": "a", "exactly": exactly}, {"name": "a"}],
            "constraints": [{"requests": ["b"], "matchAttribute": "model"}], "config": [{"requests": ["a"]}]});
        assert_eq!(
            causes(|errors| devices(&claim, &Path::new("d"), errors)),
            [
                "d.requests[0].exactly.deviceClassName: Required value",
                "d.requests[0].exactly.selectors[0].cel: Required value",
                r#"d.requests[0].exactly.selectors[2].cel.expression: Invalid value: "device.driver": must evaluate to bool or the unknown type, not string"#,
                "d.requests[0].exactly.selectors[3].cel.expression: Invalid value: \"device.name == 'x'\": compilation failed: ERROR: <input>:1:7: undefined field 'name'\n | device.name == 'x'\n | ......^",
                "d.requests[0].exactly.count: Invalid value: 2: must not be specified when allocationMode is 'All'",
                r#"d.requests[0].exactly.tolerations[0].value: Invalid value: "v": must be empty for operator `Exists`"#,
                r#"d.requests[0].exactly.tolerations[0].effect: Unsupported value: "Evict": supported values: "NoExecute", "NoSchedule", "None""#,
                "d.requests[1]: Required value: exactly one of `exactly` or `firstAvailable` is required",
                r#"d.requests[1]: Duplicate value: "a""#,
                r#"d.constraints[0].requests[0]: Invalid value: "b": must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"#,
                r#"d.constraints[0].matchAttribute: Invalid value: "model": a fully qualified name must be a domain and a name separated by a slash"#,
                "d.config[0].opaque: Required value",
            ]
        );
    }

    #[test]
    fn a_claim_is_used_once_it_is_allocated_and_keeps_its_devices() {
        let spec = json!({"devices": {"requests": [{"name": "a"}]}});
        let result = |pool: &str| json!({"spec": spec, "status": {"allocation": {"devices": {"results": [{"request": "a", "driver": "d", "pool": pool, "device": "x"}]}}}});
        let found = |now: &Value, before: &Value| {
            causes(|errors| status(now, before, &Path::new("status"), errors))
        };
        let none = json!({"spec": spec});
        assert_eq!(found(&result("p"), &none), [""; 0]);
        let changed = found(&result("q"), &result("p"));
        assert!(changed[0].ends_with("field is immutable"), "{changed:?}");
        let used = json!({"spec": spec, "status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}});
        assert_eq!(
            found(&used, &none),
            ["status.reservedFor: Forbidden: may not be specified when `allocated` is not set"]
        );
    }

    #[test]
    fn what_is_told_of_devices_goes_with_them() {
        let result =
            |device: &str| json!({"request": "a", "driver": "d", "pool": "p", "device": device});
        let told = |device: &str| json!({"driver": "d", "pool": "p", "device": device});
        let old =
            json!({"status": {"allocation": {"devices": {"results": [result("x"), result("y")]}}}});
        let mut kept = json!({"status": {
            "allocation": {"devices": {"results": [result("y")]}}, "devices": [told("x"), told("y"), told("z")],
        }});
        forget_taken(&mut kept, &old);
        assert_eq!(kept["status"]["devices"], json!([told("y"), told("z")]));
        let mut none = json!({"status": {"devices": [told("x")]}});
        forget_taken(&mut none, &old);
        assert_eq!(none, json!({"status": {}}));
    }

    #[test]
    fn what_is_told_of_devices_is_of_those_that_were_given() {
        let spec = json!({"devices": {"requests": [{"name": "a"}]}});
        let given = json!({"request": "a", "driver": "d", "pool": "p", "device": "x"});
        let object = |result: &Value, devices: Value| json!({"spec": spec, "status": {"allocation": {"devices": {"results": [result]}}, "devices": devices}});
        let found = |result: &Value, devices: Value| {
            let (now, none) = (object(result, devices), json!({"spec": spec}));
            causes(|errors| status(&now, &none, &Path::new("s"), errors))
        };
        let device = |name: &str| json!({"driver": "d", "pool": "p", "device": name});
        assert_eq!(found(&given, json!([device("x")])), [""; 0]);
        let mut told = device("x");
        told["data"] = 1.into();
        told["networkData"] = json!({"interfaceName": "i".repeat(257), "ips": ["10.0.0.1/8", "::ffff:10.0.0.1/104", "10.0.0.1"]});
        assert_eq!(
            found(&given, json!([device("y"), told, device("x")])),
            [
                r#"s.devices[0]: Invalid value: {"Driver":"d","Pool":"p","Device":"y","ShareID":""}: must be an allocated device in the claim"#,
                r#"s.devices[1].data: Invalid value: "<value omitted>": must be a valid JSON object"#,
                "s.devices[1].networkData.interfaceName: Too long: may not be more than 256 bytes",
                r#"s.devices[1].networkData.ips[1]: Invalid value: "::ffff:10.0.0.1/104": must be in canonical form ("10.0.0.1/8")"#,
                r#"s.devices[1].networkData.ips[2]: Invalid value: "10.0.0.1": must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)"#,
                r#"s.devices[2]: Duplicate value: {"Driver":"d","Pool":"p","Device":"x","ShareID":""}"#,
            ]
        );
        let mut result = given.clone();
        result["bindingConditions"] = json!(["a", "a"]);
        result["shareID"] = "x".into();
        assert_eq!(
            found(&result, json!([])),
            [
                r#"s.allocation.devices.results[0].bindingConditions[1]: Duplicate value: "a""#,
                "s.allocation.devices.results[0].bindingFailureConditions: Invalid value: null: bindingFailureConditions are required to use bindingConditions",
                r#"s.allocation.devices.results[0].shareID: Invalid value: "x": error validating uid: invalid UUID length: 1"#,
            ]
        );
    }
}
