//! Claims of devices: each rule by example, and random worlds against a search that tries everything ([`slow`]).

#![allow(
    clippy::disallowed_methods,
    reason = "how many worlds are tried is said from outside"
)]

mod extended;
mod slow;
mod world;

use mullion_engine::model::{DeviceTaint, DeviceToleration, PodSpec};
use mullion_engine::preempt::Preemption;
use mullion_engine::{Claims, Decision, Outcome, Plugin, Profile};
use serde_json::{Value, json};

use world::World;

/// A world of one node `n1` with these devices of a driver `d`, whose class `any` is for every device.
fn one_node(devices: Value) -> World {
    let mut world = World::new(&["n1"]);
    world.slice(json!({ "nodeName": "n1", "devices": devices }));
    world
}

fn exactly(fields: Value) -> Value {
    let mut request =
        json!({ "deviceClassName": "any", "allocationMode": "ExactCount", "count": 1 });
    merge(&mut request, fields);
    json!([{ "name": "r", "exactly": request }])
}

fn merge(into: &mut Value, fields: Value) {
    if let (Some(into), Value::Object(fields)) = (into.as_object_mut(), fields) {
        into.extend(fields);
    }
}

#[test]
fn a_claim_gets_the_first_device_that_is_free_and_is_bound_to_its_node() {
    let mut world = one_node(json!([{ "name": "a" }, { "name": "b" }]));
    world.claim("one", json!({ "requests": exactly(json!({})) }));
    world.claim("two", json!({ "requests": exactly(json!({})) }));
    world.claim("three", json!({ "requests": exactly(json!({})) }));
    assert_eq!(
        world.place("p1", &["one"]),
        Ok(vec!["one: r=d/n1/a @n1".into()])
    );
    assert_eq!(
        world.place("p2", &["two"]),
        Ok(vec!["two: r=d/n1/b @n1".into()])
    );
    let refused = world.place("p3", &["three"]);
    let message = "0/1 nodes are available: 1 cannot allocate all claims. still not schedulable, preemption: 0/1 nodes are \
                   available: 1 Preemption is not helpful for scheduling.";
    assert_eq!(refused, Err(message.into()));
}

#[test]
fn a_shared_claim_keeps_its_devices_and_its_pods_on_their_node() {
    let mut world = World::new(&["n1", "n2"]);
    world.slice(json!({ "nodeName": "n2", "devices": [{ "name": "a" }] }));
    world.claim("shared", json!({ "requests": exactly(json!({})) }));
    assert_eq!(
        world.place("p1", &["shared"]),
        Ok(vec!["shared: r=d/n2/a @n2".into()])
    );
    assert_eq!(
        world.place("p2", &["shared"]),
        Ok(vec![]),
        "it has them already"
    );
    assert_eq!(world.node_of("p2").as_deref(), Some("n2"));
}

#[test]
fn all_devices_means_every_one_that_is_chosen_and_none_may_be_taken() {
    let mut world = one_node(json!([{ "name": "a" }, { "name": "b" }]));
    world.claim("one", json!({ "requests": exactly(json!({})) }));
    world.claim(
        "all",
        json!({ "requests": exactly(json!({ "allocationMode": "All" })) }),
    );
    let both = Ok(vec!["all: r=d/n1/a r=d/n1/b @n1".to_owned()]);
    assert_eq!(world.clone().place("p", &["all"]), both);
    assert!(world.place("p1", &["one"]).is_ok());
    assert!(world.place("p2", &["all"]).is_err());
    let mut empty = one_node(json!([]));
    empty.claim(
        "all",
        json!({ "requests": exactly(json!({ "allocationMode": "All" })) }),
    );
    assert!(empty.place("p", &["all"]).is_err(), "none are not all");
}

