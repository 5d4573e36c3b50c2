//! Checks the apiVersion and kind of an object that a webhook or a policy has changed.
//!
//! kube-apiserver decodes such an object as the kind that it names, and converts it back if it is another version of the kind that was
//! sent. A built-in object without apiVersion and kind keeps its own; a custom resource must name them.

use mullion_kube_text::status::Status;
use mullion_schema::{Type, decode};
use serde_json::{Value, json};

use super::{Expected, MetaError, Mismatch, NO_META, TypeMeta, text};

/// The type of an object after admission changed it.
#[derive(Debug, PartialEq)]
pub(crate) enum AdmittedType {
    /// The same type as before, with apiVersion and kind set.
    Same(Value),
    /// Another version of the same kind, to be converted back.
    Other(Value),
}

/// Sets apiVersion and kind of the changed object, or finds that it has another version.
///
/// # Errors
/// 500 if the object has become another kind; 422 for a custom resource of another kind.
pub(crate) fn settle(expected: &Expected<'_>, mut tree: Value) -> Result<AdmittedType, Status> {
    if expected.custom {
        return custom(expected, tree);
    }
    if let Err(MetaError::Type(why)) = TypeMeta::of(&tree) {
        return Err(Status::internal(format!("{NO_META}{why}")));
    }
    if tree.is_null() {
        tree = json!({});
    }
    if let Some(mismatch) = Mismatch::find(expected, &tree) {
        if mismatch.is_convertible {
            return Ok(AdmittedType::Other(tree));
        }
        let Some(found) = Type::builtin_kind(&mismatch.api_version, &mismatch.kind) else {
            return Err(Status::internal(mismatch.why));
        };
        decode::value(&found, tree).map_err(|error| Status::internal(error.to_string()))?;
        // kube-apiserver returns conversion errors without the text that it puts before others.
        return Err(Status::new(500, "", mismatch.why));
    }
    tree["apiVersion"] = expected.api_version().into();
    tree["kind"] = expected.kind.into();
    Ok(AdmittedType::Same(tree))
}

/// Returns the error for another version that cannot be converted back because it is not served.
pub(crate) fn not_served(expected: &Expected<'_>, tree: &Value) -> Status {
    let found = text(tree, "apiVersion");
    if expected.custom {
        let why = format!("request to convert CR from an invalid group/version: {found}");
        return Status::new(500, "", why);
    }
    let wanted = expected.api_version();
    Status::internal(format!(
        "a webhook or policy has changed apiVersion from {wanted:?} to {found:?}, which is not served"
    ))
}

fn custom(expected: &Expected<'_>, mut tree: Value) -> Result<AdmittedType, Status> {
    if matches!(tree.get("kind"), None | Some(Value::Null)) || text(&tree, "kind").is_empty() {
        return Err(Status::internal(format!(
            "Object 'Kind' is missing in '{tree}'"
        )));
    }
    let (api_version, kind) = (text(&tree, "apiVersion"), text(&tree, "kind"));
    let (group, version) = match api_version.split('/').collect::<Vec<_>>()[..] {
        [version] => ("", version),
        [group, version] => (group, version),
        // kube-apiserver treats an apiVersion with several slashes as empty.
        _ => return Err(unsuitable(expected, "", "", "")),
    };
    if group != expected.group {
        return Err(unsuitable(expected, group, version, kind));
    }
    // Conversion accepts any kind of the group; validation then refuses it.
    if kind != expected.kind {
        tree["apiVersion"] = expected.api_version().into();
        return match Mismatch::find(expected, &tree) {
            Some(mismatch) => Err(mismatch.invalid(expected, &tree)),
            None => Ok(AdmittedType::Same(tree)),
        };
    }
    if version == expected.version {
        Ok(AdmittedType::Same(tree))
    } else {
        Ok(AdmittedType::Other(tree))
    }
}

/// Returns the error for an object whose group is not that of the custom resource.
fn unsuitable(expected: &Expected<'_>, group: &str, version: &str, kind: &str) -> Status {
    let wanted = expected.api_version();
    let why = format!(
        "{group}/{version}, Kind={kind} is unstructured and is not suitable for converting to {wanted:?}"
    );
    Status::new(500, "", why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: &str, custom: bool, tree: Value) -> Result<AdmittedType, (String, String)> {
        let schema = Type::builtin("api.core.v1.ConfigMap").expect("config maps are built in");
        let expected = Expected {
            group: "",
            version: "v1",
            kind,
            schema: &schema,
            custom,
        };
        settle(&expected, tree).map_err(|status| (status.reason.into_owned(), status.message))
    }

    #[test]
    fn a_built_in_object_that_says_nothing_is_as_before() {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}});
        let without = |field: &str| {
            let mut map = map.clone();
            map.as_object_mut().expect("an object").remove(field);
            of("ConfigMap", false, map)
        };
        let same = Ok(AdmittedType::Same(map.clone()));
        assert_eq!(without("kind"), same);
        assert_eq!(without("apiVersion"), same);
    }

    #[test]
    fn another_kind_is_decoded_and_not_converted() {
        let refused = |tree: Value| of("ConfigMap", false, tree).expect_err("it is no map");
        let (reason, why) = refused(json!({"apiVersion": "v2", "kind": "ConfigMap"}));
        assert_eq!(reason, "InternalError");
        assert!(why.starts_with(
            r#"Internal error occurred: no kind "ConfigMap" is registered for version "v2" in scheme "#
        ));
        let secret = refused(json!({"apiVersion": "v1", "kind": "Secret"}));
        let sentence = "converting (v1.Secret) to (core.ConfigMap): unknown conversion";
        assert_eq!(secret, (String::new(), sentence.to_owned()));
        let (_, why) = refused(json!([]));
        let start = "Internal error occurred: couldn't get version/kind; json parse error: json: cannot unmarshal array into Go value of type struct {";
        assert!(why.starts_with(start), "{why}");
    }

    #[test]
    fn a_custom_resource_has_to_say_what_it_is() {
        let refused = |tree: Value| of("Foo", true, tree).expect_err("it is no Foo of the group");
        let (_, why) = refused(json!({"apiVersion": "v1"}));
        let sentence =
            r#"Internal error occurred: Object 'Kind' is missing in '{"apiVersion":"v1"}'"#;
        assert_eq!(why, sentence);
        let foo = json!({"apiVersion": "v1", "kind": "Foo"});
        assert_eq!(of("Foo", true, foo.clone()), Ok(AdmittedType::Same(foo)));
        let next = json!({"apiVersion": "v2", "kind": "Foo"});
        assert_eq!(of("Foo", true, next.clone()), Ok(AdmittedType::Other(next)));
        for (api_version, told) in [("a/v1", "a/v1, Kind=Foo"), ("a/b/c", "/, Kind=")] {
            let foo = json!({"apiVersion": api_version, "kind": "Foo"});
            let why =
                format!(r#"{told} is unstructured and is not suitable for converting to "v1""#);
            assert_eq!(refused(foo), (String::new(), why));
        }
        let bar = json!({"apiVersion": "v2", "kind": "Bar", "metadata": {"name": "b"}});
        let (reason, why) = refused(bar);
        let sentence = r#"Bar "b" is invalid: kind: Invalid value: "Bar": must be Foo"#;
        assert_eq!((&*reason, &*why), ("Invalid", sentence));
    }
}
