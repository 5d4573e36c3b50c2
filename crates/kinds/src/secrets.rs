//! core/v1 Secret: `stringData` is merged into `data` and not stored; some types require certain keys.

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use mullion_kube_text::{
    field::{Errors, Path},
    names,
    validation::check,
};
use mullion_schema::{
    decode::{json_error, json_of_another_type},
    tree::{Tree, object_at, set_zero},
};
use serde_json::Value;

use super::{
    Check, Column, Kind,
    configmaps::{self, MAX_DATA_BYTES, decoded_length},
    key_pair,
    print::{AGE, NAME, age, column, name},
};
use crate::{FieldSelection, Printing, fields, request::Ctx};

const REDACTED: &str = "<secret contents redacted>";
const SERVICE_ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";

/// core/v1 Secret.
pub(crate) struct Secret;

impl Kind for Secret {
    fn default(&self, object: &mut Value) {
        let Some(root) = object.as_object_mut() else {
            return;
        };
        set_zero(root, "type", "Opaque");
        if let Some(Value::Object(texts)) = root.remove("stringData")
            && !texts.is_empty()
        {
            let data = object_at(root, "data");
            for (key, text) in texts {
                // A key of `stringData` replaces the same key of `data`.
                data.insert(key, STANDARD.encode(text.as_str().unwrap_or("")).into());
            }
        }
    }

    fn validate(&self, _ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let path = Path::new("data");
        let mut bytes = 0;
        for (key, value) in object.entries("data") {
            check(errors, &path.key(key), key, names::config_key(key));
            bytes += decoded_length(value);
        }
        if bytes > MAX_DATA_BYTES {
            errors.too_long(&path, MAX_DATA_BYTES);
        }
        required_keys(errors, object);
    }

    fn update_checks(&self, _: &str) -> &'static [Check] {
        &[
            Check::MetadataChange,
            Check::Change,
            Check::Metadata,
            Check::Object,
        ]
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        // Users of a Secret rely on the keys that its type guarantees.
        fields::immutable(&["type"], object, old, Path::ROOT, errors);
        configmaps::immutable(errors, object, old, &["data"]);
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        let bytes = |key: &str| {
            let text = object["data"].text(key);
            STANDARD.decode(text).unwrap_or_default()
        };
        if object["type"] == "kubernetes.io/tls" {
            let (certificate, key) = (bytes("tls.crt"), bytes("tls.key"));
            let refused = key_pair::check(&certificate, &key).err();
            refused.iter().map(ToString::to_string).collect()
        } else {
            Vec::new()
        }
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }

    fn field_selection(&self) -> Option<&dyn FieldSelection> {
        Some(self)
    }
}

impl Printing for Secret {
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[NAME, column("Type"), column("Data"), AGE];
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![
            name(object),
            object.text("type").into(),
            object.entries("data").count().into(),
            age(object, now),
        ]
    }
}

impl FieldSelection for Secret {
    fn selectable_fields(&self) -> &[&'static str] {
        &["type"]
    }

    fn selectable_value(&self, object: &Value, _field: &str) -> String {
        object.text("type").to_owned()
    }
}

fn required_keys(errors: &mut Errors, secret: &Value) {
    let data = Path::new("data");
    let mut need = |key: &str| {
        if secret["data"].get(key).is_none() {
            errors.required(&data.key(key), "");
        }
    };
    match secret.text("type") {
        "kubernetes.io/service-account-token" => {
            let path = Path::new("metadata");
            let path = path.child("annotations");
            if secret["metadata"]["annotations"]
                .text(SERVICE_ACCOUNT_NAME)
                .is_empty()
            {
                errors.required(&path.key(SERVICE_ACCOUNT_NAME), "");
            }
        }
        "kubernetes.io/dockercfg" => docker_json(errors, secret, ".dockercfg"),
        "kubernetes.io/dockerconfigjson" => docker_json(errors, secret, ".dockerconfigjson"),
        "kubernetes.io/basic-auth" => {
            let either = ["username", "password"]
                .iter()
                .any(|key| secret["data"].get(*key).is_some());
            // One of the two keys is enough, but kube-apiserver reports both if neither is there.
            if !either {
                need("username");
                need("password");
            }
        }
        "kubernetes.io/ssh-auth" if secret["data"].text("ssh-privatekey").is_empty() => {
            errors.required(&data.key("ssh-privatekey"), "");
        }
        "kubernetes.io/tls" => {
            need("tls.crt");
            need("tls.key");
        }
        _ => {}
    }
}

fn docker_json(errors: &mut Errors, secret: &Value, key: &str) {
    let path = Path::new("data");
    let path = path.key(key);
    match secret["data"].get(key).and_then(Value::as_str) {
        None => errors.required(&path, ""),
        Some(text) => {
            let bytes = STANDARD.decode(text).unwrap_or_default();
            let why = match serde_json::from_slice(&bytes) {
                // Go decodes null as an empty map.
                Ok(Value::Object(_) | Value::Null) => return,
                Ok(other) => json_of_another_type(&other, "map[string]interface {}"),
                Err(error) => json_error(&bytes, &error),
            };
            errors.invalid(&path, REDACTED, why.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn string_data_overrides_data_and_is_forgotten() {
        let mut secret = json!({"stringData": {"a": "hello"}, "data": {"a": "d29ybGQ=", "b": ""}});
        Secret.default(&mut secret);
        assert_eq!(
            secret,
            json!({"data": {"a": "aGVsbG8=", "b": ""}, "type": "Opaque"})
        );
    }

    #[test]
    fn each_type_must_hold_its_keys() {
        let causes = |kind: &str, data: Value| {
            let mut errors = Errors::default();
            required_keys(&mut errors, &json!({"type": kind, "data": data}));
            let texts = errors.0.iter();
            texts
                .map(|error| format!("{}: {}", error.field, error.body()))
                .collect::<Vec<_>>()
        };
        let redacted = |why: &str| {
            vec![format!(
                "data[.dockercfg]: Invalid value: \"{REDACTED}\": {why}"
            )]
        };
        let docker = |text: &str| {
            causes(
                "kubernetes.io/dockercfg",
                json!({".dockercfg": STANDARD.encode(text)}),
            )
        };
        assert_eq!(docker("{\"a\": 1}"), [""; 0]);
        assert_eq!(docker(""), redacted("unexpected end of JSON input"));
        assert_eq!(
            docker("x"),
            redacted("invalid character 'x' looking for beginning of value")
        );
        assert_eq!(
            docker("[]"),
            redacted("json: cannot unmarshal array into Go value of type map[string]interface {}")
        );
        let key = ["data[ssh-privatekey]: Required value"];
        assert_eq!(
            causes("kubernetes.io/ssh-auth", json!({"ssh-privatekey": ""})),
            key
        );
        assert_eq!(
            causes("kubernetes.io/basic-auth", json!({})),
            [
                "data[username]: Required value",
                "data[password]: Required value"
            ]
        );
        assert_eq!(
            causes("kubernetes.io/service-account-token", json!({})),
            ["metadata.annotations[kubernetes.io/service-account.name]: Required value"]
        );
    }
}
