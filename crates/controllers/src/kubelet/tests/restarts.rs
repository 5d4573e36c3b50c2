//! Tests exits and restarts: crashes, back-offs, restart policies, and restarted kubelets.

use super::*;

#[test]
fn a_crashing_container_restarts_at_once_and_then_backs_off_ten_seconds_doubling() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let pod = annotated(one("app:1"), "mullion.dev/simulate-exit", "1 after 5s");
    let wake = scene.observe(&pod);
    scene.lines.clear();
    scene.run(wake, 71);
    let present = format!("Normal Pulled: Container image \"app:1\" {PRESENT}");
    let [created, started] = [
        "Normal Created: Container created",
        "Normal Started: Container started",
    ];
    let backoff = "Warning BackOff: Back-off restarting failed container web in pod p_ns(uid-1)";
    let again = |at: &str, delay: &str, restarts: u32| {
        vec![
            format!("{at}s {present}"),
            format!("{at}s {created}"),
            format!("{at}s {started}"),
            format!("{at}s {backoff}"),
            format!("{at}s status Running 10.0.1.100 web=CrashLoopBackOffx{restarts}"),
            delay.to_owned(),
        ]
    };
    let mut expected = Vec::new();
    for (at, restarts) in [("10", 2), ("30", 3), ("70", 4)] {
        let mut lines = again(at, "", restarts);
        lines.pop();
        expected.extend(lines);
    }
    assert_eq!(scene.lines, expected, "\n{}\n", scene.lines.join("\n"));
}

#[test]
fn two_containers_that_crash_together_are_restarted_one_after_the_other() {
    let mut scene = Scene::linux(Pace::REAL);
    let spec = json!({ "containers": [{ "name": "c", "image": "app:1" }, { "name": "d", "image": "app:1" }] });
    let pod = annotated(pod(spec), "mullion.dev/simulate-exit", "1 after 2s");
    let wake = scene.observe(&pod);
    scene.lines.clear();
    scene.run(wake, 20);
    let statuses: Vec<_> = scene
        .lines
        .iter()
        .filter_map(|line| line.split_once(" status Running 10.0.1.100 "))
        .collect();
    let expected = [
        ("2.6s", "c=Running+ d=Running+"),
        ("4.45s", "c=Error(1) d=Running+"),
        ("4.6s", "c=Error(1) d=Error(1)"),
        ("5.6s", "c=Running+x1 d=Error(1)"),
        ("5.75s", "c=Running+x1 d=Running+x1"),
        ("7.6s", "c=Error(1)x1 d=Running+x1"),
        ("7.75s", "c=Error(1)x1 d=Error(1)x1"),
        ("8.6s", "c=CrashLoopBackOffx1 d=Error(1)x1"),
        ("8.75s", "c=CrashLoopBackOffx1 d=CrashLoopBackOffx1"),
        ("17.75s", "c=Running+x2 d=CrashLoopBackOffx1"),
        ("17.9s", "c=Running+x2 d=Running+x2"),
        ("19.75s", "c=Error(1)x2 d=Running+x2"),
        ("19.9s", "c=Error(1)x2 d=Error(1)x2"),
    ];
    assert_eq!(statuses, expected, "\n{}\n", scene.lines.join("\n"));
}

#[test]
fn a_running_container_ends_while_another_waits_for_its_image() {
    let mut scene = Scene::linux(Pace::REAL);
    let version = |first: &str| {
        let spec = json!({ "containers": [{ "name": "c", "image": first }, { "name": "d", "image": "app:1" }] });
        annotated(pod(spec), "mullion.dev/simulate-exit.d", "1 after 7s")
    };
    let wake = scene.observe(&version("app:1"));
    scene.run(wake, 9);
    scene.lines.clear();
    // The pull takes from 9 s to 10.2 s, and d has run since 2.6 s.
    let wake = scene.observe(&version("nginx:1.27"));
    scene.run(wake, 11);
    let last: Vec<_> = scene
        .lines
        .iter()
        .filter_map(|line| line.split_once(" status Running 10.0.1.100 "))
        .collect();
    let expected = [
        ("9s", "c=Completed(0) d=Running+"),
        ("9.6s", "c=Completed(0) d=Error(1)"),
        ("10.35s", "c=Running+x1 d=Error(1)"),
        ("10.75s", "c=Running+x1 d=Running+x1"),
    ];
    assert_eq!(last, expected, "\n{}\n", scene.lines.join("\n"));
}

