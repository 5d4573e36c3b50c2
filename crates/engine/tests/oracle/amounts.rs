//! Amounts: quantities, what a pod asks for, what a node has left.

use std::collections::BTreeMap;

use crate::objects::{Container, ContainerStatus, Node, Pod, Resources, World};

/// cpu in milli-cores, everything else in units.
pub(crate) type Amounts = BTreeMap<String, i64>;

/// What a container without a request weighs in scores.
const DEFAULT_CPU: i64 = 100;
const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

fn parse(text: &str, name: &str) -> i64 {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let milli: i128 = match &text[digits.len()..] {
        "m" => 1,
        "" => 1000,
        "k" => 1000 * 1000,
        "M" => 1000 * 1_000_000,
        "G" => 1000 * 1_000_000_000,
        "Ki" => 1000 << 10,
        "Mi" => 1000 << 20,
        "Gi" => 1000 << 30,
        other => panic!("{other} is no suffix of this oracle"),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let scale = 10_i128.pow(fraction.len() as u32);
    let number: i128 = format!("{whole}{fraction}").parse().expect("digits");
    let up = |value: i128, by: i128| (value + by - 1).div_euclid(by);
    let amount = match name {
        "cpu" => up(number * milli, scale),
        _ => up(number * milli, scale * 1000),
    };
    i64::try_from(amount).expect("amounts in tests are small")
}

fn read(map: &BTreeMap<String, String>) -> Amounts {
    map.iter()
        .map(|(name, text)| (name.clone(), parse(text, name)))
        .collect()
}

fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        *sum.entry(name.clone()).or_insert(0) += amount;
    }
}

fn raise(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let own = sum.entry(name.clone()).or_insert(0);
        *own = (*own).max(*amount);
    }
}

fn is_sidecar(container: &Container) -> bool {
    container.restart_policy == "Always"
}

fn is_whole(name: &str) -> bool {
    name == "cpu" || name == "memory" || name.starts_with("hugepages-")
}

/// What counts of requests that may be resized: the most of what is asked for, had and promised; without the first where the node cannot
/// give it.
fn held(
    pod: &Pod,
    asked: &Amounts,
    has: &Resources,
    promised: &BTreeMap<String, String>,
) -> Amounts {
    let mut pending = pod.status.conditions.iter();
    let pending = pending.find(|own| own.r#type == "PodResizePending");
    let mut most = if pending.is_some_and(|own| own.reason == "Infeasible") {
        Amounts::new()
    } else {
        asked.clone()
    };
    raise(&mut most, &read(&has.requests));
    raise(&mut most, &read(promised));
    most
}

/// What a container of a pod counts for.
fn of_container(pod: &Pod, container: &Container, is_init: bool) -> Amounts {
    let asked = read(&container.resources.requests);
    if is_init && !is_sidecar(container) {
        return asked;
    }
    let all = pod.status.container_statuses.iter();
    let mut all = all.chain(&pod.status.init_container_statuses);
    match all.find(|status| status.name == container.name) {
        Some(ContainerStatus {
            resources: Some(has),
            allocated_resources,
            ..
        }) => held(pod, &asked, has, allocated_resources),
        _ => asked,
    }
}

/// What a pod counts for as a whole, by what its spec asks for as a whole.
fn of_whole(pod: &Pod) -> Amounts {
    let mut asked = read(&pod.spec.resources.requests);
    asked.retain(|name, _| is_whole(name));
    let Some(has) = &pod.status.resources else {
        return asked;
    };
    let most = held(pod, &asked, has, &pod.status.allocated_resources);
    for (name, amount) in &mut asked {
        *amount = get(&most, name);
    }
    asked
}

/// The sum of a pod, with what it asks for as a whole in its place or without.
fn total(pod: &Pod, as_whole: bool, with: impl Fn(&mut Amounts)) -> Amounts {
    let of = |container: &Container, is_init: bool| {
        let mut amounts = of_container(pod, container, is_init);
        with(&mut amounts);
        amounts
    };
    let mut sum = Amounts::new();
    for container in &pod.spec.containers {
        add(&mut sum, &of(container, false));
    }
    let mut beside = Amounts::new();
    let mut peak = Amounts::new();
    for init in &pod.spec.init_containers {
        let own = of(init, true);
        let mut now = own.clone();
        add(&mut now, &beside);
        if is_sidecar(init) {
            add(&mut sum, &own);
            beside.clone_from(&now);
        }
        raise(&mut peak, &now);
    }
    raise(&mut sum, &peak);
    if as_whole {
        sum.extend(of_whole(pod));
    }
    add(&mut sum, &read(&pod.spec.overhead));
    sum
}

/// What a pod asks for.
pub(crate) fn requests(pod: &Pod) -> Amounts {
    total(pod, true, |_| {})
}

/// What NodeResourcesFit's score counts for the pod that asks: what its containers ask for, whatever the pod asks for as a whole, where
/// containers without a request weigh a default.
pub(crate) fn scored(pod: &Pod) -> Amounts {
    total(pod, false, |amounts| {
        amounts.entry("cpu".into()).or_insert(DEFAULT_CPU);
        amounts.entry("memory".into()).or_insert(DEFAULT_MEMORY);
    })
}

/// cpu and memory of a pod that is there: the defaults count only of what a pod that asks for something as a whole asks for nowhere.
fn weighed(pod: &Pod) -> (i64, i64) {
    let by_pod = pod
        .spec
        .resources
        .requests
        .keys()
        .any(|name| is_whole(name));
    let named = requests(pod);
    let defaulted = |name: &str| !by_pod || !named.contains_key(name);
    let sum = total(pod, true, |amounts| {
        if defaulted("cpu") {
            amounts.entry("cpu".into()).or_insert(DEFAULT_CPU);
        }
        if defaulted("memory") {
            amounts.entry("memory".into()).or_insert(DEFAULT_MEMORY);
        }
    });
    (get(&sum, "cpu"), get(&sum, "memory"))
}

pub(crate) fn allocatable(node: &Node) -> Amounts {
    read(&node.status.allocatable)
}

/// What the pods of a node ask for.
pub(crate) fn used(world: &World, node: &Node) -> Amounts {
    let mut sum = Amounts::new();
    world.on(node).for_each(|pod| add(&mut sum, &requests(pod)));
    sum
}

/// Their weights in scores.
pub(crate) fn used_weighed(world: &World, node: &Node) -> (i64, i64) {
    world
        .on(node)
        .map(weighed)
        .fold((0, 0), |sum, own| (sum.0 + own.0, sum.1 + own.1))
}

pub(crate) fn get(amounts: &Amounts, name: &str) -> i64 {
    amounts.get(name).copied().unwrap_or(0)
}
