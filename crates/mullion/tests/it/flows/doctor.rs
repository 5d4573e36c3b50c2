//! `mullion doctor` over a cluster that a user breaks with kubectl: it says what is broken, and mends it.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::cluster::{Cluster, text};

/// Longer than anything takes that the doctor is to see.
const PATIENCE: Duration = Duration::from_secs(100);

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

/// A cluster whose Windows node has its addresses, which come after it is ready, as on EKS.
fn start() -> Cluster {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("cluster.yaml");
    std::fs::write(&config, CONFIG).expect("a file");
    let config = config.to_str().expect("a text");
    let cluster = Cluster::start(&["--config", config, "--speed", "max"]);
    let addresses = [
        "get",
        "nodes",
        "-l",
        "kubernetes.io/os=windows",
        "-o",
        r"jsonpath={.items[*].status.allocatable.vpc\.amazonaws\.com/PrivateIPv4Address}",
    ];
    cluster.until("the Windows node has addresses", &addresses, |text| {
        !text.is_empty()
    });
    cluster
}

#[test]
fn what_a_user_breaks_is_told_and_mended() {
    let cluster = start();
    let healthy = doctor(&cluster, &[]);
    assert_eq!(healthy.code, Some(0), "{:?}", healthy.results);
    assert_eq!(healthy.with("failed"), [""; 0]);
    assert_eq!(healthy.with("unknown"), [""; 0]);

    let cni = r#"{"data":{"enable-windows-ipam":"no","windows-warm-ip-target":"x","windows-minimum-ip-target":"y"}}"#;
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
        "DOC01", "DOC02", "DOC05", "DOC07", "DOC09", "DOC10", "DOC11", "DOC16", "DOC17", "DOC21",
    ];
    assert_eq!(broken.with("failed"), failed);

    let fixed = doctor(&cluster, &["--fix", "--yes"]);
    assert!(fixed.stderr.contains("changes made"), "{}", fixed.stderr);
    // Not even of the three changes to one ConfigMap.
    assert!(!fixed.stderr.contains("not changed"), "{}", fixed.stderr);
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

    // A node whose kubelet does not run: here one that nobody has ever started.
    cluster.apply(
        "apiVersion: v1\nkind: Node\nmetadata: {name: dead, labels: {kubernetes.io/os: windows}}\n",
    );
    let dead = doctor(&cluster, &[]);
    assert_eq!(dead.results["DOC17"], "failed", "{:?}", dead.results);
    cluster.kubectl(&["delete", "node", "dead"]);
    assert_eq!(doctor(&cluster, &[]).results["DOC17"], "ok");
}

/// Eleven addresses for a Windows node: its own, seven of pods, and three to keep warm.
const SMALL: &str = "\
apiVersion: eksctl.io/v1alpha5
kind: ClusterConfig
metadata: {name: small, region: us-west-2}
managedNodeGroups:
- {name: linux, instanceType: m5.large, desiredCapacity: 2, availabilityZones: [us-west-2b, us-west-2c]}
- {name: windows, instanceType: m5.xlarge, amiFamily: WindowsServer2022CoreContainer, desiredCapacity: 1, availabilityZones: [us-west-2a]}
";

const WEB: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 7
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {kubernetes.io/os: windows}
      containers:
      - name: web
        image: mcr.microsoft.com/windows/nanoserver:ltsc2022
        resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 100m, memory: 64Mi}}
";

/// A policy that refuses the doctor's dry run.
const REFUSED: &str = "\
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: nothing-new}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [''], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  validations: [{expression: 'false', message: nothing new today}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: nothing-new}
spec: {policyName: nothing-new, validationActions: [Deny]}
";

/// A pod with a volume that Windows has no driver for, and a Service for more pods than Windows serves.
const EFS: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: efs}
spec:
  nodeSelector: {kubernetes.io/os: windows}
  containers: [{name: efs, image: 'mcr.microsoft.com/windows/nanoserver:ltsc2022'}]
  volumes: [{name: data, csi: {driver: efs.csi.aws.com}}]
