//! A chart for Linux and a chart for Windows, neither of which says so, installed with helm into one cluster: every pod runs where its
//! images run, whatever their registries do.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
    time::Duration,
};

use serde_json::Value;

use super::{drive, installed, sources};
use crate::{
    cluster::Cluster,
    registry::{self, Odd, Registry},
};

/// More than helm's own limit.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where the pods of a workload run: the system, and the builds of its Windows nodes.
type Place = BTreeSet<(String, String)>;

#[test]
fn charts_that_name_no_system_are_installed_unchanged_into_a_mixed_cluster() {
    let cluster = Cluster::start(&["--speed", "max"]);
    let open = registry::at_hand(false);
    let private = registry::at_hand(true);
    for (index, (open, private)) in open.iter().zip(&private).enumerate() {
        open.push_shop();
        private.push_shop();
        install(&cluster, &format!("shop-{index}"), open, private);
    }
}

fn install(cluster: &Cluster, namespace: &str, open: &Registry, private: &Registry) {
    let (hanging, busy, down) = (Odd::hanging(), Odd::busy(), registry::down());
    let silent = [
        format!("registry={}", open.host),
        format!("silent={{{},{},{down}}}", hanging.host, busy.host),
    ];
    let credentials = [
        format!("private.host={}", private.host),
        format!("private.user={}", registry::USER),
        format!("private.password={}", registry::PASSWORD),
    ];
    for (chart, values) in [
        ("linux-shop", &silent[..]),
        ("windows-shop", &[&silent[..], &credentials].concat()),
    ] {
        let mut helm = Command::new(installed().join("bin/helm-3"));
        helm.args(["install", chart, chart, "--namespace", namespace]);
        helm.args(["--create-namespace", "--wait", "--timeout=110s"]);
        helm.args(values.iter().flat_map(|value| ["--set-string", value]));
        helm.current_dir(sources().join("helm"));
        drive(cluster, PATIENCE, &mut helm);
    }

    let places = places(cluster, namespace);
    let of = |workload: &str| &places[workload];
    let linux = Place::from([("linux".to_owned(), String::new())]);
    let at_build = |build: &str| Place::from([("windows".to_owned(), build.to_owned())]);
    for workload in ["web", "db", "agent", "silent-0", "silent-1", "silent-2"] {
        assert_eq!(of(workload), &linux, "{workload}");
    }
    for workload in ["legacy", "private"] {
        assert_eq!(of(workload), &at_build("10.0.17763"), "{workload}");
    }
    // A host of the next release runs an image of 10.0.20348 too; of the image's own build are the layers.
    for workload in ["iis", "usual-0", "usual-1", "usual-2"] {
        let newer = [at_build("10.0.20348"), at_build("10.0.26100")];
        assert!(newer.contains(of(workload)), "{workload}: {places:?}");
    }
    assert!(of("queue").iter().all(|(system, _)| system == "windows"));
    assert_eq!(busy.calls(), 1, "it asked to be left alone");
}

/// Returns where the running pods of each workload (label `app`) are.
fn places(cluster: &Cluster, namespace: &str) -> BTreeMap<String, Place> {
    let label = |object: &Value, name: &str| {
        let value = object["metadata"]["labels"][name].as_str();
        value.unwrap_or_default().to_owned()
    };
    let nodes = cluster.get(&["nodes"]);
    let nodes: BTreeMap<_, _> = items(&nodes)
        .map(|node| {
            let (system, build) = (
                label(node, "kubernetes.io/os"),
                label(node, "node.kubernetes.io/windows-build"),
            );
            (
                node["metadata"]["name"].clone().to_string(),
                (system, build),
            )
        })
        .collect();
    let mut places: BTreeMap<String, Place> = BTreeMap::new();
    for pod in items(&cluster.get(&["pods", "-n", namespace])) {
        assert_eq!(pod["status"]["phase"], "Running", "{}", pod["metadata"]);
        let node = &nodes[&pod["spec"]["nodeName"].to_string()];
        let place = places.entry(label(pod, "app")).or_default();
        place.insert(node.clone());
    }
    places
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list["items"].as_array().into_iter().flatten()
}
