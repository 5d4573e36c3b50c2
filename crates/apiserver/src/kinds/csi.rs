//! storage.k8s.io/v1 kinds of the Container Storage Interface: drivers, what nodes know of them, and attachments.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Column, Kind,
    persistentvolumeclaims::or_unset,
    podspec::internal,
    print::{AGE, NAME, age, column, name, or_none, typed},
    tree::{Tree, object_at, set_default},
};
use crate::{
    admission::Ctx,
    field::{ErrorType, Errors, Path},
    validation::{self, names},
};

/// The longest name of a driver.
const MAX_DRIVER_NAME: usize = 63;
const MAX_NODE_ID: usize = 256;
const MIN_TOKEN_SECONDS: i64 = 600;
const MAX_TOKEN_SECONDS: i64 = 1 << 32;
const MIN_UPDATE_SECONDS: i64 = 10;
/// The most that an attachment may say about itself, and about what went wrong.
const MAX_ATTACHMENT_METADATA: usize = 256 * 1024;
const MAX_ERROR_MESSAGE: usize = 1024;

/// storage.k8s.io/v1 CSIDriver.
pub(crate) struct CsiDriver;

/// storage.k8s.io/v1 CSINode.
pub(crate) struct CsiNode;

/// storage.k8s.io/v1 VolumeAttachment.
pub(crate) struct VolumeAttachment;

fn driver_name(errors: &mut Errors, path: &Path<'_>, driver: &str) {
    if driver.is_empty() {
        return errors.required(path, "");
    }
    if driver.len() > MAX_DRIVER_NAME {
        errors.too_long(path, MAX_DRIVER_NAME);
    }
    validation::check(
        errors,
        path,
        driver,
        names::dns_subdomain(&driver.to_lowercase()),
    );
}

fn token_requests(requests: &[Value], path: &Path<'_>, errors: &mut Errors) {
    for (index, request) in requests.iter().enumerate() {
        let at = path.index(index);
        let audience = request.text("audience");
        let known = |other: &Value| other.text("audience") == audience;
        if requests[..index].iter().any(known) {
            errors.duplicate(&at.child("audience"), audience);
            continue;
        }
        let Some(seconds) = request.integer("expirationSeconds") else {
            continue;
        };
        let at = at.child("expirationSeconds");
        if seconds < MIN_TOKEN_SECONDS {
            errors.invalid(
                &at,
                seconds,
                "may not specify a duration less than 10 minutes",
            );
        }
        if seconds > MAX_TOKEN_SECONDS {
            errors.invalid(
                &at,
                seconds,
                "may not specify a duration larger than 2^32 seconds",
            );
        }
    }
}

impl Kind for CsiDriver {
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
        let path = Path::new("metadata");
        driver_name(errors, &path.child("name"), object["metadata"].text("name"));
        let (spec, path) = (&object["spec"], Path::new("spec"));
        validation::one_of(
            errors,
            &path.child("fsGroupPolicy"),
            spec.text("fsGroupPolicy"),
            &["File", "None", "ReadWriteOnceWithFSType"],
        );
        token_requests(
            spec.items("tokenRequests"),
            &path.child("tokenRequests"),
            errors,
        );
        for mode in spec
            .items("volumeLifecycleModes")
            .iter()
            .filter_map(Value::as_str)
        {
            validation::one_of(
                errors,
                &path.child("volumeLifecycleModes"),
                mode,
                &["Persistent", "Ephemeral"],
            );
        }
        if let Some(period) = spec
            .integer("nodeAllocatableUpdatePeriodSeconds")
            .filter(|period| *period < MIN_UPDATE_SECONDS)
        {
            errors.invalid(
                &path.child("nodeAllocatableUpdatePeriodSeconds"),
                period,
                format!("must be greater than or equal to {MIN_UPDATE_SECONDS} seconds"),
            );
        }
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        let path = Path::new("spec");
        for field in ["attachRequired", "volumeLifecycleModes"] {
            // Upstream misspells the path of the first one; clients see it so.
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

    fn columns(&self) -> Option<&[Column]> {
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
        Some(COLUMNS)
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        let tokens: Vec<&str> = spec
            .items("tokenRequests")
            .iter()
            .map(|token| token.text("audience"))
            .collect();
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
            or_unset(&tokens.join(",")).into(),
            spec.flag("requiresRepublish").into(),
            or_none(&modes.join(",")).into(),
            age(object, now),
        ]
    }
}

