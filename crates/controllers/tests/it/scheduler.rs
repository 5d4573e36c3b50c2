//! The scheduler: pods find nodes, or say why not, and are tried again when that helps.

use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::Api;
use mullion_controllers::{
    kubelet::pace::Pace,
    node_lifecycle,
    scheduler::{self, config::Config},
    state::SharedState,
};
use mullion_engine::{Options, Profile, windows::Build};
use serde_json::{Value, json};

use crate::world::{World, pod};

async fn world() -> World {
    let world = World::new(Pace::INSTANT).await;
    scheduler::start(&world.context, true);
    node_lifecycle::start(&world.context, None);
    world
}

fn requesting(name: &str, cpu: &str) -> Value {
    let mut pod = pod(name, "nginx:1.27");
    pod["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": cpu } });
    pod
}

async fn refusal(world: &World, pod: &str) -> (String, String) {
    world
        .until("the pod is refused", || world.unmet(pod, "PodScheduled"))
        .await
}

#[tokio::test(start_paused = true)]
async fn a_pending_pod_is_bound_and_runs() {
    let world = world().await;
    let node = world.linux_node().await;
    world.create::<Pod>(requesting("web", "1")).await;
    let running = world.until_running("web").await;
    assert_eq!(
        running
            .spec
            .as_ref()
            .and_then(|spec| spec.node_name.as_ref()),
        Some(&node)
    );
    let events = world.events("web").await;
    assert!(
        events.contains(&(
            "Scheduled".to_owned(),
            format!("Successfully assigned default/web to {node}")
        )),
        "{events:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_fits_nowhere_says_why_and_is_bound_when_room_is_made() {
    let world = world().await;
    world.linux_node().await;
    world.create::<Pod>(requesting("first", "3")).await;
    world.until_running("first").await;
    world.create::<Pod>(requesting("second", "2")).await;
    let message = "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: \
                   0/1 nodes are available: 1 No preemption victims found for incoming pod.";
    assert_eq!(
        refusal(&world, "second").await,
        ("Unschedulable".to_owned(), message.to_owned())
    );
    world.until("the refusal is recorded", || Some(())).await;
    world.pass(1).await;
    assert!(
        world
            .events("second")
            .await
            .contains(&("FailedScheduling".to_owned(), message.to_owned()))
    );
    world.delete_pod("first").await;
    world.until_running("second").await;
}

#[tokio::test(start_paused = true)]
async fn without_nodes_a_pod_waits_for_the_first_that_suits_it() {
    let world = world().await;
    world.create::<Pod>(pod("web", "nginx:1.27")).await;
    assert_eq!(
        refusal(&world, "web").await.1,
        "no nodes available to schedule pods"
    );
    world.linux_node().await;
    world.until_running("web").await;
}

#[tokio::test(start_paused = true)]
async fn linux_pods_stay_off_tainted_windows_nodes_and_the_os_field_counts() {
    let world = world().await;
    let tainted = world
        .windows_node(Build::SERVER_2022, &["os=windows:NoSchedule"])
        .await;
    world.create::<Pod>(pod("plain", "nginx:1.27")).await;
    assert!(
        refusal(&world, "plain")
            .await
            .1
            .starts_with("0/1 nodes are available: 1 node(s) had untolerated taint(s).")
    );
    let linux = world.linux_node().await;
    let plain = world.until_running("plain").await;
    assert_eq!(
        plain.spec.as_ref().and_then(|spec| spec.node_name.as_ref()),
        Some(&linux)
    );
    let mut windows = pod("windows", "mcr.microsoft.com/windows/nanoserver:ltsc2022");
    windows["spec"]["os"] = json!({ "name": "windows" });
    windows["spec"]["tolerations"] =
        json!([{ "key": "os", "value": "windows", "effect": "NoSchedule" }]);
    world.create::<Pod>(windows).await;
    let windows = world.until_running("windows").await;
    assert_eq!(
        windows
            .spec
            .as_ref()
            .and_then(|spec| spec.node_name.as_ref()),
        Some(&tainted)
    );
}

#[tokio::test(start_paused = true)]
async fn a_gated_pod_is_not_tried_until_its_gates_are_gone() {
    let world = world().await;
    world.linux_node().await;
    let mut gated = pod("gated", "nginx:1.27");
    gated["spec"]["schedulingGates"] = json!([{ "name": "example.com/wait" }]);
    world.create::<Pod>(gated).await;
    world.pass(600).await;
    assert_eq!(
        world
            .unmet("gated", "PodScheduled")
            .map(|(reason, _)| reason)
            .as_deref(),
        Some("SchedulingGated")
    );
    let pods: Api<Pod> = Api::namespaced(world.context.client.clone(), "default");
    let patch = kube::api::Patch::Merge(json!({ "spec": { "schedulingGates": null } }));
    pods.patch("gated", &Default::default(), &patch)
        .await
        .expect("gates may be removed");
    world.until_running("gated").await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_another_scheduler_is_left_alone() {
    let world = world().await;
    world.linux_node().await;
    let mut other = pod("other", "nginx:1.27");
    other["spec"]["schedulerName"] = json!("my-scheduler");
    world.create::<Pod>(other).await;
    world.pass(600).await;
    let pod = world.pod("other").expect("it is there");
    assert_eq!(
        pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()),
        None
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_higher_priority_takes_the_place_of_a_lower_one() {
    let world = world().await;
    let node = world.linux_node().await;
    world.create::<Pod>(requesting("low", "3")).await;
    let low = world.until_running("low").await;
    let classes: Api<k8s_openapi::api::scheduling::v1::PriorityClass> =
        Api::all(world.context.client.clone());
    let class = json!({ "metadata": { "name": "high" }, "value": 1000 });
    classes
        .create(
            &Default::default(),
            &serde_json::from_value(class).expect("a class"),
        )
        .await
        .expect("it is accepted");
    let mut high = requesting("high", "2");
    high["spec"]["priorityClassName"] = json!("high");
    let high = world.create::<Pod>(high).await;
    let running = world.until_running("high").await;
    assert_eq!(
        running
            .spec
            .as_ref()
            .and_then(|spec| spec.node_name.as_ref()),
        Some(&node)
    );
    world
        .until("the victim is gone", || {
            world.pod("low").is_none().then_some(())
        })
        .await;
    let note = format!(
        "Preempted by pod {} on node {node}",
        high.metadata.uid.unwrap_or_default()
    );
    assert!(
        world
            .events("low")
            .await
            .contains(&("Preempted".to_owned(), note))
    );
    assert_ne!(low.metadata.uid, None);
}

#[tokio::test(start_paused = true)]
async fn each_of_many_preempting_pods_costs_one_pod_and_no_more() {
    let world = world().await;
    for _ in 0..2 {
        world.linux_node().await;
    }
    let low: Vec<String> = (0..16).map(|index| format!("low-{index}")).collect();
    for name in &low {
        world.create::<Pod>(requesting(name, "500m")).await;
    }
    for name in &low {
        world.until_running(name).await;
    }
    let classes: Api<k8s_openapi::api::scheduling::v1::PriorityClass> =
        Api::all(world.context.client.clone());
    let class = json!({ "metadata": { "name": "high" }, "value": 1000 });
    classes
        .create(
            &Default::default(),
            &serde_json::from_value(class).expect("a class"),
        )
        .await
        .expect("it is accepted");
    let high: Vec<String> = (0..10).map(|index| format!("high-{index}")).collect();
    for name in &high {
        let mut pod = requesting(name, "500m");
        pod["spec"]["priorityClassName"] = json!("high");
        world.create::<Pod>(pod).await;
    }
    for name in &high {
        world.until_running(name).await;
    }
    let is_left = |name: &&String| {
        let pod = world.pod(name);
        pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_none())
    };
    assert_eq!(low.iter().filter(is_left).count(), 6);
    for name in &low {
        let events = world.events(name).await;
        let preempted = events.iter().filter(|(reason, _)| reason == "Preempted");
        assert!(preempted.count() <= 1, "{name}: {events:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cordoned_node_takes_no_new_pods_until_it_is_uncordoned() {
    let world = world().await;
    let node = world.linux_node().await;
    world
        .patch_node(&node, json!({ "spec": { "unschedulable": true } }))
        .await;
    let nodes: Api<Node> = Api::all(world.context.client.clone());
    assert_eq!(
        nodes
            .get(&node)
            .await
            .expect("it is there")
            .spec
            .and_then(|spec| spec.unschedulable),
        Some(true)
    );
    world
        .until("the informer knows", || {
            let node = world.context.informers.nodes.get("", &node)?;
            node.spec
                .as_ref()?
                .unschedulable
                .filter(|cordoned| *cordoned)
        })
        .await;
    world.create::<Pod>(pod("web", "nginx:1.27")).await;
    assert!(
        refusal(&world, "web")
            .await
            .1
            .starts_with("0/1 nodes are available: 1 node(s) were unschedulable.")
    );
    world
        .patch_node(&node, json!({ "spec": { "unschedulable": null } }))
        .await;
    world.until_running("web").await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_being_deleted_is_not_tried() {
    let world = World::new(Pace::INSTANT).await;
    world.linux_node().await;
    let mut doomed = pod("doomed", "nginx:1.27");
    doomed["metadata"]["finalizers"] = json!(["example.com/wait"]);
    world.create::<Pod>(doomed).await;
    world.delete_pod("doomed").await;
    scheduler::start(&world.context, true);
    node_lifecycle::start(&world.context, None);
    world.pass(10).await;
    let pod = world.pod("doomed").expect("its finalizer holds it");
    assert_eq!(
        pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()),
        None
    );
    let skipped = "skip schedule deleting pod: default/doomed";
    let events = world.events("doomed").await;
    assert!(
        events.contains(&("FailedScheduling".to_owned(), skipped.to_owned())),
        "{events:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn what_a_profile_decides_is_told_in_its_name() {
    let world = World::new(Pace::INSTANT).await;
    let packing = Profile {
        scheduler_name: "packing".to_owned(),
        ..Profile::default()
    };
    let config = Config {
        profiles: vec![Profile::default(), packing],
        ..Config::default()
    };
    let state = SharedState::with_profiles(&world.context, Options::default(), &config.profiles);
    scheduler::start_with(&world.context, &state, 0, &config);
    for scheduler in ["default-scheduler", "packing"] {
        let mut waiting = pod(scheduler, "nginx:1.27");
        waiting["spec"]["schedulerName"] = json!(scheduler);
        world.create::<Pod>(waiting).await;
        refusal(&world, scheduler).await;
    }
    world.pass(1).await;
    let events: Api<Event> = Api::namespaced(world.context.client.clone(), "default");
    let events = events
        .list(&Default::default())
        .await
        .expect("events are listed");
    let refusals = events
        .items
        .iter()
        .filter(|event| event.reason.as_deref() == Some("FailedScheduling"));
    let mut told: Vec<_> = refusals
        .map(|event| {
            (
                event.involved_object.name.clone(),
                event.reporting_component.clone(),
            )
        })
        .collect();
    told.sort();
    told.dedup();
    let both = ["default-scheduler", "packing"].map(|name| Some(name.to_owned()));
    assert_eq!(told, both.map(|name| (name.clone(), name)));
}
