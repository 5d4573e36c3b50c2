//! Tests the way to running and ready, and the pods that a node rejects.

use super::*;

#[test]
fn without_delays_a_pod_becomes_running_and_ready_in_a_single_write() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let wake = scene.observe(&one("nginx:1.27"));
    assert_eq!(wake, None);
    scene.expect(&[
        "0s Normal Pulling: Pulling image \"nginx:1.27\"",
        "0s Normal Pulled: Successfully pulled image \"nginx:1.27\" in 0s (0s including waiting). Image size: 72000000 bytes.",
        "0s Normal Created: Container created",
        "0s Normal Started: Container started",
        "0s status Running 10.0.1.100 web=Running+",
    ]);
}

#[test]
fn at_real_pace_sandbox_pull_and_start_take_their_time() {
    let mut scene = Scene::linux(Pace::REAL);
    let wake = scene.observe(&one("nginx:1.27"));
    scene.run(wake, 60);
    scene.expect(&[
        "0s status Pending web=ContainerCreating",
        "0.8s Normal Pulling: Pulling image \"nginx:1.27\"",
        "0.8s status Pending 10.0.1.100 web=ContainerCreating",
        "2s Normal Pulled: Successfully pulled image \"nginx:1.27\" in 1.2s (1.2s including waiting). Image size: 72000000 bytes.",
        "2.15s Normal Created: Container created",
        "2.15s Normal Started: Container started",
        "2.15s status Running 10.0.1.100 web=Running+",
    ]);
}

#[test]
fn conditions_carry_the_kubelets_reasons_and_move_only_when_their_status_moves() {
    let mut scene = Scene::linux(Pace::REAL);
    let spec = json!({
        "initContainers": [{ "name": "setup", "image": "busybox:1" }, { "name": "mesh", "image": "mesh:1", "restartPolicy": "Always" }],
        "containers": [{ "name": "web", "image": "nginx:1.27" }, { "name": "log", "image": "log:1" }],
        "readinessGates": [{ "conditionType": "example.com/lb" }],
    });
    let value: Pod = serde_json::from_value(pod(spec)).expect("a pod");
    let value = Arc::new(value);
    let mut step = scene.host.observe_pod(Arc::clone(&value), scene.now);
    let mut last: Option<Box<PodStatus>> = None;
    let mut seen = Vec::new();
    loop {
        for effect in std::mem::take(&mut step.effects) {
            if let Effect::Status { status, .. } = effect {
                for condition in status.conditions.iter().flatten() {
                    let text = format!(
                        "{} {} {} {}",
                        condition.type_,
                        condition.status,
                        condition.reason.as_deref().unwrap_or("-"),
                        condition.message.as_deref().unwrap_or("-")
                    );
                    if !seen.contains(&text) {
                        seen.push(text);
                    }
                }
                last = Some(status);
            }
        }
        let Some(wake) = step.wake else { break };
        scene.now = wake;
        step = scene.host.step("uid-1", wake);
    }
    assert_eq!(
        seen,
        [
            "PodReadyToStartContainers False - -",
            "Initialized False ContainersNotInitialized containers with incomplete status: [setup mesh]",
            "Ready False ContainersNotReady containers with unready status: [mesh web log]",
            "ContainersReady False ContainersNotReady containers with unready status: [mesh web log]",
            "PodScheduled True - -",
            "PodReadyToStartContainers True - -",
            "Initialized False ContainersNotInitialized containers with incomplete status: [mesh]",
            "Initialized True - -",
            "Ready False ContainersNotReady containers with unready status: [web log]",
            "ContainersReady False ContainersNotReady containers with unready status: [web log]",
            "Ready False ContainersNotReady containers with unready status: [log]",
            "ContainersReady False ContainersNotReady containers with unready status: [log]",
            "Ready False ReadinessGatesNotReady corresponding condition of pod readiness gate \"example.com/lb\" does not exist.",
            "ContainersReady True - -",
        ]
    );
    let conditions = last
        .and_then(|status| status.conditions)
        .expect("a last status");
    let since = |slot: usize| {
        conditions[slot]
            .last_transition_time
            .as_ref()
            .map(|at| at.0.duration_since(start()).as_millis())
    };
    assert_eq!(
        since(0),
        Some(800),
        "the sandbox came up after 0.8 s and stayed up"
    );
    assert_eq!(since(2), Some(0), "Ready never was anything but False");
    assert_eq!(conditions[3].status, "True");
}

