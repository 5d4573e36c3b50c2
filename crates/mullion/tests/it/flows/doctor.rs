//! `mullion doctor` over a cluster that a user breaks with kubectl: it says what is broken, and mends it.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::cluster::{Cluster, text};

const CONFIG: &str = "\
apiVersion: eksctl.io/v1alpha5
kind: ClusterConfig
metadata: {name: mixed, region: us-west-2}
managedNodeGroups:
- {name: linux, instanceType: m5.large, desiredCapacity: 2}
- {name: windows, instanceType: m5.xlarge, amiFamily: WindowsServer2022CoreContainer, desiredCapacity: 1}
";

const ROLE: &str = "eksctl-mixed-nodegroup-windows-NodeInstanceRole";

/// What a user may leave in a cluster: CoreDNS scaled to nothing, a webhook of windows-gmsa that may lock kube-system out, and a pod.
const LEFT: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: coredns, namespace: kube-system}
spec:
  replicas: 0
  selector: {matchLabels: {k8s-app: kube-dns}}
  template:
    metadata: {labels: {k8s-app: kube-dns}}
    spec:
      nodeSelector: {kubernetes.io/os: linux}
      containers: [{name: coredns, image: 'registry.k8s.io/coredns/coredns:v1.12.0'}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: gmsa}
webhooks:
- name: admission-webhook.windows-gmsa.sigs.k8s.io
  failurePolicy: Fail
  sideEffects: None
  admissionReviewVersions: [v1]
  clientConfig: {url: 'https://127.0.0.1:1/validate'}
  namespaceSelector: {matchExpressions: [{key: windows.k8s.io/disabled, operator: NotIn, values: ['true']}]}
---
apiVersion: v1
kind: Pod
metadata: {name: early}
spec:
  nodeSelector: {kubernetes.io/os: windows}
  containers: [{name: early, image: 'mcr.microsoft.com/windows/nanoserver:ltsc2022'}]
";

struct Answer {
    code: Option<i32>,
    results: BTreeMap<String, String>,
    stderr: String,
}

impl Answer {
    fn with(&self, result: &str) -> Vec<&str> {
        let rows = self.results.iter().filter(|(_, own)| *own == result);
        rows.map(|(id, _)| id.as_str()).collect()
    }
}

fn doctor(cluster: &Cluster, args: &[&str]) -> Answer {
    let kubeconfig = cluster.kubeconfig();
    let kubeconfig = kubeconfig.to_str().expect("a text");
    let mut all = vec!["doctor", "-o", "json", "--kubeconfig", kubeconfig];
    all.extend(args);
    let output = cluster.mullion(&all);
    let stderr = text(&output.stderr);
    let answer: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}\n{}{stderr}", text(&output.stdout)));
    let rows = answer["checks"].as_array().expect("a list").iter();
    let text = |row: &Value, field: &str| row[field].as_str().expect("a text").to_owned();
    Answer {
        code: output.status.code(),
        results: rows
            .map(|row| (text(row, "id"), text(row, "result")))
            .collect(),
        stderr,
    }
}

fn account(cluster: &Cluster, patch: &str) {
    cluster.kubectl(&[
        "patch",
        "simulatedaccount",
        "aws",
        "--type=merge",
        "-p",
        patch,
    ]);
}

fn start() -> Cluster {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("cluster.yaml");
    std::fs::write(&config, CONFIG).expect("a file");
    let config = config.to_str().expect("a text");
    Cluster::start(&["--config", config, "--speed", "max"])
}

