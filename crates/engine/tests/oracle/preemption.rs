//! DefaultPreemption as the rules say it: take every pod of lower priority off, put back whom there is room for, and
//! choose the node where it costs least.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use mullion_engine::model::PodSpec;
use mullion_engine::{Decision, Plugin};
use serde_json::{Value, json};

use crate::objects::{Node, Pod, World, read};
use crate::random::{Case, Random};
use crate::selectors::{is_empty, selects};
use crate::{amounts, cluster, filters, number, profiles, seeded, shrunk, testdata, volumes};

/// Of so many random clusters one is also asked about evictions.
const SHARE: u64 = 20;

/// What would have to go from one node.
struct Candidate {
    node: String,
    violations: usize,
    victims: Vec<Pod>,
}

/// The first refusal of a node: with the pods that room is held for there, of the pod's importance, then without.
fn refusal(world: &World, pod: &Pod, node: &Node, os: bool) -> Option<filters::Refusal> {
    let mut crowded = world.clone();
    crowded.begin_trial(pod, node);
    for held in &world.promised {
        let here = held.status.nominated_node_name == node.metadata.name;
        if here && held.spec.priority >= pod.spec.priority && held.metadata.uid != pod.metadata.uid
        {
            let mut held = held.clone();
            held.spec.node_name.clone_from(&node.metadata.name);
            // Spread counts it even if it is leaving.
            held.metadata.deletion_timestamp = None;
            crowded.try_on(&held);
        }
    }
    filters::refusal(&crowded, pod, node, os).or_else(|| filters::refusal(world, pod, node, os))
}

/// Whether the refusal stands whoever goes.
fn is_hopeless(
    world: &World,
    pod: &Pod,
    node: &Node,
    (plugin, reasons): &filters::Refusal,
) -> bool {
    match *plugin {
        "NodePorts" => false,
        "VolumeRestrictions" => reasons[0].ends_with("not found"),
        "NodeVolumeLimits" => reasons[0] != "node(s) exceed max volume count",
        "PodTopologySpread" => reasons[0].contains("missing required label"),
        "InterPodAffinity" => reasons[0] == "node(s) didn't match pod affinity rules",
        "NodeResourcesFit" => {
            let has = amounts::allocatable(node);
            amounts::requests(pod).iter().any(|(name, wanted)| {
                let ignored = profiles::is_ignored(&world.profile, name);
                !ignored && *wanted > amounts::get(&has, name)
            })
        }
        _ => true,
    }
}

/// Higher priority first, then the earlier start; a pod that has not started is the newest.
fn importance(pod: &Pod) -> (Reverse<i32>, String, String) {
    let start = match pod.status.start_time.as_str() {
        "" => "later than all",
        time => time,
    };
    (
        Reverse(pod.spec.priority),
        start.to_owned(),
        pod.metadata.uid.clone(),
    )
}

/// Which of the pods, in this order, a budget does not let go.
fn violating(world: &World, pods: &[Pod]) -> Vec<bool> {
    let allowed = |budget: &Value| budget["status"]["disruptionsAllowed"].as_i64().unwrap_or(0);
    let mut left: Vec<i64> = world.budgets.iter().map(allowed).collect();
    let mut all = Vec::new();
    for pod in pods {
        let mut violates = false;
        for (budget, left) in world.budgets.iter().zip(&mut left) {
            let selector = read(&budget["spec"]["selector"]);
            let disrupted = &budget["status"]["disruptedPods"][&pod.metadata.name];
            let means = budget["metadata"]["namespace"] == pod.metadata.namespace.as_str()
                && !pod.metadata.labels.is_empty()
                && !is_empty(&selector)
                && selects(Some(&selector), &pod.metadata.labels)
                && disrupted.is_null();
            if means {
                *left -= 1;
                violates |= *left < 0;
            }
        }
        all.push(violates);
    }
    all
}

