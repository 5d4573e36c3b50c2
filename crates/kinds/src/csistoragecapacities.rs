//! storage.k8s.io/v1 CSIStorageCapacity: the capacity that a driver has left for a StorageClass on some nodes.

use mullion_kube_text::{
    field::{ErrorType, Errors, Path},
    names,
    validation::{IMMUTABLE, resources},
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{
    Check, Kind,
    podspec::{self, internal},
};
use crate::{
    fields::{self, Field, Format, Selector, Text, always},
    request::Ctx,
};

/// storage.k8s.io/v1 CSIStorageCapacity.
pub(super) struct CsiStorageCapacity;

const CAPACITY: &[Field] = &[
    always("nodeTopology", Selector),
    always("storageClassName", Format(names::dns_subdomain)),
    always("capacity", Text(resources::nonnegative)),
];

impl Kind for CsiStorageCapacity {
    fn update_checks(&self, _: &str) -> &'static [Check] {
        Check::CHANGE_AND_WHOLE
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        fields::validate(CAPACITY, object, Path::ROOT, errors);
    }

    fn warnings(&self, object: &Value, _: Option<&Value>) -> Vec<String> {
        podspec::warnings::of_label_selector(&object["nodeTopology"], &Path::new("nodeTopology"))
    }

    fn validate_update(&self, _: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        if object["nodeTopology"] != old["nodeTopology"] {
            let text = match object.field("nodeTopology") {
                Some(selector) => internal::label_selector(selector),
                None => "null".to_owned(),
            };
            let path = Path::new("nodeTopology");
            errors.with_text(ErrorType::Invalid, &path, text, IMMUTABLE);
        }
        fields::immutable(&["storageClassName"], object, old, Path::ROOT, errors);
    }
}
