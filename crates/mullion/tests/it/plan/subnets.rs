//! `mullion plan` with the free addresses of a simulated account's subnets: nodes and pods take one each.

use serde_json::{Value, json};

use super::ask::{json_of, plan};

/// The account with a subnet in each zone of us-west-2, and so many free addresses and /28 blocks in them.
fn account(subnets: [(usize, usize); 3]) -> Value {
    let facts = ["a", "b", "c"].into_iter().zip(subnets);
    let facts = facts.map(|(zone, (addresses, blocks))| {
        let facts = json!({
            "zone": format!("us-west-2{zone}"), "cidr": "10.0.0.0/24",
            "freeAddresses": addresses, "freePrefixes": blocks,
        });
        (format!("subnet-{zone}"), facts)
    });
    let facts: serde_json::Map<String, Value> = facts.collect();
    json!({
        "apiVersion": "cloud.mullion.dev/v1alpha1", "kind": "SimulatedAccount", "metadata": {"name": "aws"},
        "spec": {}, "status": {"subnets": facts},
    })
}

fn deployment(replicas: usize, cpu: &str, os: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {
                "nodeSelector": {"kubernetes.io/os": os},
                "tolerations": [{"key": "os", "value": "windows"}],
                "containers": [{"name": "c", "image": "example.com/web", "resources": {"requests": {"cpu": cpu}}}],
            },
        }},
    })
}

fn cni(prefixes: bool) -> Value {
    let prefixes = prefixes.to_string();
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "amazon-vpc-cni", "namespace": "kube-system"},
        "data": {"enable-windows-ipam": "true", "enable-windows-prefix-delegation": prefixes},
    })
}

/// Plans for objects on a cluster that has the pools of `mullion up` alone.
fn planned(objects: &[Value]) -> Value {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
    let flags = ["--offline", "--default-pools", "-f", "-", "-o", "json"];
    json_of(&plan(&flags, &list))
}

const ADVICE: &str = "nodes or pods that go give some back, and `mullion up --fresh` with another --subnet-size starts with larger subnets";

#[test]
fn no_more_nodes_are_planned_than_the_subnets_have_addresses_for() {
    // A pod of 150 processors fills a node of the largest types.
    let answer = planned(&[
        account([(2, 0), (0, 0), (1, 0)]),
        deployment(5, "150", "linux"),
    ]);
    let nodes = answer["nodes"].as_array().expect("nodes");
    let zones: Vec<&Value> = nodes.iter().map(|node| &node["zones"]).collect();
    assert_eq!(nodes.len(), 3, "{answer}");
    assert!(
        zones
            .iter()
            .all(|own| !own.to_string().contains("us-west-2b")),
        "{zones:?}"
    );
    let unplaced = &answer["unplaced"][0];
    assert_eq!(
        unplaced["pods"].as_array().map(Vec::len),
        Some(2),
        "{answer}"
    );
    let reason = "a node would get no address: subnet-a in us-west-2a has 2 free addresses, which other new nodes take; \
                  subnet-b in us-west-2b has 0 free addresses; subnet-c in us-west-2c has 1 free address, which another new node takes";
    let pools = unplaced["pools"].as_array().expect("pools");
    assert!(pools.iter().any(|own| own["reason"] == reason), "{pools:?}");
    let remarks = answer["remarks"].as_array().expect("remarks");
    let full = format!(
        "subnet-b in us-west-2b has 0 free addresses: no further node gets an address there, so none is planned; {ADVICE}"
    );
    assert_eq!(remarks[0], full.as_str());
    let filled = remarks[1].as_str().expect("a sentence");
    assert!(
        filled.starts_with(
            "subnet-a in us-west-2a has 2 free addresses, which other new nodes take; subnet-c"
        ),
        "{filled}"
    );
}

#[test]
fn pods_on_new_nodes_take_addresses_too() {
    let answer = planned(&[
        account([(3, 0), (0, 0), (0, 0)]),
        deployment(5, "100m", "linux"),
    ]);
    assert_eq!(answer["nodes"].as_array().map(Vec::len), Some(1));
    let remarks = answer["remarks"].as_array().expect("remarks");
    let lacking = format!(
        "3 pods on new nodes find no address and wait there in ContainerCreating (subnet-a in us-west-2a had 3 before the new nodes); {ADVICE}"
    );
    assert!(remarks.contains(&json!(lacking)), "{remarks:?}");
    let plenty = planned(&[
        account([(300, 9), (300, 9), (300, 9)]),
        deployment(5, "100m", "linux"),
    ]);
    assert_eq!(plenty["remarks"], Value::Null);
}

#[test]
fn a_windows_node_in_prefix_mode_needs_a_block_in_its_subnet() {
    let subnets = || account([(9, 0), (0, 0), (0, 0)]);
    let answer = planned(&[subnets(), cni(true), deployment(2, "100m", "windows")]);
    assert_eq!(
        answer["nodes"].as_array().map(Vec::len),
        Some(1),
        "{answer}"
    );
    let without = "subnet-a in us-west-2a has no free /28 block, so pods on a Windows node that is launched there get no address (InsufficientCidrBlocks): \
                   `mullion doctor` says how to mend that (DOC14)";
    let remarks = answer["remarks"].as_array().expect("remarks");
    assert!(remarks.contains(&json!(without)), "{remarks:?}");
    // Secondary addresses are single ones.
    let single = planned(&[subnets(), cni(false), deployment(2, "100m", "windows")]);
    assert!(!single["remarks"].to_string().contains("/28"), "{single}");
}