/// Tries one node: who has to go, or the refusal that stays.
fn attempt(world: &World, pod: &Pod, node: &Node, os: bool) -> Result<Candidate, Vec<String>> {
    let goes = |own: &Pod| {
        own.spec.node_name == node.metadata.name && own.spec.priority < pod.spec.priority
    };
    let mut lower: Vec<Pod> = world
        .placed
        .iter()
        .filter(|own| goes(own))
        .cloned()
        .collect();
    if lower.is_empty() {
        return Err(vec!["No preemption victims found for incoming pod".into()]);
    }
    let mut without = world.clone();
    without.begin_trial(pod, node);
    lower.iter().for_each(|own| without.take_off(own));
    if let Some((_, reasons)) = refusal(&without, pod, node, os) {
        return Err(reasons);
    }
    lower.sort_by_key(importance);
    let violating = violating(world, &lower);
    let mut candidate = Candidate {
        node: node.metadata.name.clone(),
        violations: 0,
        victims: Vec::new(),
    };
    for first in [true, false] {
        for (own, violates) in lower.iter().zip(&violating) {
            if *violates != first {
                continue;
            }
            without.try_on(own);
            if refusal(&without, pod, node, os).is_some() {
                without.take_off(own);
                candidate.violations += usize::from(first);
                candidate.victims.push(own.clone());
            }
        }
    }
    candidate.victims.sort_by_key(importance);
    Ok(candidate)
}

/// The candidates that no criterion tells from the best, the first criterion first.
fn cheapest(mut candidates: Vec<Candidate>) -> Vec<Candidate> {
    let top = |own: &Candidate| {
        own.victims
            .first()
            .map_or(i32::MIN, |pod| pod.spec.priority)
    };
    let sum = |own: &Candidate| -> i128 {
        let victims = own.victims.iter();
        victims
            .map(|pod| i128::from(pod.spec.priority) + (1 << 31))
            .sum()
    };
    let keep = |candidates: &mut Vec<Candidate>, cost: &dyn Fn(&Candidate) -> i128| {
        let least = candidates.iter().map(cost).min();
        candidates.retain(|own| Some(cost(own)) == least);
    };
    keep(&mut candidates, &|own| own.violations as i128);
    keep(&mut candidates, &|own| i128::from(top(own)));
    keep(&mut candidates, &sum);
    keep(&mut candidates, &|own| own.victims.len() as i128);
    // The start of the earliest of the highest: the latest is the best.
    let start = |own: &Candidate| own.victims.first().map(|pod| importance(pod).1);
    let latest = candidates.iter().map(start).max();
    candidates.retain(|own| Some(start(own)) == latest);
    candidates
}