#[test]
fn a_restarted_kubelet_takes_note_of_init_containers_that_have_ended() {
    let mut scene = Scene::linux(Pace::REAL);
    let mut pod = pod(json!({
        "initContainers": [{ "name": "setup", "image": "app:1" }],
        "containers": [{ "name": "web", "image": "app:1" }],
    }));
    pod["status"] = json!({
        "phase": "Running", "startTime": "2026-01-27T09:00:00Z", "podIP": "10.0.1.102",
        "initContainerStatuses": [{
            "name": "setup", "image": "docker.io/library/app:1", "imageID": "", "ready": true, "restartCount": 0,
            "state": { "terminated": {
                "exitCode": 0, "startedAt": "2026-01-27T09:29:00Z", "finishedAt": "2026-01-27T09:29:30Z",
                "containerID": "containerd://1",
            } },
        }],
        "containerStatuses": [{
            "name": "web", "image": "docker.io/library/app:1", "imageID": "", "ready": true, "restartCount": 0,
            "state": { "running": { "startedAt": "2026-01-27T09:30:00Z" } },
        }],
    });
    assert_eq!(scene.observe(&pod), None);
    scene.expect(&["0s status Running 10.0.1.102 setup=Completed(0)+ web=Running+"]);
}

#[test]
fn a_back_off_says_how_long_and_for_which_container() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let value: Pod =
        serde_json::from_value(annotated(one("app:1"), "mullion.dev/simulate-exit", "3"))
            .expect("a pod");
    let step = scene.host.observe_pod(Arc::new(value), scene.now);
    let status = step.effects.into_iter().find_map(|effect| match effect {
        Effect::Status { status, .. } => Some(status),
        _ => None,
    });
    let container = status
        .and_then(|status| status.container_statuses)
        .expect("statuses")
        .remove(0);
    let waiting = container
        .state
        .and_then(|state| state.waiting)
        .expect("it waits");
    assert_eq!(
        waiting.message.as_deref(),
        Some("back-off 10s restarting failed container=web pod=p_ns(uid-1)")
    );
    let last = container
        .last_state
        .and_then(|state| state.terminated)
        .expect("it ended");
    assert_eq!((last.exit_code, last.reason.as_deref()), (3, Some("Error")));
    assert_ne!(last.container_id, None);
}

#[test]
fn the_restart_policy_decides_what_an_exit_leads_to() {
    let cases = [
        (
            "Never",
            "0 after 2s",
            "status Succeeded 10.0.1.100 web=Completed(0)",
        ),
        (
            "Never",
            "7 after 2s",
            "status Failed 10.0.1.100 web=Error(7)",
        ),
        (
            "OnFailure",
            "0 after 2s",
            "status Succeeded 10.0.1.100 web=Completed(0)",
        ),
        (
            "OnFailure",
            "7 after 2s",
            "status Running 10.0.1.100 web=CrashLoopBackOffx1",
        ),
        (
            "Always",
            "0 after 2s",
            "status Running 10.0.1.100 web=CrashLoopBackOffx1",
        ),
    ];
    for (policy, exit, expected) in cases {
        let mut scene = Scene::linux(Pace::times(2.0));
        let mut pod = annotated(one("app:1"), "mullion.dev/simulate-exit", exit);
        pod["spec"]["restartPolicy"] = json!(policy);
        let wake = scene.observe(&pod);
        scene.run(wake, 9);
        let last = scene
            .lines
            .last()
            .and_then(|line| line.split_once("s "))
            .map(|(_, text)| text.to_owned());
        assert_eq!(last.as_deref(), Some(expected), "{policy} {exit}");
    }
}

