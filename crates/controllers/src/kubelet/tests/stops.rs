//! Tests how a pod that is stopped ends.

use super::*;

#[test]
fn what_waits_to_be_restarted_is_left_alone_while_its_pod_stops() {
    let mut scene = Scene::linux(Pace::REAL);
    let spec = json!({ "containers": [{ "name": "c", "image": "app:1" }, { "name": "d", "image": "app:1" }] });
    let pod = annotated(pod(spec), "mullion.dev/simulate-exit.c", "1 after 2s");
    let pod = annotated(pod, "mullion.dev/simulate-stop", "25s");
    let wake = scene.observe(&pod);
    scene.run(wake, 10);
    scene.lines.clear();
    let wake = scene.observe(&deleted(pod, 10, 30));
    scene.run(wake, 60);
    scene.expect(&[
        "10s Normal Killing: Stopping container d",
        "35s status Failed 10.0.1.100 c=Error(1)x1 d=Completed(0)",
        "35s delete",
    ]);
}

#[test]
fn deletion_stops_containers_writes_the_final_status_and_only_then_deletes() {
    let mut scene = Scene::linux(Pace::REAL);
    let wake = scene.observe(&one("nginx:1.27"));
    scene.run(wake, 10);
    scene.lines.clear();
    let wake = scene.observe(&deleted(one("nginx:1.27"), 10, 30));
    scene.run(wake, 60);
    scene.expect(&[
        "10s Normal Killing: Stopping container web",
        "10.4s status Succeeded 10.0.1.100 web=Completed(0)",
        "10.4s delete",
    ]);
}

#[test]
fn a_container_that_does_not_stop_in_time_is_killed_when_its_grace_ends() {
    let mut scene = Scene::linux(Pace::REAL);
    let pod = annotated(one("nginx:1.27"), "mullion.dev/simulate-stop", "1m");
    let wake = scene.observe(&pod);
    scene.run(wake, 10);
    scene.lines.clear();
    let wake = scene.observe(&deleted(pod.clone(), 10, 30));
    let wake = scene.run(wake, 20).map(|_| ());
    assert_eq!(wake, Some(()));
    let wake = scene.observe(&deleted(pod, 20, 5));
    scene.run(wake, 60);
    scene.expect(&[
        "10s Normal Killing: Stopping container web",
        "25s status Failed 10.0.1.100 web=Error(137)",
        "25s delete",
    ]);
}

#[test]
fn sidecars_are_told_to_stop_after_the_app_containers_have_stopped() {
    let mut scene = Scene::linux(Pace::times(4.0));
    let spec = json!({
        "initContainers": [{ "name": "mesh", "image": "app:1", "restartPolicy": "Always" }],
        "containers": [{ "name": "web", "image": "app:1" }],
    });
    let wake = scene.observe(&pod(spec.clone()));
    scene.run(wake, 10);
    scene.lines.clear();
    let wake = scene.observe(&deleted(pod(spec), 10, 30));
    scene.run(wake, 60);
    scene.expect(&[
        "10s Normal Killing: Stopping container web",
        "10.1s Normal Killing: Stopping container mesh",
        "10.1s status Running 10.0.1.100 mesh=Running+ web=Completed(0)",
        "10.2s status Succeeded 10.0.1.100 mesh=Completed(0) web=Completed(0)",
        "10.2s delete",
    ]);
}

#[test]
fn a_windows_container_that_is_killed_ends_with_the_code_of_a_console_event() {
    let mut scene = Scene::new(facts("windows", Some(Build::SERVER_2022)), Pace::REAL, 2);
    let pod = one("mcr.microsoft.com/windows/servercore:ltsc2022");
    let pod = annotated(pod, "mullion.dev/simulate-stop", "1m");
    let wake = scene.observe(&pod);
    scene.run(wake, 30);
    scene.lines.clear();
    let wake = scene.observe(&deleted(pod, 30, 10));
    scene.run(wake, 60);
    scene.expect(&[
        "30s Normal Killing: Stopping container web",
        "40s status Failed 10.0.1.100 web=Error(-1073741510)",
        "40s delete",
    ]);
}

#[test]
fn a_pod_that_is_deleted_before_it_ran_ends_as_failed() {
    let mut scene = Scene::linux(Pace::REAL);
    scene.observe(&one("app:1"));
    scene.lines.clear();
    scene.observe(&deleted(one("app:1"), 0, 30));
    scene.expect(&[
        "0s status Failed 10.0.1.100 web=ContainerStatusUnknown(137)",
        "0s delete",
    ]);
}

#[test]
fn a_container_that_is_stopped_before_its_work_is_done_does_not_end_well() {
    let ends = |scene: Scene, pod: Value, at: i64| {
        let mut scene = scene;
        let wake = scene.observe(&pod);
        scene.run(wake, at);
        scene.lines.clear();
        let wake = scene.observe(&deleted(pod, at, 30));
        scene.run(wake, 60);
        scene.lines.retain(|line| line.contains("status"));
        scene.lines
    };
    let linux = || Scene::linux(Pace::REAL);
    let mut of_a_job = one("app:1");
    of_a_job["metadata"]["ownerReferences"] = json!([{ "apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": true }]);
    let mut bare = one("app:1");
    bare["spec"]["restartPolicy"] = json!("OnFailure");
    let failed = ["3.4s status Failed 10.0.1.100 web=Error(143)"];
    for pod in [of_a_job, bare] {
        assert_eq!(ends(linux(), pod, 3), failed);
    }
    let busy = |image: &str| annotated(one(image), "mullion.dev/simulate-exit", "0 after 1m");
    let failed = ["10.4s status Failed 10.0.1.100 web=Error(143)"];
    assert_eq!(ends(linux(), busy("app:1"), 10), failed);
    let windows = Scene::new(facts("windows", Some(Build::SERVER_2022)), Pace::REAL, 2);
    let image = "mcr.microsoft.com/windows/servercore:ltsc2022";
    let failed = ["32s status Failed 10.0.1.100 web=Error(-1073741510)"];
    assert_eq!(ends(windows, busy(image), 30), failed);
}
