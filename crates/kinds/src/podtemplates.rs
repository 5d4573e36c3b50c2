//! core/v1 PodTemplate: a stored pod template, which no controller uses.

use jiff::Timestamp;
use mullion_kube_text::field::{Errors, Path};
use mullion_schema::tree::object_at;
use serde_json::Value;

use super::{Column, Kind, podspec, print, workloads};
use crate::{Printing, request::Ctx};

/// core/v1 PodTemplate.
pub(super) struct PodTemplate;

const COLUMNS: [Column; 4] = [
    print::NAME,
    print::column("Containers"),
    print::column("Images"),
    print::column("Pod Labels"),
];

impl Kind for PodTemplate {
    fn default(&self, object: &mut Value) {
        if let Some(root) = object.as_object_mut() {
            object_at(root, "template");
            podspec::defaults::template(&mut root["template"]);
        }
    }

    fn prepare_create(&self, _: &Ctx<'_>, object: &mut Value) {
        podspec::prepare::drop_disabled_spec(&mut object["template"]["spec"]);
    }

    fn prepare_update(&self, _: &Ctx<'_>, object: &mut Value, _: &Value) {
        podspec::prepare::drop_disabled_spec(&mut object["template"]["spec"]);
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        podspec::validate_template(&object["template"], &Path::new("template"), errors);
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        if workloads::is_new_generation(object, old) {
            podspec::warnings::of_template(&object["template"], &Path::new("template"))
        } else {
            Vec::new()
        }
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for PodTemplate {
    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn cells(&self, object: &Value, _: Timestamp) -> Vec<Value> {
        let template = &object["template"];
        let mut cells = vec![print::name(object)];
        cells.extend(workloads::container_cells(&template["spec"]));
        cells.push(print::labels(template["metadata"]["labels"].as_object()).into());
        cells
    }
}
