//! The order in which nodes, pods and everything else arrive is never visible: decisions are the same to the byte.

use std::fmt::Write;

use mullion_engine::model::PodSpec;
use mullion_engine::{Cluster, Decision};

use crate::random::{Case, Random};
use crate::{cluster, number, read, seeded};

/// What comes of asking for the pod with several seeds, and of placing it again and again.
fn decisions(case: &Case) -> String {
    let mut cluster = cluster(case, true);
    let pod: PodSpec = read(&case.pod);
    let mut said = String::new();
    for seed in 0..4 {
        say(&mut said, &decide(&mut cluster, &pod, seed));
    }
    for copy in 0..6 {
        let pod = PodSpec {
            uid: format!("copy-{copy}"),
            ..pod.clone()
        };
        let decision = decide(&mut cluster, &pod, copy);
        say(&mut said, &decision);
        if cluster.node(&decision).is_some() {
            cluster.bind(&pod, &decision).expect("a new pod");
        }
    }
    said
}

fn say(said: &mut String, decision: &str) {
    writeln!(said, "{decision}").expect("a string takes it");
}

/// The node's name, or the message with what preemption has to say and whom it would evict.
fn decide(cluster: &mut Cluster, pod: &PodSpec, seed: u64) -> String {
    match cluster.schedule_pod(pod, seed).expect("a valid pod") {
        Decision::Node(node) => cluster.node_name(node).to_owned(),
        Decision::Unschedulable(refused) => {
            let class = cluster.pod_class(&pod.template).expect("a valid pod");
            let preemption = cluster.preempt(class, &pod.key(), &refused, seed);
            let evictions = cluster.equal_evictions(class, &pod.key()).into_iter();
            let evictions: Vec<_> = evictions
                .map(|own| (cluster.node_name(own.node).to_owned(), own.victims))
                .collect();
            let message = cluster.message_with_preemption(&refused, &preemption);
            format!("{message} {evictions:?}")
        }
    }
}

/// The same objects in another order.
fn shuffled(case: &Case, random: &mut Random) -> Case {
    let mut items = case.items.clone();
    for last in (1..items.len()).rev() {
        items.swap(last, random.below(last + 1));
    }
    Case {
        items,
        ..case.clone()
    }
}

#[test]
fn decisions_are_the_same_in_any_order_of_arrival() {
    let clusters = number("ORACLE_CLUSTERS", 200_000) / 50;
    for seed in 0..clusters {
        let case = seeded(seed);
        let expected = decisions(&case);
        for order in 0..3 {
            let other = shuffled(&case, &mut Random::new(seed ^ (order << 32)));
            assert_eq!(decisions(&other), expected, "seed {seed}, order {order}");
        }
    }
}