---
apiVersion: v1
kind: Service
metadata: {name: big}
spec: {type: LoadBalancer, ports: [{port: 80}]}
";

/// Who holds the lease of EKS's controller; while somebody does, that of `mullion up` only watches.
const LEASE: &str = "\
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: cp-vpc-resource-controller, namespace: kube-system}
spec: {holderIdentity: ip-10-0-57-94_44ca490b}
";

/// An EndpointSlice of the Service `big` with 600 pods of a node.
fn slice(number: usize, node: &str) -> String {
    let endpoint = |at: usize| {
        let (high, low) = (at / 250, at % 250);
        format!("{{addresses: [10.{number}.{high}.{low}], nodeName: {node}}}")
    };
    let endpoints: Vec<_> = (0..600).map(endpoint).collect();
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n\
         metadata: {{name: big-{number}, labels: {{kubernetes.io/service-name: big}}}}\n\
         ports: [{{port: 80}}]\nendpoints: [{}]\n---\n",
        endpoints.join(", ")
    )
}

/// Runs the doctor until a row has a result: what it knows of AWS is a moment old.
fn until(cluster: &Cluster, id: &str, result: &str) -> Answer {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = doctor(cluster, &[]);
        if answer.results[id] == result {
            return answer;
        }
        let results = &answer.results;
        assert!(
            Instant::now() < deadline,
            "{id} is never {result}: {results:?}"
        );
    }
}

