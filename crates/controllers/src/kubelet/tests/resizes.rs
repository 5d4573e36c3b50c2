//! Tests in-place resizes: what is reported, what waits, and which resources pods have meanwhile.

use super::*;

#[test]
fn a_resize_is_told_when_it_begins_and_when_it_is_done() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let version = |generation: i64, cpu: &str| {
        let mut pod = pod(json!({
            "initContainers": [{ "name": "setup", "image": "app:1" }],
            "containers": [{ "name": "web", "image": "app:1", "resources": { "requests": { "memory": "1Gi", "cpu": cpu }, "limits": { "cpu": "2" } } }],
        }));
        pod["metadata"]["generation"] = json!(generation);
        pod
    };
    let wake = scene.observe(&version(1, "1"));
    scene.run(wake, 5);
    scene.lines.clear();
    scene.observe(&version(2, "1500m"));
    let summary = r#"{"initContainers":[{"name":"setup","resources":{}}],"containers":[{"name":"web","resources":{"limits":{"cpu":"2"},"requests":{"cpu":"1500m","memory":"1Gi"}}}],"generation":2}"#;
    scene.expect(&[
        &format!("5s Normal ResizeStarted: Pod resize started: {summary}"),
        &format!("5s Normal ResizeCompleted: Pod resize completed: {summary}"),
        "5s status Running 10.0.1.100 setup=Completed(0)+ web=Running+",
    ]);
    // Another change of the pod is not a resize.
    scene.observe(&version(3, "1500m"));
    scene.expect(&["5s status Running 10.0.1.100 setup=Completed(0)+ web=Running+"]);
}

#[test]
fn a_container_is_started_again_where_its_policy_asks_for_that() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let version = |generation: i64, cpu: &str, memory: &str| {
        let restart = json!({ "resourceName": "memory", "restartPolicy": "RestartContainer" });
        let keep = json!({ "resourceName": "cpu", "restartPolicy": "NotRequired" });
        let container = |name: &str, policy: Value| json!({ "name": name, "image": "app:1", "resizePolicy": policy, "resources": { "requests": { "memory": "1Gi", "cpu": cpu }, "limits": { "memory": memory } } });
        let mut pod = pod(json!({ "containers": [
            container("web", json!([keep.clone(), restart])), container("log", json!([keep])),
        ] }));
        pod["metadata"]["generation"] = json!(generation);
        pod
    };
    let wake = scene.observe(&version(1, "1", "1Gi"));
    scene.run(wake, 5);
    scene.lines.clear();
    let summary = |generation: i64, cpu: &str, memory: &str| {
        let container = |name: &str| {
            format!(
                r#"{{"name":"{name}","resources":{{"limits":{{"memory":"{memory}"}},"requests":{{"cpu":"{cpu}","memory":"1Gi"}}}}}}"#
            )
        };
        format!(
            r#"{{"containers":[{},{}],"generation":{generation}}}"#,
            container("web"),
            container("log")
        )
    };
    scene.observe(&version(2, "500m", "1Gi"));
    let kept = summary(2, "500m", "1Gi");
    scene.expect(&[
        &format!("5s Normal ResizeStarted: Pod resize started: {kept}"),
        &format!("5s Normal ResizeCompleted: Pod resize completed: {kept}"),
        "5s status Running 10.0.1.100 log=Running+ web=Running+",
    ]);
    scene.observe(&version(3, "500m", "2Gi"));
    let grown = summary(3, "500m", "2Gi");
    scene.expect(&[
        &format!("5s Normal ResizeStarted: Pod resize started: {grown}"),
        "5s Normal Killing: Container web resize requires restart",
        "5s Normal Pulled: Container image \"app:1\" already present on machine and can be accessed by the pod",
        "5s Normal Created: Container created",
        "5s Normal Started: Container started",
        &format!("5s Normal ResizeCompleted: Pod resize completed: {grown}"),
        "5s status Running 10.0.1.100 log=Running+ web=Running+x1",
    ]);
}

/// Returns a pod that requests this CPU.
fn version(name: &str, generation: i64, cpu: &str) -> Arc<Pod> {
    let mut pod = pod(json!({
        "containers": [{ "name": "web", "image": "app:1", "resources": { "requests": { "cpu": cpu } } }],
    }));
    pod["metadata"]["name"] = json!(name);
    pod["metadata"]["uid"] = json!(format!("uid-{name}"));
    pod["metadata"]["generation"] = json!(generation);
    Arc::new(serde_json::from_value(pod).expect("a pod"))
}

