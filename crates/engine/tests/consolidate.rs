//! What consolidation promises: the price falls with every move, no pod is without a place, and it ends.
//!
//! `CONSOLIDATIONS` in the environment says how many random clusters are tried.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mullion_engine::disrupt::{Candidate, Consolidation, Move, Moves, PoolTerms, Stays};
use mullion_engine::model::{
    Affinity, Container, LabelSelector, NodeSpec, PodAffinity, PodAffinityTerm, PodSpec,
    PodTemplate, ResourceMap, StringMap, TopologySpreadConstraint, label,
};
use mullion_engine::provision::{InstanceType, NodeTemplate, Offering, PlanRequest, PlannedNode};
use mullion_engine::{Cluster, Options, Plugin};

fn amounts(pairs: &[(&str, String)]) -> ResourceMap {
    pairs
        .iter()
        .map(|(name, amount)| ((*name).to_owned(), amount.parse().expect("a quantity")))
        .collect()
}

fn machine(
    name: &str,
    cpu: u64,
    gib: u64,
    price: u64,
    zones: &[&str],
    spot: bool,
) -> Arc<InstanceType> {
    let mut offerings = Vec::new();
    for zone in zones {
        let mut sell = |capacity_type: &str, price_micro_usd| {
            offerings.push(Offering {
                zone: (*zone).to_owned(),
                capacity_type: capacity_type.to_owned(),
                price_micro_usd,
                available: true,
            });
        };
        sell("on-demand", price);
        if spot {
            sell("spot", price / 3);
        }
    }
    let capacity = amounts(&[
        ("cpu", cpu.to_string()),
        ("memory", format!("{gib}Gi")),
        ("pods", "30".to_owned()),
    ]);
    Arc::new(InstanceType {
        name: name.to_owned(),
        labels: StringMap::from([(label::OS.into(), "linux".into())]),
        allocatable: capacity.clone(),
        capacity,
        offerings,
    })
}

fn pod(name: &str, cpu_milli: u64, mib: u64) -> PodSpec {
    let mut container = Container::default();
    container.resources.requests = amounts(&[
        ("cpu", format!("{cpu_milli}m")),
        ("memory", format!("{mib}Mi")),
    ]);
    let template = PodTemplate {
        namespace: "ns".into(),
        containers: vec![container],
        ..PodTemplate::default()
    };
    PodSpec {
        name: name.to_owned(),
        template,
        ..PodSpec::default()
    }
}

/// A node that was bought.
#[derive(Clone)]
struct Bought {
    spec: NodeSpec,
    pool: String,
    price: u64,
    is_spot: bool,
}

/// A cluster, what its nodes cost, and where its pods are.
struct World {
    cluster: Cluster,
    templates: Vec<NodeTemplate>,
    nodes: BTreeMap<String, Bought>,
    pods: BTreeMap<String, (PodSpec, String)>,
    terms: PoolTerms,
    bought: usize,
    random: Random,
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

impl World {
    fn new(templates: Vec<NodeTemplate>, seed: u64) -> Self {
        World {
            cluster: Cluster::new(Options::default()),
            templates,
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            terms: PoolTerms {
                budget: usize::MAX,
                least_saving_per_mille: 30,
                boot_seconds: 60,
                balance: None,
            },
            bought: 0,
            random: Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
        }
    }

    /// Buys a machine that the plan allows, any of them.
    fn buy(&mut self, planned: &PlannedNode) -> String {
        let option = &planned.options[self.random.below(planned.options.len() as u64) as usize];
        let sold = self.random.below(option.offerings.len() as u64) as usize;
        let (zone, capacity_type, price) = option.offerings[sold].clone();
        let template = self.templates.iter().find(|own| own.pool == planned.pool);
        let types = template.iter().flat_map(|own| &own.instance_types);
        let spec = types
            .into_iter()
            .find(|own| own.name == option.name)
            .expect("a type of the pool");
        self.bought += 1;
        let name = format!("n{}", self.bought);
        let mut node = NodeSpec::named(&name);
        node.labels = spec.labels.clone();
        for (key, value) in [
            (label::HOSTNAME, &name),
            (label::ZONE, &zone),
            (label::CAPACITY_TYPE, &capacity_type),
            (label::INSTANCE_TYPE, &spec.name),
            (label::NODE_POOL, &planned.pool),
        ] {
            node.labels.insert(key.to_owned(), value.clone());
        }
        node.capacity = spec.capacity.clone();
        node.allocatable = spec.allocatable.clone();
        self.cluster.add_node(&node).expect("a new node");
        let bought = Bought {
            spec: node,
            pool: planned.pool.clone(),
            price,
            is_spot: capacity_type == "spot",
        };
        self.nodes.insert(name.clone(), bought);
        name
    }

