//! Extended resources that DeviceClasses stand for: each rule by example, and random pods against what the rules say step by step.

use std::collections::BTreeMap;

use mullion_engine::model::{
    DeviceChoices, DeviceSpec, ExtendedUse, PodClaims, PodSpec, ResourceClaimSpec,
};
use mullion_engine::{Claims, Decision, Outcome, Plugin, Profile, Unschedulable};
use serde_json::{Value, json};

use crate::slow::{Dice, first};
use crate::world::World;

const GPU: &str = "d.com/gpu";
const EARLY: &str = "2026-01-01T00:00:00Z";
const LATE: &str = "2026-01-02T00:00:00Z";

/// Node `n1` with two devices, `n2` with the resource itself, of which it has `plain`.
fn world(plain: &str) -> World {
    let nodes = [("n1", json!({})), ("n2", json!({ GPU: plain }))];
    let mut world = World::of(&nodes, Profile::default()).judged();
    world.slice(json!({ "nodeName": "n1", "devices": [{ "name": "a" }, { "name": "b" }] }));
    world
}

fn refusal(world: &mut World, pod: &PodSpec) -> Unschedulable {
    match world.cluster.schedule_pod(pod, 0).expect("valid") {
        Decision::Node(_) => panic!("the pod fits"),
        Decision::Unschedulable(refused) => refused,
    }
}

fn message(world: &mut World, pod: &PodSpec) -> String {
    let refused = refusal(world, pod);
    world.cluster.message(&refused)
}

#[test]
fn a_node_without_the_resource_gives_devices_of_the_class_and_one_that_has_it_gives_its_own() {
    let mut world = world("1");
    world.class("gpu", Some(GPU), EARLY);
    let mut placed = BTreeMap::new();
    for name in ["p1", "p2", "p3"] {
        let pod = world.asking(name, &[json!({ GPU: "1" })]);
        let choices = world.place_pod(&pod).expect("there is one left");
        let node = world.node_of(name).expect("placed");
        placed.entry(node).or_insert_with(Vec::new).extend(choices);
    }
    let device = |name| format!("extended: container-0-request-0=d/n1/{name} @n1");
    assert_eq!(placed["n1"], [device("a"), device("b")]);
    assert_eq!(placed["n2"], Vec::<String>::new());
    let pod = world.asking("p4", &[json!({ GPU: "1" })]);
    assert_eq!(
        world.place_pod(&pod),
        Err("0/2 nodes are available: 1 Insufficient d.com/gpu, 1 cannot allocate all claims. still not schedulable, preemption: \
             0/2 nodes are available: 1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling."
            .to_owned())
    );
}

#[test]
fn a_node_that_says_that_it_has_none_is_asked_for_devices() {
    let mut world = world("0");
    world.slice(json!({ "nodeName": "n2", "devices": [{ "name": "z" }] }));
    world.class("gpu", Some(GPU), EARLY);
    let pod = world.asking("p", &[json!({ GPU: "1", "cpu": "1" })]);
    for _ in 0..3 {
        let mut own = pod.clone();
        own.template.node_selector = [("zone".to_owned(), "zn2".to_owned())].into();
        let placed = world.clone().place_pod(&own);
        // Its place is that among all resources of the container.
        let device = "extended: container-0-request-1=d/n2/z @n2";
        assert_eq!(placed, Ok(vec![device.to_owned()]));
    }
}

#[test]
fn every_class_stands_for_a_resource_of_its_own_name_and_none_for_others() {
    let mut world = world("0");
    world.class("gpu", None, EARLY);
    let implicit = "deviceclass.resource.kubernetes.io/gpu";
    let pod = world.asking("p1", &[json!({ implicit: "2" })]);
    let devices = "extended: container-0-request-0=d/n1/a container-0-request-0=d/n1/b @n1";
    assert_eq!(world.place_pod(&pod), Ok(vec![devices.to_owned()]));
    let pod = world.asking("p2", &[json!({ GPU: "1" })]);
    let none = "0/2 nodes are available: 2 Insufficient d.com/gpu.";
    assert_eq!(message(&mut world, &pod), none);
    world.class("gpu", Some("cpu"), EARLY);
    assert_eq!(message(&mut world, &pod), none);
    world.class("gpu", Some(GPU), EARLY);
    let taken = "0/2 nodes are available: 2 cannot allocate all claims.";
    assert_eq!(message(&mut world, &pod), taken);
    world.cluster.remove_device_class("gpu");
    assert_eq!(message(&mut world, &pod), none);
}

