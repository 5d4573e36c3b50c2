//! Simulated kubelets: nodes register and stay alive, pods live and end.

use std::{pin::pin, time::Duration};

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Node, Pod, Secret},
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use mullion_controllers::{
    kubelet::{driver::MachineEvent, logs, pace::Pace},
    node_lifecycle, scheduler,
};
use mullion_engine::windows::Build;
use serde_json::json;

use crate::world::{World, node_condition, pod};

#[tokio::test(start_paused = true)]
async fn a_booted_windows_machine_registers_as_its_kubelet_would() {
    let world = World::new(Pace::REAL).await;
    let name = world
        .windows_node(Build::SERVER_2022, &["os=windows:NoSchedule"])
        .await;
    let node = world
        .context
        .informers
        .nodes
        .get("", &name)
        .expect("it is registered");
    let labels = node.metadata.labels.clone().unwrap_or_default();
    for (key, value) in [
        ("kubernetes.io/os", "windows"),
        ("kubernetes.io/arch", "amd64"),
        ("kubernetes.io/hostname", name.as_str()),
        ("node.kubernetes.io/instance-type", "c6a.xlarge"),
        ("node.kubernetes.io/windows-build", "10.0.20348"),
        ("topology.kubernetes.io/zone", "us-west-2a"),
    ] {
        assert_eq!(labels.get(key).map(String::as_str), Some(value), "{key}");
    }
    assert!(
        world
            .node_taints(&name)
            .contains(&"os:NoSchedule".to_owned())
    );
    let status = node.status.as_ref().expect("a status");
    let conditions: Vec<_> = status
        .conditions
        .iter()
        .flatten()
        .map(|condition| condition.type_.as_str())
        .collect();
    assert_eq!(
        conditions,
        ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]
    );
    let info = status.node_info.as_ref().expect("node info");
    assert_eq!(
        (info.operating_system.as_str(), info.os_image.as_str()),
        ("windows", "Some OS")
    );
}

