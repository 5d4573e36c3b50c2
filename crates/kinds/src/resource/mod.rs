//! resource.k8s.io/v1: devices that drivers offer and that pods claim (`pkg/apis/resource`, `pkg/registry/resource`).
//!
//! [`claim`] validates requests for devices, and [`mod@slice`] validates offered devices; the kinds are in this file. The API server does
//! not allocate devices: a client allocates them by writing the claim's status.

mod claim;
mod rights;
mod selector;
mod slice;

use std::collections::HashSet;

use jiff::Timestamp;
use mullion_kube_text::{
    field::{ErrorType, Errors, Path},
    golang::quote,
    names,
    validation::{IMMUTABLE, check, metadata, resources},
};
use mullion_schema::{
    time,
    tree::{Tree, object_at, set_default, set_zero},
};
use serde_json::{Map, Value, json};

use self::selector::SELECTORS;
use super::{
    Check, Column, Kind,
    csi::driver_name,
    podspec::{external, internal},
    print,
};
use crate::{
    FieldSelection, Printing,
    fields::{self, Code, Each, Field, Fields, Format, Text, UpTo, always, present, required, set},
    request::Ctx,
};

/// resource.k8s.io/v1 DeviceClass.
pub(super) struct DeviceClass;

/// resource.k8s.io/v1 ResourceClaim.
pub(super) struct ResourceClaim;

/// resource.k8s.io/v1 ResourceClaimTemplate.
pub(super) struct ResourceClaimTemplate;

/// resource.k8s.io/v1 ResourceSlice.
pub(super) struct ResourceSlice;

const MAX_CONFIGS: usize = 32;
const MAX_PARAMETERS: usize = 10 * 1024;
const MAX_POOL_NAME: usize = 253;
const MAX_BINDING_CONDITIONS: usize = 4;

const CLASS: &[Field] = &[
    always("selectors", SELECTORS),
    always("config", UpTo(MAX_CONFIGS, &Each(CONFIGURATION))),
    set("extendedResourceName", Text(extended_resource)),
];
/// The configuration for a driver.
const CONFIGURATION: &[Field] = &[present("opaque", Fields(OPAQUE))];
const OPAQUE: &[Field] = &[
    required("driver", Text(driver_name)),
    present("parameters", Code(parameters)),
];
/// The device that a result or a status is about.
const DEVICE: &[Field] = &[
    required("driver", Text(driver_name)),
    required("pool", Text(pool_name)),
    always("device", Format(names::dns_label)),
];

const PLAIN_COLUMNS: [Column; 2] = [print::NAME, print::AGE];
const CLAIM_COLUMNS: [Column; 3] = [print::NAME, print::column("State"), print::AGE];
const SLICE_COLUMNS: [Column; 5] = [
    print::NAME,
    print::column("Node"),
    print::column("Driver"),
    print::column("Pool"),
    print::AGE,
];

impl Kind for DeviceClass {
    fn update_checks(&self, _: &str) -> &'static [Check] {
        &[
            Check::Metadata,
            Check::MetadataChange,
            Check::Object,
            Check::Change,
        ]
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        fields::validate(CLASS, &object["spec"], &Path::new("spec"), errors);
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for DeviceClass {
    fn columns(&self) -> &[Column] {
        &PLAIN_COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![print::name(object), print::age(object, now)]
    }
}

impl Kind for ResourceClaim {
    fn update_checks(&self, _: &str) -> &'static [Check] {
        Check::CHANGE_AND_WHOLE
    }