#[test]
fn of_several_classes_the_youngest_stands_for_a_resource_then_the_first_by_name() {
    let mut world = world("0");
    let class_of = |world: &mut World| {
        let pod = world.asking("p", &[json!({ GPU: "1" })]);
        let choices = world.clone().placed(&pod).expect("there are devices");
        let extended = choices.extended.expect("a claim");
        let exactly = extended.requests[0].exactly.clone().expect("one class");
        exactly.device_class
    };
    world.class("b", Some(GPU), EARLY);
    world.class("a", Some(GPU), EARLY);
    assert_eq!(class_of(&mut world), "a");
    world.class("c", Some(GPU), LATE);
    assert_eq!(class_of(&mut world), "c");
    world.class("c", None, LATE);
    assert_eq!(class_of(&mut world), "a");
    world.cluster.remove_device_class("a");
    assert_eq!(class_of(&mut world), "b");
}

#[test]
fn pods_of_one_template_are_placed_alike_whether_a_class_stands_for_what_they_ask_or_not() {
    let mut world = world("2");
    let ask = |world: &mut World, name: &str| {
        let pod = world.asking(name, &[json!({ GPU: "1" })]);
        world.place_pod(&pod).map(|_| world.node_of(name))
    };
    assert_eq!(ask(&mut world, "p1"), Ok(Some("n2".to_owned())));
    let checkpoint = world.cluster.checkpoint();
    world.class("gpu", Some(GPU), EARLY);
    for name in ["q0", "q1", "q2"] {
        assert!(ask(&mut world, name).is_ok(), "{name}");
    }
    assert!(ask(&mut world, "q3").is_err());
    world.cluster.rollback(checkpoint);
    assert_eq!(ask(&mut world, "p2"), Ok(Some("n2".to_owned())));
    let refused = ask(&mut world, "p3").expect_err("n2 is full");
    assert!(refused.contains("2 Insufficient d.com/gpu"), "{refused}");
}

#[test]
fn claims_get_their_devices_before_extended_resources_do() {
    let mut world = world("0");
    world.class("gpu", Some(GPU), EARLY);
    let request = json!({ "name": "r", "exactly": { "deviceClassName": "any", "allocationMode": "ExactCount", "count": 1 } });
    world.claim("c", json!({ "requests": [request] }));
    let mut pod = world.asking("p", &[json!({ GPU: "1" })]);
    pod.template.claims = world.pod("p", &["c"]).template.claims;
    let both = [
        "c: r=d/n1/a @n1",
        "extended: container-0-request-0=d/n1/b @n1",
    ];
    assert_eq!(
        world.clone().place_pod(&pod),
        Ok(both.map(str::to_owned).into())
    );
    // The node that has the resource itself has no devices for the claim.
    world.class("gpu", None, EARLY);
    assert!(message(&mut world, &pod).contains("2 Insufficient d.com/gpu"));
}

#[test]
fn a_claim_that_was_left_behind_is_deleted_before_the_pod_is_tried_again() {
    let mut world = world("1");
    world.class("gpu", Some(GPU), EARLY);
    world.claim("p-extended-resources-x", json!({}));
    let mut pod = world.asking("p", &[json!({ GPU: "1" })]);
    pod.template.claims = Some(Box::new(PodClaims {
        pod: "p".into(),
        uid: "p".into(),
        claims: Vec::new(),
        left: Some("p-extended-resources-x".into()),
    }));
    let refused = refusal(&mut world, &pod);
    let Claims::Deleted { claim } = refused.claims else {
        panic!("{refused:?}");
    };
    assert_eq!(world.cluster.text(claim), "p-extended-resources-x");
    assert_eq!(
        world.place_pod(&pod),
        Err("0/2 nodes are available: 2 cannot schedule extended resource claim. deletion of ResourceClaim completed, preemption: \
             0/2 nodes are available: 2 Preemption is not helpful for scheduling."
            .to_owned())
    );
    let (namespace, name) = ("ns", "p-extended-resources-x");
    world.cluster.remove_resource_claim(namespace, name);
    assert!(world.place_pod(&pod).is_ok());
}

