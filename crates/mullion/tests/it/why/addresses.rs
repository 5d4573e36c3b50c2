//! `mullion why`: Windows pods and their addresses.

use serde_json::{Value, json};

use super::said_of;

const ADDRESSES: &str = "vpc.amazonaws.com/PrivateIPv4Address";

fn config(ipam: &str, prefixes: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "amazon-vpc-cni", "namespace": "kube-system"},
        "data": {"enable-windows-ipam": ipam, "enable-windows-prefix-delegation": prefixes},
    })
}

/// A Windows node of the type m5.large with two addresses left, as its other pods have seven.
fn node() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "win-1", "labels": {
            "kubernetes.io/os": "windows", "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": "win-1",
            "node.kubernetes.io/instance-type": "m5.large", "node.kubernetes.io/windows-build": "10.0.20348",
        }},
        "status": {"allocatable": {"cpu": "2", "memory": "6Gi", "pods": "110", ADDRESSES: "2"}},
    })
}

fn pod(name: &str, node: Option<&str>, addresses: Option<&str>) -> Value {
    let resources = addresses
        .map(|count| json!({"requests": {ADDRESSES: count}, "limits": {ADDRESSES: count}}));
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "shop", "uid": name},
        "spec": {
            "nodeName": node, "nodeSelector": {"kubernetes.io/os": "windows"},
            "containers": [{"name": "c", "image": "web", "resources": resources.unwrap_or_default()}],
        },
    })
}

#[test]
fn a_node_without_addresses_left_would_have_more_with_prefix_delegation() {
    let others = [
        pod("a", Some("win-1"), Some("1")),
        pod("b", Some("win-1"), Some("1")),
        pod("c", None, Some("1")),
    ];
    let said = |config: Value| {
        let items: Vec<_> = others.iter().cloned().chain([node(), config]).collect();
        said_of("c", json!(items)).0
    };
    insta::assert_snapshot!(said(config("true", "false")));
    let on = said(config("true", "true"));
    assert!(!on.contains("enable-windows-prefix-delegation"), "{on}");
    // The other half of the change is still to be made.
    let half = "replace node win-1, which is older than the setting of prefix delegation: m5.large then has addresses for 110 pods instead of 2";
    assert!(on.contains(half), "{on}");
}

#[test]
fn a_windows_pod_that_gets_no_address_is_told_which_switch_keeps_it_from_one() {
    let text = |config: Value, pod: Value| {
        let (text, _, json) = said_of("iis", json!([node(), config, pod]));
        assert_eq!(
            json["noAddress"].is_string(),
            text.contains("gets no address")
        );
        text
    };
    let unasked = || pod("iis", Some("win-1"), None);
    insta::assert_snapshot!(text(config("false", "false"), unasked()));
    insta::assert_snapshot!(text(config("true", "false"), unasked()));
    let asks = pod("iis", Some("win-1"), Some("1"));
    assert!(!text(config("true", "false"), asks).contains("no address"));
    let mut has_one = pod("iis", Some("win-1"), Some("1"));
    has_one["metadata"]["annotations"] = json!({ADDRESSES: "10.0.0.9/18"});
    assert!(!text(config("false", "false"), has_one).contains("no address"));
    let mut host = unasked();
    host["spec"]["hostNetwork"] = json!(true);
    assert!(!text(config("false", "false"), host).contains("no address"));
}

#[test]
fn a_pool_that_leaves_cheaper_types_out_because_they_are_too_small_for_windows_says_so() {
    let ready = json!([{"type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    let class = json!({
        "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": {"name": "w"},
        "spec": {
            "role": "nodes", "amiSelectorTerms": [{"alias": "windows2022@latest"}],
            "subnetSelectorTerms": [{"tags": {"cluster": "shop"}}], "securityGroupSelectorTerms": [{"tags": {"cluster": "shop"}}],
        },
        "status": {"subnets": [{"id": "subnet-a", "zone": "us-west-2a"}], "conditions": ready},
    });
    let pool = |requirements: Value| {
        json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "w"},
            "spec": {"template": {"spec": {
                "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "w"}, "requirements": requirements,
            }}},
            "status": {"conditions": ready},
        })
    };
    let categories = json!({"key": "karpenter.k8s.aws/instance-category", "operator": "In", "values": ["c", "m", "r"]});
    let on_demand =
        json!({"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]});
    let said = |pool: Value| said_of("iis", json!([class, pool, pod("iis", None, Some("1"))])).0;
    insta::assert_snapshot!(said(pool(json!([categories, on_demand]))));
    let one_cpu =
        json!({"key": "karpenter.k8s.aws/instance-cpu", "operator": "In", "values": ["1"]});
    let family =
        json!({"key": "karpenter.k8s.aws/instance-family", "operator": "In", "values": ["c7a"]});
    insta::assert_snapshot!(said(pool(json!([one_cpu, family, on_demand]))));
    let medium =
        json!({"key": "karpenter.k8s.aws/instance-size", "operator": "In", "values": ["medium"]});
    let asked = said(pool(json!([medium, family, on_demand])));
    assert!(
        asked.contains("c7a.medium") && !asked.contains("MiB"),
        "{asked}"
    );
}
