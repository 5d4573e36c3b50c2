//! core/v1 PersistentVolumeClaim: what a user asks of storage. The spec is fixed but for growing a bound claim.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{
    Column, Kind,
    podspec::internal,
    print::{AGE, NAME, age, column, name, wide},
    tree::{Tree, object_at, set_default, set_zero},
};
use crate::{
    admission::Ctx,
    field::{Errors, Path},
    quantity::{self, Quantity},
    validation::{self, check, names, one_of, resources, selector},
};

/// The class of a claim before it became a field.
pub(crate) const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const MODES: &[&str] = &[
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOnce",
    "ReadWriteOncePod",
];
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
        object["status"] = json!({});
        mirror_data_source(object);
    }

    fn prepare_update(&self, _ctx: &Ctx<'_>, object: &mut Value, _old: &Value) {
        mirror_data_source(object);
    }

    fn validate(&self, _ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        spec(errors, &Path::new("spec"), &object["spec"]);
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        update(errors, object, old);
    }

    fn validate_status(&self, _ctx: &Ctx<'_>, object: &Value, _old: &Value, errors: &mut Errors) {
        let path = Path::new("status");
        for (resource, amount) in object["status"].entries("capacity") {
            resources::amount(
                errors,
                &path.child("capacity").key(resource),
                resource,
                amount.as_str().unwrap_or(""),
            );
        }
    }

    /// A new claim is stored without a phase; whoever reads it is told that it is pending.
    fn to_served(&self, object: &mut Value) {
        object.as_object_mut().into_iter().for_each(pending);
    }

    fn rewrites_stored(&self) -> bool {
        true
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        let mut warnings = Vec::new();
        if object["metadata"]["annotations"].has(BETA_CLASS) {
            warnings.push(format!(
                r#"metadata.annotations[{BETA_CLASS}]: deprecated since v1.8; use "storageClassName" attribute instead"#
            ));
        }
        for list in ["requests", "limits"] {
            let Some(text) = object["spec"]["resources"][list]["storage"].as_str() else {
                continue;
            };
            if Quantity::parse(text).is_ok_and(|amount| looks_fractional(&amount)) {
                warnings.push(format!(
                    "spec.resources.{list}[storage]: fractional byte value {text:?} is invalid, must be an integer"
                ));
            }
        }
        warnings
    }

    fn columns(&self) -> Option<&[Column]> {
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
        Some(COLUMNS)
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let (spec, status) = (&object["spec"], &object["status"]);
        let volume = spec.text("volumeName");
        let (capacity, modes) = if volume.is_empty() {
            ("", String::new())
        } else {
            (
                status["capacity"].text("storage"),
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
            or_unset(spec.text("volumeAttributesClassName")).into(),
            age(object, now),
            or_unset(spec.text("volumeMode")).into(),
        ]
    }
}

/// Whether upstream takes an amount for a fraction: it looks at thousandths in 64 bits, which those of great amounts overflow.
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

fn pending(claim: &mut Map<String, Value>) {
    set_zero(object_at(claim, "status"), "phase", "Pending");
}

/// The phase cell of claims and volumes.
pub(crate) fn phase(object: &Value) -> &str {
    if object["metadata"].has("deletionTimestamp") {
        "Terminating"
    } else {
        object["status"].text("phase")
    }
}

/// The class of a claim or volume: the annotation of old, else the field.
pub(crate) fn class(object: &Value) -> &str {
    object["metadata"]["annotations"][BETA_CLASS]
        .as_str()
        .unwrap_or_else(|| object["spec"].text("storageClassName"))
}

/// A text, or `<unset>` for an empty one.
pub(crate) fn or_unset(text: &str) -> &str {
    if text.is_empty() { "<unset>" } else { text }
}

/// Access modes in short, each once, in upstream's order.
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

/// Records what is wrong with access modes.
pub(crate) fn validate_access_modes(errors: &mut Errors, path: &Path<'_>, modes: &[Value]) {
    if modes.is_empty() {
        errors.required(path, "at least 1 access mode is required");
    }
    for mode in modes.iter().filter_map(Value::as_str) {
        one_of(errors, path, mode, MODES);
    }
    if modes.iter().any(|mode| mode == "ReadWriteOncePod")
        && modes.iter().any(|mode| mode != "ReadWriteOncePod")
    {
        errors.forbidden(path, "may not use ReadWriteOncePod with other access modes");
    }
}

