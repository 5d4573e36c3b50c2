use std::sync::Arc;

use mullion_engine::{Plugin, Profile, model, profile::DefaultSpread};
use serde_json::{Value, json};

use super::super::{
    requirements::ProfileRequirements,
    wake::{NodeChanges, Plugins, own_change_wakes, wakes},
};
use super::*;

fn pod(app: &str, mut spec: Value) -> Arc<Pod> {
    if spec["containers"].is_null() {
        spec["containers"] = json!([]);
    }
    let pod = json!({ "metadata": { "name": app, "namespace": "ns", "labels": { "app": app } }, "spec": spec });
    Arc::new(serde_json::from_value(pod).expect("a pod"))
}

fn terms(kind: &str, term: Value) -> Value {
    json!({ "affinity": { kind: { "requiredDuringSchedulingIgnoredDuringExecution": [term] } } })
}

fn term(app: &str) -> Value {
    json!({ "topologyKey": "zone", "labelSelector": { "matchLabels": { "app": app } } })
}

fn near(app: &str) -> Value {
    terms("podAffinity", term(app))
}

fn far(app: &str) -> Value {
    terms("podAntiAffinity", term(app))
}

fn spread(extra: Value) -> Value {
    let mut constraint = json!({
        "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": { "matchLabels": { "app": "web" } },
    });
    for (key, value) in extra.as_object().expect("an object") {
        constraint[key] = value.clone();
    }
    json!({ "topologySpreadConstraints": [constraint] })
}

fn node(labels: Value) -> Arc<Node> {
    let node = json!({ "metadata": { "name": "n", "labels": labels } });
    Arc::new(serde_json::from_value(node).expect("a node"))
}

fn update(old: &Arc<Node>, new: &Arc<Node>) -> Event {
    let (old, new) = (Arc::clone(old), Arc::clone(new));
    let changes = NodeChanges::between(&old, &new);
    Event::NodeUpdated { old, new, changes }
}

/// Returns whether the event wakes a pod that `plugin` refused.
fn helps(waiting: &Pod, plugin: Plugin, event: &Event) -> bool {
    let rejectors = Plugins::from_iter([plugin]);
    let requirements = PodRequirements::of(waiting, rejectors, ProfileRequirements::default());
    wakes(waiting, rejectors, &requirements, event)
}

/// Returns whether a change of the pod itself wakes a pod that `plugin` refused.
fn own_helps(old: &Pod, new: &Pod, plugin: Plugin) -> bool {
    let rejectors = Plugins::from_iter([plugin]);
    let requirements = PodRequirements::of(new, rejectors, ProfileRequirements::default());
    own_change_wakes(old, new, rejectors, &requirements)
}

#[test]
fn inter_pod_affinity_waits_for_a_pod_that_all_its_terms_are_about() {
    let mut spec = near("web");
    let terms =
        &mut spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    terms.as_array_mut().expect("terms").push(json!({
        "topologyKey": "zone", "labelSelector": { "matchExpressions": [{ "key": "app", "operator": "Exists" }] },
    }));
    let waiting = pod("a", spec);
    let helps = |event: &Event| helps(&waiting, Plugin::InterPodAffinity, event);
    let added = |app| Event::PodAdded(pod(app, json!({})));
    assert!(helps(&added("web")) && !helps(&added("db")));
    assert!(!helps(&Event::PodDeleted(pod("web", json!({})))));
    let labelled = |old, new| Event::PodLabels {
        old: pod(old, json!({})),
        new: pod(new, json!({})),
    };
    assert!(helps(&labelled("db", "web")) && !helps(&labelled("web", "db")));
}

#[test]
fn inter_pod_affinity_waits_for_the_end_of_what_keeps_away_either_from_the_other() {
    let waiting = pod("a", far("web"));
    let gone = |app: &str, spec| Event::PodDeleted(pod(app, spec));
    let plugin = Plugin::InterPodAffinity;
    assert!(helps(&waiting, plugin, &gone("web", json!({}))));
    assert!(!helps(&waiting, plugin, &gone("db", json!({}))));
    assert!(helps(&pod("a", json!({})), plugin, &gone("db", far("a"))));
    assert!(!helps(&pod("b", json!({})), plugin, &gone("db", far("a"))));
    let relabelled = |new: &str, spec: Value| Event::PodLabels {
        old: pod("web", spec.clone()),
        new: pod(new, spec),
    };
    assert!(helps(&waiting, plugin, &relabelled("db", json!({}))));
    assert!(
        !helps(&pod("a", json!({})), plugin, &relabelled("db", far("a"))),
        "what keeps the pod away stays"
    );
}

