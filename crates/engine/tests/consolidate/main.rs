//! What consolidation promises: the price falls with every move, no pod is without a place, and it ends.
//!
//! `CONSOLIDATIONS` in the environment says how many random clusters are tried.

mod money;
mod world;

use std::sync::Arc;

use mullion_engine::disrupt::{Consolidation, StayReason};
use mullion_engine::model::{
    NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Operator,
};
use mullion_engine::provision::{InstanceType, NodeTemplate, Requirement};

use world::{World, machine, pod, pool, random_world};

fn sizes() -> [Arc<InstanceType>; 4] {
    [
        machine("small", 2, 8, 100_000, &["a"], false),
        machine("medium", 4, 16, 200_000, &["a"], false),
        machine("large", 8, 32, 400_000, &["a"], false),
        machine("huge", 16, 64, 800_000, &["a"], false),
    ]
}

/// A world with a large node for pods of which some went.
fn half_empty(left: usize) -> World {
    let mut world = World::new(vec![pool("p", &sizes()[2..3])], 7);
    world.add(
        (0..8)
            .map(|index| pod(&format!("web-{index}"), 900, 512))
            .collect(),
    );
    for index in left..8 {
        world.remove_pod(&format!("ns/web-{index}"));
    }
    world.templates = vec![pool("p", &sizes())];
    world
}

#[test]
fn a_node_goes_whose_pods_find_room_elsewhere() {
    let mut world = World::new(vec![pool("p", &sizes()[1..2])], 3);
    world.add(
        (0..6)
            .map(|index| pod(&format!("web-{index}"), 1200, 512))
            .collect(),
    );
    assert_eq!(world.nodes.len(), 2);
    for index in 0..4 {
        world.remove_pod(&format!("ns/web-{index}"));
    }
    let moves = world.moves();
    let first = &moves.moves[0];
    assert!(first.replacements.is_empty());
    assert_eq!(first.saving_micro_usd, 200_000);
    world.settle();
    assert_eq!(world.nodes.len(), 1);
}

#[test]
fn a_node_is_replaced_by_a_cheaper_one() {
    let mut world = half_empty(2);
    let moves = world.moves();
    let [made] = moves.moves.as_slice() else {
        panic!("one move: {moves:?}")
    };
    let types: Vec<_> = made.replacements[0]
        .options
        .iter()
        .map(|own| own.name.as_str())
        .collect();
    assert_eq!(
        types,
        ["small", "medium"],
        "the list ends below what the old node costs"
    );
    assert_eq!(made.saving_micro_usd, 300_000);
}

/// A pool with a requirement on the label of the team.
fn with_team(operator: Operator, values: &[String], types: &[Arc<InstanceType>]) -> NodeTemplate {
    NodeTemplate {
        requirements: vec![Requirement {
            key: "team".to_owned(),
            operator,
            values: values.to_vec(),
            min_values: None,
        }],
        ..pool("p", types)
    }
}

/// A world with a large node for the eight pods of each team, of which two are left. The pool leaves the label of the team
/// open, and may buy smaller nodes now.
fn nodes_of_teams(teams: &[String]) -> World {
    let open = |types: &[Arc<InstanceType>]| with_team(Operator::Exists, &[], types);
    let mut world = World::new(vec![open(&sizes()[2..3])], 7);
    let of_team = |(index, team): (usize, &String)| {
        let mut pod = pod(&format!("web-{index}"), 900, 512);
        let selector = &mut pod.template.node_selector;
        selector.insert("team".to_owned(), team.clone());
        pod
    };
    let each = teams.iter().flat_map(|team| std::iter::repeat_n(team, 8));
    world.add(each.enumerate().map(of_team).collect());
    for index in (0..8 * teams.len()).filter(|index| index % 8 > 1) {
        world.remove_pod(&format!("ns/web-{index}"));
    }
    world.templates = vec![open(&sizes())];
    world
}

#[test]
fn a_replacement_has_the_label_that_its_pods_ask_for_where_the_pool_leaves_it_open() {
    let mut world = nodes_of_teams(&["a".to_owned()]);
    let moves = world.moves();
    let [made] = moves.moves.as_slice() else {
        panic!("one move: {moves:?}")
    };
    let mut requirements = made.replacements[0].requirements.iter();
    let team = requirements.find(|own| own.key == "team");
    assert_eq!(team.expect("a requirement").values, ["a"]);
}

