//! What the doctor knows of a cluster: one reading of it, and what could not be read.
//!
//! Invariant: a row sees nothing but this. A kind that the cluster does not serve has no objects; a list that the user may not read is an
//! [`Unknown`], which names the permission.

use std::collections::BTreeMap;

use futures::{StreamExt, TryStreamExt, stream};
use http::Request;
use kube::Client;
use serde_json::Value;

use super::kinds::{KINDS, Kind, kind};
use crate::{
    failure::Failure,
    why::source::{self, ListFault, PATIENCE},
};

/// Lists asked for at the same time.
const AT_ONCE: usize = 4;

/// What was missing to answer: a permission or a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unknown(pub(super) String);

/// One reading of a cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    /// Where the API server is.
    pub(super) server: String,
    /// `v1.36.0`, if the server says so.
    pub(super) version: Option<String>,
    lists: BTreeMap<&'static str, Listed>,
}

/// The objects of a kind.
#[derive(Clone, Debug)]
enum Listed {
    Known(Vec<Value>),
    /// The user may not list them.
    Refused,
}

impl Snapshot {
    /// Returns the objects of a kind.
    ///
    /// # Errors
    /// The user may not list them.
    pub(super) fn all(&self, name: &str) -> Result<&[Value], Unknown> {
        match self.lists.get(name) {
            Some(Listed::Known(items)) => Ok(items),
            Some(Listed::Refused) => Err(Unknown(kind(name).permission())),
            None => Ok(&[]),
        }
    }

    /// Returns an object; `namespace` is empty for kinds without namespaces.
    ///
    /// # Errors
    /// The user may not list the kind.
    pub(super) fn find(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<&Value>, Unknown> {
        let mut items = self.all(kind)?.iter();
        Ok(items.find(|item| name_of(item) == name && namespace_of(item) == namespace))
    }

    /// Returns a ConfigMap, Deployment or the like of kube-system.
    ///
    /// # Errors
    /// The user may not list the kind.
    pub(super) fn system(&self, kind: &str, name: &str) -> Result<Option<&Value>, Unknown> {
        self.find(kind, super::kinds::KUBE_SYSTEM, name)
    }

    /// Takes in the objects of a kind.
    #[cfg(test)]
    pub(super) fn put(&mut self, kind: &'static str, items: Vec<Value>) {
        self.lists.insert(kind, Listed::Known(items));
    }

    /// Takes in that the objects of a kind cannot be listed.
    #[cfg(test)]
    pub(super) fn refuse(&mut self, kind: &'static str) {
        self.lists.insert(kind, Listed::Refused);
    }
}

/// Returns an object's name.
pub(super) fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// Returns an object's namespace; empty if it has none.
pub(super) fn namespace_of(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or_default()
}

/// Reads a cluster.
///
/// # Errors
/// The cluster does not answer.
pub(super) async fn take(client: &Client, server: &str) -> Result<Snapshot, Failure> {
    let lists: Vec<_> = stream::iter(&KINDS)
        .map(|kind| list(client, server, kind))
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    Ok(Snapshot {
        server: server.to_owned(),
        version: version(client).await,
        lists: lists.into_iter().flatten().collect(),
    })
}

async fn list(
    client: &Client,
    server: &str,
    kind: &'static Kind,
) -> Result<Option<(&'static str, Listed)>, Failure> {
    let list = match source::try_list(client, server, &kind.list_path()).await {
        Ok(Some(list)) => list,
        Ok(None) => return Ok(None),
        Err(ListFault::Forbidden(_)) => return Ok(Some((kind.name, Listed::Refused))),
        Err(ListFault::Failed(failure)) => return Err(failure),
    };
    let mut items = Vec::new();
    for item in list.items.unwrap_or_default() {
        let mut value: Value = serde_json::from_str(item.get()).map_err(Failure::run)?;
        // The items of a list have neither.
        value["apiVersion"] = kind.version.into();
        value["kind"] = kind.name.into();
        items.push(value);
    }
    Ok(Some((kind.name, Listed::Known(items))))
}

/// Returns the server's version. Everybody may ask for it, so that no row depends on the answer.
async fn version(client: &Client) -> Option<String> {
    let request = Request::get("/version").body(Vec::new()).ok()?;
    let answer = tokio::time::timeout(PATIENCE, client.request::<Value>(request)).await;
    let answer = answer.ok()?.ok()?;
    Some(answer["gitVersion"].as_str()?.to_owned())
}