#[test]
fn inter_pod_affinity_wakes_the_first_of_a_group_when_the_last_of_it_is_gone() {
    let waiting = pod("web", near("web"));
    let gone = |app: &str| Event::PodDeleted(pod(app, json!({})));
    assert!(helps(&waiting, Plugin::InterPodAffinity, &gone("web")));
    assert!(!helps(&waiting, Plugin::InterPodAffinity, &gone("db")));
}

#[test]
fn inter_pod_affinity_waits_for_nodes_that_join_or_leave_the_domains_of_its_terms() {
    let (bare, a, b) = (
        node(json!({})),
        node(json!({ "zone": "a" })),
        node(json!({ "zone": "b" })),
    );
    let other = node(json!({ "zone": "a", "x": "y" }));
    let plugin = Plugin::InterPodAffinity;
    let wants = pod("a", near("web"));
    assert!(helps(&wants, plugin, &Event::NodeAdded(Arc::clone(&a))));
    assert!(!helps(&wants, plugin, &Event::NodeAdded(Arc::clone(&bare))));
    assert!(helps(&wants, plugin, &update(&bare, &a)) && helps(&wants, plugin, &update(&a, &b)));
    assert!(!helps(&wants, plugin, &update(&a, &bare)));
    assert!(!helps(&wants, plugin, &update(&a, &other)));
    let avoids = pod("a", far("web"));
    assert!(helps(&avoids, plugin, &Event::NodeAdded(Arc::clone(&bare))));
    assert!(helps(&avoids, plugin, &update(&a, &bare)) && helps(&avoids, plugin, &update(&a, &b)));
    assert!(!helps(&avoids, plugin, &update(&bare, &a)));
    let avoided = pod("a", json!({}));
    assert!(helps(&avoided, plugin, &Event::NodeAdded(bare)));
}

#[test]
fn a_term_is_about_its_own_namespace_the_listed_ones_or_those_its_selector_may_choose() {
    let mut elsewhere = Pod::clone(&pod("web", json!({})));
    elsewhere.metadata.namespace = Some("other".into());
    let added = Event::PodAdded(Arc::new(elsewhere));
    let waiting = |extra: Value| {
        let mut term = term("web");
        for (key, value) in extra.as_object().expect("an object") {
            term[key] = value.clone();
        }
        pod("a", terms("podAffinity", term))
    };
    let plugin = Plugin::InterPodAffinity;
    assert!(!helps(&waiting(json!({})), plugin, &added));
    assert!(helps(
        &waiting(json!({ "namespaces": ["other"] })),
        plugin,
        &added
    ));
    let chosen = json!({ "namespaceSelector": { "matchLabels": { "team": "a" } } });
    assert!(helps(&waiting(chosen), plugin, &added));
}

#[test]
fn topology_spread_waits_for_pods_that_its_constraints_count_in_its_namespace() {
    let waiting = pod("web", spread(json!({})));
    let helps = |event: &Event| helps(&waiting, Plugin::PodTopologySpread, event);
    assert!(helps(&Event::PodDeleted(pod("web", json!({})))));
    assert!(!helps(&Event::PodDeleted(pod("db", json!({})))));
    let mut elsewhere = Pod::clone(&pod("web", json!({})));
    elsewhere.metadata.namespace = Some("other".into());
    assert!(!helps(&Event::PodAdded(Arc::new(elsewhere))));
    let labelled = |old, new| Event::PodLabels {
        old: pod(old, json!({})),
        new: pod(new, json!({})),
    };
    assert!(helps(&labelled("web", "db")) && helps(&labelled("db", "web")));
    assert!(!helps(&labelled("db", "cache")), "counted in neither case");
}

