//! The blog on Karpenter for Windows beside Kubernetes' own programs, with its manifests as they are: `examples/` has them.

use serde_json::Value;

use crate::{
    KINDS,
    cluster::Cluster,
    installed::process::{Process, free_port},
};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");

/// The manifests of the blog, in its order. The cluster's own file goes to `mullion nodes` in place of eksctl.
const MANIFESTS: [&str; 5] = [
    "amazon-vpc-cni.yaml",
    "karpenter-provisioner-2019.yaml",
    "karpenter-provisioner-2022.yaml",
    "windows-server-iis-simple-2022.yaml",
    "windows-server-iis-simple-2019.yaml",
];

fn example(name: &str) -> String {
    format!("{EXAMPLES}/{name}")
}

/// The names of the nodes that a selector chooses.
fn nodes(cluster: &Cluster, selector: &str) -> Vec<String> {
    let names = cluster.get(&["get", "nodes", "-l", selector, "-o", "name"]);
    names.lines().map(str::to_owned).collect()
}

/// Starts the nodes of the blog's cluster.
fn start_nodes(cluster: &Cluster) -> Process {
    let config = example("eksctl-cluster.yaml");
    let args = ["nodes", "--speed=max", "--ipam=off", "--config", &config];
    let process = cluster.mullion("nodes", &args);
    cluster.until("the two nodes of the file are ready", || {
        let path = "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}";
        cluster.get(&["get", "nodes", "-o", path]) == "True True"
    });
    process
}

/// Scales a deployment to ten, and checks that its pods run on one new node of this build, each with an address of its own.
fn scale_out(cluster: &Cluster, version: &str, build: &str) {
    let name = format!("windows-server-iis-simple-{version}");
    cluster.get(&["scale", "deployment", &name, "--replicas", "10"]);
    cluster.get(&["rollout", "status", "deployment", &name, "--timeout=110s"]);
    let selector = format!("node.kubernetes.io/windows-build={build}");
    let list = |args: &[&str]| -> Value {
        let json = cluster.get(&[&["get", "-o", "json"], args].concat());
        serde_json::from_str(&json).expect("kubectl prints JSON")
    };
    let nodes = list(&["nodes", "-l", &selector]);
    let nodes = nodes["items"].as_array().expect("a list");
    assert_eq!(nodes.len(), 1, "ten pods of Windows {version} fit on one");
    let node = &nodes[0];
    // What the blog's log shows of this node.
    let labels = &node["metadata"]["labels"];
    assert_eq!(labels["node.kubernetes.io/instance-type"], "c6a.xlarge");
    assert_eq!(labels["karpenter.sh/nodepool"], format!("windows{version}"));
    let allocatable = &node["status"]["allocatable"];
    let own =
        ["cpu", "pods", "vpc.amazonaws.com/PrivateIPv4Address"].map(|name| &allocatable[name]);
    assert_eq!(own, ["3920m", "110", "14"]);
    let pods = list(&["pods", "-l", &format!("app={name}")]);
    let pods = pods["items"].as_array().expect("a list");
    let mut addresses = Vec::new();
    for pod in pods {
        assert_eq!(pod["spec"]["nodeName"], node["metadata"]["name"]);
        addresses.push(
            pod["metadata"]["annotations"]["vpc.amazonaws.com/PrivateIPv4Address"].to_string(),
        );
    }
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 10, "{addresses:?}");
}

#[test]
fn the_blog_s_manifests_do_beside_kube_apiserver_what_the_blog_shows() {
    let mut cluster = Cluster::start();
    cluster.run_controller_manager();
    cluster.run_scheduler();
    cluster.get(&["apply", "-f", KINDS]);
    let _nodes = start_nodes(&cluster);
    let hooks = free_port().to_string();
    let mut controller = cluster.mullion(
        "controller",
        &[
            "controller",
            "--cloud=simulated",
            "--cluster-name=windows-karpenter-demo",
            "--registries=none",
            "--health-probe-port=0",
            "--metrics-port=0",
            "--webhook-port",
            &hooks,
        ],
    );
    controller.says("this process leads");
    for name in MANIFESTS {
        cluster.get(&["apply", "-f", &example(name)]);
    }
    let linux = nodes(&cluster, "kubernetes.io/os=linux");
    scale_out(&cluster, "2022", "10.0.20348");
    scale_out(&cluster, "2019", "10.0.17763");
    cluster.get(&[
        "delete",
        "deployment",
        "windows-server-iis-simple-2022",
        "windows-server-iis-simple-2019",
    ]);
    cluster.until("the Windows nodes are given back", || {
        cluster.get(&["get", "nodeclaims", "-o", "name"]).is_empty()
            && nodes(&cluster, "kubernetes.io/os=windows").is_empty()
    });
    assert_eq!(nodes(&cluster, "kubernetes.io/os=linux"), linux);
    let said = controller.said();
    assert_eq!(controller.terminate(), Some(0), "{said}");
}
