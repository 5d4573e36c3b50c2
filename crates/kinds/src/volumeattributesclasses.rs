//! storage.k8s.io/v1 VolumeAttributesClass: attributes of volumes that a driver can change while they are in use. It is immutable.

use jiff::Timestamp;
use mullion_kube_text::field::{Errors, Path};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{Check, Column, Kind, print, storageclasses};
use crate::{
    Printing,
    fields::{self, Code, Field, Text, required},
    request::Ctx,
};

/// storage.k8s.io/v1 VolumeAttributesClass.
pub(super) struct VolumeAttributesClass;

const DEFAULT: &str = "volumeattributesclass.alpha.kubernetes.io/is-default-class";
const COLUMNS: [Column; 3] = [print::NAME, print::column("DriverName"), print::AGE];

const CLASS: &[Field] = &[
    required("driverName", Text(storageclasses::provisioner)),
    required("parameters", Code(storageclasses::parameters))
        .because("must contain at least one key/value pair"),
];

impl Kind for VolumeAttributesClass {
    fn update_checks(&self, _: &str) -> &'static [Check] {
        Check::CHANGE_AND_WHOLE
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        fields::validate(CLASS, object, Path::ROOT, errors);
    }

    fn validate_update(&self, _: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        for field in ["driverName", "parameters"] {
            if object[field] != old[field] {
                errors.forbidden(
                    &Path::new(field),
                    format!("updates to {field} are forbidden."),
                );
            }
        }
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for VolumeAttributesClass {
    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let mut name = object["metadata"].text("name").to_owned();
        if object["metadata"]["annotations"][DEFAULT] == "true" {
            name.push_str(" (default)");
        }
        vec![
            name.into(),
            object.text("driverName").into(),
            print::age(object, now),
        ]
    }
}
