//! `mullion plan` with what the simulated EC2 refuses at the moment: offerings without capacity, and zones with an outage.

use serde_json::{Value, json};

use super::ask::{json_of, plan};
use crate::cluster::Cluster;

fn fault(kind: &str, target: &str) -> Value {
    json!({
        "apiVersion": "cloud.mullion.dev/v1alpha1", "kind": "SimulatedFault", "metadata": {"name": "f"},
        "spec": {"fault": kind, "target": target},
    })
}

fn pod(zone: Option<&str>) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "large"},
        "spec": {"containers": [
            {"name": "c", "image": "example.com/web", "resources": {"requests": {"cpu": "6"}}},
        ]},
    });
    if let Some(zone) = zone {
        pod["spec"]["nodeSelector"] = json!({"topology.kubernetes.io/zone": zone});
    }
    pod
}

/// Plans for objects on a cluster that has the pools of `mullion up` alone.
fn planned(objects: &[Value]) -> Value {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
    let flags = ["--offline", "--default-pools", "-f", "-", "-o", "json"];
    json_of(&plan(&flags, &list))
}

#[test]
fn nothing_is_planned_that_the_cloud_refuses_and_the_plan_says_why() {
    let free = planned(&[pod(None)]);
    let cheapest = free["nodes"][0]["instanceType"].as_str().expect("a type");
    let without = planned(&[pod(None), fault("capacity", cheapest)]);
    let next = without["nodes"][0]["instanceType"]
        .as_str()
        .expect("a type");
    assert_ne!(next, cheapest);
    let why =
        format!("SimulatedFault f leaves EC2 without capacity for {cheapest}/*/*: none is bought");
    assert_eq!(without["remarks"], json!([why]));
    // One zone less does not make a type dearer.
    let in_a = format!("{cheapest}/us-west-2a/on-demand");
    let elsewhere = planned(&[pod(None), fault("capacity", &in_a)]);
    assert_eq!(elsewhere["nodes"][0]["instanceType"], cheapest);
    let zones = elsewhere["nodes"][0]["zones"].as_array().expect("zones");
    assert!(!zones.contains(&json!("us-west-2a")), "{zones:?}");
    let down = planned(&[pod(Some("us-west-2a")), fault("zone-outage", "us-west-2a")]);
    assert_eq!(down["nodes"], json!([]));
    let why = "SimulatedFault f lets us-west-2a fail: nothing can be bought there";
    assert_eq!(down["remarks"], json!([why]));
    // What the cloud does not know refuses nothing.
    let misspelt = planned(&[pod(None), fault("capacity", "m5.larg")]);
    assert_eq!(misspelt["nodes"][0]["instanceType"], cheapest);
    let why = misspelt["remarks"][0].as_str().expect("a remark");
    assert!(
        why.starts_with("SimulatedFault f refuses nothing: ") && why.contains("m5.larg"),
        "{why}"
    );
    // A crash takes no capacity away.
    let crash = planned(&[pod(None), fault("crash", "somebody")]);
    assert_eq!(crash["nodes"][0]["instanceType"], cheapest);
    assert_eq!(crash["remarks"], Value::Null);
}

#[test]
fn what_a_running_cluster_cannot_buy_is_planned_again_when_the_fault_has_ended() {
    let cluster = Cluster::start(&["--speed", "max", "--insufficient-capacity", "c6a.2xlarge"]);
    let kubeconfig = cluster.kubeconfig();
    let kubeconfig = kubeconfig.to_str().expect("a UTF-8 path");
    let ask = || {
        let flags = ["--kubeconfig", kubeconfig, "-f", "-", "-o", "json"];
        json_of(&plan(&flags, &pod(None).to_string()))
    };
    let fault = |args: &[&str]| {
        let output = cluster.mullion(&[&["fault", "--kubeconfig", kubeconfig], args].concat());
        crate::cluster::text(&output.stdout)
    };
    let listed = fault(&[]);
    assert!(listed.contains("capacity   c6a.2xlarge/*/*"), "{listed}");
    assert_ne!(ask()["nodes"][0]["instanceType"], "c6a.2xlarge");
    let healed = fault(&["capacity", "c6a.2xlarge", "--heal"]);
    assert_eq!(healed, "EC2 has capacity for c6a.2xlarge again.\n");
    let free = ask();
    assert_eq!(
        (&free["nodes"][0]["instanceType"], &free["remarks"]),
        (&json!("c6a.2xlarge"), &Value::Null)
    );
}
