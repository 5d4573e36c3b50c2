//! Tests the fields of a pod's status other than phase, conditions and states.

use super::*;

fn status_of(host: &mut Host, pod: Value, now: Timestamp) -> PodStatus {
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    let step = host.observe_pod(Arc::new(pod), now);
    let status = step.effects.into_iter().find_map(|effect| match effect {
        Effect::Status { status, .. } => Some(*status),
        _ => None,
    });
    status.expect("a status is written")
}

#[test]
fn a_container_that_was_created_shows_its_resources_and_every_container_its_mounts() {
    let spec = json!({ "containers": [{
        "name": "web", "image": "app:1",
        "resources": { "requests": { "cpu": "1" }, "limits": { "memory": "1Gi" } },
        "volumeMounts": [
            { "name": "data", "mountPath": "/data" },
            { "name": "token", "mountPath": "/token", "readOnly": true },
        ],
    }] });
    let mut scene = Scene::linux(Pace::INSTANT);
    let status = status_of(&mut scene.host, pod(spec.clone()), scene.now);
    let web = json!(status.container_statuses.expect("statuses")[0]);
    assert_eq!(web["allocatedResources"], json!({ "cpu": "1" }));
    assert_eq!(
        web["resources"],
        json!({ "requests": { "cpu": "1" }, "limits": { "memory": "1Gi" } })
    );
    let mounts = json!([
        { "name": "data", "mountPath": "/data" },
        { "name": "token", "mountPath": "/token", "readOnly": true, "recursiveReadOnly": "Disabled" },
    ]);
    assert_eq!(web["volumeMounts"], mounts);
    let mut scene = Scene::linux(Pace::REAL);
    let status = status_of(&mut scene.host, pod(spec), scene.now);
    let web = json!(status.container_statuses.expect("statuses")[0]);
    assert_eq!(web["volumeMounts"], mounts);
    assert_eq!(web["resources"], Value::Null, "it has not been created yet");
}

#[test]
fn app_containers_are_listed_by_name_and_init_containers_as_they_run() {
    let spec = json!({
        "initContainers": [{ "name": "y", "image": "app:1" }, { "name": "x", "image": "app:1" }],
        "containers": [{ "name": "b", "image": "app:1" }, { "name": "a", "image": "app:1" }],
    });
    let mut scene = Scene::linux(Pace::INSTANT);
    let status = status_of(&mut scene.host, pod(spec), scene.now);
    let names = |list: Option<Vec<ContainerStatus>>| -> Vec<String> {
        list.into_iter()
            .flatten()
            .map(|status| status.name)
            .collect()
    };
    assert_eq!(names(status.init_container_statuses), ["y", "x"]);
    assert_eq!(names(status.container_statuses), ["a", "b"]);
}

#[test]
fn a_pod_on_the_host_network_shows_the_nodes_address_from_its_first_status_on() {
    let mut host_process = one("app:1");
    host_process["spec"]["hostNetwork"] = json!(true);
    let mut scene = Scene::new(facts("windows", Some(Build::SERVER_2022)), Pace::REAL, 0);
    let status = status_of(&mut scene.host, host_process, scene.now);
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    assert_eq!(status.pod_ip.as_deref(), Some("10.0.1.9"));
}

#[test]
fn a_windows_node_names_machine_and_boot_as_windows_does() {
    let info = |facts: NodeFacts| {
        let node = facts.node(Readiness::Ready, Vec::new(), start());
        node.status.expect("a status")
    };
    let windows = info(facts("windows", Some(Build::SERVER_2022)));
    let system = windows.node_info.expect("node info");
    assert_eq!(system.boot_id, "4");
    assert!(
        system.machine_id.starts_with("EC2AMAZ-"),
        "{}",
        system.machine_id
    );
    assert_eq!(system.system_uuid, system.system_uuid.to_ascii_uppercase());
    assert_eq!(windows.runtime_handlers, None);
    let linux = info(facts("linux", None));
    assert_eq!(linux.node_info.expect("node info").boot_id.len(), 36);
    assert_eq!(
        linux.runtime_handlers.map(|handlers| handlers.len()),
        Some(2)
    );
}
