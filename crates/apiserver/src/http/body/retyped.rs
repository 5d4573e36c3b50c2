//! An object that a webhook or a policy has changed on its way: whether it is still what it was.
//!
//! Upstream decodes it as what it says it is and converts that to what was sent. A built-in object that does not say is as before; a custom
//! resource has to say.

use serde_json::{Value, json};

use super::{Expected, MetaError, Mismatch, NO_META, TypeMeta, text};
use crate::{
    schema::{Type, decode},
    status::Status,
};

/// The changed object with its kind and version.
///
/// # Errors
/// 500 if it has become something else.
pub(crate) fn settle(expected: &Expected<'_>, mut tree: Value) -> Result<Value, Status> {
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
            return Err(changed("apiVersion", &expected.api_version(), &tree));
        }
        let Some(found) = Type::builtin_kind(&mismatch.api_version, &mismatch.kind) else {
            return Err(Status::internal(mismatch.why));
        };
        decode::value(&found, tree).map_err(|error| Status::internal(error.to_string()))?;
        // Nobody says what went wrong with a conversion.
        return Err(Status::new(500, "", mismatch.why));
    }
    tree["apiVersion"] = expected.api_version().into();
    tree["kind"] = expected.kind.into();
    Ok(tree)
}

fn custom(expected: &Expected<'_>, tree: Value) -> Result<Value, Status> {
    if matches!(tree.get("kind"), None | Some(Value::Null)) || text(&tree, "kind").is_empty() {
        return Err(Status::internal(format!(
            "Object 'Kind' is missing in '{tree}'"
        )));
    }
    let api_version = expected.api_version();
    for (field, wanted) in [("apiVersion", &*api_version), ("kind", expected.kind)] {
        if text(&tree, field) != wanted {
            return Err(changed(field, wanted, &tree));
        }
    }
    Ok(tree)
}

fn changed(field: &str, from: &str, tree: &Value) -> Status {
    let to = tree.get(field).unwrap_or(&Value::Null);
    Status::internal(format!(
        "a webhook or policy has changed {field} from {from:?} to {to}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: &str, custom: bool, tree: Value) -> Result<Value, (String, String)> {
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
        assert_eq!(without("kind"), Ok(map.clone()));
        assert_eq!(without("apiVersion"), Ok(map.clone()));
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
        let (_, why) = of("Foo", true, json!({"apiVersion": "v1"})).expect_err("it does not say");
        let sentence =
            r#"Internal error occurred: Object 'Kind' is missing in '{"apiVersion":"v1"}'"#;
        assert_eq!(why, sentence);
        let foo = json!({"apiVersion": "v1", "kind": "Foo"});
        assert_eq!(of("Foo", true, foo.clone()), Ok(foo));
        assert!(of("Foo", true, json!({"apiVersion": "v1", "kind": "Bar"})).is_err());
    }
}
