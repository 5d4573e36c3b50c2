//! Defines the changes that fix a problem. A change is data; it is shown as the command that a user would type, and made through the user's
//! own kubeconfig.

use std::{collections::HashMap, fmt};

use http::Method;
use kube::Client;
use mullion_cloud::{AccountChange, AccountError};
use serde_json::{Value, json};

use super::{
    account,
    kinds::kind,
    request::{self, RequestFailure},
    snapshot::{name_of, namespace_of},
};

/// The resource versions of the objects that were written, by path.
pub(super) type Versions = HashMap<String, Value>;

/// A change that fixes a problem.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Change {
    /// Creates an object; `command` is the kubectl command that does the same.
    Create { object: Value, command: String },
    /// Merges a patch into an object, unless the object was changed since it was read.
    Merge { object: Value, patch: Value },
    /// Deletes an object.
    Delete { object: Value },
    /// Changes the AWS account.
    Account(AccountChange),
}

impl Change {
    /// Returns the change that creates an object, which is cluster-scoped or in kube-system.
    pub(super) fn create(object: Value, command: &str) -> Self {
        Change::Create {
            object,
            command: command.to_owned(),
        }
    }

    /// Returns the change that merges a patch into an object.
    pub(super) fn merge(object: &Value, patch: Value) -> Self {
        Change::Merge {
            object: named(object),
            patch,
        }
    }

    /// Returns the change that deletes an object.
    pub(super) fn delete(object: &Value) -> Self {
        Change::Delete {
            object: named(object),
        }
    }

    /// Returns the command that makes the change.
    pub(super) fn command(&self) -> String {
        match self {
            Change::Create { command, .. } => command.clone(),
            Change::Merge { object, patch } => format!(
                "kubectl{} patch {} --type merge -p {}",
                namespace_flag(object),
                target(object),
                quoted(&patch.to_string())
            ),
            Change::Delete { object } => format!(
                "kubectl{} delete {}",
                namespace_flag(object),
                target(object)
            ),
            Change::Account(change) => change.to_string(),
        }
    }

    /// Makes the change. `versions` has the resource versions of the objects that earlier changes have written, by path.
    ///
    /// # Errors
    /// The change was refused.
    pub(super) async fn make(
        &self,
        client: &Client,
        versions: &mut Versions,
    ) -> Result<(), ChangeError> {
        let (method, path, body) = match self {
            Change::Create { object, .. } => {
                let path = kind_of(object).collection(namespace_of(object));
                (Method::POST, path, object.clone())
            }
            Change::Merge { object, patch } => {
                let mut patch = patch.clone();
                let path = path(object);
                // Changes by other clients since then must not be overwritten, but those of earlier doctor changes may be.
                let version = versions
                    .get(&path)
                    .unwrap_or(&object["metadata"]["resourceVersion"]);
                if version.is_string() {
                    patch["metadata"]["resourceVersion"] = version.clone();
                }
                (Method::PATCH, path, patch)
            }
            Change::Delete { object } => {
                let mut options = json!({"propagationPolicy": "Background"});
                // The uid protects a newer object of the same name.
                let uid = &object["metadata"]["uid"];
                if uid.is_string() {
                    options["preconditions"] = json!({"uid": uid});
                }
                (Method::DELETE, path(object), options)
            }
            Change::Account(change) => return account::change(client, change).await,
        };
        match request::send(client, method.clone(), &path, Some(&body)).await {
            Err(refused) if !is_done(&method, refused.code) => Err(ChangeError::Request(refused)),
            Ok(mut written) if method == Method::PATCH => {
                versions.insert(path, written["metadata"]["resourceVersion"].take());
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// The reason why a change was not made.
#[derive(Debug)]
pub(super) enum ChangeError {
    /// The API server refuses a request, or does not answer.
    Request(RequestFailure),
    /// The simulated account is malformed.
    Form(serde_json::Error),
    /// The simulated account refuses the change.
    Account(AccountError),
    /// Other clients change the simulated account at the same time.
    Contended,
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChangeError::Request(refused) => f.write_str(&refused.why),
            ChangeError::Form(error) => write!(f, "{error}"),
            ChangeError::Account(error) => write!(f, "{error}"),
            ChangeError::Contended => {
                f.write_str("somebody else changes the simulated account all the time")
            }
        }
    }
}

/// Returns whether an error means that another client has already made the change.
fn is_done(method: &Method, code: u16) -> bool {
    *method == Method::DELETE && code == 404
}

/// Returns the fields that identify an object, with the uid and the resource version that a change is meant for.
fn named(object: &Value) -> Value {
    let meta = &object["metadata"];
    let mut kept = json!({"kind": object["kind"], "metadata": {"name": meta["name"]}});
    for key in ["namespace", "uid", "resourceVersion"] {
        if meta[key].is_string() {
            kept["metadata"][key] = meta[key].clone();
        }
    }
    kept
}

fn kind_of(object: &Value) -> &'static super::kinds::Kind {
    kind(object["kind"].as_str().unwrap_or_default())
}

fn path(object: &Value) -> String {
    let collection = kind_of(object).collection(namespace_of(object));
    // Names of RBAC objects may have colons, which are allowed in a URL's path.
    format!("{collection}/{}", name_of(object))
}

fn target(object: &Value) -> String {
    let kind = kind_of(object);
    let name = name_of(object);
    if kind.version.contains('.') {
        // For a custom resource the short name may belong to another kind, so the group is added.

        let group = kind.version.split('/').next().unwrap_or_default();
        format!("{}.{group} {name}", kind.plural)
    } else {
        format!("{} {name}", kind.name.to_lowercase())
    }
}

fn namespace_flag(object: &Value) -> String {
    match namespace_of(object) {
        "" => String::new(),
        namespace => format!(" -n {namespace}"),
    }
}

/// Quotes a word for a POSIX shell.
pub(super) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}