#[test]
fn a_resource_that_nobody_counts_must_be_known_to_the_node_beside_one_that_a_class_stands_for() {
    let mut profile = Profile::default();
    profile.fit.ignored_resources.insert("d.com/other".into());
    let nodes = [("n1", json!({})), ("n2", json!({ "d.com/other": "0" }))];
    let mut world = World::of(&nodes, profile).judged();
    for name in ["n1", "n2"] {
        world.slice(json!({ "nodeName": name, "devices": [{ "name": "a" }] }));
    }
    let pod = world.asking("p1", &[json!({ "d.com/other": "1" })]);
    assert_eq!(world.place_pod(&pod), Ok(Vec::new()), "nobody looks at it");
    world.class("gpu", Some(GPU), EARLY);
    let both = [json!({ GPU: "1", "d.com/other": "1" })];
    let pod = world.asking("p2", &both);
    assert!(world.place_pod(&pod).is_ok());
    assert_eq!(world.node_of("p2").as_deref(), Some("n2"));
    let pod = world.asking("p3", &both);
    let refused = message(&mut world, &pod);
    let why = "0/2 nodes are available: 1 cannot allocate all claims, 1 cannot fit resource.";
    assert_eq!(refused, why);
}

#[test]
fn more_devices_than_a_claim_may_have_are_an_error() {
    let mut world = world("0");
    world.class("gpu", Some(GPU), EARLY);
    let pod = world.asking("p", &[json!({ GPU: "33" })]);
    let refused = message(&mut world, &pod);
    let why = "claim ns/<extended-resources>: number of requested devices 33 exceeds the claim limit of 32";
    assert!(refused.contains(why), "{refused}");
}

#[test]
fn scores_count_the_devices_of_the_class_where_the_node_does_not_have_the_resource() {
    let mut profile = Profile::default();
    profile.fit.resources = vec![(GPU.to_owned(), 1)];
    let nodes = [
        ("n1", json!({})),
        ("n2", json!({ GPU: "4" })),
        ("n3", json!({})),
    ];
    let mut world = World::of(&nodes, profile).judged();
    let device =
        |name: &str, size: u8| json!({ "name": name, "attributes": { "size": { "int": size } } });
    let of = |sizes: &[u8]| {
        let names = ["a", "b", "c", "d"].into_iter().zip(sizes);
        let devices: Vec<Value> = names.map(|(name, size)| device(name, *size)).collect();
        devices
    };
    world.slice(json!({ "nodeName": "n1", "devices": of(&[1, 1, 2]) }));
    world.slice(json!({ "nodeName": "n3", "devices": of(&[1, 1, 1, 1]) }));
    let class = json!({
        "metadata": { "name": "gpu" },
        "spec": { "extendedResourceName": GPU, "selectors": [{ "cel": { "expression": "size=1" } }] },
    });
    let class = serde_json::from_value(class).expect("a class");
    world.cluster.set_device_class(&class);
    let scores = |world: &mut World| {
        let pod = world.asking("p", &[json!({ GPU: "1" })]);
        let class = world.cluster.pod_class(&pod.template).expect("a class");
        let answer = world.cluster.answer(class);
        let scores = answer.nodes.iter().map(|node| match &node.outcome {
            Outcome::Fits { scores, .. } => {
                let mut scores = scores.iter();
                let own = scores.find(|(plugin, _)| *plugin == Plugin::NodeResourcesFit);
                own.map(|(_, score)| *score)
            }
            Outcome::Refused(_) => None,
        });
        scores.collect::<Vec<_>>()
    };
    // One of two, one of four, one of four devices in use with the pod.
    assert_eq!(scores(&mut world), [Some(50), Some(75), Some(75)]);
    let mut pod = world.asking("p1", &[json!({ GPU: "1" })]);
    pod.template.node_selector = [("zone".to_owned(), "zn3".to_owned())].into();
    assert!(world.place_pod(&pod).is_ok());
    assert_eq!(scores(&mut world), [Some(50), Some(75), Some(50)]);
}

