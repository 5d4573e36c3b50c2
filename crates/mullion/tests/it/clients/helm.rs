//! helm 3 and 4: the life of releases of the charts in `tests/clients/helm`: one whose pods run on Windows nodes, and one that brings what
//! add-ons bring.

use std::{path::PathBuf, process::Command, time::Duration};

use serde_json::Value;

use super::{drive, ended, installed, sources};
use crate::cluster::{Cluster, text};

/// More than helm's own limits.
const PATIENCE: Duration = Duration::from_secs(120);

const NAMESPACE: &str = "shop";

/// One helm, one cluster, one namespace.
struct Session {
    cluster: Cluster,
    program: PathBuf,
}

impl Session {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(args)
            .args(["--namespace", NAMESPACE])
            .current_dir(sources().join("helm"));
        command
    }

    fn helm(&self, args: &[&str]) -> String {
        drive(&self.cluster, PATIENCE, &mut self.command(args))
    }

    fn refused(&self, args: &[&str]) -> String {
        let output = ended(&self.cluster, PATIENCE, &mut self.command(args));
        assert!(!output.status.success(), "helm {args:?} did not fail");
        text(&output.stderr)
    }

    fn json(&self, args: &[&str]) -> Value {
        let all = [args, &["-o", "json"]].concat();
        serde_json::from_str(&self.helm(&all)).expect("helm prints JSON")
    }

    fn value(&self, object: &str, path: &str) -> String {
        let path = format!("jsonpath={path}");
        self.cluster
            .kubectl(&["-n", NAMESPACE, "get", object, "-o", &path])
    }

    fn names(&self, kinds: &str) -> String {
        self.cluster
            .kubectl(&["-n", NAMESPACE, "get", kinds, "-o", "name"])
    }
}

#[test]
fn a_release_lives_under_helm_3() {
    release("3");
}

#[test]
fn a_release_lives_under_helm_4() {
    release("4");
}

fn release(major: &str) {
    // A group of Windows nodes with addresses enough for every pod of this story: a freed one rests for half a minute.
    let nodes = ["--config", "eksctl-windows-nodegroup.yaml"];
    let s = Session {
        cluster: Cluster::start(&[&nodes[..], &["--speed", "max"]].concat()),
        program: installed().join(format!("bin/helm-{major}")),
    };
    // The hook, a Job, runs before.
    s.helm(&[
        "install",
        "web",
        "panes",
        "--create-namespace",
        "--wait",
        "--wait-for-jobs",
        "--timeout=100s",
    ]);
    assert_eq!(s.value("deployment/web", "{.status.readyReplicas}"), "2");
    assert_eq!(s.value("job/web-migrate", "{.status.succeeded}"), "1");
    assert_eq!(s.value("shutter/web", "{.spec.slats}"), "3");
    assert_eq!(s.value("configmap/web", "{.data.GREETING}"), "hello");
    let again = s.refused(&["install", "web", "panes"]);
    assert!(again.contains("a name that is still in use"), "{again}");

    let status = s.json(&["status", "web"]);
    assert_eq!(status["info"]["status"], "deployed");
    let listed = s.json(&["list"]);
    assert_eq!(listed[0]["name"], "web");
    assert_eq!(listed[0]["chart"], "panes-0.1.0");
    s.helm(&["test", "web", "--timeout=60s"]);

    let secret = s.names("secrets");
    let tried = s.helm(&[
        "upgrade",
        "web",
        "panes",
        "--set=greeting=tried",
        "--dry-run=server",
    ]);
    // The template looks up what the server has.
    assert!(tried.contains("web-before"), "{tried}");
    assert_eq!(s.names("secrets"), secret, "a dry run keeps nothing");

    s.helm(&[
        "upgrade",
        "web",
        "panes",
        "--set=greeting=again,replicas=3",
        "--wait",
        "--timeout=100s",
    ]);
    assert_eq!(s.value("deployment/web", "{.status.readyReplicas}"), "3");
    assert_eq!(s.value("configmap/web", "{.data.GREETING}"), "again");
    assert_eq!(s.value("configmap/web-before", "{.data.GREETING}"), "hello");
    let wrong = s.refused(&["upgrade", "web", "panes", "--set=replicas=-1"]);
    assert!(wrong.contains("replicas"), "{wrong}");
    // The server refuses what the chart does not know to be wrong, and the release goes on from there.
    let wrong = s.refused(&["upgrade", "web", "panes", "--set=image="]);
    assert!(
        wrong.contains("spec.template.spec.containers[0].image"),
        "{wrong}"
    );

    s.helm(&["rollback", "web", "1", "--wait", "--timeout=100s"]);
    assert_eq!(s.value("configmap/web", "{.data.GREETING}"), "hello");
    assert_eq!(s.value("deployment/web", "{.spec.replicas}"), "2");
    let gone = s.names("configmaps");
    assert!(!gone.contains("web-before"), "{gone}");
    let history = s.json(&["history", "web"]);
    let statuses: Vec<_> = history
        .as_array()
        .expect("a list")
        .iter()
        .map(|revision| revision["status"].as_str().expect("a status"))
        .collect();
    assert_eq!(
        statuses,
        ["superseded", "superseded", "failed", "deployed"],
        "{history}"
    );
    for what in ["manifest", "values", "notes", "hooks"] {
        assert!(!s.helm(&["get", what, "web"]).is_empty(), "{what}");
    }

    s.helm(&["uninstall", "web", "--wait", "--timeout=100s"]);
    for kinds in [
        "deployments,services,horizontalpodautoscalers,poddisruptionbudgets",
        "roles,rolebindings,shutters",
    ] {
        assert_eq!(s.names(kinds), "");
    }
    assert_eq!(s.json(&["list"]), Value::Array(Vec::new()));
}

#[test]
fn a_chart_brings_what_a_cluster_could_have_had_already_and_takes_it_away() {
    const BROUGHT: [&str; 3] = [
        "apiservice.apiregistration.k8s.io/v1beta1.metrics.k8s.io",
        "csidriver.storage.k8s.io/ebs.csi.aws.com",
        "louver.example.com/add",
    ];
    let mut s = Session {
        cluster: Cluster::start(&["--speed", "max"]),
        program: PathBuf::new(),
    };
    for major in ["3", "4"] {
        s.program = installed().join(format!("bin/helm-{major}"));
        let wait = ["--wait", "--timeout=100s"];
        s.helm(
            &[
                &["install", "add", "addons", "--create-namespace"],
                &wait[..],
            ]
            .concat(),
        );
        s.helm(&[&["upgrade", "add", "addons"], &wait[..]].concat());
        let there = s.names("apiservices,csidrivers,louvers");
        assert!(BROUGHT.iter().all(|name| there.contains(name)), "{there}");
        let service = "apiservice/v1beta1.metrics.k8s.io";
        assert_eq!(s.value(service, "{.spec.service.name}"), "add");
        let available = "{.status.conditions[?(@.type=='Available')].status}";
        assert_eq!(s.value(service, available), "True");

        s.helm(&[&["uninstall", "add"], &wait[..]].concat());
        let there = s.names("apiservices,csidrivers,louvers");
        assert!(!BROUGHT.iter().any(|name| there.contains(name)), "{there}");
        // Metrics are served with and without an APIService.
        let metrics = ["get", "--raw", "/apis/metrics.k8s.io/v1beta1/nodes"];
        assert!(s.cluster.kubectl(&metrics).contains("NodeMetricsList"));
    }
}
