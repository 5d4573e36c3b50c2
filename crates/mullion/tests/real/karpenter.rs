//! AWS's own controllers on our API server and our EC2: Karpenter buys nodes, hands the cluster to `mullion controller` and takes it back; the
//! VPC resource controller gives Windows pods their addresses.
//!
//! The tests run where KARPENTER_ASSETS names the folder of the built programs, which `scripts/upstream-karpenter` prints; elsewhere they say
//! so and pass.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};

use crate::{
    available, bought_pool,
    cluster::Cluster,
    deployment,
    installed::{
        aws_variables,
        process::{Process, free_port},
    },
    of_pods, start_nodes_with,
};

/// Karpenter looks every ten seconds for nodes to give back, waits fifteen seconds before it does so, and drains them.
const UNTIL_GIVEN_BACK: Duration = Duration::from_secs(180);

/// The folder with the programs, if the tests are to run.
#[expect(
    clippy::print_stdout,
    reason = "who runs the tests is to know what was skipped"
)]
fn assets() -> Option<PathBuf> {
    let folder = std::env::var_os("KARPENTER_ASSETS").map(PathBuf::from);
    match &folder {
        None => println!(
            "skipped: KARPENTER_ASSETS is not set; KARPENTER_ASSETS=$(scripts/upstream-karpenter) runs this test"
        ),
        Some(folder) => assert!(
            folder.join("karpenter").exists(),
            "KARPENTER_ASSETS names {}, which has no karpenter",
            folder.display()
        ),
    }
    folder
}

/// Our API server with Kubernetes' controllers and scheduler, upstream's definitions of one program's kinds, and three simulated nodes. The
/// EC2 of the nodes answers clients of AWS at the port.
fn cluster(kinds: &Path, aws_port: u16) -> (Cluster, Process) {
    let mut cluster = Cluster::start_with_our_api_server();
    cluster.run_controller_manager();
    cluster.run_scheduler();
    let kinds = kinds.display().to_string();
    cluster.get(&["apply", "--server-side", "-f", &kinds]);
    let port = format!("--aws-port={aws_port}");
    let nodes = start_nodes_with(&cluster, &["--ipam=off", &port]);
    (cluster, nodes)
}

fn start_karpenter(cluster: &Cluster, assets: &Path, aws_port: u16, name: &str) -> Process {
    let port = || free_port().to_string();
    let mut command = Command::new(assets.join("karpenter"));
    command
        .envs(aws_variables(aws_port))
        .env("KUBECONFIG", cluster.path("admin"))
        .env("CLUSTER_NAME", "mixed")
        .env("CLUSTER_CA_BUNDLE", "Y2E=")
        .env("INTERRUPTION_QUEUE", "mixed")
        .env("DISABLE_LEADER_ELECTION", "true")
        .env("METRICS_PORT", port())
        .env("HEALTH_PROBE_PORT", port())
        // These tests do not wait ten seconds for more pods.
        .env("BATCH_MAX_DURATION", "2s");
    Process::start(&mut command, cluster.path(name).into())
}

/// Name, UID and instance of every NodeClaim.
fn claims(cluster: &Cluster) -> Vec<String> {
    let row = "{.metadata.name} {.metadata.uid} {.status.providerID}";
    let path = format!("jsonpath={{range .items[*]}}{row}{{\"\\n\"}}{{end}}");
    let listed = cluster.get(&["get", "nodeclaims", "-o", &path]);
    listed.lines().map(str::to_owned).collect()
}

/// How often a condition is `True` among all objects of a kind.
fn count_true(cluster: &Cluster, kind: &str, condition: &str) -> usize {
    let path =
        format!("jsonpath={{.items[*].status.conditions[?(@.type==\"{condition}\")].status}}");
    let listed = cluster.get(&["get", kind, "-o", &path]);
    listed
        .split_whitespace()
        .filter(|own| *own == "True")
        .count()
}