#[test]
fn a_pod_whose_containers_are_not_started_again_does_its_work_and_ends() {
    for policy in ["Never", "OnFailure"] {
        let mut scene = Scene::linux(Pace::REAL);
        let spec = json!({
            "restartPolicy": policy,
            "initContainers": [
                { "name": "setup", "image": "app:1" },
                { "name": "mesh", "image": "app:1", "restartPolicy": "Always" },
            ],
            "containers": [{ "name": "ask", "image": "app:1" }, { "name": "tell", "image": "app:1" }],
        });
        let pod = annotated(pod(spec), "mullion.dev/simulate-exit.tell", "0 after 2s");
        let wake = scene.observe(&pod);
        assert_eq!(scene.run(wake, 60), None, "nothing is left to do");
        let mut lines = scene.lines.iter().rev();
        assert_eq!(
            lines
                .find(|line| line.contains("status"))
                .map(String::as_str),
            Some(
                "11.15s status Succeeded 10.0.1.100 setup=Completed(0)+ mesh=Completed(0) ask=Completed(0) tell=Completed(0)"
            ),
            "{policy}:\n{}",
            scene.lines.join("\n")
        );
    }
}

#[test]
fn a_container_that_serves_or_waits_for_input_does_not_end_by_itself() {
    let runs_on = |pod_policy: &str, container: Value| {
        let mut scene = Scene::linux(Pace::REAL);
        let mut pod = one("app:1");
        pod["spec"]["restartPolicy"] = json!(pod_policy);
        for (key, value) in container.as_object().expect("an object") {
            pod["spec"]["containers"][0][key] = value.clone();
        }
        let wake = scene.observe(&pod);
        scene.run(wake, 3_600);
        let last = scene.lines.iter().rfind(|line| line.contains("status"));
        last.is_some_and(|line| line.ends_with("web=Running+"))
    };
    // `kubectl debug node/NAME -it`, `kubectl run -i --leave-stdin-open`.
    assert!(runs_on("Never", json!({ "stdin": true, "tty": true })));
    // `kubectl run -i`.
    assert!(!runs_on(
        "Never",
        json!({ "stdin": true, "stdinOnce": true })
    ));
    assert!(runs_on("Never", json!({ "restartPolicy": "Always" })));
    assert!(!runs_on("Always", json!({ "restartPolicy": "Never" })));
    assert!(runs_on("Always", json!({})));
}

#[test]
fn a_failed_init_container_ends_a_pod_that_never_restarts() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [{ "name": "setup", "image": "app:1" }],
        "containers": [{ "name": "web", "image": "app:1" }],
    });
    scene.observe(&annotated(
        pod(spec),
        "mullion.dev/simulate-exit.setup",
        "2",
    ));
    let last = scene.lines.pop();
    assert_eq!(
        last.as_deref(),
        Some("0s status Failed 10.0.1.100 setup=Error(2) web=PodInitializing")
    );
}

#[test]
fn a_restarted_kubelet_goes_on_with_the_pods_it_finds_running() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let mut pod = one("nginx:1.27");
    pod["status"] = json!({
        "phase": "Running", "startTime": "2026-01-27T09:00:00Z", "podIP": "10.0.1.102",
        "containerStatuses": [{
            "name": "web", "image": "docker.io/library/nginx:1.27", "imageID": "", "ready": true, "restartCount": 2,
            "state": { "running": { "startedAt": "2026-01-27T09:30:00Z" } },
        }],
    });
    scene.observe(&pod);
    scene.expect(&["0s status Running 10.0.1.102 web=Running+x2"]);
}

#[test]
fn a_pod_that_had_ended_before_a_restart_is_left_alone() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let mut pod = one("nginx:1.27");
    pod["status"] =
        json!({ "phase": "Succeeded", "startTime": "2026-01-27T09:00:00Z", "podIP": "10.0.1.102" });
    scene.observe(&pod);
    scene.expect(&[]);
}

