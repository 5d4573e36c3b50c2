//! Every score of the default profile, weighted, for the nodes that passed the filters.

use std::collections::BTreeMap;

use mullion_engine::Plugin;

use crate::amounts;
use crate::objects::{Node, Pod, PodTerm, World};
use crate::profiles;
use crate::selectors::{term_matches, term_means, term_means_newcomer, tolerates};
use crate::spread;

const MIB: i64 = 1024 * 1024;

/// By plugin: one score per feasible node. Plugins that are skipped for the pod are absent.
pub(crate) fn all(
    world: &World,
    pod: &Pod,
    feasible: &[&Node],
    os: bool,
) -> BTreeMap<&'static str, Vec<i64>> {
    let each =
        |score: &dyn Fn(&Node) -> i64| feasible.iter().map(|node| score(node)).collect::<Vec<_>>();
    let profile = &world.profile;
    let mut columns = BTreeMap::new();
    let mut column = |plugin: Plugin, scores: Vec<i64>| {
        if let Some(weight) = profile.scores.get(&plugin) {
            columns.insert(plugin.name(), weighted(*weight, scores));
        }
    };
    let taints = each(&|node| soft_taints(pod, node));
    column(Plugin::TaintToleration, normalized(taints, true));
    let preferred = &pod.spec.affinity.node_affinity.preferred;
    let added = &profile.added_affinity.preferred;
    if !preferred.is_empty() || !added.is_empty() {
        let raw = each(&|node| {
            let matching = preferred
                .iter()
                .filter(|own| term_matches(&own.preference, node));
            let more = added
                .iter()
                .filter(|own| term_matches(&profiles::node_term(&own.preference), node));
            let own: i64 = matching.map(|own| own.weight).sum();
            own + more.map(|own| i64::from(own.weight)).sum::<i64>()
        });
        column(Plugin::NodeAffinity, normalized(raw, false));
    }
    let fit = each(&|node| profiles::fit(world, pod, node));
    column(Plugin::NodeResourcesFit, fit);
    let asks = amounts::requests(pod);
    let mut balanced = profile.balanced_resources.iter();
    if balanced.any(|name| amounts::get(&asks, name) != 0) {
        let balanced = each(&|node| profiles::balanced(world, pod, node));
        column(Plugin::NodeResourcesBalancedAllocation, balanced);
    }
    if let Some(scores) = spread::scores(world, pod, feasible, os) {
        column(Plugin::PodTopologySpread, scores);
    }
    if let Some(scores) = other_pods(world, pod, feasible) {
        column(Plugin::InterPodAffinity, scores);
    }
    let images = each(&|node| images(world, pod, node));
    column(Plugin::ImageLocality, images);
    column(Plugin::DynamicResources, vec![0; feasible.len()]);
    columns
}

fn weighted(weight: i64, scores: Vec<i64>) -> Vec<i64> {
    scores.into_iter().map(|score| weight * score).collect()
}

fn normalized(scores: Vec<i64>, reverse: bool) -> Vec<i64> {
    let max = scores.iter().copied().max().unwrap_or(0);
    let scaled = scores.into_iter().map(|score| {
        let scaled = if max == 0 { score } else { 100 * score / max };
        if reverse { 100 - scaled } else { scaled }
    });
    scaled.collect()
}

fn soft_taints(pod: &Pod, node: &Node) -> i64 {
    let tolerations: Vec<_> = pod
        .spec
        .tolerations
        .iter()
        .filter(|own| own.effect.is_empty() || own.effect == "PreferNoSchedule")
        .cloned()
        .collect();
    let taints = node.spec.taints.iter();
    let bothering = taints
        .filter(|taint| taint.effect == "PreferNoSchedule" && !tolerates(&tolerations, taint));
    bothering.count() as i64
}