#[test]
fn karpenter_buys_hands_over_to_mullion_and_takes_back_on_our_api_server() {
    let Some(assets) = assets() else { return };
    let aws_port = free_port();
    let (cluster, _nodes) = cluster(&assets.join("karpenter-kinds"), aws_port);
    let mut karpenter = start_karpenter(&cluster, &assets, aws_port, "karpenter-1");
    for object in bought_pool("linux", "al2023@latest", "linux", "on-demand") {
        cluster.apply(&object);
    }
    let windows = bought_pool("windows", "windows2022@latest", "windows", "on-demand");
    for object in windows {
        cluster.apply(&object);
    }
    cluster.until("classes and pools are ready", || {
        assert!(!karpenter.has_ended(), "{}", karpenter.said());
        count_true(&cluster, "ec2nodeclasses", "Ready") == 2
            && count_true(&cluster, "nodepools", "Ready") == 2
    });
    let web = json!({
        "nodeSelector": {"karpenter.sh/nodepool": "linux"},
        "containers": [{
            "name": "a", "image": "nginx:1.27", "resources": {"requests": {"cpu": "500m", "memory": "500Mi"}},
        }],
    });
    cluster.apply(&deployment("web", 4, web));
    let iis = json!({
        "nodeSelector": {"kubernetes.io/os": "windows", "karpenter.sh/nodepool": "windows"},
        "containers": [{
            "name": "a", "image": "mcr.microsoft.com/windows/nanoserver:ltsc2022", "resources": {"requests": {"cpu": "500m"}},
        }],
    });
    cluster.apply(&deployment("iis", 1, iis));
    cluster.until("Karpenter's nodes are there for all pods", || {
        assert!(!karpenter.has_ended(), "{}", karpenter.said());
        // Nobody gives the Windows pod an address here, but it has a node.
        let placed = of_pods(&cluster, "iis", ".spec.nodeName");
        available(&cluster, "web") == "4"
            && !placed.is_empty()
            && count_true(&cluster, "nodeclaims", "Initialized") == claims(&cluster).len()
    });
    let bought = claims(&cluster);
    assert!(bought.len() >= 2, "{bought:?}");
    let said = karpenter.said();
    assert!(!said.contains("Observed a panic"), "{said}");
    karpenter.terminate();

    let cloud = if cfg!(feature = "aws") {
        "--cloud=aws"
    } else {
        "--cloud=simulated"
    };
    let mut controller = cluster.mullion_with(
        "controller",
        &[
            "controller",
            "--only=provisioner,disruption",
            cloud,
            "--cluster-name=mixed",
            "--health-probe-port=0",
            "--metrics-port=0",
        ],
        &aws_variables(aws_port),
    );
    controller.says("this process leads");
    let pool = ["get", "ec2nodeclass", "linux", "-o"];
    let version =
        "jsonpath={.metadata.annotations.karpenter\\.k8s\\.aws/ec2nodeclass-hash-version}";
    cluster.until("the classes are Mullion's", || {
        cluster.get(&[&pool[..], &[version]].concat()) == "mullion-v1"
            && count_true(&cluster, "nodepools", "Ready") == 2
    });
    cluster.get(&["scale", "deployment", "web", "--replicas=40"]);
    cluster.until("Mullion buys what is missing", || {
        assert!(!controller.has_ended(), "{}", controller.said());
        available(&cluster, "web") == "40"
    });
    let grown = claims(&cluster);
    assert!(bought.iter().all(|own| grown.contains(own)), "{grown:?}");
    assert!(grown.len() > bought.len(), "{grown:?}");
    assert_eq!(count_true(&cluster, "nodeclaims", "Drifted"), 0);
    assert_eq!(controller.terminate(), Some(0));

    let mut karpenter = start_karpenter(&cluster, &assets, aws_port, "karpenter-2");
    cluster.until("the classes are Karpenter's", || {
        assert!(!karpenter.has_ended(), "{}", karpenter.said());
        cluster
            .get(&[&pool[..], &[version]].concat())
            .starts_with('v')
            && count_true(&cluster, "ec2nodeclasses", "Ready") == 2
    });
    assert_eq!(claims(&cluster), grown);
    cluster.get(&["scale", "deployment", "web", "iis", "--replicas=0"]);
    cluster.within(UNTIL_GIVEN_BACK, "Karpenter gives all nodes back", || {
        assert!(!karpenter.has_ended(), "{}", karpenter.said());
        assert_eq!(count_true(&cluster, "nodeclaims", "Drifted"), 0);
        claims(&cluster).is_empty()
    });
    let left = cluster.get(&["get", "nodes", "-o", "name"]);
    assert_eq!(left.lines().count(), 3, "{left}");
    let said = karpenter.said();
    assert!(!said.contains("Observed a panic"), "{said}");
}

/// Writes a server's key and certificate for loopback into a folder and returns the authority in base64.
fn certify(folder: &Path) -> String {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).expect("a certificate");
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().expect("a key");
    let names = vec!["127.0.0.1".to_owned()];
    let params = CertificateParams::new(names).expect("an address is a name");
    let certificate = params.signed_by(&key, &issuer).expect("a certificate");
    std::fs::create_dir_all(folder).expect("a folder");
    std::fs::write(folder.join("tls.key"), key.serialize_pem()).expect("a file");
    std::fs::write(folder.join("tls.crt"), certificate.pem()).expect("a file");
    BASE64_STANDARD.encode(authority.pem())
}