#[tokio::test(start_paused = true)]
async fn a_status_that_somebody_overwrote_is_put_right_and_one_that_nobody_touched_is_left_alone() {
    let world = World::new(Pace::INSTANT).await;
    let name = world.linux_node().await;
    let nodes: Api<Node> = Api::all(world.context.client.clone());
    world.pass(30).await;
    let before = nodes.get(&name).await.expect("the node");
    world.pass(100).await;
    let later = nodes.get(&name).await.expect("the node");
    let revision = |node: &Node| node.metadata.resource_version.clone();
    assert_eq!(revision(&before), revision(&later), "nothing has changed");
    let patch = json!({ "status": {
        "addresses": [{ "type": "InternalIP", "address": "10.9.9.9" }],
        "capacity": { "cpu": "1", "example.com/dongle": "4" },
        "allocatable": { "example.com/stale": "1" },
        "conditions": [
            { "type": "Ready", "status": "False", "reason": "Gone", "lastHeartbeatTime": null, "lastTransitionTime": null },
            { "type": "KernelDeadlock", "status": "False", "reason": "KernelHasNoDeadlock", "lastHeartbeatTime": null, "lastTransitionTime": null },
        ],
        "daemonEndpoints": { "kubeletEndpoint": { "Port": 1 } },
        "images": null,
    }});
    nodes
        .patch_status(&name, &PatchParams::default(), &Patch::Strategic(patch))
        .await
        .expect("patched");
    world.pass(15).await;
    let mended = nodes.get(&name).await.expect("the node");
    let (was, is) = (before.status.unwrap(), mended.status.clone().unwrap());
    assert_eq!(was.addresses, is.addresses);
    assert_eq!(was.daemon_endpoints, is.daemon_endpoints);
    assert_eq!(was.images, is.images);
    // Resources that others have added are there for pods, too.
    for amounts in [&is.capacity, &is.allocatable] {
        let amounts = amounts.as_ref().unwrap();
        assert_eq!(amounts["example.com/dongle"].0, "4");
        assert_eq!(amounts.get("example.com/stale"), None);
    }
    assert_eq!(was.capacity.unwrap()["cpu"], is.capacity.unwrap()["cpu"]);
    let said = |kind: &str| node_condition(&mended, kind);
    assert_eq!(said("Ready").as_deref(), Some("True"));
    assert_eq!(said("KernelDeadlock").as_deref(), Some("False"));
    let events = world.events(&name).await;
    let ready = events.iter().filter(|(reason, _)| reason == "NodeReady");
    assert_eq!(ready.count(), 1, "{events:?}");
    world.pass(100).await;
    let at_rest = nodes.get(&name).await.expect("the node");
    assert_eq!(revision(&mended), revision(&at_rest), "it is mended once");
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_renews_its_lease_every_ten_seconds_until_its_machine_is_gone() {
    let world = World::new(Pace::INSTANT).await;
    let name = world.linux_node().await;
    let leases: Api<Lease> = Api::namespaced(world.context.client.clone(), "kube-node-lease");
    let renewed = async || {
        leases
            .get(&name)
            .await
            .expect("a lease")
            .spec
            .and_then(|spec| spec.renew_time)
            .expect("renewed")
    };
    world.pass(15).await;
    let first = renewed().await;
    world.pass(10).await;
    let second = renewed().await;
    assert_eq!(second.0.duration_since(first.0).as_secs(), 10);
    world.tell(MachineEvent::Gone { name: name.clone() });
    world.pass(30).await;
    assert_eq!(renewed().await, second);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_names_its_node_runs_there_and_is_gone_after_deletion() {
    let world = World::new(Pace::times(10.0)).await;
    let node = world.linux_node().await;
    let mut bound = pod("web", "nginx:1.27");
    bound["spec"]["nodeName"] = json!(node);
    world.create::<Pod>(bound).await;
    let running = world.until_running("web").await;
    let status = running.status.as_ref().expect("a status");
    assert_eq!(status.host_ip.as_deref(), Some("10.0.1.1"));
    assert_eq!(status.pod_ip.as_deref(), Some("10.0.1.10"));
    assert_eq!(status.qos_class.as_deref(), Some("BestEffort"));
    let conditions: Vec<_> = status
        .conditions
        .iter()
        .flatten()
        .map(|c| (c.type_.as_str(), c.status.as_str()))
        .collect();
    let order = [
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
    ];
    assert_eq!(conditions, order.map(|name| (name, "True")));
    let leftovers = status
        .conditions
        .iter()
        .flatten()
        .filter(|c| c.reason.is_some() || c.message.is_some());
    assert_eq!(
        leftovers.count(),
        0,
        "nothing is left of what was said while it was not ready"
    );
    world.delete_pod("web").await;
    world
        .until("the pod is gone", || {
            world.pod("web").is_none().then_some(())
        })
        .await;
    let reasons: Vec<_> = world
        .events("web")
        .await
        .into_iter()
        .map(|(reason, _)| reason)
        .collect();
    assert_eq!(
        reasons,
        ["Pulling", "Pulled", "Created", "Started", "Killing"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_windows_pod_is_annotated_with_its_address_and_an_image_of_another_build_backs_off() {
    let world = World::new(Pace::INSTANT).await;
    let node = world.windows_node(Build::SERVER_2019, &[]).await;
    for (name, tag) in [("good", "ltsc2019"), ("bad", "ltsc2022")] {
        let mut bound = pod(name, &format!("mcr.microsoft.com/windows/servercore:{tag}"));
        bound["spec"]["nodeName"] = json!(node);
        world.create::<Pod>(bound).await;
    }
    let good = world.until_running("good").await;
    let annotation = good
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get("vpc.amazonaws.com/PrivateIPv4Address"));
    assert_eq!(
        annotation.map(String::as_str),
        good.status
            .as_ref()
            .and_then(|s| s.pod_ip.as_ref())
            .map(|ip| format!("{ip}/24"))
            .as_deref()
    );
    let waiting = world
        .until("the pull backs off", || {
            let pod = world.pod("bad")?;
            let status = pod
                .status
                .as_ref()?
                .container_statuses
                .as_ref()?
                .first()?
                .clone();
            status
                .state?
                .waiting
                .filter(|waiting| waiting.reason.as_deref() == Some("ImagePullBackOff"))
        })
        .await;
    assert_eq!(
        waiting.message.as_deref(),
        Some(
            "Back-off pulling image \"mcr.microsoft.com/windows/servercore:ltsc2022\": ErrImagePull: rpc error: code = NotFound \
             desc = failed to pull and unpack image \"mcr.microsoft.com/windows/servercore:ltsc2022\": \
             no match for platform in manifest: not found"
        )
    );
}

#[tokio::test(start_paused = true)]
async fn a_windows_node_whose_pods_need_more_memory_than_it_has_pages_and_says_so() {
    let world = World::new(Pace::INSTANT).await;
    let name = world.windows_node(Build::SERVER_2022, &[]).await;
    let mut hungry = pod("hungry", "mcr.microsoft.com/windows/servercore:ltsc2022");
    hungry["spec"]["nodeName"] = json!(name);
    hungry["metadata"]["annotations"] = json!({
        "mullion.dev/simulate-usage": "memory=20Gi",
        "vpc.amazonaws.com/PrivateIPv4Address": "10.0.1.20/24",
    });
    world.create::<Pod>(hungry).await;
    world.until_running("hungry").await;
    let pressed = || {
        let node = world.context.informers.nodes.get("", &name)?;
        node_condition(&node, "MemoryPressure")
    };
    world
        .until("the node is short of memory", || {
            (pressed().as_deref() == Some("True")).then_some(())
        })
        .await;
    assert_eq!(
        world.phase("hungry").as_deref(),
        Some("Running"),
        "nothing is killed"
    );
    world.delete_pod("hungry").await;
    world
        .until("the node has enough again", || {
            (pressed().as_deref() == Some("False")).then_some(())
        })
        .await;
    let reasons: Vec<_> = world
        .events(&name)
        .await
        .into_iter()
        .map(|(reason, _)| reason)
        .collect();
    assert!(
        reasons.contains(&"NodeHasInsufficientMemory".to_owned()),
        "{reasons:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_followed_log_ends_when_its_container_stops() {
    let world = World::new(Pace::INSTANT).await;
    let node = world.linux_node().await;
    let mut job = pod("job", "busybox:1");
    job["metadata"]["annotations"] = json!({ "mullion.dev/simulate-exit": "0" });
    job["spec"]["restartPolicy"] = json!("Never");
    let mut server = pod("server", "nginx:1.27");
    for pod in [&mut job, &mut server] {
        pod["spec"]["nodeName"] = json!(node);
        world.create::<Pod>(pod.clone()).await;
    }
    world.until_running("server").await;
    world
        .until("the job is done", || {
            (world.phase("job").as_deref() == Some("Succeeded")).then_some(())
        })
        .await;
    let log = async |name: &str| {
        let pod = world.pod(name).expect("it is there");
        let run = logs::run(&world.context, &pod, "web", false).await;
        run.expect("it has run")
    };
    assert_eq!(log("job").await.lines.len(), 4);
    assert_eq!(
        log("server").await.lines[0],
        "Container web is simulated by Mullion: no process runs. It would have been started with:"
    );
    let stopped = |name: &str| {
        let (pods, pod) = (
            world.context.informers.pods.clone(),
            world.pod(name).expect("it is there"),
        );
        async move { logs::until_stopped(pods, &pod, "web").await }
    };
    stopped("job").await;
    let mut server = pin!(stopped("server"));
    assert!(
        tokio::time::timeout(Duration::from_secs(60), &mut server)
            .await
            .is_err(),
        "it is still followed"
    );
    world.delete_pod("server").await;
    server.await;
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_running_pods_go_on_and_what_was_begun_is_finished() {
    let pace = Pace::times(10.0);
    let start = |world: &World| {
        scheduler::start(&world.context, true);
        node_lifecycle::start(&world.context, None);
    };
    let world = World::new(pace).await;
    start(&world);
    world.linux_node().await;
    let mut slow = pod("slow", "nginx:1.27");
    slow["metadata"]["annotations"] = json!({ "mullion.dev/simulate-stop": "100s" });
    for pod in [pod("web", "nginx:1.27"), slow] {
        world.create::<Pod>(pod).await;
    }
    let before = world.until_running("web").await;
    world.until_running("slow").await;
    world.delete_pod("slow").await;
    world.pass(5).await;
    world.create::<Pod>(pod("fresh", "postgres:17")).await;

    let world = world.restarted(pace).await;
    start(&world);
    world
        .until("the deletion is carried out", || {
            world.context.informers.pods.is_synced().then_some(())
        })
        .await;
    world
        .until("the deletion is carried out", || {
            world.pod("slow").is_none().then_some(())
        })
        .await;
    let fresh = world.until_running("fresh").await;
    world.pass(600).await;
    let after = world.pod("web").expect("it goes on");
    assert_eq!(after.metadata.uid, before.metadata.uid);
    assert_eq!(
        after.status, before.status,
        "nothing about it was written again"
    );
    assert_ne!(address(&fresh), address(&before));
}

#[tokio::test(start_paused = true)]
async fn a_log_shows_the_command_with_its_variables_and_no_secret() {
    let world = World::new(Pace::INSTANT).await;
    let node = world.linux_node().await;
    world
        .create::<ConfigMap>(
            json!({ "metadata": { "name": "settings" }, "data": { "color": "red" } }),
        )
        .await;
    world
        .create::<Secret>(
            json!({ "metadata": { "name": "login" }, "stringData": { "password": "geheim" } }),
        )
        .await;
    let mut shop = pod("shop", "busybox:1");
    shop["spec"]["nodeName"] = json!(node);
    let web = &mut shop["spec"]["containers"][0];
    web["command"] = json!(["serve", "$(color)", "$(NODE)"]);
    web["args"] = json!([
        "--dsn=$(DSN)",
        "$(KUBERNETES_SERVICE_HOST)",
        "$$listener",
        "$(YY)"
    ]);
    web["envFrom"] = json!([{ "configMapRef": { "name": "settings" } }]);
    web["env"] = json!([
        { "name": "PASSWORD", "valueFrom": { "secretKeyRef": { "name": "login", "key": "password" } } },
        { "name": "DSN", "value": "me:$(PASSWORD)@db" },
        { "name": "NODE", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } },
    ]);
    world.create::<Pod>(shop).await;
    let shop = world.until_running("shop").await;
    let run = logs::run(&world.context, &shop, "web", false).await;
    let lines = run.expect("it has run").lines;
    assert_eq!(lines[2], format!("  command  serve red {node}"));
    let services = world.context.informers.services.list();
    let kubernetes = services
        .iter()
        .find(|service| service.metadata.name.as_deref() == Some("kubernetes"))
        .and_then(|service| service.spec.as_ref()?.cluster_ip.clone())
        .expect("the API server has a Service");
    assert_eq!(
        lines[3],
        format!("  args     --dsn=me:***@db {kubernetes} $listener $(YY)")
    );
}

fn address(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.pod_ip.as_deref()
}

#[tokio::test(start_paused = true)]
async fn a_pod_waits_for_its_secret_and_its_configmap_and_runs_when_both_are_there() {
    let world = World::new(Pace::INSTANT).await;
    let node = world.linux_node().await;
    let mut waiting = pod("web", "nginx:1.27");
    waiting["spec"]["nodeName"] = json!(node);
    waiting["spec"]["volumes"] = json!([
        { "name": "keys", "projected": { "sources": [{ "secret": { "name": "keys" } }] } },
    ]);
    waiting["spec"]["containers"][0]["env"] = json!([
        { "name": "COLOR", "valueFrom": { "configMapKeyRef": { "name": "settings", "key": "color" } } },
    ]);
    world.create::<Pod>(waiting).await;
    world.pass(5).await;
    let said = |message: &str| {
        let message = message.to_owned();
        let events = world.events("web");
        async move { events.await.into_iter().any(|(_, said)| said == message) }
    };
    assert!(said("MountVolume.SetUp failed for volume \"keys\" : secret \"keys\" not found").await);
    assert_eq!(world.phase("web").as_deref(), Some("Pending"));

    world
        .create::<Secret>(json!({ "metadata": { "name": "keys" }, "stringData": { "a": "b" } }))
        .await;
    world.pass(20).await;
    assert!(said("Error: configmap \"settings\" not found").await);
    let settings =
        |key: &str| json!({ "metadata": { "name": "settings" }, "data": { (key): "red" } });
    let maps: Api<ConfigMap> = Api::namespaced(world.context.client.clone(), "default");
    world.create::<ConfigMap>(settings("colour")).await;
    world.pass(20).await;
    assert!(said("Error: couldn't find key color in ConfigMap default/settings").await);
    maps.delete("settings", &DeleteParams::default())
        .await
        .expect("it is there");
    world.create::<ConfigMap>(settings("color")).await;
    world.until_running("web").await;
}
