//! Tests containers that a resize restarts, while the restart takes time.

use super::*;

/// Returns a version of a pod with the containers `log` and `web`, with the given memory and CPU. A change of
/// memory requires a restart.
fn version(generation: i64, resources: [(&str, &str); 2]) -> Value {
    let restart = json!({ "resourceName": "memory", "restartPolicy": "RestartContainer" });
    let keep = json!({ "resourceName": "cpu", "restartPolicy": "NotRequired" });
    let containers = ["log", "web"].into_iter().zip(resources);
    let containers = containers.map(|(name, (memory, cpu))| {
        json!({
            "name": name, "image": "app:1", "resizePolicy": [keep, restart],
            "resources": { "requests": { "cpu": cpu, "memory": "1Gi" }, "limits": { "memory": memory } },
        })
    });
    let mut pod = pod(json!({ "containers": containers.collect::<Vec<_>>() }));
    pod["metadata"]["generation"] = json!(generation);
    annotated(pod, "mullion.dev/simulate-stop", "10s")
}

const BEFORE: (&str, &str) = ("1Gi", "1");

/// Returns the message of an event about a version.
fn told(what: &str, generation: i64, resources: [(&str, &str); 2]) -> String {
    let containers = ["log", "web"].into_iter().zip(resources);
    let containers = containers.map(|(name, (memory, cpu))| {
        format!(r#"{{"name":"{name}","resources":{{"limits":{{"memory":"{memory}"}},"requests":{{"cpu":"{cpu}","memory":"1Gi"}}}}}}"#)
    });
    let containers = containers.collect::<Vec<_>>().join(",");
    let word = what.to_lowercase();
    format!(
        r#"Normal Resize{what}: Pod resize {word}: {{"containers":[{containers}],"generation":{generation}}}"#
    )
}

impl Scene {
    /// Runs until `at_s` and passes a version of the pod to the kubelet then.
    fn observe_at(&mut self, wake: Option<Timestamp>, at_s: i64, pod: &Value) -> Option<Timestamp> {
        self.run(wake, at_s);
        self.observe(pod)
    }
}

/// Returns a pod that is running after at most 2.6 s, and when it is to be stepped next.
fn running(pod: &Value) -> (Scene, Option<Timestamp>) {
    let mut scene = Scene::linux(Pace::REAL);
    let wake = scene.observe(pod);
    let wake = scene.run(wake, 3);
    scene.lines.clear();
    (scene, wake)
}

const KILLING_WEB: &str = "Normal Killing: Container web resize requires restart";
const CREATED: &str = "Normal Created: Container created";
const STARTED: &str = "Normal Started: Container started";

#[test]
fn resizes_that_come_during_a_restart_join_it() {
    let (mut scene, wake) = running(&version(1, [BEFORE; 2]));
    let second = [BEFORE, ("2Gi", "1")];
    let third = [BEFORE, ("2Gi", "500m")];
    let fourth = [("2Gi", "1"), ("3Gi", "500m")];
    let wake = scene.observe_at(wake, 5, &version(2, second));
    let wake = scene.observe_at(wake, 8, &version(3, third));
    let wake = scene.observe_at(wake, 10, &version(4, fourth));
    let wake = scene.run(wake, 60);
    assert_eq!(wake, None);
    let pulled = format!("Normal Pulled: Container image \"app:1\" {PRESENT}");
    scene.expect(&[
        &format!("5s {}", told("Started", 2, second)),
        &format!("5s {KILLING_WEB}"),
        "5s status Running 10.0.1.100 log=Running+ web=Running+ PodResizeInProgress of 2",
        &format!("8s {}", told("Started", 3, third)),
        "8s status Running 10.0.1.100 log=Running+ web=Running+ PodResizeInProgress of 3",
        &format!("10s {}", told("Started", 4, fourth)),
        "10s Normal Killing: Container log resize requires restart",
        "10s status Running 10.0.1.100 log=Running+ web=Running+ PodResizeInProgress of 4",
        &format!("15s {pulled}"),
        "15s status Running 10.0.1.100 log=Running+ web=Completed(0) PodResizeInProgress of 4",
        &format!("15.15s {CREATED}"),
        &format!("15.15s {STARTED}"),
        "15.15s status Running 10.0.1.100 log=Running+ web=Running+x1 PodResizeInProgress of 4",
        &format!("20s {pulled}"),
        "20s status Running 10.0.1.100 log=Completed(0) web=Running+x1 PodResizeInProgress of 4",
        &format!("20.15s {CREATED}"),
        &format!("20.15s {STARTED}"),
        &format!("20.15s {}", told("Completed", 4, fourth)),
        "20.15s status Running 10.0.1.100 log=Running+x1 web=Running+x1",
    ]);
}

#[test]
fn a_resize_that_waits_leaves_what_is_in_progress_to_what_was_given() {
    let (mut scene, wake) = running(&version(1, [BEFORE; 2]));
    let given = [BEFORE, ("2Gi", "1")];
    let wake = scene.observe_at(wake, 5, &version(2, given));
    let wake = scene.observe_at(wake, 8, &version(3, [BEFORE, ("3Gi", "8")]));
    scene.run(wake, 60);
    let conditions = |at: &str, log_and_web: &str, conditions: &str| {
        format!("{at}s status Running 10.0.1.100 {log_and_web}{conditions}")
    };
    let pending = " PodResizePending of 3";
    let both = format!("{pending} PodResizeInProgress of 2");
    let kept = |line: &String| line.contains(" status ") || line.contains("Completed");
    scene.lines.retain(kept);
    scene.expect(&[
        &conditions(
            "5",
            "log=Running+ web=Running+",
            " PodResizeInProgress of 2",
        ),
        &conditions("8", "log=Running+ web=Running+", &both),
        &conditions("15", "log=Running+ web=Completed(0)", &both),
        &format!("15.15s {}", told("Completed", 2, given)),
        &conditions("15.15", "log=Running+ web=Running+x1", pending),
    ]);
}

#[test]
fn a_resize_is_done_once_all_have_been_started_again_even_if_some_have_ended_since() {
    let version = |generation: i64, resources: [(&str, &str); 2]| {
        let mut pod = version(generation, resources);
        pod["spec"]["restartPolicy"] = json!("OnFailure");
        pod["spec"]["containers"][0]["restartPolicy"] = json!("Always");
        pod["spec"]["containers"][0]["lifecycle"] =
            json!({ "preStop": { "sleep": { "seconds": 15 } } });
        annotated(pod, "mullion.dev/simulate-exit.web", "0 after 11s")
    };
    let (mut scene, wake) = running(&version(1, [BEFORE; 2]));
    let wake = scene.observe_at(wake, 5, &version(2, [("2Gi", "1"); 2]));
    scene.run(wake, 60);
    scene.lines.retain(|line| line.contains(" status "));
    let in_progress = "PodResizeInProgress of 2";
    scene.expect(&[
        &format!("5s status Running 10.0.1.100 log=Running+ web=Running+ {in_progress}"),
        &format!("13.6s status Running 10.0.1.100 log=Running+ web=Completed(0) {in_progress}"),
        &format!("13.75s status Running 10.0.1.100 log=Running+ web=Running+x1 {in_progress}"),
        &format!("24.75s status Running 10.0.1.100 log=Running+ web=Completed(0)x1 {in_progress}"),
        &format!("30s status Running 10.0.1.100 log=Completed(0) web=Completed(0)x1 {in_progress}"),
        "30.15s status Running 10.0.1.100 log=Running+x1 web=Completed(0)x1",
    ]);
}

#[test]
fn nothing_is_said_of_resizes_of_a_pod_that_is_over() {
    for (cpu, condition) in [("8", "PodResizePending"), ("1", "PodResizeInProgress")] {
        let (mut scene, wake) = running(&version(1, [BEFORE; 2]));
        let resized = version(2, [BEFORE, ("2Gi", cpu)]);
        let wake = scene.observe_at(wake, 5, &resized);
        let wake = scene.observe_at(wake, 6, &deleted(resized, 6, 30));
        scene.run(wake, 60);
        scene.lines.retain(|line| line.contains(" status "));
        let last = scene.lines.pop();
        let over = "16s status Succeeded 10.0.1.100 log=Completed(0) web=Completed(0)";
        assert_eq!(last.as_deref(), Some(over));
        assert!(!scene.lines.is_empty());
        let meanwhile = |line: &String| line.ends_with(&format!(" {condition} of 2"));
        assert!(scene.lines.iter().all(meanwhile), "{:?}", scene.lines);
    }
}

#[test]
fn a_container_that_failed_a_probe_is_not_told_again_to_stop() {
    let version = |generation: i64, memory: &str| {
        let mut pod = version(generation, [BEFORE, (memory, "1")]);
        pod["spec"]["containers"][1]["livenessProbe"] =
            json!({ "tcpSocket": { "port": 80 }, "periodSeconds": 5, "failureThreshold": 1 });
        annotated(pod, "mullion.dev/simulate-liveness.web", "fail after 4s")
    };
    let (mut scene, wake) = running(&version(1, "1Gi"));
    let wake = scene.observe_at(wake, 10, &version(2, "2Gi"));
    scene.run(wake, 18);
    scene.lines.retain(|line| !line.contains("Pulled"));
    let given = [BEFORE, ("2Gi", "1")];
    scene.expect(&[
        "7.6s Warning Unhealthy: Liveness probe failed: dial tcp 10.0.1.100:80: connect: connection refused",
        "7.6s Normal Killing: Container web failed liveness probe, will be restarted",
        &format!("10s {}", told("Started", 2, given)),
        "10s status Running 10.0.1.100 log=Running+ web=Running+ PodResizeInProgress of 2",
        "17.6s status Running 10.0.1.100 log=Running+ web=Completed(0) PodResizeInProgress of 2",
        &format!("17.75s {CREATED}"),
        &format!("17.75s {STARTED}"),
        &format!("17.75s {}", told("Completed", 2, given)),
        "17.75s status Running 10.0.1.100 log=Running+ web=Running+x1",
    ]);
}

#[test]
fn an_init_container_ends_with_what_it_has() {
    let version = |generation: i64, memory: &str| {
        let mut pod = version(generation, [BEFORE; 2]);
        let mut setup = pod["spec"]["containers"][0].clone();
        setup["name"] = json!("setup");
        setup["resources"]["limits"]["memory"] = json!(memory);
        pod["spec"]["initContainers"] = json!([setup]);
        annotated(pod, "mullion.dev/simulate-exit.setup", "0 after 20s")
    };
    let (mut scene, wake) = running(&version(1, "1Gi"));
    scene.observe_at(wake, 5, &version(2, "2Gi"));
    let reasons = scene.lines.iter().map(|line| line.split([' ', ':']).nth(2));
    let reasons: Vec<_> = reasons.flatten().collect();
    assert_eq!(reasons, ["ResizeStarted", "ResizeCompleted", "Pending"]);
}

#[test]
fn a_kubelet_that_was_restarted_says_that_a_resize_is_done_once_what_was_stopped_runs() {
    let resources = [BEFORE, ("2Gi", "1")];
    let found = |web: Value| {
        let mut pod = version(3, resources);
        pod["status"] = json!({
            "phase": "Running", "startTime": "2026-01-27T09:00:00Z", "podIP": "10.0.1.102",
            "conditions": [{ "type": "PodResizeInProgress", "status": "True", "observedGeneration": 2 }],
            "containerStatuses": [
                { "name": "log", "image": "app:1", "imageID": "", "ready": true, "restartCount": 0, "containerID": "containerd://1", "state": { "running": { "startedAt": "2026-01-27T09:00:00Z" } } },
                { "name": "web", "image": "app:1", "imageID": "", "ready": false, "restartCount": 0, "containerID": "containerd://2", "state": web },
            ],
        });
        pod
    };
    let ended = json!({ "exitCode": 0, "startedAt": "2026-01-27T09:00:00Z", "finishedAt": "2026-01-27T09:59:59Z", "containerID": "containerd://2" });
    let running = json!({ "running": { "startedAt": "2026-01-27T09:00:00Z" } });
    let completed = told("Completed", 2, resources);
    let mut scene = Scene::linux(Pace::REAL);
    scene.observe(&found(running));
    scene.expect(&[
        &format!("0s {completed}"),
        "0s status Running 10.0.1.102 log=Running+ web=Running+",
    ]);
    let mut scene = Scene::linux(Pace::REAL);
    let wake = scene.observe(&found(json!({ "terminated": ended })));
    scene.run(wake, 5);
    scene.expect(&[
        &format!("0s Normal Pulled: Container image \"app:1\" {PRESENT}"),
        "0s status Running 10.0.1.102 log=Running+ web=Completed(0) PodResizeInProgress of 2",
        &format!("0.15s {CREATED}"),
        &format!("0.15s {STARTED}"),
        &format!("0.15s {completed}"),
        "0.15s status Running 10.0.1.102 log=Running+ web=Running+x1",
    ]);
}