#[test]
fn what_a_user_breaks_is_told_and_mended() {
    let cluster = start();
    let healthy = doctor(&cluster, &[]);
    assert_eq!(healthy.code, Some(0), "{:?}", healthy.results);
    assert_eq!(healthy.with("failed"), [""; 0]);
    assert_eq!(healthy.with("unknown"), [""; 0]);

    let cni = r#"{"data":{"enable-windows-ipam":"no"}}"#;
    let system = "--namespace=kube-system";
    cluster.kubectl(&[
        "patch",
        system,
        "configmap",
        "amazon-vpc-cni",
        "--type=merge",
        "-p",
        cni,
    ]);
    let image = "--image=registry.k8s.io/pause:3.10";
    cluster.kubectl(&[
        "create",
        system,
        "deployment",
        "vpc-resource-controller",
        image,
    ]);
    cluster.kubectl(&["delete", "clusterrolebinding", "eks:kube-proxy-windows"]);
    cluster.kubectl(&[
        "label",
        "node",
        "-l",
        "kubernetes.io/os=windows",
        "node.kubernetes.io/windows-build-",
    ]);
    account(
        &cluster,
        r#"{"spec":{"roles":{"eksctl-mixed-cluster-ServiceRole":{"policies":[]}}}}"#,
    );
    let entry = format!(r#"{{"spec":{{"accessEntries":{{"{ROLE}":{{"type":"EC2_LINUX"}}}}}}}}"#);
    account(&cluster, &entry);
    cluster.apply(LEFT);
    let broken = doctor(&cluster, &[]);
    assert_eq!(broken.code, Some(1));
    let failed = [
        "DOC01", "DOC02", "DOC05", "DOC07", "DOC09", "DOC10", "DOC11", "DOC16", "DOC21",
    ];
    assert_eq!(broken.with("failed"), failed);

    let fixed = doctor(&cluster, &["--fix", "--yes"]);
    assert!(fixed.stderr.contains("changes made"), "{}", fixed.stderr);
    cluster.kubectl(&[
        "rollout",
        "status",
        system,
        "deployment/coredns",
        "--timeout=110s",
    ]);
    // No change makes a pod anew: that is its owner's to do.
    cluster.kubectl(&["delete", "pod", "early"]);
    let after = doctor(&cluster, &[]);
    assert_eq!(after.with("failed"), [""; 0], "{:?}", after.results);
    assert_eq!(after.code, Some(0));
    let again = doctor(&cluster, &["--fix", "--yes"]);
    assert!(
        again.stderr.contains("Nothing was changed"),
        "{}",
        again.stderr
    );
    assert_eq!(again.results, after.results);
}

#[test]
fn what_only_its_owner_can_change_is_told_with_what_to_do() {
    let cluster = start();
    // Everything about AWS that no change of the doctor's mends.
    account(
        &cluster,
        r#"{"spec":{"cluster":{"ipFamily":"ipv6","version":"1.31","platformVersion":"eks.1"},"fargateProfiles":{"all":{"selectors":[{"namespace":"default"}]}}}}"#,
    );
    cluster.apply(LEFT.rsplit("---\n").next().expect("the pod"));
    let broken = doctor(&cluster, &["--fix", "--yes"]);
    assert_eq!(broken.with("failed"), ["DOC08", "DOC12", "DOC13"]);
    assert!(
        broken.stderr.contains("Nothing was changed"),
        "{}",
        broken.stderr
    );
    account(
        &cluster,
        r#"{"spec":{"cluster":{"ipFamily":"ipv4","platformVersion":"eks.4"},"fargateProfiles":{"all":null},"denied":["iam:ListAttachedRolePolicies"]}}"#,
    );
    let mended = doctor(&cluster, &[]);
    assert_eq!(mended.with("failed"), [""; 0]);
    assert_eq!(mended.with("unknown"), ["DOC09"]);
}

#[test]
fn what_a_user_may_not_read_is_unknown_and_no_error() {
    let cluster = start();
    cluster.kubectl(&["create", "serviceaccount", "reader"]);
    cluster.kubectl(&[
        "create",
        "clusterrole",
        "reader",
        "--verb=list",
        "--resource=nodes,pods",
    ]);
    cluster.kubectl(&[
        "create",
        "clusterrolebinding",
        "reader",
        "--clusterrole=reader",
        "--serviceaccount=default:reader",
    ]);
    let token = cluster.kubectl(&["create", "token", "reader"]);
    cluster.kubectl(&[
        "config",
        "set-credentials",
        "reader",
        &format!("--token={}", token.trim()),
    ]);
    let of = cluster.kubectl(&[
        "config",
        "view",
        "-o",
        "jsonpath={.contexts[0].context.cluster}",
    ]);
    cluster.kubectl(&[
        "config",
        "set-context",
        "reader",
        "--user=reader",
        &format!("--cluster={of}"),
    ]);
    let answer = doctor(&cluster, &["--context", "reader"]);
    assert_eq!(
        answer.code,
        Some(0),
        "{:?} {}",
        answer.results,
        answer.stderr
    );
    assert_eq!(answer.with("failed"), [""; 0], "{:?}", answer.results);
    for id in ["DOC01", "DOC03", "DOC09", "DOC10", "DOC11", "DOC20"] {
        assert_eq!(answer.results[id], "unknown", "{id} {:?}", answer.results);
    }
}