#[test]
fn what_goes_wrong_with_addresses_services_and_volumes_is_told_and_the_shown_commands_mend_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("cluster.yaml");
    std::fs::write(&config, SMALL).expect("a file");
    let config = config.to_str().expect("a text");
    let cluster = Cluster::start(&["--config", config, "--speed", "max", "--subnet-size", "/28"]);
    let windows = [
        "get",
        "nodes",
        "-l",
        "kubernetes.io/os=windows",
        "-o",
        "name",
    ];
    let node = cluster.until("a Windows node is there", &windows, |text| !text.is_empty());
    let node = node.trim().trim_start_matches("node/");
    let patch_cni = |data: &str| {
        let data = format!(r#"{{"data":{{{data}}}}}"#);
        let map = ["-n=kube-system", "patch", "configmap", "amazon-vpc-cni"];
        cluster.kubectl(&[&map[..], &["--type=merge", "-p", &data]].concat());
    };
    let patch_status = |kind: &str, status: &str| {
        let status = format!(r#"{{"status":{status}}}"#);
        let what = ["patch", kind, node, "--subresource=status"];
        cluster.kubectl(&[&what[..], &["--type=merge", "-p", &status]].concat());
    };

    // No address is left in the subnet; the shown command keeps fewer warm.
    cluster.apply(WEB);
    cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=110s"]);
    until(&cluster, "DOC14", "failed");
    patch_cni(r#""windows-warm-ip-target":"1","windows-minimum-ip-target":"1""#);
    until(&cluster, "DOC14", "ok");

    // The mode is switched under running pods.
    patch_cni(r#""enable-windows-prefix-delegation":"true""#);
    let switched = until(&cluster, "DOC15", "warning");
    assert_eq!(switched.results["DOC14"], "failed", "no /28 is free");
    patch_cni(r#""enable-windows-prefix-delegation":"false""#);
    until(&cluster, "DOC15", "not needed");

    // Nobody looks after addresses, and somebody writes other ones.
    cluster.apply(LEASE);
    let resource = "vpc.amazonaws.com/PrivateIPv4Address";
    patch_status("node", &format!(r#"{{"capacity":{{"{resource}":"0"}}}}"#));
    patch_status(
        "cninode",
        r#"{"ipv4":{"waiting":1,"warm":0,"creating":0,"cooling":0}}"#,
    );
    let pods = cluster.kubectl(&["get", "pods", "-l", "app=web", "-o", "name"]);
    let pod = pods.lines().next().expect("a pod").to_owned();
    cluster.kubectl(&[
        "annotate",
        &pod,
        "--overwrite",
        &format!("{resource}=10.0.0.77/28"),
        "--as=system:serviceaccount:kube-system:vpc-resource-controller",
        "--as-group=system:masters",
    ]);
    cluster.apply(EFS);
    cluster.apply(&(slice(1, node) + &slice(2, node)));
    cluster.apply(REFUSED);
    until(&cluster, "DOC03", "warning");
    until(&cluster, "DOC06", "failed");
    let broken = doctor(&cluster, &["--fix", "--yes"]);
    let deleted = pod.trim_start_matches("pod/");
    let deletes = format!("kubectl -n default delete pod {deleted}");
    let said = &broken.stderr;
    assert!(
        said.contains(&deletes) && said.contains("1 change made."),
        "{said}"
    );
    for (id, result) in [
        ("DOC03", "warning"),
        ("DOC04", "failed"),
        ("DOC19", "failed"),
        ("DOC22", "failed"),
        ("DOC23", "warning"),
    ] {
        assert_eq!(broken.results[id], result, "{id} {:?}", broken.results);
    }

    cluster.kubectl(&["delete", "validatingadmissionpolicybinding", "nothing-new"]);
    cluster.kubectl(&["delete", "service", "big"]);
    cluster.kubectl(&[
        "delete",
        "endpointslices",
        "-l",
        "kubernetes.io/service-name=big",
    ]);
    cluster.kubectl(&["delete", "pod", "efs"]);
    cluster.kubectl(&[
        "-n=kube-system",
        "delete",
        "lease",
        "cp-vpc-resource-controller",
    ]);
    for (id, result) in [
        ("DOC03", "ok"),
        ("DOC04", "ok"),
        ("DOC06", "ok"),
        ("DOC19", "ok"),
        ("DOC22", "not needed"),
        ("DOC23", "ok"),
    ] {
        until(&cluster, id, result);
    }
    let used = format!("mullion_ipam_addresses{{node=\"{node}\",state=\"used\"}} 7\n");
    let metrics = ["get", "--raw", "/metrics"];
    cluster.until("seven addresses are used", &metrics, |text| {
        text.contains(&used)
    });
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
    let failed = ["DOC08", "DOC12", "DOC13"];
    assert_eq!(broken.with("failed"), failed);
    assert!(
        broken.stderr.contains("Nothing was changed"),
        "{}",
        broken.stderr
    );
    account(
        &cluster,
        r#"{"spec":{"cluster":{"ipFamily":"ipv4","version":"1.36","platformVersion":"eks.4"},"fargateProfiles":{"all":null},"denied":["iam:ListAttachedRolePolicies"]}}"#,
    );
    let mended = doctor(&cluster, &[]);
    assert_eq!(mended.with("failed"), [""; 0]);
    assert_eq!(mended.with("unknown"), ["DOC09"]);
}

/// A Service that chooses no pod, and a policy that shuts a namespace.
const SHUT: &str = "\
apiVersion: v1
kind: Service
metadata: {name: lonely}
spec: {selector: {app: nobody}, ports: [{port: 80}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny}
spec: {podSelector: {}, policyTypes: [Ingress, Egress]}
";

#[test]
fn nothing_is_measured_on_simulated_nodes_and_what_objects_say_of_the_network_is_told() {
    let cluster = start();
    let ways = doctor(&cluster, &["--network"]);
    let all = [
        "NET01", "NET02", "NET03", "NET04", "NET05", "NET06", "NET07",
    ];
    assert_eq!(ways.with("unknown"), all);
    assert_eq!((ways.code, ways.results.len()), (Some(0), all.len()));
    let namespaces = cluster.kubectl(&["get", "namespaces", "-o", "name"]);
    assert!(!namespaces.contains("mullion-network"), "{namespaces}");

    cluster.apply(SHUT);
    cluster.kubectl(&["delete", "clusterrolebinding", "eks:kube-proxy-windows"]);
    let shut = doctor(&cluster, &["--network"]);
    assert_eq!(shut.with("failed"), ["NET04"]);
    assert_eq!(shut.with("warning"), ["NET03", "NET07"]);
    assert_eq!(shut.code, Some(1));
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
