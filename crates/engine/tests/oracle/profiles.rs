//! Random profiles, and what their settings mean for scores of resources.

use mullion_engine::Profile;
use mullion_engine::model::{
    InclusionPolicy, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    Operator, PreferredSchedulingTerm, TopologySpreadConstraint, WhenUnsatisfiable,
};
use mullion_engine::profile::{DefaultSpread, ScoringStrategy};

use crate::amounts;
use crate::objects::{self, Node, Pod, World};
use crate::random::Random;

const RESOURCES: [&str; 6] = [
    "cpu",
    "memory",
    "hugepages-2Mi",
    "example.com/gpu",
    "vpc.amazonaws.com/PrivateIPv4Address",
    "ephemeral-storage",
];

/// The profile of a number; 0 is the default one.
pub(crate) fn profile(number: u64) -> Profile {
    let mut profile = Profile::default();
    if number == 0 {
        return profile;
    }
    let random = &mut Random::new(number);
    profile.filters.retain(|_| !random.percent(8));
    if random.percent(30) {
        random.shuffle(&mut profile.filters);
    }
    profile.pre_filters.retain(|_| !random.percent(3));
    if random.percent(20) {
        random.shuffle(&mut profile.pre_filters);
    }
    profile.post_filters.retain(|_| !random.percent(5));
    if random.percent(20) {
        profile.post_filters.reverse();
    }
    for (plugin, _) in Profile::SCORES {
        if random.percent(15) {
            profile.scores.remove(&plugin);
        } else if random.percent(30) {
            profile.scores.insert(plugin, 1 + random.below(7) as i64);
        }
    }
    profile.fit.strategy = match random.below(3) {
        0 => ScoringStrategy::LeastAllocated,
        1 => ScoringStrategy::MostAllocated,
        _ => ScoringStrategy::RequestedToCapacityRatio(curve(random)),
    };
    let some = |random: &mut Random| -> Vec<String> {
        let mut names: Vec<_> = RESOURCES.iter().map(|name| (*name).to_owned()).collect();
        names.retain(|_| random.percent(50));
        names
    };
    if random.percent(60) {
        let names = some(random).into_iter();
        profile.fit.resources = names
            .map(|name| (name, 1 + random.below(5) as i64))
            .collect();
    }
    if random.percent(50) {
        profile.balanced_resources = some(random);
    }
    if random.percent(20) {
        let name = "example.com/gpu".to_owned();
        profile.fit.ignored_resources.insert(name);
    }
    if random.percent(20) {
        let group = random.text(&["example.com", "vpc.amazonaws.com"]);
        profile.fit.ignored_resource_groups.insert(group);
    }
    if random.percent(50) {
        let mut list: Vec<_> = (0..1 + random.below(2))
            .map(|_| constraint(random))
            .collect();
        list.dedup_by_key(|own| (own.topology_key.clone(), own.when_unsatisfiable));
        profile.default_spread = DefaultSpread::List(list);
    }
    profile.hard_pod_affinity_weight = [0, 1, 1, 50][random.below(4)];
    profile.ignore_preferred_terms_of_existing_pods = random.percent(30);
    if random.percent(30) {
        profile.added_affinity = affinity(random);
    }
    profile
}

fn curve(random: &mut Random) -> Vec<(i64, i64)> {
    let mut at = random.below(30) as i64;
    let mut points = Vec::new();
    for _ in 0..1 + random.below(4) {
        points.push((at, random.below(11) as i64));
        at += 1 + random.below(30) as i64;
    }
    points.retain(|(at, _)| *at <= 100);
    points
}

fn constraint(random: &mut Random) -> TopologySpreadConstraint {
    let keys = [
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
        "rack",
    ];
    TopologySpreadConstraint {
        max_skew: 1 + random.below(3) as i32,
        topology_key: random.text(&keys),
        when_unsatisfiable: if random.percent(40) {
            WhenUnsatisfiable::DoNotSchedule
        } else {
            WhenUnsatisfiable::ScheduleAnyway
        },
        node_taints_policy: random.percent(30).then_some(InclusionPolicy::Honor),
        ..TopologySpreadConstraint::default()
    }
}

fn affinity(random: &mut Random) -> NodeAffinity {
    let mut term = || NodeSelectorTerm {
        match_expressions: vec![NodeSelectorRequirement {
            key: random.text(&["disk", "rack", "kubernetes.io/hostname"]),
            operator: *random.pick(&[Operator::Exists, Operator::DoesNotExist]),
            values: Vec::new(),
        }],
        match_fields: Vec::new(),
    };
    let (required, preference) = (vec![term()], term());
    NodeAffinity {
        required: random.percent(50).then_some(NodeSelector {
            node_selector_terms: required,
        }),
        preferred: vec![PreferredSchedulingTerm {
            weight: 1 + random.below(100) as i32,
            preference,
        }],
    }
}

