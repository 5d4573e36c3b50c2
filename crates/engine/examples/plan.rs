//! Plans what to buy: twelve pods without a place, one pool that may buy two instance types in two zones.
//!
//!     cargo run -p mullion-engine --example plan

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;

use mullion_engine::{
    Cluster, Options,
    model::{Container, Operator, PodSpec, PodTemplate, Quantity, ResourceMap, StringMap},
    provision::{InstanceType, NodeTemplate, Offering, PlanRequest, Requirement},
};

fn amounts(cpu: i64, gib: i64) -> ResourceMap {
    [
        ("cpu".to_owned(), Quantity::from_units(cpu)),
        ("memory".to_owned(), Quantity::from_units(gib << 30)),
        ("pods".to_owned(), Quantity::from_units(29)),
    ]
    .into()
}

/// A machine; prices are whole micro-dollars an hour, so that they compare exactly.
fn machine(name: &str, cpu: i64, gib: i64, price_micro_usd: u64) -> Arc<InstanceType> {
    let offering = |zone: &str| Offering {
        zone: zone.to_owned(),
        capacity_type: "on-demand".to_owned(),
        price_micro_usd,
        available: true,
        labels: StringMap::new(),
        reservation: None,
    };
    Arc::new(InstanceType {
        name: name.to_owned(),
        labels: [("kubernetes.io/os".to_owned(), "linux".to_owned())].into(),
        capacity: amounts(cpu, gib),
        allocatable: amounts(cpu, gib),
        offerings: vec![offering("us-west-2a"), offering("us-west-2b")],
    })
}

fn pod(name: String, cpu: i64, gib: i64) -> PodSpec {
    let mut container = Container::default();
    container.resources.requests = amounts(cpu, gib);
    container.resources.requests.remove("pods");
    PodSpec {
        name,
        template: PodTemplate {
            namespace: "shop".to_owned(),
            containers: vec![container],
            ..PodTemplate::default()
        },
        ..PodSpec::default()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = NodeTemplate {
        pool: "general".to_owned(),
        requirements: vec![Requirement {
            key: "topology.kubernetes.io/zone".to_owned(),
            operator: Operator::In,
            values: vec!["us-west-2a".to_owned()],
            min_values: None,
        }],
        instance_types: vec![
            machine("m6a.xlarge", 4, 16, 172_800),
            machine("m6a.4xlarge", 16, 64, 691_200),
        ],
        ..NodeTemplate::default()
    };
    let mut pods: Vec<_> = (0..12).map(|n| pod(format!("web-{n}"), 1, 4)).collect();
    pods.push(pod("enormous".to_owned(), 32, 4));

    // No node is there: everything has to be bought. `by_cost` packs; without it pods are placed one by one, as Karpenter does.
    let mut cluster = Cluster::new(Options::default());
    let plan = cluster.plan(&PlanRequest {
        pods,
        templates: vec![pool],
        by_cost: true,
        ..PlanRequest::default()
    })?;

    let usd = |micro: u64| micro as f64 / 1_000_000.0;
    for node in &plan.nodes {
        let types: Vec<_> = node.options.iter().map(|o| o.name.as_str()).collect();
        println!(
            "buy for {}: {} at {:.4} USD/h, for {} pods",
            node.pool,
            types.join(" or "),
            usd(node.price_micro_usd()),
            node.pods.len()
        );
    }
    for pod in &plan.unplaceable {
        for refusal in pod.pools.iter() {
            let reason = cluster.pool_reason_text(&refusal.reason);
            println!("{} has no place: {}: {reason}", pod.pod, refusal.pool);
        }
    }
    println!("together {:.4} USD/h", usd(plan.price_micro_usd()));
    assert_eq!(plan.price_micro_usd(), 3 * 172_800);
    assert_eq!(plan.unplaceable.len(), 1);
    // The model is as it was: a plan is tried between a checkpoint and its rollback.
    assert_eq!(cluster.node_count(), 0);
    Ok(())
}
