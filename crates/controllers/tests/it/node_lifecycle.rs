//! The node lifecycle: silent nodes, taints that evict, nodes whose instance is gone.

use std::sync::{Arc, Mutex};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::Api;
use mullion_api::eksctl::KubernetesVersion;
use mullion_cloud::sim::{Config, SimulatedEc2};
use mullion_controllers::{
    Clock,
    kubelet::{driver::MachineEvent, pace::Pace},
    node_lifecycle, scheduler,
};
use serde_json::json;

use crate::{
    served,
    world::{World, node_condition, pod},
};

async fn world() -> World {
    let world = World::new(Pace::INSTANT).await;
    scheduler::start(&world.context, true);
    node_lifecycle::start(&world.context, None);
    world
}

#[tokio::test(start_paused = true)]
async fn the_taint_a_new_node_comes_with_is_gone_once_it_is_ready() {
    let world = World::new(Pace::REAL).await;
    node_lifecycle::start(&world.context, None);
    let node = world.linux_node().await;
    world
        .until("the node is clean", || {
            world.node_taints(&node).is_empty().then_some(())
        })
        .await;
    world.pass(3_600).await;
    assert_eq!(
        world.node_taints(&node),
        Vec::<String>::new(),
        "a living node stays clean"
    );
    let node = world
        .context
        .informers
        .nodes
        .get("", &node)
        .expect("it is there");
    assert_eq!(node_condition(&node, "Ready").as_deref(), Some("True"));
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_becomes_unknown_and_loses_its_pods_after_their_toleration() {
    let world = world().await;
    let (dead, alive) = (world.linux_node().await, world.linux_node().await);
    for (name, node) in [("doomed", &dead), ("patient", &dead), ("safe", &alive)] {
        let mut bound = pod(name, "nginx:1.27");
        bound["spec"]["nodeName"] = json!(node);
        if name == "patient" {
            bound["spec"]["tolerations"] = json!([{ "operator": "Exists", "effect": "NoExecute" }]);
        }
        world.create::<Pod>(bound).await;
        world.until_running(name).await;
    }
    let begin = world.context.clock.now();
    let since = || world.context.clock.now().duration_since(begin).as_secs();
    world.tell(MachineEvent::Connection {
        name: dead.clone(),
        connected: false,
    });
    world
        .until("the node is unknown", || {
            let node = world.context.informers.nodes.get("", &dead)?;
            (node_condition(&node, "Ready").as_deref() == Some("Unknown")).then_some(())
        })
        .await;
    assert!((40..=60).contains(&since()), "after {} s", since());
    world
        .until("the pod is not ready", || world.unmet("doomed", "Ready"))
        .await;
    world
        .until("the node is tainted", || {
            let taints = world.node_taints(&dead);
            let both = ["NoSchedule", "NoExecute"]
                .map(|effect| format!("node.kubernetes.io/unreachable:{effect}"));
            both.iter()
                .all(|taint| taints.contains(taint))
                .then_some(())
        })
        .await;
    world
        .until("the pod is on its way out", || {
            world
                .pod("doomed")?
                .metadata
                .deletion_timestamp
                .is_some()
                .then_some(())
        })
        .await;
    assert!((340..=380).contains(&since()), "after {} s", since());
    world.pass(300).await;
    assert!(
        world.pod("doomed").is_some(),
        "its kubelet is silent, so nobody confirms its end"
    );
    assert!(
        world
            .pod("safe")
            .is_some_and(|pod| pod.metadata.deletion_timestamp.is_none())
    );
    let doomed = world.events("doomed").await;
    assert!(doomed.contains(&(
        "TaintManagerEviction".to_owned(),
        "Marking for deletion Pod default/doomed".to_owned()
    )));
    assert!(doomed.contains(&("NodeNotReady".to_owned(), "Node is not ready".to_owned())));
    world.tell(MachineEvent::Connection {
        name: dead.clone(),
        connected: true,
    });
    world
        .until("its kubelet carries the deletion out", || {
            world.pod("doomed").is_none().then_some(())
        })
        .await;
    world
        .until("the node is clean", || {
            world.node_taints(&dead).is_empty().then_some(())
        })
        .await;
    world.until_running("patient").await;
}

#[tokio::test(start_paused = true)]
async fn a_no_execute_taint_evicts_what_does_not_tolerate_it() {
    let world = world().await;
    let node = world.linux_node().await;
    let mut tolerant = pod("tolerant", "nginx:1.27");
    tolerant["spec"]["tolerations"] = json!([{ "key": "maintenance", "operator": "Exists" }]);
    let mut patient = pod("patient", "nginx:1.27");
    patient["spec"]["tolerations"] = json!([{ "key": "maintenance", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60 }]);
    for pod in [tolerant, patient, pod("plain", "nginx:1.27")] {
        world.create::<Pod>(pod).await;
    }
    for name in ["tolerant", "patient", "plain"] {
        world.until_running(name).await;
    }
    world
        .patch_node(
            &node,
            json!({ "spec": { "taints": [{ "key": "maintenance", "effect": "NoExecute" }] } }),
        )
        .await;
    world
        .until("the plain pod is gone", || {
            world.pod("plain").is_none().then_some(())
        })
        .await;
    world.pass(30).await;
    assert!(world.pod("patient").is_some());
    world
        .until("the patient pod is gone", || {
            world.pod("patient").is_none().then_some(())
        })
        .await;
    world.pass(600).await;
    assert!(world.pod("tolerant").is_some());
}

/// A node that was just tainted with NoExecute, under a running pod `patient` that tolerates it for so many seconds.
async fn in_maintenance(seconds: u64) -> (World, String) {
    let world = world().await;
    let node = world.linux_node().await;
    let mut patient = pod("patient", "nginx:1.27");
    patient["spec"]["tolerations"] = json!([{ "key": "maintenance", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds }]);
    world.create::<Pod>(patient).await;
    world.until_running("patient").await;
    world
        .patch_node(
            &node,
            json!({ "spec": { "taints": [{ "key": "maintenance", "effect": "NoExecute" }] } }),
        )
        .await;
    (world, node)
}

#[tokio::test(start_paused = true)]
async fn a_reprieved_pod_stays() {
    let (world, node) = in_maintenance(60).await;
    world.pass(30).await;
    world
        .patch_node(&node, json!({ "spec": { "taints": null } }))
        .await;
    world.pass(600).await;
    assert!(
        world
            .pod("patient")
            .is_some_and(|pod| pod.metadata.deletion_timestamp.is_none())
    );
    let events = world.events("patient").await;
    assert!(events.contains(&(
        "TaintManagerEviction".to_owned(),
        "Cancelling deletion of Pod default/patient".to_owned()
    )));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_goes_for_another_reason_is_no_longer_to_be_evicted() {
    let (world, _) = in_maintenance(600).await;
    world.pass(10).await;
    world.delete_pod("patient").await;
    world
        .until("it is gone", || {
            world.pod("patient").is_none().then_some(())
        })
        .await;
    world.pass(1).await;
    let events = world.events("patient").await;
    assert!(events.contains(&(
        "TaintManagerEviction".to_owned(),
        "Cancelling deletion of Pod default/patient".to_owned()
    )));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_not_ready_and_has_no_instance_is_deleted() {
    let world = World::new(Pace::INSTANT).await;
    let config = Config::new("shop", "us-west-2", KubernetesVersion::NEWEST);
    let ec2 = SimulatedEc2::new(config, world.context.clock.clone());
    node_lifecycle::start(&world.context, Some(Arc::new(ec2)));
    let node = world.linux_node().await;
    world.pass(600).await;
    assert!(
        world.context.informers.nodes.get("", &node).is_some(),
        "while its kubelet speaks it is not doubted"
    );
    world.tell(MachineEvent::Gone { name: node.clone() });
    world
        .until("the node is gone", || {
            world
                .context
                .informers
                .nodes
                .get("", &node)
                .is_none()
                .then_some(())
        })
        .await;
    let message = format!("Deleting node {node} because it does not exist in the cloud provider");
    world.pass(1).await;
    assert!(
        world
            .events(&node)
            .await
            .contains(&("DeletingNode".to_owned(), message))
    );
}

#[tokio::test(start_paused = true)]
async fn cordoning_sets_the_unschedulable_taint_and_uncordoning_takes_it_away() {
    let world = world().await;
    let node = world.linux_node().await;
    let taint = "node.kubernetes.io/unschedulable:NoSchedule".to_owned();
    world
        .patch_node(&node, json!({ "spec": { "unschedulable": true } }))
        .await;
    world
        .until("the taint is set", || {
            world.node_taints(&node).contains(&taint).then_some(())
        })
        .await;
    world
        .patch_node(&node, json!({ "spec": { "unschedulable": null } }))
        .await;
    world
        .until("the taint is gone", || {
            (!world.node_taints(&node).contains(&taint)).then_some(())
        })
        .await;
}

/// A machine that slept for a night, and one whose clock was set back.
#[tokio::test(start_paused = true)]
async fn a_jump_of_the_wall_clock_moves_stamps_and_silences_no_node() {
    let skew = Arc::new(Mutex::new(SignedDuration::ZERO));
    let machine = served::clock();
    let wall = {
        let (machine, skew) = (machine.clone(), Arc::clone(&skew));
        move || machine.now() + *skew.lock().expect("nobody panics with it")
    };
    let world = World::by(Clock::following(wall.clone()), Pace::INSTANT).await;
    scheduler::start(&world.context, true);
    node_lifecycle::start(&world.context, None);
    let name = world.linux_node().await;
    let leases: Api<Lease> = Api::namespaced(world.context.client.clone(), "kube-node-lease");
    let renewed = async || -> Timestamp {
        let lease = leases.get(&name).await.expect("a lease");
        let renewed = lease.spec.and_then(|spec| spec.renew_time);
        renewed.expect("it was renewed").0
    };
    world.create::<Pod>(pod("early", "nginx:1.27")).await;
    world.until_running("early").await;
    world.pass(30).await;
    for hours in [9, -5] {
        *skew.lock().expect("nobody panics with it") += SignedDuration::from_hours(hours);
        for _ in 0..20 {
            world.pass(10).await;
            let node = world.context.informers.nodes.get("", &name);
            let node = node.expect("it is there");
            assert_eq!(node_condition(&node, "Ready").as_deref(), Some("True"));
            assert_eq!(world.node_taints(&name), Vec::<String>::new());
            // Renewed by the wall clock, every ten seconds.
            let age = wall().duration_since(renewed().await).as_secs();
            assert!((0..=10).contains(&age), "{age} s after {hours} h");
        }
        let name = format!("after-{}", hours.abs());
        let made: Pod = world.create(pod(&name, "nginx:1.27")).await;
        let made = made.metadata.creation_timestamp.expect("it is stamped");
        assert_eq!(made.0.as_second(), wall().as_second());
        world.until_running(&name).await;
    }
    assert!(world.pod("early").is_some());
}