#[test]
fn every_node_has_a_replacement_however_many_values_of_an_open_label_its_pods_ask_for() {
    let teams: Vec<String> = (0..70).map(|team| format!("t{team}")).collect();
    let mut world = nodes_of_teams(&teams);
    let moves = world.moves();
    let replacements = moves.moves.iter().flat_map(|made| &made.replacements);
    let asked = replacements.map(|node| {
        let team = node.requirements.iter().find(|own| own.key == "team");
        team.expect("a requirement").values.clone()
    });
    let asked: std::collections::BTreeSet<_> = asked.collect();
    let all: std::collections::BTreeSet<_> = teams.into_iter().map(|team| vec![team]).collect();
    assert_eq!(asked, all);
}

#[test]
fn a_node_stays_because_its_pod_accepts_more_values_of_an_open_label_than_are_tried() {
    let teams: Vec<String> = (0..1500).map(|team| format!("t{team:04}")).collect();
    let demand = |operator, values: &[String]| NodeSelectorRequirement {
        key: "team".to_owned(),
        operator,
        values: values.to_vec(),
    };
    // None of the values that are tried will do.
    let term = NodeSelectorTerm {
        match_expressions: vec![
            demand(Operator::In, &teams),
            demand(Operator::NotIn, &teams[..1024]),
        ],
        ..NodeSelectorTerm::default()
    };
    let mut web = pod("web", 900, 512);
    web.template.affinity.node_affinity = Some(NodeAffinity {
        required: Some(NodeSelector {
            node_selector_terms: vec![term],
        }),
        ..NodeAffinity::default()
    });
    let large = with_team(Operator::In, &teams[1400..1401], &sizes()[2..3]);
    let mut world = World::new(vec![large], 7);
    world.add(vec![web]);
    world.templates = vec![with_team(Operator::Exists, &[], &sizes())];
    let pod = "ns/web".to_owned();
    let stays = StayReason::MoreCombinations { pod, tried: 1024 };
    assert_eq!(world.moves().stays, [("n1".to_owned(), stays)]);
}

#[test]
fn a_node_becomes_several_where_they_are_cheaper() {
    let mut world = half_empty(5);
    // Four cores cost 200,000 and hold four pods; a fifth takes the smallest.
    let moves = world.moves();
    let [made] = moves.moves.as_slice() else {
        panic!("one move: {moves:?}")
    };
    assert_eq!(made.nodes.len(), 1);
    assert_eq!(made.replacements.len(), 2);
    assert_eq!(made.saving_micro_usd, 100_000);
}

#[test]
fn a_small_saving_is_not_worth_it() {
    let mut world = half_empty(8);
    world.templates = vec![pool("p", &[machine("new", 8, 32, 395_000, &["a"], false)])];
    let moves = world.moves();
    assert_eq!(moves.moves, []);
    assert_eq!(moves.stays, [("n1".to_owned(), StayReason::NoneCheaper)]);
    world.terms.least_saving_per_mille = 10;
    // 5,000 saved in an hour pay 395,000 for 45 seconds, not for a minute.
    world.terms.boot_seconds = 45;
    assert_eq!(world.moves().moves.len(), 1);
    world.terms.boot_seconds = 60;
    assert_eq!(
        world.moves().stays,
        [("n1".to_owned(), StayReason::NotWorthIt)]
    );
}

#[test]
fn budgets_are_kept() {
    let mut world = half_empty(2);
    world.terms.budget = 0;
    let moves = world.moves();
    assert_eq!(moves.moves, []);
    assert_eq!(moves.stays, [("n1".to_owned(), StayReason::Budget)]);
}