impl Kind for CsiNode {
    fn validate(&self, _ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let path = Path::new("spec");
        let path = path.child("drivers");
        let drivers = object["spec"].items("drivers");
        for (index, driver) in drivers.iter().enumerate() {
            let path = path.index(index);
            driver_name(errors, &path.child("name"), driver.text("name"));
            let node = driver.text("nodeID");
            if node.is_empty() {
                errors.required(&path.child("nodeID"), "");
            }
            if node.len() > MAX_NODE_ID {
                errors.invalid(
                    &path.child("nodeID"),
                    node,
                    format!("must be {MAX_NODE_ID} characters or less"),
                );
            }
            if let Some(count) = driver["allocatable"]
                .integer("count")
                .filter(|&count| count < 0)
            {
                let path = path.child("allocatable");
                errors.invalid(
                    &path.child("count"),
                    count,
                    "must be greater than or equal to 0",
                );
            }
            if drivers[..index]
                .iter()
                .any(|earlier| earlier["name"] == driver["name"])
            {
                errors.duplicate(&path.child("name"), driver.text("name"));
            }
            let keys = driver.items("topologyKeys");
            for (index, key) in keys.iter().enumerate() {
                let text = key.as_str().unwrap_or_default();
                if text.is_empty() {
                    errors.required(&path, "");
                }
                if keys[..index].contains(key) {
                    errors.duplicate(&path, text);
                }
                validation::check(errors, &path, text, names::qualified_name(text));
            }
        }
    }

    /// What a driver says about a node stays, but for how many volumes it takes.
    fn validate_update(&self, _ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        let fixed = |driver: &Value| {
            let mut driver = driver.clone();
            if let Some(driver) = driver.as_object_mut() {
                driver.remove("allocatable");
            }
            driver
        };
        for before in old["spec"].items("drivers") {
            for driver in object["spec"].items("drivers") {
                if driver["name"] == before["name"] && fixed(driver) != fixed(before) {
                    errors.with_text(
                        ErrorType::Invalid,
                        &Path::new("CSINodeDriver"),
                        internal::compact("CSINodeDriver", driver),
                        validation::IMMUTABLE,
                    );
                }
            }
        }
    }

    fn columns(&self) -> Option<&[Column]> {
        const COLUMNS: &[Column] = &[NAME, typed("Drivers", "integer"), AGE];
        Some(COLUMNS)
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![
            name(object),
            object["spec"].items("drivers").len().into(),
            age(object, now),
        ]
    }
}

impl Kind for VolumeAttachment {
    fn validate(&self, _ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let spec = &object["spec"];
        let path = Path::new("spec");
        driver_name(errors, &path.child("attacher"), spec.text("attacher"));
        let source = path.child("source");
        let (inline, named) = (
            spec["source"].has("inlineVolumeSpec"),
            spec["source"].has("persistentVolumeName"),
        );
        match (inline, named) {
            (false, false) => errors.required(
                &source,
                "must specify exactly one of inlineVolumeSpec and persistentVolumeName",
            ),
            (true, true) => errors.forbidden(
                &source,
                "must specify exactly one of inlineVolumeSpec and persistentVolumeName",
            ),
            (_, true) if spec["source"].text("persistentVolumeName").is_empty() => errors.required(
                &source.child("persistentVolumeName"),
                "must specify non empty persistentVolumeName",
            ),
            _ => {}
        }
        let node = spec.text("nodeName");
        validation::check(
            errors,
            &path.child("nodeName"),
            node,
            names::dns_subdomain(node),
        );
        attachment_status(&object["status"], &Path::new("status"), errors);
        let volume = spec["source"].text("persistentVolumeName");
        if named {
            validation::check(
                errors,
                &source.child("persistentVolumeName"),
                volume,
                names::dns_subdomain(volume),
            );
        }
    }

    fn validate_status(&self, _ctx: &Ctx<'_>, object: &Value, _old: &Value, errors: &mut Errors) {
        attachment_status(&object["status"], &Path::new("status"), errors);
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        validation::immutable(errors, &Path::new("spec"), &object["spec"], &old["spec"]);
    }

    fn columns(&self) -> Option<&[Column]> {
        const COLUMNS: &[Column] = &[
            NAME,
            Column {
                format: "name",
                ..column("Attacher")
            },
            column("PV"),
            column("Node"),
            typed("Attached", "boolean"),
            AGE,
        ];
        Some(COLUMNS)
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        vec![
            name(object),
            spec.text("attacher").into(),
            spec["source"].text("persistentVolumeName").into(),
            spec.text("nodeName").into(),
            object["status"].flag("attached").into(),
            age(object, now),
        ]
    }
}

fn attachment_status(status: &Value, path: &Path<'_>, errors: &mut Errors) {
    let bytes: usize = status
        .entries("attachmentMetadata")
        .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
        .sum();
    if bytes > MAX_ATTACHMENT_METADATA {
        errors.too_long(&path.child("attachmentMetadata"), MAX_ATTACHMENT_METADATA);
    }
    for field in ["attachError", "detachError"] {
        if status[field].text("message").len() > MAX_ERROR_MESSAGE {
            let at = path.child(field);
            errors.too_long(&at.child("message"), MAX_ATTACHMENT_METADATA);
        }
    }
}