    /// Plans pods one by one, as Karpenter does, and buys for them.
    fn add(&mut self, pods: Vec<PodSpec>) {
        let request = PlanRequest {
            pods: pods.clone(),
            templates: self.templates.clone(),
            ..PlanRequest::default()
        };
        let plan = self.cluster.plan(&request).expect("valid");
        let mut specs: BTreeMap<String, PodSpec> =
            pods.into_iter().map(|pod| (pod.key(), pod)).collect();
        let mut places = plan.existing.clone();
        for planned in &plan.nodes {
            let node = self.buy(planned);
            places.extend(planned.pods.iter().map(|key| (key.clone(), node.clone())));
        }
        for (key, node) in places {
            let spec = specs.remove(&key).expect("asked for");
            self.cluster.bind(&spec, &node).expect("a node");
            self.pods.insert(key, (spec, node));
        }
    }

    fn remove_pod(&mut self, key: &str) {
        self.cluster.remove_pod(key).expect("a pod");
        self.pods.remove(key);
    }

    fn price(&self) -> u64 {
        self.nodes.values().map(|node| node.price).sum()
    }

    fn question(&self) -> Consolidation {
        let candidates = self.nodes.iter().map(|(name, node)| {
            let pods = self
                .pods
                .values()
                .filter(|(_, place)| place == name)
                .count();
            Candidate {
                node: name.clone(),
                pool: node.pool.clone(),
                price_micro_usd: node.price,
                capacity: node.spec.capacity.clone(),
                disruption_milli: 1000 * (1 + pods as u64),
                is_spot: node.is_spot,
            }
        });
        let pools = self.templates.iter();
        Consolidation {
            candidates: candidates.collect(),
            pools: pools
                .map(|own| (own.pool.clone(), self.terms.clone()))
                .collect(),
            market: PlanRequest {
                templates: self.templates.clone(),
                ..PlanRequest::default()
            },
            ..Consolidation::default()
        }
    }

    fn moves(&mut self) -> Moves {
        let question = self.question();
        self.cluster.consolidate(&question).expect("valid")
    }

    /// Makes a move, and checks that it is cheaper and that each of its pods may be where it goes.
    fn make(&mut self, made: &Move) {
        let before: u64 = made.nodes.iter().map(|node| self.nodes[node].price).sum();
        let mut places: BTreeMap<String, String> = made.existing.iter().cloned().collect();
        let mut after = 0;
        for planned in &made.replacements {
            let node = self.buy(planned);
            after += self.nodes[&node].price;
            places.extend(planned.pods.iter().map(|key| (key.clone(), node.clone())));
        }
        assert!(after < before, "{after} in place of {before}: {made:?}");
        let on_them: BTreeSet<String> = self
            .pods
            .iter()
            .filter(|(_, (_, place))| made.nodes.contains(place))
            .map(|(key, _)| key.clone())
            .collect();
        let going: BTreeSet<String> = places.keys().cloned().collect();
        assert_eq!(on_them, going, "every pod of {:?} has a place", made.nodes);
        for key in &on_them {
            self.cluster.remove_pod(key).expect("a pod");
        }
        for node in &made.nodes {
            self.cluster.remove_node(node).expect("a node");
            self.nodes.remove(node);
        }
        for (key, node) in places {
            let (spec, place) = self.pods.get_mut(&key).expect("a pod");
            let class = self.cluster.pod_class(&spec.template).expect("valid");
            let id = self.cluster.node(&node).expect("it stays");
            let refused = self.cluster.refusals(class, &key);
            let refused = refused.iter().find(|(refuses, _)| *refuses == id);
            // Others of its kind are on their way at the same moment, so skew is what it is once all are there.
            if let Some((_, refusal)) =
                refused.filter(|(_, why)| why.plugin != Plugin::PodTopologySpread)
            {
                panic!("{key} on {node}: {refusal:?}");
            }
            self.cluster.bind(spec, &node).expect("a node");
            *place = node;
        }
    }

    /// Follows moves until there are none. Gives how many rounds had some.
    fn settle(&mut self) -> usize {
        for round in 0.. {
            let before = self.price();
            let moves = self.moves();
            if moves.moves.is_empty() {
                return round;
            }
            for made in &moves.moves {
                self.make(made);
            }
            assert!(self.price() < before);
            assert!(round < 40, "it does not end");
        }
        unreachable!("the loop returns")
    }

