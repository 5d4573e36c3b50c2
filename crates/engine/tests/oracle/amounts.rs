//! Amounts: quantities, what a pod asks for, what a node has left.

use std::collections::{BTreeMap, BTreeSet};

use crate::objects::{Container, Node, Pod, World};

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

fn total(pod: &Pod, of: impl Fn(&Container) -> Amounts) -> Amounts {
    let mut sum = Amounts::new();
    for container in &pod.spec.containers {
        add(&mut sum, &of(container));
    }
    let mut beside = Amounts::new();
    let mut peak = Amounts::new();
    for init in &pod.spec.init_containers {
        let mut now = of(init);
        add(&mut now, &beside);
        if is_sidecar(init) {
            add(&mut sum, &of(init));
            beside.clone_from(&now);
        }
        raise(&mut peak, &now);
    }
    raise(&mut sum, &peak);
    for (name, amount) in read(&pod.spec.resources.requests) {
        if name == "cpu" || name == "memory" || name.starts_with("hugepages-") {
            sum.insert(name, amount);
        }
    }
    add(&mut sum, &read(&pod.spec.overhead));
    sum
}

/// What a pod asks for.
pub(crate) fn requests(pod: &Pod) -> Amounts {
    total(pod, |container| read(&container.resources.requests))
}

/// cpu and memory a pod asks for, containers without a request weighing a default: always for the pod that is scored, for one that is there
/// only of what it does not ask for as a whole.
pub(crate) fn weighed(pod: &Pod, is_there: bool) -> (i64, i64) {
    let by_pod = pod.spec.resources.requests.keys();
    let by_pod = by_pod
        .into_iter()
        .any(|name| name == "cpu" || name == "memory" || name.starts_with("hugepages-"));
    let all = pod.spec.containers.iter().chain(&pod.spec.init_containers);
    let named: BTreeSet<&String> = all
        .flat_map(|container| container.resources.requests.keys())
        .chain(pod.spec.resources.requests.keys())
        .chain(pod.spec.overhead.keys())
        .collect();
    let defaulted = |name: &str| !(is_there && by_pod && named.iter().any(|own| *own == name));
    let sum = total(pod, |container| {
        let mut amounts = read(&container.resources.requests);
        if defaulted("cpu") {
            amounts.entry("cpu".into()).or_insert(DEFAULT_CPU);
        }
        if defaulted("memory") {
            amounts.entry("memory".into()).or_insert(DEFAULT_MEMORY);
        }
        amounts
    });
    let of = |name: &str| sum.get(name).copied().unwrap_or(0);
    (of("cpu"), of("memory"))
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
        .map(|pod| weighed(pod, true))
        .fold((0, 0), |sum, own| (sum.0 + own.0, sum.1 + own.1))
}

pub(crate) fn get(amounts: &Amounts, name: &str) -> i64 {
    amounts.get(name).copied().unwrap_or(0)
}
