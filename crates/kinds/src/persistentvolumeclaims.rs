//! core/v1 PersistentVolumeClaim: a user's request for storage. The spec is immutable, except that a bound claim can grow.

use jiff::Timestamp;
use mullion_kube_text::{
    field::{ErrorType, Errors, Path},
    names,
    quantity::{self, Quantity},
    validation::{self, check, one_of, resources},
};
use mullion_schema::tree::{Tree, object_at, set_default, set_zero};
use serde_json::{Map, Value, json};

use super::{
    Check, Column, Kind,
    podspec::internal,
    print::{AGE, NAME, age, column, name, wide},
};
use crate::{
    Conversion, Printing,
    fields::{self, Anything, Code, Field, Format, OneOf, Selector, always, filled, required, set},
    request::Ctx,
};

/// The annotation that named the class of a claim before `storageClassName` existed.
pub const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const MODES: &[&str] = &[
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOnce",
    "ReadWriteOncePod",
];
/// The modes of a volume, sorted as errors print them.
pub(crate) const VOLUME_MODES: &[&str] = &["Block", "Filesystem"];
const SPEC: &[Field] = &[
    required("accessModes", Anything).because("at least 1 access mode is required"),
    always("selector", Selector),
    always("accessModes", Code(validate_access_modes)),
];
const CLASS_AND_SOURCES: &[Field] = &[
    filled("storageClassName", Format(names::dns_subdomain)),
    set("volumeMode", OneOf(VOLUME_MODES)),
    set("dataSource", Code(data_source)),
    set("dataSourceRef", Code(data_source)),
];
const ATTRIBUTES: &[Field] = &[filled(ATTRIBUTES_CLASS, Format(names::dns_subdomain))];
const DATA_SOURCE: &[Field] = &[required("name", Anything), required("kind", Anything)];
const DATA_SOURCE_GROUP: &[Field] = &[
    filled("apiGroup", Format(names::dns_subdomain)),
    filled("namespace", Format(names::dns_label)),
];
const ATTRIBUTES_CLASS: &str = "volumeAttributesClassName";
const IMMUTABLE: &str = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";

/// core/v1 PersistentVolumeClaim.
pub(crate) struct PersistentVolumeClaim;

impl Kind for PersistentVolumeClaim {
    fn default(&self, object: &mut Value) {
        let Some(root) = object.as_object_mut() else {
            return;
        };
        let spec = object_at(root, "spec");
        set_default(spec, "volumeMode", "Filesystem");
        if let Some(resources) = spec.get_mut("resources").and_then(Value::as_object_mut) {
            resources.values_mut().for_each(quantity::round_list);
        }
        pending(root);
        let status = object_at(root, "status");
        for list in ["capacity", "allocatedResources"] {
            status
                .get_mut(list)
                .into_iter()
                .for_each(quantity::round_list);
        }
    }

    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        // A new claim is stored without a phase; `to_served` adds it.
        object["status"] = json!({});
        settle_data_source(object, None);
    }

    fn prepare_update(&self, _ctx: &Ctx<'_>, object: &mut Value, old: &Value) {
        settle_data_source(object, Some(old));
    }

    fn validate(&self, _ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        spec(&object["spec"], &Path::new("spec"), errors);
    }

    fn update_checks(&self, _subresource: &str) -> &'static [Check] {
        &[
            Check::Metadata,
            Check::Object,
            Check::MetadataChange,
            Check::Change,
        ]
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        update(errors, object, old);
    }

    fn validate_status(&self, _ctx: &Ctx<'_>, object: &Value, _old: &Value, errors: &mut Errors) {
        status(errors, object);
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        let mut warnings = Vec::new();
        if object["metadata"]["annotations"].has(BETA_CLASS) {
            warnings.push(beta_class_warning());
        }
        warnings.extend(fraction_warnings(&Path::new("spec"), &object["spec"]));
        warnings
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }

    fn conversion(&self) -> Option<&dyn Conversion> {
        Some(self)
    }
}

impl Printing for PersistentVolumeClaim {
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[
            NAME,
            column("Status"),
            column("Volume"),
            column("Capacity"),
            column("Access Modes"),
            column("StorageClass"),
            column("VolumeAttributesClass"),
            AGE,
            wide("VolumeMode"),
        ];
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let (spec, status) = (&object["spec"], &object["status"]);
        let volume = spec.text("volumeName");
        let (capacity, modes) = if volume.is_empty() {
            ("", String::new())
        } else {
            (
                // Go prints a quantity that is not set as 0.
                status["capacity"]["storage"].as_str().unwrap_or("0"),
                access_modes(status.items("accessModes")),
            )
        };
        vec![
            name(object),
            phase(object).into(),
            volume.into(),
            capacity.into(),
            modes.into(),
            class(object).into(),
            spec[ATTRIBUTES_CLASS].as_str().unwrap_or("<unset>").into(),
            age(object, now),
            or_unset(spec.text("volumeMode")).into(),
        ]
    }
}

