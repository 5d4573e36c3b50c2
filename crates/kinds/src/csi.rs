//! storage.k8s.io/v1 kinds of the Container Storage Interface: CSIDriver, and CSINode with the drivers on a node.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use mullion_kube_text::{
    field::{ErrorType, Errors, Path},
    names, validation,
};
use mullion_schema::tree::{Tree, object_at, set_default};
use serde_json::{Value, json};

use super::{
    Check, Column, Kind,
    podspec::internal,
    print::{AGE, NAME, age, column, name, or_none, typed},
};
use crate::{
    Printing,
    fields::{
        self, All, AtLeast, AtMost, Code, Field, Fields, NOT_NEGATIVE, OneOf, Rule, Text, always,
        required, set,
    },
    request::Ctx,
};

/// The longest name of a driver.
const MAX_DRIVER_NAME: usize = 63;
const MAX_NODE_ID: usize = 256;
/// The lifetime of a requested token.
pub(crate) const TOKEN_SECONDS: Rule = All(&[
    AtLeast(600, "may not specify a duration less than 10 minutes"),
    AtMost(
        1 << 32,
        "may not specify a duration larger than 2^32 seconds",
    ),
]);
const TOKEN_REQUEST: &[Field] = &[set("expirationSeconds", TOKEN_SECONDS)];
const DRIVER: &[Field] = &[
    always(
        "fsGroupPolicy",
        OneOf(&["File", "None", "ReadWriteOnceWithFSType"]),
    ),
    always("tokenRequests", Code(token_requests)),
    always("volumeLifecycleModes", Code(lifecycle_modes)),
    set(
        "nodeAllocatableUpdatePeriodSeconds",
        AtLeast(10, "must be greater than or equal to 10 seconds"),
    ),
];
const NODE_DRIVER: &[Field] = &[
    required("name", Text(driver_name)),
    required("nodeID", Text(node_id)),
    always("allocatable", Fields(ALLOCATABLE)),
];
const ALLOCATABLE: &[Field] = &[set("count", NOT_NEGATIVE)];

/// storage.k8s.io/v1 CSIDriver.
pub(crate) struct CsiDriver;

/// storage.k8s.io/v1 CSINode.
pub(crate) struct CsiNode;

/// Validates the name of a CSI driver.
pub(crate) fn driver_name(errors: &mut Errors, path: &Path<'_>, driver: &str) {
    if driver.len() > MAX_DRIVER_NAME {
        errors.too_long(path, MAX_DRIVER_NAME);
    }
    validation::check(
        errors,
        path,
        driver,
        // Drivers with capitals in their names exist, so the check ignores case.
        names::dns_subdomain(&driver.to_lowercase()),
    );
}

fn node_id(errors: &mut Errors, path: &Path<'_>, id: &str) {
    if id.len() > MAX_NODE_ID {
        let why = format!("must be {MAX_NODE_ID} characters or less");
        errors.invalid(path, id, why);
    }
}

fn token_requests(requests: &Value, path: &Path<'_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for (index, request) in requests.as_array().into_iter().flatten().enumerate() {
        let at = path.index(index);
        let audience = request.text("audience");
        if !seen.insert(audience) {
            // kube-apiserver does not look at the lifetime of a duplicate.
            errors.duplicate(&at.child("audience"), audience);
            continue;
        }
        fields::validate(TOKEN_REQUEST, request, &at, errors);
    }
}

/// The fields of a CSIDriver whose changes its generation counts.
pub(super) const COUNTED_FIELDS: &[&str] = &[
    "spec.fsGroupPolicy",
    "spec.nodeAllocatableUpdatePeriodSeconds",
    "spec.podInfoOnMount",
    "spec.requiresRepublish",
    "spec.seLinuxMount",
    "spec.serviceAccountTokenInSecrets",
    "spec.storageCapacity",
    "spec.tokenRequests",
];

/// Validates the modes. As in kube-apiserver, errors name the list instead of the item.
fn lifecycle_modes(modes: &Value, path: &Path<'_>, errors: &mut Errors) {
    let modes = modes.as_array().into_iter().flatten();
    for mode in modes.filter_map(Value::as_str) {
        validation::one_of(errors, path, mode, &["Persistent", "Ephemeral"]);
    }
}

/// Drops `preventPodSchedulingIfMissing`, whose feature is off, unless the stored driver has it.
fn drop_disabled(object: &mut Value, old: &Value) {
    const FIELD: &str = "preventPodSchedulingIfMissing";
    if !old["spec"].has(FIELD)
        && let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut)
    {
        spec.remove(FIELD);
    }
}