#[test]
fn topology_spread_waits_for_nodes_of_its_domains_and_their_taints() {
    let waiting = pod("web", spread(json!({})));
    let helps = |event: &Event| helps(&waiting, Plugin::PodTopologySpread, event);
    let (bare, zoned) = (node(json!({})), node(json!({ "zone": "a" })));
    assert!(helps(&Event::NodeAdded(Arc::clone(&zoned))));
    assert!(!helps(&Event::NodeAdded(Arc::clone(&bare))));
    assert!(helps(&Event::NodeDeleted(Arc::clone(&zoned))));
    assert!(!helps(&Event::NodeDeleted(Arc::clone(&bare))));
    assert!(helps(&update(&zoned, &bare)) && helps(&update(&bare, &zoned)));
    let mut tainted = Node::clone(&zoned);
    tainted.spec.get_or_insert_default().taints = Some(vec![Taint::default()]);
    assert!(helps(&update(&zoned, &Arc::new(tainted))));
    let mut renamed = Node::clone(&zoned);
    renamed
        .metadata
        .labels
        .get_or_insert_default()
        .insert("x".into(), "y".into());
    assert!(!helps(&update(&zoned, &Arc::new(renamed))));
}

#[test]
fn declared_features_are_waited_for_until_a_kubelet_declares_others() {
    let waiting = pod("web", json!({}));
    let helps = |event: &Event| helps(&waiting, Plugin::NodeDeclaredFeatures, event);
    let old = node(json!({}));
    assert!(helps(&Event::NodeAdded(Arc::clone(&old))));
    let mut upgraded = Node::clone(&old);
    let status = upgraded.status.get_or_insert_default();
    status.declared_features = Some(vec!["RestartAllContainersOnContainerExits".into()]);
    assert!(helps(&update(&old, &Arc::new(upgraded))));
    assert!(!helps(&update(&old, &node(json!({ "zone": "a" })))));
}

#[test]
fn topology_spread_of_the_profile_counts_for_pods_that_have_none() {
    let hard = model::TopologySpreadConstraint {
        topology_key: "zone".into(),
        ..model::TopologySpreadConstraint::default()
    };
    let profile = Profile {
        default_spread: DefaultSpread::List(vec![hard]),
        ..Profile::default()
    };
    let rejectors = Plugins::from_iter([Plugin::PodTopologySpread]);
    let waiting = pod("web", json!({}));
    let requirements = PodRequirements::of(&waiting, rejectors, ProfileRequirements::of(&profile));
    let added = |labels| Event::NodeAdded(node(labels));
    assert!(wakes(
        &waiting,
        rejectors,
        &requirements,
        &added(json!({ "zone": "a" }))
    ));
    assert!(!wakes(
        &waiting,
        rejectors,
        &requirements,
        &added(json!({}))
    ));
}

#[test]
fn node_affinity_waits_for_a_node_that_pod_and_profile_want() {
    let requirement = model::NodeSelectorRequirement {
        key: "pool".into(),
        operator: model::Operator::In,
        values: vec!["batch".into()],
    };
    let term = model::NodeSelectorTerm {
        match_expressions: vec![requirement],
        ..model::NodeSelectorTerm::default()
    };
    let profile = Profile {
        added_affinity: model::NodeAffinity {
            required: Some(model::NodeSelector {
                node_selector_terms: vec![term],
            }),
            ..model::NodeAffinity::default()
        },
        ..Profile::default()
    };
    let rejectors = Plugins::from_iter([Plugin::NodeAffinity]);
    let waiting = pod("web", json!({ "nodeSelector": { "os": "linux" } }));
    let requirements = PodRequirements::of(&waiting, rejectors, ProfileRequirements::of(&profile));
    let added = |labels| Event::NodeAdded(node(labels));
    let both = json!({ "os": "linux", "pool": "batch" });
    assert!(wakes(&waiting, rejectors, &requirements, &added(both)));
    assert!(!wakes(
        &waiting,
        rejectors,
        &requirements,
        &added(json!({ "os": "linux" }))
    ));
    assert!(!wakes(
        &waiting,
        rejectors,
        &requirements,
        &added(json!({ "pool": "batch" }))
    ));
}