/// One of the webhooks that EKS registers for the VPC resource controller. The port is the controller's only one.
fn webhook(name: &str, path: &str, operations: &[&str], resource: &str, authority: &str) -> Value {
    json!({
        "name": name, "admissionReviewVersions": ["v1"], "failurePolicy": "Fail", "sideEffects": "None",
        "clientConfig": {"url": format!("https://127.0.0.1:9443{path}"), "caBundle": authority},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": operations, "resources": [resource]}],
    })
}

#[test]
fn the_vpc_resource_controller_gives_windows_pods_their_addresses_on_our_api_server() {
    let Some(assets) = assets() else { return };
    let aws_port = free_port();
    let kinds = assets.join("vpc-resource-controller-kinds");
    let (cluster, _nodes) = cluster(&kinds, aws_port);
    let folder = PathBuf::from(cluster.path("tmp"));
    let authority = certify(&folder.join("k8s-webhook-server/serving-certs"));
    // The controller's webhooks let this user alone write addresses.
    let admin = std::fs::read_to_string(cluster.path("admin")).expect("a kubeconfig");
    let as_user = "as: eks:vpc-resource-controller, as-groups: [\"system:masters\"], token:";
    let kubeconfig = cluster.write("vpc", &admin.replace("token:", as_user));
    let endpoint = format!("http://127.0.0.1:{aws_port}");
    let [metrics, introspection] =
        [free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
    let mut command = Command::new(assets.join("vpc-resource-controller"));
    command
        .envs(aws_variables(aws_port))
        .env_remove("AWS_EC2_METADATA_DISABLED")
        .env("AWS_EC2_METADATA_SERVICE_ENDPOINT", endpoint)
        .env("KUBECONFIG", kubeconfig)
        .env("TMPDIR", folder)
        .args([
            "--cluster-name=mixed",
            "--vpc-id=vpc-0",
            "--aws-region=us-west-2",
        ])
        .args(["--metrics-bind-address", &metrics])
        .args(["--introspect-bind-addr", &introspection]);
    let log = cluster.path("vpc-resource-controller.log");
    let mut controller = Process::start(&mut command, log.into());
    let capacity =
        "jsonpath={.items[*].status.allocatable.vpc\\.amazonaws\\.com/PrivateIPv4Address}";
    let windows = [
        "get",
        "nodes",
        "-l",
        "kubernetes.io/os=windows",
        "-o",
        capacity,
    ];
    cluster.until("the Windows node has addresses to give", || {
        assert!(!controller.has_ended(), "{}", controller.said());
        // Ten addresses of an interface of an m5.large, without the node's own.
        cluster.get(&windows) == "9"
    });
    let hook = |name: &str, path: &str, operations: &[&str]| {
        webhook(name, path, operations, "pods", &authority)
    };
    cluster.apply(&json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "vpc-resource-mutating-webhook"},
        "webhooks": [hook("mpod.vpc.k8s.aws", "/mutate-v1-pod", &["CREATE"])],
    }));
    cluster.apply(&json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "vpc-resource-validating-webhook"},
        "webhooks": [
            hook("vpod.vpc.k8s.aws", "/validate-v1-pod", &["CREATE", "UPDATE"]),
            webhook("vnode.vpc.k8s.aws", "/validate-v1-node", &["UPDATE"], "nodes", &authority),
        ],
    }));
    let iis = json!({
        "nodeSelector": {"kubernetes.io/os": "windows"},
        "tolerations": [{"key": "os", "operator": "Exists"}],
        "containers": [{"name": "a", "image": "mcr.microsoft.com/windows/nanoserver:ltsc2022"}],
    });
    // Nine run at a time: the tenth pod waits for an address of another one.
    cluster.apply(&deployment("iis", 10, iis));
    cluster.until(
        "nine pods run with the addresses that they were given",
        || {
            assert!(!controller.has_ended(), "{}", controller.said());
            available(&cluster, "iis") == "9"
        },
    );
    let limit = ".spec.containers[0].resources.limits.vpc\\.amazonaws\\.com/PrivateIPv4Address";
    assert_eq!(of_pods(&cluster, "iis", limit), ["1"; 10].join(" "));
    let annotation = ".metadata.annotations.vpc\\.amazonaws\\.com/PrivateIPv4Address";
    let given = of_pods(&cluster, "iis", annotation);
    let running = of_pods(&cluster, "iis", ".status.podIP");
    let given: Vec<_> = given
        .split(' ')
        .filter_map(|own| own.split_once('/'))
        .map(|(address, _)| address)
        .collect();
    assert_eq!(given.join(" "), running);
    let said = cluster.refused(&[
        "annotate",
        "--overwrite",
        "pods",
        "-l",
        "app=iis",
        "vpc.amazonaws.com/PrivateIPv4Address=10.0.0.9/18",
    ]);
    assert!(
        said.contains("admission webhook \"vpod.vpc.k8s.aws\" denied the request: annotation is not set by vpc-resource-controller"),
        "{said}"
    );
}
