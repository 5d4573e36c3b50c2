//! Tests memory on Windows nodes: allocations beyond a limit fail, and usage beyond the node's memory pages.

use mullion_engine::windows::Build;
use serde_json::json;

use super::{Pace, Scene, annotated, facts, one, pod};

const USAGE: &str = "mullion.dev/simulate-usage";

#[test]
fn a_container_beyond_its_limit_fails_to_allocate_and_goes_on() {
    let mut scene = Scene::windows(Build::SERVER_2022);
    let limits = json!({ "limits": { "memory": "2Gi" } });
    let web = json!({ "name": "web", "image": "app:1", "resources": limits });
    let needy = annotated(pod(json!({ "containers": [web] })), USAGE, "memory=3Gi");
    scene.observe(&needy);
    let told = scene
        .lines
        .iter()
        .find(|line| line.contains("MemoryLimitReached"));
    assert!(
        told.is_some_and(|line| line.contains("Container web needs 3Gi of memory and may have 2Gi")),
        "{:?}",
        scene.lines
    );
    let last = scene.lines.last().expect("a status");
    assert!(last.contains("web=Running+"), "{last}");
    assert!(!scene.host.look_at_memory(), "2 GiB of 8 GiB are used");
}

#[test]
fn containers_start_slower_on_a_windows_node_whose_pods_need_more_memory_than_it_has() {
    let started_at = |usage: &str| {
        let windows = facts("windows", Some(Build::SERVER_2022));
        let mut scene = Scene::new(windows, Pace::REAL, 2);
        let mut other = annotated(one("app:1"), USAGE, usage);
        other["metadata"]["uid"] = json!("uid-0");
        let address = json!("10.0.1.101/19");
        other["metadata"]["annotations"]["vpc.amazonaws.com/PrivateIPv4Address"] = address;
        let other = serde_json::from_value(other).expect("a pod");
        let mut wake = scene
            .host
            .observe_pod(std::sync::Arc::new(other), scene.now)
            .wake;
        while let Some(at) = wake {
            scene.now = at;
            wake = scene.host.step("uid-0", at).wake;
        }
        let begun = scene.now;
        let pages = scene.host.look_at_memory();
        let wake = scene.observe(&one("app:1"));
        scene.run(wake, 300);
        let running = scene.lines.iter().find(|line| line.contains("web=Running"));
        let at = running.and_then(|line| line.split('s').next()?.parse::<f64>().ok());
        let took = at.expect("it runs") - begun.duration_since(super::start()).as_secs_f64();
        (pages, took)
    };
    let (pages, took) = started_at("memory=6Gi");
    assert!(!pages);
    let (pages_now, took_now) = started_at("memory=9Gi");
    assert!(pages_now);
    // Sandbox 5 s and start 2.5 s, four times as long; the image is present.
    assert!(took_now > took + 20.0, "{took} s, then {took_now} s");
}

#[test]
fn a_linux_node_does_not_page() {
    let mut scene = Scene::linux(Pace::INSTANT);
    scene.observe(&annotated(one("app:1"), USAGE, "memory=90Gi"));
    assert!(!scene.host.look_at_memory());
    assert!(
        !scene
            .lines
            .iter()
            .any(|line| line.contains("MemoryLimitReached"))
    );
}