impl Conversion for PersistentVolumeClaim {
    /// Sets the phase `Pending` of a claim without a phase: new claims are stored without one.
    fn to_served(&self, object: &mut Value) {
        object.as_object_mut().into_iter().for_each(pending);
    }

    fn rewrites_stored(&self) -> bool {
        true
    }
}

/// Returns whether kube-apiserver treats an amount as fractional. It computes thousandths in 64 bits, which large amounts overflow.
fn looks_fractional(amount: &Quantity) -> bool {
    if amount.is_beyond_reach() {
        return false;
    }
    if !amount.is_integer() {
        return amount.milli_value() % 1000 != 0;
    }
    let thousandths = amount.nano() / 1_000_000;
    (thousandths as i64) % 1000 != 0
}

/// Returns the warning for a class that is named in an annotation.
pub(crate) fn beta_class_warning() -> String {
    format!(
        r#"metadata.annotations[{BETA_CLASS}]: deprecated since v1.8; use "storageClassName" attribute instead"#
    )
}

/// Returns the warnings about fractional amounts in a claim's spec.
pub(crate) fn fraction_warnings(path: &Path<'_>, spec: &Value) -> Vec<String> {
    let fraction = |list: &str| {
        let text = spec["resources"][list]["storage"].as_str()?;
        let amount = Quantity::parse(text).ok()?;
        let at = path.child("resources");
        let at = at.child(list);
        looks_fractional(&amount).then(|| {
            let at = at.key("storage");
            format!("{at}: fractional byte value \"{amount}\" is invalid, must be an integer")
        })
    };
    ["requests", "limits"]
        .into_iter()
        .filter_map(fraction)
        .collect()
}

fn pending(claim: &mut Map<String, Value>) {
    set_zero(object_at(claim, "status"), "phase", "Pending");
}

/// Returns the phase of a claim or volume, as the table prints it.
pub(crate) fn phase(object: &Value) -> &str {
    if object["metadata"].has("deletionTimestamp") {
        "Terminating"
    } else {
        object["status"].text("phase")
    }
}

/// Returns the class of a claim or volume: the annotation, or else the field.
pub fn class(object: &Value) -> &str {
    object["metadata"]["annotations"][BETA_CLASS]
        .as_str()
        // The annotation wins, because controllers from before the field wrote it.
        .unwrap_or_else(|| object["spec"].text("storageClassName"))
}

/// Returns the text, or `<unset>` if it is empty.
pub(crate) fn or_unset(text: &str) -> &str {
    if text.is_empty() { "<unset>" } else { text }
}

/// Returns the abbreviated access modes, each once, in the order of kube-apiserver's printer.
pub(crate) fn access_modes(modes: &[Value]) -> String {
    const SHORT: [(&str, &str); 4] = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let present: Vec<&str> = SHORT
        .iter()
        .filter(|(mode, _)| modes.iter().any(|m| m == mode))
        .map(|(_, short)| *short)
        .collect();
    present.join(",")
}

/// Records the errors of access modes; an empty list has none.
pub(crate) fn validate_access_modes(modes: &Value, path: &Path<'_>, errors: &mut Errors) {
    const ALONE: &str = "ReadWriteOncePod";
    let modes = || modes.as_array().into_iter().flatten();
    let texts = || modes().filter_map(Value::as_str);
    for mode in texts() {
        // kube-apiserver reports wrong modes at the list, without their index.
        one_of(errors, path, mode, MODES);
    }
    if texts().any(|mode| mode == ALONE)
        && texts().any(|mode| mode != ALONE && MODES.contains(&mode))
    {
        errors.forbidden(path, "may not use ReadWriteOncePod with other access modes");
    }
}