#[test]
fn init_containers_run_in_order_and_a_sidecar_stays_up_beside_the_rest() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let containers = json!({
        "initContainers": [
            { "name": "first", "image": "app:1" },
            { "name": "mesh", "image": "app:1", "restartPolicy": "Always", "startupProbe": { "initialDelaySeconds": 3 } },
            { "name": "second", "image": "app:1" },
        ],
        "containers": [{ "name": "web", "image": "app:1" }],
    });
    let mut scene_real = Scene::linux(Pace::times(100.0));
    scene.observe(&pod(containers.clone()));
    assert_eq!(
        scene.lines.last().map(String::as_str),
        Some(
            "0s status Running 10.0.1.100 first=Completed(0)+ mesh=Running+ second=Completed(0)+ web=Running+"
        )
    );
    let wake = scene_real.observe(&pod(containers));
    scene_real.run(wake, 60);
    let statuses: Vec<_> = scene_real
        .lines
        .iter()
        .filter_map(|line| Some(line.split_once("status ")?.1))
        .collect();
    assert_eq!(
        statuses,
        [
            "Pending first=PodInitializing mesh=PodInitializing second=PodInitializing web=PodInitializing",
            "Pending 10.0.1.100 first=PodInitializing mesh=PodInitializing second=PodInitializing web=PodInitializing",
            "Pending 10.0.1.100 first=Running mesh=PodInitializing second=PodInitializing web=PodInitializing",
            "Pending 10.0.1.100 first=Completed(0)+ mesh=PodInitializing second=PodInitializing web=PodInitializing",
            "Pending 10.0.1.100 first=Completed(0)+ mesh=Running second=PodInitializing web=PodInitializing",
            "Pending 10.0.1.100 first=Completed(0)+ mesh=Running+ second=PodInitializing web=PodInitializing",
            "Pending 10.0.1.100 first=Completed(0)+ mesh=Running+ second=Running web=PodInitializing",
            "Pending 10.0.1.100 first=Completed(0)+ mesh=Running+ second=Completed(0)+ web=PodInitializing",
            "Running 10.0.1.100 first=Completed(0)+ mesh=Running+ second=Completed(0)+ web=Running+",
        ]
    );
}

#[test]
fn a_windows_pod_waits_for_an_address_until_one_has_rested() {
    let mut scene = Scene::new(facts("windows", Some(Build::SERVER_2022)), Pace::INSTANT, 1);
    let mut first = one("app:1");
    first["metadata"]["uid"] = json!("uid-0");
    let first: Pod = serde_json::from_value(first).expect("a pod");
    scene.host.observe_pod(Arc::new(first), scene.now);
    let wake = scene.observe(&one("app:1"));
    assert!(scene.lines[0].starts_with("0s Warning FailedCreatePodSandBox: Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox"));
    assert!(
        scene.lines[0].ends_with("pod does not have label vpc.amazonaws.com/PrivateIPv4Address"),
        "{}",
        scene.lines[0]
    );
    assert_eq!(scene.lines[1], "0s status Pending web=ContainerCreating");
    scene.host.forget_pod("uid-0", scene.now);
    scene.run(wake, 50);
    let last = scene.lines.last().map(String::as_str);
    assert_eq!(
        last,
        Some("30s status Running 10.0.1.100 web=Running+ annotated 10.0.1.100/19")
    );
}

#[test]
fn the_sandbox_of_a_windows_pod_waits_for_the_annotation_and_fails_as_long_as_there_is_none() {
    let mut scene = Scene::annotated();
    let pod = one("app:1");
    let wake = scene.observe(&pod);
    scene.run(wake, 9);
    assert_eq!(scene.lines, ["0s status Pending web=ContainerCreating"]);
    let wake = scene.observe(&pod);
    scene.run(wake, 15);
    assert!(scene.lines[1].starts_with("10s Warning FailedCreatePodSandBox: "));
    assert!(
        scene.lines[1].ends_with("pod does not have label vpc.amazonaws.com/PrivateIPv4Address"),
        "{}",
        scene.lines[1]
    );
    let mut addressed = pod;
    addressed["metadata"]["annotations"] =
        json!({"vpc.amazonaws.com/PrivateIPv4Address": "10.0.1.77/19"});
    let wake = scene.observe(&addressed);
    scene.run(wake, 20);
    let last = scene.lines.last().map(String::as_str);
    assert_eq!(last, Some("15s status Running 10.0.1.77 web=Running+"));
}

#[test]
fn a_pod_on_the_host_network_has_the_nodes_address_and_takes_none() {
    let mut scene = Scene::new(facts("windows", Some(Build::SERVER_2022)), Pace::INSTANT, 0);
    let mut host_process = one("app:1");
    host_process["spec"]["hostNetwork"] = json!(true);
    scene.observe(&host_process);
    assert_eq!(
        scene.lines.last().map(String::as_str),
        Some("0s status Running 10.0.1.9 web=Running+")
    );
}

#[test]
fn a_refused_pod_fails_with_the_reason_and_is_never_started() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let mut windows = one("app:1");
    windows["spec"]["os"] = json!({ "name": "windows" });
    scene.observe(&windows);
    scene.expect(&[
        "0s Warning PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS",
        "0s status Failed (PodOSNotSupported)",
    ]);
}

#[test]
fn a_pod_past_its_active_deadline_fails() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let mut pod = one("app:1");
    pod["spec"]["activeDeadlineSeconds"] = json!(20);
    let wake = scene.observe(&pod);
    scene.lines.clear();
    scene.run(wake, 60);
    scene.expect(&[
        "20s Warning DeadlineExceeded: Pod was active on the node longer than the specified deadline",
        "20s Normal Killing: Stopping container web",
        "20s status Failed (DeadlineExceeded) 10.0.1.100 web=Completed(0)",
    ]);
}

#[test]
fn readiness_follows_the_probes_initial_delay() {
    let mut scene = Scene::linux(Pace::times(10.0));
    let mut pod = one("app:1");
    pod["spec"]["containers"][0]["readinessProbe"] = json!({ "initialDelaySeconds": 40 });
    let wake = scene.observe(&pod);
    scene.run(wake, 60);
    let statuses: Vec<_> = scene
        .lines
        .iter()
        .filter(|line| line.contains("Running 10"))
        .cloned()
        .collect();
    assert_eq!(
        statuses,
        [
            "0.245s status Running 10.0.1.100 web=Running",
            "4.245s status Running 10.0.1.100 web=Running+"
        ]
    );
}
