//! apps/v1 ControllerRevision: a state that a controller can roll back to; its data never changes.

use jiff::Timestamp;
use mullion_kube_text::field::{Errors, Path};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{
    Check, Column, Kind,
    print::{AGE, NAME, age, column, name, or_none},
};
use crate::{
    Printing,
    fields::{self, Field, NOT_NEGATIVE, always},
    request::Ctx,
};

/// apps/v1 ControllerRevision.
pub(crate) struct ControllerRevision;

const REVISION: &[Field] = &[always("revision", NOT_NEGATIVE)];

impl Kind for ControllerRevision {
    fn update_checks(&self, _: &str) -> &'static [Check] {
        Check::CHANGE_AND_WHOLE
    }

    fn validate(&self, _ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        fields::validate(REVISION, object, Path::ROOT, errors);
    }

    fn validate_creation(&self, _ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let path = Path::new("data");
        match object.field("data") {
            None => errors.required(&path, "data is mandatory"),
            Some(data) if !data.is_object() => {
                // kube-apiserver reports wrong data like missing data.
                errors.required(&path, "data must be a valid JSON object");
            }
            Some(_) => {}
        }
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        fields::immutable(&["data"], object, old, Path::ROOT, errors);
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for ControllerRevision {
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[NAME, column("Controller"), column("Revision"), AGE];
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![
            name(object),
            controller(object).into(),
            object.integer("revision").unwrap_or(0).into(),
            age(object, now),
        ]
    }
}

fn controller(revision: &Value) -> String {
    let owners = revision["metadata"].items("ownerReferences");
    let Some(owner) = owners.iter().find(|owner| owner.flag("controller")) else {
        return or_none("").to_owned();
    };
    let kind = owner.text("kind").to_lowercase();
    match owner.text("apiVersion").split_once('/') {
        Some((group, _)) => format!("{kind}.{group}/{}", owner.text("name")),
        None => format!("{kind}/{}", owner.text("name")),
    }
}