#[test]
fn node_ports_waits_for_the_host_port_of_a_container_or_a_sidecar() {
    let container =
        |port: i32| json!({ "name": "c", "ports": [{ "containerPort": 80, "hostPort": port }] });
    let with_port = |port| pod("a", json!({ "containers": [container(port)] }));
    let waiting = with_port(80);
    let helps = |event: &Event| helps(&waiting, Plugin::NodePorts, event);
    assert!(helps(&Event::PodDeleted(with_port(80))));
    assert!(!helps(&Event::PodDeleted(with_port(81))));
    assert!(!helps(&Event::PodAdded(with_port(80))));
    let mut sidecar = container(80);
    let before = |init: &Value| Event::PodDeleted(pod("b", json!({ "initContainers": [init] })));
    assert!(!helps(&before(&sidecar)), "it ended long ago");
    sidecar["restartPolicy"] = json!("Always");
    assert!(helps(&before(&sidecar)));
}

#[test]
fn room_that_was_held_helps_pods_of_the_same_priority_and_below() {
    let of = |priority: i32| pod("a", json!({ "priority": priority }));
    let dropped = Event::NominationDropped(of(10));
    let plugin = Plugin::NodeResourcesFit;
    assert!(helps(&of(10), plugin, &dropped) && !helps(&of(11), plugin, &dropped));
    let avoids = |priority: i32| {
        let mut spec = far("a");
        spec["priority"] = json!(priority);
        pod("b", spec)
    };
    let plugin = Plugin::InterPodAffinity;
    assert!(helps(&avoids(10), plugin, &dropped) && !helps(&avoids(11), plugin, &dropped));
}

#[test]
fn resources_fit_waits_for_pods_that_give_up_what_it_asks_for() {
    let requesting = |resource: &str, amount: &str| {
        let container = json!({ "name": "c", "resources": { "requests": { resource: amount } } });
        pod("a", json!({ "containers": [container] }))
    };
    let shrunk = Event::PodScaledDown {
        old: requesting("cpu", "2"),
        new: requesting("cpu", "1"),
    };
    let plugin = Plugin::NodeResourcesFit;
    assert!(helps(&requesting("cpu", "1"), plugin, &shrunk));
    assert!(!helps(&requesting("memory", "1Gi"), plugin, &shrunk));
    assert!(
        !helps(&requesting("cpu", "0"), plugin, &shrunk),
        "it asks for none"
    );
}

#[test]
fn resources_fit_waits_for_a_node_that_is_large_enough_and_grew_in_what_counts() {
    let sized = |cpu: &str, memory: &str, pods: &str| -> Arc<Node> {
        let node = json!({
            "metadata": { "name": "n" },
            "status": { "allocatable": { "cpu": cpu, "memory": memory, "pods": pods } },
        });
        Arc::new(serde_json::from_value(node).expect("a node"))
    };
    let container = json!({ "name": "c", "resources": { "requests": { "cpu": "2" } } });
    let waiting = pod("a", json!({ "containers": [container] }));
    let helps = |event: &Event| helps(&waiting, Plugin::NodeResourcesFit, event);
    assert!(helps(&Event::NodeAdded(sized("2", "0", "1"))));
    assert!(!helps(&Event::NodeAdded(sized("1", "0", "1"))));
    assert!(
        !helps(&Event::NodeAdded(sized("2", "0", "0"))),
        "it takes no pods"
    );
    assert!(helps(&update(&sized("2", "0", "1"), &sized("3", "0", "1"))));
    assert!(helps(&update(&sized("2", "0", "1"), &sized("2", "0", "2"))));
    assert!(!helps(&update(
        &sized("2", "0", "1"),
        &sized("2", "1", "1")
    )));
}

