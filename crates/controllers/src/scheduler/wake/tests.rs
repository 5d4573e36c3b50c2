use serde_json::json;

use super::*;

fn pod() -> Pod {
    serde_json::from_value(json!({
        "metadata": { "name": "p" },
        "spec": {
            "nodeSelector": { "os": "windows" },
            "tolerations": [{ "key": "os", "operator": "Exists" }],
            "containers": [{ "name": "c", "resources": { "requests": { "cpu": "2" } } }],
        },
    }))
    .expect("a pod")
}

fn node(os: &str, taint: &str, cpu: &str, cordoned: bool) -> Arc<Node> {
    let node = json!({
        "metadata": { "name": "n", "labels": { "os": os } },
        "spec": { "unschedulable": cordoned, "taints": [{ "key": taint, "effect": "NoSchedule" }] },
        "status": { "allocatable": { "cpu": cpu, "pods": "10" } },
    });
    Arc::new(serde_json::from_value(node).expect("a node"))
}

fn update(old: Arc<Node>, new: Arc<Node>) -> Event {
    let changes = NodeChanges::between(&old, &new);
    Event::NodeUpdated { old, new, changes }
}

fn bound(spec: serde_json::Value) -> Arc<Pod> {
    let mut spec = spec;
    spec["nodeName"] = json!("n");
    if spec["containers"].is_null() {
        spec["containers"] = json!([{ "name": "c", "resources": { "requests": { "cpu": "1" } } }]);
    }
    Arc::new(
        serde_json::from_value(json!({ "metadata": { "name": "b" }, "spec": spec }))
            .expect("a pod"),
    )
}

fn shrunk() -> Event {
    let new =
        json!({ "containers": [{ "name": "c", "resources": { "requests": { "cpu": "500m" } } }] });
    Event::PodScaledDown {
        old: bound(json!({})),
        new: bound(new),
    }
}

#[test]
fn a_pod_is_woken_only_by_what_one_of_its_rejectors_cares_about() {
    let good = || node("windows", "os", "4", false);
    let cases = [
        (
            Plugin::NodeResourcesFit,
            Event::PodDeleted(bound(json!({}))),
            true,
        ),
        (Plugin::NodeResourcesFit, shrunk(), true),
        (
            Plugin::NodeResourcesFit,
            Event::PodAdded(bound(json!({}))),
            false,
        ),
        (Plugin::NodeResourcesFit, Event::NodeAdded(good()), true),
        (
            Plugin::NodeResourcesFit,
            Event::NodeAdded(node("windows", "os", "1", false)),
            false,
        ),
        (
            Plugin::NodeResourcesFit,
            update(node("windows", "os", "3", false), good()),
            true,
        ),
        (
            Plugin::NodeResourcesFit,
            update(good(), node("windows", "os", "3", false)),
            false,
        ),
        (
            Plugin::NodeResourcesFit,
            update(node("linux", "os", "4", false), good()),
            false,
        ),
        (
            Plugin::TaintToleration,
            Event::NodeAdded(node("windows", "gpu", "4", false)),
            false,
        ),
        (
            Plugin::TaintToleration,
            update(node("windows", "gpu", "4", false), good()),
            true,
        ),
        (
            Plugin::TaintToleration,
            Event::PodDeleted(bound(json!({}))),
            false,
        ),
        (
            Plugin::NodeAffinity,
            update(node("linux", "os", "4", false), good()),
            true,
        ),
        (
            Plugin::NodeAffinity,
            Event::NodeAdded(node("linux", "os", "4", false)),
            false,
        ),
        (
            Plugin::NodeUnschedulable,
            update(node("windows", "os", "4", true), good()),
            true,
        ),
        (
            Plugin::NodeUnschedulable,
            update(good(), node("windows", "os", "4", true)),
            false,
        ),
        (Plugin::PodTopologySpread, Event::NodeDeleted(good()), false),
        (
            Plugin::NodePorts,
            Event::PodDeleted(bound(json!({}))),
            false,
        ),
    ];
    for (plugin, event, expected) in cases {
        assert_eq!(
            wakes_it(Plugins::from_iter([plugin]), &event),
            expected,
            "{plugin:?} {event:?}"
        );
    }
    assert!(
        !wakes_it(Plugins::default(), &Event::PodDeleted(bound(json!({})))),
        "nothing refused it"
    );
}

fn wakes_it(rejectors: Plugins, event: &Event) -> bool {
    let pod = pod();
    let requirements = PodRequirements::of(&pod, rejectors, Default::default());
    wakes(&pod, rejectors, &requirements, event)
}

#[test]
fn events_of_no_interest_to_a_plugin_are_known_without_looking_at_what_they_are_about() {
    let bound = bound(json!({}));
    let interests = Event::PodAdded(Arc::clone(&bound)).interests();
    assert!(interests.contains(Plugin::PodTopologySpread));
    assert!(interests.contains(Plugin::InterPodAffinity));
    assert!(!interests.contains(Plugin::NodeResourcesFit));
    let interests = Event::PodDeleted(bound).interests();
    assert!(interests.contains(Plugin::NodeResourcesFit));
    assert!(!interests.contains(Plugin::TaintToleration));
    let interests = Event::Storage(StorageEvent::Detached).interests();
    assert!(interests.contains(Plugin::NodeVolumeLimits));
    assert!(interests.contains(Plugin::VolumeBinding));
    assert!(!interests.contains(Plugin::NodeResourcesFit));
}

#[test]
fn deleted_pods_say_the_same_only_if_they_kept_the_same_pods_away() {
    let gone =
        |affinity: serde_json::Value| Event::PodDeleted(bound(json!({ "affinity": affinity })));
    let term = json!({ "topologyKey": "zone", "labelSelector": {} });
    let far =
        json!({ "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [term] } });
    assert!(gone(json!({})).makes_redundant(&gone(json!({}))));
    assert!(!gone(json!({})).makes_redundant(&gone(far)));
}

#[test]
fn a_pod_that_waits_for_devices_is_woken_by_nodes_that_may_have_some_and_by_claims_made_for_it() {
    let rejectors = [Plugin::DynamicResources].into_iter().collect();
    let good = || node("windows", "os", "4", false);
    for (event, woken) in [
        (Event::NodeAdded(node("linux", "gpu", "1", true)), true),
        (update(good(), node("linux", "os", "4", false)), true),
        (update(good(), node("windows", "os", "5", false)), true),
        (update(good(), node("windows", "gpu", "4", false)), false),
        (Event::NodeDeleted(good()), false),
        (Event::PodDeleted(bound(json!({}))), false),
        (Event::Device(DeviceEvent::Slice), true),
        (Event::Device(DeviceEvent::Freed), true),
        (Event::Storage(StorageEvent::Detached), false),
    ] {
        assert_eq!(event.interests().intersects(rejectors), woken, "{event:?}");
        assert_eq!(wakes_it(rejectors, &event), woken, "{event:?}");
    }
    assert!(
        Event::Device(DeviceEvent::Slice)
            .makes_redundant(&Event::Device(DeviceEvent::Class(Vec::new())))
    );
    let mut known = pod();
    known.status = serde_json::from_value(json!({
        "resourceClaimStatuses": [{ "name": "gpu", "resourceClaimName": "p-gpu-x" }],
    }))
    .expect("a status");
    let wakes =
        |old: &Pod, new: &Pod| own_change_wakes(old, new, rejectors, &PodRequirements::default());
    assert!(wakes(&pod(), &known) && wakes(&known, &pod()));
    assert!(!wakes(&known, &known));
}