#[test]
fn a_pod_can_be_asked_about_as_if_it_had_never_been_placed() {
    let mut world = world("0");
    world.class("gpu", Some(GPU), EARLY);
    let pod = world.asking("p", &[json!({ GPU: "2" })]);
    assert!(world.place_pod(&pod).is_ok());
    let other = world.asking("q", &[json!({ GPU: "1" })]);
    assert!(world.clone().place_pod(&other).is_err());
    world.cluster.remove_pod("p").expect("it is there");
    world.cluster.remove_extended_claims("p");
    assert!(world.place_pod(&other).is_ok());
    let claim = json!({
        "metadata": {
            "name": "c", "namespace": "ns",
            "annotations": { "resource.kubernetes.io/extended-resource-claim": "true", "other": "x" },
            "ownerReferences": [{ "uid": "p", "controller": true }],
        },
        "spec": {},
    });
    let read: ResourceClaimSpec = serde_json::from_value(claim).expect("a claim");
    assert!(read.is_extended && read.owner_uid.as_deref() == Some("p"));
}

/// A pod with one to three init containers, sidecars among them, and as many containers, which ask for up to two resources.
fn random_pod(dice: &mut Dice) -> Value {
    let mut container = |name: String, is_init: bool| {
        let mut requests = json!({});
        for resource in ["d.com/a", "d.com/b", "cpu"] {
            if dice.chance(55) {
                requests[resource] = json!(dice.roll(3).to_string());
            }
        }
        let mut container = json!({ "name": name, "resources": { "requests": requests } });
        if is_init && dice.chance(40) {
            container["restartPolicy"] = json!("Always");
        }
        container
    };
    let init: Vec<Value> = (0..3)
        .map(|index| container(format!("i{index}"), true))
        .collect();
    let main: Vec<Value> = (0..2)
        .map(|index| container(format!("m{index}"), false))
        .collect();
    let (inits, mains) = (dice.roll(4) as usize, 1 + dice.roll(2) as usize);
    json!({
        "metadata": { "name": "p", "namespace": "ns", "uid": "p" },
        "spec": { "initContainers": &init[..inits], "containers": &main[..mains] },
    })
}

fn amount(requests: &Value, resource: &str) -> i64 {
    let text = requests[resource].as_str().unwrap_or("0");
    text.parse().expect("a number")
}

/// The requests and uses for one resource, container by container as the rules are told.
fn step_by_step(pod: &Value, resource: &str) -> (BTreeMap<String, i64>, Vec<ExtendedUse>) {
    let none = Vec::new();
    let init = pod["spec"]["initContainers"].as_array().unwrap_or(&none);
    let main = pod["spec"]["containers"].as_array().expect("containers");
    let all: Vec<&Value> = init.iter().chain(main).collect();
    let asks = |at: usize| amount(&all[at]["resources"]["requests"], resource);
    let stays = |at: usize| at >= init.len() || all[at]["restartPolicy"] == "Always";
    let name = |at: usize| {
        let requests = all[at]["resources"]["requests"].as_object();
        let mut names: Vec<_> = requests.expect("an object").keys().collect();
        names.sort();
        let place = names.iter().position(|own| *own == resource);
        format!("container-{at}-request-{}", place.expect("it asks for it"))
    };
    let given = |container: usize, request: String| ExtendedUse {
        container,
        resource: resource.to_owned(),
        request,
    };
    let mut requests = BTreeMap::new();
    let mut uses = Vec::new();
    for at in (0..all.len()).filter(|at| stays(*at) && asks(*at) > 0) {
        requests.insert(name(at), asks(at));
        uses.push(given(at, name(at)));
    }
    let lent = |at: usize| -> i64 { (at..all.len()).filter(|at| stays(*at)).map(asks).sum() };
    let short: Vec<usize> = (0..all.len())
        .filter(|at| !stays(*at) && asks(*at) > 0)
        .collect();
    let missing = |at: &usize| asks(*at) - lent(*at);
    let most = short.iter().map(missing).max().unwrap_or(0);
    let own = short.iter().find(|at| missing(at) == most && most > 0);
    for at in &short {
        let mut wants = asks(*at);
        for other in (*at..all.len()).filter(|other| stays(*other) && asks(*other) > 0) {
            if wants > 0 {
                uses.push(given(*at, name(other)));
                wants -= asks(other);
            }
        }
        if wants > 0 {
            uses.push(given(*at, name(*own.expect("somebody lacks as much"))));
        }
    }
    if let Some(own) = own {
        requests.insert(name(*own), most);
    }
    (requests, uses)
}

