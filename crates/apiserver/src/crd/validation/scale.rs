//! Validates the fields that the scale subresource reads: the replicas must be valid counts, and the selector must be a string. Source:
//! k8s.io/apiextensions-apiserver/pkg/registry/customresource: ValidateScaleSpec, ValidateScaleStatus.

use mullion_kube_text::field::{Errors, Path};
use mullion_schema::merge::{go_text, go_type};
use serde_json::Value;

/// The JSON paths of the scale subresource's fields, as in the definition: `.spec.replicas`.
#[derive(Debug)]
pub(crate) struct Paths {
    spec: String,
    status: String,
    selector: Option<String>,
}

impl Paths {
    /// Returns the paths of a version, or `None` if it has no scale subresource.
    pub(crate) fn of(version: &Value) -> Option<Self> {
        let scale = version["subresources"].get("scale")?.as_object()?;
        let text = |field: &str| Some(scale.get(field)?.as_str()?.to_owned());
        Some(Paths {
            spec: text("specReplicasPath").unwrap_or_default(),
            status: text("statusReplicasPath").unwrap_or_default(),
            selector: text("labelSelectorPath"),
        })
    }

    /// Checks the desired number of replicas.
    pub(crate) fn check_spec(&self, object: &Value, errors: &mut Errors) {
        count(object, &self.spec, errors);
    }

    /// Checks the observed number of replicas and the selector.
    pub(crate) fn check_status(&self, object: &Value, errors: &mut Errors) {
        count(object, &self.status, errors);
        let Some(path) = &self.selector else {
            return;
        };
        let found = find(object, path);
        let found = found.and_then(|found| match found {
            None | Some(Value::String(_)) => Ok(()),
            Some(other) => Err(unfit(path, other, "string")),
        });
        if let Err(why) = found {
            errors.invalid(&Path::new(path), "", why.to_string());
        }
    }
}

/// A field of the scale subresource, or one above it, has another type.
#[derive(Debug, thiserror::Error)]
#[error(".{path} accessor error: {} is of the type {}, expected {wanted}", go_text(.given), go_type(.given))]
struct AccessorError {
    /// The path of the field, without the dot in front.
    path: String,
    given: Value,
    /// The type that the field should have, in Go's words.
    wanted: &'static str,
}

fn count(object: &Value, path: &str, errors: &mut Errors) {
    let found = find(object, path).and_then(|found| match found {
        None => Ok(0),
        Some(given) => given.as_i64().ok_or_else(|| unfit(path, given, "int64")),
    });
    let at = Path::new(path);
    match found {
        Err(why) => errors.invalid(&at, 0, why.to_string()),
        Ok(count) if count < 0 => errors.invalid(&at, count, "should be a non-negative integer"),
        Ok(count) if count > i64::from(i32::MAX) => {
            let why = format!("should be less than or equal to {}", i32::MAX);
            errors.invalid(&at, count, why);
        }
        Ok(_) => {}
    }
}

/// Returns the value at a path of field names. A field below a null is absent.
fn find<'v>(object: &'v Value, path: &str) -> Result<Option<&'v Value>, AccessorError> {
    let mut place = object;
    let inside = path.trim_start_matches('.');
    let mut end = 0;
    for name in inside.split('.') {
        match place {
            Value::Null => return Ok(None),
            Value::Object(map) => match map.get(name) {
                Some(below) => place = below,
                None => return Ok(None),
            },
            other => {
                // The path ends with the field that was looked for.
                let path = &inside[..end + name.len()];
                // kube-apiserver's message spells this type without the space that Go's `%T` prints.
                return Err(unfit(path, other, "map[string]interface{}"));
            }
        }
        end += name.len() + 1;
    }
    Ok(Some(place))
}

fn unfit(path: &str, given: &Value, wanted: &'static str) -> AccessorError {
    AccessorError {
        path: path.trim_start_matches('.').to_owned(),
        given: given.clone(),
        wanted,
    }
}

#[cfg(test)]
mod tests {
    use mullion_kube_text::field::causes;
    use serde_json::json;

    use super::*;

    #[test]
    fn counts_are_small_whole_numbers_and_selectors_texts() {
        let version = json!({"subresources": {"scale": {
            "specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n", "labelSelectorPath": ".status.s"}}});
        let paths = Paths::of(&version).expect("it can be scaled");
        let found = |object: Value| {
            causes(|errors| {
                paths.check_spec(&object, errors);
                paths.check_status(&object, errors);
            })
        };
        let empty: [&str; 0] = [];
        assert_eq!(found(json!({})), empty);
        assert_eq!(found(json!({"spec": {"n": 3}, "status": null})), empty);
        assert_eq!(
            found(json!({"spec": {"n": -1}, "status": {"n": 2147483648_u64, "s": {"a": "b"}}})),
            [
                ".spec.n: Invalid value: -1: should be a non-negative integer",
                ".status.n: Invalid value: 2147483648: should be less than or equal to 2147483647",
                ".status.s: Invalid value: \"\": .status.s accessor error: map[a:b] is of the type map[string]interface {}, expected string",
            ]
        );
        assert_eq!(
            found(json!({"spec": {"n": "3"}, "status": 1.5})),
            [
                ".spec.n: Invalid value: 0: .spec.n accessor error: 3 is of the type string, expected int64",
                ".status.n: Invalid value: 0: .status.n accessor error: 1.5 is of the type float64, expected map[string]interface{}",
                ".status.s: Invalid value: \"\": .status.s accessor error: 1.5 is of the type float64, expected map[string]interface{}",
            ]
        );
    }
}