/// All choices that are equally good, or the text that says why there is none; nothing for a pod that has a node.
fn slow(case: &Case, os: bool) -> Value {
    let mut world = World::read(&case.items);
    world.profile = profiles::profile(case.profile);
    let pod: Pod = read(&case.pod);
    let mut nodes = world.nodes.clone();
    nodes.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    if nodes.is_empty() {
        return Value::Null;
    }
    let asks = |plugin| {
        world
            .profile
            .post_filters
            .iter()
            .position(|own| *own == plugin)
    };
    let claims = asks(Plugin::DynamicResources);
    let before = volumes::before_nodes(&world, &pod);
    // What comes to the claims of devices too late finds nothing.
    let asked_at = |name: &str| {
        let mut asked = world.profile.pre_filters.iter();
        asked.position(|own| own.name() == name)
    };
    let was_asked = |refusal: &filters::Refusal| {
        let devices = asked_at("DynamicResources");
        devices.is_some_and(|devices| asked_at(refusal.0).is_some_and(|own| devices < own))
    };
    if before.as_ref().is_some_and(|own| !was_asked(own)) && claims.is_some() {
        return json!("not found");
    }
    const CLAIMS: &str = "no new claims to deallocate";
    // What evictions have to say, with what is said of claims in the profile's order.
    let message =
        |words: Option<String>| match (words.map(|own| format!("preemption: {own}")), claims) {
            (Some(own), None) => json!(own),
            (Some(own), Some(0)) => json!(format!("{CLAIMS}, {own}")),
            (Some(own), Some(_)) => json!(format!("{own}, {CLAIMS}")),
            (None, Some(_)) => json!(CLAIMS),
            (None, None) => Value::Null,
        };
    let refusals: Vec<_> = nodes
        .iter()
        .map(|node| match &before {
            None => refusal(&world, &pod, node, os),
            Some(before) => Some(before.clone()),
        })
        .collect();
    if refusals.iter().any(Option::is_none) {
        return Value::Null;
    }
    if asks(Plugin::DefaultPreemption).is_none() {
        return message(None);
    }
    if pod.spec.preemption_policy == "Never" {
        return message(Some("not eligible due to preemptionPolicy=Never.".into()));
    }
    let mut candidates = Vec::new();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (node, refusal) in nodes.iter().zip(refusals.iter().flatten()) {
        let tried = if before.is_some() || is_hopeless(&world, &pod, node, refusal) {
            Err(vec!["Preemption is not helpful for scheduling".into()])
        } else {
            attempt(&world, &pod, node, os)
        };
        match tried {
            Ok(candidate) => candidates.push(candidate),
            Err(reasons) => reasons
                .into_iter()
                .for_each(|reason| *counts.entry(reason).or_default() += 1),
        }
    }
    if candidates.is_empty() {
        let mut phrases: Vec<_> = counts
            .iter()
            .map(|(reason, count)| format!("{count} {reason}"))
            .collect();
        phrases.sort();
        let phrases = phrases.join(", ");
        let nodes = nodes.len();
        return message(Some(format!("0/{nodes} nodes are available: {phrases}.")));
    }
    let choices = cheapest(candidates).into_iter().map(|own| {
        let names = |leaving: bool| {
            let victims = own.victims.iter();
            let left = move |pod: &&Pod| pod.metadata.deletion_timestamp.is_some() == leaving;
            victims.filter(left).map(|pod| pod.metadata.uid.clone()).collect::<Vec<_>>()
        };
        json!({"node": own.node, "victims": names(false), "leaving": names(true), "violations": own.violations})
    });
    choices.collect()
}

/// The same by the engine; both of its ways must agree.
fn fast(case: &Case, os: bool) -> Value {
    let mut cluster = cluster(case, os);
    let pod: PodSpec = read(&case.pod);
    let Decision::Unschedulable(refused) = cluster.schedule_pod(&pod, 3).expect("a valid pod")
    else {
        return Value::Null;
    };
    if cluster.node_count() == 0 {
        return Value::Null;
    }
    let class = cluster.pod_class(&pod.template).expect("a valid pod");
    let chosen = cluster.preempt(class, &pod.key(), &refused, 3);
    let equals = match cluster.evictions(class, &pod.key(), &refused) {
        Ok(equals) => equals,
        Err(why) => {
            assert_eq!(why, chosen, "both ways say the same");
            return json!(cluster.preemption_message(refused.claims, &why));
        }
    };
    if !matches!(&chosen, mullion_engine::preempt::Preemption::Evict { chosen } if equals.contains(chosen))
    {
        return json!(format!("{chosen:?} is none of {equals:?}"));
    }
    let choices = equals.iter().map(|own| {
        json!({
            "node": cluster.node_name(own.node), "victims": own.victims, "leaving": own.leaving,
            "violations": own.pdb_violations,
        })
    });
    choices.collect()
}

