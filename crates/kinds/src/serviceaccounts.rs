//! core/v1 ServiceAccount: stored as it is; an admission plugin adds it to pods.

use jiff::Timestamp;
use mullion_schema::tree::Tree;
use serde_json::{Value, json};

use super::{
    Check, Column, Kind,
    print::{AGE, NAME, age, name},
};
use crate::{Printing, request::Ctx};

const MOUNTABLE: &str = "kubernetes.io/enforce-mountable-secrets";

/// core/v1 ServiceAccount.
pub(crate) struct ServiceAccount;

impl Kind for ServiceAccount {
    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        name_secrets(object);
    }

    fn prepare_update(&self, _ctx: &Ctx<'_>, object: &mut Value, _old: &Value) {
        name_secrets(object);
    }

    fn update_checks(&self, _: &str) -> &'static [Check] {
        &[Check::MetadataChange, Check::Metadata]
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        let has = |account: &Value| account["metadata"]["annotations"].has(MOUNTABLE);
        if has(object) && !old.is_some_and(has) {
            let why = "deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets";
            vec![format!("metadata.annotations[{MOUNTABLE}]: {why}")]
        } else {
            Vec::new()
        }
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for ServiceAccount {
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[NAME, AGE];
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(object), age(object, now)]
    }
}

/// Keeps only the names of the secrets, because they are in the account's namespace.
fn name_secrets(account: &mut Value) {
    let secrets = account.get_mut("secrets").and_then(Value::as_array_mut);
    for secret in secrets.into_iter().flatten() {
        *secret = match secret.text("name") {
            "" => json!({}),
            name => json!({"name": name}),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_secrets_only_the_names_are_kept() {
        let mut account =
            json!({"secrets": [{"name": "a", "namespace": "b", "kind": "Secret"}, {"uid": "c"}]});
        name_secrets(&mut account);
        assert_eq!(account, json!({"secrets": [{"name": "a"}, {}]}));
    }

    #[test]
    fn the_deprecated_annotation_is_warned_of_when_it_comes() {
        let account = json!({"metadata": {"annotations": {MOUNTABLE: "true"}}});
        assert_eq!(ServiceAccount.warnings(&account, None).len(), 1);
        assert!(ServiceAccount.warnings(&account, Some(&account)).is_empty());
    }
}
