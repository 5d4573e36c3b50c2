//! Reads everything that the doctor needs from a cluster once, and records what could not be read.
//!
//! Invariant: the checks see only this. A kind that the cluster does not serve has no objects; a list that the user may not read is an
//! [`Unknown`], which names the permission.

use std::collections::BTreeMap;

use futures::{StreamExt, TryStreamExt, stream};
use http::Request;
use jiff::Timestamp;
use kube::Client;
use mullion_api::account::NAME;
use serde_json::{Value, json};

use super::{
    account::{self, Facts},
    kinds::{KINDS, Kind, kind},
    network::Probes,
};
use crate::{
    check::{self, LiveFinding},
    failure::Failure,
    why::source::{self, ListFault, PATIENCE},
};

/// The number of lists requested at the same time.
const AT_ONCE: usize = 4;

/// The permission or the AWS call that was missing for an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unknown(pub(super) String);

/// The API server's answer to a Windows pod that is created as a dry run.
#[derive(Clone, Debug)]
pub(super) enum DryRun {
    /// The pod as the API server would store it.
    Admitted(Value),
    /// The user lacks the permission to create pods.
    Forbidden,
    /// The pod is refused, for this reason.
    Refused(String),
}

/// The state of a cluster at one moment.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    /// The URL of the API server.
    pub(super) server: String,
    /// The server's version, such as `v1.36.0`, if it answers the request for it.
    pub(super) version: Option<String>,
    /// The time at which the cluster was read.
    pub(super) now: Timestamp,
    /// The facts about the AWS account.
    pub(super) account: Facts,
    /// The API server's answer to a Windows pod.
    pub(super) dry_run: DryRun,
    /// What the rules of `mullion check` find in the workloads.
    pub(super) findings: Result<Vec<LiveFinding>, Unknown>,
    /// The results of the probe pods.
    pub(super) probes: Probes,
    lists: BTreeMap<&'static str, Listed>,
}

/// The objects of a kind, if they could be listed.
#[derive(Clone, Debug)]
enum Listed {
    Known(Vec<Value>),
    /// The user lacks the permission to list them.
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

    /// Returns the snapshot of a cluster without objects in which the user may read everything.
    #[cfg(test)]
    pub(super) fn empty() -> Self {
        Snapshot {
            server: "https://127.0.0.1:6443".to_owned(),
            version: None,
            now: Timestamp::UNIX_EPOCH,
            account: Facts::default(),
            dry_run: DryRun::Forbidden,
            findings: Ok(Vec::new()),
            probes: unprobed(),
            lists: BTreeMap::new(),
        }
    }

    /// Stores the objects of a kind.
    #[cfg(test)]
    pub(super) fn put(&mut self, kind: &'static str, items: Vec<Value>) {
        self.lists.insert(kind, Listed::Known(items));
    }

    /// Records that the objects of a kind cannot be listed.
    #[cfg(test)]
    pub(super) fn refuse(&mut self, kind: &'static str) {
        self.lists.insert(kind, Listed::Refused);
    }
}

fn unprobed() -> Probes {
    Probes::None("`mullion doctor --network`".to_owned())
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
    let mut snapshot = Snapshot {
        server: server.to_owned(),
        version: version(client).await,
        now: Timestamp::now(),
        account: Facts::default(),
        dry_run: dry_run(client).await?,
        findings: findings(client, server).await,
        probes: unprobed(),
        lists: lists.into_iter().flatten().collect(),
    };
    // Without the permission to read it the account stays unknown, and every check that needs it says so.
    if let Ok(Some(object)) = snapshot.find("SimulatedAccount", "", NAME) {
        let account = account::simulated(object).map_err(|error| {
            Failure::input(format!("SimulatedAccount {NAME} cannot be read: {error}"))
        })?;
        snapshot.account = account::ask(&account).await;
    }
    Ok(snapshot)
}

/// Creates a Windows pod as a dry run. The pod meets the Pod Security level `restricted`, and its label keeps Mullion's placement from
/// changing it.
async fn dry_run(client: &Client) -> Result<DryRun, Failure> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"generateName": "mullion-doctor-", "labels": {"mullion.dev/place-by-image": "false"}},
        "spec": {
            "os": {"name": "windows"},
            "nodeSelector": {"kubernetes.io/os": "windows"},
            "securityContext": {"runAsNonRoot": true},
            "containers": [{"name": "pause", "image": "registry.k8s.io/pause:3.10"}],
        },
    });
    let request = Request::post("/api/v1/namespaces/default/pods?dryRun=All")
        .header("content-type", "application/json")
        .body(pod.to_string().into_bytes())
        .map_err(Failure::run)?;
    Ok(
        match tokio::time::timeout(PATIENCE, client.request::<Value>(request)).await {
            Ok(Ok(pod)) => DryRun::Admitted(pod),
            Ok(Err(kube::Error::Api(status))) => {
                let is_rbac =
                    // Admission plugins refuse with 403 as well; only RBAC words its refusal so.
                    status.code == 403 && status.message.contains("cannot create resource");
                if is_rbac {
                    DryRun::Forbidden
                } else {
                    DryRun::Refused(status.message)
                }
            }
            Ok(Err(error)) => DryRun::Refused(source::root(&error)),
            Err(_) => DryRun::Refused(format!("no answer within {} s", PATIENCE.as_secs())),
        },
    )
}

async fn findings(client: &Client, server: &str) -> Result<Vec<LiveFinding>, Unknown> {
    let found = check::live_findings(client, server).await;
    found.map_err(|failure| Unknown(format!("what `mullion check --live` needs: {failure}")))
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
        // The API server leaves these fields out of the items of a list.
        value["apiVersion"] = kind.version.into();
        value["kind"] = kind.name.into();
        items.push(value);
    }
    Ok(Some((kind.name, Listed::Known(items))))
}

/// Returns the server's version. Every user may read it, so no check depends on the answer.
async fn version(client: &Client) -> Option<String> {
    let request = Request::get("/version").body(Vec::new()).ok()?;
    let answer = tokio::time::timeout(PATIENCE, client.request::<Value>(request)).await;
    let answer = answer.ok()?.ok()?;
    Some(answer["gitVersion"].as_str()?.to_owned())
}