#[test]
fn alternatives_are_tried_in_their_order_and_better_ones_draw_pods() {
    let list = json!([{ "name": "r", "firstAvailable": [
        { "name": "big", "deviceClassName": "any", "count": 2, "allocationMode": "ExactCount" },
        { "name": "small", "deviceClassName": "any", "count": 1, "allocationMode": "ExactCount" },
    ] }]);
    let mut world = World::new(&["n1", "n2"]);
    world.slice(json!({ "nodeName": "n1", "devices": [{ "name": "a" }] }));
    world.slice(json!({ "nodeName": "n2", "devices": [{ "name": "a" }, { "name": "b" }] }));
    world.claim("c", json!({ "requests": list }));
    let spec = world.pod("p", &["c"]);
    let class = world.cluster.pod_class(&spec.template).expect("a class");
    let answer = world.cluster.answer(class);
    let scores = answer.nodes.iter().map(|node| match &node.outcome {
        Outcome::Fits { scores, .. } => {
            let own = scores
                .iter()
                .find(|(plugin, _)| *plugin == Plugin::DynamicResources);
            own.map(|(_, score)| *score)
        }
        Outcome::Refused(_) => None,
    });
    // Weight 2; 7 of 8 points against 8.
    assert_eq!(scores.collect::<Vec<_>>(), [Some(2 * 87), Some(2 * 100)]);
    let placed = world.place("p", &["c"]);
    assert_eq!(placed, Ok(vec!["c: r/big=d/n2/a r/big=d/n2/b @n2".into()]));
}

#[test]
fn devices_that_must_match_or_differ_are_searched_for_until_they_do() {
    let numa = |name: &str, node: i64| json!({ "name": name, "attributes": { "numa": { "int": node }, "other.io/id": { "string": name } } });
    let mut world = one_node(json!([numa("a", 0), numa("b", 1), numa("c", 1)]));
    let two = exactly(json!({ "count": 2 }));
    let matching = json!([{ "matchAttribute": "d/numa" }]);
    world.claim("same", json!({ "requests": two, "constraints": matching }));
    let same = world.clone().place("p", &["same"]);
    assert_eq!(same, Ok(vec!["same: r=d/n1/b r=d/n1/c @n1".into()]));
    world.claim(
        "apart",
        json!({ "requests": two, "constraints": [{ "distinctAttribute": "d/numa" }] }),
    );
    let apart = world.clone().place("p", &["apart"]);
    assert_eq!(apart, Ok(vec!["apart: r=d/n1/a r=d/n1/b @n1".into()]));
    world.claim(
        "nowhere",
        json!({ "requests": two, "constraints": [{ "matchAttribute": "other.io/none" }] }),
    );
    assert!(world.place("p", &["nowhere"]).is_err());
    let of_other = json!([{ "matchAttribute": "d/numa", "requests": ["x"] }]);
    world.claim("other", json!({ "requests": two, "constraints": of_other }));
    assert!(
        world.place("q", &["other"]).is_ok(),
        "the constraint is about another request"
    );
}

#[test]
fn taints_keep_away_who_does_not_tolerate_them() {
    let tainted = json!([{ "name": "a", "taints": [{ "key": "k", "value": "v", "effect": "NoSchedule" }, { "key": "n", "effect": "None" }] }]);
    let mut world = one_node(tainted);
    world.claim("plain", json!({ "requests": exactly(json!({})) }));
    assert!(world.place("p", &["plain"]).is_err());
    let tolerations = json!([{ "key": "k", "operator": "Equal", "value": "v" }]);
    world.claim(
        "brave",
        json!({ "requests": exactly(json!({ "tolerations": tolerations })) }),
    );
    assert!(world.place("q", &["brave"]).is_ok());
    let taint = DeviceTaint {
        key: "k".into(),
        value: "v".into(),
        effect: "NoExecute".into(),
    };
    let tolerates = |key: &str, operator: &str, value: &str, effect: &str| {
        let toleration = DeviceToleration {
            key: key.into(),
            operator: operator.into(),
            value: value.into(),
            effect: effect.into(),
        };
        toleration.tolerates(&taint)
    };
    assert!(tolerates("", "Exists", "", "") && tolerates("k", "", "v", "NoExecute"));
    assert!(!tolerates("k", "Equal", "w", "") && !tolerates("k", "Exists", "", "NoSchedule"));
    assert!(!tolerates("l", "Exists", "", "") && !tolerates("k", "Less", "v", ""));
}

