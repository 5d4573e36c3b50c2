//! Tests probes that fail because of an annotation, and what a user sees of it.

use super::*;

fn probed(probes: Value) -> Value {
    let mut pod = one("app:1");
    for (key, probe) in probes.as_object().expect("an object") {
        pod["spec"]["containers"][0][key] = probe.clone();
    }
    pod
}

#[test]
fn a_failing_readiness_probe_takes_the_pod_out_of_service_and_back() {
    let mut scene = Scene::linux(Pace::REAL);
    let pod = probed(
        json!({ "readinessProbe": { "httpGet": { "port": 80 }, "periodSeconds": 5, "failureThreshold": 2 } }),
    );
    let pod = annotated(
        pod,
        "mullion.dev/simulate-readiness",
        "fail after 8s for 12s",
    );
    let wake = scene.observe(&pod);
    let wake = scene.run(wake, 3);
    scene.lines.clear();
    let wake = scene.run(wake, 3_600);
    // The container runs since 2.45 s and is probed every five seconds from then on.
    scene.expect(&[
        "12.45s Warning Unhealthy: Readiness probe failed: HTTP probe failed with statuscode: 503",
        "17.45s Warning Unhealthy: Readiness probe failed: HTTP probe failed with statuscode: 503",
        "17.45s status Running 10.0.1.100 web=Running",
        "22.45s status Running 10.0.1.100 web=Running+",
    ]);
    assert_eq!(wake, None, "a healthy container needs no timer");
}

#[test]
fn a_container_whose_liveness_probe_fails_is_stopped_and_started_again_without_a_back_off() {
    let mut scene = Scene::linux(Pace::REAL);
    let pod = probed(
        json!({ "livenessProbe": { "tcpSocket": { "port": "http" }, "failureThreshold": 1 } }),
    );
    let mut pod = annotated(pod, "mullion.dev/simulate-liveness", "fail after 20s");
    pod["spec"]["containers"][0]["ports"] = json!([{ "name": "http", "containerPort": 8080 }]);
    let wake = scene.observe(&pod);
    let wake = scene.run(wake, 3);
    scene.lines.clear();
    scene.run(wake, 46);
    let refused =
        "Unhealthy: Liveness probe failed: dial tcp 10.0.1.100:8080: connect: connection refused";
    scene.expect(&[
        &format!("22.45s Warning {refused}"),
        "22.45s Normal Killing: Container web failed liveness probe, will be restarted",
        &format!("22.85s Normal Pulled: Container image \"app:1\" {PRESENT}"),
        "22.85s status Running 10.0.1.100 web=Completed(0)",
        "23s Normal Created: Container created",
        "23s Normal Started: Container started",
        "23s status Running 10.0.1.100 web=Running+x1",
        &format!("43s Warning {refused}"),
        "43s Normal Killing: Container web failed liveness probe, will be restarted",
        &format!("43.4s Normal Pulled: Container image \"app:1\" {PRESENT}"),
        "43.4s status Running 10.0.1.100 web=Completed(0)x1",
        "43.55s Normal Created: Container created",
        "43.55s Normal Started: Container started",
        "43.55s status Running 10.0.1.100 web=Running+x2",
    ]);
}

#[test]
fn liveness_failures_that_follow_each_other_quickly_end_in_a_crash_loop() {
    let mut scene = Scene::linux(Pace::REAL);
    let pod = probed(
        json!({ "livenessProbe": { "exec": { "command": ["check"] }, "periodSeconds": 1, "failureThreshold": 2 } }),
    );
    let wake = scene.observe(&annotated(pod, "mullion.dev/simulate-liveness", "fail"));
    scene.run(wake, 12);
    let last = scene.lines.last().map(String::as_str);
    assert_eq!(
        last,
        Some("6.95s status Running 10.0.1.100 web=CrashLoopBackOffx2"),
        "\n{}\n",
        scene.lines.join("\n")
    );
}

#[test]
fn a_startup_probe_holds_the_others_back_and_a_windows_kubelet_has_its_own_words() {
    let mut scene = Scene::new(facts("windows", Some(Build::SERVER_2022)), Pace::REAL, 2);
    let mut pod = probed(json!({
        "startupProbe": { "tcpSocket": { "port": 80 }, "periodSeconds": 4, "failureThreshold": 9 },
        "livenessProbe": { "tcpSocket": { "port": 80 }, "periodSeconds": 1, "failureThreshold": 1 },
    }));
    pod["spec"]["containers"][0]["image"] = json!("mcr.microsoft.com/windows/servercore:ltsc2022");
    let pod = annotated(pod, "mullion.dev/simulate-startup", "fail for 6s");
    let wake = scene.observe(&pod);
    let wake = scene.run(wake, 7);
    scene
        .lines
        .retain(|line| line.contains("Running") || line.contains("Unhealthy"));
    scene.run(wake, 60);
    let from_start = std::mem::take(&mut scene.lines);
    assert_eq!(
        from_start,
        [
            "7.5s Normal Created: Container created",
            "7.5s Normal Started: Container started",
            "7.5s Warning Unhealthy: Startup probe failed: dial tcp 10.0.1.100:80: connectex: No connection could be made because the target machine actively refused it.",
            "7.5s status Running 10.0.1.100 web=Running",
            "11.5s Warning Unhealthy: Startup probe failed: dial tcp 10.0.1.100:80: connectex: No connection could be made because the target machine actively refused it.",
            "15.5s status Running 10.0.1.100 web=Running+",
        ]
    );
}

#[test]
fn a_running_pod_can_be_steered_by_changing_its_annotations() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let pod =
        probed(json!({ "readinessProbe": { "httpGet": { "port": 80 }, "failureThreshold": 1 } }));
    scene.observe(&pod);
    let sick = annotated(pod.clone(), "mullion.dev/simulate-readiness", "fail");
    scene.lines.clear();
    scene.now += SignedDuration::from_secs(60);
    let step = |scene: &mut Scene, pod: &Value| {
        let pod: Pod = serde_json::from_value(pod.clone()).expect("a pod");
        assert!(scene.host.refresh_pod(Arc::new(pod), scene.now));
        let step = scene.host.step("uid-1", scene.now);
        scene.note(step);
    };
    step(&mut scene, &sick);
    step(&mut scene, &pod);
    let crash = annotated(pod, "mullion.dev/simulate-exit", "3");
    step(&mut scene, &crash);
    let statuses: Vec<_> = scene
        .lines
        .iter()
        .filter_map(|line| Some(line.split_once("status ")?.1))
        .collect();
    assert_eq!(
        statuses,
        [
            "Running 10.0.1.100 web=Running",
            "Running 10.0.1.100 web=Running+",
            "Running 10.0.1.100 web=CrashLoopBackOffx1",
        ]
    );
}
