//! storage.k8s.io/v1 CSIStorageCapacity: the capacity that a driver has left for a StorageClass on some nodes.

use mullion_kube_text::{
    field::{ErrorType, Errors, Path},
    names,
    validation::{self, IMMUTABLE, check, resources, selector::label_selector},
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{
    Check, Kind,
    podspec::{self, internal},
};
use crate::request::Ctx;

/// storage.k8s.io/v1 CSIStorageCapacity.
pub(super) struct CsiStorageCapacity;

impl Kind for CsiStorageCapacity {
    fn update_checks(&self, _: &str) -> &'static [Check] {
        Check::CHANGE_AND_WHOLE
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        label_selector(errors, &Path::new("nodeTopology"), &object["nodeTopology"]);
        let class = object.text("storageClassName");
        let path = Path::new("storageClassName");
        check(errors, &path, class, names::dns_subdomain(class));
        let capacity = object.text("capacity");
        resources::nonnegative(errors, &Path::new("capacity"), capacity);
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
        validation::immutable(
            errors,
            &Path::new("storageClassName"),
            &object["storageClassName"],
            &old["storageClassName"],
        );
    }
}
