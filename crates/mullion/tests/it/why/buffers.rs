//! `mullion why` with CapacityBuffers and with faults of the simulated EC2 that decide what can be bought.

use serde_json::{Value, json};

use super::why;

/// A saved cluster of the documentation, with a pod that waits, a buffer and a shift.
fn state() -> String {
    let cluster = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/plan/cluster.yaml");
    let text = std::fs::read_to_string(cluster).expect("the cluster");
    let mut list: Value = serde_saphyr::from_str(&text).expect("YAML");
    let containers = json!([
        {"name": "c", "image": "example.com/web", "resources": {"requests": {"cpu": "5", "memory": "4Gi"}}},
    ]);
    let items = list["items"].as_array_mut().expect("items");
    items.extend([
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "large", "namespace": "shop", "uid": "large"},
            "spec": {"containers": containers}, "status": {"phase": "Pending"},
        }),
        json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db", "namespace": "shop"},
            "spec": {"replicas": 4, "selector": {"matchLabels": {"app": "db"}}, "template": {"spec": {"containers": containers}}},
        }),
        json!({
            "apiVersion": "autoscaling.x-k8s.io/v1beta1", "kind": "CapacityBuffer", "metadata": {"name": "db", "namespace": "shop"},
            "spec": {"scalableRef": {"apiGroup": "apps", "kind": "StatefulSet", "name": "db"}, "percentage": 25},
        }),
        json!({
            "apiVersion": "cloud.mullion.dev/v1alpha1", "kind": "SimulatedFault", "metadata": {"name": "shift"},
            "spec": {"fault": "zonal-shift", "target": "us-west-2a"},
        }),
    ]);
    list.to_string()
}

const NOTES: &str = "note:  CapacityBuffer shop/db keeps room for 1 pod, which needs the feature gate CapacityBuffer in a cluster
note:  SimulatedFault shift shifts the cluster away from us-west-2a: nothing is bought there
";

#[test]
fn a_node_that_is_bought_for_a_pod_may_have_room_for_chunks_too() {
    let said = why(&["pod", "large", "-n", "shop", "--state", "-"], state());
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), NOTES));
    insta::assert_snapshot!(said.stdout);
    let bound = ["pod", "ledger-5d9-0", "-n", "shop", "--state", "-"];
    let said = why(&bound, state());
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
}

#[test]
fn a_node_and_a_pool_are_told_which_buffers_and_shifts_count() {
    let said = why(&["node", "ip-10-0-0-12", "--state", "-"], state());
    assert_eq!(said.stderr, NOTES);
    insta::assert_snapshot!(said.stdout);
    let said = why(&["nodepool", "linux", "--state", "-"], state());
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), NOTES));
}

#[test]
fn a_pool_whose_types_are_all_sold_out_says_so() {
    let sold_out = state()
        .replace("zonal-shift", "capacity")
        .replace(r#""target":"us-west-2a""#, r#""target":"*/*/*""#);
    let said = why(&["nodepool", "linux", "--state", "-"], sold_out);
    assert_eq!(said.code, Some(1));
    let headline =
        "NodePool linux buys nothing: every instance type that meets its requirements is sold out.";
    assert!(said.stdout.starts_with(headline), "{}", said.stdout);
    let note =
        "note:  SimulatedFault shift leaves EC2 without capacity for */*/*: none is bought\n";
    assert!(said.stderr.ends_with(note), "{}", said.stderr);
}