/// Reconciles `dataSource` and `dataSourceRef`. A claim that had neither may use `dataSource` only for a claim or a snapshot. A source in
/// another namespace is dropped, because its feature gate is off by default. If only one of the fields is set, the other gets its value.
fn settle_data_source(object: &mut Value, old: Option<&Value>) {
    let before = old.map(|old| &old["spec"]);
    let had = |field: &str| before.is_some_and(|before| before.has(field));
    let (had_source, had_reference) = (had("dataSource"), had("dataSourceRef"));
    let Some(spec) = object["spec"].as_object_mut() else {
        return;
    };
    let present = |spec: &Map<String, Value>, field: &str| {
        spec.get(field).filter(|value| !value.is_null()).cloned()
    };
    let mut reference = present(spec, "dataSourceRef");
    if !had_reference
        && reference
            .as_ref()
            .is_some_and(|reference| !reference.text("namespace").is_empty())
    {
        reference = None;
        spec.remove("dataSourceRef");
    }
    let mut source = present(spec, "dataSource");
    if !had_source
        && !had_reference
        && reference.is_none()
        && source
            .as_ref()
            .is_some_and(|source| !is_claim_or_snapshot(source))
    {
        source = None;
        spec.remove("dataSource");
    }
    // Clients may know only one of the two fields.
    match (source, reference) {
        (Some(source), None) => {
            spec.insert("dataSourceRef".to_owned(), source);
        }
        (None, Some(mut reference)) if reference.text("namespace").is_empty() => {
            if let Some(reference) = reference.as_object_mut() {
                reference.remove("namespace");
            }
            spec.insert("dataSource".to_owned(), reference);
        }
        _ => {}
    }
}

fn is_claim_or_snapshot(source: &Value) -> bool {
    matches!(
        (source.text("apiGroup"), source.text("kind")),
        ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
    )
}

/// Records the errors of a claim's spec, or of the template of an ephemeral volume.
pub(crate) fn spec(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    fields::validate(SPEC, spec, path, errors);
    let storage = path.child("resources");
    match spec["resources"]["requests"]["storage"].as_str() {
        None => errors.required(&storage.key("storage"), ""),
        Some(text) => resources::positive(errors, &storage.key("storage"), text),
    }
    fields::validate(CLASS_AND_SOURCES, spec, path, errors);
    data_sources(errors, path, spec);
    fields::validate(ATTRIBUTES, spec, path, errors);
}

/// Requires `dataSource` and `dataSourceRef` to be equal if both are set.
fn data_sources(errors: &mut Errors, path: &Path<'_>, spec: &Value) {
    let (Some(source), Some(reference)) = (spec.field("dataSource"), spec.field("dataSourceRef"))
    else {
        return;
    };
    let same = |field: &str| source.field(field) == reference.field(field);
    let detail = if !reference.text("namespace").is_empty() {
        "may not be specified when dataSourceRef.namespace is specified"
    } else if !["apiGroup", "kind", "name"].into_iter().all(same) {
        "must match dataSourceRef"
    } else {
        return;
    };
    // The value in kube-apiserver's error is a field path, which prints as an empty struct.
    errors.with_text(ErrorType::Invalid, path, "{}".to_owned(), detail);
}

fn data_source(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    let (group, kind) = (source.text("apiGroup"), source.text("kind"));
    fields::validate(DATA_SOURCE, source, path, errors);
    if group.is_empty() && kind != "PersistentVolumeClaim" {
        errors.invalid(
            path,
            kind,
            "must be 'PersistentVolumeClaim' when referencing the default apiGroup",
        );
    }
    fields::validate(DATA_SOURCE_GROUP, source, path, errors);
}

fn update(errors: &mut Errors, claim: &Value, old: &Value) {
    let path = Path::new("spec");
    let mut compared = claim["spec"].clone();
    let (before, mut expected) = (&old["spec"], old["spec"].clone());
    if before.text("volumeName").is_empty() {
        // Binding a claim to its volume is an update of the spec.
        expected["volumeName"] = compared["volumeName"].clone();
    }
    class_change(errors, claim, old, &mut compared);
    // A bound claim may grow and change its attributes, so both are left out of the comparison and checked below.
    if claim["status"]["phase"] == "Bound" {
        if compared["resources"].has("requests") {
            compared["resources"]["requests"]["storage"] =
                before["resources"]["requests"]["storage"].clone();
        }
        if compared.has(ATTRIBUTES_CLASS) {
            compared[ATTRIBUTES_CLASS] = before[ATTRIBUTES_CLASS].clone();
        }
    }
    drop_nulls(&mut compared);
    drop_nulls(&mut expected);
    if compared != expected {
        let difference = internal::difference_as_sent(
            "PersistentVolumeClaimSpec",
            &expected,
            &compared,
            &path,
            errors,
        );
        errors.forbidden(&path, format!("{IMMUTABLE}\n{difference}"));
    }
    let amount = |list: &Value| {
        Quantity::parse(list.text("storage")).unwrap_or_else(|_| Quantity::from_integer(0))
    };
    let actual = amount(&old["status"]["capacity"]);
    let wanted = amount(&claim["spec"]["resources"]["requests"]);
    // A request may be lowered after a failed expansion, but not to the size that the volume already has.
    if wanted < amount(&before["resources"]["requests"]) && wanted <= actual {
        let path = path.child("resources");
        let path = path.child("requests");
        errors.forbidden(
            &path.child("storage"),
            "field can not be less than status.capacity",
        );
    }
    // This path is the one that kube-apiserver reports.
    fields::immutable(&["volumeMode"], &claim["spec"], before, Path::ROOT, errors);
    if before.has(ATTRIBUTES_CLASS) {
        let why = match claim["spec"][ATTRIBUTES_CLASS].as_str() {
            None => "update from non-nil value to nil is forbidden",
            Some("") if !before.text(ATTRIBUTES_CLASS).is_empty() => {
                "update from non-nil value to an empty string is forbidden"
            }
            Some(_) => return,
        };
        errors.forbidden(&path.child(ATTRIBUTES_CLASS), why);
    }
}