    fn default(&self, object: &mut Value) {
        if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
            default_claim(spec);
        }
    }

    fn prepare_status(&self, _: &Ctx<'_>, object: &mut Value, old: &Value) {
        claim::forget_taken(object, old);
    }

    fn validate_creation(&self, ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let path = Path::new("spec");
        rights::admin_access(ctx, &object["spec"], errors);
        // The spec of a claim never changes, so it is validated only at creation.
        claim::devices(&object["spec"]["devices"], &path.child("devices"), errors);
    }

    fn validate_update(&self, _: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        same_spec(object, old, "ResourceClaimSpec", errors);
    }

    fn validate_status(&self, ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        let (path, before) = (Path::new("status"), &old["status"]);
        rights::status(ctx, &object["status"], before, &path, errors);
        claim::status(object, old, &path, errors);
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for ResourceClaim {
    fn columns(&self) -> &[Column] {
        &CLAIM_COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let (status, deleted) = (
            &object["status"],
            object["metadata"].has("deletionTimestamp"),
        );
        let allocated = status.has("allocation");
        let states = [
            (deleted, "deleted"),
            (!allocated && !deleted, "pending"),
            (allocated, "allocated"),
            (
                allocated && !status.items("reservedFor").is_empty(),
                "reserved",
            ),
        ];
        let states: Vec<&str> = states
            .into_iter()
            .filter_map(|(is, state)| is.then_some(state))
            .collect();
        vec![
            print::name(object),
            states.join(",").into(),
            print::age(object, now),
        ]
    }
}

impl Kind for ResourceClaimTemplate {
    fn update_checks(&self, _: &str) -> &'static [Check] {
        Check::CHANGE_AND_WHOLE
    }

    fn default(&self, object: &mut Value) {
        let spec = object.get_mut("spec").and_then(|spec| spec.get_mut("spec"));
        if let Some(spec) = spec.and_then(Value::as_object_mut) {
            default_claim(spec);
        }
    }

    fn creation_checks(&self) -> &'static [Check] {
        // kube-apiserver looks for admin access before anything else.
        &[Check::Change, Check::Metadata, Check::Object]
    }

    fn validate_creation(&self, ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        rights::admin_access(ctx, &object["spec"]["spec"], errors);
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let (spec, path) = (&object["spec"], Path::new("spec"));
        external::template_metadata(&spec["metadata"], &path.child("metadata"), errors);
        let at = path.child("spec");
        claim::devices(&spec["spec"]["devices"], &at.child("devices"), errors);
    }

    fn validate_update(&self, _: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        same_spec(object, old, "ResourceClaimTemplateSpec", errors);
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for ResourceClaimTemplate {
    fn columns(&self) -> &[Column] {
        &PLAIN_COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![print::name(object), print::age(object, now)]
    }
}

/// Drops the fields of devices whose feature gates (`DRAListTypeAttributes`, `DRANodeAllocatableResources`) are off by default.
fn drop_disabled(slice: &mut Value) {
    let devices = slice["spec"].get_mut("devices");
    let devices = devices.and_then(Value::as_array_mut).into_iter().flatten();
    for device in devices.filter_map(Value::as_object_mut) {
        device.remove("nodeAllocatableResourceMappings");
        let attributes = device.get_mut("attributes").and_then(Value::as_object_mut);
        let attributes = attributes.into_iter().flat_map(|map| map.values_mut());
        for attribute in attributes.filter_map(Value::as_object_mut) {
            for list in ["bools", "ints", "strings", "versions"] {
                attribute.remove(list);
            }
        }
    }
}

/// Gives taints of devices that say nothing else the time of the write.
fn stamp_taints(ctx: &Ctx<'_>, slice: &mut Value) {
    let devices = slice["spec"].get_mut("devices");
    let devices = devices.and_then(Value::as_array_mut).into_iter().flatten();
    let taints = devices.filter_map(|device| device.get_mut("taints")?.as_array_mut());
    for taint in taints.flatten().filter_map(Value::as_object_mut) {
        set_default(taint, "timeAdded", time::format_seconds(&ctx.now));
    }
}

impl Kind for ResourceSlice {
    fn prepare_create(&self, ctx: &Ctx<'_>, object: &mut Value) {
        drop_disabled(object);
        stamp_taints(ctx, object);
    }

    fn prepare_update(&self, ctx: &Ctx<'_>, object: &mut Value, _old: &Value) {
        drop_disabled(object);
        stamp_taints(ctx, object);
    }

    fn validate_creation(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        slice::spec(&object["spec"], None, &Path::new("spec"), errors);
    }

    fn validate_update(&self, _: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        slice::spec(
            &object["spec"],
            Some(&old["spec"]),
            &Path::new("spec"),
            errors,
        );
    }

    fn warnings(&self, object: &Value, _: Option<&Value>) -> Vec<String> {
        let driver = object["spec"].text("driver");
        let is_lowercase = driver.to_lowercase() == driver;
        let warning = (!is_lowercase).then(|| {
            let driver = quote(driver);
            format!("spec.driver: driver names should be lowercase; {driver} contains uppercase characters")
        });
        warning.into_iter().collect()
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }

    fn field_selection(&self) -> Option<&dyn FieldSelection> {
        Some(self)
    }
}

impl Printing for ResourceSlice {
    fn columns(&self) -> &[Column] {
        &SLICE_COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        vec![
            print::name(object),
            spec.text("nodeName").into(),
            spec.text("driver").into(),
            spec["pool"].text("name").into(),
            print::age(object, now),
        ]
    }
}

impl FieldSelection for ResourceSlice {
    fn selectable_fields(&self) -> &[&'static str] {
        &["spec.driver", "spec.nodeName"]
    }

    fn unselectable(&self, field: &str) -> Option<String> {
        let kind = "resource.k8s.io/v1, Kind=ResourceSlice";
        Some(format!("field label not supported for {kind}: {field}"))
    }

    fn selectable_value(&self, object: &Value, field: &str) -> String {
        let field = field.strip_prefix("spec.").unwrap_or(field);
        object["spec"].text(field).to_owned()
    }
}

/// Sets the default of a request: one device of its class.
fn default_claim(spec: &mut Map<String, Value>) {
    let requests = object_at(spec, "devices").get_mut("requests");
    let requests = requests.and_then(Value::as_array_mut);
    for request in requests.into_iter().flatten() {
        let Some(request) = request.as_object_mut() else {
            continue;
        };
        if let Some(exactly) = request.get_mut("exactly").and_then(Value::as_object_mut) {
            default_request(exactly);
        }
        let others = request
            .get_mut("firstAvailable")
            .and_then(Value::as_array_mut);
        let others = others.into_iter().flatten();
        for other in others.filter_map(Value::as_object_mut) {
            default_request(other);
        }
    }
}

fn default_request(request: &mut Map<String, Value>) {
    set_zero(request, "allocationMode", "ExactCount");
    if request["allocationMode"] == "ExactCount" {
        set_zero(request, "count", 1);
    }
    let tolerations = request.get_mut("tolerations").and_then(Value::as_array_mut);
    let tolerations = tolerations.into_iter().flatten();
    for toleration in tolerations.filter_map(Value::as_object_mut) {
        set_zero(toleration, "operator", "Equal");
    }
}

fn same_spec(object: &Value, old: &Value, type_name: &str, errors: &mut Errors) {
    if object["spec"] != old["spec"] {
        let path = Path::new("spec");
        let text = internal::as_sent(type_name, &object["spec"], &path, errors);
        errors.with_text(ErrorType::Invalid, &path, text, IMMUTABLE);
    }
}

fn pool_name(errors: &mut Errors, path: &Path<'_>, name: &str) {
    if name.len() > MAX_POOL_NAME {
        errors.too_long(path, MAX_POOL_NAME);
    }
    for part in name.split('/') {
        check(errors, path, part, names::dns_subdomain(part));
    }
}

fn extended_resource(errors: &mut Errors, path: &Path<'_>, name: &str) {
    if !resources::is_extended(name) {
        errors.invalid(path, name, "must be a valid extended resource name");
    }
}

/// Validates the opaque parameters for a driver.
fn parameters(given: &Value, path: &Path<'_>, errors: &mut Errors) {
    match given {
        _ if given.to_string().len() > MAX_PARAMETERS => errors.too_long(path, MAX_PARAMETERS),
        Value::Object(_) => {}
        _ => errors.invalid(path, "<value omitted>", "must be a valid JSON object"),
    }
}

/// Validates the conditions that a binding waits for and those that make it fail: both lists must be set, or neither.
fn binding_conditions(owner: &Value, path: &Path<'_>, errors: &mut Errors) {
    const FIELDS: [&str; 2] = ["bindingConditions", "bindingFailureConditions"];
    let lists = FIELDS.map(|field| owner.items(field));
    let paths = FIELDS.map(|field| path.child(field));
    for (list, at) in lists.iter().zip(&paths) {
        if list.len() > MAX_BINDING_CONDITIONS {
            errors.too_many(at, list.len(), MAX_BINDING_CONDITIONS);
            continue;
        }
        for (index, item) in list.iter().enumerate() {
            metadata::label_name(errors, &at.index(index), item.as_str().unwrap_or_default());
        }
    }
    let first: HashSet<&Value> = lists[0].iter().collect();
    for (place, (list, at)) in lists.iter().zip(&paths).enumerate() {
        let mut seen = HashSet::new();
        for (index, item) in list.iter().enumerate() {
            if !seen.insert(item) {
                errors.duplicate(&at.index(index), item.clone());
            }
            if place == 1 && first.contains(item) {
                let why = "bindingFailureConditions must not overlap with bindingConditions";
                errors.invalid(&at.index(index), item.clone(), why);
            }
        }
    }
    for (one, other) in [(0, 1), (1, 0)] {
        if lists[one].is_empty() && !lists[other].is_empty() {
            let why = format!("{} are required to use {}", FIELDS[one], FIELDS[other]);
            let sent = errors.emptied().has(&paths[one]);
            let shown = if sent { json!([]) } else { Value::Null };
            errors.invalid(&paths[one], shown, why);
        }
    }
}

/// Validates a list of at most `most` items with unique keys.
fn unique_items<'a>(
    items: &'a [Value],
    most: usize,
    path: &Path<'_>,
    errors: &mut Errors,
    key: impl Fn(&'a Value) -> &'a str,
    judge: impl Fn(&Value, &Path<'_>, &mut Errors),
) {
    if items.len() > most {
        return errors.too_many(path, items.len(), most);
    }
    for (index, item) in items.iter().enumerate() {
        judge(item, &path.index(index), errors);
    }
    let mut seen = HashSet::new();
    for (index, item) in items.iter().enumerate() {
        let own = key(item);
        if !seen.insert(own) {
            errors.duplicate(&path.index(index), own);
        }
    }
}