#[test]
fn spot_takes_the_place_of_spot_only_where_it_is_asked_for() {
    let types = |from: usize| -> Vec<_> {
        (from..20)
            .map(|step| {
                machine(
                    &format!("t{step}"),
                    8,
                    32,
                    300_000 + 10_000 * step as u64,
                    &["a"],
                    true,
                )
            })
            .collect()
    };
    let mut world = World::new(vec![pool("p", &types(19))], 5);
    world.add(vec![pod("web", 7000, 1024)]);
    world.nodes.get_mut("n1").expect("bought").is_spot = true;
    world.nodes.get_mut("n1").expect("bought").price = 200_000;
    world.templates = vec![pool("p", &types(0))];
    assert_eq!(
        world.moves().stays,
        [("n1".to_owned(), StayReason::SpotToSpot)]
    );
    let question = |world: &World| Consolidation {
        spot_to_spot: true,
        ..world.question()
    };
    let asked = question(&world);
    let moves = world.cluster.consolidate(&asked).expect("valid");
    assert_eq!(moves.moves.len(), 1, "20 cheaper types: {moves:?}");
    world.templates = vec![pool("p", &types(10))];
    let asked = question(&world);
    let moves = world.cluster.consolidate(&asked).expect("valid");
    assert_eq!(
        moves.stays,
        [("n1".to_owned(), StayReason::NotWorthIt)],
        "10 types are too few"
    );
}

#[test]
fn pods_that_wait_keep_their_room() {
    let mut world = World::new(vec![pool("p", &sizes()[1..2])], 3);
    world.add(
        (0..6)
            .map(|index| pod(&format!("web-{index}"), 1200, 512))
            .collect(),
    );
    for index in 0..4 {
        world.remove_pod(&format!("ns/web-{index}"));
    }
    let mut question = world.question();
    question.market.templates.clear();
    question.market.pods = (0..4)
        .map(|index| pod(&format!("new-{index}"), 1200, 512))
        .collect();
    let moves = world.cluster.consolidate(&question).expect("valid");
    assert_eq!(moves.moves, []);
    assert!(
        matches!(moves.stays[0].1, StayReason::PodStuck { .. }),
        "{moves:?}"
    );
}

#[test]
fn pods_of_nodes_that_go_keep_the_room_they_will_get() {
    let mut world = World::new(vec![pool("p", &sizes()[1..2])], 3);
    let pods = (0..9).map(|index| pod(&format!("web-{index}"), 1200, 512));
    world.add(pods.collect());
    let nodes: Vec<String> = world.nodes.keys().cloned().collect();
    assert_eq!(nodes.len(), 3);
    // One pod goes to the room that the second node has left; there is none for the third's then.
    let leave = |world: &mut World, node: &str, count: usize| {
        let on_it = world.pods.iter().filter(|(_, (_, place))| place == node);
        let keys: Vec<String> = on_it.map(|(key, _)| key.clone()).skip(count).collect();
        keys.iter().for_each(|key| world.remove_pod(key));
    };
    leave(&mut world, &nodes[0], 1);
    leave(&mut world, &nodes[1], 2);
    leave(&mut world, &nodes[2], 1);
    let mut question = world.question();
    question.market.templates.clear();
    question.candidates.retain(|own| own.node == nodes[2]);
    let alone = world.cluster.consolidate(&question).expect("valid");
    assert_eq!(alone.moves.len(), 1);
    let mut going = world.pods.values().filter(|(_, place)| *place == nodes[0]);
    question.market.pods = vec![going.next().expect("one is left").0.clone()];
    question.leaving = vec![nodes[0].clone()];
    let moves = world.cluster.consolidate(&question).expect("valid");
    assert_eq!(moves.moves, []);
}

/// How many random clusters are followed.
#[allow(clippy::disallowed_methods)]
fn clusters() -> u64 {
    let wanted = std::env::var("CONSOLIDATIONS").ok();
    wanted
        .and_then(|count| count.parse().ok())
        .unwrap_or(10_000)
}

/// Follows the moves of random clusters to the end, and asks another process whether there are more.
fn follow(seeds: impl Iterator<Item = u64>) {
    let (mut before, mut after) = (0, 0);
    for seed in seeds {
        let mut world = random_world(seed);
        before += world.price();
        let pods = world.pods.len();
        world.settle();
        after += world.price();
        assert_eq!(world.pods.len(), pods, "cluster {seed}");
        let again = world.anew().moves();
        assert_eq!(
            again.moves,
            [],
            "cluster {seed}: another process finds more"
        );
    }
    assert!(after < before);
}

// Two tests, so that two cores do it in half the time.

#[test]
fn consolidation_ends_and_every_move_is_cheaper_in_even_clusters() {
    follow((0..clusters()).step_by(2));
}

#[test]
fn consolidation_ends_and_every_move_is_cheaper_in_odd_clusters() {
    follow((1..clusters()).step_by(2));
}