/// The random case of a seed, with priorities, start times, budgets and room held for others.
fn contested(seed: u64) -> Case {
    let mut case = seeded(seed);
    let mut random = Random::new(seed ^ 0x5eed_0f00_d000_0000);
    let mut promised = Vec::new();
    for item in case.items.iter_mut().filter(|item| item["kind"] == "Pod") {
        item["spec"]["priority"] = json!(*random.pick(&[-5, 0, 0, 7, 7, 100]));
        if random.percent(70) && item["status"].is_null() {
            let day = random.text(&["01", "02", "03"]);
            item["status"] = json!({"startTime": format!("2026-01-{day}T00:00:00Z")});
        }
        if random.percent(6) {
            let mut held = item.clone();
            let name = format!("held-{}", promised.len());
            held["metadata"]["name"] = json!(name);
            held["metadata"]["uid"] = json!(name);
            let node = held["spec"]["nodeName"].take();
            held["spec"]["priority"] = json!(*random.pick(&[7, 50, 100]));
            held["status"] = json!({"nominatedNodeName": node});
            held["spec"]
                .as_object_mut()
                .expect("a spec")
                .remove("nodeName");
            promised.push(held);
        }
    }
    case.items.extend(promised);
    for index in 0..random.below(3) {
        let app = random.text(&["web", "db", "cache"]);
        let selector = match random.below(5) {
            0 => json!({}),
            _ => json!({"matchLabels": {"app": app}}),
        };
        let disrupted = if random.percent(20) {
            json!({"e01": "2026-01-01T00:00:00Z"})
        } else {
            json!({})
        };
        case.items.push(json!({
            "kind": "PodDisruptionBudget",
            "metadata": {"name": format!("b{index}"), "namespace": random.text(&["default", "prod"])},
            "spec": {"selector": selector},
            "status": {"disruptionsAllowed": random.below(3), "disruptedPods": disrupted},
        }));
    }
    case.pod["spec"]["priority"] = json!(*random.pick(&[7, 50, 50, 1000]));
    if random.percent(5) {
        case.pod["spec"]["preemptionPolicy"] = json!("Never");
    }
    // A pod that fits somewhere evicts nobody, and one that fits on no empty node neither: most nodes have a place for as many
    // pods as there are or one less.
    let hosts: Vec<Value> = case
        .items
        .iter()
        .map(|item| item["spec"]["nodeName"].clone())
        .collect();
    for node in case.items.iter_mut().filter(|item| item["kind"] == "Node") {
        let there = hosts
            .iter()
            .filter(|own| **own == node["metadata"]["name"])
            .count();
        if random.percent(80) {
            let places = there.saturating_sub(random.below(2)).max(1);
            node["status"]["allocatable"]["pods"] = json!(places.to_string());
        }
    }
    case
}

#[test]
fn evictions_are_those_of_the_slow_rules_on_random_clusters() {
    let clusters = number("ORACLE_CLUSTERS", crate::CLUSTERS) / SHARE;
    let first = number("ORACLE_SEED", 1);
    let os = |seed: u64| seed.is_multiple_of(2);
    let differs = |case: &Case, os| slow(case, os) != fast(case, os);
    let (mut evicted, mut refused) = (0, 0);
    for seed in first..first + clusters {
        let case = contested(seed);
        let (rules, engine) = (slow(&case, os(seed)), fast(&case, os(seed)));
        evicted += u64::from(rules.is_array());
        refused += u64::from(rules.is_string());
        if rules != engine {
            let case = shrunk(case, os(seed), differs);
            let line = json!({"items": case.items, "pod": case.pod, "profile": case.profile});
            let (rules, engine) = (slow(&case, os(seed)), fast(&case, os(seed)));
            panic!(
                "seed {seed}, os {}:\n{line}\nrules  {rules}\nengine {engine}",
                os(seed)
            );
        }
    }
    println!("{clusters} clusters agree: {evicted} evictions, {refused} refusals");
    assert!(clusters < 1000 || (evicted > clusters / 10 && refused > clusters / 10));
}

#[test]
fn the_slow_rules_evict_as_kube_scheduler_does() {
    let mut compared = 0;
    for line in crate::vectors(testdata("scheduler-vectors.jsonl.gz")) {
        let Some(recorded) = line["answer"]["preemption"].as_array() else {
            continue;
        };
        let case = Case {
            items: line["items"].as_array().expect("items").clone(),
            pod: line["pod"].clone(),
            profile: 0,
        };
        let said = slow(&case, false);
        for choice in recorded {
            let same = |own: &Value| {
                let mut victims: Vec<_> = own["victims"].as_array().expect("a list").clone();
                victims.sort_by_key(Value::to_string);
                own["node"] == choice["node"] && json!(victims) == choice["victims"]
            };
            let agrees = match &choice["message"] {
                Value::Null => said.as_array().is_some_and(|all| all.iter().any(same)),
                message => said == *message,
            };
            assert!(agrees, "{}: {choice} is not in {said}", line["id"]);
        }
        compared += 1;
    }
    assert_eq!(compared, 179);
}