impl Kind for CsiDriver {
    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        drop_disabled(object, &Value::Null);
    }

    fn prepare_update(&self, _ctx: &Ctx<'_>, object: &mut Value, old: &Value) {
        drop_disabled(object, old);
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        const WHY: &str = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes";
        let requests = |driver: &Value| driver["spec"].items("tokenRequests").to_vec();
        let now = requests(object);
        let is_new = old.is_none_or(|old| requests(old) != now);
        let is_unset = !object["spec"].has("serviceAccountTokenInSecrets");
        let warns = !now.is_empty() && is_new && is_unset;
        warns.then(|| WHY.to_owned()).into_iter().collect()
    }

    fn default(&self, object: &mut Value) {
        let Some(root) = object.as_object_mut() else {
            return;
        };
        let spec = object_at(root, "spec");
        set_default(spec, "attachRequired", true);
        for field in [
            "podInfoOnMount",
            "storageCapacity",
            "requiresRepublish",
            "seLinuxMount",
        ] {
            set_default(spec, field, false);
        }
        set_default(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
        if spec
            .get("volumeLifecycleModes")
            .and_then(Value::as_array)
            .is_none_or(Vec::is_empty)
        {
            spec.insert("volumeLifecycleModes".to_owned(), json!(["Persistent"]));
        }
    }

    fn validate(&self, _ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let (spec, path) = (&object["spec"], Path::new("spec"));
        fields::validate(DRIVER, spec, &path, errors);
        // The field says where the kubelet puts the requested tokens, so it needs requests.
        if let Some(told) = spec.field("serviceAccountTokenInSecrets")
            && spec.items("tokenRequests").is_empty()
        {
            errors.invalid(
                &path.child("serviceAccountTokenInSecrets"),
                told.clone(),
                "serviceAccountTokenInSecrets is set but no tokenRequests are specified",
            );
        }
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        let path = Path::new("spec");
        for field in ["attachRequired", "volumeLifecycleModes"] {
            // kube-apiserver misspells the path of the first field, and clients see that path.
            let shown = if field == "attachRequired" {
                "attachedRequired"
            } else {
                field
            };
            validation::immutable(
                errors,
                &path.child(shown),
                &object["spec"][field],
                &old["spec"][field],
            );
        }
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for CsiDriver {
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[
            NAME,
            typed("AttachRequired", "boolean"),
            typed("PodInfoOnMount", "boolean"),
            typed("StorageCapacity", "boolean"),
            column("TokenRequests"),
            typed("RequiresRepublish", "boolean"),
            column("Modes"),
            AGE,
        ];
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        let requests = spec.items("tokenRequests");
        let audiences: Vec<&str> = requests
            .iter()
            .map(|token| token.text("audience"))
            .collect();
        let tokens = match requests {
            [] => "<unset>".to_owned(),
            _ => audiences.join(","),
        };
        let modes: Vec<&str> = spec
            .items("volumeLifecycleModes")
            .iter()
            .filter_map(Value::as_str)
            .collect();
        vec![
            name(object),
            spec["attachRequired"].as_bool().unwrap_or(true).into(),
            spec.flag("podInfoOnMount").into(),
            spec.flag("storageCapacity").into(),
            tokens.into(),
            spec.flag("requiresRepublish").into(),
            or_none(&modes.join(",")).into(),
            age(object, now),
        ]
    }
}

impl Kind for CsiNode {
    fn update_checks(&self, _: &str) -> &'static [Check] {
        Check::WHOLE
    }

    fn validate(&self, _ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let path = Path::new("spec");
        let path = path.child("drivers");
        let drivers = object["spec"].items("drivers");
        let mut seen = HashSet::new();
        for (index, driver) in drivers.iter().enumerate() {
            let path = path.index(index);
            fields::validate(NODE_DRIVER, driver, &path, errors);
            if !seen.insert(&driver["name"]) {
                errors.duplicate(&path.child("name"), driver.text("name"));
            }
            let keys = driver.items("topologyKeys");
            let mut seen = HashSet::new();
            // kube-apiserver reports the errors of keys at their driver.
            for key in keys {
                let text = key.as_str().unwrap_or_default();
                if text.is_empty() {
                    errors.required(&path, "");
                }
                if !seen.insert(key) {
                    errors.duplicate(&path, text);
                }
                validation::check(errors, &path, text, names::qualified_name(text));
            }
        }
    }

    /// Requires the drivers of a node to stay unchanged, except for `allocatable`.
    fn validate_update(&self, _ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        let fixed = |driver: &Value| {
            let mut driver = driver.clone();
            if let Some(driver) = driver.as_object_mut() {
                driver.remove("allocatable");
            }
            driver
        };
        let path = Path::new("spec");
        let path = path.child("drivers");
        let mut named: HashMap<&Value, Vec<(usize, &Value)>> = HashMap::new();
        for (index, driver) in object["spec"].items("drivers").iter().enumerate() {
            named
                .entry(&driver["name"])
                .or_default()
                .push((index, driver));
        }
        for before in old["spec"].items("drivers") {
            for &(index, driver) in named.get(&before["name"]).into_iter().flatten() {
                let (now, was) = (fixed(driver), fixed(before));
                if now != was {
                    let at = path.index(index);
                    let text = internal::as_sent("CSINodeDriver", &now, &at, errors);
                    errors.with_text(ErrorType::Invalid, &path, text, validation::IMMUTABLE);
                }
            }
        }
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for CsiNode {
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[NAME, typed("Drivers", "integer"), AGE];
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![
            name(object),
            object["spec"].items("drivers").len().into(),
            age(object, now),
        ]
    }
}

#[cfg(test)]
mod tests {
    use mullion_kube_text::field::causes;

    use super::*;

    #[test]
    fn a_driver_without_a_name_is_not_also_malformed() {
        let driver = json!({"nodeID": "n"});
        let found = causes(|errors| fields::validate(NODE_DRIVER, &driver, Path::ROOT, errors));
        assert_eq!(found, ["name: Required value"]);
    }

    #[test]
    fn an_audience_without_a_name_is_shown_as_it_is() {
        let cell =
            |spec: Value| CsiDriver.cells(&json!({"spec": spec}), Timestamp::UNIX_EPOCH)[4].clone();
        assert_eq!(cell(json!({})), "<unset>");
        assert_eq!(cell(json!({"tokenRequests": [{"audience": ""}]})), "");
    }
}
