//! Tests ephemeral containers.

use super::*;

/// Returns a pod with these containers and these ephemeral containers.
fn with(containers: Value, ephemeral: Value) -> Value {
    let mut pod = pod(json!({"containers": containers}));
    let generation = 1 + ephemeral.as_array().map_or(0, Vec::len);
    pod["metadata"]["generation"] = json!(generation);
    pod["spec"]["ephemeralContainers"] = ephemeral;
    pod
}

#[test]
fn a_container_that_is_put_into_a_pod_starts_and_changes_nothing_else() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let web = json!([{"name": "web", "image": "nginx:1.27"}]);
    let debugger = json!({"name": "debugger", "image": "busybox:1", "command": ["sh"], "stdin": true, "tty": true});
    scene.observe(&with(web.clone(), Value::Null));
    scene.lines.clear();
    scene.observe(&with(web.clone(), json!([debugger])));
    scene.expect(&[
        "0s Normal Pulling: Pulling image \"busybox:1\"",
        "0s Normal Pulled: Successfully pulled image \"busybox:1\" in 0s (0s including waiting). Image size: 2200000 bytes.",
        "0s Normal Created: Container created",
        "0s Normal Started: Container started",
        "0s status Running 10.0.1.100 web=Running+ debugger=Running",
    ]);
    let second = json!({"name": "again", "image": "busybox:1"});
    let both = with(web, json!([debugger, second]));
    scene.observe(&both);
    scene.expect(&[
        "0s Normal Pulled: Container image \"busybox:1\" already present on machine and can be accessed by the pod",
        "0s Normal Created: Container created",
        "0s Normal Started: Container started",
        "0s status Running 10.0.1.100 web=Running+ again=Running debugger=Running",
    ]);
    let mut deleted = both;
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-27T10:00:30Z");
    deleted["metadata"]["deletionGracePeriodSeconds"] = json!(30);
    scene.observe(&deleted);
    scene.expect(&[
        "0s Normal Killing: Stopping container web",
        "0s Normal Killing: Stopping container debugger",
        "0s Normal Killing: Stopping container again",
        "0s status Succeeded 10.0.1.100 web=Completed(0) again=Completed(0) debugger=Completed(0)",
        "0s delete",
    ]);
}

#[test]
fn a_pod_that_cannot_start_can_be_looked_into_and_one_that_is_over_is_over() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let web = json!([{"name": "web", "image": "nginx:1.27", "imagePullPolicy": "Never"}]);
    let debugger = json!([{"name": "debugger", "image": "busybox:1"}]);
    scene.observe(&with(web, Value::Null));
    scene.lines.clear();
    let web = json!([{"name": "web", "image": "nginx:1.27", "imagePullPolicy": "Never"}]);
    scene.observe(&with(web, debugger.clone()));
    let seen = scene.lines.last().cloned();
    assert_eq!(
        seen.as_deref(),
        Some("0s status Pending 10.0.1.100 web=ErrImageNeverPull debugger=Running")
    );
    let mut scene = Scene::linux(Pace::INSTANT);
    let done = |ephemeral| {
        let mut pod = with(json!([{"name": "web", "image": "nginx:1.27"}]), ephemeral);
        pod["spec"]["restartPolicy"] = json!("Never");
        pod
    };
    scene.observe(&done(Value::Null));
    scene.lines.clear();
    scene.observe(&done(debugger));
    scene.expect(&[]);
}