#[test]
fn parts_of_a_partitioned_device_share_its_counters() {
    let takes = |name: &str, memory: &str| json!({ "name": name, "consumesCounters": [{ "counterSet": "gpu", "counters": { "memory": { "value": memory } } }] });
    let mut world = World::new(&["n1"]);
    let pool = json!({ "name": "n1", "generation": 1, "resourceSliceCount": 2 });
    world.slice(json!({ "nodeName": "n1", "pool": pool, "sharedCounters": [{ "name": "gpu", "counters": { "memory": { "value": "40Gi" } } }] }));
    world.slice(json!({ "nodeName": "n1", "pool": pool, "devices": [takes("half-0", "20Gi"), takes("half-1", "20Gi"), takes("whole", "40Gi")] }));
    let named = |name: &str| {
        exactly(json!({ "selectors": [{ "cel": { "expression": format!("name={name}") } }] }))
    };
    for name in ["half-0", "half-1", "whole"] {
        world.claim(name, json!({ "requests": named(name) }));
    }
    assert!(world.clone().place("p", &["half-0", "half-1"]).is_ok());
    assert!(world.clone().place("p", &["half-0", "whole"]).is_err());
    assert!(world.place("p1", &["half-1"]).is_ok());
    assert!(world.place("p2", &["whole"]).is_err());
    assert!(world.place("p3", &["half-0"]).is_ok());
}

#[test]
fn a_device_that_can_be_shared_is_given_away_in_parts() {
    let policy = json!({ "default": "1Gi", "validRange": { "min": "1Gi", "step": "1Gi" } });
    let mut world = one_node(
        json!([{ "name": "a", "allowMultipleAllocations": true, "capacity": { "memory": { "value": "10Gi", "requestPolicy": policy } } }]),
    );
    let of = |amount: &str| exactly(json!({ "capacity": { "requests": { "memory": amount } } }));
    world.claim("six", json!({ "requests": of("6Gi") }));
    world.claim("three", json!({ "requests": of("2500Mi") }));
    world.claim("more", json!({ "requests": of("2Gi") }));
    world.claim("default", json!({ "requests": exactly(json!({})) }));
    assert_eq!(
        world.place("p1", &["six"]),
        Ok(vec!["six: r=d/n1/a{memory=6Gi} @n1".into()])
    );
    assert_eq!(
        world.place("p2", &["three"]),
        Ok(vec!["three: r=d/n1/a{memory=3Gi} @n1".into()])
    );
    assert!(world.place("p3", &["more"]).is_err());
    assert_eq!(
        world.place("p4", &["default"]),
        Ok(vec!["default: r=d/n1/a{memory=1Gi} @n1".into()])
    );
}

#[test]
fn who_only_watches_over_a_device_takes_it_from_nobody() {
    let mut world = one_node(json!([{ "name": "a" }]));
    world.claim("own", json!({ "requests": exactly(json!({})) }));
    world.claim(
        "admin",
        json!({ "requests": exactly(json!({ "adminAccess": true })) }),
    );
    assert!(world.place("p1", &["own"]).is_ok());
    assert_eq!(
        world.place("p2", &["admin"]),
        Ok(vec!["admin: r=d/n1/a(admin) @n1".into()])
    );
}