fn images(world: &World, pod: &Pod, node: &Node) -> i64 {
    let full = |image: &str| {
        let tagged = image
            .rsplit('/')
            .next()
            .is_some_and(|last| last.contains(':'));
        if tagged {
            image.to_owned()
        } else {
            format!("{image}:latest")
        }
    };
    let size_on = |node: &Node, name: &str| {
        let found = node
            .status
            .images
            .iter()
            .find(|image| image.names.iter().any(|own| *own == name));
        found.map(|image| image.size_bytes)
    };
    let containers = pod.spec.containers.iter().chain(&pod.spec.init_containers);
    let count = containers.clone().count() as i64;
    let volumes = pod.spec.volumes.iter();
    let mounted = volumes.filter_map(|volume| volume["image"]["reference"].as_str());
    let sum: i64 = containers
        .map(|container| container.image.as_str())
        .chain(mounted)
        .map(|image| {
            let name = full(image);
            if size_on(node, &name).is_none() {
                return 0;
            }
            let sizes: Vec<i64> = world
                .nodes
                .iter()
                .filter_map(|node| size_on(node, &name))
                .collect();
            let spread = sizes.len() as f64 / world.nodes.len() as f64;
            (sizes[0] as f64 * spread) as i64
        })
        .sum();
    let (least, most) = (23 * MIB, 1000 * MIB * count);
    100 * (sum.clamp(least, most) - least) / (most - least)
}

/// Sums by (key, value) of nodes' labels; what the pod wants of others and what they want of it.
fn other_pods(world: &World, pod: &Pod, feasible: &[&Node]) -> Option<Vec<i64>> {
    let mut sums: BTreeMap<(String, String), i64> = BTreeMap::new();
    let mut add = |other: &Pod, key: &str, weight: i64| {
        if let Some(value) = world.under(other).metadata.labels.get(key) {
            *sums.entry((key.to_owned(), value.clone())).or_insert(0) += weight;
        }
    };
    let own = &pod.spec.affinity;
    let hard_weight = world.profile.hard_pod_affinity_weight;
    let prefers =
        !own.pod_affinity.preferred.is_empty() || !own.pod_anti_affinity.preferred.is_empty();
    if world.profile.ignore_preferred_terms_of_existing_pods && !prefers {
        return None;
    }
    for other in &world.placed {
        let theirs = &other.spec.affinity;
        let mine = |term: &PodTerm| term_means(term, &pod.metadata, &other.metadata, world);
        let me = |term: &PodTerm| term_means_newcomer(term, &other.metadata, &pod.metadata, world);
        let wishes = own.pod_affinity.preferred.iter().map(|wish| (wish, 1));
        for (wish, sign) in wishes.chain(
            own.pod_anti_affinity
                .preferred
                .iter()
                .map(|wish| (wish, -1)),
        ) {
            if mine(&wish.pod_affinity_term) {
                add(
                    other,
                    &wish.pod_affinity_term.topology_key,
                    sign * wish.weight,
                );
            }
        }
        for term in &theirs.pod_affinity.required {
            if hard_weight != 0 && me(term) {
                add(other, &term.topology_key, hard_weight);
            }
        }
        let wishes = theirs.pod_affinity.preferred.iter().map(|wish| (wish, 1));
        for (wish, sign) in wishes.chain(
            theirs
                .pod_anti_affinity
                .preferred
                .iter()
                .map(|wish| (wish, -1)),
        ) {
            if me(&wish.pod_affinity_term) {
                add(
                    other,
                    &wish.pod_affinity_term.topology_key,
                    sign * wish.weight,
                );
            }
        }
    }
    if sums.is_empty() {
        return None;
    }
    let of = |node: &Node| -> i64 {
        let labels = node.metadata.labels.iter();
        labels
            .filter_map(|(key, value)| sums.get(&(key.clone(), value.clone())))
            .sum()
    };
    let raw: Vec<i64> = feasible.iter().map(|node| of(node)).collect();
    let min = raw.iter().copied().min().unwrap_or(0);
    let max = raw.iter().copied().max().unwrap_or(0);
    let scaled = raw.into_iter().map(|sum| match max - min {
        0 => 0,
        spread => (100.0 * ((sum - min) as f64 / spread as f64)) as i64,
    });
    Some(scaled.collect())
}
