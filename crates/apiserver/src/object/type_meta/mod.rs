//! The apiVersion and kind of a body or of an object that admission has changed, and the errors for others than the expected ones.

mod mismatch;
pub(crate) mod retyped;

use mullion_kube_text::{golang::quote, status::Status};
use mullion_schema::{Type, decode};
use serde_json::Value;

pub(crate) use self::mismatch::Mismatch;
use crate::registry::Row;

/// The text before an error in what a body says about its kind.
pub(crate) const NO_META: &str = "couldn't get version/kind; json parse error: ";

/// Go's name of the type that kube-apiserver decodes a body into to find its apiVersion and kind.
pub(crate) const META_ONLY: &str = r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;

/// The apiVersion and kind that a body names.
#[derive(Default)]
pub(crate) struct TypeMeta {
    pub(crate) api_version: String,
    pub(crate) kind: String,
}

/// The reason why a body's apiVersion and kind cannot be read.
pub(crate) enum MetaError {
    /// The body cannot be parsed at all.
    Syntax,
    /// The body is not an object, or its apiVersion or kind is not a string.
    Type(String),
}

impl TypeMeta {
    /// Reads a JSON body.
    pub(crate) fn of_json(body: &[u8]) -> Result<TypeMeta, MetaError> {
        match decode::untyped_json(body) {
            Ok((tree, _)) => TypeMeta::of(&tree),
            Err(_) if is_json(body) => Ok(TypeMeta::default()),
            Err(_) => Err(MetaError::Syntax),
        }
    }

    /// Reads a YAML body.
    pub(crate) fn of_yaml(body: &[u8]) -> Result<TypeMeta, MetaError> {
        decode::untyped_yaml(body).map_or(Ok(TypeMeta::default()), |(tree, _)| TypeMeta::of(&tree))
    }

    /// Reads a parsed body.
    pub(crate) fn of(tree: &Value) -> Result<TypeMeta, MetaError> {
        let fields = match tree {
            Value::Null => return Ok(TypeMeta::default()),
            Value::Object(fields) => fields,
            other => {
                let why = decode::json_of_another_type(other, META_ONLY);
                return Err(MetaError::Type(why.to_string()));
            }
        };
        for name in ["apiVersion", "kind"] {
            let value = fields.get(name).unwrap_or(&Value::Null);
            if !value.is_string() && !value.is_null() {
                let found = decode::json_kind(value);
                return Err(MetaError::Type(format!(
                    "json: cannot unmarshal {found} into Go struct field .{name} of type string"
                )));
            }
        }
        Ok(TypeMeta {
            api_version: text(tree, "apiVersion").to_owned(),
            kind: text(tree, "kind").to_owned(),
        })
    }
}

/// The kind and version that a body should have, with the schema.
pub(crate) struct Expected<'a> {
    pub group: &'a str,
    pub version: &'a str,
    pub kind: &'a str,
    pub schema: &'a Type,
    pub custom: bool,
}

impl<'a> Expected<'a> {
    /// Expects an object of the row's kind.
    pub(crate) fn object(row: &'a Row) -> Self {
        let resource = &row.resource;
        Expected {
            group: &resource.group,
            version: &resource.version,
            kind: &resource.kind,
            schema: &resource.schema,
            custom: row.custom,
        }
    }

    /// Returns the expected apiVersion.
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// Returns the 400 for a body that cannot be decoded as this kind.
    pub(crate) fn refuse(&self, kind: &str, version: &str, why: &str) -> Status {
        Status::bad_request(format!(
            "{kind} in version {} cannot be handled as a {}: {why}",
            quote(version),
            self.kind
        ))
    }
}

/// Returns Go's name of the package with a group's internal types.
pub(crate) fn internal_package(group: &str) -> &str {
    match group {
        "" | "events.k8s.io" => "core",
        group => group.split('.').next().unwrap_or_default(),
    }
}

/// Returns whether a body is JSON.
pub(crate) fn is_json(body: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok()
}

/// Returns a text of an object, empty if the field is absent or no text.
pub(crate) fn text<'v>(object: &'v Value, field: &str) -> &'v str {
    object[field].as_str().unwrap_or_default()
}