    /// The same cluster as another process sees it.
    fn anew(&self) -> Self {
        let mut other = World::new(self.templates.clone(), 1);
        other.terms = self.terms.clone();
        for node in self.nodes.values().rev() {
            other.cluster.add_node(&node.spec).expect("a new node");
        }
        other.nodes = self.nodes.clone();
        for (spec, node) in self.pods.values() {
            other.cluster.bind(spec, node).expect("a node");
        }
        other.pods = self.pods.clone();
        other
    }
}

fn pool(name: &str, types: &[Arc<InstanceType>]) -> NodeTemplate {
    NodeTemplate {
        pool: name.to_owned(),
        instance_types: types.to_vec(),
        ..NodeTemplate::default()
    }
}

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
    assert_eq!(moves.stays, [("n1".to_owned(), Stays::NoneCheaper)]);
    world.terms.least_saving_per_mille = 10;
    // 5,000 saved in an hour pay 395,000 for 45 seconds, not for a minute.
    world.terms.boot_seconds = 45;
    assert_eq!(world.moves().moves.len(), 1);
    world.terms.boot_seconds = 60;
    assert_eq!(world.moves().stays, [("n1".to_owned(), Stays::NotWorthIt)]);
}

#[test]
fn budgets_are_kept() {
    let mut world = half_empty(2);
    world.terms.budget = 0;
    let moves = world.moves();
    assert_eq!(moves.moves, []);
    assert_eq!(moves.stays, [("n1".to_owned(), Stays::Budget)]);
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
    assert_eq!(world.moves().stays, [("n1".to_owned(), Stays::SpotToSpot)]);
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
        [("n1".to_owned(), Stays::NotWorthIt)],
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
        matches!(moves.stays[0].1, Stays::PodStuck { .. }),
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

/// A cluster that was bought for more pods than it has.
fn random_world(seed: u64) -> World {
    let mut random = Random(seed.wrapping_mul(0xD134_2543_DE82_EF95) | 1);
    let mut types = Vec::new();
    for (family, gib, base) in [("c", 2, 40_000), ("m", 4, 48_000), ("r", 8, 60_000)] {
        for (size, cpu) in [("l", 2), ("x", 4), ("2x", 8), ("4x", 16)] {
            let price = cpu * base + random.below(20_000);
            let zones: &[&str] = if random.below(4) == 0 {
                &["a"]
            } else {
                &["a", "b", "c"]
            };
            types.push(machine(
                &format!("{family}.{size}"),
                cpu,
                cpu * gib,
                price,
                zones,
                random.below(3) == 0,
            ));
        }
    }
    let mut templates = vec![pool("p", &types)];
    if random.below(2) == 0 {
        let mut second = pool("q", &types[..6]);
        second.weight = random.below(3) as i32;
        templates.push(second);
    }
    if random.below(3) == 0 {
        templates[0].limits_remaining = amounts(&[("cpu", (20 + random.below(60)).to_string())]);
    }
    let mut world = World::new(templates, seed);
    world.terms.boot_seconds = random.below(300) as u32;
    if random.below(3) == 0 {
        world.terms.budget = 1 + random.below(3) as usize;
    }
    let mut pods = Vec::new();
    for app in 0..2 + random.below(4) {
        let (cpu, mib) = (100 + 100 * random.below(18), 128 << random.below(5));
        let kind = random.below(5);
        for index in 0..1 + random.below(12) {
            let mut pod = pod(&format!("app{app}-{index}"), cpu, mib);
            let name = format!("app{app}");
            pod.template.labels.insert("app".into(), name.clone());
            let selector = LabelSelector {
                match_labels: StringMap::from([("app".into(), name)]),
                ..LabelSelector::default()
            };
            if kind == 0 {
                pod.template.topology_spread_constraints = vec![TopologySpreadConstraint {
                    max_skew: 1,
                    topology_key: label::ZONE.into(),
                    label_selector: Some(selector),
                    ..TopologySpreadConstraint::default()
                }];
            } else if kind == 1 {
                let apart = PodAffinityTerm {
                    label_selector: Some(selector),
                    topology_key: label::HOSTNAME.into(),
                    ..PodAffinityTerm::default()
                };
                pod.template.affinity = Affinity {
                    pod_anti_affinity: Some(PodAffinity {
                        required: vec![apart],
                        preferred: Vec::new(),
                    }),
                    ..Affinity::default()
                };
            }
            pods.push(pod);
        }
    }
    world.add(pods);
    let keys: Vec<String> = world.pods.keys().cloned().collect();
    for key in keys {
        if world.random.below(2) == 0 {
            world.remove_pod(&key);
        }
    }
    world
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