/// A term of the profile as the oracle's own.
pub(crate) fn node_term(term: &NodeSelectorTerm) -> objects::NodeTerm {
    let requirements = term.match_expressions.iter();
    objects::NodeTerm {
        match_expressions: requirements
            .map(|own| objects::Requirement {
                key: own.key.clone(),
                operator: format!("{:?}", own.operator),
                values: own.values.clone(),
            })
            .collect(),
        match_fields: Vec::new(),
    }
}

/// Whether the profile's filter leaves a resource to others.
pub(crate) fn is_ignored(profile: &Profile, name: &str) -> bool {
    let group = name.split('/').next().expect("a part");
    name.contains('/')
        && (profile.fit.ignored_resources.contains(name)
            || profile.fit.ignored_resource_groups.contains(group))
}

/// (requested with the pod, allocatable) of a resource, if it counts.
fn load(world: &World, pod: &Pod, node: &Node, name: &str, weighed: bool) -> Option<(i64, i64)> {
    let all = amounts::get(&amounts::allocatable(node), name);
    let asked = if weighed {
        amounts::scored(pod)
    } else {
        amounts::requests(pod)
    };
    let asked = amounts::get(&asked, name);
    let is_scalar = name.contains('/') || name.starts_with("hugepages-");
    if all == 0 || (is_scalar && asked == 0) {
        return None;
    }
    let used = amounts::used_weighed(world, node);
    let used = match name {
        "cpu" if weighed => used.0,
        "memory" if weighed => used.1,
        _ => amounts::get(&amounts::used(world, node), name),
    };
    Some((asked + used, all))
}

pub(crate) fn fit(world: &World, pod: &Pod, node: &Node) -> i64 {
    let fit = &world.profile.fit;
    let (mut sum, mut weights) = (0, 0);
    for (name, weight) in &fit.resources {
        let Some((requested, all)) = load(world, pod, node, name, true) else {
            continue;
        };
        let score = match &fit.strategy {
            ScoringStrategy::LeastAllocated if requested > all => 0,
            ScoringStrategy::LeastAllocated => (all - requested) * 100 / all,
            ScoringStrategy::MostAllocated => requested.min(all) * 100 / all,
            ScoringStrategy::RequestedToCapacityRatio(points) => {
                let utilization = if requested > all {
                    100
                } else {
                    requested * 100 / all
                };
                match height(points, utilization) {
                    ..=0 => continue,
                    score => score,
                }
            }
        };
        sum += score * weight;
        weights += weight;
    }
    match &fit.strategy {
        _ if weights == 0 => 0,
        ScoringStrategy::RequestedToCapacityRatio(_) => {
            // Half away from zero; nothing is below it.
            (2 * sum + weights) / (2 * weights)
        }
        _ => sum / weights,
    }
}

fn height(points: &[(i64, i64)], x: i64) -> i64 {
    let (first, last) = (points[0], points[points.len() - 1]);
    if x <= first.0 {
        return first.1 * 10;
    }
    if x > last.0 {
        return last.1 * 10;
    }
    let pair = points.windows(2).find(|pair| x <= pair[1].0);
    let [(x0, y0), (x1, y1)] = pair.expect("between two points") else {
        panic!("pairs");
    };
    y0 * 10 + (y1 - y0) * 10 * (x - x0) / (x1 - x0)
}

pub(crate) fn balanced(world: &World, pod: &Pod, node: &Node) -> i64 {
    let asks = amounts::requests(pod);
    let balance = |with: bool| {
        let fractions: Vec<f64> = world
            .profile
            .balanced_resources
            .iter()
            .filter_map(|name| {
                let (requested, all) = load(world, pod, node, name, false)?;
                let own = if with { 0 } else { amounts::get(&asks, name) };
                Some(((requested - own) as f64 / all as f64).min(1.0))
            })
            .collect();
        let deviation = match fractions.len() {
            0 | 1 => 0.0,
            2 => (fractions[0] - fractions[1]).abs() / 2.0,
            count => {
                let mean = fractions.iter().sum::<f64>() / count as f64;
                let squares = fractions.iter().map(|own| (own - mean) * (own - mean));
                (squares.sum::<f64>() / count as f64).sqrt()
            }
        };
        ((1.0 - deviation) * 100.0) as i64
    };
    50 + (50 + balance(true) - balance(false)) / 2
}