/// The old and the new field for a data source say the same.
fn mirror_data_source(object: &mut Value) {
    let Some(spec) = object["spec"].as_object_mut() else {
        return;
    };
    let present = |value: Option<&Value>| value.filter(|value| !value.is_null()).cloned();
    let (source, reference) = (
        present(spec.get("dataSource")),
        present(spec.get("dataSourceRef")),
    );
    match (source, reference) {
        (Some(source), None) => {
            spec.insert("dataSourceRef".to_owned(), source);
        }
        (None, Some(reference)) if reference.text("namespace").is_empty() => {
            let group = reference.text("apiGroup");
            let known = (group.is_empty() && reference["kind"] == "PersistentVolumeClaim")
                || (group == "snapshot.storage.k8s.io" && reference["kind"] == "VolumeSnapshot");
            if known {
                spec.insert("dataSource".to_owned(), reference);
            }
        }
        _ => {}
    }
}

/// Records what is wrong with the spec of a claim (also that of an ephemeral volume's template).
pub(crate) fn spec(errors: &mut Errors, path: &Path<'_>, spec: &Value) {
    validate_access_modes(
        errors,
        &path.child("accessModes"),
        spec.items("accessModes"),
    );
    selector::label_selector(errors, &path.child("selector"), &spec["selector"]);
    let storage = path.child("resources");
    match spec["resources"]["requests"]["storage"].as_str() {
        None => errors.required(&storage.key("storage"), ""),
        Some(text) => resources::positive(errors, &storage.key("storage"), text),
    }
    for field in ["storageClassName", "volumeAttributesClassName"] {
        let class = spec.text(field);
        if !class.is_empty() {
            check(
                errors,
                &path.child(field),
                class,
                names::dns_subdomain(class),
            );
        }
    }
    if let Some(mode) = spec["volumeMode"].as_str() {
        one_of(
            errors,
            &path.child("volumeMode"),
            mode,
            &["Block", "Filesystem"],
        );
    }
    for field in ["dataSource", "dataSourceRef"] {
        if let Some(source) = spec.field(field) {
            data_source(errors, &path.child(field), source);
        }
    }
}

fn data_source(errors: &mut Errors, path: &Path<'_>, source: &Value) {
    let (group, kind) = (source.text("apiGroup"), source.text("kind"));
    for field in ["name", "kind"] {
        if source.text(field).is_empty() {
            errors.required(&path.child(field), "");
        }
    }
    if group.is_empty() && kind != "PersistentVolumeClaim" {
        errors.invalid(
            path,
            kind,
            "must be 'PersistentVolumeClaim' when referencing the default apiGroup",
        );
    }
    if !group.is_empty() {
        check(
            errors,
            &path.child("apiGroup"),
            group,
            names::dns_subdomain(group),
        );
    }
}

fn update(errors: &mut Errors, claim: &Value, old: &Value) {
    let path = Path::new("spec");
    let mut compared = claim["spec"].clone();
    let before = &old["spec"];
    if before.text("volumeName").is_empty() {
        compared["volumeName"] = Value::Null;
    }
    if claim["status"]["phase"] == "Bound" {
        if compared["resources"].has("requests") {
            compared["resources"]["requests"]["storage"] =
                before["resources"]["requests"]["storage"].clone();
        }
        if compared.has("volumeAttributesClassName") {
            compared["volumeAttributesClassName"] = before["volumeAttributesClassName"].clone();
        }
    }
    // A claim without a class may get one later.
    if !before.has("storageClassName") && class(old).is_empty() {
        compared["storageClassName"] = Value::Null;
    }
    drop_nulls(&mut compared);
    let mut expected = before.clone();
    drop_nulls(&mut expected);
    if compared != expected {
        let difference = internal::difference("PersistentVolumeClaimSpec", &expected, &compared);
        errors.forbidden(&path, format!("{IMMUTABLE}\n{difference}"));
    }
    let amount = |claim: &Value, part: &str, list: &str| {
        let text = claim[part]["resources"][list].text("storage");
        Quantity::parse(if text.is_empty() { "0" } else { text })
            .unwrap_or_else(|_| Quantity::from_integer(0))
    };
    let actual = old["status"]["capacity"].text("storage");
    let actual = Quantity::parse(actual).unwrap_or_else(|_| Quantity::from_integer(0));
    let wanted = amount(claim, "spec", "requests");
    if wanted < amount(old, "spec", "requests") && wanted <= actual {
        let path = path.child("resources");
        let path = path.child("requests");
        errors.forbidden(
            &path.child("storage"),
            "field can not be less than status.capacity",
        );
    }
    validation::immutable(
        errors,
        &path.child("volumeMode"),
        &claim["spec"]["volumeMode"],
        &before["volumeMode"],
    );
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