#[test]
fn a_container_that_waits_to_run_again_keeps_saying_why_until_it_has_started() {
    let mut scene = Scene::linux(Pace::REAL);
    let pod = annotated(one("app"), "mullion.dev/simulate-exit", "1 after 2s");
    let wake = scene.observe(&pod);
    scene.run(wake, 21);
    let statuses: Vec<_> = scene
        .lines
        .iter()
        .filter_map(|line| line.split_once(" status Running 10.0.1.100 "))
        .map(|(_, status)| status)
        .collect();
    // The registry is asked for the image at every start, which takes a while; the status does not show that.
    assert_eq!(
        statuses,
        [
            "web=Running+",
            "web=Error(1)",
            "web=Running+x1",
            "web=Error(1)x1",
            "web=CrashLoopBackOffx1",
            "web=Running+x2",
            "web=Error(1)x2",
        ],
        "\n{}\n",
        scene.lines.join("\n")
    );
}

#[test]
fn a_containers_own_rule_restarts_it_for_one_exit_code_in_a_pod_that_never_restarts() {
    for (exit, expected) in [
        (
            "42 after 2s",
            "status Running 10.0.1.100 web=CrashLoopBackOffx1",
        ),
        ("1 after 2s", "status Failed 10.0.1.100 web=Error(1)"),
    ] {
        let mut scene = Scene::linux(Pace::times(2.0));
        let mut pod = annotated(one("app:1"), "mullion.dev/simulate-exit", exit);
        pod["spec"]["restartPolicy"] = json!("Never");
        pod["spec"]["containers"][0]["restartPolicy"] = json!("Never");
        pod["spec"]["containers"][0]["restartPolicyRules"] = json!([
            { "action": "Restart", "exitCodes": { "operator": "In", "values": [42] } }
        ]);
        let wake = scene.observe(&pod);
        scene.run(wake, 9);
        let last = scene.lines.last().and_then(|line| line.split_once("s "));
        assert_eq!(last.map(|(_, text)| text), Some(expected), "{exit}");
    }
}

/// Returns a rule that restarts all containers when one of them exits with 42.
fn restarts_all() -> Value {
    json!({ "action": "RestartAllContainers", "exitCodes": { "operator": "In", "values": [42] } })
}

#[test]
fn a_rule_that_asks_for_it_starts_all_containers_anew_from_the_first_init_container_on() {
    let mut scene = Scene::linux(Pace::REAL);
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [
            { "name": "setup", "image": "app:1" },
            { "name": "side", "image": "app:1", "restartPolicy": "Always" },
        ],
        "containers": [
            { "name": "main", "image": "app:1", "restartPolicy": "Always" },
            { "name": "once", "image": "app:1" },
            { "name": "watcher", "image": "app:1", "restartPolicy": "Never", "restartPolicyRules": [restarts_all()] },
        ],
    });
    let pod = annotated(
        pod(spec),
        "mullion.dev/simulate-exit.watcher",
        "42 after 10s",
    );
    let pod = annotated(pod, "mullion.dev/simulate-exit.once", "0 after 1s");
    let wake = scene.observe(&pod);
    scene.run(wake, 10);
    scene.lines.clear();
    scene.run(Some(scene.now + SignedDuration::from_millis(1)), 22);
    let starts = ["Pulled", "Created", "Started"];
    let is_start = |line: &str| starts.iter().any(|start| line.contains(start));
    scene.lines.retain(|line| !is_start(line));
    scene.expect(&[
        "15.05s status Running 10.0.1.100 setup=Completed(0)+ side=Running+ main=Running+ once=Completed(0) watcher=Error(42)",
        "16.05s Normal Killing: Stopping container side",
        "16.05s Normal Killing: Stopping container main",
        "16.05s status Running 10.0.1.100 setup=Completed(0)+ side=Running+ main=Running+ once=Completed(0) watcher=Error(42)",
        "16.45s status Pending 10.0.1.100 setup=PodInitializing side=PodInitializing main=PodInitializing once=PodInitializing watcher=PodInitializing",
        "16.6s status Pending 10.0.1.100 setup=Runningx1 side=PodInitializing main=PodInitializing once=PodInitializing watcher=PodInitializing",
        "17.6s status Pending 10.0.1.100 setup=Completed(0)+x1 side=PodInitializing main=PodInitializing once=PodInitializing watcher=PodInitializing",
        "18.75s status Pending 10.0.1.100 setup=Completed(0)+x1 side=Running+x1 main=PodInitializing once=PodInitializing watcher=PodInitializing",
        "18.9s status Pending 10.0.1.100 setup=Completed(0)+x1 side=Running+x1 main=Running+x1 once=PodInitializing watcher=PodInitializing",
        "19.05s status Pending 10.0.1.100 setup=Completed(0)+x1 side=Running+x1 main=Running+x1 once=Running+x1 watcher=PodInitializing",
        "19.2s status Running 10.0.1.100 setup=Completed(0)+x1 side=Running+x1 main=Running+x1 once=Running+x1 watcher=Running+x1",
        "20.05s status Running 10.0.1.100 setup=Completed(0)+x1 side=Running+x1 main=Running+x1 once=Completed(0)x1 watcher=Running+x1",
    ]);
    // The container that requests it again backs off, and the others do not wait for it.
    scene.run(Some(scene.now + SignedDuration::from_millis(1)), 36);
    let last = scene.lines.iter().rfind(|line| line.contains("status"));
    let last = last.expect("there is one");
    assert!(
        last.ends_with("main=Running+x2 once=Completed(0)x2 watcher=CrashLoopBackOffx1"),
        "{last}"
    );
}

