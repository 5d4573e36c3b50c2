//! Mullion's admission rules for pods: they change a pod, refuse a write, or add warnings.
//!
//! A [`Rule`] is a function over a pod and a [`ClusterReader`] of its cluster. It depends on neither an API server nor an
//! HTTP server: `mullion up` calls it as an admission plugin of its API server, and a webhook server can call it with the
//! objects of an AdmissionReview. [`system`] determines the operating system that a pod asks for, [`placement`] sends pods
//! where their images run, [`addresses`] handles the address of a Windows pod, [`gmsa`] its group managed service accounts.
//!
//! Invariant: a rule is idempotent. It is called again after other plugins or webhooks have changed the pod.

pub mod addresses;
pub mod gmsa;
mod go_json;
mod lookups;
pub mod placement;
pub mod review;
pub mod system;

use std::sync::Arc;

use serde_json::{Map, Value};

pub use self::lookups::Lookups;

/// A pod that is created or updated, before it is stored.
#[derive(Clone, Copy)]
pub struct Write<'a> {
    /// The name of the user who writes it.
    pub user: &'a str,
    /// The pod's namespace.
    pub namespace: &'a str,
    /// The pod as it would be stored.
    pub pod: &'a Value,
    /// The stored pod of an update; `None` for a creation.
    pub old: Option<&'a Value>,
}

/// Read access of a rule to the pod's cluster.
pub trait ClusterReader {
    /// Returns the object of that group, plural and name; `namespace` is `None` for cluster-scoped kinds.
    fn find(
        &self,
        group: &str,
        plural: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Option<Arc<Value>>;

    /// Returns all objects of a kind, of one namespace or of all.
    fn list(&self, group: &str, plural: &str, namespace: Option<&str>) -> Vec<Arc<Value>>;

    /// Returns whether every lookup so far had an answer. A result computed before that must not be kept.
    fn is_complete(&self) -> bool {
        true
    }

    /// Returns whether a service account may do something in its namespace, as a LocalSubjectAccessReview would answer.
    fn may(&self, account: &ServiceAccount<'_>, access: &Access<'_>) -> Permission;
}

/// A service account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceAccount<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
}

/// An action on one object, for an authorization check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access<'a> {
    /// The verb, as `use`.
    pub verb: &'a str,
    /// The object's API group.
    pub group: &'a str,
    /// The object's kind, in the plural.
    pub plural: &'a str,
    /// The object's name.
    pub name: &'a str,
}

/// The answer to [`ClusterReader::may`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permission {
    /// Whether the action is allowed.
    pub allowed: bool,
    /// The authorizer's reason; often empty.
    pub reason: String,
}

/// The result of a rule for one write.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// Changes of the pod, in order.
    pub changes: Vec<Change>,
    /// Sentences for the client's `Warning` headers.
    pub warnings: Vec<String>,
    /// Why the write is refused; `None` if it is not. If there is a refusal, the changes do not matter.
    pub refusal: Option<Refusal>,
}

impl Verdict {
    /// Returns the verdict that forbids a write (403).
    pub fn forbidden(text: String) -> Self {
        Verdict {
            refusal: Some(Refusal {
                code: 403,
                reason: "Forbidden",
                text,
            }),
            ..Verdict::default()
        }
    }

    /// Adds a change: the field at `path` gets `value`.
    pub fn set(&mut self, path: &[&str], value: impl Into<Value>) {
        self.changes.push(Change {
            path: path.iter().map(|step| (*step).to_owned()).collect(),
            value: value.into(),
        });
    }
}

/// An HTTP error that refuses a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status code of the answer.
    pub code: u16,
    /// The `reason` in the Status of the answer; empty where the upstream webhook gives none.
    pub reason: &'static str,
    /// The sentence for the user.
    pub text: String,
}

/// A field of the pod that is set to a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Field names and list indexes from the pod down. List items must exist; missing objects are created.
    pub path: Vec<String>,
    /// The field's new value.
    pub value: Value,
}

impl Change {
    /// Sets the field in `pod`. A list index that does not exist leaves the pod as it is.
    pub fn apply(self, pod: &mut Value) {
        let mut place = pod;
        for step in &self.path {
            if let Value::Array(items) = place {
                let index: Option<usize> = step.parse().ok();
                let Some(item) = index.and_then(|index| items.get_mut(index)) else {
                    return;
                };
                place = item;
            } else {
                if !place.is_object() {
                    *place = Value::Object(Map::new());
                }
                place = &mut place[step.as_str()];
            }
        }
        *place = self.value;
    }
}

/// One rule about pods.
pub trait Rule: Send + Sync {
    /// Returns the rule's name, for logs and metrics.
    fn name(&self) -> &'static str;

    /// Changes a pod, or refuses the write, before the pod is validated.
    fn mutate(&self, write: &Write<'_>, cluster: &dyn ClusterReader) -> Verdict {
        let _ = (write, cluster);
        Verdict::default()
    }

    /// Refuses the write of a pod that is valid, or lets it pass; its changes are ignored.
    fn validate(&self, write: &Write<'_>, cluster: &dyn ClusterReader) -> Verdict {
        let _ = (write, cluster);
        Verdict::default()
    }
}

#[cfg(test)]
mod tests;
