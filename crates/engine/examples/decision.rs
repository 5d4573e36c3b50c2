//! Asks the engine for one decision: which of three nodes takes a Windows pod, with which scores, and why the others do not.
//!
//!     cargo run -p mullion-engine --example decision

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use mullion_engine::{
    Cluster, Decision, Options, Outcome,
    model::{NodeSpec, PodSpec},
};
use serde_json::{Value, json};

/// Nodes and pods are read from Kubernetes' JSON (feature `serde`); programs that have none fill in the structs themselves.
fn node(name: &str, os: &str, cpu: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/os": os}},
        "status": {"allocatable": {"cpu": cpu, "memory": "16Gi", "pods": "110"}},
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut cluster = Cluster::new(Options::default());
    for node in [
        node("linux", "linux", "8"),
        node("small", "windows", "2"),
        node("large", "windows", "8"),
    ] {
        cluster.add_node(&serde_json::from_value::<NodeSpec>(node)?)?;
    }
    let pod: PodSpec = serde_json::from_value(json!({
        "metadata": {"name": "iis", "namespace": "shop"},
        "spec": {
            "nodeSelector": {"kubernetes.io/os": "windows"},
            "containers": [{"image": "iis", "resources": {"requests": {"cpu": "1", "memory": "2Gi"}}}],
        },
    }))?;

    // The short answer. The last argument picks among nodes that score the same: one seed, one answer.
    let Decision::Node(chosen) = cluster.schedule_pod(&pod, 0)? else {
        return Err("no node takes the pod".into());
    };
    println!("{} goes to {}", pod.name, cluster.node_name(chosen));
    assert_eq!(cluster.node_name(chosen), "large");

    // The full answer: what every node says.
    let class = cluster.pod_class(&pod.template)?;
    for answer in cluster.answer(class).nodes {
        let name = cluster.node_name(answer.node);
        match answer.outcome {
            Outcome::Fits { scores, total } => println!("  {name}: {total} {scores:?}"),
            Outcome::Refused(refusal) => println!(
                "  {name}: {} ({})",
                cluster.reason_text(refusal.reason),
                refusal.plugin.name()
            ),
        }
    }

    // What if the pod were there already, and seven more wanted a place? `rollback` takes all of it back.
    let before = cluster.checkpoint();
    cluster.bind(&pod, "large")?;
    for number in 1..=7 {
        let mut next = pod.clone();
        next.name = format!("iis-{number}");
        if let Decision::Node(node) = cluster.schedule_pod(&next, 0)? {
            let node = cluster.node_name(node).to_owned();
            cluster.bind(&next, &node)?;
        }
    }
    let mut more = pod.clone();
    more.template.containers[0]
        .resources
        .requests
        .insert("cpu".to_owned(), "4".parse()?);
    let Decision::Unschedulable(refused) = cluster.schedule_pod(&more, 0)? else {
        return Err("there should be no room for four more cores".into());
    };
    println!("then four cores more: {}", cluster.message(&refused));
    assert_eq!(
        cluster.message(&refused),
        "0/3 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 2 Insufficient cpu."
    );
    cluster.rollback(before);
    assert!(matches!(
        cluster.schedule_pod(&more, 0)?,
        Decision::Node(node) if cluster.node_name(node) == "large"
    ));
    Ok(())
}