/// Returns the successive values of a condition of a pod with such a rule in its first seconds.
fn says_of(kind: &str, pod: Value, seconds: i64) -> Vec<(String, Option<String>)> {
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    let mut host = Scene::linux(Pace::REAL).host;
    let mut step = host.observe_pod(Arc::new(pod), start());
    let mut told = Vec::new();
    while let Some(at) = step
        .wake
        .filter(|at| *at <= start() + SignedDuration::from_secs(seconds))
    {
        for effect in &step.effects {
            let Effect::Status { status, .. } = effect else {
                continue;
            };
            let conditions = status.conditions.as_ref().expect("conditions");
            let last = conditions.last().expect("the last of them");
            assert_eq!(last.type_, "AllContainersRestarting");
            let condition = conditions.iter().find(|condition| condition.type_ == kind);
            let condition = condition.expect("the condition");
            let says = (condition.status.clone(), condition.reason.clone());
            if told.last() != Some(&says) {
                told.push(says);
            }
        }
        step = host.step("uid-1", at);
    }
    told
}

fn says(status: &str, reason: Option<&str>) -> (String, Option<String>) {
    (status.to_owned(), reason.map(str::to_owned))
}

#[test]
fn a_pod_with_a_rule_for_it_says_whether_all_its_containers_are_being_restarted() {
    let spec = json!({ "containers": [
        { "name": "main", "image": "app:1" },
        { "name": "watcher", "image": "app:1", "restartPolicy": "Never", "restartPolicyRules": [restarts_all()] },
    ] });
    let pod = annotated(
        pod(spec),
        "mullion.dev/simulate-exit.watcher",
        "42 after 10s",
    );
    let expected = [
        says("False", None),
        says("True", Some("RestartAllContainersStarted")),
        says("False", None),
    ];
    assert_eq!(says_of("AllContainersRestarting", pod, 20), expected);
}

#[test]
fn a_pod_that_starts_anew_is_initialized_anew() {
    let spec = json!({
        "initContainers": [{ "name": "setup", "image": "app:1" }],
        "containers": [
            { "name": "web", "image": "app:1", "restartPolicy": "Never", "restartPolicyRules": [restarts_all()] },
        ],
    });
    let pod = annotated(pod(spec), "mullion.dev/simulate-exit.web", "42 after 10s");
    let expected = [
        says("False", Some("ContainersNotInitialized")),
        says("True", None),
        says("False", Some("ContainersNotInitialized")),
        says("True", None),
    ];
    assert_eq!(says_of("Initialized", pod, 25), expected);
}
