//! storage.k8s.io/v1 kinds of the Container Storage Interface: drivers, what nodes know of them, and attachments.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Column, Kind,
    persistentvolumeclaims::or_unset,
    print::{AGE, NAME, age, column, name, or_none, typed},
    tree::{Tree, object_at, set_default},
};
use crate::{
    admission::Ctx,
    field::{Errors, Path},
    validation::{self, names},
};

/// The longest name of a driver.
const MAX_DRIVER_NAME: usize = 63;

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
        let path = Path::new("spec");
        for mode in object["spec"]
            .items("volumeLifecycleModes")
            .iter()
            .filter_map(Value::as_str)
        {
            validation::one_of(
                errors,
                &path.child("volumeLifecycleModes"),
                mode,
                &["Ephemeral", "Persistent"],
            );
        }
        let policy = object["spec"].text("fsGroupPolicy");
        validation::one_of(
            errors,
            &path.child("fsGroupPolicy"),
            policy,
            &["File", "None", "ReadWriteOnceWithFSType"],
        );
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
            if driver.text("nodeID").is_empty() {
                errors.required(&path.child("nodeID"), "");
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
            _ => {}
        }
        let node = spec.text("nodeName");
        validation::check(
            errors,
            &path.child("nodeName"),
            node,
            names::dns_subdomain(node),
        );
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        validation::immutable(errors, &Path::new("spec"), &object["spec"], &old["spec"]);
    }

    fn columns(&self) -> Option<&[Column]> {
        const COLUMNS: &[Column] = &[
            NAME,
            column("Attacher"),
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