#[test]
fn a_node_without_a_resource_that_a_class_stands_for_may_have_devices() {
    let sized = |cpu: &str, resources: Value| -> Arc<Node> {
        let mut node = json!({ "metadata": { "name": "n" }, "status": { "allocatable": { "cpu": cpu, "pods": "1" } } });
        node["status"]["allocatable"]["d.com/gpu"] = resources;
        Arc::new(serde_json::from_value(node).expect("a node"))
    };
    let requests = json!({ "cpu": "2", "d.com/gpu": "2" });
    let container = json!({ "name": "c", "resources": { "requests": requests } });
    let waiting = pod("a", json!({ "containers": [container] }));
    let rejectors = Plugins::from_iter([Plugin::NodeResourcesFit]);
    let mut requirements = PodRequirements::of(&waiting, rejectors, ProfileRequirements::default());
    let none = json!("0");
    let added = |cpu: &str, resources: &Value| Event::NodeAdded(sized(cpu, resources.clone()));
    assert!(!wakes(
        &waiting,
        rejectors,
        &requirements,
        &added("2", &none)
    ));
    requirements
        .device_class_resources
        .insert("d.com/gpu".to_owned());
    let helps = |event: &Event| wakes(&waiting, rejectors, &requirements, event);
    assert!(helps(&added("2", &none)) && !helps(&added("1", &none)));
    assert!(!helps(&added("2", &json!("1"))), "it has too few itself");
    let lost = update(&sized("2", json!("1")), &sized("2", none));
    assert!(helps(&lost), "devices may be there instead");
}

#[test]
fn node_unschedulable_waits_for_a_node_that_is_uncordoned_not_for_other_taints() {
    let cordoned = |cordoned: bool, taint: &str| -> Arc<Node> {
        let taints = json!([{ "key": taint, "effect": "NoSchedule" }]);
        let node = json!({ "metadata": { "name": "n" }, "spec": { "unschedulable": cordoned, "taints": taints } });
        Arc::new(serde_json::from_value(node).expect("a node"))
    };
    let waiting = pod("a", json!({}));
    let helps = |event: &Event| helps(&waiting, Plugin::NodeUnschedulable, event);
    assert!(helps(&update(&cordoned(true, "x"), &cordoned(false, "x"))));
    assert!(!helps(&update(
        &cordoned(false, "x"),
        &cordoned(false, "y")
    )));
    assert!(helps(&Event::NodeAdded(cordoned(false, "x"))));
    assert!(!helps(&Event::NodeAdded(cordoned(true, "x"))));
}

#[test]
fn a_change_of_the_pod_itself_wakes_it_where_the_one_who_refused_it_looks_at_that() {
    let plain = pod("web", json!({}));
    let tolerating = |key: &str| {
        let toleration = json!({ "key": key, "operator": "Exists" });
        pod("web", json!({ "tolerations": [toleration] }))
    };
    let cordon = "node.kubernetes.io/unschedulable";
    assert!(own_helps(&plain, &tolerating("x"), Plugin::TaintToleration));
    assert!(own_helps(
        &plain,
        &tolerating(cordon),
        Plugin::NodeUnschedulable
    ));
    assert!(!own_helps(
        &plain,
        &tolerating("x"),
        Plugin::NodeUnschedulable
    ));
    assert!(!own_helps(
        &plain,
        &tolerating("x"),
        Plugin::NodeResourcesFit
    ));

    let honouring = |app: &str, tolerations: Value| {
        let mut spec = spread(json!({ "nodeTaintsPolicy": "Honor" }));
        spec["tolerations"] = tolerations;
        pod(app, spec)
    };
    let exists = json!([{ "operator": "Exists" }]);
    let plugin = Plugin::PodTopologySpread;
    assert!(own_helps(
        &honouring("web", json!([])),
        &honouring("web", exists),
        plugin
    ));
    assert!(own_helps(
        &pod("web", spread(json!({}))),
        &pod("db", spread(json!({}))),
        plugin
    ));
    assert!(!own_helps(
        &pod("cache", spread(json!({}))),
        &pod("db", spread(json!({}))),
        plugin
    ));
    assert!(own_helps(
        &plain,
        &pod("db", json!({})),
        Plugin::InterPodAffinity
    ));

    let requesting = |cpu: &str| {
        let container = json!({ "name": "c", "resources": { "requests": { "cpu": cpu } } });
        pod("web", json!({ "containers": [container] }))
    };
    let plugin = Plugin::NodeResourcesFit;
    assert!(own_helps(&requesting("2"), &requesting("1"), plugin));
    assert!(own_helps(&requesting("2"), &plain, plugin));
    assert!(!own_helps(&requesting("1"), &requesting("2"), plugin));
}