/// Validates a change of the class: a claim without one may get one, for example the one that its annotation names.
fn class_change(errors: &mut Errors, claim: &Value, old: &Value, compared: &mut Value) {
    let annotation = |claim: &'_ Value| {
        let annotations = &claim["metadata"]["annotations"];
        annotations[BETA_CLASS].as_str().map(str::to_owned)
    };
    let (now, before) = (annotation(claim), annotation(old));
    let class = claim["spec"]["storageClassName"].as_str();
    let comes = class.is_some() && !old["spec"].has("storageClassName");
    let as_annotated = class == before.as_deref();
    // Moving the class from the annotation to the field is no change: null equals the old spec.
    if comes && before.is_some() && as_annotated && (now.is_none() || now == before) {
        compared["storageClassName"] = Value::Null;
        return;
    }
    let (now, before) = (now.unwrap_or_default(), before.unwrap_or_default());
    if now != before {
        let path = Path::new("metadata");
        let path = path.child("annotations");
        errors.invalid(&path.child(BETA_CLASS), now, validation::IMMUTABLE);
    }
    if comes && (before.is_empty() || as_annotated) {
        compared["storageClassName"] = Value::Null;
    }
}

/// Validates the name of a resource in a claim's status, which is `storage` or has a domain; returns whether the name is supported.
fn claim_resource(errors: &mut Errors, path: &Path<'_>, name: &str) -> bool {
    let sentences = names::qualified_name(name);
    let good = sentences.is_empty();
    check(errors, path, name, sentences);
    if good && resources::is_native(name) && name != "storage" {
        errors.not_supported(path, name, &["storage"]);
        return false;
    }
    good
}

fn status(errors: &mut Errors, claim: &Value) {
    const STEPS: &[&str] = &[
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
        "NodeResizePending",
    ];
    let (path, status) = (Path::new("status"), &claim["status"]);
    for (resource, amount) in status.entries("capacity") {
        let path = path.child("capacity");
        resources::basic(errors, &path.key(resource), amount.as_str().unwrap_or(""));
    }
    for (resource, step) in status.entries("allocatedResourceStatuses") {
        let path = path.child("allocatedResourceStatuses");
        claim_resource(errors, &path, resource);
        // kube-apiserver reports the resource and not the step.
        if !STEPS.contains(&step.as_str().unwrap_or("")) {
            errors.not_supported(&path, resource, STEPS);
        }
    }
    for (resource, amount) in status.entries("allocatedResources") {
        let path = path.child("allocatedResources");
        if claim_resource(errors, &path, resource) {
            resources::basic(errors, &path.key(resource), amount.as_str().unwrap_or(""));
        }
    }
}

fn drop_nulls(spec: &mut Value) {
    if let Some(spec) = spec.as_object_mut() {
        spec.retain(|_, value| !value.is_null());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_modes_are_shortened_once_each_in_a_fixed_order() {
        let modes = json!(["ReadOnlyMany", "ReadWriteOnce", "ReadOnlyMany"]);
        assert_eq!(access_modes(modes.as_array().unwrap()), "RWO,ROX");
    }

    #[test]
    fn a_bound_claim_may_grow_and_nothing_else() {
        let old = json!({"spec": {"volumeName": "v", "resources": {"requests": {"storage": "1Gi"}}}, "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}});
        let mut grown = old.clone();
        grown["spec"]["resources"]["requests"]["storage"] = "2Gi".into();
        let mut errors = Errors::default();
        update(&mut errors, &grown, &old);
        assert!(errors.is_empty(), "{errors:?}");
        let mut shrunk = old.clone();
        shrunk["spec"]["resources"]["requests"]["storage"] = "512Mi".into();
        update(&mut errors, &shrunk, &old);
        assert_eq!(
            errors.0[0].detail,
            "field can not be less than status.capacity"
        );
    }
}