/// Returns what is reported about a pod: events, and the conditions and resources of statuses.
fn told(step: Step) -> Vec<String> {
    let line = |effect| match effect {
        Effect::Event(event) => {
            let kind = if event.warning { "Warning" } else { "Normal" };
            Some(format!("{kind} {}: {}", event.reason, event.message))
        }
        Effect::Status { status, .. } => {
            let conditions = status.conditions.iter().flatten();
            let mut pending = conditions.filter(|condition| condition.type_ == "PodResizePending");
            let pending = pending
                .next()
                .map(|condition| (condition.reason.clone(), condition.message.clone()));
            let web = &status.container_statuses.as_ref().expect("statuses")[0];
            Some(format!(
                "{pending:?} has {:?}",
                web.allocated_resources.as_ref().map(|has| &has["cpu"].0)
            ))
        }
        _ => None,
    };
    step.effects.into_iter().filter_map(line).collect()
}

#[test]
fn a_resize_without_room_waits_until_others_leave_it() {
    let mut host = Scene::linux(Pace::INSTANT).host;
    for (name, cpu) in [("a", "1"), ("b", "2")] {
        host.observe_pod(version(name, 1, cpu), start());
    }
    let summary = |generation: i64, cpu: &str, error: &str| {
        format!(
            r#"{{"containers":[{{"name":"web","resources":{{"requests":{{"cpu":"{cpu}"}}}}}}],"generation":{generation}{error}}}"#
        )
    };
    let waits = |host: &mut Host, generation: i64, cpu: &str, reason: &str, message: &str| {
        let step = host.observe_pod(version("a", generation, cpu), start());
        let error = format!(r#","error":"{message}""#);
        let summary = summary(generation, cpu, &error);
        let expected = [
            format!("Warning Resize{reason}: Pod resize {reason}: {summary}"),
            format!(r#"Some((Some("{reason}"), Some("{message}"))) has Some("1")"#),
        ];
        assert_eq!(told(step), expected);
    };
    let message =
        "Node didn't have enough resource: cpu, requested: 3000, used: 2000, capacity: 4000";
    waits(&mut host, 2, "3", "Deferred", message);
    let message = "Node didn't have enough capacity: cpu, requested: 5000, capacity: 4000";
    waits(&mut host, 3, "5", "Infeasible", message);
    // The present resources count for other pods, not the requested ones.
    host.observe_pod(version("a", 4, "3"), start());
    let step_resized = |host: &mut Host| {
        for uid in host.take_resized() {
            host.step(&uid, start());
        }
    };
    step_resized(&mut host);
    let third = host.observe_pod(version("c", 1, "1"), start());
    assert!(told(third).iter().all(|line| !line.contains("OutOf")));
    step_resized(&mut host);
    host.forget_pod("uid-c", start());
    step_resized(&mut host);
    host.forget_pod("uid-b", start());
    assert_eq!(host.take_resized(), [Arc::from("uid-a")]);
    let step = host.step("uid-a", start());
    assert_eq!(
        told(step),
        [
            format!(
                "Normal ResizeStarted: Pod resize started: {}",
                summary(4, "3", "")
            ),
            format!(
                "Normal ResizeCompleted: Pod resize completed: {}",
                summary(4, "3", "")
            ),
            r#"None has Some("3")"#.to_owned(),
        ]
    );
    // A pod that withdraws its resize needs no room.
    host.observe_pod(version("b", 1, "1"), start());
    host.observe_pod(version("a", 5, "4"), start());
    let step = host.observe_pod(version("a", 6, "3"), start());
    assert_eq!(told(step), [r#"None has Some("3")"#]);
}

#[test]
fn a_resize_waits_for_the_node_to_be_known_and_for_it_to_grow() {
    let mut facts = facts("linux", None);
    let mut host = unregistered(facts.clone(), Pace::INSTANT, 5);
    host.observe_pod(version("a", 1, "1"), start());
    host.observe_pod(version("a", 2, "5"), start());
    assert_eq!(host.take_resized(), []);
    let mut grown = |host: &mut Host, cpu: &str| {
        let amounts = [("cpu", cpu), ("memory", "16Gi"), ("pods", "110")];
        facts.allocatable = amounts
            .map(|(name, amount)| (name.to_owned(), amount.to_owned()))
            .into();
        let node = facts.node(Readiness::Ready, Vec::new(), start());
        host.observe_node(Arc::new(node), start());
        assert_eq!(host.take_resized(), [Arc::from("uid-a")], "{cpu}");
        told(host.step("uid-a", start()))
    };
    let told = grown(&mut host, "4");
    assert!(
        told[0].starts_with("Warning ResizeInfeasible: "),
        "{told:?}"
    );
    let told = grown(&mut host, "8");
    assert!(told[0].starts_with("Normal ResizeStarted: "), "{told:?}");
}