/// What the node must give, and which container gets what; none if it cannot.
fn expected(
    pod: &Value,
    node: &Value,
    classes: &[&str],
    devices: &[DeviceSpec],
) -> Option<(Vec<String>, Vec<ExtendedUse>)> {
    let spec: PodSpec = serde_json::from_value(pod.clone()).expect("a pod");
    let mut requests = BTreeMap::new();
    let mut uses = Vec::new();
    for resource in ["d.com/a", "d.com/b"] {
        let containers = |list: &[mullion_engine::model::Container]| {
            let amounts = list.iter().map(|own| {
                let asked = own.resources.requests.get(resource);
                (own.is_sidecar(), asked.map_or(0, |own| own.value()))
            });
            amounts.collect::<Vec<_>>()
        };
        let init = containers(&spec.template.init_containers);
        let sidecars = init.iter().filter(|own| own.0).map(|own| own.1);
        let main: i64 = containers(&spec.template.containers)
            .iter()
            .map(|own| own.1)
            .sum();
        let before = |at: usize| -> i64 {
            let earlier = init[..at].iter().filter(|own| own.0);
            earlier.map(|own| own.1).sum()
        };
        let starting = (0..init.len()).map(|at| before(at) + init[at].1);
        let total = starting
            .max()
            .unwrap_or(0)
            .max(main + sidecars.sum::<i64>());
        let has = amount(node, resource);
        if has == 0 && classes.contains(&resource) {
            let own = step_by_step(pod, resource);
            requests.extend(own.0);
            uses.extend(own.1);
        } else if total > has {
            return None;
        }
    }
    if requests.is_empty() {
        return Some((Vec::new(), uses));
    }
    let list: Vec<Value> = requests
        .iter()
        .map(|(name, count)| {
            let exactly =
                json!({ "deviceClassName": "any", "allocationMode": "ExactCount", "count": count });
            json!({ "name": name, "exactly": exactly })
        })
        .collect();
    let claim = json!({ "metadata": { "name": "c", "namespace": "ns" }, "spec": { "devices": { "requests": list } } });
    let claim: ResourceClaimSpec = serde_json::from_value(claim).expect("a claim");
    let choice = first(&[&claim], &mut vec![Vec::new()], devices, 0)?;
    let results = choice[0].iter().flat_map(|(name, chosen)| {
        let names = chosen.iter().map(|at| devices[*at].name.as_str());
        names.map(move |device| format!("{name}={device}"))
    });
    Some((results.collect(), uses))
}

fn compare(seed: u64) {
    let mut dice = Dice(seed);
    let mut node = json!({});
    for resource in ["d.com/a", "d.com/b"] {
        if dice.chance(40) {
            node[resource] = json!((dice.roll(3) * 2).to_string());
        }
    }
    let mut world = World::of(&[("n1", node.clone())], Profile::default()).judged();
    let names = ["a", "b", "c", "d", "e", "f"];
    let devices: Vec<Value> = names[..dice.roll(7) as usize]
        .iter()
        .map(|name| {
            if dice.chance(80) {
                json!({ "name": name })
            } else {
                json!({ "name": name, "taints": [{ "key": "k", "effect": "NoSchedule" }] })
            }
        })
        .collect();
    world.slice(json!({ "nodeName": "n1", "devices": devices }));
    let devices: Vec<DeviceSpec> = serde_json::from_value(json!(devices)).expect("devices");
    let mut classes = Vec::new();
    for (class, resource) in [("one", "d.com/a"), ("two", "d.com/b")] {
        if dice.chance(80) {
            world.class(class, Some(resource), EARLY);
            classes.push(resource);
        }
    }
    let pod = random_pod(&mut dice);
    let spec: PodSpec = serde_json::from_value(pod.clone()).expect("a pod");
    let fast = world.placed(&spec);
    let slow = expected(&pod, &node, &classes, &devices);
    let found = fast.as_ref().ok().map(|choices: &DeviceChoices| {
        let extended = choices.extended.clone().unwrap_or_default();
        let devices = extended.allocation.devices.iter();
        let devices = devices.map(|device| format!("{}={}", device.request, device.device));
        (devices.collect::<Vec<_>>(), extended.uses)
    });
    assert_eq!(
        found, slow,
        "seed {seed}: {pod:#} {node} {classes:?} {devices:?} {fast:?}"
    );
}

#[test]
fn random_pods_get_what_the_rules_say_step_by_step() {
    let cases = std::env::var("DEVICE_CASES")
        .ok()
        .and_then(|text| text.parse().ok());
    for seed in 0..cases.unwrap_or(3_000) {
        compare(seed);
    }
}
