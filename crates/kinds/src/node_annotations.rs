//! Validates the annotations of nodes that kube-apiserver still checks although their features are gone: a node with a malformed one is
//! refused.

use mullion_kube_text::field::{Errors, Path};
use mullion_schema::{
    decode::{DecodeError, json_error, json_of_another_type},
    tree::Tree,
};
use serde_json::Value;

use super::nodes;

const TAINTS: &str = "scheduler.alpha.kubernetes.io/taints";
const AVOID_PODS: &str = "scheduler.alpha.kubernetes.io/preferAvoidPods";

/// Records what is wrong with the annotations of a node (`ValidateNodeSpecificAnnotations`).
pub(super) fn validate(errors: &mut Errors, annotations: &Value) {
    let path = Path::new("metadata");
    let path = path.child("annotations");
    if let Some(text) = given(annotations, TAINTS) {
        match read(text, "[]core.Taint", Value::is_array) {
            Ok(taints) => {
                let taints = taints.as_array().map_or(&[][..], Vec::as_slice);
                nodes::taint_list(errors, &path.child(TAINTS), taints);
            }
            Err(why) => errors.invalid(&path, TAINTS, why.to_string()),
        }
    }
    if let Some(text) = given(annotations, AVOID_PODS) {
        match read(text, "v1.AvoidPods", Value::is_object) {
            Ok(avoided) => avoided_pods(errors, &path.child(AVOID_PODS), &avoided),
            // In this case alone, kube-apiserver's path has the name of a Go type instead of the annotation's.
            Err(why) => {
                errors.invalid(&path.child("AvoidPods"), AVOID_PODS, why.to_string());
            }
        }
    }
}

fn given<'a>(annotations: &'a Value, name: &str) -> Option<&'a str> {
    Some(annotations.text(name)).filter(|text| !text.is_empty())
}

/// Parses an annotation as JSON.
fn read(text: &str, go_type: &str, fits: fn(&Value) -> bool) -> Result<Value, DecodeError> {
    match serde_json::from_str::<Value>(text) {
        Ok(value) if value.is_null() || fits(&value) => Ok(value),
        Ok(other) => Err(json_of_another_type(&other, go_type)),
        Err(error) => Err(json_error(text.as_bytes(), &error)),
    }
}

fn avoided_pods(errors: &mut Errors, path: &Path<'_>, avoided: &Value) {
    for (index, entry) in avoided.items("preferAvoidPods").iter().enumerate() {
        let at = path.index(index);
        let at = at.child("PodSignature");
        match entry["podSignature"].field("podController") {
            None => errors.required(&at, ""),
            Some(controller) if !controller.flag("controller") => {
                let at = at.child("PodController");
                errors.invalid(&at.child("Controller"), false, "must point to a controller");
            }
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use mullion_kube_text::field::causes;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_an_annotation_holds_must_be_readable_and_complete() {
        let found = |name: &str, text: &str| {
            let annotations = json!({name: text});
            causes(|errors| validate(errors, &annotations))
        };
        assert_eq!(found(AVOID_PODS, ""), [""; 0]);
        let good =
            r#"{"preferAvoidPods": [{"podSignature": {"podController": {"controller": true}}}]}"#;
        assert_eq!(found(AVOID_PODS, good), [""; 0]);
        assert_eq!(
            found(
                AVOID_PODS,
                r#"{"preferAvoidPods": [{}, {"podSignature": {"podController": {"controller": false}}}]}"#
            ),
            [
                "metadata.annotations.scheduler.alpha.kubernetes.io/preferAvoidPods[0].PodSignature: Required value",
                "metadata.annotations.scheduler.alpha.kubernetes.io/preferAvoidPods[1].PodSignature.PodController.Controller: Invalid value: false: must point to a controller",
            ]
        );
        assert_eq!(
            found(AVOID_PODS, "x"),
            [
                r#"metadata.annotations.AvoidPods: Invalid value: "scheduler.alpha.kubernetes.io/preferAvoidPods": invalid character 'x' looking for beginning of value"#
            ]
        );
        assert_eq!(
            found(TAINTS, r#"[{"key": "a"}]"#),
            ["metadata.annotations.scheduler.alpha.kubernetes.io/taints[0].effect: Required value"]
        );
    }
}
