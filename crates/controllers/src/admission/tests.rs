//! The helpers that all tests of rules share: a cluster of a few objects and permissions.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};

use super::{Access, Change, ClusterReader, Permission, Rule, ServiceAccount, Write};

mod addresses;
mod gmsa;
mod placement;

/// Objects by plural and name, and the permissions of service accounts.
#[derive(Default)]
pub(super) struct Cluster {
    objects: BTreeMap<(String, String), Arc<Value>>,
    rights: Vec<String>,
    reason: String,
}

impl Cluster {
    pub(super) fn with(mut self, plural: &str, name: &str, object: Value) -> Self {
        let key = (plural.to_owned(), name.to_owned());
        self.objects.insert(key, Arc::new(object));
        self
    }

    /// Grants a permission, written as `namespace/account verb name`.
    pub(super) fn granting(mut self, right: &str) -> Self {
        self.rights.push(right.to_owned());
        self
    }

    /// Sets the reason that the authorizer gives.
    pub(super) fn because(mut self, reason: &str) -> Self {
        reason.clone_into(&mut self.reason);
        self
    }
}

impl ClusterReader for Cluster {
    fn find(&self, _: &str, plural: &str, _: Option<&str>, name: &str) -> Option<Arc<Value>> {
        let key = (plural.to_owned(), name.to_owned());
        self.objects.get(&key).cloned()
    }

    fn list(&self, _: &str, plural: &str, _: Option<&str>) -> Vec<Arc<Value>> {
        let of_kind = self.objects.iter().filter(|((kind, _), _)| kind == plural);
        of_kind.map(|(_, object)| object.clone()).collect()
    }

    fn may(&self, account: &ServiceAccount<'_>, access: &Access<'_>) -> Permission {
        let ServiceAccount { namespace, name } = account;
        let Access { verb, name: of, .. } = access;
        Permission {
            allowed: self
                .rights
                .contains(&format!("{namespace}/{name} {verb} {of}")),
            reason: self.reason.clone(),
        }
    }
}

/// Creates `pod` as a user. Returns the pod as the rule changes it, or the refusal's code and text.
pub(super) fn create(
    rule: &dyn Rule,
    known: &Cluster,
    mut pod: Value,
) -> Result<Value, (u16, String)> {
    fn write(pod: &Value) -> Write<'_> {
        Write {
            user: "alice",
            namespace: "default",
            pod,
            old: None,
        }
    }
    let verdict = rule.mutate(&write(&pod), known);
    if let Some(refusal) = verdict.refusal {
        return Err((refusal.code, refusal.text));
    }
    for change in verdict.changes {
        change.apply(&mut pod);
    }
    let again = rule.mutate(&write(&pod), known);
    assert_eq!(again.changes, [], "a rule is idempotent");
    match rule.validate(&write(&pod), known).refusal {
        Some(refusal) => Err((refusal.code, refusal.text)),
        None => Ok(pod),
    }
}

/// Updates a pod as `user`. Returns the refusal's code and text, if there is one.
pub(super) fn update(
    rule: &dyn Rule,
    known: &Cluster,
    user: &str,
    old: &Value,
    pod: &Value,
) -> Option<(u16, String)> {
    let write = Write {
        user,
        namespace: "default",
        pod,
        old: Some(old),
    };
    assert_eq!(rule.mutate(&write, known).changes, []);
    let refusal = rule.validate(&write, known).refusal?;
    Some((refusal.code, refusal.text))
}

#[test]
fn a_change_makes_the_objects_on_its_way_and_no_list_items() {
    let mut pod = json!({"spec": {"containers": [{"name": "a", "resources": null}]}});
    let change = |path: &[&str]| Change {
        path: path.iter().map(|step| (*step).to_owned()).collect(),
        value: "1".into(),
    };
    change(&["spec", "containers", "0", "resources", "limits", "a/b"]).apply(&mut pod);
    change(&["spec", "containers", "1", "name"]).apply(&mut pod);
    let expected =
        json!({"spec": {"containers": [{"name": "a", "resources": {"limits": {"a/b": "1"}}}]}});
    assert_eq!(pod, expected);
}