#[test]
fn devices_tell_from_where_they_can_be_used() {
    let zone = |zone: &str| json!({ "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "zone", "operator": "In", "values": [zone] }] }] });
    let mut world = World::new(&["n1", "n2"]);
    world.slice(json!({ "pool": { "name": "net", "generation": 1, "resourceSliceCount": 1 }, "nodeSelector": zone("zn2"), "devices": [{ "name": "a" }] }));
    world.claim("c", json!({ "requests": exactly(json!({})) }));
    let placed = world.clone().place("p", &["c"]);
    assert_eq!(placed, Ok(vec!["c: r=d/net/a @zone in zn2".into()]));
    let mut world = World::new(&["n1", "n2"]);
    let devices = json!([{ "name": "a", "nodeName": "n2" }, { "name": "b", "allNodes": true }]);
    world.slice(json!({ "pool": { "name": "net", "generation": 1, "resourceSliceCount": 1 }, "perDeviceNodeSelection": true, "devices": devices }));
    world.claim("c", json!({ "requests": exactly(json!({})) }));
    world.claim("d", json!({ "requests": exactly(json!({ "selectors": [{ "cel": { "expression": "name=a" } }] })) }));
    assert_eq!(
        world.place("q", &["d"]),
        Ok(vec!["d: r=d/net/a @n2".into()])
    );
    assert_eq!(world.place("p", &["c"]), Ok(vec!["c: r=d/net/b @".into()]));
}

#[test]
fn only_whole_and_sound_pools_of_the_newest_generation_count() {
    let pool = |generation: i64, slices: i64| json!({ "name": "n1", "generation": generation, "resourceSliceCount": slices });
    let mut world = World::new(&["n1"]);
    world.slice(json!({ "nodeName": "n1", "pool": pool(1, 1), "devices": [{ "name": "old" }] }));
    world.claim("c", json!({ "requests": exactly(json!({})) }));
    world.claim(
        "all",
        json!({ "requests": exactly(json!({ "allocationMode": "All" })) }),
    );
    assert!(world.clone().place("p", &["c"]).is_ok());
    world.slice(json!({ "nodeName": "n1", "pool": pool(2, 2), "devices": [{ "name": "a" }] }));
    assert!(
        world.clone().place("p", &["c"]).is_err(),
        "a slice is missing"
    );
    let updating = r#"running "DynamicResources" filter plugin: claim ns/all, request r: asks for all devices, but resource pool d/n1 is currently being updated"#;
    assert_eq!(world.clone().place("p", &["all"]), Err(updating.into()));
    world.slice(json!({ "nodeName": "n1", "pool": pool(2, 2), "devices": [{ "name": "a" }] }));
    let refused = world
        .place("p", &["c"])
        .expect_err("two devices have one name");
    assert!(
        refused.starts_with("0/1 nodes are available: 1 invalid resource pools were encountered."),
        "{refused}"
    );
}

#[test]
fn an_expression_that_cannot_be_evaluated_ends_the_attempt_with_an_error() {
    let mut world = one_node(json!([{ "name": "a" }]));
    let with = |expression: &str| {
        exactly(
            json!({ "selectors": [{ "cel": { "expression": "true" } }, { "cel": { "expression": expression } }] }),
        )
    };
    world.claim("fails", json!({ "requests": with("fails") }));
    world.claim("broken", json!({ "requests": with("broken") }));
    let error = |why: &str| {
        Err(format!(
            "running \"DynamicResources\" filter plugin: claim {why}"
        ))
    };
    let fails = "ns/fails: selector #1: CEL runtime error: no such key: x";
    assert_eq!(world.place("p", &["fails"]), error(fails));
    let broken = "ns/broken: selector #1: CEL compile error: what is this?";
    assert_eq!(world.place("p", &["broken"]), error(broken));
}

#[test]
fn a_pod_is_not_tried_before_its_claims_are_there_and_its_own() {
    let mut world = one_node(json!([{ "name": "a" }]));
    let missing = |world: &mut World, spec: &PodSpec| {
        let class = world.cluster.pod_class(&spec.template).expect("a class");
        let conflict = world.cluster.claims_missing(class);
        conflict.map(|conflict| world.cluster.conflict_text(conflict))
    };
    let named = world.pod("p", &["c"]);
    assert_eq!(
        missing(&mut world, &named).as_deref(),
        Some(r#"could not find ResourceClaim "ns/c""#)
    );
    let generated = |claim: Option<&str>| {
        let mut spec = named.clone();
        let claims = spec.template.claims.get_or_insert_default();
        claims.claims[0].generated = true;
        claims.claims[0].claim = claim.map(str::to_owned);
        spec
    };
    let waiting = missing(&mut world, &generated(None));
    assert_eq!(
        waiting.as_deref(),
        Some(r#"pod "ns/p": ResourceClaim not created yet"#)
    );
    world.claim("c", json!({ "requests": exactly(json!({})) }));
    assert_eq!(missing(&mut world, &named), None);
    let foreign = missing(&mut world, &generated(Some("c")));
    let not_owned = "ResourceClaim ns/c was not created for Pod ns/p (Pod is not owner)";
    assert_eq!(foreign.as_deref(), Some(not_owned));
    world.claim("odd", json!({ "requests": [{ "name": "r", "firstAvailable": [{ "name": "s", "deviceClassName": "none" }] }] }));
    let refused = world.place("q", &["odd"]).expect_err("no such class");
    assert!(refused.starts_with("0/1 nodes are available: request r/s: device class none does not exist. no new claims to deallocate, preemption: "), "{refused}");
}

#[test]
fn a_claim_that_nobody_else_uses_gives_its_devices_back_where_they_stand_in_the_way() {
    let mut world = World::new(&["n1", "n2"]);
    world.slice(json!({ "nodeName": "n1", "devices": [{ "name": "a" }] }));
    world.slice(json!({ "nodeName": "n2", "devices": [{ "name": "a" }] }));
    world.claim("c", json!({ "requests": exactly(json!({})) }));
    assert!(world.place("p", &["c"]).is_ok());
    let taken = world.node_of("p").expect("placed");
    world.cluster.remove_pod("p").expect("there");
    let mut spec = world.pod("q", &["c"]);
    spec.template.node_selector.insert(
        "zone".into(),
        if taken == "n1" { "zn2" } else { "zn1" }.into(),
    );
    let class = world.cluster.pod_class(&spec.template).expect("a class");
    let refused = |world: &mut World| match world.cluster.schedule_pod(&spec, 0).expect("valid") {
        Decision::Unschedulable(refused) => {
            let preemption = world.cluster.preempt(class, "q", &refused, 0);
            assert!(!matches!(preemption, Preemption::Evict { .. }));
            world.cluster.message_with_preemption(&refused, &preemption)
        }
        Decision::Node(_) => panic!("its devices are elsewhere"),
    };
    let given_back = refused(&mut world);
    assert!(
        given_back.contains(". deallocation of ResourceClaim completed, preemption: "),
        "{given_back}"
    );
    world.reserve("c", &["somebody"]);
    assert!(refused(&mut world).contains(". still not schedulable, preemption: "));
}

#[test]
fn room_is_made_where_the_devices_are() {
    let mut world = World::new(&["n1", "n2", "n3"]);
    world.slice(json!({ "nodeName": "n2", "devices": [{ "name": "a" }] }));
    world.claim("c", json!({ "requests": exactly(json!({})) }));
    let asking = |mut spec: PodSpec, priority: i32| {
        let container = json!({ "resources": { "requests": { "cpu": "8" } } });
        spec.template.containers = vec![serde_json::from_value(container).expect("a container")];
        spec.template.priority = priority;
        spec
    };
    for node in ["n1", "n2", "n3"] {
        let mut low = asking(world.pod(&format!("low-{node}"), &[]), 0);
        low.template.claims = None;
        world.cluster.bind(&low, node).expect("new");
    }
    let urgent = asking(world.pod("urgent", &["c"]), 10);
    let cluster = &mut world.cluster;
    let class = cluster.pod_class(&urgent.template).expect("a class");
    let Decision::Unschedulable(refused) = cluster.schedule_pod(&urgent, 0).expect("valid") else {
        panic!("all nodes are full");
    };
    for seed in 0..8 {
        let preemption = cluster.preempt(class, "urgent", &refused, seed);
        let Preemption::Evict { chosen } = preemption else {
            panic!("{preemption:?}");
        };
        assert_eq!(chosen.victims, ["low-n2"]);
    }
}

#[test]
fn claims_are_left_alone_where_evictions_are_tried_first_and_make_room() {
    let given_back = |profile: Profile| {
        let mut world = World::of(&[("n1", json!({})), ("n2", json!({}))], profile).judged();
        for node in ["n1", "n2"] {
            world.slice(json!({ "nodeName": node, "devices": [{ "name": "a" }] }));
        }
        world.claim("c", json!({ "requests": exactly(json!({})) }));
        assert!(world.place("p", &["c"]).is_ok());
        let taken = world.node_of("p").expect("placed").to_owned();
        world.cluster.remove_pod("p").expect("there");
        let container = json!({ "resources": { "requests": { "cpu": "8" } } });
        let containers = vec![serde_json::from_value(container).expect("a container")];
        let mut low = world.pod("low", &[]);
        low.template.claims = None;
        low.template.containers.clone_from(&containers);
        world.cluster.bind(&low, &taken).expect("new");
        let mut urgent = world.pod("urgent", &["c"]);
        urgent.template.containers = containers;
        urgent.template.priority = 10;
        let cluster = &mut world.cluster;
        let class = cluster.pod_class(&urgent.template).expect("a class");
        let Decision::Unschedulable(refused) = cluster.schedule_pod(&urgent, 0).expect("valid")
        else {
            panic!("one node is full, the other has other devices");
        };
        let preemption = cluster.preempt(class, "urgent", &refused, 0);
        assert!(matches!(&preemption, Preemption::Evict { chosen } if chosen.victims == ["low"]));
        cluster.claims_after_preemption(class, &refused, &preemption)
    };
    let usual = given_back(Profile::default());
    assert!(matches!(usual, Claims::GivenBack { .. }), "{usual:?}");
    let evicting = Profile {
        post_filters: vec![Plugin::DefaultPreemption, Plugin::DynamicResources],
        ..Profile::default()
    };
    assert_eq!(given_back(evicting), Claims::None);
}

#[test]
fn what_was_tried_is_undone_with_all_else() {
    let mut world = one_node(json!([{ "name": "a" }]));
    world.claim("one", json!({ "requests": exactly(json!({})) }));
    world.claim("two", json!({ "requests": exactly(json!({})) }));
    let checkpoint = world.cluster.checkpoint();
    let written = world.written.clone();
    assert!(world.place("p1", &["one"]).is_ok());
    assert!(world.place("p2", &["two"]).is_err());
    world.cluster.rollback(checkpoint);
    world.written = written;
    assert!(world.place("p2", &["two"]).is_ok());
}

#[test]
fn without_anybody_who_evaluates_expressions_a_pod_that_needs_it_is_an_error() {
    let mut world = World::without_judge(&["n1"]);
    world.slice(json!({ "nodeName": "n1", "devices": [{ "name": "a" }] }));
    world.claim("c", json!({ "requests": exactly(json!({})) }));
    let refused = world
        .place("p", &["c"])
        .expect_err("nothing can be said about devices");
    assert!(
        refused.contains("nobody here evaluates expressions"),
        "{refused}"
    );
}

#[test]
fn random_claims_get_what_a_search_through_everything_finds_first() {
    let cases = std::env::var("DEVICE_CASES")
        .ok()
        .and_then(|text| text.parse().ok());
    for seed in 0..cases.unwrap_or(3_000) {
        slow::compare(seed);
    }
}
