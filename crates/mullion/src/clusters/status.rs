//! `mullion status`: shows whether a cluster runs, its address, and how many of its nodes are ready.
//!
//! The answer is "yes" (exit code 0) if it runs and its API responds. Booting nodes do not matter: a cluster that buys nodes often has
//! some.

use std::{fmt, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::ListParams};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    NamedCluster, StoredCluster, age, flag, no_such, one_kept, one_running,
    running::{AccessError, Record},
};
use crate::{cli::Output, failure::Failure, out, up};

/// The time that the API may take to respond.
const PATIENCE: Duration = Duration::from_secs(10);

/// Prints the status of the chosen cluster. Returns true if it runs and responds.
pub(crate) async fn run(chosen: NamedCluster, output: Output) -> Result<bool, Failure> {
    if let Some(record) = one_running(&chosen, "mullion status")? {
        let nodes = nodes(&record).await;
        out::line(&match output {
            Output::Text => running(&record, &nodes, Timestamp::now()),
            Output::Json => running_json(&record, &nodes, Timestamp::now()).to_string(),
        });
        return Ok(nodes.is_ok());
    }
    let Some(kept) = one_kept(&chosen, "mullion status")? else {
        return Err(no_such(&chosen));
    };
    out::line(&match output {
        Output::Text => stopped(&kept),
        Output::Json => {
            let StoredCluster { name, directory } = &kept;
            json!({ "name": name, "state": "stopped", "directory": directory }).to_string()
        }
    });
    Ok(false)
}

/// The number of nodes.
#[derive(Debug)]
struct Nodes {
    ready: usize,
    all: usize,
}

/// The reason why an API does not respond.
#[derive(Debug)]
enum Silence {
    /// The kubeconfig of the cluster is unusable.
    Access(AccessError),
    /// The API refuses a request, or cannot be reached.
    Api(kube::Error),
    /// The time is over.
    NoAnswer,
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Silence::Access(error) => write!(f, "{error}"),
            Silence::Api(error) => write!(f, "{error}"),
            Silence::NoAnswer => write!(f, "no answer within {} s", PATIENCE.as_secs()),
        }
    }
}

/// Counts the nodes of a running cluster.
///
/// # Errors
/// The API does not respond.
async fn nodes(record: &Record) -> Result<Nodes, Silence> {
    let client = record.client().await.map_err(Silence::Access)?;
    let nodes: Api<Node> = Api::all(client);
    let all = ListParams::default();
    match timeout(PATIENCE, nodes.list(&all)).await {
        Ok(Ok(list)) => Ok(Nodes {
            ready: list.iter().filter(|node| up::nodes::is_ready(node)).count(),
            all: list.items.len(),
        }),
        Ok(Err(error)) => Err(Silence::Api(error)),
        Err(_) => Err(Silence::NoAnswer),
    }
}

fn running(record: &Record, nodes: &Result<Nodes, Silence>, now: Timestamp) -> String {
    let age = age(now.duration_since(record.started));
    let shown =
        |path: &Option<std::path::PathBuf>| path.as_ref().map(|path| path.display().to_string());
    let (api, ready) = match nodes {
        Ok(Nodes { ready, all }) => (
            record.server.clone(),
            Some(format!("{ready} of {all} ready")),
        ),
        Err(why) => (format!("{} does not answer: {why}", record.server), None),
    };
    let rows = [
        ("api", Some(api)),
        ("nodes", ready),
        ("kubeconfig", shown(&record.kubeconfig)),
        (
            "data",
            Some(shown(&record.directory).unwrap_or("in memory".to_owned())),
        ),
        ("log", shown(&record.log)),
    ];
    let mut text = format!(
        "Cluster {} is running: process {}, for {age}\n",
        record.name, record.pid
    );
    for (title, what) in rows {
        if let Some(what) = what {
            text += &format!("\n  {title:<10}  {what}");
        }
    }
    text
}

fn running_json(record: &Record, nodes: &Result<Nodes, Silence>, now: Timestamp) -> Value {
    let counts = nodes.as_ref().ok();
    json!({
        "name": record.name, "state": "running", "server": record.server, "pid": record.pid,
        "kubeconfig": record.kubeconfig, "directory": record.directory, "log": record.log, "started": record.started,
        "uptimeSeconds": now.duration_since(record.started).as_secs(), "answers": nodes.is_ok(), "error": nodes.as_ref().err().map(ToString::to_string),
        "nodes": counts.map(|Nodes { ready, all }| json!({ "ready": ready, "all": all })),
    })
}

fn stopped(kept: &StoredCluster) -> String {
    format!(
        "Cluster {} is not running. It is kept in {}\n\nStart it:  mullion up {}",
        kept.name,
        kept.directory.display(),
        flag(kept)
    )
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn a_status_says_where_a_cluster_is_and_how_many_nodes_are_ready() {
        let now = Timestamp::from_second(1_790_000_000).expect("a valid time");
        let record = Record {
            name: "demo".into(),
            pid: 4711,
            server: "https://127.0.0.1:6443".into(),
            kubeconfig: Some("/home/ann/.local/state/mullion/kubeconfig".into()),
            directory: Some("/home/ann/.local/state/mullion/clusters/demo".into()),
            started: now - SignedDuration::from_secs(754),
            log: Some("/home/ann/.local/state/mullion/clusters/demo/mullion.log".into()),
            access: Value::Null,
        };
        let silent = Record {
            directory: None,
            log: None,
            ..record.clone()
        };
        let nodes = Ok(Nodes { ready: 2, all: 3 });
        let none = Err(Silence::NoAnswer);
        let kept = StoredCluster {
            name: "old".into(),
            directory: PathBuf::from("/var/old"),
        };
        insta::assert_snapshot!(
            [
                running(&record, &nodes, now),
                running(&silent, &none, now),
                stopped(&kept),
                running_json(&record, &nodes, now).to_string(),
                running_json(&silent, &none, now).to_string(),
            ]
            .join("\n\n----\n")
        );
    }
}
